# shellcheck shell=dash
# Runs in the domain that migrates, as root: programs that compare what they get
# exactly, round for round, over the device while it is there.
mkdir -p /etc/paragpu
echo 'communicator = "pci"' >/etc/paragpu/guest.toml
modprobe paragpu
until [ -c /dev/paragpu0 ]; do sleep 0.1; done
for kind in pageable pinned; do
	(
		/opt/paragpu/programs/guest-mover $kind $kind /tmp/stop 2>&1
		echo "@test $kind ended with $?"
	) &
done
while :; do
	until [ -c /dev/paragpu0 ]; do sleep 0.1; done
	echo "@test device there"
	while [ -c /dev/paragpu0 ]; do sleep 0.1; done
	dmesg | grep -E 'WARNING|BUG:|Oops|Call Trace|refcount|leaked' ||
		echo "@test device gone, kernel clean"
done
