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
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench"))
# pylint: disable=wrong-import-position
import gpu
from measure import harness, say

CASES = os.path.join(HERE, "cases.py")
# Longest that all cases may take in one process, in seconds.
PATIENCE = 240
# Reached over the loopback only; multicast between GPUs is left alone.
QUIET = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


def run(environment, arguments):
    """Results by case, what was said on standard error, and how it ended."""
    command = [sys.executable, CASES, *arguments]
    try:
        done = subprocess.run(
            command, env={**environment, **QUIET}, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False
        )
        output, errors, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace")
        errors, code = (late.stderr or b"").decode(errors="replace"), 124
    results = {}
    for line in output.splitlines():
        if line.startswith('{"case"'):
            result = json.loads(line)
            results[result["case"]] = result
    return results, errors, code


def remote_environment(daemon, communicator):
    """Environment in which a program uses paragpu's libraries, redirected."""
    return daemon.guest_environment(communicator)


def judge(name, native, again, remote):
    """One row: the case, what it came to, and its times."""
    if "error" in native:
        return "skipped", f"natively: {native['error']}"
    if "error" in remote:
        return "failed", remote["error"]
    if not remote:
        return "failed", "no result"
    if native["digest"] != again.get("digest"):
        return "passed", "native runs differ from each other"
    if native["digest"] != remote["digest"]:
        return "failed", f"digest {remote['digest']}, natively {native['digest']}"
    return "passed", ""


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
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PARAGPU_")}
    native, errors, code = run(environment, arguments)
    if not native:
        print(f"natively nothing ran (status {code}): {errors[-2000:]}")
        return 1
    again, _, _ = run(environment, options.cases)
    with harness.Daemon(device="cuda") as daemon:
        remote, errors, code = run(remote_environment(daemon, options.communicator), arguments)
        log = daemon.log()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    rows = []
    for name, result in native.items():
        verdict, why = judge(name, result, again.get(name, {}), remote.get(name, {}))
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
