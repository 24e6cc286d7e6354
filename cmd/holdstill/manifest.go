// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/quote"
)

// checkManifest refuses, before any work, a manifest that could not be written after it. An empty name is none.
// In SRC it would make the source another one than it records.
func checkManifest(name, src, dst string) error {
	if name == "" {
		return nil
	}
	for operand, dir := range map[string]string{"SRC": src, "DST": dst} {
		if dir == "" {
			continue
		}
		inside, err := within(name, dir)
		if err != nil {
			return err
		}
		if inside {
			return &usageError{"--manifest: " + quote.Name(name) + " would lie inside " + operand}
		}
	}
	if _, err := os.Lstat(name); err == nil {
		return &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	_, err := os.Stat(filepath.Dir(name))
	return err
}

// within reports whether the file name would be dir or lie beneath it, by whatever path it is reached.
func within(name, dir string) (bool, error) {
	name, err := filepath.Abs(name)
	if err != nil {
		return false, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return false, err
	}
	// Above a link lies another directory than above its name.
	if real, err := filepath.EvalSymlinks(filepath.Dir(name)); err == nil {
		name = filepath.Join(real, filepath.Base(name))
	}
	for ; ; name = filepath.Dir(name) {
		if same(name, dir) {
			return true, nil
		}
		if name == filepath.Dir(name) {
			return false, nil
		}
	}
}

// same reports whether a and b are one file, or will be one: the same name in the same directory.
func same(a, b string) bool {
	ai, aerr := os.Stat(a)
	bi, berr := os.Stat(b)
	if aerr == nil && berr == nil {
		return os.SameFile(ai, bi)
	}
	return aerr != nil && berr != nil && filepath.Base(a) == filepath.Base(b) &&
		a != filepath.Dir(a) && b != filepath.Dir(b) && same(filepath.Dir(a), filepath.Dir(b))
}

// writeManifest makes a file that is complete or absent, and replaces none: with the call that promises it.
func writeManifest(ctx context.Context, name string, m *snapshot.Manifest) (err error) {
	if name == "" {
		return nil
	}
	temporary := filepath.Join(os.TempDir(), "holdstill-"+rand.Text()+".mtree")
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(temporary)) }()
	_, err = m.WriteTo(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	_, err = snapshot.CopyFile(ctx, name, temporary, &snapshot.Options{PreserveMode: true, Durable: true})
	return err
}
