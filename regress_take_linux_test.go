// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// takeSite is a directory with sources in src and an empty parent for snapshots.
type takeSite struct{ dir, src, parent string }

func newTakeSite(t testing.TB, lines ...string) *takeSite {
	t.Helper()
	dir := fstest.TempDir(t)
	s := &takeSite{dir, filepath.Join(dir, "src"), filepath.Join(dir, "parent")}
	fstest.Make(t, dir, "src/", "parent/ 0700")
	fstest.Make(t, s.src, lines...)
	return s
}

// take freezes the named entries of src.
func (s *takeSite) take(t testing.TB, opts *snapshot.TakeOptions, names ...string) (*snapshot.Snapshot, error) {
	t.Helper()
	var roots []snapshot.Root
	for _, name := range names {
		roots = append(roots, snapshot.Root{Path: filepath.Join(s.src, name)})
	}
	var o snapshot.TakeOptions
	if opts != nil {
		o = *opts
	}
	o.Parent = s.parent
	return snapshot.Take(t.Context(), roots, &o)
}

func (s *takeSite) mustTake(t testing.TB, opts *snapshot.TakeOptions, names ...string) *snapshot.Snapshot {
	t.Helper()
	snap, err := s.take(t, opts, names...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = snap.Close() })
	return snap
}

// detached is the directory and the digest of a snapshot that nobody has open.
func (s *takeSite) detached(t testing.TB, opts *snapshot.TakeOptions, names ...string) (string, snapshot.Digest) {
	t.Helper()
	snap := s.mustTake(t, opts, names...)
	require.NoError(t, snap.Detach())
	require.NoError(t, snap.Close())
	return snap.Dir(), snap.Manifest().Digest()
}

// inTree reads a file of a snapshot through the kernel.
func inTree(t testing.TB, dir, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "tree", path))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// TestAliasesInOneDirectory: each leads where it says, whatever was put in before it.
func TestAliasesInOneDirectory(t *testing.T) {
	t.Parallel()
	for n := range 6 {
		s := newTakeSite(t, "app/b=b", "app/y=y", "app/z=z", "lib/f=f")
		var aliases []snapshot.Alias
		for i := range n {
			aliases = append(aliases,
				snapshot.Alias{Name: fmt.Sprintf("app/a%d", i), Target: "app/z"},
				snapshot.Alias{Name: fmt.Sprintf("app/x%d", i), Target: "app/y"},
				snapshot.Alias{Name: fmt.Sprintf("app/m/n/l%d", n-i), Target: "lib/f"},
				snapshot.Alias{Name: fmt.Sprintf("app/m/k%d", n-i), Target: "lib"},
				snapshot.Alias{Name: fmt.Sprintf("a%d", i), Target: "app/m"},
			)
		}
		snap := s.mustTake(t, &snapshot.TakeOptions{Aliases: aliases}, "app", "lib")
		for i := range n {
			assert.Equal(t, "z", inTree(t, snap.Dir(), fmt.Sprintf("app/a%d", i)), "%d aliases", n)
			assert.Equal(t, "y", inTree(t, snap.Dir(), fmt.Sprintf("app/x%d", i)), "%d aliases", n)
			assert.Equal(t, "f", inTree(t, snap.Dir(), fmt.Sprintf("app/m/n/l%d", n-i)), "%d aliases", n)
			assert.Equal(t, "f", inTree(t, snap.Dir(), fmt.Sprintf("app/m/k%d/f", n-i)), "%d aliases", n)
			assert.Equal(t, "f", inTree(t, snap.Dir(), fmt.Sprintf("a%d/k%d/f", i, n)), "%d aliases", n)
		}
		assert.NoError(t, snap.Verify(t.Context()))
	}
}

// TestLinksThroughAliases: a text that is written anew leads through none.
func TestLinksThroughAliases(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "app/l => m/a1/deep/f", "app/out => ../app/m/a2/f", "app/b=b", "lib/deep/f=one", "lib/f=two", "lib/g=3")
	snap := s.mustTake(t, &snapshot.TakeOptions{Aliases: []snapshot.Alias{
		{Name: "app/m/a1", Target: "lib"}, {Name: "app/m/a2", Target: "lib"}, {Name: "app/m/a0", Target: "lib/g"}, {Name: "app/m/a00", Target: "lib/f"},
	}}, "app", "lib")
	assert.Equal(t, "one", inTree(t, snap.Dir(), "app/l"))
	assert.Equal(t, "two", inTree(t, snap.Dir(), "app/out"))
}

// TestAliasCountsAsExpansion: a chain of links that is as long as the kernel follows is too long with an alias in it.
func TestAliasCountsAsExpansion(t *testing.T) {
	t.Parallel()
	for _, n := range []int{38, 39, 40} {
		lines := []string{"lib/f=f", "app/l1 => alias/f"}
		for i := 2; i <= n; i++ {
			lines = append(lines, fmt.Sprintf("app/l%d => l%d", i, i-1))
		}
		s := newTakeSite(t, lines...)
		snap, err := s.take(t, &snapshot.TakeOptions{Aliases: []snapshot.Alias{{Name: "app/alias", Target: "lib"}}}, "app", "lib")
		if n == 40 {
			assert.ErrorIs(t, err, snapshot.ErrEscapes, "41 links one after the other")
			if err != nil {
				fstest.Nothing(t, s.parent)
				continue
			}
		}
		require.NoError(t, err)
		assert.Equal(t, "f", inTree(t, snap.Dir(), fmt.Sprintf("app/l%d", n)), "%d links", n)
		assert.NoError(t, snap.Close())
	}
}

// TestTakeAndPanics: a caller's function that panics, or ends its goroutine, leaves nothing, also not the last report.
func TestTakeAndPanics(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){"panic": func() { panic("mine") }, "Goexit": runtime.Goexit} {
		for where, hang := range map[string]func(o *snapshot.Options){
			"Skip":     func(o *snapshot.Options) { o.Skip = func(string, snapshot.State) bool { f(); return false } },
			"Progress": func(o *snapshot.Options) { o.Progress = func(snapshot.Progress) { f() } },
			"last Progress": func(o *snapshot.Options) {
				o.Progress = func(p snapshot.Progress) {
					if p.Path == "" && p.Waiting == "" && p.Files == 2 {
						f()
					}
				}
			},
		} {
			s := newTakeSite(t, "a/f=x", "b=y")
			var open atomic.Int64
			open.Store(-1)
			o := new(snapshot.Options)
			hang(o)
			done := make(chan any)
			go func() {
				defer func() { done <- recover() }()
				snap, err := s.take(t, &snapshot.TakeOptions{Options: *snapshot.WithSeam(o, snapshot.Seam{Finished: func(n, _ int64) { open.Store(n) }})}, "a", "b")
				t.Error(name, where, "returned", snap, err)
			}()
			if r := <-done; name == "panic" {
				assert.Equal(t, "mine", r, where)
			}
			assert.Zero(t, open.Load(), "%s in %s: handles left open", name, where)
			fstest.Nothing(t, s.parent)
		}
	}
}

// TestProgressEndsWithTake: nothing is reported of what is done with the snapshot later.
func TestProgressEndsWithTake(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "a/f=@1MiB")
	var reports, late atomic.Int64
	var ended atomic.Bool
	snap := s.mustTake(t, &snapshot.TakeOptions{Options: snapshot.Options{Progress: func(snapshot.Progress) {
		reports.Add(1)
		if ended.Load() {
			late.Add(1)
		}
	}}}, "a")
	ended.Store(true)
	require.NotZero(t, reports.Load())
	for start := unixNow(); unixNow() < start+150e6; { // a report comes at most every 100 ms
		f, err := snap.Open(t.Context(), "a/f")
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	assert.Zero(t, late.Load())
}

func unixNow() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano()
}

// TestSnapshotAtOnce: everything that a Snapshot does, from several goroutines.
func TestSnapshotAtOnce(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "a/d/f=x", "a/g=y", "b=z")
	dir, digest := s.detached(t, nil, "a", "b")
	snap, err := snapshot.OpenSnapshot(t.Context(), dir, digest)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				if !assert.NoError(t, snap.Verify(t.Context())) {
					return
				}
			}
		})
		wg.Go(func() {
			for range 20 {
				f, err := snap.Open(t.Context(), "a/d/f")
				if !assert.NoError(t, err) {
					return
				}
				b, err := io.ReadAll(f)
				assert.NoError(t, err)
				assert.Equal(t, "x", string(b))
				assert.NoError(t, f.Close())
				_, err = fs.ReadFile(snap.FS(), "a/g")
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, snap.Close())
	require.NoError(t, removeSoon(t, dir))
}

// TestCloseWhileReading: who reads at that moment gets fs.ErrClosed, and nothing else.
func TestCloseWhileReading(t *testing.T) {
	t.Parallel()
	for range 20 {
		s := newTakeSite(t, "a/d/f=x", "a/d/g=@64KiB", "a/e/h=y")
		var left atomic.Int64
		snap := s.mustTake(t, &snapshot.TakeOptions{Options: *snapshot.WithSeam(nil, snapshot.Seam{Finished: func(n, _ int64) { left.Add(n) }})}, "a")
		var wg sync.WaitGroup
		started := make(chan struct{}, 8)
		calls := map[string]func() error{
			"Verify": func() error { return snap.Verify(context.Background()) },
			"Open": func() error {
				f, err := snap.Open(context.Background(), "a/d/g")
				if err == nil {
					err = f.Close()
				}
				return err
			},
			"FS": func() error { _, err := fs.ReadFile(snap.FS(), "a/d/f"); return err },
			"Walk": func() error {
				return fs.WalkDir(snap.FS(), ".", func(_ string, _ fs.DirEntry, err error) error { return err })
			},
			"Lstat": func() error { _, err := fs.Lstat(snap.FS(), "a/e/h"); return err },
		}
		for name, call := range calls {
			wg.Go(func() {
				err := call()
				started <- struct{}{}
				for err == nil {
					err = call()
				}
				assert.ErrorIs(t, err, fs.ErrClosed, name)
			})
		}
		for range calls {
			<-started
		}
		assert.NoError(t, snap.Close())
		wg.Wait()
		assert.Zero(t, left.Load())
		assert.ErrorIs(t, snap.Detach(), fs.ErrClosed)
		fstest.Nothing(t, s.parent)
	}
}

// TestHandleRootWithoutProc: the caller's handle, and the duplicate of it, are read where no other can be had.
func TestHandleRootWithoutProc(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "tool 0755=#!", "dir/f=x")
	for _, suspect := range []bool{false, true} {
		f, err := os.Open(s.src + "/tool")
		require.NoError(t, err)
		defer f.Close()
		d, err := os.Open(s.src + "/dir")
		require.NoError(t, err)
		defer d.Close()
		opts := balanced(t, nil, snapshot.Seam{
			At: func(call, _ string) error {
				if call == "ProcDir" {
					return unix.ENOENT
				}
				return nil
			},
			Phase: oncePhase("joined", func() {
				if suspect {
					assert.NoError(t, os.Chmod(s.src+"/tool", 0o755))
				}
			}),
		})
		snap, err := snapshot.Take(t.Context(), []snapshot.Root{{File: f}, {File: d}}, &snapshot.TakeOptions{Options: *opts, Parent: s.parent})
		require.NoError(t, err)
		assert.Equal(t, "#!", inTree(t, snap.Dir(), "tool"))
		assert.NoError(t, snap.Close())
		_, err = f.Stat()
		assert.NoError(t, err, "it is the caller's")
	}
}

// TestRemoveInterrupted: stopped before any of its steps, a removal can be called again; what is left may be swept as well.
func TestRemoveInterrupted(t *testing.T) {
	t.Parallel()
	stop := errors.New("stop")
	for step := 1; ; step++ {
		s := newTakeSite(t, "a/d/f=x", "a/l => d/f", "b=y")
		dir, _ := s.detached(t, nil, "a", "b")
		calls, stopped, changes := 0, "", false
		var mu sync.Mutex // the workers look at once
		err := snapshot.RemoveSnapshotWith(t.Context(), dir, snapshot.Seam{At: func(call, name string) error {
			mu.Lock()
			defer mu.Unlock()
			switch call {
			case "Unlink", "Rmdir", "Chmod", "Write", "Truncate":
				changes = true
			}
			if call == "Close" {
				return nil
			}
			if calls++; calls >= step { // as if killed
				if stopped == "" {
					stopped = fmt.Sprintf("%s %s, step %d", call, name, step)
				}
				return stop
			}
			return nil
		}, Finished: func(open, _ int64) { assert.Zero(t, open, "after %s", stopped) }})
		if stopped == "" {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, stop, stopped)
		if changes && stopped[:5] != "Chmod" {
			assert.ErrorIs(t, err, snapshot.ErrLeftover, stopped)
		}
		if len(namesIn(t, dir)) == 0 && len(namesIn(t, s.parent)) == 1 { // nothing tells any more that it was a snapshot
			assert.Len(t, sweep(t, s.parent), 1, stopped)
			continue
		}
		assert.NoError(t, removeSoon(t, dir), "again, after %s", stopped)
		fstest.Nothing(t, s.parent)
	}
}

// TestWhatLimitsAllowed can be opened, verified and removed as it was taken.
func TestWhatLimitsAllowed(t *testing.T) {
	t.Parallel()
	if stressTries(t, 0, 1, 1) == 0 {
		t.Skip("takes long on a busy machine: HOLDSTILL_STRESS=ci or full")
	}
	s := newTakeSite(t, "a/"+strings.Repeat("d/", 4096)) // the deepest that is allowed
	dir, digest := s.detached(t, nil, "a")
	snap, err := snapshot.OpenSnapshot(t.Context(), dir, digest)
	if assert.NoError(t, err) {
		assert.NoError(t, snap.Verify(t.Context()))
		assert.NoError(t, snap.Close())
	}
	assert.NoError(t, removeSoon(t, dir))
}

// TestLimitsCountRoots: a root is an entry, and its name a path.
func TestLimitsCountRoots(t *testing.T) {
	t.Parallel()
	for field, l := range map[string]snapshot.Limits{
		"MaxEntries": {MaxEntries: 2}, "MaxPath": {MaxPath: 2}, "MaxBytes": {MaxBytes: 5}, "MaxFileBytes": {MaxFileBytes: 3},
	} {
		s := newTakeSite(t, "a=1", "b=2", "ccc=4444")
		_, err := s.take(t, &snapshot.TakeOptions{Options: snapshot.Options{Limits: l}}, "a", "b", "ccc")
		over, is := errors.AsType[*snapshot.LimitError](err)
		if assert.True(t, is, "%s: %v", field, err) {
			assert.Equal(t, field, over.Field)
		}
		fstest.Nothing(t, s.parent)
	}
	for field, l := range map[string]snapshot.Limits{"MaxEntries": {MaxEntries: 5}, "MaxDepth": {MaxDepth: 2}, "MaxPath": {MaxPath: 8}} {
		s := newTakeSite(t, "a/f=1", "b=2")
		_, err := s.take(t, &snapshot.TakeOptions{Options: snapshot.Options{Limits: l}, Aliases: []snapshot.Alias{{Name: "a/x/y/z/v", Target: "b"}}}, "a", "b")
		over, is := errors.AsType[*snapshot.LimitError](err)
		if assert.True(t, is, "%s of aliases: %v", field, err) {
			assert.Equal(t, field, over.Field)
		}
	}
}

// TestSweepLeavesOpeningAlone: a sweep never keeps anybody from opening what was detached.
func TestSweepLeavesOpeningAlone(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "a/f=x")
	dir, digest := s.detached(t, nil, "a")
	var opened error
	_, err := snapshot.SweepWith(t.Context(), s.parent, snapshot.Seam{At: func(call, _ string) error {
		if call == "Read" || call == "Close" {
			snap, err := snapshot.OpenSnapshot(t.Context(), dir, digest)
			if err == nil {
				err = snap.Close()
			}
			opened = errors.Join(opened, err)
		}
		return nil
	}})
	require.NoError(t, err)
	assert.NoError(t, opened)
}

// TestFileRootWithSlash names no file.
func TestFileRootWithSlash(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "f=x", "l => f")
	for _, name := range []string{"f/", "f/.", "l/", "f/..", "f/x"} {
		_, err := snapshot.Take(t.Context(), []snapshot.Root{{Path: s.src + "/" + name}}, &snapshot.TakeOptions{Parent: s.parent})
		assert.ErrorIs(t, err, syscall.ENOTDIR, name)
		if err != nil {
			assert.Contains(t, err.Error(), s.src, name)
		}
		fstest.Nothing(t, s.parent)
	}
}

// TestTamperedSnapshots: what somebody with our rights did after the sealing is named by who looks.
func TestTamperedSnapshots(t *testing.T) {
	t.Parallel()
	root := os.Geteuid() == 0
	const look, verify = 1, 2 // by whom it must be found
	for name, tt := range map[string]struct {
		by   int
		root bool
		do   func(dir string) error
	}{
		"nothing":               {0, false, func(string) error { return nil }},
		"a byte":                {verify, false, func(dir string) error { return rewrite(dir+"/tree/a/f", "y") }},
		"a longer file":         {look | verify, false, func(dir string) error { return rewrite(dir+"/tree/a/f", "yy") }},
		"a mode":                {look | verify, false, func(dir string) error { return os.Chmod(dir+"/tree/a/f", 0o600) }},
		"setuid":                {look | verify, false, func(dir string) error { return os.Chmod(dir+"/tree/a/x", 0o500|fs.ModeSetuid) }},
		"sticky directory":      {look | verify, false, func(dir string) error { return os.Chmod(dir+"/tree/a", 0o500|fs.ModeSticky) }},
		"mode of the top":       {look | verify, false, func(dir string) error { return os.Chmod(dir+"/tree", 0o700) }},
		"mode of the snapshot":  {look | verify, false, func(dir string) error { return os.Chmod(dir, 0o700) }},
		"mode of the manifest":  {look | verify, false, func(dir string) error { return os.Chmod(dir+"/manifest.mtree", 0o600) }},
		"owner of a file":       {look | verify, true, func(dir string) error { return os.Chown(dir+"/tree/a/f", nobody, -1) }},
		"owner of a directory":  {look | verify, true, func(dir string) error { return os.Chown(dir+"/tree/a", nobody, -1) }},
		"owner of the top":      {look | verify, true, func(dir string) error { return os.Chown(dir+"/tree", nobody, -1) }},
		"owner of a link":       {look | verify, true, func(dir string) error { return os.Lchown(dir+"/tree/a/l", nobody, -1) }},
		"owner of the snapshot": {look | verify, true, func(dir string) error { return os.Chown(dir, nobody, -1) }},
		"owner of the manifest": {look | verify, true, func(dir string) error { return os.Chown(dir+"/manifest.mtree", nobody, -1) }},
		"an extra file": {look | verify, false, func(dir string) error {
			return within(dir+"/tree/a", func(d string) error { return os.WriteFile(d+"/new", nil, 0o400) })
		}},
		"an extra FIFO": {look | verify, false, func(dir string) error {
			return within(dir+"/tree/a", func(d string) error { return syscall.Mkfifo(d+"/new", 0o400) })
		}},
		"an extra root": {look | verify, false, func(dir string) error {
			return within(dir+"/tree", func(d string) error { return os.Mkdir(d+"/new", 0o500) })
		}},
		"an extra name": {look | verify, false, func(dir string) error {
			return within(dir, func(d string) error { return os.WriteFile(d+"/new", nil, 0o400) })
		}},
		"a removed file": {look | verify, false, func(dir string) error {
			return within(dir+"/tree/a", func(d string) error { return os.Remove(d + "/f") })
		}},
		"no manifest": {look | verify, false, func(dir string) error {
			return within(dir, func(d string) error { return os.Remove(d + "/manifest.mtree") })
		}},
		"a swapped link": {look | verify, false, func(dir string) error {
			return within(dir+"/tree/a", func(d string) error { return errors.Join(os.Remove(d+"/l"), os.Symlink("x", d+"/l")) })
		}},
		"a link for a file": {look | verify, false, func(dir string) error {
			return within(dir+"/tree/a", func(d string) error {
				return errors.Join(os.Remove(d+"/f"), os.Symlink("x", d+"/f"))
			})
		}},
		"a link for the tree": {look | verify, false, func(dir string) error {
			return within(dir, func(d string) error {
				return errors.Join(move(d+"/tree", filepath.Dir(d)+"/moved"), os.Symlink("../moved", d+"/tree"))
			})
		}},
		"another manifest":       {look | verify, false, func(dir string) error { return rewrite(dir+"/manifest.mtree", "#mtree\n") }},
		"a byte of the manifest": {look | verify, false, func(dir string) error { return flip(dir + "/manifest.mtree") }},
		"a manifest that is a link": {look | verify, false, func(dir string) error {
			return within(dir, func(d string) error {
				return errors.Join(os.Rename(d+"/manifest.mtree", filepath.Dir(d)+"/m"), os.Symlink("../m", d+"/manifest.mtree"))
			})
		}},
		"another name": {verify, false, func(dir string) error { return os.Rename(dir, dir+"x") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tt.root && !root {
				t.Skip("needs root")
			}
			s := newTakeSite(t, "a/f=x", "a/x 0755=#!", "a/l => f")
			dir, digest := s.detached(t, nil, "a")
			o, err := snapshot.OpenSnapshot(t.Context(), dir, digest)
			require.NoError(t, err)
			defer o.Close()
			require.NoError(t, tt.do(dir))
			err = o.Verify(t.Context())
			if tt.by&verify == 0 {
				assert.NoError(t, err)
			} else if assert.Error(t, err, "Verify") {
				t.Log("Verify:", err)
			}
			if name == "another name" {
				dir += "x"
			}
			again, err := snapshot.OpenSnapshotWith(t.Context(), dir, digest, snapshot.Seam{Finished: func(open, _ int64) { assert.Zero(t, open, "handles") }})
			if tt.by&look == 0 {
				if assert.NoError(t, err) {
					assert.NoError(t, again.Close())
				}
				return
			}
			if assert.Error(t, err, "OpenSnapshot") {
				t.Log("OpenSnapshot:", err)
				assert.True(t, isOneOf(err, []error{snapshot.ErrMismatch, snapshot.ErrUntrusted, snapshot.ErrNotRegular, fs.ErrNotExist}), "%v", err)
			}
		})
	}
}

// within opens a sealed directory for f.
func within(dir string, f func(dir string) error) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return err
	}
	return errors.Join(os.Chmod(dir, 0o700), f(dir), os.Chmod(dir, fi.Mode()))
}

// move gives a sealed directory another parent.
func move(from, to string) error {
	return errors.Join(os.Chmod(from, 0o700), os.Rename(from, to), os.Chmod(to, 0o500))
}

// rewrite changes a file in place, and puts its mode back.
func rewrite(path, text string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte(text), 0), os.Chmod(path, fi.Mode()))
}

func flip(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	b[len(b)/2] ^= 1
	return rewrite(path, string(b))
}

// TestSnapshotInUntrustedParent: whoever can rename it could lead us to another.
func TestSnapshotInUntrustedParent(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "a/f=x")
	dir, digest := s.detached(t, nil, "a")
	require.NoError(t, os.Chmod(s.parent, 0o777))
	_, err := s.take(t, nil, "a")
	assert.ErrorIs(t, err, snapshot.ErrUntrusted)
	_, err = snapshot.OpenSnapshot(t.Context(), dir, digest)
	assert.ErrorIs(t, err, snapshot.ErrUntrusted)
}

// TestTakeFaults: whatever call fails, for good, nothing is left but what the error says, and no handle.
func TestTakeFaults(t *testing.T) {
	t.Parallel()
	for _, errno := range []error{unix.EIO, unix.EROFS, unix.ENOENT} {
		t.Run(errno.Error(), func(t *testing.T) {
			t.Parallel()
			s := newTakeSite(t, "a/d/f=x", "a/l => ../b/g", "b/g=y", "tool 0755=#!")
			f, err := os.Open(s.src + "/tool")
			require.NoError(t, err)
			defer f.Close()
			fstest.Settle(t, s.src)
			for step := int64(1); ; step++ {
				var calls atomic.Int64
				var failed atomic.Value
				seam := snapshot.Seam{
					At: func(call, name string) error {
						if call != "Close" && calls.Add(1) == step {
							failed.Store(call + " " + name)
							return errno
						}
						return nil
					},
					Finished: func(open, _ int64) { assert.Zero(t, open, "%v", failed.Load()) },
				}
				snap, err := snapshot.Take(t.Context(), []snapshot.Root{{Path: s.src + "/a"}, {Path: s.src + "/b"}, {File: f}}, &snapshot.TakeOptions{
					Options: *snapshot.WithSeam(&snapshot.Options{Workers: 1, Durable: true}, seam), Parent: s.parent,
					Aliases: []snapshot.Alias{{Name: "a/m/k", Target: "b"}},
				})
				if err == nil {
					closed := snap.Close()
					if failed.Load() == nil {
						require.NoError(t, closed)
						break
					}
				}
				for _, name := range namesIn(t, s.parent) {
					if err != nil && !errors.Is(err, snapshot.ErrLeftover) {
						assert.Fail(t, "left without a word", "%s after %v: %v", name, failed.Load(), err)
					}
					_ = os.Chmod(filepath.Join(s.parent, name), 0o700)
					assert.Len(t, sweepSoon(t, s.parent), 1, "%v", failed.Load())
				}
				if !fstest.Nothing(t, s.parent) {
					t.Fatal(failed.Load(), err)
				}
			}
		})
	}
}

// TestOpenFaults: the same for what opens, and for Close.
func TestOpenFaults(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "a/d/f=x", "a/l => d/f", "tool 0755=#!")
	dir, digest := s.detached(t, nil, "a", "tool")
	fstest.Settle(t, dir)
	for _, errno := range []error{unix.EIO, unix.EMFILE} {
		for step := int64(1); ; step++ {
			var calls, ends atomic.Int64
			var failed atomic.Value
			snap, err := snapshot.OpenSnapshotWith(t.Context(), dir, digest, snapshot.Seam{
				At: func(call, name string) error {
					if call != "Close" && calls.Add(1) == step {
						failed.Store(call + " " + name)
						return errno
					}
					return nil
				},
				Finished: func(open, _ int64) { ends.Add(1); assert.Zero(t, open, "%v", failed.Load()) },
			})
			if err == nil {
				require.NoError(t, snap.Close())
			}
			if failed.Load() == nil {
				break
			}
		}
	}
	require.NoError(t, removeSoon(t, dir), "nobody has it open")
}

// linkWorld is a random source for several roots, some of them nested, files, or given through a link.
type linkWorld struct {
	base  string
	rng   *rand.Rand
	roots []linkRoot
	links []string // absolute paths in the source
}

type linkRoot struct{ name, given, real string }

func newLinkWorld(t testing.TB, rng *rand.Rand) *linkWorld {
	t.Helper()
	base, err := filepath.EvalSymlinks(fstest.TempDir(t))
	require.NoError(t, err)
	w := &linkWorld{base: base, rng: rng}
	// via is another way to w, and hop one to a directory in it.
	fstest.Make(t, base, "parent/ 0700", "via => w", "w/out/f=w/out/f", "w/hop => a/b", "outer => w/out")
	for _, dir := range []string{"w/a", "w/a/b", "w/a/b/c", "w/a/c", "w/d", "w/d/b", "w/e/a", "w/e"} {
		for _, f := range []string{"f", "g"} {
			fstest.Make(t, base, dir+"/"+f+"="+dir+"/"+f)
		}
	}
	candidates := []linkRoot{
		{"a", "w/a", ""},
		{"b", "w/a/b", ""},
		{"c", "w/a/b/c", ""},
		{"d", "via/d", ""},
		{"e", "w/e", ""},
		{"f", "w/a/f", ""},
		{"g", "via/d/b/g", ""},
		{"h", "w/hop", ""},
		{"i", "w/hop/c", ""},
		{"j", "w", ""},
		{"k", "w/a/../d/b", ""},
		{"l", "w/out/f", ""},
	}
	rng.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	for _, r := range candidates[:1+rng.IntN(4)] {
		r.given = base + "/" + r.given
		r.real, err = filepath.EvalSymlinks(r.given)
		require.NoError(t, err)
		w.roots = append(w.roots, r)
	}
	for i := range 14 {
		at := filepath.Join(base, w.pick("w/a", "w/a/b", "w/a/b/c", "w/a/c", "w/d", "w/d/b", "w/e", "w/e/a"), fmt.Sprintf("l%d", i))
		require.NoError(t, os.Symlink(w.text(i), at))
		w.links = append(w.links, at)
	}
	return w
}

func (w *linkWorld) pick(of ...string) string { return of[w.rng.IntN(len(of))] }

// text is a random way, over names that are often there.
func (w *linkWorld) text(links int) string {
	var parts []string
	switch w.rng.IntN(5) {
	case 0:
		parts = strings.Split(w.base+"/"+w.pick("w", "via", "w/a", "via/a/b", "w/hop", "w/e", "w/d", "outer", "w/out", "."), "/")
	case 1:
		parts = append(parts, "..")
	case 2:
		parts = append(parts, "..", "..")
	}
	for range w.rng.IntN(4) {
		switch w.rng.IntN(6) {
		case 0, 1:
			parts = append(parts, w.pick("a", "b", "c", "d", "e", "w"))
		case 2:
			parts = append(parts, "..")
		case 3:
			parts = append(parts, fmt.Sprintf("l%d", w.rng.IntN(links+1)))
		case 4:
			parts = append(parts, w.pick("f", "g", "hop", "via"))
		case 5:
			parts = append(parts, w.pick("", "."))
		}
	}
	if w.rng.IntN(2) == 0 {
		parts = append(parts, w.pick("f", "g"))
	}
	if text := strings.Join(parts, "/"); text != "" {
		return text
	}
	return "."
}

// inRoots returns the places in the copy of a path without links.
func (w *linkWorld) inRoots(real string) (places []string) {
	for _, r := range w.roots {
		if real == r.real || strings.HasPrefix(real, r.real+"/") {
			places = append(places, r.name+strings.TrimPrefix(real, r.real))
		}
	}
	return places
}

// route follows a link of the source as the kernel does, one lstat a step. It reports where the way ends, and whether it goes
// over entries of the roots and the real directories above them alone.
func (w *linkWorld) route(link string) (end string, inside bool) {
	inside = true
	expansions := 0
	at := filepath.Dir(link)
	text, err := os.Readlink(link)
	if err != nil {
		return "", false
	}
	todo := strings.Split(text, "/")
	if todo[0] == "" {
		at = "/"
	}
	expansions++
	for len(todo) > 0 {
		step := todo[0]
		todo = todo[1:]
		fi, err := os.Lstat(at)
		if err != nil || !fi.IsDir() {
			return "", false
		}
		switch step {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
		default:
			next := filepath.Join(at, step)
			fi, err := os.Lstat(next)
			if err != nil {
				return "", false
			}
			if fi.Mode().Type() == fs.ModeSymlink {
				if expansions++; expansions > 40 {
					return "", false
				}
				if len(w.inRoots(at)) == 0 {
					inside = false
				}
				more, err := os.Readlink(next)
				if err != nil {
					return "", false
				}
				if strings.HasPrefix(more, "/") {
					at = "/"
				}
				todo = append(strings.Split(more, "/"), todo...)
				continue
			}
			at = next
		}
		if len(w.inRoots(at)) == 0 && !slices.ContainsFunc(w.roots, func(r linkRoot) bool { return at == "/" || strings.HasPrefix(r.real, at+"/") }) {
			inside = false
		}
	}
	return at, inside
}

// TestLinksFollowed: each link of a snapshot leads the kernel to the copy of what it leads to in the source, and none is left
// out that can.
func TestLinksFollowed(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	kept, skipped, loose := 0, 0, 0
	for try := range stressTries(t, 60, 500, 5000) {
		rng := rand.New(rand.NewPCG(seed, uint64(try)))
		w := newLinkWorld(t, rng)
		opts := &snapshot.TakeOptions{Parent: w.base + "/parent", Options: snapshot.Options{Links: snapshot.LinksInsideOrSkip, Workers: 1 + rng.IntN(3)}}
		var roots []snapshot.Root
		for _, r := range w.roots {
			roots = append(roots, snapshot.Root{Name: r.name, Path: r.given})
		}
		aliases := map[string]string{}
		for i := range rng.IntN(4) {
			target := w.roots[rng.IntN(len(w.roots))].name
			name := fmt.Sprintf("z%d", i)
			if rng.IntN(2) == 0 {
				name = fmt.Sprintf("y%d/x/z%d", rng.IntN(2), i)
			}
			aliases[name] = target
			opts.Aliases = append(opts.Aliases, snapshot.Alias{Name: name, Target: target})
		}
		snap, err := snapshot.Take(t.Context(), roots, opts)
		require.NoError(t, err, "seed %d, try %d, %v", seed, try, w.roots)
		top := snap.Dir() + "/tree"
		for name, target := range aliases {
			end, err := filepath.EvalSymlinks(top + "/" + name)
			assert.NoError(t, err)
			assert.Equal(t, top+"/"+target, end, "alias %s", name)
		}
		for _, link := range w.links {
			want, inside := w.route(link)
			real, err := filepath.EvalSymlinks(link)
			require.Equal(t, err != nil, want == "", "the oracle of %s: %q, %v", link, want, err)
			require.Equal(t, real, want, "the oracle of %s", link)
			for _, place := range w.inRoots(link) {
				text, _ := os.Readlink(link)
				what := fmt.Sprintf("seed %d, try %d, %v: %s, %q", seed, try, w.roots, place, text)
				copied, err := os.Readlink(top + "/" + place)
				switch {
				case errors.Is(err, fs.ErrNotExist):
					skipped++
					if want != "" && len(w.inRoots(want)) > 0 {
						loose++
						assert.False(t, inside, "%s: left out", what)
					}
					continue
				case !assert.NoError(t, err, what):
					continue
				}
				kept++
				if !assert.NotEmpty(t, want, "%s: kept as %q", what, copied) {
					continue
				}
				end, err := filepath.EvalSymlinks(top + "/" + place)
				if assert.NoError(t, err, "%s: kept as %q", what, copied) {
					assert.Contains(t, w.inRoots(want), strings.TrimPrefix(end, top+"/"), "%s: kept as %q", what, copied)
				}
			}
		}
		require.NoError(t, snap.Verify(t.Context()))
		require.NoError(t, snap.Close())
		if t.Failed() {
			return
		}
	}
	assert.NotZero(t, kept)
	assert.NotZero(t, skipped)
	t.Logf("%d links kept, %d left out, %d of them over links outside", kept, skipped, loose)
}

// TestRootsOfEveryKind: what a root may be, and what not, is said of it and leaves nothing.
func TestRootsOfEveryKind(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "d/f=x", "d/in/g=y", "f=z", "l => f", "ld => d", "p|", "s@", "none => nowhere", "loop => loop", "ro 0000=secret")
	open := func(name string, flag int) *os.File {
		f, err := os.OpenFile(s.src+"/"+name, flag, 0)
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	closed := open("f", os.O_RDONLY)
	require.NoError(t, closed.Close())
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	gone := s.src + "/gone"
	require.NoError(t, os.WriteFile(gone, []byte("gone"), 0o600))
	deleted, err := os.Open(gone)
	require.NoError(t, err)
	defer deleted.Close()
	require.NoError(t, os.Remove(gone))
	require.NoError(t, os.Mkdir(gone, 0o700))
	deletedDir, err := os.Open(gone)
	require.NoError(t, err)
	defer deletedDir.Close()
	require.NoError(t, os.Remove(gone))
	listed := open("d", os.O_RDONLY)
	_, err = listed.Readdirnames(-1)
	require.NoError(t, err)
	pin, err := unix.Open(s.src+"/f", unix.O_PATH|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	pinned := os.NewFile(uintptr(pin), "pinned")
	defer pinned.Close()
	null, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer null.Close()
	for name, tt := range map[string]struct {
		roots []snapshot.Root
		want  map[string]string // places and contents
		err   error
	}{
		"none":                        {nil, nil, fs.ErrInvalid},
		"zero":                        {[]snapshot.Root{{}}, nil, fs.ErrNotExist},
		"both":                        {[]snapshot.Root{{Path: s.src, File: null}}, nil, fs.ErrInvalid},
		"link to a file":              {[]snapshot.Root{{Path: s.src + "/l"}}, map[string]string{"l": "z"}, nil},
		"link to a directory":         {[]snapshot.Root{{Path: s.src + "/ld"}, {Path: s.src + "/ld/"}}, map[string]string{"ld/f": "x", "ld-2/in/g": "y"}, nil},
		"the same again":              {[]snapshot.Root{{Path: s.src + "/d"}, {Path: s.src + "/d"}, {Name: "d-2", Path: s.src + "/f"}}, map[string]string{"d/f": "x", "d-3/f": "x", "d-2": "z"}, nil},
		"nested":                      {[]snapshot.Root{{Path: s.src + "/d/in"}, {Path: s.src + "/d/."}, {Path: s.src + "/d/in/.."}, {Path: s.src + "/d/in/g"}}, map[string]string{"in/g": "y", "d/f": "x", "d-2/f": "x", "g": "y"}, nil},
		"dangling":                    {[]snapshot.Root{{Path: s.src + "/none"}}, nil, fs.ErrNotExist},
		"loop":                        {[]snapshot.Root{{Path: s.src + "/loop"}}, nil, syscall.ELOOP},
		"FIFO":                        {[]snapshot.Root{{Path: s.src + "/p"}}, nil, snapshot.ErrNotRegular},
		"socket":                      {[]snapshot.Root{{Path: s.src + "/s"}}, nil, snapshot.ErrNotRegular},
		"device":                      {[]snapshot.Root{{Path: "/dev/null"}}, nil, snapshot.ErrNotRegular},
		"device by handle":            {[]snapshot.Root{{File: null}}, nil, snapshot.ErrNotRegular},
		"pipe":                        {[]snapshot.Root{{File: r}}, nil, snapshot.ErrNotRegular},
		"proc":                        {[]snapshot.Root{{Path: "/proc/self/status"}}, nil, snapshot.ErrNotRegular},
		"a directory of proc":         {[]snapshot.Root{{Path: "/proc/self/task"}}, nil, snapshot.ErrNotRegular},
		"closed":                      {[]snapshot.Root{{File: closed}}, nil, fs.ErrClosed},
		"deleted":                     {[]snapshot.Root{{File: deleted}}, map[string]string{"gone": "gone"}, nil},
		"deleted directory":           {[]snapshot.Root{{File: deletedDir}}, nil, snapshot.ErrChanged},
		"directory by handle":         {[]snapshot.Root{{File: open("d", os.O_RDONLY)}, {File: listed}}, map[string]string{"d/in/g": "y", "d-2/f": "x"}, nil},
		"write-only":                  {[]snapshot.Root{{File: open("f", os.O_WRONLY)}}, map[string]string{"f": "z"}, nil},
		"pinned":                      {[]snapshot.Root{{File: pinned}}, map[string]string{"pinned": "z"}, nil},
		"NUL":                         {[]snapshot.Root{{Path: "a\x00b"}}, nil, fs.ErrInvalid},
		"name with a slash":           {[]snapshot.Root{{Name: "a/b", Path: s.src}}, nil, fs.ErrInvalid},
		"name of two dots":            {[]snapshot.Root{{Name: "..", Path: s.src}}, nil, fs.ErrInvalid},
		"two of a name":               {[]snapshot.Root{{Name: "x", Path: s.src + "/d"}, {Name: "x", Path: s.src + "/f"}}, nil, fs.ErrExist},
		"around the parent":           {[]snapshot.Root{{Path: s.dir}}, nil, snapshot.ErrEscapes},
		"around the parent by handle": {[]snapshot.Root{{File: openDir(t, s.dir)}}, nil, snapshot.ErrEscapes},
		"the parent":                  {[]snapshot.Root{{Path: s.src + "/f"}, {Path: s.parent}}, nil, snapshot.ErrEscapes},
		"everything":                  {[]snapshot.Root{{Path: "/"}}, nil, snapshot.ErrEscapes},
	} {
		var seam snapshot.Seam
		seam.Finished = func(open, _ int64) { assert.Zero(t, open, name) }
		snap, err := snapshot.Take(t.Context(), tt.roots, &snapshot.TakeOptions{Parent: s.parent, Options: *snapshot.WithSeam(nil, seam)})
		if tt.err != nil {
			assert.ErrorIs(t, err, tt.err, name)
		} else if assert.NoError(t, err, name) {
			for place, content := range tt.want {
				assert.Equal(t, content, inTree(t, snap.Dir(), place), "%s: %s", name, place)
			}
			assert.NoError(t, snap.Verify(t.Context()), name)
			assert.NoError(t, snap.Close(), name)
		}
		fstest.Nothing(t, s.parent)
	}
}

func openDir(t testing.TB, name string) *os.File {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// TestRootsThatChange between the rounds, into anything.
func TestRootsThatChange(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lines []string
		want  any // contents of the root's place or an error
		do    func(s *takeSite, t *testing.T)
	}{
		"file replaced":        {[]string{"r=one"}, "two", func(s *takeSite, t *testing.T) { s.replace(t, "r=two") }},
		"file grown":           {[]string{"r=one"}, "one more", func(s *takeSite, t *testing.T) { require.NoError(t, os.WriteFile(s.src+"/r", []byte("one more"), 0)) }},
		"file removed":         {[]string{"r=one"}, snapshot.ErrChanged, func(s *takeSite, t *testing.T) { require.NoError(t, os.Remove(s.src+"/r")) }},
		"file to directory":    {[]string{"r=one"}, "dir", func(s *takeSite, t *testing.T) { s.replace(t, "r/f=x") }},
		"directory to file":    {[]string{"r/d/f=one"}, "two", func(s *takeSite, t *testing.T) { s.replace(t, "r=two") }},
		"directory replaced":   {[]string{"r/d/f=one"}, "dir", func(s *takeSite, t *testing.T) { s.replace(t, "r/x/y=two") }},
		"file to FIFO":         {[]string{"r=one"}, snapshot.ErrChanged, func(s *takeSite, t *testing.T) { s.replace(t, "r|") }},
		"directory to FIFO":    {[]string{"r/f=one"}, snapshot.ErrChanged, func(s *takeSite, t *testing.T) { s.replace(t, "r|") }},
		"file to link":         {[]string{"r=one", "other=two"}, "two", func(s *takeSite, t *testing.T) { s.replace(t, "r => other") }},
		"link to another file": {[]string{"r => a", "a=one", "b=two"}, "two", func(s *takeSite, t *testing.T) { s.replace(t, "r => b") }},
		"link to a directory":  {[]string{"r => a", "a=one", "b/f=two"}, "dir", func(s *takeSite, t *testing.T) { s.replace(t, "r => b") }},
	} {
		for _, phase := range []string{"joined", "proven"} {
			s := newTakeSite(t, tt.lines...)
			var done bool
			opts := snapshot.WithSeam(nil, snapshot.Seam{
				Phase: func(now string) {
					if now == phase && !done {
						done = true
						tt.do(s, t)
					}
				},
				Finished: func(open, _ int64) { assert.Zero(t, open, name) },
			})
			snap, err := s.take(t, &snapshot.TakeOptions{Options: *opts}, "r")
			if phase == "proven" { // too late to be seen
				require.NoError(t, err, name)
				assert.NoError(t, snap.Close())
				continue
			}
			if want, ok := tt.want.(error); ok {
				assert.True(t, isOneOf(err, []error{want, snapshot.ErrNotRegular}), "%s: %v", name, err)
				fstest.Nothing(t, s.parent)
				continue
			}
			if assert.NoError(t, err, name) {
				if tt.want == "dir" {
					fstest.Equal(t, resolved(t, s.src+"/r"), snap.Dir()+"/tree/r")
				} else {
					assert.Equal(t, tt.want, inTree(t, snap.Dir(), "r"), name)
				}
				assert.NoError(t, snap.Verify(t.Context()), name)
				assert.NoError(t, snap.Close())
			}
			fstest.Nothing(t, s.parent)
		}
	}
}

func resolved(t testing.TB, path string) string {
	t.Helper()
	real, err := filepath.EvalSymlinks(path)
	require.NoError(t, err)
	return real
}

// replace puts something else in the place of an entry of src.
func (s *takeSite) replace(t testing.TB, line string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(s.src+"/r"))
	fstest.Make(t, s.src, line)
}

// TestAliasRefusals: what would hide an entry, leave the snapshot, or lead to nothing.
func TestAliasRefusals(t *testing.T) {
	t.Parallel()
	const long = 256
	for name, tt := range map[string]struct {
		aliases []snapshot.Alias
		err     error
	}{
		"hides a root":              {[]snapshot.Alias{{Name: "a", Target: "b"}}, fs.ErrExist},
		"hides a file":              {[]snapshot.Alias{{Name: "a/f", Target: "b"}}, fs.ErrExist},
		"hides a directory":         {[]snapshot.Alias{{Name: "a/d", Target: "b"}}, fs.ErrExist},
		"hides an alias":            {[]snapshot.Alias{{Name: "a/x", Target: "b"}, {Name: "a/x", Target: "b"}}, fs.ErrExist},
		"hides a made directory":    {[]snapshot.Alias{{Name: "a/x/y", Target: "b"}, {Name: "a/x", Target: "b"}}, fs.ErrExist},
		"in a file":                 {[]snapshot.Alias{{Name: "a/f/x", Target: "b"}}, fs.ErrExist},
		"in a file root":            {[]snapshot.Alias{{Name: "b/x", Target: "a"}}, fs.ErrExist},
		"in a link":                 {[]snapshot.Alias{{Name: "a/l/x", Target: "b"}}, fs.ErrExist},
		"in an alias":               {[]snapshot.Alias{{Name: "a/x", Target: "a/d"}, {Name: "a/x/y", Target: "b"}}, fs.ErrExist},
		"up":                        {[]snapshot.Alias{{Name: "a/../x", Target: "b"}}, snapshot.ErrEscapes},
		"out":                       {[]snapshot.Alias{{Name: "../x", Target: "b"}}, snapshot.ErrEscapes},
		"absolute":                  {[]snapshot.Alias{{Name: "/x", Target: "b"}}, snapshot.ErrEscapes},
		"empty":                     {[]snapshot.Alias{{Name: "", Target: "b"}}, snapshot.ErrEscapes},
		"slash at the end":          {[]snapshot.Alias{{Name: "x/", Target: "b"}}, snapshot.ErrEscapes},
		"target up":                 {[]snapshot.Alias{{Name: "x", Target: "a/.."}}, snapshot.ErrEscapes},
		"target out":                {[]snapshot.Alias{{Name: "x", Target: "../manifest.mtree"}}, snapshot.ErrEscapes},
		"target absolute":           {[]snapshot.Alias{{Name: "x", Target: "/etc"}}, snapshot.ErrEscapes},
		"target empty":              {[]snapshot.Alias{{Name: "x", Target: ""}}, snapshot.ErrEscapes},
		"target dot":                {[]snapshot.Alias{{Name: "x", Target: "."}}, snapshot.ErrEscapes},
		"target missing":            {[]snapshot.Alias{{Name: "x", Target: "c"}}, fs.ErrNotExist},
		"target below a file":       {[]snapshot.Alias{{Name: "x", Target: "a/f/x"}}, fs.ErrNotExist},
		"target is itself":          {[]snapshot.Alias{{Name: "x", Target: "x"}}, fs.ErrNotExist},
		"target below itself":       {[]snapshot.Alias{{Name: "x", Target: "x/y"}}, fs.ErrNotExist},
		"target is an alias":        {[]snapshot.Alias{{Name: "x", Target: "b"}, {Name: "y", Target: "x"}}, fs.ErrNotExist},
		"target is left out":        {[]snapshot.Alias{{Name: "x", Target: "a/out"}}, fs.ErrNotExist},
		"a name that is too long":   {[]snapshot.Alias{{Name: "a/" + strings.Repeat("x", long), Target: "b"}}, syscall.ENAMETOOLONG},
		"a directory that is so":    {[]snapshot.Alias{{Name: strings.Repeat("x", long) + "/y", Target: "b"}}, syscall.ENAMETOOLONG},
		"text that is too long":     {[]snapshot.Alias{{Name: strings.Repeat("x/", 1400) + "y", Target: "b"}}, syscall.ENAMETOOLONG},
		"target is on its own way":  {[]snapshot.Alias{{Name: "x/y/z", Target: "x"}}, nil},
		"target is made":            {[]snapshot.Alias{{Name: "m/k", Target: "b"}, {Name: "a/m", Target: "m"}}, nil},
		"in a made directory twice": {[]snapshot.Alias{{Name: "a/m/z", Target: "b"}, {Name: "a/m/y", Target: "a/f"}, {Name: "a/m/x", Target: "a/d"}}, nil},
		"around an aliased place":   {[]snapshot.Alias{{Name: "a/d/e", Target: "a"}}, nil},
	} {
		s := newTakeSite(t, "a/f=x", "a/d/g=y", "a/l => d", "a/out/h=z", "b=b")
		filter, err := snapshot.NewFilter("a/out")
		require.NoError(t, err)
		for _, preserve := range []bool{false, true} {
			opts := &snapshot.TakeOptions{Aliases: tt.aliases, Options: snapshot.Options{Exclude: filter, PreserveMode: preserve}}
			opts.Options = *balanced(t, &opts.Options, snapshot.Seam{})
			snap, err := s.take(t, opts, "a", "b")
			if tt.err != nil {
				assert.ErrorIs(t, err, tt.err, name)
				if err == nil {
					assert.NoError(t, snap.Close())
				}
				fstest.Nothing(t, s.parent)
				continue
			}
			if assert.NoError(t, err, name) {
				for _, a := range tt.aliases {
					assert.Equal(t, snap.Dir()+"/tree/"+a.Target, resolved(t, snap.Dir()+"/tree/"+a.Name), name)
				}
				assert.NoError(t, snap.Verify(t.Context()), name)
				o, err := snapshot.OpenSnapshot(t.Context(), snap.Dir(), snap.Manifest().Digest())
				if assert.NoError(t, err, name) {
					assert.NoError(t, o.Close())
				}
				require.NoError(t, snap.Detach())
				require.NoError(t, snap.Close())
				assert.NoError(t, removeSoon(t, snap.Dir()), name)
			}
			fstest.Nothing(t, s.parent)
		}
	}
}

// TestTakeBesideForks: nothing of a snapshot is busy for an exec, whoever forks meanwhile.
func TestTakeBesideForks(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t)
	program, err := os.ReadFile(resolved(t, "/bin/true"))
	require.NoError(t, err)
	for i := range 6 {
		require.NoError(t, os.MkdirAll(fmt.Sprintf("%s/d%d", s.src, i), 0o755))
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/d%d/true", s.src, i), program, 0o755))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var forks sync.WaitGroup
	for range 3 {
		forks.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "/bin/true").Run()
			}
		})
	}
	var takers sync.WaitGroup
	for range 3 {
		takers.Go(func() {
			for range stressTries(t, 10, 100, 400) {
				snap, err := s.take(t, nil, "d0", "d1", "d2", "d3", "d4", "d5")
				if !assert.NoError(t, err) {
					return
				}
				for i := range 6 {
					assert.NoError(t, exec.CommandContext(t.Context(), fmt.Sprintf("%s/tree/d%d/true", snap.Dir(), i)).Run())
				}
				assert.NoError(t, snap.Close())
			}
		})
	}
	takers.Wait()
	cancel()
	forks.Wait()
	fstest.Nothing(t, s.parent)
}

// TestTakeUnderModes: whatever the umask, the parent's setgid bit or its default ACL say, what is made has the modes that are
// promised, or nothing is made. The umask is the process's, so a child runs this.
func TestTakeUnderModes(t *testing.T) {
	t.Parallel()
	const variable = "HOLDSTILL_TEST_UMASK"
	if mask := os.Getenv(variable); mask != "" {
		n, err := strconv.ParseUint(mask, 8, 12)
		require.NoError(t, err)
		for _, parent := range []fs.FileMode{0o700, 0o755, fs.ModeSetgid | 0o755, fs.ModeSticky | 0o777} {
			for _, acl := range []bool{false, true} {
				s := newTakeSite(t, "a/f=x", "a/x 0755=#!", "a/d/g=y", "a/l => f", "b 0755=z")
				require.NoError(t, os.Chmod(s.parent, parent))
				if acl {
					// default: user::rwx user:1:rwx group::rwx mask::rwx other::rwx
					text := []byte("\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x02\x00\x07\x00\x01\x00\x00\x00\x04\x00\x07\x00\xff\xff\xff\xff\x10\x00\x07\x00\xff\xff\xff\xff\x20\x00\x07\x00\xff\xff\xff\xff")
					if err := unix.Setxattr(s.parent, "system.posix_acl_default", text, 0); err != nil {
						t.Log("no ACLs here:", err)
						continue
					}
				}
				for _, preserve := range []bool{false, true} {
					what := fmt.Sprintf("umask %04o, parent %v, ACL %v, preserve %v", n, parent, acl, preserve)
					opts := &snapshot.TakeOptions{Options: *balanced(t, &snapshot.Options{PreserveMode: preserve}, snapshot.Seam{}), Aliases: []snapshot.Alias{{Name: "a/m/n/o", Target: "b"}, {Name: "q/r", Target: "a"}}}
					old := unix.Umask(int(n))
					snap, err := s.take(t, opts, "a", "b")
					unix.Umask(old)
					if n&0o700 != 0 && !acl { // a default ACL stands in for the umask
						assert.ErrorIs(t, err, snapshot.ErrUntrusted, what)
						fstest.Nothing(t, s.parent)
						continue
					}
					if !assert.NoError(t, err, what) {
						continue
					}
					modes := map[string]string{
						".": "dir 0500", "lock": "", "manifest.mtree": "", "tree": "dir 0500", "tree/a": "dir 0500", "tree/a/d": "dir 0500", "tree/a/d/g": `file 0400 "y"`,
						"tree/a/f": `file 0400 "x"`, "tree/a/x": `file 0500 "#!"`, "tree/a/l": "link f", "tree/b": `file 0500 "z"`,
						"tree/a/m": "dir 0500", "tree/a/m/n": "dir 0500", "tree/a/m/n/o": "link ../../../b", "tree/q": "dir 0500", "tree/q/r": "link ../a",
					}
					if preserve {
						for place, mode := range map[string]string{"a": "dir 0755", "a/d": "dir 0755", "a/d/g": `file 0644 "y"`, "a/f": `file 0644 "x"`, "a/x": `file 0755 "#!"`, "b": `file 0755 "z"`} {
							modes["tree/"+place] = mode
						}
					}
					got := fstest.Read(t, snap.Dir())
					got["lock"], got["manifest.mtree"] = "", ""
					assert.Equal(t, modes, got, what)
					fi, err := os.Lstat(snap.Dir() + "/lock")
					require.NoError(t, err)
					assert.Equal(t, fs.FileMode(0o600), fi.Mode(), what)
					assert.NoError(t, snap.Verify(t.Context()), what)
					o, err := snapshot.OpenSnapshot(t.Context(), snap.Dir(), snap.Manifest().Digest())
					if assert.NoError(t, err, what) {
						assert.NoError(t, o.Close())
					}
					require.NoError(t, snap.Detach())
					require.NoError(t, snap.Close())
					assert.NoError(t, removeSoon(t, snap.Dir()), what)
					fstest.Nothing(t, s.parent)
				}
			}
		}
		return
	}
	for _, unprivileged := range []bool{false, true} {
		for _, mask := range []string{"0", "077", "027", "0277", "0777"} {
			exe, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestTakeUnderModes$", "-test.count=1")
			cmd.Env = append(os.Environ(), variable+"="+mask)
			if unprivileged {
				cmd.Path = copyForAll(t)
				cmd.SysProcAttr = fstest.Unprivileged(t)
				cmd.Dir = filepath.Dir(cmd.Path)
			}
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, "umask %s, unprivileged %v: %s", mask, unprivileged, out)
		}
	}
}

// copyForAll puts this program, which go test built where only root gets in, where an ordinary user gets at it.
func copyForAll(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	name := filepath.Join(fstest.TempDir(t), "test")
	// A child that another test forks would have it open for writing until its exec, and nobody could run it.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(name, b, 0o755))
	return name
}

// TestCloseOfAMovedSnapshot: it is emptied wherever it is; that the directory is left is said, and what has its name now is
// somebody else's.
func TestCloseOfAMovedSnapshot(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "a/f=x", "b=y")
	snap := s.mustTake(t, nil, "a", "b")
	require.NoError(t, os.Rename(snap.Dir(), s.parent+"/moved"))
	fstest.Make(t, snap.Dir(), "tree/a/f=precious", "lock=mine")
	f, err := snap.Open(t.Context(), "a/f")
	if assert.NoError(t, err, "it is held") {
		assert.NoError(t, f.Close())
	}
	assert.ErrorIs(t, snap.Verify(t.Context()), snapshot.ErrUntrusted)
	err = snap.Close()
	assert.Equal(t, map[string]string{".": "dir", "tree": "dir", "tree/a": "dir", "tree/a/f": `file "precious"`, "lock": `file "mine"`}, fstest.Contents(t, snap.Dir()))
	if _, e := os.Lstat(s.parent + "/moved"); e == nil {
		assert.ErrorIs(t, err, snapshot.ErrUntrusted)
		assert.NotErrorIs(t, err, snapshot.ErrLeftover, "what has the name is not ours")
		fstest.Nothing(t, s.parent+"/moved")
	}
}

// TestRemoveAfterOtherTools: what finds duplicates and links them, and what touches stamps, keeps nobody from removing.
func TestRemoveAfterOtherTools(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "a/f=x", "a/g=x", "a/h=x", "b=y")
	dir, _ := s.detached(t, nil, "a", "b")
	require.NoError(t, within(dir+"/tree/a", func(d string) error {
		return errors.Join(os.Remove(d+"/g"), os.Link(d+"/f", d+"/g"), os.Remove(d+"/h"), os.Link(d+"/f", d+"/h"))
	}))
	assert.NoError(t, snapshot.RemoveSnapshotWith(t.Context(), dir, snapshot.Seam{At: once("Unlink", func() {
		assert.NoError(t, os.Chmod(dir+"/tree/b", 0o400))
	})}))
	fstest.Nothing(t, s.parent)
}

// TestRemoveLeavesWhatCame: an entry that appears while a removal is at work is not its own.
func TestRemoveLeavesWhatCame(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "a/f=x", "a/d/g=y", "b=z")
	dir, _ := s.detached(t, nil, "a", "b")
	err := snapshot.RemoveSnapshotWith(t.Context(), dir, snapshot.Seam{At: once("Unlink", func() {
		fstest.Make(t, dir+"/tree/a", "mine=precious")
		assert.NoError(t, os.Rename(dir+"/tree/b", dir+"/tree/a/b"))
		assert.NoError(t, os.WriteFile(dir+"/tree/b", []byte("precious"), 0o600))
	})})
	assert.ErrorIs(t, err, snapshot.ErrLeftover)
	got := fstest.Contents(t, dir)
	assert.Equal(t, `file "precious"`, got["tree/a/mine"])
	assert.Equal(t, `file "precious"`, got["tree/b"])
	assert.ErrorIs(t, snapshot.RemoveSnapshot(t.Context(), dir), snapshot.ErrMismatch)
	assert.Equal(t, got, fstest.Contents(t, dir), "a refusal touches nothing")
}

// TestLookAlikes: what somebody put there to be removed stays.
func TestLookAlikes(t *testing.T) {
	t.Parallel()
	const detached = "holdstill detached 1\n"
	for name, change := range map[string]func(s *takeSite, dir string) error{
		"another name": func(s *takeSite, dir string) error { return os.Rename(dir, s.parent+"/other") },
		"a link to it": func(s *takeSite, dir string) error {
			return errors.Join(os.Rename(dir, s.parent+"/other"), os.Symlink("other", dir))
		},
		"a linked lock": func(s *takeSite, dir string) error { return os.Link(dir+"/lock", s.dir+"/lock") },
		"another lock": func(s *takeSite, dir string) error {
			return within(dir, func(d string) error { return os.WriteFile(d+"/lock", []byte("mine"), 0o600) })
		},
		"an empty lock": func(s *takeSite, dir string) error { return os.Truncate(dir+"/lock", 0) },
		"no lock": func(s *takeSite, dir string) error {
			return within(dir, func(d string) error { return os.Remove(d + "/lock") })
		},
		"a lock that leads away": func(s *takeSite, dir string) error {
			return within(dir, func(d string) error {
				return errors.Join(os.Rename(d+"/lock", s.dir+"/lock"), os.Symlink(s.dir+"/lock", d+"/lock"))
			})
		},
		"its lock beside it": func(s *takeSite, dir string) error {
			return within(dir, func(d string) error { return os.Rename(d+"/lock", d+".lock") })
		},
		"a foreign file": func(s *takeSite, dir string) error {
			return within(dir+"/tree/a", func(d string) error { return os.WriteFile(d+"/new", nil, 0o400) })
		},
		"a foreign tree": func(s *takeSite, dir string) error {
			return within(dir, func(d string) error {
				return errors.Join(move(d+"/tree", s.dir+"/tree"), os.MkdirAll(d+"/tree/a/b/c", 0o700))
			})
		},
		"a tree that is a link": func(s *takeSite, dir string) error {
			return within(dir, func(d string) error {
				return errors.Join(move(d+"/tree", s.dir+"/tree"), os.Symlink(s.dir+"/tree", d+"/tree"))
			})
		},
		"something beside": func(s *takeSite, dir string) error {
			return within(dir, func(d string) error { return os.Mkdir(d+"/more", 0o700) })
		},
		"open to all":      func(s *takeSite, dir string) error { return os.Chmod(dir, 0o755) },
		"another manifest": func(s *takeSite, dir string) error { return rewrite(dir+"/manifest.mtree", "#mtree\n") },
		"no manifest": func(s *takeSite, dir string) error {
			return within(dir, func(d string) error { return os.Remove(d + "/manifest.mtree") })
		},
		"unfinished and more": func(s *takeSite, dir string) error {
			return errors.Join(os.Chmod(dir, 0o700), move(dir+"/tree", dir+"/mine"))
		},
	} {
		for _, word := range []string{detached, magic} {
			s := newTakeSite(t, "a/f=x", "b=y")
			dir, _ := s.detached(t, nil, "a", "b")
			require.NoError(t, os.WriteFile(dir+"/lock", []byte(word), 0o600))
			require.NoError(t, change(s, dir))
			before := fstest.Read(t, s.dir)
			assert.Error(t, snapshot.RemoveSnapshot(t.Context(), dir), name)
			assert.Equal(t, before, fstest.Read(t, s.dir), name)
			if word == magic && !slices.Contains([]string{"another name", "a link to it", "a linked lock", "another lock", "no lock", "a lock that leads away", "its lock beside it", "open to all", "an empty lock"}, name) {
				continue // with the lock of a crashed call whatever else is in it goes
			}
			assert.Empty(t, sweep(t, s.parent), name)
			assert.Equal(t, before, fstest.Read(t, s.dir), name)
		}
	}
}

// TestTakesAndSweepsAtOnce: nobody's snapshot goes while he uses it, and in the end nothing is left.
func TestTakesAndSweepsAtOnce(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "a/f=x", "a/d/g=y", "b 0755=z")
	done := make(chan struct{})
	var sweepers, takers sync.WaitGroup
	for range 2 {
		sweepers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				_, err := snapshot.Sweep(context.Background(), s.parent)
				if !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	for i := range 4 {
		takers.Go(func() {
			for k := range stressTries(t, 15, 100, 250) {
				opts := &snapshot.TakeOptions{Options: *balanced(t, nil, snapshot.Seam{})}
				snap, err := s.take(t, opts, "a", "b")
				if !assert.NoError(t, err) {
					return
				}
				o, err := snapshot.OpenSnapshot(t.Context(), snap.Dir(), snap.Manifest().Digest())
				if assert.NoError(t, err) {
					assert.NoError(t, o.Verify(t.Context()))
				}
				switch (i + k) % 3 {
				case 0:
					assert.NoError(t, o.Close())
					assert.NoError(t, snap.Close())
				case 1:
					assert.NoError(t, snap.Detach())
					assert.NoError(t, snap.Close())
					assert.NoError(t, o.Verify(t.Context()))
					assert.NoError(t, o.Close())
					again, err := snapshot.OpenSnapshot(t.Context(), snap.Dir(), snap.Manifest().Digest())
					if assert.NoError(t, err) {
						assert.NoError(t, again.Close())
					}
					assert.NoError(t, removeSoon(t, snap.Dir()))
				case 2:
					assert.NoError(t, snap.Close())
					assert.NoError(t, o.Close())
				}
			}
		})
	}
	takers.Wait()
	close(done)
	sweepers.Wait()
	sweep(t, s.parent)
	fstest.Nothing(t, s.parent)
}

// TestTakeCanceledAnywhere before any of its calls: nothing is left, and the cause is what is said.
func TestTakeCanceledAnywhere(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "a/d/f=x", "a/l => ../b/g", "b/g=y", "tool 0755=#!")
	fstest.Settle(t, s.src)
	cause := errors.New("the cause")
	canceled := 0
	for step := int64(1); ; step++ {
		ctx, cancel := context.WithCancelCause(t.Context())
		var calls atomic.Int64
		opts := snapshot.WithSeam(&snapshot.Options{Workers: 2}, snapshot.Seam{
			At: func(string, string) error {
				if calls.Add(1) == step {
					cancel(cause)
				}
				return nil
			},
			Finished: func(open, _ int64) { assert.Zero(t, open, "step %d", step) },
		})
		snap, err := snapshot.Take(ctx, []snapshot.Root{{Path: s.src + "/a"}, {Path: s.src + "/b"}, {Path: s.src + "/tool"}}, &snapshot.TakeOptions{
			Options: *opts, Parent: s.parent, Aliases: []snapshot.Alias{{Name: "a/m/k", Target: "b"}},
		})
		if err == nil {
			if ctx.Err() == nil || calls.Load() < step {
				require.NoError(t, snap.Close())
				break
			}
			assert.NoError(t, snap.Verify(t.Context()), "it came too late, step %d", step)
			assert.NoError(t, snap.Close())
		} else {
			canceled++
			assert.ErrorIs(t, err, cause, "step %d", step)
		}
		cancel(nil)
		if !fstest.Nothing(t, s.parent) {
			return
		}
	}
	assert.Greater(t, canceled, 50)
	fstest.Nothing(t, s.parent)
}

// TestTakeParents: where a snapshot may lie.
func TestTakeParents(t *testing.T) {
	t.Parallel()
	root := os.Geteuid() == 0
	for name, tt := range map[string]struct {
		change func(s *takeSite) error
		parent string
		root   bool
		err    error
	}{
		"a link to it":      {func(s *takeSite) error { return os.Symlink("parent", s.dir+"/link") }, "link", false, nil},
		"dots":              {nil, "parent/../parent/.", false, nil},
		"slash":             {nil, "parent/", false, nil},
		"none":              {nil, "none", false, fs.ErrNotExist},
		"a file":            {nil, "src/f", false, syscall.ENOTDIR},
		"writable by all":   {func(s *takeSite) error { return os.Chmod(s.parent, 0o777) }, "parent", false, snapshot.ErrUntrusted},
		"writable by group": {func(s *takeSite) error { return os.Chmod(s.parent, 0o770) }, "parent", false, snapshot.ErrUntrusted},
		"sticky":            {func(s *takeSite) error { return os.Chmod(s.parent, fs.ModeSticky|0o777) }, "parent", false, nil},
		"sticky, a stranger": {func(s *takeSite) error {
			return errors.Join(os.Chmod(s.parent, fs.ModeSticky|0o777), os.Chown(s.parent, nobody, nobody))
		}, "parent", true, snapshot.ErrUntrusted},
		"a stranger's": {func(s *takeSite) error { return os.Chown(s.parent, nobody, nobody) }, "parent", true, snapshot.ErrUntrusted},
	} {
		if tt.root && !root {
			t.Log(name, "needs root")
			continue
		}
		s := newTakeSite(t, "f=x")
		if tt.change != nil {
			require.NoError(t, tt.change(s), name)
		}
		snap, err := snapshot.Take(t.Context(), []snapshot.Root{{Path: s.src}}, &snapshot.TakeOptions{
			Options: *balanced(t, nil, snapshot.Seam{}), Parent: s.dir + "/" + tt.parent,
		})
		if tt.err != nil {
			assert.ErrorIs(t, err, tt.err, name)
		} else if assert.NoError(t, err, name) {
			assert.Equal(t, resolved(t, s.parent), filepath.Dir(snap.Dir()), name)
			assert.NoError(t, snap.Close(), name)
		}
		fstest.Nothing(t, s.parent)
	}
}

// TestNamesOfRoots: any bytes that are one component.
func TestNamesOfRoots(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "f=x", "d/g=y")
	names := []string{"a\nb", "\xff", " ", "-x", "tree", "lock", "manifest.mtree", "fence", "..a", "a b#=", `\`, strings.Repeat("n", 255)}
	var roots []snapshot.Root
	for i, name := range names {
		roots = append(roots, snapshot.Root{Name: name, Path: []string{s.src + "/f", s.src + "/d"}[i%2]})
	}
	snap, err := snapshot.Take(t.Context(), roots, &snapshot.TakeOptions{Parent: s.parent})
	require.NoError(t, err)
	require.NoError(t, snap.Detach())
	require.NoError(t, snap.Close())
	o, err := snapshot.OpenSnapshot(t.Context(), snap.Dir(), snap.Manifest().Digest())
	require.NoError(t, err)
	assert.NoError(t, o.Verify(t.Context()))
	for i, name := range names {
		path, ok := o.Path(name)
		require.True(t, ok, "%q", name)
		inside := name
		if i%2 == 1 {
			path, inside = path+"/g", name+"/g"
		}
		want, err := os.ReadFile(path)
		assert.NoError(t, err, "%q", name)
		f, err := o.Open(t.Context(), inside)
		if assert.NoError(t, err, "%q", name) {
			got, err := io.ReadAll(f)
			assert.NoError(t, err)
			assert.Equal(t, want, got)
			assert.NoError(t, f.Close())
		}
	}
	for _, name := range []string{"", ".", "..", "tree/g", "none", "../lock", "lock/.", "a"} {
		_, ok := o.Path(name)
		assert.False(t, ok, "%q", name)
	}
	for name, want := range map[string]error{"": fs.ErrNotExist, ".": snapshot.ErrNotRegular, "..": fs.ErrNotExist, "../lock": fs.ErrNotExist, "/": fs.ErrNotExist, "-x": snapshot.ErrNotRegular, " /g": fs.ErrNotExist, "-x/": fs.ErrNotExist} {
		_, err := o.Open(t.Context(), name)
		assert.ErrorIs(t, err, want, "%q", name)
	}
	require.NoError(t, o.Close())
	require.NoError(t, removeSoon(t, snap.Dir()))
	_, err = snapshot.Take(t.Context(), []snapshot.Root{{Name: strings.Repeat("n", 256), Path: s.src}}, &snapshot.TakeOptions{Parent: s.parent})
	assert.ErrorIs(t, err, syscall.ENAMETOOLONG)
	_, err = snapshot.Take(t.Context(), []snapshot.Root{{Name: strings.Repeat("n", 256), Path: s.src + "/f"}}, &snapshot.TakeOptions{Parent: s.parent})
	assert.ErrorIs(t, err, syscall.ENAMETOOLONG)
	fstest.Nothing(t, s.parent)
}

// TestNoSnapshotWithAnError: what fails gives none, also where the last step fails.
func TestNoSnapshotWithAnError(t *testing.T) {
	t.Parallel()
	s := newTakeSite(t, "a/f=x")
	dir, digest := s.detached(t, nil, "a")
	for step := int64(1); ; step++ {
		var calls atomic.Int64
		snap, err := snapshot.OpenSnapshotWith(t.Context(), dir, digest, snapshot.Seam{At: func(call, _ string) error {
			if call != "Close" && calls.Add(1) == step {
				return unix.EIO
			}
			return nil
		}})
		if err == nil {
			require.NoError(t, snap.Close())
			if calls.Load() < step {
				return
			}
			continue
		}
		assert.Nil(t, snap, "step %d: %v", step, err)
	}
}
