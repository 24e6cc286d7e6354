// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// TestTrace stops the command before its K-th file-system call, makes one change, and lets it go on. What it answers is the
// source as it was before the change or as it is after it, or a typed error with nothing left.
//
// A few K a change by default, more with HOLDSTILL_STRESS=ci, and with full every K, once for good and once more with a way
// back. HOLDSTILL_COMMAND names the command's program, which is otherwise built.
func TestTrace(t *testing.T) {
	t.Parallel()
	command := traceCommand(t)
	kinds := stressKinds()
	if stressTries(t, 1, 2, 2) == 1 {
		kinds = kinds[:1]
	}
	for _, kind := range kinds {
		for _, verb := range traceVerbs(command) {
			t.Run(stressKindName(kind)+"/"+verb.name, func(t *testing.T) {
				t.Parallel()
				r := &traceRun{base: fstest.Dir(t, kind), verb: verb}
				quiet := r.take(t, traceChange{}, 0, 0)
				t.Cleanup(func() {
					t.Logf("trace %s %s: calls %d, seed %d, %s", stressKindName(kind), verb.name, quiet.calls, traceSeed, r.tally)
				})
				require.Equal(t, "before", quiet.answer)
				for _, c := range traceChanges(verb) {
					t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) { r.every(t, c, quiet.calls) })
				}
			})
		}
	}
}

// TestTraceCareless is the positive control: under the same adversary cp mixes two states, and is led outside.
func TestTraceCareless(t *testing.T) {
	t.Parallel()
	cp, err := exec.LookPath("cp")
	if err != nil {
		t.Skipf("no careless copier: %v", err)
	}
	r := &traceRun{base: fstest.Dir(t, ""), verb: traceVerb{
		name: "cp", src: "in/src", modes: true, careless: true,
		args: func(src, out string) []string { return []string{cp, "-a", src, out + "/dst"} },
	}}
	quiet := r.take(t, traceChange{}, 0, 0)
	require.Equal(t, "before", quiet.answer)
	want := map[string]string{"two files": "mixed", "parent by link": "secret"}
	for _, c := range traceChanges(r.verb) {
		if want[c.name] == "" {
			continue
		}
		caught := false
		for i, k := range rand.New(rand.NewPCG(traceSeed, 0)).Perm(quiet.calls) {
			if o := r.take(t, c, k+1, 0); o.answer == want[c.name] {
				t.Logf("cp is caught at try %d, %s: %s, changed before %v", i+1, o.answer, c.name, o.at)
				caught = true
				break
			}
		}
		assert.True(t, caught, "%s: cp is never caught: %s", c.name, r.tally)
	}
}

// traceSeed places the sample; another number is another sample.
const traceSeed = 1

// every tries a change before each of the calls, or before some of them.
func (r *traceRun) every(t *testing.T, c traceChange, calls int) {
	if c.root {
		fstest.NeedRoot(t)
	}
	if c.stores && !tracePromisesStores(t, r.base) {
		t.Skipf("stores through mappings are not promised on this file system")
	}
	all := calls + 8 // a change makes work of its own
	n := min(all, stressTries(t, 1, 8, all))
	random := rand.New(rand.NewPCG(traceSeed, uint64(len(r.verb.name)*100+len(c.name))))
	for i := range n {
		k := i + 1
		if n < all {
			k = 1 + int((float64(i)+random.Float64())*float64(all)/float64(n))
		}
		backs := []int{0}
		if c.undo != nil {
			backs = append(backs, 1+random.IntN(6))
		}
		if n < all { // not both
			backs = backs[random.IntN(len(backs)):][:1]
		}
		for _, back := range backs {
			o := r.take(t, c, k, back)
			if t.Failed() {
				t.Logf("%s, back after %d calls; seed %d", o.at, back, traceSeed)
				return
			}
		}
	}
}

// traceCommand builds the command.
func traceCommand(t *testing.T) string {
	t.Helper()
	if name := os.Getenv("HOLDSTILL_COMMAND"); name != "" {
		return name
	}
	if os.Getenv("HOLDSTILL_ADVERSARY") != "" {
		t.Skipf("HOLDSTILL_ADVERSARY is set, as where nothing can be built, and HOLDSTILL_COMMAND is not")
	}
	name := filepath.Join(fstest.TempDir(t), "holdstill")
	build := exec.CommandContext(t.Context(), "go", "build", "-race=false", "-o", name, "./cmd/holdstill")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return name
}

// tracePromisesStores: elsewhere a store through a mapping leaves no stamp.
func tracePromisesStores(t *testing.T, dir string) bool {
	t.Helper()
	var vfs unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &vfs))
	return slices.Contains([]int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC}, int64(vfs.Type))
}

// traceVerb is a way to run the copier.
type traceVerb struct {
	name     string
	src      string
	modes    bool // it keeps the source's
	careless bool
	manifest bool
	file     bool // it takes one file
	scan     bool // it makes no copy
	args     func(src, out string) []string
}

func traceVerbs(command string) []traceVerb {
	return []traceVerb{
		{name: "take tree", src: "in/src", manifest: true, args: func(src, out string) []string {
			return []string{command, "take", "--json", "--workers", "1", "--manifest", out + "/m", src, out + "/dst"}
		}},
		{name: "take file", src: "in/src/d/big", file: true, args: func(src, out string) []string {
			return []string{command, "take", "--json", src, out + "/dst"}
		}},
		{name: "scan", src: "in/src", modes: true, manifest: true, scan: true, args: func(src, out string) []string {
			return []string{command, "scan", "--json", "--manifest", out + "/m", src}
		}},
	}
}

// traceChange is one change of the world of a copier.
type traceChange struct {
	name   string
	prior  func(*traceScene) error // before the copier begins
	do     func(*traceScene) error // errTraceLater: not at this call
	undo   func(*traceScene) error // nil if there is no way back in one step
	root   bool                    // only root can
	stores bool                    // through a mapping
	codes  []string                // of errors other than that the source changed
	// The copy is changed, which only its owner can: what it holds then is not promised.
	tampers bool
}

// errTraceLater: a lease is in the way, or what is to be changed is not there yet.
var errTraceLater = errors.New("not now")

// traceChanges returns what can be changed for a verb. Every replacement is made before, so that the change is one system call.
func traceChanges(verb traceVerb) []traceChange {
	changes := traceFileChanges()
	if !verb.file {
		changes = append(changes, traceTreeChanges()...)
	}
	if !verb.scan {
		changes = append(changes, traceCopyChanges()...)
	}
	return changes
}

func traceSwap(name, a, b string, codes ...string) traceChange {
	swap := func(s *traceScene) error { return s.swap(a, b) }
	return traceChange{name: name, do: swap, undo: swap, codes: codes}
}

func traceFileChanges() []traceChange {
	const big = "in/src/d/big"
	return []traceChange{
		// In place; the time of the last change is put back each time.
		{
			name: "rewrite",
			do:   func(s *traceScene) error { return s.write(big, 2) },
			undo: func(s *traceScene) error { return s.write(big, 1) },
		},
		{name: "append", do: func(s *traceScene) error {
			return s.open(big, func(f *os.File) error { _, err := f.WriteAt([]byte("more"), traceBig); return err })
		}},
		{name: "truncate", do: func(s *traceScene) error {
			return s.open(big, func(f *os.File) error { return f.Truncate(traceBig / 2) })
		}},
		{name: "store", stores: true, do: func(s *traceScene) error {
			return s.open(big, func(f *os.File) error { return errors.Join(s.mapDirty(f), s.unmap()) })
		}},
		{
			name: "store to a dirty page", stores: true,
			prior: func(s *traceScene) error { return s.open(big, s.mapDirty) },
			do:    func(s *traceScene) error { s.mapped[0], s.mapped[traceBig-1] = 'X', 'Y'; return nil },
		},
		{name: "chmod", do: func(s *traceScene) error { return os.Chmod(s.at(big), 0o755) }},
		{name: "hard link", do: func(s *traceScene) error { return os.Link(s.at(big), s.at("side/another")) }},
		// Another file, or none, under the name.
		{name: "replace", do: func(s *traceScene) error { return os.Rename(s.at("side/file"), s.at(big)) }},
		{name: "remove", do: func(s *traceScene) error { return os.Remove(s.at(big)) }, codes: []string{"escapes", "not-found"}},
		traceSwap("another file", big, "side/file"),
		traceSwap("file by link", big, "side/link", "escapes", "not-regular"),
		traceSwap("file by fifo", big, "side/fifo", "not-regular"),
		traceSwap("file by directory", big, "side/dir", "not-regular", "io"), // "not a directory", when it is back
		traceSwap("names of two files", big, "in/src/z"),
		// Another directory above it.
		traceSwap("parent", "in/src/d", "side/d"),
		traceSwap("parent by link", "in/src/d", "side/away", "escapes", "not-regular"),
		traceSwap("parent by file", "in/src/d", "side/file", "escapes", "not-found", "io"),
		traceSwap("root", "in/src", "side/tree"),
		traceSwap("above the root", "in", "side/in"),
	}
}

func traceTreeChanges() []traceChange {
	return []traceChange{
		// The copier stands still and may hold a lease for a moment, but only on one of them.
		{name: "two files", do: func(s *traceScene) error {
			err := s.write("in/src/a", 2)
			if err != nil {
				return err
			}
			if err = s.write("in/src/z", 2); errors.Is(err, errTraceLater) {
				err = s.swap("in/src/z", "side/z")
			}
			return err
		}},
		{name: "move", do: func(s *traceScene) error { return os.Rename(s.at("in/src/a"), s.at("in/src/d/e/moved")) }},
		{name: "add", do: func(s *traceScene) error { return os.Link(s.at("side/file"), s.at("in/src/empty/new")) }},
		traceSwap("another link", "in/src/link", "side/inside"),
		traceSwap("link by file", "in/src/link", "side/file"),
		traceSwap("empty directory by full one", "in/src/empty", "side/d"),
		traceSwap("root by link", "in/src", "side/totree"),
		{
			name:  "directory moves down",
			do:    func(s *traceScene) error { return os.Rename(s.at("in/src/d"), s.at("in/src/empty/d")) },
			codes: []string{"escapes", "not-found"}, // its link leads nowhere then
		},
		{name: "chmod of a directory", do: func(s *traceScene) error { return os.Chmod(s.at("in/src/d"), 0o700) }},
		{
			name: "mount", root: true, codes: []string{"escapes"},
			do:   func(s *traceScene) error { return unix.Mount("none", s.at("in/src/d/e"), "tmpfs", 0, "") },
			undo: func(s *traceScene) error { return unix.Unmount(s.at("in/src/d/e"), unix.MNT_DETACH) },
		},
	}
}

func traceCopyChanges() []traceChange {
	plant := func(name string, do func(s *traceScene, dst string) error) traceChange {
		return traceChange{name: name, codes: []string{"exists"}, do: func(s *traceScene) error {
			err := do(s, s.at("out/dst"))
			if errors.Is(err, fs.ErrExist) { // the copy was there first
				return errTraceLater
			}
			s.planted["dst"] = true
			return err
		}}
	}
	return []traceChange{
		plant("plant a file", func(s *traceScene, dst string) error { return os.Link(s.at("side/file"), dst) }),
		plant("plant a directory", func(_ *traceScene, dst string) error { return os.Mkdir(dst, 0o755) }),
		plant("plant a link", func(s *traceScene, dst string) error { return os.Symlink(s.at("outside/none"), dst) }),
		{name: "exchange the staging directory", codes: []string{"untrusted"}, do: func(s *traceScene) error {
			name, err := s.staging("")
			if err == nil {
				err = s.swap(name, "side/planted")
			}
			if err == nil {
				s.planted[filepath.Base(name)] = true
				s.lost = append(s.lost, "side/planted")
			}
			return err
		}},
		{name: "exchange a directory of the copy", tampers: true, codes: []string{"io"}, do: func(s *traceScene) error {
			name, err := s.staging("tree/d")
			if err == nil {
				err = s.swap(name, "side/away")
			}
			if err == nil {
				s.lost = append(s.lost, "side/away")
			}
			return err
		}},
	}
}

const (
	traceBig    = 160 << 10 // more than one read
	traceSecret = "secret"
)

// traceScene is the world of one run: in/src is copied to out; side and outside are the adversary's.
type traceScene struct {
	dir     string
	planted map[string]bool // names in out that are not the copier's
	lost    []string        // where directories of the copier's went
	mapped  []byte
}

func newTraceScene(t *testing.T, base string, prior func(*traceScene) error) *traceScene {
	t.Helper()
	dir, err := os.MkdirTemp(base, "scene-*")
	require.NoError(t, err)
	s := &traceScene{dir: dir, planted: map[string]bool{}}
	fstest.Make(t, dir,
		"in/src/a=@1KiB", "in/src/d/big=@160KiB", "in/src/d/e/c=c", "in/src/empty/", "in/src/link => d/big",
		"in/src/x 0755=#!", "in/src/z=@1KiB",
		"side/file=@160KiB", "side/z=@1KiB", "side/link => ../../../outside/big", "side/fifo|", "side/dir/f=f", "side/inside => x",
		"side/d/big=another", "side/d/e/c=another", "side/d/n=new", "side/away => "+dir+"/outside", "side/planted/f=theirs",
		"side/tree/a=another", "side/tree/d/big=another", "side/tree/d/e/c=another", "side/totree => tree2", "in/tree2/d/big=tree2",
		"side/in/src/d/big=third", "side/in/src/f=third",
		"outside/big="+traceSecret, "outside/e/c="+traceSecret, "outside/n="+traceSecret, "out/")
	require.NoError(t, errors.Join(s.write("side/file", 2), s.write("side/z", 2)))
	for _, name := range []string{"in/src/d/big", "side/file", "in/src/a", "in/src/z", "side/z"} {
		require.NoError(t, os.Chtimes(s.at(name), traceTime, traceTime))
	}
	if prior != nil {
		require.NoError(t, prior(s))
	}
	fstest.Settle(t, dir)
	return s
}

// traceTime is the mtime of every file that is replaced or rewritten.
var traceTime = time.Unix(1e9, 0)

func (s *traceScene) at(name string) string { return filepath.Join(s.dir, name) }

func (s *traceScene) swap(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, s.at(a), unix.AT_FDCWD, s.at(b), unix.RENAME_EXCHANGE)
}

// open opens a file to write, and does not wait for a lease: who holds it stands still.
func (s *traceScene) open(name string, change func(*os.File) error) error {
	fd, err := unix.Open(s.at(name), unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.EAGAIN {
		return errTraceLater
	} else if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return errors.Join(change(f), os.Chtimes(s.at(name), traceTime, traceTime))
}

// write puts a generation of the content in the place of another.
func (s *traceScene) write(name string, generation uint64) error {
	return s.open(name, func(f *os.File) error {
		fi, err := f.Stat()
		if err == nil {
			_, err = f.WriteAt(fstest.TornContent(generation, int(fi.Size())), 0)
		}
		return err
	})
}

func (s *traceScene) mapDirty(f *os.File) (err error) {
	if s.mapped, err = unix.Mmap(int(f.Fd()), 0, traceBig, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		s.mapped[0], s.mapped[traceBig-1] = 'x', 'y'
	}
	return err
}

func (s *traceScene) unmap() error {
	if s.mapped == nil {
		return nil
	}
	mapped := s.mapped
	s.mapped = nil
	return unix.Munmap(mapped)
}

// staging returns the name of what lies in the staging directory, if there is one.
func (s *traceScene) staging(name string) (string, error) {
	dirs, err := filepath.Glob(s.at("out/.holdstill-*"))
	if err != nil || len(dirs) != 1 {
		return "", errTraceLater
	}
	name = filepath.Join("out", filepath.Base(dirs[0]), name)
	if _, err := os.Lstat(s.at(name)); err != nil {
		return "", errTraceLater
	}
	return name, nil
}

// rest returns all that the copier may not touch.
func (s *traceScene) rest(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(s.dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(at, s.dir), "/")
		if below, ok := strings.CutPrefix(name, "out/"); slices.Contains(s.lost, name) || ok && !s.planted[strings.Split(below, "/")[0]] {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		switch fi.Mode().Type() {
		case 0:
			all[name] = fmt.Sprint(traceFile(at, true)[""], fi.ModTime())
		case fs.ModeSymlink:
			all[name], err = os.Readlink(at)
		default:
			all[name] = fi.Mode().String()
		}
		return err
	}))
	return all
}

func (s *traceScene) remove(t *testing.T) {
	t.Helper()
	assert.NoError(t, s.unmap())
	_ = unix.Unmount(s.at("in/src/d/e"), unix.MNT_DETACH)
	discard(t, s.dir)
}

// traceRun counts what one way to copy answers.
type traceRun struct {
	base  string
	verb  traceVerb
	tally traceTally
}

type traceTally map[string]int

func (c traceTally) String() string {
	var b strings.Builder
	tries := 0
	for _, answer := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, " %s %d", answer, c[answer])
		tries += c[answer]
	}
	return fmt.Sprintf("tries %d:%s", tries, b.String())
}

type traceOutcome struct {
	answer string // "before", "after", the code of an error; of a careless copier also "mixed" and "secret"
	calls  int
	at     string // when the change was made
}

// take makes one run: the change before call k or the first one after it at which it can be made, and the way back so many
// calls later, if not 0. With a k of 0 nothing is changed.
func (r *traceRun) take(t *testing.T, c traceChange, k, back int) traceOutcome {
	t.Helper()
	s := newTraceScene(t, r.base, c.prior)
	defer s.remove(t)
	src, out := s.at(r.verb.src), s.at("out")
	before := tracePicture(src, r.verb.modes)
	require.NotNil(t, before)
	rest := s.rest(t)
	var after map[string]string
	o := traceOutcome{at: "never"}
	backAt := 0
	act := func(change func(*traceScene) error, call fstest.Call) bool {
		err := change(s)
		if err == errTraceLater {
			return false
		}
		require.NoError(t, err, "%s before %v", c.name, call)
		rest = s.rest(t)
		return true
	}
	traced := fstest.Trace(t, stressPatience, func(call fstest.Call) (more bool) {
		switch {
		case k == 0 || call.N < k:
			return true
		case o.at == "never":
			if !act(c.do, call) {
				return true
			}
			o.at, backAt = call.String(), call.N+back
			after = tracePicture(src, r.verb.modes)
			return back > 0
		default:
			return call.N < backAt || !act(c.undo, call)
		}
	}, r.verb.args(src, out)...)
	o.calls = traced.Last.N
	message := fmt.Sprintf("%s: changed before %s, back after %d", c.name, o.at, back)
	o.answer = r.judge(t, s, traced, c, before, after, message)
	assert.Equal(t, rest, s.rest(t), "what is not the copier's: %s", message)
	if r.tally == nil {
		r.tally = traceTally{}
	}
	r.tally[o.answer]++
	return o
}

// judge says what the copier answered, and asserts that it may.
func (r *traceRun) judge(t *testing.T, s *traceScene, traced *fstest.Traced, c traceChange, before, after map[string]string,
	message string,
) string {
	t.Helper()
	entries, err := os.ReadDir(s.at("out"))
	require.NoError(t, err)
	made := map[string]bool{}
	for _, e := range entries {
		if !s.planted[e.Name()] {
			made[e.Name()] = true
		}
	}
	for _, name := range s.lost {
		assert.True(t, c.tampers || fstest.Nothing(t, s.at(name)), "%s: %s", name, message)
	}
	if r.verb.careless {
		if traced.Status.ExitStatus() != 0 {
			return "refused"
		}
		return traceAnswer(tracePicture(s.at("out/dst"), true), before, after)
	}
	if traced.Status.ExitStatus() != 0 {
		assert.Empty(t, made, "left beside the destination: %s", message)
		return traceRefusal(t, traced, c, message)
	}
	// The copy and its manifest have to tell the same.
	answers := map[string]bool{}
	if made["dst"] && (!c.tampers || s.lost == nil) {
		answers[traceAnswer(tracePicture(s.at("out/dst"), true), before, after)] = true
	}
	if r.verb.manifest {
		answers[traceAnswer(manifestPicture(t, s.at("out/m"), traced.Stdout), before, after)] = true
	}
	assert.Equal(t, map[string]bool{"dst": !r.verb.scan, "m": r.verb.manifest}, map[string]bool{"dst": made["dst"], "m": made["m"]}, message)
	delete(made, "dst")
	delete(made, "m")
	assert.Empty(t, made, "left beside the destination: %s", message)
	answer := strings.Join(slices.Sorted(maps.Keys(answers)), " and ")
	if answer != "before" && answer != "after" {
		assert.Fail(t, answer, "%s\nbefore %v\nafter %v\ncopy %v", message, before, after, tracePicture(s.at("out/dst"), true))
	}
	return answer
}

// traceAnswer says which state a copy is, "mixed" if none, or "secret" if what lies outside of the source is in it.
func traceAnswer(picture, before, after map[string]string) string {
	secret := snapshot.Digest(sha256.Sum256([]byte(traceSecret))).String()
	switch {
	case maps.Equal(before, picture):
		return "before"
	case after != nil && maps.Equal(after, picture):
		return "after"
	case slices.ContainsFunc(slices.Collect(maps.Values(picture)), func(s string) bool { return strings.HasSuffix(s, secret) }):
		return "secret"
	}
	return "mixed"
}

// traceRefusal returns the code of an error: that the source changed, or what is wrong with what it became.
func traceRefusal(t *testing.T, traced *fstest.Traced, c traceChange, message string) string {
	t.Helper()
	var answer struct {
		Error struct {
			Code      string
			Retryable bool
		}
	}
	exit := traced.Status.ExitStatus()
	require.NoError(t, json.Unmarshal([]byte(traced.Stderr), &answer), "exit %d: %s: %s", exit, traced.Stderr, message)
	want := 1
	switch answer.Error.Code {
	case "changed-before-snapshot", "changed-during-snapshot", "busy":
		want = 75
	default:
		assert.Contains(t, c.codes, answer.Error.Code, "%s: %s", traced.Stderr, message)
	}
	assert.Equal(t, want, exit, "%s: %s", traced.Stderr, message)
	assert.Equal(t, want == 75, answer.Error.Retryable, "%s: %s", traced.Stderr, message)
	assert.Empty(t, traced.Stdout, message)
	return answer.Error.Code
}

// tracePicture returns what a copy of name holds by path, or nil if it may not be copied. Without modes they are those of a
// sealed copy.
func tracePicture(name string, modes bool) map[string]string {
	root, err := filepath.EvalSymlinks(name)
	if err != nil {
		return nil
	}
	if fi, err := os.Lstat(name); err != nil || !fi.IsDir() {
		if fi, err = os.Stat(name); err != nil || !fi.IsDir() { // only a directory is followed
			return traceFile(name, modes)
		}
	}
	picture := map[string]string{}
	device := uint64(0)
	err = filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if dev := uint64(fi.Sys().(*syscall.Stat_t).Dev); device == 0 {
			device = dev
		} else if dev != device {
			return fs.ErrInvalid
		}
		key := strings.TrimPrefix(strings.TrimPrefix(at, root), "/")
		switch fi.Mode().Type() {
		case fs.ModeDir:
			picture[key] = fmt.Sprintf("dir %04o", traceMode(fi, modes))
		case fs.ModeSymlink:
			text, err := os.Readlink(at)
			picture[key] = "link " + text
			if end, e := filepath.EvalSymlinks(at); e != nil || !strings.HasPrefix(end, root+"/") {
				err = fs.ErrInvalid
			}
			return err
		default:
			file := traceFile(at, modes)
			if file == nil {
				return fs.ErrInvalid
			}
			picture[key] = file[""]
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return picture
}

func traceMode(fi fs.FileInfo, modes bool) fs.FileMode {
	switch {
	case modes:
		return fi.Mode().Perm()
	case fi.IsDir() || fi.Mode()&0o111 != 0:
		return 0o500
	default:
		return 0o400
	}
}

func traceFile(name string, modes bool) map[string]string {
	fi, err := os.Lstat(name)
	if err != nil || !fi.Mode().IsRegular() {
		return nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	return map[string]string{"": traceFileText(traceMode(fi, modes), int64(len(b)), sha256.Sum256(b))}
}

func traceFileText(mode fs.FileMode, size int64, digest snapshot.Digest) string {
	return fmt.Sprintf("file %04o %d %s", mode, size, digest)
}

// manifestPicture reads a manifest, whose digest the command's answer must hold.
func manifestPicture(t *testing.T, name, answer string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	m, err := snapshot.ReadManifest(f)
	require.NoError(t, err)
	assert.Contains(t, answer, m.Digest().String())
	picture := map[string]string{}
	for e, err := range m.All() {
		require.NoError(t, err)
		key := e.Path
		if key == "." {
			key = ""
		}
		switch e.Mode.Type() {
		case fs.ModeDir:
			picture[key] = fmt.Sprintf("dir %04o", e.Mode.Perm())
		case fs.ModeSymlink:
			picture[key] = "link " + e.Link
		default:
			picture[key] = traceFileText(e.Mode.Perm(), e.Size, e.Digest)
		}
	}
	return picture
}
