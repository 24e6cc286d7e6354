// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"errors"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Pin holds whatever the name of dir is, without opening it: no driver is entered, no FIFO's writer wakes, no link is
// followed, and the file's number cannot be given to another file while the pin lives.
func (c *Calls) Pin(dir Handle, name string) (Handle, error) {
	return c.openat("Pin", dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
}

// PinPath pins the directory that path names, links followed.
func (c *Calls) PinPath(path string) (Handle, error) {
	return c.openat("PinPath", unix.AT_FDCWD, path, unix.O_PATH|unix.O_DIRECTORY, 0)
}

// Reopen opens for reading the very file that a pin, or another handle, holds. errors.ErrUnsupported says that there is no
// /proc, or that this thread's descriptors are not the process's: then OpenFile has to be compared with the pin.
func (c *Calls) Reopen(pin Handle) (Handle, error) {
	fds, err := c.procDir.open(c)
	if err != nil {
		return NoHandle, err
	}
	h, err := c.handle("Reopen", "", func() (int, error) {
		return openat(int(fds), strconv.Itoa(int(pin)), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err == unix.ENOENT {
		return NoHandle, errors.ErrUnsupported
	}
	return h, openError(err)
}

// errnoIsLink is what O_NOFOLLOW answers for a link.
const errnoIsLink = unix.ELOOP

// Calls are the calls of one operation. The zero Calls is ready for use. It must not be copied.
type Calls struct {
	Counters
	procDir procDir
	kinds   sync.Map // [2]uint64{volume, mount} → *Kind
}

// procDir is /proc/self/fd, looked up once an operation: a descriptor of it works on after /proc was unmounted, and saves
// the look-up of three components a file.
type procDir struct {
	once sync.Once
	h    Handle
	err  error
}

func (p *procDir) open(c *Calls) (Handle, error) {
	p.once.Do(func() {
		p.h, p.err = c.openat("ProcDir", unix.AT_FDCWD, "/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY, 0)
		var s unix.Statfs_t
		if p.err == nil && (unix.Fstatfs(int(p.h), &s) != nil || s.Type != unix.PROC_SUPER_MAGIC) {
			// A directory mounted over /proc could hand out any file under a descriptor's number.
			p.err = errors.Join(errors.ErrUnsupported, c.Close(p.h))
			p.h = NoHandle
		}
		if p.err != nil {
			p.err = errors.ErrUnsupported
		}
	})
	return p.h, p.err
}

// Finish closes what the calls keep for themselves.
func (c *Calls) Finish() {
	p := &c.procDir
	p.once.Do(func() { p.h, p.err = NoHandle, errors.ErrUnsupported })
	if p.h != NoHandle {
		_ = c.Close(p.h) // nothing was written through it
	}
	p.h, p.err = NoHandle, errors.ErrUnsupported
}
