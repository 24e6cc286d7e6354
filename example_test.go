//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"holdstill.example/snapshot"
)

// workspace makes a directory for an example.
func workspace() (dir string, remove func()) {
	dir, err := os.MkdirTemp("", "example-*")
	if err != nil {
		log.Fatal(err)
	}
	app := filepath.Join(dir, "app")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(app, "bin"), 0o755),
		os.WriteFile(filepath.Join(app, "app.conf"), []byte("port = 80\n"), 0o644),
		os.WriteFile(filepath.Join(app, "bin/run"), []byte("#!/bin/sh\n"), 0o755),
		os.Symlink("bin/run", filepath.Join(app, "run")),
	); err != nil {
		log.Fatal(err)
	}
	return dir, func() { _ = removeCopy(dir) }
}

func ExampleReadFile() {
	dir, remove := workspace()
	defer remove()

	b, proof, err := snapshot.ReadFile(context.Background(), filepath.Join(dir, "app/app.conf"), nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s%d bytes, evidence at least stable: %t\n", b, proof.Entry.Size, proof.Evidence >= snapshot.Stable)
	// Output:
	// port = 80
	// 10 bytes, evidence at least stable: true
}

func ExampleCopyFile() {
	dir, remove := workspace()
	defer remove()

	proof, err := snapshot.CopyFile(context.Background(), filepath.Join(dir, "copy"), filepath.Join(dir, "app/bin/run"), nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(proof.Entry.Path, proof.Entry.Mode, proof.Entry.Digest)
	// Output:
	// run -r-x------ a8076d3d28d21e02012b20eaf7dbf75409a6277134439025f282e368e3305abf
}

func ExampleCopyDir() {
	dir, remove := workspace()
	defer remove()

	report, err := snapshot.CopyDir(context.Background(), filepath.Join(dir, "frozen"), filepath.Join(dir, "app"), &snapshot.Options{
		Limits: snapshot.PackageLimits(),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Files, "files", report.Dirs, "directories", report.Links, "link")
	for entry, err := range report.Manifest.All() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(entry.Mode, entry.Path)
	}
	// Output:
	// 2 files 2 directories 1 link
	// dr-x------ .
	// -r-------- app.conf
	// dr-x------ bin
	// -r-x------ bin/run
	// Lrwxrwxrwx run
}

// What changed in a directory since an earlier look.
func ExampleScan() {
	dir, remove := workspace()
	defer remove()
	app := filepath.Join(dir, "app")

	before, err := snapshot.Scan(context.Background(), app, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(app, "app.conf"), []byte("port = 81\n"), 0o644); err != nil {
		log.Fatal(err)
	}
	if err := os.Remove(filepath.Join(app, "run")); err != nil {
		log.Fatal(err)
	}
	after, err := snapshot.Scan(context.Background(), app, nil)
	if err != nil {
		log.Fatal(err)
	}
	for change, err := range snapshot.Diff(before.Manifest, after.Manifest) {
		switch {
		case err != nil:
			log.Fatal(err)
		case change.Old == nil:
			fmt.Println("added", change.Path)
		case change.New == nil:
			fmt.Println("removed", change.Path)
		default:
			fmt.Println("changed", change.Path)
		}
	}
	// Output:
	// changed app.conf
	// removed run
}

func ExampleVerify() {
	dir, remove := workspace()
	defer remove()
	app := filepath.Join(dir, "app")
	report, err := snapshot.Scan(context.Background(), app, nil)
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(snapshot.Verify(context.Background(), app, report.Manifest, nil))
	if err := os.Chmod(filepath.Join(app, "bin/run"), 0o777); err != nil {
		log.Fatal(err)
	}
	err = snapshot.Verify(context.Background(), app, report.Manifest, nil)
	if mismatch, ok := errors.AsType[*snapshot.MismatchError](err); ok {
		fmt.Println(mismatch.Path, "had the mode", mismatch.Recorded.Mode, "and has", mismatch.Received.Mode)
	}
	// Output:
	// <nil>
	// bin/run had the mode -rwxr-xr-x and has -rwxrwxrwx
}

func ExampleRetry() {
	dir, remove := workspace()
	defer remove()

	tries := 0
	err := snapshot.Retry(context.Background(), nil, func(ctx context.Context) error {
		if tries++; tries == 1 {
			return snapshot.ErrBusy // as CopyFile says of a file that somebody writes
		}
		_, err := snapshot.CopyFile(ctx, filepath.Join(dir, "copy"), filepath.Join(dir, "app/app.conf"), nil)
		return err
	})
	fmt.Println(tries, "tries:", err)
	// Output:
	// 2 tries: <nil>
}

// One file can be looked at, copied to any Writer, and checked again later.
func ExampleOpen() {
	dir, remove := workspace()
	defer remove()

	f, err := snapshot.Open(filepath.Join(dir, "app/app.conf"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	if _, err := f.CopyTo(context.Background(), os.Stdout); err != nil {
		log.Fatal(err) // and what was written is worth nothing
	}
	fmt.Println(f.Check())
	if err := os.WriteFile(f.Name(), []byte("port = 8080\n"), 0o644); err != nil {
		log.Fatal(err)
	}
	_, err = f.CopyTo(context.Background(), io.Discard)
	fmt.Println(errors.Is(err, snapshot.ErrChanged), snapshot.Retryable(err))
	// Output:
	// port = 80
	// <nil>
	// true true
}
