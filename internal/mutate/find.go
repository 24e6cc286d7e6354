// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// op is how a check is taken out.
type op string

const (
	opFalse op = "false" // the condition, or one of those that "||" joins, never holds
	opTrue  op = "true"  // it always does
	opNil   op = "nil"   // the call is not made, and its error is nil
	opZero  op = "zero"  // the flag or number is 0
	opSkip  op = "skip"  // the statement is left out
	opBody  op = "body"  // the block returns zeros before it refuses
	opOff   op = "off"   // the check of checks.go is off
)

// site is one place in the source at which one check can be taken out.
type site struct {
	n     int    // of the mutant, from 1 on
	file  string // relative to the module
	fn    string // the function, with its receiver's type
	op    op
	text  string // the source, on one line, with "#2" behind the second of its like in a function
	line  int
	edits []edit
}

// key names a site whatever is written above it.
func (s *site) key() string { return s.file + " " + s.fn + " " + string(s.op) + " " + s.text }

// edit puts text around the bytes [pos, end) of a file.
type edit struct {
	file        string
	pos, end    int
	open, close string // with $N for the number of the mutant
}

// pkg is one package under mutation.
type pkg struct {
	path, dir, name string
	files           []*ast.File
	names           []string // of files, relative to the module
	src             [][]byte
	fset            *token.FileSet
	info            types.Info
	found           map[string]*site // every refusal
	all             map[string]*site // whatever can be taken out
	always          map[types.Object]bool
	checks          map[types.Object]bool
}

// load parses and checks packages of the module in dir.
func load(dir string, paths ...string) ([]*pkg, error) {
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Name,Dir,Export,GoFiles"}, paths...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := map[string]string{}
	listed := map[string]*pkg{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Name, Dir, Export string
			GoFiles                       []string
		}
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		rel, err := filepath.Rel(dir, p.Dir)
		if err != nil {
			return nil, err
		}
		q := &pkg{path: p.ImportPath, dir: rel, name: p.Name}
		for _, name := range p.GoFiles {
			q.names = append(q.names, filepath.Join(rel, name))
		}
		listed["./"+filepath.ToSlash(rel)] = q
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	pkgs := make([]*pkg, 0, len(paths))
	for _, path := range paths {
		p := listed["./"+filepath.ToSlash(filepath.Clean(path))]
		p.fset = fset
		for _, name := range p.names {
			src, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return nil, err
			}
			p.src = append(p.src, src)
		}
		if err := p.check(imports); err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
	return pkgs, nil
}

func (p *pkg) check(imports types.Importer) error {
	for i, name := range p.names {
		f, err := parser.ParseFile(p.fset, name, p.src[i], parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		p.files = append(p.files, f)
	}
	p.info = types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
	}
	config := types.Config{Importer: imports}
	if _, err := config.Check(p.path, p.fset, p.files, &p.info); err != nil {
		return err
	}
	p.find()
	return nil
}

// find fills found and all.
func (p *pkg) find() {
	p.found, p.all = map[string]*site{}, map[string]*site{}
	p.classify()
	off := map[types.Object]*site{}
	for i, f := range p.files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil && !isText(fn) {
				(&finder{pkg: p, file: i, fn: fn, seen: map[string]int{}, off: off}).find()
			}
		}
	}
}

// isText: the methods of error types say what happened and decide nothing.
func isText(fn *ast.FuncDecl) bool {
	switch fn.Name.Name {
	case "Error", "Unwrap", "String", "detail":
		return fn.Recv != nil
	}
	return false
}

// classify finds the functions that stand for a refusal: those that never return nil, and those whose only result is an
// error, of which a call is a check.
func (p *pkg) classify() {
	p.always, p.checks = map[types.Object]bool{}, map[types.Object]bool{}
	for again := true; again; {
		again = false
		for _, f := range p.files {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Body == nil || isText(fn) {
					continue
				}
				obj := p.info.Defs[fn.Name]
				sig := obj.Type().(*types.Signature)
				if sig.Results().Len() != 1 || !isError(sig.Results().At(0).Type()) || takesError(sig) || p.always[obj] || p.checks[obj] {
					continue
				}
				refuses, passes := p.returns(fn.Body)
				switch {
				case refuses && !passes:
					p.always[obj], again = true, true
				case refuses:
					p.checks[obj], again = true, true
				}
			}
		}
	}
}

// returns reports whether a function may refuse, and whether it may do anything else.
func (p *pkg) returns(body *ast.BlockStmt) (refuses, passes bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			if p.produces(n) {
				refuses = true
			} else {
				passes = true
			}
		case *ast.AssignStmt:
			refuses = refuses || p.produces(n)
		}
		return true
	})
	return refuses, passes
}

func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

func takesError(sig *types.Signature) bool {
	for v := range sig.Params().Variables() {
		if isError(v.Type()) {
			return true
		}
	}
	return false
}

// produces reports whether n makes a refusal: a sentinel, one of the structs, or a call that never returns nil. Conditions,
// and what is asked of an error, do not count, nor does what a function literal does.
func (p *pkg) produces(n ast.Node) bool {
	yes := false
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.IfStmt, *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt:
			return false
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				return false
			}
		case *ast.CallExpr:
			if name := types.ExprString(n.Fun); name == "errors.Is" || strings.HasPrefix(name, "errors.AsType") {
				return false
			}
			yes = yes || p.always[p.callee(n)]
		case *ast.CompositeLit:
			yes = yes || refusals[types.TypeString(p.info.TypeOf(n), (*types.Package).Name)]
		case *ast.Ident:
			yes = yes || p.isSentinel(p.info.Uses[n])
		}
		return !yes
	})
	return yes
}

func (p *pkg) callee(call *ast.CallExpr) types.Object {
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return p.info.Uses[fun]
	case *ast.SelectorExpr:
		return p.info.Uses[fun.Sel]
	}
	return nil
}

// refusals are the structs that carry the facts of one.
var refusals = map[string]bool{
	"snapshot.ChangeError": true, "snapshot.EvidenceError": true, "snapshot.LimitError": true, "snapshot.MismatchError": true,
	"snapshot.TrustError": true, "snapshot.ConflictError": true, "snapshot.LeftoverError": true, "snapshot.driftError": true,
}

// isSentinel: the package's own error variables and constants, and those of io/fs that say no.
func (p *pkg) isSentinel(obj types.Object) bool {
	if obj == nil || obj.Pkg() == nil || obj.Parent() != obj.Pkg().Scope() {
		return false
	}
	if !strings.HasPrefix(strings.ToLower(obj.Name()), "err") || !types.AssignableTo(obj.Type(), types.Universe.Lookup("error").Type()) {
		return false
	}
	switch obj.Pkg().Path() {
	case p.path:
		return true
	case "io/fs":
		return obj.Name() == "ErrExist" || obj.Name() == "ErrInvalid" || obj.Name() == "ErrClosed"
	}
	return strings.HasSuffix(obj.Pkg().Path(), "/internal/fsys")
}

// finder finds the sites of one function.
type finder struct {
	*pkg
	file int
	fn   *ast.FuncDecl
	seen map[string]int
	off  map[types.Object]*site // one for each check of checks.go
	made map[[2]int]map[op]*site
}

func (f *finder) name() string {
	if f.fn.Recv == nil {
		return f.fn.Name.Name
	}
	t := f.fn.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	return types.ExprString(t) + "." + f.fn.Name.Name
}

func (f *finder) find() {
	f.made = map[[2]int]map[op]*site{}
	f.everything()
	f.scope(f.fn.Body, f.info.Defs[f.fn.Name].Type().(*types.Signature))
}

func (f *finder) offset(pos token.Pos) int { return f.fset.Position(pos).Offset }

func (f *finder) site(n ast.Node, o op, before, after string) *site {
	pos, end := f.offset(n.Pos()), f.offset(n.End())
	if s := f.made[[2]int{pos, end}][o]; s != nil {
		return s
	}
	text := strings.Join(strings.Fields(string(f.src[f.file][pos:end])), " ")
	count := string(o) + " " + text
	if f.seen[count]++; f.seen[count] > 1 {
		text = fmt.Sprintf("%s #%d", text, f.seen[count])
	}
	s := &site{
		file: f.names[f.file], fn: f.name(), op: o, text: text, line: f.fset.Position(n.Pos()).Line,
		edits: []edit{{f.names[f.file], pos, end, before, after}},
	}
	if f.made[[2]int{pos, end}] == nil {
		f.made[[2]int{pos, end}] = map[op]*site{}
	}
	f.made[[2]int{pos, end}][o] = s
	f.all[s.key()] = s
	return s
}

// everything makes the sites that the list may name by hand, in the order of the source.
func (f *finder) everything() {
	places := map[ast.Node]bool{} // what is assigned to is no value
	ast.Inspect(f.fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ExprStmt:
			f.site(n, opSkip, "if mutantOn($N) { ", " }")
		case *ast.IncDecStmt:
			places[n.X] = true
		case *ast.UnaryExpr:
			places[n.X] = n.Op == token.AND
		case *ast.RangeStmt:
			places[n.Key], places[n.Value] = true, true
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				places[e] = true
			}
			if n.Tok != token.DEFINE {
				f.site(n, opSkip, "if mutantOn($N) { ", " }")
			}
		}
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		tv, ok := f.info.Types[e]
		if !ok || !tv.IsValue() || places[e] {
			return true
		}
		basic, _ := tv.Type.Underlying().(*types.Basic)
		switch call, isCall := e.(*ast.CallExpr); {
		case isCall && isError(tv.Type):
			f.site(e, opNil, "mutantErr($N, func() error { return ", " })")
			f.offs(call)
		case basic != nil && basic.Info()&types.IsBoolean != 0:
			f.site(e, opFalse, "((", ") && mutantOn($N))")
			f.site(e, opTrue, "((", ") || !mutantOn($N))")
			if isCall {
				f.offs(call)
			}
		case basic != nil && basic.Info()&types.IsInteger != 0 && (tv.Value == nil || tv.Value.Kind() == constant.Int):
			as := "" // what is untyped yet is so in the midst of a constant
			if basic.Info()&types.IsUntyped == 0 {
				as = "[" + types.TypeString(tv.Type, f.qualifier) + "]"
			}
			f.site(e, opZero, "mutantZero"+as+"($N, ", ")")
		}
		return true
	})
}

// offs gathers the uses of a check of checks.go.
func (f *finder) offs(call *ast.CallExpr) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != "off" || len(call.Args) != 1 {
		return
	}
	id, ok := call.Args[0].(*ast.Ident)
	if !ok {
		return
	}
	obj := f.info.Uses[id]
	s := f.off[obj]
	if s == nil {
		s = &site{file: "checks.go", fn: "check", op: opOff, text: id.Name, line: f.fset.Position(obj.Pos()).Line}
		f.off[obj] = s
		f.found[s.key()], f.all[s.key()] = s, s
	}
	s.edits = append(s.edits, edit{f.names[f.file], f.offset(call.Pos()), f.offset(call.End()), "(", " || !mutantOn($N))"})
}

// scope finds the refusals in the body of a function or function literal.
func (f *finder) scope(body *ast.BlockStmt, sig *types.Signature) {
	f.direct(body.List, sig)
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			f.scope(n.Body, f.info.TypeOf(n).(*types.Signature))
			return false
		case *ast.CallExpr:
			if f.checks[f.callee(n)] {
				f.note(f.site(n, opNil, "mutantErr($N, func() error { return ", " })"))
			}
		case *ast.IfStmt:
			if f.refuses(n.Body.List) {
				f.condition(n.Cond)
			}
			if e, ok := n.Else.(*ast.BlockStmt); ok {
				f.direct(e.List, sig)
			}
		case *ast.SwitchStmt:
			for _, c := range n.Body.List {
				f.clause(n, c.(*ast.CaseClause), sig)
			}
		case *ast.TypeSwitchStmt:
			for _, c := range n.Body.List {
				f.direct(c.(*ast.CaseClause).Body, sig)
			}
		case *ast.CommClause:
			f.direct(n.Body, sig)
		}
		return true
	})
}

func (f *finder) clause(s *ast.SwitchStmt, c *ast.CaseClause, sig *types.Signature) {
	if s.Tag != nil || c.List == nil {
		f.direct(c.Body, sig)
		return
	}
	if f.refuses(c.Body) {
		for _, e := range c.List {
			f.condition(e)
		}
	}
}

func (f *finder) note(s *site) { f.found[s.key()] = s }

// condition: each of what "||" joins is a check of its own.
func (f *finder) condition(e ast.Expr) {
	switch e := ast.Unparen(e).(type) {
	case *ast.BinaryExpr:
		if e.Op == token.LOR {
			f.condition(e.X)
			f.condition(e.Y)
			return
		}
	}
	f.note(f.site(e, opFalse, "((", ") && mutantOn($N))"))
}

// refusing returns the statements that make a refusal whatever else holds: loops are no conditions.
func (f *finder) refusing(list []ast.Stmt) (found []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ForStmt:
			found = append(found, f.refusing(s.Body.List)...)
		case *ast.RangeStmt:
			found = append(found, f.refusing(s.Body.List)...)
		case *ast.BlockStmt:
			found = append(found, f.refusing(s.List)...)
		default:
			if f.produces(s) {
				found = append(found, s)
			}
		}
	}
	return found
}

func (f *finder) refuses(list []ast.Stmt) bool { return len(f.refusing(list)) > 0 }

// direct: a refusal that no condition of its own guards is left out with what comes after it.
func (f *finder) direct(list []ast.Stmt, sig *types.Signature) {
	if found := f.refusing(list); len(found) > 0 {
		zeros := make([]string, 0, sig.Results().Len())
		for v := range sig.Results().Variables() {
			zeros = append(zeros, "*new("+types.TypeString(v.Type(), f.qualifier)+")")
		}
		f.note(f.site(found[0], opBody, "if !mutantOn($N) { return "+strings.Join(zeros, ", ")+" }; ", ""))
	}
}

func (f *finder) qualifier(other *types.Package) string {
	if other.Path() == f.path {
		return ""
	}
	return other.Name()
}

// sorted returns sites in the order of the source.
func sorted(sites map[string]*site) []*site {
	list := make([]*site, 0, len(sites))
	for _, s := range sites {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *site) int {
		if c := strings.Compare(a.file, b.file); c != 0 {
			return c
		}
		if c := a.line - b.line; c != 0 {
			return c
		}
		return strings.Compare(a.key(), b.key())
	})
	return list
}
