#!/usr/bin/env python3
"""Unplugs and plugs the device of the VM test when the guest asks for it.

usage: hotplug.py QMP-SOCKET OUTPUT-LOG DEVICE-SOCKET ivshmem|vfio-user

Follows what the guest prints: "@paragpu unplug", then "@paragpu plug", as
often as it likes.
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from qmp import Qmp, QmpError, plug, unplug


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


def main():
    qmp_socket, log, device_socket, protocol = sys.argv[1:]
    qmp = None
    for request in requests(log):
        qmp = qmp or Qmp(qmp_socket, lambda line: print(line, end="", flush=True))
        if request == "@paragpu unplug":
            unplug(qmp, protocol)
        else:
            plug(qmp, protocol, device_socket)


if __name__ == "__main__":
    try:
        main()
    except QmpError as error:
        sys.exit(f"hotplug: {error}")
