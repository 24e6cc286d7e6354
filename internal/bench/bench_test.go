//go:build linux

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// digest is that of every path, mode and content below dir.
func digest(t *testing.T, dir string) string {
	t.Helper()
	h := sha256.New()
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		_, _ = io.WriteString(h, strings.TrimPrefix(name, dir)+fi.Mode().String())
		if e.IsDir() {
			return nil
		}
		b, err := os.ReadFile(name)
		h.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(h.Sum(nil))
}

// TestWorkloads: they are what was planned, and the same each time; W4 is W2.
func TestWorkloads(t *testing.T) {
	todo, err := workloads([]string{"W1", "W2", "W3", "W4", "W5", "W6"}, 0.001)
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]string{}
	for _, w := range todo {
		a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
		for _, dir := range []string{a, b} {
			if err := w.make(dir); err != nil {
				t.Fatal(err)
			}
		}
		if made[w.name] = digest(t, a); made[w.name] != digest(t, b) {
			t.Errorf("%s differs from time to time", w.name)
		}
		got, err := count(a)
		got.dirs--
		if err != nil || got != w.tree {
			t.Errorf("%s: made %+v, %v, planned %+v", w.name, got, err, w.tree)
		}
	}
	if made["W2"] != made["W4"] || made["W2"] == made["W6"] {
		t.Error("W4 is not W2, or W6 is")
	}
	if _, err := workloads([]string{"W7"}, 1); err == nil {
		t.Error("W7 is a workload")
	}
	// At the full scale, from the plan alone.
	todo, err = workloads([]string{"W2", "W5"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if w := todo[0]; w.files != 30_000 || w.dirs != 3999 || w.bytes < 100<<20 || w.bytes > 300<<20 {
		t.Errorf("W2 is %+v", w.tree)
	}
	if small, large := todo[1], todo[2]; 10*small.entries() != large.entries() {
		t.Errorf("W5/10 has %d entries, W5 %d", small.entries(), large.entries())
	}
}

// TestCandidates: what is written here copies every byte.
func TestCandidates(t *testing.T) {
	todo, err := workloads([]string{"W2"}, 0.002)
	if err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(t.TempDir(), "source")
	if err := todo[0].make(src); err != nil {
		t.Fatal(err)
	}
	contents := func(dir string) map[string]string {
		m := map[string]string{}
		_ = filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				b, _ := os.ReadFile(name)
				m[strings.TrimPrefix(name, dir)] = string(b)
			}
			return err
		})
		return m
	}
	want := contents(src)
	for _, c := range candidates() {
		if c.run == nil || c.partial || c.name == copyFile {
			continue
		}
		dst := filepath.Join(t.TempDir(), "copy")
		t.Cleanup(func() { _ = removeAll(dst) })
		if err := c.run(context.Background(), dst, src); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		got := contents(dst)
		for name, text := range want {
			if got[name] != text {
				t.Errorf("%s: %s differs", c.name, name)
				break
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d files of %d", c.name, len(got), len(want))
		}
	}
}

func TestFigures(t *testing.T) {
	if m := median([]float64{3, 1, 2}); m != 2 {
		t.Errorf("median of three = %v", m)
	}
	if m := median([]float64{4, 1, 2, 3}); m != 2.5 {
		t.Errorf("median of four = %v", m)
	}
	if m := geometricMean([]float64{1, 4}); math.Abs(m-2) > 1e-9 {
		t.Errorf("geometric mean = %v", m)
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %s", n, got)
		}
	}
	summary := "% time     seconds  usecs/call     calls    errors syscall\n" +
		" 60.00    0.000006           1         6         2 openat\n" +
		"100.00    0.000010           1        10         2 total\n"
	if n, err := totalCalls(summary); n != 10 || err != nil {
		t.Errorf("totalCalls = %d, %v", n, err)
	}
	if _, err := totalCalls("strace: nothing"); err == nil {
		t.Error("totalCalls reads what is none")
	}
}

// TestHookFunctions: the methods that a build without hooks replaces exist.
func TestHookFunctions(t *testing.T) {
	for name, bodies := range hookFunctions() {
		path := filepath.Join("..", "..", name)
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := withBodies(path, bodies)
		if err != nil {
			t.Error(err)
		}
		if string(text) == string(old) {
			t.Errorf("%s is unchanged", name)
		}
	}
}
