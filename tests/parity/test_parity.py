"""Every served function of the driver and the runtime, natively and through paragpu.

usage: test_parity.py [--prototypes FILE] [--output FILE] [--device cuda|software] [FUNCTION...]

Calls each function with valid, boundary and invalid arguments (probe.py), natively
twice and through paragpu on the same GPU, and compares status, outputs, the last
error and what a wait says. Rows in which native differs from itself, crashes or
hangs are left out. A difference that differences.json does not list, with its
reason, fails. --record writes native's answers, and --device software compares the
software GPU with them.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench"))
# pylint: disable=wrong-import-position
import gpu
from measure import harness, say

# Longest that one row may take, about, and restarts of one function.
PATIENCE, RESTARTS = 8, 3
# Never called here: they would change what others share, or last for ever.
LEFT_OUT = ("Multicast", "cuDevicePrimaryCtxReset", "cudaDeviceReset", "cuCtxDestroy", "cuDevicePrimaryCtxRelease", "__cuda")


def probe(environment, prototypes, library, name):
    """The rows of a function: a dictionary each, "crash" or "hang"."""
    rows, first = [], 0
    for _ in range(RESTARTS):
        command = [sys.executable, os.path.join(HERE, "probe.py"), prototypes, library, name, str(first)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False)
            output, end = done.stdout, f"crash {done.returncode}"
        except subprocess.TimeoutExpired as late:
            output, end = (late.stdout or b"").decode(errors="replace"), "hang"
        begun = -1
        for line in output.splitlines():
            if not line.startswith("{"):
                continue
            line = json.loads(line)
            begun = line["row"]
            if "status" in line:
                rows.append({key: value for key, value in line.items() if key != "row"})
        if end == "crash 0":
            return rows
        if begun < 0:
            # Not even its first row: the function is not there.
            return rows + ([end] if not rows else [])
        if len(rows) == begun:
            rows.append(end)
        first = begun + 1
    return rows


def probed(environment, prototypes, functions, workers):
    """All functions: {library/name: rows}."""
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        futures = {f"{library}/{name}": pool.submit(probe, environment, prototypes, library, name) for library, name in functions}
        return {name: future.result() for name, future in futures.items()}


def differences(first, second, remote):
    """Rows of one function that differ: (number, native, remote)."""
    found = []
    for number, one in enumerate(first):
        again = second[number] if number < len(second) else None
        other = remote[number] if number < len(remote) else "not reached"
        if isinstance(one, str) or one != again or one == other:
            continue
        found.append((number, one, other))
    return found


def short(row):
    """A row in a few words."""
    return row if isinstance(row, str) else " ".join(f"{key}={json.dumps(value)}" for key, value in row.items() if value or key == "status")


def main():
    """Compares, and says what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prototypes", default=os.path.join(harness.ROOT, "out/prototypes.json"), help="what `make prototypes` wrote")
    parser.add_argument("--output", help="write all answers there, as JSON")
    parser.add_argument("--record", help="write native's answers there")
    parser.add_argument("--recorded", help="compare with these instead of a native run")
    parser.add_argument("--device", default="cuda", choices=("cuda", "software"))
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("functions", nargs="*")
    options = parser.parse_args()
    with open(options.prototypes, encoding="utf-8") as file:
        prototypes = json.load(file)
    functions = [
        (library, name)
        for library, all_of in prototypes.items()
        for name in all_of
        if (not options.functions or name in options.functions) and not any(part in name for part in LEFT_OUT)
    ]
    if options.recorded:
        with open(options.recorded, encoding="utf-8") as file:
            first = second = json.load(file)
    else:
        try:
            gpu.probe()
        except gpu.NoGpu as why:
            print(f"skipped: {why}")
            return 0
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PARAGPU_")}
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (gpu.runtime_folder(), environment.get("LD_LIBRARY_PATH"))))
        first = probed(environment, options.prototypes, functions, options.jobs)
        second = probed(environment, options.prototypes, functions, options.jobs)
    say(f"natively: {len(first)} functions, {sum(map(len, first.values()))} rows")
    with harness.Daemon(f"--warm={options.jobs}", device=options.device) as daemon:
        remote = probed(daemon.guest_environment("shm"), options.prototypes, functions, options.jobs)
    with open(os.path.join(HERE, "differences.json"), encoding="utf-8") as file:
        listed = json.load(file)
    rows = unlisted = excused = 0
    for name in remote:
        if name not in first:
            continue
        rows += len(first[name])
        found = differences(first[name], second[name], remote[name])
        reason = listed.get(name.split("/")[1])
        for number, one, other in found:
            excused += bool(reason)
            unlisted += not reason
            say(f"{'listed' if reason else 'DIFFERS'} {name} row {number}: natively {short(one)}; here {short(other)}"[:400])
    for name, path in (("native", options.record), ("all", options.output)):
        if path:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(first if name == "native" else {"first": first, "second": second, "remote": remote}, file, separators=(",", ":"))
    print(f"{len(remote)} functions, {rows} rows: {unlisted} differ, {excused} more for listed reasons")
    return 1 if unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
