// SPDX-License-Identifier: Apache-2.0

package quote_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"holdstill.example/snapshot/internal/quote"
)

func TestName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, want string }{
		{"a.js", "a.js"},
		{"/srv/my app/a.js", "/srv/my app/a.js"},
		{"-rf", "-rf"},
		{`a\b"c`, `a\b"c`},
		{"héé 世界", "héé 世界"},
		{"\ufffd", "\ufffd"},
		{"", `""`},
		{`"a"`, `"\"a\""`},
		{" a", `" a"`},
		{"a ", `"a "`},
		{"a\nb", `"a\nb"`},
		{"a\x1b[2Jb", `"a\x1b[2Jb"`},
		{"a\x7f", `"a\x7f"`},
		{"a\u009bb", `"a\u009bb"`},
		{"a\xff", `"a\xff"`},
		{"a\u202egpj.exe", `"a\u202egpj.exe"`},
		{"a\u2028b", `"a\u2028b"`},
		{"a\u200bb", `"a\u200bb"`},
		{"a\u00a0b", `"a\u00a0b"`},
	} {
		assert.Equal(t, tt.want, quote.Name(tt.name), "Name(%q)", tt.name)
	}
}

func TestNameIsShortenedInItsMiddle(t *testing.T) {
	t.Parallel()
	whole := strings.Repeat("é", 200)
	assert.Equal(t, whole, quote.Name(whole))

	got := quote.Name("<" + strings.Repeat("é", 5000) + ">")
	assert.Equal(t, 200, utf8.RuneCountInString(got))
	assert.True(t, strings.HasPrefix(got, "<é") && strings.HasSuffix(got, "é>") && strings.Contains(got, "é…é"), "Name = %s", got)

	got = quote.Name(strings.Repeat("\xff", 5000))
	assert.Equal(t, `"`+strings.Repeat(`\xff`, 100)+"…"+strings.Repeat(`\xff`, 99)+`"`, got)
}

func TestText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{`open "a\nb": no`, `open "a\nb": no`},
		{"open a\nholdstill: done: x", `open a\nholdstill: done: x`},
		{"open a\x1b]0;t\a\xff: no", `open a\x1b]0;t\a\xff: no`},
		{"open \u202eb \ufffd", "open \\u202eb \ufffd"},
	} {
		assert.Equal(t, tt.want, quote.Text(tt.text), "Text(%q)", tt.text)
	}
}
