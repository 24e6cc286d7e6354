// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"os"
	"path/filepath"
	"strings"
)

// Handles counts the open descriptors of this process by what they point to. Those of the runtime's poller and of this package
// are not counted.
func Handles() map[string]int {
	// A read of the directory that fails counts nothing, and nothing is not what it was.
	entries, _ := os.ReadDir("/proc/self/fd")
	handles := map[string]int{}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		switch {
		case err != nil: // the descriptor of the listing itself
		case strings.HasPrefix(target, "anon_inode:[event"):
		case kept.owns(target):
		default:
			handles[target]++
		}
	}
	return handles
}
