// SPDX-License-Identifier: Apache-2.0

package fsys

import "golang.org/x/sys/unix"

// O_NOFOLLOW on a link (open(2)).
const errnoIsLink = unix.ELOOP

func birth(*unix.Stat_t) Stamp { return Stamp{} }

func statfs(h int) (free, size int64, name string, err error) {
	var s unix.Statfs_t
	err = unix.Fstatfs(h, &s)
	return int64(s.F_bavail) * int64(s.F_bsize), int64(s.F_blocks) * int64(s.F_bsize), unix.ByteSliceToString(s.F_fstypename[:]), err
}
