//go:build linux

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// lies are those in force.
type lies struct {
	inodes, nodes, types  bool
	now, future, frozen   bool
	direct, short, cached bool
	size                  int64
	slow                  time.Duration
	list                  string
	hangs                 string
	failing               string // the call that fails
	failAt, calls         int    // the how manieth, and how many there were
	failure               syscall.Errno
	fired                 bool
	looks                 uint64 // every one of them may show another number
	generation            byte   // of the contents
	changedAt             time.Time
	released              chan struct{} // closed when what hangs may go on
}

// state guards the lies, which the kernel's threads meet.
type state struct {
	mu  sync.Mutex
	now lies
}

// set replaces the lies and lets go of what hangs.
func (s *state) set(l lies) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now.released != nil {
		close(s.now.released)
	}
	l.released = make(chan struct{})
	l.looks, l.generation, l.changedAt = s.now.looks, s.now.generation, s.now.changedAt
	s.now = l
}

// enter is called by every call of the kernel: it may fail it, or keep it.
func (s *state) enter(op string) (lies, fuse.Status) {
	s.mu.Lock()
	l := &s.now
	l.looks++
	if l.failing == op {
		if l.calls++; l.calls == l.failAt {
			l.fired = true
			defer s.mu.Unlock()
			return *l, fuse.Status(l.failure)
		}
	}
	now := *l
	s.mu.Unlock()
	if now.hangs == op {
		<-now.released
	}
	if op == "read" && now.slow > 0 {
		time.Sleep(now.slow)
	}
	return now, fuse.OK
}

// command obeys one line and returns the answer.
func (fs *fileSystem) command(line string) (answer string, err error) {
	verb, args, _ := strings.Cut(line, " ")
	if verb == "honest" {
		fs.lies.set(lies{})
		return line, nil
	}
	s := &fs.lies
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.now
	switch verb {
	case "inodes":
		l.inodes = true
	case "nodes":
		l.nodes = true
	case "type":
		l.types = true
	case "now":
		l.now = true
	case "future":
		l.future = true
	case "frozen":
		l.frozen = true
	case "direct":
		l.direct = true
	case "short":
		l.short = true
	case "cached":
		l.cached = true
	case "size":
		l.size, err = strconv.ParseInt(args, 10, 64)
	case "slow":
		l.slow, err = time.ParseDuration(args)
	case "hang":
		l.hangs = args
	case "list":
		l.list = args
	case "fail":
		var number int
		l.calls, l.fired = 0, false
		_, err = fmt.Sscan(args, &l.failing, &l.failAt, &number)
		l.failure = syscall.Errno(number)
	case "fired":
		return fmt.Sprint("fired ", l.fired), nil
	case "change":
		l.generation++
		if !l.frozen {
			l.changedAt = l.changedAt.Add(time.Second)
		}
	default:
		err = errors.New("no such lie")
	}
	return line, err
}
