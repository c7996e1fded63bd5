"""Sessions that share a window with their program, moved to where it cannot be mapped: to
other hosts and into directories. Their pinned memory becomes copies, while
threads use it."""

import os
import tempfile
import unittest

import harness

from .guests import answer, ask, end_with, eventually, only_session, rounds, start_program
from .test_managed import can_migrate
from .test_moves import TwoHosts, address, far, host, migrate, move

HERE = os.path.dirname(os.path.abspath(__file__))
# Programs that leave their windows under load; more look for rarer orders.
PROGRAMS = int(os.environ.get("PARAGPU_TEST_PARTINGS", "3"))


class Windows(TwoHosts):
    """Programs that begin over shared memory."""

    def program(self, daemon, name, *arguments, begins="shm"):
        """Starts another guest program, over shared memory unless told otherwise."""
        return end_with(self, start_program(os.path.join(HERE, name), daemon, begins, *arguments))

    def calls(self, two):
        """Calls executed by each session, wherever it is."""
        return [session["calls"] for daemon in (self.one, two) for session in daemon.sessions()]

    def arrived(self, source, destination, communicator):
        """The one session is there and not here."""
        eventually(lambda: source.sessions() == [], "the source let go")
        via = [session["communicator"] for session in destination.sessions()]
        self.assertEqual(via, [communicator])

    def test_something_of_every_kind_goes_and_comes_home(self):
        guest = self.program(self.one, "kinds_program.py")
        self.assertEqual(guest.stdout.readline(), "ready\n")
        here, there = self.one, self.two
        for communicator in ("tcp", "shm", "tcp", "tcp"):
            # The program does not call meanwhile.
            code, _, errors = move(here, far(there), "--communicator", communicator)
            self.assertEqual(code, 0, errors + here.log() + there.log())
            for _ in range(2):
                self.assertEqual(answer(guest), "right", there.log())
            self.arrived(here, there, communicator)
            here, there = there, here
        guest.stdin.close()
        self.assertEqual(guest.wait(harness.PATIENCE), 0)

    def test_threads_that_use_pinned_memory_notice_nothing(self):
        for at in range(PROGRAMS):
            guest = self.program(self.one, "pinned_program.py", str(2 + at % 3))
            rounds(guest, 2 + at % 5)
            code, _, errors = move(self.one, far(self.two))
            self.assertEqual(code, 0, errors + self.one.log() + self.two.log())
            rounds(guest, 8)
            self.arrived(self.one, self.two, "tcp")
            code, _, errors = move(self.two, far(self.one), "--communicator", "shm")
            self.assertEqual(code, 0, errors + self.one.log() + self.two.log())
            rounds(guest, 8)
            self.arrived(self.two, self.one, "shm")
            guest.kill()
            eventually(lambda: self.one.sessions() == [], "its session is over")

    def shadows(self, daemon):
        """Bytes of the one session's memory of which the host keeps a copy."""
        (session,) = daemon.sessions()
        return session["shadow_memory"]

    @unittest.skipUnless(can_migrate(), "this process may not use userfaultfd(2)")
    def test_pinned_memory_joins_the_window_that_a_move_brings(self):
        for communicator in ("tcp", "unix"):
            guest = self.program(self.one, "pinned_program.py", begins=communicator)
            rounds(guest, 3)
            self.assertGreater(self.shadows(self.one), 0)
            code, _, errors = move(self.one, f"unix://{self.two.socket}", "--communicator", "shm")
            self.assertEqual(code, 0, errors + self.one.log() + self.two.log())
            # Also what its threads pin later, and while they go on.
            eventually(lambda: self.shadows(self.two) == 0, "nothing is copied any more")
            rounds(guest, 8)
            self.arrived(self.one, self.two, "shm")
            # The window goes along, is left, and what it held remains right.
            code, _, errors = move(self.two, f"unix://{self.one.socket}")
            self.assertEqual(code, 0, errors + self.one.log() + self.two.log())
            rounds(guest, 8)
            self.assertEqual(self.shadows(self.one), 0)
            for here, there, by in ((self.one, self.two, "tcp"), (self.two, self.one, "shm")):
                code, _, errors = move(here, far(there), "--communicator", by)
                self.assertEqual(code, 0, errors + here.log() + there.log())
                rounds(guest, 8)
                self.arrived(here, there, by)
            guest.kill()
            eventually(lambda: self.one.sessions() == [], "its session is over")

    def test_what_began_without_a_window_goes_on_with_one(self):
        guest = self.program(self.one, "kinds_program.py", begins="unix")
        self.assertEqual(guest.stdout.readline(), "ready\n")
        here, there = self.one, self.two
        for to, communicator in ((f"unix://{self.two.socket}", "shm"), (far(self.one), "tcp"), (far(self.two), "shm")):
            code, _, errors = move(here, to, "--communicator", communicator)
            self.assertEqual(code, 0, errors + here.log() + there.log())
            for _ in range(3):
                self.assertEqual(answer(guest), "right", there.log())
            self.arrived(here, there, communicator)
            here, there = there, here
        guest.stdin.close()
        self.assertEqual(guest.wait(harness.PATIENCE), 0)

    def test_a_window_that_stays_while_the_calls_come_another_way(self):
        one, two = self.daemon(harness.Daemon), self.daemon(harness.Daemon)
        for name in ("pinned_program.py", "kinds_program.py"):
            guest = self.program(one, name)
            if name == "kinds_program.py":
                self.assertEqual(guest.stdout.readline(), "ready\n")
            self.goes_on(guest, name)
            for here, there in ((one, two), (two, one)):
                # To another worker of this daemon, whose calls come over rings or
                # a socket of their own, and then to the other daemon.
                for communicator in ("unix", "shm"):
                    number = only_session(here)
                    code, _, errors = migrate(here, number, "--communicator", communicator)
                    self.assertEqual(code, 0, errors + here.log())
                    self.goes_on(guest, name)
                code, _, errors = move(here, f"unix://{there.socket}")
                self.assertEqual(code, 0, errors + here.log() + there.log())
                self.goes_on(guest, name)
                self.arrived(here, there, "shm")
            guest.kill()
            eventually(lambda: one.sessions() == [], "its session is over")

    def goes_on(self, guest, name):
        """The program's memory has the expected contents."""
        if name == "kinds_program.py":
            self.assertEqual(answer(guest), "right")
        else:
            rounds(guest, 5)

    def test_the_way_breaks_while_pinned_memory_is_sent(self):
        proxy = self.proxy(address(self.two.addresses["tcp"]))
        two = self.daemon(host, self.authority, f"--set=tcp.announce={proxy.address}")
        proxy.target = address(two.addresses["tcp"])
        proxy.at_limit = lambda: setattr(proxy, "limit", None)
        for limit in (60, 5000, 30_000, 150_000, 300_000):
            with self.subTest(limit=limit):
                guest = self.program(self.one, "pinned_program.py")
                rounds(guest, 3)
                proxy.limit = limit
                code, _, errors = move(self.one, far(two))
                # Rounds that it printed before say nothing.
                eventually(lambda: proxy.limit is None, f"it is cut: {errors}")
                eventually(lambda: len(self.calls(two)) == 1, "it is at one side")
                seen = self.calls(two)[0]
                eventually(lambda seen=seen: self.calls(two)[0] > seen + 100, "it goes on")
                self.assertIsNone(guest.poll(), "a byte is wrong")
                if limit > 60:  # inside the hello it did not come at all
                    self.assertEqual(code, 0, errors)
                guest.kill()
                for daemon in (self.one, two):
                    for session in daemon.sessions():
                        ask(daemon, "end", str(session["id"]))
                    eventually(lambda daemon=daemon: daemon.sessions() == [], "it is over")

    def test_the_session_is_at_one_side_wherever_the_link_breaks(self):
        guest = self.program(self.one, "pinned_program.py")
        rounds(guest, 1)
        target, outcomes = address(self.two.addresses["migration"]), set()
        for limit in (100, 2600, 5000, 8500, 20_000, 100_000, 400_000, 1 << 30):
            proxy = self.proxy(target, limit=limit)
            code, _, errors = move(self.one, f"tcp://{proxy.address}")
            rounds(guest, 2)
            outcomes.add(code == 0)
            if code == 0:
                break
            self.one_sentence(errors)
            self.assertEqual(len(self.one.sessions()), 1, self.one.log())
        self.assertEqual(outcomes, {False, True})

    def test_it_is_written_and_comes_back(self):
        folder = tempfile.TemporaryDirectory(prefix="paragpu-state-")
        self.addCleanup(folder.cleanup)
        state = os.path.join(folder.name, "state")
        guest = self.program(self.one, "kinds_program.py")
        self.assertEqual(guest.stdout.readline(), "ready\n")
        for arguments in ((), ("--end",), ("--end",)):
            code, _, errors = ask(self.one, "checkpoint", only_session(self.one), state, *arguments)
            self.assertEqual(code, 0, errors)
            if arguments:
                eventually(lambda: self.one.sessions() == [], "the session was checkpointed and ended")
                code, _, errors = ask(self.one, "restore", state)
                self.assertEqual(code, 0, errors + self.one.log())
            for _ in range(2):
                self.assertEqual(answer(guest), "right", self.one.log())
        # Copies move between daemons of one host with their connection, too.
        code, _, errors = move(self.one, f"unix://{self.two.socket}")
        self.assertEqual(code, 0, errors + self.two.log())
        self.assertEqual(answer(guest), "right", self.two.log())
        self.arrived(self.one, self.two, "shm")
        guest.stdin.close()
        self.assertEqual(guest.wait(harness.PATIENCE), 0)
