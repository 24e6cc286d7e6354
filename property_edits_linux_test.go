// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// editPlan is one call and the edits that happen meanwhile; it follows from the seed, but for those that are taken out.
type editPlan struct {
	seed  uint64
	verb  raceVerb
	late  bool // steps count from the join on, when all is copied
	edits []plannedEdit
}

type plannedEdit struct {
	step int // of the call
	seed uint64
}

func newEditPlan(seed uint64) *editPlan {
	rnd := rand.New(rand.NewPCG(seed, 2))
	p := &editPlan{seed: seed, verb: pick(rnd, editVerbs)}
	step, gap := rnd.IntN(100), pick(rnd, []int{4, 20, 80})
	if p.verb.name != "ReadFile" && rnd.IntN(3) == 0 {
		p.late, step, gap = true, rnd.IntN(20), 20
	}
	for range 1 + rnd.IntN(6) {
		p.edits = append(p.edits, plannedEdit{step, rnd.Uint64()})
		step += rnd.IntN(gap)
	}
	return p
}

var editVerbs = []raceVerb{
	{name: "CopyDir", opts: snapshot.Options{Workers: 1}, call: raceCopyDir},
	{name: "CopyDir in one round", opts: snapshot.Options{Workers: 1, Attempts: 1}, call: raceCopyDir},
	{name: "CopyDir with fallbacks", opts: snapshot.Options{Workers: 1, Attempts: 1}, call: raceCopyDir, lacks: snapshot.NoLease | snapshot.NoRenameNoReplace},
	{name: "Scan", opts: snapshot.Options{Workers: 1, Attempts: 1}, call: raceScan},
	{name: "CopyDir with four workers", opts: snapshot.Options{Workers: 4, Attempts: 1}, call: raceCopyDir},
	{name: "Scan with four workers", opts: snapshot.Options{Workers: 4}, call: raceScan},
	{name: "ReadFile", opts: snapshot.Options{Attempts: 1}, call: readFirst},
}

// readFirst returns a state of which only the file f0 is known.
func readFirst(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
	b, _, err := snapshot.ReadFile(t.Context(), s.path("f0"), opts)
	if err != nil {
		return nil, err
	}
	return map[string]string{"f0": fmt.Sprintf("%d bytes %x", len(b), sha256.Sum256(b))}, nil
}

// editOutcome is what came of a plan.
type editOutcome struct {
	plan *editPlan
	err  error
	had  int // which state was returned, -1 for one that never was
	last int // state of the source
	text string
}

func (o *editOutcome) wrong() bool { return o.err == nil && o.had < 0 }

// fail says how a wrong result came about, with as few edits as will do.
func (o *editOutcome) fail(t *testing.T) {
	t.Helper()
	dir := raceDir(t)
	tries := 0
	again := func(p *editPlan) editOutcome {
		tries++
		e, err := p.prepare(filepath.Join(dir, strconv.Itoa(tries)))
		require.NoError(t, err)
		fstest.Settle(t, dir)
		return p.run(t, e, 0)
	}
	few := o.plan.shrink(func(p *editPlan) bool {
		now := again(p)
		return now.wrong()
	})
	assert.Fail(t, "a state that the source never had", "%s\nand with as few edits as will do: %+v, %s\nagain: %s=%d go test -count=1 -run '^%s$' .",
		o.text, few.edits, again(few).text, seedVariable, o.plan.seed, t.Name())
}

// prepare makes the source of a plan in a new directory.
func (p *editPlan) prepare(dir string) (*editor, error) {
	return newEditor(rand.New(rand.NewPCG(p.seed, 3)), dir, p.verb.opts.Workers == 1 && p.seed%2 == 0)
}

// seam runs the edits that are due before each step. Several workers come here at the same time.
func (p *editPlan) seam(e *editor) snapshot.Seam {
	var mu sync.Mutex
	step, next, counts := 0, 0, !p.late
	return snapshot.Seam{
		At: func(string, string) error {
			mu.Lock()
			defer mu.Unlock()
			for ; counts && next < len(p.edits) && p.edits[next].step <= step; next++ {
				e.edit(p.edits[next].seed)
			}
			if counts {
				step++
			}
			return nil
		},
		Phase: func(phase string) {
			mu.Lock()
			defer mu.Unlock()
			counts = counts || phase == "joined"
		},
	}
}

// run makes the call and judges its result.
func (p *editPlan) run(t *testing.T, e *editor, off snapshot.Check) editOutcome {
	s := e.site
	seam := p.seam(e)
	seam.Off, seam.Lacks = off, p.verb.lacks
	seam.Finished = func(open, _ int64) { assert.Zero(t, open, "seed %d: open handles", p.seed) }
	opts := p.verb.opts
	opts.PreserveMode, opts.Links = true, snapshot.LinksVerbatim
	got, err := p.verb.call(t, s, snapshot.WithSeam(&opts, seam))
	o := p.judge(e, got, err)
	if err != nil {
		assert.True(t, snapshot.Retryable(err) || p.mayFail(s), "seed %d: %v", p.seed, err)
		assert.NoFileExists(t, s.dst())
	}
	left := []string{"dst"}
	if isGone(s.dst()) {
		left = nil
	}
	fstest.Nothing(t, filepath.Dir(s.dst()), left...)
	assert.NoError(t, s.err, "seed %d: the edits", p.seed)
	now, err := raceLookTree(s)
	assert.NoError(t, err)
	assert.Equal(t, s.states[len(s.states)-1], now, "seed %d: the model and the tree after %q", p.seed, e.log)
	return o
}

func (p *editPlan) judge(e *editor, got map[string]string, err error) editOutcome {
	s := e.site
	o := editOutcome{plan: p, err: err, had: s.had(got), last: len(s.states) - 1}
	if p.verb.name == "ReadFile" {
		o.had = slices.IndexFunc(s.states, func(state map[string]string) bool {
			return got != nil && strings.HasPrefix(state["f0"], "file ") && strings.HasSuffix(state["f0"], got["f0"])
		})
	}
	o.text = fmt.Sprintf("%s, edits %q\nhad %v\ngot %v", p.verb.name, e.log, s.states, got)
	return o
}

// mayFail: a file that is not always there.
func (p *editPlan) mayFail(s *raceSite) bool {
	return p.verb.name == "ReadFile" && slices.ContainsFunc(s.states, func(state map[string]string) bool {
		return !strings.HasPrefix(state["f0"], "file ")
	})
}

// shrink takes out edits as long as the result stays wrong.
func (p *editPlan) shrink(fails func(*editPlan) bool) *editPlan {
	for i := 0; i < len(p.edits); {
		less := *p
		less.edits = slices.Delete(slices.Clone(p.edits), i, i+1)
		if fails(&less) {
			p = &less
		} else {
			i++
		}
	}
	return p
}

// carelessCopy reads a tree as most programs do.
func carelessCopy(s *raceSite, step func(call, name string) error) map[string]string {
	state := map[string]string{}
	var walk func(p string)
	walk = func(p string) {
		_ = step("lstat", p)
		name := s.path(p)
		fi, err := os.Lstat(name)
		if err != nil {
			return
		}
		_ = step("open", p)
		x := &thing{mode: fi.Mode()}
		switch fi.Mode().Type() {
		case fs.ModeDir:
			entries, _ := os.ReadDir(name)
			x.describe(p, state)
			for _, e := range entries {
				walk(path.Join(p, e.Name()))
			}
			return
		case fs.ModeSymlink:
			x.text, _ = os.Readlink(name)
		default:
			b, _ := os.ReadFile(name)
			x.text = string(b)
		}
		x.describe(p, state)
	}
	walk(".")
	return state
}

// TestStressEdits changes a random tree by random edits at random steps of a call. What the call returns must be a state that
// the tree had while it ran.
func TestStressEdits(t *testing.T) {
	t.Parallel()
	seed, asked := firstSeed(t)
	n := stressTries(t, 150, 5_000, 100_000)
	if asked {
		n = 1
	}
	dir := raceDir(t)
	var accepted, between, refused, mixed int
	for begin := 0; begin < n; begin += 50 {
		outcomes := editBatch(t, dir, seed+uint64(begin), min(50, n-begin), 0)
		for _, o := range outcomes {
			switch {
			case o.err != nil:
				refused++
			default:
				accepted++
			}
			if o.err == nil && o.last > 0 {
				between++
			}
			if o.wrong() {
				o.fail(t)
			}
		}
		mixed += carelessBatch(t, dir, seed+uint64(begin), min(50, n-begin))
	}
	t.Logf("edits: tries %d, accepted %d, of these %d after a change, refused %d; a careless copier mixes states %d times", n, accepted, between, refused, mixed)
	if asked {
		return
	}
	assert.Greater(t, accepted, n/5, "accepted")
	assert.Greater(t, between, n/10, "accepted although the tree changed")
	assert.Greater(t, refused, n/20, "refused")
	assert.Greater(t, mixed, n/20, "mixed by a careless copier")
}

// editBatch runs n plans at a time: most of the time a call that met an edit waits for a clock tick.
func editBatch(t *testing.T, dir string, seed uint64, n int, off snapshot.Check) []editOutcome {
	t.Helper()
	dir = filepath.Join(dir, "batch") // the next one must find room
	defer func() { assert.NoError(t, os.RemoveAll(dir)) }()
	plans, editors := make([]*editPlan, n), make([]*editor, n)
	for i := range n {
		plans[i] = newEditPlan(seed + uint64(i))
		var err error
		editors[i], err = plans[i].prepare(filepath.Join(dir, strconv.Itoa(i)))
		require.NoError(t, err)
	}
	fstest.Settle(t, dir)
	outcomes := make([]editOutcome, n)
	var wg sync.WaitGroup
	turns := make(chan struct{}, 8)
	for i, p := range plans {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			outcomes[i] = p.run(t, editors[i], off)
		})
	}
	wg.Wait()
	return outcomes
}

func carelessBatch(t *testing.T, dir string, seed uint64, n int) (mixed int) {
	t.Helper()
	dir = filepath.Join(dir, "careless")
	defer func() { assert.NoError(t, os.RemoveAll(dir)) }()
	for i := range n {
		p := newEditPlan(seed + uint64(i))
		p.late = false
		e, err := p.prepare(filepath.Join(dir, strconv.Itoa(i)))
		require.NoError(t, err)
		if e.site.had(carelessCopy(e.site, p.seam(e).At)) < 0 {
			mixed++
		}
	}
	return mixed
}
