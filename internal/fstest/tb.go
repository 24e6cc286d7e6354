// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
)

// TB is the part of testing.TB that this package needs. Unlike it, a program can implement it.
type TB interface {
	Helper()
	Name() string
	Context() context.Context
	Cleanup(f func())
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	FailNow()
	Skipf(format string, args ...any)
}

// Run calls f outside of a test, with a TB whose context is a child of ctx and whose log lines go to w. The error holds the
// texts of all failures; a skip is an error that is [errors.ErrUnsupported].
func Run(ctx context.Context, name string, w io.Writer, f func(TB)) error {
	ctx, cancel := context.WithCancel(ctx)
	r := &runner{ctx: ctx, name: name, w: w}
	// A goroutine of its own, because FailNow and Skipf end it.
	var wg sync.WaitGroup
	wg.Go(func() {
		defer r.clean()
		defer cancel()
		f(r)
	})
	wg.Wait()
	switch {
	case r.failed:
		return fmt.Errorf("%s: failed: %s", name, strings.Join(r.failures, "\n"))
	case r.skipped != "":
		return fmt.Errorf("%s: %s: %w", name, r.skipped, errors.ErrUnsupported)
	}
	return nil
}

type runner struct {
	ctx  context.Context
	name string

	mu       sync.Mutex
	w        io.Writer
	cleanups []func()
	failures []string
	failed   bool
	skipped  string
}

func (r *runner) Helper()                  {}
func (r *runner) Name() string             { return r.name }
func (r *runner) Context() context.Context { return r.ctx }

func (r *runner) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

// clean runs the last function first; the deferred call goes on with the others after one that ended the goroutine.
func (r *runner) clean() {
	r.mu.Lock()
	n := len(r.cleanups)
	if n == 0 {
		r.mu.Unlock()
		return
	}
	f := r.cleanups[n-1]
	r.cleanups = r.cleanups[:n-1]
	r.mu.Unlock()
	defer r.clean()
	f()
}

func (r *runner) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.w, "%s: %s\n", r.name, fmt.Sprintf(format, args...))
}

func (r *runner) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *runner) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	r.FailNow()
}

func (r *runner) FailNow() {
	r.mu.Lock()
	r.failed = true
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *runner) Skipf(format string, args ...any) {
	r.mu.Lock()
	r.skipped = fmt.Sprintf(format, args...)
	r.mu.Unlock()
	runtime.Goexit()
}
