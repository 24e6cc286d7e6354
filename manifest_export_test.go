// SPDX-License-Identifier: Apache-2.0

package snapshot

// BuildManifest makes a Manifest of entries as the engine does.
func BuildManifest(entries ...Entry) (*Manifest, error) {
	b := newManifestBuilder()
	for _, e := range entries {
		if err := b.add(e); err != nil {
			return nil, err
		}
	}
	return b.finish()
}
