#!/usr/bin/env python3
"""Measures how sessions share a software GPU's time, into out/shares.json.

usage: shares.py [--output FILE]

Each result has a name, a value, a goal and whether it is met: parts of the time
by the daemon's clock, and parts of the work that kernels did, the worst of some
windows of two seconds each.

A software GPU is a thread, and whatever else the machine does takes the
processor from it in the middle of a turn: then the work follows the load and not
the turns. The work is measured under SCHED_FIFO, which needs root.
"""

import argparse
import json
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
# pylint: disable=wrong-import-position
import harness
from pool.programs import Program, parts, rate, share

ROUNDS, WINDOW, WINDOWS, SETTLED = 20_000, 2, 4, 0.5
WEIGHTS = ((10, 90), (30, 70), (25, 25, 25, 25))
CAPS = ((30,), (30, 70))
FOLDER = ("--set", "software.memory=64MiB", "--set", "pool.warm=4")


def windows(options, busy):
    """What programs got in each window that have these options, where `busy` of them work."""
    with harness.Daemon(*FOLDER) as daemon:
        programs = []
        try:
            for place, option in enumerate(options):
                # Kernels of different lengths.
                programs.append(Program(daemon, ROUNDS * (1 + place % 2)))
                share(daemon, programs[-1].number, *option)
            for program in programs[:busy]:
                program.start()
            time.sleep(SETTLED)
            return [parts(daemon, programs[:busy], WINDOW) for _ in range(WINDOWS)]
        finally:
            for program in programs:
                program.stop()


def rates():
    """Rounds a second of a program alone on the GPU, and beside a neighbour of its weight."""
    with harness.Daemon(*FOLDER) as daemon:
        programs = []
        try:
            for _ in range(2):
                programs.append(Program(daemon, ROUNDS))
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
    first = goes_first()
    for weights in WEIGHTS:
        found = windows([("--weight", weight) for weight in weights], len(weights))
        whole = sum(weights)
        errors = [[abs(one - weight / whole) for one, weight in zip(got, weights)] for got, _, _ in found]
        executed = [[abs(one - weight / whole) for one, weight in zip(done, weights)] for _, done, _ in found]
        name = "_".join(map(str, weights))
        note = f"farthest from its weight in {WINDOWS} windows of {WINDOW} s"
        yield f"share_{name}", max(max(one) for one in errors), 0.02, True, note
        if first:
            yield f"work_{name}", max(max(one) for one in executed), 0.02, True, "the same, of the work that kernels did"
    used = min(used for _, _, used in windows([("--weight", 10), ("--weight", 90)], 1))
    yield "idle_neighbour", used, 0.97, False, "of the time, beside an idle neighbour of nine times the weight"
    for caps in CAPS:
        found = windows([("--cap", cap) for cap in caps], len(caps))
        errors = [abs(one * used - cap / 100) for got, _, used in found for one, cap in zip(got, caps)]
        note = f"farthest from its cap, as a part of all time, in {WINDOWS} windows of {WINDOW} s"
        yield "cap_" + "_".join(map(str, caps)), max(errors), 0.02, True, note
    if first:
        alone, beside = rates()
        note = f"of the work of its half of the GPU; alone {alone:.4g}, beside an equal neighbour {beside:.4g} rounds a second (medians of {WINDOWS} windows)"
        yield "neighbour_loses", 1 - beside / (alone / 2), 0.03, True, note


def main():
    """Measures, prints and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out", "shares.json"))
    output = parser.parse_args().output
    results = []
    for name, value, goal, most, note in measured():
        met = value <= goal if most else value >= goal
        results.append({"name": name, "value": round(value, 4), "goal": goal, "met": met, "note": note})
        print(f"{'met   ' if met else 'MISSED'} {name:18} {value:7.4f}   goal {goal:<6} {note}", flush=True)
    os.makedirs(os.path.dirname(output), exist_ok=True)
    with open(output, "w", encoding="utf-8") as file:
        json.dump({"results": results}, file, indent=1)
    sys.exit(not all(one["met"] for one in results))


if __name__ == "__main__":
    main()
