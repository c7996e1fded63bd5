#!/bin/bash
# Fetches Debian's kernel for virtual machines and its headers, of the release
# of Debian that this is, from Debian's mirror into a folder. Nothing is
# installed: a kernel's packages would change what this machine boots.
#
# usage: fetch-kernel.sh CACHE [FLAVOUR]
#   FLAVOUR  cloud-amd64 (default), or amd64, which has drivers that the cloud
#            kernel lacks, 9p among them
# Prints the kernel's release, as in uname -r. Afterwards CACHE/kernel/RELEASE
# holds vmlinuz, lib/modules/RELEASE and headers, the folder that a module is
# built against (KDIR). A second call finds them there; removing CACHE/kernel
# brings the newest.
# Needs: apt kmod, and pahole for what the kernel's build does.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac
# Where Debian keeps depmod, which users who are not root lack.
PATH=$PATH:/usr/sbin:/sbin

flavour=${2:-cloud-amd64}
mkdir -p "$1/kernel"
cache=$(cd "$1" && pwd)
# One at a time; a process that waited finds the kernel there.
exec 9>"$cache/kernel.lock"
flock 9

# shellcheck source=/dev/null
known=$cache/kernel/of-$(. /etc/os-release && echo "${VERSION_CODENAME:-debian}")
[ "$flavour" = cloud-amd64 ] || known+=-$flavour
if [ -e "$known" ]; then
	release=$(cat "$known")
	if [ -e "$cache/kernel/$release/headers/Makefile" ]; then
		echo "$release"
		exit
	fi
fi

# The packages that Debian's newest headers for this kernel consist of.
depends() {
	apt-cache --no-all-versions show "$1" 2>/dev/null |
		sed -n 's/^Depends: //p' | sed 's/[,|]/\n/g' | sed 's/^ *//; s/ .*//'
}

fetch() {
	local headers
	headers=$(depends "linux-headers-$flavour" | grep -m 1 "^linux-headers-.*-$flavour\$") || return 1
	release=${headers#linux-headers-}
	echo "fetching Debian's kernel $release"
	local parts
	mapfile -t parts < <(depends "$headers" | grep -E '^linux-(headers|kbuild)-')
	# apt warns that it drops no privileges for a folder of ours.
	apt-get download -q "linux-image-$release" "$headers" "${parts[@]}" 2>apt.log
}

part=$cache/kernel.part
rm -rf "$part"
mkdir "$part"
cd "$part"
{
	if ! fetch; then
		# The lists may be missing, or older than the mirror.
		if [ "$(id -u)" != 0 ]; then
			echo "fetch-kernel: apt does not have the packages of Debian's kernel;" \
				"'apt-get update' as root may help"
			exit 1
		fi
		apt-get -q update
		rm -f ./*.deb
		fetch || {
			cat apt.log
			echo "fetch-kernel: Debian's mirror does not have the packages of its kernel"
			exit 1
		}
	fi
	for package in ./*.deb; do
		dpkg-deb -x "$package" root
		rm "$package"
	done
	mv "root/boot/vmlinuz-$release" vmlinuz
	mkdir lib
	for folder in root/lib/modules root/usr/lib/modules; do
		[ ! -d "$folder" ] || mv "$folder" lib/
	done
	depmod -b . "$release"
	mkdir -p usr/lib
	mv root/usr/src usr/
	mv root/usr/lib/linux-kbuild-* usr/lib/
	rm -rf root apt.log
	# It names its other half by the place where it would be installed.
	sed -i "s|/usr/src/|\$(dir \$(lastword \$(MAKEFILE_LIST)))../|" \
		"usr/src/linux-headers-$release/Makefile"
	ln -s "usr/src/linux-headers-$release" headers
} >&2
cd ..
rm -rf "kernel/$release"
mv "$part" "kernel/$release"
echo "$release" >"$known"
echo "$release"
