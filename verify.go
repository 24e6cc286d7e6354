// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"io/fs"

	"holdstill.example/snapshot/internal/mtree"
)

// Verify reads every byte of dir and returns a [*MismatchError] for the first entry, in manifest order, that is not what m
// records: its kind, permission bits, contents, or link text, an entry too many, or one too few. The tree is read as [Scan]
// reads it, so one that changes meanwhile is [ErrChanged]. Of opts, Links, SkipSpecial, Exclude and Skip mean nothing here.
func Verify(ctx context.Context, dir string, m *Manifest, opts *Options) error {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Links, o.SkipSpecial, o.Exclude, o.Skip, o.PreserveMode = LinksVerbatim, true, nil, nil, false
	report, err := Scan(ctx, dir, &o)
	if err != nil {
		return err
	}
	var first *MismatchError
	for change, err := range Diff(m, report.Manifest) {
		if err != nil {
			return err
		}
		first = &MismatchError{Path: change.Path, Recorded: change.Old, Received: change.New}
		break
	}
	for _, s := range report.Skipped { // special files, which no manifest holds
		if first == nil || mtree.Compare(s.Path, first.Path) <= 0 {
			first = &MismatchError{Path: s.Path, Received: &Entry{Path: s.Path, Mode: fs.ModeIrregular}}
			if e, err := m.Lookup(s.Path); err == nil {
				first.Recorded = &e
			}
		}
	}
	if first == nil {
		return nil
	}
	return first
}
