#!/bin/bash
# The guest driver, the device process and the rings, in one boot of a VM;
# without CUDA. Everything that the VM runs is built here.
#
# usage: run.sh [OUT]   OUT gets the logs (default: out/vm-test)
# COMMANDS=FILE runs another file than tests/vm/commands; TIMEOUT=SECONDS gives
# it another limit than 900 seconds; APPEND=TEXT adds to the kernel's command line.
# PROTOCOL=vfio-user runs it all over vfio-user-pci: PARAGPU_QEMU has to name a
# QEMU that has it (tests/tools/fetch-qemu.sh brings one).
# KERNEL=RELEASE runs another kernel than this Debian's: it has to stand in
# .cache/kernel/RELEASE, its module in .cache/module/RELEASE; DRIVERS says which
# of its modules the VM's devices need.
# FILES='SRC=DEST ...' adds to the VM's files, MEMORY=SIZE is the VM's memory.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

top=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$top/out/vm-test}
protocol=${PROTOCOL:-ivshmem}
memory=${MEMORY:-1G}
cache=$top/.cache
cd "$top"
mkdir -p "$out"

if [ -n "${KERNEL:-}" ]; then
	release=$KERNEL module=$cache/module/$KERNEL
else
	release=$(vm-images/fetch-kernel.sh "$cache")
	module=$top/out/module/$release
	make -C kernel-module WERROR=1 OUT="$module" \
		KDIR="$cache/kernel/$release/headers" >"$out/module.log" 2>&1 || {
		cat "$out/module.log" >&2
		exit 1
	}
fi
if [ -z "${PARAGPU_TEST_BINARIES:-}" ]; then
	make -s tested
fi
target=${PARAGPU_TEST_BINARIES:-$top/target/debug}

work=$(mktemp -d)
pids=()
# Called by the trap.
# shellcheck disable=SC2317
cleanup() {
	local pid
	for pid in "${pids[@]}"; do
		kill "$pid" 2>/dev/null || true
	done
	rm -rf "$work"
}
trap cleanup EXIT

mkdir "$work/programs"
# The kernel's exporter of headers drops the uapi/ of their names; so here.
mkdir -p "$work/include/linux"
cp kernel-module/include/uapi/linux/paragpu.h "$work/include/linux/"
for program in guest-test guest-pins guest-soak guest-debug; do
	cc -static -O2 -Wall -Wextra -Werror -I"$work/include" \
		-o "$work/programs/$program" "tests/vm/$program.c"
done
cp "$target/examples/ring_ping" "$work/programs/"

files=()
for file in ${FILES:-}; do
	files+=(--file "$file")
done
vm-images/make-initramfs.sh --kernel "$cache/kernel/$release" \
	--output "$work/initramfs" --module "$module/paragpu.ko" \
	--programs "$work/programs" --file tests/vm/splats=paragpu/splats \
	${DRIVERS+--drivers "$DRIVERS"} "${files[@]}"

"$target/examples/echo_daemon" "$work/daemon.devices" 2>"$out/daemon.log" &
pids+=($!)
PARAGPU_LOG=debug "$target/paragpu-qemu-device" --vm test \
	--socket "$work/device.sock" --daemon "$work/daemon.sock" \
	--protocol "$protocol" --channels 16 2>"$out/device.log" &
pids+=($!)
until [ -S "$work/device.sock" ] && [ -S "$work/daemon.devices" ]; do
	kill -0 "${pids[@]}"
	sleep 0.05
done

# The device behind a port, so that it can be unplugged; and one that is
# somebody else's.
rm -f "$out/output.log"
tests/vm/hotplug.py "$work/qmp.sock" "$out/output.log" "$work/device.sock" "$protocol" \
	>"$out/hotplug.log" 2>&1 &
pids+=($!)
case $protocol in
ivshmem)
	device=(-chardev "socket,id=paragpu,path=$work/device.sock"
		-device 'ivshmem-doorbell,id=device,bus=plug,chardev=paragpu,vectors=1')
	;;
vfio-user)
	device=(-object "memory-backend-memfd,id=ram,size=$memory,share=on" -machine memory-backend=ram
		-device "{\"driver\":\"vfio-user-pci\",\"id\":\"device\",\"bus\":\"plug\",\"socket\":{\"type\":\"unix\",\"path\":\"$work/device.sock\"}}")
	;;
esac
status=0
vm-images/run-vm.sh --kernel "$cache/kernel/$release" \
	--initramfs "$work/initramfs" --commands "${COMMANDS:-tests/vm/commands}" \
	--out "$out" --memory "$memory" \
	--timeout "${TIMEOUT:-900}" --append "${APPEND:-}" -- \
	-qmp "unix:$work/qmp.sock,server=on,wait=off" \
	-device pcie-root-port,id=plug,slot=1,pref64-reserve=2G "${device[@]}" \
	-object memory-backend-ram,id=foreign,size=1M,share=on \
	-device ivshmem-plain,memdev=foreign || status=$?
[ ! -e "$out/vm.json" ] || cat "$out/vm.json"
for pid in "${pids[@]:0:2}"; do
	kill -0 "$pid" || {
		echo "vm-test: the daemon or the device process died" >&2
		exit 1
	}
done
exit "$status"
