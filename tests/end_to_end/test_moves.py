"""Sessions moved by an operator: to other hosts, together, between GPUs."""

import contextlib
import json
import os
import socket
import ssl
import struct
import tempfile
import threading
import unittest

import harness
from wire import wire

from .guests import ask, end_with, eventually, only_session, read_until, replace_by_file, rounds, start

USER = f"uid {os.geteuid()}"
ARRIVE = 0x7F11


def host(directory, *arguments, listen=True):
    """A daemon that takes sessions under the certificates of a directory."""
    return harness.Daemon(*harness.as_host(directory, listen), *arguments)


def far(daemon):
    """Where other hosts send sessions to a daemon."""
    return f"tcp://{daemon.addresses['migration']}"


def migrate(source, *arguments):
    """Runs `paragpu migrate`: returns exit status, JSON output, errors."""
    code, output, errors = ask(source, "migrate", *arguments, "-o", "json")
    return code, json.loads(output) if output else None, errors


def move(source, to, *arguments):
    """Moves the one session of a daemon."""
    return migrate(source, only_session(source), "--to", to, *arguments)


class Proxy:
    """A relay to an address, which cuts connections
    on request, or after this many bytes of a connection."""

    def __init__(self, target, family=socket.AF_INET, limit=None, at_limit=lambda: None):
        self.target, self.family, self.limit, self.at_limit = target, family, limit, at_limit
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-proxy-")
        self.listener = socket.socket(family)
        unix = family == socket.AF_UNIX
        self.listener.bind(os.path.join(self.folder.name, "socket") if unix else ("127.0.0.1", 0))
        self.listener.listen()
        name = self.listener.getsockname()
        self.address = name if unix else f"{name[0]}:{name[1]}"
        self.open, self.threads, self.sockets = [], [], []
        self.held, self.withheld = threading.Event(), threading.Event()
        self.spawn(self.serve)

    def spawn(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments)
        self.threads.append(thread)
        thread.start()

    def serve(self):
        while True:
            try:
                ours, _ = self.listener.accept()
            except OSError:
                return
            theirs = socket.socket(self.family)
            self.sockets += [ours, theirs]
            try:
                theirs.connect(self.target)
            except OSError:
                shut(ours)
                continue
            self.open.append((ours, theirs))
            budget = [self.limit]
            self.spawn(self.carry, ours, theirs, budget)
            self.spawn(self.carry, theirs, ours, [None], self.held)

    def carry(self, source, sink, budget, held=None):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if budget[0] is not None:
                    data = data[: budget[0]]
                    budget[0] -= len(data)
                if held is not None and held.is_set():
                    self.withheld.set()
                else:
                    sink.sendall(data)
                if budget[0] == 0:
                    self.at_limit()
                    break
        shut(source, sink)

    def hold(self):
        """Carries nothing more towards the connected side."""
        self.held.set()

    def cut(self):
        """Ends every connection; later ones are carried again."""
        self.held.clear()
        while self.open:
            shut(*self.open.pop())

    def close(self):
        """Ends all."""
        shut(self.listener)
        self.listener.close()
        self.cut()
        for thread in self.threads:
            thread.join(harness.PATIENCE)
        for ended in self.sockets:
            ended.close()
        self.folder.cleanup()


def shut(*ends):
    """Ends connections for both sides."""
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def address(text):
    """HOST:PORT as Python takes it."""
    name, port = text.rsplit(":", 1)
    return name, int(port)


class Sessions(unittest.TestCase):
    """Shared parts of the tests."""

    def guest(self, daemon, communicator, *arguments, **environment):
        return end_with(self, start(daemon, communicator, *arguments, **environment))

    def daemon(self, make, *arguments, **keywords):
        daemon = make(*arguments, **keywords)
        self.addCleanup(daemon.stop)
        return daemon

    def proxy(self, *arguments, **keywords):
        proxy = Proxy(*arguments, **keywords)
        self.addCleanup(proxy.close)
        return proxy

    def one_sentence(self, errors, *words):
        self.assertEqual(len(errors.strip().splitlines()), 1, errors)
        for word in words:
            self.assertIn(word, errors)


class TwoHosts(Sessions):
    """Two daemons that see each other over TLS only."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="paragpu-authority-")
        cls.addClassCleanup(folder.cleanup)
        cls.authority = harness.certificates(os.path.join(folder.name, "ours"))
        cls.stranger = harness.certificates(os.path.join(folder.name, "theirs"))
        cls.one, cls.two = host(cls.authority), host(cls.authority)
        cls.addClassCleanup(cls.one.stop)
        cls.addClassCleanup(cls.two.stop)

    def tearDown(self):
        # Sessions of killed programs are waited for over a network.
        for daemon in (self.one, self.two):
            for session in daemon.sessions():
                ask(daemon, "end", str(session["id"]))
            eventually(lambda daemon=daemon: daemon.sessions() == [], "nothing is left")


class Hosts(TwoHosts):
    """Sessions that go from one to the other."""

    def test_there_and_back_and_to_shared_memory(self):
        guest = self.guest(self.one, "tcp", "steps")
        rounds(guest, 2)
        here, there = self.one, self.two
        for follows in ((), (), ("--communicator", "shm")):
            code, done, errors = move(here, far(there), *follows)
            self.assertEqual(code, 0, errors + here.log() + there.log())
            self.assertGreater(done["bytes"], 0)
            rounds(guest, 3)
            eventually(lambda source=here: source.sessions() == [], "the source let go")
            via = [session["communicator"] for session in there.sessions()]
            self.assertEqual(via, [follows[1] if follows else "tcp"])
            here, there = there, here
        # Shared memory is no tie.
        code, _, errors = move(here, far(there))
        self.assertEqual(code, 0, errors + here.log() + there.log())
        rounds(guest, 2)
        guest.kill()

    def test_who_shows_no_certificate_sends_nothing(self):
        guest = self.guest(self.one, "tcp", "steps")
        rounds(guest, 1)
        strange = self.daemon(host, self.stranger)
        bare = self.daemon(harness.Daemon)
        name, port = address(self.two.addresses["migration"])
        for source, to, word in (
            (self.one, far(strange), "do not trust each other"),
            (self.one, f"tcp://localhost:{port}", "do not trust each other"),
            (self.one, "tcp://127.0.0.1:1", "no paragpud answers"),
            (self.one, f"tcp://{bare.addresses['tcp']}", "migration."),
            (self.one, "ssh://127.0.0.1:1", "is not a destination"),
        ):
            with self.subTest(to=to, word=word):
                code, _, errors = move(source, to)
                self.assertNotEqual(code, 0)
                self.one_sentence(errors, word)
                rounds(guest, 1)
        # A host without certificates cannot send, and one without any is not heard.
        self.guest(bare, "tcp", "steps")
        eventually(bare.sessions, "a session begins")
        code, _, errors = move(bare, far(self.two))
        self.assertNotEqual(code, 0)
        self.one_sentence(errors, "migration.ca")
        context = ssl.create_default_context(cafile=f"{self.authority}/ca.pem")
        with socket.create_connection((name, port), timeout=harness.PATIENCE) as plain:
            with self.assertRaises((ssl.SSLError, ConnectionError)), context.wrap_socket(
                plain, server_hostname="127.0.0.1"
            ) as link:
                link.sendall(self.arrival())
                self.assertEqual(link.recv(1), b"")
                raise ConnectionError("ended without an answer")
        self.assertEqual(self.two.sessions(), [])

    def arrival(self, version=wire.VERSION):
        """The first frame of an arriving session."""
        text = lambda value: struct.pack("<I", len(value)) + value.encode()
        payload = wire.MAGIC + struct.pack("<3H", *version) + text("vm") + struct.pack("<I", 0)
        payload += bytes(range(16)) + struct.pack("<I", 7) + text("tcp") + text("tcp") + struct.pack("<IQ", 0, 0)
        return wire.HEADER.pack(len(payload), ARRIVE, 0, 0) + payload

    def test_another_version_is_refused(self):
        context = ssl.create_default_context(cafile=f"{self.authority}/ca.pem")
        # As newer versions of Python are by themselves.
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_cert_chain(f"{self.authority}/127.0.0.1.pem", f"{self.authority}/127.0.0.1.key")
        major, minor, patch = wire.VERSION
        for version, kind in (((major, minor + 1, patch), wire.REFUSAL), (wire.VERSION, wire.WELCOME)):
            with self.subTest(version=version):
                plain = socket.create_connection(address(self.two.addresses["migration"]), timeout=harness.PATIENCE)
                with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as link:
                    link.sendall(self.arrival(version))
                    answer = b""
                    while len(answer) < wire.HEADER.size:
                        answer += link.recv(4096)
                    self.assertEqual(wire.HEADER.unpack(answer[: wire.HEADER.size])[1], kind)
        eventually(lambda: self.two.sessions() == [], "the source was lost")

    def test_the_session_is_at_one_side_wherever_the_link_breaks(self):
        guest = self.guest(self.one, "tcp", "steps")
        rounds(guest, 1)
        target = address(self.two.addresses["migration"])
        here, outcomes = self.one, set()
        # From inside the handshake to past the end.
        for limit in (100, 2000, 2600, 3200, 5000, 7000, 8500, 20_000, 60_000, 1 << 30):
            proxy = Proxy(target, limit=limit)
            code, _, errors = move(here, f"tcp://{proxy.address}")
            rounds(guest, 2)
            outcomes.add(code == 0)
            if code != 0:
                self.one_sentence(errors)
                self.assertEqual(len(self.one.sessions()), 1, self.one.log())
                eventually(lambda: self.two.sessions() == [], "the destination forgot it")
            proxy.close()
            if code == 0:
                break
        self.assertEqual(outcomes, {False, True})
        eventually(lambda: self.one.sessions() == [], "the source let go")

    def test_a_daemon_that_dies_leaves_the_session_at_one_side(self):
        for victim in ("source", "destination"):
            with self.subTest(victim):
                one, two = self.daemon(host, self.authority), self.daemon(host, self.authority)
                guest = self.guest(one, "tcp", "steps")
                rounds(guest, 1)
                dies = one if victim == "source" else two
                proxy = self.proxy(
                    address(two.addresses["migration"]), limit=7000, at_limit=dies.process.kill
                )
                code, _, errors = move(one, f"tcp://{proxy.address}")
                self.assertNotEqual(code, 0)
                self.one_sentence(errors)
                dies.process.wait(harness.PATIENCE)
                rounds(guest, 3)
                dies.start()
                rounds(guest, 1)
                self.assertEqual(len(one.sessions()), 1)
                guest.kill()
                for session in one.sessions():
                    ask(one, "end", str(session["id"]))

    def test_all_sessions_of_a_vm_follow_or_stay(self):
        guests = [self.guest(self.one, "tcp", "steps") for _ in range(3)]
        for guest in guests:
            rounds(guest, 1)
        vm = "127.0.0.1"
        # Every link breaks: no session moves.
        proxy = self.proxy(address(self.two.addresses["migration"]), limit=7000)
        code, moved, errors = migrate(self.one, "--vm", vm, "--to", f"tcp://{proxy.address}")
        self.assertNotEqual(code, 0, errors)
        self.assertEqual([session["moved"] for session in moved], [False] * 3, moved)
        self.assertEqual(len(self.one.sessions()), 3)
        for guest in guests:
            rounds(guest, 2)
        eventually(lambda: self.two.sessions() == [], "the destination forgot them")
        code, moved, errors = migrate(self.one, "--vm", vm, "--to", far(self.two))
        self.assertEqual(code, 0, (moved, errors, self.two.log()))
        for guest in guests:
            rounds(guest, 2)
        eventually(lambda: self.one.sessions() == [], "the source let go")
        self.assertEqual(len(self.two.sessions()), 3)

    def test_a_program_that_cannot_follow_stays(self):
        two = self.daemon(host, self.authority, "--set=tcp.announce=127.0.0.1:1")
        guest = self.guest(self.one, "tcp", "steps")
        rounds(guest, 1)
        code, _, errors = move(self.one, far(two))
        self.assertNotEqual(code, 0)
        self.one_sentence(errors, "cannot follow to tcp 127.0.0.1:1")
        rounds(guest, 3)
        eventually(lambda: two.sessions() == [], "the destination forgot it")

    def test_a_broken_connection_is_looked_for_at_the_new_place(self):
        proxy = self.proxy(address(self.two.addresses["tcp"]))
        two = self.daemon(host, self.authority, f"--set=tcp.announce={proxy.address}")
        proxy.target = address(two.addresses["tcp"])
        one = self.daemon(host, self.authority)
        guest = self.guest(one, "tcp", "steps")
        rounds(guest, 1)
        self.assertEqual(move(one, far(two))[0], 0)
        eventually(lambda: one.sessions() == [], "the source let go")
        one.process.terminate()
        for _ in range(3):
            proxy.cut()
            rounds(guest, 2)
        self.assertEqual(len(two.sessions()), 1)
        ask(two, "end", only_session(two))

    def test_a_connection_that_breaks_before_its_welcome_is_made_again(self):
        """The destination has the session then, while its program believes that it stays."""
        for communicator in ("shm", "tcp"):
            with self.subTest(communicator):
                proxy = self.proxy(None)
                two = self.daemon(host, self.authority, f"--set=tcp.announce={proxy.address}")
                proxy.target = address(two.addresses["tcp"])
                guest = self.guest(self.one, communicator, "steps")
                rounds(guest, 1)
                proxy.hold()
                moved = []
                order = threading.Thread(target=lambda two=two, moved=moved: moved.append(move(self.one, far(two))))
                order.start()
                # The destination welcomes it after the commit.
                self.assertTrue(proxy.withheld.wait(60))
                proxy.cut()
                order.join()
                self.assertEqual(moved[0][0], 0, moved)
                continues = lambda two=two: any(session["calls"] > 60 for session in two.sessions())
                eventually(continues, "the program continues at the destination")
                guest.kill()
                ask(two, "end", only_session(two))


class OneHost(Sessions):
    """Daemons and GPUs of one host."""

    def test_a_broken_connection_is_looked_for_at_the_new_place(self):
        one, two = self.daemon(harness.Daemon), self.daemon(harness.Daemon)
        proxy = self.proxy(one.socket, socket.AF_UNIX)
        guest = self.guest(one, "unix", "steps", PARAGPU_UNIX_SOCKET=proxy.address)
        rounds(guest, 1)
        code, _, errors = move(one, f"unix://{two.socket}")
        self.assertEqual(code, 0, errors)
        # Calls of two rounds: the destination has replied, and announced its address before that.
        eventually(lambda: two.sessions()[0]["calls"] > 30, "the program continues at the destination")
        proxy.target = "/nonexistent"
        proxy.cut()
        rounds(guest, 5)
        eventually(lambda: two.sessions()[0]["calls"] > 90, "the program continues at the destination")
        self.assertEqual(len(two.sessions()), 1)

    def test_a_guest_that_comes_too_late_is_sent_on(self):
        one, two = self.daemon(harness.Daemon), self.daemon(harness.Daemon)
        proxy = self.proxy(one.socket, socket.AF_UNIX)
        guest = self.guest(one, "unix", "steps", PARAGPU_UNIX_SOCKET=proxy.address)
        rounds(guest, 1)
        # Nothing more reaches the guest, so no word of the new place does.
        proxy.hold()
        code, _, errors = move(one, f"unix://{two.socket}")
        self.assertEqual(code, 0, errors)
        proxy.cut()
        eventually(lambda: two.sessions()[0]["calls"] > 60, "the program continues at the destination")
        self.assertIn("redirected", one.log())

    def test_a_control_socket_is_refused_as_a_destination(self):
        one, two = self.daemon(harness.Daemon), self.daemon(harness.Daemon)
        guest = self.guest(one, "unix", "steps")
        rounds(guest, 1)
        to = f"unix://{two.control}"
        code, output, errors = move(one, to)
        self.assertEqual(code, 1)
        self.one_sentence(errors, to, "for guests")
        # As for programs.
        self.assertEqual(output["answer"], "error")
        self.assertIn(to, output["error"])
        rounds(guest, 1)

    def test_a_gpu_is_drained(self):
        one = self.daemon(harness.Daemon, "--set=software.devices=2", "--set=pool.warm=2")
        guests = [self.guest(one, communicator, "steps") for communicator in ("shm", "unix", "tcp")]
        for guest in guests:
            rounds(guest, 1)
        shared = one.sessions()[0]["id"]
        code, _, errors = ask(one, "share", str(shared), "--weight", "30")
        self.assertEqual(code, 0, errors)
        code, moved, errors = migrate(one, "--gpu", "0", "--to-gpu", "1")
        self.assertEqual(code, 0, errors + one.log())
        self.assertEqual([session["moved"] for session in moved], [True] * 3)
        for guest in guests:
            rounds(guest, 3)
        eventually(lambda: len(one.sessions()) == 3, "the old workers are gone")
        self.assertEqual({session["device"] for session in one.sessions()}, {"software:1"})
        # The command says their new numbers. A session's own share moves with it.
        numbers = {session["session"]: session["new_session"] for session in moved}
        weights = {session["id"]: session["turns"]["share"]["weight"] for session in one.sessions()}
        expected = {new: 30 if old == shared else 100 for old, new in numbers.items()}
        self.assertEqual(weights, expected)
        code, _, errors = migrate(one, "--gpu", "0", "--to-gpu", "1")
        self.assertNotEqual(code, 0)
        self.one_sentence(errors, "has no sessions")
        number = str(one.sessions()[0]["id"])
        for arguments, word in (
            (("--to-gpu", "1"), "is already on GPU 1"),
            (("--to-gpu", "7"), "there is no GPU 7"),
            (("--to", f"unix://{one.socket}"), "--to-gpu"),
        ):
            code, _, errors = migrate(one, number, *arguments)
            self.assertNotEqual(code, 0)
            self.one_sentence(errors, word)

    def test_without_a_token_it_is_the_same_session_on_the_other_gpu(self):
        one = self.daemon(
            harness.Daemon, "--set=software.devices=2", "--set=pool.warm=2", "--set=limits.reconnect=0", "--set=limits.per_vm=1"
        )
        guest = self.guest(one, "shm", "steps")
        rounds(guest, 1)
        number = only_session(one)
        code, _, errors = ask(one, "share", number, "--weight", "30")
        self.assertEqual(code, 0, errors)
        for gpu in ("1", "0"):
            code, done, errors = migrate(one, number, "--to-gpu", gpu)
            self.assertEqual(code, 0, errors)
            rounds(guest, 1)
            number = only_session(one)
            self.assertEqual(str(done["new_session"]), number)
            self.assertEqual([session["turns"]["share"]["weight"] for session in one.sessions()], [30])
        guest.kill()

    def test_it_goes_on_wherever_hosts_keep_no_sessions(self):
        """Neither end waits for acknowledgements that the other does not send."""
        kept, fleeting = self.daemon(harness.Daemon), self.daemon(harness.Daemon, "--set=limits.reconnect=0")
        gpus = self.daemon(harness.Daemon, "--set=limits.reconnect=0", "--set=software.devices=2")
        for here, there, gpu in ((gpus, gpus, "1"), (kept, fleeting, "0"), (fleeting, kept, "0")):
            for communicator in ("unix", "shm"):
                with self.subTest(communicator, here=here.command, there=there.command):
                    guest = self.guest(here, communicator, "steps")
                    rounds(guest, 1)
                    code, _, errors = move(here, f"unix://{there.socket}", "--to-gpu", gpu)
                    self.assertEqual(code, 0, errors)
                    number = only_session(there)
                    # With three times as many bytes as either end keeps.
                    eventually(lambda at=there: at.sessions()[0]["calls"] > 10_000, "the program goes on")
                    self.assertIsNone(guest.poll())
                    ask(there, "end", number)
                    eventually(lambda at=there: at.sessions() == [], "the session is over")

    def test_with_the_window_of_an_earlier_connection_it_moves_to_other_daemons_only(self):
        one = self.daemon(harness.Daemon, "--set=software.devices=2", "--set=pool.warm=2")
        two = self.daemon(harness.Daemon)
        guest = self.guest(one, "shm", "steps")
        rounds(guest, 1)
        number = only_session(one)
        code, _, errors = migrate(one, number, "--communicator", "tcp")
        self.assertEqual(code, 0, errors)
        rounds(guest, 2)
        code, _, errors = migrate(one, number, "--to-gpu", "1")
        self.assertEqual(code, 1)
        self.one_sentence(errors, "window", "another daemon")
        rounds(guest, 2)
        code, _, errors = move(one, f"unix://{two.socket}")
        self.assertEqual(code, 0, errors + one.log() + two.log())
        rounds(guest, 2)

    def test_one_device_of_a_program_moves_alone(self):
        one = self.daemon(harness.Daemon, "--set=software.devices=2")
        two = self.daemon(harness.Daemon)
        guest = self.guest(one, "shm", "pair")
        rounds(guest, 2)
        second = [str(session["id"]) for session in one.sessions() if session["ordinal"] == 1]
        code, _, errors = migrate(one, *second, "--to", f"unix://{two.socket}")
        self.assertEqual(code, 0, errors + two.log())
        rounds(guest, 3)
        eventually(lambda: len(one.sessions()) == 1, "one is left")
        self.assertEqual([session["ordinal"] for session in two.sessions()], [1])

    def test_all_sessions_of_a_vm_move_or_stay(self):
        one, two = self.daemon(harness.Daemon), self.daemon(harness.Daemon)
        small = self.daemon(harness.Daemon, "--set=software.memory=64MiB")
        guests = [self.guest(one, communicator, "steps") for communicator in ("shm", "unix")]
        for guest in guests:
            rounds(guest, 1)
        large = self.guest(one, "unix", "hold", str(256 << 20))
        read_until(large, "holding")
        code, moved, errors = migrate(one, "--vm", USER, "--to", f"unix://{small.socket}")
        self.assertNotEqual(code, 0)
        self.assertEqual([session["moved"] for session in moved], [False] * 3, moved)
        self.assertTrue(any("MemMap" in session["error"] for session in moved), moved)
        self.assertEqual(len(one.sessions()), 3)
        eventually(lambda: small.sessions() == [], "the destination forgot them")
        for guest in guests:
            rounds(guest, 2)
        # On their own those that can go.
        code, moved, errors = migrate(one, "--gpu", "0", "--to", f"unix://{small.socket}")
        self.assertNotEqual(code, 0)
        self.assertEqual(sorted(session["moved"] for session in moved), [False, True, True], moved)
        for guest in guests:
            rounds(guest, 2)
        eventually(lambda: len(one.sessions()) == 1, "those that went are gone")
        code, moved, errors = migrate(small, "--vm", USER, "--to", f"unix://{two.socket}")
        self.assertEqual(code, 0, (moved, errors))
        for guest in guests:
            rounds(guest, 2)
        eventually(lambda: small.sessions() == [], "both went")
        self.assertEqual(len(two.sessions()), 2)
        code, _, errors = migrate(one, "--vm", "nobody", "--to", f"unix://{two.socket}")
        self.one_sentence(errors, '"nobody" has no session')
        large.stdin.close()
        self.assertEqual(large.wait(harness.PATIENCE), 0)

    def test_a_session_moves_once_at_a_time(self):
        one = self.daemon(harness.Daemon)
        guest = self.guest(one, "unix", "steps")
        rounds(guest, 1)
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as silent:
            silent.bind(os.path.join(folder, "silent"))
            silent.listen()
            to = f"unix://{silent.getsockname()}"
            first = threading.Thread(target=move, args=(one, to))
            first.start()
            link, _ = silent.accept()
            self.assertEqual([session["activity"] for session in one.sessions()], ["moving"])
            code, _, errors = move(one, to)
            self.assertNotEqual(code, 0)
            self.one_sentence(errors, "already being moved or checkpointed")
            rounds(guest, 1)
            link.close()
            first.join(harness.PATIENCE)
        rounds(guest, 1)
        self.assertEqual([session["activity"] for session in one.sessions()], ["serving"])

    def test_the_communicator_alone_changes(self):
        one = self.daemon(harness.Daemon)
        guest = self.guest(one, "tcp", "steps")
        rounds(guest, 1)
        number = only_session(one)
        for communicator in ("unix", "shm", "tcp"):
            code, _, errors = migrate(one, number, "--communicator", communicator)
            self.assertEqual(code, 0, errors)
            rounds(guest, 2)
            self.assertEqual([session["communicator"] for session in one.sessions()], [communicator])
        for communicator, word in (("tcp", "already"), ("vsock", "vsock.port"), ("smoke", "is not a communicator")):
            code, _, errors = migrate(one, number, "--communicator", communicator)
            self.assertNotEqual(code, 0)
            self.one_sentence(errors, word)
        # Its device file is not there.
        code, _, errors = migrate(one, number, "--communicator", "pci")
        self.assertNotEqual(code, 0)
        self.one_sentence(errors, "/dev/paragpu0")
        rounds(guest, 2)

    def test_a_session_is_written_again_and_again(self):
        one = self.daemon(harness.Daemon)
        guest = self.guest(one, "unix", "steps")
        rounds(guest, 1)
        number = only_session(one)
        with tempfile.TemporaryDirectory() as folder:
            states = os.path.join(folder, "states")
            state = os.path.join(states, "session.paragpu")
            code, _, errors = ask(one, "checkpoint", number, states, "--every", "1s")
            self.assertEqual(code, 0, errors)
            first = os.stat(state).st_ino
            eventually(lambda: os.stat(state).st_ino != first, "it is written again")
            info = one.sessions()[0]["checkpoint"]
            self.assertEqual((info["directory"], info["every"], info["error"]), (states, 1.0, None))
            # The checkpoint fails: the last good one stays, and `paragpu list` reports it.
            kept = os.path.join(folder, "kept")
            replace_by_file(states, kept)
            eventually(lambda: one.sessions()[0]["checkpoint"]["error"], "it cannot be written")
            self.assertEqual(os.listdir(kept), ["session.paragpu"])
            rounds(guest, 2)
            # A schedule for one directory is not ended or replaced by that for another.
            for every in ("off", "5s"):
                code, _, errors = ask(one, "checkpoint", number, kept, "--every", every)
                self.assertEqual(code, 1)
                self.one_sentence(errors, "periodically", states)
            self.assertEqual(ask(one, "checkpoint", number, states, "--every", "off")[0], 0)
            self.assertIsNone(one.sessions()[0]["checkpoint"])
            guest.kill()
            eventually(lambda: one.sessions() == [], "the session is over")
            # Its program has ended, but the checkpoint is complete.
            code, _, errors = ask(one, "restore", kept)
            self.assertEqual(code, 0, errors)
            code, _, errors = ask(one, "restore", states)
            self.assertNotEqual(code, 0)
            self.one_sentence(errors, f"the checkpoint in {states} cannot be read")

    def test_a_directory_is_of_one_session(self):
        one = self.daemon(harness.Daemon)
        guests = [self.guest(one, "unix", "steps") for _ in range(2)]
        for guest in guests:
            rounds(guest, 1)
        first, second = (str(session["id"]) for session in one.sessions())
        with tempfile.TemporaryDirectory() as folder:
            code, _, errors = ask(one, "checkpoint", first, folder, "--every", "1h")
            self.assertEqual(code, 0, errors)
            for more in ((), ("--every", "1h")):
                code, _, errors = ask(one, "checkpoint", second, folder, *more)
                self.assertEqual(code, 1)
                self.one_sentence(errors, f"session {first}", folder)

    def test_a_session_that_ends_with_its_connection_is_not_written(self):
        one = self.daemon(harness.Daemon, "--set=limits.reconnect=0")
        guest = self.guest(one, "unix", "steps")
        rounds(guest, 1)
        with tempfile.TemporaryDirectory() as folder:
            for more in ((), ("--end",), ("--every", "1h")):
                code, _, errors = ask(one, "checkpoint", only_session(one), folder, *more)
                self.assertEqual(code, 1)
                self.one_sentence(errors, "limits.reconnect")
            self.assertEqual(os.listdir(folder), [])
        rounds(guest, 1)

    def test_a_session_is_written_on_though_its_daemon_died(self):
        one = self.daemon(harness.Daemon)
        guest = self.guest(one, "unix", "steps")
        rounds(guest, 1)
        number = only_session(one)
        with tempfile.TemporaryDirectory() as folder:
            state = os.path.join(folder, "session.paragpu")
            code, _, errors = ask(one, "checkpoint", number, folder, "--every", "1s")
            self.assertEqual(code, 0, errors)
            one.process.kill()
            one.process.wait(harness.PATIENCE)
            for _ in range(2):
                last = os.stat(state).st_ino
                eventually(lambda last=last: os.stat(state).st_ino != last, "it is written again")
            one.start()
            info = one.sessions()[0]["checkpoint"]
            self.assertEqual((info["directory"], info["every"]), (folder, 1.0))
            last = os.stat(state).st_ino
            eventually(lambda: os.stat(state).st_ino != last, "it is written on")
            code, _, errors = ask(one, "checkpoint", number, folder, "--every", "off")
            self.assertEqual(code, 0, errors)
            self.assertIsNone(one.sessions()[0]["checkpoint"])
            rounds(guest, 2)
            guest.kill()
            eventually(lambda: one.sessions() == [], "its session is over")
            code, _, errors = ask(one, "restore", folder)
            self.assertEqual(code, 0, errors)

    def test_a_session_of_a_daemon_that_crashed_moves(self):
        one = self.daemon(harness.Daemon, "--set=software.devices=2")
        guest = self.guest(one, "shm", "steps")
        rounds(guest, 1)
        number = only_session(one)
        one.process.kill()
        one.process.wait(harness.PATIENCE)
        one.start()

        def gpus():
            return json.loads(ask(one, "status", "-o", "json")[1])["devices"]

        eventually(lambda: len(gpus()) == 2, "the GPUs are found")
        code, _, errors = migrate(one, number, "--to-gpu", "1")
        self.assertEqual(code, 0, errors)
        rounds(guest, 2)
        (moved,) = one.sessions()
        self.assertEqual(moved["device"], "software:1")

    def test_a_program_waits_while_the_daemon_is_restarted(self):
        one = self.daemon(harness.Daemon)
        guest = self.guest(one, "unix", "steps")
        rounds(guest, 1)
        with tempfile.TemporaryDirectory() as folder:
            code, _, errors = ask(one, "checkpoint", only_session(one), folder, "--end")
            self.assertEqual(code, 0, errors)
            one.process.terminate()
            one.process.wait(harness.PATIENCE)
            one.start()
            eventually(lambda: ask(one, "restore", folder)[0] == 0, "a worker is warm")
        eventually(lambda: one.sessions()[0]["calls"] > 60, "the program goes on")
