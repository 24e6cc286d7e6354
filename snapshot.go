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
	defer t.end(&err)
	parent, dir, base, err := t.openParent(dst)
	if err != nil {
		return nil, err
	}
	defer t.closing(parent, &err)
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
	if err := t.makeTop(); err != nil {
		return nil, err
	}
	defer func() { t.closing(t.out, &err) }()
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
	defer t.end(&err)
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
		return nil, errors.Join(err, t.finish())
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
		t.closing(h, &err)
		return err
	}
	t.root = &dir{index: -1, in: h, out: t.out, kind: src.kind, users: 1, placed: true}
	t.top = node{seen: src.stat.Seen, sub: t.root, flags: counted}
	t.entries.Store(1)
	t.places, err = t.findPlaces()
	if err != nil {
		t.closing(h, &err)
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
func (t *tree) end(err *error) {
	defer func() { *err = errors.Join(*err, t.finish()) }()
	t.shutAll()
	t.closing(t.root.in, err)
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
	t.closing(pin, &err)
	return sameInode(&t.top.seen, &st.Seen), err
}

// makeTop makes the copy's root in the staging directory.
func (t *tree) makeTop() error {
	where := filepath.Join(t.staging.where(), stagingTree)
	if err := t.calls.Mkdir(t.staging.dir, stagingTree, 0o700); err != nil {
		return newPathError("mkdir", where, err)
	}
	out, err := t.calls.OpenDir(t.staging.dir, stagingTree)
	if err != nil {
		return newPathError("open", where, err)
	}
	t.out, t.root.out = out, out
	st, err := t.calls.Stat(out, false)
	if err != nil {
		return newPathError("stat", where, err)
	}
	t.volume = st.Volume
	return nil
}

// publishTop makes the copy visible. Its root gets its mode last: a directory without owner write cannot be moved to another
// parent, so a kill in between leaves the copy whole at 0700.
func (t *tree) publishTop(base string) (err error) {
	dst := filepath.Join(t.staging.path, base)
	if err := canceled(t.ctx, t.verb, t.path); err != nil {
		return err
	}
	if err := t.calls.SetMtimeAt(t.staging.dir, stagingTree, t.top.seen.Mtime); err != nil {
		return newPathError("set time", dst, err)
	}
	if t.opts.Durable {
		if err := t.syncTree(); err != nil {
			return newPathError("sync", dst, err)
		}
	}
	published, err := t.staging.publish(stagingTree, base, t.out)
	if err == nil {
		err = t.finishTop(dst)
	}
	if err != nil && published {
		err = errors.Join(err, t.unpublish(base))
	}
	return err
}

func (t *tree) finishTop(dst string) error {
	if err := t.calls.Chmod(t.out, t.dirMode(&t.top)); err != nil {
		return newPathError("chmod", dst, err)
	}
	if !t.opts.Durable {
		return nil
	}
	return orPathError("sync", dst, errors.Join(t.calls.Sync(t.out), t.calls.Sync(t.staging.parent)))
}

// unpublish takes back what must not stay: through the handle, since the name may be somebody else's by now.
func (t *tree) unpublish(base string) (err error) {
	dst := filepath.Join(t.staging.path, base)
	defer func() {
		if err != nil {
			err = &LeftoverError{Paths: []string{dst}, Err: err}
		}
	}()
	st, err := t.calls.Stat(t.out, false)
	if err != nil {
		return err
	}
	if err := t.calls.Chmod(t.out, 0o700); err != nil {
		return err
	}
	if err := t.empty(t.out, &st.Seen, ""); err != nil {
		return err
	}
	if now, err := t.calls.StatAt(t.staging.parent, base, false); err != nil || !sameFile(&now.Seen, &st.Seen) {
		return nil // emptied, and somewhere else now
	}
	return t.calls.Rmdir(t.staging.parent, base)
}

// syncTree makes the data durable. Where one call does it for all, it is 3 to 18 times cheaper than one for each file, which
// elsewhere the copy and the sealing have made.
func (t *tree) syncTree() error {
	err := t.calls.SyncAll(t.out)
	if errors.Is(err, errors.ErrUnsupported) {
		err = t.calls.Sync(t.out)
	}
	return err
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
		if err := t.recopy(at.dir, n); err != nil {
			return t.restart(rounds)
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
		if err := t.recopy(d.parent, t.node(d)); err != nil {
			return t.restart(rounds)
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

// recopy drops what was copied of an entry and marks it for the next round.
func (t *tree) recopy(d *dir, n *node) error {
	if n.sub != nil {
		if err := t.enter(d); err != nil {
			return err
		}
		defer t.leave(d)
		if err := t.workers[0].drop(d, n); err != nil {
			return err
		}
	}
	n.flags |= todo
	return nil
}

// listAgain lists a directory that drifted; if it is young it is worth a wait of its own.
func (t *tree) listAgain(d *dir) error {
	w := t.workers[0]
	t.expect(d, 1)
	defer t.done(d)
	later, err := w.listDir(d, false)
	if !later {
		return err
	}
	if _, err := t.settle(t.ctx, &t.node(d).seen, d.kind, t.placeDir(d)); err != nil {
		return err
	}
	_, err = w.listDir(d, true)
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
	t.closing(t.root.in, &err)
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

// prune leaves excluded directories out in which nothing is kept after all.
func (t *tree) prune(d *dir) (kept bool) {
	for i := range d.kids {
		n := &d.kids[i]
		if n.sub != nil && !t.prune(n.sub) && n.is(excluded) {
			n.leaveOut(leftExcluded)
		}
		kept = kept || !n.is(skipped)
	}
	return kept
}

// dirMode returns the bits that the copy of a directory gets.
func (t *tree) dirMode(n *node) fs.FileMode {
	if t.opts.PreserveMode {
		return n.seen.Mode.Perm()
	}
	return 0o500
}

// seal makes the links of d, which come after everything else so that nothing is ever written through one, and then, from
// the bottom up, gives directories their times and modes. No directory stays in use while those beneath it are sealed.
func (t *tree) seal(d *dir) error {
	if err := t.within(d, func() error { return t.sealLinks(d) }); err != nil {
		return err
	}
	for i := range d.kids {
		n := &d.kids[i]
		if n.sub == nil || n.is(skipped) {
			continue
		}
		if err := t.seal(n.sub); err != nil {
			return err
		}
		if err := t.within(d, func() error { return t.sealDir(d, i) }); err != nil {
			return err
		}
	}
	return nil
}

// within calls f while d is open.
func (t *tree) within(d *dir, f func() error) error {
	if err := canceled(t.ctx, t.verb, t.path); err != nil {
		return err
	}
	if err := t.enter(d); err != nil {
		return err
	}
	defer t.leave(d)
	return f()
}

func (t *tree) sealLinks(d *dir) error {
	for i := range d.kids {
		n := &d.kids[i]
		switch {
		case n.is(skipped) && n.sub != nil && n.sub.placed:
			if err := t.removeExcluded(d, n); err != nil {
				return t.destination("remove", d, i, err)
			}
		case n.is(skipped) || n.link == nil:
		default:
			if err := t.calls.Symlink(n.link.copy, d.out, n.name); err != nil {
				return t.destination("link", d, i, err)
			}
			if err := t.calls.SetMtimeAt(d.out, n.name, n.seen.Mtime); err != nil {
				return t.destination("set time", d, i, err)
			}
		}
	}
	return nil
}

// sealDir gives the directory that is entry i of d its time and mode.
func (t *tree) sealDir(d *dir, i int) error {
	n := &d.kids[i]
	if err := t.calls.SetMtimeAt(d.out, n.name, n.seen.Mtime); err != nil {
		return t.destination("set time", d, i, err)
	}
	if t.opts.Durable && !fsys.SyncsAll {
		if err := t.within(n.sub, func() error { return t.calls.Sync(n.sub.out) }); err != nil {
			return t.destination("sync", d, i, err)
		}
	}
	if mode := t.dirMode(n); mode != 0o700 {
		return t.destination("chmod", d, i, t.calls.ChmodAt(d.out, n.name, mode))
	}
	return nil
}

// removeExcluded removes an excluded directory that was walked for nothing, and the like beneath it.
func (t *tree) removeExcluded(d *dir, n *node) (err error) {
	out, err := t.calls.OpenDir(d.out, n.name)
	if err != nil {
		return err
	}
	var st fsys.Stat
	if st, err = t.calls.Stat(out, false); err == nil {
		err = t.empty(out, &st.Seen, "")
	}
	t.closing(out, &err)
	if err != nil {
		return err
	}
	return t.calls.Rmdir(d.out, n.name)
}

// report counts, and writes the manifest in its order.
func (t *tree) report(rounds int) (*Report, error) {
	r := &Report{
		Rounds: rounds, Evidence: make(map[Evidence]int64), Instant: InstantAll,
		Abandoned: t.abandoned.Load(), MetadataOnly: t.metadata,
	}
	if t.opts.PerFile {
		r.Instant = InstantNone
	}
	if t.opts.Exclude != nil {
		r.Patterns = t.opts.Exclude.Patterns()
	}
	b := newManifestBuilder()
	if err := t.reportEntry(r, b, nil, -1, "."); err != nil {
		return nil, err
	}
	m, err := b.finish()
	if err != nil {
		return nil, newPathError("manifest", t.path, err)
	}
	r.Manifest = m
	return r, nil
}

func (t *tree) reportEntry(r *Report, b *manifestBuilder, d *dir, i int, path string) error {
	n := t.entry(d, i)
	if n.is(skipped) {
		r.Skipped = append(r.Skipped, t.leftOut(n, path))
		return nil
	}
	if n.is(todo) { // every way here goes through a round without drift
		return newPathError("manifest", t.place(d, i), errUncopied)
	}
	e := t.manifestEntry(n, path)
	if err := b.add(e); err != nil {
		return newPathError("manifest", t.place(d, i), err)
	}
	t.tally(r, n, e, d)
	if n.sub == nil {
		return nil
	}
	prefix := path + "/"
	if path == "." {
		prefix = ""
	}
	for i := range n.sub.kids {
		if err := t.reportEntry(r, b, n.sub, i, prefix+n.sub.kids[i].name); err != nil {
			return err
		}
	}
	return nil
}

// errUncopied would be a fault of this package: an entry that is neither copied nor left out.
var errUncopied = errors.New("the entry was not copied")

func (t *tree) manifestEntry(n *node, path string) Entry {
	switch {
	case n.link != nil:
		return Entry{Path: path, Mode: fs.ModeSymlink | 0o777, Link: n.link.copy}
	case n.sub != nil && t.staging != nil:
		return Entry{Path: path, Mode: fs.ModeDir | t.dirMode(n)}
	case n.sub != nil:
		return Entry{Path: path, Mode: fs.ModeDir | n.seen.Mode.Perm()}
	}
	mode := n.seen.Mode.Perm()
	if t.staging != nil {
		mode, _ = t.copyMode(n.seen.Mode, path) // it was asked before the file was read
	}
	return Entry{Path: path, Mode: mode, Size: n.seen.Size, Digest: n.digest}
}

func (t *tree) leftOut(n *node, path string) Skipped {
	s := Skipped{Path: path, Because: n.left.String()}
	switch n.left {
	case leftExcluded:
		s.Rule, _ = t.opts.Exclude.Explain(path)
	case leftEscapes, leftDangling:
		s.Rule = n.link.text
	}
	return s
}

// tally counts one entry of the copy, and what its proof is worth for the instant.
func (t *tree) tally(r *Report, n *node, e Entry, d *dir) {
	special := n.seen.Mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0
	if special && n.link == nil {
		r.SpecialModes++
	}
	switch {
	case n.is(young):
		r.Instant = InstantNone
	case n.is(weak):
		r.Instant = min(r.Instant, InstantWrites)
	}
	switch {
	case n.sub != nil:
		r.Dirs++
		return
	case n.link != nil:
		r.Links++
		return
	}
	r.Files++
	r.Bytes += n.seen.Size
	if n.is(cloned) {
		r.Cloned += n.seen.Size
	}
	r.Evidence[n.level]++
	if r.Weakest.Evidence == 0 || n.level < r.Weakest.Evidence {
		r.Weakest = Proof{
			Entry: e, State: stateOf(&n.seen), Evidence: n.level, Because: n.why.text(d.kind), Attempts: r.Rounds,
		}
		r.Weakest.Entry.Path = n.name
	}
}

// Lstat returns the State of name without following a final link, to ask later whether a file read before has changed since.
func Lstat(name string) (_ State, err error) {
	if err := fsys.Supported(); err != nil {
		return State{}, newPathError("lstat", name, err)
	}
	dirName, base, err := split(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrInvalid) {
		dirName, base, err = name, "", nil // "dir/" and "..", which are directories
	}
	if err != nil {
		return State{}, newPathError("lstat", name, err)
	}
	o := newOp(nil)
	defer func() { err = errors.Join(err, o.finish()) }()
	dir, err := o.calls.PinPath(dirName)
	if err != nil {
		return State{}, newPathError("lstat", name, err)
	}
	defer o.closing(dir, &err)
	var st fsys.Stat
	if base == "" {
		st, err = o.calls.Stat(dir, true)
	} else {
		st, err = o.calls.StatAt(dir, base, true)
	}
	if err != nil {
		return State{}, newPathError("lstat", name, err)
	}
	return stateOf(&st.Seen), nil
}
