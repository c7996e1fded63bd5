#!/bin/bash
# Boots the demo VM on stock QEMU, runs a command file in it and gives its exit
# status.
#
# usage: run-vm.sh --kernel DIR --initramfs FILE --commands FILE --out DIR
#                  [option]... [-- QEMU-OPTION...]
#   --kernel DIR      what fetch-kernel.sh made
#   --initramfs FILE  what make-initramfs.sh made
#   --commands FILE   shell script, run in the VM as root
#   --out DIR         gets: console.log (kernel messages), output.log (what the
#                     commands printed), output.jsonl (those lines that begin
#                     with a brace), vm.json (about the VM), qemu.log
#   --device SOCKET   the VM's paragpu device: socket of paragpu-qemu-device
#   --vfio-user SOCKET  the same, of a device process with --protocol vfio-user;
#                     PARAGPU_QEMU has to name a QEMU from 10.1 on
#   --vsock SOCKET    the VM's vsock: socket of a vhost-user daemon
#   --network         a network card: the host is 10.0.2.2 to the VM
#   --avx             without KVM too, a processor with AVX2
#   --file SRC=DEST   one more file for the initramfs; may be repeated
#   --memory SIZE     of the VM (default 1G)
#   --cpus N          of the VM (default 2)
#   --timeout S       seconds for the commands (default 300)
#   --append TEXT     more of the kernel's command line
# The commands' output is shown as it comes. PARAGPU_ACCEL=tcg or kvm skips the
# probe; PARAGPU_QEMU names another QEMU.
# Exit status: that of the commands; 124 when they took too long; 125 when the
# VM did not boot, or went down before they ended.
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

qemu=${PARAGPU_QEMU:-qemu-system-x86_64}
# A boot takes 2 to 4 seconds on a quiet machine, even with TCG.
boot_timeout=${PARAGPU_BOOT_TIMEOUT:-60}

fail() {
	echo "run-vm: $*" >&2
	exit 125
}

kernel='' initramfs='' commands='' out='' device='' vfio_user='' vsock='' network=no avx=no
memory=1G cpus=2 timeout=300 append='' files=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	case $1 in
	--network | --avx)
		printf -v "${1#--}" yes
		shift
		continue
		;;
	esac
	[ $# -ge 2 ] || fail "$1 needs a value"
	case $1 in
	--kernel) kernel=$2 ;;
	--initramfs) initramfs=$2 ;;
	--commands) commands=$2 ;;
	--out) out=$2 ;;
	--device) device=$2 ;;
	--vfio-user) vfio_user=$2 ;;
	--vsock) vsock=$2 ;;
	--file) files+=("$2") ;;
	--memory) memory=$2 ;;
	--cpus) cpus=$2 ;;
	--timeout) timeout=$2 ;;
	--append) append=$2 ;;
	*) fail "unknown option $1" ;;
	esac
	shift 2
done
[ "${1:-}" != -- ] || shift
extra=("$@")
[ -e "$kernel/vmlinuz" ] || fail "--kernel: there is no vmlinuz in '$kernel'"
[ -e "$initramfs" ] || fail "--initramfs: there is no '$initramfs'"
[ -e "$commands" ] || fail "--commands: there is no '$commands'"
[ -n "$out" ] || fail "--out is missing"
command -v "$qemu" >/dev/null || fail "there is no $qemu: install qemu-system-x86"
mkdir -p "$out"
rm -f "$out"/{vm.json,output.jsonl}

work=$(mktemp -d)
pid=''
# Called by the trap.
# shellcheck disable=SC2317
cleanup() {
	if [ -n "$pid" ]; then
		kill -9 "$pid" 2>/dev/null || true
	fi
	rm -rf "$work"
}
trap cleanup EXIT

# The initramfs with the command file and the other files behind it: the
# kernel unpacks one archive after the other.
assemble() {
	local added=$work/added file place
	mkdir -p "$added/paragpu"
	cp "$1" "$added/paragpu/commands"
	for file in "${files[@]}"; do
		place=$added/${file#*=}
		mkdir -p "$(dirname "$place")"
		cp -rL "${file%%=*}" "$place"
	done
	cp "$initramfs" "$work/initrd"
	(cd "$added" && find . -print0 |
		cpio --quiet --null -o -H newc -R 0:0) >>"$work/initrd"
	rm -rf "$added"
}

# start ACCEL OUT QEMU-OPTION...: starts QEMU; its process id is in $pid.
start() {
	# Without no_timer_check a kernel panics where the host is so busy that the
	# first ticks of an emulated clock come late.
	# With more address bits the firmware of QEMU 10 places windows where the
	# guest's kernel does not look for room for a device that is plugged in.
	local accel=$1 to=$2 cpu=max,phys-bits=39 emulated=
	shift 2
	[ "$accel" != kvm ] || cpu=host
	if [ "$accel" = tcg ]; then
		# Emulated AVX is slower than what libraries choose without it, and an
		# emulated processor speculates nothing that the kernel must prevent.
		accel=tcg,thread=multi emulated=mitigations=off
		[ "$avx" = yes ] || cpu+=,-avx,-avx2,-fma,-f16c
	fi
	: >"$to/console.log"
	: >"$to/output.log"
	setpriv --pdeathsig KILL "$qemu" -accel "$accel" -M q35 -cpu "$cpu" -smp "$cpus" -m "$memory" \
		-nodefaults -no-user-config -display none -no-reboot \
		-kernel "$kernel/vmlinuz" -initrd "$work/initrd" \
		-append "console=ttyS0 panic=-1 quiet loglevel=5 no_timer_check $emulated $append" \
		-serial "file:$to/console.log" -serial "file:$to/output.log" \
		"$@" >"$to/qemu.log" 2>&1 </dev/null &
	pid=$!
}

# wait_for OUT PATTERN SECONDS: until output.log has a line with that pattern.
# 1: QEMU ended without it. 2: it took too long.
wait_for() {
	local deadline=$((SECONDS + $3))
	until grep -aq "$2" "$1/output.log"; do
		if ! kill -0 "$pid" 2>/dev/null; then
			grep -aq "$2" "$1/output.log" && return 0
			return 1
		fi
		[ "$SECONDS" -lt "$deadline" ] || return 2
		sleep 0.1
	done
}

stop() {
	if [ -n "$pid" ]; then
		kill -9 "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
		pid=''
	fi
}

# Sets $accel. A /dev/kvm that opens is no proof that a stock kernel runs: boot
# one.
choose_accel() {
	accel=${PARAGPU_ACCEL:-}
	[ -z "$accel" ] || return 0
	if ! { : <>/dev/kvm; } 2>/dev/null; then
		accel=tcg
		return
	fi
	# What was found stays true until the host boots again.
	local known boot_id
	boot_id=$(cat /proc/sys/kernel/random/boot_id)
	known=$(dirname "$kernel")/accel-$boot_id
	if [ ! -e "$known" ]; then
		local probe=$work/probe found=tcg attempt
		mkdir "$probe"
		echo 'exit 0' >"$work/nothing"
		assemble "$work/nothing"
		for attempt in 1 2; do
			start kvm "$probe"
			if wait_for "$probe" '^@paragpu end 0' 10; then
				found=kvm
			fi
			stop
			[ "$found" = tcg ] || break
		done
		echo "run-vm: /dev/kvm is there; a probe says: use $found (attempt $attempt)" >&3
		echo "$found" >"$known"
	fi
	accel=$(cat "$known")
}

# Hides the shell's message if QEMU aborts in the probe.
choose_accel 3>&2 2>/dev/null
assemble "$commands"
devices=()
if [ -n "$device" ]; then
	# shellcheck disable=SC2054 # QEMU's commas
	devices=(-chardev "socket,id=paragpu,path=$device"
		-device ivshmem-doorbell,chardev=paragpu,vectors=1)
fi
if [ -n "$vsock$vfio_user" ]; then
	# Processes of the host read and write the VM's memory.
	devices+=(-object "memory-backend-memfd,id=ram,size=$memory,share=on"
		-machine memory-backend=ram)
fi
if [ -n "$vfio_user" ]; then
	devices+=(-device "{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"$vfio_user\"}}")
fi
if [ -n "$vsock" ]; then
	devices+=(-chardev "socket,id=vsock,path=$vsock"
		-device "vhost-user-vsock-pci,chardev=vsock")
fi
if [ "$network" = yes ]; then
	devices+=(-netdev "user,id=network"
		-device "virtio-net-pci,netdev=network,romfile=")
fi

booted=no
for attempt in 1 2; do
	start "$accel" "$out" "${devices[@]}" "${extra[@]}"
	if wait_for "$out" '^@paragpu begin' "$boot_timeout"; then
		booted=yes
		break
	fi
	stop
	echo "run-vm: the VM did not boot (attempt $attempt)" >&2
	tail -n 5 "$out/console.log" "$out/qemu.log" >&2
done
[ "$booted" = yes ] || exit 125

tail -n +2 -s 0.1 -f --pid="$pid" "$out/output.log" 2>/dev/null | grep --line-buffered -av '^@paragpu' &
shown=$!
result=0
wait_for "$out" '^@paragpu end' "$timeout" || result=$?
if [ "$result" = 0 ]; then
	# It powers itself off.
	for _ in $(seq 100); do
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.1
	done
fi
stop
wait "$shown" 2>/dev/null || true

read -r _ _ release uptime <<<"$(grep -a -m 1 '^@paragpu begin' "$out/output.log")"
status=$(sed -n 's/^@paragpu end \([0-9]*\).*/\1/p' "$out/output.log" | tail -n 1)
case $result in
1)
	echo "run-vm: the VM went down before the commands ended" >&2
	status=125
	;;
2)
	echo "run-vm: the commands took more than $timeout seconds" >&2
	status=124
	;;
esac
grep -a '^{' "$out/output.log" >"$out/output.jsonl" || true
version=$("$qemu" --version | sed -n '1s/.*version \([0-9.]*\).*/\1/p')
printf '{"qemu":"%s","accel":"%s","guest_kernel":"%s","boot_seconds":%s,"status":%s}\n' \
	"$version" "$accel" "$release" "$uptime" "$status" >"$out/vm.json"
exit "$status"
