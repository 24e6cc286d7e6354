// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"fmt"
	"io/fs"
	"time"

	"holdstill.example/snapshot/internal/fsys"
)

// Evidence is how strongly the bytes of one file were proven. Each level implies those below it.
// Every level below Quiescent disturbs nobody for longer than a few microseconds.
type Evidence uint8

const (
	_          Evidence = iota // nothing asked, nothing proven
	Identified                 // the bytes came from the regular file at that name
	Stable                     // and no write call began while they were read (stores through a mapping may have)
	Buffered                   // and no buffered write or mapped store was in flight (an O_DIRECT write may have been)
	Coherent                   // and no write of any kind was in flight: the bytes are the content at one instant
	Quiescent                  // and nobody had the file open or mapped for writing: no half-finished update
)

// String returns the name in lower case, "none" for zero.
func (e Evidence) String() string {
	switch e {
	case 0:
		return "none"
	case Identified:
		return "identified"
	case Stable:
		return "stable"
	case Buffered:
		return "buffered"
	case Coherent:
		return "coherent"
	case Quiescent:
		return "quiescent"
	}
	return fmt.Sprintf("evidence(%d)", uint8(e))
}

// MarshalText writes what String returns.
func (e Evidence) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText reads what MarshalText wrote. Anything but the name of a level is [fs.ErrInvalid].
func (e *Evidence) UnmarshalText(text []byte) error {
	for level := Evidence(0); level <= Quiescent; level++ {
		if level.String() == string(text) {
			*e = level
			return nil
		}
	}
	return fmt.Errorf("evidence %q: no such level: %w", text, fs.ErrInvalid)
}

// Reason says how two States of one name differ; zero is "not at all".
type Reason uint8

const (
	_             Reason = iota
	Replaced             // another file has the name
	TypeChanged          // another file of another type has it
	Vanished             // no file has it
	Appeared             // it is new
	Grew                 // the same file is longer
	Shrank               // the same file is shorter
	Modified             // the same file, the same size, another mtime, mode or owner; a directory whose size moved, too
	MetadataOnly         // only ctime moved
	WriterArrived        // somebody opened it for writing while we held a lease
)

// String returns the name in lower case with spaces, "unchanged" for zero.
func (r Reason) String() string {
	switch r {
	case 0:
		return "unchanged"
	case Replaced:
		return "replaced"
	case TypeChanged:
		return "type changed"
	case Vanished:
		return "vanished"
	case Appeared:
		return "appeared"
	case Grew:
		return "grew"
	case Shrank:
		return "shrank"
	case Modified:
		return "modified"
	case MetadataOnly:
		return "metadata only"
	case WriterArrived:
		return "writer arrived"
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// MarshalText writes what String returns.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Identity says which file; two are equal only if both are known. It is comparable, but use Same. The zero Identity is unknown.
type Identity struct {
	volume, mount uint64
	file          [16]byte
	birth         fsys.Stamp
	kind          fs.FileMode
}

func (id Identity) known() bool { return id.file != [16]byte{} }

// Same reports whether both are known and equal.
//
// A birth time or a mount id that only one of them has makes them differ: one file system answers alike for one file, so
// whoever answers otherwise is another file system, mounted over the first. If that is ever wrong it costs a retry; the
// opposite mistake, on ext4, where the next file gets the inode number of the last one, would take a stranger for the file.
func (id Identity) Same(other Identity) bool { return id.known() && id == other }

// State is all that can be seen of a file without reading it, less atime, blocks and link count. The zero State is that of a
// name that does not exist.
type State struct {
	Identity   Identity
	Mode       fs.FileMode // type and permission bits
	Size       int64       // bytes
	ModTime    time.Time
	ChangeTime time.Time // zero where the file system has none
	UID, GID   uint32    // zero on Windows
}

// Compare says how after differs from s. Two States whose Identity is unknown are [Replaced], whatever else is equal: nothing
// shows that they are of one file. It never returns [WriterArrived], which no State shows.
func (s State) Compare(after State) Reason {
	absent := State{}
	switch {
	case s == absent && after == absent:
		return 0
	case after == absent:
		return Vanished
	case s == absent:
		return Appeared
	case s.Identity.Same(after.Identity):
		return s.compareVersion(after)
	case s.Mode.Type() != after.Mode.Type():
		return TypeChanged
	}
	return Replaced
}

func (s State) compareVersion(after State) Reason {
	switch {
	case s.Size != after.Size && s.Mode.IsDir():
		return Modified // the size of a directory is a matter of its format, not of contents
	case s.Size < after.Size:
		return Grew
	case s.Size > after.Size:
		return Shrank
	case !s.ModTime.Equal(after.ModTime), s.Mode != after.Mode, s.UID != after.UID, s.GID != after.GID:
		return Modified
	case !s.ChangeTime.Equal(after.ChangeTime):
		return MetadataOnly
	}
	return 0
}

// stateOf returns the State that s shows; nil and the zero Seen are a name that does not exist.
func stateOf(s *fsys.Seen) State {
	if s == nil || *s == (fsys.Seen{}) {
		return State{}
	}
	return State{
		Identity: Identity{volume: s.Volume, mount: s.Mount, file: s.File, birth: s.Birth, kind: s.Mode.Type()},
		Mode:     s.Mode,
		Size:     s.Size,
		// An mtime of 1970 is a real one: reproducible builds set it.
		ModTime:    time.Unix(s.Mtime.Sec, int64(s.Mtime.Nsec)).UTC(),
		ChangeTime: changeTime(s.Ctime),
		UID:        s.UID,
		GID:        s.GID,
	}
}

func changeTime(t fsys.Stamp) time.Time {
	if t == (fsys.Stamp{}) {
		return time.Time{}
	}
	return time.Unix(t.Sec, int64(t.Nsec)).UTC()
}

// drift is State.Compare for the collect, which finds nearly every entry equal.
func drift(before, after *fsys.Seen) Reason {
	if before != nil && after != nil && before.File != [16]byte{} && *before == *after {
		return 0
	}
	return stateOf(before).Compare(stateOf(after))
}

// sameFile is Identity.Same for the collect.
func sameFile(a, b *fsys.Seen) bool {
	return a.Mount == b.Mount && sameInode(a, b)
}

// sameInode is sameFile whichever mount shows the file: through a bind mount the destination may lie inside the source.
func sameInode(a, b *fsys.Seen) bool {
	return a.File != [16]byte{} && a.File == b.File && a.Volume == b.Volume && a.Birth == b.Birth && a.Mode.Type() == b.Mode.Type()
}
