// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"io/fs"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot/internal/fsys"
)

// seen is a regular file as a Linux file system with every feature shows it.
func seen(change ...func(*fsys.Seen)) *fsys.Seen {
	s := &fsys.Seen{
		Volume: 1, Mount: 2, File: [16]byte{3}, Birth: fsys.Stamp{Sec: 100},
		Mtime: fsys.Stamp{Sec: 200, Nsec: 1}, Ctime: fsys.Stamp{Sec: 300, Nsec: 1},
		Size: 10, Mode: 0o644, UID: 1000, GID: 1000,
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func seenDir(s *fsys.Seen)     { s.Mode = fs.ModeDir | 0o755 }
func seenUnknown(s *fsys.Seen) { s.File = [16]byte{} }

func TestDrift(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		before, after *fsys.Seen
		want          Reason
	}{
		{"equal", seen(), seen(), 0},
		{"never there", nil, nil, 0},
		{"zero is never there", &fsys.Seen{}, nil, 0},
		{"gone", seen(), nil, Vanished},
		{"gone, id unknown", seen(seenUnknown), &fsys.Seen{}, Vanished},
		{"new", nil, seen(), Appeared},
		{"longer", seen(), seen(func(s *fsys.Seen) { s.Size++; s.Mtime.Nsec++; s.Mode = 0o600 }), Grew},
		{"shorter", seen(), seen(func(s *fsys.Seen) { s.Size--; s.Ctime.Nsec++ }), Shrank},
		{"mtime", seen(), seen(func(s *fsys.Seen) { s.Mtime.Nsec++ }), Modified},
		{"mode", seen(), seen(func(s *fsys.Seen) { s.Mode = 0o600 }), Modified},
		{"setuid", seen(), seen(func(s *fsys.Seen) { s.Mode |= fs.ModeSetuid }), Modified},
		{"user", seen(), seen(func(s *fsys.Seen) { s.UID = 0 }), Modified},
		{"group", seen(), seen(func(s *fsys.Seen) { s.GID = 0 }), Modified},
		{"ctime", seen(), seen(func(s *fsys.Seen) { s.Ctime.Sec++ }), MetadataOnly},
		{"directory longer", seen(seenDir), seen(seenDir, func(s *fsys.Seen) { s.Size = 4096 }), Modified},
		{"directory shorter", seen(seenDir), seen(seenDir, func(s *fsys.Seen) { s.Size = 0 }), Modified},
		{"other id", seen(), seen(func(s *fsys.Seen) { s.File[0]++ }), Replaced},
		{"other volume", seen(), seen(func(s *fsys.Seen) { s.Volume++ }), Replaced},
		{"other mount", seen(), seen(func(s *fsys.Seen) { s.Mount++ }), Replaced},
		{"inode number used again", seen(), seen(func(s *fsys.Seen) { s.Birth.Nsec++ }), Replaced},
		{"birth known once", seen(), seen(func(s *fsys.Seen) { s.Birth = fsys.Stamp{} }), Replaced},
		{"mount known once", seen(func(s *fsys.Seen) { s.Mount = 0 }), seen(), Replaced},
		{"birth and mount never known", seen(bare), seen(bare), 0},
		{"unknown is never equal", seen(seenUnknown), seen(seenUnknown), Replaced},
		{"now unknown", seen(), seen(seenUnknown), Replaced},
		{"other type, same id", seen(), seen(seenDir), TypeChanged},
		{"other type, other id", seen(), seen(func(s *fsys.Seen) { s.Mode = fs.ModeSymlink | 0o777; s.File[0]++ }), TypeChanged},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, tt.want, drift(tt.before, tt.after), "drift")
			assert.Equal(t, tt.want, stateOf(tt.before).Compare(stateOf(tt.after)), "Compare")
		})
	}
}

func bare(s *fsys.Seen) { s.Birth, s.Mount = fsys.Stamp{}, 0 }

func TestStateOf(t *testing.T) {
	t.Parallel()
	assert.Equal(t, State{}, stateOf(nil))
	assert.Equal(t, State{}, stateOf(&fsys.Seen{}))

	got := stateOf(seen(func(s *fsys.Seen) { s.Mtime, s.Ctime = fsys.Stamp{}, fsys.Stamp{} }))
	assert.True(t, got.ModTime.Equal(time.Unix(0, 0)), "an mtime of 1970 is known, got %v", got.ModTime)
	assert.True(t, got.ChangeTime.IsZero(), "a ctime of 1970 is unknown, got %v", got.ChangeTime)

	got = stateOf(seen(seenDir))
	assert.Equal(t, State{
		Identity: Identity{volume: 1, mount: 2, file: [16]byte{3}, birth: fsys.Stamp{Sec: 100}, kind: fs.ModeDir},
		Mode:     fs.ModeDir | 0o755, Size: 10, UID: 1000, GID: 1000,
		ModTime: time.Unix(200, 1).UTC(), ChangeTime: time.Unix(300, 1).UTC(),
	}, got)
}

func TestSame(t *testing.T) {
	t.Parallel()
	id := stateOf(seen()).Identity
	assert.True(t, id.Same(id))
	assert.False(t, Identity{}.Same(Identity{}), "unknown is never equal")
	assert.False(t, id.Same(Identity{}))
	assert.False(t, Identity{}.Same(id))
}

// A caller may have built its times in another zone.
func TestCompareIgnoresZones(t *testing.T) {
	t.Parallel()
	s := stateOf(seen())
	other := s
	other.ModTime = s.ModTime.In(time.FixedZone("", 3600))
	other.ChangeTime = s.ChangeTime.In(time.FixedZone("", 3600))
	assert.Equal(t, Reason(0), s.Compare(other))
}

func TestEvidenceText(t *testing.T) {
	t.Parallel()
	names := []string{"none", "identified", "stable", "buffered", "coherent", "quiescent"}
	for i, name := range names {
		level := Evidence(i)
		assert.Equal(t, name, level.String())
		text, err := level.MarshalText()
		require.NoError(t, err)
		got := Evidence(99)
		require.NoError(t, got.UnmarshalText(text))
		assert.Equal(t, level, got)
	}
	for _, text := range []string{"", "Stable", "stable ", "evidence(6)", "6"} {
		got := Buffered
		err := got.UnmarshalText([]byte(text))
		assert.ErrorIs(t, err, fs.ErrInvalid, "UnmarshalText(%q)", text)
		assert.Equal(t, Buffered, got, "UnmarshalText(%q) wrote a level", text)
	}
	assert.Equal(t, "evidence(6)", Evidence(6).String())
}

func TestReasonText(t *testing.T) {
	t.Parallel()
	names := []string{
		"unchanged", "replaced", "type changed", "vanished", "appeared",
		"grew", "shrank", "modified", "metadata only", "writer arrived",
	}
	for i, name := range names {
		assert.Equal(t, name, Reason(i).String())
		text, err := Reason(i).MarshalText()
		require.NoError(t, err)
		assert.Equal(t, name, string(text))
	}
	assert.Equal(t, "reason(10)", Reason(10).String())
}
