//go:build !unix && !windows

// SPDX-License-Identifier: Apache-2.0

package main

func noSpace(error) bool { return false }

func readOnly(error) bool { return false }
