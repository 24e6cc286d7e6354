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
	kept       bool // every step of its own text stays below the root, so that it means the same in the copy
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
type resolver struct{ *tree }

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
		if r.ctx.Err() != nil {
			return canceled(r.ctx, r.verb, r.place(d, i))
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
	r.follow(d, l, 0)
	switch {
	case l.state == linkInside && (l.kept || r.staging == nil):
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
		what = "ends outside every root"
		if len(r.roots) == 1 {
			what = "ends outside " + quote.Name(r.path)
		}
	}
	return newPathError("link", r.place(d, i), fmt.Errorf("%w: its text %s %s; LinksInsideOrSkip leaves it out", ErrEscapes, quote.Name(l.text), what))
}

// follow finds out, once, where a link in d ends. depth is how many links are being followed already: a chain that is too
// long for the kernel is given up there, for the link at its head; those in its middle may do with less.
func (r *resolver) follow(d *dir, l *link, depth int) {
	switch {
	case l.state == linkBusy:
		l.state, l.why = linkOutside, leftDangling
	case l.state != linkOpen:
	case depth >= maxExpansions:
		l.why = leftDangling
	default:
		l.state, l.expansions = linkBusy, 1
		end, why, ok := r.walk(d, l, depth)
		switch {
		case l.state == linkOutside: // a loop came back here
		case ok && l.expansions <= maxExpansions:
			l.state, l.end = linkInside, end
		case !ok && why == leftTooDeep && depth > 0:
			l.state, l.why = linkOpen, leftTooDeep
		case ok || why == leftTooDeep:
			l.state, l.why = linkOutside, leftDangling
		default:
			l.state, l.why = linkOutside, why
		}
	}
}

// leftTooDeep is never an entry's own reason.
const leftTooDeep = leftDangling + 1

// walk takes the steps of a link's text. Outside the roots it can only be on the way back to one, over directories of a root's
// own path.
func (r *resolver) walk(d *dir, l *link, depth int) (end spot, why leftOut, ok bool) {
	at, in := spot{dir: d}, true
	var outside, inner []string
	steps := strings.Split(l.text, "/")
	l.kept = steps[0] != ""
	if !l.kept { // absolute: it names the source
		at, _, in = r.locate(nil, steps)
	}
	for k, step := range steps {
		switch {
		case in && at.n != nil: // a step, or a slash, behind what is no directory
			return spot{}, leftDangling, false
		case step == "" || step == ".":
			continue
		case in && step != "..":
			inner = steps[k : k+1]
		case in && at.dir.parent != r.top:
			at.dir = at.dir.parent
			continue
		default:
			if in {
				l.kept = false
				outside, ok = r.above(at.dir)
			} else {
				outside, ok = r.stepOutside(outside, step)
			}
			if !ok {
				return spot{}, leftEscapes, false
			}
			if at, inner, in = r.locate(outside, steps[k+1:]); !in {
				continue
			}
		}
		if at, why, ok = r.stepsInside(at, l, inner, depth); !ok {
			return spot{}, why, false
		}
	}
	if !in {
		return spot{}, leftEscapes, false
	}
	return at, 0, true
}

func (r *resolver) stepsInside(at spot, l *link, steps []string, depth int) (end spot, why leftOut, ok bool) {
	for _, step := range steps {
		if at.n != nil {
			return spot{}, leftDangling, false
		}
		if at, why, ok = r.stepInside(at.dir, l, step, depth); !ok {
			return spot{}, why, false
		}
	}
	return at, 0, true
}

// locate finds the root that an absolute path has come to, and returns what of the path lies beneath it. steps come next: of
// nested roots the innermost on the way is meant, so that at the outer one there may still be some way to go.
func (r *resolver) locate(path, steps []string) (at spot, beneath []string, ok bool) {
	all := slices.Clone(path)
	for _, step := range steps {
		if step == ".." {
			break
		}
		if step != "" && step != "." {
			all = append(all, step)
		}
	}
	deepest, found := -1, 0
	for i, root := range r.roots {
		for _, place := range root.places {
			if len(place) > deepest && hasPrefix(all, place) && !r.top.kids[i].is(skipped) {
				deepest, found = len(place), i
			}
		}
	}
	if deepest < 0 || deepest > len(path) {
		return spot{}, nil, false
	}
	at = spot{dir: r.top, n: &r.top.kids[found]}
	if at.n.sub != nil {
		at = spot{dir: at.n.sub}
	}
	return at, path[deepest:], true
}

// above returns the directory above a root: of the path without links, which comes first.
func (r *resolver) above(d *dir) ([]string, bool) {
	places := r.roots[d.index].places
	if len(places) == 0 || len(places[0]) == 0 {
		return nil, false
	}
	return slices.Clone(places[0][:len(places[0])-1]), true
}

func (r *resolver) stepOutside(at []string, step string) ([]string, bool) {
	if step == ".." {
		// A component of a path as given may be a link: what is above it is not known.
		known := slices.ContainsFunc(r.roots, func(root *root) bool { return len(root.places) > 0 && hasPrefix(root.places[0], at) })
		return at[:max(len(at)-1, 0)], known
	}
	at = append(at, step)
	return at, slices.ContainsFunc(r.roots, func(root *root) bool {
		return slices.ContainsFunc(root.places, func(p []string) bool { return hasPrefix(p, at) })
	})
}

func hasPrefix(path, prefix []string) bool {
	return len(prefix) <= len(path) && slices.Equal(path[:len(prefix)], prefix)
}

func (r *resolver) stepInside(d *dir, l *link, step string, depth int) (spot, leftOut, bool) {
	n, exact := r.find(d, step)
	if !exact { // the copy may lie where case is not folded
		l.kept = false
	}
	switch {
	case n != nil && n.link != nil && n.link.state == linkOutside: // it may be left out by now
		return spot{}, n.link.why, false
	case n == nil || n.is(skipped):
		return spot{}, leftDangling, false
	case n.sub != nil:
		return spot{dir: n.sub}, 0, true
	case n.link == nil:
		return spot{dir: d, n: n}, 0, true
	}
	r.follow(d, n.link, depth+1)
	switch l.expansions += n.link.expansions; {
	case n.link.state == linkOpen:
		return spot{}, leftTooDeep, false
	case n.link.state != linkInside:
		return spot{}, n.link.why, false
	case l.expansions > maxExpansions:
		return spot{}, leftDangling, false
	}
	return n.link.end, 0, true
}

// find looks a name up as the source does: exactly, or, where the source folds case, by the only name that folds to it.
func (r *resolver) find(d *dir, name string) (n *node, exact bool) {
	i, ok := d.search(name)
	if ok {
		return &d.kids[i], true
	}
	if len(name) > 255 || d.made {
		return nil, false
	}
	if err := r.enter(d); err != nil {
		return nil, false
	}
	defer r.leave(d)
	st, err := r.calls.StatAt(d.in, name, d.kind.Remote)
	if err != nil {
		return nil, false
	}
	// Listed under another name, and nothing was added since: the directory folds.
	now, err := r.calls.Stat(d.in, d.kind.Remote)
	if err != nil || now.Seen != d.node().seen {
		return nil, false
	}
	for i := range d.kids {
		if strings.EqualFold(d.kids[i].name, name) && sameFile(&d.kids[i].seen, &st.Seen) {
			if n != nil {
				return nil, false
			}
			n = &d.kids[i]
		}
	}
	return n, false
}

// relative returns the path from d to a spot over directories of the copy.
func (r *resolver) relative(d *dir, to spot) string {
	from, target := r.pathTo(d), r.pathTo(to.dir)
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
