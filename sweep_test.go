//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// magic is what a staging directory's lock holds, also in those that older versions left.
const magic = "holdstill staging 1\n"

// stagingName is a name as a staging directory has it.
func stagingName(c string) string { return ".holdstill-" + strings.Repeat(c, 26) }

func sweep(t testing.TB, parent string) []string {
	t.Helper()
	removed, err := snapshot.Sweep(t.Context(), parent)
	require.NoError(t, err)
	for i := range removed {
		removed[i] = strings.TrimPrefix(removed[i], parent+"/")
	}
	return removed
}

// TestKilledCopies: what a killed process leaves is unfinished or whole, and goes with a sweep.
func TestKilledCopies(t *testing.T) {
	t.Parallel()
	const variable = "HOLDSTILL_TEST_KILLED"
	if at, dir, ok := strings.Cut(os.Getenv(variable), " "); ok {
		stop := once(strings.TrimPrefix(at, "file:"), func() {
			fmt.Println("here")
			time.Sleep(time.Hour) // a timer: without one the runtime would call it a deadlock
		})
		published := false // files are unlinked before, too, when they are read again
		opts := snapshot.WithSeam(&snapshot.Options{Workers: 1}, snapshot.Seam{
			At: func(call, name string) error {
				if call == "Unlink" && !published {
					return nil
				}
				return stop(call, name)
			},
			Phase: func(phase string) {
				published = published || phase == "published"
				_ = stop(phase, "")
			},
			Lacks: snapshot.NoNameless,
		})
		if strings.HasPrefix(at, "file:") {
			_, err := snapshot.CopyFile(t.Context(), dir+"/parent/dst", dir+"/src/d/big", opts)
			require.NoError(t, err)
		}
		_, err := snapshot.CopyDir(t.Context(), dir+"/parent/dst", dir+"/src", opts)
		require.NoError(t, err)
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	for _, at := range []string{
		"Create", "LockShared", "Write", "Symlink", "ChmodAt", "joined", "reported", "RenameNoReplace", "published", "Unlink", "Rmdir",
		"file:Create", "file:Read", "file:RenameNoReplace",
	} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			dir := fstest.TempDir(t)
			fstest.Make(t, dir, "src/a=x", "src/d/big=@300KiB", "src/d/e/l => ../big", "parent/mine=m")
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestKilledCopies$", "-test.count=1")
			cmd.Env = append(os.Environ(), variable+"="+at+" "+dir)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "here\n", line)
			parent := filepath.Join(dir, "parent")
			if at != "Create" && at != "file:Create" && at != "LockShared" && at != "Rmdir" { // without a lock it may go at any time
				assert.Empty(t, sweep(t, parent), "while it is at work")
			}
			require.NoError(t, cmd.Process.Kill())
			assert.Error(t, cmd.Wait())

			names := namesIn(t, parent)
			leftovers := slices.DeleteFunc(names, func(name string) bool { return name == "mine" || name == "dst" })
			require.Len(t, leftovers, 1)
			assert.Equal(t, leftovers, sweep(t, parent))
			if slices.Contains([]string{"published", "Unlink", "Rmdir"}, at) {
				fstest.Nothing(t, parent, "mine", "dst")
				fstest.Equal(t, filepath.Join(dir, "src"), filepath.Join(parent, "dst"))
			} else {
				fstest.Nothing(t, parent, "mine")
				_, err = copyTree(t, filepath.Join(parent, "dst"), filepath.Join(dir, "src"), nil)
				assert.NoError(t, err, "the next run works")
			}
			assert.Empty(t, sweep(t, parent))
		})
	}
}

// TestSweepRemoves what is certainly a leftover.
func TestSweepRemoves(t *testing.T) {
	t.Parallel()
	s := stagingName("a")
	for name, lines := range map[string][]string{
		"no lock yet":            {s + "/ 0700"},
		"lock without a word":    {s + "/lock=", s + "/ 0700"},
		"nothing but a lock":     {s + "/lock=" + magic, s + "/ 0700"},
		"a file":                 {s + "/lock=" + magic, s + "/file=half", s + "/ 0700"},
		"a tree":                 {s + "/lock=" + magic, s + "/tree/a 0400=x", s + "/tree/d/b 0400=y", s + "/tree/l => /etc", s + "/tree/d/ 0700", s + "/ 0700"},
		"a sealed tree":          {s + "/lock=" + magic, s + "/tree/d/b 0400=y", s + "/tree/d/ 0500", s + "/tree/ 0500", s + "/ 0700"},
		"a tree closed to us":    {s + "/lock=" + magic, s + "/tree/d/e/b=y", s + "/tree/d/e/ 0000", s + "/tree/d/ 0000", s + "/tree/ 0000", s + "/ 0700"},
		"whatever else is in it": {s + "/lock=" + magic, s + "/tree/p|", s + "/other/x=1", s + "/ 0700"},
	} {
		dir := fstest.TempDir(t)
		fstest.Make(t, dir, append(lines, "kept/f=x")...)
		assert.Equal(t, []string{s}, sweep(t, dir), name)
		fstest.Nothing(t, dir, "kept")
	}
	dir := fstest.TempDir(t)
	deepTree(t, dir+"/"+s+"/tree", 300, "f=bottom")
	fstest.Make(t, dir, s+"/lock="+magic, s+"/ 0700", stagingName("b")+"/ 0700", stagingName("2")+"/ 0700")
	assert.Equal(t, []string{stagingName("2"), s, stagingName("b")}, sweep(t, dir), "in order")
	fstest.Nothing(t, dir)
}

// TestSweepLeavesAlone what only looks like a leftover.
func TestSweepLeavesAlone(t *testing.T) {
	t.Parallel()
	s := stagingName("a")
	tree := []string{s + "/lock=" + magic, s + "/tree/f=x", s + "/ 0700"}
	for name, tt := range map[string]struct {
		lines  []string
		change func(t *testing.T, dir string) error
	}{
		"a link":                        {[]string{"other/lock=" + magic, "other/ 0700", s + " => other"}, nil},
		"a file":                        {[]string{s + "=" + magic}, nil},
		"a shorter name":                {[]string{".holdstill-aaaa/lock=" + magic, ".holdstill-aaaa/ 0700"}, nil},
		"a name with other letters":     {[]string{".holdstill-" + strings.Repeat("A", 26) + "/ 0700", ".holdstill-" + strings.Repeat("1", 26) + "/ 0700"}, nil},
		"another prefix":                {[]string{"holdstill-" + strings.Repeat("a", 26) + "/ 0700"}, nil},
		"another mode":                  {[]string{s + "/lock=" + magic, s + "/ 0755"}, nil},
		"no lock, but files":            {[]string{s + "/tree/f=x", s + "/ 0700"}, nil},
		"a lock with another text":      {[]string{s + "/lock=" + magic + "x", s + "/tree/f=x", s + "/ 0700"}, nil},
		"an empty lock, but files":      {[]string{s + "/lock=", s + "/tree/f=x", s + "/ 0700"}, nil},
		"a lock with a word too little": {[]string{s + "/lock=holdstill", s + "/ 0700"}, nil},
		"a lock that is a link":         {[]string{"lock=" + magic, s + "/lock => ../lock", s + "/tree/f=x", s + "/ 0700"}, nil},
		"a lock that is a directory":    {[]string{s + "/lock/", s + "/tree/f=x", s + "/ 0700"}, nil},
		"a lock that is a FIFO":         {[]string{s + "/lock|", s + "/tree/f=x", s + "/ 0700"}, nil},
		"a lock with two names": {tree, func(_ *testing.T, dir string) error {
			return os.Link(dir+"/"+s+"/lock", dir+"/lock")
		}},
		"a lock that somebody holds": {tree, func(t *testing.T, dir string) error {
			f, err := os.Open(dir + "/" + s + "/lock")
			if err == nil {
				t.Cleanup(func() { f.Close() })
				err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH)
			}
			return err
		}},
		"another user's":      {tree, func(_ *testing.T, dir string) error { return os.Chown(dir+"/"+s, 65534, 65534) }},
		"another user's lock": {tree, func(_ *testing.T, dir string) error { return os.Chown(dir+"/"+s+"/lock", 65534, 65534) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.HasPrefix(name, "another user") {
				fstest.NeedRoot(t)
			}
			dir := fstest.TempDir(t)
			fstest.Make(t, dir, tt.lines...)
			if tt.change != nil {
				require.NoError(t, tt.change(t, dir))
			}
			before := fstest.Read(t, dir)
			assert.Empty(t, sweep(t, dir))
			assert.Equal(t, before, fstest.Read(t, dir))
		})
	}
}

func TestSweepLeavesTheLivingAlone(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/f=x", "src/d/g=y")
	dst := filepath.Join(dir, "dst")
	var swept []string
	locked := false
	seam := snapshot.Seam{Lacks: snapshot.NoNameless, At: func(call, _ string) error {
		if locked {
			swept = append(swept, sweep(t, dir)...)
		}
		switch call {
		case "LockShared": // made and not yet locked it may go: the copy makes another one
			locked = true
		case "RenameNoReplace": // and then what is left is empty
			locked = false
		}
		return nil
	}}
	_, err := copyTreeWith(t.Context(), t, dst, filepath.Join(dir, "src"), &snapshot.Options{Workers: 1}, seam)
	require.NoError(t, err)
	_, err = copyOne(t, dst+"f", filepath.Join(dir, "src/f"), nil, seam)
	require.NoError(t, err)
	assert.Empty(t, swept)
}

func TestSweepRefusesExposedParents(t *testing.T) {
	t.Parallel()
	s := stagingName("a")
	for mode, ok := range map[fs.FileMode]bool{
		0o700: true, 0o755: true, 0o775: false, 0o757: false, 0o777: false, fs.ModeSticky | 0o777: true, fs.ModeSticky | 0o775: true,
	} {
		dir := fstest.TempDir(t)
		fstest.Make(t, dir, s+"/ 0700")
		require.NoError(t, os.Chmod(dir, mode))
		removed, err := snapshot.Sweep(t.Context(), dir)
		if ok {
			require.NoError(t, err, "%v", mode)
			assert.Equal(t, []string{filepath.Join(dir, s)}, removed, "%v", mode)
			continue
		}
		trust, is := errors.AsType[*snapshot.TrustError](err)
		require.True(t, is, "%v: %v", mode, err)
		assert.ErrorIs(t, err, snapshot.ErrUntrusted)
		assert.Equal(t, dir, trust.Path)
		assert.Equal(t, mode.Perm(), trust.Mode.Perm())
		assert.NotEmpty(t, trust.Owner)
		assert.Contains(t, trust.Fix, dir)
		assert.Empty(t, removed)
		fstest.Nothing(t, dir, s)
	}
}

func TestSweepOfWhatIsNoDirectory(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "f=x", "d/"+stagingName("a")+"/ 0700", "link => d")
	for parent, want := range map[string]error{
		"": fs.ErrNotExist, dir + "/none": fs.ErrNotExist, dir + "/f": syscall.ENOTDIR, dir + "/f/": syscall.ENOTDIR,
	} {
		removed, err := snapshot.Sweep(t.Context(), parent)
		assert.ErrorIs(t, err, want, "Sweep(%q)", parent)
		assert.Empty(t, removed)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the cause")
	cancel(cause)
	_, err := snapshot.Sweep(ctx, dir+"/d")
	assert.ErrorIs(t, err, cause)
	fstest.Nothing(t, dir+"/d", stagingName("a"))
	assert.Len(t, sweep(t, dir+"/link/"), 1, "a link to the parent is followed")
	fstest.Nothing(t, dir+"/d")
}

// TestSweepsAndCopiesAtOnce: none takes from another what it uses.
func TestSweepsAndCopiesAtOnce(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/f=x", "src/d/l => ../f", "parent/")
	parent := filepath.Join(dir, "parent")
	done := make(chan struct{})
	var sweepers, copiers sync.WaitGroup
	for range 2 {
		sweepers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := snapshot.Sweep(t.Context(), parent); !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	for i := range 2 {
		copiers.Go(func() {
			for k := range 50 {
				dst := fmt.Sprintf("%s/%d-%d", parent, i, k)
				if k%2 == 0 {
					_, err := snapshot.CopyDir(t.Context(), dst, dir+"/src", balanced(t, nil, snapshot.Seam{}))
					assert.NoError(t, err)
				} else {
					_, err := snapshot.CopyFile(t.Context(), dst, dir+"/src/f", balanced(t, nil, snapshot.Seam{Lacks: snapshot.NoNameless}))
					assert.NoError(t, err)
				}
			}
		})
	}
	copiers.Wait()
	close(done)
	sweepers.Wait()
	assert.Len(t, namesIn(t, parent), 100)
}
