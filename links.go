// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"holdstill.example/snapshot/internal/quote"
)

// maxLinkText is PATH_MAX less its NUL: the longest text that Linux takes.
const maxLinkText = 4095

// maxExpansions is what Linux allows a path (path_resolution(7)).
const maxExpansions = 40

// link is the text of a symbolic link and what became of it. Links are resolved inside the copied tree, never by the kernel,
// which would follow what the source is now.
type link struct {
	text string
	copy string // the text in the copy

	state      linkState
	expansions int
	end        spot
	why        leftOut
}

type linkState uint8

const (
	linkOpen linkState = iota
	linkBusy           // being resolved: met again, it is a loop
	linkInside
	linkOutside
)

// spot is an entry of the tree: a directory, or entry n of dir.
type spot struct {
	dir *dir
	n   *node // nil for the directory itself
}

// resolver follows link texts over the entries of a tree, component by component: `a/link/../b` is not path.Clean of it.
type resolver struct {
	*tree
	real, given []string // components of the root's path
}

func newResolver(t *tree) *resolver {
	r := &resolver{tree: t}
	if abs, err := filepath.Abs(t.path); err == nil {
		r.given = components(abs)
		if real, err := filepath.EvalSymlinks(abs); err == nil {
			r.real = components(real)
		}
	}
	return r
}

func components(path string) []string {
	return slices.DeleteFunc(strings.Split(filepath.ToSlash(path), "/"), func(c string) bool { return c == "" })
}

// settle decides what becomes of every link.
func (r *resolver) settle(d *dir) error {
	for i := range d.kids {
		n := &d.kids[i]
		if n.is(skipped) {
			continue
		}
		if n.sub != nil {
			if err := r.settle(n.sub); err != nil {
				return err
			}
		}
		if n.link != nil {
			if err := r.decide(d, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// decide keeps a link's text, writes it anew, leaves the link out, or refuses it.
func (r *resolver) decide(d *dir, i int) error {
	n := &d.kids[i]
	l := n.link
	l.copy = l.text
	if r.opts.Links == LinksVerbatim {
		return nil
	}
	kept := r.follow(d, l)
	switch {
	case l.state == linkInside && (kept || r.staging == nil): // a scan records what is there
		return nil
	case l.state == linkInside:
		l.copy = r.relative(d, l.end)
		if len(l.copy) > maxLinkText {
			return newPathError("link", r.place(d, i), fmt.Errorf("its text in the copy would have %d bytes: %w", len(l.copy), syscall.ENAMETOOLONG))
		}
		return nil
	case r.opts.Links == LinksInsideOrSkip:
		n.leaveOut(l.why)
		return nil
	}
	what := "leads to nothing in the copy"
	if l.why == leftEscapes {
		what = "ends outside " + quote.Name(r.path)
	}
	return newPathError("link", r.place(d, i), fmt.Errorf("%w: its text %s %s", ErrEscapes, quote.Name(l.text), what))
}

// follow finds out, once, where a link in d ends. It reports whether every step of its own text stays below the root, so that
// the text means the same in the copy.
func (r *resolver) follow(d *dir, l *link) (kept bool) {
	switch l.state {
	case linkBusy, linkInside, linkOutside:
		if l.state == linkBusy {
			l.state, l.why = linkOutside, leftDangling
		}
		return false
	}
	l.state, l.expansions = linkBusy, 1
	end, kept, why, ok := r.walk(d, l)
	switch {
	case l.state == linkOutside: // a loop came back here
	case !ok:
		l.state, l.why = linkOutside, why
	case l.expansions > maxExpansions:
		l.state, l.why = linkOutside, leftDangling
	default:
		l.state, l.end = linkInside, end
	}
	return kept
}

// walk takes the steps of a link's text. Outside the root it can only be on the way back to it, over directories of the
// root's own path.
func (r *resolver) walk(d *dir, l *link) (end spot, kept bool, why leftOut, ok bool) {
	at, kept := spot{dir: d}, true
	var outside []string
	in := true
	if strings.HasPrefix(l.text, "/") {
		in, kept = false, false
		in = len(r.real) == 0
		at.dir = r.root
	}
	for step := range strings.SplitSeq(l.text, "/") {
		switch {
		case in && at.n != nil: // a step, or a slash, behind what is no directory
			return spot{}, kept, leftDangling, false
		case step == "" || step == ".":
		case !in:
			if outside, ok = r.stepOutside(outside, step); !ok {
				return spot{}, kept, leftEscapes, false
			}
			if in = r.isRoot(outside); in {
				at = spot{dir: r.root}
			}
		case step == "..":
			if at.dir.parent != nil {
				at.dir = at.dir.parent
				continue
			}
			kept = false
			if len(r.real) > 0 {
				in, outside = false, slices.Clone(r.real[:len(r.real)-1])
			}
		default:
			if at, why, ok = r.stepInside(at.dir, l, step); !ok {
				return spot{}, kept, why, false
			}
		}
	}
	if !in {
		return spot{}, kept, leftEscapes, false
	}
	return at, kept, 0, true
}

func (r *resolver) isRoot(path []string) bool {
	return slices.Equal(path, r.real) || slices.Equal(path, r.given)
}

func (r *resolver) stepOutside(at []string, step string) ([]string, bool) {
	if step == ".." {
		if !hasPrefix(r.real, at) { // a component of the given path may be a link: its parent is not known
			return nil, false
		}
		return at[:max(len(at)-1, 0)], true
	}
	at = append(at, step)
	return at, hasPrefix(r.real, at) || hasPrefix(r.given, at)
}

func hasPrefix(path, prefix []string) bool {
	return len(prefix) <= len(path) && slices.Equal(path[:len(prefix)], prefix)
}

func (r *resolver) stepInside(d *dir, l *link, step string) (spot, leftOut, bool) {
	n := r.find(d, step)
	switch {
	case n == nil || n.is(skipped):
		return spot{}, leftDangling, false
	case n.sub != nil:
		return spot{dir: n.sub}, 0, true
	case n.link == nil:
		return spot{dir: d, n: n}, 0, true
	}
	r.follow(d, n.link)
	l.expansions += n.link.expansions
	if n.link.state != linkInside || l.expansions > maxExpansions {
		return spot{}, max(n.link.why, leftEscapes), false
	}
	return n.link.end, 0, true
}

// find looks a name up as the source does: exactly, or, where the source folds case, by the only name that folds to it.
func (r *resolver) find(d *dir, name string) *node {
	i, ok := slices.BinarySearchFunc(d.kids, name, func(n node, name string) int { return strings.Compare(n.name, name) })
	if ok {
		return &d.kids[i]
	}
	var found *node
	for i := range d.kids {
		if strings.EqualFold(d.kids[i].name, name) {
			if found != nil {
				return nil
			}
			found = &d.kids[i]
		}
	}
	if found == nil || !r.folds(d, name, found) {
		return nil
	}
	return found
}

// folds asks the source whether the name is that entry.
func (r *resolver) folds(d *dir, name string, n *node) bool {
	if len(name) > 255 || r.enter(d) != nil {
		return false
	}
	defer r.leave(d)
	st, err := r.calls.StatAt(d.in, name, d.kind.Remote)
	return err == nil && sameFile(&st.Seen, &n.seen)
}

// relative returns the path from d to a spot over directories of the copy.
func (r *resolver) relative(d *dir, to spot) string {
	from, target := r.names(d), r.names(to.dir)
	if to.n != nil {
		target = append(target, to.n.name)
	}
	for len(from) > 0 && len(target) > 0 && from[0] == target[0] {
		from, target = from[1:], target[1:]
	}
	steps := slices.Repeat([]string{".."}, len(from))
	if steps = append(steps, target...); len(steps) == 0 {
		return "."
	}
	return strings.Join(steps, "/")
}

func (r *resolver) names(d *dir) []string {
	var names []string
	for ; d.parent != nil; d = d.parent {
		names = append(names, r.node(d).name)
	}
	slices.Reverse(names)
	return names
}
