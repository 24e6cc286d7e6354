// SPDX-License-Identifier: Apache-2.0

package snapshot

import "strings"

// place says where something is, for messages and progress. Of an entry of a tree its text is made only when it is asked for: the
// paths of a large tree cost more than anything else that is allocated.
type place struct {
	text  string
	tree  *tree // and dir, index: an entry; nil for text
	dir   *dir
	index int
}

// at is the place of a path.
func at(path string) place { return place{text: path} }

// String returns the full path of an entry.
func (p place) String() string {
	if p.tree == nil {
		return p.text
	}
	if p.dir == p.tree.top {
		return p.tree.roots[p.index].path
	}
	d := p.dir
	for d.parent != p.tree.top {
		d = d.parent
	}
	names := append(p.tree.pathTo(p.dir), p.dir.kids[p.index].name)
	names[0] = strings.TrimSuffix(p.tree.roots[d.index].path, "/")
	return strings.Join(names, "/")
}

func textOf[P string | place](path P) string {
	switch p := any(path).(type) {
	case place:
		return p.String()
	case string:
		return p
	}
	return ""
}
