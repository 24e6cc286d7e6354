// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// copyFileOf copies the file f of the source.
func copyFileOf(ctx context.Context, s site, o *snapshot.Options) error {
	return errorOf(snapshot.CopyFile(ctx, s.dst, filepath.Join(s.src, "f"), o))
}

type verb func(ctx context.Context, s site, o *snapshot.Options) error

// TestExchangedStagingDirectoryIsNotEmptied: in a parent that others may write, somebody gives our name to what is not ours.
// It is left alone, and not called left behind.
func TestExchangedStagingDirectoryIsNotEmptied(t *testing.T) {
	t.Parallel()
	for name, victim := range map[string][]string{
		"a directory":                      {"victim/d/precious=x"},
		"a private directory":              {"victim/precious=x", "victim/ 0700"},
		"a staging directory":              {"victim/lock=" + magic, "victim/tree/precious=x", "victim/ 0700"},
		"a private directory of another's": {"victim/precious=x", "victim/ 0700"},
		"a link to a directory":            {"home/precious=x", "victim => ../home"},
		"a file":                           {"victim=precious"},
	} {
		for _, at := range []string{"OpenDir", "Create", "LockShared", "RenameNoReplace", "Rmdir"} {
			for what, f := range map[string]verb{"CopyDir": copyOf, "CopyFile": copyFileOf} {
				t.Run(what+", "+name+", at "+at, func(t *testing.T) {
					t.Parallel()
					s := newSite(t, "", "f=x")
					fstest.Make(t, s.dir, victim...)
					if strings.HasSuffix(name, "another's") {
						fstest.NeedRoot(t)
						require.NoError(t, os.Chown(s.dir+"/victim", 65534, 65534))
					}
					precious := fstest.Contents(t, s.dir)
					staging, given := "", ""
					err := f(t.Context(), s, balanced(t, nil, snapshot.Seam{Lacks: snapshot.NoNameless, At: func(call, name string) error {
						if call == "Mkdir" && strings.HasPrefix(name, ".holdstill-") {
							staging = filepath.Join(filepath.Dir(s.dst), name)
						}
						named := call == "OpenDir" || call == "Rmdir"
						if call == at && given == "" && (!named || name == filepath.Base(staging)) {
							given = staging
							assert.NoError(t, os.Rename(staging, s.dir+"/moved"))
							assert.NoError(t, os.Rename(s.dir+"/victim", staging))
						}
						return nil
					}}))
					if at == "OpenDir" {
						assert.ErrorIs(t, err, snapshot.ErrUntrusted)
					}
					assert.NotErrorIs(t, err, snapshot.ErrLeftover)
					require.NoError(t, os.Rename(given, s.dir+"/victim"), "it is where it was put")
					now := fstest.Contents(t, s.dir)
					for path, entry := range precious {
						assert.Equal(t, entry, now[path], path)
					}
				})
			}
		}
	}
}

// TestWhatCannotGoKeepsNothingElse: all else that was made goes, and the next sweep takes the rest.
func TestWhatCannotGoKeepsNothingElse(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "d/a=x", "d/b=x", "d/c=x", "e/f=x", "g=x")
	stuck := ""
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := copyOf(ctx, s, balanced(t, nil, snapshot.Seam{
		Phase: oncePhase("joined", cancel),
		At: func(call, name string) error {
			if call == "Unlink" && stuck == "" {
				stuck = name
			}
			if call == "Unlink" && name == stuck {
				return syscall.EACCES
			}
			return nil
		},
	}))
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, err, syscall.EACCES)
	left, ok := errors.AsType[*snapshot.LeftoverError](err)
	require.True(t, ok, "%v", err)
	parent := filepath.Dir(s.dst)
	names := namesIn(t, parent)
	require.Len(t, names, 1)
	assert.Equal(t, []string{filepath.Join(parent, names[0])}, left.Paths)
	var files []string
	for path, entry := range fstest.Contents(t, left.Paths[0]) {
		if entry != "dir" {
			files = append(files, filepath.Base(path))
		}
	}
	assert.ElementsMatch(t, []string{"lock", stuck}, files)
	assert.Equal(t, names, sweep(t, parent))
}

// TestReserveHoldsForAllWorkers: what one was granted and has not written yet is not free for the others.
func TestReserveHoldsForAllWorkers(t *testing.T) {
	t.Parallel()
	small := fstest.Mount(t, "tmpfs-4m")
	s := newSite(t, "", "a/f=@1400KiB", "b/f=@1400KiB")
	s.dst = filepath.Join(small, "dst")
	decided := make(chan struct{})
	decide := sync.OnceFunc(func() { close(decided) })
	granted := 0
	var mu sync.Mutex
	// Whoever is granted room first waits until the other was granted his, too, or gave up.
	seam := snapshot.Seam{At: func(call, name string) error {
		mu.Lock()
		if call == "Allocate" {
			granted++
		}
		second := call == "Allocate" && granted == 2 || call == "Unlink" && name == "f"
		mu.Unlock()
		if second {
			decide()
		}
		if call == "Allocate" {
			<-decided
		}
		return nil
	}}
	_, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 2, Limits: snapshot.Limits{ReserveBytes: 1800 << 10}}, seam)
	limit, ok := errors.AsType[*snapshot.LimitError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, "ReserveBytes", limit.Field)
	assert.Less(t, limit.Got, limit.Limit)
}

// TestCloneNeedsNoRoom: it shares the blocks of the source.
func TestCloneNeedsNoRoom(t *testing.T) {
	t.Parallel()
	s := newSite(t, "btrfs", "f=@8MiB")
	var st syscall.Statfs_t
	require.NoError(t, syscall.Statfs(s.dir, &st))
	opts := &snapshot.Options{Limits: snapshot.Limits{ReserveBytes: int64(st.Bavail)*int64(st.Bsize) - 4<<20}}
	report, err := copyTree(t, s.dst, s.src, opts)
	s.copied(t, report, err)
	assert.Equal(t, report.Bytes, report.Cloned)
	_, err = copyOne(t, s.dst+"f", s.src+"/f", opts, snapshot.Seam{})
	assert.NoError(t, err)
	_, err = copyTreeWith(t.Context(), t, s.dst+"2", s.src, opts, snapshot.Seam{Lacks: snapshot.NoClone})
	assert.ErrorIs(t, err, snapshot.ErrLimit)
}

// TestClonedCountsOnce: not in each round in which the file was cloned.
func TestClonedCountsOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, "btrfs", "f=@2MiB", "g=@1MiB")
	joined := 0
	report, err := copyTreeWith(t.Context(), t, s.dst, s.src, nil, snapshot.Seam{Phase: func(phase string) {
		if phase != "joined" {
			return
		}
		switch joined++; joined {
		case 1:
			s.put(t, "f", strings.Repeat("other", 400_000))
		case 2:
			assert.NoError(t, os.Remove(s.src+"/g"))
		}
	}})
	s.copied(t, report, err)
	assert.Equal(t, 3, report.Rounds)
	assert.Equal(t, []int64{2_000_000, 2_000_000}, []int64{report.Bytes, report.Cloned})
}

// TestLimitComesBeforeRoom: a file that is too large is refused for that, and nothing is allocated for it.
func TestLimitComesBeforeRoom(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "f=@2MiB")
	for what, f := range map[string]verb{"CopyDir": copyOf, "CopyFile": copyFileOf} {
		for _, reserve := range []int64{-1, 1 << 60} {
			err := f(t.Context(), s, balanced(t, &snapshot.Options{Limits: snapshot.Limits{MaxFileBytes: 1 << 20, ReserveBytes: reserve}},
				snapshot.Seam{At: func(call, _ string) error {
					assert.NotContains(t, []string{"Allocate", "Clone", "Lease", "Read"}, call, what)
					return nil
				}}))
			limit, ok := errors.AsType[*snapshot.LimitError](err)
			require.True(t, ok, "%s: %v", what, err)
			assert.Equal(t, "MaxFileBytes", limit.Field, what)
			fstest.Nothing(t, filepath.Dir(s.dst))
		}
	}
}

// TestRemoteFileIsWrittenBackFirst: a server may refuse at the end what it took in the writes. Then nothing is published yet.
func TestRemoteFileIsWrittenBackFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t, "bindfs", "f=hello")
	_, err := copyOne(t, s.dst, s.src+"/f", nil, snapshot.Seam{At: func(call, _ string) error {
		if call == "Sync" {
			return syscall.EDQUOT
		}
		return nil
	}})
	assert.ErrorIs(t, err, syscall.EDQUOT)
	fstest.Nothing(t, filepath.Dir(s.dst))
}

// TestFixOfATrustError: the command that an error names mends what it complains of, whatever the name of the directory.
func TestFixOfATrustError(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, dir string){
		"writable by others": func(t *testing.T, dir string) { require.NoError(t, os.Chmod(dir, 0o777)) },
		"writable by a group": func(t *testing.T, dir string) {
			require.NoError(t, os.Chmod(dir, 0o775))
		},
		"of another user": func(t *testing.T, dir string) {
			fstest.NeedRoot(t)
			require.NoError(t, os.Chown(dir, 65534, 65534))
		},
		"of another user and writable": func(t *testing.T, dir string) {
			fstest.NeedRoot(t)
			require.NoError(t, errors.Join(os.Chown(dir, 65534, 65534), os.Chmod(dir, 0o777)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(fstest.TempDir(t), "it's; touch $HOME-\"x\" &")
			fstest.Make(t, dir, stagingName("a")+"/ 0700")
			change(t, dir)
			_, err := snapshot.Sweep(t.Context(), dir)
			trust, ok := errors.AsType[*snapshot.TrustError](err)
			require.True(t, ok, "%v", err)
			out, err := exec.CommandContext(t.Context(), "sh", "-c", trust.Fix).CombinedOutput()
			require.NoError(t, err, "%s: %s", trust.Fix, out)
			_, err = snapshot.Sweep(t.Context(), dir)
			assert.NoError(t, err, "after %s", trust.Fix)
			fstest.Nothing(t, filepath.Dir(dir), filepath.Base(dir))
		})
	}
}

// TestFixOfATrustErrorRunsNothingElse: also a name that no shell can be given in printable text.
func TestFixOfATrustErrorRunsNothingElse(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"$(touch evil)\n", "`touch evil`\x01", "a\n'$(touch evil)'"} {
		parent := fstest.TempDir(t)
		dir := filepath.Join(parent, name)
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, os.Chmod(dir, 0o777))
		_, err := snapshot.Sweep(t.Context(), dir)
		trust, ok := errors.AsType[*snapshot.TrustError](err)
		require.True(t, ok, "%v", err)
		cmd := exec.CommandContext(t.Context(), "sh", "-c", trust.Fix)
		cmd.Dir = parent
		_ = cmd.Run() // it need not work
		fstest.Nothing(t, parent, name)
	}
}

// TestSourceMayChangeOnceProven: nothing of the source is asked after that but what links lead to.
func TestSourceMayChangeOnceProven(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, s site){
		"a directory is renamed":     func(t *testing.T, s site) { s.move(t, "d", "away") },
		"a directory becomes a link": func(t *testing.T, s site) { s.move(t, "d", "away"); fstest.Make(t, s.src, "d => e") },
		"a file is written":          func(t *testing.T, s site) { s.put(t, "d/f", "other") },
		"a name is new":              func(t *testing.T, s site) { s.put(t, "d/new", "n") },
		"the root is renamed":        func(t *testing.T, s site) { s.move(t, "", "away") },
		"the root is another":        func(t *testing.T, s site) { s.move(t, "", "away"); fstest.Make(t, s.dir, "src/x=y") },
		"everything in it is replaced": func(t *testing.T, s site) {
			assert.NoError(t, os.RemoveAll(s.src+"/d"))
			fstest.Make(t, s.src, "d=file")
		},
	} {
		s := newSite(t, "", "d/f=one", "d/l => ../e/g", "e/g=two", "l => d/f", "d/e/f/g/h=deep")
		want := fstest.Contents(t, s.src)
		report, err := copyTreeWith(t.Context(), t, s.dst, s.src, nil, snapshot.Seam{Phase: oncePhase("proven", func() { change(t, s) })})
		if assert.NoError(t, err, name) {
			assert.Equal(t, want, fstest.Contents(t, s.dst), name)
			assert.Equal(t, 1, report.Rounds, name)
		}
	}
}

// TestInheritedSetgid: a directory made in a setgid one gets that bit from the system, and PreserveMode takes it away again.
func TestInheritedSetgid(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "closed/f=x", "closed/ 0700", "open/f=x")
	require.NoError(t, os.Chmod(filepath.Dir(s.dst), fs.ModeSetgid|0o755))
	_, err := copyTree(t, s.dst, s.src, &snapshot.Options{PreserveMode: true})
	require.NoError(t, err)
	assert.Equal(t, fstest.Read(t, s.src), fstest.Read(t, s.dst))
	for name, want := range map[string]fs.FileMode{"": 0o755, "closed": 0o700, "open": 0o755} {
		fi, err := os.Stat(filepath.Join(s.dst, name))
		require.NoError(t, err)
		assert.Equal(t, fs.ModeDir|want, fi.Mode(), "%q", name)
	}
}

// TestFailureInTheCopyIsNoChange: a disk that fails when what drifted is taken out of the copy does not get better by
// copying everything anew.
func TestFailureInTheCopyIsNoChange(t *testing.T) {
	t.Parallel()
	s := newSite(t, "", "A/f=one")
	roots := 0
	failed := false
	_, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 1}, snapshot.Seam{
		Phase: oncePhase("joined", func() {
			s.move(t, "A", "away")
			fstest.Make(t, s.src, "A/f=other")
		}),
		At: func(call, name string) error {
			if call == "OpenRoot" && name == s.src {
				roots++
			}
			if call == "Unlink" && !failed {
				failed = true
				return syscall.EIO
			}
			return nil
		},
	})
	assert.ErrorIs(t, err, syscall.EIO)
	assert.NotErrorIs(t, err, snapshot.ErrChanged)
	assert.NotErrorIs(t, err, snapshot.ErrLeftover)
	assert.Equal(t, 1, roots, "it began anew")
}
