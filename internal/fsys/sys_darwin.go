// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"errors"

	"golang.org/x/sys/unix"
)

const errnoIsLink = unix.ELOOP

func mtime(s *unix.Stat_t) Stamp { return stamp(s.Mtim) }
func ctime(s *unix.Stat_t) Stamp { return stamp(s.Ctim) }
func birth(s *unix.Stat_t) Stamp { return stamp(s.Btim) }

// fsync alone leaves the data in the drive's cache (fsync(2) of macOS).
func fsync(h int) error {
	if _, err := unix.FcntlInt(uintptr(h), unix.F_FULLFSYNC, 0); err == nil {
		return nil
	}
	return unix.Fsync(h)
}

func renameNoReplace(oldDir int, oldName string, dir int, name string) error {
	err := unix.RenameatxNp(oldDir, oldName, dir, name, unix.RENAME_EXCL)
	if err == unix.ENOTSUP || err == unix.EINVAL {
		return errors.ErrUnsupported
	}
	return err
}

// Clone cannot fill an open file here: fclonefileat makes a name of its own.
func (c *Calls) Clone(dst, src Handle) error { return errors.ErrUnsupported }

func statfs(h int) (free, size int64, name string, err error) {
	var s unix.Statfs_t
	err = unix.Fstatfs(h, &s)
	return int64(s.Bavail) * int64(s.Bsize), int64(s.Blocks) * int64(s.Bsize), unix.ByteSliceToString(s.Fstypename[:]), err
}
