"""Bytes: invalid calls, and rings with concurrent writers."""

import fcntl
import os
import struct
import threading
import time

import wire
from field import ARENA, CHUNK, PATIENCE, attack, expect, frame, until
from files import paragpu


def storm(field, address, sessions, frames):
    """Random calls with random payloads; returns how many were sent."""
    numbers, sent = list(wire.CALLS), 0
    for _ in range(sessions):
        session = field.session(address)
        try:
            for sequence in range(1, frames + 1):
                number = field.source.choice(numbers)
                length = field.source.choice((0, 4, 8, 16, 20, 28, 36, 64, 200, 4000))
                session.send_frame(number, field.source.randrange(3), sequence, field.source.randbytes(length))
                sent += 1
        except OSError:
            pass
        session.close()
    return sent


@attack
def random_calls_over_unix(field):
    return storm(field, field.daemon.socket, 60, 60)


@attack
def random_calls_over_tcp(field):
    return storm(field, field.tcp, 60, 60)


def known(kind):
    """Has a parameter's type a reader on this side of the wire?"""
    if kind in wire.RECORDS:
        return all(known(part) for _, part in wire.RECORDS[kind])
    return kind in wire.ALTERNATIVES or kind in ("Bytes", "Text") or kind.split("x")[0] in wire.NUMBER_TYPES


def value(source, kind):
    """A value of a parameter's type: small, large, or near an address that means something."""
    if kind in wire.ALTERNATIVES:
        tag = source.randrange(2)
        inner = wire.ALTERNATIVES[kind][tag]
        return tag, {name: value(source, part) for name, part in wire.RECORDS[inner]}
    if kind in wire.RECORDS:
        return {name: value(source, part) for name, part in wire.RECORDS[kind]}
    if kind == "Bytes":
        return source.randbytes(source.choice((0, 1, 7, 8, 64, 1000)))
    if kind == "Text":
        return source.choice(("", "attack", "x" * 300, "é\0"))
    if kind == "bool":
        return source.random() < 0.5
    if "x" in kind:
        base, count = kind.split("x")
        if base == "u8":
            return source.randbytes(int(count))
        return tuple(value(source, base) for _ in range(int(count)))
    bits = int(kind[1:])
    choices = [0, 1, 2, 15, 20, 4096, 1 << bits - 1, (1 << bits) - 1, source.getrandbits(bits)]
    if bits == 64:
        choices += [ARENA, ARENA + CHUNK - 8, CHUNK, 0x300000000000, (1 << 64) - CHUNK]
    if kind[0] == "i":
        return source.choice([-1, 0, 1, (1 << bits - 1) - 1, -(1 << bits - 1)])
    return source.choice(choices) & (1 << bits) - 1


def nonsense(field, sessions):
    """Sends well-formed calls with invalid arguments; returns their number."""
    sent = 0
    calls = [call for call in wire.CALLS.values() if all(known(kind) for _, kind in call[1])]
    for _ in range(sessions):
        session = field.session()
        session.call("MemMap", address=ARENA, size=CHUNK)
        sequence = session.sequence
        try:
            for _ in range(80):
                name, parameters, _ = field.source.choice(calls)
                arguments = {key: value(field.source, kind) for key, kind in parameters}
                sequence += 1
                session.send_frame(wire.NUMBERS[name], field.source.randrange(3), sequence, wire.encode_call(name, **arguments))
                sent += 1
        except OSError:
            pass
        session.close()
    return sent


@attack
def well_formed_calls_that_make_no_sense(field):
    return nonsense(field, 60)


@attack
def frames_out_of_place(field):
    bystander = field.neighbour()
    number = wire.NUMBERS["MemMap"]
    bad = [(kind, b"") for kind in (0, 0x7E00, wire.WELCOME, wire.REFUSAL, wire.MOVE, 0x7F10, 0x7F11, 0x7FFF)]
    bad += [(number | wire.REPLY, bytes(4)), (number, bytes(15)), (number, bytes(17))]
    for kind, payload in bad:
        session = field.session()
        session.send_frame(kind, 1, 1, payload)
        session.read_to_end()
    for sequence in (0, 2, 1 << 63, (1 << 64) - 1):
        session = field.session()
        session.send_frame(wire.NUMBERS["Ping"], 1, sequence, bytes(8))
        session.read_to_end()
    expect(bystander.call("Ping", value=1)[0] == 1, "no answer")
    return len(bad) + 4


@attack
def frames_that_are_cut(field):
    whole = frame(wire.NUMBERS["Ping"], bytes(8), 1, 1)
    for cut in range(1, len(whole)):
        session = field.session()
        session.socket.sendall(whole[:cut])
        session.close()
    return len(whole) - 1


@attack
def frames_of_impossible_length(field):
    lengths = [wire.MAX_PAYLOAD + 1, 1 << 24, 1 << 31, (1 << 32) - 1]
    for length in lengths:
        session = field.session()
        session.socket.sendall(wire.HEADER.pack(length, wire.NUMBERS["Ping"], 1, 1))
        session.read_to_end()
    return len(lengths)


@attack
def a_guest_that_never_reads(field):
    session = field.session()
    session.call("MemMap", address=ARENA, size=CHUNK)
    session.socket.setblocking(False)
    sent = 0
    calls = (("CopyFromDevice", {"source": ARENA, "size": CHUNK, "stream": 0}), ("ShadowRead", {"address": ARENA, "size": CHUNK}))
    end = time.monotonic() + 2
    while time.monotonic() < end:
        session.sequence += 1
        name, arguments = calls[sent % len(calls)]
        data = frame(wire.NUMBERS[name], wire.encode_call(name, **arguments), 1, session.sequence)
        try:
            session.socket.send(data)
            sent += 1
        except BlockingIOError:
            break
        except OSError:
            break
    return sent


@attack
def ring_indices_out_of_range(field):
    bystander = field.session()
    for number in range(24):
        guest = wire.Shared(field.daemon.socket)
        expect(guest.call("Ping", value=number) == number, "no answer")
        guest.scribble(field.source, number)
        expect(guest.ended(PATIENCE), "the host continues with an invalid ring")
        guest.close()
    expect(bystander.call("Ping", value=1)[0] == 1, "no answer")
    return 24


@attack
def random_bytes_over_a_whole_region(field):
    for _ in range(16):
        guest = wire.Shared(field.daemon.socket)
        size = min(len(guest.region), 1 << 20)
        guest.region[:size] = field.source.randbytes(size)
        os.write(guest.fds[1], struct.pack("<Q", 1))
        guest.close()
    return 16


def scribbles(field, guests):
    """Writes into windows that the host reads; returns how many words."""
    written = 0
    for _ in range(guests):
        guest = wire.Shared(field.daemon.socket)
        over = threading.Event()

        def scribble(guest=guest, over=over):
            nonlocal written
            while not over.is_set():
                at = field.source.randrange(0x80, 0x4000) & ~7
                try:
                    struct.pack_into("<Q", guest.region, at, field.source.getrandbits(64))
                except ValueError:
                    return
                written += 1

        writer = threading.Thread(target=scribble)
        writer.start()
        try:
            for number in range(200):
                guest.send_frame(wire.NUMBERS["Ping"], 1, number + 1, bytes(8))
                os.write(guest.fds[1], struct.pack("<Q", 1))
        except (OSError, struct.error, ValueError, IndexError):
            pass
        time.sleep(0.2)
        over.set()
        writer.join()
        guest.close()
    return written


@attack
def scribbles_while_the_host_reads(field):
    return scribbles(field, 6)


@attack
def bells_that_a_guest_fills(field):
    """A guest shares its bells' descriptions with the host, and may change their flags."""
    field.again("--set=software.devices=2")
    guest = wire.Shared(field.daemon.socket)
    field.open.append(guest)
    for bell in guest.fds[1:]:
        fcntl.fcntl(bell, fcntl.F_SETFL, fcntl.fcntl(bell, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    session = field.daemon.sessions()[0]
    for number in range(400):
        # The guest asks to be woken, and does not look.
        struct.pack_into("<I", guest.region, guest.BACK_WAITS, 1)
        guest.call("Ping", value=number)
    try:
        # Were it an eventfd, it would be full now, and block who rings it.
        os.write(guest.fds[2], struct.pack("<Q", 0xFFFFFFFFFFFFFFFE - 400))
    except BrokenPipeError:
        pass
    struct.pack_into("<I", guest.region, guest.BACK_WAITS, 1)
    guest.call("Ping", value=1)
    moved = paragpu(field, "migrate", str(session["id"]), "--to-gpu", "1")
    expect(moved is not None, "an order to the session never ends")
    until("answered", lambda: field.daemon.sessions() is not None)
    return 401
