#!/bin/bash
# Fetches Debian's kernel for virtual machines: that of the kernel headers that
# are installed here, so that a module built against them fits.
#
# usage: fetch-kernel.sh CACHE [RELEASE]
#   RELEASE  as in uname -r (default: the newest headers in /usr/src)
# Prints RELEASE. Afterwards CACHE/kernel/RELEASE holds vmlinuz and
# lib/modules/RELEASE.
set -euo pipefail
# Where Debian keeps depmod, which users who are not root lack.
PATH=$PATH:/usr/sbin:/sbin

newest_headers() {
	find /usr/src -maxdepth 1 -name 'linux-headers-*-cloud-*' -printf '%f\n' |
		sort -V | tail -n 1 | sed 's/^linux-headers-//'
}

# The package of the kernel, into the current folder.
download() {
	# apt warns that it drops no privileges for a folder of ours.
	apt-get download -q "linux-image-$release" 2>apt.log
}

cache=$1
release=${2:-$(newest_headers)}
if [ -z "$release" ]; then
	echo "fetch-kernel: no cloud kernel headers in /usr/src: install linux-headers-cloud-amd64" >&2
	exit 1
fi
mkdir -p "$cache/kernel"
# One at a time; whoever waited finds the kernel there.
exec 9>"$cache/kernel.lock"
flock 9

target=$cache/kernel/$release
if [ ! -e "$target/vmlinuz" ]; then
	echo "fetching Debian's kernel $release" >&2
	part=$cache/kernel.part
	rm -rf "$part"
	mkdir "$part"
	(
		cd "$part"
		if ! download && [ "$(id -u)" = 0 ]; then
			# The lists may be older than the mirror.
			apt-get -q update
			download || true
		fi
		if ! compgen -G '*.deb' >/dev/null; then
			cat apt.log
			echo "fetch-kernel: Debian's mirror does not have linux-image-$release (any more)." \
				"Where that is so: apt-get install linux-headers-cloud-amd64 brings newer headers."
			exit 1
		fi
		dpkg-deb -x ./*.deb root
		mv "root/boot/vmlinuz-$release" vmlinuz
		if [ -d root/usr/lib/modules ]; then
			mv root/usr/lib .
		else
			mv root/lib .
		fi
		rm -rf root ./*.deb apt.log
		depmod -b . "$release"
	) >&2
	rm -rf "$target"
	mv "$part" "$target"
fi
echo "$release"
