// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot/internal/fsys"
)

func TestErrorText(t *testing.T) {
	t.Parallel()
	changed := func(reason Reason, before, after *fsys.Seen) *ChangeError {
		return &ChangeError{
			Path: "/srv/app/a.js", Reason: reason, Before: stateOf(before), After: stateOf(after),
			Err: ErrChangedDuringSnapshot,
		}
	}
	file := &Entry{Path: "a", Mode: 0o644, Size: 3, Digest: Digest{0xab, 0xcd}}
	link := func(text string) *Entry { return &Entry{Path: "a", Mode: fs.ModeSymlink | 0o777, Link: text} }
	many := changed(Vanished, seen(), nil)
	many.Attempts, many.More = 3, 4
	once := changed(0, nil, nil)
	once.Attempts, once.Err = 1, ErrChangedBeforeSnapshot

	for _, tt := range []struct {
		err  error
		is   []error
		want string
	}{
		{
			changed(Grew, seen(), seen(func(s *fsys.Seen) { s.Size = 12 })),
			[]error{ErrChanged, ErrChangedDuringSnapshot},
			"/srv/app/a.js: changed during snapshot: grew: size 10, now 12",
		},
		{
			changed(Shrank, seen(), seen(func(s *fsys.Seen) { s.Size = 0 })),
			nil,
			"/srv/app/a.js: changed during snapshot: shrank: size 10, now 0",
		},
		{
			changed(Grew, seen(), seen()),
			nil,
			"/srv/app/a.js: changed during snapshot: grew: size 10, but another number of bytes could be read",
		},
		{
			changed(Modified, seen(), seen(func(s *fsys.Seen) { s.Mtime.Nsec = 2; s.Mode = fs.ModeSetuid | 0o755; s.GID = 0 })),
			nil,
			"/srv/app/a.js: changed during snapshot: modified: mtime 1970-01-01T00:03:20.000000001Z, now 1970-01-01T00:03:20.000000002Z; " +
				"mode 0644, now 4755; owner 1000:1000, now 1000:0",
		},
		{
			changed(Modified, seen(seenDir), seen(seenDir, func(s *fsys.Seen) { s.Size = 20 })),
			nil,
			"/srv/app/a.js: changed during snapshot: modified: size 10, now 20",
		},
		{
			changed(Modified, seen(), seen(func(s *fsys.Seen) { s.Ctime.Nsec = 9 })),
			nil,
			"/srv/app/a.js: changed during snapshot: modified: the contents are other ones",
		},
		{
			changed(MetadataOnly, seen(), seen(func(s *fsys.Seen) { s.Ctime = fsys.Stamp{} })),
			nil,
			"/srv/app/a.js: changed during snapshot: metadata only: ctime 1970-01-01T00:05:00.000000001Z, now unknown",
		},
		{
			changed(Replaced, seen(), seen(func(s *fsys.Seen) { s.File[0]++ })),
			nil,
			"/srv/app/a.js: changed during snapshot: replaced: another file has the name",
		},
		{
			changed(Replaced, seen(seenUnknown), seen(seenUnknown)),
			nil,
			"/srv/app/a.js: changed during snapshot: replaced: the file system gives no file ids",
		},
		{
			changed(TypeChanged, seen(), seen(func(s *fsys.Seen) { s.Mode = fs.ModeNamedPipe })),
			nil,
			"/srv/app/a.js: changed during snapshot: type changed: it was a file, now a FIFO",
		},
		{
			changed(Appeared, nil, seen(seenDir)),
			nil,
			"/srv/app/a.js: changed during snapshot: appeared: a directory has the name",
		},
		{
			changed(WriterArrived, seen(), seen()),
			nil,
			"/srv/app/a.js: changed during snapshot: writer arrived: somebody opened it for writing",
		},
		{many, nil, "/srv/app/a.js: changed during snapshot: vanished: no file has the name; 3 attempts; and 4 more"},
		{once, []error{ErrChanged, ErrChangedBeforeSnapshot}, "/srv/app/a.js: changed before snapshot; 1 attempt"},
		{&ChangeError{}, nil, "changed"},
		{
			&EvidenceError{Path: "a\nb", Required: Coherent, Reached: Stable, Because: "overlayfs: mapped stores cannot be seen"},
			[]error{ErrEvidence},
			`"a\nb": not enough evidence: coherent required, stable reached: overlayfs: mapped stores cannot be seen`,
		},
		{
			&LimitError{Path: "big", Field: "MaxFileBytes", Limit: 10, Got: 12},
			[]error{ErrLimit},
			"big: limit exceeded: MaxFileBytes is 10, asked for 12",
		},
		{
			&MismatchError{Path: "a", Recorded: file, Baseline: &Entry{Mode: 0o600, Size: 2}, Received: nil},
			[]error{ErrMismatch},
			"a: does not match: recorded file 0644 of 3 bytes, sha256 abcd00000000…, in the baseline file 0600 of 2 bytes, received absent",
		},
		{
			&MismatchError{Path: "a", Recorded: link("secret"), Received: link("other")},
			nil,
			"a: does not match: recorded link 0777, received link 0777 with another text",
		},
		{
			&TrustError{Path: "/srv", Owner: "bob", Mode: fs.ModeDir | fs.ModeSticky | 0o775, Fix: "chmod g-w /srv\x1b[2J"},
			[]error{ErrUntrusted},
			`/srv: directory is not trusted: mode 1775, owner bob; to mend it: chmod g-w /srv\x1b[2J`,
		},
		{
			&ConflictError{Target: "/ws", Conflicts: []Conflict{{Path: "a"}, {Path: "b "}, {Path: "c"}, {Path: "d"}, {Path: "e"}, {Path: "f"}, {Path: "g"}}},
			[]error{ErrConflict},
			`/ws: conflict: neither old nor new: a, "b ", c, d, e and 2 more; decide with ApplyOptions.Resolve`,
		},
		{
			&LeftoverError{Paths: []string{"/tmp/x"}, Err: syscall.EBUSY},
			[]error{ErrLeftover, syscall.EBUSY},
			"left behind: /tmp/x: " + syscall.EBUSY.Error() + "; remove by hand, or run sweep on the directory that holds them",
		},
		{
			&LeftoverError{Paths: []string{"/tmp/x"}},
			[]error{ErrLeftover},
			"left behind: /tmp/x; remove by hand, or run sweep on the directory that holds them",
		},
	} {
		assert.Equal(t, tt.want, tt.err.Error(), "%#v", tt.err)
		for _, target := range tt.is {
			assert.ErrorIs(t, tt.err, target)
		}
		assert.NotErrorIs(t, tt.err, ErrBusy)
	}
}

func TestNewPathError(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ path, want string }{
		{"/a", "open /a: " + syscall.ENOENT.Error()},
		{"/a\nopen /b: ok", `open "/a\nopen /b: ok": ` + syscall.ENOENT.Error()},
	} {
		err := newPathError("open", tt.path, syscall.ENOENT)
		assert.Equal(t, tt.want, err.Error())
		assert.ErrorIs(t, err, fs.ErrNotExist)
		pathErr, ok := errors.AsType[*fs.PathError](err)
		require.True(t, ok, "AsType[*fs.PathError](%v)", err)
		assert.Equal(t, &fs.PathError{Op: "open", Path: tt.path, Err: syscall.ENOENT}, pathErr)
	}
}

func TestModeText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode       fs.FileMode
		kind, bits string
	}{
		{0o7, "file", "0007"},
		{fs.ModeDir | fs.ModeSetgid | 0o750, "directory", "2750"},
		{fs.ModeSymlink | 0o777, "link", "0777"},
		{fs.ModeNamedPipe | 0o600, "FIFO", "0600"},
		{fs.ModeSocket | 0o600, "socket", "0600"},
		{fs.ModeDevice | 0o600, "device", "0600"},
		{fs.ModeDevice | fs.ModeCharDevice | 0o600, "device", "0600"},
		{fs.ModeIrregular | 0o600, "special file", "0600"},
	} {
		assert.Equal(t, tt.kind, kindName(tt.mode), "%v", tt.mode)
		assert.Equal(t, tt.bits, octal(tt.mode), "%v", tt.mode)
	}
}
