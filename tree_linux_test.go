// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// TestManyEntries: one directory of 100,000, on a file system that makes them fast.
func TestManyEntries(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it makes 100,000 entries, and -short was given")
	}
	const n = 100_000
	dir := fstest.Dir(t, "tmpfs")
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	require.NoError(t, os.Mkdir(src, 0o755))
	for i := range n {
		name := fmt.Sprintf("%s/%06d", src, i)
		if i%4 == 0 {
			require.NoError(t, os.WriteFile(name, nil, 0o644))
		} else {
			require.NoError(t, os.Symlink("000000", name))
		}
	}
	report, err := copyTree(t, dst, src, nil)
	require.NoError(t, err)
	assert.Equal(t, []int64{n / 4, 1, n - n/4}, []int64{report.Files, report.Dirs, report.Links})
	assert.Equal(t, n+1, report.Manifest.Len())
	assert.Len(t, namesIn(t, dst), n)

	_, err = snapshot.Scan(t.Context(), src, balanced(t, &snapshot.Options{Limits: snapshot.Limits{MaxEntries: n}}, snapshot.Seam{}))
	limit, ok := errors.AsType[*snapshot.LimitError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, snapshot.LimitError{Path: src, Field: "MaxEntries", Limit: n, Got: n + 1}, *limit)
}

// TestFewDescriptors runs the copies of deep and wide trees in a process that may open 64 files.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	const variable = "HOLDSTILL_TEST_FEW"
	if dir := os.Getenv(variable); dir != "" {
		few := syscall.Rlimit{Cur: 64, Max: 64}
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
		for i, src := range []string{"deep", "wide", "bushy"} {
			dst := filepath.Join(dir, "dst"+src)
			for _, workers := range []int{0, 1, 32} {
				report, err := snapshot.CopyDir(t.Context(), dst, filepath.Join(dir, src), &snapshot.Options{Workers: workers})
				require.NoError(t, err, "%s, %d workers", src, workers)
				require.NoError(t, snapshot.Verify(t.Context(), dst, report.Manifest, &snapshot.Options{Workers: workers}), "%s", src)
				require.NoError(t, os.Rename(dst, fmt.Sprintf("%s%d-%d", dst, i, workers)))
			}
			_, err := snapshot.CopyDir(t.Context(), dst, filepath.Join(dir, src), &snapshot.Options{Limits: snapshot.Limits{MaxFileBytes: 1}})
			require.ErrorIs(t, err, snapshot.ErrLimit, "%s", src)
			require.NoDirExists(t, dst)
		}
		return
	}
	dir := fstest.TempDir(t)
	deepTree(t, filepath.Join(dir, "deep"), 300, "f=bottom", "l => f")
	var wide, bushy []string
	for i := range 200 {
		wide = append(wide, fmt.Sprintf("d%d/f=hello", i), fmt.Sprintf("d%d/g=@2KiB", i))
	}
	for i := range 64 {
		bushy = append(bushy, fmt.Sprintf("%d/%d/%d/%d/%d/%d/f=hello", i&1, i>>1&1, i>>2&1, i>>3&1, i>>4&1, i>>5&1))
	}
	fstest.Make(t, filepath.Join(dir, "wide"), wide...)
	fstest.Make(t, filepath.Join(dir, "bushy"), bushy...)

	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestFewDescriptors$", "-test.count=1")
	cmd.Env = append(os.Environ(), variable+"="+dir)
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
	for _, src := range []string{"deep", "wide", "bushy"} {
		copies, err := filepath.Glob(filepath.Join(dir, "dst"+src+"*"))
		require.NoError(t, err)
		require.Len(t, copies, 3)
		for _, dst := range copies {
			fstest.Equal(t, filepath.Join(dir, src), dst)
		}
	}
	assert.Len(t, namesIn(t, dir), 3+9, "nothing else is left")
}

// TestPseudoFiles: a size that lies is no size.
func TestPseudoFiles(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	for _, name := range []string{"/proc/self/status", "/proc/self/maps", "/sys/kernel/mm/transparent_hugepage/enabled", "/dev/zero", "/dev/null", "/dev/tty", "/proc/self/exe"} {
		if _, err := os.Lstat(name); err != nil {
			t.Logf("%v", err)
			continue
		}
		_, err := copyOne(t, filepath.Join(dir, "dst"), name, nil, snapshot.Seam{})
		assert.ErrorIs(t, err, snapshot.ErrNotRegular, name)
		assert.ErrorContains(t, err, name)
		assert.False(t, snapshot.Retryable(err))
		b, _, err := snapshot.ReadFile(t.Context(), name, balanced(t, nil, snapshot.Seam{}))
		assert.ErrorIs(t, err, snapshot.ErrNotRegular, name)
		assert.Nil(t, b)
	}
	for _, name := range []string{"/proc/self/task", "/proc", "/sys/kernel"} {
		_, err := copyTree(t, filepath.Join(dir, "dst"), name, nil)
		assert.ErrorIs(t, err, snapshot.ErrNotRegular, name)
		_, err = snapshot.Scan(t.Context(), name, balanced(t, nil, snapshot.Seam{}))
		assert.ErrorIs(t, err, snapshot.ErrNotRegular, name)
	}
}

// TestPseudoFileInATree: bound onto a file of the tree.
func TestPseudoFileInATree(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "status=x", "sub/f=x")
	fstest.Bind(t, "/proc/self/status", src+"/status")
	for _, cross := range []bool{false, true} {
		_, err := copyTree(t, filepath.Join(dir, "dst"), src, &snapshot.Options{CrossMounts: cross})
		want := snapshot.ErrEscapes
		if cross {
			want = snapshot.ErrNotRegular
		}
		assert.ErrorIs(t, err, want)
		assert.ErrorContains(t, err, src+"/status")
	}
	fstest.Unmount(t, src+"/status")
	fstest.Bind(t, "/proc/self/task", src+"/sub")
	_, err := copyTree(t, filepath.Join(dir, "dst"), src, &snapshot.Options{CrossMounts: true})
	assert.ErrorIs(t, err, snapshot.ErrNotRegular)
}

func TestMounts(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	for name, mount := range map[string]func(t *testing.T, dir string){
		"bound directory of the same disk": func(t *testing.T, dir string) { fstest.Bind(t, dir+"/other", dir+"/src/mnt") },
		"bound file of the same disk":      func(t *testing.T, dir string) { fstest.Bind(t, dir+"/other/f", dir+"/src/file") },
		"bound directory of the tree":      func(t *testing.T, dir string) { fstest.Bind(t, dir+"/src/d", dir+"/src/mnt") },
		"bound root of the tree":           func(t *testing.T, dir string) { fstest.Bind(t, dir+"/src/mnt", dir+"/src/mnt") },
		"another file system": func(t *testing.T, dir string) {
			other := fstest.Dir(t, "tmpfs")
			fstest.Make(t, other, "f=other")
			fstest.Bind(t, other, dir+"/src/mnt")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := fstest.TempDir(t)
			fstest.Make(t, dir, "src/d/f=mine", "src/mnt/", "src/file=x", "other/f=other")
			mount(t, dir)
			src := filepath.Join(dir, "src")
			_, err := copyTree(t, dir+"/dst", src, nil)
			assert.ErrorIs(t, err, snapshot.ErrEscapes)
			assert.ErrorContains(t, err, src+"/")
			_, err = snapshot.Scan(t.Context(), src, balanced(t, nil, snapshot.Seam{}))
			assert.ErrorIs(t, err, snapshot.ErrEscapes)
			report, err := copyTree(t, dir+"/dst", src, &snapshot.Options{CrossMounts: true})
			require.NoError(t, err)
			fstest.Equal(t, src, dir+"/dst")
			if name == "another file system" {
				assert.Equal(t, snapshot.InstantWrites, report.Instant, "of the weaker one")
			}
			_, err = copyTree(t, dir+"/dst2", src, &snapshot.Options{Exclude: filterOf(t, "mnt", "file")})
			assert.NoError(t, err, "what is left out need not be crossed")
		})
	}
}

// TestBtrfsSubvolume is no mount: it has a device number of its own, and belongs to the tree.
func TestBtrfsSubvolume(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	dir := fstest.Dir(t, "btrfs")
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "f=x")
	out, err := exec.CommandContext(t.Context(), lookTool(t, "btrfs"), "subvolume", "create", src+"/sub").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() {
		assert.NoError(t, exec.Command("btrfs", "subvolume", "delete", src+"/sub").Run())
	})
	fstest.Make(t, src, "sub/g=y")
	report, err := copyTree(t, dir+"/dst", src, nil)
	require.NoError(t, err)
	fstest.Equal(t, src, dir+"/dst")
	assert.Equal(t, snapshot.InstantAll, report.Instant)
}

// TestDestinationBehindABindMount: the destination is inside the source, though no path says so.
func TestDestinationBehindABindMount(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/d/e/f=x", "root/", "sub/", "up/src/")
	src := filepath.Join(dir, "src")
	fstest.Bind(t, src, dir+"/root")
	fstest.Bind(t, src+"/d/e", dir+"/sub")
	fstest.Bind(t, dir, dir+"/up")
	before := fstest.Read(t, src)
	for _, tt := range [][2]string{
		{"root/dst", "src"},
		{"root/d/dst", "src"},
		{"src/dst", "root"},
		{"src/d/dst", "root"},
		{"sub/dst", "src"},
		{"sub/dst", "root"},
		{"src/d/e/dst", "sub"},
		{"up/src/dst", "src"},
		{"up/src/d/dst", "root"},
	} {
		_, err := copyTree(t, dir+"/"+tt[0], dir+"/"+tt[1], nil)
		assert.ErrorIs(t, err, snapshot.ErrEscapes, "CopyDir(%q)", tt)
		assert.ErrorContains(t, err, "inside", "CopyDir(%q)", tt)
		assert.Equal(t, before, fstest.Read(t, src), "CopyDir(%q)", tt)
	}
	_, err := copyTree(t, dir+"/dst", dir+"/root", nil)
	assert.NoError(t, err, "a mount point may be the root")
}

func TestReadOnlyMount(t *testing.T) {
	t.Parallel()
	fstest.NeedRoot(t)
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/f=x", "ro/")
	fstest.Bind(t, dir+"/ro", dir+"/ro")
	require.NoError(t, syscall.Mount("", dir+"/ro", "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	_, err := copyTree(t, dir+"/ro/dst", dir+"/src", nil)
	assert.ErrorIs(t, err, syscall.EROFS)
	_, err = copyOne(t, dir+"/ro/dst", dir+"/src/f", nil, snapshot.Seam{})
	assert.ErrorIs(t, err, syscall.EROFS)
	assert.False(t, snapshot.Retryable(err))
}

// TestSpace on a disk of 4 MiB.
func TestSpace(t *testing.T) {
	t.Parallel()
	small := fstest.Mount(t, "tmpfs-4m")
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "one/f=@10MiB", "holes/f=~10MiB", "fits/f=@1MiB", "fits/g=@512KiB")
	for i := range 40 {
		fstest.Make(t, dir, fmt.Sprintf("many/%d=@200KiB", i))
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	none := snapshot.Limits{ReserveBytes: -1}

	// What is known to be too much is refused before a byte is written.
	for _, src := range []string{"one", "many"} {
		_, err := copyTree(t, small+"/dst", at(src), nil)
		limit, ok := errors.AsType[*snapshot.LimitError](err)
		require.True(t, ok, "%s: %v", src, err)
		assert.Equal(t, "ReserveBytes", limit.Field)
		assert.Equal(t, int64(4<<20/20), limit.Limit, "a twentieth")
		assert.Less(t, limit.Got, limit.Limit)
	}
	_, err := copyOne(t, small+"/dst", at("one/f"), nil, snapshot.Seam{})
	assert.ErrorIs(t, err, snapshot.ErrLimit)

	// Without a reserve the disk is full in the end.
	for _, src := range []string{"one", "many"} {
		_, err := copyTree(t, small+"/dst", at(src), &snapshot.Options{Limits: none})
		assert.ErrorIs(t, err, syscall.ENOSPC, src)
		assert.NotErrorIs(t, err, snapshot.ErrLeftover, src)
		assert.False(t, snapshot.Retryable(err), src)
		assert.ErrorContains(t, err, at(src)+"/", src)
	}
	_, err = copyOne(t, small+"/dst", at("one/f"), &snapshot.Options{Limits: none}, snapshot.Seam{})
	assert.ErrorIs(t, err, syscall.ENOSPC)

	// Holes are free, and what is left out needs no space.
	_, err = copyTree(t, small+"/holes", at("holes"), nil)
	assert.NoError(t, err)
	_, err = copyTree(t, small+"/dst", dir, &snapshot.Options{Exclude: filterOf(t, "one", "many")})
	assert.NoError(t, err)
	require.NoError(t, removeCopy(small+"/dst"))

	_, err = copyTree(t, small+"/dst", at("fits"), &snapshot.Options{Limits: snapshot.Limits{ReserveBytes: 3 << 20}})
	assert.ErrorIs(t, err, snapshot.ErrLimit)
	_, err = copyTree(t, small+"/dst", at("fits"), &snapshot.Options{Limits: snapshot.Limits{ReserveBytes: 2 << 20}})
	assert.NoError(t, err)
}

// TestScanNeedsNoSpace: it writes nothing.
func TestScanNeedsNoSpace(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "f=@2MiB")
	_, err := snapshot.Scan(t.Context(), dir, &snapshot.Options{Limits: snapshot.Limits{ReserveBytes: 1 << 60}})
	assert.NoError(t, err)
}
