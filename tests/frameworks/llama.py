"""llama.cpp's programs, a model of random weights, and the rates that llama-bench measures:
what the test and the benchmark share."""

import json
import os
import statistics
import subprocess
import sys

from measure import harness, result

HERE = os.path.dirname(os.path.abspath(__file__))
# Made by build-llama.sh.
PROGRAMS = os.environ.get("PARAGPU_TEST_LLAMA", os.path.join(harness.ROOT, ".cache/llama/build/bin"))
LIBRARIES = os.path.join(harness.ROOT, ".cache/libraries/lib")
# Least of native's rates.
GOAL = 1 / 1.01
# Seconds that one program may take.
PATIENCE = 280
# Options of llama_model.py.
MODELS = {
    "cuda": ["--layers=16", "--width=2048", "--heads=16", "--words=32000"],
    "software": ["--layers=2", "--width=256", "--heads=4", "--words=1024"],
}


def built():
    """Is llama.cpp here?"""
    return os.path.exists(os.path.join(PROGRAMS, "llama-bench"))


def model(device, folder):
    """Writes the model for a device into a folder; its path."""
    path = os.path.join(folder, "model.gguf")
    subprocess.run([sys.executable, os.path.join(HERE, "llama_model.py"), *MODELS[device], path], check=True)
    return path


def with_libraries(environment):
    """The same, with NVIDIA's libraries of `make libraries` where they are."""
    paths = [path for path in (environment.get("LD_LIBRARY_PATH"), LIBRARIES) if path]
    return {**environment, "LD_LIBRARY_PATH": ":".join(paths)}


def program(name, *arguments):
    """A command."""
    return [os.path.join(PROGRAMS, name), *arguments]


def output_of(command, environment):
    """What a program says; raises where it fails."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: status {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout


def rates(model, environment):
    """Tokens a second of prompts and of generation: with as many threads as llama.cpp chooses, one for each
    processor, which spin between tokens; and with half as many, which leave processors to others."""
    found = {}
    for name, options in (("", []), ("_half_threads", ["-t", str(max(1, len(os.sched_getaffinity(0)) // 2))])):
        command = program("llama-bench", "-m", model, "-ngl", "99", "-p", "512", "-n", "128", "-r", "5", "-o", "json", *options)
        for row in json.loads(output_of(command, environment)):
            found[("prompt" if row["n_prompt"] else "generation") + name] = statistics.median(row["samples_ts"])
    return found


def rows(model, ways, rounds):
    """Rates of all ways in turns: medians of the repetitions of a process, of which the first is slow
    natively, too."""
    pairs = {}
    for turn in range(rounds):
        taken = {way: rates(model, ways[way]) for way in sorted(ways, reverse=turn % 2 == 1)}
        for name in taken["native"]:
            pairs.setdefault(name, []).append({way: rate[name] for way, rate in taken.items()})
    found = []
    for name, several in pairs.items():
        value, baseline = (statistics.median(pair[way] for pair in several) for way in ("remote", "native"))
        ratio = statistics.median(pair["remote"] / pair["native"] for pair in several)
        found.append(result(f"llama/{name}", "1/s", value, baseline, GOAL, most=False, ratio=round(ratio, 4), note=f"{len(several)} pairs"))
    return found
