// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"
	"unicode/utf8"

	"holdstill.example/snapshot/internal/fsys"
)

// Instant says what one look at a whole tree proves.
type Instant uint8

const (
	InstantNone   Instant = iota // each file is proven for itself (Options.PerFile, an entry too young to be settled, FAT)
	InstantWrites                // one instant as far as writes, renames and truncations go; stores through mappings are not excluded here
	InstantAll                   // one instant
)

// String returns "none", "writes" or "all".
func (i Instant) String() string {
	switch i {
	case InstantNone:
		return "none"
	case InstantWrites:
		return "writes"
	case InstantAll:
		return "all"
	}
	return fmt.Sprintf("instant(%d)", uint8(i))
}

// MarshalText writes what String returns.
func (i Instant) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// Report says what was done. It marshals to the object that --json prints and receipt.json holds.
type Report struct {
	Manifest           *Manifest
	Instant            Instant // whether the whole tree had this state at one instant
	Files, Dirs, Links int64
	Bytes, Cloned      int64 // logical bytes copied, of these cloned
	Skipped            []Skipped
	Evidence           map[Evidence]int64 // files at each level
	Exposed            bool               // others may write the destination's parent and could rename what was published
	Abandoned          int64              // calls still stuck in the kernel behind a stalled writer
	Weakest            Proof              // of the file proven least, its Entry as in Manifest; zero if there is none
	Rounds             int
	MetadataOnly       int64 // drifts of ctime alone that a second hash settled
	SpecialModes       int64 // directories whose setgid or sticky bit is not in the manifest; files, too, without PreserveMode
	Elapsed            time.Duration

	// Of a Checkpoint.
	Baseline     Digest   // zero if none
	Scanned      int64    // entries recorded; Files, Dirs, Links and Bytes then count what was carried
	Patterns     []string // that excluded
	IndexHits    int64    // files not read because the index knew them
	IndexIgnored string   // why the index was not used; empty if it was
}

// Skipped is one entry that was left out, with all beneath it.
type Skipped struct {
	Path    string
	Because string // "excluded", "scratch", "special", "escapes", "dangling", "skip"
	Rule    string // the pattern or link text that decided
}

// MarshalJSON writes the object that --json prints; the manifest stands as its digest. Strings that are not UTF-8 come a second
// time in base64, under the same key with _b64 at its end. What is only of a Checkpoint is left out where it is zero.
func (r *Report) MarshalJSON() ([]byte, error) {
	out := reportJSON{
		Files: r.Files, Dirs: r.Dirs, Links: r.Links, Bytes: r.Bytes, Cloned: r.Cloned,
		Skipped:      r.Skipped,
		Evidence:     r.Evidence,
		Rounds:       r.Rounds,
		MetadataOnly: r.MetadataOnly,
		Instant:      r.Instant,
		Exposed:      r.Exposed,
		Seconds:      r.Elapsed.Seconds(),
		SpecialModes: r.SpecialModes,
		Abandoned:    r.Abandoned,
		Scanned:      r.Scanned,
		Patterns:     r.Patterns,
		IndexHits:    r.IndexHits,
		IndexIgnored: r.IndexIgnored,
	}
	if out.Skipped == nil {
		out.Skipped = []Skipped{}
	}
	if out.Evidence == nil {
		out.Evidence = map[Evidence]int64{}
	}
	if r.Weakest != (Proof{}) {
		out.Weakest = &r.Weakest
	}
	if r.Manifest != nil {
		out.ManifestDigest = r.Manifest.Digest().String()
	}
	if !r.Baseline.IsZero() {
		out.Baseline = r.Baseline.String()
	}
	if slices.ContainsFunc(r.Patterns, func(p string) bool { return !utf8.ValidString(p) }) {
		for _, p := range r.Patterns {
			out.PatternsB64 = append(out.PatternsB64, []byte(p))
		}
	}
	return json.Marshal(out)
}

type reportJSON struct {
	Files          int64              `json:"files"`
	Dirs           int64              `json:"dirs"`
	Links          int64              `json:"links"`
	Bytes          int64              `json:"bytes"`
	Cloned         int64              `json:"cloned"`
	Skipped        []Skipped          `json:"skipped"`
	Evidence       map[Evidence]int64 `json:"evidence"`
	Weakest        *Proof             `json:"weakest"`
	Rounds         int                `json:"rounds"`
	MetadataOnly   int64              `json:"metadata_only"`
	ManifestDigest string             `json:"manifest_digest"`
	Instant        Instant            `json:"instant"`
	Exposed        bool               `json:"exposed"`
	Seconds        float64            `json:"seconds"`
	SpecialModes   int64              `json:"special_modes"`
	Abandoned      int64              `json:"abandoned"`

	Baseline     string   `json:"baseline,omitempty"`
	Scanned      int64    `json:"scanned,omitempty"`
	Patterns     []string `json:"patterns,omitempty"`
	PatternsB64  [][]byte `json:"patterns_b64,omitempty"`
	IndexHits    int64    `json:"index_hits,omitempty"`
	IndexIgnored string   `json:"index_ignored,omitempty"`
}

// MarshalJSON writes path, because and rule as [Report.MarshalJSON] says.
func (s Skipped) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Path    string `json:"path"`
		PathB64 string `json:"path_b64,omitempty"`
		Because string `json:"because"`
		Rule    string `json:"rule"`
		RuleB64 string `json:"rule_b64,omitempty"`
	}{s.Path, notUTF8(s.Path), s.Because, s.Rule, notUTF8(s.Rule)})
}

// MarshalJSON writes what is known of one file, without its State, as [Report.MarshalJSON] says.
func (p Proof) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		SHA256   string   `json:"sha256"`
		Evidence Evidence `json:"evidence"`
		Because  string   `json:"because"`
		Size     int64    `json:"size"`
		Path     string   `json:"path"`
		PathB64  string   `json:"path_b64,omitempty"`
		Attempts int      `json:"attempts"`
	}{p.Entry.Digest.String(), p.Evidence, p.Because, p.Entry.Size, p.Entry.Path, notUTF8(p.Entry.Path), p.Attempts})
}

// notUTF8 returns s in base64 if JSON cannot hold it, else nothing.
func notUTF8(s string) string {
	if utf8.ValidString(s) {
		return ""
	}
	return base64.StdEncoding.EncodeToString([]byte(s))
}

// report counts, and writes the manifest in its order.
func (t *tree) report(rounds int) (*Report, error) {
	r := &Report{
		Rounds: rounds, Evidence: make(map[Evidence]int64), Instant: InstantAll,
		Abandoned: t.abandoned.Load(), MetadataOnly: t.metadata,
	}
	if t.opts.PerFile {
		r.Instant = InstantNone
	}
	if t.opts.Exclude != nil {
		r.Patterns = t.opts.Exclude.Patterns()
	}
	b := newManifestBuilder()
	if err := t.reportRoots(r, b); err != nil {
		return nil, err
	}
	m, err := b.finish()
	if err != nil {
		return nil, newPathError("manifest", t.path, err)
	}
	r.Manifest = m
	return r, nil
}

func (t *tree) reportRoots(r *Report, b *manifestBuilder) error {
	if t.whole {
		return t.reportEntry(r, b, t.top, 0, ".")
	}
	if err := b.add(Entry{Path: ".", Mode: fs.ModeDir | topMode}); err != nil {
		return newPathError("manifest", t.path, err)
	}
	r.Dirs++
	for i := range t.top.kids {
		if err := t.reportEntry(r, b, t.top, i, t.top.kids[i].name); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) reportEntry(r *Report, b *manifestBuilder, d *dir, i int, path string) error {
	n := &d.kids[i]
	if n.is(skipped) {
		r.Skipped = append(r.Skipped, t.leftOut(n, path))
		return nil
	}
	if n.is(todo) { // every way here goes through a round without drift
		return newPathError("manifest", t.place(d, i), errUncopied)
	}
	e := t.manifestEntry(n, path)
	if err := b.add(e); err != nil {
		return newPathError("manifest", t.place(d, i), err)
	}
	t.tally(r, n, e, t.kindOf(d, i))
	if n.sub == nil {
		return nil
	}
	for i := range n.sub.kids {
		if err := t.reportEntry(r, b, n.sub, i, beneath(path, n.sub.kids[i].name)); err != nil {
			return err
		}
	}
	return nil
}

// beneath is the manifest path of an entry of the directory at path.
func beneath(path, name string) string {
	if path == "." {
		return name
	}
	return path + "/" + name
}

// errUncopied would be a fault of this package: an entry that is neither copied nor left out.
var errUncopied = errors.New("the entry was not copied")

func (t *tree) manifestEntry(n *node, path string) Entry {
	switch {
	case n.link != nil && t.staging == nil: // a scan records what is there
		return Entry{Path: path, Mode: fs.ModeSymlink | 0o777, Link: n.link.text}
	case n.link != nil:
		return Entry{Path: path, Mode: fs.ModeSymlink | 0o777, Link: n.link.copy}
	case n.sub != nil && t.staging != nil:
		return Entry{Path: path, Mode: fs.ModeDir | t.dirMode(n)}
	case n.sub != nil:
		return Entry{Path: path, Mode: fs.ModeDir | n.seen.Mode.Perm()}
	}
	mode := n.seen.Mode.Perm()
	if t.staging != nil {
		mode, _ = t.copyMode(n.seen.Mode, at(path)) // it was asked before the file was read
	}
	return Entry{Path: path, Mode: mode, Size: n.seen.Size, Digest: n.digest}
}

func (t *tree) leftOut(n *node, path string) Skipped {
	s := Skipped{Path: path, Because: n.left.String()}
	switch n.left {
	case leftExcluded:
		s.Rule, _ = t.opts.Exclude.Explain(path)
	case leftEscapes, leftDangling:
		s.Rule = n.link.text
	}
	return s
}

// tally counts one entry of the copy, and what its proof is worth for the instant.
func (t *tree) tally(r *Report, n *node, e Entry, kind *fsys.Kind) {
	special := n.seen.Mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0
	if special && n.link == nil {
		r.SpecialModes++
	}
	switch {
	case n.is(young):
		r.Instant = InstantNone
	case n.is(weak):
		r.Instant = min(r.Instant, InstantWrites)
	}
	switch {
	case n.sub != nil:
		r.Dirs++
		return
	case n.link != nil:
		r.Links++
		return
	}
	r.Files++
	r.Bytes += n.seen.Size
	if n.is(cloned) {
		r.Cloned += n.seen.Size
	}
	r.Evidence[n.level]++
	if r.Weakest.Evidence == 0 || n.level < r.Weakest.Evidence {
		r.Weakest = Proof{
			Entry: e, State: stateOf(&n.seen), Evidence: n.level, Because: n.why.text(kind), Attempts: r.Rounds,
		}
	}
}
