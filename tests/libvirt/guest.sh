# Runs in the domain, as root: a program whenever the device is there.
# shellcheck shell=dash
mkdir -p /etc/paragpu
echo 'communicator = "pci"' >/etc/paragpu/guest.toml
modprobe paragpu
round=1
while :; do
	until [ -c /dev/paragpu0 ]; do sleep 0.1; done
	/opt/paragpu/programs/vectorAdd 2>&1
	echo "@test run $round ended with $?"
	# One after the other until the device is taken away under them.
	(
		while /opt/paragpu/programs/vectorAdd >/tmp/last 2>&1; do :; done
		tail -n 1 /tmp/last
	) &
	while [ -c /dev/paragpu0 ]; do sleep 0.1; done
	wait $!
	# What unplugging must not bring about in the kernel.
	dmesg | grep -E 'WARNING|BUG:|Oops|Call Trace|refcount|leaked' ||
		echo "@test gone $round, programs ended, kernel clean"
	round=$((round + 1))
done
