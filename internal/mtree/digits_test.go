// SPDX-License-Identifier: Apache-2.0

package mtree_test

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestFields: each field has its name, and each digit of a mode and of an escape bounds of its own.
func TestFields(t *testing.T) {
	t.Parallel()
	for line, good := range map[string]bool{
		`./\173 type=dir mode=0755`:  true,
		`./\0?3 type=dir mode=0755`:  false, // the same byte, if '?' were 15
		`./\473 type=dir mode=0755`:  false,
		`./\00: type=dir mode=0755`:  false,
		`./#173 type=dir mode=0755`:  false,
		`./d type=dir mode=0777`:     true,
		`./d type=dir mode=0855`:     false,
		`./d type=dir mode=0785`:     false,
		`./d type=dir mode=0758`:     false,
		`./d type=dir mode=1755`:     false,
		`./d type=dir mode=07/5`:     false,
		`./d type=dir mode=075`:      false,
		`./d type=dir mode=0755 a=b`: false,

		`./f type=file mode=0644 size=5 sha256digest=` + hexSum: true,
		`./f type=file mode=06445 sha256digest=` + hexSum:       false,
		`./l type=link mode=0777 link=tgt`:                      true,
		`./l type=link mode=0777tgt`:                            false,
	} {
		_, err := read(strings.NewReader("#mtree v2.0\n. type=dir mode=0755\n" + line + "\n"))
		assert.Equal(t, good, err == nil, "%s: %v", line, err)
		if !good {
			assert.ErrorIs(t, err, fs.ErrInvalid, line)
		}
	}
}

// TestEmptyLineAtTheEndOfTheBuffer: what lies behind a line is not part of it.
func TestEmptyLineAtTheEndOfTheBuffer(t *testing.T) {
	t.Parallel()
	const buffer = 16 << 10
	head, tail := "#mtree v2.0\n. type=dir mode=0755\n./", " type=dir mode=0755\n\n"
	text := head + strings.Repeat("x", buffer-len(head)-len(tail)) + tail
	_, err := read(strings.NewReader(text + "./y type=dir mode=0755\n"))
	assert.ErrorIs(t, err, fs.ErrInvalid)
}
