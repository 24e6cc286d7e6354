// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
)

func FuzzParseDigest(f *testing.F) {
	for _, s := range []string{
		strings.Repeat("0123456789abcdef", 4), strings.Repeat("0123456789ABCDEF", 4), strings.Repeat("0", 64), strings.Repeat("0", 63) + "1", "",
		strings.Repeat("0", 63) + "g", strings.Repeat("é", 32),
	} {
		f.Add(s)
	}
	syntax := regexp.MustCompile(`\A[0-9a-fA-F]{64}\z`)
	f.Fuzz(func(t *testing.T, s string) {
		d, err := snapshot.ParseDigest(s)
		require.Equal(t, syntax.MatchString(s) && strings.Trim(s, "0") != "", err == nil, "ParseDigest(%q) = %v", s, err)
		var read snapshot.Digest
		readErr := read.UnmarshalText([]byte(s))
		require.Equal(t, err == nil || s == "", readErr == nil, "UnmarshalText(%q) = %v", s, readErr)
		require.Equal(t, d, read)
		if err != nil {
			require.ErrorIs(t, err, fs.ErrInvalid)
			require.True(t, d.IsZero())
			requirePlain(t, err)
			return
		}
		require.Equal(t, strings.ToLower(s), d.String())
		text, err := d.MarshalText()
		require.NoError(t, err)
		require.Equal(t, d.String(), string(text))
	})
}

func FuzzEvidence(f *testing.F) {
	for _, s := range []string{"none", "identified", "stable", "buffered", "coherent", "quiescent", "Stable", "", "evidence(6)", "stable\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		level := snapshot.Evidence(77)
		if err := level.UnmarshalText(text); err != nil {
			require.ErrorIs(t, err, fs.ErrInvalid)
			require.Equal(t, snapshot.Evidence(77), level)
			requirePlain(t, err)
			return
		}
		again, err := level.MarshalText()
		require.NoError(t, err)
		require.Equal(t, string(text), string(again))
	})
}

// FuzzExplain compares a list of patterns, one a line, with a matcher that tries everything.
func FuzzExplain(f *testing.F) {
	f.Add("*.o\n!keep/*.o\n/build", "keep/a.o")
	f.Add("**/d*\n!d/**/x", "a/d1/x")
	f.Add("[^a-c]x\n[\\]-\\^]\n?\xff", "a\xff")
	f.Add("a/**\n!a/b", "a/b/c")
	loose := regexp.MustCompile(`[^/\n!]\*\*|\*\*[^/\n]`) // what ** means within a component is not documented
	f.Fuzz(func(t *testing.T, list, name string) {
		patterns := strings.Split(list, "\n")
		filter, err := snapshot.NewFilter(patterns...)
		if err != nil {
			require.ErrorIs(t, err, fs.ErrInvalid)
			return
		}
		require.Equal(t, patterns, filter.Patterns())
		pattern, excluded := filter.Explain(name)
		inner := strings.TrimPrefix(path.Clean(name), "/")
		again, excludedAgain := filter.Explain(inner)
		require.Equal(t, pattern, again)
		require.Equal(t, excluded, excludedAgain)
		switch {
		case inner == "" || inner == ".":
			require.False(t, excluded)
			return
		// Trying everything takes time, and the last 128 code points stand for bytes.
		case len(name) > 50 || strings.Count(list, "*") > 8 || strings.ContainsFunc(list+name, func(r rune) bool { return r > unicode.MaxRune-128 }):
			return
		}
		for _, p := range patterns {
			if loose.MatchString(path.Clean(p)) {
				return
			}
		}
		want, wantExcluded := ruledBy(patterns, inner)
		require.Equal(t, want, pattern, "%q.Explain(%q)", patterns, inner)
		require.Equal(t, wantExcluded, excluded, "%q.Explain(%q)", patterns, inner)
	})
}

// FuzzDiff compares two manifests naively, and looks up in one what the other has.
func FuzzDiff(f *testing.F) {
	strange := textOf(f, manifestOf(f, strangeEntries()...))
	f.Add([]byte(strange), []byte(strings.Replace(strange, "size=1", "size=2", 1)))
	small := textOf(f, manifestOf(f, dirEntry("."), dirEntry("a"), fileEntry("a/b", "x"), fileEntry("a-b", ""), linkEntry("b", "a")))
	f.Add([]byte(small), []byte("#mtree v2.0\n. type=dir mode=0700\n"))
	f.Add([]byte(small), []byte(strings.Replace(small, "./b type", "./c type", 1)))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		older, err := snapshot.ReadManifest(bytes.NewReader(a))
		if err != nil {
			return
		}
		newer, err := snapshot.ReadManifest(bytes.NewReader(b))
		if err != nil {
			return
		}
		before, after := entriesOf(t, older), entriesOf(t, newer)
		require.Equal(t, changesBetween(before, after), changesOf(t, older, newer))
		require.Equal(t, bytes.Equal(a, b), older.Digest() == newer.Digest())
		in := map[string]snapshot.Entry{}
		for _, e := range before {
			in[e.Path] = e
		}
		for _, e := range after {
			got, err := older.Lookup(e.Path)
			require.Equal(t, in[e.Path], got)
			require.Equal(t, in[e.Path] == snapshot.Entry{}, errors.Is(err, fs.ErrNotExist))
		}
	})
}

// FuzzErrorText: whoever chooses a name, or a link's text, must not be able to forge a line of a log or turn its text around.
func FuzzErrorText(f *testing.F) {
	f.Add("/srv/app/a.js", "because")
	f.Add("a\nholdstill: done", "\x1b[2J")
	f.Add("\xff\u202e", "\"\u2028")
	f.Fuzz(func(t *testing.T, name, text string) {
		link := &snapshot.Entry{Path: name, Mode: fs.ModeSymlink | 0o777, Link: text}
		file := &snapshot.Entry{Path: name, Size: 1}
		_, lookup := manifestOf(t, dirEntry(".")).Lookup(name)
		for _, err := range []error{
			&snapshot.ChangeError{Path: name, Reason: snapshot.Grew, Err: snapshot.ErrChangedDuringSnapshot},
			&snapshot.EvidenceError{Path: name, Required: snapshot.Coherent, Because: text},
			&snapshot.LimitError{Path: name, Field: "MaxBytes", Limit: 1, Got: 2},
			&snapshot.MismatchError{Path: name, Recorded: link, Received: file},
			&snapshot.TrustError{Path: name, Owner: text, Fix: "chmod go-w " + text},
			&snapshot.ConflictError{Target: name, Conflicts: []snapshot.Conflict{{Path: text}}},
			&snapshot.LeftoverError{Paths: []string{name, text}, Err: errors.New(text)},
			lookup,
		} {
			if err != nil {
				requirePlain(t, err)
			}
		}
	})
}

// requirePlain: one line that does to a terminal what it looks like.
func requirePlain(t *testing.T, err error) {
	t.Helper()
	text := err.Error()
	require.True(t, utf8.ValidString(text), "%q", text)
	for _, r := range text {
		require.True(t, unicode.IsPrint(r), "%U in %q", r, text)
	}
}

// FuzzSkippedJSON: names are bytes, and JSON gives them back exactly.
func FuzzSkippedJSON(f *testing.F) {
	f.Add("logs/a.log", "excluded", "*.log")
	f.Add("\xff", "escapes", "../\xfe")
	f.Add("\ufffd", "skip", "<&>\u2028")
	f.Fuzz(func(t *testing.T, name, because, rule string) {
		if !utf8.ValidString(because) { // it is one of ours
			return
		}
		text, err := json.Marshal(&snapshot.Report{Skipped: []snapshot.Skipped{{Path: name, Because: because, Rule: rule}}, Patterns: []string{rule}})
		require.NoError(t, err)
		var got struct {
			Skipped []struct {
				Path, Because, Rule string
				PathB64             string `json:"path_b64"`
				RuleB64             string `json:"rule_b64"`
			}
			Patterns    []string
			PatternsB64 []string `json:"patterns_b64"`
		}
		require.NoError(t, json.Unmarshal(text, &got))
		require.Len(t, got.Skipped, 1)
		s := got.Skipped[0]
		require.Equal(t, name, exactly(t, s.Path, s.PathB64))
		require.Equal(t, rule, exactly(t, s.Rule, s.RuleB64))
		require.Equal(t, because, s.Because)
		got.PatternsB64 = append(got.PatternsB64, "")
		require.Equal(t, rule, exactly(t, got.Patterns[0], got.PatternsB64[0]))
	})
}

func exactly(t *testing.T, s, b64 string) string {
	t.Helper()
	if b64 == "" {
		return s
	}
	b, err := base64.StdEncoding.DecodeString(b64)
	require.NoError(t, err)
	return string(b)
}
