"""Shared parts of the end-to-end tests and the demo: daemons, programs, VMs."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))


def build():
    """Builds everything under test, so that nothing is stale: `make tested`, or `make
    build programs` where PARAGPU_TEST_PROFILE is "release". Folders that the
    environment names are taken as they are, by the processes of this one as well.
    `--help` and the like build nothing."""
    if "PARAGPU_TEST_BINARIES" in os.environ:
        return
    release = os.environ.get("PARAGPU_TEST_PROFILE") == "release"
    goals = ["build", "programs"] if release else ["tested"]
    if not {"-h", "--help"} & set(sys.argv[1:]):
        made = subprocess.run(["make", "-s", "-C", ROOT, *goals], stdout=sys.stderr, check=False)
        if made.returncode:
            raise SystemExit(f"`make {' '.join(goals)}` failed: there is nothing to test")
    os.environ["PARAGPU_TEST_BINARIES"] = os.path.join(ROOT, "target", "release" if release else "debug")
    os.environ.setdefault("PARAGPU_TEST_LIBRARIES", os.path.join(ROOT, "out/lib" if release else "out/debug/lib"))


build()
BINARIES = os.environ["PARAGPU_TEST_BINARIES"]
LIBRARIES = os.environ.get("PARAGPU_TEST_LIBRARIES", os.path.join(ROOT, "out/lib"))
PROGRAMS = os.environ.get("PARAGPU_TEST_PROGRAMS", os.path.join(ROOT, "out/programs"))

# Seconds that anything may take on a machine that does much else. Only a failing test waits so long.
PATIENCE = 60

# Communicators that connect a program on this host to a daemon on it.
HOST_COMMUNICATORS = ("shm", "unix", "tcp")


def binary(name):
    """Path of one of our own programs, or a sentence that says how to get it."""
    path = os.path.join(BINARIES, name)
    if not os.path.exists(path):
        raise SystemExit(f"{path} is not there: run `make build` first")
    return path


def program_names():
    """The CUDA test programs that are built."""
    if not os.path.isdir(PROGRAMS):
        raise SystemExit(f"{PROGRAMS} is not there: run `make programs` first")
    entries = (entry for entry in os.scandir(PROGRAMS) if entry.is_file() and os.access(entry.path, os.X_OK))
    return sorted(entry.name for entry in entries)


def owned(command):
    """A command that is ended should this process die without ending it."""
    return ["setpriv", "--pdeathsig", "TERM", *command]


def eventually(condition, what, patience=PATIENCE, failure=AssertionError):
    """Polls for something that another process brings about: returns the condition's value once it
    is true, and raises `failure` after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise failure(f"{what}: not within {patience} s")
        time.sleep(0.02)
    return found


# Sockets that keep ports from others for the life of this process.
KEPT = []


def free_port():
    """A TCP port for a server of this process's, whenever it starts: a socket that does not listen
    stays bound to it, beside which servers can bind theirs, as all set SO_REUSEADDR."""
    KEPT.append(socket.socket())
    KEPT[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    KEPT[-1].bind(("127.0.0.1", 0))
    return KEPT[-1].getsockname()[1]


class Daemon:
    """A separate daemon in a separate folder, for PARAGPU_TEST_DEVICE: software (default) or cuda."""

    def __init__(self, *arguments, device=None, log=None, tcp="127.0.0.1:0"):
        device = device or os.environ.get("PARAGPU_TEST_DEVICE", "software")
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-")
        self.socket = os.path.join(self.folder.name, "paragpud.sock")
        self.control = os.path.join(self.folder.name, "control.sock")
        self.log_path = log or os.path.join(self.folder.name, "paragpud.log")
        # The daemon runs programs of directories in PATH, and a test's worker may be a script.
        python = os.path.dirname(os.path.realpath(sys.executable))
        self.environment = dict(
            os.environ,
            PATH=os.pathsep.join([python, os.environ["PATH"]]),
            PARAGPU_HOST_DAEMON_STATE=os.path.join(self.folder.name, "state"),
            PARAGPU_HOST_CACHE_DIRECTORY=os.path.join(self.folder.name, "cache"),
        )
        self.process = None
        self.command = [
            binary("paragpud"),
            f"--device={device}",
            f"--socket={self.socket}",
            f"--control={self.control}",
            f"--tcp={tcp}",
            "--print-addresses",
            *arguments,
        ]
        self.start()

    def start(self):
        """Starts the daemon (again); returns when guests can connect."""
        if self.process:
            self.process.stdout.close()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                owned(self.command), stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment
            )
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(PATIENCE)
            raise RuntimeError(f"paragpud did not start:\n{self.log()}")
        self.addresses = json.loads(line)

    def log(self):
        """The log of the daemon and its workers so far."""
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def sessions(self):
        """The daemon's sessions, from `paragpu list`."""
        command = [binary("paragpu"), "list", "--control", self.control, "-o", "json"]
        return json.loads(subprocess.check_output(command, timeout=PATIENCE))

    def left(self, patience=PATIENCE):
        """Sessions that do not end although their programs did. A worker may wait
        some seconds for a program that it did not hear say goodbye."""
        deadline = time.monotonic() + patience
        while (sessions := self.sessions()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return sessions

    def migrate(self, session, to, *options, timeout=120):
        """Moves a session; returns the output of `paragpu migrate`."""
        order = ["migrate", str(session), "--to", to, *options]
        command = [binary("paragpu"), "--control", self.control, *order, "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        if done.returncode != 0:
            raise RuntimeError(f"session {session} does not move to {to}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def status(self):
        """The daemon's totals, from `paragpu status`."""
        command = [binary("paragpu"), "status", "--control", self.control, "-o", "json"]
        return json.loads(subprocess.check_output(command, timeout=PATIENCE))

    def devices(self):
        """Names of the GPUs that the daemon serves."""
        return [device["name"] for device in self.status()["devices"]]

    def stop(self):
        """Ends the daemon in order."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process.stdout.close()
            self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def guest_environment(self, communicator, stats=None):
        """Environment in which a program uses this daemon."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PARAGPU_")
        }
        environment["LD_LIBRARY_PATH"] = LIBRARIES
        environment["LD_PRELOAD"] = os.path.join(LIBRARIES, "libparagpu-redirect.so")
        # Also where NVIDIA's driver is loaded.
        environment["PARAGPU_REDIRECT"] = "1"
        environment["PARAGPU_COMMUNICATOR"] = communicator
        environment["PARAGPU_SHM_SOCKET"] = self.socket
        environment["PARAGPU_UNIX_SOCKET"] = self.socket
        environment["PARAGPU_TCP_ADDRESS"] = self.addresses["tcp"]
        if stats:
            environment["PARAGPU_STATS_FILE"] = stats
        return environment

    def run(self, program, communicator, arguments=(), timeout=120, libraries=None):
        """Runs a test program, with another folder of libraries behind ours if one is
        named; returns its exit, time and counters."""
        with tempfile.TemporaryDirectory(prefix="paragpu-run-") as folder:
            stats = os.path.join(folder, "stats.jsonl")
            path = program if os.path.sep in program else os.path.join(PROGRAMS, program)
            environment = self.guest_environment(communicator, stats)
            if libraries:
                environment["LD_LIBRARY_PATH"] += f":{libraries}"
            start = time.monotonic()
            try:
                done = subprocess.run(
                    [path, *arguments],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    timeout=timeout,
                )
                code, output, errors = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired as late:
                code, output, errors = None, text(late.stdout), text(late.stderr) + f"\nno end after {timeout} s"
            return Run(program, code, output, errors, time.monotonic() - start, read_stats(stats))


def certificates(folder):
    """An authority in `folder`, with a certificate for this host: its directory."""
    command = [binary("paragpu"), "certificate", folder, "127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    return folder


def as_host(directory, listen=True):
    """Arguments of a daemon that trades sessions with other hosts, under the
    certificates of a directory."""
    arguments = [
        f"--set=migration.ca={directory}/ca.pem",
        f"--set=migration.certificate={directory}/127.0.0.1.pem",
        f"--set=migration.key={directory}/127.0.0.1.key",
    ]
    return [*arguments, "--set=migration.listen=127.0.0.1:0"] if listen else arguments


def text(output):
    """The output of a program that has ended."""
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


COUNTERS = ("calls", "posted", "synchronous", "bytes_to_device", "bytes_from_device")


def read_stats(path):
    """Sums of the counters that the processes of a program left."""
    total = dict.fromkeys(COUNTERS, 0)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                counters = json.loads(line)
                for name in COUNTERS:
                    total[name] += counters[name]
    return total


class Run:
    """How one run of a program went."""

    def __init__(self, program, code, output, errors, seconds, counters):
        self.program, self.code, self.output, self.errors = program, code, output, errors
        self.seconds, self.counters = seconds, counters

    @property
    def ok(self):
        """The program found its results right."""
        return self.code == 0

    def record(self, communicator, where):
        """The run as an entry of demo.json."""
        return {
            "program": self.program,
            "communicator": communicator,
            "where": where,
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            **self.counters,
        }
