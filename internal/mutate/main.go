// SPDX-License-Identifier: Apache-2.0

// Mutate removes one safety check of the engine at a time and shows that the tests notice:
//
//	go run ./internal/mutate
//
// Every branch that refuses, by a sentinel of errors.go or a struct that carries one, is found in the syntax tree and has to
// be in testdata/mutations, beside what was listed there by hand: comparisons, flags, looks that are taken once more. Behind
// each stand the tests that notice, or why it cannot be taken out. The list is checked both ways: a check that is not in it,
// and a line that fits nothing any more, are errors.
//
// The sources are instrumented once, in an overlay, and compiled once; the environment says which check is out. With -record
// the tests are found: those that come by a check are run without it, the fastest first.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

const listName = "testdata/mutations"

// packages hold the checks, tested the binaries of the tests.
var (
	packages = []string{".", "./internal/mtree", "./internal/fsys"}
	tested   = map[string]string{"": ".", "mtree": "internal/mtree"}
)

func main() {
	var c command
	flag.BoolVar(&c.record, "record", false, "find the tests for checks that have none, and write the list")
	flag.StringVar(&c.only, "only", "", "checks that match this `regexp` only")
	flag.StringVar(&c.tests, "tests", "", "with -record, tests that match this `regexp` only")
	flag.DurationVar(&c.patience, "patience", suiteTimeout, "with -record, how long a test may take, and the search for a check's test")
	flag.StringVar(&c.traces, "traces", "", "with -record, a `file` that keeps what each test comes by, for the next time")
	flag.IntVar(&c.jobs, "jobs", runtime.GOMAXPROCS(0), "runs at a time")
	flag.Parse()
	if err := c.run(); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

type command struct {
	record      bool
	only, tests string
	traces      string
	patience    time.Duration
	jobs        int

	list  *list
	sites []*site // all, by number
	suite *suite
	print sync.Mutex
}

func (c *command) run() error {
	if os.Geteuid() != 0 {
		return errors.New("some checks need tests that mount file systems: run it as root")
	}
	start := time.Now()
	module, err := os.Getwd()
	if err != nil {
		return err
	}
	pkgs, err := load(module, packages...)
	if err != nil {
		return err
	}
	if c.list, err = readList(listName); err != nil {
		return err
	}
	var stale error
	c.sites, stale = match(pkgs, c.list)
	switch {
	case stale != nil && !c.record:
		return stale
	case stale != nil:
		fmt.Println(stale) // the new list has all that was found, and nothing that fits no more
	}
	only, err := regexp.Compile(c.only)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // a temporary directory
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}
	end, err := c.build(module, work, pkgs)
	if err != nil {
		return err
	}
	defer end()
	var chosen []*site
	for _, s := range c.sites {
		if only.MatchString(s.key()) {
			chosen = append(chosen, s)
		}
	}
	if c.record {
		return c.findTests(work, chosen)
	}
	err = c.check(chosen)
	fmt.Printf("%d s\n", int(time.Since(start).Seconds()))
	return err
}

// match numbers what was found and what is listed, and reports lines that fit nothing and refusals that have no line.
func match(pkgs []*pkg, l *list) ([]*site, error) {
	sites, known := map[string]*site{}, map[string]bool{}
	var bad []error
	for _, p := range pkgs {
		for key, s := range p.found {
			sites[key] = s
			if l.entries[key] == nil {
				bad = append(bad, fmt.Errorf("%s:%d: not in %s: %s", s.file, s.line, listName, key))
			}
		}
		for key, s := range p.all {
			known[key] = true
			if l.entries[key] != nil {
				sites[key] = s
			}
		}
	}
	for key := range l.entries {
		if !known[key] {
			bad = append(bad, fmt.Errorf("%s: nothing in the source fits any more: %s", listName, key))
			delete(l.entries, key)
		}
	}
	slices.SortFunc(bad, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	list := sorted(sites)
	for i, s := range list {
		s.n = i + 1
	}
	return list, errors.Join(bad...)
}

// build compiles the tests and mounts file systems for them.
func (c *command) build(module, work string, pkgs []*pkg) (end func(), err error) {
	overlay, err := instrument(module, work, pkgs, c.sites)
	if err != nil {
		return nil, err
	}
	c.suite = &suite{module: module, binaries: map[string]binary{}}
	for prefix, dir := range tested {
		b := binary{filepath.Join(work, "test"+prefix), dir}
		if err := compile(module, overlay, dir, b.path); err != nil {
			return nil, fmt.Errorf("the instrumented tests of %s: %w", dir, err)
		}
		c.suite.binaries[prefix] = b
	}
	adversary := filepath.Join(work, "adversary")
	cmd := exec.Command("go", "build", "-o", adversary, "./internal/fstest/adversary")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	dir := filepath.Join(work, "mounts")
	m := keepMounts(adversary, dir)
	c.suite.env = []string{"HOLDSTILL_ADVERSARY=" + adversary, "HOLDSTILL_TEST_DIR=" + dir}
	return m.end, nil
}

// check removes each check that has tests.
func (c *command) check(chosen []*site) error {
	if err := c.control(chosen); err != nil {
		return err
	}
	var mu sync.Mutex
	var bad []error
	removed, kept := 0, 0
	parallel(c.jobs, chosen, func(s *site) {
		e := c.list.entries[s.key()]
		if e.why != "" {
			c.say(s, "kept: "+e.why)
			mu.Lock()
			defer mu.Unlock()
			kept++
			return
		}
		caught, err := c.remove(s, e)
		mu.Lock()
		defer mu.Unlock()
		removed++
		if err != nil {
			caught = "NOT NOTICED: " + err.Error()
			bad = append(bad, fmt.Errorf("%s:%d: %s %s: %w", s.file, s.line, s.op, s.text, err))
		}
		c.say(s, caught)
	})
	fmt.Printf("%d checks: %d removed and noticed, %d removed and not noticed, %d kept for a reason; ", len(chosen), removed-len(bad), len(bad), kept)
	return errors.Join(bad...)
}

func (c *command) say(s *site, what string) {
	c.print.Lock()
	defer c.print.Unlock()
	fmt.Printf("%s:%d: %s %s\n\t%s\n", s.file, s.line, s.op, s.text, what)
}

// control: with every check in its place the same tests are green.
func (c *command) control(chosen []*site) error {
	wanted := map[string]map[string]bool{}
	for _, s := range chosen {
		for _, test := range c.list.entries[s.key()].tests {
			prefix, name := c.suite.split(test)
			if wanted[prefix] == nil {
				wanted[prefix] = map[string]bool{}
			}
			wanted[prefix][name] = true
		}
	}
	for prefix, tests := range wanted {
		var list []string
		for test := range tests {
			list = append(list, test)
		}
		r := c.suite.run(prefix, exact(list...), 0, 5*time.Minute, nil, nil)
		if r.red {
			return fmt.Errorf("with every check in its place these fail: %s\n%s", strings.Join(r.failed, " "), r.out)
		}
		for _, test := range r.skipped {
			if tests[test] {
				fmt.Printf("skipped: %s\n", test)
			}
		}
	}
	return nil
}

const (
	listedTimeout = 30 * time.Second
	suiteTimeout  = 3 * time.Minute
)

// remove returns the test that noticed that a check is gone: a listed one, or else any.
func (c *command) remove(s *site, e *entry) (caught string, err error) {
	for _, test := range e.tests {
		prefix, name := c.suite.split(test)
		r := c.suite.run(prefix, exact(name), s.n, listedTimeout, nil, nil)
		switch {
		case !r.ran && len(r.skipped) == 0:
			return "", fmt.Errorf("there is no test %s", test)
		case r.hang:
			if c.suite.run(prefix, exact(name), 0, listedTimeout, nil, nil).red {
				return "", fmt.Errorf("%s hangs, or fails, with every check in its place, too", test)
			}
			return test + " (it hangs)", nil
		case r.red:
			return test, nil
		}
	}
	for prefix := range c.suite.binaries {
		r := c.suite.run(prefix, ".", s.n, suiteTimeout, nil, nil)
		switch {
		case r.hang:
			return "the suite (it hangs)", nil
		case r.red && len(r.failed) > 0:
			return "not by what is listed, but by " + deepest(r.failed), nil
		case r.red:
			return "the suite, which ends with a panic", nil
		}
	}
	return "", errors.New("no test notices that it is gone")
}

// deepest returns the most deeply nested of the tests that failed.
func deepest(failed []string) string {
	return slices.MaxFunc(failed, func(a, b string) int { return strings.Count(a, "/") - strings.Count(b, "/") })
}

// parallel calls f for everything in list, jobs at a time.
func parallel[T any](jobs int, list []T, f func(T)) {
	var wg sync.WaitGroup
	next := make(chan T)
	for range jobs {
		wg.Go(func() {
			for v := range next {
				f(v)
			}
		})
	}
	for _, v := range list {
		next <- v
	}
	close(next)
	wg.Wait()
}
