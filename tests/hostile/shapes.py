"""Extents, pitches and shapes whose products overflow, overlap or exceed the memory."""

import itertools
import os

import wire
from field import ARENA, CHUNK, SHADOWS, STRIDE, WINDOWS, attack, expect, resident, until
from memory import LIMITED, OWN

MOST = (1 << 64) - 1
EDGES = (0, 1, CHUNK, 1 << 32, 1 << 62, 1 << 63, MOST)
ARRAY = 7


def linear(address=ARENA, pitch=0, rows=0):
    """Rows in linear memory."""
    return 0, dict(address=address, pitch=pitch, rows=rows)


def in_array(level=0, origin=(0, 0, 0)):
    """A place in the array."""
    return 1, dict(array=ARRAY, level=level, origin=origin)


class Victim:
    """A session that is replaced once it ended, with 2 MiB, an array and a shadow."""

    def __init__(self, field):
        self.field, self.session, self.cases = field, None, 0

    def ready(self):
        """The session."""
        if not self.session:
            self.session = self.field.session()
            self.session.call("MemMap", address=ARENA, size=CHUNK)
            shape = dict(width=64, height=64, depth=4, format=0x20, channels=4, flags=2, levels=3)
            self.session.call("ArrayCreate", array=ARRAY, shape=shape)
            self.session.call("ShadowCreate", address=SHADOWS, size=1 << 20)
        return self.session

    def accepts(self, call, synchronous=False, **arguments):
        """Does a call succeed? Whatever it does, the host answers."""
        session, self.cases = self.ready(), self.cases + 1
        try:
            if synchronous:
                session.call(call, **arguments)
            else:
                session.post(call, **arguments)
                session.call("ContextSynchronize")
            return True
        except wire.Failed:
            return False
        except ConnectionError:
            self.field.open.remove(session)
            session.close()
            self.session = None
            return False


@attack
def copies_of_impossible_extent(field):
    field.again(*LIMITED)
    victim = Victim(field)
    extents = [(64, MOST, 1), (1, MOST, MOST), (MOST,) * 3, (1 << 32, 1 << 32, 1), (1 << 32, 1 << 31, 2), (1 << 20,) * 3]
    ends = [linear(), linear(pitch=1), linear(pitch=MOST, rows=MOST), linear(MOST, 1, 1), in_array(), in_array(3), in_array(0, (MOST,) * 3)]
    for extent in extents:
        for one, other in itertools.product(ends, ends):
            accepted = victim.accepts("CopyRect", destination=one, source=other, extent=extent, stream=0, token=0)
            expect(not accepted, f"a copy of {extent} from {other} to {one}")
        for end in ends:
            expect(not victim.accepts("CopyRectToDevice", destination=end, extent=extent, stream=0, data=bytes(64)), f"{extent}")
    for size, (one, other) in itertools.product(EDGES[3:], [(ARENA, ARENA), (ARENA, MOST), (MOST, ARENA), (SHADOWS, ARENA)]):
        accepted = victim.accepts("Copy", destination=one, source=other, size=size, stream=0, token=0)
        expect(not accepted, f"a copy of {size:#x} bytes")
    return victim.cases


@attack
def copies_that_read_one_row_forever(field):
    """Rows at one address are little memory, and may be bytes without end."""
    field.again(*LIMITED)
    victim = Victim(field)
    for extent, end in itertools.product(
        [(1 << 20, 1 << 20, 1 << 20), (1 << 20, 1 << 40, 1), (1 << 20, 1, 1 << 40), (64, 4, 1)],
        [linear(), linear(pitch=1, rows=1), linear(pitch=63, rows=MOST)],
    ):
        expect(not victim.accepts("CopyRectFromDevice", True, source=end, extent=extent, stream=0), f"{extent} of {end}")
    return victim.cases


@attack
def fills_of_impossible_extent(field):
    field.again(*LIMITED)
    victim = Victim(field)
    for pitch, element in itertools.product(EDGES, (0, 1, 2, 4, 255)):
        for width, height in ((MOST, 1), (1, MOST), (MOST, MOST), (1 << 62, 4), (1 << 32, 1 << 32), (1, 1 << 40)):
            fill = dict(destination=ARENA, pitch=pitch, value=1, element=element, width=width, height=height, stream=0)
            expect(not victim.accepts("Memset", **fill), f"{fill}")
    return victim.cases


@attack
def arrays_of_impossible_shape(field):
    """Whatever has a size is charged; whatever overflows is refused."""
    field.again(*LIMITED)
    victim = Victim(field)
    worker, number = field.worker(victim.ready()), 100
    for width, height, depth in itertools.product((0, 1, 65536, 1 << 32, MOST), repeat=3):
        for flags, levels in itertools.product((0, 1, 2, 7, MOST >> 32), (0, 17, MOST >> 32)):
            number += 1
            shape = dict(width=width, height=height, depth=depth, format=0x20, channels=4, flags=flags, levels=levels)
            if victim.accepts("ArrayCreate", True, array=number, shape=shape):
                expect(max(width, 1) * max(height, 1) * max(depth, 1) <= 4 << 20, f"an array of {shape}")
                expect(victim.accepts("ArrayDestroy", array=number), f"an array of {shape} stays")
    expect(resident(worker) < OWN, f"arrays that are gone take {resident(worker) >> 20} MiB")
    return victim.cases


@attack
def shadows_and_maps_of_impossible_place(field):
    """They overlap, wrap around, or lie where the worker has its own memory."""
    field.again(*LIMITED)
    victim = Victim(field)
    with open(f"/proc/{field.worker(victim.ready())}/maps", encoding="ascii") as maps:
        own = [int(line.split("-")[0], 16) for line in maps]
    # Where each call may map: device memory, and host memory of a program.
    arena, host = (ARENA, ARENA + STRIDE), (SHADOWS, WINDOWS + 16 * STRIDE)
    possible = {"MemMap": arena, "MemAlias": arena, "ShadowCreate": host}
    places = [0, 4096, ARENA - CHUNK, ARENA + (1 << 40) - CHUNK, SHADOWS - 4096, WINDOWS, WINDOWS + 16 * STRIDE, MOST - CHUNK + 1, 1 << 63, *own[::5]]
    for place, size in itertools.product(places, (0, 1, 4096, CHUNK, CHUNK + 1, 1 << 63, MOST)):
        for call, names in (("MemMap", {}), ("ShadowCreate", {}), ("MemAlias", dict(memory=ARENA, access=3)), ("FileMap", dict(offset=0, file=1))):
            if victim.accepts(call, call != "MemAlias", address=place, size=size, **names):
                first, end = possible.get(call, (0, 0))
                expect(first <= place and place + size <= end, f"{call} of {size:#x} bytes at {place:#x}")
        for call in ("MemUnmap", "MemAliasEnd", "ShadowDestroy", "MemLeave", "FileUnmap"):
            victim.accepts(call, address=place)
    expect(victim.ready().call("Ping", value=1)[0] == 1, "no answer")
    return victim.cases


@attack
def memory_that_goes_under_a_copy(field):
    """Memory is unmapped and remapped while copies to and from it are in flight; its contents do not leak."""
    session, neighbour = field.session(), field.neighbour()
    cases = 0
    for number in range(200):
        session.call("MemMap", address=ARENA, size=CHUNK)
        session.post("CopyToDevice", destination=ARENA, stream=0, data=os.urandom(1 << 16))
        session.post("Copy", destination=ARENA + (1 << 20), source=ARENA, size=1 << 20, stream=0, token=0)
        session.call("MemUnmap", address=ARENA)
        neighbour.call("MemMap", address=ARENA, size=CHUNK)
        found = neighbour.call("CopyFromDevice", source=ARENA + (number % 16) * 4096, size=1 << 16, stream=0)[1]
        expect(found == bytes(1 << 16), "memory has what another session left there")
        neighbour.call("MemUnmap", address=ARENA)
        cases += 4
    expect(session.call("Ping", value=1)[0] == 1, "the session ended")
    return cases


@attack
def a_guest_that_leaves_amid_a_copy(field):
    """Without a goodbye, at any byte of the incoming data."""
    field.again("--set=limits.reconnect=0")
    for number in range(40):
        session = field.session()
        session.call("MemMap", address=ARENA, size=32 << 20)
        session.sequence += 1
        payload = wire.encode_call("CopyFromDevice", source=ARENA, size=32 << 20, stream=0)
        session.send_frame(wire.NUMBERS["CopyFromDevice"], number % 2, session.sequence, payload)
        if number % 2:
            session.receive_exactly(1 + number * 7919)
        field.open.remove(session)
        session.close()
    until("over", lambda: not field.daemon.sessions())
    return 40
