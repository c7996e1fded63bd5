"""A virtual machine controlled from outside: its device is plugged and unplugged, and
QEMU's own migration takes it to another QEMU of this host."""

import os
import re
import subprocess
import tempfile
import time

from . import owned
from .qmp import Qmp, QmpError, plug, unplug

# Maximum wait for a guest's output on a busy machine without KVM, in seconds.
PATIENCE = 120


def vsock_options(vsock):
    """QEMU's, for a process of the host that reads and writes the VM's memory."""
    return [
        *("-object", "memory-backend-memfd,id=ram,size=1G,share=on", "-machine", "memory-backend=ram"),
        *("-chardev", f"socket,id=vsock,path={vsock.socket}"),
        *("-device", "vhost-user-vsock-pci,chardev=vsock"),
    ]


class Machine:
    """One QEMU with a free PCIe port and a network card, in which an initramfs runs.

    `incoming`: it waits for a machine that migrates; else it boots. `vsock` is its
    Vsock, if it has one.
    """

    def __init__(self, name, kernel, initramfs, incoming=False, vsock=None):
        self.name, self.process, self.qmp = name, None, None
        self.folder = tempfile.TemporaryDirectory(prefix=f"paragpu-{name}-")
        self.output = self.path("output.log")
        self.migration = f"unix:{self.path('migration')}"
        self.command = [
            os.environ.get("PARAGPU_QEMU", "qemu-system-x86_64"),
            *("-accel", "tcg,thread=multi", "-M", "q35", "-cpu", "max,phys-bits=39", "-smp", "1", "-m", "1G"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-kernel", os.path.join(kernel, "vmlinuz"), "-initrd", initramfs),
            *("-append", "console=ttyS0 panic=-1 quiet loglevel=5"),
            *("-serial", f"file:{self.path('console.log')}", "-serial", f"file:{self.output}"),
            *("-qmp", f"unix:{self.path('qmp')},server=on,wait=off"),
            *("-device", "pcie-root-port,id=plug,slot=1,pref64-reserve=2G"),
            *("-netdev", "user,id=network", "-device", "virtio-net-pci,netdev=network,romfile="),
            *(("-incoming", self.migration) if incoming else ()),
            *(vsock_options(vsock) if vsock else ()),
        ]

    def path(self, name):
        """A file of this machine's."""
        return os.path.join(self.folder.name, name)

    def start(self):
        """Starts QEMU; returns when it can be steered."""
        with open(self.path("qemu.log"), "wb") as log:
            self.process = subprocess.Popen(
                owned(self.command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        while self.qmp is None:
            try:
                self.qmp = Qmp(self.path("qmp"))
            except OSError:
                if self.process.poll() is not None:
                    raise RuntimeError(f"QEMU ended: {self.read('qemu.log')}") from None
                time.sleep(0.02)
        # QEMU answers everything within this time.
        self.qmp.socket.settimeout(PATIENCE)

    def boot(self):
        """Starts QEMU and waits for its guest. One without KVM may hang before
        its kernel has come up: once more then."""
        self.start()
        if not self.says("^@paragpu begin", 60):
            self.quit()
            self.start()
            self.wait_for("^@paragpu begin")

    def plug(self, device):
        """Puts a Device in; the guest may take a moment to see it."""
        plug(self.qmp, "ivshmem", device.socket)

    def unplug(self):
        """Takes the device out; the guest has let go of it then."""
        unplug(self.qmp, "ivshmem")

    def migrate(self, other):
        """Goes on in another QEMU, that waits for it; this one is paused then.

        Its processor is paused from the beginning: without KVM QEMU 7.2 loses
        some of what processors write while it copies (seen as corrupt lists in
        guest kernels, one migration in three). With two of them guests hung
        afterwards, one in eight.
        """
        self.qmp.do("stop")
        self.qmp.do("migrate", uri=other.migration)
        self.await_status("query-migrate", ("completed",), ("failed", "cancelled"))
        # While it still loads, QEMU takes `cont` for a wish that the state of the
        # source, which is paused, overrules in the end.
        other.await_status("query-status", ("paused",), ("internal-error", "shutdown"))
        other.qmp.do("cont")
        other.await_status("query-status", ("running",), ("internal-error", "shutdown"))

    def await_status(self, query, wanted, failed):
        """Asks QEMU until its status is one of the wanted."""
        deadline = time.monotonic() + PATIENCE
        while True:
            state = self.qmp.do(query)
            if state.get("status") in wanted:
                return
            if state.get("status") in failed or time.monotonic() > deadline:
                raise QmpError(f"{query} of {self.name}: {state}")
            time.sleep(0.02)  # QMP has events for some of these states only

    def read(self, name="output.log"):
        """The contents so far of a file of this machine."""
        if not os.path.exists(self.path(name)):
            return ""
        with open(self.path(name), encoding="utf-8", errors="replace") as file:
            return file.read().replace("\r", "")

    def says(self, pattern, patience=PATIENCE, after=0):
        """Waits for a line that the guest prints after this many characters: the
        match, or None."""
        deadline = time.monotonic() + patience
        while True:
            found = re.compile(pattern, re.MULTILINE).search(self.read(), after)
            if found or time.monotonic() > deadline or self.process.poll() is not None:
                return found
            time.sleep(0.05)

    def wait_for(self, pattern, after=0):
        """The same; raises if it does not come."""
        found = self.says(pattern, after=after)
        if not found:
            logs = "\n".join(self.read(name) for name in ("output.log", "console.log", "qemu.log"))
            raise AssertionError(f"{self.name} never said {pattern!r}:\n{logs}")
        return found

    def goes_on(self, *names):
        """Waits until each of these programs has done two more rounds."""
        now = len(self.read())
        for name in names:
            after = now
            for _ in range(2):
                after = self.wait_for(f"^{name} round [0-9]+\n", after).end()

    def quit(self):
        """Ends QEMU."""
        if self.qmp:
            self.qmp.close()
            self.qmp = None
        if self.process:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None

    def stop(self):
        """Ends QEMU and removes its leftovers."""
        self.quit()
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
