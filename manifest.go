// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"os"
	"strings"

	"holdstill.example/snapshot/internal/mtree"
	"holdstill.example/snapshot/internal/quote"
)

// Digest is a SHA-256. The zero Digest stands for none and matches nothing.
type Digest [sha256.Size]byte

// ParseDigest reads 64 hexadecimal digits of either case, not all zero; anything else is fs.ErrInvalid.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if len(s) != hex.EncodedLen(len(d)) {
		return Digest{}, notDigest(s)
	}
	if _, err := hex.Decode(d[:], []byte(s)); err != nil {
		return Digest{}, notDigest(s)
	}
	if d.IsZero() {
		return Digest{}, fmt.Errorf("digest %s: zero stands for none: %w", s, fs.ErrInvalid)
	}
	return d, nil
}

func notDigest(s string) error {
	return fmt.Errorf("digest %s: not 64 hexadecimal digits: %w", quote.Name(s), fs.ErrInvalid)
}

// String returns 64 lower-case hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// IsZero reports whether d is none.
func (d Digest) IsZero() bool { return d == Digest{} }

// MarshalText writes what String returns, nothing for zero.
func (d Digest) MarshalText() ([]byte, error) {
	if d.IsZero() {
		return nil, nil
	}
	return hex.AppendEncode(nil, d[:]), nil
}

// UnmarshalText reads what MarshalText wrote.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*d = Digest{}
		return nil
	}
	parsed, err := ParseDigest(string(text))
	if err == nil {
		*d = parsed
	}
	return err
}

// Entry is one line of a manifest. Path is bytes, slash-separated, "." for the root.
type Entry struct {
	Path   string
	Mode   fs.FileMode // type and nine permission bits; a link is always 0777
	Size   int64       // of a file
	Digest Digest      // of a file
	Link   string      // text of a link
}

func fromLine(r *mtree.Reader) Entry {
	e := r.Entry()
	return Entry{Path: e.Path, Mode: e.Mode, Size: e.Size, Digest: e.Digest, Link: e.Link}
}

// Manifest is a sorted list of entries, checked whole and immutable; safe for concurrent use. The zero Manifest is not valid:
// it has no entries, and what can return an error returns fs.ErrInvalid.
type Manifest struct {
	digest  Digest
	entries int
	size    int64    // of the text in bytes
	marks   []mark   // the first entry that begins in each block
	blocks  [][]byte // the text in memory, or
	file    *os.File // its file and
	sums    []Digest // the digest of each block
}

// mark is where a look-up may begin.
type mark struct {
	off  int64  // of the line
	path string // empty if it is longer than maxMark
}

const (
	// blockSize is the least that is read, and proven, of a manifest on disk: a look-up costs one such read, and a mark and a digest
	// for each are 200 KiB in a million entries.
	blockSize = 64 << 10
	// maxMark keeps a hostile manifest of long paths from being held in memory by its marks.
	maxMark = 256
)

// ReadManifest reads a canonical manifest into memory; anything else is an error that names the line and matches fs.ErrInvalid.
// It keeps the text, about 140 bytes an entry, and stops only at the end of r.
func ReadManifest(r io.Reader) (*Manifest, error) {
	m := &Manifest{}
	if err := m.load(r); err != nil {
		return nil, err
	}
	return m, nil
}

// OpenManifest checks the manifest at name and leaves it on disk: constant memory. A later change of the file is ErrMismatch
// in the call that reads the changed part: All, Diff, Lookup, WriteTo, WriteSums. Close it after use.
func OpenManifest(name string) (*Manifest, error) {
	// The open of a FIFO would wait for a writer.
	if fi, err := os.Stat(name); err == nil && !fi.Mode().IsRegular() {
		return nil, newPathError("open", name, ErrNotRegular)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return openManifest(f)
}

// openManifest is OpenManifest of a file that is open, at its beginning. The Manifest closes f; so does an error.
func openManifest(f *os.File) (_ *Manifest, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, newPathError("open", f.Name(), ErrNotRegular)
	}
	m := &Manifest{file: f}
	if err := m.load(f); err != nil {
		return nil, newPathError("read", f.Name(), err)
	}
	return m, nil
}

// load checks the text in src and records it.
func (m *Manifest) load(src io.Reader) error {
	rec := newRecorder(m)
	r := mtree.NewReader(io.TeeReader(src, rec))
	for r.Next() {
		rec.entry(r.Offset(), r.Path())
	}
	rec.finish()
	return r.Err()
}

// Digest returns the SHA-256 of the canonical bytes: the snapshot's name. That of a manifest that is not valid is zero.
func (m *Manifest) Digest() Digest {
	if !m.valid() {
		return Digest{}
	}
	return m.digest
}

// Len returns the number of entries.
func (m *Manifest) Len() int {
	if !m.valid() {
		return 0
	}
	return m.entries
}

// All yields the entries in order; an error, only from OpenManifest's, ends it.
func (m *Manifest) All() iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if !m.valid() {
			yield(Entry{}, errNotValid)
			return
		}
		r := mtree.NewReader(&textReader{m: m})
		for r.Next() {
			if !yield(fromLine(r), nil) {
				return
			}
		}
		if err := r.Err(); err != nil {
			yield(Entry{}, err)
		}
	}
}

// Lookup returns the entry at path, or fs.ErrNotExist.
func (m *Manifest) Lookup(path string) (Entry, error) {
	if !m.valid() {
		return Entry{}, errNotValid
	}
	text := &textReader{m: m}
	r := mtree.NewReader(text)
	after := func(mark mark) (bool, error) {
		if mark.path != "" {
			return mtree.Compare(mark.path, path) > 0, nil
		}
		text.seek(mark.off)
		r.Resume(text)
		return r.Next() && mtree.Compare(r.Path(), path) > 0, r.Err()
	}
	// marks[:low] are not after path, marks[high:] are. The first is the root, which is after nothing.
	low, high := 1, len(m.marks)
	for low < high {
		mid := low + (high-low)/2
		isAfter, err := after(m.marks[mid])
		switch {
		case err != nil:
			return Entry{}, err
		case isAfter:
			high = mid
		default:
			low = mid + 1
		}
	}
	text.seek(m.marks[low-1].off)
	r.Resume(text)
	for r.Next() {
		c := mtree.Compare(r.Path(), path)
		if c == 0 {
			return fromLine(r), nil
		}
		if c > 0 {
			break
		}
	}
	if err := r.Err(); err != nil {
		return Entry{}, err
	}
	return Entry{}, newPathError("lookup", path, fs.ErrNotExist)
}

// WriteTo writes the canonical bytes.
func (m *Manifest) WriteTo(w io.Writer) (int64, error) {
	if !m.valid() {
		return 0, errNotValid
	}
	return io.Copy(w, &textReader{m: m})
}

// WriteSums writes the files for sha256sum -c. As there, a name with a backslash, a newline or a carriage return has these escaped
// and the line begins with a backslash; coreutils before 9.0 do not take the last of the three.
func (m *Manifest) WriteSums(w io.Writer) error {
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`)
	var b []byte
	for e, err := range m.All() {
		if err != nil {
			return err
		}
		if !e.Mode.IsRegular() {
			continue
		}
		name := escape.Replace(e.Path)
		if name != e.Path {
			b = append(b, '\\')
		}
		if name == "-" { // would be standard input
			name = "./-"
		}
		b = append(hex.AppendEncode(b, e.Digest[:]), "  "...)
		b = append(append(b, name...), '\n')
		if len(b) >= blockSize {
			if _, err := w.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	_, err := w.Write(b)
	return err
}

// Close releases the file of OpenManifest; otherwise it does nothing.
func (m *Manifest) Close() error {
	if !m.valid() || m.file == nil {
		return nil
	}
	return m.file.Close()
}

// Change is a difference at one path; Old or New is nil where it is absent.
type Change struct {
	Path     string
	Old, New *Entry
}

// Diff yields the changes from old to new in order, in constant memory. A nil Manifest is empty. An error, only of a Manifest from
// OpenManifest or of one that is not valid, ends it.
func Diff(old, new *Manifest) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		if err := diff(old, new, func(c Change) bool { return yield(c, nil) }); err != nil {
			yield(Change{}, err)
		}
	}
}

func diff(old, new *Manifest, yield func(Change) bool) error {
	a, err := newCursor(old)
	if err != nil {
		return err
	}
	b, err := newCursor(new)
	if err != nil {
		return err
	}
	for a.lines != nil || b.lines != nil {
		order := a.compare(b)
		if order != 0 || !bytes.Equal(a.lines.Line(), b.lines.Line()) {
			var c Change
			if order <= 0 {
				e := fromLine(a.lines)
				c.Path, c.Old = e.Path, &e
			}
			if order >= 0 {
				e := fromLine(b.lines)
				c.Path, c.New = e.Path, &e
			}
			if !yield(c) {
				return nil
			}
		}
		if order <= 0 {
			if err := a.next(); err != nil {
				return err
			}
		}
		if order >= 0 {
			if err := b.next(); err != nil {
				return err
			}
		}
	}
	return nil
}

var errNotValid = fmt.Errorf("manifest is not valid: it was neither read nor made: %w", fs.ErrInvalid)

func (m *Manifest) valid() bool { return m != nil && m.size > 0 }

// cursor stands on an entry, or is at the end.
type cursor struct{ lines *mtree.Reader } // nil at the end

// newCursor stands on the first entry; a nil m has none.
func newCursor(m *Manifest) (*cursor, error) {
	if m == nil {
		return &cursor{}, nil
	}
	if !m.valid() {
		return nil, errNotValid
	}
	c := &cursor{lines: mtree.NewReader(&textReader{m: m})}
	return c, c.next()
}

func (c *cursor) next() error {
	if c.lines.Next() {
		return nil
	}
	err := c.lines.Err()
	c.lines = nil
	return err
}

// compare takes the end as after every path; not both may be at it.
func (c *cursor) compare(other *cursor) int {
	switch {
	case c.lines == nil:
		return 1
	case other.lines == nil:
		return -1
	}
	return mtree.Compare(c.lines.Path(), other.lines.Path())
}

// textReader reads a valid manifest's text.
type textReader struct {
	m    *Manifest
	off  int64
	rest []byte // of the block that off is in; empty before it is read
	buf  []byte
}

func (t *textReader) seek(off int64) { t.off, t.rest = off, nil }

func (t *textReader) Read(p []byte) (int, error) {
	if t.off == t.m.size {
		return 0, io.EOF
	}
	if len(t.rest) == 0 {
		block, err := t.block(t.off / blockSize)
		if err != nil {
			return 0, err
		}
		t.rest = block[t.off%blockSize:]
	}
	n := copy(p, t.rest)
	t.off += int64(n)
	t.rest = t.rest[n:]
	return n, nil
}

// block returns the i-th block, of a file only when it has its digest, so that nothing is ever parsed that was not checked by load.
func (t *textReader) block(i int64) ([]byte, error) {
	if t.m.file == nil {
		return t.m.blocks[i], nil
	}
	if t.buf == nil {
		t.buf = make([]byte, blockSize+1)
	}
	begin := i * blockSize
	size := min(blockSize, t.m.size-begin)
	want := t.buf[:size]
	if begin+size == t.m.size {
		want = t.buf[:size+1] // to see whether the file grew
	}
	n, err := t.m.file.ReadAt(want, begin)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if Digest(sha256.Sum256(want[:n])) != t.m.sums[i] {
		return nil, newPathError("read", t.m.file.Name(), ErrMismatch)
	}
	return want[:n], nil
}

// recorder takes in the text of m.
type recorder struct {
	m     *Manifest
	whole hash.Hash
	block hash.Hash // of the last block, of a file
}

func newRecorder(m *Manifest) *recorder {
	return &recorder{m: m, whole: sha256.New(), block: sha256.New()}
}

// entry counts one whose line begins at off.
func (r *recorder) entry(off int64, path []byte) {
	m := r.m
	if n := len(m.marks); n == 0 || m.marks[n-1].off/blockSize != off/blockSize {
		next := mark{off: off}
		if len(path) <= maxMark {
			next.path = string(path)
		}
		m.marks = append(m.marks, next)
	}
	m.entries++
}

// Write never fails.
func (r *recorder) Write(p []byte) (int, error) {
	m := r.m
	r.whole.Write(p)
	for rest := p; len(rest) > 0; {
		used := m.size % blockSize
		part := rest[:min(int64(len(rest)), blockSize-used)]
		if m.file == nil {
			r.keep(part, used == 0)
		} else {
			r.block.Write(part)
		}
		m.size += int64(len(part))
		rest = rest[len(part):]
		if m.size%blockSize == 0 {
			r.sum()
		}
	}
	return len(p), nil
}

func (r *recorder) keep(part []byte, begin bool) {
	m := r.m
	if begin {
		var block []byte
		if m.size > 0 { // most manifests are smaller than a block
			block = make([]byte, 0, blockSize)
		}
		m.blocks = append(m.blocks, block)
	}
	last := &m.blocks[len(m.blocks)-1]
	*last = append(*last, part...)
}

func (r *recorder) sum() {
	if r.m.file != nil {
		r.m.sums = append(r.m.sums, Digest(r.block.Sum(nil)))
		r.block.Reset()
	}
}

func (r *recorder) finish() {
	m := r.m
	r.whole.Sum(m.digest[:0])
	if m.size%blockSize != 0 {
		r.sum()
	}
	if n := len(m.blocks); n > 0 { // less what append took ahead
		m.blocks[n-1] = bytes.Clone(m.blocks[n-1])
	}
}

// manifestBuilder makes a Manifest in memory of entries that come in its order.
type manifestBuilder struct {
	w   *mtree.Writer
	rec *recorder
}

func newManifestBuilder() *manifestBuilder {
	rec := newRecorder(&Manifest{})
	return &manifestBuilder{w: mtree.NewWriter(rec), rec: rec}
}

// add takes the next entry; one that ReadManifest would refuse is fs.ErrInvalid, and the builder is then of no more use.
func (b *manifestBuilder) add(e Entry) error {
	off := b.w.Offset()
	if err := b.w.Write(mtree.Entry{Path: e.Path, Mode: e.Mode, Size: e.Size, Digest: e.Digest, Link: e.Link}); err != nil {
		return fmt.Errorf("%s: not for a manifest: %w", quote.Name(e.Path), err)
	}
	b.rec.entry(off, []byte(e.Path))
	return nil
}

// finish returns the Manifest; without an entry there is none.
func (b *manifestBuilder) finish() (*Manifest, error) {
	if err := b.w.Flush(); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	b.rec.finish()
	return b.rec.m, nil
}
