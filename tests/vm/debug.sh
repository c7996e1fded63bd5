#!/bin/bash
# The guest driver in VMs whose kernel checks itself: KASAN, lockdep, kmemleak
# and the others of debug-kernel.config. First faults are committed on purpose:
# the checks have to find each, or the rest says nothing. Then all that
# `make test` runs in its VM, a soak, allocations that fail one by one, and a
# kernel that takes the machine over (kexec). With an argument only these.
#
# usage: debug.sh [faults | ivshmem | vfio-user | kexec]...
# CYCLES and ROUNDS say how long the soak is (default: 50 and 5); TIMEOUT how many
# seconds a VM may take (default: 5400). vfio-user fetches a QEMU that has it.
# A report of the kernel at any time, also while it goes down, is a failure.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
cd "$top"
top=$PWD
parts=("$@")
[ $# -gt 0 ] || parts=(faults ivshmem vfio-user kexec)

release=$(tests/vm/debug-kernel.sh .cache)
kernel=.cache/kernel/$release
module=.cache/module/$release
planted=out/module/$release-planted
encrypted=out/module/$release-encrypted
mkdir -p out "$planted"

# build OUT MAKE-ARGUMENT...: UBSAN is for the modules alone, KASAN for all.
build() {
	local log=$1.log
	make -C kernel-module UBSAN_SANITIZE=y OUT="$top/$1" KDIR="$top/$kernel/headers" "${@:2}" >"$log" 2>&1 || {
		cat "$log" >&2
		exit 1
	}
}
mkdir -p "$(dirname "$module")"
build "$module" WERROR=1
build "$encrypted" KCFLAGS="-Werror -include $here/encrypted-guest.h"
tests/vm/locks.py "$module/paragpu.ko"
cp tests/vm/planted/* "$planted"
make -C "$kernel/headers" M="$top/$planted" UBSAN_SANITIZE=y modules >"$planted.log" 2>&1 || {
	cat "$planted.log" >&2
	exit 1
}

export KERNEL=$release DRIVERS='' MEMORY=2G TIMEOUT=${TIMEOUT:-5400}
export PARAGPU_BOOT_TIMEOUT=${PARAGPU_BOOT_TIMEOUT:-600}
# Every report of KASAN's, not the first alone; a log that holds them all.
export APPEND='kasan_multi_shot log_buf_len=4M'
# Each plugging costs descriptors: hotplug.py says why.
ulimit -n "$(ulimit -Hn)"

# The kernel's reports, on the console: also those of its last moments.
reports() {
	awk -f tests/vm/foreign-reports.awk "$1/console.log" | grep -aE -f tests/vm/splats
}

# boot NAME: runs the VM; fails on a report.
boot() {
	local out=out/module-debug/$1 status=0
	echo "== $1"
	tests/vm/run.sh "$out" || status=$?
	if reports "$out"; then
		echo "module-debug: $1: the kernel reported what stands above: see $out/console.log" >&2
		return 1
	fi
	return "$status"
}

# Not installed: Debian's kexec-tools would take part in this machine's reboots. apt
# fetches it with the libraries that this machine lacks.
fetch_kexec() {
	local cache=.cache/kexec package
	[ ! -d $cache/lib ] || return 0
	rm -rf $cache $cache.part
	mkdir -p $cache.part/{archives/partial,lib}
	apt-get -q -y --no-install-recommends --reinstall --download-only -o Debug::NoLocking=1 \
		-o Dir::Cache::archives="$top/$cache.part/archives" install kexec-tools >$cache.part/apt.log 2>&1 || {
		tail -n 3 $cache.part/apt.log >&2
		echo "module-debug: apt does not have kexec-tools; 'apt-get update' as root may help" >&2
		return 1
	}
	for package in "$cache".part/archives/*.deb; do
		dpkg-deb -x "$package" $cache.part/tree
	done
	cp $cache.part/tree/{,usr/}sbin/kexec $cache.part 2>/dev/null || [ -e $cache.part/kexec ]
	find $cache.part/tree -name '*.so.*' -exec cp -L {} $cache.part/lib \;
	mv $cache.part $cache
}

failed=()
for part in "${parts[@]}"; do
	case $part in
	faults)
		echo "== faults"
		out=out/module-debug/faults
		FILES="$planted/paragpu_planted.ko=root/paragpu_planted.ko" \
			COMMANDS=tests/vm/debug-faults tests/vm/run.sh "$out" || failed+=(faults)
		# What looks at the console has to find them, too.
		reports "$out" >/dev/null || failed+=(faults-on-the-console)
		;;
	ivshmem | vfio-user)
		commands=$(mktemp) append=$APPEND
		echo "CYCLES=${CYCLES:-50} ROUNDS=${ROUNDS:-5}" | cat - tests/vm/debug-commands >"$commands"
		if [ "$part" = vfio-user ]; then
			PARAGPU_QEMU=$(tests/tools/fetch-qemu.sh)
			export PARAGPU_QEMU
			# Programs may pin a page in several lists; the debugging of DMA
			# holds overlapping mappings against a driver.
			append="$APPEND dma_debug=off"
		fi
		PROTOCOL=$part COMMANDS=$commands APPEND=$append \
			FILES="tests/vm/commands=paragpu/tests tests/vm/foreign-reports.awk=paragpu/foreign-reports.awk $encrypted/paragpu.ko=root/encrypted/paragpu.ko" \
			boot "$part" || failed+=("$part")
		rm -f "$commands"
		unset PARAGPU_QEMU
		;;
	kexec)
		fetch_kexec
		files=".cache/kexec/kexec=usr/sbin/kexec $kernel/vmlinuz=root/vmlinuz"
		for library in .cache/kexec/lib/*; do
			[ ! -e "$library" ] || files+=" $library=usr/lib/x86_64-linux-gnu/${library##*/}"
		done
		FILES=$files COMMANDS=tests/vm/kexec-commands boot kexec || failed+=(kexec)
		;;
	*)
		echo "module-debug: there is no part $part" >&2
		exit 2
		;;
	esac
done
if [ ${#failed[@]} -gt 0 ]; then
	echo "module-debug: failed: ${failed[*]}" >&2
	exit 1
fi
