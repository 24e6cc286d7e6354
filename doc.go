// SPDX-License-Identifier: Apache-2.0

// Package snapshot copies files and trees that other programs may be changing, and proves what it copied:
// a snapshot is exactly a state that its source really had at one instant, or it is a typed error and nothing is left behind.
//
// [ReadFile], [CopyFile] and [Open] prove one file; [CopyDir] and [Scan] a tree; [Take] freezes several trees and files
// together, in a private directory; [Verify] and [Diff] compare with a [Manifest]; [Sweep] removes what a killed process left;
// [Retry] tries again what [Retryable] says may succeed.
//
// A nil options pointer and a zero field are the safe default; options are copied on entry and never written to. A value that
// makes no sense, or two that cannot both hold, are [fs.ErrInvalid] before anything is opened. Every function may be called
// from several goroutines; a value may not, unless its type says so. Errors of a cancelled call satisfy
// errors.Is(err, context.Cause(ctx)).
//
// # What is proven
//
// Of a file, [Evidence] says how strongly its bytes were proven; the promise is kept from [Coherent] upwards, and from
// [Buffered] against all writers but those with O_DIRECT. Of a tree, [Instant] says whether all of it had the copied state
// at one moment. Options.Require refuses less than it asks for.
//
// # What is not
//
// Nothing can be proven against root behind the file system's back, a raw block device, a clock that is set back, a debugger
// on this process, a network server that lies, a kernel transfer that is still pending into a page once mapped from the
// source, or ext4's EXT4_IOC_MOVE_EXT. A state between two writes of one program is a state: nobody but that program knows
// when its update is complete.
//
// A FUSE or network server that never answers a look-up or a listing holds a call up until the process is killed; Options.Stall
// and the end of a context bound the waiting for bytes.
//
// # Platforms
//
//   - On Linux everything is had that the file system can prove; Evidence and [Proof].Because say what, and why no more.
//     /proc makes it faster and avoids that a device's driver is entered; it is not needed.
//   - On macOS, FreeBSD, NetBSD and OpenBSD files are proven up to [Stable]. Nobody has tested it there yet.
//   - Elsewhere the calls that read a source return [errors.ErrUnsupported].
package snapshot
