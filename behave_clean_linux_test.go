// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// TestCleanUpEntersNothingElse: while a failed copy is removed, a directory of it is exchanged with what leads to somebody's
// files, before each call in turn. They stay whole.
func TestCleanUpEntersNothingElse(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string][]string{
		"a link":      {"victim/d/precious=x", "trap => ../victim"},
		"a directory": {"trap/d/precious=x", "trap/e/precious=y"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for step := 1; ; step++ {
				s := newSite(t, "", "d/a=x", "e/b=y", "e/d/c=z")
				fstest.Make(t, s.dir, lines...)
				precious := fstest.Read(t, s.dir)
				failed, calls, sprung := false, 0, false
				trap := func(call, name string) error {
					if call == "RenameNoReplace" {
						failed = true
						return syscall.EIO
					}
					// A name that was not looked at yet is nobody's: what an engine made has no mark by which it could tell.
					if !failed || sprung || call == "StatAt" && name == "e" {
						return nil
					}
					if calls++; calls == step {
						sprung = true
						trees, err := filepath.Glob(filepath.Dir(s.dst) + "/.holdstill-*/tree/e")
						assert.NoError(t, err)
						for _, e := range trees {
							_ = os.Chmod(filepath.Dir(e), 0o700)
							_ = os.Chmod(e, 0o700) // who moves a directory elsewhere changes it
							assert.NoError(t, unix.Renameat2(unix.AT_FDCWD, e, unix.AT_FDCWD, s.dir+"/trap", unix.RENAME_EXCHANGE))
						}
					}
					return nil
				}
				seen := false
				_, err := snapshot.CopyDir(t.Context(), s.dst, s.src, balanced(t, &snapshot.Options{Workers: 1}, snapshot.Seam{At: func(call, at string) error {
					if name == "a directory" && failed && call == "OpenDir" && at == "e" {
						seen = true // it was looked at
					}
					if name == "a directory" && failed && !seen {
						return nil
					}
					return trap(call, at)
				}}))
				assert.ErrorIs(t, err, syscall.EIO)
				if !sprung {
					require.Greater(t, step, 2)
					return
				}
				now := fstest.Read(t, s.dir)
				for path, entry := range precious {
					if !strings.HasPrefix(path, "out") && !strings.HasPrefix(path, "trap") {
						assert.Equal(t, entry, now[path], "%s, at step %d: %v", path, step, err)
					}
				}
				if name == "a directory" {
					whole := 0
					for path := range now {
						if strings.HasSuffix(path, "/precious") {
							whole++
						}
					}
					assert.Equal(t, 2, whole, "precious files, at step %d: %v, %v", step, err, now)
				}
			}
		})
	}
}

// TestSweepBesideALink: an adversary exchanges a directory in a leftover with a link to somebody's files as fast as it can while
// the leftover is swept.
func TestSweepBesideALink(t *testing.T) {
	t.Parallel()
	const letters = "abcdefghijklmnop"
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "victim/precious=x", "victim/d/precious=y", "parent/", "side/")
	for _, c := range letters {
		name := stagingName(string(c))
		fstest.Make(t, dir, "parent/"+name+"/lock="+magic, "parent/"+name+"/tree/e/d/f=x", "parent/"+name+"/tree/e/g=y", "parent/"+name+"/ 0700")
	}
	victim := fstest.Read(t, dir+"/victim")
	stop := make(chan struct{})
	var adversaries sync.WaitGroup
	for range 2 {
		adversaries.Go(func() {
			link, err := os.MkdirTemp(dir+"/side", "*")
			assert.NoError(t, err)
			assert.NoError(t, os.Symlink(dir+"/victim", link+"/l"))
			for {
				for _, c := range letters {
					select {
					case <-stop:
						return
					default:
						_ = unix.Renameat2(unix.AT_FDCWD, dir+"/parent/"+stagingName(string(c))+"/tree/e", unix.AT_FDCWD, link+"/l", unix.RENAME_EXCHANGE)
					}
				}
			}
		})
	}
	for range 20 {
		if _, err := snapshot.Sweep(t.Context(), dir+"/parent"); err != nil {
			assert.ErrorIs(t, err, snapshot.ErrLeftover)
		}
	}
	close(stop)
	adversaries.Wait()
	assert.Equal(t, victim, fstest.Read(t, dir+"/victim"))
	_, err := snapshot.Sweep(t.Context(), dir+"/parent")
	assert.NoError(t, err)
	fstest.Nothing(t, dir+"/parent")
}

// TestPrivateFromBirth: until it is published nobody else gets at a copy, whatever the umask, and no name of it can be guessed.
// Not parallel: the umask is the process's.
func TestPrivateFromBirth(t *testing.T) {
	for _, umask := range []int{0, 0o022, 0o077} {
		for _, lacks := range []snapshot.Fallback{0, snapshot.NoNameless | snapshot.NoRenameNoReplace} {
			s := newSite(t, "", "a 0666=x", "run 0777=y", "d/ 0777", "d/b=@300KiB")
			parent := filepath.Dir(s.dst)
			names := map[string]bool{}
			look := func() error {
				entries, err := os.ReadDir(parent)
				assert.NoError(t, err)
				for _, e := range entries {
					name := e.Name()
					names[name] = true
					if name == "dst" || name == "dstf" {
						continue
					}
					fi, err := os.Lstat(filepath.Join(parent, name))
					if errors.Is(err, fs.ErrNotExist) {
						continue
					}
					assert.NoError(t, err)
					assert.Equal(t, fs.ModeDir|0o700, fi.Mode(), "%s, umask %04o", name, umask)
					assert.Regexp(t, `^\.holdstill-[a-z2-7]{26}$`, name)
				}
				return nil
			}
			old := syscall.Umask(umask)
			opts := &snapshot.Options{Workers: 1, PreserveMode: true}
			_, err := copyTreeWith(t.Context(), t, s.dst, s.src, opts, snapshot.Seam{Lacks: lacks, At: func(string, string) error { return look() }})
			_, fileErr := copyOne(t, s.dst+"f", s.src+"/run", opts, snapshot.Seam{Lacks: lacks, At: func(string, string) error { return look() }})
			syscall.Umask(old)
			require.NoError(t, errors.Join(err, fileErr))
			assert.Equal(t, fstest.Read(t, s.src), fstest.Read(t, s.dst))
			staged := len(names) - 1
			if names["dstf"] {
				staged--
			}
			assert.GreaterOrEqual(t, staged, 1)
		}
	}
}

// TestPlantedNames: names that somebody planted in the parent hold up nothing and are not touched.
func TestPlantedNames(t *testing.T) {
	t.Parallel()
	for _, lacks := range []snapshot.Fallback{0, snapshot.NoNameless, snapshot.NoNameless | snapshot.NoRenameNoReplace} {
		s := newSite(t, "", "f=x", "d/g=y")
		fstest.Make(t, s.dir, "victim/precious=x", "out/.holdstill => ../victim", "out/dst.tmp => ../victim/precious", "out/.dst.new => ../victim/precious",
			"out/"+stagingName("a")+" => ../victim", "out/"+stagingName("b")+"=file", "out/"+stagingName("c")+"/lock => ../../victim/precious", "out/"+stagingName("c")+"/ 0700")
		before := fstest.Read(t, s.dir)
		_, err := copyTreeWith(t.Context(), t, s.dst, s.src, nil, snapshot.Seam{Lacks: lacks})
		require.NoError(t, err)
		_, err = copyOne(t, s.dst+"f", s.src+"/f", nil, snapshot.Seam{Lacks: lacks})
		require.NoError(t, err)
		fstest.Equal(t, s.src, s.dst)
		now := fstest.Read(t, s.dir)
		for path, entry := range before {
			assert.Equal(t, entry, now[path], path)
		}
	}
}
