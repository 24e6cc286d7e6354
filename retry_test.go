// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"holdstill.example/snapshot"
)

func TestRetryable(t *testing.T) {
	t.Parallel()
	changed := &snapshot.ChangeError{Path: "a", Err: snapshot.ErrChangedDuringSnapshot}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("other"), false},
		{snapshot.ErrEvidence, false},
		{snapshot.ErrChanged, true},
		{snapshot.ErrBusy, true},
		{fmt.Errorf("take: %w", changed), true},
		{&fs.PathError{Op: "open", Path: "a", Err: snapshot.ErrBusy}, true},
		{errors.Join(changed, errors.New("other")), true},
		{errors.Join(changed, &snapshot.LeftoverError{Paths: []string{"x"}}), false},
		{errors.Join(changed, context.Canceled), false},
		{errors.Join(snapshot.ErrBusy, context.DeadlineExceeded), false},
		{context.Canceled, false},
	} {
		assert.Equal(t, tt.want, snapshot.Retryable(tt.err), "Retryable(%v)", tt.err)
	}
}

// tries runs Retry on a fake clock and returns when each try began.
func tries(ctx context.Context, b *snapshot.Backoff, f func(n int) error) (began []time.Duration, err error) {
	start := time.Now()
	err = snapshot.Retry(ctx, b, func(context.Context) error {
		began = append(began, time.Since(start))
		return f(len(began))
	})
	return began, err
}

func busy(int) error { return snapshot.ErrBusy }

func TestRetryUntilDone(t *testing.T) {
	t.Parallel()
	final := errors.New("final")
	for _, want := range []error{nil, final} {
		synctest.Test(t, func(t *testing.T) {
			began, err := tries(t.Context(), nil, func(n int) error {
				if n < 4 {
					return snapshot.ErrBusy
				}
				return want
			})
			assert.Equal(t, want, err)
			assert.Len(t, began, 4)
		})
	}
}

func TestRetryPauses(t *testing.T) {
	t.Parallel()
	for _, b := range []*snapshot.Backoff{
		nil,
		{First: 3 * time.Millisecond, Max: 20 * time.Millisecond, Total: time.Second},
		{First: time.Second, Max: time.Millisecond, Total: 100 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			first, longest, total := 10*time.Millisecond, time.Second, 10*time.Second
			if b != nil {
				first, longest, total = b.First, b.Max, b.Total
			}
			began, err := tries(t.Context(), b, busy)
			assert.Equal(t, snapshot.ErrBusy, err)
			length := min(first, longest)
			for i := 1; i < len(began); i++ {
				pause := began[i] - began[i-1]
				assert.GreaterOrEqual(t, pause, length/2, "pause %d", i)
				assert.LessOrEqual(t, pause, length, "pause %d", i)
				length = min(2*length, longest)
			}
			last := began[len(began)-1]
			assert.LessOrEqual(t, last, total)
			assert.Greater(t, last, total-longest, "gave up with time left")
		})
	}
}

// The time that tries take counts, too.
func TestRetryTotalCountsTries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, err := tries(t.Context(), &snapshot.Backoff{Total: time.Minute}, func(int) error {
			time.Sleep(40 * time.Second)
			return snapshot.ErrBusy
		})
		assert.ErrorIs(t, err, snapshot.ErrBusy)
		assert.Len(t, began, 2)
	})
}

func TestRetryUntilContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, cause)
		defer cancel()
		began, err := tries(ctx, &snapshot.Backoff{Total: -1}, busy)
		assert.ErrorIs(t, err, snapshot.ErrBusy)
		assert.ErrorIs(t, err, cause)
		assert.Greater(t, began[len(began)-1], time.Hour-time.Second)
	})
}

func TestRetryContextEndsInTry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		began, err := tries(ctx, nil, func(int) error {
			cancel(cause)
			return snapshot.ErrBusy
		})
		assert.Len(t, began, 1)
		assert.ErrorIs(t, err, snapshot.ErrBusy)
		assert.ErrorIs(t, err, cause)
	})
}

func TestRetryStartsNothing(t *testing.T) {
	t.Parallel()
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	began, err := tries(ctx, nil, busy)
	assert.Equal(t, cause, err)
	assert.Empty(t, began)

	for _, b := range []*snapshot.Backoff{{First: -1}, {Max: -1}} {
		began, err := tries(t.Context(), b, busy)
		assert.ErrorIs(t, err, fs.ErrInvalid)
		assert.Empty(t, began)
	}
}
