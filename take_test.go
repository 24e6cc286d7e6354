//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	testfs "testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// take is Take into parent with what must hold whatever comes of it: every handle is closed when the snapshot is, or after an
// error, and nothing else is new in parent.
func take(t testing.TB, parent string, opts *snapshot.TakeOptions, roots ...snapshot.Root) (*snapshot.Snapshot, error) {
	t.Helper()
	return takeWith(t.Context(), t, parent, opts, snapshot.Seam{}, roots...)
}

func takeWith(ctx context.Context, t testing.TB, parent string, opts *snapshot.TakeOptions, seam snapshot.Seam, roots ...snapshot.Root) (*snapshot.Snapshot, error) {
	t.Helper()
	var o snapshot.TakeOptions
	if opts != nil {
		o = *opts
	}
	o.Parent, o.Options = parent, *balanced(t, &o.Options, seam)
	before := namesIn(t, parent)
	s, err := snapshot.Take(ctx, roots, &o)
	require.Equal(t, err == nil, s != nil, "Take(%v) = %v, %v", roots, s, err)
	if err == nil {
		before = append(before, filepath.Base(s.Dir()))
		t.Cleanup(func() { assert.NoError(t, s.Close()) })
	}
	assert.ElementsMatch(t, before, namesIn(t, parent), "in %s after %v", parent, err)
	return s, err
}

// reopen is OpenSnapshot with the assertion that every handle is closed in the end.
func reopen(t testing.TB, dir string, manifest snapshot.Digest) (*snapshot.Snapshot, error) {
	t.Helper()
	s, err := snapshot.OpenSnapshotWith(t.Context(), dir, manifest, snapshot.SeamOf(balanced(t, nil, snapshot.Seam{})))
	if err == nil {
		t.Cleanup(func() { assert.NoError(t, s.Close()) })
	}
	return s, err
}

func removeSnapshot(t testing.TB, dir string) error {
	t.Helper()
	return snapshot.RemoveSnapshotWith(t.Context(), dir, snapshot.SeamOf(balanced(t, nil, snapshot.Seam{})))
}

// removeSoon is removeSnapshot of what nobody uses: a child that another test forks has a lock of this process, too, until its
// exec.
func removeSoon(t testing.TB, dir string) error {
	t.Helper()
	for tries := 1; ; tries++ {
		if err := removeSnapshot(t, dir); !errors.Is(err, snapshot.ErrBusy) || tries == 1000 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// detached takes a snapshot that nobody has open.
func detached(t testing.TB, parent string, roots ...snapshot.Root) (dir string, digest snapshot.Digest) {
	t.Helper()
	s, err := take(t, parent, nil, roots...)
	require.NoError(t, err)
	require.NoError(t, s.Detach())
	require.NoError(t, s.Close())
	return s.Dir(), s.Manifest().Digest()
}

// rootsAt are roots in dir without names of their own.
func rootsAt(dir string, paths ...string) []snapshot.Root {
	var roots []snapshot.Root
	for _, path := range paths {
		roots = append(roots, snapshot.Root{Path: dir + "/" + path}) // not Join, which would clean what is to be tested
	}
	return roots
}

func treeOf(s *snapshot.Snapshot) string { return filepath.Join(s.Dir(), "tree") }

// sourcesIn makes a directory with sources from lines, and the parent of snapshots of them.
func sourcesIn(t testing.TB, lines ...string) (dir, parent string) {
	t.Helper()
	dir = fstest.TempDir(t)
	fstest.Make(t, dir, append(lines, "parent/ 0700")...)
	return dir, filepath.Join(dir, "parent")
}

// TestTakeRoots: where a root lies in the snapshot, and what of it.
func TestTakeRoots(t *testing.T) {
	t.Parallel()
	lines := []string{
		"a/lib/x=1", "b/lib/x=2", "c/lib/sub/x=3", "empty/", "file=f", "to-file => link", "link => file",
		"to-lib => a/lib", `"\xff"=bytes`, "three/deep/er/x=4",
	}
	in := func(name string, entries map[string]string) map[string]string {
		got := map[string]string{}
		for path, entry := range entries {
			got[strings.TrimSuffix(name+"/"+path, "/.")] = entry
		}
		return got
	}
	lib := func(text string) map[string]string { return map[string]string{".": "dir", "x": `file "` + text + `"`} }
	file := map[string]string{".": `file "f"`}
	sub := map[string]string{".": "dir", "sub": "dir", "sub/x": `file "3"`}
	for _, tt := range []struct {
		name  string
		roots []snapshot.Root
		want  []map[string]string
	}{
		{"a directory", rootsAt("", "a/lib"), []map[string]string{in("lib", lib("1"))}},
		{"an empty one", rootsAt("", "empty"), []map[string]string{in("empty", map[string]string{".": "dir"})}},
		{"a file", rootsAt("", "file"), []map[string]string{in("file", file)}},
		{"a directory through a link", rootsAt("", "to-lib"), []map[string]string{in("to-lib", lib("1"))}},
		{"a file through two links", rootsAt("", "to-file"), []map[string]string{in("to-file", file)}},
		{"below a link", rootsAt("", "to-lib/x"), []map[string]string{in("x", map[string]string{".": `file "1"`})}},
		{"one of another name", []snapshot.Root{{Name: "app", Path: "a/lib"}}, []map[string]string{in("app", lib("1"))}},
		{"a name that is not UTF-8", rootsAt("", "\xff"), []map[string]string{in("\xff", map[string]string{".": `file "bytes"`})}},
		{"three of one name", rootsAt("", "a/lib", "b/lib", "c/lib"), []map[string]string{in("lib", lib("1")), in("lib-2", lib("2")), in("lib-3", sub)}},
		{
			"a name that is taken by one given",
			[]snapshot.Root{{Path: "a/lib"}, {Path: "b/lib"}, {Name: "lib-2", Path: "c/lib"}},
			[]map[string]string{in("lib", lib("1")), in("lib-3", lib("2")), in("lib-2", sub)},
		},
		{"the same one twice", rootsAt("", "b/lib", "b/lib"), []map[string]string{in("lib", lib("2")), in("lib-2", lib("2"))}},
		{"nested ones", rootsAt("", "c", "c/lib", "c/lib/sub/x"), []map[string]string{
			in("c", map[string]string{".": "dir"}), in("c/lib", sub), in("lib", sub), in("x", map[string]string{".": `file "3"`}),
		}},
		{"a slash at the end", rootsAt("", "b/lib/"), []map[string]string{in("lib", lib("2"))}},
		{"a dot at the end", rootsAt("", "b/lib/."), []map[string]string{in("lib", lib("2"))}},
		{"two dots at the end", rootsAt("", "c/lib/sub/.."), []map[string]string{in("lib", sub)}},
		{"two dots behind a link", rootsAt("", "to-lib/../lib/x"), []map[string]string{in("x", map[string]string{".": `file "1"`})}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, parent := sourcesIn(t, lines...)
			roots := slices.Clone(tt.roots)
			for i := range roots {
				roots[i].Path = dir + "/" + strings.TrimPrefix(roots[i].Path, "/")
			}
			s, err := take(t, parent, nil, roots...)
			require.NoError(t, err)
			want := map[string]string{".": "dir"}
			for _, entries := range tt.want {
				maps.Copy(want, entries)
			}
			assert.Equal(t, want, fstest.Contents(t, treeOf(s)))
			for path := range want {
				if path == "." || strings.Contains(path, "/") {
					continue
				}
				at, ok := s.Path(path)
				assert.True(t, ok, "Path(%q)", path)
				assert.Equal(t, filepath.Join(treeOf(s), path), at)
			}
			assert.NoError(t, s.Verify(t.Context()))
			require.NoError(t, s.Close())
			fstest.Nothing(t, parent)
		})
	}
}

// TestTakeHandles: a root that the caller holds is never looked up by a name.
func TestTakeHandles(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "app/a=held", "app/d/b=held, too", "tool 0755=#!held", "other/app/a=another", "other/tool=another")
	var roots []snapshot.Root
	for _, name := range []string{"app", "tool"} {
		f, err := os.Open(filepath.Join(dir, name))
		require.NoError(t, err)
		defer f.Close()
		roots = append(roots, snapshot.Root{File: f})
		require.NoError(t, os.Rename(f.Name(), filepath.Join(dir, "gone-"+name)))
		require.NoError(t, os.Rename(filepath.Join(dir, "other", name), f.Name()))
	}
	_, err := roots[1].File.Seek(3, io.SeekStart)
	require.NoError(t, err)
	listed, err := roots[0].File.Readdirnames(1)
	require.NoError(t, err)
	roots = append(roots, snapshot.Root{Name: "by name", Path: filepath.Join(dir, "app")})

	s, err := take(t, parent, nil, roots...)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{
		".": "dir 0500", "app": "dir 0500", "app/a": `file 0400 "held"`, "app/d": "dir 0500", "app/d/b": `file 0400 "held, too"`,
		"tool": `file 0500 "#!held"`, "by name": "dir 0500", "by name/a": `file 0400 "another"`,
	}, fstest.Read(t, treeOf(s)))

	// The handles are as they were: their offsets moved by nobody, open to the end.
	rest, err := io.ReadAll(roots[1].File)
	assert.NoError(t, err)
	assert.Equal(t, "eld", string(rest)[:3])
	more, err := roots[0].File.Readdirnames(-1)
	assert.NoError(t, err)
	assert.ElementsMatch(t, []string{"a", "d"}, append(listed, more...))
}

// TestTakeRefuses what makes no sense, is not to be had, or passes a bound; nothing is left.
func TestTakeRefuses(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/d/a=1", "src/d/b=2", "lib/c=3", "p|", "dangling => nowhere", "file=x",
		"out/l => ../file", "big/a=~17MiB", "just/a=~16MiB", "sum/a=~16MiB", "sum/b=~16MiB", "sum/c=~16MiB", "sum/d=~16MiB", "more/a=~16MiB", "more/b=~16MiB",
		"more/c=~16MiB", "more/d=~16MiB", "more/e=~16MiB", "deep/"+strings.Repeat("d/", 66)+"f=x", "open/ 0777", "group/ 0770")
	sock := fstest.TempDir(t)
	fstest.Make(t, sock, "s@")
	closed, err := os.Open(dir)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	held, err := os.Open(dir + "/src")
	require.NoError(t, err)
	defer held.Close()
	packages := &snapshot.TakeOptions{Options: snapshot.Options{Limits: snapshot.PackageLimits()}}
	limits := func(l snapshot.Limits) *snapshot.TakeOptions {
		return &snapshot.TakeOptions{Options: snapshot.Options{Limits: l}}
	}
	named := func(name string) []snapshot.Root { return []snapshot.Root{{Name: name, Path: dir + "/src"}} }
	for _, tt := range []struct {
		name  string
		roots []snapshot.Root
		opts  *snapshot.TakeOptions
		in    string // parent
		want  error
		text  string
	}{
		{"no root", nil, nil, "", fs.ErrInvalid, "no root"},
		{"a root of nothing", []snapshot.Root{{}}, nil, "", fs.ErrNotExist, ""},
		{"by path and by handle", []snapshot.Root{{Path: dir + "/src", File: held}}, nil, "", fs.ErrInvalid, "not both"},
		{"a name of two components", named("a/b"), nil, "", fs.ErrInvalid, "a/b"},
		{"a name of none", named("."), nil, "", fs.ErrInvalid, ""},
		{"a name that leads up", named(".."), nil, "", fs.ErrInvalid, ".."},
		{"a name with a NUL", named("a\x00"), nil, "", fs.ErrInvalid, `a\x00`},
		{"a path with a NUL", []snapshot.Root{{Name: "n", Path: dir + "/src\x00"}}, nil, "", fs.ErrInvalid, ""},
		{"one name twice", append(named("n"), named("n")...), nil, "", fs.ErrExist, "n: two roots"},
		{"a root that is not there", rootsAt(dir, "src", "nowhere"), nil, "", fs.ErrNotExist, "nowhere"},
		{"a root that dangles", rootsAt(dir, "src", "dangling"), nil, "", fs.ErrNotExist, ""},
		{"a FIFO", rootsAt(dir, "src", "p"), nil, "", snapshot.ErrNotRegular, "/p: "},
		{"a socket", rootsAt(sock, "s"), nil, "", snapshot.ErrNotRegular, "/s: "},
		{"a closed handle", []snapshot.Root{{File: closed}}, nil, "", os.ErrClosed, ""},
		{"a file with a slash", rootsAt(dir, "file/"), nil, "", syscall.ENOTDIR, ""},
		{"no such parent", named(""), nil, dir + "/nowhere", fs.ErrNotExist, "nowhere"},
		{"a parent that is a file", named(""), nil, dir + "/file", syscall.ENOTDIR, ""},
		{"a parent that all may write", named(""), nil, dir + "/open", snapshot.ErrUntrusted, "/open"},
		{"a parent that a group may write", named(""), nil, dir + "/group", snapshot.ErrUntrusted, "chmod go-w"},
		{"a parent that is the root", named(""), nil, dir + "/src", snapshot.ErrEscapes, "destination lies inside"},
		{"a parent inside the other root", rootsAt(dir, "lib", "src"), nil, dir + "/src/d", snapshot.ErrEscapes, "destination lies inside"},
		{"a parent inside a held root", []snapshot.Root{{File: held}}, nil, dir + "/src/d", snapshot.ErrEscapes, "destination lies inside"},
		{"a link out of all roots", rootsAt(dir, "out", "src"), nil, "", snapshot.ErrEscapes, "/out/l: "},
		{"an option that makes no sense", named(""), &snapshot.TakeOptions{Options: snapshot.Options{Attempts: -1}}, "", fs.ErrInvalid, "Attempts"},
		{"a file too large for a package", rootsAt(dir, "big"), packages, "", snapshot.ErrLimit, "/big/a: "},
		{"together too large for packages", rootsAt(dir, "sum", "more"), packages, "", snapshot.ErrLimit, "MaxBytes"},
		{"too deep for packages", rootsAt(dir, "deep"), packages, "", snapshot.ErrLimit, "MaxDepth"},
		{"together too many", rootsAt(dir, "src", "lib"), limits(snapshot.Limits{MaxEntries: 5}), "", snapshot.ErrLimit, "MaxEntries"},
		{"more roots than entries", rootsAt(dir, "src", "lib"), limits(snapshot.Limits{MaxEntries: 1}), "", snapshot.ErrLimit, "MaxEntries"},
		{"a path too long", rootsAt(dir, "src"), limits(snapshot.Limits{MaxPath: 6}), "", snapshot.ErrLimit, "MaxPath"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := parent
			if tt.in != "" {
				in = tt.in
			}
			_, err := take(t, in, tt.opts, tt.roots...)
			require.ErrorIs(t, err, tt.want)
			assert.ErrorContains(t, err, tt.text)
		})
	}
	for name, opts := range map[string]*snapshot.TakeOptions{
		"as many as there are": limits(snapshot.Limits{MaxEntries: 6}),
		"just that long":       limits(snapshot.Limits{MaxPath: 7}),
	} {
		_, err := take(t, parent, opts, rootsAt(dir, "src", "lib")...)
		assert.NoError(t, err, name)
	}
	_, err = take(t, parent, packages, rootsAt(dir, "just", "src")...)
	assert.NoError(t, err, "16 MiB for packages")

	require.NoError(t, os.Chmod(dir+"/open", 0o777|fs.ModeSticky))
	_, err = take(t, dir+"/open", nil, named("")...)
	assert.NoError(t, err, "a parent that is as /tmp is")
}

// TestTakeDefaultParent: without a Parent it is where temporary files are.
func TestTakeDefaultParent(t *testing.T) {
	t.Parallel()
	dir, _ := sourcesIn(t, "src/a=1")
	s, err := snapshot.Take(t.Context(), rootsAt(dir, "src"), nil)
	require.NoError(t, err)
	real, err := filepath.EvalSymlinks(os.TempDir())
	require.NoError(t, err)
	assert.Equal(t, real, filepath.Dir(s.Dir()))
	assert.NoError(t, s.Close())
	assert.NoDirExists(t, s.Dir())
}

// TestTakeLinks: a link that ends in any root leads, in the snapshot, to that root's place, and to nothing outside.
func TestTakeLinks(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t,
		"app/index=app", "app/node_modules/dep => ../../lib", "app/node_modules/sub => ../../lib/d/sub", "app/own => index",
		"app/up => ../app/node_modules/dep/d", "app/tool => ../tool", "app/node_modules/via => dep/back/index",
		"lib/a=lib", "lib/d/sub/b=lib b", "lib/back => ../app", "lib/inner => d/sub", "tool 0755=#!", "named => lib",
		"lib/twice => back/node_modules/dep/a")
	for name, target := range map[string]string{"app/abs": dir + "/lib/a", "app/given": dir + "/named/d", "lib/abs-nested": dir + "/lib/d/sub/b"} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	roots := []snapshot.Root{
		{Path: dir + "/app"}, {Path: dir + "/tool"}, {Name: "library", Path: dir + "/named"}, {Name: "nested", Path: dir + "/lib/d/sub"},
	}
	s, err := take(t, parent, nil, roots...)
	require.NoError(t, err)
	for link, want := range map[string]string{
		"app/own":              "app/index",
		"app/node_modules/dep": "library",
		"app/node_modules/sub": "nested", // of nested roots the longest
		"app/up":               "library/d",
		"app/tool":             "tool",
		"app/node_modules/via": "app/index",
		"app/abs":              "library/a",
		"app/given":            "library/d",
		"library/back":         "app",
		"library/twice":        "library/a",
		"library/inner":        "library/d/sub", // inside a root nothing is rewritten
		"library/abs-nested":   "nested/b",
	} {
		got, err := filepath.EvalSymlinks(filepath.Join(treeOf(s), link))
		assert.NoError(t, err, link)
		assert.Equal(t, filepath.Join(treeOf(s), want), got, link)
		text, err := os.Readlink(filepath.Join(treeOf(s), link))
		assert.NoError(t, err)
		assert.False(t, filepath.IsAbs(text), "%s => %s", link, text)
	}
	assert.NoError(t, s.Verify(t.Context()))

	_, err = take(t, parent, nil, roots[:1]...)
	assert.ErrorIs(t, err, snapshot.ErrEscapes)
	s, err = take(t, parent, &snapshot.TakeOptions{Options: snapshot.Options{Links: snapshot.LinksInsideOrSkip}}, roots[:2]...)
	require.NoError(t, err)
	skipped := map[string]string{}
	for _, k := range s.Report().Skipped {
		skipped[k.Path] = k.Because
	}
	assert.Equal(t, map[string]string{
		"app/node_modules/dep": "escapes", "app/node_modules/sub": "escapes", "app/up": "escapes",
		"app/node_modules/via": "escapes", "app/abs": "escapes", "app/given": "escapes",
	}, skipped)
	assert.FileExists(t, filepath.Join(treeOf(s), "app/tool"))
}

// TestTakeAliases adds links, and directories on the way to them.
func TestTakeAliases(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "app/index=app", "app/l => index", "app/out/x=1", "lib/a=lib", "lib/d/b=b", "tool=t")
	roots := rootsAt(dir, "app", "lib", "tool")
	aliases := []snapshot.Alias{
		{"app/node_modules/lib", "lib"},
		{"app/node_modules/@scope/b", "lib/d/b"},
		{"app/self", "app"},
		{"lib/d/up", "lib"},
		{"bin/deep/er/tool", "tool"},
		{"top", "lib/d"},
	}
	opts := &snapshot.TakeOptions{Aliases: aliases}
	s, err := take(t, parent, opts, roots...)
	require.NoError(t, err)
	for _, a := range aliases {
		got, err := filepath.EvalSymlinks(filepath.Join(treeOf(s), a.Name))
		assert.NoError(t, err, a.Name)
		assert.Equal(t, filepath.Join(treeOf(s), a.Target), got, a.Name)
	}
	for made, mode := range map[string]fs.FileMode{"app/node_modules": 0o500, "app/node_modules/@scope": 0o500, "bin": 0o500, "bin/deep/er": 0o500} {
		e, err := s.Manifest().Lookup(made)
		assert.NoError(t, err, made)
		assert.Equal(t, fs.ModeDir|mode, e.Mode, made)
	}
	assert.NoError(t, s.Verify(t.Context()))
	assert.Equal(t, int64(len(aliases)+1), s.Report().Links)

	// The order in which aliases are given makes no other snapshot, and a link of a source may lead through one.
	reversed := slices.Clone(aliases)
	slices.Reverse(reversed)
	again, err := take(t, parent, &snapshot.TakeOptions{Aliases: reversed}, roots...)
	require.NoError(t, err)
	assert.Equal(t, s.Manifest().Digest(), again.Manifest().Digest())
	require.NoError(t, os.Symlink("node_modules/lib/d/b", dir+"/app/through"))
	s, err = take(t, parent, opts, roots...)
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(treeOf(s), "app/through"))
	assert.NoError(t, err)
	assert.Equal(t, "b", string(b))
	require.NoError(t, os.Remove(dir+"/app/through"))

	exclude := filterOf(t, "app/out")
	for _, tt := range []struct {
		name, target string
		want         error
	}{
		{"app/index", "lib", fs.ErrExist},
		{"app/out/x", "lib", fs.ErrExist},
		{"app/l", "lib", fs.ErrExist},
		{"app", "lib", fs.ErrExist},
		{"app/index/below", "lib", fs.ErrExist},
		{"app/l/below", "lib", fs.ErrExist},
		{"tool/below", "lib", fs.ErrExist},
		{"../out", "lib", snapshot.ErrEscapes},
		{"app/../../out", "lib", snapshot.ErrEscapes},
		{"/out", "lib", snapshot.ErrEscapes},
		{"", "lib", snapshot.ErrEscapes},
		{"app//x", "lib", snapshot.ErrEscapes},
		{"app/x/", "lib", snapshot.ErrEscapes},
		{"app/./x", "lib", snapshot.ErrEscapes},
		{"app/x\x00", "lib", snapshot.ErrEscapes},
		{"app/x", "../../etc", snapshot.ErrEscapes},
		{"app/x", "/etc", snapshot.ErrEscapes},
		{"app/x", "", snapshot.ErrEscapes},
		{"app/x", "lib/nothing", fs.ErrNotExist},
		{"app/x", "app/index/below", fs.ErrNotExist},
		{"app/x", "app/l", fs.ErrNotExist},
		{"app/x", "app/out", fs.ErrNotExist},
		{"app/out/y", "lib", fs.ErrExist},
		{"app/x", "app/x", fs.ErrNotExist},
	} {
		o := &snapshot.TakeOptions{Aliases: []snapshot.Alias{{tt.name, tt.target}}}
		if tt.name == "app/out/y" || tt.target == "app/out" {
			o.Exclude = exclude
		}
		_, err := take(t, parent, o, roots...)
		assert.ErrorIs(t, err, tt.want, "%s => %s", tt.name, tt.target)
	}
	for name, o := range map[string]*snapshot.TakeOptions{
		"twice":               {Aliases: []snapshot.Alias{{"app/x", "lib"}, {"app/x", "lib"}}},
		"below another alias": {Aliases: []snapshot.Alias{{"app/x", "lib"}, {"app/x/y", "tool"}}},
	} {
		_, err := take(t, parent, o, roots...)
		assert.ErrorIs(t, err, fs.ErrExist, name)
	}
	const entries = 10 // in three roots
	for most, want := range map[int64]error{entries + 2: snapshot.ErrLimit, entries + 3: nil} {
		_, err := take(t, parent, &snapshot.TakeOptions{
			Options: snapshot.Options{Limits: snapshot.Limits{MaxEntries: most}}, Aliases: []snapshot.Alias{{"app/x/y/z", "lib"}},
		}, roots...)
		assert.ErrorIs(t, err, want, "MaxEntries %d", most)
	}
	_, err = take(t, parent, &snapshot.TakeOptions{
		Options: snapshot.Options{Limits: snapshot.Limits{MaxPath: 9}}, Aliases: []snapshot.Alias{{"app/longer", "lib"}},
	}, roots...)
	assert.ErrorIs(t, err, snapshot.ErrLimit)
}

// TestSnapshotIsPrivate: what lies in the directory, with which modes.
func TestSnapshotIsPrivate(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a 0666=x", "src/run 0711=#!", "src/d/ 0777", "src/l => a")
	s, err := take(t, parent, nil, rootsAt(dir, "src")...)
	require.NoError(t, err)
	real, err := filepath.EvalSymlinks(parent)
	require.NoError(t, err)
	assert.Equal(t, real, filepath.Dir(s.Dir()))
	got := fstest.Read(t, s.Dir())
	text, err := os.ReadFile(filepath.Join(s.Dir(), "manifest.mtree"))
	require.NoError(t, err)
	assert.Equal(t, snapshot.Digest(sha256.Sum256(text)), s.Manifest().Digest())
	delete(got, "manifest.mtree")
	assert.Equal(t, map[string]string{
		".": "dir 0500", "lock": `file 0600 "holdstill staging 1\n"`, "tree": "dir 0500", "tree/src": "dir 0500", "tree/src/a": `file 0400 "x"`,
		"tree/src/run": `file 0500 "#!"`, "tree/src/d": "dir 0500", "tree/src/l": "link a",
	}, got)
	fi, err := os.Lstat(filepath.Join(s.Dir(), "manifest.mtree"))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o400), fi.Mode())
	assert.NoError(t, snapshot.Verify(t.Context(), treeOf(s), s.Manifest(), nil))

	r := s.Report()
	assert.Equal(t, []int64{2, 3, 1}, []int64{r.Files, r.Dirs, r.Links})
	assert.Equal(t, s.Manifest(), r.Manifest)
	assert.Positive(t, r.Elapsed)
	for _, name := range []string{"nothing", "", ".", "..", "src/a", "/"} {
		_, ok := s.Path(name)
		assert.False(t, ok, "Path(%q)", name)
	}

	preserved, err := take(t, parent, &snapshot.TakeOptions{Options: snapshot.Options{PreserveMode: true, Durable: true}}, rootsAt(dir, "src")...)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{
		".": "dir 0500", "src": "dir 0755", "src/a": `file 0666 "x"`, "src/run": `file 0711 "#!"`, "src/d": "dir 0777", "src/l": "link a",
	}, fstest.Read(t, treeOf(preserved)))
}

// TestSnapshotFS passes the test of io/fs where names are UTF-8; others are listed.
func TestSnapshotFS(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "app/index=x", "app/d/e/f=1", "app/empty/", "app/to => d/e/f", "lib/a 0755=@300KiB", "file=x", "odd/fine=1", `"odd/\xff"=bytes`)
	s, err := take(t, parent, &snapshot.TakeOptions{Aliases: []snapshot.Alias{{"app/lib", "lib"}}}, rootsAt(dir, "app", "lib", "file")...)
	require.NoError(t, err)
	assert.NoError(t, testfs.TestFS(s.FS(), "app/index", "app/d/e/f", "app/empty", "app/to", "app/lib", "lib/a", "file"))
	text, err := fs.ReadLink(s.FS(), "app/to")
	assert.NoError(t, err)
	assert.Equal(t, "d/e/f", text)
	b, err := fs.ReadFile(s.FS(), "app/lib/a")
	assert.NoError(t, err)
	assert.Len(t, b, 300<<10)

	s, err = take(t, parent, nil, rootsAt(dir, "odd")...)
	require.NoError(t, err)
	entries, err := fs.ReadDir(s.FS(), "odd")
	require.NoError(t, err)
	require.Len(t, entries, 2)
	assert.Equal(t, "\xff", entries[1].Name())
	_, err = s.FS().Open("odd/\xff")
	assert.ErrorIs(t, err, fs.ErrInvalid)
	f, err := s.Open(t.Context(), "odd/\xff")
	require.NoError(t, err, "by its manifest path it can be opened")
	assert.NoError(t, f.Close())
}

// TestSnapshotOpen: the handle's bytes were compared with the manifest through it; nobody can write by it.
func TestSnapshotOpen(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=alpha", "src/d/e/big=@300KiB", "src/l => a", "src/empty=", "tool=#!")
	s, err := take(t, parent, nil, rootsAt(dir, "src", "tool")...)
	require.NoError(t, err)
	opened, err := reopen(t, s.Dir(), s.Manifest().Digest())
	require.NoError(t, err)
	var files []*os.File
	for _, from := range []*snapshot.Snapshot{s, opened} {
		for path, want := range map[string]string{
			"src/a": "alpha", "src/d/e/big": string(fstest.TornContent(1, 300<<10)), "src/empty": "", "tool": "#!",
		} {
			f, err := from.Open(t.Context(), path)
			require.NoError(t, err, path)
			defer f.Close()
			assert.Equal(t, filepath.Join(treeOf(s), path), f.Name())
			b, err := io.ReadAll(f)
			assert.NoError(t, err, path)
			assert.Equal(t, want, string(b), path)
			_, err = f.WriteAt([]byte("x"), 0)
			assert.Error(t, err, path)
			files = append(files, f)
		}
		for path, want := range map[string]error{
			"src": snapshot.ErrNotRegular, "src/l": snapshot.ErrNotRegular, ".": snapshot.ErrNotRegular, "nothing": fs.ErrNotExist,
			"src/a/": fs.ErrNotExist, "../lock": fs.ErrNotExist, "": fs.ErrNotExist, "src/../src/a": fs.ErrNotExist,
		} {
			_, err := from.Open(t.Context(), path)
			assert.ErrorIs(t, err, want, "Open(%q)", path)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := from.Open(ctx, "src/d/e/big")
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, from.Verify(ctx), context.Canceled)
	}
	require.NoError(t, opened.Close())
	require.NoError(t, s.Close())
	for _, f := range files {
		_, err := f.Stat()
		assert.NoError(t, err, "it is the caller's, also after Close")
	}
}

// TestSnapshotClose removes the snapshot; what comes after it is fs.ErrClosed.
func TestSnapshotClose(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1", "src/d/e/b=2", "src/run 0755=#!", "src/l => a")
	s, err := take(t, parent, nil, rootsAt(dir, "src")...)
	require.NoError(t, err)
	files, at := s.FS(), s.Dir()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { assert.NoError(t, s.Close()) })
	}
	wg.Wait()
	fstest.Nothing(t, parent)
	assert.NoError(t, s.Close(), "again")
	_, err = s.Open(t.Context(), "src/a")
	assert.ErrorIs(t, err, fs.ErrClosed)
	assert.ErrorIs(t, s.Verify(t.Context()), fs.ErrClosed)
	assert.ErrorIs(t, s.Detach(), fs.ErrClosed)
	_, err = fs.ReadFile(files, "src/a")
	assert.ErrorIs(t, err, fs.ErrClosed)
	_, err = fs.ReadFile(s.FS(), "src/a")
	assert.ErrorIs(t, err, fs.ErrClosed)
	assert.Equal(t, at, s.Dir())
	assert.Equal(t, 8, s.Manifest().Len())
	assert.NotNil(t, s.Report())
	assert.ErrorIs(t, errorOf(snapshot.OpenSnapshot(t.Context(), at, s.Manifest().Digest())), fs.ErrNotExist)
}

// TestSnapshotCloseStopsVerify in the middle of a file.
func TestSnapshotCloseStopsVerify(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1", "src/z=@300KiB")
	var s *snapshot.Snapshot
	var verifying atomic.Bool
	closed := make(chan error, 1)
	stop := once("Read", func() {
		go func() { closed <- s.Close() }()
		for s.Detach() == nil { // until Close has begun
			runtime.Gosched()
		}
	})
	s, err := takeWith(t.Context(), t, parent, &snapshot.TakeOptions{Options: snapshot.Options{Workers: 1}}, snapshot.Seam{At: func(call, name string) error {
		if verifying.Load() {
			return stop(call, name)
		}
		return nil
	}}, rootsAt(dir, "src")...)
	require.NoError(t, err)
	verifying.Store(true)
	assert.ErrorIs(t, s.Verify(t.Context()), fs.ErrClosed)
	assert.NoError(t, <-closed)
	assert.NoError(t, removeSoon(t, s.Dir()))
}

// TestTakeCanceledInAnyPhase: a call that is canceled in any phase leaves nothing.
func TestTakeCanceledInAnyPhase(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1", "src/d/b=2", "lib/c=3")
	for _, phase := range []string{"joined", "collected", "proven"} {
		ctx, cancel := context.WithCancel(t.Context())
		seam := snapshot.Seam{Phase: func(p string) {
			if p == phase {
				cancel()
			}
		}}
		_, err := takeWith(ctx, t, parent, nil, seam, rootsAt(dir, "src", "lib")...)
		assert.ErrorIs(t, err, context.Canceled, phase)
		cancel()
		_, err = takeWith(ctx, t, parent, nil, snapshot.Seam{}, rootsAt(dir, "src")...)
		assert.ErrorIs(t, err, context.Canceled)
	}
}

// TestTakeFailsAtAnyStep: nothing is left, whichever call the system refuses.
func TestTakeFailsAtAnyStep(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1", "src/d/b=2", "src/l => a", "tool=3")
	opts := &snapshot.TakeOptions{Options: snapshot.Options{Workers: 1, Durable: true}, Aliases: []snapshot.Alias{{"src/x/tool", "tool"}}}
	failures := 0
	for step := 1; ; step++ {
		calls, what, taken := 0, "", false
		s, err := takeWith(t.Context(), t, parent, opts, snapshot.Seam{At: func(call, name string) error {
			if taken {
				return nil
			}
			if calls++; calls != step {
				return nil
			}
			what = call + " " + name
			return syscall.EIO
		}}, rootsAt(dir, "src", "tool")...)
		taken = true
		if err != nil {
			failures++
			assert.ErrorIs(t, err, syscall.EIO, "step %d, %s", step, what)
			assert.NotErrorIs(t, err, snapshot.ErrLeftover, "step %d, %s", step, what)
		} else {
			assert.NoError(t, s.Verify(t.Context()), "step %d, %s", step, what)
			assert.NoError(t, s.Close(), "step %d, %s", step, what)
		}
		fstest.Nothing(t, parent)
		if calls < step {
			break
		}
	}
	assert.Greater(t, failures, 50)
}

// TestDetach lets a snapshot outlive the one who took it, until it is removed.
func TestDetach(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1", "src/d/e/b=2")
	s, err := take(t, parent, nil, rootsAt(dir, "src")...)
	require.NoError(t, err)
	assert.ErrorIs(t, removeSnapshot(t, s.Dir()), snapshot.ErrBusy, "before Detach")
	require.NoError(t, s.Detach())
	assert.NoError(t, s.Detach(), "again")
	assert.ErrorIs(t, removeSnapshot(t, s.Dir()), snapshot.ErrBusy, "while it is open")
	assert.NoError(t, s.Verify(t.Context()), "after the refusal")
	require.NoError(t, s.Close())
	assert.Empty(t, sweep(t, parent))

	opened, err := reopen(t, s.Dir(), s.Manifest().Digest())
	require.NoError(t, err)
	assert.Nil(t, opened.Report())
	assert.Equal(t, s.Manifest().Digest(), opened.Manifest().Digest())
	at, ok := opened.Path("src")
	assert.True(t, ok)
	assert.Equal(t, filepath.Join(treeOf(s), "src"), at)
	assert.NoError(t, opened.Detach(), "it is nobody's to remove")
	assert.ErrorIs(t, removeSnapshot(t, s.Dir()), snapshot.ErrBusy)
	require.NoError(t, opened.Close())
	fstest.Nothing(t, parent, filepath.Base(s.Dir()))

	require.NoError(t, removeSoon(t, s.Dir()+"/"))
	fstest.Nothing(t, parent)
	assert.ErrorIs(t, removeSnapshot(t, s.Dir()), fs.ErrNotExist)
}

// TestOpenSnapshotRefuses what is no digest and no snapshot.
func TestOpenSnapshotRefuses(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1", "file=x", "empty/")
	at, digest := detached(t, parent, rootsAt(dir, "src")...)
	other := digest
	other[0] ^= 1
	for _, tt := range []struct {
		name, dir string
		digest    snapshot.Digest
		want      error
	}{
		{"another digest", at, other, snapshot.ErrMismatch},
		{"nothing", parent + "/nothing", digest, fs.ErrNotExist},
		{"no path", "", digest, nil}, // the working directory, whoever owns it
		{"a file", dir + "/file", digest, syscall.ENOTDIR},
		{"an empty directory", dir + "/empty", digest, snapshot.ErrMismatch},
		{"its tree", at + "/tree", digest, nil},
		{"the root of all", "/", digest, fs.ErrInvalid},
	} {
		_, err := reopen(t, tt.dir, tt.digest)
		assert.Error(t, err, tt.name)
		if tt.want != nil {
			assert.ErrorIs(t, err, tt.want, tt.name)
		}
	}
	assert.ErrorIs(t, errorOf(snapshot.OpenSnapshot(t.Context(), at, snapshot.Digest{})), fs.ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, errorOf(snapshot.OpenSnapshot(ctx, at, digest)), context.Canceled)
	assert.ErrorIs(t, snapshot.RemoveSnapshot(ctx, at), context.Canceled)
	assert.NoError(t, removeSoon(t, at))
}
