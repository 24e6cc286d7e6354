//go:build weakened

// SPDX-License-Identifier: Apache-2.0

package snapshot

func weaken(c check) weakening { return weakening{unchecked: c} }
