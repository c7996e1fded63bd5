"""Kernels, and invalid PTX."""

import struct

import wire
from field import ARENA, CHUNK, ENDLESS, attack, blake3, expect, peak, ptx
from memory import LIMIT, LIMITED, OWN, written
from objects import most_of


@attack
def an_endless_kernel(field):
    field.again("--set=limits.reconnect=0")
    session = field.session()
    for _ in range(4):
        field.launch(session, field.kernel(session, ENDLESS) if session.sequence == 0 else 101)
    neighbour = field.neighbour()
    neighbour.call("MemMap", address=ARENA, size=CHUNK)
    for _ in range(20):
        neighbour.call("CopyFromDevice", source=ARENA, size=4096, stream=0)
    session.close()
    neighbour.close()
    expect(not field.daemon.left(20), "a session with an endless kernel does not end with its guest")
    return 4


def of_addresses(field, body):
    """Runs a kernel with addresses that are not its own; each ends its session only."""
    others = [0, 8, 4096, ARENA - 8, ARENA + CHUNK, ARENA + (64 << 30), 0x300000000000, 0x7FFFFFFFE000, 1 << 63, (1 << 64) - 4]
    for address in others:
        session = field.session()
        session.call("MemMap", address=ARENA, size=CHUNK)
        function = field.kernel(session, ptx(body, ".param .u64 p0"))
        field.launch(session, function, struct.pack("<Q", address))
        try:
            session.call("ContextSynchronize")
        except (wire.Failed, ConnectionError, OSError):
            continue
        finally:
            session.close()
        expect(False, f"a kernel reached {address:#x}")
    return len(others)


@attack
def kernels_that_read_elsewhere(field):
    return of_addresses(field, "ld.param.u64 %rd1, [p0]; ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r1;")


@attack
def kernels_that_write_elsewhere(field):
    return of_addresses(field, "ld.param.u64 %rd1, [p0]; mov.u32 %r1, 7; st.global.u32 [%rd1], %r1;")


@attack
def kernels_that_leave_shared_and_local_memory(field):
    cases = 0
    for space in ("shared", "local"):
        for offset in (1 << 16, 1 << 20, 1 << 30, 0xFFFFFFF0):
            session = field.session()
            body = f"mov.u32 %r1, {offset}; cvt.u64.u32 %rd1, %r1; ld.{space}.u32 %r2, [%rd1]; st.{space}.u32 [%rd1], %r2;"
            function = field.kernel(session, ptx(body, registers=f".{space} .align 4 .b8 own[64];\n"))
            field.launch(session, function)
            try:
                session.call("ContextSynchronize")
                expect(False, f"a kernel reached {space} memory at {offset:#x}")
            except (wire.Failed, ConnectionError, OSError):
                cases += 1
            session.close()
    return cases


GOOD = ptx(
    "ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2;\n"
    "setp.lt.u32 %p1, %r1, 16; @%p1 bra LESS; add.u32 %r1, %r1, 7; LESS: st.global.u32 [%rd1], %r1; bar.sync 0;",
    ".param .u64 p0",
)


def mutants(field, sessions):
    """Kernels with changed letters, 20 a session; returns how many."""
    cases = 0
    for _ in range(sessions):
        session = field.session()
        session.call("MemMap", address=ARENA, size=CHUNK)
        for number in range(20):
            text = bytearray(GOOD.encode())
            for _ in range(field.source.randrange(1, 6)):
                at = field.source.randrange(len(text))
                text[at] = field.source.choice((field.source.randrange(32, 127), text[at - 1], 0x3B, 0x7B))
            image = bytes(text) + b"\0"
            cases += 1
            try:
                digest = blake3(image)
                handle = 100 + 4 * number
                session.call("ImageWrite", hash=digest, size=len(image), offset=0, data=image)
                session.call("ModuleLoad", module=handle, hash=digest, options=b"")
                session.call("FunctionGet", function=handle + 1, module=handle, name="attack")
                field.launch(session, handle + 1, struct.pack("<Q", ARENA), block=(32, 1, 1))
                session.call("ContextSynchronize")
            except wire.Failed:
                pass
            except (ConnectionError, OSError):
                break
        session.close()
    return cases


@attack
def mutated_kernels(field):
    return mutants(field, 15)


@attack
def launches_of_impossible_shape(field):
    session = field.session()
    function = field.kernel(session, GOOD)
    shapes = [(0, 0, 0), (1 << 31, 1, 1), (1, 1 << 20, 1), ((1 << 32) - 1,) * 3]
    cases = 0
    for grid in shapes:
        for block in [(0, 1, 1), (1025, 1, 1), (1 << 31, 2, 1), ((1 << 32) - 1,) * 3]:
            for parameters in (b"", bytes(3), bytes(5000)):
                field.launch(session, function, parameters, grid=grid, block=block)
                try:
                    session.call("ContextSynchronize")
                    expect(False, f"a launch of {grid} {block} ran")
                except wire.Failed:
                    cases += 1
                except (ConnectionError, OSError):
                    session = field.session()
                    function = field.kernel(session, GOOD)
                    cases += 1
    return cases


@attack
def texts_that_nest(field):
    texts = ["{" * 20_000, "(" * 20_000, "@%p1 " * 5_000, ptx("{" * 5_000), ptx("call (" * 2_000), ptx("[" * 5_000)]
    for text in texts:
        session = field.session()
        try:
            field.kernel(session, text)
            expect(False, "a text that makes no sense was loaded")
        except (wire.Failed, ConnectionError, OSError):
            pass
        session.close()
    return len(texts)


HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
MANY = 20_000
# Each took a minute or more when functions, digits or lines were searched again for each.
SEARCHED = {
    "callers": HEAD
    + ".shared .b8 s;.func own(){.reg .b32 r;mov.b32 r,s;}"
    + "".join(f".func f{n}(){{call f{n + 1};}}" for n in range(MANY))
    + f".func f{MANY}(){{ret;}}"
    + "".join(f".entry k{n}(){{call f0;}}" for n in range(MANY)),
    "digits": HEAD + ".entry k(){.reg .b32 %r<3>;mov.b32 %r" + "1" * 50 * MANY + ",%r1;}",
}
LINKED = {
    "weak": HEAD + "".join(f".weak .global .b8 v{n};" for n in range(2 * MANY)),
    "runtime": HEAD + ".entry k(){f " + ",".join(["__cudaCDP2LaunchDeviceV2"] * 2 * MANY) + ";}",
}


@attack
def texts_that_are_searched_again_and_again(field):
    """They are loaded or linked before the guest loses its patience."""
    for number, text in enumerate(SEARCHED.values()):
        session = field.session()
        session.call("ModuleLoad", module=100 + number, hash=written(session, text), options=b"")
    for text in LINKED.values():
        session = field.session()
        one = wire.encode("LinkInput", dict(kind=1, name="", options=b"", hash=written(session, text)))
        session.call("ImageLink", options=b"", inputs=2 * one if "weak" in text else one)
    return len(SEARCHED) + len(LINKED)


@attack
def kernels_that_recurse_without_end(field):
    text = (
        ".version 8.0\n.target sm_90\n.address_size 64\n.func deeper()\n{\n.local .align 8 .b8 own[4096];\n"
        "call.uni deeper;\nret;\n}\n.visible .entry attack()\n{\ncall.uni deeper;\nret;\n}\n"
    )
    session = field.session()
    try:
        field.launch(session, field.kernel(session, text))
        session.call("ContextSynchronize")
        expect(False, "endless recursion ended")
    except (wire.Failed, ConnectionError, OSError):
        pass
    return 1


# 500,000 bytes of local memory a thread, and no end.
LARGE = ptx(
    "mov.u64 %rd1, own; mov.u32 %r1, 1; st.local.u32 [%rd1+400000], %r1; LOOP: ld.volatile.local.u32 %r2, [%rd1]; bra LOOP;",
    registers=".local .align 4 .b8 own[500000];\n",
)


@attack
def kernels_with_much_local_memory(field):
    """Of 16 streams, in blocks of 32 and of 1024 threads: what runs counts for the VM."""
    field.again(*LIMITED)
    cases = 0
    for threads in (32, 1024):
        session = field.session()
        worker, function = field.worker(session), field.kernel(session, LARGE)
        for stream in range(1000, 1016):
            session.post("StreamCreate", stream=stream, flags=1, priority=0)
            field.launch(session, function, stream=stream, grid=(64, 1, 1), block=(threads, 1, 1))
            cases += 1
        most = most_of(worker, 2)
        expect(most < LIMIT + OWN, f"blocks of {threads} threads take {most >> 20} MiB")
        field.open.remove(session)
        session.close()
    return cases


@attack
def calls_with_many_registers(field):
    """A function that calls itself, with 300 registers a frame, in blocks of 1024 threads."""
    field.again(*LIMITED)
    keep = "".join(f"mov.u64 %x{number}, {number};\n" for number in range(300))
    use = "".join(f"add.u64 %x{number}, %x{number}, %x{(number + 1) % 300};\n" for number in range(300))
    deeper = "{ .param .b32 q; st.param.b32 [q], %n; call.uni deeper, (q); }\n"
    text = (
        ".version 8.0\n.target sm_90\n.address_size 64\n.func deeper(.param .b32 n)\n{\n.reg .b64 %x<300>; .reg .b32 %n; .reg .pred %p;\n"
        f"ld.param.b32 %n, [n]; {keep} setp.eq.u32 %p, %n, 0; @%p bra STAY; sub.u32 %n, %n, 1;\n{deeper}{use}"
        "st.global.u64 [%x0], %x1; ret; STAY: bra STAY;\n}\n"
        f".visible .entry attack()\n{{\n.reg .b32 %n; mov.u32 %n, 800;\n{deeper}ret;\n}}\n"
    )
    session = field.session()
    worker = field.worker(session)
    field.launch(session, field.kernel(session, text), grid=(128, 1, 1), block=(1024, 1, 1))
    try:
        session.call("ContextSynchronize")
        expect(False, "800 calls with 300 registers end")
    except (wire.Failed, ConnectionError, OSError):
        pass
    expect(peak(worker) < LIMIT + OWN, f"the frames take {peak(worker) >> 20} MiB")
    return 1
