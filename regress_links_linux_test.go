// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// TestTextsOfChainedLinksAreKept: whether a link was met on the way of another one, earlier or later in the order of names,
// does not matter to its own text.
func TestTextsOfChainedLinksAreKept(t *testing.T) {
	t.Parallel()
	for _, texts := range []map[string]string{
		{"a": "b", "b": "./c", "c": "d/f"},
		{"c": "b", "b": "./a", "a": "d/f"},
		{"a": "k/f", "k": ".//d"},
		{"k": "a/f", "a": ".//d"},
		{"d/a": "../k/b", "d/b": "./f", "k": "./d"},
		{"d/sub/a": "../../z/f", "z": "./d/../d", "m": "z"},
	} {
		s := newSite(t, "", "d/f=x", "d/sub/")
		for name, text := range texts {
			require.NoError(t, os.Symlink(text, filepath.Join(s.src, name)))
		}
		report, err := copyTree(t, s.dst, s.src, nil)
		require.NoError(t, err, "%v", texts)
		assert.Equal(t, texts, linkTexts(t, report))
	}
}

// TestPathThatGoesBackFromALink: where x is a link, x/../src is what the kernel makes of it, and not src.
func TestPathThatGoesBackFromALink(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(fstest.TempDir(t))
	require.NoError(t, err)
	fstest.Make(t, dir, "other/src/f=other", "other/deep/", "src/f=mine", "x => other/deep", "out/",
		"other/src/mine => "+dir+"/other/src/f", "other/src/strange => "+dir+"/src/f")
	dst := filepath.Join(dir, "out/dst")
	for _, src := range []string{"/x/../src", "/x/../src/", "/other/deep/../src", "/other/src"} {
		_, err = copyTree(t, dst, dir+src, nil)
		assert.ErrorIs(t, err, snapshot.ErrEscapes, src)
		report, err := copyTree(t, dst, dir+src, &snapshot.Options{Links: snapshot.LinksInsideOrSkip})
		require.NoError(t, err, src)
		assert.Equal(t, map[string]string{"mine": "f"}, linkTexts(t, report), src)
		require.NoError(t, removeCopy(dst))
	}
}

// TestPathExchangedOnceProven: a link to a file outside does not become one of ours because the root's path leads there now.
func TestPathExchangedOnceProven(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(fstest.TempDir(t))
	require.NoError(t, err)
	fstest.Make(t, dir, "real/src/passwd=mine", "etc/passwd=theirs", "given => real/src", "out/")
	require.NoError(t, os.Symlink(dir+"/etc/passwd", dir+"/real/src/l"))
	for _, src := range []string{"given", "real/src"} {
		_, err := copyTreeWith(t.Context(), t, dir+"/out/dst", filepath.Join(dir, src), nil, snapshot.Seam{Phase: oncePhase("proven", func() {
			assert.NoError(t, os.Rename(filepath.Join(dir, src), dir+"/away"))
			assert.NoError(t, os.Symlink(dir+"/etc", filepath.Join(dir, src)))
		})})
		assert.ErrorIs(t, err, snapshot.ErrEscapes, src)
		require.NoError(t, os.Remove(filepath.Join(dir, src)))
		require.NoError(t, os.Rename(dir+"/away", filepath.Join(dir, src)))
	}
}

// TestNameMadeOnceProven: a link that leads to nothing in the copied tree dangles, also if a name that folds to one of its
// files is there now.
func TestNameMadeOnceProven(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "name=x", "l => NAME", "d/name=y", "m => d/NAME")
	report, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Links: snapshot.LinksInsideOrSkip}, snapshot.Seam{
		Phase: oncePhase("proven", func() {
			assert.NoError(t, os.Link(s.src+"/name", s.src+"/NAME"))
			assert.NoError(t, os.Link(s.src+"/d/name", s.src+"/d/NAME"))
		}),
	})
	require.NoError(t, err)
	assert.Empty(t, linkTexts(t, report))
	assert.Equal(t, []snapshot.Skipped{{"l", "dangling", "NAME"}, {"m", "dangling", "d/NAME"}}, report.Skipped)
}

// TestLongChainOfLinks: each link leads to the next one, which a hostile tree may have a million of. Every link within 40 of
// the end has one, and the stack does not grow with the chain.
func TestLongChainOfLinks(t *testing.T) {
	t.Parallel()
	const variable, n = "HOLDSTILL_TEST_CHAIN", 3000
	if src := os.Getenv(variable); src != "" {
		debug.SetMaxStack(1 << 20)
		for range 2 {
			report, err := snapshot.Scan(t.Context(), src, &snapshot.Options{Links: snapshot.LinksInsideOrSkip})
			require.NoError(t, err)
			assert.Equal(t, int64(2*40), report.Links)
			assert.Len(t, report.Skipped, 2*(n-40))
		}
		return
	}
	src := filepath.Join(fstest.TempDir(t), "src")
	fstest.Make(t, src, fmt.Sprintf("m%d => f", n-1), "w0 => f", "f=x")
	for i := range n - 1 {
		require.NoError(t, os.Symlink(fmt.Sprintf("m%d", i+1), fmt.Sprintf("%s/m%d", src, i)))
		require.NoError(t, os.Symlink(fmt.Sprintf("w%d", i), fmt.Sprintf("%s/w%d", src, i+1)))
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestLongChainOfLinks$", "-test.count=1")
	cmd.Env = append(os.Environ(), variable+"="+src)
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%.2000s", out)
}

// TestLinkReplacedUnderItsNumber: where there are no birth times, another link may be the same but for its ctime.
func TestLinkReplacedUnderItsNumber(t *testing.T) {
	t.Parallel()
	s := newSite(t, "ext4-128", "f=1", "g=2", "l => f")
	recycled := false
	report, err := copyTreeWith(t.Context(), t, s.dst, s.src, nil, snapshot.Seam{Phase: oncePhase("joined", func() {
		before, err := os.Lstat(s.src + "/l")
		assert.NoError(t, err)
		assert.NoError(t, os.Remove(s.src+"/l"))
		assert.NoError(t, os.Symlink("g", s.src+"/l"))
		now, err := os.Lstat(s.src + "/l")
		assert.NoError(t, err)
		recycled = before.Sys().(*syscall.Stat_t).Ino == now.Sys().(*syscall.Stat_t).Ino
		out, err := exec.Command("touch", "-h", "-d", fmt.Sprintf("@%d", before.ModTime().Unix()), s.src+"/l").CombinedOutput()
		assert.NoError(t, err, "%s", out)
	})})
	s.copied(t, report, err)
	assert.Equal(t, map[string]string{"l": "g"}, linkTexts(t, report))
	if !recycled {
		t.Skip("the new link got another inode number")
	}
}
