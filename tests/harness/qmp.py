"""QEMU's control socket, and helpers to plug and unplug the device."""

import array
import json
import os
import socket

# More descriptors than the device has.
OCCUPIED = 32


class QmpError(RuntimeError):
    """QEMU has exited, or refused a command."""


class Qmp:
    """A connection to QEMU's control socket; `show` receives each line."""

    def __init__(self, path, show=lambda line: None):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self.lines = self.socket.makefile("rw")
        self.show, self.events = show, []
        json.loads(self.lines.readline())
        self.do("qmp_capabilities")

    def close(self):
        """Ends the connection."""
        self.lines.close()
        self.socket.close()

    def read(self):
        """The next message."""
        line = self.lines.readline()
        if not line:
            raise QmpError("QEMU is gone")
        self.show(line)
        return json.loads(line)

    def do(self, command, **arguments):
        """Gives a command; returns its answer."""
        self.lines.write(json.dumps({"execute": command, "arguments": arguments}))
        self.lines.flush()
        return self.answer(command)

    def answer(self, command):
        """The answer to the command that was given last; events are kept."""
        while True:
            answer = self.read()
            if "error" in answer:
                raise QmpError(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
            self.events.append(answer)

    def wait_for(self, event, **data):
        """Waits for an event with such data, one that came already included."""
        while True:
            for seen in self.events:
                if seen["event"] == event and data.items() <= seen.get("data", {}).items():
                    return
            self.events.append(self.read())


def occupy_descriptors(qmp, count):
    """Has QEMU open so many descriptors, the lowest that are free; their sets, by which
    they are freed again. They are eventfds that nobody rings."""
    sets = []
    for _ in range(count):
        eventfd = os.eventfd(0)
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [eventfd]))]
        message = json.dumps({"execute": "add-fd"}).encode()
        qmp.socket.sendmsg([message], passed)
        sets.append(qmp.answer("add-fd")["fdset-id"])
        os.close(eventfd)
    return sets


def unplug(qmp, protocol):
    """Takes the device out; the guest has let go of it then.

    Without KVM, QEMU goes on polling the number of the interrupt's eventfd after the
    device is gone, and crashes when whatever gets that number is readable. Descriptors
    that nobody rings get it, if `plug` has left lower ones for all else meanwhile.
    """
    qmp.events.clear()
    qmp.do("device_del", id="device")
    qmp.wait_for("DEVICE_DELETED", device="device")
    if protocol == "ivshmem":
        qmp.do("chardev-remove", id="paragpu")
        occupy_descriptors(qmp, 2 * OCCUPIED)


def plug(qmp, protocol, device_socket):
    """Puts the device in."""
    if protocol == "vfio-user":
        address = {"type": "unix", "path": device_socket}
        qmp.do("device_add", driver="vfio-user-pci", id="device", bus="plug", socket=address)
        return
    address = {"type": "unix", "data": {"path": device_socket}}
    backend = {"type": "socket", "data": {"addr": address, "server": False}}
    lower = occupy_descriptors(qmp, OCCUPIED)
    qmp.do("chardev-add", id="paragpu", backend=backend)
    qmp.do(
        "device_add",
        driver="ivshmem-doorbell",
        id="device",
        bus="plug",
        chardev="paragpu",
        vectors=1,
    )
    for number in lower:
        qmp.do("remove-fd", **{"fdset-id": number})
