// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// verbsOnF are the calls on a source that has one file, f.
var verbsOnF = map[string]verb{"CopyDir": copyOf, "Scan": scanOf, "CopyFile": copyFileOf, "ReadFile": readFileOf}

// TestHardLinkIsNoChange: a package store or a backup makes a second name of a file, or takes it away, and no content moves.
// The first round is good enough. A rewrite at the same moment that puts mtime back is not taken for that.
func TestHardLinkIsNoChange(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"Reopen", "Read", "joined", "collected"} {
		for what, f := range verbsOnF {
			if at == "joined" || at == "collected" {
				if what != "CopyDir" && what != "Scan" {
					continue
				}
			}
			t.Run(what+" at "+at, func(t *testing.T) {
				t.Parallel()
				s := newSite(t, "", "f=hello")
				hook := func(act func()) *snapshot.Options {
					run := once(at, act)
					return balanced(t, &snapshot.Options{Workers: 1, Attempts: 1}, snapshot.Seam{
						At: run, Phase: func(phase string) { _ = run(phase, "") },
					})
				}
				done := false
				err := f(t.Context(), s, hook(func() {
					assert.NoError(t, os.Link(s.src+"/f", s.dir+"/hard"))
					assert.NoError(t, os.Remove(s.dir+"/hard"))
					done = true
				}))
				assert.NoError(t, err)
				assert.True(t, done)

				if at != "joined" {
					return
				}
				s.dst += "2"
				err = f(t.Context(), s, hook(func() { s.rewrite(t, "f", "HELLO") }))
				assert.ErrorIs(t, err, snapshot.ErrChangedDuringSnapshot, "the control")
			})
		}
	}
}

// TestOneOfManyChanges: the error says which file it was, what moved and how often it was tried, and the report counts exactly.
func TestOneOfManyChanges(t *testing.T) {
	t.Parallel()
	const n = 500
	var lines []string
	for i := range n {
		lines = append(lines, fmt.Sprintf("d%d/f%d=%03d", i%7, i, i))
	}
	const path = "d5/f299"
	for name, tt := range map[string]struct {
		change func(t *testing.T, s site)
		reason snapshot.Reason
		text   string
		grown  int64 // bytes
		files  int64
	}{
		"size":  {func(t *testing.T, s site) { s.put(t, path, "longer") }, snapshot.Grew, "grew: size 3, now 6", 3, n},
		"short": {func(t *testing.T, s site) { s.put(t, path, "") }, snapshot.Shrank, "shrank: size 3, now 0", -3, n},
		"mode": {
			func(t *testing.T, s site) { assert.NoError(t, os.Chmod(s.src+"/"+path, 0o600)) }, snapshot.Modified,
			"modified: mode 0644, now 0600", 0, n,
		},
		"inode": {func(t *testing.T, s site) {
			fstest.Make(t, s.dir, "new=299")
			assert.NoError(t, os.Rename(s.dir+"/new", s.src+"/"+path))
		}, snapshot.Replaced, "replaced: another file has the name", 0, n},
		"kind": {
			func(t *testing.T, s site) { s.move(t, path, "away"); fstest.Make(t, s.src, path+" => f5") }, snapshot.TypeChanged,
			"type changed: it was a file, now a link", -3, n - 1,
		},
		"name": {func(t *testing.T, s site) { s.move(t, path, "away") }, snapshot.Vanished, "vanished: no file has the name", -3, n - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "", lines...)
			before, err := snapshot.Lstat(s.src + "/" + path)
			require.NoError(t, err)
			var after snapshot.State
			change := func() snapshot.Seam {
				return snapshot.Seam{Phase: oncePhase("joined", func() {
					tt.change(t, s)
					after, _ = snapshot.Lstat(s.src + "/" + path)
				})}
			}
			_, err = copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Attempts: 1}, change())
			e, ok := errors.AsType[*snapshot.ChangeError](err)
			require.True(t, ok, "%v", err)
			assert.Equal(t, s.src+"/"+path, e.Path)
			assert.Equal(t, tt.reason, e.Reason)
			assert.Equal(t, before, e.Before)
			assert.Equal(t, after, e.After)
			assert.Equal(t, 1, e.Attempts)
			assert.ErrorIs(t, err, snapshot.ErrChanged)
			assert.ErrorIs(t, err, snapshot.ErrChangedDuringSnapshot)
			assert.NotErrorIs(t, err, snapshot.ErrChangedBeforeSnapshot)
			assert.NotErrorIs(t, err, fs.ErrNotExist)
			assert.True(t, snapshot.Retryable(err))
			assert.True(t, strings.HasPrefix(err.Error(), s.src+"/"+path+": changed during snapshot: "+tt.text), "%v", err)

			s = newSite(t, "", lines...)
			report, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Links: snapshot.LinksVerbatim}, change())
			s.copied(t, report, err)
			assert.Equal(t, 2, report.Rounds)
			assert.Equal(t, tt.files, report.Files)
			assert.Equal(t, 3*n+tt.grown, report.Bytes)
			assert.Equal(t, report.Files+report.Dirs+report.Links, int64(report.Manifest.Len()))
		})
	}
}

// TestNoMoreThanTheSizeIsRead: of a file that grows by megabytes at a time a try reads one byte more than it had, and a Writer
// gets none of that.
func TestNoMoreThanTheSizeIsRead(t *testing.T) {
	t.Parallel()
	const size = 600 << 10
	for what, f := range map[string]verb{"CopyDir": copyOf, "Scan": scanOf, "CopyFile": copyFileOf, "ReadFile": readFileOf, "CopyTo": copyToOf} {
		s := newSite(t, "", "f=@600KiB")
		reads := int64(0)
		var progress int64
		opts := &snapshot.Options{Workers: 1, Attempts: 1, Progress: func(p snapshot.Progress) { progress = p.Bytes }}
		err := f(t.Context(), s, balanced(t, opts, snapshot.Seam{
			At: func(call, _ string) error {
				if call == "Read" {
					reads++
					return os.Truncate(s.src+"/f", reads<<22)
				}
				return nil
			},
		}))
		change, ok := errors.AsType[*snapshot.ChangeError](err)
		require.True(t, ok, "%s: %v", what, err)
		assert.Equal(t, snapshot.Grew, change.Reason, what)
		assert.Equal(t, int64(size), change.Before.Size, what)
		assert.Equal(t, reads<<22, change.After.Size, what)
		assert.LessOrEqual(t, reads, int64(3), "%s: reads", what)
		assert.LessOrEqual(t, progress, int64(size), "%s: bytes", what)
		fstest.Nothing(t, filepath.Dir(s.dst))
	}

	for _, grow := range []bool{false, true} {
		s := newSite(t, "", "f=@600KiB")
		f, err := snapshot.Open(s.src+"/f", balanced(t, nil, snapshot.Seam{At: func(call, _ string) error {
			if grow && call == "Read" {
				return os.Truncate(s.src+"/f", 8<<20)
			}
			return nil
		}}))
		require.NoError(t, err)
		got := 0
		_, err = f.CopyTo(t.Context(), writerFunc(func(p []byte) (int, error) { got += len(p); return len(p), nil }))
		assert.Equal(t, grow, errors.Is(err, snapshot.ErrChanged), "%v", err)
		assert.LessOrEqual(t, got, size)
		assert.True(t, grow || got == size, "the control")
		require.NoError(t, f.Close())
	}
}

// TestReplacedForEver: whoever renames a new file over the name at each try is not followed for ever.
func TestReplacedForEver(t *testing.T) {
	t.Parallel()
	for what, f := range verbsOnF {
		for _, attempts := range []int{1, 2, 4} {
			s := newSite(t, "", "f=hello")
			reads := 0
			err := f(t.Context(), s, balanced(t, &snapshot.Options{Workers: 1, Attempts: attempts}, snapshot.Seam{At: func(call, _ string) error {
				if call == "Read" {
					reads++
					assert.NoError(t, os.WriteFile(s.dir+"/new", fmt.Append(nil, reads, "...."), 0o644))
					assert.NoError(t, os.Rename(s.dir+"/new", s.src+"/f"))
				}
				return nil
			}}))
			change, ok := errors.AsType[*snapshot.ChangeError](err)
			require.True(t, ok, "%s: %v", what, err)
			assert.ErrorIs(t, err, snapshot.ErrChanged, what)
			assert.Equal(t, snapshot.Replaced, change.Reason, "%s: %v", what, err)
			assert.Equal(t, s.src+"/f", change.Path, what)
			assert.Equal(t, attempts, change.Attempts, what)
			assert.LessOrEqual(t, reads, 2*attempts, what)
			fstest.Nothing(t, filepath.Dir(s.dst))
		}
	}
}

// TestNamesComeAndGo: what was listed and is not there any more is a change, and never a raw "no such file".
func TestNamesComeAndGo(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		at     string
		change func(t *testing.T, s site)
		path   string // that vanished; the directory of what is new
	}{
		"a file before it is looked at":        {"Pin f", func(t *testing.T, s site) { s.move(t, "d/f", "away") }, "d/f"},
		"a file before it is opened":           {"Pin f, Reopen", func(t *testing.T, s site) { s.move(t, "d/f", "away") }, "d/f"},
		"a file before it is read":             {"Pin f, Read", func(t *testing.T, s site) { s.move(t, "d/f", "away") }, "d/f"},
		"a file once it is read":               {"joined", func(t *testing.T, s site) { s.move(t, "d/f", "away") }, "d/f"},
		"a link before it is looked at":        {"Pin l", func(t *testing.T, s site) { s.move(t, "d/l", "away") }, "d/l"},
		"a link before it is read":             {"ReadLink", func(t *testing.T, s site) { s.move(t, "d/l", "away") }, "d/l"},
		"a directory before it is looked at":   {"Pin d", func(t *testing.T, s site) { s.move(t, "d", "away") }, "d"},
		"a directory before it is opened":      {"OpenDir d", func(t *testing.T, s site) { s.move(t, "d", "away") }, "d"},
		"a directory once it is read":          {"joined", func(t *testing.T, s site) { s.move(t, "d", "away") }, "d"},
		"a new file once its place was passed": {"joined", func(t *testing.T, s site) { fstest.Make(t, s.src, "d/new=n") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, attempts := range []int{1, 3} {
				for what, f := range map[string]verb{
					"CopyDir": copyOf, "Scan": scanOf,
					"Verify": func(ctx context.Context, s site, o *snapshot.Options) error {
						return snapshot.Verify(ctx, s.src, manifestOf(t, walkByHand(t, s.src)...), o)
					},
				} {
					s := newSite(t, "", "d/f=hello", "d/l => f", "e=x")
					run := raceWhen(func() { tt.change(t, s) }, strings.Split(tt.at, ", ")...)
					err := f(t.Context(), s, balanced(t, &snapshot.Options{Workers: 1, Attempts: attempts, Links: snapshot.LinksVerbatim}, snapshot.Seam{
						At: run, Phase: func(phase string) { _ = run(phase, "") },
					}))
					if attempts > 1 {
						if what == "Verify" {
							assert.ErrorIs(t, err, snapshot.ErrMismatch, what)
						} else {
							assert.NoError(t, err, what)
						}
						continue
					}
					change, ok := errors.AsType[*snapshot.ChangeError](err)
					require.True(t, ok, "%s: %v", what, err)
					assert.ErrorIs(t, err, snapshot.ErrChangedDuringSnapshot, what)
					assert.NotErrorIs(t, err, fs.ErrNotExist, what)
					assert.True(t, snapshot.Retryable(err), what)
					if tt.path == "" {
						assert.Contains(t, change.Path, s.src+"/d", what)
						continue
					}
					assert.Equal(t, s.src+"/"+tt.path, change.Path, "%s: %v", what, err)
					assert.Equal(t, snapshot.Vanished, change.Reason, "%s: %v", what, err)
				}
			}
		})
	}
}

// TestFailedReads: a disk that fails is not a file that changed, and a file that its server knows no more is not a disk that
// fails.
func TestFailedReads(t *testing.T) {
	t.Parallel()
	for what, f := range verbsOnF {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "", "f=@600KiB")
			// run lets the nth of the calls fail, and returns how many there were.
			run := func(call string, nth int, failure error, attempts int) (calls int, err error) {
				err = f(t.Context(), s, balanced(t, &snapshot.Options{Workers: 1, Attempts: attempts}, snapshot.Seam{At: func(now, _ string) error {
					if now == call {
						if calls++; calls == nth {
							return failure
						}
					}
					return nil
				}}))
				return calls, err
			}

			reads, err := run("Read", 2, syscall.EIO, 3)
			assert.ErrorIs(t, err, syscall.EIO)
			assert.NotErrorIs(t, err, snapshot.ErrChanged)
			assert.False(t, snapshot.Retryable(err))
			assert.Equal(t, 2, reads, "it was tried again: %v", err)
			at, ok := errors.AsType[*fs.PathError](err)
			require.True(t, ok, "%v", err)
			assert.Equal(t, "read", at.Op)
			assert.Equal(t, s.src+"/f", at.Path)
			assert.ErrorContains(t, err, "at offset 262144: ")
			fstest.Nothing(t, filepath.Dir(s.dst))

			for _, call := range []string{"Pin", "Reopen", "Read"} {
				_, err = run(call, 1, syscall.ESTALE, 3)
				assert.NoError(t, err, "%s: a fresh look-up finds it", call)
				require.NoError(t, removeCopy(filepath.Dir(s.dst)))
				require.NoError(t, os.Mkdir(filepath.Dir(s.dst), 0o755))
			}
			_, err = run("Read", 2, syscall.ESTALE, 1)
			change, ok := errors.AsType[*snapshot.ChangeError](err)
			require.True(t, ok, "%v", err)
			assert.Equal(t, snapshot.Replaced, change.Reason, "%v", err)
			assert.Equal(t, s.src+"/f", change.Path)
			assert.True(t, snapshot.Retryable(err))
		})
	}
}

// TestPerFileSaysSo: where the tree is not proven to be one instant the report says so.
func TestPerFileSaysSo(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "a=1", "d/b=1")
	report, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 1, PerFile: true}, snapshot.Seam{
		Phase: oncePhase("joined", func() { s.put(t, "a", "2"); s.put(t, "d/b", "2") }),
	})
	require.NoError(t, err)
	assert.Equal(t, snapshot.InstantNone, report.Instant)
	assert.Equal(t, map[string]string{".": "dir", "a": `file "1"`, "d": "dir", "d/b": `file "1"`}, fstest.Contents(t, s.dst))
	report, err = copyTree(t, s.dst+"2", s.src, nil)
	require.NoError(t, err)
	assert.NotEqual(t, snapshot.InstantNone, report.Instant, "the control")
}

// tooLarge is beyond the bound that TestRaceOthers sets.
const tooLarge = 500 << 10

func truncateTo(name string, size int64) act {
	return func(s *raceSite) error { return os.Truncate(s.path(name), size) }
}

// recycle removes a file and makes another one, of the same size and with its mtime, and so on most file systems with its
// number, if nobody holds it.
func recycle(name string) act {
	return func(s *raceSite) error {
		path := s.path(name)
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fi, err := os.Stat(path)
		if err != nil {
			return err
		}
		return errors.Join(os.Remove(path), os.WriteFile(path, flipped(b), 0o644), os.Chtimes(path, fi.ModTime(), fi.ModTime()))
	}
}

// others are mutations beside those of TestRaceTree.
var others = []mutation{
	{name: "recycle the number", do: []act{recycle("d/b")}},
	{name: "recycle the number of a directory", do: []act{
		race.put("../new/d/b=recycled", "../new/d/c=recycled", "../new/d/sub/s=recycled"), race.move("d", "../gone"),
		func(s *raceSite) error { return os.RemoveAll(s.path("../gone")) },
		func(s *raceSite) error { return os.Mkdir(s.path("d"), 0o755) },
		race.move("../new/d/b", "d/b"), race.move("../new/d/c", "d/c"), race.move("../new/d/sub", "d/sub"),
	}, file: []error{fs.ErrNotExist, snapshot.ErrChanged}},
	{
		name: "to a file beyond the bound", do: []act{race.put("../huge="), truncateTo("../huge", tooLarge), race.move("../huge", "d/b")},
		tree: []error{snapshot.ErrLimit}, file: []error{snapshot.ErrLimit},
	},
	{
		name: "grow to a file beyond the bound", do: []act{truncateTo("d/b", tooLarge)}, writes: true,
		tree: []error{snapshot.ErrLimit}, file: []error{snapshot.ErrLimit},
	},
	{name: "second name made and removed", do: []act{race.link("d/b", "../hard"), race.remove("../hard")}},
	{name: "all is removed", do: []act{
		func(s *raceSite) error {
			for _, name := range []string{"a", "d", "e", "z"} {
				if err := os.RemoveAll(s.path(name)); err != nil {
					return err
				}
			}
			return nil
		},
	}, file: []error{fs.ErrNotExist, snapshot.ErrChanged}},
	{
		name: "another file system over the root", do: []act{race.other("../other"), race.bind("../other", "../src")},
		undo: race.unmount("../src"), root: true,
	},
	{
		name: "another file system over the root and away", do: []act{race.other("../other"), race.bind("../other", "../src")},
		back: race.unmount("../src"), undo: race.unmount("../src"), root: true,
	},
}

// TestRaceOthers makes a sample of the steps of a call each of the other mutations.
func TestRaceOthers(t *testing.T) {
	fstest.Leaks(t)
	limits := snapshot.Limits{MaxFileBytes: 400 << 10}
	for _, m := range others {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for _, v := range []raceVerb{
				{name: "CopyDir", stride: 13, opts: snapshot.Options{Workers: 1, PreserveMode: true, Limits: limits}, call: raceCopyDir},
				{name: "Scan in one round", stride: 13, opts: snapshot.Options{Workers: 1, Attempts: 1, Limits: limits}, call: raceScan},
			} {
				raceSteps(t, v, &m, m.tree, raceLookTree, raceTree)
			}
			for _, v := range []raceVerb{
				{name: "ReadFile", stride: 3, opts: snapshot.Options{Limits: limits}, call: raceReadFile},
				{name: "CopyFile", stride: 4, opts: snapshot.Options{Limits: limits}, call: raceCopyFile},
				{name: "OpenIn and CopyTo", stride: 3, opts: snapshot.Options{Attempts: 1, Limits: limits}, call: raceOpenIn},
			} {
				raceSteps(t, v, &m, m.file, raceLookFile, raceFile)
			}
		})
	}
}

// TestHeldFileKeepsItsNumber: who opened a file keeps its number from being given away, so a new file under the name is another
// one, by whatever it is compared.
func TestHeldFileKeepsItsNumber(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", "ext4", "ext4-128"} {
		t.Run("on "+kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, kind, "f=hello")
			path := s.src + "/f"
			ino := func() uint64 {
				var st unix.Stat_t
				require.NoError(t, unix.Lstat(path, &st))
				return st.Ino
			}
			anew := func() (before, after uint64) {
				fi, err := os.Stat(path)
				require.NoError(t, err)
				before = ino()
				require.NoError(t, os.Remove(path))
				require.NoError(t, os.WriteFile(path, []byte("HELLO"), 0o644))
				require.NoError(t, os.Chtimes(path, time.Time{}, fi.ModTime()))
				return before, ino()
			}
			f := open(t, path, nil)
			before, after := anew()
			assert.NotEqual(t, before, after, "the number of a file that is held")
			for verb, err := range map[string]error{"Check": f.Check(), "CopyTo": errorOf(f.CopyTo(t.Context(), io.Discard))} {
				change, ok := errors.AsType[*snapshot.ChangeError](err)
				require.True(t, ok, "%s: %v", verb, err)
				assert.Equal(t, snapshot.Replaced, change.Reason, verb)
				if verb == "CopyTo" {
					assert.ErrorIs(t, err, snapshot.ErrChangedBeforeSnapshot)
				}
			}
			require.NoError(t, f.Close())

			// Nobody holds what is only remembered.
			state, err := snapshot.Lstat(path)
			require.NoError(t, err)
			before, after = anew()
			now, err := snapshot.Lstat(path)
			require.NoError(t, err)
			assert.NotZero(t, state.Compare(now), "%d, then %d", before, after)
			if kind == "ext4" && before == after {
				assert.Equal(t, snapshot.Replaced, state.Compare(now), "by the birth time")
			}
		})
	}
}

// TestContextEndsTheTries: a file that changes at every look is given up when ctx ends, also in a pause between two tries.
func TestContextEndsTheTries(t *testing.T) {
	t.Parallel()
	for what, f := range verbsOnF {
		s := newSite(t, "", "f=hello")
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		var reads atomic.Int64
		err := f(ctx, s, balanced(t, &snapshot.Options{Workers: 1, Attempts: 1 << 20}, snapshot.Seam{At: func(call, _ string) error {
			if call == "Read" {
				if reads.Add(1) == 3 {
					cancel(cause)
				}
				s.put(t, "f", strings.Repeat("x", int(reads.Load())))
			}
			return nil
		}}))
		cancel(nil)
		assert.ErrorIs(t, err, cause, what)
		assert.ErrorContains(t, err, s.src, what)
		assert.Equal(t, int64(3), reads.Load(), what)
		fstest.Nothing(t, filepath.Dir(s.dst))
	}
}
