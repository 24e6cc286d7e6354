//go:build linux || darwin || freebsd || netbsd || openbsd

// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	tree "holdstill.example/snapshot/internal/fstest"
)

func TestTakeQuick(t *testing.T) {
	t.Parallel()
	dir := tree.TempDir(t)
	tree.Make(t, dir, "app/index.js=x", "app/node_modules/dep => ../../lib", "lib/a=1", "lib/sub/b=2", "tool=#!")
	require.NoError(t, os.Mkdir(dir+"/parent", 0o700))
	s, err := snapshot.Take(t.Context(), []snapshot.Root{{Path: dir + "/app"}, {Path: dir + "/lib"}, {Path: dir + "/tool"}},
		&snapshot.TakeOptions{Parent: dir + "/parent", Aliases: []snapshot.Alias{{Name: "app/x/lib", Target: "lib"}}})
	require.NoError(t, err)
	s.Manifest().WriteTo(os.Stdout)
	r, _ := s.Report().MarshalJSON()
	t.Log(string(r))
	p, ok := s.Path("app")
	assert.True(t, ok)
	b, err := os.ReadFile(filepath.Join(p, "node_modules/dep/sub/b"))
	assert.NoError(t, err)
	assert.Equal(t, "2", string(b))
	assert.NoError(t, fstest.TestFS(s.FS(), "app/index.js"))
	assert.NoError(t, s.Verify(t.Context()))
	o, err := snapshot.OpenSnapshot(t.Context(), s.Dir(), s.Manifest().Digest())
	require.NoError(t, err)
	assert.NoError(t, o.Verify(t.Context()))
	f, err := o.Open(t.Context(), "lib/sub/b")
	require.NoError(t, err)
	f.Close()
	require.NoError(t, o.Close())
	require.NoError(t, s.Detach())
	removed, err := snapshot.Sweep(t.Context(), dir+"/parent")
	assert.NoError(t, err)
	assert.Empty(t, removed)
	assert.ErrorIs(t, snapshot.RemoveSnapshot(t.Context(), s.Dir()), snapshot.ErrBusy)
	require.NoError(t, s.Close())
	require.NoError(t, snapshot.RemoveSnapshot(t.Context(), s.Dir()))
	e, _ := os.ReadDir(dir + "/parent")
	assert.Empty(t, e)
	_, err = fs.ReadFile(s.FS(), "lib/a")
	assert.ErrorIs(t, err, fs.ErrClosed)
}
