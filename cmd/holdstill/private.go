// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/quote"
)

func privateVerb() verb {
	return verb{
		name: "private", operands: "[NAME=]ROOT...", min: 1, max: maxRoots,
		about: "freeze roots together in a private directory, and print it",
		more: `All roots, directories or files, are copied as they were at one instant, into a new
directory that only this user can enter: ROOT lies at tree/NAME in it (NAME is the last
component of ROOT where none is given; ./A=B is a path). Links from one root to another
keep working. The manifest is beside tree/; hand its digest, which --json and the summary
tell, to whoever is to use the copy. It stays until "holdstill remove".`,
		example: "holdstill private --parent /run/plugins app=/srv/app /srv/lib",
		setup: func(c *call) func(context.Context, []string) error {
			c.readFlags()
			c.treeFlags()
			var o snapshot.TakeOptions
			c.flags.BoolVar(&c.options.PreserveMode, "preserve-mode", false, "keep the nine permission bits exactly")
			c.flags.BoolVar(&c.options.Durable, "durable", false, "make the copy survive a power cut")
			sizeVar(c.flags, &c.options.Limits.ReserveBytes, "reserve",
				"leave `SIZE` free where the copy lies; -1 is nothing (default 256MiB or a twentieth of it)")
			c.flags.StringVar(&o.Parent, "parent", "", "make the directory in `DIR`, where nobody else can rename it (default that for temporary files)")
			c.flags.Func("alias", "add a link `NAME=TARGET` between places in the copy, such as app/node_modules/lib=lib; may be given again", func(s string) error {
				name, target, ok := strings.Cut(s, "=")
				if !ok {
					return errors.New("want NAME=TARGET")
				}
				o.Aliases = append(o.Aliases, snapshot.Alias{Name: name, Target: target})
				return nil
			})
			return func(ctx context.Context, operands []string) error {
				o.Options = c.options
				return c.private(ctx, operands, &o)
			}
		},
	}
}

// maxRoots is far beyond what a command line holds.
const maxRoots = 1 << 20

func (c *call) private(ctx context.Context, operands []string, o *snapshot.TakeOptions) (err error) {
	roots := make([]snapshot.Root, len(operands))
	for i, operand := range operands {
		roots[i] = parseRoot(operand)
	}
	parent := o.Parent
	if parent == "" {
		parent = os.TempDir()
	}
	c.env.unclean.Store(&parent)
	defer c.env.unclean.Store(nil)
	s, err := snapshot.Take(ctx, roots, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Detach(); err != nil {
		return err
	}
	if err := c.sayPrivate(s); err != nil { // nobody would know where it is
		return errors.Join(err, s.Close(), snapshot.RemoveSnapshot(context.WithoutCancel(ctx), s.Dir()))
	}
	return nil
}

func (c *call) sayPrivate(s *snapshot.Snapshot) error {
	if c.json {
		return c.printPrivate(s)
	}
	c.printNotes("the roots", s.Report())
	c.note("%s", summary(s.Dir(), s.Report()))
	return c.print("%s\n", s.Dir())
}

// parseRoot reads [NAME=]ROOT. A name has no slash.
func parseRoot(operand string) snapshot.Root {
	name, path, ok := strings.Cut(operand, "=")
	if !ok || strings.ContainsRune(name, filepath.Separator) {
		return snapshot.Root{Path: operand}
	}
	return snapshot.Root{Name: name, Path: path}
}

// printPrivate prints the report with the directory before it.
func (c *call) printPrivate(s *snapshot.Snapshot) error {
	dir, err := json.Marshal(struct {
		Dir name `json:"dir"`
	}{jsonName(s.Dir())})
	if err != nil {
		return err
	}
	report, err := json.Marshal(s.Report())
	if err != nil {
		return err
	}
	return c.print("%s,%s\n", dir[:len(dir)-1], report[1:])
}

func removeVerb() verb {
	return verb{
		name: "remove", operands: "DIR", min: 1, max: 1,
		about: "remove a directory that private made",
		more: `Only what private made is removed, and in it only what its manifest lists: anything else
is refused before a file is touched. One that a process has open is busy (exit 75). A
removal that was interrupted can be repeated.`,
		example: "holdstill remove /run/plugins/.holdstill-5tg4kq2mzrbdfqk3vtw6y7x2ae",
		setup: func(c *call) func(context.Context, []string) error {
			c.jsonFlag()
			c.quietFlag()
			return func(ctx context.Context, operands []string) error {
				if err := snapshot.RemoveSnapshot(ctx, operands[0]); err != nil {
					return err
				}
				return c.printRemoved(operands)
			}
		},
	}
}

// isPrivate reports whether dir looks like what private makes. OpenSnapshot then looks closely.
func isPrivate(dir string) bool {
	manifest, err := os.Lstat(filepath.Join(dir, "manifest.mtree"))
	if err != nil || !manifest.Mode().IsRegular() {
		return false
	}
	tree, err := os.Lstat(filepath.Join(dir, "tree"))
	return err == nil && tree.IsDir()
}

// verifyPrivate reads a private snapshot again; a zero digest takes that of its own manifest, which proves nothing of where it
// came from.
func (c *call) verifyPrivate(ctx context.Context, dir string, want snapshot.Digest) (err error) {
	anchored := !want.IsZero()
	if !anchored {
		m, err := snapshot.OpenManifest(filepath.Join(dir, "manifest.mtree"))
		if err != nil {
			return err
		}
		want = m.Digest()
		if err := m.Close(); err != nil {
			return err
		}
	}
	s, err := snapshot.OpenSnapshot(ctx, dir, want)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Verify(ctx); err != nil {
		return err
	}
	if !anchored && !c.json {
		c.note("note: %s: consistent with its own manifest, not proof of origin", quote.Name(dir))
	}
	return c.printVerified(dir, verified{Equal: true, Anchored: anchored, Entries: int64(s.Manifest().Len()), ManifestDigest: want})
}
