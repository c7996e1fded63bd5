"""What a compromised worker can still do, and what a confined one must be able to do."""

import contextlib
import errno
import os
import shutil
import struct
import tempfile

import harness
import injected
import wire
from field import ARENA, CHUNK, SHADOWS, Field, arrival, attack, expect, frame, hello, needs, ptx, until
from files import paragpu
from users import USERS


def status(field, session):
    """The state of a session's worker, from /proc."""
    with open(f"/proc/{field.worker(session)}/status", encoding="ascii") as lines:
        return dict(line.strip().split(":", 1) for line in lines if ":" in line)


@attack
def a_worker_gains_nothing_by_programs(field):
    lines = status(field, field.session())
    expect(lines["NoNewPrivs"].strip() == "1", "a worker may gain privileges")
    for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"):
        expect(int(lines[kind], 16) == 0 or os.getuid() != 0, f"{kind} of a worker is {lines[kind].strip()}")
    return 6


@attack
def every_thread_of_a_worker_is_filtered(field):
    session = field.session()
    worker = field.worker(session)
    threads = os.listdir(f"/proc/{worker}/task")
    for thread in threads:
        with open(f"/proc/{worker}/task/{thread}/status", encoding="ascii") as lines:
            lines = dict(line.strip().split(":", 1) for line in lines if ":" in line)
        for key, value in (("Seccomp", "2"), ("NoNewPrivs", "1"), ("CapEff", "0000000000000000")):
            expect(lines[key].strip() == value, f"{key} of thread {thread} is {lines[key].strip()}")
    return len(threads)


@attack
def files_that_a_thread_of_a_worker_opens(field):
    """Each thread of a session's worker that is taken over, with a user of its VM and without."""
    needs(injected.possible(), "root and an x86-64 processor")
    cases = 0
    for users in ("--set=confine.users=", USERS):
        field.again(users)
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            os.chmod(folder, 0o755)
            secret = os.path.join(folder, "secret")
            with open(secret, "w", encoding="ascii") as file:
                file.write("of another tenant")
            os.chmod(secret, 0o644)
            session = field.session()
            session.call("MemMap", address=ARENA, size=CHUNK)
            session.post("Memset", destination=ARENA, pitch=0, value=1, element=1, width=64, height=1, stream=0)
            session.call("CopyFromDevice", source=ARENA, size=8, stream=0)
            worker = field.worker(session)
            for thread in sorted(os.listdir(f"/proc/{worker}/task"), key=int):
                with open(f"/proc/{worker}/task/{thread}/comm", encoding="ascii") as name:
                    name = name.read().strip()
                error = injected.opens(int(thread), secret)
                expect(error in (errno.EACCES, errno.ENOENT), f"the thread {name} opens a file (error {error})")
                cases += 1
            expect(session.call("Ping", value=1)[0] == 1, "the session is lost")
    return cases


# A compromised worker: it sends its daemon sockets whose last close takes
# ten minutes, with a message that is none and behind messages that are not read.
TAKEN_OVER = """#!/usr/bin/env python3
import os, signal, socket, struct, time
control = socket.socket(fileno=os.dup(0))
daemon, kept = os.getppid(), []
with socket.create_server(("127.0.0.1", 0)) as listener:
    def lingering(count):
        pairs = []
        for _ in range(count):
            near = socket.create_connection(listener.getsockname())
            pairs.append((near, listener.accept()[0]))
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
            near.setblocking(False)
            try:
                while True:
                    near.send(bytes(1 << 16))
            except BlockingIOError:
                pass
        return pairs
    # So that the daemon is the last to close them.
    os.kill(daemon, signal.SIGSTOP)
    for count in (1, 9, 40, 1):
        pairs = lingering(count)
        socket.send_fds(control, [b"rubbish"], [near.fileno() for near, _ in pairs])
        for near, far in pairs:
            near.close()
            kept.append(far)
    os.kill(daemon, signal.SIGCONT)
time.sleep(3600)
"""


@contextlib.contextmanager
def compromised(field, text, *arguments):
    """The field's daemon starts this program instead of workers; the real one is beside it."""
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "worker")
        with open(program, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(program, 0o755)
        shutil.copy(harness.binary("paragpu-worker"), folder)
        field.again(f"--set=daemon.worker={program}", "--set=confine.users=", *arguments)
        yield


@attack
def descriptors_of_a_worker_that_is_taken_over(field):
    """The daemon closes none of them where others would wait."""
    with compromised(field, TAKEN_OVER):
        try:
            until("heard", lambda: "invalid message" in field.daemon.log())
            for _ in range(5):
                expect(field.daemon.sessions() == [], "a session is left")
        except BaseException:
            # It would not end in time either.
            field.daemon.process.kill()
            raise
        field.again()
    return 51


# A compromised worker: it sends valid messages without a pause, from several processes.
TALKATIVE = """#!/usr/bin/env python3
import json, os, socket, struct
control = socket.socket(fileno=os.dup(0))
body = json.dumps({"Turn": "Wanted"}).encode()
message = b"pg" + struct.pack("<HI", 1, len(body)) + body
os.fork()
control.setblocking(False)
while True:
    try:
        control.send(message)
    except BlockingIOError:
        pass
"""


@attack
def messages_of_a_worker_without_end(field):
    """A worker that sends faster than the daemon reads takes no time from others."""
    with compromised(field, TALKATIVE):
        try:
            for _ in range(10):
                expect(field.daemon.status()["sessions"] == 0, "a session is there")
            expect("invalid message" not in field.daemon.log(), "the messages are not understood")
        finally:
            # Its processes end with their socket.
            field.daemon.process.kill()
        field.again()
    return 10


# A compromised worker: the real one, before which it writes a frame of its own to the link
# to a destination.
IMPOSTOR = """#!/usr/bin/env python3
import os, socket, subprocess, sys, threading
control = socket.socket(fileno=os.dup(0))
near, far = socket.socketpair(control.family, control.type)
real = os.path.join(os.path.dirname(os.path.abspath(__file__)), "paragpu-worker")
child = subprocess.Popen([real, *sys.argv[1:]], stdin=far.fileno())
far.close()
def carry(source, to):
    try:
        while True:
            message, fds, _, _ = socket.recv_fds(source, 1 << 20, 64)
            if not message:
                break
            if b'"Migrate"' in message[:40]:
                os.write(fds[0], bytes.fromhex("FRAME"))
            socket.send_fds(to, [message], fds)
            for fd in fds:
                os.close(fd)
    except OSError:
        pass
    try:
        to.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
for ends in ((near, control), (control, near)):
    threading.Thread(target=carry, args=ends, daemon=True).start()
sys.exit(child.wait() & 127)
"""
# The process ID of a guest that is none: no process has it.
STRANGER = 4_294_000_111


@attack
def a_worker_that_moves_as_another(field):
    """What it writes to the link announces neither a session of another VM nor a new one."""
    other, cases = Field(), 0
    try:
        for first in (arrival("victim", pid=STRANGER), frame(wire.HELLO, hello(pid=STRANGER))):
            with compromised(field, IMPOSTOR.replace("FRAME", first.hex()), "--set=software.devices=2"):
                session = field.session()
                for to in (("--to-gpu", "1"), ("--to", f"unix://{other.daemon.socket}")):
                    done = paragpu(field, "migrate", str(session.welcome["session"]), *to)
                    expect(done is not None and done.returncode != 0, f"the session moves: {done}")
                    for daemon in (field.daemon, other.daemon):
                        log = daemon.log()
                        expect("victim" not in log and str(STRANGER) not in log, f"another session begins: {log[-2000:]}")
                    expect(session.call("Ping", value=1)[0] == 1, "the session is lost")
                    cases += 1
                field.again()
    finally:
        other.close()
    return cases


@attack
def an_arrival_with_the_token_of_a_session(field):
    """Whoever announces a session that is here, of whichever VM, is refused."""
    session = field.session()
    before = [one["vm"] for one in field.daemon.sessions()]
    with field.connect() as link:
        link.sendall(arrival("victim", session.welcome["token"], STRANGER))
        until("refused", lambda: "continues it already" in field.daemon.log())
        expect([one["vm"] for one in field.daemon.sessions()] == before, "another session begins")
    expect(session.call("Ping", value=1)[0] == 1, "the session is lost")
    return 1


@attack
def a_confined_session_moves_and_is_restored(field):
    """Whatever the filter refuses must not be what a session needs."""
    other = Field()
    try:
        session = field.session()
        session.call("MemMap", address=ARENA, size=CHUNK)
        session.post("Memset", destination=ARENA, pitch=0, value=0x41, element=1, width=4096, height=1, stream=0)
        session.call("ShadowCreate", address=SHADOWS, size=1 << 20)
        kernel = field.kernel(session, ptx("ld.param.u64 %rd1, [p0]; mov.u32 %r1, 7; st.global.u32 [%rd1], %r1;", ".param .u64 p0"))
        field.launch(session, kernel, struct.pack("<Q", ARENA))
        session.call("ContextSynchronize")
        field.daemon.migrate(session.welcome["session"], f"unix://{other.daemon.socket}")
        expect(session.call("CopyFromDevice", source=ARENA, size=8, stream=0)[1] == b"\7\0\0\0AAAA", "its memory differs")
        with tempfile.TemporaryDirectory() as folder:
            number = str(other.daemon.sessions()[0]["id"])
            for order in (("checkpoint", "--end", number, folder), ("restore", folder)):
                done = paragpu(other, *order)
                expect(done is not None and done.returncode == 0, f"{order}: {done and done.stderr}")
            back = other.session(resumes=session)
            expect(back.call("CopyFromDevice", source=ARENA, size=8, stream=0)[1] == b"\7\0\0\0AAAA", "its memory differs")
            other.launch(back, kernel, struct.pack("<Q", ARENA + 4))
            expect(back.call("CopyFromDevice", source=ARENA, size=8, stream=0)[1] == b"\7\0\0\0" * 2, "its kernel is another")
        expect("is refused" not in field.daemon.log() + other.daemon.log(), "a session needs a system call that is refused")
    finally:
        other.close()
    return 3
