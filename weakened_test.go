//go:build weakened && linux

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"holdstill.example/snapshot"
)

// TestWeakened makes each attack of TestRaceChecks twice: on the whole engine, and on one without the check that it names,
// which must be fooled. A check that no attack needs would be in nobody's way if it were lost.
func TestWeakened(t *testing.T) {
	for check := snapshot.CheckType; check <= snapshot.CheckPublished; check++ {
		assert.True(t, slices.ContainsFunc(raceChecks, func(c raceCheck) bool { return c.check == check }), "an attack for check %d", check)
	}
	for _, c := range raceChecks {
		t.Run(c.guards, func(t *testing.T) {
			t.Parallel()
			s, got, err := c.run(t, 0)
			assert.True(t, c.right(s, got, err), "with the check: had %v\ngot %v\nerror %v %s", s.states, got, err, s.wrong)
			s, got, err = c.run(t, c.check)
			assert.True(t, c.fooled(s, got, err), "without the check: had %v\ngot %v\nerror %v %s", s.states, got, err, s.wrong)
		})
	}
}

// fooled reports a result that nobody may get: bytes that never were, or a thing done that must not be.
func (c *raceCheck) fooled(s *raceSite, got map[string]string, err error) bool {
	return s.wrong != "" || err == nil && (c.want != nil || s.had(got) < 0)
}
