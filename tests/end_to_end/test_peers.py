"""Peer access between a VM's GPUs."""

import json
import os
import subprocess
import unittest
from unittest import mock

import harness

from .guests import eventually
from .test_moves import USER, migrate

GPUS = "--set=software.devices=2"
SOFTWARE = os.environ.get("PARAGPU_TEST_DEVICE", "software") == "software"
# For how long a program computes: longer than its two moves take. Of a busy GPU one takes up
# to 12 s, because the destination opens the GPU first.
SECONDS = "6" if SOFTWARE else "25"


def digest(run):
    """What a run computed."""
    return json.loads(run.output)["digest"]


class Peers(unittest.TestCase):
    """Of one host."""

    def daemon(self, *arguments):
        daemon = harness.Daemon(*arguments)
        self.addCleanup(daemon.stop)
        return daemon

    def test_over_every_communicator(self):
        here, alone = self.daemon(GPUS), self.daemon()
        for name, options in (("peerAccess", ()), ("deviceGraphs", ()), ("deviceGraphs", ("--apart",))):
            sized = ("--size", "20", "--json", *options)
            want = alone.run(name, "unix", sized)
            self.assertTrue(want.ok, want.output + want.errors)
            for communicator in harness.HOST_COMMUNICATORS:
                with self.subTest(name, options=options, communicator=communicator):
                    run = here.run(name, communicator, sized)
                    self.assertTrue(run.ok, run.output + run.errors + here.log())
                    self.assertEqual(digest(run), digest(want))

    def start(self, here, name, *arguments):
        """A program that computes for some seconds."""
        program = subprocess.Popen(
            [os.path.join(harness.PROGRAMS, name), "--size", "20", *arguments],
            env=here.guest_environment("shm"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        eventually(lambda: len(here.sessions()) == 2, "it uses both GPUs")
        return program

    def test_they_move_together(self):
        cases = [("peerAccess", "true"), ("deviceGraphs", "true")]
        # An NVIDIA GPU can always be shared.
        for name, shareable in [("peerAccess", "false"), *cases] if SOFTWARE else cases:
            with (
                self.subTest(name, shareable=shareable),
                mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_SHAREABLE=shareable),
            ):
                here, there = self.daemon(GPUS), self.daemon(GPUS)
                program = self.start(here, name, "--seconds", SECONDS)
                for _ in range(2):
                    code, moved, errors = migrate(here, "--vm", USER, "--to", f"unix://{there.socket}")
                    self.assertEqual(code, 0, f"{moved} {errors}\n{here.log()}\n{there.log()}")
                    eventually(lambda at=here: at.sessions() == [], "the source let go")
                    here, there = there, here
                output, _ = program.communicate(timeout=60)
                self.assertEqual(program.returncode, 0, output)

    def test_one_of_two_moves_where_neither_reaches_the_other(self):
        here, there = self.daemon(GPUS), self.daemon(GPUS)
        program = self.start(here, "deviceGraphs", "--apart", "--seconds", SECONDS)
        sessions = [session["id"] for session in here.sessions()]
        for session in sessions:
            code, moved, errors = migrate(here, str(session), "--to", f"unix://{there.socket}")
            self.assertEqual(code, 0, f"{moved} {errors}\n{here.log()}\n{there.log()}")
        output, _ = program.communicate(timeout=60)
        self.assertEqual(program.returncode, 0, output)

    def test_both_may_move_to_one_gpu(self):
        here, there = self.daemon(GPUS), self.daemon()
        program = self.start(here, "peerAccess", "--seconds", SECONDS)
        code, moved, errors = migrate(here, "--vm", USER, "--to", f"unix://{there.socket}")
        self.assertEqual(code, 0, f"{moved} {errors}\n{here.log()}\n{there.log()}")
        output, _ = program.communicate(timeout=60)
        self.assertEqual(program.returncode, 0, output)
