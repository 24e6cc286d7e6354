// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Clone makes dst, which is empty, a reflink of src at one instant. Any error says that there is no clone.
func (c *Calls) Clone(dst, src Handle) error {
	if err := c.at("Clone", ""); err != nil {
		return err
	}
	return again(func() error { return unix.IoctlFileClone(int(dst), int(src)) })
}

// CreateNameless makes a file that has no name in dir yet; LinkNameless gives it one. errors.ErrUnsupported where the file
// system has none.
func (c *Calls) CreateNameless(dir Handle, mode uint32) (Handle, error) {
	if err := c.at("CreateNameless", ""); err != nil {
		return NoHandle, err
	}
	h, err := c.openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR, mode)
	if err == unix.EOPNOTSUPP || err == unix.EISDIR || err == unix.ENOENT || err == unix.EINVAL {
		return NoHandle, errors.ErrUnsupported
	}
	return h, err
}

// LinkNameless gives a nameless file its name, which must not exist.
func (c *Calls) LinkNameless(h, dir Handle, name string) error {
	if err := c.at("LinkNameless", name); err != nil {
		return err
	}
	return again(func() error { return unix.Linkat(int(h), "", int(dir), name, unix.AT_EMPTY_PATH) })
}

// Allocate asks for the blocks of a file early, so that a full disk is found before anything is written. A file system
// that cannot is no error.
func (c *Calls) Allocate(h Handle, size int64) error {
	if err := c.at("Allocate", ""); err != nil {
		return err
	}
	err := again(func() error { return unix.Fallocate(int(h), 0, 0, size) })
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
		return nil
	}
	return err
}
