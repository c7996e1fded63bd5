"""Stock frameworks and NVIDIA's libraries on this machine's GPU, natively and through paragpu.

usage: test_gpu_frameworks.py [--rounds N] [--turns N] [--seconds N] [--output FILE] [--communicator NAME] [NAME...]
       test_gpu_frameworks.py --move CASE [--between-gpus] [--steps N]
       test_gpu_frameworks.py --restore CASE [--steps N]

Runs the cases of torch_cases.py, jax_cases.py, cupy_cases.py, onnx_cases.py, vllm_cases.py,
packages_cases.py, jax_packages_cases.py, compilers_cases.py, carriers_cases.py, libraries_cases.py and, where there are two GPUs, pairs_cases.py, one
process for each file: natively twice, and with the guest's libraries over a daemon of its own. A name is
FILE or FILE:CASE. A case passes if its results are native's bit for bit, or if native
does not repeat itself.

With --rounds cases are timed: in each round a native and a remote process take turns, a
batch of steps each, on one processor and then on the next one. A row's ratio is the
median of the pairs'; so is that of the time from import to the first case's first
results. A name may also be one of further.py's rows. Without names, the cases of
BENCHMARK are timed, and all further rows. The output has the form of bench-gpu.json.

--move runs a case while its session moves to another daemon of this GPU and back, with
--between-gpus to the other one of two GPUs each time; all sessions of a case of
pairs_cases.py move together. --restore runs a case while its session is written to a
file, ended and, after a restart of the daemon, restored. A framework that is not
installed is skipped. Ends with 0 and a sentence where there is no GPU.
"""

import argparse
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bench"))
# pylint: disable=wrong-import-position
import gpu
from further import FURTHER
from measure import described, dots, harness, machine, of_results, say, store, table
from moves import PAIRED, moved, restored
from turns import PACKAGED, a_round, command_of, native, row_of, run

# Each file of cases, and its first import.
FILES = {
    "torch": "torch",
    "jax": "jax",
    "cupy": "cupy",
    "onnx": "onnxruntime",
    "vllm": "vllm",
    "packages": "torch",
    "jax_packages": "jax",
    "compilers": "numpy",
    "carriers": "numpy",
    "libraries": "torch",
    "pairs": "torch",
}
# Titles of their plots.
TITLES = {
    "torch": "PyTorch, torchvision and Triton",
    "jax": "JAX",
    "cupy": "CuPy",
    "onnx": "ONNX Runtime",
    "vllm": "vLLM",
    "llama": "llama.cpp",
    "libraries": "NVIDIA's libraries",
    "pairs": "PyTorch on two GPUs",
}
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
    "onnx": ["transformer_inference", "convolutions_inference"],
    "vllm": ["batch_generation"],
    "pairs": ["ddp_training_step"],
}
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


def measured(files, further, options):
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
        for name in further:
            rows += FURTHER[name](ways, options)
            stored(rows, options)
    say(table(rows))
    return rows


def rows_of_all(samples, starts):
    """The rows of all cases so far: steps, and from import to results for the first of a process."""
    rows = []
    for name, pairs in samples.items():
        rows.append(row_of(name, "us", pairs, GOALS.get(name, GOAL)))
        if name in starts:
            # In the first round Python compiles its modules.
            rows.append(row_of(f"{name}_since_import", "ms", starts[name][1:], 1.0))
    return [row for row in rows if row]


def plots_of(rows):
    """A plot for each framework: times of a step, of an inference or of a token."""
    microseconds = {"us": lambda value: value, "1/s": lambda value: 1e6 / value}
    groups = {}
    for row in rows:
        if row["unit"] in microseconds and row["value"] and row["baseline"]:
            file, _, name = row["name"].partition("/")
            pair = [(way, microseconds[row["unit"]](row[key])) for way, key in (("native", "baseline"), ("paragpu", "value"))]
            groups.setdefault(file, []).append((name, pair))
    return [dots(TITLES.get(file, file), "microseconds", several) for file, several in groups.items()]


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
        content = {**of_results(rows), "plots": plots_of(rows)} if options.rounds else {"results": rows}
        files = {row["name"].partition("/")[0] for row in rows}
        subject = TITLES["libraries"] if files == {"libraries"} else "Frameworks"
        store(options.output, described(f"{subject} through paragpu beside native", where, command, about, **content))


def main():
    """Compares, times or moves, as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=0, help="time the cases in so many rounds of a process each way")
    parser.add_argument("--turns", type=int, default=7, help="batches of each case and process (default 7)")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no round after so many seconds")
    parser.add_argument("--move", metavar="FILE:CASE", action="append", default=[], help="move this case while it runs")
    parser.add_argument("--restore", metavar="FILE:CASE", action="append", default=[], help="checkpoint and restore this case while it runs")
    parser.add_argument("--between-gpus", action="store_true", help="move to the other one of two GPUs each time")
    parser.add_argument("--steps", type=int, default=200, help="steps of a case that moves or is restored (default 200)")
    parser.add_argument("--output", help="write the results there, as JSON")
    parser.add_argument("--communicator", default="shm", choices=harness.HOST_COMMUNICATORS)
    parser.add_argument("cases", nargs="*", metavar="NAME", help=f"what runs: of {', '.join([*FILES, *FURTHER])}")
    options = parser.parse_args()
    try:
        count = gpu.probe()["count"]
    except gpu.NoGpu as why:
        print(f"skipped: {why}")
        return 0
    files, further = {}, []
    benchmark = [f"{file}:{name}" for file, names in BENCHMARK.items() for name in names]
    everything = [*benchmark, *FURTHER] if options.rounds else FILES
    for wanted in options.cases or everything:
        file, _, name = wanted.partition(":")
        if file in FURTHER:
            further.append(file)
        elif file in PAIRED and count < 2:
            say(f"{file}: skipped, there is one GPU")
        elif installed(FILES[file]):
            files.setdefault(file, []).extend([name] if name else [])
        else:
            say(f"{file}: skipped, it is not installed")
    if options.move or options.restore:
        outcomes = [moved(case, options) for case in options.move] + [restored(case, options) for case in options.restore]
        rows, well = [row for rows, _ in outcomes for row in rows], all(good for _, good in outcomes)
    elif options.rounds:
        rows = measured(files, further, options)
        well = bool(rows)
    else:
        rows, well = compared(files, options)
    stored(rows, options)
    print(f"{sum(row.get('verdict') == 'passed' for row in rows)} of {len(rows)} passed" if rows and "verdict" in rows[0] else "done")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
