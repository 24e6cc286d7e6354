//go:build linux

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// acpxSnapshot takes the steps of the private snapshots in paperclip's ACPX adapter, which does by hand what this package is
// for: one entry after the other, by path, the whole of a file in memory. It is told of no executable and of one root. Its bounds
// are compared, but out of reach here: 30,000 entries, 16 MiB a file and 128 MiB in all would not hold every workload.
func acpxSnapshot(_ context.Context, dst, src string) error {
	root, err := filepath.EvalSymlinks(src)
	if err != nil {
		return err
	}
	s := &acpxTree{
		root: root, target: dst, digests: map[string]string{},
		maxEntries: 3_000_000, maxFile: 1 << 30, maxBytes: 1 << 40,
	}
	before, err := os.Lstat(root)
	if err != nil {
		return err
	}
	if err := s.copy(root, dst); err != nil {
		return err
	}
	if err := s.unchanged(root, before); err != nil {
		return err
	}
	manifest, err := json.Marshal(map[string]any{"roots": []string{dst}, "digests": s.digests})
	if err != nil {
		return err
	}
	_ = sha256.Sum256(manifest)
	if err := writeNew(dst+".json", manifest); err != nil {
		return err
	}
	for _, dir := range s.dirs {
		if err := os.Chmod(dir, 0o500); err != nil {
			return err
		}
	}
	return os.Remove(dst + ".json") // nothing else may stay beside the copy
}

type acpxTree struct {
	root, target string
	digests      map[string]string // by path of the copy
	dirs         []string
	entries      int
	bytes        int64

	maxEntries        int
	maxFile, maxBytes int64
}

var errChanged = errors.New("changed during the snapshot")

func (s *acpxTree) copy(src, dst string) error {
	if s.entries++; s.entries > s.maxEntries {
		return errors.New("too many entries")
	}
	before, err := os.Lstat(src)
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(src)
	if err != nil {
		return err
	}
	switch inside := s.inside(real); {
	case before.Mode()&fs.ModeSymlink != 0 && inside:
		return os.Symlink(filepath.Join(s.target, strings.TrimPrefix(real, s.root)), dst)
	case before.Mode()&fs.ModeSymlink != 0:
		return nil // left out without a word
	case !inside:
		return fmt.Errorf("%s: outside of the root", src)
	case before.IsDir():
		return s.copyDir(src, dst, before)
	case !before.Mode().IsRegular() || before.Size() > s.maxFile:
		return fmt.Errorf("%s: no regular file, or too large", src)
	}
	if s.bytes += before.Size(); s.bytes > s.maxBytes {
		return errors.New("too many bytes")
	}
	return s.copyFile(src, dst, before)
}

func (s *acpxTree) inside(real string) bool {
	rel, err := filepath.Rel(s.root, real)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func (s *acpxTree) copyDir(src, dst string, before fs.FileInfo) error {
	if err := os.Mkdir(dst, 0o700); err != nil {
		return err
	}
	s.dirs = append(s.dirs, dst)
	f, err := os.Open(src)
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	for _, name := range names {
		if err := s.copy(filepath.Join(src, name), filepath.Join(dst, name)); err != nil {
			return err
		}
	}
	return s.unchanged(src, before)
}

func (s *acpxTree) copyFile(src, dst string, before fs.FileInfo) error {
	f, err := os.OpenFile(src, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	if !sameStat(before, opened) {
		return fmt.Errorf("%s: %w", src, errChanged)
	}
	b := make([]byte, before.Size())
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, before.Size()), b); err != nil {
		return err
	}
	after, err := f.Stat()
	if err != nil {
		return err
	}
	if !sameStat(before, after) {
		return fmt.Errorf("%s: %w", src, errChanged)
	}
	if err := s.unchanged(src, before); err != nil {
		return err
	}
	if err := writeNew(dst, b); err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	s.digests[dst] = hex.EncodeToString(sum[:])
	return nil
}

func (s *acpxTree) unchanged(src string, before fs.FileInfo) error {
	now, err := os.Lstat(src)
	if err == nil && !sameStat(before, now) {
		err = fmt.Errorf("%s: %w", src, errChanged)
	}
	return err
}

func sameStat(a, b fs.FileInfo) bool {
	x, y := a.Sys().(*syscall.Stat_t), b.Sys().(*syscall.Stat_t)
	return x.Dev == y.Dev && x.Ino == y.Ino && x.Size == y.Size && x.Mtim == y.Mtim && x.Ctim == y.Ctim
}

func writeNew(name string, b []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}
