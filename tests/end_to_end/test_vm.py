"""Choosing communicators in a running VM, and vsock in it.

Needs QEMU, and vhost-device-vsock (`make vhost-vsock`): skipped without.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import types
import unittest

import harness
from harness import vm

# The guest's script prints what it runs after this mark, so that each command's output is found.
MARK = "@test "

# Run in the VM before the programs: errors for missing devices.
BAD_INPUT = """
ask() {
    echo "@test $1"
    shift
    env "$@" /opt/paragpu/programs/vectorAdd 2>&1
    echo "exit $?"
}
# The device has three channels; a file that is open has one.
exec 3</dev/paragpu0 4</dev/paragpu0
ask "last channel" PARAGPU_COMMUNICATOR=pci
exec 5</dev/paragpu0
ask "no channel" PARAGPU_COMMUNICATOR=pci
ask "no channel but vsock" PARAGPU_LOG_LEVEL=info PARAGPU_VSOCK_PORT=7014
exec 3<&- 4<&- 5<&-
ask "no port" PARAGPU_COMMUNICATOR=vsock
ask "nobody listens" PARAGPU_COMMUNICATOR=vsock PARAGPU_VSOCK_PORT=7015
ask "refused" PARAGPU_COMMUNICATOR=vsock PARAGPU_VSOCK_PORT=7017
ask "auto says its way" PARAGPU_LOG_LEVEL=info PARAGPU_VSOCK_PORT=7014
ask "auto passes over" PARAGPU_LOG_LEVEL=info PARAGPU_PCI_DEVICE=/dev/none PARAGPU_VSOCK_PORT=7015 \\
    PARAGPU_TCP_ADDRESS={tcp}
echo "@test doctor"
PARAGPU_VSOCK_PORT=7014 PARAGPU_TCP_ADDRESS={tcp} paragpu doctor --side guest
echo "@test conformance"
modprobe vsock_loopback
PARAGPU_TEST_VSOCK=1 /opt/tests/stream vsock 2>&1
echo "@test kernel vsock"
mkdir -p /tmp/host
paragpud --device software --socket /tmp/host/guests --control /tmp/host/control --vsock 7016 \\
    --print-addresses --log warn --set software.threads=1 >/tmp/host/addresses &
daemon=$!
until [ -s /tmp/host/addresses ]; do kill -0 $daemon || break; sleep 0.1; done
PARAGPU_COMMUNICATOR=vsock PARAGPU_VSOCK_CID=1 PARAGPU_VSOCK_PORT=7016 \\
    /opt/paragpu/programs/copies 2>&1
echo "exit $?"
paragpu status --control /tmp/host/control -o json
paragpud --device software --socket /tmp/host/other --control /tmp/host/other-control --state /tmp/host/other-state \\
    --vsock 7016 2>&1
echo "exit $?"
kill $daemon
wait $daemon
echo "@test no device"
# Connections that are still closing hold the modules for a moment.
for attempt in $(seq 200); do
    rmmod vsock_loopback vmw_vsock_virtio_transport 2>/dev/null
    grep -q -e '^vsock_loopback ' -e '^vmw_vsock_virtio_transport ' /proc/modules || break
    sleep 0.1
done
PARAGPU_COMMUNICATOR=vsock PARAGPU_VSOCK_PORT=7014 /opt/paragpu/programs/vectorAdd 2>&1
exit 0
"""


def stream_tests():
    """The test program of the stream communicators, of a build of all as `make test` has it."""
    command = ["cargo", "test", "--quiet", "--workspace", "--no-run", "--message-format=json"]
    done = subprocess.run(command, cwd=harness.ROOT, stdout=subprocess.PIPE, check=True)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    return next(
        message["executable"]
        for message in messages
        if message.get("executable") and message["target"]["name"] == "paragpu_communicator_stream"
    )


@unittest.skipUnless(shutil.which("qemu-system-x86_64"), "qemu-system-x86_64 is not installed")
@unittest.skipUnless(vm.vhost_device_vsock(), "vhost-device-vsock is not there: `make vhost-vsock` builds it")
class Vm(unittest.TestCase):
    """One VM, several ways to its host."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-test-")
        self.addCleanup(self.folder.cleanup)
        self.initramfs = os.path.join(self.folder.name, "initramfs")
        self.vsock = self.enterContext(vm.Vsock("blue"))
        self.daemon = self.enterContext(harness.Daemon(f"--vsock-unix={self.vsock.listener}"))
        self.device = self.enterContext(vm.Device(self.daemon, "blue", ["--channels=3"]))
        self.tcp = "10.0.2.2:" + self.daemon.addresses["tcp"].rsplit(":", 1)[1]

    def test_programs_on_a_newer_kernel(self):
        """The programs that use the device and its communicator differently. Over vsock most
        of all: from Linux 6.12 on, large writes would stall. The demo runs every
        program on this Debian's kernel."""
        found = vm.newer_kernel()
        if not found:
            self.skipTest("Debian 13's kernel is not there: kernel-module/build-against-trixie.sh brings it")
        kernel, module = found
        vm.pack_image(self.initramfs, kernel, ("--module", module))
        ways = ("vsock", "tcp", "pci")
        programs = ["copies", "mappedMemory", "streamsAndEvents", "twoProcesses"]
        about, runs, said = vm.run_programs(
            kernel,
            self.initramfs,
            programs,
            lambda run: None,
            communicators=ways,
            device=self.device,
            vsock=self.vsock,
            tcp=self.daemon.addresses["tcp"],
        )
        said = "\n".join(said)
        self.assertEqual(about.get("guest_kernel"), os.path.basename(kernel), said)
        for run in runs:
            with self.subTest(program=run["program"], communicator=run["communicator"]):
                self.assertTrue(run["ok"], said)
                self.assertGreater(run["calls"], 0, "the program never reached the backend")
        self.assertEqual(len(runs), len(ways) * len(programs), said)
        self.assertEqual(self.daemon.sessions(), [])

    def test_ways_are_chosen_and_bad_ones_explained(self):
        files = [
            (stream_tests(), "/opt/tests/stream"),
            (harness.binary("paragpud"), "/usr/bin/paragpud"),
            (harness.binary("paragpu-worker"), "/usr/bin/paragpu-worker"),
        ]
        kernel = vm.build_image(self.initramfs, files)
        # A daemon that has nothing to give: its device does not exist.
        empty = f"--vsock-unix=blue={self.vsock.end}_7017"
        self.enterContext(harness.Daemon(empty, "--set=device.indices=31"))
        lines = []
        script = BAD_INPUT.replace("{tcp}", self.tcp)
        about = vm.boot(
            kernel,
            self.initramfs,
            script,
            lines.append,
            device=self.device,
            vsock=self.vsock,
            tcp=self.tcp,
        )
        whole = "\n".join(lines)
        self.assertEqual(about.get("status"), 0, whole)
        said = dict(part.split("\n", 1) for part in whole.split(MARK)[1:])

        expected = {
            "last channel": ["^exit 0$"],
            "no channel": [
                "^paragpu: all channels of the device /dev/paragpu0 are in use by other processes of this VM: end one"
            ],
            "no channel but vsock": [
                "^paragpu: skipped: all channels of the device /dev/paragpu0",
                "^paragpu: device 0 uses vsock$",
                "^exit 0$",
            ],
            "no port": ["`communicator` is \"vsock\", but vsock.port names no port"],
            "nobody listens": ["^paragpu: no host answers at vsock 2:7015; is paragpud running there with `vsock.port`"],
            "refused": ["^paragpu: the host refuses a session: ."],
            "auto says its way": ["^paragpu: device 0 uses pci$", "^exit 0$"],
            "auto passes over": [
                "^paragpu: skipped: no host answers at vsock 2:7015",
                "^paragpu: device 0 uses tcp$",
                "^exit 0$",
            ],
            "doctor": [
                "ok +pci .*programs use this$",
                "ok +vsock +2:7014: 1 device, protocol",
                r"ok +tcp +10\.0\.2\.2",
            ],
            "conformance": [r"^test result: ok\. (6[0-9]|[7-9][0-9]) passed"],
            "kernel vsock": [
                "^exit 0$",
                '"begun": ?[1-9]',
                "^paragpud: cannot listen at vsock port 7016: Address (already )?in use",
            ],
            "no device": ["^paragpu: no host answers at vsock 2:7014; this machine has no vsock device"],
        }
        for mark, patterns in expected.items():
            with self.subTest(mark):
                for pattern in patterns:
                    self.assertRegex(said.get(mark, whole), re.compile(pattern, re.MULTILINE))
        self.assertEqual(self.daemon.sessions(), [])


# Runs a program, and opens the device until its device process, which is killed meanwhile, no longer
# serves it.
UNSERVED = """
/opt/paragpu/programs/vectorAdd --seconds 10000 >/tmp/running 2>&1 &
program=$!
until ls -l /proc/$program/fd | grep -q paragpu0; do kill -0 $program || exit 9; sleep 0.1; done
echo served
while (exec 3</dev/paragpu0) 2>/tmp/said; do sleep 0.1; done
cat /tmp/said
wait $program
echo "ended with $?"
cat /tmp/running
/opt/paragpu/programs/vectorAdd 2>&1
PARAGPU_COMMUNICATOR=auto /opt/paragpu/programs/vectorAdd 2>&1
exit 0
"""


@unittest.skipUnless(shutil.which("qemu-system-x86_64"), "qemu-system-x86_64 is not installed")
class NoDevice(unittest.TestCase):
    """A VM whose device process is killed."""

    def test_programs_say_so(self):
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="paragpu-test-"))
        initramfs = os.path.join(folder, "initramfs")
        kernel = vm.build_image(initramfs)
        # A program that lost its host would look for it for as long.
        daemon = self.enterContext(harness.Daemon("--set=limits.reconnect=3600000"))
        device = self.enterContext(vm.Device(daemon, "alone"))
        lines = []

        def hear(line):
            lines.append(line)
            if line == "served":
                device.process.kill()

        vm.boot(kernel, initramfs, UNSERVED, hear, device=device)
        said = lines[lines.index("served") + 1 :]
        self.assertIn("/dev/paragpu0: No such device", said[0], lines)
        reason = "no host answers at the device /dev/paragpu0; its process on the host has ended, "
        self.assertEqual(sum(line.startswith(f"paragpu: {reason}") for line in said), 2, lines)
        # The program that was running ends with its session.
        self.assertIn("ended with 1", said)
        self.assertTrue(any(reason in line and " is over: " in line for line in said), lines)
        self.assertEqual(daemon.sessions(), [])


@unittest.skipUnless(shutil.which("qemu-system-x86_64"), "qemu-system-x86_64 is not installed")
class NoDaemon(unittest.TestCase):
    """A VM with the device on a host without a daemon. Without KVM the refusal comes while
    the hello is being sent."""

    def test_programs_say_so(self):
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="paragpu-test-"))
        initramfs = os.path.join(folder, "initramfs")
        kernel = vm.build_image(initramfs)
        nobody = types.SimpleNamespace(socket=os.path.join(folder, "paragpud.sock"))
        device = self.enterContext(vm.Device(nobody, "alone"))
        script, lines = "for try in $(seq 5); do /opt/paragpu/programs/vectorAdd 2>&1; done; exit 0", []
        vm.boot(kernel, initramfs, script, lines.append, device=device)
        said = [line for line in lines if line.startswith("paragpu: ")]
        refusal = f"paragpu: the host refuses a session: no paragpu daemon runs on the host of this VM ({nobody.socket}: "
        self.assertEqual([line.startswith(refusal) for line in said], 5 * [True], lines)
