// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"fmt"
	"io/fs"
	"math"
	"runtime"
	"time"
)

// Options says how sources are read, what a tree may hold, and what is written. The fields under "Trees" mean nothing to calls on one file.
type Options struct {
	// Every file.
	Require   Evidence      // refuse less, with ErrEvidence; zero takes the best that delays nobody (Windows: the share lock, so Quiescent) and reports it
	NeverLock bool          // no lease, not even a momentary one, and no share lock (Windows): writers are never delayed or refused, evidence may be less
	Stall     time.Duration // longest wait for a writer that stalls inside a write call, or for bytes of a server; then ErrBusy. Zero means 5 s
	Recall    bool          // fetch cloud placeholders; false is ErrOffline
	Attempts  int           // tries of a file or rounds of a tree; zero means 3
	Limits    Limits

	// Trees.
	Links       LinkPolicy
	SkipSpecial bool                             // leave out FIFOs, sockets and devices, and report them; false is ErrNotRegular
	CrossMounts bool                             // enter mount points; false is ErrEscapes
	SingleLink  bool                             // refuse a file with another hard link and another owner than the root's (ErrEscapes): its other name may lie outside
	Exclude     *Filter                          // nil excludes nothing
	Skip        func(path string, st State) bool // asked after Exclude, from several goroutines; true leaves it out, reported
	PerFile     bool                             // no collect: each file is proven, the tree is not one instant
	Workers     int                              // zero means GOMAXPROCS, at most 8

	// What is written.
	PreserveMode bool           // the nine permission bits exactly; false gives 0400, 0500 and directories 0500
	Durable      bool           // data, directories and the published name survive a power cut
	Progress     func(Progress) // called at most ten times a second and once at the end, never concurrently; nil is free

	seam *seam
}

// Limits are bounds, checked before bytes are read, cloned or written. Zero is the default named; -1 is no bound.
type Limits struct {
	MaxFileBytes int64 // logical size of one file; zero means 1 TiB, in ReadFile 64 MiB
	MaxBytes     int64 // logical size of all files and the bytes of all paths; zero means 16 TiB
	MaxEntries   int64 // zero means 10 million
	MaxDepth     int   // directories below the root; zero means 4096
	MaxPath      int   // bytes of one path below the root; zero means 64 KiB
	ReserveBytes int64 // free bytes to leave at the destination; zero means the smaller of 256 MiB and a twentieth of it
}

// PackageLimits are bounds for directories of packages and plug-ins: 16 MiB a file, 128 MiB, 30,000 entries, depth 64.
// The others are the defaults.
func PackageLimits() Limits {
	return Limits{MaxFileBytes: 16 << 20, MaxBytes: 128 << 20, MaxEntries: 30_000, MaxDepth: 64}
}

// LinkPolicy says what becomes of symbolic links. A link's text is changed only where it must be to end inside the copy.
type LinkPolicy uint8

const (
	LinksInside       LinkPolicy = iota // kept if they end inside a root, at something that is not left out, else ErrEscapes
	LinksInsideOrSkip                   // kept if they end inside a root, else left out and reported
	LinksVerbatim                       // the text is kept, wherever it leads
	LinksReject                         // any link is ErrEscapes
)

// Progress holds totals that never fall.
type Progress struct {
	Files, Bytes int64
	Round        int
	Path         string // being worked on
	Waiting      string // what is being waited for, such as "clock tick"; empty if nothing
}

// check returns an fs.ErrInvalid error that begins with verb and names the first field that makes no sense; nil is fine.
func (o *Options) check(verb string) error {
	if o == nil {
		return nil
	}
	switch {
	case o.Require > Quiescent:
		return badField(verb, "Require", "%v is no level", o.Require)
	case o.NeverLock && o.Require == Quiescent:
		return badField(verb, "NeverLock", "Require asks for quiescent, which only a lock proves")
	case o.Stall < 0:
		return badField(verb, "Stall", "%v is negative", o.Stall)
	case o.Attempts < 0:
		return badField(verb, "Attempts", "%d is negative", o.Attempts)
	case o.Links > LinksReject:
		return badField(verb, "Links", "%d is no policy", o.Links)
	case o.Workers < 0:
		return badField(verb, "Workers", "%d is negative", o.Workers)
	}
	return o.Limits.check(verb)
}

func (l Limits) check(verb string) error {
	for _, bound := range []struct {
		field string
		value int64
	}{
		{"MaxFileBytes", l.MaxFileBytes},
		{"MaxBytes", l.MaxBytes},
		{"MaxEntries", l.MaxEntries},
		{"MaxDepth", int64(l.MaxDepth)},
		{"MaxPath", int64(l.MaxPath)},
		{"ReserveBytes", l.ReserveBytes},
	} {
		if bound.value < -1 {
			return badField(verb, "Limits."+bound.field, "%d is less than -1, which is no bound", bound.value)
		}
	}
	return nil
}

func badField(verb, field, format string, args ...any) error {
	return fmt.Errorf("%s: Options.%s: %s: %w", verb, field, fmt.Sprintf(format, args...), fs.ErrInvalid)
}

// withDefaults returns a copy in which no field but ReserveBytes stands for another value; nil is fine.
func (o *Options) withDefaults() Options {
	var c Options
	if o != nil {
		c = *o
	}
	c.Stall = cmp.Or(c.Stall, 5*time.Second)
	c.Attempts = cmp.Or(c.Attempts, 3)
	c.Workers = cmp.Or(c.Workers, min(runtime.GOMAXPROCS(0), 8))
	c.Limits = c.Limits.withDefaults()
	return c
}

// withDefaults leaves ReserveBytes alone: its default, zero, depends on the size of the destination's file system.
func (l Limits) withDefaults() Limits {
	l.MaxFileBytes = bound(l.MaxFileBytes, 1<<40, math.MaxInt64)
	l.MaxBytes = bound(l.MaxBytes, 16<<40, math.MaxInt64)
	l.MaxEntries = bound(l.MaxEntries, 10_000_000, math.MaxInt64)
	l.MaxDepth = bound(l.MaxDepth, 4096, math.MaxInt)
	l.MaxPath = bound(l.MaxPath, 64<<10, math.MaxInt)
	return l
}

func bound[T int | int64](value, zero, none T) T {
	switch value {
	case 0:
		return zero
	case -1:
		return none
	}
	return value
}
