//go:build weakened

// SPDX-License-Identifier: Apache-2.0

package snapshot

func (o *op) off(c check) bool { return o.seam.off == c }
