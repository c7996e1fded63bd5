"""Sessions that continue elsewhere: at another daemon, or from a checkpoint."""

import array
import json
import os
import socket
import tempfile
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import harness

from .guests import answer, ask, end_with, eventually, only_session, read_until, rounds, start, start_program

# Bytes of a frame's header.
FRAME = 16
# Migrations in a row; `make soak-migrate` sets more.
MIGRATIONS = int(os.environ.get("PARAGPU_TEST_MIGRATIONS", "20"))


def migrate(source, socket_path, *options):
    """Orders the one session of `source` to a daemon's socket."""
    return ask(source, "migrate", only_session(source), "--to", f"unix://{socket_path}", "-o", "json", *options)


def moved(test, here, there, *options):
    """Moves the one session of a daemon to another; what the command reports."""
    code, output, errors = migrate(here, there.socket, *options)
    test.assertEqual(code, 0, errors + here.log() + there.log())
    eventually(lambda: here.sessions() == [], "the source let go")
    return json.loads(output)


def goes_on_meanwhile(test, guest, daemon, order):
    """Gives an order that stops a session whose kernel waits for its program,
    which brings what it waits for when the session was stopped in vain."""
    read_until(guest, "waiting")
    with ThreadPoolExecutor() as pool:
        ordered = pool.submit(order)
        eventually(lambda: "is not complete, so it continues" in daemon.log(), "it was tried to stop the session")
        guest.stdin.write("go on\n")
        guest.stdin.flush()
        read_until(guest, "answered")
        code, _, errors = ordered.result()
    test.assertEqual(code, 0, errors + daemon.log())


class Cutter:
    """Between a source and a daemon: passes bytes and descriptors on, and cuts
    the link after this many pieces from the source."""

    def __init__(self, target, pieces):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-cut-")
        self.path = os.path.join(self.folder.name, "cut.sock")
        self.target, self.left = target, pieces
        self.seen = 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        ours, _ = self.listener.accept()
        theirs = socket.socket(socket.AF_UNIX)
        theirs.connect(self.target)
        back = threading.Thread(target=self.carry, args=(theirs, ours, False))
        back.start()
        self.carry(ours, theirs, True)
        back.join()
        ours.close()
        theirs.close()

    def carry(self, source, sink, counts):
        size = array.array("i").itemsize
        while True:
            try:
                data, ancillary, _, _ = source.recvmsg(1 << 16, socket.CMSG_SPACE(16 * size))
            except OSError:
                break
            fds = array.array("i")
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(payload[: len(payload) - len(payload) % size])
            if counts:
                self.seen += 1
                self.left -= 1
            over = not data or self.left < 0
            try:
                if not over:
                    # Descriptors belong to the last frame that was read, which has no payload.
                    begin = len(data) - FRAME if fds else len(data)
                    sink.sendall(data[:begin])
                    if fds:
                        sent = socket.send_fds(sink, [data[begin:]], fds)
                        sink.sendall(data[begin + sent :])
            except OSError:
                over = True
            for fd in fds:
                os.close(fd)
            if over:
                break
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        """Waits for both ways to end."""
        self.thread.join(harness.PATIENCE)
        self.listener.close()
        self.folder.cleanup()


class Pair(unittest.TestCase):
    """Two daemons of one host, with software GPUs of different core counts."""

    def setUp(self):
        self.one = harness.Daemon()
        self.addCleanup(self.one.stop)
        with mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_THREADS="1"):
            self.two = harness.Daemon()
        self.addCleanup(self.two.stop)

    def guest(self, communicator, *arguments):
        return end_with(self, start(self.one, communicator, *arguments))

    def program(self, communicator, path, *arguments):
        """Starts another guest program at the first daemon."""
        return end_with(self, start_program(path, self.one, communicator, *arguments))


class Migration(Pair):
    """Memory is copied."""

    def test_a_running_program_moves_and_notices_nothing(self):
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                guest = self.guest(communicator, "steps")
                rounds(guest, 3)
                self.assertGreater(moved(self, self.one, self.two)["bytes"], 0)
                self.assertEqual(len(self.two.sessions()), 1)
                rounds(guest, 20)
                guest.kill()
                if communicator == "tcp":
                    # Over a network a killed program's session waits for a while.
                    ask(self.two, "end", only_session(self.two))
                eventually(lambda: self.two.sessions() == [], "the destination let go")

    def test_something_of_every_kind(self):
        something_of_every_kind(self)

    def test_between_models(self):
        # Another compute capability, another number of multiprocessors.
        older = {"PARAGPU_HOST_SOFTWARE_COMPUTE_CAPABILITY": "7.0", "PARAGPU_HOST_SOFTWARE_THREADS": "1"}
        with mock.patch.dict(os.environ, older):
            three = harness.Daemon()
        self.addCleanup(three.stop)
        guest = self.guest("shm", "steps")
        rounds(guest, 2)
        code, _, errors = migrate(self.one, three.socket)
        self.assertEqual(code, 0, errors + self.one.log() + three.log())
        rounds(guest, 10)
        eventually(lambda: self.one.sessions() == [], "the source let go")
        code, _, errors = migrate(three, self.one.socket)
        self.assertEqual(code, 0, errors)
        rounds(guest, 10)

    def test_code_for_a_newer_model_is_found_before_the_switch(self):
        older = {"PARAGPU_HOST_SOFTWARE_COMPUTE_CAPABILITY": "6.0"}
        with mock.patch.dict(os.environ, older):
            three = harness.Daemon()
        self.addCleanup(three.stop)
        guest = self.guest("unix", "steps")
        rounds(guest, 2)
        code, _, errors = migrate(self.one, three.socket)
        self.assertNotEqual(code, 0)
        self.assertEqual(len(errors.strip().splitlines()), 1, errors)
        self.assertIn("sm_70", errors)
        self.assertIn("sm_60", errors)
        rounds(guest, 10)
        self.assertEqual(len(self.one.sessions()), 1)
        eventually(lambda: three.sessions() == [], "the destination forgot it")

    def test_the_heap_of_kernels_moves_with_its_size(self):
        for size in ((), (str(1 << 20),)):
            with self.subTest(size):
                guest = self.guest("unix", "heap", *size)
                read_until(guest, "ready")
                for source, destination in ((self.one, self.two), (self.two, self.one)):
                    moved(self, source, destination)
                    self.assertEqual([answer(guest) for _ in range(3)], ["right"] * 3)
                guest.kill()
                eventually(lambda: self.one.sessions() == [], "its session ended")

    def test_memory_that_is_rewritten_while_it_moves(self):
        program = os.path.join(harness.ROOT, "tests/bench/moving_guest.py")
        for percent in ("0", "3", "100"):
            with self.subTest(percent=percent):
                guest = self.program("shm", program, "3", str(9 << 20), percent)
                read_until(guest, "ready")
                here, there = self.one, self.two
                for _ in range(4):
                    moved(self, here, there)
                    here, there = there, here
                    self.assertEqual(answer(guest), "exact")
                guest.kill()
                eventually(lambda: self.one.sessions() + self.two.sessions() == [], "the session is over")

    def test_a_kernel_that_waits_for_its_program(self):
        guest = self.guest("shm", "await")
        goes_on_meanwhile(self, guest, self.one, lambda: migrate(self.one, self.two.socket))
        guest.stdin.write("once more\nand go on\n")
        guest.stdin.flush()
        read_until(guest, "answered")
        self.assertEqual(len(self.two.sessions()), 1)

    def test_many_migrations_in_a_row(self):
        guest = self.guest("shm", "steps")
        rounds(guest, 1)
        to_and_fro(self, guest, MIGRATIONS, 2)

    def test_the_session_stays_where_the_link_is_cut(self):
        stays_where_the_link_is_cut(self)

    def test_nobody_at_the_destination(self):
        guest = self.guest("unix", "steps")
        rounds(guest, 1)
        code, _, errors = migrate(self.one, "/nonexistent/paragpud.sock")
        self.assertNotEqual(code, 0)
        self.assertIn("/nonexistent/paragpud.sock", errors)
        rounds(guest, 2)

    def test_a_destination_without_the_memory(self):
        with mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_MEMORY="64MiB"):
            small = harness.Daemon()
        self.addCleanup(small.stop)
        guest = self.guest("unix", "hold", str(256 << 20))
        read_until(guest, "holding")
        code, _, errors = migrate(self.one, small.socket)
        self.assertNotEqual(code, 0)
        self.assertIn("MemMap", errors)
        self.assertEqual(len(self.one.sessions()), 1)
        guest.stdin.close()
        self.assertEqual(guest.wait(harness.PATIENCE), 0)


KINDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kinds_program.py")


def something_of_every_kind(test):
    """Moves a program that has an object of each kind, over each communicator."""
    for communicator in harness.HOST_COMMUNICATORS:
        with test.subTest(communicator):
            guest = test.program(communicator, KINDS)
            read_until(guest, "ready")
            here, there = test.one, test.two
            for _ in range(3):
                moved(test, here, there)
                here, there = there, here
                test.assertEqual(answer(guest), "right")
            guest.stdin.close()
            test.assertEqual(guest.wait(harness.PATIENCE), 0)
            eventually(lambda: test.one.sessions() + test.two.sessions() == [], "the session is over")


def stays_where_the_link_is_cut(test):
    """Cuts the link of the move at each step of the source up to the commit; after
    it the link has no say."""
    guest = test.guest("unix", "steps")
    rounds(guest, 1)
    cut = moved = 0
    steps = list(range(40)) + [int(40 * 1.4**power) for power in range(1, 20)]
    for pieces in steps:
        cutter = Cutter(test.two.socket, pieces)
        code, _, errors = migrate(test.one, cutter.path)
        cutter.close()
        rounds(guest, 2)
        if code == 0:
            moved += 1
            break
        cut += 1
        test.assertEqual(len(errors.strip().splitlines()), 1, errors)
        test.assertEqual(len(test.one.sessions()), 1)
        eventually(lambda: test.two.sessions() == [], "the destination forgot it")
    # Each answer that the source waits for ends a piece; what it says without
    # waiting may be one.
    test.assertGreaterEqual(cut, 5)
    test.assertEqual(moved, 1)


def to_and_fro(test, guest, times, between):
    """Moves a program this often, with this many of its rounds after each move."""
    here, there = test.one, test.two
    for _ in range(times):
        code, _, errors = migrate(here, there.socket)
        test.assertEqual(code, 0, errors + here.log() + there.log())
        here, there = there, here
        rounds(guest, between)
        eventually(lambda source=there: source.sessions() == [], "the source let go")
    test.assertIsNone(guest.poll())


def churn(test):
    """Moves a program that maps and unmaps memory all the time."""
    guest = test.guest("unix", "churn")
    rounds(guest, 5)
    to_and_fro(test, guest, 12, 3)


class HandOver(Pair):
    """Between software GPUs whose memory can be handed over."""

    def setUp(self):
        shareable = mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_SHAREABLE="true")
        shareable.start()
        self.addCleanup(shareable.stop)
        super().setUp()

    def test_something_of_every_kind(self):
        something_of_every_kind(self)

    def test_the_session_stays_where_the_link_is_cut(self):
        stays_where_the_link_is_cut(self)

    def test_memory_is_not_copied_unless_it_must_be(self):
        program = os.path.join(harness.ROOT, "tests/bench/moving_guest.py")
        size = 64 << 20
        guest = self.program("shm", program, "2", str(size), "3")
        read_until(guest, "ready")
        with mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_SHAREABLE="false"):
            three = harness.Daemon()
        self.addCleanup(three.stop)
        # From one to another, on from there, and to and from one that cannot.
        ways = [(self.one, self.two, (), True), (self.two, self.one, ("--stop-first",), True),
                (self.one, self.two, ("--copy",), False), (self.two, three, (), False), (three, self.one, (), False),
                (self.one, self.two, (), True)]
        for here, there, options, handed in ways:
            with self.subTest(options=options, handed=handed):
                done = moved(self, here, there, *options)
                if handed:
                    self.assertGreaterEqual(done["handed_over_bytes"], 2 * size)
                    self.assertLess(done["bytes"], 1 << 20)
                else:
                    self.assertEqual(done["handed_over_bytes"], 0)
                    self.assertGreater(done["bytes"], 2 * size)
                self.assertEqual(answer(guest), "exact")

    def test_memory_that_comes_and_goes_while_it_moves(self):
        churn(self)


class BetweenGpus(Pair):
    """Between two GPUs of one host, of which one copies from the other."""

    def setUp(self):
        two = mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_SHAREABLE="true", PARAGPU_HOST_SOFTWARE_DEVICES="2")
        two.start()
        self.addCleanup(two.stop)
        for name, index in ("one", "0"), ("two", "1"):
            with mock.patch.dict(os.environ, PARAGPU_HOST_DEVICE_INDICES=index):
                daemon = harness.Daemon()
            self.addCleanup(daemon.stop)
            setattr(self, name, daemon)

    def test_something_of_every_kind(self):
        something_of_every_kind(self)

    def test_memory_goes_from_gpu_to_gpu(self):
        program = os.path.join(harness.ROOT, "tests/bench/moving_guest.py")
        size = 64 << 20
        guest = self.program("shm", program, "2", str(size), "3")
        read_until(guest, "ready")
        here, there = self.one, self.two
        for options in (), ("--stop-first",), ("--copy",), ():
            with self.subTest(options=options):
                done = moved(self, here, there, *options)
                self.assertEqual(done["handed_over_bytes"], 0)
                if "--copy" in options:
                    self.assertEqual(done["peer_copied_bytes"], 0)
                    self.assertGreater(done["bytes"], 2 * size)
                else:
                    self.assertGreaterEqual(done["peer_copied_bytes"], 2 * size)
                    self.assertLess(done["bytes"], 1 << 20)
                self.assertEqual(answer(guest), "exact")
                here, there = there, here

    def test_memory_that_comes_and_goes_while_it_moves(self):
        churn(self)


class Checkpoint(unittest.TestCase):
    """A session in a directory."""

    def setUp(self):
        self.daemon = harness.Daemon()
        self.addCleanup(self.daemon.stop)
        folder = tempfile.TemporaryDirectory(prefix="paragpu-state-")
        self.addCleanup(folder.cleanup)
        self.folder = os.path.join(folder.name, "state")

    guest, program = Pair.guest, Pair.program

    @property
    def one(self):
        """The daemon that guests are started at."""
        return self.daemon

    def test_a_running_program_goes_on_after_and_comes_back(self):
        guest = self.guest("unix", "steps")
        rounds(guest, 3)
        number = only_session(self.daemon)
        code, _, errors = ask(self.daemon, "checkpoint", number, self.folder)
        self.assertEqual(code, 0, errors)
        rounds(guest, 3)
        code, _, errors = ask(self.daemon, "checkpoint", number, self.folder, "--end")
        self.assertEqual(code, 0, errors)
        eventually(lambda: self.daemon.sessions() == [], "the session was checkpointed and ended")
        state = os.path.join(self.folder, "session.paragpu")
        self.assertEqual(os.stat(state).st_mode & 0o777, 0o600)
        self.assertEqual(os.listdir(self.folder), ["session.paragpu"])
        code, _, errors = ask(self.daemon, "restore", self.folder)
        self.assertEqual(code, 0, errors + self.daemon.log())
        rounds(guest, 20)

    def test_a_worker_that_is_started_for_it(self):
        self.daemon.stop()
        self.daemon = harness.Daemon("--warm=0")
        self.addCleanup(self.daemon.stop)
        guest = self.guest("unix", "steps")
        rounds(guest, 1)
        for _ in range(3):
            code, _, errors = ask(self.daemon, "checkpoint", only_session(self.daemon), self.folder, "--end")
            self.assertEqual(code, 0, errors)
            code, _, errors = ask(self.daemon, "restore", self.folder)
            self.assertEqual(code, 0, errors + self.daemon.log())
            rounds(guest, 2)

    def test_something_of_every_kind(self):
        guest = self.program("unix", KINDS)
        read_until(guest, "ready")
        for _ in range(2):
            code, _, errors = ask(self.daemon, "checkpoint", only_session(self.daemon), self.folder, "--end")
            self.assertEqual(code, 0, errors)
            eventually(lambda: self.daemon.sessions() == [], "the session was checkpointed and ended")
            code, _, errors = ask(self.daemon, "restore", self.folder)
            self.assertEqual(code, 0, errors + self.daemon.log())
            self.assertEqual(answer(guest), "right")

    def test_a_kernel_that_waits_for_its_program(self):
        guest = self.guest("unix", "await")

        def order():
            return ask(self.daemon, "checkpoint", only_session(self.daemon), self.folder)

        goes_on_meanwhile(self, guest, self.daemon, order)
        self.assertEqual(os.listdir(self.folder), ["session.paragpu"])

    def test_a_program_waits_while_restores_fail(self):
        guest = self.guest("unix", "steps")
        rounds(guest, 2)
        code, _, errors = ask(self.daemon, "checkpoint", only_session(self.daemon), self.folder, "--end")
        self.assertEqual(code, 0, errors)
        eventually(lambda: self.daemon.sessions() == [], "the session was checkpointed and ended")
        state = os.path.join(self.folder, "session.paragpu")
        with open(state, "rb") as file:
            good = file.read()
        middle = len(good) // 2
        # The program reconnects during one of them at the latest.
        for _ in range(5):
            with open(state, "wb") as file:
                file.write(good[:middle] + bytes([good[middle] ^ 0x40]) + good[middle + 1 :])
            code, _, errors = ask(self.daemon, "restore", self.folder)
            self.assertNotEqual(code, 0)
            self.assertNotIn("is the one that", errors)
            eventually(lambda: self.daemon.sessions() == [], "nothing is left of it")
        with open(state, "wb") as file:
            file.write(good)
        code, _, errors = ask(self.daemon, "restore", self.folder)
        self.assertEqual(code, 0, errors + self.daemon.log())
        rounds(guest, 10)

    def test_a_damaged_or_foreign_state_is_refused(self):
        guest = self.guest("unix", "steps")
        rounds(guest, 1)
        number = only_session(self.daemon)
        self.assertEqual(ask(self.daemon, "checkpoint", number, self.folder)[0], 0)
        state = os.path.join(self.folder, "session.paragpu")
        with open(state, "rb") as file:
            good = file.read()
        self.assertIn("is the one that", ask(self.daemon, "restore", self.folder)[2])
        guest.kill()
        eventually(lambda: self.daemon.sessions() == [], "the session is over")
        for at, word in ((2, "version"), (0, "release"), (60, "damaged"), (len(good) // 2, "state")):
            with self.subTest(at=at), open(state, "wb") as file:
                file.write(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
                file.flush()
                code, _, errors = ask(self.daemon, "restore", self.folder)
                self.assertNotEqual(code, 0)
                self.assertIn(word, errors)
                self.assertEqual(len(errors.strip().splitlines()), 1, errors)
