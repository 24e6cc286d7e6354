// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"holdstill.example/snapshot/internal/fsys"
	"holdstill.example/snapshot/internal/quote"
)

// File is one source file, open, identified and not yet read. Its methods may not be called from several goroutines at once.
type File struct {
	op   *op
	name string
	dir  fsys.Handle // held; NoHandle if there is no name to look at again
	base string
	h    fsys.Handle // keeps the file's number from being given to another
	src  source      // as it was at Open, without a handle of its own
}

// Proof is what is known of one file that was read. It marshals to the object that --json prints.
type Proof struct {
	Entry    Entry // Path is the name's last component
	State    State // of the source while it was read
	Evidence Evidence
	Because  string // why the evidence is not higher
	Attempts int
}

// Open opens the regular file name. Links in its directory are followed, a link at name itself is [ErrNotRegular].
// The file has to be closed.
func Open(name string, opts *Options) (*File, error) {
	if err := opts.check("open"); err != nil {
		return nil, err
	}
	return openFile(newOp(opts), name)
}

func openFile(o *op, name string) (_ *File, err error) {
	if err := fsys.Supported(); err != nil {
		return nil, newPathError("open", name, err)
	}
	dirName, base, err := split(name)
	if err != nil {
		return nil, newPathError("open", name, err)
	}
	dir, err := o.calls.PinPath(dirName)
	if err != nil {
		o.finish()
		return nil, newPathError("open", name, err)
	}
	return newFile(o, name, dir, base)
}

// newFile takes dir over.
func newFile(o *op, name string, dir fsys.Handle, base string) (_ *File, err error) {
	f := &File{op: o, name: name, dir: dir, base: base, h: fsys.NoHandle}
	src, err := o.openSource(dir, base, at(name), nil)
	if err != nil {
		err = o.unlessUnstable(dir, base, name, err)
		f.close()
		return nil, err
	}
	f.h, f.src = src.h, src
	return f, nil
}

// split divides a path into a directory and one valid component.
func split(name string) (dir, base string, err error) {
	i := strings.LastIndexFunc(name, func(r rune) bool { return r < 0x80 && os.IsPathSeparator(uint8(r)) })
	dir, base = name[:i+1], name[i+1:]
	switch {
	case name == "":
		return "", "", fs.ErrNotExist
	case base == "":
		return "", "", syscall.ENOTDIR // what open(2) says of a file's name with a slash behind it
	case base == "." || base == "..":
		return "", "", fmt.Errorf("%w: is a directory", ErrNotRegular)
	case !fsys.ValidName(base) || strings.ContainsRune(name, 0):
		return "", "", fs.ErrInvalid
	case dir == "":
		dir = "."
	}
	return dir, base, nil
}

// OpenIn is [Open] beneath root: no component of name may be a link, which is [ErrNotRegular], and ".." is [fs.ErrInvalid].
func OpenIn(root *os.Root, name string, opts *Options) (_ *File, err error) {
	if err := opts.check("open"); err != nil {
		return nil, err
	}
	if root == nil {
		return nil, newPathError("open", name, fs.ErrInvalid)
	}
	if err := fsys.Supported(); err != nil {
		return nil, newPathError("open", name, err)
	}
	parts := strings.Split(filepath.ToSlash(name), "/")
	for _, part := range parts {
		if !fsys.ValidName(part) {
			return nil, newPathError("open", name, fs.ErrInvalid)
		}
	}
	o := newOp(opts)
	dir, err := o.dupRoot(root)
	for _, part := range parts[:len(parts)-1] {
		if err != nil {
			break
		}
		var next fsys.Handle
		next, err = o.openDir(dir, part)
		o.release(dir)
		dir = next
	}
	if err != nil {
		o.finish()
		return nil, newPathError("open", name, err)
	}
	return newFile(o, filepath.Join(root.Name(), name), dir, parts[len(parts)-1])
}

func (o *op) dupRoot(root *os.Root) (h fsys.Handle, err error) {
	d, err := root.Open(".")
	if err != nil {
		return fsys.NoHandle, err
	}
	h, err = o.dup(d)
	return h, errors.Join(err, d.Close())
}

func (o *op) dup(f *os.File) (h fsys.Handle, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return fsys.NoHandle, err
	}
	h = fsys.NoHandle
	if conn.Control(func(fd uintptr) { h, err = o.calls.Dup(fd) }) != nil {
		return h, fs.ErrClosed
	}
	return h, err
}

// openDir opens a directory that must be no link. O_DIRECTORY answers ENOTDIR for a link too; a look tells which it is, or
// that it was one only for a moment.
func (o *op) openDir(dir fsys.Handle, name string) (fsys.Handle, error) {
	h, err := o.calls.OpenDir(dir, name)
	if err == nil {
		return h, nil
	}
	if st, e := o.calls.StatAt(dir, name, false); e == nil && fsys.IsGone(err) {
		switch {
		case st.Mode.Type() == fs.ModeSymlink:
			err = o.isLink(dir, name, at(name))
		case st.Mode.IsDir():
			err = &ChangeError{Path: name, Reason: TypeChanged, After: stateOf(&st.Seen), Err: ErrChangedBeforeSnapshot}
		}
	}
	return h, err
}

// NewFile proves from a handle that is open already, such as one's own executable. It duplicates f, whose offset it leaves
// alone. Nothing is looked up by name, so a name that now is another file does not matter. Where the file cannot be opened
// anew from its handle (no /proc, and outside Linux), the evidence is at most [Stable].
func NewFile(f *os.File, opts *Options) (_ *File, err error) {
	if err := opts.check("open"); err != nil {
		return nil, err
	}
	if f == nil {
		return nil, newPathError("open", "", fs.ErrInvalid)
	}
	if err := fsys.Supported(); err != nil {
		return nil, newPathError("open", f.Name(), err)
	}
	o := newOp(opts)
	file := &File{op: o, name: f.Name(), dir: fsys.NoHandle, base: filepath.Base(f.Name())}
	if file.h, err = o.dup(f); err == nil {
		file.src, err = o.lookAt(file.h, at(file.name))
	}
	if err == nil {
		err = o.regular(&file.src, at(file.name))
	}
	if err != nil {
		file.close()
		return nil, orPathError("open", file.name, err)
	}
	return file, nil
}

// lookAt takes the first State of an open file. The clock comes first: a stamp that is older than it is older than the look.
func (o *op) lookAt(h fsys.Handle, path place) (source, error) {
	src := source{h: h, clock: fsys.Clock()}
	var err error
	if src.stat, err = o.calls.Stat(h, false); err != nil {
		return src, newPathError("stat", path, err)
	}
	if src.kind, err = o.calls.Kind(h, &src.stat.Seen); err != nil {
		return src, newPathError("stat", path, err)
	}
	if src.kind.Remote { // what it answered may be a second old
		src.clock = fsys.Clock()
		if src.stat, err = o.calls.Stat(h, true); err != nil {
			return src, newPathError("stat", path, err)
		}
	}
	return src, nil
}

// regular refuses whatever is not a plain file with a size of its own.
func (o *op) regular(src *source, path place) error {
	switch mode := src.stat.Mode; {
	case o.off(checkType):
		return nil
	case mode.Type() == fs.ModeSymlink:
		return newPathError("open", path, fmt.Errorf("%w: a symbolic link", ErrNotRegular))
	case !mode.IsRegular():
		return newPathError("open", path, fmt.Errorf("%w: %s", ErrNotRegular, kindName(mode)))
	case src.kind.Pseudo:
		return newPathError("open", path, fmt.Errorf("%w: a pseudo file of %s", ErrNotRegular, src.kind.Name))
	}
	return nil
}

// isLink is the error for a link where none is followed. It says where the link leads.
func (o *op) isLink(dir fsys.Handle, name string, path place) error {
	to := ""
	if text, err := o.calls.ReadLink(dir, name); err == nil {
		to = " to " + quote.Name(text)
	}
	return newPathError("open", path, fmt.Errorf("%w: a symbolic link%s", ErrNotRegular, to))
}

// openSource opens the regular file name of dir: pinned, looked at, and only then opened for reading, so that no driver,
// FIFO or link is ever entered. before, if not nil, is a State that it must still have.
func (o *op) openSource(dir fsys.Handle, name string, path place, before *fsys.Seen) (_ source, err error) {
	pin, err := o.calls.Pin(dir, name)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return o.openByName(dir, name, path, before)
	case err != nil:
		return source{}, lookFailed(path, err, before)
	}
	defer o.release(pin)
	return o.openPinned(dir, name, pin, path, before)
}

// openPinned opens for reading the file that pin holds, which is name of dir.
func (o *op) openPinned(dir fsys.Handle, name string, pin fsys.Handle, path place, before *fsys.Seen) (source, error) {
	pinned, err := o.lookAt(pin, path)
	if err != nil {
		return source{}, err
	}
	if before != nil {
		if err := changedBefore(before, &pinned.stat.Seen, path); err != nil {
			return source{}, err
		}
	}
	if pinned.stat.Mode.Type() == fs.ModeSymlink && !o.off(checkType) {
		return source{}, o.isLink(pin, "", path)
	}
	if err := o.regular(&pinned, path); err != nil {
		return source{}, err
	}
	return o.reopen(dir, name, pin, &pinned, path)
}

// reopen opens what pin holds and pinned shows. Without /proc the name is opened and compared with the pin, which is still
// open, so that its number cannot have gone to another file.
func (o *op) reopen(dir fsys.Handle, name string, pin fsys.Handle, pinned *source, path place) (source, error) {
	h, err := o.calls.Reopen(pin)
	if errors.Is(err, errors.ErrUnsupported) {
		h, err = o.calls.OpenFile(dir, name)
	}
	if err != nil {
		return source{}, openFailed(path, err)
	}
	return o.compareOpened(h, pinned, path)
}

func (o *op) compareOpened(h fsys.Handle, looked *source, path place) (source, error) {
	src := *looked
	src.h, src.ours = h, true
	var err error
	if src.stat, err = o.calls.Stat(h, src.kind.Remote); err != nil {
		err = newPathError("stat", path, err)
	} else if !o.off(checkPin) {
		err = changedBefore(&looked.stat.Seen, &src.stat.Seen, path)
	}
	if err != nil {
		o.release(h)
		return source{}, err
	}
	return src, nil
}

// openByName is openSource where nothing can be pinned: look, open, compare. A device's driver may be entered in between.
func (o *op) openByName(dir fsys.Handle, name string, path place, before *fsys.Seen) (source, error) {
	looked := source{clock: fsys.Clock()}
	var err error
	if looked.stat, err = o.calls.StatAt(dir, name, false); err != nil {
		return source{}, lookFailed(path, err, before)
	}
	if before != nil {
		if err := changedBefore(before, &looked.stat.Seen, path); err != nil {
			return source{}, err
		}
	}
	if looked.stat.Mode.Type() == fs.ModeSymlink {
		return source{}, o.isLink(dir, name, path)
	}
	looked.kind = new(fsys.Kind)
	if err := o.regular(&looked, path); err != nil {
		return source{}, err
	}
	h, err := o.calls.OpenFile(dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return source{}, &ChangeError{Path: path.String(), Reason: Vanished, Before: stateOf(&looked.stat.Seen), Err: ErrChangedBeforeSnapshot}
	case err != nil:
		return source{}, openFailed(path, err)
	}
	if looked.kind, err = o.calls.Kind(h, &looked.stat.Seen); err == nil {
		err = o.regular(&looked, path)
	}
	if err != nil {
		err = orPathError("open", path, err)
		o.release(h)
		return source{}, err
	}
	return o.compareOpened(h, &looked, path)
}

// lookFailed: a name that was seen before and is not there now has changed.
func lookFailed(path place, err error, before *fsys.Seen) error {
	if before != nil && errors.Is(err, fs.ErrNotExist) {
		return &ChangeError{Path: path.String(), Reason: Vanished, Before: stateOf(before), Err: ErrChangedBeforeSnapshot}
	}
	return openFailed(path, err)
}

// openFailed tells a change from a failure: after a look said "regular file", these mean that the name is another thing now.
func openFailed(path place, err error) error {
	switch {
	case errors.Is(err, fsys.ErrLeased):
		return newPathError("open", path, ErrBusy)
	case fsys.IsOtherType(err):
		return &ChangeError{Path: path.String(), Reason: TypeChanged, Err: ErrChangedBeforeSnapshot}
	case fsys.IsStale(err):
		return &ChangeError{Path: path.String(), Reason: Replaced, Err: ErrChangedBeforeSnapshot}
	}
	return newPathError("open", path, err)
}

func changedBefore(before, after *fsys.Seen, path place) error {
	err := changed(before, after, path)
	if c, ok := errors.AsType[*ChangeError](err); ok {
		c.Err = ErrChangedBeforeSnapshot
	}
	return err
}

// Name returns the name that the file was opened by.
func (f *File) Name() string { return f.name }

// State returns the State at Open.
func (f *File) State() State { return stateOf(&f.src.stat.Seen) }

// fresh opens the file anew, as everybody does who reads bytes as proof, and waits until its stamps are settled.
func (f *File) fresh(ctx context.Context) (src source, err error) {
	if f.h == fsys.NoHandle {
		return src, newPathError("read", f.name, fs.ErrClosed)
	}
	for {
		if f.dir != fsys.NoHandle {
			src, err = f.op.openSource(f.dir, f.base, at(f.name), &f.src.stat.Seen)
		} else {
			src, err = f.op.reopenHandle(f.h, &f.src, at(f.name))
		}
		if err != nil || settled(&src.stat.Seen, src.clock, src.kind) || f.op.off(checkSettled) ||
			!f.op.maySettle(&src.stat.Seen, src.kind) { // bringUp decides whether that is enough
			return src, err
		}
		f.closeSource(&src)
		if _, err := f.op.settle(ctx, &src.stat.Seen, src.kind, at(f.name)); err != nil {
			return source{}, err
		}
	}
}

// reopenHandle opens a caller's file on a description of our own; where that cannot be had, the caller's is read.
func (o *op) reopenHandle(h fsys.Handle, first *source, path place) (source, error) {
	own, err := o.calls.Reopen(h)
	if errors.Is(err, errors.ErrUnsupported) {
		src, err := o.lookAt(h, path)
		if err == nil {
			err = changedBefore(&first.stat.Seen, &src.stat.Seen, path)
		}
		return src, err
	}
	if err != nil {
		return source{}, openFailed(path, err)
	}
	looked := *first
	looked.clock = fsys.Clock()
	return o.compareOpened(own, &looked, path)
}

func (f *File) closeSource(src *source) {
	if src.h != f.h && src.kind != nil {
		f.op.release(src.h)
	}
}

// CopyTo streams the file to w and then proves it. On an error w holds bytes that are worth nothing. One attempt; no lease
// is held while w is written to. Errors are [ErrChanged], [ErrBusy], [ErrEvidence], [ErrLimit], and those of w and the system.
func (f *File) CopyTo(ctx context.Context, w io.Writer) (Proof, error) {
	defer f.op.progress.end()
	return f.copyTo(ctx, w)
}

func (f *File) copyTo(ctx context.Context, w io.Writer) (_ Proof, err error) {
	src, err := f.fresh(ctx)
	if err != nil {
		return Proof{}, err
	}
	defer f.closeSource(&src)
	res, err := f.reader().prove(ctx, &src, &sink{h: fsys.NoHandle, w: w}, at(f.name))
	if err == nil {
		err = f.checkName(&src)
	}
	if err != nil {
		return Proof{}, err
	}
	f.op.progress.file(at(f.name))
	return f.proof(&src, res, src.stat.Mode.Perm()), nil
}

func (f *File) reader() *reader {
	r := newReader(f.op)
	r.ctimeLater = f.dir != fsys.NoHandle
	return r
}

// checkName: the name must still be the file that was read.
func (f *File) checkName(src *source) error {
	if f.dir == fsys.NoHandle || f.op.off(checkName) {
		return nil
	}
	now, err := f.op.calls.StatAt(f.dir, f.base, src.kind.Remote)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &ChangeError{Path: f.name, Reason: Vanished, Before: stateOf(&src.stat.Seen), Err: ErrChangedDuringSnapshot}
	case err != nil:
		return newPathError("stat", f.name, err)
	}
	return changed(&src.stat.Seen, &now.Seen, at(f.name))
}

func (f *File) proof(src *source, res read, mode fs.FileMode) Proof {
	return Proof{
		Entry:    Entry{Path: f.base, Mode: mode, Size: src.stat.Size, Digest: res.digest},
		State:    stateOf(&src.stat.Seen),
		Evidence: res.level,
		Because:  res.why.text(src.kind),
		Attempts: 1,
	}
}

// CopyFile writes the file to dst, as the function [CopyFile] does, in one attempt.
func (f *File) CopyFile(ctx context.Context, dst string) (Proof, error) {
	defer f.op.progress.end()
	return f.copyFile(ctx, dst)
}

func (f *File) copyFile(ctx context.Context, dst string) (_ Proof, err error) {
	mode, err := f.op.copyMode(f.src.stat.Mode, at(f.name))
	if err != nil {
		return Proof{}, err
	}
	p, err := f.op.newPublication(dst)
	if err != nil {
		return Proof{}, err
	}
	defer p.close(&err)
	src, err := f.fresh(ctx)
	if err != nil {
		return Proof{}, err
	}
	defer f.closeSource(&src)
	h, volume, err := p.create(mode)
	if err != nil {
		return Proof{}, err
	}
	res, err := f.reader().fill(ctx, &src, h, volume, p.space, at(f.name))
	if err == nil {
		err = f.checkName(&src)
	}
	if err != nil {
		return Proof{}, err
	}
	if err := p.publish(ctx, src.stat.Mtime, mode); err != nil {
		return Proof{}, err
	}
	f.op.progress.file(at(f.name))
	return f.proof(&src, res, mode), nil
}

// Check compares the State of the handle, and of the name if there is one, with State. A difference is a [*ChangeError].
func (f *File) Check() error {
	if f.h == fsys.NoHandle {
		return newPathError("check", f.name, fs.ErrClosed)
	}
	if err := f.checkName(&f.src); err != nil {
		return err
	}
	now, err := f.op.calls.Stat(f.h, f.src.kind.Remote)
	if err != nil {
		return newPathError("stat", f.name, err)
	}
	return changed(&f.src.stat.Seen, &now.Seen, at(f.name))
}

// Close releases the handle and every lock. A second call returns [fs.ErrClosed].
func (f *File) Close() error {
	if f.h == fsys.NoHandle {
		return newPathError("close", f.name, fs.ErrClosed)
	}
	f.close()
	return nil
}

func (f *File) close() {
	f.op.release(f.h)
	f.op.release(f.dir)
	f.h, f.dir = fsys.NoHandle, fsys.NoHandle
	f.op.finish()
}

// readFileLimit is the bound of ReadFile where Limits has none: its contents lie in memory.
const readFileLimit = 64 << 20

// ReadFile returns the contents of name at one instant. A file that changes under the call is tried Options.Attempts times.
// Errors are those of [Open] and [File.CopyTo].
func ReadFile(ctx context.Context, name string, opts *Options) ([]byte, Proof, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Limits.MaxFileBytes == 0 {
		o.Limits.MaxFileBytes = readFileLimit
	}
	var buf bytes.Buffer
	proof, err := attempts(ctx, name, &o, "read", func(f *File) (Proof, error) {
		buf.Reset()
		if f.src.stat.Size > math.MaxInt-bytes.MinRead {
			return Proof{}, &LimitError{Path: name, Field: "MaxFileBytes", Limit: math.MaxInt - bytes.MinRead, Got: f.src.stat.Size}
		}
		if n := f.src.stat.Size; n <= o.Limits.MaxFileBytes || o.Limits.MaxFileBytes < 0 {
			buf.Grow(int(min(n, readFileLimit)))
		}
		return f.copyTo(ctx, &buf)
	})
	if err != nil {
		return nil, Proof{}, err
	}
	return buf.Bytes(), proof, nil
}

// CopyFile writes a read-only copy of src to dst, which must not exist ([fs.ErrExist]), has no slash behind it, and appears
// only when whole. When it returns, no descriptor is left, in this process or a fork of it, that could make an exec of dst fail
// with ETXTBSY.
// Errors are those of [ReadFile] and of writing dst.
func CopyFile(ctx context.Context, dst, src string, opts *Options) (Proof, error) {
	return attempts(ctx, src, opts, "copy", func(f *File) (Proof, error) { return f.copyFile(ctx, dst) })
}

// maxMetadataTries bounds the tries in which only ctime moved, which hard links, chmod and backup tools do all the time.
const maxMetadataTries = 16

// attempts opens name and calls f until nothing changed under it, at most Options.Attempts times, those not counted in which
// only ctime moved. Between two tries it pauses: a rewrite takes its time, and three tries within one are one.
func attempts(ctx context.Context, name string, opts *Options, verb string, f func(*File) (Proof, error)) (Proof, error) {
	if err := opts.check(verb); err != nil {
		return Proof{}, err
	}
	progress := newMeter(opts.withDefaults().Progress)
	defer progress.end()
	tries, metadata := 1, 0
	var waited time.Duration
	changedOnce := false
	for pause := time.Millisecond; ; {
		if err := canceled(ctx, verb, name); err != nil {
			return Proof{}, err
		}
		o := newOp(opts)
		o.progress, o.waited = progress, waited
		proof, err := attempt(o, name, f)
		if err == nil {
			proof.Attempts = tries
			return proof, nil
		}
		// A file that is replaced may be away for a moment.
		away := changedOnce && errors.Is(err, fs.ErrNotExist)
		change, _ := errors.AsType[*ChangeError](err)
		if change != nil {
			change.Attempts, changedOnce = tries, true
		}
		switch {
		case !Retryable(err) && !away || errors.Is(err, errStalled):
			return Proof{}, err
		case change != nil && change.Reason == MetadataOnly && metadata < maxMetadataTries:
			metadata++
			waited = o.waited
		case tries >= o.opts.Attempts:
			return Proof{}, err
		default:
			tries++
			waited = 0
			sleep(ctx, pause)
			pause = min(2*pause, 100*time.Millisecond)
		}
	}
}

func attempt(o *op, name string, f func(*File) (Proof, error)) (_ Proof, err error) {
	file, err := openFile(o, name)
	if err != nil {
		return Proof{}, err
	}
	defer file.close()
	proof, err := f(file)
	return proof, o.unlessUnstable(file.dir, file.base, name, err)
}

// unlessUnstable returns err, unless it says "replaced" of a name where nothing was: there a retry cannot help.
func (o *op) unlessUnstable(dir fsys.Handle, name, path string, err error) error {
	change, ok := errors.AsType[*ChangeError](err)
	if !ok || change.Reason != Replaced || errors.Is(err, ErrLeftover) || dir == fsys.NoHandle || o.identitiesHold(dir, name) {
		return err
	}
	return newPathError("read", path, errUnstable)
}

var errUnstable = fmt.Errorf("identities are not stable on this file system: two looks at one name show two files, and nothing was renamed: %w", errors.ErrUnsupported)

// identitiesHold reports false if every two looks at a name show two files although its directory, whose stamps are settled,
// shows no change: then a server makes its numbers up.
func (o *op) identitiesHold(dir fsys.Handle, name string) bool {
	const looks = 4 // a rename may show a moment before the directory's stamp does
	for range looks {
		clock := fsys.Clock()
		before, err := o.calls.Stat(dir, true)
		if err != nil {
			return true
		}
		first, err1 := o.calls.StatAt(dir, name, true)
		second, err2 := o.calls.StatAt(dir, name, true)
		after, err3 := o.calls.Stat(dir, true)
		kind, err4 := o.calls.Kind(dir, &before.Seen)
		if errors.Join(err1, err2, err3, err4) != nil || sameFile(&first.Seen, &second.Seen) ||
			before.Mtime != after.Mtime || before.Ctime != after.Ctime || !settled(&before.Seen, clock, kind) {
			return true
		}
	}
	return false
}

// Lstat returns the State of name without following a final link, to ask later whether a file read before has changed since.
func Lstat(name string) (State, error) {
	return newOp(nil).lstat(name)
}

// lstat is Lstat as one operation.
func (o *op) lstat(name string) (_ State, err error) {
	defer o.finish()
	if err := fsys.Supported(); err != nil {
		return State{}, newPathError("lstat", name, err)
	}
	dirName, base, err := split(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrInvalid) {
		dirName, base, err = name, "", nil // "dir/" and "..", which are directories
	}
	if err != nil {
		return State{}, newPathError("lstat", name, err)
	}
	dir, err := o.calls.PinPath(dirName)
	if err != nil {
		return State{}, newPathError("lstat", name, err)
	}
	defer o.release(dir)
	var st fsys.Stat
	if base == "" {
		st, err = o.calls.Stat(dir, true)
	} else {
		st, err = o.calls.StatAt(dir, base, true)
	}
	if err != nil {
		return State{}, newPathError("lstat", name, err)
	}
	return stateOf(&st.Seen), nil
}
