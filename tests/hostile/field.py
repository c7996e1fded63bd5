"""Shared by the attacks: a daemon, tenants, and the distinction of attacks that succeed from failures of the test."""

import contextlib
import os
import random
import shutil
import socket
import struct
import tempfile
import time

import harness
import wire

from blake3 import blake3

ARENA, CHUNK = 0x100000000000, 2 << 20
SHADOWS = 0x300000000000
WINDOWS = 0x400000000000
# Bytes between the arenas of two devices.
STRIDE = 1 << 40
ATTACH, ARRIVE = 0x7F10, 0x7F11
# Long enough for a machine that does much else; an attack that held something
# up did so for longer, or for good.
PATIENCE = harness.PATIENCE
# Seconds in which a host takes nothing, after which it takes no more.
STALLED = 1.5

ATTACKS = {}


class Broken(Exception):
    """An attack went through."""


class Skipped(Exception):
    """An attack cannot be tried on this machine: the reason."""


def needs(possible, what):
    """Skips the attack unless this machine has what it needs."""
    if not possible:
        raise Skipped(f"needs {what}")


def attack(function):
    """Registers an attack: it takes a Field and returns how many cases it tried."""
    ATTACKS[function.__name__.replace("_", "-")] = function
    return function


def expect(held, sentence):
    """Reports the attack as successful if `held` is false."""
    if not held:
        raise Broken(sentence)


class Field:
    """A daemon under attack, and who uses it."""

    def __init__(self, *arguments):
        self.arguments = arguments
        self.daemon = harness.Daemon(*arguments)
        self.source = random.Random(20261122)
        self.open = []
        # Under which guests come over TCP, where they need one.
        self.context = None

    def again(self, *arguments):
        """The same with another daemon."""
        self.close()
        self.__init__(*arguments)
        return self

    @property
    def tcp(self):
        """Where guests connect over TCP."""
        host, port = self.daemon.addresses["tcp"].rsplit(":", 1)
        return host, int(port)

    def session(self, address=None, **options):
        """A session of this user."""
        session = wire.Session(address or self.daemon.socket, deadline=PATIENCE, **options)
        self.open.append(session)
        return session

    def neighbour(self):
        """A session of another tenant: a guest over TCP."""
        return self.session(self.tcp, context=self.context)

    def connect(self, tcp_from=None):
        """A connection that says nothing yet: of this user, or of an address."""
        if tcp_from:
            peer = socket.create_connection(self.tcp, timeout=PATIENCE, source_address=(tcp_from, 0))
        else:
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            peer.settimeout(PATIENCE)
            peer.connect(self.daemon.socket)
        self.open.append(peer)
        return peer

    def device_socket(self):
        """Where device processes connect; earlier daemons have one socket for all."""
        path = os.path.splitext(self.daemon.socket)[0] + ".devices"
        return path if os.path.exists(path) else self.daemon.socket

    def worker(self, session):
        """Process of a session's worker."""
        number = session.welcome["session"]
        found = [one for one in self.daemon.sessions() if one["id"] == number]
        expect(found, f"session {number} is not listed")
        return found[0]["worker_pid"]

    def kernel(self, session, text, name="attack", handle=100):
        """Sends PTX and finds its kernel: a function's handle."""
        image = text.encode() + b"\0"
        digest = blake3(image)
        session.call("ImageWrite", hash=digest, size=len(image), offset=0, data=image)
        session.call("ModuleLoad", module=handle, hash=digest, options=b"")
        session.call("FunctionGet", function=handle + 1, module=handle, name=name)
        return handle + 1

    @staticmethod
    def launch(session, function, parameters=b"", stream=0, grid=(1, 1, 1), block=(1, 1, 1)):
        """Posts a launch."""
        session.post(
            "Launch",
            function=function,
            stream=stream,
            grid=grid,
            block=block,
            dynamic_shared=0,
            flags=0,
            cluster=(0, 0, 0),
            preferences=b"",
            parameters=parameters,
        )

    def growth(self, session, frames, patience):
        """Sends frames as `press` does; returns how many, and by how many bytes the session's worker grew meanwhile."""
        worker = self.worker(session)
        before = resident(worker)
        sent = self.press(session, frames, patience)
        return sent, resident(worker) - before

    def press(self, session, frames, patience=8):
        """Sends frames for as long as the host takes them, at most for `patience` seconds;
        returns how many. The session may end."""
        session.socket.setblocking(False)
        sent, rest = 0, b""
        taken = time.monotonic()
        end = taken + patience
        frames = iter(frames)
        while time.monotonic() < min(end, taken + STALLED):
            while len(rest) < 1 << 18:
                one = next(frames, None)
                if one is None:
                    break
                rest += one
                sent += 1
            if not rest:
                break
            try:
                rest = rest[session.socket.send(rest) :]
                taken = time.monotonic()
            except BlockingIOError:
                time.sleep(0.005)
            except OSError:
                break
        session.socket.setblocking(True)
        session.socket.settimeout(PATIENCE)
        # What was cut off is no frame: nothing follows it.
        if rest:
            self.open.remove(session)
            session.close()
        return sent

    def check(self):
        """The daemon lives and serves new guests."""
        self.hang_up()
        expect(self.daemon.process.poll() is None, "the daemon is gone")
        for session in (self.neighbour(), self.session()):
            expect(session.call("Ping", value=7)[0] == 7, "a session does not answer")
            session.send_frame(wire.GOODBYE, 0, 0, b"")
            session.close()
        for word in ("panicked", "SIGSEGV", "signal 11", "signal 7"):
            expect(word not in self.daemon.log(), f"the log says {word}")

    def hang_up(self):
        """Closes all connections; sessions end with a goodbye, so that none is kept for its guest."""
        for one in self.open:
            try:
                if isinstance(one, wire.Session):
                    one.send_frame(wire.GOODBYE, 0, 0, b"")
            except OSError:
                pass
            one.close()
        self.open.clear()

    def last_words(self):
        """The end of the daemon's log."""
        try:
            return self.daemon.log()[-3000:]
        except FileNotFoundError:
            return ""

    def close(self):
        """Ends the daemon."""
        self.hang_up()
        self.daemon.stop()


def resident(pid):
    """Bytes of a process's memory that are its own: neither files nor shared with others."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        lines = dict(line.split(":", 1) for line in status if ":" in line)
    return sum(int(lines[key].split()[0]) << 10 for key in ("RssAnon", "RssShmem"))


def peak(worker):
    """Most bytes that a worker has had."""
    with open(f"/proc/{worker}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def posted(session, name, slot=0, **arguments):
    """A frame of a call."""
    return next(repeated(session, 1, name, slot, **arguments))


def repeated(session, count, name, slot=0, **arguments):
    """The same call in many frames."""
    payload = wire.encode_call(name, **arguments)
    for _ in range(count):
        session.sequence += 1
        yield wire.HEADER.pack(len(payload), wire.NUMBERS[name], slot, session.sequence) + payload


def descriptors(pid):
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def until(what, wanted, patience=PATIENCE):
    """Waits until a condition holds; otherwise the attack was successful."""
    harness.eventually(wanted, what, patience, Broken)


# A program for `daemon.worker`.
GATED_WORKER = """#!/bin/sh
while [ -e {gate} ]; do sleep 0.02; done
exec {worker} "$@"
"""


@contextlib.contextmanager
def gated_worker(field):
    """A program whose workers start once a file is not there: its path, and the file's. The daemon is another afterwards."""
    with tempfile.TemporaryDirectory(prefix="paragpu-gate-") as place:
        gate, program, real = (os.path.join(place, name) for name in ("gate", "gated", "paragpu-worker"))
        shutil.copy(harness.binary("paragpu-worker"), real)
        with open(program, "w", encoding="ascii") as file:
            file.write(GATED_WORKER.format(gate=gate, worker=real))
        os.chmod(program, 0o755)
        try:
            yield program, gate
            field.check()
        finally:
            if os.path.exists(gate):
                os.remove(gate)
            field.again()


def touch(path):
    """Creates an empty file."""
    with open(path, "w", encoding="ascii"):
        pass


def ptx(body, parameters="", name="attack", registers=""):
    """A kernel's text."""
    return (
        ".version 8.0\n.target sm_90\n.address_size 64\n"
        f".visible .entry {name}({parameters}) {{\n"
        ".reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .f32 %f<8>;\n"
        f"{registers}{body}\nret;\n}}\n"
    )


ENDLESS = ptx("LOOP: bra LOOP;")


def frame(kind, payload, slot=0, sequence=0):
    """A frame's bytes."""
    return wire.HEADER.pack(len(payload), kind, slot, sequence) + payload


def hello(token=bytes(16), transport=1, device=0, pid=1):
    """A hello's bytes."""
    major, minor, patch = wire.VERSION
    fields = dict(magic=wire.MAGIC, major=major, minor=minor, patch=patch, transport=transport)
    fields.update(device=device, token=token, received=0, pid=pid, window=wire.NO_WINDOW, room=0)
    return wire.encode("Hello", fields)


def attach(name):
    """A device process's first frame for a VM of this name."""
    payload = wire.MAGIC + struct.pack("<HHH", *wire.VERSION) + wire.encode("Text", name)
    payload += struct.pack("<IQQQ", 0, 0, 4096, 0) + wire.encode("Bytes", hello(transport=3))
    return frame(ATTACH, payload)


def arrival(name, token=bytes(16), pid=1):
    """The first frame of a session that arrives with its connection, of a VM of this name."""
    payload = wire.MAGIC + struct.pack("<HHH", *wire.VERSION) + wire.encode("Text", name)
    payload += struct.pack("<I", 0) + token + struct.pack("<I", pid)
    payload += wire.encode("Text", "unix") + wire.encode("Text", "") + struct.pack("<IQ", 0xFFFFFFFF, 0)
    return frame(ARRIVE, payload)
