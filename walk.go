// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"holdstill.example/snapshot/internal/fsys"
	"holdstill.example/snapshot/internal/quote"
)

// copyRound walks what is to be copied in this round: the whole tree in the first, what drifted in the others. Entries whose
// stamps are young wait in t.young until nothing else is left to do.
func (t *tree) copyRound(dirs []*dir) error {
	t.waited = 0
	tasks := make([]task, 0, len(dirs))
	for _, d := range dirs {
		t.expect(d, 1)
		tasks = append(tasks, task{dir: d})
	}
	return t.run(tasks, (*worker).copyTask, t.wakeYoung)
}

// wakeYoung waits until the entries that were too young are settled, or takes them as they are when the round's budget for
// that is used up.
func (t *tree) wakeYoung() ([]task, error) {
	t.mu.Lock()
	tasks := t.young
	t.young = nil
	t.mu.Unlock()
	for i, k := range tasks {
		ok, err := t.settle(t.ctx, &k.node().seen, k.kind, at(t.path))
		if err != nil {
			return nil, err
		}
		tasks[i].last = !ok
	}
	return tasks, nil
}

func (t *tree) defers(k task) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.young = append(t.young, k)
}

func (w *worker) copyTask(k task) error {
	if err := canceled(w.ctx, w.verb, w.path); err != nil {
		return err
	}
	if k.hi > 0 {
		return w.copyBatch(k)
	}
	return w.copyDir(k)
}

// soft records an error that is a drift of entry i of d, and returns any other.
func (t *tree) soft(d *dir, i int, err error) error {
	if gone, ok := errors.AsType[*driftError](err); ok {
		if gone.dir != nil {
			d, i = gone.dir, gone.index
		}
		t.drifted(d, i, gone.reason, &gone.after, nil)
		return nil
	}
	if change, ok := errors.AsType[*ChangeError](err); ok && !errors.Is(err, ErrLeftover) {
		t.drifted(d, i, change.Reason, nil, err)
		return nil
	}
	if errors.Is(err, ErrBusy) && !errors.Is(err, errStalled) {
		t.drifted(d, i, WriterArrived, nil, err)
		return nil
	}
	if fsys.IsGone(err) && !errors.Is(err, ErrNotRegular) && !errors.Is(err, errDestination) {
		reason := Vanished
		if fsys.IsStale(err) {
			reason = Replaced
		}
		t.drifted(d, i, reason, nil, err)
		return nil
	}
	return err
}

// errDestination marks what went wrong in the copy, where nothing may vanish.
var errDestination = errors.New("in the copy")

func (t *tree) destination(verb string, d *dir, i int, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrExist) && verb != "remove" { // there it says "not empty"
		err = t.collision(d, i)
	}
	return newPathError(verb, t.place(d, i), fmt.Errorf("%w: %w", errDestination, err))
}

// collision finds the entry that has this one's name in the copy: its directory is new and ours, so what is there already is
// another spelling of the name.
func (t *tree) collision(d *dir, i int) error {
	other := "another name"
	if st, err := t.calls.StatAt(d.out, d.kids[i].name, false); err == nil {
		for k := range d.kids {
			if k == i {
				continue
			}
			now, err := t.calls.StatAt(d.out, d.kids[k].name, false)
			if err == nil && sameInode(&now.Seen, &st.Seen) {
				other = quote.Name(d.kids[k].name)
				break
			}
		}
	}
	return fmt.Errorf("%s and this name are one where the destination folds case or spellings", other)
}

// copyDir opens a directory that its parent's batch found, lists it and hands its entries out.
func (w *worker) copyDir(k task) error {
	d := k.dir
	if d == w.top {
		defer w.done(d)
		w.pushBatches(d)
		return nil
	}
	later, err := w.listDir(d, k.last)
	if later {
		k.kind = d.kind
		w.defers(k)
		return nil
	}
	defer w.done(d)
	if err != nil {
		return w.soft(d.parent, d.index, err)
	}
	w.pushBatches(d)
	return nil
}

// pushBatches hands out the entries of d that are to be copied.
func (t *tree) pushBatches(d *dir) {
	var tasks []task
	for lo := 0; lo < len(d.kids); lo += batch {
		hi := min(lo+batch, len(d.kids))
		for i := lo; i < hi; i++ {
			if d.kids[i].is(todo) {
				tasks = append(tasks, task{dir: d, lo: lo, hi: hi})
				break
			}
		}
	}
	t.expect(d, len(tasks))
	t.queue.push(tasks...)
}

// listDir takes a listing of d that counts: its State is settled, and equal before and after. It reports true if the
// directory is too young and may wait.
func (w *worker) listDir(d *dir, last bool) (later bool, err error) {
	if err := w.openForList(d); err != nil {
		return false, err
	}
	defer w.leave(d)
	if d.kids != nil && !d.relist {
		return false, nil
	}
	const tries = 3 // under churn a third of the listings counts; what moves on is drift
	for range tries {
		clock := fsys.Clock()
		before, err := w.calls.Stat(d.in, d.kind.Remote)
		if err != nil {
			return false, newPathError("stat", w.placeDir(d), err)
		}
		n := d.node()
		if !sameFile(&n.seen, &before.Seen) {
			return false, &driftError{reason: drift(&n.seen, &before.Seen), after: before.Seen}
		}
		n.seen = before.Seen
		n.set(young, false)
		n.set(future, ahead(&n.seen, clock))
		if !settled(&before.Seen, clock, d.kind) && !w.off(checkSettled) || d.kind.NoChange {
			if !last && !d.kind.NoChange {
				return true, nil
			}
			n.flags |= young
		}
		names, err := w.names(d)
		if err != nil {
			return false, err
		}
		after, err := w.calls.Stat(d.in, d.kind.Remote)
		if err != nil {
			return false, newPathError("stat", w.placeDir(d), err)
		}
		if before.Seen == after.Seen || w.off(checkListing) {
			// A rename during the listing can show a name twice, but then the State has moved.
			if i := firstTwice(names); i >= 0 {
				return false, newPathError("list", w.placeDir(d), fmt.Errorf("the directory lists the name %s twice: %w", quote.Name(names[i]), fs.ErrInvalid))
			}
			return false, w.merge(d, names)
		}
		if err := canceled(w.ctx, "list", w.placeDir(d)); err != nil {
			return false, err
		}
	}
	now, err := w.calls.Stat(d.in, d.kind.Remote)
	if err != nil {
		return false, newPathError("stat", w.placeDir(d), err)
	}
	d.relist = true
	return false, &driftError{reason: Modified, after: now.Seen}
}

// openForList enters d and, the first time, learns what file system it is on and refuses one that holds the copy itself.
func (w *worker) openForList(d *dir) error {
	if err := w.enter(d); err != nil {
		return err
	}
	if d.kind == nil {
		kind, err := w.calls.Kind(d.in, &d.node().seen)
		if err != nil {
			w.leave(d)
			return newPathError("statfs", w.placeDir(d), err)
		}
		d.kind = kind
	}
	if d.placed || w.staging == nil {
		return nil
	}
	if err := w.placeCopy(d); err != nil {
		w.leave(d)
		return err
	}
	return nil
}

// placeCopy makes the directory in the copy; it can be written until it is sealed.
func (w *worker) placeCopy(d *dir) error {
	n := d.node()
	if d.parent != w.top { // a root's room is asked for by what it holds
		if err := w.space.take(4<<10, w.placeDir(d)); err != nil {
			return err
		}
		defer w.space.wrote(4 << 10)
	}
	if err := w.enter(d.parent); err != nil {
		return err
	}
	defer w.leave(d.parent)
	if err := w.calls.Mkdir(d.parent.out, n.name, 0o700); err != nil {
		return w.destination("mkdir", d.parent, d.index, err)
	}
	out, err := w.calls.OpenDir(d.parent.out, n.name)
	if err != nil {
		return w.destination("open", d.parent, d.index, err)
	}
	w.handles.mu.Lock()
	defer w.handles.mu.Unlock()
	d.out, d.placed = out, true
	return nil
}

// names lists d, into a buffer of the worker. Limits are tested while names come, so that a directory of a billion names ends
// early.
func (w *worker) names(d *dir) ([]string, error) {
	// Also the first time: btrfs lists what was there when the directory was opened or rewound, which is before its State was
	// taken. Without this TestStressNames/btrfs accepts trees without the files that were made in between.
	if err := w.calls.Rewind(d.in); err != nil {
		return nil, newPathError("list", w.placeDir(d), err)
	}
	if w.list == nil {
		w.list = make([]byte, fsys.ListBufferSize)
	}
	names := w.listed[:0]
	err := w.calls.List(d.in, w.list, func(name string) error {
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		names = append(names, name)
		if total := w.entries.Load() - int64(len(d.kids)) + int64(len(names)); total > w.opts.Limits.MaxEntries {
			return &LimitError{Path: w.placeDir(d).String(), Field: "MaxEntries", Limit: w.opts.Limits.MaxEntries, Got: total}
		}
		return w.admit(d, name)
	})
	if err != nil {
		return nil, orPathErrorOnce("list", w.placeDir(d), err)
	}
	w.listed = names
	slices.Sort(names)
	return names, nil
}

// admit refuses names that could be taken for a path, which a lying file system may hand out, and paths beyond the bound.
func (w *worker) admit(d *dir, name string) error {
	switch got := d.pathLength(name); {
	case !fsys.ValidName(name):
		return newPathError("list", w.placeDir(d), fmt.Errorf("a directory entry has the name %q: %w", name, fs.ErrInvalid))
	case got > w.opts.Limits.MaxPath:
		return &LimitError{Path: w.placeDir(d).String(), Field: "MaxPath", Limit: int64(w.opts.Limits.MaxPath), Got: int64(got)}
	}
	return nil
}

// orPathErrorOnce puts a path to an error of the system, not to one that has it already.
func orPathErrorOnce[P string | place](verb string, path P, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*LimitError](err); ok {
		return err
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return err
	}
	return newPathError(verb, path, err)
}

// firstTwice returns the index of a name that comes again, or -1. The names are sorted.
func firstTwice(names []string) int {
	for i := 1; i < len(names); i++ {
		if names[i] == names[i-1] {
			return i
		}
	}
	return -1
}

// merge takes a new listing over: entries that were there keep what is known of them, vanished ones leave the copy.
func (w *worker) merge(d *dir, names []string) error {
	d.relist = false
	old := d.kids
	kids := make([]node, 0, len(names))
	for len(old) > 0 || len(names) > 0 {
		switch {
		case len(old) == 0 || len(names) > 0 && names[0] < old[0].name:
			kids = append(kids, node{name: names[0], flags: todo})
			if got := w.entries.Add(1); got > w.opts.Limits.MaxEntries { // others list meanwhile
				return &LimitError{Path: w.placeDir(d).String(), Field: "MaxEntries", Limit: w.opts.Limits.MaxEntries, Got: got}
			}
			names = names[1:]
		case len(names) == 0 || old[0].name < names[0]:
			if err := w.drop(d, &old[0]); err != nil {
				return err
			}
			w.entries.Add(-1)
			old = old[1:]
		default:
			kids = append(kids, old[0])
			if sub := old[0].sub; sub != nil {
				sub.index = len(kids) - 1
			}
			names, old = names[1:], old[1:]
		}
	}
	d.kids = kids
	return nil
}

// drop removes an entry from the copy, and from the totals what it added.
func (w *worker) drop(d *dir, n *node) error {
	w.uncount(d, n)
	if w.staging != nil && n.is(placed) {
		if err := w.calls.Unlink(d.out, n.name); err != nil {
			return newPathError("remove", w.pathOf(d, n.name), fmt.Errorf("%w: %w", errDestination, err))
		}
	}
	if n.sub != nil {
		if err := w.dropDir(d, n); err != nil {
			return err
		}
	}
	*n = node{name: n.name, flags: todo}
	return nil
}

func (w *worker) dropDir(d *dir, n *node) error {
	w.handles.mu.Lock()
	w.forget(n.sub)
	w.handles.mu.Unlock()
	if !n.sub.placed {
		return nil
	}
	if err := w.removeTree(d.out, n.name); err != nil {
		return newPathError("remove", w.pathOf(d, n.name), fmt.Errorf("%w: %w", errDestination, err))
	}
	return nil
}

// forget shuts a subtree and takes it from the totals.
func (w *worker) forget(d *dir) {
	for i := range d.kids {
		n := &d.kids[i]
		w.uncount(d, n)
		w.entries.Add(-1)
		if n.sub != nil {
			w.forget(n.sub)
		}
	}
	d.kids, d.gone = nil, true
	if d.held {
		w.closeRoot(w.roots[d.index])
	}
	w.shut(d)
}

func (w *worker) copyBatch(k task) error {
	d := k.dir
	defer w.done(d)
	if err := w.enter(d); err != nil {
		return w.soft(d.parent, d.index, err)
	}
	defer w.leave(d)
	for i := k.lo; i < k.hi; i++ {
		if w.ctx.Err() != nil {
			return canceled(w.ctx, w.verb, w.place(d, i))
		}
		if !d.kids[i].is(todo) {
			continue
		}
		if err := w.soft(d, i, w.tryEntry(d, i, k.last)); err != nil {
			return err
		}
	}
	return nil
}

// tryEntry copies an entry, again at once if only its ctime moved meanwhile, or lets it wait until it is settled.
func (w *worker) tryEntry(d *dir, i int, last bool) error {
	var err error
	for range maxMetadataTries {
		var later *fsys.Kind
		later, err = w.copyEntry(d, i, last)
		if later != nil {
			w.expect(d, 1)
			w.defers(task{dir: d, lo: i, hi: i + 1, kind: later})
		}
		if !onlyMetadata(err) {
			break
		}
	}
	return err
}

// copyEntry pins the name, looks, and does what its kind asks for. An entry that is too young may wait: then it returns the
// kind of its file system.
func (w *worker) copyEntry(d *dir, i int, last bool) (later *fsys.Kind, err error) {
	if d == w.top {
		return w.copyRoot(i, last)
	}
	n := &d.kids[i]
	if err := w.drop(d, n); err != nil {
		return nil, err
	}
	state, out := w.excludes(d, n)
	if out {
		return nil, nil
	}
	pin, err := w.calls.Pin(d.in, n.name)
	if errors.Is(err, errors.ErrUnsupported) {
		return w.copyUnpinned(d, i, state, last)
	}
	if err != nil {
		return nil, w.vanished(d, i, err)
	}
	defer w.release(pin)
	looked, err := w.look(d, i, pin)
	if err != nil {
		return nil, err
	}
	return w.copyLooked(d, i, pin, &looked, state, last)
}

// copyUnpinned is copyEntry where nothing can be pinned.
func (w *worker) copyUnpinned(d *dir, i int, state filterState, last bool) (later *fsys.Kind, err error) {
	looked := source{clock: fsys.Clock(), kind: d.kind}
	if looked.stat, err = w.calls.StatAt(d.in, d.kids[i].name, false); err != nil {
		return nil, w.vanished(d, i, err)
	}
	return w.copyLooked(d, i, fsys.NoHandle, &looked, state, last)
}

// look takes the first State of a pin. What lies on the directory's own mount is on the file system of the directory. The
// clock as the worker last read it will do for what is older than that, which is nearly everything; for the rest it is read
// again.
func (w *worker) look(d *dir, i int, pin fsys.Handle) (source, error) {
	looked := source{clock: w.clock, kind: d.kind}
	var err error
	looked.stat, err = w.calls.Stat(pin, d.kind.Remote)
	if err == nil && !older(&looked.stat.Seen, looked.clock, d.kind) {
		w.clock = fsys.Clock()
		looked.clock = w.clock
		looked.stat, err = w.calls.Stat(pin, d.kind.Remote)
	}
	if err != nil {
		return looked, newPathError("stat", w.place(d, i), err)
	}
	if looked.stat.Mount != d.node().seen.Mount {
		if looked.kind, err = w.calls.Kind(pin, &looked.stat.Seen); err != nil {
			return looked, newPathError("statfs", w.place(d, i), err)
		}
		if looked.kind.Remote {
			looked.clock = fsys.Clock()
			if looked.stat, err = w.calls.Stat(pin, true); err != nil {
				return looked, newPathError("stat", w.place(d, i), err)
			}
		}
	}
	return looked, nil
}

func (w *worker) copyLooked(d *dir, i int, pin fsys.Handle, looked *source, state filterState, last bool) (later *fsys.Kind, err error) {
	n := &d.kids[i]
	n.seen = looked.stat.Seen
	n.set(future, ahead(&n.seen, looked.clock))
	mounted := d != w.top && (looked.stat.MountRoot || looked.stat.Mount != d.node().seen.Mount)
	switch {
	case mounted && !w.opts.CrossMounts && !w.off(checkMount):
		return nil, newPathError("read", w.place(d, i), fmt.Errorf("%w: another file system is mounted there; CrossMounts enters it", ErrEscapes))
	case w.skips(d, n):
		return nil, nil
	}
	isYoung := looked.kind.NoChange || !settled(&n.seen, looked.clock, looked.kind) && !w.off(checkSettled)
	if isYoung && !last && !looked.kind.NoChange && !n.seen.Mode.IsDir() { // a directory waits when it is listed
		return looked.kind, nil
	}
	if err := w.count(d, i); err != nil {
		return nil, err
	}
	switch n.seen.Mode.Type() {
	case fs.ModeDir:
		return nil, w.foundDir(d, i, state)
	case fs.ModeSymlink:
		// Where stamps are coarse, another link could get the same number and the same stamps in one grain.
		n.set(young, isYoung)
		err = w.copyLink(d, i, pin)
	default:
		err = w.copyFile(d, i, pin, looked)
	}
	n.set(todo, err != nil)
	return nil, err
}

// count tests the bounds on the whole tree before a byte of the entry is read.
func (w *worker) count(d *dir, i int) error {
	n := &d.kids[i]
	n.flags |= counted
	got := w.bytes.Add(n.weight(d))
	if got > w.opts.Limits.MaxBytes {
		return &LimitError{Path: w.place(d, i).String(), Field: "MaxBytes", Limit: w.opts.Limits.MaxBytes, Got: got}
	}
	return nil
}

// uncount takes back what count added.
func (t *tree) uncount(d *dir, n *node) {
	if n.is(counted) {
		t.bytes.Add(-n.weight(d))
		n.flags &^= counted
	}
}

// weight is what an entry adds to the total that MaxBytes bounds.
func (n *node) weight(d *dir) int64 {
	got := int64(d.pathLength(n.name))
	if n.seen.Mode.IsRegular() {
		got += min(n.seen.Size, 1<<60) // the sum of two must not wrap
	}
	return got
}

// pathLength is the length of the path of an entry below the root.
func (d *dir) pathLength(name string) int {
	if d.length == 0 {
		return len(name)
	}
	return d.length + 1 + len(name)
}

// excludes applies Options.Exclude, which needs only the path. An excluded directory is walked if something beneath it may
// be kept.
func (w *worker) excludes(d *dir, n *node) (filterState, bool) {
	n.flags &^= skipped | excluded
	if w.opts.Exclude == nil {
		return 0, false
	}
	path := w.pathOf(d, n.name)
	out, _, state := w.opts.Exclude.match(path, d.filter)
	switch {
	case !out:
		return state, false
	case w.opts.Exclude.mayReinclude(path):
		n.flags |= excluded
		return state, false
	}
	n.leaveOut(leftExcluded)
	return state, true
}

// skips applies what needs the State: an excluded entry that is no directory, Options.Skip, and SkipSpecial.
func (w *worker) skips(d *dir, n *node) bool {
	mode := n.seen.Mode
	special := !mode.IsRegular() && !mode.IsDir() && mode.Type() != fs.ModeSymlink
	switch {
	case n.is(excluded) && !mode.IsDir():
		n.leaveOut(leftExcluded)
	case w.opts.Skip != nil && w.opts.Skip(w.pathOf(d, n.name), stateOf(&n.seen)):
		n.leaveOut(leftSkip)
	case special && w.opts.SkipSpecial:
		n.leaveOut(leftSpecial)
	default:
		return false
	}
	return true
}

// foundDir records a directory and queues it.
func (w *worker) foundDir(d *dir, i int, state filterState) error {
	n := &d.kids[i]
	depth := d.depth + 1
	if depth > w.opts.Limits.MaxDepth {
		return &LimitError{Path: w.place(d, i).String(), Field: "MaxDepth", Limit: int64(w.opts.Limits.MaxDepth), Got: int64(depth)}
	}
	if w.staging != nil && sameInode(&n.seen, &w.staging.seen) {
		return newPathError("read", w.place(d, i), fmt.Errorf("%w: the destination lies inside the source", ErrEscapes))
	}
	sub := &dir{
		parent: d, index: i, depth: depth, filter: state,
		length: d.pathLength(n.name),
		in:     fsys.NoHandle, out: fsys.NoHandle,
	}
	n.sub = sub
	n.flags &^= todo
	w.expect(sub, 1)
	w.queue.push(task{dir: sub}) // from here on the entry belongs to the task
	return nil
}

// copyLink records the text of a link.
func (w *worker) copyLink(d *dir, i int, pin fsys.Handle) error {
	n := &d.kids[i]
	if w.opts.Links == LinksReject {
		return newPathError("read", w.place(d, i), fmt.Errorf("%w: links are rejected", ErrEscapes))
	}
	in, name := pin, ""
	if pin == fsys.NoHandle {
		in, name = d.in, n.name
	}
	text, err := w.calls.ReadLink(in, name)
	if err != nil {
		return w.vanished(d, i, err)
	}
	if text == "" || strings.ContainsRune(text, 0) || len(text) > maxLinkText {
		return newPathError("read", w.place(d, i), fmt.Errorf("a link of %d bytes: %w", len(text), fs.ErrInvalid))
	}
	n.link = &link{text: text}
	return nil
}

// copyFile proves one regular file into the copy, or only reads it.
func (w *worker) copyFile(d *dir, i int, pin fsys.Handle, looked *source) (err error) {
	n := &d.kids[i]
	path := w.place(d, i)
	if mode := n.seen.Mode; !mode.IsRegular() && !w.off(checkType) {
		return newPathError("read", path, fmt.Errorf("%w: %s; SkipSpecial leaves it out", ErrNotRegular, kindName(mode)))
	}
	if err := w.regular(looked, path); err != nil {
		return err
	}
	if err := w.singleLink(looked, w.rootOf(d, i), path); err != nil {
		return err
	}
	mode, err := w.copyMode(n.seen.Mode, path)
	if err != nil {
		return err
	}
	if w.shallow {
		return nil
	}
	src := &w.source
	if *src, err = w.openLooked(d, i, pin, looked, path); err != nil {
		return err
	}
	defer w.release(src.h)
	var res read
	if w.staging == nil {
		res, err = w.reader.prove(w.ctx, src, &noSink, path)
	} else {
		res, err = w.copyInto(d, i, src, mode, path)
	}
	if err != nil {
		return err
	}
	n.digest, n.level, n.why = res.digest, res.level, res.why
	n.set(young, res.level == Identified)
	n.set(weak, !src.kind.Stores || src.stat.DAX)
	n.set(cloned, res.cloned)
	w.progress.file(path)
	return nil
}

func (w *worker) openLooked(d *dir, i int, pin fsys.Handle, looked *source, path place) (source, error) {
	in, name := w.nameOf(d, i)
	switch {
	case name == "":
		return w.reopenHeld(in, looked, path)
	case pin == fsys.NoHandle:
		return w.openByName(in, name, path, &looked.stat.Seen)
	}
	return w.reopen(in, name, pin, looked, path)
}

// singleLink refuses a file with a second name whose owner is not the root's: a sandbox can link its host's secret into its
// workspace, where protected_hardlinks does not forbid it.
func (w *worker) singleLink(looked *source, root *node, path place) error {
	if w.opts.SingleLink && looked.stat.Nlink > 1 && looked.stat.UID != root.seen.UID {
		return newPathError("read", path, fmt.Errorf("%w: it has another name, and another owner than the root", ErrEscapes))
	}
	return nil
}

func (w *worker) copyInto(d *dir, i int, src *source, mode fs.FileMode, path place) (res read, err error) {
	n := &d.kids[i]
	h, volume, err := w.createFor(d, n, src, mode)
	if err != nil {
		return res, w.destination("create", d, i, err)
	}
	named := volume == noVolume
	defer func() {
		w.closeWritten(h, path, &err)
		if !named {
			return
		}
		if err == nil {
			n.flags |= placed
		} else if e := w.calls.Unlink(d.out, n.name); e != nil { // what is left is for the next round, or the end, to remove
			n.flags |= placed
			err = errors.Join(err, newPathError("remove", path, fmt.Errorf("%w: %w", errDestination, e)))
		}
	}()
	if res, err = w.reader.fill(w.ctx, src, h, volume, w.space, path); err != nil {
		return res, err
	}
	if !named {
		if err := w.calls.LinkNameless(h, d.out, n.name); err != nil {
			return res, w.destination("link", d, i, err)
		}
		named = true
	}
	if err := w.calls.SetMtime(h, d.out, n.name, src.stat.Mtime); err != nil {
		return res, newPathError("set time", path, err)
	}
	if w.opts.Durable && !fsys.SyncsAll {
		return res, orPathError("sync", path, w.calls.Sync(h))
	}
	return res, nil
}

// createFor makes the file that src is copied into: without a name where it may become a clone.
func (w *worker) createFor(d *dir, n *node, src *source, mode fs.FileMode) (h fsys.Handle, volume uint64, err error) {
	if src.kind.Clones && src.stat.Volume == w.volume && !w.lacks(noClone|noNameless) {
		h, err := w.staging.createNameless(d.out, mode)
		if !errors.Is(err, errors.ErrUnsupported) {
			return h, w.volume, err
		}
	}
	h, err = w.staging.create(d.out, n.name, mode)
	return h, noVolume, err
}
