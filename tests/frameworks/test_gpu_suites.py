"""The frameworks' own tests on this machine's GPU, natively and through paragpu.

usage: test_gpu_suites.py [--jobs N] [--seconds N] [--output FILE] [--cupy FOLDER] torch|jax|cupy...

`torch`: every operator of PyTorch's database, forward and backward, in five types
(suite_torch.py; needs expecttest); `jax`: every use of a primitive in JAX's database, forward and backward
(suite_jax.py; needs absl-py). Each runs natively twice, and remotely. A case that differs from
both is run REPEATS times more in each way; it fails if the native runs agree and a remote one
differs, or if it has an error that they do not have. `cupy`: the tests in CuPy's source
package, in FOLDER, by pytest with pytest-xdist, as many as the time permits; a test fails that
passes natively. Ends with 0 and a sentence where there is no GPU.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench"))
# pylint: disable=wrong-import-position
import gpu
from measure import described, harness, machine, say
from test_gpu_frameworks import installed
from turns import PACKAGED, QUIET, native

# Times that a shard begins again behind a case that ended it.
RESTARTS = 40
# Number of times that a case is repeated in each way before it counts as failed.
REPEATS = 5
# How a test ended, in what pytest-xdist says.
OUTCOME = re.compile(r"\[gw\d+\] \[ *\d+%\] (?P<how>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?P<name>.+?)\s*$")
# PyTorch's matrix products are deterministic with it.
ORDERED = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# Folders of CuPy's tests that are run.
CUPY = (
    "binary_tests core_tests creation_tests cuda_tests fft_tests functional_tests indexing_tests linalg_tests logic_tests "
    "manipulation_tests math_tests misc_tests padding_tests polynomial_tests random_tests sorting_tests statistics_tests"
).split()


class Unstarted(Exception):
    """A suite ended before its first case."""


def shard(suite, environment, number, jobs, end, only=()):
    """Results of one shard of a suite's cases, by case."""
    results, skip = {}, 0
    for _ in range(RESTARTS):
        command = [sys.executable, os.path.join(HERE, f"suite_{suite}.py"), str(number), str(jobs), "--skip", str(skip)]
        command += ["--only", *only] if only else []
        left = end - time.monotonic()
        if left <= 0:
            break
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=left, check=False)
            output, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            output, code = (late.stdout or b"").decode(errors="replace"), None
        begun = None
        for line in output.splitlines():
            if not line.startswith("{"):
                continue
            line = json.loads(line)
            if "begins" in line:
                begun, skip = line["begins"], skip + 1
            else:
                results[line["case"]] = line
        if code in (0, None):
            break
        if begun is None:
            raise Unstarted(f"suite_{suite}.py ended with status {code}: {done.stderr[-600:]}")
        results.setdefault(begun, {"error": f"the process ended with status {code}"})
    return results


def shards(suite, environment, options):
    """Results of all shards."""
    end = time.monotonic() + options.seconds
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        environment = {**environment, **QUIET, **ORDERED}
        parts = pool.map(lambda number: shard(suite, environment, number, options.jobs, end), range(options.jobs))
        return {name: line for part in parts for name, line in part.items()}


def failed(line):
    """The errors of a case, by the sample's number."""
    if "error" in line:
        return {None: line["error"]}
    return {number: text for number, text in enumerate(line["results"]) if ":" in text}


def differs(natives, remotes):
    """Why a case fails, or nothing: of each sample, all native and all remote results."""
    if any("error" in line for line in natives):
        return ""
    for line in remotes:
        if "error" in line:
            return line["error"]
        if len(line["results"]) != len(natives[0]["results"]):
            return f"{len(line['results'])} samples, natively {len(natives[0]['results'])}"
    for number, wanted in enumerate(zip(*(line["results"] for line in natives), strict=True)):
        for found in (line["results"][number] for line in remotes):
            both_fail = ":" in found and all(":" in each for each in wanted)
            if found in wanted or both_fail:
                continue
            if len(set(wanted)) == 1 or ":" in found:
                return f"sample {number}: {found}, natively {wanted[0]}"
    return ""


def compared(suite, environment, options):
    """Compares the cases of PyTorch's or JAX's database."""
    runs = []
    for way, where in (("natively", native()), ("natively again", native()), ("through paragpu", environment)):
        start = time.monotonic()
        runs.append(shards(suite, where, options))
        say(f"{suite} {way}: {len(runs[-1])} cases in {time.monotonic() - start:.0f} s")
    first, second, remote = runs
    both = [name for name in first if name in second and name in remote]
    natives, remotes = ({name: [run[name] for run in part] for name in both} for part in ((first, second), (remote,)))
    wrong = [name for name in both if differs(natives[name], remotes[name])]
    if wrong:
        say(f"{suite}: {len(wrong)} cases differ and are repeated: {', '.join(wrong)}")
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            end = time.monotonic() + options.seconds
            again = [
                (lines, pool.submit(shard, suite, {**where, **QUIET, **ORDERED}, 0, 1, end, wrong))
                for _ in range(REPEATS)
                for where, lines in ((native(), natives), (environment, remotes))
            ]
            for lines, repeat in again:
                for name in wrong:
                    lines[name].append(repeat.result().get(name, {"error": "no result"}))
    wrong = {name: why for name in wrong if (why := differs(natives[name], remotes[name]))}
    counts = {
        "cases": len(both),
        "samples": sum(len(first[name].get("results", [])) for name in both),
        "not reached": len(first) - len(both),
        "not repeated natively": sum(first[name] != second[name] for name in both),
        "unordered samples": sum(first[name].get("results", []).count("unordered") for name in both),
        "errors natively": sum(bool(failed(first[name])) for name in both),
        "errors remotely": sum(bool(failed(remote[name])) for name in both),
        "failed": len(wrong),
    }
    return counts, wrong


def pytest(environment, options):
    """How CuPy's tests ended, by name, and what pytest said last."""
    folders = [os.path.join("cupy_tests", folder) for folder in CUPY]
    command = [sys.executable, "-m", "pytest", "-v", "-n", str(options.jobs), "-p", "no:cacheprovider", "--tb=line"]
    command += ["-m", "not slow and not multi_gpu", *folders]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        with subprocess.Popen(
            command, env={**environment, **QUIET}, cwd=os.path.join(options.cupy, "tests"), stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        ) as program:
            try:
                program.wait(options.seconds)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)
        said.seek(0)
        lines = said.read().splitlines()
    ended = (OUTCOME.match(line) for line in lines)
    return {match["name"]: match["how"] for match in ended if match}, lines[-1:]


def tested(_, environment, options):
    """Compares CuPy's own tests."""
    outcomes = []
    for way, where in (("natively", native()), ("through paragpu", environment)):
        start = time.monotonic()
        ended, last = pytest(where, options)
        say(f"cupy {way}: {len(ended)} tests in {time.monotonic() - start:.0f} s: {last}")
        outcomes.append(ended)
    first, remote = outcomes
    both = sorted(set(first) & set(remote))
    wrong = {name: remote[name] for name in both if first[name] == "PASSED" and remote[name] in ("FAILED", "ERROR")}
    counts = {
        "cases": len(both),
        "natively": collections.Counter(first[name] for name in both),
        "remotely": collections.Counter(remote[name] for name in both),
        "failed": len(wrong),
    }
    return counts, wrong


# How each suite is run, and what it imports.
SUITES = {"torch": (compared, "torch"), "jax": (compared, "jax, absl.testing"), "cupy": (tested, "cupy")}


def main():
    """Runs the suites that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="processes at once")
    parser.add_argument("--seconds", type=int, default=180, help="longest that one way of a suite may take (default 180)")
    parser.add_argument("--cupy", metavar="FOLDER", default=".cache/cupy", help="CuPy's source package (cupy-*.tar.gz of the release that is installed), unpacked")
    parser.add_argument("--communicator", default="shm", choices=harness.HOST_COMMUNICATORS)
    parser.add_argument("--output", help="write the counts and what failed there, as JSON")
    parser.add_argument("suites", nargs="*", default=list(SUITES), help=" ".join(SUITES))
    options = parser.parse_args()
    try:
        gpu.probe()
    except gpu.NoGpu as why:
        print(f"skipped: {why}")
        return 0
    rows, well = [], True
    for name in options.suites:
        suite, imports = SUITES[name]
        if not installed(imports):
            say(f"{name}: skipped, one of these is not installed: {imports}")
            continue
        with harness.Daemon("--warm=2", device="cuda") as daemon:
            try:
                counts, wrong = suite(name, {**daemon.guest_environment(options.communicator), **PACKAGED}, options)
            except Unstarted as why:
                say(f"{name}: {why}")
                well = False
                continue
            said = daemon.log()
        say(f"{name}: {counts}")
        for case, why in list(wrong.items())[:60]:
            say(f"  {case}: {why}")
        if wrong:
            say(f"the daemon said:\n{said[-3000:]}")
        well &= not wrong and counts["cases"] > 0
        rows.append({"name": name, **counts, "wrong": wrong})
    if options.output:
        command = f"tests/frameworks/test_gpu_suites.py {' '.join(sys.argv[1:])}"
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump(described("The frameworks' own tests through paragpu beside native", machine(), command, results=rows), file, indent=1)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
