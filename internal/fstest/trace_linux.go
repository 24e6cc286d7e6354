// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Call is a file-system call that a traced program is about to make.
type Call struct {
	N    int    // from 1, over all threads, in the order in which they come to it
	Name string // as in syscalls(2)
}

func (c Call) String() string { return fmt.Sprintf("call %d, %s", c.N, c.Name) }

// Traced is what became of a program that [Trace] ran.
type Traced struct {
	Status         syscall.WaitStatus
	Last           Call // that before was called for
	Stdout, Stderr string
}

// Trace runs a program to its end under ptrace(2), with all its threads and children, and calls before each time that one of
// them stands still in front of a file-system call: it has not been made when before begins, and is made when it has returned.
// Meanwhile every other thread comes no further than to its own next system call. When before returns false it has seen
// enough, and the rest runs at its own speed. A program that has not ended when patience is over is killed, and fails the
// test. Where ptrace is not allowed the test is skipped.
func Trace(t TB, patience time.Duration, before func(Call) bool, args ...string) *Traced {
	t.Helper()
	if _, known := callName(unix.SYS_OPENAT); !known {
		t.Skipf("the numbers of this processor's system calls are not listed")
	}
	// Only the thread that a traced program was started from may go on with it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, errs := memfile(t, "stdout"), memfile(t, "stderr")
	defer out.Close()
	defer errs.Close()
	tr, err := startTraced(out, errs, args)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EIO) {
		t.Skipf("no ptrace: %v", err)
	}
	require.NoError(t, err, "trace %q", args)
	defer tr.kill() // before may end the test
	var late atomic.Pointer[string]
	watchdog := time.AfterFunc(patience, func() {
		in := callsNow(tr.pid)
		late.Store(&in)
		_ = unix.Kill(-tr.pid, unix.SIGKILL)
	})
	defer watchdog.Stop()
	tr.before = before
	err = tr.follow()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("%v", err)
	}
	require.NoError(t, err, "trace %q", args)
	if in := late.Load(); in != nil {
		t.Fatalf("trace %q: killed after %v, in %s; last seen before %v: %s", args, patience, *in, tr.traced.Last, content(t, errs))
	}
	tr.traced.Stdout, tr.traced.Stderr = content(t, out), content(t, errs)
	return &tr.traced
}

func memfile(t TB, name string) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	require.NoError(t, err)
	return os.NewFile(uintptr(fd), name)
}

func content(t TB, f *os.File) string {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	require.NoError(t, err)
	return string(b)
}

type tracer struct {
	pid     int // and the process group, in which the threads and children are waited for: no other child of ours is in it
	started map[int]bool
	before  func(Call) bool // nil when it has seen enough
	traced  Traced
	ended   bool
}

const traceOptions = unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEEXEC |
	unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK

// startTraced starts a program that stops after its exec, and lets it go up to its first system call.
func startTraced(stdout, stderr *os.File, args []string) (*tracer, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{null.Fd(), stdout.Fd(), stderr.Fd()},
		Sys:   &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
	})
	if err != nil {
		return nil, err
	}
	tr := &tracer{pid: pid, started: map[int]bool{pid: true}}
	var status unix.WaitStatus
	_, err = unix.Wait4(pid, &status, unix.WALL, nil)
	if err == nil && !status.Stopped() {
		err = fmt.Errorf("%s is not traced: %#x", args[0], status)
	}
	if err == nil {
		err = unix.PtraceSetOptions(pid, traceOptions)
	}
	if err == nil {
		err = unix.PtraceSyscall(pid, 0)
	}
	if err != nil {
		tr.kill()
		return nil, err
	}
	return tr, nil
}

// follow lets every thread go from stop to stop until all have ended.
func (tr *tracer) follow() error {
	for {
		var status unix.WaitStatus
		tid, err := unix.Wait4(-tr.pid, &status, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err == unix.ECHILD:
			tr.ended = true
			return nil
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case status.Stopped():
			signal, err := tr.stopped(tid, status)
			if err == nil {
				err = os.NewSyscallError("ptrace", tr.goOn(tid, int(signal)))
			}
			if err != nil && !errors.Is(err, unix.ESRCH) { // killed meanwhile
				return err
			}
		default:
			delete(tr.started, tid)
			if tid == tr.pid {
				tr.traced.Status = syscall.WaitStatus(status)
			}
		}
	}
}

// goOn lets a thread run to its next call, or to its end.
func (tr *tracer) goOn(tid, signal int) error {
	if tr.before == nil {
		return unix.PtraceCont(tid, signal)
	}
	return unix.PtraceSyscall(tid, signal)
}

// stopped looks why a thread stands still, and returns the signal that it has to be given.
func (tr *tracer) stopped(tid int, status unix.WaitStatus) (unix.Signal, error) {
	first := !tr.started[tid]
	tr.started[tid] = true
	switch signal := status.StopSignal(); {
	case signal == unix.SIGTRAP|0x80:
		return 0, tr.atCall(tid)
	case signal == unix.SIGTRAP && status.TrapCause() != 0: // a clone or an exec
		return 0, nil
	case signal == unix.SIGSTOP && first: // how a new thread begins
		return 0, nil
	default:
		return signal, nil
	}
}

// callInfo is struct ptrace_syscall_info of linux/ptrace.h.
type callInfo struct {
	op       uint8
	_        [3]uint8
	arch     uint32
	ip, sp   uint64
	nr       uint64
	argument [6]uint64
	_        uint64
}

func (tr *tracer) atCall(tid int) error {
	var info callInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0)
	switch {
	case errno == unix.EIO:
		return fmt.Errorf("PTRACE_GET_SYSCALL_INFO: %w", errors.ErrUnsupported)
	case errno != 0:
		return os.NewSyscallError("ptrace", errno)
	case info.op != unix.PTRACE_SYSCALL_INFO_ENTRY || tr.before == nil:
		return nil
	}
	if name, ok := callName(info.nr); ok {
		tr.traced.Last = Call{tr.traced.Last.N + 1, name}
		if !tr.before(tr.traced.Last) {
			tr.before = nil
		}
	}
	return nil
}

// callsNow names the calls that the threads of a process are in, or their numbers.
func callsNow(pid int) string {
	var calls []string
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	for _, thread := range threads {
		b, _ := os.ReadFile(thread)
		call, _, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
		if number, err := strconv.ParseUint(call, 10, 64); err == nil {
			if name, ok := callName(number); ok {
				call = name
			}
		}
		calls = append(calls, call)
	}
	return strings.Join(calls, ", ")
}

// kill ends what has not ended.
func (tr *tracer) kill() {
	if tr.ended {
		return
	}
	_ = unix.Kill(-tr.pid, unix.SIGKILL)
	tr.before = nil
	_ = tr.follow()
}
