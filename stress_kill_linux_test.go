// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// A copier killed at any point leaves the whole copy or none, and nothing that a sweep does not find.
func TestStressKill(t *testing.T) {
	if args := flag.Args(); len(args) > 0 {
		killedChild(t, args)
		return
	}
	for _, tt := range []struct {
		name  string
		src   string
		lacks snapshot.Fallback
	}{
		{"tree", "tree", 0},
		{"file", "tree/big", 0},
		{"file by name", "tree/big", snapshot.NoNameless},
	} {
		for _, kind := range stressKinds() {
			t.Run(stressKindName(kind)+"/"+tt.name, func(t *testing.T) {
				dir := fstest.Dir(t, kind)
				lines := []string{"big=@4MiB", "empty/", "link => d/1", "x 0755=#!"}
				for i := range 100 {
					lines = append(lines, fmt.Sprintf("d/%d=@16KiB", i))
				}
				fstest.Make(t, filepath.Join(dir, "tree"), lines...)
				fstest.Settle(t, dir)
				k := &killing{src: filepath.Join(dir, tt.src), parent: filepath.Join(dir, "out"), lacks: tt.lacks}
				require.NoError(t, os.Mkdir(k.parent, 0o755))
				k.control(t)
				steps, took := k.unharmed(t)
				for i := range stressTries(t, 6, 12, 200) {
					switch i % 3 {
					case 0:
						k.run(t, 0, rand.N(took*5/4))
					case 1:
						k.run(t, 1+rand.Int64N(steps), time.Minute)
					case 2: // where it is published
						k.run(t, steps-rand.Int64N(32), time.Minute)
					}
				}
				if k.tries >= 50 {
					assert.Positive(t, k.whole, "kills after the copy appeared")
					assert.Positive(t, k.absent, "kills before the copy appeared")
				}
				t.Logf("kill %s %s: kills %d of %d tries (%d steps, %v), absent %d, whole %d, none in part; swept %d",
					stressKindName(kind), tt.name, k.killed, k.tries, steps, took.Round(time.Millisecond), k.absent, k.whole, k.swept)
			})
		}
	}
}

type killing struct {
	src, parent                         string
	lacks                               snapshot.Fallback
	tries, killed, absent, whole, swept int
}

func (k *killing) dst() string { return filepath.Join(k.parent, "dst") }

// run kills a copier, from within before the given step if that is not 0, or from outside after a time, and looks at what is
// left.
func (k *killing) run(t *testing.T, step int64, after time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stressPatience)
	defer cancel()
	copier := k.start(ctx, t, step)
	timer := time.AfterFunc(after, func() { _ = copier.cmd.Process.Kill() })
	err := copier.cmd.Wait()
	timer.Stop()
	require.NoError(t, ctx.Err())
	k.tries++
	if err != nil {
		status := copier.cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.Equal(t, syscall.SIGKILL, status.Signal(), "%v: %s", err, copier.errs.String())
		k.killed++
	}
	left, err := os.ReadDir(k.parent)
	require.NoError(t, err)
	allowed := []string{}
	if len(left) > 0 && left[0].Name() == "dst" || len(left) > 1 {
		allowed = append(allowed, "dst")
		k.whole++
		require.Equal(t, contentOf(t, k.src), contentOf(t, k.dst()), "killed at step %d, or after %v", step, after)
	} else {
		k.absent++
	}
	// The next run is not held up by what the last one left, and the sweep takes nothing else.
	next := filepath.Join(k.parent, "next")
	require.NoError(t, copyAny(t.Context(), next, k.src, nil))
	require.Equal(t, contentOf(t, k.src), contentOf(t, next))
	removed, err := snapshot.Sweep(t.Context(), k.parent)
	require.NoError(t, err)
	k.swept += len(removed)
	require.True(t, fstest.Nothing(t, k.parent, append(allowed, "next")...), "killed at step %d, or after %v", step, after)
	for _, name := range append(allowed, "next") {
		discard(t, filepath.Join(k.parent, name))
	}
}

type copier struct {
	cmd  *exec.Cmd
	out  *bufio.Reader
	errs strings.Builder
}

// start starts a copier and returns when it begins to copy.
func (k *killing) start(ctx context.Context, t *testing.T, step int64) *copier {
	t.Helper()
	c := &copier{cmd: exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^TestStressKill$",
		k.dst(), k.src, strconv.Itoa(int(k.lacks)), strconv.FormatInt(step, 10))}
	c.cmd.Stderr = &c.errs
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.out = bufio.NewReader(out)
	require.NoError(t, c.cmd.Start())
	line, err := c.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return c
}

// unharmed lets a copier end, and returns how many steps it made in what time.
func (k *killing) unharmed(t *testing.T) (steps int64, took time.Duration) {
	t.Helper()
	c := k.start(t.Context(), t, 0)
	began := time.Now()
	line, err := c.out.ReadString('\n')
	require.NoError(t, err)
	took = time.Since(began)
	_, err = fmt.Sscanf(line, "steps %d\n", &steps)
	require.NoError(t, err, "%q", line)
	_, err = io.Copy(io.Discard, c.out)
	require.NoError(t, err)
	require.NoError(t, c.cmd.Wait(), c.errs.String())
	require.Equal(t, contentOf(t, k.src), contentOf(t, k.dst()))
	discard(t, k.dst())
	return steps, took
}

// killedChild is the copier: it kills itself before the given step of all those that reach the system, if that is not 0.
func killedChild(t *testing.T, args []string) {
	t.Helper()
	lacks, err := strconv.Atoi(args[2])
	require.NoError(t, err)
	last, err := strconv.ParseInt(args[3], 10, 64)
	require.NoError(t, err)
	var steps atomic.Int64
	opts := snapshot.WithSeam(nil, snapshot.Seam{
		Lacks: snapshot.Fallback(lacks),
		At: func(string, string) error {
			if steps.Add(1) == last {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			return nil
		},
	})
	fmt.Println("ready")
	require.NoError(t, copyAny(t.Context(), args[0], args[1], opts))
	fmt.Println("steps", steps.Load())
}

func copyAny(ctx context.Context, dst, src string, opts *snapshot.Options) error {
	fi, err := os.Stat(src)
	if err != nil {
		return err
	}
	if fi.IsDir() {
		_, err = snapshot.CopyDir(ctx, dst, src, opts)
	} else {
		_, err = snapshot.CopyFile(ctx, dst, src, opts)
	}
	return err
}

// contentOf returns what a tree or a file holds, by digests.
func contentOf(t *testing.T, name string) map[string]string {
	t.Helper()
	content := map[string]string{}
	require.NoError(t, filepath.WalkDir(name, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at = strings.TrimPrefix(at, name)
		switch d.Type() {
		case fs.ModeDir:
			content[at] = "directory"
		case fs.ModeSymlink:
			content[at], err = os.Readlink(name + at)
		default:
			var b []byte
			b, err = os.ReadFile(name + at)
			content[at] = fmt.Sprintf("%d bytes %x", len(b), sha256.Sum256(b))
		}
		return err
	}))
	return content
}

// control asserts that a killed cp leaves a part, and that it is seen.
func (k *killing) control(t *testing.T) {
	t.Helper()
	want := contentOf(t, k.src)
	began := time.Now()
	if out, err := exec.CommandContext(t.Context(), "cp", "-r", k.src, k.dst()).CombinedOutput(); err != nil {
		t.Logf("no positive control: cp: %v %s", err, out)
		return
	}
	took := time.Since(began)
	discard(t, k.dst())
	stressCaught(t, func() error {
		cmd := exec.CommandContext(t.Context(), "cp", "-r", "--reflink=never", k.src, k.dst())
		require.NoError(t, cmd.Start())
		time.AfterFunc(rand.N(took), func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		if _, err := os.Lstat(k.dst()); err != nil {
			return nil
		}
		got := contentOf(t, k.dst())
		discard(t, k.dst())
		if !assert.ObjectsAreEqual(want, got) {
			return fmt.Errorf("%d of %d entries, or a part of one", len(got), len(want))
		}
		return nil
	})
}
