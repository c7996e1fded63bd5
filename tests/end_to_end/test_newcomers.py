"""Programs that begin while the sessions of their VM move together. They move along, and share
memory with the others. `test_shared_moves.py` has those that begin while the others stop."""

import contextlib
import os
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor

import harness

from .guests import end_with, eventually, read_until, rounds, start_program
from .test_moves import USER, Sessions, far, host, migrate
from .test_shared_moves import PROGRAM, tell

# What a daemon logs when a program has reached its session there.
FOLLOWED = "session continues over another connection"


class Newcomers(Sessions):
    """To another host. A program or worker that is stopped (SIGSTOP) holds the move up."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="paragpu-authority-")
        self.addCleanup(folder.cleanup)
        authority = harness.certificates(os.path.join(folder.name, "ours"))
        self.one, self.two = self.daemon(host, authority), self.daemon(host, authority)
        owner = self.program("unix", "own")
        self.handle = owner.stdout.readline().split()[1]
        self.sharers = [owner]
        # It shares nothing with the others.
        self.bystander = self.guest(self.one, "unix", "steps")
        rounds(self.bystander, 1)

    def program(self, communicator, *arguments):
        return end_with(self, start_program(PROGRAM, self.one, communicator, *arguments))

    def take(self):
        """Starts programs that open the memory, over different communicators."""
        takers = [self.program(communicator, "take", self.handle) for communicator in ("unix", "shm")]
        self.sharers += takers
        return takers

    @contextlib.contextmanager
    def move_held(self, pid):
        """Moves the VM, with a process stopped meanwhile; yields the outcome to come."""
        with ThreadPoolExecutor() as pool:
            os.kill(pid, signal.SIGSTOP)
            try:
                moved = pool.submit(migrate, self.one, "--vm", USER, "--to", far(self.two))
                self.move(2)
                yield moved
            finally:
                os.kill(pid, signal.SIGCONT)

    def move(self, count):
        """Waits until that many sessions move."""
        activities = lambda: [session["activity"] for session in self.one.sessions()]
        eventually(lambda: activities() == ["moving"] * count, f"{count} sessions move")

    def check(self, daemon):
        """All are at this daemon, and those that share the memory see what each writes."""
        eventually(lambda: len(daemon.sessions()) == 4, "all are there")
        for process in self.sharers:
            self.assertEqual(tell(process, "busy"), "busy")
        total = sum(int(tell(process, "stop").split()[1]) for process in self.sharers)
        for process in self.sharers:
            self.assertEqual(tell(process, f"check {total}"), "right")
        rounds(self.bystander, 2)

    def have_moved(self, moved):
        """All are at the destination, by the report too."""
        code, report, errors = moved.result()
        self.assertEqual(code, 0, f"{report} {errors}\n{self.one.log()}\n{self.two.log()}")
        self.assertEqual([session["moved"] for session in report], [True] * 4)
        self.assertEqual({session["vm"] for session in self.two.sessions()}, {USER})
        self.check(self.two)
        self.assertEqual(self.one.sessions(), [])

    def test_during_pre_copy(self):
        found = [one["worker_pid"] for one in self.one.sessions() if one["guest_pid"] == self.bystander.pid]
        # It takes no order, so the others do not stop.
        with self.move_held(found[0]) as moved:
            for taker in self.take():
                read_until(taker, "ready")
            self.move(4)
        self.have_moved(moved)

    def test_once_all_are_stopped(self):
        # It does not follow, so the others are not committed.
        with self.move_held(self.bystander.pid) as moved:
            eventually(lambda: FOLLOWED in self.two.log(), "the other one has followed")
            takers = self.take()
            self.move(4)
        for taker in takers:
            read_until(taker, "ready")
        self.have_moved(moved)

    def test_they_stay_with_the_others(self):
        with self.move_held(self.bystander.pid) as moved:
            eventually(lambda: FOLLOWED in self.two.log(), "the other one has followed")
            takers = self.take()
            self.move(4)
            self.two.process.kill()
            eventually(lambda: "an order to a session completed" in self.one.log(), "the move is over")
        for taker in takers:
            read_until(taker, "ready")
        code, report, _ = moved.result()
        self.assertEqual((code, [session["moved"] for session in report]), (1, [False] * 4))
        self.check(self.one)
