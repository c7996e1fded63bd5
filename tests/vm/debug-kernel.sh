#!/bin/bash
# Builds a kernel that checks itself (KASAN, lockdep and others) from Debian's
# source package of this release, for the tests of the guest driver. Nothing is
# installed. debug-kernel.config says what it consists of.
#
# usage: debug-kernel.sh CACHE
# Prints the kernel's release, as in uname -r. Afterwards CACHE/kernel/RELEASE
# holds vmlinuz, lib/modules/RELEASE and headers, as after
# vm-images/fetch-kernel.sh. A second call finds them there and builds only what
# a change of debug-kernel.config needs; removing CACHE/debug-kernel brings the
# newest source.
# Needs: apt, and flex bison bc libelf-dev beside a compiler.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

here=$(cd "$(dirname "$0")" && pwd)
config=$here/debug-kernel.config
mkdir -p "$1/kernel"
cache=$(cd "$1" && pwd)
source=$cache/debug-kernel/source
log=$cache/debug-kernel/build.log
# One at a time; a process that waited finds the kernel there.
exec 9>"$cache/debug-kernel.lock"
flock 9

fail() {
	echo "debug-kernel: $*" >&2
	exit 1
}

# The package that Debian's newest kernel source consists of.
package() {
	apt-cache --no-all-versions show linux-source 2>/dev/null |
		sed -n 's/^Depends: \(linux-source-[0-9.]*\).*/\1/p'
}

fetch() {
	local name part=$cache/debug-kernel.part
	rm -rf "$part"
	mkdir "$part"
	cd "$part"
	name=$(package)
	if [ -z "$name" ] || ! apt-get download -q "$name" 2>apt.log; then
		# The lists may be missing, or older than the mirror.
		[ "$(id -u)" = 0 ] || fail "apt does not have linux-source; 'apt-get update' as root may help"
		apt-get -q update
		name=$(package)
		apt-get download -q "${name:-linux-source}"
	fi
	dpkg-deb -x ./*.deb package
	mkdir source
	# What no configuration of this kernel compiles is half of it.
	tar -xf package/usr/src/linux-source-*.tar.xz -C source --strip-components=1 \
		--exclude='*/Documentation/[a-z]*' --exclude='*/arch/*/boot/dts/*' \
		--exclude='*/drivers/gpu/drm/amd/*.[ch]' --exclude='*/sound/*.[ch]' \
		--exclude='*/tools/testing/*'
	rm -rf package ./*.deb apt.log
	cd "$cache"
	rm -rf debug-kernel
	mv "$part" debug-kernel
}

# Dependencies of Kconfig drop what they do not allow without a word.
check_config() {
	local line
	while read -r line; do
		case $line in
		CONFIG_*=n) ! grep -q "^${line%=n}=" "$source/.config" ;;
		CONFIG_*) grep -qxF "$line" "$source/.config" ;;
		esac || fail "the kernel's configuration lacks $line"
	done <"$config"
}

build() {
	cd "$source"
	# Debian's compiler, whatever the caller's environment says.
	local options=(ARCH=x86_64 CC=gcc)
	make "${options[@]}" KCONFIG_ALLCONFIG="$config" allnoconfig
	check_config
	nice -n "${PARAGPU_NICE:-10}" make "${options[@]}" -j"$(nproc)" bzImage modules
	make -s "${options[@]}" kernelrelease >"$cache/debug-kernel/release"
}

install_kernel() {
	local release to
	release=$(cat "$cache/debug-kernel/release")
	to=$cache/kernel/$release
	rm -rf "$to"
	mkdir -p "$to/lib/modules/$release"
	cp "$source/arch/x86/boot/bzImage" "$to/vmlinuz"
	cp "$source"/modules.{order,builtin,builtin.modinfo} "$to/lib/modules/$release"
	depmod -b "$to" "$release"
	ln -s ../../debug-kernel/source "$to/headers"
}

# Where Debian keeps depmod, which users who are not root lack.
PATH=$PATH:/usr/sbin:/sbin
known=$cache/debug-kernel/configured
if ! cmp -s "$config" "$known"; then
	[ -e "$source/Makefile" ] || {
		echo "debug-kernel: fetching Debian's kernel source" >&2
		fetch >&2
	}
	echo "debug-kernel: building; a quarter of an hour on 2 cores ($log)" >&2
	build >"$log" 2>&1 || {
		grep -iE 'error|lacks' "$log" | tail -n 20 >&2
		fail "the kernel does not build: see $log"
	}
	install_kernel >&2
	cp "$config" "$known"
fi
cat "$cache/debug-kernel/release"
