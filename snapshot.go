// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdstill.example/snapshot/internal/fsys"
	"holdstill.example/snapshot/internal/quote"
)

// CopyDir copies the tree at src (followed if it is a link) to dst, which must not exist ([fs.ErrExist]) and appears only
// when whole. Files get the mode 0400, or 0500 with any execute bit, and directories 0500, unless Options.PreserveMode.
// Modification times are kept; owners, extended attributes, ACLs, capabilities and hard links are not.
//
// Errors are [ErrChanged], [ErrBusy], [ErrEvidence], [ErrNotRegular], [ErrEscapes], [ErrSpecialMode], [ErrLimit],
// [ErrUntrusted], and those of the system; nothing is left behind then, or [ErrLeftover] says what.
func CopyDir(ctx context.Context, dst, src string, opts *Options) (*Report, error) {
	t, err := newTree(ctx, "copy", src, opts)
	if err != nil {
		return nil, err
	}
	report, err := t.copyTo(dst)
	if err != nil {
		return nil, err
	}
	return report, nil
}

func (t *tree) copyTo(dst string) (report *Report, err error) {
	defer t.end()
	parent, dir, base, err := t.openParent(dst)
	if err != nil {
		return nil, err
	}
	defer t.release(parent)
	if err := t.refuseInside(dir, dst); err != nil {
		return nil, err
	}
	if t.space, err = newSpace(t.op, parent, dir); err != nil {
		return nil, err
	}
	if t.staging, err = t.newStaging(parent, dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.staging.discard()) }()
	defer func() { t.release(t.out) }()
	if err := t.makeTop(); err != nil {
		return nil, err
	}
	if report, err = t.take(); err != nil {
		return nil, err
	}
	st, err := t.calls.Stat(parent, false)
	if err != nil {
		return nil, newPathError("stat", dir, err)
	}
	report.Exposed = exposed(&st)
	if err := t.publishTop(base); err != nil {
		return nil, err
	}
	report.Elapsed = time.Since(t.started)
	return report, nil
}

// Scan reads the tree at src as [CopyDir] does and writes nothing: a baseline for Checkpoint, or a dry run.
// Its manifest has the permission bits and the link texts of the source.
func Scan(ctx context.Context, src string, opts *Options) (*Report, error) {
	t, err := newTree(ctx, "scan", src, opts)
	if err != nil {
		return nil, err
	}
	report, err := t.scan()
	if err != nil {
		return nil, err
	}
	return report, nil
}

func (t *tree) scan() (report *Report, err error) {
	defer t.end()
	if report, err = t.take(); err != nil {
		return nil, err
	}
	report.Elapsed = time.Since(t.started)
	return report, nil
}

// newTree opens the root: the one time that its path is looked up, but for the collect.
func newTree(ctx context.Context, verb, src string, opts *Options) (_ *tree, err error) {
	if err := opts.check(verb); err != nil {
		return nil, err
	}
	if err := fsys.Supported(); err != nil {
		return nil, newPathError(verb, src, err)
	}
	if err := canceled(ctx, verb, src); err != nil {
		return nil, err
	}
	t := &tree{
		op: newOp(opts), ctx: ctx, verb: verb, path: src, out: fsys.NoHandle,
		started: time.Now(),
	}
	t.handles.limit = max(fsys.OpenLimit()/4, 8)
	for range min(t.opts.Workers, max(t.handles.limit/4, 1)) {
		r := newReader(t.op)
		r.ctimeLater = !t.opts.PerFile
		t.workers = append(t.workers, &worker{tree: t, reader: r})
	}
	if err := t.openRoot(); err != nil {
		t.finish()
		return nil, err
	}
	return t, nil
}

func (t *tree) openRoot() (err error) {
	if strings.ContainsRune(t.path, 0) {
		return newPathError("open", t.path, fs.ErrInvalid)
	}
	h, err := t.calls.OpenRoot(t.path)
	if err != nil {
		return newPathError("open", t.path, err)
	}
	src, err := t.lookAt(h, t.path)
	if err == nil && src.kind.Pseudo {
		err = newPathError("open", t.path, fmt.Errorf("%w: %s is no file system for files", ErrNotRegular, src.kind.Name))
	}
	if err != nil {
		t.release(h)
		return err
	}
	t.root = &dir{index: -1, in: h, out: t.out, kind: src.kind, users: 1, placed: true}
	t.top = node{seen: src.stat.Seen, sub: t.root, flags: counted}
	t.entries.Store(1)
	t.places, err = t.findPlaces()
	if err != nil {
		t.release(h)
		return err
	}
	return nil
}

// findPlaces returns the absolute paths by which links may name the root: its path with all links resolved, and as it was
// given. They are found before anything is read, and count only if they lead to the held root: a path that is exchanged later
// must not make a stranger's file one of ours.
func (t *tree) findPlaces() ([][]string, error) {
	given := t.path
	if !filepath.IsAbs(given) {
		cwd, err := os.Getwd()
		if err != nil {
			return nil, nil // then no absolute path is known
		}
		given = cwd + string(filepath.Separator) + given // not Join, which would take "link/.." for nothing
	}
	candidates := []string{given}
	if real, err := filepath.EvalSymlinks(given); err == nil {
		candidates = []string{real, given}
	}
	var places [][]string
	for _, path := range candidates {
		place := components(path)
		is, err := t.isRoot(path)
		if err != nil && !fsys.IsGone(err) {
			return nil, newPathError("open", path, err)
		}
		if is && !slices.Contains(place, "..") {
			places = append(places, place)
		}
	}
	return places, nil
}

// end closes what the walk held, whatever happened, also if the last report of progress panics.
func (t *tree) end() {
	defer t.finish()
	t.shutAll()
	t.release(t.root.in)
	t.progress.end()
}

// refuseInside refuses a destination inside the source before anything is written. What a bind mount hides from it is found
// by the walk, which meets the staging directory.
func (t *tree) refuseInside(dir, dst string) error {
	real, err := filepath.Abs(dir)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return newPathError("create", dst, err)
	}
	for {
		inside, err := t.isRoot(real)
		switch {
		case err != nil:
			return newPathError("open", real, err)
		case inside:
			return newPathError("create", dst, fmt.Errorf("%w: the destination lies inside the source %s", ErrEscapes, quote.Name(t.path)))
		case real == filepath.Dir(real):
			return nil
		}
		real = filepath.Dir(real)
	}
}

func (t *tree) isRoot(path string) (is bool, err error) {
	pin, err := t.calls.PinPath(path)
	if errors.Is(err, fs.ErrPermission) { // then it is not the root, which was opened
		return false, nil
	}
	if err != nil {
		return false, err
	}
	st, err := t.calls.Stat(pin, false)
	t.release(pin)
	return sameInode(&t.top.seen, &st.Seen), err
}

// take copies and collects until a round shows no drift, then decides about links, seals and reports.
func (t *tree) take() (*Report, error) {
	dirs := []*dir{t.root}
	rounds := 1
	for ; ; rounds++ {
		t.progress.newRound()
		if err := t.round(dirs); err != nil {
			return nil, err
		}
		drifts := t.drifts
		if len(drifts) == 0 {
			break
		}
		if rounds >= t.opts.Attempts {
			return nil, t.driftFailed(drifts, rounds)
		}
		var err error
		if dirs, err = t.prepare(drifts, rounds); err != nil {
			return nil, err
		}
	}
	t.phase("proven")
	t.prune(t.root)
	if err := (&resolver{t}).settle(t.root); err != nil {
		return nil, err
	}
	if t.staging != nil {
		t.shutAll()
		t.sealing = true
		if err := t.seal(t.root); err != nil {
			return nil, err
		}
	}
	report, err := t.report(rounds)
	if err == nil {
		t.phase("reported")
	}
	return report, err
}

// round is copy, join, collect, and the window for suspects.
func (t *tree) round(dirs []*dir) error {
	t.drifts, t.suspects = t.drifts[:0:0], nil
	if err := t.copyRound(dirs); err != nil {
		return err
	}
	t.phase("joined")
	if t.opts.PerFile {
		return nil
	}
	if err := t.collect(nil); err != nil {
		return err
	}
	t.phase("collected")
	if len(t.drifts) > 0 {
		return nil
	}
	return t.resolve()
}

// driftFailed is the error after the last round: a file that changed tells more than the directory in which it was replaced.
func (t *tree) driftFailed(drifts []driftAt, rounds int) error {
	at := slices.MinFunc(drifts, func(a, b driftAt) int {
		return cmp.Or(cmp.Compare(t.rank(a), t.rank(b)), cmp.Compare(t.place(a.dir, a.index), t.place(b.dir, b.index)))
	})
	if at.err != nil && errors.Is(at.err, ErrBusy) {
		return at.err
	}
	e := &ChangeError{
		Path: t.place(at.dir, at.index), Reason: at.reason,
		Before: stateOf(&t.entry(at.dir, at.index).seen), After: stateOf(&at.after),
		Attempts: rounds, More: len(drifts) - 1, Err: ErrChangedDuringSnapshot,
	}
	if seen, ok := errors.AsType[*ChangeError](at.err); ok {
		e.Before, e.After = seen.Before, seen.After
	}
	return e
}

func (t *tree) rank(at driftAt) int {
	if t.entry(at.dir, at.index).sub != nil {
		return 1
	}
	return 0
}

// prepare marks what the next round copies. What may drop a subtree is done now, from the top down, since in the round
// itself others may be at work in it: directories that were replaced go, and those that were only modified are listed again.
func (t *tree) prepare(drifts []driftAt, rounds int) ([]*dir, error) {
	slices.SortStableFunc(drifts, func(a, b driftAt) int { return cmp.Compare(a.depth(), b.depth()) })
	t.waited = 0
	var list, again []*dir
	for _, at := range drifts {
		if at.dir != nil && at.dir.gone {
			continue
		}
		n := t.entry(at.dir, at.index)
		switch moved := at.reason == Modified || at.reason == MetadataOnly; {
		case n.sub != nil && moved:
			n.sub.relist = true
			again = append(again, n.sub)
			continue
		case at.index < 0:
			return t.restart(rounds)
		case at.reason == Vanished:
			at.dir.relist = true
			again = append(again, at.dir)
		}
		if lost, err := t.recopy(at.dir, n); err != nil || lost {
			return t.restartAfter(err, rounds)
		}
		list = append(list, at.dir)
	}
	slices.SortStableFunc(again, func(a, b *dir) int { return cmp.Compare(a.depth, b.depth) })
	for _, d := range again {
		if d.gone || !d.relist {
			continue
		}
		switch err := t.listAgain(d); {
		case err == nil:
			list = append(list, d)
			continue
		case t.soft(d.parent, d.index, err) != nil:
			return nil, err
		case d.parent == nil:
			return t.restart(rounds)
		}
		// It does not hold still for a listing: it is copied anew, as a whole.
		if lost, err := t.recopy(d.parent, t.node(d)); err != nil || lost {
			return t.restartAfter(err, rounds)
		}
		list = append(list, d.parent)
	}
	seen := make(map[*dir]bool, len(list))
	return slices.DeleteFunc(list, func(d *dir) bool {
		twice := seen[d]
		seen[d] = true
		return twice || d.gone
	}), nil
}

func (at *driftAt) depth() int {
	if at.dir == nil {
		return -1
	}
	return at.dir.depth
}

// recopy drops what was copied of an entry and marks it for the next round. It reports true if the way to the entry drifts
// again, so that only beginning anew is left.
func (t *tree) recopy(d *dir, n *node) (lost bool, err error) {
	if n.sub != nil {
		err := t.enter(d)
		if _, drifts := errors.AsType[*driftError](err); drifts {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		defer t.leave(d)
		if err := t.workers[0].drop(d, n); err != nil {
			return false, err
		}
	}
	n.flags |= todo
	return false, nil
}

func (t *tree) restartAfter(err error, rounds int) ([]*dir, error) {
	if err != nil {
		return nil, err
	}
	return t.restart(rounds)
}

// listAgain lists a directory that drifted; if it is young it is worth a wait of its own.
func (t *tree) listAgain(d *dir) error {
	w := t.workers[0]
	t.expect(d, 1)
	defer t.done(d)
	later, err := w.listDir(d, false)
	for later {
		ok, e := t.settle(t.ctx, &t.node(d).seen, d.kind, t.placeDir(d))
		if e != nil {
			return e
		}
		later, err = w.listDir(d, !ok)
	}
	return err
}

// restart begins anew with what the root's path names now.
func (t *tree) restart(rounds int) ([]*dir, error) {
	before := t.top.seen
	t.handles.mu.Lock()
	t.workers[0].forget(t.root)
	t.handles.mu.Unlock()
	t.shutAll()
	var err error
	t.release(t.root.in)
	t.root.in = fsys.NoHandle
	if err != nil {
		return nil, newPathError("close", t.path, err)
	}
	t.bytes.Store(0)
	if t.staging != nil {
		st, err := t.calls.Stat(t.out, false)
		if err == nil {
			err = t.empty(t.out, &st.Seen, "")
		}
		if err != nil {
			return nil, newPathError("remove", t.staging.where(), err)
		}
	}
	err = t.openRoot()
	switch {
	case fsys.IsGone(err): // installers put a new directory in the place of the old one with two renames
		return nil, &ChangeError{Path: t.path, Reason: Vanished, Before: stateOf(&before), Attempts: rounds, Err: ErrChangedDuringSnapshot}
	case err != nil:
		return nil, err
	}
	return []*dir{t.root}, nil
}
