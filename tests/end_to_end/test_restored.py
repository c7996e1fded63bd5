"""A daemon never has both a session and one that was restored from a checkpoint of it: a program
that reconnects could find either, by the same token."""

import os
import tempfile
import unittest

import harness

from .guests import ask, eventually, only_session, rounds
from .test_moves import Sessions, TwoHosts, far, migrate, move

WAITS = "is restored from a checkpoint of it and waits for the same program"
COPY = "is a copy of it and waits for a clone of its program"


class Restored(TwoHosts):
    """A program at one host, and its checkpoint at the other."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="paragpu-restored-")
        self.addCleanup(folder.cleanup)
        self.state = os.path.join(folder.name, "state")
        self.program = self.guest(self.one, "tcp", "steps")
        rounds(self.program, 1)
        self.succeeds(self.one, "checkpoint", only_session(self.one), self.state)

    def succeeds(self, daemon, *order):
        code, _, errors = ask(daemon, *order)
        self.assertEqual(code, 0, errors)

    def stays(self, *words):
        """No order moves the session to the other host, each for one reason."""
        number, (session,) = only_session(self.one), self.one.sessions()
        here, there = f"unix://{self.two.socket}", far(self.two)
        for order in ((number, here), (number, there), (number, here, "--communicator", "shm")):
            code, _, errors = migrate(self.one, order[0], "--to", *order[1:])
            self.assertEqual(code, 1)
            self.one_sentence(errors, order[1], *words)
        code, moved, errors = migrate(self.one, "--vm", session["vm"], "--to", here)
        self.assertEqual((code, [one["moved"] for one in moved]), (1, [False]), errors)
        self.one_sentence(moved[0]["error"], *words)
        rounds(self.program, 2)

    def moves(self, source, destination):
        """The session moves, and its program finds it again."""
        code, _, errors = move(source, f"unix://{destination.socket}")
        self.assertEqual(code, 0, errors)
        rounds(self.program, 2)

    def test_a_session_does_not_come_to_a_restored_one(self):
        self.succeeds(self.two, "restore", self.state)
        number = only_session(self.two)
        self.stays(f"session {number} ", WAITS)
        self.succeeds(self.two, "end", number)
        eventually(lambda: self.two.sessions() == [], "the restored session is over")
        self.moves(self.one, self.two)
        # Nor is one restored beside it.
        for copies in ((), ("--copies", "1")):
            code, _, errors = ask(self.two, "restore", self.state, *copies)
            self.assertEqual(code, 1)
            self.one_sentence(errors, f"session {only_session(self.two)} of this host is the one")
        rounds(self.program, 2)
        self.moves(self.two, self.one)

    def test_a_session_does_not_come_to_copies_of_it(self):
        self.succeeds(self.two, "restore", self.state, "--copies", "2")
        for session in self.two.sessions():
            self.stays("session ", COPY)
            self.succeeds(self.two, "end", str(session["id"]))
        eventually(lambda: self.two.sessions() == [], "the copies are over")
        self.moves(self.one, self.two)

    def test_a_session_does_not_come_back_to_a_restored_one(self):
        self.moves(self.one, self.two)
        eventually(lambda: self.one.sessions() == [], "the source let go")
        self.succeeds(self.one, "restore", self.state)
        code, _, errors = move(self.two, f"unix://{self.one.socket}")
        self.assertEqual(code, 1)
        self.one_sentence(errors, WAITS)
        rounds(self.program, 2)

    def test_a_session_is_restored_once(self):
        self.succeeds(self.two, "restore", self.state)
        for copies in ((), ("--copies", "1")):
            code, _, errors = ask(self.two, "restore", self.state, *copies)
            self.assertEqual(code, 1)
            self.one_sentence(errors, f"session {only_session(self.two)} of this host is the one")


class Waiting(Sessions):
    """A program whose session was checkpointed and ended."""

    def test_one_that_ends_leaves_no_connection(self):
        daemon = self.daemon(harness.Daemon)
        guest = self.guest(daemon, "unix", "steps")
        rounds(guest, 1)
        with tempfile.TemporaryDirectory() as folder:
            code, _, errors = ask(daemon, "checkpoint", only_session(daemon), folder, "--end")
        self.assertEqual(code, 0, errors)
        eventually(lambda: daemon.sessions() == [], "its worker is gone")
        eventually(lambda: connections(daemon) == 1, "it waits")
        guest.kill()
        eventually(lambda: connections(daemon) == 0, "its connection is closed")

    def test_a_later_daemon_knows_whether_its_program_came(self):
        daemon = self.daemon(harness.Daemon)
        guest = self.guest(daemon, "unix", "steps")
        rounds(guest, 1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        checkpoint = lambda *options: ask(daemon, "checkpoint", only_session(daemon), folder.name, *options)
        restore = lambda: ask(daemon, "restore", folder.name)[0] == 0
        for comes in (True, False):
            with self.subTest(comes=comes):
                self.assertEqual(checkpoint("--end")[0], 0)
                eventually(lambda: daemon.sessions() == [], "its worker is gone")
                if not comes:
                    guest.kill()
                eventually(restore, "a worker is warm")
                if comes:
                    eventually(lambda: daemon.sessions()[0]["communicator"] == "unix", "its program is back")
                daemon.process.kill()
                daemon.process.wait(harness.PATIENCE)
                daemon.start()
                code, _, errors = checkpoint()
                self.assertEqual(code, 0 if comes else 1, errors)
                self.assertEqual("is restored and waits for its program" in errors, not comes, errors)


def connections(daemon):
    """Number of accepted connections of the socket for guests."""
    with open("/proc/net/unix", encoding="utf-8") as file:
        fields = [line.split() for line in file]
    return sum(line[-1] == daemon.socket and line[5] == "03" for line in fields)


if __name__ == "__main__":
    unittest.main()
