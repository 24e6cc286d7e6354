// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"holdstill.example/snapshot/internal/fsys"
)

// Root is a directory or file that the caller admits: by Path (followed if it is a link) or by File (duplicated; never looked
// up by its name), not both.
type Root struct {
	Name string // place in the snapshot, one component; empty means the base name, with -2, -3 … if taken
	Path string
	File *os.File
}

// TakeOptions are Options and where the snapshot lies. Exclude and Skip see paths that begin with the name of a root.
type TakeOptions struct {
	Options
	Parent  string // a directory where nobody else can rename our entry, else ErrUntrusted; empty means os.TempDir()
	Aliases []Alias
}

// Snapshot is a private read-only copy of several roots at one instant; safe for concurrent use.
// Dir holds manifest.mtree and tree/, in which the roots lie under their names.
type Snapshot struct {
	op       *op
	staging  *staging
	tree     fsys.Handle
	files    *os.Root // of tree/
	manifest *Manifest
	report   *Report

	mu    sync.Mutex
	owner bool // Close removes it
	ended bool
	calls sync.WaitGroup
	ctx   context.Context // of all calls; ends with Close
	end   context.CancelCauseFunc
}

const (
	manifestName = "manifest.mtree"
	sealedMode   = 0o500 // of the snapshot's directory: whoever finds another knows that it is not whole
)

// Take freezes roots at one instant, in a directory that only this user can enter. When it returns, no descriptor is left, in
// this process or a fork of it, that could make an exec of a file of the snapshot fail with ETXTBSY. Links that end inside any
// of the roots keep working. Close removes the snapshot, unless it was detached; [Sweep] removes what a killed process left.
//
// Up to three descriptors a root are open until the end, beside those that [CopyDir] needs. Errors are those of [CopyDir].
func Take(ctx context.Context, roots []Root, opts *TakeOptions) (*Snapshot, error) {
	var o TakeOptions
	if opts != nil {
		o = *opts
	}
	if o.Parent == "" {
		o.Parent = os.TempDir()
	}
	admitted, err := admitRoots(roots)
	if err != nil {
		return nil, err
	}
	t, err := newTree(ctx, "take", admitted[0].path, &o.Options)
	if err != nil {
		return nil, err
	}
	t.aliases = o.Aliases
	s := &Snapshot{op: t.op, owner: true, tree: fsys.NoHandle}
	kept := false
	defer func() {
		t.shutAll()
		t.closeRoots()
		if !kept {
			defer s.op.finish()
			t.progress.end()
		}
	}()
	if err := t.admit(admitted...); err != nil {
		return nil, err
	}
	if err := s.take(t, o.Parent); err != nil {
		return nil, err
	}
	kept = true
	return s, nil
}

// admitRoots gives every root its name, and sorts by them.
func admitRoots(roots []Root) ([]*root, error) {
	if len(roots) == 0 {
		return nil, newPathError("take", "", fmt.Errorf("no root was given: %w", fs.ErrInvalid))
	}
	taken := make(map[string]bool, len(roots))
	admitted := make([]*root, len(roots))
	for i, r := range roots {
		path := r.Path
		switch {
		case r.File != nil && r.Path != "":
			return nil, newPathError("take", r.Path, fmt.Errorf("a root is given by Path or by File, not both: %w", fs.ErrInvalid))
		case r.File != nil:
			path = r.File.Name()
		}
		admitted[i] = newRoot(r.Name, path)
		admitted[i].file = r.File
		if r.Name == "" {
			continue
		}
		switch {
		case !fsys.ValidName(r.Name):
			return nil, newPathError("take", r.Name, fmt.Errorf("the name of a root is one component: %w", fs.ErrInvalid))
		case taken[r.Name]:
			return nil, newPathError("take", r.Name, fmt.Errorf("two roots have the name: %w", fs.ErrExist))
		}
		taken[r.Name] = true
	}
	for _, r := range admitted {
		if r.name != "" {
			continue
		}
		base := baseName(r.path)
		r.name = base
		for i := 2; taken[r.name]; i++ {
			r.name = fmt.Sprintf("%s-%d", base, i)
		}
		taken[r.name] = true
	}
	slices.SortFunc(admitted, func(a, b *root) int { return cmp.Compare(a.name, b.name) })
	return admitted, nil
}

// baseName is the name that a path without one of its own gets.
func baseName(path string) string {
	base := filepath.Base(path)
	if abs, err := filepath.Abs(path); err == nil && !fsys.ValidName(base) {
		base = filepath.Base(abs)
	}
	if !fsys.ValidName(base) { // "/"
		return "root"
	}
	return base
}

// take copies the tree into a staging directory, which becomes the snapshot.
func (s *Snapshot) take(t *tree, parent string) (err error) {
	done := false // a function of the caller may panic
	dir, path, err := t.openPrivateParent(parent)
	if err != nil {
		return err
	}
	defer func() {
		if !done {
			t.release(dir)
		}
	}()
	if err := t.refuseInside(path, path); err != nil {
		return err
	}
	if t.space, err = newSpace(t.op, dir, path); err != nil {
		return err
	}
	if t.staging, err = t.newStaging(dir, path); err != nil {
		return err
	}
	s.staging = t.staging
	defer func() {
		if !done {
			if s.files != nil {
				err = errors.Join(err, s.files.Close())
			}
			t.release(s.tree)
			err = withLeft(err, t.staging.discard())
		}
	}()
	t.volume = t.staging.seen.Volume
	if err := s.makeTree(t); err != nil {
		return err
	}
	if s.report, err = t.take(); err != nil {
		return err
	}
	s.manifest = s.report.Manifest
	if err := s.seal(t.ctx); err != nil {
		return err
	}
	if err := s.serve(); err != nil {
		return err
	}
	s.report.Elapsed = time.Since(t.started)
	t.progress.end()
	t.progress = nil // what is read from now on is no part of the taking
	done = true
	return nil
}

// openPrivateParent opens the directory that a snapshot will lie in, and returns its path without links.
func (o *op) openPrivateParent(path string) (h fsys.Handle, real string, err error) {
	real, err = filepath.Abs(path)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return fsys.NoHandle, "", newPathError("take", path, err)
	}
	if h, err = o.calls.OpenRoot(real); err != nil {
		return fsys.NoHandle, "", newPathError("open", real, err)
	}
	if err := o.trustParent(h, real); err != nil {
		o.release(h)
		return fsys.NoHandle, "", err
	}
	return h, real, nil
}

func (s *Snapshot) makeTree(t *tree) (err error) {
	where := filepath.Join(s.staging.where(), stagingTree)
	if err := t.calls.Mkdir(s.staging.dir, stagingTree, 0o700); err != nil {
		return newPathError("mkdir", where, err)
	}
	if s.tree, err = t.calls.OpenDir(s.staging.dir, stagingTree); err != nil {
		return newPathError("open", where, err)
	}
	t.top.out = s.tree
	return nil
}

// seal writes the manifest and takes away every right to write. The mode of the snapshot's own directory comes last.
func (s *Snapshot) seal(ctx context.Context) error {
	c := s.op.calls
	if err := s.staging.drain(ctx); err != nil {
		return err
	}
	if err := s.writeManifest(); err != nil {
		return err
	}
	if err := c.Chmod(s.tree, topMode); err != nil {
		return newPathError("chmod", filepath.Join(s.Dir(), stagingTree), err)
	}
	if s.op.opts.Durable {
		if err := s.op.syncTree(s.tree); err != nil {
			return newPathError("sync", s.Dir(), err)
		}
	}
	if err := c.Chmod(s.staging.dir, sealedMode); err != nil {
		return newPathError("chmod", s.Dir(), err)
	}
	if s.op.opts.Durable {
		err := errors.Join(
			c.Sync(s.staging.dir),
			c.Sync(s.staging.parent),
		)
		if err != nil {
			return newPathError("sync", s.Dir(), err)
		}
	}
	s.op.phase("sealed")
	return nil
}

func (s *Snapshot) writeManifest() (err error) {
	c := s.op.calls
	path := filepath.Join(s.Dir(), manifestName)
	h, err := s.staging.create(s.staging.dir, manifestName, 0o400)
	if err != nil {
		return newPathError("create", path, err)
	}
	defer func() { s.op.closeWritten(h, at(path), &err) }()
	var text bytes.Buffer
	if _, err := s.manifest.WriteTo(&text); err != nil {
		return newPathError("write", path, err)
	}
	if err := c.Write(h, text.Bytes(), 0); err != nil {
		return newPathError("write", path, err)
	}
	if s.op.opts.Durable {
		return orPathError("sync", path, c.Sync(h))
	}
	return nil
}

// serve makes s ready for use: FS goes by the path of tree/, which must be the held directory.
func (s *Snapshot) serve() error {
	path := filepath.Join(s.Dir(), stagingTree)
	files, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	dir, err := s.op.dupRoot(files)
	var held, named fsys.Stat
	if err == nil {
		named, err = s.op.calls.Stat(dir, false)
		s.op.release(dir)
	}
	if err == nil {
		held, err = s.op.calls.Stat(s.tree, false)
	}
	if err == nil && !sameFile(&held.Seen, &named.Seen) {
		err = fmt.Errorf("%w: another directory has the name", ErrUntrusted)
	}
	if err != nil {
		return newPathError("open", path, errors.Join(err, files.Close()))
	}
	s.files = files
	s.ctx, s.end = context.WithCancelCause(context.Background())
	return nil
}

// Dir returns the snapshot's absolute directory.
func (s *Snapshot) Dir() string { return s.staging.where() }

// Path returns where the root of that name lies now; false if there is none.
func (s *Snapshot) Path(root string) (string, bool) {
	if !fsys.ValidName(root) {
		return "", false
	}
	if _, err := s.manifest.Lookup(root); err != nil {
		return "", false
	}
	return filepath.Join(s.Dir(), stagingTree, root), true
}

// Manifest returns the manifest of tree/.
func (s *Snapshot) Manifest() *Manifest { return s.manifest }

// Report says what Take did; nil after OpenSnapshot.
func (s *Snapshot) Report() *Report { return s.report }

// FS serves tree/; it has ReadDir, ReadFile, Stat, ReadLink and Lstat. Names that are not UTF-8 are listed and cannot be
// opened. What it reads is not compared with the manifest. After Close it returns [fs.ErrClosed]; files that were opened before
// stay good.
func (s *Snapshot) FS() fs.FS { return snapshotFS{s} }

// Open returns a read-only handle whose bytes were hashed through it and equal the manifest. Path is a manifest path, of a
// regular file. The handle is the caller's, and stays good after Close.
func (s *Snapshot) Open(ctx context.Context, path string) (_ *os.File, err error) {
	ctx, done, err := s.begin(ctx, "open", path)
	if err != nil {
		return nil, err
	}
	defer done()
	recorded, err := s.manifest.Lookup(path)
	switch {
	case err != nil:
		return nil, err
	case !recorded.Mode.IsRegular():
		return nil, newPathError("open", path, fmt.Errorf("%w: a %s", ErrNotRegular, kindName(recorded.Mode)))
	}
	h, err := s.openFile(path)
	if fsys.IsGone(err) || errors.Is(err, ErrNotRegular) {
		return nil, &MismatchError{Path: path, Recorded: &recorded}
	}
	if err != nil {
		return nil, orPathErrorOnce("open", path, err)
	}
	if err := s.check(ctx, h, &recorded); err != nil {
		s.op.release(h)
		return nil, err
	}
	return s.op.calls.GiveFile(h, filepath.Join(s.Dir(), stagingTree, path)), nil
}

// openFile goes from tree/ to a file, one component at a time.
func (s *Snapshot) openFile(path string) (h fsys.Handle, err error) {
	dir := s.tree
	defer func() {
		if dir != s.tree {
			s.op.release(dir)
		}
	}()
	names := strings.Split(path, "/")
	for _, name := range names[:len(names)-1] {
		next, err := s.op.openDir(dir, name)
		if err != nil {
			return fsys.NoHandle, err
		}
		if dir != s.tree {
			s.op.release(dir)
		}
		dir = next
	}
	src, err := s.op.openSource(dir, names[len(names)-1], at(path), nil)
	return src.h, err
}

// check reads an open file and compares it with what is recorded. Nobody but this user, or root, can have written to it since
// it was sealed.
func (s *Snapshot) check(ctx context.Context, h fsys.Handle, recorded *Entry) error {
	src, err := s.op.lookAt(h, at(recorded.Path))
	if err != nil {
		return err
	}
	got := Entry{Path: recorded.Path, Mode: src.stat.Mode.Perm(), Size: src.stat.Size}
	if got.Size == recorded.Size {
		var ev evidence
		defer func() { ev.guard.end() }()
		if got.Digest, err = newReader(s.op).stream(ctx, &src, &ev, &noSink, at(recorded.Path), nil); err != nil {
			return err
		}
	}
	if got != *recorded {
		return mismatched(recorded, &got)
	}
	return nil
}

// Verify reads every byte again, and looks at every name, mode and owner, and at the manifest.
func (s *Snapshot) Verify(ctx context.Context) error {
	ctx, done, err := s.begin(ctx, "verify", s.Dir())
	if err != nil {
		return err
	}
	defer done()
	if err := s.checkDir(sealedMode); err != nil {
		return err
	}
	if err := s.checkNames(); err != nil {
		return err
	}
	if err := s.checkTree(); err != nil {
		return err
	}
	if _, err := s.readManifest(s.manifest.Digest()); err != nil {
		return err
	}
	t, err := s.held(ctx, "verify")
	if err != nil {
		return err
	}
	defer t.end()
	if _, err := t.prove(); err != nil {
		return err
	}
	return t.compareWith(s.manifest, s.matches)
}

// Detach lets the snapshot outlive this process, out of the reach of [Sweep], until [RemoveSnapshot].
func (s *Snapshot) Detach() error {
	_, done, err := s.begin(context.Background(), "detach", s.Dir())
	if err != nil {
		return err
	}
	defer done()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.owner {
		return nil
	}
	c := s.op.calls
	if err := c.Write(s.staging.lock, []byte(detachedMagic), 0); err != nil {
		return newPathError("detach", s.Dir(), err)
	}
	if s.op.opts.Durable {
		if err := c.Sync(s.staging.lock); err != nil {
			return newPathError("sync", s.Dir(), err)
		}
	}
	s.owner = false
	return nil
}

// enter keeps Close waiting until s.calls.Done.
func (s *Snapshot) enter(verb, path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return newPathError(verb, path, fs.ErrClosed)
	}
	s.calls.Add(1)
	return nil
}

// begin keeps Close waiting until done, and ends ctx when it is called.
func (s *Snapshot) begin(ctx context.Context, verb, path string) (_ context.Context, done func(), err error) {
	if err := s.enter(verb, path); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(fs.ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		s.calls.Done()
	}, nil
}

// Close releases s; it removes the snapshot if this value took it and did not detach it. Calls that are at work in other
// goroutines end with [fs.ErrClosed]. A second call returns nil. What could not be removed is [ErrLeftover].
func (s *Snapshot) Close() error {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil
	}
	s.ended = true
	s.mu.Unlock()
	s.end(fs.ErrClosed)
	s.calls.Wait()
	err := s.files.Close()
	if s.owner {
		s.op.release(s.tree)
		s.tree = fsys.NoHandle
		err = errors.Join(err, s.staging.discard())
		if s.staging.moved {
			err = errors.Join(err, newPathError("remove", s.Dir(), fmt.Errorf("%w: it was moved; it is empty now, wherever it is", ErrUntrusted)))
		}
	}
	s.release()
	return err
}

// release closes every handle.
func (s *Snapshot) release() {
	s.op.release(s.tree)
	s.tree = fsys.NoHandle
	if s.staging != nil {
		s.staging.release()
		s.op.release(s.staging.parent)
	}
	s.op.finish()
}
