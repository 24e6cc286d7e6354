//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

func filterOf(t testing.TB, patterns ...string) *snapshot.Filter {
	t.Helper()
	f, err := snapshot.NewFilter(patterns...)
	require.NoError(t, err)
	return f
}

func pathsOf(t testing.TB, r *snapshot.Report) (paths []string) {
	t.Helper()
	for _, e := range entriesOf(t, r.Manifest) {
		paths = append(paths, e.Path)
	}
	return paths
}

func TestExclude(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "app/main.go=m", "app/main_test.go=t", "node_modules/a/x.js=x", "node_modules/keep/y.js=y", "node_modules/z=z",
		"logs/a.log=1", "logs/deep/b.log=2", "only/logs/c.log=3", "README=r")
	for _, tt := range []struct {
		patterns []string
		want     []string
		skipped  []snapshot.Skipped
	}{
		{
			[]string{"node_modules", "**/*.log", "*_test.go"},
			[]string{".", "README", "app", "app/main.go", "app/main_test.go", "logs", "logs/deep", "only", "only/logs"},
			[]snapshot.Skipped{
				{"logs/a.log", "excluded", "**/*.log"},
				{"logs/deep/b.log", "excluded", "**/*.log"},
				{"node_modules", "excluded", "node_modules"},
				{"only/logs/c.log", "excluded", "**/*.log"},
			},
		},
		{
			[]string{"node_modules", "!node_modules/keep", "logs", "only", "app"},
			[]string{".", "README", "node_modules", "node_modules/keep", "node_modules/keep/y.js"},
			[]snapshot.Skipped{
				{"app", "excluded", "app"},
				{"logs", "excluded", "logs"},
				{"node_modules/a", "excluded", "node_modules"},
				{"node_modules/z", "excluded", "node_modules"},
				{"only", "excluded", "only"},
			},
		},
		{ // a directory that was walked for nothing does not stay
			[]string{"*", "!README", "!logs/*/none", "!**/nothing"},
			[]string{".", "README"},
			[]snapshot.Skipped{
				{"app", "excluded", "*"},
				{"logs", "excluded", "*"},
				{"node_modules", "excluded", "*"},
				{"only", "excluded", "*"},
			},
		},
		{ // everything
			[]string{"**"},
			[]string{"."},
			[]snapshot.Skipped{
				{"README", "excluded", "**"},
				{"app", "excluded", "**"},
				{"logs", "excluded", "**"},
				{"node_modules", "excluded", "**"},
				{"only", "excluded", "**"},
			},
		},
	} {
		opts := &snapshot.Options{Exclude: filterOf(t, tt.patterns...)}
		dst := filepath.Join(fstest.TempDir(t), "dst")
		report, err := copyTree(t, dst, src, opts)
		require.NoError(t, err, "%q", tt.patterns)
		assert.Equal(t, tt.want, pathsOf(t, report), "%q", tt.patterns)
		assert.Equal(t, tt.skipped, report.Skipped, "%q", tt.patterns)
		assert.Equal(t, tt.patterns, report.Patterns)
		assert.Equal(t, walkByHand(t, dst), entriesOf(t, report.Manifest), "%q", tt.patterns)

		scanned, err := snapshot.Scan(t.Context(), src, balanced(t, opts, snapshot.Seam{}))
		require.NoError(t, err, "%q", tt.patterns)
		assert.Equal(t, tt.want, pathsOf(t, scanned), "%q", tt.patterns)
		assert.Equal(t, tt.skipped, scanned.Skipped, "%q", tt.patterns)
	}
}

// TestExcludedIsNotOpened: what is left out need not even be readable, and costs nothing.
func TestExcludedIsNotOpened(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "shut/f=x", "shut/ 0000", "keep/f=y", "secret 0000=z", "p|")
	report, err := copyTreeWith(t.Context(), t, filepath.Join(dir, "dst"), src,
		&snapshot.Options{Exclude: filterOf(t, "shut", "secret", "p", "!keep/f")},
		snapshot.Seam{At: func(call, name string) error {
			assert.NotContains(t, []string{"shut", "secret", "p"}, name, "%s", call)
			return nil
		}})
	require.NoError(t, err)
	assert.Equal(t, []string{".", "keep", "keep/f"}, pathsOf(t, report))
	assert.Equal(t, []snapshot.Skipped{
		{"p", "excluded", "p"}, {"secret", "excluded", "secret"}, {"shut", "excluded", "shut"},
	}, report.Skipped)
}

func TestSkip(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "a=12345", "d/b=x", "d/sub/c=y", "l => a", "p|", "out=z")
	var mu sync.Mutex
	asked := map[string]snapshot.State{}
	report, err := copyTree(t, filepath.Join(dir, "dst"), src, &snapshot.Options{
		Exclude: filterOf(t, "out"),
		Skip: func(path string, st snapshot.State) bool {
			mu.Lock()
			defer mu.Unlock()
			asked[path] = st
			return st.Mode&fs.ModeNamedPipe != 0 || path == "d/sub"
		},
	})
	require.NoError(t, err)
	assert.Equal(t, []string{".", "a", "d", "d/b", "l"}, pathsOf(t, report))
	assert.Equal(t, []snapshot.Skipped{{"d/sub", "skip", ""}, {"out", "excluded", "out"}, {"p", "skip", ""}}, report.Skipped)
	for _, path := range []string{"a", "d", "d/b", "d/sub", "l", "p"} {
		want, err := snapshot.Lstat(filepath.Join(src, path))
		require.NoError(t, err)
		assert.Zero(t, want.Compare(asked[path]), "Skip(%q)", path)
	}
	assert.Len(t, asked, 6)
}

func TestSpecialFiles(t *testing.T) {
	t.Parallel()
	for line, kind := range map[string]string{"d/p|": "FIFO", "d/p@": "socket"} {
		dir := fstest.TempDir(t)
		src, special := filepath.Join(dir, "src"), filepath.Join(dir, "src/d/p")
		fstest.Make(t, src, "f=x", line)
		_, err := copyTree(t, filepath.Join(dir, "dst"), src, nil)
		assert.ErrorIs(t, err, snapshot.ErrNotRegular)
		assert.ErrorContains(t, err, special+": not a regular file: "+kind)
		assert.False(t, snapshot.Retryable(err))
		_, err = copyOne(t, filepath.Join(dir, "dst"), special, nil, snapshot.Seam{})
		assert.ErrorIs(t, err, snapshot.ErrNotRegular)
		_, _, err = snapshot.ReadFile(t.Context(), special, nil)
		assert.ErrorIs(t, err, snapshot.ErrNotRegular)
		_, err = snapshot.Scan(t.Context(), src, balanced(t, nil, snapshot.Seam{}))
		assert.ErrorIs(t, err, snapshot.ErrNotRegular)

		report, err := copyTree(t, filepath.Join(dir, "dst"), src, &snapshot.Options{SkipSpecial: true})
		require.NoError(t, err)
		assert.Equal(t, []string{".", "d", "f"}, pathsOf(t, report))
		assert.Equal(t, []snapshot.Skipped{{"d/p", "special", ""}}, report.Skipped)
	}
}

// TestHostileNames: names are bytes.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	names := []string{
		"a\xff", "a\xfe", "a b", " lead", "trail ", "n\nl", "\x1b[2J\x1b]0;x\a", "-rf", "*?[", "#x", `b\s`, `b\057s`, "a ignore type=dir",
		".holdstill-aaaaaaaaaaaaaaaaaaaaaaaaaa", "..x", "...", "é", "e\u0301", "\u202eexe", strings.Repeat("n", 255),
	}
	require.NoError(t, os.Mkdir(src, 0o755))
	for i, name := range names {
		err := os.WriteFile(filepath.Join(src, name), fmt.Append(nil, i), 0o644)
		if errors.Is(err, syscall.EILSEQ) {
			t.Skipf("this file system does not take every name: %v", err)
		}
		require.NoError(t, err, "%q", name)
	}
	report, err := copyTree(t, dst, src, nil)
	require.NoError(t, err)
	fstest.Equal(t, src, dst)
	assert.Equal(t, len(names)+1, report.Manifest.Len())
	again, err := snapshot.ReadManifest(strings.NewReader(textOf(t, report.Manifest)))
	require.NoError(t, err)
	for i, name := range names {
		e, err := again.Lookup(name)
		require.NoError(t, err, "%q", name)
		assert.Equal(t, fileEntry(name, fmt.Sprint(i)).Digest, e.Digest, "%q", name)
	}
	require.NoError(t, snapshot.Verify(t.Context(), dst, again, nil))

	for _, name := range names {
		dir := fstest.TempDir(t)
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		fstest.Make(t, filepath.Join(dir, name), "p|")
		_, err := copyTree(t, filepath.Join(dir, "dst"), dir+"/"+name, nil)
		require.ErrorIs(t, err, snapshot.ErrNotRegular)
		text := err.Error()
		assert.True(t, utf8.ValidString(text) && !strings.ContainsAny(text, "\n\x1b\a\u202e"), "%q", text)
	}
}

// deepTree makes a tree that no path reaches to the end of, and returns what is at its bottom.
func deepTree(t testing.TB, dir string, depth int, bottom ...string) (path string) {
	t.Helper()
	path = strings.Repeat(strings.Repeat("d", 200)+"/", depth)
	lines := []string{path}
	for _, line := range bottom {
		lines = append(lines, path+line)
	}
	fstest.Make(t, dir, lines...)
	return path
}

func TestDeepTree(t *testing.T) {
	t.Parallel()
	const depth = 300
	dir := fstest.TempDir(t)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	path := deepTree(t, src, depth, "f=bottom", "l => f", "up => ../f2")
	fstest.Make(t, src, path[:len(path)-201]+"f2=above")

	report, err := copyTree(t, dst, src, nil)
	require.NoError(t, err)
	fstest.Equal(t, src, dst)
	assert.Equal(t, int64(depth+1), report.Dirs)
	e, err := report.Manifest.Lookup(path + "f")
	require.NoError(t, err)
	assert.Equal(t, fileEntry("", "bottom").Digest, e.Digest)
	scanned, err := snapshot.Scan(t.Context(), dst, balanced(t, nil, snapshot.Seam{}))
	require.NoError(t, err)
	assert.Equal(t, report.Manifest.Digest(), scanned.Manifest.Digest())
	require.NoError(t, snapshot.Verify(t.Context(), dst, report.Manifest, nil))

	// A failure at the very end removes all of it, sealed as it is.
	gone := filepath.Join(dir, "gone")
	refused := errors.New("refused")
	_, err = copyTreeWith(t.Context(), t, gone, src, nil, snapshot.Seam{At: func(call, _ string) error {
		if call == "RenameNoReplace" {
			return refused
		}
		return nil
	}})
	assert.ErrorIs(t, err, refused)
	assert.Less(t, len(err.Error()), 1000, "the text is for people")

	// So does one at the bottom, and a cancel there.
	_, err = copyTree(t, gone, src, &snapshot.Options{Limits: snapshot.Limits{MaxFileBytes: 5}})
	assert.ErrorIs(t, err, snapshot.ErrLimit)
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	_, err = copyTreeWith(ctx, t, gone, src, nil, snapshot.Seam{At: once("ReadLink", func() { cancel(stopped) })})
	assert.ErrorIs(t, err, stopped)
}

// TestSingleLinkOfOneOwner is no reason to refuse anything.
func TestSingleLinkOfOneOwner(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, dir, "out=mine", "src/f=x")
	require.NoError(t, os.Link(filepath.Join(dir, "out"), filepath.Join(src, "l")))
	_, err := copyTree(t, filepath.Join(dir, "dst"), src, &snapshot.Options{SingleLink: true})
	assert.NoError(t, err, "a file of the root's owner may have other names")
}

// TestSingleLink: root can be made to copy what the owner of the workspace may not read, but can link to.
func TestSingleLink(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, dir, "out 0600=secret", "src/f=x", "src/own=y", "src/again <= src/own")
	require.NoError(t, os.Link(filepath.Join(dir, "out"), filepath.Join(src, "l")))
	for _, name := range []string{"", "f", "own"} {
		require.NoError(t, os.Chown(filepath.Join(src, name), 65534, 65534))
	}
	_, err := copyTree(t, filepath.Join(dir, "dst"), src, nil)
	assert.NoError(t, err)
	_, err = copyTree(t, filepath.Join(dir, "again"), src, &snapshot.Options{SingleLink: true})
	assert.ErrorIs(t, err, snapshot.ErrEscapes)
	assert.ErrorContains(t, err, filepath.Join(src, "l"))
	assert.False(t, snapshot.Retryable(err))
	_, err = copyTree(t, filepath.Join(dir, "third"), src, &snapshot.Options{SingleLink: true, Exclude: filterOf(t, "l")})
	assert.NoError(t, err, "without it")
}

// TestPanics: what a caller's function throws is the caller's, and nothing stays behind it.
func TestPanics(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "a=x", "d/e/f=y", "d/e/g=z", "l => a")
	value := errors.New("thrown")
	for name, opts := range map[string]*snapshot.Options{
		"Skip": {Skip: func(path string, _ snapshot.State) bool {
			if path == "d/e/g" {
				panic(value)
			}
			return false
		}},
		"Skip at the root": {Skip: func(string, snapshot.State) bool { panic(value) }},
		"Progress":         {Progress: func(snapshot.Progress) { panic(value) }},
		"Progress at the end": {Progress: func(p snapshot.Progress) {
			if p.Path == "" {
				panic(value)
			}
		}},
	} {
		for verb, call := range map[string]func(*snapshot.Options) error{
			"CopyDir": func(o *snapshot.Options) error {
				_, err := snapshot.CopyDir(t.Context(), filepath.Join(dir, "dst"), src, o)
				return err
			},
			"Scan": func(o *snapshot.Options) error {
				_, err := snapshot.Scan(t.Context(), src, o)
				return err
			},
			"CopyFile": func(o *snapshot.Options) error {
				_, err := snapshot.CopyFile(t.Context(), filepath.Join(dir, "dst"), src+"/a", o)
				return err
			},
			"ReadFile": func(o *snapshot.Options) error {
				_, _, err := snapshot.ReadFile(t.Context(), src+"/a", o)
				return err
			},
		} {
			if strings.HasPrefix(name, "Skip") && strings.HasSuffix(verb, "File") {
				continue
			}
			finished := 0
			o := snapshot.WithSeam(opts, snapshot.Seam{Finished: func(open, _ int64) {
				finished++
				assert.Zero(t, open, "%s, %s: open handles", verb, name)
			}})
			assert.PanicsWithValue(t, value, func() { _ = call(o) }, "%s, %s", verb, name)
			assert.Equal(t, 1, finished, "%s, %s: the operation has ended", verb, name)
			if name == "Progress at the end" { // then the copy is complete
				removeCopy(filepath.Join(dir, "dst"))
			}
			fstest.Nothing(t, dir, "src")
		}
	}
}

// TestCancel ends ctx before each call in turn: the copy is whole, or not there and the error has the cause.
func TestCancel(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	fstest.Make(t, src, "d/b=x", "l => d")
	want := fstest.Contents(t, src)
	opts := &snapshot.Options{Workers: 1}
	log := newCallLog()
	_, err := copyTreeWith(t.Context(), t, dst, src, opts, log.seam)
	require.NoError(t, err)
	require.NoError(t, removeCopy(dst))
	cause := errors.New("the cause")
	canceled, done := 0, 0
	for k := range log.calls {
		ctx, cancel := context.WithCancelCause(t.Context())
		calls := 0
		_, err := copyTreeWith(ctx, t, dst, src, opts, snapshot.Seam{At: func(string, string) error {
			if calls++; calls == k+1 {
				cancel(cause)
			}
			return nil
		}})
		cancel(nil)
		if err == nil {
			done++
			assert.Equal(t, want, fstest.Contents(t, dst), "canceled before call %d", k)
			require.NoError(t, removeCopy(dst))
			continue
		}
		canceled++
		assert.ErrorIs(t, err, cause, "canceled before call %d, %s", k, log.calls[k])
		assert.False(t, snapshot.Retryable(err))
		path, ok := errors.AsType[*fs.PathError](err)
		assert.True(t, ok && strings.HasPrefix(path.Path, src), "%v", err)
	}
	assert.Greater(t, canceled, 20)
	assert.Less(t, done, canceled, "a cancel counts up to the last steps")
}

func TestCancelAtEachPhase(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "a=x", "d/b=x", "l => a")
	for _, phase := range []string{"joined", "collected", "proven"} {
		cause := errors.New("in " + phase)
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err := copyTreeWith(ctx, t, filepath.Join(dir, "dst"), src, nil, snapshot.Seam{Phase: func(now string) {
			if now == phase {
				cancel(cause)
			}
		}})
		assert.ErrorIs(t, err, cause)
		fstest.Nothing(t, dir, "src")
	}

	ended, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("before all")
	cancel(cause)
	for name, f := range map[string]func(*snapshot.Options) error{
		"CopyDir": func(o *snapshot.Options) error {
			_, err := snapshot.CopyDir(ended, filepath.Join(dir, "dst"), src, o)
			return err
		},
		"Scan": func(o *snapshot.Options) error { _, err := snapshot.Scan(ended, src, o); return err },
		"CopyFile": func(o *snapshot.Options) error {
			_, err := snapshot.CopyFile(ended, filepath.Join(dir, "dst"), src+"/a", o)
			return err
		},
		"ReadFile": func(o *snapshot.Options) error { _, _, err := snapshot.ReadFile(ended, src+"/a", o); return err },
	} {
		err := f(snapshot.WithSeam(nil, snapshot.Seam{At: func(call, _ string) error {
			assert.Fail(t, "the system was called", "%s: %s", name, call)
			return nil
		}}))
		assert.ErrorIs(t, err, cause, name)
	}
	_, err := snapshot.Sweep(ended, dir)
	assert.NoError(t, err, "nothing to do")
}

// TestRounds: a change costs a round, and the report says so.
func TestRounds(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	fstest.Make(t, src, "a=old", "gone=x", "d/kept=k", "d/sub/f=f")
	joined := 0
	report, err := copyTreeWith(t.Context(), t, dst, src, nil, snapshot.Seam{Phase: func(phase string) {
		if phase != "joined" {
			return
		}
		switch joined++; joined {
		case 1:
			fstest.Make(t, src, "new=n", "d/sub/g=g")
			assert.NoError(t, os.Remove(filepath.Join(src, "gone")))
		case 2:
			assert.NoError(t, os.WriteFile(filepath.Join(src, "a"), []byte("newer"), 0o644))
		}
	}})
	require.NoError(t, err)
	assert.Equal(t, 3, report.Rounds)
	fstest.Equal(t, src, dst)
	assert.Equal(t, walkByHand(t, dst), entriesOf(t, report.Manifest))
	assert.Equal(t, int64(5), report.Files)

	_, err = copyTreeWith(t.Context(), t, filepath.Join(dir, "never"), src, &snapshot.Options{Attempts: 2},
		snapshot.Seam{Phase: func(phase string) {
			if phase == "joined" {
				joined++
				assert.NoError(t, os.WriteFile(filepath.Join(src, "a"), []byte(strings.Repeat("x", joined)), 0o644))
			}
		}})
	change, ok := errors.AsType[*snapshot.ChangeError](err)
	require.True(t, ok, "%v", err)
	assert.ErrorIs(t, err, snapshot.ErrChangedDuringSnapshot)
	assert.True(t, snapshot.Retryable(err))
	assert.Equal(t, filepath.Join(src, "a"), change.Path)
	assert.Equal(t, snapshot.Grew, change.Reason)
	assert.Equal(t, []int64{4, 5}, []int64{change.Before.Size, change.After.Size})
	assert.Equal(t, 2, change.Attempts)
	assert.Zero(t, change.More)
}

// TestSourcePathsAsGiven: a slash behind a directory, a link to it, and "." are the directory.
func TestSourcePathsAsGiven(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/d/f=x", "link => src", "src/l => d/f")
	for i, src := range []string{"src", "src/", "src//", "link", "link/", "src/.", "src/d/..", "./src"} {
		dst := filepath.Join(dir, fmt.Sprint(i))
		_, err := copyTree(t, dst, dir+"/"+src, nil)
		if assert.NoError(t, err, "%q", src) {
			fstest.Equal(t, filepath.Join(dir, "src"), dst)
		}
	}
	// And so is one behind the destination.
	for i, suffix := range []string{"/", "//"} {
		_, err := copyTree(t, fmt.Sprintf("%s/to%d%s", dir, i, suffix), dir+"/src", nil)
		assert.NoError(t, err)
		fstest.Equal(t, filepath.Join(dir, "src"), fmt.Sprintf("%s/to%d", dir, i))
	}
}

// Not parallel: it is about the working directory.
func TestRelativePaths(t *testing.T) {
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/d/f=x", "src/l => d/f")
	t.Chdir(filepath.Join(dir, "src/d"))
	_, err := copyTree(t, "../../dst", "..", nil)
	require.NoError(t, err)
	fstest.Equal(t, "..", "../../dst")
	_, err = copyTree(t, "../../dst2", ".", nil)
	require.NoError(t, err)
	fstest.Equal(t, ".", "../../dst2")
	_, err = copyOne(t, "g", "f", nil, snapshot.Seam{})
	require.NoError(t, err)
	require.NoError(t, os.Remove("g"))

	for _, dst := range []string{".", "..", "/", "./", "", "new/.", "../new/.."} {
		_, err := snapshot.CopyDir(t.Context(), dst, "../../dst2", balanced(t, nil, snapshot.Seam{}))
		assert.Error(t, err, "CopyDir(%q)", dst)
		assert.True(t, errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrInvalid), "CopyDir(%q) = %v", dst, err)
		_, err = snapshot.CopyFile(t.Context(), dst, "f", balanced(t, nil, snapshot.Seam{}))
		assert.True(t, errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrInvalid) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, snapshot.ErrNotRegular),
			"CopyFile(%q) = %v", dst, err)
	}
	_, err = copyTree(t, "inside", ".", nil)
	assert.ErrorIs(t, err, snapshot.ErrEscapes)
	fstest.Nothing(t, ".", "f")
	fstest.Nothing(t, dir, "src", "dst", "dst2")
}

func TestSourcesThatAreNone(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "f=x", "dangling => none", "toF => f", "loop => loop", "shut/f=x", "shut/ 0000")
	dst := filepath.Join(dir, "dst")
	for _, tt := range []struct {
		src       string
		tree, one error
	}{
		{"", fs.ErrNotExist, fs.ErrNotExist},
		{dir + "/none", fs.ErrNotExist, fs.ErrNotExist},
		{dir + "/none/", fs.ErrNotExist, syscall.ENOTDIR},
		{dir + "/none/x", fs.ErrNotExist, fs.ErrNotExist},
		{dir + "/f/x", syscall.ENOTDIR, syscall.ENOTDIR},
		{dir + "/f", syscall.ENOTDIR, nil},
		{dir + "/f/", syscall.ENOTDIR, syscall.ENOTDIR},
		{dir + "/dangling", fs.ErrNotExist, snapshot.ErrNotRegular},
		{dir + "/toF", syscall.ENOTDIR, snapshot.ErrNotRegular},
		{dir + "/loop", syscall.ELOOP, snapshot.ErrNotRegular},
		{dir + "/a\x00b", fs.ErrInvalid, fs.ErrInvalid},
		{dir + "/" + strings.Repeat("n", 256), syscall.ENAMETOOLONG, syscall.ENAMETOOLONG},
		{dir, nil, snapshot.ErrNotRegular},
		{dir + "/.", nil, snapshot.ErrNotRegular},
	} {
		if tt.tree != nil {
			report, err := copyTree(t, dst, tt.src, nil)
			assert.ErrorIs(t, err, tt.tree, "CopyDir(%q)", tt.src)
			assert.Nil(t, report)
			assert.ErrorContains(t, err, ": ", "CopyDir(%q)", tt.src)
			_, err = snapshot.Scan(t.Context(), tt.src, balanced(t, nil, snapshot.Seam{}))
			assert.ErrorIs(t, err, tt.tree, "Scan(%q)", tt.src)
			assert.False(t, snapshot.Retryable(err), "Scan(%q) = %v", tt.src, err)
		}
		if tt.one != nil {
			_, err := snapshot.CopyFile(t.Context(), dst, tt.src, balanced(t, nil, snapshot.Seam{}))
			assert.ErrorIs(t, err, tt.one, "CopyFile(%q)", tt.src)
			_, _, err = snapshot.ReadFile(t.Context(), tt.src, balanced(t, nil, snapshot.Seam{}))
			assert.ErrorIs(t, err, tt.one, "ReadFile(%q)", tt.src)
			assert.False(t, snapshot.Retryable(err), "ReadFile(%q) = %v", tt.src, err)
		}
	}
	fstest.Nothing(t, dir, "f", "dangling", "toF", "loop", "shut")
	if os.Geteuid() != 0 {
		for _, src := range []string{dir, dir + "/shut", dir + "/shut/f"} {
			_, err := snapshot.Scan(t.Context(), src, &snapshot.Options{Links: snapshot.LinksVerbatim})
			assert.ErrorIs(t, err, fs.ErrPermission, "Scan(%q)", src)
			assert.NotErrorIs(t, err, snapshot.ErrChanged)
		}
	}
}

func TestUnreadableFile(t *testing.T) {
	t.Parallel()
	fstest.NotRoot(t)
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "a=x", "d/secret 0000=y")
	_, err := copyTree(t, filepath.Join(dir, "dst"), src, nil)
	assert.ErrorIs(t, err, fs.ErrPermission)
	assert.ErrorContains(t, err, filepath.Join(src, "d/secret"))
	assert.NotErrorIs(t, err, snapshot.ErrChanged)
	assert.False(t, snapshot.Retryable(err))
	_, err = copyOne(t, filepath.Join(dir, "dst"), filepath.Join(src, "d/secret"), nil, snapshot.Seam{})
	assert.ErrorIs(t, err, fs.ErrPermission)
}

func TestDestinationThatIsThere(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/f=x", "file=old", "dir/kept=k", "dangling => none", "toDir => dir", "p|")
	src := filepath.Join(dir, "src")
	before := fstest.Read(t, dir)
	for _, dst := range []string{"file", "dir", "dir/", "dangling", "toDir", "p", "src"} {
		for _, lacks := range []snapshot.Fallback{0, snapshot.NoNameless | snapshot.NoRenameNoReplace} {
			_, err := copyTreeWith(t.Context(), t, dir+"/"+dst, src, nil, snapshot.Seam{Lacks: lacks})
			assert.ErrorIs(t, err, fs.ErrExist, "CopyDir(%q)", dst)
			if !strings.HasSuffix(dst, "/") {
				_, err = copyOne(t, dir+"/"+dst, src+"/f", nil, snapshot.Seam{Lacks: lacks})
				assert.ErrorIs(t, err, fs.ErrExist, "CopyFile(%q)", dst)
			}
		}
	}
	assert.Equal(t, before, fstest.Read(t, dir))
}

// TestDestinationThatAppears: the name was free at first. What somebody put there meanwhile stays as it is.
func TestDestinationThatAppears(t *testing.T) {
	t.Parallel()
	for call, lacks := range map[string]snapshot.Fallback{
		"RenameNoReplace": snapshot.NoNameless,
		"LinkNameless":    0,
		"Link":            snapshot.NoNameless | snapshot.NoRenameNoReplace,
	} {
		dir := fstest.TempDir(t)
		fstest.Make(t, dir, "src/f=x")
		dst := filepath.Join(dir, "dst")
		appear := snapshot.Seam{Lacks: lacks, At: once(call, func() { fstest.Make(t, dir, "dst=theirs") })}
		if call == "RenameNoReplace" {
			_, err := snapshot.CopyDir(t.Context(), dst, filepath.Join(dir, "src"), balanced(t, nil, appear))
			assert.ErrorIs(t, err, fs.ErrExist)
			assert.Equal(t, map[string]string{".": "dir", "src": "dir", "src/f": `file "x"`, "dst": `file "theirs"`}, fstest.Contents(t, dir))
			require.NoError(t, os.Remove(dst))
			appear.At = once(call, func() { fstest.Make(t, dir, "dst=theirs") })
		}
		_, err := snapshot.CopyFile(t.Context(), dst, filepath.Join(dir, "src/f"), balanced(t, nil, appear))
		assert.ErrorIs(t, err, fs.ErrExist, call)
		assert.Equal(t, map[string]string{".": "dir", "src": "dir", "src/f": `file "x"`, "dst": `file "theirs"`}, fstest.Contents(t, dir), call)
	}
}

func TestDestinationNowhere(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/f=x", "f=x", "dangling => none")
	src := filepath.Join(dir, "src")
	for dst, want := range map[string]error{
		"": fs.ErrInvalid, dir + "/none/dst": fs.ErrNotExist, dir + "/f/dst": syscall.ENOTDIR, dir + "/dangling/dst": fs.ErrNotExist,
		dir + "/a\x00b": fs.ErrInvalid, dir + "/a\x00b/c": fs.ErrInvalid, dir + "/" + strings.Repeat("n", 256): syscall.ENAMETOOLONG,
	} {
		_, err := snapshot.CopyDir(t.Context(), dst, src, balanced(t, nil, snapshot.Seam{}))
		assert.ErrorIs(t, err, want, "CopyDir(%q)", dst)
		_, err = snapshot.CopyFile(t.Context(), dst, src+"/f", balanced(t, nil, snapshot.Seam{}))
		assert.ErrorIs(t, err, want, "CopyFile(%q)", dst)
	}
	_, err := snapshot.CopyFile(t.Context(), dir+"/dst/", src+"/f", balanced(t, nil, snapshot.Seam{}))
	assert.ErrorIs(t, err, syscall.ENOTDIR, "a file is not written with a slash behind it")
	fstest.Nothing(t, dir, "src", "f", "dangling")
}

func TestReadOnlyDestination(t *testing.T) {
	t.Parallel()
	fstest.NotRoot(t)
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/f=x", "ro/ 0555")
	src := filepath.Join(dir, "src")
	_, err := copyTree(t, dir+"/ro/dst", src, nil)
	assert.ErrorIs(t, err, fs.ErrPermission)
	_, err = copyOne(t, dir+"/ro/dst", src+"/f", nil, snapshot.Seam{})
	assert.ErrorIs(t, err, fs.ErrPermission)
}

func TestDestinationInsideTheSource(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/d/f=x", "link => src/d", "toSrc => src")
	before := fstest.Read(t, dir)
	for _, tt := range [][2]string{{"src/dst", "src"}, {"src/d/dst", "src"}, {"link/dst", "src"}, {"src/d/../dst", "src"}, {"src/dst/", "toSrc"}, {"toSrc/dst", "src/"}} {
		wrote := 0
		_, err := snapshot.CopyDir(t.Context(), dir+"/"+tt[0], dir+"/"+tt[1], balanced(t, nil, snapshot.Seam{At: func(call, _ string) error {
			if slices.Contains([]string{"Mkdir", "Create", "CreateNameless"}, call) {
				wrote++
			}
			return nil
		}}))
		assert.ErrorIs(t, err, snapshot.ErrEscapes, "CopyDir(%q)", tt)
		assert.ErrorContains(t, err, "src", "CopyDir(%q)", tt)
		assert.Zero(t, wrote, "CopyDir(%q): refused before the first write", tt)
		assert.Equal(t, before, fstest.Read(t, dir), "CopyDir(%q)", tt)
	}
	_, err := snapshot.CopyDir(t.Context(), dir, filepath.Join(dir, "src"), nil)
	assert.ErrorIs(t, err, fs.ErrExist, "a source inside the destination")
	assert.Equal(t, before, fstest.Read(t, dir))
	_, err = copyTree(t, dir+"/srcx", filepath.Join(dir, "src"), nil)
	assert.NoError(t, err, "a name that only begins like the source's")
}
