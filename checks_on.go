//go:build !weakened

// SPDX-License-Identifier: Apache-2.0

package snapshot

type weakening struct{}

func (*op) off(check) bool { return false }
