"""Operators who do everything at once.

Programs of several kinds run on three daemons of this host, which take sessions from each
other as daemons of one host and as other hosts do. Meanwhile operators at random move,
checkpoint, restore, share and end sessions, change limits, cut connections, and kill workers
and daemons. All results must be right, no order may hang, each refusal must be a sentence, and
at the end nothing may be left: no session, process, descriptor, file, or memory in an account.

PARAGPU_TEST_ACTIONS is how many actions each operator takes (`make soak-operators`: 1,000);
without it the test is skipped. PARAGPU_TEST_SEED chooses them. What they meet also depends on
the machine.
"""

import collections
import contextlib
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest
from unittest import mock

import harness

from .guests import ask, end_with, eventually, finish, read_until, start, workers
from .operated import KINDS, Program
from .test_moves import Proxy

SEED = os.environ.get("PARAGPU_TEST_SEED", "1")
ACTIONS = int(os.environ.get("PARAGPU_TEST_ACTIONS", "0"))
OPERATORS = 3
# Directories for checkpoints: fewer than sessions, so that operators get in each other's way.
DIRECTORIES = 4
# No order takes longer, in seconds: several sessions stop for at most 80 s, and a program
# changes its communicator within 60 s.
LIMIT = 200
# A refusal for programmers.
RAW = re.compile(r"panicked|RUST_BACKTRACE|Os \{|Some\(|None\b|Error\(|[{}]")
# Each line that `paragpud` may log as an error here.
EXPECTED = re.compile(r"killed by signal 9|the configuration is refused")
# Configurations that SIGHUP applies; the last one is refused.
CONFIGURATIONS = (
    "",
    "[limits]\nper_vm = 3\n",
    "[limits]\nsessions = 5\nreconnect = 20000\n",
    '[limits]\nper_vm_memory = "4GiB"\n',
    "[pool]\nwarm = 0\n",
    "[pool]\nwarm = 3\n",
    '[vm."uid 0"]\nweight = 7\ncap = 60\n',
    '[limits]\nper_vm = "many"\n',
)


class Host(harness.Daemon):
    """A daemon whose TCP connections can be cut."""

    def __init__(self, folder, directory, name):
        self.name, self.file = name, os.path.join(folder, f"{name}.toml")
        # `lock` is held while the daemon is killed or gets a signal; `kills` counts its deaths.
        self.lock, self.up, self.kills = threading.Lock(), threading.Event(), 0
        tcp, far = harness.free_port(), harness.free_port()
        self.far, self.proxy = f"tcp://127.0.0.1:{far}", Proxy(("127.0.0.1", tcp))
        self.configure("")
        settings = {
            "migration.listen": f"127.0.0.1:{far}",
            "tcp.announce": self.proxy.address,
            "software.devices": 2,
            "software.threads": 1,
            "software.shareable": str(name != "two").lower(),
        }
        arguments = [*harness.as_host(directory, listen=False), *(f"--set={key}={value}" for key, value in settings.items())]
        super().__init__("--config", self.file, *arguments, tcp=f"127.0.0.1:{tcp}")
        self.up.set()

    def configure(self, text):
        """Writes its configuration."""
        with open(self.file, "w", encoding="utf-8") as file:
            file.write(text)

    def guest_environment(self, communicator, stats=None):
        return super().guest_environment(communicator, stats) | {"PARAGPU_TCP_ADDRESS": self.proxy.address}

    def stop(self):
        super().stop()
        self.proxy.close()

    def holdings(self):
        """What it holds: workers, descriptors by kind, requests, and files except images and
        records of programs that may come back for ten minutes."""
        descriptors = collections.Counter()
        for number in os.listdir(f"/proc/{self.process.pid}/fd"):
            with contextlib.suppress(OSError):
                descriptors[re.sub(r"\d+", "N", os.readlink(f"/proc/{self.process.pid}/fd/{number}"))] += 1
        walk = os.walk(self.folder.name)
        files = {name for folder, _, names in walk for name in names if "/cache" not in folder and not name.endswith(".parked")}
        status = self.status()
        waiting = {name: status[name] for name in ("sessions", "waiting")}
        return {"workers": len(workers(self)), "descriptors": dict(descriptors), "files": files} | waiting

    def at_rest(self):
        """The same once it is unchanged for as long as an ended connection may take to be noticed."""
        seen = []

        def is_same():
            seen.append(self.holdings())
            return len(seen) > 25 and all(held == seen[-1] for held in seen[-25:])

        eventually(is_same, f"{self.name} is at rest", 60)
        return seen[-1]

    def charged(self, test):
        """Device memory in the account of this user, of a program that holds a given amount."""
        guest = end_with(test, start(self, "unix", "hold", str(4 << 20)))
        read_until(guest, "holding")
        memory = [(vm["vm"], vm["device_memory"]) for vm in self.status()["vms"]]
        finish(guest)
        return memory


class Field:
    """The hosts, the programs, and what operators report."""

    def __init__(self, test):
        self.folder = tempfile.mkdtemp(prefix="paragpu-operators-")
        test.addCleanup(shutil.rmtree, self.folder, True)
        directory = harness.certificates(os.path.join(self.folder, "authority"))
        self.temporary = os.path.join(self.folder, "tmp")
        os.mkdir(self.temporary)
        self.hosts, self.programs, self.dead = [], [], queue.Queue()
        self.faults, self.refusals, self.actions = [], collections.Counter(), collections.Counter()
        with mock.patch.dict(os.environ, TMPDIR=self.temporary):
            for name in ("one", "two", "three"):
                self.hosts.append(Host(self.folder, directory, name))
                test.addCleanup(self.hosts[-1].stop)

    def excuse(self, reason, condition):
        """Lets the programs for which a condition holds get errors from now on."""
        for program in self.programs:
            if condition(program):
                program.excuse = program.excuse or reason

    def restart(self, host):
        """Has a daemon started again by `serve`: it ends with the thread that starts it."""
        started = threading.Event()
        self.dead.put((host, started))
        started.wait()

    def serve(self, operators):
        """Starts daemons again until all operators are done."""
        while any(operator.is_alive() for operator in operators):
            with contextlib.suppress(queue.Empty):
                host, started = self.dead.get(timeout=0.1)
                try:
                    host.start()
                except RuntimeError as error:
                    self.faults.append(f"{host.name}: {error}")
                started.set()


class Operator(threading.Thread):
    """One of those who act at random. The number of each action is its weight."""

    WEIGHTS = {
        "move": 12,
        "move_vm": 5,
        "drain": 3,
        "move_one_that_ends": 3,
        "checkpoint": 6,
        "schedule": 4,
        "put_away": 4,
        "restore": 2,
        "share": 5,
        "reload": 3,
        "look": 6,
        "end": 3,
        "kill_worker": 2,
        "kill_daemon": 1,
        "cut": 4,
        "name_nobody": 2,
    }

    def __init__(self, field, number):
        super().__init__(name=f"operator {number}")
        self.field, self.chance, self.schedules = field, random.Random(f"{SEED} operator {number}"), []

    def run(self):
        for _ in range(ACTIONS):
            (name,) = self.chance.choices(list(self.WEIGHTS), self.WEIGHTS.values())
            try:
                getattr(self, name)(self.chance.choice(self.field.hosts))
            except Exception as error:  # pylint: disable=broad-exception-caught
                self.field.faults.append(f"{self.name}, {name}: {error!r}")
            self.field.actions[name] += 1

    def order(self, host, *order):
        """Runs paragpu: its output, or None where it refuses."""
        kills = host.kills
        command = [harness.binary("paragpu"), "--control", host.control, *map(str, order)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        except subprocess.TimeoutExpired:
            self.field.faults.append(f"{order} hangs at {host.name}: {host.log()[-3000:]}")
            return None
        if done.returncode == 0:
            return done.stdout
        sentences = done.stderr.strip().splitlines()
        if done.stdout.startswith("["):
            sentences = [one["error"] for one in json.loads(done.stdout) if one["error"]]
        bad = [sentence for sentence in sentences if RAW.search(sentence) or sentence.count(" ") < 3]
        is_down = host.kills != kills or not host.up.is_set()
        if not sentences or bad or done.returncode != 1 and not is_down:
            self.field.faults.append(f"{order} at {host.name}: {done.returncode} {done.stdout} {done.stderr}")
        for sentence in sentences:
            self.field.refusals[re.sub(r"\d+|/\S+", "N", sentence)] += 1
        return None

    def sessions(self, host):
        """The sessions of a host."""
        listed = self.order(host, "list", "-o", "json")
        return json.loads(listed) if listed else []

    def session(self, host):
        """One of them, or None."""
        sessions = self.sessions(host)
        return self.chance.choice(sessions) if sessions else None

    def place(self):
        """A destination, and options."""
        other, gpu = self.chance.choice(self.field.hosts), self.chance.randrange(2)
        communicator = self.chance.choice(harness.HOST_COMMUNICATORS)
        places = (
            ("--to", f"unix://{other.socket}"),
            ("--to", f"unix://{other.socket}", "--to-gpu", gpu, "--copy"),
            ("--to", other.far),
            ("--to", other.far, "--communicator", communicator),
            ("--to-gpu", gpu),
            ("--communicator", communicator),
        )
        return self.chance.choice(places)

    def directory(self):
        """A directory for checkpoints."""
        return os.path.join(self.field.folder, "states", str(self.chance.randrange(DIRECTORIES)))

    def excuse(self, session, reason):
        """Lets the program of a session get an error."""
        self.field.excuse(reason, lambda program: program.has({session["guest_pid"]}))

    def move(self, host):
        """One session."""
        if session := self.session(host):
            self.order(host, "migrate", session["id"], *self.place(), "-o", "json")

    def move_vm(self, host):
        """All sessions of a VM, together."""
        if session := self.session(host):
            self.order(host, "migrate", "--vm", session["vm"], *self.place(), "-o", "json")

    def drain(self, host):
        """All sessions of a GPU."""
        self.order(host, "migrate", "--gpu", self.chance.randrange(2), *self.place(), "-o", "json")

    def move_one_that_ends(self, host):
        """A session that is ended while it moves."""
        if session := self.session(host):
            self.excuse(session, "it was ended while it moved")
            order = (host, "migrate", session["id"], *self.place())
            move = threading.Thread(target=self.order, args=order)
            move.start()
            self.order(host, "end", session["id"])
            move.join()

    def checkpoint(self, host):
        """Once."""
        if session := self.session(host):
            self.order(host, "checkpoint", session["id"], self.directory(), "-o", "json")

    def schedule(self, host):
        """Begins or ends periodic checkpoints."""
        if self.schedules and self.chance.random() < 0.5:
            host, session, directory = self.schedules.pop()
            self.order(host, "checkpoint", session, directory, "--every", "off")
        elif session := self.session(host):
            directory, every = self.directory(), self.chance.choice(("1s", "3s", "1h"))
            self.order(host, "checkpoint", session["id"], directory, "--every", every)
            self.schedules.append((host, session["id"], directory))

    def put_away(self, host):
        """Ends a session with a checkpoint, and restores it."""
        session = self.session(host)
        directory = tempfile.mkdtemp(prefix="away-", dir=self.field.folder)
        if not session or self.order(host, "checkpoint", session["id"], directory, "--end") is None:
            return
        # Its worker may still exit, and there may be no room for another session.
        for _ in range(20):
            if self.order(host, "restore", directory) is not None:
                return
        for program in self.field.programs:
            if program.has({session["guest_pid"]}):
                program.kill()

    def restore(self, host):
        """A checkpoint of any session, which may still be there."""
        self.order(host, "restore", self.directory())

    def share(self, host):
        """A share of GPU time."""
        shares = (("--weight", 1, 1001), ("--cap", 20, 101), ("--priority", 0, 8))
        option, least, end = self.chance.choice(shares)
        if session := self.session(host):
            who = self.chance.choice(((session["id"],), ("--vm", session["vm"])))
            self.order(host, "share", *who, option, self.chance.randrange(least, end))

    def reload(self, host):
        """Other limits."""
        text = self.chance.choice(CONFIGURATIONS)
        with host.lock:
            host.configure(text)
            host.process.send_signal(signal.SIGHUP)

    def look(self, host):
        """What there is."""
        for order in (("list",), ("status",), ("top", "--once", "--interval", "0.1")):
            json.loads(self.order(host, *order, "-o", "json") or "[]")

    def end(self, host):
        """A session."""
        if session := self.session(host):
            self.excuse(session, "it was ended")
            self.order(host, "end", session["id"])

    def kill_worker(self, host):
        """The process of a session."""
        if session := self.session(host):
            self.excuse(session, "its worker was killed")
            with contextlib.suppress(ProcessLookupError):
                os.kill(session["worker_pid"], signal.SIGKILL)

    def kill_daemon(self, host):
        """Its sessions continue. Those that lose their connection later, begin or move end."""
        fragile = lambda session: session["communicator"] in ("tcp", "none") or session["activity"] != "serving"
        with host.lock:
            host.up.clear()
            host.kills += 1
            reason = "its daemon was killed"
            sessions = [session for other in self.field.hosts for session in self.sessions(other)]
            safe = {session["guest_pid"] for session in sessions} - {session["guest_pid"] for session in sessions if fragile(session)}
            self.field.excuse(reason, lambda program: not all(process.pid in safe for process in program.processes))
            host.process.kill()
            host.process.wait()
            # It would not start with a bad one.
            host.configure("")
            self.field.restart(host)
            lost = {session["guest_pid"] for session in self.sessions(host) if fragile(session)}
            self.field.excuse(reason, lambda program: program.has(lost) or program.host is host and not program.processes)
            host.up.set()

    def cut(self, host):
        """The connections over TCP, over which programs that have a session connect again."""
        pids = {session["guest_pid"] for other in self.field.hosts for session in self.sessions(other)}
        begins = lambda program: program.communicator == "tcp" and not all(process.pid in pids for process in program.processes)
        self.field.excuse("its connection was cut when it began", begins)
        host.proxy.cut()

    def name_nobody(self, host):
        """Orders about what there is not."""
        self.order(host, "end", 999_999)
        self.order(host, "share", 999_999, "--weight", 5)
        self.order(host, "migrate", "--vm", "nobody", "--to-gpu", 0)
        self.order(host, "migrate", 999_999, "--to", "unix:///nowhere")
        self.order(host, "restore", self.field.folder)


@unittest.skipUnless(ACTIONS, "make soak-operators runs it")
class Operators(unittest.TestCase):
    """Everything at once."""

    def test_operators_do_everything_at_once(self):
        field = Field(self)
        before = [self.first(host) for host in field.hosts]
        field.programs = [Program(field.hosts, kind, SEED) for kind in KINDS]
        operators = [Operator(field, number) for number in range(OPERATORS)]
        for program in field.programs:
            program.start()
        eventually(lambda: all(program.processes for program in field.programs), "programs run")
        for operator in operators:
            operator.start()
        field.serve(operators)
        for program in field.programs:
            program.stopping.set()
        for program in field.programs:
            program.join(LIMIT)
            if program.is_alive():
                field.faults.append(f"{program}: it hangs after {program.said!r}")
                program.kill()
                program.join()
            field.faults += program.faults
        for host, (held, charged) in zip(field.hosts, before, strict=True):
            self.leaves_nothing(field, host, held, charged)
        field.faults += [f"the temporary file {name} is left" for name in os.listdir(field.temporary)]
        if ACTIONS > 100:
            print(dict(field.actions), *(f"{count} {refusal}" for refusal, count in field.refusals.most_common()), sep="\n")
        self.assertEqual(field.faults, [])
        for program in field.programs:
            self.assertGreater(program.lives, 0, program)
        self.assertGreater(sum(program.rounds for program in field.programs), 0)

    def first(self, host):
        """What a host holds, and memory that it counts, after a first program over each communicator."""
        for communicator in harness.HOST_COMMUNICATORS:
            code, output, errors = finish(start(host, communicator, "rounds", "1"))
            self.assertEqual(code, 0, output + errors)
        charged = host.charged(self)
        eventually(lambda: host.sessions() == [], "the first sessions ended")
        return host.at_rest(), charged

    def leaves_nothing(self, field, host, held, charged):
        """No program left something at a host."""
        host.configure("")
        host.process.send_signal(signal.SIGHUP)
        # A restored session waits ten minutes for its program.
        awaited = lambda session: session["communicator"] == "none"
        try:
            eventually(lambda: all(map(awaited, host.sessions())), "sessions end with their programs", 60)
            for session in host.sessions():
                ask(host, "end", str(session["id"]))
            eventually(lambda: host.sessions() == [], "sessions end that an operator ends", 60)
            now = host.charged(self)
            if now != charged:
                field.faults.append(f"{host.name} charged {charged}, and charges {now}")
            eventually(lambda: host.holdings() == held, "nothing is left", 60)
        except AssertionError as error:
            field.faults.append(f"{host.name}: {error}: {host.sessions()}, {host.holdings()}, not {held}")
        errors = [line for line in host.log().splitlines() if re.search(r"panicked| ERROR ", line)]
        field.faults += [f"{host.name}: {line}" for line in errors if not EXPECTED.search(line)]


if __name__ == "__main__":
    unittest.main()
