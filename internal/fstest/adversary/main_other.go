//go:build !linux

// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

func main() { fmt.Println("skip: only for Linux") }
