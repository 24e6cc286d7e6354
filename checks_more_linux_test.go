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
						s.attack(race.put(fmt.Sprintf("d/new%d=november", n)))
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
		guards: "every staging directory is swept at once", want: snapshot.ErrUntrusted,
		attack: func(s *raceSite) snapshot.Seam { return failing(s, syscall.EWOULDBLOCK, "LockShared") },
	},
	{
		guards: "somebody is in the way in the copy", want: fs.ErrExist,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() { s.act(inStaging("tree/a", race.put)) }, "Create a"))
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

// inStaging acts on a name below the staging directory.
func inStaging(name string, do func(...string) act) act {
	return func(s *raceSite) error {
		found, err := filepath.Glob(filepath.Join(s.dir, "out", ".holdstill-*"))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("%d staging directories, %w", len(found), err)
		}
		rel, err := filepath.Rel(s.src(), filepath.Join(found[0], name))
		if err != nil {
			return err
		}
		return do(rel + "=in the way")(s)
	}
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
	_, err := snapshot.Open(filepath.Join(dir, "l"), nil)
	assert.ErrorIs(t, err, snapshot.ErrNotRegular)
	assert.ErrorContains(t, err, "a symbolic link")
}
