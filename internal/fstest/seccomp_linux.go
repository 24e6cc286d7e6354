// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Refusal is a system call that is answered instead of made, as a kernel, a container or a sandbox without it does.
type Refusal struct {
	Call  uintptr // its number, unix.SYS_…
	Errno syscall.Errno

	// With a Mask that is not zero, only calls are refused of whose argument Arg, counted from 0, these bits are Value.
	Arg         int
	Mask, Value uint32
}

// Refuse has the kernel refuse system calls in every thread of this process and in its children, for good: it is for a
// process that a test started for it. As a user without privileges that process can gain none by an exec from then on. Where
// the system has no such filters the error is [errors.ErrUnsupported].
func Refuse(refusals ...Refusal) error {
	var program []unix.SockFilter
	for _, r := range refusals {
		program = append(program, filterCall(r, unix.SECCOMP_RET_ERRNO|uint32(r.Errno))...)
	}
	_, err := installFilter(program, unix.SECCOMP_FILTER_FLAG_TSYNC)
	return err
}

// OldStatx has statx answered in this process as Linux 4.11 to 5.7 do on a file system that keeps no birth times: without
// mount ids and mount roots. It lasts, and fails, as Refuse does; children are answered by the kernel.
func OldStatx() error {
	listener, err := installFilter(filterCall(Refusal{Call: unix.SYS_STATX}, unix.SECCOMP_RET_USER_NOTIF),
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH|
			unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	if err != nil {
		return err
	}
	go answerStatx(listener)
	return nil
}

// filterMachines are the ones on which filters were tried. The lower half of an argument comes first on all of them.
var filterMachines = map[string]uint32{
	"386":   unix.AUDIT_ARCH_I386,
	"amd64": unix.AUDIT_ARCH_X86_64,
	"arm64": unix.AUDIT_ARCH_AARCH64,
}

// Offsets in struct seccomp_data, see seccomp(2).
const (
	filterNumber  = 0
	filterMachine = 4
	filterArgs    = 16
)

func filterLoad(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// filterEqual goes on if what was loaded is value, and else skips some instructions.
func filterEqual(value uint32, skip uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: skip}
}

func filterReturn(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

func filterCall(r Refusal, action uint32) []unix.SockFilter {
	if r.Mask == 0 {
		return []unix.SockFilter{filterLoad(filterNumber), filterEqual(uint32(r.Call), 1), filterReturn(action)}
	}
	return []unix.SockFilter{
		filterLoad(filterNumber), filterEqual(uint32(r.Call), 4),
		filterLoad(filterArgs + 8*uint32(r.Arg)),
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: r.Mask},
		filterEqual(r.Value, 1), filterReturn(action),
	}
}

func installFilter(program []unix.SockFilter, flags uintptr) (listener uintptr, err error) {
	machine, ok := filterMachines[runtime.GOARCH]
	if !ok {
		return 0, fmt.Errorf("no filter of system calls on %s: %w", runtime.GOARCH, errors.ErrUnsupported)
	}
	// A child may be a program for another machine, where the numbers mean other calls.
	program = append([]unix.SockFilter{
		filterLoad(filterMachine), filterEqual(machine, 1), {Code: unix.BPF_JMP | unix.BPF_JA, K: 1}, filterReturn(unix.SECCOMP_RET_ALLOW),
	}, program...)
	program = append(program, filterReturn(unix.SECCOMP_RET_ALLOW))

	// Both calls are one thread's: only one that can gain no privileges may install a filter without having them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("prctl: %w", err)
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	switch errno {
	case 0:
		return listener, nil
	case unix.ENOSYS, unix.EINVAL: // also under qemu, which makes no such call
		return 0, fmt.Errorf("seccomp: %w: %w", errno, errors.ErrUnsupported)
	}
	return 0, fmt.Errorf("seccomp: %w", errno)
}

// notice and answer are struct seccomp_notif and seccomp_notif_resp.
type (
	notice struct {
		id      uint64
		thread  uint32
		_       uint32
		number  int32
		machine uint32
		_       uint64
		args    [6]uint64
	}
	answer struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
)

// answerStatx answers what the threads of this process ask, for as long as it lives.
func answerStatx(listener uintptr) {
	for {
		var n notice
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue // a signal, or who asked is gone
		}
		a := answer{id: n.id}
		if unix.Tgkill(os.Getpid(), int(n.thread), 0) != nil {
			a.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE // a child's: its memory is not ours
		} else if err := oldStatx(&n.args); err != nil {
			a.errno = -int32(err.(syscall.Errno))
		}
		// Who asked may be gone.
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
	}
}

// oldStatx does what fstatat can. Its arguments are those of statx: directory, path, flags, mask, result.
func oldStatx(args *[6]uint64) error {
	path, err := stringAt(uintptr(args[1]))
	if err != nil {
		return err
	}
	var st unix.Stat_t
	flags := int(args[2]) & (unix.AT_SYMLINK_NOFOLLOW | unix.AT_EMPTY_PATH | unix.AT_NO_AUTOMOUNT)
	if err := unix.Fstatat(int(int32(args[0])), path, &st, flags); err != nil {
		return err
	}
	x := unix.Statx_t{
		Mask:      unix.STATX_BASIC_STATS,
		Blksize:   uint32(st.Blksize),
		Nlink:     uint32(st.Nlink),
		Uid:       st.Uid,
		Gid:       st.Gid,
		Mode:      uint16(st.Mode),
		Ino:       st.Ino,
		Size:      uint64(st.Size),
		Blocks:    uint64(st.Blocks),
		Mtime:     unix.StatxTimestamp{Sec: int64(st.Mtim.Sec), Nsec: uint32(st.Mtim.Nsec)},
		Ctime:     unix.StatxTimestamp{Sec: int64(st.Ctim.Sec), Nsec: uint32(st.Ctim.Nsec)},
		Dev_major: unix.Major(uint64(st.Dev)),
		Dev_minor: unix.Minor(uint64(st.Dev)),
	}
	size := int(unsafe.Sizeof(x))
	local := unix.Iovec{Base: (*byte)(unsafe.Pointer(&x))}
	local.SetLen(size)
	_, err = unix.ProcessVMWritev(os.Getpid(), []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(args[4]), Len: size}}, 0)
	return err
}

// stringAt reads what ends with a zero. The next page need not be there.
func stringAt(address uintptr) (string, error) {
	buf := make([]byte, unix.PathMax)
	local := unix.Iovec{Base: &buf[0]}
	local.SetLen(len(buf))
	here := min(os.Getpagesize()-int(address)&(os.Getpagesize()-1), len(buf))
	remote := []unix.RemoteIovec{{Base: address, Len: here}, {Base: address + uintptr(here), Len: len(buf) - here}}
	n, err := unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{local}, remote, 0)
	if err != nil {
		return "", err
	}
	name, _, ok := bytes.Cut(buf[:n], []byte{0})
	if !ok {
		return "", unix.ENAMETOOLONG
	}
	return string(name), nil
}
