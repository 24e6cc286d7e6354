// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// What is mounted over a directory of the source, and gone again, is in no copy; over the root it is another source.
func TestStressMounts(t *testing.T) {
	fstest.NeedRoot(t)
	for _, source := range []string{"bound", "tmpfs"} {
		for _, over := range []string{"sub", "."} {
			for _, kind := range stressKinds() {
				t.Run(fmt.Sprintf("%s/%s over %s", stressKindName(kind), source, over), func(t *testing.T) {
					s, oracle := newMountStress(t, fstest.Dir(t, kind), source, over)
					fstest.Leaks(t)
					stressCaught(t, func() error { return oracle(carelessTree(s.src)) })
					dst := filepath.Join(s.out, "dst")
					for range stressTries(t, 5, 30, 2000) {
						accepted, _ := s.try(t, func(ctx context.Context) error { return copyDirTo(ctx, dst, s.src) }, snapshot.ErrEscapes)
						if !accepted {
							fstest.Nothing(t, s.out)
							continue
						}
						fstest.Nothing(t, s.out, "dst")
						require.NoError(t, oracle(readTree(t, dst)))
						discard(t, dst)
					}
					s.atLeast(t, 5)
					t.Logf("mounts %s, %s over %s: %v wrong 0", stressKindName(kind), source, over, &s.tally)
				})
			}
		}
	}
}

// newMountStress starts the adversary flicker over a directory of the source, and returns its oracle.
func newMountStress(t *testing.T, dir, source, over string) (*treeStress, func(files map[string]string) error) {
	t.Helper()
	s := newTreeStress(t, dir, "a=1", "sub/f=mine", "sub/g=mine, too", "z/z=2")
	states := []map[string]string{readTree(t, s.src)}
	if source != "tmpfs" {
		source = filepath.Join(dir, source)
		fstest.Make(t, source, "a=another", "sub/f=another", "f=another", "g=another", "h=another")
	}
	if over == "." {
		states = append(states, map[string]string{})
		if source != "tmpfs" {
			states[1] = readTree(t, source)
		}
	}
	mounted := filepath.Join(s.src, over)
	t.Cleanup(func() { // if it was killed
		for err := error(nil); err == nil; {
			err = unix.Unmount(mounted, unix.MNT_DETACH)
		}
	})
	fstest.Start(t, "flicker", "--pause-max", "10ms", mounted, source)
	return s, func(files map[string]string) error {
		for _, state := range states {
			if maps.Equal(state, files) {
				return nil
			}
		}
		return fmt.Errorf("a tree that never was: %v", files)
	}
}
