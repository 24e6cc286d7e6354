// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FS is a mounted FUSE file system that lies; the comment of internal/fusefs has its lies. Its tree is
//
//	a=hello   big (300 KiB)   d/   d/b 0755=other   l => a
type FS struct {
	Dir string

	t   TB
	in  io.WriteCloser
	out *bufio.Reader
}

// LyingFS mounts one for this test alone, and skips where it cannot. Its program is built on first use, unless HOLDSTILL_FUSEFS
// names it. What hangs is let go at the end.
func LyingFS(t TB) *FS {
	t.Helper()
	skipUnsupported(t, mayMount())
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("no FUSE: %v", err)
	}
	exe, err := fusefs()
	skipUnsupported(t, err)
	fs := &FS{Dir: filepath.Join(TempDir(t), "fuse"), t: t}
	require.NoError(t, os.Mkdir(fs.Dir, 0o755))
	var errs bytes.Buffer
	cmd := exec.Command(exe, fs.Dir)
	cmd.Stderr = &errs
	fs.in, err = cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	fs.out = bufio.NewReader(out)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		fs.in.Close()
		// A server that hangs would hold up the test until its own deadline.
		kill := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_, _ = io.Copy(io.Discard, fs.out)
		err := cmd.Wait()
		assert.NoError(t, err, "fusefs: %s", &errs)
	})
	line, err := fs.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return fs
}

// Lie gives it one order after another; each is in force on return. Let what hangs go first: "honest".
func (fs *FS) Lie(orders ...string) {
	fs.t.Helper()
	for _, order := range orders {
		assert.Equal(fs.t, order, fs.ask(order))
	}
}

// Fired reports whether the call that was to fail came.
func (fs *FS) Fired() bool {
	fs.t.Helper()
	return fs.ask("fired") == "fired true"
}

func (fs *FS) ask(order string) string {
	fs.t.Helper()
	_, err := io.WriteString(fs.in, order+"\n")
	answer, _ := fs.out.ReadString('\n')
	assert.NoError(fs.t, err)
	return strings.TrimSuffix(answer, "\n")
}

// fusefs returns the program, built once a process in a directory that goes with the process.
var fusefs = sync.OnceValues(func() (exe string, err error) {
	if exe = os.Getenv("HOLDSTILL_FUSEFS"); exe != "" {
		return exe, nil
	}
	keeperExe, err := kept.program()
	if err != nil {
		return "", err
	}
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	dir, err := newDir(os.TempDir())
	if err != nil {
		return "", err
	}
	exe = filepath.Join(dir, "fusefs")
	run := func(args ...string) error {
		cmd := exec.Command("go", args...)
		// A module of its own: its dependency is nobody else's.
		cmd.Dir = filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), "internal", "fusefs")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("go %v for fusefs: %w\n%s", args, err, out)
		}
		return nil
	}
	if err = run("mod", "download"); err != nil { // without a network
		err = fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	} else {
		err = run("build", "-race=false", "-o", exe, ".")
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	clean, err := keep(keeperExe, dir)
	if err != nil {
		return "", err
	}
	return exe, kept.share(clean)
})
