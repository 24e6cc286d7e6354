// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// TestUndetected: two kinds of change leave no trace in any State, and no lease tells of them. The documentation says that
// they are not detected; a copy that they made wrong has to be accepted, or it could promise more.
func TestUndetected(t *testing.T) {
	t.Parallel()
	for op, kinds := range map[string][]string{"pending": {"ext4", "xfs", "btrfs"}, "moveext": {"ext4"}} {
		for _, kind := range kinds {
			for _, required := range []snapshot.Evidence{snapshot.Coherent, snapshot.Quiescent} {
				t.Run(fmt.Sprintf("%s/%s/%v", op, stressKindName(kind), required), func(t *testing.T) {
					t.Parallel()
					undetected(t, op, fstest.Dir(t, kind), required)
				})
			}
		}
	}
}

// undetected changes two files after the copy of the first and before that of the second, the first one first.
func undetected(t *testing.T, op, dir string, required snapshot.Evidence) {
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	require.NoError(t, os.Mkdir(src, 0o755))
	old := string(fstest.TornContent(1, 64<<10))
	var changes []*fstest.Proc
	for _, name := range []string{"a", "z"} {
		require.NoError(t, os.WriteFile(filepath.Join(src, name), []byte(old), 0o644))
		changes = append(changes, fstest.Start(t, op, "--side", dir, filepath.Join(src, name)))
	}
	fstest.Settle(t, src)
	before, err := snapshot.Scan(t.Context(), src, &snapshot.Options{Require: required})
	require.NoError(t, err)
	at := map[string]snapshot.State{}
	for _, name := range []string{"a", "z"} {
		at[name], err = snapshot.Lstat(filepath.Join(src, name))
		require.NoError(t, err)
	}

	copyWhile := func(change func()) (*snapshot.Report, error) {
		seam := raceAt(raceWhen(change, "Pin a", "Pin z"))
		return snapshot.CopyDir(t.Context(), dst, src, snapshot.WithSeam(&snapshot.Options{Require: required, Workers: 1}, seam))
	}
	report, err := copyWhile(func() {
		for _, p := range changes {
			p.Stop()
		}
	})
	require.NoError(t, err, "%s is detected: the documentation can promise more", op)
	assert.Equal(t, snapshot.InstantAll, report.Instant)
	assert.Equal(t, map[snapshot.Evidence]int64{required: 2}, report.Evidence)

	now, copied := readTree(t, src), readTree(t, dst)
	assert.NotEqual(t, old, now["a"], "a was changed")
	assert.NotEqual(t, old, now["z"], "z was changed")
	assert.True(t, copied["a"] == old && copied["z"] == now["z"], "a is the old one and z the new one, which was never so")
	assert.NotEqual(t, before.Manifest.Digest(), report.Manifest.Digest())
	for name, state := range at {
		after, err := snapshot.Lstat(filepath.Join(src, name))
		require.NoError(t, err)
		assert.Zero(t, state.Compare(after), "%s: the change left a trace: the documentation can promise more", name)
	}

	// The same change by writes is noticed, although mtime is put back.
	discard(t, dst)
	_, err = copyWhile(func() {
		for name, state := range at {
			name = filepath.Join(src, name)
			assert.NoError(t, os.WriteFile(name, []byte(old), 0o644))
			assert.NoError(t, os.Chtimes(name, state.ModTime, state.ModTime))
		}
	})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a": old, "z": old}, readTree(t, dst))
}
