//go:build linux

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// sample is one run of a candidate.
type sample struct {
	took   time.Duration
	peak   int64 // bytes of memory; at most that many for a command, see start
	allocs int64 // -1 for a command
}

// told is what a child says of itself on standard output.
type told struct{ Peak, Allocs int64 }

// child runs a candidate in this process and says what it cost.
func child(name, dst, src string) error {
	list := candidates()
	i := slices.IndexFunc(list, func(c *candidate) bool { return c.name == name && c.run != nil })
	if i < 0 {
		return fmt.Errorf("no candidate %q", name)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := list[i].run(context.Background(), dst, src); err != nil {
		return err
	}
	runtime.ReadMemStats(&after)
	peak, err := highWater()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(told{peak, int64(after.Mallocs - before.Mallocs)})
}

// highWater is the most memory that this process ever had.
func highWater() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(status), "\nVmHWM:")
	line, _, _ := strings.Cut(rest, "\n")
	kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(line), " kB"), 10, 64)
	if !found || err != nil {
		return 0, errors.New("no VmHWM in /proc/self/status")
	}
	return kib << 10, nil
}

// start runs c as a process, behind the words of wrap if there are any, with exe as the program of a function.
func (c *candidate) start(ctx context.Context, exe, dst, src string, wrap ...string) (sample, error) {
	args := []string{exe, "child", c.name, dst, src}
	if c.run == nil {
		if c.prepare != "" {
			first := exec.CommandContext(ctx, "sh", "-c", c.prepare, "sh", src, dst)
			first.Env = environment(dst)
			if out, err := first.CombinedOutput(); err != nil {
				return sample{}, fmt.Errorf("%s: %w: %s", c.name, err, bytes.TrimSpace(out))
			}
			if err := sync(filepath.Dir(dst)); err != nil {
				return sample{}, err
			}
		}
		args = []string{"sh", "-c", c.command, "sh", src, dst}
	}
	args = append(slices.Clone(wrap), args...)
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = environment(dst), &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w: %s", c.name, err, strings.TrimSpace(stderr.String()))
	}
	if c.run == nil {
		// The kernel counts in what this process held when it forked.
		return sample{took, cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10, -1}, nil
	}
	var t told
	if err := json.Unmarshal(stdout.Bytes(), &t); err != nil {
		return sample{}, fmt.Errorf("%s: %w", c.name, err)
	}
	return sample{took, t.Peak, t.Allocs}, nil
}

// environment keeps what backup programs want to keep beside the copy.
func environment(dst string) []string {
	return append(os.Environ(), "RESTIC_PASSWORD=bench", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes", "BORG_BASE_DIR="+dst+".borg")
}
