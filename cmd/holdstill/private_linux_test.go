// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// private makes a snapshot in dir/parent with args after it, and returns its directory and what was said beside that.
func private(t *testing.T, dir string, args ...string) (made, stderr string) {
	t.Helper()
	r := holdstill(t, append([]string{"private", "--parent", filepath.Join(dir, "parent")}, args...)...)
	require.Equal(t, exitDone, r.code, "%q: %s", args, r.stderr)
	made, ok := strings.CutSuffix(r.stdout, "\n")
	require.True(t, ok, "%q", r.stdout)
	return made, r.stderr
}

// roots makes two packages, of which one leads to the other, and a place for snapshots of them.
func roots(t *testing.T) (dir string) {
	t.Helper()
	dir = fstest.TempDir(t)
	fstest.Make(t, dir, "parent/ 0700", "app/main.js=x", "app/node_modules/lib => ../../lib", "app/run 0755=#!/bin/sh", "lib/index.js=lib", "tool 0755=#!")
	return dir
}

// digestIn returns the digest that text tells.
func digestIn(t *testing.T, text string) string {
	t.Helper()
	found := regexp.MustCompile(`manifest ([0-9a-f]{64})\n`).FindStringSubmatch(text)
	require.NotNil(t, found, "%s", text)
	return found[1]
}

// TestPrivate: stdout is the directory and nothing else, so that a script can say DIR=$(holdstill private …).
func TestPrivate(t *testing.T) {
	t.Parallel()
	dir := roots(t)
	made, said := private(t, dir, dir+"/app", dir+"/lib", dir+"/tool")
	assert.Equal(t, filepath.Join(dir, "parent"), filepath.Dir(made))
	assert.Regexp(t, `^copied 4 files, 4 directories, 1 link, \S+ bytes to \S+; one instant: \w+; evidence: .*; manifest [0-9a-f]{64}\n$`, said)
	assert.Equal(t, map[string]string{
		".": "dir 0500", "lock": `file 0600 "holdstill detached 1\n"`, "manifest.mtree": fstest.Read(t, made)["manifest.mtree"], "tree": "dir 0500",
		"tree/app": "dir 0500", "tree/app/main.js": `file 0400 "x"`, "tree/app/node_modules": "dir 0500", "tree/app/node_modules/lib": "link ../../lib",
		"tree/app/run": `file 0500 "#!/bin/sh"`, "tree/lib": "dir 0500", "tree/lib/index.js": `file 0400 "lib"`, "tree/tool": `file 0500 "#!"`,
	}, fstest.Read(t, made))

	assert.Equal(t, result{}, holdstill(t, "sweep", filepath.Join(dir, "parent")), "it was detached")
	assert.Equal(t, result{stdout: "removed " + made + "\n"}, holdstill(t, "remove", made))
	fstest.Nothing(t, filepath.Join(dir, "parent"))

	assert.Equal(t, exitFailed, holdstill(t, "remove", made).code)
	o := failureOf(t, holdstill(t, "remove", "--json", made))
	assert.Equal(t, "not-found", o["code"])
	assert.Equal(t, made, o["path"])
}

// TestPrivateQuiet still prints the directory: without it nobody would find what was made.
func TestPrivateQuiet(t *testing.T) {
	t.Parallel()
	dir := roots(t)
	made, said := private(t, dir, "--quiet", dir+"/lib")
	assert.Empty(t, said)
	assert.Equal(t, result{}, holdstill(t, "verify", "--quiet", made))
	assert.Equal(t, result{}, holdstill(t, "remove", "--quiet", made))
}

func TestPrivateJSON(t *testing.T) {
	t.Parallel()
	dir := roots(t)
	made, said := private(t, dir, "--json", dir+"/app", dir+"/lib")
	assert.Empty(t, said)
	o := object(t, made)
	for _, key := range []string{
		"dir", "files", "dirs", "links", "bytes", "cloned", "skipped", "evidence", "weakest", "rounds", "metadata_only",
		"manifest_digest", "instant", "exposed", "seconds",
	} {
		assert.Contains(t, o, key)
	}
	name, _ := o["dir"].(map[string]any)
	where, _ := name["path"].(string)
	digest, _ := o["manifest_digest"].(string)
	r := holdstill(t, "verify", "--json", "--digest", digest, where)
	require.Equal(t, exitDone, r.code, r.stderr)
	assert.Equal(t, map[string]any{"equal": true, "anchored": true, "entries": 8.0, "manifest_digest": digest}, object(t, r.stdout))
	assert.Equal(t, map[string]any{"removed": []any{map[string]any{"path": where}}}, object(t, holdstill(t, "remove", "--json", where).stdout))
}

// TestPrivateNames: NAME= gives a root its place. A slash before the sign makes it a part of the path.
func TestPrivateNames(t *testing.T) {
	t.Parallel()
	for operand, want := range map[string]snapshot.Root{
		"f":        {Path: "f"},
		"x=f":      {Name: "x", Path: "f"},
		"x=/a/b=c": {Name: "x", Path: "/a/b=c"},
		"./x=y":    {Path: "./x=y"},
		"/a=b/c":   {Path: "/a=b/c"},
		"=f":       {Path: "f"},
		"x=":       {Name: "x"},
		"-n=f":     {Name: "-n", Path: "f"},
		"a\xff=f":  {Name: "a\xff", Path: "f"},
	} {
		assert.Equal(t, want, parseRoot(operand), "%q", operand)
	}

	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "parent/ 0700", "f=one", "d/f=two", "x=y", "toF => f", "toD => d")
	require.NoError(t, os.Rename(dir+"/x", dir+"/x=y"))
	made, _ := private(t, dir, dir+"/f", dir+"/d/f", "third="+dir+"/d/f", "a\xff="+dir+"/f", dir+"/toF", dir+"/toD", dir+"/x=y", "--", "-n="+dir+"/f")
	assert.Equal(t, map[string]string{
		".": "dir", "f": `file "one"`, "f-2": `file "two"`, "third": `file "two"`, "a\xff": `file "one"`, "toF": `file "one"`, "toD": "dir",
		"toD/f": `file "two"`, "x=y": `file "y"`, "-n": `file "one"`,
	}, fstest.Contents(t, made+"/tree"))
	assert.Equal(t, exitDone, holdstill(t, "remove", made).code)
}

// TestPrivateAliases adds links between roots, which keep what they hide from being lost.
func TestPrivateAliases(t *testing.T) {
	t.Parallel()
	dir := roots(t)
	made, _ := private(t, dir, "--alias", "app/node_modules/other=lib", "--alias", "bin/deep/tool=tool", "--alias", "x=lib/index.js", dir+"/app", dir+"/lib", dir+"/tool")
	got := fstest.Contents(t, made+"/tree")
	assert.Equal(t, "link ../../lib", got["app/node_modules/other"])
	assert.Equal(t, "link ../../tool", got["bin/deep/tool"])
	assert.Equal(t, "link lib/index.js", got["x"])
	assert.Equal(t, exitDone, holdstill(t, "verify", made).code)
	assert.Equal(t, exitDone, holdstill(t, "remove", made).code)
}

func TestPrivateRefuses(t *testing.T) {
	t.Parallel()
	dir := roots(t)
	fstest.Make(t, dir, "exposed/ 0777", "out/l => ../lib/index.js", "fifo/p|")
	at := func(name string) string { return filepath.Join(dir, name) }
	parent := "--parent=" + at("parent")
	for _, tt := range []struct {
		name, code, path string
		args             []string
	}{
		{"missing root", "not-found", at("none"), []string{parent, at("lib"), at("none")}},
		{"missing parent", "not-found", at("none"), []string{"--parent", at("none"), at("lib")}},
		{"parent that others may write", "untrusted", at("exposed"), []string{"--parent", at("exposed"), at("lib")}},
		{"parent inside a root", "escapes", "", []string{"--parent", at("lib"), at("lib")}},
		{"one name twice", "exists", "x", []string{parent, "x=" + at("lib"), "x=" + at("app")}},
		{"name that leads up", "invalid", "..", []string{parent, "..=" + at("lib")}},
		{"no path", "not-found", "", []string{parent, "x="}},
		{"link to what is no root", "escapes", "", []string{parent, at("out"), at("app")}},
		{"FIFO in a root", "not-regular", "", []string{parent, at("fifo")}},
		{"FIFO as a root", "not-regular", at("fifo/p"), []string{parent, at("fifo/p")}},
		{"alias over an entry", "exists", "lib/index.js", []string{parent, at("lib"), "--alias", "lib/index.js=lib"}},
		{"alias to nothing", "not-found", "lib/x", []string{parent, at("lib"), "--alias", "lib/x=lib/none"}},
		{"alias out of the snapshot", "escapes", "lib/x", []string{parent, at("lib"), "--alias", "lib/x=../../lib"}},
		{"large file", "limit", "", []string{parent, at("lib"), "--max-file-bytes", "2"}},
		{"no room", "limit", "", []string{parent, at("lib"), "--reserve", "1024T"}},
	} {
		r := holdstill(t, append([]string{"private", "--json"}, tt.args...)...)
		assert.Equal(t, exitFailed, r.code, "%s: %s", tt.name, r.stderr)
		o := failureOf(t, r)
		assert.Equal(t, tt.code, o["code"], "%s: %s", tt.name, r.stderr)
		assert.Equal(t, false, o["retryable"], tt.name)
		if tt.path != "" {
			assert.Equal(t, tt.path, o["path"], tt.name)
		}
		fstest.Nothing(t, at("parent"))
		fstest.Nothing(t, at("exposed"))
	}
	for _, args := range [][]string{
		{}, {parent, ""}, {parent, at("lib"), "--alias", "x"}, {parent, at("lib"), "--manifest", at("m")}, {parent, at("lib"), "--per"},
	} {
		r := holdstill(t, append([]string{"private"}, args...)...)
		assert.Equal(t, exitUsage, r.code, "%q: %s", args, r.stderr)
		assert.Empty(t, r.stdout)
	}
}

// TestPrivateOfChanging: a root that does not hold still is a reason to try again, with nothing printed that a script could use.
func TestPrivateOfChanging(t *testing.T) {
	t.Parallel()
	dir := roots(t)
	fstest.Make(t, dir, "log/log=@8MiB")
	fstest.Start(t, "torn", "--how", "chunks", "--size", "8388608", dir+"/log/log")
	for _, args := range [][]string{{}, {"--json"}} {
		r := result{}
		// On a busy machine the writer may stand still for as long as it takes.
		for tries := 0; ; tries++ {
			r = holdstill(t, append([]string{"private", "--attempts", "2", "--parent", dir + "/parent", dir + "/lib", dir + "/log"}, args...)...)
			if r.code != exitDone || tries == 100 {
				break
			}
			entries, err := os.ReadDir(dir + "/parent")
			require.NoError(t, err)
			for _, e := range entries {
				require.Equal(t, exitDone, holdstill(t, "remove", "--quiet", dir+"/parent/"+e.Name()).code)
			}
		}
		assert.Equal(t, exitAgain, r.code, r.stderr)
		assert.Empty(t, r.stdout)
		assert.Contains(t, r.stderr, dir+"/log/log")
		fstest.Nothing(t, dir+"/parent")
	}
}

// TestVerifyPrivate: without a digest a snapshot vouches for itself only, and that is said.
func TestVerifyPrivate(t *testing.T) {
	t.Parallel()
	dir := roots(t)
	made, said := private(t, dir, dir+"/app", dir+"/lib")
	digest := digestIn(t, said)

	assert.Equal(t, result{
		stdout: made + ": equal, 8 entries; manifest " + digest + "\n",
		stderr: "note: " + made + ": consistent with its own manifest, not proof of origin\n",
	}, holdstill(t, "verify", made))
	assert.Equal(t, result{stdout: made + ": equal, 8 entries; manifest " + digest + "\n"}, holdstill(t, "verify", "--digest", digest, made))
	r := holdstill(t, "verify", "--json", made)
	assert.Empty(t, r.stderr)
	assert.Equal(t, map[string]any{"equal": true, "anchored": false, "entries": 8.0, "manifest_digest": digest}, object(t, r.stdout))
	r = holdstill(t, "verify", "--manifest", made+"/manifest.mtree", "--digest", digest, made+"/tree")
	assert.Equal(t, exitDone, r.code, "tree/ is a directory like others: %s", r.stderr)

	for _, args := range [][]string{{"--digest", strings.Repeat("1", 64)}, {"--all", "--digest", digest}, {"--all"}} {
		r := holdstill(t, append([]string{"verify", made}, args...)...)
		assert.NotEqual(t, exitDone, r.code, "%q", args)
		assert.Empty(t, r.stdout, "%q", args)
	}
	assert.Equal(t, exitUsage, holdstill(t, "verify", made, "--all").code)
}

// TestTamperedPrivate: what is not as it was is named by verify. What private did not make, or does not list, is not removed.
func TestTamperedPrivate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, path string // in the manifest, or the snapshot itself
		verify     string // code
		remove     string // code, or empty: it is removed
		tamper     func(made string) error
	}{
		{"a byte", "lib/index.js", "mismatch", "", func(made string) error {
			return rewrite(made+"/tree/lib/index.js", "Lib")
		}},
		{"a mode", "lib/index.js", "mismatch", "", func(made string) error {
			return os.Chmod(made+"/tree/lib/index.js", 0o444)
		}},
		{"another file", "lib/more", "mismatch", "mismatch", func(made string) error {
			return opened(made+"/tree/lib", func() error { return os.WriteFile(made+"/tree/lib/more", nil, 0o400) })
		}},
		{"no file", "lib/index.js", "mismatch", "", func(made string) error {
			return opened(made+"/tree/lib", func() error { return os.Remove(made + "/tree/lib/index.js") })
		}},
		{"another link", "app/node_modules/lib", "mismatch", "mismatch", func(made string) error {
			name := made + "/tree/app/node_modules/lib"
			return opened(filepath.Dir(name), func() error {
				if err := os.Remove(name); err != nil {
					return err
				}
				return os.Symlink("/etc", name)
			})
		}},
		{"a file beside the tree", "", "mismatch", "mismatch", func(made string) error {
			return opened(made, func() error { return os.WriteFile(made+"/more", nil, 0o400) })
		}},
		{"no manifest", "", "", "mismatch", func(made string) error {
			return opened(made, func() error { return os.Remove(made + "/manifest.mtree") })
		}},
		{"no lock", "", "", "", func(made string) error {
			return opened(made, func() error { return os.Remove(made + "/lock") })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := roots(t)
			made, said := private(t, dir, dir+"/app", dir+"/lib")
			require.NoError(t, tt.tamper(made))
			for _, args := range [][]string{{}, {"--digest", digestIn(t, said)}} {
				r := holdstill(t, append([]string{"verify", "--json", made}, args...)...)
				assert.NotEqual(t, exitDone, r.code, "%q", args)
				if tt.verify == "" {
					continue
				}
				o := failureOf(t, r)
				assert.Equal(t, tt.verify, o["code"], r.stderr)
				assert.Equal(t, tt.path, strings.TrimPrefix(o["path"].(string), made), r.stderr)
			}
			before := fstest.Contents(t, made)
			r := holdstill(t, "remove", "--json", made)
			if tt.remove == "" && r.code == exitDone {
				fstest.Nothing(t, dir+"/parent")
				return
			}
			assert.Equal(t, exitFailed, r.code)
			assert.Equal(t, before, fstest.Contents(t, made), "nothing is touched")
			if tt.remove != "" {
				assert.Equal(t, tt.remove, failureOf(t, r)["code"], r.stderr)
			}
		})
	}
}

// rewrite changes a read-only file in place, and puts its mode and its times back.
func rewrite(name, content string) error {
	fi, err := os.Stat(name)
	if err != nil {
		return err
	}
	if err := os.Chmod(name, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(name, []byte(content), 0); err != nil {
		return err
	}
	if err := os.Chmod(name, fi.Mode()); err != nil {
		return err
	}
	return os.Chtimes(name, fi.ModTime(), fi.ModTime())
}

// opened does what the mode of a sealed directory forbids.
func opened(dir string, change func() error) error {
	if err := os.Chmod(dir, 0o700); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	return os.Chmod(dir, 0o500)
}

// TestRemoveRefuses: remove is no rm -rf.
func TestRemoveRefuses(t *testing.T) {
	t.Parallel()
	dir := roots(t)
	made, said := private(t, dir, dir+"/lib")
	link := filepath.Join(dir, "parent/.holdstill-"+strings.Repeat("a", 26))
	require.NoError(t, os.Symlink(made, link))
	alike := filepath.Join(dir, "parent/.holdstill-"+strings.Repeat("b", 26))
	fstest.Make(t, alike, "tree/mine=x", "manifest.mtree=x", "lock=x")
	before := fstest.Contents(t, dir)
	for _, name := range []string{dir, dir + "/lib", dir + "/tool", made + "/tree", link, alike, dir + "/none", "/", "."} {
		r := holdstill(t, "remove", name)
		assert.Equal(t, exitFailed, r.code, name)
		assert.Empty(t, r.stdout, name)
		assert.Equal(t, 1, strings.Count(r.stderr, "\n"), r.stderr)
	}
	digest, err := snapshot.ParseDigest(digestIn(t, said))
	require.NoError(t, err)
	s, err := snapshot.OpenSnapshot(t.Context(), made, digest)
	require.NoError(t, err)
	r := holdstill(t, "remove", "--json", made)
	assert.Equal(t, exitAgain, r.code, "a process has it open")
	assert.Equal(t, "busy", failureOf(t, r)["code"])
	assert.Equal(t, before, fstest.Contents(t, dir))
	require.NoError(t, s.Close())

	assert.Equal(t, exitDone, holdstill(t, "remove", made+"/").code)
	fstest.Nothing(t, dir+"/parent", filepath.Base(link), filepath.Base(alike))
}

// TestPrivateCannotPrint: who is not told where a snapshot is cannot remove it. Nothing is left then.
func TestPrivateCannotPrint(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, args := range [][]string{{}, {"--json"}, {"--quiet"}} {
		dir := roots(t)
		cmd, stderr := child(t, "command", append([]string{"private", "--parent", dir + "/parent", dir + "/lib"}, args...)...)
		cmd.Stdout = full
		assert.Error(t, cmd.Run())
		assert.Equal(t, exitFailed, cmd.ProcessState.ExitCode())
		assert.Contains(t, stderr.String(), "no space left on device")
		fstest.Nothing(t, dir+"/parent")
	}
}

// TestPrivateSignals: a signal leaves nothing behind, and the process dies of it.
func TestPrivateSignals(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			skipIgnored(t, sig)
			dir := roots(t)
			cmd, stdout, stderr := startPrivate(t, dir)
			require.NoError(t, cmd.Process.Signal(sig))
			assert.False(t, stdout.Scan(), "nothing is printed that a script could use")
			assert.Error(t, cmd.Wait())
			assertDiedOf(t, sig, cmd)
			assert.Contains(t, stderr.String(), "stopped by signal: "+sig.String())
			fstest.Nothing(t, dir+"/parent")
		})
	}
}

// TestPrivateSecondSignal: it stops at once and says what is left where, and sweep takes that away. Both signals are there when
// the process goes on after a stop, so that the second one comes before the clean-up has ended in all but a few tries.
func TestPrivateSecondSignal(t *testing.T) {
	t.Parallel()
	skipIgnored(t, syscall.SIGINT)
	skipIgnored(t, syscall.SIGTERM)
	for range 20 {
		dir := roots(t)
		cmd, stdout, stderr := startPrivate(t, dir)
		for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCONT} {
			require.NoError(t, cmd.Process.Signal(sig))
		}
		assert.False(t, stdout.Scan())
		assert.Error(t, cmd.Wait())
		if !strings.Contains(stderr.String(), "before the clean-up ended") {
			fstest.Nothing(t, dir+"/parent")
			continue
		}
		assert.Contains(t, stderr.String(), "an unfinished copy is left in "+dir+"/parent; to remove it: holdstill sweep "+dir+"/parent\n")
		r := holdstill(t, "sweep", dir+"/parent")
		if r.stdout == "" { // the clean-up ended between the message and the end
			fstest.Nothing(t, dir+"/parent")
			continue
		}
		assert.Regexp(t, `^removed \S+/parent/\.holdstill-\w{26}\n$`, r.stdout, r.stderr)
		fstest.Nothing(t, dir+"/parent")
		return
	}
	assert.Fail(t, "the clean-up always ended before the second signal")
}

func skipIgnored(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if signal.Ignored(sig) {
		t.Skipf("%v is ignored here, as by nohup, and so it would be in a child", sig)
	}
}

// startPrivate starts a child that has copied hundreds of files and is at work on a root that takes minutes to hash.
func startPrivate(t *testing.T, dir string) (cmd *exec.Cmd, stdout *bufio.Scanner, stderr *bytes.Buffer) {
	t.Helper()
	lines := []string{"zzz/hole=~256GiB"}
	for i := range 300 {
		lines = append(lines, fmt.Sprintf("lib/%d=x", i))
	}
	fstest.Make(t, dir, lines...)
	cmd, stderr = child(t, "command", "private", "--workers", "1", "--parent", dir+"/parent", dir+"/lib", dir+"/zzz")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for begun := false; !begun; runtime.Gosched() {
		holes, err := filepath.Glob(dir + "/parent/.holdstill-*/tree/zzz/hole")
		require.NoError(t, err)
		begun = len(holes) > 0
		require.NoError(t, cmd.Process.Signal(syscall.Signal(0)), "it ended before the signal")
	}
	return cmd, bufio.NewScanner(out), stderr
}
