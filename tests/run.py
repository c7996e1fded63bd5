#!/usr/bin/env python3
"""Everything that `make test` checks, stage by stage, with a sum at the end.

usage: run.py [STAGE...]   only these stages (default: all)

The output of each stage is shown as it comes and kept in out/test/STAGE.log. A
stage that fails does not keep the rest from running. Ends with 1 if anything
failed.
"""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
LOGS = os.path.join(ROOT, "out", "test")
DEMO = os.path.join(LOGS, "demo.json")
# What a stage ends with that cannot run for this user.
SKIPPED = 77


class Count:
    """How many checks passed, failed and were skipped."""

    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")

    def add(self, other):
        """Adds another count to this."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def of_cargo(log):
    """From cargo's line for each test program."""
    total = Count()
    for line in re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", log, re.MULTILINE):
        total.add(Count(*map(int, line)))
    return total


def of_unittest(log):
    """From the closing lines of Python's unittest. Several subtests of one test may fail."""
    ran = sum(map(int, re.findall(r"^Ran (\d+) tests? in", log, re.MULTILINE)))
    closing = re.findall(r"^(?:OK|FAILED) \((.*)\)$", log, re.MULTILINE)
    counts = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", closing[-1] if closing else "")}
    failed = min(ran, counts.get("failures", 0) + counts.get("errors", 0))
    skipped = counts.get("skipped", 0)
    return Count(ran - failed - skipped, failed, skipped)


def of_vm(log):
    """From the JSON line that the guest prints for each test."""
    results = []
    for line in re.findall(r'^\{"test":.*\}$', log, re.MULTILINE):
        try:
            results.append(json.loads(line)["ok"])
        except (ValueError, KeyError):
            results.append(False)
    return Count(results.count(True), results.count(False))


def of_demo(_):
    """From what the demo wrote about its runs."""
    with open(DEMO, encoding="utf-8") as file:
        runs = [run["ok"] for run in json.load(file)["runs"]]
    return Count(runs.count(True), runs.count(False))


def one(_):
    """A stage that is one check: its exit status says it all."""
    return Count(1)


# Fetches this Debian's kernel; builds the module for it.
MODULE = """
release=$(vm-images/fetch-kernel.sh .cache)
make --no-print-directory -C kernel-module WERROR=1 \\
    KDIR="$PWD/.cache/kernel/$release/headers" OUT="$PWD/out/module/$release-werror"
"""


def debian():
    """Number of this Debian's release."""
    number = platform.freedesktop_os_release().get("VERSION_ID", "")
    return int(number) if number.isdigit() else sys.maxsize


def stages():
    """Name, command, environment and counter of each stage, in order."""
    unittest = [sys.executable, "-m", "unittest", "discover", "-v", "-t"]
    yield "unit", ["cargo", "test", "--workspace", "--no-fail-fast"], {}, of_cargo
    yield (
        "ring-model",
        ["cargo", "test", "--release", "-p", "paragpu-communicator-ring", "--lib", "model"],
        {"RUSTFLAGS": "--cfg loom", "CARGO_TARGET_DIR": os.path.join(ROOT, "target", "loom")},
        of_cargo,
    )
    yield "module", ["bash", "-ec", MODULE], {}, one
    if debian() < 13:
        # On Debian 13 the kernel of the stage before is 6.12.
        yield "module-6.12", [os.path.join(ROOT, "kernel-module", "build-against-trixie.sh")], {}, one
    yield "wire", [*unittest, os.path.join(HERE, "wire"), "-s", os.path.join(HERE, "wire")], {}, of_unittest
    yield "end-to-end", [*unittest, HERE, "-s", os.path.join(HERE, "end_to_end")], {}, of_unittest
    yield "vm", [os.path.join(HERE, "vm", "run.sh")], {}, of_vm
    yield "demo", [sys.executable, os.path.join(HERE, "demo", "demo.py"), "--device", "software", "--output", DEMO], {}, of_demo


def run(name, command, environment, counter):
    """Runs one stage; returns its count, in which something failed unless it ended with 0."""
    path = os.path.join(LOGS, f"{name}.log")
    with open(path, "w", encoding="utf-8") as log:
        child = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            for line in child.stdout:
                log.write(line)
                print(line, end="", flush=True)
            code = child.wait()
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
    with open(path, encoding="utf-8") as log:
        text = log.read()
    try:
        count = counter(text)
    except (OSError, ValueError, KeyError):
        count = Count()
    if code == SKIPPED:
        count = Count(skipped=1)
    elif code == 0 and count.passed + count.failed == 0:
        print(f"{name}: nothing was tested", flush=True)
        count = Count(failed=1)
    elif code != 0 and count.failed == 0:
        # It broke before or beside its tests.
        count = Count(0 if counter is one else count.passed, 1, count.skipped)
    return count


def main():
    """Runs the stages; prints the sum."""
    # Being ended runs the same cleaning up as Ctrl-C, which a shell's background
    # jobs are born ignoring.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted = sys.argv[1:]
    known = list(stages())
    unknown = set(wanted) - {name for name, *_ in known}
    if unknown:
        sys.exit(f"run.py: no such stage: {', '.join(sorted(unknown))}; there are {', '.join(name for name, *_ in known)}")
    os.makedirs(LOGS, exist_ok=True)
    if os.path.exists(DEMO):
        os.remove(DEMO)
    total, lines = Count(), []
    begin = time.monotonic()
    for name, command, environment, counter in known:
        if wanted and name not in wanted:
            continue
        print(f"== {name}", flush=True)
        start = time.monotonic()
        count = run(name, command, environment, counter)
        total.add(count)
        word = f"FAILED, see {os.path.relpath(os.path.join(LOGS, name))}.log" if count.failed else "ok"
        lines.append(f"{name:14}{time.monotonic() - start:7.0f} s  {count}: {word}")
    print("== sum", *lines, sep="\n")
    print(f"{total} in {time.monotonic() - begin:.0f} s")
    return 1 if total.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
