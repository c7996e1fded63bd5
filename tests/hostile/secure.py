"""Connections under TLS: unauthenticated peers, downgrades, modified records, other VMs' tokens, limits, expiry.

OpenSSL is the guest here, so that a mistake of rustls's cannot hide on both sides.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time

import harness
import wire
from doors import descriptors_that_linger
from field import ARENA, CHUNK, PATIENCE, attack, descriptors, expect, frame, gated_worker, hello, needs, touch, until
from files import paragpu

# Long enough for a session to begin and to move on a machine that does much else.
LEASE = "20s"


def issue(folder, *arguments):
    """A certificate of the authority in `folder`."""
    command = [harness.binary("paragpu"), "certificate", folder, *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def context(folder, name, ca=None, **versions):
    """What the holder of a certificate shows, and whom it believes."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(os.path.join(ca or folder, "ca.pem"))
    if name:
        made.load_cert_chain(os.path.join(folder, f"{name}.pem"), os.path.join(folder, f"{name}.key"))
    for bound, version in versions.items():
        setattr(made, bound, version)
    return made


@contextlib.contextmanager
def secured(field, *arguments):
    """A daemon that takes guests under TLS, and the folder of its authority."""
    with tempfile.TemporaryDirectory(prefix="paragpu-tls-") as folder:
        issue(folder, "127.0.0.1")
        issue(folder, "--vm", "a", "--memory", "64MiB", "--sessions", "2")
        issue(folder, "--vm", "b")
        files = [f"--set=tcp.{key}={folder}/{file}" for key, file in
                 (("ca", "ca.pem"), ("certificate", "127.0.0.1.pem"), ("key", "127.0.0.1.key"))]
        field.again(*files, *arguments)
        field.context = context(folder, "b")
        yield folder
        field.hang_up()
        field.check()


def enters(field, guest, **options):
    """Does a session begin under this context?"""
    try:
        field.session(field.tcp, context=guest, **options).call("Ping", value=1)
    except (ssl.SSLError, ConnectionError, OSError):
        return False
    except wire.WireError:
        # It began, and ended with its certificate.
        return True
    return True


@attack
def descriptors_at_the_sockets_of_requests(field):
    """Any user of the host may connect to the lease socket, and groups to the others."""
    with tempfile.TemporaryDirectory() as sockets, secured(field) as folder:
        lease, metrics = os.path.join(sockets, "lease.sock"), os.path.join(sockets, "metrics.sock")
        files = [one for one in field.arguments if one.startswith("--set=tcp.")]
        guest = field.context
        field.again(*files, f"--set=lease.authority={folder}", f"--set=lease.socket={lease}", f"--set=metrics.listen={metrics}")
        field.context = guest
        before, cases = descriptors(field.daemon.process.pid), 0
        for address in (lease, field.daemon.control, metrics):
            cases += descriptors_that_linger(field, address, b"GET /metrics HTTP/1.1\r\n")
        until("given back", lambda: descriptors(field.daemon.process.pid) <= before + 4)
    return cases


# Slurm's command, slow as a controller with much to do.
SCONTROL = """#!/bin/sh
sleep 20
"""


def commands_below(process):
    """The command lines of programs that a process started. Its threads and they may end meanwhile."""
    tasks, found = f"/proc/{process}/task", []
    for task in os.listdir(tasks):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"{tasks}/{task}/children", encoding="ascii") as children:
            found += children.read().split()
    for child in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{child}/cmdline", encoding="utf-8") as line:
            yield line.read()


def programs_of(process):
    """How many programs run that a process started and that are no workers."""
    return sum("scontrol" in line for line in commands_below(process))


@attack
def leases_claimed_without_end(field):
    """A user with many claims gets the host to run no more than a few programs for them."""
    with tempfile.TemporaryDirectory() as place, secured(field) as folder:
        program = os.path.join(place, "scontrol")
        with open(program, "w", encoding="ascii") as file:
            file.write(SCONTROL)
        os.chmod(program, 0o755)
        lease, path = os.path.join(place, "lease.sock"), os.environ["PATH"]
        files = [one for one in field.arguments if one.startswith("--set=tcp.")]
        guest = field.context
        os.environ["PATH"] = f"{place}:{path}"
        try:
            field.again(*files, f"--set=lease.authority={folder}", f"--set=lease.socket={lease}", "--set=lease.engine=slurm")
        finally:
            os.environ["PATH"] = path
        field.context, peers = guest, []
        for job in range(1, 201):
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            peer.connect(lease)
            peer.sendall(json.dumps({"command": "claim", "job": job, "key": ""}).encode() + b"\n")
            peers.append(peer)
        daemon = field.daemon.process.pid
        until("asked", lambda: programs_of(daemon) > 0)
        # All claims are read before this is answered.
        field.daemon.sessions()
        running = programs_of(daemon)
        expect(running <= 2, f"{running} programs run for one user")
        for peer in peers:
            peer.close()
        field.daemon.sessions()
        expect(programs_of(daemon) <= 2, "claims of closed connections are asked about")
    return len(peers)


@attack
def strangers_under_tls(field):
    with secured(field) as folder, tempfile.TemporaryDirectory(prefix="paragpu-tls-") as other:
        issue(other, "--vm", "b")
        issue(folder, "--vm", "old", "--valid", "1s")
        old = context(folder, "old")
        expect(enters(field, context(folder, "a")), "a guest with a certificate does not enter")
        until("over", lambda: not enters(field, old))
        foreign = context(other, "b", ca=folder)
        for guest, who in ((context(folder, None), "without a certificate"), (foreign, "of another authority"),
                           (old, "whose certificate is over"), (context(folder, "127.0.0.1"), "with a host's")):
            expect(not enters(field, guest), f"a guest {who} enters")
    return 5


@attack
def strangers_without_tls(field):
    with secured(field):
        peer = field.connect("127.0.0.1")
        peer.send(frame(wire.HELLO, hello()))
        length, kind, _, _ = wire.HEADER.unpack(peer.recv(wire.HEADER.size, socket.MSG_WAITALL))
        reason = peer.recv(length)
        expect(kind == wire.REFUSAL and b"tcp.certificate" in reason, f"{kind:#06x} {reason}")
        try:
            wire.Session(field.tcp, deadline=PATIENCE).close()
            expect(False, "a session begins in the clear")
        except ConnectionRefusedError:
            pass
    return 2


@attack
def downgrades(field):
    with secured(field) as folder:
        cases = 0
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1):
            guest = context(folder, "a", minimum_version=ssl.TLSVersion.TLSv1, maximum_version=version)
            with contextlib.suppress(ssl.SSLError):
                guest.set_ciphers("ALL:@SECLEVEL=0")
            expect(not enters(field, guest), f"{version.name} is spoken")
            cases += 1
        session = wire.Session(field.tcp, deadline=PATIENCE, context=context(folder, "a"))
        expect(session.socket.version() == "TLSv1.3", session.socket.version())
        expect("256" in session.socket.cipher()[0], session.socket.cipher()[0])
        session.close()
        # A hello modified in transit.
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        shaking = context(folder, "a").wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with contextlib.suppress(ssl.SSLWantReadError):
            shaking.do_handshake()
        first = outgoing.read()
        for place in range(0, len(first), 3):
            changed = bytearray(first)
            changed[place] ^= 1 << field.source.randrange(8)
            peer = field.connect("127.0.0.1")
            peer.send(changed)
            field.open.remove(peer)
            peer.close()
            cases += 1
    return cases


@attack
def handshakes_that_stop(field):
    with secured(field) as folder:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        shaking = context(folder, "a").wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with contextlib.suppress(ssl.SSLWantReadError):
            shaking.do_handshake()
        first = outgoing.read()
        for number in range(200):
            peer = field.connect("127.0.0.1")
            peer.send(first[: 1 + number * len(first) // 200])
        # A record that claims much and brings nothing; records without end.
        for data in (b"\x16\x03\x01\xff\xff", b"\x16\x03\x01\x40\x00" + bytes(64), b"\x14\x03\x03\x00\x01\x01" * 20000):
            peer = field.connect("127.0.0.1")
            with contextlib.suppress(OSError):
                peer.send(data)
        expect(enters(field, context(folder, "b")), "an honest guest does not enter")
    return 203


def stranger(folder, intermediates):
    """A certificate chain without a known authority: a leaf, then intermediates with one
    name and different keys, so that each order is a possible path to an authority."""
    config = os.path.join(folder, "stranger.cnf")
    with open(config, "w", encoding="ascii") as file:
        file.write("[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=x\n[ca]\nbasicConstraints=CA:TRUE\n"
                   "[ee]\nbasicConstraints=CA:FALSE\n")
    made = {}
    for kind in ("ca", "ee"):
        files = [os.path.join(folder, f"stranger-{kind}.{end}") for end in ("key", "pem")]
        command = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-config", config, "-extensions", kind,
                   "-keyout", files[0], "-out", files[1]]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        with open(files[1], encoding="ascii") as file:
            made[kind] = ssl.PEM_cert_to_DER_cert(file.read())
    # The key follows its length and the name of its kind.
    at = made["ca"].index(bytes.fromhex("2b6570032100")) + 6
    chain = os.path.join(folder, "stranger.pem")
    with open(chain, "w", encoding="ascii") as file:
        file.write(ssl.DER_cert_to_PEM_cert(made["ee"]))
        for _ in range(intermediates):
            file.write(ssl.DER_cert_to_PEM_cert(made["ca"][:at] + os.urandom(32) + made["ca"][at + 32 :]))
    guest = context(folder, None)
    guest.load_cert_chain(chain, os.path.join(folder, "stranger-ee.key"))
    return guest


def last_flight(field, guest, tcp_from):
    """A connection, and the bytes that end its handshake: certificates and what proves them."""
    peer = field.connect(tcp_from)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    shaking = guest.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            shaking.do_handshake()
            return peer, outgoing.read()
        except ssl.SSLWantReadError:
            peer.sendall(outgoing.read())
            incoming.write(peer.recv(1 << 16))


def starts(field, guest, count=5):
    """Seconds of the slowest start of a session, over the socket and under TLS."""
    slowest = 0
    for address, shown in ((field.daemon.socket, None), (field.tcp, guest)) * count:
        began = time.monotonic()
        session = wire.Session(address, deadline=PATIENCE, context=shown)
        session.call("Ping", value=1)
        slowest = max(slowest, time.monotonic() - began)
        session.send_frame(wire.GOODBYE, 0, 0, b"")
        session.close()
    return slowest


@attack
def a_flood_of_handshakes(field):
    """Half-open handshakes, and certificates that take long to refuse, of other machines: sessions
    begin within their usual time. It is measured beside the flood, so that a busy machine counts in both."""
    with secured(field) as folder:
        honest = context(folder, "b")
        guest, cases = stranger(folder, 150), 0
        usual = starts(field, honest)
        for _ in range(2):
            flights = [last_flight(field, guest, f"127.0.2.{1 + number // 4}") for number in range(44)]
            for number in range(16):
                peer = field.connect(f"127.0.3.{1 + number}")
                peer.send(b"\x16\x03\x01\x02\x00" + bytes(1 + number))
            for peer, data in flights:
                with contextlib.suppress(OSError):
                    peer.sendall(data)
            cases += 60
            flooded = starts(field, honest)
            expect(flooded < 10 * usual, f"a session begins in {flooded:.2f} s, {usual:.2f} s without the flood")
            field.hang_up()
    return cases


@attack
def tokens_of_other_vms(field):
    with secured(field) as folder:
        victim = field.session(field.tcp, context=context(folder, "a"))
        expect(not enters(field, context(folder, "b"), resumes=victim), "another VM goes on with a session")
        expect(victim.call("Ping", value=2)[0] == 2, "the session is lost")
        victim.socket.close()
        back = field.session(field.tcp, context=context(folder, "a"), resumes=victim)
        expect(back.call("Ping", value=3)[0] == 3, "its own VM does not go on with it")
        names = {one["vm"] for one in field.daemon.sessions()}
        expect(names == {"a"}, f"sessions of {names}")
    return 3


@attack
def past_the_limits_of_a_certificate(field):
    with secured(field, "--set=limits.per_vm_memory=1GiB") as folder:
        guest = context(folder, "a")
        one, other = (field.session(field.tcp, context=guest) for _ in range(2))
        expect(not enters(field, guest), "a third session begins")
        mapped = 0
        for number in range(64):
            try:
                session = (one, other)[number % 2]
                session.call("MemMap", address=ARENA + (number // 2) * CHUNK, size=CHUNK)
            except wire.Failed:
                break
            mapped += CHUNK
        expect(mapped <= 64 << 20, f"{mapped >> 20} MiB of 64")
        expect(mapped >= 48 << 20, f"{mapped >> 20} MiB and no more")
    return 66


@attack
def limits_of_a_certificate_whose_last_session_ends(field):
    """A guest waits for its worker while the only other session of its VM ends."""
    with gated_worker(field) as (program, gate):
        with secured(field, "--set=limits.per_vm_memory=1GiB", "--set=pool.warm=0", f"--set=daemon.worker={program}") as folder:
            guest, waiting = context(folder, "a"), []
            first = field.session(field.tcp, context=guest)
            first.call("Ping", value=1)
            touch(gate)
            second = threading.Thread(target=lambda: waiting.append(field.session(field.tcp, context=guest)))
            second.start()
            daemon = field.daemon.process.pid
            until("waiting", lambda: program in "".join(commands_below(daemon)))
            first.send_frame(wire.GOODBYE, 0, 0, b"")
            until("ended", lambda: not field.daemon.sessions())
            os.remove(gate)
            second.join(PATIENCE)
            expect(waiting, "the second session did not begin")
            mapped = 0
            for number in range(64):
                try:
                    waiting[0].call("MemMap", address=ARENA + number * CHUNK, size=CHUNK)
                except wire.Failed:
                    break
                mapped += CHUNK
            expect(mapped <= 64 << 20, f"{mapped >> 20} MiB of 64")
    return 64


@attack
def a_certificate_that_expires(field):
    with secured(field) as folder:
        issue(folder, "--vm", "lease", "--valid", LEASE)
        guest = context(folder, "lease")
        session = field.session(field.tcp, context=guest)
        session.call("Ping", value=1)
        until("ended", lambda: not field.daemon.sessions())
        expect("certificate has expired" in last_words(session), "the guest is not told why")
        expect(not enters(field, guest, resumes=session), "it goes on")
        expect("has expired" in field.daemon.log(), "the log does not say why")
    return 2


def last_words(session):
    """What the host prints for a guest before it closes the connection."""
    said = ""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while True:
            kind, _, _, payload = session.receive_frame()
            if kind == wire.OUTPUT:
                said += payload[4:].decode()
    return said


@attack
def a_certificate_of_the_host_that_expires(field):
    """The daemon says so when it reads it, and no guest trusts it."""
    with secured(field) as folder:
        guest = context(folder, "a")

        def is_reported():
            field.daemon.process.send_signal(signal.SIGHUP)
            return "tcp.certificate has expired" in field.daemon.log()

        issue(folder, "127.0.0.1", "--renew", "--valid", "1s")
        until("reported", is_reported)
        expect(not enters(field, guest), "a guest enters")
        issue(folder, "127.0.0.1", "--renew")
        field.daemon.process.send_signal(signal.SIGHUP)
        until("renewed", lambda: enters(field, guest))
    return 1


@attack
def a_certificate_that_expires_elsewhere(field):
    """A session that moved ends with its certificate as well."""
    with secured(field, "--set=software.devices=2") as folder:
        issue(folder, "--vm", "lease", "--valid", LEASE)
        guest = context(folder, "lease")
        session = field.session(field.tcp, context=guest)
        number = str(session.welcome["session"])
        moved = paragpu(field, "migrate", number, "--to-gpu", "1")
        expect(moved is not None and moved.returncode == 0, moved and moved.stderr)
        until("moved", lambda: [one["device"] for one in field.daemon.sessions()] == ["software:1"])
        until("ended", lambda: not field.daemon.sessions())
        expect(not enters(field, guest, resumes=session), "it goes on")
        expect("has expired" in field.daemon.log(), "the log does not say why")
    return 2


def is_refused_a_stranger(field, session):
    """Whether another user of the host, who has its token, does not get the session."""
    os.chmod(field.daemon.folder.name, 0o711)
    os.chmod(field.daemon.socket, 0o666)
    if (child := os.fork()) == 0:
        status = 2
        try:
            os.setgroups([])
            os.setgid(3000)
            os.setuid(3000)
            wire.Session(field.daemon.socket, deadline=PATIENCE, resumes=session)
            status = 1
        except ConnectionRefusedError as refusal:
            status = 0 if "belongs to another VM" in str(refusal) else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@attack
def tokens_of_certified_sessions_that_moved(field):
    """A session of a certificate needs one, also where it moved or was restored."""
    needs(os.getuid() == 0, "root")
    with secured(field, "--set=software.devices=2") as folder, tempfile.TemporaryDirectory() as states:
        guest = context(folder, "b")
        session = field.session(field.tcp, context=guest)
        expect(is_refused_a_stranger(field, session), "a stranger has the session")
        number = str(session.welcome["session"])
        moved = paragpu(field, "migrate", number, "--to-gpu", "1")
        expect(moved is not None and moved.returncode == 0, moved and moved.stderr)
        expect(is_refused_a_stranger(field, session), "a stranger has the session that moved")
        number = str(field.daemon.sessions()[0]["id"])
        for order in (("checkpoint", number, states, "--end"), ("restore", states)):
            done = paragpu(field, *order)
            expect(done is not None and done.returncode == 0, f"{order}: {done and done.stderr}")
        expect(is_refused_a_stranger(field, session), "a stranger has the restored session")
        back = field.session(field.tcp, context=guest, resumes=session)
        expect(back.call("Ping", value=4)[0] == 4, "its own VM does not have it")
    return 4


class Agent:
    """A connection to the lease socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rw", encoding="utf-8")

    def ask(self, **request):
        """The answer to a request."""
        self.lines.write(json.dumps(request) + "\n")
        self.lines.flush()
        while (answer := json.loads(self.lines.readline())).get("answer") == "progress":
            pass
        return answer

    def claim(self):
        """Claims a lease, as the daemon's user may without an engine."""
        key = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 | openssl pkey -pubout"
        made = subprocess.run(key, shell=True, check=True, capture_output=True, text=True)
        answer = self.ask(command="claim", memory=256 << 20, gpu=0, key=made.stdout)
        expect("name" in answer, f"no lease: {answer}")
        return answer["name"]

    def is_open(self):
        """Whether the daemon has not closed it."""
        self.socket.setblocking(False)
        try:
            return self.socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        finally:
            self.socket.settimeout(PATIENCE)

    def close(self):
        """Hangs up."""
        self.lines.close()
        self.socket.close()


@contextlib.contextmanager
def leasing(field, place, folder, *arguments):
    """A daemon that grants leases: its lease socket."""
    lease = os.path.join(place, "lease.sock")
    files, guest = [one for one in field.arguments if one.startswith("--set=tcp.")], field.context
    field.again(*files, f"--set=lease.authority={folder}", f"--set=lease.socket={lease}", *arguments)
    field.context = guest
    yield lease


@attack
def a_lease_that_restores_another_vm(field):
    """Workers write checkpoints, and a lease's worker may write that one is of another VM."""
    with tempfile.TemporaryDirectory() as place, secured(field) as folder:
        states = os.path.join(place, "states")
        os.mkdir(states)
        with leasing(field, place, folder, f"--set=lease.checkpoints={states}") as lease:
            agent = Agent(lease)
            name = agent.claim()
            own = os.path.join(states, f"{name['vm']}-{name['serial']:016x}", "host", "1")
            os.makedirs(own)
            # The file of a session of VM "b" stands for it.
            victim = field.neighbour()
            number = str(victim.welcome["session"])
            done = paragpu(field, "checkpoint", number, own, "--end")
            expect(done is not None and done.returncode == 0, done and done.stderr)
            until("the session away", lambda: not field.daemon.sessions())
            answer = agent.ask(command="restore", directory=own)
            expect("another VM" in answer.get("error", ""), f"the agent gets {answer}")
            expect(not field.daemon.sessions(), "a session of another VM began")
            agent.close()
    return 1


@attack
def agents_without_leases(field):
    """Connections of the lease socket take a part of the daemon's descriptors, and end if
    they claim nothing."""
    with tempfile.TemporaryDirectory() as place, secured(field) as folder, leasing(field, place, folder) as lease:
        daemon = field.daemon.process.pid
        resource.prlimit(daemon, resource.RLIMIT_NOFILE, (1024, 1024))
        holder, before = Agent(lease), descriptors(daemon)
        holder.claim()
        agents = [Agent(lease) for _ in range(500)]
        until("taken", lambda: not agents[0].is_open() and agents[-1].is_open())
        field.daemon.sessions()
        expect(descriptors(daemon) <= before + 1024 // 4, f"agents have {descriptors(daemon) - before} descriptors")
        # Those that are just being accepted come on top.
        until("few descriptors", lambda: descriptors(daemon) <= before + 1024 // 8 + 8)
        expect(field.neighbour().call("Ping", value=5)[0] == 5, "a guest is not served")
        until("closed", lambda: not any(agent.is_open() for agent in agents), patience=90)
        expect(holder.is_open(), "the connection of a lease is closed")
        for agent in (*agents, holder):
            agent.close()
    return 500


@attack
def records_that_somebody_changes(field):
    with secured(field) as folder:
        guest, cases = context(folder, "b"), 0
        for _ in range(20):
            session = field.session(field.tcp, context=guest)
            raw = socket.socket(fileno=os.dup(session.socket.fileno()))
            size = field.source.choice((1, 17, 100, 16384))
            kind = field.source.choice((0x17, 0x17, 0x15, 0x16, 0x14))
            with contextlib.suppress(OSError):
                raw.sendall(struct.pack(">BHH", kind, 0x0303, size) + field.source.randbytes(size))
            raw.shutdown(socket.SHUT_RDWR)
            raw.close()
            back = field.session(field.tcp, context=guest, resumes=session)
            expect(back.call("Ping", value=4)[0] == 4, "the session is lost")
            field.hang_up()
            cases += 1
    return cases


@attack
def silent_links_of_strangers(field):
    """Connections without a certificate to migration.listen do not block hosts."""
    with secured(field) as folder:
        files = [f"--set=migration.{key}={folder}/{file}" for key, file in
                 (("ca", "ca.pem"), ("certificate", "127.0.0.1.pem"), ("key", "127.0.0.1.key"))]
        # No deadline frees their slots, nor ends the host's handshake on a busy machine.
        with harness.Daemon(*files, "--set=migration.listen=127.0.0.1:0", "--set=limits.hello=600000") as other:
            host, port = other.addresses["migration"].rsplit(":", 1)
            strangers = []
            for number in range(400):
                source = (f"127.0.2.{number % 2 + 1}", 0)
                strangers.append(socket.create_connection((host, int(port)), timeout=PATIENCE, source_address=source))
            with socket.create_connection((host, int(port)), timeout=PATIENCE) as plain:
                peer = context(folder, "127.0.0.1").wrap_socket(plain, server_hostname="127.0.0.1")
                peer.send(frame(wire.HELLO, hello()))
                expect(peer.recv(4096), "a host is not heard")
            threads = len(os.listdir(f"/proc/{other.process.pid}/task"))
            expect(threads < 200, f"{threads} threads for silent links")
            for stranger in strangers:
                stranger.close()
    return len(strangers)


@attack
def guests_that_pose_as_hosts(field):
    """A guest's certificate opens tcp.listen, and neither migration.listen nor a host's place."""
    with secured(field) as folder:
        files = [f"--set=migration.{key}={folder}/{file}" for key, file in
                 (("ca", "ca.pem"), ("certificate", "127.0.0.1.pem"), ("key", "127.0.0.1.key"))]
        with harness.Daemon(*files, "--set=migration.listen=127.0.0.1:0") as other:
            host, port = other.addresses["migration"].rsplit(":", 1)
            for name, good in (("a", False), ("127.0.0.1", True)):
                with socket.create_connection((host, int(port)), timeout=PATIENCE) as plain:
                    peer = context(folder, name).wrap_socket(plain, server_hostname="127.0.0.1")
                    peer.send(frame(wire.HELLO, hello()))
                    answer = b""
                    with contextlib.suppress(OSError):
                        answer = peer.recv(4096)
                expect(bool(answer) == good, f"{name}: {answer}")
        # And no guest takes a guest for a host.
        issue(folder, "--vm", "posing")
        listener = socket.create_server(("127.0.0.1", 0))
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(f"{folder}/posing.pem", f"{folder}/posing.key")
        plain = socket.create_connection(listener.getsockname(), timeout=PATIENCE)
        incoming, _ = listener.accept()
        incoming.settimeout(PATIENCE)
        with plain, incoming, listener:

            def serve():
                with contextlib.suppress(OSError):
                    server.wrap_socket(incoming, server_side=True)

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                context(folder, "a").wrap_socket(plain, server_hostname="127.0.0.1")
                expect(False, "a guest is taken for a host")
            except ssl.SSLError:
                pass
            plain.close()
            thread.join()
    return 3
