// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
	"holdstill.example/snapshot/internal/fsys"
)

// phases adds acts to a seam, each once, when a phase is reached for the first time.
func phases(seam snapshot.Seam, acts map[string]func()) snapshot.Seam {
	seam.Phase = func(phase string) {
		if f := acts[phase]; f != nil {
			delete(acts, phase)
			f()
		}
	}
	return seam
}

// quietly does something to a directory and puts its mtime back.
func quietly(name string, acts ...act) act {
	return func(s *raceSite) error {
		fi, err := os.Stat(s.path(name))
		if err != nil {
			return err
		}
		for _, a := range acts {
			err = errors.Join(err, a(s))
		}
		return errors.Join(err, os.Chtimes(s.path(name), fi.ModTime(), fi.ModTime()))
	}
}

// suspectAttack makes a a suspect and attacks it before the n-th of its looks after that. The first one is the collect's; the
// second waits for its stamps; then come (i), (iii) and (iv) of the window.
func suspectAttack(s *raceSite, n int, acts ...act) snapshot.Seam {
	looks := slices.Repeat([]string{"StatAt a"}, n)
	return phases(raceAt(raceWhen(func() { s.attack(acts...) }, looks...)), map[string]func(){
		"joined": func() { s.attack(race.chmod("a", 0o644)) },
	})
}

// moreChecks are attacks that one comparison, or one look taken again, alone notices: the copy is what the source is in the end.
var moreChecks = []raceCheck{
	{
		guards: "a suspect changes its mode before the window's first look",
		attack: func(s *raceSite) snapshot.Seam { return suspectAttack(s, 3, race.chmod("a", 0o600)) },
	},
	{
		guards: "a suspect changes its mode after it was read again",
		attack: func(s *raceSite) snapshot.Seam { return suspectAttack(s, 4, race.chmod("a", 0o600)) },
	},
	{
		guards: "a suspect is rewritten after it was read again, and mtime put back",
		attack: func(s *raceSite) snapshot.Seam { return suspectAttack(s, 4, race.rewrite("a")) },
	},
	{
		guards: "a suspect is young at the window's first look, and rewritten in the same second", kind: "ext4-128",
		attack: func(s *raceSite) snapshot.Seam {
			seam := suspectAttack(s, 4, race.rewrite("a"))
			again := raceWhen(func() { s.attack(race.chmod("a", 0o644)) }, slices.Repeat([]string{"StatAt a"}, 3)...)
			rewrite := seam.At
			seam.At = func(call, name string) error { return errors.Join(again(call, name), rewrite(call, name)) }
			return seam
		},
	},
	{
		guards: "names are added to a directory in one second, before and after it is listed", kind: "ext4-128",
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(
				raceWhen(func() { s.attack(race.put("d/new=november")) }, "OpenDir d"),
				raceWhen(func() { s.attack(race.put("d/other=oscar")) }, "OpenDir d", "List", "List", "Pin new"),
			)
		},
	},
	{
		guards: "a suspect is replaced while all others are looked at again",
		attack: func(s *raceSite) snapshot.Seam { return suspectAttack(s, 5, race.replace("a")) },
	},
	{
		guards: "a link gets a suspect's name between the window's first look and its reading",
		attack: func(s *raceSite) snapshot.Seam {
			looks := []string{"StatAt a", "StatAt a", "StatAt a", "Pin a"}
			return phases(raceAt(raceWhen(func() { s.attack(race.remove("a"), symlink("d/b", "a")) }, looks...)), map[string]func(){
				"joined": func() { s.attack(race.chmod("a", 0o644)) },
			})
		},
	},
	{
		guards: "the bytes that were copied are mounted over a suspect while it is read", root: true,
		attack: func(s *raceSite) snapshot.Seam {
			looks := []string{"StatAt a", "StatAt a", "StatAt a", "Pin a"}
			return phases(raceAt(
				raceWhen(func() { s.act(race.put("../copied=alpha"), race.bind("../copied", "a")) }, looks...),
				raceWhen(func() { s.act(race.unmount("a")) }, append(looks, "Reopen")...),
			), map[string]func(){
				"joined": func() { s.attack(race.rewrite("a")) },
			})
		},
	},
	{
		guards: "a directory in the copy is exchanged before it is removed", want: snapshot.ErrLeftover,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(
				raceWhen(func() { s.act(race.put("../../out/theirs/b=precious")) }, "Pin s"),
				raceWhen(func() { s.act(exchangeInStaging("tree/d", "../../out/theirs")) }, "Pin s", "StatAt d", "OpenDir d"),
				func(call, name string) error {
					if call+" "+name == "Pin s" {
						return syscall.EIO
					}
					return nil
				},
			)
		},
	},
	{
		guards: "a name is added to a directory, and its mtime put back", kind: "ext4", root: true,
		attack: func(s *raceSite) snapshot.Seam {
			return phases(snapshot.Seam{}, map[string]func(){
				"joined": func() { s.attack(quietly("d", race.put("d/new=november"))) },
			})
		},
	},
	{
		guards: "a directory changes whenever it is listed", opts: snapshot.Options{Workers: 1, PreserveMode: true, PerFile: true},
		attack: func(s *raceSite) snapshot.Seam {
			n := 0
			return raceAt(func(call, name string) error {
				if n == 0 && call == "OpenDir" && name == "d" || n > 0 && call == "List" && n < 7 { // three listings, each in two calls
					if n++; n > 1 {
						s.attack(race.put(fmt.Sprintf("d/new%d=november", n)), settle) // else it would wait, and begin anew
					}
				}
				return nil
			})
		},
	},
	{
		guards: "a file is leased by a writer whenever it is read", want: snapshot.ErrBusy,
		attack: func(s *raceSite) snapshot.Seam { return failing(s, syscall.EAGAIN, "Read") },
	},
	{
		guards: "a held lease is not ours to take", want: snapshot.ErrEvidence,
		opts:   snapshot.Options{Workers: 1, PreserveMode: true, Require: snapshot.Quiescent},
		attack: func(s *raceSite) snapshot.Seam { return failing(s, fsys.ErrNotAllowed, "Lease") },
	},
	{
		guards: "no lease is to be had", want: snapshot.ErrEvidence,
		opts:   snapshot.Options{Workers: 1, PreserveMode: true, Require: snapshot.Quiescent},
		attack: func(s *raceSite) snapshot.Seam { return failing(s, fsys.ErrNoLease, "Lease") },
	},
	{
		guards: "a copied file cannot be removed for the next round", want: syscall.EPERM,
		attack: func(s *raceSite) snapshot.Seam {
			return phases(fails(1, "Unlink a", syscall.EPERM, nil), map[string]func(){
				"joined": func() { s.attack(race.replace("a")) },
			})
		},
	},
	{
		guards: "a file that was half copied cannot be removed", want: syscall.EPERM,
		attack: func(s *raceSite) snapshot.Seam {
			created := false
			seam := raceAt(
				raceWhen(func() { created = true }, "Create a"),
				func(call, name string) error {
					switch {
					case created && call == "Write":
						return syscall.EIO
					case call == "Unlink" && name == "a" && s.attacks == 0:
						s.act()
						return syscall.EPERM
					}
					return nil
				},
			)
			seam.Lacks = snapshot.NoClone
			return seam
		},
	},
	{
		guards: "an empty directory gets the destination's name between the look and the rename", want: fs.ErrExist,
		attack: func(s *raceSite) snapshot.Seam {
			mkdir := func(s *raceSite) error { return os.Mkdir(s.dst(), 0o755) }
			seam := raceAt(raceWhen(func() { s.act(mkdir) }, "StatAt tree", "StatAt dst"))
			seam.Lacks = snapshot.NoRenameNoReplace
			return seam
		},
	},
	{
		guards: "the staging directory is exchanged for a socket at once", want: snapshot.ErrUntrusted,
		attack: func(s *raceSite) snapshot.Seam { return failing(s, syscall.ENXIO, "OpenDir .holdstill-") },
	},
	{
		guards: "the staging directory is somebody else's at once", want: snapshot.ErrUntrusted, root: true,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(func(call, name string) error {
				if call == "OpenDir" && strings.HasPrefix(name, ".holdstill-") && s.attacks == 0 {
					s.act(func(s *raceSite) error { return os.Chown(filepath.Join(s.dir, "out", name), 65534, 65534) })
				}
				return nil
			})
		},
	},
	{
		guards: "a umask keeps an ordinary user out of the staging directory", want: snapshot.ErrUntrusted,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(func(call, name string) error {
				if call != "OpenDir" || !strings.HasPrefix(name, ".holdstill-") {
					return nil
				}
				s.act(func(s *raceSite) error { return os.Chmod(filepath.Join(s.dir, "out", name), 0) })
				return syscall.EACCES
			})
		},
	},
	{
		guards: "every staging directory is swept at once", want: snapshot.ErrUntrusted,
		attack: func(s *raceSite) snapshot.Seam { return failing(s, syscall.EWOULDBLOCK, "LockShared") },
	},
	{
		guards: "somebody is in the way in the copy", want: fs.ErrExist,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() { s.act(putInStaging("tree/a")) }, "Create a"))
		},
		call: func(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
			got, err := raceCopied(t, s, opts)
			if err != nil && strings.Contains(err.Error(), "folds case") {
				err = fs.ErrExist
			}
			return got, err
		},
	},
}

// failing makes the calls that begin so fail.
func failing(s *raceSite, err error, begin string) snapshot.Seam {
	return raceAt(func(call, name string) error {
		if call == begin || strings.HasPrefix(call+" "+name, begin) && strings.Contains(begin, " ") {
			s.act()
			return err
		}
		return nil
	})
}

// inStaging returns a name below the staging directory as acts name it.
func inStaging(s *raceSite, name string) (string, error) {
	found, err := filepath.Glob(filepath.Join(s.dir, "out", ".holdstill-*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%d staging directories, %w", len(found), err)
	}
	return filepath.Rel(s.src(), filepath.Join(found[0], name))
}

func putInStaging(name string) act {
	return func(s *raceSite) error {
		rel, err := inStaging(s, name)
		return errors.Join(err, race.put(rel+"=in the way")(s))
	}
}

func exchangeInStaging(name, other string) act {
	return func(s *raceSite) error {
		rel, err := inStaging(s, name)
		return errors.Join(err, race.exchange(rel, other)(s))
	}
}

func settle(s *raceSite) error {
	return outside(func(t fstest.TB) { fstest.Settle(t, s.src()) })
}

func symlink(text, name string) act {
	return func(s *raceSite) error { return os.Symlink(text, s.path(name)) }
}

// TestMoreChecks makes each of the attacks.
func TestMoreChecks(t *testing.T) {
	t.Parallel()
	for _, c := range moreChecks {
		c.lines, c.look = raceTree, raceLookTree
		if c.call == nil {
			c.call = raceCopied
		}
		if c.opts.Workers == 0 {
			c.opts = raceInOne
		}
		t.Run(c.guards, func(t *testing.T) {
			t.Parallel()
			s, got, err := c.run(t, 0)
			assert.True(t, c.right(s, got, err), "%s\nhad %v\ngot %v\nerror %v %s", c.guards, s.states, got, err, s.wrong)
		})
	}
}

// fileSite is a directory with src, that is settled, and out.
func fileSite(t *testing.T) (src, dst string) {
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src=source", "other=OTHER!", "out/")
	fstest.Settle(t, dir)
	return filepath.Join(dir, "src"), filepath.Join(dir, "out", "dst")
}

// fails returns a seam in which the n-th of the calls that are the same fails, after f.
func fails(n int, what string, err error, f func()) snapshot.Seam {
	seen := 0
	return raceAt(func(call, name string) error {
		if strings.TrimSpace(call+" "+name) != what && call != what {
			return nil
		}
		if seen++; seen != n {
			return nil
		}
		if f != nil {
			f()
		}
		return err
	})
}

// TestUnpublish: a name that could not be made durable is taken back, if it still is the file.
func TestUnpublish(t *testing.T) {
	t.Parallel()
	durable := &snapshot.Options{Durable: true}

	src, dst := fileSite(t)
	_, err := snapshot.CopyFile(t.Context(), dst, src, snapshot.WithSeam(durable, fails(2, "Sync", syscall.EIO, nil)))
	assert.ErrorIs(t, err, syscall.EIO)
	assert.NotErrorIs(t, err, snapshot.ErrLeftover)
	fstest.Nothing(t, filepath.Dir(dst))

	src, dst = fileSite(t)
	var renamed error
	seam := fails(2, "Sync", syscall.EIO, func() { renamed = os.Rename(filepath.Join(filepath.Dir(src), "other"), dst) })
	_, err = snapshot.CopyFile(t.Context(), dst, src, snapshot.WithSeam(durable, seam))
	require.NoError(t, renamed)
	assert.ErrorIs(t, err, syscall.EIO)
	b, err := os.ReadFile(dst)
	require.NoError(t, err, "another file that has the name now stays")
	assert.Equal(t, "OTHER!", string(b))

	src, dst = fileSite(t)
	seam = raceAt(fails(2, "Sync", syscall.EIO, nil).At, fails(1, "Unlink dst", syscall.EPERM, nil).At)
	_, err = snapshot.CopyFile(t.Context(), dst, src, snapshot.WithSeam(durable, seam))
	assert.ErrorIs(t, err, snapshot.ErrLeftover)
	assert.ErrorIs(t, err, syscall.EPERM)
	assert.False(t, snapshot.Retryable(err))
}

// TestUnpublishTree: a tree that could not be finished is taken back through its handle, or is said to be there.
func TestUnpublishTree(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		fails []string // what fails once the tree is published
		moved bool     // another directory gets its name then
		left  bool
	}{
		{name: "taken back", fails: []string{"Sync"}},
		{name: "not taken back", fails: []string{"Chmod", "Rmdir dst"}, left: true},
		{name: "another directory has the name", fails: []string{"Sync"}, moved: true},
	} {
		dir := fstest.TempDir(t)
		fstest.Make(t, dir, "src/f=text", "out/", "other/")
		dst := filepath.Join(dir, "out", "dst")
		published, writable := false, 0
		var moved error
		seam := raceAt(func(call, name string) error {
			if !published {
				return nil
			}
			if call == "Chmod" {
				if writable++; writable == 2 && tt.moved { // of unpublish
					// An ordinary user moves no directory to another parent that he may not write.
					assert.NoError(t, os.Chmod(dst, 0o700))
					moved = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "other"), unix.AT_FDCWD, dst, unix.RENAME_EXCHANGE)
				}
			}
			if slices.Contains(tt.fails, strings.TrimSpace(call+" "+name)) {
				return syscall.EPERM
			}
			return nil
		})
		seam.Phase = func(phase string) { published = published || phase == "published" }
		_, err := snapshot.CopyDir(t.Context(), dst, filepath.Join(dir, "src"), snapshot.WithSeam(&snapshot.Options{Durable: true}, seam))
		require.NoError(t, moved, tt.name)
		assert.ErrorIs(t, err, syscall.EPERM, tt.name)
		assert.Equal(t, 2, writable, "%s: it is made writable again to be emptied, which root does not need", tt.name)
		left, ok := errors.AsType[*snapshot.LeftoverError](err)
		if assert.Equal(t, tt.left, ok, "%s: %v", tt.name, err) && ok {
			assert.Equal(t, []string{dst}, left.Paths, tt.name)
		}
		if tt.moved || tt.left {
			assert.DirExists(t, dst, tt.name)
		} else {
			assert.NoDirExists(t, dst, tt.name)
		}
	}
}

// TestMountInTheStagingDirectory: what somebody mounted in a copy that is given up is not emptied.
func TestMountInTheStagingDirectory(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/d/f=text", "out/", "theirs/precious=x")
	fstest.Settle(t, dir)
	var at string
	var mounted error
	seam := raceAt(func(call, name string) error {
		if at != "" && call+" "+name == "StatAt f" {
			return syscall.EIO
		}
		return nil
	})
	seam.Phase = func(phase string) {
		found, err := filepath.Glob(filepath.Join(dir, "out", ".holdstill-*", "tree", "d"))
		if phase == "joined" && assert.NoError(t, err) && assert.Len(t, found, 1) {
			at = found[0]
			mounted = unix.Mount(filepath.Join(dir, "theirs"), at, "", unix.MS_BIND, "")
		}
	}
	_, err := snapshot.CopyDir(t.Context(), filepath.Join(dir, "out", "dst"), filepath.Join(dir, "src"), snapshot.WithSeam(&raceInOne, seam))
	require.NoError(t, mounted)
	require.NotEmpty(t, at)
	require.NoError(t, unix.Unmount(at, unix.MNT_DETACH))
	assert.ErrorIs(t, err, syscall.EIO)
	assert.ErrorIs(t, err, snapshot.ErrLeftover)
	assert.FileExists(t, filepath.Join(dir, "theirs", "precious"))
}

// TestStagingThatIsTouched: a staging directory whose lock has another name, or which has one, is not worked in.
func TestStagingThatIsTouched(t *testing.T) {
	t.Parallel()
	for when, touch := range map[string]func(staging, dir string) error{
		"StatAt lock": func(staging, dir string) error {
			return os.Link(filepath.Join(staging, "lock"), filepath.Join(dir, "second"))
		},
		"StatAt .holdstill": func(staging, dir string) error { return os.Rename(staging, filepath.Join(dir, "moved")) },
	} {
		dir := fstest.TempDir(t)
		fstest.Make(t, dir, "src/f=text", "out/")
		var made []string
		var touched error
		seam := raceAt(func(call, name string) error {
			switch {
			case call == "Mkdir" && strings.HasPrefix(name, ".holdstill-"):
				made = append(made, name)
			case len(made) == 1 && touch != nil && strings.HasPrefix(call+" "+name, when):
				touched = touch(filepath.Join(dir, "out", made[0]), dir)
				touch = nil
			}
			return nil
		})
		_, err := snapshot.CopyDir(t.Context(), filepath.Join(dir, "out", "dst"), filepath.Join(dir, "src"), snapshot.WithSeam(nil, seam))
		require.NoError(t, touched)
		assert.NoError(t, err)
		assert.Len(t, made, 2, "staging directories, touched at %s", when)
	}
}

// TestLockGoesLast: what a kill leaves of a copy that is given up has its lock still, so that a sweep takes it.
func TestLockGoesLast(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/f=text", "src/g=text", "out/")
	var unlinked []string
	seam := raceAt(func(call, name string) error {
		switch {
		case call == "Unlink":
			unlinked = append(unlinked, name)
		case call == "RenameNoReplace":
			return syscall.EIO
		}
		return nil
	})
	_, err := snapshot.CopyDir(t.Context(), filepath.Join(dir, "out", "dst"), filepath.Join(dir, "src"), snapshot.WithSeam(nil, seam))
	assert.ErrorIs(t, err, syscall.EIO)
	assert.Subset(t, unlinked, []string{"f", "g"})
	assert.Equal(t, len(unlinked)-1, slices.Index(unlinked, "lock"), "%q", unlinked)
}

// TestSlowPublishReplacesNothing: a file gets its name by a link where a rename would replace.
func TestSlowPublishReplacesNothing(t *testing.T) {
	t.Parallel()
	src, dst := fileSite(t)
	var made error
	seam := raceAt(func(call, name string) error {
		if name == "dst" && (call == "Link" || call == "Rename") {
			made = os.WriteFile(dst, []byte("theirs"), 0o600)
		}
		return nil
	})
	seam.Lacks = snapshot.NoNameless | snapshot.NoRenameNoReplace
	_, err := snapshot.CopyFile(t.Context(), dst, src, snapshot.WithSeam(nil, seam))
	require.NoError(t, made)
	assert.ErrorIs(t, err, fs.ErrExist)
	b, err := os.ReadFile(dst)
	require.NoError(t, err)
	assert.Equal(t, "theirs", string(b))
}

// TestKindOfAMountedFile is that of its own file system, whatever its directory is on.
func TestKindOfAMountedFile(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	dir, other := fstest.Dir(t, "ext4"), fstest.Dir(t, "tmpfs")
	fstest.Make(t, dir, "f=text")
	fstest.Make(t, other, "f=other")
	fstest.Bind(t, filepath.Join(other, "f"), filepath.Join(dir, "f"))
	fstest.Settle(t, dir)
	report, err := snapshot.Scan(t.Context(), dir, &snapshot.Options{CrossMounts: true})
	require.NoError(t, err)
	assert.Equal(t, map[snapshot.Evidence]int64{snapshot.Stable: 1}, report.Evidence)
	assert.Equal(t, snapshot.InstantWrites, report.Instant)
}

// TestByNameWithoutPins: what changes between a look and an open by name is a change.
func TestByNameWithoutPins(t *testing.T) {
	t.Parallel()
	for _, gone := range []error{syscall.ENOENT, fsys.ErrIsLink, syscall.ENXIO} {
		src, _ := fileSite(t)
		seam := raceAt(func(call, _ string) error {
			switch call {
			case "Pin":
				return errors.ErrUnsupported
			case "OpenFile":
				return gone
			}
			return nil
		})
		_, err := snapshot.Open(src, snapshot.WithSeam(nil, seam))
		assert.ErrorIs(t, err, snapshot.ErrChangedBeforeSnapshot, "%v", gone)
	}
}

// TestUnpinned: what is done where nothing can be pinned is to compare, too.
func TestUnpinned(t *testing.T) {
	t.Parallel()
	opened := 0
	seam := raceAt(func(call, _ string) error {
		switch call {
		case "Pin":
			return errors.ErrUnsupported
		case "OpenFile":
			opened++
		}
		return nil
	})
	src, _ := fileSite(t)
	f, err := snapshot.Open(src, snapshot.WithSeam(nil, seam))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.WriteFile(src, []byte("another text"), 0o600))
	var b strings.Builder
	_, err = f.CopyTo(t.Context(), &b)
	assert.ErrorIs(t, err, snapshot.ErrChangedBeforeSnapshot)

	opened = 0
	require.NoError(t, os.Remove(src))
	require.NoError(t, unix.Mkfifo(src, 0o600))
	_, err = snapshot.Open(src, snapshot.WithSeam(nil, seam))
	assert.ErrorIs(t, err, snapshot.ErrNotRegular)
	assert.Zero(t, opened, "the FIFO was opened")

	_, err = snapshot.Open("/proc/version", snapshot.WithSeam(nil, seam))
	assert.ErrorIs(t, err, snapshot.ErrNotRegular)
	assert.ErrorContains(t, err, "a pseudo file")
}

// TestPseudoFilesAreCalledSo, before their sizes are found to be inventions, of which an empty one is none.
func TestPseudoFilesAreCalledSo(t *testing.T) {
	t.Parallel()
	_, err := snapshot.Open("/proc/version", nil)
	assert.ErrorIs(t, err, snapshot.ErrNotRegular)
	assert.ErrorContains(t, err, "a pseudo file")
	_, err = snapshot.Scan(t.Context(), "/proc/sys/kernel", nil)
	assert.ErrorIs(t, err, snapshot.ErrNotRegular)
	assert.ErrorContains(t, err, "no file system for files")
}

// TestNameAfterCopy: CopyFile looks at the name once more, and Check at the handle where there is no name.
func TestNameAfterCopy(t *testing.T) {
	t.Parallel()
	src, dst := fileSite(t)
	other := filepath.Join(filepath.Dir(src), "other")
	seam := raceAt(raceWhen(func() { assert.NoError(t, os.Rename(other, src)) }, "Read"))
	f, err := snapshot.Open(src, snapshot.WithSeam(nil, seam))
	require.NoError(t, err)
	defer f.Close()
	_, err = f.CopyFile(t.Context(), dst)
	assert.ErrorIs(t, err, snapshot.ErrChangedDuringSnapshot)

	src, _ = fileSite(t)
	h, err := os.Open(src)
	require.NoError(t, err)
	defer h.Close()
	f, err = snapshot.NewFile(h, nil)
	require.NoError(t, err)
	defer f.Close()
	assert.NoError(t, f.Check())
	require.NoError(t, os.WriteFile(src, []byte("another text"), 0o600))
	assert.ErrorIs(t, f.Check(), snapshot.ErrChanged)
	_, err = snapshot.NewFile(h, &snapshot.Options{Workers: -1})
	assert.ErrorIs(t, err, fs.ErrInvalid)
}

// TestLimitEndsAListing: a directory of a billion names is not listed to its end.
func TestLimitEndsAListing(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	for i := range 1000 { // two pieces
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%0200d", i)), nil, 0o600))
	}
	lists := 0
	seam := raceAt(func(call, _ string) error {
		if call == "List" {
			lists++
		}
		return nil
	})
	_, err := snapshot.Scan(t.Context(), dir, snapshot.WithSeam(&snapshot.Options{Limits: snapshot.Limits{MaxEntries: 10}}, seam))
	assert.ErrorIs(t, err, snapshot.ErrLimit)
	assert.Equal(t, 1, lists)
}

func TestDigestsOfOtherLengths(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 62, 66} {
		_, err := snapshot.ParseDigest(strings.Repeat("a", n))
		assert.ErrorIs(t, err, fs.ErrInvalid, "%d digits", n)
	}
}

// TestZeroManifestIsCalledSo, and not a text that is too short.
func TestZeroManifestIsCalledSo(t *testing.T) {
	t.Parallel()
	var m snapshot.Manifest
	all := func(m *snapshot.Manifest) (err error) {
		for _, e := range m.All() {
			err = e
		}
		return err
	}
	difference := func(m *snapshot.Manifest) (err error) {
		for _, e := range snapshot.Diff(nil, m) {
			err = e
		}
		return err
	}
	for _, err := range []error{all(&m), difference(&m)} {
		assert.ErrorIs(t, err, fs.ErrInvalid)
		assert.ErrorContains(t, err, "neither read nor made")
	}
}

// TestDirectoryThatWasNoneForAMoment: O_DIRECTORY said that it is none, and a look that it is one.
func TestDirectoryThatWasNoneForAMoment(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "d/f=text")
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	_, err = snapshot.OpenIn(root, "d/f", snapshot.WithSeam(nil, fails(1, "OpenDir d", syscall.ENOTDIR, nil)))
	assert.ErrorIs(t, err, snapshot.ErrChangedBeforeSnapshot)
}

// TestCallersHandleWithoutProc: the file may have changed since NewFile looked at it.
func TestCallersHandleWithoutProc(t *testing.T) {
	t.Parallel()
	src, _ := fileSite(t)
	h, err := os.Open(src)
	require.NoError(t, err)
	defer h.Close()
	f, err := snapshot.NewFile(h, snapshot.WithSeam(nil, failing(new(raceSite), errors.ErrUnsupported, "Reopen")))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.WriteFile(src, []byte("another text"), 0o600))
	var b strings.Builder
	_, err = f.CopyTo(t.Context(), &b)
	assert.ErrorIs(t, err, snapshot.ErrChangedBeforeSnapshot)
	assert.Empty(t, b.String())
}

// TestMetadataTriesEnd: a file whose ctime moves at each try ends the call, too.
func TestMetadataTriesEnd(t *testing.T) {
	t.Parallel()
	src, _ := fileSite(t)
	tries := 0
	seam := raceAt(func(call, _ string) error {
		if call == "Read" && tries < 100 {
			tries++
			return os.Chmod(src, 0o644)
		}
		return nil
	})
	_, _, err := snapshot.ReadFile(t.Context(), src, snapshot.WithSeam(nil, seam))
	assert.ErrorIs(t, err, snapshot.ErrChanged)
	assert.Less(t, tries, 100)
}

// TestHandlesAreNotInherited by a program that is started meanwhile.
func TestHandlesAreNotInherited(t *testing.T) {
	t.Parallel()
	src, dst := fileSite(t)
	looked := 0
	seam := raceAt(func(call, _ string) error {
		if call != "Read" && call != "Write" {
			return nil
		}
		handles, err := os.ReadDir("/proc/self/fd")
		for _, h := range handles {
			name, e := os.Readlink("/proc/self/fd/" + h.Name())
			var fd int
			if _, scan := fmt.Sscan(h.Name(), &fd); e != nil || scan != nil || !strings.HasPrefix(name, filepath.Dir(src)) {
				continue
			}
			flags, e := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			assert.NoError(t, e)
			assert.NotZero(t, flags&unix.FD_CLOEXEC, name)
			looked++
		}
		return err
	})
	_, err := snapshot.CopyFile(t.Context(), dst, src, snapshot.WithSeam(nil, seam))
	assert.NoError(t, err)
	assert.Positive(t, looked)
}

// TestTimeOfALink is the link's, and not what it leads to.
func TestTimeOfALink(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/f=text", "src/l => f", "out/")
	ts := []unix.Timespec{{Sec: 1000}, {Sec: 1000}}
	require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, "src", "l"), ts, unix.AT_SYMLINK_NOFOLLOW))
	dst := filepath.Join(dir, "out", "dst")
	_, err := snapshot.CopyDir(t.Context(), dst, filepath.Join(dir, "src"), nil)
	require.NoError(t, err)
	l, err := os.Lstat(filepath.Join(dst, "l"))
	require.NoError(t, err)
	assert.EqualValues(t, 1000, l.ModTime().Unix())
	f, err := os.Lstat(filepath.Join(dst, "f"))
	require.NoError(t, err)
	assert.NotEqualValues(t, 1000, f.ModTime().Unix())
}

// TestAnotherMountOfTheSame: a file that another mount shows is not the one that was seen.
func TestAnotherMountOfTheSame(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "d/f=text")
	before, err := snapshot.Lstat(filepath.Join(dir, "d", "f"))
	require.NoError(t, err)
	fstest.Bind(t, filepath.Join(dir, "d"), filepath.Join(dir, "d"))
	after, err := snapshot.Lstat(filepath.Join(dir, "d", "f"))
	require.NoError(t, err)
	assert.Equal(t, snapshot.Replaced, before.Compare(after))
}

// TestBarrierOfOverlayfs is an fsync of the source: less cleans no page there.
func TestBarrierOfOverlayfs(t *testing.T) {
	t.Parallel()
	dir := fstest.Dir(t, "overlay")
	fstest.Make(t, dir, "f=text")
	fstest.Settle(t, dir)
	var calls []string
	seam := raceAt(func(call, _ string) error { calls = append(calls, call); return nil })
	_, proof, err := snapshot.ReadFile(t.Context(), filepath.Join(dir, "f"), snapshot.WithSeam(&snapshot.Options{Require: snapshot.Buffered}, seam))
	require.NoError(t, err)
	assert.Equal(t, snapshot.Buffered, proof.Evidence)
	assert.Contains(t, calls, "Sync")
}

// TestBoundPseudoFileIsCalledSo, and not one whose size is wrong.
func TestBoundPseudoFileIsCalledSo(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "f=text")
	fstest.Bind(t, "/proc/version", filepath.Join(dir, "f"))
	_, err := snapshot.Scan(t.Context(), dir, &snapshot.Options{CrossMounts: true})
	assert.ErrorIs(t, err, snapshot.ErrNotRegular)
	assert.ErrorContains(t, err, "a pseudo file")
}

func TestPerFileIsNoInstant(t *testing.T) {
	t.Parallel()
	src, _ := fileSite(t)
	report, err := snapshot.Scan(t.Context(), filepath.Dir(src), &snapshot.Options{PerFile: true})
	require.NoError(t, err)
	assert.Equal(t, snapshot.InstantNone, report.Instant)
}

func TestLinkIsCalledSo(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "l => f", "f=text")
	for _, lacks := range []string{"nothing", "Pin"} {
		_, err := snapshot.Open(filepath.Join(dir, "l"), snapshot.WithSeam(nil, failing(new(raceSite), errors.ErrUnsupported, lacks)))
		assert.ErrorIs(t, err, snapshot.ErrNotRegular)
		assert.ErrorContains(t, err, "a symbolic link to f", "without %s", lacks)
	}
}

func TestSpecialFileIsCalledSo(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "p|")
	_, err := snapshot.Scan(t.Context(), dir, nil)
	assert.ErrorIs(t, err, snapshot.ErrNotRegular)
	assert.ErrorContains(t, err, "SkipSpecial leaves it out")
}

// TestStaleReads: a server that knows a handle no more says that the name is another file.
func TestStaleReads(t *testing.T) {
	t.Parallel()
	src, _ := fileSite(t)
	_, proof, err := snapshot.ReadFile(t.Context(), src, snapshot.WithSeam(nil, fails(1, "Read", syscall.ESTALE, nil)))
	require.NoError(t, err)
	assert.Equal(t, 2, proof.Attempts)
}

func TestOptionsOfOpenIn(t *testing.T) {
	t.Parallel()
	src, _ := fileSite(t)
	root, err := os.OpenRoot(filepath.Dir(src))
	require.NoError(t, err)
	defer root.Close()
	_, err = snapshot.OpenIn(root, "src", &snapshot.Options{Workers: -1})
	assert.ErrorIs(t, err, fs.ErrInvalid)
}

// TestBackOverALinkOnTheWay: what is above a link in the path to the root is not what its name says.
func TestBackOverALinkOnTheWay(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(fstest.TempDir(t))
	require.NoError(t, err)
	fstest.Make(t, dir, "deep/real/src/f=text", "given => deep/real")
	link := filepath.Join(dir, "given", "src", "l")
	require.NoError(t, os.Symlink(dir+"/given/../deep/real/src/f", link))
	_, err = os.Stat(link)
	require.ErrorIs(t, err, fs.ErrNotExist, "the kernel's view")
	_, err = snapshot.Scan(t.Context(), filepath.Join(dir, "given", "src"), nil)
	assert.ErrorIs(t, err, snapshot.ErrEscapes)
}

// TestPathThatLedElsewhere: while the root's path without links is found out it leads to another directory, for which a link
// of the root stands.
func TestPathThatLedElsewhere(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(fstest.TempDir(t))
	require.NoError(t, err)
	fstest.Make(t, dir, "one/src/f=1", "two/src/f=2", "given => one")
	require.NoError(t, os.Symlink(dir+"/two/src/f", dir+"/one/src/l"))
	leads := func(to string) func() {
		return func() { assert.NoError(t, errors.Join(os.Remove(dir+"/given"), os.Symlink(to, dir+"/given"))) }
	}
	seam := raceAt(raceWhen(leads("two"), "OpenRoot", "Kind"), raceWhen(leads("one"), "OpenRoot", "Kind", "StatPath"))
	_, err = snapshot.Scan(t.Context(), dir+"/given/src", snapshot.WithSeam(nil, seam))
	assert.ErrorIs(t, err, snapshot.ErrEscapes)
}

// TestEmptyDirectoryWithOurName is not ours, though a removal by name would succeed.
func TestEmptyDirectoryWithOurName(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	for when, owner := range map[string]int{"OpenDir": 65534, "RenameNoReplace": 0} {
		src, dst := fileSite(t)
		parent, theirs := filepath.Dir(dst), ""
		seam := raceAt(func(call, _ string) error {
			if call == when && theirs == "" {
				theirs = filepath.Join(parent, namesIn(t, parent)[0])
				assert.NoError(t, os.Rename(theirs, filepath.Join(filepath.Dir(src), "moved")))
				assert.NoError(t, errors.Join(os.Mkdir(theirs, 0o700), os.Chown(theirs, owner, -1)))
			}
			return nil
		})
		seam.Lacks = snapshot.NoNameless
		_, err := snapshot.CopyFile(t.Context(), dst, src, snapshot.WithSeam(nil, seam))
		if when == "OpenDir" { // nothing was copied yet
			assert.ErrorIs(t, err, snapshot.ErrUntrusted)
		} else {
			assert.NoError(t, err)
		}
		assert.DirExists(t, theirs, when)
	}
}

// TestRoomForDirectories: they need some, too.
func TestRoomForDirectories(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/d/", "out/")
	_, err := snapshot.CopyDir(t.Context(), filepath.Join(dir, "out", "dst"), filepath.Join(dir, "src"), &snapshot.Options{Limits: snapshot.Limits{ReserveBytes: 1 << 60}})
	assert.ErrorIs(t, err, snapshot.ErrLimit)
}

// TestFileThatIsTakenAwayAtOnce: what has the name once it is published must be the file.
func TestFileThatIsTakenAwayAtOnce(t *testing.T) {
	t.Parallel()
	for _, lacks := range []snapshot.Fallback{0, snapshot.NoNameless} {
		src, dst := fileSite(t)
		seam := phases(snapshot.Seam{Lacks: lacks}, map[string]func(){
			"published": func() { assert.NoError(t, os.Rename(filepath.Join(filepath.Dir(src), "other"), dst)) },
		})
		_, err := snapshot.CopyFile(t.Context(), dst, src, snapshot.WithSeam(nil, seam))
		assert.ErrorIs(t, err, snapshot.ErrUntrusted)
	}
}

// TestDurableNames: that the name is not durable is as bad as that the bytes are not.
func TestDurableNames(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 2; n++ { // the copy, and the directory that its name lies in
		dir := fstest.TempDir(t)
		fstest.Make(t, dir, "src/f=text", "out/")
		published := false
		sync := fails(n, "Sync", syscall.EIO, nil).At
		seam := raceAt(func(call, name string) error {
			if !published {
				return nil
			}
			return sync(call, name)
		})
		seam.Phase = func(phase string) { published = published || phase == "published" }
		_, err := snapshot.CopyDir(t.Context(), filepath.Join(dir, "out", "dst"), filepath.Join(dir, "src"), snapshot.WithSeam(&snapshot.Options{Durable: true}, seam))
		assert.ErrorIs(t, err, syscall.EIO, "Sync %d", n)
		fstest.Nothing(t, filepath.Join(dir, "out"))
	}
}

// TestCopyOfAProgramWaits until no fork has it open for writing, which would keep it from being executed.
func TestCopyOfAProgramWaits(t *testing.T) {
	t.Parallel()
	for call, busy := range map[string]error{"Lock": syscall.EWOULDBLOCK, "Lease": fsys.ErrWriter} {
		for _, lacks := range []string{"nothing", "Reopen"} {
			for mode, want := range map[fs.FileMode]error{0o644: nil, 0o755: snapshot.ErrBusy} {
				src, dst := fileSite(t)
				require.NoError(t, os.Chmod(src, mode))
				seam := raceAt(failing(new(raceSite), busy, call).At, failing(new(raceSite), errors.ErrUnsupported, lacks).At)
				opts := &snapshot.Options{Attempts: 1}
				if want != nil {
					opts.Stall = 100 * time.Millisecond
				}
				_, err := snapshot.CopyFile(t.Context(), dst, src, snapshot.WithSeam(opts, seam))
				assert.ErrorIs(t, err, want, "%s, without %s, %o", call, lacks, mode)
				if want != nil {
					fstest.Nothing(t, filepath.Dir(dst))
				}
			}
		}
	}
}

// TestProgramThatIsTakenAway: where only the name leads to the copy, what it leads to must be the copy.
func TestProgramThatIsTakenAway(t *testing.T) {
	t.Parallel()
	src, dst := fileSite(t)
	require.NoError(t, os.Chmod(src, 0o755))
	seam := raceAt(
		failing(new(raceSite), errors.ErrUnsupported, "Reopen").At,
		raceWhen(func() { assert.NoError(t, os.Rename(filepath.Join(filepath.Dir(src), "other"), dst)) }, "OpenFile dst"),
	)
	_, err := snapshot.CopyFile(t.Context(), dst, src, snapshot.WithSeam(nil, seam))
	assert.ErrorIs(t, err, snapshot.ErrUntrusted)
	assert.FileExists(t, dst, "it is another's")
}

// TestTakeIntoItsSource writes nothing there, not even what goes again.
func TestTakeIntoItsSource(t *testing.T) {
	t.Parallel()
	dir, _ := sourcesIn(t, "src/d/ 0700")
	seam := raceAt(func(call, _ string) error {
		assert.NotEqual(t, "Mkdir", call)
		return nil
	})
	_, err := takeWith(t.Context(), t, dir+"/src/d", nil, seam, rootsAt(dir, "src")...)
	assert.ErrorIs(t, err, snapshot.ErrEscapes)
}

// TestSnapshotExchangedOnceSealed: FS and Path go by its name.
func TestSnapshotExchangedOnceSealed(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1")
	theirs := ""
	seam := phases(snapshot.Seam{}, map[string]func(){"sealed": func() {
		theirs = filepath.Join(parent, namesIn(t, parent)[0])
		assert.NoError(t, errors.Join(os.Chmod(theirs, 0o700), os.Rename(theirs, dir+"/gone")))
		fstest.Make(t, theirs, "tree/precious=x")
	}})
	_, err := snapshot.Take(t.Context(), rootsAt(dir, "src"), &snapshot.TakeOptions{Options: *balanced(t, nil, seam), Parent: parent})
	assert.ErrorIs(t, err, snapshot.ErrUntrusted)
	assert.FileExists(t, theirs+"/tree/precious")
}

// TestOpenWhileRemoved: who removes a snapshot has its lock alone.
func TestOpenWhileRemoved(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1")
	at, digest := detached(t, parent, rootsAt(dir, "src")...)
	lock, err := os.Open(at + "/lock")
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	_, err = reopen(t, at, digest)
	assert.ErrorIs(t, err, snapshot.ErrBusy)
}

// TestRemoveGoesByTheName, too: Take gives no other.
func TestRemoveGoesByTheName(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1")
	at, _ := detached(t, parent, rootsAt(dir, "src")...)
	require.NoError(t, os.Rename(at, parent+"/mine"))
	assert.ErrorIs(t, removeSnapshot(t, parent+"/mine"), snapshot.ErrMismatch)
	assert.FileExists(t, parent+"/mine/tree/src/a")
}

// TestRemoveLosesARace: to get the lock alone, a shared one is given up for a moment.
func TestRemoveLosesARace(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1")
	at, _ := detached(t, parent, rootsAt(dir, "src")...)
	seam := raceAt(raceWhen(func() {
		assert.NoError(t, errors.Join(os.Chmod(at, 0o700), os.Rename(at, dir+"/gone")))
	}, "Lock"))
	err := snapshot.RemoveSnapshotWith(t.Context(), at, snapshot.SeamOf(balanced(t, nil, seam)))
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.FileExists(t, dir+"/gone/tree/src/a")
}

// TestRemoveTheRest: of what an interrupted removal left as little is taken away unseen as of the whole.
func TestRemoveTheRest(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "empty/")
	at, _ := detached(t, parent, rootsAt(dir, "empty")...)
	require.NoError(t, os.Chmod(at, 0o700))
	require.NoError(t, os.Chmod(at+"/tree", 0o700))
	require.NoError(t, os.RemoveAll(at+"/tree"))
	lock, err := os.Open(at + "/lock")
	require.NoError(t, err)
	defer lock.Close()

	require.NoError(t, os.WriteFile(at+"/mine", nil, 0o600))
	assert.ErrorIs(t, removeSnapshot(t, at), snapshot.ErrMismatch)
	require.NoError(t, os.Remove(at+"/mine"))
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_SH))
	assert.ErrorIs(t, removeSnapshot(t, at), snapshot.ErrBusy)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
	fstest.Nothing(t, at, "lock", "manifest.mtree")
	assert.ErrorIs(t, snapshot.RemoveSnapshotWith(t.Context(), at, fails(1, "Unlink", syscall.EIO, nil)), snapshot.ErrLeftover)
	assert.NoError(t, removeSoon(t, at))
	fstest.Nothing(t, parent)
}

// TestManifestThatIsNoneIsCalledSo, and not a tree of which nothing is listed.
func TestManifestThatIsNoneIsCalledSo(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1")
	at, _ := detached(t, parent, rootsAt(dir, "src")...)
	manifest := at + "/manifest.mtree"
	require.NoError(t, errors.Join(os.Chmod(manifest, 0o600), os.WriteFile(manifest, []byte("#mtree\n"), 0), os.Chmod(manifest, 0o400)))
	err := removeSnapshot(t, at)
	assert.ErrorIs(t, err, snapshot.ErrMismatch)
	assert.ErrorContains(t, err, manifest+": ")
}

// TestSnapshotWithoutItsLock was changed; it is not one that is not there.
func TestSnapshotWithoutItsLock(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1")
	at, digest := detached(t, parent, rootsAt(dir, "src")...)
	require.NoError(t, errors.Join(os.Chmod(at, 0o700), os.Remove(at+"/lock"), os.Chmod(at, 0o500)))
	assert.ErrorIs(t, errorOf(reopen(t, at, digest)), snapshot.ErrMismatch)
}

// TestRemoveTakesWhatItSaw, and nothing that came since.
func TestRemoveTakesWhatItSaw(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1")
	at, _ := detached(t, parent, rootsAt(dir, "src")...)
	seam := raceAt(raceWhen(func() { assert.NoError(t, os.Chmod(at+"/tree/src/a", 0o600)) }, "Chmod"))
	err := snapshot.RemoveSnapshotWith(t.Context(), at, snapshot.SeamOf(balanced(t, nil, seam)))
	assert.ErrorIs(t, err, snapshot.ErrChanged)
	assert.ErrorIs(t, err, snapshot.ErrLeftover)
	assert.FileExists(t, at+"/tree/src/a")
}

// TestOpenedBytesAreTheManifests: OpenSnapshot does not read them.
func TestOpenedBytesAreTheManifests(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "src/a=1")
	s, err := take(t, parent, nil, rootsAt(dir, "src")...)
	require.NoError(t, err)
	name := treeOf(s) + "/src/a"
	for text, want := range map[string]error{"2": snapshot.ErrMismatch, "1": nil} {
		require.NoError(t, errors.Join(os.Chmod(name, 0o600), os.WriteFile(name, []byte(text), 0), os.Chmod(name, 0o400)))
		f, err := s.Open(t.Context(), "src/a")
		assert.ErrorIs(t, err, want, text)
		if err == nil {
			assert.NoError(t, f.Close())
		}
	}
	require.NoError(t, errors.Join(os.Chmod(filepath.Dir(name), 0o700), os.Remove(name)))
	assert.ErrorIs(t, errorOf(s.Open(t.Context(), "src/a")), snapshot.ErrMismatch, "nothing")
	require.NoError(t, os.Symlink("b", name))
	assert.ErrorIs(t, errorOf(s.Open(t.Context(), "src/a")), snapshot.ErrMismatch, "a link")
}

// TestRootThatIsNoFileForAMoment is tried again, whenever that was.
func TestRootThatIsNoFileForAMoment(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"copied", "opened"} {
		dir, parent := sourcesIn(t, "tool=#!")
		tool := dir + "/tool"
		gone := func() {
			assert.NoError(t, os.Rename(tool, dir+"/away"))
			assert.NoError(t, unix.Mkfifo(tool, 0o600))
			fstest.Settle(t, dir) // what is young would be looked at again in any case
		}
		back := func() { assert.NoError(t, os.Rename(dir+"/away", tool)) }
		joined := 0
		seam := snapshot.Seam{Phase: func(phase string) {
			if phase != "joined" {
				return
			}
			switch joined++; joined {
			case 1:
				gone()
			case 2:
				back()
			}
		}}
		if when == "opened" {
			seam = raceAt(raceWhen(gone, "Pin tool", "Pin tool"), raceWhen(back, "Pin tool", "Pin tool", "Pin tool"))
		}
		s, err := takeWith(t.Context(), t, parent, nil, seam, rootsAt(dir, "tool")...)
		require.NoError(t, err, when)
		assert.Equal(t, map[string]string{".": "dir", "tool": `file "#!"`}, fstest.Contents(t, treeOf(s)), when)
	}
}

// TestRootsWeigh as what is in them does.
func TestRootsWeigh(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "empty/")
	for most, want := range map[int64]error{4: snapshot.ErrLimit, 5: nil} {
		_, err := take(t, parent, &snapshot.TakeOptions{Options: snapshot.Options{Limits: snapshot.Limits{MaxBytes: most}}}, rootsAt(dir, "empty")...)
		assert.ErrorIs(t, err, want, "%d bytes", most)
	}
}

// TestAliasInWhatIsLeftOut: a directory that was walked for what might be kept in it, and is left out after all.
func TestAliasInWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	dir, parent := sourcesIn(t, "app/out/x=1", "lib/a=2")
	opts := &snapshot.TakeOptions{
		Options: snapshot.Options{Exclude: filterOf(t, "app/out", "!app/out/none")},
		Aliases: []snapshot.Alias{{Name: "app/out/l", Target: "lib"}},
	}
	_, err := take(t, parent, opts, rootsAt(dir, "app", "lib")...)
	assert.ErrorIs(t, err, fs.ErrExist)
}
