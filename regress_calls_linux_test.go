// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// failingCall is an operation of which each call to the system fails once. It asserts that what it got is what there is.
type failingCall struct {
	opts   snapshot.Options
	lacks  snapshot.Fallback
	change func(t *testing.T, s site) // at the first join
	call   func(t *testing.T, s site, o *snapshot.Options) error
}

func failingCopy(t *testing.T, s site, o *snapshot.Options) error {
	report, err := snapshot.CopyDir(t.Context(), s.dst, s.src, o)
	if err == nil {
		assert.Equal(t, sealed(walkByHand(t, s.src)), entriesOf(t, report.Manifest))
		assert.Equal(t, walkByHand(t, s.dst), entriesOf(t, report.Manifest))
	}
	return err
}

func failingScan(t *testing.T, s site, o *snapshot.Options) error {
	report, err := snapshot.Scan(t.Context(), s.src, o)
	if err == nil {
		assert.Equal(t, walkByHand(t, s.src), entriesOf(t, report.Manifest))
	}
	return err
}

func failingCopyFile(t *testing.T, s site, o *snapshot.Options) error {
	proof, err := snapshot.CopyFile(t.Context(), s.dst, s.src+"/A/f", o)
	if err == nil {
		assert.Equal(t, digestOf(t, s.src+"/A/f"), proof.Entry.Digest)
		assert.Equal(t, proof.Entry.Digest, digestOf(t, s.dst))
	}
	return err
}

func failingReadFile(t *testing.T, s site, o *snapshot.Options) error {
	b, _, err := snapshot.ReadFile(t.Context(), s.src+"/A/f", o)
	if err == nil {
		want, err := os.ReadFile(s.src + "/A/f")
		assert.NoError(t, err)
		assert.Equal(t, want, b)
	}
	return err
}

// exchange replaces the directory A; a file in it has another content then.
func exchange(t *testing.T, s site) {
	s.move(t, "A", "away")
	assert.NoError(t, os.Rename(s.dir+"/next", s.src+"/A"))
}

// TestEveryCallFailsOnce: whatever the system answers, wherever, what was got is what there was, or there is an error that has
// the system's, or tells of a change. Then nothing is left but what it names, and nothing that is not ours was touched.
func TestEveryCallFailsOnce(t *testing.T) {
	t.Parallel()
	one := snapshot.Options{Workers: 1}
	for name, f := range map[string]failingCall{
		"CopyDir":                        {opts: one, call: failingCopy},
		"CopyDir, durable":               {opts: snapshot.Options{Workers: 1, Durable: true}, lacks: snapshot.NoRenameNoReplace, call: failingCopy},
		"CopyDir, of files":              {opts: snapshot.Options{Workers: 1, PerFile: true}, call: failingCopy},
		"CopyDir, of what is replaced":   {opts: one, change: exchange, call: failingCopy},
		"CopyDir, of what gets new":      {opts: one, change: func(t *testing.T, s site) { s.touch(t, "A/f"); s.touch(t, "") }, call: failingCopy},
		"Scan":                           {opts: one, call: failingScan},
		"CopyFile":                       {call: failingCopyFile},
		"CopyFile, by a staging":         {opts: snapshot.Options{Durable: true}, lacks: snapshot.NoNameless, call: failingCopyFile},
		"CopyFile, under a lease":        {opts: snapshot.Options{Require: snapshot.Quiescent}, call: failingCopyFile},
		"CopyFile, by a staging's links": {lacks: snapshot.NoNameless | snapshot.NoRenameNoReplace, call: failingCopyFile},
		"ReadFile":                       {call: failingReadFile},
		"Verify": {opts: one, call: func(t *testing.T, s site, o *snapshot.Options) error {
			return snapshot.Verify(t.Context(), s.src, manifestOf(t, walkByHand(t, s.src)...), o)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "", "A/f=@300KiB", "A/g=x", "l => A/g")
			fstest.Make(t, s.dir, "next/f=other", "next/g=y", "next/h=h", "out/mine=m")
			fstest.Settle(t, s.dir)
			all := []syscall.Errno{syscall.EIO, syscall.EMFILE, syscall.EACCES, syscall.ENOSPC, syscall.ESTALE, syscall.ENOENT}
			each := stressTries(t, 2, len(all), len(all))
			for k := 1; ; k++ {
				for i := range min(each, len(all)) {
					if !f.fails(t, s, k, all[(k+i)%len(all)]) {
						assert.Greater(t, k, 10)
						return
					}
				}
			}
		})
	}
}

// fails lets the kth call fail, and reports false if there are not as many.
func (f *failingCall) fails(t *testing.T, s site, k int, failure syscall.Errno) bool {
	calls, failed, finished := 0, "", false
	seam := snapshot.Seam{
		Lacks: f.lacks,
		At: func(call, name string) error {
			if calls++; calls == k {
				failed = call + " " + filepath.Base(name)
				return failure
			}
			return nil
		},
		Finished: func(open, _ int64) {
			finished = true
			assert.Zero(t, open, "open handles after %s at %s", failure, failed)
		},
	}
	if f.change != nil {
		seam.Phase = oncePhase("joined", func() { f.change(t, s) })
	}
	before := walkByHand(t, s.src)
	err := f.call(t, s, snapshot.WithSeam(&f.opts, seam))
	what := fmt.Sprintf("%s at call %d, %s: %v", failure, k, failed, err)
	assert.True(t, finished, what)
	if err != nil {
		// That a name that is there is not, or not any more, is a lie, and believed.
		assert.True(t, errors.Is(err, failure) || errors.Is(err, snapshot.ErrChanged) || failure == syscall.ENOENT, what)
		_, isPath := errors.AsType[*fs.PathError](err)
		_, isChange := errors.AsType[*snapshot.ChangeError](err)
		_, isLeft := errors.AsType[*snapshot.LeftoverError](err)
		assert.True(t, isPath || isChange || isLeft, what)
	}
	parent := filepath.Dir(s.dst)
	for _, left := range namesIn(t, parent) {
		left = filepath.Join(parent, left)
		switch {
		case left == parent+"/mine":
		case left == s.dst && (err == nil || errors.Is(err, snapshot.ErrLeftover)):
			require.NoError(t, removeCopy(left))
		default:
			if failure != syscall.ENOENT {
				assert.ErrorIs(t, err, snapshot.ErrLeftover, "%s is there after %s", left, what)
				assert.ErrorContains(t, err, left, what)
			}
			require.NoError(t, removeCopy(left))
		}
	}
	if _, err := os.Lstat(s.dir + "/away"); err == nil {
		require.NoError(t, os.Rename(s.dir+"/away", s.dir+"/next"))
	} else {
		assert.Equal(t, before, walkByHand(t, s.src), what)
	}
	b, err := os.ReadFile(parent + "/mine")
	assert.True(t, err == nil && string(b) == "m", what)
	return calls >= k
}
