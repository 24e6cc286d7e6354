// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// CallSite is a place where a method is called.
type CallSite struct {
	File string
	Line int
	Call string // the method
	In   string // the function, with its receiver: "(*op).dup"
}

// String returns file:line and what is called.
func (s CallSite) String() string {
	return fmt.Sprintf("%s:%d: %s in %s", s.File, s.Line, s.Call, s.In)
}

// CallSites lists, from the syntax trees of a package, where methods of what the field holds are called: x.field.Method(),
// v.Method() after v := x.field, and f() after f := x.field.Method. The sources lie at the top of dir; tests, and what is not
// built here, are left out. What cannot be told apart by file and line, or be followed, is an error: two calls of one method
// on a line, and a method that is passed on.
func CallSites(dir fs.FS, field string, methods []string) ([]CallSite, error) {
	names, err := fs.Glob(dir, "*.go")
	if err != nil {
		return nil, err
	}
	here := build.Default
	here.OpenFile = func(name string) (io.ReadCloser, error) { return dir.Open(name) }
	l := &siteLister{files: token.NewFileSet(), field: field, methods: methods}
	for _, name := range names {
		match, err := here.MatchFile("", name)
		if err != nil {
			return nil, err
		}
		if !match || strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(l.files, name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				l.function(f)
			}
		}
	}
	if l.err != nil {
		return nil, l.err
	}
	slices.SortFunc(l.sites, func(a, b CallSite) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Call, b.Call))
	})
	for i := range len(l.sites) - 1 {
		if l.sites[i] == l.sites[i+1] {
			return nil, fmt.Errorf("%v: a second time on this line, which cannot be told from the first", l.sites[i])
		}
	}
	return l.sites, nil
}

type siteLister struct {
	files   *token.FileSet
	field   string
	methods []string
	in      string
	held    map[string]bool                // variables that hold the field
	values  map[string][]string            // variables that hold a method of it
	known   map[*ast.SelectorExpr]struct{} // methods that are called, or held in a variable
	sites   []CallSite
	err     error
}

func (l *siteLister) function(f *ast.FuncDecl) {
	l.in = f.Name.Name
	if f.Recv != nil {
		l.in = "(" + types.ExprString(f.Recv.List[0].Type) + ")." + l.in
	}
	l.held, l.values, l.known = map[string]bool{}, map[string][]string{}, map[*ast.SelectorExpr]struct{}{}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			for i, value := range a.Rhs {
				l.assign(a.Lhs[i], value)
			}
		}
		return true
	})
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			l.call(call)
		}
		return true
	})
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && l.isMethod(s) {
			if _, ok := l.known[s]; !ok && l.err == nil {
				l.err = fmt.Errorf("%v: %s is passed on: nobody can tell where it is called", l.files.Position(s.Pos()), s.Sel.Name)
			}
		}
		return true
	})
}

func (l *siteLister) assign(to, value ast.Expr) {
	name, ok := to.(*ast.Ident)
	s, isSelector := value.(*ast.SelectorExpr)
	switch {
	case !ok || !isSelector:
	case s.Sel.Name == l.field:
		l.held[name.Name] = true
	case l.isMethod(s):
		l.values[name.Name] = append(l.values[name.Name], s.Sel.Name)
		l.known[s] = struct{}{}
	}
}

func (l *siteLister) call(call *ast.CallExpr) {
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		if l.isMethod(f) {
			l.known[f] = struct{}{}
			l.site(f.Sel.Pos(), f.Sel.Name)
		}
	case *ast.Ident:
		for _, method := range l.values[f.Name] {
			l.site(f.Pos(), method)
		}
	}
}

func (l *siteLister) isMethod(s *ast.SelectorExpr) bool {
	if !slices.Contains(l.methods, s.Sel.Name) {
		return false
	}
	switch x := s.X.(type) {
	case *ast.SelectorExpr:
		return x.Sel.Name == l.field
	case *ast.Ident:
		return x.Name == l.field || l.held[x.Name]
	}
	return false
}

func (l *siteLister) site(at token.Pos, call string) {
	p := l.files.Position(at)
	l.sites = append(l.sites, CallSite{File: p.Filename, Line: p.Line, Call: call, In: l.in})
}
