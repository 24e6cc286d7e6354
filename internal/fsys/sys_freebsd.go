// SPDX-License-Identifier: Apache-2.0

package fsys

import "golang.org/x/sys/unix"

// FreeBSD answers EMLINK where POSIX says ELOOP (open(2)).
const errnoIsLink = unix.EMLINK

func birth(s *unix.Stat_t) Stamp { return stamp(s.Btim) }

func statfs(h int) (free, size int64, name string, err error) {
	var s unix.Statfs_t
	err = unix.Fstatfs(h, &s)
	return int64(s.Bavail) * int64(s.Bsize), int64(s.Blocks) * int64(s.Bsize), unix.ByteSliceToString(s.Fstypename[:]), err
}
