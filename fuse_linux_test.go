// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// A FUSE server can lie about anything. These tests have one that does: what comes is the right copy or a typed error, never a
// call without end, and never a wrong copy that is called proven.

// fusePatience bounds calls that take milliseconds, or seconds on a busy machine: a call without end must not end the test run.
const fusePatience = 2 * time.Minute

// fuseContents is what a copy of the honest tree holds.
func fuseContents(t testing.TB, mount string) map[string]string {
	t.Helper()
	want := fstest.Contents(t, mount)
	require.Equal(t, `file "hello"`, want["a"])
	require.Len(t, want, 6)
	return want
}

// TestFuseLies: each lie of a quiet tree, and what comes of it.
func TestFuseLies(t *testing.T) {
	t.Parallel()
	const right = ""
	unstable := []error{errors.ErrUnsupported}
	for lie, tt := range map[string]struct {
		tree []error // any of them; none is the right copy
		text string  // of the tree's error
		file []error // of a's
	}{
		"honest":          {nil, right, nil},
		"direct":          {nil, right, nil},
		"direct, short":   {nil, right, nil},
		"cached":          {nil, right, nil},
		"slow 20ms":       {nil, right, nil},
		"list dotdot":     {nil, right, nil},
		"inodes":          {unstable, "identities", unstable},
		"nodes":           {unstable, "identities", unstable},
		"now":             {[]error{snapshot.ErrChanged}, "mtime", []error{snapshot.ErrChanged}},
		"future":          {[]error{snapshot.ErrChanged}, "mtime", []error{snapshot.ErrChanged}},
		"type":            {[]error{snapshot.ErrChanged, syscall.EIO}, "", []error{snapshot.ErrChanged, syscall.EIO, snapshot.ErrNotRegular}},
		"size 1":          {[]error{snapshot.ErrNotRegular}, "size", []error{snapshot.ErrNotRegular}},
		"direct, size 1":  {[]error{snapshot.ErrNotRegular}, "size", []error{snapshot.ErrNotRegular}},
		"direct, size -1": {[]error{snapshot.ErrNotRegular}, "size", []error{snapshot.ErrNotRegular}},
		"size 1000000000000": {
			[]error{snapshot.ErrLimit}, "ReserveBytes", []error{snapshot.ErrLimit},
		},
		"short":        {[]error{snapshot.ErrNotRegular}, "big: not a regular file: its size", nil},
		"list twice":   {[]error{fs.ErrInvalid}, "twice", nil},
		"list nul":     {[]error{fs.ErrInvalid}, "twice", nil}, // the kernel cuts the name, so that it is "a" again
		"list slash":   {[]error{syscall.EIO, fs.ErrInvalid}, "list", nil},
		"list empty":   {[]error{syscall.EIO, fs.ErrInvalid}, "list", nil},
		"list endless": {[]error{snapshot.ErrLimit}, "MaxEntries", nil},
		"list loop":    {[]error{snapshot.ErrLimit}, "MaxEntries", nil},
	} {
		t.Run(lie, func(t *testing.T) {
			t.Parallel()
			server := fstest.LyingFS(t)
			want := fuseContents(t, server.Dir)
			server.Lie(strings.Split(lie, ", ")...)
			dir := fstest.TempDir(t)
			ctx, cancel := context.WithTimeout(t.Context(), fusePatience)
			defer cancel()
			opts := &snapshot.Options{Limits: snapshot.Limits{MaxEntries: 5000}}
			if lie == "now" { // every try waits for stamps that never settle
				opts.Attempts = 1
			}

			report, err := copyTreeWith(ctx, t, filepath.Join(dir, "dst"), server.Dir, opts, snapshot.Seam{})
			fuseResult(t, "CopyDir", err, tt.tree)
			if err == nil {
				assert.Equal(t, want, fstest.Contents(t, filepath.Join(dir, "dst")))
				assert.Equal(t, map[snapshot.Evidence]int64{snapshot.Stable: 3}, report.Evidence)
				assert.Equal(t, snapshot.InstantWrites, report.Instant)
			} else {
				assert.ErrorContains(t, err, tt.text)
				assert.ErrorContains(t, err, server.Dir)
			}

			_, scanErr := snapshot.Scan(ctx, server.Dir, balanced(t, opts, snapshot.Seam{}))
			if strings.HasPrefix(lie, "size 1000") { // nothing is written, so that there is no bound before the bytes
				tt.tree = []error{snapshot.ErrNotRegular}
			}
			fuseResult(t, "Scan", scanErr, tt.tree)

			b, proof, err := snapshot.ReadFile(ctx, filepath.Join(server.Dir, "a"), balanced(t, opts, snapshot.Seam{}))
			fuseResult(t, "ReadFile", err, tt.file)
			if err == nil {
				assert.Equal(t, "hello", string(b))
				assert.Equal(t, snapshot.Stable, proof.Evidence)
			}
			assert.NoError(t, ctx.Err())
		})
	}
}

func fuseResult(t *testing.T, verb string, err error, allowed []error) {
	t.Helper()
	if len(allowed) == 0 {
		assert.NoError(t, err, verb)
		return
	}
	for _, one := range allowed {
		if errors.Is(err, one) {
			return
		}
	}
	assert.Fail(t, "another result than allowed", "%s = %v, want one of %v", verb, err, allowed)
}

// TestFuseSmaller: through the page cache nobody on this machine gets at more bytes than the size says, so those are the file.
func TestFuseSmaller(t *testing.T) {
	t.Parallel()
	server := fstest.LyingFS(t)
	server.Lie("size -1")
	dst := filepath.Join(fstest.TempDir(t), "dst")
	_, err := copyTree(t, dst, server.Dir, nil)
	require.NoError(t, err)
	fstest.Equal(t, server.Dir, dst)
	assert.Equal(t, "hell", string(readFile(t, filepath.Join(dst, "a"))))
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return b
}

// TestFuseFails: each call that the copy of a tree makes of the server fails once.
func TestFuseFails(t *testing.T) {
	t.Parallel()
	numbers := []syscall.Errno{syscall.EIO, syscall.ESTALE}
	if stressTries(t, 0, 1, 1) > 0 {
		numbers = append(numbers, syscall.ENOENT, syscall.EACCES, syscall.EINTR, syscall.ENOTDIR, syscall.ELOOP, syscall.EAGAIN, syscall.ENOSYS)
	}
	for _, number := range numbers {
		t.Run(number.Error(), func(t *testing.T) {
			t.Parallel()
			server := fstest.LyingFS(t)
			want := fuseContents(t, server.Dir)
			dir := fstest.TempDir(t)
			for _, op := range []string{"lookup", "getattr", "open", "read", "readlink", "opendir", "readdir", "statfs"} {
				n := 1
				for ; ; n++ {
					// Behind the page cache: there the kernel itself tries a read again.
					server.Lie("honest", "direct", fmt.Sprintf("fail %s %d %d", op, n, int(number)))
					dst := filepath.Join(dir, fmt.Sprint(op, n))
					ctx, cancel := context.WithTimeout(t.Context(), fusePatience)
					_, err := copyTreeWith(ctx, t, dst, server.Dir, nil, snapshot.Seam{})
					cancel()
					fired := server.Fired()
					switch {
					case err == nil:
						assert.Equal(t, want, fstest.Contents(t, dst), "%s %d", op, n)
					case fired: // the system's number can be had, or the copier took it for a change
						known := errors.Is(err, number) || errors.Is(err, snapshot.ErrChanged) || errors.Is(err, snapshot.ErrBusy)
						assert.True(t, known, "%s %d: %v", op, n, err)
						assert.ErrorContains(t, err, server.Dir, "%s %d", op, n)
					default:
						assert.NoError(t, err, "%s %d", op, n)
					}
					if !fired || t.Failed() {
						break
					}
				}
				if number != syscall.ENOSYS { // which the kernel takes for "never", so that there is no second call
					assert.Greater(t, n, 1, "%s was never called", op)
				}
			}
		})
	}
}

// TestFuseStale: the kernel keeps attributes for an hour, and the file changes. Whoever only looks is fooled.
func TestFuseStale(t *testing.T) {
	t.Parallel()
	server := fstest.LyingFS(t)
	server.Lie("cached")
	name := filepath.Join(server.Dir, "big")
	// The kernel keeps what it saw first.
	held, err := os.Open(name)
	require.NoError(t, err)
	defer held.Close()
	warm(t, server.Dir)
	before, err := held.Stat()
	require.NoError(t, err)
	server.Lie("change")
	after, err := held.Stat()
	require.NoError(t, err)
	assert.Equal(t, before.ModTime(), after.ModTime(), "control: who does not ask the server sees nothing")

	for _, call := range []string{"Read", "StatAt"} {
		warm(t, server.Dir)
		var once sync.Once
		seam := snapshot.Seam{At: func(c, _ string) error {
			if c == call {
				once.Do(func() { server.Lie("change") })
			}
			return nil
		}}
		b, _, err := snapshot.ReadFile(t.Context(), name, balanced(t, &snapshot.Options{Attempts: 1}, seam))
		assert.ErrorIs(t, err, snapshot.ErrChanged, call)
		assert.Empty(t, b)
	}

	dir := fstest.TempDir(t)
	for _, phase := range []string{"joined", "collected"} {
		warm(t, server.Dir)
		seam := snapshot.Seam{Phase: func(p string) {
			if p == phase {
				server.Lie("change")
			}
		}}
		dst := filepath.Join(dir, phase)
		_, err := copyTreeWith(t.Context(), t, dst, server.Dir, &snapshot.Options{Attempts: 1}, seam)
		if phase == "joined" {
			assert.ErrorIs(t, err, snapshot.ErrChanged, "a change before the collect")
		} else {
			assert.NoError(t, err, "a change after the collect is none of the copy's")
		}
	}
}

// warm makes the kernel keep everything.
func warm(t testing.TB, mount string) {
	t.Helper()
	fstest.Contents(t, mount)
}

// TestFuseFrozen: contents that change while the server says that nothing did cannot be told. That is why a server's files are
// at most stable, and the report says who answered.
func TestFuseFrozen(t *testing.T) {
	t.Parallel()
	server := fstest.LyingFS(t)
	server.Lie("frozen", "direct")
	name := filepath.Join(server.Dir, "big")
	old := readFile(t, name)
	reads := 0
	seam := snapshot.Seam{At: func(call, _ string) error {
		if call == "Read" {
			if reads++; reads == 2 {
				server.Lie("change")
			}
		}
		return nil
	}}
	b, proof, err := snapshot.ReadFile(t.Context(), name, balanced(t, nil, seam))
	require.NoError(t, err)
	now := readFile(t, name)
	assert.Len(t, b, len(old))
	assert.False(t, bytes.Equal(b, old) || bytes.Equal(b, now), "control: the bytes are of two contents")
	assert.Equal(t, snapshot.Stable, proof.Evidence)
	assert.Contains(t, proof.Because, "another machine or process answers for it")

	for _, required := range []snapshot.Evidence{snapshot.Buffered, snapshot.Coherent, snapshot.Quiescent} {
		_, _, err = snapshot.ReadFile(t.Context(), name, balanced(t, &snapshot.Options{Require: required}, snapshot.Seam{}))
		assert.ErrorIs(t, err, snapshot.ErrEvidence, "%v", required)
	}
}

// TestFuseHangs: a read that never comes back is given up after Options.Stall, or when ctx ends.
func TestFuseHangs(t *testing.T) {
	t.Parallel()
	server := fstest.LyingFS(t)
	want := fuseContents(t, server.Dir)
	dir := fstest.TempDir(t)
	opts := &snapshot.Options{Stall: 50 * time.Millisecond}
	dst := filepath.Join(dir, "dst")
	abandoned := map[string]func(ctx context.Context, seam snapshot.Seam) error{
		"CopyDir": func(ctx context.Context, seam snapshot.Seam) error {
			return errorOf(snapshot.CopyDir(ctx, dst, server.Dir, snapshot.WithSeam(opts, seam)))
		},
		"Scan": func(ctx context.Context, seam snapshot.Seam) error {
			return errorOf(snapshot.Scan(ctx, server.Dir, snapshot.WithSeam(opts, seam)))
		},
		"CopyFile": func(ctx context.Context, seam snapshot.Seam) error {
			return errorOf(snapshot.CopyFile(ctx, dst, filepath.Join(server.Dir, "a"), snapshot.WithSeam(opts, seam)))
		},
	}
	for verb, call := range abandoned {
		server.Lie("hang read", "direct")
		ctx, cancel := context.WithTimeout(t.Context(), fusePatience)
		err := call(ctx, snapshot.Seam{})
		assert.ErrorIs(t, err, snapshot.ErrBusy, verb)
		assert.NoError(t, ctx.Err(), verb)
		cancel()

		ctx, cancel = context.WithCancel(t.Context())
		opts.Stall = time.Hour
		err = call(ctx, snapshot.Seam{At: func(call, _ string) error {
			if call == "Read" {
				cancel()
			}
			return nil
		}})
		opts.Stall = 50 * time.Millisecond
		assert.ErrorIs(t, err, context.Canceled, verb)
		cancel()
		server.Lie("honest")
		fstest.Nothing(t, dir)
	}
	_, err := copyTree(t, dst, server.Dir, nil)
	require.NoError(t, err)
	assert.Equal(t, want, fstest.Contents(t, dst))
}

// TestFuseEndless: without a bound on entries ctx ends a listing that has no end.
func TestFuseEndless(t *testing.T) {
	t.Parallel()
	server := fstest.LyingFS(t)
	server.Lie("list endless")
	dir := fstest.TempDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lists := 0
	_, err := copyTreeWith(ctx, t, filepath.Join(dir, "dst"), server.Dir, &snapshot.Options{Limits: snapshot.Limits{MaxEntries: -1}}, snapshot.Seam{
		At: func(call, _ string) error {
			if call == "List" {
				if lists++; lists == 20 {
					cancel()
				}
			}
			return nil
		},
	})
	assert.ErrorIs(t, err, context.Canceled)
}

// TestFuseInside: a server's files inside a tree of ext4, mounted as a directory and as one file, are judged as a server's: they
// are asked for with force, and are what the report's instant is worth.
func TestFuseInside(t *testing.T) {
	t.Parallel()
	server := fstest.LyingFS(t)
	dir := fstest.Dir(t, "ext4")
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "f=local", "file=x", "tree/")
	fstest.Settle(t, dir)
	fstest.Bind(t, filepath.Join(server.Dir, "a"), filepath.Join(src, "file"))
	fstest.Bind(t, filepath.Join(server.Dir, "d"), filepath.Join(src, "tree"))
	server.Lie("cached")

	_, err := copyTree(t, filepath.Join(dir, "dst"), src, nil)
	assert.ErrorIs(t, err, snapshot.ErrEscapes)

	crossing := &snapshot.Options{CrossMounts: true, Attempts: 1}
	report, err := copyTree(t, filepath.Join(dir, "dst"), src, crossing)
	require.NoError(t, err)
	fstest.Equal(t, src, filepath.Join(dir, "dst"))
	assert.Equal(t, map[snapshot.Evidence]int64{snapshot.Coherent: 1, snapshot.Stable: 2}, report.Evidence)
	assert.Equal(t, snapshot.InstantWrites, report.Instant)
	assert.Equal(t, "fuse: another machine or process answers for it", report.Weakest.Because)

	// The kernel keeps attributes; the change shows only to who asks the server.
	for _, name := range []string{"file", "tree/b"} {
		warm(t, src)
		_, err = copyTreeWith(t.Context(), t, filepath.Join(dir, "changed"+filepath.Base(name)), src, &snapshot.Options{
			CrossMounts: true, Attempts: 1, Skip: func(path string, _ snapshot.State) bool { return strings.HasPrefix(name, "tree") == (path == "file") },
		}, snapshot.Seam{Phase: func(p string) {
			if p == "joined" {
				server.Lie("change")
			}
		}})
		assert.ErrorIs(t, err, snapshot.ErrChanged, name)
	}
}
