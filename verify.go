// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"io/fs"
	"iter"

	"holdstill.example/snapshot/internal/mtree"
)

// Verify reads every byte of dir and returns a [*MismatchError] for the first entry, in manifest order, that is not what m
// records: its kind, permission bits, contents, or link text, an entry too many, or one too few. The tree is read as [Scan]
// reads it, so one that changes meanwhile is [ErrChanged]. Of opts, Links, SkipSpecial, Exclude and Skip mean nothing here.
func Verify(ctx context.Context, dir string, m *Manifest, opts *Options) error {
	t, err := newWholeTree(ctx, "verify", dir, asRecorded(opts))
	if err != nil {
		return err
	}
	defer t.end()
	return t.verify(m)
}

// asRecorded returns opts less all that leaves something out or minds what a link leads to.
func asRecorded(opts *Options) *Options {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Links, o.SkipSpecial, o.Exclude, o.Skip, o.PreserveMode = LinksVerbatim, true, nil, nil, false
	return &o
}

func (t *tree) verify(m *Manifest) error {
	if _, err := t.prove(); err != nil {
		return err
	}
	return t.compareWith(m, func(recorded, found *Entry, _ *node) error { return equal(recorded, found) })
}

// equal returns a *MismatchError unless both are there and the same.
func equal(recorded, found *Entry) error {
	if recorded == nil || found == nil || *recorded != *found {
		return mismatched(recorded, found)
	}
	return nil
}

func mismatched(recorded, found *Entry) error {
	e := &MismatchError{Recorded: recorded, Received: found}
	if found != nil {
		e.Path = found.Path
	} else {
		e.Path = recorded.Path
	}
	return e
}

// comparison goes through a proven tree and a manifest side by side, in the order of both.
type comparison struct {
	*tree
	next     func() (Entry, error, bool)
	recorded *Entry // that is next; nil at the end
	judge    func(recorded, found *Entry, n *node) error
}

// compareWith calls judge for every entry of the tree or of m; what is only in one of them is nil in the other. What no
// manifest can hold, a FIFO, socket or device, is found as an irregular file.
func (t *tree) compareWith(m *Manifest, judge func(recorded, found *Entry, n *node) error) error {
	next, stop := iter.Pull2(m.All())
	defer stop()
	c := &comparison{tree: t, next: next, judge: judge}
	if err := c.advance(); err != nil {
		return err
	}
	if err := c.visit(t.top, 0, "."); err != nil {
		return err
	}
	return c.passed("")
}

func (c *comparison) advance() error {
	c.recorded = nil
	e, err, ok := c.next()
	if ok && err == nil {
		c.recorded = &e
	}
	return err
}

// passed judges what is recorded before path and is not in the tree; "" is the end.
func (c *comparison) passed(path string) error {
	for c.recorded != nil && (path == "" || mtree.Compare(c.recorded.Path, path) < 0) {
		if err := c.judge(c.recorded, nil, nil); err != nil {
			return err
		}
		if err := c.advance(); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) visit(d *dir, i int, path string) error {
	n := &d.kids[i]
	found := Entry{Path: path, Mode: fs.ModeIrregular}
	if !n.is(skipped) {
		found = c.manifestEntry(n, path)
	}
	if err := c.passed(path); err != nil {
		return err
	}
	recorded := c.recorded
	if recorded != nil && recorded.Path != path {
		recorded = nil
	}
	if err := c.judge(recorded, &found, n); err != nil {
		return err
	}
	if recorded != nil {
		if err := c.advance(); err != nil {
			return err
		}
	}
	if n.sub == nil {
		return nil
	}
	for i := range n.sub.kids {
		if err := c.visit(n.sub, i, beneath(path, n.sub.kids[i].name)); err != nil {
			return err
		}
	}
	return nil
}
