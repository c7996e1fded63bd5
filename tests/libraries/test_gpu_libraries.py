"""NVIDIA's libraries on this machine's GPU, natively and through paragpu.

usage: test_gpu_libraries.py [--time] [--output FILE] [--communicator NAME] [CASE...]

Runs tests/libraries/cases.py twice in one process each: natively, and with the
guest's libraries over a daemon of its own. Every digest must be the native one
wherever two native runs agree. Writes a table, and FILE as JSON. Ends with 0
and a sentence where there is no GPU or no PyTorch.
"""

import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), folder) for folder in ("bench", "frameworks")]
# pylint: disable=wrong-import-position
import gpu
import test_gpu_frameworks as cases
from measure import harness, say

CASES = os.path.join(HERE, "cases.py")


def run(environment, arguments):
    """Runs the cases: their results, what was said, and how it ended."""
    return cases.run(environment, [sys.executable, CASES, *arguments])


def main():
    """Runs all, prints the table; ends with 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time", action="store_true", help="also time each case")
    parser.add_argument("--output", help="write the results there")
    parser.add_argument("--communicator", default="shm", choices=harness.HOST_COMMUNICATORS)
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    try:
        device = gpu.probe()
    except gpu.NoGpu as why:
        print(f"skipped: {why}")
        return 0
    if subprocess.run([sys.executable, "-c", "import torch"], check=False, capture_output=True).returncode:
        print("skipped: no PyTorch in this Python")
        return 0
    arguments = (["--time"] if options.time else []) + options.cases
    environment = cases.native()
    native, errors, code = run(environment, arguments)
    if not native:
        print(f"natively nothing ran (status {code}): {errors[-2000:]}")
        return 1
    again, _, _ = run(environment, options.cases)
    with harness.Daemon(device="cuda") as daemon:
        remote, errors, code = run(daemon.guest_environment(options.communicator), arguments)
        log = daemon.log()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    rows = []
    for name, result in native.items():
        verdict, why = cases.judge(result, again.get(name, {}), remote.get(name, {}))
        counts[verdict] += 1
        ratio = ""
        if "us" in result and "us" in remote.get(name, {}):
            ratio = f"{result['us']:10.1f} {remote[name]['us']:10.1f} {remote[name]['us'] / result['us']:6.2f}"
        say(f"{name:24} {verdict:8} {ratio} {why}")
        rows.append({"name": name, "verdict": verdict, "why": why, "native": result, "remote": remote.get(name, {})})
    if code:
        say(f"the remote run ended with status {code}")
    if errors.strip():
        say(f"it said:\n{errors[-6000:]}")
    if counts["failed"]:
        say(f"the daemon said:\n{log[-3000:]}")
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump({"device": device["name"], "communicator": options.communicator, "results": rows}, file, indent=1)
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or code else 0


if __name__ == "__main__":
    sys.exit(main())
