// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"holdstill.example/snapshot/internal/quote"
)

// Decisions, for errors.Is. Where no struct below carries the facts, a *fs.PathError{Op, Path, Err} does, with Err one of these.
var (
	// ErrChanged occurs when the source changed under the call, and umbrellas the next two; a retry helps.
	ErrChanged = errors.New("changed")
	// ErrChangedBeforeSnapshot occurs in calls on one file: what was opened is not what the name showed; a retry helps.
	ErrChangedBeforeSnapshot error = &sentinel{"changed before snapshot", ErrChanged}
	// ErrChangedDuringSnapshot occurs when a file or a tree never held still in Options.Attempts tries; a retry helps.
	ErrChangedDuringSnapshot error = &sentinel{"changed during snapshot", ErrChanged}
	// ErrBusy occurs when a writer holds the file: a refused lease, a Windows sharing violation; a retry helps.
	ErrBusy = errors.New("file is in use by a writer")
	// ErrEvidence occurs when Options.Require asks for more than this file system can prove; a retry cannot help.
	ErrEvidence = errors.New("not enough evidence")
	// ErrNotRegular occurs when a name is a FIFO, socket, device, pseudo file, or a link where none is followed.
	ErrNotRegular = errors.New("not a regular file")
	// ErrEscapes occurs when a link dangles or ends outside every root, a mount point lies inside one, SingleLink refuses a file, or source and destination contain each other.
	ErrEscapes = errors.New("leads outside the root")
	// ErrSpecialMode occurs when PreserveMode or Checkpoint meets a file (not a directory) with setuid, setgid or sticky.
	ErrSpecialMode = errors.New("special mode bits")
	// ErrLimit occurs when a bound of Limits would be passed; nothing was written beyond it.
	ErrLimit = errors.New("limit exceeded")
	// ErrOffline occurs when the bytes are in a cloud and Options.Recall is false.
	ErrOffline = errors.New("content is offline")
	// ErrMismatch occurs when an entry is not what its manifest or digest records.
	ErrMismatch = errors.New("does not match")
	// ErrUntrusted occurs when somebody else could change a directory that must be ours.
	ErrUntrusted = errors.New("directory is not trusted")
	// ErrConflict occurs when a target holds content that is neither old nor new.
	ErrConflict = errors.New("conflict")
	// ErrRolledBack occurs when Replace or Apply failed and the old set is proven back; retry after the cause is gone.
	ErrRolledBack = errors.New("rolled back")
	// ErrRecoveryPending occurs when the old set could not be proven back; the journal is kept for Recover.
	ErrRecoveryPending = errors.New("recovery pending")
	// ErrLeftover occurs, joined to the first error, when something that this call made could not be removed; Retryable is then false.
	ErrLeftover = errors.New("left behind")
)

type sentinel struct {
	text string
	kind error
}

func (s *sentinel) Error() string { return s.text }
func (s *sentinel) Unwrap() error { return s.kind }

// ChangeError holds what was seen; Err is ErrChangedBeforeSnapshot or ErrChangedDuringSnapshot.
type ChangeError struct {
	Path          string
	Reason        Reason
	Before, After State // zero where the name did not exist
	Attempts      int   // tries of the file, rounds of the tree
	More          int   // other entries that drifted in the last round
	Err           error
}

// EvidenceError says what a file system could not prove, and why.
type EvidenceError struct {
	Path              string
	Required, Reached Evidence
	Because           string // such as "overlayfs: mapped stores cannot be seen"
}

// LimitError names the field of Limits, its value, and what was asked: of ReserveBytes, what would have stayed free.
type LimitError struct {
	Path       string
	Field      string
	Limit, Got int64
}

// MismatchError holds an entry as recorded, in the baseline and as received; nil means absent.
type MismatchError struct {
	Path                         string
	Recorded, Baseline, Received *Entry
}

// TrustError names the first component that others can change, and the command that mends it.
type TrustError struct {
	Path  string
	Owner string // name or id
	Mode  fs.FileMode
	Fix   string
}

// ConflictError lists every conflict, in manifest order.
type ConflictError struct {
	Target    string
	Conflicts []Conflict
}

// LeftoverError names what could not be removed.
type LeftoverError struct {
	Paths []string
	Err   error
}

// Error names the path, what differed, the tries, and how many other entries drifted.
func (e *ChangeError) Error() string {
	var b strings.Builder
	b.WriteString(about(e.Path, orElse(e.Err, ErrChanged)))
	if e.Reason != 0 {
		b.WriteString(": " + e.Reason.String())
	}
	if detail := e.detail(); detail != "" {
		b.WriteString(": " + detail)
	}
	if e.Attempts > 0 {
		b.WriteString("; " + count(e.Attempts, "attempt"))
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "; and %d more", e.More)
	}
	return b.String()
}

// detail says what differed, with both values.
func (e *ChangeError) detail() string {
	before, after := e.Before, e.After
	switch e.Reason {
	case Replaced:
		if after == (State{}) {
			return "a server knows the file no more"
		}
		if !before.Identity.known() || !after.Identity.known() {
			return "the file system gives no file ids"
		}
		return "another file has the name"
	case TypeChanged:
		return "it was a " + kindName(before.Mode) + ", now a " + kindName(after.Mode)
	case Vanished:
		return "no file has the name"
	case Appeared:
		return "a " + kindName(after.Mode) + " has the name"
	case Grew, Shrank:
		if before.Size != after.Size {
			return fmt.Sprintf("size %d, now %d", before.Size, after.Size)
		}
		// procfs and some network file systems lie about sizes.
		return fmt.Sprintf("size %d, but another number of bytes could be read", before.Size)
	case Modified:
		if before.Compare(after) != Modified {
			return "the contents are other ones"
		}
		return modification(before, after)
	case MetadataOnly:
		return "ctime " + stampText(before.ChangeTime) + ", now " + stampText(after.ChangeTime)
	case WriterArrived:
		return "somebody opened it for writing"
	}
	return ""
}

// modification lists the fields that make after Modified.
func modification(before, after State) string {
	var parts []string
	add := func(field, old, now string) {
		if old != now {
			parts = append(parts, field+" "+old+", now "+now)
		}
	}
	add("size", strconv.FormatInt(before.Size, 10), strconv.FormatInt(after.Size, 10))
	add("mtime", stampText(before.ModTime), stampText(after.ModTime))
	add("mode", octal(before.Mode), octal(after.Mode))
	add("owner", fmt.Sprintf("%d:%d", before.UID, before.GID), fmt.Sprintf("%d:%d", after.UID, after.GID))
	return strings.Join(parts, "; ")
}

// Error names the path, the level required, the level reached, and what stood in the way.
func (e *EvidenceError) Error() string {
	s := fmt.Sprintf("%s: %v required, %v reached", about(e.Path, ErrEvidence), e.Required, e.Reached)
	if e.Because != "" {
		s += ": " + quote.Text(e.Because)
	}
	return s
}

// Error names the path, the field of Limits, its value, and what was asked.
func (e *LimitError) Error() string {
	if e.Field == "ReserveBytes" {
		return fmt.Sprintf("%s: only %d bytes would stay free at the destination, and ReserveBytes is %d", about(e.Path, ErrLimit), e.Got, e.Limit)
	}
	return fmt.Sprintf("%s: %s is %d, asked for %d", about(e.Path, ErrLimit), e.Field, e.Limit, e.Got)
}

// Error names the path and describes the entries by type, mode and digest, never by contents: the reader of a log need not be
// allowed to read the file.
func (e *MismatchError) Error() string {
	s := about(e.Path, ErrMismatch) + ": recorded " + entryText(e.Recorded)
	if e.Baseline != nil {
		s += ", in the baseline " + entryText(e.Baseline)
	}
	s += ", received " + entryText(e.Received)
	if r, g := e.Recorded, e.Received; r != nil && g != nil && r.Link != g.Link {
		s += " with another text"
	}
	return s
}

// Error names the component, its owner and mode, and the command that mends it.
func (e *TrustError) Error() string {
	s := about(e.Path, ErrUntrusted) + ": mode " + octal(e.Mode)
	if e.Owner != "" {
		s += ", owner " + quote.Name(e.Owner)
	}
	if e.Fix != "" {
		s += "; to mend it: " + quote.Text(e.Fix)
	}
	return s
}

// Error names the target and the first few paths.
func (e *ConflictError) Error() string {
	paths := make([]string, len(e.Conflicts))
	for i, c := range e.Conflicts {
		paths[i] = c.Path
	}
	return about(e.Target, ErrConflict) + ": neither old nor new: " + nameList(paths) + "; decide with ApplyOptions.Resolve"
}

// Error names the first few paths, why they are still there, and how to be rid of them.
func (e *LeftoverError) Error() string {
	s := ErrLeftover.Error() + ": " + nameList(e.Paths)
	if e.Err != nil {
		s += ": " + quote.Text(e.Err.Error())
	}
	return s + "; remove by hand, or run sweep on the directory that holds them"
}

// Unwrap returns Err.
func (e *ChangeError) Unwrap() error { return e.Err }

// Unwrap returns ErrEvidence.
func (e *EvidenceError) Unwrap() error { return ErrEvidence }

// Unwrap returns ErrLimit.
func (e *LimitError) Unwrap() error { return ErrLimit }

// Unwrap returns ErrMismatch.
func (e *MismatchError) Unwrap() error { return ErrMismatch }

// Unwrap returns ErrUntrusted.
func (e *TrustError) Unwrap() error { return ErrUntrusted }

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// Unwrap returns ErrLeftover and what kept the removal from succeeding.
func (e *LeftoverError) Unwrap() []error { return []error{ErrLeftover, e.Err} }

// Conflict is a path at which the target is neither base nor new; nil is absent.
type Conflict struct {
	Path              string
	Base, New, Target *Entry
}

// newPathError returns a *fs.PathError. Its Error writes the path raw, so that a name could forge a line of a log or turn
// the text around; one that could is wrapped in an error with a safe text.
func newPathError[P string | place](op string, path P, err error) error {
	name := textOf(path)
	e := &fs.PathError{Op: op, Path: name, Err: err}
	if quote.Name(name) == name {
		return e
	}
	return &quotedPathError{e}
}

type quotedPathError struct{ err *fs.PathError }

func (e *quotedPathError) Error() string {
	return e.err.Op + " " + quote.Name(e.err.Path) + ": " + quote.Text(e.err.Err.Error())
}

func (e *quotedPathError) Unwrap() error { return e.err }

// maxNames is how many paths a text lists; the struct has them all.
const maxNames = 5

func nameList(paths []string) string {
	names := make([]string, 0, maxNames)
	for _, p := range paths[:min(len(paths), maxNames)] {
		names = append(names, quote.Name(p))
	}
	s := strings.Join(names, ", ")
	if more := len(paths) - maxNames; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// about is the head of a text: the path, if it is known, and the decision.
func about(path string, decision error) string {
	if path == "" {
		return decision.Error()
	}
	return quote.Name(path) + ": " + decision.Error()
}

func orElse(err, otherwise error) error {
	if err == nil {
		return otherwise
	}
	return err
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func entryText(e *Entry) string {
	switch {
	case e == nil:
		return "absent"
	case !e.Mode.IsRegular():
		return kindName(e.Mode) + " " + octal(e.Mode)
	case e.Digest == Digest{}:
		return fmt.Sprintf("file %s of %d bytes", octal(e.Mode), e.Size)
	}
	return fmt.Sprintf("file %s of %d bytes, sha256 %x…", octal(e.Mode), e.Size, e.Digest[:6])
}

func kindName(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "file"
	case fs.ModeDir:
		return "directory"
	case fs.ModeSymlink:
		return "link"
	case fs.ModeNamedPipe:
		return "FIFO"
	case fs.ModeSocket:
		return "socket"
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		return "device"
	}
	return "special file"
}

// octal writes the bits of a mode as chmod takes them.
func octal(mode fs.FileMode) string {
	bits := mode.Perm()
	if mode&fs.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if mode&fs.ModeSetgid != 0 {
		bits |= 0o2000
	}
	if mode&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return fmt.Sprintf("%04o", uint32(bits))
}

func stampText(t time.Time) string {
	if t.IsZero() {
		return "unknown"
	}
	return t.UTC().Format(time.RFC3339Nano)
}
