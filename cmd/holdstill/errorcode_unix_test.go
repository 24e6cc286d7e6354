//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestErrorCodesOfUnix(t *testing.T) {
	t.Parallel()
	for errno, want := range map[syscall.Errno]string{
		syscall.ENOSPC: "space",
		syscall.EDQUOT: "space",
		syscall.EROFS:  "permission",
		syscall.EPERM:  "permission",
		syscall.EIO:    "io",
	} {
		assert.Equal(t, want, codeOf(&fs.PathError{Op: "write", Path: "p", Err: errno}), "%v", errno)
	}
}
