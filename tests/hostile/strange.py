"""Information leaks between VMs, moves under attack, and invalid configurations."""

import itertools
import os
import random
import struct
import subprocess
import tempfile
import threading

import harness
import wire
from field import ARENA, CHUNK, ENDLESS, PATIENCE, Field, attack, blake3, expect, until
from files import paragpu
from shapes import EDGES, MOST, Victim


# A kernel that fails an assertion with the text of `m`.
FAILS = """.version 8.0
.target sm_80
.address_size 64
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 m[{size}] = {{{bytes}}};
.visible .entry attack() {{
.reg .b64 %rd<4>; .reg .b32 %r<2>;
mov.u64 %rd1, m; cvta.global.u64 %rd2, %rd1; mov.u32 %r1, 7; mov.u64 %rd3, 1;
{{ .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4;
st.param.b64 [p0], %rd2; st.param.b64 [p1], %rd2; st.param.b32 [p2], %r1; st.param.b64 [p3], %rd2; st.param.b64 [p4], %rd3;
call.uni __assertfail, (p0, p1, p2, p3, p4); }}
ret;
}}
"""


@attack
def a_log_that_a_guest_fills(field):
    """What its modules and kernels are told is neither long in the log nor a line of its own, even at the level debug."""
    cases = 0
    for level, most in (("info", 64 << 10), ("debug", 1 << 20)):
        field.again(f"--set=log.level={level}")
        before = os.path.getsize(field.daemon.log_path)
        session = field.session()
        image = b".version 8.0\n.target sm_80\n.address_size 64\n" + b"x" * 100_000 + b";\0"
        digest = blake3(image)
        session.call("ImageWrite", hash=digest, size=len(image), offset=0, data=image)
        for _ in range(100):
            try:
                session.call("ModuleLoad", module=100, hash=digest, options=b"")
                expect(False, "it is loaded")
            except wire.Failed:
                cases += 1
        message = b"\n2026-01-01T00:00:00.000000Z ERROR forged\x1b[31m\r\x07".ljust(2048, b"y") + b"\0"
        text = FAILS.format(size=len(message), bytes=", ".join(map(str, message)))
        for _ in range(10):
            session = field.session()
            field.launch(session, field.kernel(session, text))
            try:
                session.call("ContextSynchronize")
                expect(False, "the assertion holds")
            except wire.Failed:
                cases += 1
            session.send_frame(wire.GOODBYE, 0, 0, b"")
            session.close()
        field.neighbour().call("Ping", value=1)
        with open(field.daemon.log_path, "rb") as log:
            written = log.read()[before:]
        expect(len(written) < most, f"{cases} failures take {len(written)} bytes of the log at the level {level}")
        expect(b"\x1b" not in written and b"\x07" not in written, "a guest's control characters are in the log")
        expect(b"\n2026-01-01" not in written, "a guest's line is in the log")
    return cases


@attack
def readings_of_others(field):
    """A VM sees only its own processes and memory."""
    one, other = field.session(), field.neighbour()
    one.call("MemMap", address=ARENA, size=16 * CHUNK)
    field.launch(one, field.kernel(one, ENDLESS))
    usage = other.call("DeviceUse")[0]
    expect(usage["used"] == 0, f"a VM sees {usage['used']} bytes of another")
    own = one.call("DeviceUse")[0]
    expect(own["used"] == 16 * CHUNK, f"a VM sees {own['used']} bytes of its own")
    expect(len(usage["processes"]) <= len(own["processes"]), f"a VM sees processes of another: {usage}")
    cases = 4
    for figure, argument in itertools.product((*range(80), 255, 65535, MOST >> 32), (0, 1, MOST >> 32)):
        cases += 1
        other.call("DeviceAsk", figure=figure, arguments=struct.pack("<I", argument))
    return cases


@attack
def peers_of_others(field):
    """A device's name is valid only in its VM, and guesses are refused."""
    owner, stranger = field.session(), field.neighbour()
    cases = 0
    try:
        token = owner.call("PeerOffer")[0]["token"]
    except wire.Failed:
        token = bytes(16)
    for name in (token, bytes(16), b"\xff" * 16, *(field.source.randbytes(16) for _ in range(100))):
        cases += 1
        found = stranger.call("PeerAsk", token=name)[0]["values"]
        expect(not any(found), f"a VM reaches another's device: {found}")
    expect(owner.call("Ping", value=1)[0] == 1, "the owner's session ended")
    return cases


@attack
def words_of_streams_of_no_sense(field):
    """Waits for and writes of words that are unmapped, unaligned or of an unknown kind."""
    victim = Victim(field)
    for address, kind, flags in itertools.product((0, 1, ARENA, ARENA + 3, ARENA + CHUNK - 1, ARENA + CHUNK, MOST), range(8), (0, 1, MOST >> 32)):
        operation = struct.pack("<IQQI", kind, address, MOST, flags)
        for data in (operation, operation[:-1], operation * 50, b"\xff" * 24, struct.pack("<I", MOST >> 32) + operation):
            victim.accepts("StreamMemory", stream=0, operations=data)
    victim.ready().call("Ping", value=1)
    return victim.cases


@attack
def options_that_are_pointers(field):
    """Of the options of a load or a link, only numbers reach a driver."""
    session, cases = field.session(), 0
    image = ENDLESS.encode() + b"\0"
    digest = blake3(image)
    session.call("ImageWrite", hash=digest, size=len(image), offset=0, data=image)
    # A time, buffers and their sizes, names and addresses of symbols, and what CUDA does not have.
    for option in (2, 3, 4, 5, 6, 15, 17, 18, 19, 25, 26, 27, 28, 35, MOST >> 32):
        for value in (0, 1, ARENA & MOST >> 32, 0x7FFFFFFF):
            options = struct.pack("<4I", 7, 4, option, value)
            part = dict(kind=1, name="", options=options, hash=digest)
            for call, arguments in (
                ("ModuleLoad", dict(module=100, hash=digest, options=options)),
                ("ImageLink", dict(options=options, inputs=wire.encode("LinkInput", dict(part, options=b"")))),
                ("ImageLink", dict(options=b"", inputs=wire.encode("LinkInput", part))),
            ):
                cases += 1
                try:
                    session.call(call, **arguments)
                    expect(False, f"option {option} of {call} is accepted")
                except wire.Failed as failed:
                    expect(failed.status == 1, f"option {option} of {call}: {failed}")
    session.call("ModuleLoad", module=100, hash=digest, options=struct.pack("<4I", 7, 4, 0, 32))
    return cases


@attack
def tensor_maps_of_impossible_shape(field):
    victim = Victim(field)
    tensor = dict(data_type=7, rank=2, address=ARENA, dimensions=(64, 64, 1, 1, 1), strides=(256, 0, 0, 0), element_strides=(1,) * 5)
    part = dict(kind=0, extent=(16, 16, 1, 1, 1), lower=(0,) * 3, upper=(0,) * 3, channels=0, pixels=0, mode=0)
    rest = dict(interleave=0, swizzle=0, promotion=0, fill=0)
    for edge in (*EDGES, MOST >> 32):
        small = edge & MOST >> 32
        for changed in (
            dict(tensor, dimensions=(edge,) * 5), dict(tensor, strides=(edge,) * 4), dict(tensor, address=edge),
            dict(tensor, element_strides=(edge,) * 5), dict(tensor, rank=small), dict(tensor, data_type=small),
        ):
            victim.accepts("TensorMapEncode", True, map=dict(tensor=changed, part=part, **rest))
        for changed in (dict(part, extent=(edge,) * 5), dict(part, kind=small), dict(part, channels=small, pixels=small, kind=1), dict(part, lower=(edge,) * 3, kind=1)):
            victim.accepts("TensorMapEncode", True, map=dict(tensor=tensor, part=changed, **rest))
        victim.accepts("TensorMapEncode", True, map=dict(tensor=tensor, part=part, interleave=small, swizzle=small, promotion=small, fill=small))
        victim.accepts("TensorMapReplace", True, map=bytes([small & 255]) * 128, address=edge)
    return victim.cases


@attack
def partitions_of_no_sense(field):
    """Splits of splits, and green contexts of parts that do not exist."""
    victim = Victim(field)
    for groups, least, flags in itertools.product((0, 1, 255, MOST >> 32), (0, 1, MOST >> 32), (0, 1, MOST >> 32)):
        victim.accepts("SmResourceSplit", True, green=0, groups=groups, flags=flags, least=least)
        victim.accepts("SmResourceSplit", True, green=MOST, groups=groups, flags=flags, least=least)
        split = wire.encode("SmSplit", dict(groups=groups, flags=flags, least=least, members=b"\xff" * 32))
        for way in (b"", split, split[:-1], split * 300, b"\xff" * 5000):
            victim.accepts("GreenCreate", True, green=1000 + victim.cases, count=groups, way=way)
    return victim.cases


@attack
def windows_that_change_while_they_move(field):
    """Guests write into their rings while their sessions move: each move ends, and other sessions continue."""
    with harness.Daemon() as other:
        neighbour, cases = field.neighbour(), 0
        for number in range(4):
            guest, over = wire.Shared(field.daemon.socket), threading.Event()
            guest.call("Ping", value=1)

            def scribble(guest=guest, over=over, source=random.Random(number)):
                while not over.is_set():
                    at = source.randrange(0x80, 0x2000) & ~7
                    struct.pack_into("<Q", guest.region, at, source.getrandbits(64))

            writer = threading.Thread(target=scribble)
            writer.start()
            try:
                order = ("migrate", str(guest.welcome["session"]), "--to", f"unix://{other.socket}")
                done = paragpu(field, *order)
                expect(done is not None, "a move does not end")
            finally:
                over.set()
                writer.join()
            guest.close()
            expect(neighbour.call("Ping", value=number)[0] == number, "the neighbour's session ended")
            cases += 1
        until("over", lambda: not other.sessions(), 60)
        for word in ("panicked", "SIGSEGV"):
            expect(word not in other.log(), f"the destination's log says {word}")
    return cases


# Where a window begins, or may begin: at each end of the region, unaligned, beyond, nowhere.
PLACES = (0, 1, 4096, 4097, 1 << 30, (1 << 40) - (8 << 30), (1 << 40) - 4096, 1 << 40, 1 << 63, wire.NO_WINDOW - 4095, wire.NO_WINDOW)


@attack
def windows_of_no_sense(field):
    """Guests that return over shared memory name windows that they do not have, and places that nobody has."""
    neighbour, cases = field.neighbour(), 0
    for began, window, room in itertools.product((wire.Session, wire.Shared), PLACES, PLACES):
        guest = began(field.daemon.socket)
        if began is wire.Shared and cases % 2 == 0:
            guest.call("HostMap", offset=8192, size=4096)
        guest.call("Ping", value=1)
        guest.socket.close()
        guest = wire.Shared(field.daemon.socket, resumes=guest, window=window, room=room)
        guest.call("Ping", value=2)
        # A window that comes with the connection begins at the place, and none does beyond the region.
        comes = guest.welcome["region_size"] > 8 << 20
        fits = room % 4096 == 0 and room + guest.welcome["region_size"] <= 1 << 40
        expect(comes == (fits and room + (8 << 30) <= 1 << 40 and began is wire.Session), f"a window at {room:#x}")
        for offset in (room + 4096, room + (1 << 20), room - 4096, room + (1 << 40)):
            try:
                guest.call("HostMap", offset=offset % 2**64, size=4096)
            except wire.WireError:
                continue
            expect(not comes or 4096 <= offset - room < 1 << 40, f"memory at {offset:#x} beside a window at {room:#x}")
        guest.call("Ping", value=3)
        guest.send_frame(wire.GOODBYE, 0, 0, b"")
        guest.close()
        expect(neighbour.call("Ping", value=cases)[0] == cases, "the neighbour's session ended")
        cases += 1
    until("over", lambda: len(field.daemon.sessions()) <= 1, 60)
    for word in ("panicked", "SIGSEGV", "SIGBUS"):
        expect(word not in field.daemon.log(), f"the log says {word}")
    return cases


NONSENSE = (
    "limits.sessions=-1", "limits.sessions=99999999999", "limits.memory=-1GiB", "limits.memory=99999999999999999999GiB",
    "limits.memory=1e400", "limits.per_vm_host_memory=NaN", "limits.reconnect=-1s", "limits.reconnect=99999999999999999999s",
    "limits.pending=0", "shm.window=1", "shm.window=16EiB", "software.threads=-1", "software.memory=1EiB", "software.devices=0",
    "device.kind=gpu", "device.indices=[-1]", "device.indices=[0,0]", "device.placement=", "cache.size=-1", "tcp.listen=300.0.0.1:1",
    "tcp.listen=127.0.0.1:99999", "tcp.allow_remote=maybe", "vm.a.cid=-1", "vm.a.weight=1001", "vm.a.cap=101", "vm..memory=1", "vm.a",
    "=", "a.b.c.d=1", "no.such=1", "confine.users=5-1", "confine.users=0-4294967296", "metrics.listen=0.0.0.0:1", "log.level=\u0000",
)


@attack
def configurations_of_no_sense(field):
    """The daemon reports the invalid setting and does not start."""
    cases = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "host.toml")
        texts = ["[" * 10_000, "a=" + "[" * 10_000, "\0", "limits = 1", "[limits]\nsessions = 1e9", "[[vm]]", '[vm."\\u0000"]\nmemory = "1"',
                 "[limits]\nsessions=1\nsessions=2", "x" * 1_000_000, '[limits]\nmemory = "' + "9" * 100_000 + '"']
        runs = [[f"--set={one}"] for one in NONSENSE if "\0" not in one]
        for number, text in enumerate(texts):
            runs.append([f"--config={path}.{number}"])
            with open(f"{path}.{number}", "w", encoding="utf-8") as file:
                file.write(text)
        for arguments in runs:
            command = [
                harness.binary("paragpud"), "--device=software", f"--socket={folder}/guests", f"--control={folder}/control",
                f"--set=daemon.state={folder}/state", *arguments,
            ]
            done = subprocess.run(harness.owned(command), capture_output=True, text=True, timeout=PATIENCE, check=False)
            expect(done.returncode == 1 or done.returncode == 2, f"{arguments}: status {done.returncode}: {done.stderr[-300:]}")
            expect("panicked" not in done.stderr, f"{arguments}: {done.stderr[-300:]}")
            cases += 1
    field.check()
    return cases
