// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/quote"
)

func takeVerb() verb {
	return verb{
		name: "take", operands: "SRC DST", min: 2, max: 2,
		about: "copy a file or a tree; DST must not exist",
		more: `DST is exactly a state that SRC really had at one instant, as far as the evidence that
is printed reaches; or there is an error and no DST. Files become 0400, or 0500 where
they can be executed, and directories 0500. A link at SRC is followed if it leads to a
directory, and refused if it leads to a file.`,
		example: "holdstill take --exclude node_modules --manifest app.mtree /srv/app /var/tmp/app",
		setup: func(c *call) func(context.Context, []string) error {
			c.readFlags()
			c.treeFlags()
			c.flags.BoolVar(&c.options.PreserveMode, "preserve-mode", false, "keep the nine permission bits exactly")
			c.flags.BoolVar(&c.options.Durable, "durable", false, "make the copy survive a power cut")
			sizeVar(c.flags, &c.options.Limits.ReserveBytes, "reserve",
				"leave `SIZE` free at DST; -1 is nothing (default 256MiB or a twentieth of it)")
			manifest := c.flags.String("manifest", "", "write the manifest to `FILE`, which must not exist nor lie inside SRC or DST")
			return func(ctx context.Context, operands []string) error {
				return c.take(ctx, operands[0], operands[1], *manifest)
			}
		},
	}
}

func (c *call) take(ctx context.Context, src, dst, manifest string) error {
	fi, err := os.Stat(src)
	if err != nil {
		return err
	}
	parent := filepath.Dir(filepath.Clean(dst))
	c.env.unclean.Store(&parent)
	defer c.env.unclean.Store(nil)

	if !fi.IsDir() {
		if manifest != "" {
			return &usageError{"--manifest is for a directory, and SRC is none"}
		}
		proof, err := snapshot.CopyFile(ctx, dst, src, &c.options)
		if err != nil {
			return err
		}
		return c.printProof(src, dst, proof)
	}
	if err := checkManifest(manifest, src, dst); err != nil {
		return err
	}
	report, err := snapshot.CopyDir(ctx, dst, src, &c.options)
	if err != nil {
		return err
	}
	if err := writeManifest(ctx, manifest, report.Manifest); err != nil {
		return fmt.Errorf("%s is copied, but its manifest is not written: %w", quote.Name(dst), err)
	}
	return c.printReport(src, dst, report)
}

func scanVerb() verb {
	return verb{
		name: "scan", operands: "SRC", min: 1, max: 1,
		about: "make the manifest of a tree; nothing is copied",
		more: `The tree is read and proven as take does it, and the manifest has the source's own
permission bits. It is printed on stdout, unless --manifest or --json is given.`,
		example: "holdstill scan --manifest before.mtree /srv/app",
		setup: func(c *call) func(context.Context, []string) error {
			c.readFlags()
			c.treeFlags()
			manifest := c.flags.String("manifest", "", "write the manifest to `FILE`, which must not exist nor lie inside SRC")
			return func(ctx context.Context, operands []string) error {
				return c.scan(ctx, operands[0], *manifest)
			}
		},
	}
}

func (c *call) scan(ctx context.Context, src, manifest string) error {
	if err := checkManifest(manifest, src, ""); err != nil {
		return err
	}
	report, err := snapshot.Scan(ctx, src, &c.options)
	if err != nil {
		return err
	}
	if manifest == "" && !c.json {
		c.progress.erase()
		if _, err := report.Manifest.WriteTo(c.stdout); err != nil {
			return err
		}
		c.printNotes(src, report)
		c.note("%s", summary("", report))
		return nil
	}
	if err := writeManifest(ctx, manifest, report.Manifest); err != nil {
		return err
	}
	return c.printReport(src, "", report)
}

func sweepVerb() verb {
	return verb{
		name: "sweep", operands: "PARENT", min: 1, max: 1,
		about: "remove what crashed runs left in a directory",
		more: `Only what a take of this user made and did not finish is removed, and nothing that is
in use. What was removed is printed.`,
		example: "holdstill sweep /var/tmp",
		setup: func(c *call) func(context.Context, []string) error {
			c.jsonFlag()
			c.quietFlag()
			return func(ctx context.Context, operands []string) error {
				removed, err := snapshot.Sweep(ctx, operands[0])
				if err != nil && len(removed) == 0 {
					return err
				}
				return errors.Join(c.printRemoved(removed), err)
			}
		},
	}
}
