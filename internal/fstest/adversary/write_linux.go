// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdstill.example/snapshot/internal/fstest"
)

const (
	chunk = 64 << 10
	page  = 4 << 10
)

// rewriter writes whole generations to one file.
type rewriter struct {
	name   string
	how    string
	reopen bool
	buf    []byte   // aligned to a page, for O_DIRECT
	f      *os.File // kept open without reopen
	held   []byte   // mapping, kept for mmap-hold
	late   *late    // the last page of buf, for stall
}

func newRewriter(name, how string, size int, reopen bool) (*rewriter, error) {
	if size < 8 {
		return nil, fmt.Errorf("--size %d: want at least 8", size)
	}
	buf, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	r := &rewriter{name: name, how: how, reopen: reopen, buf: buf}
	switch how {
	case "write", "chunks", "mmap", "mmap-hold":
	case "stall":
		if size%os.Getpagesize() != 0 {
			return nil, fmt.Errorf("--size %d: stall wants a multiple of %d", size, os.Getpagesize())
		}
		if r.buf, r.late, err = latePage(size, size-os.Getpagesize()); err != nil {
			return nil, err
		}
	case "direct":
		if size%page != 0 {
			return nil, fmt.Errorf("--size %d: O_DIRECT wants a multiple of %d", size, page)
		}
	default:
		return nil, fmt.Errorf("--how %s: unknown", how)
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	return r, errors.Join(f.Truncate(int64(size)), f.Close())
}

func (r *rewriter) write(gen uint64) error {
	if r.late == nil {
		fstest.TornFill(r.buf, gen)
	}
	if r.how == "mmap" || r.how == "mmap-hold" {
		return r.store()
	}
	if r.f == nil {
		flags := os.O_RDWR
		if r.how == "direct" {
			flags |= unix.O_DIRECT
		}
		var err error
		if r.f, err = os.OpenFile(r.name, flags, 0); err != nil {
			return err
		}
	}
	if r.late != nil {
		if err := r.writeLate(gen); err != nil {
			return err
		}
		return r.written()
	}
	piece := len(r.buf)
	if r.how == "chunks" {
		piece = chunk
	}
	for off := 0; off < len(r.buf); off += piece {
		if _, err := r.f.WriteAt(r.buf[off:min(off+piece, len(r.buf))], int64(off)); err != nil {
			return err
		}
	}
	return r.written()
}

func (r *rewriter) written() error {
	if !r.reopen {
		return nil
	}
	err := r.f.Close()
	r.f = nil
	return err
}

// stallFor is the longest stall of a write() that ends.
const stallFor = 2 * time.Millisecond

// writeLate is one write() that stands still before its last page.
func (r *rewriter) writeLate(gen uint64) error {
	content := fstest.TornContent(gen, len(r.buf))
	last := len(content) - len(r.late.page)
	copy(r.buf, content[:last])
	if err := r.late.lose(); err != nil {
		return err
	}
	written, err := r.late.begin(func() error {
		n, err := unix.Pwrite(int(r.f.Fd()), r.buf, 0)
		if err == nil && n < len(r.buf) {
			err = io.ErrShortWrite
		}
		return err
	})
	if err != nil {
		return err
	}
	time.Sleep(rand.N(stallFor))
	return errors.Join(r.late.serve(content[last:]), <-written)
}

func (r *rewriter) store() error {
	m := r.held
	if m == nil {
		f, err := os.OpenFile(r.name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		m, err = unix.Mmap(int(f.Fd()), 0, len(r.buf), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	if len(m) == 8 {
		// One word is a counter: half of it must not be seen.
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&m[0])), *(*uint64)(unsafe.Pointer(&r.buf[0])))
	}
	for off := 0; off < len(m) && len(m) > 8; off += page {
		copy(m[off:], r.buf[off:min(off+page, len(m))])
	}
	if r.how == "mmap-hold" {
		r.held = m
		return nil
	}
	return unix.Munmap(m)
}

func torn(a *attack, args []string) error {
	if a.size == 0 {
		a.size = 4 << 20
	}
	r, err := newRewriter(args[0], a.how, a.size, a.reopen)
	if err != nil {
		return err
	}
	if err := r.write(1); err != nil {
		return err
	}
	for gen := uint64(2); a.turn(); gen++ {
		if err := r.write(gen); err != nil {
			return err
		}
		a.report.Bytes += int64(a.size)
	}
	return nil
}

func pair(a *attack, args []string) (err error) {
	if a.size == 0 {
		a.size = 8
	}
	if a.how == "mmap" && !a.reopen {
		a.how = "mmap-hold"
	}
	change := (*rewriter).write
	if a.hide {
		h, remove, err := a.newHider(args)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, remove()) }()
		change = h.write
	}
	var files [2]*rewriter
	for i, name := range args {
		if files[i], err = newRewriter(name, a.how, a.size, a.reopen); err != nil {
			return err
		}
	}
	for gen := uint64(1); gen == 1 || a.turn(); gen++ {
		for _, f := range files {
			if err := change(f, gen); err != nil {
				return err
			}
			a.report.Bytes += int64(a.size)
		}
	}
	return nil
}

// hider makes and removes a hard link of each file before and after each change, and puts mtime back: all that ever moves is
// what moves too when nothing is changed.
type hider struct {
	names []string
	link  string
	times []unix.Timespec
}

func (a *attack) newHider(names []string) (*hider, func() error, error) {
	side, remove, err := a.side(names[0])
	if err != nil {
		return nil, nil, err
	}
	return &hider{names, filepath.Join(side, "link"), make([]unix.Timespec, 2)}, remove, nil
}

func (h *hider) write(r *rewriter, gen uint64) error {
	return errors.Join(h.noise(), r.write(gen), unix.UtimesNanoAt(unix.AT_FDCWD, r.name, h.times, 0), h.noise())
}

func (h *hider) noise() error {
	for _, name := range h.names {
		if err := errors.Join(os.Link(name, h.link), os.Remove(h.link)); err != nil {
			return err
		}
	}
	return nil
}

func grow(a *attack, args []string) error {
	if a.size == 0 {
		a.size = chunk
	}
	f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	piece, size := make([]byte, a.size), int64(0)
	for a.turn() {
		switch {
		case size+int64(len(piece)) <= a.max:
		case a.again:
			if err := f.Truncate(0); err != nil {
				return err
			}
			size = 0
		default:
			a.rest()
			return nil
		}
		n, err := f.Write(piece)
		size += int64(n)
		a.report.Bytes += int64(n)
		if err != nil {
			return err
		}
	}
	return nil
}

// recycle writes at most a page at once, so that a reader sees nothing or all of it.
func recycle(a *attack, args []string) error {
	if a.size == 0 {
		a.size = page
	}
	var files []recycled
	for _, name := range args {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err != nil {
			return err
		}
		files = append(files, recycled{name, []unix.Timespec{st.Atim, st.Mtim}})
	}
	for gen := uint64(1); a.turn(); gen++ {
		for _, f := range files {
			if err := f.anew(fstest.TornContent(gen, a.size)); err != nil {
				return err
			}
			a.report.Bytes += int64(a.size)
		}
	}
	return nil
}

type recycled struct {
	name  string
	times []unix.Timespec
}

func (r *recycled) anew(content []byte) error {
	if err := os.Remove(r.name); err != nil {
		return err
	}
	f, err := os.OpenFile(r.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close(), unix.UtimesNanoAt(unix.AT_FDCWD, r.name, r.times, 0))
}
