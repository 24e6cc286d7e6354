// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// Clone makes dst, which is empty, a reflink of src at one instant. Any error says that there is no clone.
func (c *Calls) Clone(dst, src Handle) error {
	return c.do("Clone", "", func() error { return unix.IoctlFileClone(int(dst), int(src)) })
}

// CreateNameless makes a file that has no name in dir yet; LinkNameless gives it one. errors.ErrUnsupported where the file
// system has none.
func (c *Calls) CreateNameless(dir Handle, mode uint32) (Handle, error) {
	if _, err := c.procDir.open(c); err != nil { // LinkNameless may need it
		return NoHandle, err
	}
	h, err := c.openat("CreateNameless", dir, ".", unix.O_TMPFILE|unix.O_RDWR, mode)
	if err == unix.EOPNOTSUPP || err == unix.EISDIR || err == unix.ENOENT || err == unix.EINVAL {
		return NoHandle, errors.ErrUnsupported
	}
	return h, err
}

// LinkNameless gives a nameless file its name, which must not exist.
func (c *Calls) LinkNameless(h, dir Handle, name string) error {
	err := c.do("LinkNameless", name, func() error { return unix.Linkat(int(h), "", int(dir), name, unix.AT_EMPTY_PATH) })
	if err != unix.ENOENT {
		return err
	}
	// Before Linux 6.10 AT_EMPTY_PATH needs CAP_DAC_READ_SEARCH (linkat(2)); following the link in /proc never does.
	fds, err := c.procDir.open(c)
	if err != nil {
		return err
	}
	return c.do("LinkNameless", name, func() error {
		return unix.Linkat(int(fds), strconv.Itoa(int(h)), int(dir), name, unix.AT_SYMLINK_FOLLOW)
	})
}

// ReadNow is Read of what can be had without waiting for a disk or a lock; IsBlocked tells that there was nothing.
func (c *Calls) ReadNow(h Handle, p []byte, off int64) (n int, err error) {
	n, err = c.transfer("ReadNow", p, func(p []byte) (int, error) {
		return unix.Preadv2(int(h), [][]byte{p}, off, unix.RWF_NOWAIT)
	})
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
		return 0, errors.ErrUnsupported
	}
	return n, err
}

// Allocate asks for the blocks of a file early, so that a full disk is found before anything is written. A file system
// that cannot is no error.
func (c *Calls) Allocate(h Handle, size int64) error {
	err := c.do("Allocate", "", func() error { return unix.Fallocate(int(h), 0, 0, size) })
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
		return nil
	}
	return err
}
