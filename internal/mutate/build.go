// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// generated is what the instrumented sources call. Which check is out is told by the environment, so that one test binary,
// compiled once, is every mutant.
const generated = `package %s

import (
	"os"
	"strconv"
	"sync/atomic"
)

var (
	mutantOut, _ = strconv.Atoi(os.Getenv("HOLDSTILL_MUTANT"))
	mutantTrace  = os.Getenv("HOLDSTILL_MUTANT_TRACE")
	mutantSeen   [%d]atomic.Bool
)

// mutantOn is false for the check that is out.
func mutantOn(n int) bool {
	if mutantTrace != "" && !mutantSeen[n].Swap(true) {
		if f, err := os.OpenFile(mutantTrace, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666); err == nil {
			f.WriteString(strconv.Itoa(n) + "\n")
			f.Close()
		}
	}
	return n != mutantOut
}

func mutantErr(n int, f func() error) error {
	if !mutantOn(n) {
		return nil
	}
	return f()
}

func mutantZero[T ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr](n int, v T) T {
	if !mutantOn(n) {
		return 0
	}
	return v
}
`

// instrument writes the sources with all sites, and the overlay that puts them in the place of the originals.
func instrument(module, work string, pkgs []*pkg, sites []*site) (overlay string, err error) {
	replace := map[string]string{}
	put := func(name, text string) error {
		copied := filepath.Join(work, strings.ReplaceAll(name, string(filepath.Separator), "+"))
		replace[filepath.Join(module, name)] = copied
		return os.WriteFile(copied, []byte(text), 0o644)
	}
	edits := map[string][]edit{}
	for _, s := range sites {
		for _, e := range s.edits {
			e.open = strings.ReplaceAll(e.open, "$N", strconv.Itoa(s.n))
			e.close = strings.ReplaceAll(e.close, "$N", strconv.Itoa(s.n))
			edits[e.file] = append(edits[e.file], e)
		}
	}
	for _, p := range pkgs {
		for i, name := range p.names {
			if len(edits[name]) > 0 {
				if err := put(name, apply(p.src[i], edits[name])); err != nil {
					return "", err
				}
			}
		}
		if err := put(filepath.Join(p.dir, "mutant_generated.go"), fmt.Sprintf(generated, p.name, len(sites)+1)); err != nil {
			return "", err
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(work, "overlay.json")
	return overlay, os.WriteFile(overlay, b, 0o644)
}

// apply puts the edits into src: no line moves, and one edit lies within another or beside it.
func apply(src []byte, edits []edit) string {
	type insert struct {
		at, other, index int
		opens            bool
		text             string
	}
	var inserts []insert
	for i, e := range edits {
		inserts = append(inserts, insert{e.pos, e.end, i, true, e.open}, insert{e.end, e.pos, i, false, e.close})
	}
	slices.SortFunc(inserts, func(a, b insert) int {
		switch {
		case a.at != b.at:
			return a.at - b.at
		case a.opens != b.opens: // what ends here comes before what begins here
			if b.opens {
				return -1
			}
			return 1
		case a.opens:
			return cmp.Or(b.other-a.other, a.index-b.index)
		}
		return cmp.Or(b.other-a.other, b.index-a.index)
	})
	var b strings.Builder
	done := 0
	for _, in := range inserts {
		b.Write(src[done:in.at])
		b.WriteString(in.text)
		done = in.at
	}
	b.Write(src[done:])
	return b.String()
}

// compile builds the test binary of a package.
func compile(module, overlay, dir, binary string) error {
	cmd := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", binary, "./"+filepath.ToSlash(dir))
	cmd.Dir, cmd.Stdout, cmd.Stderr = module, os.Stderr, os.Stderr
	return cmd.Run()
}
