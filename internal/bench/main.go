//go:build linux

// SPDX-License-Identifier: Apache-2.0

// Bench measures holdstill beside what people copy with today, and prints the tables that the README quotes. It is a module of
// its own, so that nobody who uses the package gets the dependencies of its peers.
//
//	cd internal/bench && go run . -w W1,W2,W3 -rounds 7
//
// As root it makes a file system in an image file and mounts it where only it sees it: a plain disk is noisy after deletions.
// Every candidate is a process of its own and is timed as a whole. In one round all of them run once, in an order that rotates,
// and what is quoted is the ratio to cp -a of the same round: the machine's own drift falls out. The source is in the page cache;
// before each run the copy of the one before is removed and the file system synced, outside the timing. Every copy is
// compared with the source by the numbers of files, directories and bytes.
//
// Memory is the peak of the process itself (VmHWM); of a command only a bound is known, since the kernel counts in what this
// program held when it started it. System calls are those that take a name or a descriptor.
//
//	W1        one file of 2 GiB
//	W2        30,000 files, log-normal between 0.2 and 64 KiB, in 4,000 directories down to depth 10
//	W3        1,000 files of 1 MiB
//	W4        W2 read again, nothing having changed
//	W5        1,000,000 files, half of them empty, the others of up to 512 bytes; and a tenth of that
//	W6        30,000 small files in a chain of 300 directories; and in 300 directories side by side
//
// Contents are random and incompressible, and the same in every run.
//
// With -check the exit status is 1 if a bar is missed; the bars are for two idle processors, -scale 1 and 7 rounds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"syscall"
)

type config struct {
	loads  []string
	kinds  []string
	rounds int
	scale  float64
	only   *regexp.Regexp
	dir    string
	calls  bool
	hooks  bool
	check  bool
}

func main() {
	if len(os.Args) == 5 && os.Args[1] == "child" {
		exit(child(os.Args[2], os.Args[3], os.Args[4]))
	}
	cfg, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	exit(run(ctx, cfg))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func parse(args []string) (*config, error) {
	var loads, kinds, only string
	cfg := &config{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&loads, "w", "W1,W2,W3,W4,W5,W6", "`workloads`, separated by commas")
	flags.StringVar(&kinds, "fs", "ext4", "file `systems`: ext4, xfs, btrfs; or none, a directory in -dir, which needs no root")
	flags.StringVar(&only, "only", "", "`regexp` of the candidates; cp -a always runs")
	flags.StringVar(&cfg.dir, "dir", os.TempDir(), "`directory` for the image")
	flags.IntVar(&cfg.rounds, "rounds", 7, "`rounds`")
	flags.Float64Var(&cfg.scale, "scale", 1, "`factor` of all workloads")
	flags.BoolVar(&cfg.calls, "calls", false, "count system calls, once a candidate, with strace")
	flags.BoolVar(&cfg.hooks, "hooks", false, "W2 against a build without hooks and progress, in at least 10 rounds")
	flags.BoolVar(&cfg.check, "check", false, "exit 1 if a bar is missed")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 || cfg.rounds < 1 || cfg.scale <= 0 || cfg.scale > 1 {
		return nil, errors.New("-rounds is at least 1, -scale above 0 and at most 1, and there are no arguments")
	}
	var err error
	if cfg.only, err = regexp.Compile(only); err != nil {
		return nil, err
	}
	cfg.loads, cfg.kinds = strings.Split(loads, ","), strings.Split(kinds, ",")
	return cfg, nil
}

func run(ctx context.Context, cfg *config) error {
	todo, err := workloads(cfg.loads, cfg.scale)
	if err != nil {
		return err
	}
	describe(cfg)
	missed := 0
	for _, kind := range cfg.kinds {
		n, err := runOn(ctx, cfg, kind, todo)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		missed += n
	}
	if cfg.check && missed > 0 {
		return fmt.Errorf("%d bars missed", missed)
	}
	return nil
}

// describe prints what the figures depend on.
func describe(cfg *config) {
	var name syscall.Utsname
	_ = syscall.Uname(&name)
	var release strings.Builder
	for _, c := range name.Release {
		if c == 0 {
			break
		}
		release.WriteByte(byte(c))
	}
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("Linux %s, %s, %s, %d processors, load average at the start %.4s", &release, runtime.GOARCH, runtime.Version(), runtime.NumCPU(), load)
	fmt.Printf("; rounds: %d", cfg.rounds)
	if cfg.scale != 1 {
		fmt.Printf("; a load of %v of the whole, for which the bars are not meant", cfg.scale)
	}
	fmt.Println()
}

func runOn(ctx context.Context, cfg *config, kind string, todo []*workload) (missed int, err error) {
	d, err := newDisk(cfg.dir, kind, todo)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.release()) }()
	all := results{}
	for _, w := range todo {
		m := &measurement{config: cfg, disk: d, load: w}
		if all[w.name], err = m.measure(ctx); err != nil {
			return 0, fmt.Errorf("%s: %w", w.name, err)
		}
		m.print(all[w.name])
	}
	if kind == "xfs" || kind == "btrfs" { // there cp -a makes reflinks, which no reading or hashing can keep up with
		return 0, nil
	}
	return printBars(bars(todo, all)), nil
}
