"""LAMMPS in the experiments: its run time by size, natively and over every communicator,
and by the step at which its session moves, as mrCUDA's authors plotted it."""

import contextlib
import os
import statistics
import sys
import tempfile

import gpu
import measure
from measure import harness, say

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "frameworks"))
# pylint: disable=wrong-import-position
from lammps import CASES, SOFTWARE, Job, built

# Edges of the box on the software GPU and on a real one, and steps of each.
SIZES = (((0.2, 40), (0.3, 40), (0.5, 40)), ((0.5, 1000), (1, 1000), (2, 100)))
# Edge and steps of what moves, and at how many places of the run it does.
MOVED = ((0.3, 100), (1, 1000))
PLACES = 5


class Session:
    """Moves the one session of a daemon."""

    def __init__(self, source, *order):
        self.source, self.order = source, order

    def move(self):
        """Moves it."""
        return self.source.migrate(self.source.sessions()[0]["id"], *self.order)


def as_seconds(values):
    """Their median, least and most."""
    return [statistics.median(values), min(values), max(values)]


def run(experiments):
    """Both, where LAMMPS is."""
    if built():
        sizes(experiments)
        moves(experiments)
    else:
        say("LAMMPS is not here: `make lammps` builds it")


def sizes(experiments):
    """Time of the steps against the number of atoms, and whether all runs printed the same."""
    ways = list(experiments.environments)
    for case in CASES:
        rows, series = [], {way: [] for way in ways}
        for edge, steps in SIZES[experiments.real]:
            job, runs = Job(case, edge, steps, steps, dump=False), {way: [] for way in ways}
            for turn in range(experiments.options.rounds):
                for way in ways[:: -1 if turn % 2 else 1]:
                    gpu.await_warm(experiments.daemon, 1)
                    runs[way].append(job.run(experiments.environments[way]))
            first = runs[ways[0]][0]
            same = all(run.same(first) for several in runs.values() for run in several)
            row = [first.atoms, steps]
            for way in ways:
                loop, whole = (statistics.median(taken) for taken in zip(*((run.loop, run.whole) for run in runs[way])))
                row += [loop, whole]
                series[way].append((first.atoms, loop))
            rows.append([*row, "yes" if same else "NO"])
            say(f"lammps {case}: {dict(zip(('atoms', 'steps'), row))} {row[2:]}, same {same}")
        head = ["atoms", "steps"]
        for way in ways:
            head += [f"{way}: steps s", f"{way}: all s"]
        experiments.table(f"lammps-{case}", [*head, "same bits"], rows)
        experiments.plots.append(measure.lines(f"LAMMPS, in.{case}: time of the steps against atoms", "atoms", "seconds", series))


def moves(experiments):
    """Run time against the step at which the session moves: to another daemon of this
    host over shared memory, and from TCP to shared memory, home from another host's daemon."""
    device, extra = ("cuda", []) if experiments.real else ("software", SOFTWARE)
    edge, steps = MOVED[experiments.real]
    with contextlib.ExitStack() as stack:
        trust = harness.certificates(stack.enter_context(tempfile.TemporaryDirectory(prefix="paragpu-trust-")))
        near, far = (
            stack.enter_context(harness.Daemon("--warm=1", *extra, *harness.as_host(trust), device=device)) for _ in range(2)
        )
        home = ("--communicator", "shm")
        remote = {**near.guest_environment("tcp"), "PARAGPU_TCP_ADDRESS": far.addresses["tcp"]}
        ways = {
            "shm to shm": (near.guest_environment("shm"), Session(near, far.socket)),
            "tcp to shm": (remote, Session(far, f"tcp://{near.addresses['migration']}", *home)),
        }
        unmoved = {"stays on shm": ways["shm to shm"][0], "stays on tcp": remote}
        if experiments.real:
            unmoved["native"] = experiments.environments["native"]
        for case in CASES:
            job = Job(case, edge, steps, steps // PLACES, dump=False)
            rows, series = moved(job, ways, unmoved, (near, far), experiments.options.rounds)
            head = ["run", "at step", "all s", "least", "most", "downtime ms", "whole move ms", "same bits"]
            experiments.table(f"lammps-{case}-moved", head, rows)
            title = f"LAMMPS, in.{case}: run time against the step of its move"
            experiments.plots.append(measure.lines(title, "step", "seconds", series, "linear"))


def moved(job, ways, unmoved, daemons, rounds):
    """Rows and series of a benchmark whose session moves; all ways take turns."""
    steps = range(0, job.steps, job.every)
    plan = [(name, None, environment, None) for name, environment in unmoved.items()]
    plan += [(name, step, environment, session.move) for name, (environment, session) in ways.items() for step in steps]
    taken = {}
    for turn in range(rounds):
        for name, step, environment, move in plan[:: -1 if turn % 2 else 1]:
            for daemon in daemons:
                gpu.await_warm(daemon, 1)
            run = job.run(environment, at=() if step is None else (step,), move=move)
            taken.setdefault((name, step), []).append(run)
    first = taken[plan[0][:2]][0]
    rows, series = [], {}
    for name, step, _, _ in plan:
        runs = taken[name, step]
        seconds = as_seconds([run.whole for run in runs])
        same = all(run.same(first) and len(run.moves) == (step is not None) for run in runs)
        cost = ["", ""]
        if step is not None:
            cost = [statistics.median(run.moves[0][key] for run in runs) for key in ("blackout_ms", "total_ms")]
        rows.append([name, "" if step is None else step, *seconds, *cost, "yes" if same else "NO"])
        series.setdefault(name, []).extend((at, seconds[0]) for at in (steps if step is None else [step]))
        say(f"lammps {job.case}: {name} at {step}: {seconds[0]:.2f} s, {cost} ms, same {same}")
    return rows, series
