// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFilterExplain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		patterns string // separated by spaces
		path     string
		pattern  string
		excluded bool
	}{
		{"a", "a", "a", true},
		{"a", "a/b/c", "a", true},
		{"a", "b/a", "", false},
		{"a", "ab", "", false},
		{"a/", "a", "a/", true},
		{"/a", "a", "/a", true},
		{"a/../b", "b", "a/../b", true},
		{"*", "a/b", "*", true},
		{"*.o", "x.o", "*.o", true},
		{"*.o", "d/x.o", "", false},
		{"**/*.o", "x.o", "**/*.o", true},
		{"**/*.o", "d/e/x.o", "**/*.o", true},
		{"**/node_modules", "node_modules/x", "**/node_modules", true},
		{"**/node_modules", "a/node_modules", "**/node_modules", true},
		{"**/node_modules", "a_node_modules", "", false},
		{"a/**", "a", "", false},
		{"a/**", "a/b", "a/**", true},
		{"a/**/z", "a/z", "a/**/z", true},
		{"a/**/z", "a/b/c/z", "a/**/z", true},
		{"a/**/*z", "a/b\nc/z", "a/**/*z", true},
		{"?**/b", "xb", "?**/b", true},
		{"**", "a", "**", true},
		{"?", "a", "?", true},
		{"?", "é", "?", true},
		{"?", "\xff", "?", true},
		{"??", "a/b", "", false},
		{"[a-c]x", "bx", "[a-c]x", true},
		{"[^a-c]x", "bx", "", false},
		{"[^a-c]x", "\xffx", "[^a-c]x", true},
		{`[\]^*]`, "]", `[\]^*]`, true},
		{`[\]^*]`, "*", `[\]^*]`, true},
		{`[A-z]`, "]", `[A-z]`, true},
		{`\*`, "*", `\*`, true},
		{`\*`, "x", "", false},
		{`\d`, "5", "", false},
		{`\d`, "d", `\d`, true},
		{`\!a`, "!a", `\!a`, true},
		{"!!a **", "!a", "**", true},
		{"** !!a", "!a", "!!a", false},
		{"a^b*", "a^bc", "a^b*", true},
		{"a+(b)|c$*", "a+(b)|c$d", "a+(b)|c$*", true},

		{"a !a/keep", "a/keep/x", "!a/keep", false},
		{"a !a/keep", "a/other", "a", true},
		{"a !a/keep a", "a/keep", "a", true}, // the last match wins, also where it is above
		{"* !a", "a/x", "!a", false},
		{"!a *", "a/x", "*", true},
		{"!/a", "a", "!/a", false},

		{"a\xff", "a\xff", "a\xff", true},
		{"a\xff*", "a\xffb", "a\xff*", true},
		{"a\xff*", "a\xfeb", "", false},
		{"a\ufffd*", "a\xffb", "", false},
		{"a\ufffd*", "a\ufffdb", "a\ufffd*", true},
		{"[\x80-\xff]", "\xfe", "[\x80-\xff]", true},
		{"a\U0010FFFF?", "a\xffx", "", false},
		{"a\U0010FFFF?", "a\U0010FFFFx", "a\U0010FFFF?", true},
		{"\ufeffa*", "\ufeffab", "\ufeffa*", true},

		{"**", ".", "", false},
		{"**", "", "", false},
		{"**", "/", "", false},
		{"a", "./a/b/", "a", true},
	} {
		patterns := strings.Fields(tt.patterns)
		f, err := NewFilter(patterns...)
		require.NoError(t, err, "NewFilter(%q)", patterns)
		pattern, excluded := f.Explain(tt.path)
		assert.Equal(t, tt.pattern, pattern, "%q.Explain(%q)", patterns, tt.path)
		assert.Equal(t, tt.excluded, excluded, "%q.Explain(%q)", patterns, tt.path)
	}
}

func TestNewFilterRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ pattern, want string }{
		{"", `pattern "": it matches nothing: invalid argument`},
		{"  ", `pattern "  ": it matches nothing: invalid argument`},
		{"!", `pattern "!": it matches nothing: invalid argument`},
		{"/", `pattern "/": it matches nothing: invalid argument`},
		{"a[", `pattern "a[": a character class is not closed: invalid argument`},
		{"a[b", `pattern "a[b": a character class is not closed: invalid argument`},
		{"a[]b]", `pattern "a[]b]": ']' in a character class needs a backslash: invalid argument`},
		{"a[-b]", `pattern "a[-b]": '-' in a character class needs a backslash: invalid argument`},
		{"a[b-]", `pattern "a[b-]": ']' in a character class needs a backslash: invalid argument`},
		{"a\x1b\\", `pattern "a\x1b\\": it ends with a backslash: invalid argument`},
	} {
		_, err := NewFilter("fine", tt.pattern)
		require.ErrorIs(t, err, fs.ErrInvalid, "NewFilter(%q)", tt.pattern)
		assert.Equal(t, tt.want, err.Error())
	}
	_, err := NewFilter("[z-a]")
	assert.ErrorIs(t, err, fs.ErrInvalid)
}

func TestFilterNil(t *testing.T) {
	t.Parallel()
	for _, f := range []*Filter{nil, {}} {
		pattern, excluded := f.Explain("a/b")
		assert.False(t, excluded)
		assert.Empty(t, pattern)
		assert.Empty(t, f.Patterns())
		assert.False(t, f.mayReinclude("a"))
	}
}

func TestFilterPatterns(t *testing.T) {
	t.Parallel()
	f, err := NewFilter(" a/ ", "!b")
	require.NoError(t, err)
	f.Patterns()[0] = "changed"
	assert.Equal(t, []string{" a/ ", "!b"}, f.Patterns())
}

func TestFilterMayReinclude(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, dir string
		want         bool
	}{
		{"a/b", "a", false}, // nothing is kept
		{"!a/b", "a", true},
		{"!a/b", "b", false},
		{"!a/b", "a/b", false},
		{"!a/b", "a/b/c", false},
		{"!a/*/c", "a/x", true},
		{"!a/*/c", "b/x", false},
		{"!*.md", "docs", false},
		{"!**/keep", "a/b/c", true},
		{"!a/**", "a/b/c", true},
		{"!a/**", "b", false},
		{"![^x]y", "a", true}, // matches a/y
		{`!\a/b`, "a", true},
	} {
		f, err := NewFilter(tt.pattern)
		require.NoError(t, err)
		assert.Equal(t, tt.want, f.mayReinclude(tt.dir), "%q.mayReinclude(%q)", tt.pattern, tt.dir)
	}
}

// What people know from .dockerignore is what they get, wherever patternmatcher has no fault of its own.
func TestFilterEqualsPatternmatcher(t *testing.T) {
	t.Parallel()
	if filepath.Separator != '/' {
		t.Skip("patternmatcher takes a backslash for a separator here")
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	word := func(alphabet []string, most int) string {
		var b strings.Builder
		for range 1 + rnd.IntN(most) {
			b.WriteString(alphabet[rnd.IntN(len(alphabet))])
		}
		return b.String()
	}
	excludedCount, keptCount := 0, 0
	for range 5_000 {
		patterns := make([]string, 1+rnd.IntN(3))
		for i := range patterns {
			patterns[i] = []string{"", "", "!"}[rnd.IntN(3)] + word([]string{"a", "b", ".", "é", "*", "**", "**/", "/", "/", "?", "[ab]", "[^a]"}, 6)
		}
		f, err := NewFilter(patterns...)
		if err != nil {
			continue
		}
		lines, err := ignorefile.ReadAll(strings.NewReader(strings.Join(patterns, "\n")))
		require.NoError(t, err)
		peer, err := patternmatcher.New(lines)
		require.NoError(t, err, "%q", patterns)
		for range 5 {
			name := strings.Trim(filepath.Clean(word([]string{"a", "b", ".", "é", "/", "c/"}, 6)), "/")
			if name == "." || name == "" || strings.HasPrefix(name, "..") {
				continue
			}
			want, err := peer.MatchesOrParentMatches(name)
			require.NoError(t, err)
			_, got := f.Explain(name)
			require.Equal(t, want, got, "patterns %q, path %q", patterns, name)
			if got {
				excludedCount++
			} else {
				keptCount++
			}
		}
	}
	assert.Greater(t, excludedCount, 1000)
	assert.Greater(t, keptCount, 1000)
}

// Pruning must lose nothing: beneath a directory that is excluded and cannot hold a kept entry, everything is excluded.
func TestFilterPruningLosesNothing(t *testing.T) {
	t.Parallel()
	parts := []string{"a", "b", "ab", "*", "?", "a*", "**", "[^b]", `\a`}
	names := []string{"a", "b", "ab"}
	rnd := rand.New(rand.NewPCG(3, 4))
	pick := func(from []string, most int) string {
		chosen := make([]string, 1+rnd.IntN(most))
		for i := range chosen {
			chosen[i] = from[rnd.IntN(len(from))]
		}
		return strings.Join(chosen, "/")
	}
	pruned := 0
	for range 5_000 {
		patterns := []string{pick(parts, 2), "!" + pick(parts, 3), "!" + pick(parts, 3)}
		f, err := NewFilter(patterns...)
		require.NoError(t, err)
		dir := pick(names, 2)
		if _, excluded := f.Explain(dir); !excluded || f.mayReinclude(dir) {
			continue
		}
		pruned++
		beneath := dir + "/" + pick(names, 2)
		_, excluded := f.Explain(beneath)
		require.True(t, excluded, "patterns %q: %q is pruned, %q is kept", patterns, dir, beneath)
	}
	assert.Greater(t, pruned, 100)
}

func TestFilterConcurrently(t *testing.T) {
	t.Parallel()
	f, err := NewFilter("**/*.o", "!keep/*.o")
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				_, excluded := f.Explain("a/b.o")
				assert.True(t, excluded)
				_, excluded = f.Explain("keep/b.o")
				assert.False(t, excluded)
			}
		})
	}
	wg.Wait()
}

func FuzzFilter(f *testing.F) {
	f.Add("a/**/[^b]", "a/c")
	f.Add("!a\xff", "a\xff")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if filter, err := NewFilter(pattern); err == nil {
			filter.Explain(name)
			filter.mayReinclude(name)
		} else {
			assert.ErrorIs(t, err, fs.ErrInvalid)
		}
	})
}

func FuzzOpaque(f *testing.F) {
	f.Add("a\xff", "a\U0010FFFF")
	f.Add("\xf4\x8f\xbf", "\U0010FF80")
	f.Fuzz(func(t *testing.T, a, b string) {
		assert.True(t, utf8.ValidString(opaque(a)))
		assert.Equal(t, a == b, opaque(a) == opaque(b), "opaque(%q), opaque(%q)", a, b)
	})
}
