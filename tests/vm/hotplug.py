#!/usr/bin/env python3
"""Unplugs and plugs the device of the VM test when the guest asks for it.

usage: hotplug.py QMP-SOCKET OUTPUT-LOG DEVICE-SOCKET ivshmem|vfio-user

Follows what the guest prints: "@paragpu unplug", then "@paragpu plug", as
often as it likes.
"""

import array
import json
import os
import socket
import sys
import time


class Qmp:
    """QEMU's control socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rw")
        self.events = []
        json.loads(self.lines.readline())
        self.do("qmp_capabilities")

    def read(self):
        line = self.lines.readline()
        if not line:
            sys.exit("hotplug: QEMU is gone")
        print(line, end="", flush=True)
        return json.loads(line)

    def do(self, command, **arguments):
        self.lines.write(json.dumps({"execute": command, "arguments": arguments}))
        self.lines.flush()
        self.answer(command)

    def answer(self, command):
        while True:
            answer = self.read()
            if "error" in answer:
                sys.exit(f"hotplug: {command}: {answer['error']['desc']}")
            if "return" in answer:
                return
            self.events.append(answer)

    def wait_for(self, event, **data):
        while True:
            for seen in self.events:
                if seen["event"] == event and data.items() <= seen["data"].items():
                    return
            self.events.append(self.read())


# More descriptors than the device had.
OCCUPIED = 32


def occupy_descriptors(qmp):
    """Keeps QEMU from using again the descriptor numbers that it just closed.

    Without KVM, QEMU goes on polling the number of the interrupt's eventfd
    after the device is gone, and crashes when whatever gets that number is
    readable. Eventfds that nobody rings never are.
    """
    for _ in range(OCCUPIED):
        eventfd = os.eventfd(0)
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [eventfd]))]
        message = json.dumps({"execute": "add-fd"}).encode()
        qmp.socket.sendmsg([message], passed)
        qmp.answer("add-fd")
        os.close(eventfd)


def requests(path):
    """What the guest asks for, in order, as it asks."""
    seen = 0
    while True:
        if os.path.exists(path):
            with open(path, errors="replace") as log:
                lines = [line.strip() for line in log if line.endswith("\n")]
            asked = [line for line in lines if line in ("@paragpu unplug", "@paragpu plug")]
            # A second boot begins its log anew.
            seen = min(seen, len(asked))
            yield from asked[seen:]
            seen = len(asked)
        time.sleep(0.05)


def unplug(qmp, protocol):
    """Takes the device out."""
    qmp.events.clear()
    qmp.do("device_del", id="device")
    qmp.wait_for("DEVICE_DELETED", device="device")
    if protocol == "ivshmem":
        qmp.do("chardev-remove", id="paragpu")
        occupy_descriptors(qmp)


def plug(qmp, protocol, device_socket):
    """Puts the device in."""
    if protocol == "vfio-user":
        address = {"type": "unix", "path": device_socket}
        qmp.do("device_add", driver="vfio-user-pci", id="device", bus="plug", socket=address)
        return
    address = {"type": "unix", "data": {"path": device_socket}}
    backend = {"type": "socket", "data": {"addr": address, "server": False}}
    qmp.do("chardev-add", id="paragpu", backend=backend)
    qmp.do(
        "device_add",
        driver="ivshmem-doorbell",
        id="device",
        bus="plug",
        chardev="paragpu",
        vectors=1,
    )


def main():
    qmp_socket, log, device_socket, protocol = sys.argv[1:]
    qmp = None
    for request in requests(log):
        qmp = qmp or Qmp(qmp_socket)
        if request == "@paragpu unplug":
            unplug(qmp, protocol)
        else:
            plug(qmp, protocol, device_socket)


if __name__ == "__main__":
    main()
