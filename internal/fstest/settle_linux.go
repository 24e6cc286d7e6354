// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"os"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Settle waits until every change in the tree is old: until the clock that the file system stamps with has passed the newest
// ctime by the granularity of its stamps. ctime cannot be set, so this is the only way to an old file; it takes one tick of that
// clock, up to 1 s where stamps have no nanoseconds and up to 2 s on a file system whose granularity nobody knows.
func Settle(t TB, dir string) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	stamps := ctimes{whole: true}
	require.NoError(t, stamps.add(root))
	var vfs unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &vfs))
	g := granularity(int64(vfs.Type), stamps.whole)
	until := stamps.newest - stamps.newest%g + g
	for {
		var now unix.Timespec
		require.NoError(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now))
		left := time.Duration(until - unix.TimespecToNsec(now))
		if left <= 0 {
			return
		}
		require.LessOrEqual(t, left, 3*time.Second, "%s has a ctime in the future", dir)
		time.Sleep(min(left, time.Millisecond))
	}
}

// granularity returns the nanoseconds between two stamps; 1 where the coarse clock itself stamps, or something finer.
func granularity(magic int64, whole bool) int64 {
	switch magic {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
		if !whole {
			return 1
		}
		return int64(time.Second)
	}
	return 2 * int64(time.Second)
}

type ctimes struct {
	newest int64
	whole  bool // none has nanoseconds
}

func (c *ctimes) add(dir *os.Root) error {
	names, err := listNames(dir)
	if err != nil {
		return err
	}
	for _, name := range append(names, ".") {
		fi, err := dir.Lstat(name)
		if err != nil {
			return err
		}
		ctime := syscall.TimespecToNsec(fi.Sys().(*syscall.Stat_t).Ctim)
		c.newest = max(c.newest, ctime)
		c.whole = c.whole && ctime%int64(time.Second) == 0
		if name == "." || !fi.IsDir() {
			continue
		}
		sub, err := dir.OpenRoot(name)
		if err != nil {
			return err
		}
		err = c.add(sub)
		sub.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
