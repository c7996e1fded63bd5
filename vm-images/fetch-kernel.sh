#!/bin/bash
# Fetches Debian's kernel for virtual machines: that of the kernel headers that
# are installed here, so that a module built against them fits.
#
# usage: fetch-kernel.sh CACHE [RELEASE]
#   RELEASE  as in uname -r (default: the newest headers in /usr/src)
# Prints RELEASE. Afterwards CACHE/kernel/RELEASE holds vmlinuz and
# lib/modules/RELEASE.
set -euo pipefail

cache=$1
release=${2:-}
if [ -z "$release" ]; then
	release=$(find /usr/src -maxdepth 1 -name 'linux-headers-*-cloud-*' \
		-printf '%f\n' | sort -V | tail -n 1)
	release=${release#linux-headers-}
fi
if [ -z "$release" ]; then
	echo "fetch-kernel: no cloud kernel headers in /usr/src: install linux-headers-cloud-amd64" >&2
	exit 1
fi
target=$cache/kernel/$release
if [ ! -e "$target/vmlinuz" ]; then
	rm -rf "$target" "$target.part"
	mkdir -p "$target.part"
	(
		cd "$target.part"
		# apt warns that it drops no privileges for a folder of ours.
		apt-get download -q "linux-image-$release" 2>apt.log || {
			cat apt.log >&2
			exit 1
		}
		dpkg-deb -x ./*.deb root
		mv "root/boot/vmlinuz-$release" vmlinuz.new
		if [ -d root/usr/lib/modules ]; then
			mv root/usr/lib .
		else
			mv root/lib .
		fi
		rm -rf root ./*.deb apt.log
		depmod -b . "$release"
		mv vmlinuz.new vmlinuz
	) >&2
	mv "$target.part" "$target"
fi
echo "$release"
