"""LAMMPS's benchmarks of a Lennard-Jones melt and of copper by embedded atoms, as its
GPU package runs them: what the test and the experiments share."""

import contextlib
import hashlib
import os
import subprocess
import tempfile
import threading
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
"""
RUN = "run {steps}\n"
DUMPED = "write_dump all custom {dump} id x y z vx vy vz modify sort id format float %.17g\n"


def built():
    """Is LAMMPS here?"""
    return os.path.exists(os.path.join(FOLDER, "lmp"))


class Run:
    """A run of LAMMPS: its table, a hash of all positions and velocities, seconds of
    the steps and of the process, its parts, and what the moves reported."""

    def __init__(self):
        self.atoms, self.table, self.hash, self.loop, self.whole, self.moves = 0, [], "", 0.0, 0.0, []
        self.parts, self.inside, self.said = 0, False, []

    def take(self, line):
        """Reads a line that LAMMPS printed: the step of a row, if it is one."""
        self.said.append(line)
        words = line.split()
        if words[:2] == ["Step", "Temp"]:
            self.inside = True
        elif words[:2] == ["Loop", "time"]:
            self.inside, self.loop, self.atoms = False, self.loop + float(words[3]), int(words[11])
        elif self.inside and words and words[0].isdigit():
            self.table.append(words)
            return int(words[0])
        return None

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

    def input(self):
        """LAMMPS's input with our output, without a run."""
        with open(os.path.join(FOLDER, f"in.{self.case}"), encoding="utf-8") as file:
            kept = [line for line in file if not line.startswith(REPLACED)]
        return "".join(kept) + PRINTED.format(every=self.every)

    def command(self, on_gpu):
        """What runs an input."""
        words = [os.path.join(FOLDER, "lmp"), "-log", "none", "-nocite"]
        for axis in "xyz":
            words += ["-var", axis, str(self.edge)]
        return words + ["-sf", "gpu", "-pk", "gpu", "1"] * on_gpu

    @contextlib.contextmanager
    def process(self, environment, on_gpu, done):
        """A process that has the input and waits for more; it ends as it has to."""
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="paragpu-lammps-"))
            dump = os.path.join(folder, "dump")
            errors = stack.enter_context(open(os.path.join(folder, "errors"), "w+", encoding="utf-8"))
            begin = time.monotonic()
            process = stack.enter_context(
                subprocess.Popen(
                    harness.owned(self.command(on_gpu)),
                    cwd=FOLDER,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    errors="replace",
                )
            )
            stack.callback(process.kill)
            with contextlib.suppress(OSError):
                process.stdin.write(self.input())
                yield process
                process.stdin.write(DUMPED.format(dump=dump) * self.dump)
                process.stdin.close()
            for line in process.stdout:
                done.take(line)
            code = process.wait()
            done.whole = time.monotonic() - begin
            if code:
                errors.seek(0)
                raise RuntimeError(f"LAMMPS, {self.case}: status {code}: {''.join(done.said)[-1500:]}{errors.read()[-1500:]}")
            if self.dump:
                with open(dump, "rb") as file:
                    done.hash = hashlib.sha256(file.read()).hexdigest()

    @staticmethod
    def read(process, done, last):
        """Steps of the rows up to a step's. LAMMPS flushes rows, and nothing after them."""
        step = None
        while step != last:
            line = process.stdout.readline()
            if not line:
                raise OSError("LAMMPS has ended")
            step = done.take(line)
            if step is not None:
                yield step

    def run(self, environment, on_gpu=True, at=(), move=None):
        """Runs it, and calls `move` as soon as the row of each of some steps is there."""
        done = Run()
        with self.process(environment, on_gpu, done) as process:
            process.stdin.write(RUN.format(steps=self.steps))
            process.stdin.flush()
            for step in self.read(process, done, self.steps):
                if step in at:
                    done.moves.append(move())
        return done

    def run_in_parts(self, environment, parts, at=(), move=None):
        """Runs it in at least so many parts of `every` steps. Moves one after the other
        while it runs, from the beginnings of some parts on; parts are added until the
        moves are over."""
        done, due, moving = Run(), 0, None

        def moved():
            done.moves.append(move())

        with self.process(environment, True, done) as process:
            while done.parts < parts or due or (moving and moving.is_alive()):
                process.stdin.write(RUN.format(steps=self.every))
                process.stdin.flush()
                due += done.parts in at
                done.parts += 1
                # The first row: it computes.
                for _ in self.read(process, done, done.parts * self.every):
                    if due and not (moving and moving.is_alive()):
                        due, moving = due - 1, threading.Thread(target=moved)
                        moving.start()
        return done
