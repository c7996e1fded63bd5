"""Tests on a real NVIDIA GPU: every program natively and over every communicator
of a host, results compared bit for bit; programs that move to another daemon in
the middle of a run, and to the software GPU and back; the GPU's memory returns
to its start; compute-sanitizer over a worker where it is installed. Ends with 0
and a sentence where there is no GPU.

`--moves` is the moves alone, with the sentence of each that is refused;
`--moves --device software` does them without a GPU, between two models. `--vm`
runs every program in a VM over the PCI device, without KVM if need be;
PARAGPU_TEST_VM names a folder with kernel/vmlinuz and initramfs.cpio where they
cannot be built.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
import gpu
from harness import vm
from measure import harness, say

# Bytes by which a context's own memory differs from another's: less than the
# 2 MiB that the smallest leak of a session would hold.
NOISE = 1 << 20
# What a GPU keeps from managed memory, as long as any process has a context on it:
# 122 MiB on an H100, natively as well.
MANAGED = {"managedMemory": 160 << 20, "managedVariables": 160 << 20, "hostMemory": 160 << 20}
# Programs that compute-sanitizer follows: memory, textures, graphs of streams, errors.
SANITIZED = ("vectorAdd", "copies", "bicubicTexture", "streamsAndEvents")


def digest_of(output):
    """The result's digest in the line that a program prints with --json."""
    for line in output.splitlines():
        if line.startswith('{"program"'):
            return json.loads(line).get("digest")
    return None


def published_digests():
    """Digests of an H200, by program."""
    path = os.path.join(harness.ROOT, "tests/programs/digests-h200.txt")
    with open(path, encoding="utf-8") as lines:
        return dict(line.split()[:2] for line in lines if line.strip() and not line.startswith("#"))
# Programs that are moved: graphs, textures, variables, events, callbacks, copies.
MOVED = ("graphs", "nbody", "symbolsAndGlobals", "streamsAndEvents", "bicubicTexture", "copies", "reduction", "driverApi")
# Those that give, bit for bit, the same result on the software GPU.
EXACT = ("graphs", "symbolsAndGlobals", "streamsAndEvents", "copies", "reduction", "driverApi")
# Of these, those with variables of modules, whose addresses a driver chooses: they
# need not find the same ones on another model, but must then go on.
VARIABLES = ("symbolsAndGlobals", "driverApi")
# How long a program that is moved runs.
RUN_SECONDS = 2


class Report:
    """Tested programs and failures."""

    def __init__(self):
        self.entries, self.problems = [], []

    def check(self, good, problem):
        """Notes a problem."""
        if not good:
            self.problems.append(problem)
            say(f"WRONG: {problem}")
        return good


def native(program, timeout=120):
    """Runs a program with NVIDIA's runtime."""
    start = time.monotonic()
    done = subprocess.run(
        [os.path.join(harness.PROGRAMS, program), "--json"],
        env=gpu.native_environment(),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr, time.monotonic() - start


def programs(report, device, daemon, names, warm):
    """Every program, natively and over every communicator."""
    expected = published_digests() if "H200" in device["name"] else {}
    gpu.await_warm(daemon, warm)
    before = gpu.memory_used(device)
    for name in names:
        code, output, errors, seconds = native(name)
        digest = digest_of(output)
        entry = {"program": name, "native": {"code": code, "digest": digest, "seconds": round(seconds, 3)}}
        report.check(code == 0, f"{name} natively: exit status {code}: {output}{errors}".strip())
        if name in expected:
            report.check(digest == expected[name], f"{name} natively: digest {digest}, not {expected[name]} as published")
        for communicator in harness.HOST_COMMUNICATORS:
            run = daemon.run(name, communicator, ("--json",))
            got = digest_of(run.output)
            entry[communicator] = {"code": run.code, "digest": got, "seconds": round(run.seconds, 3), **run.counters}
            where = f"{name} over {communicator}"
            if report.check(run.code == 0, f"{where}: exit status {run.code}: {run.output}{run.errors}".strip()[:2000]):
                report.check(got == digest, f"{where}: digest {got}, natively {digest}")
                report.check(run.counters["calls"] > 0, f"{where}: never reached the backend")
        report.entries.append(entry)
        try:
            gpu.await_warm(daemon, warm)
            most = before + MANAGED.get(name, NOISE)
            gpu.until(lambda: gpu.memory_used(device) <= most, f"the GPU's memory back at {before} bytes")
            before = max(before, gpu.memory_used(device)) if name in MANAGED else before
        except RuntimeError as error:
            report.check(False, f"after {name}: {error}; {gpu.memory_used(device)} bytes are in use")
            before = gpu.memory_used(device)
        words = ", ".join(f"{way} {entry[way]['seconds']:.2f} s" for way in ("native", *harness.HOST_COMMUNICATORS))
        say(f"{name}: {words}")


def ask(daemon, *arguments):
    """Runs paragpu; returns its exit status, output and errors."""
    command = [harness.binary("paragpu"), "--control", daemon.control, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def move(report, stations, name, communicator, may_stay=False):
    """Runs a program, and again as many rounds while it moves from station to
    station, daemons of which the first is where it begins; compares. It may be
    refused for the addresses of its modules' variables where it `may_stay`."""
    where = f"{name} over {communicator}, moved"
    here = stations[0]
    stayed = here.run(name, communicator, ("--json", "--no-verify", "--seconds", str(RUN_SECONDS)))
    lines = [line for line in stayed.output.splitlines() if line.startswith('{"program"')]
    if not report.check(stayed.code == 0 and lines, f"{where}: the run that stays: {stayed.output}{stayed.errors}".strip()):
        return {}
    stayed = json.loads(lines[-1])
    program = subprocess.Popen(
        [os.path.join(harness.PROGRAMS, name), "--json", "--no-verify", "--iterations", str(max(stayed["rounds"], 1))],
        env=here.guest_environment(communicator),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        gpu.until(lambda: program.poll() is not None or any(map(worked, here.sessions())), f"{name} to begin")
        # Somewhere in the middle.
        time.sleep(RUN_SECONDS / 4)
        took = []
        for at, to in itertools.pairwise(stations):
            sessions = at.sessions()
            if not report.check(sessions, f"{where}: it ended before it could move"):
                return {}
            order = ("migrate", str(sessions[0]["id"]), "--to", f"unix://{to.socket}", "-o", "json")
            code, output, refused = ask(at, *order)
            if not report.check(code == 0 or (may_stay and re.search(" of the session (is at|has other variables)", refused)), f"{where}: {refused}") or code:
                took.append({"refused": refused})
                break
            took.append(json.loads(output))
            arrived = sum(map(worked, to.sessions()))
            gpu.until(lambda: program.poll() is not None or sum(map(worked, to.sessions())) > arrived, f"{name} to go on")  # noqa: B023
        printed, errors = program.communicate(timeout=120)
        digest = digest_of(printed)
        same = digest == stayed["digest"]
        report.check(same, f"{where}: digest {digest}, without a move {stayed['digest']}: {printed}{errors}".strip()[:2000])
        say(f"{where}: {took}, {'the same' if same else 'ANOTHER'} result")
        return {**took[-1], "moves": took}
    finally:
        program.kill()
        program.communicate()


def worked(session):
    """What a session did, as a number that grows."""
    return session["launches"] + session["bytes_to_device"]


def moves(report, kind, names, log=None, between=()):
    """Programs that go to another daemon in the middle of a run, and those of
    `between` to the software GPU and back."""
    entries = []
    try:
        with contextlib.ExitStack() as stack:
            here = stack.enter_context(harness.Daemon("--warm=2", device=kind, log=log))
            there = stack.enter_context(harness.Daemon("--warm=2", device=kind))
            older = {"PARAGPU_HOST_SOFTWARE_COMPUTE_CAPABILITY": "8.0"}
            with mock.patch.dict(os.environ, older):
                other = stack.enter_context(harness.Daemon("--warm=2", device="software"))
            for name in names:
                for communicator in ("shm", "unix"):
                    plans = {"moves": (here, there), "between": (here, other, here)}
                    for plan, stations in plans.items():
                        if plan == "between" and name not in between:
                            continue
                        for station in stations:
                            gpu.await_warm(station, 2)
                        what = {"program": name, "communicator": communicator, "plan": plan}
                        may_stay = plan == "between" and name in VARIABLES
                        entries.append({**what, **move(report, stations, name, communicator, may_stay)})
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        report.check(False, f"moves: {type(error).__name__}: {error}")
    return entries


def sanitized(report, names):
    """Programs over a worker that compute-sanitizer follows."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        say("compute-sanitizer is not installed: skipped")
        return "not installed"
    with tempfile.TemporaryDirectory(prefix="paragpu-sanitizer-") as folder:
        wrapper = os.path.join(folder, "worker")
        # paragpud lets its children run programs of the system and of the worker's folder only.
        worker = shutil.copy(harness.binary("paragpu-worker"), folder)
        with open(wrapper, "w", encoding="utf-8") as script:
            script.write(
                f'#!/bin/sh\nexec {tool} --tool memcheck --leak-check no --report-api-errors no --log-file {folder}/%p.log '
                f'{worker} "$@"\n'
            )
        os.chmod(wrapper, os.stat(wrapper).st_mode | stat.S_IXUSR)
        try:
            with harness.Daemon(f"--worker={wrapper}", "--warm=1", device="cuda") as daemon:
                gpu.await_warm(daemon, 1)
                for name in names:
                    say(f"{name} under compute-sanitizer")
                    run = daemon.run(name, "shm", ("--json",), timeout=180)
                    report.check(run.code == 0, f"{name} under compute-sanitizer: {run.output}{run.errors}".strip()[:2000])
                    gpu.await_warm(daemon, 1)
        except RuntimeError as error:
            report.check(False, f"compute-sanitizer: {error}")
        summaries, errors = 0, []
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.name.endswith(".log"):
                with open(entry.path, encoding="utf-8", errors="replace") as log:
                    text = log.read()
                summaries += "ERROR SUMMARY" in text
                if "ERROR SUMMARY" in text and "ERROR SUMMARY: 0 errors" not in text:
                    errors.append(text[-3000:])
        report.check(summaries >= len(names), f"compute-sanitizer followed {summaries} workers to their end, not {len(names)}")
        report.check(not errors, "compute-sanitizer found errors:\n" + "\n".join(errors))
        return f"{summaries} workers, {len(errors)} with errors"


def conformance(report):
    """The suite that every device passes, where its binary was brought along."""
    path = os.environ.get("PARAGPU_TEST_CONFORMANCE")
    if path:
        command = [path, "--nocapture"]
    elif shutil.which("cargo"):
        command = ["cargo", "test", "--offline", "--quiet", "-p", "paragpu-device-cuda", "--test", "conformance", "--", "--nocapture"]
    else:
        return "neither its binary nor cargo is here"
    done = subprocess.run(command, cwd=harness.ROOT, capture_output=True, text=True, timeout=600, check=False)
    report.check(done.returncode == 0, f"the device's conformance suite:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    report.check("skipped" not in done.stderr, f"the device's conformance suite was skipped: {done.stderr.strip()}")
    return "passed" if done.returncode == 0 else "failed"


# One line for each program: exit status and reported result.
VM_SCRIPT = """
printf 'communicator = "pci"\\n' >/etc/paragpu/guest.toml
failed=0
for program in {programs}; do
    begin=$(cut -d' ' -f1 /proc/uptime)
    timeout {seconds} /opt/paragpu/programs/$program --json >/tmp/output 2>&1
    code=$?
    end=$(cut -d' ' -f1 /proc/uptime)
    [ $code = 0 ] || {{ failed=1; sed "s/^/$program: /" /tmp/output; }}
    grep '^{{"program"' /tmp/output
    echo "{{\\"of\\":\\"$program\\",\\"code\\":$code,\\"begin\\":$begin,\\"end\\":$end}}"
done
exit $failed
"""


def in_a_vm(options):
    """Every program in a VM over the PCI device, its result beside the native one."""
    report, names = Report(), options.programs or harness.program_names()
    expected = {name: digest_of(native(name)[1]) for name in names} if options.device == "cuda" else {}
    carried = os.environ.get("PARAGPU_TEST_VM")
    image = os.path.join(carried or os.path.join(harness.ROOT, "out"), "initramfs.cpio" if carried else "test-gpu-initramfs.cpio")
    kernel = os.path.join(carried, "kernel") if carried else vm.build_image(image)
    results, digests, said = {}, {}, []

    def take(line):
        entry = json.loads(line) if line.startswith("{") else {}
        if "program" in entry:
            digests[entry["program"]] = entry.get("digest")
        elif "of" in entry:
            results[entry["of"]] = entry
            say(f"{entry['of']} in the VM: exit status {entry['code']}, {entry['end'] - entry['begin']:.2f} s")
        elif line:
            said.append(line)

    with harness.Daemon("--warm=2", device=options.device, log=options.log) as daemon, vm.Device(daemon) as device:
        gpu.await_warm(daemon, 2)
        script = VM_SCRIPT.format(programs=" ".join(names), seconds=120)
        about = vm.boot(kernel, image, script, take, device=device, timeout=540)
    report.check(about, "the VM did not boot")
    for name in names:
        code, digest = results.get(name, {}).get("code"), digests.get(name)
        report.check(code == 0, f"{name} in the VM: {'exit status ' + str(code) if name in results else 'it did not end'}")
        report.check(name not in expected or digest == expected[name], f"{name} in the VM: digest {digest}, natively {expected.get(name)}")
    entries = [{"program": name, "digest": digests.get(name), "native": expected.get(name), **results.get(name, {})} for name in names]
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump({"version": 1, **about, "programs": entries, "problems": report.problems}, file, indent=1)
        file.write("\n")
    right = sum(results.get(name, {}).get("code") == 0 and digests.get(name) == expected.get(name, digests.get(name)) for name in names)
    beside = "gave the native result" if expected else "gave a right result"
    print(f"{right} of {len(names)} programs in a VM ({about.get('accel')}, {about.get('guest_kernel')}) {beside}; {len(report.problems)} problems")
    for problem in report.problems + (said[-20:] if report.problems else []):
        print(f"- {problem}")
    return 1 if report.problems else 0


def alone(options):
    """The moves alone."""
    report, names = Report(), options.programs or MOVED
    entries = moves(report, options.device, names, options.log, EXACT)
    for plan, words in (("moves", "moved to another daemon"), ("between", "moved to another model and back")):
        planned = [entry for entry in entries if entry["plan"] == plan]
        moved = sum("refused" not in entry and "blackout_ms" in entry for entry in planned)
        refused = sum("refused" in entry for entry in planned)
        print(f"{moved} of {len(planned)} {words}, {refused} refused")
    print(f"{len(report.problems)} problems")
    for problem in report.problems:
        print(f"- {problem}")
    return 1 if report.problems else 0


def main():
    """The tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out/test-gpu.json"), help="where the JSON goes")
    parser.add_argument("--log", help="keep the daemon's log here")
    parser.add_argument("--no-sanitizer", action="store_true", help="without compute-sanitizer")
    parser.add_argument("--moves", action="store_true", help="only programs that move in the middle of a run")
    parser.add_argument("--device", choices=("cuda", "software"), default="cuda", help="of --moves and --vm (default cuda)")
    parser.add_argument("--vm", action="store_true", help="only programs in a VM, over the PCI device")
    parser.add_argument("programs", nargs="*", help="only these programs")
    options = parser.parse_args()
    only = in_a_vm if options.vm else alone if options.moves else None
    if only and options.device == "software":
        return only(options)
    try:
        device = gpu.probe()
        gpu.native_environment()
    except gpu.NoGpu as why:
        print(f"test-gpu: skipped: {why}")
        return 0
    if only:
        return only(options)
    names = options.programs or harness.program_names()
    report, warm = Report(), 2
    say(f"{device['name']}, driver {device['driver']}: {len(names)} programs")
    start = gpu.memory_used(device)
    result = {"version": 1, "device": device["name"], "driver": device["driver"]}
    result["conformance"] = conformance(report)
    try:
        with harness.Daemon(f"--warm={warm}", device="cuda", log=options.log) as daemon:
            programs(report, device, daemon, names, warm)
            report.check(not daemon.sessions(), f"sessions left behind: {daemon.sessions()}")
            if report.problems:
                loud = [line for line in daemon.log().splitlines() if " INFO " not in line]
                say("the daemon's log, without what is usual, ends with:\n" + "\n".join(loud)[-4000:])
        gpu.until(lambda: gpu.memory_used(device) <= start + NOISE, f"the GPU's memory back at {start} bytes")
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        report.check(False, f"{type(error).__name__}: {error}")
    if not options.no_sanitizer and not options.programs:
        result["sanitizer"] = sanitized(report, SANITIZED)
    if not options.programs:
        result["moves"] = moves(report, "cuda", MOVED, between=EXACT)
    result.update(programs=report.entries, problems=report.problems)
    os.makedirs(os.path.dirname(os.path.abspath(options.output)), exist_ok=True)
    with open(options.output, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    right = sum(
        entry[way]["code"] == 0 and entry[way]["digest"] == entry["native"]["digest"]
        for entry in report.entries
        for way in harness.HOST_COMMUNICATORS
    )
    print(f"{right} of {len(names) * len(harness.HOST_COMMUNICATORS)} remote runs gave the native result; "
          f"conformance: {result['conformance']}; sanitizer: {result.get('sanitizer', 'not asked for')}; "
          f"{len(report.problems)} problems")
    for problem in report.problems:
        print(f"- {problem}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
