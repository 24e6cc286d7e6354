// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/quote"
)

// print writes a part of the answer.
func (c *call) print(format string, args ...any) error {
	c.progress.erase()
	_, err := fmt.Fprintf(c.stdout, format, args...)
	return err
}

func (c *call) printJSON(answer any) error {
	c.progress.erase()
	return encode(c.stdout, answer)
}

func encode(w io.Writer, answer any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(answer)
}

// say writes a line to stderr: that it cannot be written has nowhere to be said.
func say(stderr io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(stderr, format+"\n", args...)
}

// note says one line for people beside the answer.
func (c *call) note(format string, args ...any) {
	if !c.quiet {
		c.progress.erase()
		say(c.stderr, format, args...)
	}
}

// name is a file name in a JSON object: what is not UTF-8 comes a second time, exactly.
type name struct {
	Path string `json:"path"`
	B64  []byte `json:"path_b64,omitempty"`
}

func jsonName(path string) name {
	if utf8.ValidString(path) {
		return name{Path: path}
	}
	return name{Path: path, B64: []byte(path)}
}

// printReport says what was done with src; an empty dst is none.
func (c *call) printReport(src, dst string, r *snapshot.Report) error {
	if c.json {
		return c.printJSON(r)
	}
	c.printNotes(src, r)
	if c.quiet {
		return nil
	}
	return c.print("%s\n", summary(dst, r))
}

func summary(dst string, r *snapshot.Report) string {
	var levels []string
	for _, level := range slices.Backward(slices.Sorted(maps.Keys(r.Evidence))) {
		levels = append(levels, fmt.Sprintf("%s %d", level, r.Evidence[level]))
	}
	if levels == nil {
		levels = []string{"no files"}
	}
	done, to := "read", ""
	if dst != "" {
		done, to = "copied", " to "+quote.Name(dst)
	}
	return fmt.Sprintf("%s %s, %s, %s, %s%s; one instant: %s; evidence: %s; manifest %s", done,
		count(r.Files, "file", "files"), count(r.Dirs, "directory", "directories"), count(r.Links, "link", "links"),
		formatSize(r.Bytes), to, r.Instant, strings.Join(levels, ", "), r.Manifest.Digest())
}

func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// shownSkips bounds the list of what was left out; --json has all of it.
const shownSkips = 20

func (c *call) printNotes(src string, r *snapshot.Report) {
	for i, s := range r.Skipped {
		if i == shownSkips {
			c.note("left out: %d more", len(r.Skipped)-shownSkips)
			break
		}
		because := s.Because
		if s.Rule != "" {
			because += ": " + quote.Name(s.Rule)
		}
		c.note("left out: %s (%s)", quote.Name(s.Path), because)
	}
	if r.Dirs == 1 && r.Files+r.Links == 0 {
		c.note("note: %s: nothing was in it, or nothing was left: the copy is empty", quote.Name(src))
	}
	if r.Files > 0 {
		c.noteEvidence(r.Weakest)
	}
	switch r.Instant {
	case snapshot.InstantNone:
		c.note("note: %s: each file is proven for itself, the tree not to be of one instant", quote.Name(src))
	case snapshot.InstantWrites:
		c.note("note: %s: one instant as far as writes, renames and truncations go; stores through mappings are not excluded", quote.Name(src))
	}
	if r.SpecialModes > 0 {
		c.note("note: setuid, setgid or sticky bits of %s are not kept", count(r.SpecialModes, "entry", "entries"))
	}
	if r.Exposed {
		c.note("note: others may write to the directory of the copy, and could rename it")
	}
	if r.Abandoned > 0 {
		c.note("note: %s behind a stalled writer", count(r.Abandoned, "system call is stuck", "system calls are stuck"))
	}
}

// noteEvidence warns where the promise is not kept against every kind of writer.
func (c *call) noteEvidence(p snapshot.Proof) {
	var missing string
	switch {
	case p.Evidence >= snapshot.Coherent:
		return
	case p.Evidence == snapshot.Buffered:
		missing = "a write with O_DIRECT may have been in flight"
	default:
		missing = "two states may be mixed: the promise is kept from coherent upwards, and against all but O_DIRECT from buffered"
	}
	if p.Because != "" {
		missing += " (" + quote.Text(p.Because) + ")"
	}
	c.note("note: %s: evidence is only %s: %s", quote.Name(p.Entry.Path), p.Evidence, missing)
}

// printProof says how one file was proven.
func (c *call) printProof(src, dst string, p snapshot.Proof) error {
	if c.json {
		return c.printJSON(p)
	}
	c.noteEvidence(p)
	if c.quiet {
		return nil
	}
	return c.print("copied %s, %s, to %s; evidence: %s; sha256 %s\n", quote.Name(src), formatSize(p.Entry.Size), quote.Name(dst), p.Evidence, p.Entry.Digest)
}

func (c *call) printRemoved(removed []string) error {
	if c.json {
		answer := struct {
			Removed []name `json:"removed"`
		}{[]name{}}
		for _, path := range removed {
			answer.Removed = append(answer.Removed, jsonName(path))
		}
		return c.printJSON(answer)
	}
	if c.quiet {
		return nil
	}
	for _, path := range removed {
		if err := c.print("removed %s\n", quote.Name(path)); err != nil {
			return err
		}
	}
	return nil
}

// verified is the answer of verify where all is equal. Anchored: against a digest that the caller kept.
type verified struct {
	Equal          bool            `json:"equal"`
	Anchored       bool            `json:"anchored"`
	Entries        int64           `json:"entries,omitzero"`
	ManifestDigest snapshot.Digest `json:"manifest_digest,omitzero"`
	SHA256         snapshot.Digest `json:"sha256,omitzero"`
}

func (c *call) printVerified(path string, answer verified) error {
	switch {
	case c.json:
		return c.printJSON(answer)
	case c.quiet:
		return nil
	case !answer.SHA256.IsZero():
		return c.print("%s: equal; sha256 %s\n", quote.Name(path), answer.SHA256)
	}
	return c.print("%s: equal, %s; manifest %s\n", quote.Name(path), count(answer.Entries, "entry", "entries"), answer.ManifestDigest)
}

// progress is the line on the terminal that is written over again; the zero value shows nothing.
type progress struct {
	w     io.Writer
	start time.Time
	width int // of the text that stands there
}

// lineWidth fits the narrowest usual terminal: a line that wraps cannot be written over.
const lineWidth = 79

func (p *progress) show(now snapshot.Progress) {
	rate := int64(0)
	if s := time.Since(p.start).Seconds(); s > 0 {
		rate = int64(float64(now.Bytes) / s)
	}
	line := fmt.Sprintf("%s, %s, %s/s", count(now.Files, "file", "files"), formatSize(now.Bytes), formatSize(rate))
	if now.Round > 1 {
		line += fmt.Sprintf(", round %d", now.Round)
	}
	if now.Waiting != "" {
		line += ", waiting for " + quote.Text(now.Waiting)
	}
	p.write(line)
}

func (p *progress) erase() {
	if p.width > 0 {
		p.write("")
	}
}

// write overwrites with spaces, because not every terminal knows the sequence that clears a line.
func (p *progress) write(line string) {
	if runes := []rune(line); len(runes) > lineWidth {
		line = string(runes[:lineWidth])
	}
	width := utf8.RuneCountInString(line)
	_, _ = fmt.Fprintf(p.w, "\r%s%s\r", line, strings.Repeat(" ", max(0, p.width-width)))
	p.width = width
}
