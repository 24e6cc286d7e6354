// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"holdstill.example/snapshot"
)

func TestErrorCodes(t *testing.T) {
	t.Parallel()
	at := func(err error) error { return fmt.Errorf("more: %w", &fs.PathError{Op: "open", Path: "p", Err: err}) }
	during := &snapshot.ChangeError{
		Path: "/a.js", Reason: snapshot.Grew, Before: snapshot.State{Size: 10}, After: snapshot.State{Size: 12},
		Attempts: 3, Err: snapshot.ErrChangedDuringSnapshot,
	}
	before := &snapshot.ChangeError{Path: "b\xff", Reason: snapshot.Replaced, Err: snapshot.ErrChangedBeforeSnapshot}
	leftover := &snapshot.LeftoverError{Paths: []string{"/left"}, Err: fs.ErrPermission}
	file := func(size int64) *snapshot.Entry { return &snapshot.Entry{Path: "m", Mode: 0o644, Size: size} }
	for _, tt := range []struct {
		err  error
		exit int
		want failure
	}{
		{during, exitAgain, failure{
			Code: "changed-during-snapshot", name: name{Path: "/a.js"}, Reason: "grew", Fields: fields{"size": {int64(10), int64(12)}}, Retryable: true,
		}},
		{before, exitAgain, failure{
			Code: "changed-before-snapshot", name: name{Path: "b\xff", B64: []byte("b\xff")}, Reason: "replaced", Retryable: true,
		}},
		{at(snapshot.ErrChanged), exitAgain, failure{Code: "changed-during-snapshot", Retryable: true}},
		{at(snapshot.ErrBusy), exitAgain, failure{Code: "busy", Retryable: true}},
		{
			&snapshot.EvidenceError{Path: "p", Required: snapshot.Coherent, Reached: snapshot.Stable, Because: "tmpfs"}, exitFailed,
			failure{Code: "evidence", Reason: "tmpfs", Fields: fields{"evidence": {snapshot.Coherent, snapshot.Stable}}},
		},
		{
			&snapshot.LimitError{Path: "p", Field: "MaxBytes", Limit: 4, Got: 5}, exitFailed,
			failure{Code: "limit", Reason: "MaxBytes", Fields: fields{"MaxBytes": {int64(4), int64(5)}}},
		},
		{
			&snapshot.MismatchError{Path: "p", Recorded: file(1), Received: file(2)}, exitFailed,
			failure{Code: "mismatch", Fields: fields{"size": {int64(1), int64(2)}}},
		},
		{&snapshot.MismatchError{Path: "p", Recorded: file(1)}, exitFailed, failure{Code: "mismatch", Reason: "vanished"}},
		{&snapshot.MismatchError{Path: "p", Received: file(1)}, exitFailed, failure{Code: "mismatch", Reason: "appeared"}},
		{at(snapshot.ErrNotRegular), exitFailed, failure{Code: "not-regular"}},
		{at(snapshot.ErrEscapes), exitFailed, failure{Code: "escapes"}},
		{at(snapshot.ErrSpecialMode), exitFailed, failure{Code: "special-mode"}},
		{at(snapshot.ErrOffline), exitFailed, failure{Code: "offline"}},
		{&snapshot.TrustError{Path: "p", Fix: "chmod go-w p"}, exitFailed, failure{Code: "untrusted", Reason: "chmod go-w p"}},
		{&snapshot.ConflictError{Target: "p"}, exitFailed, failure{Code: "conflict"}},
		{at(snapshot.ErrRolledBack), exitFailed, failure{Code: "rolled-back"}},
		{at(snapshot.ErrRecoveryPending), exitFailed, failure{Code: "recovery-pending"}},
		{errors.Join(during, leftover), exitFailed, failure{Code: "leftover", name: name{Path: "/left"}}},
		{at(fs.ErrInvalid), exitFailed, failure{Code: "invalid"}},
		{at(syscall.EEXIST), exitFailed, failure{Code: "exists"}},
		{at(syscall.ENOENT), exitFailed, failure{Code: "not-found"}},
		{at(syscall.EACCES), exitFailed, failure{Code: "permission"}},
		{at(errors.ErrUnsupported), exitFailed, failure{Code: "unsupported"}},
		{at(context.Canceled), exitFailed, failure{Code: "canceled"}},
		{at(&signalError{os.Interrupt}), exitFailed, failure{Code: "canceled"}},
		{at(context.DeadlineExceeded), exitFailed, failure{Code: "canceled"}},
		{&os.LinkError{Op: "rename", Old: "o", New: "p", Err: syscall.EIO}, exitFailed, failure{Code: "io"}},
	} {
		if tt.want.Path == "" {
			tt.want.Path = "p"
		}
		if tt.want.Fields == nil {
			tt.want.Fields = fields{}
		}
		got := describe(tt.err)
		assert.NotEmpty(t, got.Message, "describe(%v)", tt.err)
		got.Message = ""
		assert.Equal(t, tt.want, got, "describe(%v)", tt.err)

		c := newCall(takeVerb(), &bytes.Buffer{}, &bytes.Buffer{}, &environ{})
		assert.Equal(t, tt.exit, c.finish(tt.err), "finish(%v)", tt.err)
	}
}

func TestErrorIsOneSafeLine(t *testing.T) {
	t.Parallel()
	raw := &fs.PathError{Op: "open", Path: "a\nholdstill: fine\x1b[2J", Err: syscall.ENOENT}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{raw, `open a\nholdstill: fine\x1b[2J: no such file or directory`},
		{errors.Join(raw, fs.ErrExist), `open a\nholdstill: fine\x1b[2J: no such file or directory; file already exists`},
		{fmt.Errorf("%w and %w", raw, fs.ErrExist), `open a\nholdstill: fine\x1b[2J: no such file or directory and file already exists`},
		{errors.New("plain"), "plain"},
	} {
		assert.Equal(t, tt.want, message(tt.err))
	}

	var stderr bytes.Buffer
	c := newCall(takeVerb(), &bytes.Buffer{}, &stderr, &environ{})
	c.finish(raw)
	assert.Equal(t, "holdstill: open a\\nholdstill: fine\\x1b[2J: no such file or directory\n", stderr.String())
}
