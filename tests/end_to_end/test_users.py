"""Sessions whose workers are users of their VMs (`confine.users`): they move between
such daemons, to one without and back, and into a directory and out of it. The
guest compares every result. Needs root, which alone can assign users to workers."""

import os
import unittest
from unittest import mock

import harness

from . import test_migration
from .guests import answer, ask, eventually, only_session, read_until, replace_by_file, rounds
from .test_migration import migrate

# Of the first daemon and of the second; no user is of both.
FIRST, SECOND = "700000-700063", "710000-710063"


def settings(users, **others):
    """The environment of a daemon that gives its VMs these users."""
    return mock.patch.dict(os.environ, PARAGPU_HOST_CONFINE_USERS=users, **others)


def uid(process):
    """The effective user of a process."""
    with open(f"/proc/{process}/status", encoding="ascii") as lines:
        return int(next(line for line in lines if line.startswith("Uid:")).split()[2])


def is_of(users, worker):
    """Whether a user is a VM's of this range; of none, the daemon's."""
    if not users:
        return worker == os.geteuid()
    first, last = map(int, users.split("-"))
    return first < worker <= last


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Both(test_migration.Pair):
    """Between two daemons whose VMs have users."""

    users = FIRST, SECOND
    others = {}

    def setUp(self):
        for name, users in zip(("one", "two"), self.users):
            with settings(users, **self.others.get(name, {})):
                daemon = harness.Daemon()
            self.addCleanup(daemon.stop)
            setattr(self, name, daemon)

    def tearDown(self):
        for daemon in self.one, self.two:
            self.assertNotIn("is refused", daemon.log())

    def test_something_of_every_kind(self):
        test_migration.something_of_every_kind(self)

    def test_a_running_program_goes_to_and_fro(self):
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                guest = self.guest(communicator, "steps")
                rounds(guest, 2)
                self.assertTrue(is_of(self.users[0], uid(self.worker(self.one))))
                here, there = (self.one, self.users[0]), (self.two, self.users[1])
                for _ in range(4):
                    code, _, errors = migrate(here[0], there[0].socket)
                    self.assertEqual(code, 0, errors + here[0].log() + there[0].log())
                    eventually(lambda source=here[0]: source.sessions() == [], "the source let go")
                    here, there = there, here
                    self.assertTrue(is_of(here[1], uid(self.worker(here[0]))), "the worker has another user")
                    rounds(guest, 3)
                guest.kill()
                if communicator == "tcp":
                    # Over a network a killed program's session waits for a while.
                    ask(self.one, "end", only_session(self.one))
                eventually(lambda: self.one.sessions() == [], "the session is over")

    @staticmethod
    def worker(daemon):
        """The worker of a daemon's one session."""
        (session,) = daemon.sessions()
        return session["worker_pid"]

    def memory(self, *moved):
        """Moves a program with much memory; `moved` names the figures that account for it."""
        program = os.path.join(harness.ROOT, "tests/bench/moving_guest.py")
        size = 32 << 20
        guest = self.program("shm", program, "2", str(size), "3")
        read_until(guest, "ready")
        here, there = self.one, self.two
        for _ in range(3):
            done = here.migrate(only_session(here), f"unix://{there.socket}")
            self.assertGreaterEqual(sum(done[figure] for figure in moved), 2 * size, done)
            eventually(lambda source=here: source.sessions() == [], "the source let go")
            here, there = there, here
            self.assertEqual(answer(guest), "exact")

    def test_memory_is_the_same(self):
        # One GPU of NVIDIA's hands it over; the software GPU copies it unless it is shareable.
        self.memory("bytes", "handed_over_bytes")


class Away(Both):
    """From a daemon whose VMs have users to one whose have none, and back."""

    users = FIRST, ""


class HandedOver(Both):
    """Between workers that hand their memory over."""

    others = {name: {"PARAGPU_HOST_SOFTWARE_SHAREABLE": "true"} for name in ("one", "two")}

    def test_memory_is_the_same(self):
        self.memory("handed_over_bytes")


class HandedAway(HandedOver):
    """The same, to workers without such users."""

    users = FIRST, ""


class BetweenGpus(Both):
    """Between two GPUs of a host, of which one copies from the other."""

    others = {
        name: {
            "PARAGPU_HOST_SOFTWARE_SHAREABLE": "true",
            "PARAGPU_HOST_SOFTWARE_DEVICES": "2",
            "PARAGPU_HOST_DEVICE_INDICES": index,
        }
        for name, index in (("one", "0"), ("two", "1"))
    }

    def test_memory_is_the_same(self):
        self.memory("peer_copied_bytes")


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Checkpoint(test_migration.Checkpoint):
    """Into a directory and out of it, and on at a daemon without users."""

    def setUp(self):
        with settings(FIRST):
            super().setUp()

    def test_a_state_goes_to_a_daemon_without_users(self):
        guest = self.guest("unix", "steps")
        rounds(guest, 3)
        code, _, errors = ask(self.daemon, "checkpoint", "--end", only_session(self.daemon), self.folder)
        self.assertEqual(code, 0, errors)
        eventually(lambda: self.daemon.sessions() == [], "the session was checkpointed and ended")
        self.daemon.process.terminate()
        self.daemon.process.wait(harness.PATIENCE)
        # Another daemon at the same addresses.
        del self.daemon.environment["PARAGPU_HOST_CONFINE_USERS"]
        self.daemon.start()
        # Its first worker may not be ready yet.
        eventually(lambda: ask(self.daemon, "restore", self.folder)[0] == 0, "the session is restored")
        rounds(guest, 10)
        (session,) = self.daemon.sessions()
        self.assertEqual(uid(session["worker_pid"]), os.geteuid())

    def test_a_checkpoint_that_cannot_be_created_is_listed(self):
        guest = self.guest("unix", "steps")
        rounds(guest, 1)
        states = os.path.join(self.folder, "states")
        code, _, errors = ask(self.daemon, "checkpoint", only_session(self.daemon), states, "--every", "1s")
        self.assertEqual(code, 0, errors)
        replace_by_file(states, f"{states}.kept")
        eventually(lambda: self.daemon.sessions()[0]["checkpoint"]["error"], "it cannot be created")
        self.assertIn("it must be a directory", self.daemon.sessions()[0]["checkpoint"]["error"])
        os.remove(states)
        eventually(lambda: self.daemon.sessions()[0]["checkpoint"]["error"] is None, "it is written again")
        rounds(guest, 2)
