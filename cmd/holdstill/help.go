// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"runtime/debug"
	"strings"

	"holdstill.example/snapshot/internal/quote"
)

func helpVerb() verb {
	return verb{
		name: "help", operands: "[VERB]", max: 1,
		about:   "tell of the verbs, or of one",
		example: "holdstill help take",
		setup: func(c *call) func(context.Context, []string) error {
			return func(_ context.Context, operands []string) error {
				if len(operands) == 0 {
					return c.print("%s", verbsText())
				}
				v, ok := find(operands[0])
				if !ok {
					return &usageError{"no such verb: " + quote.Name(operands[0])}
				}
				told := newCall(v, c.stdout, c.stderr, c.env)
				v.setup(told)
				return c.print("%s", told.helpText())
			}
		},
	}
}

func verbsText() string {
	var b strings.Builder
	b.WriteString("holdstill copies files and trees that other programs may be changing, and proves what it copied.\n\n")
	for _, v := range verbs() {
		fmt.Fprintf(&b, "  holdstill %-18s %s\n", v.name+" "+v.operands, v.about)
	}
	b.WriteString(`
"holdstill VERB --help" tells of its flags. Flags may stand anywhere before a "--".
Exit: 0 done (diff, verify: equal); 1 failed or different; 2 wrong usage;
75 the source changed or was busy: try again.
`)
	return b.String()
}

func (c *call) helpText() string {
	var b strings.Builder
	v := c.verb
	fmt.Fprintf(&b, "usage: holdstill %s\n%s\n", v.synopsis(), v.about)
	if v.more != "" {
		fmt.Fprintf(&b, "\n%s\n", v.more)
	}
	fmt.Fprintf(&b, "\nexample: %s\n", v.example)
	heading := "\nflags:\n"
	c.flags.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(&b, "%s  --%s\n      %s\n", heading, strings.TrimSpace(f.Name+" "+value), usage)
		heading = ""
	})
	return b.String()
}

func versionVerb() verb {
	return verb{
		name:    "version",
		about:   "tell which build this is",
		example: "holdstill version",
		setup: func(c *call) func(context.Context, []string) error {
			c.jsonFlag()
			return func(context.Context, []string) error {
				b := buildOf(debug.ReadBuildInfo())
				if c.json {
					return c.printJSON(b)
				}
				line := "holdstill " + b.Version
				if b.Revision != "" {
					line += " (" + b.Revision + ")"
				}
				return c.print("%s %s %s\n", line, b.Go, b.Platform)
			}
		},
	}
}

type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"` // empty where the build does not know it
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func buildOf(info *debug.BuildInfo, ok bool) build {
	if !ok {
		return build{Version: "unknown"}
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	b := build{
		Version:  info.Main.Version,
		Revision: settings["vcs.revision"],
		Go:       info.GoVersion,
		Platform: settings["GOOS"] + "/" + settings["GOARCH"],
	}
	if settings["vcs.modified"] == "true" {
		b.Revision += ", modified"
	}
	return b
}
