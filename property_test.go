// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
)

// seedVariable repeats one case of a random test: the one that a failure names.
const seedVariable = "HOLDSTILL_SEED"

// firstSeed returns a new seed, or the one that is asked for and true.
func firstSeed(t testing.TB) (seed uint64, asked bool) {
	t.Helper()
	s := os.Getenv(seedVariable)
	if s == "" {
		return rand.Uint64() >> 16, false
	}
	seed, err := strconv.ParseUint(s, 10, 64)
	require.NoError(t, err, "%s=%q", seedVariable, s)
	return seed, true
}

// eachSeed runs f in a subtest for each of n seeds.
func eachSeed(t *testing.T, n int, f func(t *testing.T, rnd *rand.Rand)) {
	t.Helper()
	first, asked := firstSeed(t)
	if asked {
		n = 1
	}
	name := t.Name()
	for seed := first; seed < first+uint64(n); seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("again: %s=%d go test -count=1 -run '^%s$' .", seedVariable, seed, name)
				}
			})
			f(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func pick[T any](rnd *rand.Rand, from []T) T { return from[rnd.IntN(len(from))] }

// globs says whether a pattern of .dockerignore matches name: by trying everything, without a regular expression.
func globs(pattern, name string) bool {
	if pattern == "" {
		return name == ""
	}
	c, size := character(pattern)
	rest := pattern[size:]
	switch {
	case strings.HasPrefix(pattern, "**"):
		rest = strings.TrimPrefix(rest[1:], "/")
		if rest == "" || globs(rest, name) {
			return true
		}
		for i := range len(name) {
			if name[i] == '/' && globs(rest, name[i+1:]) {
				return true
			}
		}
		return false
	case c == "*":
		for i := 0; ; i++ {
			if globs(rest, name[i:]) {
				return true
			}
			if i == len(name) || name[i] == '/' {
				return false
			}
		}
	case name == "":
		return false
	}
	got, length := character(name)
	switch c {
	case "?":
		return got != "/" && globs(rest, name[length:])
	case "[":
		is, rest := oneOf(rest, got)
		return is && globs(rest, name[length:])
	case `\`:
		c, size = character(rest)
		rest = rest[size:]
	}
	return c == got && globs(rest, name[length:])
}

// character is one of UTF-8, or a byte that is not of it.
func character(s string) (c string, size int) {
	_, size = utf8.DecodeRuneInString(s)
	return s[:size], size
}

// oneOf reads a class behind its bracket and says whether c is in it. Bytes that are not UTF-8 come after all characters.
func oneOf(class, c string) (is bool, rest string) {
	class, negated := strings.CutPrefix(class, "^")
	member := func() string {
		class = strings.TrimPrefix(class, `\`)
		m, size := character(class)
		class = class[size:]
		return m
	}
	for first := true; first || class[0] != ']'; first = false {
		low := member()
		high := low
		if after, ranged := strings.CutPrefix(class, "-"); ranged {
			class = after
			high = member()
		}
		is = is || order(low) <= order(c) && order(c) <= order(high)
	}
	return is != negated, class[1:]
}

func order(c string) int {
	r, size := utf8.DecodeRuneInString(c)
	if r == utf8.RuneError && size == 1 {
		return utf8.MaxRune + int(c[0])
	}
	return int(r)
}

// ruledBy returns the last pattern that matches name or a directory above it, and whether it excludes.
func ruledBy(patterns []string, name string) (pattern string, excluded bool) {
	for _, p := range patterns {
		text, keep := strings.CutPrefix(strings.TrimSpace(p), "!")
		text = strings.TrimPrefix(path.Clean(strings.TrimSpace(text)), "/")
		for end := range len(name) + 1 {
			if (end == len(name) || name[end] == '/') && globs(text, name[:end]) {
				pattern, excluded = p, !keep
				break
			}
		}
	}
	return pattern, excluded
}

// randomPatterns are made of parts of names. "**" is a component of its own, as the syntax describes it.
func randomPatterns(rnd *rand.Rand, names []string) []string {
	pieces := []string{"*", "?", "[a-m]", "[^a-m]", `[\]x\xff-\xff]`, `\*`, "é", "\xff", "a"}
	patterns := make([]string, 1+rnd.IntN(4))
	for i := range patterns {
		p := []string{"", "", "!"}[rnd.IntN(3)] + []string{"", "", "/"}[rnd.IntN(3)]
		for range 1 + rnd.IntN(3) {
			switch rnd.IntN(4) {
			case 0:
				p += "**"
			case 1:
				p += quoteGlob(pick(rnd, names))
			default:
				for range 1 + rnd.IntN(2) {
					p += strings.ReplaceAll(pick(rnd, pieces), "**", "*")
				}
				p = strings.ReplaceAll(p, "**", "*")
			}
			p += "/"
		}
		patterns[i] = strings.TrimSuffix(p, "/")
	}
	return patterns
}

// quoteGlob makes a pattern that matches name only.
func quoteGlob(name string) string {
	var b strings.Builder
	for name != "" {
		c, size := character(name)
		if strings.Contains(`*?[\! `, c) {
			b.WriteByte('\\')
		}
		b.WriteString(c)
		name = name[size:]
	}
	return b.String()
}

func TestPropertyFilter(t *testing.T) {
	t.Parallel()
	// Without the last 128 code points: each is four characters here.
	names := append([]string{"ab", "m", "x]", "*", "!a", "\U0010ff7f", "\xf4\x8f"}, strange...)
	eachSeed(t, 1, func(t *testing.T, rnd *rand.Rand) {
		matched, excluded, refused := 0, 0, 0
		for range 2000 {
			patterns := randomPatterns(rnd, names)
			f, err := snapshot.NewFilter(patterns...)
			if err != nil {
				refused++
				continue
			}
			require.Equal(t, patterns, f.Patterns())
			for range 3 {
				name := pick(rnd, names)
				for range rnd.IntN(3) {
					name += "/" + pick(rnd, names)
				}
				wantRule, want := ruledBy(patterns, name)
				rule, got := f.Explain(name)
				require.Equal(t, wantRule, rule, "%q.Explain(%q)", patterns, name)
				require.Equal(t, want, got, "%q.Explain(%q)", patterns, name)
				if rule != "" {
					matched++
				}
				if got {
					excluded++
				}
			}
		}
		assert.Greater(t, excluded, 400)
		assert.Greater(t, matched, excluded+200)
		assert.Less(t, refused, 200)
	})
}

// changesBetween compares two lists naively.
func changesBetween(older, newer []snapshot.Entry) (changes []snapshot.Change) {
	at := func(list []snapshot.Entry, p string) *snapshot.Entry {
		if i := slices.IndexFunc(list, func(e snapshot.Entry) bool { return e.Path == p }); i >= 0 {
			return &list[i]
		}
		return nil
	}
	var paths []string
	for _, e := range slices.Concat(older, newer) {
		paths = append(paths, e.Path)
	}
	slices.SortFunc(paths, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	for _, p := range slices.Compact(paths) {
		if a, b := at(older, p), at(newer, p); a == nil || b == nil || *a != *b {
			changes = append(changes, snapshot.Change{Path: p, Old: a, New: b})
		}
	}
	slices.SortStableFunc(changes, func(a, b snapshot.Change) int { return strings.Compare(rootFirst(a.Path), rootFirst(b.Path)) })
	return changes
}

func rootFirst(p string) string {
	if p == "." {
		return ""
	}
	return "x"
}
