//go:build linux && (amd64 || arm64 || loong64 || riscv64 || s390x)

// SPDX-License-Identifier: Apache-2.0

package fstest

import "golang.org/x/sys/unix"

// callName returns the name of a call that looks at files, reads, writes or changes them. Those that only give a handle back
// or ask what one can do are none: they are no moment of their own.
func callName(number uint64) (string, bool) {
	switch number {
	case unix.SYS_OPENAT:
		return "openat", true
	case unix.SYS_OPENAT2:
		return "openat2", true
	case unix.SYS_STATX:
		return "statx", true
	case unix.SYS_NEWFSTATAT:
		return "newfstatat", true
	case unix.SYS_FSTAT:
		return "fstat", true
	case unix.SYS_STATFS:
		return "statfs", true
	case unix.SYS_FSTATFS:
		return "fstatfs", true
	case unix.SYS_READ:
		return "read", true
	case unix.SYS_PREAD64:
		return "pread64", true
	case unix.SYS_READV:
		return "readv", true
	case unix.SYS_PREADV:
		return "preadv", true
	case unix.SYS_PREADV2:
		return "preadv2", true
	case unix.SYS_WRITE:
		return "write", true
	case unix.SYS_PWRITE64:
		return "pwrite64", true
	case unix.SYS_COPY_FILE_RANGE:
		return "copy_file_range", true
	case unix.SYS_SENDFILE:
		return "sendfile", true
	case unix.SYS_SPLICE:
		return "splice", true
	case unix.SYS_IOCTL:
		return "ioctl", true
	case unix.SYS_FCNTL:
		return "fcntl", true
	case unix.SYS_FLOCK:
		return "flock", true
	case unix.SYS_LSEEK:
		return "lseek", true
	case unix.SYS_SYNC_FILE_RANGE:
		return "sync_file_range", true
	case unix.SYS_FSYNC:
		return "fsync", true
	case unix.SYS_FDATASYNC:
		return "fdatasync", true
	case unix.SYS_SYNCFS:
		return "syncfs", true
	case unix.SYS_GETDENTS64:
		return "getdents64", true
	case unix.SYS_READLINKAT:
		return "readlinkat", true
	case unix.SYS_FALLOCATE:
		return "fallocate", true
	case unix.SYS_FTRUNCATE:
		return "ftruncate", true
	case unix.SYS_FCHMOD:
		return "fchmod", true
	case unix.SYS_FCHMODAT:
		return "fchmodat", true
	case unix.SYS_UTIMENSAT:
		return "utimensat", true
	case unix.SYS_MKDIRAT:
		return "mkdirat", true
	case unix.SYS_SYMLINKAT:
		return "symlinkat", true
	case unix.SYS_LINKAT:
		return "linkat", true
	case unix.SYS_RENAMEAT2:
		return "renameat2", true
	case unix.SYS_UNLINKAT:
		return "unlinkat", true
	}
	return "", false
}
