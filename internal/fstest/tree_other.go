//go:build !unix

// SPDX-License-Identifier: Apache-2.0

package fstest

import "errors"

func mkfifo(string) error { return errors.ErrUnsupported }

func mksocket(string) error { return errors.ErrUnsupported }
