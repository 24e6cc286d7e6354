// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
)

// Leaks asserts at the end of t that no descriptor and no goroutine is left that was not there at the call. Call it after the
// set-up and before what is tested. It counts the whole process, so it is not for tests that run in parallel with others.
// Where the system does not list descriptors only goroutines are compared.
func Leaks(t TB) {
	t.Helper()
	handles, stacks := Handles(), goroutines()
	t.Cleanup(func() {
		for id, stack := range lateGoroutines(stacks) {
			t.Errorf("goroutine %s is left:\n%s", id, stack)
		}
		assert.Equal(t, handles, Handles(), "open handles before and after")
	})
}

// patience bounds the wait for goroutines that are on their way out; a test that passes is done in microseconds.
const patience = 2 * time.Second

func lateGoroutines(before map[string]string) map[string]string {
	for start := time.Now(); ; runtime.Gosched() {
		after := goroutines()
		for id := range before {
			delete(after, id)
		}
		if len(after) == 0 || time.Since(start) > patience {
			return after
		}
	}
}

var goroutineID = regexp.MustCompile(`^goroutine (\d+) `)

// goroutines returns the stack of each goroutine by its id, without those that os/signal starts once for good.
func goroutines() map[string]string {
	buf := make([]byte, 1<<16)
	n := runtime.Stack(buf, true)
	for n == len(buf) {
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	stacks := map[string]string{}
	for stack := range strings.SplitSeq(string(buf[:n]), "\n\n") {
		m := goroutineID.FindStringSubmatch(stack)
		if m != nil && !strings.Contains(stack, "os/signal.") && !strings.Contains(stack, "runtime.ensureSigM") {
			stacks[m[1]] = stack
		}
	}
	return stacks
}
