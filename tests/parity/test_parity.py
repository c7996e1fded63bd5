"""Every served function of the driver and the runtime, natively and through paragpu.

usage: test_parity.py [--prototypes FILE] [--output FILE] [--device cuda|software] [--gpu N] [FUNCTION...]

Calls each function with valid, boundary and invalid arguments (probe.py), natively
twice and through paragpu on the same GPU, and compares status, outputs, the last
error and what a wait says. Rows in which native differs from itself, crashes or
hangs are left out. With --gpu N, N is the valid number of a device, the functions are
those with a device, a context, a location or a pool among their parameters, and the
rows are the valid ones and those in which such a parameter is wrong.
A difference that differences.json does not list, with its
reason, fails: by function and row, for both devices or for one. --record writes native's answers, and --device
software --recorded compares the software GPU with them.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench"))
# pylint: disable=wrong-import-position
import gpu
from measure import harness, say
from probe import SKIPPED, names_device

# Seconds that one row may take, processes that one function may end, most functions of a process.
PATIENCE, ENDED, BATCH = 15, 6, 24
# CUDA_ERROR_NOT_SUPPORTED and NVML_ERROR_NOT_SUPPORTED. A host with software GPUs has no
# NVML, so there every question about the board is refused.
NOT_SUPPORTED = {"cuda": {801}, "software": {801, 3}}
# Never called here: they would change what others share, or last for ever.
LEFT_OUT = ("Multicast", "cuDevicePrimaryCtxReset", "cudaDeviceReset", "cuCtxDestroy", "cuDevicePrimaryCtxRelease", "__cuda")


class Probe:
    """Functions that one process after the other calls, each behind the row that ended the last."""

    def __init__(self, environment, options, functions):
        self.environment = environment
        which = "all" if options.gpu is None else "devices"
        self.arguments = [os.path.abspath(options.prototypes), str(options.gpu or 0), which]
        self.left = list(functions)
        self.rows = {function: [] for function in functions}

    def take(self, line):
        """One line of a process: a row that begins, or its result."""
        line = json.loads(line)
        function, row = line.pop("function"), line.pop("row")
        while self.left[0] != function:
            self.left.pop(0)
        if line:
            self.rows[function].append(line)
        return (function, row)

    def once(self, first):
        """One process; returns the row that it began last, and how it ended."""
        command = [sys.executable, os.path.join(HERE, "probe.py"), *self.arguments, str(first), *self.left]
        # Some functions write files.
        place = tempfile.TemporaryDirectory()
        with place, subprocess.Popen(
            command, env=self.environment, cwd=place.name, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
        ) as process:
            late, begun = False, None

            def kill():
                nonlocal late
                late = True
                process.kill()

            while True:
                watch = threading.Timer(PATIENCE, kill)
                watch.start()
                line = process.stdout.readline()
                watch.cancel()
                if not line:
                    break
                if line.startswith('{"function"'):
                    begun = self.take(line)
            process.wait()
        return begun, "hang" if late else f"crash {process.returncode}"

    def run(self):
        """All functions: {library/name: rows}, where a row is a dictionary, "crash N" or "hang"."""
        first, ended = 0, collections.Counter()
        while self.left:
            begun, end = self.once(first)
            if end == "crash 0":
                break
            function, row = begun or (self.left[0], first)
            if len(self.rows[function]) == row:
                self.rows[function].append(end)  # It keeps its place.
            ended[function] += 1
            first = row + 1
            if ended[function] >= ENDED:
                self.left.pop(0)
                first = 0
        return self.rows


def probed(environment, functions, options):
    """All functions: {library/name: rows}."""
    size = max(1, min(BATCH, -(-len(functions) // options.jobs)))
    batches = [functions[at : at + size] for at in range(0, len(functions), size)]
    found = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for rows in pool.map(lambda batch: Probe(environment, options, batch).run(), batches):
            found.update(rows)
    return found


def repeated(first, second):
    """Rows that a second run repeats; the others are null, for nothing can be said of them."""
    return {
        name: [row if isinstance(row, dict) and second[name][number : number + 1] == [row] else None for number, row in enumerate(rows)]
        for name, rows in first.items()
    }


def differences(native, remote):
    """Rows of one function that differ: (number, native, remote)."""
    for number, row in enumerate(native):
        other = remote[number] if number < len(remote) else "not reached"
        if row is not None and row != other:
            yield number, row, other


def called(rows):
    """How many rows of a function were called."""
    return sum(row != SKIPPED for row in rows)


def reasons(device):
    """Why rows differ: {function: {row: reason}}, where row None is every row that paragpu refuses."""
    with open(os.path.join(HERE, "differences.json"), encoding="utf-8") as file:
        listed = json.load(file)
    found = collections.defaultdict(dict)
    for entry in listed["both"] + listed[device]:
        for name, numbers in entry["rows"].items():
            found[name].update((number, entry["why"]) for number in ([None] if numbers == "refused" else numbers))
    return found


def reason_of(listed, name, number, here, refusals):
    """Why this row of a function differs, or None if that is not listed."""
    refused = isinstance(here, dict) and here["status"] in refusals
    return listed.get(name, {}).get(number) or (refused and (listed.get(name, {}).get(None) or listed.get("*", {}).get(None))) or None


def write(path, rows):
    """A line a function, so that a change of one shows as such."""
    with open(path, "w", encoding="utf-8") as file:
        lines = (f"{json.dumps(name)}: {json.dumps(of_one, separators=(',', ':'))}" for name, of_one in sorted(rows.items()))
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def short_name(name):
    """A function's name without its library."""
    return name.split("/")[1]


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
    parser.add_argument("--gpu", type=int, help="the device to name, on a machine with several")
    parser.add_argument("functions", nargs="*")
    options = parser.parse_args()
    with open(options.prototypes, encoding="utf-8") as file:
        prototypes = json.load(file)
    functions = [
        f"{library}/{name}"
        for library, all_of in prototypes.items()
        for name, prototype in all_of.items()
        if (name in options.functions if options.functions else options.gpu is None or any(map(names_device, prototype["parameters"])))
        and not any(part in name for part in LEFT_OUT)
    ]
    if options.recorded:
        with open(options.recorded, encoding="utf-8") as file:
            native = json.load(file)
    else:
        try:
            gpu.probe()
        except gpu.NoGpu as why:
            print(f"skipped: {why}")
            return 0
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PARAGPU_")}
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (gpu.runtime_folder(), environment.get("LD_LIBRARY_PATH"))))
        native = repeated(*(probed(environment, functions, options) for _ in range(2)))
        if options.record:
            write(options.record, native)
    say(f"natively: {len(native)} functions, {sum(map(called, native.values()))} rows")
    with harness.Daemon(f"--warm={options.jobs}", device=options.device) as daemon:
        remote = probed(daemon.guest_environment("shm"), functions, options)
    if options.output:
        write(options.output, remote)
    listed = reasons(options.device)
    rows = unlisted = excused = 0
    for name in remote:
        rows += called(native.get(name, ()))
        gone = set(listed.get(short_name(name), ())) - {None}
        for number, one, other in differences(native.get(name, ()), remote[name]):
            gone.discard(number)
            reason = reason_of(listed, short_name(name), number, other, NOT_SUPPORTED[options.device])
            excused += bool(reason)
            unlisted += not reason
            if not reason:
                say(f"DIFFERS {name} row {number}: natively {short(one)}; here {short(other)}"[:400])
        for number in sorted(number for number in gone if remote[name][number : number + 1] != [SKIPPED]):
            say(f"LISTED {name} row {number}, which does not differ")
    print(f"{len(remote)} functions, {rows} rows: {unlisted} differ, {excused} more for listed reasons")
    return 1 if unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
