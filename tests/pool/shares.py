#!/usr/bin/env python3
"""Measures how sessions share a GPU's time, into out/shares.json.

usage: shares.py [--output FILE]

The GPU is the software GPU, or with PARAGPU_TEST_DEVICE=cuda NVIDIA's. Each result
has a name, a value, a goal and whether it is met: parts of the time by the daemon's
clock, and parts of the work that kernels did, the worst of some windows of two
seconds each.

A software GPU is a thread, and whatever else the machine does takes the
processor from it in the middle of a turn: then the work follows the load and not
the turns. Its work is measured under SCHED_FIFO, which needs root.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
# pylint: disable=wrong-import-position
import harness
from harness.results import Results
from pool.programs import Program, parts, rate, share

WINDOW, WINDOWS, SETTLED = 2, 4, 0.5
# Seconds after which samples of NVIDIA's NVML show what is the case.
SMOOTHED = 8
# Of the kernel whose length is measured.
ROUNDS = 20_000
WEIGHTS = ((10, 90), (30, 70), (25, 25, 25, 25))
CAPS = ((30,), (30, 70))
SETTINGS = ("--set", "software.memory=64MiB", "--set", "software.threads=1", "--set", "pool.warm=4")
ON_SOFTWARE = os.environ.get("PARAGPU_TEST_DEVICE", "software") == "software"
READER = os.path.join(HERE, "..", "end_to_end", "nvml_program.py")


def millisecond():
    """Rounds of a kernel that takes a millisecond on this GPU."""
    with harness.Daemon(*SETTINGS) as daemon:
        program = Program(daemon, ROUNDS)
        try:
            program.launch(1)
            began = time.monotonic()
            program.launch(64)
            return round(ROUNDS * 64e-3 / (time.monotonic() - began))
        finally:
            program.stop()


def windows(rounds, options, busy, measure=parts):
    """What programs got in each window that have these options, where `busy` of them work."""
    with harness.Daemon(*SETTINGS) as daemon:
        programs = []
        try:
            for place, option in enumerate(options):
                # Kernels of different lengths.
                programs.append(Program(daemon, rounds * (1 + place % 2), pid=1 + place))
                share(daemon, programs[-1].number, *option)
            for program in programs[:busy]:
                program.start()
            time.sleep(SETTLED)
            return [measure(daemon, programs[:busy], WINDOW) for _ in range(WINDOWS)]
        finally:
            for program in programs:
                program.stop()


def shown(daemon, programs, seconds):
    """What each program gets of what all get together, as NVML in a guest shows it. On the
    software GPU that is processor time, of the worker's own work as well. NVIDIA's samples
    approach a new value over some seconds."""
    command = [sys.executable, READER, "over", str(seconds if ON_SOFTWARE else SMOOTHED)]
    found = json.loads(subprocess.check_output(command, env=daemon.guest_environment("unix"), timeout=60))
    percent = dict(found["processes"])
    found = [percent.get(1 + place, 0) for place in range(len(programs))]
    return [one / max(1, sum(found)) for one in found]


def rates(rounds):
    """Rounds a second of a program alone on the GPU, and beside a neighbour of its weight."""
    with harness.Daemon(*SETTINGS) as daemon:
        programs = []
        try:
            for _ in range(2):
                programs.append(Program(daemon, rounds))
                share(daemon, programs[-1].number, "--weight", 100)
            found = []
            for program in programs:
                program.start()
                time.sleep(SETTLED)
                found.append(statistics.median(rate(daemon, programs[0], WINDOW) for _ in range(WINDOWS)))
            return found
        finally:
            for program in programs:
                program.stop()


def goes_first():
    """Gives processes started from now on the highest priority; false if that is not allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    return True


def measured():
    """Every result."""
    # The length of kernels under other load would be wrong, too.
    work = not ON_SOFTWARE or goes_first()
    rounds = millisecond()
    for weights in WEIGHTS:
        found = windows(rounds, [("--weight", weight) for weight in weights], len(weights))
        whole = sum(weights)
        errors = [[abs(one - weight / whole) for one, weight in zip(got, weights)] for got, _, _ in found]
        executed = [[abs(one - weight / whole) for one, weight in zip(done, weights)] for _, done, _ in found]
        name = "_".join(map(str, weights))
        note = f"farthest from its weight in {WINDOWS} windows of {WINDOW} s"
        yield f"share_{name}", max(max(one) for one in errors), 0.02, True, note
        if work:
            yield f"work_{name}", max(max(one) for one in executed), 0.02, True, "the same, of the work that kernels did"
    used = min(used for _, _, used in windows(rounds, [("--weight", 10), ("--weight", 90)], 1))
    yield "idle_neighbour", used, 0.97, False, "of the time, beside an idle neighbour of nine times the weight"
    for caps in CAPS:
        found = windows(rounds, [("--cap", cap) for cap in caps], len(caps))
        errors = [abs(one * used - cap / 100) for got, _, used in found for one, cap in zip(got, caps)]
        note = f"farthest from its cap, as a part of all time, in {WINDOWS} windows of {WINDOW} s"
        yield "cap_" + "_".join(map(str, caps)), max(errors), 0.02, True, note
    if work:
        found = windows(rounds, [("--weight", 30), ("--weight", 70)], 2, shown)
        errors = [abs(one - weight) for got in found for one, weight in zip(got, (0.3, 0.7))]
        yield "shown_by_nvml", max(errors), 0.05, True, "nvmlDeviceGetProcessUtilization in a guest, farthest from weights of 30 and 70"
        alone, beside = rates(rounds)
        note = f"of the work of its half of the GPU; alone {alone:.4g}, beside an equal neighbour {beside:.4g} rounds a second (medians of {WINDOWS} windows)"
        yield "neighbour_loses", 1 - beside / (alone / 2), 0.03, True, note


def main():
    """Measures, prints and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out", "shares.json"))
    output = parser.parse_args().output
    results = Results()
    for name, value, goal, most, note in measured():
        results.add(name, round(value, 4), goal, value <= goal if most else value >= goal, note)
    sys.exit(not results.write(output))


if __name__ == "__main__":
    main()
