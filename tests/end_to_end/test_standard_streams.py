"""Programs without standard streams, or with such that cannot be written: what they print must
not go into a connection, and what is printed to them changes no result."""

import os
import subprocess
import sys
import unittest

import harness

HERE = os.path.dirname(os.path.abspath(__file__))
# Closes its standard streams, uses CUDA, and ends with 1 + N if descriptor N is not free, with 0
# if all is well.
PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
from driver import Guest
for number in range(3):
    os.close(number)
guest = Guest()
memory = guest.allocate(4096)
for number in range(3):
    try:
        os.fstat(number)
    except OSError:
        continue
    os._exit(1 + number)
for number in range(3):
    os.open("/dev/null", os.O_RDWR)
os.write(1, b"text")
guest.cuda.cuCtxSynchronize()
os._exit(0)
"""


class StandardStreams(unittest.TestCase):
    """Of programs and of what serves them."""

    def test_no_connection_takes_their_numbers(self):
        with harness.Daemon() as daemon:
            for communicator in ("shm", "unix", "tcp"):
                with self.subTest(communicator):
                    command = [sys.executable, "-c", PROGRAM, HERE]
                    done = subprocess.run(command, env=daemon.guest_environment(communicator), timeout=60, check=False)
                    self.assertEqual(done.returncode, 0)

    def test_a_module_that_has_no_room_names_the_limit(self):
        with harness.Daemon("--set=limits.per_vm_host_memory=16KiB") as daemon:
            command = [os.path.join(harness.PROGRAMS, "vectorAdd")]
            environment = daemon.guest_environment("unix")
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("limits.per_vm_host_memory", done.stderr)

    def test_a_full_disk_under_standard_error_changes_no_result(self):
        # The program's kernels fail on purpose, and each failure is explained there.
        with harness.Daemon() as daemon, open("/dev/full", "w", encoding="utf-8") as full:
            command = [os.path.join(harness.PROGRAMS, "errors")]
            environment = daemon.guest_environment("unix")
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=full, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stdout)
