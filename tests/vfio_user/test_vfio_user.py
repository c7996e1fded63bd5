"""The device over vfio-user, in a VM of a QEMU that has vfio-user-pci.

`make test-vfio-user` fetches that QEMU and runs these.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import harness
from harness import vm

# A program that uses the device until the host ends it; then another try.
DEATH = """
/opt/paragpu/programs/vectorAdd --seconds 10000 >/tmp/output 2>&1 &
program=$!
until ls -l /proc/$program/fd | grep -q paragpu0; do kill -0 $program || exit 9; sleep 0.1; done
echo "@test ready"
wait $program
echo "@test program ended with $?"
cat /tmp/output
timeout 60 /opt/paragpu/programs/vectorAdd 2>&1
echo "@test another ended with $?"
dmesg | grep -E 'WARNING|BUG:|Oops|Call Trace|soft lockup|hung task' && echo "@test dirty"
exit 0
"""


# How many pages a program had pinned.
PINS = """
/opt/paragpu/programs/vectorAdd || exit
echo 1 >/proc/sys/vm/stat_refresh
echo "@pins $(sed -n 's/^nr_foll_pin_acquired //p' /proc/vmstat)"
"""

# Two programs that compare every byte they copy, and how many pages were ever
# pinned, while the host moves their sessions.
MOVES = """
/opt/paragpu/programs/vectorAdd --seconds {seconds} >/tmp/vectorAdd 2>&1 & one=$!
/opt/paragpu/programs/copies --size 4194304 --seconds {seconds} >/tmp/copies 2>&1 & other=$!
pins() {{
    echo 1 >/proc/sys/vm/stat_refresh
    sed -n 's/^nr_foll_pin_acquired //p' /proc/vmstat
}}
until [ "$(pins)" -gt 8192 ]; do
    kill -0 $one && kill -0 $other || break
    sleep 0.2
done
echo "@test ready"
while kill -0 $one 2>/dev/null; do
    echo "@pins $(pins)"
    sleep 0.5
done
wait $one || {{ echo "vectorAdd ended with $?"; cat /tmp/vectorAdd; }}
wait $other || {{ echo "copies ended with $?"; cat /tmp/copies; }}
echo 1 >/proc/sys/vm/stat_refresh
released=$(sed -n 's/^nr_foll_pin_released //p' /proc/vmstat)
[ "$(pins)" = "$released" ] || echo "pages stay pinned: $(pins) - $released"
dmesg | grep -E 'WARNING|BUG:|Oops|Call Trace|soft lockup|hung task'
echo "@test over"
"""

# A program that compares every byte it copies, before and after a suspend to memory,
# whose end is a reset of the VM's devices. Then one that starts after it.
SLEEPS = """
pins() {
    echo 1 >/proc/sys/vm/stat_refresh
    sed -n 's/^nr_foll_pin_acquired //p' /proc/vmstat
}
/opt/paragpu/programs/copies --size 4194304 --seconds 30 >/tmp/copies 2>&1 & program=$!
until [ "$(pins)" -gt 4096 ]; do
    kill -0 $program || break
    sleep 0.2
done
echo 0 >/sys/class/rtc/rtc0/wakealarm
echo +2 >/sys/class/rtc/rtc0/wakealarm
echo deep >/sys/power/mem_sleep
echo mem >/sys/power/state || exit 9
awake=$(pins)
kill -0 $program || echo "the program did not run until the suspend"
wait $program || { echo "copies ended with $?"; cat /tmp/copies; }
old=$(pins)
/opt/paragpu/programs/vectorAdd >/tmp/output 2>&1 || cat /tmp/output
echo "@pins $((old - awake)) $(($(pins) - old))"
exit 0
"""


@unittest.skipUnless(vm.qemu_with_vfio_user(), "tests/tools/fetch-qemu.sh brings a QEMU with vfio-user-pci")
class VfioUser(unittest.TestCase):
    """One VM whose device is a vfio-user-pci."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-test-")
        self.addCleanup(self.folder.cleanup)
        self.initramfs = os.path.join(self.folder.name, "initramfs")
        # A program that lost its host would look for it for as long.
        self.daemon = self.enterContext(harness.Daemon("--set=limits.reconnect=3600000"))
        self.device = vm.Device(self.daemon, "blue", protocol="vfio-user", log=os.path.join(self.folder.name, "device.log"))
        self.addCleanup(self.device.stop)
        self.kernel = vm.build_image(self.initramfs)

    def test_every_program(self):
        programs = [name for name in harness.program_names() if name != "errors"]
        about, runs, said = vm.run_programs(
            self.kernel, self.initramfs, programs, lambda run: None, device=self.device
        )
        said = "\n".join(said)
        self.assertRegex(about.get("qemu", said), r"^(10\.[1-9]|1[1-9]|[2-9]\d)")
        for run in runs:
            with self.subTest(program=run["program"]):
                self.assertTrue(run["ok"], said)
                self.assertGreater(run["calls"], 0, "the program never reached the backend")
        self.assertEqual(len(runs), len(programs), said)
        self.assertEqual(self.daemon.sessions(), [])

    def test_memory_that_is_not_shared(self):
        # The device works, through its window, and the host says why it is slow:
        # the device process where it is given no memory, the worker where it is
        # given some that QEMU has a copy of.
        backends = {"ram": "memory-backend-ram,id=own,size=2G", "memfd": "memory-backend-memfd,id=own,size=2G,share=off"}
        for name, backend in backends.items():
            said = []
            options = ("-object", backend, "-machine", "memory-backend=own")
            about = vm.boot(self.kernel, self.initramfs, PINS, said.append, device=self.device, options=options)
            self.assertEqual(about.get("status"), 0, said)
            pins = int(said[-1].split()[1])
            with open(self.device.log, encoding="utf-8") as file:
                # Once, for the first VM.
                self.assertEqual(file.read().count("the VM's memory is not shared"), 1)
            self.assertEqual("maps the VM's memory for itself alone" in self.daemon.log(), name == "memfd")
            # One copy of three is tried, and at most twice.
            self.assertLess(pins, 2000)

    def test_a_device_process_that_dies_ends_its_sessions(self):
        lines = []

        def take(line):
            lines.append(line)
            if line == "@test ready":
                self.device.process.send_signal(signal.SIGKILL)

        about = vm.boot(self.kernel, self.initramfs, DEATH, take, device=self.device)
        whole = "\n".join(lines)
        self.assertEqual(about.get("status"), 0, whole)
        self.assertRegex(whole, r"@test program ended with [1-9]")
        self.assertRegex(whole, r"@test another ended with [1-9]")
        self.assertNotIn("@test dirty", whole)
        self.assertEqual(self.daemon.sessions(), [])

    def test_a_reset_ends_direct_copies_but_no_session(self):
        said = []
        about = vm.boot(self.kernel, self.initramfs, SLEEPS, said.append, device=self.device)
        self.assertEqual((about.get("status"), len(said)), (0, 1), said)
        old, new = map(int, said[0].split()[1:])
        # Two pieces of 4 MiB may be pinned before the guest notices.
        self.assertLess(old, 4096)
        self.assertGreater(new, 2000)
        self.assertEqual(self.daemon.sessions(), [])

    def test_sessions_that_move_while_the_host_copies(self):
        # There and back: both programs and their memory, three times.
        other = self.enterContext(harness.Daemon())
        reports, pins, said, threads = [], [], [], []

        def move():
            here, there = self.daemon, other
            for _ in range(3):
                command = [harness.binary("paragpu"), "--control", here.control, "migrate", "--vm", "blue"]
                command += ["--to", f"unix://{there.socket}"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=120)
                reports.append((done.returncode, done.stderr))
                here, there = there, here
            pins.clear()

        def take(line):
            if line == "@test ready":
                threads.append(threading.Thread(target=move))
                threads[0].start()
            elif line.startswith("@pins "):
                pins.append(int(line.split()[1]))
            else:
                said.append(line)

        about = vm.boot(self.kernel, self.initramfs, MOVES.format(seconds=40), take, device=self.device)
        whole = "\n".join(said)
        self.assertTrue(threads, whole)
        threads[0].join()
        self.assertEqual((about.get("status"), said), (0, ["@test over"]))
        self.assertEqual([code for code, _ in reports], [0, 0, 0], reports)
        # The workers they came to reach the VM's memory as well.
        self.assertGreater(len(pins), 1, "the moves took all the time that the programs ran")
        self.assertGreater(pins[-1], pins[0])
        self.assertEqual(self.daemon.sessions() + other.sessions(), [])
