// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"errors"
	"io/fs"
	"sync/atomic"
	"time"

	"holdstill.example/snapshot/internal/fsys"
)

// collect looks at every entry again, each name relative to its directory, beginning with the paths of the roots: an ancestor
// that was exchanged and put back leaves no trace in a root's State, but its path must lead to the held root now. The join of all
// workers lies before it: if every State is equal, every entry had its recorded State from its first look to this one, so at
// the moment of the join the whole tree was in exactly the copied state.
//
// Entries of which only ctime moved become suspects, but for links, whose text cannot change in place. except are suspects,
// whose States are looked after elsewhere.
func (t *tree) collect(except map[*node]*suspect) error {
	if t.off(checkCollect) {
		return nil
	}
	t.expect(t.top, 1)
	return t.run([]task{{dir: t.top}}, func(w *worker, k task) error { return w.collectDir(k.dir, except) }, nil)
}

func (w *worker) collectDir(d *dir, except map[*node]*suspect) error {
	defer w.done(d)
	if err := canceled(w.ctx, w.verb, w.placeDir(d)); err != nil {
		return err
	}
	if err := w.enter(d); err != nil {
		return w.soft(d.parent, d.index, err)
	}
	defer w.leave(d)
	for i := range d.kids {
		if w.ctx.Err() != nil {
			return canceled(w.ctx, w.verb, w.place(d, i))
		}
		w.pollLeases(except)
		if err := w.collectEntry(d, i, except); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) collectEntry(d *dir, i int, except map[*node]*suspect) error {
	n := &d.kids[i]
	// What was left out by its name has no State; that it is there, the directory tells.
	if n.is(todo) || n.is(skipped) && n.seen == (fsys.Seen{}) {
		return nil
	}
	st, err := w.statEntry(d, i)
	switch {
	case fsys.IsGone(err):
		w.drifted(d, i, Vanished, nil, nil)
		return nil
	case err != nil:
		return newPathError("stat", w.place(d, i), err)
	}
	if n.is(skipped) {
		w.compareSkipped(d, i, &st.Seen)
		return nil
	}
	w.compare(d, i, &st.Seen, except)
	if n.sub != nil && sameFile(&n.seen, &st.Seen) {
		w.expect(n.sub, 1)
		w.queue.push(task{dir: n.sub})
	}
	return nil
}

// compareSkipped: an entry that was left out for what it was is judged again if it is another. Options.Skip may have looked
// at anything in the State.
func (t *tree) compareSkipped(d *dir, i int, now *fsys.Seen) {
	n := &d.kids[i]
	reason := drift(&n.seen, now)
	if reason == Replaced || reason == TypeChanged || n.left == leftSkip && reason != 0 && reason != MetadataOnly {
		t.drifted(d, i, reason, now, nil)
	}
}

// compare records how an entry differs from what was recorded.
func (t *tree) compare(d *dir, i int, now *fsys.Seen, except map[*node]*suspect) {
	n := &d.kids[i]
	reason := drift(&n.seen, now)
	switch {
	case except[n] != nil:
		if !sameFile(&n.seen, now) {
			t.drifted(d, i, reason, now, nil)
		}
	case reason == 0:
		if n.is(future) && !ahead(now, fsys.Clock()) {
			n.flags |= young // the clock has come near its stamp
		}
	case reason == MetadataOnly && now.Mode.Type() == fs.ModeSymlink && now.Birth != fsys.Stamp{}:
		n.seen = *now // the same link, so the same text; without a birth time it may be another with the same number
	case reason == MetadataOnly && now.Mode.Type() == fs.ModeSymlink:
		t.drifted(d, i, Replaced, now, nil)
	case reason == MetadataOnly && t.off(checkSuspects):
	case reason == MetadataOnly:
		t.mu.Lock()
		defer t.mu.Unlock()
		t.suspects = append(t.suspects, &suspect{dir: d, index: i, node: n, recorded: n.seen, first: *now, moved: true, h: fsys.NoHandle})
	default:
		t.drifted(d, i, reason, now, nil)
	}
}

// suspect is an entry of which only ctime moved: hard links, chmod to the same mode, relabelling and backup tools do that,
// and so does who writes and puts mtime back.
type suspect struct {
	dir      *dir
	index    int
	node     *node
	h        fsys.Handle // leased, if the suspect does not hold still otherwise
	alone    bool        // no lease is to be had
	fails    int
	recorded fsys.Seen // by the copy
	first    fsys.Seen // in the window
	kind     *fsys.Kind
	moved    bool
	quiet    bool        // it never moved, and is leased so that it need not be looked at
	freed    atomic.Bool // a writer came, and the lease was given up for it
}

// suspectPasses bounds how often the instant is moved; under chmod noise 1.2 passes were enough on average.
const suspectPasses = 16

// resolve moves the instant to the suspects: (i) the State of each, (ii) all are read again with fresh evidence, (iii) their
// States again, (iv) every other entry again. If each suspect is equal in (i) and (iii) with the copied digest and every
// other entry is as recorded, the time between (i) and (iii) is the instant.
//
// A second hash alone would prove nothing: another entry may have changed between its collect and the hash.
func (t *tree) resolve() (err error) {
	var list []*suspect
	defer func() {
		for _, s := range list {
			t.release(s.h)
			s.h = fsys.NoHandle
		}
		t.leases.Store(0)
	}()
	for pass := range suspectPasses {
		list = append(list, t.takeSuspects()...)
		if len(list) == 0 {
			return nil
		}
		if pass == leaseAllPass {
			if list, err = t.leaseAll(list); err != nil {
				return err
			}
		}
		proven, err := t.window(list)
		if err != nil || len(t.drifts) > 0 {
			return err
		}
		if proven {
			for _, s := range list {
				if !s.quiet {
					t.metadata++
				}
			}
			return nil
		}
	}
	last := t.takeSuspects() // of the last window
	for _, s := range append(list, last...) {
		if s.moved {
			t.drifted(s.dir, s.index, MetadataOnly, &s.first, &ChangeError{
				Path: t.place(s.dir, s.index).String(), Reason: MetadataOnly,
				Before: stateOf(&s.recorded), After: stateOf(&s.first), Err: ErrChangedDuringSnapshot,
			})
		}
	}
	return nil
}

// leaseAllPass is the pass from which every file is leased that may be: under noise that touches a few of a thousand files
// a millisecond, each window finds new suspects, and no number of passes comes to an end.
const leaseAllPass = 3

// leaseAll adds all files to the suspects on which a lease is to be had, within the descriptors that a call may use. A file
// that still has its recorded State under the lease need not be read again.
func (t *tree) leaseAll(list []*suspect) ([]*suspect, error) {
	known := make(map[*node]bool, len(list))
	for _, s := range list {
		known[s.node] = true
	}
	var more []*suspect
	t.eachFile(t.top, func(d *dir, i int) {
		if n := &d.kids[i]; !known[n] && len(more) < t.handles.limit {
			more = append(more, &suspect{dir: d, index: i, node: n, kind: t.kindOf(d, i), recorded: n.seen, first: n.seen, fails: 1, quiet: true, h: fsys.NoHandle})
		}
	})
	err := t.each(len(more), func(w *worker, i int) error {
		s := more[i]
		s.alone = true
		err := w.leaseSuspect(s)
		if onlyMetadata(err) { // then it will be a suspect of its own
			return nil
		}
		return w.soft(s.dir, s.index, err)
	})
	for _, s := range more {
		if s.h != fsys.NoHandle {
			list = append(list, s)
		}
	}
	return list, err
}

// eachFile calls f for every regular file of the copy.
func (t *tree) eachFile(d *dir, f func(d *dir, i int)) {
	for i := range d.kids {
		switch n := &d.kids[i]; {
		case n.is(todo | skipped):
		case n.sub != nil:
			t.eachFile(n.sub, f)
		case n.link == nil:
			f(d, i)
		}
	}
}

func (t *tree) takeSuspects() []*suspect {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.suspects
	t.suspects = nil
	return taken
}

// window is one pass over the suspects.
func (t *tree) window(list []*suspect) (proven bool, err error) {
	except := make(map[*node]*suspect, len(list))
	for _, s := range list {
		except[s.node] = s
		s.moved = false
	}
	if err := t.settleSuspects(list); err != nil {
		return false, err
	}
	for _, step := range []func(*worker, *suspect) error{(*worker).suspectState, (*worker).readSuspect, (*worker).suspectAgain} {
		err := t.each(len(list), func(w *worker, i int) error {
			if err := canceled(w.ctx, w.verb, w.path); err != nil {
				return err
			}
			s := list[i]
			err := step(w, s)
			if onlyMetadata(err) {
				s.moved = true
				return nil
			}
			return w.soft(s.dir, s.index, err)
		})
		if err != nil || len(t.drifts) > 0 {
			return false, err
		}
	}
	if !t.off(checkOthers) {
		if err := t.collect(except); err != nil || len(t.drifts) > 0 {
			return false, err
		}
	}
	t.pollAll(except)
	if len(t.drifts) > 0 {
		return false, nil
	}
	proven = len(t.suspects) == 0
	for _, s := range list {
		s.node.seen = s.first // what the others are compared with from now on
		if s.moved {
			s.fails++
			proven = false
		}
	}
	return proven, nil
}

func onlyMetadata(err error) bool {
	change, ok := errors.AsType[*ChangeError](err)
	return ok && change.Reason == MetadataOnly && !errors.Is(err, ErrLeftover)
}

// settleSuspects waits, once for all, until those that will not be leased can be told from a later change.
func (t *tree) settleSuspects(list []*suspect) error {
	for _, s := range list {
		if s.fails > 0 && !s.alone {
			continue
		}
		st, kind, err := t.suspectStat(s)
		if err != nil {
			return t.soft(s.dir, s.index, err)
		}
		s.kind = kind
		if _, err := t.settle(t.ctx, &st.Seen, kind, at(t.path)); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) suspectStat(s *suspect) (st fsys.Stat, kind *fsys.Kind, err error) {
	if err := t.enter(s.dir); err != nil {
		return st, nil, err
	}
	defer t.leave(s.dir)
	if st, err = t.statEntry(s.dir, s.index); err != nil {
		return st, nil, t.vanished(s.dir, s.index, err)
	}
	return st, t.kindOf(s.dir, s.index), nil
}

// suspectState is (i).
func (w *worker) suspectState(s *suspect) error {
	if s.fails > 0 && s.h == fsys.NoHandle && !s.alone {
		s.alone = true // until the lease is had
		if err := w.leaseSuspect(s); err != nil {
			return err
		}
	}
	clock := fsys.Clock()
	st, kind, err := w.suspectStat(s)
	if err != nil {
		return err
	}
	if reason := drift(&s.node.seen, &st.Seen); reason != 0 && reason != MetadataOnly {
		return &driftError{reason: reason, after: st.Seen}
	}
	s.quiet = s.quiet && st.Seen == s.node.seen
	s.first = st.Seen
	if s.h == fsys.NoHandle && !settled(&st.Seen, clock, kind) && !w.off(checkSettled) {
		s.moved = true
	}
	return nil
}

// leaseSuspect takes a lease on a file that does not hold still: while it stands, whatever moves its ctime is no write.
func (w *worker) leaseSuspect(s *suspect) (err error) {
	if w.opts.NeverLock || w.lacks(noLease) || !s.kind.LeaseHeld || s.node.sub != nil || !w.mayLease() {
		return nil
	}
	defer func() {
		if s.alone {
			w.leases.Add(-1)
		}
	}()
	if err := w.enter(s.dir); err != nil {
		return err
	}
	defer w.leave(s.dir)
	src, err := w.openSuspect(s)
	if err != nil {
		return err
	}
	if !sameFile(&src.stat.Seen, &s.node.seen) {
		err = &driftError{reason: drift(&s.node.seen, &src.stat.Seen), after: src.stat.Seen}
	} else if w.calls.Lease(src.h) == nil {
		s.h, s.alone = src.h, false
		return nil
	}
	w.release(src.h)
	return err
}

// openSuspect opens whatever has the name now; where that is no file any more, it has changed.
func (w *worker) openSuspect(s *suspect) (source, error) {
	src, err := w.openEntry(s.dir, s.index, w.place(s.dir, s.index))
	if errors.Is(err, ErrNotRegular) {
		if st, _, e := w.suspectStat(s); e == nil && !sameFile(&s.node.seen, &st.Seen) {
			return src, &driftError{reason: drift(&s.node.seen, &st.Seen), after: st.Seen}
		}
	}
	return src, err
}

// mayLease keeps the leases within the descriptors that a call may use.
func (w *worker) mayLease() bool {
	if w.leases.Add(1) <= int64(w.handles.limit) {
		return true
	}
	w.leases.Add(-1)
	return false
}

// readSuspect is (ii): the whole order of a proof on a newly opened name, or the listing of a directory.
func (w *worker) readSuspect(s *suspect) error {
	switch {
	case s.moved || s.quiet:
		return nil
	case s.node.sub != nil:
		return w.listSuspect(s)
	}
	if err := w.enter(s.dir); err != nil {
		return err
	}
	defer w.leave(s.dir)
	path := w.place(s.dir, s.index)
	src, err := w.openSuspect(s)
	if err != nil {
		return err
	}
	res, err := w.proveSuspect(s, &src, path)
	w.release(src.h)
	if err != nil {
		return err
	}
	if res.digest != s.node.digest {
		return &driftError{reason: Modified, after: src.stat.Seen}
	}
	s.node.level, s.node.why = res.level, res.why
	s.node.set(young, res.level == Identified)
	return nil
}

// proveSuspect reads a suspect. Under a lease that is held its ctime may go on moving, so only the rest of the State counts,
// and the lease itself is the evidence.
func (w *worker) proveSuspect(s *suspect, src *source, path place) (read, error) {
	if s.h == fsys.NoHandle {
		if err := changed(&s.first, &src.stat.Seen, path); err != nil {
			return read{}, err
		}
		return w.reader.prove(w.ctx, src, &noSink, path) // a move of ctime meanwhile is found by (iii)
	}
	var ev evidence
	defer func() { ev.guard.end() }()
	d, err := w.reader.stream(w.ctx, src, &ev, &noSink, path, func() error {
		if w.pollLease(s) {
			return nil
		}
		return &driftError{reason: WriterArrived, after: s.first}
	})
	return read{digest: d, level: s.node.level, why: s.node.why}, err
}

// listSuspect lists a directory again: no name may be new or gone.
func (w *worker) listSuspect(s *suspect) error {
	d := s.node.sub
	if err := w.enter(d); err != nil {
		return err
	}
	defer w.leave(d)
	names, err := w.names(d)
	if err != nil {
		return err
	}
	same := len(names) == len(d.kids)
	for i := 0; same && i < len(names); i++ {
		same = names[i] == d.kids[i].name // nothing else of the entries: others are at work on them
	}
	if !same {
		d.relist = true
		return &driftError{reason: Modified, after: s.first}
	}
	return nil
}

// suspectAgain is (iii).
func (w *worker) suspectAgain(s *suspect) error {
	st, _, err := w.suspectStat(s)
	if err != nil {
		return err
	}
	switch reason := drift(&s.first, &st.Seen); {
	case reason == 0:
	case reason == MetadataOnly && s.h != fsys.NoHandle:
		s.first = st.Seen
	case reason == MetadataOnly:
		s.moved = true
	default:
		return &driftError{reason: reason, after: st.Seen}
	}
	return nil
}

// leasePoll is how long a writer may wait before the walk notices it.
const leasePoll = 10 * time.Millisecond

// pollLeases looks now and then whether somebody waits behind one of our leases.
func (t *tree) pollLeases(except map[*node]*suspect) {
	if t.leases.Load() == 0 {
		return
	}
	now := time.Since(t.started)
	if int64(now)-t.polled.Load() < int64(leasePoll) || !t.polling.TryLock() {
		return
	}
	defer t.polling.Unlock()
	t.polled.Store(int64(now))
	t.pollAll(except)
}

// pollAll: a lease that does not stand any more proves nothing, and its writer has waited long enough.
func (t *tree) pollAll(except map[*node]*suspect) {
	for _, s := range except {
		t.pollLease(s)
	}
}

// pollLease reports false, once, when somebody waits behind the lease on s: it is given up.
func (t *tree) pollLease(s *suspect) bool {
	if s.h == fsys.NoHandle || t.calls.LeaseStands(s.h) || s.freed.Swap(true) {
		return true
	}
	_ = t.calls.DropLease(s.h) // what cannot be dropped goes with its handle
	t.drifted(s.dir, s.index, WriterArrived, &s.first, nil)
	return false
}
