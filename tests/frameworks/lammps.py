"""LAMMPS's benchmarks of a Lennard-Jones melt and of copper by embedded atoms, as its
GPU package runs them: what the test and the experiments share."""

import contextlib
import hashlib
import os
import subprocess
import tempfile
import time

import harness

# Made by build-lammps.sh.
FOLDER = os.environ.get("PARAGPU_TEST_LAMMPS", os.path.join(harness.ROOT, ".cache/lammps/bin"))
CASES = ("lj", "eam")
# It takes PTX for no GPU but those of the PTX's own major version.
SOFTWARE = ["--set=software.compute_capability=9.0"]
# Lines of LAMMPS's inputs that say how long to run and what to print.
REPLACED = ("run", "thermo")
PRINTED = """
thermo_style custom step temp pe etotal press
thermo_modify flush yes format float %.17g
thermo {every}
run {steps}
"""
DUMPED = "write_dump all custom {dump} id x y z vx vy vz modify sort id format float %.17g\n"


def built():
    """Is LAMMPS here?"""
    return os.path.exists(os.path.join(FOLDER, "lmp"))


class Run:
    """A run of LAMMPS: its table, a hash of all positions and velocities, seconds of
    the steps and of the process, and what the moves reported."""

    def __init__(self):
        self.atoms, self.table, self.hash, self.loop, self.whole, self.moves = 0, [], "", 0.0, 0.0, []

    def same(self, other):
        """Do two runs agree in every bit that was printed?"""
        return self.table == other.table and self.hash == other.hash and bool(self.table)

    def apart(self, other):
        """The largest difference of temperature, energies and pressure, of the largest value."""
        worst = 0.0
        for at in range(1, len(self.table[0])):
            columns = [[float(row[at]) for row in run.table] for run in (self, other)]
            most = max(map(abs, columns[1])) or 1.0
            worst = max(worst, *(abs(one - two) / most for one, two in zip(*columns, strict=True)))
        return worst


class Job:
    """A benchmark, the edge of its box of what LAMMPS has, how many steps it runs, after
    how many it prints a row, and whether it writes all positions at its end."""

    def __init__(self, case, edge, steps, every, dump=True):
        self.case, self.edge, self.steps, self.every, self.dump = case, edge, steps, every, dump

    def input(self, dump):
        """LAMMPS's input with our length and output."""
        with open(os.path.join(FOLDER, f"in.{self.case}"), encoding="utf-8") as file:
            kept = [line for line in file if not line.startswith(REPLACED)]
        added = PRINTED + DUMPED * self.dump
        return "".join(kept) + added.format(every=self.every, steps=self.steps, dump=dump)

    def command(self, script, on_gpu):
        """What runs an input."""
        words = [os.path.join(FOLDER, "lmp"), "-in", script, "-log", "none", "-nocite"]
        for axis in "xyz":
            words += ["-var", axis, str(self.edge)]
        return words + ["-sf", "gpu", "-pk", "gpu", "1"] * on_gpu

    def run(self, environment, on_gpu=True, at=(), move=None):
        """Runs it, and calls `move` as soon as the row of each of some steps is there."""
        done = Run()
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="paragpu-lammps-"))
            dump, script, errors = (os.path.join(folder, name) for name in ("dump", "in", "errors"))
            with open(script, "w", encoding="utf-8") as file:
                file.write(self.input(dump))
            begin = time.monotonic()
            process = stack.enter_context(
                subprocess.Popen(
                    harness.owned(self.command(script, on_gpu)),
                    cwd=FOLDER,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=stack.enter_context(open(errors, "w+", encoding="utf-8")),
                    text=True,
                    errors="replace",
                )
            )
            stack.callback(process.kill)
            said = self.read(process.stdout, done, at, move)
            code = process.wait()
            done.whole = time.monotonic() - begin
            if code:
                with open(errors, encoding="utf-8") as file:
                    raise RuntimeError(f"LAMMPS, {self.case}: status {code}: {said[-1500:]}{file.read()[-1500:]}")
            if self.dump:
                with open(dump, "rb") as file:
                    done.hash = hashlib.sha256(file.read()).hexdigest()
        return done

    @staticmethod
    def read(output, done, at, move):
        """Reads what LAMMPS prints until it ends."""
        inside, said = False, []
        for line in output:
            said.append(line)
            words = line.split()
            if words[:2] == ["Step", "Temp"]:
                inside = True
            elif words[:2] == ["Loop", "time"]:
                inside, done.loop, done.atoms = False, float(words[3]), int(words[11])
            elif inside and words and words[0].isdigit():
                done.table.append(words)
                if int(words[0]) in at:
                    done.moves.append(move())
        return "".join(said)
