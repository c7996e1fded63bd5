"""Green contexts of sessions that move, are checkpointed, or cannot move."""

import os
import tempfile
import unittest
from unittest import mock

import harness

from .guests import answer, ask, eventually, only_session, read_until
from .test_migration import Pair, migrate, moved

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "green_program.py")


class Green(unittest.TestCase):
    """Daemons with software GPUs of two, four and five threads. The program's parts
    have one thread, and two of the three that are left of four."""

    program = Pair.program

    def daemon(self, threads):
        with mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_THREADS=str(threads)):
            daemon = harness.Daemon()
        self.addCleanup(daemon.stop)
        return daemon

    def setUp(self):
        self.one = self.daemon(4)

    def start(self, communicator):
        guest = self.program(communicator, PROGRAM)
        read_until(guest, "ready")
        return guest

    def test_they_move(self):
        here, there = self.one, self.daemon(5)
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                guest = self.start(communicator)
                for _ in range(3):
                    moved(self, here, there)
                    here, there = there, here
                    self.assertEqual(answer(guest), "right")
                code, _, errors = migrate(here, there.socket)
                self.assertEqual(code, 0, errors)
                here, there = there, here
                guest.stdin.close()
                self.assertEqual(guest.wait(harness.PATIENCE), 0)
                eventually(lambda: here.sessions() + there.sessions() == [], "the session is over")

    def test_they_stay_where_a_part_would_be_too_small(self):
        small = self.daemon(2)
        guest = self.start("unix")
        code, _, errors = migrate(self.one, small.socket)
        self.assertNotEqual(code, 0)
        self.assertEqual(len(errors.strip().splitlines()), 1, errors)
        self.assertIn("GreenCreate", errors)
        self.assertEqual(len(self.one.sessions()), 1)
        for _ in range(2):
            self.assertEqual(answer(guest), "right")

    def test_they_are_written_and_come_back(self):
        guest = self.start("unix")
        with tempfile.TemporaryDirectory(prefix="paragpu-state-") as folder:
            state = os.path.join(folder, "state")
            code, _, errors = ask(self.one, "checkpoint", only_session(self.one), state, "--end")
            self.assertEqual(code, 0, errors)
            eventually(lambda: self.one.sessions() == [], "the session was checkpointed and ended")
            code, _, errors = ask(self.one, "restore", state)
            self.assertEqual(code, 0, errors + self.one.log())
            self.assertEqual(answer(guest), "right")
