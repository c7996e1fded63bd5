"""Faults during moves: at each step
of the transfer, the link is cut, or a worker, a daemon or the program is killed.

Somebody stands between the two workers who knows the records of the transfer:
a fault happens while one of them is held back, so that each step is met, always
the same, however fast the machine is. PARAGPU_TEST_FAULTS is how many of all
pairs of step and fault are tried (default 8, chosen by PARAGPU_TEST_SEED), or
"all".
"""

import array
import itertools
import os
import random
import signal
import socket
import struct
import tempfile
import threading
import unittest
from unittest import mock

import harness

from .guests import ask, end_with, eventually, finish, only_session, read_until, rounds, start, workers
from .test_moves import TwoHosts, address, far, host, move

FRAME = struct.Struct("<IHHQ")
RECORD = struct.Struct("<HHI16s")
CONNECTION, SHARED = 37, 44
# Records that are followed by a frame with descriptors, and the name of that frame.
DESCRIPTORS = {CONNECTION: "descriptors", SHARED: "memory"}
# Sender, kind (named in state.rs) and index among the sender's records of that kind.
STEPS = {
    "arrive": ("source", "frame", 0),
    "welcome": ("destination", "frame", 0),
    "head": ("source", 1, 0),
    "images": ("source", 39, 0),
    "missing": ("destination", 32, 0),
    "objects": ("source", 4, 0),
    "recreated": ("destination", 33, 0),
    "contents": ("source", 5, 0),
    "machine": ("source", 6, 0),
    "connection": ("source", CONNECTION, 0),
    "descriptors": ("source", "descriptors", 0),
    "attached": ("destination", 33, 1),
    "commit": ("source", 38, 0),
    "served": ("destination", 33, 2),
}
# Where all device memory is handed over there are no contents, and before the objects are recreated:
HANDING_OVER = {
    **{step: place for step, place in STEPS.items() if step != "contents"},
    "domain": ("source", 43, 0),
    "same domain": ("destination", 43, 0),
    "mappings": ("source", SHARED, 0),
    "memory": ("source", "memory", 0),
    "mapped": ("destination", 45, 0),
}
FAULTS = ("link", "source worker", "destination worker", "source daemon", "destination daemon", "program")
ORDER = list(STEPS)


def close_all(descriptors):
    """Closes what was received."""
    for descriptor in descriptors:
        os.close(descriptor)


class Between:
    """Between a source and a daemon: passes records and descriptors on one by
    one, and calls `fault` while it holds the one of `step`."""

    def __init__(self, target, step, fault):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-between-")
        self.path = os.path.join(self.folder.name, "between.sock")
        self.target, self.step, self.fault = target, (STEPS | HANDING_OVER)[step], fault
        self.met = False
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.listener.settimeout(harness.PATIENCE)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        """Carries both ways until either ends."""
        ours, _ = self.listener.accept()
        theirs = socket.socket(socket.AF_UNIX)
        theirs.connect(self.target)
        back = threading.Thread(target=self.carry, args=(theirs, ours, "destination"))
        back.start()
        self.carry(ours, theirs, "source")
        back.join()
        ours.close()
        theirs.close()

    def units(self, from_socket):
        """Each frame or record with its kind and descriptors."""
        descriptors = array.array("i")

        def exactly(count):
            data = b""
            while len(data) < count:
                more, ancillary, _, _ = from_socket.recvmsg(count - len(data), socket.CMSG_SPACE(64))
                for level, kind, payload in ancillary:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                        descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
                if not more:
                    close_all(descriptors)
                    raise EOFError
                data += more
            return data

        expected = "frame"
        while True:
            if expected != "record":
                header = exactly(FRAME.size)
                kind, length = expected, FRAME.unpack(header)[0]
            else:
                header = exactly(RECORD.size)
                kind, _, length, _ = RECORD.unpack(header)
            yield kind, header + exactly(length), descriptors
            descriptors = array.array("i")
            expected = DESCRIPTORS.get(kind, "record")

    def carry(self, source, sink, who):
        """One direction."""
        seen = {}
        try:
            for kind, data, descriptors in self.units(source):
                number = seen.get(kind, 0)
                seen[kind] = number + 1
                passes = True
                if (who, kind, number) == self.step:
                    self.met = True
                    passes = self.fault()
                try:
                    if passes:
                        sent = socket.send_fds(sink, [data], descriptors) if descriptors else 0
                        sink.sendall(data[sent:])
                finally:
                    # Whoever is at the other end of one waits for its last holder.
                    close_all(descriptors)
                if not passes:
                    break
        except (OSError, EOFError):
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        """Waits for both ways to end."""
        self.thread.join(60)
        self.listener.close()
        self.folder.cleanup()


def serving(daemon):
    """Process id of the worker of the daemon's one session."""
    (pid,) = [session["worker_pid"] for session in daemon.sessions()]
    return pid


def chosen(steps):
    """The pairs of step and fault to try."""
    pairs = list(itertools.product(steps, FAULTS))
    wanted = os.environ.get("PARAGPU_TEST_FAULTS", "8")
    if wanted == "all":
        return pairs
    return random.Random(os.environ.get("PARAGPU_TEST_SEED", "1")).sample(pairs, int(wanted))


class Attempts(unittest.TestCase):
    """Each pair has separate daemons, because some of them die."""

    shareable = "false"

    def setUp(self):
        with mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_SHAREABLE=self.shareable):
            self.one, self.two = harness.Daemon(), harness.Daemon()
        self.addCleanup(self.two.stop)
        self.addCleanup(self.one.stop)

    def kill(self, pid):
        """Kills a process and waits for its end."""
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not alive(pid), f"process {pid} is gone")

    def outcome(self, step, fault):
        """Whether the program continues ("goes"), must get an error ("error"), or has ended."""
        # All other steps happen before the program is stopped.
        at = ORDER.index(step) if step in ORDER else 0
        if fault == "program":
            return "gone"
        if fault == "source worker":
            # From the commit on the session is the destination's.
            return "goes" if at >= ORDER.index("commit") else "error"
        if fault == "destination worker":
            return "error" if step == "served" else "goes"
        return "goes"

    def attempt(self, step, fault):
        """One migration with one fault."""
        guest = end_with(self, start(self.one, "unix", "steps"))
        rounds(guest, 1)
        source = serving(self.one)
        idle = workers(self.two)

        def happen():
            if fault == "source worker":
                self.kill(source)
            elif fault == "destination worker":
                arrived = [session["worker_pid"] for session in self.two.sessions()]
                for pid in arrived or idle:
                    self.kill(pid)
            elif fault == "source daemon":
                self.kill(self.one.process.pid)
            elif fault == "destination daemon":
                self.kill(self.two.process.pid)
            elif fault == "program":
                guest.kill()
                guest.wait()
            return fault not in ("link", "source worker", "destination worker")

        between = Between(self.two.socket, step, happen)
        code, _, errors = ask(
            self.one, "migrate", only_session(self.one), "--to", f"unix://{between.path}", "-o", "json"
        )
        between.close()
        self.assertTrue(between.met, f"no such step: {errors}")
        expected = self.outcome(step, fault)
        if expected == "goes":
            rounds(guest, 20)
        elif expected == "error":
            status, output, said = finish(guest)
            self.assertEqual(status, 3, said)
            self.assertIn("CUDA error", output)
        for daemon, dead in ((self.one, fault == "source daemon"), (self.two, fault == "destination daemon")):
            if dead:
                continue
            most = 1 if expected == "goes" else 0
            eventually(lambda daemon=daemon, most=most: len(daemon.sessions()) <= most, "sessions that are over are gone")
        if expected == "goes" and not fault.endswith("daemon"):
            # The source is listed until its worker has exited.
            both = lambda: self.one.sessions() + self.two.sessions()
            eventually(lambda: len(both()) == 1, "the session is at exactly one side")
            if code == 0:
                self.assertEqual(self.one.sessions(), [])
            else:
                self.assertEqual(len(errors.strip().splitlines()), 1, errors)


class TransferFaults(Attempts):
    """Memory is copied."""

    def test_kernel_of_minutes(self):
        """The source waits for a while, and then the session continues there."""
        if os.environ.get("PARAGPU_TEST_FAULTS") != "all":
            self.skipTest("takes the minutes for which a kernel is waited for")
        guest = end_with(self, start(self.one, "unix", "spin"))
        read_until(guest, "spinning")
        code, _, errors = ask(
            self.one, "migrate", only_session(self.one), "--to", f"unix://{self.two.socket}", "-o", "json"
        )
        self.assertNotEqual(code, 0)
        self.assertIn("still had work", errors)
        self.assertIsNone(guest.poll())
        self.assertEqual(len(self.one.sessions()), 1)
        eventually(lambda: self.two.sessions() == [], "the destination forgot it")

    def test_two_migrations_at_once(self):
        """The second is refused; the first is not disturbed."""
        guest = end_with(self, start(self.one, "unix", "steps"))
        rounds(guest, 1)
        number = only_session(self.one)
        second = []

        def again():
            second.append(ask(self.one, "migrate", number, "--to", f"unix://{self.two.socket}", "-o", "json"))
            return True

        between = Between(self.two.socket, "objects", again)
        code, _, errors = ask(self.one, "migrate", number, "--to", f"unix://{between.path}", "-o", "json")
        between.close()
        self.assertEqual(code, 0, errors)
        ((refused, _, reason),) = second
        self.assertNotEqual(refused, 0)
        self.assertIn("already", reason)
        rounds(guest, 5)
        self.assertEqual(len(self.two.sessions()), 1)


class HandOverFaults(Attempts):
    """Memory is handed over."""

    shareable = "true"


def alive(pid):
    """Whether the process is running; zombies are not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def add_attempts(tests, steps):
    """A test for each pair."""
    for step, fault in chosen(steps):

        def test(self, step=step, fault=fault):
            self.attempt(step, fault)

        name = f"test_{fault}_at_{step}".replace(" ", "_")
        test.__doc__ = f"{fault} while {step} is on its way"
        setattr(tests, name, test)


add_attempts(TransferFaults, STEPS)
add_attempts(HandOverFaults, HANDING_OVER)

class Relays(TwoHosts):
    """What lies between a program and the destination."""

    def test_a_move_ends_though_the_program_never_gets_through(self):
        """The relay carries its first frame, and cuts each connection soon after."""
        proxy = self.proxy(None, limit=90)
        two = self.daemon(host, self.authority, f"--set=tcp.announce={proxy.address}")
        proxy.target = address(two.addresses["tcp"])
        guest = self.guest(self.one, "shm", "steps")
        rounds(guest, 1)
        # The destination has the session once the program has reached it.
        code, _, errors = move(self.one, far(two))
        self.assertEqual(code, 0, errors)
        code, _, errors = finish(guest, timeout=120)
        self.assertNotEqual(code, 0)
        # Program and host give up after the same time, and either may be first.
        self.assertRegex(errors, "the connection keeps breaking|the session that the guest resumes has ended")
        # It pauses between two attempts.
        self.assertLess(len(proxy.sockets) / 2, 1000)
        eventually(lambda: two.sessions() == [], "the session is over", 90)


if __name__ == "__main__":
    unittest.main()
