// SPDX-License-Identifier: Apache-2.0

package fstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Kinds returns the kinds of file systems that can be mounted.
func Kinds() []string {
	return []string{"ext4", "ext4-128", "xfs", "btrfs", "f2fs", "tmpfs", "tmpfs-4m", "ramfs", "overlay", "bindfs"}
}

// ReadOnlyKinds returns the kinds that hold a tree which nobody can write, see [ReadOnly].
func ReadOnlyKinds() []string { return []string{"squashfs", "erofs"} }

// Dir returns a new directory, 0755, on a file system of the kind, which all tests of the process share; "" is that of
// os.TempDir. A kind that this machine or this user cannot mount skips the test.
func Dir(t TB, kind string) string {
	t.Helper()
	if kind == "" {
		return TempDir(t)
	}
	checkKind(t, kind)
	mount, err := kept.mount(kind)
	skipUnsupported(t, err)
	return tempDirIn(t, mount)
}

// Mount mounts a new, empty file system of the kind, 0777, for this test alone: one to fill up, or to unmount. It skips as Dir
// does.
func Mount(t TB, kind string) string {
	t.Helper()
	checkKind(t, kind)
	skipUnsupported(t, mayMount())
	exe := Adversary(t)
	dir, err := newDir(imageDir())
	require.NoError(t, err)
	k, err := keep(exe, dir, kind)
	skipUnsupported(t, err)
	t.Cleanup(func() {
		assert.NoError(t, k.end())
		assert.NoDirExists(t, dir)
	})
	return filepath.Join(dir, kind)
}

// ReadOnly makes a file system of one of [ReadOnlyKinds] that holds what is in the directory from, and mounts it for this test
// alone. It skips as Dir does.
func ReadOnly(t TB, kind, from string) string {
	t.Helper()
	require.Contains(t, ReadOnlyKinds(), kind)
	skipUnsupported(t, mayMount())
	exe := Adversary(t)
	dir, err := newDir(imageDir())
	require.NoError(t, err)
	require.NoError(t, os.Symlink(from, filepath.Join(dir, kind+".tree")))
	k, err := keep(exe, dir, kind)
	skipUnsupported(t, err)
	t.Cleanup(func() { assert.NoError(t, k.end()) })
	return filepath.Join(dir, kind)
}

// Bind mounts the directory or file from over to until the end of the test.
func Bind(t TB, from, to string) {
	t.Helper()
	NeedRoot(t)
	require.NoError(t, unix.Mount(from, to, "", unix.MS_BIND, ""))
	t.Cleanup(func() {
		if err := unmount(to); !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			assert.NoError(t, err)
		}
	})
}

// Unmount takes a mount away at once, also while it is in use.
func Unmount(t TB, dir string) {
	t.Helper()
	require.NoError(t, unmount(dir))
}

func checkKind(t TB, kind string) {
	t.Helper()
	require.Contains(t, Kinds(), kind)
}

func skipUnsupported(t TB, err error) {
	t.Helper()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("%v", err)
	}
	require.NoError(t, err)
}

func imageDir() string {
	if dir := os.Getenv("HOLDSTILL_TEST_DIR"); dir != "" {
		return dir
	}
	return os.TempDir()
}

func mayMount() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("mounting needs root: %w", errors.ErrUnsupported)
	}
	return nil
}

// mount returns the directory of the shared mount.
func (k *keepers) mount(kind string) (string, error) {
	// What an administrator mounted there serves those who may not mount.
	ready := filepath.Join(imageDir(), kind)
	if isMount(ready) {
		return ready, nil
	}
	if err := mayMount(); err != nil {
		return "", err
	}
	exe, err := k.program()
	if err != nil {
		return "", err
	}
	k.sharing.Lock()
	defer k.sharing.Unlock()
	if m, ok := k.mounts[kind]; ok {
		return m.dir, m.err
	}
	dir, err := newDir(imageDir())
	if err != nil {
		return "", err
	}
	m := sharedMount{dir: filepath.Join(dir, kind)}
	var c *keeper
	if c, m.err = keep(exe, dir, kind); m.err == nil {
		m.err = k.share(c)
	}
	if k.mounts == nil {
		k.mounts = map[string]sharedMount{}
	}
	k.mounts[kind] = m
	return m.dir, m.err
}

func isMount(dir string) bool {
	var in, above unix.Stat_t
	return unix.Stat(dir, &in) == nil && unix.Stat(filepath.Dir(dir), &above) == nil && in.Dev != above.Dev
}

// MountAt mounts a file system of the kind at dir, which it makes; its image lies beside dir, as does the link dir.tree to what a
// read-only one is to hold. What this machine lacks is
// [errors.ErrUnsupported]. release undoes all of it. It is the adversary's half of [Mount], which has the process that lives
// long enough to release.
func MountAt(dir, kind string) (release func() error, err error) {
	m := &mounting{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", kind, err), m.release())
		}
	}()
	switch kind {
	case "ext4":
		err = m.image(dir, "ext4", "noinit_itable", "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1")
	case "ext4-128":
		err = m.image(dir, "ext4", "noinit_itable", "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", "-I", "128")
	case "xfs":
		err = m.image(dir, "xfs", "", "mkfs.xfs", "-q", "-f", "-K")
	case "btrfs":
		err = m.image(dir, "btrfs", "", "mkfs.btrfs", "-q", "-f", "-K")
	case "f2fs":
		err = m.image(dir, "f2fs", "", "mkfs.f2fs", "-q")
	case "squashfs":
		err = m.packed(dir, kind, func(tree, img string) []string {
			return []string{"mksquashfs", tree, img, "-quiet", "-no-progress", "-processors", "1"}
		})
	case "erofs":
		err = m.packed(dir, kind, func(tree, img string) []string { return []string{"mkfs.erofs", "--quiet", img, tree} })
	case "tmpfs", "ramfs":
		err = m.mount(kind, dir, kind, "")
	case "tmpfs-4m":
		err = m.mount("tmpfs", dir, "tmpfs", "size=4m")
	case "overlay":
		err = m.overlay(dir)
	case "bindfs":
		err = m.bindfs(dir)
	default:
		err = errors.New("unknown kind")
	}
	if err == nil && !slices.Contains(ReadOnlyKinds(), kind) {
		err = os.Chmod(dir, 0o777)
	}
	return m.release, err
}

// mounting collects what undoes the steps taken so far.
type mounting struct{ undo []func() error }

func (m *mounting) release() error {
	var errs []error
	for _, f := range slices.Backward(m.undo) {
		errs = append(errs, f())
	}
	m.undo = nil
	return errors.Join(errs...)
}

func (m *mounting) mkdir(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		m.undo = append(m.undo, func() error { return os.Remove(dir) })
	}
	return err
}

func (m *mounting) mount(from, dir, fstype, data string) error {
	if err := m.mkdir(dir); err != nil {
		return err
	}
	var flags uintptr
	if slices.Contains(ReadOnlyKinds(), fstype) {
		flags = unix.MS_RDONLY
	}
	err := unix.Mount(from, dir, fstype, flags, data)
	switch {
	case err == nil:
		m.undo = append(m.undo, func() error { return unmount(dir) })
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EPERM):
		return fmt.Errorf("mount: %w: %w", err, errors.ErrUnsupported)
	}
	return err
}

// image makes a file system in a sparse file, which takes a few megabytes, and room for the 100,000 entries of the largest
// test.
func (m *mounting) image(dir, fstype, data string, mkfs ...string) error {
	if err := kernelHas(fstype); err != nil {
		return err
	}
	img := dir + ".img"
	f, err := os.OpenFile(img, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	m.undo = append(m.undo, func() error { return os.Remove(img) })
	if err := errors.Join(f.Truncate(4<<30), f.Close()); err != nil {
		return err
	}
	if _, err := tool(append(mkfs, img)...); err != nil {
		return err
	}
	return m.loop(img, dir, fstype, data)
}

// packed mounts an image that a tool makes of a tree.
func (m *mounting) packed(dir, fstype string, mkfs func(tree, img string) []string) error {
	if err := kernelHas(fstype); err != nil {
		return err
	}
	tree, err := filepath.EvalSymlinks(dir + ".tree")
	if err != nil {
		return err
	}
	img := dir + ".img"
	m.undo = append(m.undo, func() error { return os.Remove(img) })
	if _, err := tool(mkfs(tree, img)...); err != nil {
		return err
	}
	return m.loop(img, dir, fstype, "")
}

func (m *mounting) loop(img, dir, fstype, data string) error {
	loop, err := tool("losetup", "--find", "--show", img)
	if err != nil {
		return fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}
	loop = strings.TrimSpace(loop)
	err = m.mount(loop, dir, fstype, data)
	// Detached now, the device goes with the last mount of it.
	_, detachErr := tool("losetup", "--detach", loop)
	return errors.Join(err, detachErr)
}

func (m *mounting) overlay(dir string) error {
	base := dir + ".base"
	if err := m.image(base, "ext4", "noinit_itable", "mkfs.ext4", "-q", "-F"); err != nil {
		return err
	}
	var opts []string
	for _, layer := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(base, layer), 0o777); err != nil {
			return err
		}
		opts = append(opts, layer+"dir="+filepath.Join(base, layer))
	}
	return m.mount("overlay", dir, "overlay", strings.Join(opts, ","))
}

func (m *mounting) bindfs(dir string) error {
	base := dir + ".base"
	if err := m.image(base, "ext4", "noinit_itable", "mkfs.ext4", "-q", "-F"); err != nil {
		return err
	}
	if err := m.mkdir(dir); err != nil {
		return err
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}
	if _, err := tool("bindfs", base, dir); err != nil {
		return err
	}
	m.undo = append(m.undo, func() error { return unmount(dir) })
	return nil
}

// kernelHas asks before an image is made; a module that can be loaded is.
func kernelHas(fstype string) error {
	for range 2 {
		known, err := os.ReadFile("/proc/filesystems")
		if err != nil || strings.Contains(string(known), "\t"+fstype+"\n") {
			return nil // the mount itself will tell
		}
		if _, err := tool("modprobe", fstype); err != nil {
			break
		}
	}
	return fmt.Errorf("the kernel has no %s: %w", fstype, errors.ErrUnsupported)
}

// tool runs a command; one that is not installed is [errors.ErrUnsupported].
func tool(args ...string) (string, error) {
	path, err := exec.LookPath(args[0])
	if err != nil {
		// An ordinary path does not hold the administrator's tools.
		path = filepath.Join("/usr/sbin", args[0])
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s is not installed: %w", args[0], errors.ErrUnsupported)
		}
	}
	cmd := exec.Command(path, args[1:]...)
	cmd.WaitDelay = time.Second // bindfs leaves a server behind
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// unmount lets those who still use it keep what they hold.
func unmount(dir string) error {
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	return err
}
