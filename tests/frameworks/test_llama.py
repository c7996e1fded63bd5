#!/usr/bin/env python3
"""llama.cpp as nvcc builds it, through paragpu: a model's words, operators and rates.

usage: test_llama.py [--device software|cuda] [--operators LIST] [--rounds N] [--output FILE]

`make llama` builds it from the registry's source package, with NVIDIA's static
runtime and PTX; the model has random weights (llama_model.py). On a GPU the same
programs run natively: the words must be native's. Then a session moves to another
daemon and back while it generates, and the words must stay. --operators runs
llama.cpp's own comparison of operators with its CPU code. --rounds times prompts
and generation natively and through paragpu, in turns. PARAGPU_TEST_LLAMA names
the folder of the programs where they are not in .cache/llama.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench"))
# pylint: disable=wrong-import-position
import harness
from measure import say

PROGRAMS = os.environ.get("PARAGPU_TEST_LLAMA", os.path.join(harness.ROOT, ".cache/llama/build/bin"))
LIBRARIES = os.path.join(harness.ROOT, ".cache/libraries/lib")
PROMPT = "What does a program feel of the move of its GPU?"
# NVIDIA's libraries choose their PTX for a device that they do not know.
CAPABILITY = "--set=software.compute_capability=13.0"
# Seconds that one program may take.
PATIENCE = 280
MODELS = {
    "cuda": ["--layers=16", "--width=2048", "--heads=16", "--words=32000"],
    "software": ["--layers=2", "--width=256", "--heads=4", "--words=1024"],
}
# Words of a run that is compared, and of one that moves.
WORDS = {"cuda": (200, 4000), "software": (24, 120)}
# Number of moves during the output.
MOVES = 3


def with_libraries(environment):
    """The same, with NVIDIA's libraries of `make libraries` where they are."""
    paths = [path for path in (environment.get("LD_LIBRARY_PATH"), LIBRARIES) if path]
    return {**environment, "LD_LIBRARY_PATH": ":".join(paths)}


def native():
    """The environment of a native run."""
    return with_libraries({name: value for name, value in os.environ.items() if not name.startswith("PARAGPU_")})


def program(name, *arguments):
    """A command."""
    return [os.path.join(PROGRAMS, name), *arguments]


def generation(model, words):
    """What says so many words."""
    return program("llama-simple", "-m", model, "-n", str(words), "-ngl", "99", PROMPT)


def output_of(command, environment):
    """What a program says; raises where it fails."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: status {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout


def moved(command, here, there):
    """What a program says whose session moves, and what the moves reported."""
    environment = with_libraries(here.guest_environment("shm"))
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        # The prompt and a few words: it generates.
        said, reports = running.stdout.read(len(PROMPT) + 40), []
        for at, to in ((here, there), (there, here), (here, there))[:MOVES]:
            sessions = at.sessions()
            if running.poll() is not None or not sessions:
                break
            reports.append(at.migrate(sessions[0]["id"], to.socket))
            said += running.stdout.read(60)
        said += running.stdout.read()
        code = running.wait(PATIENCE)
    return code, said.decode(errors="replace"), reports


def operators(names, environment):
    """How many operators' cases passed, and those that did not."""
    command = program("test-backend-ops", "test", "-b", "CUDA0", *(["-o", names] if names else []))
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False
    )
    lines = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines()
    failed = sorted(line.strip() for line in lines if "FAIL" in line and "(" in line)
    return sum(line.endswith(": OK") for line in lines), failed, done.returncode


def rates(model, environment):
    """Tokens a second of prompts and of generation."""
    said = output_of(program("llama-bench", "-m", model, "-ngl", "99", "-p", "512", "-n", "128", "-r", "3", "-o", "json"), environment)
    return {"prompt" if row["n_prompt"] else "generation": row["avg_ts"] for row in json.loads(said)}


def timed(model, remote, rounds):
    """Rates of both ways in turns, as rows."""
    ways, samples = {"native": native(), "remote": remote}, {}
    for turn in range(rounds):
        for way in sorted(ways, reverse=turn % 2 == 1):
            for name, rate in rates(model, ways[way]).items():
                samples.setdefault((name, way), []).append(rate)
    for name in ("prompt", "generation"):
        mine, theirs = (statistics.median(samples[name, way]) for way in ("remote", "native"))
        say(f"llama/{name}: native {theirs:.1f} tokens/s, remote {mine:.1f}, {theirs / mine:.3f} of native's time")
        yield {"name": f"llama/{name}", "unit": "1/s", "value": mine, "baseline": theirs, "ratio": theirs / mine, "goal": 1.01, "met": theirs / mine <= 1.01}


def compared(model, options, here, there):
    """Words that stay and words that move; whether they are the same."""
    few, many = WORDS[options.device]
    remote = with_libraries(here.guest_environment("shm"))
    well = True
    said = output_of(generation(model, few), remote)
    if options.device == "cuda":
        same = said == output_of(generation(model, few), native())
        say(f"{few} words: {'as natively' if same else 'OTHERS than natively'}")
        well &= same
    stayed = output_of(generation(model, many), remote)
    code, said, reports = moved(generation(model, many), here, there)
    same = code == 0 and said == stayed
    say(f"{many} words, moved {len(reports)} times ({reports}): {'the same' if same else f'OTHERS, status {code}'}")
    return well and same and len(reports) == MOVES


def main():
    """Executes the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(MODELS), default="software", help="default software")
    parser.add_argument("--operators", metavar="LIST", help="also these operators, with commas between, or `all`")
    parser.add_argument("--rounds", type=int, default=0, help="also time so many rounds (a GPU's)")
    parser.add_argument("--output", help="write rows there, as JSON")
    options = parser.parse_args()
    extra = [CAPABILITY] if options.device == "software" else []
    well, rows = True, []
    with tempfile.TemporaryDirectory(prefix="paragpu-llama-") as folder:
        model = os.path.join(folder, "model.gguf")
        subprocess.run([sys.executable, os.path.join(HERE, "llama_model.py"), *MODELS[options.device], model], check=True)
        with harness.Daemon(*extra, device=options.device) as here, harness.Daemon(*extra, device=options.device) as there:
            well &= compared(model, options, here, there)
            remote = with_libraries(here.guest_environment("shm"))
            if options.rounds:
                rows += timed(model, remote, options.rounds)
            if options.operators:
                names = "" if options.operators == "all" else options.operators
                allowed = operators(names, native())[1] if options.device == "cuda" else []
                passed, failed, code = operators(names, remote)
                failed = [case for case in failed if case not in allowed]
                say(f"operators: {passed} cases passed, status {code}; only here failed: {failed[:20]}")
                well &= not failed and passed > 0
                rows.append({"name": "llama/operators", "unit": "cases", "value": passed, "failed": failed})
            if not well:
                say(here.log()[-2000:])
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump({"results": rows}, file, indent=1)
    sys.exit(not well)


if __name__ == "__main__":
    main()
