// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdstill.example/snapshot/internal/fstest"
)

// pending has the kernel pin the pages of the file by way of a mapping, and wait before it puts anything there. With the
// mapping and the descriptor gone nothing tells of the transfer, and no fault stamps the file when it lands. The transfer is
// process_vm_writev, because its other side is memory of our own; a read with O_DIRECT or RDMA pins pages in the same way.
func pending(a *attack, args []string) error {
	f, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	size := int(fi.Size())
	if size == 0 || size%os.Getpagesize() != 0 || size > 4<<20 { // what is pinned at once
		return fmt.Errorf("%s: %d bytes: want up to 4 MiB of whole pages", args[0], size)
	}
	target, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	from, late, err := latePage(size, 0)
	if err != nil {
		return err
	}
	content := fstest.TornContent(2, size)
	copy(from[len(late.page):], content[len(late.page):])
	landed, err := late.begin(func() error {
		local := []unix.Iovec{{Base: &from[0]}}
		local[0].SetLen(size)
		remote := []unix.RemoteIovec{{Base: uintptr(address(target)), Len: size}}
		n, err := unix.ProcessVMWritev(os.Getpid(), local, remote, 0)
		if err == nil && n != size {
			err = fmt.Errorf("process_vm_writev: %d of %d bytes", n, size)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Munmap(target), f.Close()); err != nil {
		return err
	}
	a.report.Turns, a.report.Bytes = 1, int64(size)
	a.rest()
	return errors.Join(late.serve(content[:len(late.page)]), <-landed)
}

// extIOCMoveExt is EXT4_IOC_MOVE_EXT of fs/ext4/ext4.h, _IOWR('f', 15, struct move_extent).
const extIOCMoveExt = 0xc028660f

type moveExtent struct {
	_, donor                       uint32
	from, donorFrom, blocks, moved uint64
}

// moveExt gives the blocks of the file away as the donor of a defragmentation, and gets those of another file, or holes.
func moveExt(a *attack, args []string) (err error) {
	side, remove, err := a.side(args[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	fi, err := os.Stat(args[0])
	if err != nil {
		return err
	}
	fragmented := filepath.Join(side, "fragmented")
	if err := os.WriteFile(fragmented, fstest.TornContent(2, int(fi.Size())), 0o600); err != nil {
		return err
	}
	if err := exchangeExtents(fragmented, fragmented, 0); err != nil { // only to see that the file system has it
		return err
	}
	a.report.Turns = 1
	a.rest()
	a.report.Bytes = fi.Size()
	return exchangeExtents(fragmented, args[0], fi.Size())
}

// exchangeExtents makes whoever reads donor from now on read other bytes: what memory has of it goes too.
func exchangeExtents(name, donorName string, size int64) (err error) {
	var files [2]*os.File
	for i, name := range []string{name, donorName} {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if err := f.Sync(); err != nil {
			return err
		}
		files[i] = f
	}
	var vfs unix.Statfs_t
	if err := unix.Fstatfs(int(files[0].Fd()), &vfs); err != nil {
		return err
	}
	forget := func() error {
		return errors.Join(unix.Fadvise(int(files[0].Fd()), 0, 0, unix.FADV_DONTNEED), unix.Fadvise(int(files[1].Fd()), 0, 0, unix.FADV_DONTNEED))
	}
	if vfs.Type != unix.EXT4_SUPER_MAGIC {
		return fmt.Errorf("EXT4_IOC_MOVE_EXT: %w", errors.ErrUnsupported)
	}
	for done, all := uint64(0), uint64(size/int64(vfs.Bsize)); done < all; {
		if err := forget(); err != nil {
			return err
		}
		m := moveExtent{donor: uint32(files[1].Fd()), from: done, donorFrom: done, blocks: all - done}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, files[0].Fd(), extIOCMoveExt, uintptr(unsafe.Pointer(&m)))
		done += m.moved
		if errno == unix.EBUSY { // a page that the journal still holds
			errno = 0
			if err := unix.Syncfs(int(files[0].Fd())); err != nil {
				return err
			}
		}
		if errno != 0 {
			return fmt.Errorf("EXT4_IOC_MOVE_EXT: after %d of %d blocks: %w", done, all, errno)
		}
	}
	return forget()
}
