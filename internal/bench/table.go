//go:build linux

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

const mib = 1 << 20

// print prints the table of one workload.
func (m *measurement) print(res *measured) {
	w := m.load
	fmt.Printf("\n%s, %s, on %s (files: %s, directories: %s, MiB: %s)\n\n", w.name, w.what, m.disk.kind, grouped(w.files), grouped(w.dirs), grouped(w.bytes/mib))
	fmt.Println("| | time ÷ that of `cp -a` (spread) | seconds (spread) | files/s | MiB/s | memory, MiB | allocations a file | system calls a file |")
	fmt.Println("|---|---|---|---|---|---|---|---|")
	base := res.get(cpA)
	var failures []string
	for _, s := range res.list {
		if s.failed != nil {
			failures = append(failures, s.failed.Error())
			continue
		}
		seconds := median(s.seconds())
		peak, allocs, calls := fmt.Sprintf("%.0f", float64(s.peak())/mib), "", ""
		if s.run == nil {
			peak = "≤ " + peak
		} else {
			allocs = fmt.Sprintf("%.2f", s.allocs()/float64(w.files))
		}
		if !math.IsNaN(s.calls) {
			calls = fmt.Sprintf("%.1f", s.calls)
		}
		fmt.Printf("| %s | %s | %s | %s | %s | %s | %s | %s |\n", s.name, spread(s.over(base), 2), spread(s.seconds(), 3),
			grouped(int64(float64(w.files)/seconds)), grouped(int64(float64(w.bytes)/mib/seconds)), peak, allocs, calls)
	}
	for _, f := range failures {
		fmt.Printf("\nNot measured: %s\n", f)
	}
	if len(res.absent) > 0 {
		fmt.Printf("\nNot installed: %s.\n", strings.Join(slices.Compact(res.absent), ", "))
	}
	if w.name == "W4" {
		fmt.Println("\nCheckpoint, for which this workload is meant, does not exist yet, and its bars (0.30 and, with an index, 0.15 of `cp -a`)" +
			" are not measured. Scan, which reads and hashes everything, is the nearest.")
	}
}

func spread(values []float64, digits int) string {
	f := func(v float64) string { return strconv.FormatFloat(v, 'f', digits, 64) }
	if len(values) == 1 {
		return f(values[0])
	}
	return fmt.Sprintf("%s (%s–%s)", f(median(values)), f(slices.Min(values)), f(slices.Max(values)))
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// results are the tables by workload.
type results map[string]*measured

// bar is a figure that must not be more than it may.
type bar struct {
	what           string
	measured, most float64
}

// bars returns those of which both sides were measured.
func bars(todo []*workload, all results) (list []bar) {
	add := func(what string, measured, most float64) { list = append(list, bar{what, measured, most}) }
	ratio := func(load, name, base string, most float64) {
		if s, b := all[load].get(name), all[load].get(base); s != nil && b != nil {
			add(fmt.Sprintf("%s: time of %s ÷ %s", load, name, base), median(s.over(b)), most)
		}
	}
	ratio("W2", copyDir, cpA, 0.55)
	ratio("W2", copyDir, acpx, 0.42)
	ratio("W2", oneWorker, cpA, 0.85)
	ratio("W3", copyDir, cpA, 1.45)
	ratio("W1", copyDir, hashAlone, 1.10)
	ratio("W1", copyFile, hashAlone, 1.10)
	ratio("W2", durable, copyDir, 1.6)
	for _, w := range todo {
		s := all[w.name].get(copyDir)
		if s == nil {
			continue
		}
		switch w.name {
		case "W1", "W3":
			add(w.name+": memory, MiB", float64(s.peak())/mib, 16)
		case "W2", "W5":
			add(w.name+": memory, MiB (32 and 300 bytes an entry)", float64(s.peak())/mib, 32+300*float64(w.entries())/mib)
		}
		if w.name != "W2" {
			continue
		}
		add("W2: allocations a file", s.allocs()/float64(w.files), 2)
		if !math.IsNaN(s.calls) {
			add("W2: system calls a file", s.calls, 19)
		}
	}
	times := func(load, base string, most float64) {
		if s, b := all[load].get(copyDir), all[base].get(copyDir); s != nil && b != nil {
			add(fmt.Sprintf("time of %s ÷ %s", load, base), took(s).Seconds()/took(b).Seconds(), most)
		}
	}
	times("W5", "W5/10", 11)
	times("W6", "W6 flat", 1.1) // as much as W5 may be off
	if m := all["W2"]; m != nil && len(m.hooks) > 0 {
		add(fmt.Sprintf("W2: time with hooks and progress unused ÷ compiled out, geometric mean of %d", len(m.hooks)), geometricMean(m.hooks), 1.01)
	}
	return list
}

func printBars(list []bar) (missed int) {
	if len(list) == 0 {
		return 0
	}
	fmt.Println("\n| bar | measured | at most | |\n|---|---|---|---|")
	for _, b := range list {
		verdict := "met"
		if b.measured > b.most {
			verdict = "**missed**"
			missed++
		}
		fmt.Printf("| %s | %.2f | %.2f | %s |\n", b.what, b.measured, b.most, verdict)
	}
	return missed
}
