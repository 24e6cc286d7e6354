//go:build weakened && linux

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// TestWeakened makes each attack of TestRaceChecks twice: on the whole engine, and on one without the check that it names,
// which must be fooled. A check that no attack needs would be in nobody's way if it were lost.
func TestWeakened(t *testing.T) {
	for check := snapshot.CheckType; check <= snapshot.CheckPublished; check++ {
		assert.True(t, slices.ContainsFunc(raceChecks, func(c raceCheck) bool { return c.check == check }), "an attack for check %d", check)
	}
	for _, c := range raceChecks {
		t.Run(c.guards, func(t *testing.T) {
			t.Parallel()
			s, got, err := c.run(t, 0)
			assert.True(t, c.right(s, got, err), "with the check: had %v\ngot %v\nerror %v %s", s.states, got, err, s.wrong)
			s, got, err = c.run(t, c.check)
			assert.True(t, c.fooled(s, got, err), "without the check: had %v\ngot %v\nerror %v %s", s.states, got, err, s.wrong)
		})
	}
}

// fooled reports a result that nobody may get: bytes that never were, or a thing done that must not be.
func (c *raceCheck) fooled(s *raceSite, got map[string]string, err error) bool {
	return s.wrong != "" || err == nil && (c.want != nil || s.had(got) < 0)
}

// siege is an adversary that runs free, and a check without which it wins.
type siege struct {
	attack string // with names in the directory of the test
	kind   string // of file system
	check  snapshot.Check
	lines  []string // of the tree src
	// victim is attacked without a check, and returns what it accepted or did and must not, nil if it refused.
	victim func(t *testing.T, dir string, off snapshot.Check) (wrong error)
}

var sieges = []siege{
	{
		attack: "torn --how chunks src/f", kind: "ext4", check: snapshot.CheckAfter,
		victim: siegeFile("chunks", readHandle),
	},
	{
		attack: "torn --how stall src/f", kind: "ext4", check: snapshot.CheckEvidence,
		victim: siegeFile("stall", snapshot.ReadFile),
	},
	{
		attack: "torn --how mmap-hold src/f", kind: "ext4", check: snapshot.CheckEvidence,
		victim: siegeFile("mmap-hold", snapshot.ReadFile),
	},
	{
		attack: "pair src/a src/z", check: snapshot.CheckCollect,
		lines: pairLines(), victim: siegeTree(writtenInOrder),
	},
	{
		attack: "pair --hide src/a src/z", check: snapshot.CheckSuspects,
		lines: pairLines(), victim: siegeTree(writtenInOrder),
	},
	{
		attack: "recycle src/a src/z", check: snapshot.CheckCollect,
		lines: pairLines(), victim: siegeTree(recycledInOrder),
	},
	{
		attack: "recycle src/a src/z", kind: "ext4-128", check: snapshot.CheckSettled,
		lines: pairLines(), victim: siegeTree(recycledInOrder),
	},
	{
		attack: "exchange src/a src/z", check: snapshot.CheckCollect,
		lines: pairLines(), victim: siegeTree(exchanged),
	},
	{
		attack: "renames --files 40 src", check: snapshot.CheckCollect,
		victim: siegeTree(func(files map[string]string) error { return renamedInOrder(files, 40) }),
	},
	{
		attack: "two --pause-max 500us src/sub", check: snapshot.CheckCollect,
		lines: []string{"sub/"}, victim: siegeTree(func(files map[string]string) error { return sameGeneration("", files) }),
	},
	{
		attack: "flicker src/sub other", check: snapshot.CheckMount,
		lines: []string{"sub/f=mine"}, victim: siegeTree(siegeMine),
	},
	{
		attack: "grow --pause-max 0s --max 67108864 --again src/f", kind: "ext4", check: snapshot.CheckGrowth,
		victim: siegeGrowth,
	},
}

// TestWeakenedSieges lets each adversary run free, at first against an engine without the check, which has to be fooled
// sooner or later, and then for as many tries against the whole one. Those who exchange something for a link have no check
// to win against: that no call follows one is no comparison that could be left out.
func TestWeakenedSieges(t *testing.T) {
	for _, s := range sieges {
		t.Run(fmt.Sprintf("%s, check %d", s.attack, s.check), func(t *testing.T) {
			dir := fstest.Dir(t, s.kind)
			fstest.Make(t, dir, "src/", "out/", "other/f=another")
			fstest.Make(t, filepath.Join(dir, "src"), s.lines...)
			words := strings.Fields(s.attack)
			for i, word := range words {
				if i > 0 && (strings.HasPrefix(word, "src") || word == "other") {
					words[i] = filepath.Join(dir, word)
				}
			}
			p := fstest.Start(t, slices.Insert(words, 1, "--side", dir, "--pause-max", "5ms")...)
			if strings.HasPrefix(s.attack, "grow") {
				stressBursts(t, p)
			}
			tries := 0
			for start, wrong := time.Now(), error(nil); wrong == nil; tries++ {
				require.Less(t, time.Since(start), stressPatience, "without the check nothing is wrong in %d tries", tries)
				wrong = s.victim(t, dir, s.check)
			}
			t.Logf("without the check it is fooled at try %d", tries)
			for range tries {
				require.NoError(t, s.victim(t, dir, 0), "with the check")
			}
		})
	}
}

func siegeFile(how string, read func(context.Context, string, *snapshot.Options) ([]byte, snapshot.Proof, error)) func(*testing.T, string, snapshot.Check) (wrong error) {
	return func(t *testing.T, dir string, off snapshot.Check) (wrong error) {
		b, _, err := read(t.Context(), filepath.Join(dir, "src/f"), without(off))
		if err == nil {
			_, wrong = tornState(b, how)
		}
		return wrong
	}
}

// readHandle reads a file of which no name is known.
func readHandle(ctx context.Context, name string, opts *snapshot.Options) (b []byte, proof snapshot.Proof, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, proof, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	f, err := snapshot.NewFile(file, opts)
	if err != nil {
		return nil, proof, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var buf bytes.Buffer
	proof, err = f.CopyTo(ctx, &buf)
	return buf.Bytes(), proof, err
}

func siegeTree(oracle func(files map[string]string) error) func(*testing.T, string, snapshot.Check) (wrong error) {
	return func(t *testing.T, dir string, off snapshot.Check) (wrong error) {
		dst := filepath.Join(dir, "out/dst")
		report, err := snapshot.CopyDir(t.Context(), dst, filepath.Join(dir, "src"), without(off))
		if err != nil {
			return nil
		}
		defer discard(t, dst)
		if report.Instant == snapshot.InstantNone {
			// Only each file for itself: on ext4-128 what changes all the time is too young for more.
			return nil
		}
		return oracle(readTree(t, dst))
	}
}

func siegeMine(files map[string]string) error {
	if files["sub/f"] != "mine" {
		return fmt.Errorf("what was mounted there: %v", files)
	}
	return nil
}

func siegeGrowth(t *testing.T, dir string, off snapshot.Check) (wrong error) {
	wrong, _ = follows(t.Context(), filepath.Join(dir, "src/f"), off)
	return wrong
}

func without(off snapshot.Check) *snapshot.Options {
	return snapshot.WithSeam(nil, snapshot.Seam{Off: off})
}
