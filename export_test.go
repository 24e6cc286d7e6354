// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"

	"holdstill.example/snapshot/internal/fsys"
)

// Seam is what a test hangs on one operation, see seam.
type Seam struct {
	// At runs before each call to the system, with the call's name (a method of fsys.Calls) and the component that it
	// concerns, if any. Its error stands for the call's result.
	At func(call, name string) error
	// Phase runs when a tree is "joined", "collected", "proven", "reported", and when something is "published".
	Phase func(phase string)
	// Finished tells how many handles are still open, and how many ever were, when the operation has ended.
	Finished func(open, opened int64)
	// Off is a check that is switched off, in the build with the tag weakened only.
	Off Check
	// Lacks are mechanisms to do without.
	Lacks Fallback
	// Known may change what is known of a file system.
	Known func(*fsys.Kind)
}

// Check is one safety check of the engine.
type Check = check

// The checks that a weakened build can switch off.
const (
	CheckType        = checkType
	CheckPin         = checkPin
	CheckGrowth      = checkGrowth
	CheckAfter       = checkAfter
	CheckName        = checkName
	CheckSettled     = checkSettled
	CheckEvidence    = checkEvidence
	CheckListing     = checkListing
	CheckDirIdentity = checkDirIdentity
	CheckCollect     = checkCollect
	CheckRoot        = checkRoot
	CheckMount       = checkMount
	CheckSuspects    = checkSuspects
	CheckOthers      = checkOthers
	CheckPublished   = checkPublished
)

// Fallback is a mechanism that a system may lack.
type Fallback = fallback

// The mechanisms that a test can take away.
const (
	NoClone           = noClone
	NoNameless        = noNameless
	NoRenameNoReplace = noRenameNoReplace
	NoLease           = noLease
)

// WithSeam returns opts with s hung on; nil is fine.
func WithSeam(opts *Options, s Seam) *Options {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.seam = &seam{at: s.At, phase: s.Phase, finished: s.Finished, weakening: weaken(s.Off), lacks: s.Lacks, known: s.Known}
	return &o
}

// SeamOf returns the seam that WithSeam hung on opts, for what takes no Options.
func SeamOf(opts *Options) Seam {
	s := opts.seam
	return Seam{At: s.at, Phase: s.phase, Finished: s.finished, Lacks: s.lacks, Known: s.known}
}

// SweepWith is Sweep with s hung on.
func SweepWith(ctx context.Context, parent string, s Seam) ([]string, error) {
	return newOp(WithSeam(nil, s)).sweep(ctx, parent)
}

// LstatWith is Lstat with s hung on.
func LstatWith(name string, s Seam) (State, error) { return newOp(WithSeam(nil, s)).lstat(name) }

// OpenSnapshotWith is OpenSnapshot with s hung on.
func OpenSnapshotWith(ctx context.Context, dir string, manifest Digest, s Seam) (*Snapshot, error) {
	return newOp(WithSeam(nil, s)).openSnapshot(ctx, dir, manifest)
}

// RemoveSnapshotWith is RemoveSnapshot with s hung on.
func RemoveSnapshotWith(ctx context.Context, dir string, s Seam) error {
	return newOp(WithSeam(nil, s)).removeSnapshot(ctx, dir)
}

// BuildManifest makes a Manifest of entries as the engine does.
func BuildManifest(entries ...Entry) (*Manifest, error) {
	b := newManifestBuilder()
	for _, e := range entries {
		if err := b.add(e); err != nil {
			return nil, err
		}
	}
	return b.finish()
}
