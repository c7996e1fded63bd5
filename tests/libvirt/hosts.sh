#!/bin/bash
# What run.sh runs in two bare Debians, the hosts `one` and `two`; ends at the first
# check that fails. On `two` it only starts what runs on a host. `one` sees the
# sockets and logs of `two` in /two.
#
# usage: hosts.sh one|two
set -euo pipefail
case ${1:-} in -h | --help) exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" ;; esac

# shellcheck source-path=SCRIPTDIR source=checks.sh
. /packages/checks.sh

case $1 in
one) number=1 ;;
two) number=2 ;;
esac

# As hosts of one network; the guest sees it as QEMU's user networking.
install -d /etc/paragpu/host.d
cat >/etc/paragpu/host.d/test.toml <<END
[tcp]
listen = "127.0.0.1:747$number"
announce = "10.0.2.2:747$number"
[migration]
listen = "127.0.0.1:748$number"
ca = "/packages/trust/ca.pem"
certificate = "/packages/trust/127.0.0.1.pem"
key = "/packages/trust/127.0.0.1.key"
END
dpkg -i /packages/paragpu-tools_*.deb /packages/paragpu-host_*.deb >/tmp/dpkg.log 2>&1
chown -R paragpu /packages/trust
# libvirt identifies hosts by this.
echo "host_uuid = \"0000000$number-1111-4222-8333-444444444444\"" >>/etc/libvirt/libvirtd.conf
hostname "$1"
services
if [ "$1" = two ]; then
	: >/run/ready
	wait
	exit
fi

there="qemu+unix:///system?socket=/two/run/libvirt/libvirt-sock"

on_two() {
	paragpu --control /two/run/paragpu/control.sock "$@"
}

# eventually COMMAND...: until it succeeds.
eventually() {
	local deadline=$((SECONDS + patience))
	until "$@"; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.2
	done
}

# are WAYS COMMAND...: the communicators of a daemon's sessions.
are() {
	local ways=$1
	shift
	"$@" list -o json >/tmp/sessions || return 1
	is "$(grep -o '"communicator": "[a-z]*"' /tmp/sessions | cut -d'"' -f4 | tr '\n' ' ')" "$ways"
}

# goes_on: both programs do two more rounds.
goes_on() {
	local before kind
	before=$(wc -c <"$output")
	for kind in pageable pinned; do
		eventually has_rounds "$kind" "$before" || {
			tail -n 20 "$output" /var/log/libvirt/console.log
			return 1
		}
	done
}

has_rounds() {
	[ "$(tail -c "+$(($2 + 1))" "$output" | grep -ac "^$1 round")" -ge 3 ]
}

marked() {
	virsh metadata web-1 urn:paragpu:libvirt:1
}

not_marked() {
	! virsh "$@" metadata web-1 urn:paragpu:libvirt:1
}

no_program_has_ended() {
	! grep -a "ended with" /var/log/libvirt/output.log "$output"
}

# Nothing that the domain's device process has made is left on the other host.
nothing_left_there() {
	[ -z "$(ls -A /two/run/paragpu-device)" ] && [ -z "$(ls -A /two/run/paragpu-libvirt)" ]
}

timeout "$patience" bash -c 'until [ -e /two/run/ready ]; do sleep 0.1; done'
sed "s|</devices>|<interface type='user'><model type='virtio'/><rom enabled='no'/></interface>&|" \
	/packages/domain.xml >/tmp/travelling.xml

echo "== a domain with programs on a host"
check "the domain is defined" virsh define --validate /tmp/travelling.xml
check "attach" paragpu attach web-1
check "the domain starts" boots virsh start web-1
check "the device is there" waits_for "@test device there"
check "programs run" goes_on
check "over the device" are "pci pci " paragpu

echo "== it departs; its migration fails at first"
check "a host that is not there is said" refused "127.0.0.1:7489" \
	paragpu depart web-1 --to tcp://127.0.0.1:7489
check "nothing has changed" has_device web-1
check "depart" paragpu depart web-1 --to tcp://127.0.0.1:7482
check "the guest has let go" waits_for "@test device gone, kernel clean"
check "the sessions are on the other host" are "tcp tcp " on_two
check "the running domain has no device" has_no_device web-1
check "its configuration has" has_device web-1 --inactive
check "it is marked" marked
check "programs run" goes_on
# Before QEMU opens anything, as for connections of the guest.
check "QEMU's crash is kept away" occupy_descriptors web-1
check "the migration fails" refused "Failed to connect" \
	virsh migrate web-1 "qemu+unix:///system?socket=/nobody"

echo "== it migrates and arrives"
# Without --live: see docs/migration.md.
check "virsh migrate" virsh migrate web-1 "$there" --migrateuri tcp://127.0.0.1:49152
check "it runs there" is "$(virsh -c "$there" domstate web-1)" running
check "and not here" is "$(virsh domstate web-1)" "shut off"
output=/two/log/output.log
check "the hook's paragpu arrive has given it the device" waits_for "@test device there"
check "its sessions go over it" eventually are "pci pci " on_two
check "nothing is left here" are "" paragpu
check "programs run on" goes_on
check "the mark is gone" eventually not_marked -c "$there"
check "no program has ended" no_program_has_ended
check "destroy" virsh -c "$there" destroy web-1
check "nothing is left there" eventually nothing_left_there
