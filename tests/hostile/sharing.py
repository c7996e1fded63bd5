"""Memory shared between sessions, and addresses: stale and forged tokens, and those of other VMs."""

import os
import resource
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import wire
from files import paragpu
from field import ARENA, CHUNK, ENDLESS, PATIENCE, SHADOWS, STRIDE, Field, attack, descriptors, expect, resident, until

INVALID_VALUE, INVALID_HANDLE = 1, 400


def refused(session, call, status=None, **arguments):
    """A call must fail, with this status if one is given."""
    try:
        session.call(call, **arguments)
    except wire.Failed as failed:
        expect(status in (None, failed.status), f"{call}: {failed}")
        return
    expect(False, f"{call} of {arguments} succeeds")


@attack
def shared_memory_of_others(field):
    """Names of shared memory hold in their VM, while the memory is there."""
    owner, friend, stranger = field.session(), field.session(), field.neighbour()
    owner.call("MemMap", address=ARENA, size=CHUNK)
    offer = owner.call("MemOffer", address=ARENA + 5)[0]
    token, place = offer["token"], ARENA + 8 * CHUNK
    cases = 0
    # Another VM, guessed names, the name's own session, another size, a place that is taken or outside.
    for session, name, address, size in [
        (stranger, token, place, CHUNK),
        (friend, bytes(16), place, CHUNK),
        (friend, token[:15] + bytes([token[15] ^ 1]), place, CHUNK),
        (owner, token, place, CHUNK),
        (friend, token, place, 2 * CHUNK),
        (friend, token, place + 4096, CHUNK),
        (friend, token, 1 << 40, CHUNK),
        (friend, token, (1 << 64) - CHUNK, CHUNK),
        *((friend, field.source.randbytes(16), place, CHUNK) for _ in range(200)),
    ]:
        refused(session, "MemTake", address=address, size=size, token=name)
        cases += 1
    friend.call("MemTake", address=place, size=CHUNK, token=token)
    refused(friend, "MemTake", address=place, size=CHUNK, token=token)
    # What is another's is neither offered nor unmapped, and foreign addresses are not left.
    refused(friend, "MemOffer", address=place)
    refused(friend, "MemOffer", address=ARENA)
    refused(friend, "MemUnmap", address=place)
    refused(friend, "MemLeave", address=ARENA)
    friend.call("MemLeave", address=place)
    # Stale: the memory is gone, then its session.
    owner.call("MemUnmap", address=ARENA)
    refused(friend, "MemTake", INVALID_HANDLE, address=place, size=CHUNK, token=token)
    owner.call("MemMap", address=ARENA, size=CHUNK)
    token = owner.call("MemOffer", address=ARENA)[0]["token"]
    owner.send_frame(wire.GOODBYE, 0, 0, b"")
    until("ended", lambda: len(field.daemon.sessions()) == 2)
    refused(friend, "MemTake", INVALID_HANDLE, address=place, size=CHUNK, token=token)
    return cases + 8


@attack
def memory_that_outlives_its_owner(field):
    """What a session frees, or leaves behind, counts while another device has it mapped."""
    field.again("--set=limits.memory=256MiB", "--set=limits.per_vm_memory=256MiB", "--set=software.memory=4GiB")
    size, there, full, cases = 200 << 20, ARENA + STRIDE, 2, 0
    for number in (1, 2):
        sessions = [field.session() for _ in range(number)]
        owner, friend = sessions[0], sessions[-1]
        owner.call("MemMap", address=ARENA, size=size)
        token = owner.call("MemOffer", address=ARENA)[0]["token"]
        # Twice, and still the same memory.
        for place in (there, there + size):
            friend.call("MemTake", address=place, size=size, token=token)
        for session in sessions:
            free = session.call("MemGetInfo")[0]["free"]
            expect(free == 56 << 20, f"{free >> 20} MiB are free, where one session has 200 of 256")
        owner.call("MemUnmap", address=ARENA)
        for session in sessions:
            refused(session, "MemMap", full, address=ARENA, size=size)
        friend.call("MemLeave", address=there)
        refused(friend, "MemMap", full, address=ARENA, size=size)
        if friend is not owner:
            owner.send_frame(wire.GOODBYE, 0, 0, b"")
            until("ended", lambda: len(field.daemon.sessions()) == 1)
            refused(friend, "MemMap", full, address=ARENA, size=size)
        friend.call("MemLeave", address=there + size)
        friend.call("MemMap", address=ARENA, size=size)
        friend.send_frame(wire.GOODBYE, 0, 0, b"")
        until("ended", lambda: not field.daemon.sessions())
        cases += 8
    return cases


@attack
def offers_that_take_the_daemons_descriptors(field):
    """Each takes one; guests still connect, and other VMs still offer memory."""
    field.again("--set=software.memory=8GiB")
    resource.prlimit(field.daemon.process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
    # Of one VM; its worker has a descriptor for each mapping, too.
    sessions, cases = [field.session() for _ in range(4)], 0
    for session in sessions:
        session.call("MemMap", address=ARENA, size=CHUNK)
        for number in range(1, 400):
            try:
                session.call("MemMap", address=ARENA + number * CHUNK, size=CHUNK)
                session.call("MemOffer", address=ARENA + number * CHUNK)
            except wire.Failed:
                break
            cases += 1
    held = descriptors(field.daemon.process.pid)
    expect(held < 768, f"the daemon has {held} of its 1024 descriptors for {cases} offers")
    neighbour, friend = field.neighbour(), field.neighbour()
    neighbour.call("Ping", value=1)
    # What sessions no longer offer is given back.
    for session in sessions:
        session.send_frame(wire.GOODBYE, 0, 0, b"")
    until("given back", lambda: descriptors(field.daemon.process.pid) < 100)
    neighbour.call("MemMap", address=ARENA, size=CHUNK)
    token = neighbour.call("MemOffer", address=ARENA)[0]["token"]
    friend.call("MemTake", address=ARENA, size=CHUNK, token=token)
    return cases


@attack
def memory_that_is_shared_while_it_moves(field):
    """Who does not move along and opens handles again and again ends two moves of its VM, and no third."""
    other, vm = Field(), f"uid {os.getuid()}"
    try:
        owner, busy, cases = field.session(), field.session(), 0
        owner.call("MemMap", address=ARENA, size=CHUNK)
        token = owner.call("MemOffer", address=ARENA)[0]["token"]
        # It does not stop before its program says so.
        busy.post("HostFuncLaunch", stream=0, id=1)
        with ThreadPoolExecutor(1) as pool:
            for left in (2, 1, 0):
                order = ("migrate", "--vm", vm, "--to", f"unix://{other.daemon.socket}")
                moving = pool.submit(paragpu, field, *order, timeout=100)
                until("moving", lambda: all(one["activity"] == "moving" for one in field.daemon.sessions()))
                # A connection for queries, by its own account.
                late = field.session(pid=0)
                try:
                    late.call("MemTake", address=ARENA + 8 * CHUNK, size=CHUNK, token=token)
                    expect(left > 0, "a program keeps its VM from moving for good")
                except wire.Failed as failed:
                    expect(left == 0 and failed.status == INVALID_HANDLE, f"{failed}")
                    busy.post("HostFuncDone", id=1)
                moved = moving.result()
                expect(moved is not None, "the move does not end")
                reason = "has begun to share its memory"
                expect((moved.returncode == 0) == (left == 0), f"{moved}")
                expect(left == 0 or reason in moved.stdout + moved.stderr, f"no reason why it stays: {moved}")
                late.send_frame(wire.GOODBYE, 0, 0, b"")
                until("over", lambda left=left: len(field.daemon.sessions()) == (2 if left else 0))
                cases += 1
        expect(owner.call("Ping", value=1)[0] == 1, "a session is lost in its move")
    finally:
        other.close()
    return cases


@attack
def sessions_that_begin_without_end_while_they_move(field):
    """They do not keep the others of their VM from moving."""
    other, vm, over = Field(), f"uid {os.getuid()}", threading.Event()

    def begin():
        begun = 0
        while not over.is_set():
            session = wire.Session(field.daemon.socket, deadline=PATIENCE)
            expect(session.call("Ping", value=begun)[0] == begun, "a new session does not answer")
            session.send_frame(wire.GOODBYE, 0, 0, b"")
            session.socket.close()
            begun += 1
        return begun

    try:
        owner, busy = field.session(), field.session()
        owner.call("MemMap", address=ARENA, size=CHUNK)
        # It does not stop before its program says so.
        busy.post("HostFuncLaunch", stream=0, id=1)
        order = ("migrate", "--vm", vm, "--to", f"unix://{other.daemon.socket}")
        with ThreadPoolExecutor(5) as pool:
            moving = pool.submit(paragpu, field, *order, timeout=100)
            until("moving", lambda: any(one["activity"] == "moving" for one in field.daemon.sessions()))
            begins = [pool.submit(begin) for _ in range(4)]
            until("several begin", lambda: max(one["id"] for one in field.daemon.sessions()) > 10)
            busy.post("HostFuncDone", id=1)
            moved = moving.result()
            over.set()
            cases = sum(one.result() for one in begins)
        expect(moved is not None and moved.returncode == 0, f"sessions that begin keep another one from moving: {moved}")
        expect(owner.call("Ping", value=1)[0] == 1, "a session is lost in its move")
        until("over", lambda: len(field.daemon.sessions()) == 0 and len(other.daemon.sessions()) == 2)
    finally:
        over.set()
        other.close()
    return cases


@attack
def aliases_without_end(field):
    """They end at the kernel's limit of mappings per process; the session and its neighbour continue."""
    session, neighbour = field.session(), field.neighbour()
    worker = field.worker(session)
    session.call("MemMap", address=ARENA, size=CHUNK)
    number = 0
    try:
        while number < 200_000:
            number += 1
            session.post("MemAlias", address=ARENA + (number + 8) * CHUNK, size=CHUNK, memory=ARENA, access=3)
            if number % 5000 == 0:
                session.call("ContextSynchronize")
    except wire.Failed as failed:
        expect(failed.status == 2, f"{failed}")
    expect(number < 200_000, "aliases without end")
    expect(resident(worker) < 128 << 20, f"{number} aliases take {resident(worker) >> 20} MiB")
    neighbour.call("MemMap", address=ARENA, size=CHUNK)
    neighbour.call("CopyFromDevice", source=ARENA, size=4096, stream=0)
    # All go with their memory, and others have room.
    session.call("MemUnmap", address=ARENA)
    session.call("MemMap", address=ARENA, size=CHUNK)
    session.call("MemAlias", address=ARENA + 8 * CHUNK, size=CHUNK, memory=ARENA, access=3)
    return number


@attack
def aliases_that_end_behind_an_endless_kernel(field):
    """What waits for the kernel takes the same memory for each."""
    session = field.session()
    worker = field.worker(session)
    session.call("MemMap", address=ARENA, size=CHUNK)
    session.call("MemAlias", address=ARENA + 4 * CHUNK, size=CHUNK, memory=ARENA, access=3)
    field.launch(session, field.kernel(session, ENDLESS))
    before, many = resident(worker), 12_000
    for number in range(many):
        address = ARENA + (number + 8) * CHUNK
        session.post("MemAlias", address=address, size=CHUNK, memory=ARENA, access=3)
        session.post("MemAliasEnd", address=address)
    session.call("Ping", value=1)
    grown = resident(worker) - before
    expect(grown < 96 << 20, f"{many} aliases that ended take {grown >> 20} MiB")
    return many


@attack
def files_that_are_taken_away(field):
    """Files that a guest passes and truncates, and descriptors of other objects, harm no one."""
    session, neighbour = wire.Shared(field.daemon.socket), field.neighbour()
    field.open.append(session)
    cases = number = 0

    def passed(file):
        nonlocal number
        number += 1
        socket.send_fds(session.socket, [struct.pack("<Q", number)], [file])
        return number

    # What has pages, until it has none.
    file = os.memfd_create("guest")
    os.ftruncate(file, 2 << 20)
    session.call("FileMap", address=SHADOWS, size=2 << 20, offset=0, file=passed(file))
    fill = dict(pitch=0, element=4, width=1024, height=1, stream=0)
    for length in (2 << 20, 4096, 0):
        os.ftruncate(file, length)
        for address in (SHADOWS, SHADOWS + (1 << 20)):
            session.call("Ping", value=1)
            session.post("Memset", destination=address, value=7, **fill)
            session.call("ContextSynchronize")
            cases += 1
    os.close(file)
    # What is no regular file, or cannot be written, or has other bytes with it.
    reader, writer = os.pipe()
    folder, null = os.open("/", os.O_RDONLY), os.open("/dev/zero", os.O_RDWR)
    fixed = os.open("/etc/hostname", os.O_RDONLY)
    for other in (reader, writer, folder, null, fixed, session.socket.fileno()):
        address = SHADOWS + (1 << 30)
        try:
            session.call("FileMap", address=address, size=4096, offset=0, file=passed(other))
            expect(False, "it is mapped")
        except wire.WireError:
            pass
        cases += 1
    # Many that no call names.
    session.socket.setblocking(False)
    try:
        for _ in range(10_000):
            passed(reader)
            cases += 1
    except OSError:
        pass
    for descriptor in (reader, writer, folder, null, fixed):
        os.close(descriptor)
    expect(session.call("Ping", value=7) == 7, "the session ended")
    expect(neighbour.call("Ping", value=7)[0] == 7, "the neighbour's session ended")
    return cases


@attack
def memory_of_other_devices(field):
    """In other devices' ranges offered memory is mapped once, and a VM can query only its own devices."""
    owner, friend, stranger = field.session(), field.session(), field.neighbour()
    owner.call("MemMap", address=ARENA, size=2 * CHUNK)
    token = owner.call("MemOffer", address=ARENA)[0]["token"]
    name = owner.call("PeerOffer")[0]["token"]
    expect(owner.call("PeerOffer")[0]["token"] == name, "a device has one name")
    cases = 0
    for session, asked in [(stranger, name), (friend, bytes(16)), *((friend, field.source.randbytes(16)) for _ in range(50))]:
        expect(not any(session.call("PeerAsk", token=asked)[0]["values"]), "a name that is none")
        cases += 1
    other, last = ARENA + STRIDE, ARENA + 16 * STRIDE
    for session, address, size in [
        (stranger, other, 2 * CHUNK),
        (friend, other, CHUNK),
        (friend, other + 4096, 2 * CHUNK),
        (friend, other - CHUNK, 2 * CHUNK),
        (friend, last - CHUNK, 2 * CHUNK),
        (friend, last, 2 * CHUNK),
        (friend, SHADOWS, 2 * CHUNK),
        (friend, (1 << 64) - 2 * CHUNK, 2 * CHUNK),
    ]:
        refused(session, "MemTake", address=address, size=size, token=token)
        cases += 1
    for turn in range(20):
        friend.call("MemTake", address=other, size=2 * CHUNK, token=token)
        refused(friend, "MemTake", address=other + CHUNK, size=2 * CHUNK, token=token)
        for call in "MemUnmap", "MemAliasEnd", "MemOffer":
            refused(friend, call, address=other)
        friend.call("MemLeave", address=other)
        refused(friend, "MemLeave", address=other)
        cases += 5
    # Its own memory, too, there and once at each place.
    owner.call("MemTake", address=other, size=2 * CHUNK, token=token)
    refused(owner, "MemTake", address=other + CHUNK, size=2 * CHUNK, token=token)
    refused(owner, "MemTake", address=ARENA + 8 * CHUNK, size=2 * CHUNK, token=token)
    for call in "MemUnmap", "MemAliasEnd", "MemOffer":
        refused(owner, call, address=other)
    owner.call("MemLeave", address=other)
    cases += 6
    # As many as there may be; each is the same memory.
    number, place = 0, other
    while number < 5000:
        try:
            friend.call("MemTake", address=place, size=2 * CHUNK, token=token)
        except wire.Failed:
            break
        number, place = number + 1, place + 2 * CHUNK
    expect(0 < number < 5000, f"{number} mappings")
    for turn in range(number):
        friend.call("MemLeave", address=other + 2 * CHUNK * turn)
    friend.call("MemTake", address=other, size=2 * CHUNK, token=token)
    return cases + number
