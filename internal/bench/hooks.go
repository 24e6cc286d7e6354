//go:build linux

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// hookFunctions are where the engine asks for a test's hook or for Options.Progress, by file, with the body that each has in a
// build without. They are replaced by go build's overlay, so that the package needs no second version of itself.
func hookFunctions() map[string]map[string]string {
	return map[string]map[string]string{
		"internal/fsys/handle_unix.go": {"at": "{ return nil }"},
		"seam.go":                      {"phase": "{}"},
		"meter.go":                     {"file": "{}", "bytes": "{}", "newRound": "{}", "waiting": "{}", "end": "{}"},
	}
}

// compareHooks times CopyDir in a build with hooks that nobody uses against one without, and returns the ratios.
func (m *measurement) compareHooks(ctx context.Context) (ratios []float64, err error) {
	with, without := filepath.Join(m.disk.work, "with"), filepath.Join(m.disk.work, "without")
	overlay, err := m.overlay(ctx)
	if err != nil {
		return nil, fmt.Errorf("hooks: %w", err)
	}
	for _, args := range [][]string{{"build", "-o", with}, {"build", "-overlay", overlay, "-o", without}} {
		if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("hooks: go %v: %w: %s", args, err, out)
		}
	}
	all := candidates()
	c := all[slices.IndexFunc(all, func(c *candidate) bool { return c.name == copyDir })]
	for round := range max(m.rounds, 10) {
		fmt.Fprintf(os.Stderr, "hooks on %s: round %d\n", m.disk.kind, round+1)
		seconds := map[string]float64{}
		order := []string{with, without}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, exe := range order {
			one, err := m.once(ctx, c, exe)
			if err != nil {
				return nil, err
			}
			seconds[exe] = one.took.Seconds()
		}
		ratios = append(ratios, seconds[with]/seconds[without])
	}
	return ratios, nil
}

// overlay writes the files without hooks and the list that go build wants.
func (m *measurement) overlay(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "holdstill.example/snapshot").Output()
	if err != nil {
		return "", fmt.Errorf("go list, which needs the sources and this directory: %w", err)
	}
	module := string(bytes.TrimSpace(out))
	replace := map[string]string{}
	for name, bodies := range hookFunctions() {
		path := filepath.Join(module, name)
		text, err := withBodies(path, bodies)
		if err != nil {
			return "", err
		}
		replace[path] = filepath.Join(m.disk.work, filepath.Base(name))
		if err := os.WriteFile(replace[path], text, 0o644); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(m.disk.work, "overlay.json")
	return name, os.WriteFile(name, list, 0o644)
}

// withBodies returns the text of a Go file in which the methods of these names have other bodies.
func withBodies(path string, bodies map[string]string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	replaced := 0
	for _, decl := range slices.Backward(file.Decls) {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv == nil || bodies[f.Name.Name] == "" {
			continue
		}
		lo, hi := fset.Position(f.Body.Pos()).Offset, fset.Position(f.Body.End()).Offset
		text = slices.Replace(text, lo, hi, []byte(bodies[f.Name.Name])...)
		replaced++
	}
	if replaced != len(bodies) {
		return nil, fmt.Errorf("%s: %d of %d methods found", path, replaced, len(bodies))
	}
	return text, nil
}
