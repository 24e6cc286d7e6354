// SPDX-License-Identifier: Apache-2.0

package fsys

import "golang.org/x/sys/unix"

// WaitWriters waits for a buffered write() that is under way: SEEK_DATA takes the lock of the inode. It may wait for ever,
// and no signal ends it, if that writer stalls. It moves the offset of h. (ext4, xfs, btrfs)
func (c *Calls) WaitWriters(h Handle) error {
	err := c.do("WaitWriters", "", func() error {
		_, err := unix.Seek(int(h), 0, unix.SEEK_DATA)
		return err
	})
	if err == unix.ENXIO { // empty, or one hole: the lock was taken all the same
		return nil
	}
	return err
}

// ArmStores writes dirty pages out and write-protects them, so that the next store through a mapping faults and is
// stamped. Stamped is what comes after it: the first State has to be taken before. (ext4, xfs, btrfs; overlayfs needs Sync)
func (c *Calls) ArmStores(h Handle) error {
	return c.do("ArmStores", "", func() error {
		return unix.SyncFileRange(int(h), 0, 0,
			unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	})
}
