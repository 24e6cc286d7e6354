// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"holdstill.example/snapshot/internal/fstest"
)

// keep ends only with its standard input: an interrupt of the terminal reaches it too, and must not leave mounts behind.
func keep(args []string) (err error) {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	flags := flag.NewFlagSet("keep", flag.ContinueOnError)
	all := flags.Bool("all", false, "remove DIR and all it holds at the end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("usage: adversary keep [--all] DIR [KIND...]")
	}
	dir := flags.Arg(0)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if *all {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	for _, kind := range flags.Args()[1:] {
		release, mountErr := fstest.MountAt(filepath.Join(dir, kind), kind)
		if mountErr != nil {
			answer := "error:"
			if errors.Is(mountErr, errors.ErrUnsupported) {
				answer = "skip:"
			}
			fmt.Printf("%s %q\n", answer, mountErr.Error())
			return mountErr
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
