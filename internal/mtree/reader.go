// SPDX-License-Identifier: Apache-2.0

package mtree

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
)

// bufferSize is small because a look-up begins a new Reader for a few lines.
const bufferSize = 16 << 10

// Reader reads text, line by line, and refuses what a Writer would not have written. It is not safe for concurrent use.
type Reader struct {
	src    io.Reader
	srcErr error // of src, other than its end
	srcEnd bool  // src has ended
	buf    []byte
	unread []byte // part of buf
	off    int64  // of the line after the last
	number int    // of the last line
	line   []byte
	seq    sequence
	mode   fs.FileMode
	size   int64
	digest [32]byte
	link   []byte
	end    bool // the last line was read
	err    error
}

// NewReader returns a Reader of the whole text in src.
func NewReader(src io.Reader) *Reader {
	return &Reader{src: src, buf: make([]byte, bufferSize)}
}

// Resume makes r read from src, which begins with a line, not the first, of a text that was read whole before.
// Lines and offsets then count from there.
func (r *Reader) Resume(src io.Reader) {
	*r = Reader{src: src, buf: r.buf, number: 1, link: r.link, seq: sequence{path: r.seq.path, next: r.seq.next, any: true}}
}

// Next reads the next entry and reports whether there is one; after the last, and after an error, there is none.
func (r *Reader) Next() bool {
	if r.err == nil && !r.end {
		r.err = r.next()
	}
	return r.err == nil && !r.end
}

// Err returns what ended the entries before the end of the text. An error of the text names the line and is fs.ErrInvalid; one of
// src is returned as it is.
func (r *Reader) Err() error { return r.err }

// Entry returns what Next read.
func (r *Reader) Entry() Entry {
	return Entry{Path: string(r.Path()), Mode: r.mode, Size: r.size, Digest: r.digest, Link: string(r.link)}
}

// Path returns the path that Next read; it is valid until the next call.
func (r *Reader) Path() []byte {
	if len(r.seq.path) == 0 {
		return []byte(".")
	}
	return r.seq.path
}

// Line returns the line that Next read, without its newline; it is valid until the next call. Equal lines are equal entries.
func (r *Reader) Line() []byte { return r.line }

// Offset returns the offset in the text at which that line begins.
func (r *Reader) Offset() int64 { return r.off - int64(len(r.line)) - 1 }

func (r *Reader) next() error {
	err := r.nextLine()
	if err == nil && r.number == 1 {
		if string(r.line) != header[:len(header)-1] {
			err = errHeader
		} else {
			err = r.nextLine()
		}
	}
	switch {
	case err != nil:
	case !r.end:
		err = r.parse()
	case !r.seq.some && !r.seq.any:
		err = errNoRoot
	}
	if why, ok := errors.AsType[invalid](err); ok {
		return fmt.Errorf("line %d: %w", r.number, why)
	}
	return err
}

// nextLine reads into r.line, or finds that there is none and sets r.end.
func (r *Reader) nextLine() error {
	r.number++
	r.line = nil
	for searched := 0; ; {
		if n := bytes.IndexByte(r.unread[searched:], '\n'); n >= 0 {
			r.line, r.unread = r.unread[:searched+n], r.unread[searched+n+1:]
			r.off += int64(len(r.line)) + 1
			return nil
		}
		searched = len(r.unread)
		switch {
		case searched >= maxLine:
			return errLong
		case r.srcErr != nil:
			return r.srcErr
		case !r.srcEnd:
			r.fill()
		case searched > 0:
			return errNewline
		default:
			r.end = true
			return nil
		}
	}
}

// fill reads more, into a buffer that it enlarges up to maxLine.
func (r *Reader) fill() {
	n := copy(r.buf, r.unread)
	if n == len(r.buf) {
		r.buf = append(r.buf, make([]byte, min(n, maxLine-n))...)
	}
	for range 100 { // as bufio does
		got, err := r.src.Read(r.buf[n:])
		r.unread = r.buf[:n+got]
		if err == io.EOF { // one that is wrapped is not the end but an error
			r.srcEnd = true
		} else {
			r.srcErr = err
		}
		if got > 0 || err != nil {
			return
		}
	}
	r.srcErr = io.ErrNoProgress
}

func (r *Reader) parse() error {
	name, rest := r.line, []byte(nil)
	if space := bytes.IndexByte(r.line, ' '); space >= 0 {
		name, rest = r.line[:space], r.line[space:]
	}
	var err error
	if r.seq.next, err = parsePath(r.seq.next[:0], name); err != nil {
		return err
	}
	r.mode, r.size, r.digest, r.link = 0, 0, [32]byte{}, r.link[:0]
	switch {
	case cut(&rest, fileField):
		err = r.parseFile(rest)
	case cut(&rest, dirField):
		r.mode = fs.ModeDir
		err = r.parseDir(rest)
	case cut(&rest, linkField):
		r.mode = fs.ModeSymlink
		err = r.parseLink(rest)
	default:
		err = errType
	}
	switch {
	case err != nil:
		return err
	case len(name) > 1:
		return r.seq.accept(r.mode.IsDir())
	case !r.mode.IsDir():
		return errNoRoot
	}
	return r.seq.acceptRoot()
}

func parsePath(dst, name []byte) ([]byte, error) {
	switch {
	case string(name) == ".":
		return dst, nil
	case len(name) < 2 || string(name[:2]) != "./":
		return dst, errPath
	}
	return appendUnescaped(dst, name[2:])
}

func (r *Reader) parseDir(rest []byte) error {
	if err := r.parsePerm(&rest); err != nil {
		return err
	}
	if len(rest) > 0 {
		return errFields
	}
	return nil
}

func (r *Reader) parseFile(rest []byte) error {
	if err := r.parsePerm(&rest); err != nil {
		return err
	}
	if !cut(&rest, sizeField) {
		return errSize
	}
	digits := rest
	if space := bytes.IndexByte(rest, ' '); space >= 0 {
		digits = rest[:space]
	}
	size, err := strconv.ParseUint(string(digits), 10, 63)
	if err != nil || digits[0] == '0' && len(digits) > 1 {
		return errSize
	}
	r.size = int64(size)
	rest = rest[len(digits):]
	if !cut(&rest, digestField) || len(rest) < 2*len(r.digest) {
		return errDigest
	}
	digits, rest = rest[:2*len(r.digest)], rest[2*len(r.digest):]
	// hex.Decode takes upper case too.
	if _, err := hex.Decode(r.digest[:], digits); err != nil || slices.ContainsFunc(digits, upper) || r.digest == [32]byte{} {
		return errDigest
	}
	if len(rest) > 0 {
		return errFields
	}
	return nil
}

func upper(c byte) bool { return c-'A' < 26 }

func (r *Reader) parseLink(rest []byte) error {
	if err := r.parsePerm(&rest); err != nil {
		return err
	}
	if r.mode.Perm() != 0o777 {
		return errLinkMode
	}
	if !cut(&rest, targetField) {
		return errLink
	}
	var err error
	if r.link, err = appendUnescaped(r.link, rest); err != nil {
		return err
	}
	return checkLink(r.link)
}

// parsePerm adds the four digits that rest begins with to r.mode.
func (r *Reader) parsePerm(rest *[]byte) error {
	b := *rest
	if len(b) < 4 {
		return errMode
	}
	x, y, z := b[1]-'0', b[2]-'0', b[3]-'0'
	if b[0] != '0' || x > 7 || y > 7 || z > 7 {
		return errMode
	}
	r.mode |= fs.FileMode(x)<<6 | fs.FileMode(y)<<3 | fs.FileMode(z)
	*rest = b[4:]
	return nil
}

func cut(b *[]byte, prefix string) bool {
	if len(*b) < len(prefix) || string((*b)[:len(prefix)]) != prefix {
		return false
	}
	*b = (*b)[len(prefix):]
	return true
}
