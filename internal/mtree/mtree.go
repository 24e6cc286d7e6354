// SPDX-License-Identifier: Apache-2.0

// Package mtree reads and writes one canonical dialect of mtree(5): a tree has exactly one text, and every other text is refused.
//
//	#mtree v2.0
//	. type=dir mode=0755
//	./ln type=link mode=0777 link=tgt\040\377\012
//	./sp\040ace type=file mode=0644 size=1 sha256digest=<64 lower-case hexadecimal digits>
//
// Paths are sorted with '/' below every other byte, so that a directory is followed at once by all that is beneath it, and two
// texts are merged in constant memory. mtree of NetBSD, bsdtar and go-mtree read the dialect.
package mtree

import (
	"bytes"
	"io/fs"
)

const (
	// MaxPath is the longest path in bytes.
	MaxPath = 64 << 10
	// MaxLink is the longest text of a link in bytes: Linux's PATH_MAX less its NUL.
	MaxLink = 4095
)

const (
	header = "#mtree v2.0\n"
	// The type comes before all else because it says which fields follow.
	dirField    = " type=dir mode="
	fileField   = " type=file mode="
	linkField   = " type=link mode="
	sizeField   = " size="
	digestField = " sha256digest="
	targetField = " link="

	// maxLine bounds a line with its newline: four bytes are the longest escape of one.
	maxLine = len("./") + 4*MaxPath + len(linkField+"0777"+targetField) + 4*MaxLink + len("\n")
)

// Entry is one line. Path is bytes, slash-separated, "." for the root.
type Entry struct {
	Path   string
	Mode   fs.FileMode // a directory, file or link, and nine permission bits; a link has all nine
	Size   int64       // of a file
	Digest [32]byte    // of a file, never zero
	Link   string      // of a link, never empty
}

// Compare orders paths as the dialect does: "." first, then byte by byte with '/' below every other byte.
func Compare[A, B ~string | ~[]byte](a A, b B) int {
	if rootA, rootB := string(a) == ".", string(b) == "."; rootA || rootB {
		switch {
		case rootA && rootB:
			return 0
		case rootA:
			return -1
		}
		return 1
	}
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return rank(a[i]) - rank(b[i])
		}
	}
	return len(a) - len(b)
}

func rank(c byte) int {
	if c == '/' {
		return -1
	}
	return int(c)
}

// invalid is why a text or an entry is refused.
type invalid string

func (e invalid) Error() string { return string(e) }
func (e invalid) Unwrap() error { return fs.ErrInvalid }

const (
	errHeader    = invalid("first line is not #mtree v2.0")
	errNewline   = invalid("last line has no newline")
	errLong      = invalid("path or line is too long")
	errNoRoot    = invalid("first entry is not the root directory")
	errPath      = invalid(`path is neither "." nor begins with "./"`)
	errComponent = invalid(`path has an empty, "." or ".." component`)
	errNUL       = invalid("NUL byte")
	errEscape    = invalid("not the canonical escape")
	errOrder     = invalid("paths are not sorted")
	errDuplicate = invalid("path is there already")
	errNoParent  = invalid("parent has no entry")
	errParent    = invalid("parent is not a directory")
	errType      = invalid("no type=dir, file or link followed by mode=")
	errMode      = invalid("mode is not four octal digits up to 0777")
	errLinkMode  = invalid("mode of a link is not 0777")
	errSize      = invalid("size is not a number in its shortest form")
	errDigest    = invalid("sha256digest is not 64 lower-case hexadecimal digits, or all zero")
	errLink      = invalid("no text of a link, or one over 4095 bytes")
	errFields    = invalid("fields beyond those of the type")
)

// sequence checks that every path may follow the one before it. The last path is all it needs: the entries between a directory and
// one of its children are beneath that directory, so a parent is the last entry or one of its ancestors, which were checked before.
type sequence struct {
	path []byte // of the last entry that was accepted; empty for the root
	dir  bool   // whether that is a directory
	next []byte // filled by the caller, then offered to accept
	any  bool   // whether anything may come next, since nothing is known of what came before
	some bool   // whether anything was accepted
}

// acceptRoot takes the root directory.
func (s *sequence) acceptRoot() error {
	if s.some {
		return errDuplicate
	}
	s.path, s.dir, s.some = s.path[:0], true, true
	return nil
}

// accept takes s.next, a path other than the root's.
func (s *sequence) accept(dir bool) error {
	if err := checkPath(s.next); err != nil {
		return err
	}
	switch {
	case s.some:
		if err := s.follows(); err != nil {
			return err
		}
	case !s.any:
		return errNoRoot
	}
	s.path, s.next = s.next, s.path
	s.dir, s.some = dir, true
	return nil
}

func (s *sequence) follows() error {
	same := 0
	for same < min(len(s.path), len(s.next)) && s.path[same] == s.next[same] {
		same++
	}
	switch {
	case same == len(s.next):
		if same == len(s.path) {
			return errDuplicate
		}
		return errOrder
	case same < len(s.path) && rank(s.path[same]) > rank(s.next[same]):
		return errOrder
	}
	// What is sorted after the last path and has its first bytes up to the parent's end is that path's child or beneath an ancestor.
	parent := max(bytes.LastIndexByte(s.next, '/'), 0)
	switch {
	case same < parent:
		return errNoParent
	case parent > 0 && len(s.path) == parent && !s.dir:
		return errParent
	}
	return nil
}

func checkPath(p []byte) error {
	if len(p) > MaxPath {
		return errLong
	}
	for begin, i := 0, 0; i <= len(p); i++ {
		if i < len(p) && p[i] != '/' {
			if p[i] == 0 {
				return errNUL
			}
			continue
		}
		switch string(p[begin:i]) {
		case "", ".", "..":
			return errComponent
		}
		begin = i + 1
	}
	return nil
}

func checkLink[T ~string | ~[]byte](text T) error {
	if len(text) == 0 || len(text) > MaxLink {
		return errLink
	}
	for i := range len(text) {
		if text[i] == 0 {
			return errNUL
		}
	}
	return nil
}

// plain reports whether c stands for itself; the others are three octal digits. The list is what all three readers take literally.
func plain(c byte) bool {
	const (
		digits  uint64 = 1<<10 - 1
		letters uint64 = 1<<26 - 1
		low            = digits<<'0' | 1<<'%' | 1<<'+' | 1<<',' | 1<<'-' | 1<<'.' | 1<<'/' | 1<<':'
		high           = letters<<('A'-64) | letters<<('a'-64) | 1<<('@'-64) | 1<<('_'-64) | 1<<('~'-64)
	)
	switch c >> 6 {
	case 0:
		return low>>c&1 != 0
	case 1:
		return high>>(c-64)&1 != 0
	}
	return false
}

func appendEscaped[T ~string | ~[]byte](dst []byte, text T) []byte {
	begin := 0
	for i := range len(text) {
		if c := text[i]; !plain(c) {
			dst = append(append(dst, text[begin:i]...), '\\', '0'+c>>6, '0'+c>>3&7, '0'+c&7)
			begin = i + 1
		}
	}
	return append(dst, text[begin:]...)
}

func appendUnescaped(dst, text []byte) ([]byte, error) {
	begin := 0
	for i := 0; i < len(text); i++ {
		if plain(text[i]) {
			continue
		}
		if text[i] != '\\' || len(text)-i < 4 {
			return dst, errEscape
		}
		a, b, c := text[i+1]-'0', text[i+2]-'0', text[i+3]-'0'
		decoded := a<<6 | b<<3 | c
		if a > 3 || b > 7 || c > 7 || plain(decoded) {
			return dst, errEscape
		}
		dst = append(append(dst, text[begin:i]...), decoded)
		i += 3
		begin = i + 1
	}
	return append(dst, text[begin:]...), nil
}
