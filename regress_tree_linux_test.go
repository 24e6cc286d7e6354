// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// site is a source in which every change is old, and a place for its copy where nothing else is.
type site struct{ dir, src, dst string }

func newSite(t testing.TB, kind string, lines ...string) site {
	t.Helper()
	dir := fstest.Dir(t, kind)
	s := site{dir, filepath.Join(dir, "src"), filepath.Join(dir, "out/dst")}
	fstest.Make(t, dir, "out/")
	fstest.Make(t, s.src, lines...)
	fstest.Settle(t, s.src)
	return s
}

// move gives an entry of the source, or the source, another place, and what is at away its name.
func (s site) move(t testing.TB, name, away string) {
	t.Helper()
	assert.NoError(t, os.Rename(filepath.Join(s.src, name), filepath.Join(s.dir, away)))
}

// put writes a file. Like move it is for hooks, which run on workers: there a test must not end.
func (s site) put(t testing.TB, name, content string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(filepath.Join(s.src, name), []byte(content), 0o644))
}

// rewrite changes a file in place and puts its mtime back.
func (s site) rewrite(t testing.TB, name, content string) {
	t.Helper()
	at := filepath.Join(s.src, name)
	fi, err := os.Stat(at)
	if assert.NoError(t, err) {
		s.put(t, name, content)
		assert.NoError(t, os.Chtimes(at, time.Time{}, fi.ModTime()))
	}
}

// touch moves nothing but ctime.
func (s site) touch(t testing.TB, name string) {
	t.Helper()
	at := filepath.Join(s.src, name)
	fi, err := os.Stat(at)
	if assert.NoError(t, err) {
		assert.NoError(t, os.Chmod(at, fi.Mode().Perm()))
	}
}

// copied asserts that the copy is what the source is now.
func (s site) copied(t *testing.T, report *snapshot.Report, err error) {
	t.Helper()
	require.NoError(t, err)
	fstest.Equal(t, s.src, s.dst)
	assert.Equal(t, walkByHand(t, s.dst), entriesOf(t, report.Manifest))
}

// oncePhase returns a hook that runs f the first time that a phase is reached.
func oncePhase(phase string, f func()) func(string) {
	hook := once(phase, f)
	return func(now string) { _ = hook(now, "") }
}

// TestReplacedDirectoryTakesItsDriftsAway: what changed in a directory that was then replaced is in no tree any more.
func TestReplacedDirectoryTakesItsDriftsAway(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "A/f=one", "A/g=one")
	report, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 1}, snapshot.Seam{
		At: once("Read", func() { s.put(t, "A/f", "longer"); s.put(t, "A/g", "longer") }),
		Phase: oncePhase("joined", func() {
			s.move(t, "A", "away")
			fstest.Make(t, s.src, "A/f=another")
		}),
	})
	s.copied(t, report, err)
	assert.Equal(t, 2, report.Rounds)
}

// TestDirectoryThatCannotBeListedIsCopiedAnew: as a whole, since what lies beneath it may be gone while it is worked on.
func TestDirectoryThatCannotBeListedIsCopiedAnew(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "P/S/f=one", "P/S/g=one")
	rounds, made, failed := 0, 0, false
	report, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 1}, snapshot.Seam{
		Phase: func(phase string) {
			if phase == "joined" && rounds == 0 {
				s.put(t, "P/S/f", "longer")
				s.put(t, "P/new", "")
			}
			if phase == "collected" {
				rounds++
			}
		},
		At: func(call, name string) error {
			if call == "Rewind" && rounds == 1 && !failed {
				failed = true
				return syscall.ENOENT // as for a directory that was removed
			}
			if call == "Mkdir" && name == "S" {
				made++
			}
			return nil
		},
	})
	s.copied(t, report, err)
	assert.Equal(t, 2, report.Rounds)
	assert.Equal(t, 2, made)
}

// TestSuspectOfTheLastPassIsNotForgotten: each pass over the suspects finds a new one, the one behind the last pass was
// rewritten.
func TestSuspectOfTheLastPassIsNotForgotten(t *testing.T) {
	t.Parallel()
	const passes = 16
	for _, tries := range []int{1, 5} {
		lines := []string{"first=", "last="}
		for i := range passes + 1 {
			lines = append(lines, fmt.Sprintf("f%02d=one", i))
		}
		s := newSite(t, "", lines...)
		collecting, pass := false, 0
		report, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 1, Attempts: tries}, snapshot.Seam{
			Phase: func(phase string) {
				if phase == "joined" && !collecting {
					s.touch(t, "first")
				}
				collecting = true
			},
			Lacks: snapshot.NoLease,
			At: func(call, name string) error {
				if !collecting || call != "StatAt" || name != "last" {
					return nil
				}
				switch name := fmt.Sprintf("f%02d", pass); {
				case pass < passes:
					s.touch(t, name)
				case pass == passes:
					s.rewrite(t, name, "two")
				}
				pass++
				return nil
			},
		})
		require.Greater(t, pass, passes)
		if tries > 1 {
			s.copied(t, report, err)
			continue
		}
		change, ok := errors.AsType[*snapshot.ChangeError](err)
		require.True(t, ok, "%v", err)
		assert.Equal(t, snapshot.MetadataOnly, change.Reason)
		assert.NotEqual(t, change.Before, change.After, "what moved is said: %v", err)
	}
}

// TestRestlessSuspect: a file of which ctime never holds still, and that cannot be leased, is an error that says how it moved.
func TestRestlessSuspect(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "f=one")
	joined := false
	_, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 1, Attempts: 1}, snapshot.Seam{
		Lacks: snapshot.NoLease,
		Phase: func(string) { joined = true },
		At: func(call, name string) error {
			if joined && call == "StatAt" && name == "f" {
				fstest.Settle(t, s.src)
				s.touch(t, "f")
			}
			return nil
		},
	})
	change, ok := errors.AsType[*snapshot.ChangeError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, s.src+"/f", change.Path)
	assert.Equal(t, snapshot.MetadataOnly, change.Reason)
	assert.True(t, change.Before.ChangeTime.Before(change.After.ChangeTime), "%v", err)
	assert.True(t, snapshot.Retryable(err))
}

// TestDirectoryAndItsFilesAreSuspectsAtOnce: all workers look at them, each at its own; -race sees it.
func TestDirectoryAndItsFilesAreSuspectsAtOnce(t *testing.T) {
	t.Parallel()
	names := []string{"", "d"}
	for i := range 60 {
		names = append(names, fmt.Sprintf("d/f%d", i))
	}
	s := newSite(t, "", strings.Split(strings.Join(names[2:], "=x ")+"=x", " ")...)
	report, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 4}, snapshot.Seam{
		Phase: oncePhase("joined", func() {
			for _, name := range names {
				s.touch(t, name)
			}
		}),
	})
	s.copied(t, report, err)
	assert.Equal(t, 1, report.Rounds)
	assert.Equal(t, int64(len(names)), report.MetadataOnly)
}

// TestLeftOutEntryIsJudgedAgain: what was left out for what it was may be another thing in the next round, also if the
// directory does not show it.
func TestLeftOutEntryIsJudgedAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lines  []string
		opts   snapshot.Options
		change func(t *testing.T, s site)
		want   map[string]string
	}{
		"a FIFO, then a file": {
			[]string{"p|"},
			snapshot.Options{SkipSpecial: true},
			func(t *testing.T, s site) {
				s.move(t, "p", "away")
				fstest.Make(t, s.src, "p=file")
			},
			map[string]string{"p": `file "file"`},
		},
		"too large, then small": {
			[]string{"p=large"},
			snapshot.Options{Skip: func(_ string, st snapshot.State) bool { return st.Size > 4 && st.Mode.IsRegular() }},
			func(t *testing.T, s site) { s.rewrite(t, "p", "none") },
			map[string]string{"p": `file "none"`},
		},
		"closed, then open": {
			[]string{"p 0600=x"},
			snapshot.Options{Skip: func(_ string, st snapshot.State) bool { return st.Mode.Perm() == 0o600 }},
			func(t *testing.T, s site) { assert.NoError(t, os.Chmod(s.src+"/p", 0o644)) },
			map[string]string{"p": `file "x"`},
		},
		"an excluded file, then a directory with something to keep": {
			[]string{"p=x"},
			snapshot.Options{Exclude: filterOf(t, "p", "!p/keep")},
			func(t *testing.T, s site) {
				s.move(t, "p", "away")
				fstest.Make(t, s.src, "p/keep=k", "p/other=o")
			},
			map[string]string{"p": "dir", "p/keep": `file "k"`},
		},
	} {
		for _, restore := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, mtime restored %v", name, restore), func(t *testing.T) {
				t.Parallel()
				s := newSite(t, "", append(tt.lines, "f=f")...)
				fi, err := os.Stat(s.src)
				require.NoError(t, err)
				report, err := copyTreeWith(t.Context(), t, s.dst, s.src, &tt.opts, snapshot.Seam{Phase: oncePhase("joined", func() {
					tt.change(t, s)
					if restore {
						assert.NoError(t, os.Chtimes(s.src, time.Time{}, fi.ModTime()))
					}
				})})
				require.NoError(t, err)
				want := map[string]string{".": "dir", "f": `file "f"`}
				for path, entry := range tt.want {
					want[path] = entry
				}
				assert.Equal(t, want, fstest.Contents(t, s.dst))
				assert.Equal(t, walkByHand(t, s.dst), entriesOf(t, report.Manifest))
				assert.False(t, slices.ContainsFunc(report.Skipped, func(left snapshot.Skipped) bool { return left.Path == "p" }))
			})
		}
	}
}

// TestLateChangeIsNoFutureOne: a stamp more than a second ahead of the clock is one in the future only if the clock was read
// just then. A second has to pass for it: no stamp can be set.
func TestLateChangeIsNoFutureOne(t *testing.T) {
	t.Parallel()
	late := func(t *testing.T, s site, name string) func() {
		return func() {
			time.Sleep(1100 * time.Millisecond)
			s.put(t, name, "later")
		}
	}
	for name, seam := range map[string]func(t *testing.T, s site) snapshot.Seam{
		"after the start": func(t *testing.T, s site) snapshot.Seam {
			return snapshot.Seam{Phase: oncePhase("joined", late(t, s, "f"))}
		},
		"after the first of its batch": func(t *testing.T, s site) snapshot.Seam {
			return snapshot.Seam{At: once("Read", late(t, s, "g"))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "", "f=one", "g=one")
			report, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 1, Require: snapshot.Stable}, seam(t, s))
			s.copied(t, report, err)
			assert.NotEqual(t, snapshot.InstantNone, report.Instant)
		})
	}
}

// TestPanicWhileWaiting: Options.Progress is also called when nobody has anything to do but to wait.
func TestPanicWhileWaiting(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "f=one")
	value, finished := errors.New("thrown"), 0
	opts := snapshot.WithSeam(&snapshot.Options{Progress: func(p snapshot.Progress) {
		if p.Waiting != "" {
			panic(value)
		}
	}}, snapshot.Seam{
		At: once("Pin", func() { s.put(t, "f", "two") }),
		Finished: func(open, _ int64) {
			finished++
			assert.Zero(t, open)
		},
	})
	assert.PanicsWithValue(t, value, func() { _, _ = snapshot.CopyDir(t.Context(), s.dst, s.src, opts) })
	assert.Equal(t, 1, finished)
	fstest.Nothing(t, filepath.Dir(s.dst))
}

// TestFunctionThatEndsItsGoroutine: as t.FailNow of a test does. Then the caller's ends, too, with nothing left behind.
func TestFunctionThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*snapshot.Options{
		"Skip": {Skip: func(path string, _ snapshot.State) bool {
			if path == "f" {
				runtime.Goexit()
			}
			return false
		}},
		"Progress": {Progress: func(snapshot.Progress) { runtime.Goexit() }},
		"Progress while waiting": {Progress: func(p snapshot.Progress) {
			if p.Waiting != "" {
				runtime.Goexit()
			}
		}},
	} {
		s := newSite(t, "", "f=one")
		returned := false
		var caller sync.WaitGroup
		caller.Go(func() {
			_, _ = snapshot.CopyDir(t.Context(), s.dst, s.src, balanced(t, opts, snapshot.Seam{
				At: once("Pin", func() { s.put(t, "f", "young") }),
			}))
			returned = true
		})
		caller.Wait()
		assert.False(t, returned, name)
		fstest.Nothing(t, filepath.Dir(s.dst))
	}
}

// TestEntriesListedAtOnceCountTogether: two listings, each within the bound, are not when both are done.
func TestEntriesListedAtOnceCountTogether(t *testing.T) {
	t.Parallel()
	var lines []string
	for i := range 60 {
		lines = append(lines, fmt.Sprintf("a/%d=", i), fmt.Sprintf("b/%d=", i))
	}
	s := newSite(t, "", lines...)
	meet := make(chan struct{})
	var lists atomic.Int64
	seam := snapshot.Seam{At: func(call, _ string) error {
		if call != "List" {
			return nil
		}
		if n := lists.Add(1); n > 2 && n <= 6 { // the root's listing takes two calls, and so do those of a and of b
			select {
			case meet <- struct{}{}:
			case <-meet:
			}
		}
		return nil
	}}
	_, err := snapshot.Scan(t.Context(), s.src, balanced(t, &snapshot.Options{Workers: 2, Limits: snapshot.Limits{MaxEntries: 100}}, seam))
	limit, ok := errors.AsType[*snapshot.LimitError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, snapshot.LimitError{Path: limit.Path, Field: "MaxEntries", Limit: 100, Got: 101}, *limit)
}

// TestCancelInOneLargeDirectory: ctx ends the work on a directory, not only that between two.
func TestCancelInOneLargeDirectory(t *testing.T) {
	t.Parallel()
	const n = 100
	for _, tt := range []struct {
		line  string // of each entry
		phase string // after which
		call  string // the first such call comes with the end of ctx
		verb  func(ctx context.Context, s site, o *snapshot.Options) error
	}{
		{"f%d=", "", "List", scanOf},
		{"f%d => .", "", "Pin", scanOf},
		{"f%d=", "joined", "StatAt", scanOf},
		{"f%d => none", "proven", "StatAt", scanOf},
		{"f%d => .", "proven", "Symlink", copyOf},
		{"f%d=", "reported", "SetMtimeAt", copyOf},
	} {
		t.Run(tt.phase+" "+tt.call, func(t *testing.T) {
			t.Parallel()
			var lines []string
			for i := range n {
				lines = append(lines, fmt.Sprintf(tt.line, i))
			}
			s := newSite(t, "", lines...)
			cause := errors.New("the cause")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			began, calls := tt.phase == "", 0
			err := tt.verb(ctx, s, balanced(t, &snapshot.Options{Workers: 1, Links: snapshot.LinksInsideOrSkip}, snapshot.Seam{
				Phase: func(phase string) {
					if began = began || phase == tt.phase; began && tt.phase == "reported" {
						cancel(cause)
					}
				},
				At: func(call, _ string) error {
					if began && call == tt.call && (tt.phase != "reported" || ctx.Err() != nil) {
						calls++
						cancel(cause)
					}
					return nil
				},
			}))
			assert.ErrorIs(t, err, cause)
			assert.LessOrEqual(t, calls, 1, tt.call)
			fstest.Nothing(t, filepath.Dir(s.dst))
		})
	}
}

func scanOf(ctx context.Context, s site, o *snapshot.Options) error {
	return errorOf(snapshot.Scan(ctx, s.src, o))
}

func copyOf(ctx context.Context, s site, o *snapshot.Options) error {
	return errorOf(snapshot.CopyDir(ctx, s.dst, s.src, o))
}

// TestPerFileFollowsWhatIsThere: with no collect to find it, the directory is listed again when an entry of it is missed.
func TestPerFileFollowsWhatIsThere(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		call, name string
		change     func(t *testing.T, s site)
	}{
		"a file vanishes":          {"Pin", "g", func(t *testing.T, s site) { s.move(t, "g", "away") }},
		"a directory vanishes":     {"OpenDir", "d", func(t *testing.T, s site) { s.move(t, "d", "away") }},
		"a directory is replaced":  {"OpenDir", "d", func(t *testing.T, s site) { s.move(t, "d", "away"); fstest.Make(t, s.src, "d/new=n") }},
		"a directory becomes file": {"OpenDir", "d", func(t *testing.T, s site) { s.move(t, "d", "away"); fstest.Make(t, s.src, "d=file") }},
	} {
		s := newSite(t, "", "d/e=e", "f=f", "g=g")
		done := false
		report, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 1, PerFile: true}, snapshot.Seam{At: func(call, at string) error {
			if !done && call == tt.call && at == tt.name {
				done = true
				tt.change(t, s)
			}
			return nil
		}})
		if assert.NoError(t, err, name) {
			fstest.Equal(t, s.src, s.dst)
			assert.Equal(t, 2, report.Rounds, name)
		}
	}
}

// TestRootAwayForAMoment: installers replace a directory with two renames. That is a change, not a source that never was.
func TestRootAwayForAMoment(t *testing.T) {
	t.Parallel()
	for _, attempts := range []int{1, 3} {
		s := newSite(t, "", "f=one")
		_, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Attempts: attempts}, snapshot.Seam{
			Phase: oncePhase("joined", func() { s.move(t, "", "away") }),
		})
		change, ok := errors.AsType[*snapshot.ChangeError](err)
		require.True(t, ok, "%v", err)
		assert.Equal(t, snapshot.Vanished, change.Reason)
		assert.Equal(t, s.src, change.Path)
		assert.Equal(t, attempts, change.Attempts)
		assert.True(t, snapshot.Retryable(err), "%v", err)
	}
}
