// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"runtime"
	"sync"

	"holdstill.example/snapshot/internal/fsys"
)

// batch is how many entries of a directory one task takes: enough that the queue costs nothing, few enough that all workers
// have work at the end of a tree.
const batch = 16

// task is a piece of work on one directory: listing it, or the entries from lo to hi.
type task struct {
	dir    *dir
	lo, hi int        // 0, 0: the directory itself
	last   bool       // work with it even if it is young
	kind   *fsys.Kind // of a young entry
}

// node is the entry that a task of one entry is for.
func (k *task) node() *node {
	if k.hi > 0 {
		return &k.dir.kids[k.lo]
	}
	return k.dir.node()
}

// pool runs tasks on all workers, the newest first: that walks a tree depth first, so that few directories are open.
type pool struct {
	work  func(*worker, task) error
	idle  func() ([]task, error) // called when no task is left or at work: more, or none
	mu    sync.Mutex
	cond  *sync.Cond
	tasks []task
	busy  int
	err   error
	panic any
	exit  bool // a caller's function called runtime.Goexit, as a failing test does
	ended bool
}

// run works until nothing is left, an error, or a panic or Goexit of a caller's function, which it raises again in this
// goroutine.
func (t *tree) run(first []task, work func(*worker, task) error, idle func() ([]task, error)) error {
	p := &pool{work: work, idle: idle, tasks: first}
	p.cond = sync.NewCond(&p.mu)
	t.queue = p
	var wg sync.WaitGroup
	for _, w := range t.workers {
		wg.Go(func() { p.serve(w) })
	}
	wg.Wait()
	t.queue = nil
	switch {
	case p.panic != nil:
		panic(p.panic)
	case p.exit:
		runtime.Goexit()
	}
	return p.err
}

func (p *pool) push(tasks ...task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tasks = append(p.tasks, tasks...)
	p.cond.Broadcast()
}

func (p *pool) serve(w *worker) {
	for {
		next, ok := p.next()
		if !ok {
			return
		}
		p.finish(p.guarded(w, next))
	}
}

// guarded runs a task and keeps a panic of it, such as one of Options.Skip, from ending the process before the caller's
// goroutine has cleaned up.
func (p *pool) guarded(w *worker, next task) (err error) {
	returned := false
	defer func() {
		r := recover()
		if returned {
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.panic, p.exit, p.ended = r, r == nil, true
		if r == nil {
			p.busy-- // this goroutine does not come back to finish
			p.cond.Broadcast()
		}
	}()
	err = p.work(w, next)
	returned = true
	return err
}

func (p *pool) next() (task, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch n := len(p.tasks); {
		case p.ended:
			return task{}, false
		case n > 0:
			next := p.tasks[n-1]
			p.tasks = p.tasks[:n-1]
			p.busy++
			return next, true
		case p.busy > 0:
			p.cond.Wait()
		default:
			p.refill()
		}
	}
}

// refill asks for more when all else is done. It holds the lock: nobody has anything to do meanwhile. Waiting calls
// Options.Progress, which may panic.
func (p *pool) refill() {
	returned := false
	defer func() {
		if r := recover(); !returned {
			p.panic, p.exit, p.ended = r, r == nil, true
			p.cond.Broadcast()
		}
	}()
	if p.idle != nil {
		p.tasks, p.err = p.idle()
	}
	p.ended = len(p.tasks) == 0 || p.err != nil
	returned = true
	p.cond.Broadcast()
}

func (p *pool) finish(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	if err != nil && p.err == nil {
		p.err, p.ended = err, true
	}
	p.cond.Broadcast()
}

// each calls f for every index below n on all workers.
func (t *tree) each(n int, f func(w *worker, i int) error) error {
	tasks := make([]task, 0, (n+batch-1)/batch)
	for lo := 0; lo < n; lo += batch {
		tasks = append(tasks, task{lo: lo, hi: min(lo+batch, n)})
	}
	if len(tasks) == 0 {
		return nil
	}
	return t.run(tasks, func(w *worker, k task) error {
		for i := k.lo; i < k.hi; i++ {
			if err := f(w, i); err != nil {
				return err
			}
		}
		return nil
	}, nil)
}
