//go:build !(linux || darwin || freebsd || netbsd || openbsd)

// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// Handle is an open file or directory.
type Handle uintptr

// NoHandle is no open file.
const NoHandle = ^Handle(0)

// ListBufferSize is a good size for the buffer of [Calls.List].
const ListBufferSize = 0

// SyncsAll says that there is no SyncAll.
const SyncsAll = false

// Calls are the calls of one operation, none of which is to be had.
type Calls struct{ Counters }

// Supported returns errors.ErrUnsupported: the calls below say the same, each for itself.
func Supported() error { return errors.ErrUnsupported }

// Finish closes what the calls keep for themselves.
func (c *Calls) Finish() {}

// Clock returns the wall clock.
func Clock() Stamp {
	t := time.Now()
	return Stamp{t.Unix(), int32(t.Nanosecond())}
}

// Euid returns 0: there are no numeric users.
func Euid() uint32 { return 0 }

// OpenLimit returns how many descriptors this process may have open.
func OpenLimit() int { return 256 }

// IsLocked and its like tell apart what no call here returns.
func IsLocked(err error) bool { return false }

// IsOtherType reports false.
func IsOtherType(err error) bool { return false }

// IsStale reports false.
func IsStale(err error) bool { return false }

// IsGone reports false.
func IsGone(err error) bool { return false }

// IsNotEmpty reports false.
func IsNotEmpty(err error) bool { return false }

// IsBlocked reports false.
func IsBlocked(err error) bool { return false }

// OpenRoot is not to be had.
func (c *Calls) OpenRoot(path string) (Handle, error) { return NoHandle, errors.ErrUnsupported }

// OpenDir is not to be had.
func (c *Calls) OpenDir(dir Handle, name string) (Handle, error) {
	return NoHandle, errors.ErrUnsupported
}

// OpenFile is not to be had.
func (c *Calls) OpenFile(dir Handle, name string) (Handle, error) {
	return NoHandle, errors.ErrUnsupported
}

// Dup is not to be had.
func (c *Calls) Dup(h uintptr) (Handle, error) { return NoHandle, errors.ErrUnsupported }

// Close is not to be had.
func (c *Calls) Close(h Handle) error { return errors.ErrUnsupported }

// Read is not to be had.
func (c *Calls) Read(h Handle, p []byte, off int64) (int, error) { return 0, errors.ErrUnsupported }

// Write is not to be had.
func (c *Calls) Write(h Handle, p []byte, off int64) error { return errors.ErrUnsupported }

// Truncate is not to be had.
func (c *Calls) Truncate(h Handle, size int64) error { return errors.ErrUnsupported }

// Chmod is not to be had.
func (c *Calls) Chmod(h Handle, mode fs.FileMode) error { return errors.ErrUnsupported }

// Lock is not to be had.
func (c *Calls) Lock(h Handle) error { return errors.ErrUnsupported }

// Sync is not to be had.
func (c *Calls) Sync(h Handle) error { return errors.ErrUnsupported }

// Free is not to be had.
func (c *Calls) Free(h Handle) (free, size int64, err error) { return 0, 0, errors.ErrUnsupported }

// List is not to be had.
func (c *Calls) List(dir Handle, buf []byte, yield func(name string) error) error {
	return errors.ErrUnsupported
}

// Rewind is not to be had.
func (c *Calls) Rewind(dir Handle) error { return errors.ErrUnsupported }

// ReadLink is not to be had.
func (c *Calls) ReadLink(dir Handle, name string) (string, error) { return "", errors.ErrUnsupported }

// Mkdir is not to be had.
func (c *Calls) Mkdir(dir Handle, name string, mode fs.FileMode) error { return errors.ErrUnsupported }

// Create is not to be had.
func (c *Calls) Create(dir Handle, name string, mode fs.FileMode) (Handle, error) {
	return NoHandle, errors.ErrUnsupported
}

// Symlink is not to be had.
func (c *Calls) Symlink(text string, dir Handle, name string) error { return errors.ErrUnsupported }

// Link is not to be had.
func (c *Calls) Link(oldDir Handle, oldName string, dir Handle, name string) error {
	return errors.ErrUnsupported
}

// Unlink is not to be had.
func (c *Calls) Unlink(dir Handle, name string) error { return errors.ErrUnsupported }

// Rmdir is not to be had.
func (c *Calls) Rmdir(dir Handle, name string) error { return errors.ErrUnsupported }

// Rename is not to be had.
func (c *Calls) Rename(oldDir Handle, oldName string, dir Handle, name string) error {
	return errors.ErrUnsupported
}

// RenameNoReplace is not to be had.
func (c *Calls) RenameNoReplace(oldDir Handle, oldName string, dir Handle, name string) error {
	return errors.ErrUnsupported
}

// ChmodAt is not to be had.
func (c *Calls) ChmodAt(dir Handle, name string, mode fs.FileMode) error {
	return errors.ErrUnsupported
}

// SetMtimeAt is not to be had.
func (c *Calls) SetMtimeAt(dir Handle, name string, m Stamp) error { return errors.ErrUnsupported }

// StatAt is not to be had.
func (c *Calls) StatAt(dir Handle, name string, force bool) (Stat, error) {
	return Stat{}, errors.ErrUnsupported
}

// Stat is not to be had.
func (c *Calls) Stat(h Handle, force bool) (Stat, error) { return Stat{}, errors.ErrUnsupported }

// Pin is not to be had.
func (c *Calls) Pin(dir Handle, name string) (Handle, error) { return NoHandle, errors.ErrUnsupported }

// OpenSelf is not to be had.
func (c *Calls) OpenSelf(h Handle) (Handle, error) { return NoHandle, errors.ErrUnsupported }

// StatPath is not to be had.
func (c *Calls) StatPath(path string, force bool) (Stat, error) {
	return Stat{}, errors.ErrUnsupported
}

// LockShared is not to be had.
func (c *Calls) LockShared(h Handle) error { return errors.ErrUnsupported }

// GiveFile returns nil: there is no Handle.
func (c *Calls) GiveFile(h Handle, name string) *os.File { return nil }

// PinPath is not to be had.
func (c *Calls) PinPath(path string) (Handle, error) { return NoHandle, errors.ErrUnsupported }

// Reopen is not to be had.
func (c *Calls) Reopen(pin Handle) (Handle, error) { return NoHandle, errors.ErrUnsupported }

// Lease is not to be had.
func (c *Calls) Lease(h Handle) error { return errors.ErrUnsupported }

// DropLease is not to be had.
func (c *Calls) DropLease(h Handle) error { return errors.ErrUnsupported }

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
func (c *Calls) ReadNow(h Handle, p []byte, off int64) (int, error) { return 0, errors.ErrUnsupported }

// Allocate is not to be had.
func (c *Calls) Allocate(h Handle, size int64) error { return errors.ErrUnsupported }

// SyncAll is not to be had.
func (c *Calls) SyncAll(h Handle) error { return errors.ErrUnsupported }

// SetMtime is not to be had.
func (c *Calls) SetMtime(h, dir Handle, name string, m Stamp) error { return errors.ErrUnsupported }

// Clone is not to be had.
func (c *Calls) Clone(dst, src Handle) error { return errors.ErrUnsupported }

// Kind is not to be had.
func (c *Calls) Kind(h Handle, s *Seen) (*Kind, error) { return nil, errors.ErrUnsupported }

// LeaseStands reports false.
func (c *Calls) LeaseStands(h Handle) bool { return false }
