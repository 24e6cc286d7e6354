// SPDX-License-Identifier: Apache-2.0

package mtree

import (
	"encoding/hex"
	"io"
	"io/fs"
	"strconv"
)

// flushSize is how many bytes are gathered before they are written.
const flushSize = 16 << 10

// Writer writes entries as text. It is not safe for concurrent use.
type Writer struct {
	dst io.Writer
	buf []byte
	off int64 // of buf
	seq sequence
	err error
}

// NewWriter returns a Writer to dst. The text is whole only when Flush has succeeded.
func NewWriter(dst io.Writer) *Writer {
	return &Writer{dst: dst, buf: append(make([]byte, 0, flushSize+1<<10), header...)}
}

// Write takes the next entry. One that a Reader would refuse here, with all before it, is fs.ErrInvalid; every later call then fails too.
func (w *Writer) Write(e Entry) error {
	if w.err == nil {
		w.err = w.write(&e)
	}
	return w.err
}

// Offset returns the offset in the text at which the next line begins.
func (w *Writer) Offset() int64 { return w.off + int64(len(w.buf)) }

// Flush writes what was gathered. A text without an entry is fs.ErrInvalid.
func (w *Writer) Flush() error {
	if w.err == nil && !w.seq.some {
		w.err = errNoRoot
	}
	if w.err == nil {
		w.err = w.flush()
	}
	return w.err
}

func (w *Writer) flush() error {
	n, err := w.dst.Write(w.buf)
	if err == nil && n < len(w.buf) {
		err = io.ErrShortWrite
	}
	w.off += int64(len(w.buf))
	w.buf = w.buf[:0]
	return err
}

func (w *Writer) write(e *Entry) error {
	if err := e.check(); err != nil {
		return err
	}
	if e.Path == "." {
		if !e.Mode.IsDir() {
			return errNoRoot
		}
		if err := w.seq.acceptRoot(); err != nil {
			return err
		}
	} else {
		w.seq.next = append(w.seq.next[:0], e.Path...)
		if err := w.seq.accept(e.Mode.IsDir()); err != nil {
			return err
		}
	}
	w.buf = e.append(w.buf)
	if len(w.buf) < flushSize {
		return nil
	}
	return w.flush()
}

// check looks at all but the path.
func (e *Entry) check() error {
	if e.Mode&^(fs.ModeType|fs.ModePerm) != 0 {
		return errMode
	}
	kind := e.Mode.Type()
	switch kind {
	case 0:
		if e.Size < 0 {
			return errSize
		}
		if e.Digest == [32]byte{} {
			return errDigest
		}
	case fs.ModeDir:
	case fs.ModeSymlink:
		if e.Mode.Perm() != 0o777 {
			return errLinkMode
		}
		if err := checkLink(e.Link); err != nil {
			return err
		}
	default:
		return errType
	}
	if kind != 0 && (e.Size != 0 || e.Digest != [32]byte{}) || kind != fs.ModeSymlink && e.Link != "" {
		return errFields
	}
	return nil
}

func (e *Entry) append(b []byte) []byte {
	b = append(b, '.')
	if e.Path != "." {
		b = appendEscaped(append(b, '/'), e.Path)
	}
	field := fileField
	switch e.Mode.Type() {
	case fs.ModeDir:
		field = dirField
	case fs.ModeSymlink:
		field = linkField
	}
	perm := byte(e.Mode.Perm() >> 6)
	b = append(append(b, field...), '0', '0'+perm, '0'+byte(e.Mode>>3&7), '0'+byte(e.Mode&7))
	switch field {
	case fileField:
		b = strconv.AppendInt(append(b, sizeField...), e.Size, 10)
		b = hex.AppendEncode(append(b, digestField...), e.Digest[:])
	case linkField:
		b = appendEscaped(append(b, targetField...), e.Link)
	}
	return append(b, '\n')
}
