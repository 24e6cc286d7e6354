//go:build unix

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/signal"
	"syscall"
)

func deadly() []os.Signal {
	return []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
}

// dieOf ends the process by sig, so that a shell loop around it ends too.
func dieOf(sig os.Signal) {
	number := sig.(syscall.Signal)
	// The first process of a container never dies of a signal that it sends to itself.
	if os.Getpid() != 1 {
		signal.Reset(sig)
		_ = syscall.Kill(os.Getpid(), number)
		select {} // until it arrives
	}
	os.Exit(128 + int(number))
}
