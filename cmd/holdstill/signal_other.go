//go:build !unix

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"syscall"
)

func deadly() []os.Signal {
	return []os.Signal{os.Interrupt, syscall.SIGTERM} // on Windows also the closing of the console, a logoff and a shutdown
}

// dieOf ends the process: there is no death by signal here.
func dieOf(os.Signal) { os.Exit(exitFailed) }
