// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"holdstill.example/snapshot"
)

func TestReportJSON(t *testing.T) {
	t.Parallel()
	weakest := snapshot.Proof{
		Entry:    snapshot.Entry{Path: "b\xff", Mode: 0o644, Size: 3, Digest: snapshot.Digest{0xab}},
		Evidence: snapshot.Stable, Because: "tmpfs", Attempts: 2,
	}
	sum := "ab" + strings.Repeat("0", 62)
	for _, tt := range []struct {
		name   string
		report snapshot.Report
		want   string
	}{
		{
			"zero",
			snapshot.Report{},
			`{"files":0,"dirs":0,"links":0,"bytes":0,"cloned":0,"skipped":[],"evidence":{},"weakest":null,"rounds":0,` +
				`"metadata_only":0,"manifest_digest":"","instant":"none","exposed":false,"seconds":0,"special_modes":0,"abandoned":0}`,
		},
		{
			"full",
			snapshot.Report{
				Instant: snapshot.InstantAll, Files: 1, Dirs: 2, Links: 3, Bytes: 4, Cloned: 5,
				Skipped: []snapshot.Skipped{
					{Path: "x", Because: "excluded", Rule: "x"},
					{Path: "y\xff", Because: "dangling", Rule: "z\xfe"},
				},
				Evidence: map[snapshot.Evidence]int64{snapshot.Stable: 1, snapshot.Coherent: 6},
				Exposed:  true, Abandoned: 7, Weakest: weakest, Rounds: 8, MetadataOnly: 9, SpecialModes: 10,
				Elapsed:  1500 * time.Millisecond,
				Baseline: snapshot.Digest{0xab}, Scanned: 11, Patterns: []string{"x", "p\xff"}, IndexHits: 12, IndexIgnored: "damaged",
			},
			`{"files":1,"dirs":2,"links":3,"bytes":4,"cloned":5,` +
				`"skipped":[{"path":"x","because":"excluded","rule":"x"},` +
				`{"path":"y\ufffd","path_b64":"ef8=","because":"dangling","rule":"z\ufffd","rule_b64":"ev4="}],` +
				`"evidence":{"coherent":6,"stable":1},` +
				`"weakest":{"sha256":"` + sum + `","evidence":"stable","because":"tmpfs","size":3,"path":"b\ufffd","path_b64":"Yv8=","attempts":2},` +
				`"rounds":8,"metadata_only":9,"manifest_digest":"","instant":"all","exposed":true,"seconds":1.5,"special_modes":10,"abandoned":7,` +
				`"baseline":"` + sum + `","scanned":11,"patterns":["x","p\ufffd"],"patterns_b64":["eA==","cP8="],` +
				`"index_hits":12,"index_ignored":"damaged"}`,
		},
	} {
		got, err := json.Marshal(&tt.report)
		require.NoError(t, err, tt.name)
		assert.Equal(t, tt.want, string(got), tt.name)
	}
}

func TestInstantText(t *testing.T) {
	t.Parallel()
	for i, want := range []string{"none", "writes", "all", "instant(3)"} {
		text, err := snapshot.Instant(i).MarshalText()
		require.NoError(t, err)
		assert.Equal(t, want, string(text))
	}
}
