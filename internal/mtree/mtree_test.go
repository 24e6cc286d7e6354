// SPDX-License-Identifier: Apache-2.0

package mtree_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot/internal/mtree"
)

var (
	hexSum = strings.Repeat("0123456789abcdef", 4)
	sum    = func() (d [32]byte) {
		for i := range d {
			d[i] = []byte{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef}[i%8]
		}
		return d
	}()
)

func dir(path string) mtree.Entry { return mtree.Entry{Path: path, Mode: fs.ModeDir | 0o755} }

func file(path string) mtree.Entry {
	return mtree.Entry{Path: path, Mode: 0o644, Size: int64(len(path)), Digest: sum}
}

func link(path, text string) mtree.Entry {
	return mtree.Entry{Path: path, Mode: fs.ModeSymlink | 0o777, Link: text}
}

func write(entries ...mtree.Entry) (string, error) {
	var b bytes.Buffer
	w := mtree.NewWriter(&b)
	for _, e := range entries {
		if off := w.Offset(); w.Write(e) == nil && off >= w.Offset() {
			return "", errors.New("offset stands still")
		}
	}
	err := w.Flush()
	return b.String(), err
}

func read(src io.Reader) (entries []mtree.Entry, err error) {
	r := mtree.NewReader(src)
	for r.Next() {
		entries = append(entries, r.Entry())
	}
	return entries, r.Err()
}

func TestText(t *testing.T) {
	t.Parallel()
	entries := []mtree.Entry{
		dir("."),
		{Path: "-rf", Mode: 0, Size: math.MaxInt64, Digest: sum},
		{Path: "a", Mode: fs.ModeDir | 0o700},
		{Path: "a/\xe9", Mode: 0o777, Digest: sum},
		{Path: "a/é", Mode: 0o400, Size: 10, Digest: sum},
		link("ln", "tgt \xff\n"),
		file("sp ace"),
		file("z\x01\t\n\r\x1b[0m#*=?\\\x7f"),
	}
	const tail = " sha256digest=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n"
	want := "#mtree v2.0\n" +
		". type=dir mode=0755\n" +
		"./-rf type=file mode=0000 size=9223372036854775807" + tail +
		"./a type=dir mode=0700\n" +
		`./a/\303\251 type=file mode=0400 size=10` + tail +
		`./a/\351 type=file mode=0777 size=0` + tail +
		`./ln type=link mode=0777 link=tgt\040\377\012` + "\n" +
		`./sp\040ace type=file mode=0644 size=6` + tail +
		`./z\001\011\012\015\033\1330m\043\052\075\077\134\177 type=file mode=0644 size=15` + tail
	slices.SortFunc(entries, func(a, b mtree.Entry) int { return mtree.Compare(a.Path, b.Path) })
	text, err := write(entries...)
	require.NoError(t, err)
	assert.Equal(t, want, text)

	for name, src := range map[string]io.Reader{
		"whole":   strings.NewReader(text),
		"bytes":   iotest.OneByteReader(strings.NewReader(text)),
		"dataErr": iotest.DataErrReader(strings.NewReader(text)),
	} {
		got, err := read(src)
		require.NoError(t, err, name)
		assert.Equal(t, entries, got, name)
	}
}

func TestEveryByte(t *testing.T) {
	t.Parallel()
	entries := []mtree.Entry{dir(".")}
	for c := range 256 {
		if c == 0 || c == '/' {
			continue
		}
		entries = append(entries, link("x"+string([]byte{byte(c)}), string([]byte{byte(c)})))
	}
	text, err := write(entries...)
	require.NoError(t, err)
	got, err := read(strings.NewReader(text))
	require.NoError(t, err)
	assert.Equal(t, entries, got)
	for i := range len(text) {
		if c := text[i]; c != '\n' {
			require.True(t, c >= ' ' && c < 0x7f, "byte %#x at %d", c, i)
		}
	}
}

func TestLongest(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("\xff", mtree.MaxPath)
	target := strings.Repeat("\xfe", mtree.MaxLink)
	text, err := write(dir("."), link(long, target))
	require.NoError(t, err)
	got, err := read(strings.NewReader(text))
	require.NoError(t, err)
	assert.True(t, got[1] == link(long, target), "the longest line is read as written")

	for name, e := range map[string]mtree.Entry{"path": file(long + "x"), "link": link("a", target+"x")} {
		_, err := write(dir("."), e)
		require.ErrorIs(t, err, fs.ErrInvalid, name)
	}
	for name, text := range map[string]string{
		"path":    strings.Replace(text, "./", "./x", 1),
		"link":    strings.Replace(text, "link=\\376", "link=x\\376", 1),
		"no line": "#mtree v2.0\n. type=dir mode=0755\n./" + strings.Repeat("a", 1<<20),
	} {
		_, err := read(strings.NewReader(text))
		require.ErrorIs(t, err, fs.ErrInvalid, name)
		require.ErrorContains(t, err, "line 3: ", name)
	}
}

func TestReaderRefuses(t *testing.T) {
	t.Parallel()
	const head = "#mtree v2.0\n"
	const root = head + ". type=dir mode=0755\n"
	dir := func(path string) string { return path + " type=dir mode=0755\n" }
	file := func(path string) string {
		return path + " type=file mode=0644 size=1 sha256digest=" + hexSum + "\n"
	}
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", "line 1: first line is not #mtree v2.0"},
		{"another version", "#mtree v1.0\n" + dir("."), "line 1: first line is not #mtree v2.0"},
		{"no header", dir("."), "line 1: first line is not #mtree v2.0"},
		{"header with CR", "#mtree v2.0\r\n" + dir("."), "line 1: first line is not #mtree v2.0"},
		{"header alone", head, "line 2: first entry is not the root directory"},
		{"header without newline", "#mtree v2.0", "line 1: last line has no newline"},
		{"no root", head + dir("./a"), "line 2: first entry is not the root directory"},
		{"root is a file", head + file("."), "line 2: first entry is not the root directory"},
		{"root is a link", head + ". type=link mode=0777 link=a\n", "line 2: first entry is not the root directory"},
		{"root twice", root + dir("."), "line 3: path is there already"},
		{"root later", root + dir("./a") + dir("."), "line 4: path is there already"},
		{"no final newline", strings.TrimSuffix(root+dir("./a"), "\n"), "line 3: last line has no newline"},
		{"CR", root + "./a type=dir mode=0755\r\n", "line 3: fields beyond those of the type"},
		{"CR in the path", root + dir("./a\r"), "line 3: not the canonical escape"},
		{"blank line", root + "\n" + dir("./a"), `line 3: path is neither "." nor begins with "./"`},
		{"comment", root + "# a\n", `line 3: path is neither "." nor begins with "./"`},
		{"/set", root + "/set type=dir\n", `line 3: path is neither "." nor begins with "./"`},
		{"..", root + "..\n", `line 3: path is neither "." nor begins with "./"`},
		{"relative", root + dir("a"), `line 3: path is neither "." nor begins with "./"`},
		{"absolute", root + dir("/a"), `line 3: path is neither "." nor begins with "./"`},
		{"absolute below the root", root + dir(".//a"), `line 3: path has an empty, "." or ".." component`},
		{"empty path", root + dir("./"), `line 3: path has an empty, "." or ".." component`},
		{"empty component", root + dir("./a") + dir("./a//b"), `line 4: path has an empty, "." or ".." component`},
		{"slash at the end", root + dir("./a/"), `line 3: path has an empty, "." or ".." component`},
		{"component .", root + dir("./a") + dir("./a/./b"), `line 4: path has an empty, "." or ".." component`},
		{"component ..", root + dir("./../a"), `line 3: path has an empty, "." or ".." component`},
		{".. at the end", root + dir("./a") + dir("./a/.."), `line 4: path has an empty, "." or ".." component`},
		{"NUL", root + dir(`./a\000`), "line 3: NUL byte"},
		{"NUL in a link", root + `./a type=link mode=0777 link=a\000` + "\n", "line 3: NUL byte"},
		{"escaped letter", root + dir(`./\141`), "line 3: not the canonical escape"},
		{"escaped slash", root + dir(`./a\057b`), "line 3: not the canonical escape"},
		{"VIS_CSTYLE", root + dir(`./a\sb`), "line 3: not the canonical escape"},
		{"escaped hash", root + dir(`./\#`), "line 3: not the canonical escape"},
		{"raw byte", root + dir("./\xe9"), "line 3: not the canonical escape"},
		{"raw tab", root + dir("./a\tb"), "line 3: not the canonical escape"},
		{"raw NUL", root + dir("./a\x00"), "line 3: not the canonical escape"},
		{"short escape", root + dir(`./a\04`), "line 3: not the canonical escape"},
		{"not octal", root + dir(`./a\048`), "line 3: not the canonical escape"},
		{"more than a byte", root + dir(`./a\440`), "line 3: not the canonical escape"},
		{"space in the link", root + "./a type=link mode=0777 link=a b\n", "line 3: not the canonical escape"},
		{"unsorted", root + dir("./b") + dir("./a"), "line 4: paths are not sorted"},
		{"sorted by bytes", root + dir("./a") + dir("./a-b") + dir("./a/b"), "line 5: paths are not sorted"},
		{"parent after child", root + dir("./a") + dir("./a/b") + dir("./a"), "line 5: paths are not sorted"},
		{"duplicate", root + file("./a") + file("./a"), "line 4: path is there already"},
		{"no parent", root + dir("./a/b"), "line 3: parent has no entry"},
		{"no parent beside one", root + dir("./a") + dir("./a/b") + dir("./a/c/d"), "line 5: parent has no entry"},
		{"parent is a longer name", root + dir("./ab") + dir("./b") + dir("./ba/b"), "line 5: parent has no entry"},
		{"parent is a shorter name", root + dir("./a") + dir("./ab/c"), "line 4: parent has no entry"},
		{"parent is a file", root + file("./a") + dir("./a/b"), "line 4: parent is not a directory"},
		{"parent is a link", root + "./a type=link mode=0777 link=b\n" + dir("./a/b"), "line 4: parent is not a directory"},
		{"no fields", root + "./a\n", "line 3: no type=dir, file or link followed by mode="},
		{"unknown type", root + "./a type=fifo mode=0644\n", "line 3: no type=dir, file or link followed by mode="},
		{"mode before type", root + "./a mode=0755 type=dir\n", "line 3: no type=dir, file or link followed by mode="},
		{"two spaces", root + "./a  type=dir mode=0755\n", "line 3: no type=dir, file or link followed by mode="},
		{"no mode", root + "./a type=dir\n", "line 3: no type=dir, file or link followed by mode="},
		{"mode of three digits", root + "./a type=dir mode=755\n", "line 3: mode is not four octal digits up to 0777"},
		{"mode of five digits", root + "./a type=dir mode=00755\n", "line 3: fields beyond those of the type"},
		{"setuid", root + "./a type=dir mode=4755\n", "line 3: mode is not four octal digits up to 0777"},
		{"mode not octal", root + "./a type=dir mode=0785\n", "line 3: mode is not four octal digits up to 0777"},
		{"mode empty", root + "./a type=dir mode=\n", "line 3: mode is not four octal digits up to 0777"},
		{"mode of a link", root + "./a type=link mode=0755 link=b\n", "line 3: mode of a link is not 0777"},
		{"link without text", root + "./a type=link mode=0777\n", "line 3: no text of a link, or one over 4095 bytes"},
		{"link with empty text", root + "./a type=link mode=0777 link=\n", "line 3: no text of a link, or one over 4095 bytes"},
		{"directory with size", root + "./a type=dir mode=0755 size=0\n", "line 3: fields beyond those of the type"},
		{"space at the end", root + "./a type=dir mode=0755 \n", "line 3: fields beyond those of the type"},
		{"no size", strings.Replace(root+file("./a"), " size=1", "", 1), "line 3: size is not a number in its shortest form"},
		{"size empty", strings.Replace(root+file("./a"), "=1", "=", 1), "line 3: size is not a number in its shortest form"},
		{"size negative", strings.Replace(root+file("./a"), "=1", "=-1", 1), "line 3: size is not a number in its shortest form"},
		{"size with a sign", strings.Replace(root+file("./a"), "=1", "=+1", 1), "line 3: size is not a number in its shortest form"},
		{"size with a zero before it", strings.Replace(root+file("./a"), "=1", "=01", 1), "line 3: size is not a number in its shortest form"},
		{"size twice zero", strings.Replace(root+file("./a"), "=1", "=00", 1), "line 3: size is not a number in its shortest form"},
		{"size not decimal", strings.Replace(root+file("./a"), "=1", "=0x1", 1), "line 3: size is not a number in its shortest form"},
		{"size with underscore", strings.Replace(root+file("./a"), "=1", "=1_0", 1), "line 3: size is not a number in its shortest form"},
		{"size over int64", strings.Replace(root+file("./a"), "=1", "=9223372036854775808", 1), "line 3: size is not a number in its shortest form"},
		{"no digest", root + "./a type=file mode=0644 size=1\n", "line 3: sha256digest is not 64 lower-case hexadecimal digits, or all zero"},
		{"sha256", strings.Replace(root+file("./a"), "sha256digest", "sha256", 1), "line 3: sha256digest is not 64 lower-case hexadecimal digits, or all zero"},
		{"digest too short", strings.Replace(root+file("./a"), "f\n", "\n", 1), "line 3: sha256digest is not 64 lower-case hexadecimal digits, or all zero"},
		{"digest too long", strings.Replace(root+file("./a"), "f\n", "ff\n", 1), "line 3: fields beyond those of the type"},
		{"digest in upper case", strings.Replace(root+file("./a"), "f\n", "F\n", 1), "line 3: sha256digest is not 64 lower-case hexadecimal digits, or all zero"},
		{"digest not hexadecimal", strings.Replace(root+file("./a"), "f\n", "g\n", 1), "line 3: sha256digest is not 64 lower-case hexadecimal digits, or all zero"},
		{"digest zero", strings.Replace(root+file("./a"), hexSum, strings.Repeat("0", 64), 1), "line 3: sha256digest is not 64 lower-case hexadecimal digits, or all zero"},
		{"extra field", strings.Replace(root+file("./a"), "f\n", "f time=1.0\n", 1), "line 3: fields beyond those of the type"},
		{"optional", strings.Replace(root+file("./a"), "f\n", "f optional\n", 1), "line 3: fields beyond those of the type"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := read(strings.NewReader(test.text))
			assert.ErrorIs(t, err, fs.ErrInvalid)
			assert.EqualError(t, err, test.want)
		})
	}
}

func TestWriterRefuses(t *testing.T) {
	t.Parallel()
	const typeMask = fs.ModeDevice
	for _, test := range []struct {
		name    string
		entries []mtree.Entry
	}{
		{"no entry", nil},
		{"no root", []mtree.Entry{dir("a")}},
		{"root is a file", []mtree.Entry{file(".")}},
		{"root is a link", []mtree.Entry{link(".", "a")}},
		{"root twice", []mtree.Entry{dir("."), dir(".")}},
		{"empty path", []mtree.Entry{dir("."), dir("")}},
		{"absolute", []mtree.Entry{dir("."), dir("/a")}},
		{"with ./", []mtree.Entry{dir("."), dir("./a")}},
		{"..", []mtree.Entry{dir("."), dir("..")}},
		{"NUL", []mtree.Entry{dir("."), file("a\x00b")}},
		{"unsorted", []mtree.Entry{dir("."), file("b"), file("a")}},
		{"sorted by bytes", []mtree.Entry{dir("."), dir("a"), file("a-b"), file("a/b")}},
		{"duplicate", []mtree.Entry{dir("."), file("a"), file("a")}},
		{"no parent", []mtree.Entry{dir("."), file("a/b")}},
		{"parent is a file", []mtree.Entry{dir("."), file("a"), file("a/b")}},
		{"device", []mtree.Entry{dir("."), {Path: "a", Mode: typeMask | 0o644}}},
		{"setuid", []mtree.Entry{dir("."), {Path: "a", Mode: fs.ModeSetuid | 0o755, Digest: sum}}},
		{"sticky", []mtree.Entry{{Path: ".", Mode: fs.ModeDir | fs.ModeSticky | 0o777}}},
		{"size negative", []mtree.Entry{dir("."), {Path: "a", Size: -1, Digest: sum}}},
		{"no digest", []mtree.Entry{dir("."), {Path: "a", Size: 1}}},
		{"file with link", []mtree.Entry{dir("."), {Path: "a", Digest: sum, Link: "b"}}},
		{"directory with size", []mtree.Entry{dir("."), {Path: "a", Mode: fs.ModeDir, Size: 1}}},
		{"directory with digest", []mtree.Entry{dir("."), {Path: "a", Mode: fs.ModeDir, Digest: sum}}},
		{"directory with link", []mtree.Entry{dir("."), {Path: "a", Mode: fs.ModeDir, Link: "b"}}},
		{"link with size", []mtree.Entry{dir("."), {Path: "a", Mode: fs.ModeSymlink | 0o777, Link: "b", Size: 1}}},
		{"mode of a link", []mtree.Entry{dir("."), {Path: "a", Mode: fs.ModeSymlink | 0o755, Link: "b"}}},
		{"link without text", []mtree.Entry{dir("."), link("a", "")}},
		{"NUL in a link", []mtree.Entry{dir("."), link("a", "b\x00")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := write(test.entries...)
			assert.ErrorIs(t, err, fs.ErrInvalid)
		})
	}
}

func TestWriterErrorStays(t *testing.T) {
	t.Parallel()
	w := mtree.NewWriter(io.Discard)
	require.NoError(t, w.Write(dir(".")))
	err := w.Write(dir(".."))
	require.ErrorIs(t, err, fs.ErrInvalid)
	assert.Equal(t, err, w.Write(dir("a")))
	assert.Equal(t, err, w.Flush())

	w = mtree.NewWriter(failingWriter{})
	require.NoError(t, w.Write(dir(".")))
	assert.ErrorIs(t, w.Flush(), fs.ErrPermission)
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, fs.ErrPermission }

func TestReaderPassesErrors(t *testing.T) {
	t.Parallel()
	_, err := read(io.MultiReader(strings.NewReader("#mtree v2.0\n. type=d"), iotest.ErrReader(fs.ErrPermission)))
	assert.Equal(t, fs.ErrPermission, err)
	wrapped := fmt.Errorf("connection: %w", io.EOF)
	_, err = read(io.MultiReader(strings.NewReader("#mtree v2.0\n. type=dir mode=0755\n"), iotest.ErrReader(wrapped)))
	assert.Equal(t, wrapped, err, "a wrapped end is no end")
	_, err = read(stuckReader{})
	assert.Equal(t, io.ErrNoProgress, err)
}

type stuckReader struct{}

func (stuckReader) Read([]byte) (int, error) { return 0, nil }

func TestCompare(t *testing.T) {
	t.Parallel()
	sorted := []string{".", "\x01", "!", "-", ".a", "a", "a/b", "a/b/c", "a/b-", "a\x01", "a-", "a-/b", "a.b", "ab", "b", "\xff"}
	for i, a := range sorted {
		for j, b := range sorted {
			got := mtree.Compare(a, []byte(b))
			assert.Equal(t, i < j, got < 0, "Compare(%q, %q) = %d", a, b, got)
			assert.Equal(t, i == j, got == 0, "Compare(%q, %q) = %d", a, b, got)
		}
	}
	assert.NotZero(t, mtree.Compare("a\x00b", "a/b"))
}

func TestResume(t *testing.T) {
	t.Parallel()
	text, err := write(dir("."), dir("a"), dir("a/b"), file("a/b/c"), file("a/d"), link("e", "a"))
	require.NoError(t, err)
	r := mtree.NewReader(strings.NewReader(text))
	var entries []mtree.Entry
	var offsets []int64
	for r.Next() {
		assert.True(t, strings.HasPrefix(text[r.Offset():], string(r.Line())+"\n"))
		entries = append(entries, r.Entry())
		offsets = append(offsets, r.Offset())
	}
	for i, off := range offsets {
		r.Resume(strings.NewReader(text[off:]))
		for _, want := range entries[i:] {
			require.True(t, r.Next())
			assert.Equal(t, want, r.Entry())
		}
		assert.False(t, r.Next())
		assert.NoError(t, r.Err())
	}
	r.Resume(strings.NewReader(text[offsets[3]:] + text[offsets[1]:]))
	for range 3 {
		require.True(t, r.Next())
	}
	assert.False(t, r.Next())
	assert.ErrorIs(t, r.Err(), fs.ErrInvalid, "what follows the first line is checked as ever")
}

// A Reader demands of every text what a map of all its paths would.
func TestParentsAgainstMap(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	accepted := 0
	for range 20000 {
		entries := []mtree.Entry{dir(".")}
		for range rnd.IntN(6) {
			path := []byte{"ab-"[rnd.IntN(3)]}
			for range rnd.IntN(3) {
				path = append(append(path, []string{"/", "-", ""}[rnd.IntN(3)]...), "ab"[rnd.IntN(2)])
			}
			e := dir(string(path))
			if rnd.IntN(4) == 0 {
				e = file(string(path))
			}
			entries = append(entries, e)
		}
		slices.SortStableFunc(entries, func(a, b mtree.Entry) int { return mtree.Compare(a.Path, b.Path) })
		_, err := write(entries...)
		want := true
		isDir := map[string]bool{}
		for _, e := range entries {
			if _, duplicate := isDir[e.Path]; duplicate {
				want = false
			}
			if i := strings.LastIndexByte(e.Path, '/'); i >= 0 && !isDir[e.Path[:i]] {
				want = false
			}
			isDir[e.Path] = e.Mode.IsDir()
		}
		require.Equal(t, want, err == nil, "seed %d: write(%v) = %v", seed, entries, err)
		if want {
			accepted++
		}
	}
	assert.Greater(t, accepted, 1000)
}

func FuzzReader(f *testing.F) {
	text, err := write(dir("."), file("-rf"), dir("a"), file("a/b c"), file("a-b"), link("ln", "../\xff"))
	require.NoError(f, err)
	f.Add([]byte(text))
	f.Add([]byte("#mtree v2.0\n. type=dir mode=0755\n"))
	f.Add([]byte("#mtree v2.0\r\n. type=dir mode=0755\r\n"))
	f.Add([]byte("#mtree v2.0\n. type=dir mode=0755\n./\\141 type=link mode=0777 link=\\057\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, err := read(bytes.NewReader(text))
		slow, slowErr := read(iotest.OneByteReader(bytes.NewReader(text)))
		require.Equal(t, entries, slow)
		if err != nil {
			require.ErrorIs(t, err, fs.ErrInvalid)
			require.EqualError(t, slowErr, err.Error())
			return
		}
		again, err := write(entries...)
		require.NoError(t, err)
		require.Equal(t, string(text), again)
	})
}

func FuzzWriter(f *testing.F) {
	f.Add("a", int64(0), uint32(0o644), "")
	f.Add("sp ace\n#\\=\xe9", int64(math.MaxInt64), uint32(fs.ModeSymlink|0o777), "../*?[]")
	f.Add("-rf", int64(0), uint32(fs.ModeDir|0o700), "")
	f.Fuzz(func(t *testing.T, path string, size int64, mode uint32, text string) {
		e := mtree.Entry{Path: path, Size: size, Mode: fs.FileMode(mode), Link: text}
		if e.Mode.IsRegular() {
			e.Digest = sha256.Sum256([]byte(path))
		}
		written, err := write(dir("."), e)
		if err != nil {
			require.ErrorIs(t, err, fs.ErrInvalid)
			return
		}
		got, err := read(strings.NewReader(written))
		require.NoError(t, err)
		require.Equal(t, []mtree.Entry{dir("."), e}, got)
	})
}

// benchmarkEntries has 200 files in each of 50 directories.
func benchmarkEntries() []mtree.Entry {
	entries := []mtree.Entry{dir(".")}
	for d := range 50 {
		name := "node_modules/pkg" + string([]byte{'a' + byte(d/10), 'a' + byte(d%10)})
		if d == 0 {
			entries = append(entries, dir("node_modules"))
		}
		entries = append(entries, dir(name))
		for f := range 200 {
			e := file(name + "/dist/" + string([]byte{'a' + byte(f/20), 'a' + byte(f%20)}) + "-index.js")
			if f == 0 {
				entries = append(entries, dir(name+"/dist"))
			}
			e.Digest = sha256.Sum256([]byte(e.Path))
			entries = append(entries, e)
		}
	}
	return entries
}

func BenchmarkWriter(b *testing.B) {
	entries := benchmarkEntries()
	b.ReportAllocs()
	for b.Loop() {
		w := mtree.NewWriter(io.Discard)
		for _, e := range entries {
			if err := w.Write(e); err != nil {
				b.Fatal(err)
			}
		}
	}
	reportLines(b, len(entries))
}

func BenchmarkReader(b *testing.B) {
	entries := benchmarkEntries()
	text, err := write(entries...)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		r := mtree.NewReader(strings.NewReader(text))
		n := 0
		for r.Next() {
			_ = r.Entry()
			n++
		}
		if n != len(entries) {
			b.Fatal(n)
		}
	}
	reportLines(b, len(entries))
}

func reportLines(b *testing.B, lines int) {
	b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}
