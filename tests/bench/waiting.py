"""The processor time that programs need to wait for the GPU: more programs than processors,
natively and remotely, where the host's side counts, too."""

import json
import os
import subprocess
import time

import gpu
from measure import OVERHEADS, Failed

# How threads wait: cudaDeviceSchedule*.
SCHEDULES = {"auto": 0, "spin": 1, "yield": 2, "blocking": 4}
PROGRAMS = 16
PROCESSORS = 4


def tree(root):
    """The process and all that descend from it."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = fields_of(int(name))
            if fields:
                parents[int(name)] = int(fields[1])
    found, last = {root}, set()
    while found != last:
        last = found
        found = last | {child for child, parent in parents.items() if parent in last}
    return found


def fields_of(process):
    """The fields of /proc/PID/stat from the third on; empty if it has ended."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as text:
            return text.read().rpartition(")")[2].split()
    except OSError:
        return []


def used_by(processes):
    """Processor seconds that they have used, as far as they live."""
    ticks = sum(sum(map(int, fields[11:13])) for fields in map(fields_of, processes) if fields)
    return ticks / os.sysconf("SC_CLK_TCK")


def confine(processes, where):
    """Has all of their threads run only there."""
    for process in processes:
        try:
            for thread in os.listdir(f"/proc/{process}/task"):
                os.sched_setaffinity(int(thread), where)
        except OSError:
            continue


def processors(daemon, environment, schedule, warm, is_remote):
    """How many processors PROGRAMS programs use together that wait on PROCESSORS of them."""
    everywhere = os.sched_getaffinity(0)
    few = set(sorted(everywhere)[:PROCESSORS])
    command = [OVERHEADS, "--schedule", str(SCHEDULES[schedule]), "--together", "waiting"]
    host = tree(daemon.process.pid) if is_remote else set()
    confine(host | {os.getpid()}, few)
    running = []
    try:
        running = [
            subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(PROGRAMS)
        ]
        os.sched_setaffinity(0, everywhere)
        if any(process.stdout.readline() != "ready\n" for process in running):
            raise Failed("a process did not get ready")
        # The pool fills up again, which is no waiting.
        gpu.await_warm(daemon, warm, sessions=PROGRAMS if is_remote else 0)
        host = tree(daemon.process.pid) if is_remote else set()
        confine(host, few)
        began, before = time.monotonic(), used_by(host)
        tell(running)
        used = sum(json.loads(process.stdout.readline())["value"] for process in running)
        used += (used_by(host) - before) / (time.monotonic() - began)
        tell(running)
        for process in running:
            process.communicate(timeout=60)
            if process.returncode:
                raise Failed("a process failed")
        return used
    finally:
        confine(host | {os.getpid()}, everywhere)
        for process in running:
            if process.poll() is None:
                process.kill()


def tell(running):
    """Sends each of them a line."""
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
