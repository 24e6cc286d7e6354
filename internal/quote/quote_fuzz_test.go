// SPDX-License-Identifier: Apache-2.0

package quote_test

import (
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot/internal/quote"
)

var fuzzNames = []string{
	"", "a.js", "a b", " a", "a\nb", "\x1b[0m", "\xff", "\ufffd", "\u202e", "\u00a0", `"a"`, `a\nb`, "'", "-rf", "$(x)", "é", "\U0010ffff",
	strings.Repeat("x", 300), strings.Repeat("\xff", 201),
}

// FuzzName: what is shown is harmless, and tells exactly which name it is, unless it is shortened.
func FuzzName(f *testing.F) {
	for _, s := range fuzzNames {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		shown := quote.Name(name)
		requireHarmless(t, shown)
		require.NotEmpty(t, shown)
		if utf8.RuneCountInString(name) > 200 {
			require.Contains(t, shown, "…")
			require.LessOrEqual(t, len(shown), 200*len(`\U0010ffff`)+2)
			return
		}
		if shown[0] != '"' {
			require.Equal(t, name, shown)
			return
		}
		got, err := strconv.Unquote(shown)
		require.NoError(t, err)
		require.Equal(t, name, got)
	})
}

func FuzzText(f *testing.F) {
	for _, s := range fuzzNames {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		shown := quote.Text(text)
		requireHarmless(t, shown)
		require.Equal(t, shown, quote.Text(shown))
		if !strings.ContainsAny(text, `"\`) {
			got, err := strconv.Unquote(`"` + shown + `"`)
			require.NoError(t, err)
			require.Equal(t, text, got)
		}
	})
}

// FuzzShell reads the word as POSIX says a shell does.
func FuzzShell(f *testing.F) {
	for _, s := range fuzzNames {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		shown := quote.Shell(name)
		requireHarmless(t, shown)
		require.Equal(t, quote.Text(name), shellWord(t, shown), "Shell(%q) = %s", name, shown)
	})
}

// shellWord fails if s is not one word without expansions, or could be taken for an option.
func shellWord(t *testing.T, s string) string {
	t.Helper()
	require.NotEmpty(t, s)
	require.NotEqual(t, byte('-'), s[0])
	var word strings.Builder
	for s != "" {
		switch c := s[0]; {
		case c == '\'':
			quoted, rest, closed := strings.Cut(s[1:], "'")
			require.True(t, closed)
			word.WriteString(quoted)
			s = rest
		case c == '\\':
			require.Greater(t, len(s), 1)
			word.WriteByte(s[1])
			s = s[2:]
		default:
			require.False(t, c >= utf8.RuneSelf || strings.IndexByte(" \t\n|&;<>()$`\"*?[]#~={}!^", c) >= 0, "%q stands bare", c)
			word.WriteByte(c)
			s = s[1:]
		}
	}
	return word.String()
}

func requireHarmless(t *testing.T, s string) {
	t.Helper()
	require.True(t, utf8.ValidString(s), "%q", s)
	for _, r := range s {
		require.True(t, unicode.IsPrint(r), "%U in %q", r, s)
	}
}
