// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdstill.example/snapshot/internal/fsys"
)

// tree is one copy of a tree under way. Its entries are kept without paths, at most some 200 bytes each.
type tree struct {
	*op
	ctx     context.Context
	verb    string
	path    string // of the first root, for messages
	roots   []*root
	top     *dir // whose entries are the roots; nothing of it is in the source
	whole   bool // the only root is the whole copy, not an entry of it
	aliases []Alias
	shallow bool     // contents are not read
	staging *staging // nil if nothing is written
	volume  uint64   // that the copy lies on
	space   *space
	queue   *pool
	side    side // whose directories are entered

	handles handles
	workers []*worker
	entries atomic.Int64
	bytes   atomic.Int64

	started time.Time
	leases  atomic.Int64 // held on suspects
	polled  atomic.Int64 // nanoseconds since started
	polling sync.Mutex

	mu       sync.Mutex
	young    []task // waits for stamps to settle
	drifts   []driftAt
	suspects []*suspect
	metadata int64
}

// worker is what one goroutine of the pool owns.
type worker struct {
	*tree
	reader *reader
	source source     // the file that is being copied
	clock  fsys.Stamp // as read before some look
	list   []byte     // buffer for listings
	listed []string   // and for the names in them
}

// dir is a directory: its entries in the order of the manifest, and its handles while somebody needs them.
type dir struct {
	parent *dir
	index  int // of its entry among the parent's
	depth  int
	kids   []node
	kind   *fsys.Kind
	filter filterState
	length int  // bytes of its path
	relist bool // its listing has drifted
	gone   bool // it was dropped from the tree

	in, out fsys.Handle
	users   int
	pending int // tasks that will need it
	newer   *dir
	older   *dir
	placed  bool // it exists in the copy
	held    bool // open to the end: a root is looked up once
	made    bool // there is none in the source: it is on the way to an alias
}

// node is an entry of a directory.
type node struct {
	seen   fsys.Seen // its State when it was read, or listed
	digest Digest
	name   string
	sub    *dir  // of a directory
	link   *link // of a symbolic link
	flags  flags
	level  Evidence
	why    whyNot
	left   leftOut
}

type flags uint16

const (
	todo     flags = 1 << iota // to be copied in this round
	placed                     // a file that exists in the copy
	skipped                    // left out, for the reason in left
	excluded                   // a directory left out unless something beneath it is kept
	young                      // its stamps were never settled
	future                     // its ctime was ahead of the clock
	cloned                     // the copy is a reflink
	weak                       // a store through a mapping leaves no stamp here
	counted                    // it is part of the totals
)

// leftOut says why an entry was left out.
type leftOut uint8

const (
	leftExcluded leftOut = iota
	leftSkip
	leftSpecial
	leftEscapes
	leftDangling
)

// String returns what Skipped.Because says.
func (l leftOut) String() string {
	return [...]string{"excluded", "skip", "special", "escapes", "dangling"}[l]
}

func (n *node) leaveOut(why leftOut) {
	n.flags = n.flags&^todo | skipped
	n.left = why
}

func (n *node) is(f flags) bool { return n.flags&f != 0 }

func (n *node) set(f flags, on bool) {
	n.flags &^= f
	if on {
		n.flags |= f
	}
}

// driftAt is one entry that changed under us.
type driftAt struct {
	dir    *dir
	index  int
	reason Reason
	after  fsys.Seen
	err    error // not nil if more is known than the reason
}

// node returns the entry of d, which is not the top.
func (d *dir) node() *node { return &d.parent.kids[d.index] }

// pathOf returns the manifest path of an entry; it is made only for messages, filters and progress.
func (t *tree) pathOf(d *dir, name string) string {
	names := append(t.pathTo(d), name)
	if t.whole && d != t.top {
		names = names[1:]
	}
	return strings.Join(names, "/")
}

// pathTo returns the names that lead to d, that of its root first.
func (t *tree) pathTo(d *dir) []string {
	var names []string
	for ; d != t.top; d = d.parent {
		names = append(names, d.node().name)
	}
	slices.Reverse(names)
	return names
}

// place returns where an entry is, for messages.
func (t *tree) place(d *dir, i int) place { return place{tree: t, dir: d, index: i} }

func (t *tree) placeDir(d *dir) place {
	if d == t.top {
		return at(t.path)
	}
	return t.place(d.parent, d.index)
}

// rootOf returns the root's own entry, of entry i of d.
func (t *tree) rootOf(d *dir, i int) *node {
	for ; d != t.top; d = d.parent {
		i = d.index
	}
	return &t.top.kids[i]
}

func (t *tree) drifted(d *dir, i int, reason Reason, after *fsys.Seen, err error) {
	at := driftAt{dir: d, index: i, reason: reason, err: err}
	if after != nil {
		at.after = *after
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drifts = append(t.drifts, at)
}

// handles keeps the directories that are open within a bound: those on the way to what is being worked on, and no more than
// the process can spare. A directory that has to be opened again must be the one that was recorded.
type handles struct {
	mu     sync.Mutex
	limit  int
	open   int
	newest *dir // of those that nobody uses now
	oldest *dir
}

// side says which of a directory's handles a phase needs: a copy round both, a collect the source's, sealing the copy's. The
// other one is not opened.
type side uint8

const (
	bothSides side = iota
	sourceSide
	copySide
)

// turnTo begins a phase that needs other handles.
func (t *tree) turnTo(s side) {
	t.shutAll()
	t.side = s
}

// landmark: every landmark-th level of a deep tree stays open longest, so that coming back to a directory opens no more
// than landmark others.
const landmark = 64

// enter opens d, and its copy if there is one, until leave.
func (t *tree) enter(d *dir) error {
	t.handles.mu.Lock()
	defer t.handles.mu.Unlock()
	return t.enterLocked(d)
}

func (t *tree) enterLocked(d *dir) error {
	var closed []*dir
	for ; t.isShut(d); d = d.parent {
		closed = append(closed, d)
	}
	t.handles.use(d)
	for i := len(closed) - 1; i >= 0; i-- {
		next := closed[i]
		if err := t.reenter(next); err != nil {
			t.leaveLocked(d)
			return err
		}
		t.handles.use(next)
		t.leaveLocked(d)
		d = next
	}
	return nil
}

func (t *tree) isShut(d *dir) bool {
	switch {
	case d == t.top:
		return false
	case t.side == copySide:
		return d.out == fsys.NoHandle
	}
	return d.in == fsys.NoHandle
}

// reenter opens d relative to its parent, which is open.
func (t *tree) reenter(d *dir) (err error) {
	n := d.node()
	if t.side == copySide { // what the source does now is of no concern any more
		if d.out, err = t.calls.OpenDir(d.parent.out, n.name); err != nil {
			d.out = fsys.NoHandle
			return t.destination("open", d.parent, d.index, err)
		}
		t.handles.open += 2
		return nil
	}
	in, err := t.calls.OpenDir(d.parent.in, n.name)
	if err != nil {
		return t.vanished(d.parent, d.index, err)
	}
	defer func() {
		if err != nil {
			t.release(in)
		}
	}()
	st, err := t.calls.Stat(in, d.parent.kind.Remote)
	if err != nil {
		return newPathError("stat", t.placeDir(d), err)
	}
	if !sameFile(&n.seen, &st.Seen) && !t.off(checkDirIdentity) {
		return &driftError{reason: drift(&n.seen, &st.Seen), after: st.Seen, dir: d.parent, index: d.index}
	}
	out := fsys.NoHandle
	if d.placed && t.side == bothSides {
		if out, err = t.calls.OpenDir(d.parent.out, n.name); err != nil {
			return newPathError("open", t.placeDir(d), err)
		}
	}
	d.in, d.out = in, out
	t.handles.open += 2
	return nil
}

func (t *tree) leave(d *dir) {
	t.handles.mu.Lock()
	defer t.handles.mu.Unlock()
	t.leaveLocked(d)
}

func (t *tree) leaveLocked(d *dir) {
	h := &t.handles
	if d.users--; d.users > 0 {
		return
	}
	h.push(d)
	for h.open > h.limit && h.oldest != nil {
		t.shut(h.victim())
	}
}

// shut closes the handles of d, which nobody uses. A handle that was only read through, or to which nothing is written any
// more, has no error to lose.
func (t *tree) shut(d *dir) {
	if d.in == fsys.NoHandle && d.out == fsys.NoHandle || d.held {
		return
	}
	t.handles.unlink(d)
	t.release(d.in)
	t.release(d.out)
	d.in, d.out = fsys.NoHandle, fsys.NoHandle
	t.handles.open -= 2
}

// expect counts tasks that will need d, and done one that did: the last one shuts it. A directory that is needed needs the
// one above it.
func (t *tree) expect(d *dir, n int) {
	t.handles.mu.Lock()
	defer t.handles.mu.Unlock()
	for ; n > 0 && d != nil; d = d.parent {
		first := d.pending == 0
		d.pending += n
		n = 0
		if first {
			n = 1
		}
	}
}

func (t *tree) done(d *dir) {
	t.handles.mu.Lock()
	defer t.handles.mu.Unlock()
	for ; d != nil; d = d.parent {
		if d.pending--; d.pending > 0 {
			return
		}
		if d.users == 0 {
			t.shut(d)
		}
	}
}

// shutAll closes every directory but the roots.
func (t *tree) shutAll() {
	t.handles.mu.Lock()
	defer t.handles.mu.Unlock()
	for t.handles.oldest != nil {
		d := t.handles.oldest
		t.handles.unlink(d)
		t.shut(d)
	}
}

// victim returns the directory that was left longest ago, a landmark only if there is nothing else.
func (h *handles) victim() *dir {
	for d := h.oldest; d != nil; d = d.newer {
		if d.depth%landmark != 0 {
			return d
		}
	}
	return h.oldest
}

func (h *handles) use(d *dir) {
	if d.users == 0 {
		h.unlink(d)
	}
	d.users++
}

func (h *handles) push(d *dir) {
	if d.held {
		return
	}
	d.older, d.newer = h.newest, nil
	if h.newest != nil {
		h.newest.newer = d
	} else {
		h.oldest = d
	}
	h.newest = d
}

func (h *handles) unlink(d *dir) {
	if d.newer == nil && d.older == nil && h.newest != d {
		return
	}
	if d.newer != nil {
		d.newer.older = d.older
	} else {
		h.newest = d.older
	}
	if d.older != nil {
		d.older.newer = d.newer
	} else {
		h.oldest = d.newer
	}
	d.newer, d.older = nil, nil
}

// driftError says that an entry is not what was recorded: the round goes on without it.
type driftError struct {
	reason Reason
	after  fsys.Seen
	dir    *dir // and index: the entry, where it is not the one that was being worked on
	index  int
}

func (e *driftError) Error() string { return e.reason.String() }

// vanished translates an open that failed after a look: a change if the name tells of one, else a failure.
func (t *tree) vanished(d *dir, i int, err error) error {
	if fsys.IsGone(err) {
		after, e := t.statEntry(d, i)
		switch {
		case errors.Is(e, fs.ErrNotExist):
			return &driftError{reason: Vanished, dir: d, index: i}
		case e == nil:
			return &driftError{reason: max(drift(&d.kids[i].seen, &after.Seen), Replaced), after: after.Seen, dir: d, index: i}
		}
		err = e
	}
	return newPathError("open", t.place(d, i), err)
}
