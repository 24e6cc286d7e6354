// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"io/fs"
	"math"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
)

// FuzzParseSize compares with arithmetic that has no bounds.
func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"1", "0", "-1", "-2", "64K", "16MiB", "2G", "1TiB", "iB", "1iB", "8388608T", "9223372036854775808", "007", "1k", "+1", "１"} {
		f.Add(s)
	}
	syntax := regexp.MustCompile(`\A([0-9]+)([KMGT]?)(?:iB)?\z`)
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseSize(s)
		if s == "-1" {
			require.NoError(t, err)
			require.EqualValues(t, -1, got)
			return
		}
		m := syntax.FindStringSubmatch(s)
		if m == nil || m[2] == "" && strings.HasSuffix(s, "iB") {
			require.Error(t, err)
			return
		}
		want, ok := new(big.Int).SetString(m[1], 10)
		require.True(t, ok)
		want.Lsh(want, uint(10*(strings.Index("KMGT", m[2])+1)*len(m[2])))
		if want.Sign() == 0 || !want.IsInt64() {
			require.Error(t, err, "parseSize(%q)", s)
			require.Zero(t, got)
			return
		}
		require.NoError(t, err, "parseSize(%q)", s)
		require.Equal(t, want.Int64(), got, "parseSize(%q)", s)
	})
}

// FuzzFormatSize: three or four digits that are right.
func FuzzFormatSize(f *testing.F) {
	for _, n := range []int64{0, 1, 1023, 1024, 1<<20 - 1, 1<<20 - 52, 1<<20 - 51, math.MaxInt64} {
		f.Add(n)
	}
	syntax := regexp.MustCompile(`\A([0-9]{1,3}|1[0-9]{3}) bytes\z|\A([0-9]{1,4}\.[0-9]) ([KMGTPE])iB\z`)
	f.Fuzz(func(t *testing.T, n int64) {
		if n < 0 {
			return
		}
		s := formatSize(n)
		m := syntax.FindStringSubmatch(s)
		require.NotNil(t, m, "%s", s)
		if m[1] != "" {
			require.Equal(t, big.NewInt(n).String(), m[1])
			return
		}
		shown, ok := new(big.Float).SetString(m[2])
		require.True(t, ok)
		unit := new(big.Float).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(10*(strings.Index("KMGTPE", m[3])+1))))
		value, _ := new(big.Float).Quo(new(big.Float).SetInt64(n), unit).Float64()
		about, _ := shown.Float64()
		require.InDelta(t, value, about, 0.0501, "formatSize(%d) = %s", n, s)
		require.True(t, about < 1024 && about >= 1, "formatSize(%d) = %s", n, s)
	})
}

// FuzzParseArguments: arguments are separated by NUL, which no system lets through.
func FuzzParseArguments(f *testing.F) {
	for _, s := range []string{
		"a\x00b", "--json\x00a\x00b", "a\x00--exclude\x00--\x00b", "--\x00--json\x00-rf", "--require=coherent\x00a\x00-\x00", "--links\x00verbatim\x00a\x00b",
		"--max-bytes=2G\x00--workers\x003\x00--stall=90ms\x00a\x00b", "-h", "--exclude\x00[\x00a\x00b", "--attempts\x00a\x00b", "---\x00", "a\x00b\x00c",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\x00")
		for _, v := range verbs() {
			c := newCall(v, io.Discard, io.Discard, &environ{})
			v.setup(c)
			operands, err := c.parse(args)
			if err != nil {
				var usage *usageError
				require.ErrorAs(t, err, &usage)
				require.Nil(t, operands)
				continue
			}
			if c.help {
				continue
			}
			require.True(t, len(operands) >= v.min && len(operands) <= v.max, "%s %q: %q", v.name, args, operands)
			rest := args
			for _, o := range operands { // they are some of the arguments, in that order
				require.NotEmpty(t, o)
				for len(rest) > 0 && rest[0] != o {
					rest = rest[1:]
				}
				require.NotEmpty(t, rest, "%s %q: %q", v.name, args, operands)
				rest = rest[1:]
			}
			require.Equal(t, c.patterns, c.options.Exclude.Patterns())
			again := newCall(v, io.Discard, io.Discard, &environ{})
			v.setup(again)
			same, err := again.parse(append([]string{"--"}, operands...))
			require.NoError(t, err)
			require.Equal(t, operands, same, "behind -- all are operands")
			require.Equal(t, snapshot.Options{}, again.options)
		}
	})
}

// FuzzErrorObject: a program gets the name back exactly, people get one harmless line.
func FuzzErrorObject(f *testing.F) {
	f.Add("/srv/app/a.js", "open")
	f.Add("a\n\xff", "\x1b[2J\u202e")
	f.Add("\ufffd", "<\u2028>")
	f.Fuzz(func(t *testing.T, path, text string) {
		err := &fs.PathError{Op: "open", Path: path, Err: &usageError{text}}
		var out strings.Builder
		require.NoError(t, encode(&out, map[string]failure{"error": describe(err)}))
		require.Equal(t, 1, strings.Count(out.String(), "\n"))
		var got struct {
			Error struct {
				Code, Path, Message string
				B64                 []byte `json:"path_b64"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(out.String()), &got))
		require.Equal(t, "io", got.Error.Code)
		if got.Error.B64 != nil {
			got.Error.Path = string(got.Error.B64)
		}
		require.Equal(t, path, got.Error.Path)
		require.True(t, utf8.ValidString(got.Error.Message))
		for _, r := range got.Error.Message {
			require.True(t, unicode.IsPrint(r), "%U in %q", r, got.Error.Message)
		}
	})
}
