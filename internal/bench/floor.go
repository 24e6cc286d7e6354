//go:build linux

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// bareCopy makes the fewest system calls with which a tree can be copied, and trusts everything: no look at a file, no times, no
// proof.
func bareCopy(_ context.Context, dst, src string) error {
	in, err := syscall.Open(src, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: src, Err: err}
	}
	defer syscall.Close(in)
	const here = -100 // AT_FDCWD
	out, err := makeDir(here, dst)
	if err != nil {
		return fmt.Errorf("%s: %w", dst, err)
	}
	defer syscall.Close(out)
	return bareDir(out, in, make([]byte, 256<<10))
}

// again repeats a call that a signal of the Go runtime interrupted.
func again(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != syscall.EINTR {
			return n, err
		}
	}
}

func openAt(dir int, name string, flags int, mode uint32) (int, error) {
	return again(func() (int, error) {
		return syscall.Openat(dir, name, flags|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, mode)
	})
}

func makeDir(dir int, name string) (int, error) {
	if err := syscall.Mkdirat(dir, name, 0o700); err != nil {
		return -1, err
	}
	return openAt(dir, name, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
}

func bareDir(out, in int, buf []byte) error {
	var names []byte
	for {
		n, err := again(func() (int, error) { return syscall.Getdents(in, buf) })
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		names = append(names, buf[:n]...)
	}
	for len(names) > 0 {
		// struct linux_dirent64: inode, offset, length of the record, type, name.
		record := names[:binary.NativeEndian.Uint16(names[16:])]
		names = names[len(record):]
		end := bytes.IndexByte(record[19:], 0)
		name := string(record[19 : 19+end])
		var err error
		switch {
		case name == "." || name == "..":
		case record[18] == syscall.DT_DIR:
			err = bareSub(out, in, name, buf)
		case record[18] == syscall.DT_REG:
			err = bareFile(out, in, name, buf)
		default:
			err = errors.ErrUnsupported
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func bareSub(out, in int, name string, buf []byte) error {
	subIn, err := openAt(in, name, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(subIn)
	subOut, err := makeDir(out, name)
	if err != nil {
		return err
	}
	defer syscall.Close(subOut)
	return bareDir(subOut, subIn, buf)
}

func bareFile(out, in int, name string, buf []byte) error {
	r, err := openAt(in, name, syscall.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(r)
	w, err := openAt(out, name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	defer syscall.Close(w)
	for {
		n, err := again(func() (int, error) { return syscall.Read(r, buf) })
		if err != nil {
			return err
		}
		for done := 0; done < n; {
			more, err := again(func() (int, error) { return syscall.Write(w, buf[done:n]) })
			if err != nil {
				return err
			}
			done += more
		}
		if n < len(buf) { // a local file: no second read to see its end
			return nil
		}
	}
}

// bareHash reads and hashes every file, one after the other.
func bareHash(_ context.Context, _, src string) error {
	buf := make([]byte, 256<<10)
	h := sha256.New()
	return filepath.WalkDir(src, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		h.Reset()
		// Without the struct io.Copy would use a buffer of its own.
		_, err = io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, buf)
		return err
	})
}
