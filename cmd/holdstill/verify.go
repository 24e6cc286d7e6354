// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"holdstill.example/snapshot"
)

func verifyVerb() verb {
	return verb{
		name: "verify", operands: "DIR", min: 1, max: 1,
		about: "read every byte again and compare with a manifest or a digest",
		more: `With --manifest, DIR is compared with the manifest, and --digest is the digest that the
manifest itself must have. With --digest alone, DIR is a file that must have that
SHA-256, or a directory whose manifest, as scan makes it, must have it. A directory that
private made has its manifest in it, and needs neither flag to be checked. Whoever could
write to DIR could write to a manifest beside it: only a digest that was kept elsewhere
proves where the bytes came from.`,
		example: "holdstill verify --manifest app.mtree --digest 3b5d… /var/tmp/app",
		setup: func(c *call) func(context.Context, []string) error {
			c.readFlags()
			manifest := c.flags.String("manifest", "", "compare with the manifest in `FILE`")
			var want snapshot.Digest
			c.flags.Func("digest", "the SHA-256 that the manifest, the file or the directory must have: 64 digits `HEX`", func(s string) (err error) {
				want, err = snapshot.ParseDigest(s)
				return err
			})
			all := c.flags.Bool("all", false, "list every difference, not only the first")
			return func(ctx context.Context, operands []string) error {
				return c.verify(ctx, operands[0], *manifest, want, *all)
			}
		},
	}
}

func (c *call) verify(ctx context.Context, dir, manifest string, want snapshot.Digest, all bool) (err error) {
	if manifest == "" {
		switch {
		case !all && isPrivate(dir):
			return c.verifyPrivate(ctx, dir, want)
		case want.IsZero():
			return &usageError{"give --manifest FILE, --digest HEX or both: only a directory that private made carries its own manifest"}
		case all:
			return &usageError{"--all needs --manifest: a digest does not tell what differs"}
		}
		return c.verifyDigest(ctx, dir, want)
	}
	m, err := snapshot.OpenManifest(manifest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if !want.IsZero() && m.Digest() != want {
		return mismatch(manifest, m.Digest(), want)
	}
	answer := verified{Equal: true, Anchored: !want.IsZero(), Entries: int64(m.Len()), ManifestDigest: m.Digest()}
	if all {
		return c.verifyAll(ctx, dir, m, answer)
	}
	if err := snapshot.Verify(ctx, dir, m, &c.options); err != nil {
		return err
	}
	return c.printVerified(dir, answer)
}

// verifyDigest compares a file, or the manifest of a directory, with want.
func (c *call) verifyDigest(ctx context.Context, name string, want snapshot.Digest) error {
	fi, err := os.Stat(name)
	if err != nil {
		return err
	}
	answer := verified{Equal: true, Anchored: true}
	var got snapshot.Digest
	if fi.IsDir() {
		report, err := c.scanVerbatim(ctx, name)
		if err != nil {
			return err
		}
		got = report.Manifest.Digest()
		answer.Entries, answer.ManifestDigest = int64(report.Manifest.Len()), got
	} else {
		proof, err := c.prove(ctx, name)
		if err != nil {
			return err
		}
		got = proof.Entry.Digest
		answer.SHA256 = got
	}
	if got != want {
		return mismatch(name, got, want)
	}
	return c.printVerified(name, answer)
}

// verifyAll lists what differs between m and dir. Special files, which a scan would stop at, are differences like others.
func (c *call) verifyAll(ctx context.Context, dir string, m *snapshot.Manifest, answer verified) error {
	wanted := c.options.SkipSpecial
	c.options.SkipSpecial = true
	report, err := c.scanVerbatim(ctx, dir)
	if err != nil {
		return err
	}
	out := c.newChanges()
	if err := out.addAll(ctx, snapshot.Diff(m, report.Manifest)); err != nil {
		return err
	}
	for _, s := range report.Skipped {
		if s.Because == "special" && !wanted {
			special := &snapshot.Entry{Path: s.Path, Mode: fs.ModeIrregular}
			if err := out.add(snapshot.Change{Path: s.Path, New: special}); err != nil {
				return err
			}
		}
	}
	answer.Equal = out.count == 0
	if err := out.close(answer); err != nil {
		return err
	}
	if !answer.Equal {
		return &fs.PathError{Op: "verify", Path: dir, Err: fmt.Errorf("%w: %d entries differ", snapshot.ErrMismatch, out.count)}
	}
	if c.json {
		return nil
	}
	return c.printVerified(dir, answer)
}

// scanVerbatim scans a copy, whose links are what its manifest says, wherever they lead.
func (c *call) scanVerbatim(ctx context.Context, dir string) (*snapshot.Report, error) {
	c.options.Links = snapshot.LinksVerbatim
	return snapshot.Scan(ctx, dir, &c.options)
}

// prove reads one file of any size.
func (c *call) prove(ctx context.Context, name string) (proof snapshot.Proof, err error) {
	attempts := c.options.Attempts
	if attempts == 0 {
		attempts = 3
	}
	for range attempts {
		if proof, err = c.proveOnce(ctx, name); !snapshot.Retryable(err) {
			break
		}
	}
	return proof, err
}

func (c *call) proveOnce(ctx context.Context, name string) (proof snapshot.Proof, err error) {
	f, err := snapshot.Open(name, &c.options)
	if err != nil {
		return proof, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.CopyTo(ctx, io.Discard)
}

func mismatch(name string, got, want snapshot.Digest) error {
	return &fs.PathError{Op: "verify", Path: name, Err: fmt.Errorf("%w: its digest is %s, not %s", snapshot.ErrMismatch, got, want)}
}

func diffVerb() verb {
	return verb{
		name: "diff", operands: "OLD NEW", min: 2, max: 2,
		about: "compare two manifests",
		more: `Each line is "+ path" for what is only in NEW, "- path" for what is only in OLD, and
"~ path (what differs)" for the rest. Nothing is printed for equal manifests.`,
		example: "holdstill diff before.mtree after.mtree",
		setup: func(c *call) func(context.Context, []string) error {
			c.jsonFlag()
			c.flags.BoolVar(&c.quiet, "quiet", false, "print nothing, only exit with 0 or 1")
			return func(ctx context.Context, operands []string) error {
				return c.diff(ctx, operands[0], operands[1])
			}
		},
	}
}

func (c *call) diff(ctx context.Context, older, newer string) (err error) {
	before, err := snapshot.OpenManifest(older)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, before.Close()) }()
	after, err := snapshot.OpenManifest(newer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, after.Close()) }()

	out := c.newChanges()
	if err := out.addAll(ctx, snapshot.Diff(before, after)); err != nil {
		return err
	}
	if err := out.close(verdict{Equal: out.count == 0}); err != nil {
		return err
	}
	if out.count > 0 {
		return errDifferent
	}
	return nil
}
