// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"sync"
	"sync/atomic"
	"time"
)

// meter counts for Options.Progress. A nil meter counts nothing and costs a compare.
type meter struct {
	report    func(Progress)
	filesDone atomic.Int64
	bytesDone atomic.Int64
	round     atomic.Int64
	next      atomic.Int64 // nanoseconds since start of the next report
	start     time.Time
	mu        sync.Mutex // one report at a time
}

const meterInterval = 100 * time.Millisecond

func newMeter(report func(Progress)) *meter {
	if report == nil {
		return nil
	}
	return &meter{report: report, start: time.Now()}
}

func (m *meter) file(path place) {
	if m != nil {
		m.filesDone.Add(1)
		m.tell(path, "")
	}
}

func (m *meter) bytes(n int64, path place) {
	if m != nil {
		m.bytesDone.Add(n)
		m.tell(path, "")
	}
}

func (m *meter) newRound() {
	if m != nil {
		m.round.Add(1)
	}
}

func (m *meter) waiting(what string, path place) {
	if m != nil {
		m.tell(path, what)
	}
}

// tell reports at most once an interval, and lets others go on meanwhile.
func (m *meter) tell(path place, waiting string) {
	now := int64(time.Since(m.start))
	if now < m.next.Load() || !m.mu.TryLock() {
		return
	}
	defer m.mu.Unlock()
	m.next.Store(now + int64(meterInterval))
	m.report(m.progress(path.String(), waiting))
}

func (m *meter) progress(path, waiting string) Progress {
	return Progress{
		Files: m.filesDone.Load(), Bytes: m.bytesDone.Load(), Round: int(m.round.Load()),
		Path: path, Waiting: waiting,
	}
}

// end makes the last report.
func (m *meter) end() {
	if m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.report(m.progress("", ""))
	}
}
