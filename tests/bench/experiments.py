"""The experiments that gVirtuS, rCUDA and mrCUDA were published with, repeated:
time against problem size for three programs and gVirtuS's table; rCUDA's ten
samples, split into computation and communication; cost models of calls with
their fits; LAMMPS by size and by the step at which it moves, where it is built.
On a machine without a GPU the software GPU serves, and the native columns stay
empty. Writes JSON into a folder, from which page.py draws a page.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
import gpu
import lammps_runs
import measure
from measure import OVERHEADS, harness, say

WAYS = harness.HOST_COMMUNICATORS
# Sizes on the software GPU, and on a real one.
SIZES = {
    "scalarProd": ([25, 50, 100, 200, 400, 800], [250, 1000, 4000, 16000, 64000]),
    "matrixMul": ([32, 64, 128, 256, 384], [128, 256, 512, 1024, 2048]),
    "histogram": ([1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24], [1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28]),
}
# Percent of the host's CPU time, as gVirtuS published it.
PUBLISHED = {
    "histogram": {"host/gpu": 9.51, "host/afunix": 11.72, "kvm/vmsocket": 15.23, "kvm/tcp": 67.54},
    "matrixMul": {"host/gpu": 9.24, "host/afunix": 16.73, "kvm/vmsocket": 31.21, "kvm/tcp": 50.43},
    "scalarProd": {"host/gpu": 8.37, "host/afunix": 9.06, "kvm/vmsocket": 10.33, "kvm/tcp": 42.95},
}
SAMPLES = (
    "alignedTypes asyncAPI bicubicTexture blackScholes boxFilter clock convolutionSeparable fastWalshTransform imageDenoising matrixMul"
).split()
# Parts, in their order.
PARTS = ("sizes", "samples", "models", "lammps")
# Workers that wait for a program.
WARM = 1
LAUNCHES = (100, 1000, 3000, 10000, 30000)
BYTES = tuple(1 << shift for shift in range(12, 27, 2))


def once(program, words, environment):
    """What a program says of its run, or None where it could not."""
    command = [os.path.join(harness.PROGRAMS, program), "--json", *words]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return None
    said = [line for line in done.stdout.splitlines() if line.startswith('{"program"')]
    if done.returncode or not said:
        say(f"{program} {' '.join(words)}: {(done.stdout + done.stderr).strip()[-300:]}")
        return None
    return json.loads(said[-1])


def medians(rounds, program, words, environments, ready):
    """Median seconds by way, the ways alternating; each begins when it is `ready`."""
    values = {way: [] for way in environments}
    for _ in range(rounds):
        for way, environment in environments.items():
            ready()
            said = once(program, words, environment)
            if said is not None:
                values[way].append(said["seconds"])
    return {way: statistics.median(taken) if taken else None for way, taken in values.items()}


def fit(points):
    """Least squares of y = a + b x; returns a, b and R²."""
    count = len(points)
    mean_x, mean_y = (sum(axis) / count for axis in zip(*points))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    base = mean_y - slope * mean_x
    total = sum((y - mean_y) ** 2 for _, y in points)
    left = sum((y - base - slope * x) ** 2 for x, y in points)
    return base, slope, 1 - left / total if total else 1.0


class Experiments:
    """The ways to run a program, the folder, and the contents of the page."""

    def __init__(self, daemon, environments, real, options):
        self.daemon, self.environments, self.real, self.options = daemon, environments, real, options
        self.plots, self.tables = [], []

    def medians(self, program, words):
        """Median seconds by way. Each process finds a waiting worker, and no other is
        being made beside it."""
        return medians(self.options.rounds, program, words, self.environments, lambda: gpu.await_warm(self.daemon, WARM))

    def table(self, name, head, rows):
        """A table of the page."""
        self.tables.append({"title": name, "head": head, "rows": rows})

    def sizes(self):
        """gVirtuS: time against size, inputs made and copied and all, and its table."""
        ways, shares = [*self.environments, "cpu"], []
        for program, choice in SIZES.items():
            rows, series = [], {way: [] for way in ways}
            for size in choice[self.real]:
                say(f"{program} of size {size}")
                words = ["--size", str(size)]
                taken = self.medians(program, [*words, "--no-verify"])
                cpu = [harness.binary("paragpu-bench"), "cpu", program, str(size)]
                taken["cpu"] = measure.lines_of(cpu, dict(os.environ))["cpu"]
                rows.append([size, *(taken[way] for way in ways)])
                for way in ways:
                    if taken[way]:
                        series[way].append((size, taken[way]))
            self.plots.append(measure.lines(f"{program}: time against size", "size", "seconds", series))
            self.table(f"gvirtus-{program}", ["size", *(f"{way} s" for way in ways)], rows)
            last = dict(zip(ways, rows[-1][1:]))
            percent = [100 * last[way] / last["cpu"] if last["cpu"] and last[way] else None for way in self.environments]
            shares.append([program, rows[-1][0], *percent, *PUBLISHED[program].values()])
        published = [f"gVirtuS {way}" for way in PUBLISHED["histogram"]]
        self.table("gvirtus-table-1", ["percent of CPU time", "size", *self.environments, *published], shares)

    def samples(self):
        """rCUDA: ten samples. A process starts once, and its rounds follow: what
        more rounds take is one round's time, and what that is more than natively
        is communication."""
        rows, groups = [], []
        first = next(iter(self.environments))
        for program in SAMPLES:
            say(program)
            said = once(program, ["--no-verify", "--seconds", "0.5"], self.environments[first])
            count = max(2, said["rounds"]) if said else 2
            several, one = (
                self.medians(program, ["--no-verify", "--iterations", str(number)])
                for number in (count, 1)
            )
            each = {
                way: (several[way] - one[way]) / (count - 1) * 1e3 if several[way] and one[way] else None for way in self.environments
            }
            native = each.get("native")
            row = [program, count]
            for way in self.environments:
                row += [one[way], each[way]]
                if way != "native":
                    row.append(each[way] - native if native is not None and each[way] is not None else None)
            rows.append(row)
            groups.append((program, list(each.items())))
        head = ["sample", "rounds"]
        for way in self.environments:
            head += [f"{way}: start and first round s", f"{way}: each round ms"]
            if way != "native":
                head.append(f"{way}: of it communication ms")
        self.table("rcuda-samples", head, rows)
        self.plots.append(measure.dots("rCUDA's samples, a round", "milliseconds", groups))

    def models(self):
        """mrCUDA: cost = a + b x for launches and copies."""
        rows, series = [], {}
        for way, environment in self.environments.items():
            say(f"cost models: {way}")
            try:
                points = [
                    (count, measure.lines_of([OVERHEADS, "--count", str(count), "launches"], environment)["launches"])
                    for count in LAUNCHES
                ]
                rows.append([way, "launches, one wait", "launches", *fit(points)])
                series[way] = points
                rates = {
                    size: measure.lines_of([OVERHEADS, "--bulk", str(size), "pageable_h2d", "pageable_d2h"], environment)
                    for size in BYTES
                }
            except measure.Failed as failure:
                say(str(failure))
                continue
            for name in ("pageable_h2d", "pageable_d2h"):
                rows.append([way, name, "bytes", *fit([(size, size / rate[name]) for size, rate in rates.items()])])
        self.plots.append(measure.lines("Launches and one wait", "launches", "seconds", series))
        self.table("mrcuda-models", ["way", "operation", "x", "a: seconds", "b: seconds per x", "R²"], rows)

    def lammps(self):
        """rCUDA and mrCUDA: LAMMPS."""
        lammps_runs.run(self)


def main():
    """The experiments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="runs of which the median counts (default 5)")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("folder", nargs="?", default=os.path.join(harness.ROOT, "out/experiments"), help="where results go")
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    try:
        device = gpu.probe()
        native, about = gpu.native_environment(), f"{device['name']}, driver {device['driver']}; {measure.machine()}"
    except gpu.NoGpu as why:
        say(f"{why}: the software GPU serves, without native figures")
        native, about = None, f"software GPU; {measure.machine()}"
    with harness.Daemon(f"--warm={WARM}", *([] if native else lammps_runs.SOFTWARE), device="cuda" if native else "software") as daemon:
        environments = {"native": native} if native else {}
        environments.update((way, daemon.guest_environment(way)) for way in WAYS)
        experiments = Experiments(daemon, environments, native is not None, options)
        for part in options.only or PARTS:
            getattr(experiments, part)()
    data = measure.described(
        "Published experiments, repeated", about, "make experiments", plots=experiments.plots, tables=experiments.tables
    )
    path = os.path.join(options.folder, "experiments.json")
    measure.store(path, data)
    print(f"written to {os.path.relpath(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
