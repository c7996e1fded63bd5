"""Many sessions of many VMs, each VM at all its limits."""

import collections
import contextlib
import http.client
import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import wire
from field import ARENA, CHUNK, PATIENCE, SHADOWS, attack, expect, gated_worker, ptx, touch, until

VMS, EACH = 20, 10
# Device memory and host memory of a VM: what its sessions take, to the byte of
# the smallest piece that they take it in.
MEMORY, SHADOW = EACH * CHUNK, 1 << 20
LIMITS = (
    f"--set=limits.sessions={VMS * EACH}",
    f"--set=limits.per_vm={EACH}",
    f"--set=limits.per_vm_memory={MEMORY}",
    f"--set=limits.per_vm_host_memory={64 << 20}",
)
ADD = ptx("ld.param.u64 %rd1, [p0]; ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1;", ".param .u64 p0")
ROUNDS = 3


def fails(act, error):
    """Is something past a limit refused?"""
    try:
        act()
    except error:
        return True
    return False


class Tenant:
    """A VM, known by its address, with all its sessions."""

    def __init__(self, field, number):
        self.field, self.source = field, f"127.0.8.{number + 1}"
        self.marks = [number * EACH + one + 1 for one in range(EACH)]
        self.sessions = [field.session(field.tcp, source=self.source) for _ in range(EACH)]

    def fill(self):
        """Takes all that the VM may have; each session writes its mark."""
        for session, mark in zip(self.sessions, self.marks, strict=True):
            session.call("MemMap", address=ARENA, size=CHUNK)
            session.call("ShadowCreate", address=SHADOWS, size=SHADOW)
            session.post("CopyToDevice", destination=ARENA, stream=0, data=struct.pack("<II", 0, mark))
            self.field.kernel(session, ADD)

    def press(self):
        """Asks for more than the limits allow: how often that was refused."""
        first = self.sessions[0]
        refused = fails(lambda: self.field.session(self.field.tcp, source=self.source), ConnectionRefusedError)
        expect(refused, f"{self.source} has an eleventh session")
        for session in self.sessions:
            more = fails(lambda session=session: session.call("MemMap", address=ARENA + CHUNK, size=CHUNK), wire.Failed)
            expect(more, f"{self.source} has device memory past its limit")
        created = EACH * SHADOW
        for number in range(1, 128):
            address = SHADOWS + number * SHADOW
            if fails(lambda address=address: first.call("ShadowCreate", address=address, size=SHADOW), wire.Failed):
                break
            created += SHADOW
        expect(created <= 64 << 20, f"{self.source} has {created >> 20} MiB of shadows")
        return 2 + EACH

    def work(self):
        """A launch in each session, and whether every one counts its own."""
        for session in self.sessions:
            self.field.launch(session, 101, struct.pack("<Q", ARENA))

    def verify(self, rounds):
        """Nothing is lost, done twice or another's."""
        for session, mark in zip(self.sessions, self.marks, strict=True):
            found = struct.unpack("<II", session.call("CopyFromDevice", source=ARENA, size=8, stream=0)[1])
            expect(found == (rounds, mark), f"session {mark} of {self.source} has {found} instead of {(rounds, mark)}")

    def come_back(self):
        """Every connection is lost, and every session continues over another."""
        for at, session in enumerate(self.sessions):
            session.socket.close()
            self.sessions[at] = self.field.session(self.field.tcp, source=self.source, resumes=session)


@attack
def sessions_of_many_vms_at_their_limits(field):
    field.again(*LIMITS)
    cases = 0
    with ThreadPoolExecutor(4) as pool:
        tenants = list(pool.map(lambda number: Tenant(field, number), range(VMS)))
        expect(len(field.daemon.sessions()) == VMS * EACH, "a session is missing")
        stranger = fails(lambda: field.session(field.tcp, source="127.0.9.1"), ConnectionRefusedError)
        expect(stranger, "the host has more sessions than its limit")
        list(pool.map(Tenant.fill, tenants))
        cases += sum(pool.map(Tenant.press, tenants))
        for done in range(1, ROUNDS + 1):
            list(pool.map(Tenant.work, tenants))
            list(pool.map(lambda tenant, done=done: tenant.verify(done), tenants))
        list(pool.map(Tenant.come_back, tenants))
        list(pool.map(Tenant.work, tenants))
        list(pool.map(lambda tenant: tenant.verify(ROUNDS + 1), tenants))
        cases += (ROUNDS + 2) * VMS * EACH
    listed = field.daemon.sessions()
    expect(len(listed) == VMS * EACH, f"{len(listed)} sessions are left of {VMS * EACH}")
    field.hang_up()
    expect(not field.daemon.left(60), "sessions stay")
    return cases


@attack
def guests_that_start_at_once(field):
    """A VM with many guests that wait for workers delays no other VM's by more than its turn."""
    count = 40
    with gated_worker(field) as (program, gate):
        field.again("--set=pool.warm=0", f"--set=daemon.worker={program}")
        field.session().call("Ping", value=1)
        field.hang_up()
        until("ended", lambda: not field.daemon.sessions())
        touch(gate)
        begun = []

        def start(*address):
            session = field.session(*address)
            session.call("Ping", value=1)
            begun.append(session.welcome["session"])

        crowd = [threading.Thread(target=start) for _ in range(count)]
        for thread in crowd:
            thread.start()
        until("waiting", lambda: waiting(field) == count)
        honest = threading.Thread(target=start, args=(field.tcp,))
        honest.start()
        until("waiting", lambda: waiting(field) == count + 1)
        os.remove(gate)
        for thread in [*crowd, honest]:
            thread.join(PATIENCE)
        expect(len(begun) == count + 1, f"{len(begun)} sessions began")
        own = next(one["id"] for one in field.daemon.sessions() if one["communicator"] == "tcp")
        place = sorted(begun).index(own)
        # Its turn is the second.
        expect(place <= 1, f"the other VM's session is number {place + 1} of {count + 1}")
    return count


def waiting(field):
    """How many guests wait for a worker."""
    return field.daemon.status()["waiting"]


def metrics(host, port):
    """What a collector gets."""
    collector = http.client.HTTPConnection(host, port, timeout=PATIENCE)
    try:
        collector.request("GET", "/metrics")
        return collector.getresponse().read()
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        collector.close()


@attack
def collectors_among_strangers(field):
    """Any user of the host may connect to the metrics, silently or asking; a collector gets them."""
    field.again("--set=metrics.listen=127.0.0.1:0")
    host, port = field.daemon.addresses["metrics"].rsplit(":", 1)
    over, count = threading.Event(), 0

    def flood():
        nonlocal count
        held = collections.deque(maxlen=64)
        while not over.wait(0.001):
            peer = socket.socket()
            peer.setblocking(False)
            peer.connect_ex((host, int(port)))
            if count % 2:
                with contextlib.suppress(OSError):
                    peer.send(b"GET /metrics HTTP/1.1\r\n\r\n")
            held.append(peer)
            count += 1

    stranger = threading.Thread(target=flood)
    stranger.start()
    try:
        until("a flood", lambda: count > 100)
        for _ in range(10):
            expect(b"paragpu_sessions" in metrics(host, int(port)), "a collector gets no metrics")
    finally:
        over.set()
        stranger.join()
    return count
