// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"sync"

	"holdstill.example/snapshot/internal/fsys"
)

// space watches that Limits.ReserveBytes stays free at the destination, by what will really be written. nil watches nothing.
type space struct {
	calls    *fsys.Calls
	dir      fsys.Handle
	path     string
	reserve  int64
	mu       sync.Mutex
	left     int64 // that may be taken before the file system is asked again
	promised int64 // taken, and perhaps not written yet
}

// askEvery bounds how much is written on one answer: other programs fill the disk, too.
const askEvery = 64 << 20

func newSpace(o *op, dir fsys.Handle, path string) (*space, error) {
	s := &space{calls: o.calls, dir: dir, path: path, reserve: o.opts.Limits.ReserveBytes}
	if s.reserve < 0 {
		return nil, nil
	}
	_, size, err := s.calls.Free(dir)
	switch {
	case err != nil:
		return nil, newPathError("statfs", path, err)
	case size == 0: // a file system that does not tell, such as ramfs
		return nil, nil
	case s.reserve == 0:
		s.reserve = min(256<<20, size/20)
	}
	return s, nil
}

// take accounts for n bytes that the entry at path needs, or refuses them before one is written. wrote says that they are
// on the disk, where the file system counts them.
func (s *space) take(n int64, path place) error {
	if s == nil || n == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left < n {
		free, _, err := s.calls.Free(s.dir)
		if err != nil {
			return newPathError("statfs", s.path, err)
		}
		free -= s.promised
		if free-n < s.reserve {
			return &LimitError{Path: path.String(), Field: "ReserveBytes", Limit: s.reserve, Got: max(free-n, 0)}
		}
		s.left = min(free-s.reserve, n+askEvery)
	}
	s.left -= n
	s.promised += n
	return nil
}

func (s *space) wrote(n int64) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.promised -= n
	}
}

// allocated returns what a copy of a file will occupy: holes stay holes.
func allocated(st *fsys.Stat) int64 {
	const block = 4 << 10
	const most = 1 << 62
	size := min(st.Size, min(st.Blocks, most/512)*512, most)
	return (size + block - 1) &^ (block - 1)
}
