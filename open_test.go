//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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

// open is Open of a file that is closed at the end of the test, with all its handles.
func open(t testing.TB, name string, opts *snapshot.Options) *snapshot.File {
	t.Helper()
	f, err := snapshot.Open(name, balanced(t, opts, snapshot.Seam{}))
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
			assert.NoError(t, err)
		}
	})
	return f
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "empty=", "a 0640=hello", "edge=@262144B", "more=@262145B", "big=@1MiB", "toDir => .", `"n\nl"=x`)
	for _, name := range []string{"empty", "a", "edge", "more", "big", "toDir/a", "n\nl"} {
		path := filepath.Join(dir, name)
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		state, err := snapshot.Lstat(path)
		require.NoError(t, err)
		got, proof, err := snapshot.ReadFile(t.Context(), path, balanced(t, nil, snapshot.Seam{}))
		require.NoError(t, err, "ReadFile(%q)", name)
		assert.True(t, bytes.Equal(want, got), "ReadFile(%q)", name)
		assert.Equal(t, snapshot.Entry{
			Path: filepath.Base(name), Mode: state.Mode, Size: int64(len(want)), Digest: sha256.Sum256(want),
		}, proof.Entry)
		assert.Zero(t, state.Compare(proof.State), "ReadFile(%q)", name)
		assert.Equal(t, 1, proof.Attempts)
		assert.NotEmpty(t, proof.Because)
	}
}

func TestReadFileIsBounded(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "fits=~64MiB", "more=~67108865B", "five=12345")
	b, _, err := snapshot.ReadFile(t.Context(), dir+"/fits", nil)
	require.NoError(t, err)
	assert.Len(t, b, 64<<20)
	limited := func(name string, limit int64) *snapshot.LimitError {
		t.Helper()
		b, _, err := snapshot.ReadFile(t.Context(), dir+name, balanced(t, &snapshot.Options{Limits: snapshot.Limits{MaxFileBytes: limit}}, snapshot.Seam{}))
		e, _ := errors.AsType[*snapshot.LimitError](err)
		assert.Equal(t, err == nil, b != nil)
		assert.Equal(t, err == nil, e == nil, "%v", err)
		return e
	}
	assert.Equal(t, &snapshot.LimitError{Path: dir + "/more", Field: "MaxFileBytes", Limit: 64 << 20, Got: 64<<20 + 1}, limited("/more", 0))
	assert.Nil(t, limited("/more", -1))
	assert.Equal(t, &snapshot.LimitError{Path: dir + "/five", Field: "MaxFileBytes", Limit: 4, Got: 5}, limited("/five", 4))
	assert.Nil(t, limited("/five", 5))
}

func TestCopyFile(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/plain 0640=hello", "src/run 0711=#!", "src/empty 0604=", "src/big=@1MiB")
	for name, mode := range map[string]fs.FileMode{"plain": 0o400, "run": 0o500, "empty": 0o400, "big": 0o400} {
		src := filepath.Join(dir, "src", name)
		mtime := time.Unix(1<<31, 5)
		require.NoError(t, os.Chtimes(src, time.Time{}, mtime))
		want, err := os.Stat(src)
		require.NoError(t, err)
		for _, keep := range []bool{false, true} {
			dst := filepath.Join(dir, name)
			proof, err := copyOne(t, dst, src, &snapshot.Options{PreserveMode: keep}, snapshot.Seam{})
			require.NoError(t, err, name)
			wantMode := mode
			if keep {
				wantMode = want.Mode()
			}
			got, err := os.Lstat(dst)
			require.NoError(t, err)
			assert.Equal(t, wantMode, got.Mode(), name)
			assert.True(t, want.ModTime().Equal(got.ModTime()), "%s: %v", name, got.ModTime())
			assert.Equal(t, snapshot.Entry{Path: name, Mode: wantMode, Size: want.Size(), Digest: digestOf(t, src)}, proof.Entry)
			assert.Equal(t, proof.Entry.Digest, digestOf(t, dst))
			assert.False(t, os.SameFile(want, got))
			require.NoError(t, os.Remove(dst))
		}
	}
}

// TestFileChangesWhileItIsRead: each change at the first read costs one attempt; with one attempt it is the error.
func TestFileChangesWhileItIsRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, f string)
		reason snapshot.Reason
		want   string // content in the next attempt, or what the error says
	}{
		{"grows", func(t *testing.T, f string) { put(t, f, "hello, world") }, snapshot.Grew, "hello, world"},
		{"shrinks", func(t *testing.T, f string) { put(t, f, "hell") }, snapshot.Shrank, "hell"},
		{"is rewritten with its old mtime", func(t *testing.T, f string) {
			fi, err := os.Stat(f)
			assert.NoError(t, err)
			put(t, f, "HELLO")
			assert.NoError(t, os.Chtimes(f, time.Time{}, fi.ModTime()))
		}, snapshot.MetadataOnly, "HELLO"},
		{"gets another mode", func(t *testing.T, f string) { assert.NoError(t, os.Chmod(f, 0o600)) }, snapshot.Modified, "hello"},
		{"is replaced", func(t *testing.T, f string) {
			put(t, f+".new", "other")
			assert.NoError(t, os.Rename(f+".new", f))
		}, snapshot.Replaced, "other"},
		{"vanishes", func(t *testing.T, f string) { assert.NoError(t, os.Remove(f)) }, snapshot.Vanished, "no such file"},
		{"becomes a directory", func(t *testing.T, f string) {
			assert.NoError(t, os.Rename(f, f+".old"))
			assert.NoError(t, os.Mkdir(f, 0o755))
		}, snapshot.TypeChanged, "not a regular file: directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, attempts := range []int{1, 0} {
				f := filepath.Join(fstest.TempDir(t), "f")
				put(t, f, "hello")
				reads := 0
				seam := snapshot.Seam{At: func(call, _ string) error {
					if call == "Read" {
						if reads++; reads == 1 {
							tt.change(t, f)
						}
					}
					return nil
				}}
				b, proof, err := snapshot.ReadFile(t.Context(), f, balanced(t, &snapshot.Options{Attempts: attempts}, seam))
				change, changed := errors.AsType[*snapshot.ChangeError](err)
				switch {
				case tt.reason == snapshot.MetadataOnly: // which is not counted
					require.NoError(t, err)
					assert.Equal(t, tt.want, string(b))
					assert.Equal(t, 1, proof.Attempts)
				case attempts == 1:
					require.True(t, changed, "%v", err)
					assert.ErrorIs(t, err, snapshot.ErrChangedDuringSnapshot)
					assert.True(t, snapshot.Retryable(err))
					assert.Equal(t, tt.reason, change.Reason, "%v", err)
					assert.Equal(t, f, change.Path)
					assert.Equal(t, 1, change.Attempts)
					assert.Equal(t, int64(5), change.Before.Size)
				case changed:
					assert.Fail(t, "still changed", "%v", err)
				case err != nil:
					assert.ErrorContains(t, err, tt.want)
					assert.False(t, snapshot.Retryable(err))
				default:
					assert.Equal(t, tt.want, string(b))
					assert.Equal(t, 2, proof.Attempts)
				}
			}
		})
	}
}

// TestGrowingLog: the call ends, whatever the writer does.
func TestGrowingLog(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/app.log=line\n")
	log := filepath.Join(dir, "src/app.log")
	w := writing(t, log, os.O_WRONLY|os.O_APPEND)
	var reads atomic.Int64
	seam := snapshot.Seam{At: func(call, _ string) error {
		if call != "Read" {
			return nil
		}
		reads.Add(1)
		_, err := w.WriteString("another line\n")
		return err
	}}
	for verb, f := range map[string]func(o *snapshot.Options) error{
		"CopyFile": func(o *snapshot.Options) error {
			return errorOf(snapshot.CopyFile(t.Context(), dir+"/dst", log, o))
		},
		"ReadFile": func(o *snapshot.Options) error {
			_, _, err := snapshot.ReadFile(t.Context(), log, o)
			return err
		},
		"CopyDir": func(o *snapshot.Options) error {
			return errorOf(snapshot.CopyDir(t.Context(), dir+"/dst", filepath.Dir(log), o))
		},
	} {
		reads.Store(0)
		err := f(balanced(t, &snapshot.Options{Attempts: 4}, seam))
		change, ok := errors.AsType[*snapshot.ChangeError](err)
		require.True(t, ok, "%s: %v", verb, err)
		assert.ErrorIs(t, err, snapshot.ErrChangedDuringSnapshot, verb)
		assert.Equal(t, snapshot.Grew, change.Reason, verb)
		assert.Greater(t, change.After.Size, change.Before.Size, verb)
		assert.Equal(t, 4, change.Attempts, verb)
		assert.Equal(t, log, change.Path, verb)
		assert.LessOrEqual(t, reads.Load(), int64(8), "%s: reads", verb)
		fstest.Nothing(t, dir, "src")
	}
}

// errorOf returns what a call failed with.
func errorOf[T any](_ T, err error) error { return err }

// writing opens a file as a writer has it.
func writing(t testing.TB, name string, flag int) *os.File {
	t.Helper()
	f, err := os.OpenFile(name, flag, 0)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestOpenIn(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "root/f=hello", "root/d/e/g=deep", "root/toF => f", "root/toD => d", "root/d/up => ..", "out=secret", "root/toOut => ../out",
		"root/abs => "+dir+"/out", "root/p|")
	root, err := os.OpenRoot(filepath.Join(dir, "root"))
	require.NoError(t, err)
	defer root.Close()
	for name, want := range map[string]string{"f": "hello", "d/e/g": "deep"} {
		f, err := snapshot.OpenIn(root, name, balanced(t, nil, snapshot.Seam{}))
		require.NoError(t, err, "OpenIn(%q)", name)
		var b strings.Builder
		proof, err := f.CopyTo(t.Context(), &b)
		require.NoError(t, err)
		assert.Equal(t, want, b.String())
		assert.Equal(t, filepath.Base(name), proof.Entry.Path)
		assert.Contains(t, f.Name(), name)
		require.NoError(t, f.Check())
		require.NoError(t, f.Close())
	}
	for name, want := range map[string]error{
		"toF": snapshot.ErrNotRegular, "toD/e/g": snapshot.ErrNotRegular, "d/up/f": snapshot.ErrNotRegular, "toOut": snapshot.ErrNotRegular,
		"abs": snapshot.ErrNotRegular, "abs/x": snapshot.ErrNotRegular, "p": snapshot.ErrNotRegular, "d": snapshot.ErrNotRegular,
		"": fs.ErrInvalid, ".": fs.ErrInvalid, "..": fs.ErrInvalid, "../out": fs.ErrInvalid, "d/../f": fs.ErrInvalid, "d//e/g": fs.ErrInvalid,
		"/f": fs.ErrInvalid, "f/": fs.ErrInvalid, "./f": fs.ErrInvalid, "d/./e/g": fs.ErrInvalid, "a\x00b": fs.ErrInvalid,
		"none": fs.ErrNotExist, "none/x": fs.ErrNotExist, "f/x": syscall.ENOTDIR,
	} {
		f, err := snapshot.OpenIn(root, name, balanced(t, nil, snapshot.Seam{}))
		assert.ErrorIs(t, err, want, "OpenIn(%q)", name)
		assert.Nil(t, f, "OpenIn(%q)", name)
		assert.NotContains(t, err.Error(), "secret")
	}
	_, err = snapshot.OpenIn(nil, "f", nil)
	assert.ErrorIs(t, err, fs.ErrInvalid)

	// A root that was moved is still the root.
	require.NoError(t, os.Rename(filepath.Join(dir, "root"), filepath.Join(dir, "moved")))
	f, err := snapshot.OpenIn(root, "d/e/g", balanced(t, nil, snapshot.Seam{}))
	require.NoError(t, err)
	_, err = f.CopyFile(t.Context(), filepath.Join(dir, "copy"))
	require.NoError(t, errors.Join(err, f.Close()))
	assert.Equal(t, fileEntry("", "deep").Digest, digestOf(t, filepath.Join(dir, "copy")))
}

func TestNewFile(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "f=hello, world", "rw=hello, world", "unlinked=hello, world", "renamed=hello, world", "closed=hello, world")
	for _, name := range []string{"f", "rw", "unlinked", "renamed", "closed"} {
		path := filepath.Join(dir, name)
		flag := os.O_RDONLY
		if name == "rw" {
			flag = os.O_RDWR
		}
		handle, err := os.OpenFile(path, flag, 0)
		require.NoError(t, err)
		defer handle.Close()
		_, err = handle.Seek(7, io.SeekStart)
		require.NoError(t, err)
		switch name {
		case "unlinked":
			require.NoError(t, os.Remove(path))
		case "renamed": // and its name is a FIFO now
			require.NoError(t, os.Rename(path, path+".old"))
			fstest.Make(t, dir, "renamed|")
		}
		f, err := snapshot.NewFile(handle, balanced(t, nil, snapshot.Seam{}))
		require.NoError(t, err, name)
		if name == "closed" {
			require.NoError(t, handle.Close())
		}
		assert.Equal(t, path, f.Name())
		assert.Equal(t, int64(12), f.State().Size)
		for range 2 {
			var b strings.Builder
			proof, err := f.CopyTo(t.Context(), &b)
			require.NoError(t, err, name)
			assert.Equal(t, "hello, world", b.String())
			assert.Equal(t, fileEntry(name, "hello, world"), proof.Entry)
			assert.GreaterOrEqual(t, proof.Evidence, snapshot.Stable)
		}
		require.NoError(t, f.Check(), name)
		dst := path + ".copy"
		_, err = f.CopyFile(t.Context(), dst)
		require.NoError(t, err, name)
		assert.Equal(t, fileEntry("", "hello, world").Digest, digestOf(t, dst))
		require.NoError(t, f.Close())
		if name != "closed" {
			rest, err := io.ReadAll(handle)
			require.NoError(t, err)
			assert.Equal(t, "world", string(rest), "%s: the caller's offset", name)
		}
	}

	_, err := snapshot.NewFile(nil, nil)
	assert.ErrorIs(t, err, fs.ErrInvalid)
	closed, err := os.Open(dir + "/f")
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	_, err = snapshot.NewFile(closed, balanced(t, nil, snapshot.Seam{}))
	assert.ErrorIs(t, err, fs.ErrClosed)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	d, err := os.Open(dir)
	require.NoError(t, err)
	defer d.Close()
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	for _, handle := range []*os.File{r, w, d, null} {
		_, err := snapshot.NewFile(handle, balanced(t, nil, snapshot.Seam{}))
		assert.ErrorIs(t, err, snapshot.ErrNotRegular, "%s", handle.Name())
	}
}

// TestNewFileOfOurExecutable is what an installer does that puts itself somewhere.
func TestNewFileOfOurExecutable(t *testing.T) {
	t.Parallel()
	name, err := os.Executable()
	require.NoError(t, err)
	handle, err := os.Open(name)
	require.NoError(t, err)
	defer handle.Close()
	f, err := snapshot.NewFile(handle, balanced(t, nil, snapshot.Seam{}))
	require.NoError(t, err)
	dst := filepath.Join(fstest.TempDir(t), "copy")
	proof, err := f.CopyFile(t.Context(), dst)
	require.NoError(t, errors.Join(err, f.Close()))
	assert.Equal(t, fs.FileMode(0o500), proof.Entry.Mode)
	assert.Equal(t, digestOf(t, name), digestOf(t, dst))
}

func TestFileMethods(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "f=hello", "taken=x")
	f := open(t, dir+"/f", nil)
	assert.Equal(t, dir+"/f", f.Name())
	want, err := snapshot.Lstat(dir + "/f")
	require.NoError(t, err)
	assert.Zero(t, want.Compare(f.State()))
	for range 3 { // a File can be used again
		var b strings.Builder
		proof, err := f.CopyTo(t.Context(), &b)
		require.NoError(t, err)
		assert.Equal(t, "hello", b.String())
		assert.Equal(t, fileEntry("f", "hello"), proof.Entry)
	}
	_, err = f.CopyFile(t.Context(), dir+"/taken")
	assert.ErrorIs(t, err, fs.ErrExist)
	_, err = f.CopyFile(t.Context(), dir+"/none/x")
	assert.ErrorIs(t, err, fs.ErrNotExist)
	_, err = f.CopyFile(t.Context(), dir+"/copy")
	require.NoError(t, err)
	fstest.Nothing(t, dir, "f", "taken", "copy")

	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the cause")
	cancel(cause)
	_, err = f.CopyTo(ctx, io.Discard)
	assert.ErrorIs(t, err, cause)
	_, err = f.CopyFile(ctx, dir+"/never")
	assert.ErrorIs(t, err, cause)

	require.NoError(t, f.Close())
	for verb, err := range map[string]error{
		"CopyTo":   errorOf(f.CopyTo(t.Context(), io.Discard)),
		"CopyFile": errorOf(f.CopyFile(t.Context(), dir+"/never")),
		"Check":    f.Check(),
		"Close":    f.Close(),
	} {
		assert.ErrorIs(t, err, fs.ErrClosed, verb)
		assert.ErrorContains(t, err, dir+"/f", verb)
	}
	fstest.Nothing(t, dir, "f", "taken", "copy")
}

func TestFailingWriter(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "f=@600KiB")
	failed := errors.New("failed")
	for name, tt := range map[string]struct {
		write func(p []byte) (int, error)
		want  error
	}{
		"error":        {func([]byte) (int, error) { return 0, failed }, failed},
		"late error":   {func(p []byte) (int, error) { return len(p), failed }, failed},
		"short write":  {func(p []byte) (int, error) { return len(p) - 1, nil }, io.ErrShortWrite},
		"closed pipe":  {func([]byte) (int, error) { return 0, syscall.EPIPE }, syscall.EPIPE},
		"looks a link": {func([]byte) (int, error) { return 0, syscall.ELOOP }, syscall.ELOOP},
	} {
		f := open(t, dir+"/f", nil)
		proof, err := f.CopyTo(t.Context(), writerFunc(tt.write))
		assert.ErrorIs(t, err, tt.want, name)
		assert.Zero(t, proof, name)
		assert.False(t, snapshot.Retryable(err), name)
		assert.NotErrorIs(t, err, snapshot.ErrChanged, name)
		require.NoError(t, f.Check(), name)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(f string) error
		want   snapshot.Reason
	}{
		"nothing":   {func(string) error { return nil }, 0},
		"read":      {func(f string) error { return errorOf(os.ReadFile(f)) }, 0},
		"append":    {func(f string) error { return os.WriteFile(f, []byte("hello!"), 0) }, snapshot.Grew},
		"truncate":  {func(f string) error { return os.Truncate(f, 1) }, snapshot.Shrank},
		"rewrite":   {func(f string) error { return os.WriteFile(f, []byte("HELLO"), 0) }, snapshot.Modified},
		"chmod":     {func(f string) error { return os.Chmod(f, 0o600) }, snapshot.Modified},
		"same mode": {func(f string) error { return os.Chmod(f, 0o644) }, snapshot.MetadataOnly},
		"hard link": {func(f string) error { return os.Link(f, f+".l") }, snapshot.MetadataOnly},
		"remove":    {os.Remove, snapshot.Vanished},
		"move":      {func(f string) error { return os.Rename(f, f+".old") }, snapshot.Vanished},
		"replace": {func(f string) error {
			return errors.Join(os.WriteFile(f+".new", []byte("hello"), 0o644), os.Rename(f+".new", f))
		}, snapshot.Replaced},
		"link": {func(f string) error { return errors.Join(os.Rename(f, f+".old"), os.Symlink(f+".old", f)) }, snapshot.TypeChanged},
		"dir":  {func(f string) error { return errors.Join(os.Rename(f, f+".old"), os.Mkdir(f, 0o755)) }, snapshot.TypeChanged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(fstest.TempDir(t), "f")
			require.NoError(t, os.WriteFile(path, []byte("hello"), 0o644))
			f := open(t, path, nil)
			require.NoError(t, f.Check())
			// A stamp of the same tick would hide the change.
			_, err := f.CopyTo(t.Context(), io.Discard)
			require.NoError(t, err)
			require.NoError(t, tt.change(path))
			err = f.Check()
			if tt.want == 0 {
				assert.NoError(t, err)
				return
			}
			change, ok := errors.AsType[*snapshot.ChangeError](err)
			require.True(t, ok, "%v", err)
			assert.Equal(t, tt.want, change.Reason, "%v", err)
			assert.ErrorIs(t, err, snapshot.ErrChanged)
			assert.Equal(t, path, change.Path)

			// What changed since Open is not read.
			_, err = f.CopyTo(t.Context(), io.Discard)
			assert.ErrorIs(t, err, snapshot.ErrChangedBeforeSnapshot)
		})
	}
}
