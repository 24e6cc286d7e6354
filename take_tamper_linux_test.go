// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// tampered is the tree of a snapshot that somebody who may, this user, changes after it was sealed.
var tampered = []string{"src/a=alpha", "src/d/b=bravo", "src/d/e/c=charlie", "src/run 0755=#!", "src/l => a", "src/to => d/e", "lib/x=xray"}

// tampering is one change of a snapshot in its directory.
type tampering struct {
	name   string
	do     func(dir string) error
	names  string // what the error of OpenSnapshot, or of Verify, must name
	want   error
	hidden bool // OpenSnapshot, which reads no contents, may not see it
	root   bool
	kept   bool // a snapshot that is open is not concerned
	stays  bool // RemoveSnapshot must refuse it
}

// through opens the directories of a path to their owner while f is at work.
func through(dir, path string, f func(name string) error) error {
	var opened []string
	for at := filepath.Dir(filepath.Join(dir, path)); len(at) >= len(dir); at = filepath.Dir(at) {
		opened = append(opened, at)
	}
	var err error
	for i := len(opened) - 1; i >= 0; i-- {
		err = errors.Join(err, os.Chmod(opened[i], 0o700))
	}
	err = errors.Join(err, f(filepath.Join(dir, path)))
	for _, at := range opened {
		err = errors.Join(err, os.Chmod(at, 0o500))
	}
	return err
}

// at returns a tampering with one path of a snapshot.
func at(path string, f func(name string) error) func(dir string) error {
	return func(dir string) error { return through(dir, path, f) }
}

func overwrite(b string) func(name string) error {
	return func(name string) error {
		fi, err := os.Lstat(name)
		if err != nil {
			return err
		}
		err = errors.Join(os.Chmod(name, 0o600), os.WriteFile(name, []byte(b), 0o600), os.Chmod(name, fi.Mode().Perm()))
		return errors.Join(err, os.Chtimes(name, fi.ModTime(), fi.ModTime()))
	}
}

func relink(text string) func(name string) error {
	return func(name string) error { return errors.Join(os.Remove(name), os.Symlink(text, name)) }
}

func chmod(mode fs.FileMode) func(name string) error {
	return func(name string) error { return os.Chmod(name, mode) }
}

func chown(uid int) func(name string) error {
	return func(name string) error { return os.Lchown(name, uid, -1) }
}

// anotherDigest changes a digest in the manifest, which stays one.
func anotherDigest(name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	digit := bytes.Index(b, []byte("sha256digest=")) + len("sha256digest=")
	b[digit] = "10"[min(b[digit]-'0', 1)]
	return overwrite(string(b))(name)
}

// consistent changes a byte, and the manifest with it.
func consistent(dir string) error {
	err := at("tree/src/d/b", overwrite("bravO"))(dir)
	report, e := snapshot.Scan(context.Background(), dir+"/tree", &snapshot.Options{Links: snapshot.LinksVerbatim})
	if err = errors.Join(err, e); err != nil {
		return err
	}
	var text strings.Builder
	_, err = report.Manifest.WriteTo(&text)
	return errors.Join(err, at("manifest.mtree", overwrite(text.String()))(dir))
}

// moveTree puts the tree somewhere else.
func moveTree(tree string) error {
	away := filepath.Dir(tree) + "-tree"
	return errors.Join(os.Chmod(tree, 0o700), os.Rename(tree, away), os.Chmod(away, 0o500))
}

var tamperings = []tampering{
	{name: "a byte", do: at("tree/src/d/b", overwrite("bravO")), names: "src/d/b: ", want: snapshot.ErrMismatch, hidden: true},
	{name: "a byte more", do: at("tree/src/d/b", overwrite("bravo!")), names: "src/d/b: ", want: snapshot.ErrMismatch, stays: true},
	{name: "no byte", do: at("tree/lib/x", overwrite("")), names: "lib/x: ", want: snapshot.ErrMismatch, stays: true},
	{name: "the mode of a file", do: at("tree/src/a", chmod(0o440)), names: "src/a: ", want: snapshot.ErrMismatch},
	{name: "an execute bit", do: at("tree/src/a", chmod(0o500)), names: "src/a: ", want: snapshot.ErrMismatch},
	{name: "the mode of a directory", do: at("tree/src/d", chmod(0o700)), names: "src/d: ", want: snapshot.ErrMismatch},
	{name: "the mode of a root", do: at("tree/lib", chmod(0o555)), names: "lib: ", want: snapshot.ErrMismatch},
	{name: "the mode of the tree", do: at("tree", chmod(0o700)), names: "", want: snapshot.ErrMismatch},
	{name: "the mode of the snapshot", do: func(dir string) error { return os.Chmod(dir, 0o700) }, names: "0500", want: snapshot.ErrMismatch},
	{name: "a file more", do: at("tree/src/d/new", func(name string) error { return os.WriteFile(name, nil, 0o400) }), names: "src/d/new: ", want: snapshot.ErrMismatch, stays: true},
	{name: "a root more", do: at("tree/new", func(name string) error { return os.Mkdir(name, 0o500) }), names: "new: ", want: snapshot.ErrMismatch, stays: true},
	{name: "a name more", do: at("new", func(name string) error { return os.WriteFile(name, nil, 0o400) }), names: "new", want: snapshot.ErrMismatch, stays: true},
	{name: "a FIFO more", do: at("tree/src/p", func(name string) error { return unix.Mkfifo(name, 0o400) }), names: "src/p: ", want: snapshot.ErrMismatch, stays: true},
	{name: "a file less", do: at("tree/src/a", os.Remove), names: "src/a: ", want: snapshot.ErrMismatch},
	{name: "a directory less", do: func(dir string) error {
		return errors.Join(at("tree/src/d/e/c", os.Remove)(dir), at("tree/src/d/e", os.Remove)(dir))
	}, names: "src/d/e: ", want: snapshot.ErrMismatch},
	{name: "another link", do: at("tree/src/l", relink("run")), names: "src/l: ", want: snapshot.ErrMismatch, stays: true},
	{name: "a link out", do: at("tree/src/l", relink("/etc/passwd")), names: "src/l: ", want: snapshot.ErrMismatch, stays: true},
	{name: "a link for a file", do: at("tree/src/a", relink("run")), names: "src/a: ", want: snapshot.ErrMismatch, stays: true},
	{name: "a file for a link", do: at("tree/src/l", func(name string) error {
		return errors.Join(os.Remove(name), os.WriteFile(name, []byte("alpha"), 0o400))
	}), names: "src/l: ", want: snapshot.ErrMismatch, stays: true},
	{name: "a link for a directory", do: at("tree/src/d", func(name string) error {
		return errors.Join(os.Chmod(name, 0o700), os.Rename(name, name+"2"), os.Symlink("d2", name))
	}), names: "src/d", want: snapshot.ErrMismatch, stays: true},
	{name: "two files exchanged", do: func(dir string) error {
		return errors.Join(at("tree/src/a", overwrite("bravo"))(dir), at("tree/src/d/b", overwrite("alpha"))(dir))
	}, names: "src/a: ", want: snapshot.ErrMismatch, hidden: true},
	{name: "the manifest's text", do: at("manifest.mtree", overwrite("#mtree\n")), names: "manifest.mtree: ", want: snapshot.ErrMismatch, stays: true},
	{name: "a digest in the manifest", do: at("manifest.mtree", anotherDigest), names: "manifest.mtree: ", want: snapshot.ErrMismatch},
	{name: "a byte, and the manifest with it", do: consistent, names: "manifest.mtree: ", want: snapshot.ErrMismatch},
	{name: "no manifest", do: at("manifest.mtree", os.Remove), names: "it holds lock, tree", want: snapshot.ErrMismatch, stays: true},
	{name: "a manifest that can be written", do: at("manifest.mtree", chmod(0o600)), names: "manifest.mtree: ", want: snapshot.ErrUntrusted, stays: true},
	{name: "a manifest by two names", do: func(dir string) error {
		return at("manifest.mtree", func(name string) error { return os.Link(name, dir+"-manifest") })(dir)
	}, names: "manifest.mtree: ", want: snapshot.ErrUntrusted, stays: true},
	{name: "a manifest elsewhere", do: func(dir string) error {
		return at("manifest.mtree", func(name string) error {
			return errors.Join(os.Rename(name, dir+"-manifest"), os.Symlink(dir+"-manifest", name))
		})(dir)
	}, names: "manifest.mtree: ", want: snapshot.ErrNotRegular, stays: true},
	{name: "no tree", do: at("tree", moveTree), names: "it holds lock, manifest.mtree", want: snapshot.ErrMismatch, stays: true},
	{name: "a tree elsewhere", do: at("tree", func(name string) error {
		return errors.Join(moveTree(name), os.Symlink(filepath.Dir(name)+"-tree", name))
	}), names: "tree", stays: true},
	{name: "another tree", do: at("tree", func(name string) error {
		return errors.Join(moveTree(name), os.Mkdir(name, 0o500))
	}), names: "", want: snapshot.ErrMismatch},
	{name: "no lock", do: at("lock", os.Remove), stays: true},
	{name: "a lock elsewhere", do: at("lock", relink("/dev/null")), names: "lock", want: snapshot.ErrUntrusted, kept: true, stays: true},
	{name: "a lock by two names", do: func(dir string) error {
		return at("lock", func(name string) error { return os.Link(name, dir+"-lock") })(dir)
	}, names: "lock", want: snapshot.ErrUntrusted, kept: true, stays: true},
	{name: "the owner of the snapshot", do: func(dir string) error { return os.Chown(dir, 65534, -1) }, root: true, want: snapshot.ErrUntrusted, stays: true},
	{name: "the owner of the tree", do: at("tree", chown(65534)), root: true, want: snapshot.ErrUntrusted, stays: true},
	{name: "the owner of a file", do: at("tree/src/d/b", chown(65534)), names: "src/d/b", root: true, want: snapshot.ErrUntrusted, stays: true},
	{name: "the owner of a link", do: at("tree/src/l", chown(65534)), names: "src/l", root: true, want: snapshot.ErrUntrusted, stays: true},
	{name: "the owner of the manifest", do: at("manifest.mtree", chown(65534)), names: "manifest.mtree", root: true, want: snapshot.ErrUntrusted, stays: true},
	{name: "the owner of the lock", do: at("lock", chown(65534)), names: "lock", root: true, want: snapshot.ErrUntrusted, kept: true, stays: true},
}

// TestTakeTampered: what is changed after sealing is named, by OpenSnapshot, or by Verify where only bytes tell.
func TestTakeTampered(t *testing.T) {
	t.Parallel()
	dir, _ := sourcesIn(t, tampered...)
	fstest.Settle(t, dir)
	for _, tt := range tamperings {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.root {
				fstest.NeedRoot(t)
			}
			_, parent := sourcesIn(t)
			s, err := take(t, parent, nil, rootsAt(dir, "src", "lib")...)
			require.NoError(t, err)
			require.NoError(t, s.Detach())
			digest := s.Manifest().Digest()
			require.NoError(t, tt.do(s.Dir()))
			after, ctimes := fstest.Read(t, parent), ctimesOf(t, parent)

			named := func(err error, what string) {
				if assert.Error(t, err, what) {
					assert.ErrorContains(t, err, tt.names, what)
				}
				if tt.want != nil {
					assert.ErrorIs(t, err, tt.want, what)
				}
			}
			if err := s.Verify(t.Context()); tt.kept {
				assert.NoError(t, err, "Verify of what is open")
			} else {
				named(err, "Verify of what is open")
			}
			opened, err := reopen(t, s.Dir(), digest)
			if tt.hidden {
				require.NoError(t, err)
				named(opened.Verify(t.Context()), "Verify")
				path, _, _ := strings.Cut(tt.names, ":")
				named(errorOf(opened.Open(t.Context(), path)), "Open")
				require.NoError(t, opened.Close())
			} else {
				named(err, "OpenSnapshot")
			}
			require.NoError(t, s.Close())
			err = removeSnapshot(t, s.Dir())
			if tt.stays {
				assert.Error(t, err, "RemoveSnapshot")
				assert.NotErrorIs(t, err, snapshot.ErrLeftover)
				assert.Equal(t, after, fstest.Read(t, parent), "a refused removal touches nothing: %v", err)
				assert.Equal(t, ctimes, ctimesOf(t, parent), "a refused removal touches nothing: %v", err)
			} else {
				assert.NoError(t, err, "RemoveSnapshot")
				assert.NoDirExists(t, s.Dir())
			}
			assert.Empty(t, sweep(t, parent))
		})
	}
}

// TestTakeLookAlikes: what only looks like a snapshot, or like what a crash left of one, is nobody's to remove.
func TestTakeLookAlikes(t *testing.T) {
	t.Parallel()
	name := stagingName("k")
	snapshotAs := func(t *testing.T, parent, as string) {
		dir, _ := sourcesIn(t, tampered...)
		at, _ := detached(t, parent, rootsAt(dir, "src", "lib")...)
		require.NoError(t, os.Rename(at, filepath.Join(parent, as)))
	}
	leftoverAs := func(t *testing.T, parent, as string) { // of which only the lock's text differs
		snapshotAs(t, parent, as)
		require.NoError(t, at("lock", func(name string) error { return os.WriteFile(name, []byte(magic), 0o600) })(filepath.Join(parent, as)))
	}
	lines := func(lines ...string) func(t *testing.T, parent string) {
		return func(t *testing.T, parent string) { fstest.Make(t, parent, lines...) }
	}
	full := []string{name + "/tree/a 0400=precious", name + "/tree/d/b 0400=precious", name + "/tree/d/ 0500", name + "/tree/ 0500"}
	for _, tt := range []struct {
		name  string
		plant func(t *testing.T, parent string)
	}{
		{"the name, and files", lines(name+"/precious=x", name+"/ 0700")},
		{"the name, sealed, and files", lines(name+"/precious=x", name+"/ 0500")},
		{"a file of the name", lines(name + " 0400=precious")},
		{"a link of the name", func(t *testing.T, parent string) {
			fstest.Make(t, parent, "victim/", name+" => victim/"+name)
			leftoverAs(t, parent+"/victim", name)
		}},
		{"a full tree without a lock", lines(append(full, name+"/manifest.mtree 0400=#mtree\n", name+"/ 0500")...)},
		{"a full tree, its lock beside it", lines(append(full, name+"/manifest.mtree 0400=#mtree\n", name+"/ 0500", "lock="+magic, name+".lock="+magic)...)},
		{"a full tree with somebody's lock", lines(append(full, name+"/manifest.mtree 0400=#mtree\n", name+"/lock=pid 17\n", name+"/ 0500")...)},
		{"a snapshot but for its lock", func(t *testing.T, parent string) {
			snapshotAs(t, parent, name)
			require.NoError(t, at("lock", func(name string) error { return os.WriteFile(name, []byte("pid 17\n"), 0o600) })(parent+"/"+name))
		}},
		{"a lock by two names", func(t *testing.T, parent string) {
			leftoverAs(t, parent, name)
			require.NoError(t, at("lock", func(name string) error { return os.Link(name, parent+"/precious") })(parent+"/"+name))
		}},
		{"a lock that is a link", func(t *testing.T, parent string) {
			leftoverAs(t, parent, name)
			require.NoError(t, at("lock", func(name string) error {
				return errors.Join(os.Rename(name, parent+"/precious"), os.Symlink(parent+"/precious", name))
			})(parent+"/"+name))
		}},
		{"a lock that is a FIFO", func(t *testing.T, parent string) {
			leftoverAs(t, parent, name)
			require.NoError(t, at("lock", func(name string) error { return errors.Join(os.Remove(name), unix.Mkfifo(name, 0o600)) })(parent+"/"+name))
		}},
		{"a lock that is a directory", func(t *testing.T, parent string) {
			leftoverAs(t, parent, name)
			require.NoError(t, at("lock", func(name string) error { return errors.Join(os.Remove(name), os.Mkdir(name, 0o700)) })(parent+"/"+name))
		}},
		{"another mode", func(t *testing.T, parent string) {
			leftoverAs(t, parent, name)
			require.NoError(t, os.Chmod(parent+"/"+name, 0o755))
		}},
		{"a short name", func(t *testing.T, parent string) { leftoverAs(t, parent, name[:len(name)-1]) }},
		{"a long name", func(t *testing.T, parent string) { leftoverAs(t, parent, name+"k") }},
		{"a name in capitals", func(t *testing.T, parent string) { leftoverAs(t, parent, strings.Replace(name, "kkk", "KKK", 1)) }},
		{"a name with a one", func(t *testing.T, parent string) { leftoverAs(t, parent, strings.Replace(name, "kkk", "k1k", 1)) }},
		{"somebody's snapshot", func(t *testing.T, parent string) {
			fstest.NeedRoot(t)
			leftoverAs(t, parent, name)
			require.NoError(t, os.Chown(parent+"/"+name, 65534, 65534))
		}},
		{"somebody's lock", func(t *testing.T, parent string) {
			fstest.NeedRoot(t)
			leftoverAs(t, parent, name)
			require.NoError(t, os.Chown(parent+"/"+name+"/lock", 65534, 65534))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, parent := sourcesIn(t)
			tt.plant(t, parent)
			before, ctimes := fstest.Read(t, parent), ctimesOf(t, parent)
			require.Greater(t, len(before), 1)
			assert.Empty(t, sweep(t, parent))
			for _, planted := range namesIn(t, parent) {
				assert.Error(t, removeSnapshot(t, filepath.Join(parent, planted)), "RemoveSnapshot of %s", planted)
			}
			assert.Equal(t, before, fstest.Read(t, parent))
			assert.Equal(t, ctimes, ctimesOf(t, parent), "not even a mode")
		})
	}

	// The positive control: what differs from them in nothing but the lock, or the name, does go.
	_, parent := sourcesIn(t)
	leftoverAs(t, parent, name)
	snapshotAs(t, parent, stagingName("m"))
	assert.Equal(t, []string{name}, sweep(t, parent))
	assert.NoError(t, removeSoon(t, parent+"/"+stagingName("m")))
	fstest.Nothing(t, parent)
}
