// SPDX-License-Identifier: Apache-2.0

package fstest_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot/internal/fstest"
)

func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%v", err)
	}
	return path
}

// What is changed before the K-th call is seen by that call and by none before it.
func TestTraceStopsBeforeTheCall(t *testing.T) {
	t.Parallel()
	cat := program(t, "cat")
	name := filepath.Join(t.TempDir(), "f")
	write := func(text string) {
		// Not os.WriteFile: ext4 flushes what was truncated before it was written.
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
		if assert.NoError(t, err) {
			_, err = f.WriteString(text)
			assert.NoError(t, err)
			f.Close()
		}
	}
	look := func(k int) (out string, calls []string) {
		write("old")
		traced := fstest.Trace(t, time.Minute, func(c fstest.Call) bool {
			calls = append(calls, c.Name)
			assert.Equal(t, len(calls), c.N)
			if c.N == k {
				write("new")
			}
			return true
		}, cat, name)
		assert.True(t, traced.Status.Exited() && traced.Status.ExitStatus() == 0, "%#x", traced.Status)
		assert.Equal(t, len(calls), traced.Last.N)
		return traced.Stdout, calls
	}
	out, quiet := look(0)
	assert.Equal(t, "old", out)
	require.Contains(t, quiet, "openat")
	changed := 0
	for k := range len(quiet) {
		out, calls := look(k + 1)
		assert.Equal(t, quiet, calls, "changed before call %d", k+1)
		if out == "new" {
			assert.Equal(t, k, changed, "seen before call %d, not before the one in front of it", k+1)
			changed++
		}
	}
	assert.Greater(t, changed, slices.Index(quiet, "openat"), "seen by the call that opens")
	assert.Less(t, changed, len(quiet), "seen by the calls behind the one that reads")
}

// A program with threads and children comes to the same end as without a tracer.
func TestTraceFollowsThreads(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	require.NoError(t, err)
	args := []string{"-c", `"$0" -test.list . && echo to stderr >&2; exit 3`, exe}
	want, _ := exec.CommandContext(t.Context(), "/bin/sh", args...).Output()
	calls := 0
	traced := fstest.Trace(t, time.Minute, func(fstest.Call) bool { calls++; return calls < 20 }, append([]string{"/bin/sh"}, args...)...)
	assert.Equal(t, 3, traced.Status.ExitStatus())
	assert.Equal(t, string(want), traced.Stdout)
	assert.Equal(t, "to stderr\n", traced.Stderr)
	assert.Equal(t, 20, calls, "until it has seen enough")
}

// A program that hangs is killed and named with its last call, and so is one whose test ends.
func TestTraceKills(t *testing.T) {
	t.Parallel()
	sleep := program(t, "sleep")
	err := fstest.Run(t.Context(), "hang", io.Discard, func(t fstest.TB) {
		fstest.Trace(t, 200*time.Millisecond, func(fstest.Call) bool { return true }, sleep, "1000")
	})
	require.Error(t, err)
	assert.Contains(t, err.Error(), `killed after 200ms`)

	name := filepath.Join(t.TempDir(), "pid")
	err = fstest.Run(t.Context(), "end", io.Discard, func(t fstest.TB) {
		fstest.Trace(t, time.Minute, func(fstest.Call) bool {
			if b, _ := os.ReadFile(name); len(b) > 0 {
				t.Fatalf("ended")
			}
			return true
		}, "/bin/sh", "-c", "echo $$ >$0; exec "+sleep+" 1000", name)
	})
	require.ErrorContains(t, err, "ended")
	pid, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.NoDirExists(t, "/proc/"+strings.TrimSpace(string(pid)))
}
