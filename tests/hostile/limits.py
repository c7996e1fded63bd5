"""A VM's limit of device memory: every way to allocate is charged, alone and mixed."""

import os

import wire
from field import ARENA, ENDLESS, attack, blake3, expect, needs, ptx, resident, until
from memory import LIMIT, LIMITED, OWN

PIECE = 4 << 20


class Guest:
    """A session that takes as much as it gets."""

    def __init__(self, field, session=None):
        self.session = session or field.session()
        self.number = 0
        self.images = {}

    def next(self):
        """A name or place that nothing has yet."""
        self.number += 1
        return self.number

    def map(self):
        """As cuMemAlloc, cuMemAllocPitch, cuMemCreate, pools and nodes of graphs do."""
        self.session.call("MemMap", address=ARENA + self.next() * PIECE, size=PIECE)

    def array(self, levels=1, depth=0, flags=0):
        """As cuArrayCreate does."""
        height = PIECE // 4 // 1024 // (depth or 1)
        shape = dict(width=1024, height=height, depth=depth, format=0x20, channels=1, flags=flags, levels=levels)
        self.session.call("ArrayCreate", array=1000 + self.next(), shape=shape)

    def mipmaps(self):
        """As cuMipmappedArrayCreate does."""
        self.array(levels=5)

    def module(self, text, name):
        """Loads a module."""
        if name not in self.images:
            image = text.encode() + b"\0"
            self.images[name] = blake3(image)
            self.session.call("ImageWrite", hash=self.images[name], size=len(image), offset=0, data=image)
        self.session.call("ModuleLoad", module=5000 + self.next(), hash=self.images[name], options=b"")

    def variable(self):
        """Variables of a module, without contents."""
        text = ptx("", name="attack").replace(".visible .entry", f".visible .global .align 4 .b8 big[{PIECE}];\n.visible .entry", 1)
        self.module(text, "variable")

    def heap(self):
        """The heap of kernels."""
        self.session.call("CtxSetLimit", limit=2, value=PIECE)
        text = ptx(
            "{ .param .b64 n; .param .b64 r; mov.u64 %rd1, 16; st.param.b64 [n], %rd1; call.uni (r), malloc, (n); ld.param.b64 %rd2, [r]; }",
            name="attack",
        ).replace(".visible .entry", ".extern .func (.param .b64 r) malloc (.param .b64 n);\n.visible .entry", 1)
        self.module(text, "heap")


WAYS = ("map", "array", "mipmaps", "variable", "heap")


def take(guest, way):
    """Allocates in this way until it is refused; returns the number of blocks."""
    pieces = 0
    while pieces < 1000:
        try:
            getattr(guest, way)()
        except wire.Failed as failed:
            expect(failed.status == 2, f"{way}: {failed}")
            return pieces
        pieces += 1
    raise AssertionError(f"{way} is never refused")


@attack
def every_way_to_device_memory(field):
    """Two sessions together cannot exceed their VM's limit, in whichever way they allocate."""
    cases = 0
    for way in WAYS:
        field.again(*LIMITED)
        guests = [Guest(field), Guest(field)]
        pieces = [take(guest, way) for guest in guests]
        expect(sum(pieces) * PIECE <= LIMIT, f"{way}: {pieces} pieces of 4 MiB")
        expect(pieces[0] * PIECE > LIMIT // 2, f"{way}: {pieces} pieces of 4 MiB, much less than allowed")
        for other in WAYS:
            expect(take(guests[1], other) == 0, f"{other} passes the limit that {way} reached")
        free = guests[1].session.call("MemGetInfo")[0]["free"]
        expect(free < PIECE, f"{way}: {free} bytes are free past the limit")
        # The end of a session frees all of it.
        field.hang_up()
        until("ended", lambda: not field.daemon.sessions())
        guest = Guest(field)
        expect(take(guest, "map") == LIMIT // PIECE, f"{way}: the memory of sessions that ended still counts")
        cases += 2 + len(WAYS)
    return cases


@attack
def a_session_past_its_own_limit(field):
    """`limits.memory` holds for each session, though its VM may have more."""
    cases = 0
    for way in WAYS:
        field.again("--set=limits.memory=32MiB", "--set=limits.per_vm_memory=256MiB")
        for guest in (Guest(field), Guest(field)):
            pieces = take(guest, way)
            expect(pieces * PIECE <= 32 << 20, f"{way}: {pieces} pieces of 4 MiB")
            expect(pieces >= 5, f"{way}: only {pieces} pieces of 4 MiB")
            cases += 1
    return cases


@attack
def memory_that_goes_behind_an_endless_kernel(field):
    """It is there until the kernel ends, and nothing takes its place before."""
    field.again(*LIMITED, "--set=software.threads=2")
    session = field.session()
    worker = field.worker(session)
    field.launch(session, field.kernel(session, ENDLESS))
    session.call("Ping", value=1)
    session.post("StreamCreate", stream=1000, flags=1, priority=0)
    session.socket.settimeout(3)
    size, cases = 48 << 20, 0
    try:
        for number in range(8):
            address = ARENA + number * (64 << 20)
            cases += 1
            session.call("MemMap", address=address, size=size)
            fill = dict(destination=address, pitch=0, value=0x41, element=1, width=size, height=1, stream=1000)
            session.post("Memset", **fill)
            session.call("StreamSynchronize", stream=1000)
            session.post("MemUnmap", address=address)
    except (wire.Failed, TimeoutError):
        pass
    expect(resident(worker) < LIMIT + OWN, f"{resident(worker) >> 20} MiB of memory that was given up")
    return cases


def array(width, height, levels=0):
    return dict(width=width, height=height, depth=0, format=0x20, channels=1, flags=2, levels=levels)


@attack
def arrays_that_go_behind_an_endless_kernel(field):
    """Their memory counts until the kernel ends."""
    field.again(*LIMITED, "--set=software.threads=2")
    session = field.session()
    worker = field.worker(session)
    field.launch(session, field.kernel(session, ENDLESS))
    session.call("Ping", value=1)
    session.socket.settimeout(3)
    cases = 0
    try:
        for number in range(16):
            cases += 1
            session.call("ArrayCreate", array=1000 + number, shape=array(1024, 8192))
            session.call("ArrayDestroy", array=1000 + number)
    except (wire.Failed, TimeoutError):
        pass
    expect(resident(worker) < LIMIT + OWN, f"{resident(worker) >> 20} MiB of arrays that were given up")
    return cases


@attack
def arrays_that_surfaces_name_after_their_end(field):
    """A destroyed array has no memory, whatever still names it."""
    field.again(*LIMITED)
    session = field.session()
    worker = field.worker(session)
    for number in range(16):
        session.call("ArrayCreate", array=1000 + number, shape=array(1024, 8192))
        session.call("SurfaceCreate", surface=5000 + number, array=1000 + number, level=0)
        session.call("ArrayDestroy", array=1000 + number)
    session.call("ContextSynchronize")
    expect(resident(worker) < LIMIT + OWN, f"{resident(worker) >> 20} MiB of arrays that were destroyed")
    return 16


@attack
def arrays_of_a_few_bytes(field):
    """Each of their levels counts as what it takes."""
    field.again(*LIMITED)
    session = field.session()
    arrays = 0
    try:
        while arrays < 20_000:
            session.call("ArrayCreate", array=1000 + arrays, shape=array(1, 1, levels=18))
            arrays += 1
    except wire.Failed as failed:
        expect(failed.status == 2, f"{failed}")
    expect(arrays * 18 * 512 <= LIMIT, f"{arrays} arrays of 18 levels")
    return arrays


@attack
def modules_that_go_give_back_their_variables(field):
    field.again(*LIMITED)
    guest = Guest(field)
    for _ in range(3):
        pieces = take(guest, "variable")
        expect(pieces == LIMIT // PIECE, f"{pieces} modules with 4 MiB")
        for number in range(pieces):
            guest.session.post("ModuleUnload", module=5000 + guest.number - 1 - number)
        guest.session.call("ContextSynchronize")
    return 3


def scribble(worker, word):
    """Fills all accounts of memory that a worker has, as it can itself; returns how many these are."""
    folder, accounts = f"/proc/{worker}/fd", 0
    for number in os.listdir(folder):
        path = os.path.join(folder, number)
        if "paragpu-account" in os.readlink(path):
            with open(path, "r+b", buffering=0) as account:
                account.write(word * (os.fstat(account.fileno()).st_size // len(word)))
            accounts += 1
    return accounts


@attack
def a_worker_that_claims_a_whole_gpu(field):
    """Whatever a compromised worker writes at any time, other VMs have all but what its VM may have."""
    needs(os.geteuid() == 0, "root")
    gpu, own, cases = 512 << 20, 64 << 20, 0
    for word in (0, 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1):
        field.again(f"--set=software.memory={gpu}", f"--set=vm.uid 0.memory={own}")
        greedy, honest = Guest(field), Guest(field, field.neighbour())
        expect(take(greedy, "map") * PIECE == own, "a VM has less than its limit")
        worker = field.worker(greedy.session)
        for pieces in range(4):
            expect(scribble(worker, word.to_bytes(8, "little")) > 1, "a worker has no accounts")
            free = honest.session.call("MemGetInfo")[0]["free"]
            least = gpu - own - pieces * PIECE
            expect(least <= free <= gpu, f"after {word:#x} {free} bytes are free, not {least}")
            honest.map()
            cases += 1
        scribble(worker, word.to_bytes(8, "little"))
        pieces = 4 + take(honest, "map")
        expect(pieces * PIECE >= gpu - own, f"after {word:#x} a VM has {pieces} pieces of 4 MiB")
        # What the others have is not taken from them.
        scribble(worker, word.to_bytes(8, "little"))
        honest.session.call("MemUnmap", address=ARENA + PIECE)
        honest.map()
    return cases
