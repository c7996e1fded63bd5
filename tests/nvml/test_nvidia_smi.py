"""Debian's nvidia-smi, of 12 and 13, in a guest: `make test-nvidia-smi`.

PARAGPU_TEST_NVIDIA_SMI names the folder of the programs (default: .cache/nvidia-smi,
where fetch-nvidia-smi.sh puts them).
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

FOLDER = os.environ.get("PARAGPU_TEST_NVIDIA_SMI", os.path.join(harness.ROOT, ".cache/nvidia-smi"))
RELEASES = sorted(os.listdir(FOLDER))
# Takes 64 MiB, says so, and keeps them until its input ends.
HOLDER = (
    "import ctypes, sys; cuda = ctypes.CDLL('libcuda.so.1'); context = ctypes.c_void_p(); place = ctypes.c_uint64();"
    "assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0);"
    "assert not cuda.cuCtxSetCurrent(context) and not cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(64 << 20));"
    "print('holds', flush=True); sys.stdin.read()"
)


class NvidiaSmi(unittest.TestCase):
    """What it says of a VM's GPU."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = harness.Daemon("--set=limits.memory=1GiB")
        cls.environment = {**os.environ, **cls.daemon.guest_environment("shm")}

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def said(self, *arguments):
        """What each release's program says, by the release; none complains."""
        outputs = {}
        for release in RELEASES:
            command = [os.path.join(FOLDER, release), *arguments]
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""), f"{command}: {done.stdout}")
            outputs[release] = done.stdout
        return outputs

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
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER], env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            self.assertEqual(holder.stdout.readline(), "holds\n")
            for release, output in self.said(*query).items():
                self.assertGreaterEqual(int(output), 64, release)
            self.check_lists(holder.pid)
            holder.stdin.close()

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

    def test_persistence_mode_is_refused(self):
        for release in RELEASES:
            said = []
            for mode in "01":
                command = [os.path.join(FOLDER, release), "-pm", mode]
                done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
                said += re.findall("Insufficient Permissions|already", done.stdout)
            # The mode that the GPU has is no change.
            self.assertEqual(sorted(said), ["Insufficient Permissions", "already"], release)


UUID = (
    "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); uuid = (ctypes.c_ubyte * 16)();"
    "assert not cuda.cuInit(0) and not cuda.cuDeviceGetUuid_v2(uuid, 0); print(bytes(uuid).hex())"
)

if __name__ == "__main__":
    unittest.main()
