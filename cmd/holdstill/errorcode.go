// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"holdstill.example/snapshot"
	"holdstill.example/snapshot/internal/quote"
)

// printError writes err to stderr, where --json wants an object as one.
func (c *call) printError(err error) {
	c.progress.erase()
	if c.json {
		_ = encode(c.stderr, map[string]failure{"error": describe(err)})
		return
	}
	say(c.stderr, "holdstill: %s", message(err))
}

// failure is an error for programs; every member is always there.
type failure struct {
	Code string `json:"code"`
	name
	Reason    string `json:"reason"`
	Fields    fields `json:"fields"`
	Retryable bool   `json:"retryable"`
	Message   string `json:"message"`
}

// codes names the decisions, the more pressing ones first: an error can match several.
var codes = [...]struct {
	err  error
	code string
}{
	{snapshot.ErrRecoveryPending, "recovery-pending"},
	{snapshot.ErrLeftover, "leftover"},
	{snapshot.ErrRolledBack, "rolled-back"},
	{context.Canceled, "canceled"},
	{context.DeadlineExceeded, "canceled"},
	{snapshot.ErrChangedBeforeSnapshot, "changed-before-snapshot"},
	{snapshot.ErrChanged, "changed-during-snapshot"},
	{snapshot.ErrBusy, "busy"},
	{snapshot.ErrEvidence, "evidence"},
	{snapshot.ErrNotRegular, "not-regular"},
	{snapshot.ErrEscapes, "escapes"},
	{snapshot.ErrSpecialMode, "special-mode"},
	{snapshot.ErrLimit, "limit"},
	{snapshot.ErrOffline, "offline"},
	{snapshot.ErrMismatch, "mismatch"},
	{snapshot.ErrUntrusted, "untrusted"},
	{snapshot.ErrConflict, "conflict"},
	{fs.ErrInvalid, "invalid"},
	{fs.ErrExist, "exists"},
	{fs.ErrNotExist, "not-found"},
	{fs.ErrPermission, "permission"},
	{errors.ErrUnsupported, "unsupported"},
}

func codeOf(err error) string {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	switch {
	case noSpace(err):
		return "space"
	case readOnly(err):
		return "permission"
	}
	return "io"
}

// describe takes the facts from the struct that carries them; code and path tell of one decision.
func describe(err error) failure {
	f := failure{Code: codeOf(err), Fields: fields{}, Retryable: snapshot.Retryable(err), Message: message(err)}
	if e, ok := errors.AsType[*snapshot.LeftoverError](err); ok && f.Code == "leftover" {
		if len(e.Paths) > 0 {
			f.name = jsonName(e.Paths[0])
		}
	} else if e, ok := errors.AsType[*snapshot.ChangeError](err); ok {
		f.name, f.Reason, f.Fields = jsonName(e.Path), e.Reason.String(), pairs(stateDifferences(e.Before, e.After))
	} else if e, ok := errors.AsType[*snapshot.EvidenceError](err); ok {
		f.name, f.Reason, f.Fields = jsonName(e.Path), e.Because, fields{"evidence": {e.Required, e.Reached}}
	} else if e, ok := errors.AsType[*snapshot.LimitError](err); ok {
		f.name, f.Reason, f.Fields = jsonName(e.Path), e.Field, fields{e.Field: {e.Limit, e.Got}}
	} else if e, ok := errors.AsType[*snapshot.MismatchError](err); ok {
		f.name, f.Fields = jsonName(e.Path), pairs(differences(e.Recorded, e.Received))
		switch {
		case e.Received == nil:
			f.Reason = snapshot.Vanished.String()
		case e.Recorded == nil:
			f.Reason = snapshot.Appeared.String()
		}
	} else if e, ok := errors.AsType[*snapshot.TrustError](err); ok {
		f.name, f.Reason = jsonName(e.Path), e.Fix
	} else if e, ok := errors.AsType[*snapshot.ConflictError](err); ok {
		f.name = jsonName(e.Target)
	} else if e, ok := errors.AsType[*fs.PathError](err); ok {
		f.name = jsonName(e.Path)
	} else if e, ok := errors.AsType[*os.LinkError](err); ok {
		f.name = jsonName(e.New)
	}
	return f
}

// message is err on one line. The system's errors hold names as they are, so the text is escaped here.
func message(err error) string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var plain, lines []string
		for _, part := range joined.Unwrap() {
			plain, lines = append(plain, part.Error()), append(lines, message(part))
		}
		if err.Error() == strings.Join(plain, "\n") { // as errors.Join does
			return strings.Join(lines, "; ")
		}
	}
	return quote.Text(err.Error())
}
