"""Round trips over a link: how often a program sends something that it could not have sent
before an answer arrived. Nothing is timed.

While a step is issued, all that the host sends is held back.
"""

import os
import subprocess
import sys
import threading
import unittest

import harness
from harness.link import Link

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "link_program.py")
SHARED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shared_pinned_program.py")
PATIENCE = 120
# Steps of which one makes a single round trip, even if the processors are busy.
STEPS = 10


class Links(unittest.TestCase):
    """A training step over a link."""

    def step(self, program, link, how):
        """Takes a step; its round trips. The program issues all of it without an answer."""
        link.open.clear()
        # What it sends first follows no answer that it needs.
        before = link.trips
        link.answered = False
        program.stdin.write(f"{how}\n")
        program.stdin.flush()
        self.assertEqual(program.stdout.readline(), "issued\n")
        link.open.set()
        self.assertEqual(program.stdout.readline(), "done\n")
        return 1 + link.trips - before

    def test_a_step_takes_one_round_trip(self):
        with harness.Daemon() as daemon, Link(daemon.addresses["tcp"]) as link:
            environment = {**daemon.guest_environment("tcp"), "PARAGPU_TCP_ADDRESS": link.address}
            with subprocess.Popen(
                [sys.executable, PROGRAM], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as program:
                clock = threading.Timer(PATIENCE, program.kill)
                clock.start()
                try:
                    self.assertEqual(program.stdout.readline(), "ready\n")
                    # The first one loads the kernel.
                    self.step_of_any_length(program)
                    for how in ("wait", "event", "item", "pinned"):
                        with self.subTest(how):
                            # What is due anyway, such as an acknowledgement, may follow an answer.
                            self.assertIn(1, (self.step(program, link, how) for _ in range(STEPS)))
                    program.stdin.close()
                    self.assertEqual(program.wait(PATIENCE), 0)
                finally:
                    program.kill()
                    clock.cancel()

    def test_threads_share_pinned_memory(self):
        with harness.Daemon() as daemon:
            for communicator in ("unix", "tcp"):
                with self.subTest(communicator):
                    done = subprocess.run(
                        [sys.executable, SHARED, "6", "150"],
                        env=daemon.guest_environment(communicator),
                        timeout=PATIENCE,
                        check=False,
                        capture_output=True,
                        text=True,
                    )
                    self.assertEqual((done.stdout, done.returncode), ("done\n", 0), done.stderr)

    def step_of_any_length(self, program):
        """Takes a step while the link is open."""
        program.stdin.write("wait\n")
        program.stdin.flush()
        self.assertEqual([program.stdout.readline() for _ in range(2)], ["issued\n", "done\n"])
