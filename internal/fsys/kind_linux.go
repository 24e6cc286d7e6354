// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// kindOfType is the allow-list: a guarantee is claimed only where it was measured. An f_type that is not here is the zero Kind.
func kindOfType(magic uint32) Kind {
	switch magic {
	case 0xef53: // ext2, ext3, ext4
		return Kind{Name: "ext4", Grain: Tick, Stores: true, LeaseNow: true, LeaseHeld: true}
	case 0x58465342:
		return Kind{Name: "xfs", Grain: Tick, Stores: true, LeaseNow: true, LeaseHeld: true, Clones: true, LockingReads: true}
	case 0x9123683e:
		return Kind{Name: "btrfs", Grain: Tick, Stores: true, LeaseNow: true, LeaseHeld: true, Clones: true}
	case 0x01021994:
		// A store through a mapping is never stamped here, so only a lease that stands proves anything about them.
		return Kind{Name: "tmpfs", Grain: Tick, LeaseHeld: true}
	case 0x794c7630:
		// A lease is granted while a writable mapping lives: 9,376 torn of 83,137.
		return Kind{Name: "overlayfs", Grain: Tick, Fsync: true}
	case 0x858458f6:
		return Kind{Name: "ramfs"}
	case 0xf2f52010:
		return Kind{Name: "f2fs"}
	case 0x2fc12fc1:
		return Kind{Name: "zfs"}
	case 0xca451a4e:
		return Kind{Name: "bcachefs"}
	case 0x65735546:
		return Kind{Name: "fuse", Remote: true}
	case 0x6969:
		return Kind{Name: "nfs", Remote: true}
	case 0xff534d42, 0xfe534d42:
		return Kind{Name: "smb", Remote: true}
	case 0x01021997:
		return Kind{Name: "9p", Remote: true}
	case 0x00c36400:
		return Kind{Name: "ceph", Remote: true}
	case 0x5346414f, 0x6b414653:
		return Kind{Name: "afs", Remote: true}
	case 0x73757245:
		return Kind{Name: "coda", Remote: true}
	case 0x786f4256:
		return Kind{Name: "vboxsf", Remote: true}
	case 0x4d44:
		return Kind{Name: "fat", NoChange: true}
	case 0x2011bab0:
		return Kind{Name: "exfat", NoChange: true}
	case 0x73717368:
		return Kind{Name: "squashfs", Grain: Immutable}
	case 0xe0f5e1e2:
		return Kind{Name: "erofs", Grain: Immutable}
	case 0x9660:
		return Kind{Name: "iso9660", Grain: Immutable}
	case 0x9fa0:
		return Kind{Name: "proc", Pseudo: true}
	case 0x62656572:
		return Kind{Name: "sysfs", Pseudo: true}
	case 0x27e0eb, 0x63677270:
		return Kind{Name: "cgroup", Pseudo: true}
	case 0x64626720:
		return Kind{Name: "debugfs", Pseudo: true}
	case 0x74726163:
		return Kind{Name: "tracefs", Pseudo: true}
	case 0x73636673:
		return Kind{Name: "securityfs", Pseudo: true}
	case 0xcafe4a11:
		return Kind{Name: "bpf", Pseudo: true}
	case 0x6165676c:
		return Kind{Name: "pstore", Pseudo: true}
	case 0x62656570:
		return Kind{Name: "configfs", Pseudo: true}
	case 0x1cd1:
		return Kind{Name: "devpts", Pseudo: true}
	case 0xde5e81e4:
		return Kind{Name: "efivarfs", Pseudo: true}
	case 0xf97cff8c:
		return Kind{Name: "selinux", Pseudo: true}
	case 0x43415d53:
		return Kind{Name: "smackfs", Pseudo: true}
	case 0x42494e4d:
		return Kind{Name: "binfmt_misc", Pseudo: true}
	case 0x65735543:
		return Kind{Name: "fusectl", Pseudo: true}
	case 0x19800202:
		return Kind{Name: "mqueue", Pseudo: true}
	case 0x6e736673:
		return Kind{Name: "nsfs", Pseudo: true}
	case 0x67596969:
		return Kind{Name: "rpc_pipefs", Pseudo: true}
	}
	return Kind{Name: "file system 0x" + strconv.FormatUint(uint64(magic), 16)}
}

// Kind returns what is known of the file system of h, whose State is s; each mount is asked once an operation.
func (c *Calls) Kind(h Handle, s *Seen) (*Kind, error) {
	key := [2]uint64{s.Volume, s.Mount}
	if k, ok := c.kinds.Load(key); ok {
		return k.(*Kind), nil
	}
	var f unix.Statfs_t
	if err := c.do("Kind", "", func() error { return unix.Fstatfs(int(h), &f) }); err != nil {
		return nil, err
	}
	k := kindOfType(uint32(f.Type))
	if c.Known != nil {
		c.Known(&k)
	}
	c.kinds.Store(key, &k)
	return &k, nil
}
