//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// ListBufferSize is a good size for the buffer of [Calls.List].
const ListBufferSize = 32 << 10

// List yields the names in dir, except "." and "..", in no order, until yield returns an error. The offset of dir must be 0.
// A listing is whole only if the State of the directory is the same before and after it.
func (c *Calls) List(dir Handle, buf []byte, yield func(name string) error) error {
	for {
		n := 0
		err := c.do("List", "", func() (err error) {
			n, err = unix.ReadDirent(int(dir), buf)
			return err
		})
		if err != nil || n <= 0 {
			return err
		}
		if err := eachName(buf[:n], yield); err != nil {
			return err
		}
	}
}

// Rewind makes the next List of dir begin anew.
func (c *Calls) Rewind(dir Handle) error {
	return c.do("Rewind", "", func() error {
		_, err := unix.Seek(int(dir), 0, 0)
		return err
	})
}

// ReadLink returns the text of the link name of dir.
func (c *Calls) ReadLink(dir Handle, name string) (string, error) {
	for buf := make([]byte, 256); ; buf = make([]byte, 2*len(buf)) {
		n := 0
		err := c.do("ReadLink", name, func() (err error) {
			n, err = unix.Readlinkat(int(dir), name, buf)
			return err
		})
		if err != nil {
			return "", err
		}
		if n < len(buf) {
			return string(buf[:n]), nil
		}
	}
}

// Mkdir makes the directory name of dir; the umask may take bits away.
func (c *Calls) Mkdir(dir Handle, name string, mode fs.FileMode) error {
	return c.do("Mkdir", name, func() error { return mkdirat(int(dir), name, uint32(mode.Perm())) })
}

// Create makes the file name of dir, which must not exist, for writing and reading back; the umask may take bits away.
// No mode of the file, not even 0400, keeps this handle from writing, so the file never has a writable mode.
func (c *Calls) Create(dir Handle, name string, mode fs.FileMode) (Handle, error) {
	return c.openat("Create", dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_NONBLOCK, uint32(mode.Perm()))
}

// Symlink makes a link of that text.
func (c *Calls) Symlink(text string, dir Handle, name string) error {
	return c.do("Symlink", name, func() error { return unix.Symlinkat(text, int(dir), name) })
}

// Link gives the file oldName of oldDir a second name, which must not exist.
func (c *Calls) Link(oldDir Handle, oldName string, dir Handle, name string) error {
	return c.do("Link", name, func() error { return unix.Linkat(int(oldDir), oldName, int(dir), name, 0) })
}

// Unlink removes a name that is not a directory.
func (c *Calls) Unlink(dir Handle, name string) error {
	return c.do("Unlink", name, func() error { return unix.Unlinkat(int(dir), name, 0) })
}

// Rmdir removes a directory, which must be empty.
func (c *Calls) Rmdir(dir Handle, name string) error {
	return c.do("Rmdir", name, func() error { return unix.Unlinkat(int(dir), name, unix.AT_REMOVEDIR) })
}

// Rename gives oldName the name name; what had it is replaced. For use inside a directory of our own only.
func (c *Calls) Rename(oldDir Handle, oldName string, dir Handle, name string) error {
	return c.do("Rename", name, func() error { return unix.Renameat(int(oldDir), oldName, int(dir), name) })
}

// RenameNoReplace gives oldName the name name, which must not exist, in one step. Where the system or the file system
// cannot, the error is errors.ErrUnsupported.
func (c *Calls) RenameNoReplace(oldDir Handle, oldName string, dir Handle, name string) error {
	return c.do("RenameNoReplace", name, func() error { return renameNoReplace(int(oldDir), oldName, int(dir), name) })
}

// ChmodAt sets the permission bits of a name in a directory of our own.
func (c *Calls) ChmodAt(dir Handle, name string, mode fs.FileMode) error {
	return c.do("ChmodAt", name, func() error { return fchmodat(int(dir), name, uint32(mode.Perm())) })
}

// SetMtimeAt sets the modification time of a name, not of what it links to, in a directory of our own.
func (c *Calls) SetMtimeAt(dir Handle, name string, m Stamp) error {
	t, err := timespec(m)
	if err != nil {
		return err
	}
	ts := []unix.Timespec{t, t}
	return c.do("SetMtimeAt", name, func() error { return unix.UtimesNanoAt(int(dir), name, ts, unix.AT_SYMLINK_NOFOLLOW) })
}

func timespec(s Stamp) (unix.Timespec, error) {
	return unix.TimeToTimespec(time.Unix(s.Sec, int64(s.Nsec)))
}

// OpenLimit returns how many descriptors this process may have open.
func OpenLimit() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 256
	}
	return int(min(uint64(r.Cur), 1<<20))
}
