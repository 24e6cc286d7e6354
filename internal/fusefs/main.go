//go:build linux

// SPDX-License-Identifier: Apache-2.0

// Fusefs is a small read-only FUSE file system that lies when it is told to. It is a module of its own, so that nobody who uses the
// package gets its dependency, and a process of its own, because a program that waits for itself waits for ever.
//
//	fusefs DIR
//
// It mounts itself at DIR, prints "ready" and then answers each line on its standard input with a line, when it is in force. At the
// end of its standard input it unmounts DIR and ends. In the beginning it is honest; lies add up:
//
//	honest           forget all lies, and let go of every call that hangs
//	inodes           every look at a file shows another inode number
//	nodes            every look-up of a name finds another inode, as where a server forgets
//	now | future     every look shows times of this moment | of next year
//	size N           sizes are N bytes more than there are, or less
//	type             every second look at a file shows a directory
//	direct           reads go to the server, not to the page cache
//	short            a read gets half of what it asked for
//	cached           the kernel may keep what it saw for an hour
//	frozen           "change" moves no time
//	slow D           each read takes the duration D
//	hang OP          the call never ends
//	fail OP N ERRNO  the N-th call from now on fails with that number
//	fired            answers "fired true" if that call came
//	change           not a lie: every file has other contents of the same size, and its times, long past, are a second later
//	list HOW         the root's listing has, besides the files: twice (one of them again), dotdot, slash, empty or nul (such a
//	                 name), endless (more names without end) or loop (the same names without end)
//
// OP is one of lookup, getattr, open, read, readlink, opendir, readdir and statfs.
package main

import (
	"bufio"
	"fmt"
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: fusefs DIR")
		os.Exit(2)
	}
	if err := serve(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "fusefs:", err)
		os.Exit(1)
	}
}

func serve(dir string) error {
	fs := newFileSystem()
	server, err := fuse.NewServer(fs, dir, &fuse.MountOptions{
		AllowOther:         os.Geteuid() == 0,
		DirectMount:        true,
		DisableReadDirPlus: true, // its replies would fill caches beside the look-ups that are lied about
		FsName:             "fusefs",
		Name:               "fusefs",
	})
	if err != nil {
		return err
	}
	go server.Serve()
	if err := server.WaitMount(); err != nil {
		return err
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		answer, err := fs.command(lines.Text())
		if err != nil {
			answer = "error: " + err.Error()
		}
		fmt.Println(answer)
	}
	fs.lies.set(lies{})
	if err := server.Unmount(); err != nil { // somebody still holds a file of it, whom a killed test left
		return syscall.Unmount(dir, syscall.MNT_DETACH)
	}
	return nil
}
