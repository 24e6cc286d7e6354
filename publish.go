// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"holdstill.example/snapshot/internal/fsys"
	"holdstill.example/snapshot/internal/quote"
)

const (
	stagingPrefix = ".holdstill-"
	stagingLock   = "lock" // in the staging directory, not beside it: who is led to another directory finds another lock
	stagingTree   = "tree"
	stagingFence  = "fence"
	stagingMagic  = "holdstill staging 1\n"
	detachedMagic = "holdstill detached 1\n" // what is to outlive its process, so that no sweep takes it
)

// staging is a private directory beside the destination in which a copy grows until it is whole. It is held open, and its
// lock is held, until it is gone.
type staging struct {
	op     *op
	parent fsys.Handle
	path   string // of the parent, for messages
	name   string
	dir    fsys.Handle
	seen   fsys.Seen
	lock   fsys.Handle // shared by all who use the directory; a sweep asks for it alone
	fence  fsys.Handle // open as long as anything can be open for writing, see drain
	umask  fs.FileMode // what the system takes from the mode of a new file here
	lost   bool        // the name is another directory, which is not ours to touch
	moved  bool        // it was emptied, and has another name now
}

// where is the staging directory's path, for messages.
func (s *staging) where() string { return filepath.Join(s.path, s.name) }

// openParent opens the directory that dst will lie in, the one time that dst's path is looked up, and refuses a dst that
// exists. What appears there later is found by the publishing itself, which never replaces.
func (o *op) openParent(dst string) (parent fsys.Handle, dir, base string, err error) {
	// A directory may be written with a slash behind it.
	name := strings.TrimRight(dst, string(filepath.Separator))
	dir, base, err = split(name)
	if err != nil {
		switch {
		case dst == "":
			err = fs.ErrInvalid
		case name == "" || errors.Is(err, ErrNotRegular): // "/", ".", ".."
			err = fs.ErrExist
		}
		return fsys.NoHandle, "", "", newPathError("create", dst, err)
	}
	if parent, err = o.calls.OpenRoot(dir); err != nil {
		return fsys.NoHandle, "", "", newPathError("open", dir, err)
	}
	if _, e := o.calls.StatAt(parent, base, false); !errors.Is(e, fs.ErrNotExist) {
		if e == nil {
			e = fs.ErrExist
		}
		err = newPathError("create", dst, e)
		o.release(parent)
		return fsys.NoHandle, "", "", err
	}
	return parent, dir, base, nil
}

// stagingAt is a staging directory of which nothing is open yet.
func (o *op) stagingAt(parent fsys.Handle, path, name string) *staging {
	return &staging{
		op: o, parent: parent, path: path, name: name,
		dir: fsys.NoHandle, lock: fsys.NoHandle, fence: fsys.NoHandle,
	}
}

// stagingTries: a try fails only when a sweep removed the directory while it was still empty. Between two sweepers that never
// rest, on a busy machine with two cores, 16 in a row did in one of some hundred copies.
const stagingTries = 64

// newStaging makes a staging directory in parent, which stays the caller's.
func (o *op) newStaging(parent fsys.Handle, path string) (*staging, error) {
	for range stagingTries {
		s := o.stagingAt(parent, path, stagingPrefix+strings.ToLower(rand.Text()))
		if err := o.calls.Mkdir(parent, s.name, 0o700); err != nil {
			return nil, newPathError("mkdir", s.where(), err)
		}
		err := s.init()
		if err == nil {
			return s, nil
		}
		left := s.discard()
		if left != nil || !errors.Is(err, errSwept) {
			return nil, errors.Join(err, left)
		}
	}
	return nil, newPathError("mkdir", filepath.Join(path, stagingPrefix+"*"), errSwept)
}

// errSwept: a sweep took the directory while it had no lock yet.
var errSwept error = &sentinel{"staging directory was removed at once, again and again", ErrUntrusted}

func (s *staging) init() (err error) {
	c := s.op.calls
	if err := s.adopt(); err != nil {
		return err
	}
	// Made with every bit, the lock file shows which of them the umask or a default ACL takes away here.
	if s.lock, err = c.Create(s.dir, stagingLock, 0o777); err != nil {
		return s.swept("create", err)
	}
	if err := c.LockShared(s.lock); err != nil {
		return s.swept("lock", err)
	}
	st, err := c.Stat(s.lock, false)
	if err != nil {
		return newPathError("stat", s.where(), err)
	}
	s.umask = 0o777 &^ st.Mode.Perm()
	if err := errors.Join(c.Chmod(s.lock, 0o600), c.Write(s.lock, []byte(stagingMagic), 0)); err != nil {
		return newPathError("write", s.where(), err)
	}
	// From the creation of the lock to its taking a sweep may have had it: then the names are gone.
	st, err = c.StatAt(s.dir, stagingLock, false)
	if err == nil && st.Nlink != 1 {
		err = fs.ErrNotExist
	}
	if err != nil {
		return s.swept("stat", err)
	}
	named, err := s.named()
	if err == nil && !named {
		err = fs.ErrNotExist
	}
	if err != nil {
		return s.swept("stat", err)
	}
	if s.fence, err = c.Create(s.dir, stagingFence, 0o600); err != nil {
		return newPathError("create", s.where(), err)
	}
	return nil
}

// drain waits, at most Options.Stall, until no fork of this process has a descriptor any more through which something in the
// directory can be written: exec would answer ETXTBSY (golang.org/issue/22315). Whoever forked while one was open has the fence,
// too, until the exec, and with it the lock of its description.
func (s *staging) drain(ctx context.Context) error {
	path := filepath.Join(s.where(), stagingFence)
	again, err := s.op.calls.OpenFile(s.dir, stagingFence)
	if err == nil {
		s.fence, err = s.op.drain(ctx, s.fence, again)
	}
	if err == nil {
		err = s.op.calls.Unlink(s.dir, stagingFence)
	}
	s.op.release(s.fence)
	s.fence = fsys.NoHandle
	return orPathErrorOnce("publish", path, err)
}

// drain closes h and waits until nobody has its description. It returns again, which is the same file, open for reading.
func (o *op) drain(ctx context.Context, h, again fsys.Handle) (fsys.Handle, error) {
	err := o.calls.LockShared(h)
	o.release(h)
	for pause, waited := 50*time.Microsecond, time.Duration(0); err == nil; pause *= 2 {
		// What was open is closed a moment after the lock has gone: no lease is to be had until then.
		if err = o.calls.Lock(again); err == nil && !o.hasWriter(again) || err != nil && !fsys.IsLocked(err) {
			break
		}
		if waited += pause; waited > o.opts.Stall {
			return again, fmt.Errorf("%w: a fork of this process that never called exec still has it open for writing", ErrBusy)
		}
		sleep(ctx, pause)
		err = context.Cause(ctx)
	}
	return again, err
}

// hasWriter reports whether a lease is refused because the file, which is ours, is open for writing.
func (o *op) hasWriter(h fsys.Handle) bool {
	if o.opts.NeverLock || o.lacks(noLease) {
		return false
	}
	err := o.calls.Lease(h)
	if err == nil {
		_ = o.calls.DropLease(h) // what cannot be dropped goes with its handle
	}
	return errors.Is(err, fsys.ErrWriter)
}

// adopt opens the directory that was just made. Where others may write the parent it can have been exchanged for one that is
// full of somebody's files: only an empty one, ours, with the mode that it was made with, is worked in and ever emptied.
func (s *staging) adopt() (err error) {
	c := s.op.calls
	if s.dir, err = c.OpenDir(s.parent, s.name); err != nil {
		if fsys.IsOtherType(err) || errors.Is(err, syscall.ENOTDIR) {
			return s.exchanged()
		}
		// A umask that takes our own bits away keeps an ordinary user out at once.
		if st, e := c.StatAt(s.parent, s.name, false); errors.Is(err, fs.ErrPermission) && e == nil && st.Mode.Perm() != 0o700 {
			return s.madeWith(st.Mode)
		}
		return s.swept("open", err)
	}
	st, err := c.Stat(s.dir, false)
	empty := true
	if err == nil {
		empty, err = s.holdsNothingBut("")
	}
	switch {
	case err != nil:
		err = s.swept("stat", err)
	case st.UID != fsys.Euid() || !empty:
		err = s.exchanged()
	case st.Mode.Perm() != 0o700:
		err = s.madeWith(st.Mode)
	}
	if err != nil {
		s.release()
		return err
	}
	s.seen = st.Seen
	return nil
}

func (s *staging) madeWith(mode fs.FileMode) error {
	return newPathError("mkdir", s.where(), fmt.Errorf("%w: made with mode %s, not 0700: look at the umask and at default ACLs", ErrUntrusted, octal(mode.Perm())))
}

func (s *staging) exchanged() error {
	s.lost = true
	return newPathError("open", s.where(), fmt.Errorf("%w: the directory that was made there was exchanged at once", ErrUntrusted))
}

// release closes the staging directory and gives up its lock.
func (s *staging) release() {
	s.op.release(s.fence)
	s.op.release(s.lock)
	s.op.release(s.dir)
	s.fence, s.lock, s.dir = fsys.NoHandle, fsys.NoHandle, fsys.NoHandle
}

// swept tells a directory that a sweep took, or is about to, from a failure.
func (s *staging) swept(verb string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || fsys.IsLocked(err) {
		s.lost = true
		return errSwept
	}
	return newPathError(verb, s.where(), err)
}

// named reports whether the name still is the held directory.
func (s *staging) named() (bool, error) {
	now, err := s.op.calls.StatAt(s.parent, s.name, false)
	return err == nil && sameFile(&now.Seen, &s.seen), ignoreMissing(err)
}

// create makes a file in dir with exactly the bits mode. No mode keeps the handle from writing.
func (s *staging) create(dir fsys.Handle, name string, mode fs.FileMode) (fsys.Handle, error) {
	h, err := s.op.calls.Create(dir, name, mode)
	return s.created(h, mode, err)
}

// createNameless is create of a file that has no name yet.
func (s *staging) createNameless(dir fsys.Handle, mode fs.FileMode) (fsys.Handle, error) {
	h, err := s.op.calls.CreateNameless(dir, uint32(mode))
	return s.created(h, mode, err)
}

func (s *staging) created(h fsys.Handle, mode fs.FileMode, err error) (fsys.Handle, error) {
	if err == nil && mode&s.umask != 0 {
		if err = s.op.calls.Chmod(h, mode); err != nil {
			s.op.release(h)
			return fsys.NoHandle, err
		}
	}
	return h, err
}

// publish gives what has the name own in the staging directory the name base in the parent, which must not exist, and looks
// whether held is what has the name then: a directory in which others may write can be exchanged under any check before.
// It reports whether anything was published, which an error after that does not undo.
func (s *staging) publish(own, base string, held fsys.Handle) (published bool, err error) {
	dst := filepath.Join(s.path, base)
	err = errors.ErrUnsupported
	if !s.op.lacks(noRenameNoReplace) {
		err = s.op.calls.RenameNoReplace(s.dir, own, s.parent, base)
	}
	if errors.Is(err, errors.ErrUnsupported) {
		err = s.publishSlowly(own, base)
	}
	if err != nil {
		return false, publishFailed(dst, err)
	}
	return true, s.op.lookAgain(s.parent, base, held, dst)
}

func publishFailed(dst string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		err = fs.ErrExist
	}
	return newPathError("publish", dst, err)
}

// publishSlowly publishes where a rename cannot be told not to replace: a file by a second link; a directory by a look and a
// rename, which can replace nothing but an empty directory that was made in between.
func (s *staging) publishSlowly(own, base string) error {
	c := s.op.calls
	st, err := c.StatAt(s.dir, own, false)
	switch {
	case err != nil:
		return err
	case !st.Mode.IsDir():
		return c.Link(s.dir, own, s.parent, base) // the first name goes with the staging directory
	}
	if _, err := c.StatAt(s.parent, base, false); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fs.ErrExist
		}
		return err
	}
	return c.Rename(s.dir, own, s.parent, base)
}

// lookAgain reports ErrUntrusted unless held has the name base of parent.
func (o *op) lookAgain(parent fsys.Handle, base string, held fsys.Handle, dst string) error {
	o.phase("published")
	if o.off(checkPublished) {
		return nil
	}
	mine, err := o.calls.Stat(held, false)
	if err != nil {
		return newPathError("stat", dst, err)
	}
	now, err := o.calls.StatAt(parent, base, false)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return newPathError("stat", dst, err)
	case err != nil || !sameFile(&mine.Seen, &now.Seen):
		return newPathError("publish", dst, fmt.Errorf("%w: what was published there was taken away at once", ErrUntrusted))
	}
	return nil
}

// discard removes the staging directory and all in it. Only the last step goes by name.
func (s *staging) discard() (err error) {
	defer func() {
		s.release()
		if err != nil {
			err = &LeftoverError{Paths: []string{s.where()}, Err: err}
		}
	}()
	o := s.op
	o.release(s.fence) // FUSE and NFS keep a name for what is open
	s.fence = fsys.NoHandle
	if s.lost {
		if s.lock == fsys.NoHandle {
			return nil
		}
		return ignoreMissing(o.calls.Unlink(s.dir, stagingLock)) // wherever the directory is now, this is ours
	}
	if s.dir == fsys.NoHandle { // never opened, or nothing was put in
		return ignoreMissing(o.calls.Rmdir(s.parent, s.name))
	}
	if st, err := o.calls.Stat(s.dir, false); err == nil && st.Mode&0o700 != 0o700 { // sealed
		if err := o.calls.Chmod(s.dir, 0o700); err != nil {
			return err
		}
	}
	// A directory that a sweep has removed meanwhile cannot even be listed.
	if err := ignoreMissing(o.empty(s.dir, &s.seen, stagingLock)); err != nil {
		return err
	}
	// The name goes while the lock is held: whoever is waiting for it, to work here, finds then that it has no name.
	if err := ignoreMissing(o.calls.Unlink(s.dir, stagingLock)); err != nil {
		return err
	}
	o.release(s.lock)
	s.lock = fsys.NoHandle
	return s.rmdir()
}

// withLeft joins what could not be removed to err. Two of them are one, so that errors.As finds all paths.
func withLeft(err, left error) error {
	first, ok := errors.AsType[*LeftoverError](err)
	second, also := errors.AsType[*LeftoverError](left)
	if !ok || !also {
		return errors.Join(err, left)
	}
	first.Paths = append(first.Paths, second.Paths...)
	first.Err = errors.Join(first.Err, second.Err)
	return err
}

// rmdirTries: on FUSE and NFS a file that is unlinked while it is open gets another name in its directory, which goes some
// time after the close.
const rmdirTries = 10

func (s *staging) rmdir() error {
	pause := time.Millisecond
	for try := 1; ; try++ {
		named, err := s.named()
		if err != nil {
			return err
		}
		if !named { // emptied, and somewhere else now, or removed by a sweep
			st, err := s.op.calls.Stat(s.dir, false)
			s.moved = err == nil && st.Nlink > 0
			return ignoreMissing(err)
		}
		err = s.op.calls.Rmdir(s.parent, s.name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil // exchanged at the last moment
		}
		if !fsys.IsNotEmpty(err) || try == rmdirTries {
			return err
		}
		time.Sleep(pause)
		pause *= 2
		if err := ignoreMissing(s.op.empty(s.dir, &s.seen, "")); err != nil {
			return err
		}
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// exposed reports whether others may rename what is published in the directory that st shows.
func exposed(st *fsys.Stat) bool {
	return st.Mode&fs.ModeSticky == 0 && st.Mode&0o022 != 0 || st.UID != fsys.Euid() && st.UID != 0
}

// trustParent refuses a directory in which others can rename our entries.
func (o *op) trustParent(h fsys.Handle, path string) error {
	st, err := o.calls.Stat(h, false)
	if err != nil {
		return newPathError("stat", path, err)
	}
	if !exposed(&st) {
		return nil
	}
	fix := "chmod go-w " + quote.Shell(path)
	if st.UID != fsys.Euid() && st.UID != 0 {
		fix = fmt.Sprintf("chown %d %s && %s", fsys.Euid(), quote.Shell(path), fix)
	}
	return &TrustError{Path: path, Owner: fmt.Sprint(st.UID), Mode: st.Mode, Fix: fix}
}

// publication is one file on its way to its name: without a name where the file system can, else in a staging directory.
type publication struct {
	op      *op
	parent  fsys.Handle
	dir     string
	base    string
	space   *space
	kind    *fsys.Kind
	h       fsys.Handle
	staging *staging // nil for a nameless file
}

func (o *op) newPublication(dst string) (_ *publication, err error) {
	p := &publication{op: o, h: fsys.NoHandle}
	if strings.HasSuffix(dst, string(filepath.Separator)) {
		_, _, err := split(dst)
		return nil, newPathError("create", dst, err)
	}
	if p.parent, p.dir, p.base, err = o.openParent(dst); err != nil {
		return nil, err
	}
	looked, err := o.lookAt(p.parent, at(p.dir))
	if err == nil {
		p.kind = looked.kind
		p.space, err = newSpace(o, p.parent, p.dir)
	}
	if err != nil {
		p.close(&err)
		return nil, err
	}
	return p, nil
}

const stagingFile = "file"

// noVolume is no volume for a clone. A call that clones and is abandoned behind a stalled writer may hold the lock of the
// clone's inode until that writer ends, and with it everybody who touches a name of it (seen on xfs and btrfs): only a file
// without a name may be cloned into.
const noVolume = ^uint64(0)

// create makes the file, with exactly the bits mode, and says on which volume it may be a clone.
func (p *publication) create(mode fs.FileMode) (h fsys.Handle, volume uint64, err error) {
	o, c := p.op, p.op.calls
	dst := filepath.Join(p.dir, p.base)
	err = errors.ErrUnsupported
	if !o.lacks(noNameless) {
		h, err = c.CreateNameless(p.parent, uint32(mode))
	}
	if errors.Is(err, errors.ErrUnsupported) {
		if p.staging, err = o.newStaging(p.parent, p.dir); err != nil {
			return fsys.NoHandle, 0, err
		}
		h, err = p.staging.create(p.staging.dir, stagingFile, mode)
	}
	if err != nil {
		return fsys.NoHandle, 0, newPathError("create", dst, err)
	}
	p.h = h
	st, err := c.Stat(h, false)
	if err == nil && st.Mode.Perm() != mode { // the umask or a default ACL
		err = c.Chmod(h, mode)
	}
	if p.staging != nil {
		st.Volume = noVolume
	}
	return h, st.Volume, orPathError("create", dst, err)
}

// publish gives the file its name, which must not exist.
func (p *publication) publish(ctx context.Context, mtime fsys.Stamp, mode fs.FileMode) error {
	c := p.op.calls
	dst := filepath.Join(p.dir, p.base)
	in, name := p.parent, ""
	if p.staging != nil {
		in, name = p.staging.dir, stagingFile
	}
	if err := c.SetMtime(p.h, in, name, mtime); err != nil {
		return newPathError("set time", dst, err)
	}
	if p.op.opts.Durable || p.kind.Remote { // a server may refuse at the close what it took in the write
		if err := c.Sync(p.h); err != nil {
			return newPathError("sync", dst, err)
		}
	}
	drained := mode&0o111 == 0
	if !drained {
		var err error
		if drained, err = p.drain(ctx); err != nil {
			return orPathErrorOnce("publish", dst, err)
		}
	}
	published, err := p.link(dst)
	if err == nil && !drained {
		err = orPathErrorOnce("publish", dst, p.drainNamed(ctx))
	}
	if err == nil && p.op.opts.Durable {
		err = orPathError("sync", p.dir, c.Sync(p.parent))
	}
	if err != nil && published {
		err = errors.Join(err, p.unpublish(dst))
	}
	return err
}

// drain exchanges the handle for one that only reads, when no fork of this process has it any more: see staging.drain. It reports
// false of a file without a name that cannot be opened anew.
func (p *publication) drain(ctx context.Context) (done bool, err error) {
	again, err := p.op.calls.Reopen(p.h)
	if errors.Is(err, errors.ErrUnsupported) {
		if p.staging == nil {
			return false, nil
		}
		again, err = p.op.calls.OpenFile(p.staging.dir, stagingFile)
	}
	if err != nil {
		return false, err
	}
	p.h, err = p.op.drain(ctx, p.h, again)
	return true, err
}

// drainNamed is drain of a file that only its name leads to: where /proc shows another thread's descriptors.
func (p *publication) drainNamed(ctx context.Context) error {
	c := p.op.calls
	again, err := c.OpenFile(p.parent, p.base)
	if err != nil {
		return err
	}
	mine, err := c.Stat(p.h, false)
	var named fsys.Stat
	if err == nil {
		named, err = c.Stat(again, false)
	}
	if err == nil && !sameFile(&mine.Seen, &named.Seen) {
		err = fmt.Errorf("%w: what was published there was taken away at once", ErrUntrusted)
	}
	if err != nil {
		p.op.release(again)
		return err
	}
	p.h, err = p.op.drain(ctx, p.h, again)
	return err
}

func (p *publication) link(dst string) (published bool, err error) {
	if p.staging != nil {
		return p.staging.publish(stagingFile, p.base, p.h)
	}
	if err := p.op.calls.LinkNameless(p.h, p.parent, p.base); err != nil {
		return false, publishFailed(dst, err)
	}
	return true, p.op.lookAgain(p.parent, p.base, p.h, dst)
}

// unpublish takes the name back if it still is this file.
func (p *publication) unpublish(dst string) error {
	c := p.op.calls
	mine, err := c.Stat(p.h, false)
	if err == nil {
		var now fsys.Stat
		if now, err = c.StatAt(p.parent, p.base, false); err == nil && sameFile(&now.Seen, &mine.Seen) {
			err = c.Unlink(p.parent, p.base)
		}
	}
	if err = ignoreMissing(err); err != nil {
		err = &LeftoverError{Paths: []string{dst}, Err: err}
	}
	return err
}

// close releases everything; what was not published goes with its handle or its staging directory.
func (p *publication) close(err *error) {
	p.op.release(p.h) // it was published, synced first where a server answers for it, or is of no use
	if p.staging != nil {
		*err = withLeft(*err, p.staging.discard())
	}
	p.op.release(p.parent)
}
