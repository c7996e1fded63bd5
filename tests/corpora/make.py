#!/usr/bin/env python3
"""Makes the seeds of the fuzz targets, or writes them as files for the fuzzer.

usage: make.py [--check] | make.py --unpack TARGET FOLDER

Without arguments it writes seeds/TARGET.hex; with --check it says whether they
are as it would write them.
"""

import os
import random
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SEEDS = os.path.join(HERE, "seeds")
TESTS = os.path.dirname(HERE)
sys.path[:0] = [os.path.join(TESTS, "wire"), os.path.join(TESTS, "hostile"), TESTS]
# The attacks' helpers are used here, and no program is started.
os.environ.setdefault("PARAGPU_TEST_BINARIES", os.path.join(HERE, "nothing"))

import wire
from field import ARENA, CHUNK, ENDLESS, attach, frame, hello, ptx
from frames import known, value
from kernels import GOOD
from memory import packed

HEADER = wire.HEADER.size
ADD = "add.u32 %r1, %r1, 1;\n"
# Copies of boxes of tensors, changes of a tensor map, products of scaled blocks.
TENSORS = """
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%rd1, {%r3, 7}], [%r2], 3;
cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%rd1, {8, 3, 1}], [%r1];
tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r3], 1, 512;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [%r3], 128;
mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3
{%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f4,%f5,%f6,%f7}, %r6, {0,1}, %r7, {0,2};"""


def calls(source):
    """Number and encoding of every call whose parameters this side can write."""
    for name, number in sorted(wire.NUMBERS.items(), key=lambda pair: pair[1]):
        parameters = wire.CALLS[number][1]
        if all(known(kind) for _, kind in parameters):
            yield number, wire.encode_call(name, **{key: value(source, kind) for key, kind in parameters})


def protocol(source):
    """Two bytes that name a call, then a payload."""
    for number, payload in calls(source):
        if len(payload) <= 400:
            yield f"{number:#06x}", struct.pack("<H", number) + payload
    yield "hello", bytes(2) + hello()
    yield "attach", bytes(2) + attach("vm")[HEADER:]


def stream(source):
    """Eight bytes that say where to cut, then frames."""
    frames = b"".join(frame(number, payload, 1, 1) for number, payload in list(calls(source))[:12])
    yield "whole", bytes(8) + frames
    yield "in-bytes", bytes([1]) * 8 + frames
    yield "in-parts", bytes([3, 200, 16, 7, 0, 129, 1, 90]) + frames
    yield "cut", bytes([15] * 8) + frames[:-3]
    yield "too-long", bytes(8) + wire.HEADER.pack(wire.MAX_PAYLOAD + 1, 5, 0, 0)
    yield "reserved", bytes(8) + frame(0, b"")
    yield "hello", bytes(8) + frame(wire.HELLO, hello())


def ring(source):
    """Size, indices and waits of a ring, its bytes, and what changes between steps."""
    record = frame(wire.NUMBERS["Ping"], bytes(8), 1, 1).ljust(32, b"\0")
    for shift in range(6):
        tail = bytes([1, min(2 << shift, 255)])
        yield f"records-of-{64 << shift}", bytes([shift]) + tail + bytes([1, 0]) + bytes(8) + record * (2 << shift) + source.randbytes(64)
    yield "indices-behind", bytes([0, 1, 0, 1, 9]) + bytes(8) + record * 2
    yield "indices-near-the-end", bytes([0, 3, 0, 3, 2]) + bytes(8) + record * 2
    yield "length-past-the-end", bytes([0, 1, 4, 1, 0]) + bytes(8) + struct.pack("<I", 0xFFFFFFF0) + bytes(60)


def fatbin(_):
    """Containers: packed text, cut ones, and one that names too much."""
    text = ptx(ADD * 40).encode()
    end = text.index(ADD.encode()) + 40 * len(ADD)
    good = packed(text[:end] + b"ret;}\n\n\n", ADD.encode())
    yield "packed", good
    yield "cut", good[:-9]
    yield "header-only", good[:16]
    yield "claims-more", good[:8] + struct.pack("<Q", 1 << 40) + good[16:]


def texts(_):
    """PTX that loads, PTX that does not, and PTX that nests."""
    for name, text in (
        ("good", GOOD),
        ("endless", ENDLESS),
        ("shared", ptx("st.shared.u32 [own], %r1; bar.sync 0;", registers=".shared .align 4 .b8 own[64];\n")),
        ("variable", ".version 8.0\n.target sm_90\n.address_size 64\n.global .align 8 .u64 a[2] = {a, 7};\n"),
        ("tensors", ptx(TENSORS)),
        ("nested", ptx("{" * 40 + "}" * 40)),
        ("unfinished", GOOD[: len(GOOD) // 2]),
        ("semicolons", ".version 8.0\n.target sm_90\n" + ";" * 60),
    ):
        yield name, text.encode()


def session(source):
    """For each call its place in the table, a slot, a length, and the payload."""
    places = {name: place % 256 for place, (name, _) in enumerate(sorted(wire.NUMBERS.items(), key=lambda pair: pair[1]))}

    def one(name, **arguments):
        payload = wire.encode_call(name, **arguments)
        # An odd length means 16 times as many bytes.
        assert len(payload) % 2 == 0 and len(payload) < 256, f"{name} has {len(payload)} bytes"
        return bytes([places[name], 1, len(payload)]) + payload

    begin = one("MemMap", address=ARENA, size=CHUNK)
    work = one("CopyToDevice", destination=ARENA, stream=0, data=bytes(range(64)))
    read = one("CopyFromDevice", source=ARENA, size=64, stream=0)
    yield "memory", begin + work + read + one("MemUnmap", address=ARENA) + read
    yield "twice", begin + begin
    yield "events", one("EventCreate", event=7, flags=0) + one("EventRecord", event=7, stream=0) * 3
    yield "random", begin + source.randbytes(300)


def redirect(_):
    """Objects, a file of facts and a configuration."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 4096, 4096, 4096)
    dynamic = struct.pack("<IIQQQQQQ", 2, 6, 176, 176, 176, 32, 32, 8)
    entries = struct.pack("<QQQQ", 5, 0, 0, 0)
    yield "object", header + load + dynamic + entries
    yield "object-that-is-cut", header + load[:20]
    yield "segments-past-the-end", header + struct.pack("<IIQQQQQQ", 1, 5, 1 << 63, 0, 0, 1 << 63, 1 << 63, 1) + dynamic
    yield "facts", b"paragpu-runtimes 2\nnames cudaFree cudaMalloc\nbuild 13.7.1\nblock 800 1\nregistration 13.7.1\nend 0\n"
    yield "configuration", b"# guest\nredirect = true\nredirect=false\n[tcp]\n"


TARGETS = {"fatbin": fatbin, "protocol": protocol, "ptx": texts, "redirect": redirect, "ring": ring, "session": session, "stream": stream}


def lines(target):
    """A target's seeds, as its file has them."""
    title = f"# Seeds of the fuzz target {target}. Written by tests/corpora/make.py.\n"
    return title + "".join(f"{name} {data.hex()}\n" for name, data in TARGETS[target](random.Random(target)))


def main(arguments):
    if arguments[:1] == ["--unpack"]:
        target, folder = arguments[1:]
        os.makedirs(folder, exist_ok=True)
        for name, data in TARGETS[target](random.Random(target)):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
        return 0
    stale = []
    for target in TARGETS:
        path = os.path.join(SEEDS, f"{target}.hex")
        if arguments == ["--check"]:
            with open(path, encoding="ascii") as file:
                stale += [] if file.read() == lines(target) else [target]
        else:
            with open(path, "w", encoding="ascii") as file:
                file.write(lines(target))
    if stale:
        print(f"run tests/corpora/make.py: stale seeds of {', '.join(stale)}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
