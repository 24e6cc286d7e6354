// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"holdstill.example/snapshot/internal/fsys"
	"holdstill.example/snapshot/internal/quote"
)

// root is a directory or a file that the caller admits, and an entry of the tree's top. Its path is looked up once when it is
// opened, and again by every collect, which must find the same.
type root struct {
	name   string      // in the copy
	path   string      // as given; of a handle only for messages
	file   *os.File    // the caller's handle: then nothing is ever looked up
	held   fsys.Handle // its duplicate
	places [][]string  // components of absolute paths that lead to it
	kind   *fsys.Kind
	dir    *dir        // of a directory
	in     fsys.Handle // of a file: the directory that its name lies in, all links followed
	base   string      // its name there
	fresh  bool        // opened, and nothing was read yet
}

func newRoot(name, path string) *root {
	return &root{name: name, path: path, held: fsys.NoHandle, in: fsys.NoHandle}
}

// admit opens the roots, which are sorted by name. The top stands for no directory of the source.
func (t *tree) admit(roots ...*root) error {
	t.roots = roots
	t.top = &dir{depth: -1, in: fsys.NoHandle, out: fsys.NoHandle, held: true, kids: make([]node, len(t.roots))}
	t.entries.Store(int64(len(t.roots)))
	if got := t.entries.Load(); got > t.opts.Limits.MaxEntries {
		return &LimitError{Path: t.path, Field: "MaxEntries", Limit: t.opts.Limits.MaxEntries, Got: got}
	}
	for i, r := range t.roots {
		if !t.whole && len(r.name) > t.opts.Limits.MaxPath {
			return &LimitError{Path: r.path, Field: "MaxPath", Limit: int64(t.opts.Limits.MaxPath), Got: int64(len(r.name))}
		}
		t.top.kids[i] = node{name: r.name, flags: todo}
		if r.file != nil {
			var err error
			if r.held, err = t.dup(r.file); err != nil {
				return newPathError("open", r.path, err)
			}
		}
		err := t.openRoot(i)
		if _, moved := errors.AsType[*driftError](err); moved {
			continue // the first round looks it up anew
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) openRoot(i int) (err error) {
	r := t.roots[i]
	defer func() {
		if err != nil {
			t.closeRoot(r)
		}
	}()
	if r.held != fsys.NoHandle {
		return t.openHeld(i)
	}
	if strings.ContainsRune(r.path, 0) {
		return newPathError("open", r.path, fs.ErrInvalid)
	}
	h, err := t.calls.OpenRoot(r.path)
	switch {
	case errors.Is(err, syscall.ENOTDIR) && !t.whole:
		err = t.openRootFile(i)
	case err != nil:
		err = newPathError("open", r.path, err)
	default:
		err = t.openRootDir(i, h)
	}
	if err != nil {
		return err
	}
	r.places, err = t.findPlaces(i)
	return err // also of a root whose path leads somewhere else already
}

// openHeld takes a root from the caller's handle: a file is opened anew for every reading, a directory once.
func (t *tree) openHeld(i int) error {
	r := t.roots[i]
	src, err := t.lookAt(r.held, at(r.path))
	if err != nil {
		return err
	}
	if !src.stat.Mode.IsDir() {
		r.kind = src.kind
		return t.isRootFile(i, &src)
	}
	h, err := t.calls.OpenSelf(r.held)
	if err != nil {
		return newPathError("open", r.path, err)
	}
	return t.openRootDir(i, h)
}

// openRootDir takes h over.
func (t *tree) openRootDir(i int, h fsys.Handle) error {
	r, n := t.roots[i], &t.top.kids[i]
	r.dir = &dir{parent: t.top, index: i, in: h, out: fsys.NoHandle, held: true}
	if !t.whole {
		r.dir.length = len(r.name)
	}
	src, err := t.lookAt(h, at(r.path))
	if err == nil && src.kind.Pseudo {
		err = newPathError("open", r.path, fmt.Errorf("%w: %s is no file system for files", ErrNotRegular, src.kind.Name))
	}
	if err != nil {
		return err
	}
	r.kind, r.dir.kind = src.kind, src.kind
	n.seen, n.sub = src.stat.Seen, r.dir
	r.fresh = true
	return nil
}

// openRootFile finds the directory in which a file lies that may be named by links.
func (t *tree) openRootFile(i int) error {
	r := t.roots[i]
	real, err := filepath.EvalSymlinks(r.path)
	if err != nil {
		return newPathError("open", r.path, err)
	}
	dir, base, err := split(real)
	if err != nil {
		return newPathError("open", r.path, err)
	}
	if r.in, err = t.calls.PinPath(dir); err != nil {
		return newPathError("open", r.path, err)
	}
	r.base = base
	src, pin, err := t.lookRoot(i)
	t.release(pin)
	if err != nil {
		return newPathError("open", r.path, err)
	}
	r.kind = src.kind
	return t.isRootFile(i, &src)
}

func (t *tree) isRootFile(i int, src *source) error {
	r := t.roots[i]
	r.fresh = true
	t.top.kids[i].seen = src.stat.Seen
	return t.regular(src, at(r.path))
}

// lookRoot pins a file, where the system can, and looks at it.
func (t *tree) lookRoot(i int) (src source, pin fsys.Handle, err error) {
	r := t.roots[i]
	if r.held != fsys.NoHandle {
		src, err = t.lookAt(r.held, at(r.path))
		return src, fsys.NoHandle, err
	}
	pin, err = t.calls.Pin(r.in, r.base)
	if errors.Is(err, errors.ErrUnsupported) {
		src.clock = fsys.Clock()
		if src.stat, err = t.calls.StatAt(r.in, r.base, false); err == nil {
			src.kind, err = t.calls.Kind(r.in, &src.stat.Seen)
		}
		return src, fsys.NoHandle, err
	}
	if err == nil {
		src, err = t.lookAt(pin, at(r.path))
	}
	return src, pin, err
}

// closeRoot closes what a look-up opened, not the caller's handle.
func (t *tree) closeRoot(r *root) {
	if r.dir != nil {
		t.release(r.dir.in)
		t.release(r.dir.out)
		r.dir.in, r.dir.out = fsys.NoHandle, fsys.NoHandle
		r.dir = nil
	}
	t.release(r.in)
	r.in, r.fresh = fsys.NoHandle, false
}

// closeRoots closes all, and the caller's handles.
func (t *tree) closeRoots() {
	for _, r := range t.roots {
		t.closeRoot(r)
		t.release(r.held)
		r.held = fsys.NoHandle
	}
}

// copyRoot copies the root that is entry i of the top: as it was opened first, or, after it has drifted, looked up anew.
func (w *worker) copyRoot(i int, last bool) (later *fsys.Kind, err error) {
	r, n := w.roots[i], &w.top.kids[i]
	if !r.fresh {
		if err := w.drop(w.top, n); err != nil {
			return nil, err
		}
		w.closeRoot(r)
		err := w.openRoot(i)
		switch {
		case fsys.IsGone(err): // installers put a new directory in the place of the old one with two renames
			return nil, &driftError{reason: Vanished, dir: w.top, index: i}
		case errors.Is(err, ErrNotRegular) && n.seen != fsys.Seen{}:
			return nil, &driftError{reason: TypeChanged, after: n.seen, dir: w.top, index: i}
		case err != nil:
			return nil, err
		}
	}
	r.fresh = false
	var state filterState
	if !w.whole {
		var out bool
		if state, out = w.excludes(w.top, n); out {
			return nil, nil
		}
	}
	if n.sub == nil {
		return w.copyRootFile(i, state, last)
	}
	n.flags &^= todo
	if !w.whole {
		if w.skips(w.top, n) {
			return nil, nil
		}
		if err := w.count(w.top, i); err != nil {
			return nil, err
		}
	}
	n.sub.filter = state
	w.expect(n.sub, 1)
	w.queue.push(task{dir: n.sub})
	return nil, nil
}

func (w *worker) copyRootFile(i int, state filterState, last bool) (later *fsys.Kind, err error) {
	looked, pin, err := w.lookRoot(i)
	defer w.release(pin)
	if err != nil {
		return nil, w.vanished(w.top, i, err)
	}
	if looked.stat.Mode.Type() != 0 {
		return nil, &driftError{reason: TypeChanged, after: looked.stat.Seen, dir: w.top, index: i}
	}
	return w.copyLooked(w.top, i, pin, &looked, state, last)
}

// nameOf returns by what an entry is looked up: a name in a held directory, or, of a root that the caller holds, only its handle.
func (t *tree) nameOf(d *dir, i int) (in fsys.Handle, name string) {
	switch {
	case d != t.top:
		return d.in, d.kids[i].name
	case t.roots[i].held != fsys.NoHandle:
		return t.roots[i].held, ""
	}
	return t.roots[i].in, t.roots[i].base
}

// kindOf returns what is known of the file system of an entry, which may be another one's than its directory's.
func (t *tree) kindOf(d *dir, i int) *fsys.Kind {
	if d == t.top {
		return t.roots[i].kind
	}
	if n := &d.kids[i]; n.seen.Mount != d.node().seen.Mount {
		if kind, err := t.calls.Kind(fsys.NoHandle, &n.seen); err == nil { // kept since the first look
			return kind
		}
	}
	return d.kind
}

// statEntry looks at what an entry's name is now, at a root by its path.
func (t *tree) statEntry(d *dir, i int) (fsys.Stat, error) {
	if d != t.top {
		return t.calls.StatAt(d.in, d.kids[i].name, t.kindOf(d, i).Remote)
	}
	r := t.roots[i]
	switch {
	case r.held != fsys.NoHandle:
		return t.calls.Stat(r.held, r.kind.Remote)
	case t.off(checkRoot) && r.dir != nil:
		return t.calls.Stat(r.dir.in, r.kind.Remote)
	}
	return t.calls.StatPath(r.path, r.kind.Remote)
}

// openEntry opens an entry's file anew, as everybody does who reads bytes as proof.
func (t *tree) openEntry(d *dir, i int, path place) (source, error) {
	in, name := t.nameOf(d, i)
	if name != "" {
		return t.openSource(in, name, path, nil)
	}
	looked, err := t.lookAt(in, path)
	if err != nil {
		return source{}, err
	}
	return t.reopenHeld(in, &looked, path)
}

// reopenHeld opens the caller's file on a handle that is ours to close. Where it cannot be opened anew, that is a duplicate of his.
func (t *tree) reopenHeld(h fsys.Handle, looked *source, path place) (source, error) {
	src, err := t.reopenHandle(h, looked, path)
	if err == nil && src.h == h {
		if src.h, err = t.calls.Dup(uintptr(h)); err != nil {
			err = newPathError("open", path, err)
		}
	}
	return src, err
}

// findPlaces returns the absolute paths by which links may name a root: its path with all links resolved, and as it was
// given. They are found before anything is read, and count only if they lead to the held root: a path that is exchanged later
// must not make a stranger's file one of ours.
func (t *tree) findPlaces(i int) ([][]string, error) {
	given := t.roots[i].path
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
		st, err := t.calls.StatPath(path, false)
		switch {
		case errors.Is(err, fs.ErrPermission): // the way to the root may be shorter than its absolute path
			continue
		case err != nil && !fsys.IsGone(err):
			return nil, newPathError("open", path, err)
		case err != nil || !sameInode(&t.top.kids[i].seen, &st.Seen):
			return nil, &driftError{reason: Replaced, after: st.Seen, dir: t.top, index: i}
		}
		if place := components(path); !slices.Contains(place, "..") {
			places = append(places, place)
		}
	}
	return places, nil
}

// isRoot reports whether path, links followed, is the ith root.
func (t *tree) isRoot(path string, i int) (is bool, err error) {
	st, err := t.calls.StatPath(path, false)
	if errors.Is(err, fs.ErrPermission) { // then it is not the root, which was opened
		return false, nil
	}
	return err == nil && sameInode(&t.top.kids[i].seen, &st.Seen), err
}

// refuseInside refuses a destination inside a source before anything is written. What a bind mount hides from it is found
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
		for i, r := range t.roots {
			inside, err := t.isRoot(real, i)
			switch {
			case err != nil:
				return newPathError("open", real, err)
			case inside:
				return newPathError("create", dst, fmt.Errorf("%w: the destination lies inside the source %s", ErrEscapes, quote.Name(r.path)))
			}
		}
		if real == filepath.Dir(real) {
			return nil
		}
		real = filepath.Dir(real)
	}
}
