#!/bin/bash
# Fetches programs that use NVML into .cache: nvtop of Debian 12 and 13 and btop of 13
# with the libraries that they need, and programs of PyPI. Does nothing, and needs no
# network, where they are there.
#
# usage: fetch-tools.sh [CACHE]   CACHE: folder for them (default: .cache)
# Needs: curl, dpkg-deb, xz, python3 with pip.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

here=$(cd "$(dirname "$0")" && pwd)
cache=${1:-$here/../../.cache}/nvml-tools
mirror=http://deb.debian.org/debian
libraries="libc6 libgcc-s1 libstdc++6 libncursesw6 libtinfo6 libsystemd0 libcap2 liblzma5 libzstd1 liblz4-1 libgcrypt20 libgpg-error0"

# fetch RELEASE PROGRAMS: a tree with them and their libraries.
fetch() {
	local release=$1 part component package path
	[ -d "$cache/$release" ] && return
	part=$(mktemp -d -p "$cache")
	for component in main contrib; do
		curl -sSf "$mirror/dists/$release/$component/binary-amd64/Packages.xz" | xz -dc >>"$part/all"
	done
	for package in $2 $libraries; do
		awk -v RS= -v package="$package" 'index($0 "\n", "Package: " package "\n") == 1' "$part/all" >"$part/index"
		path=$(sed -n 's/^Filename: //p' "$part/index" | head -1)
		curl -sSf -o "$part/package" "$mirror/$path"
		echo "$(sed -n 's/^SHA256: //p' "$part/index" | head -1)  $part/package" | sha256sum -c --quiet
		dpkg-deb -x "$part/package" "$part/tree"
	done
	mv "$part/tree" "$cache/$release"
	rm -rf "$part"
}

mkdir -p "$cache"
fetch bookworm nvtop
fetch trixie "nvtop btop"
if [ ! -d "$cache/python" ]; then
	rm -rf "$cache/python.part"
	python3 -m pip install --quiet --disable-pip-version-check --target "$cache/python.part" \
		gpustat==1.1.1 nvitop==1.7.2 py3nvml==0.2.7 glances==4.5.8 nvsmi==0.4.2 'nvidia-ml-py>=13'
	mv "$cache/python.part" "$cache/python"
fi
echo "$cache"
