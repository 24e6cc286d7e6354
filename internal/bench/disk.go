//go:build linux

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// disk is where the copying is done.
type disk struct {
	kind    string
	work    string // removed at the end
	at      string
	mounted bool
}

// newDisk makes a file system with room for each of the trees and two copies of it.
func newDisk(parent, kind string, todo []*workload) (*disk, error) {
	work, err := os.MkdirTemp(parent, "holdstill-bench-*")
	if err != nil {
		return nil, err
	}
	d := &disk{kind: kind, work: work, at: filepath.Join(work, "disk")}
	if err := errors.Join(os.Mkdir(d.at, 0o755), d.fill(todo)); err != nil {
		return nil, errors.Join(err, d.release())
	}
	return d, nil
}

func (d *disk) fill(todo []*workload) error {
	if d.kind == "none" {
		return nil
	}
	var size, inodes int64
	for _, w := range todo {
		size = max(size, 3*(w.bytes+4096*w.entries())+1<<30)
		inodes = max(inodes, 3*w.entries()+10_000)
	}
	size -= size % 4096
	image, data := filepath.Join(d.work, "image"), ""
	var mkfs []string
	switch d.kind {
	case "ext4":
		// Tables that are filled in the background would disturb the first rounds.
		mkfs, data = []string{"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", "-N", fmt.Sprint(inodes), image}, "noinit_itable"
	case "xfs":
		mkfs = []string{"mkfs.xfs", "-q", "-f", "-K", image}
	case "btrfs":
		mkfs = []string{"mkfs.btrfs", "-q", "-f", "-K", image}
	default:
		return errors.New("no such file system: ext4, xfs, btrfs or none")
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(image, size); err != nil {
		return err
	}
	if _, err := tool(mkfs...); err != nil {
		return err
	}
	return d.mount(image, data)
}

// mount mounts the image in a namespace of this thread and its children, and leaves nothing but the mount itself to hold it: if
// this process is killed, all of it goes.
func (d *disk) mount(image, data string) error {
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		return fmt.Errorf("a mount namespace of one's own needs root (or -fs none): %w", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	loop, err := tool("losetup", "--find", "--show", image)
	if err != nil {
		return err
	}
	err = syscall.Mount(loop, d.at, d.kind, 0, data)
	d.mounted = err == nil
	_, detachErr := tool("losetup", "--detach", loop) // with the last user of it
	return errors.Join(err, detachErr, os.Remove(image))
}

func (d *disk) release() error {
	var err error
	if d.mounted {
		err = syscall.Unmount(d.at, syscall.MNT_DETACH)
	}
	return errors.Join(err, os.RemoveAll(d.work))
}

// clear removes a tree and lets the disk come to rest.
func (d *disk) clear(names ...string) error {
	var errs []error
	for _, name := range names {
		errs = append(errs, removeAll(filepath.Join(d.at, name)))
	}
	return errors.Join(append(errs, sync(d.at))...)
}

// sync waits until the file system of dir has written everything.
func sync(dir string) error {
	_, err := tool("sync", "-f", dir)
	return err
}

// removeAll opens directories to their owner first, who may not be root: snapshots are read-only.
func removeAll(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	_, err := tool("chmod", "-R", "u+rwx", dir)
	return errors.Join(err, os.RemoveAll(dir))
}

func tool(args ...string) (string, error) {
	out, err := exec.Command(args[0], args[1:]...).Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%s: %w: %s", args[0], err, bytes.TrimSpace(failed.Stderr))
	}
	return strings.TrimSpace(string(out)), err
}
