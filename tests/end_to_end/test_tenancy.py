"""Several VMs on several GPUs: limits, placement, listings.

VMs are told apart here as the daemon tells them apart: by unix user, by
address, by the name of a VM's vsock socket.
"""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request

import harness
from end_to_end.guests import GUEST, ask, end_with, eventually, finish, read_until, start

USER = f"uid {os.getuid()}"
OUT_OF_MEMORY = 2
MIB = 1 << 20


def paragpu(daemon, *arguments):
    """The command's standard output."""
    command = [harness.binary("paragpu"), *arguments, "--control", daemon.control]
    return subprocess.check_output(command, text=True, timeout=60)


class Tenancy(unittest.TestCase):
    """Each test has a separate daemon."""

    def daemon(self, *settings, arguments=()):
        options = [option for setting in settings for option in ("--set", setting)]
        return self.enterContext(harness.Daemon(*options, *arguments))

    def guest(self, daemon, communicator, *arguments):
        return end_with(self, start(daemon, communicator, *arguments))

    def hold(self, daemon, communicator, size):
        """A guest that has so much device memory."""
        guest = self.guest(daemon, communicator, "hold", str(size))
        read_until(guest, "holding")
        return guest

    def refused_memory(self, daemon, communicator, size):
        code, output, errors = finish(self.guest(daemon, communicator, "hold", str(size)))
        self.assertEqual(code, 3, output + errors)
        self.assertIn(f"CUDA error {OUT_OF_MEMORY} in cuMemAlloc_v2", output)

    def test_memory_of_a_vm_is_that_of_all_its_sessions(self):
        daemon = self.daemon(f"vm.{USER}.memory=64MiB", "software.memory=1GiB")
        free, total = self.memory(daemon, "unix")
        self.assertEqual(total, 64 * MIB)
        self.assertLessEqual(free, total)
        first = self.hold(daemon, "unix", 40 * MIB)
        free, total = self.memory(daemon, "shm")
        self.assertEqual((free, total), (24 * MIB, 64 * MIB))
        self.refused_memory(daemon, "shm", 40 * MIB)
        # Another VM, here an address, has the whole GPU.
        self.assertEqual(self.memory(daemon, "tcp")[1], 1024 * MIB)
        other = self.hold(daemon, "tcp", 100 * MIB)
        second = self.hold(daemon, "shm", 24 * MIB)
        vms = {vm["vm"]: vm for vm in json.loads(paragpu(daemon, "status", "-o", "json"))["vms"]}
        self.assertEqual((vms[USER]["device_memory"], vms[USER]["device_memory_limit"]), (64 * MIB, 64 * MIB))
        self.assertEqual((vms["127.0.0.1"]["device_memory"], vms["127.0.0.1"]["device_memory_limit"]), (100 * MIB, 0))
        # Resources of a killed worker are free again.
        worker = next(one["worker_pid"] for one in daemon.sessions() if one["guest_pid"] == first.pid)
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: len(daemon.sessions()) == 2, "the worker's end is noticed")
        self.hold(daemon, "unix", 40 * MIB)
        for guest in (second, other):
            self.assertIsNone(guest.poll())

    def test_all_vms_have_the_memory_of_a_gpu_once(self):
        daemon = self.daemon("software.memory=256MiB")
        first = self.hold(daemon, "unix", 160 * MIB)
        self.assertEqual(self.memory(daemon, "tcp"), (96 * MIB, 256 * MIB))
        self.refused_memory(daemon, "tcp", 98 * MIB)
        self.hold(daemon, "tcp", 96 * MIB)
        self.refused_memory(daemon, "shm", 2 * MIB)
        # What a killed worker had is free again, and no more.
        worker = next(one["worker_pid"] for one in daemon.sessions() if one["guest_pid"] == first.pid)
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: len(daemon.sessions()) == 1, "the worker's end is noticed")
        self.assertEqual(self.memory(daemon, "tcp"), (160 * MIB, 256 * MIB))

    def memory(self, daemon, communicator):
        """Free and total memory as a program of this VM sees them."""
        code, output, errors = finish(self.guest(daemon, communicator, "memory"))
        self.assertEqual(code, 0, output + errors)
        return tuple(map(int, output.split()))

    def test_limits_change_while_sessions_run(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write("[limits]\nper_vm_memory = '32MiB'\n[software]\nmemory = '1GiB'\n")
            file.flush()
            daemon = self.daemon(arguments=["--config", file.name])
            guest = self.guest(daemon, "unix", "grow", str(24 * MIB))
            read_until(guest, "has 25165824")
            read_until(guest, "refused")
            file.write(f"[vm.'{USER}']\nmemory = '60MiB'\n")
            file.flush()
            daemon.process.send_signal(signal.SIGHUP)
            eventually(lambda: "configuration reloaded" in daemon.log(), "the daemon reads its configuration")
            guest.stdin.write("\n")
            guest.stdin.flush()
            read_until(guest, "has 50331648")

    def test_sessions_are_limited_for_each_vm(self):
        daemon = self.daemon(f"vm.{USER}.sessions=1", "limits.per_vm=2")
        one = self.hold(daemon, "unix", MIB)
        code, output, errors = finish(self.guest(daemon, "shm", "device"))
        self.assertEqual(code, 3, output)
        self.assertIn(f"{USER} already has 1 session on this host", errors)
        self.assertIn(f'sessions under [vm."{USER}"]', errors)
        for _ in range(2):
            self.hold(daemon, "tcp", MIB)
        code, output, errors = finish(self.guest(daemon, "tcp", "device"))
        self.assertEqual(code, 3, output)
        self.assertIn("127.0.0.1 already has 2 sessions", errors)
        one.kill()
        eventually(lambda: len(daemon.sessions()) == 2, "the session is over")
        self.hold(daemon, "shm", MIB)

    def test_a_certificate_limits_the_sessions_of_its_vm(self):
        trust = harness.certificates(self.enterContext(tempfile.TemporaryDirectory(prefix="paragpu-trust-")))
        command = [harness.binary("paragpu"), "certificate", trust, "--vm", "a", "--sessions", "1"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        files = (("ca", "ca.pem"), ("certificate", "127.0.0.1.pem"), ("key", "127.0.0.1.key"))
        daemon = self.daemon(*(f"tcp.{key}={trust}/{file}" for key, file in files))
        own = {f"PARAGPU_TCP_{key.upper()}": f"{trust}/{file.replace('127.0.0.1', 'a')}" for key, file in files}
        guest = end_with(self, start(daemon, "tcp", "hold", str(MIB), **own))
        read_until(guest, "holding")
        (vm,) = daemon.status()["vms"]
        self.assertEqual((vm["vm"], vm["session_limit"]), ("a", 1))
        code, output, errors = finish(end_with(self, start(daemon, "tcp", "device", **own)))
        self.assertEqual(code, 3, output)
        self.assertIn("end a program, or raise the limit in its certificate\n", errors)

    def test_a_restored_session_counts_as_any_other(self):
        daemon = self.daemon("limits.per_vm=1")
        self.hold(daemon, "unix", MIB)
        with tempfile.TemporaryDirectory() as folder:
            (session,) = daemon.sessions()
            paragpu(daemon, "checkpoint", str(session["id"]), folder, "--end")
            # It counts until its worker has exited.
            eventually(lambda: daemon.sessions() == [], "the session is over")
            self.hold(daemon, "unix", MIB)
            code, output, errors = ask(daemon, "restore", folder)
            self.assertEqual(code, 1, output)
            self.assertIn(f"{USER} already has 1 session on this host", errors)
            self.assertIn("raise limits.per_vm in the host's host.toml", errors)

    def test_vms_behind_vsock_sockets_have_limits_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: os.path.join(folder, f"{name}.vsock_7014") for name in ("red", "blue")}
            listeners = [f"--vsock-unix={path}" for path in paths.values()]
            daemon = self.daemon("vm.red.memory=8MiB", arguments=listeners)
            seen = {}
            for name, path in paths.items():
                # As the hypervisor connects for a guest.
                environment = dict(daemon.guest_environment("unix"), PARAGPU_UNIX_SOCKET=path)
                done = subprocess.run(
                    [sys.executable, GUEST, "memory"], env=environment, capture_output=True, text=True, timeout=60
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                seen[name] = int(done.stdout.split()[1])
            self.assertEqual(seen["red"], 8 * MIB)
            self.assertGreater(seen["blue"], 8 * MIB)

    def test_sessions_are_placed_on_the_gpus(self):
        for policy, expected in (
            ("fixed", [0, 0, 0, 0]),
            ("round-robin", [0, 1, 2, 0]),
            ("least-loaded", [0, 1, 2, 0]),
        ):
            with self.subTest(policy):
                daemon = self.daemon("software.devices=3", f"device.placement={policy}", "software.threads=1")
                eventually(lambda: len(daemon.devices()) == 3, "the devices are found")
                for _ in expected:
                    self.hold(daemon, "unix", MIB)
                placed = [session["device"] for session in daemon.sessions()]
                self.assertEqual(placed, [f"software:{gpu}" for gpu in expected])
                # One process with every device, each with separate memory and a kernel.
                all_of_them = self.guest(daemon, "shm", "devices")
                read_until(all_of_them, "computed on 3 devices")
                own = [one for one in daemon.sessions() if one["guest_pid"] == all_of_them.pid]
                self.assertEqual(sorted(one["ordinal"] for one in own), [0, 1, 2])
                self.assertEqual({one["device"] for one in own}, {f"software:{gpu}" for gpu in range(3)})
                if policy == "fixed":
                    self.assertTrue(all(one["device"] == f"software:{one['ordinal']}" for one in own))

    def test_first_processes_of_containers_are_placed_apart(self):
        apart = ["unshare", "--pid", "--fork", "--kill-child"]
        if os.getuid() != 0 or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
            self.skipTest("a PID namespace takes root")
        daemon = self.daemon("software.devices=3", "device.placement=least-loaded", "software.threads=1")
        eventually(lambda: len(daemon.devices()) == 3, "the devices are found")
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        for communicator in ("unix", "shm", "unix"):
            command = [*apart, sys.executable, GUEST, "hold", str(MIB)]
            environment = daemon.guest_environment(communicator)
            guest = end_with(self, subprocess.Popen(command, env=environment, text=True, **pipes))
            read_until(guest, "holding")
        placed = [(session["guest_pid"], session["device"]) for session in daemon.sessions()]
        self.assertEqual(placed, [(1, f"software:{gpu}") for gpu in range(3)])

    def test_a_session_that_moves_to_another_gpu_counts_once(self):
        daemon = self.daemon("software.devices=2", f"vm.{USER}.memory=64MiB", "software.threads=1")
        eventually(lambda: len(daemon.devices()) == 2, "the devices are found")
        guest = self.guest(daemon, "unix", "grow", str(8 * MIB))
        read_until(guest, "refused")
        for gpu in (1, 0):
            (session,) = daemon.sessions()
            paragpu(daemon, "migrate", str(session["id"]), "--to-gpu", str(gpu))
            eventually(lambda: len(daemon.sessions()) == 1, "the source is over")
            (session,) = daemon.sessions()
            self.assertEqual(session["device"], f"software:{gpu}")
            (vm,) = daemon.status()["vms"]
            self.assertEqual(vm["device_memory"], 64 * MIB)
            guest.stdin.write("\n")
            guest.stdin.flush()
            self.assertEqual(guest.stdout.readline().strip(), "refused")

    def test_a_restored_session_gets_a_gpu_of_its_vm(self):
        daemon = self.daemon("software.devices=2", f"vm.{USER}.devices=[1]", "software.threads=1")
        eventually(lambda: len(daemon.devices()) == 2, "the devices are found")
        guest = self.guest(daemon, "unix", "steps")
        read_until(guest, "round 2")
        with tempfile.TemporaryDirectory() as folder:
            (session,) = daemon.sessions()
            paragpu(daemon, "checkpoint", str(session["id"]), folder, "--end")
            eventually(lambda: daemon.sessions() == [], "the session is over")
            paragpu(daemon, "restore", folder)
            read_until(guest, "round")
            (session,) = daemon.sessions()
            self.assertEqual((session["device"], session["ordinal"]), ("software:1", 0))

    def test_metrics_are_read_by_what_reads_prometheus(self):
        daemon = self.daemon("metrics.listen=127.0.0.1:0", f"vm.{USER}.memory=64MiB")
        done = daemon.run("vectorAdd", "shm")
        self.assertTrue(done.ok, done.output + done.errors)
        eventually(lambda: daemon.sessions() == [], "the session is over")
        self.hold(daemon, "unix", 10 * MIB)
        with urllib.request.urlopen(f"http://{daemon.addresses['metrics']}/metrics", timeout=harness.PATIENCE) as answer:
            self.assertIn("openmetrics-text", answer.headers["Content-Type"])
            metrics = parse(answer.read().decode())
        place = {"vm": USER, "gpu": "software:0"}
        value = lambda name, **labels: metrics[name, frozenset({**place, **labels}.items())]  # noqa: E731
        # vectorAdd has ended and stays counted.
        self.assertGreaterEqual(value("paragpu_launches_total"), 1)
        self.assertGreaterEqual(value("paragpu_calls_total", kind="posted"), 1)
        self.assertGreaterEqual(value("paragpu_calls_total", kind="synchronous"), 1)
        copied = done.counters
        self.assertEqual(value("paragpu_copied_bytes_total", direction="to_device"), copied["bytes_to_device"])
        self.assertEqual(value("paragpu_copied_bytes_total", direction="from_device"), copied["bytes_from_device"])
        self.assertEqual(value("paragpu_device_memory_bytes"), 10 * MIB)
        self.assertEqual(value("paragpu_sessions"), 1)
        self.assertEqual(metrics["paragpu_vm_device_memory_limit_bytes", frozenset({("vm", USER)})], 64 * MIB)
        buckets = {
            dict(labels)["le"]: number
            for (name, labels), number in metrics.items()
            if name == "paragpu_call_seconds_bucket"
        }
        counts = [number for _, number in sorted(buckets.items(), key=lambda pair: float(pair[0]))]
        self.assertEqual(counts, sorted(counts), "buckets accumulate")
        self.assertEqual(buckets["+Inf"], value("paragpu_call_seconds_count"))
        self.assertGreater(value("paragpu_call_seconds_sum"), 0)
        self.assertLessEqual(value("paragpu_call_seconds_count"), value("paragpu_calls_total", kind="synchronous"))
        self.assertGreater(value("paragpu_call_seconds_count"), 0)

    def test_no_metrics_without_a_place(self):
        self.assertIsNone(self.daemon().addresses["metrics"])

    def test_top_shows_rates_once_and_as_json(self):
        daemon = self.daemon()
        guest = self.guest(daemon, "shm", "steps")
        read_until(guest, "round 3")

        def rates():
            """A view in which the program has run: on a busy machine it may not for a while."""
            view = json.loads(paragpu(daemon, "top", "--once", "-o", "json", "--interval", "0.3"))
            self.assertGreater(view["interval"], 0.29)
            return view["sessions"][0]["bytes_from_device_per_second"] and view

        view = eventually(rates, "the program runs")
        (session,) = view["sessions"]
        self.assertEqual((session["vm"], session["gpu"], session["guest_pid"]), (USER, "software:0", guest.pid))
        self.assertGreater(session["calls_per_second"], 0)
        self.assertGreater(session["bytes_from_device_per_second"], 0)
        self.assertEqual([vm["vm"] for vm in view["vms"]], [USER])
        self.assertEqual([gpu["sessions"] for gpu in view["gpus"]], [1])
        shown = paragpu(daemon, "top", "--once", "--interval", "0.3")
        self.assertRegex(shown, r"GPU +NAME +SESSIONS +MEMORY +CALLS/S")
        self.assertRegex(shown, rf"(?m)^ *1 +{USER} +{guest.pid} +software:0 +shm ")
        self.assertNotIn("\x1b", shown)
        guest.kill()

    def top(self, daemon, interval):
        """A live view, which has drawn, and the terminal's other end."""
        master, terminal = os.openpty()
        command = [harness.binary("paragpu"), "top", "--control", daemon.control, "--interval", interval]
        view = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE, start_new_session=True)
        os.close(terminal)
        self.addCleanup(os.close, master)
        self.addCleanup(view.stderr.close)
        self.addCleanup(view.kill)
        drawn = read_terminal(master, b"no sessions")
        self.assertIn(b"\x1b[?1049h", drawn, "a screen of its own")
        return view, master

    def test_top_in_a_terminal_ends_with_q(self):
        view, master = self.top(self.daemon(), "0.1")
        os.write(master, b"q")
        read_terminal(master, b"\x1b[?1049l")
        self.assertEqual(view.wait(harness.PATIENCE), 0, view.stderr.read())

    def test_top_restores_the_terminal_when_a_signal_ends_it(self):
        daemon = self.daemon()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # No report is due for an hour.
            view, master = self.top(daemon, "3600")
            view.send_signal(number)
            read_terminal(master, b"\x1b[?1049l")
            self.assertEqual(view.wait(harness.PATIENCE), 0, view.stderr.read())

    def test_journal_has_fields(self):
        """The daemon in a mount namespace in which this test plays the journal."""
        if os.getuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
            self.skipTest("a mount namespace takes root")
        with tempfile.TemporaryDirectory(prefix="paragpu-") as folder:
            journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.addCleanup(journal.close)
            os.mkdir(os.path.join(folder, "systemd"))
            os.mkdir(os.path.join(folder, "systemd", "journal"))
            journal.bind(os.path.join(folder, "systemd", "journal", "socket"))
            log = os.path.join(folder, "stderr")
            with open(log, "wb") as stderr:
                there = os.fstat(stderr.fileno())
            inside = 'mount --bind "$0" /run && JOURNAL_STREAM=$1 && export JOURNAL_STREAM && shift && exec "$@"'
            entries = []
            reader = threading.Thread(target=lambda: entries.extend(read_journal(journal)), daemon=True)
            reader.start()
            with Journalled(["unshare", "-m", "sh", "-c", inside, folder, f"{there.st_dev}:{there.st_ino}"], log) as daemon:
                guest = self.hold(daemon, "unix", MIB)
                guest.kill()
                eventually(lambda: daemon.sessions() == [], "the session is over")
            reader.join(harness.PATIENCE)
            for sentence in ("session begins", "session ends"):
                (entry,) = [entry for entry in entries if entry.get("MESSAGE") == sentence]
                self.assertEqual((entry["VM"], entry["SESSION"], entry["GPU"]), (USER, "1", "software:0"), entry)
                self.assertEqual(entry["SYSLOG_IDENTIFIER"], "paragpud")


def read_terminal(master, wanted):
    """A terminal's output, up to the expected bytes."""
    drawn = b""
    while wanted not in drawn:
        if not select.select([master], [], [], harness.PATIENCE)[0]:
            raise AssertionError(f"never drawn: {wanted!r} in {drawn!r}")
        drawn += os.read(master, 4096)
    return drawn


class Journalled(harness.Daemon):
    """A daemon that is started by another command, as under systemd."""

    def __init__(self, before, log):
        self.before = before
        super().__init__(log=log)

    def start(self):
        if self.command[: len(self.before)] != self.before:
            self.command = [*self.before, *self.command]
        super().start()


def read_journal(journal):
    """The fields of each entry, until the daemon says that it ended."""
    journal.settimeout(60)
    while True:
        try:
            data = journal.recv(1 << 16)
        except TimeoutError:
            return
        fields = {}
        while data:
            name, rest = data.split(b"\n", 1)
            if b"=" in name:
                name, value = name.split(b"=", 1)
                data = rest
            else:
                size = int.from_bytes(rest[:8], "little")
                value, data = rest[8 : 8 + size], rest[8 + size + 1 :]
            fields[name.decode()] = value.decode()
        yield fields
        if fields.get("MESSAGE") == "ended":
            return


def parse(text):
    """An OpenMetrics text as {(name, labels): value}; every line must be one."""
    metrics, types = {}, {}
    lines = text.splitlines()
    if lines[-1] != "# EOF":
        raise AssertionError("the text does not end with # EOF")
    sample = re.compile(r'([A-Za-z_]+)(?:\{((?:[A-Za-z]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')
    for line in lines[:-1]:
        if line.startswith("# "):
            _, kind, name, rest = line.split(" ", 3)
            if kind == "TYPE":
                types[name] = rest
            continue
        found = sample.fullmatch(line)
        if not found:
            raise AssertionError(f"not a sample: {line!r}")
        name, labels, value = found.groups()
        if not any(name.startswith(family) for family in types):
            raise AssertionError(f"{name} has no type")
        labels = frozenset(re.findall(r'([A-Za-z]+)="((?:[^"\\]|\\.)*)"', labels or ""))
        if (name, labels) in metrics:
            raise AssertionError(f"twice: {line!r}")
        metrics[name, labels] = float(value)
    return metrics
