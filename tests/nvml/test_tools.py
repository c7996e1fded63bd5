"""Third-party programs on NVML, unmodified, in a guest: `make test-nvml-tools`.

They are in .cache, where fetch-tools.sh and fetch-nvidia-smi.sh put them.
"""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
# pylint: disable=wrong-import-position
import harness
import holder

CACHE = os.path.join(harness.ROOT, ".cache")
FOLDER = os.path.join(CACHE, "nvml-tools")
PYTHON = os.path.join(FOLDER, "python")
# Between an escape and the letter that ends it: colours, places, modes.
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[()][0-9A-Z]|[=>])")
PATIENCE = 60


def of_debian(release, program, environment):
    """A program of a release with its own libraries, and how to run it with ours."""
    tree = os.path.join(FOLDER, release)
    folders = [os.path.join(tree, folder, "x86_64-linux-gnu") for folder in ("usr/lib", "lib")]
    loader = next(path for path in (f"{folder}/ld-linux-x86-64.so.2" for folder in folders) if os.path.exists(path))
    environment = dict(environment)
    preload, path = environment.pop("LD_PRELOAD"), environment.pop("LD_LIBRARY_PATH")
    command = [loader, "--preload", preload, "--library-path", ":".join([path, *folders])]
    return [*command, os.path.join(tree, "usr/bin", program)], environment


def screen(command, environment, wanted):
    """What a program draws on a terminal until all that is wanted stands there; ends it
    with its key."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    environment = {**environment, "TERM": "xterm", "LANG": "C.UTF-8"}
    drawn, deadline = b"", time.monotonic() + PATIENCE
    with subprocess.Popen(
        command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as program:
        os.close(theirs)
        try:
            asked = False
            while time.monotonic() < deadline:
                if not select.select([ours], [], [], 1)[0]:
                    continue
                try:
                    drawn += os.read(ours, 65536)
                except OSError:
                    # The terminal closes with the program.
                    break
                text = ESCAPES.sub("", drawn.decode(errors="replace"))
                if not asked and all(re.search(pattern, text) for pattern in wanted):
                    os.write(ours, b"q")
                    asked = True
            if not asked:
                raise AssertionError(f"{command} does not show {wanted}: {text}")
            if program.wait(PATIENCE) != 0:
                raise AssertionError(f"{command} ended with {program.returncode}: {text}")
            return text
        finally:
            program.kill()
            os.close(ours)


class Tools(unittest.TestCase):
    """A VM with one process beside another VM with one: each sees its own."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(harness.Daemon("--set=limits.memory=1GiB"))
        programs = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="paragpu-tools-"))
        os.symlink(os.path.join(CACHE, "nvidia-smi/trixie"), os.path.join(programs, "nvidia-smi"))
        path = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": PYTHON, "HOME": programs}
        cls.environment = {**cls.daemon.guest_environment("shm"), **path}
        cls.other = {**cls.daemon.guest_environment("tcp"), **path}
        cls.pid = cls.enterClassContext(holder.holding(cls.environment))
        cls.foreign = cls.enterClassContext(holder.holding(cls.other))

    def says(self, *command, environment=None, code=0):
        """What a program says."""
        environment = environment or self.environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, code, f"{command}: {done.stdout}{done.stderr}")
        self.assertNotIn("paragpu: ", done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout if code == 0 else done.stdout + done.stderr

    def module(self, *words, **more):
        """What a program of PyPI says."""
        return self.says(sys.executable, "-m", *words, **more)

    def script(self, name, *words, **more):
        """The same of one that is no module."""
        return self.says(sys.executable, os.path.join(PYTHON, "bin", name), *words, **more)

    def test_gpustat(self):
        for environment, pid in ((self.environment, self.pid), (self.other, self.foreign)):
            (gpu,) = json.loads(self.module("gpustat", "--json", environment=environment))["gpus"]
            self.assertEqual((gpu["memory.used"], gpu["memory.total"]), (holder.MIB, 1024))
            self.assertEqual([process["pid"] for process in gpu["processes"]], [pid])
        for flags in ((), ("-cpuF",), ("--show-all",), ("-P", "draw,limit"), ("-e", "enc,dec"), ("--id", "0")):
            self.assertRegex(self.module("gpustat", "--no-color", *flags), r"\| +64 / +1024 MB \|", flags)

    def test_nvitop(self):
        for flags in ((), ("--colorful",), ("--only", "0"), ("--compute",)):
            said = self.module("nvitop", "-1", "--ascii", *flags)
            self.assertRegex(said, r"64\.00MiB / 1024MiB", flags)
            self.assertRegex(said, rf"\| +0 +{self.pid} C ", flags)
            self.assertNotRegex(said, rf"\b{self.foreign} C ", flags)
        screen(
            [sys.executable, "-m", "nvitop", "-m", "full"], self.environment, [r"64\.00MiB", rf"{self.pid} C "]
        )

    def test_py3nvml(self):
        said = self.script("py3smi")
        self.assertRegex(said, r"64MiB / +1024MiB")
        self.assertRegex(said, rf"\| +0 +\S+ +{self.pid} ")
        self.assertNotIn(f" {self.foreign} ", said)

    def test_nvsmi(self):
        self.assertIn("mem_total:  1024.0MB", self.script("nvsmi", "ls"))
        self.assertRegex(self.script("nvsmi", "ps"), rf"pid: {self.pid} .* used_memory: +64\.0MB")

    def test_glances(self):
        said = self.module("glances", "--stdout", "gpu.mem", "--stop-after", "2")
        self.assertIn("6.25", said)

    def test_nvtop(self):
        for release in ("bookworm", "trixie"):
            command, environment = of_debian(release, "nvtop", self.environment)
            for flags in ((), ("-C",), ("-p",)):
                wanted = ["paragpu software GPU", r"0\.062Gi/1\.000Gi", rf"{self.pid} +\w+ +0 +Compute"]
                drawn = screen([*command, *flags], environment, wanted)
                self.assertNotRegex(drawn, rf"\b{self.foreign}\b")
        (gpu,) = json.loads(self.says(*command, "-s", environment=environment))
        self.assertEqual((gpu["gpu_util"], gpu["mem_util"], gpu["temp"]), ("0%", "6%", None))

    def test_btop(self):
        command, environment = of_debian("trixie", "btop", self.environment)
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "btop"))
            with open(os.path.join(folder, "btop/btop.conf"), "w", encoding="utf-8") as settings:
                settings.write('shown_boxes = "gpu0"\n')
            environment["XDG_CONFIG_HOME"] = folder
            screen([*command, "--utf-force"], environment, ["paragpu software GPU", r"1\.00 GiB", r"64\.0 MiB"])

    def test_without_a_host_they_say_that_there_is_no_driver(self):
        nowhere = {"PARAGPU_COMMUNICATOR": "unix", "PARAGPU_UNIX_SOCKET": "/nonexistent/paragpud.sock"}
        environment = {**self.environment, **nowhere}
        self.assertIn("Driver Not Loaded", self.module("gpustat", environment=environment, code=1))
        self.assertIn("communicate with the NVIDIA driver", self.says("nvidia-smi", environment=environment, code=9))

    def test_every_function_of_the_binding(self):
        said = json.loads(self.says(sys.executable, os.path.join(HERE, "every_function.py"), "calls"))
        self.assertGreater(said["functions"], 400)
        self.assertEqual(said["failed"], {})

    def test_a_storm_of_users(self):
        self.assertEqual(json.loads(self.says(sys.executable, os.path.join(HERE, "every_function.py"), "storm")), [])


if __name__ == "__main__":
    unittest.main()
