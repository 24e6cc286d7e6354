// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// FreeBSD answers EMLINK where POSIX says ELOOP (open(2)).
const errnoIsLink = unix.EMLINK

func mtime(s *unix.Stat_t) Stamp { return stamp(s.Mtim) }
func ctime(s *unix.Stat_t) Stamp { return stamp(s.Ctim) }
func birth(s *unix.Stat_t) Stamp { return stamp(s.Btim) }

func fsync(h int) error { return unix.Fsync(h) }

func renameNoReplace(oldDir int, oldName string, dir int, name string) error {
	return errors.ErrUnsupported
}

// Clone is not to be had.
func (c *Calls) Clone(dst, src Handle) error { return errors.ErrUnsupported }

func statfs(h int) (free, size int64, name string, err error) {
	var s unix.Statfs_t
	err = unix.Fstatfs(h, &s)
	return int64(s.Bavail) * int64(s.Bsize), int64(s.Blocks) * int64(s.Bsize), unix.ByteSliceToString(s.Fstypename[:]), err
}
