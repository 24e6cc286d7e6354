// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"io/fs"
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

// TestNamesThatEndInASlash: with a slash or a dot behind it the kernel follows a link that it was told not to follow.
func TestNamesThatEndInASlash(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "out/secret=secret", "src/evil => ../out", "src/f => ../out/secret", "src/d/x=x")
	root, err := os.OpenRoot(dir + "/src")
	require.NoError(t, err)
	defer root.Close()
	for _, name := range []string{
		"evil/", "evil/.", "evil//", "evil/secret", "evil/./secret", "evil//secret", "evil/../out/secret", "f", "f/", "f/.", "d/../evil/secret",
		"../out/secret", "d/../../out/secret", "/out/secret", "d//x", "d/./x", "d/x/", "d/x/.", "", "/", ".", "..", "\x00", "d/\x00", "evil\x00",
	} {
		f, err := snapshot.OpenIn(root, name, balanced(t, nil, snapshot.Seam{}))
		assert.True(t, errors.Is(err, snapshot.ErrNotRegular) || errors.Is(err, fs.ErrInvalid), "OpenIn(%q) = %v", name, err)
		assert.Nil(t, f, "OpenIn(%q)", name)
	}
	for _, name := range []string{"f", "f/", "f/.", "f//", "evil", "evil/", "evil/.", "evil/secret/", "evil/secret/."} {
		b, _, err := snapshot.ReadFile(t.Context(), dir+"/src/"+name, balanced(t, nil, snapshot.Seam{}))
		assert.Nil(t, b, "ReadFile(%q)", name)
		assert.True(t, errors.Is(err, snapshot.ErrNotRegular) || errors.Is(err, syscall.ENOTDIR), "ReadFile(%q) = %v", name, err)
		_, err = snapshot.CopyFile(t.Context(), dir+"/dst", dir+"/src/"+name, balanced(t, nil, snapshot.Seam{}))
		assert.Error(t, err, "CopyFile(%q)", name)
	}
	b, _, err := snapshot.ReadFile(t.Context(), dir+"/src/evil/secret", nil)
	require.NoError(t, err, "links in the directory of a path are the caller's")
	assert.Equal(t, "secret", string(b))
	fstest.Nothing(t, dir, "out", "src")
}

// TestOnlyComponentsReachTheSystem: below the paths that a caller gives, nothing is looked up but one name in a held directory.
func TestOnlyComponentsReachTheSystem(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "d/e/f=x", "d/e/g 0755=y", "l => d/e/f", "d/up => ../l", "abs => /etc", "gone => d/e/../none", "p|")
	opts := &snapshot.Options{Links: snapshot.LinksInsideOrSkip, SkipSpecial: true, Durable: true}
	for _, lacks := range []snapshot.Fallback{0, snapshot.NoClone | snapshot.NoLease | snapshot.NoNameless | snapshot.NoRenameNoReplace} {
		seam := snapshot.Seam{Lacks: lacks, At: func(call, name string) error {
			switch call {
			case "OpenRoot", "PinPath", "StatPath": // what the caller gave, and what is above the destination
				assert.True(t, strings.HasPrefix(s.src+"/d/e/", name) || strings.HasPrefix(s.dst, name), "%s %q", call, name)
			case "ProcDir", "CreateNameless": // always the same
			default:
				assert.NotContains(t, name, "/", call)
				assert.NotContains(t, []string{".", ".."}, name, call)
			}
			return nil
		}}
		_, err := copyTreeWith(t.Context(), t, s.dst, s.src, opts, seam)
		require.NoError(t, err)
		_, err = snapshot.CopyFile(t.Context(), s.dst+"f", s.src+"/d/e/f", balanced(t, opts, seam))
		require.NoError(t, err)
		require.NoError(t, removeCopy(s.dst))
		require.NoError(t, os.Remove(s.dst+"f"))
		_, err = snapshot.Scan(t.Context(), s.src, balanced(t, opts, seam))
		require.NoError(t, err)
	}
}

// TestLinkErrorsSayWhere: the link, what its text is, and what it had to stay in; of a name that is a link, where it points.
func TestLinkErrorsSayWhere(t *testing.T) {
	t.Parallel()
	for text, why := range map[string]string{
		"/etc/passwd": "ends outside ", "../../out": "ends outside ", "nowhere/f": "leads to nothing in the copy", "l": "leads to nothing in the copy",
	} {
		s := newSite(t, "", "d/l => "+text)
		for what, f := range map[string]verb{"CopyDir": copyOf, "Scan": scanOf} {
			err := f(t.Context(), s, nil)
			require.ErrorIs(t, err, snapshot.ErrEscapes, what)
			assert.ErrorContains(t, err, s.src+"/d/l: ", what)
			assert.ErrorContains(t, err, "its text "+text+" "+why, what)
			if strings.HasPrefix(why, "ends") {
				assert.ErrorContains(t, err, why+s.src, what)
			}
		}
	}
	s := newSite(t, "", "f => a/strange\n target")
	for what, f := range map[string]verb{
		"CopyFile": copyFileOf, "ReadFile": readFileOf, "CopyTo": copyToOf,
		"OpenIn": func(_ context.Context, s site, o *snapshot.Options) error {
			root, err := os.OpenRoot(s.src)
			require.NoError(t, err)
			defer root.Close()
			return errorOf(snapshot.OpenIn(root, "f", o))
		},
	} {
		err := f(t.Context(), s, balanced(t, nil, snapshot.Seam{}))
		require.ErrorIs(t, err, snapshot.ErrNotRegular, what)
		assert.ErrorContains(t, err, s.src+"/f: ", what)
		assert.ErrorContains(t, err, "symbolic link", what)
		assert.ErrorContains(t, err, `a/strange\n target`, "%s: the text says where it points", what)
	}
}

// TestErrorsSayWhatToDo: where an option is the way out, the text has its name.
func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for line, option := range map[string]string{"d/p|": "SkipSpecial", "d/s@": "SkipSpecial", "d/l => nowhere": "LinksInsideOrSkip", "d/l => /etc": "LinksInsideOrSkip"} {
		s := newSite(t, "", line)
		for what, f := range map[string]verb{"CopyDir": copyOf, "Scan": scanOf} {
			err := f(t.Context(), s, nil)
			require.Error(t, err, "%s, %s", line, what)
			assert.ErrorContains(t, err, option, "%s, %s", line, what)
		}
	}
	s := newSite(t, "", "d/f 04755=x")
	err := copyOf(t.Context(), s, &snapshot.Options{PreserveMode: true})
	require.ErrorIs(t, err, snapshot.ErrSpecialMode)
	assert.ErrorContains(t, err, s.src+"/d/f: ")
	assert.ErrorContains(t, err, "4755", "the mode as chmod takes it")
}

// TestPlacesAreNamed: who copies a tree into itself reads in one line which two places these are.
func TestPlacesAreNamed(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "from/d/f=x", "link => from/d")
	for dst, src := range map[string]string{"/from/dst": "/from", "/from/d/dst": "/from/.", "/link/dst": "/from"} {
		err := errorOf(snapshot.CopyDir(t.Context(), dir+dst, dir+src, nil))
		require.ErrorIs(t, err, snapshot.ErrEscapes)
		assert.EqualError(t, err, "create "+dir+dst+": leads outside the root: the destination lies inside the source "+dir+src)
	}
}

// TestNamesThatFold: where the destination takes two names for one, the second is an error that names both, and never taken
// for a name that is there already. A second name of the file in the copy stands for folding, which few file systems do here.
func TestNamesThatFold(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lines         []string
		call          string
		first, second string
	}{
		"files":                 {[]string{"d/Logo.png=1", "d/logo.png=2"}, "Create", "Logo.png", "logo.png"},
		"directories":           {[]string{"d/Lib/a=1", "d/lib/a=2"}, "Mkdir", "", "lib"},
		"links":                 {[]string{"d/K => .", "d/k => ."}, "Symlink", "K", "k"},
		"a file and a link":     {[]string{"d/K=1", "d/k => ."}, "Symlink", "K", "k"},
		"two spellings of an é": {[]string{"d/e\u0301=1", "d/é=2"}, "Create", "e\u0301", "é"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "", tt.lines...)
			_, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 1}, snapshot.Seam{
				Lacks: snapshot.NoNameless,
				At: func(call, at string) error {
					if call != tt.call || at != tt.second {
						return nil
					}
					if tt.first == "" {
						return syscall.EEXIST
					}
					copies, err := filepath.Glob(filepath.Dir(s.dst) + "/.holdstill-*/tree/d")
					if assert.NoError(t, err) && assert.Len(t, copies, 1) {
						assert.NoError(t, os.Link(copies[0]+"/"+tt.first, copies[0]+"/"+tt.second))
					}
					return nil
				},
			})
			require.Error(t, err)
			assert.NotErrorIs(t, err, fs.ErrExist, "the destination was not there")
			assert.NotErrorIs(t, err, snapshot.ErrChanged)
			assert.False(t, snapshot.Retryable(err))
			assert.ErrorContains(t, err, s.src+"/d/"+tt.second+": ")
			assert.ErrorContains(t, err, "folds")
			assert.ErrorContains(t, err, tt.first, "the other name")
		})
	}
}

// TestEverythingIsAccountedFor: whatever lies in a source is copied, or is in the list of what was left out with a reason.
func TestEverythingIsAccountedFor(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "a=1", "d/b=2", "d/p|", "d/s@", "l => a", "d/gone => none", "d/esc => /etc", "node_modules/x/y=3", "logs/1.log=4", "logs/keep=5", "big=@10KiB", "empty/")
	opts := &snapshot.Options{
		Links: snapshot.LinksInsideOrSkip, SkipSpecial: true, Exclude: filterOf(t, "node_modules", "**/*.log"),
		Skip: func(_ string, st snapshot.State) bool { return st.Size == 10<<10 },
	}
	for what, f := range map[string]func() (*snapshot.Report, error){
		"CopyDir": func() (*snapshot.Report, error) { return copyTree(t, s.dst, s.src, opts) },
		"Scan": func() (*snapshot.Report, error) {
			return snapshot.Scan(t.Context(), s.src, balanced(t, opts, snapshot.Seam{}))
		},
	} {
		report, err := f()
		require.NoError(t, err, what)
		assert.Equal(t, int64(report.Manifest.Len()), report.Files+report.Dirs+report.Links, what)
		reasons := map[string]string{}
		for _, left := range report.Skipped {
			assert.NotEmpty(t, left.Because, "%s, %s", what, left.Path)
			reasons[left.Path] = left.Because
		}
		there := map[string]bool{}
		for _, path := range pathsOf(t, report) {
			there[path] = true
		}
		for path := range fstest.Read(t, s.src) {
			out := ""
			for at := path; at != "." && out == ""; at = filepath.Dir(at) {
				out = reasons[at]
			}
			assert.NotEqual(t, there[path], out != "", "%s: %s is either in the manifest or left out (%s)", what, path, out)
			delete(there, path)
		}
		assert.Empty(t, there, "%s: what was not in the source", what)
		assert.Len(t, reasons, 7, what)
	}
}
