// SPDX-License-Identifier: Apache-2.0

// Package snapshot copies files and trees that other programs may be changing, and proves what it copied: a snapshot is exactly
// a state that its source really had at one instant, or it is a typed error and nothing is left behind.
//
// A nil options pointer and a zero field are the safe default; options are copied on entry and never written to. A value that
// makes no sense, or two that cannot both hold, are [fs.ErrInvalid] before anything is opened. Every function may be called
// from several goroutines; a value may not, unless its type says so. Errors of a cancelled call satisfy
// errors.Is(err, context.Cause(ctx)).
package snapshot
