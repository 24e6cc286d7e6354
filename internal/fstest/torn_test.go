// SPDX-License-Identifier: Apache-2.0

package fstest_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"holdstill.example/snapshot/internal/fstest"
)

func TestTornGeneration(t *testing.T) {
	t.Parallel()
	for _, size := range []int{8, 9, 15, 16, 17, 100, 4096} {
		older, newer := fstest.TornContent(0x00ff, size), fstest.TornContent(0x0100, size)
		gen, torn := fstest.TornGeneration(newer)
		assert.False(t, torn, "size %d", size)
		assert.Equal(t, uint64(0x0100), gen)
		for at := range size - 8 {
			mixed := slices.Concat(newer[:at+8], older[at+8:])
			_, torn := fstest.TornGeneration(mixed)
			assert.Equal(t, !bytes.Equal(mixed, newer), torn, "size %d, mixed at %d", size, at+8)
		}
		_, torn = fstest.TornGeneration(newer[:size-1])
		assert.True(t, torn, "size %d, cut", size)
		_, torn = fstest.TornGeneration(append(newer, 0))
		assert.True(t, torn, "size %d, longer", size)
	}
}

func TestPairOrder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b uint64
		ok   bool
	}{{5, 5, true}, {6, 5, true}, {5, 6, false}, {7, 5, false}} {
		err := fstest.PairOrder(fstest.TornContent(tt.a, 8), fstest.TornContent(tt.b, 8))
		assert.Equal(t, tt.ok, err == nil, "PairOrder(%d, %d) = %v", tt.a, tt.b, err)
	}
	assert.Error(t, fstest.PairOrder(nil, fstest.TornContent(1, 8)), "torn")
}
