"""The device over vfio-user, in a VM of a QEMU that has vfio-user-pci.

`make test-vfio-user` fetches that QEMU and runs these.
"""

import os
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import harness
from harness import vm

# A program that uses the device until the host ends it; then another try.
DEATH = """
/opt/paragpu/programs/vectorAdd --seconds 10000 >/tmp/output 2>&1 &
program=$!
until ls -l /proc/$program/fd | grep -q paragpu0; do kill -0 $program || exit 9; sleep 0.1; done
echo "@test ready"
wait $program
echo "@test program ended with $?"
cat /tmp/output
timeout 60 /opt/paragpu/programs/vectorAdd 2>&1
echo "@test another ended with $?"
dmesg | grep -E 'WARNING|BUG:|Oops|Call Trace|soft lockup|hung task' && echo "@test dirty"
exit 0
"""


@unittest.skipUnless(vm.qemu_with_vfio_user(), "tests/tools/fetch-qemu.sh brings a QEMU with vfio-user-pci")
class VfioUser(unittest.TestCase):
    """One VM whose device is a vfio-user-pci."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-test-")
        self.addCleanup(self.folder.cleanup)
        self.initramfs = os.path.join(self.folder.name, "initramfs")
        self.daemon = self.enterContext(harness.Daemon())
        self.device = vm.Device(self.daemon, "blue", protocol="vfio-user")
        self.addCleanup(self.device.stop)
        self.kernel = vm.build_image(self.initramfs)

    def test_every_program(self):
        programs = [name for name in harness.program_names() if name != "errors"]
        about, runs, said = vm.run_programs(
            self.kernel, self.initramfs, programs, lambda run: None, device=self.device
        )
        said = "\n".join(said)
        self.assertRegex(about.get("qemu", said), r"^(10\.[1-9]|1[1-9]|[2-9]\d)")
        for run in runs:
            with self.subTest(program=run["program"]):
                self.assertTrue(run["ok"], said)
                self.assertGreater(run["calls"], 0, "the program never reached the backend")
        self.assertEqual(len(runs), len(programs), said)
        self.assertEqual(self.daemon.sessions(), [])

    def test_a_device_process_that_dies_ends_its_sessions(self):
        lines = []

        def take(line):
            lines.append(line)
            if line == "@test ready":
                self.device.process.send_signal(signal.SIGKILL)

        about = vm.boot(self.kernel, self.initramfs, DEATH, take, device=self.device)
        whole = "\n".join(lines)
        self.assertEqual(about.get("status"), 0, whole)
        self.assertRegex(whole, r"@test program ended with [1-9]")
        self.assertRegex(whole, r"@test another ended with [1-9]")
        self.assertNotIn("@test dirty", whole)
        self.assertEqual(self.daemon.sessions(), [])


if __name__ == "__main__":
    unittest.main()
