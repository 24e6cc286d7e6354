//go:build linux || darwin || freebsd || netbsd || openbsd

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
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot/internal/fstest"
)

// TestMain lets the test binary be the command, in a process that a signal may kill.
func TestMain(m *testing.M) {
	switch os.Getenv("HOLDSTILL_TEST_CHILD") {
	case "command":
		main()
	case "stuck":
		stuck()
	default:
		os.Exit(m.Run())
	}
}

// stuck is a verb that cannot clean up.
func stuck() {
	env := &environ{}
	parent := "/some\nwhere"
	env.unclean.Store(&parent)
	ctx := watch(env)
	fmt.Println("ready")
	<-ctx.Done()
	fmt.Println("cancelled")
	select {}
}

func child(t *testing.T, kind string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), "HOLDSTILL_TEST_CHILD="+kind)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	return cmd, &stderr
}

func assertDiedOf(t *testing.T, sig syscall.Signal, cmd *exec.Cmd) {
	t.Helper()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	assert.True(t, status.Signaled() && status.Signal() == sig, "%v, want death by %v", cmd.ProcessState, sig)
}

func TestSignalCleansUpAndKills(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			if signal.Ignored(sig) {
				t.Skipf("%v is ignored here, as by nohup, and so it would be in a child", sig)
			}
			dir := fstest.TempDir(t)
			fstest.Make(t, dir, "src/hole=~256GiB") // takes minutes to hash and no space
			parent := filepath.Join(dir, "parent")
			require.NoError(t, os.Mkdir(parent, 0o755))

			cmd, stderr := child(t, "command", "take", filepath.Join(dir, "src"), filepath.Join(parent, "dst"))
			require.NoError(t, cmd.Start())
			exited := make(chan error, 1)
			go func() { exited <- cmd.Wait() }()
			for begun := false; !begun; runtime.Gosched() {
				entries, err := os.ReadDir(parent)
				require.NoError(t, err)
				begun = len(entries) > 0
				select {
				case err := <-exited:
					require.FailNow(t, "ended before the signal", "%v: %s", err, stderr)
				default:
				}
			}
			require.NoError(t, cmd.Process.Signal(sig))
			assert.Error(t, <-exited)
			assertDiedOf(t, sig, cmd)
			assert.Contains(t, stderr.String(), "stopped by signal: "+sig.String())
			fstest.Nothing(t, parent)
		})
	}
}

func TestSecondSignalStopsAtOnce(t *testing.T) {
	t.Parallel()
	if signal.Ignored(syscall.SIGINT) || signal.Ignored(syscall.SIGTERM) {
		t.Skip("signals are ignored here, as by nohup, and so they would be in a child")
	}
	cmd, stderr := child(t, "stuck")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)

	require.True(t, lines.Scan())
	assert.Equal(t, "ready", lines.Text())
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.True(t, lines.Scan())
	assert.Equal(t, "cancelled", lines.Text())
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Error(t, cmd.Wait())

	assertDiedOf(t, syscall.SIGTERM, cmd)
	assert.Contains(t, stderr.String(), `an unfinished copy is left in "/some\nwhere"; to remove it: holdstill sweep "/some\nwhere"`)
}

func TestCommandExitsWithItsCode(t *testing.T) {
	t.Parallel()
	for want, args := range map[int][]string{
		exitDone:   {"version"},
		exitFailed: {"take", "/nonexistent/source", "/nonexistent/copy"},
		exitUsage:  {"take"},
	} {
		cmd, stderr := child(t, "command", args...)
		_ = cmd.Run()
		assert.Equal(t, want, cmd.ProcessState.ExitCode(), "holdstill %q: %s", args, stderr)
	}
}
