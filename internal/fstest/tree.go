// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	// The name ends at the first mark; a quoted one may hold the marks.
	lineSyntax = regexp.MustCompile(`(?s)^("(?:[^"\\]|\\.)*"|.+?)(?: (0[0-7]+))?(?:(/)(?: (0[0-7]+))?|( => | <= |=)(.*)|([|@]))?$`)
	sizeSyntax = regexp.MustCompile(`^([@~])(\d+)(B|KiB|MiB|GiB|TiB)$`)
)

// Make makes a tree in dir, which is made if need be, from one line an entry:
//
//	d/            directory, 0755           d/ 0700       another mode, set when all is made
//	f=hello       file with that content    f 0755=x      file with a mode (else 0644)
//	f=@4MiB       size, TornContent(1)      f=~1TiB       size, one hole
//	a => b        symlink to b              h <= f        hard link to the file f of the tree
//	p|            FIFO                      s@            socket
//
// Missing parents are made, modes do not depend on the umask. A name, or the target of a link, that begins with a double quote
// is a Go string. Paths may be longer than PATH_MAX, except those of FIFOs and sockets.
func Make(t TB, dir string, lines ...string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	type dirMode struct {
		name string
		mode fs.FileMode
	}
	var dirs []dirMode
	parents := map[string]bool{}
	for _, line := range lines {
		m := lineSyntax.FindStringSubmatch(line)
		require.NotNil(t, m, "line %q", line)
		name := unquote(t, m[1])
		if parent := path.Dir(name); !parents[parent] {
			require.NoError(t, root.MkdirAll(parent, 0o755), "line %q", line)
			parents[parent] = true
		}
		var err error
		switch {
		case m[3] != "":
			err = root.MkdirAll(name, 0o755)
			dirs = append(dirs, dirMode{name, octal(t, m[4], 0o755)})
		case m[5] == " => ":
			err = root.Symlink(unquote(t, m[6]), name)
		case m[5] == " <= ":
			err = root.Link(unquote(t, m[6]), name)
		case m[7] == "|":
			err = mkfifo(filepath.Join(dir, name))
		case m[7] == "@":
			err = mksocket(filepath.Join(dir, name))
		default:
			err = writeFile(root, name, m[6], octal(t, m[2], 0o644))
		}
		require.NoError(t, err, "line %q", line)
	}
	// The deepest first: a directory may be closed to us after that.
	slices.SortStableFunc(dirs, func(a, b dirMode) int { return strings.Count(b.name, "/") - strings.Count(a.name, "/") })
	for _, d := range dirs {
		require.NoError(t, root.Chmod(d.name, d.mode))
	}
}

func writeFile(root *os.Root, name, content string, mode fs.FileMode) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if m := sizeSyntax.FindStringSubmatch(content); m == nil {
		_, err = f.WriteString(content)
	} else {
		var size int64
		size, err = strconv.ParseInt(m[2], 10, 32)
		size <<= map[string]int{"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[m[3]]
		switch {
		case err != nil:
		case m[1] == "~":
			err = os.Truncate(filepath.Join(root.Name(), name), size) // Root opens without O_LARGEFILE on 32 bits
		default:
			_, err = f.Write(TornContent(1, int(size)))
		}
	}
	return errors.Join(err, f.Chmod(mode), f.Close())
}

func unquote(t TB, s string) string {
	t.Helper()
	if !strings.HasPrefix(s, `"`) {
		return s
	}
	s, err := strconv.Unquote(s)
	require.NoError(t, err)
	return s
}

func octal(t TB, s string, otherwise fs.FileMode) fs.FileMode {
	t.Helper()
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 8, 12)
	require.NoError(t, err)
	mode := fs.FileMode(n & 0o777)
	for bit, special := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if n&bit != 0 {
			mode |= special
		}
	}
	return mode
}

// Read returns what dir holds, by path from it with slashes; dir itself is ".". An entry reads like `dir 0755`,
// `file 0644 "hello"`, `link ../x`, `fifo 0644`; content that is long or not printable is given by size and SHA-256, that of more
// than 1 GiB or without permission by neither. The tree must hold still.
func Read(t TB, dir string) map[string]string {
	t.Helper()
	return readTree(t, dir, func(m fs.FileMode) string { return fmt.Sprintf(" %04o", unixMode(m)) })
}

// Contents is Read without the modes.
func Contents(t TB, dir string) map[string]string {
	t.Helper()
	return readTree(t, dir, func(fs.FileMode) string { return "" })
}

// Equal asserts that two trees hold the same but for modes.
func Equal(t TB, want, got string) bool {
	t.Helper()
	return assert.Equal(t, Contents(t, want), Contents(t, got), "%s and %s", want, got)
}

// Nothing asserts that parent holds exactly these names: whatever was made beside them is gone.
func Nothing(t TB, parent string, allowed ...string) bool {
	t.Helper()
	entries, err := os.ReadDir(parent)
	require.NoError(t, err)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return assert.ElementsMatch(t, allowed, names, "in %s", parent)
}

// TempDir returns a new directory, 0755 so that an ordinary user's child process gets in. Trees that are closed to their owner,
// as snapshots are, do not keep it from being removed at the end.
func TempDir(t TB) string {
	t.Helper()
	return tempDirIn(t, os.TempDir())
}

func tempDirIn(t TB, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "holdstill-*")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, removeAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// removeAll opens every directory to its owner first: without that only root could remove a snapshot.
func removeAll(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	if root, err := os.OpenRoot(dir); err == nil {
		unlock(root)
		root.Close()
	}
	return os.RemoveAll(dir)
}

// unlock leaves errors to the removal, which meets them again.
func unlock(root *os.Root) {
	_ = root.Chmod(".", 0o700)
	names, _ := listNames(root)
	for _, name := range names {
		fi, err := root.Lstat(name)
		if err != nil || !fi.IsDir() {
			continue
		}
		_ = root.Chmod(name, 0o700)
		if sub, err := root.OpenRoot(name); err == nil {
			unlock(sub)
			sub.Close()
		}
	}
}

func readTree(t TB, dir string, mode func(fs.FileMode) string) map[string]string {
	t.Helper()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	tree := map[string]string{}
	require.NoError(t, readDir(tree, root, ".", mode))
	return tree
}

// readDir holds one handle a level, so that a path may be longer than the system takes.
func readDir(tree map[string]string, dir *os.Root, at string, mode func(fs.FileMode) string) error {
	fi, err := dir.Lstat(".")
	if err != nil {
		return err
	}
	tree[at] = "dir" + mode(fi.Mode())
	names, err := listNames(dir)
	for _, name := range names {
		if err == nil {
			err = readEntry(tree, dir, name, at+"/"+name, mode)
		}
	}
	return err
}

func readEntry(tree map[string]string, dir *os.Root, name, at string, mode func(fs.FileMode) string) error {
	at = strings.TrimPrefix(at, "./")
	fi, err := dir.Lstat(name)
	if err != nil {
		return err
	}
	switch fi.Mode().Type() {
	case fs.ModeDir:
		sub, err := dir.OpenRoot(name)
		if errors.Is(err, fs.ErrPermission) {
			tree[at] = "dir" + mode(fi.Mode()) + " unreadable"
			return nil
		} else if err != nil {
			return err
		}
		defer sub.Close()
		return readDir(tree, sub, at, mode)
	case fs.ModeSymlink:
		text, err := dir.Readlink(name)
		tree[at] = "link " + text
		return err
	case 0:
		text, err := readContent(dir, name, fi.Size())
		tree[at] = "file" + mode(fi.Mode()) + " " + text
		return err
	case fs.ModeNamedPipe:
		tree[at] = "fifo" + mode(fi.Mode())
	case fs.ModeSocket:
		tree[at] = "socket" + mode(fi.Mode())
	default:
		tree[at] = "device" + mode(fi.Mode())
	}
	return nil
}

func readContent(dir *os.Root, name string, size int64) (string, error) {
	if size > 1<<30 {
		return fmt.Sprintf("%d bytes", size), nil
	}
	f, err := dir.Open(name)
	if errors.Is(err, fs.ErrPermission) {
		return "unreadable", nil
	} else if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if text := strconv.Quote(string(b)); len(b) <= 64 && len(text) <= 80 {
		return text, err
	}
	return fmt.Sprintf("%d bytes %x", len(b), sha256.Sum256(b)), err
}

func listNames(dir *os.Root) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

func unixMode(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for special, bit := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&special != 0 {
			bits |= bit
		}
	}
	return bits
}
