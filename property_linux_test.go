// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
)

// TestPropertyQuietCopy: a copy of a quiet tree is the tree, and what cp -a and os.CopyFS make of it.
func TestPropertyQuietCopy(t *testing.T) {
	t.Parallel()
	cp := lookTool(t, "cp")
	eachSeed(t, stressTries(t, 4, 50, 1000), func(t *testing.T, rnd *rand.Rand) {
		dir := propertyDir(t)
		src, dst, peer := filepath.Join(dir, "src"), filepath.Join(dir, "dst"), filepath.Join(dir, "cp")
		onlyUTF8 := rnd.IntN(2) == 0
		grow(t, rnd, src, onlyUTF8, !onlyUTF8)
		there := factsOf(t, src)

		opts := snapshot.Options{PreserveMode: true, Links: snapshot.LinksVerbatim, SkipSpecial: true, Workers: 1 + rnd.IntN(4)}
		report, err := copyTree(t, dst, src, &opts)
		require.NoError(t, err)
		assert.Equal(t, there, factsOf(t, src), "the source")
		copied := factsOf(t, dst)
		require.Equal(t, ordinary(there), copied, "the copy")
		text, err := exec.CommandContext(t.Context(), cp, "-a", src, peer).CombinedOutput()
		require.NoError(t, err, "%s", text)
		assert.Equal(t, ordinary(factsOf(t, peer)), copied, "the copy, and that of cp -a")
		if onlyUTF8 {
			plain := filepath.Join(dir, "plain")
			require.NoError(t, os.CopyFS(plain, os.DirFS(src)))
			assert.Equal(t, withoutModes(factsOf(t, plain)), withoutModes(copied), "the copy, and that of os.CopyFS")
		}

		m := report.Manifest
		assert.Equal(t, entriesIn(copied), entriesOf(t, m), "the manifest")
		assertCounts(t, report, copied)
		assert.Len(t, report.Skipped, len(there)-len(copied))
		assertReadBack(t, m)
		assert.NoError(t, snapshot.Verify(t.Context(), dst, m, nil))
		scanned, err := snapshot.Scan(t.Context(), src, &opts)
		require.NoError(t, err)
		assert.Equal(t, m.Digest(), scanned.Manifest.Digest(), "of Scan and CopyDir")
		assertEditsAreSeen(t, rnd, dst, m)
	})
}

func withoutModes(facts []fact) []fact {
	var out []fact
	for _, f := range facts {
		f.Mode, f.mtime, f.sparse = f.Mode.Type(), 0, false
		out = append(out, f)
	}
	return out
}

func assertCounts(t *testing.T, r *snapshot.Report, facts []fact) {
	t.Helper()
	var files, dirs, links, size int64
	for _, f := range facts {
		switch f.Mode.Type() {
		case fs.ModeDir:
			dirs++
		case fs.ModeSymlink:
			links++
		default:
			files++
			size += f.Size
		}
	}
	assert.Equal(t, []int64{files, dirs, links, size}, []int64{r.Files, r.Dirs, r.Links, r.Bytes}, "files, directories, links, bytes")
	assert.Equal(t, len(facts), r.Manifest.Len())
}

// assertReadBack: what was written of a manifest is read as the same one.
func assertReadBack(t *testing.T, m *snapshot.Manifest) {
	t.Helper()
	text := textOf(t, m)
	assert.Equal(t, m.Digest(), snapshot.Digest(sha256.Sum256([]byte(text))))
	inMemory, err := snapshot.ReadManifest(strings.NewReader(text))
	require.NoError(t, err)
	onDisk, _ := openText(t, text)
	for _, again := range []*snapshot.Manifest{inMemory, onDisk} {
		assert.Equal(t, m.Digest(), again.Digest())
		assert.Equal(t, entriesOf(t, m), entriesOf(t, again))
		assert.Empty(t, changesOf(t, m, again))
	}
	for e := range m.All() {
		got, err := onDisk.Lookup(e.Path)
		require.NoError(t, err)
		require.Equal(t, e, got)
		_, err = onDisk.Lookup(e.Path + "\x00")
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
}

// assertEditsAreSeen changes a tree that m describes: Diff and Verify must find what a comparison of two walks finds.
func assertEditsAreSeen(t *testing.T, rnd *rand.Rand, dir string, m *snapshot.Manifest) {
	t.Helper()
	before := entriesOf(t, m)
	for range 1 + rnd.IntN(4) {
		e := pick(rnd, before[1:])
		name := filepath.Join(dir, e.Path)
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			continue // gone by an edit before
		}
		require.NoError(t, os.Chmod(filepath.Dir(name), 0o700))
		switch {
		case rnd.IntN(5) == 0:
			to := name[:len(name)-len(path.Base(e.Path))] + "renamed"
			if _, err := os.Lstat(to); err == nil {
				continue
			}
			require.NoError(t, os.Rename(name, to))
		case e.Mode.IsRegular() && rnd.IntN(2) == 0:
			require.NoError(t, os.Chmod(name, 0o600))
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte("!"), rnd.Int64N(e.Size+1))
			require.NoError(t, errors.Join(err, f.Close()))
		case e.Mode.IsRegular():
			require.NoError(t, os.Remove(name))
		case e.Mode.IsDir():
			require.NoError(t, os.Chmod(name, 0o711))
			require.NoError(t, os.MkdirAll(name+"/a new one", 0o755)) // it may be the same directory again
		default:
			require.NoError(t, errors.Join(os.Remove(name), os.Symlink(e.Link+"x", name)))
		}
	}
	after := entriesIn(factsOf(t, dir))
	want := changesBetween(before, after)
	require.NotEmpty(t, want)
	report, err := snapshot.Scan(t.Context(), dir, &snapshot.Options{Links: snapshot.LinksVerbatim})
	require.NoError(t, err)
	assert.Equal(t, want, changesOf(t, m, report.Manifest), "Diff")
	assert.Equal(t, after, entriesOf(t, report.Manifest), "Scan")
	mismatch, ok := errors.AsType[*snapshot.MismatchError](snapshot.Verify(t.Context(), dir, m, nil))
	if assert.True(t, ok, "Verify of a changed tree") {
		assert.Equal(t, want[0], snapshot.Change{Path: mismatch.Path, Old: mismatch.Recorded, New: mismatch.Received})
	}
}

// leader finds out where links lead by walking over the file system, one component at a time, with none of the engine's code.
type leader struct {
	root    string // without links on its path
	present map[string]bool
}

// Why a link is left out.
const (
	leadsNowhere = "dangling"
	leadsOutside = "escapes"
)

// follow takes the steps of text from dir, both paths of the system without links, as the kernel does, but inside sees only
// what is present. kept: no step of text itself leaves the root.
func (l *leader) follow(t *testing.T, dir, text string, expansions *int) (end string, kept bool, why string) {
	at := dir
	kept = true
	if strings.HasPrefix(text, "/") {
		at, kept = "/", false
	}
	for step := range strings.SplitSeq(text, "/") {
		fi, err := os.Lstat(at)
		require.NoError(t, err)
		if !fi.IsDir() {
			return "", false, leadsNowhere
		}
		inside := l.inside(at)
		switch step {
		case "", ".":
			continue
		case "..":
			kept = kept && at != l.root
			at = filepath.Dir(at)
		default:
			next := filepath.Join(at, step)
			fi, err := os.Lstat(next)
			switch {
			case inside && (err != nil || !l.present[l.rel(next)]):
				return "", false, leadsNowhere
			case inside && fi.Mode().Type() == fs.ModeSymlink:
				if *expansions++; *expansions > 40 {
					return "", false, leadsNowhere
				}
				text, err := os.Readlink(next)
				require.NoError(t, err)
				if next, _, why = l.follow(t, at, text, expansions); why != "" {
					return "", false, why
				}
			}
			at = next
		}
		if !l.inside(at) && !strings.HasPrefix(l.root, strings.TrimSuffix(at, "/")+"/") {
			return "", false, leadsOutside
		}
	}
	if !l.inside(at) {
		return "", false, leadsOutside
	}
	return at, kept, ""
}

func (l *leader) inside(p string) bool { return p == l.root || strings.HasPrefix(p, l.root+"/") }

func (l *leader) rel(p string) string {
	if p == l.root {
		return "."
	}
	return p[len(l.root)+1:]
}

// expectedCopy works out what a copy of a still tree holds and what is left out of it.
func expectedCopy(t *testing.T, root string, facts []fact, patterns []string) (entries []snapshot.Entry, left []snapshot.Skipped) {
	t.Helper()
	l := &leader{root: root, present: map[string]bool{}}
	why := map[string]snapshot.Skipped{}
	// The other way round, so that a directory comes after all beneath it.
	held := map[string]bool{}
	for _, f := range slices.Backward(facts) {
		rule, excluded := "", false
		if f.Path != "." {
			rule, excluded = ruledBy(patterns, f.Path)
		}
		switch {
		case excluded && !held[f.Path]:
			why[f.Path] = snapshot.Skipped{Path: f.Path, Because: "excluded", Rule: rule}
		case isSpecial(f):
			why[f.Path] = snapshot.Skipped{Path: f.Path, Because: "special"}
		default:
			held[path.Dir(f.Path)] = true
		}
	}
	gone := func(p string) bool {
		for ; p != "."; p = path.Dir(p) {
			if _, is := why[p]; is {
				return true
			}
		}
		return false
	}
	for _, f := range facts {
		l.present[f.Path] = !gone(f.Path)
	}
	for _, f := range facts {
		if s, is := why[f.Path]; is && (f.Path == "." || !gone(path.Dir(f.Path))) {
			left = append(left, s)
		}
		if !l.present[f.Path] {
			continue
		}
		e := f.Entry
		switch e.Mode.Type() {
		case fs.ModeDir:
			e.Mode = fs.ModeDir | 0o500
		case fs.ModeSymlink:
			expansions := 1
			dir := filepath.Join(root, path.Dir(e.Path))
			end, kept, because := l.follow(t, dir, e.Link, &expansions)
			if because != "" {
				left = append(left, snapshot.Skipped{Path: e.Path, Because: because, Rule: e.Link})
				continue
			}
			assertSameFile(t, filepath.Join(root, e.Path), end)
			if !kept {
				var err error
				e.Link, err = filepath.Rel(dir, end)
				require.NoError(t, err)
			}
		default:
			if e.Mode&0o111 != 0 {
				e.Mode = 0o500
			} else {
				e.Mode = 0o400
			}
		}
		entries = append(entries, e)
	}
	return entries, left
}

// assertSameFile: the kernel is of the same opinion.
func assertSameFile(t *testing.T, a, b string) {
	t.Helper()
	ai, err := os.Stat(a)
	require.NoError(t, err)
	bi, err := os.Stat(b)
	require.NoError(t, err)
	require.True(t, os.SameFile(ai, bi), "%q leads to %q", a, b)
}

// TestPropertyCopyEqualsModel: modes sealed, links kept, written anew or left out, special files and what is excluded left out.
func TestPropertyCopyEqualsModel(t *testing.T) {
	t.Parallel()
	eachSeed(t, stressTries(t, 4, 50, 1000), func(t *testing.T, rnd *rand.Rand) {
		dir := propertyDir(t)
		src := filepath.Join(dir, "src")
		g := grow(t, rnd, src, false, true)
		facts := factsOf(t, src)
		opts := snapshot.Options{Links: snapshot.LinksInsideOrSkip, SkipSpecial: true, Workers: 1 + rnd.IntN(4)}
		var patterns []string
		if rnd.IntN(2) == 0 {
			patterns = growthPatterns(rnd, g)
			opts.Exclude = filterOf(t, patterns...)
		}
		want, left := expectedCopy(t, src, facts, patterns)
		report, err := copyTree(t, filepath.Join(dir, "dst"), src, &opts)
		require.NoError(t, err)
		assert.Equal(t, want, entriesOf(t, report.Manifest), "patterns %q", patterns)
		assert.Equal(t, left, report.Skipped, "patterns %q", patterns)
		copied := factsOf(t, filepath.Join(dir, "dst"))
		assert.Equal(t, want, entriesIn(copied))
		assertCounts(t, report, copied)
		assert.Equal(t, facts, factsOf(t, src), "the source")

		opts.Links = snapshot.LinksInside
		report, err = copyTree(t, filepath.Join(dir, "strict"), src, &opts)
		if slices.ContainsFunc(left, func(s snapshot.Skipped) bool { return s.Because == leadsNowhere || s.Because == leadsOutside }) {
			assert.ErrorIs(t, err, snapshot.ErrEscapes)
		} else if assert.NoError(t, err) {
			assert.Equal(t, want, entriesOf(t, report.Manifest))
		}
		// A tree whose links all lead to something may be copied strictly.
		for _, s := range left {
			if s.Because == leadsNowhere || s.Because == leadsOutside {
				require.NoError(t, os.Chmod(filepath.Dir(g.at(s.Path)), 0o700))
				require.NoError(t, os.Remove(g.at(s.Path)))
			}
		}
		want, left = expectedCopy(t, src, factsOf(t, src), patterns)
		report, err = copyTree(t, filepath.Join(dir, "cleaned"), src, &opts)
		require.NoError(t, err)
		assert.Equal(t, want, entriesOf(t, report.Manifest))
		assert.Equal(t, left, report.Skipped)
	})
}

// growthPatterns exclude some of a tree, and keep some of that.
func growthPatterns(rnd *rand.Rand, g *growth) []string {
	var patterns []string
	all := slices.Sorted(maps.Keys(g.names))
	for range 1 + rnd.IntN(5) {
		p := quoteGlob(pick(rnd, all))
		if parent, _, ok := strings.Cut(p, "/"); ok && rnd.IntN(2) == 0 {
			p = parent + "/" + pick(rnd, []string{"*", "**", "**/[a-c]*", "*/*"})
		}
		if rnd.IntN(3) == 0 {
			p = pick(rnd, []string{"*", "**/d*", "d/**", "wide/?-*", "**/*\xff*", "[^w]*"})
		}
		patterns = append(patterns, pick(rnd, []string{"", "", "!"})+p)
	}
	return slices.DeleteFunc(patterns, func(p string) bool {
		_, err := snapshot.NewFilter(p)
		return err != nil
	})
}

// TestPropertyEveryByte: names of one byte and of two, whatever they are.
func TestPropertyEveryByte(t *testing.T) {
	t.Parallel()
	dir := propertyDir(t)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	require.NoError(t, os.Mkdir(src, 0o755))
	for c := 1; c < 256; c++ {
		name := []byte{byte(c)}
		if c == '/' {
			continue
		}
		if c != '.' {
			require.NoError(t, os.WriteFile(filepath.Join(src, string(name)), name, 0o400))
		}
		require.NoError(t, os.Symlink("./"+string(name)+"/../"+string(name), filepath.Join(src, "x"+string(name))))
	}
	opts := &snapshot.Options{Links: snapshot.LinksVerbatim, PreserveMode: true}
	report, err := copyTree(t, dst, src, opts)
	require.NoError(t, err)
	assert.Equal(t, factsOf(t, src), factsOf(t, dst))
	assert.Equal(t, entriesIn(factsOf(t, src)), entriesOf(t, report.Manifest))
	assertReadBack(t, report.Manifest)
	var sums bytes.Buffer
	require.NoError(t, report.Manifest.WriteSums(&sums))
	check := exec.CommandContext(t.Context(), lookTool(t, "sha256sum"), "-c", "--quiet", "--strict")
	check.Dir, check.Stdin = dst, &sums
	said, err := check.CombinedOutput()
	assert.NoError(t, err, "sha256sum: %s", said)
	assert.False(t, utf8.ValidString(textOfNames(report.Manifest)))
}

func textOfNames(m *snapshot.Manifest) string {
	var b strings.Builder
	for e := range m.All() {
		b.WriteString(e.Path)
	}
	return b.String()
}
