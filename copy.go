// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"

	"holdstill.example/snapshot/internal/fsys"
)

// bufferSize: a file of up to this size is one read and one write.
const bufferSize = 256 << 10

// cloneFrom is the size from which a reflink costs less than reading and writing where a lease was granted too.
const cloneFrom = 1 << 20

// reader streams files for one worker.
type reader struct {
	*op
	buf  []byte
	hash hash.Hash
	sum  Digest // what hash writes to
	// ctimeLater: a move of ctime alone is left to the look at the name, which tells a link or chmod from a replaced file.
	ctimeLater bool
}

func newReader(o *op) *reader {
	return &reader{op: o, buf: make([]byte, bufferSize), hash: sha256.New()}
}

// read is what came of one file.
type read struct {
	digest Digest
	level  Evidence
	why    whyNot
	cloned bool
}

// sink takes the bytes: an open file of ours, a Writer, or nothing.
type sink struct {
	h      fsys.Handle // NoHandle: none
	volume uint64      // on which h may be a clone
	w      io.Writer
	sparse bool // leave out blocks of zeros
	space  *space
	needs  int64 // of it, unless the file is cloned
}

var noSink = sink{h: fsys.NoHandle}

func (r *reader) put(out *sink, p []byte, off int64) error {
	switch {
	case out.w != nil:
		n, err := out.w.Write(p)
		if err == nil && n < len(p) {
			err = io.ErrShortWrite
		}
		return err
	case out.h == fsys.NoHandle:
		return nil
	case out.sparse:
		return r.putSparse(out, p, off)
	}
	return r.calls.Write(out.h, p, off)
}

// putSparse leaves out whole blocks of zeros, which the file's length alone makes a hole. The map of the source's holes is
// not asked for: it would be one more thing that can change between two looks.
func (r *reader) putSparse(out *sink, p []byte, off int64) error {
	const block = 4 << 10
	for len(p) > 0 {
		n := min(block, len(p))
		for n < len(p) && isZero(p[:min(block, n)]) == isZero(p[n:min(n+block, len(p))]) {
			n = min(n+block, len(p))
		}
		if !isZero(p[:min(block, n)]) {
			if err := r.calls.Write(out.h, p[:n], off); err != nil {
				return err
			}
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

var zeros [4 << 10]byte

func isZero(p []byte) bool { return bytes.Equal(p, zeros[:len(p)]) }

// prove brings up the evidence for src, streams it to out while hashing what is written, and compares its State again.
// The caller then looks at the name.
func (r *reader) prove(ctx context.Context, src *source, out *sink, path place) (_ read, err error) {
	if err := r.withinLimit(src, path); err != nil {
		return read{}, err
	}
	ev, err := r.bringUp(ctx, src, out, path)
	if err != nil {
		return read{}, err
	}
	defer func() { ev.guard.end() }()
	res := read{level: ev.level, why: ev.why, cloned: ev.cloned}
	if !ev.cloned {
		if err := r.makeRoom(src, out, path); err != nil {
			return read{}, err
		}
		defer out.space.wrote(out.needs)
	}
	switch {
	case ev.hold:
		res.digest, err = r.readLeased(ctx, src, &ev, out, path)
	case ev.cloned:
		res.digest, err = r.hashClone(ctx, src, out, path)
	default:
		res.digest, err = r.stream(ctx, src, &ev, out, path, nil)
	}
	if err != nil {
		return read{}, err
	}
	after, err := r.calls.Stat(src.h, src.kind.Remote)
	if err != nil {
		return read{}, newPathError("stat", path, err)
	}
	if reason := drift(&src.stat.Seen, &after.Seen); reason != 0 && !r.off(checkAfter) && !(reason == MetadataOnly && r.ctimeLater) {
		return read{}, changed(&src.stat.Seen, &after.Seen, path)
	}
	if !ev.hold && ahead(&src.stat.Seen, src.clock) && !ahead(&src.stat.Seen, fsys.Clock()) {
		res.level, res.why = Identified, whyYoung // the clock has come near a stamp that was in the future
		return res, r.enough(evidence{level: res.level, why: res.why}, src, path)
	}
	return res, nil
}

// makeRoom asks for the room that the bytes of src will take, before one is written.
func (r *reader) makeRoom(src *source, out *sink, path place) error {
	if err := out.space.take(out.needs, path); err != nil {
		return err
	}
	if out.h == fsys.NoHandle || out.sparse || src.stat.Size < allocateFrom {
		return nil
	}
	return orPathError("allocate", path, r.calls.Allocate(out.h, src.stat.Size))
}

// allocateFrom is the size from which a full disk is worth finding early.
const allocateFrom = 1 << 20

func (o *op) withinLimit(src *source, path place) error {
	if limit := o.opts.Limits.MaxFileBytes; src.stat.Size > limit {
		return &LimitError{Path: path.String(), Field: "MaxFileBytes", Limit: limit, Got: src.stat.Size}
	}
	return nil
}

// stream reads src by offset and at most one byte more than its size, hashes, and puts to out in the same pass.
func (r *reader) stream(ctx context.Context, src *source, ev *evidence, out *sink, path place, poll func() error) (Digest, error) {
	r.hash.Reset()
	size := src.stat.Size
	for off := int64(0); ; {
		if err := canceled(ctx, "read", path); err != nil {
			return Digest{}, err
		}
		ask := len(r.buf)
		if rest := size - off; rest < int64(ask) && !r.off(checkGrowth) {
			ask = int(rest) + 1
		}
		p, err := r.readAt(ctx, src, ev, ask, off)
		switch {
		case fsys.IsBlocked(err):
			return Digest{}, newPathError("read", path, ErrBusy) // a mandatory lock
		case fsys.IsStale(err):
			return Digest{}, &ChangeError{Path: path.String(), Reason: Replaced, Before: stateOf(&src.stat.Seen), Err: ErrChangedDuringSnapshot}
		case err != nil:
			return Digest{}, newPathError("read", path, atOffset(off, err))
		case off+int64(len(p)) > size && !r.off(checkGrowth):
			return Digest{}, r.lengthChanged(src, Grew, off+int64(len(p)), path)
		}
		r.hash.Write(p)
		if err := r.put(out, p, off); err != nil {
			return Digest{}, newPathError("write", path, err)
		}
		off += int64(len(p))
		r.progress.bytes(int64(len(p)), path)
		if poll != nil {
			if err := poll(); err != nil {
				return Digest{}, err
			}
		}
		// A regular file of a local disk gives less than was asked for only at its end; a server may at any time.
		if len(p) == 0 || len(p) < ask && off == size && !src.kind.Remote {
			if off != size && !r.off(checkGrowth) {
				return Digest{}, r.lengthChanged(src, Shrank, off, path)
			}
			r.hash.Sum(r.sum[:0])
			return r.sum, nil
		}
	}
}

// readAt reads where nothing can stall, and otherwise behind a guard. On xfs even a file that had no writer a moment ago may
// have one that stalls now, so only what is in memory is read without one.
func (r *reader) readAt(ctx context.Context, src *source, ev *evidence, ask int, off int64) ([]byte, error) {
	if ev.guard == nil && src.kind.LockingReads {
		n, err := r.calls.ReadNow(src.h, r.buf[:ask], off)
		if err == nil {
			return r.buf[:n], nil
		}
		if !fsys.IsBlocked(err) && !errors.Is(err, errors.ErrUnsupported) {
			return nil, err
		}
		if err := r.guardReads(src, ev); err != nil {
			return nil, err
		}
	}
	if ev.guard != nil {
		return ev.guard.read(ctx, ask, off)
	}
	n, err := r.calls.Read(src.h, r.buf[:ask], off)
	return r.buf[:n], err
}

func atOffset(off int64, err error) error {
	if off == 0 {
		return err
	}
	return fmt.Errorf("at offset %d: %w", off, err)
}

// lengthChanged reports a file whose bytes are not as many as its State says, which may still be the State: then the file
// system's sizes are not to be relied on.
func (r *reader) lengthChanged(src *source, reason Reason, got int64, path place) error {
	before, after := stateOf(&src.stat.Seen), stateOf(&src.stat.Seen)
	after.Size = got
	if now, err := r.calls.Stat(src.h, src.kind.Remote); err == nil {
		if now.Seen == src.stat.Seen {
			return newPathError("read", path, fmt.Errorf("%w: its size is given as %d, its contents are %d bytes or more",
				ErrNotRegular, before.Size, got))
		}
		after = stateOf(&now.Seen)
	}
	return &ChangeError{Path: path.String(), Reason: reason, Before: before, After: after, Err: ErrChangedDuringSnapshot}
}

// clone makes out a reflink of src, if it is a file on the same file system and that has them: the content at one instant,
// even under a writer's hands. It may wait for a writer, then behind a guard.
func (r *reader) clone(ctx context.Context, src *source, out *sink) (bool, error) {
	if !src.kind.Clones || out.h == fsys.NoHandle || out.volume != src.stat.Volume || src.stat.Size == 0 || r.lacks(noClone) {
		return false, nil
	}
	var ev evidence
	if err := r.guardReads(src, &ev); err != nil {
		return false, err
	}
	defer ev.guard.end()
	dst, err := r.calls.Dup(uintptr(out.h)) // an abandoned call must not find another file under its number
	if err != nil {
		return false, err
	}
	err = ev.guard.do(ctx, func(h fsys.Handle, _ []byte) (int, error) {
		defer r.release(dst)
		return 0, r.calls.Clone(dst, h)
	})
	if errors.Is(err, errStalled) || ctx.Err() != nil {
		return false, err
	}
	return err == nil, nil
}

// hashClone reads the clone, not the source: the digest is that of the bytes that are kept.
func (r *reader) hashClone(ctx context.Context, src *source, out *sink, path place) (Digest, error) {
	copied := *src
	copied.h, copied.kind = out.h, new(fsys.Kind) // nobody else writes it
	var err error
	if copied.stat, err = r.calls.Stat(out.h, false); err != nil {
		return Digest{}, newPathError("stat", path, err)
	}
	if copied.stat.Size != src.stat.Size {
		return Digest{}, r.lengthChanged(src, sizeReason(src.stat.Size, copied.stat.Size), copied.stat.Size, path)
	}
	return r.stream(ctx, &copied, new(evidence), &noSink, path, nil)
}

func sizeReason(before, after int64) Reason {
	if after > before {
		return Grew
	}
	return Shrank
}

// readLeased reads src while a lease is held. A writer waits meanwhile, so nothing is written to out under the lease: what
// exceeds the buffer is copied first, then read again under the lease, and the digests are compared.
func (r *reader) readLeased(ctx context.Context, src *source, ev *evidence, out *sink, path place) (d Digest, err error) {
	if src.stat.Size < bufferSize {
		var small bytes.Buffer
		err = r.leased(src, path, func(poll func() error) error {
			small.Grow(int(src.stat.Size))
			d, err = r.stream(ctx, src, ev, &sink{h: fsys.NoHandle, w: &small}, path, poll)
			return err
		})
		if err == nil {
			err = orPathError("write", path, r.put(out, small.Bytes(), 0))
		}
		return d, err
	}
	if out.h != fsys.NoHandle || out.w != nil {
		if d, err = r.stream(ctx, src, ev, out, path, nil); err != nil {
			return d, err
		}
	}
	var again Digest
	err = r.leased(src, path, func(poll func() error) error {
		again, err = r.stream(ctx, src, ev, &noSink, path, poll)
		return err
	})
	if err == nil && !d.IsZero() && again != d {
		seen := stateOf(&src.stat.Seen)
		err = &ChangeError{Path: path.String(), Reason: Modified, Before: seen, After: seen, Err: ErrChangedDuringSnapshot}
	}
	return again, err
}

// copyMode returns the bits that the copy of a file gets, or ErrSpecialMode.
func (o *op) copyMode(mode fs.FileMode, path place) (fs.FileMode, error) {
	if o.opts.PreserveMode {
		if mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
			return 0, newPathError("copy", path, fmt.Errorf("%w: %s", ErrSpecialMode, octal(mode)))
		}
		return mode.Perm(), nil
	}
	if mode&0o111 != 0 {
		return 0o500, nil
	}
	return 0o400, nil
}

// fill proves src into h, an empty file of ours on volume.
func (r *reader) fill(ctx context.Context, src *source, h fsys.Handle, volume uint64, room *space, path place) (read, error) {
	out := &sink{
		h: h, volume: volume,
		sparse: src.stat.Blocks*512 < src.stat.Size,
		space:  room, needs: allocated(&src.stat),
	}
	res, err := r.prove(ctx, src, out, path)
	if err == nil && out.sparse && !res.cloned {
		err = orPathError("truncate", path, r.calls.Truncate(h, src.stat.Size))
	}
	return res, err
}
