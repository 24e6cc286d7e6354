// SPDX-License-Identifier: Apache-2.0

package snapshot

import "io/fs"

// snapshotFS serves tree/ as long as its snapshot is open: Close waits for what is at work.
type snapshotFS struct{ s *Snapshot }

// whileOpen calls f, which gets the file system of the held directory.
func whileOpen[T any](s *Snapshot, verb, name string, f func(fs.FS, string) (T, error)) (T, error) {
	if err := s.enter(verb, name); err != nil {
		var none T
		return none, err
	}
	defer s.calls.Done()
	return f(s.files.FS(), name)
}

func (f snapshotFS) Open(name string) (fs.File, error) {
	return whileOpen(f.s, "open", name, fs.FS.Open)
}

func (f snapshotFS) ReadDir(name string) ([]fs.DirEntry, error) {
	return whileOpen(f.s, "open", name, fs.ReadDir)
}

func (f snapshotFS) ReadFile(name string) ([]byte, error) {
	return whileOpen(f.s, "open", name, fs.ReadFile)
}

func (f snapshotFS) Stat(name string) (fs.FileInfo, error) {
	return whileOpen(f.s, "stat", name, fs.Stat)
}

func (f snapshotFS) ReadLink(name string) (string, error) {
	return whileOpen(f.s, "readlink", name, fs.ReadLink)
}

func (f snapshotFS) Lstat(name string) (fs.FileInfo, error) {
	return whileOpen(f.s, "lstat", name, fs.Lstat)
}
