//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// balanced returns opts with s hung on, and with the assertion that the operation closes every handle that it opens.
func balanced(t testing.TB, opts *snapshot.Options, s snapshot.Seam) *snapshot.Options {
	s.Finished = func(open, opened int64) { assert.Zero(t, open, "handles left open, of %d", opened) }
	return snapshot.WithSeam(opts, s)
}

// copyTree is CopyDir with what must hold whatever comes of it: every handle is closed, the source is what it was, and beside
// the destination, which is there only without an error, nothing is new.
func copyTree(t testing.TB, dst, src string, opts *snapshot.Options) (*snapshot.Report, error) {
	t.Helper()
	return copyTreeWith(t.Context(), t, dst, src, opts, snapshot.Seam{})
}

func copyTreeWith(ctx context.Context, t testing.TB, dst, src string, opts *snapshot.Options, s snapshot.Seam) (*snapshot.Report, error) {
	t.Helper()
	parent, base := filepath.Dir(filepath.Clean(dst)), filepath.Base(dst)
	before := namesIn(t, parent)
	report, err := snapshot.CopyDir(ctx, dst, src, balanced(t, opts, s))
	assert.Equal(t, err == nil, report != nil, "CopyDir(%q, %q) = %v, %v", dst, src, report, err)
	if err == nil {
		before = append(before, base)
	}
	assert.ElementsMatch(t, before, namesIn(t, parent), "beside %s after %v", dst, err)
	return report, err
}

// copyOne is CopyFile with what copyTree asserts.
func copyOne(t testing.TB, dst, src string, opts *snapshot.Options, s snapshot.Seam) (snapshot.Proof, error) {
	t.Helper()
	parent, base := filepath.Dir(filepath.Clean(dst)), filepath.Base(dst)
	before := namesIn(t, parent)
	proof, err := snapshot.CopyFile(t.Context(), dst, src, balanced(t, opts, s))
	if err == nil {
		before = append(before, base)
	} else {
		assert.Zero(t, proof, "the proof beside %v", err)
	}
	assert.ElementsMatch(t, before, namesIn(t, parent), "beside %s after %v", dst, err)
	return proof, err
}

// namesIn lists a directory; one that is not there or not ours to read holds nothing.
func namesIn(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.ENOTDIR) &&
		!errors.Is(err, syscall.EINVAL) {
		require.NoError(t, err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// callLog records the calls of an operation.
type callLog struct {
	seam  snapshot.Seam
	calls []string
}

// newCallLog is for operations with one worker.
func newCallLog() *callLog {
	l := &callLog{}
	l.seam.At = func(call, _ string) error {
		l.calls = append(l.calls, call)
		return nil
	}
	return l
}

// once returns a hook that runs f the first time that call is made.
func once(call string, f func()) func(string, string) error {
	var done atomic.Bool
	return func(c, _ string) error {
		if c == call && done.CompareAndSwap(false, true) {
			f()
		}
		return nil
	}
}

// sources is a tree with something of every kind that a copy holds.
var sources = []string{
	"bin/run 0755=#!/bin/sh\n", "bin/odd 0611=x", "etc/app.conf 0600=key = value", "etc/empty=",
	"empty/", "empty/deeper/", "big=@300KiB", "one=@262144B", "bin/latest => run", "conf => etc/app.conf", "up => empty/../bin",
	`"name with\nline feed"=n`, `"\xff\xfe"=bytes`, "hard <= etc/app.conf",
}

// sealed returns entries with the modes that a copy has.
func sealed(entries []snapshot.Entry) []snapshot.Entry {
	for i, e := range entries {
		switch {
		case e.Mode.IsDir():
			entries[i].Mode = fs.ModeDir | 0o500
		case e.Mode.IsRegular() && e.Mode&0o111 != 0:
			entries[i].Mode = 0o500
		case e.Mode.IsRegular():
			entries[i].Mode = 0o400
		}
	}
	return entries
}

func TestQuietCopyIsTheSource(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	fstest.Make(t, src, sources...)
	for i, name := range []string{"bin/run", "etc/empty", "empty", "empty/deeper", "."} {
		mtime := time.Unix([]int64{0, 1, 1 << 31, 1<<32 + 1, 1e9}[i], 123456789)
		require.NoError(t, os.Chtimes(filepath.Join(src, name), time.Time{}, mtime))
	}
	before := fstest.Read(t, src)

	report, err := copyTree(t, dst, src, nil)
	require.NoError(t, err)
	assert.Equal(t, before, fstest.Read(t, src), "the source")
	fstest.Equal(t, src, dst)
	assert.Equal(t, sealed(walkByHand(t, src)), entriesOf(t, report.Manifest))
	assert.Equal(t, walkByHand(t, dst), entriesOf(t, report.Manifest))
	assertSameTimes(t, src, dst)

	assert.Equal(t, int64(9), report.Files)
	assert.Equal(t, int64(5), report.Dirs)
	assert.Equal(t, int64(3), report.Links)
	assert.Equal(t, totalSize(t, src), report.Bytes)
	assert.Equal(t, 1, report.Rounds)
	assert.Zero(t, report.MetadataOnly)
	assert.Zero(t, report.Abandoned)
	assert.Zero(t, report.SpecialModes)
	assert.Empty(t, report.Skipped)
	assert.False(t, report.Exposed)
	assert.Positive(t, report.Elapsed)
	var files int64
	for level, n := range report.Evidence {
		files += n
		assert.GreaterOrEqual(t, level, report.Weakest.Evidence)
	}
	assert.Equal(t, report.Files, files)
	assert.Positive(t, report.Evidence[report.Weakest.Evidence])
	assert.NotEmpty(t, report.Weakest.Entry.Path)

	hard, err := os.Stat(filepath.Join(dst, "hard"))
	require.NoError(t, err)
	conf, err := os.Stat(filepath.Join(dst, "etc/app.conf"))
	require.NoError(t, err)
	assert.False(t, os.SameFile(hard, conf), "hard links become separate files")
}

func totalSize(t *testing.T, dir string) (total int64) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			fi, err := d.Info()
			require.NoError(t, err)
			total += fi.Size()
		}
		return err
	}))
	return total
}

func assertSameTimes(t *testing.T, src, dst string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(src, func(name string, _ fs.DirEntry, err error) error {
		require.NoError(t, err)
		path, err := filepath.Rel(src, name)
		require.NoError(t, err)
		want, err := os.Lstat(name)
		require.NoError(t, err)
		got, err := os.Lstat(filepath.Join(dst, path))
		if assert.NoError(t, err) {
			assert.Equal(t, want.ModTime(), got.ModTime(), "mtime of %q", path)
		}
		return nil
	}))
}

// TestOthersReadTheManifest asks the programs that people have.
func TestOthersReadTheManifest(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	fstest.Make(t, src, sources...)
	report, err := copyTree(t, dst, src, nil)
	require.NoError(t, err)
	manifest, sums := filepath.Join(dir, "m.mtree"), filepath.Join(dir, "sums")
	require.NoError(t, os.WriteFile(manifest, []byte(textOf(t, report.Manifest)), 0o600))
	f, err := os.Create(sums)
	require.NoError(t, err)
	require.NoError(t, report.Manifest.WriteSums(f))
	require.NoError(t, f.Close())

	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"mtree", []string{"-f", manifest, "-p", dst}, `^$`},
		{"bsdtar", []string{"-tf", manifest}, `(?s)^\./?\n.*\./bin/run\n`},
		{"sha256sum", []string{"-c", sums}, `(?m)^bin/run: OK$`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), lookTool(t, tt.name), tt.args...)
			cmd.Dir = dst
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, "%s", out)
			assert.Regexp(t, tt.want, string(out))
		})
	}
}

func TestScanWritesNothing(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, append(sources, "abs => "+filepath.Join(src, "one"))...)
	before, err := snapshot.Lstat(src)
	require.NoError(t, err)
	for _, workers := range []int{0, 1} {
		written := map[string]bool{}
		for _, call := range []string{
			"Create", "CreateNameless", "Mkdir", "Write", "Symlink", "Link", "LinkNameless", "Rename", "RenameNoReplace", "Unlink",
			"Rmdir", "Chmod", "ChmodAt", "SetMtime", "SetMtimeAt", "Truncate", "Allocate", "Clone", "LockShared",
		} {
			written[call] = true
		}
		report, err := snapshot.Scan(t.Context(), src, balanced(t, &snapshot.Options{Workers: workers}, snapshot.Seam{
			At: func(call, name string) error {
				assert.False(t, written[call], "%s %q", call, name)
				return nil
			},
		}))
		require.NoError(t, err)
		assert.Equal(t, walkByHand(t, src), entriesOf(t, report.Manifest))
		assert.Equal(t, int64(9), report.Files)
		assert.Zero(t, report.Cloned)
	}
	fstest.Nothing(t, dir, "src")
	after, err := snapshot.Lstat(src)
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

func TestEmptyDirectory(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/ 0700")
	report, err := copyTree(t, filepath.Join(dir, "dst"), filepath.Join(dir, "src"), nil)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{".": "dir 0500"}, fstest.Read(t, filepath.Join(dir, "dst")))
	assert.Equal(t, 1, report.Manifest.Len())
	assert.Equal(t, int64(1), report.Dirs)
	assert.Zero(t, report.Weakest)
	assert.Empty(t, report.Evidence)
}

func TestPreserveMode(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	fstest.Make(t, src, "a 0644=a", "b 0775=b", "c 0444=c", "d 0666=d", "e 0777=e", "x/ 0750", "x/y/ 0777", "x/z/ 0555", "x/z/f 0604=f")
	if os.Geteuid() == 0 { // nobody else could read them
		fstest.Make(t, src, "none 0000=n", "w 0222=w", "x1 0111=x2", "shut/ 0000", "shut/f 0007=s")
	}
	report, err := copyTree(t, dst, src, &snapshot.Options{PreserveMode: true})
	require.NoError(t, err)
	assert.Equal(t, fstest.Read(t, src), fstest.Read(t, dst))
	assert.Equal(t, walkByHand(t, src), entriesOf(t, report.Manifest))
}

func TestSpecialModes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		lines    []string
		special  int64 // in a sealed copy
		refused  bool  // by PreserveMode
		preserve int64 // special, if it is not
	}{
		{lines: []string{"a 0755=x"}},
		{lines: []string{"a 04755=x"}, special: 1, refused: true},
		{lines: []string{"d/a 02755=x", "d/b=y"}, special: 1, refused: true},
		{lines: []string{"a 01644=x"}, special: 1, refused: true},
		{lines: []string{"d/ 01777", "e/ 02755"}, special: 2, preserve: 2},
	} {
		dir := fstest.TempDir(t)
		src := filepath.Join(dir, "src")
		fstest.Make(t, src, tt.lines...)
		report, err := copyTree(t, filepath.Join(dir, "dst"), src, nil)
		require.NoError(t, err, "%q", tt.lines)
		assert.Equal(t, tt.special, report.SpecialModes, "%q", tt.lines)
		for _, e := range entriesOf(t, report.Manifest) {
			assert.Zero(t, e.Mode&^(fs.ModeType|0o777), "%q: %v", tt.lines, e.Mode)
		}

		report, err = copyTree(t, filepath.Join(dir, "kept"), src, &snapshot.Options{PreserveMode: true})
		if tt.refused {
			assert.ErrorIs(t, err, snapshot.ErrSpecialMode, "%q", tt.lines)
			assert.False(t, snapshot.Retryable(err))
			assert.Regexp(t, `/src/(d/)?a: special mode bits`, err.Error())
			_, err = copyOne(t, filepath.Join(dir, "one"), filepath.Join(src, strings.Fields(tt.lines[0])[0]),
				&snapshot.Options{PreserveMode: true}, snapshot.Seam{})
			assert.ErrorIs(t, err, snapshot.ErrSpecialMode, "%q", tt.lines)
			continue
		}
		require.NoError(t, err, "%q", tt.lines)
		assert.Equal(t, tt.preserve, report.SpecialModes, "%q", tt.lines)
	}
}

// Not parallel: the umask is the process's.
func TestUmask(t *testing.T) {
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "a 0666=a", "b 0777=b", "d/ 0777", "d/c 0624=c")
	for _, umask := range []int{0, 0o022, 0o077} {
		old := syscall.Umask(umask)
		dst := filepath.Join(dir, fmt.Sprintf("%04o", umask))
		_, err := copyTree(t, dst, src, &snapshot.Options{PreserveMode: true})
		_, fileErr := copyOne(t, dst+"f", filepath.Join(src, "b"), &snapshot.Options{PreserveMode: true}, snapshot.Seam{})
		_, stagedErr := copyOne(t, dst+"g", filepath.Join(src, "b"), &snapshot.Options{PreserveMode: true}, snapshot.Seam{Lacks: snapshot.NoNameless})
		syscall.Umask(old)
		require.NoError(t, errors.Join(err, fileErr, stagedErr), "umask %04o", umask)
		assert.Equal(t, fstest.Read(t, src), fstest.Read(t, dst), "umask %04o", umask)
		for _, name := range []string{"f", "g"} {
			fi, err := os.Stat(dst + name)
			require.NoError(t, err)
			assert.Equal(t, fs.FileMode(0o777), fi.Mode(), "umask %04o, %s", umask, name)
		}
	}
	// One that takes a directory's own bits from its owner is refused and named: nothing could be written.
	old := syscall.Umask(0o777)
	_, err := copyTree(t, filepath.Join(dir, "none"), src, nil)
	syscall.Umask(old)
	assert.ErrorIs(t, err, snapshot.ErrUntrusted)
	assert.ErrorContains(t, err, "umask")
}

func TestExposed(t *testing.T) {
	t.Parallel()
	for mode, want := range map[fs.FileMode]bool{0o755: false, 0o700: false, 0o775: true, 0o757: true, fs.ModeSticky | 0o777: false} {
		dir := fstest.TempDir(t)
		fstest.Make(t, dir, "src/f=x", "parent/")
		require.NoError(t, os.Chmod(filepath.Join(dir, "parent"), mode))
		report, err := copyTree(t, filepath.Join(dir, "parent/dst"), filepath.Join(dir, "src"), nil)
		require.NoError(t, err)
		assert.Equal(t, want, report.Exposed, "%v", mode)
	}
}

// TestDurable: data before the name, and the name before success.
func TestDurable(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "d/a=a", "b=@300KiB")
	isSync := func(call string) bool { return strings.HasPrefix(call, "Sync") }
	tree := func(opts *snapshot.Options, s snapshot.Seam) error {
		_, err := copyTreeWith(t.Context(), t, filepath.Join(dir, "dst"), src, opts, s)
		return errors.Join(err, removeCopy(filepath.Join(dir, "dst")))
	}
	file := func(opts *snapshot.Options, s snapshot.Seam) error {
		_, err := copyOne(t, filepath.Join(dir, "f"), filepath.Join(src, "b"), opts, s)
		return errors.Join(err, os.Remove(filepath.Join(dir, "f")))
	}
	for _, tt := range []struct {
		name    string
		copy    func(*snapshot.Options, snapshot.Seam) error
		publish string
		lacks   snapshot.Fallback
	}{
		{"tree", tree, "RenameNoReplace", 0},
		{"tree without syncfs or no-replace", tree, "Rename", snapshot.NoRenameNoReplace},
		{"file", file, "LinkNameless", 0},
		{"staged file", file, "RenameNoReplace", snapshot.NoNameless},
	} {
		log := newCallLog()
		log.seam.Lacks = tt.lacks
		require.NoError(t, tt.copy(&snapshot.Options{Workers: 1}, log.seam), tt.name)
		assert.False(t, slices.ContainsFunc(log.calls, isSync), "%s: %q", tt.name, log.calls)

		log = newCallLog()
		log.seam.Lacks = tt.lacks
		require.NoError(t, tt.copy(&snapshot.Options{Workers: 1, Durable: true}, log.seam), tt.name)
		published := slices.Index(log.calls, tt.publish)
		lastWrite := lastIndex(log.calls, "Write")
		require.True(t, 0 <= lastWrite && lastWrite < published, "%s: %q", tt.name, log.calls)
		assert.True(t, slices.ContainsFunc(log.calls[lastWrite:published], isSync), "%s: data: %q", tt.name, log.calls)
		assert.True(t, slices.ContainsFunc(log.calls[published:], isSync), "%s: the name: %q", tt.name, log.calls)
	}
}

func lastIndex(list []string, s string) int {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i] == s {
			return i
		}
	}
	return -1
}

// removeCopy removes a sealed tree, as an ordinary user has to.
func removeCopy(dir string) error {
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(name, 0o700)
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(dir))
}

func TestProgress(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "a=@300KiB", "d/b=hello", "d/c=x", "l => a")
	var (
		busy  atomic.Bool
		calls []snapshot.Progress
	)
	opts := &snapshot.Options{Progress: func(p snapshot.Progress) {
		assert.True(t, busy.CompareAndSwap(false, true), "called concurrently")
		calls = append(calls, p)
		busy.Store(false)
	}}
	check := func(files, bytes int64) {
		t.Helper()
		require.NotEmpty(t, calls)
		var last snapshot.Progress
		for _, p := range calls {
			assert.True(t, last.Files <= p.Files && last.Bytes <= p.Bytes && last.Round <= p.Round, "%+v, then %+v", last, p)
			last = p
		}
		assert.Equal(t, files, last.Files)
		assert.Equal(t, bytes, last.Bytes)
		assert.Empty(t, last.Path+last.Waiting, "the last call works on nothing")
		calls = nil
	}
	_, err := copyTree(t, filepath.Join(dir, "dst"), src, opts)
	require.NoError(t, err)
	check(3, 300<<10+6)
	_, err = snapshot.Scan(t.Context(), src, opts)
	require.NoError(t, err)
	check(3, 300<<10+6)
	_, err = copyOne(t, filepath.Join(dir, "f"), filepath.Join(src, "d/b"), opts, snapshot.Seam{})
	require.NoError(t, err)
	check(1, 5)
	_, _, err = snapshot.ReadFile(t.Context(), filepath.Join(src, "d/b"), opts)
	require.NoError(t, err)
	check(1, 5)

	// An operation that fails ends with a call, too.
	_, err = copyTree(t, filepath.Join(dir, "dst"), src, opts)
	assert.ErrorIs(t, err, fs.ErrExist)
	assert.Len(t, calls, 1)
}

// TestFallbacks: where the system lacks a mechanism the result is the same.
func TestFallbacks(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, sources...)
	unsupported := func(lacking ...string) func(string, string) error {
		return func(call, _ string) error {
			if slices.Contains(lacking, call) {
				return errors.ErrUnsupported
			}
			return nil
		}
	}
	for _, tt := range []struct {
		name string
		seam snapshot.Seam
	}{
		{"none", snapshot.Seam{}},
		{"no reflink", snapshot.Seam{Lacks: snapshot.NoClone}},
		{"no lease", snapshot.Seam{Lacks: snapshot.NoLease}},
		{"no nameless files", snapshot.Seam{Lacks: snapshot.NoNameless}},
		{"no rename without replacing", snapshot.Seam{Lacks: snapshot.NoRenameNoReplace}},
		{"nothing of it", snapshot.Seam{Lacks: snapshot.NoClone | snapshot.NoLease | snapshot.NoNameless | snapshot.NoRenameNoReplace}},
		{"no /proc", snapshot.Seam{At: unsupported("ProcDir")}},
		{"no pins", snapshot.Seam{At: unsupported("Pin", "ProcDir")}},
		{"no syncfs", snapshot.Seam{At: unsupported("SyncAll")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := fstest.TempDir(t)
			opts := &snapshot.Options{Durable: true}
			report, err := copyTreeWith(t.Context(), t, filepath.Join(dir, "tree"), src, opts, tt.seam)
			require.NoError(t, err)
			assert.Equal(t, sealed(walkByHand(t, src)), entriesOf(t, report.Manifest))
			assert.Equal(t, walkByHand(t, filepath.Join(dir, "tree")), entriesOf(t, report.Manifest))
			assertSameTimes(t, src, filepath.Join(dir, "tree"))

			_, err = copyTreeWith(t.Context(), t, filepath.Join(dir, "tree"), src, opts, tt.seam)
			assert.ErrorIs(t, err, fs.ErrExist)

			proof, err := copyOne(t, filepath.Join(dir, "file"), filepath.Join(src, "big"), opts, tt.seam)
			require.NoError(t, err)
			want, err := report.Manifest.Lookup("big")
			require.NoError(t, err)
			assert.Equal(t, want, proof.Entry)
			assert.Equal(t, want.Digest, digestOf(t, filepath.Join(dir, "file")))
			_, err = copyOne(t, filepath.Join(dir, "file"), filepath.Join(src, "one"), opts, tt.seam)
			assert.ErrorIs(t, err, fs.ErrExist)
			assert.Equal(t, want.Digest, digestOf(t, filepath.Join(dir, "file")))
		})
	}
}

func digestOf(t testing.TB, name string) snapshot.Digest {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return sha256.Sum256(b)
}

func TestLstat(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "f 0640=hello", "d/", "l => f", "gone => nowhere", "p|")
	for name, want := range map[string]string{
		"f": "f", "l": "l", "gone": "gone", "p": "p", "d": "d", "d/": "d", "d/.": "d", "d/..": ".", ".": ".", "d//": "d",
	} {
		st, err := snapshot.Lstat(dir + "/" + name)
		require.NoError(t, err, "Lstat(%q)", name)
		fi, err := os.Lstat(filepath.Join(dir, want))
		require.NoError(t, err)
		assert.Equal(t, fi.Mode(), st.Mode, "Lstat(%q)", name)
		assert.Equal(t, fi.Size(), st.Size, "Lstat(%q)", name)
		assert.True(t, fi.ModTime().Equal(st.ModTime), "Lstat(%q)", name)
		assert.Equal(t, uint32(os.Getuid()), st.UID, "Lstat(%q)", name)
		again, err := snapshot.Lstat(filepath.Join(dir, want))
		require.NoError(t, err)
		assert.Zero(t, st.Compare(again), "Lstat(%q)", name)
		assert.True(t, st.Identity.Same(again.Identity), "Lstat(%q)", name)
	}
	for name, want := range map[string]error{
		"": fs.ErrNotExist, dir + "/none": fs.ErrNotExist, dir + "/none/x": fs.ErrNotExist, dir + "/f/": syscall.ENOTDIR,
		dir + "/f/x": syscall.ENOTDIR, dir + "/gone/": fs.ErrNotExist, dir + "/a\x00b": fs.ErrInvalid, dir + "/a\x00b/c": fs.ErrInvalid,
	} {
		st, err := snapshot.Lstat(name)
		assert.ErrorIs(t, err, want, "Lstat(%q)", name)
		assert.Zero(t, st, "Lstat(%q)", name)
		path, ok := errors.AsType[*fs.PathError](err)
		assert.True(t, ok && path.Path == name, "Lstat(%q) = %v", name, err)
	}
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/f=x")
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	for _, opts := range []*snapshot.Options{
		{Attempts: -1},
		{NeverLock: true, Require: snapshot.Quiescent},
		{Limits: snapshot.Limits{MaxBytes: -2}},
	} {
		touched := snapshot.WithSeam(opts, snapshot.Seam{At: func(call, name string) error {
			assert.Fail(t, "the system was called", "%s %q", call, name)
			return nil
		}})
		_, err := snapshot.CopyDir(t.Context(), dst, src, touched)
		assert.ErrorIs(t, err, fs.ErrInvalid)
		_, err = snapshot.Scan(t.Context(), src, touched)
		assert.ErrorIs(t, err, fs.ErrInvalid)
		_, err = snapshot.CopyFile(t.Context(), dst, src+"/f", touched)
		assert.ErrorIs(t, err, fs.ErrInvalid)
		_, _, err = snapshot.ReadFile(t.Context(), src+"/f", touched)
		assert.ErrorIs(t, err, fs.ErrInvalid)
		_, err = snapshot.Open(src+"/f", touched)
		assert.ErrorIs(t, err, fs.ErrInvalid)
		fstest.Nothing(t, dir, "src")
	}
}

// TestNothingIsLeftInTheProcess: no descriptor and no goroutine outlives a call. Not parallel: it counts the whole process.
func TestNothingIsLeftInTheProcess(t *testing.T) {
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, append(sources, "fifo/p|")...)
	held, err := os.OpenFile(filepath.Join(dir, "big"), os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { held.Close() }) // a writer, so that the calls with a goroutine of their own are made
	fstest.Leaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out := fstest.TempDir(t)
	opts := &snapshot.Options{SkipSpecial: true}
	for _, call := range []func() error{
		func() error { return errorOf(snapshot.CopyDir(t.Context(), out+"/dst", dir, opts)) },
		func() error { return errorOf(snapshot.CopyDir(t.Context(), out+"/dst", dir, opts)) },
		func() error { return errorOf(snapshot.CopyDir(t.Context(), out+"/no", dir, nil)) },
		func() error { return errorOf(snapshot.CopyDir(ctx, out+"/no", dir, opts)) },
		func() error { return errorOf(snapshot.Scan(t.Context(), dir, opts)) },
		func() error { return errorOf(snapshot.CopyFile(t.Context(), out+"/big", dir+"/big", nil)) },
		func() error { return errorOf(snapshot.CopyFile(t.Context(), out+"/big", dir+"/big", nil)) },
		func() error { _, _, err := snapshot.ReadFile(t.Context(), dir+"/big", nil); return err },
		func() error { return errorOf(snapshot.Open(dir+"/fifo/p", nil)) },
		func() error { return errorOf(snapshot.NewFile(nil, nil)) },
		func() error { return errorOf(snapshot.Lstat(dir)) },
		func() error { return errorOf(snapshot.Sweep(t.Context(), out)) },
	} {
		_ = call()
	}
	fstest.Nothing(t, out, "dst", "big")
}
