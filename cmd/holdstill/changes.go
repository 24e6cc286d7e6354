// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"unicode/utf8"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/quote"
)

// changes prints differences as they come: there may be millions.
type changes struct {
	c     *call
	w     *bufio.Writer
	count int64
	next  string // what JSON wants before the next one
}

// verdict is the answer of diff, behind the changes.
type verdict struct {
	Equal bool `json:"equal"`
}

func (c *call) newChanges() *changes {
	c.progress.erase()
	return &changes{c: c, w: bufio.NewWriter(c.stdout), next: `{"changes":[`}
}

func (out *changes) addAll(ctx context.Context, diff iter.Seq2[snapshot.Change, error]) error {
	for change, err := range diff {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err == nil {
			err = out.add(change)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (out *changes) add(change snapshot.Change) error {
	out.count++
	sign, word := "~", "changed"
	switch {
	case change.Old == nil:
		sign, word = "+", "added"
	case change.New == nil:
		sign, word = "-", "removed"
	}
	differ := differences(change.Old, change.New)
	if out.c.json {
		return out.addJSON(word, change.Path, differ)
	}
	if out.c.quiet {
		return nil
	}
	line := sign + " " + quote.Name(change.Path)
	if len(differ) > 0 {
		var what []string
		for _, d := range differ {
			what = append(what, d.String())
		}
		line += " (" + strings.Join(what, "; ") + ")"
	}
	_, err := fmt.Fprintln(out.w, line)
	return err
}

func (out *changes) addJSON(word, path string, differ []difference) error {
	if _, err := out.w.WriteString(out.next); err != nil {
		return err
	}
	out.next = ","
	return encode(out.w, struct {
		Change string `json:"change"`
		name
		Fields fields `json:"fields"`
	}{word, jsonName(path), pairs(differ)})
}

// close ends the list; in JSON the members of answer follow it.
func (out *changes) close(answer any) error {
	if out.c.json {
		rest, err := json.Marshal(answer)
		if err != nil {
			return err
		}
		if out.count > 0 {
			out.next = ""
		}
		if _, err := fmt.Fprintf(out.w, "%s],%s\n", out.next, rest[1:]); err != nil {
			return err
		}
	}
	return out.w.Flush()
}

// difference is one thing in which two entries or States differ.
type difference struct {
	what     string
	old, now any
}

func (d difference) String() string {
	switch d.what {
	case "digest":
		return "content"
	case "link":
		return fmt.Sprintf("link %s, now %s", quote.Name(d.old.(string)), quote.Name(d.now.(string)))
	}
	return fmt.Sprintf("%s %v, now %v", d.what, d.old, d.now)
}

// differences is empty where one of both is absent.
func differences(old, now *snapshot.Entry) (list []difference) {
	if old == nil || now == nil {
		return nil
	}
	if old.Mode != now.Mode {
		list = append(list, difference{"mode", old.Mode.String(), now.Mode.String()})
	}
	if old.Mode.Type() != now.Mode.Type() {
		return list // the rest is what the types do not share
	}
	if old.Size != now.Size {
		list = append(list, difference{"size", old.Size, now.Size})
	}
	if old.Digest != now.Digest {
		list = append(list, difference{"digest", old.Digest, now.Digest})
	}
	if old.Link != now.Link {
		list = append(list, difference{"link", old.Link, now.Link})
	}
	return list
}

// stateDifferences is empty where a State is zero: the name did not exist.
func stateDifferences(old, now snapshot.State) (list []difference) {
	if old == (snapshot.State{}) || now == (snapshot.State{}) {
		return nil
	}
	if old.Mode != now.Mode {
		list = append(list, difference{"mode", old.Mode.String(), now.Mode.String()})
	}
	if old.Size != now.Size {
		list = append(list, difference{"size", old.Size, now.Size})
	}
	if !old.ModTime.Equal(now.ModTime) {
		list = append(list, difference{"mtime", old.ModTime, now.ModTime})
	}
	if !old.ChangeTime.Equal(now.ChangeTime) {
		list = append(list, difference{"ctime", old.ChangeTime, now.ChangeTime})
	}
	if old.UID != now.UID {
		list = append(list, difference{"uid", old.UID, now.UID})
	}
	if old.GID != now.GID {
		list = append(list, difference{"gid", old.GID, now.GID})
	}
	return list
}

// fields is how JSON shows differences: what was expected or there before, and what is there now.
type fields map[string][2]any

func pairs(list []difference) fields {
	f := fields{}
	for _, d := range list {
		f[d.what] = [2]any{d.old, d.now}
		old, _ := d.old.(string)
		now, _ := d.now.(string)
		if !utf8.ValidString(old) || !utf8.ValidString(now) {
			f[d.what+"_b64"] = [2]any{[]byte(old), []byte(now)}
		}
	}
	return f
}
