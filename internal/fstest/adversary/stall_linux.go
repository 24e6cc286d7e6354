// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/userfaultfd.h; the same on all architectures.
const (
	uffdAPI      = 0xaa
	uffdioAPI    = 0xc018aa3f
	uffdioReg    = 0xc020aa00
	uffdMissing  = 1
	uffdEventLen = 32
)

type uffdioAPIArg struct{ api, features, ioctls uint64 }

type uffdioRegister struct{ start, len, mode, ioctls uint64 }

// stall writes two pages, the second of which is missing and served by nobody: the kernel waits for it inside write() with the
// inode locked. Closing the userfaultfd serves it with zeros.
func stall(a *attack, args []string) error {
	f, err := os.OpenFile(args[0], os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	size := os.Getpagesize()
	m, err := unix.Mmap(-1, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	m[0] = 1
	fault, err := userfaultfd(m[size:])
	if err != nil {
		return err
	}
	written := make(chan error, 1)
	faulted := make(chan error, 1)
	go func() {
		_, err := unix.Pwrite(int(f.Fd()), m, 0)
		written <- err
	}()
	go func() {
		event := make([]byte, uffdEventLen)
		_, err := unix.Read(fault, event)
		faulted <- err
	}()
	select {
	case err = <-faulted:
	case err = <-written:
		err = errors.Join(errors.New("write did not stall"), err)
	}
	if err != nil {
		return err
	}
	a.report.Turns = 1
	a.rest()
	if err := unix.Close(fault); err != nil {
		return err
	}
	a.report.Bytes = int64(len(m))
	return <-written
}

func userfaultfd(m []byte) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, fmt.Errorf("userfaultfd: %w", errno)
	}
	api := uffdioAPIArg{api: uffdAPI}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdioAPI, uintptr(unsafe.Pointer(&api))); errno != 0 {
		return -1, fmt.Errorf("UFFDIO_API: %w", errno)
	}
	reg := uffdioRegister{start: uint64(uintptr(unsafe.Pointer(&m[0]))), len: uint64(len(m)), mode: uffdMissing}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdioReg, uintptr(unsafe.Pointer(&reg))); errno != 0 {
		return -1, fmt.Errorf("UFFDIO_REGISTER: %w", errno)
	}
	return int(fd), nil
}
