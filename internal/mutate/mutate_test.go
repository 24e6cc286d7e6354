// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/token"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const sample = `package m

type sentinel string

func (s sentinel) Error() string { return string(s) }

const errA = sentinel("a")

func never() error { return errA }

func check(n int) error {
	if n > 1 || n < -1 {
		return errA
	}
	switch {
	case n == 1, n == -1:
		return never()
	default:
		n += 2
	}
	switch n {
	case 2:
		return nil
	case 3:
		return errA
	}
	return nil
}

func use(n int) (int, error) {
	if err := check(n); err != nil {
		return 0, err
	}
	f := func() error { return errA }
	for range n {
		return 1, errA
	}
	return n, f()
}
`

func samplePkg(t *testing.T) *pkg {
	p := &pkg{path: "m", name: "m", names: []string{"m.go"}, src: [][]byte{[]byte(sample)}, fset: token.NewFileSet()}
	require.NoError(t, os.WriteFile("m.go", []byte(sample), 0o644))
	require.NoError(t, p.check(nil))
	return p
}

func TestFind(t *testing.T) {
	t.Chdir(t.TempDir())
	p := samplePkg(t)
	var found []string
	for _, s := range sorted(p.found) {
		found = append(found, s.key())
	}
	assert.Equal(t, []string{
		"m.go never body return errA",
		"m.go check false n < -1",
		"m.go check false n > 1",
		"m.go check false n == -1",
		"m.go check false n == 1",
		"m.go check body return errA",
		"m.go use nil check(n)",
		"m.go use body return errA",
		"m.go use body return 1, errA",
	}, found)
	for _, key := range []string{"m.go check zero 2", "m.go check skip n += 2", "m.go check true n > 1", "m.go use nil f()"} {
		assert.Contains(t, p.all, key)
	}
}

func TestMatch(t *testing.T) {
	t.Chdir(t.TempDir())
	p := samplePkg(t)
	l, err := parseList("list", []byte("# head\n\nm.go check\n\tfalse n > 1\n\t\tTestA/b c\n\ttrue n > 1\n\t\t- why\n\tfalse n > 2\n"))
	require.NoError(t, err)
	assert.Equal(t, []string{"TestA/b c"}, l.entries["m.go check false n > 1"].tests)
	assert.Equal(t, "why", l.entries["m.go check true n > 1"].why)
	sites, err := match([]*pkg{p}, l)
	assert.Len(t, sites, 10, "what was found, and what was listed by hand")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "m.go:12: not in testdata/mutations: m.go check false n < -1\n")
	assert.NotContains(t, err.Error(), "m.go check false n > 1\n")
	assert.Contains(t, err.Error(), "nothing in the source fits any more: m.go check false n > 2")
	again, err := parseList("list", l.text(sites))
	require.NoError(t, err)
	assert.Equal(t, "# head\n", again.head)
	assert.Len(t, again.entries, 10)

	for _, bad := range []string{"\tfalse n > 1\n", "m.go f\n\t\tTestA\n", "m.go f\n\ttrue a\n\ttrue a\n"} {
		_, err := parseList("list", []byte(bad))
		assert.Error(t, err, "%q", bad)
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	src := "if a || b { f(a) }"
	assert.Equal(t, "if (<[a] || {b}>)  { f(a) }", apply([]byte(src), []edit{
		{pos: 8, end: 9, open: "{", close: "}"},
		{pos: 3, end: 9, open: "(", close: ") "},
		{pos: 3, end: 4, open: "[", close: "]"},
		{pos: 3, end: 9, open: "<", close: ">"},
	}), "an edit within another, and two around the same")
}

func TestExact(t *testing.T) {
	t.Parallel()
	assert.Equal(t, `^TestA$/^b\.c$|^TestD$`, exact("TestA/b.c", "TestD"))
}
