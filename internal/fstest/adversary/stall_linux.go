// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stall writes two pages, the second of which is missing and served by nobody: the kernel waits for it inside write() with the
// inode locked.
func stall(a *attack, args []string) error {
	f, err := os.OpenFile(args[0], os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	m, late, err := latePage(2*os.Getpagesize(), os.Getpagesize())
	if err != nil {
		return err
	}
	m[0] = 1
	written, err := late.begin(func() error {
		_, err := unix.Pwrite(int(f.Fd()), m, 0)
		return err
	})
	if err != nil {
		return err
	}
	a.report.Turns = 1
	a.rest()
	if err := late.serve(make([]byte, os.Getpagesize())); err != nil {
		return err
	}
	a.report.Bytes = int64(len(m))
	return <-written
}

// late is a page of memory that is missing until it is served; the kernel, too, waits for it, at a place that the owner of
// the page chose.
type late struct {
	uffd int
	page []byte
}

// From linux/userfaultfd.h; the same on all architectures.
const (
	uffdAPI      = 0xaa
	uffdioAPI    = 0xc018aa3f
	uffdioReg    = 0xc020aa00
	uffdioCopy   = 0xc028aa03
	uffdMissing  = 1
	uffdEventLen = 32
)

type (
	uffdioAPIArg   struct{ api, features, ioctls uint64 }
	uffdioRegister struct{ start, len, mode, ioctls uint64 }
	uffdioCopyArg  struct{ dst, src, len, mode, copied uint64 }
)

// latePage returns memory of which the page at off is late.
func latePage(size, off int) (m []byte, l *late, err error) {
	m, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, err
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		return nil, nil, fmt.Errorf("userfaultfd: %w", errno)
	}
	l = &late{int(fd), m[off : off+os.Getpagesize()]}
	api := uffdioAPIArg{api: uffdAPI}
	if err := l.ioctl("UFFDIO_API", uffdioAPI, unsafe.Pointer(&api)); err != nil {
		return nil, nil, err
	}
	reg := uffdioRegister{start: address(l.page), len: uint64(len(l.page)), mode: uffdMissing}
	return m, l, l.ioctl("UFFDIO_REGISTER", uffdioReg, unsafe.Pointer(&reg))
}

// begin runs a system call that needs the page and returns when the call stands still.
func (l *late) begin(call func() error) (ended <-chan error, err error) {
	result, faulted := make(chan error, 1), make(chan error, 1)
	go func() { result <- call() }()
	go func() {
		_, err := unix.Read(l.uffd, make([]byte, uffdEventLen))
		faulted <- err
	}()
	select {
	case err = <-faulted:
	case err = <-result:
		err = errors.Join(errors.New("the call did not stall"), err)
	}
	return result, err
}

// serve lets the call go on.
func (l *late) serve(content []byte) error {
	arg := uffdioCopyArg{dst: address(l.page), src: address(content), len: uint64(len(l.page))}
	err := l.ioctl("UFFDIO_COPY", uffdioCopy, unsafe.Pointer(&arg))
	runtime.KeepAlive(content)
	return err
}

// lose makes the page late again.
func (l *late) lose() error { return unix.Madvise(l.page, unix.MADV_DONTNEED) }

func (l *late) ioctl(name string, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l.uffd), request, uintptr(arg)); errno != 0 {
		return fmt.Errorf("%s: %w", name, errno)
	}
	return nil
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }
