// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot/internal/fstest"
)

// sweepOne sweeps the staging directory name of parent with a hook on its calls, which Sweep itself does not take.
func sweepOne(t *testing.T, parent, name string, at func(call, name string) error) (gone bool, err error) {
	t.Helper()
	o := newOp(nil)
	dir, err := o.calls.OpenRoot(parent)
	require.NoError(t, err)
	o.calls.At = at
	s := o.stagingAt(dir, parent, name)
	gone, err = s.sweep()
	o.release(dir)
	assert.Zero(t, o.calls.Open(), "open handles")
	return gone, err
}

// TestSweepAndOwnerMeet: the owner of a staging directory goes on, at any of its steps, at any step of a sweep of it. What it
// has put into a directory that it then still has stays.
func TestSweepAndOwnerMeet(t *testing.T) {
	t.Parallel()
	for _, stop := range []string{"OpenDir", "Create", "LockShared", "Chmod", "Write"} {
		for step := 1; ; step++ {
			parent := fstest.TempDir(t)
			owner := newOp(nil)
			dir, err := owner.calls.OpenRoot(parent)
			require.NoError(t, err)
			stopped, goOn, filled := make(chan string), make(chan struct{}), make(chan *staging)
			owner.calls.At = func(call, _ string) error {
				if call == stop {
					owner.calls.At = nil
					stopped <- namesOf(t, parent)[0]
					<-goOn
				}
				return nil
			}
			go func() {
				s, err := owner.newStaging(dir, parent)
				if assert.NoError(t, err, "%s, step %d", stop, step) {
					assert.NoError(t, os.WriteFile(filepath.Join(s.where(), "precious"), []byte("x"), 0o400))
				}
				filled <- s
			}()
			name := <-stopped
			steps := 0
			var s *staging
			_, err = sweepOne(t, parent, name, func(string, string) error {
				if steps++; steps == step {
					close(goOn)
					s = <-filled
				}
				return nil
			})
			assert.NoError(t, err, "%s, step %d", stop, step)
			if s == nil {
				close(goOn)
				s = <-filled
			}
			assert.Equal(t, []string{"fence", "lock", "precious"}, namesOf(t, s.where()), "%s, step %d", stop, step)
			assert.NoError(t, s.discard())
			owner.release(dir)
			owner.finish()
			assert.Zero(t, owner.calls.Open(), "open handles")
			assert.Empty(t, namesOf(t, parent), "%s, step %d", stop, step)
			if steps < step {
				require.Greater(t, step, 5)
				break
			}
		}
	}
}

func namesOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	assert.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestEveryCallOfASweepFailsOnce: then the leftover is gone, or is there for the next sweep, and nothing else was touched.
func TestEveryCallOfASweepFailsOnce(t *testing.T) {
	t.Parallel()
	name := stagingPrefix + strings.Repeat("a", stagingRandom)
	for _, lines := range [][]string{
		{name + "/lock=" + stagingMagic, name + "/tree/d/f 0400=x", name + "/tree/d/l => /etc", name + "/tree/d/ 0500", name + "/ 0700"},
		{name + "/lock=", name + "/ 0700"},
		{name + "/ 0700"},
	} {
		for _, failure := range []error{syscall.EIO, syscall.EACCES, syscall.ENOENT} {
			for fail := 1; ; fail++ {
				parent := fstest.TempDir(t)
				fstest.Make(t, parent, append(lines, "mine/f=x")...)
				calls, failed := 0, ""
				gone, err := sweepOne(t, parent, name, func(call, name string) error {
					if calls++; calls == fail {
						failed = call + " " + name
						return failure
					}
					return nil
				})
				if calls < fail {
					break
				}
				what := []any{"%v at %s: %v", failure, failed, err}
				_, e := os.Lstat(filepath.Join(parent, name))
				if err != nil {
					assert.ErrorIs(t, err, ErrLeftover, what...)
				}
				if failure != syscall.ENOENT { // of a name that is there it is a lie, and believed
					assert.True(t, err == nil || errors.Is(err, failure), what...)
					assert.Equal(t, gone, os.IsNotExist(e), what...)
				}
				assert.Equal(t, map[string]string{".": "dir", "f": `file "x"`}, fstest.Contents(t, filepath.Join(parent, "mine")))
				_, err = Sweep(t.Context(), parent)
				assert.NoError(t, err, what...)
				fstest.Nothing(t, parent, "mine")
			}
		}
	}
}
