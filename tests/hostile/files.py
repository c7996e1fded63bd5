"""Pipes and links in place of the files that the daemon reads and writes."""

import os
import struct
import subprocess
import tempfile

import harness
import wire
from blake3 import blake3
from field import ARENA, CHUNK, PATIENCE, SHADOWS, Broken, arrival, attack, expect, needs, ptx, until


def paragpu(field, *arguments, timeout=PATIENCE):
    """Runs a command against the daemon: its exit status, or None where it hangs."""
    command = [harness.binary("paragpu"), "--control", field.daemon.control, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return None


@attack
def states_that_are_no_files(field):
    cases = 0
    for kind in ("pipe", "link", "folder", "device", "link to a pipe"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "session.paragpu")
            if kind == "pipe":
                os.mkfifo(path)
            elif kind == "link":
                os.symlink("/etc/hostname", path)
            elif kind == "folder":
                os.mkdir(path)
            elif kind == "device":
                os.symlink("/dev/zero", path)
            else:
                os.mkfifo(path + ".pipe")
                os.symlink(path + ".pipe", path)
            done = paragpu(field, "restore", folder)
            expect(done is not None, f"restore of a {kind} hangs")
            expect(done.returncode != 0, f"a {kind} is restored")
            expect("session.paragpu" in done.stderr and ("regular file" in done.stderr or "link" in done.stderr), done.stderr)
            field.neighbour().close()
            cases += 1
    return cases


END, LAYOUT, BLOCK = 8, 10, 4096


def records(state):
    """The records of a state: kind, version, payload; and the contents of its memory."""
    found, memory, at = [], b"", 0
    while at < len(state):
        kind, version, length = struct.unpack_from("<HHI", state, at)
        found.append((kind, version, bytes(state[at + 24 : at + 24 + length])))
        at += 24 + length
        if kind == LAYOUT:
            contents, at = struct.unpack("<QQ", found[-1][2])
            memory = bytes(state[contents:at])
    return found, memory


def state_of(parts, memory, keeps=True):
    """A state of these records, with checksums that are right, and a layout that is unless
    it `keeps` its own."""
    state, sums, is_laid = bytearray(), b"", False
    for kind, version, payload in parts:
        if kind == END:
            payload = blake3(sums)
        lays = kind == LAYOUT and not is_laid
        if lays and not keeps:
            contents = -(-(len(state) + 24 + 16) // BLOCK) * BLOCK
            payload = struct.pack("<QQ", contents, contents + len(memory))
        header = struct.pack("<HHI", kind, version, len(payload))
        checksum = blake3(header + payload)[:16]
        sums += checksum if kind != END else b""
        state += header + checksum + payload
        if lays:
            state += bytes(-len(state) % BLOCK) + memory
            is_laid = True
    return bytes(state)


def mutant(source, parts, memory):
    """The records with something else in them."""
    parts, place = list(parts), source.randrange(len(parts) - 1)
    kind, version, payload = parts[place]
    keeps = kind == LAYOUT
    payload = bytearray(payload)
    way = source.randrange(9)
    if way == 0:
        parts.insert(place, parts[place])
    elif way == 1 and place:
        del parts[place]
    elif way == 2 and place:
        other = source.randrange(1, len(parts) - 1)
        parts[place], parts[other] = parts[other], parts[place]
    elif way == 3:
        parts[place] = (kind, version, bytes(payload[: source.randrange(len(payload) + 1)]))
    elif way == 4:
        # A count, a size or an address beyond all.
        at = source.randrange(max(1, len(payload) - 7))
        payload[at : at + 8] = source.choice((b"\xff" * 8, b"\0" * 7 + b"\x80", struct.pack("<Q", 1 << 40)))
        parts[place] = (kind, version, bytes(payload))
    elif way == 5:
        parts[place] = (source.choice((1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 32, 37, 38, 44, 46, 47, 60)), version, bytes(payload))
    elif way == 6:
        memory = bytearray(memory[: source.randrange(len(memory) + 1)])
        if memory:
            memory[source.randrange(len(memory))] ^= 1 << source.randrange(8)
    else:
        for _ in range(source.randrange(1, 6)):
            if payload:
                payload[source.randrange(len(payload))] ^= 1 << source.randrange(8)
        parts[place] = (kind, version, bytes(payload))
    return state_of(parts, bytes(memory), keeps)


@attack
def states_with_other_contents(field):
    """A state with valid checksums and any contents is restored or refused, without effect on others."""
    session, neighbour = field.session(), field.neighbour()
    session.call("MemMap", address=ARENA, size=2 * CHUNK)
    session.post("Memset", destination=ARENA, pitch=0, value=7, element=1, width=2 * CHUNK, height=1, stream=0)
    session.call("ShadowCreate", address=SHADOWS, size=4096)
    session.post("ShadowWrite", address=SHADOWS, data=b"shadow")
    shape = dict(width=16, height=16, depth=0, format=0x20, channels=1, flags=2, levels=1)
    session.call("ArrayCreate", array=7, shape=shape)
    session.call("SurfaceCreate", surface=8, array=7, level=0)
    session.post("StreamCreate", stream=1000, flags=1, priority=0)
    session.post("EventCreate", event=1001, flags=0)
    session.post("EventRecord", event=1001, stream=1000)
    field.kernel(session, ptx(""))
    session.call("ContextSynchronize")
    number, cases = str(session.welcome["session"]), 0
    with tempfile.TemporaryDirectory() as folder:
        done = paragpu(field, "checkpoint", "--end", number, folder)
        expect(done is not None and done.returncode == 0, f"{done}")
        path = os.path.join(folder, "session.paragpu")
        with open(path, "rb") as file:
            good = file.read()
        parts, memory = records(good)
        for keeps in (True, False):
            expect(state_of(parts, memory, keeps) == good, "the records are not of the expected kind")
        for _ in range(80):
            with open(path, "wb") as file:
                file.write(mutant(field.source, parts, memory))
            done = paragpu(field, "restore", folder)
            expect(done is not None, "a restore does not end")
            if done.returncode == 0:
                for one in field.daemon.sessions():
                    if one["id"] != neighbour.welcome["session"]:
                        paragpu(field, "end", str(one["id"]))
            expect(neighbour.call("Ping", value=1)[0] == 1, "the neighbour's session ended")
            cases += 1
    return cases


# What a terminal or a metric would obey, what has no end, and what is invisible.
NAMES = ("", "\0\0", "a\nb", "\x1b[31m", "\x9b2J", "é\u202e", "a\u200bb", "x" * 65, "x" * 3000)


@attack
def names_of_sessions_that_arrive(field):
    for name in NAMES:
        with field.connect() as link:
            link.sendall(arrival(name))
            length, kind, _, _ = wire.HEADER.unpack(wire.exactly(link, wire.HEADER.size))
            expect(kind == wire.REFUSAL, f"a session of {name[:80]!r} arrives")
            reason = wire.exactly(link, length)[10:].decode()
            expect("not a valid name" in reason and not any(ord(letter) < 32 for letter in reason), f"{name[:80]!r}: {reason!r}")
    expect(field.daemon.sessions() == [], "a session arrived")
    return len(NAMES)


@attack
def names_of_states(field):
    """A state whose VM's name cannot be shown is refused."""
    session = field.session()
    with tempfile.TemporaryDirectory() as folder:
        done = paragpu(field, "checkpoint", "--end", str(session.welcome["session"]), folder)
        expect(done is not None and done.returncode == 0, f"{done}")
        # The session is listed until its worker has exited.
        until("ended", lambda: not field.daemon.sessions())
        path = os.path.join(folder, "session.paragpu")
        with open(path, "rb") as file:
            parts, memory = records(file.read())
        kind, version, head = parts[0]
        own = wire.encode("Text", f"uid {os.getuid()}")
        expect(head.count(own) == 1, "the head does not name the VM")
        for name in (*NAMES, "x" * 60_000):
            forged = [(kind, version, head.replace(own, wire.encode("Text", name))), *parts[1:]]
            with open(path, "wb") as file:
                file.write(state_of(forged, memory, False))
            done = paragpu(field, "restore", folder)
            expect(done is not None and done.returncode != 0, f"a session of {name[:80]!r} is restored")
            expect("\x1b" not in done.stderr and field.daemon.sessions() == [], f"{name[:80]!r}: {done.stderr!r}")
    return len(NAMES) + 1


@attack
def a_state_of_another_user(field):
    needs(os.getuid() == 0, "root")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "session.paragpu")
        with open(path, "wb") as state:
            state.write(b"x" * 100)
        os.chown(path, 1234, 1234)
        done = paragpu(field, "restore", folder)
        expect(done is not None and done.returncode != 0, "another user's state is restored")
        expect("belongs to" in done.stderr, done.stderr)
    return 1


def start_with_state(field, state):
    """A second daemon with this state directory: does it start?"""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            harness.binary("paragpud"), "--device=software", f"--socket={folder}/guests",
            f"--control={folder}/control", "--print-addresses", f"--set=daemon.state={state}",
        ]
        process = subprocess.Popen(harness.owned(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            return bool(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(PATIENCE)
            process.stdout.close()


@attack
def links_in_the_state_directory(field):
    with tempfile.TemporaryDirectory() as folder:
        victim = os.path.join(folder, "victim")
        with open(victim, "w", encoding="ascii") as file:
            file.write("precious")
        state = os.path.join(folder, "state")
        os.mkdir(state)
        os.symlink(victim, os.path.join(state, "lock"))
        started = start_with_state(field, state)
        with open(victim, encoding="ascii") as file:
            expect(file.read() == "precious", "the lock's link empties another file")
        expect(not started, "a lock that is a link is used")
        elsewhere = os.path.join(folder, "elsewhere")
        os.mkdir(elsewhere, mode=0o755)
        linked = os.path.join(folder, "linked")
        os.symlink(elsewhere, linked)
        if start_with_state(field, linked):
            raise Broken("a state directory that is a link is used")
        expect(os.stat(elsewhere).st_mode & 0o777 == 0o755, "the mode of the link's directory changed")
        os.mkfifo(os.path.join(elsewhere, "lock"))
        if start_with_state(field, elsewhere):
            raise Broken("a lock that is a pipe is used")
    return 3
