#!/bin/bash
# What run.sh runs in the bare Debian; ends at the first check that fails.
set -euo pipefail

first=(/packages/first/*.deb)
second=(/packages/second/*.deb)

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

apt() {
	apt-get -q -y --no-install-recommends "$@"
}

# All files, but for what the package system itself writes, and the copies that
# are kept of the lists of users.
files() {
	find / -xdev \( -path /proc -o -path /dev -o -path /run -o -path /tmp \
		-o -path /packages -o -path /var/lib/dpkg -o -path /var/lib/apt \
		-o -path '/etc/*-' -o -path /var/cache/apt -o -path /var/cache/debconf -o -path /var/log \) -prune \
		-o -print | sort
}

# first_of LIBRARY: where the loader finds it.
first_of() {
	ldconfig -p | awk -v name="$1" '$1 == name { print $NF; exit }'
}

is() {
	[ "$1" = "$2" ] || {
		echo "$1, not $2"
		return 1
	}
}

as_user() {
	setpriv --reuid nobody --regid nogroup --groups paragpu -- "$@"
}

echo "== installing what the packages depend on"
check "apt knows the archive" apt update
check "dependencies resolve in a bare Debian" apt -s install "${first[@]}"
mapfile -t needed < <(awk '$1 == "Inst" && $2 !~ /^paragpu/ { print $2 }' /tmp/output)
check "dependencies install (${#needed[@]} packages)" apt install "${needed[@]}"
kernel=$(basename "$(find /usr/src -maxdepth 1 -name 'linux-headers-*-cloud-amd64')")
kernel=${kernel#linux-headers-}
# Indices that a kernel's own package makes, where it is installed.
depmod "$kernel"
ldconfig
files >/tmp/before

echo "== installing"
# An administrator's own list, whose last line lacks its newline.
preloaded=/lib/x86_64-linux-gnu/libdl.so.2
redirector=/usr/lib/paragpu/libparagpu-redirect.so
printf %s "$preloaded" >/etc/ld.so.preload
check "packages install" apt install "${first[@]}"
check "DKMS builds the module for $kernel" dkms install -m paragpu -v 0.1.0 -k "$kernel"
dkms status -m paragpu -v 0.1.0 -k "$kernel" >/tmp/status
check "DKMS has installed it" grep -q installed /tmp/status
check "the module is the PCI device's" \
	grep -q 'pci:v00001AF4d00001110' <(modinfo -k "$kernel" -F alias paragpu)
for library in libcuda.so.1 libcudart.so.12 libcudart.so.13; do
	check "the loader finds $library" is "$(first_of $library)" /usr/lib/paragpu/$library
done
check "the list of preloaded libraries keeps its names" \
	is "$(cat /etc/ld.so.preload)" "$preloaded"$'\n'"$redirector"
check "every program maps the redirector" \
	grep -q "$redirector" <(LD_TRACE_LOADED_OBJECTS=1 /bin/true)
check "both configurations are good" paragpu config check
check "the daemon has a user" getent passwd paragpu
for list in /etc/subuid /etc/subgid; do
	check "workers have a range in $list" grep -Eqx 'paragpu:[0-9]+:1024' $list
done
check "both ranges are one" diff <(grep ^paragpu: /etc/subuid) <(grep ^paragpu: /etc/subgid)
check "the host's configuration names it" grep -qx 'users = "subordinate"' /etc/paragpu/host.toml
for page in man1/paragpu.1 man8/paragpud.8 man8/paragpu-qemu-device.8; do
	check "there is $page" test -s "/usr/share/man/$page.gz"
done
check "bash completes" bash -n /usr/share/bash-completion/completions/paragpu
check "there is a guide that messages name" test -s /usr/share/doc/paragpu-tools/docs/redirect.md.gz

echo "== units"
# What the spawner of workers needs counts as the daemon's, which gives it up.
for limit in paragpud.service=35 paragpu-device@.service=20; do
	unit=${limit%=*} most=${limit#*=}
	path=/lib/systemd/system/$unit
	check "$unit is well-formed" systemd-analyze verify --man=no "${path/@/@vm}"
	check "$unit exposes ${most:0:1}.${most:1} at most" \
		systemd-analyze security --no-pager --offline=true --threshold="$most" "$path"
	sed -n 's/.*Overall exposure level for/     exposure of/p' /tmp/output
done
check "the daemon may write checkpoints" grep -qx StateDirectory=paragpu /lib/systemd/system/paragpud.service
check "a reload checks the configuration first" \
	grep -qx 'ExecReload=/usr/bin/paragpu config check host' /lib/systemd/system/paragpud.service
check "the daemon starts with the machine" systemctl is-enabled paragpud.service
check "folders of sockets are made" systemd-tmpfiles --create paragpu-host.conf
check "hypervisors may enter theirs" \
	is "$(stat -c %U:%G:%a /run/paragpu-device)" paragpu:kvm:750

echo "== using"
install -d -o paragpu -g paragpu /run/paragpu
mkfifo /tmp/addresses
# With what the unit gives it.
setpriv --reuid paragpu --regid paragpu --init-groups --no-new-privs \
	--inh-caps=-all,+setuid,+setgid,+chown --ambient-caps=-all,+setuid,+setgid,+chown \
	--bounding-set=-all,+setuid,+setgid,+chown -- \
	paragpud --print-addresses >/tmp/addresses 2>/tmp/daemon.log &
daemon=$!
read -r _ </tmp/addresses || {
	cat /tmp/daemon.log
	echo "FAIL paragpud does not start"
	exit 1
}
check "doctor finds nothing wrong" as_user paragpu doctor
check "the guest's libcuda.so.1 is no driver of the host" \
	grep -qF "libcuda.so.1 is paragpu's own" /tmp/daemon.log
# Until its first worker is there.
for _ in {1..100}; do
	paragpu doctor --side host >/tmp/doctor
	! grep -q ' worker [0-9]' /tmp/doctor || break
	sleep 0.1
done
for held in "the workers of each VM have a user of its own" \
	"paragpud has no capabilities; its system calls are filtered" "a user of its VM's own, namespaces"; do
	check "doctor says: $held" grep -qF "$held" /tmp/doctor
done
for communicator in unix shm auto; do
	check "vectorAdd runs over $communicator" \
		as_user env PARAGPU_COMMUNICATOR=$communicator /usr/local/bin/vectorAdd
done
carrier=/usr/local/bin/vectorAdd-static
for program in $carrier $carrier-12.9; do
	check "${program##*/} runs without any setting" as_user "$program"
done
check "the redirector can be switched off" \
	bash -c "export PARAGPU_REDIRECT=0; ! $carrier && ! paragpu doctor $carrier"
echo "redirect = false" >/tmp/guest.toml
check "a file switches it off, too" env PARAGPU_CONFIG=/tmp/guest.toml \
	bash -c "! $carrier && ! paragpu doctor $carrier && paragpu run $carrier"
check "setuid programs start" setpriv --reuid nobody --regid nogroup --clear-groups su --version
check "others may not connect" bash -c '! setpriv --reuid nobody --regid nogroup --clear-groups /usr/local/bin/vectorAdd'
kill "$daemon"
check "the daemon ends in order" wait "$daemon"

echo "== beside NVIDIA's libraries"
# Files of their names where NVIDIA's packages put them.
for library in libcuda.so.1 libcudart.so.12 libcudart.so.13; do
	cp /usr/lib/paragpu/$library /usr/lib/x86_64-linux-gnu/
	ldconfig
	check "paragpu does not shadow $library" \
		is "$(first_of $library)" /lib/x86_64-linux-gnu/$library
	rm /usr/lib/x86_64-linux-gnu/$library
done
mv /etc/ld.so.conf.d/zz-paragpu.conf /etc/ld.so.conf.d/000-paragpu.conf
ldconfig

echo "== upgrading"
echo 'communicator = "unix"' >/etc/paragpu/guest.toml
printf '[pool]\nwarm = 2\n' >/etc/paragpu/host.toml
sha256sum /etc/paragpu/*.toml >/tmp/sums
# On one line, as the loader allows.
echo "$redirector $preloaded:$redirector" >/etc/ld.so.preload
check "packages upgrade" apt install "${second[@]}"
check "changed configuration is kept" sha256sum -c /tmp/sums
check "a library that is preloaded already is not listed again" \
	is "$(cat /etc/ld.so.preload)" "$redirector $preloaded:$redirector"
check "a folder put first stays first" test ! -e /etc/ld.so.conf.d/zz-paragpu.conf
check "the new version is there" \
	is "$(dpkg-query -W -f '${Version}' paragpu-host)" 0.1.0+upgrade
check "DKMS follows" grep -q 'paragpu.*0.1.0+upgrade' <(dkms status)
check "DKMS forgets the old version" bash -c '! dkms status | grep -q "paragpu.*0\.1\.0[,/]"'

echo "== removing"
packages=(paragpu-guest paragpu-dkms paragpu-host paragpu-tools)
# Stands for the device that tmpfiles.d makes, where a container may not.
[ -e /dev/nvidia0 ] || ln -s null /dev/nvidia0
check "packages are removed" apt remove "${packages[@]}"
check "only the redirector is no longer preloaded" is "$(tr -d ' ' </etc/ld.so.preload)" "$preloaded"
rm /etc/ld.so.preload
check "the guest's device files are removed" \
	bash -c '[ -e /proc/driver/nvidia/version ] || [ ! -e /dev/nvidia0 ]'
check "changed configuration outlives that" sha256sum -c /tmp/sums
check "the loader has forgotten them" is "$(first_of libcuda.so.1)" ""
mkdir -p /var/cache/paragpu /var/lib/paragpu/states /etc/systemd/system/multi-user.target.wants
touch /var/cache/paragpu/image /var/lib/paragpu/states/session.paragpu
ln -s /lib/systemd/system/paragpu-device@.service \
	/etc/systemd/system/multi-user.target.wants/paragpu-device@vm.service
check "packages are purged" apt purge "${packages[@]}"
rm /etc/ld.so.conf.d/000-paragpu.conf # the administrator's own by now
ldconfig
files >/tmp/after
check "purging leaves nothing" diff /tmp/before /tmp/after
