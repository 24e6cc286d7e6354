//go:build weakened && linux

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"holdstill.example/snapshot"
)

// TestWeakenedEdits: random edits alone, without an idea of what to attack, find that a check is missing. The checks that are
// not here fail for so few orders of calls and edits that only an attack made for them, as in TestWeakened, finds them in time.
func TestWeakenedEdits(t *testing.T) {
	for name, check := range map[string]snapshot.Check{
		"collect": snapshot.CheckCollect, "suspects": snapshot.CheckSuspects,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed, _ := firstSeed(t)
			dir := raceDir(t)
			for tries := uint64(0); tries < 5000; tries += 50 {
				for _, o := range editBatch(t, dir, seed+tries, 50, check) {
					if o.wrong() {
						t.Logf("noticed in %d tries", tries+50)
						return
					}
				}
			}
			assert.Fail(t, "nobody notices that the check is missing")
		})
	}
}
