// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// TestEvidence: what each file system can prove, and no more.
func TestEvidence(t *testing.T) {
	t.Parallel()
	type level = snapshot.Evidence
	for kind, tt := range map[string]struct {
		level   level
		because string
		instant snapshot.Instant
		most    []level         // that Require gets
		refused map[level]level // Required, and the level that it reaches
	}{
		"ext4": {
			snapshot.Coherent, "a lease was not held", snapshot.InstantAll,
			[]level{snapshot.Identified, snapshot.Stable, snapshot.Buffered, snapshot.Coherent, snapshot.Quiescent},
			nil,
		},
		"ext4-128": {
			snapshot.Coherent, "a lease was not held", snapshot.InstantAll, []level{snapshot.Coherent, snapshot.Quiescent}, nil,
		},
		"xfs":   {snapshot.Coherent, "a lease was not held", snapshot.InstantAll, []level{snapshot.Coherent, snapshot.Quiescent}, nil},
		"btrfs": {snapshot.Coherent, "a lease was not held", snapshot.InstantAll, []level{snapshot.Coherent, snapshot.Quiescent}, nil},
		"tmpfs": {
			snapshot.Stable, "tmpfs: stores through a mapping", snapshot.InstantWrites,
			[]level{snapshot.Stable, snapshot.Quiescent},
			map[level]level{snapshot.Buffered: snapshot.Stable, snapshot.Coherent: snapshot.Stable},
		},
		"overlay": {
			snapshot.Stable, "overlayfs: mapped stores", snapshot.InstantWrites,
			[]level{snapshot.Stable, snapshot.Buffered},
			map[level]level{snapshot.Coherent: snapshot.Stable, snapshot.Quiescent: snapshot.Stable},
		},
		"ramfs": {
			snapshot.Stable, "ramfs: no more was ever measured", snapshot.InstantWrites,
			[]level{snapshot.Stable},
			map[level]level{snapshot.Buffered: snapshot.Stable, snapshot.Quiescent: snapshot.Stable},
		},
		"bindfs": {
			snapshot.Stable, "fuse: another machine or process", snapshot.InstantWrites,
			[]level{snapshot.Stable},
			map[level]level{snapshot.Buffered: snapshot.Stable, snapshot.Coherent: snapshot.Stable, snapshot.Quiescent: snapshot.Stable},
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := fstest.Dir(t, kind)
			src := filepath.Join(dir, "src")
			fstest.Make(t, src, "a=hello", "d/big=@300KiB", "l => a")
			fstest.Settle(t, dir)

			report, err := copyTree(t, filepath.Join(dir, "dst"), src, nil)
			require.NoError(t, err)
			fstest.Equal(t, src, filepath.Join(dir, "dst"))
			assert.Equal(t, map[level]int64{tt.level: 2}, report.Evidence)
			assert.Equal(t, tt.instant, report.Instant)
			assert.Equal(t, tt.level, report.Weakest.Evidence)
			assert.Contains(t, report.Weakest.Because, tt.because)

			scanned, err := snapshot.Scan(t.Context(), src, balanced(t, nil, snapshot.Seam{}))
			require.NoError(t, err)
			assert.Equal(t, report.Evidence, scanned.Evidence)
			assert.Equal(t, tt.instant, scanned.Instant)

			b, proof, err := snapshot.ReadFile(t.Context(), src+"/a", balanced(t, nil, snapshot.Seam{}))
			require.NoError(t, err)
			assert.Equal(t, "hello", string(b))
			assert.Equal(t, tt.level, proof.Evidence)
			assert.Contains(t, proof.Because, tt.because)

			for _, required := range tt.most {
				opts := &snapshot.Options{Require: required}
				scanned, err := snapshot.Scan(t.Context(), src, balanced(t, opts, snapshot.Seam{}))
				require.NoError(t, err, "%v", required)
				want := max(required, tt.level)
				assert.Equal(t, map[level]int64{want: 2}, scanned.Evidence, "%v", required)
				for _, name := range []string{"a", "d/big"} {
					proof, err := copyOne(t, filepath.Join(dir, required.String()+filepath.Base(name)), filepath.Join(src, name), opts, snapshot.Seam{})
					require.NoError(t, err, "%v", required)
					assert.Equal(t, want, proof.Evidence, "%v", required)
					assert.Equal(t, want == snapshot.Quiescent, proof.Because == "", "%v: %s", required, proof.Because)
				}
			}
			for required, reached := range tt.refused {
				opts := &snapshot.Options{Require: required}
				_, err := copyTree(t, filepath.Join(dir, "refused"), src, opts)
				assert.ErrorIs(t, err, snapshot.ErrEvidence, "%v", required)
				assert.False(t, snapshot.Retryable(err))
				_, err = copyOne(t, filepath.Join(dir, "refused"), src+"/a", opts, snapshot.Seam{})
				refusal, ok := errors.AsType[*snapshot.EvidenceError](err)
				require.True(t, ok, "%v: %v", required, err)
				assert.Equal(t, src+"/a", refusal.Path)
				assert.Equal(t, required, refusal.Required)
				assert.Equal(t, reached, refusal.Reached)
				assert.NotEmpty(t, refusal.Because)
			}
		})
	}
}

// TestEvidenceBesideAWriter: with the file open for writing a lease is refused, and the barriers or a clone do what they can.
func TestEvidenceBesideAWriter(t *testing.T) {
	t.Parallel()
	for kind, cloned := range map[string]bool{"ext4": false, "xfs": true, "btrfs": true} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := fstest.Dir(t, kind)
			src := filepath.Join(dir, "src")
			fstest.Make(t, src, "a=hello", "b=other")
			fstest.Settle(t, dir)
			writer := writing(t, src+"/a", os.O_RDWR)

			_, proof, err := snapshot.ReadFile(t.Context(), src+"/a", balanced(t, nil, snapshot.Seam{}))
			require.NoError(t, err)
			assert.Equal(t, snapshot.Buffered, proof.Evidence)
			assert.Contains(t, proof.Because, "open for writing")

			report, err := copyTree(t, filepath.Join(dir, "dst"), src, nil)
			require.NoError(t, err)
			if cloned {
				assert.Equal(t, map[snapshot.Evidence]int64{snapshot.Coherent: 2}, report.Evidence)
				assert.Equal(t, int64(5), report.Cloned)
			} else {
				assert.Equal(t, map[snapshot.Evidence]int64{snapshot.Coherent: 1, snapshot.Buffered: 1}, report.Evidence)
				assert.Equal(t, "a", report.Weakest.Entry.Path)
			}
			fstest.Equal(t, src, filepath.Join(dir, "dst"))

			_, err = copyOne(t, filepath.Join(dir, "coherent"), src+"/a", &snapshot.Options{Require: snapshot.Coherent}, snapshot.Seam{})
			if cloned {
				assert.NoError(t, err)
			} else {
				assert.ErrorIs(t, err, snapshot.ErrBusy)
				assert.True(t, snapshot.Retryable(err))
				assert.ErrorContains(t, err, src+"/a")
			}
			for verb, err := range map[string]error{
				"CopyFile": errorOf(copyOne(t, filepath.Join(dir, "q"), src+"/a", &snapshot.Options{Require: snapshot.Quiescent}, snapshot.Seam{})),
				"CopyDir":  errorOf(copyTree(t, filepath.Join(dir, "q"), src, &snapshot.Options{Require: snapshot.Quiescent})),
				"Scan":     errorOf(snapshot.Scan(t.Context(), src, balanced(t, &snapshot.Options{Require: snapshot.Quiescent}, snapshot.Seam{}))),
			} {
				assert.ErrorIs(t, err, snapshot.ErrBusy, verb)
				assert.NotErrorIs(t, err, snapshot.ErrChanged, verb)
				assert.True(t, snapshot.Retryable(err), verb)
			}

			require.NoError(t, writer.Close())
			_, err = copyOne(t, filepath.Join(dir, "q"), src+"/a", &snapshot.Options{Require: snapshot.Quiescent}, snapshot.Seam{})
			assert.NoError(t, err, "after the writer has gone")
		})
	}
}

// TestBusyEnds: the writer goes away between two tries.
func TestBusyEnds(t *testing.T) {
	t.Parallel()
	dir := fstest.Dir(t, "ext4")
	fstest.Make(t, dir, "a=hello")
	fstest.Settle(t, dir)
	writer := writing(t, dir+"/a", os.O_RDWR)
	tries := 0
	proof, err := copyOne(t, dir+"/b", dir+"/a", &snapshot.Options{Require: snapshot.Quiescent}, snapshot.Seam{At: func(call, _ string) error {
		if call == "Lease" {
			if tries++; tries == 2 {
				return writer.Close()
			}
		}
		return nil
	}})
	require.NoError(t, err)
	assert.Equal(t, 2, proof.Attempts)
	assert.Equal(t, snapshot.Quiescent, proof.Evidence)

	// A library's caller spaces his own tries.
	writer, tries = writing(t, dir+"/a", os.O_RDWR), 0
	err = snapshot.Retry(t.Context(), nil, func(ctx context.Context) error {
		if tries++; tries == 3 {
			assert.NoError(t, writer.Close())
		}
		_, err := snapshot.CopyFile(ctx, dir+"/c", dir+"/a", &snapshot.Options{Require: snapshot.Quiescent, Attempts: 1})
		return err
	})
	require.NoError(t, err)
	assert.Equal(t, 3, tries)
	assert.Equal(t, digestOf(t, dir+"/a"), digestOf(t, dir+"/c"))
}

// TestNeverLock: no lease is taken, not for a moment.
func TestNeverLock(t *testing.T) {
	t.Parallel()
	for kind, level := range map[string]snapshot.Evidence{"ext4": snapshot.Buffered, "btrfs": snapshot.Coherent, "tmpfs": snapshot.Stable} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := fstest.Dir(t, kind)
			src := filepath.Join(dir, "src")
			fstest.Make(t, src, "a=hello", "big=@300KiB")
			fstest.Settle(t, dir)
			seam := snapshot.Seam{At: func(call, _ string) error {
				assert.NotContains(t, call, "Lease")
				return nil
			}}
			report, err := copyTreeWith(t.Context(), t, filepath.Join(dir, "dst"), src, &snapshot.Options{NeverLock: true}, seam)
			require.NoError(t, err)
			assert.Equal(t, map[snapshot.Evidence]int64{level: 2}, report.Evidence)
			proof, err := copyOne(t, filepath.Join(dir, "f"), src+"/a", &snapshot.Options{NeverLock: true}, seam)
			require.NoError(t, err)
			assert.Equal(t, level, proof.Evidence)
			if level == snapshot.Buffered {
				assert.Contains(t, proof.Because, "NeverLock")
				_, err = copyOne(t, filepath.Join(dir, "g"), src+"/a", &snapshot.Options{NeverLock: true, Require: snapshot.Coherent}, seam)
				refusal, ok := errors.AsType[*snapshot.EvidenceError](err)
				require.True(t, ok, "%v", err)
				assert.Equal(t, snapshot.Buffered, refusal.Reached)
				assert.Contains(t, refusal.Because, "NeverLock")
			}
		})
	}
}

// TestSomebodyElsesFile: without a right to a lease the barriers are left, or a clone.
func TestSomebodyElsesFile(t *testing.T) {
	t.Parallel()
	for kind, level := range map[string]snapshot.Evidence{"ext4": snapshot.Buffered, "xfs": snapshot.Coherent} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := fstest.Dir(t, kind)
			src := filepath.Join(dir, "src")
			fstest.Make(t, src, "a=hello")
			fstest.Settle(t, dir)
			foreign := snapshot.Seam{Lacks: snapshot.NoLease}
			report, err := copyTreeWith(t.Context(), t, filepath.Join(dir, "dst"), src, nil, foreign)
			require.NoError(t, err)
			assert.Equal(t, map[snapshot.Evidence]int64{level: 1}, report.Evidence)
			_, proof, err := snapshot.ReadFile(t.Context(), src+"/a", balanced(t, nil, foreign))
			require.NoError(t, err)
			assert.Equal(t, snapshot.Buffered, proof.Evidence)
			assert.Contains(t, proof.Because, "owner or CAP_LEASE")
			_, err = copyOne(t, filepath.Join(dir, "q"), src+"/a", &snapshot.Options{Require: snapshot.Quiescent}, foreign)
			assert.ErrorIs(t, err, snapshot.ErrEvidence)
			_, err = copyTreeWith(t.Context(), t, filepath.Join(dir, "dst2"), src, &snapshot.Options{Require: level}, foreign)
			assert.NoError(t, err, "what was reached can be required")
		})
	}
}

// TestLeaseIsNotHeldOverWrites: a writer who waits for us must not wait for our disk or for somebody's Writer.
func TestLeaseIsNotHeldOverWrites(t *testing.T) {
	t.Parallel()
	dir := fstest.Dir(t, "ext4")
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "empty=", "small=hello", "edge=@262143B", "one=@262144B", "more=@262145B", "big=@1MiB")
	fstest.Settle(t, dir)
	for _, name := range []string{"empty", "small", "edge", "one", "more", "big"} {
		for _, required := range []snapshot.Evidence{0, snapshot.Quiescent} {
			held, leases := false, 0
			seam := snapshot.Seam{At: func(call, _ string) error {
				switch call {
				case "Lease":
					assert.False(t, held)
					held = true
					leases++
				case "DropLease":
					held = false
				case "Write", "Truncate", "Create", "CreateNameless", "LinkNameless", "Sync", "Allocate", "SetMtime":
					assert.False(t, held, "%s, %v: %s under the lease", name, required, call)
				}
				return nil
			}}
			opts := &snapshot.Options{Require: required, Durable: true}
			proof, err := copyOne(t, filepath.Join(dir, name+required.String()), filepath.Join(src, name), opts, seam)
			require.NoError(t, err, "%s, %v", name, required)
			assert.Equal(t, max(required, snapshot.Coherent), proof.Evidence)
			assert.Positive(t, leases)
			assert.False(t, held, "%s, %v: at the end", name, required)
			assert.Equal(t, digestOf(t, filepath.Join(src, name)), proof.Entry.Digest)
			assert.Equal(t, proof.Entry.Digest, digestOf(t, filepath.Join(dir, name+required.String())))

			f, err := snapshot.Open(filepath.Join(src, name), balanced(t, opts, seam))
			require.NoError(t, err)
			var b bytes.Buffer
			_, err = f.CopyTo(t.Context(), writerFunc(func(p []byte) (int, error) {
				assert.False(t, held, "%s, %v: a Writer under the lease", name, required)
				return b.Write(p)
			}))
			require.NoError(t, errors.Join(err, f.Close()))
			assert.Equal(t, proof.Entry.Size, int64(b.Len()))
		}
	}
}

// TestWriterArrives: whoever opens the file while the lease is held gets in, and that is a change.
func TestWriterArrives(t *testing.T) {
	t.Parallel()
	dir := fstest.Dir(t, "ext4")
	fstest.Make(t, dir, "a=@1MiB")
	fstest.Settle(t, dir)
	var waited time.Duration
	opened := make(chan error, 1)
	reads := 0
	_, err := copyOne(t, dir+"/b", dir+"/a", &snapshot.Options{Require: snapshot.Quiescent, Attempts: 1}, snapshot.Seam{At: func(call, _ string) error {
		if call != "LeaseStands" {
			return nil
		}
		if reads++; reads > 1 {
			return nil
		}
		// Refused at once, but the lease is broken all the same: the walk sees it as it sees a writer who waits.
		_, err := os.OpenFile(dir+"/a", os.O_WRONLY|syscall.O_NONBLOCK, 0)
		assert.Error(t, err)
		go func() {
			start := time.Now()
			f, err := os.OpenFile(dir+"/a", os.O_WRONLY, 0)
			waited = time.Since(start)
			opened <- errors.Join(err, f.Close())
		}()
		return nil
	}})
	change, ok := errors.AsType[*snapshot.ChangeError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, snapshot.WriterArrived, change.Reason)
	assert.True(t, snapshot.Retryable(err))
	require.NoError(t, <-opened)
	assert.Less(t, waited, time.Second, "the writer waited")
}

// TestYoung: a file that was written a moment ago is waited for, not trusted and not refused.
func TestYoung(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"ext4", "tmpfs", "ext4-128"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := fstest.Dir(t, kind)
			var waiting []string
			opts := &snapshot.Options{Require: snapshot.Stable, Workers: 1, Progress: func(p snapshot.Progress) {
				if p.Waiting != "" {
					waiting = append(waiting, p.Waiting)
				}
			}}
			fstest.Make(t, dir, "src/a=x", "src/d/b=y")
			report, err := copyTree(t, dir+"/dst", dir+"/src", opts)
			require.NoError(t, err)
			assert.NotEqual(t, snapshot.InstantNone, report.Instant)
			fstest.Make(t, dir, "f=x")
			proof, err := copyOne(t, dir+"/g", dir+"/f", opts, snapshot.Seam{})
			require.NoError(t, err)
			assert.GreaterOrEqual(t, proof.Evidence, snapshot.Stable)
			if kind == "ext4-128" {
				assert.Contains(t, waiting, "clock tick", "a second is long enough to be told of")
			}
		})
	}
}

// TestAlwaysYoung: a file whose stamp is never old enough is only identified, and says so.
func TestAlwaysYoung(t *testing.T) {
	t.Parallel()
	for _, required := range []snapshot.Evidence{0, snapshot.Stable} {
		t.Run(required.String(), func(t *testing.T) {
			t.Parallel()
			dir := fstest.Dir(t, "ramfs")
			src := filepath.Join(dir, "src")
			fstest.Make(t, src, "a=x", "b=y")
			// chmod to the same mode moves nothing but ctime.
			seam := snapshot.Seam{At: func(call, name string) error {
				if call == "Pin" && name == "a" {
					return os.Chmod(src+"/a", 0o644)
				}
				return nil
			}}
			report, err := copyTreeWith(t.Context(), t, dir+"/dst", src, &snapshot.Options{Require: required}, seam)
			if required == snapshot.Stable {
				refusal, ok := errors.AsType[*snapshot.EvidenceError](err)
				require.True(t, ok, "%v", err)
				assert.Equal(t, src+"/a", refusal.Path)
				assert.Equal(t, snapshot.Identified, refusal.Reached)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, map[snapshot.Evidence]int64{snapshot.Identified: 1, snapshot.Stable: 1}, report.Evidence)
			assert.Equal(t, snapshot.InstantNone, report.Instant)
			assert.Equal(t, "a", report.Weakest.Entry.Path)
			assert.Contains(t, report.Weakest.Because, "too recently")
		})
	}
}

// TestReflink: large files are cloned where that is a clone, and the digest is the clone's.
func TestReflink(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"xfs", "btrfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := fstest.Dir(t, kind)
			src := filepath.Join(dir, "src")
			fstest.Make(t, src, "big=@1MiB", "more=@3MiB", "small=x", "hole=~2MiB", "empty=")
			fstest.Settle(t, dir)
			report, err := copyTree(t, dir+"/dst", src, nil)
			require.NoError(t, err)
			assert.Equal(t, int64(6<<20), report.Cloned)
			assert.Equal(t, int64(6<<20+1), report.Bytes)
			assert.Equal(t, map[snapshot.Evidence]int64{snapshot.Coherent: 5}, report.Evidence)
			fstest.Equal(t, src, dir+"/dst")
			assert.Equal(t, walkByHand(t, dir+"/dst"), entriesOf(t, report.Manifest))

			plain, err := copyTreeWith(t.Context(), t, dir+"/plain", src, nil, snapshot.Seam{Lacks: snapshot.NoClone})
			require.NoError(t, err)
			assert.Zero(t, plain.Cloned)
			assert.Equal(t, report.Manifest.Digest(), plain.Manifest.Digest())

			// Another file system, another inode.
			report, err = copyTree(t, fstest.TempDir(t)+"/dst", src, nil)
			require.NoError(t, err)
			assert.Zero(t, report.Cloned)

			// A clone is a copy: the source goes on without it.
			f := writing(t, src+"/big", os.O_RDWR)
			_, err = f.WriteString("changed")
			require.NoError(t, err)
			assert.Equal(t, plain.Manifest.Digest(), manifestOf(t, walkByHand(t, dir+"/dst")...).Digest())
		})
	}
}

// TestSparse: holes stay holes.
func TestSparse(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", "ext4", "xfs", "btrfs", "tmpfs"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := fstest.Dir(t, kind)
			src := filepath.Join(dir, "src")
			fstest.Make(t, src, "f=~2MiB", "tail=~1000001B")
			f := writing(t, src+"/f", os.O_RDWR)
			_, err := f.WriteAt([]byte("x"), 1<<20+5)
			require.NoError(t, errors.Join(err, f.Close()))
			for i, lacks := range []snapshot.Fallback{0, snapshot.NoClone} {
				dst := filepath.Join(dir, string(rune('a'+i)))
				_, err := copyTreeWith(t.Context(), t, dst, src, nil, snapshot.Seam{Lacks: lacks})
				require.NoError(t, err)
				fstest.Equal(t, src, dst)
				assert.LessOrEqual(t, blocksOf(t, dst+"/f"), max(blocksOf(t, src+"/f"), 256), "blocks of 512 bytes")
				assert.LessOrEqual(t, blocksOf(t, dst+"/tail"), int64(8))
			}
		})
	}
}

// TestStalledWriter: a process that stands still inside write() holds the inode's lock for as long as it likes.
func TestStalledWriter(t *testing.T) {
	t.Parallel()
	dir := fstest.Dir(t, "ext4")
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "a=x", "d/stuck=@8192B")
	fstest.Settle(t, dir)
	stuck := filepath.Join(src, "d/stuck")
	writer := fstest.Start(t, "stall", stuck)
	// What is stuck in the kernel keeps its own descriptor until the kernel lets it go, and no other.
	seam := snapshot.Seam{Finished: func(open, _ int64) { assert.Equal(t, int64(1), open) }}
	opts := &snapshot.Options{Stall: 200 * time.Millisecond}
	for verb, f := range map[string]func(context.Context, *snapshot.Options) error{
		"CopyDir": func(ctx context.Context, o *snapshot.Options) error {
			return errorOf(snapshot.CopyDir(ctx, dir+"/dst", src, o))
		},
		"Scan": func(ctx context.Context, o *snapshot.Options) error { return errorOf(snapshot.Scan(ctx, src, o)) },
		"CopyFile": func(ctx context.Context, o *snapshot.Options) error {
			return errorOf(snapshot.CopyFile(ctx, dir+"/dst", stuck, o))
		},
		"ReadFile": func(ctx context.Context, o *snapshot.Options) error {
			_, _, err := snapshot.ReadFile(ctx, stuck, o)
			return err
		},
	} {
		start := time.Now()
		err := f(t.Context(), snapshot.WithSeam(opts, seam))
		assert.ErrorIs(t, err, snapshot.ErrBusy, verb)
		assert.ErrorContains(t, err, stuck, verb)
		assert.ErrorContains(t, err, "stalled", verb)
		assert.True(t, snapshot.Retryable(err), verb)
		assert.GreaterOrEqual(t, time.Since(start), opts.Stall, verb)
		fstest.Nothing(t, dir, "src")

		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		patient := seam
		patient.At = once("WaitWriters", func() { cancel(cause) })
		err = f(ctx, snapshot.WithSeam(&snapshot.Options{Stall: time.Hour}, patient))
		assert.ErrorIs(t, err, cause, verb)
		assert.ErrorContains(t, err, stuck, verb)
		fstest.Nothing(t, dir, "src")
	}
	// Beside it all others can be copied.
	report, err := copyTree(t, dir+"/dst", src, &snapshot.Options{Exclude: filterOf(t, "d/stuck")})
	require.NoError(t, err)
	assert.Zero(t, report.Abandoned)

	assert.Equal(t, 8, fstest.Handles()[stuck])
	writer.Stop()
	assert.Eventually(t, func() bool { return fstest.Handles()[stuck] == 0 }, 10*time.Second, time.Millisecond, "the calls end when the writer does")
}

// TestReadersDoNotDisturb: a lease or a reader of somebody else is no writer.
func TestReadersDoNotDisturb(t *testing.T) {
	t.Parallel()
	dir := fstest.Dir(t, "ext4")
	fstest.Make(t, dir, "a=hello")
	fstest.Settle(t, dir)
	f, err := os.Open(dir + "/a")
	require.NoError(t, err)
	defer f.Close()
	_, err = io.ReadAll(f)
	require.NoError(t, err)
	proof, err := copyOne(t, dir+"/b", dir+"/a", &snapshot.Options{Require: snapshot.Quiescent}, snapshot.Seam{})
	require.NoError(t, err)
	assert.Equal(t, snapshot.Quiescent, proof.Evidence)
	assert.Empty(t, proof.Because)
	assert.False(t, slices.ContainsFunc(namesIn(t, dir), func(name string) bool { return strings.HasPrefix(name, ".") }))
}

func blocksOf(t testing.TB, name string) int64 {
	t.Helper()
	fi, err := os.Stat(name)
	require.NoError(t, err)
	return fi.Sys().(*syscall.Stat_t).Blocks
}
