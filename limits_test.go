//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// TestLimits: each bound holds what it says, and not one more.
func TestLimits(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	// 5 entries with the root, 12 bytes in files, 1 + 3 + 5 + 10 bytes in paths, the deepest directory at 2.
	fstest.Make(t, src, "a=hello", "d/e/file78=seven..", "d/e/")
	for _, tt := range []struct {
		field  string
		limits func(n int64) snapshot.Limits
		enough int64
		path   string // that the error names, below the root
	}{
		{"MaxFileBytes", func(n int64) snapshot.Limits { return snapshot.Limits{MaxFileBytes: n} }, 7, "/d/e/file78"},
		{"MaxBytes", func(n int64) snapshot.Limits { return snapshot.Limits{MaxBytes: n} }, 12 + 1 + 1 + 3 + 10, ""},
		{"MaxEntries", func(n int64) snapshot.Limits { return snapshot.Limits{MaxEntries: n} }, 5, ""},
		{"MaxDepth", func(n int64) snapshot.Limits { return snapshot.Limits{MaxDepth: int(n)} }, 2, "/d/e"},
		{"MaxPath", func(n int64) snapshot.Limits { return snapshot.Limits{MaxPath: int(n)} }, 10, ""},
	} {
		t.Run(tt.field, func(t *testing.T) {
			t.Parallel()
			for verb, f := range map[string]func(*snapshot.Options) error{
				"CopyDir": func(o *snapshot.Options) error {
					return errorOf(copyTree(t, filepath.Join(fstest.TempDir(t), "dst"), src, o))
				},
				"Scan": func(o *snapshot.Options) error {
					return errorOf(snapshot.Scan(t.Context(), src, balanced(t, o, snapshot.Seam{})))
				},
			} {
				assert.NoError(t, f(&snapshot.Options{Limits: tt.limits(tt.enough)}), verb)
				assert.NoError(t, f(&snapshot.Options{Limits: tt.limits(-1)}), verb)
				err := f(&snapshot.Options{Limits: tt.limits(tt.enough - 1)})
				assert.ErrorIs(t, err, snapshot.ErrLimit, verb)
				assert.False(t, snapshot.Retryable(err), verb)
				limit, ok := errors.AsType[*snapshot.LimitError](err)
				require.True(t, ok, "%s: %v", verb, err)
				assert.Equal(t, tt.field, limit.Field, verb)
				assert.Equal(t, tt.enough-1, limit.Limit, verb)
				assert.Equal(t, tt.enough, limit.Got, verb)
				assert.True(t, strings.HasPrefix(limit.Path, src), "%s: %q", verb, limit.Path)
				if tt.path != "" {
					assert.Equal(t, src+tt.path, limit.Path, verb)
				}
			}
		})
	}
}

// TestLimitsBeforeBytes: a file that is too large is not read, and nothing is written for it.
func TestLimitsBeforeBytes(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "huge=~1TiB", "huger=~2TiB")
	seam := snapshot.Seam{At: func(call, name string) error {
		assert.NotContains(t, []string{"Read", "Clone", "Allocate", "Lease", "Truncate"}, call, "%s %q", call, name)
		return nil
	}}
	for name, tt := range map[string]struct {
		limits snapshot.Limits
		field  string
		got    int64
	}{
		"huge":  {snapshot.Limits{MaxFileBytes: 1 << 30}, "MaxFileBytes", 1 << 40},
		"huger": {snapshot.Limits{}, "MaxFileBytes", 2 << 40}, // the default is 1 TiB
	} {
		_, err := copyOne(t, filepath.Join(dir, "dst"), filepath.Join(src, name), &snapshot.Options{Limits: tt.limits}, seam)
		limit, ok := errors.AsType[*snapshot.LimitError](err)
		require.True(t, ok, "%v", err)
		assert.Equal(t, tt.field, limit.Field)
		assert.Equal(t, tt.got, limit.Got)
	}
	for _, limits := range []snapshot.Limits{{MaxFileBytes: 1 << 30}, {MaxFileBytes: -1, MaxBytes: 1 << 30}} {
		_, err := copyTreeWith(t.Context(), t, filepath.Join(dir, "dst"), src, &snapshot.Options{Limits: limits}, seam)
		assert.ErrorIs(t, err, snapshot.ErrLimit, "%+v", limits)
	}
}

// TestLimitsAreOfTheTree: what a round drops does not count, what it adds does.
func TestLimitsAreOfTheTree(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "d/a=@1000B", "d/b=@1000B")
	seam := func(change func()) snapshot.Seam {
		rounds := 0
		return snapshot.Seam{Phase: func(phase string) {
			if phase == "joined" {
				if rounds++; rounds == 1 {
					change()
				}
			}
		}}
	}
	opts := &snapshot.Options{Limits: snapshot.Limits{MaxBytes: 2100, MaxEntries: 5}}
	_, err := copyTreeWith(t.Context(), t, filepath.Join(dir, "dst"), src, opts, seam(func() {
		assert.NoError(t, os.Rename(src+"/d/a", src+"/c"))
	}))
	assert.NoError(t, err)
	_, err = copyTreeWith(t.Context(), t, filepath.Join(dir, "dst2"), src, opts, seam(func() {
		fstest.Make(t, src, "more=x", "most=x")
	}))
	assert.ErrorIs(t, err, snapshot.ErrLimit)
	require.NoError(t, errors.Join(os.Remove(src+"/more"), os.Remove(src+"/most")))
	_, err = copyTreeWith(t.Context(), t, filepath.Join(dir, "dst3"), src, opts, seam(func() {
		assert.NoError(t, os.WriteFile(src+"/c", make([]byte, 1200), 0o644))
	}))
	limit, ok := errors.AsType[*snapshot.LimitError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, "MaxBytes", limit.Field)
}
