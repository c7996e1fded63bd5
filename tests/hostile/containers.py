"""Images of modules: containers, compressed texts and machine code whose headers lie."""

import os
import struct

import wire
from field import attack, blake3, expect, peak, ptx, resident
from memory import LIMIT, LIMITED, OWN

MOST = (1 << 64) - 1
GOOD = ptx("").encode() + b"\0"
ZSTD, LZ4 = 0x8000, 0x2000


def entry(payload, kind=1, flags=0, unpacked=0, header=64, padded=None, architecture=90):
    """An entry of a container; its sizes are true unless others are given."""
    data = payload + bytes(-len(payload) % 8)
    size = len(data) if padded is None else padded
    fields = (kind, 0x101, header, size, len(payload), 0, b"\0\0\x09\0", architecture, 0, flags, 0, unpacked)
    return struct.pack("<HHIQII4sIQQQQ", *fields) + data


def container(*entries, header=16, body=None):
    """A container; its sizes are true unless others are given."""
    data = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, header, len(data) if body is None else body) + data


def zstd(descriptor, header, blocks):
    """A frame of Zstandard."""
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + header + blocks


def repeated(times):
    """Blocks that are 128 KiB of one letter each, in four bytes."""
    return (struct.pack("<I", 131072 << 3 | 2)[:3] + b";") * times + b"\x01\0\0"


def loads(field, image):
    """Sends an image and loads it; whether that succeeded. The worker stays within its limit."""
    session = field.session()
    worker = field.worker(session)
    try:
        digest = blake3(image)
        session.call("ImageWrite", hash=digest, size=len(image), offset=0, data=image)
        session.call("ModuleLoad", module=100, hash=digest, options=b"")
        session.call("FunctionGet", function=101, module=100, name="attack")
        loaded = True
    except (wire.Failed, ConnectionError):
        loaded = False
    most = peak(worker)
    expect(most < LIMIT + OWN, f"an image of {len(image)} bytes takes {most >> 20} MiB")
    field.hang_up()
    return loaded


@attack
def containers_that_lie(field):
    field.again(*LIMITED)
    expect(loads(field, container(entry(GOOD))), "a good container is refused")
    sizes = (1 << 32, 1 << 63, MOST - 63, MOST)
    images = [container(entry(GOOD), header=header) for header in (0, 15, 17, 65535)]
    images += [container(entry(GOOD), body=body) for body in (0, 1, 63, *sizes)]
    images += [container(entry(GOOD, header=header)) for header in (0, 63, MOST >> 32)]
    images += [container(entry(GOOD, padded=padded)) for padded in (0, 1, *sizes)]
    images += [container(entry(container(entry(GOOD)))), container(*[entry(b"")] * 2000), b"\x7fELF", b"\xff" * 5000]
    for image in images:
        expect(not loads(field, image), f"loaded: {image[:96].hex()}")
    return len(images)


@attack
def compressed_images_that_lie(field):
    """They claim windows of terabytes, unpack to more than they say, or to more than any text may have."""
    field.again(*LIMITED)
    frames = [
        zstd(0, b"\xff", b"\x01\0\0"),
        zstd(0, b"\xf8", b"\x09\0\0a"),
        zstd(0xE0, struct.pack("<Q", 1 << 60), b"\x01\0\0"),
        zstd(0xA0, struct.pack("<I", 64 << 20), repeated(512)),
        zstd(0, b"\x50", repeated(50_000)),
    ]
    images = [(frame, ZSTD) for frame in frames] + [(b"\x1f/\x01\0" + b"\xff" * 200_000 + b"\0", LZ4)]
    cases = 0
    for payload, flags in images:
        for unpacked in (0, 1000, 64 << 20, (64 << 20) + 1, MOST):
            cases += 1
            expect(not loads(field, container(entry(payload, flags=flags, unpacked=unpacked))), f"{payload[:16].hex()} is loaded")
    # Of many forms the host unpacks one.
    many = [entry(frames[3], flags=ZSTD, unpacked=64 << 20, architecture=50 + number) for number in range(40)]
    expect(not loads(field, container(*many)), "it is loaded")
    return cases + 40


@attack
def machine_code_that_lies(field):
    field.again(*LIMITED)
    lies = [{}, {"sections": MOST}, {"sections": 1 << 63}, {"count": 65535}, {"size": 0}, {"size": 65535, "count": 65535}, {"names": 65535}]
    cases = 0
    for lie in lies:
        sections, count, size, names = (lie.get(key, good) for key, good in (("sections", 64), ("count", 4), ("size", 64), ("names", 1)))
        head = b"\x7fELF\2\1\1\x33" + bytes(8)
        head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, sections, 90 | 90 << 16, 64, 56, 0, size, count, names)
        code = head + os.urandom(2000)
        for image in (code, code[:65], container(entry(code, kind=2)), container(entry(code, kind=2), entry(GOOD, architecture=30))):
            loads(field, image)
            cases += 1
    return cases


@attack
def declarations_of_impossible_size(field):
    """Variables, registers, parameters and alignments that no device has; expressions without end."""
    field.again(*LIMITED)
    head = ".version 8.0\n.target sm_90\n.address_size 64\n"
    kernel = ".visible .entry attack() { ret; }\n"
    spaces = [f".{space} .align 8 .b64 own[{size}];\n" for space in ("shared", "local") for size in (1 << 29, 1 << 61, MOST)]
    spaces += [f".{space} .align {by} .b8 own[8];\n" for space in ("shared", "local") for by in (0, 3, 8192, 1 << 31, 1 << 63)]
    spaces += [".shared .b64 own[65536][65536][65536][65536];\n"]
    texts = [ptx("", registers=one) for one in spaces]
    texts += [f"{head}.{space} .align 8 .b8 own[{size}];\n{kernel}" for space in ("global", "const") for size in (60 << 30, 1 << 63, MOST)]
    texts += [ptx("", f".param .align 8 .b8 p0[{size}]") for size in (4_000_000_000, 1 << 63)]
    texts += [f"{head}.global .b32 own = {'(' * 50_000}1{')' * 50_000};\n{kernel}", f"{head}.global .b32 own = {'-' * 50_000}1;\n{kernel}"]
    texts += [f"{head}.global .b32 own = {what};\n{kernel}" for what in ("1/0", "1%0")]
    texts += [f"{head}.global .b32 own[2] = {{1,2,3}};\n{kernel}", f"{head}/*{'*' * 100_000}", ptx("mov.u32 %r1," + "9" * 100_000 + ";")]
    for text in texts:
        expect(not loads(field, text.encode() + b"\0"), f"loaded: {text[:160]}")
    # Registers that no instruction uses are none.
    unused = ptx("", registers=".reg .b64 %huge<4000000000>;\n")
    expect(loads(field, unused.encode() + b"\0"), "registers that are not used are refused")
    return len(texts) + 1


@attack
def a_module_that_is_loaded_by_many(field):
    """A VM's sessions load one large module together: each is charged, and the neighbour continues."""
    field.again(*LIMITED)
    body = "".join(f"add.u32 %r1, %r1, {number};\n" for number in range(6000))
    image, sessions, neighbour = ptx(body).encode() + b"\0", [field.session() for _ in range(8)], field.neighbour()
    digest, loaded = blake3(image), 0
    sessions[0].call("ImageWrite", hash=digest, size=len(image), offset=0, data=image)
    workers = [field.worker(session) for session in sessions]
    for number in range(200):
        try:
            sessions[number % 8].call("ModuleLoad", module=100 + number, hash=digest, options=b"")
            loaded += 1
        except wire.Failed as failed:
            expect(failed.status == 2, f"{failed}")
    taken = sum(map(resident, workers))
    expect(loaded < 200 and taken < LIMIT + 8 * OWN, f"{loaded} modules take {taken >> 20} MiB")
    expect(neighbour.call("Ping", value=1)[0] == 1, "the neighbour's session ended")
    return 200
