"""Programs that register shared mappings of files, and so share them with the device
and with each other."""

import mmap
import os
import struct
import tempfile
import unittest

import harness

from .guests import eventually
from .test_migration import Pair, migrate

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shared_file_program.py")
# As the program has them.
OFFSET = mmap.PAGESIZE + 256
BYTES = 4 * mmap.PAGESIZE


def may_name_mappings():
    """Whether this process may open its mapped files, even unlinked ones."""
    shared = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    with shared, open("/proc/self/maps", encoding="utf-8") as maps:
        line = next(line for line in maps if "/dev/zero (deleted)" in line)
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        try:
            os.close(os.open(f"/proc/self/map_files/{first:x}-{last:x}", os.O_RDWR))
        except OSError:
            return False
        return True


class SharedFiles(unittest.TestCase):
    """Programs over the communicators of one daemon, and another to which they may move."""

    program = Pair.program

    def setUp(self):
        self.one, self.two = harness.Daemon(), harness.Daemon()
        self.addCleanup(self.one.stop)
        self.addCleanup(self.two.stop)
        # A file system in memory, as such files are in practice.
        self.file = tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="paragpu-test-")
        self.addCleanup(self.file.close)
        self.file.truncate(BYTES)
        self.shared = mmap.mmap(self.file.fileno(), BYTES)
        self.addCleanup(self.shared.close)

    def start(self, communicator, kind):
        """A program that has registered its memory."""
        guest = self.program(communicator, PROGRAM, kind, self.file.name)
        self.assertEqual(guest.stdout.readline(), "ready\n")
        return guest

    def ask(self, guest, request, answer):
        """Has a program do something."""
        guest.stdin.write(f"{request}\n")
        guest.stdin.flush()
        self.assertEqual(guest.stdout.readline(), f"{answer}\n", self.one.log())

    def word(self, at):
        """The contents of the file."""
        return struct.unpack_from("I", self.shared, OFFSET + 4 * at)[0]

    def finish(self, *guests):
        """Programs end in order."""
        for guest in guests:
            guest.stdin.close()
            self.assertEqual(guest.wait(harness.PATIENCE), 0)

    def test_kernels_see_what_others_write_while_they_run(self):
        guest = self.start("shm", "file")
        for number in range(1, 20):
            struct.pack_into("I", self.shared, OFFSET, 0)
            self.ask(guest, "wait", "waiting")
            struct.pack_into("I", self.shared, OFFSET, number)
            # The kernel's answer is here before its program asks for anything.
            eventually(lambda wanted=number: self.word(1) == wanted, "the kernel answered")
            self.ask(guest, "finish", "finished")
        self.ask(guest, "copy", "right")
        self.ask(guest, "release", "released")
        self.finish(guest)

    def test_processes_share_a_file(self):
        guests = [self.start("shm", "file") for _ in range(3)]
        self.assertEqual([session["shadow_memory"] for session in self.one.sessions()], [0, 0, 0])
        for at in range(30):
            self.ask(guests[at % 3], "add", "added")
            self.assertEqual(self.word(2), at + 1)
        self.ask(guests[0], "release", "released")
        self.ask(guests[1], "add", "added")
        self.assertEqual(self.word(2), 31)
        self.finish(*guests)

    def test_files_without_a_name(self):
        for kind in ("memfd", "anonymous"):
            with self.subTest(kind):
                if kind == "anonymous" and not may_name_mappings():
                    self.skipTest("anonymous shared memory is passed by privileged processes")
                guest = self.start("shm", kind)
                code, _, errors = migrate(self.one, self.two.socket)
                self.assertNotEqual(code, 0, "it is shared, and so stays")
                self.assertIn("registered ranges of mapped files", errors)
                self.ask(guest, "copy", "right")
                self.finish(guest)
                eventually(lambda: self.one.sessions() == [], "its session is over")

    def test_they_stay_until_they_are_unregistered(self):
        guest = self.start("shm", "file")
        code, _, errors = migrate(self.one, self.two.socket)
        self.assertNotEqual(code, 0)
        self.assertEqual(len(errors.strip().splitlines()), 1, errors)
        self.assertIn("it can move once they are unregistered", errors)
        self.ask(guest, "add", "added")
        self.ask(guest, "release", "released")
        code, _, errors = migrate(self.one, self.two.socket)
        self.assertEqual(code, 0, errors)
        self.finish(guest)

    def test_other_communicators_merge_at_waits(self):
        for communicator in ("unix", "tcp"):
            with self.subTest(communicator):
                guest = self.start(communicator, "file")
                before = self.word(2)
                for at in range(3):
                    self.ask(guest, "add", "added")
                    self.assertEqual(self.word(2), before + at + 1)
                (session,) = self.one.sessions()
                self.assertGreater(session["shadow_memory"], 0)
                self.ask(guest, "copy", "right")
                code, _, errors = migrate(self.one, self.two.socket)
                self.assertEqual(code, 0, errors)
                self.ask(guest, "add", "added")
                self.assertEqual(self.word(2), before + 4)
                self.finish(guest)
                eventually(lambda: self.two.sessions() == [], "its session is over")
