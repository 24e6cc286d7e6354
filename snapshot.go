// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"holdstill.example/snapshot/internal/fsys"
)

// CopyDir copies the tree at src (followed if it is a link) to dst, which must not exist ([fs.ErrExist]) and appears only
// when whole. Files get the mode 0400, or 0500 with any execute bit, and directories 0500, unless Options.PreserveMode.
// Modification times are kept; owners, extended attributes, ACLs, capabilities and hard links are not.
//
// Errors are [ErrChanged], [ErrBusy], [ErrEvidence], [ErrNotRegular], [ErrEscapes], [ErrSpecialMode], [ErrLimit],
// [ErrUntrusted], and those of the system; nothing is left behind then, or [ErrLeftover] says what.
func CopyDir(ctx context.Context, dst, src string, opts *Options) (*Report, error) {
	t, err := newWholeTree(ctx, "copy", src, opts)
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
	defer func() { err = withLeft(err, t.staging.discard()) }()
	t.top.out, t.volume = t.staging.dir, t.staging.seen.Volume
	if report, err = t.take(); err != nil {
		return nil, err
	}
	if err := t.staging.drain(t.ctx); err != nil {
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
	t, err := newWholeTree(ctx, "scan", src, opts)
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

// newTree prepares the reading of a tree; path is for messages until its roots are admitted.
func newTree(ctx context.Context, verb, path string, opts *Options) (*tree, error) {
	if err := opts.check(verb); err != nil {
		return nil, err
	}
	if err := fsys.Supported(); err != nil {
		return nil, newPathError(verb, path, err)
	}
	if err := canceled(ctx, verb, path); err != nil {
		return nil, err
	}
	t := &tree{op: newOp(opts), ctx: ctx, verb: verb, path: path, started: time.Now()}
	t.handles.limit = max(fsys.OpenLimit()/4, 8)
	for range min(t.opts.Workers, max(t.handles.limit/4, 1)) {
		r := newReader(t.op)
		r.ctimeLater = !t.opts.PerFile
		t.workers = append(t.workers, &worker{tree: t, reader: r, clock: fsys.Clock()})
	}
	return t, nil
}

// newWholeTree is newTree of one directory, whose copy is the whole of what is made.
func newWholeTree(ctx context.Context, verb, path string, opts *Options) (*tree, error) {
	t, err := newTree(ctx, verb, path, opts)
	if err != nil {
		return nil, err
	}
	t.whole = true
	if err := t.admit(newRoot(stagingTree, path)); err != nil {
		t.end()
		return nil, err
	}
	return t, nil
}

// end closes what the walk held, whatever happened, also if the last report of progress panics.
func (t *tree) end() {
	defer t.finish()
	t.shutAll()
	t.closeRoots()
	t.progress.end()
}

// take proves the tree, then decides about links, seals and reports.
func (t *tree) take() (*Report, error) {
	rounds, err := t.prove()
	if err != nil {
		return nil, err
	}
	if err := t.addAliases(); err != nil {
		return nil, err
	}
	if err := (&resolver{t}).settle(t.top); err != nil {
		return nil, err
	}
	if t.staging != nil {
		t.turnTo(copySide)
		if err := t.sealRoots(); err != nil {
			return nil, err
		}
	}
	report, err := t.report(rounds)
	if err == nil {
		t.phase("reported")
	}
	return report, err
}

// prove copies and collects until a round shows no drift, and returns how many there were.
func (t *tree) prove() (rounds int, err error) {
	dirs := []*dir{t.top}
	for rounds = 1; ; rounds++ {
		t.progress.newRound()
		if err := t.round(dirs); err != nil {
			return rounds, err
		}
		drifts := t.drifts
		if len(drifts) == 0 {
			break
		}
		if rounds >= t.opts.Attempts {
			return rounds, t.driftFailed(drifts, rounds)
		}
		t.turnTo(bothSides)
		if dirs, err = t.prepare(drifts); err != nil {
			return rounds, err
		}
	}
	t.phase("proven")
	t.prune(t.top)
	return rounds, nil
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
	t.turnTo(sourceSide)
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
		return cmp.Or(cmp.Compare(t.rank(a), t.rank(b)), cmp.Compare(t.place(a.dir, a.index).String(), t.place(b.dir, b.index).String()))
	})
	if at.err != nil && errors.Is(at.err, ErrBusy) {
		return at.err
	}
	if at.reason == Replaced && at.dir != t.top && t.enter(at.dir) == nil {
		holds := t.identitiesHold(at.dir.in, at.dir.kids[at.index].name)
		t.leave(at.dir)
		if !holds {
			return newPathError(t.verb, t.place(at.dir, at.index), errUnstable)
		}
	}
	e := &ChangeError{
		Path: t.place(at.dir, at.index).String(), Reason: at.reason,
		Before: stateOf(&at.dir.kids[at.index].seen), After: stateOf(&at.after),
		Attempts: rounds, More: len(drifts) - 1, Err: ErrChangedDuringSnapshot,
	}
	if seen, ok := errors.AsType[*ChangeError](at.err); ok {
		e.Before, e.After = seen.Before, seen.After
	}
	return e
}

func (t *tree) rank(at driftAt) int {
	// That a directory was modified is told better by what changed in it.
	if at.dir.kids[at.index].sub != nil && (at.reason == Modified || at.reason == MetadataOnly) {
		return 1
	}
	return 0
}

// prepare marks what the next round copies. What may drop a subtree is done now, from the top down, since in the round
// itself others may be at work in it: directories that were replaced go, and those that were only modified are listed again.
func (t *tree) prepare(drifts []driftAt) ([]*dir, error) {
	slices.SortStableFunc(drifts, func(a, b driftAt) int { return cmp.Compare(a.dir.depth, b.dir.depth) })
	t.waited = 0
	var list, again []*dir
	for _, at := range drifts {
		if at.dir.gone {
			continue
		}
		n := &at.dir.kids[at.index]
		switch moved := at.reason == Modified || at.reason == MetadataOnly; {
		case n.sub != nil && moved:
			n.sub.relist = true
			again = append(again, n.sub)
			continue
		case at.reason == Vanished && at.dir != t.top:
			at.dir.relist = true
			again = append(again, at.dir)
		}
		if lost, err := t.recopy(at.dir, n); err != nil || lost {
			return t.restart(err)
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
		}
		// It does not hold still for a listing: it is copied anew, as a whole.
		if lost, err := t.recopy(d.parent, d.node()); err != nil || lost {
			return t.restart(err)
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

// restart begins anew with every root, unless there was an error.
func (t *tree) restart(err error) ([]*dir, error) {
	for i := range t.top.kids {
		if err != nil {
			return nil, err
		}
		_, err = t.recopy(t.top, &t.top.kids[i])
	}
	return []*dir{t.top}, err
}

// listAgain lists a directory that drifted; if it is young it is worth a wait of its own.
func (t *tree) listAgain(d *dir) error {
	w := t.workers[0]
	t.expect(d, 1)
	defer t.done(d)
	later, err := w.listDir(d, false)
	for later {
		ok, e := t.settle(t.ctx, &d.node().seen, d.kind, t.placeDir(d))
		if e != nil {
			return e
		}
		later, err = w.listDir(d, !ok)
	}
	return err
}
