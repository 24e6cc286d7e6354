// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"holdstill.example/snapshot/internal/fsys"
)

// RemoveSnapshot removes a detached snapshot. What Take did not make is refused, untouched, with [ErrMismatch] or
// [ErrUntrusted]: another name, owner or mode, or an entry that its manifest does not list. One that a process has open is
// [ErrBusy]. A removal that was interrupted can be called again.
func RemoveSnapshot(ctx context.Context, dir string) error {
	if err := fsys.Supported(); err != nil {
		return newPathError("remove", dir, err)
	}
	return newOp(nil).removeSnapshot(ctx, dir)
}

// removeSnapshot is RemoveSnapshot as one operation.
func (o *op) removeSnapshot(ctx context.Context, dir string) (err error) {
	s := &Snapshot{op: o, tree: fsys.NoHandle}
	defer s.release()
	if !isStagingName(filepath.Base(filepath.Clean(dir))) {
		return newPathError("remove", dir, fmt.Errorf("%w: no snapshot has such a name", ErrMismatch))
	}
	if err := s.open(dir, sealedMode, 0o700); err != nil {
		return err
	}
	if done, err := s.removeRest(ctx); done || err != nil {
		return err
	}
	if err := s.share(); err != nil {
		return err
	}
	if err := s.openTree(); err != nil {
		return err
	}
	if s.manifest, err = s.readManifest(Digest{}); err != nil {
		return err
	}
	t, err := s.held(ctx, "remove")
	if err != nil {
		return err
	}
	defer t.end()
	t.shallow = true
	if _, err := t.prove(); err != nil {
		return err
	}
	if err := t.compareWith(s.manifest, s.isOurs); err != nil {
		return err
	}
	if err := s.staging.own(ctx); err != nil {
		return newPathError("remove", dir, err)
	}
	return s.remove(t)
}

// isOurs refuses what Take did not make. A removal that was interrupted has taken entries away, and made directories writable.
func (s *Snapshot) isOurs(recorded, found *Entry, n *node) error {
	if found == nil {
		return nil
	}
	same := recorded != nil && found.Mode.Type() == recorded.Mode.Type() && found.Size == recorded.Size && found.Link == recorded.Link
	if !same {
		return mismatched(recorded, found)
	}
	return s.checkOwner(filepath.Join(s.Dir(), stagingTree, found.Path), n)
}

// remove takes away what t has found, and nothing that came since. The manifest goes after what it lists, and the lock last.
func (s *Snapshot) remove(t *tree) (err error) {
	c := s.op.calls
	defer func() {
		if err != nil {
			err = &LeftoverError{Paths: []string{s.Dir()}, Err: err}
		}
	}()
	if err := c.Chmod(s.staging.dir, 0o700); err != nil {
		return newPathError("chmod", s.Dir(), err)
	}
	err = t.removeFound(t.roots[0].dir)
	if moved, ok := errors.AsType[*driftError](err); ok {
		return &ChangeError{
			Path: t.place(moved.dir, moved.index).String(), Reason: moved.reason,
			Before: stateOf(&moved.dir.kids[moved.index].seen), After: stateOf(&moved.after), Err: ErrChangedDuringSnapshot,
		}
	}
	if err != nil {
		return err
	}
	if err := c.Rmdir(s.staging.dir, stagingTree); err != nil {
		return newPathError("remove", filepath.Join(s.Dir(), stagingTree), err)
	}
	return s.removeNames([]string{manifestName, stagingLock})
}

// removeRest ends what an interrupted removal left of the directory: it is ours to write, and the tree is gone.
func (s *Snapshot) removeRest(ctx context.Context) (done bool, err error) {
	names, err := s.names()
	if err != nil || s.staging.seen.Mode.Perm() != 0o700 || slices.Contains(names, stagingTree) {
		return false, err
	}
	for _, name := range names {
		if name != manifestName && name != stagingLock {
			return false, s.checkNames()
		}
	}
	if len(names) > 0 { // without a lock there is nobody to wait for: a taker whose directory is still empty makes another
		if err := s.share(); err != nil {
			return false, err
		}
		if err := s.staging.own(ctx); err != nil {
			return false, newPathError("remove", s.Dir(), err)
		}
	}
	if err := s.removeNames(names); err != nil {
		return false, &LeftoverError{Paths: []string{s.Dir()}, Err: err}
	}
	return true, nil
}

// removeNames removes the files of an emptied directory, the lock last, and the directory.
func (s *Snapshot) removeNames(names []string) error {
	c := s.op.calls
	for _, name := range slices.Backward(slices.Sorted(slices.Values(names))) {
		if err := c.Unlink(s.staging.dir, name); err != nil {
			return newPathError("remove", filepath.Join(s.Dir(), name), err)
		}
	}
	// Without a lock it is any sweep's.
	return orPathError("remove", s.Dir(), ignoreMissing(c.Rmdir(s.staging.parent, s.staging.name)))
}

// removeFound empties a directory of what the tree knows of it.
func (t *tree) removeFound(d *dir) error {
	err := t.within(d, func() error { return orPathError("chmod", t.placeDir(d), t.calls.Chmod(d.in, 0o700)) })
	if err != nil {
		return err
	}
	for i := range d.kids {
		n := &d.kids[i]
		if n.sub != nil {
			if err := t.removeFound(n.sub); err != nil {
				return err
			}
		}
		err := t.within(d, func() error {
			if n.sub != nil {
				return t.calls.Rmdir(d.in, n.name)
			}
			now, err := t.statEntry(d, i)
			if reason := drift(&n.seen, &now.Seen); err == nil && reason != 0 && reason != MetadataOnly {
				err = changed(&n.seen, &now.Seen, t.place(d, i))
			}
			if err == nil {
				err = t.calls.Unlink(d.in, n.name)
			}
			return err
		})
		if err != nil {
			return orPathErrorOnce("remove", t.place(d, i), err)
		}
	}
	return nil
}
