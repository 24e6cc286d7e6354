// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
	"holdstill.example/snapshot/internal/fsys"
)

// engine is the source that this test was built from, so that the lines of a built test are those of its list.
//
//go:embed *.go
var engine embed.FS

// faultSites lists from the syntax trees where the engine calls the system.
func faultSites(t *testing.T) []fstest.CallSite {
	t.Helper()
	var calls []string
	for m := range reflect.TypeFor[*fsys.Calls]().Methods() {
		if !slices.Contains([]string{"Open", "Opened", "GiveFile"}, m.Name) { // they only count
			calls = append(calls, m.Name)
		}
	}
	sites, err := fstest.CallSites(engine, "calls", calls)
	require.NoError(t, err)
	return sites
}

// spot is a call site as a hook sees it.
type spot struct {
	file string
	line int
	call string
}

// stackTop is as much of a stack as it takes to get from a hook to the engine.
type stackTop [16]uintptr

var spots sync.Map // stackTop → spot

// spotHere returns the site whose call the hook stands before, which may be another call than the hook's: a ProcDir belongs to
// the Reopen that it serves.
func spotHere() spot {
	var top stackTop
	n := runtime.Callers(3, top[:])
	if at, ok := spots.Load(top); ok {
		return at.(spot)
	}
	const root, seam = "holdstill.example/snapshot.", "holdstill.example/snapshot/internal/fsys.(*Calls)."
	var at spot
	for frames := runtime.CallersFrames(top[:n]); ; {
		f, more := frames.Next()
		// A literal that is inlined into the engine has a name of it, but is in its own file.
		if call, ok := strings.CutPrefix(f.Function, seam); ok {
			at.call, _, _ = strings.Cut(strings.ReplaceAll(call, "-", "."), ".")
		} else if strings.HasPrefix(f.Function, root) && !strings.Contains(f.File, "/internal/fsys/") || !more {
			at.file, at.line = filepath.Base(f.File), f.Line
			spots.Store(top, at)
			return at
		}
	}
}

// faultErrors is what each call may answer, as far as it was ever seen to; any may answer commonErrors.
var faultErrors = map[string][]syscall.Errno{
	"Allocate":        {syscall.EDQUOT, syscall.EOPNOTSUPP, syscall.ENOSYS},
	"Chmod":           {syscall.EPERM, syscall.EROFS},
	"ChmodAt":         {syscall.EPERM, syscall.EROFS, syscall.ENOENT},
	"Clone":           {syscall.EOPNOTSUPP, syscall.EXDEV, syscall.EINVAL, syscall.ENOTTY},
	"Close":           {syscall.EDQUOT},
	"Create":          {syscall.EEXIST, syscall.EDQUOT, syscall.EROFS, syscall.ENFILE, syscall.ENOENT},
	"CreateNameless":  {syscall.EOPNOTSUPP, syscall.EISDIR, syscall.ENOENT, syscall.EINVAL, syscall.EDQUOT, syscall.ENFILE},
	"DropLease":       {syscall.EAGAIN, syscall.EINVAL},
	"Dup":             {syscall.EBADF},
	"Free":            {syscall.ENOSYS},
	"Kind":            {syscall.ENOSYS},
	"Lease":           {syscall.EAGAIN, syscall.EPERM, syscall.EINVAL, syscall.EBADF, syscall.ENOLCK},
	"LeaseStands":     {syscall.EINVAL},
	"Link":            {syscall.EEXIST, syscall.EPERM, syscall.EMLINK, syscall.EOPNOTSUPP, syscall.EXDEV},
	"LinkNameless":    {syscall.EEXIST, syscall.EPERM, syscall.EMLINK, syscall.EXDEV, syscall.ENOENT},
	"List":            {syscall.ENOENT},
	"Lock":            {syscall.EAGAIN, syscall.ENOLCK, syscall.EOPNOTSUPP},
	"Mkdir":           {syscall.EEXIST, syscall.EDQUOT, syscall.EROFS, syscall.EMLINK, syscall.ENOENT},
	"OpenDir":         {syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.ENXIO, syscall.ENFILE},
	"OpenFile":        {syscall.ENOENT, syscall.ELOOP, syscall.ENXIO, syscall.ENODEV, syscall.EAGAIN, syscall.ENFILE},
	"OpenRoot":        {syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.ENFILE},
	"Pin":             {syscall.ENOENT, syscall.ENOTDIR, syscall.ENFILE},
	"PinPath":         {syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.ENFILE},
	"Read":            {syscall.EAGAIN},
	"ReadLink":        {syscall.ENOENT, syscall.EINVAL},
	"ReadNow":         {syscall.EAGAIN, syscall.EOPNOTSUPP, syscall.ENOSYS},
	"Rename":          {syscall.EXDEV, syscall.EBUSY, syscall.ENOTEMPTY, syscall.EPERM, syscall.EROFS, syscall.ENOENT},
	"RenameNoReplace": {syscall.EINVAL, syscall.ENOSYS, syscall.EEXIST, syscall.EXDEV, syscall.EBUSY, syscall.EPERM, syscall.ENOENT},
	"Reopen":          {syscall.ENOENT, syscall.EAGAIN, syscall.ELOOP, syscall.ENXIO, syscall.ENODEV, syscall.ENFILE},
	"Rmdir":           {syscall.ENOTEMPTY, syscall.EBUSY, syscall.EPERM, syscall.EROFS, syscall.ENOENT, syscall.ENOTDIR},
	"SetMtime":        {syscall.EPERM, syscall.EROFS},
	"SetMtimeAt":      {syscall.EPERM, syscall.EROFS, syscall.ENOENT},
	"Stat":            {syscall.ENOSYS, syscall.EPERM},
	"StatPath":        {syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.EPERM},
	"StatAt":          {syscall.ENOENT, syscall.ENOTDIR, syscall.ENOSYS, syscall.EPERM},
	"Symlink":         {syscall.EEXIST, syscall.EDQUOT, syscall.EPERM, syscall.ENOENT},
	"Sync":            {syscall.EDQUOT, syscall.EINVAL},
	"SyncAll":         {syscall.EDQUOT},
	"Truncate":        {syscall.EDQUOT, syscall.EPERM},
	"Unlink":          {syscall.EPERM, syscall.EROFS, syscall.EBUSY, syscall.ENOENT},
	"WaitWriters":     {syscall.ENXIO, syscall.EINVAL},
	"Write":           {syscall.EDQUOT, syscall.EFBIG},
}

var commonErrors = []syscall.Errno{syscall.EIO, syscall.ESTALE, syscall.EACCES, syscall.EMFILE, syscall.ENOSPC}

// fault is one call that fails: the nth at a site.
type fault struct {
	at    spot
	nth   int
	err   syscall.Errno
	every bool // and all after it of the same call
}

func (f fault) String() string {
	return fmt.Sprintf("%v at %s:%d %s, time %d", f.err, f.at.file, f.at.line, f.at.call, f.nth)
}

// is reports whether f is one of errs at one of the calls; no errs are all.
func (f fault) is(calls string, errs ...syscall.Errno) bool {
	return slices.Contains(strings.Fields(calls), f.at.call) && (errs == nil || slices.Contains(errs, f.err))
}

// lie reports an answer that is not true here, and that nobody can doubt: that a name is not there or no directory, or that
// somebody holds the lock. What has the name then is left alone, and nothing tells of it.
func (f fault) lie() bool {
	return f.is("OpenDir OpenFile StatAt Unlink Rmdir List Create Symlink Mkdir ChmodAt SetMtimeAt Rename RenameNoReplace",
		syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.ENXIO) || f.is("Lock LockShared", syscall.EAGAIN)
}

// means lists what an answer may be taken for; ok: what is got can be whole all the same, by another way or in another try.
func (f fault) means() (errs []error, ok bool) {
	gone := []syscall.Errno{syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP, syscall.ENXIO, syscall.ENODEV, syscall.ESTALE}
	switch {
	case f.is("Clone ProcDir"), // then there is none
		f.is("CreateNameless", syscall.EOPNOTSUPP, syscall.EISDIR, syscall.ENOENT, syscall.EINVAL),
		f.is("ReadNow", syscall.EAGAIN, syscall.EOPNOTSUPP, syscall.ENOSYS),
		f.is("RenameNoReplace", syscall.EINVAL, syscall.ENOSYS),
		f.is("Allocate", syscall.EOPNOTSUPP, syscall.ENOSYS),
		f.is("LinkNameless", syscall.ENOENT), // AT_EMPTY_PATH is not allowed
		f.is("WaitWriters", syscall.ENXIO),   // one hole
		f.is("Rmdir", syscall.ENOTEMPTY):     // tried again
		return nil, true
	case f.lie(), f.is("Pin PinPath StatPath OpenDir OpenFile OpenRoot Reopen StatAt ReadLink List", gone...),
		f.is("Stat Kind Free Dup Read ReadNow Write Truncate Allocate Rewind Lease DropLease WaitWriters ArmStores SetMtime Close", syscall.ESTALE), f.is("LeaseStands"):
		errs = []error{snapshot.ErrChanged, snapshot.ErrNotRegular, snapshot.ErrUntrusted, snapshot.ErrMismatch, fs.ErrNotExist, fsys.ErrIsLink}
		if f.lie() { // somebody has the lock; or what was passed over is still there
			errs = append(errs, snapshot.ErrBusy, snapshot.ErrLeftover, syscall.ENOTEMPTY)
		}
		return errs, true
	case f.is("OpenDir OpenFile Reopen Read Lease", syscall.EAGAIN):
		return []error{snapshot.ErrBusy, snapshot.ErrEvidence, fsys.ErrLeased}, true
	case f.is("Lease", syscall.EACCES, syscall.EPERM, syscall.EINVAL, syscall.ENOLCK):
		return []error{snapshot.ErrEvidence}, true
	case f.is("Rename RenameNoReplace Link LinkNameless", syscall.EEXIST, syscall.ENOTEMPTY):
		return []error{fs.ErrExist}, false
	}
	return nil, false
}

// unharmed are sites that a fault may pass without an error of the call, with the reason why what is got is whole all the
// same. An entry whose site never does so is an error.
var unharmed = map[string]string{
	"(*op).release Close":           "nothing was written through the handle",
	"(*op).guardReads Close":        "nothing was written through the handle",
	"(*op).finish Finish":           "nothing was written through the handle",
	"(*resolver).find StatAt":       "the link leads to nothing, which is reported",
	"(*resolver).find Stat":         "the link leads to nothing, which is reported",
	"(*op).openDir StatAt":          "what the open answered is told",
	"(*reader).lengthChanged Stat":  "it is a change all the same",
	"(*worker).leaseSuspect Lease":  "the suspect is read without a lease",
	"(*tree).isRoot StatPath":       "what may not be looked at is not the root, which is open",
	"(*tree).kindOf Kind":           "the strongest is not assumed of what is not known",
	"(*op).isLink ReadLink":         "the text says only where it leads",
	"(*op).identitiesHold Stat":     "the first answer stands",
	"(*op).identitiesHold Stat 2":   "the first answer stands",
	"(*op).identitiesHold StatAt":   "the first answer stands",
	"(*op).identitiesHold StatAt 2": "the first answer stands",
	"(*op).identitiesHold Kind":     "the first answer stands",
	"(*op).hasWriter Lease":         "then only forks are waited for",
	"(*op).hasWriter DropLease":     "it goes with the handle",
	"(*tree).findPlaces StatPath":   "what may not be looked at is no place that a link leads to",
	"(*staging).discard Stat":       "it was not sealed, or cannot be emptied, which is told",
	"(*tree).pollLease DropLease":   "it goes with the handle",
}

// unharmedAtTimes are like unharmed, where a matter of time, or the answer, decides.
var unharmedAtTimes = map[string]string{
	"(*remover).unseal OpenDir": "the name gets the mode",
	"(*staging).adopt StatAt":   "what the open answered is told",
	"(*worker).copyInto Unlink": "what is left is removed in the next round",
}

// whereYoung is the site that a run comes to only if an entry changed within the last tick, which the next run may not find.
const whereYoung = "(*worker).look Stat 2"

// beyond are sites that no test can reach here, with the reason. An entry that is reached all the same is an error.
var beyond = map[string]string{
	"(*worker).copyInto Sync":    "Linux has SyncAll",
	"(*tree).sealDir Sync":       "Linux has SyncAll",
	"(*tree).collision StatAt 2": "only where the destination folds case",
	"(*tree).statEntry Stat 2":   "only in a weakened build",
	"(*worker).openForList Kind": "the root or the pin was asked before, and the answer is kept",
}

// faultVerb is an operation of which each call fails. It asserts that what it got is what there is.
type faultVerb struct {
	name      string
	kind      string   // of file system; "" is that of os.TempDir
	lines     []string // the source, else faultTree
	opts      snapshot.Options
	exclude   []string
	lacks     snapshot.Fallback
	known     func(*fsys.Kind)                         // what the file system passes for, else ext4
	deny      map[string]error                         // the only answer of a call, or of a call in a function
	make      func(t *testing.T, s site)               // more of the source
	meanwhile func(t *testing.T, s site) snapshot.Seam // what happens to the source, which is a new one each time
	call      func(t *testing.T, s site, o *snapshot.Options) error
	fails     []error  // it ends so also without a fault
	sweeps    bool     // what it leaves is for the next sweep, and no error
	away      bool     // what it leaves may be taken away before it can say so
	only      []string // sites that no other verb reaches, if this machine cannot do it
}

// faultTree has something of everything: a file with another mode, links.
var faultTree = []string{"A/f=@5000B", "A/g 0600=x", "A/x 0755=y", "D/l => ../A/g", "l => A"}

// tooDeep is a directory that is not removed in place.
var tooDeep = "D/" + strings.Repeat("d/", 17) + "f=deep"

func asItIs(*fsys.Kind) {}

func asExt4(k *fsys.Kind) {
	*k = fsys.Kind{Name: "ext4", Grain: fsys.Tick, Stores: true, LeaseNow: true, LeaseHeld: true}
}

func asXFS(k *fsys.Kind) { asExt4(k); k.Clones, k.LockingReads = true, true }

func asOverlay(k *fsys.Kind) { *k = fsys.Kind{Name: "overlayfs", Grain: fsys.Tick, Fsync: true} }

func asNFS(k *fsys.Kind) { *k = fsys.Kind{Name: "nfs", Grain: fsys.Tick, Remote: true} }

// faultSite is where a verb does its work.
type faultSite struct {
	site
	before []snapshot.Entry // the source, if nothing happens to it
}

// faultRun is what came of one run.
type faultRun struct {
	calls []spot
	hits  int // faults that were met
	err   error
}

// run makes one run with faults, and checks all that must hold whatever comes of it. other, if not nil, may fail any call.
func (p *faultPlan) run(t *testing.T, v *faultVerb, s faultSite, other func(at spot) error, faults ...fault) (r faultRun) {
	t.Helper()
	seam := snapshot.Seam{}
	if v.meanwhile != nil {
		s = v.site(t)
		seam = v.meanwhile(t, s.site)
	}
	var mu sync.Mutex
	then, times, every := seam.At, map[spot]int{}, map[string]error{}
	seam.Lacks, seam.Known = v.lacks, v.known
	if v.known == nil {
		seam.Known = asExt4
	}
	seam.At = func(call, name string) error {
		at := spotHere()
		if call == "ProcDir" {
			at.call = call // whichever call needs it first
		}
		mu.Lock()
		defer mu.Unlock()
		times[at]++
		r.calls = append(r.calls, at)
		for _, f := range faults {
			if f.at == at && f.nth == times[at] {
				r.hits++
				if f.every {
					every[at.call] = f.err
				}
				return f.err
			}
		}
		err := cmp.Or(every[at.call], v.deny[call], v.deny[p.names[at]])
		if err == nil && other != nil {
			err = other(at)
		}
		if err == nil && then != nil {
			err = then(call, name)
		}
		return err
	}
	ended := 0
	seam.Finished = func(open, _ int64) {
		ended++
		assert.Zero(t, open, "%s: open handles after %v", v.name, faults)
	}
	opts := v.opts
	if v.exclude != nil {
		opts.Exclude = filterOf(t, v.exclude...)
	}
	r.err = v.call(t, s.site, snapshot.WithSeam(&opts, seam))
	what := fmt.Sprintf("%s: %v: %v", v.name, faults, r.err)
	assert.Positive(t, ended, what)
	if v.meanwhile == nil {
		assert.Equal(t, s.before, walkByHand(t, s.src), what)
	}
	v.left(t, s.site, r.err, slices.ContainsFunc(faults, fault.lie), what)
	return r
}

// typed: whatever a fault leads to has a type that says where, and the system's answer, or what it was taken for.
func (v *faultVerb) typed(t *testing.T, err error, faults []fault) {
	t.Helper()
	if err == nil || isOneOf(err, v.fails) {
		return
	}
	what := fmt.Sprintf("%s: %v: %v", v.name, faults, err)
	assert.True(t, slices.ContainsFunc(faults, func(f fault) bool {
		others, _ := f.means()
		folds := errors.Is(f.err, fs.ErrExist) && strings.Contains(err.Error(), "folds case")
		return errors.Is(err, f.err) || isOneOf(err, others) || folds
	}), "the answer of the system is not to be had: "+what)
	_, isPath := errors.AsType[*fs.PathError](err)
	_, isChange := errors.AsType[*snapshot.ChangeError](err)
	_, isEvidence := errors.AsType[*snapshot.EvidenceError](err)
	_, isLeft := errors.AsType[*snapshot.LeftoverError](err)
	_, isMismatch := errors.AsType[*snapshot.MismatchError](err)
	assert.True(t, isPath || isChange || isEvidence || isLeft || isMismatch, "no type: "+what)
}

// left: nothing is new but the copy and what an error names, and what is not ours is as it was. A copy that was whole and
// published stays if then only the staging directory could not be removed.
func (v *faultVerb) left(t *testing.T, s site, err error, lies bool, what string) {
	t.Helper()
	parent := filepath.Dir(s.dst)
	var named []string
	if errors.Is(err, snapshot.ErrLeftover) && !v.sweeps {
		named = leftoverPaths(err)
		assert.False(t, snapshot.Retryable(err), what)
	}
	for _, name := range namesIn(t, parent) {
		at := filepath.Join(parent, name)
		if name == "mine" || name == stranger {
			continue
		}
		whole := at == s.dst && (err == nil || errors.Is(err, snapshot.ErrLeftover))
		assert.True(t, whole || slices.Contains(named, at) || lies, "%s is left: %s", at, what)
		named = slices.DeleteFunc(slices.Clone(named), func(n string) bool { return n == at })
		assert.NoError(t, removeCopy(at))
	}
	assert.True(t, len(named) == 0 || v.away, "named, and not there: "+what)
	assert.Equal(t, "m", readString(t, parent+"/mine"), what)
	assert.Equal(t, "not ours", readString(t, parent+"/"+stranger+"/f"), what)
}

// leftoverPaths returns what all the errors in err name.
func leftoverPaths(err error) (paths []string) {
	switch e := err.(type) {
	case *snapshot.LeftoverError:
		return e.Paths
	case interface{ Unwrap() error }:
		return leftoverPaths(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			paths = append(paths, leftoverPaths(err)...)
		}
	}
	return paths
}

func readString(t *testing.T, name string) string {
	b, err := os.ReadFile(name)
	assert.NoError(t, err)
	return string(b)
}

// stranger has the name of a staging directory, and is none.
var stranger = stagingName("a")

// site makes a source for v, and things of the user's beside the destination.
func (v *faultVerb) site(t *testing.T) (s faultSite) {
	t.Helper()
	s.dir = fstest.Dir(t, v.kind)
	s.src, s.dst = filepath.Join(s.dir, "src"), filepath.Join(s.dir, "out/dst")
	lines := v.lines
	if lines == nil {
		lines = faultTree
	}
	fstest.Make(t, s.src, lines...)
	fstest.Make(t, s.dir, "next/f=other", "next/h=h", "out/mine=m", "out/"+stranger+"/f=not ours")
	if v.make != nil {
		v.make(t, s.site)
	}
	fstest.Settle(t, s.dir)
	if v.meanwhile == nil {
		s.before = walkByHand(t, s.src)
	}
	return s
}

func faultyCopy(t *testing.T, s site, o *snapshot.Options) error {
	report, err := snapshot.CopyDir(t.Context(), s.dst, s.src, o)
	if err == nil {
		fstest.Equal(t, s.src, s.dst)
		assert.Equal(t, walkByHand(t, s.dst), entriesOf(t, report.Manifest))
	}
	return err
}

func faultyScan(t *testing.T, s site, o *snapshot.Options) error {
	report, err := snapshot.Scan(t.Context(), s.src, o)
	if err == nil {
		assert.Equal(t, walkByHand(t, s.src), entriesOf(t, report.Manifest))
	}
	return err
}

func faultyVerify(t *testing.T, s site, o *snapshot.Options) error {
	return snapshot.Verify(t.Context(), s.src, manifestOf(t, walkByHand(t, s.src)...), o)
}

func faultyCopyFile(t *testing.T, s site, o *snapshot.Options) error {
	proof, err := snapshot.CopyFile(t.Context(), s.dst, s.src+"/A/f", o)
	return faultyProof(t, s, proof, err)
}

func faultyProof(t *testing.T, s site, proof snapshot.Proof, err error) error {
	if err == nil {
		assert.Equal(t, digestOf(t, s.src+"/A/f"), proof.Entry.Digest)
		assert.Equal(t, proof.Entry.Digest, digestOf(t, s.dst))
	}
	return err
}

func faultyReadFile(t *testing.T, s site, o *snapshot.Options) error {
	b, _, err := snapshot.ReadFile(t.Context(), s.src+"/A/f", o)
	if err == nil {
		assert.Equal(t, readString(t, s.src+"/A/f"), string(b))
	}
	return err
}

// faultyFile is all that can be done with a File.
func faultyFile(t *testing.T, s site, open func() (*snapshot.File, error)) error {
	f, err := open()
	if err != nil {
		return err
	}
	defer func() { assert.NoError(t, f.Close()) }()
	var b strings.Builder
	if _, err := f.CopyTo(t.Context(), &b); err != nil {
		return err
	}
	assert.Equal(t, readString(t, s.src+"/A/f"), b.String())
	if err := f.Check(); err != nil {
		return err
	}
	proof, err := f.CopyFile(t.Context(), s.dst)
	return faultyProof(t, s, proof, err)
}

func faultyOpenIn(name string) func(t *testing.T, s site, o *snapshot.Options) error {
	return func(t *testing.T, s site, o *snapshot.Options) error {
		root, err := os.OpenRoot(s.src)
		if !assert.NoError(t, err) {
			return err
		}
		defer root.Close()
		return faultyFile(t, s, func() (*snapshot.File, error) { return snapshot.OpenIn(root, name, o) })
	}
}

func faultyNewFile(t *testing.T, s site, o *snapshot.Options) error {
	own, err := os.Open(s.src + "/A/f")
	if !assert.NoError(t, err) {
		return err
	}
	defer own.Close()
	return faultyFile(t, s, func() (*snapshot.File, error) { return snapshot.NewFile(own, o) })
}

// faultRoots are for a snapshot: directories of which one has a link to the other, files, and the same by handle.
var faultRoots = []string{"A/f=f", "A/l => ../B/g", "B/g 0600=g", "x 0755=x", "C/h=h", "y=y"}

// faultyTake returns all that can be done with what was taken of faultRoots, and then.
func faultyTake(then func(t *testing.T, s *snapshot.Snapshot) error) func(*testing.T, site, *snapshot.Options) error {
	return func(t *testing.T, s site, o *snapshot.Options) error {
		roots := []snapshot.Root{{Path: s.src + "/A"}, {Path: s.src + "/B"}, {Path: s.src + "/x"}}
		for _, name := range []string{"/C", "/y"} {
			f, err := os.Open(s.src + name)
			if !assert.NoError(t, err) {
				return err
			}
			defer f.Close()
			roots = append(roots, snapshot.Root{File: f})
		}
		snap, err := snapshot.Take(t.Context(), roots, &snapshot.TakeOptions{
			Options: *o, Parent: filepath.Dir(s.dst), Aliases: []snapshot.Alias{{Name: "new/alias", Target: "A/f"}},
		})
		if err != nil {
			return err
		}
		assert.Equal(t, map[string]string{
			".": "dir", "A": "dir", "A/f": `file "f"`, "A/l": "link ../B/g", "B": "dir", "B/g": `file "g"`, "x": `file "x"`,
			"C": "dir", "C/h": `file "h"`, "y": `file "y"`, "new": "dir", "new/alias": "link ../A/f",
		}, fstest.Contents(t, snap.Dir()+"/tree"))
		return then(t, snap)
	}
}

// faultySnapshot is all that can be done with a Snapshot.
func faultySnapshot(t *testing.T, s *snapshot.Snapshot) (err error) {
	defer func() { err = errors.Join(err, s.Close()) }()
	assert.Equal(t, walkByHand(t, s.Dir()+"/tree"), entriesOf(t, s.Manifest()))
	if err := s.Verify(t.Context()); err != nil {
		return err
	}
	f, err := s.Open(t.Context(), "A/f")
	if err == nil {
		assert.Equal(t, "f", readString(t, f.Name()))
		err = f.Close()
	}
	return err
}

// faultyDetach leaves a snapshot behind; what is left of it is what others can open and remove.
func faultyDetach(t *testing.T, s *snapshot.Snapshot) error {
	err := s.Detach()
	detached := err == nil
	if err = errors.Join(err, s.Close()); detached {
		assert.NoError(t, err)
		again, e := snapshot.OpenSnapshot(t.Context(), s.Dir(), s.Manifest().Digest())
		if assert.NoError(t, e) {
			assert.NoError(t, faultySnapshot(t, again))
		}
		assert.NoError(t, removeSoon(t, s.Dir()))
	}
	return err
}

// takeIn leaves a snapshot of s.dir/of in parent.
func takeIn(t *testing.T, s site, parent string) *snapshot.Snapshot {
	snap, err := snapshot.Take(t.Context(), []snapshot.Root{{Path: s.dir + "/of/A"}}, &snapshot.TakeOptions{Parent: parent})
	require.NoError(t, err)
	require.NoError(t, snap.Detach())
	require.NoError(t, snap.Close())
	return snap
}

// faultyOpenSnapshot opens the only one in the source.
func faultyOpenSnapshot(t *testing.T, s site, o *snapshot.Options) error {
	dir := filepath.Join(s.src, namesIn(t, s.src)[0])
	snap, err := snapshot.OpenSnapshotWith(t.Context(), dir, digestOf(t, dir+"/manifest.mtree"), snapshot.SeamOf(o))
	if err != nil {
		return err
	}
	return faultySnapshot(t, snap)
}

// faultyRemove removes a snapshot to which something happened. A removal that a fault ended is repeated.
func faultyRemove(happened func(t *testing.T, dir string)) func(*testing.T, site, *snapshot.Options) error {
	return func(t *testing.T, s site, o *snapshot.Options) error {
		dir := takeIn(t, s, filepath.Dir(s.dst)).Dir()
		happened(t, dir)
		err := snapshot.RemoveSnapshotWith(t.Context(), dir, snapshot.SeamOf(o))
		if left, ok := errors.AsType[*snapshot.LeftoverError](err); ok {
			assert.Equal(t, []string{dir}, left.Paths)
			assert.False(t, snapshot.Retryable(err))
			err = left.Err
		}
		if err != nil {
			assert.NoError(t, removeSoon(t, dir), "again after %v", err)
		}
		assert.NoDirExists(t, dir)
		return err
	}
}

// leftovers makes what a killed call leaves, and sweeps.
func leftovers(lines ...string) func(t *testing.T, s site, o *snapshot.Options) error {
	return func(t *testing.T, s site, o *snapshot.Options) error {
		parent, name := filepath.Dir(s.dst), stagingName("b")
		var made []string
		for _, line := range lines {
			made = append(made, name+"/"+line)
		}
		fstest.Make(t, parent, append(made, name+"/ 0700")...)
		removed, err := snapshot.SweepWith(t.Context(), parent, snapshot.SeamOf(o))
		_, gone := os.Lstat(filepath.Join(parent, name))
		if len(removed) > 0 && gone == nil { // the last step was a lie
			assert.Empty(t, namesIn(t, filepath.Join(parent, name)))
		}
		if gone != nil {
			assert.ErrorIs(t, gone, fs.ErrNotExist)
		} else if _, e := snapshot.Sweep(t.Context(), parent); assert.NoError(t, e) {
			assert.NoDirExists(t, filepath.Join(parent, name), "after another sweep")
		}
		return err
	}
}

// faultySkip copies a tree of which something is left out.
func faultySkip(t *testing.T, s site, o *snapshot.Options) error {
	report, err := snapshot.CopyDir(t.Context(), s.dst, s.src, o)
	if err == nil {
		assert.Len(t, report.Skipped, 1)
		assert.Equal(t, walkByHand(t, s.dst), entriesOf(t, report.Manifest))
	}
	return err
}

// withHoles makes a file that is copied as one.
func withHoles(t *testing.T, s site) {
	require.NoError(t, os.WriteFile(s.src+"/A/f", []byte("data"), 0o644))
	require.NoError(t, os.Truncate(s.src+"/A/f", 64<<10))
}

var one = snapshot.Options{Workers: 1}

// when runs f once, before the nth time of a call that concerns name, or "".
func when(call, name string, nth int, f func()) func(string, string) error {
	times := 0
	return func(c, n string) error {
		if c == call && (name == "" || n == name) {
			if times++; times == nth {
				f()
			}
		}
		return nil
	}
}

// afterJoin returns what happens to a source once it was copied.
func afterJoin(f func(t *testing.T, s site)) func(t *testing.T, s site) snapshot.Seam {
	return func(t *testing.T, s site) snapshot.Seam {
		return snapshot.Seam{Phase: oncePhase("joined", func() { f(t, s) })}
	}
}

// noisy moves the ctime of A/g at each look at it, and then somebody wants to write to it.
func noisy(t *testing.T, s site) snapshot.Seam {
	joined, leased, wanted := false, false, false
	return snapshot.Seam{
		Phase: func(string) { joined = true },
		At: func(call, name string) error {
			switch {
			case !joined || wanted:
			case call == "Lease":
				leased = true
			case !leased && call == "StatAt" && name == "g":
				fstest.Settle(t, s.src+"/A")
				s.touch(t, "A/g")
			case leased && call == "PinPath":
				wanted = true
				if f, err := os.OpenFile(s.src+"/A/g", os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil { // the lease was refused
					assert.NoError(t, f.Close())
				}
			}
			return nil
		},
	}
}

// filling gives a directory a new name at each of the first listings.
func filling(t *testing.T, s site) snapshot.Seam {
	lists := 0
	return snapshot.Seam{At: func(call, _ string) error {
		if call == "List" && lists < 12 {
			lists++
			s.put(t, fmt.Sprintf("new%d", lists), "n")
			fstest.Settle(t, s.src) // a young directory would wait for its turn
		}
		return nil
	}}
}

var faultVerbs = []*faultVerb{
	{name: "CopyDir", opts: one, call: faultyCopy},
	{name: "CopyDir, durable", opts: snapshot.Options{Workers: 1, Durable: true}, lacks: snapshot.NoRenameNoReplace, call: faultyCopy},
	{name: "CopyDir, durable without syncfs", opts: snapshot.Options{Workers: 1, Durable: true}, deny: map[string]error{"SyncAll": errors.ErrUnsupported}, call: faultyCopy},
	{name: "CopyDir, of files", opts: snapshot.Options{Workers: 1, PerFile: true}, call: faultyCopy},
	{name: "CopyDir, with modes", opts: snapshot.Options{Workers: 1, PreserveMode: true}, lines: []string{"f 0666=x", "d/g 0622=y"}, call: faultyCopy},
	{name: "CopyDir, behind barriers", opts: snapshot.Options{Workers: 1, NeverLock: true}, call: faultyCopy},
	{name: "CopyDir, without /proc", opts: one, deny: map[string]error{"ProcDir": syscall.ENOENT}, call: faultyCopy},
	{name: "CopyDir, without pins", opts: one, deny: map[string]error{"Pin": errors.ErrUnsupported}, call: faultyCopy},
	{name: "CopyDir, from a server", opts: one, known: asNFS, call: faultyCopy},
	{name: "CopyDir, as on xfs", opts: one, known: asXFS, call: faultyCopy},
	{name: "Scan", opts: one, call: faultyScan},
	{name: "Verify", opts: one, call: faultyVerify},
	{name: "CopyFile", call: faultyCopyFile},
	{name: "CopyFile, durable by a staging", opts: snapshot.Options{Durable: true}, lacks: snapshot.NoNameless, call: faultyCopyFile},
	{name: "CopyFile, under a lease", opts: snapshot.Options{Require: snapshot.Quiescent}, call: faultyCopyFile},
	{name: "CopyFile, by a staging's links", lacks: snapshot.NoNameless | snapshot.NoRenameNoReplace, call: faultyCopyFile},
	{name: "CopyFile, by fsync", opts: snapshot.Options{Require: snapshot.Buffered}, known: asOverlay, call: faultyCopyFile},
	{name: "ReadFile", call: faultyReadFile},
	{name: "ReadFile, without pins", deny: map[string]error{"Pin": errors.ErrUnsupported}, call: faultyReadFile},
	{name: "CopyFile, with its mode", opts: snapshot.Options{PreserveMode: true}, lines: []string{"A/f 0666=x"}, call: faultyCopyFile},
	{name: "Open", call: func(t *testing.T, s site, o *snapshot.Options) error {
		return faultyFile(t, s, func() (*snapshot.File, error) { return snapshot.Open(s.src+"/A/f", o) })
	}},
	{name: "OpenIn", call: faultyOpenIn("A/f")},
	{name: "OpenIn, by a link", call: faultyOpenIn("l/f"), fails: []error{snapshot.ErrNotRegular, syscall.ENOTDIR}},
	{name: "NewFile", call: faultyNewFile},
	{name: "CopyFile, with holes", make: withHoles, call: faultyCopyFile},
	{name: "CopyFile, of a large file", lines: []string{"A/f=@1MiB"}, known: asXFS, call: faultyCopyFile},
	{
		name: "CopyFile, by a clone", kind: "btrfs", known: asItIs, opts: snapshot.Options{NeverLock: true}, call: faultyCopyFile,
		only: []string{"(*reader).hashClone Stat"},
	},
	{
		name: "CopyDir, over mounts", opts: snapshot.Options{Workers: 1, CrossMounts: true}, lines: []string{"m/", "f=x"}, call: faultyCopy,
		make: func(t *testing.T, s site) { fstest.Bind(t, s.dir+"/next", s.src+"/m") },
		only: []string{"(*worker).look Kind"},
	},
	{
		name: "CopyDir, over mounts of a server", opts: snapshot.Options{Workers: 1, CrossMounts: true}, lines: []string{"m/", "f=x"}, call: faultyCopy,
		make: func(t *testing.T, s site) { fstest.Bind(t, s.dir+"/next", s.src+"/m") }, known: asNFS,
		only: []string{"(*worker).look Stat 3"},
	},
	{
		name: "CopyDir, but what is excluded", opts: one, exclude: []string{"A", "!A/none"}, lines: []string{"A/f=x", "g=y"}, call: faultySkip,
	},
	{
		name: "CopyDir, but links to nothing", opts: snapshot.Options{Workers: 1, Links: snapshot.LinksInsideOrSkip}, lines: []string{"l => late"},
		meanwhile: func(t *testing.T, s site) snapshot.Seam {
			return snapshot.Seam{Phase: oncePhase("proven", func() { s.put(t, "late", "x") })}
		},
		call: faultySkip,
	},
	{name: "Sweep", call: leftovers("lock=holdstill staging 1\n", "tree/d/f 0400=x", "tree/d/ 0500"), sweeps: true},
	{name: "Sweep, of a lock", call: leftovers("lock="), sweeps: true},
	{name: "Sweep, of nothing", call: leftovers(), sweeps: true},
	{
		name: "Sweep, of what cannot be read", call: leftovers("tree/d/f=x", "tree/d/ 0000", "lock=holdstill staging 1\n"), sweeps: true,
		deny: map[string]error{"(*remover).unseal OpenDir": syscall.EACCES},
	},
	{
		name: "CopyFile, of what grows", call: faultyCopyFile, opts: snapshot.Options{NeverLock: true},
		meanwhile: func(t *testing.T, s site) snapshot.Seam {
			return snapshot.Seam{At: when("Read", "", 1, func() { s.put(t, "A/f", strings.Repeat("grown", 2000)) })}
		},
	},
	{
		name: "CopyFile, of what is replaced", call: faultyCopyFile,
		meanwhile: func(t *testing.T, s site) snapshot.Seam {
			return snapshot.Seam{At: when("Read", "", 1, func() { assert.NoError(t, os.Rename(s.dir+"/next/f", s.src+"/A/f")) })}
		},
	},
	{
		name: "ReadFile, of what is always stale", call: faultyReadFile, fails: []error{snapshot.ErrChanged},
		deny: map[string]error{"Pin": errors.ErrUnsupported, "OpenFile": syscall.ESTALE},
	},
	{
		name: "CopyFile, swept at once", call: faultyCopyFile, lacks: snapshot.NoNameless, away: true,
		meanwhile: func(t *testing.T, s site) snapshot.Seam {
			return snapshot.Seam{At: when("LockShared", "", 1, func() {
				removed, err := snapshot.Sweep(context.Background(), filepath.Dir(s.dst))
				assert.NoError(t, err)
				assert.NotEmpty(t, removed)
			})}
		},
	},
	{
		name: "CopyFile, whose staging is taken away", call: faultyCopyFile, lacks: snapshot.NoNameless, away: true,
		meanwhile: func(t *testing.T, s site) snapshot.Seam {
			return snapshot.Seam{At: when("Unlink", "lock", 1, func() {
				for _, name := range namesIn(t, filepath.Dir(s.dst)) {
					if strings.HasPrefix(name, ".holdstill-") && name != stranger {
						assert.NoError(t, os.RemoveAll(filepath.Join(filepath.Dir(s.dst), name)))
					}
				}
			})}
		},
	},
	{
		name: "CopyFile, that cannot be staged", call: faultyCopyFile, lacks: snapshot.NoNameless,
		deny: map[string]error{"(*staging).adopt OpenDir": syscall.EMFILE}, fails: []error{syscall.EMFILE},
	},
	{name: "Lstat", call: func(t *testing.T, s site, o *snapshot.Options) error {
		for _, name := range []string{"A/f", "A/"} {
			if _, err := snapshot.LstatWith(s.src+"/"+name, snapshot.SeamOf(o)); err != nil {
				return err
			}
		}
		return nil
	}},
	{
		name: "CopyDir, of what is replaced", opts: one, call: faultyCopy,
		meanwhile: afterJoin(func(t *testing.T, s site) {
			s.move(t, "A", "away")
			assert.NoError(t, os.Rename(s.dir+"/next", s.src+"/A"))
			s.move(t, "D", "deep")
			s.put(t, "D", "a file now")
		}),
	},
	{
		name: "CopyDir, of what is written", opts: one, call: faultyCopy,
		meanwhile: afterJoin(func(t *testing.T, s site) { s.put(t, "A/f", "other"); s.put(t, "A/new", "n") }),
	},
	{
		name: "CopyDir, of what gets new stamps", opts: one, call: faultyCopy,
		meanwhile: afterJoin(func(t *testing.T, s site) { s.touch(t, "A/f"); s.touch(t, "A"); s.touch(t, "") }),
	},
	{name: "CopyDir, of what gets new stamps again and again", opts: one, call: faultyCopy, meanwhile: noisy},
	{
		name: "CopyDir, of another root", opts: one, call: faultyCopy,
		meanwhile: afterJoin(func(t *testing.T, s site) {
			s.move(t, "", "away")
			assert.NoError(t, os.Rename(s.dir+"/next", s.src))
		}),
	},
	{
		name: "CopyDir, of what is young", opts: one, lines: []string{"f=x"}, call: faultyCopy,
		meanwhile: func(t *testing.T, s site) snapshot.Seam {
			return snapshot.Seam{At: when("Pin", "f", 1, func() { s.touch(t, "f") })}
		},
	},
	{name: "CopyDir, of a directory that fills", opts: one, lines: []string{"f=x"}, call: faultyCopy, meanwhile: filling},
	{name: "Take", opts: one, lines: faultRoots, call: faultyTake(faultySnapshot)},
	{name: "Take, durable, and Detach", opts: snapshot.Options{Workers: 1, Durable: true}, lines: faultRoots, call: faultyTake(faultyDetach)},
	{name: "Take, without pins", opts: one, lines: faultRoots, deny: map[string]error{"Pin": errors.ErrUnsupported}, call: faultyTake(faultySnapshot)},
	{name: "Take, without /proc", opts: one, lines: faultRoots, deny: map[string]error{"ProcDir": syscall.ENOENT}, call: faultyTake(faultySnapshot)},
	{
		name: "Take, of a file without pins", opts: one, lines: []string{"f=x"}, deny: map[string]error{"Pin": errors.ErrUnsupported},
		call: func(t *testing.T, s site, o *snapshot.Options) error {
			snap, err := snapshot.Take(t.Context(), []snapshot.Root{{Path: s.src + "/f"}}, &snapshot.TakeOptions{Options: *o, Parent: filepath.Dir(s.dst)})
			if err == nil {
				assert.Equal(t, map[string]string{".": "dir", "f": `file "x"`}, fstest.Contents(t, snap.Dir()+"/tree"))
				err = snap.Close()
			}
			return err
		},
	},
	{
		name: "OpenSnapshot", lines: []string{}, call: faultyOpenSnapshot,
		make: func(t *testing.T, s site) { fstest.Make(t, s.dir, "of/A/f=f"); takeIn(t, s, s.src) },
	},
	{
		name: "RemoveSnapshot", call: faultyRemove(func(*testing.T, string) {}),
		make: func(t *testing.T, s site) { fstest.Make(t, s.dir, "of/A/f=f", "of/A/d/l => ../f") },
	},
	{
		name: "RemoveSnapshot, of a rest", make: func(t *testing.T, s site) { fstest.Make(t, s.dir, "of/A/f=f") },
		call: faultyRemove(func(t *testing.T, dir string) {
			assert.NoError(t, os.Chmod(dir, 0o700))
			assert.NoError(t, removeCopy(dir+"/tree"))
		}),
	},
	{name: "CopyFile, of a program", lines: []string{"A/f 0755=x"}, call: faultyCopyFile},
	{
		name: "CopyFile, of a program without /proc", lines: []string{"A/f 0755=x"}, call: faultyCopyFile,
		lacks: snapshot.NoNameless, deny: map[string]error{"ProcDir": syscall.ENOENT},
	},
	{
		name: "CopyFile, of a program beside another thread's /proc", lines: []string{"A/f 0755=x"}, call: faultyCopyFile,
		deny: map[string]error{"Reopen": syscall.ENOENT},
	},
	{
		name: "CopyDir, that cannot be published", opts: one, lines: []string{tooDeep, "f=x"}, call: faultyCopy,
		deny: map[string]error{"RenameNoReplace": syscall.EXDEV}, fails: []error{syscall.EXDEV},
	},
	{name: "NewFile, without /proc", deny: map[string]error{"ProcDir": syscall.ENOENT}, call: faultyNewFile},
}

// faultPlan is what all verbs share: which sites there are, and which failed.
type faultPlan struct {
	sites map[spot]fstest.CallSite
	names map[spot]string // as in the tables: the function, the call, and which of them
	turns map[spot]int    // which of all that make the call

	mu      sync.Mutex
	failed  map[spot]bool
	quietly map[spot]bool // without an error of the call
	owner   map[spot]*faultVerb
	excused map[string]bool // this machine cannot do the verb that reaches them
}

func newFaultPlan(t *testing.T) *faultPlan {
	t.Helper()
	p := &faultPlan{
		sites: map[spot]fstest.CallSite{}, names: map[spot]string{}, turns: map[spot]int{},
		failed: map[spot]bool{}, quietly: map[spot]bool{}, owner: map[spot]*faultVerb{}, excused: map[string]bool{},
	}
	count, turn := map[string]int{}, map[string]int{}
	for _, s := range faultSites(t) {
		at, name := spot{s.File, s.Line, s.Call}, s.In+" "+s.Call
		if count[name]++; count[name] > 1 {
			name = fmt.Sprintf("%s %d", name, count[name])
		}
		p.sites[at], p.names[at], p.turns[at] = s, name, turn[s.Call]
		turn[s.Call]++
	}
	return p
}

// effort says how many of all faults are tried.
type effort int

const (
	some effort = iota + 1
	more
	all
)

// TestFaults: whatever the system answers, wherever, what was got is what there was, or there is an error that has the
// system's answer, or tells of a change. Then nothing is left but what it names, nothing that is not ours was touched, and
// every handle is closed. Every place where the engine calls the system fails here, or this test does.
//
// By default each site fails with three answers in the first verb that comes to it; with HOLDSTILL_STRESS=ci also the last time,
// with each answer in the first verb and with three in every other; with HOLDSTILL_STRESS=full with each in every verb.
func TestFaults(t *testing.T) {
	t.Parallel()
	p := newFaultPlan(t)
	much := effort(min(stressTries(t, 1, 2, 3), 3))
	group := func(name string, ofThese func(*faultVerb) bool) {
		t.Run(name, func(t *testing.T) {
			for _, v := range faultVerbs {
				if !ofThese(v) {
					continue
				}
				t.Run(v.name, func(t *testing.T) {
					t.Parallel()
					t.Cleanup(func() { p.ended(t, v) })
					p.verb(t, v, much)
				})
			}
		})
	}
	group("still", func(v *faultVerb) bool { return v.meanwhile == nil })
	group("moving", func(v *faultVerb) bool { return v.meanwhile != nil })      // what only they come to is left for these
	if f := flag.Lookup("test.run"); !strings.Contains(f.Value.String(), "/") { // all verbs
		p.check(t, much)
	}
}

func (p *faultPlan) ended(t *testing.T, v *faultVerb) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range v.only {
		p.excused[name] = t.Skipped()
	}
}

// verb lets every call of v fail.
func (p *faultPlan) verb(t *testing.T, v *faultVerb, much effort) {
	s := v.site(t)
	undisturbed := func(how string, other func(spot) error) faultRun {
		r := p.run(t, v, s, other)
		assert.Equal(t, v.fails == nil, r.err == nil, "%s, %s: %v", v.name, how, r.err)
		assert.True(t, r.err == nil || isOneOf(r.err, v.fails), "%s, %s: %v", v.name, how, r.err)
		return r
	}
	quiet := undisturbed("without a fault", nil)
	interrupted := false
	undisturbed("each call interrupted once", func(spot) error {
		if interrupted = !interrupted; interrupted {
			return syscall.EINTR
		}
		return nil
	})
	undisturbed("each read and write a short one", func(at spot) error {
		if slices.Contains([]string{"Read", "ReadNow", "Write"}, at.call) {
			return fsys.ErrShort
		}
		return nil
	})
	base := map[spot]int{}
	for _, at := range quiet.calls {
		base[at]++
	}
	for _, at := range distinct(quiet.calls) {
		p.site(t, v, s, base, at, much)
	}
}

// distinct returns each site once, in the order in which they were met.
func distinct(calls []spot) (sites []spot) {
	for _, at := range calls {
		if !slices.Contains(sites, at) {
			sites = append(sites, at)
		}
	}
	return sites
}

// site lets a call fail with whatever it may answer, and then each that is called only because of that.
func (p *faultPlan) site(t *testing.T, v *faultVerb, s faultSite, base map[spot]int, at spot, much effort) {
	own := p.tries(at, v)
	if at.call != "ProcDir" && !assert.Contains(t, p.sites, at, "a place that is not in the list") || !own && much == some {
		return
	}
	times := []int{1}
	if much > some && base[at] > 1 {
		times = append(times, base[at])
	}
	for _, nth := range times {
		for i, e := range p.answers(at, much == all || much == more && own) {
			f := fault{at: at, nth: nth, err: e}
			r := p.run(t, v, s, nil, f)
			p.met(t, v, r, f)
			for _, next := range distinct(r.calls) {
				if base[next] == 0 && (p.tries(next, v) || much > some) {
					p.second(t, v, s, f, next, much, i == 0 && nth == 1)
				}
			}
		}
	}
}

// second lets next fail after f. If it failed before, that is tried again for the first fault of a place.
func (p *faultPlan) second(t *testing.T, v *faultVerb, s faultSite, f fault, next spot, much effort, first bool) {
	answers := p.answers(next, much > some)
	if p.hasFailed(next) {
		if much == some || much == more && !first {
			return
		}
		answers = answers[:1]
	}
	for _, e := range answers {
		g := fault{at: next, nth: 1, err: e, every: e == syscall.EROFS}
		p.met(t, v, p.run(t, v, s, nil, f, g), f, g)
	}
}

// answers returns what a call may answer; unless all are wanted one that any may and two of its own, at the next site others.
func (p *faultPlan) answers(at spot, all bool) []syscall.Errno {
	own := faultErrors[at.call]
	if all {
		return slices.Concat(commonErrors, own)
	}
	turn := p.turns[at]
	answers := []syscall.Errno{commonErrors[turn%len(commonErrors)]}
	for i := range min(2, len(own)) {
		answers = append(answers, own[(2*turn+i)%len(own)])
	}
	return answers
}

// tries reports whether at is v's to try: as the first that met it, or because that could not make it fail, where calls are a
// matter of time.
func (p *faultPlan) tries(at spot, v *faultVerb) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owner[at] == nil {
		p.owner[at] = v
	}
	return p.owner[at] == v || v.meanwhile != nil && !p.failed[at]
}

func (p *faultPlan) hasFailed(at spot) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed[at]
}

// met notes which faults were met, and that none of them was passed over in silence. Where stamps are young the number of
// calls is a matter of time, and a fault may not be met.
func (p *faultPlan) met(t *testing.T, v *faultVerb, r faultRun, faults ...fault) {
	if r.hits < len(faults) {
		later := slices.ContainsFunc(faults, func(f fault) bool { return f.nth > 1 || p.names[f.at] == whereYoung })
		assert.True(t, later || v.meanwhile != nil, "%s: not met: %v", v.name, faults)
		return
	}
	v.typed(t, r.err, faults)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range faults {
		p.failed[f.at] = true
		quiet := (r.err == nil || isOneOf(r.err, v.fails) && !errors.Is(r.err, f.err)) && !v.sweeps
		if _, ok := f.means(); quiet && !ok {
			p.quietly[f.at] = true
			if unharmedAtTimes[p.names[f.at]] != "" {
				continue
			}
			assert.Contains(t, unharmed, p.names[f.at], "%s: %v, and the call says %v", v.name, faults, r.err)
		}
	}
}

// check: every site failed, and the tables say nothing that is not so.
func (p *faultPlan) check(t *testing.T, much effort) {
	names, quietly := map[string]bool{}, map[string]bool{}
	for at, s := range p.sites {
		name := p.names[at]
		names[name], quietly[name] = true, p.quietly[at]
		switch {
		case p.failed[at]:
			assert.NotContains(t, beyond, name, "%v was reached", s)
		case p.excused[name]:
			t.Logf("%v: not reached on this machine", s)
		default:
			assert.Contains(t, beyond, name, "%v never failed", s)
		}
	}
	for name := range beyond {
		assert.True(t, names[name], "%s is no site", name)
	}
	assert.True(t, names[whereYoung], "%s is no site", whereYoung)
	for name := range unharmed {
		assert.True(t, quietly[name] || names[name] && much < more, "no fault passes unharmed at %s", name)
	}
}

// TestFaultsDiskFills: from some moment on there is no more room, but what is there can be removed.
func TestFaultsDiskFills(t *testing.T) {
	t.Parallel()
	p := newFaultPlan(t)
	taking := strings.Fields("Mkdir Create CreateNameless Write Symlink Link LinkNameless Allocate Truncate Sync SyncAll")
	for _, v := range faultVerbs {
		if v.only != nil || v.sweeps || v.fails != nil || v.meanwhile != nil || !strings.HasPrefix(v.name, "Copy") {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			s := v.site(t)
			for writes := 0; ; writes++ {
				n, full := 0, false
				r := p.run(t, v, s, func(at spot) error {
					if slices.Contains(taking, at.call) {
						if n++; n > writes {
							full = true
							return syscall.ENOSPC
						}
					}
					return nil
				})
				if !full {
					assert.NoError(t, r.err)
					assert.Greater(t, writes, 1)
					return
				}
				assert.ErrorIs(t, r.err, syscall.ENOSPC, "%s, after %d writes", v.name, writes)
			}
		})
	}
}
