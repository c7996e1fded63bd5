"""Several programs that continue from one checkpoint."""

import json
import os
import tempfile
import unittest

import harness

from wire import wire

from .guests import ask, end_with, eventually, only_session, read_until, start_program

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "clones_program.py")
ARENA, CHUNK = 0x100000000000, 2 << 20


class Copies(unittest.TestCase):
    """Clones of a program, each with a copy of its session."""

    def setUp(self):
        self.daemon = harness.Daemon("--warm=1", "--set=limits.per_vm=3")
        self.addCleanup(self.daemon.stop)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "state")

    def tell(self, guest, line):
        """Tells a guest something."""
        guest.stdin.write(line + "\n")
        guest.stdin.flush()

    def results(self, guest, count):
        """The results of that many clones, by number."""
        lines = [read_until(guest, "result").split() for _ in range(count)]
        return {int(number): digest for _, number, digest in lines}

    def cloned(self, communicator, clones):
        """A program with clones, whose session is written and ended."""
        guest = end_with(self, start_program(PROGRAM, self.daemon, communicator, str(clones)))
        read_until(guest, "ready")
        self.tell(guest, "clone")
        read_until(guest, "cloned")
        self.ask("checkpoint", only_session(self.daemon), self.folder, "--end")
        eventually(lambda: self.daemon.sessions() == [], "the session was checkpointed and ended")
        # It would have a copy as well.
        self.tell(guest, "leave")
        read_until(guest, "left")
        return guest

    def ask(self, *arguments):
        """A command that succeeds; its output."""
        code, output, errors = ask(self.daemon, *arguments)
        self.assertEqual(code, 0, errors + self.daemon.log())
        return output

    def refused(self, *arguments):
        """A command that fails; its one sentence."""
        code, _, errors = ask(self.daemon, *arguments)
        self.assertNotEqual(code, 0)
        self.assertEqual(len(errors.strip().splitlines()), 1, errors)
        return errors

    def unmoved(self, communicator, numbers):
        """The same results of programs that nothing happens to."""
        results = {}
        for number in numbers:
            guest = end_with(self, start_program(PROGRAM, self.daemon, communicator, "0"))
            self.tell(guest, f"alone {number}")
            results |= self.results(guest, 1)
            guest.kill()
            eventually(lambda: self.daemon.sessions() == [], "the session is over")
        return results

    def clones_continue(self, communicator):
        """Three clones of a program continue, two of them from the first copies."""
        unmoved = self.unmoved(communicator, range(3))
        self.assertEqual(len(set(unmoved.values())), 3)
        guest = self.cloned(communicator, 3)
        # One comes before there are copies, and waits.
        self.tell(guest, "go 0")
        output = self.ask("restore", self.folder, "--copies", "2")
        self.assertIn("2 copies wait for their programs", output)
        results = self.results(guest, 1)
        self.assertEqual(len(self.daemon.sessions()), 2)
        self.tell(guest, "go 1")
        results |= self.results(guest, 1)
        first = {session["id"]: session for session in self.daemon.sessions()}
        self.assertEqual(len(first), 2)
        for session in first.values():
            self.assertGreaterEqual(session["device_memory"], 5 << 20)
            self.assertEqual(session["activity"], "serving")
        # There is no copy for the third one: it waits until the file is used again.
        self.tell(guest, "go 2")
        done = json.loads(self.ask("restore", self.folder, "--copies", "1", "-o", "json"))
        self.assertGreater(done["bytes"], 4 << 20)
        results |= self.results(guest, 1)
        self.assertEqual(results, unmoved)
        self.assertEqual(len(self.daemon.sessions()), 3)
        # Each has a token of its own: the session of one is written and restored again.
        with tempfile.TemporaryDirectory() as folder:
            for session in sorted(first):
                own = os.path.join(folder, str(session))
                self.ask("checkpoint", str(session), own, "--end")
                eventually(lambda: len(self.daemon.sessions()) == 2, "it was checkpointed and ended")
                restored = json.loads(self.ask("restore", own, "-o", "json"))
                self.assertIn(restored["new_session"], [one["id"] for one in self.daemon.sessions()])
        for number in range(3):
            self.tell(guest, f"go {number}")
        again = self.results(guest, 3)
        self.assertEqual(set(again), {0, 1, 2})
        self.assertEqual(len(set(again.values())), 3)
        self.assertFalse(set(again.values()) & set(results.values()))

    def test_clones_over_unix(self):
        self.clones_continue("unix")

    def test_clones_over_tcp(self):
        self.clones_continue("tcp")

    def test_copies_count_against_limits(self):
        self.cloned("unix", 0)
        error = self.refused("restore", self.folder, "--copies", "4")
        self.assertIn("3 of 4 copies are restored", error)
        self.assertIn("already has 3 sessions", error)
        self.assertEqual(len(self.daemon.sessions()), 3)
        self.assertIn("already has 3 sessions", self.refused("restore", self.folder, "--copies", "1"))
        # They wait for the same program.
        self.assertIn("is a copy of the one that", self.refused("restore", self.folder))
        self.ask("end", str(self.daemon.sessions()[0]["id"]))
        eventually(lambda: len(self.daemon.sessions()) == 2, "one has ended")
        self.ask("restore", self.folder, "--copies", "1")

    def test_a_damaged_file_is_no_copy(self):
        self.cloned("unix", 0)
        state = os.path.join(self.folder, "session.paragpu")
        with open(state, "r+b") as file:
            file.seek(CHUNK)
            file.write(b"damaged")
        self.assertIn("0 of 2 copies are restored: the state is damaged", self.refused("restore", self.folder, "--copies", "2"))
        eventually(lambda: self.daemon.sessions() == [], "nothing is left")

    def test_one_that_runs_has_no_copies(self):
        session = self.opened()
        self.ask("checkpoint", str(session.welcome["session"]), self.folder)
        self.assertIn("is the one that", self.refused("restore", self.folder, "--copies", "2"))
        self.assertEqual(session.call("Ping", value=5)[0], 5)

    def opened(self, **options):
        """A session of the test's own."""
        session = wire.Session(self.daemon.socket, **options)
        self.addCleanup(session.close)
        return session

    def put_away(self):
        """A session of the test's own that was checkpointed and ended."""
        session = self.opened()
        session.call("MemMap", address=ARENA, size=CHUNK)
        session.post("Memset", destination=ARENA, pitch=0, value=7, element=1, width=64, height=1, stream=0)
        session.call("ContextSynchronize")
        session.call("Ping", value=1)
        self.ask("checkpoint", str(session.welcome["session"]), self.folder, "--end")
        eventually(lambda: self.daemon.sessions() == [], "the session was checkpointed and ended")
        return session

    def restart(self):
        """Kills the daemon and starts another one."""
        self.daemon.process.kill()
        self.daemon.process.wait(harness.PATIENCE)
        self.daemon.start()

    def test_copies_outlive_their_daemon(self):
        session = self.put_away()
        self.ask("restore", self.folder, "--copies", "2")
        self.restart()
        self.assertIn("is a copy of the one that", self.refused("restore", self.folder))
        # One that is claimed is no other program's, whichever daemon is there.
        claimants = [self.opened(resumes=session)]
        self.restart()
        claimants.append(self.opened(resumes=session))
        self.restart()
        self.ask("restore", self.folder, "--copies", "1")
        claimants.append(self.opened(resumes=session))
        self.assertEqual(len({claimant.welcome["token"] for claimant in claimants}), 3)
        for claimant in claimants:
            self.assertEqual(claimant.call("CopyFromDevice", source=ARENA, size=64, stream=0)[1], bytes([7]) * 64)
            self.assertEqual(self.opened(resumes=claimant).welcome["session"], claimant.welcome["session"])

    def test_only_the_token_claims_a_copy(self):
        session = self.put_away()
        token = session.welcome["token"]
        self.ask("restore", self.folder, "--copies", "2")
        # Neither another token nor none nor the token with another device.
        session.welcome["token"] = bytes([1]) * 16
        with self.assertRaises(ConnectionRefusedError):
            self.opened(resumes=session)
        self.opened().close()
        session.welcome["token"] = token
        claimants = [self.opened(resumes=session) for _ in range(2)]
        tokens = {token, *(claimant.welcome["token"] for claimant in claimants)}
        self.assertEqual(len(tokens), 3)
        self.assertEqual(len({claimant.welcome["session"] for claimant in claimants}), 2)
        for value, claimant in enumerate(claimants):
            claimant.post("Memset", destination=ARENA, pitch=0, value=value, element=1, width=32, height=1, stream=0)
        for value, claimant in enumerate(claimants):
            _, back = claimant.call("CopyFromDevice", source=ARENA, size=64, stream=0)
            self.assertEqual(back, bytes([value]) * 32 + bytes([7]) * 32)
            # By its own token it is found again.
            again = self.opened(resumes=claimant)
            self.assertEqual(again.welcome["session"], claimant.welcome["session"])
            self.assertEqual(again.call("Ping", value=value)[0], value)
