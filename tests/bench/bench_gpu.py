"""Speed on a real NVIDIA GPU: the same programs against NVIDIA's own runtime and
over every communicator of a host, alternately in one run. Prints a table; writes
out/bench-gpu.json, from which page.py draws a page, and beside it every single value.
Ends with 0 and a sentence where there is no GPU.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
# pylint: disable=wrong-import-position
import bench_migrate
import gpu
import measure
import waiting
from measure import OVERHEADS, Samples, harness, say

COMMUNICATORS = harness.HOST_COMMUNICATORS
OPERATIONS = (
    "launch_issue launch_throughput launch_sync stream_sync_idle event_record event_create_destroy "
    "stream_create_destroy memset_4k copy64_h2d copy64_d2h malloc_free_2m"
).split()
COPIES = ("pinned_h2d", "pinned_d2h", "pageable_h2d", "pageable_d2h")
GRAPHS = ("graph100",)
# The same, waited for by asking, as the worker does.
ASKED = ("launch_sync_asked", "graph100_asked")
# Memory of pools, memory that a program maps itself, managed memory.
MEMORY = ("malloc_async_4k", "malloc_async_2m", "map_2m", "managed_sum", "managed_sum_again")
# Copies of pageable memory, and waits for kernels that take milliseconds.
WAITS = ("copy16k_h2d", "copy16k_d2h", "copy256k_h2d", "copy256k_d2h", "wait_1ms", "wait_10ms", "wait_100ms")
# Memory that a program registers: copies, copies of four streams behind kernels, and a kernel that works in it.
REGISTERED = ("registered_h2d", "registered_d2h", "registered_streams", "registered_mapped")
# Programs that say when their first result is there, by what that is. PyTorch's loads some gigabytes of libraries.
FIRST = {
    "result": [OVERHEADS, "first_result"],
    "product": [OVERHEADS, "first_product"],
    "kernel": [sys.executable, os.path.join(HERE, "first_kernel.py")],
}
# MiB that are handed over.
HANDED = 32 << 10
# Eight threads at once.
THREADS = ("threads8_rate", "threads8_tail")
# Programs that time themselves against the clock, fail on purpose, only print, or leave out natively
# what NVIDIA's runtime of CUDA 13.0 lacks; with a runtime inside, too.
NOT_TIMED = ("errors", "printf", "clock", "newerFunctions")
COPY_BOUND = ("alignedTypes", "blackScholes", "fastWalshTransform", "convolutionSeparable")
PARTS = "operations,memory,registered,copies,calls,starts,moves,sharing,waiting,programs"
# Where time is spent that no run of this benchmark can see: measured with clocks at
# both ends and on both sides of each step, on an H200 unless it says otherwise.
WAITED_FOR = "1.0 us until the worker launches, 0.6 of it until it has the call, and 0.3 until it has the wait; a word that the GPU writes ends a wait 0.8 us sooner than cudaStreamSynchronize, natively, too"
ONCE = {
    "launch_sync": WAITED_FOR,
    "graph100": WAITED_FOR,
    "threads8_rate": "on 16 processors seven threads of the worker submit what eight threads of the program post; natively four threads reach 0.7 of eight's rate",
}
# The samples of programs that run natively.
PROGRAM = "native_program_"
# Workers that wait, so that every start in a row finds one.
WARM = 9
SHARING = 8

# LUPINE over loopback TCP, measured by the project on an H200 beside native in
# the same run: microseconds; its rate as a part of native; bytes a second.
LUPINE = {
    "launch_issue": ("us", 2.9),
    "launch_throughput": ("ratio", 0.53),
    "launch_sync": ("us", 37),
    "stream_sync_idle": ("us", 27),
    "event_record": ("us", 2.1),
    "event_create_destroy": ("us", 52),
    "stream_create_destroy": ("us", 63),
    "copy64_h2d": ("us", 33),
    "copy64_d2h": ("us", 33),
    "graph100": ("us", 64),
    "pinned_h2d": ("B/s", 3.3e9),
    "pageable_h2d": ("B/s", 3.3e9),
    "pinned_d2h": ("B/s", 1.7e9),
    "pageable_d2h": ("B/s", 1.7e9),
}


class Bench:
    """The ways to run a program, and the measurements."""

    def __init__(self, daemon, options, gpus):
        self.daemon, self.options, self.gpus, self.samples = daemon, options, gpus, Samples()
        self.bench = harness.binary("paragpu-bench")

    def ways(self, communicators=COMMUNICATORS):
        """Native first, then these communicators."""
        yield "native", gpu.native_environment()
        for communicator in communicators:
            yield communicator, self.daemon.guest_environment(communicator)

    def operations(self):
        """Single operations."""
        for at in range(self.options.rounds):
            for way, environment in self.ways():
                say(f"operations, {at + 1} of {self.options.rounds}: {way}")
                self.samples.take(f"{way}_", [OVERHEADS, *OPERATIONS], environment)
                self.samples.take(f"{way}_", [OVERHEADS, *GRAPHS], environment)
                if way in ("native", "shm"):
                    self.samples.take(f"{way}_", [OVERHEADS, *THREADS], environment)
                    self.samples.take(f"{way}_", [OVERHEADS, *WAITS], environment)
                if way == "native":
                    self.samples.take(f"{way}_", [OVERHEADS, *ASKED], environment)

    def beside_native(self, part, names):
        """Some measurements, natively and over the rings."""
        for at in range(self.options.rounds):
            for way, environment in self.ways(("shm",)):
                say(f"{part}, {at + 1} of {self.options.rounds}: {way}")
                self.samples.take(f"{way}_", [OVERHEADS, *names], environment)

    def memory(self):
        """Memory by other calls than cudaMalloc."""
        self.beside_native("memory", MEMORY)

    def registered(self):
        """Memory that a program registers."""
        self.beside_native("registered memory", REGISTERED)

    def copies(self):
        """Bulk copies, and what a bare copy does."""
        raw = [self.bench, "raw", "memcpy", "copy-unix", "copy-tcp", f"--bulk={self.options.bulk}"]
        for at in range(self.options.rounds):
            for way, environment in self.ways():
                say(f"copies, {at + 1} of {self.options.rounds}: {way}")
                self.samples.take(f"{way}_", [OVERHEADS, "--bulk", str(self.options.bulk), *COPIES, "copy_inside"], environment)
            self.samples.take("", raw, dict(os.environ))

    def calls(self):
        """The cost of a call below the CUDA interface, which shows where time is spent."""
        for communicator in COMMUNICATORS:
            say(f"calls over {communicator}")
            environment = self.daemon.guest_environment(communicator)
            self.samples.take(f"{communicator}_", [self.bench, "calls"], environment)
            self.samples.take(f"{communicator}_", [self.bench, "launches"], environment)

    def starts(self):
        """From the start of a process to its first result."""
        with tempfile.TemporaryDirectory(prefix="paragpu-compiled-") as compiled:
            # Where Python cannot keep compiled modules, each process would compile PyTorch's anew.
            python = {"PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
            for first, command in FIRST.items():
                if f"start_to_first_{first}" in lacking(self.gpus):
                    continue
                # NVIDIA's libraries are many times larger than what differs between communicators.
                ways = list(self.ways(COMMUNICATORS if first == "result" else ("shm",)))
                # One that is not measured has files read from the disk.
                for at in range(-1, self.options.starts):
                    for way, environment in ways:
                        gpu.await_warm(self.daemon, WARM)
                        say(f"first {first}, {at + 1} of {self.options.starts}: {way}")
                        self.start(f"{way}_start_to_first_{first}", command, {**gpu.with_cublas(environment), **python}, at >= 0)

    def start(self, name, command, environment, is_measured):
        """One process that says when it has its first result."""
        begun = time.monotonic()
        try:
            (there,) = measure.lines_of(command, environment).values()
        except measure.Failed as failure:
            self.failed(f"{name}: {failure}")
            return
        if is_measured:
            self.samples.add(name, there - begun)

    def moves(self):
        """What a program feels when it moves, and memory that is handed over meanwhile."""
        bench_migrate.felt_natively(self.samples, gpu.native_environment(), self.options.rounds)
        bench_migrate.felt(self.samples, "cuda", self.options.rounds)
        bench_migrate.handed_over(self.samples, "cuda", HANDED, self.options.rounds)
        if self.gpus > 1:
            bench_migrate.gpu_to_gpu(self.samples, "cuda", HANDED, self.options.rounds)

    def failed(self, text):
        """Notes what could not be measured."""
        if text not in self.samples.failures:
            self.samples.failures.append(text)
            say(text)

    def sharing(self):
        """Eight concurrent processes."""
        for at in range(self.options.sharing_rounds):
            for way, environment in self.ways(("shm",)):
                gpu.await_warm(self.daemon, WARM)
                say(f"{SHARING} processes at once, {at + 1} of {self.options.sharing_rounds}: {way}")
                running = [
                    subprocess.Popen(
                        [OVERHEADS, "--together", "shared_work"],
                        env=environment,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                    for _ in range(SHARING)
                ]
                # They begin together: else those that make their contexts first
                # work alone for a while, and the sum counts the GPU twice.
                if any(process.stdout.readline() != "ready\n" for process in running):
                    self.failed(f"shared_{SHARING} over {way}: a process did not get ready")
                # The pool fills up again, which makes contexts on the GPU.
                gpu.await_warm(self.daemon, WARM, sessions=SHARING if way == "shm" else 0)
                for process in running:
                    process.stdin.write("\n")
                    process.stdin.flush()
                outputs = [process.communicate(timeout=120)[0] for process in running]
                if any(process.returncode for process in running):
                    self.failed(f"shared_8 over {way}: a process failed")
                    continue
                rates = [json.loads(output)["value"] for output in outputs]
                self.samples.add(f"{way}_shared_{SHARING}", sum(rates))
                self.samples.add(f"{way}_shared_{SHARING}_slowest_of_fastest", min(rates) / max(rates))

    def waiting(self):
        """The processor time of many programs that wait."""
        for at in range(self.options.sharing_rounds):
            for schedule in waiting.SCHEDULES:
                for way, environment in self.ways(("shm",)):
                    gpu.await_warm(self.daemon, WARM)
                    say(f"{waiting.PROGRAMS} programs wait ({schedule}), {at + 1} of {self.options.sharing_rounds}: {way}")
                    try:
                        used = waiting.processors(self.daemon, environment, schedule, WARM, is_remote=way == "shm")
                        self.samples.add(f"{way}_waiting_{schedule}", used)
                    except measure.Failed as failure:
                        self.failed(f"waiting_{schedule} over {way}: {failure}")

    def once(self, program, words, environment):
        """Runs a program once; returns its output and the duration of its process."""
        begun = time.monotonic()
        command = [os.path.join(harness.PROGRAMS, program), "--json", "--no-verify", *words]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        except subprocess.TimeoutExpired as late:
            said = harness.text(late.stderr).strip()[-500:]
            raise measure.Failed(f"{program}: no end within 120 s; it said: {said or 'nothing'}") from late
        seconds = time.monotonic() - begun
        said = [line for line in done.stdout.splitlines() if line.startswith('{"program"')]
        if done.returncode or not said:
            raise measure.Failed(f"{program} {' '.join(words)}: {(done.stdout + done.stderr).strip()[-500:]}")
        return json.loads(said[-1]), seconds

    def programs(self, names, keep):
        """Whole programs, with as many rounds as take the wanted time natively; `keep` is called behind each."""
        for name in names:
            try:
                self.program(name)
            except measure.Failed as failure:
                self.failed(f"program_{name}: {failure}")
            keep()

    def program(self, name):
        """One program, every way."""
        native = gpu.native_environment()
        wanted = self.options.program_seconds
        said, _ = self.once(name, ["--seconds", str(wanted)], native)
        rounds = max(said["rounds"], 1)
        words = ["--iterations", str(rounds)]
        digests = {}
        for _ in range(self.options.program_rounds):
            for way, environment in self.ways(COMMUNICATORS if self.options.all_ways else ("shm",)):
                said, seconds = self.once(name, words, environment)
                digests[way] = said["digest"]
                self.samples.add(f"{way}_program_{name}", seconds)
        wrong = [way for way, digest in digests.items() if digest != digests["native"]]
        if wrong:
            raise measure.Failed(f"over {', '.join(wrong)} the result is not the native one")
        counted = self.daemon.run(name, "shm", ("--json", "--no-verify", *words))
        for counter, value in counted.counters.items():
            self.samples.add(f"shm_program_{name}_{counter}", value)
        words = ", ".join(f"{way} {self.samples.median(f'{way}_program_{name}'):.3f} s" for way in digests)
        say(f"{name}, {rounds} rounds: {words}")


class Results:
    """The entries of bench-gpu.json."""

    def __init__(self, samples, programs):
        self.samples, self.programs, self.entries = samples, programs, []

    def add(self, way, name, unit, goal, *, label=None, most=True, of="ratio", baseline=None, note=None):
        """One entry; the baseline is native where none is given."""
        value = self.samples.median(f"{way}_{name}")
        if baseline is None:
            baseline = self.samples.median(f"native_{name}")
        self.entries.append(
            measure.result(label or name, unit, value, baseline, goal, most=most, of=of, note=note or self.note(way, name))
        )

    def within(self, way, name, extra):
        """One entry whose goal is native plus some microseconds."""
        native = self.samples.median(f"native_{name}")
        goal = None if native is None else native + extra
        self.add(way, name, "us", goal, of="value")

    def note(self, way, name):
        """What the time is spent on."""
        parts = [self.why(way, name), "measured once: " + ONCE[name] if name in ONCE and way == "shm" else None]
        return "; ".join(filter(None, parts)) or None

    def why(self, way, name):
        """What the time is spent on, from other measurements of the run."""
        get = lambda key: measure.short(self.samples.median(key))  # noqa: E731
        if name in ("launch_issue", "launch_throughput"):
            return f"of {get(f'{way}_launch_issue')} us an issue, {get(f'{way}_client_launch')} us are the client's enqueue below the runtime"
        if name in ("launch_sync", "copy64_h2d", "copy64_d2h", "stream_sync_idle", "graph100"):
            bare = get(f"{way}_raw_pingpong_polled") if way != "shm" else get("shm_raw_pingpong")
            asked = f", {get(f'native_{name}_asked')} us where it is asked for as the worker does" if f"{name}_asked" in ASKED else ""
            return (
                f"one round trip to the worker takes {get(f'{way}_call')} us (a bare one {bare} us), the native operation "
                f"{get(f'native_{name}')} us{asked}"
            )
        if name in COPIES:
            return (
                f"memcpy by one thread does {get('raw_memcpy')} B/s here, native pinned {get('native_pinned' + name[-4:])} B/s, "
                f"{way} pinned {get(way + '_pinned' + name[-4:])} B/s"
            )
        if name.startswith("program_"):
            return (
                f"it makes {get(f'shm_{name}_posted')} posted and {get(f'shm_{name}_synchronous')} synchronous calls and moves "
                f"{get(f'shm_{name}_bytes_to_device')} bytes to and {get(f'shm_{name}_bytes_from_device')} from the device; "
                f"a call costs {get('shm_call')} us more than a native one, a posted launch {get('shm_launch_issue')} us in all; "
                f"pageable memory goes at {get('shm_pageable_h2d')} and {get('shm_pageable_d2h')} B/s"
            )
        if name == "start_to_first_result":
            return f"one round trip takes {get(f'{way}_call')} us; connecting, loading the module and the first copy are the rest"
        return None

    def over_shm(self):
        """The rings of the shared window."""
        self.add("shm", "launch_issue", "us", 0.25)
        self.add("shm", "launch_throughput", "1/s", 0.97, most=False)
        for name in ("launch_sync", "copy64_h2d", "copy64_d2h"):
            self.within("shm", name, 1.0)
        for name, goal in (("pinned_h2d", 0.98), ("pinned_d2h", 0.98), ("pageable_h2d", 1.8), ("pageable_d2h", 1.2)):
            self.add("shm", name, "B/s", goal, most=False)
        self.add("shm", "copy_inside", "B/s", 0.99, most=False)
        self.add("shm", "malloc_free_2m", "us", 0.2)
        for name, goal in zip(MEMORY, (0.5, 0.5, 1.2, 1.5, None)):
            self.add("shm", name, "us", goal)
        for name in REGISTERED[:2]:
            self.add("shm", name, "B/s", 0.98, most=False)
        for name in REGISTERED[2:]:
            self.add("shm", name, "us", 1.02)
        for first in FIRST:
            self.add("shm", f"start_to_first_{first}", "s", 1.0)
        self.add("shm", "graph100", "us", 1.02)
        for name in WAITS:
            self.add("shm", name, "us", 1.01)
        self.add("shm", "threads8_rate", "1/s", 0.97, most=False)
        self.add("shm", "threads8_tail", "", 3.0, of="value")
        for name in self.programs:
            self.add("shm", f"program_{name}", "s", 1.0 if name in COPY_BOUND else 1.02)
        self.add("shm", f"shared_{SHARING}", "1/s", 0.97, most=False)
        for schedule in waiting.SCHEDULES:
            self.add("shm", f"waiting_{schedule}", "processors", 1.0)
        for name in ("stream_sync_idle", "event_record", "event_create_destroy", "stream_create_destroy", "memset_4k"):
            self.add("shm", name, "us", None)

    def moving(self):
        """Sessions that move."""
        self.entries += bench_migrate.delays_of(self.samples)
        self.entries += bench_migrate.handovers_of(self.samples, "cuda", HANDED)

    def over_streams(self):
        """The sockets."""
        for way in ("unix", "tcp"):
            self.add(way, "launch_throughput", "1/s", 0.9, most=False, label=f"{way}_launch_throughput")
            self.add(way, "launch_sync", "us", 25, of="value", label=f"{way}_launch_sync")
            bare = self.samples.median(f"raw_copy_{way}")
            for name in COPIES:
                self.add(way, name, "B/s", 0.8, most=False, baseline=bare, label=f"{way}_{name}")
            for name, (unit, figure) in LUPINE.items():
                most = unit == "us"
                native = self.samples.median(f"native_{name}")
                if unit == "ratio":
                    unit, figure = "1/s", None if native is None else figure * native
                note = f"the baseline is LUPINE's figure over TCP; native in this run: {measure.short(native)}"
                self.add(way, name, unit, 1, most=most, baseline=figure, label=f"{way}_{name}_lupine", note=note)
            for name in self.programs:
                if self.samples.median(f"{way}_program_{name}") is not None:
                    self.add(way, f"program_{name}", "s", None, label=f"{way}_program_{name}")
            self.add(way, "start_to_first_result", "s", None, label=f"{way}_start_to_first_result")


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: under five minutes")
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out/bench-gpu.json"), help="where the JSON goes")
    parser.add_argument("--log", help="keep the daemon's log here")
    parser.add_argument("--parts", default=PARTS, help="only these (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="of operations and copies (default: 7, quick 3)")
    parser.add_argument("--bulk", type=int, help="bytes of a copy (default: 1 GiB, quick 256 MiB)")
    parser.add_argument("--program-seconds", type=float, help="native time of a program (default: 2.5, quick 0.5)")
    parser.add_argument("--program-rounds", type=int, help="of each program (default: 3, quick 1)")
    parser.add_argument("--after", metavar="FILE", help="go on after an earlier run on this machine: its ...-samples.json")
    parser.add_argument("programs", nargs="*", help="of the programs, only these")
    options = parser.parse_args()
    for name, quick, full in (
        ("rounds", 3, 7),
        ("bulk", 256 << 20, 1 << 30),
        ("program_seconds", 0.5, 2.5),
        ("program_rounds", 1, 3),
    ):
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    options.starts = 5 if options.quick else 11
    options.sharing_rounds = min(options.rounds, 5)
    options.all_ways = not options.quick
    return options


def plots(samples):
    """Single operations and copies, natively and remotely; programs are among the ratios."""

    def groups(names):
        return [(name, [(way, samples.median(f"{way}_{name}")) for way in ("native", *COMMUNICATORS)]) for name in names]

    operations = (
        "launch_issue launch_sync stream_sync_idle event_record event_create_destroy stream_create_destroy memset_4k "
        "copy64_h2d copy64_d2h malloc_free_2m malloc_async_4k malloc_async_2m map_2m graph100"
    ).split()
    copies = groups(["pinned_h2d", "pinned_d2h", "pageable_h2d", "pageable_d2h"])
    for _, values in copies:
        values.append(("memcpy by one thread", samples.median("raw_memcpy")))
    return [
        measure.dots("Single operations", "microseconds", groups(operations)),
        measure.dots("Null launches", "launches a second", groups(["launch_throughput"])),
        measure.dots("Bulk copies", "bytes a second", copies),
        measure.dots("From process start to the first result", "seconds", groups(["start_to_first_result"])),
        measure.dots("Eight processes at once", "kernels a second in all", groups(["shared_8"])),
    ]


def entries_with_values(entries):
    """Those that were measured."""
    return [entry for entry in entries if entry["value"] is not None]


def lacking(gpus):
    """Entries that this machine with so many GPUs cannot have, and what it lacks."""
    lacks = {}
    if gpus < 2:
        lacks.update(gpu_to_gpu_stop_copy="a second GPU", gpu_to_gpu_blackout="a second GPU")
    if not gpu.cublas_folder():
        lacks["start_to_first_product"] = "cuBLAS (name its folder in PARAGPU_TEST_CUBLAS)"
    if not importlib.util.find_spec("torch"):
        lacks["start_to_first_kernel"] = "PyTorch"
    return lacks


def unmeasured(samples, entries, lacks):
    """Entries that a whole run should have are failures, unless the machine lacks what they take."""
    for entry in entries:
        if entry["name"] in lacks:
            say(f"{entry['name']}: this machine lacks {lacks[entry['name']]}")
        elif entry["value"] is None and not any(entry["name"] in failure for failure in samples.failures):
            samples.failures.append(f"{entry['name']}: not measured")


def store(options, about, samples, programs):
    """Writes all entries so far, including those without a value."""
    results = Results(samples, programs)
    results.over_shm()
    results.moving()
    results.over_streams()
    chosen = ", ".join(word for word, said in (("quick", options.quick), ("in parts", options.after), ("some programs", options.programs)) if said)
    command = "make bench-gpu" + (f" ({chosen})" if chosen else "")
    told = f"Native and remote runs alternate; every figure is a median of {options.rounds} rounds or, of programs, {options.program_rounds}."
    content = measure.of_results(entries_with_values(results.entries))
    measure.write(options.output, measure.described("paragpu beside native", about, command, told, **content, plots=plots(samples)), samples)
    return results.entries


def main():
    """The benchmark."""
    options = arguments()
    try:
        device = gpu.probe()
        gpu.native_environment()
    except gpu.NoGpu as why:
        print(f"bench-gpu: skipped: {why}")
        return 0
    programs = options.programs or [name for name in harness.program_names() if not name.startswith(NOT_TIMED)]
    parts = options.parts.split(",")
    about = f"{device['name']}, driver {device['driver']}, CUDA 13.0; {measure.machine()}"
    say(about)
    begun = time.monotonic()
    with harness.Daemon(f"--warm={WARM}", device="cuda", log=options.log) as daemon:
        gpu.await_warm(daemon, WARM)
        bench = Bench(daemon, options, device["count"])
        earlier = []
        if options.after:
            with open(options.after, encoding="utf-8") as file:
                bench.samples.values = json.load(file)["samples"]
            earlier = [name.removeprefix(PROGRAM) for name in bench.samples.values if name.startswith(PROGRAM)]

        def keep():
            """Writes the results so far: a run that is cut off keeps them."""
            wanted = programs if "programs" in parts else []
            return store(options, about, bench.samples, [*earlier, *(name for name in wanted if name not in earlier)])

        for part in parts:
            try:
                if part == "programs":
                    bench.programs(programs, keep)
                else:
                    getattr(bench, part)()
            except (RuntimeError, OSError, subprocess.SubprocessError, ValueError) as error:
                bench.failed(f"{part}: {type(error).__name__}: {error}")
            entries = keep()
            say(f"{part}: done after {time.monotonic() - begun:.0f} s")
    if not options.programs and options.parts == PARTS:
        unmeasured(bench.samples, entries, lacking(device["count"]))
    status = measure.conclude(entries_with_values(entries), bench.samples.failures)
    print(f"written to {os.path.relpath(options.output)}, after {time.monotonic() - begun:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
