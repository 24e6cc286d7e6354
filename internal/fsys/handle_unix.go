//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"io/fs"
	"os"
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

// do makes a call with the hook before it, both again after a signal.
func (c *Counters) do(call, name string, f func() error) error {
	return again(func() error {
		if err := c.at(call, name); err != nil {
			return err
		}
		return f()
	})
}

// handle is do for a call that opens something.
func (c *Counters) handle(call, name string, f func() (int, error)) (Handle, error) {
	h := -1
	err := c.do(call, name, func() (err error) {
		h, err = f()
		return err
	})
	if err != nil {
		return NoHandle, err
	}
	c.open.Add(1)
	c.opened.Add(1)
	return Handle(h), nil
}

// transfer is do for a call that may do less than it was asked for.
func (c *Counters) transfer(call string, p []byte, f func(p []byte) (int, error)) (n int, err error) {
	err = again(func() error {
		part, err := p, c.at(call, "")
		if err == ErrShort {
			part, err = p[:(len(p)+1)/2], nil // of one byte nothing would be left, which is the end of a file
		}
		if err == nil {
			n, err = f(part)
		}
		return err
	})
	return max(n, 0), err
}

// again repeats a call that a signal interrupted before it did anything: the Go runtime preempts with signals.
func again(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

func (c *Calls) openat(call string, dir Handle, name string, flags int, mode uint32) (Handle, error) {
	return c.handle(call, name, func() (int, error) {
		return openat(int(dir), name, flags|unix.O_CLOEXEC, mode)
	})
}

// OpenRoot opens the directory that path names, links followed: the one time that a path is looked up.
func (c *Calls) OpenRoot(path string) (Handle, error) {
	return c.openat("OpenRoot", unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// OpenDir opens the directory name of dir, which must not be a link.
func (c *Calls) OpenDir(dir Handle, name string) (Handle, error) {
	h, err := c.openat("OpenDir", dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err == unix.EOPNOTSUPP { // a socket, on the BSDs
		err = unix.ENOTDIR
	}
	if err == unix.EWOULDBLOCK { // of a server: only files have leases
		return h, err
	}
	return h, openError(err)
}

// OpenSelf opens the directory h on a description of its own, so that its listing begins at the beginning.
func (c *Calls) OpenSelf(h Handle) (Handle, error) {
	return c.openat("OpenSelf", h, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// OpenFile opens the file name of dir for reading. It never waits and follows no link; a device's driver may be entered,
// which is why Pin and Reopen come first where the system has them.
func (c *Calls) OpenFile(dir Handle, name string) (Handle, error) {
	h, err := c.openat("OpenFile", dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
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
	return c.handle("Dup", "", func() (int, error) { return unix.FcntlInt(h, unix.F_DUPFD_CLOEXEC, 0) })
}

// Close closes h; every lock and lease of its description goes with its last descriptor. Close is not repeated after EINTR:
// Linux has closed the descriptor by then, and its number may be somebody else's.
func (c *Calls) Close(h Handle) error {
	err := c.at("Close", "")
	c.open.Add(-1)
	if e := unix.Close(int(h)); e != nil {
		err = e
	}
	if err == unix.EINTR {
		return nil
	}
	return err
}

// GiveFile makes an *os.File of h, which is the caller's to close from then on.
func (c *Calls) GiveFile(h Handle, name string) *os.File {
	c.open.Add(-1)
	return os.NewFile(uintptr(h), name)
}

// Read reads at off. It returns 0 and nil at the end.
func (c *Calls) Read(h Handle, p []byte, off int64) (n int, err error) {
	return c.transfer("Read", p, func(p []byte) (int, error) { return unix.Pread(int(h), p, off) })
}

// Write writes all of p at off.
func (c *Calls) Write(h Handle, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := c.transfer("Write", p, func(p []byte) (int, error) { return unix.Pwrite(int(h), p, off) })
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
	return c.do("Truncate", "", func() error { return unix.Ftruncate(int(h), size) })
}

// Chmod sets the permission bits of h.
func (c *Calls) Chmod(h Handle, mode fs.FileMode) error {
	return c.do("Chmod", "", func() error { return unix.Fchmod(int(h), uint32(mode.Perm())) })
}

// Lock takes a lock on the whole file that nobody else can have; the kernel drops it when the last descriptor of the
// description goes, so also when its process is killed. It does not wait: a lock that somebody holds is unix.EWOULDBLOCK, see
// [IsLocked].
func (c *Calls) Lock(h Handle) error {
	return c.do("Lock", "", func() error { return unix.Flock(int(h), unix.LOCK_EX|unix.LOCK_NB) })
}

// LockShared is Lock of a lock that several can have, as long as nobody has that of Lock.
func (c *Calls) LockShared(h Handle) error {
	return c.do("LockShared", "", func() error { return unix.Flock(int(h), unix.LOCK_SH|unix.LOCK_NB) })
}

// Sync makes the contents of h durable.
func (c *Calls) Sync(h Handle) error {
	return c.do("Sync", "", func() error { return fsync(int(h)) })
}

// Free returns the bytes that this user may still write, and the size of the file system of h.
func (c *Calls) Free(h Handle) (free, size int64, err error) {
	err = c.do("Free", "", func() (err error) {
		free, size, err = freeBytes(int(h))
		return err
	})
	return free, size, err
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
