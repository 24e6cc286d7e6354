module holdstill.example/snapshot/internal/bench

go 1.26.0

require (
	github.com/containerd/continuity v0.5.0
	github.com/otiai10/copy v1.14.1
	github.com/tonistiigi/fsutil v0.0.0-20261103091533-a72de9dcf763
	holdstill.example/snapshot v0.0.0
)

require (
	github.com/Microsoft/go-winio v0.6.2 // indirect
	github.com/containerd/log v0.1.0 // indirect
	github.com/moby/patternmatcher v0.6.1 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/otiai10/mint v1.6.3 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/planetscale/vtprotobuf v0.6.0 // indirect
	github.com/sirupsen/logrus v1.9.4 // indirect
	github.com/tonistiigi/dchapes-mode v0.0.0-20250318174251-73d941a28323 // indirect
	golang.org/x/sync v0.19.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)

replace holdstill.example/snapshot => ../..
