// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

// TestCloneIsWhatIsHashed: the digest is that of the bytes that are stored, whichever they are. A byte that is changed in the
// clone itself shows which file was hashed; a source that is rewritten meanwhile is a change.
func TestCloneIsWhatIsHashed(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"xfs", "btrfs"} {
		for what, call := range map[string]func(s site, o *snapshot.Options) (recorded, stored snapshot.Digest, err error){
			"CopyFile": func(s site, o *snapshot.Options) (recorded, stored snapshot.Digest, err error) {
				proof, err := snapshot.CopyFile(t.Context(), s.dst, s.src+"/f", o)
				if err == nil {
					stored = digestOf(t, s.dst)
				}
				return proof.Entry.Digest, stored, err
			},
			"CopyDir": func(s site, o *snapshot.Options) (recorded, stored snapshot.Digest, err error) {
				report, err := snapshot.CopyDir(t.Context(), s.dst, s.src, o)
				if err != nil {
					return recorded, stored, err
				}
				e, err := report.Manifest.Lookup("f")
				return e.Digest, digestOf(t, s.dst+"/f"), err
			},
		} {
			t.Run(kind+", "+what, func(t *testing.T) {
				t.Parallel()
				for _, changes := range []string{"the clone", "the source"} {
					s := newSite(t, kind, "f=@2MiB")
					cloned, changed := false, false
					recorded, stored, err := call(s, balanced(t, &snapshot.Options{Workers: 1, Attempts: 1}, snapshot.Seam{At: func(call, _ string) error {
						switch {
						case call == "Clone":
							cloned = true
						case strings.HasPrefix(call, "Read") && cloned && !changed:
							changed = true
							if changes == "the source" {
								s.put(t, "f", strings.Repeat("another ", 2<<20/8))
							} else {
								changeNameless(t, s.dir)
							}
						}
						return nil
					}}))
					require.True(t, changed, "nothing was cloned: %v", err)
					if changes == "the source" {
						assert.ErrorIs(t, err, snapshot.ErrChanged, "it is not known whether the clone is of before")
						continue
					}
					require.NoError(t, err)
					assert.Equal(t, stored, recorded)
					assert.NotEqual(t, digestOf(t, s.src+"/f"), recorded, "the source was hashed")
				}
			})
		}
	}
}

// changeNameless changes the first byte of the file without a name that this process has open in dir.
func changeNameless(t *testing.T, dir string) {
	fds, err := os.ReadDir("/proc/self/fd")
	assert.NoError(t, err)
	for _, fd := range fds {
		name := "/proc/self/fd/" + fd.Name()
		if target, err := os.Readlink(name); err != nil || !strings.HasPrefix(target, dir) || !strings.HasSuffix(target, " (deleted)") {
			continue
		}
		fi, err := os.Stat(name)
		if !assert.NoError(t, err) || !assert.NoError(t, os.Chmod(name, 0o600)) { // which no ordinary user may write otherwise
			return
		}
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		assert.NoError(t, os.Chmod(name, fi.Mode()))
		if !assert.NoError(t, err) {
			return
		}
		_, err = f.WriteAt([]byte{0xff}, 0)
		assert.NoError(t, errors.Join(err, f.Close()))
		return
	}
	assert.Fail(t, "no file without a name", "in %s", dir)
}

// TestCloneThatFails: whatever a file system answers before the first byte, the file is copied without it.
func TestCloneThatFails(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"xfs", "btrfs"} {
		s := newSite(t, kind, "f=@2MiB", "hole=~2MiB")
		for i, failure := range []error{unix.EINVAL, unix.EOPNOTSUPP, unix.EXDEV, unix.ETXTBSY} {
			s.dst = fmt.Sprintf("%s/out/%d", s.dir, i)
			clones := 0
			report, err := copyTreeWith(t.Context(), t, s.dst, s.src, &snapshot.Options{Workers: 1}, snapshot.Seam{At: func(call, _ string) error {
				if call == "Clone" {
					clones++
					return failure
				}
				return nil
			}})
			s.copied(t, report, err)
			assert.Equal(t, 2, clones, "%s: %v", kind, failure)
			assert.Zero(t, report.Cloned, "%s: %v", kind, failure)
			assert.Equal(t, int64(4<<20), report.Bytes)
			assert.LessOrEqual(t, blocksOf(t, s.dst+"/hole"), int64(8), "a hole stays one")
		}
	}
}

// TestWriterDoesNotWaitForALargeFile: who opens for writing what is read under a lease is in at once, however much is left.
func TestWriterDoesNotWaitForALargeFile(t *testing.T) {
	t.Parallel()
	s := newSite(t, "ext4", "f=~4GiB")
	opened := make(chan time.Duration, 1)
	leased, began := false, false
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Only what is read the second time is read under the lease.
	_, err := snapshot.Scan(ctx, s.src, balanced(t, &snapshot.Options{Workers: 1, Require: snapshot.Quiescent, Attempts: 1}, snapshot.Seam{At: func(call, _ string) error {
		switch call {
		case "Lease":
			leased = true
		case "Read":
			if leased && !began {
				began = true
				go func() {
					start := time.Now()
					f, err := os.OpenFile(s.src+"/f", os.O_WRONLY, 0)
					waited := time.Since(start)
					assert.NoError(t, err)
					assert.NoError(t, f.Close())
					opened <- waited
				}()
			}
		}
		return nil
	}}))
	require.True(t, began, "%v", err)
	assert.Less(t, <-opened, time.Second, "the writer waited")
	change, ok := errors.AsType[*snapshot.ChangeError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, snapshot.WriterArrived, change.Reason)
	assert.Equal(t, s.src+"/f", change.Path)
	assert.True(t, snapshot.Retryable(err))
}

// TestMemoryIsBounded: neither the largest file nor the longest manifest is ever held in memory, in a process of its own.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	const variable, entries, file = "HOLDSTILL_TEST_MEMORY", 100_000, 128 << 20
	if dir := os.Getenv(variable); dir != "" {
		peak := func(what string, most int64, f func()) {
			before := residentPeak(t)
			f()
			if grown := residentPeak(t) - before; grown > most {
				assert.Fail(t, "memory", "%s: %d MiB", what, grown>>20)
			}
		}
		opts := &snapshot.Options{Limits: snapshot.Limits{ReserveBytes: -1}}
		peak("CopyFile", 32<<20, func() {
			_, err := snapshot.CopyFile(t.Context(), dir+"/f", dir+"/src/f", opts)
			require.NoError(t, err)
		})
		peak("CopyDir", 32<<20, func() {
			_, err := snapshot.CopyDir(t.Context(), dir+"/d", dir+"/src", opts)
			require.NoError(t, err)
		})
		peak("OpenManifest and Diff", 8<<20, func() {
			m, err := snapshot.OpenManifest(dir + "/m")
			require.NoError(t, err)
			defer m.Close()
			require.Equal(t, entries+1, m.Len())
			require.Empty(t, changesOf(t, m, m))
			_, err = m.Lookup(fmt.Sprintf("%06d", entries-1))
			require.NoError(t, err)
		})
		return
	}
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, fmt.Sprintf("src/f=~%dB", file))
	m, err := os.Create(dir + "/m")
	require.NoError(t, err)
	w := bufio.NewWriter(m)
	fmt.Fprint(w, "#mtree v2.0\n. type=dir mode=0755\n")
	for i := range entries {
		fmt.Fprintf(w, "./%06d type=file mode=0644 size=1 sha256digest=%s\n", i, strings.Repeat("1", 64))
	}
	require.NoError(t, errors.Join(w.Flush(), m.Close()))
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestMemoryIsBounded$", "-test.count=1")
	cmd.Env = append(os.Environ(), variable+"="+dir)
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
	fi, err := os.Stat(dir + "/d/f")
	require.NoError(t, err)
	assert.Equal(t, int64(file), fi.Size())
}

// residentPeak returns how much memory this process ever had.
func residentPeak(t *testing.T) int64 {
	b, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(b), "VmHWM:")
	require.True(t, ok)
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	require.NoError(t, err)
	return kib << 10
}

// TestAttributesStayBehind: what a source carries beside its bytes and bits, such as a mark of quarantine or a capability, does
// not come along, by whichever way the bytes come.
func TestAttributesStayBehind(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", "xfs", "btrfs"} {
		t.Run("on "+kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, kind, "f=@2MiB", "d/g=x")
			attributes := map[string]string{"user.mark": "quarantine"}
			if os.Geteuid() == 0 {
				attributes["trusted.mark"] = "x"
				attributes["security.capability"] = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" // cap_net_bind_service+ep
			}
			for name, value := range attributes {
				for _, path := range []string{"/f", "/d"} {
					if path == "/d" && name == "security.capability" {
						continue
					}
					err := unix.Setxattr(s.src+path, name, []byte(value), 0)
					if errors.Is(err, unix.EOPNOTSUPP) {
						t.Skipf("no extended attributes here: %s: %v", name, err)
					}
					require.NoError(t, err, name)
				}
			}
			fstest.Settle(t, s.src)
			for _, keep := range []bool{false, true} {
				opts := &snapshot.Options{PreserveMode: keep}
				dst := fmt.Sprintf("%s-%v", s.dst, keep)
				_, err := copyTree(t, dst, s.src, opts)
				require.NoError(t, err)
				_, err = copyOne(t, dst+"f", s.src+"/f", opts, snapshot.Seam{})
				require.NoError(t, err)
				for _, path := range []string{dst, dst + "/f", dst + "/d", dst + "/d/g", dst + "f"} {
					for name := range attributes {
						_, err := unix.Lgetxattr(path, name, make([]byte, 64))
						assert.ErrorIs(t, err, unix.ENODATA, "%s of %s", name, path)
					}
				}
			}
		})
	}
}

// TestPseudoFileSystems: of every file system here of which the sizes are inventions, no file is read.
func TestPseudoFileSystems(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	looked := []string{}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		kind := fields[len(fields)-3]
		switch kind {
		case "proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "configfs", "fusectl", "binfmt_misc", "pstore", "selinuxfs", "efivarfs":
		default:
			continue
		}
		file := ""
		_ = filepath.WalkDir(fields[4], func(name string, d fs.DirEntry, err error) error {
			fi, statErr := os.Lstat(name)
			switch {
			case err != nil || statErr != nil:
				return fs.SkipDir
			case fi.Mode().IsRegular() && fi.Mode().Perm()&0o444 != 0 && (os.Geteuid() == 0 || fi.Mode().Perm()&0o004 != 0):
				var vfs, top unix.Statfs_t
				if unix.Statfs(name, &vfs) == nil && unix.Statfs(fields[4], &top) == nil && vfs.Type == top.Type {
					file = name
					return fs.SkipAll
				}
			}
			return nil
		})
		if file == "" {
			continue
		}
		looked = append(looked, kind)
		_, _, err := snapshot.ReadFile(t.Context(), file, balanced(t, nil, snapshot.Seam{At: func(call, _ string) error {
			assert.NotContains(t, []string{"Reopen", "Read", "OpenFile"}, call, "%s of %s", call, file)
			return nil
		}}))
		assert.ErrorIs(t, err, snapshot.ErrNotRegular, "%s, of %s", file, kind)
		assert.ErrorContains(t, err, file)
	}
	t.Logf("looked at %q", looked)
	assert.Contains(t, looked, "proc")
}

// TestNoMoreDescriptors: a process that has no descriptor left gets that as an error, and a try with some is as good as ever.
func TestNoMoreDescriptors(t *testing.T) {
	t.Parallel()
	const variable = "HOLDSTILL_TEST_NONE"
	if dir := os.Getenv(variable); dir != "" {
		few := syscall.Rlimit{Cur: 64, Max: 64}
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
		var held []*os.File
		for {
			f, err := os.Open(os.DevNull)
			if err != nil {
				require.ErrorIs(t, err, syscall.EMFILE)
				break
			}
			held = append(held, f)
		}
		done := 0
		for left := range 24 {
			dst := fmt.Sprintf("%s/out/%d", dir, left)
			_, err := snapshot.CopyDir(t.Context(), dst, dir+"/src", nil)
			require.NoError(t, held[2*left].Close())
			require.NoError(t, held[2*left+1].Close())
			if err == nil {
				done++
				continue
			}
			require.ErrorIs(t, err, syscall.EMFILE, "%d left", 2*left)
			require.NotErrorIs(t, err, snapshot.ErrChanged)
			// To remove takes descriptors, too. What could not be removed is named.
			for _, name := range namesIn(t, dir+"/out") {
				if strings.HasPrefix(name, ".holdstill-") {
					require.ErrorIs(t, err, snapshot.ErrLeftover, "%d left", 2*left)
					require.ErrorContains(t, err, name)
					require.NoError(t, removeCopy(filepath.Join(dir, "out", name)))
				}
			}
		}
		require.Positive(t, done)
		return
	}
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/d/e/f=x", "src/d/g=y", "src/l => d", "out/")
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestNoMoreDescriptors$", "-test.count=1")
	cmd.Env = append(os.Environ(), variable+"="+dir)
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
	for _, name := range namesIn(t, dir+"/out") {
		fstest.Equal(t, dir+"/src", dir+"/out/"+name)
	}
}

// TestDatabase copies a database of several files while a program writes to it all the time: the copy opens as after a crash,
// it has every row up to some one, and the writer notices nothing.
func TestDatabase(t *testing.T) {
	t.Parallel()
	sqlite := lookTool(t, "sqlite3")
	for _, kind := range []string{"", "ext4"} {
		t.Run("on "+kind, func(t *testing.T) {
			t.Parallel()
			dir := fstest.Dir(t, kind)
			fstest.Make(t, dir, "src/", "out/")
			writer := exec.CommandContext(t.Context(), sqlite, "-batch", "-bail", dir+"/src/db")
			in, err := writer.StdinPipe()
			require.NoError(t, err)
			out, err := writer.StdoutPipe()
			require.NoError(t, err)
			var errs strings.Builder
			writer.Stderr = &errs
			require.NoError(t, writer.Start())
			lines := bufio.NewScanner(out)
			// insert puts one row into each of two tables, and returns when that is committed.
			rows := 0
			insert := func() bool {
				rows++
				_, err := fmt.Fprintf(in, "BEGIN; INSERT INTO a VALUES(%d, hex(randomblob(400))); INSERT INTO b VALUES(%[1]d); COMMIT; SELECT %[1]d;\n", rows)
				return assert.NoError(t, err) && assert.True(t, lines.Scan(), "%d", rows) && assert.Equal(t, strconv.Itoa(rows), lines.Text())
			}
			_, err = fmt.Fprint(in, "PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=20; CREATE TABLE a(n INTEGER PRIMARY KEY, t); CREATE TABLE b(n INTEGER PRIMARY KEY);\n")
			require.NoError(t, err)
			for _, want := range []string{"wal", "20"} {
				require.True(t, lines.Scan(), "%s", &errs)
				require.Equal(t, want, lines.Text())
			}
			require.True(t, insert(), "%s", &errs)

			accepted := 0
			for i := range 12 {
				dst := fmt.Sprintf("%s/out/%d", dir, i)
				stop, stopped := make(chan struct{}), make(chan struct{})
				before := rows
				go func() {
					defer close(stopped)
					for {
						select {
						case <-stop:
							return
						default:
							if !insert() {
								return
							}
						}
					}
				}()
				_, err := snapshot.CopyDir(t.Context(), dst, dir+"/src", &snapshot.Options{PreserveMode: true, Attempts: 20})
				close(stop)
				<-stopped
				if err != nil {
					assert.ErrorIs(t, err, snapshot.ErrChanged)
					continue
				}
				accepted++
				b, err := exec.CommandContext(t.Context(), sqlite, "-batch", dst+"/db",
					"PRAGMA integrity_check; SELECT (SELECT count(*) FROM a) = (SELECT max(n) FROM a), (SELECT count(*) FROM a) = (SELECT count(*) FROM b), (SELECT max(n) FROM a);").CombinedOutput()
				require.NoError(t, err, "%s", b)
				ok, last, _ := strings.Cut(strings.TrimSpace(string(b)), "1|1|")
				assert.Equal(t, "ok\n", ok, "%s", b)
				n, err := strconv.Atoi(last)
				require.NoError(t, err, "%s", b)
				assert.True(t, before <= n && n <= rows, "%d rows, there were %d to %d", n, before, rows)
			}
			require.NoError(t, in.Close())
			assert.NoError(t, writer.Wait(), "%s", &errs)
			assert.Empty(t, errs.String(), "what the writer noticed")
			t.Logf("%d of 12 copies accepted, beside %d transactions", accepted, rows)
			assert.Positive(t, accepted)
		})
	}
}
