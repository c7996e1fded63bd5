#!/bin/bash
# A libvirt domain that gets the device, loses it and gets it again, under a real
# libvirtd with virsh in a bare Debian 12; then one that migrates between two of
# them with programs that use it. Needs root; make has built the packages and the
# programs.
#
# usage: run.sh [one-host|two-hosts]   only this (default: both)
# Logs are left in out/libvirt.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

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
# Called by the trap.
# shellcheck disable=SC2317
cleanup() {
	local root
	for root in inside one two; do
		mkdir -p "$out/$root"
		cp "$work/$root"/var/log/libvirt/{console,output}.log \
			"$work/$root"/var/log/libvirt/qemu/*.log \
			"$work/$root"/tmp/{libvirtd,paragpud}.log "$out/$root" 2>/dev/null || true
	done
	rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 143' TERM

echo "== the guests: kernel, module, programs"
release=$(vm-images/fetch-kernel.sh .cache)
make -s -C kernel-module KDIR="$top/.cache/kernel/$release/headers" \
	OUT="$top/out/module/$release" >/dev/null
mkdir "$work/programs"
cp out/programs/vectorAdd "$work/programs"
cc -O2 -Wall -Wextra -Werror -o "$work/programs/guest-mover" tests/vm/guest-mover.c -ldl

# unpack ROOT COMMANDS: a bare Debian whose domain runs these.
unpack() {
	mkdir "$work/$1"
	tar -xf "$base" -C "$work/$1"
	mkdir "$work/$1/packages"
	cp out/packages/paragpu-{tools,host}_*.deb "$here"/{checks,inside,hosts}.sh \
		"$here/domain.xml" "$work/$1/packages"
	vm-images/make-initramfs.sh --kernel ".cache/kernel/$release" \
		--output "$work/$1/var/lib/libvirt/images/initrd" \
		--module "out/module/$release/paragpu.ko" --programs "$work/programs" \
		--libraries out/lib --file "$here/$2=paragpu/commands"
	cp ".cache/kernel/$release/vmlinuz" "$work/$1/var/lib/libvirt/images/vmlinuz"
}

# Enters a root; the mounts end with its process.
# $0 is for the shell within.
# shellcheck disable=SC2016
enter='
	mount --rbind /proc "$0/proc"
	mount --rbind /sys "$0/sys"
	mount --rbind /dev "$0/dev"
	exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root \
		DEBIAN_FRONTEND=noninteractive chroot "$0" "$@"'

one_host() {
	echo "== unpacking the bare Debian"
	unpack inside guest.sh
	# Processes, mounts and the network in there end with this.
	# shellcheck disable=SC2016
	unshare --mount --pid --net --fork --kill-child bash -ec '
		mount -t proc proc /proc
		mount --bind "$0" "$0"
		mount -t tmpfs -o mode=755 tmpfs "$0/run"
		ip link set lo up
		exec bash -ec "$1" "$0" /packages/inside.sh' "$work/inside" "$enter"
}

two_hosts() {
	echo "== unpacking two bare Debians"
	unpack one travelling.sh
	unpack two travelling.sh
	"$top/target/release/paragpu" certificate "$work/trust" 127.0.0.1 >/dev/null
	for host in one two; do
		cp -r "$work/trust" "$work/$host/packages/trust"
	done
	mkdir -p "$work"/one/two/{run,log}
	# shellcheck disable=SC2016
	unshare --mount --pid --net --fork --kill-child bash -ec '
		mount -t proc proc /proc
		for host in one two; do
			mount --bind "$0/$host" "$0/$host"
			mount -t tmpfs -o mode=755 tmpfs "$0/$host/run"
		done
		mount --bind "$0/two/run" "$0/one/two/run"
		mount --bind "$0/two/var/log/libvirt" "$0/one/two/log"
		ip link set lo up
		for host in two one; do
			unshare --mount --uts bash -ec "$1" "$0/$host" /packages/hosts.sh $host &
		done
		wait $!' "$work" "$enter"
}

case ${1:-all} in
all)
	one_host
	two_hosts
	;;
one-host) one_host ;;
two-hosts) two_hosts ;;
*)
	sed -n "s/^# usage: //p" "$0" >&2
	exit 2
	;;
esac
