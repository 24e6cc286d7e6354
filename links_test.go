//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// targets asks the kernel where each link of a tree leads: to an entry of the tree, "outside" or "nowhere".
func targets(t testing.TB, root string) map[string]string {
	t.Helper()
	type inode struct{ dev, ino uint64 }
	of := func(fi fs.FileInfo) inode {
		st := fi.Sys().(*syscall.Stat_t)
		return inode{uint64(st.Dev), st.Ino}
	}
	entries, links := map[inode]string{}, []string{}
	require.NoError(t, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		path, err := filepath.Rel(root, name)
		require.NoError(t, err)
		if d.Type() == fs.ModeSymlink {
			links = append(links, path)
			return nil
		}
		fi, err := d.Info()
		require.NoError(t, err)
		entries[of(fi)] = path
		return nil
	}))
	to := map[string]string{}
	for _, link := range links {
		fi, err := os.Stat(filepath.Join(root, link))
		switch {
		case err != nil:
			to[link] = "nowhere"
		case entries[of(fi)] == "":
			to[link] = "outside"
		default:
			to[link] = entries[of(fi)]
		}
	}
	return to
}

func linkTexts(t testing.TB, r *snapshot.Report) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, e := range entriesOf(t, r.Manifest) {
		if e.Link != "" {
			texts[e.Path] = e.Link
		}
	}
	return texts
}

// expansions makes links c1 to cN, each to the one before, and c1 to d/f: the last one is N expansions away from it.
func expansions(n int) []string {
	lines := []string{"c1 => d/f"}
	for i := 2; i <= n; i++ {
		lines = append(lines, fmt.Sprintf("c%d => c%d", i, i-1))
	}
	return lines
}

func TestLinks(t *testing.T) {
	t.Parallel()
	const (
		dangling = "dangling"
		escapes  = "escapes"
	)
	for _, tt := range []struct {
		name  string
		lines []string // REAL and GIVEN stand for the root's paths
		link  string
		want  string // its text in the copy, or why there is none
	}{
		{"to a file", []string{"l => d/f"}, "l", "d/f"},
		{"to a directory", []string{"l => d"}, "l", "d"},
		{"slash behind a directory", []string{"l => d/"}, "l", "d/"},
		{"slashes and dots", []string{"l => .//d/./f"}, "l", ".//d/./f"},
		{"up and down", []string{"d/l => ../d/sub/../f"}, "d/l", "../d/sub/../f"},
		{"to the directory itself", []string{"d/l => ."}, "d/l", "."},
		{"to the root", []string{"d/l => .."}, "d/l", ".."},
		{"at the root to the root", []string{"l => ."}, "l", "."},
		{"through a link", []string{"k => d", "l => k/f"}, "l", "k/f"},
		{"through links of links", []string{"j => k", "k => d/sub", "l => j/g"}, "l", "j/g"},
		{"back from a link", []string{"k => d/sub", "l => k/../f"}, "l", "k/../f"},
		{"to a link", []string{"k => d/f", "l => k"}, "l", "k"},
		{"slash behind a link to a directory", []string{"k => d", "l => k/"}, "l", "k/"},
		{"absolute, as given", []string{"l => GIVEN/d/f"}, "l", "d/f"},
		{"absolute, resolved", []string{"d/sub/l => REAL/d/f"}, "d/sub/l", "../f"},
		{"absolute, over links", []string{"k => GIVEN/d/sub", "l => REAL/k/../f"}, "l", "d/f"},
		{"absolute to the root as given", []string{"l => GIVEN"}, "l", "."},
		{"absolute to the root", []string{"d/l => REAL/"}, "d/l", ".."},
		{"absolute, up and down", []string{"l => REAL/d/../l2", "l2 => d"}, "l", "d"},
		{"absolute with dots", []string{"l => REAL/../src/./d//f"}, "l", "d/f"},
		{"out and in again", []string{"l => ../src/d/f"}, "l", "d/f"},
		{"out and in again from below", []string{"d/l => ../../src/d/sub"}, "d/l", "sub"},
		{"through a link written anew", []string{"k => REAL/d", "l => k/f"}, "l", "k/f"},
		{"through a link written anew and back", []string{"k => REAL/d/sub", "l => k/../f"}, "l", "k/../f"},
		{"ConfigMap of Kubernetes", []string{"..2024_01/conf=x", "..data => ..2024_01", "conf => ..data/conf"}, "conf", "..data/conf"},
		{"names that begin with dots", []string{"...=x", "l => ..."}, "l", "..."},
		{"40 expansions", expansions(40), "c40", "c39"},
		{"bytes that are no UTF-8", []string{`"\xff"=x`, `l => "\xff"`}, "l", "\xff"},
		{"the longest text", []string{"l => " + strings.Repeat("./", 2046) + "d/f"}, "l", strings.Repeat("./", 2046) + "d/f"},

		{"41 expansions", expansions(41), "c41", dangling},
		{"to nothing", []string{"l => none"}, "l", dangling},
		{"through nothing", []string{"l => none/../d/f"}, "l", dangling},
		{"absolute to nothing", []string{"l => REAL/none"}, "l", dangling},
		{"file as a directory", []string{"l => d/f/x"}, "l", dangling},
		{"file as a directory and back", []string{"l => d/f/../sub"}, "l", dangling},
		{"slash behind a file", []string{"l => d/f/"}, "l", dangling},
		{"dot behind a file", []string{"l => d/f/."}, "l", dangling},
		{"slash behind a link to a file", []string{"k => d/f", "l => k/"}, "l", dangling},
		{"slash behind a file, absolute", []string{"l => REAL/d/f/"}, "l", dangling},
		{"to itself", []string{"l => l"}, "l", dangling},
		{"through itself", []string{"l => l/x"}, "l", dangling},
		{"loop of two", []string{"k => l", "l => k"}, "l", dangling},
		{"loop over the root", []string{"l => REAL/l"}, "l", dangling},
		{"loop of a directory", []string{"d/l => ../d/l/x"}, "d/l", dangling},
		{"up from the root", []string{"l => .."}, "l", escapes},
		{"out", []string{"l => ../out/secret"}, "l", escapes},
		{"far out", []string{"d/l => ../../../../../../../../../../../../etc/passwd"}, "d/l", escapes},
		{"absolute", []string{"l => /etc/passwd"}, "l", escapes},
		{"to /", []string{"l => /"}, "l", escapes},
		{"name like the root's", []string{"l => REALx/f"}, "l", escapes},
		{"sibling like the root", []string{"l => ../srcx/f"}, "l", escapes},
		{"out over a link", []string{"k => d/sub", "l => k/../../../out"}, "l", escapes},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, err := filepath.EvalSymlinks(fstest.TempDir(t))
			require.NoError(t, err)
			src, given := filepath.Join(dir, "src"), filepath.Join(dir, "given")
			fstest.Make(t, dir, "src/d/f=content", "src/d/sub/g=deep", "out/secret=s", "srcx/f=x", "given => src")
			for _, line := range tt.lines {
				fstest.Make(t, src, strings.NewReplacer("REAL", src, "GIVEN", given).Replace(line))
			}
			before := fstest.Read(t, src)
			stays := tt.want != dangling && tt.want != escapes
			led := targets(t, src)
			if stays {
				require.NotContains(t, []string{"outside", "nowhere"}, led[tt.link], "the kernel's view of the row")
			} else {
				require.Equal(t, map[string]string{dangling: "nowhere", escapes: "outside"}[tt.want], led[tt.link], "the kernel's view of the row")
			}

			inside, err := copyTree(t, filepath.Join(dir, "inside"), given, nil)
			if stays {
				require.NoError(t, err)
				assert.Equal(t, tt.want, linkTexts(t, inside)[tt.link])
				assert.Equal(t, led, targets(t, filepath.Join(dir, "inside")))
				assert.Equal(t, walkByHand(t, filepath.Join(dir, "inside")), entriesOf(t, inside.Manifest))
			} else {
				require.ErrorIs(t, err, snapshot.ErrEscapes)
				assert.False(t, snapshot.Retryable(err))
				assert.ErrorContains(t, err, given+"/")
			}

			skipped, err := copyTree(t, filepath.Join(dir, "skipped"), given, &snapshot.Options{Links: snapshot.LinksInsideOrSkip})
			require.NoError(t, err)
			text, has := linkTexts(t, skipped)[tt.link]
			assert.Equal(t, stays, has)
			if stays {
				assert.Equal(t, tt.want, text)
				assert.Empty(t, skipped.Skipped)
			} else {
				var because []string
				for _, s := range skipped.Skipped {
					if s.Path == tt.link {
						because = append(because, s.Because, s.Rule)
					}
				}
				original, err := os.Readlink(filepath.Join(src, tt.link))
				require.NoError(t, err)
				assert.Equal(t, []string{tt.want, original}, because)
			}
			for link, to := range targets(t, filepath.Join(dir, "skipped")) {
				assert.Equal(t, led[link], to, "where %q leads in the copy", link)
			}

			verbatim, err := copyTree(t, filepath.Join(dir, "verbatim"), given, &snapshot.Options{Links: snapshot.LinksVerbatim})
			require.NoError(t, err)
			fstest.Equal(t, src, filepath.Join(dir, "verbatim"))
			assert.Empty(t, verbatim.Skipped)

			_, err = copyTree(t, filepath.Join(dir, "rejected"), given, &snapshot.Options{Links: snapshot.LinksReject})
			assert.ErrorIs(t, err, snapshot.ErrEscapes)

			// A scan records what is there; what it refuses is the same.
			scanned, err := snapshot.Scan(t.Context(), given, balanced(t, nil, snapshot.Seam{}))
			if stays {
				require.NoError(t, err)
				assert.Equal(t, walkByHand(t, src), entriesOf(t, scanned.Manifest))
			} else {
				assert.ErrorIs(t, err, snapshot.ErrEscapes)
			}
			assert.Equal(t, before, fstest.Read(t, src))
		})
	}
}

// TestLinksToWhatIsLeftOut: a link dangles if what it leads to is not in the copy.
func TestLinksToWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "f=x", "logs/a.log=x", "p|", "toLog => logs/a.log", "toLogs => logs", "toPipe => p", "through => logs/../f")
	opts := &snapshot.Options{Exclude: filterOf(t, "logs"), SkipSpecial: true}
	_, err := copyTree(t, filepath.Join(dir, "dst"), src, opts)
	assert.ErrorIs(t, err, snapshot.ErrEscapes)
	opts.Links = snapshot.LinksInsideOrSkip
	report, err := copyTree(t, filepath.Join(dir, "dst"), src, opts)
	require.NoError(t, err)
	assert.Equal(t, []string{".", "f"}, pathsOf(t, report))
	assert.Equal(t, []snapshot.Skipped{
		{"logs", "excluded", "logs"},
		{"p", "special", ""},
		{"through", "dangling", "logs/../f"},
		{"toLog", "dangling", "logs/a.log"},
		{"toLogs", "dangling", "logs"},
		{"toPipe", "dangling", "p"},
	}, report.Skipped)
}

// TestLinkTextTooLong: a text that has to be written anew may have no room.
func TestLinkTextTooLong(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	// 40 levels are more than 4095 bytes; the links on the way make it short in the source.
	lines, at := []string{}, ""
	for i := range 4 {
		at += strings.Repeat(strings.Repeat("x", 200)+"/", 10)
		lines = append(lines, fmt.Sprintf("k%d => %s", i+1, at[i*2010:]))
		if i > 0 {
			lines[i] = fmt.Sprintf("k%d => k%d/%s", i+1, i, at[i*2010:])
		}
	}
	fstest.Make(t, src, append(lines, at+"f=x", "l => "+src+"/k4/f")...)
	_, err := copyTree(t, filepath.Join(dir, "dst"), src, nil)
	assert.ErrorIs(t, err, syscall.ENAMETOOLONG)
	assert.ErrorContains(t, err, src+"/l")
	_, err = copyTree(t, filepath.Join(dir, "dst"), src, &snapshot.Options{Links: snapshot.LinksVerbatim})
	assert.NoError(t, err)
}

// TestRandomLinks compares the resolver with the kernel. What a text does that means the same anywhere, a verbatim copy under
// another name shows.
func TestRandomLinks(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	kept, left, anew := 0, 0, 0
	for range 25 {
		dir, err := filepath.EvalSymlinks(fstest.TempDir(t))
		require.NoError(t, err)
		src := filepath.Join(dir, "src")
		fstest.Make(t, dir, "src/a/f=1", "src/a/b/f=2", "src/c/f=3", "out/f=secret")
		steps := []string{"a", "b", "c", "f", "..", "..", ".", "", "k", "l", "m", "src", "out"}
		for _, name := range []string{"k", "l", "m", "a/k", "a/l", "a/b/m", "c/k", "c/l"} {
			var text []string
			if rnd.IntN(5) == 0 {
				text = append(text, src)
			}
			for range 1 + rnd.IntN(4) {
				text = append(text, steps[rnd.IntN(len(steps))])
			}
			target := strings.Join(text, "/")
			if target == "" {
				target = "."
			}
			require.NoError(t, os.Symlink(target, filepath.Join(src, name)))
		}
		_, err = copyTree(t, filepath.Join(dir, "verbatim"), src, &snapshot.Options{Links: snapshot.LinksVerbatim})
		require.NoError(t, err)
		report, err := copyTree(t, filepath.Join(dir, "dst"), src, &snapshot.Options{Links: snapshot.LinksInsideOrSkip})
		require.NoError(t, err)
		in, out, same := targets(t, src), targets(t, filepath.Join(dir, "dst")), targets(t, filepath.Join(dir, "verbatim"))
		texts := linkTexts(t, report)
		for link, to := range in {
			original, err := os.Readlink(filepath.Join(src, link))
			require.NoError(t, err)
			text, has := texts[link]
			here := same[link] != "nowhere" && same[link] != "outside"
			switch {
			case has:
				assert.Equal(t, to, out[link], "%s => %s", link, original)
				assert.NotContains(t, []string{"nowhere", "outside"}, to, "%s => %s", link, original)
			case here:
				assert.Fail(t, "left out", "%s => %s", link, original)
			}
			switch {
			case !has:
				left++
			case text == original:
				kept++
			default:
				anew++
			}
		}
	}
	t.Logf("%d kept, %d written anew, %d left out", kept, anew, left)
	assert.True(t, min(kept, left, anew) > 0)
}
