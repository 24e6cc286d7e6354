// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"time"

	"holdstill.example/snapshot/internal/fsys"
)

// source is one regular file, open on a description of our own.
type source struct {
	h     fsys.Handle
	clock fsys.Stamp // read before seen was taken
	stat  fsys.Stat  // its State before the bytes
	kind  *fsys.Kind
	ours  bool // the description is ours: a lease or a moved offset is nobody else's
}

// whyNot says why the evidence for a file is not higher.
type whyNot uint8

const (
	whyNothing whyNot = iota
	whyWriter
	whyForeign
	whyNoLease
	whyNeverLock
	whyStores
	whyOverlay
	whyRemote
	whyUnmeasured
	whyDAX
	whyYoung
	whyNoChange
	whyShared
	whyNotAsked
)

func (w whyNot) text(kind *fsys.Kind) string {
	name := "this file system"
	if kind != nil && kind.Name != "" {
		name = kind.Name
	}
	switch w {
	case whyWriter:
		return "somebody has the file open for writing"
	case whyForeign:
		return "a lease needs the file's owner or CAP_LEASE"
	case whyNoLease:
		return "no lease is to be had here"
	case whyNeverLock:
		return "NeverLock forbids a lease"
	case whyStores:
		return name + ": stores through a mapping leave no stamp"
	case whyOverlay:
		return name + ": mapped stores cannot be seen without an fsync of the source; Require Buffered asks for it"
	case whyRemote:
		return name + ": another machine or process answers for it"
	case whyUnmeasured:
		return name + ": no more was ever measured there"
	case whyDAX:
		return "stores to a DAX file bypass the page cache"
	case whyYoung:
		return "changed too recently for its stamps to be trusted"
	case whyNoChange:
		return name + " keeps no change time"
	case whyShared:
		return "the caller's handle could not be opened anew"
	case whyNotAsked:
		return "a lease was not held while it was read; Require Quiescent asks for it"
	}
	return ""
}

// settled reports whether any change after the State that s is must move its ctime: the stamp is older than the last
// whole grain of the clock, which was read before the State was taken.
//
// Whole seconds on ext4 with 128-byte inodes: 19,678 of 19,684 overlapping writes were invisible without the floor.
func settled(s *fsys.Seen, clock fsys.Stamp, kind *fsys.Kind) bool {
	// The clock will not reach a stamp far ahead of it before the collect, which looks once more.
	return older(s, clock, kind) || ahead(s, clock)
}

func older(s *fsys.Seen, clock fsys.Stamp, kind *fsys.Kind) bool {
	if kind.Grain == fsys.Immutable {
		return true
	}
	floor := clock
	switch {
	case kind.Grain == fsys.TwoSeconds:
		floor = fsys.Stamp{Sec: clock.Sec &^ 1}
	case s.Ctime.Nsec == 0 && s.Mtime.Nsec == 0 && s.Birth.Nsec == 0:
		floor = fsys.Stamp{Sec: clock.Sec}
	}
	return s.Ctime.Before(floor)
}

// ahead reports whether the ctime lies more than a second in the future.
func ahead(s *fsys.Seen, clock fsys.Stamp) bool {
	return fsys.Stamp{Sec: clock.Sec + 1, Nsec: clock.Nsec}.Before(s.Ctime)
}

// settlesIn returns how long it takes until a State with the ctime of s can be settled.
func settlesIn(s *fsys.Seen, kind *fsys.Kind) time.Duration {
	now := fsys.Clock()
	if settled(s, now, kind) {
		return 0
	}
	until := fsys.Stamp{Sec: s.Ctime.Sec, Nsec: s.Ctime.Nsec + 1}
	switch {
	case kind.Grain == fsys.TwoSeconds:
		until = fsys.Stamp{Sec: s.Ctime.Sec&^1 + 2}
	case s.Ctime.Nsec == 0 && s.Mtime.Nsec == 0 && s.Birth.Nsec == 0:
		until = fsys.Stamp{Sec: s.Ctime.Sec + 1}
	}
	d := time.Duration(until.Sec-now.Sec)*time.Second + time.Duration(until.Nsec-now.Nsec)
	return min(max(d, time.Millisecond), settleBudget)
}

// settleBudget is the longest time that a round waits for stamps to settle: the coarsest grain and some ticks.
const settleBudget = 2100 * time.Millisecond

// maySettle reports whether a State like s can be settled within what is left of the round's budget.
func (o *op) maySettle(s *fsys.Seen, kind *fsys.Kind) bool {
	return o.waited+settlesIn(s, kind) <= settleBudget
}

// settle waits, within what is left of the round's budget, until a State like s is settled. It reports false when the
// budget is used up.
func (o *op) settle(ctx context.Context, s *fsys.Seen, kind *fsys.Kind, path place) (bool, error) {
	for {
		d := settlesIn(s, kind)
		if d == 0 {
			return true, nil
		}
		if o.waited+d > settleBudget {
			return false, nil
		}
		o.progress.waiting("clock tick", path)
		start := time.Now()
		sleep(ctx, d)
		o.waited += time.Since(start)
		if err := canceled(ctx, "settle", path); err != nil {
			return false, err
		}
	}
}

// evidence is what was brought up for one source before its bytes are read.
type evidence struct {
	level  Evidence
	why    whyNot
	hold   bool   // take a lease for the time of the read
	cloned bool   // the destination is a reflink of the source, to be hashed
	guard  *guard // reads go through it; nil if nothing can stall them
}

// bringUp does, after the first State and before the first byte, what makes every later change of src show in its State:
// in this order, since a store between a barrier and the first State would be stamped before both looks and seen by none.
func (r *reader) bringUp(ctx context.Context, src *source, out *sink, path place) (evidence, error) {
	var ev evidence
	young := !settled(&src.stat.Seen, src.clock, src.kind) && !r.off(checkSettled)
	switch k := src.kind; {
	case k.NoChange:
		ev = evidence{level: Identified, why: whyNoChange}
	case young:
		ev = evidence{level: Identified, why: whyYoung}
	case r.off(checkEvidence):
		ev = evidence{level: Coherent}
	case r.opts.Require == Quiescent:
		return r.bringUpLease(src, path)
	case src.stat.DAX:
		ev = evidence{level: Stable, why: whyDAX}
	case k.Stores:
		return r.bringUpStores(ctx, src, out, path)
	case k.Fsync && r.opts.Require == Buffered:
		return r.bringUpBarriers(ctx, src, whyOverlay, path)
	case k.Fsync:
		ev = evidence{level: Stable, why: whyOverlay}
	case k.Remote:
		ev = evidence{level: Stable, why: whyRemote}
	case k.LeaseHeld:
		ev = evidence{level: Stable, why: whyStores}
	default:
		ev = evidence{level: Stable, why: whyUnmeasured}
	}
	if err := r.enough(ev, src, path); err != nil {
		return ev, err
	}
	if src.kind.Remote {
		err := r.guardReads(src, &ev)
		return ev, orPathError("duplicate", path, err)
	}
	return ev, nil
}

// bringUpStores asks for a momentary lease, which is both barriers at a tenth of their price and covers O_DIRECT: granted
// means that nobody has the file open for writing or mapped writable now, and all that comes later is stamped. It is asked
// for first because only its answer comes at once: a clone and the barriers wait for a writer that may never finish.
func (r *reader) bringUpStores(ctx context.Context, src *source, out *sink, path place) (evidence, error) {
	why, err := r.momentaryLease(src)
	if err != nil {
		return evidence{}, newPathError("lease", path, err)
	}
	ev := evidence{level: Coherent, why: whyNotAsked}
	if why != whyNothing || src.stat.Size >= cloneFrom {
		if ev.cloned, err = r.clone(ctx, src, out); err != nil {
			return evidence{}, newPathError("clone", path, err)
		}
	}
	if why == whyNothing || ev.cloned {
		return ev, nil
	}
	return r.bringUpBarriers(ctx, src, why, path)
}

// momentaryLease returns why there was none, or whyNothing.
func (o *op) momentaryLease(src *source) (whyNot, error) {
	switch {
	case o.opts.NeverLock:
		return whyNeverLock, nil
	case !src.ours:
		return whyShared, nil
	case o.lacks(noLease):
		return whyForeign, nil
	}
	err := o.calls.Lease(src.h)
	switch {
	case err == nil:
		return whyNothing, o.calls.DropLease(src.h)
	case errors.Is(err, fsys.ErrWriter):
		return whyWriter, nil
	case errors.Is(err, fsys.ErrNotAllowed):
		return whyForeign, nil
	case errors.Is(err, fsys.ErrNoLease):
		return whyNoLease, nil
	}
	return whyNothing, err
}

// bringUpBarriers waits for the buffered write that is under way and arms the detection of mapped stores.
func (o *op) bringUpBarriers(ctx context.Context, src *source, why whyNot, path place) (evidence, error) {
	if !src.ours { // SEEK_DATA would move an offset that is the caller's
		ev := evidence{level: Stable, why: whyShared}
		return ev, o.enough(ev, src, path)
	}
	ev := evidence{level: Buffered, why: why}
	if err := o.enough(ev, src, path); err != nil {
		return ev, err
	}
	if err := o.guardReads(src, &ev); err != nil {
		return ev, newPathError("duplicate", path, err)
	}
	arm := o.calls.ArmStores
	if src.kind.Fsync {
		arm = o.calls.Sync
	}
	err := ev.guard.do(ctx, func(h fsys.Handle, _ []byte) (int, error) {
		return 0, errors.Join(o.calls.WaitWriters(h), arm(h))
	})
	if err != nil {
		ev.guard.end()
		return evidence{}, newPathError("wait for writers", path, err)
	}
	if !src.kind.LockingReads && !src.kind.Remote {
		ev.guard.end()
		ev.guard = nil
	}
	return ev, nil
}

// bringUpLease prepares for a lease that is held over the read.
func (o *op) bringUpLease(src *source, path place) (evidence, error) {
	ev := evidence{level: Quiescent, hold: true}
	switch {
	case src.stat.DAX:
		ev = evidence{level: Stable, why: whyDAX}
	case !src.kind.LeaseHeld:
		ev = evidence{level: Stable, why: whyUnmeasured}
		if src.kind.Remote {
			ev.why = whyRemote
		}
	case !src.ours:
		ev = evidence{level: Stable, why: whyShared}
	case o.lacks(noLease):
		ev = evidence{level: Buffered, why: whyForeign}
	}
	return ev, o.enough(ev, src, path)
}

// enough refuses evidence below Options.Require before a byte is read: ErrBusy if a writer is the only reason.
func (o *op) enough(ev evidence, src *source, path place) error {
	if ev.level >= o.opts.Require {
		return nil
	}
	if ev.why == whyWriter {
		return newPathError("lease", path, ErrBusy)
	}
	return &EvidenceError{Path: path.String(), Required: o.opts.Require, Reached: ev.level, Because: ev.why.text(src.kind)}
}

// leased runs f while a lease on src is held. f has to call poll at least once in each MiB and stop at its error.
func (o *op) leased(src *source, path place, f func(poll func() error) error) (err error) {
	switch err := o.calls.Lease(src.h); {
	case errors.Is(err, fsys.ErrWriter):
		return newPathError("lease", path, ErrBusy)
	case errors.Is(err, fsys.ErrNotAllowed):
		return &EvidenceError{Path: path.String(), Required: o.opts.Require, Reached: Buffered, Because: whyForeign.text(src.kind)}
	case errors.Is(err, fsys.ErrNoLease):
		return &EvidenceError{Path: path.String(), Required: o.opts.Require, Reached: Buffered, Because: whyNoLease.text(src.kind)}
	case err != nil:
		return newPathError("lease", path, err)
	}
	defer func() {
		err = errors.Join(err, orPathError("drop lease", path, o.calls.DropLease(src.h)))
	}()
	// The State that counts is one under the lease: what came before it shows in the compare.
	now, err := o.calls.Stat(src.h, src.kind.Remote)
	if err != nil {
		return newPathError("stat", path, err)
	}
	if err := changed(&src.stat.Seen, &now.Seen, path); err != nil {
		return err
	}
	poll := func() error {
		if o.calls.LeaseStands(src.h) {
			return nil
		}
		seen := stateOf(&src.stat.Seen)
		return &ChangeError{Path: path.String(), Reason: WriterArrived, Before: seen, After: seen, Err: ErrChangedDuringSnapshot}
	}
	if err := f(poll); err != nil {
		return err
	}
	return poll()
}

// changed returns a *ChangeError if a file read between two looks differs in them.
func changed(before, after *fsys.Seen, path place) error {
	reason := drift(before, after)
	if reason == 0 {
		return nil
	}
	return &ChangeError{
		Path: path.String(), Reason: reason,
		Before: stateOf(before), After: stateOf(after),
		Err: ErrChangedDuringSnapshot,
	}
}

// guard makes calls that may wait in the kernel for a stalled writer, beyond the reach of any signal (SEEK_DATA, and a read
// on xfs, wait for the inode's lock). They run on a goroutine that owns only a duplicate descriptor and a buffer; it may be
// abandoned and ends when the kernel lets it go.
type guard struct {
	o         *op
	jobs      chan func()
	ended     chan struct{}
	h         fsys.Handle
	buf       []byte
	stall     time.Duration
	abandoned bool
}

// guardReads starts a guard for src.
func (o *op) guardReads(src *source, ev *evidence) error {
	h, err := o.calls.Dup(uintptr(src.h))
	if err != nil {
		return err
	}
	g := &guard{o: o, jobs: make(chan func()), ended: make(chan struct{}), h: h, stall: o.opts.Stall}
	go func() {
		defer close(g.ended)
		for job := range g.jobs {
			job()
		}
		_ = o.calls.Close(h) // a duplicate that only read: nothing can be lost in it
	}()
	ev.guard = g
	return nil
}

// do runs f, and returns ErrBusy after Options.Stall or the cause of an ended ctx: then the guard is of no more use.
func (g *guard) do(ctx context.Context, f func(h fsys.Handle, buf []byte) (int, error)) error {
	_, err := g.result(ctx, f)
	return err
}

func (g *guard) result(ctx context.Context, f func(h fsys.Handle, buf []byte) (int, error)) (int, error) {
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	buf := g.buf
	g.jobs <- func() {
		n, err := f(g.h, buf)
		done <- result{n, err}
	}
	timer := time.NewTimer(g.stall)
	defer timer.Stop()
	var err error
	select {
	case r := <-done:
		return r.n, r.err
	case <-timer.C:
		err = errStalled
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	g.o.abandoned.Add(1)
	g.abandoned = true
	return 0, err
}

// read reads at off into a buffer that is valid until the next call.
func (g *guard) read(ctx context.Context, size int, off int64) ([]byte, error) {
	if len(g.buf) < size {
		g.buf = make([]byte, size)
	}
	n, err := g.result(ctx, func(h fsys.Handle, buf []byte) (int, error) {
		return g.o.calls.Read(h, buf[:size], off)
	})
	if err != nil {
		return nil, err
	}
	return g.buf[:n], nil
}

// end closes the duplicate; an abandoned goroutine does so when the kernel lets it.
func (g *guard) end() {
	if g == nil {
		return
	}
	close(g.jobs)
	if !g.abandoned {
		<-g.ended
	}
}

// errStalled is ErrBusy with the reason that a retry may not help soon.
var errStalled error = &sentinel{"a writer stalled inside a write call", ErrBusy}

// orPathError puts the path to an error that has none yet.
func orPathError[P string | place](verb string, path P, err error) error {
	if err == nil {
		return nil
	}
	return newPathError(verb, path, err)
}
