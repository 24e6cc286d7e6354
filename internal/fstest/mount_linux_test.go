// SPDX-License-Identifier: Apache-2.0

package fstest_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot/internal/fstest"
)

func itoa(n int) string { return strconv.Itoa(n) }

func magic(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &st))
	return int64(st.Type)
}

func ctimeOf(t *testing.T, name string) unix.Timespec {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(name, &st))
	return st.Ctim
}

func TestDir(t *testing.T) {
	magics := map[string]int64{
		"ext4": unix.EXT4_SUPER_MAGIC, "ext4-128": unix.EXT4_SUPER_MAGIC, "xfs": unix.XFS_SUPER_MAGIC,
		"btrfs": unix.BTRFS_SUPER_MAGIC, "f2fs": unix.F2FS_SUPER_MAGIC, "tmpfs": unix.TMPFS_MAGIC, "tmpfs-4m": unix.TMPFS_MAGIC, "ramfs": unix.RAMFS_MAGIC,
		"overlay": unix.OVERLAYFS_SUPER_MAGIC, "bindfs": unix.FUSE_SUPER_MAGIC,
	}
	for _, kind := range fstest.Kinds() {
		t.Run(kind, func(t *testing.T) {
			fstest.Leaks(t)
			dir := fstest.Dir(t, kind)
			assert.Equal(t, magics[kind], magic(t, dir))
			fstest.Make(t, dir, "d/f=x")
			again := fstest.Dir(t, kind)
			assert.Equal(t, filepath.Dir(dir), filepath.Dir(again), "one mount for all")
			assert.NotEqual(t, dir, again)
			if kind == "ext4-128" {
				assert.Zero(t, ctimeOf(t, dir).Nsec)
			}
		})
	}
}

func TestReadOnly(t *testing.T) {
	magics := map[string]int64{"squashfs": unix.SQUASHFS_MAGIC, "erofs": unix.EROFS_SUPER_MAGIC_V1}
	for _, kind := range fstest.ReadOnlyKinds() {
		t.Run(kind, func(t *testing.T) {
			from := fstest.TempDir(t)
			fstest.Make(t, from, "d/f 0600=x", "l => d")
			dir := fstest.ReadOnly(t, kind, from)
			assert.Equal(t, magics[kind], magic(t, dir))
			assert.Equal(t, fstest.Read(t, from), fstest.Read(t, dir))
			assert.ErrorIs(t, os.WriteFile(filepath.Join(dir, "new"), nil, 0o644), unix.EROFS)
		})
	}
}

func TestLyingFS(t *testing.T) {
	server := fstest.LyingFS(t)
	assert.Equal(t, unix.FUSE_SUPER_MAGIC, int(magic(t, server.Dir)))
	f := filepath.Join(server.Dir, "d/b")
	assert.Equal(t, "other", string(read(t, f)))

	server.Lie("change")
	assert.Equal(t, "puifs", string(read(t, f)))

	var first, second unix.Stat_t
	server.Lie("honest", "inodes")
	require.NoError(t, unix.Stat(f, &first))
	require.NoError(t, unix.Stat(f, &second))
	assert.NotEqual(t, first.Ino, second.Ino)

	server.Lie("honest", "direct", "fail read 9 5")
	read(t, f)
	assert.False(t, server.Fired())
	server.Lie("fail read 2 5")
	_, err := os.ReadFile(f)
	assert.ErrorIs(t, err, unix.EIO)
	assert.True(t, server.Fired())
}

func TestMount(t *testing.T) {
	var first, second string
	t.Run("tmpfs-4m", func(t *testing.T) {
		first, second = fstest.Mount(t, "tmpfs-4m"), fstest.Mount(t, "tmpfs-4m")
		assert.NotEqual(t, first, second)
		err := os.WriteFile(filepath.Join(first, "f"), make([]byte, 5<<20), 0o644)
		assert.ErrorIs(t, err, unix.ENOSPC)
		fstest.Nothing(t, second)
	})
	if first != "" {
		assert.NoDirExists(t, first)
		assert.NoDirExists(t, filepath.Dir(second))
	}
}

func TestBind(t *testing.T) {
	fstest.NeedRoot(t)
	dir := fstest.Dir(t, "tmpfs")
	fstest.Make(t, dir, "from/f=x", "to/", "gone/")
	t.Run("mounted", func(t *testing.T) {
		fstest.Bind(t, filepath.Join(dir, "from"), filepath.Join(dir, "to"))
		fstest.Bind(t, filepath.Join(dir, "from"), filepath.Join(dir, "gone"))
		fstest.Nothing(t, filepath.Join(dir, "to"), "f")
		fstest.Unmount(t, filepath.Join(dir, "gone"))
		fstest.Nothing(t, filepath.Join(dir, "gone"))
	})
	fstest.Nothing(t, filepath.Join(dir, "to"))
}

func TestSettle(t *testing.T) {
	for _, kind := range []string{"", "ext4-128"} {
		t.Run("on "+kind, func(t *testing.T) {
			t.Parallel()
			dir := fstest.Dir(t, kind)
			fstest.Make(t, dir, "d/f=x")
			ctime := ctimeOf(t, filepath.Join(dir, "d/f"))
			fstest.Settle(t, dir)
			var now unix.Timespec
			require.NoError(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now))
			if kind == "ext4-128" {
				assert.Greater(t, now.Sec, ctime.Sec)
			} else {
				assert.Greater(t, unix.TimespecToNsec(now), unix.TimespecToNsec(ctime))
			}
		})
	}
}

func TestUnprivileged(t *testing.T) {
	t.Parallel()
	dir := fstest.Dir(t, "")
	fstest.Make(t, dir, "open/")
	require.NoError(t, os.Chmod(filepath.Join(dir, "open"), 0o777))
	f := filepath.Join(dir, "open/f")
	p := fstest.StartAs(t, fstest.Unprivileged(t), "grow", "--max", "0", f)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(f, &st))
	assert.NotZero(t, st.Uid)
	p.Stop()
}
