//go:build weakened

// SPDX-License-Identifier: Apache-2.0

package snapshot

type weakening struct{ unchecked check }

func (o *op) off(c check) bool { return o.seam.unchecked == c }
