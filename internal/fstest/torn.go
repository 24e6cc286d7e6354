// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"encoding/binary"
	"fmt"
)

// word is the unit of torn content: generation in the upper half; in the lower half the number of the word, or in word 0 the
// size of the whole. Bytes of two generations, bytes at a wrong place and a missing tail all show.
const word = 8

// TornContent returns size bytes of generation gen; gen must be below 1<<32, size from 8 to 1<<32-1.
func TornContent(gen uint64, size int) []byte {
	b := make([]byte, size)
	TornFill(b, gen)
	return b
}

// TornFill makes b the content of generation gen.
func TornFill(b []byte, gen uint64) {
	for i := range len(b) / word {
		binary.LittleEndian.PutUint64(b[i*word:], tornWord(gen, i, len(b)))
	}
	if tail := len(b) % word; tail > 0 {
		var last [word]byte
		binary.LittleEndian.PutUint64(last[:], tornWord(gen, len(b)/word, len(b)))
		copy(b[len(b)-tail:], last[:])
	}
}

// TornGeneration returns the generation of b, or torn if b is not the whole content of one generation. Fewer than 8 bytes
// are torn.
func TornGeneration(b []byte) (gen uint64, torn bool) {
	if len(b) < word {
		return 0, true
	}
	gen = binary.LittleEndian.Uint64(b) >> 32
	for i := range len(b) / word {
		if binary.LittleEndian.Uint64(b[i*word:]) != tornWord(gen, i, len(b)) {
			return gen, true
		}
	}
	var last [word]byte
	binary.LittleEndian.PutUint64(last[:], tornWord(gen, len(b)/word, len(b)))
	tail := len(b) % word
	return gen, string(b[len(b)-tail:]) != string(last[:tail])
}

// PairOrder is the oracle of the adversaries pair: a is always written before b, so b is never ahead and never more than one
// behind.
func PairOrder(a, b []byte) error {
	x, tornA := TornGeneration(a)
	y, tornB := TornGeneration(b)
	switch {
	case tornA || tornB:
		return fmt.Errorf("torn: a %t, b %t", tornA, tornB)
	case y > x:
		return fmt.Errorf("b is ahead: a %d, b %d", x, y)
	case x > y+1:
		return fmt.Errorf("b is more than one behind: a %d, b %d", x, y)
	}
	return nil
}

func tornWord(gen uint64, i, size int) uint64 {
	if i == 0 {
		i = size
	}
	return gen<<32 | uint64(uint32(i))
}
