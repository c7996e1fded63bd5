#!/usr/bin/env python3
"""Everything that belongs to one crate: clippy, its unit and integration tests, and the
Python tests that run it. Whatever those run is built first.

usage: check.py [CRATE]   without CRATE, lists the crates
"""

import json
import os
import shlex
import shutil
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
    "client": [PROGRAMS, "end_to_end.test_own_memory", f"{MIGRATION}.test_something_of_every_kind"],
    "cuda": [PROGRAMS, "end_to_end.test_answers", "end_to_end.test_callbacks", "end_to_end.test_visible", "end_to_end.test_faults.Faults.test_corrupt_images_are_refused_by_name"],
    "cudart": [PROGRAMS],
    "cli": ["end_to_end.test_tenancy.Tenancy.test_top_shows_rates_once_and_as_json"],
    "daemon": ["end_to_end.test_tenancy", "end_to_end.test_versions", "end_to_end.test_orders"],
    "device": [PROGRAMS],
    "device-software": [PROGRAMS],
    "kubernetes": ["end_to_end.test_kubevirt"],
    "pool": ["end_to_end.test_versions"],
    "fatbin": ["end_to_end.test_faults.Faults.test_corrupt_images_are_refused_by_name"],
    "worker": ["wire.test_wire", f"{MIGRATION}.test_something_of_every_kind"],
}


# What modules of the Python tests run beside paragpud and paragpu-worker; those that are
# not listed run paragpu and the guest libraries.
LIBRARIES = "--lib"
RUN = {
    "wire.test_wire": ["examples/table"],
    "end_to_end.test_kubevirt": [LIBRARIES, "paragpu", "paragpu-kubernetes"],
}
# The programs for the Python tests. One that RUN does not name is missing here, and so
# cannot be run stale.
PLACE = os.path.join(run.ROOT, "out", "check")

# Cargo chooses the features of dependencies for the packages that a call names, and
# compiles a dependency once for each choice. So calls name the whole workspace, as `make
# test` does, and choose targets by name. With an example among those that are built, here
# of a crate that changes rarely, the features are those of the tests.
EXAMPLE = ["--example", "coverage"]


def crates():
    """Each crate's package, by short name."""
    command = ["cargo", "metadata", "--no-deps", "--format-version=1"]
    packages = json.loads(subprocess.check_output(command, cwd=run.ROOT))["packages"]
    return {package["name"].removeprefix("paragpu-"): package for package in packages}


def folder(package):
    """Where a package is."""
    return os.path.dirname(package["manifest_path"])


def dependents(package, packages):
    """Packages of the workspace that depend on one, also for their tests."""
    found, left = set(), [package["name"]]
    while left:
        name = left.pop()
        new = {other["name"] for other in packages if any(name == on["name"] for on in other["dependencies"])} - found
        found |= new
        left += new
    return found


class UnitTests:
    """A crate's unit and integration tests."""

    # A library's tests cannot be chosen by name. With all libraries' tests, those of
    # dependents are compiled, too; with the package's alone, dependencies are, once, with the
    # features that it chooses. So many dependents are the more expensive ones.
    FEW = 4

    def __init__(self, package, packages):
        self.package = package
        has_library = any("lib" in kind for target in package["targets"] for kind in target["kind"])
        alone = has_library and len(dependents(package, packages)) > self.FEW
        self.library = ["cargo", "test", "-p", package["name"], "--lib"] if alone else None
        others, self.examples = self.chosen("bin", "test"), self.chosen("example")
        others = ["--lib", *others] if has_library and not alone else others
        self.others = ["cargo", "test", "--workspace", *others, "--no-run"] if others else None

    def chosen(self, *kinds):
        """Arguments that choose targets of these kinds."""
        has_tests = lambda target: target["test"] or target["kind"][0] == "example"
        targets = [target for target in self.package["targets"] if target["kind"][0] in kinds and has_tests(target)]
        return [word for target in targets for word in (f"--{target['kind'][0]}", target["name"])]

    def build(self):
        """Commands that build them, and the examples that they run."""
        if self.library:
            yield [*self.library, "--no-run"]
        if self.others:
            yield self.others
        if self.others and self.examples:
            yield ["cargo", "build", "--workspace", *self.examples]

    def run(self):
        """Command that runs all, once built."""
        place = folder(self.package)
        script = ["status=0", *([f"{shlex.join(self.library)} || status=1"] if self.library else [])]
        script += [f"cd {shlex.quote(place)}", f"export CARGO_MANIFEST_DIR={shlex.quote(place)}"]
        script += [f"{shlex.quote(program)} || status=1" for program in self.programs()]
        return ["bash", "-c", "\n".join([*script, "exit $status"])]

    def programs(self):
        """The test programs beside the library's."""
        if not self.others:
            return
        said = subprocess.check_output([*self.others, "--message-format=json"], cwd=run.ROOT, stderr=subprocess.DEVNULL, text=True)
        for line in said.splitlines():
            built = json.loads(line)
            # Other packages may have tests of the same names.
            if built.get("manifest_path") == self.package["manifest_path"] and built["profile"]["test"] and built["executable"]:
                yield built["executable"]


class PythonTests:
    """The Python tests of a crate."""

    def __init__(self, tests):
        self.tests = tests
        modules = {".".join(test.split(".")[:2]) for test in tests}
        wanted = {word for module in modules for word in RUN.get(module, [LIBRARIES, "paragpu"])}
        self.has_libraries = LIBRARIES in wanted
        self.programs = sorted({"paragpud", "paragpu-worker"} | wanted - {LIBRARIES})

    def build(self):
        """The command that builds the programs that the tests run."""
        chosen = [*EXAMPLE]
        for program in self.programs:
            kind = "--example" if program.startswith("examples/") else "--bin"
            chosen += [kind, os.path.basename(program)]
        if self.has_libraries:
            return ["make", "-s", "tested", f"TESTED={shlex.join([LIBRARIES, *chosen])}"]
        return ["cargo", "build", "--workspace", *chosen]

    def environment(self):
        """Environment in which they find this, and nothing else."""
        shutil.rmtree(PLACE, ignore_errors=True)
        os.makedirs(os.path.join(PLACE, "examples"))
        for program in self.programs:
            os.link(os.path.join(run.BUILT["PARAGPU_TEST_BINARIES"], program), os.path.join(PLACE, program))
        libraries = run.BUILT["PARAGPU_TEST_LIBRARIES"] if self.has_libraries else PLACE
        return {"PARAGPU_TEST_BINARIES": PLACE, "PARAGPU_TEST_LIBRARIES": libraries}


def steps(name, known):
    """Name, command, counter and environment of a step."""
    package = known[name]
    unit, python = UnitTests(package, known.values()), PythonTests(PYTHON.get(name, []))
    yield "clippy", ["cargo", "clippy", "-p", package["name"], "--all-targets", "--all-features", "--", "-D", "warnings"], run.one, None
    build = [*unit.build(), *([python.build()] if python.tests else [])]
    yield "build", ["bash", "-c", " && ".join(map(shlex.join, build))], run.one, None
    yield "unit", unit.run(), run.of_cargo, None
    if python.tests:
        yield "python", [sys.executable, "-m", "unittest", "-v", *python.tests], run.of_unittest, {"PYTHONPATH": run.HERE, **python.environment()}


def main():
    """Runs the steps of a crate; the first that fails ends it."""
    known = crates()
    if len(sys.argv) != 2:
        for name, package in sorted(known.items()):
            print(f"{name:20} {os.path.relpath(folder(package), run.ROOT):30} {' '.join(PYTHON.get(name, []))}")
        return 0
    name = sys.argv[1].removeprefix("paragpu-")
    if name not in known:
        sys.exit(f"check.py: no such crate: {name}; there are {', '.join(sorted(known))}")
    os.makedirs(run.LOGS, exist_ok=True)
    total, begin, processor, running = run.Count(), time.monotonic(), 0.0, run.Running()
    for step, command, counter, environment in steps(name, known):
        stage = run.Stage(f"{name}-{step}", command, counter, environment=environment)
        run.run(stage, running)
        processor += stage.processor
        running.say(f"== {stage.name}: {stage.seconds:.0f} s, processors {stage.processor:.0f} s")
        if stage.count.failed:
            sys.exit(f"{step} FAILED, see {os.path.relpath(stage.log)}")
        if counter is not run.one:
            total.add(stage.count)
    for line in total.why():
        print(line)
    print(f"{total} in {time.monotonic() - begin:.0f} s, processors {processor:.0f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
