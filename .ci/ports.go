//go:build ignore

// SPDX-License-Identifier: Apache-2.0

// Ports type-checks the module, and what it imports, for every system and machine that Go knows. It is a build without code:
// that of all ports would take half an hour.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

func main() {
	list, err := exec.Command("go", "tool", "dist", "list").Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ports := strings.Fields(string(list))
	errs := make([]error, len(ports))
	c := checker{fset: token.NewFileSet()}
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i, port := range ports {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			errs[i] = c.port(port)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%d ports: %s\n", len(ports), strings.Join(ports, " "))
}

// checker keeps what was parsed: most files belong to many ports.
type checker struct {
	fset  *token.FileSet
	files sync.Map // path → func() (*ast.File, error)
}

// listed is what go list tells of a package.
type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	CgoFiles   []string
	ImportMap  map[string]string
	Module     *struct{ Main bool }
	Error      *struct{ Err string }
}

func (c *checker) port(port string) error {
	goos, goarch, _ := strings.Cut(port, "/")
	cgo := "0"
	if goos == "android" || goos == "ios" { // always linked by the system's linker
		cgo = "1"
	}
	cmd := exec.Command("go", "list", "-deps", "-tags=netgo,osusergo", "-json=ImportPath,Dir,GoFiles,CgoFiles,ImportMap,Module,Error", "./...")
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED="+cgo)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = c.packages(json.NewDecoder(out), types.SizesFor("gc", goarch))
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return fmt.Errorf("%s: %w", port, err)
	}
	return nil
}

// packages checks a list in which every package comes after those that it imports.
func (c *checker) packages(list *json.Decoder, sizes types.Sizes) error {
	done := map[string]*types.Package{"unsafe": types.Unsafe}
	for {
		var p listed
		switch err := list.Decode(&p); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case p.Error != nil:
			return errors.New(p.Error.Err)
		case p.ImportPath == "unsafe":
			continue
		}
		var files []*ast.File
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
			f, err := c.parse(filepath.Join(p.Dir, name))
			if err != nil {
				return err
			}
			files = append(files, f)
		}
		conf := types.Config{
			Sizes:            sizes,
			FakeImportC:      true,
			IgnoreFuncBodies: p.Module == nil || !p.Module.Main,
			Importer: importer(func(path string) (*types.Package, error) {
				if mapped, ok := p.ImportMap[path]; ok {
					path = mapped
				}
				if done[path] == nil {
					return nil, fmt.Errorf("%s is not listed", path)
				}
				return done[path], nil
			}),
		}
		checked, err := conf.Check(p.ImportPath, c.fset, files, nil)
		if err != nil {
			return err
		}
		done[p.ImportPath] = checked
	}
}

func (c *checker) parse(name string) (*ast.File, error) {
	once, _ := c.files.LoadOrStore(name, sync.OnceValues(func() (*ast.File, error) {
		return parser.ParseFile(c.fset, name, nil, parser.SkipObjectResolution)
	}))
	return once.(func() (*ast.File, error))()
}

type importer func(path string) (*types.Package, error)

func (f importer) Import(path string) (*types.Package, error) { return f(path) }
