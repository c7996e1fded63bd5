"""Files whose server, a tenant's, does not answer."""

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import socket
import stat
import struct
import subprocess
import tempfile

import wire
from field import PATIENCE, SHADOWS, attack, expect, needs, until
from files import paragpu

# Requests of linux/fuse.h.
LOOKUP, FORGET, GETATTR, OPEN, STATFS, RELEASE, FLUSH, INIT, OPENDIR = 1, 2, 3, 14, 17, 18, 25, 26, 27
INTERRUPT, BATCH_FORGET = 36, 42
FOLDER, FILE = 1, 2


def attributes(node):
    """A fuse_attr that is valid for no time."""
    mode = stat.S_IFDIR | 0o777 if node == FOLDER else stat.S_IFREG | 0o666
    return struct.pack("<6Q10I", node, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


class Server:
    """A FUSE server with one file, in a process of its own: one that starts programs closes the
    file in them, and waits for its own answer. It does not answer requests of the kinds in
    `silent` that a worker makes."""

    # Where what both processes know lies in their shared memory.
    ASKED, SILENT, WORKER = 0, 64, 128

    def __init__(self):
        self.device = os.open("/dev/fuse", os.O_RDWR)
        self.shared = mmap.mmap(-1, mmap.PAGESIZE)
        self.process = 0

    def start(self):
        """From the mount until the file system is unmounted."""
        tester = os.getpid()
        self.process = os.fork()
        if self.process == 0:
            try:
                # If the test is killed, every request ends.
                ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
                os.closerange(3, self.device)
                os.closerange(self.device + 1, 4096)
                if os.getppid() == tester:
                    self.serve()
            finally:
                os._exit(0)  # pylint: disable=protected-access

    def stop(self):
        """Ends the server, and with it every request."""
        os.close(self.device)
        if self.process:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)

    def silence(self, *kinds):
        """These are not answered from now on."""
        for kind in kinds:
            self.shared[self.SILENT + kind] = 1

    def asked(self, kind):
        """Whether a worker asked."""
        return self.shared[self.ASKED + kind] != 0

    def watch(self, worker):
        """Tells the process of the worker."""
        struct.pack_into("<I", self.shared, self.WORKER, worker)

    def serve(self):
        """Answers until the file system is unmounted."""
        with contextlib.suppress(OSError):
            while request := os.read(self.device, 1 << 18):
                _, kind, unique, node, _, _, thread = struct.unpack_from("<IIQQIII", request)
                (worker,) = struct.unpack_from("<I", self.shared, self.WORKER)
                # Not of a program that the test starts, which closes its file, too.
                if os.path.exists(f"/proc/{worker}/task/{thread}"):
                    self.shared[self.ASKED + kind] = 1
                    if self.shared[self.SILENT + kind]:
                        continue
                if kind in (FORGET, INTERRUPT, BATCH_FORGET):
                    continue
                answers = {
                    INIT: struct.pack("<4I2H2I2H8I", 7, 31, 65536, 0, 12, 12, 65536, 1, 1, *[0] * 9),
                    LOOKUP: struct.pack("<4Q2I", FILE, 0, 0, 0, 0, 0) + attributes(FILE),
                    GETATTR: struct.pack("<Q2I", 0, 0, 0) + attributes(node),
                    OPEN: struct.pack("<Q2I", 1, 0, 0),
                    OPENDIR: struct.pack("<Q2I", 1, 0, 0),
                    STATFS: struct.pack("<5Q10I", 1, 1, 1, 1, 1, 4096, 255, 4096, *[0] * 7),
                    RELEASE: b"",
                    FLUSH: b"",
                }
                answer = answers.get(kind, b"")
                error = 0 if kind in answers else -errno.ENOSYS
                os.write(self.device, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)


@contextlib.contextmanager
def served():
    """A server, and an open file of it."""
    needs(os.getuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK), "root and /dev/fuse")
    library = ctypes.CDLL(None, use_errno=True)
    with tempfile.TemporaryDirectory(prefix="paragpu-fuse-") as folder:
        server = Server()
        options = f"fd={server.device},rootmode=40000,user_id=0,group_id=0,allow_other"
        try:
            mounted = library.mount(b"paragpu-test", folder.encode(), b"fuse", 0, options.encode())
            needs(mounted == 0, f"a FUSE mount ({os.strerror(ctypes.get_errno())})")
            server.start()
            file = os.open(os.path.join(folder, "file"), os.O_RDWR)
            try:
                yield server, file
            finally:
                # Every request ends, also those of a worker.
                library.umount2(folder.encode(), 2 | 1)
                with contextlib.suppress(OSError):
                    os.close(file)
        finally:
            library.umount2(folder.encode(), 2)
            server.stop()


# A guest's request to map the file that it passed.
MAP = dict(address=SHADOWS, size=4096, offset=0, file=1)


def passes(field, server, file):
    """A session that passes a file of a server."""
    session = wire.Shared(field.daemon.socket, deadline=PATIENCE)
    field.open.append(session)
    server.watch(field.worker(session))
    socket.send_fds(session.socket, [struct.pack("<Q", MAP["file"])], [file])
    return session


@attack
def a_file_whose_server_is_not_asked(field):
    """A worker finds out without the server that it does not map the file."""
    with served() as (server, file):
        server.silence(GETATTR, STATFS)
        session = passes(field, server, file)
        try:
            session.call("FileMap", **MAP)
            expect(False, "it is mapped")
        except wire.WireError:
            pass
        # The close of a refused file asks, and is answered.
        until("closed", lambda: server.asked(FLUSH))
        asked = [kind for kind in (GETATTR, STATFS) if server.asked(kind)]
        expect(not asked, f"a worker asked for {asked}")
        expect(session.call("Ping", value=7) == 7, "the session ended")
    return 1


@attack
def a_file_whose_close_does_not_return(field):
    """No signal ends that worker. The daemon says so, serves others, and ends."""
    with served() as (server, file):
        server.silence(FLUSH)
        session = passes(field, server, file)
        session.sequence += 1
        session.send_frame(wire.NUMBERS["FileMap"], 1, session.sequence, wire.encode_call("FileMap", **MAP))
        until("closed", lambda: server.asked(FLUSH))
        paragpu(field, "end", str(session.welcome["session"]))
        until("reported", lambda: "a killed worker does not end" in field.daemon.log())
        listed = field.daemon.sessions()
        expect([one["ending"] for one in listed] == [True], f"the session is listed as {listed}")
        expect(field.neighbour().call("Ping", value=7)[0] == 7, "the neighbour has no session")
        field.hang_up()
        field.daemon.process.terminate()
        try:
            field.daemon.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            expect(False, "the daemon waits for a worker that nothing ends")
        said = field.daemon.log().count("a killed worker does not end")
        expect(said == 1, f"it is reported {said} times")
    field.again()
    return 1
