//go:build linux

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/containerd/continuity/fs"
	"github.com/otiai10/copy"
	fsutil "github.com/tonistiigi/fsutil/copy"

	"holdstill.example/snapshot"
)

// The candidates that bars name.
const (
	cpA       = "`cp -a`"
	copyDir   = "CopyDir"
	oneWorker = "CopyDir, one worker"
	durable   = "CopyDir, Durable"
	copyFile  = "CopyFile"
	scan      = "Scan"
	acpx      = "ACPX snapshot, ported"
	hashAlone = "SHA-256 alone"
)

// candidate is one way to copy a tree: a command, or a function that a child process of this program calls.
type candidate struct {
	name    string
	loads   []string
	run     func(ctx context.Context, dst, src string) error
	tool    string // that must be installed
	command string // for the shell: $1 is the source, $2 the copy
	prepare string // the same, outside the timing
	partial bool   // it makes no tree like the source
	ours    bool   // if it fails, so does everything
}

func candidates() []*candidate {
	all := []string{"W1", "W2", "W3", "W5/10", "W5", "W6 flat", "W6"}
	trees := []string{"W1", "W2", "W3"}
	small := []string{"W2", "W3"}
	return []*candidate{
		{name: cpA, loads: append(all, "W4"), tool: "cp", command: `exec cp -a "$1" "$2"`, ours: true},
		{name: copyDir, loads: all, run: withOptions(nil), ours: true},
		{name: oneWorker, loads: small, run: withOptions(&snapshot.Options{Workers: 1}), ours: true},
		{name: durable, loads: []string{"W2"}, run: withOptions(&snapshot.Options{Durable: true}), ours: true},
		{name: copyFile, loads: []string{"W1"}, run: runCopyFile, ours: true},
		{name: scan, loads: []string{"W4"}, partial: true, ours: true, run: func(ctx context.Context, _, src string) error {
			_, err := snapshot.Scan(ctx, src, nil)
			return err
		}},
		{name: "system calls alone, one thread", loads: all, run: bareCopy, ours: true},
		{name: hashAlone, loads: []string{"W1", "W3", "W4"}, partial: true, run: bareHash, ours: true},
		{name: acpx, loads: small, run: acpxSnapshot, ours: true},
		{name: "`rsync -a`", loads: trees, tool: "rsync", command: `exec rsync -a "$1/" "$2"`},
		{name: "`tar` to `tar`", loads: trees, tool: "tar", prepare: `mkdir "$2"`, command: `tar -C "$1" -cf - . | tar -C "$2" -xpf -`},
		{name: "os.CopyFS", loads: trees, run: func(_ context.Context, dst, src string) error {
			return os.CopyFS(dst, os.DirFS(src))
		}},
		{name: "otiai10/copy", loads: trees, run: func(_ context.Context, dst, src string) error {
			return copy.Copy(src, dst, copy.Options{PreserveTimes: true, PreserveOwner: true})
		}},
		{name: "containerd/continuity", loads: trees, run: func(_ context.Context, dst, src string) error {
			return fs.CopyDir(dst, src)
		}},
		{name: "tonistiigi/fsutil", loads: trees, run: func(ctx context.Context, dst, src string) error {
			return fsutil.Copy(ctx, filepath.Dir(src), filepath.Base(src), filepath.Dir(dst), filepath.Base(dst))
		}},
		{
			name: "restic, into a repository", loads: small, partial: true, tool: "restic",
			prepare: `restic -q --no-cache -r "$2" init`,
			command: `exec restic -q --no-cache -r "$2" backup "$1"`,
		},
		{
			name: "borg, into a repository", loads: small, partial: true, tool: "borg",
			prepare: `borg init -e none "$2"`,
			command: `exec borg create "$2::copy" "$1"`,
		},
	}
}

// candidatesFor returns those that run on a workload and are installed.
func candidatesFor(cfg *config, w *workload) (list []*candidate, absent []string) {
	for _, c := range candidates() {
		if !slices.Contains(c.loads, w.name) || c.name != cpA && !cfg.only.MatchString(c.name) {
			continue
		}
		if c.tool != "" {
			if _, err := exec.LookPath(c.tool); err != nil {
				absent = append(absent, c.tool)
				continue
			}
		}
		list = append(list, c)
	}
	return list, absent
}

func withOptions(opts *snapshot.Options) func(ctx context.Context, dst, src string) error {
	return func(ctx context.Context, dst, src string) error {
		_, err := snapshot.CopyDir(ctx, dst, src, opts)
		return err
	}
}

// runCopyFile copies the one file of W1.
func runCopyFile(ctx context.Context, dst, src string) error {
	names, err := filepath.Glob(filepath.Join(src, "*"))
	if err != nil {
		return err
	}
	if err := os.Mkdir(dst, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if _, err := snapshot.CopyFile(ctx, filepath.Join(dst, filepath.Base(name)), name, nil); err != nil {
			return err
		}
	}
	return nil
}
