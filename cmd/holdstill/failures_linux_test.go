// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot/internal/fstest"
)

// assertFailure runs the command with --json and asserts what its failure says, and that nothing is new in dir.
func assertFailure(t *testing.T, dir, code, path string, exit int, args ...string) {
	t.Helper()
	before := fstest.Contents(t, dir)
	r := holdstill(t, append(args, "--json")...)
	assert.Equal(t, exit, r.code, "%q: %s", args, r.stderr)
	o := failureOf(t, r)
	assert.Equal(t, code, o["code"], "%q: %s", args, r.stderr)
	assert.Equal(t, path, o["path"], "%q: %s", args, r.stderr)
	assert.Equal(t, exit == exitAgain, o["retryable"], "%q", args)
	assert.Equal(t, before, fstest.Contents(t, dir), "%q", args)

	plain := holdstill(t, args...)
	assert.Equal(t, exit, plain.code, "%q", args)
	assert.Empty(t, plain.stdout, "%q", args)
	assert.True(t, strings.HasPrefix(plain.stderr, "holdstill: ") && strings.Count(plain.stderr, "\n") == 1, "%q: %q", args, plain.stderr)
}

func TestFailures(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/a=hello", "suid/f 04755=x", "fifo/p|", "links/l => none", "exposed/f=x", "exposed/ 0777", "m=no manifest")
	at := func(name string) string { return filepath.Join(dir, name) }
	dst := at("dst")
	for _, tt := range []struct {
		code, path string
		args       []string
	}{
		{"special-mode", at("suid/f"), []string{"take", "--preserve-mode", at("suid"), dst}},
		{"not-regular", at("fifo/p"), []string{"take", at("fifo"), dst}},
		{"not-regular", "/dev/null", []string{"take", "/dev/null", dst}},
		{"not-regular", "/proc/self/status", []string{"take", "/proc/self/status", dst}},
		{"escapes", at("links/l"), []string{"take", at("links"), dst}},
		{"escapes", at("links/l"), []string{"scan", at("links")}},
		{"limit", at("src/a"), []string{"take", "--max-file-bytes", "4", at("src"), dst}},
		{"limit", at("src"), []string{"scan", "--max-entries", "1", at("src")}},
		{"not-found", at("none"), []string{"verify", at("src"), "--manifest", at("none")}},
		{"invalid", at("m"), []string{"verify", at("src"), "--manifest", at("m")}},
		{"exists", at("suid"), []string{"take", at("src"), at("suid")}},
		{"not-found", at("none"), []string{"scan", at("none")}},
		{"invalid", "", []string{"take", at("src"), dst, "--never-lock", "--require", "quiescent"}},
	} {
		t.Run(tt.code+" "+tt.args[0], func(t *testing.T) {
			assertFailure(t, dir, tt.code, tt.path, exitFailed, tt.args...)
		})
	}
}

// TestSweepFailures: it prints what it removed all the same.
func TestSweepFailures(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "exposed/ 0777")
	for name, code := range map[string]string{"exposed": "untrusted", "none": "not-found"} {
		r := holdstill(t, "sweep", "--json", filepath.Join(dir, name))
		assert.Equal(t, exitFailed, r.code, name)
		o := failureOf(t, r)
		assert.Equal(t, code, o["code"], name)
		assert.Equal(t, filepath.Join(dir, name), o["path"], name)
	}
}

func TestFailureNotPermitted(t *testing.T) {
	t.Parallel()
	fstest.NotRoot(t)
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/a 0000=hello", "ro/ 0555", "f=x")
	at := func(name string) string { return filepath.Join(dir, name) }
	assertFailure(t, dir, "permission", at("src/a"), exitFailed, "take", at("src"), at("dst"))
	assertFailure(t, dir, "permission", at("src/a"), exitFailed, "take", at("src/a"), at("dst"))
	assertFailure(t, dir, "permission", at("ro/dst"), exitFailed, "take", at("f"), at("ro/dst"))
}

func TestFailureForLackOfEvidence(t *testing.T) {
	t.Parallel()
	dir := fstest.Dir(t, "tmpfs")
	fstest.Make(t, dir, "src/a=hello")
	fstest.Settle(t, dir)
	src := filepath.Join(dir, "src")
	assertFailure(t, dir, "evidence", src+"/a", exitFailed, "take", "--require", "coherent", src, filepath.Join(dir, "dst"))

	r := holdstill(t, "take", src, filepath.Join(dir, "dst"))
	assert.Equal(t, exitDone, r.code)
	assert.Contains(t, r.stderr, "note: ", "less than coherent is said aloud")
	assert.Contains(t, r.stderr, "stable")
	assert.Equal(t, exitDone, holdstill(t, "take", "--require", "quiescent", src, filepath.Join(dir, "dst2")).code)
}

func TestFailureForAWriter(t *testing.T) {
	t.Parallel()
	dir := fstest.Dir(t, "ext4")
	fstest.Make(t, dir, "src/a=hello")
	fstest.Settle(t, dir)
	f, err := os.OpenFile(filepath.Join(dir, "src/a"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	src := filepath.Join(dir, "src")
	assertFailure(t, dir, "busy", src+"/a", exitAgain, "take", "--require", "quiescent", src, filepath.Join(dir, "dst"))
	assertFailure(t, dir, "busy", src+"/a", exitAgain, "take", "--require", "coherent", src+"/a", filepath.Join(dir, "dst"))
}

func TestFailureForChange(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/log=@8MiB", "out/")
	src := filepath.Join(dir, "src")
	fstest.Start(t, "torn", "--how", "chunks", "--size", "8388608", filepath.Join(src, "log"))
	for _, args := range [][]string{
		{"take", "--json", "--attempts", "2", src, filepath.Join(dir, "out/dst")},
		{"take", "--json", "--attempts", "2", filepath.Join(src, "log"), filepath.Join(dir, "out/dst")},
		{"scan", "--json", src},
	} {
		r := holdstill(t, args...)
		for tries := 1; r.code == exitDone && tries < 200; tries++ { // on a busy machine the writer may have rested for so long
			_ = os.Chmod(filepath.Join(dir, "out/dst"), 0o700) // there is none of a scan
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "out/dst")))
			r = holdstill(t, args...)
		}
		require.Equal(t, exitAgain, r.code, "%q: %s", args, r.stderr)
		o := failureOf(t, r)
		assert.Contains(t, []string{"changed-during-snapshot", "changed-before-snapshot"}, o["code"])
		assert.Equal(t, filepath.Join(src, "log"), o["path"])
		assert.Equal(t, "modified", o["reason"])
		assert.Contains(t, o["fields"], "mtime")
		assert.Equal(t, true, o["retryable"])
		fstest.Nothing(t, filepath.Join(dir, "out"))
	}
}

func TestFailureForSpace(t *testing.T) {
	t.Parallel()
	small := fstest.Mount(t, "tmpfs-4m")
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/a=@10MiB")
	src, dst := filepath.Join(dir, "src"), filepath.Join(small, "dst")
	assertFailure(t, small, "space", src+"/a", exitFailed, "take", "--reserve", "-1", src, dst)
	assertFailure(t, small, "limit", src+"/a", exitFailed, "take", src, dst)
}

func TestFailureIsCancel(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/a=hello")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"take", filepath.Join(dir, "src"), filepath.Join(dir, "dst")}, {"scan", filepath.Join(dir, "src")}} {
		var stdout, stderr bytes.Buffer
		code := run(ctx, append(args, "--json"), &stdout, &stderr, &environ{})
		assert.Equal(t, exitFailed, code)
		assert.Equal(t, "canceled", failureOf(t, result{code, stdout.String(), stderr.String()})["code"])
		fstest.Nothing(t, dir, "src")
	}
}

// TestSweepAfterAKill: kill -9 leaves an unfinished copy, and the verb that it is for takes it away.
func TestSweepAfterAKill(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/hole=~256GiB", "parent/")
	parent := filepath.Join(dir, "parent")
	cmd, stderr := child(t, "command", "take", filepath.Join(dir, "src"), filepath.Join(parent, "dst"))
	require.NoError(t, cmd.Start())
	// Only what holds a tree has its lock.
	for begun := false; !begun; runtime.Gosched() {
		trees, err := filepath.Glob(parent + "/.holdstill-*/tree")
		require.NoError(t, err)
		begun = len(trees) == 1
		require.NoError(t, cmd.Process.Signal(syscall.Signal(0)), "%s", stderr)
	}
	assert.Equal(t, result{}, holdstill(t, "sweep", parent), "while it is at work")
	require.NoError(t, cmd.Process.Kill())
	assert.Error(t, cmd.Wait())

	left, err := filepath.Glob(parent + "/.holdstill-*")
	require.NoError(t, err)
	require.Len(t, left, 1)
	assert.Equal(t, result{stdout: "removed " + left[0] + "\n"}, holdstill(t, "sweep", parent))
	fstest.Nothing(t, parent)
}
