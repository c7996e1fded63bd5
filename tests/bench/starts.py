#!/usr/bin/env python3
"""The time from connecting to the first reply, for daemons side by side; run as root.

usage: starts.py [--rounds N] [--warm N] [--pause SECONDS] [--output FILE] SIDE...

Each SIDE is NAME=FOLDER, a folder with paragpud and paragpu-worker, or
NAME=FOLDER,SETTING,... with settings of host.toml, such as
new=target/release,confine.users=700000-700063. Each has a daemon of its own on
the software GPU. A round takes one session of each, in an order that turns.
--warm 0 has each worker start as its guest connects; --pause is from a session's
end to the next one's start. With --work the reply is memory that was set. Each
later side is compared with the first: the median of a round's ratios, and the
interval in which it lies with 95 % confidence (bootstrap over rounds).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../wire")]

import wire
from paired import compared

ARENA, CHUNK = 1 << 44, 2 << 20


class Side:
    """A daemon and what its sessions took, in milliseconds."""

    def __init__(self, text, warm):
        self.name, _, rest = text.partition("=")
        binaries, *settings = rest.split(",")
        self.folder = tempfile.TemporaryDirectory(prefix="paragpu-")
        path = self.folder.name
        command = [os.path.join(binaries, "paragpud"), "--device=software", f"--socket={path}/guests"]
        command += [f"--control={path}/control", "--print-addresses", f"--set=pool.warm={warm}"]
        command += [f"--set=daemon.state={path}/state", f"--set=cache.directory={path}/cache"]
        command += [f"--set={setting}" for setting in settings]
        with open(f"{path}/log", "wb") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command], stdout=subprocess.PIPE, stderr=log
            )
        if not self.process.stdout.readline():
            raise SystemExit(f"{self.name}: {self.log()}")
        self.took = []

    def log(self):
        """What the daemon and its workers have said."""
        with open(f"{self.folder.name}/log", encoding="utf-8", errors="replace") as log:
            return log.read()

    def session(self, work):
        """One session, from its first byte to the end of its connection."""
        begun = time.perf_counter()
        session = wire.Session(f"{self.folder.name}/guests")
        if work:
            session.call("MemMap", address=ARENA, size=CHUNK)
            session.post("Memset", destination=ARENA, pitch=0, value=1, element=1, width=64, height=1, stream=0)
            session.call("CopyFromDevice", source=ARENA, size=8, stream=0)
        else:
            session.call("Ping", value=1)
        self.took.append(1e3 * (time.perf_counter() - begun))
        session.send_frame(wire.GOODBYE, 0, 0, b"")
        try:
            while session.socket.recv(4096):
                pass
        except ConnectionResetError:
            pass
        session.socket.close()

    def end(self):
        """Ends the daemon."""
        self.process.terminate()
        self.process.wait(20)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--warm", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--work", action="store_true")
    parser.add_argument("--output", help="where the figures go, as JSON")
    parser.add_argument("sides", nargs="+", metavar="SIDE")
    arguments = parser.parse_args()
    sides = [Side(text, arguments.warm) for text in arguments.sides]
    try:
        for turn in range(arguments.rounds + 3):
            for place in range(len(sides)):
                sides[(turn + place) % len(sides)].session(arguments.work)
                time.sleep(arguments.pause)
    finally:
        for side in sides:
            side.end()
    results = {}
    for side in sides:
        # The first find cold caches.
        took = sorted(side.took[3:])
        result = {"median_ms": statistics.median(took), "p90_ms": took[len(took) * 9 // 10]}
        results[side.name] = result
        print(f"{side.name}: median {result['median_ms']:.2f} ms, 90 % within {result['p90_ms']:.2f} ms", flush=True)
        if side is not sides[0]:
            result["ratio"], result["interval"] = compared(side.took[3:], sides[0].took[3:])
            low, high = result["interval"]
            print(f"    {result['ratio']:.3f} of {sides[0].name} (95 %: {low:.3f} to {high:.3f})", flush=True)
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump({"warm": arguments.warm, "work": arguments.work, "results": results}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
