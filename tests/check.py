#!/usr/bin/env python3
"""All that belongs to one crate: clippy, its unit and integration tests, and the
Python tests that run it. What those run is built first.

usage: check.py [CRATE]   without CRATE, lists the crates
"""

import json
import os
import shlex
import subprocess
import sys
import time

import run

# The Python tests that find faults of a crate first. A class or a test is named
# where the whole module takes long; `make test` runs all.
PROGRAMS = "end_to_end.test_programs"
MIGRATION = "end_to_end.test_migration.Migration"
PYTHON = {
    "config": ["end_to_end.test_faults.Faults.test_unknown_configuration_key_names_the_nearest"],
    "protocol": ["wire.test_wire"],
    "communicator": [PROGRAMS],
    "communicator-ring": [PROGRAMS, "wire.test_wire.Session.test_scribbled_rings_end_only_their_session"],
    "communicator-stream": [PROGRAMS, "end_to_end.test_moves.OneHost.test_the_communicator_alone_changes"],
    "client": [PROGRAMS, f"{MIGRATION}.test_something_of_every_kind"],
    "cuda": [PROGRAMS, "end_to_end.test_visible", "end_to_end.test_faults.Faults.test_corrupt_images_are_refused_by_name"],
    "cudart": [PROGRAMS],
    "cli": ["end_to_end.test_tenancy.Tenancy.test_top_shows_rates_once_and_as_json"],
    "daemon": ["end_to_end.test_tenancy", "end_to_end.test_versions"],
    "device": [PROGRAMS],
    "device-software": [PROGRAMS],
    "kubernetes": ["end_to_end.test_kubevirt"],
    "pool": ["end_to_end.test_versions"],
    "fatbin": ["end_to_end.test_faults.Faults.test_corrupt_images_are_refused_by_name"],
    "worker": ["wire.test_wire", f"{MIGRATION}.test_something_of_every_kind"],
}


def crates():
    """Short name of each crate: its folder."""
    command = ["cargo", "metadata", "--no-deps", "--format-version=1"]
    packages = json.loads(subprocess.check_output(command, cwd=run.ROOT))["packages"]
    return {
        package["name"].removeprefix("paragpu-"): os.path.relpath(os.path.dirname(package["manifest_path"]), run.ROOT)
        for package in packages
    }


# Cargo chooses the features of a dependency for the packages that one call names:
# a call for one crate would compile most of what it depends on once more. So each
# call names the whole workspace, as `make test` and `make lint` do. Then what is
# built is found again, and nothing that a test starts is older than its source.
CLIPPY = ["cargo", "clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"]
TESTS = ["cargo", "test", "--workspace", "--lib", "--bins", "--tests", "--no-run", "--message-format=json"]


# Crates whose tests run no program of ours. They depend on little, so a call for the
# crate alone compiles little once more, and nothing that depends on it is built.
ALONE = {"abi", "communicator-secure", "control", "corpora", "interface", "redirect"}


def unit_tests(folder):
    """Command that runs each test program of the crate in a folder, as cargo would."""
    place = os.path.join(run.ROOT, folder)
    said = subprocess.run(TESTS, cwd=run.ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    script = ["status=0", f"cd {shlex.quote(place)}", f"export CARGO_MANIFEST_DIR={shlex.quote(place)}"]
    for line in said.stdout.splitlines():
        built = json.loads(line)
        if built.get("manifest_path") == os.path.join(place, "Cargo.toml") and built["executable"] and built["profile"]["test"]:
            script.append(f"{shlex.quote(built['executable'])} || status=1")
    return ["bash", "-c", "\n".join([*script, "exit $status"])]


def steps(name, folder):
    """Name, command and counter of a step."""
    yield "clippy", CLIPPY, run.one
    if name in ALONE:
        yield "unit", ["cargo", "test", "-p", f"paragpu-{name}", "--lib", "--bins", "--tests"], run.of_cargo
        return
    yield "build", run.BUILD, run.one
    yield "unit", unit_tests(folder), run.of_cargo
    if PYTHON.get(name):
        yield "python", [sys.executable, "-m", "unittest", "-v", *PYTHON[name]], run.of_unittest


def main():
    """Runs the steps of a crate; the first that fails ends it."""
    known = crates()
    if len(sys.argv) != 2:
        for name, folder in sorted(known.items()):
            print(f"{name:20} {folder:30} {' '.join(PYTHON.get(name, []))}")
        return 0
    name = sys.argv[1].removeprefix("paragpu-")
    if name not in known:
        sys.exit(f"check.py: no such crate: {name}; there are {', '.join(sorted(known))}")
    os.makedirs(run.LOGS, exist_ok=True)
    total, begin, running = run.Count(), time.monotonic(), run.Running()
    for step, command, counter in steps(name, known[name]):
        stage = run.Stage(f"{name}-{step}", command, counter, environment={"PYTHONPATH": run.HERE})
        run.run(stage, running)
        running.say(f"== {stage.name}: {stage.seconds:.0f} s, processors {stage.processor:.0f} s")
        if stage.count.failed:
            sys.exit(f"{step} FAILED, see {os.path.relpath(stage.log)}")
        if counter is not run.one:
            total.add(stage.count)
    for line in total.why():
        print(line)
    print(f"{total} in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
