// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// growth makes a random tree.
type growth struct {
	*rand.Rand
	root  string
	utf8  bool // all names and texts are
	names map[string]fs.FileMode
	dirs  []string
	files []string
}

// Sizes on both sides of where the engine does something else: a block, a buffer, a chunk, preallocation.
var growthSizes = []int{0, 0, 1, 37, 4095, 4096, 4097, 64 << 10, 128<<10 - 1, 128 << 10, 128<<10 + 1, 256<<10 + 5, 1<<20 - 1, 1<<20 + 1}

// grow makes a tree of some hundred entries at root, beside "out" with things that are not of it.
func grow(t *testing.T, rnd *rand.Rand, root string, onlyUTF8, special bool) *growth {
	t.Helper()
	g := &growth{Rand: rnd, root: root, utf8: onlyUTF8, names: map[string]fs.FileMode{".": fs.ModeDir}, dirs: []string{"."}}
	fstest.Make(t, filepath.Dir(root), "out/secret=s", "out/d/f=f", "out/back => ../"+filepath.Base(root), filepath.Base(root)+"/")
	deep := "."
	for range rnd.IntN(40) {
		deep = g.mkdir(t, deep, "d")
	}
	for range 4 + rnd.IntN(12) {
		g.mkdir(t, pick(rnd, g.dirs), g.name())
	}
	wide := g.mkdir(t, ".", "wide")
	for i := range rnd.IntN(60) {
		g.file(t, path.Join(wide, g.clean(fmt.Sprintf("%d-%.60s", i, g.name()))), i%7)
	}
	for range 20 + rnd.IntN(40) {
		size := pick(rnd, growthSizes[:7])
		if rnd.IntN(6) == 0 {
			size = pick(rnd, growthSizes)
		}
		g.file(t, g.path(), size)
	}
	for range rnd.IntN(4) {
		g.sparse(t, g.path())
	}
	for range rnd.IntN(6) {
		g.hard(t)
	}
	for range 25 {
		g.link(t)
	}
	if special {
		for range 1 + rnd.IntN(3) {
			if at := g.path(); g.free(at) && len(g.at(at)) < 100 {
				require.NoError(t, unix.Mknod(g.at(at), pick(rnd, []uint32{unix.S_IFIFO, unix.S_IFSOCK})|0o644, 0))
				g.names[at] = fs.ModeIrregular
			}
		}
	}
	g.finish(t)
	return g
}

func (g *growth) at(name string) string { return filepath.Join(g.root, name) }

func (g *growth) free(name string) bool {
	_, taken := g.names[name]
	return !taken
}

// name has what some tool gets wrong: any byte, marks of shells and of manifests, case pairs, one letter in two normal forms.
func (g *growth) name() string {
	name := ""
	switch g.IntN(9) {
	case 0, 1:
		name = pick(g.Rand, strange)
	case 2, 3:
		for range 1 + g.IntN(3) {
			name += string([]byte{byte(1 + g.IntN(255))})
		}
	case 4:
		name = pick(g.Rand, []string{"Readme", "README", "readme", "\u00e9", "e\u0301", "\u00c9", "I", "\u0131", "ss", "\u00df"})
	case 5:
		name = pick(g.Rand, []string{"...", "..data", ".git", " ", "~", "-", "'", "`", "a\\", "*", "?", "[x]", "\u202e", "\ufeff", "\U0010ffff"})
	case 6:
		name = strings.Repeat(pick(g.Rand, []string{"x", "\xff", "é", "界"}), 255)[:251+g.IntN(5)] // 255 is NAME_MAX
	default:
		name = fmt.Sprintf("%c%d", 'a'+g.IntN(4), g.IntN(9))
	}
	return g.clean(name)
}

func (g *growth) clean(name string) string {
	name = strings.ReplaceAll(name, "/", ":")
	if g.utf8 {
		name = strings.ToValidUTF8(name, "_")
	}
	if name == "." || name == ".." {
		return "..."
	}
	return name[:min(len(name), 255)]
}

// path is a name in some directory; cp and the walks of these tests need it to be shorter than PATH_MAX.
func (g *growth) path() string {
	for {
		if p := path.Join(pick(g.Rand, g.dirs), g.name()); len(p) < 2000 {
			return p
		}
	}
}

func (g *growth) mkdir(t *testing.T, in, name string) string {
	p := path.Join(in, name)
	if !g.free(p) || len(p) > 2000 {
		return in
	}
	require.NoError(t, os.Mkdir(g.at(p), 0o700))
	g.names[p], g.dirs = fs.ModeDir, append(g.dirs, p)
	return p
}

func (g *growth) file(t *testing.T, p string, size int) {
	if !g.free(p) {
		return
	}
	content := make([]byte, size)
	for i := range content {
		content[i] = byte(i)
	}
	if size > 0 { // one random byte tells it from others of its size
		content[g.IntN(size)] = byte(g.Uint32())
	}
	require.NoError(t, os.WriteFile(g.at(p), content, 0o600))
	g.names[p], g.files = 0, append(g.files, p)
}

// sparse makes a file with holes, at its end too.
func (g *growth) sparse(t *testing.T, p string) {
	if !g.free(p) {
		return
	}
	f, err := os.Create(g.at(p))
	require.NoError(t, err)
	defer f.Close()
	size := 1<<20 + g.Int64N(2<<20)
	require.NoError(t, f.Truncate(size))
	for range g.IntN(3) {
		_, err := f.WriteAt([]byte("data"), g.Int64N(size-4))
		require.NoError(t, err)
	}
	g.names[p], g.files = 0, append(g.files, p)
}

func (g *growth) hard(t *testing.T) {
	if p := g.path(); g.free(p) {
		from := pick(g.Rand, g.files)
		require.NoError(t, os.Link(g.at(from), g.at(p)))
		g.names[p], g.files = 0, append(g.files, p)
		if g.IntN(3) == 0 {
			require.NoError(t, os.Link(g.at(from), filepath.Join(filepath.Dir(g.root), "out", fmt.Sprintf("hard%d", len(g.files)))))
		}
	}
}

// link makes a symbolic link: to something of the tree by a way more or less direct, out of it, or nowhere.
func (g *growth) link(t *testing.T) {
	p := g.path()
	if !g.free(p) {
		return
	}
	in := path.Dir(p)
	target := pick(g.Rand, slices.Sorted(maps.Keys(g.names)))
	text, err := filepath.Rel(in, target)
	require.NoError(t, err)
	back := strings.Repeat("../", strings.Count(in, "/")+1)
	if in == "." {
		back = ""
	}
	switch g.IntN(12) {
	case 0:
		text = g.root + "/" + target
	case 1:
		text = back + "../" + filepath.Base(g.root) + "/" + target
	case 2:
		text = back + pick(g.Rand, []string{"../out/secret", "../out", "..", "../out/back/" + target, "../../../../../etc/passwd"})
	case 3:
		text = pick(g.Rand, []string{"/", "/etc", g.root, g.root + "/..", "none", g.root + "/none/.."})
	case 4:
		text = strings.ReplaceAll(text, "/", "/.//") + pick(g.Rand, []string{"", "/", "/."})
	case 5:
		text = back + pick(g.Rand, g.dirs) + "/" + pick(g.Rand, []string{"..", "../..", "../" + path.Base(target), path.Base(target)})
	case 6: // through a link, and back from where it leads
		text = back + pick(g.Rand, slices.Sorted(maps.Keys(g.names))) + "/../" + pick(g.Rand, []string{path.Base(target), "..", "."})
	case 7:
		text = g.name()
	case 8:
		text = path.Base(p) + pick(g.Rand, []string{"", "/x"})
	}
	if len(text) > 3000 {
		return
	}
	require.NoError(t, os.Symlink(text, g.at(p)))
	g.names[p] = fs.ModeSymlink
}

// finish gives everything a mode and a time, before 1970 and in the future too. An ordinary user must be able to read.
func (g *growth) finish(t *testing.T) {
	least := map[bool]fs.FileMode{true: 0o400, false: 0o500}
	if os.Geteuid() == 0 {
		least = nil
	}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(g.names))) {
		kind := g.names[name]
		if kind != fs.ModeSymlink && kind != fs.ModeIrregular {
			require.NoError(t, os.Chmod(g.at(name), fs.FileMode(g.IntN(0o1000))|least[kind == 0]))
		}
		mtime := unix.NsecToTimespec((g.Int64N(1<<33)-1<<31)*1e9 + g.Int64N(1e9)) // of whose seconds 32-bit systems keep the lower half
		require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, g.at(name), []unix.Timespec{mtime, mtime}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

// propertyDir returns a directory for trees that an ordinary user's clean-up may find closed: on a file system of our own, where
// nobody else's writes are waited for, if there is one.
func propertyDir(t *testing.T) string {
	t.Helper()
	kind := "ext4"
	err := fstest.Run(t.Context(), kind, io.Discard, func(t fstest.TB) { fstest.Dir(t, kind) })
	if errors.Is(err, errors.ErrUnsupported) {
		kind, err = "", nil
	}
	require.NoError(t, err)
	dir, err := filepath.EvalSymlinks(fstest.Dir(t, kind))
	require.NoError(t, err)
	return dir
}

// fact is what an independent walk sees of an entry.
type fact struct {
	snapshot.Entry // of a special file only the path and the mode
	mtime          int64
	sparse         bool
}

// factsOf walks a still tree and returns its entries in the order of a manifest: by the components of their paths.
func factsOf(t *testing.T, root string) []fact {
	t.Helper()
	var facts []fact
	var walk func(p string)
	walk = func(p string) {
		name := filepath.Join(root, p)
		var st unix.Stat_t
		require.NoError(t, unix.Lstat(name, &st))
		fi, err := os.Lstat(name)
		require.NoError(t, err)
		f := fact{Entry: snapshot.Entry{Path: p, Mode: fi.Mode()}, mtime: unix.TimespecToNsec(st.Mtim)}
		switch fi.Mode().Type() {
		case fs.ModeSymlink:
			f.Link, err = os.Readlink(name)
			require.NoError(t, err)
		case 0:
			file, err := os.Open(name)
			require.NoError(t, err)
			sum := sha256.New()
			f.Size, err = io.Copy(sum, file)
			require.NoError(t, errors.Join(err, file.Close()))
			f.Digest = snapshot.Digest(sum.Sum(nil))
			f.sparse = f.Size >= 1<<20 && st.Blocks*512 < f.Size/2
		}
		facts = append(facts, f)
		if fi.IsDir() {
			entries, err := os.ReadDir(name)
			require.NoError(t, err)
			for _, e := range entries {
				walk(path.Join(p, e.Name()))
			}
		}
	}
	walk(".")
	slices.SortFunc(facts, func(a, b fact) int {
		if a.Path == "." || b.Path == "." {
			return strings.Compare(map[bool]string{false: "x"}[a.Path == "."], map[bool]string{false: "x"}[b.Path == "."])
		}
		return slices.Compare(strings.Split(a.Path, "/"), strings.Split(b.Path, "/"))
	})
	return facts
}

func isSpecial(f fact) bool {
	return !f.Mode.IsRegular() && !f.Mode.IsDir() && f.Mode.Type() != fs.ModeSymlink
}

// ordinary returns facts without special files.
func ordinary(facts []fact) []fact {
	return slices.DeleteFunc(slices.Clone(facts), isSpecial)
}

func entriesIn(facts []fact) (entries []snapshot.Entry) {
	for _, f := range facts {
		entries = append(entries, f.Entry)
	}
	return entries
}
