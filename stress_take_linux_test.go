// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// take makes one try of Take with the roots, which are names in s.src, calls oracle with the files of what was accepted, and
// asserts that nothing is left, before and after it is closed.
func (s *treeStress) take(t *testing.T, roots []string, oracle func(files map[string]string, r *snapshot.Report) error, also ...error) error {
	t.Helper()
	var taken *snapshot.Snapshot
	accepted, refusal := s.try(t, func(ctx context.Context) (err error) {
		taken, err = snapshot.Take(ctx, rootsAt(s.src, roots...), &snapshot.TakeOptions{Parent: s.out})
		return err
	}, also...)
	if !accepted {
		fstest.Nothing(t, s.out)
		return refusal
	}
	report := taken.Report()
	s.instants[report.Instant]++
	fstest.Nothing(t, s.out, filepath.Base(taken.Dir()))
	files := readTree(t, treeOf(taken))
	require.NoError(t, taken.Close())
	fstest.Nothing(t, s.out)
	switch err := oracle(files, report); {
	case err != nil && report.Instant == snapshot.InstantNone:
		s.wrong++
	default:
		require.NoError(t, err, "accepted as instant %v, weakest %v", report.Instant, report.Weakest.Evidence)
	}
	return nil
}

// siegeOfTake is an adversary of the other stress tests, turned against several roots.
type siegeOfTake struct {
	name   string
	lines  []string // of the directory that the roots are in
	beside []string // of the directory beside it
	attack []string // a name that begins with src or side is one in the directory of the test
	roots  []string
	// oracle returns what is wrong with files, by their paths below src or in a snapshot.
	oracle  func(files map[string]string) error
	refused []error // that are right, besides ErrChanged and ErrBusy
	bursts  bool    // it makes no pauses of its own
	root    bool
	tmpfs   bool // it writes by no mapping, so that it is one instant there, too
	least   int  // percent accepted
}

// pairRoots are the two files of pair in two roots, and between them what takes time to copy.
func pairRoots() []string {
	var lines []string
	for _, line := range pairLines() {
		name, content, _ := strings.Cut(line, "=")
		root := map[string]string{"a": "1/", "z": "3/"}[name]
		if root == "" {
			root = "2/"
		}
		lines = append(lines, root+name+"="+content)
	}
	return lines
}

// inRoots makes an oracle of one of the tests of CopyDir: a and z lie in roots 1 and 3.
func inRoots(order func(files map[string]string) error) func(files map[string]string) error {
	return func(files map[string]string) error {
		return order(map[string]string{"a": files["1/a"], "z": files["3/z"]})
	}
}

const takeSecret = "the secret, "

// takeMine is the oracle of the sieges that exchange a part of a root with something outside.
func takeMine(files map[string]string) error {
	for name, content := range files {
		if content != "mine" && content != "" {
			return fmt.Errorf("%s holds %d bytes %.12q", name, len(content), content)
		}
	}
	return nil
}

func takeSieges() []siegeOfTake {
	three := []string{"1", "2", "3"}
	pair := func(attack string, order func(files map[string]string) error) siegeOfTake {
		return siegeOfTake{
			name: attack, lines: pairRoots(), attack: append(strings.Fields(attack), "--pause-max", "20ms", "src/1/a", "src/3/z"),
			roots: three, oracle: inRoots(order), least: 20, tmpfs: !strings.Contains(attack, "mmap"),
		}
	}
	torn := func(how string, least int) siegeOfTake {
		return siegeOfTake{
			name: "torn " + how, lines: []string{"2/x=mine"}, attack: append(strings.Fields("torn --pause-max 20ms --how "+how), "src/f"),
			roots: []string{"2", "f"}, least: least,
			oracle: func(files map[string]string) error {
				first, _, _ := strings.Cut(how, " ")
				_, err := tornState([]byte(files["f"]), first)
				return err
			},
		}
	}
	secrets := func(name string, refused error, beside []string, attack ...string) siegeOfTake {
		return siegeOfTake{
			name: name, lines: []string{"1/a=mine", "1/sub/f=mine", "1/sub/g=mine", "2/b=mine"}, beside: beside, attack: attack,
			roots: []string{"1", "2"}, oracle: takeMine, refused: []error{refused}, bursts: true, least: 5,
		}
	}
	secret := strings.Repeat(takeSecret, 100)
	return []siegeOfTake{
		torn("write --reopen", 20),
		torn("chunks", 20),
		torn("mmap-hold", 20),
		pair("pair --how write", writtenInOrder),
		pair("pair --how mmap --reopen", writtenInOrder),
		pair("pair --hide", writtenInOrder),
		pair("recycle", recycledInOrder),
		pair("exchange", exchanged),
		{
			name: "two", lines: []string{"1/sub/", "2/b=mine"}, attack: []string{"two", "src/1/sub"}, roots: []string{"1/sub/a", "1/sub/b", "2"},
			oracle: func(files map[string]string) error {
				a, b := files["a"]+files["1/sub/a"], files["b"]+files["1/sub/b"]
				return sameGeneration("", map[string]string{"sub/a": a, "sub/b": b})
			},
			bursts: true, tmpfs: true, least: 5,
		},
		{
			name: "renames", lines: []string{"a/", "b/"}, attack: []string{"renames", "--files", "40", "src"}, roots: []string{"a", "b"},
			oracle: func(files map[string]string) error { return renamedInOrder(files, 40) },
			bursts: true, tmpfs: true, least: 5,
		},
		{
			name: "grow", lines: []string{"2/x=mine"}, attack: []string{"grow", "--size", "512", "--pause-max", "100us", "src/f"}, roots: []string{"2", "f"},
			oracle: func(files map[string]string) error {
				if n := len(files["f"]); n%512 != 0 || strings.Trim(files["f"], "\x00") != "" {
					return fmt.Errorf("%d bytes: half of an append, or bytes that nobody wrote", n)
				}
				return nil
			},
			bursts: true, least: 5,
		},
		secrets("a file and a link", snapshot.ErrEscapes, []string{"f=" + secret}, "swaplink", "src/1/sub/f", "side/f"),
		secrets("a directory and a link", snapshot.ErrEscapes, []string{"f=" + secret, "g=" + secret}, "swapparent", "src/1/sub", "side"),
		secrets("a root and a tree with a FIFO", snapshot.ErrNotRegular, []string{"sub/f|", "sub/g=" + secret, "a=" + secret}, "exchange", "src/1", "side"),
		{
			name: "mounts", lines: []string{"1/a=mine", "1/sub/f=mine", "2/b=mine"}, beside: []string{"f=" + secret}, attack: []string{"flicker", "--pause-max", "10ms", "src/1/sub", "side"},
			roots: []string{"1", "2"}, oracle: takeMine, refused: []error{snapshot.ErrEscapes}, root: true, least: 5,
		},
	}
}

// TestStressTake turns the adversaries of the suite against several roots: what is accepted is one state of all of them.
func TestStressTake(t *testing.T) {
	for _, tt := range takeSieges() {
		kinds := stressKinds()
		if tt.tmpfs {
			kinds = append(kinds, "tmpfs", "overlay")
		}
		for _, kind := range kinds {
			t.Run(stressKindName(kind)+"/"+tt.name, func(t *testing.T) {
				if tt.root {
					fstest.NeedRoot(t)
				}
				dir := fstest.Dir(t, kind)
				s := newTreeStress(t, dir, tt.lines...)
				fstest.Make(t, dir+"/side", tt.beside...)
				p := fstest.Start(t, tt.args(dir)...)
				fstest.Leaks(t)
				if tt.careless() {
					stressCaught(t, func() error { return tt.oracle(carelessTree(s.src)) })
				}
				if tt.bursts {
					stressBursts(t, p)
				}
				for range stressTries(t, 4, 15, 500) {
					err := s.take(t, tt.roots, func(files map[string]string, _ *snapshot.Report) error { return tt.oracle(files) }, tt.refused...)
					if err != nil {
						assert.NotContains(t, err.Error(), takeSecret)
					}
				}
				s.atLeast(t, tt.least)
				t.Logf("take %s, %s: %v", stressKindName(kind), tt.name, s)
			})
		}
	}
}

func (s *siegeOfTake) args(dir string) []string {
	args := slices.Insert(slices.Clone(s.attack), 1, "--side", dir)
	for i, arg := range args {
		if i > 0 && (strings.HasPrefix(arg, "src") || arg == "side" || strings.HasPrefix(arg, "side/")) {
			args[i] = filepath.Join(dir, arg)
		}
	}
	return args
}

// careless reports whether a careless copier has a chance to be caught by the oracle; one that reads an append reads a whole one.
func (s *siegeOfTake) careless() bool { return s.name != "grow" }

// TestStressTakeFalseAlarms: what changes no content makes no refusal, and another manifest never.
func TestStressTakeFalseAlarms(t *testing.T) {
	var lines []string
	for i := range 400 {
		lines = append(lines, fmt.Sprintf("%d/%d/%d=%d", i%4, i%20, i, i))
	}
	roots := []string{"0", "1", "2", "3"}
	for _, kind := range stressKinds() {
		t.Run(stressKindName(kind), func(t *testing.T) {
			s := newTreeStress(t, fstest.Dir(t, kind), lines...)
			quiet, err := snapshot.Take(t.Context(), rootsAt(s.src, roots...), &snapshot.TakeOptions{Parent: s.out})
			require.NoError(t, err)
			want := quiet.Manifest().Digest()
			require.NoError(t, quiet.Close())
			fstest.Start(t, "noise", "--pause-max", "0s", s.src)
			fstest.Leaks(t)
			settled := int64(0)
			for range stressTries(t, 2, 3, 20) {
				assert.NoError(t, s.take(t, roots, func(_ map[string]string, r *snapshot.Report) error {
					settled += r.MetadataOnly
					if r.Manifest.Digest() != want {
						return errors.New("another manifest than that of the quiet roots")
					}
					return nil
				}))
			}
			assert.Positive(t, settled, "entries of which only ctime moved")
			t.Logf("take %s, false alarms: %v, %d entries settled by a second look", stressKindName(kind), s, settled)
		})
	}
}

// TestStressTakeClose takes and closes in one parent from eight goroutines, with sweeps in between, which take nothing that is
// in use.
func TestStressTakeClose(t *testing.T) {
	dir, parent := sourcesIn(t, "app/index=x", "app/d/e/f=1", "app/lib => ../lib", "lib/run 0755=#!", "lib/big=@300KiB")
	fstest.Leaks(t)
	var taken atomic.Int64
	inParallel(8, stressTries(t, 40, 200, 1000), func() {
		s, err := snapshot.Take(t.Context(), rootsAt(dir, "app", "lib"), &snapshot.TakeOptions{Parent: parent})
		if !assert.NoError(t, err) {
			return
		}
		if taken.Add(1)%8 == 0 {
			sweep(t, parent)
		}
		b, err := fs.ReadFile(s.FS(), "app/lib/run")
		assert.NoError(t, err)
		assert.Equal(t, "#!", string(b))
		assert.NoError(t, s.Verify(t.Context()))
		assert.NoError(t, s.Close())
	})
	fstest.Nothing(t, parent)
	t.Logf("take and close: tries %d, nothing left", taken.Load())
}

// inParallel calls f n times, from so many goroutines.
func inParallel(goroutines, n int, f func()) {
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(n))
	for range goroutines {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				f()
			}
		})
	}
	wg.Wait()
}

// TestStressTakeSweeps: two sweeps go all the time while snapshots are taken, used and closed, and while others that were left
// behind are found. An empty directory without a lock may go in a sweep: a Take that was just about to lock it makes another,
// and a Close was about to remove it.
func TestStressTakeSweeps(t *testing.T) {
	dir, parent := sourcesIn(t, "app/index=x", "app/d/e/f=1", "lib/a=2")
	ctx, stop := context.WithCancel(t.Context())
	var sweepers sync.WaitGroup
	var swept [2][]string
	for i := range swept {
		sweepers.Go(func() {
			for ctx.Err() == nil {
				swept[i] = append(swept[i], sweep(t, parent)...)
			}
		})
	}
	var left []string
	tries := stressTries(t, 20, 50, 500)
	for i := range tries {
		s, err := snapshot.Take(t.Context(), rootsAt(dir, "app", "lib"), &snapshot.TakeOptions{Parent: parent})
		if !assert.NoError(t, err) {
			break
		}
		if i%4 == 0 { // as a crash leaves it: nobody holds its lock
			name := stagingName("a")[:20] + strings.Map(func(r rune) rune { return 'a' + r - '0' }, fmt.Sprintf("%017d", i))
			fstest.Make(t, dir, name+"/tree/d/f 0400=x", name+"/lock 0600="+magic, name+"/tree/d/ 0500", name+"/tree/ 0500", name+"/ 0700")
			assert.NoError(t, os.Rename(filepath.Join(dir, name), filepath.Join(parent, name)))
			left = append(left, name)
		}
		opened, err := snapshot.OpenSnapshot(t.Context(), s.Dir(), s.Manifest().Digest())
		if assert.NoError(t, err) {
			assert.NoError(t, opened.Verify(t.Context()))
			assert.NoError(t, opened.Close())
		}
		assert.NoError(t, s.Verify(t.Context()))
		assert.NoError(t, s.Close())
	}
	stop()
	sweepers.Wait()
	removed := slices.Concat(swept[0], swept[1], sweep(t, parent))
	fstest.Nothing(t, parent)
	assert.Subset(t, removed, left)
	t.Logf("take beside sweeps: tries %d, leftovers %d, all swept, and %d empty directories", tries, len(left), len(removed)-len(left))
}

// TestStressTakeKill: a process that is killed while it takes, uses and closes snapshots leaves nothing that a sweep does not
// take, and a sweep takes nothing of those that live.
func TestStressTakeKill(t *testing.T) {
	if args, ok := os.LookupEnv(takeChild); ok {
		takeForEver(t, args)
		return
	}
	dir, parent := sourcesIn(t, "app/index=x", "app/d/e/f=1", "app/lib => ../lib", "lib/run 0755=#!", "lib/big=@300KiB")
	ours, err := snapshot.Take(t.Context(), rootsAt(dir, "app", "lib"), &snapshot.TakeOptions{Parent: parent})
	require.NoError(t, err)
	var killed, swept int
	tries := stressTries(t, 6, 30, 100)
	for range tries {
		cmd := child(t, "TestStressTakeKill", dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "ready\n", line)
		time.Sleep(rand.N(20 * time.Millisecond)) // so that it is met anywhere
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
		if cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
			killed++
		}
		swept += len(sweep(t, parent))
		require.True(t, fstest.Nothing(t, parent, filepath.Base(ours.Dir())))
	}
	assert.NoError(t, ours.Verify(t.Context()))
	assert.NoError(t, ours.Close())
	fstest.Nothing(t, parent)
	assert.Equal(t, tries, killed)
	if tries >= 30 {
		assert.Positive(t, swept, "leftovers")
	}
	t.Logf("take killed: tries %d, killed %d, leftovers %d, all swept", tries, killed, swept)
}

func takeForEver(t *testing.T, dir string) {
	fmt.Println("ready")
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				s, err := snapshot.Take(t.Context(), rootsAt(dir, "app", "lib"), &snapshot.TakeOptions{Parent: dir + "/parent"})
				if !assert.NoError(t, err) || !assert.NoError(t, s.Verify(t.Context())) || !assert.NoError(t, s.Close()) {
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestStressTakeExec takes programs and executes the copies at once, in a process whose other threads fork all the time: no
// exec is told that the file is open for writing. That it would be without the fence is what a careless copier shows.
func TestStressTakeExec(t *testing.T) {
	const program = "/bin/true"
	b, err := os.ReadFile(program)
	if err != nil {
		t.Skipf("no program to copy: %v", err)
	}
	dir, parent := sourcesIn(t)
	const each = 10 // copies in one snapshot
	var roots []snapshot.Root
	for i := range each {
		roots = append(roots, snapshot.Root{Name: strconv.Itoa(i), Path: program})
	}
	run := func(name string) (busy bool) {
		err := exec.CommandContext(t.Context(), name).Run()
		if errors.Is(err, syscall.ETXTBSY) {
			return true
		}
		assert.NoError(t, err)
		return false
	}
	var busy, execs atomic.Int64
	careless := func() {
		name := filepath.Join(dir, "copy-"+strconv.FormatInt(execs.Add(1), 10))
		assert.NoError(t, os.WriteFile(name, b, 0o700))
		if run(name) {
			busy.Add(1)
		}
		assert.NoError(t, os.Remove(name))
	}
	for start := time.Now(); busy.Load() == 0; {
		require.Less(t, time.Since(start), stressPatience, "a careless copier meets no ETXTBSY in %d execs", execs.Load())
		inParallel(8, 64, careless)
	}
	t.Logf("a careless copier meets %d ETXTBSY in %d execs", busy.Load(), execs.Load())

	fstest.Leaks(t)
	busy.Store(0)
	execs.Store(0)
	inParallel(8, stressTries(t, 80, 400, 1200)/each, func() {
		s, err := snapshot.Take(t.Context(), roots, &snapshot.TakeOptions{Parent: parent})
		if !assert.NoError(t, err) {
			return
		}
		for _, r := range roots {
			at, ok := s.Path(r.Name)
			assert.True(t, ok)
			execs.Add(1)
			if run(at) {
				busy.Add(1)
			}
		}
		assert.NoError(t, s.Close())
	})
	assert.Zero(t, busy.Load(), "ETXTBSY in %d execs", execs.Load())
	fstest.Nothing(t, parent)
	t.Logf("take and exec: tries %d, ETXTBSY %d", execs.Load(), busy.Load())
}
