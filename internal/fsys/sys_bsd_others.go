//go:build freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"errors"

	"golang.org/x/sys/unix"
)

func mtime(s *unix.Stat_t) Stamp { return stamp(s.Mtim) }
func ctime(s *unix.Stat_t) Stamp { return stamp(s.Ctim) }

func fsync(h int) error { return unix.Fsync(h) }

func renameNoReplace(oldDir int, oldName string, dir int, name string) error {
	return errors.ErrUnsupported
}

// Clone is not to be had.
func (c *Calls) Clone(dst, src Handle) error { return errors.ErrUnsupported }
