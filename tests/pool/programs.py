"""Programs that keep a GPU busy, over the wire: no library of a guest is needed."""

import json
import os
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("..", "../hostile"):
    sys.path.insert(0, os.path.join(HERE, folder))
# pylint: disable=wrong-import-position
import harness
from blake3 import blake3
from wire import wire

SYNCHRONIZE = wire.NUMBERS["ContextSynchronize"]

# One thread that computes; the kernel's parameter says for how many rounds. NVIDIA's
# compiler would drop a loop without a result.
SPIN = (
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry spin(.param .u32 rounds) {\n"
    ".reg .pred %p<2>; .reg .b32 %r<4>; .shared .b32 result;\n"
    "ld.param.u32 %r1, [rounds]; mov.u32 %r2, 0; mov.u32 %r3, 1;\n"
    "LOOP: mad.lo.u32 %r3, %r3, 1664525, 1013904223;\n"
    "add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r1; @%p1 bra LOOP;\n"
    "st.volatile.shared.u32 [result], %r3; ret;\n}\n"
).encode() + b"\0"
KERNEL, BATCH = 100, 16
# Batches that a program has in flight, so that it always has work.
DEPTH = 4


class Program:
    """A session that launches kernels of one length, batch after batch."""

    def __init__(self, daemon, rounds, pid=1):
        """`pid` is the process that it claims to be."""
        self.session = wire.Session(daemon.socket, deadline=60, pid=pid)
        self.number = self.session.welcome["session"]
        digest = blake3(SPIN)
        self.session.call("ImageWrite", hash=digest, size=len(SPIN), offset=0, data=SPIN)
        self.session.call("ModuleLoad", module=KERNEL, hash=digest, options=b"")
        self.session.call("FunctionGet", function=KERNEL + 1, module=KERNEL, name="spin")
        self.rounds, self.kernels, self.failure = rounds, 0, None
        # Slots whose batches are over.
        self.over = set()
        self.stopping = threading.Event()
        # Called for each completed batch, and for a failure.
        self.moved = threading.Condition()
        self.thread = threading.Thread(target=self.work, daemon=True)

    def post(self, count):
        """Launches so many kernels."""
        for _ in range(count):
            self.session.post(
                "Launch",
                function=KERNEL + 1,
                stream=0,
                grid=(1, 1, 1),
                block=(1, 1, 1),
                dynamic_shared=0,
                flags=0,
                cluster=(0, 0, 0),
                preferences=b"",
                parameters=self.rounds.to_bytes(4, "little"),
            )

    def launch(self, count):
        """Launches so many kernels and waits for them."""
        self.post(count)
        self.session.call("ContextSynchronize")
        self.kernels += count

    def begin(self, slot):
        """Launches a batch; the reply to `slot` reports its completion."""
        self.post(BATCH)
        self.session.sequence += 1
        self.session.send_frame(SYNCHRONIZE, slot, self.session.sequence, b"")

    def finish(self, slot):
        """Waits for a batch."""
        while slot not in self.over:
            kind, got, _, payload = self.session.receive_frame()
            if kind != SYNCHRONIZE | wire.REPLY or payload[:4] != bytes(4):
                raise wire.WireError(f"unexpected frame {kind:#06x} for slot {got}: {payload!r}")
            self.over.add(got)
        self.over.remove(slot)
        with self.moved:
            self.kernels += BATCH
            self.moved.notify_all()

    def work(self):
        """Keeps the GPU busy until the program is stopped."""
        try:
            for slot in range(DEPTH):
                self.begin(slot + 1)
            while not self.stopping.is_set():
                for slot in range(DEPTH):
                    self.finish(slot + 1)
                    self.begin(slot + 1)
        except (OSError, wire.WireError, wire.Failed) as failure:
            with self.moved:
                self.failure = failure
                self.moved.notify_all()

    def reach(self, kernels):
        """Waits until the program has done so many kernels; an error where it fails."""
        with self.moved:
            if not self.moved.wait_for(lambda: self.failure or self.kernels >= kernels, 60):
                raise AssertionError(f"{self.kernels} kernels in 60 s, and not {kernels}")
        if self.failure:
            raise self.failure

    def start(self):
        """Begins to work."""
        self.thread.start()
        return self

    def stop(self):
        """Ends the session in order; an error where the program failed."""
        self.stopping.set()
        if self.thread.ident:
            self.thread.join(60)
        try:
            self.session.send_frame(wire.GOODBYE, 0, 0, b"")
        except OSError:
            pass
        self.session.close()
        if self.failure:
            raise self.failure


def share(daemon, number, *options):
    """`paragpu share`: gives a session a share."""
    command = [harness.binary("paragpu"), "--control", daemon.control, "share", str(number), *map(str, options), "-o", "json"]
    return json.loads(subprocess.check_output(command, timeout=20))


def turns(daemon):
    """The daemon's statistics of turns, by session."""
    return {one["id"]: one["turns"] for one in daemon.sessions()}


def parts(daemon, programs, seconds):
    """What each program got of what all got together, of the GPU's time by the
    daemon's clock and of rounds of kernels; and all turns as a part of the time
    that passed."""

    def sample():
        sessions = {one["id"]: one for one in daemon.sessions()}
        return [(sessions[one.number]["turns"]["seconds"], sessions[one.number]["launches"] * one.rounds) for one in programs]

    before, begin = sample(), time.monotonic()
    time.sleep(seconds)
    after, end = sample(), time.monotonic()
    used, done = ([now[of] - then[of] for now, then in zip(after, before)] for of in (0, 1))
    return [one / sum(used) for one in used], [one / sum(done) for one in done], sum(used) / (end - begin)


def rate(daemon, program, seconds):
    """Rounds of kernels that a program does in a second."""

    def sample():
        (launches,) = (one["launches"] for one in daemon.sessions() if one["id"] == program.number)
        return launches * program.rounds, time.monotonic()

    before, begin = sample()
    time.sleep(seconds)
    after, end = sample()
    return (after - before) / (end - begin)
