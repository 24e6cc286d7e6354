// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// guarantee is a row of README's table: what was measured on one file system. Nothing of it is read from a list in the engine.
type guarantee struct {
	name      string
	byDefault snapshot.Evidence // of the file's owner
	because   string            // no higher
	most      snapshot.Evidence // that Require gets
	foreign   snapshot.Evidence // of another user, by default
	beside    snapshot.Evidence // somebody's open O_DIRECT descriptor, by default
	stores    string            // through a mapping, while the file is copied
	instant   snapshot.Instant
	cloned    bool
	replaced  string // by what a new file of the same name is told from the old one
	noReplace bool   // renameat2(RENAME_NOREPLACE)
	nameless  bool   // O_TMPFILE
	readOnly  bool
}

var guaranteeNames = map[string]string{
	"ext4-128": "ext4, 128-byte inodes", "overlay": "overlayfs on ext4", "bindfs": "FUSE (bindfs on ext4)",
}

func guaranteeName(kind string) string {
	if name, ok := guaranteeNames[kind]; ok {
		return name
	}
	return kind
}

// TestGuarantees measures every file system that can be mounted, prints README's table, and compares. HOLDSTILL_UPDATE=1 writes
// the table to README.md.
func TestGuarantees(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	command := buildCommand(t)
	kinds := []string{"ext4", "ext4-128", "xfs", "btrfs", "tmpfs", "ramfs", "overlay", "bindfs", "squashfs", "erofs"}
	var mu sync.Mutex
	rows := map[string]guarantee{}
	t.Run("measure", func(t *testing.T) {
		for _, kind := range append(kinds, "f2fs") {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				var row guarantee
				if slices.Contains(fstest.ReadOnlyKinds(), kind) {
					row = measureReadOnly(t, command, kind)
				} else {
					row = measure(t, command, kind)
				}
				row.name = guaranteeName(kind)
				// What is claimed must be what was seen.
				assert.LessOrEqual(t, row.foreign, row.byDefault)
				assert.LessOrEqual(t, row.byDefault, row.most)
				if row.byDefault >= snapshot.Buffered || row.instant == snapshot.InstantAll {
					assert.Equal(t, "seen", row.stores)
				}
				mu.Lock()
				defer mu.Unlock()
				rows[kind] = row
			})
		}
	})
	if row, ok := rows["f2fs"]; ok { // a row that not every machine can print is not in README
		t.Logf("f2fs: %+v", row)
		assert.LessOrEqual(t, row.most, snapshot.Stable, "nobody claimed more")
	}
	var table []guarantee
	for _, kind := range kinds {
		if row, ok := rows[kind]; ok {
			table = append(table, row)
		}
	}
	got := guaranteeTable(table)
	t.Logf("the table:\n%s", got)
	if t.Failed() {
		return
	}
	if len(table) < len(kinds) {
		have := slices.Collect(maps.Keys(rows))
		t.Skipf("README's table needs all of %v, and here are only %v", kinds, have)
	}
	compareReadme(t, got)
}

const (
	guaranteesBegin = "<!-- This table is printed: HOLDSTILL_UPDATE=1 go test -run '^TestGuarantees$' . as root. -->\n"
	guaranteesEnd   = "<!-- The printed table ends here. -->\n"
)

func compareReadme(t *testing.T, got string) {
	t.Helper()
	b, err := os.ReadFile("README.md")
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(b), guaranteesBegin)
	require.True(t, found, "README.md has no line %q", guaranteesBegin)
	want, after, found := strings.Cut(rest, guaranteesEnd)
	require.True(t, found, "README.md has no line %q", guaranteesEnd)
	if os.Getenv("HOLDSTILL_UPDATE") != "" {
		require.NoError(t, os.WriteFile("README.md", []byte(before+guaranteesBegin+got+guaranteesEnd+after), 0o644))
		return
	}
	assert.Equal(t, want, got, "README.md has another table; as root: HOLDSTILL_UPDATE=1 go test -run '^TestGuarantees$' .")
}

func guaranteeTable(rows []guarantee) string {
	var b strings.Builder
	b.WriteString("\n| file system | by default | `Require` gets | of another's file | beside a writer | mapped stores | instant | reflinks | " +
		"a replaced file shows by | no-replace rename | `O_TMPFILE` |\n")
	b.WriteString(strings.Repeat("|---", 11) + "|\n")
	yes := map[bool]string{true: "yes", false: "no"}
	reasons := map[string][]string{}
	var order []string
	for _, r := range rows {
		cells := []string{
			r.name, r.byDefault.String(), r.most.String(), r.foreign.String(), r.beside.String(), r.stores, r.instant.String(),
			yes[r.cloned], r.replaced, yes[r.noReplace], yes[r.nameless],
		}
		if r.readOnly {
			for _, i := range []int{4, 5, 8, 9, 10} {
				cells[i] = "–"
			}
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
		if reasons[r.because] == nil {
			order = append(order, r.because)
		}
		reasons[r.because] = append(reasons[r.because], r.name)
	}
	b.WriteString("\nWhy no higher level by default:\n\n")
	for _, because := range order {
		if names := strings.Join(reasons[because], "; "); !strings.Contains(because, ": ") { // else it names the file system itself
			because = names + ": " + because
		}
		fmt.Fprintf(&b, "- %s.\n", because)
	}
	b.WriteString("\n")
	return b.String()
}

// measure fills in a row on a file system that can be written.
func measure(t *testing.T, command, kind string) guarantee {
	dir := fstest.Dir(t, kind)
	src := filepath.Join(dir, "src")
	fstest.Make(t, dir, "src/a=@1MiB", "src/d/b=hello", "src/l => a", "direct/f=@64KiB", "mapped/f=@64KiB", "written/f=@64KiB", "owned/f=@1MiB", "out/")
	require.NoError(t, os.Chmod(filepath.Join(dir, "out"), 0o777))
	for _, name := range []string{"owned", "owned/f"} {
		require.NoError(t, os.Chown(filepath.Join(dir, name), nobody, nobody))
	}
	direct := openDirect(t, filepath.Join(dir, "direct/f"))
	direct()
	store := mapped(t, filepath.Join(dir, "mapped/f"))
	store()
	row := guarantee{replaced: replacedBy(t, dir), noReplace: renamesNoReplace(t, dir), nameless: createsNameless(t, dir)}
	fstest.Settle(t, dir)

	measureDefault(t, &row, src, filepath.Join(dir, "dst"))
	row.most = mostRequired(t, src)
	row.foreign = levelAs(t, command, src, filepath.Join(dir, "out/foreign"))
	assert.Equal(t, row.byDefault, levelAs(t, command, filepath.Join(dir, "owned"), filepath.Join(dir, "out/owned")), "an owner who is not root")

	report, err := copyTree(t, filepath.Join(dir, "besides"), filepath.Join(dir, "direct"), nil)
	require.NoError(t, err)
	row.beside = report.Weakest.Evidence

	row.stores = "not seen"
	switch {
	case seen(t, filepath.Join(dir, "mapped/f"), 0, store, store):
		row.stores = "seen"
	case row.most == snapshot.Buffered && seen(t, filepath.Join(dir, "mapped/f"), snapshot.Buffered, store, store):
		row.stores = "seen if required"
	}
	assert.True(t, seen(t, filepath.Join(dir, "direct/f"), 0, func() {}, direct), "an O_DIRECT write")
	written := writing(t, filepath.Join(dir, "written/f"), os.O_WRONLY)
	assert.True(t, seen(t, filepath.Join(dir, "written/f"), 0, func() {}, func() {
		_, err := written.WriteAt([]byte("new"), 0)
		assert.NoError(t, err)
	}), "a write")
	return row
}

func measureReadOnly(t *testing.T, command, kind string) guarantee {
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "from/a=@1MiB", "from/d/b=hello", "from/l => a", "out/")
	require.NoError(t, os.Chmod(filepath.Join(dir, "out"), 0o777))
	src := fstest.ReadOnly(t, kind, filepath.Join(dir, "from"))
	row := guarantee{readOnly: true}
	measureDefault(t, &row, src, filepath.Join(dir, "dst"))
	fstest.Equal(t, filepath.Join(dir, "from"), filepath.Join(dir, "dst"))
	row.most = mostRequired(t, src)
	row.foreign = levelAs(t, command, src, filepath.Join(dir, "out/foreign"))
	return row
}

func measureDefault(t *testing.T, row *guarantee, src, dst string) {
	t.Helper()
	report, err := copyTree(t, dst, src, nil)
	require.NoError(t, err)
	fstest.Equal(t, src, dst)
	require.Len(t, report.Evidence, 1, "%v", report.Evidence)
	row.byDefault, row.because = report.Weakest.Evidence, report.Weakest.Because
	row.instant, row.cloned = report.Instant, report.Cloned > 0
}

// mostRequired is the highest level that is not refused.
func mostRequired(t *testing.T, src string) snapshot.Evidence {
	t.Helper()
	for level := snapshot.Quiescent; level > snapshot.Identified; level-- {
		report, err := snapshot.Scan(t.Context(), src, balanced(t, &snapshot.Options{Require: level}, snapshot.Seam{}))
		if err == nil {
			assert.GreaterOrEqual(t, report.Weakest.Evidence, level)
			return level
		}
		require.ErrorIs(t, err, snapshot.ErrEvidence)
	}
	return snapshot.Identified
}

// seen copies the file while change is called before its bytes are read, and reports whether the copier noticed. opened is called
// when the copier has opened the file, before it looks at it: what FUSE wrote back then is dirty again. If that is noticed each
// time, so is everything.
func seen(t *testing.T, name string, required snapshot.Evidence, opened, change func()) bool {
	t.Helper()
	var reopened, changed sync.Once
	open, ran := false, false
	at := func(call, _ string) error {
		switch {
		case call == "Reopen":
			open = true
		case call == "Stat" && open:
			reopened.Do(opened)
		case call == "Read", call == "ReadNow":
			changed.Do(func() { change(); ran = true })
		}
		return nil
	}
	for range 5 {
		_, _, err := snapshot.ReadFile(t.Context(), name, balanced(t, &snapshot.Options{Attempts: 1, Require: required}, snapshot.Seam{At: at}))
		if err != nil {
			require.ErrorIs(t, err, snapshot.ErrChanged)
		}
		if ran {
			return err != nil
		}
		reopened = sync.Once{}
	}
	return assert.True(t, open)
}

// mapped maps a file to be written and closes it; the result stores to it.
func mapped(t *testing.T, name string) (store func()) {
	t.Helper()
	f := writing(t, name, os.O_RDWR)
	b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Munmap(b)) })
	require.NoError(t, f.Close())
	return func() { b[100]++ }
}

// openDirect opens a file past the page cache, if it can be, and holds it open; the result writes to it.
func openDirect(t *testing.T, name string) (write func()) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_DIRECT, 0)
	if errors.Is(err, syscall.EINVAL) { // ramfs has nothing past its page cache
		f, err = os.OpenFile(name, os.O_RDWR, 0)
	}
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	block, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON) // aligned
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Munmap(block)) })
	return func() {
		block[0]++
		_, err := f.WriteAt(block, 0)
		assert.NoError(t, err)
	}
}

// replacedBy makes a file anew until its number comes again: then only its birth tells the two apart, or nothing but stamps.
func replacedBy(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "replaced")
	look := func() (snapshot.State, uint64) {
		require.NoError(t, os.WriteFile(name, nil, 0o644))
		var st unix.Stat_t
		require.NoError(t, unix.Stat(name, &st))
		state, err := snapshot.Lstat(name)
		require.NoError(t, err)
		return state, st.Ino
	}
	by := "number"
	before, number := look()
	for range 20 {
		require.NoError(t, os.Remove(name))
		now, next := look()
		switch {
		case before.Identity.Same(now.Identity):
			return "change time"
		case next == number:
			by = "birth time"
		}
		before, number = now, next
	}
	return by
}

func renamesNoReplace(t *testing.T, dir string) bool {
	t.Helper()
	dir = filepath.Join(dir, "renames")
	fstest.Make(t, dir, "old=old", "taken=taken")
	rename := func(from, to string) error {
		return unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, from), unix.AT_FDCWD, filepath.Join(dir, to), unix.RENAME_NOREPLACE)
	}
	if errors.Is(rename("old", "free"), syscall.EINVAL) {
		return false
	}
	assert.ErrorIs(t, rename("free", "taken"), syscall.EEXIST)
	fstest.Nothing(t, dir, "free", "taken")
	return true
}

func createsNameless(t *testing.T, dir string) bool {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o400)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return false
	}
	require.NoError(t, err)
	defer unix.Close(fd)
	assert.NoError(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, filepath.Join(dir, "named"), unix.AT_SYMLINK_FOLLOW))
	return true
}

// nobody owns nothing on common systems.
const nobody = 65534

// buildCommand builds the command where an ordinary user gets at it.
func buildCommand(t *testing.T) string {
	t.Helper()
	name := filepath.Join(fstest.TempDir(t), "holdstill")
	build := exec.Command("go", "build", "-o", name, "./cmd/holdstill")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return name
}

// levelAs is the level that an ordinary user's copy reaches.
func levelAs(t *testing.T, command, src, dst string) snapshot.Evidence {
	t.Helper()
	take := exec.Command(command, "take", "--json", "--quiet", src, dst)
	take.SysProcAttr = fstest.Unprivileged(t)
	var errs strings.Builder
	take.Stderr = &errs
	out, err := take.Output()
	require.NoError(t, err, "%s", errs.String())
	var report struct {
		Weakest struct{ Evidence snapshot.Evidence }
	}
	require.NoError(t, json.Unmarshal(out, &report), "%s", out)
	return report.Weakest.Evidence
}
