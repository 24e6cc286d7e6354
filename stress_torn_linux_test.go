// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

const tornSize = 4 << 20

// tornState is the oracle of the adversary torn. A state between two of the writer's steps is one that the file really had:
// between two write calls of 64 KiB, or anywhere between two stores through a mapping, which are made page by page. Within one
// write call there is none.
func tornState(b []byte, how string) (between bool, err error) {
	if len(b) != tornSize {
		return false, fmt.Errorf("%d bytes", len(b))
	}
	words := len(b) / 8
	newest := uint64(0)
	for i := range words {
		newest = max(newest, binary.LittleEndian.Uint64(b[8*i:])>>32)
	}
	firstOld, lastNew := words, 0
	for i := range words {
		word := binary.LittleEndian.Uint64(b[8*i:])
		index := uint32(i)
		if i == 0 {
			index = uint32(len(b))
		}
		switch gen := word >> 32; {
		case uint32(word) != index:
			return false, fmt.Errorf("word %d is that of another place", i)
		case gen == newest:
			lastNew = i
		case gen+1 != newest:
			return false, fmt.Errorf("generation %d and, at word %d, %d", newest, i, gen)
		case firstOld == words:
			firstOld = i
		}
	}
	const page, chunk = 4 << 10, 64 << 10
	inOrder := lastNew < firstOld
	switch mapped := strings.HasPrefix(how, "mmap"); {
	case firstOld == words:
		return false, nil
	case mapped && (inOrder || 8*firstOld/page == 8*lastNew/page):
		return true, nil
	case how == "chunks" && inOrder && 8*firstOld%chunk == 0:
		return true, nil
	}
	return false, fmt.Errorf("torn: generation %d up to word %d, the one before from word %d", newest, lastNew, firstOld)
}

func TestTornState(t *testing.T) {
	t.Parallel()
	older, newer := fstest.TornContent(6, tornSize), fstest.TornContent(7, tornSize)
	mix := func(at int) []byte { return append(bytes.Clone(newer[:at]), older[at:]...) }
	inPage := mix(8 << 10)
	copy(inPage[9<<10:], newer[9<<10:9<<10+64])
	for _, tt := range []struct {
		name    string
		b       []byte
		allowed string // writers that have such a state
	}{
		{"whole", newer, "write chunks direct mmap"},
		{"at a chunk", mix(64 << 10), "chunks mmap"},
		{"at a page", mix(4 << 10), "mmap"},
		{"at a word", mix(808), "mmap"},
		{"within a page", inPage, "mmap"},
		{"the old one first", append(bytes.Clone(older[:64<<10]), newer[64<<10:]...), ""},
		{"two generations apart", append(bytes.Clone(newer[:64<<10]), fstest.TornContent(5, tornSize)[64<<10:]...), ""},
		{"moved", append(bytes.Clone(newer[8:]), newer[:8]...), ""},
		{"short", newer[:64<<10], ""},
	} {
		for _, how := range []string{"write", "chunks", "direct", "mmap"} {
			_, err := tornState(tt.b, how)
			assert.Equal(t, strings.Contains(tt.allowed, how), err == nil, "%s, %s: %v", tt.name, how, err)
		}
	}
}

// A file that another process rewrites is read whole, or refused.
func TestStressTornWriters(t *testing.T) {
	for _, kind := range stressKinds() {
		for _, how := range []string{
			"write", "write --reopen", "chunks", "chunks --reopen", "direct", "direct --reopen",
			"stall", "stall --reopen", "mmap", "mmap-hold",
		} {
			t.Run(stressKindName(kind)+"/"+how, func(t *testing.T) {
				tries := stressTries(t, 15, 50, 10_000)
				if strings.HasPrefix(how, "stall") { // which leaves few moments to be accepted in
					stressTorn(t, kind, how, 0, tries/3)
					return
				}
				stressTorn(t, kind, how, 0, tries).atLeast(t, 20)
			})
		}
	}
	// What these prove by default is below what excludes a torn copy, and how many are torn is only printed.
	for _, tt := range []struct {
		kind    string
		require snapshot.Evidence
	}{{"tmpfs", 0}, {"tmpfs", snapshot.Quiescent}, {"overlay", 0}, {"overlay", snapshot.Buffered}} {
		for _, how := range []string{"write --reopen", "chunks --reopen", "mmap"} {
			t.Run(fmt.Sprintf("%s/%s/%v", tt.kind, how, tt.require), func(t *testing.T) {
				stressTorn(t, tt.kind, how, tt.require, stressTries(t, 10, 20, 2000))
			})
		}
	}
}

func stressTorn(t *testing.T, kind, writer string, level snapshot.Evidence, tries int) *tally {
	t.Helper()
	dir := fstest.Dir(t, kind)
	src, out := filepath.Join(dir, "src"), filepath.Join(dir, "out")
	require.NoError(t, os.Mkdir(out, 0o755))
	how, _, reopen := strings.Cut(writer, " --reopen")
	fstest.Start(t, append(strings.Fields("torn --pause-max 20ms --how "+writer), src)...)
	fstest.Leaks(t)
	stressCaught(t, func() error {
		b, err := carelessRead(src)
		require.NoError(t, err)
		_, err = tornState(b, how)
		return err
	})
	c, opts := &tally{}, &snapshot.Options{Require: level}
	levels, between, torn := map[snapshot.Evidence]int{}, map[snapshot.Evidence]int{}, map[snapshot.Evidence]int{}
	for range tries {
		var b []byte
		var proof snapshot.Proof
		accepted, _ := c.try(t, func(ctx context.Context) (err error) {
			if c.tries%2 == 0 {
				b, proof, err = snapshot.ReadFile(ctx, src, opts)
				return err
			}
			b, proof, err = copyAndRead(ctx, filepath.Join(out, "dst"), src, opts)
			return err
		})
		if !accepted {
			continue
		}
		levels[proof.Evidence]++
		mid, err := tornState(b, how)
		switch {
		case err != nil:
			torn[proof.Evidence]++
		case mid:
			between[proof.Evidence]++
		}
		if tornExcluded(kind, how, proof.Evidence) {
			assert.NoError(t, err, "%s, %s: accepted as %v (%s)", kind, writer, proof.Evidence, proof.Because)
		}
	}
	fstest.Nothing(t, out)
	if c.tries >= 50 && reopen && slices.Contains([]string{"ext4", "xfs", "btrfs"}, kind) {
		assert.Positive(t, levels[snapshot.Coherent], "accepted as coherent")
	}
	t.Logf("torn %s %s, require %v: %v %v torn %v, between two writes %v", stressKindName(kind), writer, level, c, levels, torn, between)
	return c
}

// tornExcluded reports whether the level, as it is documented, excludes a write in flight.
func tornExcluded(kind, how string, level snapshot.Evidence) bool {
	switch {
	case level >= snapshot.Coherent:
		return true
	case level == snapshot.Buffered:
		return how != "direct" || kind == "btrfs"
	}
	return false
}

// copyAndRead goes by way of a copy, for which a file system may have a reflink.
func copyAndRead(ctx context.Context, dst, src string, opts *snapshot.Options) ([]byte, snapshot.Proof, error) {
	proof, err := snapshot.CopyFile(ctx, dst, src, opts)
	if err != nil {
		return nil, proof, err
	}
	b, err := os.ReadFile(dst)
	if err == nil {
		err = os.Remove(dst)
	}
	return b, proof, err
}

// A log that grows is copied up to an end that it had during the call, or refused; nobody follows it for ever.
func TestStressGrowingLog(t *testing.T) {
	for _, kind := range stressKinds() {
		t.Run(stressKindName(kind), func(t *testing.T) {
			dir := fstest.Dir(t, kind)
			log, out := filepath.Join(dir, "log"), filepath.Join(dir, "out")
			require.NoError(t, os.Mkdir(out, 0o755))
			p := fstest.Start(t, "grow", "--size", "512", "--pause-max", "100us", log)
			stressBursts(t, p)
			size := func() int64 {
				fi, err := os.Stat(log)
				require.NoError(t, err)
				return fi.Size()
			}
			c := &tally{}
			for range stressTries(t, 15, 50, 2000) {
				var b []byte
				before := size()
				accepted, _ := c.try(t, func(ctx context.Context) (err error) {
					b, _, err = copyAndRead(ctx, filepath.Join(out, "dst"), log, nil)
					return err
				})
				after := size()
				fstest.Nothing(t, out)
				if !accepted {
					continue
				}
				assert.Zero(t, len(b)%512, "%d bytes: half of an append", len(b))
				assert.Zero(t, len(bytes.Trim(b, "\x00")), "bytes that nobody wrote")
				assert.True(t, before <= int64(len(b)) && int64(len(b)) <= after, "%d bytes, the log had %d to %d", len(b), before, after)
			}
			c.atLeast(t, 5)
			t.Logf("growing log %s: %v wrong 0, %d bytes", stressKindName(kind), c, size())
		})
	}
}

// A file that grows faster than it can be read is read up to the size that it had when it was looked at.
func TestStressGrower(t *testing.T) {
	for _, kind := range stressKinds() {
		t.Run(stressKindName(kind), func(t *testing.T) {
			src := filepath.Join(fstest.Dir(t, kind), "src")
			p := fstest.Start(t, "grow", "--max", "67108864", "--again", src)
			fstest.Leaks(t)
			stressCaught(t, func() error { return followsCarelessly(src) })
			stressBursts(t, p)
			c := &tally{}
			for range stressTries(t, 3, 20, 500) {
				_, _ = c.try(t, func(ctx context.Context) error {
					followed, err := follows(ctx, src, 0)
					assert.NoError(t, followed)
					return err
				})
			}
			t.Logf("grower %s: %v wrong 0", stressKindName(kind), c)
		})
	}
}

// followsCarelessly reads until there is nothing more, and returns an error if that is more than there was.
func followsCarelessly(name string) error {
	before, err := os.Stat(name)
	if err != nil {
		return nil
	}
	b, err := carelessRead(name)
	if n := int64(len(b)); err == nil && n > before.Size() {
		return fmt.Errorf("%d bytes read of %d", n, before.Size())
	}
	return nil
}

// follows returns an error if more is read of a file than it had, which is not to be seen in what a call returns.
func follows(ctx context.Context, name string, off snapshot.Check) (followed, err error) {
	reads := int64(0)
	seam := snapshot.Seam{Off: off, At: func(call, _ string) error {
		if call == "Read" || call == "ReadNow" {
			atomic.AddInt64(&reads, 1)
		}
		return nil
	}}
	f, err := snapshot.Open(name, snapshot.WithSeam(&snapshot.Options{Attempts: 1}, seam))
	if err != nil {
		return nil, err
	}
	size := f.State().Size
	_, err = f.CopyTo(ctx, io.Discard)
	const buffer = 256 << 10
	// One for the end, one for a part of a buffer, and one that did not get what was in memory.
	if most := size/buffer + 3; reads > most {
		followed = fmt.Errorf("%d reads of %d bytes", reads, size)
	}
	return followed, errors.Join(err, f.Close())
}

// A writer that stalls inside write() holds up whoever wants the inode's lock, and no copy for longer than Options.Stall.
func TestStressStaller(t *testing.T) {
	for _, kind := range stressKinds() {
		t.Run(stressKindName(kind), func(t *testing.T) {
			s := newTreeStress(t, fstest.Dir(t, kind), "f=@8192B", "g=x")
			fstest.Adversary(t) // what stays of it is no leak
			fstest.Leaks(t)
			src, dst := filepath.Join(s.src, "f"), filepath.Join(s.out, "dst")
			f, err := os.Open(src)
			require.NoError(t, err)
			defer f.Close()
			p := fstest.Start(t, "stall", src)
			tid, ended := make(chan int, 1), make(chan error, 1)
			go func() { // as cp does
				runtime.LockOSThread()
				tid <- unix.Gettid()
				_, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
				_, readErr := f.ReadAt(make([]byte, 1), 0)
				ended <- errors.Join(err, readErr)
			}()
			stat := fmt.Sprintf("/proc/self/task/%d/stat", <-tid)
			stressCaught(t, func() error {
				b, err := os.ReadFile(stat)
				require.NoError(t, err)
				if !strings.Contains(string(b), ") D ") {
					return nil
				}
				return errors.New("it waits, beyond the reach of signals")
			})
			opts := &snapshot.Options{Stall: 20 * time.Millisecond}
			calls := []func(context.Context) error{
				func(ctx context.Context) error { return errorOf(snapshot.CopyFile(ctx, dst, src, opts)) },
				func(ctx context.Context) error { return errorOf(snapshot.CopyDir(ctx, dst, s.src, opts)) },
				func(ctx context.Context) error { _, _, err := snapshot.ReadFile(ctx, src, opts); return err },
			}
			for i := range stressTries(t, 3, 12, 300) {
				_, err := s.try(t, calls[i%len(calls)])
				assert.ErrorIs(t, err, snapshot.ErrBusy)
				fstest.Nothing(t, s.out)
			}
			p.Stop()
			require.NoError(t, <-ended)
			want, err := os.ReadFile(src)
			require.NoError(t, err)
			b, _, err := snapshot.ReadFile(t.Context(), src, nil)
			require.NoError(t, err)
			assert.Equal(t, want, b)
			t.Logf("staller %s: %v", stressKindName(kind), &s.tally)
		})
	}
}

// A file that is removed and made anew, with the number, the size and the mtime of the old one, is never mixed with it.
func TestStressRecycledFile(t *testing.T) {
	for _, kind := range append(stressKinds(), "ext4-128", "tmpfs", "overlay") {
		t.Run(stressKindName(kind), func(t *testing.T) {
			dir := fstest.Dir(t, kind)
			fstest.Make(t, dir, "src/f=@4096B", "out/")
			src := filepath.Join(dir, "src/f")
			p := fstest.Start(t, "recycle", src)
			last := uint64(0)
			oracle := func(b []byte) error {
				if len(b) == 0 {
					return nil
				}
				gen, torn := fstest.TornGeneration(b)
				if torn || gen < last {
					return fmt.Errorf("%d bytes of generation %d after %d, torn %t", len(b), gen, last, torn)
				}
				last = gen
				return nil
			}
			stressCaught(t, func() error { // who looks at sizes and times of a name alone sees one file, and it is another
				before, err := os.Stat(src)
				if err != nil {
					return nil
				}
				b, _ := os.ReadFile(src)
				again, _ := os.ReadFile(src)
				after, err := os.Stat(src)
				if err == nil && len(b) > 0 && len(again) > 0 && !bytes.Equal(b, again) && before.ModTime().Equal(after.ModTime()) && before.Size() == after.Size() {
					return fmt.Errorf("equal sizes and times, other contents")
				}
				return nil
			})
			stressBursts(t, p)
			c := &tally{}
			tries := stressTries(t, 15, 50, 2000)
			if kind == "ext4-128" { // where a stamp settles in a second
				tries = max(tries/5, 3)
			}
			for range tries {
				var b []byte
				accepted, _ := c.try(t, func(ctx context.Context) (err error) {
					if c.tries%2 == 0 {
						b, _, err = snapshot.ReadFile(ctx, src, nil)
						return err
					}
					b, _, err = copyAndRead(ctx, filepath.Join(dir, "out/dst"), src, nil)
					return err
				}, os.ErrNotExist)
				if accepted {
					require.NoError(t, oracle(b))
				}
				fstest.Nothing(t, filepath.Join(dir, "out"))
			}
			c.atLeast(t, 5)
			t.Logf("recycled file %s: %v wrong 0, up to generation %d", stressKindName(kind), c, last)
		})
	}
}
