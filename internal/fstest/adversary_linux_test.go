// SPDX-License-Identifier: Apache-2.0

package fstest_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot/internal/fstest"
)

// caught repeats a careless look at the files until it sees what no careful one may.
func caught(t *testing.T, look func() bool) {
	t.Helper()
	tries := 1
	for start := time.Now(); !look(); tries++ {
		if time.Since(start) > 30*time.Second {
			require.Fail(t, "the adversary was never caught", "%d tries", tries)
		}
	}
	t.Logf("caught after %d tries", tries)
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return b
}

func TestTorn(t *testing.T) {
	for _, args := range [][]string{
		{"--how", "write"},
		{"--how", "write", "--reopen", "--pause-max", "1ms"},
		{"--how", "chunks"},
		{"--how", "direct"},
		{"--how", "stall"},
		{"--how", "stall", "--reopen"},
		{"--how", "mmap"},
		{"--how", "mmap-hold"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			dir := fstest.Dir(t, "")
			if (args[1] == "write" || args[1] == "stall") && magic(t, dir) == unix.XFS_SUPER_MAGIC {
				t.Skip("xfs lets no read into a write")
			}
			f := filepath.Join(dir, "f")
			p := fstest.Start(t, append(append([]string{"torn"}, args...), f)...)
			caught(t, func() bool {
				_, torn := fstest.TornGeneration(read(t, f))
				return torn
			})
			p.Pause()
			first, torn := fstest.TornGeneration(read(t, f))
			assert.False(t, torn, "paused")
			p.Resume()
			report := p.Stop()
			last, torn := fstest.TornGeneration(read(t, f))
			assert.False(t, torn, "stopped")
			assert.GreaterOrEqual(t, last, first)
			assert.Equal(t, int64(last-1), report.Turns)
		})
	}
}

func readTime(t *testing.T, name string) time.Time {
	t.Helper()
	fi, err := os.Stat(name)
	require.NoError(t, err)
	return fi.ModTime()
}

func TestPair(t *testing.T) {
	for _, args := range [][]string{{"--how", "write"}, {"--how", "mmap"}, {"--how", "write", "--size", "65536"}, {"--hide"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			dir := fstest.Dir(t, "")
			a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
			p := fstest.Start(t, append(append([]string{"pair"}, args...), a, b)...)
			p.Pause() // it makes the files, and puts their times back, in its first turn
			before := readTime(t, a)
			p.Resume()
			caught(t, func() bool {
				return fstest.PairOrder(read(t, a), read(t, b)) != nil
			})
			p.Pause()
			assert.NoError(t, fstest.PairOrder(read(t, a), read(t, b)))
			if args[0] == "--hide" {
				assert.Equal(t, before, readTime(t, a), "mtime")
			}
		})
	}
}

func TestExchange(t *testing.T) {
	dir := fstest.Dir(t, "")
	fstest.Make(t, dir, "p/f=mine", "q/f=secret")
	name := filepath.Join(dir, "p/f")
	p := fstest.Start(t, "exchange", filepath.Join(dir, "p"), filepath.Join(dir, "q"))
	caught(t, func() bool { return string(read(t, name)) == "secret" })
	for range 100 {
		p.Pause()
		require.Equal(t, "mine", string(read(t, name)))
		p.Resume()
	}
}

func TestSwapLink(t *testing.T) {
	dir := fstest.Dir(t, "")
	fstest.Make(t, dir, "src/sub/f=mine", "out/f=secret")
	f := filepath.Join(dir, "src/sub/f")
	for _, args := range [][]string{
		{"swaplink", f, filepath.Join(dir, "out/f")},
		{"swapparent", filepath.Join(dir, "src/sub"), filepath.Join(dir, "out")},
	} {
		t.Run(args[0], func(t *testing.T) {
			p := fstest.Start(t, append([]string{args[0], "--side", dir}, args[1:]...)...)
			caught(t, func() bool {
				fi, err := os.Lstat(f)
				require.NoError(t, err)
				return fi.Mode().IsRegular() && string(read(t, f)) == "secret"
			})
			p.Stop()
			fstest.Nothing(t, dir, "src", "out")
			assert.Equal(t, map[string]string{".": "dir", "sub": "dir", "sub/f": `file "mine"`}, fstest.Contents(t, filepath.Join(dir, "src")))
		})
	}
}

func TestTwo(t *testing.T) {
	dir := fstest.Dir(t, "")
	fstest.Make(t, dir, "src/sub/")
	sub := filepath.Join(dir, "src/sub")
	p := fstest.Start(t, "two", "--side", dir, sub)
	same := func() bool {
		return bytes.Equal(read(t, filepath.Join(sub, "a")), read(t, filepath.Join(sub, "b")))
	}
	caught(t, func() bool { return !same() })
	p.Pause()
	assert.True(t, same())
	p.Stop()
	fstest.Nothing(t, dir, "src")
}

func TestNoise(t *testing.T) {
	for _, kind := range []string{"link", "chmod", "xattr", "read"} {
		t.Run(kind, func(t *testing.T) {
			dir := fstest.Dir(t, "")
			fstest.Make(t, dir, "src/f=x", "src/d/g 0600=y")
			src := filepath.Join(dir, "src")
			before := fstest.Read(t, src)
			p := fstest.Start(t, "noise", "--ops", kind, src)
			ctime := ctimeOf(t, filepath.Join(src, "d/g"))
			if kind == "read" {
				assert.Equal(t, ctime, ctimeOf(t, filepath.Join(src, "d/g")))
			} else {
				caught(t, func() bool { return ctimeOf(t, filepath.Join(src, "d/g")) != ctime })
			}
			assert.Equal(t, before, fstest.Read(t, src))
			p.Stop()
			fstest.Nothing(t, dir, "src")
		})
	}
}

func TestGrow(t *testing.T) {
	f := filepath.Join(fstest.Dir(t, ""), "f")
	p := fstest.Start(t, "grow", "--max", "1048576", f)
	caught(t, func() bool { return len(read(t, f)) == 1<<20 })
	assert.Equal(t, int64(1<<20), p.Stop().Bytes)
}

func TestGrowAgain(t *testing.T) {
	f := filepath.Join(fstest.Dir(t, ""), "f")
	fstest.Start(t, "grow", "--max", "1048576", "--again", f)
	last := int64(0)
	caught(t, func() bool {
		fi, err := os.Stat(f)
		require.NoError(t, err)
		require.LessOrEqual(t, fi.Size(), int64(1<<20))
		shrank := fi.Size() < last
		last = fi.Size()
		return shrank
	})
}

func TestFlicker(t *testing.T) {
	fstest.NeedRoot(t)
	for _, source := range []string{"other", "tmpfs"} {
		t.Run(source, func(t *testing.T) {
			dir := fstest.Dir(t, "")
			fstest.Make(t, dir, "src/sub/f=mine", "other/f=secret")
			sub := filepath.Join(dir, "src/sub")
			if source == "other" {
				source = filepath.Join(dir, source)
			}
			p := fstest.Start(t, "flicker", "--pause-max", "2ms", sub, source)
			caught(t, func() bool {
				b, err := os.ReadFile(filepath.Join(sub, "f"))
				return err != nil || string(b) != "mine"
			})
			for range 10 {
				p.Pause()
				require.Equal(t, "mine", string(read(t, filepath.Join(sub, "f"))))
				p.Resume()
			}
		})
	}
}

// A process that ends itself in the middle of a turn leaves no mount.
func TestFlickerDies(t *testing.T) {
	fstest.NeedRoot(t)
	dir := fstest.Dir(t, "")
	fstest.Make(t, dir, "sub/f=mine")
	err := fstest.Run(t.Context(), "start", os.Stderr, func(t fstest.TB) {
		p := fstest.Start(t, "flicker", "--deadline", "100ms", "--pause-max", "1h", filepath.Join(dir, "sub"), "tmpfs")
		p.Pause()
	})
	assert.ErrorContains(t, err, "deadline")
	assert.Equal(t, "mine", string(read(t, filepath.Join(dir, "sub/f"))))
}

// What strikes at the end changes the bytes then, and not one stamp.
func TestStrikesAtTheEnd(t *testing.T) {
	for op, kind := range map[string]string{"pending": "", "moveext": "ext4"} {
		t.Run(op, func(t *testing.T) {
			dir := fstest.Dir(t, kind)
			f := filepath.Join(dir, "f")
			old := fstest.TornContent(1, 64<<10)
			require.NoError(t, os.WriteFile(f, old, 0o644))
			p := fstest.Start(t, op, "--side", dir, f)
			before := ctimeOf(t, f)
			require.Equal(t, old, read(t, f))
			p.Stop()
			assert.NotEqual(t, old, read(t, f))
			assert.Equal(t, before, ctimeOf(t, f))
		})
	}
}

func TestNames(t *testing.T) {
	for _, args := range [][]string{{"churn"}, {"renames"}} {
		t.Run(args[0], func(t *testing.T) {
			dir := fstest.Dir(t, "")
			p := fstest.Start(t, append(args, "--files", "20", dir)...)
			files := func() (names []string) {
				err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
					if err == nil && !d.IsDir() {
						names = append(names, d.Name())
					}
					return err
				})
				require.NoError(t, err)
				return names
			}
			if args[0] == "churn" {
				first := files()
				caught(t, func() bool { return !assert.ObjectsAreEqual(first, files()) })
				p.Stop()
				fstest.Nothing(t, dir)
				return
			}
			caught(t, func() bool { return len(files()) != 20 })
			p.Pause()
			assert.Len(t, files(), 20)
		})
	}
}

func TestRecycle(t *testing.T) {
	dir := fstest.Dir(t, "")
	fstest.Make(t, dir, "f=@4096B")
	f := filepath.Join(dir, "f")
	first, err := os.Stat(f)
	require.NoError(t, err)
	p := fstest.Start(t, "recycle", "--pause-max", "2ms", f)
	caught(t, func() bool {
		p.Pause()
		defer p.Resume()
		now, err := os.Stat(f)
		require.NoError(t, err)
		gen, torn := fstest.TornGeneration(read(t, f))
		require.False(t, torn)
		return now.Size() == first.Size() && now.ModTime().Equal(first.ModTime()) && gen > 1
	})
}

func TestStall(t *testing.T) {
	f, err := os.Create(filepath.Join(fstest.Dir(t, ""), "f"))
	require.NoError(t, err)
	defer f.Close()
	p := fstest.Start(t, "stall", f.Name())
	tid, answer := make(chan int, 1), make(chan error, 1)
	go func() {
		tid <- unix.Gettid()
		_, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
		answer <- err
	}()
	// State D is the proof that the stalled writer holds up whoever wants the inode's lock.
	stat := filepath.Join("/proc/self/task", itoa(<-tid), "stat")
	caught(t, func() bool { return strings.Contains(string(read(t, stat)), ") D ") })
	assert.Empty(t, answer)
	p.Stop()
	assert.NoError(t, <-answer)
}

func TestStartRefuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"nonsense"},
		{"torn"},
		{"torn", "--how", "nonsense", "f"},
		{"grow", "/nonexistent/f"},
	} {
		err := fstest.Run(t.Context(), "start", os.Stderr, func(t fstest.TB) { fstest.Start(t, args...) })
		assert.ErrorContains(t, err, "failed", "Start(%q)", args)
	}
}

func TestStartNoticesDeath(t *testing.T) {
	t.Parallel()
	dir := fstest.Dir(t, "")
	err := fstest.Run(t.Context(), "start", os.Stderr, func(t fstest.TB) {
		p := fstest.Start(t, "churn", "--deadline", "50ms", dir)
		for {
			p.Pause()
			p.Resume()
		}
	})
	assert.ErrorContains(t, err, "deadline")
}
