// SPDX-License-Identifier: Apache-2.0

package fstest_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"

	own "holdstill.example/snapshot/internal/fstest"
)

func TestCallSites(t *testing.T) {
	t.Parallel()
	methods := []string{"Open", "Close", "Sync"}
	sources := func(body string) fstest.MapFS {
		return fstest.MapFS{
			"a.go":             {Data: []byte("package p\nfunc (o *op[T]) f() {\n" + body + "\n}\nfunc external()\n")},
			"a_test.go":        {Data: []byte("package p\nfunc test() { o.calls.Open() }\n")},
			"a_windows.go":     {Data: []byte("package p\nfunc elsewhere() { o.calls.Open() }\n")},
			"text.txt":         {Data: []byte("o.calls.Open()")},
			"below/ignored.go": {Data: []byte("package q\nfunc f() { o.calls.Open() }\n")},
		}
	}
	at := func(line int, call string) own.CallSite {
		return own.CallSite{File: "a.go", Line: line, Call: call, In: "(*op[T]).f"}
	}
	for name, tt := range map[string]struct {
		body string
		want []own.CallSite
		text string // of the error
	}{
		"of the field":        {body: "o.calls.Open()\nx.o.calls.Close(1)", want: []own.CallSite{at(3, "Open"), at(4, "Close")}},
		"of a variable":       {body: "o, c := p, p.o.calls\nc.Close()\no.Close()", want: []own.CallSite{at(4, "Close")}},
		"in a literal":        {body: "defer func() {\n_ = o.calls.Close()\n}()", want: []own.CallSite{at(4, "Close")}},
		"of a method value":   {body: "f := o.calls.Sync\nif x { f = o.calls.Open }\nf()", want: []own.CallSite{at(5, "Open"), at(5, "Sync")}},
		"two on a line":       {body: "join(o.calls.Open(), o.calls.Sync())", want: []own.CallSite{at(3, "Open"), at(3, "Sync")}},
		"over lines":          {body: "join(\no.calls.Sync(1),\no.calls.Sync(2),\n)", want: []own.CallSite{at(4, "Sync"), at(5, "Sync")}},
		"of something else":   {body: "o.calls.Other()\no.files.Open()\nOpen()\nc.Open()"},
		"twice on a line":     {body: "join(o.calls.Sync(1), o.calls.Sync(2))", text: "a.go:3: Sync in (*op[T]).f: a second time"},
		"passed on":           {body: "do(o.calls.Sync)", text: "a.go:3:4: Sync is passed on"},
		"returned":            {body: "return o.calls.Sync", text: "passed on"},
		"no source in syntax": {body: "}", text: "a.go:4"},
	} {
		got, err := own.CallSites(sources(tt.body), "calls", methods)
		assert.Equal(t, tt.want, got, name)
		if tt.text == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, tt.text, name)
		}
	}
}
