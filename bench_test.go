//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// benchTree is a source to measure with.
type benchTree struct {
	name  string
	lines func() []string
	files int
	bytes int64
}

// benchTrees: what costs is the number of files, their bytes, or the depth.
func benchTrees() []benchTree {
	return []benchTree{
		{"small", func() (lines []string) {
			for i := range 1000 {
				lines = append(lines, fmt.Sprintf("d%02d/f%03d=@6KiB", i/20, i))
			}
			return lines
		}, 1000, 1000 * 6 << 10},
		{"large", func() []string { return []string{"f=@256MiB"} }, 1, 256 << 20},
		{"deep", func() (lines []string) {
			for i := range 300 {
				lines = append(lines, strings.Repeat("d/", i)+"f=@1KiB")
			}
			return lines
		}, 300, 300 << 10},
	}
}

func (tree *benchTree) make(b *testing.B) (dir, src string) {
	b.Helper()
	dir = fstest.TempDir(b)
	src = filepath.Join(dir, "src")
	fstest.Make(b, src, tree.lines()...)
	return dir, src
}

// run measures op; undo removes what it made, outside the timing. Once before that it waits until the source's stamps are settled.
func (tree *benchTree) run(b *testing.B, op func() error, undo func()) {
	b.Helper()
	require.NoError(b, op())
	undo()
	b.SetBytes(tree.bytes)
	b.ReportAllocs()
	var allocs uint64
	var before, after runtime.MemStats
	for b.Loop() {
		b.StopTimer()
		runtime.ReadMemStats(&before)
		b.StartTimer()
		err := op()
		b.StopTimer()
		runtime.ReadMemStats(&after)
		require.NoError(b, err)
		allocs += after.Mallocs - before.Mallocs
		undo()
		b.StartTimer()
	}
	files := float64(b.N * tree.files)
	b.ReportMetric(files/b.Elapsed().Seconds(), "files/s")
	b.ReportMetric(float64(allocs)/files, "allocs/file")
}

func BenchmarkCopyDir(b *testing.B) {
	for _, tree := range benchTrees() {
		for _, v := range []struct {
			name string
			opts snapshot.Options
		}{
			{"default", snapshot.Options{}},
			{"one worker", snapshot.Options{Workers: 1}},
			{"per file", snapshot.Options{PerFile: true}},
			{"never lock", snapshot.Options{NeverLock: true}},
		} {
			b.Run(tree.name+"/"+v.name, func(b *testing.B) {
				dir, src := tree.make(b)
				dst := filepath.Join(dir, "dst")
				tree.run(b, func() error {
					_, err := snapshot.CopyDir(b.Context(), dst, src, &v.opts)
					return err
				}, func() { benchRemove(b, dst) })
			})
		}
	}
}

func BenchmarkScan(b *testing.B) {
	for _, tree := range benchTrees() {
		b.Run(tree.name, func(b *testing.B) {
			_, src := tree.make(b)
			tree.run(b, func() error {
				_, err := snapshot.Scan(b.Context(), src, nil)
				return err
			}, func() {})
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	for _, tree := range benchTrees() {
		b.Run(tree.name, func(b *testing.B) {
			_, src := tree.make(b)
			report, err := snapshot.Scan(b.Context(), src, nil)
			require.NoError(b, err)
			tree.run(b, func() error { return snapshot.Verify(b.Context(), src, report.Manifest, nil) }, func() {})
		})
	}
}

func BenchmarkTake(b *testing.B) {
	for _, tree := range benchTrees() {
		b.Run(tree.name, func(b *testing.B) {
			dir, src := tree.make(b)
			require.NoError(b, os.Chmod(dir, 0o700))
			var s *snapshot.Snapshot
			tree.run(b, func() (err error) {
				s, err = snapshot.Take(b.Context(), []snapshot.Root{{Path: src}}, &snapshot.TakeOptions{Parent: dir})
				return err
			}, func() { require.NoError(b, s.Close()) })
		})
	}
}

func BenchmarkReadFile(b *testing.B) {
	tree := benchTree{"", func() []string { return []string{"f=@6KiB"} }, 1, 6 << 10}
	_, src := tree.make(b)
	tree.run(b, func() error {
		_, _, err := snapshot.ReadFile(b.Context(), filepath.Join(src, "f"), nil)
		return err
	}, func() {})
}

func BenchmarkCopyFile(b *testing.B) {
	for _, size := range []int{6 << 10, 256 << 20} {
		tree := benchTree{"", func() []string { return []string{fmt.Sprintf("f=@%dB", size)} }, 1, int64(size)}
		b.Run(fmt.Sprintf("%d bytes", size), func(b *testing.B) {
			dir, src := tree.make(b)
			dst := filepath.Join(dir, "dst")
			tree.run(b, func() error {
				_, err := snapshot.CopyFile(b.Context(), dst, filepath.Join(src, "f"), nil)
				return err
			}, func() { require.NoError(b, os.Remove(dst)) })
		})
	}
}

// benchRemove removes a copy, of which the directories are closed to whoever is not root.
func benchRemove(b *testing.B, dir string) {
	b.Helper()
	require.NoError(b, filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			err = os.Chmod(name, 0o700)
		}
		return err
	}))
	require.NoError(b, os.RemoveAll(dir))
}
