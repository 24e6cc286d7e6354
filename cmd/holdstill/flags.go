// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/quote"
)

// call is one run of a verb: its flags, and where its answer goes.
type call struct {
	verb           verb
	flags          *flag.FlagSet
	stdout, stderr io.Writer
	env            *environ
	progress       *progress

	help  bool
	json  bool
	quiet bool

	options  snapshot.Options
	patterns []string
}

func newCall(v verb, stdout, stderr io.Writer, env *environ) *call {
	c := &call{verb: v, stdout: stdout, stderr: stderr, env: env, progress: &progress{}}
	c.flags = flag.NewFlagSet(v.name, flag.ContinueOnError)
	c.flags.SetOutput(io.Discard)
	c.flags.Usage = func() {}
	return c
}

func (c *call) jsonFlag() {
	c.flags.BoolVar(&c.json, "json", false, "print one JSON object; an error is one on stderr")
}

func (c *call) quietFlag() {
	c.flags.BoolVar(&c.quiet, "quiet", false, "print no summary, note or progress")
}

// readFlags declares the flags of every verb that reads a source.
func (c *call) readFlags() {
	o, fs := &c.options, c.flags
	c.jsonFlag()
	c.quietFlag()
	fs.Func("exclude", "leave out what matches the .dockerignore `PATTERN`; may be given again", func(s string) error {
		c.patterns = append(c.patterns, s)
		return nil
	})
	fs.IntVar(&o.Attempts, "attempts", 0, "give up after `N` tries (default 3)")
	fs.Func("require", "refuse less evidence than `LEVEL`: identified, stable, buffered, coherent or quiescent", func(s string) error {
		return o.Require.UnmarshalText([]byte(s))
	})
	fs.BoolVar(&o.NeverLock, "never-lock", false, "take no lease and no share lock: evidence may be less")
	fs.BoolVar(&o.SkipSpecial, "skip-special", false, "leave out FIFOs, sockets and devices instead of failing")
	fs.BoolVar(&o.CrossMounts, "cross-mounts", false, "enter mount points instead of failing")
	fs.BoolVar(&o.SingleLink, "single-link", false, "refuse a file with another hard link and another owner than the root's")
	fs.IntVar(&o.Workers, "workers", 0, "read with `N` workers (default one a processor, at most 8)")
	fs.BoolVar(&o.Recall, "recall", false, "fetch files whose content is in a cloud instead of failing")
	fs.DurationVar(&o.Stall, "stall", 0, "wait no longer than `D` for a writer that stalls inside a write call (default 5s)")
	sizeVar(fs, &o.Limits.MaxFileBytes, "max-file-bytes", "refuse a file of more than `SIZE`, such as 16MiB or 2G; -1 is no bound (default 1T)")
	sizeVar(fs, &o.Limits.MaxBytes, "max-bytes", "refuse files and paths of more than `SIZE` together; -1 is no bound (default 16T)")
	sizeVar(fs, &o.Limits.MaxEntries, "max-entries", "refuse more than `N` entries; -1 is no bound (default 10000000)")
}

// treeFlags declares the flags of the verbs that make a manifest of a source.
func (c *call) treeFlags() {
	o, fs := &c.options, c.flags
	fs.Func("links", "`POLICY` for symbolic links: inside, inside-or-skip, verbatim or reject (default inside)", func(s string) error {
		switch s {
		case "inside":
			o.Links = snapshot.LinksInside
		case "inside-or-skip":
			o.Links = snapshot.LinksInsideOrSkip
		case "verbatim":
			o.Links = snapshot.LinksVerbatim
		case "reject":
			o.Links = snapshot.LinksReject
		default:
			return errors.New("no such policy")
		}
		return nil
	})
	fs.BoolVar(&o.PerFile, "per-file", false, "prove each file for itself, not the tree at one instant")
}

// parse reads the flags, which may stand before and behind operands up to a "--", and returns the operands.
func (c *call) parse(args []string) (operands []string, err error) {
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" {
			operands = append(operands, args[1:]...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			operands, args = append(operands, arg), args[1:]
			continue
		}
		// One flag at a time: the package flag stops at the first operand, and does not tell a "--" that ended the flags
		// from one that was a value.
		n := min(1+c.values(arg), len(args))
		if err := c.flags.Parse(args[:n]); errors.Is(err, flag.ErrHelp) {
			c.help = true
			return nil, nil
		} else if err != nil {
			return nil, &usageError{err.Error()}
		}
		args = args[n:]
	}
	if len(operands) < c.verb.min {
		return nil, &usageError{"operand missing: holdstill " + c.verb.synopsis()}
	}
	if len(operands) > c.verb.max {
		return nil, &usageError{"one operand too many: " + quote.Name(operands[c.verb.max])}
	}
	for _, operand := range operands {
		if operand == "" {
			return nil, &usageError{"an operand is empty"}
		}
	}
	if len(c.patterns) > 0 {
		if c.options.Exclude, err = snapshot.NewFilter(c.patterns...); err != nil {
			return nil, &usageError{"--exclude: " + err.Error()}
		}
	}
	if c.env.terminal && !c.quiet {
		c.progress = &progress{w: c.stderr, start: time.Now()}
		c.options.Progress = c.progress.show
	}
	return operands, nil
}

// values returns how many arguments behind the flag arg belong to it.
func (c *call) values(arg string) int {
	name, _, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	f := c.flags.Lookup(name)
	if f == nil || joined {
		return 0
	}
	if b, ok := f.Value.(interface{ IsBoolFlag() bool }); ok && b.IsBoolFlag() {
		return 0
	}
	return 1
}

func sizeVar(fs *flag.FlagSet, p *int64, name, usage string) {
	fs.Func(name, usage, func(s string) (err error) {
		*p, err = parseSize(s)
		return err
	})
}

// parseSize reads a count of bytes: digits alone, with K, M, G or T (powers of 1024), or those with iB; -1 is no bound.
func parseSize(s string) (int64, error) {
	if s == "-1" {
		return -1, nil
	}
	digits, shift := strings.TrimSuffix(s, "iB"), 0
	if digits != "" {
		if i := strings.IndexByte("KMGT", digits[len(digits)-1]); i >= 0 {
			digits, shift = digits[:len(digits)-1], 10*(i+1)
		}
	}
	if strings.HasSuffix(s, "iB") && shift == 0 {
		digits = "" // iB alone is no unit
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	switch {
	case errors.Is(err, strconv.ErrRange) || n > math.MaxInt64>>shift:
		return 0, errors.New("too large")
	case err != nil:
		return 0, errors.New("not a size: want a number, with K, M, G or T for powers of 1024, or -1 for no bound")
	case n == 0:
		return 0, errors.New("zero is not a bound: leave the flag out for the default, or give -1 for no bound")
	}
	return int64(n) << shift, nil
}

// formatSize is for people: three digits and a unit.
func formatSize(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d bytes", n)
	}
	value, unit := float64(n)/1024, 0
	for value >= 1023.95 && unit < 5 {
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTPE"[unit])
}
