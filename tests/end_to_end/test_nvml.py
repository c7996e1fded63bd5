"""libnvidia-ml.so.1: the facts that a VM's program gets about its GPU."""

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import harness
from end_to_end.guests import ask, eventually, only_session, read_until, start

MIB = 1 << 20
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_program.py")
CACHE = os.path.join(harness.ROOT, ".cache", "nvidia-ml-py")
USER = f"uid {os.getuid()}"


def nvidia_ml_py():
    """Folder with NVIDIA's Python binding, or the reason why it is missing."""
    if not os.path.exists(os.path.join(CACHE, "pynvml.py")):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", CACHE, "nvidia-ml-py"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise unittest.SkipTest(f"nvidia-ml-py cannot be fetched: {error}") from error
        if done.returncode != 0:
            raise unittest.SkipTest(f"nvidia-ml-py cannot be fetched: {done.stderr.strip()[-200:]}")
    return CACHE


class Nvml(unittest.TestCase):
    """Each test has a separate daemon."""

    def daemon(self, *settings):
        options = [option for setting in settings for option in ("--set", setting)]
        return self.enterContext(harness.Daemon(*options))

    def ask(self, daemon, mode, communicator="unix", **environment):
        """The program's output in a mode, as JSON."""
        done = subprocess.run(
            [sys.executable, PROGRAM, mode],
            env=daemon.guest_environment(communicator) | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return json.loads(done.stdout)

    def hold(self, daemon, size):
        guest = start(daemon, "unix", "hold", str(size))
        for close in (guest.stdout.close, guest.stderr.close, guest.stdin.close, guest.wait, guest.kill):
            self.addCleanup(close)
        read_until(guest, "holding")
        return guest

    def test_facts_are_those_of_cuda(self):
        daemon = self.daemon("software.devices=2")
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                facts = self.ask(daemon, "facts", communicator)
                self.assertEqual(facts["nvml"], facts["cuda"])
                self.assertEqual(len(facts["nvml"]), 2)

    def test_memory_and_processes_are_those_of_the_vm(self):
        daemon = self.daemon(f"vm.{USER}.memory=64MiB", "software.memory=1GiB")
        self.assertEqual(self.ask(daemon, "use"), {"total": 64 * MIB, "used": 0, "processes": []})
        one, two = self.hold(daemon, 8 * MIB), self.hold(daemon, 16 * MIB)
        use = self.ask(daemon, "use")
        self.assertEqual((use["total"], use["used"]), (64 * MIB, 24 * MIB))
        self.assertEqual(sorted(map(tuple, use["processes"])), sorted([(one.pid, 8 * MIB), (two.pid, 16 * MIB)]))
        # Another VM, here an address, sees nothing of them.
        other = self.ask(daemon, "use", "tcp")
        self.assertEqual((other["used"], other["processes"]), (0, []))
        one.stdin.close()
        one.wait(60)
        only_session(daemon)
        self.assertEqual(self.ask(daemon, "use")["used"], 16 * MIB, "the process that ended has no memory")

    def test_work_shows_as_utilization(self):
        daemon = self.daemon()
        self.assertEqual(self.ask(daemon, "utilization"), {"gpu": 0, "processes": []})
        guest = start(daemon, "unix", "spin")
        for close in (guest.stdout.close, guest.stderr.close, guest.stdin.close, guest.wait, guest.kill):
            self.addCleanup(close)
        read_until(guest, "spinning")
        busy = self.ask(daemon, "utilization")
        self.assertGreater(busy["gpu"], 0)
        self.assertEqual([pid for pid, _ in busy["processes"]], [guest.pid])

    def test_wrong_arguments_are_refused(self):
        self.assertEqual(self.ask(self.daemon(), "wrong"), {})

    def test_all_of_the_vm_is_near_its_gpus(self):
        said = self.ask(self.daemon("software.devices=2"), "topology")
        self.assertEqual(said, {"levels": [0, 50], "nearest": [0, 0, 0, 0, 0, 1], "set": 2})

    def test_codes_have_nvidias_words(self):
        words = {
            "0": "Success",
            "1": "Uninitialized",
            "2": "Invalid Argument",
            "3": "Not Supported",
            "4": "Insufficient Permissions",
            "9": "Driver Not Loaded",
            "15": "GPU is lost",
            "18": "Driver/library version mismatch",
            "999": "Unknown Error",
        }
        said = self.ask(self.daemon(), "texts")
        self.assertEqual({code: said[code] for code in words}, words)

    def test_a_host_that_was_away_is_asked_again(self):
        daemon = self.daemon("software.memory=1GiB")
        for communicator in ("shm", "unix"):
            with subprocess.Popen(
                [sys.executable, PROGRAM, "restart"],
                env=daemon.guest_environment(communicator),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as program:
                read_until(program, "asked")
                daemon.process.terminate()
                daemon.process.wait(harness.PATIENCE)
                program.stdin.write("\n")
                program.stdin.flush()
                read_until(program, "away")
                daemon.start()
                said, errors = program.communicate("\n", timeout=60)
            # 9: no driver is loaded. A monitor's screen shows no sentence of ours.
            self.assertEqual((json.loads(said), errors), ({"away": 9, "again": 0, "total": 1024 * MIB}, ""))

    def test_a_process_has_cuda_and_nvml_and_forks(self):
        self.assertEqual(self.ask(self.daemon(), "both"), {"sum": 4, "child": 0, "again": 1})
        self.assertEqual(self.ask(self.daemon(), "cloned"), {"child": 0})

    def test_a_process_with_a_session_queries_over_it(self):
        daemon = self.daemon("software.devices=2")
        for communicator in harness.HOST_COMMUNICATORS:
            with subprocess.Popen(
                [sys.executable, PROGRAM, "beside"],
                env=daemon.guest_environment(communicator),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as program:
                read_until(program, "asked")
                self.assertEqual(len(daemon.sessions()), 1)
                found = json.loads(program.communicate("\n", timeout=60)[0])
            self.assertEqual((found["used"], found["devices"]), (4 * MIB, 2))
            self.assertEqual(found["processes"], [[program.pid, 4 * MIB]])
            eventually(lambda: not daemon.sessions(), "the session has ended")

    def test_a_process_that_begins_to_use_cuda_needs_no_other_connection(self):
        daemon = self.daemon()
        with subprocess.Popen(
            [sys.executable, PROGRAM, "before"],
            env=daemon.guest_environment("unix"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as program:
            read_until(program, "asked")
            eventually(lambda: len(daemon.sessions()) == 1, "only the program's own session is left")
            found = json.loads(program.communicate("\n", timeout=60)[0])
        self.assertEqual(found["processes"], [[program.pid, 4 * MIB]])

    def test_a_session_that_moved_or_was_restored_is_listed(self):
        daemon, other = self.daemon("software.devices=2"), self.daemon()
        holder = self.hold(daemon, 8 * MIB)
        expected = {"used": 8 * MIB, "processes": [[holder.pid, 8 * MIB]]}

        def is_listed(at):
            # The worker that the session left may take a moment to exit.
            only_session(at)
            said = self.ask(at, "use")
            self.assertEqual({name: said[name] for name in expected}, expected)

        is_listed(daemon)
        daemon.migrate(only_session(daemon), f"unix://{daemon.socket}", "--to-gpu", "1")
        is_listed(daemon)
        daemon.migrate(only_session(daemon), f"unix://{other.socket}")
        is_listed(other)
        directory = self.enterContext(tempfile.TemporaryDirectory(prefix="paragpu-nvml-"))
        code, _, errors = ask(other, "checkpoint", only_session(other), directory, "--end")
        self.assertEqual((code, errors), (0, ""))
        eventually(lambda: other.sessions() == [], "its worker has exited")
        self.assertEqual(self.ask(other, "use")["processes"], [])
        code, _, errors = ask(other, "restore", directory)
        self.assertEqual((code, errors), (0, ""))
        is_listed(other)
        holder.stdin.close()
        self.assertEqual(holder.wait(60), 0)

    def test_connections_end_with_the_last_user(self):
        daemon = self.daemon()
        self.assertEqual(self.ask(daemon, "use")["used"], 0)
        self.assertEqual(daemon.left(), [])

    def test_without_a_host_there_is_no_driver(self):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PARAGPU_")}
        environment |= {
            "LD_LIBRARY_PATH": harness.LIBRARIES,
            "PARAGPU_COMMUNICATOR": "unix",
            "PARAGPU_UNIX_SOCKET": "/nonexistent/paragpud.sock",
        }
        done = subprocess.run(
            [sys.executable, PROGRAM, "start"], env=environment, capture_output=True, text=True, timeout=60
        )
        self.assertEqual((done.stdout, done.stderr), ("9 1\n", ""))

    def test_nvidia_ml_py_finds_its_names(self):
        folder = nvidia_ml_py()
        with open(os.path.join(folder, "pynvml.py"), encoding="utf-8") as file:
            named = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', file.read()))
        library = ctypes.CDLL(os.path.join(harness.LIBRARIES, "libnvidia-ml.so.1"))
        missing = {name for name in named if not hasattr(library, name)}
        # A later driver's: NVIDIA's library of CUDA 13.0 lacks them too.
        later = {name for name in missing if re.search(r"_v[1-4]$", name) or name == "nvmlDeviceVgpuForceGspUnload"}
        self.assertEqual(missing - later, set())
        self.assertGreater(len(named - missing), 370)

    def test_nvidia_ml_py_reads_a_gpu(self):
        folder = nvidia_ml_py()
        daemon = self.daemon("software.memory=1GiB")
        holder = self.hold(daemon, 4 * MIB)
        said = self.ask(daemon, "pynvml", PYTHONPATH=folder)
        self.assertEqual(said["count"], 1)
        self.assertEqual(said["memory"], [1024 * MIB, 4 * MIB])
        self.assertEqual(said["processes"], [[holder.pid, 4 * MIB]])
        self.assertRegex(said["uuid"], r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
        self.assertEqual(said["power"], "NVMLError_NotSupported")
        self.assertEqual(said["limit"], "NVMLError_NoPermission")
        self.assertEqual(said["handle"], said["uuid"])
        self.assertIn(said["utilization"], range(101))
