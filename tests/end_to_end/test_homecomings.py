"""Sessions that left their window and come to a host with one again: they get another, as one that
began over a socket does. What was pinned before, meanwhile and afterwards is the same for program
and device."""

import os
import subprocess
import tempfile
import unittest

import harness
from wire import wire

from .guests import end_with, eventually, start_program
from .test_managed import can_migrate
from .test_moves import TwoHosts, address, far, host, move

HERE = os.path.dirname(os.path.abspath(__file__))
TIMES = 5
WAITS = 50
FETCHES = 4
# Slots in 1 MiB.
SLOTS = 2


class Homecomings(TwoHosts):
    """One program, between a host whose memory it shares and another."""

    def program(self, communicator="shm", daemon=None, **environment):
        """Starts it."""
        program = os.path.join(HERE, "home_program.py")
        guest = end_with(self, start_program(program, daemon or self.one, communicator, **environment))
        self.check(guest)
        return guest

    def tell(self, guest, *lines, answer="done"):
        """Has it do something."""
        for line in lines:
            guest.stdin.write(line + "\n")
            guest.stdin.flush()
            self.assertEqual(guest.stdout.readline().strip(), answer, f"{line}: {self.one.log()}{self.two.log()}")

    def check(self, guest):
        """All pinned memory is right, more than once."""
        self.tell(guest, "check", "check", answer="right")

    def go(self, here, there, communicator, to=None):
        """Moves the session."""
        code, _, errors = move(here, to or far(there), "--communicator", communicator)
        self.assertEqual(code, 0, errors + here.log() + there.log())
        eventually(lambda: here.sessions() == [], "the source let go")
        (session,) = there.sessions()
        self.assertEqual(session["communicator"], communicator)

    def counts(self, daemon, guest, order):
        """Posted and synchronous calls of an order."""
        (before,) = daemon.sessions()
        self.tell(guest, order)
        (after,) = daemon.sessions()
        return [after[kind] - before[kind] for kind in ("posted", "synchronous")]

    def uses_words(self, daemon, guest):
        """Whether waits end by a word. Without one, each is a call that waits for its reply."""
        return self.counts(daemon, guest, f"wait {WAITS}")[1] < WAITS

    def uses_slots(self, daemon, guest):
        """Whether copies go through slots: each slot takes a call that is posted, and without slots
        a copy is one call that waits."""
        return self.counts(daemon, guest, f"fetch {FETCHES}")[0] >= FETCHES * (1 + SLOTS)

    def has_window(self, daemon, guest, joins=can_migrate()):
        """The session uses a window's words and slots, soon. If no shadows are left, waits need no
        call at all: all pinned memory joined the window."""
        eventually(lambda: self.uses_slots(daemon, guest), "copies go through slots")
        if joins:
            eventually(lambda: self.shadows(daemon) == 0, "nothing is copied any more")
            eventually(lambda: self.uses_words(daemon, guest), "waits end by words")

    def has_none(self, daemon, guest):
        """It does not."""
        self.assertFalse(self.uses_words(daemon, guest))
        self.assertFalse(self.uses_slots(daemon, guest))

    def shadows(self, daemon):
        """Bytes of the session's memory of which the host has a copy."""
        (session,) = daemon.sessions()
        return session["shadow_memory"]

    def pinned_everywhere(self, work, joins=can_migrate()):
        """A program goes and comes home again and again, and pins at each place."""
        guest = self.program()
        for turn in range(TIMES):
            self.tell(guest, "allocate", "register", *work)
            self.go(self.one, self.two, "tcp")
            self.check(guest)
            self.has_none(self.two, guest)
            self.tell(guest, "allocate", "register", *work)
            self.go(self.two, self.one, "shm")
            self.check(guest)
            self.has_window(self.one, guest, joins)
            self.tell(guest, "allocate", "register", *work)
            self.check(guest)
            if joins and turn % 2:
                self.tell(guest, "free", "free")
                self.check(guest)

    def test_a_program_that_comes_home_has_a_window_every_time(self):
        self.pinned_everywhere([])

    def test_with_work_in_flight(self):
        self.pinned_everywhere(["work"])

    def test_with_graphs(self):
        # The driver may have resolved addresses in them, so what was pinned before stays apart.
        self.pinned_everywhere(["graph", "work"], joins=False)

    @unittest.skipUnless(can_migrate(), "this process may not use userfaultfd(2)")
    def test_what_was_pinned_before_and_meanwhile_joins_the_next_window(self):
        guest = self.program()
        self.tell(guest, "allocate")
        for _ in range(3):
            self.go(self.one, self.two, "tcp")
            self.tell(guest, "allocate", "register", "work")
            self.assertGreater(self.shadows(self.two), 0)
            self.go(self.two, self.one, "shm")
            eventually(lambda: self.shadows(self.one) == 0, "nothing is copied any more")
            self.check(guest)
            self.tell(guest, "allocate")
            self.check(guest)
        # Also between daemons of the host, to which the window goes along.
        self.go(self.one, self.two, "shm", to=f"unix://{self.two.socket}")
        self.check(guest)
        self.has_window(self.two, guest)
        self.assertEqual(self.shadows(self.two), 0)

    def test_a_program_that_cannot_come_home_stays_and_comes_later(self):
        guest = self.program()
        target, turns = address(self.one.addresses["migration"]), 0
        self.tell(guest, "allocate", "register")
        self.go(self.one, self.two, "tcp")
        for limit in (100, 3000, 8500, 20_000, 100_000, 1 << 30):
            self.tell(guest, "allocate", "work")
            proxy = self.proxy(target, limit=limit)
            code, _, errors = move(self.two, f"tcp://{proxy.address}", "--communicator", "shm")
            self.check(guest)
            if code == 0:
                break
            turns += 1
            self.one_sentence(errors)
            self.assertEqual(len(self.two.sessions()), 1, self.two.log())
            self.has_none(self.two, guest)
        self.assertGreater(turns, 0)
        self.assertEqual(code, 0, errors)
        self.has_window(self.one, guest)
        # One that it cannot leave remains.
        nowhere = self.daemon(host, self.authority, "--set=tcp.announce=127.0.0.1:1")
        code, _, errors = move(self.one, far(nowhere))
        self.assertNotEqual(code, 0)
        self.one_sentence(errors)
        self.check(guest)
        self.has_window(self.one, guest)

    def test_under_tls(self):
        trust = harness.certificates(self.enterContext(tempfile.TemporaryDirectory(prefix="paragpu-trust-")))
        command = [harness.binary("paragpu"), "certificate", trust, "--vm", "a"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        own = {"ca": "ca.pem", "certificate": "127.0.0.1.pem", "key": "127.0.0.1.key"}
        guests = {**own, "certificate": "a.pem", "key": "a.key"}
        two = self.daemon(host, self.authority, *(f"--set=tcp.{key}={trust}/{file}" for key, file in own.items()))
        environment = {f"PARAGPU_TCP_{key.upper()}": f"{trust}/{file}" for key, file in guests.items()}
        guest = self.program("tcp", two, **environment)
        for _ in range(3):
            self.tell(guest, "allocate", "register", "work")
            self.go(two, self.one, "shm")
            self.check(guest)
            self.has_window(self.one, guest)
            self.tell(guest, "allocate", "register", "work")
            self.go(self.one, two, "tcp")
            self.check(guest)

    def test_a_window_whose_welcome_was_lost_comes_again(self):
        room = 1 << 30
        guest = wire.Session(self.one.socket)
        guest.call("Ping", value=1)
        for _ in range(3):
            guest.socket.close()
            guest = wire.Shared(self.one.socket, resumes=guest, room=room)
            self.assertFalse(guest.welcome["shares_window"])
        guest.call("HostMap", offset=room + 4096, size=4096)
        guest.socket.close()
        # The guest knows it now, and both keep it.
        guest = wire.Shared(self.one.socket, resumes=guest, window=room, room=2 * room)
        self.assertTrue(guest.welcome["shares_window"])
        guest.call("HostMap", offset=room + 8192, size=4096)
        with self.assertRaises(wire.WireError):
            guest.call("HostMap", offset=room - 4096, size=4096)
        guest.close()

    def test_directly_from_the_window_of_one_host_to_that_of_another(self):
        guest = self.program()
        here, there = self.one, self.two
        for _ in range(3):
            self.tell(guest, "allocate", "register", "work")
            self.go(here, there, "shm")
            self.check(guest)
            self.has_window(there, guest)
            here, there = there, here
