// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// treeStress copies src again and again to a name in a directory that holds nothing else.
type treeStress struct {
	tally
	src, out string
	instants map[snapshot.Instant]int
	wrong    int // of those with no instant, which claim nothing of the whole tree
}

// newTreeStress makes src from lines; what else dir holds is the adversary's.
func newTreeStress(t *testing.T, dir string, lines ...string) *treeStress {
	t.Helper()
	s := &treeStress{src: filepath.Join(dir, "src"), out: filepath.Join(dir, "out"), instants: map[snapshot.Instant]int{}}
	fstest.Make(t, s.src, lines...)
	require.NoError(t, os.Mkdir(s.out, 0o755))
	return s
}

// copy makes one try, calls oracle with what was accepted, and asserts that nothing else is left.
func (s *treeStress) copy(t *testing.T, oracle func(dst string, r *snapshot.Report) error) error {
	t.Helper()
	var report *snapshot.Report
	dst := filepath.Join(s.out, "dst")
	accepted, refusal := s.try(t, func(ctx context.Context) (err error) {
		report, err = snapshot.CopyDir(ctx, dst, s.src, nil)
		return err
	})
	if !accepted {
		fstest.Nothing(t, s.out)
		return refusal
	}
	s.instants[report.Instant]++
	fstest.Nothing(t, s.out, "dst")
	switch err := oracle(dst, report); {
	case err != nil && report.Instant == snapshot.InstantNone:
		s.wrong++
	default:
		require.NoError(t, err, "accepted as instant %v, weakest %v", report.Instant, report.Weakest.Evidence)
	}
	discard(t, dst)
	return nil
}

func (s *treeStress) String() string {
	return fmt.Sprintf("%v %v, wrong 0 (%d of none)", &s.tally, s.instants, s.wrong)
}

// Of two files that are always changed in the same order the second is never ahead, nor more than one change behind.
func TestStressPair(t *testing.T) {
	for _, tt := range []struct {
		attack string
		kinds  []string
		order  func(files map[string]string) error
	}{
		{"pair --how write", append(stressKinds(), "tmpfs", "overlay"), writtenInOrder},
		{"pair --how mmap", stressKinds(), writtenInOrder},
		{"pair --how mmap --reopen", stressKinds(), writtenInOrder},
		{"pair --hide", append(stressKinds(), "tmpfs", "overlay"), writtenInOrder},
		{"recycle", append(stressKinds(), "tmpfs", "overlay"), recycledInOrder},
		{"exchange", append(stressKinds(), "tmpfs", "overlay"), exchanged},
	} {
		for _, kind := range tt.kinds {
			t.Run(stressKindName(kind)+"/"+tt.attack, func(t *testing.T) {
				s := newTreeStress(t, fstest.Dir(t, kind), pairLines()...)
				args := append(strings.Fields(tt.attack), "--pause-max", "20ms")
				fstest.Start(t, append(args, filepath.Join(s.src, "a"), filepath.Join(s.src, "z"))...)
				fstest.Leaks(t)
				stressCaught(t, func() error { return tt.order(carelessTree(s.src)) })
				want := stressTries(t, 10, 30, 2000)
				for s.accepted < want {
					require.Less(t, s.tries, 20*want, "%v", s)
					_ = s.copy(t, func(dst string, _ *snapshot.Report) error { return tt.order(readTree(t, dst)) })
				}
				s.atLeast(t, 20)
				t.Logf("%s %s: %v", tt.attack, stressKindName(kind), s)
			})
		}
	}
}

// pairLines are the two files, and between them what takes time to copy.
func pairLines() []string {
	lines := []string{"a=one", "z=two"}
	for i := range 64 {
		lines = append(lines, fmt.Sprintf("m/%d=%[1]d", i))
	}
	return lines
}

// writtenInOrder is the oracle of the adversary pair.
func writtenInOrder(files map[string]string) error {
	return fstest.PairOrder([]byte(files["a"]), []byte(files["z"]))
}

// recycledInOrder is the oracle of the adversary recycle: only the file that it is just making may be absent or empty.
func recycledInOrder(files map[string]string) error {
	a, z := files["a"], files["z"]
	switch {
	case a == "" && z == "":
		return errors.New("a and z are gone at once")
	case a == "" || z == "":
		return nil
	}
	return writtenInOrder(files)
}

// exchanged is the oracle of the adversary exchange: a and z never are one file.
func exchanged(files map[string]string) error {
	if a, z := files["a"], files["z"]; a+z != "onetwo" && a+z != "twoone" {
		return fmt.Errorf("a %q, z %q", a, z)
	}
	return nil
}

// Every copy is one state of a tree whose names are changed all the time.
func TestStressNames(t *testing.T) {
	const files = 40
	for _, tt := range []struct {
		op     string
		dir    string // below the source
		oracle func(src string, files map[string]string) error
	}{
		{"two", "sub", sameGeneration},
		{"renames", "", func(_ string, got map[string]string) error { return renamedInOrder(got, files) }},
		{"churn", "", func(src string, got map[string]string) error { return churned(src, got, files) }},
	} {
		for _, kind := range append(stressKinds(), "tmpfs", "overlay") {
			t.Run(stressKindName(kind)+"/"+tt.op, func(t *testing.T) {
				s := newTreeStress(t, fstest.Dir(t, kind), "sub/")
				p := fstest.Start(t, tt.op, "--files", strconv.Itoa(files), "--side", filepath.Dir(s.src), filepath.Join(s.src, tt.dir))
				fstest.Leaks(t)
				stressCaught(t, func() error { return tt.oracle(s.src, carelessTree(s.src)) })
				stressBursts(t, p)
				for range stressTries(t, 10, 40, 2000) {
					_ = s.copy(t, func(dst string, _ *snapshot.Report) error { return tt.oracle(s.src, readTree(t, dst)) })
				}
				s.atLeast(t, 5)
				t.Logf("%s %s: %v", tt.op, stressKindName(kind), s)
			})
		}
	}
}

// sameGeneration is the oracle of the adversary two.
func sameGeneration(_ string, files map[string]string) error {
	a, b := files["sub/a"], files["sub/b"]
	if _, torn := fstest.TornGeneration([]byte(a)); torn || a != b {
		return fmt.Errorf("a and b are not of one generation (%d and %d bytes)", len(a), len(b))
	}
	return nil
}

// renamedInOrder is the oracle of the adversary renames, which moves 0, 1, 2… to the other directory and then back: one of the
// directories holds the first few and the other one the rest.
func renamedInOrder(files map[string]string, want int) error {
	in := map[string][]int{}
	for name, content := range files {
		dir, number := filepath.Split(name)
		i, err := strconv.Atoi(number)
		if err != nil || content != number {
			return fmt.Errorf("%s holds %q", name, content)
		}
		in[dir] = append(in[dir], i)
	}
	a, b := in["a/"], in["b/"]
	slices.Sort(a)
	slices.Sort(b)
	switch {
	case len(files) != want:
		return fmt.Errorf("%d files, want %d", len(files), want)
	case !slices.IsSorted(slices.Concat(a, b)) && !slices.IsSorted(slices.Concat(b, a)):
		return fmt.Errorf("in a %v, in b %v: never so", a, b)
	}
	return nil
}

// churned is the oracle of the adversary churn, which makes the next name before it removes the last; only a name that it is
// just making may be empty.
func churned(src string, files map[string]string, most int) error {
	var numbers []int
	for name := range files {
		i, err := strconv.Atoi(strings.TrimPrefix(name, "churn-"))
		if err != nil {
			return err
		}
		numbers = append(numbers, i)
	}
	slices.Sort(numbers)
	for at, i := range numbers {
		name := "churn-" + strconv.Itoa(i)
		switch content := files[name]; {
		case content == "" && at == len(numbers)-1:
		case content != filepath.Join(src, name):
			return fmt.Errorf("%s holds %q", name, content)
		case i != numbers[0]+at:
			return fmt.Errorf("%s is missing between others", "churn-"+strconv.Itoa(numbers[0]+at))
		}
	}
	if len(numbers) > most+1 || len(numbers) < most && len(numbers) > 0 && numbers[0] > 0 {
		return fmt.Errorf("%d names, want %d or one more", len(numbers), most)
	}
	return nil
}

// A part of the source is exchanged with something that leads to secrets: not one byte, name or size of them comes out.
func TestStressSecrets(t *testing.T) {
	const secret, secretName, secretSize = "the secret, ", "name-of-a-secret", 7919
	secrets := strings.Repeat(secret, secretSize/len(secret)+1)[:secretSize]
	for _, tt := range []struct {
		name    string
		out     []string // of the adversary's directory, where the FIFO makes a whole tree of secrets one that is refused
		attack  []string
		call    func(ctx context.Context, dst, src string) error
		refused error
	}{
		{"a file and a link, the file", nil, []string{"swaplink", "src/sub/f", "secrets/f"}, copyFileTo, snapshot.ErrNotRegular},
		{"a directory and a link, a file", nil, []string{"swapparent", "src/sub", "secrets"}, copyInTo, snapshot.ErrNotRegular},
		{"a file and a link", nil, []string{"swaplink", "src/sub/f", "secrets/f"}, copyDirTo, snapshot.ErrEscapes},
		{"a directory and a link", nil, []string{"swapparent", "src/sub", "secrets"}, copyDirTo, snapshot.ErrEscapes},
		{"two directories", []string{"f|"}, []string{"exchange", "src/sub", "secrets"}, copyDirTo, snapshot.ErrNotRegular},
		{"a file and a hard link", []string{"f=" + secrets, "f2 <= f"}, []string{"exchange", "src/sub/f", "secrets/f"}, copySingleTo, snapshot.ErrEscapes},
		{"the root", []string{"sub/f|", "sub/g=" + secrets}, []string{"exchange", "src", "secrets"}, copyDirTo, snapshot.ErrNotRegular},
	} {
		for _, kind := range stressKinds() {
			t.Run(stressKindName(kind)+"/"+tt.name, func(t *testing.T) {
				dir := fstest.Dir(t, kind)
				s := newTreeStress(t, dir, "a=1", "sub/f=mine", "sub/g=mine, too", "z/z=2")
				good := readTree(t, s.src)
				if tt.out == nil {
					fstest.Make(t, filepath.Join(dir, "secrets"), "f="+secrets, secretName+"="+secrets)
				}
				fstest.Make(t, filepath.Join(dir, "secrets"), append(tt.out, "g="+secrets)...)
				if slices.Contains(tt.out, "f2 <= f") {
					fstest.NeedRoot(t)
					require.NoError(t, os.Chown(s.src, 65534, 65534)) // the secret is somebody else's
				}
				args := []string{tt.attack[0], "--side", dir}
				for _, name := range tt.attack[1:] {
					args = append(args, filepath.Join(dir, name))
				}
				p := fstest.Start(t, args...)
				fstest.Leaks(t)
				oracle := func(files map[string]string) error {
					for name, content := range files {
						if content != good[name] || content == "" {
							return fmt.Errorf("%s holds %d bytes %.12q", name, len(content), content)
						}
					}
					return nil
				}
				stressCaught(t, func() error {
					read := map[string]string{}
					for _, name := range []string{"sub/f", "sub/g"} {
						if b, err := carelessRead(filepath.Join(s.src, name)); err == nil && len(b) > 0 {
							read[name] = string(b)
						}
					}
					return oracle(read)
				})
				stressBursts(t, p)
				dst := filepath.Join(s.out, "dst")
				for range stressTries(t, 15, 50, 20_000/6) {
					accepted, err := s.try(t, func(ctx context.Context) error { return tt.call(ctx, dst, s.src) }, tt.refused)
					if !accepted {
						fstest.Nothing(t, s.out)
						assert.NotContains(t, err.Error(), secret)
						assert.NotContains(t, err.Error(), secretName)
						// The whole number: its digits may be in the name of a temporary directory.
						assert.NotRegexp(t, fmt.Sprintf(`\b%d\b`, secretSize), err.Error())
						continue
					}
					fstest.Nothing(t, s.out, "dst")
					files := readTree(t, dst)
					require.NoError(t, oracle(files))
					require.NotEmpty(t, files)
					discard(t, dst)
				}
				s.atLeast(t, 5)
				t.Logf("secrets %s, %s: %v leaks 0", stressKindName(kind), tt.name, &s.tally)
			})
		}
	}
}

func copyDirTo(ctx context.Context, dst, src string) error {
	_, err := snapshot.CopyDir(ctx, dst, src, nil)
	return err
}

// copySingleTo refuses what its owner may only have linked to.
func copySingleTo(ctx context.Context, dst, src string) error {
	_, err := snapshot.CopyDir(ctx, dst, src, &snapshot.Options{SingleLink: true})
	return err
}

// copyFileTo copies src/sub/f by its name.
func copyFileTo(ctx context.Context, dst, src string) error {
	return oneFileTree(dst, func(name string) error {
		_, err := snapshot.CopyFile(ctx, name, filepath.Join(src, "sub/f"), nil)
		return err
	})
}

// copyInTo copies src/sub/f beneath a root.
func copyInTo(ctx context.Context, dst, src string) error {
	return oneFileTree(dst, func(name string) (err error) {
		root, err := os.OpenRoot(src)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, root.Close()) }()
		f, err := snapshot.OpenIn(root, "sub/f", nil)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		_, err = f.CopyFile(ctx, name)
		return err
	})
}

// oneFileTree makes dst/sub/f by copying, or nothing.
func oneFileTree(dst string, copyTo func(name string) error) error {
	if err := os.MkdirAll(filepath.Join(dst, "sub"), 0o755); err != nil {
		return err
	}
	err := copyTo(filepath.Join(dst, "sub/f"))
	if err == nil {
		return nil
	}
	// Not os.RemoveAll, which would hide what a refused copy leaves.
	return errors.Join(err, os.Remove(filepath.Join(dst, "sub")), os.Remove(dst))
}

// Hard links, chmod to the same mode, extended attributes and reads change no content, and make no refusal.
func TestStressFalseAlarms(t *testing.T) {
	if args := flag.Args(); len(args) > 0 {
		scanAsOther(t, args[0], args[1])
		return
	}
	for _, kind := range append(stressKinds(), "tmpfs", "overlay", "bindfs") {
		t.Run(stressKindName(kind), func(t *testing.T) {
			part := 1
			if kind == "bindfs" {
				if part = 50; stressTries(t, 0, 0, 1) == 0 {
					t.Skip("a copy takes a quarter of a minute: HOLDSTILL_STRESS=full")
				}
			}
			var lines []string
			for i := range 1000 {
				lines = append(lines, fmt.Sprintf("%d/%d=%d", i%20, i, i))
			}
			dir := fstest.Dir(t, kind)
			s := newTreeStress(t, dir, lines...)
			quiet, err := snapshot.CopyDir(t.Context(), filepath.Join(dir, "quiet"), s.src, nil)
			require.NoError(t, err)
			fstest.Equal(t, s.src, filepath.Join(dir, "quiet"))
			// Without a pause there is not one entry that the noise passes by.
			s.noise(t, kind, "0s", quiet.Manifest, stressTries(t, 1, 1, 500)/part)
			s.noise(t, kind, "1ms", quiet.Manifest, stressTries(t, 3, 5, 5000)/part)
		})
	}
}

// noise makes tries of a tree that an adversary only touches, as its owner and as somebody else.
func (s *treeStress) noise(t *testing.T, kind, pause string, want *snapshot.Manifest, tries int) {
	t.Helper()
	others := min(tries, stressTries(t, 0, 2, 200))
	s.tally, s.instants = tally{}, map[snapshot.Instant]int{}
	promised, settled := slices.Contains(stressKinds(), kind), int64(0)
	p := fstest.Start(t, "noise", "--pause-max", pause, s.src)
	defer p.Stop()
	stressCaught(t, func() error { // who compares all of the State refuses without a reason
		before := ctimesOf(t, s.src)
		if maps.Equal(before, ctimesOf(t, s.src)) {
			return nil
		}
		return errors.New("other ctimes")
	})
	for range tries {
		err := s.copy(t, func(dst string, r *snapshot.Report) error {
			settled += r.MetadataOnly
			if r.Manifest.Digest() != want.Digest() {
				return errors.New("another manifest than that of the quiet tree")
			}
			return snapshot.Verify(t.Context(), dst, r.Manifest, nil)
		})
		if promised {
			assert.NoError(t, err)
		}
	}
	if promised && pause == "0s" {
		assert.Positive(t, settled, "entries of which only ctime moved")
	}
	what := fmt.Sprintf("false alarms %s, pause up to %s", stressKindName(kind), pause)
	t.Logf("%s: %v, %d entries settled by a second look", what, s, settled)
	t.Run(pause+"/not the owner", func(t *testing.T) {
		fstest.NeedRoot(t)
		if others == 0 {
			t.Skip("takes long: HOLDSTILL_STRESS=ci or full")
		}
		t.Logf("%s, not the owner: %s", what, asOther(t, s.src, others))
	})
}

func ctimesOf(t *testing.T, dir string) map[string]time.Time {
	t.Helper()
	ctimes := map[string]time.Time{}
	require.NoError(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err == nil {
			var st snapshot.State
			st, err = snapshot.Lstat(name)
			ctimes[name] = st.ChangeTime
		}
		return err
	}))
	return ctimes
}

// asOther runs this test as an ordinary user who owns none of the files, and returns what it prints.
func asOther(t *testing.T, src string, tries int) string {
	t.Helper()
	exe := copyForAll(t)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestStressFalseAlarms$", src, strconv.Itoa(tries))
	cmd.SysProcAttr = fstest.Unprivileged(t)
	cmd.Dir = filepath.Dir(exe)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

func scanAsOther(t *testing.T, src, tries string) {
	t.Helper()
	n, err := strconv.Atoi(tries)
	require.NoError(t, err)
	c := &tally{}
	for range n {
		_, _ = c.try(t, func(ctx context.Context) error {
			_, err := snapshot.Scan(ctx, src, nil)
			return err
		})
	}
	fmt.Println(c)
}
