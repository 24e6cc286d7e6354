// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"time"
)

// Retryable reports whether trying again can help: ErrChanged or ErrBusy, and nothing was left behind.
// It is false for nil and for the error of a cancelled call.
func Retryable(err error) bool {
	for _, final := range []error{ErrLeftover, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, final) {
			return false
		}
	}
	return errors.Is(err, ErrChanged) || errors.Is(err, ErrBusy)
}

// Backoff spaces tries; nil and zero fields are the defaults. Each pause is drawn from half to all of its length, so that
// callers that met at one file do not meet again.
type Backoff struct {
	First time.Duration // before the second try; zero means 10 ms, and each next one is double
	Max   time.Duration // longest pause; zero means 1 s
	Total time.Duration // no try begins later than this after the first; zero means 10 s, negative until ctx ends
}

// Retry calls f until it returns nil or an error that is not Retryable, or time is up: then the last error of f, joined with
// context.Cause(ctx) if that ended it. If ctx has ended already, f is not called. A negative First or Max is [fs.ErrInvalid].
func Retry(ctx context.Context, b *Backoff, f func(context.Context) error) error {
	first, longest, total := 10*time.Millisecond, time.Second, 10*time.Second
	if b != nil {
		if b.First < 0 || b.Max < 0 {
			return fmt.Errorf("retry: Backoff: a pause is negative: %w", fs.ErrInvalid)
		}
		first, longest, total = cmp.Or(b.First, first), cmp.Or(b.Max, longest), cmp.Or(b.Total, total)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	start := time.Now()
	for length := min(first, longest); ; length = min(2*length, longest) {
		err := f(ctx)
		if !Retryable(err) {
			return err
		}
		pause := length - rand.N(length/2+1)
		if ctx.Err() == nil && total >= 0 && pause > total-time.Since(start) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		if ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}
