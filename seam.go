// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"holdstill.example/snapshot/internal/fsys"
)

// seam is what a test hangs on one operation: it travels in Options, so that tests run in parallel.
type seam struct {
	at        func(call, name string) error // before each call to the system, see fsys.Calls.At
	phase     func(phase string)            // when a tree is joined, collected, proven, published
	finished  func(open, opened int64)      // handles, when the operation has ended
	weakening                               // a check that is switched off, in the weakened build only
	lacks     fallback                      // mechanisms to do without
	known     func(*fsys.Kind)              // what is known of a file system, see fsys.Counters.Known
}

// fallback is a mechanism that a system may lack and a test can take away.
type fallback uint8

const (
	noClone fallback = 1 << iota
	noNameless
	noRenameNoReplace
	noLease
)

// op is one operation: its options with every default applied, its calls to the system, and what it counts.
type op struct {
	opts      Options
	calls     *fsys.Calls
	seam      *seam
	progress  *meter
	abandoned atomic.Int64
	waited    time.Duration // for stamps to settle, in this round
}

func newOp(opts *Options) *op {
	o := &op{opts: opts.withDefaults(), calls: new(fsys.Calls)}
	if o.seam = o.opts.seam; o.seam == nil {
		o.seam = new(seam)
	}
	o.calls.At, o.calls.Known = o.seam.at, o.seam.known
	o.progress = newMeter(o.opts.Progress)
	return o
}

// finish closes what the operation kept and reports its handles to a test.
func (o *op) finish() {
	o.calls.Finish()
	if o.seam.finished != nil {
		o.seam.finished(o.calls.Open(), o.calls.Opened())
	}
}

func (o *op) lacks(f fallback) bool { return o.seam.lacks&f != 0 }

func (o *op) phase(name string) {
	if o.seam.phase != nil {
		o.seam.phase(name)
	}
}

// closeWritten closes a file that was written, where a server may say only now that it could not.
func (o *op) closeWritten(h fsys.Handle, path place, err *error) {
	if h != fsys.NoHandle {
		*err = errors.Join(*err, orPathError("close", path, o.calls.Close(h)))
	}
}

// release closes a handle through which nothing was written: there is no error of it that anybody could use.
func (o *op) release(h fsys.Handle) {
	if h != fsys.NoHandle {
		_ = o.calls.Close(h)
	}
}

// canceled returns the cause of an ended ctx, with the path that was worked on.
func canceled[P string | place](ctx context.Context, verb string, path P) error {
	if ctx.Err() == nil {
		return nil
	}
	return newPathError(verb, path, context.Cause(ctx))
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
