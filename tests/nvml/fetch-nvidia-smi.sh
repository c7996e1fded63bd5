#!/bin/bash
# Fetches Debian's nvidia-smi, of 12 and 13, into .cache: the program alone, which
# is NVIDIA's. Does nothing, and needs no network, where it is there.
#
# usage: fetch-nvidia-smi.sh [CACHE]   CACHE: folder for it (default: .cache)
# Needs: curl, dpkg-deb, xz.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

here=$(cd "$(dirname "$0")" && pwd)
cache=${1:-$here/../../.cache}/nvidia-smi
mirror=http://deb.debian.org/debian
mkdir -p "$cache"
for release in bookworm trixie; do
	[ -x "$cache/$release" ] && continue
	part=$(mktemp -d -p "$cache")
	curl -sSf "$mirror/dists/$release/non-free/binary-amd64/Packages.xz" | xz -dc |
		awk -v RS= '/^Package: nvidia-smi\n/' >"$part/index"
	path=$(sed -n 's/^Filename: //p' "$part/index")
	curl -sSf -o "$part/package" "$mirror/$path"
	echo "$(sed -n 's/^SHA256: //p' "$part/index")  $part/package" | sha256sum -c --quiet
	dpkg-deb -x "$part/package" "$part/tree"
	mv "$part/tree/usr/lib/nvidia/current/nvidia-smi" "$cache/$release"
	rm -rf "$part"
done
echo "$cache"
