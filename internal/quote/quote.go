// SPDX-License-Identifier: Apache-2.0

// Package quote makes file names and messages fit to be shown to people: whoever chooses a name must not be able to
// move the cursor, forge a second line or reverse the text around it.
package quote

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// longest is how many runes of a name are shown: enough to tell what it is, too few to bury the rest of a message.
const longest = 200

// Name returns name as it stands if that is safe and clear, else in Go syntax with quotes: if it is empty, begins with
// a quote, begins or ends with a space, or holds bytes that are not UTF-8 or not printable, as are all controls and the
// marks that change the direction of text. A name of more than 200 runes is shortened in its middle.
func Name(name string) string {
	name = shorten(name)
	if name == "" || name[0] == '"' || name[0] == ' ' || name[len(name)-1] == ' ' || !printable(name) {
		return strconv.Quote(name)
	}
	return name
}

// Shell returns name as one word of a POSIX shell.
func Shell(name string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+,@%:", r)
	}
	if name != "" && name[0] != '-' && !strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		return name
	}
	name = Text(name) // a name that no text can give is another name then, and the command fails
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

// Text returns a whole message with what is not printable escaped as Name does, and without quotes.
func Text(text string) string {
	if printable(text) {
		return text
	}
	var b strings.Builder
	for text != "" {
		r, size := utf8.DecodeRuneInString(text)
		piece := text[:size]
		if !plain(r, size) {
			quoted := strconv.Quote(piece)
			piece = quoted[1 : len(quoted)-1]
		}
		b.WriteString(piece)
		text = text[size:]
	}
	return b.String()
}

func printable(s string) bool {
	for s != "" {
		r, size := utf8.DecodeRuneInString(s)
		if !plain(r, size) {
			return false
		}
		s = s[size:]
	}
	return true
}

// plain tells a U+FFFD that stands in the text from the one that marks a byte that is not UTF-8.
func plain(r rune, size int) bool {
	return strconv.IsPrint(r) && (r != utf8.RuneError || size > 1)
}

func shorten(name string) string {
	if len(name) <= longest || utf8.RuneCountInString(name) <= longest {
		return name
	}
	head := 0
	for range longest / 2 {
		_, size := utf8.DecodeRuneInString(name[head:])
		head += size
	}
	tail := len(name)
	for range longest/2 - 1 {
		_, size := utf8.DecodeLastRuneInString(name[:tail])
		tail -= size
	}
	return name[:head] + "…" + name[tail:]
}
