"""Stock frameworks on the software GPU, compared with the CPU.

usage: test_software_frameworks.py [FILE...]

Runs the cases of software_torch.py, software_triton.py and software_cupy.py, a
process for each file, with the Python of .cache/frameworks/venv, which `make
test-frameworks-software` fills. Says how many operators passed and what was
refused, and writes all of it to out/frameworks-software.json. Ends with 1 if a
case fails or an operator's result is wrong.
"""

import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
# pylint: disable=wrong-import-position
import harness

PYTHON = os.path.join(harness.ROOT, ".cache", "frameworks", "venv", "bin", "python")
STAND_IN = os.path.join(harness.ROOT, "guest-frontend", "ptxas", "ptxas")
OUTPUT = os.path.join(harness.ROOT, "out", "frameworks-software.json")
# Libraries of NVIDIA choose their PTX for a device that they do not know.
CAPABILITY = "--set=software.compute_capability=13.0"
FILES = ("torch", "triton", "cupy")
# Seconds that the cases of one file may take.
PATIENCE = 480
# Operators that must pass. A slow machine tries fewer of them.
LEAST = 150


def environment_of(daemon, folder):
    """What makes frameworks keep PTX, and keeps their caches apart."""
    return {
        **daemon.guest_environment("shm"),
        "CUPY_COMPILE_WITH_PTX": "1",
        "TRITON_PTXAS_PATH": STAND_IN,
        "TRITON_PTXAS_BLACKWELL_PATH": STAND_IN,
        "CUPY_CACHE_DIR": os.path.join(folder, "cupy"),
        "TRITON_CACHE_DIR": os.path.join(folder, "triton"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"),
    }


def cases(file, environment):
    """Results of a file's cases, and why there are none."""
    command = [PYTHON, "-W", "ignore", os.path.join(HERE, f"software_{file}.py")]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False
        )
        output, errors, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        output, errors, code = (late.stdout or b"").decode(errors="replace"), f"no end within {PATIENCE} s", 124
    results = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return results, f"status {code}: {errors[-2000:]}" if code or not results else None


def judged(result):
    """Whether a case passed, and a note about it."""
    if "error_of_case" in result:
        return False, result["error_of_case"]
    if "passed" not in result:
        return True, result.get("error", "")
    wrong = result["wrong"]
    counts = f"{result['passed']} operators passed, {len(result['refused'])} refused, {len(wrong)} wrong"
    return result["passed"] >= LEAST and not wrong, counts + "".join(f"\n    {name}: {why}" for name, why in wrong.items())


def main():
    """All files, or those named."""
    if not os.path.exists(PYTHON):
        raise SystemExit(f"{PYTHON} is not there: run `make test-frameworks-software`")
    well, rows = True, []
    with harness.Daemon(CAPABILITY) as daemon, tempfile.TemporaryDirectory(prefix="paragpu-frameworks-") as folder:
        for file in sys.argv[1:] or FILES:
            results, why = cases(file, environment_of(daemon, folder))
            if why:
                well = False
                print(f"{file}: {why}", flush=True)
            for result in results:
                passed, text = judged(result)
                well &= passed
                verdict = "passed" if passed else "FAILED"
                print(f"{file}/{result['case']:36} {verdict} {result['seconds']:6.1f} s  {text}", flush=True)
                rows.append({"file": file, "verdict": verdict, **result})
        left = daemon.left()
        if left:
            well = False
            print(f"sessions that did not end: {left}")
        if not well:
            print(f"the daemon said:\n{daemon.log()[-2000:]}")
    os.makedirs(os.path.dirname(OUTPUT), exist_ok=True)
    with open(OUTPUT, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "cases": rows}, file, indent=1)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
