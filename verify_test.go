//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// TestVerify: every difference is found, the first one in the manifest's order is named, with what was recorded and found.
func TestVerify(t *testing.T) {
	t.Parallel()
	base := []string{"a=hello", "b/c 0755=deep", "b/l => ../a", "b/out => /nowhere", "z=last"}
	for name, tt := range map[string]struct {
		change         func(t *testing.T, dir string)
		path           string
		recorded, kept bool // there is such an entry; there still is
	}{
		"equal": {func(*testing.T, string) {}, "", false, false},
		"touched": {func(t *testing.T, dir string) {
			require.NoError(t, os.Chtimes(dir+"/a", time.Unix(1, 0), time.Unix(1, 0)))
		}, "", false, false},
		"one byte":          {func(t *testing.T, dir string) { put(t, dir+"/a", "hellO") }, "a", true, true},
		"longer":            {func(t *testing.T, dir string) { put(t, dir+"/b/c", "deeper") }, "b/c", true, true},
		"mode":              {func(t *testing.T, dir string) { require.NoError(t, os.Chmod(dir+"/b/c", 0o700)) }, "b/c", true, true},
		"mode of a dir":     {func(t *testing.T, dir string) { require.NoError(t, os.Chmod(dir+"/b", 0o700)) }, "b", true, true},
		"mode of the root":  {func(t *testing.T, dir string) { require.NoError(t, os.Chmod(dir, 0o700)) }, ".", true, true},
		"a file too few":    {func(t *testing.T, dir string) { require.NoError(t, os.Remove(dir+"/z")) }, "z", true, false},
		"a dir too few":     {func(t *testing.T, dir string) { require.NoError(t, os.RemoveAll(dir+"/b")) }, "b", true, false},
		"a file too many":   {func(t *testing.T, dir string) { put(t, dir+"/b/new", "") }, "b/new", false, true},
		"a dir too many":    {func(t *testing.T, dir string) { require.NoError(t, os.Mkdir(dir+"/0", 0o755)) }, "0", false, true},
		"a FIFO too many":   {func(t *testing.T, dir string) { fstest.Make(t, dir, "p|") }, "p", false, true},
		"a FIFO for a file": {func(t *testing.T, dir string) { require.NoError(t, os.Remove(dir+"/a")); fstest.Make(t, dir, "a|") }, "a", true, true},
		"a link for a file": {func(t *testing.T, dir string) { swap(t, dir, "a", "a => z") }, "a", true, true},
		"a dir for a file":  {func(t *testing.T, dir string) { swap(t, dir, "a", "a/") }, "a", true, true},
		"a file for a dir":  {func(t *testing.T, dir string) { swap(t, dir, "b", "b=x") }, "b", true, true},
		"a file for a link": {func(t *testing.T, dir string) { swap(t, dir, "b/l", "b/l=hello") }, "b/l", true, true},
		"text of a link":    {func(t *testing.T, dir string) { swap(t, dir, "b/l", "b/l => ../z") }, "b/l", true, true},
		"the first of three": {func(t *testing.T, dir string) {
			put(t, dir+"/z", "x")
			put(t, dir+"/b/c", "y")
			put(t, dir+"/b.new", "z")
		}, "b/c", true, true},
		"a name between": {func(t *testing.T, dir string) { put(t, dir+"/b-", "x"); put(t, dir+"/z", "x") }, "b-", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(fstest.TempDir(t), "dir")
			fstest.Make(t, dir, base...)
			m := manifestOf(t, walkByHand(t, dir)...)
			require.NoError(t, snapshot.Verify(t.Context(), dir, m, balanced(t, nil, snapshot.Seam{})), "the control")
			tt.change(t, dir)
			// What would hide a difference means nothing here.
			for _, opts := range []*snapshot.Options{nil, {
				Links: snapshot.LinksInsideOrSkip, SkipSpecial: true, Exclude: filterOf(t, "**"),
				Skip: func(string, snapshot.State) bool { return true },
			}} {
				err := snapshot.Verify(t.Context(), dir, m, balanced(t, opts, snapshot.Seam{}))
				if tt.path == "" {
					require.NoError(t, err)
					continue
				}
				mismatch, ok := errors.AsType[*snapshot.MismatchError](err)
				require.True(t, ok, "%v", err)
				assert.ErrorIs(t, err, snapshot.ErrMismatch)
				assert.False(t, snapshot.Retryable(err))
				assert.Equal(t, tt.path, mismatch.Path)
				assert.Equal(t, tt.recorded, mismatch.Recorded != nil)
				assert.Equal(t, tt.kept, mismatch.Received != nil)
				assert.Nil(t, mismatch.Baseline)
				if tt.recorded {
					want, err := m.Lookup(tt.path)
					require.NoError(t, err)
					assert.Equal(t, want, *mismatch.Recorded)
				}
				assert.NotContains(t, err.Error(), "hell", "contents are nobody's business")
			}
		})
	}
}

func put(t testing.TB, name, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(name, []byte(content), 0o644))
}

func swap(t testing.TB, dir, name, line string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
	fstest.Make(t, dir, line)
}

// TestVerifyReadsWithAllCare: a tree that changes meanwhile is no mismatch, and what cannot be read is named.
func TestVerifyReadsWithAllCare(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(fstest.TempDir(t), "dir")
	fstest.Make(t, dir, "a=hello", "d/b=x")
	m := manifestOf(t, walkByHand(t, dir)...)

	rounds := 0
	err := snapshot.Verify(t.Context(), dir, m, balanced(t, nil, snapshot.Seam{Phase: func(phase string) {
		if phase == "joined" {
			rounds++
			put(t, dir+"/d/b", string(rune('a'+rounds)))
		}
	}}))
	assert.ErrorIs(t, err, snapshot.ErrChangedDuringSnapshot)
	assert.True(t, snapshot.Retryable(err))
	put(t, dir+"/d/b", "x")

	assert.NoError(t, snapshot.Verify(t.Context(), dir, m, nil))
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the cause")
	cancel(cause)
	assert.ErrorIs(t, snapshot.Verify(ctx, dir, m, nil), cause)
	assert.ErrorIs(t, snapshot.Verify(t.Context(), dir+"/none", m, nil), fs.ErrNotExist)
	assert.ErrorIs(t, snapshot.Verify(t.Context(), dir, m, &snapshot.Options{Limits: snapshot.Limits{MaxEntries: 2}}), snapshot.ErrLimit)
	assert.ErrorIs(t, snapshot.Verify(t.Context(), dir, m, &snapshot.Options{Attempts: -1}), fs.ErrInvalid)

	require.NoError(t, os.Chmod(dir+"/a", 0))
	err = snapshot.Verify(t.Context(), dir, m, nil)
	if os.Geteuid() == 0 {
		assert.ErrorIs(t, err, snapshot.ErrMismatch)
	} else {
		assert.ErrorIs(t, err, fs.ErrPermission)
		assert.ErrorContains(t, err, dir+"/a")
	}
}

// TestVerifyOfACopy with the manifest that the copy returned, as it is and read back.
func TestVerifyOfACopy(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	fstest.Make(t, src, sources...)
	report, err := copyTree(t, dst, src, nil)
	require.NoError(t, err)
	opened, name := openText(t, textOf(t, report.Manifest))
	for _, m := range []*snapshot.Manifest{report.Manifest, opened} {
		assert.NoError(t, snapshot.Verify(t.Context(), dst, m, nil))
		assert.ErrorIs(t, snapshot.Verify(t.Context(), src, m, nil), snapshot.ErrMismatch, "its modes are others")
	}
	require.NoError(t, os.WriteFile(name, []byte("#mtree v2.0\n. type=dir mode=0500\n"), 0o600))
	assert.ErrorIs(t, snapshot.Verify(t.Context(), dst, opened, nil), snapshot.ErrMismatch, "the manifest changed on disk")

	f, err := os.OpenFile(dst+"/big", os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrPermission) {
		require.NoError(t, os.Chmod(dst+"/big", 0o600))
		f, err = os.OpenFile(dst+"/big", os.O_WRONLY, 0)
	}
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xff}, 200<<10)
	require.NoError(t, errors.Join(err, f.Close(), os.Chmod(dst+"/big", 0o400)))
	err = snapshot.Verify(t.Context(), dst, report.Manifest, nil)
	mismatch, ok := errors.AsType[*snapshot.MismatchError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, "big", mismatch.Path)
	assert.Equal(t, digestOf(t, dst+"/big"), mismatch.Received.Digest)
}
