// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot/internal/fstest"
)

// scanned returns the name of a new manifest of src.
func scanned(t *testing.T, src, name string) string {
	t.Helper()
	r := holdstill(t, "scan", "--quiet", "--manifest", name, src)
	require.Equal(t, result{}, r)
	return name
}

// TestDiffIsOfContents: times are no difference, and equal sizes and times no equality.
func TestDiffIsOfContents(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "a=hello", "d/b=world", "l => a")
	before := scanned(t, src, dir+"/before")

	for _, name := range []string{"a", "d/b", "d", "."} {
		require.NoError(t, os.Chtimes(filepath.Join(src, name), time.Unix(1, 0), time.Unix(1, 0)))
	}
	assert.Equal(t, result{}, holdstill(t, "diff", before, scanned(t, src, dir+"/touched")))
	assert.Equal(t, exitDone, holdstill(t, "verify", "--manifest", before, src).code)

	fi, err := os.Stat(src + "/a")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(src+"/a", []byte("HELLO"), 0o644))
	require.NoError(t, os.Chtimes(src+"/a", fi.ModTime(), fi.ModTime()))
	assert.Equal(t, result{code: exitFailed, stdout: "~ a (content)\n"}, holdstill(t, "diff", before, scanned(t, src, dir+"/rewritten")))
	r := holdstill(t, "verify", "--manifest", before, src)
	assert.Equal(t, exitFailed, r.code)
	assert.Regexp(t, `a: does not match: recorded file 0644 of 5 bytes, sha256 \w+…, received file 0644 of 5 bytes, sha256 \w+…`, r.stderr)
}

// TestNothingCapturedIsSaid: a run that found nothing is no failure, and does not look like one that found something.
func TestNothingCapturedIsSaid(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "empty/", "full/f=x")
	empty := filepath.Join(dir, "empty")
	for i, args := range [][]string{
		{"take", empty, filepath.Join(dir, "dst")},
		{"take", "--exclude", "**", filepath.Join(dir, "full"), filepath.Join(dir, "dst2")},
		{"scan", empty},
	} {
		r := holdstill(t, args...)
		require.Equal(t, exitDone, r.code, "%q: %s", args, r.stderr)
		assert.Contains(t, r.stdout+r.stderr, "0 files, 1 directory, 0 links", "%q", args)
		assert.Regexp(t, `(?m)^note: .*/(empty|full): .*empty`, r.stderr, "%q", args)
		if i == 1 {
			assert.Contains(t, r.stderr, "left out: f (excluded: **)")
		}
	}
	r := holdstill(t, "scan", filepath.Join(dir, "full"))
	assert.NotRegexp(t, `(?m)^note: .*empty`, r.stderr)

	for _, src := range []string{"none", "none/", "full/none"} {
		for _, args := range [][]string{{"take", filepath.Join(dir, src), filepath.Join(dir, "never")}, {"scan", filepath.Join(dir, src)}} {
			r := holdstill(t, args...)
			assert.Equal(t, exitFailed, r.code, "%q", args)
			assert.Contains(t, r.stderr, "no such file", "%q", args)
		}
	}
	fstest.Nothing(t, dir, "empty", "full", "dst", "dst2")
}

// TestPerFileIsNoted on stderr and in the answer.
func TestPerFileIsNoted(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/f=x")
	r := holdstill(t, "take", "--per-file", dir+"/src", dir+"/dst")
	require.Equal(t, exitDone, r.code, r.stderr)
	assert.Contains(t, r.stdout, "one instant: none")
	assert.Contains(t, r.stderr, "each file is proven for itself, the tree not to be of one instant")
	o := object(t, holdstill(t, "take", "--json", "--per-file", dir+"/src", dir+"/dst2").stdout)
	assert.Equal(t, "none", o["instant"])
}

// TestNamesAreNoOptions: whatever a file is called, it is an operand, an entry and a line, and nothing else.
func TestNamesAreNoOptions(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	names := []string{"-rf", "--json", "--", "-", " lead", "a ignore type=dir", "#x", `b\s`, "gl*ob[x]", "!keep", "n\nl", "a\xff", "a\xfe", "é", "e\u0301"}
	require.NoError(t, os.Mkdir(dir+"/src", 0o755))
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "src", name), []byte(name), 0o644))
		r := holdstill(t, "take", "--quiet", "--", filepath.Join(dir, "src", name), filepath.Join(dir, name))
		assert.Equal(t, result{}, r, "%q", name)
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Equal(t, name, string(b))
	}
	manifest := scanned(t, dir+"/src", dir+"/m")
	o := object(t, holdstill(t, "verify", "--json", "--manifest", manifest, dir+"/src").stdout)
	assert.InDelta(t, len(names)+1, o["entries"], 0)
	for _, name := range names {
		require.NoError(t, os.Remove(filepath.Join(dir, "src", name)))
	}
	r := holdstill(t, "verify", "--all", "--manifest", manifest, dir+"/src")
	assert.Equal(t, exitFailed, r.code)
	lines := strings.Split(strings.TrimSuffix(r.stdout, "\n"), "\n")
	assert.Len(t, lines, len(names), "each name is one line: %q", r.stdout)
	seen := map[string]bool{}
	for _, line := range lines {
		assert.False(t, seen[line], "two names are one: %q", line)
		seen[line] = true
	}
}

// TestManifestInsideTheSource: the next scan would find it, and a copy that was proven would not be of its source any more.
func TestManifestInsideTheSource(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/d/f=x", "toD => src/d")
	for _, args := range [][]string{
		{"scan", dir + "/src", "--manifest", dir + "/src/m"},
		{"scan", dir + "/src", "--manifest", dir + "/toD/m"},
		{"take", dir + "/src", dir + "/dst", "--manifest", dir + "/src/d/m"},
	} {
		r := holdstill(t, args...)
		assert.NotEqual(t, exitDone, r.code, "%q", args)
		assert.Contains(t, r.stderr, "inside SRC", "%q", args)
	}
	fstest.Nothing(t, dir, "src", "toD")
	fstest.Nothing(t, dir+"/src/d", "f")
}
