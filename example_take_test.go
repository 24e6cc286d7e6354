//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"holdstill.example/snapshot"
)

// TestMain lets the test binary be the child processes of the examples.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 4 && os.Args[1] == "serve":
		serve(os.Args[2], os.Args[3])
	case len(os.Args) == 3 && os.Args[1] == "die":
		die(os.Args[2])
	default:
		os.Exit(m.Run())
	}
}

// serve is the child: it is handed the directory and the digest of a snapshot, and uses nothing before both agree.
func serve(dir, digest string) {
	ctx := context.Background()
	want, err := snapshot.ParseDigest(digest)
	if err != nil {
		log.Fatal(err)
	}
	s, err := snapshot.OpenSnapshot(ctx, dir, want)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	conf, err := fs.ReadFile(s.FS(), "app/app.conf")
	if err != nil {
		log.Fatal(err)
	}
	run, err := s.Open(ctx, "app/bin/run") // its bytes are hashed through this handle
	if err != nil {
		log.Fatal(err)
	}
	defer run.Close()
	fmt.Printf("the child runs %s with %s", filepath.Base(run.Name()), conf)
}

// die is a program that is killed while it has a snapshot.
func die(app string) {
	_, err := snapshot.Take(context.Background(), []snapshot.Root{{Path: app}}, &snapshot.TakeOptions{Parent: filepath.Dir(app)})
	if err != nil {
		log.Fatal(err)
	}
	os.Exit(1)
}

// A service freezes what it is going to run, and hands it to a child process by the directory and the digest of its manifest.
// The child's half is OpenSnapshot with both, then FS, Path or Open.
func ExampleTake() {
	dir, remove := workspace()
	defer remove()
	app := filepath.Join(dir, "app")

	s, err := snapshot.Take(context.Background(), []snapshot.Root{{Path: app}}, &snapshot.TakeOptions{
		Options: snapshot.Options{Limits: snapshot.PackageLimits()},
		Parent:  dir, // nobody else may write to it
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close() // removes it

	// Whatever an installer does now is not seen by the child.
	if err := os.WriteFile(filepath.Join(app, "app.conf"), []byte("port = 81\n"), 0o644); err != nil {
		log.Fatal(err)
	}
	child := exec.Command(os.Args[0], "serve", s.Dir(), s.Manifest().Digest().String())
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	if err := child.Run(); err != nil {
		log.Fatal(err)
	}

	fmt.Println(s.Close())
	_, err = os.Stat(s.Dir())
	fmt.Println("removed:", errors.Is(err, fs.ErrNotExist))
	// Output:
	// the child runs run with port = 80
	// <nil>
	// removed: true
}

// A service that starts removes what killed ones have left. What is in use stays, and so does what was detached.
func ExampleSweep() {
	dir, remove := workspace()
	defer remove()
	ctx := context.Background()
	app := filepath.Join(dir, "app")
	if _, ok := errors.AsType[*exec.ExitError](exec.Command(os.Args[0], "die", app).Run()); !ok {
		log.Fatal("it did not die")
	}

	inUse, err := snapshot.Take(ctx, []snapshot.Root{{Path: app}}, &snapshot.TakeOptions{Parent: dir})
	if err != nil {
		log.Fatal(err)
	}
	defer inUse.Close()
	removed, err := snapshot.Sweep(ctx, dir)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("removed:", len(removed))
	fmt.Println("in use:", inUse.Verify(ctx))
	// Output:
	// removed: 1
	// in use: <nil>
}
