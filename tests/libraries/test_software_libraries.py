"""A program each of NVIDIA's libraries, as they come from their wheels, on the
software GPU: results are compared with the CPU by the programs themselves.

usage: test_software_libraries.py [PROGRAM...]

The programs are those of tests/libraries/programs, which `make test-libraries`
builds. Ends with 1 if one fails.
"""

import os
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# pylint: disable=wrong-import-position
import harness

PROGRAMS = os.path.join(harness.ROOT, "out", "libraries")
LIBRARIES = os.path.join(harness.ROOT, ".cache", "libraries", "lib")
# Libraries of CUDA 13.0 hold no machine code for it, so they choose their PTX.
CAPABILITY = "--set=software.compute_capability=13.0"
# A program that hangs ends here.
PATIENCE = 600


class Libraries(unittest.TestCase):
    """One daemon for all."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(harness.Daemon(CAPABILITY))

    def run_program(self, name, daemon=None):
        """Runs a program; it must find its results right and say nothing else."""
        daemon = daemon or self.daemon
        path = os.path.join(PROGRAMS, name)
        self.assertTrue(os.path.exists(path), f"{path} is not there: run `make test-libraries`")
        begin = time.monotonic()
        run = daemon.run(path, "shm", timeout=PATIENCE, libraries=LIBRARIES)
        print(f"{name}: {time.monotonic() - begin:.0f} s, {run.output.strip()}", file=sys.stderr, flush=True)
        self.assertEqual(run.code, 0, f"{run.output}{run.errors}\nthe daemon said:\n{daemon.log()[-3000:]}")
        self.assertNotIn("not supported", run.errors)
        self.assertEqual(daemon.left(), [])

    def test_cusparse_with_more_threads_than_cores(self):
        """Its blocks pass results to each other, and are preempted between any two accesses."""
        with harness.Daemon(CAPABILITY, "--set=software.threads=4") as daemon:
            self.run_program("cusparse", daemon)

    def test_cublas_has_no_integer_products_in_ptx(self):
        """Its heuristics refuse the device's architecture, as on every GPU that it does not know."""
        run = self.daemon.run(os.path.join(PROGRAMS, "cublas"), "shm", ["--integers"], libraries=LIBRARIES)
        self.assertEqual(run.code, 1, run.output + run.errors)
        self.assertIn("cublasGemmEx", run.output)
        self.assertIn("gave status 15 ", run.output)

    def test_machine_code_alone_fails_at_its_launch(self):
        """A device that cuBLAS knows gets machine code, which the software GPU refuses: no zeros."""
        with harness.Daemon() as known:
            run = known.run(os.path.join(PROGRAMS, "cublas"), "shm", libraries=LIBRARIES)
        self.assertEqual(run.code, 1, run.output + run.errors)
        self.assertRegex(run.output, "FAILED .* gave status ")


def add(name):
    """One test a library."""
    setattr(Libraries, f"test_{name}", lambda self: self.run_program(name))


for each in ("cublas", "cublasLt", "cudnn", "cusparse", "cufft", "cusolver", "curand", "cccl"):
    add(each)

if __name__ == "__main__":
    unittest.main(verbosity=2)
