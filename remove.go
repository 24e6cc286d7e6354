// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"strconv"

	"holdstill.example/snapshot/internal/fsys"
)

// remover empties directories of our own through held handles: no name is ever followed through a link, no mount is
// crossed, and the descriptors that it needs do not grow with the depth of a tree.
type remover struct {
	*op
	top   fsys.Handle
	mount uint64
	deep  string // how names begin that were moved up
	moved int
	buf   []byte
}

// removeDepth is how deep a directory is emptied in place. What lies deeper is moved up to the top first, which costs one
// rename for every removeDepth levels and no way back through "..".
const removeDepth = 16

// empty removes all in dir but the name keep. dir must be a directory of our own, whose State is seen.
func (o *op) empty(dir fsys.Handle, seen *fsys.Seen, keep string) error {
	r := &remover{op: o, top: dir, mount: seen.Mount, deep: stagingPrefix + rand.Text(), buf: make([]byte, fsys.ListBufferSize)}
	for {
		before := r.moved
		if err := r.emptyDir(dir, keep, 0); err != nil {
			return err
		}
		if r.moved == before {
			return nil
		}
	}
}

// removeTree removes the directory name of dir, a directory of our own, and all in it.
func (o *op) removeTree(dir fsys.Handle, name string) error {
	st, err := o.calls.StatAt(dir, name, false)
	if err != nil {
		return err
	}
	h, err := o.openSame(dir, name, &st.Seen)
	if err != nil {
		return err
	}
	err = o.empty(h, &st.Seen, "")
	o.release(h)
	if err != nil {
		return err
	}
	return o.calls.Rmdir(dir, name)
}

// openSame opens the directory name of dir that seen shows: one that was exchanged since is not ours to empty.
func (o *op) openSame(dir fsys.Handle, name string, seen *fsys.Seen) (fsys.Handle, error) {
	h, err := o.calls.OpenDir(dir, name)
	if err != nil {
		return fsys.NoHandle, err
	}
	st, err := o.calls.Stat(h, false)
	if err == nil && !sameFile(&st.Seen, seen) {
		err = newPathError("remove", name, errExchanged)
	}
	if err != nil {
		o.release(h)
		return fsys.NoHandle, err
	}
	return h, nil
}

// errExchanged: somebody put another directory in the place of one of ours.
var errExchanged = errors.New("another directory has the name")

func (r *remover) emptyDir(dir fsys.Handle, keep string, depth int) error {
	if err := r.calls.Rewind(dir); err != nil {
		return err
	}
	var names []string
	err := r.calls.List(dir, r.buf, func(name string) error {
		if name != keep {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var first error
	for _, name := range names { // what cannot be removed keeps nothing else from going
		if err := r.remove(dir, name, depth); first == nil {
			first = err
		}
	}
	return first
}

// remove removes one name. A directory answers EISDIR on Linux and EPERM elsewhere (unlink(2)), so it is looked at first.
func (r *remover) remove(dir fsys.Handle, name string, depth int) error {
	st, err := r.calls.StatAt(dir, name, false)
	switch {
	case err != nil:
		return ignoreMissing(err)
	case !st.Mode.IsDir():
		return ignoreMissing(r.calls.Unlink(dir, name))
	case st.MountRoot || st.Mount != r.mount:
		return newPathError("remove", name, errMounted)
	}
	if err := r.removeDir(dir, name, &st.Seen, depth); err != nil {
		return err
	}
	return nil
}

func (r *remover) removeDir(parent fsys.Handle, name string, seen *fsys.Seen, depth int) (err error) {
	if seen.Mode&0o700 != 0o700 {
		if err := r.unseal(parent, name, seen); err != nil {
			return err
		}
	}
	if depth >= removeDepth {
		r.moved++
		return r.calls.Rename(parent, name, r.top, r.deep+strconv.Itoa(r.moved))
	}
	dir, err := r.openSame(parent, name, seen)
	if err != nil {
		return ignoreMissing(err)
	}
	err = r.emptyDir(dir, "", depth+1)
	r.release(dir)
	if err != nil {
		return err
	}
	return ignoreMissing(r.calls.Rmdir(parent, name))
}

// unseal gives the owner back what a sealed directory lacks, so that an ordinary user can empty it. A directory that can be
// read is changed through its handle; one that cannot was never sealed by us, and the name lies in a directory of our own.
func (r *remover) unseal(parent fsys.Handle, name string, seen *fsys.Seen) error {
	dir, err := r.calls.OpenDir(parent, name)
	if errors.Is(err, fs.ErrPermission) {
		return r.calls.ChmodAt(parent, name, 0o700)
	}
	if err != nil {
		return ignoreMissing(err)
	}
	st, err := r.calls.Stat(dir, false)
	if err == nil && sameFile(&st.Seen, seen) {
		err = r.calls.Chmod(dir, 0o700)
	}
	r.release(dir)
	return err
}

// errMounted: somebody mounted a file system inside a directory of ours; what it holds is not ours.
var errMounted = errors.New("a file system is mounted there")
