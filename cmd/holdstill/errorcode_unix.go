//go:build unix

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"syscall"
)

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// readOnly is not fs.ErrPermission to the syscall package, though it is to whoever reads the code.
func readOnly(err error) bool { return errors.Is(err, syscall.EROFS) }
