"""Debian's nvidia-smi, of 12 and 13, in a guest: `make test-nvidia-smi`.

PARAGPU_TEST_NVIDIA_SMI names the folder of the programs (default: .cache/nvidia-smi,
where fetch-nvidia-smi.sh puts them), PARAGPU_TEST_DEVICE the device: software
(default) or cuda.
"""

import os
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
# pylint: disable=wrong-import-position
import harness
import holder

FOLDER = os.environ.get("PARAGPU_TEST_NVIDIA_SMI", os.path.join(harness.ROOT, ".cache/nvidia-smi"))
DEVICE = os.environ.get("PARAGPU_TEST_DEVICE", "software")
RELEASES = sorted(os.listdir(FOLDER))


class NvidiaSmi(unittest.TestCase):
    """What it says of a VM's GPU."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon("--set=limits.memory=1GiB", device=DEVICE)
        cls.environment = {**os.environ, **cls.daemon.guest_environment("shm")}

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def says(self, release, *arguments, environment=None):
        """What a release's program says; it does not complain."""
        command = [os.path.join(FOLDER, release), *arguments]
        environment = environment or self.environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), f"{command}: {done.stdout}")
        return done.stdout

    def said(self, *arguments, environment=None):
        """What each says, by the release."""
        return {release: self.says(release, *arguments, environment=environment) for release in RELEASES}

    def test_the_table_shows_the_gpu_and_the_limit(self):
        name = self.daemon.devices()[0]
        for release, output in self.said().items():
            self.assertIn(name[:20], output, release)
            self.assertRegex(output, r"\d+MiB / +1024MiB", release)
            self.assertIn("CUDA Version: 13.0", output, release)

    def test_the_uuid_is_cudas(self):
        command = [sys.executable, "-c", UUID]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=True)
        for release, output in self.said("-L").items():
            found = re.search(r"UUID: GPU-([0-9a-f-]+)", output)
            self.assertEqual(found and found[1].replace("-", ""), done.stdout.strip(), release)

    def test_memory_that_a_program_holds_is_shown(self):
        query = ("--query-gpu=memory.used", "--format=csv,noheader,nounits")
        with holder.holding(self.environment) as pid:
            for release, output in self.said(*query).items():
                self.assertGreaterEqual(int(output), holder.MIB, release)
            self.check_lists(pid)

    def check_lists(self, pid):
        """The process is in every list, by number, name and memory."""
        name = re.escape(os.path.basename(sys.executable))
        query = ("--query-compute-apps=pid,name,used_memory", "--format=csv,noheader")
        for words, row in (
            (query, rf"^{pid}, \S*{name}, \d+ MiB$"),
            ((), rf"^\| +0 +N/A +N/A +{pid} +C +\S*{name} +\d+MiB \|$"),
            (("pmon", "-c", "1"), rf"^ +0 +{pid} +C .*{name[:10]}"),
        ):
            for release, output in self.said(*words).items():
                self.assertRegex(output, re.compile(row, re.MULTILINE), (release, words))
        for release, output in self.said("-q", "-x").items():
            listed = xml.etree.ElementTree.fromstring(output).findall("gpu/processes/process_info/pid")
            self.assertEqual([one.text for one in listed], [str(pid)], release)

    def test_all_of_it_as_xml(self):
        for release, output in self.said("-q", "-x").items():
            gpus = xml.etree.ElementTree.fromstring(output).findall("gpu")
            self.assertEqual(len(gpus), 1, release)
            self.assertEqual(gpus[0].findtext("product_name"), self.daemon.devices()[0], release)

    def test_monitors_print_a_row(self):
        for monitor in ("dmon", "pmon"):
            for release, output in self.said(monitor, "-c", "1").items():
                rows = [line for line in output.splitlines() if not line.startswith("#")]
                self.assertEqual(rows[0].split()[0], "0", (monitor, release))

    def test_a_row_of_all_metrics_is_whole(self):
        for release, output in self.said("dmon", "-c", "1", "-s", "pucvmet").items():
            heading, _, row = output.splitlines()
            self.assertEqual(len(row.split()), len(heading.split()) - 1, (release, output))

    def test_every_cpu_is_near(self):
        for release, output in self.said("topo", "-m").items():
            # With and without the numbers of memory nodes beside it.
            self.assertRegex(output, r"(?m)^GPU0\t X \t0[-,0-9]*\t0", release)
        for release, output in self.said("topo", "-c", "0").items():
            self.assertRegex(output, r"affinity with CPU 0 are:\s+0", release)

    @unittest.skipIf(DEVICE != "software", "needs two GPUs")
    def test_two_gpus_are_apart(self):
        with harness.Daemon("--set=software.devices=2") as daemon:
            environment = {**os.environ, **daemon.guest_environment("shm")}
            for release, output in self.said("topo", "-m", environment=environment).items():
                self.assertRegex(output, r"(?m)^GPU0\t X \tSYS\t", release)
            for release, output in self.said("topo", "-n", "5", "-i", "0", environment=environment).items():
                self.assertRegex(output, r"to device\(s\): +1", release)

    def test_no_field_of_a_gpu_is_an_error(self):
        for release, output in self.said("--help-query-gpu").items():
            names = re.findall(r'^"([a-z][\w.]+)"', output, re.MULTILINE)
            self.assertGreater(len(names), 100, release)
            query = ("--query-gpu=" + ",".join(names), "--format=csv,noheader")
            values = self.says(release, *query).strip().split(", ")
            self.assertEqual(len(values), len(names), release)
            wrong = {name: value for name, value in zip(names, values) if "Error" in value or "Invalid" in value}
            self.assertEqual(wrong, {}, release)

    @unittest.skipIf(DEVICE == "software", "the software GPU has no sensors")
    def test_the_limit_of_power_is_shown(self):
        query = ("--query-gpu=enforced.power.limit", "--format=csv,noheader")
        for release, output in self.said(*query).items():
            self.assertRegex(output, r"^\d+\.\d\d W$", release)

    def test_changes_are_refused(self):
        # nvidia-smi calls some of these a warning, and ends with 0.
        for words in (("-pm", "1"), ("-rgc",), ("-lgc", "300,500"), ("-c", "3"), ("-caa",), ("-p", "0"), ("-mig", "1")):
            for release in RELEASES:
                command = [os.path.join(FOLDER, release), *words]
                done = subprocess.run(
                    command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
                )
                refused = "Insufficient Permissions|does not have permission|not supported|already"
                self.assertRegex(done.stdout, refused, (release, words))
                self.assertEqual(done.stderr, "", (release, words))


UUID = (
    "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); uuid = (ctypes.c_ubyte * 16)();"
    "assert not cuda.cuInit(0) and not cuda.cuDeviceGetUuid_v2(uuid, 0); print(bytes(uuid).hex())"
)

if __name__ == "__main__":
    unittest.main()
