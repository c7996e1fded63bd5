#!/usr/bin/env python3
"""SIMULATES a pool of 1,000 hosts and 20,000 leases, from the latencies that
tests/pool/run.py recorded of three hosts. Nothing here is measured at that size.

usage: simulate.py POOL.json [--output FILE]

The model: Slurm's controller answers so many commands a second as it did when
eight asked at once, one after the other. Each host's daemon asks whether its
host drains, every two seconds, or after ten times as long as the last answer took
if that is longer, but every twenty seconds; each lease asks twice when it begins (its
job is looked up, and it is placed); a lease that moves begins elsewhere. What a
placement took beyond its answers, alone, is added to each. Slurm's search among
more nodes is not modelled: the real controller is slower than this.
"""

import argparse
import heapq
import json
import os
import random
import statistics
import sys

# From the daemon: how often it checks whether its host drains, and its backoff.
LOOK, SELDOM, LEISURE = 2.0, 20.0, 10
ANSWERS_OF_A_LEASE = 2
# Seconds that are simulated, and how many of them the pool takes to settle.
SECONDS, SETTLED = 240, 60
HOSTS, LEASES, MEAN_HOURS = 1000, 20_000, 4.0
# Placements are promised within so long.
GOAL = 1.5


def run(hosts, leases, latencies, seed=1):
    """Placement times of the leases that begin, over some simulated minutes of a pool that
    has so many leases and replaces those that end; how busy the controller is; how often a
    host asks in the end; and how long it takes to move a tenth of the leases at once."""
    chance = random.Random(seed)
    service = 1 / latencies["answers_per_s"]
    beside = [max(0.0, one - ANSWERS_OF_A_LEASE * latencies["answer_s"]) for one in latencies["placements_s"]]
    rate = leases / (MEAN_HOURS * 3600)
    # When, and whether a lease asks.
    events = [(chance.uniform(0, LOOK), False) for _ in range(hosts)]
    at = chance.expovariate(rate)
    while at < SECONDS:
        events.append((at, True))
        at += chance.expovariate(rate)
    heapq.heapify(events)
    free, worked, placed, pauses = 0.0, 0.0, [], []
    while events[0][0] < SECONDS:
        at, is_lease = events[0]
        answers = ANSWERS_OF_A_LEASE if is_lease else 1
        free = max(free, at) + answers * service
        took = free - at
        if is_lease:
            heapq.heappop(events)
            if at >= SETTLED:
                placed.append(took + chance.choice(beside))
        else:
            pause = min(max(LOOK, LEISURE * took), SELDOM)
            heapq.heapreplace(events, (free + pause, False))
            if at >= SETTLED:
                pauses.append(took + pause)
        if at >= SETTLED:
            worked += answers * service
    busy = worked / (SECONDS - SETTLED)
    looks = statistics.mean(pauses) if pauses else LOOK
    # Hosts give way to what the moves ask, down to this.
    left = latencies["answers_per_s"] - hosts / SELDOM
    moving = leases / 10 * ANSWERS_OF_A_LEASE / left if left > 0 else float("inf")
    return placed, busy, looks, moving


def largest(latencies):
    """The most hosts, each with twenty leases, that keep the promise for 99 of 100 leases."""
    low, high = 1, 100_000
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        placed, _, _, _ = run(middle, middle * LEASES // HOSTS, latencies)
        fine = len(placed) < 2 or statistics.quantiles(placed, n=100)[98] <= GOAL
        low, high = (middle, high) if fine else (low, middle)
    return low


def main():
    """Simulates, prints, and adds to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded")
    parser.add_argument("--output")
    arguments = parser.parse_args()
    with open(arguments.recorded, encoding="utf-8") as file:
        latencies = json.load(file)["recorded"]
    if not latencies or not latencies["placements_s"]:
        sys.exit(f"{arguments.recorded} has no recorded placements")
    placed, busy, looks, moving = run(HOSTS, LEASES, latencies)
    found = {
        "simulation": True,
        "hosts": HOSTS,
        "leases": LEASES,
        "recorded": {name: latencies[name] for name in ("answer_s", "answers_per_s")},
        "controller_busy": round(busy, 3),
        "hosts_ask_every_s": round(looks, 1),
        "placement_p50_s": round(statistics.median(placed), 3) if placed else None,
        "placement_p99_s": round(statistics.quantiles(placed, n=100)[98], 3) if len(placed) > 1 else None,
        "moving_a_tenth_s": round(moving, 1) if moving != float("inf") else None,
        "hosts_that_keep_the_promise": largest(latencies),
    }
    print("SIMULATION, not a measurement:", json.dumps(found, indent=1))
    print(f"It breaks down beyond {found['hosts_that_keep_the_promise']} hosts with {LEASES // HOSTS} leases each: a lease then waits for the controller, which answers the hosts.")
    output = arguments.output or os.path.join(os.path.dirname(os.path.abspath(arguments.recorded)), "pool-simulation.json")
    with open(output, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
