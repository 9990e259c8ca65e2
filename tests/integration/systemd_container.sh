#!/bin/sh
# The first process of a container in which systemd is booted: an overlay over this machine's own
# root, whose changes live in memory, with namespaces of its own for everything but users.
#
#   unshare -m -p -C -n -i -u --fork systemd_container.sh DIRECTORY INSTALLED
#
# DIRECTORY is for its mounts, INSTALLED is copied over the root first.
set -eu
directory=$1
installed=$2
root=$directory/root

mount --make-rprivate /
mount -t tmpfs tmpfs "$directory"
mkdir "$directory/changes" "$directory/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$directory/changes,workdir=$directory/work" "$root"
cp -a "$installed/." "$root/"

mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ip link set lo up

cd "$root"
mkdir -p .old-root
pivot_root . .old-root
umount -l .old-root
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd \
    --system --unit=basic.target --log-target=journal --show-status=no
