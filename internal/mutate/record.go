// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// candidate is a top-level test and which checks it came by.
type candidate struct {
	Prefix, Name string
	Took         time.Duration
	Met          map[string]bool // by key
}

func (k *candidate) test(name string) string {
	if k.Prefix == "" {
		return name
	}
	return k.Prefix + "." + name
}

// findTests looks for a test for each check that has neither one nor a reason, and writes the list after each.
func (c *command) findTests(work string, chosen []*site) error {
	var todo []*site
	for _, s := range chosen {
		if e := c.list.entries[s.key()]; e == nil || len(e.tests) == 0 && e.why == "" {
			todo = append(todo, s)
		}
	}
	if len(todo) == 0 {
		return os.WriteFile(listName, c.list.text(c.sites), 0o644)
	}
	candidates, err := c.candidates(work)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	parallel(c.jobs, todo, func(s *site) {
		test := c.findTest(s, candidates)
		mu.Lock()
		defer mu.Unlock()
		e := c.list.entries[s.key()]
		if e == nil {
			e = &entry{key: s.key()}
			c.list.entries[s.key()] = e
		}
		if test == "" {
			c.say(s, "NOT NOTICED")
		} else {
			e.tests = []string{test}
			c.say(s, test)
		}
		if e := os.WriteFile(listName, c.list.text(c.sites), 0o644); e != nil {
			err = e
		}
	})
	return err
}

// candidates are the tests, the fastest first.
func (c *command) candidates(work string) (all []*candidate, err error) {
	b, err := os.ReadFile(c.traces)
	if c.traces != "" && err == nil {
		return all, json.Unmarshal(b, &all)
	}
	filter, err := regexp.Compile(c.tests)
	if err != nil {
		return nil, err
	}
	for prefix := range c.suite.binaries {
		r := c.suite.run(prefix, ".", 0, time.Minute, []string{"-test.list=^(Test|Example|Fuzz)"}, nil)
		for name := range strings.Lines(string(r.out)) {
			name = strings.TrimSpace(name)
			if filter.MatchString(name) && !strings.HasPrefix(name, "TestStress") { // they find what they find by chance
				all = append(all, &candidate{Prefix: prefix, Name: name, Met: map[string]bool{}})
			}
		}
	}
	parallel(c.jobs, all, func(k *candidate) { c.trace(work, k) })
	slices.SortFunc(all, func(a, b *candidate) int { return int(a.Took - b.Took) })
	if c.traces == "" {
		return all, nil
	}
	if b, err = json.Marshal(all); err != nil {
		return nil, err
	}
	return all, os.WriteFile(c.traces, b, 0o644)
}

// trace runs a test for itself and notes which checks it comes by.
func (c *command) trace(work string, k *candidate) {
	file := filepath.Join(work, "trace."+k.Prefix+"."+k.Name)
	if err := os.WriteFile(file, nil, 0o666); err != nil || os.Chmod(file, 0o666) != nil { // also for tests that change the user
		return
	}
	r := c.suite.run(k.Prefix, exact(k.Name), 0, c.patience, nil, []string{"HOLDSTILL_MUTANT_TRACE=" + file})
	k.Took = r.took
	if r.red {
		fmt.Printf("%s fails with every check in its place\n", k.Name)
		return
	}
	b, _ := os.ReadFile(file)
	for line := range strings.Lines(string(b)) {
		if n, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && n <= len(c.sites) {
			k.Met[c.sites[n-1].key()] = true
		}
	}
}

// together is how many tests are tried in one run.
const together = 12

// findTest returns a test that notices that s is gone, or "".
func (c *command) findTest(s *site, candidates []*candidate) string {
	byBinary := map[string][]*candidate{}
	for _, k := range candidates {
		if k.Met[s.key()] {
			byBinary[k.Prefix] = append(byBinary[k.Prefix], k)
		}
	}
	start := time.Now()
	for prefix, list := range byBinary {
		for some := range slices.Chunk(list, together) {
			test := c.findAmong(s, prefix, some)
			if test != "" || time.Since(start) > c.patience {
				return test
			}
		}
	}
	return ""
}

func (c *command) findAmong(s *site, prefix string, some []*candidate) string {
	var tests []string
	timeout := listedTimeout
	for _, k := range some {
		tests = append(tests, k.Name)
		timeout += 2 * k.Took
	}
	r := c.suite.run(prefix, exact(tests...), s.n, timeout, nil, nil)
	if !r.red {
		return ""
	}
	if len(r.failed) > 0 {
		tests = append([]string{deepest(r.failed)}, append(r.failed, tests...)...)
	}
	for _, test := range tests {
		if again := c.suite.run(prefix, exact(test), s.n, listedTimeout, nil, nil); again.red && !again.hang { // a hang may be a slow machine: such a test is for a hand to enter
			return some[0].test(test)
		}
	}
	return ""
}
