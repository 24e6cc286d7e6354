// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cname holds a name for the kernel on the stack of its caller: x/sys copies each to the heap, which would be four of every five
// allocations of a large copy. No file system of Linux has longer names; a path can be longer.
type cname [256]byte

// set returns where name is, with a NUL behind it.
func (c *cname) set(name string) (*byte, error) {
	if strings.IndexByte(name, 0) >= 0 {
		return nil, unix.EINVAL
	}
	if len(name) >= len(c) {
		return unix.BytePtrFromString(name)
	}
	copy(c[:], name)
	c[len(name)] = 0
	return &c[0], nil
}

func openat(dir int, name string, flags int, mode uint32) (int, error) {
	var c cname
	p, err := c.set(name)
	if err != nil {
		return -1, err
	}
	fd, _, e := unix.Syscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(p)), uintptr(flags|unix.O_LARGEFILE), uintptr(mode), 0, 0)
	if e != 0 {
		return -1, e
	}
	return int(fd), nil
}

func mkdirat(dir int, name string, mode uint32) error {
	return named(unix.SYS_MKDIRAT, dir, name, mode)
}

func fchmodat(dir int, name string, mode uint32) error {
	return named(unix.SYS_FCHMODAT, dir, name, mode)
}

// named makes a call that wants a directory, a name in it and a mode.
func named(call uintptr, dir int, name string, mode uint32) error {
	var c cname
	p, err := c.set(name)
	if err != nil {
		return err
	}
	if _, _, e := unix.Syscall(call, uintptr(dir), uintptr(unsafe.Pointer(p)), uintptr(mode)); e != 0 {
		return e
	}
	return nil
}

func statxat(dir int, name string, flags int, x *unix.Statx_t) error {
	var c cname
	p, err := c.set(name)
	if err != nil {
		return err
	}
	_, _, e := unix.Syscall6(unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(p)), uintptr(flags), statMask, uintptr(unsafe.Pointer(x)), 0)
	if e != 0 {
		return e
	}
	return nil
}

// eachName yields the names in what getdents64 wrote: inode, offset, length of the record, type, name and NUL. The names share
// one string, since a copy of each would be an allocation a file.
func eachName(entries []byte, yield func(name string) error) error {
	const lengthAt, nameAt = 16, 19
	text := string(entries)
	for len(entries) > nameAt {
		length := int(binary.NativeEndian.Uint16(entries[lengthAt:]))
		if length <= nameAt || length > len(entries) {
			return unix.EIO
		}
		end := bytes.IndexByte(entries[nameAt:length], 0)
		if end < 0 {
			return unix.EIO
		}
		name := text[nameAt : nameAt+end]
		entries, text = entries[length:], text[length:]
		if name == "." || name == ".." {
			continue
		}
		if err := yield(name); err != nil {
			return err
		}
	}
	return nil
}
