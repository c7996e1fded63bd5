#!/usr/bin/env python3
"""LAMMPS with its GPU package through paragpu: a Lennard-Jones melt and copper.

usage: test_lammps.py [--device cuda|software] [lj|eam...]

`make lammps` builds it from Debian's source package, with NVIDIA's static runtime
and PTX. Each benchmark runs on LAMMPS's own CPU code and through every communicator,
on a GPU also natively. Temperature, energies and pressure must stay near the CPU's,
as near as the package's mixed precision comes; between communicators, and to native,
they, positions and velocities must agree in every bit. So they must if the session
moves to another daemon at several steps, and from another host's daemon over TCP to
this host's shared memory; a run that moves goes on until its moves are over, and one
that stays takes as many steps. PARAGPU_TEST_LAMMPS names the folder of the program where
it is not in .cache/lammps/bin.
"""

import argparse
import contextlib
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench"))
# pylint: disable=wrong-import-position
import harness
import lammps
from measure import say

# Edge of the box, steps, and how many between two rows.
SIZES = {"cuda": (1, 200, 20), "software": (0.5, 200, 20)}
# Of runs that move: steps of a part, and parts of the shortest run.
PARTS = {"cuda": (100, 10), "software": (20, 10)}
# Of the largest value that the CPU computes. Rows of the first steps differ by the
# precision alone, later ones also because trajectories part.
NEAR = 1e-3
NEAR_AT_FIRST = 1e-5


def native():
    """The environment of a native run."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PARAGPU_")}


class Test:
    """What was found; nothing stops at the first fault."""

    def __init__(self, device):
        self.device, self.failed = device, 0

    def held(self, well, what):
        """Notes a check."""
        say(f"{'ok' if well else 'FAILED'}: {what}")
        self.failed += not well

    def job(self, case):
        """A benchmark of the device's size."""
        edge, steps, every = SIZES[self.device]
        return lammps.Job(case, edge, steps, every)

    def compared(self, case, daemon):
        """A benchmark on the CPU and every way."""
        job = self.job(case)
        # It finds a libcuda.so.1, and calls none of it.
        cpu = job.run(daemon.guest_environment("shm"), on_gpu=False)
        stayed = job.run(daemon.guest_environment("shm"))
        first = [lammps.Run(), lammps.Run()]
        first[0].table, first[1].table = stayed.table[:1], cpu.table[:1]
        self.held(first[0].apart(first[1]) <= NEAR_AT_FIRST, f"{case}: first row {first[0].apart(first[1]):.2g} from the CPU's")
        self.held(stayed.apart(cpu) <= NEAR, f"{case}: all rows within {stayed.apart(cpu):.2g} of the CPU's, {stayed.atoms} atoms")
        ways = {way: daemon.guest_environment(way) for way in harness.HOST_COMMUNICATORS}
        if self.device == "cuda":
            ways["native"] = native()
        for way, environment in ways.items():
            run = job.run(environment)
            self.held(run.same(stayed), f"{case}, {way}: as over shm in every bit; {run.loop:.2f} s of steps")

    def moved(self, case, one, two):
        """A benchmark whose session moves to and fro, and one that comes home: it starts at
        another host's daemon and continues at this one's."""
        edge, _, _ = SIZES[self.device]
        every, parts = PARTS[self.device]
        job, places = lammps.Job(case, edge, parts * every, every), [one, two]
        unmoved = {}

        def move():
            places.reverse()
            return places[1].migrate(session_of(places[1]), places[0].socket)

        def home():
            to = f"tcp://{one.addresses['migration']}"
            return two.migrate(session_of(two), to, "--communicator", "shm")

        plan = [((part,), move, "shm") for part in (0, 1, 5, 9)]
        plan += [(range(parts), move, "shm"), ((parts // 2,), home, "from tcp to shm")]
        for at, order, way in plan:
            environment = near_and_far(one, two) if order is home else places[0].guest_environment("shm")
            run = job.run_in_parts(environment, parts, at, order)
            if run.parts not in unmoved:
                unmoved[run.parts] = job.run_in_parts(one.guest_environment("shm"), run.parts)
            stayed = unmoved[run.parts]
            well = run.same(stayed) and len(run.moves) == len(at)
            downtimes = [round(move["blackout_ms"], 1) for move in run.moves]
            self.held(well, f"{case}, {way}: moved in part {list(at)} of {run.parts}, downtimes {downtimes} ms")


def session_of(daemon):
    """The session that computes: a program may have one for each GPU."""
    return max(daemon.sessions(), key=lambda session: session["launches"])["id"]


def near_and_far(near, far):
    """The environment of a program of `near`'s host that uses `far` over TCP."""
    return {**near.guest_environment("tcp"), "PARAGPU_TCP_ADDRESS": far.addresses["tcp"]}


def main():
    """Executes the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(SIZES), default="cuda", help="default cuda")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(lammps.CASES)} (default all)")
    options = parser.parse_args()
    test = Test(options.device)
    with contextlib.ExitStack() as stack:
        trust = harness.certificates(stack.enter_context(tempfile.TemporaryDirectory(prefix="paragpu-trust-")))
        extra = [*harness.as_host(trust), *(lammps.SOFTWARE if options.device == "software" else [])]
        one, two = (stack.enter_context(harness.Daemon(*extra, device=options.device)) for _ in range(2))
        for case in options.cases or lammps.CASES:
            test.compared(case, one)
            test.moved(case, one, two)
        if test.failed:
            say(one.log()[-2000:])
    say(f"{test.failed} checks failed")
    sys.exit(bool(test.failed))


if __name__ == "__main__":
    main()
