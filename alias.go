// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"holdstill.example/snapshot/internal/fsys"
	"holdstill.example/snapshot/internal/quote"
)

// Alias is a link that [Take] adds: at Name, to Target, both slash-separated in the snapshot. Directories on the way to Name
// that are not there are made. Where Name is there already, also if it was left out, the error is [fs.ErrExist]; where Target is not,
// [fs.ErrNotExist].
type Alias struct{ Name, Target string }

// addAliases comes before links are resolved, which may lead through an alias. Targets are looked for when nothing is added any
// more: adding moves entries.
func (t *tree) addAliases() error {
	type added struct {
		in   *dir
		link *link
	}
	links := make([]added, len(t.aliases))
	for i, a := range t.aliases {
		links[i].link = &link{state: linkInside, expansions: 1, kept: true}
		var err error
		if links[i].in, err = t.addAlias(a, links[i].link); err != nil {
			return newPathError("alias", a.Name, err)
		}
	}
	for i, a := range t.aliases {
		l := links[i].link
		var err error
		if l.end, err = t.aliasTarget(strings.Split(a.Target, "/")); err != nil {
			return newPathError("alias", a.Name, err)
		}
		l.text = (&resolver{t}).relative(links[i].in, l.end)
	}
	return nil
}

// addAlias adds a link, and returns the directory that it is in.
func (t *tree) addAlias(a Alias, l *link) (*dir, error) {
	at := strings.Split(a.Name, "/")
	for _, name := range slices.Concat(at, strings.Split(a.Target, "/")) {
		if !fsys.ValidName(name) {
			return nil, fmt.Errorf("%w: name and target are places in the snapshot: %w", ErrEscapes, fs.ErrInvalid)
		}
	}
	if got := int64(len(a.Name)); got > int64(t.opts.Limits.MaxPath) {
		return nil, &LimitError{Path: a.Name, Field: "MaxPath", Limit: int64(t.opts.Limits.MaxPath), Got: got}
	}
	d := t.top
	for _, name := range at[:len(at)-1] {
		i, there := d.search(name)
		if there {
			if n := &d.kids[i]; n.sub == nil || n.is(skipped) {
				return nil, fmt.Errorf("%s is no directory of the snapshot: %w", quote.Name(name), fs.ErrExist)
			}
		} else if err := t.insert(d, i, node{name: name, sub: new(dir), seen: fsys.Seen{Mode: fs.ModeDir | 0o500, Mtime: fsys.Clock()}}); err != nil {
			return nil, err
		}
		d = d.kids[i].sub
	}
	i, there := d.search(at[len(at)-1])
	if there {
		return nil, fs.ErrExist
	}
	return d, t.insert(d, i, node{name: at[len(at)-1], link: l, seen: fsys.Seen{Mode: fs.ModeSymlink | 0o777, Mtime: fsys.Clock()}})
}

// aliasTarget finds the entry that an alias leads to, over directories only.
func (t *tree) aliasTarget(path []string) (spot, error) {
	at := spot{dir: t.top}
	for _, name := range path {
		if at.n != nil {
			return spot{}, fs.ErrNotExist
		}
		i, there := at.dir.search(name)
		if !there || at.dir.kids[i].is(skipped) || at.dir.kids[i].link != nil {
			return spot{}, fmt.Errorf("the target %s is no file or directory of the snapshot: %w", quote.Name(strings.Join(path, "/")), fs.ErrNotExist)
		}
		if n := &at.dir.kids[i]; n.sub != nil {
			at = spot{dir: n.sub}
		} else {
			at.n = n
		}
	}
	return at, nil
}

// insert adds an entry that is in no source.
func (t *tree) insert(d *dir, i int, n node) error {
	if got := t.entries.Add(1); got > t.opts.Limits.MaxEntries {
		return &LimitError{Path: n.name, Field: "MaxEntries", Limit: t.opts.Limits.MaxEntries, Got: got}
	}
	if depth := d.depth + 1; n.sub != nil && depth > t.opts.Limits.MaxDepth {
		return &LimitError{Path: n.name, Field: "MaxDepth", Limit: int64(t.opts.Limits.MaxDepth), Got: int64(depth)}
	}
	d.kids = slices.Insert(d.kids, i, n)
	for k := i; k < len(d.kids); k++ {
		if sub := d.kids[k].sub; sub != nil {
			sub.index = k
		}
	}
	if sub := n.sub; sub != nil {
		*sub = dir{
			parent: d, index: i, depth: d.depth + 1, kind: new(fsys.Kind), made: true, placed: true,
			in: fsys.NoHandle, out: fsys.NoHandle, length: d.pathLength(n.name),
		}
	}
	if d == t.top {
		t.roots = slices.Insert(t.roots, i, newRoot(n.name, n.name))
		t.roots[i].kind = new(fsys.Kind)
	}
	return nil
}

// search returns where an entry of that name is, or would be.
func (d *dir) search(name string) (int, bool) {
	return slices.BinarySearchFunc(d.kids, name, func(n node, name string) int { return strings.Compare(n.name, name) })
}
