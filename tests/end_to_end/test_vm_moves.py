"""Programs of a VM that continue while they, their VM, or both move: two
QEMUs and QEMU's own migration, and every way from a VM to its host.

Needs QEMU, and vhost-device-vsock for vsock: skipped without.
"""

import os
import shutil
import subprocess
import tempfile
import unittest

import harness
from harness import machine, vm

from .guests import ask, eventually

HERE = os.path.dirname(os.path.abspath(__file__))
# The network shows the host to the guest so.
HOST = "10.0.2.2"
# The programs: copies of pageable memory, and pinned memory.
KINDS = ("pageable", "pinned")

# The programs run until the device was removed {times} times, and
# until those of {losers} have ended by that.
SCRIPT = """
cat >/etc/paragpu/guest.toml <<END
[vsock]
port = {port}
END
wait_for_device() { until [ -c /dev/paragpu0 ]; do sleep 0.1; done; echo "@device there"; }
# Its driver has let go of it then, which the device's node does not tell.
wait_for_none() { while grep -qs 0x1110 /sys/bus/pci/devices/*/device; do sleep 0.1; done; echo "@device gone"; }
modprobe paragpu
wait_for_device
for begin in {begins}; do
    kind=${begin%=*}
    PARAGPU_COMMUNICATOR=${begin#*=} /opt/tests/guest-mover $kind $kind /tmp/stop 2>&1 &
    eval "$kind=$!"
    echo "@$kind is $!"
done
ended() { eval "wait \$$1"; echo "@$1 ended with $?"; }
for time in $(seq {times}); do
    [ "$time" = 1 ] || wait_for_device
    wait_for_none
done
for kind in {losers}; do ended $kind; done
touch /tmp/stop
for begin in {begins}; do ended ${begin%=*}; done
dmesg | grep -E 'WARNING|BUG:|Oops|Call Trace|refcount|general protection' || echo "@kernel clean"
"""


@unittest.skipUnless(shutil.which("qemu-system-x86_64"), "qemu-system-x86_64 is not installed")
class VmMoves(unittest.TestCase):
    """One or two hosts, one VM."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="paragpu-test-"))
        self.initramfs = os.path.join(self.folder, "initramfs")
        self.trust = harness.certificates(os.path.join(self.folder, "trust"))
        self.hosts, self.kernel = [], None

    def host(self, *arguments):
        """A host's daemon, which VMs reach over the network."""
        port = harness.free_port()
        arguments = [*harness.as_host(self.trust), f"--set=tcp.announce={HOST}:{port}", *arguments]
        self.hosts.append(self.enterContext(harness.Daemon(*arguments, tcp=f"127.0.0.1:{port}")))
        return self.hosts[-1]

    def image(self, begins, times, losers=()):
        """The VM's init script; `begins` are programs and their communicators."""
        mover, commands = os.path.join(self.folder, "guest-mover"), os.path.join(self.folder, "commands")
        source = os.path.join(HERE, "..", "vm", "guest-mover.c")
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", mover, source, "-ldl"], check=True)
        script = SCRIPT
        values = {
            **{"begins": " ".join(begins), "losers": " ".join(losers)},
            **{"port": vm.VSOCK_PORT, "times": times},
        }
        for name, value in values.items():
            script = script.replace(f"{{{name}}}", str(value))
        with open(commands, "w", encoding="utf-8") as file:
            file.write(script)
        files = [(mover, "/opt/tests/guest-mover"), (commands, "/paragpu/commands")]
        self.kernel = vm.build_image(self.initramfs, files)

    def machine(self, name, **options):
        return self.enterContext(machine.Machine(name, self.kernel, self.initramfs, **options))

    def device(self, daemon):
        return self.enterContext(vm.Device(daemon, "web", ["--channels=8"]))

    def assert_over(self, daemon, *communicators):
        """Programs of the VM, and nothing else, go to this host these ways."""
        ways = sorted((session["vm"], session["communicator"]) for session in daemon.sessions())
        self.assertEqual(ways, [("web", communicator) for communicator in communicators])

    def order(self, daemon, *arguments, of=("--vm", "web")):
        """Moves sessions: all of the VM."""
        code, output, errors = ask(daemon, "migrate", *of, *arguments, "-o", "json")
        logs = "\n".join(host.log() for host in self.hosts)
        self.assertEqual(code, 0, output + errors + logs)

    def finish(self, guest, losers=()):
        """Removes the device for the last time, which ends the programs."""
        guest.unplug()
        guest.wait_for("^@kernel clean")
        for kind in KINDS:
            self.assertIn(f"@{kind} ended with {3 if kind in losers else 0}\n", guest.read())
        for daemon in self.hosts:
            eventually(lambda daemon=daemon: daemon.sessions() == [], "the hosts let go")

    def test_a_vm_takes_its_gpus_along(self):
        one, two = self.host(), self.host()
        self.image([f"{kind}=pci" for kind in KINDS], times=2)
        first = self.machine("first")
        first.boot()
        device = self.device(one)
        first.plug(device)
        first.goes_on(*KINDS)
        self.assert_over(one, "pci", "pci")

        # The GPUs go ahead, and are reached over the network.
        self.order(one, "--to", f"tcp://{two.addresses['migration']}")
        self.assert_over(two, "tcp", "tcp")
        # At once, although copies may have begun in the device's window.
        first.unplug()
        eventually(lambda: one.sessions() == [], "the first host let go")
        device.stop()
        first.wait_for("^@device gone")
        first.goes_on(*KINDS)

        # The machine follows, and they are its own host's.
        second = self.machine("second", incoming=True)
        second.start()
        first.migrate(second)
        # The network of the first QEMU has not moved, so connections are lost.
        second.goes_on(*KINDS)
        first.quit()
        second.plug(self.device(two))
        second.wait_for("^@device there")
        self.order(two, "--communicator", "pci")
        self.assert_over(two, "pci", "pci")
        second.goes_on(*KINDS)

        # And could leave again.
        self.order(two, "--to", f"tcp://{one.addresses['migration']}")
        self.assert_over(one, "tcp", "tcp")
        second.goes_on(*KINDS)
        self.finish(second)

    @unittest.skipUnless(vm.vhost_device_vsock(), "vhost-device-vsock is not there: `make vhost-vsock` builds it")
    def test_running_programs_change_their_way_to_the_host(self):
        vsock = self.enterContext(vm.Vsock("web"))
        daemon, other = self.host(f"--vsock-unix={vsock.listener}"), self.host()
        self.image(["pageable=vsock", "pinned=pci"], times=1, losers=["pinned"])
        guest = self.machine("guest", vsock=vsock)
        guest.boot()
        guest.plug(self.device(daemon))
        guest.goes_on(*KINDS)
        self.assert_over(daemon, "pci", "vsock")
        for way in ("pci", "tcp", "vsock", "pci", "tcp"):
            with self.subTest(way):
                self.order(daemon, "--communicator", way)
                self.assert_over(daemon, way, way)
                guest.goes_on(*KINDS)
        # Only a session on another host has left the device's window: the other is
        # lost with it.
        pid = guest.wait_for("^@pageable is ([0-9]+)$").group(1)
        session = next(str(session["id"]) for session in daemon.sessions() if str(session["guest_pid"]) == pid)
        self.order(daemon, "--to", f"tcp://{other.addresses['migration']}", of=(session,))
        self.assert_over(other, "tcp")
        guest.goes_on(*KINDS)
        self.finish(guest, losers=("pinned",))
