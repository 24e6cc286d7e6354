// SPDX-License-Identifier: Apache-2.0

package fsys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// STATX_MNT_ID is asked for too: a kernel before 6.8 does not know the unique number and answers the other.
const statMask = unix.STATX_BASIC_STATS | unix.STATX_BTIME | unix.STATX_MNT_ID_UNIQUE | unix.STATX_MNT_ID

// StatAt looks at the name of dir, never through a link. With force a FUSE or network file system asks its server, whose
// cached attributes may be a second old.
func (c *Calls) StatAt(dir Handle, name string, force bool) (Stat, error) {
	s, hasMount, err := c.statx("StatAt", int(dir), name, unix.AT_SYMLINK_NOFOLLOW, force)
	if err != nil || hasMount {
		return s, err
	}
	pin, err := c.Pin(dir, name)
	if err != nil {
		return Stat{}, err
	}
	s, err = c.Stat(pin, force)
	return s, errors.Join(err, c.Close(pin))
}

// Stat looks at an open file.
func (c *Calls) Stat(h Handle, force bool) (Stat, error) {
	s, hasMount, err := c.statx("Stat", int(h), "", unix.AT_EMPTY_PATH, force)
	if err == nil && !hasMount {
		s.Mount, err = c.mountOf(h)
	}
	return s, err
}

// StatPath looks at what path names, links followed.
func (c *Calls) StatPath(path string, force bool) (Stat, error) {
	s, hasMount, err := c.statx("StatPath", unix.AT_FDCWD, path, 0, force)
	if err != nil || hasMount {
		return s, err
	}
	pin, err := c.openat("StatPath", unix.AT_FDCWD, path, unix.O_PATH, 0)
	if err != nil {
		return Stat{}, err
	}
	s, err = c.Stat(pin, force)
	return s, errors.Join(err, c.Close(pin))
}

func (c *Calls) statx(call string, dir int, name string, flags int, force bool) (Stat, bool, error) {
	flags |= unix.AT_NO_AUTOMOUNT
	if force {
		flags |= unix.AT_STATX_FORCE_SYNC
	}
	var x unix.Statx_t
	if err := c.do(call, name, func() error { return statxat(dir, name, flags, &x) }); err != nil {
		return Stat{}, false, err
	}
	s := Stat{
		Seen: Seen{
			Volume: uint64(x.Dev_major)<<32 | uint64(x.Dev_minor),
			Mount:  x.Mnt_id,
			Mtime:  Stamp{x.Mtime.Sec, int32(x.Mtime.Nsec)},
			Ctime:  Stamp{x.Ctime.Sec, int32(x.Ctime.Nsec)},
			Size:   int64(x.Size),
			Mode:   fileMode(uint32(x.Mode)),
			UID:    x.Uid,
			GID:    x.Gid,
		},
		Blocks:    int64(x.Blocks),
		Nlink:     uint64(x.Nlink),
		MountRoot: x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
		DAX:       x.Attributes&unix.STATX_ATTR_DAX != 0,
	}
	binary.NativeEndian.PutUint64(s.File[:], x.Ino)
	if x.Mask&unix.STATX_BTIME != 0 {
		s.Birth = Stamp{x.Btime.Sec, int32(x.Btime.Nsec)}
	}
	return s, x.Mask&(unix.STATX_MNT_ID|unix.STATX_MNT_ID_UNIQUE) != 0, nil
}

// mountOf asks /proc for the mount of h, which statx tells only from Linux 5.8 on.
func (c *Calls) mountOf(h Handle) (uint64, error) {
	fds, err := c.procDir.open(c)
	if err != nil {
		return 0, fmt.Errorf("mount ids need /proc before Linux 5.8: %w", err)
	}
	info, err := c.openat("MountOf", fds, "../fdinfo/"+strconv.Itoa(int(h)), unix.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 1024)
	n, err := c.Read(info, buf, 0)
	if err := errors.Join(err, c.Close(info)); err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(buf[:n])) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.ParseUint(strings.TrimSpace(id), 10, 64)
		}
	}
	return 0, errors.New("no mnt_id in fdinfo")
}
