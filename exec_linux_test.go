// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// besideForks calls work from several goroutines while others fork and exec all the time, and returns how many calls said
// ETXTBSY.
func besideForks(t *testing.T, times int, work func(worker, i int) error) (busy int64) {
	t.Helper()
	program, err := exec.LookPath("true")
	require.NoError(t, err)
	var stop atomic.Bool
	var forks, workers sync.WaitGroup
	for range 2 {
		forks.Go(func() {
			for !stop.Load() {
				assert.NoError(t, exec.Command(program).Run())
			}
		})
	}
	var failed atomic.Int64
	for w := range 4 {
		workers.Go(func() {
			for i := range times {
				switch err := work(w, i); {
				case errors.Is(err, syscall.ETXTBSY):
					failed.Add(1)
				default:
					assert.NoError(t, err)
				}
			}
		})
	}
	workers.Wait()
	stop.Store(true)
	forks.Wait()
	return failed.Load()
}

// TestStressExec: a copy of a program can be executed as soon as it is there, whoever forks meanwhile. A file that is written
// and closed cannot.
func TestStressExec(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	program, err := exec.LookPath("true")
	require.NoError(t, err)
	content, err := os.ReadFile(program)
	require.NoError(t, err)
	times := stressTries(t, 20, 100, 300)
	opts := snapshot.Options{Limits: snapshot.Limits{ReserveBytes: -1}}
	for name, lacks := range map[string]snapshot.Fallback{"nameless": 0, "staged": snapshot.NoNameless} {
		busy := besideForks(t, times, func(w, i int) error {
			dst := filepath.Join(dir, fmt.Sprintf("%s-%d-%d", name, w, i))
			if _, err := snapshot.CopyFile(t.Context(), dst, program, snapshot.WithSeam(&opts, snapshot.Seam{Lacks: lacks})); err != nil {
				return err
			}
			return exec.Command(dst).Run()
		})
		assert.Zero(t, busy, name)
	}
	var careless int64
	for tries := 0; careless == 0 && tries < 50; tries++ {
		careless = besideForks(t, times, func(w, i int) error {
			dst := filepath.Join(dir, fmt.Sprintf("careless-%d-%d-%d", tries, w, i))
			if err := os.WriteFile(dst, content, 0o500); err != nil {
				return err
			}
			return exec.Command(dst).Run()
		})
	}
	assert.Positive(t, careless, "a careless program was never caught: the forks are too few")
	t.Logf("exec: tries %d each of two ways, busy 0; careless busy %d", 4*times, careless)
}
