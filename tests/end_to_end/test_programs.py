"""Every test program over every communicator of a host."""

import os
import subprocess
import sys
import tempfile
import unittest

import harness


def digest(run):
    """The word of a program's line that tells its results."""
    return next(word for word in run.output.split() if word.startswith("digest="))


class Programs(unittest.TestCase):
    """The software GPU gives right results, whatever carries the calls."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def test_every_program_over_every_communicator(self):
        for communicator in harness.HOST_COMMUNICATORS:
            for program in harness.program_names():
                with self.subTest(program=program, communicator=communicator):
                    run = self.daemon.run(program, communicator)
                    self.assertEqual(run.code, 0, run.output + run.errors)
                    self.assertGreater(run.counters["calls"], 0, "the program never reached the backend")
        self.assertEqual(self.daemon.left(), [])

    def test_programs_with_the_shared_runtime_of_cuda_12(self):
        """That of 12.9, under programs that use nothing in which it differs from 13's; NAME-static-12.9 carry the static one."""
        cache = os.path.join(harness.ROOT, ".cache")
        runtime = os.path.join(cache, "runtimes/12.9.79/libcudart.so.12")
        sources = os.path.join(harness.ROOT, "tests/programs")
        compiler = [os.path.join(cache, "cuda-13.0/bin/nvcc"), "-std=c++17", "-O1", "-arch=compute_75", "-cudart", "none"]
        for program in ("vectorAdd", "streamsAndEvents"):
            native = self.daemon.run(program, "shm")
            with self.subTest(program), tempfile.TemporaryDirectory() as folder:
                built = os.path.join(folder, program)
                linked = ["-Xlinker", runtime, "-lpthread", "-ldl", "-lrt"]
                subprocess.run([*compiler, f"{program}.cu", *linked, "-o", built], cwd=sources, check=True, timeout=200)
                run = self.daemon.run(built, "shm")
                self.assertEqual(run.code, 0, run.output + run.errors)
                self.assertEqual(digest(run), digest(native))
                self.assertGreater(run.counters["calls"], 0, "the program never reached the backend")

    def test_a_kernel_sees_what_the_processor_writes_to_registered_memory(self):
        guest = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guest_program.py")
        run = self.daemon.run(sys.executable, "shm", [guest, "registered"])
        self.assertEqual((run.code, run.output), (0, "right\n"), run.errors + self.daemon.log())


if __name__ == "__main__":
    unittest.main()
