#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Builds paragpu.ko against the kernel of Debian 13 (6.12, which needs gcc 13
# or later), on any Debian: in a root of that release made by mmdebstrap.
#
# usage: build-against-trixie.sh [CACHE]
#   CACHE  folder for the root and the module (default: .cache of the project)
# Prints the path of the module. Needs: mmdebstrap, root; ends with 77 for
# other users.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

if [ "$(id -u)" -ne 0 ]; then
	echo "build-against-trixie.sh: only root can build in a root of Debian 13" >&2
	exit 77
fi

here=$(cd "$(dirname "$0")" && pwd)
cache=${1:-$here/../.cache}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
root=$cache/trixie-build

if [ ! -e "$root/.complete" ]; then
	rm -rf --one-file-system "$root"
	mmdebstrap --quiet --variant=apt \
		--include=gcc,make,linux-headers-cloud-amd64,kmod \
		trixie "$root" >&2
	touch "$root/.complete"
fi

headers=$(find "$root/usr/src" -maxdepth 1 -name 'linux-headers-*-cloud-amd64' \
	-printf '%f\n' | sort -V | tail -n 1)
release=${headers#linux-headers-}
work=$root/build
rm -rf "$work"
mkdir "$work"
cp -rp "$here"/. "$work"
chroot "$root" make -C /build KDIR="/usr/src/$headers" OUT=/build/out WERROR=1 \
	>"$cache/trixie-build.log" 2>&1 || {
	cat "$cache/trixie-build.log" >&2
	exit 1
}
if grep -i 'warning' "$cache/trixie-build.log" >&2; then
	exit 1
fi
mkdir -p "$cache/module/$release"
cp "$work/out/paragpu.ko" "$cache/module/$release/"
echo "$cache/module/$release/paragpu.ko"
