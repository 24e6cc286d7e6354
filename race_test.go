//go:build linux

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// raceTree is small, so that every step of its copy can be attacked in every way.
var raceTree = []string{
	"a/src/a=alpha",
	"a/src/d/b=bravo", "a/src/d/c=charlie", "a/src/d/sub/s=sierra", "a/src/d/up => ../a",
	"a/src/e/f=foxtrot", "a/src/e/g 0755=golf",
	"a/src/z => d/sub",
	"out/",
}

// raceFile has a d/b that takes two reads.
var raceFile = []string{"a/src/a=alpha", "a/src/d/b=@300KiB", "a/src/d/c=charlie", "a/src/e/f=foxtrot", "out/"}

// raceSite is one source under attack: a/src, to be copied into out.
type raceSite struct {
	dir    string
	look   raceLook
	states []map[string]string // that the source had, the first one before any attack
	err    error               // of the adversary

	attacks int
	wrong   string // what an attack saw that must not be
	mapped  []byte // d/b, for stores
}

// raceLook returns the state of a source now, nil if there is nothing to be copied.
type raceLook func(s *raceSite) (map[string]string, error)

func (s *raceSite) src() string             { return filepath.Join(s.dir, "a", "src") }
func (s *raceSite) dst() string             { return filepath.Join(s.dir, "out", "dst") }
func (s *raceSite) path(name string) string { return filepath.Join(s.src(), name) }

// attack changes the source, as nobody else does while it runs, and notes the state that it has then.
func (s *raceSite) attack(acts ...act) {
	s.act(acts...)
	s.note()
}

// act does what nobody may find in a copy, or cannot.
func (s *raceSite) act(acts ...act) {
	s.attacks++
	for _, a := range acts {
		s.err = errors.Join(s.err, a(s))
	}
}

// had returns which state the source had, or -1.
func (s *raceSite) had(got map[string]string) int {
	return slices.IndexFunc(s.states, func(state map[string]string) bool { return maps.Equal(state, got) })
}

func (s *raceSite) note() {
	state, err := s.look(s)
	s.states = append(s.states, state)
	s.err = errors.Join(s.err, err)
}

// outside runs f, which may end its goroutine, and so not the one of a worker that called a hook.
func outside(f func(t fstest.TB)) error {
	return fstest.Run(context.Background(), "adversary", os.Stderr, f)
}

// raceLookTree returns what the source holds, with digests for contents.
func raceLookTree(s *raceSite) (tree map[string]string, err error) {
	err = outside(func(t fstest.TB) { tree = digested(fstest.Read(t, s.src())) })
	if errors.Is(err, fs.ErrNotExist) || isGone(s.src()) {
		return nil, nil
	}
	return tree, err
}

func isGone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// digested replaces the contents in what fstest.Read returned by what a manifest has of them.
func digested(tree map[string]string) map[string]string {
	for path, text := range tree {
		head, quoted, ok := strings.Cut(text, ` "`)
		if content, err := strconv.Unquote(`"` + quoted); ok && err == nil {
			tree[path] = fmt.Sprintf("%s %d bytes %x", head, len(content), sha256.Sum256([]byte(content)))
		}
	}
	return tree
}

// fromManifest returns a manifest in the words of fstest.Read.
func fromManifest(m *snapshot.Manifest) (map[string]string, error) {
	tree := map[string]string{}
	for e, err := range m.All() {
		if err != nil {
			return nil, err
		}
		switch e.Mode.Type() {
		case fs.ModeDir:
			tree[e.Path] = fmt.Sprintf("dir %04o", e.Mode.Perm())
		case fs.ModeSymlink:
			tree[e.Path] = "link " + e.Link
		default:
			tree[e.Path] = fmt.Sprintf("file %04o %d bytes %v", e.Mode.Perm(), e.Size, e.Digest)
		}
	}
	return tree, nil
}

// raceLookFile returns what a reader of d/b gets.
func raceLookFile(s *raceSite) (map[string]string, error) {
	fi, err := os.Lstat(s.path("d/b"))
	if err != nil || !fi.Mode().IsRegular() {
		return nil, nil
	}
	b, err := os.ReadFile(s.path("d/b"))
	return fileState(b), err
}

func fileState(b []byte) map[string]string {
	return map[string]string{"d/b": fmt.Sprintf("%d bytes %x", len(b), sha256.Sum256(b))}
}

// raceVerb is a call under attack. What it returns has the form of a state; what it wrote is compared with that, too.
type raceVerb struct {
	name   string
	stride int // every stride-th step is attacked
	opts   snapshot.Options
	call   raceCall
	lacks  snapshot.Fallback
}

type raceCall func(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error)

func raceCopyDir(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
	report, err := snapshot.CopyDir(t.Context(), s.dst(), s.src(), opts)
	if err != nil {
		return nil, err
	}
	recorded, err := fromManifest(report.Manifest)
	assert.Equal(t, recorded, digested(fstest.Read(t, s.dst())), "the manifest and the copy")
	return recorded, err
}

func raceScan(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
	report, err := snapshot.Scan(t.Context(), s.src(), opts)
	if err != nil {
		return nil, err
	}
	return fromManifest(report.Manifest)
}

func raceReadFile(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
	b, _, err := snapshot.ReadFile(t.Context(), s.path("d/b"), opts)
	if err != nil {
		return nil, err
	}
	return fileState(b), nil
}

func raceCopyFile(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
	if _, err := snapshot.CopyFile(t.Context(), s.dst(), s.path("d/b"), opts); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(s.dst())
	return fileState(b), err
}

func raceOpen(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
	f, err := snapshot.Open(s.path("d/b"), opts)
	return raceCopyTo(t, f, err)
}

func raceOpenIn(t *testing.T, s *raceSite, opts *snapshot.Options) (map[string]string, error) {
	root, err := os.OpenRoot(s.src())
	require.NoError(t, err)
	defer root.Close()
	f, err := snapshot.OpenIn(root, "d/b", opts)
	return raceCopyTo(t, f, err)
}

func raceCopyTo(t *testing.T, f *snapshot.File, err error) (map[string]string, error) {
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	_, err = f.CopyTo(t.Context(), &b)
	return fileState([]byte(b.String())), errors.Join(err, f.Close())
}

var (
	treeVerbs = []raceVerb{
		{name: "CopyDir", stride: 1, opts: snapshot.Options{Workers: 1, PreserveMode: true}, call: raceCopyDir},
		{name: "CopyDir in one round", stride: 5, opts: snapshot.Options{Workers: 1, PreserveMode: true, Attempts: 1}, call: raceCopyDir},
		{
			name: "CopyDir with fallbacks", stride: 7, opts: snapshot.Options{Workers: 1, PreserveMode: true}, call: raceCopyDir,
			lacks: snapshot.NoLease | snapshot.NoRenameNoReplace,
		},
		{name: "Scan", stride: 5, opts: snapshot.Options{Workers: 1}, call: raceScan},
	}
	fileVerbs = []raceVerb{
		{name: "ReadFile", stride: 1, call: raceReadFile},
		{name: "CopyFile", stride: 1, call: raceCopyFile},
		{
			name: "CopyFile with fallbacks", stride: 3, call: raceCopyFile,
			lacks: snapshot.NoLease | snapshot.NoNameless | snapshot.NoRenameNoReplace,
		},
		{name: "Open and CopyTo", stride: 1, opts: snapshot.Options{Attempts: 1}, call: raceOpen},
		{name: "OpenIn and CopyTo", stride: 1, opts: snapshot.Options{Attempts: 1}, call: raceOpenIn},
	}
)

// TestRaceTree changes a tree at every step of its copy, in every way. The copy must be the tree before or the tree after, or
// the call refuses it and leaves nothing.
func TestRaceTree(t *testing.T) {
	fstest.Leaks(t)
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for _, v := range treeVerbs {
				raceSteps(t, v, &m, m.tree, raceLookTree, raceTree)
			}
		})
	}
}

// TestRaceFile is TestRaceTree for the calls on one file, which is d/b.
func TestRaceFile(t *testing.T) {
	fstest.Leaks(t)
	for _, m := range mutations {
		if m.noFile {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			for _, v := range fileVerbs {
				raceSteps(t, v, &m, m.file, raceLookFile, raceFile)
			}
		})
	}
}

// raceDir returns a directory on a file system on which thousands of trees are made in seconds: one of our own, else the one in
// memory, where no lease is asked for.
func raceDir(t *testing.T) string {
	parent := "/dev/shm"
	err := fstest.Run(t.Context(), "ext4", io.Discard, func(t fstest.TB) { parent = filepath.Dir(fstest.Dir(t, "ext4")) })
	if !errors.Is(err, errors.ErrUnsupported) {
		require.NoError(t, err)
	}
	dir, err := os.MkdirTemp(parent, "race-*")
	if err != nil {
		return fstest.TempDir(t)
	}
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// raceSteps attacks v once at each of its steps.
func raceSteps(t *testing.T, v raceVerb, m *mutation, allowed []error, look raceLook, lines []string) {
	if m.root {
		fstest.NeedRoot(t)
	}
	stress := os.Getenv("HOLDSTILL_STRESS") != ""
	if m.forever && v.opts.Attempts != 1 && !stress { // two seconds a round
		return
	}
	all := raceDir(t)
	newSite := func(name int) *raceSite {
		s := &raceSite{dir: filepath.Join(all, strconv.Itoa(name)), look: look}
		fstest.Make(t, s.dir, lines...)
		return s
	}
	quiet := newSite(0)
	fstest.Settle(t, all)
	steps := raceQuiet(t, v, quiet)
	stride := v.stride
	switch {
	case m.forever:
		stride = len(steps)/16 + 1
	case testing.Short():
		stride *= 7
	case stress:
		stride = 1
	}
	sites := map[int]*raceSite{}
	for at := len(steps) - 1; at >= 0; at -= stride { // before the last step it is too late for the attack
		sites[at] = newSite(at + 1)
		sites[at].states = slices.Clip(quiet.states)
	}
	fstest.Settle(t, all)
	var before, after, refused atomic.Int64
	var wg sync.WaitGroup
	turns := make(chan struct{}, 16) // most of the time a call that was attacked waits for a clock tick
	for at, s := range sites {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			what := fmt.Sprintf("%s, %s before step %d of %d, %s", v.name, m.name, at, len(steps), steps[at])
			got, err := raceOnce(t, v, m, s, at, what)
			switch had := s.had(got); {
			case err != nil:
				refused.Add(1)
				again := v.opts.Attempts != 1 && !m.forever // and then it is quiet
				assert.True(t, isOneOf(err, allowed) || !again && errors.Is(err, snapshot.ErrChanged), "%s: %v", what, err)
			case had == 0:
				before.Add(1)
			case had > 0:
				after.Add(1)
			default:
				assert.Fail(t, "a state that the source never had", "%s:\nhad %v\ngot %v", what, s.states, got)
			}
		})
	}
	wg.Wait()
	t.Logf("%s: %d of %d steps, %d times as before, %d times as after, %d times refused",
		v.name, len(sites), len(steps), before.Load(), after.Load(), refused.Load())
	assert.Positive(t, before.Load()+after.Load(), "%s accepted", v.name)
}

// raceQuiet calls v on a source that nobody attacks, and returns its steps.
func raceQuiet(t *testing.T, v raceVerb, s *raceSite) (steps []string) {
	s.note()
	require.NoError(t, s.err)
	seam := raceAt(func(call, name string) error {
		steps = append(steps, strings.TrimSpace(call+" "+name))
		return nil
	})
	seam.Lacks = v.lacks
	got, err := v.call(t, s, snapshot.WithSeam(&v.opts, seam))
	require.NoError(t, err, "%s of a quiet source", v.name)
	require.Equal(t, s.states[0], got, "%s of a quiet source", v.name)
	return steps
}

func isOneOf(err error, allowed []error) bool {
	return slices.ContainsFunc(allowed, func(a error) bool { return errors.Is(err, a) })
}

// raceOnce makes one attack, at a step, and whatever the mutation does later; it checks that nothing is left.
func raceOnce(t *testing.T, v raceVerb, m *mutation, s *raceSite, at int, what string) (map[string]string, error) {
	step, done := 0, 0
	back := at + 1 + at%23 // arbitrary, but for being soon and late
	seam := raceAt(func(call, _ string) error {
		now := step
		step++
		switch {
		case now < at, m.writes && call == "DropLease": // whoever opens a leased file for writing has to wait
		case m.forever:
			s.act(m.do...)
		case done == 0:
			s.attack(m.do...)
			done++
		case done == 1 && m.back != nil && now >= back:
			s.attack(m.back)
			done++
		}
		return nil
	})
	seam.Lacks = v.lacks
	seam.Finished = func(open, _ int64) { assert.Zero(t, open, "%s: open handles", what) }
	got, err := v.call(t, s, snapshot.WithSeam(&v.opts, seam))
	if err != nil && !m.forever {
		now, e := s.look(s)
		assert.NoError(t, e)
		assert.Equal(t, s.states[len(s.states)-1], now, "%s: the source after %v", what, err)
	}
	if m.undo != nil {
		s.act(m.undo)
	}
	assert.NoError(t, s.err, "%s: the adversary", what)
	left := []string{"dst"}
	if isGone(s.dst()) {
		left = nil
	}
	assert.False(t, err != nil && left != nil, "%s: %v, and the destination exists", what, err)
	fstest.Nothing(t, filepath.Dir(s.dst()), left...)
	return got, err
}
