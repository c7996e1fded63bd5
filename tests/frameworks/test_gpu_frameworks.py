"""Stock frameworks and NVIDIA's libraries on this machine's GPU, natively and through paragpu.

usage: test_gpu_frameworks.py [--rounds N] [--turns N] [--seconds N] [--output FILE] [--communicator NAME] [FILE[:CASE]...]
       test_gpu_frameworks.py --move CASE [--between-gpus] [--steps N]

Runs the cases of torch_cases.py, jax_cases.py, cupy_cases.py, libraries_cases.py
and, where there are two GPUs, pairs_cases.py, one process for each file: natively
twice, and with the guest's libraries over a daemon of its own. A case passes if its results are native's bit for bit, or if native does not
repeat itself. With --rounds cases are timed: in each round a native and a remote process
take turns, a batch of steps each, on one processor and then on the next one. A row's
ratio is the median of the pairs'. Further rows are the time from import to the first
case's first results, the
host memory of a session and the throughput of eight at once; without names, the
cases of BENCHMARK. The output has the form of bench-gpu.json. --move runs a case while its session moves
to another daemon of this GPU and back, with --between-gpus
to the other one of two GPUs each time; all sessions of a case of pairs_cases.py move together. A framework that is not installed is
skipped. Ends with 0 and a sentence where there is no GPU.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench"))
# pylint: disable=wrong-import-position
import gpu
from measure import described, harness, machine, of_results, result, say, store, table

# Each file of cases, and its first import.
FILES = {"torch": "torch", "jax": "jax", "cupy": "cupy", "libraries": "torch", "pairs": "torch"}
# Those that need two GPUs.
PAIRED = {"pairs"}
# What --rounds times if nothing is named.
BENCHMARK = {
    "torch": [
        "gpt_training_step",
        "resnet50_training_step",
        "eager_decode",
        "eager_decode_item",
        "graph_decode",
        "compiled_training_step",
        "triton_attention",
    ],
    "jax": ["mlp_training_step"],
    "cupy": ["fft_and_sort"],
}
# The session whose host memory is measured, its steps, and by how much it may exceed native, in bytes.
MEASURED_MEMORY = ("torch", ["--steps=40", "gpt_training_step"], 300e6)
# The case that serves one model in concurrent processes, their number, and the throughput goal.
TOGETHER = ("torch", ["--steps=100", "eager_decode"], 8, 1.0)
# Longest that the cases of one file may take in one process, in seconds.
PATIENCE = 280
# Multicast between GPUs is left alone.
QUIET = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
# Goals of a row's ratio to native; every other one's is GOAL.
GOALS = {
    "torch/eager_decode": 0.75,
    "libraries/gemm_64_fp32": 0.9,
    "libraries/convolution_small": 0.9,
    "libraries/fft_small": 0.9,
    "libraries/cublas_handle": 1.0,
    "libraries/cublas_heuristics": 1.0,
}
GOAL = 1.01


# What the guest's packages set.
PACKAGED = {"NCCL_SHM_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}


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


def judge(first, second, remote):
    """What a case came to, and why."""
    if "error" in first:
        return "skipped", f"natively: {first['error']}"
    if "error" in remote or not remote:
        return "failed", remote.get("error", "no result")
    if first["digest"] != second.get("digest"):
        return "passed", "native runs differ from each other"
    if first["digest"] != remote["digest"]:
        return "failed", f"digest {remote['digest']}, natively {first['digest']}"
    return "passed", ""


def installed(module):
    """Whether Python finds a module."""
    return not subprocess.run([sys.executable, "-c", f"import {module}"], check=False, capture_output=True).returncode


def compared(files, options):
    """Compares results; returns rows and whether all is well."""
    rows, well = [], True
    with harness.Daemon(device="cuda") as daemon:
        remote_environment = {**daemon.guest_environment(options.communicator), **PACKAGED}
        for file, names in files.items():
            first, errors, code = run(native(), command_of(file, names))
            if not first:
                say(f"{file}: natively nothing ran (status {code}): {errors[-1000:]}")
                well = False
                continue
            second, _, _ = run(native(), command_of(file, names))
            remote, errors, code = run(remote_environment, command_of(file, names))
            for name, line in first.items():
                verdict, why = judge(line, second.get(name, {}), remote.get(name, {}))
                well &= verdict != "failed"
                say(f"{file}/{name:28} {verdict:8} {why}")
                rows.append({"name": f"{file}/{name}", "verdict": verdict, "why": why})
            said = [line for line in errors.splitlines() if line.startswith("paragpu")]
            if code or said:
                say(f"{file}: status {code}; it said: " + "\n".join(said or [errors[-2000:]])[-3000:])
        if not well:
            say(f"the daemon said:\n{daemon.log()[-2000:]}")
    return rows, well


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


def a_round(ways, file, names, turn, options, samples, starts):
    """A process each way, both through all cases of a file; how many cases both had."""
    with contextlib.ExitStack() as stack:
        players, lines, count = {}, {}, 0
        # The second one starts when the first one has started.
        for way in sorted(ways, reverse=turn % 2 == 1):
            players[way] = stack.enter_context(Player(ways[way][0], command_of(file, ["--turns", *names])))
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


def measured(files, options):
    """Times cases in turns; the rows of a benchmark."""
    samples, starts, start = {}, {}, time.monotonic()
    with harness.Daemon(device="cuda") as daemon:
        # Each way's environment, and the daemon that serves it.
        ways = {"native": (native(), None), "remote": ({**daemon.guest_environment(options.communicator), **PACKAGED}, daemon)}
        for turn in range(options.rounds):
            for file, names in files.items():
                if time.monotonic() - start > options.seconds:
                    say(f"{file}: no round {turn + 1}, {options.seconds:.0f} s are over")
                    continue
                say(f"round {turn + 1}, {file}: {a_round(ways, file, names, turn, options, samples, starts)} cases")
                stored(rows_of_all(samples, starts), options)
        rows = rows_of_all(samples, starts)
        say(table(rows))
        for further in (memory_row, together_row) if "torch" in files else ():
            rows.append(further(ways))
            stored(rows, options)
    say(table(rows))
    return rows


def rows_of_all(samples, starts):
    """The rows of all cases so far: steps, and from import to results for the first of a process."""
    rows = []
    for name, pairs in samples.items():
        rows.append(row_of(name, "us", pairs, GOALS.get(name, GOAL)))
        if name in starts:
            rows.append(row_of(f"{name}_since_import", "ms", starts[name], 1.0))
    return [row for row in rows if row]


def row_of(name, unit, pairs, goal):
    """A row of pairs that were measured one right after the other."""
    if not pairs:
        return None
    value, baseline = (statistics.median(pair[way] for pair in pairs) for way in ("remote", "native"))
    ratio = statistics.median(pair["remote"] / pair["native"] for pair in pairs)
    return result(name, unit, round(value, 2), round(baseline, 2), goal, most=True, ratio=round(ratio, 4), note=f"{len(pairs)} pairs")


def stored(rows, options):
    """Writes what has been measured so far, if it is wanted."""
    if options.output:
        device = gpu.probe()
        where = f"{device['name']}, driver {device['driver']}; {machine()}"
        about = (
            f"A native process and one over {options.communicator} take turns, a batch of steps each. "
            "Every figure is a median, a ratio that of the pairs of batches."
        )
        command = f"tests/frameworks/test_gpu_frameworks.py {' '.join(sys.argv[1:])}"
        content = of_results(rows) if options.rounds else {"results": rows}
        store(options.output, described("Frameworks through paragpu beside native", where, command, about, **content))


def resident(processes):
    """Bytes of memory that processes and their descendants use, shared pages by part."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                parents.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(pid))
        except OSError:
            continue
    total, left = 0, list(processes)
    while left:
        pid = left.pop()
        left += parents.get(pid, [])
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024
        except (OSError, StopIteration):
            continue
    return total


def memory_row(ways):
    """The most host memory of a session: its program and the daemon with its worker, beside native."""
    file, arguments, allowed = MEASURED_MEMORY
    most = {}
    for way, (environment, daemon) in ways.items():
        idle = resident([daemon.process.pid]) if daemon else 0
        with subprocess.Popen(command_of(file, arguments), env={**environment, **QUIET}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
            most[way] = 0
            while program.poll() is None:
                running = [program.pid, *([daemon.process.pid] if daemon else [])]
                most[way] = max(most[way], resident(running) - idle)
                time.sleep(0.1)
    return result("torch/gpt_host_memory", "B", most["remote"], most["native"], most["native"] + allowed, most=True, of="value")


def together_row(ways):
    """Steps per second of concurrent processes, from the median of each process's steps."""
    file, arguments, count, goal = TOGETHER
    rate = {}
    for way, (environment, _) in ways.items():
        programs = [
            subprocess.Popen(command_of(file, arguments), env={**environment, **QUIET}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for _ in range(count)
        ]
        outputs = [program.communicate(timeout=PATIENCE)[0] for program in programs]
        steps = [line["us"] for output in outputs for line in results_of(output).values() if "us" in line]
        if len(steps) < count:
            say(f"{way}: {len(steps)} of {count} processes gave results")
        rate[way] = sum(1e6 / us for us in steps)
    return result("torch/eight_decoders", "1/s", rate["remote"], rate["native"], goal, most=False)


def moved(case, options):
    """Runs a case that stays and one that moves; whether their results are equal."""
    file, _, name = case.partition(":")
    arguments = [f"--steps={options.steps}", name]
    with harness.Daemon("--warm=2", device="cuda") as here, harness.Daemon("--warm=2", device="cuda") as there:
        environment = {**here.guest_environment(options.communicator), **QUIET, **PACKAGED}
        stayed, errors, code = run(environment, command_of(file, arguments))
        if "digest" not in stayed.get(name, {}):
            say(f"{case}: the run that stays: status {code} {stayed} {errors[-2000:]}")
            return [], False
        for daemon in (here, there):
            gpu.await_warm(daemon, 2)
        with subprocess.Popen(command_of(file, arguments), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
            said = []
            listener = threading.Thread(target=lambda: said.extend(program.stderr), daemon=True)
            listener.start()
            lines = iter(program.stdout.readline, "")
            begun = next((line for line in lines if "begun" in line), "")
            took = []
            for turn, (at, to) in enumerate(((here, there), (there, here), (here, there))):
                if program.poll() is not None or not begun:
                    break
                session = max(at.sessions(), key=lambda session: session["launches"], default=None)
                if session is None:
                    break
                to_gpu = ["--to-gpu", str((turn + 1) % 2)] if options.between_gpus else []
                what = ["--vm", session["vm"]] if file in PAIRED else ["--session", str(session["id"])]
                took.append(ordered(at, what, to, to_gpu))
                if "refused" in took[-1]:
                    say(f"{case}: move {turn + 1}: {took[-1]['refused']}\n{at.log()[-3000:]}\n{to.log()[-3000:]}")
                    break
            output = "".join(lines)
            code = program.wait()
            listener.join()
    result = results_of(output).get(name, {})
    same = result.get("digest") == stayed[name]["digest"]
    say(f"{case}: {len(took)} moves {took}; {'the same' if same else 'ANOTHER'} result, status {code}")
    say(f"median step {result.get('us')} us, slowest {result.get('slowest_us')} us; unmoved {stayed[name]['us']} and {stayed[name]['slowest_us']}")
    if not same:
        say(f"{result} {stayed[name]} {''.join(said)[-2000:]}")
    row = {"name": case, "moves": took, "same": same, "moved": result, "stayed": stayed[name]}
    return [row], same and len(took) == 3 and all("refused" not in move for move in took)


def ordered(at, what, to, to_gpu):
    """One move: its report, or why it was refused."""
    command = [harness.binary("paragpu"), "--control", at.control, "migrate", *what, "--to", f"unix://{to.socket}", *to_gpu, "-o", "json"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        return {"refused": (done.stderr + done.stdout).strip()}
    report = json.loads(done.stdout)
    # Of several sessions a list.
    report = {"sessions": report} if isinstance(report, list) else report
    return {**report, "seconds": round(time.monotonic() - start, 2)}


def main():
    """Compares, times or moves, as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=0, help="time the cases in so many rounds of a process each way")
    parser.add_argument("--turns", type=int, default=7, help="batches of each case and process (default 7)")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no round after so many seconds")
    parser.add_argument("--move", metavar="FILE:CASE", action="append", default=[], help="move this case while it runs")
    parser.add_argument("--between-gpus", action="store_true", help="move to the other one of two GPUs each time")
    parser.add_argument("--steps", type=int, default=200, help="steps of a case that moves (default 200)")
    parser.add_argument("--output", help="write the results there, as JSON")
    parser.add_argument("--communicator", default="shm", choices=harness.HOST_COMMUNICATORS)
    parser.add_argument("cases", nargs="*", metavar="FILE[:CASE]", help=f"what runs (default: all of {', '.join(FILES)})")
    options = parser.parse_args()
    try:
        count = gpu.probe()["count"]
    except gpu.NoGpu as why:
        print(f"skipped: {why}")
        return 0
    files = {}
    everything = [f"{file}:{name}" for file, names in BENCHMARK.items() for name in names] if options.rounds else FILES
    for wanted in options.cases or everything:
        file, _, name = wanted.partition(":")
        if file in PAIRED and count < 2:
            say(f"{file}: skipped, there is one GPU")
        elif installed(FILES[file]):
            files.setdefault(file, []).extend([name] if name else [])
        else:
            say(f"{file}: skipped, it is not installed")
    if options.move:
        outcomes = [moved(case, options) for case in options.move]
        rows, well = [row for rows, _ in outcomes for row in rows], all(good for _, good in outcomes)
    elif options.rounds:
        rows = measured(files, options)
        well = bool(rows)
    else:
        rows, well = compared(files, options)
    stored(rows, options)
    print(f"{sum(row.get('verdict') == 'passed' for row in rows)} of {len(rows)} passed" if not (options.rounds or options.move) else "done")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
