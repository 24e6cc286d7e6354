// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
	"holdstill.example/snapshot/internal/fsys"
)

// fallback is a system that lacks something: there every call does all that it promises, with the evidence that can still be
// had under its own name, or it is a typed error and nothing is left.
type fallback struct {
	name    string
	kind    string // of file system; empty is ext4, or what there is
	refuse  []fstest.Refusal
	old     bool   // statx knows neither mounts nor birth times
	proc    string // "empty", or "false": what is there is not procfs
	at      map[string]error
	lacks   snapshot.Fallback
	level   snapshot.Evidence // zero is Coherent; more than a file system proves is not asked of it
	because string
	clones  bool    // reflinks prove Coherent of some files
	wrong   []error // what a call that copies has to be one of; none if it works
	swept   []error // likewise of a sweep
	race    bool    // attack it by default, too; "nothing new" stands for the rows whose lacks it joins
}

// Numbers that not every system has under one name.
var (
	fcntlCall       = map[string]uintptr{"386": 221, "amd64": unix.SYS_FCNTL, "arm64": unix.SYS_FCNTL}[runtime.GOARCH]
	syncFileRange   = map[string]uintptr{"386": 314, "amd64": 277, "arm64": 84}[runtime.GOARCH]
	fallbackNoLease = "a lease needs the file's owner"
)

// refuses is a kernel or a sandbox without some calls.
func refuses(errno syscall.Errno, calls ...uintptr) (list []fstest.Refusal) {
	for _, call := range calls {
		list = append(list, fstest.Refusal{Call: call, Errno: errno})
	}
	return list
}

func refusesIf(errno syscall.Errno, call uintptr, arg int, mask, value uint32) []fstest.Refusal {
	return []fstest.Refusal{{Call: call, Errno: errno, Arg: arg, Mask: mask, Value: value}}
}

const everyBit = 1<<32 - 1

var (
	noLeases   = refusesIf(unix.EINVAL, fcntlCall, 1, everyBit, unix.F_SETLEASE)
	noTmpfile  = refusesIf(unix.EOPNOTSUPP, unix.SYS_OPENAT, 2, unix.O_TMPFILE&^unix.O_DIRECTORY, unix.O_TMPFILE&^unix.O_DIRECTORY)
	noEmpty    = refusesIf(unix.ENOENT, unix.SYS_LINKAT, 4, unix.AT_EMPTY_PATH, unix.AT_EMPTY_PATH)
	noRenaming = refusesIf(unix.ENOSYS, unix.SYS_RENAMEAT2, 4, unix.RENAME_NOREPLACE, unix.RENAME_NOREPLACE) // adversaries exchange
	noReflinks = refusesIf(unix.EOPNOTSUPP, unix.SYS_IOCTL, 1, everyBit, unix.FICLONE)
)

// realFallbacks are made by the kernel, in a process of their own.
var realFallbacks = []fallback{
	{name: "openat2 absent", refuse: refuses(unix.ENOSYS, unix.SYS_OPENAT2), race: true},
	{name: "openat2 forbidden", refuse: refuses(unix.EPERM, unix.SYS_OPENAT2)},
	{name: "name_to_handle_at forbidden", refuse: refuses(unix.EPERM, unix.SYS_NAME_TO_HANDLE_AT)},

	{name: "no proc", proc: "empty", race: true},
	{name: "no proc, but files that look like it", proc: "false"},
	{name: "no proc and no link of a descriptor", proc: "empty", refuse: noEmpty},

	{name: "no mount ids and birth times", old: true, race: true},
	{name: "no mount ids and no proc", old: true, proc: "empty", wrong: []error{errors.ErrUnsupported}, swept: []error{errors.ErrUnsupported}},
	{name: "statx absent", refuse: refuses(unix.ENOSYS, unix.SYS_STATX), wrong: []error{errors.ErrUnsupported}, swept: []error{errors.ErrUnsupported}},
	{name: "statx forbidden", refuse: refuses(unix.EPERM, unix.SYS_STATX), wrong: []error{fs.ErrPermission}, swept: []error{fs.ErrPermission}},

	{name: "leases absent", refuse: noLeases, level: snapshot.Buffered},
	{
		name: "leases forbidden", refuse: refusesIf(unix.EACCES, fcntlCall, 1, everyBit, unix.F_SETLEASE),
		level: snapshot.Buffered, because: fallbackNoLease,
	},
	{name: "leases not implemented", refuse: refusesIf(unix.ENOSYS, fcntlCall, 1, everyBit, unix.F_SETLEASE), level: snapshot.Buffered},
	{name: "no choice of a lease's signal", refuse: refusesIf(unix.EINVAL, fcntlCall, 1, everyBit, unix.F_SETSIG), level: snapshot.Buffered},
	{
		name: "neither leases nor barriers", refuse: slices.Concat(noLeases, refuses(unix.ENOSYS, syncFileRange)),
		level: snapshot.Stable, wrong: []error{errors.ErrUnsupported},
	},

	{name: "reflinks absent", kind: "xfs", refuse: noReflinks},
	{name: "reflinks forbidden", kind: "btrfs", refuse: refusesIf(unix.EPERM, unix.SYS_IOCTL, 1, everyBit, unix.FICLONE)},
	{name: "reflinks and leases absent", kind: "xfs", refuse: slices.Concat(noReflinks, noLeases), level: snapshot.Buffered},
	{name: "leases absent, but reflinks", kind: "btrfs", refuse: noLeases, level: snapshot.Buffered, clones: true},
	{name: "preadv2 absent", kind: "xfs", refuse: refuses(unix.ENOSYS, unix.SYS_PREADV2)},

	{name: "nameless files absent", refuse: noTmpfile},
	{name: "nameless files unknown", refuse: refusesIf(unix.EISDIR, unix.SYS_OPENAT, 2, noTmpfile[0].Mask, noTmpfile[0].Value)},
	{name: "no link of a descriptor", refuse: noEmpty},
	{name: "rename without replacing absent", refuse: noRenaming},
	{
		name:   "rename without replacing unknown to the file system",
		refuse: refusesIf(unix.EINVAL, unix.SYS_RENAMEAT2, 4, unix.RENAME_NOREPLACE, unix.RENAME_NOREPLACE),
	},

	{name: "fallocate absent", refuse: refuses(unix.ENOSYS, unix.SYS_FALLOCATE)},
	{name: "syncfs absent", refuse: refuses(unix.ENOSYS, unix.SYS_SYNCFS)},

	{
		name: "nothing new", proc: "empty", level: snapshot.Buffered, race: true,
		refuse: slices.Concat(noLeases, noTmpfile, noEmpty, noReflinks, noRenaming, refuses(unix.ENOSYS, unix.SYS_OPENAT2,
			unix.SYS_PREADV2, unix.SYS_FALLOCATE, unix.SYS_NAME_TO_HANDLE_AT)),
	},
}

// seamFallbacks are made by the seam, on every machine.
var seamFallbacks = []fallback{
	{name: "no proc", at: map[string]error{"ProcDir": errors.ErrUnsupported}},
	{name: "reopening refused", at: map[string]error{"Reopen": errors.ErrUnsupported}},
	{name: "leases", at: map[string]error{"Lease": fsys.ErrNotAllowed}, level: snapshot.Buffered, because: fallbackNoLease},
	{name: "reflinks", kind: "xfs", at: map[string]error{"Clone": unix.EOPNOTSUPP}},
	{name: "reads that do not wait", kind: "xfs", at: map[string]error{"ReadNow": errors.ErrUnsupported}},
	{name: "nameless files", at: map[string]error{"CreateNameless": errors.ErrUnsupported}},
	{name: "rename that does not replace", at: map[string]error{"RenameNoReplace": errors.ErrUnsupported}},
	{
		name: "statx", at: map[string]error{"Stat": unix.ENOSYS, "StatAt": unix.ENOSYS},
		wrong: []error{errors.ErrUnsupported},
	},
	{name: "lacks nothing"},
	{name: "lacks all", lacks: snapshot.NoClone | snapshot.NoNameless | snapshot.NoRenameNoReplace | snapshot.NoLease, level: snapshot.Buffered},
	{
		name: "lacks all, and no proc", lacks: snapshot.NoClone | snapshot.NoNameless | snapshot.NoRenameNoReplace | snapshot.NoLease,
		at: map[string]error{"ProcDir": errors.ErrUnsupported}, level: snapshot.Buffered,
	},
}

// TestFallbacksOfTheSeam: what a system lacks is taken away by the seam.
func TestFallbacksOfTheSeam(t *testing.T) {
	t.Parallel()
	for _, f := range seamFallbacks {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.suite(t, f.site(t))
		})
	}
}

// TestFallbacksForReal: it is taken away by the kernel, which no part of the engine or of the Go runtime gets round.
func TestFallbacksForReal(t *testing.T) {
	t.Parallel()
	const variable = "HOLDSTILL_TEST_FALLBACK"
	for _, f := range realFallbacks {
		if name, ok := os.LookupEnv(variable); ok {
			if name == f.name {
				f.here(t)
			}
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			s := f.site(t) // mounted by this process, so that the child need not
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFallbacksForReal$", "-test.v")
			cmd.Env = append(os.Environ(), variable+"="+f.name)
			if f.mounted(s) {
				cmd.Env = append(cmd.Env, "HOLDSTILL_TEST_DIR="+filepath.Dir(filepath.Dir(s.dir)))
			}
			if f.proc != "" {
				cmd.SysProcAttr = namespace()
			}
			out, err := cmd.CombinedOutput()
			switch _, reason, ok := strings.Cut(string(out), "cannot be taken away: "); {
			case ok:
				t.Skip(strings.SplitN(reason, "\n", 2)[0])
			case f.proc != "" && os.Geteuid() != 0 && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC)):
				t.Skipf("no name space for an ordinary user: %v", err)
			case errors.Is(err, unix.ENOEXEC):
				t.Skipf("a child of this machine cannot be run: %v", err)
			}
			assert.NoError(t, err, "%s", out)
			assert.Contains(t, string(out), "taken away: "+f.name)
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, " steps, ") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}

// namespace gives a child mounts of its own; an ordinary user may have them as the root of a user name space.
func namespace() *syscall.SysProcAttr {
	if os.Geteuid() == 0 {
		return &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	}
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
}

// here takes away what f lacks from this process, shows that it is gone, and runs the suite, and the race tests on a sample of
// their steps.
func (f *fallback) here(t *testing.T) {
	s := f.site(t)
	level := f.level
	if !f.mounted(s) { // some other file system, which may prove less
		report, err := snapshot.Scan(t.Context(), s.src, nil)
		require.NoError(t, err)
		f.level = min(f.atMost(), report.Weakest.Evidence)
	}
	if err := f.takeAway(t); err != nil {
		t.Fatalf("cannot be taken away: %v", err)
	}
	t.Logf("taken away: %s", f.name)
	f.suite(t, s)
	f.level = level
	if f.wrong != nil || !f.race && os.Getenv("HOLDSTILL_STRESS") == "" {
		return
	}
	require.NoError(t, os.Unsetenv("HOLDSTILL_STRESS")) // which would have every step attacked; this process is ours
	for _, m := range mutations {
		if m.forever || m.root && (os.Geteuid() != 0 || f.proc != "") { // there, root may be one of a user name space
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			verb := raceVerb{name: "CopyDir", stride: 61, opts: snapshot.Options{Workers: 1, PreserveMode: true}, call: raceCopyDir}
			raceSteps(t, verb, &m, m.tree, raceLookTree, raceTree)
			if !m.noFile {
				verb = raceVerb{name: "CopyFile", stride: 17, call: raceCopyFile}
				raceSteps(t, verb, &m, m.file, raceLookFile, raceFile)
			}
		})
	}
}

func (f *fallback) takeAway(t *testing.T) error {
	if f.proc != "" {
		if err := unix.Mount("none", "/proc", "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("mount over /proc: %w", err)
		}
	}
	if f.proc == "false" {
		var lines []string
		for fd := range 200 {
			lines = append(lines, fmt.Sprintf("self/fd/%d=false", fd), fmt.Sprintf("self/fdinfo/%d=mnt_id: 1\n", fd))
		}
		fstest.Make(t, "/proc", lines...)
	}
	if f.refuse != nil {
		if err := fstest.Refuse(f.refuse...); err != nil {
			return err
		}
		for _, r := range f.refuse {
			args := [6]uintptr{^uintptr(0), ^uintptr(0), ^uintptr(0), ^uintptr(0), ^uintptr(0), ^uintptr(0)}
			if r.Mask != 0 {
				args[r.Arg] = uintptr(r.Value)
			}
			_, _, errno := unix.Syscall6(r.Call, args[0], args[1], args[2], args[3], args[4], args[5])
			assert.Equal(t, r.Errno, errno, "system call %d", r.Call)
		}
	}
	if f.old {
		if err := fstest.OldStatx(); err != nil {
			return err
		}
		var x unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, os.TempDir(), 0, unix.STATX_BASIC_STATS|unix.STATX_BTIME|unix.STATX_MNT_ID, &x)
		assert.NoError(t, err)
		assert.Equal(t, uint32(unix.STATX_BASIC_STATS), x.Mask)
	}
	return nil
}

// site makes what is copied. An ext4 is of use only because it proves most.
func (f *fallback) site(t *testing.T) site {
	kind := f.kind
	if kind == "" {
		err := fstest.Run(t.Context(), "ext4", t.Output(), func(t fstest.TB) { fstest.Dir(t, "ext4") })
		if err == nil {
			kind = "ext4"
		}
	}
	s := newSite(t, kind, append(slices.Clone(sources), "large=@1025KiB")...)
	require.NoError(t, os.Symlink(s.src+"/etc/app.conf", s.src+"/absolute"))
	fstest.Settle(t, s.src)
	return s
}

// mounted reports whether s lies where the evidence is known.
func (f *fallback) mounted(s site) bool {
	return slices.Contains(fstest.Kinds(), filepath.Base(filepath.Dir(s.dir)))
}

func (f *fallback) atMost() snapshot.Evidence {
	if f.level == 0 {
		return snapshot.Coherent
	}
	return f.level
}

func (f *fallback) seam() snapshot.Seam {
	return snapshot.Seam{Lacks: f.lacks, At: func(call, _ string) error { return f.at[call] }}
}

// suite is what a call has to do whatever the system lacks.
func (f *fallback) suite(t *testing.T, s site) {
	if f.wrong != nil {
		f.refused(t, s)
	} else {
		f.quiet(t, s)
		f.strict(t, s)
		f.bad(t, s)
	}
	f.sweep(t)
}

// refused: each verb says that it cannot, and leaves nothing.
func (f *fallback) refused(t *testing.T, s site) {
	before := fstest.Read(t, s.src)
	failing := func(verb string, err error) {
		assert.True(t, isOneOf(err, f.wrong), "%s: %v", verb, err)
		assert.False(t, snapshot.Retryable(err), "%s: %v", verb, err)
		assert.NotErrorIs(t, err, snapshot.ErrLeftover, verb)
		assert.ErrorContains(t, err, s.dir, verb)
	}
	_, err := copyTreeWith(t.Context(), t, s.dst, s.src, nil, f.seam())
	failing("CopyDir", err)
	_, err = snapshot.Scan(t.Context(), s.src, balanced(t, nil, f.seam()))
	failing("Scan", err)
	_, err = copyOne(t, s.dst, s.src+"/big", nil, f.seam())
	failing("CopyFile", err)
	_, _, err = snapshot.ReadFile(t.Context(), s.src+"/big", balanced(t, nil, f.seam()))
	failing("ReadFile", err)
	assert.Equal(t, before, fstest.Read(t, s.src))
}

// quiet: every verb returns and writes what is there, with the evidence that is to be had.
func (f *fallback) quiet(t *testing.T, s site) {
	want := walkByHand(t, s.src)
	scanned, err := snapshot.Scan(t.Context(), s.src, balanced(t, nil, f.seam()))
	require.NoError(t, err)
	assert.Equal(t, want, entriesOf(t, scanned.Manifest), "Scan")
	f.proven(t, s, scanned.Weakest, "Scan")

	for i, e := range want {
		if e.Path == "absolute" {
			want[i].Link = "etc/app.conf"
		}
	}
	for name, opts := range map[string]*snapshot.Options{"kept": {PreserveMode: true, Durable: true}, "dst": nil} {
		dst := filepath.Join(filepath.Dir(s.dst), name)
		report, err := copyTreeWith(t.Context(), t, dst, s.src, opts, f.seam())
		require.NoError(t, err, name)
		entries := slices.Clone(want)
		if opts == nil {
			entries = sealed(entries)
		}
		assert.Equal(t, entries, entriesOf(t, report.Manifest), name)
		assert.Equal(t, entries, walkByHand(t, dst), name)
		assertSameTimes(t, s.src, dst)
		assert.Equal(t, snapshot.InstantAll, max(report.Instant, f.instant(s)), name)
		if !f.clones {
			assert.Equal(t, report.Files, report.Evidence[report.Weakest.Evidence], "%s: %v", name, report.Evidence)
		}
		f.proven(t, s, report.Weakest, name)
		if slices.ContainsFunc(f.refuse, func(r fstest.Refusal) bool { return r.Call == unix.SYS_IOCTL }) {
			assert.Zero(t, report.Cloned, name)
		}

		require.NoError(t, snapshot.Verify(t.Context(), dst, report.Manifest, balanced(t, nil, f.seam())), name)
		require.NoError(t, os.Chmod(dst+"/big", 0o600))
		b, err := os.ReadFile(dst + "/big")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(dst+"/big", flipped(b), 0o600))
		assert.ErrorIs(t, snapshot.Verify(t.Context(), dst, report.Manifest, balanced(t, nil, f.seam())), snapshot.ErrMismatch, name)
	}

	root, err := os.OpenRoot(s.src)
	require.NoError(t, err)
	defer root.Close()
	for _, name := range []string{"etc/empty", "big", "large"} {
		want, err := os.ReadFile(filepath.Join(s.src, name))
		require.NoError(t, err)
		b, proof, err := snapshot.ReadFile(t.Context(), filepath.Join(s.src, name), balanced(t, nil, f.seam()))
		require.NoError(t, err, name)
		assert.True(t, string(want) == string(b), "ReadFile(%q)", name)
		f.proven(t, s, proof, name)
		for verb, open := range map[string]func() (*snapshot.File, error){
			"Open": func() (*snapshot.File, error) {
				return snapshot.Open(filepath.Join(s.src, name), balanced(t, nil, f.seam()))
			},
			"OpenIn": func() (*snapshot.File, error) { return snapshot.OpenIn(root, name, balanced(t, nil, f.seam())) },
		} {
			file, err := open()
			require.NoError(t, err, "%s(%q)", verb, name)
			var b strings.Builder
			proof, err := file.CopyTo(t.Context(), &b)
			assert.NoError(t, errors.Join(err, file.Check(), file.Close()), "%s(%q)", verb, name)
			assert.True(t, string(want) == b.String(), "%s(%q)", verb, name)
			f.proven(t, s, proof, verb)
		}
		dst := filepath.Join(s.dir, "out", filepath.Base(name))
		proof, err = copyOne(t, dst, filepath.Join(s.src, name), nil, f.seam())
		require.NoError(t, err, name)
		b, err = os.ReadFile(dst)
		require.NoError(t, err)
		assert.True(t, string(want) == string(b), "CopyFile(%q)", name)
		f.proven(t, s, proof, "CopyFile")
		_, err = copyOne(t, dst, s.src+"/bin/run", nil, f.seam())
		assert.ErrorIs(t, err, fs.ErrExist, name)
		assert.Equal(t, snapshot.Digest(proof.Entry.Digest), digestOf(t, dst), "what was there")
	}
}

// instant returns what a report must not be held to where a file system proves less than an instant of all.
func (f *fallback) instant(s site) snapshot.Instant {
	if f.atMost() > snapshot.Stable {
		return snapshot.InstantNone
	}
	return snapshot.InstantAll
}

// proven: the evidence is what f leaves, neither more nor less, and says why it is no more.
func (f *fallback) proven(t *testing.T, s site, p snapshot.Proof, what string) {
	t.Helper()
	assert.NotEmpty(t, p.Because, what)
	if !f.mounted(s) && os.Getenv("HOLDSTILL_TEST_FALLBACK") == "" {
		assert.LessOrEqual(t, p.Evidence, f.atMost(), what)
		return
	}
	if f.clones && p.Evidence == snapshot.Coherent {
		return
	}
	assert.Equal(t, f.atMost(), p.Evidence, "%s: %s", what, p.Because)
	assert.Contains(t, p.Because, f.because, what)
	if f.atMost() == snapshot.Buffered && f.because == "" && f.lacks == 0 {
		assert.NotContains(t, p.Because, fallbackNoLease, "%s: nobody is given one", what)
	}
}

// strict: more than can be had is refused, by name, and not given under another.
func (f *fallback) strict(t *testing.T, s site) {
	for _, required := range []snapshot.Evidence{snapshot.Stable, snapshot.Buffered, snapshot.Coherent, snapshot.Quiescent} {
		if !f.mounted(s) && required > snapshot.Stable {
			break
		}
		proof, err := copyOne(t, filepath.Join(s.dir, "out", required.String()), s.src+"/big", &snapshot.Options{Require: required}, f.seam())
		hasLease := f.atMost() == snapshot.Coherent && !slices.ContainsFunc(f.refuse, func(r fstest.Refusal) bool { return r.Call == fcntlCall })
		if required <= f.atMost() || hasLease || f.clones && required == snapshot.Coherent {
			if assert.NoError(t, err, "%v", required) {
				assert.GreaterOrEqual(t, proof.Evidence, required)
			}
			continue
		}
		refusal, ok := errors.AsType[*snapshot.EvidenceError](err)
		if assert.True(t, ok, "%v: %v", required, err) {
			assert.Equal(t, required, refusal.Required)
			assert.Less(t, refusal.Reached, required)
			assert.NotEmpty(t, refusal.Because)
			assert.ErrorIs(t, err, snapshot.ErrEvidence)
		}
	}
}

// bad: what may not be copied is not, and what is there is not replaced.
func (f *fallback) bad(t *testing.T, s site) {
	fstest.Make(t, s.dir, "there/x=x", "outside/l => /etc", "fifo/p|", "void/")
	before := fstest.Read(t, s.dir+"/there")
	_, err := copyTreeWith(t.Context(), t, s.dir+"/there", s.src, nil, f.seam())
	assert.ErrorIs(t, err, fs.ErrExist)
	assert.Equal(t, before, fstest.Read(t, s.dir+"/there"))
	for src, want := range map[string]error{"outside": snapshot.ErrEscapes, "fifo": snapshot.ErrNotRegular, "absent": fs.ErrNotExist} {
		_, err := copyTreeWith(t.Context(), t, s.dir+"/void/dst", filepath.Join(s.dir, src), nil, f.seam())
		assert.ErrorIs(t, err, want, src)
	}
	failing := f.seam()
	failing.At = func(call, name string) error {
		if call == "Write" && name == "" {
			return unix.ENOSPC
		}
		return f.at[call]
	}
	_, err = copyTreeWith(t.Context(), t, s.dir+"/void/dst", s.src, nil, failing)
	assert.ErrorIs(t, err, unix.ENOSPC)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = copyTreeWith(ctx, t, s.dir+"/void/dst", s.src, nil, f.seam())
	assert.ErrorIs(t, err, context.Canceled)
	if os.Geteuid() == 0 && f.proc == "" { // there, root may be one of a user name space
		fstest.Make(t, s.dir, "mounted/d/f=f", "other/f=other")
		fstest.Bind(t, s.dir+"/other", s.dir+"/mounted/d")
		_, err = copyTreeWith(t.Context(), t, s.dir+"/void/dst", s.dir+"/mounted", nil, f.seam())
		assert.ErrorIs(t, err, snapshot.ErrEscapes)
		fstest.Unmount(t, s.dir+"/mounted/d")
	}
}

// sweep: a leftover goes, and what is in use stays.
func (f *fallback) sweep(t *testing.T) {
	dir := fstest.TempDir(t)
	dead, alive := stagingName("a"), stagingName("b")
	for _, name := range []string{dead, alive} {
		fstest.Make(t, dir, name+"/lock="+magic, name+"/tree/d/f 0400=f", name+"/tree/d/ 0500", name+"/ 0700")
	}
	lock, err := os.Open(filepath.Join(dir, alive, "lock"))
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	removed, err := snapshot.Sweep(t.Context(), dir)
	if f.swept != nil {
		assert.True(t, isOneOf(err, f.swept), "Sweep: %v", err)
		fstest.Nothing(t, dir, dead, alive)
		return
	}
	assert.NoError(t, err)
	assert.Equal(t, []string{filepath.Join(dir, dead)}, removed)
	fstest.Nothing(t, dir, alive)
}
