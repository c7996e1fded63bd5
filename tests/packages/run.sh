#!/bin/bash
# The Debian packages in a bare Debian: installing, using, upgrading, purging.
# Needs root; make has built what is packed, and the programs.
#
# usage: run.sh [RELEASE]...   (default: bookworm trixie)
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cache=$top/.cache/packages-root
cd "$top"
releases=("$@")
[ $# -gt 0 ] || releases=(bookworm trixie)

[ "$(id -u)" = 0 ] || {
	echo "run.sh: only root can make another Debian and enter it" >&2
	exit 1
}

mkdir -p "$cache"
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 143' TERM

echo "== packing"
compgen -G 'out/packages/*.deb' >/dev/null || {
	echo "run.sh: out/packages is empty: run \`make packages\` first" >&2
	exit 1
}
cp -r out/packages "$work/first"
vm-images/packages/build.sh "$work/again" >/dev/null
vm-images/packages/build.sh "$work/second" 0.1.0+upgrade >/dev/null
(cd "$work/first" && sha256sum ./*.deb) >"$work/sums"
(cd "$work/again" && sha256sum --quiet -c "$work/sums")
echo "ok   the same programs give the same packages"
lintian --no-cfg --fail-on error "$work"/first/*.deb
echo "ok   lintian finds no error"

# in_bare RELEASE: runs inside.sh in a Debian that has nothing of ours.
in_bare() {
	local base=$cache/$1.tar root=$work/root
	if [ ! -e "$base" ]; then
		echo "== making a bare $1 (once)"
		# What a guest's owner has before: a kernel's headers and their compiler.
		mmdebstrap --quiet --variant=apt --include=linux-headers-cloud-amd64,gcc,make \
			"$1" "$work/part.tar"
		mv "$work/part.tar" "$base"
	fi
	echo "== unpacking a bare $1"
	mkdir "$root"
	tar -xf "$base" -C "$root"
	mkdir "$root/packages"
	cp -r "$work/first" "$work/second" "$here/inside.sh" "$root/packages/"
	cp out/programs/vectorAdd{,-static,-static-12.9} "$root/usr/local/bin/"

	# Processes and mounts in there end with this.
	# $0 is for the shell within.
	# shellcheck disable=SC2016
	unshare --mount --pid --fork --kill-child bash -ec '
		mount --bind "$0" "$0"
		mount -t proc proc "$0/proc"
		# Its own: a package makes files there.
		mount -t tmpfs -o mode=755 tmpfs "$0/dev"
		for file in null zero full random urandom tty; do
			touch "$0/dev/$file"
			mount --bind "/dev/$file" "$0/dev/$file"
		done
		mkdir -m 1777 "$0/dev/shm"
		ln -s /proc/self/fd "$0/dev/fd"
		mount -t tmpfs -o mode=755 tmpfs "$0/run"
		# Not chroot: the kernel gives no user namespaces in one.
		cd "$0"
		pivot_root . mnt
		cd /
		chroot /mnt umount --lazy /
		exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root \
			DEBIAN_FRONTEND=noninteractive /packages/inside.sh' "$root"
	rm -rf --one-file-system "$root"
}

for release in "${releases[@]}"; do
	in_bare "$release"
done
echo "the packages hold on: ${releases[*]}"
