// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// act is one change of a source. Names are relative to its root, so that "../x" lies beside it.
type act func(s *raceSite) error

// racer makes acts.
type racer struct{}

var race racer

// mutation is what an adversary does between two steps of a call, from whose point of view it is done at once.
type mutation struct {
	name    string
	do      []act
	back    act  // some steps later
	forever bool // do it before each later step, too
	writes  bool // it opens a file for writing
	root    bool // it takes root
	undo    act  // when the call is over
	tree    []error
	file    []error // that calls on a tree, or a file, may return; ErrChanged always if they do not try again
	noFile  bool    // nothing that a call on d/b could see
}

var mutations = []mutation{
	{name: "replace", do: []act{race.replace("d/b")}},
	{name: "same-size rewrite with mtime restored", do: []act{race.rewrite("d/b")}, writes: true},
	{name: "truncate", do: []act{race.truncate("d/b")}, writes: true},
	{name: "append", do: []act{race.grow("d/b")}, writes: true},
	{name: "grow for ever", do: []act{race.grow("d/b")}, forever: true, writes: true},
	{
		name: "to symlink", do: []act{race.remove("d/b"), race.put("d/b => c")},
		file: []error{snapshot.ErrNotRegular},
	},
	{
		name: "to symlink to outside", do: []act{race.put("../secret=secret"), race.remove("d/b"), race.put("d/b => ../../secret")},
		tree: []error{snapshot.ErrEscapes}, file: []error{snapshot.ErrNotRegular},
	},
	{
		name: "to FIFO", do: []act{race.remove("d/b"), race.put("d/b|")},
		tree: []error{snapshot.ErrNotRegular}, file: []error{snapshot.ErrNotRegular},
	},
	{
		name: "to directory", do: []act{race.remove("d/b"), race.put("d/b/x=xray")},
		file: []error{snapshot.ErrNotRegular},
	},
	{
		name: "to device", do: []act{race.remove("d/b"), race.mknod("d/b")}, root: true,
		tree: []error{snapshot.ErrNotRegular}, file: []error{snapshot.ErrNotRegular},
	},
	{
		name: "parent to symlink", do: []act{race.other("../other"), race.move("d", "../gone"), race.put("d => ../other/d")},
		tree: []error{snapshot.ErrEscapes}, file: []error{snapshot.ErrNotRegular},
	},
	{name: "parent exchanged with another directory", do: []act{race.other("../other"), race.exchange("d", "../other/d")}},
	{
		name: "parent exchanged and back",
		do:   []act{race.other("../other"), race.exchange("d", "../other/d")},
		back: race.exchange("d", "../other/d"),
	},
	{name: "delete", do: []act{race.remove("d/b")}, file: []error{fs.ErrNotExist, snapshot.ErrChanged}},
	{name: "create", do: []act{race.put("e/new=november")}, noFile: true},
	{name: "exchange two files", do: []act{race.exchange("d/b", "a")}},
	{name: "exchange two files and back", do: []act{race.exchange("d/b", "a")}, back: race.exchange("d/b", "a")},
	{name: "move a file into a directory already passed", do: []act{race.move("d/b", "e/b")}, file: []error{fs.ErrNotExist, snapshot.ErrChanged}},
	{name: "move a file into a directory not yet passed", do: []act{race.move("e/f", "d/f")}, noFile: true},
	{name: "retarget a link", do: []act{race.remove("z"), race.put("z => e")}, noFile: true},
	{name: "change two files at once", do: []act{race.rewrite("d/b"), race.rewrite("e/f")}, writes: true},
	{name: "chmod", do: []act{race.chmod("d/b", 0o755)}},
	{name: "chmod to the same mode", do: []act{race.chmod("d/b", 0o644)}},
	{name: "hard link", do: []act{race.link("d/b", "../hard")}},
	{name: "root exchanged", do: []act{race.other("../other"), race.exchange("../src", "../other")}},
	{name: "root to symlink", do: []act{race.other("../other"), race.move("../src", "../gone"), race.put("../src => other")}},
	{
		name: "root gone", do: []act{race.move("../src", "../gone")},
		tree: []error{fs.ErrNotExist, snapshot.ErrChanged}, file: []error{fs.ErrNotExist, snapshot.ErrChanged},
	},
	{
		name: "ancestor exchanged and back",
		do:   []act{race.other("../../b/src"), race.exchange("../../a", "../../b")},
		back: race.exchange("../../a", "../../b"),
	},
	{
		name: "bind mount over a directory", do: []act{race.other("../other"), race.bind("../other/d", "d")}, undo: race.unmount("d"), root: true,
		tree: []error{snapshot.ErrEscapes},
	},
}

// put makes something new, by lines of fstest.Make.
func (racer) put(lines ...string) act {
	var below []string
	for _, line := range lines {
		end := strings.IndexAny(line, " =|")
		below = append(below, path.Join("a/src", line[:end])+line[end:])
	}
	return func(s *raceSite) error {
		return outside(func(t fstest.TB) { fstest.Make(t, s.dir, below...) })
	}
}

// other makes a tree with names of the source and other contents.
func (racer) other(name string) act {
	return race.put(name+"/a=ALPHA", name+"/d/b=outside", name+"/d/sub/s=OUTSIDE", name+"/d/new=outside")
}

// replace gives the name to another file of the same size.
func (racer) replace(name string) act {
	return func(s *raceSite) error {
		b, err := os.ReadFile(s.path(name))
		if err != nil {
			return err
		}
		return errors.Join(os.WriteFile(s.path("../new"), flipped(b), 0o644), os.Rename(s.path("../new"), s.path(name)))
	}
}

// flipped returns as many bytes, another one in every place.
func flipped(b []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = b[i] ^ 0x20
	}
	return out
}

// rewrite changes every byte in place and then puts mtime back.
func (racer) rewrite(name string) act {
	return race.open(name, func(f *os.File, fi fs.FileInfo) error {
		b := make([]byte, fi.Size())
		if _, err := f.ReadAt(b, 0); err != nil {
			return err
		}
		_, err := f.WriteAt(flipped(b), 0)
		return errors.Join(err, os.Chtimes(f.Name(), fi.ModTime(), fi.ModTime()))
	})
}

func (racer) truncate(name string) act {
	return race.open(name, func(f *os.File, fi fs.FileInfo) error { return f.Truncate(fi.Size() / 2) })
}

func (racer) grow(name string) act {
	return race.open(name, func(f *os.File, fi fs.FileInfo) error {
		_, err := f.WriteAt([]byte("+"), fi.Size())
		return err
	})
}

// open opens for writing without waiting: the one that a lease makes wait for the call under attack would wait for itself.
func (racer) open(name string, f func(*os.File, fs.FileInfo) error) act {
	return func(s *raceSite) error {
		file, err := os.OpenFile(s.path(name), os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		fi, err := file.Stat()
		if err == nil {
			err = f(file, fi)
		}
		return errors.Join(err, file.Close())
	}
}

func (racer) remove(name string) act {
	return func(s *raceSite) error { return os.Remove(s.path(name)) }
}

func (racer) move(from, to string) act {
	return func(s *raceSite) error { return os.Rename(s.path(from), s.path(to)) }
}

func (racer) exchange(a, b string) act {
	return func(s *raceSite) error {
		return unix.Renameat2(unix.AT_FDCWD, s.path(a), unix.AT_FDCWD, s.path(b), unix.RENAME_EXCHANGE)
	}
}

func (racer) chmod(name string, mode fs.FileMode) act {
	return func(s *raceSite) error { return os.Chmod(s.path(name), mode) }
}

func (racer) link(old, name string) act {
	return func(s *raceSite) error { return os.Link(s.path(old), s.path(name)) }
}

// mknod makes a device that reads like an endless file of zeros.
func (racer) mknod(name string) act {
	return func(s *raceSite) error { return unix.Mknod(s.path(name), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))) }
}

func (racer) bind(from, to string) act {
	return func(s *raceSite) error { return unix.Mount(s.path(from), s.path(to), "", unix.MS_BIND, "") }
}

// unmount also finds nothing mounted, if the attack came too late.
func (racer) unmount(name string) act {
	return func(s *raceSite) error {
		err := unix.Unmount(s.path(name), unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) {
			return nil
		}
		return err
	}
}
