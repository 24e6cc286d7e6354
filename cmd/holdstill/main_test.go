// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot/internal/fstest"
)

type result struct {
	code           int
	stdout, stderr string
}

func holdstill(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, &stdout, &stderr, &environ{})
	return result{code, stdout.String(), stderr.String()}
}

// object decodes text, which must be one JSON object and nothing else.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var o map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &o), "%s", text)
	return o
}

func failureOf(t *testing.T, r result) map[string]any {
	t.Helper()
	assert.Empty(t, r.stdout)
	o, ok := object(t, r.stderr)["error"].(map[string]any)
	require.True(t, ok, "%s", r.stderr)
	for _, key := range []string{"code", "path", "reason", "fields", "retryable", "message"} {
		assert.Contains(t, o, key)
	}
	return o
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want string }{
		{"", "holdstill take SRC DST"},
		{"frob", "no such verb: frob"},
		{"fr\x1bob", `no such verb: "fr\x1bob"`},
		{"take a", "operand missing: holdstill take [flags] SRC DST"},
		{"take a b c", "one operand too many: c"},
		{"diff a", "operand missing"},
		{"sweep", "operand missing"},
		{"version x", "one operand too many"},
		{"help frob", "no such verb: frob"},
		{"take --frob a b", "not defined: -frob"},
		{"take a b --frob", "not defined: -frob"},
		{"take a b --max-bytes", "needs an argument"},
		{"take a b --max-bytes 12x", "not a size"},
		{"take a b --max-bytes=0", "zero is not a bound"},
		{"take a b --require fully", "-require"},
		{"take a b --links outside", "no such policy"},
		{"take a b --attempts many", "-attempts"},
		{"take a b --stall 5", "-stall"},
		{"take a b --exclude [", "--exclude: "},
		{"scan a --durable", "not defined: -durable"},
		{"diff a b --exclude x", "not defined: -exclude"},
		{"verify d", "give --manifest FILE, --digest HEX or both"},
		{"verify d --digest 12", "-digest"},
		{"verify d --digest " + strings.Repeat("0", 64), "-digest"},
		{"verify d --all --digest " + strings.Repeat("1", 64), "--all needs --manifest"},
	} {
		r := holdstill(t, strings.Fields(tt.args)...)
		assert.Equal(t, exitUsage, r.code, "holdstill %s", tt.args)
		assert.Empty(t, r.stdout, "holdstill %s", tt.args)
		assert.Contains(t, r.stderr, tt.want, "holdstill %s", tt.args)
	}
	r := holdstill(t, "take", "", "b")
	assert.Equal(t, exitUsage, r.code)
	assert.Contains(t, r.stderr, "an operand is empty")
}

func TestHelp(t *testing.T) {
	t.Parallel()
	all := holdstill(t, "help")
	assert.Equal(t, result{stdout: all.stdout}, all)
	assert.Equal(t, all, holdstill(t, "--help"))
	for _, v := range verbs() {
		assert.Contains(t, all.stdout, "  holdstill "+v.name+" ")

		r := holdstill(t, v.name, "--help")
		assert.Equal(t, exitDone, r.code)
		assert.Empty(t, r.stderr)
		assert.Contains(t, r.stdout, "usage: holdstill "+v.name+" ")
		assert.Contains(t, r.stdout, "\nexample: holdstill "+v.name)
		assert.Equal(t, r, holdstill(t, "help", v.name))
	}
	assert.Contains(t, holdstill(t, "take", "--help").stdout, "\n  --exclude PATTERN\n      leave out")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	r := holdstill(t, "version")
	assert.Equal(t, exitDone, r.code)
	assert.Regexp(t, `^holdstill \S+ .*go1\S* \w+/\w+\n$`, r.stdout)

	o := object(t, holdstill(t, "version", "--json").stdout)
	for _, key := range []string{"version", "revision", "go", "platform"} {
		assert.Contains(t, o, key)
	}
}

func TestTakeTree(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src, dst, manifest := filepath.Join(dir, "src"), filepath.Join(dir, "dst"), filepath.Join(dir, "m.mtree")
	fstest.Make(t, src, "d/a=hello", "d/run 0755=x", "l => d/a", "skip.log=y")

	r := holdstill(t, "take", src, "--exclude", "*.log", dst, "--manifest", manifest)
	require.Equal(t, exitDone, r.code, r.stderr)
	assert.Regexp(t, `^copied 2 files, 2 directories, 1 link, 6 bytes to \S+/dst; one instant: \w+; evidence: .+; manifest [0-9a-f]{64}\n$`, r.stdout)
	assert.Contains(t, r.stderr, "left out: skip.log (excluded: *.log)\n")
	fstest.Nothing(t, dir, "src", "dst", "m.mtree")

	text, err := os.ReadFile(manifest)
	require.NoError(t, err)
	scan := holdstill(t, "scan", "--quiet", dst)
	assert.Equal(t, result{stdout: string(text)}, scan)

	again := holdstill(t, "take", src, dst, "--json")
	assert.Equal(t, exitFailed, again.code)
	o := failureOf(t, again)
	assert.Equal(t, "exists", o["code"])
	assert.Equal(t, dst, o["path"])
	assert.Equal(t, false, o["retryable"])
}

func TestTakeJSON(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src := filepath.Join(dir, "src")
	fstest.Make(t, src, "a=hello", "p|")

	r := holdstill(t, "take", "--json", "--skip-special", src, filepath.Join(dir, "dst"))
	require.Equal(t, exitDone, r.code, r.stderr)
	assert.Empty(t, r.stderr)
	o := object(t, r.stdout)
	for _, key := range []string{
		"files", "dirs", "links", "bytes", "cloned", "skipped", "evidence", "weakest", "rounds", "metadata_only",
		"manifest_digest", "instant", "exposed", "seconds",
	} {
		assert.Contains(t, o, key)
	}
	assert.Equal(t, []any{map[string]any{"path": "p", "because": "special", "rule": ""}}, o["skipped"])

	r = holdstill(t, "take", "--json", filepath.Join(src, "a"), filepath.Join(dir, "a"))
	require.Equal(t, exitDone, r.code, r.stderr)
	o = object(t, r.stdout)
	assert.Equal(t, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", o["sha256"])
	assert.Contains(t, o, "evidence")
	assert.Contains(t, o, "because")
}

func TestTakeRefuses(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "src/a=hello", "f=x", "toF => f", "fifo/p|", "out/l => ../f", "m=old")
	at := func(name string) string { return filepath.Join(dir, name) }
	dst := at("dst")
	for _, tt := range []struct {
		name string
		args []string
		code string
		path string
	}{
		{"missing source", []string{at("none"), dst}, "not-found", at("none")},
		{"missing parent", []string{at("src"), at("none/dst")}, "not-found", ""},
		{"link to a file", []string{at("toF"), dst}, "not-regular", at("toF")},
		{"FIFO in a tree", []string{at("fifo"), dst}, "not-regular", ""},
		{"FIFO", []string{at("fifo/p"), dst}, "not-regular", at("fifo/p")},
		{"link that leads out", []string{at("out"), dst}, "escapes", ""},
		{"into itself", []string{at("src"), at("src/dst")}, "escapes", ""},
		{"large file", []string{at("src"), dst, "--max-file-bytes", "4"}, "limit", ""},
		{"manifest exists", []string{at("src"), dst, "--manifest", at("m")}, "exists", at("m")},
		{"manifest nowhere", []string{at("src"), dst, "--manifest", at("none/m")}, "not-found", at("none")},
		{"no such options", []string{at("src"), dst, "--attempts", "-1"}, "invalid", ""},
	} {
		r := holdstill(t, append([]string{"take", "--json"}, tt.args...)...)
		assert.Equal(t, exitFailed, r.code, tt.name)
		o := failureOf(t, r)
		assert.Equal(t, tt.code, o["code"], "%s: %s", tt.name, r.stderr)
		if tt.path != "" {
			assert.Equal(t, tt.path, o["path"], tt.name)
		}
		fstest.Nothing(t, dir, "src", "f", "toF", "fifo", "out", "m")
	}
	for _, args := range [][]string{
		{at("src"), dst, "--manifest", filepath.Join(dst, "m")},
		{at("src"), dst, "--manifest", dst},
		{at("src"), dst, "--manifest", at("src/../dst/sub/m")},
		{at("f"), dst, "--manifest", at("new")},
	} {
		r := holdstill(t, append([]string{"take"}, args...)...)
		assert.Equal(t, exitUsage, r.code, "%q: %s", args, r.stderr)
		fstest.Nothing(t, dir, "src", "f", "toF", "fifo", "out", "m")
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	src, manifest := filepath.Join(dir, "src"), filepath.Join(dir, "m")
	fstest.Make(t, src, "a=hello", "b=x", "out => /nowhere")
	o := object(t, holdstill(t, "scan", "--json", "--links", "verbatim", src, "--manifest", manifest).stdout)
	digest, _ := o["manifest_digest"].(string)
	require.Len(t, digest, 64)
	wrong := strings.Repeat("1", 64)

	r := holdstill(t, "verify", "--json", "--manifest", manifest, src)
	require.Equal(t, exitDone, r.code, r.stderr)
	assert.Equal(t, map[string]any{"equal": true, "anchored": false, "entries": 4.0, "manifest_digest": digest}, object(t, r.stdout))

	r = holdstill(t, "verify", "--manifest", manifest, "--digest", digest, "--all", "--json", src)
	require.Equal(t, exitDone, r.code, r.stderr)
	assert.Equal(t, map[string]any{
		"equal": true, "anchored": true, "entries": 4.0, "manifest_digest": digest, "changes": []any{},
	}, object(t, r.stdout))

	r = holdstill(t, "verify", "--digest", strings.ToUpper(digest), src)
	require.Equal(t, exitDone, r.code, r.stderr)
	assert.Equal(t, src+": equal, 4 entries; manifest "+digest+"\n", r.stdout)

	for _, args := range [][]string{
		{src, "--manifest", manifest, "--digest", wrong},
		{src, "--digest", wrong},
		{filepath.Join(src, "a"), "--digest", wrong},
	} {
		r = holdstill(t, append([]string{"verify", "--json"}, args...)...)
		assert.Equal(t, exitFailed, r.code)
		assert.Equal(t, "mismatch", failureOf(t, r)["code"])
	}

	r = holdstill(t, "verify", filepath.Join(src, "a"), "--json", "--digest", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
	require.Equal(t, exitDone, r.code, r.stderr)
	o = object(t, r.stdout)
	assert.Equal(t, true, o["equal"])
	assert.Equal(t, true, o["anchored"])

	require.NoError(t, os.Remove(filepath.Join(src, "b")))
	fstest.Make(t, src, "c=new", "p|")
	require.NoError(t, os.WriteFile(filepath.Join(src, "a"), []byte("HELLO"), 0o644))

	r = holdstill(t, "verify", "--manifest", manifest, src)
	assert.Equal(t, exitFailed, r.code)
	assert.Regexp(t, `^holdstill: .*a: does not match: `, r.stderr)

	r = holdstill(t, "verify", "--manifest", manifest, "--all", src)
	assert.Equal(t, exitFailed, r.code)
	assert.Equal(t, "~ a (content)\n- b\n+ c\n+ p\n", r.stdout)
	assert.Equal(t, "holdstill: verify "+src+": does not match: 4 entries differ\n", r.stderr)

	r = holdstill(t, "verify", "--manifest", manifest, "--all", "--quiet", "--skip-special", src)
	assert.Equal(t, exitFailed, r.code)
	assert.Empty(t, r.stdout)
	assert.Contains(t, r.stderr, "3 entries differ")
}

func TestSweep(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, "kept=x")
	assert.Equal(t, result{}, holdstill(t, "sweep", dir))
	assert.Equal(t, map[string]any{"removed": []any{}}, object(t, holdstill(t, "sweep", "--json", dir).stdout))
	fstest.Nothing(t, dir, "kept")

	r := holdstill(t, "sweep", "--json", filepath.Join(dir, "none"))
	assert.Equal(t, exitFailed, r.code)
}

func TestHostileNames(t *testing.T) {
	t.Parallel()
	dir := fstest.TempDir(t)
	fstest.Make(t, dir, `"d/a\nb"|`, `"d/a\xff"=x`)

	r := holdstill(t, "take", "--skip-special", filepath.Join(dir, "d"), filepath.Join(dir, "dst"))
	require.Equal(t, exitDone, r.code, r.stderr)
	assert.Contains(t, r.stderr, `left out: "a\nb" (special)`)

	r = holdstill(t, "take", filepath.Join(dir, "no\x1b[2J\nne"), filepath.Join(dir, "dst2"))
	assert.Equal(t, exitFailed, r.code)
	assert.Contains(t, r.stderr, `no\x1b[2J\nne`)
	assert.Equal(t, 1, strings.Count(r.stderr, "\n"))

	o := failureOf(t, holdstill(t, "take", "--json", filepath.Join(dir, "\xff"), filepath.Join(dir, "dst2")))
	assert.NotEmpty(t, o["path_b64"])
}
