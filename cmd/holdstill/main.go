// SPDX-License-Identifier: Apache-2.0

// Holdstill copies files and trees that other programs may be changing, and proves what it copied.
//
// Run "holdstill help" for the verbs. It exits with 0 when the work is done (diff, verify: equal), 1 when it failed or
// found a difference, 2 when it was called wrongly, and 75 when the source changed or was busy and trying again can help.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/quote"
)

const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitAgain  = 75 // EX_TEMPFAIL of sysexits.h
)

func main() {
	// A line that is written over again is for a terminal; TERM=dumb is how an editor's shell says that it cannot.
	fi, err := os.Stderr.Stat()
	env := &environ{terminal: err == nil && fi.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"}
	ctx := watch(env)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, env)
	if stopped, ok := errors.AsType[*signalError](context.Cause(ctx)); ok && code != exitDone {
		dieOf(stopped.signal)
	}
	os.Exit(code)
}

// environ is what the process tells the verbs and hears from them.
type environ struct {
	terminal bool                   // stderr is one
	unclean  atomic.Pointer[string] // the directory in which stopping at once would leave something
}

// signalError is why the work was cancelled.
type signalError struct{ signal os.Signal }

func (e *signalError) Error() string        { return "stopped by signal: " + e.signal.String() }
func (e *signalError) Is(target error) bool { return target == context.Canceled }

// watch cancels the context at the first signal, so that the verb cleans up, and stops the process at the second.
func watch(env *environ) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	for _, sig := range deadly() {
		// nohup and a shell's background jobs ignore signals on purpose, and Notify would end that.
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	go func() {
		cancel(&signalError{<-signals})
		sig := <-signals
		say(os.Stderr, "holdstill: stopped before the clean-up ended")
		if parent := env.unclean.Load(); parent != nil {
			say(os.Stderr, "holdstill: an unfinished copy is left in %s; to remove it: holdstill sweep %[1]s", quote.Name(*parent))
		}
		dieOf(sig)
	}()
	return ctx
}

// verb is one row of the table: setup declares the flags and returns the work, which is given its operands.
type verb struct {
	name     string
	operands string
	min, max int // operands
	about    string
	more     string // of --help
	example  string
	setup    func(c *call) func(ctx context.Context, operands []string) error
}

// synopsis is how the verb is called.
func (v verb) synopsis() string {
	return strings.TrimSpace(v.name + " [flags] " + v.operands)
}

// errDifferent ends a verb whose answer, already printed, is "not equal".
var errDifferent = errors.New("different")

// usageError is a call that makes no sense, before anything was opened.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func run(ctx context.Context, args []string, stdout, stderr io.Writer, env *environ) int {
	if len(args) == 0 {
		say(stderr, "%s", verbsText())
		return exitUsage
	}
	name, args := args[0], args[1:]
	if name == "-h" || name == "-help" || name == "--help" {
		name = "help"
	}
	v, ok := find(name)
	if !ok {
		say(stderr, "holdstill: no such verb: %s\nrun \"holdstill help\" for the verbs", quote.Name(name))
		return exitUsage
	}
	c := newCall(v, stdout, stderr, env)
	work := v.setup(c)
	operands, err := c.parse(args)
	switch {
	case err != nil:
	case c.help:
		err = c.print("%s", c.helpText())
	default:
		err = work(ctx, operands)
		c.progress.erase()
	}
	return c.finish(err)
}

// finish prints err, if that was not done yet, and says how to exit.
func (c *call) finish(err error) int {
	if err == nil {
		return exitDone
	}
	if errors.Is(err, errDifferent) {
		return exitFailed
	}
	if usage, ok := errors.AsType[*usageError](err); ok {
		say(c.stderr, "holdstill %s: %s\nrun \"holdstill %[1]s --help\" for its flags", c.verb.name, quote.Text(usage.text))
		return exitUsage
	}
	c.printError(err)
	if snapshot.Retryable(err) {
		return exitAgain
	}
	return exitFailed
}

func find(name string) (verb, bool) {
	for _, v := range verbs() {
		if v.name == name {
			return v, true
		}
	}
	return verb{}, false
}

func verbs() []verb {
	return []verb{
		takeVerb(),
		scanVerb(),
		verifyVerb(),
		diffVerb(),
		privateVerb(),
		removeVerb(),
		sweepVerb(),
		versionVerb(),
		helpVerb(),
	}
}
