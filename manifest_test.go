// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/mtree"
)

func dirEntry(path string) snapshot.Entry {
	return snapshot.Entry{Path: path, Mode: fs.ModeDir | 0o755}
}

func fileEntry(path, content string) snapshot.Entry {
	return snapshot.Entry{Path: path, Mode: 0o644, Size: int64(len(content)), Digest: sha256.Sum256([]byte(content))}
}

func linkEntry(path, text string) snapshot.Entry {
	return snapshot.Entry{Path: path, Mode: fs.ModeSymlink | 0o777, Link: text}
}

func manifestOf(t testing.TB, entries ...snapshot.Entry) *snapshot.Manifest {
	t.Helper()
	m, err := snapshot.BuildManifest(entries...)
	require.NoError(t, err)
	return m
}

func textOf(t testing.TB, m *snapshot.Manifest) string {
	t.Helper()
	var b bytes.Buffer
	n, err := m.WriteTo(&b)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	return b.String()
}

// openText writes s to a file and opens it.
func openText(t testing.TB, s string) (*snapshot.Manifest, string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "manifest.mtree")
	require.NoError(t, os.WriteFile(name, []byte(s), 0o600))
	m, err := snapshot.OpenManifest(name)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m, name
}

func entriesOf(t testing.TB, m *snapshot.Manifest) []snapshot.Entry {
	t.Helper()
	var entries []snapshot.Entry
	for e, err := range m.All() {
		require.NoError(t, err)
		entries = append(entries, e)
	}
	return entries
}

// strange names are those that some tool has got wrong, sorted.
var strange = []string{
	"\x1b[0m", "-", "-rf", "a", "a=b", "a\\b", "b#", "cr\r", "gl*ob[x]?", "new\nline", "sp ace", "usr ignore", "é", "\xe9", "\xff",
}

func strangeEntries() []snapshot.Entry {
	entries := []snapshot.Entry{dirEntry("."), fileEntry("#", "")}
	for i, name := range strange {
		if i%3 == 0 {
			entries = append(entries, dirEntry(name), linkEntry(name+"/"+name, name), fileEntry(name+"/x", name))
		} else {
			entries = append(entries, fileEntry(name, name))
		}
	}
	slices.SortFunc(entries, func(a, b snapshot.Entry) int { return mtree.Compare(a.Path, b.Path) })
	return entries
}

// manyEntries make a text of several blocks, with lines longer than a block in between.
func manyEntries() []snapshot.Entry {
	entries := []snapshot.Entry{dirEntry(".")}
	for d := range 10 {
		name := fmt.Sprintf("d%d", d)
		entries = append(entries, dirEntry(name))
		for f := range 150 {
			entries = append(entries, fileEntry(fmt.Sprintf("%s/f%03d", name, f), name))
		}
		if d%3 == 1 {
			entries = append(entries, linkEntry(name+"/z"+strings.Repeat("\xff", 20_000+d*3000), "."))
		}
	}
	return entries
}

// longEntries make a text of several blocks that all begin with a path too long for a mark.
func longEntries() []snapshot.Entry {
	entries := []snapshot.Entry{dirEntry(".")}
	for i := range 100 {
		entries = append(entries, fileEntry(fmt.Sprintf("%s%03d", strings.Repeat("x", 3000), i), ""))
	}
	return entries
}

func TestManifest(t *testing.T) {
	t.Parallel()
	for name, entries := range map[string][]snapshot.Entry{
		"root":    {dirEntry(".")},
		"strange": strangeEntries(),
		"many":    manyEntries(),
		"long":    longEntries(),
	} {
		built := manifestOf(t, entries...)
		want := textOf(t, built)
		fromMemory, err := snapshot.ReadManifest(iotest.HalfReader(strings.NewReader(want)))
		require.NoError(t, err)
		fromDisk, _ := openText(t, want)
		for kind, m := range map[string]*snapshot.Manifest{"built": built, "read": fromMemory, "opened": fromDisk} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				assert.Equal(t, entries, entriesOf(t, m))
				assert.Equal(t, entries, entriesOf(t, m), "a second time")
				assert.Equal(t, len(entries), m.Len())
				assert.Equal(t, want, textOf(t, m))
				assert.Equal(t, snapshot.Digest(sha256.Sum256([]byte(want))), m.Digest())
				for _, e := range entries {
					got, err := m.Lookup(e.Path)
					require.NoError(t, err)
					require.Equal(t, e, got)
				}
				for _, absent := range []string{"", "/", "..", "./a", "a/", "\x00", "a\x00x", "d0\x00f000", "d0/f0000", "d1/f", "d9/g", "zzz", "\xff\xff"} {
					_, err := m.Lookup(absent)
					assert.ErrorIs(t, err, fs.ErrNotExist, "Lookup(%q)", absent)
					pathErr, ok := errors.AsType[*fs.PathError](err)
					assert.True(t, ok && pathErr.Path == absent, "Lookup(%q) = %v", absent, err)
				}
				for range m.All() {
					break
				}
			})
		}
	}
}

func TestManifestConcurrently(t *testing.T) {
	t.Parallel()
	entries := manyEntries()
	m, _ := openText(t, textOf(t, manifestOf(t, entries...)))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for e, err := range m.All() {
				if !assert.NoError(t, err) {
					return
				}
				if e.Path[len(e.Path)-1] != '7' {
					continue
				}
				got, err := m.Lookup(e.Path)
				if !assert.NoError(t, err) || !assert.Equal(t, e, got) {
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestManifestRefuses(t *testing.T) {
	t.Parallel()
	const bad = "#mtree v2.0\n. type=dir mode=0755\n./b type=dir mode=0755\n./a type=dir mode=0755\n"
	_, err := snapshot.ReadManifest(strings.NewReader(bad))
	require.ErrorIs(t, err, fs.ErrInvalid)
	assert.EqualError(t, err, "line 4: paths are not sorted")

	dir := t.TempDir()
	name := filepath.Join(dir, "bad")
	require.NoError(t, os.WriteFile(name, []byte(bad), 0o600))
	_, err = snapshot.OpenManifest(name)
	require.ErrorIs(t, err, fs.ErrInvalid)
	assert.EqualError(t, err, "read "+name+": line 4: paths are not sorted")

	_, err = snapshot.OpenManifest(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = snapshot.OpenManifest(dir)
	require.ErrorIs(t, err, snapshot.ErrNotRegular)

	_, err = snapshot.ReadManifest(iotest.ErrReader(fs.ErrPermission))
	require.ErrorIs(t, err, fs.ErrPermission)

	_, err = snapshot.BuildManifest()
	require.ErrorIs(t, err, fs.ErrInvalid)
	_, err = snapshot.BuildManifest(dirEntry("."), fileEntry("a/\x1b", ""))
	require.ErrorIs(t, err, fs.ErrInvalid)
	assert.EqualError(t, err, `"a/\x1b": not for a manifest: parent has no entry`)
	_, err = snapshot.BuildManifest(dirEntry("."), snapshot.Entry{Path: "a", Size: 1})
	require.ErrorIs(t, err, fs.ErrInvalid, "a file without a digest")
}

func TestManifestNotValid(t *testing.T) {
	t.Parallel()
	for _, m := range []*snapshot.Manifest{nil, {}} {
		assert.Zero(t, m.Len())
		assert.Zero(t, m.Digest())
		assert.NoError(t, m.Close())
		_, err := m.Lookup(".")
		assert.ErrorIs(t, err, fs.ErrInvalid)
		_, err = m.WriteTo(io.Discard)
		assert.ErrorIs(t, err, fs.ErrInvalid)
	}
	m := &snapshot.Manifest{}
	assert.ErrorIs(t, m.WriteSums(io.Discard), fs.ErrInvalid)
	assert.ErrorIs(t, lastError(m.All()), fs.ErrInvalid)
	assert.ErrorIs(t, lastError(snapshot.Diff(m, nil)), fs.ErrInvalid)
	assert.ErrorIs(t, lastError(snapshot.Diff(nil, m)), fs.ErrInvalid)
}

func lastError[T any](seq func(func(T, error) bool)) (last error) {
	seq(func(_ T, err error) bool {
		last = err
		return true
	})
	return last
}

func TestManifestChangedOnDisk(t *testing.T) {
	t.Parallel()
	entries := manyEntries()
	want := textOf(t, manifestOf(t, entries...))
	require.Greater(t, len(want), 3*64<<10)
	aligned := want[:strings.LastIndexByte(want[:2*64<<10], '\n')+1]
	pad := 2*64<<10 - len(aligned) - len("./zz type=link mode=0777 link=\n")
	aligned += "./zz" + " type=link mode=0777 link=" + strings.Repeat("a", pad) + "\n"
	require.Len(t, aligned, 2*64<<10, "the text ends with a block")

	write := func(off int64, b string) func(f *os.File) error {
		return func(f *os.File) error { _, err := f.WriteAt([]byte(b), off); return err }
	}
	truncate := func(size int64) func(f *os.File) error {
		return func(f *os.File) error { return f.Truncate(size) }
	}
	for _, test := range []struct {
		name, text string
		change     func(f *os.File) error
	}{
		{"first byte", want, write(0, "%")},
		{"mode of the root", want, write(int64(strings.Index(want, "0755")), "0777")},
		{"a byte in between", want, write(100_000, "\x00")},
		{"last byte", want, write(int64(len(want)-1), " ")},
		{"canonical entry", want, write(int64(strings.Index(want, "./d5/f077")), "./d5/f07~")},
		{"truncated", want, truncate(int64(len(want) - 1))},
		{"truncated to a block", want, truncate(64 << 10)},
		{"emptied", want, truncate(0)},
		{"appended", want, write(int64(len(want)), "\n")},
		{"appended to a whole block", aligned, write(int64(len(aligned)), "\n")},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m, name := openText(t, test.text)
			assert.Equal(t, test.text, textOf(t, m), "before the change")
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			require.NoError(t, err)
			require.NoError(t, test.change(f))
			require.NoError(t, f.Close())

			_, err = m.WriteTo(io.Discard)
			assert.ErrorIs(t, err, snapshot.ErrMismatch)
			pathErr, ok := errors.AsType[*fs.PathError](err)
			require.True(t, ok, "WriteTo() = %v", err)
			assert.Equal(t, name, pathErr.Path)
			assert.ErrorIs(t, m.WriteSums(io.Discard), snapshot.ErrMismatch)
			assert.ErrorIs(t, lastError(m.All()), snapshot.ErrMismatch)
			assert.ErrorIs(t, lastError(snapshot.Diff(nil, m)), snapshot.ErrMismatch)
			failed := false
			for i := 0; i < len(entries); i += 7 {
				got, err := m.Lookup(entries[i].Path)
				if err == nil {
					require.Equal(t, entries[i], got)
				}
				failed = failed || errors.Is(err, snapshot.ErrMismatch)
			}
			assert.True(t, failed, "no Lookup saw the change")
		})
	}

	m, name := openText(t, textOf(t, manifestOf(t, longEntries()...)))
	require.NoError(t, os.Truncate(name, 64<<10))
	_, err := m.Lookup("x")
	assert.ErrorIs(t, err, snapshot.ErrMismatch, "a mark that was not kept is read from the file")
}

func TestManifestClosed(t *testing.T) {
	t.Parallel()
	m, name := openText(t, textOf(t, manifestOf(t, manyEntries()...)))
	require.NoError(t, os.Rename(name, name+"2"), "the name is of no more use")
	assert.NoError(t, lastError(m.All()))
	require.NoError(t, m.Close())
	assert.ErrorIs(t, lastError(m.All()), fs.ErrClosed)
	_, err := m.Lookup("d0")
	assert.ErrorIs(t, err, fs.ErrClosed)
}

func TestDigest(t *testing.T) {
	t.Parallel()
	const digits = "00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef"
	d, err := snapshot.ParseDigest(digits)
	require.NoError(t, err)
	assert.Equal(t, digits, d.String())
	assert.Equal(t, byte(0xff), d[15])
	assert.False(t, d.IsZero())
	upper, err := snapshot.ParseDigest(strings.ToUpper(digits))
	require.NoError(t, err)
	assert.Equal(t, d, upper)

	b, err := json.Marshal([]snapshot.Digest{d, {}})
	require.NoError(t, err)
	assert.Equal(t, `["`+digits+`",""]`, string(b))
	got := []snapshot.Digest{{}, d}
	require.NoError(t, json.Unmarshal(b, &got))
	assert.Equal(t, []snapshot.Digest{d, {}}, got)
	assert.True(t, got[1].IsZero())

	for _, bad := range []string{"", "0", digits[1:], digits + "0", digits[:62] + "0g", " " + digits[1:], strings.Repeat("0", 64), "\x1b[31m\n", strings.Repeat("\xff", 1000)} {
		_, err := snapshot.ParseDigest(bad)
		assert.ErrorIs(t, err, fs.ErrInvalid, "ParseDigest(%q)", bad)
		assert.False(t, strings.ContainsAny(err.Error(), "\x1b\n"), "%q", err.Error())
		assert.Less(t, len(err.Error()), 1000)
		was := d
		if bad != "" {
			assert.ErrorIs(t, was.UnmarshalText([]byte(bad)), fs.ErrInvalid)
			assert.Equal(t, d, was)
		}
	}
}

func TestDiff(t *testing.T) {
	t.Parallel()
	old := manifestOf(t, dirEntry("."), dirEntry("a"), fileEntry("a/x", "1"), fileEntry("a-b", "1"), linkEntry("c", "a"))
	changed := manifestOf(t, dirEntry("."), fileEntry("a", "1"), fileEntry("a-b", "2"), linkEntry("c", "a"), dirEntry("d"))
	ptr := func(e snapshot.Entry) *snapshot.Entry { return &e }
	want := []snapshot.Change{
		{Path: "a", Old: ptr(dirEntry("a")), New: ptr(fileEntry("a", "1"))},
		{Path: "a/x", Old: ptr(fileEntry("a/x", "1"))},
		{Path: "a-b", Old: ptr(fileEntry("a-b", "1")), New: ptr(fileEntry("a-b", "2"))},
		{Path: "d", New: ptr(dirEntry("d"))},
	}
	assert.Equal(t, want, changesOf(t, old, changed))
	assert.Empty(t, changesOf(t, old, old))
	assert.Empty(t, changesOf(t, nil, nil))
	assert.Len(t, changesOf(t, nil, old), 5)
	assert.Len(t, changesOf(t, old, nil), 5)
	for range snapshot.Diff(nil, old) {
		break
	}
}

func changesOf(t testing.TB, old, new *snapshot.Manifest) []snapshot.Change {
	t.Helper()
	var list []snapshot.Change
	for c, err := range snapshot.Diff(old, new) {
		require.NoError(t, err)
		list = append(list, c)
	}
	return list
}

func TestDiffAgainstMaps(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	for i := range 500 {
		old := randomTree(rnd)
		changed := maps.Clone(old)
		for name := range randomTree(rnd) {
			if rnd.IntN(2) == 0 {
				delete(changed, name)
			}
		}
		maps.Copy(changed, randomTree(rnd))
		prune(changed)

		var want []snapshot.Change
		for _, name := range slices.SortedFunc(maps.Keys(union(old, changed)), mtree.Compare) {
			c := snapshot.Change{Path: name}
			if e, ok := old[name]; ok {
				c.Old = &e
			}
			if e, ok := changed[name]; ok {
				c.New = &e
			}
			if c.Old == nil || c.New == nil || *c.Old != *c.New {
				want = append(want, c)
			}
		}
		m := buildMap(t, changed)
		if i%50 == 0 {
			m, _ = openText(t, textOf(t, m))
		}
		require.Equal(t, want, changesOf(t, buildMap(t, old), m), "seed %d", seed)
	}
}

func union(a, b map[string]snapshot.Entry) map[string]snapshot.Entry {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// randomTree has up to 30 entries, among them names that sort around '/'.
func randomTree(rnd *rand.Rand) map[string]snapshot.Entry {
	tree := map[string]snapshot.Entry{".": dirEntry(".")}
	for range rnd.IntN(30) {
		name := "."
		for range 1 + rnd.IntN(4) {
			name = path.Join(name, []string{"a", "a-", "a.b", "\x01", "b", "\xff"}[rnd.IntN(6)])
		}
		switch rnd.IntN(4) {
		case 0:
			tree[name] = dirEntry(name)
		case 1:
			tree[name] = linkEntry(name, "a")
		default:
			tree[name] = fileEntry(name, "12"[rnd.IntN(2):])
		}
		for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
			tree[parent] = dirEntry(parent)
		}
	}
	prune(tree)
	return tree
}

// prune removes what has no directory above it.
func prune(tree map[string]snapshot.Entry) {
	for _, name := range slices.SortedFunc(maps.Keys(tree), mtree.Compare) {
		if !tree[path.Dir(name)].Mode.IsDir() {
			delete(tree, name)
		}
	}
}

func buildMap(t testing.TB, tree map[string]snapshot.Entry) *snapshot.Manifest {
	t.Helper()
	return manifestOf(t, slices.SortedFunc(maps.Values(tree), func(a, b snapshot.Entry) int { return mtree.Compare(a.Path, b.Path) })...)
}

func TestWriteSums(t *testing.T) {
	t.Parallel()
	sum := func(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }
	m := manifestOf(t, dirEntry("."), fileEntry("-", "1"), dirEntry("a"), fileEntry("a/b c", "2"), fileEntry("cr\r", "3"), linkEntry("l", "a"), fileEntry("x\\y\nz", "4"))
	var b bytes.Buffer
	require.NoError(t, m.WriteSums(&b))
	assert.Equal(t, sum("1")+"  ./-\n"+sum("2")+"  a/b c\n"+`\`+sum("3")+`  cr\r`+"\n"+`\`+sum("4")+`  x\\y\nz`+"\n", b.String())
}

// The manifests and lists that other programs read are of a real tree here.
func TestOtherReaders(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tree")
	writeTree(t, dir, strangeEntries())
	entries := walkByHand(t, dir)
	require.Equal(t, len(strangeEntries()), len(entries))
	m := manifestOf(t, entries...)
	manifest := filepath.Join(t.TempDir(), "manifest.mtree")
	require.NoError(t, os.WriteFile(manifest, []byte(textOf(t, m)), 0o600))

	t.Run("mtree", func(t *testing.T) {
		tool := lookTool(t, "mtree")
		output, err := exec.CommandContext(t.Context(), tool, "-f", manifest, "-p", dir).CombinedOutput()
		require.NoError(t, err)
		require.Empty(t, string(output))

		for _, change := range []struct {
			name   string
			change func(name string) error
		}{
			{"sp ace", func(name string) error { return os.WriteFile(name, []byte("sp-ace"), 0o644) }},
			{"usr ignore", func(name string) error { return os.WriteFile(name, []byte("usr-ignore"), 0o644) }},
			{"b#/x", os.Remove},
			{"\xff", func(name string) error { return os.Chmod(name, 0o600) }},
			{"é/é", func(name string) error { return errors.Join(os.Remove(name), os.Symlink("x", name)) }},
			{"extra", func(name string) error { return os.WriteFile(name, nil, 0o644) }},
		} {
			dir := filepath.Join(t.TempDir(), "tree")
			writeTree(t, dir, entries)
			require.NoError(t, change.change(filepath.Join(dir, change.name)))
			output, _ := exec.CommandContext(t.Context(), tool, "-f", manifest, "-p", dir).CombinedOutput()
			assert.NotEmpty(t, string(output), "after a change of %q", change.name)
		}
	})
	// mtree 20180822 looks for glob characters after it has decoded a name, so it finds this one's entry in another file: no proof.
	t.Run("globs", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "tree")
		writeTree(t, dir, []snapshot.Entry{dirEntry("."), fileEntry("gl*ob[x]", "1")})
		before := manifestOf(t, walkByHand(t, dir)...)
		require.NoError(t, os.Rename(filepath.Join(dir, "gl*ob[x]"), filepath.Join(dir, "glZobx")))
		after := manifestOf(t, walkByHand(t, dir)...)
		assert.Len(t, changesOf(t, before, after), 2)
		assert.NotEqual(t, before.Digest(), after.Digest())
	})
	t.Run("bsdtar", func(t *testing.T) {
		tool := lookTool(t, "bsdtar")
		list := exec.CommandContext(t.Context(), tool, "-tf", manifest)
		list.Env = append(os.Environ(), "LC_ALL=C") // one that is not installed is a warning
		output, err := list.CombinedOutput()
		require.NoError(t, err, "%s", output)
		assert.Equal(t, len(entries), bytes.Count(output, []byte("\n")))

		archive := filepath.Join(t.TempDir(), "tree.tar")
		cmd := exec.CommandContext(t.Context(), tool, "--format=gnutar", "-cf", archive, "@"+manifest)
		cmd.Dir, cmd.Env = dir, list.Env
		output, err = cmd.CombinedOutput()
		require.NoError(t, err, "%s", output)
		assert.Equal(t, entries, tarEntries(t, archive))
	})
	t.Run("sha256sum", func(t *testing.T) {
		tool := lookTool(t, "sha256sum")
		version, err := exec.CommandContext(t.Context(), tool, "--version").Output()
		if err != nil || !bytes.Contains(version, []byte("GNU coreutils")) {
			t.Skip("sha256sum is not that of GNU coreutils")
		}
		var list bytes.Buffer
		require.NoError(t, m.WriteSums(&list))
		check := func() ([]byte, error) {
			cmd := exec.CommandContext(t.Context(), tool, "-c", "--strict", "--quiet", "/dev/stdin")
			cmd.Dir, cmd.Stdin = dir, bytes.NewReader(list.Bytes())
			return cmd.CombinedOutput()
		}
		if bytes.Contains(version, []byte("GNU coreutils) 8.")) {
			t.Skip("coreutils before 9.0 does not take an escaped carriage return")
		}
		output, err := check()
		require.NoError(t, err, "%s", output)
		assert.Empty(t, string(output))
	})
}

func lookTool(t *testing.T, name string) string {
	t.Helper()
	tool, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed: %v", name, err)
	}
	return tool
}

// writeTree makes entries beneath dir; a file holds its own name, which fileEntry was given, or what its size says.
func writeTree(t *testing.T, dir string, entries []snapshot.Entry) {
	t.Helper()
	for _, e := range entries {
		name := filepath.Join(dir, e.Path)
		var err error
		switch {
		case e.Mode.IsDir():
			err = os.Mkdir(name, 0o755)
		case e.Link != "":
			err = os.Symlink(e.Link, name)
		default:
			content := path.Base(e.Path)
			if content == "x" {
				content = path.Dir(e.Path)
			}
			err = os.WriteFile(name, []byte(content[:min(int(e.Size), len(content))]), 0o644)
		}
		if err != nil {
			t.Skipf("this file system does not take such names: %v", err)
		}
		if e.Link == "" {
			require.NoError(t, os.Chmod(name, e.Mode.Perm()))
		}
	}
}

// walkByHand is an independent reader of a still tree: a walk whose names are sorted in each directory is in the manifest's order.
func walkByHand(t *testing.T, dir string) []snapshot.Entry {
	t.Helper()
	var entries []snapshot.Entry
	require.NoError(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := os.Lstat(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		e := snapshot.Entry{Path: filepath.ToSlash(rel), Mode: fi.Mode()}
		switch {
		case err != nil:
		case e.Mode.IsRegular():
			var content []byte
			content, err = os.ReadFile(name)
			e.Size, e.Digest = fi.Size(), sha256.Sum256(content)
		case !e.Mode.IsDir():
			e.Link, err = os.Readlink(name)
		}
		entries = append(entries, e)
		return err
	}))
	return entries
}

func tarEntries(t *testing.T, name string) []snapshot.Entry {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	var entries []snapshot.Entry
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			return entries
		}
		require.NoError(t, err)
		e := snapshot.Entry{Path: path.Clean(h.Name), Mode: h.FileInfo().Mode(), Size: h.Size, Link: h.Linkname}
		if e.Mode.IsRegular() {
			content, err := io.ReadAll(r)
			require.NoError(t, err)
			e.Digest = sha256.Sum256(content)
		}
		entries = append(entries, e)
	}
}

func FuzzReadManifest(f *testing.F) {
	f.Add([]byte(textOf(f, manifestOf(f, strangeEntries()...))))
	f.Add([]byte("#mtree v2.0\n. type=dir mode=0755\n"))
	name := filepath.Join(f.TempDir(), "manifest.mtree")
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := snapshot.ReadManifest(bytes.NewReader(b))
		require.NoError(t, os.WriteFile(name, b, 0o600))
		onDisk, diskErr := snapshot.OpenManifest(name)
		if err != nil {
			require.ErrorIs(t, err, fs.ErrInvalid)
			require.EqualError(t, diskErr, "read "+name+": "+err.Error())
			return
		}
		require.NoError(t, diskErr)
		defer onDisk.Close()
		require.Equal(t, string(b), textOf(t, m))
		require.Equal(t, string(b), textOf(t, onDisk))
		require.Equal(t, m.Digest(), onDisk.Digest())
		require.Empty(t, changesOf(t, m, onDisk))
		for e := range m.All() {
			got, err := onDisk.Lookup(e.Path)
			require.NoError(t, err)
			require.Equal(t, e, got)
		}
	})
}

// benchmarkManifest has 100,000 files.
func benchmarkManifest(b *testing.B) *snapshot.Manifest {
	b.Helper()
	entries := []snapshot.Entry{dirEntry(".")}
	for d := range 1000 {
		name := fmt.Sprintf("package%03d", d)
		entries = append(entries, dirEntry(name))
		for f := range 100 {
			entries = append(entries, fileEntry(fmt.Sprintf("%s/module-index-%02d.js", name, f), name))
		}
	}
	return manifestOf(b, entries...)
}

func BenchmarkReadManifest(b *testing.B) {
	m := benchmarkManifest(b)
	s := textOf(b, m)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := snapshot.ReadManifest(strings.NewReader(s)); err != nil {
			b.Fatal(err)
		}
	}
	reportLines(b, m.Len())
}

func BenchmarkOpenManifest(b *testing.B) {
	m := benchmarkManifest(b)
	_, name := openText(b, textOf(b, m))
	b.ReportAllocs()
	for b.Loop() {
		m, err := snapshot.OpenManifest(name)
		if err != nil {
			b.Fatal(err)
		}
		m.Close()
	}
	reportLines(b, m.Len())
}

func BenchmarkManifestAll(b *testing.B) {
	m := benchmarkManifest(b)
	for b.Loop() {
		for _, err := range m.All() {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	reportLines(b, m.Len())
}

func BenchmarkDiff(b *testing.B) {
	m := benchmarkManifest(b)
	onDisk, _ := openText(b, textOf(b, m))
	b.ReportAllocs()
	for b.Loop() {
		for c, err := range snapshot.Diff(m, onDisk) {
			b.Fatal(c, err)
		}
	}
	reportLines(b, m.Len())
}

func BenchmarkLookup(b *testing.B) {
	m := benchmarkManifest(b)
	onDisk, _ := openText(b, textOf(b, m))
	for name, m := range map[string]*snapshot.Manifest{"memory": m, "disk": onDisk} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Lookup("package777/module-index-77.js"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func reportLines(b *testing.B, lines int) {
	b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
