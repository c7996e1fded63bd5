#!/usr/bin/env python3
"""llama.cpp as nvcc builds it, through paragpu: a model's words, and its operators.

usage: test_llama.py [--device software|cuda] [--operators LIST]

`make llama` builds it from the registry's source package, with NVIDIA's static
runtime and PTX; the model has random weights (llama_model.py). On a GPU the same
programs run natively: the words must be native's. Then a session moves to another
daemon and back while it generates, and the words must stay. --operators runs
llama.cpp's own comparison of operators with its CPU code. PARAGPU_TEST_LLAMA names
the folder of the programs where they are not in .cache/llama. `make bench-frameworks`
measures the rates.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench"))
# pylint: disable=wrong-import-position
import harness
from llama import MODELS, PATIENCE, model, output_of, program, with_libraries
from measure import say

PROMPT = "What does a program feel of the move of its GPU?"
# NVIDIA's libraries choose their PTX for a device that they do not know.
CAPABILITY = "--set=software.compute_capability=13.0"
# Words of a run that is compared, and of one that moves.
WORDS = {"cuda": (200, 4000), "software": (24, 120)}
# Number of moves during the output.
MOVES = 3


def native():
    """The environment of a native run."""
    return with_libraries({name: value for name, value in os.environ.items() if not name.startswith("PARAGPU_")})


def generation(path, words):
    """What says so many words."""
    return program("llama-simple", "-m", path, "-n", str(words), "-ngl", "99", PROMPT)


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


def compared(path, options, here, there):
    """Words that stay and words that move; whether they are the same."""
    few, many = WORDS[options.device]
    remote = with_libraries(here.guest_environment("shm"))
    well = True
    said = output_of(generation(path, few), remote)
    if options.device == "cuda":
        same = said == output_of(generation(path, few), native())
        say(f"{few} words: {'as natively' if same else 'OTHERS than natively'}")
        well &= same
    stayed = output_of(generation(path, many), remote)
    code, said, reports = moved(generation(path, many), here, there)
    same = code == 0 and said == stayed
    say(f"{many} words, moved {len(reports)} times ({reports}): {'the same' if same else f'OTHERS, status {code}'}")
    return well and same and len(reports) == MOVES


def main():
    """Executes the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(MODELS), default="software", help="default software")
    parser.add_argument("--operators", metavar="LIST", help="also these operators, with commas between, or `all`")
    options = parser.parse_args()
    extra = [CAPABILITY] if options.device == "software" else []
    well = True
    with tempfile.TemporaryDirectory(prefix="paragpu-llama-") as folder:
        path = model(options.device, folder)
        with harness.Daemon(*extra, device=options.device) as here, harness.Daemon(*extra, device=options.device) as there:
            well &= compared(path, options, here, there)
            remote = with_libraries(here.guest_environment("shm"))
            if options.operators:
                names = "" if options.operators == "all" else options.operators
                allowed = operators(names, native())[1] if options.device == "cuda" else []
                passed, failed, code = operators(names, remote)
                failed = [case for case in failed if case not in allowed]
                say(f"operators: {passed} cases passed, status {code}; only here failed: {failed[:20]}")
                well &= not failed and passed > 0
            if not well:
                say(here.log()[-2000:])
    sys.exit(not well)


if __name__ == "__main__":
    main()
