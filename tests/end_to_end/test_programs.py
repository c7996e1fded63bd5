"""Every test program over every communicator of a host."""

import os
import sys
import unittest

import harness


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

    def test_a_kernel_sees_what_the_processor_writes_to_registered_memory(self):
        guest = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guest_program.py")
        run = self.daemon.run(sys.executable, "shm", [guest, "registered"])
        self.assertEqual((run.code, run.output), (0, "right\n"), run.errors + self.daemon.log())


if __name__ == "__main__":
    unittest.main()
