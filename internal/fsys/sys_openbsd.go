// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// O_NOFOLLOW on a link (open(2)).
const errnoIsLink = unix.ELOOP

func mtime(s *unix.Stat_t) Stamp { return stamp(s.Mtim) }
func ctime(s *unix.Stat_t) Stamp { return stamp(s.Ctim) }
func birth(*unix.Stat_t) Stamp   { return Stamp{} }

func fsync(h int) error { return unix.Fsync(h) }

func renameNoReplace(oldDir int, oldName string, dir int, name string) error {
	return errors.ErrUnsupported
}

// Clone is not to be had.
func (c *Calls) Clone(dst, src Handle) error { return errors.ErrUnsupported }

func statfs(h int) (free, size int64, name string, err error) {
	var s unix.Statfs_t
	err = unix.Fstatfs(h, &s)
	return int64(s.F_bavail) * int64(s.F_bsize), int64(s.F_blocks) * int64(s.F_bsize), unix.ByteSliceToString(s.F_fstypename[:]), err
}
