// SPDX-License-Identifier: Apache-2.0

package fstest_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot/internal/fstest"
)

func TestMake(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		line string
		name string
		want string
	}{
		{"d/", "d", "dir 0755"},
		{"d/ 0500", "d", "dir 0500"},
		{"d/ 01777", "d", "dir 1777"},
		{"f", "f", `file 0644 ""`},
		{"f=", "f", `file 0644 ""`},
		{"f=hello", "f", `file 0644 "hello"`},
		{"f=a => b", "f", `file 0644 "a => b"`},
		{"f=two\nlines", "f", `file 0644 "two\nlines"`},
		{"f 0755=x", "f", `file 0755 "x"`},
		{"f 04755=x", "f", `file 4755 "x"`},
		{"f=@8B", "f", `file 0644 "\b\x00\x00\x00\x01\x00\x00\x00"`},
		{"f=~2TiB", "f", "file 0644 2199023255552 bytes"},
		{"f=@you", "f", `file 0644 "@you"`},
		{"a => ../b", "a", "link ../b"},
		{`a => "x\ny"`, "a", "link x\ny"},
		{"x/y/z=1", "x/y/z", `file 0644 "1"`},
		{"a b=1", "a b", `file 0644 "1"`},
		{"a\xff=1", "a\xff", `file 0644 "1"`},
		{`"a\xfe = \n"=1`, "a\xfe = \n", `file 0644 "1"`},
		{`"a => b" => c`, "a => b", "link c"},
		{"p|", "p", "fifo 0644"},
		{"s@", "s", "socket 0644"},
	} {
		t.Run(tt.line, func(t *testing.T) {
			t.Parallel()
			dir := fstest.TempDir(t)
			fstest.Make(t, dir, tt.line)
			assert.Equal(t, tt.want, fstest.Read(t, dir)[tt.name])
		})
	}
}

func TestMakeHardLink(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "d/ 0500", "d/f=x", "h <= d/f")
	f, err := os.Stat(filepath.Join(dir, "d/f"))
	require.NoError(t, err)
	h, err := os.Stat(filepath.Join(dir, "h"))
	require.NoError(t, err)
	assert.True(t, os.SameFile(f, h))
}

func TestMakeDeep(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	deep := strings.Repeat(strings.Repeat("n", 200)+"/", 300) + "f"
	fstest.Make(t, dir, deep+"=x")
	tree := fstest.Read(t, dir)
	assert.Len(t, tree, 302)
	assert.Equal(t, `file 0644 "x"`, tree[deep])
}

func TestEqual(t *testing.T) {
	t.Parallel()
	base := []string{"d/f=x", "big=@1KiB", "a => d"}
	for _, tt := range []struct {
		name  string
		other []string
		want  bool
	}{
		{"the same", base, true},
		{"modes", []string{"d/ 0500", "d/f 0400=x", "big=@1KiB", "a => d"}, true},
		{"content", []string{"d/f=y", "big=@1KiB", "a => d"}, false},
		{"size", []string{"d/f=x", "big=@2KiB", "a => d"}, false},
		{"link", []string{"d/f=x", "big=@1KiB", "a => e"}, false},
		{"type", []string{"d/f=x", "big=@1KiB", "a/"}, false},
		{"more", append([]string{"e/"}, base...), false},
		{"fewer", base[1:], false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want, got := fstest.TempDir(t), fstest.TempDir(t)
			fstest.Make(t, want, base...)
			fstest.Make(t, got, tt.other...)
			err := fstest.Run(t.Context(), "equal", io.Discard, func(t fstest.TB) { fstest.Equal(t, want, got) })
			assert.Equal(t, tt.want, err == nil, "%v", err)
		})
	}
}

func TestNothing(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "a", "b/")
	fstest.Nothing(t, dir, "b", "a")
	for _, names := range [][]string{nil, {"a"}, {"a", "b", "c"}} {
		err := fstest.Run(t.Context(), "nothing", io.Discard, func(t fstest.TB) { fstest.Nothing(t, dir, names...) })
		assert.Error(t, err, "Nothing(%q)", names)
	}
}

func TestTempDir(t *testing.T) {
	t.Parallel()
	var dir string
	err := fstest.Run(t.Context(), "sealed", io.Discard, func(t fstest.TB) {
		dir = fstest.TempDir(t)
		fstest.Make(t, dir, "d/ 0500", "d/e/ 0500", "d/e/f 0400=x", "closed/ 0000")
	})
	require.NoError(t, err)
	assert.NoDirExists(t, dir)
}
