// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdstill.example/snapshot/internal/fstest"
)

func swap(p, q string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, p, unix.AT_FDCWD, q, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange %s %s: %w", p, q, err)
	}
	return nil
}

func exchange(a *attack, args []string) error {
	for a.turn() {
		if err := swap(args[0], args[1]); err != nil {
			return err
		}
		time.Sleep(rand.N(a.pauseMax + 1))
		if err := swap(args[0], args[1]); err != nil {
			return err
		}
	}
	return nil
}

func swapLink(a *attack, args []string) (err error) {
	side, remove, err := a.side(args[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	link := filepath.Join(side, "link")
	if err := os.Symlink(args[1], link); err != nil {
		return err
	}
	return exchange(a, []string{args[0], link})
}

func two(a *attack, args []string) (err error) {
	if a.size == 0 {
		a.size = page
	}
	side, remove, err := a.side(args[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	next := filepath.Join(side, "next")
	if err := errors.Join(os.Mkdir(next, 0o755), fillTwo(args[0], 1, a.size)); err != nil {
		return err
	}
	for gen := uint64(2); a.turn(); gen++ {
		if err := errors.Join(fillTwo(next, gen, a.size), swap(args[0], next)); err != nil {
			return err
		}
		a.report.Bytes += 2 * int64(a.size)
	}
	return nil
}

// fillTwo makes new files: who still reads the old ones by handle sees no other generation in them.
func fillTwo(dir string, gen uint64, size int) error {
	for _, name := range []string{"a", "b"} {
		name = filepath.Join(dir, name)
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(name, fstest.TornContent(gen, size), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func flicker(a *attack, args []string) error {
	dir, source := args[0], args[1]
	mount := func() error { return unix.Mount(source, dir, "", unix.MS_BIND, "") }
	if source == "tmpfs" {
		mount = func() error { return unix.Mount(source, dir, "tmpfs", 0, "") }
	}
	unmount := func() error {
		err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) { // somebody is in there
			err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		return err
	}
	for a.turn() {
		a.undo.Store(&unmount)
		err := mount()
		if err == nil {
			time.Sleep(rand.N(a.pauseMax + 1))
			err = unmount()
		}
		a.undo.Store(nil)
		if err != nil {
			return fmt.Errorf("flicker %s: %w", dir, err)
		}
	}
	return nil
}

func churn(a *attack, args []string) (err error) {
	name := func(i int) string { return filepath.Join(args[0], "churn-"+strconv.Itoa(i)) }
	i := 0
	defer func() {
		for old := max(i-a.files, 0); old < i; old++ {
			err = errors.Join(err, os.Remove(name(old)))
		}
	}()
	for a.turn() {
		if err := os.WriteFile(name(i), []byte(name(i)), 0o644); err != nil {
			return err
		}
		i++
		if i > a.files {
			if err := os.Remove(name(i - 1 - a.files)); err != nil {
				return err
			}
		}
	}
	return nil
}

func renames(a *attack, args []string) error {
	var dirs [2]string
	for i, name := range []string{"a", "b"} {
		dirs[i] = filepath.Join(args[0], name)
		if err := os.MkdirAll(dirs[i], 0o755); err != nil {
			return err
		}
	}
	for i := range a.files {
		if err := os.WriteFile(filepath.Join(dirs[0], strconv.Itoa(i)), []byte(strconv.Itoa(i)), 0o644); err != nil {
			return err
		}
	}
	for i := 0; a.turn(); i++ {
		from, to := dirs[i/a.files%2], dirs[(i/a.files+1)%2]
		name := strconv.Itoa(i % a.files)
		if err := os.Rename(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

func noise(a *attack, args []string) (err error) {
	type file struct {
		name string
		mode fs.FileMode
	}
	var files []file
	err = filepath.WalkDir(args[0], func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		fi, err := d.Info()
		if err == nil {
			files = append(files, file{name, fi.Mode()})
		}
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: no files", args[0])
	}
	if err != nil {
		return err
	}
	// The links must not lie in the tree, where they would be new names.
	side, remove, err := a.side(filepath.Join(args[0], "file"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	link := filepath.Join(side, "link")
	kinds := strings.Split(a.kinds, ",")
	one := func(kind string, f file) error {
		switch kind {
		case "link":
			return errors.Join(os.Link(f.name, link), os.Remove(link))
		case "chmod":
			return os.Chmod(f.name, f.mode)
		case "xattr":
			return unix.Setxattr(f.name, "user.noise", []byte(strconv.FormatInt(a.report.Turns, 10)), 0)
		case "read":
			_, err := os.ReadFile(f.name)
			return err
		}
		return fmt.Errorf("--ops %s: unknown", kind)
	}
	for i := 0; a.turn(); i++ {
		f := files[i%len(files)]
		for _, kind := range kinds {
			if err := one(kind, f); err != nil {
				return fmt.Errorf("%s: %s: %w", kind, f.name, err)
			}
		}
	}
	return nil
}
