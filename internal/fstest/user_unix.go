//go:build unix

// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"os"
	"syscall"
)

// nobody owns nothing on common systems.
const nobody = 65534

// NeedRoot skips the test for an ordinary user.
func NeedRoot(t TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("needs root")
	}
}

// NotRoot skips the test for root, whom no permission stops.
func NotRoot(t TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		t.Skipf("needs an ordinary user")
	}
}

// Unprivileged returns what makes a child process an ordinary user's: user and group 65534 without other groups if we are root,
// else ourselves. The program must lie where that user gets in; what go test builds does not.
func Unprivileged(t TB) *syscall.SysProcAttr {
	t.Helper()
	if os.Geteuid() != 0 {
		return &syscall.SysProcAttr{}
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}
