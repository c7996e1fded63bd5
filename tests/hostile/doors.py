"""Connections: silent, slow, too many, with descriptors, tokens and names."""

import ctypes
import os
import signal
import socket
import struct
import subprocess

import wire
from field import ARENA, CHUNK, PATIENCE, Broken, attack, attach, descriptors, expect, frame, hello, needs, resident, until


def flood(field, count, tcp_from=None):
    """Connections that say a byte and no more. Later ones may cost earlier ones their places."""
    for _ in range(count):
        peer = field.connect(tcp_from)
        try:
            peer.send(b"p")
        except OSError:
            pass


@attack
def silent_connections_of_one_user(field):
    flood(field, 200)
    for _ in range(5):
        field.neighbour().close()
    return 200


@attack
def silent_connections_of_one_address(field):
    flood(field, 200, tcp_from="127.0.0.66")
    for _ in range(5):
        field.session().close()
        field.neighbour().close()
    return 200


@attack
def silent_connections_of_many_addresses(field):
    for number in range(150):
        flood(field, 2, tcp_from=f"127.0.1.{number + 1}")
    field.session().close()
    field.neighbour().close()
    return 300


@attack
def sessions_come_back_through_a_flood(field):
    sessions = [field.neighbour() for _ in range(12)]
    for session in sessions:
        session.socket.close()
        flood(field, 30)
    back = [field.session(field.tcp, resumes=session) for session in sessions]
    for session in back:
        expect(session.call("Ping", value=3)[0] == 3, "a session that came back does not answer")
    return len(back)


@attack
def a_named_session_waits_in_a_place_of_its_own(field):
    session = field.session()
    back = field.connect()
    first = frame(wire.HELLO, hello(session.welcome["token"]))
    back.send(first[:-3])
    flood(field, 300)
    back.send(first[-3:])
    kind = wire.HEADER.unpack(back.recv(wire.HEADER.size, socket.MSG_WAITALL))[1]
    expect(kind == wire.WELCOME, f"{kind:#06x} instead of a welcome")
    return 300


def lingering(count=8):
    """Sockets whose last close takes longer than anybody waits: their peer does not read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pairs = []
        for _ in range(count):
            one = socket.create_connection(listener.getsockname())
            other, _ = listener.accept()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10 * PATIENCE))
            one.setblocking(False)
            try:
                while True:
                    one.send(bytes(1 << 16))
            except BlockingIOError:
                pass
            pairs.append((one, other))
    return pairs


def descriptors_that_linger(field, address, first):
    """Sends descriptors whose close waits, then asks whether the daemon serves."""
    kept = []
    # So that the daemon is the last to close them.
    field.daemon.process.send_signal(signal.SIGSTOP)
    for part in (first[:1], first):
        pairs = lingering()
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.connect(address)
        socket.send_fds(peer, [part], [one.fileno() for one, _ in pairs])
        for one, other in pairs:
            one.close()
            kept.append(other)
        peer.close()
    field.daemon.process.send_signal(signal.SIGCONT)
    session = wire.Session(field.tcp, deadline=PATIENCE, context=field.context)
    expect(session.call("Ping", value=1)[0] == 1, "no answer")
    session.close()
    for other in kept:
        other.close()
    return 2 * len(kept)


@attack
def descriptors_of_guests_that_linger(field):
    before = descriptors(field.daemon.process.pid)
    cases = descriptors_that_linger(field, field.daemon.socket, frame(wire.HELLO, hello()))
    until("given back", lambda: descriptors(field.daemon.process.pid) <= before + 4)
    return cases


@attack
def descriptors_of_device_processes_that_linger(field):
    return descriptors_that_linger(field, field.device_socket(), attach("vm"))


@attack
def descriptors_behind_a_refused_hello(field):
    kept = []
    field.daemon.process.send_signal(signal.SIGSTOP)
    for _ in range(4):
        pairs = lingering(2)
        peer = field.connect()
        # Refused by its version; the descriptors stay unread behind it.
        refused = bytearray(frame(wire.HELLO, hello()))
        refused[wire.HEADER.size + 8] ^= 0xFF
        peer.send(refused)
        socket.send_fds(peer, [b"more"], [one.fileno() for one, _ in pairs])
        for one, other in pairs:
            one.close()
            kept.append(other)
        peer.close()
    field.daemon.process.send_signal(signal.SIGCONT)
    session = wire.Session(field.tcp, deadline=PATIENCE)
    session.close()
    return 8


@attack
def random_first_frames(field):
    cases = 400
    for number in range(cases):
        peer = field.connect()
        data = field.source.randbytes(field.source.choice((1, 15, 16, 17, 47, 63, 64, 300, 5000)))
        if number % 2:
            kind = field.source.choice((wire.HELLO, 0x7F10, 0x7F11, wire.WELCOME))
            data = frame(kind, data[:4000])
        peer.send(data)
        peer.close()
    return cases


@attack
def a_log_that_strangers_fill(field):
    """Of very many refusals it has some, and says how many it leaves out."""
    before, cases = field.daemon.log().count("\n"), 3000
    for _ in range(cases):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.connect(field.daemon.socket)
        peer.send(b"rubbish, and no hello")
        # Heard, when the daemon closes it.
        peer.settimeout(PATIENCE)
        try:
            peer.recv(1)
        except ConnectionError:
            pass
        peer.close()
    field.neighbour().close()
    lines = field.daemon.log().count("\n") - before
    expect(lines < cases // 2, f"{lines} lines about {cases} connections")
    expect("were suppressed" in field.daemon.log(), "nothing says that lines are missing")
    return cases


@attack
def mutated_hellos(field):
    good = frame(wire.HELLO, hello())
    cases = 0
    for at in range(len(good)):
        for bit in range(0, 8, 3):
            data = bytearray(good)
            data[at] ^= 1 << bit
            peer = field.connect()
            peer.send(data)
            peer.close()
            cases += 1
    return cases


@attack
def guessed_tokens(field):
    victim = field.neighbour()
    token = victim.welcome["token"]
    cases = 200
    for number in range(cases):
        guess = bytearray(token)
        guess[number % 16] ^= 1 << number % 8
        peer = field.connect()
        peer.send(frame(wire.HELLO, hello(bytes(guess))))
        kind = wire.HEADER.unpack(peer.recv(wire.HEADER.size, socket.MSG_WAITALL))[1]
        expect(kind == wire.REFUSAL, f"{kind:#06x} instead of a refusal")
        peer.close()
    expect(victim.call("Ping", value=2)[0] == 2, "the session is lost to a guess")
    return cases


def resumed(field, session, times, address=None):
    """A session that lost its connection this often."""
    for _ in range(times):
        session.socket.close()
        field.open.remove(session)
        session = field.session(address, resumes=session)
    return session


@attack
def a_token_resumed_without_end(field):
    session = field.session()
    worker, daemon = field.worker(session), field.daemon.process.pid
    before = descriptors(worker), descriptors(daemon), len(os.listdir(f"/proc/{worker}/task"))
    cases = 300
    session = resumed(field, session, cases)
    session.call("Ping", value=1)

    def settled():
        now = descriptors(worker), descriptors(daemon), len(os.listdir(f"/proc/{worker}/task"))
        return all(after <= first + 16 for first, after in zip(before, now, strict=True))

    until("given back", settled)
    return cases


@attack
def every_session_of_the_host(field):
    """One user takes all that it can; another still gets one."""
    field.again("--set=limits.sessions=70")
    held = 0
    try:
        for _ in range(70):
            field.session()
            held += 1
    except ConnectionRefusedError as refused:
        expect("limits.per_vm" in str(refused), str(refused))
    neighbour = field.neighbour()
    expect(neighbour.call("Ping", value=1)[0] == 1, "no answer")
    field.hang_up()
    expect(not field.daemon.left(), "sessions stay")
    return held


NEWPID = 0x20000000

# A device process: each line that it reads is a first frame, and it answers with the daemon's.
DEVICE_PROCESS = (
    "import socket, sys, os\n"
    "memory = os.memfd_create('window'); os.ftruncate(memory, 1 << 20)\n"
    "fds = [memory, os.eventfd(0), os.eventfd(0)]\n"
    "for first in sys.stdin:\n"
    "    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)\n"
    f"    peer.settimeout({PATIENCE})\n"
    "    peer.connect(sys.argv[1])\n"
    "    socket.send_fds(peer, [bytes.fromhex(first)], fds)\n"
    "    try: answer = peer.recv(4096)\n"
    "    except OSError: answer = b''\n"
    "    print(answer.hex(), flush=True)\n"
)


class DeviceProcess:
    """A process that serves the devices of VMs, which it names one after the other."""

    def __init__(self, address):
        command = ["python3", "-c", DEVICE_PROCESS, address]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, name):
        """The daemon's answer to its claim of a VM."""
        self.process.stdin.write(attach(name).hex() + "\n")
        self.process.stdin.flush()
        return bytes.fromhex(self.process.stdout.readline())

    def end(self):
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


def device_process(field, names, process=True):
    """What the daemon answers to a device process of VMs: a frame's kind and its payload."""
    one = DeviceProcess(field.device_socket() if process else field.daemon.socket)
    try:
        return [one.ask(name) for name in names]
    finally:
        one.end()


def refused(answer):
    """The sentence of a refusal; empty where it is none."""
    if len(answer) < wire.HEADER.size or wire.HEADER.unpack_from(answer)[1] != wire.REFUSAL:
        return ""
    return wire.Session.whole("Refusal", answer[wire.HEADER.size :])["reason"]


@attack
def a_device_process_that_invents_names(field):
    names = [f"vm{number}" for number in range(40)]
    before = descriptors(field.daemon.process.pid)
    answers = device_process(field, names[:2] + names[2:40])
    expect(all(refused(answer) for answer in answers[1:]), "one process has many names")
    until("given back", lambda: descriptors(field.daemon.process.pid) <= before + 8)
    return len(names)


@attack
def a_device_process_of_another_namespace(field):
    """The daemon is in a PID namespace of its own, in which device processes have no number."""
    needs(os.getuid() == 0, "root")
    needs(tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 9), "Linux 6.9")
    here = os.open("/proc/self/ns/pid", os.O_RDONLY)
    kernel = ctypes.CDLL(None)  # os.unshare needs Python 3.12.
    try:
        expect(kernel.unshare(NEWPID) == 0, "no namespace")  # Of children from now on.
        field.again()
    finally:
        expect(kernel.setns(here, NEWPID) == 0, "this process stays in the namespace")
        os.close(here)
    one, two = (DeviceProcess(field.device_socket()) for _ in range(2))

    def serves(process, vm):
        """Whether a session begins, which a worker ends since the window holds no channel."""
        begun = field.daemon.log().count("session begins")
        return not refused(process.ask(vm)) and field.daemon.log().count("session begins") > begun

    try:
        expect(serves(one, "one"), "a device process is refused")
        expect("already" in refused(one.ask("two")), "one process serves two VMs")
        expect("already" in refused(two.ask("one")), "two processes serve one VM")
        expect(serves(one, "one"), "a device process is refused its own VM")
        one.end()
        until("free", lambda: serves(two, "one"))
        expect("already" in refused(two.ask("two")), "one process serves two VMs")
    finally:
        for process in (one, two):
            process.end()
    return 6


@attack
def a_connection_of_a_process_that_ended(field):
    """Who inherits a connection cannot be watched as the process that made it."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.connect(field.device_socket())
        socket.send_fds(theirs, [b"x"], [peer.fileno()])
        os._exit(0)  # pylint: disable=protected-access
    _, (inherited,), _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(child, 0)
    memory = os.memfd_create("window")
    os.ftruncate(memory, 1 << 20)
    fds = [memory, os.eventfd(0), os.eventfd(0)]
    with socket.socket(fileno=inherited) as peer:
        peer.settimeout(PATIENCE)
        socket.send_fds(peer, [attach("one")], fds)
        expect("has ended" in refused(peer.recv(4096)), "somebody serves a VM's device unwatched")
    for one in (ours, theirs):
        one.close()
    for fd in fds:
        os.close(fd)
    return 1


@attack
def names_of_others(field):
    names = ("uid 0", f"uid {os.getuid()}", "127.0.0.1", "::1", "cid 3", "", "x" * 65, "a\nb", "host 10.0.0.1")
    for name in names:
        answer = device_process(field, [name])[0]
        expect(refused(answer), f"a device process serves a VM named {name!r}")
    return len(names)


@attack
def device_processes_at_the_socket_for_guests(field):
    answer = device_process(field, ["vm"], process=False)[0]
    if answer and not refused(answer):
        raise Broken("a guest says which VM it is")
    return 1


def command(field):
    """A connection of the control socket."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(PATIENCE)
    peer.connect(field.daemon.control)
    field.open.append(peer)
    return peer


@attack
def commands_of_no_sense(field):
    """Who may use the control socket still only speaks JSON of a bounded length and depth."""
    lines = [b"[" * 100_000, b'{"a":' * 100_000, b"\0" * 1000, b"\xff" * 1000, b"x" * (1 << 20), b'"' * 20_000]
    lines += [b'{"command":"end","session":%s}' % number for number in (b"1e999999", b"-1", b"18446744073709551616", b"[]", b"null")]
    lines += [b'{"command":"list"}\n' * 5000]
    for line in lines:
        peer = command(field)
        try:
            peer.sendall(line + b"\n")
        except OSError:
            pass
        # The daemon answers others meanwhile.
        field.daemon.sessions()
    expect(resident(field.daemon.process.pid) < 64 << 20, "the daemon keeps invalid data")
    return len(lines)


@attack
def commands_that_are_never_finished(field):
    """Nor read; the operator still gets an answer."""
    for _ in range(200):
        command(field).send(b"{")
    for _ in range(64):
        peer = command(field)
        peer.setblocking(False)
        try:
            while True:
                peer.send(b'{"command":"stats"}\n' * 1000)
        except OSError:
            pass
    field.daemon.sessions()
    expect(descriptors(field.daemon.process.pid) < 128, "the daemon keeps every connection")
    return 264


@attack
def hellos_byte_by_byte(field):
    """From many addresses concurrently, complete in the end: each becomes a session."""
    first, peers = frame(wire.HELLO, hello()), []
    for number in range(12):
        peers.append(field.connect(f"127.0.4.{number + 1}"))
    for byte in first:
        for peer in peers:
            peer.send(bytes([byte]))
    for peer in peers:
        kind = wire.HEADER.unpack(peer.recv(wire.HEADER.size, socket.MSG_WAITALL))[1]
        expect(kind == wire.WELCOME, f"{kind:#06x} instead of a welcome")
    return len(peers)


@attack
def hellos_of_impossible_fields(field):
    """Devices, transports, tokens and lengths that no guest has; frames behind them that come too soon."""
    good, cases = hello(), 0
    firsts = [frame(wire.HELLO, hello(device=device)) for device in (1, 16, 1 << 31, (1 << 32) - 1)]
    firsts += [frame(wire.HELLO, hello(transport=transport)) for transport in (0, 2, 3, 4, 5, 255)]
    firsts += [wire.HEADER.pack(length, wire.HELLO, 0, 0) + good for length in (0, 46, 48, 4096, 4097, 1 << 31, (1 << 32) - 1)]
    firsts += [frame(wire.HELLO, good, slot, sequence) for slot, sequence in ((65535, 0), (0, (1 << 64) - 1))]
    firsts += [frame(wire.HELLO, good) + frame(wire.NUMBERS["Ping"], bytes(8), 1, 1) * 200, frame(wire.HELLO, good) * 50]
    for first in firsts:
        for address in (None, "127.0.5.1"):
            peer = field.connect(address)
            try:
                peer.sendall(first)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(4096):
                    pass
            except OSError:
                pass
            cases += 1
    return cases


@attack
def a_token_that_many_resume_at_once(field):
    """Thirty connections take over one session; one continues it, and no call is lost or executed twice."""
    session = field.session()
    session.call("MemMap", address=ARENA, size=CHUNK)
    storm = [field.connect() for _ in range(30)]
    for peer in storm:
        peer.send(frame(wire.HELLO, hello(session.welcome["token"])))
    back = field.session(resumes=session)
    back.call("Ping", value=9)
    until("one session", lambda: len(field.daemon.sessions()) == 1)
    # What the session had, it still has.
    back.call("MemUnmap", address=ARENA)
    return len(storm)
