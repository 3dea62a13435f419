#!/bin/sh
# Boots systemd over a copy of a machine that vanishes: boot.sh PLACE LOWER [FROM:TO...]
#
# To be run as root by `unshare --pid --mount --cgroup --uts --ipc --net --fork --kill-child`, in a control group of its
# own. PLACE is a directory. The root is an overlay of LOWER (`/` is this machine; several are A:B, the upper first), whose
# changes are in memory, or in PLACE/changes if that is there; each FROM is seen at TO, read-only. Nothing of the machine
# can be changed from within: /proc/sys is read-only, /dev has the harmless devices only, and all ends with this process.
set -eu
place=$1
lower=$2
shift 2
mount --make-rprivate /
if [ ! -d "$place/changes" ]; then
    mount -t tmpfs -o mode=755 none "$place"
    mkdir "$place/changes"
fi
mkdir "$place/work" "$place/root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$place/changes,workdir=$place/work" "$place/root"
root=$place/root
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
for pair; do
    mkdir -p "$root${pair#*:}"
    mount --bind "${pair%%:*}" "$root${pair#*:}"
    mount -o remount,ro,bind "$root${pair#*:}"
done
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,ro,bind "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 dev "$root/dev"
for name in null zero full random urandom tty; do
    : >"$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
# What would reach for the machine below has no business here.
for unit in systemd-modules-load systemd-remount-fs systemd-sysctl systemd-udevd systemd-timesyncd; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit.service"
done
for unit in dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
# A grid of the machine below is not ours.
rm -rf "$root/var/lib/grid" "$root/etc/grid"
# Python may be installed there, and services run as users of their own.
chmod 711 "$root/root"
: >"$root/etc/machine-id"
printf '%s\n' '[Unit]' 'Requires=basic.target systemd-journald.service dbus.service' \
    'After=basic.target systemd-journald.service dbus.service' >"$root/etc/systemd/system/small.target"
init=$(command -v /lib/systemd/systemd /usr/lib/systemd/systemd | head -n 1)
cd "$root"
pivot_root . mnt
umount -l /mnt
exec env -i container=test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    "$init" --unit=small.target --log-target=journal --show-status=no
