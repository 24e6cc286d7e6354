// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// TestLargestFile: one truncate makes it, and no sum with its size may wrap.
func TestLargestFile(t *testing.T) {
	t.Parallel()
	s := newSite(t, "tmpfs", "f=", "g=")
	for _, name := range []string{"/f", "/g"} {
		require.NoError(t, os.Truncate(s.src+name, 1<<63-1))
	}
	fstest.Settle(t, s.src)
	for name, tt := range map[string]struct {
		limits snapshot.Limits
		verb   verb
		field  string // of the bound that refuses it
	}{
		"tree by default":            {snapshot.Limits{}, copyOf, "MaxBytes"},
		"tree with large files":      {snapshot.Limits{MaxFileBytes: -1}, copyOf, "MaxBytes"},
		"scan with large files":      {snapshot.Limits{MaxFileBytes: -1}, scanOf, "MaxBytes"},
		"tree without bounds":        {snapshot.Limits{MaxFileBytes: -1, MaxBytes: -1}, copyOf, ""},
		"file by default":            {snapshot.Limits{}, copyFileOf, "MaxFileBytes"},
		"file without a bound":       {snapshot.Limits{MaxFileBytes: -1}, copyFileOf, ""},
		"in memory by default":       {snapshot.Limits{}, readFileOf, "MaxFileBytes"},
		"in memory without a bound":  {snapshot.Limits{MaxFileBytes: -1}, readFileOf, "MaxFileBytes"},
		"to a Writer without bounds": {snapshot.Limits{MaxFileBytes: -1}, copyToOf, ""},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cause, reads := errors.New("enough"), 0
		opts := &snapshot.Options{Workers: 1, Limits: tt.limits}
		err := tt.verb(ctx, s, balanced(t, opts, snapshot.Seam{At: func(call, _ string) error {
			if call == "Read" {
				if reads++; reads == 3 {
					cancel(cause)
				}
			}
			return nil
		}}))
		cancel(nil)
		if tt.field == "" {
			assert.ErrorIs(t, err, cause, name)
		} else {
			limit, ok := errors.AsType[*snapshot.LimitError](err)
			require.True(t, ok, "%s: %v", name, err)
			assert.Equal(t, tt.field, limit.Field, name)
			assert.Zero(t, reads, name)
		}
		fstest.Nothing(t, filepath.Dir(s.dst))
	}
}

func readFileOf(ctx context.Context, s site, o *snapshot.Options) error {
	_, _, err := snapshot.ReadFile(ctx, s.src+"/f", o)
	return err
}

func copyToOf(ctx context.Context, s site, o *snapshot.Options) error {
	f, err := snapshot.Open(s.src+"/f", o)
	if err != nil {
		return err
	}
	_, err = f.CopyTo(ctx, writerFunc(func(p []byte) (int, error) { return len(p), nil }))
	return errors.Join(err, f.Close())
}

// TestPausesBetweenTriesAreBounded: they grow, but not without an end. They end with ctx.
func TestPausesBetweenTriesAreBounded(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "f=x")
	tries := 0
	opts := &snapshot.Options{Attempts: 14}
	seam := snapshot.Seam{At: func(call, _ string) error {
		if call != "Pin" {
			return nil
		}
		tries++
		return snapshot.ErrBusy
	}}
	start := time.Now()
	assert.ErrorIs(t, readFileOf(t.Context(), s, balanced(t, opts, seam)), snapshot.ErrBusy)
	assert.Equal(t, opts.Attempts, tries)
	assert.Less(t, time.Since(start), 5*time.Second, "doubled 13 times from 1 ms it would be 8 s")

	ctx, cancel := context.WithCancel(t.Context())
	seam.At = func(call, _ string) error {
		if call == "Pin" {
			cancel()
			return snapshot.ErrBusy
		}
		return nil
	}
	assert.ErrorIs(t, readFileOf(ctx, s, balanced(t, opts, seam)), context.Canceled)
}

// TestAbandonedCloneWritesToNoOtherFile: a call that waits in the kernel may go on when its file is closed and the number of
// the descriptor is another file's.
func TestAbandonedCloneWritesToNoOtherFile(t *testing.T) {
	t.Parallel()
	for what, f := range map[string]verb{"CopyFile": copyFileOf, "CopyDir": copyOf} {
		s := newSite(t, "btrfs", "f=@8192B")
		writing(t, s.src+"/f", os.O_RDWR) // so that no lease is to be had, and a clone the best
		fstest.Settle(t, s.src)
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		goOn, cloned := make(chan struct{}), make(chan struct{})
		var state atomic.Int64 // 1: at the clone, 2: it may go on
		err := f(ctx, s, snapshot.WithSeam(nil, snapshot.Seam{At: func(call, _ string) error {
			switch {
			case call == "Clone" && state.CompareAndSwap(0, 1):
				cancel(cause)
				<-goOn
			case call == "Close" && state.CompareAndSwap(2, 3): // of the abandoned call, after its clone
				close(cloned)
			}
			return nil
		}}))
		require.ErrorIs(t, err, cause, what)
		require.Equal(t, int64(1), state.Load(), what)
		for i := range 32 { // more than CopyFile had open
			name := fmt.Sprintf("%s/mine%d", s.dir, i)
			put(t, name, "mine")
			writing(t, name, os.O_RDWR)
		}
		state.Store(2)
		close(goOn)
		<-cloned
		for i := range 32 {
			b, err := os.ReadFile(fmt.Sprintf("%s/mine%d", s.dir, i))
			require.NoError(t, err)
			assert.Equal(t, "mine", string(b), what)
		}
	}
}

// TestWriterThatStallsAfterTheLease: nobody wrote when the lease was granted, and then somebody stands still in a write with
// the lock of the inode. Neither he nor what is still stuck behind him holds up the end of the call. Which of two inodes a
// clone locks first is a matter of luck, so it is tried more than once.
func TestWriterThatStallsAfterTheLease(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind, size string
		call       string // at which he comes
		what       string
		verb       verb
	}{
		{"xfs", "8192B", "Read", "ReadFile", readFileOf},
		{"xfs", "1MiB", "Clone", "CopyFile", copyFileOf},
		{"xfs", "1MiB", "Clone", "CopyDir", copyOf},
		{"btrfs", "1MiB", "Clone", "CopyFile", copyFileOf},
		{"btrfs", "1MiB", "Clone", "CopyDir", copyOf},
	} {
		t.Run(tt.kind+", "+tt.what, func(t *testing.T) {
			t.Parallel()
			fstest.NeedRoot(t) // userfaultfd; and no skip may end a worker of the engine
			s := newSite(t, tt.kind, "f=@"+tt.size)
			var came atomic.Bool
			writer := sync.OnceValue(func() *fstest.Proc { return fstest.Start(t, "stall", s.src+"/f") })
			opts := &snapshot.Options{Stall: 100 * time.Millisecond, Attempts: 1}
			// An engine that waits for the writer would wait for ever.
			end := time.AfterFunc(5*time.Second, func() { writer().Stop() })
			defer end.Stop()
			for range 6 {
				began := time.Now()
				err := tt.verb(t.Context(), s, snapshot.WithSeam(opts, snapshot.Seam{
					At: func(call, _ string) error {
						if call == tt.call || call == tt.call+"Now" {
							came.Store(true)
							writer()
						}
						return nil
					},
					Finished: func(open, _ int64) { assert.LessOrEqual(t, open, int64(2), "those of the call that is stuck") },
				}))
				assert.ErrorIs(t, err, snapshot.ErrBusy)
				assert.ErrorContains(t, err, "stalled")
				assert.True(t, snapshot.Retryable(err))
				fstest.Nothing(t, filepath.Dir(s.dst))
				if !assert.Less(t, time.Since(began), 4*time.Second) {
					break
				}
			}
			require.True(t, came.Load())
			writer().Stop()
		})
	}
}

// TestWriterDoesNotWaitBehindASuspect: a suspect that does not hold still is read under a lease, which ends when somebody
// waits behind it: in the middle of a large file, and in the middle of a large directory.
func TestWriterDoesNotWaitBehindASuspect(t *testing.T) {
	t.Parallel()
	for call, most := range map[string]int{"Read": 1, "StatAt": 2} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			lines := []string{"f=@4MiB"}
			for i := range 100 {
				lines = append(lines, fmt.Sprintf("a%02d=", i))
			}
			s := newSite(t, "ext4", lines...)
			joined, held, waits, calls := false, false, false, 0
			report, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 1}, snapshot.Seam{
				Phase: func(string) { joined = true },
				At: func(now, name string) error {
					switch {
					case now == "Lease":
						held = joined
					case now == "DropLease":
						held = false
					case joined && !held && !waits && now == "StatAt" && name == "f":
						fstest.Settle(t, s.src)
						s.touch(t, "f")
					case held && now == call && (now == "Read" || strings.HasPrefix(name, "a")):
						if calls++; calls == 3 {
							waits = true
							// It is refused at once, but the lease is broken as by a writer who waits.
							_, err := os.OpenFile(s.src+"/f", os.O_WRONLY|syscall.O_NONBLOCK, 0)
							assert.ErrorIs(t, err, syscall.EWOULDBLOCK)
							time.Sleep(15 * time.Millisecond) // longer than it takes between two looks at the leases
						}
					}
					return nil
				},
			})
			s.copied(t, report, err)
			assert.True(t, waits)
			assert.LessOrEqual(t, calls, 3+most, "%s while a writer waits", call)
			assert.Equal(t, 2, report.Rounds)
		})
	}
}
