// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Filter is a compiled list of .dockerignore patterns, safe for concurrent use. The zero Filter, and nil, exclude nothing.
//
// A pattern is slash-separated and relative to the root. It holds * and ? (not for a slash), ** (any number of directories),
// [a-z] and [^a-z], and a backslash before a character that shall stand for itself; it means the same on every system. The
// last pattern that matches an entry, or a directory above it, decides: the entry is excluded, or kept if the pattern begins
// with an exclamation mark. Names are bytes: one that is not UTF-8 is a character of its own, equal only to itself,
// and so are the four bytes of each of the last 128 code points, which Unicode gives to nobody.
type Filter struct{ rules []rule }

type rule struct {
	text  string // as given
	clean string // without the exclamation mark and what path.Clean removes
	keep  bool
	match func(path string) bool // path itself, not what is above it
}

// filterState is what the walk hands down from a directory to its entries: one more than the index of the rule that decided,
// zero if none did. One number is enough: a rule that matches an entry decides only if it comes after it.
type filterState int

// NewFilter compiles patterns; a bad or empty one is an [fs.ErrInvalid] error that names it.
func NewFilter(patterns ...string) (*Filter, error) {
	f := &Filter{rules: make([]rule, 0, len(patterns))}
	for _, p := range patterns {
		r, err := newRule(p)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w: %w", p, err, fs.ErrInvalid)
		}
		f.rules = append(f.rules, r)
	}
	return f, nil
}

// Patterns returns the list as given.
func (f *Filter) Patterns() []string {
	if f == nil {
		return nil
	}
	patterns := make([]string, len(f.rules))
	for i, r := range f.rules {
		patterns[i] = r.text
	}
	return patterns
}

// Explain returns the last pattern that matches path (slash-separated, relative to the root), or a directory above it, and
// whether path is excluded. The root itself never is.
func (f *Filter) Explain(name string) (pattern string, excluded bool) {
	name = strings.TrimPrefix(path.Clean(name), "/")
	var state filterState
	for i := range len(name) {
		if name[i] == '/' {
			_, _, state = f.match(name[:i], state)
		}
	}
	excluded, pattern, _ = f.match(name, state)
	return pattern, excluded
}

// match decides on path, whose directory has the state parent.
func (f *Filter) match(path string, parent filterState) (excluded bool, rule string, state filterState) {
	if f == nil || path == "" || path == "." {
		return false, "", 0
	}
	state = parent
	for i := len(f.rules) - 1; i >= int(parent); i-- {
		if f.rules[i].match(path) {
			state = filterState(i + 1)
			break
		}
	}
	if state == 0 {
		return false, "", 0
	}
	decided := &f.rules[state-1]
	return !decided.keep, decided.text, state
}

// mayReinclude reports whether a pattern could keep something beneath dir, so that dir must be walked although it is excluded.
// It may be wrong only in saying so.
func (f *Filter) mayReinclude(dir string) bool {
	if f == nil {
		return false
	}
	return slices.ContainsFunc(f.rules, func(r rule) bool { return r.keep && r.mayMatchBeneath(dir) })
}

func (r *rule) mayMatchBeneath(dir string) bool {
	above := strings.Split(dir, "/")
	for i, part := range strings.Split(r.clean, "/") {
		switch {
		case i == len(above):
			return true
		case strings.Contains(part, "**"), strings.Contains(part, "["): // [^a] matches a slash
			return true
		case !strings.ContainsAny(part, `*?\`) && part != above[i]:
			return false
		}
	}
	return false
}

func newRule(pattern string) (rule, error) {
	p, keep := strings.CutPrefix(strings.TrimSpace(pattern), "!")
	p = strings.TrimPrefix(path.Clean(strings.TrimSpace(p)), "/")
	if p == "" || p == "." {
		return rule{}, errors.New("it matches nothing")
	}
	match, err := matcher(p)
	return rule{text: pattern, clean: p, keep: keep, match: match}, err
}

// matcher compiles one pattern. The forms that people write most need no regular expression, which takes 1 to 2 µs, like an
// open. For the others, such as **/*.o, the literal end of the pattern turns most names down first.
func matcher(p string) (func(string) bool, error) {
	const special = `*?[\`
	if !strings.ContainsAny(p, special) {
		return func(s string) bool { return s == p }, nil
	}
	if head, ok := strings.CutSuffix(p, "**"); ok && !strings.ContainsAny(head, special) {
		return func(s string) bool { return strings.HasPrefix(s, head) }, nil
	}
	if tail, ok := strings.CutPrefix(p, "**"); ok && !strings.ContainsAny(tail, special) {
		return func(s string) bool {
			return strings.HasSuffix(s, tail) || tail[0] == '/' && s == tail[1:]
		}, nil
	}
	expr, err := expression(opaque(p))
	if err != nil {
		return nil, err
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, err
	}
	end := strings.TrimLeft(p[strings.LastIndexAny(p, `*?[]\`)+1:], "/") // **/ may match nothing, with its slash
	return func(s string) bool { return strings.HasSuffix(s, end) && re.MatchString(opaque(s)) }, nil
}

// expression translates a pattern. It follows github.com/moby/patternmatcher, which defines the syntax, and is not that
// package because it prints to standard error where a pattern is not UTF-8, lets no "**" match a name with a line feed,
// takes all bytes that are not UTF-8 for the same one, and reads \d as any digit.
func expression(p string) (string, error) {
	var b strings.Builder
	b.WriteString("(?s)^")
	for p != "" {
		r, n := utf8.DecodeRuneInString(p)
		p = p[n:]
		switch r {
		case '*':
			rest, double := strings.CutPrefix(p, "*")
			switch {
			case !double:
				b.WriteString("[^/]*")
			case strings.TrimPrefix(rest, "/") == "":
				b.WriteString(".*")
				rest = ""
			default:
				b.WriteString("(.*/)?")
				rest = strings.TrimPrefix(rest, "/")
			}
			p = rest
		case '?':
			b.WriteString("[^/]")
		case '[':
			rest, err := class(&b, p)
			if err != nil {
				return "", err
			}
			p = rest
		case '\\':
			if p == "" {
				return "", errors.New("it ends with a backslash")
			}
			_, n = utf8.DecodeRuneInString(p)
			b.WriteString(regexp.QuoteMeta(p[:n]))
			p = p[n:]
		default:
			b.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	b.WriteString("$")
	return b.String(), nil
}

// class translates a character class, p being what follows its bracket, with the strictness of path.Match.
func class(b *strings.Builder, p string) (rest string, err error) {
	b.WriteString("[")
	p, negated := strings.CutPrefix(p, "^")
	if negated {
		b.WriteString("^")
	}
	for members := 0; ; members++ {
		if rest, closed := strings.CutPrefix(p, "]"); closed && members > 0 {
			b.WriteString("]")
			return rest, nil
		}
		low, rest, err := classRune(p)
		if err != nil {
			return "", err
		}
		high := low
		if after, ranged := strings.CutPrefix(rest, "-"); ranged {
			if high, rest, err = classRune(after); err != nil {
				return "", err
			}
		}
		fmt.Fprintf(b, `\x{%x}-\x{%x}`, low, high)
		p = rest
	}
}

func classRune(p string) (r rune, rest string, err error) {
	if p != "" && (p[0] == '-' || p[0] == ']') {
		return 0, "", fmt.Errorf("%q in a character class needs a backslash", p[0])
	}
	p = strings.TrimPrefix(p, `\`)
	if p == "" {
		return 0, "", errors.New("a character class is not closed")
	}
	r, n := utf8.DecodeRuneInString(p)
	return r, p[n:], nil
}

// firstOpaque begins the last 128 code points, which Unicode gives to nobody. They stand for bytes that are not UTF-8.
const firstOpaque = utf8.MaxRune - 127

// opaque returns s with each byte that is not UTF-8 as a code point of its own, because the regexp package reads all of them as
// U+FFFD. Distinct strings stay distinct: the bytes of a code point that is used for this are replaced likewise.
func opaque(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r >= firstOpaque }) {
		return s
	}
	var b strings.Builder
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 || r >= firstOpaque {
			for _, c := range []byte(s[:n]) {
				b.WriteRune(firstOpaque + rune(c) - utf8.RuneSelf)
			}
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}
