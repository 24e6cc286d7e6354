// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
	"holdstill.example/snapshot/internal/fsys"
)

// raceCheck is an attack that one check of the engine alone notices: with the check the call ends as it must, without it a
// build with the tag weakened gets it wrong.
type raceCheck struct {
	check  snapshot.Check
	guards string
	kind   string // of file system; "stores" is any that stamps mapped stores
	root   bool
	lines  []string
	look   raceLook
	opts   snapshot.Options
	call   raceCall
	before func(t *testing.T, s *raceSite) // before the tree is left alone to settle
	attack func(s *raceSite) snapshot.Seam
	want   error // that the call must return; nil is the last state of the source
}

func (c *raceCheck) right(s *raceSite, got map[string]string, err error) bool {
	if c.want != nil {
		return s.wrong == "" && errors.Is(err, c.want)
	}
	return s.wrong == "" && err == nil && maps.Equal(got, s.states[len(s.states)-1])
}

var raceChecks = []raceCheck{
	{
		check: snapshot.CheckType, guards: "a FIFO is not opened: its writer would wake",
		lines: raceTree, look: raceLookTree, opts: raceInOne, call: raceCopied,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(
				raceWhen(func() { s.attack(race.remove("d/b"), race.put("d/b|")) }, "Pin b"),
				func(_, _ string) error {
					if s.attacks == 0 {
						return nil
					}
					fd, err := unix.Open(s.path("d/b"), unix.O_WRONLY|unix.O_NONBLOCK, 0)
					if err != nil { // ENXIO: nobody has it open for reading
						return nil
					}
					s.wrong = "the FIFO was opened"
					return unix.Close(fd)
				},
			)
		},
		want: snapshot.ErrNotRegular,
	},
	{
		check: snapshot.CheckPin, guards: "without /proc the name may be mounted over between pin and open", root: true,
		lines: raceTree, look: raceLookTree, opts: raceInOne, call: raceCopied,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(
				func(call, _ string) error {
					if call == "Reopen" {
						return errors.ErrUnsupported
					}
					return nil
				},
				raceWhen(func() { s.act(race.other("../other"), race.bind("../other/d/b", "d/b")) }, "OpenFile b"),
				raceWhen(func() { s.act(race.unmount("d/b")) }, "OpenFile b", "*"),
			)
		},
	},
	{
		check: snapshot.CheckGrowth, guards: "a file grows whenever it is read, without an end",
		lines: raceFile, look: raceLookFile, call: raceOpen,
		attack: func(s *raceSite) snapshot.Seam {
			reads := 0
			return raceAt(func(call, _ string) error {
				if call != "Read" {
					return nil
				}
				if reads++; reads > 8 {
					s.wrong = "it was read on and on"
					return unix.EIO
				}
				s.act(race.grow("d/b"))
				return nil
			})
		},
		want: snapshot.ErrChanged,
	},
	{
		check: snapshot.CheckAfter, guards: "a file without a name is rewritten between two reads",
		lines: raceFile, look: raceLookFile, call: raceNewFile,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() { s.attack(race.rewrite("d/b")) }, "Read", "Read"))
		},
		want: snapshot.ErrChanged,
	},
	{
		check: snapshot.CheckName, guards: "the name is mounted over, which leaves no trace in the file", root: true,
		lines: raceFile, look: raceLookFile, call: raceOpenCheck,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() { s.attack(race.other("../other"), race.bind("../other/d/b", "d/b")) }, "Reopen", "Stat", "*"))
		},
		want: snapshot.ErrChanged,
	},
	{
		check: snapshot.CheckSettled, guards: "a stamp in whole seconds is the same before and after a write", kind: "ext4-128",
		lines: raceFile, look: raceLookFile, call: raceReadFile,
		attack: func(s *raceSite) snapshot.Seam { // the second has just begun, since the tree has settled
			return raceAt(
				raceWhen(func() { s.attack(race.rewrite("d/b")) }, "*"),
				raceWhen(func() { s.attack(race.rewrite("d/b")) }, "Read", "Read"),
			)
		},
	},
	{
		check: snapshot.CheckEvidence, guards: "a store through a mapping that is dirty already leaves no stamp", kind: "stores",
		lines: raceFile, look: raceLookFile, call: raceReadFile,
		before: func(t *testing.T, s *raceSite) {
			f, err := os.OpenFile(s.path("d/b"), os.O_RDWR, 0)
			require.NoError(t, err)
			defer f.Close()
			s.mapped, err = unix.Mmap(int(f.Fd()), 0, 300<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, unix.Munmap(s.mapped)) })
			copy(s.mapped, flipped(s.mapped))
		},
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() {
				s.attack(func(*raceSite) error {
					copy(s.mapped, flipped(s.mapped))
					return nil
				})
			}, "Read", "Read"))
		},
	},
	{
		check: snapshot.CheckListing, guards: "two names that never were together are listed in two pieces",
		lines: []string{"a/src/d/", "out/"}, look: raceLookTree, opts: snapshot.Options{Workers: 1, PerFile: true, PreserveMode: true}, call: raceCopied,
		before: raceLongNames,
		attack: raceSwapListed,
	},
	{
		check: snapshot.CheckDirIdentity, guards: "a directory opened again is another one, which is changed when it is outside",
		lines: raceTree, look: raceLookTree, opts: snapshot.Options{Workers: 1, PerFile: true, PreserveMode: true}, call: raceCopied,
		attack: func(s *raceSite) snapshot.Seam {
			again := []string{"OpenDir d", "OpenDir d", "OpenDir d"} // the source, the copy, and the source in the second round
			return raceAt(
				raceWhen(func() { s.attack(race.grow("d/b")) }, "Pin b", "Read"),
				raceWhen(func() { s.attack(race.other("../other"), race.exchange("d", "../other/d")) }, again...),
				raceWhen(func() { s.attack(race.exchange("d", "../other/d"), race.rewrite("../other/d/b")) }, append(again, "*")...),
			)
		},
	},
	{
		check: snapshot.CheckCollect, guards: "a file that was copied and one that was not are replaced at once",
		lines: raceTree, look: raceLookTree, opts: raceInOne, call: raceCopied,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() { s.attack(race.replace("a"), race.replace("e/f")) }, "Pin f"))
		},
	},
	{
		check: snapshot.CheckRoot, guards: "an ancestor is exchanged, and the tree changed where it is now",
		lines: raceTree, look: raceLookTree, opts: raceInOne, call: raceCopied,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() {
				s.attack(race.other("../../b/src"), race.exchange("../../a", "../../b"))
				s.act(race.rewrite("../../b/src/d/b"))
			}, "Pin b"))
		},
	},
	{
		check: snapshot.CheckMount, guards: "another file system is mounted in the tree", root: true,
		lines: raceTree, look: raceLookTree, opts: raceInOne, call: raceCopied,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() { s.attack(race.other("../other"), race.bind("../other/d", "d")) }, "Pin d"))
		},
		want: snapshot.ErrEscapes,
	},
	{
		check: snapshot.CheckSuspects, guards: "a file that was copied and one that was not are rewritten at once, and mtime put back",
		lines: raceTree, look: raceLookTree, opts: raceInOne, call: raceCopied,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() { s.attack(race.rewrite("a"), race.rewrite("e/f")) }, "Pin f"))
		},
	},
	{
		check: snapshot.CheckOthers, guards: "the suspect is as it was copied again, and another file is not any more",
		lines: raceTree, look: raceLookTree, opts: raceInOne, call: raceCopied,
		attack: func(s *raceSite) snapshot.Seam {
			seam := raceAt(raceWhen(func() { s.attack(race.rewrite("a"), race.rewrite("e/f")) }, "Pin f"))
			once := false
			seam.Phase = func(phase string) {
				if phase == "collected" && !once {
					once = true
					s.attack(race.rewrite("a"), race.rewrite("e/f"))
				}
			}
			return seam
		},
	},
	{
		check: snapshot.CheckPublished, guards: "the name is given to another directory as soon as it is there",
		lines: raceTree, look: raceLookTree, opts: raceInOne, call: raceCopied,
		attack: func(s *raceSite) snapshot.Seam {
			return snapshot.Seam{Phase: func(phase string) {
				if phase == "published" {
					s.act(race.other("../../out/evil"), race.exchange("../../out/evil", "../../out/dst"))
				}
			}}
		},
		want: snapshot.ErrUntrusted,
	},
}

var raceInOne = snapshot.Options{Workers: 1, PreserveMode: true}

// TestRaceChecks makes each of the attacks on the whole engine.
func TestRaceChecks(t *testing.T) {
	t.Parallel()
	for _, c := range raceChecks {
		t.Run(c.guards, func(t *testing.T) {
			t.Parallel()
			s, got, err := c.run(t, 0)
			assert.True(t, c.right(s, got, err), "%s\nhad %v\ngot %v\nerror %v %s", c.guards, s.states, got, err, s.wrong)
		})
	}
}

// run makes the attack on an engine without the check off, after the same call on a quiet source.
func (c *raceCheck) run(t *testing.T, off snapshot.Check) (*raceSite, map[string]string, error) {
	if c.root {
		fstest.NeedRoot(t)
	}
	dir := c.dir(t)
	sites := make([]*raceSite, 2)
	for i := range sites {
		s := &raceSite{dir: filepath.Join(dir, fmt.Sprint(i)), look: c.look}
		fstest.Make(t, s.dir, c.lines...)
		if c.before != nil {
			c.before(t, s)
		}
		s.note()
		sites[i] = s
	}
	quiet, s := sites[0], sites[1]
	fstest.Settle(t, dir)
	got, err := c.call(t, quiet, snapshot.WithSeam(&c.opts, snapshot.Seam{Off: off}))
	require.NoError(t, err, "a quiet source")
	require.Equal(t, quiet.states[0], got, "a quiet source")
	fstest.Settle(t, dir)
	seam := c.attack(s)
	seam.Off = off
	got, err = c.call(t, s, snapshot.WithSeam(&c.opts, seam))
	for _, mounted := range []string{"d", "d/b"} {
		if c.root {
			s.act(race.unmount(mounted))
		}
	}
	require.NoError(t, s.err, "the adversary")
	require.NotEmpty(t, s.attacks, "the adversary did nothing")
	return s, got, err
}

func (c *raceCheck) dir(t *testing.T) string {
	if c.kind != "stores" {
		return fstest.Dir(t, c.kind)
	}
	var vfs unix.Statfs_t
	require.NoError(t, unix.Statfs(os.TempDir(), &vfs))
	switch uint32(vfs.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC:
		return fstest.TempDir(t)
	}
	return fstest.Dir(t, "ext4")
}

// raceAt runs all hooks before each call.
func raceAt(hooks ...func(call, name string) error) snapshot.Seam {
	var mu sync.Mutex
	return snapshot.Seam{At: func(call, name string) error {
		mu.Lock()
		defer mu.Unlock()
		for _, hook := range hooks {
			if err := hook(call, name); err != nil {
				return err
			}
		}
		return nil
	}}
}

// raceWhen runs f once, before the last of calls that come in this order, whatever lies between; "*" is the next call.
func raceWhen(f func(), calls ...string) func(call, name string) error {
	return func(call, name string) error {
		if len(calls) == 0 || calls[0] != "*" && calls[0] != strings.TrimSpace(call+" "+name) && calls[0] != call {
			return nil
		}
		if calls = calls[1:]; len(calls) == 0 {
			f()
		}
		return nil
	}
}

// raceCopied returns what was really copied.
func raceCopied(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
	if _, err := snapshot.CopyDir(t.Context(), s.dst(), s.src(), opts); err != nil {
		return nil, err
	}
	return digested(fstest.Read(t, s.dst())), nil
}

func raceNewFile(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
	file, err := os.Open(s.path("d/b"))
	require.NoError(t, err)
	defer file.Close()
	f, err := snapshot.NewFile(file, opts)
	return raceCopyTo(t, f, err)
}

func raceOpenCheck(_ *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
	f, err := snapshot.Open(s.path("d/b"), opts)
	if err != nil {
		return nil, err
	}
	return s.states[0], errors.Join(f.Check(), f.Close())
}

// raceLongNames fills d with so many names that no listing comes in one piece.
func raceLongNames(t *testing.T, s *raceSite) {
	for i := range 300 {
		require.NoError(t, os.WriteFile(s.path(fmt.Sprintf("d/f%03d-%s", i, strings.Repeat("x", 200))), nil, 0o644))
	}
}

// raceSwapListed gives one file a second name while d is listed, such that the listing has both, and later whichever of the
// two is looked for.
func raceSwapListed(s *raceSite) snapshot.Seam {
	var old, now string
	return raceAt(
		raceWhen(func() {
			s.attack(func(*raceSite) (err error) {
				old, now, err = raceRenameAhead(s.path("d"))
				return err
			})
		}, "OpenDir d", "List", "List"),
		func(call, name string) error {
			switch {
			case call != "Pin" || old == "":
			case name == old && isGone(s.path("d/"+old)):
				s.act(race.move("d/"+now, "d/"+old))
			case name == now && isGone(s.path("d/"+now)):
				s.act(race.move("d/"+old, "d/"+now))
			}
			return nil
		},
	)
}

// raceRenameAhead renames a file that comes in the first piece of a listing so that it comes again in a later one. Where a
// file system puts a new name is its own business, so it tries.
func raceRenameAhead(dir string) (old, now string, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	fd := int(f.Fd())
	first, err := raceList(fd, true)
	if err != nil {
		return "", "", err
	}
	here, err := unix.Seek(fd, 0, unix.SEEK_CUR)
	if err != nil {
		return "", "", err
	}
	old = first[0]
	for i := range 100 {
		now = fmt.Sprintf("new%02d", i)
		if err := os.Rename(filepath.Join(dir, old), filepath.Join(dir, now)); err != nil {
			return "", "", err
		}
		if _, err := unix.Seek(fd, here, unix.SEEK_SET); err != nil {
			return "", "", err
		}
		later, err := raceList(fd, false)
		if err != nil || slices.Contains(later, now) {
			return old, now, err
		}
		if err := os.Rename(filepath.Join(dir, now), filepath.Join(dir, old)); err != nil {
			return "", "", err
		}
	}
	return "", "", errors.New("every new name is listed first")
}

// raceList reads the names that come next, all of them or one piece as large as the engine asks for.
func raceList(fd int, piece bool) (names []string, err error) {
	buf := make([]byte, fsys.ListBufferSize)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n == 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
		if piece {
			return names, nil
		}
	}
}
