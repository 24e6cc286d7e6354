// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"holdstill.example/snapshot/internal/fsys"
)

// OpenSnapshot opens what another process took, in a directory that its manifest's digest names. Owner, modes, names, sizes and
// link texts of everything in it are checked, contents are not: [Snapshot.Verify] reads them all, [Snapshot.Open] those of one
// file. While it is open, [Sweep] and [RemoveSnapshot] leave it alone. What differs is [ErrMismatch] or [ErrUntrusted].
func OpenSnapshot(ctx context.Context, dir string, manifest Digest) (*Snapshot, error) {
	if manifest.IsZero() {
		return nil, newPathError("open", dir, fmt.Errorf("the digest of the manifest is zero, which stands for none: %w", fs.ErrInvalid))
	}
	if err := fsys.Supported(); err != nil {
		return nil, newPathError("open", dir, err)
	}
	return newOp(nil).openSnapshot(ctx, dir, manifest)
}

// openSnapshot is OpenSnapshot as one operation, which ends with Close.
func (o *op) openSnapshot(ctx context.Context, dir string, manifest Digest) (_ *Snapshot, err error) {
	s := &Snapshot{op: o, tree: fsys.NoHandle}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	if err := s.open(dir, sealedMode); err != nil {
		return nil, err
	}
	if err := s.checkNames(); err != nil { // before the lock, whose absence would look like that of the directory
		return nil, err
	}
	if err := s.share(); err != nil {
		return nil, err
	}
	if err := s.openTree(); err != nil {
		return nil, err
	}
	if s.manifest, err = s.readManifest(manifest); err != nil {
		return nil, err
	}
	if err := s.look(ctx); err != nil {
		return nil, err
	}
	if err := s.serve(); err != nil {
		return nil, err
	}
	return s, nil
}

// open holds the directory of a snapshot.
func (s *Snapshot) open(dir string, modes ...fs.FileMode) error {
	o, c := s.op, s.op.calls
	path, err := filepath.Abs(dir)
	if err != nil {
		return newPathError("open", dir, err)
	}
	parent, base := filepath.Split(path)
	s.staging = o.stagingAt(fsys.NoHandle, filepath.Clean(parent), base)
	if !fsys.ValidName(base) {
		return newPathError("open", dir, fmt.Errorf("%w: no snapshot", fs.ErrInvalid))
	}
	if s.staging.parent, err = c.OpenRoot(parent); err != nil {
		return newPathError("open", parent, err)
	}
	if err := o.trustParent(s.staging.parent, s.staging.path); err != nil {
		return err
	}
	if s.staging.dir, err = c.OpenDir(s.staging.parent, base); err != nil {
		return newPathError("open", dir, err)
	}
	st, err := c.Stat(s.staging.dir, false)
	if err != nil {
		return newPathError("stat", dir, err)
	}
	s.staging.seen = st.Seen
	return s.checkDir(modes...)
}

// share holds a shared lock on the directory of a snapshot.
func (s *Snapshot) share() error { return orPathError("open", s.Dir(), s.staging.share()) }

// checkDir: the snapshot's directory is ours, has one of the modes, and still has its name.
func (s *Snapshot) checkDir(modes ...fs.FileMode) error {
	st, err := s.op.calls.Stat(s.staging.dir, false)
	if err != nil {
		return newPathError("stat", s.Dir(), err)
	}
	named, err := s.staging.named()
	switch {
	case err != nil:
		return newPathError("stat", s.Dir(), err)
	case !named:
		return newPathError("open", s.Dir(), fmt.Errorf("%w: another directory has the name", ErrUntrusted))
	case st.UID != fsys.Euid():
		return &TrustError{Path: s.Dir(), Owner: fmt.Sprint(st.UID), Mode: st.Mode}
	case !slices.Contains(modes, st.Mode&^fs.ModeDir):
		return newPathError("open", s.Dir(), fmt.Errorf("%w: its mode is %s, that of a whole snapshot %04o: it is unfinished, or was changed", ErrMismatch, octal(st.Mode), sealedMode))
	}
	return nil
}

func (s *Snapshot) openTree() (err error) {
	if err := s.checkNames(); err != nil {
		return err
	}
	s.tree, err = s.op.calls.OpenDir(s.staging.dir, stagingTree)
	if fsys.IsGone(err) {
		err = fmt.Errorf("%w: no directory: %w", ErrMismatch, err)
	}
	return orPathError("open", filepath.Join(s.Dir(), stagingTree), err)
}

// names lists a snapshot's directory, or the beginning of a long one. Others may be listing it at the same time.
func (s *Snapshot) names() (names []string, err error) {
	c := s.op.calls
	h, err := c.OpenSelf(s.staging.dir)
	if err == nil {
		err = c.List(h, make([]byte, fsys.ListBufferSize), func(name string) error {
			if len(names) < 4 {
				names = append(names, name)
			}
			return nil
		})
		s.op.release(h)
	}
	if err != nil {
		return nil, newPathError("list", s.Dir(), err)
	}
	slices.Sort(names)
	return names, nil
}

// checkNames: a snapshot's directory holds the lock, the manifest and the tree.
func (s *Snapshot) checkNames() error {
	names, err := s.names()
	if err != nil || slices.Equal(names, []string{stagingLock, manifestName, stagingTree}) {
		return err
	}
	return newPathError("open", s.Dir(), fmt.Errorf("%w: a snapshot holds %s, %s and %s, and it holds %s",
		ErrMismatch, stagingLock, manifestName, stagingTree, nameList(names)))
}

// checkTree: the name, by which Path and FS go, still is the directory that is held.
func (s *Snapshot) checkTree() error {
	path := filepath.Join(s.Dir(), stagingTree)
	held, err := s.op.calls.Stat(s.tree, false)
	var named fsys.Stat
	if err == nil {
		named, err = s.op.calls.StatAt(s.staging.dir, stagingTree, false)
	}
	if err == nil && !sameFile(&held.Seen, &named.Seen) {
		err = fmt.Errorf("%w: another directory has the name", ErrMismatch)
	}
	return orPathError("stat", path, err)
}

// readManifest checks the manifest against its digest; zero takes it as it is.
func (s *Snapshot) readManifest(want Digest) (*Manifest, error) {
	o, c := s.op, s.op.calls
	path := filepath.Join(s.Dir(), manifestName)
	src, err := o.openSource(s.staging.dir, manifestName, at(path), nil)
	if err != nil {
		return nil, err
	}
	defer o.release(src.h)
	if st := src.stat; st.UID != fsys.Euid() || st.Nlink != 1 || st.Mode.Perm() != 0o400 {
		return nil, &TrustError{Path: path, Owner: fmt.Sprint(st.UID), Mode: st.Mode}
	}
	m, err := ReadManifest(&handleReader{calls: c, h: src.h})
	if err != nil {
		return nil, newPathError("read", path, fmt.Errorf("%w: %w", ErrMismatch, err))
	}
	if got := m.Digest(); got != want && !want.IsZero() {
		return nil, newPathError("open", path, fmt.Errorf("%w: its digest is %s, not %s", ErrMismatch, got, want))
	}
	return m, nil
}

// handleReader reads an open file from its beginning.
type handleReader struct {
	calls *fsys.Calls
	h     fsys.Handle
	off   int64
}

func (r *handleReader) Read(p []byte) (int, error) {
	n, err := r.calls.Read(r.h, p, r.off)
	r.off += int64(n)
	if n == 0 && err == nil && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

// held returns a tree over the held directory tree/, which no name leads to. It is the caller's to end.
func (s *Snapshot) held(ctx context.Context, verb string) (*tree, error) {
	path := filepath.Join(s.Dir(), stagingTree)
	t, err := newTree(ctx, verb, path, asRecorded(&Options{
		Limits: Limits{MaxFileBytes: -1, MaxBytes: -1, MaxEntries: -1, MaxDepth: -1, MaxPath: -1}, // what Take took within its own
		seam:   s.op.seam,
	}))
	if err != nil {
		return nil, err
	}
	t.whole = true
	root := newRoot(stagingTree, path)
	if root.held, err = t.calls.Dup(uintptr(s.tree)); err == nil {
		err = t.admit(root)
	} else {
		err = newPathError("open", path, err)
	}
	if err != nil {
		t.end()
		return nil, err
	}
	return t, nil
}

// look compares all but the contents with the manifest.
func (s *Snapshot) look(ctx context.Context) error {
	t, err := s.held(ctx, "open")
	if err != nil {
		return err
	}
	defer t.end()
	t.shallow = true
	if _, err := t.prove(); err != nil {
		return err
	}
	return t.compareWith(s.manifest, func(recorded, found *Entry, n *node) error {
		if recorded != nil && found != nil {
			found.Digest = recorded.Digest
		}
		err := s.matches(recorded, found, n)
		if err != nil && found != nil {
			found.Digest = Digest{} // it was not read
		}
		return err
	})
}

// matches: an entry is as it was sealed, by whom it was sealed.
func (s *Snapshot) matches(recorded, found *Entry, n *node) error {
	if err := equal(recorded, found); err != nil {
		return err
	}
	path := filepath.Join(s.Dir(), stagingTree, found.Path)
	if special := n.seen.Mode & (fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky); special != 0 && n.link == nil {
		return newPathError("open", path, fmt.Errorf("%w: its mode is %s", ErrMismatch, octal(n.seen.Mode)))
	}
	return s.checkOwner(path, n)
}

func (s *Snapshot) checkOwner(path string, n *node) error {
	if n.seen.UID == fsys.Euid() {
		return nil
	}
	return &TrustError{Path: path, Owner: fmt.Sprint(n.seen.UID), Mode: n.seen.Mode}
}
