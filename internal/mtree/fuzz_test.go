// SPDX-License-Identifier: Apache-2.0

package mtree

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzEscape: every byte comes back, and no other spelling of it is taken.
func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", "a b", "\x00\n\\", "é\xff/", `\040`, `\s`, `\1`, `\400`, `\141`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		escaped := appendEscaped([]byte("x"), b)[1:]
		got, err := appendUnescaped([]byte("x"), escaped)
		require.NoError(t, err)
		require.Equal(t, "x"+string(b), string(got))
		require.False(t, bytes.ContainsAny(escaped, " #=\n\"*?["))
		if decoded, err := appendUnescaped(nil, b); err == nil {
			require.Equal(t, string(b), string(appendEscaped([]byte(nil), decoded)))
		}
	})
}

// FuzzCompare: the order is that of the components, so that a directory is followed at once by all that is beneath it.
func FuzzCompare(f *testing.F) {
	f.Add("a", "a/b")
	f.Add("a-b", "a/b")
	f.Add(".", "\x01")
	f.Add("a/\xff", "a/é/b")
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, p := range []string{a, b} {
			if p != "." && checkPath([]byte(p)) != nil {
				return
			}
		}
		got := sign(Compare(a, b))
		require.Equal(t, -got, sign(Compare(b, a)))
		require.Equal(t, got, sign(Compare([]byte(a), b)))
		require.Equal(t, a == b, got == 0)
		want := slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
		if a == "." || b == "." {
			want = strings.Compare(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
			if a == "." && b != "." {
				want = -1
			} else if b == "." && a != "." {
				want = 1
			}
		}
		require.Equal(t, want, got, "Compare(%q, %q)", a, b)
	})
}

func sign(n int) int { return min(max(n, -1), 1) }

// FuzzReaderMemory repeats a piece of text without an end: what is held of it is bounded.
func FuzzReaderMemory(f *testing.F) {
	f.Add([]byte("#mtree v2.0\n. type=dir mode=0755\n"), []byte("x"))
	f.Add([]byte("#mtree v2.0\n. type=dir mode=0755\n./"), []byte(`\377`))
	f.Add([]byte("#mtree v2.0\n. type=dir mode=0755\n./a type=link mode=0777 link="), []byte("./"))
	f.Add([]byte(""), []byte("\n"))
	f.Fuzz(func(t *testing.T, head, piece []byte) {
		if len(piece) == 0 {
			return
		}
		src := &endless{head: head, piece: piece, most: len(head) + 4*maxLine}
		r := NewReader(src)
		for r.Next() {
			require.LessOrEqual(t, len(r.Path()), MaxPath)
			require.LessOrEqual(t, len(r.link), MaxLink)
		}
		require.Error(t, r.Err(), "no path comes twice")
		require.LessOrEqual(t, len(r.buf), maxLine)
		require.LessOrEqual(t, src.read-int(r.off), maxLine+bufferSize, "bytes ahead of the last line")
	})
}

type endless struct {
	head, piece []byte
	read, most  int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for ; n < len(p); n++ {
		if i := e.read + n; i < len(e.head) {
			p[n] = e.head[i]
		} else {
			p[n] = e.piece[(i-len(e.head))%len(e.piece)]
		}
	}
	e.read += n
	if e.read > e.most {
		panic("it is read on and on")
	}
	return n, nil
}
