// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"io/fs"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOptionsCheck(t *testing.T) {
	t.Parallel()
	for _, o := range []*Options{
		nil,
		{},
		{Require: Quiescent, Links: LinksReject, Limits: PackageLimits()},
		{NeverLock: true, Require: Coherent}, // a clone needs no lock
		{Limits: Limits{MaxFileBytes: -1, MaxBytes: -1, MaxEntries: -1, MaxDepth: -1, MaxPath: -1, ReserveBytes: -1}},
	} {
		assert.NoError(t, o.check("take"), "%+v", o)
	}
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{Require: 6}, "take: Options.Require: evidence(6) is no level: invalid argument"},
		{Options{NeverLock: true, Require: Quiescent}, "take: Options.NeverLock: Require asks for quiescent, which only a lock proves: invalid argument"},
		{Options{Stall: -time.Second}, "take: Options.Stall: -1s is negative: invalid argument"},
		{Options{Attempts: -1}, "take: Options.Attempts: -1 is negative: invalid argument"},
		{Options{Links: 4}, "take: Options.Links: 4 is no policy: invalid argument"},
		{Options{Workers: -1}, "take: Options.Workers: -1 is negative: invalid argument"},
		{Options{Limits: Limits{MaxFileBytes: -2}}, "take: Options.Limits.MaxFileBytes: -2 is less than -1, which is no bound: invalid argument"},
		{Options{Limits: Limits{MaxBytes: -2}}, "take: Options.Limits.MaxBytes: -2 is less than -1, which is no bound: invalid argument"},
		{Options{Limits: Limits{MaxEntries: -2}}, "take: Options.Limits.MaxEntries: -2 is less than -1, which is no bound: invalid argument"},
		{Options{Limits: Limits{MaxDepth: -2}}, "take: Options.Limits.MaxDepth: -2 is less than -1, which is no bound: invalid argument"},
		{Options{Limits: Limits{MaxPath: -2}}, "take: Options.Limits.MaxPath: -2 is less than -1, which is no bound: invalid argument"},
		{Options{Limits: Limits{ReserveBytes: -2}}, "take: Options.Limits.ReserveBytes: -2 is less than -1, which is no bound: invalid argument"},
	} {
		err := tt.o.check("take")
		require.ErrorIs(t, err, fs.ErrInvalid, "%+v", tt.o)
		assert.Equal(t, tt.want, err.Error())
	}
}

func TestOptionsDefaults(t *testing.T) {
	t.Parallel()
	defaults := Limits{
		MaxFileBytes: 1 << 40, MaxBytes: 16 << 40, MaxEntries: 10_000_000, MaxDepth: 4096, MaxPath: 64 << 10,
	}
	for _, o := range []*Options{nil, {}} {
		got := o.withDefaults()
		assert.Equal(t, 5*time.Second, got.Stall)
		assert.Equal(t, 3, got.Attempts)
		assert.Positive(t, got.Workers)
		assert.LessOrEqual(t, got.Workers, 8)
		assert.Equal(t, defaults, got.Limits)
	}

	o := &Options{
		Stall: time.Second, Attempts: 1, Workers: 100, Require: Stable, seam: new(seam),
		Limits: Limits{MaxFileBytes: 5, MaxBytes: -1, MaxEntries: -1, MaxDepth: -1, MaxPath: -1, ReserveBytes: -1},
	}
	given := *o
	got := o.withDefaults()
	assert.Equal(t, given.Limits, o.Limits, "options are never written to")
	want := given
	want.Limits = Limits{MaxFileBytes: 5, MaxBytes: math.MaxInt64, MaxEntries: math.MaxInt64, MaxDepth: math.MaxInt, MaxPath: math.MaxInt, ReserveBytes: -1}
	assert.Equal(t, want, got)

	got = (&Options{Limits: PackageLimits()}).withDefaults()
	assert.Equal(t, Limits{
		MaxFileBytes: 16 << 20, MaxBytes: 128 << 20, MaxEntries: 30_000, MaxDepth: 64, MaxPath: 64 << 10,
	}, got.Limits)
}
