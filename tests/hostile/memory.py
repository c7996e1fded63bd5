"""Host memory that a guest makes a worker allocate."""

import os
import signal
import struct

import wire
from field import ARENA, CHUNK, ENDLESS, SHADOWS, STRIDE, WINDOWS, attack, blake3, expect, peak, ptx, repeated, resident, until

# The limit of one VM in these attacks, and a worker's own memory besides.
LIMIT, OWN = 64 << 20, 96 << 20
LIMITED = ("--set=limits.per_vm_host_memory=64MiB", "--set=limits.memory=64MiB", "--set=limits.per_vm_memory=64MiB")


@attack
def shadows_without_end(field):
    field.again(*LIMITED)
    session = field.session()
    worker = field.worker(session)
    size, cases = 8 << 20, 0
    # Also of memory that other devices' sessions pinned.
    places = SHADOWS, SHADOWS + STRIDE, WINDOWS + 15 * STRIDE
    for number in range(128):
        address = places[number % 3] + number * size
        cases += 1
        try:
            session.call("ShadowCreate", address=address, size=size)
        except wire.Failed:
            break
        data = os.urandom(4096) * 60
        for at in range(0, size, len(data)):
            session.post("ShadowWrite", address=address + at, data=data[: size - at])
        session.call("Ping", value=1)
    expect(resident(worker) < LIMIT + OWN, f"shadows of {resident(worker) >> 20} MiB")
    return cases


@attack
def shadows_of_many_sessions(field):
    field.again(*LIMITED)
    sessions, created = [field.session() for _ in range(4)], 0
    for session in sessions:
        for number in range(16):
            try:
                session.call("ShadowCreate", address=SHADOWS + number * (8 << 20), size=8 << 20)
                created += 8 << 20
            except wire.Failed:
                break
    expect(created <= LIMIT, f"{created >> 20} MiB of shadows in four sessions of one user")
    return 4


def unfinished(session, images, size):
    """Begins images and finishes none; returns how many bytes were taken."""
    taken = 0
    part = os.urandom(128 << 10)
    for number in range(images):
        offset = 0
        while offset + len(part) < size:
            session.call("ImageWrite", hash=bytes([number + 1]) * 32, size=size, offset=offset, data=part)
            offset += len(part)
            taken += len(part)
    return taken


def bytes_of(folder):
    """Bytes of all files below a folder."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total


@attack
def images_that_are_never_finished(field):
    field.again(*LIMITED)
    cases = 0
    for _ in range(3):
        session = field.session()
        try:
            unfinished(session, 8, 48 << 20)
        except (wire.Failed, ConnectionError, OSError):
            pass
        cases += 8
    cache = bytes_of(field.daemon.environment["PARAGPU_HOST_CACHE_DIRECTORY"])
    expect(cache <= LIMIT + (4 << 20), f"unfinished images of {cache >> 20} MiB")
    return cases


@attack
def unfinished_images_in_memory(field):
    field.again(*LIMITED, "--set=cache.size=0")
    session = field.session()
    worker = field.worker(session)
    try:
        unfinished(session, 8, 48 << 20)
    except (wire.Failed, ConnectionError, OSError):
        pass
    expect(resident(worker) < LIMIT + OWN, f"unfinished images of {resident(worker) >> 20} MiB")
    return 8


@attack
def files_of_a_worker_that_died(field):
    session = field.session()
    unfinished(session, 2, 2 << 20)
    cache = field.daemon.environment["PARAGPU_HOST_CACHE_DIRECTORY"]
    os.kill(field.worker(session), signal.SIGKILL)
    until("removed", lambda: bytes_of(cache) < 1 << 20)
    return 2


@attack
def launches_behind_an_endless_kernel(field):
    session = field.session()
    field.launch(session, field.kernel(session, ENDLESS))
    launch = dict(grid=(1, 1, 1), block=(1, 1, 1), dynamic_shared=0, flags=0, cluster=(0, 0, 0), preferences=b"", parameters=b"")
    sent, grown = field.growth(session, repeated(session, 300_000, "Launch", function=101, stream=0, **launch), 6)
    expect(grown < 96 << 20, f"{sent} launches wait in {grown >> 20} MiB")
    return sent


@attack
def events_behind_an_endless_kernel(field):
    session = field.session()
    field.launch(session, field.kernel(session, ENDLESS))
    session.post("EventCreate", event=300, flags=2)
    sent, grown = field.growth(session, repeated(session, 300_000, "EventRecord", event=300, stream=0), 6)
    expect(grown < 96 << 20, f"{sent} events wait in {grown >> 20} MiB")
    return sent


@attack
def modules_without_end(field):
    field.again(*LIMITED)
    session = field.session()
    worker = field.worker(session)
    body = "".join(f"add.u32 %r1, %r1, {number};\n" for number in range(9000))
    image = ptx(body).encode() + b"\0"
    digest = blake3(image)
    cases = 0
    try:
        session.call("ImageWrite", hash=digest, size=len(image), offset=0, data=image)
        for number in range(400):
            session.call("ModuleLoad", module=100 + number, hash=digest, options=b"")
            cases += 1
    except (wire.Failed, ConnectionError, OSError):
        cases += 1
    expect(resident(worker) < LIMIT + OWN, f"{cases} modules take {resident(worker) >> 20} MiB")
    return cases


def packed(text, line):
    """A container of a text that repeats `line` after its beginning, in LZ4."""
    start = text.index(line) + len(line)
    tail = text[-8:]
    repeated = len(text) - start - len(tail)

    def length(value):
        return b"\xff" * (value // 255) + bytes([value % 255])

    block = b"\xff" + length(start - 15) + text[:start] + struct.pack("<H", len(line)) + length(repeated - 4 - 15)
    block += bytes([len(tail) << 4]) + tail
    padded = block + bytes(-len(block) % 8)
    fields = (1, 0x101, 64, len(padded), len(block), 0, b"\0\0\x09\0", 90, 0, 0x2000, 0, len(text))
    entry = struct.pack("<HHIQII4sIQQQQ", *fields) + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry


@attack
def packed_modules_without_end(field):
    field.again(*LIMITED)
    session = field.session()
    worker = field.worker(session)
    line, cases = b"add.u32 %r1, %r1, 1;\n", 0
    try:
        for number in range(400):
            body = ptx((line * 10_000).decode(), name=f"attack{number}").encode()
            # What comes behind the lines is short, and stands in the tail.
            end = body.index(line) + 10_000 * len(line)
            image = packed(body[:end] + b"ret;}\n\n\n", line)
            expect(len(image) < len(body) // 50, "it is packed")
            digest = blake3(image)
            session.call("ImageWrite", hash=digest, size=len(image), offset=0, data=image)
            session.call("ModuleLoad", module=100 + number, hash=digest, options=b"")
            session.call("FunctionGet", module=100 + number, function=100 + number, name=f"attack{number}")
            cases += 1
    except (wire.Failed, ConnectionError, OSError):
        cases += 1
    expect(cases > 2, "some are loaded")
    expect(resident(worker) < LIMIT + OWN, f"{cases} modules take {resident(worker) >> 20} MiB")
    return cases


# Of the text below, since hashing 60 MiB here takes a minute.
SEMICOLONS = bytes.fromhex("69a625148cc3b3a4dac9e8453529b83b79680d94825f7c23e55d9e237f850c53")


@attack
def a_text_of_semicolons(field):
    limit = 256 << 20
    field.again(f"--set=limits.per_vm_host_memory={limit}", "--set=cache.size=0")
    session = field.session()
    worker = field.worker(session)
    image = b".version 8.0\n.target sm_90\n.address_size 64\n" + b";" * (60 << 20) + b"\0"
    part = 200_000
    for offset in range(0, len(image), part):
        session.call("ImageWrite", hash=SEMICOLONS, size=len(image), offset=offset, data=image[offset : offset + part])
    for number in range(4):
        try:
            session.call("ModuleLoad", module=100 + number, hash=SEMICOLONS, options=b"")
        except wire.Failed as failed:
            # Out of memory, or invalid PTX: the whole image has arrived.
            expect(failed.status in (2, 218), f"the text is not loaded, but {failed}")
    most = peak(worker)
    expect(most < limit + OWN, f"a text of 60 MiB takes {most >> 20} MiB")
    return 4


HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
# Texts that a decoder might expand: many branches share a list, many returns store many results,
# many callers have the reason of one refusal.
EXPANDED = {
    "branches": HEAD
    + ".entry attack(){.reg .b32 r;\nA: T: .branchtargets "
    + ",".join(["A"] * 30_000)
    + ";\n"
    + "brx.idx r,T;" * 10_000
    + "ret;}",
    "returns": HEAD + ".func (" + ",".join(f".reg .b32 a{n}" for n in range(500)) + ") f(){" + "ret;" * 20_000 + "}",
    "refusals": HEAD
    + ".func f(){"
    + "a" * 30_000
    + ";}"
    + "".join(f".entry e{n}(){{call f;}}" for n in range(10_000)),
}


def written(session, text):
    """Writes an image, in parts. Returns its hash."""
    image = text.encode()
    digest = blake3(image)
    for offset in range(0, len(image), 200_000):
        session.call("ImageWrite", hash=digest, size=len(image), offset=offset, data=image[offset : offset + 200_000])
    return digest


@attack
def texts_that_expand(field):
    """Decoding takes memory in proportion to the text."""
    for name, text in EXPANDED.items():
        field.again(*LIMITED)
        session = field.session()
        worker = field.worker(session)
        digest = written(session, text)
        try:
            session.call("ModuleLoad", module=100, hash=digest, options=b"")
        except wire.Failed as failed:
            expect(failed.status in (2, 218, 801), f"{name}: {failed}")
        most = peak(worker)
        expect(most < LIMIT + OWN, f"{name}: a text of {len(text)} bytes takes {most >> 20} MiB")
    return len(EXPANDED)


@attack
def names_that_a_link_lengthens(field):
    """A link gives a private name a short suffix, however many names are taken."""
    limit = 256 << 20
    field.again(f"--set=limits.per_vm_host_memory={limit}")
    session = field.session()
    worker = field.worker(session)
    taken = "".join(".visible .global .b8 a$of1" + "_" * n + ";" for n in range(1500))
    uses = ",".join(["a"] * 800_000)
    texts = (
        HEAD + ".global .b8 a;\n" + taken + ".visible .entry attack(){ret;}",
        HEAD + ".global .b8 a;\n.global .b64 g[800000]={" + uses + "};\n",
    )
    inputs = b"".join(
        wire.encode("LinkInput", dict(kind=1, name="", options=b"", hash=written(session, text))) for text in texts
    )
    try:
        session.call("ImageLink", options=b"", inputs=inputs)
    except wire.Failed as failed:
        expect(failed.status == 2, f"{failed}")
    most = peak(worker)
    expect(most < limit + OWN, f"a link takes {most >> 20} MiB")
    return 1


@attack
def links_of_one_image_without_end(field):
    """It is read once, and each input is charged."""
    field.again(*LIMITED)
    session = field.session()
    worker = field.worker(session)
    image = ptx("add.u32 %r1, %r1, 1;\n" * 20_000).encode()
    digest = blake3(image)
    for offset in range(0, len(image), 200_000):
        session.call("ImageWrite", hash=digest, size=len(image), offset=offset, data=image[offset : offset + 200_000])
    one = wire.encode("LinkInput", dict(kind=1, name="", options=b"", hash=digest))
    for number in (2000, 4097, 5900):
        try:
            session.call("ImageLink", options=b"", inputs=one * number)
            expect(False, f"a link of {number} times {len(image)} bytes")
        except wire.Failed as failed:
            expect(failed.status == (2 if number <= 4096 else 1), f"{failed}")
    most = peak(worker)
    expect(most < LIMIT + OWN, f"links of one image take {most >> 20} MiB")
    return 3


@attack
def images_of_a_few_bytes(field):
    """Each counts for a page of the cache."""
    field.again("--set=cache.size=1MiB")
    session = field.session()
    for number in range(1500):
        image = struct.pack("<I", number)
        session.call("ImageWrite", hash=blake3(image), size=len(image), offset=0, data=image)
    cache = bytes_of(field.daemon.environment["PARAGPU_HOST_CACHE_DIRECTORY"])
    expect(cache <= 2 << 20, f"images of 4 bytes take {cache >> 20} MiB")
    return 1500


@attack
def device_memory_past_the_limit(field):
    field.again(*LIMITED)
    sessions, mapped = [field.session() for _ in range(4)], 0
    for session in sessions:
        for number in range(40):
            try:
                session.call("MemMap", address=ARENA + number * CHUNK, size=CHUNK)
                mapped += CHUNK
            except wire.Failed:
                break
    expect(mapped <= LIMIT, f"{mapped >> 20} MiB of device memory")
    return 4


@attack
def images_of_others(field):
    """What another VM sent is neither found nor loaded."""
    owner, thief = field.session(), field.neighbour()
    image = ENDLESS.replace("LOOP", "OTHER").encode() + b"\0"
    digest = blake3(image)
    owner.call("ImageWrite", hash=digest, size=len(image), offset=0, data=image)
    expect(owner.call("ImageQuery", hash=digest, size=len(image))[0], "the image is not there")
    expect(not thief.call("ImageQuery", hash=digest, size=len(image))[0], "a VM learns what others use")
    try:
        thief.call("ModuleLoad", module=100, hash=digest, options=b"")
        expect(False, "a VM loads the kernels of another")
    except wire.Failed:
        pass
    return 2


@attack
def images_that_push_others_out(field):
    field.again("--set=cache.size=300KiB")
    owner, thief = field.session(), field.neighbour()
    image = ENDLESS.encode() + b"\0"
    digest = blake3(image)
    owner.call("ImageWrite", hash=digest, size=len(image), offset=0, data=image)
    for number in range(8):
        other = bytes([number]) * 50_000
        thief.call("ImageWrite", hash=blake3(other), size=len(other), offset=0, data=other)
    expect(owner.call("ImageQuery", hash=digest, size=len(image))[0], "a VM pushes out what others keep")
    return 8


@attack
def workers_die_first(field):
    session = field.session()
    with open(f"/proc/{field.worker(session)}/oom_score_adj", encoding="ascii") as score:
        worker = int(score.read())
    with open(f"/proc/{field.daemon.process.pid}/oom_score_adj", encoding="ascii") as score:
        daemon = int(score.read())
    expect(worker > daemon, f"the kernel would kill the daemon ({daemon}) before a worker ({worker})")
    return 1
