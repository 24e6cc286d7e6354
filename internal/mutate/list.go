// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
)

// list is testdata/mutations: what is taken out, and which tests notice.
type list struct {
	head    string // comments at the top
	entries map[string]*entry
}

type entry struct {
	key   string
	tests []string // any of which notices
	why   string   // it is not taken out
}

// readList reads lines of three depths: file and function; how what is taken out; the tests, or "-" and why it is not.
func readList(name string) (*list, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return parseList(name, b)
}

func parseList(name string, b []byte) (*list, error) {
	l := &list{entries: map[string]*entry{}}
	var where string
	var e *entry
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		text := strings.TrimLeft(line, "\t")
		switch depth := len(line) - len(text); {
		case text == "":
		case depth == 0 && text[0] == '#':
			l.head += line + "\n"
		case depth == 0:
			where, e = text, nil
		case depth == 1 && where != "":
			e = &entry{key: where + " " + text}
			if l.entries[e.key] != nil {
				return nil, fmt.Errorf("%s:%d: it is there already", name, n)
			}
			l.entries[e.key] = e
		case depth == 2 && e != nil && strings.HasPrefix(text, "- "):
			e.why = strings.TrimPrefix(text, "- ")
		case depth == 2 && e != nil:
			e.tests = append(e.tests, text)
		default:
			return nil, fmt.Errorf("%s:%d: indented too far", name, n)
		}
	}
	return l, lines.Err()
}

// text writes the list in the order of sites.
func (l *list) text(sites []*site) []byte {
	var b bytes.Buffer
	b.WriteString(l.head)
	where := ""
	for _, s := range sites {
		if next := s.file + " " + s.fn; next != where {
			where = next
			fmt.Fprintf(&b, "\n%s\n", where)
		}
		fmt.Fprintf(&b, "\t%s %s\n", s.op, s.text)
		e := l.entries[s.key()]
		if e == nil {
			continue
		}
		for _, test := range e.tests {
			fmt.Fprintf(&b, "\t\t%s\n", test)
		}
		if e.why != "" {
			fmt.Fprintf(&b, "\t\t- %s\n", e.why)
		}
	}
	return b.Bytes()
}
