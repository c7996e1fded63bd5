"""A VM that boots a disk image through its own boot loader."""

import glob
import os
import re
import socket
import subprocess
import tempfile
import time

from . import PATIENCE, ROOT, owned

IMAGES = os.path.join(ROOT, "vm-images")
# The prefix of the guest's lines that are for us.
BEGIN, END = "@paragpu begin", "@paragpu end"


def accelerator():
    """The acceleration that run-vm.sh chose: a /dev/kvm that opens is no proof."""
    chosen = os.environ.get("PARAGPU_ACCEL")
    if chosen:
        return chosen
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        known = os.path.join(ROOT, ".cache", "kernel", "accel-" + file.read().strip())
    if os.path.exists(known):
        with open(known, encoding="ascii") as file:
            return file.read().strip()
    return "tcg"


def make_seed(output, *options):
    """Makes a disk with cloud-init's data."""
    subprocess.run(
        [os.path.join(IMAGES, "make-seed.sh"), "--output", output, *options], check=True, stdout=subprocess.DEVNULL
    )


def firmware():
    """QEMU's options for UEFI, with variables of this boot's own; None where OVMF is not installed."""
    found = sorted(glob.glob("/usr/share/OVMF/OVMF_CODE*.fd"))
    plain = [path for path in found if not re.search(r"secboot|snakeoil|\.ms\.", path)]
    return ["-drive", f"if=pflash,format=raw,readonly=on,file={plain[0]}"] if plain else None


class Machine:
    """A VM on an image, which is not written to. Its first serial port is its
    console, the second carries the guest's messages to the test."""

    def __init__(self, image, *, seed=None, device=None, network=False, options=(), memory="2G"):
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-image-")
        self.console_path = os.path.join(self.folder.name, "console.log")
        self.said_path = os.path.join(self.folder.name, "said.log")
        self.errors_path = os.path.join(self.folder.name, "qemu.log")
        self.monitor_path = os.path.join(self.folder.name, "monitor")
        accel = accelerator()
        command = [
            os.environ.get("PARAGPU_QEMU", "qemu-system-x86_64"),
            *("-accel", "tcg,thread=multi" if accel == "tcg" else accel),
            *("-machine", "q35", "-cpu", "host" if accel == "kvm" else "max"),
            *("-smp", "2", "-m", memory, "-display", "none", "-nodefaults", "-no-user-config", "-no-reboot"),
            *("-drive", f"file={image},if=virtio,snapshot=on"),
            *(("-drive", f"file={seed},format=raw,if=virtio,readonly=on") if seed else ()),
            *("-serial", f"file:{self.console_path}", "-serial", f"file:{self.said_path}"),
            *("-qmp", f"unix:{self.monitor_path},server=on,wait=off"),
            *(
                (
                    *("-chardev", f"socket,id=paragpu,path={device.socket}"),
                    *("-device", "ivshmem-doorbell,chardev=paragpu,vectors=1"),
                )
                if device
                else ()
            ),
            *(("-netdev", "user,id=network", "-device", "virtio-net-pci,netdev=network") if network else ()),
            *options,
        ]
        with open(self.errors_path, "wb") as errors:
            self.process = subprocess.Popen(owned(command), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    def text(self, path):
        """The current contents of a file."""
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().replace("\r", "")

    def console(self):
        """The console's output."""
        return self.text(self.console_path)

    def wait(self, seconds):
        """Waits until the guest has sent everything or shut down. Returns its output between its
        two marks, and its exit status (None if it did not report one)."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            said = self.text(self.said_path)
            if END in said or self.process.poll() is not None:
                break
            time.sleep(0.2)
        said = self.text(self.said_path)
        body = said.split(BEGIN, 1)[-1].split("\n", 1)[-1].split(END)[0]
        status = re.search(rf"^{END} (\d+)$", said, re.MULTILINE)
        return body, int(status[1]) if status else None

    def power_off(self, seconds=120):
        """Presses the button; waits for the guest to go down in order."""
        if self.process.poll() is None:
            with socket.socket(socket.AF_UNIX) as monitor:
                monitor.connect(self.monitor_path)
                monitor.sendall(b'{"execute":"qmp_capabilities"}{"execute":"system_powerdown"}')
                try:
                    self.process.wait(seconds)
                except subprocess.TimeoutExpired:
                    return False
        return self.process.returncode == 0

    def stop(self):
        """Ends the VM."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
