"""Programs whose own memory lies where device memory does."""

import json
import os
import sys
import unittest

import harness

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "own_memory_program.py")
INVALID_VALUE, HOST = 1, 1
COPIES = {"to": [0, True], "of": [0, 0x77], "any way": [0, 0x78]}
REGISTRATION = [INVALID_VALUE, 0, 0, HOST, 0, 0x78]


class OwnMemory(unittest.TestCase):
    """The program over communicators of one host."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(harness.Daemon())

    def test_it_stays_the_programs(self):
        for communicator in ("shm", "unix"):
            with self.subTest(communicator):
                run = self.daemon.run(sys.executable, communicator, [PROGRAM])
                self.assertEqual(run.code, 0, run.output + run.errors)
                said = json.loads(run.output)
                self.assertTrue(said["apart"])
                self.assertEqual(said["copies"], 5 * [COPIES])
                self.assertEqual(said["registration"], 5 * [REGISTRATION])
        self.assertEqual(self.daemon.left(), [])
