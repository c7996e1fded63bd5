#!/usr/bin/env python3
"""Everything that `make test` checks, stage by stage, with a summary at the end.

usage: run.py [STAGE...]   only these stages and the build (default: all)

The build comes first. Then two stages more run at once than this machine has
cores, PARAGPU_TEST_JOBS of them if that is set: several wait much.
Each line of a stage's output is shown behind the stage's name and kept in
out/test/STAGE.log. A stage that fails does not keep the rest from running.
The sum gives the time of each stage by the clock and of the processors, what
failed, and why tests were skipped. Ends with 1 if anything failed.
"""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
LOGS = os.path.join(ROOT, "out", "test")
DEMO = os.path.join(LOGS, "demo.json")
HOSTILE = os.path.join(ROOT, "out", "hostile.json")
# Exit status of a stage that cannot run for this user.
SKIPPED = 77
# Environment of the Python tests for the built files; the kernel module is
# built with the same flags wherever it is.
BUILT = {
    "WERROR": "1",
    "PARAGPU_TEST_BINARIES": os.path.join(ROOT, "target", "debug"),
    "PARAGPU_TEST_LIBRARIES": os.path.join(ROOT, "out", "debug", "lib"),
}


class Count:
    """How many checks passed, failed and were skipped; why they were skipped, and what failed."""

    def __init__(self, passed=0, failed=0, skipped=0, reasons=(), faults=()):
        self.passed, self.failed, self.skipped = passed, failed, skipped
        self.reasons, self.faults = list(reasons), list(faults)

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")

    def why(self):
        """A line for each test that failed, and for each reason for which tests were skipped."""
        yield from (f"failed: {fault}" for fault in self.faults)
        tests = {}
        for entry in self.reasons:
            test, _, reason = entry.partition(": ")
            tests.setdefault(reason or test, []).append(test)
        for reason, names in tests.items():
            yield f"skipped: {', '.join(names) if len(names) < 4 else f'{len(names)} tests'}: {reason}"

    def add(self, other):
        """Adds another count to this."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.reasons += other.reasons
        self.faults += other.faults


def of_cargo(log):
    """From cargo's line for each test program. Rust's test programs know nothing of
    skipping: a test that cannot run says so past their capture, and passes."""
    total = Count()
    for line in re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", log, re.MULTILINE):
        total.add(Count(*map(int, line)))
    reasons = re.findall(r"skipped: ([\w:]+: .+)$", log, re.MULTILINE)
    total.add(Count(-len(reasons), 0, len(reasons), reasons, re.findall(r"^test (\S+) .*FAILED$", log, re.MULTILINE)))
    return total


def of_unittest(log):
    """From the closing lines of Python's unittest. Several subtests of one test may fail."""
    ran = sum(map(int, re.findall(r"^Ran (\d+) tests? in", log, re.MULTILINE)))
    closing = re.findall(r"^(?:OK|FAILED) \((.*)\)$", log, re.MULTILINE)
    counts = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", closing[-1] if closing else "")}
    failed = min(ran, counts.get("failures", 0) + counts.get("errors", 0))
    skipped = counts.get("skipped", 0)
    # In front stands the test's name, or the first line of its documentation.
    reasons = re.findall(r"^(.+?)(?: \(.*\))? \.\.\. skipped ['\"](.*)['\"]$", log, re.MULTILINE)
    # A report begins with the test's name; the line that says why begins with the exception's.
    reports = re.findall(r"^=+\n(?:FAIL|ERROR): (.+)\n(?s:(.*?))(?=^[=-]{70}\n(?:Ran|FAIL|ERROR|\Z))", log, re.MULTILINE)
    faults = (": ".join([name, *re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Expired|Exit)\b.*$", text, re.MULTILINE)[-1:]]) for name, text in reports)
    return Count(ran - failed - skipped, failed, skipped, (": ".join(reason) for reason in reasons), faults)


def of_vm(log):
    """From the JSON line that the guest prints for each test."""
    results = []
    for line in re.findall(r'^\{"test":.*\}$', log, re.MULTILINE):
        try:
            result = json.loads(line)
            results.append((result["test"], result["ok"]))
        except (ValueError, KeyError):
            results.append((line, False))
    return of_results(results)


def of_hostile(_):
    """From the results of the attacks."""
    with open(HOSTILE, encoding="utf-8") as file:
        tried = json.load(file)
    count = of_results([(result["name"], result["held"]) for result in tried["results"]])
    count.skipped = len(tried["skipped"])
    return count


def of_demo(_):
    """From the results of the demo."""
    with open(DEMO, encoding="utf-8") as file:
        runs = json.load(file)["runs"]
    return of_results([(f"{run['program']} over {run['communicator']}", run["ok"]) for run in runs])


def of_results(results):
    """From each test's name and whether it succeeded."""
    faults = [name for name, ok in results if not ok]
    return Count(len(results) - len(faults), len(faults), faults=faults)


def of_parity(text):
    """From the line that test_parity.py ends with."""
    functions, differing = re.findall(r"^(\d+) functions, \d+ rows: (\d+) differ", text, re.M)[-1]
    return Count(int(functions), int(differing))


def one(_):
    """A stage that is one check: its exit status says it all."""
    return Count(1)


# Every target in one call, so that each crate is compiled for one set of
# features; later calls of cargo find their targets there.
BUILD = ["make", "-s", "tested", "TESTED=--lib --bins --tests --examples"]

# Builds the files that every VM loads.
MODULE = """
release=$(vm-images/fetch-kernel.sh .cache)
make --no-print-directory -C kernel-module \\
    KDIR="$PWD/.cache/kernel/$release/headers" OUT="$PWD/out/module/$release"
"""

# The software GPU's answers beside those of NVIDIA's driver.
PARITY = f"""
target/debug/examples/prototypes out/prototypes.json
exec {sys.executable} tests/parity/test_parity.py --device software --jobs 2 --recorded tests/parity/native-h100.json
"""

# Tests that boot VMs.
VM_MODULES = ("test_vm.py", "test_vm_moves.py", "test_kubevirt.py")


def debian():
    """Number of this Debian's release."""
    number = platform.freedesktop_os_release().get("VERSION_ID", "")
    return int(number) if number.isdigit() else sys.maxsize


class Stage:
    """One command, and how its checks are counted."""

    def __init__(self, name, command, counter, after=("build",), environment=None):
        self.name, self.command, self.counter, self.after = name, command, counter, after
        self.environment = {**os.environ, **BUILT, **(environment or {})}
        self.count, self.seconds, self.processor = Count(), 0.0, 0.0

    @property
    def log(self):
        """The file of its output."""
        return os.path.join(LOGS, f"{self.name}.log")


def modules(names):
    """Command that runs modules of the end-to-end tests."""
    return [sys.executable, "-m", "unittest", "-v", *(f"end_to_end.{name.removesuffix('.py')}" for name in names)]


def stages():
    """The stages. Those that take long come first; none comes before one that it waits for."""
    found = sorted(name for name in os.listdir(os.path.join(HERE, "end_to_end")) if re.fullmatch(r"test_\w+\.py", name))
    python = {"PYTHONPATH": HERE}
    on_host = [name for name in found if name not in VM_MODULES]
    first = ("build", "module")
    yield Stage("build", BUILD, one, after=())
    yield Stage("module", ["bash", "-ec", MODULE], one, after=())
    newer = ()
    if debian() < 13:
        # On Debian 13 the kernel of the stage before is 6.12.
        yield Stage("module-6.12", [os.path.join(ROOT, "kernel-module", "build-against-trixie.sh")], one, after=())
        newer = ("module-6.12",)
    demo = [sys.executable, os.path.join(HERE, "demo", "demo.py"), "--where", "vm", "--device", "software", "--output", DEMO]
    yield Stage("demo", demo, of_demo, after=first)
    yield Stage("end-to-end", modules(on_host), of_unittest, environment=python)
    # Comments hold no examples to compile (tests/tree), which rustdoc would look for in each crate.
    yield Stage("unit", ["cargo", "test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"], of_cargo)
    yield Stage("parity", ["bash", "-ec", PARITY], of_parity)
    yield Stage("end-to-end-vm", modules(VM_MODULES), of_unittest, after=(*first, *newer), environment=python)
    yield Stage("vm", [os.path.join(HERE, "vm", "run.sh")], of_vm, after=first)
    yield Stage("hostile", [sys.executable, os.path.join(HERE, "hostile", "run.py"), "--output", HOSTILE], of_hostile)
    yield Stage("wire", [sys.executable, "-m", "unittest", "-v", "wire.test_wire"], of_unittest, environment=python)
    yield Stage("tree", [sys.executable, "-m", "unittest", "-v", "tree.test_tree", "tree.test_documents"], of_unittest, after=(), environment=python)


class Running:
    """The children that run, so that all end with this process; and the terminal."""

    def __init__(self):
        self.children, self.lock, self.over = set(), threading.Lock(), False

    def say(self, line):
        """Prints a whole line."""
        with self.lock:
            print(line, flush=True)

    def start(self, stage):
        """Starts a stage, unless this process is about to end."""
        with self.lock:
            if self.over:
                raise KeyboardInterrupt
            child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *stage.command],
                cwd=ROOT,
                env=stage.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self.children.add(child)
            return child

    def wait(self, child):
        """Waits for a child: its exit status and the processors' time of it and of
        its descendants."""
        _, status, usage = os.wait4(child.pid, 0)
        with self.lock:
            self.children.discard(child)
            child.returncode = os.waitstatus_to_exitcode(status)
        return child.returncode, usage.ru_utime + usage.ru_stime

    def end(self):
        """Ends all."""
        with self.lock:
            self.over = True
            for child in self.children:
                child.terminate()


def run(stage, running):
    """Runs one stage; its count has a failure unless it ended with 0."""
    running.say(f"== {stage.name}")
    begin = time.monotonic()
    child = running.start(stage)
    with open(stage.log, "w", encoding="utf-8") as log:
        for line in child.stdout:
            log.write(line)
            running.say(f"{stage.name}: {line.rstrip()}")
    code, stage.processor = running.wait(child)
    stage.seconds = time.monotonic() - begin
    with open(stage.log, encoding="utf-8") as log:
        text = log.read()
    try:
        count = stage.counter(text)
    except (OSError, ValueError, LookupError):
        count = Count()
    if code == SKIPPED:
        count = Count(skipped=1, reasons=text.strip().splitlines()[-1:])
    elif code == 0 and count.passed + count.failed == 0:
        running.say(f"{stage.name}: nothing was tested")
        count = Count(failed=1)
    elif code != 0 and count.failed == 0:
        # It broke before or beside its tests.
        count = Count(0 if stage.counter is one else count.passed, 1, count.skipped, count.reasons)
    stage.count = count


def schedule(chosen, running):
    """Runs stages concurrently, each after those that it depends on. Two more than there are
    processors: together they wait for half of their time, one of them (parity) for most of it."""
    jobs = int(os.environ.get("PARAGPU_TEST_JOBS", 2 + (os.cpu_count() or 1)))
    futures = {}

    def turn(stage):
        # Those are before it in the queue, so they have begun.
        for name in stage.after:
            if name in futures:
                futures[name].result()
        run(stage, running)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for stage in chosen:
                futures[stage.name] = pool.submit(turn, stage)
            for future in futures.values():
                future.result()
        except BaseException:
            running.end()
            pool.shutdown(cancel_futures=True)
            raise


def main():
    """Runs the stages; prints the sum."""
    # Being ended runs the same cleaning up as Ctrl-C, which a shell's background
    # jobs are born ignoring.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted = sys.argv[1:]
    known = list(stages())
    unknown = set(wanted) - {stage.name for stage in known}
    if unknown:
        sys.exit(f"run.py: no such stage: {', '.join(sorted(unknown))}; there are {', '.join(stage.name for stage in known)}")
    os.makedirs(LOGS, exist_ok=True)
    if os.path.exists(DEMO):
        os.remove(DEMO)
    chosen = [stage for stage in known if not wanted or stage.name in (*wanted, "build")]
    begin = time.monotonic()
    schedule(chosen, Running())
    total = Count()
    print("== sum")
    for stage in chosen:
        total.add(stage.count)
        word = f"FAILED, see {os.path.relpath(stage.log)}" if stage.count.failed else "ok"
        print(f"{stage.name:14}{stage.seconds:7.0f} s, processors {stage.processor:5.0f} s  {stage.count}: {word}")
        for line in stage.count.why():
            print(f"{'':14}{line}")
    processor = sum(stage.processor for stage in chosen)
    print(f"{total} in {time.monotonic() - begin:.0f} s, processors {processor:.0f} s")
    return 1 if total.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
