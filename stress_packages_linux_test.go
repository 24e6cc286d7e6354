// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// packageLayout is a project that is installed over and over again, changing between two sets of packages. Its first root holds
// the file that is written before an install, its last one that which is written after it.
type packageLayout struct {
	name  string
	roots []string // in the project
	files map[string]string
	sets  [2]map[string]string // package.json by directory, for each of the two states
	// The commands: clean makes all anew, after gone was removed, change turns what is there into what is wanted.
	lock, clean, change, gone []string

	lockFile string
	prints   [2]string // by main.js of the first root, in each state
}

// The dependencies that differ are of another major version, so that whole subtrees of theirs differ.
const (
	manyPackages = `"webpack":"5","jest":"30",`
	oldPackages  = `"lodash":"4.17.20","express":"4","eslint":"9"`
	newPackages  = `"lodash":"4.17.21","express":"5","eslint":"10"`
)

var packageLayouts = []*packageLayout{
	{
		name:  "npm",
		roots: []string{"app"},
		files: map[string]string{"app/main.js": `
if (process.argv[2] === "all") for (const name of ["webpack", "jest", "eslint", "express"]) require(name);
console.log("lodash", require("lodash").VERSION, "express", require("express/package.json").version.split(".")[0]);`},
		sets: [2]map[string]string{
			{"app": `{"name":"app","private":true,"dependencies":{` + manyPackages + oldPackages + `}}`},
			{"app": `{"name":"app","private":true,"dependencies":{` + manyPackages + newPackages + `}}`},
		},
		lock:     []string{"npm", "install", "--package-lock-only", "--prefix", "app"},
		clean:    []string{"npm", "ci", "--prefix", "app"},
		change:   []string{"npm", "install", "--prefix", "app"},
		lockFile: "app/package-lock.json",
		prints:   [2]string{"lodash 4.17.20 express 4\n", "lodash 4.17.21 express 5\n"},
	},
	{
		// Two packages that depend on each other, and on real directories that lie beside neither: each of the three is a root.
		name:  "pnpm",
		roots: []string{"packages/app", "node_modules", "packages/lib"},
		files: map[string]string{
			"package.json":        `{"name":"work","private":true}`,
			"pnpm-workspace.yaml": "packages:\n  - packages/*\n",
			"packages/app/name.js": `
module.exports = "app, lodash " + require("lodash").VERSION;`,
			"packages/app/main.js": `
if (process.argv[2] === "all") for (const name of ["webpack", "jest"]) require(name);
console.log(require("lib"));`,
			"packages/lib/index.js": `
if (process.argv[2] === "all") require("eslint");
module.exports = "lib of " + require("app/name.js") + ", express " + require("express/package.json").version.split(".")[0];`,
		},
		sets: [2]map[string]string{
			{
				"packages/app": `{"name":"app","version":"1.0.0","dependencies":{` + manyPackages + `"lodash":"4.17.20","lib":"workspace:*"}}`,
				"packages/lib": `{"name":"lib","version":"1.0.0","dependencies":{` + oldPackages + `,"app":"workspace:*"}}`,
			},
			{
				"packages/app": `{"name":"app","version":"1.0.0","dependencies":{` + manyPackages + `"lodash":"4.17.21","lib":"workspace:*"}}`,
				"packages/lib": `{"name":"lib","version":"1.0.0","dependencies":{` + newPackages + `,"app":"workspace:*"}}`,
			},
		},
		lock:     []string{"pnpm", "install", "--lockfile-only"},
		gone:     []string{"packages/app/node_modules", "packages/lib/node_modules", "node_modules"},
		clean:    []string{"pnpm", "install", "--frozen-lockfile"},
		change:   []string{"pnpm", "install", "--frozen-lockfile", "--config.modules-cache-max-age=0"},
		lockFile: "pnpm-lock.yaml",
		prints:   [2]string{"lib of app, lodash 4.17.20, express 4\n", "lib of app, lodash 4.17.21, express 5\n"},
	},
}

// TestStressPackages takes snapshots of a real tree of packages while a real installer runs in it without end. Each one that is
// accepted between two installs is exactly what that install makes when nobody disturbs it; a program then runs from it, and from
// a child process that is handed its directory and its digest.
//
// It wants node and npm, and the network; with HOLDSTILL_PACKAGES=DIR what was downloaded is kept there for the next run.
func TestStressPackages(t *testing.T) {
	if handed, ok := os.LookupEnv("HOLDSTILL_TEST_PACKAGES"); ok {
		runHanded(t, handed)
		return
	}
	kept := os.Getenv("HOLDSTILL_PACKAGES")
	if kept == "" && stressTries(t, 0, 0, 1) == 0 {
		t.Skip("installs hundreds of packages from the network: HOLDSTILL_STRESS=full, or HOLDSTILL_PACKAGES=DIR")
	}
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed: %v", tool, err)
		}
	}
	if kept == "" {
		kept = fstest.TempDir(t)
	}
	for _, layout := range packageLayouts {
		t.Run(layout.name, func(t *testing.T) {
			p := newProject(t, layout, kept)
			p.stress(t, stressTries(t, 2, 3, 20))
		})
	}
}

// packages is one project, and where its snapshots lie.
type packages struct {
	*packageLayout
	kept, dir, parent string
	env               []string
	quiet             [2]*snapshot.Manifest // of each state, taken while nothing else runs
	took              time.Duration         // the longest of these
}

func newProject(t *testing.T, layout *packageLayout, kept string) *packages {
	t.Helper()
	dir := fstest.TempDir(t)
	p := &packages{packageLayout: layout, kept: kept, dir: filepath.Join(dir, "work"), parent: filepath.Join(dir, "parent")}
	require.NoError(t, os.Mkdir(p.parent, 0o700))
	p.env = append(
		os.Environ(), "HOME="+filepath.Join(kept, "home"), "CI=1",
		"npm_config_cache="+filepath.Join(kept, "cache"), "npm_config_prefer_offline=true", "npm_config_ignore_scripts=true", "npm_config_audit=false",
		"npm_config_fund=false", "npm_config_update_notifier=false", "npm_config_store_dir="+filepath.Join(kept, "store"),
	)
	if layout.name == "pnpm" {
		require.NoError(t, os.MkdirAll(filepath.Join(kept, "tools"), 0o755))
		p.run(t.Context(), t, "npm", "install", "--prefix", filepath.Join(kept, "tools"), "pnpm@10")
	}
	for name, content := range layout.files {
		p.write(t, name, content)
	}
	for state := range p.sets {
		p.prepare(t, state)
	}
	require.NotEmpty(t, p.differences(t, p.quiet[0], p.quiet[1]), "the oracle tells the states apart")
	return p
}

// prepare makes the lock file of a state, if that is not kept, and installs it undisturbed to learn what it looks like.
func (p *packages) prepare(t *testing.T, state int) {
	t.Helper()
	p.want(t, state)
	if _, err := os.Stat(p.locked(state)); err != nil {
		require.NoError(t, os.MkdirAll(filepath.Dir(p.locked(state)), 0o755))
		p.run(t.Context(), t, p.lock...)
		b, err := os.ReadFile(filepath.Join(p.dir, p.lockFile))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(p.locked(state), b, 0o644))
	}
	p.install(t.Context(), t, state, state, true)
	fstest.Settle(t, p.dir)

	start := time.Now()
	s, err := p.take(t.Context())
	require.NoError(t, err)
	took := time.Since(start)
	p.took = max(p.took, took)
	p.quiet[state] = s.Manifest()
	p.equalCopies(t, s)
	p.runs(t, s, state, "all")
	require.NoError(t, s.Close())

	start = time.Now()
	naive := filepath.Join(p.parent, "naive")
	out, err := exec.CommandContext(t.Context(), "cp", "-a", p.dir, naive).CombinedOutput()
	require.NoError(t, err, "%s", out)
	r := s.Report()
	t.Logf("state %d: %d files, %d directories, %d links, %d MiB; Take %v, cp -a %v; weakest %v, %v", state, r.Files, r.Dirs, r.Links, r.Bytes>>20,
		took.Round(time.Millisecond), time.Since(start).Round(time.Millisecond), r.Weakest.Evidence, r.Instant)
	require.NoError(t, os.RemoveAll(naive))
}

func (p *packages) locked(state int) string {
	return filepath.Join(p.kept, p.name+"-"+strconv.Itoa(state), filepath.Base(p.lockFile))
}

// write replaces a file of the project as editors do.
func (p *packages) write(t *testing.T, name, content string) {
	t.Helper()
	name = filepath.Join(p.dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name+"~", []byte(content), 0o644))
	require.NoError(t, os.Rename(name+"~", name))
}

func (p *packages) want(t *testing.T, state int) {
	t.Helper()
	for dir, content := range p.sets[state] {
		p.write(t, dir+"/package.json", content)
	}
}

// install turns the project into a state: number tells its installs apart.
func (p *packages) install(ctx context.Context, t *testing.T, number, state int, clean bool) {
	t.Helper()
	p.write(t, p.roots[0]+"/first", strconv.Itoa(number))
	p.want(t, state)
	b, err := os.ReadFile(p.locked(state))
	require.NoError(t, err)
	p.write(t, p.lockFile, string(b))
	if clean {
		for _, dir := range p.gone {
			require.NoError(t, os.RemoveAll(filepath.Join(p.dir, dir)))
		}
		p.run(ctx, t, p.clean...)
	} else {
		p.run(ctx, t, p.change...)
	}
	if ctx.Err() == nil {
		p.write(t, p.roots[len(p.roots)-1]+"/last", strconv.Itoa(number))
	}
}

func (p *packages) run(ctx context.Context, t *testing.T, args ...string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(p.dir, 0o755))
	program := args[0]
	if program == "pnpm" {
		program = filepath.Join(p.kept, "tools/node_modules/.bin/pnpm")
	}
	cmd := exec.CommandContext(ctx, program, args[1:]...)
	cmd.Env, cmd.Dir = p.env, p.dir
	out, err := cmd.CombinedOutput()
	if ctx.Err() == nil {
		require.NoError(t, err, "%q: %s", args, out)
	}
}

func (p *packages) take(ctx context.Context) (*snapshot.Snapshot, error) {
	roots := make([]snapshot.Root, len(p.roots))
	for i, root := range p.roots {
		roots[i].Path = filepath.Join(p.dir, root)
	}
	return snapshot.Take(ctx, roots, &snapshot.TakeOptions{Parent: p.parent})
}

// stress takes snapshots until so many of one whole install each were accepted.
func (p *packages) stress(t *testing.T, want int) {
	ctx, stop := context.WithCancel(t.Context())
	stopped, installs := make(chan struct{}), 0
	go func() {
		defer close(stopped)
		for number := len(p.sets); ctx.Err() == nil && !t.Failed(); number++ {
			p.install(ctx, t, number, number%len(p.sets), number%8 == 0)
			installs++
			select {
			case <-ctx.Done():
			case <-time.After(rand.N(3 * p.took)): // or nothing could ever be accepted
			}
		}
	}()
	defer func() { stop(); <-stopped }()

	count := tally{refusals: map[string]int{}}
	seen, naive := map[string]int{}, map[string]int{}
	for whole := 0; whole < want; {
		require.False(t, t.Failed(), "an install failed")
		require.Less(t, count.tries, 100*want, "%v", &count)
		if count.tries%3 == 0 && naive["mixed"]+naive["failed"] == 0 {
			naive[p.copyNaively(t)]++
		}
		count.tries++
		s, err := p.take(ctx)
		if err != nil {
			count.refusals[refusedPackages(t, err)]++
			fstest.Nothing(t, p.parent)
			continue
		}
		count.accepted++
		number, between := p.judge(t, s)
		if between {
			seen["between"]++
		} else {
			whole++
			seen[fmt.Sprintf("state %d", number%len(p.sets))]++
			p.runs(t, s, number%len(p.sets))
			if whole <= 2 {
				p.handOff(t, s, number%len(p.sets))
			}
		}
		require.NoError(t, s.Close())
		t.Logf("%s: %v, %v; cp -a: %v", p.name, &count, seen, naive)
	}
	stop()
	<-stopped
	t.Logf("%d installs meanwhile", installs)
	if want >= 20 {
		assert.Len(t, seen, len(p.sets)+min(1, seen["between"]), "both states are accepted")
		// Most often cp fails, because what it has listed is gone when it gets there.
		assert.NotZero(t, naive["mixed"]+naive["failed"], "nothing disturbed cp -a: nothing happened")
	}
}

// refusedPackages says why a refusal was to be expected: something changed, or what was there at the instant cannot be copied,
// because an installer makes links before what they lead to, and takes a root away for a while.
func refusedPackages(t *testing.T, err error) string {
	t.Helper()
	assert.NotErrorIs(t, err, snapshot.ErrLeftover)
	for _, expected := range []error{snapshot.ErrChanged, snapshot.ErrBusy, snapshot.ErrEscapes, fs.ErrNotExist} {
		if errors.Is(err, expected) {
			if !snapshot.Retryable(err) {
				t.Logf("a refusal that no retry would follow: %v", err)
			}
			return expected.Error()
		}
	}
	require.NoError(t, err, "an unexpected refusal")
	return ""
}

// judge returns by which install a snapshot was made; between two of them nobody knows what the tree should hold.
func (p *packages) judge(t *testing.T, s *snapshot.Snapshot) (number int, between bool) {
	t.Helper()
	assert.Equal(t, snapshot.InstantAll, s.Report().Instant)
	number, between = p.counters(t, func(name string) ([]byte, error) { return fs.ReadFile(s.FS(), name) })
	if between {
		return number, true
	}
	require.Empty(t, p.differences(t, p.quiet[number%len(p.sets)], s.Manifest()), "install %d", number)
	return number, false
}

func (p *packages) counters(t *testing.T, read func(string) ([]byte, error)) (number int, between bool) {
	t.Helper()
	var counters [2]int
	for i, name := range []string{p.roots[0] + "/first", p.roots[len(p.roots)-1] + "/last"} {
		b, err := read(filepath.Base(filepath.Dir(name)) + "/" + filepath.Base(name))
		require.NoError(t, err)
		counters[i], err = strconv.Atoi(string(b))
		require.NoError(t, err)
	}
	return counters[0], counters[0] != counters[1]
}

// differences compares files and links: which empty directories an npm leaves that changes what is there depends on what was.
func (p *packages) differences(t *testing.T, want, got *snapshot.Manifest) (paths []string) {
	t.Helper()
	for change, err := range snapshot.Diff(want, got) {
		require.NoError(t, err)
		entry := change.New
		if entry == nil {
			entry = change.Old
		}
		switch base := filepath.Base(change.Path); {
		case entry.Mode.IsDir() || base == "first" || base == "last":
		case base == ".modules.yaml" || base == ".pnpm-workspace-state-v1.json": // hold the time of the install
		default:
			paths = append(paths, change.Path)
		}
	}
	return paths
}

// copyNaively copies the root with cp, and tells whether what it made is one state. Of several roots, which lie in one
// another's links, it only tells whether cp got to the end.
func (p *packages) copyNaively(t *testing.T) string {
	t.Helper()
	src := p.dir
	if len(p.roots) == 1 {
		src = filepath.Join(p.dir, p.roots[0])
	}
	dst := filepath.Join(p.parent, filepath.Base(src))
	defer func() { require.NoError(t, os.RemoveAll(dst)) }()
	if err := exec.CommandContext(t.Context(), "cp", "-a", "--", src, dst).Run(); err != nil {
		return "failed"
	}
	if len(p.roots) > 1 {
		return "not judged"
	}
	number, between := p.counters(t, func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(p.parent, name)) })
	if between {
		return "between"
	}
	s, err := snapshot.Take(t.Context(), []snapshot.Root{{Path: dst}}, &snapshot.TakeOptions{Parent: p.parent, Options: snapshot.Options{Links: snapshot.LinksVerbatim}})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	if len(p.differences(t, p.quiet[number%len(p.sets)], s.Manifest())) > 0 {
		return "mixed"
	}
	return "one state"
}

// runs runs the program of the first root from the snapshot; with "all" it loads the large packages, too.
func (p *packages) runs(t *testing.T, s *snapshot.Snapshot, state int, args ...string) {
	t.Helper()
	dir, ok := s.Path(filepath.Base(p.roots[0]))
	require.True(t, ok)
	out, err := exec.CommandContext(t.Context(), "node", append([]string{filepath.Join(dir, "main.js")}, args...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, p.prints[state], string(out))
}

// handOff has another process run it, which learns where the snapshot is and what its manifest is, and nothing else.
func (p *packages) handOff(t *testing.T, s *snapshot.Snapshot, state int) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestStressPackages$", "-test.v")
	cmd.Env = append(os.Environ(), "HOLDSTILL_TEST_PACKAGES="+s.Manifest().Digest().String()+" "+s.Dir())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "the program printed: "+p.prints[state])
}

func runHanded(t *testing.T, handed string) {
	hex, dir, _ := strings.Cut(handed, " ")
	digest, err := snapshot.ParseDigest(hex)
	require.NoError(t, err)
	s, err := snapshot.OpenSnapshot(t.Context(), dir, digest)
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.Close()) }()
	require.NoError(t, s.Verify(t.Context()))
	app, ok := s.Path("app")
	require.True(t, ok)
	f, err := s.Open(t.Context(), "app/main.js")
	require.NoError(t, err)
	defer f.Close()
	out, err := exec.CommandContext(t.Context(), "node", filepath.Join(app, "main.js"), "all").CombinedOutput()
	require.NoError(t, err, "%s", out)
	fmt.Printf("the program printed: %s", out)
}

// equalCopies compares all roots with their copies, byte by byte, without the package's help: a link of the copy leads to the
// copy of what the link leads to.
func (p *packages) equalCopies(t *testing.T, s *snapshot.Snapshot) {
	t.Helper()
	roots, copies := map[string]string{}, map[string]string{}
	for _, root := range p.roots {
		base := filepath.Base(root)
		roots[base] = filepath.Join(p.dir, root)
		copied, ok := s.Path(base)
		require.True(t, ok)
		copies[base] = copied
	}
	want, got := look(t, roots), look(t, copies)
	assert.Len(t, got, len(want))
	for name, what := range want {
		require.Equal(t, what, got[name], name)
	}
}

// look describes what is in all of the roots, by paths that begin with their names.
func look(t *testing.T, roots map[string]string) map[string]string {
	t.Helper()
	place := func(name string) string {
		for base, root := range roots {
			if rest, ok := strings.CutPrefix(name, root); ok {
				return base + rest
			}
		}
		return name
	}
	seen := map[string]string{}
	for _, root := range roots {
		require.NoError(t, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			what := d.Type().String()
			switch d.Type() {
			case 0:
				var b []byte
				b, err = os.ReadFile(name)
				what = fmt.Sprintf("%x", sha256.Sum256(b))
			case fs.ModeSymlink:
				what, err = filepath.EvalSymlinks(name)
				what = place(what)
			}
			seen[place(name)] = what
			return err
		}))
	}
	return seen
}

// TestStressRunningNode takes the executable of a running process from its handle, after its name was given to another file,
// and after that was removed, together with a program, and runs the one with the other.
func TestStressRunningNode(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skipf("node is not installed: %v", err)
	}
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "parent/ 0700", `app/main.js=console.log(require("module-of-app").text, process.execPath);`, `app/node_modules/module-of-app/index.js=exports.text = "from";`)
	tool := filepath.Join(dir, "node")
	out, err := exec.CommandContext(t.Context(), "cp", "-L", node, tool).CombinedOutput()
	require.NoError(t, err, "%s", out)
	want, err := snapshot.Scan(t.Context(), dir, nil)
	require.NoError(t, err)
	running := exec.CommandContext(t.Context(), tool, "--eval", "process.stdin.resume()")
	stdin, err := running.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, running.Start())
	defer func() { assert.NoError(t, stdin.Close()); assert.NoError(t, running.Wait(), "it ran on") }()
	f, err := os.Open(fmt.Sprintf("/proc/%d/exe", running.Process.Pid))
	require.NoError(t, err)
	defer f.Close()

	fstest.Make(t, dir, "new 0755=#!/bin/false")
	for _, successor := range []func() error{
		func() error { return os.Rename(filepath.Join(dir, "new"), tool) },
		func() error { return os.Remove(tool) },
	} {
		require.NoError(t, successor())
		s, err := snapshot.Take(t.Context(), []snapshot.Root{{Name: "bin", File: f}, {Path: filepath.Join(dir, "app")}},
			&snapshot.TakeOptions{Parent: filepath.Join(dir, "parent")})
		require.NoError(t, err)
		got, err := s.Manifest().Lookup("bin")
		require.NoError(t, err)
		old, err := want.Manifest.Lookup("node")
		require.NoError(t, err)
		assert.Equal(t, old.Digest, got.Digest)
		bin, _ := s.Path("bin")
		app, _ := s.Path("app")
		out, err := exec.CommandContext(t.Context(), bin, filepath.Join(app, "main.js")).CombinedOutput()
		assert.NoError(t, err)
		assert.Equal(t, "from "+bin+"\n", string(out))
		assert.NoError(t, s.Close())
		fstest.Nothing(t, filepath.Join(dir, "parent"))
	}
}
