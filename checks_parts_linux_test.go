// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot/internal/fstest"
	"holdstill.example/snapshot/internal/fsys"
)

// These are refusals that no file system at hand can be made to need: they stand here alone.

// partRoot is the directory that is read.
func partRoot(tr *tree) *dir { return tr.roots[0].dir }

func TestSameInode(t *testing.T) {
	t.Parallel()
	assert.True(t, sameInode(seen(), seen(func(s *fsys.Seen) { s.Mount++; s.Size++ })), "through another mount")
	assert.False(t, sameFile(seen(), seen(func(s *fsys.Seen) { s.Mount++ })), "sameFile through another mount")
	assert.False(t, sameInode(seen(seenUnknown), seen(seenUnknown)), "both unknown")
	for what, change := range map[string]func(*fsys.Seen){
		"file":       func(s *fsys.Seen) { s.File[0]++ },
		"volume":     func(s *fsys.Seen) { s.Volume++ },
		"birth time": func(s *fsys.Seen) { s.Birth.Nsec++ },
		"type":       seenDir,
	} {
		assert.False(t, sameInode(seen(), seen(change)), "another %s", what)
		assert.False(t, sameFile(seen(), seen(change)), "another %s", what)
	}
}

// TestSettled has a row for each kind of clock; the stamp of seen is 300 s and 1 ns.
func TestSettled(t *testing.T) {
	t.Parallel()
	whole := func(s *fsys.Seen) { s.Mtime.Nsec, s.Ctime.Nsec = 0, 0 }
	for _, tt := range []struct {
		name  string
		seen  *fsys.Seen
		grain fsys.Grain
		clock fsys.Stamp
		want  bool
	}{
		{"the same tick", seen(), fsys.Tick, fsys.Stamp{Sec: 300, Nsec: 1}, false},
		{"the next tick", seen(), fsys.Tick, fsys.Stamp{Sec: 300, Nsec: 2}, true},
		{"whole seconds, the same one", seen(whole), fsys.Tick, fsys.Stamp{Sec: 300, Nsec: 999_999_999}, false},
		{"whole seconds, the next one", seen(whole), fsys.Tick, fsys.Stamp{Sec: 301}, true},
		{"a birth time with nanoseconds", seen(whole, func(s *fsys.Seen) { s.Birth.Nsec = 1 }), fsys.Tick, fsys.Stamp{Sec: 300, Nsec: 1}, true},
		{"two seconds, the same ones", seen(), fsys.TwoSeconds, fsys.Stamp{Sec: 301, Nsec: 999_999_999}, false},
		{"two seconds, the next ones", seen(), fsys.TwoSeconds, fsys.Stamp{Sec: 302}, true},
		{"nothing is written there", seen(), fsys.Immutable, fsys.Stamp{Sec: 300}, true},
		{"a second ahead", seen(), fsys.Tick, fsys.Stamp{Sec: 299, Nsec: 1}, false},
		{"more than a second ahead", seen(), fsys.Tick, fsys.Stamp{Sec: 299}, true},
	} {
		assert.Equal(t, tt.want, settled(tt.seen, tt.clock, &fsys.Kind{Grain: tt.grain}), tt.name)
	}
}

func TestOpenFailed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err    error
		want   error
		reason Reason
	}{
		{fsys.ErrLeased, ErrBusy, 0},
		{fsys.ErrIsLink, ErrChangedBeforeSnapshot, TypeChanged},
		{syscall.ENXIO, ErrChangedBeforeSnapshot, TypeChanged},
		{syscall.ESTALE, ErrChangedBeforeSnapshot, Replaced},
		{syscall.EACCES, fs.ErrPermission, 0},
	} {
		err := openFailed(at("f"), tt.err)
		assert.ErrorIs(t, err, tt.want, "openFailed(%v)", tt.err)
		if change, ok := errors.AsType[*ChangeError](err); assert.Equal(t, tt.reason != 0, ok, "openFailed(%v)", tt.err) && ok {
			assert.Equal(t, tt.reason, change.Reason, "openFailed(%v)", tt.err)
		}
	}
	before := seen()
	assert.ErrorIs(t, lookFailed(at("f"), syscall.ENOENT, before), ErrChangedBeforeSnapshot)
	assert.NotErrorIs(t, lookFailed(at("f"), syscall.ENOENT, nil), ErrChanged)
}

// TestSoft: what a round goes on after, and what ends the call.
func TestSoft(t *testing.T) {
	t.Parallel()
	change := &ChangeError{Path: "f", Reason: Grew, Err: ErrChangedDuringSnapshot}
	for _, tt := range []struct {
		err  error
		want Reason // 0: it ends the call
	}{
		{&driftError{reason: Replaced}, Replaced},
		{change, Grew},
		{errors.Join(change, &LeftoverError{Paths: []string{"x"}}), 0},
		{newPathError("lease", "f", ErrBusy), WriterArrived},
		{newPathError("read", "f", errStalled), 0},
		{newPathError("open", "f", syscall.ENOENT), Vanished},
		{newPathError("open", "f", fmt.Errorf("%w: %w", ErrNotRegular, syscall.ENXIO)), 0},
		{newPathError("open", "f", fmt.Errorf("%w: %w", errDestination, syscall.ENOENT)), 0},
		{newPathError("open", "f", syscall.EACCES), 0},
		{nil, 0},
	} {
		tr := &tree{op: newOp(nil)}
		err := tr.soft(nil, -1, tt.err)
		if tt.want == 0 {
			assert.Equal(t, tt.err, err)
			assert.Empty(t, tr.drifts, "%v", tt.err)
			continue
		}
		assert.NoError(t, err, "%v", tt.err)
		if assert.Len(t, tr.drifts, 1, "%v", tt.err) {
			assert.Equal(t, tt.want, tr.drifts[0].reason, "%v", tt.err)
		}
	}
}

func TestFailureInTheCopyIsMarked(t *testing.T) {
	t.Parallel()
	d := &dir{kids: []node{{name: "f"}}, out: fsys.NoHandle}
	tr := &tree{op: newOp(nil), path: "src", top: d, roots: []*root{newRoot("f", "src")}}
	assert.NoError(t, tr.destination("create", d, 0, nil))
	err := tr.destination("create", d, 0, syscall.EIO)
	assert.ErrorIs(t, err, errDestination)
	assert.ErrorIs(t, err, syscall.EIO)
	assert.ErrorContains(t, tr.destination("create", d, 0, syscall.EEXIST), "folds case", "the copy's directory is ours: what is there is another spelling")
}

func TestNamesOfALyingDirectory(t *testing.T) {
	t.Parallel()
	top := new(dir)
	w := &worker{tree: &tree{op: newOp(nil), path: "src", top: top}}
	for _, name := range []string{"", ".", "..", "a/b", "/", "a\x00b"} {
		assert.ErrorIs(t, w.admit(top, name), fs.ErrInvalid, "%q", name)
	}
	assert.NoError(t, w.admit(top, "..."))
	w.opts.Limits.MaxPath = 3
	assert.NoError(t, w.admit(top, "abc"))
	assert.ErrorIs(t, w.admit(top, "abcd"), ErrLimit)
}

// TestEvidenceOfOddKinds: kinds that cannot be mounted everywhere, and handles that are not ours.
func TestEvidenceOfOddKinds(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(name, []byte("text"), 0o600))
	stores := fsys.Kind{Grain: fsys.Immutable, Stores: true, LeaseNow: true, LeaseHeld: true}
	for _, tt := range []struct {
		name    string
		kind    fsys.Kind
		dax     bool
		foreign bool
		require Evidence
		want    Evidence // 0: refused
		why     whyNot
	}{
		{"no change time", fsys.Kind{Grain: fsys.Immutable, NoChange: true}, false, false, 0, Identified, whyNoChange},
		{"no change time", fsys.Kind{Grain: fsys.Immutable, NoChange: true}, false, false, Stable, 0, 0},
		{"DAX", stores, true, false, 0, Stable, whyDAX},
		{"DAX", stores, true, false, Buffered, 0, 0},
		{"DAX", stores, true, false, Quiescent, 0, 0},
		{"a handle of the caller's", stores, false, true, 0, Stable, whyShared},
		{"a handle of the caller's", stores, false, true, Stable, Stable, whyShared},
		{"a handle of the caller's", stores, false, true, Buffered, 0, 0},
		{"a handle of the caller's", stores, false, true, Quiescent, 0, 0},
	} {
		o := newOp(&Options{Require: tt.require})
		var called []string
		o.calls.At = func(call, _ string) error { called = append(called, call); return nil }
		h, err := os.Open(name)
		require.NoError(t, err)
		src, err := o.lookAt(fsys.Handle(h.Fd()), at(name))
		require.NoError(t, err)
		src.kind, src.stat.DAX, src.ours = &tt.kind, tt.dax, !tt.foreign
		called = nil
		ev, err := newReader(o).bringUp(t.Context(), &src, &noSink, at(name))
		if tt.want == 0 {
			assert.ErrorIs(t, err, ErrEvidence, "%s, %v", tt.name, tt.require)
		} else {
			assert.NoError(t, err, "%s, %v", tt.name, tt.require)
			assert.Equal(t, tt.want, ev.level, "%s, %v", tt.name, tt.require)
			assert.Equal(t, tt.why, ev.why, "%s, %v", tt.name, tt.require)
		}
		assert.Empty(t, called, "%s, %v: no lease is taken on it, and no offset moved", tt.name, tt.require)
		ev.guard.end()
		o.finish()
		require.NoError(t, h.Close())
	}
}

// TestNoChangeTimeNoInstant: where a file system keeps no change time no tree is one instant, whatever it holds.
func TestNoChangeTimeNoInstant(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"", "Pin l"} { // from the start, and only for the entry of a directory that was listed
		src := filepath.Join(t.TempDir(), "src")
		require.NoError(t, os.Mkdir(src, 0o700))
		if when != "" {
			require.NoError(t, os.Symlink(".", filepath.Join(src, "l")))
		}
		var tr *tree
		none := func() { partRoot(tr).kind = &fsys.Kind{Name: "fat", Grain: fsys.Immutable, NoChange: true} }
		opts := &Options{Workers: 1, seam: &seam{at: func(call, name string) error {
			if call+" "+name == when {
				none()
			}
			return nil
		}}}
		tr, err := newWholeTree(t.Context(), "scan", src, opts)
		require.NoError(t, err)
		partRoot(tr).kind = &fsys.Kind{Name: "erofs", Grain: fsys.Immutable}
		if when == "" {
			none()
		}
		report, err := tr.scan()
		require.NoError(t, err)
		assert.Equal(t, InstantNone, report.Instant, "%q", when)
	}
}

// TestUncopied: an entry that was neither copied nor left out never gets into a manifest.
func TestUncopied(t *testing.T) {
	t.Parallel()
	tr, err := newWholeTree(t.Context(), "scan", t.TempDir(), nil)
	require.NoError(t, err)
	defer tr.end()
	partRoot(tr).kids = []node{{name: "f", flags: todo, digest: Digest{1}}}
	_, err = tr.report(1)
	assert.ErrorIs(t, err, errUncopied)
}

// TestOpenedManifestIsAFile: the name may have become a pipe between the look and the open.
func TestOpenedManifestIsAFile(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_, err = openManifest(r)
	assert.ErrorIs(t, err, ErrNotRegular)
	assert.ErrorIs(t, r.Close(), fs.ErrClosed, "it was closed")
}

// TestReadPastTheEnd: whatever a file system says of a size, more bytes than it are not taken for the file.
func TestReadPastTheEnd(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(name, []byte("0123456789"), 0o600))
	h, err := os.Open(name)
	require.NoError(t, err)
	defer h.Close()
	for size, want := range map[int64]error{5: ErrChanged, 9: ErrChanged, 10: nil, 11: ErrChanged} {
		o := newOp(nil)
		src, err := o.lookAt(fsys.Handle(h.Fd()), at(name))
		require.NoError(t, err)
		src.stat.Size = size
		r := newReader(o)
		_, err = r.stream(context.Background(), &src, new(evidence), &sink{h: fsys.NoHandle, w: io.Discard}, at(name), nil)
		assert.Zero(t, r.buf[min(size+1, 10)], "not more than a byte beyond the size is read")
		if want == nil {
			assert.NoError(t, err)
		} else {
			assert.ErrorIs(t, err, want, "size %d", size)
		}
	}
}

// TestSizesThatLie: as many bytes as were read are not what the State says, and the State is the same as before.
func TestSizesThatLie(t *testing.T) {
	t.Parallel()
	o, src := partSource(t, 10)
	assert.ErrorIs(t, newReader(o).lengthChanged(src, Grew, 11, at("f")), ErrNotRegular)
	src.stat.Ctime.Sec--
	assert.ErrorIs(t, newReader(o).lengthChanged(src, Grew, 11, at("f")), ErrChangedDuringSnapshot)
}

// partSource opens a new file of size bytes on a description of our own.
func partSource(t *testing.T, size int) (*op, *source) {
	name := filepath.Join(fstest.TempDir(t), "f")
	require.NoError(t, os.WriteFile(name, make([]byte, size), 0o600))
	f, err := os.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	o := newOp(nil)
	t.Cleanup(o.finish)
	src, err := o.lookAt(fsys.Handle(f.Fd()), at(name))
	require.NoError(t, err)
	src.ours = true
	return o, &src
}

func TestCloneOfAnotherSize(t *testing.T) {
	t.Parallel()
	o, src := partSource(t, 10)
	_, clone := partSource(t, 9)
	_, err := newReader(o).hashClone(t.Context(), src, &sink{h: clone.h}, at("f"))
	assert.ErrorIs(t, err, ErrNotRegular, "the source still has its size")
}

// TestStampsAheadComeNear: a ctime in the future was settled when the bytes were read, and is not any more.
func TestStampsAheadComeNear(t *testing.T) {
	t.Parallel()
	for _, level := range []Evidence{0, Buffered} {
		o, src := partSource(t, 10)
		o.opts.Require = level
		src.kind = &fsys.Kind{Name: "ext4", Stores: true, LeaseNow: true, LeaseHeld: true}
		src.clock = fsys.Stamp{Sec: src.stat.Ctime.Sec - 10}
		res, err := newReader(o).prove(t.Context(), src, &noSink, at("f"))
		if level != 0 {
			assert.ErrorIs(t, err, ErrEvidence)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, Identified, res.level)
	}
}

// TestFutureStamps: a flag that says "ctime is ahead" is of the last look, and the collect asks whether it still is.
func TestFutureStamps(t *testing.T) {
	t.Parallel()
	for when, none := range map[string]bool{
		"joined": true,  // set after the look: the stamp was ahead, and is not in the collect
		"Pin f":  false, // the look takes it back
		"Stat":   false, // the same, of the root
		"never":  false,
	} {
		dir := fstest.TempDir(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
		fstest.Settle(t, dir)
		var tr *tree
		at := func(what string) {
			if tr == nil || what != when {
				return
			}
			when = ""
			if what == "Stat" {
				tr.top.kids[0].flags |= future
			} else {
				partRoot(tr).kids[0].flags |= future
			}
		}
		tr, err := newWholeTree(t.Context(), "scan", dir, &Options{Workers: 1, seam: &seam{
			at:    func(call, name string) error { at(strings.TrimSpace(call + " " + name)); return nil },
			phase: at,
		}})
		require.NoError(t, err)
		report, err := tr.scan()
		require.NoError(t, err)
		assert.Equal(t, none, report.Instant == InstantNone, "set at %q", when)
	}
}

// TestYoungEntries wait, and if they need not any more they are said to be young.
func TestYoungEntries(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
	require.NoError(t, os.Symlink("f", filepath.Join(dir, "l")))
	fstest.Settle(t, dir)
	tr, err := newWholeTree(t.Context(), "scan", dir, &Options{Workers: 1})
	require.NoError(t, err)
	defer tr.end()
	_, err = tr.take()
	require.NoError(t, err)
	w := tr.workers[0]
	for i, n := range partRoot(tr).kids {
		for _, last := range []bool{false, true} {
			require.NoError(t, w.drop(partRoot(tr), &partRoot(tr).kids[i]))
			pin, err := w.calls.Pin(partRoot(tr).in, n.name)
			require.NoError(t, err)
			looked, err := w.look(partRoot(tr), i, pin)
			require.NoError(t, err)
			looked.clock = looked.stat.Ctime
			later, err := w.copyLooked(partRoot(tr), i, pin, &looked, 0, last)
			require.NoError(t, err)
			assert.Equal(t, !last, later != nil, n.name)
			assert.Equal(t, last, partRoot(tr).kids[i].is(young), n.name)
			w.release(pin)
		}
	}
}

// TestReadAgainUnderALease: what exceeds the buffers is read twice, and must be the same.
func TestReadAgainUnderALease(t *testing.T) {
	t.Parallel()
	o, src := partSource(t, bufferSize)
	name := fmt.Sprintf("/proc/self/fd/%d", src.h)
	var err error
	once := true
	o.calls.At = func(call, _ string) error {
		if call != "Lease" || !once {
			return nil
		}
		once = false
		// A store that left no trace in the State.
		err = os.WriteFile(name, append(make([]byte, bufferSize-1), 'x'), 0)
		now, e := o.lookAt(src.h, at(name))
		src.stat, err = now.stat, errors.Join(err, e)
		return nil
	}
	var b strings.Builder
	_, got := newReader(o).readLeased(t.Context(), src, &evidence{hold: true}, &sink{h: fsys.NoHandle, w: &b}, at(name))
	require.NoError(t, err)
	assert.ErrorIs(t, got, ErrChangedDuringSnapshot)
}

func TestRefusedLeases(t *testing.T) {
	t.Parallel()
	o := newOp(nil)
	defer o.finish()
	where := fstest.TempDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(where, "f"), nil, 0o600))
	require.NoError(t, os.Symlink("f", filepath.Join(where, "l")))
	dir, err := o.calls.OpenRoot(where)
	require.NoError(t, err)
	defer o.release(dir)
	assert.ErrorIs(t, o.calls.Lease(dir), fsys.ErrNoLease, "on a directory")
	_, err = o.calls.OpenFile(dir, "l")
	assert.ErrorIs(t, err, fsys.ErrIsLink)
	_, err = o.calls.OpenDir(dir, "f")
	assert.ErrorIs(t, err, unix.ENOTDIR)
	pin, err := o.calls.Pin(dir, "f")
	require.NoError(t, err)
	defer o.release(pin)
	assert.ErrorIs(t, o.calls.Lease(pin), fsys.ErrNoLease, "where not even its signal can be chosen")
	for _, errno := range []error{unix.EPERM, unix.EINVAL, unix.ENOLCK, unix.ENOSYS, unix.EOPNOTSUPP} {
		o.calls.At = func(string, string) error { return errno }
		assert.ErrorIs(t, o.calls.Lease(dir), fsys.ErrNoLease, "%v", errno)
	}
	o.calls.At = func(string, string) error { return unix.EACCES }
	assert.ErrorIs(t, o.calls.Lease(dir), fsys.ErrNotAllowed)
	o.calls.At = nil

	// Somebody's write lease: an open would wait for him.
	f, err := os.OpenFile(filepath.Join(where, "f"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETSIG, int(unix.SIGURG))
	require.NoError(t, err)
	if _, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); errors.Is(err, unix.EINVAL) {
		t.Skip("this file system has no leases")
	}
	require.NoError(t, err)
	_, err = o.calls.OpenFile(dir, "f")
	assert.ErrorIs(t, err, fsys.ErrLeased)
	_, _, err = ReadFile(t.Context(), filepath.Join(where, "f"), &Options{Attempts: 1})
	assert.ErrorIs(t, err, ErrBusy)
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	require.NoError(t, err)
}

// TestLeaseOnASuspect: on what a lease is taken that is held beyond one read.
func TestLeaseOnASuspect(t *testing.T) {
	t.Parallel()
	leases := fsys.Kind{Name: "ext4", LeaseHeld: true}
	for _, tt := range []struct {
		name string
		opts Options
		kind fsys.Kind
		at   error // of Lease
		seen func(*fsys.Seen)
		full bool
		want bool
		err  bool
	}{
		{name: "it is had", kind: leases, want: true},
		{name: "NeverLock", opts: Options{NeverLock: true}, kind: leases},
		{name: "leases prove nothing here", kind: fsys.Kind{}},
		{name: "refused", kind: leases, at: fsys.ErrWriter},
		{name: "another file has the name", kind: leases, seen: func(s *fsys.Seen) { s.Birth.Sec-- }, err: true},
		{name: "no descriptors to spare", kind: leases, full: true},
	} {
		dir := fstest.TempDir(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
		fstest.Settle(t, dir)
		tt.opts.Workers = 1
		tr, err := newWholeTree(t.Context(), "scan", dir, &tt.opts)
		require.NoError(t, err)
		_, err = tr.take()
		require.NoError(t, err)
		if tt.want {
			list, err := tr.leaseAll(nil)
			require.NoError(t, err)
			if assert.Len(t, list, 1) {
				tr.release(list[0].h)
			}
		}
		tr.calls.At = func(call, _ string) error {
			if call == "Lease" {
				return tt.at
			}
			return nil
		}
		if tt.full {
			tr.handles.limit = 0
		}
		n := &partRoot(tr).kids[0]
		if tt.seen != nil {
			tt.seen(&n.seen)
		}
		s := &suspect{dir: partRoot(tr), node: n, kind: &tt.kind, h: fsys.NoHandle, alone: true}
		err = tr.workers[0].leaseSuspect(s)
		assert.Equal(t, tt.err, err != nil, "%s: %v", tt.name, err)
		assert.Equal(t, tt.want, s.h != fsys.NoHandle, tt.name)
		tr.release(s.h)
		tr.end()
	}
}

// TestQuietSuspect: a leased file is not read again only while its State is the recorded one.
func TestQuietSuspect(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
	fstest.Settle(t, dir)
	tr, err := newWholeTree(t.Context(), "scan", dir, &Options{Workers: 1})
	require.NoError(t, err)
	defer tr.end()
	_, err = tr.take()
	require.NoError(t, err)
	n := &partRoot(tr).kids[0]
	s := &suspect{dir: partRoot(tr), node: n, h: fsys.NoHandle, alone: true, quiet: true}
	require.NoError(t, tr.workers[0].suspectState(s))
	assert.True(t, s.quiet)
	n.seen.Ctime.Sec--
	require.NoError(t, tr.workers[0].suspectState(s))
	assert.False(t, s.quiet)
}

// partSuspect takes a tree with one file, of which only ctime moves then.
func partSuspect(t *testing.T, seam *seam) (*tree, *suspect) {
	name := filepath.Join(fstest.TempDir(t), "f")
	require.NoError(t, os.WriteFile(name, []byte("text"), 0o600))
	fstest.Settle(t, filepath.Dir(name))
	tr, err := newWholeTree(t.Context(), "scan", filepath.Dir(name), &Options{Workers: 1, seam: seam})
	require.NoError(t, err)
	t.Cleanup(tr.end)
	_, err = tr.take()
	require.NoError(t, err)
	require.NoError(t, os.Chmod(name, 0o600))
	n := &partRoot(tr).kids[0]
	s := &suspect{dir: partRoot(tr), node: n, kind: partRoot(tr).kind, recorded: n.seen, first: n.seen, h: fsys.NoHandle}
	t.Cleanup(func() { tr.release(s.h) })
	return tr, s
}

// TestWindow: what it proves anew replaces what the copy knew of a suspect.
func TestWindow(t *testing.T) {
	t.Parallel()
	tr, s := partSuspect(t, nil)
	s.node.flags |= young
	proven, err := tr.window([]*suspect{s})
	require.NoError(t, err)
	assert.True(t, proven)
	assert.False(t, s.node.is(young), "its stamps have settled")
	now, err := tr.statEntry(s.dir, s.index)
	require.NoError(t, err)
	assert.NotEqual(t, s.recorded, now.Seen)
	assert.Equal(t, now.Seen, s.node.seen, "what it is compared with from now on")

	src, err := tr.workers[0].openSuspect(s)
	require.NoError(t, err)
	defer tr.release(src.h)
	s.first.Ctime.Sec--
	_, err = tr.workers[0].proveSuspect(s, &src, at("f"))
	assert.ErrorIs(t, err, ErrChanged, "another State than at the window's first look")
}

// TestWindowLosesItsLease: the last look at a lease comes after all others.
func TestWindowLosesItsLease(t *testing.T) {
	t.Parallel()
	tr, s := partSuspect(t, nil)
	if s.fails = 1; !s.kind.LeaseHeld {
		s.kind = &fsys.Kind{Name: "ext4", LeaseHeld: true}
	}
	var broken error
	looks := 0
	tr.calls.At = func(call, _ string) error {
		if call == "StatAt" {
			if looks++; looks == 3 { // of the collect, as that is the only entry
				_, broken = unix.Open(filepath.Join(tr.path, "f"), unix.O_WRONLY|unix.O_NONBLOCK, 0)
			}
		}
		return nil
	}
	proven, err := tr.window([]*suspect{s})
	require.NoError(t, err)
	if s.h == fsys.NoHandle {
		t.Skip("this file system has no leases")
	}
	assert.ErrorIs(t, broken, unix.EWOULDBLOCK)
	assert.False(t, proven)
	if assert.Len(t, tr.drifts, 1) {
		assert.Equal(t, WriterArrived, tr.drifts[0].reason)
	}
}

// TestFoldedNames: where a directory folds case a step of a link's text may have another spelling, if it can be only one entry's.
// Hard links that are not among the entries stand for the spellings.
func TestFoldedNames(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	for _, name := range []string{"one", "two", "other", "Other"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	for _, name := range []string{"One", "Two", "TWO"} {
		require.NoError(t, os.Link(filepath.Join(dir, strings.ToLower(name)), filepath.Join(dir, name)))
	}
	fstest.Settle(t, dir)
	hidden := map[string]bool{"One": true, "TWO": true, "Other": true}
	tr, err := newWholeTree(t.Context(), "scan", dir, &Options{Workers: 1})
	require.NoError(t, err)
	defer tr.end()
	_, err = tr.take()
	require.NoError(t, err)
	var kids []node
	for _, n := range partRoot(tr).kids {
		if !hidden[n.name] {
			kids = append(kids, n)
		}
	}
	partRoot(tr).kids = kids
	for name, want := range map[string]string{"one": "one", "One": "one", "TWO": "", "Other": "", "absent": ""} {
		n, exact := (&resolver{tr}).find(partRoot(tr), name)
		found := ""
		if n != nil {
			found = n.name
		}
		assert.Equal(t, want, found, name)
		assert.Equal(t, name == found, exact, name)
	}
	for text, kept := range map[string]bool{"one": true, "One": false} {
		l := &link{text: text}
		(&resolver{tr}).follow(partRoot(tr), l, 0)
		assert.Equal(t, linkInside, l.state, text)
		assert.Equal(t, kept, l.kept, "%s: the copy may lie where case is not folded", text)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "new"), nil, 0o600))
	n, _ := (&resolver{tr}).find(partRoot(tr), "One")
	assert.Nil(t, n, "the directory is not any more what was listed")
}

// TestLockThatWasExchanged: a sweep takes the lock that it looked at, and no other.
func TestLockThatWasExchanged(t *testing.T) {
	t.Parallel()
	parent := fstest.TempDir(t)
	name := stagingPrefix + strings.Repeat("a", stagingRandom)
	lock := filepath.Join(parent, name, stagingLock)
	require.NoError(t, os.Mkdir(filepath.Join(parent, name), 0o700))
	require.NoError(t, os.WriteFile(lock, []byte(stagingMagic), 0o600))
	require.NoError(t, os.WriteFile(lock+"2", []byte(stagingMagic), 0o600))
	gone, err := sweepOne(t, parent, name, func(call, name string) error {
		if call == "OpenFile" && name == stagingLock {
			return os.Rename(lock+"2", lock)
		}
		return nil
	})
	assert.NoError(t, err)
	assert.False(t, gone)
	assert.FileExists(t, lock)
}

// TestSweepLeavesOddOnes: a lock that is none, and a directory that lost its name.
func TestSweepLeavesOddOnes(t *testing.T) {
	t.Parallel()
	parent := fstest.TempDir(t)
	name := stagingPrefix + strings.Repeat("a", stagingRandom)
	where := filepath.Join(parent, name)
	require.NoError(t, os.Mkdir(where, 0o700))
	require.NoError(t, unix.Mkfifo(filepath.Join(where, stagingLock), 0o600))
	gone, err := sweepOne(t, parent, name, nil)
	assert.NoError(t, err)
	assert.False(t, gone)
	assert.DirExists(t, where)

	require.NoError(t, os.Remove(filepath.Join(where, stagingLock)))
	require.NoError(t, os.WriteFile(filepath.Join(where, stagingLock), []byte(stagingMagic), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(where, "precious"), nil, 0o600))
	moved := filepath.Join(parent, "moved")
	gone, err = sweepOne(t, parent, name, func(call, what string) error {
		if call == "StatAt" && what == name {
			return os.Rename(where, moved)
		}
		return nil
	})
	assert.NoError(t, err)
	assert.False(t, gone)
	assert.FileExists(t, filepath.Join(moved, "precious"))
}

// TestRemovalEntersNoOther: a directory that is opened again may be another one by now.
func TestRemovalEntersNoOther(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "tree/d/f=x", "other/precious=x")
	fstest.Settle(t, dir)
	name := filepath.Join(dir, stagingTree)
	tr, err := newWholeTree(t.Context(), "remove", name, &Options{Workers: 1})
	require.NoError(t, err)
	defer tr.end()
	_, err = tr.take()
	require.NoError(t, err)
	tr.shut(partRoot(tr).kids[0].sub)
	require.NoError(t, unix.Renameat2(unix.AT_FDCWD, filepath.Join(name, "d"), unix.AT_FDCWD, filepath.Join(dir, "other"), unix.RENAME_EXCHANGE))
	s := &Snapshot{op: tr.op, staging: tr.stagingAt(fsys.NoHandle, filepath.Dir(dir), filepath.Base(dir))}
	s.staging.dir, err = tr.calls.OpenRoot(dir)
	require.NoError(t, err)
	defer s.staging.release()
	err = s.remove(tr)
	assert.ErrorIs(t, err, ErrChanged)
	assert.ErrorIs(t, err, ErrLeftover)
	assert.FileExists(t, filepath.Join(name, "d", "precious"))
}

// TestRemovalNeedsFewDescriptors, however deep it goes.
func TestRemovalNeedsFewDescriptors(t *testing.T) {
	t.Parallel()
	parent := fstest.TempDir(t)
	require.NoError(t, os.MkdirAll(filepath.Join(parent, strings.Repeat("d/", 100)), 0o700))
	o := newOp(nil)
	defer o.finish()
	dir, err := o.calls.OpenRoot(parent)
	require.NoError(t, err)
	defer o.release(dir)
	most := int64(0)
	o.calls.At = func(string, string) error {
		most = max(most, o.calls.Open())
		return nil
	}
	require.NoError(t, o.removeTree(dir, "d"))
	fstest.Nothing(t, parent)
	assert.Less(t, most, int64(2*removeDepth))
}

// TestSweepOpensNoDevice: an open may be all that its driver waits for.
func TestSweepOpensNoDevice(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	parent := fstest.TempDir(t)
	name := stagingPrefix + strings.Repeat("a", stagingRandom)
	require.NoError(t, os.Mkdir(filepath.Join(parent, name), 0o700))
	require.NoError(t, unix.Mknod(filepath.Join(parent, name, stagingLock), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))) // as empty as /dev/null
	gone, err := sweepOne(t, parent, name, func(call, _ string) error {
		assert.NotEqual(t, "OpenFile", call)
		return nil
	})
	assert.NoError(t, err)
	assert.False(t, gone)
}

// TestProcThatIsNone: a directory mounted over /proc could hand out any file under a descriptor's number.
func TestProcThatIsNone(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	dir := fstest.TempDir(t)
	name := filepath.Join(dir, "f")
	require.NoError(t, os.WriteFile(name, []byte("mine"), 0o600))
	fake := filepath.Join(dir, "proc", "self", "fd")
	require.NoError(t, os.MkdirAll(fake, 0o700))
	for i := range 100 {
		require.NoError(t, os.WriteFile(filepath.Join(fake, fmt.Sprint(i)), []byte("fake"), 0o600))
	}
	fstest.Settle(t, dir)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its mounts
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount(filepath.Join(dir, "proc"), "/proc", "", unix.MS_BIND, "")
		}
		if err == nil {
			var b []byte
			b, _, err = ReadFile(context.Background(), name, nil)
			assert.Equal(t, "mine", string(b))
		}
		done <- err
	}()
	assert.NoError(t, <-done)
}

// TestOpensDoNotWait: not for a FIFO's writer, though it is looked at first.
func TestOpensDoNotWait(t *testing.T) {
	t.Parallel()
	where := fstest.TempDir(t)
	fifo := filepath.Join(where, "p")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for name, open := range map[string]func(o *op, dir fsys.Handle) (fsys.Handle, error){
		"OpenFile": func(o *op, dir fsys.Handle) (fsys.Handle, error) { return o.calls.OpenFile(dir, "p") },
		"OpenManifest": func(*op, fsys.Handle) (fsys.Handle, error) {
			_, err := OpenManifest(fifo)
			if errors.Is(err, ErrNotRegular) {
				err = nil
			}
			return fsys.NoHandle, err
		},
		"Reopen": func(o *op, dir fsys.Handle) (fsys.Handle, error) {
			pin, err := o.calls.Pin(dir, "p")
			defer o.release(pin)
			if err != nil {
				return fsys.NoHandle, err
			}
			return o.calls.Reopen(pin)
		},
	} {
		done := make(chan error, 1)
		go func() {
			o := newOp(nil)
			defer o.finish()
			dir, err := o.calls.OpenRoot(where)
			if err == nil {
				var h fsys.Handle
				h, err = open(o, dir)
				o.release(h)
				o.release(dir)
			}
			done <- err
		}()
		select {
		case err := <-done:
			assert.NoError(t, err, name)
		case <-time.After(5 * time.Second):
			assert.Fail(t, "it waits", name)
			w, err := os.OpenFile(fifo, os.O_RDWR, 0) // lets it go
			require.NoError(t, err)
			<-done
			require.NoError(t, w.Close())
		}
	}
}

// TestNoCloneIntoANamedFile: see noVolume.
func TestNoCloneIntoANamedFile(t *testing.T) {
	t.Parallel()
	o, src := partSource(t, 10)
	src.kind = &fsys.Kind{Clones: true}
	o.calls.At = func(call, _ string) error {
		assert.NotEqual(t, "Clone", call)
		return nil
	}
	_, out := partSource(t, 0)
	cloned, err := newReader(o).clone(t.Context(), src, &sink{h: out.h, volume: noVolume})
	assert.NoError(t, err)
	assert.False(t, cloned)
}

// TestNoCloneOfAStagedFile: it has a name, though none that anybody looks for.
func TestNoCloneOfAStagedFile(t *testing.T) {
	t.Parallel()
	o := newOp(&Options{seam: &seam{lacks: noNameless}})
	defer o.finish()
	p, err := o.newPublication(filepath.Join(fstest.TempDir(t), "dst"))
	require.NoError(t, err)
	defer func() { assert.NoError(t, err) }()
	defer p.close(&err)
	_, volume, err := p.create(0o400)
	require.NoError(t, err)
	assert.Equal(t, noVolume, volume)
}

// TestServersAreReadBehindAGuard: their answers may never come.
func TestServersAreReadBehindAGuard(t *testing.T) {
	t.Parallel()
	o, src := partSource(t, 10)
	src.kind = &fsys.Kind{Grain: fsys.Immutable, Remote: true}
	ev, err := newReader(o).bringUp(t.Context(), src, &noSink, at("f"))
	require.NoError(t, err)
	assert.NotNil(t, ev.guard)
	ev.guard.end()
}

// TestWhatALookTells: a birth time where there is one, and the mount.
func TestWhatALookTells(t *testing.T) {
	t.Parallel()
	o, src := partSource(t, 1)
	var x unix.Statx_t
	require.NoError(t, unix.Statx(int(src.h), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME|unix.STATX_MNT_ID_UNIQUE, &x))
	if x.Mask&unix.STATX_BTIME != 0 {
		assert.Equal(t, fsys.Stamp{Sec: x.Btime.Sec, Nsec: int32(x.Btime.Nsec)}, src.stat.Birth)
	}
	st, err := o.calls.Stat(src.h, false)
	require.NoError(t, err)
	assert.NotZero(t, st.Mount)
	if x.Mask&unix.STATX_MNT_ID_UNIQUE != 0 {
		assert.Equal(t, x.Mnt_id, st.Mount)
	}
}
