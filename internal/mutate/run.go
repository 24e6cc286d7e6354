// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// suite is the test binaries, by the prefix that the list has before a test's name: "" for the package itself.
type suite struct {
	module   string
	binaries map[string]binary
	env      []string
}

type binary struct{ path, dir string }

// split tells a test's binary from its name there.
func (s *suite) split(test string) (prefix, name string) {
	if prefix, name, ok := strings.Cut(test, "."); ok && !strings.Contains(prefix, "/") && s.binaries[prefix] != (binary{}) {
		return prefix, name
	}
	return "", test
}

// result is what one run of a binary told.
type result struct {
	red     bool
	hang    bool
	ran     bool // a test ran and was not skipped
	failed  []string
	skipped []string
	took    time.Duration
	out     []byte
}

var (
	failLine = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	passLine = regexp.MustCompile(`(?m)^ *--- (?:PASS|FAIL): (\S+)`)
	skipLine = regexp.MustCompile(`(?m)^ *--- SKIP: (\S+)`)
)

// run runs tests of a binary with the check number out removed; 0 is none.
func (s *suite) run(prefix, pattern string, out int, timeout time.Duration, args, env []string) result {
	bin := s.binaries[prefix]
	ctx, cancel := context.WithTimeout(context.Background(), timeout+5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin.path, append([]string{
		"-test.v", "-test.failfast", "-test.count=1", "-test.timeout=" + timeout.String(), "-test.run=" + pattern,
	}, args...)...)
	cmd.Dir = filepath.Join(s.module, bin.dir)
	cmd.Env = append(append(os.Environ(), s.env...), "HOLDSTILL_MUTANT="+strconv.Itoa(out))
	cmd.Env = append(cmd.Env, env...)
	cmd.WaitDelay = time.Second
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	start := time.Now()
	err := cmd.Run()
	r := result{red: err != nil, took: time.Since(start), out: b.Bytes()}
	r.hang = r.red && (ctx.Err() != nil || bytes.Contains(r.out, []byte("panic: test timed out")))
	r.failed = names(failLine, r.out)
	r.skipped = names(skipLine, r.out)
	r.ran = r.red || len(names(passLine, r.out)) > 0
	return r
}

func names(re *regexp.Regexp, out []byte) (list []string) {
	for _, m := range re.FindAllSubmatch(out, -1) {
		list = append(list, string(m[1]))
	}
	return list
}

// exact is the pattern for one test, or for each of several.
func exact(tests ...string) string {
	patterns := make([]string, len(tests))
	for i, test := range tests {
		parts := strings.Split(test, "/")
		for j, part := range parts {
			parts[j] = "^" + regexp.QuoteMeta(part) + "$"
		}
		patterns[i] = strings.Join(parts, "/")
	}
	return strings.Join(patterns, "|")
}

// mounts keeps file systems mounted for all runs, which otherwise would each make their own.
type mounts struct {
	dir     string
	keepers []*exec.Cmd
	inputs  []io.Closer
}

// keepMounts mounts what this machine can.
func keepMounts(adversary, dir string) *mounts {
	m := &mounts{dir: dir}
	for _, kind := range []string{"ext4", "ext4-128", "xfs", "btrfs", "tmpfs", "ramfs", "overlay", "bindfs"} {
		cmd := exec.Command(adversary, "keep", dir, kind)
		in, err := cmd.StdinPipe()
		if err != nil {
			continue
		}
		out, err := cmd.StdoutPipe()
		if err != nil || cmd.Start() != nil {
			continue
		}
		line := make([]byte, 200)
		n, _ := out.Read(line)
		if answer := strings.TrimSpace(string(line[:n])); answer != "ready" {
			fmt.Printf("%s: %s\n", kind, answer)
		}
		m.keepers, m.inputs = append(m.keepers, cmd), append(m.inputs, in)
	}
	return m
}

func (m *mounts) end() {
	for i, cmd := range slices.Backward(m.keepers) {
		_ = m.inputs[i].Close() // that is what ends it
		_ = cmd.Wait()          // one that could not mount has said why
	}
}
