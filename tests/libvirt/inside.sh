#!/bin/bash
# What run.sh runs in the bare Debian; ends at the first check that fails.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=checks.sh
. /packages/checks.sh

sockets=/run/paragpu-device

device_process() {
	pgrep -f "^/usr/sbin/paragpu-qemu-device --vm $1 "
}

# Nothing that a domain's device process has made is left.
nothing_left() {
	! pgrep -fa paragpu-qemu-device || return 1
	is "$(ls -A $sockets)" "" && is "$(ls -A /run/paragpu-libvirt)" ""
}

validates() {
	virsh dumpxml "$@" >/tmp/domain.xml && virt-xml-validate /tmp/domain.xml domain
}

echo "== installing"
check "packages install" dpkg -i /packages/paragpu-tools_*.deb /packages/paragpu-host_*.deb
check "the hook is there" test -x /etc/libvirt/hooks/qemu.d/paragpu

echo "== without libvirt's daemon"
check "attach says that it does not run" \
	refused "is its daemon running (systemctl status libvirtd)" paragpu attach web-1

echo "== paragpud and libvirtd"
# paragpud gives leases, without an engine.
check "an authority" paragpu certificate /etc/paragpu/pool 127.0.0.1
chown -R paragpu: /etc/paragpu/pool
export PARAGPU_HOST_TCP_LISTEN=127.0.0.1:7474 PARAGPU_HOST_TCP_CA=/etc/paragpu/pool/ca.pem
export PARAGPU_HOST_TCP_CERTIFICATE=/etc/paragpu/pool/127.0.0.1.pem
export PARAGPU_HOST_TCP_KEY=/etc/paragpu/pool/127.0.0.1.key
export PARAGPU_HOST_LEASE_SOCKET=/run/paragpu/lease.sock PARAGPU_HOST_LEASE_AUTHORITY=/etc/paragpu/pool
services
virsh version | tail -n 2
check "an unknown domain is named" refused "there is no domain nobody at qemu:///system" \
	paragpu attach nobody
check "another hypervisor is refused" refused "is not QEMU on this machine" \
	paragpu attach -c test:///default test

echo "== define, attach"
check "the domain is defined" virsh define --validate /packages/domain.xml
check "attach --live needs it to run" refused "the domain web-1 is not running" \
	paragpu attach web-1 --live
check "attach" bash -c 'paragpu attach web-1 -o json >/tmp/attached'
check "attach says what it did" grep -q '"config": true' /tmp/attached
check "the configuration has the device" has_device web-1
check "libvirt's schema accepts it" validates web-1
check "nothing runs for it yet" test ! -e /run/paragpu-libvirt
check "attach twice is refused" refused "already has the device" paragpu attach web-1
sed 's/web-1/other/' /packages/domain.xml >/tmp/other.xml
check "a second domain is defined" virsh define /tmp/other.xml
paragpu attach other --print-xml >/tmp/element.xml
sed '/<devices>/r /tmp/element.xml' /tmp/other.xml >/tmp/printed.xml
check "what attach prints is valid by itself" virt-xml-validate /tmp/printed.xml domain
check "two VMs of one name are refused" \
	refused "$sockets/web-1.sock is the device of the domain web-1" paragpu attach other --vm web-1
check "and leave nothing" has_no_device other

echo "== a domain whose ports are all taken"
echo "<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>" >/tmp/rng.xml
check "another device takes the last port" virsh attach-device other /tmp/rng.xml --config
check "attach adds a port" paragpu attach other
check "the configuration has the device" has_device other
check "libvirt's schema accepts it" validates other
check "detach" paragpu detach other
check "it is gone" has_no_device other

echo "== a socket that is somebody else's"
install -d -o paragpu -g kvm -m 750 $sockets
: >$sockets/web-1.sock
check "the domain does not start, and says why" \
	refused "web-1.sock exists and is not a socket of this user" virsh start web-1
check "the file is left alone" test -f $sockets/web-1.sock
rm $sockets/web-1.sock
check "nothing else is left" nothing_left
rmdir $sockets

echo "== start, run"
check "the domain starts" boots virsh start web-1
check "the hook has started the device process" device_process web-1
check "as its user and group" \
	is "$(ps -o user=,group= -p "$(device_process web-1)" | tr -s ' ')" "paragpu kvm"
check "which listens for the group of hypervisors" \
	is "$(stat -c %U:%G:%a $sockets/web-1.sock)" paragpu:kvm:660
check "QEMU is not root" is "$(ps -o user= -C qemu-system-x86_64 | tr -d ' ')" libvirt-qemu
check "a program runs in the guest" waits_for "@test run 1 ended with 0"

echo "== detach while running"
check "detach" paragpu detach web-1
check "programs got an error, the kernel is clean" \
	waits_for "@test gone 1, programs ended, kernel clean"
check "the running domain has no device" has_no_device web-1
check "nor has its configuration" has_no_device web-1 --inactive
check "and nothing is left" nothing_left
check "detach twice is refused" refused "does not have the device" paragpu detach web-1
check "QEMU's crash is kept away" occupy_descriptors web-1

echo "== attach again, run again"
check "attach" paragpu attach web-1
check "both have the device" has_device web-1
check "both have the device" has_device web-1 --inactive
check "libvirt's schema accepts it" validates web-1
check "a program runs in the guest" waits_for "@test run 2 ended with 0"
check "attach twice is refused" refused "already has the device" paragpu attach web-1

echo "== virsh edit"
cat >/tmp/editor <<'END'
#!/bin/sh
sed -i 's|<name>.*|&<title>edited</title>|' "$1"
END
chmod +x /tmp/editor
check "virsh edit" env EDITOR=/tmp/editor virsh edit web-1
check "the title is there" grep -q '<title>edited' <(virsh dumpxml --inactive web-1)
check "the device is there" has_device web-1 --inactive

echo "== a clone with the same socket"
virsh dumpxml --inactive web-1 >/tmp/clone.xml
sed -i 's/web-1</clone</; /<uuid>/d; s/output.log/clone.log/; s/console.log/clone-console.log/' /tmp/clone.xml
check "the clone is defined" virsh define /tmp/clone.xml
check "it does not start, and says why" \
	refused "$sockets/web-1.sock is the device of the domain" virsh start clone
check "the first has kept its process" device_process web-1
check "detach takes it from the clone" paragpu detach clone
check "attach gives the clone one of its own" paragpu attach clone
check "with its name" grep -q "$sockets/clone.sock" <(virsh dumpxml clone)

check "the clone starts, but does not run" virsh start --paused clone
check "a guest that does not answer is given up" \
	refused "has not released the device within 1 s" paragpu detach clone --timeout 1
check "its configuration is as it was" has_device clone --inactive
check "destroy" virsh destroy clone
check "nothing of its is left" test ! -e $sockets/clone.sock

echo "== destroy"
check "destroy" virsh destroy web-1
check "nothing is left" nothing_left
check "the configuration keeps the device" has_device web-1

echo "== a transient domain that was started without the device"
check "virsh undefine" virsh undefine web-1
check "virsh create" virsh create /packages/domain.xml
check "attach --config is refused" refused "the domain web-1 is transient" \
	paragpu attach web-1 --config
check "attach" paragpu attach web-1
check "the running domain has the device" has_device web-1
check "destroy" virsh destroy web-1
check "nothing is left" nothing_left

echo "== a lease for as long as a domain runs"
lease=(paragpu attach web-1 --pool none --memory 1GiB)
vsock=/run/web-1.vsock_7014
check "it needs a running domain" refused "there is no domain web-1" "${lease[@]}"
check "virsh create" virsh create /packages/domain.xml
check "and a vsock, unless its socket is named" refused "the domain web-1 has no vsock" "${lease[@]}"
"${lease[@]}" --vsock-socket $vsock 2>/tmp/lease &
holder=$!
check "the lease is there" timeout 60 bash -c 'until grep " as lease-" /tmp/lease; do sleep 0.1; done'
check "and programs may connect" test -S $vsock
check "libvirt's daemon restarts" restart_libvirtd
check "the lease is still there" test -S $vsock
check "destroy" virsh destroy web-1
check "the command ends with the domain" wait "$holder"
check "and so does the lease" test ! -e $vsock

echo "== AppArmor"
# As virt-aa-helper makes it for a domain.
sed 's/LIBVIRT_TEMPLATE/libvirt-test/' /etc/apparmor.d/libvirt/TEMPLATE.qemu >/tmp/profile
check "the profile of a domain compiles" \
	apparmor_parser --base /etc/apparmor.d --skip-kernel-load --skip-cache /tmp/profile
apparmor_parser --base /etc/apparmor.d --preprocess /tmp/profile >/tmp/rules
check "and has the rule for sockets" grep -qF 'run/paragpu-device/*.sock rw,' /tmp/rules
check "the packages are purged" dpkg --purge paragpu-host paragpu-tools
check "the profile compiles without them" \
	apparmor_parser --base /etc/apparmor.d --skip-kernel-load --skip-cache /tmp/profile
check "the hook is gone" test ! -e /etc/libvirt/hooks/qemu.d/paragpu
check "AppArmor's file is as it was" test ! -s /etc/apparmor.d/local/abstractions/libvirt-qemu
