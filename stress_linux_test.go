// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// The stress tests let adversaries run free, as processes of their own, and look at all that is accepted meanwhile. None of
// them is parallel: they count shares of accepted tries, and the adversary and the copier want a core each.

// stressTries returns how often to try: a few times by default, more with HOLDSTILL_STRESS=ci, as often as is claimed with
// full, and with a number so many times the few.
func stressTries(t *testing.T, few, ci, full int) int {
	t.Helper()
	switch s := os.Getenv("HOLDSTILL_STRESS"); s {
	case "":
		return few
	case "ci":
		return ci
	case "full":
		return full
	default:
		n, err := strconv.Atoi(s)
		require.NoError(t, err, "HOLDSTILL_STRESS=%q: want ci, full or a number", s)
		return few * n
	}
}

// stressKinds are the file systems on which everything is promised, and what the ordinary user of a fresh machine has.
func stressKinds() []string { return []string{"", "ext4", "xfs", "btrfs"} }

func stressKindName(kind string) string {
	if kind == "" {
		return "default"
	}
	return kind
}

// stressPatience bounds one call, which takes milliseconds: an adversary must not be able to hold it up.
const stressPatience = 30 * time.Second

// tally counts the tries of a stress test.
type tally struct {
	tries, accepted int
	refusals        map[string]int
}

// try runs call under a deadline and reports whether it was accepted. A refusal has to say that the source changed, or one of
// also; it is returned for what else must hold of it.
func (c *tally) try(t *testing.T, call func(context.Context) error, also ...error) (accepted bool, refusal error) {
	t.Helper()
	// Refusals are quick: without a pause most tries would meet one and the same moment of the adversary.
	time.Sleep(rand.N(5 * time.Millisecond))
	ctx, cancel := context.WithTimeout(t.Context(), stressPatience)
	defer cancel()
	c.tries++
	err := call(ctx)
	if err == nil {
		c.accepted++
		return true, nil
	}
	if c.refusals == nil {
		c.refusals = map[string]int{}
	}
	for _, expected := range append(also, snapshot.ErrChanged, snapshot.ErrBusy) {
		if errors.Is(err, expected) {
			c.refusals[expected.Error()]++
			assert.NotErrorIs(t, err, snapshot.ErrLeftover)
			return false, err
		}
	}
	require.NoError(t, err, "an unexpected refusal")
	return false, err
}

// atLeast asserts the share of accepted tries, if there were enough of them to speak of one.
func (c *tally) atLeast(t *testing.T, percent int) {
	t.Helper()
	if c.tries >= 50 {
		assert.GreaterOrEqual(t, 100*c.accepted, percent*c.tries, "accepted %d of %d tries, want %d %%", c.accepted, c.tries, percent)
	}
}

func (c *tally) String() string {
	s := fmt.Sprintf("tries %d accepted %d", c.tries, c.accepted)
	if len(c.refusals) > 0 {
		s += fmt.Sprintf(" refused %v", c.refusals)
	}
	return s
}

// stressCaught is the positive control: it repeats what a careless copier does until the oracle catches it.
func stressCaught(t *testing.T, look func() error) {
	t.Helper()
	for tries, start := 1, time.Now(); ; tries++ {
		if err := look(); err != nil {
			t.Logf("a careless copier is caught at try %d: %v", tries, err)
			return
		}
		require.Less(t, time.Since(start), stressPatience, "a careless copier is not caught in %d tries", tries)
	}
}

// stressBursts lets an adversary that makes no pauses of its own rage for a moment and rest for a moment, until the test ends:
// while it rages nothing holds still for long enough to be accepted.
func stressBursts(t *testing.T, p *fstest.Proc) {
	t.Helper()
	stop, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-stopped })
	go func() {
		defer close(stopped)
		for {
			for _, phase := range []struct {
				begin   func()
				longest time.Duration
			}{{p.Pause, 20 * time.Millisecond}, {p.Resume, 10 * time.Millisecond}} {
				phase.begin()
				select {
				case <-stop:
					return
				case <-time.After(rand.N(phase.longest)):
				}
			}
		}
	}()
}

// carelessRead reads as cp does: what the name leads to, piece by piece. It does not wait for the writer of a FIFO.
func carelessRead(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b []byte
	piece := make([]byte, 128<<10)
	for {
		n, err := f.Read(piece)
		b = append(b, piece[:n]...)
		if errors.Is(err, io.EOF) {
			return b, nil
		} else if err != nil {
			return nil, err
		}
	}
}

// carelessTree reads every file of a tree by its path, and passes over what fails as if it had never been there.
func carelessTree(dir string) map[string]string {
	files := map[string]string{}
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if b, err := carelessRead(name); err == nil {
				files[strings.TrimPrefix(name, dir+"/")] = string(b)
			}
		}
		return nil
	})
	return files
}

// readTree returns the files of a copy, which holds still.
func readTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		files[strings.TrimPrefix(name, dir+"/")] = string(b)
		return err
	}))
	return files
}

// discard removes a copy, whose directories are closed to their owner.
func discard(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(name, 0o700)
		}
		return err
	}))
	require.NoError(t, os.RemoveAll(dir))
}
