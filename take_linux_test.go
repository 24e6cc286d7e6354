// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// TestTakeFileSystems: roots may lie anywhere; of all together that is proven which is proven of the least.
func TestTakeFileSystems(t *testing.T) {
	t.Parallel()
	for _, kinds := range [][]string{{"ext4"}, {"xfs"}, {"btrfs"}, {"tmpfs"}, {"ext4", "xfs", "btrfs", "tmpfs"}} {
		t.Run(strings.Join(kinds, " "), func(t *testing.T) {
			t.Parallel()
			dir, parent := sourcesIn(t, "here/a=here")
			roots, want := rootsAt(dir, "here"), map[string]string{".": "dir", "here": "dir", "here/a": `file "here"`}
			for _, kind := range kinds {
				other := fstest.Dir(t, kind)
				fstest.Make(t, other, kind+"/a="+kind, kind+"/across => "+dir+"/here/a")
				roots = append(roots, snapshot.Root{Path: other + "/" + kind})
				want[kind], want[kind+"/a"], want[kind+"/across"] = "dir", fmt.Sprintf("file %q", kind), "link ../here/a"
			}
			fstest.Settle(t, dir)
			s, err := take(t, parent, nil, roots...)
			require.NoError(t, err)
			assert.Equal(t, want, fstest.Contents(t, treeOf(s)))
			assert.NoError(t, s.Verify(t.Context()))
			assert.NotEqual(t, snapshot.InstantNone, s.Report().Instant)
			if slices.Contains(kinds, "tmpfs") {
				assert.Equal(t, snapshot.InstantWrites, s.Report().Instant)
			}
		})
	}
}

// TestTakeMounts: a root may be a mount; what is mounted inside one is not a part of it.
func TestTakeMounts(t *testing.T) {
	fstest.NeedRoot(t)
	dir, parent := sourcesIn(t, "src/d/", "other/a=another", "lib/x=1")
	fstest.Bind(t, dir+"/other", dir+"/src/d")
	s, err := take(t, parent, nil, rootsAt(dir, "src/d", "lib")...)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{".": "dir", "d": "dir", "d/a": `file "another"`, "lib": "dir", "lib/x": `file "1"`}, fstest.Contents(t, treeOf(s)))
	_, err = take(t, parent, nil, rootsAt(dir, "lib", "src")...)
	assert.ErrorIs(t, err, snapshot.ErrEscapes)
	_, err = take(t, parent, &snapshot.TakeOptions{Options: snapshot.Options{CrossMounts: true}}, rootsAt(dir, "lib", "src")...)
	assert.NoError(t, err)
}

// TestTakeRunningExecutable: a process hands on the program that it runs, by the handle that it runs from, although another
// one has the name by now.
func TestTakeRunningExecutable(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t)
	name := filepath.Join(dir, "prog")
	for _, program := range []string{"/bin/sleep", "/bin/false"} {
		b, err := os.ReadFile(program)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(name+".new", b, 0o755))
		if program == "/bin/sleep" {
			require.NoError(t, os.Rename(name+".new", name))
		}
	}
	running := exec.CommandContext(t.Context(), name, "600")
	require.NoError(t, running.Start())
	defer func() {
		_ = running.Process.Kill()
		_ = running.Wait()
	}()
	exe, err := os.Open(fmt.Sprintf("/proc/%d/exe", running.Process.Pid))
	require.NoError(t, err)
	defer exe.Close()
	require.NoError(t, os.Rename(name+".new", name))

	s, err := take(t, parent, nil, snapshot.Root{Name: "self", File: exe}, snapshot.Root{Path: name})
	require.NoError(t, err)
	assert.Equal(t, digestOf(t, "/bin/sleep"), digestOf(t, treeOf(s)+"/self"))
	assert.Equal(t, digestOf(t, "/bin/false"), digestOf(t, treeOf(s)+"/prog"))
	assert.NoError(t, exec.CommandContext(t.Context(), treeOf(s)+"/self", "0").Run())
	assert.Error(t, exec.CommandContext(t.Context(), treeOf(s)+"/prog").Run())
	assert.NoError(t, running.Process.Signal(syscall.Signal(0)), "it runs on")
}

// TestTakeFence: Take does not return before a fork of this process has let go of what it could write to. The fork is stood
// for by a duplicate of the descriptor that it would have.
func TestTakeFence(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "tool 0755=#!", "src/a=1")
	for _, goes := range []bool{true, false} {
		forked, locks := -1, 0
		seam := snapshot.Seam{
			Phase: func(phase string) {
				if phase == "joined" && forked < 0 {
					forked = dupOfFence(t, parent)
				}
			},
			At: func(call, _ string) error {
				if call == "Lock" {
					locks++
				}
				if call == "Lock" && locks == 4 && goes {
					assert.NoError(t, unix.Close(forked))
				}
				return nil
			},
		}
		s, err := takeWith(t.Context(), t, parent, &snapshot.TakeOptions{Options: snapshot.Options{Stall: 50 * time.Millisecond}}, seam, rootsAt(dir, "tool", "src")...)
		if goes {
			require.NoError(t, err)
			assert.Equal(t, 4, locks)
			assert.NoFileExists(t, s.Dir()+"/fence")
			require.NoError(t, s.Close())
		} else {
			assert.ErrorIs(t, err, snapshot.ErrBusy)
			assert.Greater(t, locks, 4)
			assert.NoError(t, unix.Close(forked))
		}
		fstest.Nothing(t, parent)
	}
}

// dupOfFence duplicates what this process has open in parent under the name of a fence.
func dupOfFence(t *testing.T, parent string) int {
	entries, err := os.ReadDir("/proc/self/fd")
	assert.NoError(t, err)
	for _, e := range entries {
		var fd int
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || !strings.HasPrefix(target, parent+"/") || !strings.HasSuffix(target, "/fence") {
			continue
		}
		_, err = fmt.Sscan(e.Name(), &fd)
		assert.NoError(t, err)
		fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		assert.NoError(t, err)
		return fd
	}
	assert.Fail(t, "no fence")
	return -1
}

// takeChild is what the tests below run in a process of its own: its arguments come in a variable.
const takeChild = "HOLDSTILL_TEST_TAKE"

// child runs this test binary again, with the one test and arguments in the variable takeChild.
func child(t *testing.T, test string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+test+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), takeChild+"="+strings.Join(args, "\n"))
	return cmd
}

// TestHandOff: another process that is told directory and digest alone opens the snapshot, verifies it, and uses it.
func TestHandOff(t *testing.T) {
	t.Parallel()
	if args, ok := os.LookupEnv(takeChild); ok {
		dir, digest, _ := strings.Cut(args, "\n")
		useSnapshot(t, dir, digest)
		return
	}
	dir, parent := sourcesIn(t, "app/run 0755=#!/bin/sh\ncat \"${0%/*}/lib/text\"\n", "lib/text=read beside it")
	s, err := take(t, parent, &snapshot.TakeOptions{Aliases: []snapshot.Alias{{Name: "app/lib", Target: "lib"}}}, rootsAt(dir, "app", "lib")...)
	require.NoError(t, err)
	digest := s.Manifest().Digest()
	out, err := child(t, "TestHandOff", s.Dir(), digest.String()).CombinedOutput()
	assert.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "read beside it")
	digest[0] ^= 1
	out, err = child(t, "TestHandOff", s.Dir(), digest.String()).CombinedOutput()
	assert.Error(t, err, "with another digest")
	assert.Contains(t, string(out), "does not match")
	assert.NoError(t, s.Verify(t.Context()), "it is still the parent's")
}

func useSnapshot(t *testing.T, dir, digest string) {
	want, err := snapshot.ParseDigest(digest)
	require.NoError(t, err)
	s, err := snapshot.OpenSnapshot(t.Context(), dir, want)
	require.NoError(t, err)
	require.NoError(t, s.Verify(t.Context()))
	app, ok := s.Path("app")
	require.True(t, ok)
	out, err := exec.CommandContext(t.Context(), app+"/run").CombinedOutput()
	require.NoError(t, err, "%s", out)
	fmt.Printf("%s\n", out)
	require.NoError(t, s.Close())
}

// TestSweepSnapshots: whose snapshot is left when a sweep comes, by the state of its lock.
func TestSweepSnapshots(t *testing.T) {
	t.Parallel()
	if args, ok := os.LookupEnv(takeChild); ok {
		dir, detach, _ := strings.Cut(args, "\n")
		takeAndWait(t, dir, detach == "detach")
		return
	}
	for _, detach := range []string{"keep", "detach"} {
		t.Run(detach, func(t *testing.T) {
			t.Parallel()
			dir, parent := sourcesIn(t, "src/a=1", "src/d/b=2", "parent/mine=m")
			cmd := child(t, "TestSweepSnapshots", dir, detach)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			fields := strings.Fields(line)
			require.Len(t, fields, 3, "%q", line)
			at := fields[1]
			digest, err := snapshot.ParseDigest(fields[2])
			require.NoError(t, err)

			assert.Empty(t, sweep(t, parent), "its taker lives")
			assert.ErrorIs(t, removeSnapshot(t, at), snapshot.ErrBusy)
			opened, err := reopen(t, at, digest)
			require.NoError(t, err)
			require.NoError(t, cmd.Process.Kill())
			assert.Error(t, cmd.Wait())
			assert.Empty(t, sweep(t, parent), "we have it open")
			assert.ErrorIs(t, removeSnapshot(t, at), snapshot.ErrBusy)
			assert.NoError(t, opened.Verify(t.Context()))
			require.NoError(t, opened.Close())
			if detach == "detach" {
				assert.Empty(t, sweep(t, parent), "it was detached")
				require.NoError(t, removeSoon(t, at))
			} else {
				assert.Equal(t, []string{filepath.Base(at)}, sweepSoon(t, parent), "nobody has it any more")
			}
			fstest.Nothing(t, parent, "mine")
		})
	}
}

// takeAndWait takes a snapshot, says so, and waits to be killed.
func takeAndWait(t *testing.T, dir string, detach bool) {
	s, err := snapshot.Take(t.Context(), rootsAt(dir, "src"), &snapshot.TakeOptions{Parent: dir + "/parent"})
	require.NoError(t, err)
	if detach {
		require.NoError(t, s.Detach())
	}
	fmt.Println("taken", s.Dir(), s.Manifest().Digest())
	time.Sleep(time.Hour) // a timer: without one the runtime would call it a deadlock
}

// TestTakeLeaksNothing: descriptors and goroutines of the process before and after everything that a snapshot does. Not
// parallel: it counts the whole process.
func TestTakeLeaksNothing(t *testing.T) {
	dir, parent := sourcesIn(t, "src/a=1", "src/d/e/b=@300KiB", "tool 0755=#!", "bad/p|")
	held, err := os.Open(dir + "/src")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, held.Close()) })
	fstest.Leaks(t)
	for range 3 {
		at, digest := detached(t, parent, snapshot.Root{File: held}, snapshot.Root{Path: dir + "/tool"})
		s, err := reopen(t, at, digest)
		require.NoError(t, err)
		assert.NoError(t, s.Verify(t.Context()))
		f, err := s.Open(t.Context(), "src/d/e/b")
		require.NoError(t, err)
		assert.NoError(t, f.Close())
		_, err = fs.ReadFile(s.FS(), "src/a")
		assert.NoError(t, err)
		assert.ErrorIs(t, errorOf(s.Open(t.Context(), "src/d")), snapshot.ErrNotRegular)
		assert.ErrorIs(t, removeSnapshot(t, at), snapshot.ErrBusy)
		assert.NoError(t, s.Close())
		assert.NoError(t, removeSoon(t, at))
		assert.ErrorIs(t, errorOf(reopen(t, at, digest)), fs.ErrNotExist)
		for _, roots := range [][]snapshot.Root{rootsAt(dir, "src", "bad"), rootsAt(dir, "src", "nothing"), {{File: held}, {Path: dir + "/p"}}} {
			assert.Error(t, errorOf(take(t, parent, nil, roots...)))
		}
	}
	fstest.Nothing(t, parent)
}

// TestTakeDeepAndLong: paths longer than the system takes, from the beginning to the end of a snapshot.
func TestTakeDeepAndLong(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t)
	path := deepTree(t, dir+"/src", 40, "bottom=b")
	s, err := take(t, parent, nil, rootsAt(dir, "src")...)
	require.NoError(t, err)
	assert.NoError(t, s.Verify(t.Context()))
	at, digest := s.Dir(), s.Manifest().Digest()
	file := ""
	for e, err := range s.Manifest().All() {
		require.NoError(t, err)
		if e.Mode.IsRegular() {
			file = e.Path
		}
	}
	assert.Greater(t, len(file), unix.PathMax, "%.40s…", path)
	f, err := s.Open(t.Context(), file)
	require.NoError(t, err)
	b, err := io.ReadAll(f)
	assert.NoError(t, errors.Join(err, f.Close()))
	assert.Equal(t, "b", string(b))
	require.NoError(t, s.Detach())
	require.NoError(t, s.Close())
	opened, err := reopen(t, at, digest)
	require.NoError(t, err)
	require.NoError(t, opened.Close())
	assert.NoError(t, removeSoon(t, at))
	fstest.Nothing(t, parent)
}

// TestTakeOrdinaryUser runs the tests of private snapshots as one, to whom a directory without owner write is closed.
func TestTakeOrdinaryUser(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	dir := fstest.TempDir(t)
	require.NoError(t, os.Mkdir(dir+"/tmp", 0o700))
	require.NoError(t, os.Chown(dir+"/tmp", 65534, 65534))
	cmd := exec.CommandContext(t.Context(), copyForAll(t), "-test.v", "-test.count=1",
		"-test.run=^(TestTake(Handles|Refuses|Aliases|FileSystems|FailsAtAnyStep|DeepAndLong|LeaksNothing|Tampered|LookAlikes)|TestSnapshot(FS|Close|Open)|TestDetach|TestHandOff|TestSweepSnapshots)$")
	cmd.SysProcAttr = fstest.Unprivileged(t)
	cmd.Dir = dir + "/tmp"
	cmd.Env = append(os.Environ(), "TMPDIR="+dir+"/tmp", "HOME="+dir+"/tmp")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Greater(t, strings.Count(string(out), "--- PASS"), 12, "%s", out)
	fstest.Nothing(t, dir+"/tmp")
}

// sweepSoon is sweep of what nobody uses: a child that another test forks has a lock of this process, too, until its exec.
func sweepSoon(t testing.TB, parent string) []string {
	t.Helper()
	for tries := 1; ; tries++ {
		if removed := sweep(t, parent); len(removed) > 0 || tries == 1000 {
			return removed
		}
		time.Sleep(time.Millisecond)
	}
}
