#!/usr/bin/env python3
"""Checks the confinement of workers on this machine's NVIDIA GPU; run as root.

usage: confined_gpu.py [--output FILE] [--learn] [--users FIRST-LAST] PROGRAM...

Each PROGRAM (a CUDA test program, by its path) runs over unix, shm and tcp with
workers under confine.cuda_calls = "allow". None of its sessions may meet a
refused call, and each thread of each worker must be filtered. With --learn the
same under "learn": the calls that "allow" would refuse are printed, with their
arguments in hexadecimal. Those that the driver makes before the filter, while it
opens the GPU, are among them: socket, connect, bind, listen, symlink and chmod.
With --users workers are users of the range, in namespaces of their own, and none
may run as this one.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import harness

WAYS = ("unix", "shm", "tcp")


def threads(pid):
    """The state of each thread of a worker, from /proc."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/status", encoding="ascii", errors="replace") as file:
                yield dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        except FileNotFoundError:
            continue  # It ended.


def unfiltered(daemon):
    """Names of threads of workers with a session that no filter holds."""
    pids = [one["worker_pid"] for one in daemon.sessions()]
    found = [thread for pid in pids if os.path.exists(f"/proc/{pid}") for thread in threads(pid)]
    bare = [thread["Name"] for thread in found if thread.get("Seccomp") != "2"]
    return len(found), bare, {int(thread["Uid"].split()[0]) for thread in found}


def run(daemon, program, way, apart):
    """One program; its threads are looked at while it runs. Are its workers to be `apart`?"""
    looked, bare, users = 0, [], set()
    done = []
    runner = threading.Thread(target=lambda: done.append(daemon.run(program, way, timeout=300)))
    runner.start()
    while runner.is_alive():
        count, names, found = unfiltered(daemon)
        looked, bare, users = max(looked, count), bare + names, users | found
        runner.join(0.05)
    log = daemon.log()
    refused = re.findall(r"the system call (\S+) is refused", log)
    shared = apart and (not users or os.getuid() in users)
    good = done[0].ok and not refused and not bare and not shared
    return {"program": os.path.basename(program), "way": way, "ok": done[0].ok, "threads": looked, "users": sorted(users),
            "unfiltered": sorted(set(bare)), "refused": refused, "held": good}


def learnt(log):
    """How many workers made a system call that is not on the list, by name."""
    return collections.Counter(re.findall(r"the system call (\w+) \[.*\] is not on the list", log))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", help="where the results go, as JSON")
    parser.add_argument("--learn", action="store_true", help="print calls that are not on the list")
    parser.add_argument("--users", help="numbers for users of workers, FIRST-LAST")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    arguments = parser.parse_args()
    calls = "learn" if arguments.learn else "allow"
    results = []
    settings = [f"--set=confine.cuda_calls={calls}"]
    if arguments.users:
        settings += [f"--set=confine.users={arguments.users}", "--set=confine.cuda_users=true"]
    with harness.Daemon(*settings, device=arguments.device) as daemon:
        for program in arguments.programs:
            for way in WAYS:
                result = run(daemon, os.path.abspath(program), way, arguments.users)
                results.append(result)
                print("held  " if result["held"] else "BROKEN", result, flush=True)
        doctor = [harness.binary("paragpu"), "--control", daemon.control, "doctor", "--side", "host"]
        print(subprocess.run(doctor, capture_output=True, text=True, check=False).stdout)
        found = learnt(daemon.log())
    for name, count in sorted(found.items()):
        print(f"{name}: {count} times")
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump({"results": results, "learnt": found}, file, indent=1)
    return 0 if all(result["held"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
