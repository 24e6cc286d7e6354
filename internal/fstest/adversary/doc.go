// SPDX-License-Identifier: Apache-2.0

// Adversary attacks files while tests copy them. It is a process of its own because a process disturbs far more often than a
// thread of the copier, and because what it holds open must not be the copier's.
//
//	adversary OP [flags] ARGS
//
//	torn FILE             rewrite FILE with one generation of fstest.TornContent after another, over and over
//	                        --how write|chunks|direct|stall|mmap|mmap-hold: one write(), 64 KiB writes, one O_DIRECT write,
//	                        one write() that stalls for up to 2 ms before its last page, stores through a shared mapping
//	                        whose descriptor is closed, made for each rewrite or once
//	                        --reopen: open for each rewrite; --size N
//	pair A B              write the same generation to A, then to B; --how write|mmap, --size N
//	                        --hide: make and remove hard links of both all the time, and put mtime back after each write
//	exchange P Q          RENAME_EXCHANGE of two names, twice a turn
//	swaplink FILE TARGET  exchange FILE with a symlink to TARGET, twice a turn
//	swapparent DIR OUT    exchange DIR with a symlink to OUT, twice a turn
//	two DIR               exchange DIR, which gets files a and b of one generation, with its successor: both change at once
//	noise DIR             to every file below DIR, what no content changes by: --ops link,chmod,xattr,read
//	grow FILE             append; --max N ends the growth, not the process; --again: then cut FILE to nothing and go on
//	churn DIR             make and remove names in DIR; --files N at a time
//	renames DIR           move files back and forth between DIR/a and DIR/b, which it makes; --files N
//	recycle FILE [FILE]   unlink FILE and make it anew, other content, equal size and mtime; in between it is absent or empty
//	flicker DIR SOURCE    mount SOURCE, a directory or for "tmpfs" an empty one, over DIR, and unmount it
//	stall FILE            one write() to FILE that stands still in a page fault, with the inode's lock, to the end
//	pending FILE          a transfer by the kernel into pages of FILE, which was mapped and is not any more, lands at the end
//	moveext FILE          EXT4_IOC_MOVE_EXT gives FILE other blocks at the end
//	keep DIR KIND...      not an attack: mount file systems at DIR/KIND and undo that at the end; --all: remove DIR too
//
// Common flags: --pause-max D waits a random time up to D between turns, always in the right state, and in the wrong one of
// exchange and flicker; --deadline D ends the process hard; --side DIR, on the same file system, holds what the op needs beside
// its target (default: a new directory beside the directory of the target, removed at the end).
//
// It prints "ready" when it begins, or "skip: reason" where the system does not let it. The line "pause" on its standard
// input makes it stop between two turns, "go" goes on; it answers each with the same line. It ends at the end of its
// standard input, with a JSON object of its counters, and it dies when its parent does.
package main
