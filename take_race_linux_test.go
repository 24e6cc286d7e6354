// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// takeRoots are what is taken of raceTree: each of its parts is a root, so that every mutation of two parts is one of two
// roots. z is a link to a directory in d, which is copied twice.
var takeRoots = []string{"a", "d", "e", "z"}

// raceTake takes the parts of the source, and returns the snapshot's tree.
func raceTake(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
	got, manifest, err := raceTakenWith(t, s, opts)
	if err == nil {
		recorded, e := fromManifest(manifest)
		assert.NoError(t, e)
		assert.Equal(t, recorded, got, "the manifest and the copy")
	}
	return got, err
}

// raceTaken is raceTake of an engine that may be fooled.
func raceTaken(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
	got, _, err := raceTakenWith(t, s, opts)
	return got, err
}

func raceTakenWith(t *testing.T, s *raceSite, opts *snapshot.Options) (got map[string]string, m *snapshot.Manifest, err error) {
	snap, err := snapshot.Take(t.Context(), rootsAt(s.src(), takeRoots...), &snapshot.TakeOptions{Options: *opts, Parent: filepath.Dir(s.dst())})
	if err != nil {
		return nil, nil, err
	}
	got = digested(fstest.Read(t, treeOf(snap)))
	return got, snap.Manifest(), snap.Close()
}

// raceLookRoots returns what the roots are now, by their paths; nil if one of them is not there.
func raceLookRoots(s *raceSite) (map[string]string, error) {
	state := map[string]string{".": "dir 0500"}
	for _, name := range takeRoots {
		real, err := filepath.EvalSymlinks(s.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		fi, err := os.Lstat(real)
		if err != nil {
			return nil, err
		}
		root := map[string]string{}
		err = outside(func(t fstest.TB) {
			if fi.IsDir() {
				root = fstest.Read(t, real)
				return
			}
			root["."] = fstest.Read(t, filepath.Dir(real))[filepath.Base(real)]
		})
		if err != nil {
			return nil, err
		}
		for path, entry := range root {
			state[strings.TrimSuffix(name+"/"+path, "/.")] = entry
		}
	}
	return digested(state), nil
}

var takeVerbs = []raceVerb{
	{name: "Take", stride: 11, opts: snapshot.Options{Workers: 1, PreserveMode: true}, call: raceTake},
	{name: "Take in one round", stride: 37, opts: snapshot.Options{Workers: 1, PreserveMode: true, Attempts: 1}, call: raceTake},
	{name: "Take with fallbacks", stride: 41, opts: snapshot.Options{Workers: 1, PreserveMode: true}, call: raceTake, lacks: snapshot.NoLease | snapshot.NoClone},
}

// TestRaceTake changes the roots at every step of Take, in every way of TestRaceTree: what is taken is all roots as they were
// before, or all as they were after.
func TestRaceTake(t *testing.T) {
	fstest.Leaks(t)
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			allowed := m.tree
			if strings.HasPrefix(m.name, "root ") || strings.HasPrefix(m.name, "ancestor ") {
				// Then there is, for a while or for ever, no e.
				allowed = append([]error{fs.ErrNotExist, snapshot.ErrChanged}, allowed...)
			}
			for _, v := range takeVerbs {
				raceSteps(t, v, &m, allowed, raceLookRoots, raceTree)
			}
		})
	}
}

// takeChecks are attacks on several roots that one check of the engine alone notices.
var takeChecks = []raceCheck{
	{
		check: snapshot.CheckCollect, guards: "a root that was copied, and one that was not, are changed at once",
		lines: raceTree, look: raceLookRoots, opts: raceInOne, call: raceTaken,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() { s.attack(race.replace("d/b"), race.replace("e/f")) }, "Pin f", "Pin b"))
		},
	},
	{
		check: snapshot.CheckCollect, guards: "a file that is a root, and was copied, and another root are changed at once",
		lines: raceTree, look: raceLookRoots, opts: raceInOne, call: raceTaken,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() { s.attack(race.replace("a"), race.replace("e/f")) }, "Pin a", "Pin f"))
		},
	},
	{
		check: snapshot.CheckCollect, guards: "an entry of two nested roots is changed between its two copies",
		lines: raceTree, look: raceLookRoots, opts: raceInOne, call: raceTaken,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() { s.attack(race.replace("d/sub/s")) }, "Pin s", "Read", "Pin s"))
		},
	},
	{
		check: snapshot.CheckRoot, guards: "an ancestor of all roots is exchanged, and one of them changed where it is now",
		lines: raceTree, look: raceLookRoots, opts: raceInOne, call: raceTaken,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() {
				s.attack(race.other("../../b/src"), race.put("../../b/src/e/f=OUTSIDE", "../../b/src/z => d/sub"), race.exchange("../../a", "../../b"))
				s.act(race.rewrite("../../b/src/d/b"))
			}, "Pin b"))
		},
	},
	{
		check: snapshot.CheckSuspects, guards: "a root that was copied, and one that was not, are rewritten at once, and mtime put back",
		lines: raceTree, look: raceLookRoots, opts: raceInOne, call: raceTaken,
		attack: func(s *raceSite) snapshot.Seam {
			return raceAt(raceWhen(func() { s.attack(race.rewrite("a"), race.rewrite("e/f")) }, "Pin a", "Pin f"))
		},
	},
}

// TestTakeChecks makes each of the attacks on the whole engine.
func TestTakeChecks(t *testing.T) {
	t.Parallel()
	for _, c := range takeChecks {
		t.Run(c.guards, func(t *testing.T) {
			t.Parallel()
			s, got, err := c.run(t, 0)
			assert.True(t, c.right(s, got, err), "%s\nhad %v\ngot %v\nerror %v %s", c.guards, s.states, got, err, s.wrong)
		})
	}
}

// TestRaceTakeHandles: a root that the caller holds is what it holds, wherever its name leads; all the same it is taken at one
// instant with the others.
func TestRaceTakeHandles(t *testing.T) {
	t.Parallel()
	for step := 1; ; step += 3 {
		dir, parent := sourcesIn(t, "named/a=one", "held/a=one", "other/a=another")
		held, err := os.Open(dir + "/held")
		require.NoError(t, err)
		defer held.Close()
		fstest.Settle(t, dir)
		calls, attacked := 0, false
		s, err := takeWith(t.Context(), t, parent, &snapshot.TakeOptions{Options: snapshot.Options{Workers: 1}}, snapshot.Seam{At: func(call, _ string) error {
			if calls++; calls != step || call == "DropLease" {
				return nil
			}
			attacked = true
			for _, file := range []string{"/named/a", "/held/a"} {
				assert.NoError(t, os.WriteFile(dir+file+".new", []byte("two"), 0o600))
				assert.NoError(t, os.Rename(dir+file+".new", dir+file))
			}
			assert.NoError(t, os.Rename(dir+"/held", dir+"/gone"))
			return os.Rename(dir+"/other", dir+"/held")
		}}, snapshot.Root{Path: dir + "/named"}, snapshot.Root{File: held})
		require.NoError(t, err, "step %d", step)
		files := readTree(t, treeOf(s))
		states := []map[string]string{{"named/a": "one", "held/a": "one"}, {"named/a": "two", "held/a": "two"}}
		assert.True(t, maps.Equal(files, states[0]) || maps.Equal(files, states[1]), "step %d: %v", step, files)
		require.NoError(t, s.Close())
		if !attacked && calls < step {
			assert.Greater(t, step, 50)
			return
		}
	}
}
