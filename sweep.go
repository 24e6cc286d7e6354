// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdstill.example/snapshot/internal/fsys"
)

// Sweep removes what crashed calls of this user left in parent, and nothing in use: what [CopyDir] and [CopyFile] leave when
// they are killed. It returns the paths that it removed. A parent that others may write without a sticky bit is
// [ErrUntrusted]: they could lead a sweep to a directory that is not ours.
func Sweep(ctx context.Context, parent string) (removed []string, err error) {
	if err := fsys.Supported(); err != nil {
		return nil, newPathError("sweep", parent, err)
	}
	return newOp(nil).sweep(ctx, parent)
}

// sweep is Sweep as one operation.
func (o *op) sweep(ctx context.Context, parent string) (removed []string, err error) {
	defer o.finish()
	dir, err := o.calls.OpenRoot(parent)
	if err != nil {
		return nil, newPathError("sweep", parent, err)
	}
	defer o.release(dir)
	if err := o.trustParent(dir, parent); err != nil {
		return nil, err
	}
	var names []string
	err = o.calls.List(dir, make([]byte, fsys.ListBufferSize), func(name string) error {
		if isStagingName(name) {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return nil, newPathError("sweep", parent, err)
	}
	slices.Sort(names)
	var failed []error
	for _, name := range names {
		if err := canceled(ctx, "sweep", parent); err != nil {
			return removed, errors.Join(append(failed, err)...)
		}
		s := o.stagingAt(dir, parent, name)
		gone, err := s.sweep()
		if gone {
			removed = append(removed, filepath.Join(parent, name))
		}
		failed = append(failed, err)
	}
	return removed, errors.Join(failed...)
}

func isStagingName(name string) bool {
	tail, ok := strings.CutPrefix(name, stagingPrefix)
	return ok && len(tail) == stagingRandom && !strings.ContainsFunc(tail, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '2' || r > '7')
	})
}

// stagingRandom is the length of rand.Text in lower case: base32 of 130 bits.
const stagingRandom = 26

// sweep removes the staging directory if nobody uses it. What is not certainly a leftover of ours is left alone, without an
// error: it is somebody else's business.
func (s *staging) sweep() (gone bool, err error) {
	c := s.op.calls
	if s.dir, err = c.OpenDir(s.parent, s.name); err != nil {
		return false, nil
	}
	st, err := c.Stat(s.dir, false)
	s.seen = st.Seen
	claim := nothing
	if mode := st.Mode.Perm(); err == nil && st.UID == fsys.Euid() && (mode == 0o700 || mode == sealedMode) {
		claim = s.claim()
	}
	if named, err := s.named(); err != nil || !named {
		claim = nothing
	}
	switch claim {
	case emptied:
		s.release()
		return c.Rmdir(s.parent, s.name) == nil, nil
	case locked:
		err := s.discard()
		return err == nil, err
	}
	s.release()
	return false, nil
}

// claim is what a sweep may do with a directory.
type claim uint8

const (
	nothing claim = iota
	emptied       // it has no lock yet: it may be removed by name, which fails if its owner is just at work
	locked        // its lock was left behind, and is ours now
)

// claim takes the lock of a leftover. A directory without a lock, or with one that is still empty, was left by a kill in the
// first microseconds; it may hold nothing else then. A taker that is just there finds its names gone, and makes others.
// Whatever cannot be seen clearly is left alone.
func (s *staging) claim() claim {
	c := s.op.calls
	if _, err := c.StatAt(s.dir, stagingLock, false); errors.Is(err, fs.ErrNotExist) {
		return s.claimIf(emptied, "")
	}
	// A detached snapshot's lock is not even taken for a moment: somebody may be about to share it. It may be detached meanwhile.
	if s.openLock() != nil {
		return nothing
	}
	if text, err := s.lockText(); err != nil || text != "" && text != stagingMagic || c.Lock(s.lock) != nil {
		return nothing
	}
	switch text, err := s.lockText(); {
	case err != nil:
		return nothing
	case text == "":
		return s.claimIf(locked, stagingLock)
	case text == stagingMagic:
		return locked
	}
	return nothing
}

// lockText is what the lock file says of the directory, or the beginning of a text that is none of ours.
func (s *staging) lockText() (string, error) {
	text, err := io.ReadAll(io.LimitReader(&handleReader{calls: s.op.calls, h: s.lock}, int64(len(detachedMagic)+1)))
	return string(text), err
}

// openLock opens the lock file of a directory that somebody made before. It is not followed, and must have no other name.
func (s *staging) openLock() error {
	c := s.op.calls
	before, err := c.StatAt(s.dir, stagingLock, false)
	if err == nil && (!before.Mode.IsRegular() || before.Nlink != 1 || before.UID != fsys.Euid()) {
		err = fmt.Errorf("%w: its lock is not a file of its own", ErrUntrusted)
	}
	if err != nil {
		return err
	}
	if s.lock, err = c.OpenFile(s.dir, stagingLock); err != nil {
		return err
	}
	st, err := c.Stat(s.lock, false)
	if err == nil && !sameFile(&st.Seen, &before.Seen) {
		err = fmt.Errorf("%w: its lock was exchanged", ErrUntrusted)
	}
	return err
}

// share takes part in the use of a directory that somebody made before.
func (s *staging) share() error {
	if err := s.openLock(); err != nil {
		return err
	}
	err := s.op.calls.LockShared(s.lock)
	if fsys.IsLocked(err) {
		return fmt.Errorf("%w: somebody is removing it", ErrBusy)
	}
	if err != nil {
		return err
	}
	text, err := s.lockText()
	if err == nil && text != stagingMagic && text != detachedMagic {
		err = fmt.Errorf("%w: its lock file is none of ours", ErrMismatch)
	}
	if err != nil {
		return err
	}
	return s.stillNamed()
}

// stillNamed: whoever had the lock before may have removed the directory.
func (s *staging) stillNamed() error {
	named, err := s.named()
	if err == nil && !named {
		err = fs.ErrNotExist
	}
	return err
}

// ownPatience is how long a fork of a process that has just closed the lock may keep it until its exec.
const ownPatience = 100 * time.Millisecond

// own turns a shared lock into that of a sweep, unless somebody else is using the directory.
func (s *staging) own(ctx context.Context) error {
	var err error
	for pause := time.Millisecond; ; pause *= 2 {
		if err = s.op.calls.Lock(s.lock); !fsys.IsLocked(err) || pause > ownPatience || ctx.Err() != nil {
			break
		}
		sleep(ctx, pause)
	}
	if fsys.IsLocked(err) {
		return fmt.Errorf("%w: a process has it open", ErrBusy)
	}
	if err != nil {
		return err
	}
	return s.stillNamed() // to get the lock the shared one was given up
}

func (s *staging) claimIf(c claim, only string) claim {
	if empty, err := s.holdsNothingBut(only); err != nil || !empty {
		return nothing
	}
	return c
}

func (s *staging) holdsNothingBut(keep string) (bool, error) {
	if err := s.op.calls.Rewind(s.dir); err != nil {
		return false, err
	}
	empty := true
	err := s.op.calls.List(s.dir, make([]byte, fsys.ListBufferSize), func(name string) error {
		empty = empty && name == keep
		return nil
	})
	return empty && err == nil, err
}
