"""Processes that run cases: one after the other, and two that take turns."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench"))
# pylint: disable=wrong-import-position
from measure import result, say

# Longest that the cases of one file may take in one process, in seconds.
PATIENCE = 280
# Multicast between GPUs is left alone.
QUIET = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
# Python's compiled modules, which an installation has: where it lacks them and Python may not write
# there, each process compiles PyTorch's 2,000 modules anew.
COMPILED = tempfile.TemporaryDirectory(prefix="paragpu-compiled-")  # pylint: disable=consider-using-with
QUIET.update(PYTHONPYCACHEPREFIX=COMPILED.name, PYTHONDONTWRITEBYTECODE="")
# What the guest's packages set, unless the environment does.
PACKAGED = {name: os.environ.get(name, value) for name, value in (("NCCL_SHM_DISABLE", "1"), ("NCCL_P2P_LEVEL", "SYS"))}


def native():
    """The environment of a native run."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PARAGPU_")}


def command_of(file, arguments):
    """What runs cases of a file."""
    return [sys.executable, os.path.join(HERE, f"{file}_cases.py"), *arguments]


def run(environment, command):
    """Results by case, standard error, and exit status."""
    try:
        done = subprocess.run(
            command,
            env={**environment, **QUIET},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
        output, errors, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        output, errors, code = (late.stdout or b"").decode(errors="replace"), f"no end within {PATIENCE} s", 124
    return results_of(output), errors, code


def results_of(output):
    """The lines of cases, by name."""
    lines = (json.loads(line) for line in output.splitlines() if line.startswith("{"))
    return {line["case"]: line for line in lines if "case" in line}


class Player:
    """A process of cases that takes turns with another one."""

    def __init__(self, environment, command):
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # pylint: disable=consider-using-with
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            command, env={**environment, **QUIET}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, errors="replace"
        )
        self.clock = threading.Timer(2 * PATIENCE, self.process.kill)
        self.clock.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.clock.cancel()
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def line(self, key):
        """The next line that has a key; nothing at the end."""
        lines = (json.loads(line) for line in iter(self.process.stdout.readline, "") if line.startswith("{"))
        return next((line for line in lines if key in line), {})

    def tell(self, what):
        """Writes a line; a process that has ended ignores it."""
        try:
            self.process.stdin.write(f"{what}\n")
            self.process.stdin.flush()
        except OSError:
            pass

    def batch(self, processor):
        """Microseconds of a step in a batch, or None if the process ended."""
        self.tell(processor)
        return self.line("us").get("us")

    def steps(self, count):
        """Has it take steps that nobody waits for; whether it did."""
        self.tell(f"steps {count}")
        return "done" in self.line("done")

    def complaint(self):
        """The end of what it wrote to standard error, once it has ended."""
        self.process.wait()
        self.errors.seek(0)
        return f"status {self.process.returncode} {self.errors.read()[-300:]}" if self.process.returncode else ""


def played(players, name, options, samples):
    """Native and remote take turns with a case's batches; the one that begins changes."""
    sample = samples.setdefault(name, [])
    processors = sorted(os.sched_getaffinity(0))
    for turn in range(options.turns):
        pair = {}
        for way in sorted(players, reverse=turn % 2 == 1):
            # A new processor each time: some share a core with other work.
            pair[way] = players[way].batch(processors[(len(sample) + 1) % len(processors)])
        if None not in pair.values():
            sample.append(pair)


def a_round(ways, file, names, turn, options, samples, starts, extra=()):
    """A process each way, both through all cases of a file, with `extra` arguments; how
    many cases both had."""
    with contextlib.ExitStack() as stack:
        players, lines, count = {}, {}, 0
        # The second one starts when the first one has started.
        for way in sorted(ways, reverse=turn % 2 == 1):
            players[way] = stack.enter_context(Player(ways[way][0], command_of(file, ["--turns", *extra, *names])))
            lines[way] = players[way].line("case")
        while all(lines.values()):
            name = f"{file}/{lines['native']['case']}"
            failed = {way: line["error"] for way, line in lines.items() if "error" in line}
            if failed:
                say(f"{name}: {failed}")
            else:
                if not count:
                    starts.setdefault(name, []).append({way: line["since_import_ms"] for way, line in lines.items()})
                played(players, name, options, samples)
                count += 1
            for way in set(players) - set(failed):
                players[way].tell("")
            lines = {way: player.line("case") for way, player in players.items()}
        for way, player in players.items():
            if why := player.complaint():
                say(f"{file}, {way}: {why}")
    return count


def row_of(name, unit, pairs, goal):
    """A row of pairs that were measured one right after the other."""
    if not pairs:
        return None
    value, baseline = (statistics.median(pair[way] for pair in pairs) for way in ("remote", "native"))
    ratio = statistics.median(pair["remote"] / pair["native"] for pair in pairs)
    return result(name, unit, round(value, 2), round(baseline, 2), goal, most=True, ratio=round(ratio, 4), note=f"{len(pairs)} pairs")
