#!/bin/bash
# Sourced by the scripts in the bare Debians. Ends at the first check that
# fails.
set -euo pipefail

# What the guest of the domain prints.
output=/var/log/libvirt/output.log
# Longest wait for a guest that runs without KVM on a busy machine, in seconds.
patience=300

# check WHAT COMMAND...: the command must succeed; its output is shown if not.
check() {
	local what=$1
	shift
	if "$@" >/tmp/output 2>&1; then
		echo "ok   $what"
	else
		cat /tmp/output
		echo "FAIL $what: $*"
		exit 1
	fi
}

# refused SENTENCE COMMAND...: the command must fail and say the sentence.
refused() {
	local sentence=$1
	shift
	if "$@" >/tmp/said 2>&1; then
		cat /tmp/said
		echo "it succeeded"
		return 1
	fi
	cat /tmp/said
	grep -qF -- "$sentence" /tmp/said
}

is() {
	[ "$1" = "$2" ] || {
		echo "$1, not $2"
		return 1
	}
}

# appears PATTERN SECONDS: until a line of the guest's output has it.
appears() {
	local deadline=$((SECONDS + $2))
	until grep -aq "$1" "$output" 2>/dev/null; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.2
	done
}

# waits_for LINE: until the guest has printed it.
waits_for() {
	appears "^$1\$" "$patience" || {
		tail -n 20 "$output" /var/log/libvirt/console.log
		return 1
	}
}

# boots COMMAND...: starts the domain web-1. A machine without KVM may hang before
# its kernel has come up; once more then.
boots() {
	"$@" || return 1
	if ! appears '^@paragpu begin' 120; then
		tail -n 3 /var/log/libvirt/console.log
		virsh destroy web-1
		"$@" || return 1
		appears '^@paragpu begin' "$patience"
	fi
}

has_device() {
	virsh dumpxml "$@" >/tmp/domain.xml
	grep -q "<shmem name='paragpu'>" /tmp/domain.xml
}

has_no_device() {
	! has_device "$@"
}

# QEMU 7.2 without KVM continues to poll the number of the interrupt's eventfd after
# the device is gone, and crashes when whatever gets that number is readable.
# Eventfds that nobody rings never are; a pipe that nobody writes to neither.
occupy_descriptors() {
	local pipe
	mkfifo /tmp/never 2>/dev/null || true
	exec {pipe}<>/tmp/never
	for _ in $(seq 32); do
		virsh qemu-monitor-command "$1" --pass-fds "$pipe" '{"execute":"add-fd"}' >/dev/null ||
			return 1
	done
}

# paragpud and libvirtd, as they run on a host.
services() {
	# Half of what libvirt does around QEMU needs cgroups and extended attributes that a
	# bare root lacks. User and group are Debian's.
	cat >/etc/libvirt/qemu.conf <<-END
	namespaces = []
	security_driver = "none"
	remember_owner = 0
	cgroup_controllers = [ ]
	END
	install -d -o paragpu -g paragpu /run/paragpu
	mkfifo /tmp/addresses
	setpriv --reuid paragpu --regid paragpu --init-groups -- \
		paragpud --device software --print-addresses >/tmp/addresses 2>/tmp/paragpud.log &
	read -r _ </tmp/addresses || {
		cat /tmp/paragpud.log
		echo "FAIL paragpud does not start"
		exit 1
	}
	virtlogd -d
	start_libvirtd
}

start_libvirtd() {
	libvirtd >>/tmp/libvirtd.log 2>&1 &
	libvirtd=$!
	timeout 60 bash -c 'until virsh -q list >/dev/null 2>&1; do sleep 0.1; done' || {
		tail -n 5 /tmp/libvirtd.log
		echo "FAIL libvirtd does not answer"
		exit 1
	}
}

restart_libvirtd() {
	kill "$libvirtd"
	wait "$libvirtd" || true
	start_libvirtd
}
