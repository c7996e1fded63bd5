"""Hosts with a certificate of the pool that misbehave, and guests that do while their session moves."""

import contextlib
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time

import harness
import wire
from blake3 import blake3
from field import ARRIVE, PATIENCE, attack, expect, frame, until
from files import paragpu
from secure import context, issue, secured

# Kinds of records between workers.
MISSING, REFUSED = 32, 34
# Longer than a message between worker and daemon may be.
ENDLESS_TEXT = "x" * 100_000


def record(kind, payload):
    """A record's bytes."""
    start = struct.pack("<HHI", kind, 1, len(payload))
    return start + blake3(start + payload)[:16] + payload


def receive(peer, count):
    """Exactly so many bytes."""
    got = b""
    while len(got) < count:
        more = peer.recv(count - len(got))
        expect(more, "the source has hung up")
        got += more
    return got


@contextlib.contextmanager
def host(field, *arguments):
    """The daemon of a host in a pool, and the folder of its authority."""
    with tempfile.TemporaryDirectory(prefix="paragpu-hosts-") as folder:
        issue(folder, "127.0.0.1")
        field.again(*harness.as_host(folder), *arguments)
        yield folder


@contextlib.contextmanager
def destination(folder, answer):
    """A hostile destination, which answers the first record with `answer(peer)`: its URL."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_verify_locations(f"{folder}/ca.pem")
    server.load_cert_chain(f"{folder}/127.0.0.1.pem", f"{folder}/127.0.0.1.key")
    server.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                plain, _ = listener.accept()
                plain.settimeout(PATIENCE)
                with server.wrap_socket(plain, server_side=True) as peer:
                    length, _, _, _ = wire.HEADER.unpack(receive(peer, wire.HEADER.size))
                    receive(peer, length)
                    home = wire.encode("Text", "tcp") + wire.encode("Text", "127.0.0.1:1")
                    peer.sendall(frame(wire.WELCOME, home))
                    receive(peer, 24)
                    answer(peer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def takes_orders(field, session):
    """The session continues, and is neither moved nor checkpointed meanwhile."""
    expect(session.call("Ping", value=2)[0] == 2, "the session does not answer")
    with tempfile.TemporaryDirectory() as folder:
        done = paragpu(field, "checkpoint", str(session.welcome["session"]), folder)
        expect(done is not None and done.returncode == 0, f"no checkpoint: {done}")


@attack
def guests_that_stay_with_an_endless_reason(field):
    """A guest that does not follow its session ends the move, whatever it says."""
    with secured(field) as folder:
        arguments = [*field.arguments, *harness.as_host(folder)]
        guest = field.context
        field.again(*arguments)
        field.context = guest
        with harness.Daemon(*arguments) as other:
            session = field.session(field.tcp, context=guest)
            session.call("Ping", value=1)
            order = ["migrate", str(session.welcome["session"]), "--to", f"tcp://{other.addresses['migration']}"]
            command = [harness.binary("paragpu"), "--control", field.daemon.control, *order]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as moves:
                try:
                    while session.receive_frame()[0] != wire.MOVE:
                        pass
                    session.send_frame(wire.STAYS, 0, 0, wire.encode("Text", ENDLESS_TEXT))
                    said, _ = moves.communicate(timeout=PATIENCE)
                finally:
                    moves.kill()
            expect("its program cannot follow" in said and len(said) < 4096, f"the move ends with {said[:4096]}")
            takes_orders(field, session)
    return 1


@attack
def guests_that_stay_unasked(field):
    """A guest fills no log with answers to a question that nobody asked."""
    session = field.session()
    before = len(field.daemon.log())
    for _ in range(200):
        session.send_frame(wire.STAYS, 0, 0, wire.encode("Text", "unasked" * 100))
    expect(session.call("Ping", value=2)[0] == 2, "the session does not answer")
    field.daemon.status()
    grown = field.daemon.log()[before:]
    expect("unasked" not in grown, f"the log grew by {len(grown)} bytes")
    return 1


@attack
def guests_that_send_without_end(field):
    """A session is checkpointed although its guest sends frames faster than the host takes them."""
    session, over = field.session(field.tcp), threading.Event()
    frames = frame(wire.STAYS, wire.encode("Text", "")) * 8192

    def flood():
        with contextlib.suppress(OSError):
            while not over.is_set():
                session.socket.sendall(frames)

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    time.sleep(0.5)
    with tempfile.TemporaryDirectory() as folder:
        done = paragpu(field, "checkpoint", str(session.welcome["session"]), folder)
    over.set()
    thread.join()
    expect(done is not None and done.returncode == 0, f"no checkpoint: {done}")
    return 1


@attack
def destinations_that_refuse_at_length(field):
    """A destination's reason ends the move, however long it is."""
    with host(field) as folder:
        session = field.session()

        def answer(peer):
            peer.sendall(record(REFUSED, ENDLESS_TEXT.encode()))
            time.sleep(PATIENCE)

        with destination(folder, answer) as url:
            moved = paragpu(field, "migrate", str(session.welcome["session"]), "--to", url)
        expect(moved is not None and moved.returncode != 0, "the move does not end")
        expect("xxx" in moved.stderr and len(moved.stderr) < 4096, f"its reason is {moved.stderr[:4096]}")
        takes_orders(field, session)
    return 1


@attack
def destinations_that_answer_slowly(field):
    """A program runs while its destination sends an answer byte by byte, and the move is given up."""
    with host(field) as folder:
        session, begun = field.session(), threading.Event()

        def answer(peer):
            for byte in record(MISSING, bytes(32)):
                peer.sendall(bytes([byte]))
                begun.set()
                time.sleep(4)

        with destination(folder, answer) as url:
            over = {}
            order = ["migrate", str(session.welcome["session"]), "--to", url]
            thread = threading.Thread(target=lambda: over.update(done=paragpu(field, *order)))
            thread.start()
            expect(begun.wait(PATIENCE), "the move does not begin")
            longest = 0
            while thread.is_alive():
                began = time.monotonic()
                expect(session.call("Ping", value=3)[0] == 3, "the session does not answer")
                longest = max(longest, time.monotonic() - began)
                time.sleep(0.2)
            thread.join()
        expect(longest < 5, f"the program waited for {longest:.1f} s")
        expect(over["done"] is not None and over["done"].returncode != 0, "the move does not end")
        expect("did not answer" in over["done"].stderr, f"its reason is {over['done'].stderr}")
        takes_orders(field, session)
    return 1


@attack
def a_session_announced_again_and_again(field):
    """A source gets no more sessions into a host than its limits allow, with one token or many."""
    with host(field, "--set=limits.sessions=3", "--set=limits.per_vm=2") as folder:
        name, port = field.daemon.addresses["migration"].rsplit(":", 1)
        payload = wire.MAGIC + struct.pack("<HHH", *wire.VERSION) + wire.encode("Text", "victim")
        payload += struct.pack("<I", 0) + b"T" * 16 + struct.pack("<I", 1)
        payload += wire.encode("Text", "tcp") + wire.encode("Text", "tcp") + struct.pack("<IQ", 0xFFFFFFFF, 0)
        kinds = []
        with contextlib.ExitStack() as links:
            for _ in range(6):
                plain = links.enter_context(socket.create_connection((name, int(port)), timeout=PATIENCE))
                peer = links.enter_context(context(folder, "127.0.0.1").wrap_socket(plain, server_hostname="127.0.0.1"))
                peer.sendall(frame(ARRIVE, payload))
                kinds.append(wire.HEADER.unpack(receive(peer, wire.HEADER.size))[1])
            count = len(field.daemon.sessions())
        expect(kinds == [wire.WELCOME] * 2 + [wire.REFUSAL] * 4, f"the answers are {kinds}")
        expect(count == 2, f"{count} sessions of one VM arrive at once")
        until("gone", lambda: not field.daemon.sessions())
    return 1
