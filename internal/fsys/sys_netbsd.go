// SPDX-License-Identifier: Apache-2.0

package fsys

import "golang.org/x/sys/unix"

// NetBSD answers EFTYPE where POSIX says ELOOP (open(2)).
const errnoIsLink = unix.EFTYPE

func birth(s *unix.Stat_t) Stamp { return stamp(s.Btim) }

func statfs(h int) (free, size int64, name string, err error) {
	var s unix.Statvfs_t
	err = unix.Fstatvfs(h, &s)
	return int64(s.Bavail) * int64(s.Frsize), int64(s.Blocks) * int64(s.Frsize), unix.ByteSliceToString(s.Fstypename[:]), err
}
