// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
)

func newTake() *call {
	v := takeVerb()
	c := newCall(v, io.Discard, io.Discard, &environ{})
	v.setup(c)
	return c
}

func TestParseFindsFlagsAnywhere(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args     []string
		operands []string
		patterns []string
		json     bool
	}{
		{[]string{"a", "b"}, []string{"a", "b"}, nil, false},
		{[]string{"--json", "a", "b"}, []string{"a", "b"}, nil, true},
		{[]string{"a", "-json", "b"}, []string{"a", "b"}, nil, true},
		{[]string{"a", "b", "--json"}, []string{"a", "b"}, nil, true},
		{[]string{"a", "--json=false", "b"}, []string{"a", "b"}, nil, false},
		{[]string{"a", "--exclude", "x", "b", "--exclude=y"}, []string{"a", "b"}, []string{"x", "y"}, false},
		{[]string{"--", "--json", "-rf"}, []string{"--json", "-rf"}, nil, false},
		{[]string{"a", "--", "--"}, []string{"a", "--"}, nil, false},
		{[]string{"--exclude", "--", "a", "--json", "b"}, []string{"a", "b"}, []string{"--"}, true},
		{[]string{"--exclude", "--json", "--", "a", "-b"}, []string{"a", "-b"}, []string{"--json"}, false},
		{[]string{"-", "b"}, []string{"-", "b"}, nil, false},
	} {
		c := newTake()
		operands, err := c.parse(tt.args)
		require.NoError(t, err, "parse(%q)", tt.args)
		assert.Equal(t, tt.operands, operands, "parse(%q)", tt.args)
		assert.Equal(t, tt.patterns, c.patterns, "parse(%q)", tt.args)
		assert.Equal(t, tt.json, c.json, "parse(%q)", tt.args)
	}
}

func TestFlagsReachTheOptions(t *testing.T) {
	t.Parallel()
	c := newTake()
	_, err := c.parse([]string{
		"--attempts", "7", "--require", "coherent", "--never-lock", "--links", "inside-or-skip", "--skip-special", "--cross-mounts",
		"--single-link", "--max-file-bytes", "16MiB", "--max-bytes", "2G", "--max-entries", "1000", "--reserve", "-1", "--per-file",
		"--preserve-mode", "--durable", "--workers", "3", "--recall", "--stall", "90ms", "--exclude", "*.o", "a", "b",
	})
	require.NoError(t, err)
	assert.Equal(t, []string{"*.o"}, c.options.Exclude.Patterns())
	c.options.Exclude = nil
	assert.Equal(t, snapshot.Options{
		Attempts: 7, Require: snapshot.Coherent, NeverLock: true, Links: snapshot.LinksInsideOrSkip, SkipSpecial: true,
		CrossMounts: true, SingleLink: true, PerFile: true, PreserveMode: true, Durable: true, Workers: 3, Recall: true,
		Stall:  90 * time.Millisecond,
		Limits: snapshot.Limits{MaxFileBytes: 16 << 20, MaxBytes: 2 << 30, MaxEntries: 1000, ReserveBytes: -1},
	}, c.options)

	c = newTake()
	_, err = c.parse([]string{"a", "b"})
	require.NoError(t, err)
	assert.Equal(t, snapshot.Options{}, c.options)
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want int64
	}{
		{"1", 1},
		{"4096", 4096},
		{"64K", 64 << 10},
		{"64KiB", 64 << 10},
		{"16MiB", 16 << 20},
		{"2G", 2 << 30},
		{"1TiB", 1 << 40},
		{"-1", -1},
		{"9223372036854775807", 1<<63 - 1},
		{"8388607T", 8388607 << 40},
	} {
		got, err := parseSize(tt.text)
		require.NoError(t, err, "parseSize(%q)", tt.text)
		assert.Equal(t, tt.want, got, "parseSize(%q)", tt.text)
	}
	for _, text := range []string{
		"", "0", "0K", "-2", "-1K", "+1", "1.5G", "1 G", "K", "iB", "1iB", "1KB", "1MB", "1k", "1KiBiB", "0x10", "1_000",
		"9223372036854775808", "8388608T", "99999999999999999999",
	} {
		_, err := parseSize(text)
		assert.Error(t, err, "parseSize(%q)", text)
	}
}

func TestFormatSize(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		n    int64
		want string
	}{
		{0, "0 bytes"},
		{1023, "1023 bytes"},
		{1024, "1.0 KiB"},
		{12_900_000, "12.3 MiB"},
		{1<<20 - 1, "1.0 MiB"},
		{1<<63 - 1, "8.0 EiB"},
	} {
		assert.Equal(t, tt.want, formatSize(tt.n), "formatSize(%d)", tt.n)
	}
}
