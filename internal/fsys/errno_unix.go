//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// IsOtherType reports whether an open failed because the name is a link, a socket, or a device without a driver.
func IsOtherType(err error) bool {
	return isAny(err, ErrIsLink, unix.ELOOP, unix.ENXIO, unix.ENODEV)
}

// IsStale reports whether a server knows the handle of a file no more: the name is another file, or none.
func IsStale(err error) bool { return errors.Is(err, unix.ESTALE) }

// IsGone reports whether a call by name failed because the name is not, or not any more, what a look showed.
func IsGone(err error) bool {
	return IsOtherType(err) || IsStale(err) || isAny(err, unix.ENOENT, unix.ENOTDIR)
}

// IsBlocked reports whether a read failed because of somebody's mandatory lock.
func IsBlocked(err error) bool { return errors.Is(err, unix.EAGAIN) }

// IsLocked reports whether Lock failed because somebody holds the lock.
func IsLocked(err error) bool { return errors.Is(err, unix.EWOULDBLOCK) }

// IsNotEmpty reports whether Rmdir failed because the directory holds something.
func IsNotEmpty(err error) bool { return isAny(err, unix.ENOTEMPTY, unix.EEXIST) }

func isAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}
