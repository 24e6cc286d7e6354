// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"holdstill.example/snapshot/internal/fsys"
	"holdstill.example/snapshot/internal/quote"
)

// Sweep removes what crashed calls of this user left in parent, and nothing in use: what [CopyDir] and [CopyFile] leave when
// they are killed. It returns the paths that it removed. A parent that others may write without a sticky bit is
// [ErrUntrusted]: they could lead a sweep to a directory that is not ours.
func Sweep(ctx context.Context, parent string) (removed []string, err error) {
	if err := fsys.Supported(); err != nil {
		return nil, newPathError("sweep", parent, err)
	}
	o := newOp(nil)
	defer func() { err = errors.Join(err, o.finish()) }()
	dir, err := o.calls.OpenRoot(parent)
	if err != nil {
		return nil, newPathError("sweep", parent, err)
	}
	defer o.closing(dir, &err)
	st, err := o.calls.Stat(dir, false)
	if err != nil {
		return nil, newPathError("sweep", parent, err)
	}
	if exposed(&st) {
		return nil, &TrustError{
			Path: parent, Owner: fmt.Sprint(st.UID), Mode: st.Mode,
			Fix: "chmod go-w " + quote.Name(parent),
		}
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
		s := &staging{op: o, parent: dir, path: parent, name: name, dir: fsys.NoHandle, lock: fsys.NoHandle}
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
	o := s.op
	if s.dir, err = o.calls.OpenDir(s.parent, s.name); err != nil {
		return false, nil
	}
	st, err := o.calls.Stat(s.dir, false)
	s.seen = st.Seen
	if err != nil || st.UID != fsys.Euid() || st.Mode.Perm() != 0o700 || !s.claim() || !s.named() {
		o.closing(s.lock, &err)
		o.closing(s.dir, &err)
		return false, nil
	}
	if err := s.discard(); err != nil {
		return false, err
	}
	return true, nil
}

// claim takes the lock of a leftover. A directory without a lock, or with one that is still empty, was left by a kill in the
// first microseconds; it may hold nothing else then. A taker that is just there finds its names gone, and makes others.
func (s *staging) claim() bool {
	c := s.op.calls
	before, err := c.StatAt(s.dir, stagingLock, false)
	if errors.Is(err, fs.ErrNotExist) {
		return s.holdsNothingBut("")
	}
	if err != nil || !before.Mode.IsRegular() || before.Nlink != 1 || before.UID != fsys.Euid() {
		return false
	}
	if s.lock, err = c.OpenFile(s.dir, stagingLock); err != nil {
		s.lock = fsys.NoHandle
		return false
	}
	st, err := c.Stat(s.lock, false)
	if err != nil || !sameFile(&st.Seen, &before.Seen) || c.Lock(s.lock) != nil {
		return false
	}
	buf := make([]byte, len(stagingMagic)+1)
	n, err := c.Read(s.lock, buf, 0)
	switch {
	case err != nil:
		return false
	case n == 0:
		return s.holdsNothingBut(stagingLock)
	}
	return string(buf[:n]) == stagingMagic
}

func (s *staging) holdsNothingBut(keep string) bool {
	if s.op.calls.Rewind(s.dir) != nil {
		return false
	}
	err := s.op.calls.List(s.dir, make([]byte, fsys.ListBufferSize), func(name string) error {
		if name != keep {
			return fs.ErrExist
		}
		return nil
	})
	return err == nil
}
