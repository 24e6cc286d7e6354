// SPDX-License-Identifier: Apache-2.0

package fstest_test

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot/internal/fstest"
)

// Not parallel: it counts what the whole process holds.
func TestLeaks(t *testing.T) {
	leaks := func(f func(t fstest.TB)) error {
		return fstest.Run(t.Context(), "leaks", io.Discard, func(t fstest.TB) {
			fstest.Leaks(t)
			f(t)
		})
	}

	assert.NoError(t, leaks(func(t fstest.TB) {
		f, err := os.Open("/")
		require.NoError(t, err)
		require.NoError(t, f.Close())
		done := make(chan struct{})
		go close(done)
	}))

	var f *os.File
	err := leaks(func(t fstest.TB) {
		var err error
		f, err = os.Open("/")
		require.NoError(t, err)
	})
	assert.ErrorContains(t, err, "open handles before and after")
	require.NoError(t, f.Close())

	release := make(chan struct{})
	err = leaks(func(fstest.TB) { go func() { <-release }() })
	assert.ErrorContains(t, err, "is left")
	close(release)
}
