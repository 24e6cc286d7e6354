//go:build darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func eachName(entries []byte, yield func(name string) error) error {
	_, _, names := unix.ParseDirent(entries, -1, nil)
	for _, name := range names {
		if err := yield(name); err != nil {
			return err
		}
	}
	return nil
}

func mkdirat(dir int, name string, mode uint32) error { return unix.Mkdirat(dir, name, mode) }

func fchmodat(dir int, name string, mode uint32) error { return unix.Fchmodat(dir, name, mode, 0) }

func openat(dir int, name string, flags int, mode uint32) (int, error) {
	return unix.Openat(dir, name, flags, mode)
}

// StatAt looks at the name of dir, never through a link. force means nothing here.
func (c *Calls) StatAt(dir Handle, name string, force bool) (Stat, error) {
	if err := c.at("StatAt", name); err != nil {
		return Stat{}, err
	}
	var s unix.Stat_t
	if err := again(func() error { return unix.Fstatat(int(dir), name, &s, unix.AT_SYMLINK_NOFOLLOW) }); err != nil {
		return Stat{}, err
	}
	return statOf(&s), nil
}

// StatPath looks at what path names, links followed. force means nothing here.
func (c *Calls) StatPath(path string, force bool) (Stat, error) {
	var s unix.Stat_t
	if err := c.do("StatPath", path, func() error { return unix.Stat(path, &s) }); err != nil {
		return Stat{}, err
	}
	return statOf(&s), nil
}

// Stat looks at an open file.
func (c *Calls) Stat(h Handle, force bool) (Stat, error) {
	if err := c.at("Stat", ""); err != nil {
		return Stat{}, err
	}
	var s unix.Stat_t
	if err := again(func() error { return unix.Fstat(int(h), &s) }); err != nil {
		return Stat{}, err
	}
	return statOf(&s), nil
}

// statOf: a device number is a mount here, since no mount shows the same device twice but nullfs and its like, which give
// their own.
func statOf(s *unix.Stat_t) Stat {
	st := Stat{
		Seen: Seen{
			Volume: uint64(s.Dev),
			Mount:  uint64(s.Dev),
			Mtime:  mtime(s),
			Ctime:  ctime(s),
			Birth:  birth(s),
			Size:   s.Size,
			Mode:   fileMode(uint32(s.Mode)),
			UID:    s.Uid,
			GID:    s.Gid,
		},
		Blocks: s.Blocks,
		Nlink:  uint64(s.Nlink),
	}
	binary.NativeEndian.PutUint64(st.File[:], s.Ino)
	return st
}

func stamp(t unix.Timespec) Stamp {
	sec, nsec := t.Unix()
	return Stamp{sec, int32(nsec)}
}

// Pin is not to be had: OpenFile has to be compared with StatAt.
func (c *Calls) Pin(dir Handle, name string) (Handle, error) {
	return NoHandle, errors.ErrUnsupported
}

// PinPath opens the directory that path names, links followed.
func (c *Calls) PinPath(path string) (Handle, error) { return c.OpenRoot(path) }

// Reopen is not to be had.
func (c *Calls) Reopen(pin Handle) (Handle, error) { return NoHandle, errors.ErrUnsupported }

// Calls are the calls of one operation. The zero Calls is ready for use. It must not be copied.
type Calls struct {
	Counters
	kinds sync.Map // [2]uint64{volume, mount} → *Kind
}

// Finish closes what the calls keep for themselves.
func (c *Calls) Finish() {}

// Lease is not to be had.
func (c *Calls) Lease(h Handle) error { return ErrNoLease }

// LeaseStands reports false.
func (c *Calls) LeaseStands(h Handle) bool { return false }

// DropLease does nothing.
func (c *Calls) DropLease(h Handle) error { return nil }

// WaitWriters is not to be had.
func (c *Calls) WaitWriters(h Handle) error { return errors.ErrUnsupported }

// ArmStores is not to be had.
func (c *Calls) ArmStores(h Handle) error { return errors.ErrUnsupported }

// CreateNameless is not to be had.
func (c *Calls) CreateNameless(dir Handle, mode uint32) (Handle, error) {
	return NoHandle, errors.ErrUnsupported
}

// LinkNameless is not to be had.
func (c *Calls) LinkNameless(h, dir Handle, name string) error { return errors.ErrUnsupported }

// ReadNow is not to be had.
func (c *Calls) ReadNow(h Handle, p []byte, off int64) (n int, err error) {
	return 0, errors.ErrUnsupported
}

// Allocate does nothing.
func (c *Calls) Allocate(h Handle, size int64) error { return nil }

// Clock returns the clock that changes are stamped with, as far as the system tells.
func Clock() Stamp {
	t := time.Now()
	return Stamp{t.Unix(), int32(t.Nanosecond())}
}

// SyncsAll says that there is no SyncAll.
const SyncsAll = false

// SyncAll is not to be had: each file and directory needs its own Sync.
func (c *Calls) SyncAll(h Handle) error { return errors.ErrUnsupported }

// SetMtime sets the modification time of the file name of dir, a directory of our own, which h holds open.
func (c *Calls) SetMtime(h, dir Handle, name string, m Stamp) error {
	return c.SetMtimeAt(dir, name, m)
}

func freeBytes(h int) (free, size int64, err error) {
	err = again(func() (err error) {
		free, size, _, err = statfs(h)
		return err
	})
	return free, size, err
}

// Kind returns what is known of the file system of h.
func (c *Calls) Kind(h Handle, s *Seen) (*Kind, error) {
	key := [2]uint64{s.Volume, s.Mount}
	if k, ok := c.kinds.Load(key); ok {
		return k.(*Kind), nil
	}
	if err := c.at("Kind", ""); err != nil {
		return nil, err
	}
	_, _, name, err := statfs(int(h))
	if err != nil {
		return nil, err
	}
	k := kindOfName(name)
	c.kinds.Store(key, &k)
	return &k, nil
}

func kindOfName(name string) Kind {
	k := Kind{Name: name}
	switch name {
	case "apfs":
		k.Clones = true
	case "msdos", "msdosfs", "exfat":
		k.NoChange = true
	case "nfs", "smbfs", "webdav", "fusefs", "macfuse", "puffs":
		k.Remote = true
	case "procfs", "fdescfs", "linprocfs", "linsysfs", "kernfs":
		k.Pseudo = true
	case "cd9660":
		k.Grain = Immutable
	}
	return k
}
