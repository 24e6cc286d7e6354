// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/fstest"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	manifest := func(name string, lines ...string) string {
		text := "#mtree v2.0\n. type=dir mode=0755\n" + strings.Join(lines, "\n") + "\n"
		fstest.Make(t, dir, name+"="+text)
		return filepath.Join(dir, name)
	}
	x, y := strings.Repeat("1", 64), strings.Repeat("2", 64)
	older := manifest("older",
		`./gone type=file mode=0644 size=1 sha256digest=`+x,
		`./ln type=link mode=0777 link=a\377`,
		`./same type=file mode=0644 size=1 sha256digest=`+x,
		`./swap type=dir mode=0755`,
		`./text type=file mode=0644 size=1 sha256digest=`+x)
	newer := manifest("newer",
		`./ln type=link mode=0777 link=b`,
		`./new\012\377 type=file mode=0644 size=1 sha256digest=`+x,
		`./same type=file mode=0644 size=1 sha256digest=`+x,
		`./swap type=file mode=0755 size=1 sha256digest=`+x,
		`./text type=file mode=0755 size=2 sha256digest=`+y)

	assert.Equal(t, result{}, holdstill(t, "diff", older, older))
	assert.Equal(t, map[string]any{"changes": []any{}, "equal": true}, object(t, holdstill(t, "diff", "--json", older, older).stdout))

	assert.Equal(t, result{code: exitFailed, stdout: `- gone
~ ln (link "a\xff", now b)
+ "new\n\xff"
~ swap (mode drwxr-xr-x, now -rwxr-xr-x)
~ text (mode -rw-r--r--, now -rwxr-xr-x; size 1, now 2; content)
`}, holdstill(t, "diff", older, newer))
	assert.Equal(t, result{code: exitFailed}, holdstill(t, "diff", "--quiet", older, newer))

	r := holdstill(t, "diff", older, newer, "--json")
	assert.Equal(t, exitFailed, r.code)
	assert.Empty(t, r.stderr)
	assert.Equal(t, map[string]any{
		"equal": false,
		"changes": []any{
			map[string]any{"change": "removed", "path": "gone", "fields": map[string]any{}},
			map[string]any{"change": "changed", "path": "ln", "fields": map[string]any{
				"link": []any{"a\ufffd", "b"}, "link_b64": []any{"Yf8=", "Yg=="},
			}},
			map[string]any{"change": "added", "path": "new\n\ufffd", "path_b64": "bmV3Cv8=", "fields": map[string]any{}},
			map[string]any{"change": "changed", "path": "swap", "fields": map[string]any{"mode": []any{"drwxr-xr-x", "-rwxr-xr-x"}}},
			map[string]any{"change": "changed", "path": "text", "fields": map[string]any{
				"mode": []any{"-rw-r--r--", "-rwxr-xr-x"}, "size": []any{1.0, 2.0}, "digest": []any{x, y},
			}},
		},
	}, object(t, r.stdout))

	bad := manifest("bad", `./b type=dir mode=0755`, `./a type=dir mode=0755`)
	o := failureOf(t, holdstill(t, "diff", "--json", older, bad))
	assert.Equal(t, "invalid", o["code"])
	o = failureOf(t, holdstill(t, "diff", "--json", filepath.Join(dir, "none"), bad))
	assert.Equal(t, "not-found", o["code"])
}

func emptyManifest(t *testing.T) *snapshot.Manifest {
	t.Helper()
	m, err := snapshot.ReadManifest(strings.NewReader("#mtree v2.0\n. type=dir mode=0755\n"))
	require.NoError(t, err)
	return m
}

func TestReportForPeople(t *testing.T) {
	t.Parallel()
	r := &snapshot.Report{
		Manifest: emptyManifest(t), Instant: snapshot.InstantWrites, Files: 1234, Dirs: 80, Links: 1, Bytes: 12_900_000,
		Evidence:     map[snapshot.Evidence]int64{snapshot.Stable: 4, snapshot.Coherent: 1230},
		Weakest:      snapshot.Proof{Entry: snapshot.Entry{Path: "a\x1bb"}, Evidence: snapshot.Stable, Because: "tmpfs: mapped stores"},
		SpecialModes: 2, Exposed: true, Abandoned: 1,
	}
	for i := range 23 {
		r.Skipped = append(r.Skipped, snapshot.Skipped{Path: fmt.Sprintf("s\n%d", i), Because: "excluded", Rule: "s*"})
	}
	var stdout, stderr bytes.Buffer
	c := newCall(takeVerb(), &stdout, &stderr, &environ{})
	require.NoError(t, c.printReport("src\n", "d st\t", r))
	assert.Equal(t, "copied 1234 files, 80 directories, 1 link, 12.3 MiB to \"d st\\t\"; one instant: writes; evidence: coherent 1230, stable 4; "+
		"manifest "+r.Manifest.Digest().String()+"\n", stdout.String())
	lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
	require.Len(t, lines, 26)
	assert.Equal(t, `left out: "s\n0" (excluded: s*)`, lines[0])
	assert.Equal(t, `left out: 3 more`, lines[20])
	assert.Contains(t, lines[21], `note: "a\x1bb": evidence is only stable: `)
	assert.Contains(t, lines[21], `(tmpfs: mapped stores)`)
	assert.Contains(t, lines[22], `note: "src\n": one instant as far as writes`)
	assert.Contains(t, lines[23], `2 entries are not kept`)
	assert.Contains(t, lines[24], `could rename it`)
	assert.Contains(t, lines[25], `1 system call is stuck`)

	stdout.Reset()
	stderr.Reset()
	c.quiet = true
	require.NoError(t, c.printReport("src", "dst", r))
	assert.Empty(t, stdout.String()+stderr.String())
}

func TestNoNoteFromCoherentUpwards(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		level snapshot.Evidence
		want  string
	}{
		{snapshot.Identified, "two states may be mixed"},
		{snapshot.Stable, "two states may be mixed"},
		{snapshot.Buffered, "O_DIRECT may have been in flight"},
		{snapshot.Coherent, ""},
		{snapshot.Quiescent, ""},
	} {
		var stdout, stderr bytes.Buffer
		c := newCall(takeVerb(), &stdout, &stderr, &environ{})
		require.NoError(t, c.printProof("f", "g", snapshot.Proof{Entry: snapshot.Entry{Path: "f", Size: 5}, Evidence: tt.level}))
		assert.Contains(t, stdout.String(), "copied f, 5 bytes, to g; evidence: "+tt.level.String()+"; sha256 ")
		if tt.want == "" {
			assert.Empty(t, stderr.String(), "%v", tt.level)
		} else {
			assert.Contains(t, stderr.String(), tt.want, "%v", tt.level)
		}
	}
}

func TestProgressWritesOverItself(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	p := &progress{w: &b, start: time.Now()}
	p.show(snapshot.Progress{Files: 1, Bytes: 1 << 20, Round: 2, Waiting: "clock\x1btick " + strings.Repeat("x", 80)})
	long := b.String()
	assert.Regexp(t, `^\r1 file, 1\.0 MiB, .*/s, round 2, waiting for clock\\x1btick x+\r$`, long)
	assert.Len(t, long, 2+lineWidth)

	b.Reset()
	p.show(snapshot.Progress{Files: 2})
	assert.Regexp(t, `^\r2 files, 0 bytes, 0 bytes/s +\r$`, b.String())
	assert.Len(t, b.String(), 2+lineWidth)

	b.Reset()
	p.erase()
	assert.Equal(t, "\r"+strings.Repeat(" ", len("2 files, 0 bytes, 0 bytes/s"))+"\r", b.String())
	b.Reset()
	p.erase()
	assert.Empty(t, b.String())
}

func TestProgressOnlyOnATerminal(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		terminal bool
		args     []string
		want     bool
	}{
		{true, []string{"a", "b"}, true},
		{true, []string{"a", "b", "--json"}, true},
		{true, []string{"a", "b", "--quiet"}, false},
		{false, []string{"a", "b"}, false},
	} {
		v := takeVerb()
		c := newCall(v, io.Discard, io.Discard, &environ{terminal: tt.terminal})
		v.setup(c)
		_, err := c.parse(tt.args)
		require.NoError(t, err)
		assert.Equal(t, tt.want, c.options.Progress != nil, "terminal %v, %q", tt.terminal, tt.args)
	}
}
