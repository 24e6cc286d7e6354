//go:build linux

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// workload is a tree to copy. Its totals are planned before it is made, so that the disk can be made large enough.
type workload struct {
	name string
	what string
	plan func(g *generator)
	tree
}

// tree is how much there is.
type tree struct{ files, dirs, bytes int64 }

func (t tree) entries() int64 { return t.files + t.dirs }

// workloads returns those that were asked for, with the second tree that W5 and W6 are compared with.
func workloads(names []string, scale float64) ([]*workload, error) {
	n := func(full int) int { return max(1, int(math.Round(float64(full)*scale))) }
	w2 := func(g *generator) { g.project(n(30_000), n(4000), 10) }
	known := []*workload{
		{name: "W1", what: "one file", plan: func(g *generator) { g.file(".", n(2<<30)) }},
		{name: "W2", what: "small files", plan: w2},
		{name: "W3", what: "files of 1 MiB", plan: func(g *generator) {
			for range n(1000) {
				g.file(".", 1<<20)
			}
		}},
		{name: "W4", what: "small files, nothing changed", plan: w2},
		{name: "W5/10", what: "a tenth of W5", plan: func(g *generator) { g.tiny(n(100_000)) }},
		{name: "W5", what: "tiny files", plan: func(g *generator) { g.tiny(10 * n(100_000)) }},
		{name: "W6 flat", what: "300 directories side by side", plan: func(g *generator) { g.chain(300, n(100), false) }},
		{name: "W6", what: "300 directories, each in the one before", plan: func(g *generator) { g.chain(300, n(100), true) }},
	}
	var todo []*workload
	for _, w := range known {
		family, _, _ := strings.Cut(strings.ReplaceAll(w.name, "/", " "), " ")
		if !slices.Contains(names, family) {
			continue
		}
		g := newGenerator("")
		w.plan(g)
		w.tree = g.tree
		todo = append(todo, w)
	}
	for _, name := range names {
		if !slices.ContainsFunc(todo, func(w *workload) bool { return w.name == name }) {
			return nil, fmt.Errorf("no workload %q", name)
		}
	}
	return todo, nil
}

// make makes the tree at dir.
func (w *workload) make(dir string) error {
	g := newGenerator(dir)
	g.dir(".")
	w.plan(g)
	return g.err
}

// generator makes trees, the same each time; without a root it only counts.
type generator struct {
	tree
	root   string
	source *rand.ChaCha8
	random *rand.Rand
	bytes  []byte
	err    error
}

func newGenerator(root string) *generator {
	// Of its own for the contents: the shape does not depend on whether they are made.
	shape := rand.NewChaCha8(sha256.Sum256([]byte("shape")))
	return &generator{root: root, source: rand.NewChaCha8(sha256.Sum256([]byte("contents"))), random: rand.New(shape)}
}

func (g *generator) dir(name string) string {
	g.dirs++
	if g.root != "" && g.err == nil {
		g.err = os.Mkdir(filepath.Join(g.root, name), 0o755)
	}
	return name
}

// file makes one in dir, executable every twentieth time.
func (g *generator) file(dir string, size int) {
	name := fmt.Sprintf("%s/file%06d.dat", dir, g.files)
	mode := fs.FileMode(0o644)
	if g.files%20 == 0 {
		mode = 0o755
	}
	g.files++
	g.tree.bytes += int64(size)
	if g.root == "" || g.err != nil {
		return
	}
	f, err := os.OpenFile(filepath.Join(g.root, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		g.err = err
		return
	}
	for size > 0 && err == nil {
		piece := slices.Grow(g.bytes[:0], 1<<20)[:min(size, 1<<20)]
		_, _ = g.source.Read(piece) // never fails
		_, err = f.Write(piece)
		g.bytes, size = piece, size-len(piece)
	}
	g.err = errors.Join(err, f.Close())
}

// project is a tree like that of a program: most directories are near the top, most files small.
func (g *generator) project(files, dirs, deepest int) {
	type place struct {
		name  string
		depth int
	}
	places := []place{{".", 0}}
	for len(places) < dirs {
		a, b := places[g.random.IntN(len(places))], places[g.random.IntN(len(places))]
		if b.depth < a.depth {
			a = b
		}
		if a.depth < deepest {
			places = append(places, place{g.dir(fmt.Sprintf("%s/dir%04d", a.name, len(places))), a.depth + 1})
		}
	}
	for range files {
		// The median is 3.6 KiB, the mean near 7.
		size := math.Exp(8.2 + 1.2*g.random.NormFloat64())
		g.file(places[g.random.IntN(len(places))].name, int(min(max(size, 0.2*1024), 64*1024)))
	}
}

// tiny makes files of which every second is empty, 1000 in a directory.
func (g *generator) tiny(files int) {
	var dir string
	for i := range files {
		if i%1000 == 0 {
			dir = g.dir(fmt.Sprintf("./dir%04d", i/1000))
		}
		g.file(dir, i%2*(1+g.random.IntN(512)))
	}
}

// chain makes directories with a number of files each.
func (g *generator) chain(dirs, files int, nested bool) {
	parent := "."
	for i := range dirs {
		dir := g.dir(fmt.Sprintf("%s/dir%03d", parent, i))
		for range files {
			g.file(dir, g.random.IntN(4096))
		}
		if nested {
			parent = dir
		}
	}
}

// count looks at a tree that was made.
func count(dir string) (t tree, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			t.dirs++
			return nil
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		t.files++
		t.bytes += fi.Size()
		return nil
	})
	return t, err
}
