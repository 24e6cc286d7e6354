// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Adversary returns the program of the adversaries, built once a process; its own comment has the list of them. It lies where
// every user can run it.
func Adversary(t TB) string {
	t.Helper()
	name, err := kept.program()
	require.NoError(t, err)
	return name
}

// Proc is an adversary at work. It is stopped at the end of the test at the latest, which fails if it did not attack.
type Proc struct {
	t    TB
	args []string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs bytes.Buffer

	stop   sync.Once
	report Report
}

// Report counts what an adversary did.
type Report struct {
	Turns int64 // through its loop
	Bytes int64 // that it wrote to files
}

// Start starts an adversary and returns when it is at work. One that this system or file system does not allow skips the test.
func Start(t TB, args ...string) *Proc {
	t.Helper()
	return StartAs(t, nil, args...)
}

// StartAs is Start for a process with attributes, such as those of [Unprivileged].
func StartAs(t TB, attr *syscall.SysProcAttr, args ...string) *Proc {
	t.Helper()
	p := &Proc{t: t, args: args, cmd: exec.Command(Adversary(t), args...)}
	p.cmd.SysProcAttr = attr
	p.cmd.Stderr = &p.errs
	in, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.in, p.out = in, bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
	line, _ := p.out.ReadString('\n')
	if line == "ready\n" {
		t.Cleanup(func() {
			report := p.Stop()
			assert.Positive(t, report.Turns, "turns of adversary %q", args)
		})
		return p
	}
	p.in.Close()
	err = p.cmd.Wait()
	if reason, ok := strings.CutPrefix(line, "skip: "); ok {
		t.Skipf("adversary %q: %s", args, strings.TrimSpace(reason))
	}
	t.Fatalf("adversary %q: %v: %s", args, err, p.errs.String())
	return nil
}

// Pause returns when the adversary stands still between two turns: what it exchanged is back.
func (p *Proc) Pause() {
	p.t.Helper()
	p.command("pause\n")
}

// Resume lets it go on.
func (p *Proc) Resume() {
	p.t.Helper()
	p.command("go\n")
}

func (p *Proc) command(line string) {
	p.t.Helper()
	_, err := io.WriteString(p.in, line)
	answer, _ := p.out.ReadString('\n')
	if err != nil || answer != line {
		p.Stop()
		p.t.Fatalf("adversary %q: %q answered %q: %v", p.args, line, answer, err)
	}
}

// Stop ends it between two turns and returns what it did; an adversary that failed fails the test. Later calls return the same.
func (p *Proc) Stop() Report {
	p.t.Helper()
	p.stop.Do(func() {
		p.in.Close()
		// One stuck in a system call would hold up the test until its own deadline.
		kill := time.AfterFunc(30*time.Second, func() { _ = p.cmd.Process.Kill() })
		defer kill.Stop()
		b, err := io.ReadAll(p.out)
		if waitErr := p.cmd.Wait(); waitErr != nil {
			err = waitErr
		} else if err == nil {
			err = json.Unmarshal(b, &p.report)
		}
		if err != nil {
			p.t.Errorf("adversary %q: %v: %s", p.args, err, p.errs.String())
		}
	})
	return p.report
}

// kept is what outlives a test: the program, shared mounts, and for each the process that clears it away when we end, however
// we end.
var kept keepers

type keepers struct {
	mu     sync.Mutex
	pipes  map[string]*os.File // by what /proc/self/fd says; a File that nobody holds would close itself
	build  sync.Once
	exe    string
	failed error

	sharing sync.Mutex // held while mounting
	mounts  map[string]sharedMount
}

// sharedMount is where a kind is mounted, or why it is not.
type sharedMount struct {
	dir string
	err error
}

func (k *keepers) owns(target string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pipes[target] != nil
}

func (k *keepers) program() (string, error) {
	k.build.Do(func() {
		if k.exe = os.Getenv("HOLDSTILL_ADVERSARY"); k.exe != "" {
			return
		}
		var dir string
		if dir, k.failed = newDir(os.TempDir()); k.failed != nil {
			return
		}
		k.exe = filepath.Join(dir, "adversary")
		build := exec.Command("go", "build", "-race=false", "-o", k.exe, "holdstill.example/snapshot/internal/fstest/adversary")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		if err == nil {
			err = os.Chmod(k.exe, 0o755)
		}
		var clean *keeper
		if err == nil {
			clean, err = keep(k.exe, dir)
		}
		if err != nil {
			k.failed = errors.Join(fmt.Errorf("building the adversary: %w\n%s", err, out), os.RemoveAll(dir))
			return
		}
		k.failed = k.share(clean)
	})
	return k.exe, k.failed
}

// share leaves a keeper to the end of the process.
func (k *keepers) share(c *keeper) error {
	target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", c.in.Fd()))
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pipes == nil {
		k.pipes = map[string]*os.File{}
	}
	k.pipes[target] = c.in
	// The handle of the process would be one more descriptor, and nobody waits for it.
	return c.proc.Release()
}

// newDir makes a directory that every user gets into.
func newDir(parent string) (string, error) {
	dir, err := os.MkdirTemp(parent, "holdstill-*")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// keeper is a process that mounts file systems below a directory, and unmounts them and removes the directory when in is closed.
type keeper struct {
	in   *os.File
	proc *os.Process
}

// keep returns when all kinds are mounted, each at a name of its own in dir. A kind that this machine does not have is
// [errors.ErrUnsupported].
func keep(exe, dir string, kinds ...string) (k *keeper, err error) {
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer childIn.Close()
	out, childOut, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, err
	}
	defer out.Close()
	proc, err := os.StartProcess(exe, append([]string{exe, "keep", "--all", dir}, kinds...), &os.ProcAttr{
		Files: []*os.File{childIn, childOut},
	})
	childOut.Close()
	if err != nil {
		in.Close()
		return nil, err
	}
	k = &keeper{in, proc}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line == "ready\n" {
		return k, nil
	}
	if reason, ok := strings.CutPrefix(line, "skip: "); ok {
		err = fmt.Errorf("%s: %w", strings.TrimSpace(reason), errors.ErrUnsupported)
	} else {
		err = fmt.Errorf("%q: %w", line, err)
	}
	return nil, errors.Join(fmt.Errorf("mounting %v: %w", kinds, err), k.end())
}

// end returns when all is unmounted and removed.
func (k *keeper) end() error {
	k.in.Close()
	_, err := k.proc.Wait()
	return err
}
