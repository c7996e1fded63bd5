"""Peers of other releases are refused with a sentence that names both versions.

The peers are fakes that write bytes, declared here and in wire.py: each handshake
begins alike in every version, whatever follows.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import harness
from wire import wire

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = ".".join(map(str, wire.VERSION))
OTHER = (wire.VERSION[0], wire.VERSION[1] + 6, 1)
THEIRS = ".".join(map(str, OTHER))
# A control frame: magic, version, bytes of JSON.
CONTROL = struct.Struct("<2sHI")
CONTROL_VERSION = 1
# The first frame of a session that arrives from another host.
ARRIVE = 0x7F11
PATIENCE = 60

# Started in the place of paragpu-worker. Its socket is its standard input.
WORKER = """#!{python}
import os, socket, sys
with socket.socket(fileno=0) as control:
    control.send(bytes.fromhex("{packet}"))
    control.recv(65536)
"""


def packet(version, message):
    """A message between daemon and worker."""
    text = json.dumps(message).encode()
    return CONTROL.pack(b"pg", version, len(text)) + text


class Peer:
    """Answers each connection of a unix socket by a function of it, in a thread."""

    def __init__(self, path, answer):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(8)
        self.answer = answer
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        """Until it is closed."""
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.converse, args=(connection,), daemon=True).start()

    def converse(self, connection):
        """One connection."""
        with connection:
            connection.settimeout(PATIENCE)
            try:
                self.answer(connection)
            except OSError:
                pass

    def close(self):
        """Takes no more connections."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(PATIENCE)


def read_frame(connection):
    """A frame's kind and payload."""
    length, kind, _, _ = wire.HEADER.unpack(wire.exactly(connection, wire.HEADER.size))
    return kind, wire.exactly(connection, length)


def frame(kind, payload):
    """A frame outside any session."""
    return wire.HEADER.pack(len(payload), kind, 0, 0) + payload


def version(numbers):
    """As every handshake has it."""
    return struct.pack("<HHH", *numbers)


def refusal(reason):
    """A refusal of another version: that version, and a sentence."""
    text = reason.encode()
    return frame(wire.REFUSAL, version(OTHER) + struct.pack("<I", len(text)) + text)


class Versions(unittest.TestCase):
    """Each pair of programs that may be of different releases."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="paragpu-versions-"))

    def daemon(self, *arguments):
        """A daemon of this release."""
        return self.enterContext(harness.Daemon(*arguments))

    def peer(self, name, answer):
        """A fake peer; its socket."""
        path = os.path.join(self.folder, name)
        self.addCleanup(Peer(path, answer).close)
        return path

    def guest(self, path):
        """The message of a guest's program about its host."""
        configuration = os.path.join(self.folder, "guest.toml")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(f'communicator = "unix"\n[unix]\nsocket = "{path}"\n')
        command = [harness.binary("paragpu"), "run", "--libraries", harness.LIBRARIES, sys.executable]
        program = [os.path.join(HERE, "..", "pool", "guest.py"), "take", "4096"]
        environment = {**os.environ, "PARAGPU_CONFIG": configuration}
        done = subprocess.run([*command, *program], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertNotIn("took", done.stdout)
        return done.stdout + done.stderr

    def paragpu(self, *command):
        """The error message of a command of this release."""
        done = subprocess.run([harness.binary("paragpu"), *command], capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stderr

    def named(self, said, ours=OURS, theirs=THEIRS):
        """Both versions are in a sentence."""
        self.assertIn(ours, said)
        self.assertIn(theirs, said)

    def test_a_daemon_refuses_a_guest_of_another_version(self):
        daemon = self.daemon()
        for numbers in (OTHER, (9, 0, 0), (0, wire.VERSION[1] - 1, 65535)):
            with self.subTest(version=numbers), socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(PATIENCE)
                connection.connect(daemon.socket)
                # The bytes after the version have that version's format and length.
                connection.sendall(frame(wire.HELLO, wire.MAGIC + version(numbers) + b"?" * 300))
                kind, payload = read_frame(connection)
                self.assertEqual(kind, wire.REFUSAL)
                self.assertEqual(payload[:6], version(wire.VERSION))
                self.named(payload[10:].decode(), theirs=".".join(map(str, numbers)))
        # Only the last number may differ.
        patch = (*wire.VERSION[:2], wire.VERSION[2] + 1)
        wire.Session(daemon.socket, version=patch).socket.close()

    def test_a_guest_says_that_its_host_is_of_another_version(self):
        def welcome(connection):
            read_frame(connection)
            connection.sendall(frame(wire.WELCOME, version(OTHER) + b"?" * 100))
            connection.recv(1)

        self.named(self.guest(self.peer("welcomes", welcome)))
        words = f"the peer speaks version {OURS} of the protocol, this side {THEIRS}"

        def refuse(connection):
            read_frame(connection)
            connection.sendall(refusal(words))
            connection.recv(1)

        self.assertIn(words, self.guest(self.peer("refuses", refuse)))

    def test_a_session_stays_when_its_destination_is_of_another_version(self):
        daemon = self.daemon()
        hellos = []

        def refuse(connection):
            hellos.append(read_frame(connection)[1])
            connection.sendall(refusal(f"the peer speaks version {OURS} of the protocol, this side {THEIRS}"))
            connection.recv(1)

        other = self.peer("other", refuse)
        session = wire.Session(daemon.socket)
        number = str(session.welcome["session"])
        said = self.paragpu("--control", daemon.control, "migrate", number, "--to", f"unix://{other}")
        self.named(said)
        # The first bytes say who asks, in every version.
        self.assertEqual(hellos[0][:14], wire.MAGIC + version(wire.VERSION))
        # It continues where it is.
        session.call("ContextSynchronize")
        session.socket.close()

    def test_a_daemon_refuses_the_session_of_a_host_of_another_version(self):
        daemon = self.daemon()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(daemon.socket)
            connection.sendall(frame(ARRIVE, wire.MAGIC + version(OTHER) + b"?" * 40))
            kind, payload = read_frame(connection)
            self.assertEqual(kind, wire.REFUSAL)
            self.named(payload[10:].decode())

    def start_with(self, message):
        """The message to a guest from a daemon whose workers send this first."""
        worker = os.path.join(self.folder, "paragpu-worker")
        with open(worker, "w", encoding="utf-8") as file:
            file.write(WORKER.format(python=sys.executable, packet=message.hex()))
        os.chmod(worker, 0o755)
        daemon = self.daemon("--worker", worker, "--set=confine.users=")
        with self.assertRaises(ConnectionRefusedError) as refused:
            wire.Session(daemon.socket, deadline=PATIENCE)
        return str(refused.exception)

    def test_a_daemon_says_that_its_worker_is_of_another_release(self):
        gpu = {"name": "n", "memory": 1, "uuid": "GPU-0", "compute_capability": "9.0", "cuda_version": "13.0"}
        ready = {"Ready": {"pid": 1, "gpu": gpu}}
        said = self.start_with(packet(7, ready))
        self.assertIn("version 7 of the control protocol", said)
        self.assertIn(f"this side {CONTROL_VERSION}", said)
        self.assertIn("restart paragpud", said)

    def test_a_daemon_says_that_its_worker_says_something_else(self):
        said = self.start_with(packet(CONTROL_VERSION, {"Ready": {"pid": 1, "board": {}}}))
        self.assertIn("board", said)
        self.assertIn("must be of the same release", said)

    def test_a_worker_ends_with_a_sentence_under_a_daemon_of_another_version(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            command = [harness.binary("paragpu-worker"), "--device=software", "--index=0", "--ordinal=0"]
            worker = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            theirs.close()
            ours.settimeout(PATIENCE)
            magic, number, _ = CONTROL.unpack(ours.recv(65536)[: CONTROL.size])
            self.assertEqual((magic, number), (b"pg", CONTROL_VERSION))
            ours.send(packet(7, {"Query": None}))
            said = worker.communicate(timeout=PATIENCE)[0].decode()
        self.assertNotEqual(worker.returncode, 0)
        self.assertIn("version 7 of the control protocol", said)
        self.assertIn(f"this side {CONTROL_VERSION}", said)

    def test_a_command_says_that_its_daemon_is_of_another_release(self):
        who = {"answer": "version", "daemon": "9.8.7\u001b[2J", "protocol": THEIRS, "pid": 1}

        def another(answer):
            def serve(connection):
                for line in connection.makefile("rb"):
                    asked = json.loads(line)["command"]
                    connection.sendall(json.dumps(who if asked == "version" else answer).encode() + b"\n")

            return serve

        for name, answer in (
            ("unknown", {"answer": "error", "error": "bad message: unknown variant `list`"}),
            ("strange", {"answer": "carousel"}),
        ):
            with self.subTest(answer=name):
                said = self.paragpu("--control", self.peer(name, another(answer)), "list")
                self.named(said)
                self.assertIn("9.8.7", said)
                self.assertNotIn("\u001b", said)
        # A daemon of this release that refuses says why itself.
        refused = {"answer": "error", "error": "there is no session 7"}
        self.assertIn("there is no session 7", self.paragpu("--control", self.peer("same", another(refused)), "end", "7"))

    def test_a_daemon_answers_commands_that_it_does_not_know(self):
        daemon = self.daemon()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(daemon.control)
            lines = connection.makefile("rb")
            connection.sendall(b'{"command":"carousel"}\n')
            self.assertIn("carousel", json.loads(lines.readline())["error"])
            connection.sendall(b'{"command":"version"}\n')
            self.assertEqual(json.loads(lines.readline())["protocol"], OURS)

    def agent(self, *messages):
        """The answer of an agent to a requester that sends this."""
        settings = {"TCP_LISTEN": "127.0.0.1:7474"}
        settings |= {name: f"{self.folder}/none" for name in ("LEASE_SOCKET", "LEASE_AUTHORITY", "TCP_CA", "TCP_CERTIFICATE", "TCP_KEY")}
        environment = {**os.environ, **{f"PARAGPU_HOST_{name}": value for name, value in settings.items()}}
        command = [harness.binary("paragpu"), "pool", "agent", "--engine", "none"]
        text = "".join(json.dumps(message) + "\n" for message in messages)
        done = subprocess.run(command, env=environment, input=text, capture_output=True, text=True, timeout=PATIENCE, check=False)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_the_agent_of_a_lease_refuses_a_requester_of_another_version(self):
        claim = {"say": "claim", "memory": 1, "key": "", "again": None, "checkpoint": 0}
        hello, over = self.agent({"say": "hello", "version": 7, "release": "9.8.7"}, claim)
        self.assertEqual((hello["say"], hello["version"]), ("hello", 1))
        self.assertEqual(over["say"], "over")
        self.named(over["reason"], ours="version 1 ", theirs="version 7 ")
        self.assertIn("9.8.7", over["reason"])
        # One that says no version.
        _, over = self.agent(claim)
        self.named(over["reason"], ours="version 1 ", theirs="version 0 ")

    def test_a_requester_refuses_the_agent_of_another_version(self):
        # srun that runs an agent of another release.
        srun = os.path.join(self.folder, "srun")
        with open(srun, "w", encoding="utf-8") as file:
            file.write("""#!/bin/sh
printf '{"say":"hello","version":7,"release":"9.8.7"}\\n'
exec cat >/dev/null
""")
        os.chmod(srun, 0o755)
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        command = [harness.binary("paragpu"), "pool", "hold", f"{self.folder}/lease", "--pool", "slurm", "--memory", "1GiB"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.named(done.stderr, ours="version 1 ", theirs="version 7 ")
        self.assertIn("9.8.7", done.stderr)
