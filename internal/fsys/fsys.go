// SPDX-License-Identifier: Apache-2.0

// Package fsys is the seam between the engine and the operating system: held directory handles and kernel facilities,
// one file a mechanism, the same names on every platform. It decides nothing; it says what a call answered.
//
// Every name that a call takes is one component, validated with [ValidName] or read from a directory, and is looked up
// relative to a held handle, so that no path is resolved twice.
package fsys

import (
	"errors"
	"io/fs"
	"strings"
	"sync/atomic"
)

// Stamp is a point in time as the file system keeps it: seconds since 1970 and nanoseconds.
type Stamp struct {
	Sec  int64
	Nsec int32
}

// Before reports whether s is earlier than o.
func (s Stamp) Before(o Stamp) bool {
	return s.Sec < o.Sec || s.Sec == o.Sec && s.Nsec < o.Nsec
}

// Seen is what one look tells of a file, less all that a reader can move: two looks at an unchanged file are equal with ==.
type Seen struct {
	Volume, Mount uint64   // zero where the system has no mount ids
	File          [16]byte // zero is unknown
	Birth         Stamp    // zero is unknown
	Mtime, Ctime  Stamp
	Size          int64
	Mode          fs.FileMode
	UID, GID      uint32
}

// Stat is Seen and what is never compared.
type Stat struct {
	Seen
	Blocks    int64 // of 512 bytes
	Nlink     uint64
	MountRoot bool // the name is a mount point, as far as the system tells
	DAX       bool // reads and stores bypass the page cache
}

// Grain is how coarsely a file system stamps its changes.
type Grain uint8

// A file whose ctime is younger than the last whole grain may change again without a trace.
const (
	TwoSeconds Grain = iota // what is assumed of a file system that nobody measured
	Tick                    // stamped from the coarse clock; whole seconds where every nanosecond field is zero
	Immutable               // no write path at all: nothing is ever young
)

// Kind is what is known of a type of file system. The zero Kind is the weakest: nothing is proven by it but a true ctime.
type Kind struct {
	Name         string
	Grain        Grain
	Stores       bool // a store to a clean mapped page stamps ctime, and SyncRange cleans the pages
	Fsync        bool // the same, but only a whole fsync cleans them (overlayfs)
	LeaseNow     bool // a granted lease proves that nobody has it open for writing or mapped writable now, and every later write is stamped
	LeaseHeld    bool // a lease that stands proves that nobody has
	Clones       bool // it may have reflinks
	Remote       bool // attributes may be stale unless asked for with force; any call may wait for a server
	LockingReads bool // a read waits for a writer that is inside write()
	NoChange     bool // no true change time, so no proof beyond identity
	Pseudo       bool // sizes are inventions and reading may have side effects
}

// Counters are what the Calls of every system have: they count the handles of one operation and let a test act before, or
// in place of, any of its calls.
type Counters struct {
	// At, if not nil, is called before each call with the call's name and the component it concerns, if any.
	// An error stands for the system's answer and is treated as such: the call is not made, and after EINTR tried again.
	// ErrShort is an exception.
	At func(call, name string) error
	// Known, if not nil, is called with what is known of a file system, once for each, and may change it: one file system
	// passes for another.
	Known func(*Kind)

	open   atomic.Int64
	opened atomic.Int64
}

// Open returns how many handles are open, and Opened how many ever were.
func (c *Counters) Open() int64 { return c.open.Load() }

// Opened returns how many handles were ever opened.
func (c *Counters) Opened() int64 { return c.opened.Load() }

// ErrShort is for Counters.At: a Read, ReadNow or Write is asked for half of what it should do, as any of them may answer.
var ErrShort = errors.New("half of what was asked for")

// What callers tell apart without knowing the platform's numbers.
var (
	// ErrLeased occurs when an open would wait for the holder of a lease on the file.
	ErrLeased = errors.New("somebody holds a lease on the file")
	// ErrIsLink occurs when a name that must not be followed is a symbolic link.
	ErrIsLink = errors.New("is a symbolic link")
	// ErrWriter occurs when a lease is refused because the file is open for writing or mapped writable.
	ErrWriter = errors.New("the file is open for writing")
	// ErrNotAllowed occurs when a lease is refused because the file is somebody else's.
	ErrNotAllowed = errors.New("a lease needs the file's owner or CAP_LEASE")
	// ErrNoLease occurs when the system, a sandbox or the file system gives nobody a lease.
	ErrNoLease = errors.New("no lease is to be had")
)

// ValidName reports whether name is one component that the kernel will look up as one: not empty, not "." or "..",
// without a slash or NUL. A slash at the end would make the kernel follow a link in spite of O_NOFOLLOW.
func ValidName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}
