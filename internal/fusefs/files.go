//go:build linux

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// fileSystem holds a tree that never changes but by "change". The low byte of a node's number is its index in nodes; what is above
// is another number for the same node.
type fileSystem struct {
	fuse.RawFileSystem // answers ENOSYS

	lies  state
	nodes []node
	born  time.Time
}

type node struct {
	name    string
	parent  uint64
	mode    uint32
	content []byte // of a link its text
}

const root = fuse.FUSE_ROOT_ID

func newFileSystem() *fileSystem {
	// Times long past are settled at once.
	born := time.Date(2020, 1, 1, 0, 0, 0, 1, time.UTC)
	fs := &fileSystem{RawFileSystem: fuse.NewDefaultRawFileSystem(), born: born, nodes: []node{
		root: {mode: syscall.S_IFDIR | 0o755},
		{"a", root, syscall.S_IFREG | 0o644, []byte("hello")},
		{"big", root, syscall.S_IFREG | 0o644, bytes.Repeat([]byte("0123456789abcde\n"), 300<<10/16)},
		{"d", root, syscall.S_IFDIR | 0o755, nil},
		{"l", root, syscall.S_IFLNK | 0o777, []byte("a")},
		{"b", 4, syscall.S_IFREG | 0o755, []byte("other")},
	}}
	fs.lies.set(lies{})
	fs.lies.now.changedAt = born
	return fs
}

func (fs *fileSystem) node(id uint64) *node { return &fs.nodes[id&0xff] }

func (fs *fileSystem) content(l *lies, n *node) []byte {
	if n.mode&syscall.S_IFMT != syscall.S_IFREG {
		return n.content
	}
	changed := bytes.Clone(n.content)
	for i := range changed {
		changed[i] += l.generation
	}
	return changed
}

// attr is one look at a node.
func (fs *fileSystem) attr(id uint64, l *lies, out *fuse.Attr) {
	n := fs.node(id)
	at := l.changedAt
	switch {
	case l.future:
		at = time.Now().AddDate(1, 0, 0)
	case l.now:
		at = time.Now()
	}
	*out = fuse.Attr{Ino: id, Mode: n.mode, Size: uint64(len(n.content)), Nlink: 1, Blksize: 4096}
	out.SetTimes(&at, &at, &at)
	if n.mode&syscall.S_IFMT == syscall.S_IFREG {
		out.Size = uint64(max(int64(out.Size)+l.size, 0))
		if l.types && l.looks%2 == 0 {
			out.Mode = syscall.S_IFDIR | 0o755
		}
	}
	out.Blocks = (out.Size + 511) / 512
	if l.inodes && id != root {
		out.Ino = l.looks<<8 | id&0xff
	}
}

func (l *lies) valid() time.Duration {
	if l.cached {
		return time.Hour
	}
	return 0
}

func (fs *fileSystem) String() string { return "fusefs" }

func (fs *fileSystem) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	l, status := fs.lies.enter("lookup")
	if !status.Ok() {
		return status
	}
	for i := range fs.nodes {
		if fs.nodes[i].name != name || fs.nodes[i].parent != in.NodeId&0xff || i <= root {
			continue
		}
		out.NodeId = uint64(i)
		if l.nodes {
			out.NodeId |= l.looks << 8
		}
		out.SetEntryTimeout(l.valid())
		out.SetAttrTimeout(l.valid())
		fs.attr(out.NodeId, &l, &out.Attr)
		return fuse.OK
	}
	return fuse.ENOENT
}

func (fs *fileSystem) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	l, status := fs.lies.enter("getattr")
	out.SetTimeout(l.valid())
	fs.attr(in.NodeId, &l, &out.Attr)
	return status
}

func (fs *fileSystem) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	l, status := fs.lies.enter("open")
	if in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return fuse.EROFS
	}
	if l.direct {
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	}
	return status
}

func (fs *fileSystem) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	l, status := fs.lies.enter("read")
	content := fs.content(&l, fs.node(in.NodeId))
	from := min(int(in.Offset), len(content))
	want := len(buf)
	if l.short {
		want = (want + 1) / 2
	}
	return fuse.ReadResultData(content[from:min(from+want, len(content))]), status
}

func (fs *fileSystem) Readlink(_ <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	_, status := fs.lies.enter("readlink")
	return fs.node(in.NodeId).content, status
}

func (fs *fileSystem) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status {
	_, status := fs.lies.enter("opendir")
	return status
}

func (fs *fileSystem) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	l, status := fs.lies.enter("readdir")
	if !status.Ok() {
		return status
	}
	entries := fs.list(in.NodeId, l.list)
	for at := in.Offset; ; at++ {
		var e fuse.DirEntry
		switch {
		case at < uint64(len(entries)):
			e = entries[at]
		case l.list == "endless" && in.NodeId == root:
			e = fuse.DirEntry{Name: fmt.Sprint("n", at), Mode: syscall.S_IFREG}
		case l.list == "loop" && in.NodeId == root:
			e = entries[at%uint64(len(entries))]
		default:
			return fuse.OK
		}
		e.Off = at + 1
		if !out.AddDirEntry(e) {
			return fuse.OK
		}
	}
}

func (fs *fileSystem) list(id uint64, how string) (entries []fuse.DirEntry) {
	add := func(name string, mode uint32) {
		entries = append(entries, fuse.DirEntry{Name: name, Mode: mode})
	}
	add(".", syscall.S_IFDIR)
	add("..", syscall.S_IFDIR)
	for i, n := range fs.nodes {
		if i > root && n.parent == id&0xff {
			add(n.name, n.mode)
		}
	}
	if id != root {
		return entries
	}
	switch how {
	case "twice":
		add("a", syscall.S_IFREG)
	case "dotdot":
		add("..", syscall.S_IFDIR)
	case "slash":
		add("d/b", syscall.S_IFREG)
	case "empty":
		add("", syscall.S_IFREG)
	case "nul":
		add("a\x00b", syscall.S_IFREG)
	}
	return entries
}

func (fs *fileSystem) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	_, status := fs.lies.enter("statfs")
	out.NameLen, out.Bsize = 255, 4096
	return status
}
