//go:build weakened && linux

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestWeakenedTake makes each attack of TestTakeChecks twice, as TestWeakened does.
func TestWeakenedTake(t *testing.T) {
	t.Parallel()
	for _, c := range takeChecks {
		t.Run(c.guards, func(t *testing.T) {
			t.Parallel()
			s, got, err := c.run(t, 0)
			assert.True(t, c.right(s, got, err), "with the check: had %v\ngot %v\nerror %v %s", s.states, got, err, s.wrong)
			s, got, err = c.run(t, c.check)
			assert.True(t, c.fooled(s, got, err), "without the check: had %v\ngot %v\nerror %v %s", s.states, got, err, s.wrong)
		})
	}
}
