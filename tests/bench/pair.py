"""What takes two GPUs, natively and over shm: results of programs, and kernels on managed
memory of the other GPU, where it was allocated and after a prefetch."""

import os
import subprocess
import sys

import gpu
from measure import harness, say
from test_gpu import digest_of

# Peer access, graphs of two GPUs, managed memory and variables; hostMemory's pools are of
# managed memory, too.
PROGRAMS = ("peerAccess", "deviceGraphs", "managedMemory", "managedVariables", "hostMemory")
MEASURED = ("managed_far", "managed_moved", "managed_sum", "managed_sum_again")


def run(command, environment):
    """Runs a program for at most a minute."""
    return subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=60, check=False)


def main():
    """Prints a line for each program, and the measurements; ends with 1 if one differs."""
    try:
        device = gpu.probe()
    except gpu.NoGpu as why:
        print(f"skipped: {why}")
        return 0
    if device["count"] < 2:
        print("skipped: there is one GPU")
        return 0
    say(f"{device['count']} {device['name']}")
    overheads = os.environ.get("PARAGPU_TEST_OVERHEADS", os.path.join(harness.ROOT, "out/bench/overheads"))
    wrong = 0
    with harness.Daemon(device="cuda") as daemon:
        ways = {"native": gpu.native_environment(), "shm": daemon.guest_environment("shm")}
        for name in PROGRAMS:
            runs = {way: run([os.path.join(harness.PROGRAMS, name), "--json"], ways[way]) for way in ways}
            digests = {way: digest_of(one.stdout) for way, one in runs.items()}
            is_right = runs["shm"].returncode == 0 and digests["shm"] == digests["native"]
            wrong += not is_right
            say(f"{'right' if is_right else 'WRONG'}: {name} {digests}")
            for way, one in runs.items():
                if one.returncode:
                    say(f"{name}, {way}: exit status {one.returncode}: {one.stdout}{one.stderr}"[-800:])
        for way, environment in ways.items():
            measured = run([overheads, *MEASURED], environment)
            wrong += measured.returncode != 0
            print(f"{way}: exit status {measured.returncode}\n{measured.stdout}{measured.stderr}", end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
