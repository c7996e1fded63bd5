"""Drives a real daemon and worker through the independent wire of wire.py."""

import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest

import harness
from wire import wire

ARENA = 0x100000000000
CHUNK = 2 << 20


def plain(rust_type):
    """A type of the table's page as wire.py names it."""
    kind = re.sub(r"\s+|<'\w+>", "", rust_type)
    if kind == "()":
        return ""
    if kind.endswith(("Handle", "Address", "Offset")):
        return "u64"
    array = re.fullmatch(r"\[(\w+);(\d+)\]", kind)
    return f"{array[1]}x{array[2]}" if array else kind


class Table(unittest.TestCase):
    def test_both_declarations_agree(self):
        table = json.loads(subprocess.check_output([harness.binary("examples/table"), "--json"]))
        self.assertEqual([call["number"] for call in table], sorted(wire.CALLS))
        for call in table:
            name, parameters, reply = wire.CALLS[call["number"]]
            self.assertEqual(call["name"], name)
            self.assertEqual([(p, plain(t)) for p, t in call["parameters"]], parameters, name)
            self.assertEqual(plain(call["reply"]), reply, name)

    def test_fuzz_seeds_follow_the_table(self):
        make = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "corpora", "make.py")
        checked = subprocess.run([sys.executable, make, "--check"], capture_output=True, text=True)
        self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))


class Daemon:
    """A daemon with the software GPU in a folder of its own."""

    def __init__(self, *arguments):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-wire-")
        self.socket = os.path.join(self.folder.name, "paragpud.sock")
        command = [
            harness.binary("paragpud"),
            "--device=software",
            f"--socket={self.socket}",
            f"--control={os.path.join(self.folder.name, 'control.sock')}",
            "--tcp=127.0.0.1:0",
            "--print-addresses",
            *arguments,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.addresses = json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.terminate()
        self.process.wait(wire.PATIENCE)
        self.process.stdout.close()
        self.folder.cleanup()


class Session(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def open(self, **options):
        session = wire.Session(self.daemon.socket, **options)
        self.addCleanup(session.close)
        return session

    def test_ping_comes_back(self):
        session = self.open()
        for value in (0, 1, 2**64 - 1):
            self.assertEqual(session.call("Ping", value=value)[0], value)

    def test_snapshot_is_read_to_its_end(self):
        snapshot, _ = self.open().call("SnapshotDevice", ordinal=0)
        self.assertTrue(snapshot["name"])
        attributes = dict(struct.iter_unpack("<ii", snapshot["attributes"]))
        self.assertEqual(attributes[10], 32, "warp size")

    def test_memory_holds_what_was_written(self):
        session = self.open()
        session.call("MemMap", address=ARENA, size=CHUNK)
        data = random.Random(1).randbytes(700_000)
        part = 200_000
        for at in range(0, len(data), part):
            session.post("CopyToDevice", destination=ARENA + at, stream=0, data=data[at : at + part])
        session.post("Memset", destination=ARENA, pitch=0, value=0x55, element=1, width=16, height=1, stream=0)
        _, back = session.call("CopyFromDevice", source=ARENA, size=len(data), stream=0)
        self.assertEqual(back, b"\x55" * 16 + data[16:])

    def test_a_session_outlives_its_connection(self):
        first = self.open()
        first.call("MemMap", address=ARENA, size=CHUNK)
        set_to = dict(destination=ARENA, pitch=0, value=7, element=1, width=64, height=1, stream=0)
        sent = first.sequence
        # The reply to the second of these is lost with the connection, and comes once with the next.
        calls = ("Memset", 0, set_to), ("Ping", 1, {"value": 77})
        frames = [(wire.NUMBERS[name], slot, sent + number, wire.encode_call(name, **arguments))
                  for number, (name, slot, arguments) in enumerate(calls, 1)]
        for frame in frames:
            first.send_frame(*frame)
        first.sequence = sent + len(frames)
        second = self.open(resumes=first)
        self.assertEqual(second.welcome["session"], first.welcome["session"])
        taken = second.welcome["taken"] - sent
        self.assertIn(taken, (0, 1, 2))
        for frame in frames[taken:]:
            second.send_frame(*frame)
        kind, slot, _, payload = second.receive_frame()
        self.assertEqual((kind, slot), (wire.NUMBERS["Ping"] | wire.REPLY, 1))
        self.assertEqual(payload, struct.pack("<IQ", 0, 77))
        self.assertEqual(second.call("Ping", value=78)[0], 78)
        _, back = second.call("CopyFromDevice", source=ARENA, size=64, stream=0)
        self.assertEqual(back, bytes([7]) * 64)

    def test_a_wrong_token_resumes_nothing(self):
        session = self.open()
        session.welcome["token"] = bytes([1]) * 16
        with self.assertRaises(ConnectionRefusedError) as caught:
            self.open(resumes=session)
        self.assertIn("has ended", str(caught.exception))

    def test_errors_name_the_call(self):
        session = self.open()
        with self.assertRaises(wire.Failed) as caught:
            session.call("MemMap", address=ARENA + 4096, size=CHUNK)
        self.assertEqual((caught.exception.status, caught.exception.call), (1, wire.NUMBERS["MemMap"]))
        session.post("StreamDestroy", stream=99)
        with self.assertRaises(wire.Failed) as caught:
            session.call("ContextSynchronize")
        self.assertEqual((caught.exception.status, caught.exception.call), (400, wire.NUMBERS["StreamDestroy"]))
        session.call("ContextSynchronize")

    def test_streams_events_and_their_handles(self):
        session = self.open()
        session.post("StreamCreate", stream=20, flags=1, priority=0)
        session.post("EventCreate", event=21, flags=0)
        session.post("EventRecord", event=21, stream=20)
        session.call("EventSynchronize", event=21)
        session.call("StreamQuery", stream=20)
        with self.assertRaises(wire.Failed) as caught:
            session.call("EventQuery", event=20)
        self.assertEqual(caught.exception.status, 400, "a stream's handle is no event")

    def test_green_contexts_and_the_ways_to_them(self):
        session = self.open()
        (whole,) = session.call("SmResourceGet")[:1]
        step = wire.encode("SmSplit", {"groups": 1, "flags": 0, "least": 1, "members": b"\1" + bytes(31)})
        made = session.call("GreenCreate", green=20, count=1, way=step)[0]
        self.assertLessEqual(made["count"], whole["count"])
        session.post("GreenStreamCreate", stream=21, green=20, priority=0)
        session.call("StreamSynchronize", stream=21)
        thief = self.open()
        for who, name, arguments, status in (
            (thief, "SmResourceSplit", {"green": 20, "groups": 0, "flags": 0, "least": 1}, 400),
            (session, "GreenCreate", {"green": 22, "count": 1 << 20, "way": b""}, 915),
            (session, "GreenCreate", {"green": 22, "count": 0, "way": step[:-1]}, 1),
            (session, "GreenCreate", {"green": 22, "count": 0, "way": step[:12] + bytes(31) + b"\x40"}, 915),
        ):
            with self.subTest(name, **arguments), self.assertRaises(wire.Failed) as caught:
                who.call(name, **arguments)
            self.assertEqual(caught.exception.status, status)
        session.post("GreenDestroy", green=20)
        with self.assertRaises(wire.Failed) as caught:
            session.call("ContextSynchronize")
        self.assertEqual(caught.exception.call, wire.NUMBERS["GreenDestroy"], "it has a stream")

    def test_last_digit_of_the_version_may_differ(self):
        major, minor, patch = wire.VERSION
        session = self.open(version=(major, minor, patch + 7))
        self.assertEqual(session.call("Ping", value=5)[0], 5)
        with self.assertRaises(ConnectionRefusedError) as caught:
            self.open(version=(major, minor + 1, patch))
        self.assertIn("version", str(caught.exception))

    def test_malformed_calls_end_only_their_session(self):
        bystander = self.open()
        number = wire.NUMBERS["MemMap"]
        frames = {
            "unknown call": (0x7E00, b""),
            "truncated payload": (number, b"\0" * 15),
            "trailing byte": (number, b"\0" * 17),
            "control frame out of place": (wire.WELCOME, b""),
            "reply from the guest": (number | wire.REPLY, b"\0" * 4),
            "call 0": (0, b""),
        }
        for what, (kind, payload) in frames.items():
            with self.subTest(what):
                session = self.open()
                session.send_frame(kind, 1, 1, payload)
                session.read_to_end()
        with self.subTest("sequence out of order"):
            session = self.open()
            session.send_frame(wire.NUMBERS["Ping"], 1, 2, bytes(8))
            session.read_to_end()
        with self.subTest("oversized frame"):
            session = self.open()
            session.socket.sendall(wire.HEADER.pack(wire.MAX_PAYLOAD + 1, number, 1, 1))
            session.read_to_end()
        self.assertEqual(bystander.call("Ping", value=3)[0], 3)

    def test_random_calls_never_hurt_another_session(self):
        bystander = self.open()
        random_source = random.Random(20261121)
        for _ in range(60):
            session = self.open()
            try:
                for sequence in range(1, 40):
                    number = random_source.choice(list(wire.CALLS))
                    payload = random_source.randbytes(random_source.choice((0, 4, 8, 16, 20, 28, 64, 200)))
                    session.send_frame(number, random_source.randrange(3), sequence, payload)
            except OSError:
                pass
            session.close()
        self.assertEqual(bystander.call("Ping", value=4)[0], 4)

    def test_handles_of_another_session_mean_nothing(self):
        owner, thief = self.open(), self.open()
        owner.post("StreamCreate", stream=20, flags=1, priority=0)
        owner.call("MemMap", address=ARENA, size=CHUNK)
        owner.call("StreamSynchronize", stream=20)
        for name, arguments, status in (
            ("StreamSynchronize", {"stream": 20}, 400),
            ("CopyFromDevice", {"source": ARENA, "size": 16, "stream": 0}, 1),
        ):
            with self.subTest(name), self.assertRaises(wire.Failed) as caught:
                thief.call(name, **arguments)
            self.assertEqual(caught.exception.status, status)
        owner.call("StreamSynchronize", stream=20)

    def test_sizes_and_addresses_out_of_bounds_are_refused(self):
        session = self.open()
        session.call("MemMap", address=ARENA, size=CHUNK)
        huge = 2**64 - CHUNK
        refused = (
            ("MemMap", {"address": ARENA + CHUNK, "size": huge}),
            ("MemMap", {"address": huge, "size": 2 * CHUNK}),
            ("MemMap", {"address": ARENA, "size": 0}),
            ("MemMap", {"address": 0, "size": CHUNK}),
            ("ShadowCreate", {"address": 0x7FFF00000000, "size": 4096}),
            ("ShadowRead", {"address": 0x300000000000, "size": 2**63}),
            ("ShadowChanges", {"after": 1, "ranges": struct.pack("<QQ", 0x300000000000, 2**63)}),
            ("ShadowChanges", {"after": 2**32 - 1, "ranges": struct.pack("<QQ", ARENA, 4096)}),
            ("ShadowChanges", {"after": 0, "ranges": bytes(9)}),
            ("ShadowRead", {"address": ARENA + CHUNK - 8, "size": 16}),
            ("ShadowRead", {"address": ARENA, "size": 2**64 - 1}),
            ("ShadowRead", {"address": 0x7FFF00000000, "size": 16}),
            ("CopyFromDevice", {"source": ARENA + CHUNK - 8, "size": 16, "stream": 0}),
            ("CopyFromDevice", {"source": ARENA, "size": 2**64 - 1, "stream": 0}),
            ("CopyFromDevice", {"source": 0, "size": 16, "stream": 0}),
            ("CopyRectFromDevice", {"source": (0, {"address": ARENA, "pitch": 2**63, "rows": 4}), "extent": (8, 8, 8), "stream": 0}),
            ("CopyRectFromDevice", {"source": (0, {"address": ARENA, "pitch": 8, "rows": 1}), "extent": (8, 2**62, 2**62), "stream": 0}),
            ("HostMap", {"offset": 4096, "size": 4096}),
            ("ShadowJoin", {"address": 0x300000000000, "offset": 4096}),
        )
        for name, arguments in refused:
            with self.subTest(f"{name} {arguments}"):
                with self.assertRaises(wire.Failed) as caught:
                    session.call(name, **arguments)
                self.assertEqual(caught.exception.call, wire.NUMBERS[name])
        for name, arguments in (
            ("Memset", {"destination": ARENA + CHUNK - 4, "pitch": 0, "value": 1, "element": 4, "width": 2, "height": 1}),
            ("Memset", {"destination": ARENA, "pitch": 2**63, "value": 1, "element": 1, "width": 1, "height": 2**60}),
            ("Copy", {"destination": ARENA, "source": ARENA + CHUNK, "size": 8, "token": 0}),
            ("Copy", {"destination": ARENA, "source": 0x7FFF00000000, "size": 8, "token": 0}),
        ):
            with self.subTest(f"{name} {arguments}"):
                session.post(name, stream=0, **arguments)
                with self.assertRaises(wire.Failed) as caught:
                    session.call("ContextSynchronize")
                self.assertEqual(caught.exception.call, wire.NUMBERS[name])
        for name, arguments in (
            ("ShadowWrite", {"address": ARENA + CHUNK - 8, "data": bytes(16)}),
            ("ShadowWrite", {"address": 2**64 - 1, "data": bytes(16)}),
            ("ShadowWrite", {"address": 0x7FFF00000000, "data": b"a"}),
            ("ShadowPatch", {"address": ARENA, "runs": struct.pack("<II", CHUNK, 1) + b"a"}),
            ("ShadowPatch", {"address": ARENA, "runs": struct.pack("<II", 0, 2**32 - 1) + b"a"}),
            ("ShadowPatch", {"address": 2**64 - 2, "runs": struct.pack("<II", 1, 1) + b"a"}),
            ("ShadowAgree", {"address": ARENA, "runs": struct.pack("<II", 0, 1) + b"a"}),
            ("ShadowAgree", {"address": 0x300000000000, "runs": struct.pack("<II", 0, 2**32 - 1) + b"a"}),
            ("ShadowAgree", {"address": 2**64 - 2, "runs": struct.pack("<II", 1, 1) + b"a"}),
        ):
            with self.subTest(f"{name} {arguments}"):
                session.post(name, **arguments)
                with self.assertRaises(wire.Failed) as caught:
                    session.call("ContextSynchronize")
                self.assertEqual(caught.exception.call, wire.NUMBERS[name])
        session.call("CopyFromDevice", source=ARENA, size=CHUNK, stream=0)

    def test_a_question_tells_what_is_little(self):
        session = self.open()
        shadow = 0x300000000000
        session.call("ShadowCreate", address=shadow, size=64 << 10)

        def fill(offset, size):
            session.post("Memset", destination=shadow + offset, pitch=0, value=7, element=1, width=size, height=1, stream=0)
            session.call("ContextSynchronize")

        def changes():
            ranges = struct.pack("<QQ", shadow, 64 << 10)
            answer = session.call("ShadowChanges", after=0, ranges=ranges)[0]
            return answer["complete"], answer["runs"]

        self.assertEqual(changes(), (True, b""))
        fill(5000, 3)
        complete, runs = changes()
        self.assertTrue(complete)
        address, length = struct.unpack_from("<QI", runs)
        self.assertLessEqual(address, shadow + 5000)
        self.assertGreaterEqual(address + length, shadow + 5003)
        self.assertEqual(runs[12:].strip(b"\0"), b"\7\7\7")
        session.post("ShadowAgree", address=shadow, runs=struct.pack("<II", address - shadow, length) + runs[12:])
        self.assertEqual(changes(), (True, b""))
        fill(0, 20 << 10)
        self.assertEqual(changes(), (False, b""))
        self.assertEqual(session.call("ShadowRead", address=shadow, size=64 << 10)[1][: 20 << 10], b"\7" * (20 << 10))
        self.assertEqual(changes(), (True, b""))

    def test_device_memory_is_synchronized_like_a_shadow(self):
        session = self.open()
        session.call("MemMap", address=ARENA, size=CHUNK)
        session.post("ShadowWrite", address=ARENA + 5, data=b"abcdef")
        # Two bytes left as they are, then "xy"; one, then "z".
        session.post("ShadowPatch", address=ARENA + 5, runs=struct.pack("<II2sII1s", 2, 2, b"xy", 1, 1, b"z"))
        self.assertEqual(session.call("ShadowRead", address=ARENA + 4, size=8)[1], b"\0abxyez\0")
        size = 3 * wire.MAX_PAYLOAD + 1
        session.post("Memset", destination=ARENA, pitch=0, value=7, element=1, width=size, height=1, stream=0)
        session.call("ContextSynchronize")
        self.assertEqual(session.call("ShadowRead", address=ARENA, size=size)[1], b"\7" * size)

    def test_scribbled_rings_end_only_their_session(self):
        bystander = self.open()
        random_source = random.Random(5)
        # Producer index, lengths in the ring, consumer index, flags: anything but the header's magic.
        for number in range(24):
            with self.subTest(number):
                guest = wire.Shared(self.daemon.socket)
                self.addCleanup(guest.close)
                self.assertEqual(guest.call("Ping", value=number), number)
                guest.scribble(random_source, number)
                self.assertTrue(guest.ended(20), "the host goes on with a ring that makes no sense")
        self.assertEqual(bystander.call("Ping", value=6)[0], 6)

    def test_same_over_tcp(self):
        host, port = self.daemon.addresses["tcp"].rsplit(":", 1)
        session = wire.Session((host, int(port)))
        self.addCleanup(session.close)
        self.assertEqual(session.call("Ping", value=9)[0], 9)


if __name__ == "__main__":
    sys.exit(unittest.main())
