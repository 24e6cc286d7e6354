// SPDX-License-Identifier: Apache-2.0

package fsys

import "golang.org/x/sys/unix"

// Lease takes a read lease on h, which must be open for reading only. Granted means that nobody has the file open for
// writing or mapped writable. While it stands, whoever opens the file for writing waits for DropLease, up to
// /proc/sys/fs/lease-break-time. open(O_RDONLY|O_TRUNC) is not held up, so the State has to be compared all the same.
// Refused is ErrWriter, ErrNotAllowed or ErrNoLease.
func (c *Calls) Lease(h Handle) error {
	err := c.do("Lease", "", func() error {
		// The signal of a break is SIGIO, which kills a process that does not expect it; SIGURG is ignored by default.
		if _, err := unix.FcntlInt(uintptr(h), unix.F_SETSIG, int(unix.SIGURG)); err != nil {
			return ErrNoLease
		}
		_, err := unix.FcntlInt(uintptr(h), unix.F_SETLEASE, unix.F_RDLCK)
		return err
	})
	switch err {
	case nil:
		return nil
	case unix.EAGAIN:
		return ErrWriter
	case unix.EACCES:
		return ErrNotAllowed
	case unix.EPERM, unix.EINVAL, unix.ENOLCK, unix.ENOSYS, unix.EOPNOTSUPP:
		return ErrNoLease
	default:
		return err
	}
}

// LeaseStands reports whether nobody waits to open the file for writing.
func (c *Calls) LeaseStands(h Handle) bool {
	kind := 0
	err := c.do("LeaseStands", "", func() (err error) {
		kind, err = unix.FcntlInt(uintptr(h), unix.F_GETLEASE, 0)
		return err
	})
	return err == nil && kind == unix.F_RDLCK
}

// DropLease gives the lease back and lets a waiting writer go on.
func (c *Calls) DropLease(h Handle) error {
	return c.do("DropLease", "", func() error {
		_, err := unix.FcntlInt(uintptr(h), unix.F_SETLEASE, unix.F_UNLCK)
		return err
	})
}
