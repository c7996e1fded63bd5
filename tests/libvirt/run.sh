#!/bin/bash
# A libvirt domain that gets the device, loses it and gets it again, under a real
# libvirtd with virsh in a bare Debian 12. Wants root; make has built the packages
# and the programs.
#
# usage: run.sh
# Logs are left in out/libvirt.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cache=$top/.cache/libvirt-root
base=$cache/bookworm.tar
out=$top/out/libvirt
cd "$top"

[ "$(id -u)" = 0 ] || {
	echo "run.sh: only root can make another Debian and enter it" >&2
	exit 1
}

mkdir -p "$cache" "$out"
if [ ! -e "$base" ]; then
	echo "== making a bare Debian 12 with libvirt (once)"
	mmdebstrap --quiet --variant=apt \
		--include=libvirt-daemon-system,libvirt-clients,qemu-system-x86,apparmor,libxml2-utils,procps \
		bookworm "$cache/part.tar"
	mv "$cache/part.tar" "$base"
fi
compgen -G 'out/packages/paragpu-host_*.deb' >/dev/null || {
	echo "run.sh: out/packages is empty: run \`make packages\` first" >&2
	exit 1
}

work=$(mktemp -d "$cache/work.XXXXXX")
root=$work/root
# Called by the trap.
# shellcheck disable=SC2317
cleanup() {
	cp "$root"/var/log/libvirt/{console,output}.log "$root"/var/log/libvirt/qemu/*.log \
		"$root"/tmp/{libvirtd,paragpud}.log "$out" 2>/dev/null || true
	rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 143' TERM
mkdir -p "$root"

echo "== the guest: kernel, module, programs"
release=$(vm-images/fetch-kernel.sh .cache)
make -s -C kernel-module KDIR="$top/.cache/kernel/$release/headers" \
	OUT="$top/out/module/$release" >/dev/null
mkdir "$work/programs"
cp out/programs/vectorAdd "$work/programs"
vm-images/make-initramfs.sh --kernel ".cache/kernel/$release" --output "$work/initrd" \
	--module "out/module/$release/paragpu.ko" --programs "$work/programs" \
	--libraries out/lib --file "$here/guest.sh=paragpu/commands"

echo "== unpacking the bare Debian"
tar -xf "$base" -C "$root"
mkdir "$root/packages"
cp out/packages/paragpu-{tools,host}_*.deb "$here"/{inside.sh,domain.xml} "$root/packages"
mv "$work/initrd" "$root/var/lib/libvirt/images/initrd"
cp ".cache/kernel/$release/vmlinuz" "$root/var/lib/libvirt/images/vmlinuz"

# Processes, mounts and the network in there end with this.
# $0 is for the shell within.
# shellcheck disable=SC2016
unshare --mount --pid --net --fork --kill-child bash -ec '
	mount --bind "$0" "$0"
	mount -t proc proc "$0/proc"
	mount --rbind /sys "$0/sys"
	mount --rbind /dev "$0/dev"
	mount -t tmpfs -o mode=755 tmpfs "$0/run"
	ip link set lo up
	exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root \
		DEBIAN_FRONTEND=noninteractive chroot "$0" /packages/inside.sh' "$root"
