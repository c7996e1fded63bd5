"""CUDA programs that lose the VM's device while they run.

Part of `make soak-module`. Rounds: PARAGPU_TEST_ROUNDS, or 5.
"""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# pylint: disable=wrong-import-position
import harness
from harness import vm

ROUNDS = int(os.environ.get("PARAGPU_TEST_ROUNDS", "5"))
# What a kernel says that has found something wrong with itself.
SPLATS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "splats")
# Programs without memory pinned in the window.
PROGRAMS = ("vectorAdd", "matrixMul", "transpose", "scalarProd")

SCRIPT = """
load() {{
    while [ ! -e /tmp/stop ]; do
        # Unplugged, they look for the host for half a minute.
        timeout 90 /opt/paragpu/programs/$1 >/tmp/output.$1 2>&1
        code=$?
        echo "$1 $code"
        echo $code >>/tmp/codes.$1
    done
}}
good() {{ grep -c '^0$' /tmp/codes.$1 2>/dev/null; }}
all_get_on() {{
    for program in {programs}; do
        goal=$(($(good $program) + 2))
        until [ "$(good $program)" -ge $goal ]; do sleep 0.1; done
    done
}}
for program in {programs}; do
    >/tmp/codes.$program
    load $program &
done
for round in $(seq {rounds}); do
    all_get_on
    echo "@paragpu unplug"
    while [ -e /dev/paragpu0 ]; do sleep 0.05; done
    echo "@paragpu plug"
    until [ -e /dev/paragpu0 ]; do sleep 0.05; done
done
all_get_on
touch /tmp/stop
wait
dmesg | grep -E -f /root/splats && exit 1
echo "references $(cat /sys/module/paragpu/refcnt)"
"""


class Replug(unittest.TestCase):
    """Programs end well or with an error; they neither hang nor die of a signal."""

    def test_programs_lose_the_device_and_find_it_again(self):
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="paragpu-test-"))
        initramfs = os.path.join(folder, "initramfs")
        kernel = vm.build_image(initramfs, ((SPLATS, "root/splats"),))
        daemon = self.enterContext(harness.Daemon())
        # Few enough that hotplug.py can keep their descriptors from QEMU.
        device = self.enterContext(vm.Device(daemon, "replug", arguments=("--channels=16",)))
        script = SCRIPT.format(programs=" ".join(PROGRAMS), rounds=ROUNDS)
        lines = []
        about = vm.boot(kernel, initramfs, script, lines.append, device=device, timeout=1800, pluggable=True)
        whole = "\n".join(lines)
        self.assertEqual(about.get("status"), 0, whole)
        codes = [(line.split()[0], int(line.split()[1])) for line in lines if line.split()[:1] and line.split()[0] in PROGRAMS]
        for program in PROGRAMS:
            self.assertGreaterEqual(codes.count((program, 0)), 2 * (ROUNDS + 1), whole)
        for program, code in codes:
            self.assertLess(code, 124, f"{program} ended with {code}\n{whole}")
        self.assertTrue(any(code for _, code in codes), f"no program noticed\n{whole}")
        self.assertIn("references 0", lines)
        self.assertEqual(daemon.sessions(), [])
