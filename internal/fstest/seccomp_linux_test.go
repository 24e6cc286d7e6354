// SPDX-License-Identifier: Apache-2.0

package fstest_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot/internal/fstest"
)

// alone runs f in a process of its own, since a filter is for good.
func alone(t *testing.T, f func(t *testing.T) error) {
	const variable = "HOLDSTILL_TEST_ALONE"
	if os.Getenv(variable) != "" {
		err := f(t)
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip(err)
		}
		require.NoError(t, err)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.ENOEXEC) {
		t.Skipf("a child of this machine cannot be run: %v", err)
	}
	assert.NoError(t, err, "%s", out)
	t.Logf("%s", out)
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	alone(t, func(t *testing.T) error {
		dir := t.TempDir()
		// A thread from before counts as much as one from after.
		early, done := make(chan struct{}), make(chan struct{})
		var mkdir error
		go func() {
			defer close(done)
			runtime.LockOSThread()
			<-early
			mkdir = unix.Mkdirat(-1, "x", 0)
		}()
		err := fstest.Refuse(
			fstest.Refusal{Call: unix.SYS_MKDIRAT, Errno: unix.EXDEV},
			fstest.Refusal{Call: unix.SYS_RENAMEAT2, Errno: unix.ENOSYS, Arg: 4, Mask: unix.RENAME_NOREPLACE, Value: unix.RENAME_NOREPLACE},
		)
		if err != nil {
			return err
		}
		close(early)
		<-done
		assert.Equal(t, unix.EXDEV, mkdir)
		a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		for _, name := range []string{a, b} {
			require.NoError(t, os.WriteFile(name, nil, 0o644))
		}
		assert.NoError(t, unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE))
		assert.Equal(t, unix.ENOSYS, unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, dir+"/c", unix.RENAME_NOREPLACE))
		return nil
	})
}

// TestOldStatx: what is answered is what stat tells, and no more.
func TestOldStatx(t *testing.T) {
	t.Parallel()
	alone(t, func(t *testing.T) error {
		dir := t.TempDir()
		fstest.Make(t, dir, "f 0640=hello", "d/", "l => f")
		if err := fstest.OldStatx(); err != nil {
			return err
		}
		opened, err := os.Open(dir)
		require.NoError(t, err)
		defer opened.Close()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 200 {
					for _, name := range []string{"f", "d", "l", ""} {
						var st unix.Stat_t
						var x unix.Statx_t
						const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_EMPTY_PATH
						assert.NoError(t, unix.Fstatat(int(opened.Fd()), name, &st, flags), name)
						assert.NoError(t, unix.Statx(int(opened.Fd()), name, flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME|unix.STATX_MNT_ID_UNIQUE, &x))
						assert.Equal(t, uint32(unix.STATX_BASIC_STATS), x.Mask)
						assert.Zero(t, x.Mnt_id)
						assert.Zero(t, x.Btime)
						assert.Zero(t, x.Attributes)
						assert.Equal(t, st.Ino, x.Ino, name)
						assert.Equal(t, uint16(st.Mode), x.Mode, name)
						assert.Equal(t, uint64(st.Size), x.Size, name)
						assert.Equal(t, uint32(st.Nlink), x.Nlink, name)
						assert.Equal(t, int64(st.Ctim.Sec), x.Ctime.Sec, name)
						assert.Equal(t, uint32(st.Mtim.Nsec), x.Mtime.Nsec, name)
						assert.Equal(t, uint64(st.Dev), unix.Mkdev(x.Dev_major, x.Dev_minor), name)
					}
				}
			})
		}
		wg.Wait()
		var x unix.Statx_t
		assert.Equal(t, unix.ENOENT, unix.Statx(int(opened.Fd()), "absent", 0, unix.STATX_BASIC_STATS, &x))
		assert.Equal(t, unix.EBADF, unix.Statx(-1, "f", 0, unix.STATX_BASIC_STATS, &x))

		// A child is answered by the kernel.
		out, err := exec.Command("stat", "--format=%s", dir+"/f").Output()
		assert.NoError(t, err)
		assert.Equal(t, "5\n", string(out))
		return nil
	})
}
