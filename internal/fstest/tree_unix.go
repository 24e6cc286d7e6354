//go:build unix

// SPDX-License-Identifier: Apache-2.0

package fstest

import "golang.org/x/sys/unix"

func mkfifo(name string) error { return unix.Mkfifo(name, 0o644) }

// mksocket needs no listener; systems that keep mknod to root refuse it.
func mksocket(name string) error { return unix.Mknod(name, unix.S_IFSOCK|0o644, 0) }
