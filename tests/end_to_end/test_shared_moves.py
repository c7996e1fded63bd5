"""Sessions that share device memory: they move together, or stay. Both write to the
memory while they move, and no write is lost."""

import os
import subprocess
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import harness

from .guests import ask, end_with, eventually, finish, read_until
from .test_migration import Pair
from .test_moves import USER, far, host, migrate

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sharing_program.py")


def tell(guest, line):
    """Sends a line and returns the answer."""
    guest.stdin.write(line + "\n")
    guest.stdin.flush()
    return guest.stdout.readline().strip()


class Shared(Pair):
    """Memory is copied."""

    def to(self, daemon):
        """The words that send sessions to a daemon."""
        return "--to", f"unix://{daemon.socket}"

    def left(self, here):
        """Waits until no session is at a daemon any more."""
        eventually(lambda: here.sessions() == [], "the source let go")

    def sharers(self, communicators):
        """The process with the memory, and one for each communicator that opens it."""
        owner = self.program("unix", PROGRAM, "own")
        handle = owner.stdout.readline().split()[1]
        takers = [self.program(communicator, PROGRAM, "take", handle) for communicator in communicators]
        for taker in takers:
            read_until(taker, "ready")
        return owner, takers, handle

    def move(self, here, there):
        """Moves all of them."""
        code, moved, errors = migrate(here, "--vm", USER, *self.to(there))
        self.assertEqual(code, 0, f"{moved} {errors}\n{here.log()}\n{there.log()}")
        self.left(here)

    def check(self, processes, total):
        """All of them see the same."""
        for process in processes:
            self.assertEqual(tell(process, f"check {total}"), "right")

    def test_they_move_together_while_they_write(self):
        owner, takers, handle = self.sharers(("shm", "unix"))
        everybody, total = [owner, *takers], 0
        here, there = self.one, self.two
        for _ in range(4):
            for process in everybody:
                self.assertEqual(tell(process, "busy"), "busy")
            self.move(here, there)
            here, there = there, here
            for process in everybody:
                said = tell(process, "stop")
                self.assertRegex(said, r"added \d+$")
                total += int(said.split()[1])
            self.check(everybody, total)
        # The handle is still valid, also for new processes.
        self.assertEqual(tell(owner, "handle"), f"handle {handle}")
        self.one, one = here, self.one
        late = self.program("unix", PROGRAM, "take", handle)
        self.one = one
        read_until(late, "ready")
        tell(late, "busy")
        total += int(tell(late, "stop").split()[1])
        self.check([*everybody, late], total)
        self.move(here, there)
        self.check([*everybody, late], total)
        # Closed and freed, nothing is shared any more, and each moves alone.
        for process in (*takers, late, owner):
            self.assertEqual(tell(process, "free"), "freed")
        back = self.to(here)
        for session in there.sessions():
            code, _, errors = migrate(there, str(session["id"]), *back)
            self.assertEqual(code, 0, errors)

    def test_exported_memory_is_mapped_at_other_addresses(self):
        self.exchange("export", "import", "import")

    def test_memory_of_an_exported_pool_moves_too(self):
        self.exchange("pool", "pooled", "pooled")

    def exchange(self, *roles):
        """One process exports memory, others import it; all move while they write to it."""
        with tempfile.TemporaryDirectory(prefix="paragpu-export-") as folder:
            place = os.path.join(folder, "socket")
            everybody, total = [], 0
            for how in roles:
                everybody.append(self.program("unix", PROGRAM, how, place))
                read_until(everybody[-1], "ready")
            here, there = self.one, self.two
            for _ in range(2):
                for process in everybody:
                    self.assertEqual(tell(process, "busy"), "busy")
                self.move(here, there)
                here, there = there, here
                total += sum(int(tell(process, "stop").split()[1]) for process in everybody)
                self.check(everybody, total)

    def test_alone_they_stay(self):
        owner, (taker,), _ = self.sharers(("unix",))
        for session in self.one.sessions():
            code, _, errors = migrate(self.one, str(session["id"]), *self.to(self.two))
            self.assertNotEqual(code, 0)
            self.assertIn("moves together", errors)
            code, _, errors = ask(self.one, "checkpoint", str(session["id"]), os.path.join(self.one.folder.name, "no"))
            self.assertNotEqual(code, 0)
            self.assertIn("shares device memory", errors)
        self.check((owner, taker), 0)

    def test_others_join_them_while_they_stop(self):
        owner, (taker,), handle = self.sharers(("unix",))
        # While its kernel waits for it, it does not stop.
        waiting = self.guest("unix", "await")
        read_until(waiting, "waiting")
        with ThreadPoolExecutor() as pool:
            moving = pool.submit(migrate, self.one, "--vm", USER, *self.to(self.two))
            eventually(lambda: "is not complete, so it continues" in self.one.log(), "a session was asked to stop")
            late = [self.program(communicator, PROGRAM, "take", handle) for communicator in ("unix", "shm")]
            for process in late:
                read_until(process, "ready")
            self.assertFalse(moving.done())
            self.assertEqual(tell(waiting, "go on"), "answered")
            code, moved, errors = moving.result()
        self.assertEqual(code, 0, f"{moved} {errors}\n{self.one.log()}\n{self.two.log()}")
        self.left(self.one)
        everybody = (owner, taker, *late)
        for process in everybody:
            self.assertEqual(tell(process, "busy"), "busy")
        total = sum(int(tell(process, "stop").split()[1]) for process in everybody)
        self.check(everybody, total)

    def test_both_share_with_each_other(self):
        first, (second,), _ = self.sharers(("unix",))
        other = self.program("unix", PROGRAM, "own")
        handle = other.stdout.readline().split()[1]
        self.assertEqual(tell(first, f"open {handle}"), "opened")
        # The second process opens the first one's memory, the first the third one's.
        for process in (first, other):
            self.assertEqual(tell(process, "busy"), "busy")
        self.move(self.one, self.two)
        total = sum(int(tell(process, "stop").split()[1]) for process in (first, other))
        self.check((first, other), total)
        self.check((second,), 0)


class HandedOver(Shared):
    """The destination has the same GPU, and maps the same memory."""

    def setUp(self):
        shareable = mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_SHAREABLE="true")
        shareable.start()
        self.addCleanup(shareable.stop)
        super().setUp()


class ToAnotherGpu(Shared):
    """The destination has another GPU, which copies from the source's memory."""

    def setUp(self):
        gpus = mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_SHAREABLE="true", PARAGPU_HOST_SOFTWARE_DEVICES="2")
        gpus.start()
        self.addCleanup(gpus.stop)
        super().setUp()

    def to(self, daemon):
        return *super().to(daemon), "--to-gpu", "1" if daemon is self.two else "0"


class ToAnotherHost(Shared):
    """Over TLS; the programs follow over tcp."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="paragpu-authority-")
        self.addCleanup(folder.cleanup)
        authority = harness.certificates(os.path.join(folder.name, "ours"))
        for name in ("one", "two"):
            daemon = host(authority)
            self.addCleanup(daemon.stop)
            setattr(self, name, daemon)

    def to(self, daemon):
        return "--to", far(daemon)


class LeavingTheWindow(unittest.TestCase):
    """A program with two GPUs leaves its window. Its streams wait for each other's events as
    before: no call waits for a GPU that waits for the program."""

    def test_streams_wait_for_events_of_the_other_gpu(self):
        with tempfile.TemporaryDirectory(prefix="paragpu-authority-") as folder:
            ends = [*harness.as_host(harness.certificates(folder)), "--set=software.devices=2"]
            with harness.Daemon(*ends) as one, harness.Daemon(*ends) as two:
                program = subprocess.Popen(
                    [os.path.join(harness.PROGRAMS, "peerAccess"), "--seconds", "4"],
                    env=one.guest_environment("shm"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                end_with(self, program)
                eventually(lambda: len(one.sessions()) == 2, "both GPUs are used")
                code, moved, errors = migrate(one, "--vm", USER, "--to", far(two))
                self.assertEqual(code, 0, f"{moved} {errors}")
                status, output, said = finish(program)
                self.assertEqual(status, 0, output + said)


class BetweenGpus(Shared):
    """Of one host: both ends offer memory at one daemon."""

    def setUp(self):
        self.one = harness.Daemon("--set=software.devices=2")
        self.addCleanup(self.one.stop)
        self.two, self.gpu = self.one, 0

    def to(self, _):
        self.gpu = 1 - self.gpu
        return "--to-gpu", str(self.gpu)

    def left(self, here):
        def on_it():
            return {session["device"].split(":")[1] for session in here.sessions()}

        eventually(lambda: on_it() == {str(self.gpu)}, "all are on the GPU")

    # As between daemons.
    test_alone_they_stay = None
