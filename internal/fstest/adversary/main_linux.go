// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"holdstill.example/snapshot/internal/fstest"
)

// op attacks until turn says false; between two calls of turn everything is as the user of the files wants it.
type op struct {
	args, most int // most is zero if there are no more
	run        func(a *attack, args []string) error
}

var ops = map[string]op{
	"torn":       {args: 1, run: torn},
	"pair":       {args: 2, run: pair},
	"exchange":   {args: 2, run: exchange},
	"swaplink":   {args: 2, run: swapLink},
	"swapparent": {args: 2, run: swapLink},
	"two":        {args: 1, run: two},
	"noise":      {args: 1, run: noise},
	"grow":       {args: 1, run: grow},
	"churn":      {args: 1, run: churn},
	"renames":    {args: 1, run: renames},
	"recycle":    {args: 1, most: 2, run: recycle},
	"flicker":    {args: 2, run: flicker},
	"stall":      {args: 1, run: stall},
	"pending":    {args: 1, run: pending},
	"moveext":    {args: 1, run: moveExt},
}

// attack is the running op: its flags, its counters and its standard input.
type attack struct {
	how      string
	reopen   bool
	hide     bool
	size     int
	max      int64
	again    bool
	files    int
	kinds    string
	pauseMax time.Duration
	sideDir  string

	report  fstest.Report
	begun   bool
	undo    atomic.Pointer[func() error] // what must not outlive a process that is ended in the middle of a turn
	pending atomic.Int32                 // commands that turn has not taken; looked at in place of the channel, which costs more
	cmds    chan string
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "keep" {
		return keep(args[1:])
	}
	if len(args) == 0 || ops[args[0]].run == nil {
		return errors.New("usage: adversary OP [flags] ARGS")
	}
	op := ops[args[0]]
	a := &attack{cmds: make(chan string)}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.StringVar(&a.how, "how", "write", "how to write")
	flags.BoolVar(&a.reopen, "reopen", false, "open for each rewrite")
	flags.BoolVar(&a.hide, "hide", false, "make it look like hard links that come and go")
	flags.IntVar(&a.size, "size", 0, "bytes of a file")
	flags.Int64Var(&a.max, "max", 1<<30, "bytes to grow to")
	flags.BoolVar(&a.again, "again", false, "begin anew when grown up")
	flags.IntVar(&a.files, "files", 50, "number of files")
	flags.StringVar(&a.kinds, "ops", "link,chmod,xattr,read", "kinds of noise")
	flags.DurationVar(&a.pauseMax, "pause-max", 0, "longest wait between turns")
	flags.StringVar(&a.sideDir, "side", "", "directory for what the op needs beside its target")
	deadline := flags.Duration("deadline", 3*time.Hour, "end of the process, whatever it does")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if n := flags.NArg(); n < op.args || n > max(op.args, op.most) {
		return fmt.Errorf("%s: %d arguments, want %d", args[0], flags.NArg(), op.args)
	}
	time.AfterFunc(*deadline, func() { a.die("deadline") })
	go a.listen()
	go a.watchParent()
	err := op.run(a, flags.Args())
	if !a.begun && unavailable(err) {
		fmt.Println("skip:", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: after %d turns: %w", args[0], a.report.Turns, err)
	}
	return json.NewEncoder(os.Stdout).Encode(a.report)
}

func unavailable(err error) bool {
	for _, no := range []error{errors.ErrUnsupported, unix.EINVAL, unix.EPERM} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

func (a *attack) listen() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		a.pending.Add(1)
		a.cmds <- in.Text()
	}
	a.pending.Add(1)
	close(a.cmds)
}

// watchParent is for a parent that died while another process still holds the other end of standard input.
func (a *attack) watchParent() {
	parent := os.Getppid()
	for range time.Tick(200 * time.Millisecond) {
		if os.Getppid() != parent {
			a.die("parent is gone")
		}
	}
}

func (a *attack) die(why string) {
	fmt.Fprintln(os.Stderr, why)
	if undo := a.undo.Load(); undo != nil {
		_ = (*undo)()
	}
	os.Exit(3)
}

// turn begins a turn. It pauses if told to and returns false at the end. One turn comes before ready: what the file system does
// not have shows there, and nobody meets an op that has done nothing yet.
func (a *attack) turn() bool {
	if a.report.Turns > 0 {
		a.ready()
	}
	if a.pauseMax > 0 && a.begun {
		time.Sleep(rand.N(a.pauseMax + 1))
	}
	for paused := false; paused || a.pending.Load() > 0; {
		cmd, ok := <-a.cmds
		if !ok {
			return false
		}
		a.pending.Add(-1)
		paused = cmd == "pause"
		fmt.Println(cmd)
	}
	a.report.Turns++
	return true
}

func (a *attack) ready() {
	if !a.begun {
		a.begun = true
		fmt.Println("ready")
	}
}

// rest makes no more turns and waits for the end.
func (a *attack) rest() {
	a.ready()
	for cmd := range a.cmds {
		fmt.Println(cmd)
	}
}

// side returns a directory for things that must not lie beside target, and what removes it.
func (a *attack) side(target string) (dir string, remove func() error, err error) {
	parent := a.sideDir
	if parent == "" {
		parent = filepath.Dir(filepath.Dir(strings.TrimSuffix(target, "/")))
	}
	dir, err = os.MkdirTemp(parent, "adversary-*")
	return dir, func() error { return os.RemoveAll(dir) }, err
}
