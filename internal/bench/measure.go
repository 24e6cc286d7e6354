//go:build linux

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// series is what was measured of one candidate on one workload, a sample a round.
type series struct {
	*candidate
	samples []sample
	calls   float64 // system calls a file; NaN if they were not counted
	failed  error
}

// measured is a workload's: the candidates in the order of the table.
type measured struct {
	list   []*series
	absent []string
	hooks  []float64 // time with hooks over time without, a round
}

func (m *measured) get(name string) *series {
	if m != nil {
		for _, s := range m.list {
			if s.name == name && s.failed == nil && len(s.samples) > 0 {
				return s
			}
		}
	}
	return nil
}

type measurement struct {
	*config
	disk *disk
	load *workload
	exe  string
}

func (m *measurement) path(name string) string { return filepath.Join(m.disk.at, name) }

func (m *measurement) measure(ctx context.Context) (res *measured, err error) {
	if m.exe, err = os.Executable(); err != nil {
		return nil, err
	}
	list, absent := candidatesFor(m.config, m.load)
	res = &measured{absent: absent}
	for _, c := range list {
		res.list = append(res.list, &series{candidate: c, calls: math.NaN()})
	}
	defer func() { err = errors.Join(err, m.disk.clear("source")) }()
	if err := m.load.make(m.path("source")); err != nil {
		return nil, err
	}
	if err := sync(m.disk.at); err != nil {
		return nil, err
	}
	if m.rounds > 1 {
		// The first copy finds a file system in which nothing was ever written.
		if _, err := m.once(ctx, list[0], m.exe); err != nil {
			return nil, err
		}
	}
	for round := range m.rounds {
		fmt.Fprintf(os.Stderr, "%s on %s: round %d of %d\n", m.load.name, m.disk.kind, round+1, m.rounds)
		for i := range res.list {
			s := res.list[(i+round)%len(res.list)]
			if s.failed != nil {
				continue
			}
			one, err := m.once(ctx, s.candidate, m.exe)
			if err != nil && (s.ours || ctx.Err() != nil) {
				return nil, err
			}
			s.failed = err
			s.samples = append(s.samples, one)
		}
	}
	if m.calls {
		err = m.countCalls(ctx, res)
	}
	if err == nil && m.hooks && m.load.name == "W2" {
		res.hooks, err = m.compareHooks(ctx)
	}
	return res, err
}

// once runs a candidate and looks whether all was copied.
func (m *measurement) once(ctx context.Context, c *candidate, exe string, wrap ...string) (one sample, err error) {
	defer func() { err = errors.Join(err, m.disk.clear("copy", "copy.borg")) }()
	if one, err = c.start(ctx, exe, m.path("copy"), m.path("source"), wrap...); err != nil || c.partial {
		return one, err
	}
	made, err := count(m.path("copy"))
	made.dirs-- // the root is not planned
	if err == nil && made != m.load.tree {
		err = fmt.Errorf("%s: copied %+v of %+v", c.name, made, m.load.tree)
	}
	return one, err
}

// countCalls runs each candidate once more under strace, which counts the calls that take a name or a descriptor: others, such as
// those of a scheduler in user space, depend on the moment.
func (m *measurement) countCalls(ctx context.Context, res *measured) error {
	if _, err := exec.LookPath("strace"); err != nil {
		return err
	}
	counts := filepath.Join(m.disk.work, "calls")
	for _, s := range res.list {
		if s.failed != nil {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s on %s: calls of %s\n", m.load.name, m.disk.kind, s.name)
		if _, err := m.once(ctx, s.candidate, m.exe, "strace", "-f", "-c", "-e", "trace=%file,%desc", "-o", counts); err != nil {
			return err
		}
		text, err := os.ReadFile(counts)
		if err != nil {
			return err
		}
		n, err := totalCalls(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		s.calls = float64(n) / float64(m.load.files)
	}
	return nil
}

// totalCalls reads the last line of strace's summary: share, seconds, microseconds a call, calls, perhaps errors, "total".
func totalCalls(summary string) (int64, error) {
	lines := strings.Split(strings.TrimSpace(summary), "\n")
	if words := strings.Fields(lines[len(lines)-1]); len(words) >= 5 && words[len(words)-1] == "total" {
		return strconv.ParseInt(words[3], 10, 64)
	}
	return 0, fmt.Errorf("no summary of strace: %q", summary)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func geometricMean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += math.Log(v)
	}
	return math.Exp(sum / float64(len(values)))
}

func (s *series) seconds() (list []float64) {
	for _, one := range s.samples {
		list = append(list, one.took.Seconds())
	}
	return list
}

// over returns the ratios of time, round by round.
func (s *series) over(other *series) []float64 {
	list := s.seconds()
	for i, t := range other.seconds() {
		list[i] /= t
	}
	return list
}

func (s *series) peak() (most int64) {
	for _, one := range s.samples {
		most = max(most, one.peak)
	}
	return most
}

// allocs returns the median number in one run.
func (s *series) allocs() float64 {
	var list []float64
	for _, one := range s.samples {
		list = append(list, float64(one.allocs))
	}
	return median(list)
}

func took(s *series) time.Duration {
	return time.Duration(median(s.seconds()) * float64(time.Second))
}
