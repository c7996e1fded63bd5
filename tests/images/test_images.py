"""The disk images: each boots through its own boot loader, loads the module by
itself and runs CUDA programs; the user-data that makes any Debian cloud
image such a machine; and the host's packages under systemd.

Needs root (as making images does) and what `make test-images` installs. Heavy:
each boot takes a minute or two without KVM.
"""

import glob
import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

import harness
from harness import image, vm

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(harness.ROOT, "out", "images")
BUILD = os.path.join(harness.ROOT, "vm-images", "build-image.py")
PACK = os.path.join(harness.ROOT, "vm-images", "packages", "build.sh")
RELEASES = {"bookworm": 12, "trixie": 13}
# A copy, a stream, a graph, a texture, a process that forks: enough to see that
# an image is whole. `make demo` runs them all.
PROGRAMS = ("vectorAdd", "matrixMul", "reduction", "streamsAndEvents", "graphs", "copies", "printf", "twoProcesses")
# Seconds for a boot and all that the guest does, without KVM on a busy machine.
PATIENCE = 1500

# cloud-init runs this early in its last stage; the check waits for all of it.
VENDOR_DATA = """#!/bin/sh
mkdir -p /run/seed
mount -o ro /dev/disk/by-label/CIDATA /run/seed
systemd-run --no-block --unit=image-check --property=After=cloud-final.service \\
    sh /run/seed/check /run/seed '{argument}'
"""


def path(release, kind="paragpu"):
    """Where `make images` lays an image."""
    return os.path.join(OUT, f"debian-{RELEASES[release]}-{kind}.qcow2")


def make_seed(folder, check, argument, *options):
    """cloud-init's disk in this folder, with one of the checks of this folder, which gets the argument."""
    vendor = os.path.join(folder, "vendor-data")
    with open(vendor, "w", encoding="utf-8") as file:
        file.write(VENDOR_DATA.replace("{argument}", argument))
    output = os.path.join(folder, "seed.img")
    files = (f"--file={os.path.join(HERE, source)}={name}" for source, name in ((check, "check"), ("report", "report")))
    arguments = [*files, f"--vendor-data={vendor}", *options]
    image.make_seed(output, *(part for one in arguments for part in one.split("=", 1)))
    return output


def no_user_data(folder):
    """A user-data in this folder that does nothing."""
    nothing = os.path.join(folder, "user-data")
    with open(nothing, "w", encoding="utf-8") as file:
        file.write("#cloud-config\n{}\n")
    return nothing


def holds(case, machine, expected):
    """All checks that run in the machine must hold, these among them."""
    said, status = machine.wait(PATIENCE)
    whole = said + "\n--- console\n" + "\n".join(machine.console().splitlines()[-60:]) + machine.text(machine.errors_path)
    results = [json.loads(line) for line in said.splitlines() if line.startswith('{"test"')]
    for result in results:
        with case.subTest(result["test"]):
            case.assertTrue(result["ok"], whole)
    case.assertEqual(status, 0, whole)
    case.assertLessEqual(expected, {result["test"] for result in results}, whole)
    case.assertTrue(machine.power_off(), "the guest does not power off")


class Case(unittest.TestCase):
    """A daemon with the software GPU, and the device of one VM."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-test-")
        self.addCleanup(self.folder.cleanup)
        self.daemon = self.enterContext(harness.Daemon())
        self.device = self.enterContext(vm.Device(self.daemon, "image"))

    def seed(self, *options):
        """cloud-init's disk, with the check and its programs."""
        tcp = "10.0.2.2:" + self.daemon.addresses["tcp"].rsplit(":", 1)[1]
        programs = (f"--file={os.path.join(harness.PROGRAMS, name)}=programs/{name}" for name in PROGRAMS)
        return make_seed(self.folder.name, "check", tcp, *programs, *options)

    def boots(self, disk, seed, options=()):
        """Boots an image; the guest's checks must all hold."""
        with image.Machine(disk, seed=seed, device=self.device, network=True, options=options) as machine:
            holds(self, machine, set(PROGRAMS) | {"module-loaded-by-itself", "by-pci", "by-tcp"})
        self.assertEqual(self.daemon.sessions(), [])

    def plain_seed(self):
        """A seed with a user-data that does nothing."""
        return self.seed(f"--user-data={no_user_data(self.folder.name)}")


class Boots(Case):
    """The images of `make images`."""

    def test_debian_12(self):
        self.boots(path("bookworm"), self.plain_seed())

    def test_debian_13(self):
        self.boots(path("trixie"), self.plain_seed())

    def test_debian_12_by_uefi(self):
        firmware = image.firmware()
        if not firmware:
            self.skipTest("OVMF is not installed")
        self.boots(path("bookworm"), self.plain_seed(), firmware)

    def test_debian_13_by_uefi(self):
        firmware = image.firmware()
        if not firmware:
            self.skipTest("OVMF is not installed")
        self.boots(path("trixie"), self.plain_seed(), firmware)


class UserData(Case):
    """cloud/user-data, as it is, in cloud images without paragpu and without a
    Debian mirror in reach."""

    def installs(self, release):
        packages = os.path.join(OUT, f"debian-{RELEASES[release]}-packages")
        self.boots(path(release, "plain"), self.seed(f"--packages={packages}"))

    def test_installs_in_debian_12(self):
        self.installs("bookworm")

    def test_installs_in_debian_13(self):
        self.installs("trixie")


class Host(unittest.TestCase):
    """The host's packages in a plain cloud image: the daemon's unit under systemd."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-test-")
        self.addCleanup(self.folder.cleanup)

    def upholds(self, release):
        """Installs, uses, crashes, upgrades and removes the daemon in an image without paragpu."""
        second = os.path.join(self.folder.name, "second")
        mover = os.path.join(self.folder.name, "guest-mover")
        subprocess.run([PACK, second, "0.1.0+upgrade"], check=True, stdout=subprocess.DEVNULL)
        source = os.path.join(harness.ROOT, "tests", "vm", "guest-mover.c")
        subprocess.run(["cc", "-O2", "-o", mover, source, "-ldl"], check=True)
        files = {mover: "programs/guest-mover", os.path.join(harness.PROGRAMS, "vectorAdd"): "programs/vectorAdd"}
        for version, packages in (("first", os.path.join(harness.ROOT, "out", "packages")), ("second", second)):
            for package in glob.glob(f"{packages}/*.deb"):
                if "-dkms_" not in package:
                    files[package] = f"{version}/{os.path.basename(package)}"
        options = (f"--file={source}={place}" for source, place in files.items())
        seed = make_seed(self.folder.name, "host", "", f"--user-data={no_user_data(self.folder.name)}", *options)
        with image.Machine(path(release, "plain"), seed=seed, network=True) as machine:
            holds(self, machine, {"doctor", "alice-goes-on", "upgraded", "purge"})

    def test_debian_12(self):
        self.upholds("bookworm")

    def test_debian_13(self):
        self.upholds("trixie")


class Building(unittest.TestCase):
    """Building images."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-test-")
        self.addCleanup(self.folder.cleanup)
        self.output = os.path.join(self.folder.name, "image.qcow2")

    def test_same_inputs_same_bytes(self):
        """The image that is there, built again from the packages it was built from,
        in a folder that only its owner reads."""
        subprocess.run([BUILD, "bookworm", self.output], check=True)
        with open(path("bookworm").replace(".qcow2", ".manifest"), encoding="utf-8") as file:
            before = [line for line in file if not line.startswith("#")]
        with open(self.output.replace(".qcow2", ".manifest"), encoding="utf-8") as file:
            now = [line for line in file if not line.startswith("#")]
        if before != now:
            self.skipTest("the mirror has newer packages than the image was built from")
        digests = []
        for name in (path("bookworm"), self.output):
            with open(name, "rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        self.assertEqual(*digests)

    def test_interrupted_build_leaves_nothing(self):
        """At two moments: while Debian is unpacked, and while the disk is filled."""
        for sent, status, file, most in (
            (signal.SIGINT, 130, ".image.*/mmdebstrap.*/var/lib/dpkg/info/base-files.list", 300),
            (signal.SIGTERM, 143, ".image.*/root.ext4", 900),
        ):
            with self.subTest(sent):
                # As nohup starts it.
                command = ["env", "--ignore-signal=HUP", BUILD, "bookworm", self.output]
                build = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
                deadline = time.monotonic() + most
                # Looking into the tree would keep what is mounted there busy.
                while not glob.glob(os.path.join(self.folder.name, file)):
                    self.assertIsNone(build.poll(), "the build ended by itself")
                    self.assertLess(time.monotonic(), deadline, f"no {file}")
                    time.sleep(0.1)
                build.send_signal(sent)
                self.assertEqual(build.wait(120), status)
                self.assertEqual(os.listdir(self.folder.name), [])
                with open("/proc/mounts", encoding="utf-8") as mounts:
                    self.assertNotIn(self.folder.name, mounts.read())

    def test_bad_input_is_one_sentence(self):
        for arguments, sentence in (
            (["bookworm", self.output, "--packages", "/nonexistent"], "`make packages` makes them"),
            (["bookworm", self.output, "--size", "4"], "say a size like 4G"),
            (["sarge", self.output], "invalid choice"),
            (["bookworm", self.output, "--fetch", "x"], "--fetch goes with --plain"),
        ):
            with self.subTest(arguments):
                done = subprocess.run([BUILD, *arguments], stderr=subprocess.PIPE, text=True, check=False)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(sentence, done.stderr)
                self.assertEqual(os.listdir(self.folder.name), [])
