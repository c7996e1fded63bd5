"""A VM that goes to another host while its programs run, and takes its virtual
GPUs along: two QEMUs and QEMU's own migration.

Needs QEMU: skipped without.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import unittest

import harness
from harness import machine, vm

from .test_faults import eventually
from .test_migration import ask

HERE = os.path.dirname(os.path.abspath(__file__))
# The network shows the host to the guest so.
HOST = "10.0.2.2"

# The programs run until the device was taken away for the second time.
SCRIPT = """
cat >/etc/paragpu/guest.toml <<END
communicator = "pci"
END
wait_for_device() { until [ -c /dev/paragpu0 ]; do sleep 0.1; done; echo "@device there"; }
wait_for_none() { while [ -c /dev/paragpu0 ]; do sleep 0.1; done; echo "@device gone"; }
modprobe paragpu
wait_for_device
for kind in {kinds}; do
    (/opt/tests/guest-mover $kind $kind /tmp/stop 2>&1; echo "$kind ended with $?") &
done
wait_for_none
wait_for_device
wait_for_none
sleep 1
touch /tmp/stop
wait
dmesg | grep -E 'WARNING|BUG:|Oops|Call Trace|refcount|general protection' || echo "@kernel clean"
"""


def free_port():
    """A TCP port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def host(trust):
    """A host's daemon, which VMs reach over the network."""
    port = free_port()
    announce = f"--set=tcp.announce={HOST}:{port}"
    return harness.Daemon(*harness.as_host(trust), announce, tcp=f"127.0.0.1:{port}")


@unittest.skipUnless(shutil.which("qemu-system-x86_64"), "qemu-system-x86_64 is not installed")
class VmMoves(unittest.TestCase):
    """Two hosts, one VM."""

    kinds = ("pageable", "pinned")

    def setUp(self):
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="paragpu-test-"))
        mover, commands = os.path.join(folder, "guest-mover"), os.path.join(folder, "commands")
        source = os.path.join(HERE, "..", "vm", "guest-mover.c")
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", mover, source, "-ldl"], check=True)
        with open(commands, "w", encoding="utf-8") as file:
            file.write(SCRIPT.replace("{kinds}", " ".join(self.kinds)))
        self.initramfs = os.path.join(folder, "initramfs")
        self.kernel = vm.build_image(
            self.initramfs, [(mover, "/opt/tests/guest-mover"), (commands, "/paragpu/commands")]
        )
        trust = harness.certificates(os.path.join(folder, "trust"))
        self.one = self.enterContext(host(trust))
        self.two = self.enterContext(host(trust))

    def machine(self, name, **options):
        return self.enterContext(machine.Machine(name, self.kernel, self.initramfs, **options))

    def device(self, daemon):
        return self.enterContext(vm.Device(daemon, "web", ["--channels=8"]))

    def sessions(self, daemon):
        return sorted((session["vm"], session["communicator"]) for session in daemon.sessions())

    def order(self, daemon, *arguments):
        """Moves all sessions of the VM."""
        code, output, errors = ask(daemon, "migrate", "--vm", "web", *arguments, "-o", "json")
        self.assertEqual(code, 0, output + errors + self.one.log() + self.two.log())

    def test_a_vm_takes_its_gpus_along(self):
        all_over = lambda communicator: [("web", communicator)] * len(self.kinds)
        first = self.machine("first")
        first.boot()
        device = self.device(self.one)
        first.plug(device)
        first.goes_on(*self.kinds)
        self.assertEqual(self.sessions(self.one), all_over("pci"))

        # The GPUs go ahead, and are reached over the network.
        self.order(self.one, "--to", f"tcp://{self.two.addresses['migration']}")
        self.assertEqual(self.sessions(self.two), all_over("tcp"))
        eventually(lambda: self.one.sessions() == [], "the first host let go")
        first.goes_on(*self.kinds)
        first.unplug()
        device.stop()
        first.wait_for("^@device gone")
        first.goes_on(*self.kinds)

        # The machine follows, and they are its own host's.
        second = self.machine("second", incoming=True)
        second.start()
        # The network of the first QEMU ends with it, and with it connections.
        first.migrate(second)
        second.goes_on(*self.kinds)
        first.quit()
        second.plug(self.device(self.two))
        second.wait_for("^@device there")
        self.order(self.two, "--communicator", "pci")
        self.assertEqual(self.sessions(self.two), all_over("pci"))
        second.goes_on(*self.kinds)

        # And could leave again.
        self.order(self.two, "--to", f"tcp://{self.one.addresses['migration']}")
        second.goes_on(*self.kinds)
        second.unplug()
        second.wait_for("^@kernel clean")
        for kind in self.kinds:
            self.assertIn(f"{kind} ended with 0", second.read())
        for daemon in (self.one, self.two):
            eventually(lambda daemon=daemon: daemon.sessions() == [], "the hosts let go")


if __name__ == "__main__":
    unittest.main()
