// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// thing is a file, directory or link of the model; two names may share a file.
type thing struct {
	mode fs.FileMode
	text string // of a file or link
	kids map[string]*thing
}

func newDir(mode fs.FileMode) *thing {
	return &thing{mode: fs.ModeDir | mode, kids: map[string]*thing{}}
}

// describe puts what is at a path and beneath it into a state, in the words of fstest.Read.
func (x *thing) describe(at string, state map[string]string) {
	switch x.mode.Type() {
	case fs.ModeDir:
		state[at] = fmt.Sprintf("dir %04o", x.mode.Perm())
	case fs.ModeSymlink:
		state[at] = "link " + x.text
	default:
		state[at] = fmt.Sprintf("file %04o %d bytes %x", x.mode.Perm(), len(x.text), sha256.Sum256([]byte(x.text)))
	}
	for name, kid := range x.kids {
		kid.describe(path.Join(at, name), state)
	}
}

// make makes x on disk.
func (x *thing) make(at string) error {
	switch x.mode.Type() {
	case fs.ModeSymlink:
		return os.Symlink(x.text, at)
	case 0:
		return errors.Join(os.WriteFile(at, []byte(x.text), 0o600), os.Chmod(at, x.mode.Perm()))
	}
	err := os.Mkdir(at, 0o700)
	for name, kid := range x.kids {
		err = errors.Join(err, kid.make(filepath.Join(at, name)))
	}
	return errors.Join(err, os.Chmod(at, x.mode.Perm()))
}

// paths lists what is beneath x, in an order that the seed can count on.
func (x *thing) paths(which func(*thing) bool) []string {
	var paths []string
	var walk func(at string, x *thing)
	walk = func(at string, x *thing) {
		for name, kid := range x.kids {
			p := path.Join(at, name)
			if which(kid) {
				paths = append(paths, p)
			}
			walk(p, kid)
		}
	}
	walk("", x)
	slices.Sort(paths)
	return paths
}

func anything(*thing) bool  { return true }
func isFile(x *thing) bool  { return x.mode.IsRegular() }
func isDir(x *thing) bool   { return x.mode.IsDir() }
func notLink(x *thing) bool { return isFile(x) || isDir(x) }

// editor changes a source, and a model of it in the same way. Every edit becomes visible by one system call, so that the
// states of the model are all that the source ever had.
type editor struct {
	site  *raceSite
	root  *thing // the source
	other *thing // a tree beside it
	spare int    // names in use beside it
	swap  func() // takes the last exchange back
	last  string // that was changed
	log   []string
}

var (
	editFileModes = []fs.FileMode{0o644, 0o600, 0o755, 0o640, 0o711}
	editDirModes  = []fs.FileMode{0o755, 0o700, 0o711}
)

// newEditor makes a random source.
func newEditor(rnd *rand.Rand, dir string, big bool) (*editor, error) {
	e := &editor{site: &raceSite{dir: dir}, root: newDir(0o755)}
	e.plant(rnd, e.root, 3)
	if big { // takes two reads
		e.root.kids["big"] = &thing{mode: 0o644, text: strings.Repeat("big ", 75<<10)}
	}
	if rnd.IntN(4) == 0 { // more than one batch
		wide := newDir(0o755)
		for i := range 20 {
			wide.kids[strconv.Itoa(i)] = randomFile(rnd)
		}
		e.root.kids["wide"] = wide
	}
	e.other = newDir(0o755)
	e.plant(rnd, e.other, 1)
	e.other.kids["f0"], e.root.kids["f0"] = randomFile(rnd), randomFile(rnd)
	for name, x := range map[string]*thing{"a/src": e.root, "a/other": e.other, "out": newDir(0o755), "spare": newDir(0o755)} {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), x.make(p)); err != nil {
			return nil, err
		}
	}
	e.note()
	return e, nil
}

func (e *editor) plant(rnd *rand.Rand, in *thing, depth int) {
	for i := range 1 + rnd.IntN(3) {
		in.kids["f"+strconv.Itoa(i)] = randomFile(rnd)
	}
	in.kids["l"] = &thing{mode: fs.ModeSymlink | 0o777, text: pick(rnd, []string{"f0", "d0/f1", "../x"})}
	for i := range rnd.IntN(depth + 1) {
		d := newDir(pick(rnd, editDirModes))
		in.kids["d"+strconv.Itoa(i)] = d
		e.plant(rnd, d, depth-1)
	}
}

func randomFile(rnd *rand.Rand) *thing {
	return &thing{mode: pick(rnd, editFileModes), text: strings.Repeat(strconv.Itoa(rnd.IntN(100)), rnd.IntN(9))}
}

func (e *editor) note() {
	state := map[string]string{}
	e.root.describe(".", state)
	e.site.states = append(e.site.states, state)
}

func (e *editor) at(name string) string { return e.site.path(name) }

func (e *editor) get(name string) *thing {
	x := e.root
	for part := range strings.SplitSeq(name, "/") {
		if x = x.kids[part]; x == nil {
			return nil
		}
	}
	return x
}

// put gives a name to x, or takes it away.
func (e *editor) put(name string, x *thing) {
	dir := e.root
	if in := path.Dir(name); in != "." {
		dir = e.get(in)
	}
	if x == nil {
		delete(dir.kids, path.Base(name))
	} else {
		dir.kids[path.Base(name)] = x
	}
}

// target often is what was changed last: what is noise alone may hide the next change.
func (e *editor) target(rnd *rand.Rand, from []string) string {
	if rnd.IntN(2) == 0 || !slices.Contains(from, e.last) {
		e.last = pick(rnd, from)
	}
	return e.last
}

// edit makes one random change. What the tree, or the holder of a lease, does not allow is left undone.
func (e *editor) edit(seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	all := e.root.paths(anything)
	files := e.root.paths(isFile)
	if len(files) == 0 {
		return
	}
	var did string
	var err error
	switch rnd.IntN(16) {
	case 0, 1, 2:
		did, err = e.rewrite(rnd, e.target(rnd, files))
	case 3:
		did, err = e.resize(rnd, e.target(rnd, files))
	case 4, 5:
		did, err = e.rename(rnd, e.target(rnd, all))
	case 6, 7:
		did, err = e.exchange(e.target(rnd, all), pick(rnd, all))
	case 8, 9:
		did, err = "exchange back", nil
		if e.swap == nil {
			return
		}
		e.swap()
	case 10:
		did, err = e.remove(e.target(rnd, all))
	case 11:
		did, err = e.add(rnd)
	case 12:
		did, err = e.chmod(rnd, e.target(rnd, e.root.paths(notLink)))
	case 13:
		did, err = e.link(rnd, e.target(rnd, files))
	case 14:
		did, err = e.replace(rnd, e.target(rnd, e.root.paths(func(x *thing) bool { return !isDir(x) })))
	case 15:
		did, err = "exchange the root", e.exchangeRoot()
		e.swap = func() { e.site.err = errors.Join(e.site.err, e.exchangeRoot()) }
	}
	if did == "" || errors.Is(err, unix.EAGAIN) {
		return
	}
	e.site.err = errors.Join(e.site.err, err)
	e.log = append(e.log, did)
	e.note()
}

// rewrite writes over some bytes, and perhaps puts mtime back.
func (e *editor) rewrite(rnd *rand.Rand, name string) (string, error) {
	x := e.get(name)
	if x.text == "" {
		return "", nil
	}
	f, err := os.OpenFile(e.at(name), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "rewrite", err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return "rewrite", err
	}
	at := rnd.IntN(len(x.text))
	b := flipped([]byte(x.text[at:]))
	b = b[:1+rnd.IntN(len(b))]
	did := fmt.Sprintf("rewrite %d bytes of %s", len(b), name)
	if _, err := f.WriteAt(b, int64(at)); err != nil {
		return did, err
	}
	x.text = x.text[:at] + string(b) + x.text[at+len(b):]
	if rnd.IntN(2) == 0 {
		return did, nil
	}
	return did + " and put mtime back", os.Chtimes(e.at(name), fi.ModTime(), fi.ModTime())
}

func (e *editor) resize(rnd *rand.Rand, name string) (string, error) {
	x := e.get(name)
	f, err := os.OpenFile(e.at(name), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "resize", err
	}
	defer f.Close()
	if rnd.IntN(2) == 0 {
		_, err = f.WriteAt([]byte("more"), int64(len(x.text)))
		x.text += "more"
		return "append to " + name, err
	}
	x.text = x.text[:len(x.text)/2]
	return "truncate " + name, f.Truncate(int64(len(x.text)))
}

// newName is in a random directory: the name of something that is there, or a new one.
func (e *editor) newName(rnd *rand.Rand) string {
	in := pick(rnd, append(e.root.paths(isDir), ""))
	return path.Join(in, pick(rnd, []string{"f0", "f1", "f2", "n" + strconv.Itoa(rnd.IntN(9))}))
}

func beneath(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func (e *editor) rename(rnd *rand.Rand, from string) (string, error) {
	to := e.newName(rnd)
	x, there := e.get(from), e.get(to)
	if beneath(to, from) || there == x || there != nil && (isDir(there) || isDir(x)) {
		return "", nil
	}
	err := os.Rename(e.at(from), e.at(to))
	e.put(from, nil)
	e.put(to, x)
	return "rename " + from + " to " + to, err
}

func (e *editor) exchange(a, b string) (string, error) {
	x, y := e.get(a), e.get(b)
	if beneath(a, b) || beneath(b, a) || x == y {
		return "", nil
	}
	err := unix.Renameat2(unix.AT_FDCWD, e.at(a), unix.AT_FDCWD, e.at(b), unix.RENAME_EXCHANGE)
	e.put(a, y)
	e.put(b, x)
	e.swap = func() {
		if e.get(a) == y && e.get(b) == x {
			_, err := e.exchange(a, b)
			e.site.err = errors.Join(e.site.err, err)
		}
	}
	return "exchange " + a + " and " + b, err
}

func (e *editor) exchangeRoot() error {
	e.root, e.other = e.other, e.root
	return unix.Renameat2(unix.AT_FDCWD, e.at(""), unix.AT_FDCWD, e.at("../other"), unix.RENAME_EXCHANGE)
}

func (e *editor) newSpare() string {
	e.spare++
	return filepath.Join(e.site.dir, "spare", strconv.Itoa(e.spare))
}

func (e *editor) remove(name string) (string, error) {
	x := e.get(name)
	e.put(name, nil)
	if isDir(x) {
		return "move away " + name, os.Rename(e.at(name), e.newSpare())
	}
	return "remove " + name, os.Remove(e.at(name))
}

// bring moves x in, which is made beside the tree.
func (e *editor) bring(x *thing, name string) error {
	spare := e.newSpare()
	err := errors.Join(x.make(spare), os.Rename(spare, e.at(name)))
	e.put(name, x)
	return err
}

func (e *editor) add(rnd *rand.Rand) (string, error) {
	name := e.newName(rnd)
	if e.get(name) != nil {
		return "", nil
	}
	x := randomFile(rnd)
	if rnd.IntN(2) == 0 {
		x = newDir(0o755)
		e.plant(rnd, x, 1)
	}
	return "add " + name, e.bring(x, name)
}

// replace gives the name of a file or link to another one.
func (e *editor) replace(rnd *rand.Rand, name string) (string, error) {
	x := randomFile(rnd)
	if old := e.get(name); !isFile(old) || rnd.IntN(4) == 0 {
		x = &thing{mode: fs.ModeSymlink | 0o777, text: pick(rnd, []string{"f0", "f1", "d0", "../f2", old.text + "x"})}
		x.text = x.text[:min(len(x.text), 20)]
	}
	return "replace " + name, e.bring(x, name)
}

// chmod may leave the mode as it is.
func (e *editor) chmod(rnd *rand.Rand, name string) (string, error) {
	x := e.get(name)
	mode := x.mode.Perm()
	if rnd.IntN(2) == 0 {
		mode = pick(rnd, map[bool][]fs.FileMode{true: editDirModes, false: editFileModes}[isDir(x)])
	}
	x.mode = x.mode.Type() | mode
	return fmt.Sprintf("chmod %o %s", mode, name), os.Chmod(e.at(name), mode)
}

// link gives a file another name, in the tree or beside it.
func (e *editor) link(rnd *rand.Rand, name string) (string, error) {
	if rnd.IntN(2) == 0 {
		return "link " + name + " beside the tree", os.Link(e.at(name), e.newSpare())
	}
	to := e.newName(rnd)
	if e.get(to) != nil {
		return "", nil
	}
	e.put(to, e.get(name))
	return "link " + name + " to " + to, os.Link(e.at(name), e.at(to))
}
