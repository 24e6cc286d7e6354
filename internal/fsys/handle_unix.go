//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// Handle is an open file or directory.
type Handle int

// NoHandle is no open file.
const NoHandle Handle = -1

// Supported returns nil where this package can do its work.
func Supported() error { return nil }

func (c *Counters) at(call, name string) error {
	if c.At == nil {
		return nil
	}
	return c.At(call, name)
}

func (c *Counters) count(h Handle, err error) (Handle, error) {
	if err != nil {
		return NoHandle, err
	}
	c.open.Add(1)
	c.opened.Add(1)
	return h, nil
}

// again repeats a call that a signal interrupted before it did anything: the Go runtime preempts with signals.
func again(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

func (c *Calls) openat(dir Handle, name string, flags int, mode uint32) (Handle, error) {
	h := -1
	err := again(func() (err error) {
		h, err = unix.Openat(int(dir), name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	return c.count(Handle(h), err)
}

// OpenRoot opens the directory that path names, links followed: the one time that a path is looked up.
func (c *Calls) OpenRoot(path string) (Handle, error) {
	if err := c.at("OpenRoot", path); err != nil {
		return NoHandle, err
	}
	return c.openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// OpenDir opens the directory name of dir, which must not be a link.
func (c *Calls) OpenDir(dir Handle, name string) (Handle, error) {
	if err := c.at("OpenDir", name); err != nil {
		return NoHandle, err
	}
	h, err := c.openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err == unix.EOPNOTSUPP { // a socket, on the BSDs
		err = unix.ENOTDIR
	}
	return h, openError(err)
}

// OpenFile opens the file name of dir for reading. It never waits and follows no link; a device's driver may be entered,
// which is why Pin and Reopen come first where the system has them.
func (c *Calls) OpenFile(dir Handle, name string) (Handle, error) {
	if err := c.at("OpenFile", name); err != nil {
		return NoHandle, err
	}
	h, err := c.openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	return h, openError(err)
}

func openError(err error) error {
	switch err {
	case errnoIsLink:
		return ErrIsLink
	case unix.EWOULDBLOCK:
		return ErrLeased
	}
	return err
}

// Dup duplicates a descriptor that somebody else owns.
func (c *Calls) Dup(h uintptr) (Handle, error) {
	if err := c.at("Dup", ""); err != nil {
		return NoHandle, err
	}
	d := -1
	err := again(func() (err error) {
		d, err = unix.FcntlInt(h, unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	return c.count(Handle(d), err)
}

// Close closes h; every lock and lease of its description goes with its last descriptor. Close is not repeated after EINTR:
// Linux has closed the descriptor by then, and its number may be somebody else's.
func (c *Calls) Close(h Handle) error {
	err := c.at("Close", "")
	c.open.Add(-1)
	if e := unix.Close(int(h)); e != nil && e != unix.EINTR {
		return e
	}
	return err
}

// Read reads at off. It returns 0 and nil at the end.
func (c *Calls) Read(h Handle, p []byte, off int64) (n int, err error) {
	if err := c.at("Read", ""); err != nil {
		return 0, err
	}
	err = again(func() (err error) {
		n, err = unix.Pread(int(h), p, off)
		return err
	})
	return max(n, 0), err
}

// Write writes all of p at off.
func (c *Calls) Write(h Handle, p []byte, off int64) error {
	if err := c.at("Write", ""); err != nil {
		return err
	}
	for len(p) > 0 {
		n := 0
		err := again(func() (err error) {
			n, err = unix.Pwrite(int(h), p, off)
			return err
		})
		if err != nil {
			return err
		}
		if n == 0 {
			return unix.EIO
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// Truncate sets the length of a file of ours, which makes what is beyond its end a hole.
func (c *Calls) Truncate(h Handle, size int64) error {
	if err := c.at("Truncate", ""); err != nil {
		return err
	}
	return again(func() error { return unix.Ftruncate(int(h), size) })
}

// Chmod sets the permission bits of h.
func (c *Calls) Chmod(h Handle, mode fs.FileMode) error {
	if err := c.at("Chmod", ""); err != nil {
		return err
	}
	return again(func() error { return unix.Fchmod(int(h), uint32(mode.Perm())) })
}

// Lock takes a lock on the whole file; the kernel drops it when the last descriptor of the description goes, so also when
// its process is killed. It does not wait: a lock that somebody holds is unix.EWOULDBLOCK, see [IsLocked].
func (c *Calls) Lock(h Handle) error {
	if err := c.at("Lock", ""); err != nil {
		return err
	}
	return again(func() error { return unix.Flock(int(h), unix.LOCK_EX|unix.LOCK_NB) })
}

// Sync makes the contents of h durable.
func (c *Calls) Sync(h Handle) error {
	if err := c.at("Sync", ""); err != nil {
		return err
	}
	return again(func() error { return fsync(int(h)) })
}

// Free returns the bytes that this user may still write, and the size of the file system of h.
func (c *Calls) Free(h Handle) (free, size int64, err error) {
	if err := c.at("Free", ""); err != nil {
		return 0, 0, err
	}
	return freeBytes(int(h))
}

// Euid returns the user that new files will belong to.
func Euid() uint32 { return uint32(syscall.Geteuid()) }

// fileMode translates st_mode.
func fileMode(m uint32) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	switch m & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	case unix.S_IFBLK:
		mode |= fs.ModeDevice
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFREG:
	default:
		mode |= fs.ModeIrregular
	}
	if m&unix.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if m&unix.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if m&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}
