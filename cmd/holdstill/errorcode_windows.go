// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"syscall"
)

const (
	errorWriteProtect   = syscall.Errno(19)
	errorHandleDiskFull = syscall.Errno(39)
	errorDiskFull       = syscall.Errno(112)
)

func noSpace(err error) bool {
	return errors.Is(err, errorDiskFull) || errors.Is(err, errorHandleDiskFull)
}

func readOnly(err error) bool { return errors.Is(err, errorWriteProtect) }
