"""State that is cheap to request and stays: objects, their settings, queued calls and replies."""

import struct
import time
from concurrent.futures import ThreadPoolExecutor

import wire
from field import ARENA, CHUNK, ENDLESS, attack, blake3, expect, posted, ptx, repeated, resident
from memory import LIMIT, LIMITED, OWN, written

# A session's allowance of work in flight, which is not charged to its VM.
UNDER_WAY = 32 << 20


def most_of(worker, seconds=4):
    """Most bytes of a worker's memory within this time, or until it ends."""
    end, most = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        try:
            most = max(most, resident(worker))
        except (FileNotFoundError, KeyError, ProcessLookupError):
            break
        time.sleep(0.02)
    return most


def array(levels=1):
    """The shape of a small array for surfaces."""
    return dict(width=16, height=16, depth=0, format=0x20, channels=1, flags=2, levels=levels)


def events(session, number):
    return posted(session, "EventCreate", event=1000 + number, flags=2)


def streams(session, number):
    return posted(session, "StreamCreate", stream=1000 + number, flags=1, priority=0)


def surfaces(session, number):
    return posted(session, "SurfaceCreate", slot=0, surface=1000 + number, array=7, level=0)


@attack
def objects_without_end(field):
    """They are charged to the VM; a session of another VM continues."""
    cases = 0
    for kind in (events, streams, surfaces):
        field.again(*LIMITED)
        session, neighbour = field.session(), field.neighbour()
        worker = field.worker(session)
        session.call("ArrayCreate", array=7, shape=array())
        batch, number, refused = 2000, 0, False
        while number < 400_000 and not refused:
            frames = b"".join(kind(session, number + one) for one in range(batch))
            session.socket.sendall(frames)
            number += batch
            try:
                # Tells of a posted call that failed.
                session.call("ContextSynchronize")
            except wire.Failed as failed:
                expect(failed.status == 2, f"{kind.__name__}: {failed}")
                refused = True
        taken = resident(worker)
        expect(refused and taken < LIMIT + OWN, f"{number} {kind.__name__} take {taken >> 20} MiB, refused: {refused}")
        expect(neighbour.call("Ping", value=1)[0] == 1, "the neighbour's session ended")
        cases += number
    return cases


@attack
def objects_that_go_give_back_their_memory(field):
    """A VM whose limit is reached has room again once objects are destroyed."""
    field.again("--set=limits.per_vm_host_memory=8MiB")
    session, cases = field.session(), 0
    for _ in range(3):
        number = 0
        while True:
            session.post("EventCreate", event=1000 + number, flags=2)
            number += 1
            if number % 500:
                continue
            try:
                session.call("ContextSynchronize")
            except wire.Failed as failed:
                expect(failed.status == 2, f"{failed}")
                break
            expect(number < 200_000, "events without end")
        expect(number > 2000, f"only {number} events")
        for event in range(number):
            session.post("EventDestroy", event=1000 + event)
        try:
            session.call("ContextSynchronize")
        except wire.Failed:
            # Those that were not made.
            pass
        cases += number
    return cases


@attack
def attributes_of_a_stream_without_end(field):
    """A stream keeps one value of each attribute; there are few attributes."""
    field.again(*LIMITED)
    session = field.session()
    worker = field.worker(session)
    session.post("StreamCreate", stream=1000, flags=1, priority=0)
    session.call("Ping", value=1)
    before, many = resident(worker), 400_000
    for first in range(0, many, 4000):
        frames = (
            posted(session, "StreamSetAttribute", stream=1000, attribute=first + number, value=bytes(64))
            for number in range(4000)
        )
        session.socket.sendall(b"".join(frames))
        session.call("Ping", value=1)
    grown = resident(worker) - before
    expect(grown < 16 << 20, f"{many} attributes of a stream take {grown >> 20} MiB")
    return many


@attack
def options_of_modules_without_end(field):
    """What a module was loaded with is kept to load it again, and counts."""
    field.again(*LIMITED)
    session = field.session()
    worker = field.worker(session)
    image = ptx("").encode() + b"\0"
    digest = blake3(image)
    session.call("ImageWrite", hash=digest, size=len(image), offset=0, data=image)
    options, number = struct.pack("<II", 7, 4) * 25_000, 0
    try:
        while number < 1500:
            session.call("ModuleLoad", module=1000 + number, hash=digest, options=options)
            number += 1
    except wire.Failed as failed:
        expect(failed.status in (1, 2), f"{failed}")
    taken = resident(worker)
    expect(number < 1500 and taken < LIMIT + OWN, f"{number} modules with 200 kB of options take {taken >> 20} MiB")
    return number


@attack
def waits_behind_many_streams(field):
    """What a wait for all streams takes does not grow with the number of the streams."""
    field.again(*LIMITED)
    session = field.session()
    worker = field.worker(session)
    session.call("MemMap", address=ARENA, size=CHUNK)
    # A wait for a word that nobody writes.
    endless = struct.pack("<IIQQ", 1, 1, ARENA, 77)
    for number in range(1000):
        session.post("StreamCreate", stream=1000 + number, flags=1, priority=0)
        session.post("StreamMemory", stream=1000 + number, operations=endless)
    session.call("Ping", value=1)
    before, waits = resident(worker), 1000
    for number in range(waits):
        session.sequence += 1
        session.send_frame(wire.NUMBERS["ContextSynchronize"], number + 2, session.sequence, b"")
        if number % 100 == 99:
            session.call("Ping", value=1)
    grown = resident(worker) - before
    expect(grown < UNDER_WAY, f"{waits} waits for 1000 streams take {grown >> 20} MiB")
    return waits


@attack
def replies_that_nobody_acknowledges(field):
    """They are kept for the next connection, and count; the session ends where there is no room."""
    field.again(*LIMITED)
    session, neighbour = field.session(), field.neighbour()
    worker = field.worker(session)
    image = bytes(240 << 10)
    digest = blake3(image)
    session.call("ImageWrite", hash=digest, size=len(image), offset=0, data=image[: 120 << 10])
    session.call("ImageWrite", hash=digest, size=len(image), offset=120 << 10, data=image[120 << 10 :])
    # The guest reads all that comes and never says so.
    session.untold = -(1 << 40)
    most, number = 0, 0
    try:
        for number in range(900):
            session.call("ImageRead", hash=digest, offset=0)
            if number % 20 == 0:
                most = max(most, resident(worker))
    except (OSError, wire.WireError):
        # The host says goodbye.
        field.open.remove(session)
        session.close()
    expect(most < LIMIT + OWN, f"{number} replies of 240 KiB are kept in {most >> 20} MiB")
    expect(neighbour.call("Ping", value=1)[0] == 1, "the neighbour's session ended")
    return number


@attack
def replies_behind_a_wait(field):
    """A thread of a program has one call at a time; who sends more gets no room for the replies."""
    field.again(*LIMITED)
    session, neighbour = field.session(), field.neighbour()
    worker = field.worker(session)
    image = bytes(200 << 10)
    digest = blake3(image)
    session.call("ImageWrite", hash=digest, size=len(image), offset=0, data=image)
    field.launch(session, field.kernel(session, ENDLESS))
    wait = posted(session, "ContextSynchronize", slot=1)
    frames = [wait, *(posted(session, "ImageRead", slot=1, hash=digest, offset=0) for _ in range(3000))]
    sent = field.press(session, frames)
    most = most_of(worker)
    expect(most < LIMIT + OWN, f"replies of {sent} calls wait in {most >> 20} MiB")
    expect(neighbour.call("Ping", value=1)[0] == 1, "the neighbour's session ended")
    return sent


@attack
def calls_behind_a_host_function(field):
    """They are taken in, as the function's end may be among them, as far as the VM has room."""
    field.again(*LIMITED)
    session, neighbour = field.session(), field.neighbour()
    worker = field.worker(session)
    session.call("MemMap", address=ARENA, size=CHUNK)
    session.post("HostFuncLaunch", stream=0, id=1)
    data = bytes(100_000)
    frames = repeated(session, 2000, "CopyToDevice", destination=ARENA, stream=0, data=data)
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(most_of, worker, 6)
        sent = field.press(session, frames, 5)
        taken = watching.result()
    expect(taken < LIMIT + OWN, f"{sent} calls wait in {taken >> 20} MiB")
    expect(neighbour.call("Ping", value=1)[0] == 1, "the neighbour's session ended")
    return sent


@attack
def work_of_many_streams_behind_an_endless_kernel(field):
    """A session's queued work is limited across all streams, and charged."""
    field.again("--set=limits.per_vm_host_memory=16MiB")
    session, neighbour = field.session(), field.neighbour()
    field.launch(session, field.kernel(session, ENDLESS))

    def frames():
        for stream in range(1000, 1200):
            # A blocking stream: its work waits for the legacy stream's.
            yield posted(session, "StreamCreate", stream=stream, flags=0, priority=0)
            launch = dict(grid=(1, 1, 1), block=(1, 1, 1), dynamic_shared=0, flags=0, cluster=(0, 0, 0), preferences=b"", parameters=b"")
            yield from repeated(session, 6000, "Launch", function=101, stream=stream, **launch)
            yield posted(session, "StreamDestroy", stream=stream)

    sent, grown = field.growth(session, frames(), 12)
    expect(grown < UNDER_WAY, f"{sent} launches wait in {grown >> 20} MiB")
    expect(neighbour.call("Ping", value=1)[0] == 1, "the neighbour's session ended")
    return sent


@attack
def parameters_behind_an_endless_kernel(field):
    """A launch with many parameters is more work than one without."""
    field.again(*LIMITED)
    session = field.session()
    field.launch(session, field.kernel(session, ENDLESS))
    big = field.kernel(session, ptx("", ".param .align 4 .b8 p0[4000]"), handle=300)
    launch = dict(grid=(1, 1, 1), block=(1, 1, 1), dynamic_shared=0, flags=0, cluster=(0, 0, 0), preferences=b"", parameters=bytes(4000))
    sent, grown = field.growth(session, repeated(session, 30_000, "Launch", function=big, stream=0, **launch), 6)
    expect(grown < UNDER_WAY, f"{sent} launches with 4 kB of parameters wait in {grown >> 20} MiB")
    return sent


@attack
def operations_behind_an_endless_kernel(field):
    """A call with many operations on memory is more work than one with few."""
    field.again("--set=limits.per_vm_host_memory=8MiB")
    session = field.session()
    session.call("MemMap", address=ARENA, size=CHUNK)
    field.launch(session, field.kernel(session, ENDLESS))
    session.call("Ping", value=1)
    writes = struct.pack("<IIQQ", 2, 0, ARENA, 1) * 256

    def frames():
        for stream in range(1000, 1012):
            yield posted(session, "StreamCreate", stream=stream, flags=0, priority=0)
            yield from repeated(session, 1000, "StreamMemory", stream=stream, operations=writes)

    sent, grown = field.growth(session, frames(), 10)
    expect(grown < 64 << 20, f"{sent} calls with 256 operations wait in {grown >> 20} MiB")
    return sent


@attack
def work_of_the_legacy_stream_behind_many_streams(field):
    """It waits for the work of each stream once, however much of it there is."""
    session = field.session()
    session.call("MemMap", address=ARENA, size=CHUNK)
    field.launch(session, field.kernel(session, ENDLESS))
    fill = dict(destination=ARENA, pitch=0, value=0, element=1, width=4, height=1)
    for stream in range(1000, 7000):
        session.post("StreamCreate", stream=stream, flags=0, priority=0)
        session.post("Memset", stream=stream, **fill)
    session.call("Ping", value=1)
    sent, grown = field.growth(session, repeated(session, 7000, "Memset", stream=0, **fill), 10)
    expect(grown < UNDER_WAY, f"{sent} fills behind 6000 streams wait in {grown >> 20} MiB")
    return sent


@attack
def modules_that_go_behind_an_endless_kernel(field):
    """A launch keeps its module's code; what is unloaded counts until then."""
    limit = 40 << 20
    field.again(f"--set=limits.per_vm_host_memory={limit}")
    session = field.session()
    worker = field.worker(session)
    field.launch(session, field.kernel(session, ENDLESS))
    digest = written(session, ptx("L: " + "@%p1 bra L;" * 20_000, name="attack") + "\0")
    loads = 0
    try:
        for number in range(1000, 1060, 2):
            session.call("ModuleLoad", module=number, hash=digest, options=b"")
            session.call("FunctionGet", function=number + 1, module=number, name="attack")
            field.launch(session, number + 1)
            session.call("ModuleUnload", module=number)
            loads += 1
    except wire.Failed as failed:
        expect(failed.status == 2, f"a module is refused: {failed}")
    expect(loads > 1, "the second module is refused")
    expect(loads < 30, f"{loads} modules that were unloaded take {resident(worker) >> 20} MiB")
    expect(resident(worker) < limit + OWN, f"{loads} modules take {resident(worker) >> 20} MiB")
    return loads


@attack
def objects_that_go_behind_an_endless_kernel(field):
    """What waits for the kernel's end is little, however often something is made and destroyed."""
    field.again("--set=limits.per_vm_host_memory=16MiB")
    session = field.session()
    session.call("ArrayCreate", array=7, shape=array())
    field.launch(session, field.kernel(session, ENDLESS))
    session.call("Ping", value=1)

    def frames():
        for number in range(300_000):
            yield posted(session, "SurfaceCreate", surface=1000 + number, array=7, level=0)
            yield posted(session, "SurfaceDestroy", surface=1000 + number)

    sent, grown = field.growth(session, frames(), 10)
    expect(grown < UNDER_WAY, f"{sent // 2} surfaces that were destroyed take {grown >> 20} MiB")
    return sent
