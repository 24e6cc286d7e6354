//go:build !weakened

// SPDX-License-Identifier: Apache-2.0

package snapshot

func weaken(check) weakening { return weakening{} }
