#!/bin/bash
# The Debian packages in a bare Debian 12: installing, using, upgrading,
# purging. Wants root; make has built what is packed, and vectorAdd.
#
# usage: run.sh
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cache=$top/.cache/packages-root
base=$cache/bookworm.tar
cd "$top"

[ "$(id -u)" = 0 ] || {
	echo "run.sh: only root can make another Debian and enter it" >&2
	exit 1
}

mkdir -p "$cache"
if [ ! -e "$base" ]; then
	echo "== making a bare Debian 12 (once)"
	# What a guest's owner has before: a kernel's headers and their compiler.
	mmdebstrap --quiet --variant=apt --include=linux-headers-cloud-amd64,gcc,make \
		bookworm "$cache/part.tar"
	mv "$cache/part.tar" "$base"
fi

work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 143' TERM
root=$work/root
mkdir -p "$root"

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

echo "== unpacking the bare Debian"
tar -xf "$base" -C "$root"
mkdir "$root/packages"
mv "$work/first" "$work/second" "$root/packages"
cp out/programs/vectorAdd "$root/usr/local/bin/"
cp "$here/inside.sh" "$root/packages/"

# Processes and mounts in there end with this.
# $0 is for the shell within.
# shellcheck disable=SC2016
unshare --mount --pid --fork --kill-child bash -ec '
	mount --bind "$0" "$0"
	mount -t proc proc "$0/proc"
	mount --rbind /dev "$0/dev"
	mount -t tmpfs -o mode=755 tmpfs "$0/run"
	exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root \
		DEBIAN_FRONTEND=noninteractive chroot "$0" /packages/inside.sh' "$root"
