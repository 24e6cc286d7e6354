// SPDX-License-Identifier: Apache-2.0

// Package fstest is the support that the tests share: trees from lines of text, oracles, leak checks, mounted file systems
// and adversaries that run as processes of their own.
//
// Everything takes a [TB], which a *testing.T is; [Run] makes one for a program. Trees, oracles and [Leaks] work on every
// system; adversaries, mounts and [Settle] are for Linux. Some variables help a run that may not mount or build:
// HOLDSTILL_TEST_DIR names a directory for images, and a file system that is mounted there under the name of its kind is used as
// it is; HOLDSTILL_ADVERSARY, HOLDSTILL_COMMAND and HOLDSTILL_FUSEFS name the programs of the adversary, of the command and of the
// lying file server, which are otherwise built on first use.
package fstest
