"""The cost of being able to move a session, and of a move, alternately in
one run: with the memory copied while the program runs, with the program
stopped first, and, where both daemons are on one GPU, with the memory handed
over instead of copied; where they are on two GPUs of this host, with the memory
copied from GPU to GPU; and what the program feels of it: the longest time by which a
move delayed one of its calls, as the program measures it and as the move reports it.
Prints a table; writes out/bench-migrate.json in the form of
bench.json, from which page.py draws a page, and beside it every single value.

On a machine with an NVIDIA GPU the sessions are on it, else on the software
GPU. The devices of the two daemons are those of this host; on one without a
second GPU the rows that take two have no value.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
import measure
from measure import Failed, Samples, harness, say

HERE = os.path.dirname(os.path.abspath(__file__))
GUEST = os.path.join(HERE, "moving_guest.py")
TIMED_GUEST = os.path.join(HERE, "timed_guest.py")
MIB = 1 << 20
# Milliseconds that the driver's own checkpoint takes for 32 GiB of an H200, out and back.
DRIVER_CHECKPOINT = 18600
# What mrCUDA's authors measured: a call recorded, a call replayed, the rest of a
# replay, and bytes a second of the memory that is copied (seconds).
MRCUDA = {"record": 0.28e-6, "replay": 1.03e-6, "rest": 1.24, "bandwidth": 4.8e9}


# The session whose delays are measured: modules, bytes of the image of each, bytes of memory.
TIMED = (100, 500_000, 300 * MIB)


class Program:
    """A program that answers orders; where nothing else is said, one that rewrites its memory."""

    def __init__(self, environment, *arguments, guest=GUEST):
        self.process = subprocess.Popen(
            [sys.executable, guest, *map(str, arguments)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.hear("ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)

    def hear(self, wanted):
        """The program's next word must be this."""
        line = self.process.stdout.readline().strip()
        if line != wanted:
            raise Failed(f"the program said {line!r} instead of {wanted!r}")

    def ask(self, order):
        """What the program answers to an order."""
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise Failed(f"the program ended with {self.process.wait(60)}")
        return json.loads(answer)

    def check(self):
        """Compares the program's memory with the expected contents."""
        self.process.stdin.write("check\n")
        self.process.stdin.flush()
        self.hear("exact")


class Mover(Program):
    """A program at one of two daemons."""

    def __init__(self, daemons, *arguments, **which):
        self.here, self.there = daemons
        self.migrations = 0
        super().__init__(self.here.guest_environment("shm"), *arguments, **which)

    def migrate(self, *options):
        """Moves the program to the other daemon; what that took."""
        harness.eventually(
            lambda: len(self.here.sessions()) == 1 and not self.there.sessions(),
            "the session where it was sent",
            30,
            Failed,
        )
        command = [harness.binary("paragpu"), "--control", self.here.control, "migrate"]
        number = str(self.here.sessions()[0]["id"])
        to = f"unix://{self.there.socket}"
        command += [number, "--to", to, "-o", "json", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise Failed(done.stderr.strip())
        self.here, self.there = self.there, self.here
        self.migrations += 1
        return json.loads(done.stdout)


def moves(daemons, samples, name, shape, rounds, ways):
    """Migrates a program there and back, alternating between the ways."""
    say(f"{name}: {shape[0]} x {shape[1] >> 10} KiB, {shape[2]} % rewritten")
    with Mover(daemons, *shape) as program:
        # The first moves find cold caches at either end.
        for options in (*ways.values(), *ways.values())[:2]:
            program.migrate(*options)
        for turn in range(rounds):
            # Each way goes in both directions: neither daemon's worker, nor
            # what is where in its memory, is the merit of one way.
            for way, options in list(ways.items())[:: -1 if turn % 2 else 1]:
                took = program.migrate(*options)
                unsent = UNSENT.get(way)
                if unsent and took[unsent] < shape[0] * shape[1]:
                    raise Failed(f"{name}: {took[unsent]} {unsent}, {took['bytes']} were sent")
                for figure in ("blackout_ms", "total_ms", "bytes", "pre_copied_bytes"):
                    samples.add(f"{name}_{way}_{figure}", took[figure])
        program.check()
        samples.add("migrations", program.migrations)
    for daemon in daemons:
        harness.eventually(lambda one=daemon: not one.sessions(), "no session left", 30, Failed)


WAYS = {"stop": ("--copy", "--stop-first"), "ahead": ("--copy",)}
HANDED = {"handed": ()}
PEERS = {"peer_stop": ("--stop-first",), "peer": ()}
# What must be all of the memory.
UNSENT = {"handed": "handed_over_bytes", "peer_stop": "peer_copied_bytes", "peer": "peer_copied_bytes"}


def gpu_to_gpu(samples, device, largest, rounds):
    """The same between two GPUs of this host; MiB of the largest."""
    size = min(largest, 1024)
    two = {"PARAGPU_HOST_SOFTWARE_SHAREABLE": "true", "PARAGPU_HOST_SOFTWARE_DEVICES": "2"}
    with contextlib.ExitStack() as daemons:
        try:
            pair = []
            for index in "01":
                with mock.patch.dict(os.environ, two, PARAGPU_HOST_DEVICE_INDICES=index):
                    pair.append(daemons.enter_context(harness.Daemon(device=device)))
            attempt(pair, samples, "gpus", (max(1, largest // size), size * MIB, 1), rounds, PEERS)
        except RuntimeError as failure:
            samples.failures.append(f"two GPUs: {failure}")


def handed_over(samples, device, largest, rounds):
    """Sessions whose memory is handed over; MiB of the largest."""
    size = min(largest, 1024)
    plan = {"handover": (max(1, largest // size), size * MIB, 1)}
    if largest > size:
        plan = {"handover_1g": (1, size * MIB, 1), **plan}
    with mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_SHAREABLE="true"):
        with harness.Daemon(device=device) as one, harness.Daemon(device=device) as two:
            for name, shape in plan.items():
                attempt((one, two), samples, name, shape, rounds, HANDED)


LATER = 3


def felt_natively(samples, environment, rounds):
    """The longest call of the program that times its calls, in a second of NVIDIA's own driver."""
    for _ in range(rounds):
        with Program(environment, *TIMED, guest=TIMED_GUEST) as program:
            time.sleep(1)
            samples.add("felt_natively", program.ask("figures")["longest_ms"])


def felt_once(daemons, samples):
    """Moves of one program that times its calls: the first, and later ones."""
    with Mover(daemons, *TIMED, guest=TIMED_GUEST) as program:
        time.sleep(1)
        samples.add("felt_none", program.ask("figures")["longest_ms"])
        for move in range(1 + LATER):
            name = "felt_later" if move else "felt_first"
            # What follows the answer to the last order is not of this move.
            program.ask("figures")
            took = program.migrate()
            felt = program.ask("figures")
            samples.add(f"{name}_ms", felt["longest_ms"])
            samples.add(f"{name}_reported_ms", took["longest_delay_ms"])
            samples.add(f"{name}_blackout_ms", took["blackout_ms"])
            samples.add(f"{name}_total_ms", took["total_ms"])
            # A call takes a while by itself.
            samples.add("felt_beside_reported_ms", abs(felt["longest_ms"] - felt["median_ms"] - took["longest_delay_ms"]))
        if not program.ask("check"):
            raise Failed("the program's memory is not what it was")
        samples.add("migrations", program.migrations)


def felt(samples, device, rounds):
    """What programs feel of their moves on one GPU."""
    say(f"delays of calls: {TIMED[0]} modules of {TIMED[1]} bytes, {TIMED[2] // MIB} MiB")
    for _ in range(rounds):
        # Of programs' first moves only one finds the destination without their images.
        with mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_SHAREABLE="true"):
            with harness.Daemon(device=device) as one, harness.Daemon(device=device) as two:
                samples.add("ordered", 1 + LATER)
                try:
                    felt_once((one, two), samples)
                except (Failed, subprocess.TimeoutExpired) as failure:
                    samples.failures.append(f"delays: {failure}")
                    say(str(failure))


def attempt(daemons, samples, name, shape, rounds, ways):
    """One program, or why there is none."""
    samples.add("ordered", 2 + rounds * len(ways))
    try:
        moves(daemons, samples, name, shape, rounds, ways)
    except (Failed, subprocess.TimeoutExpired) as failure:
        samples.failures.append(f"{name}: {failure}")
        say(str(failure))


def shapes(most):
    """What is measured: name to regions, bytes of each, percent rewritten."""
    sized = {f"size_{size}m": (1, size * MIB, 1) for size in (16, 64, 256, 1024, 4096) if size <= most}
    dirty = {f"dirty_{percent}": (1, min(most, 256) * MIB, percent) for percent in (0, 1, 10, 50, 100)}
    regions = {f"regions_{count}": (count, 64 * MIB // count, 0) for count in (1, 32, 1024)}
    return sized, dirty, regions


def costs(samples):
    """Recording and replaying, inside a worker."""
    say("record and replay")
    command = ["cargo", "bench", "-q", "-p", "paragpu-worker", "--bench", "moving"]
    samples.take("", command, dict(os.environ), timeout=1800)


def reconnects(samples, cuts):
    """Sessions whose connections are cut under load."""
    say(f"{cuts} cuts of each communicator")
    command = ["cargo", "test", "--release", "-q", "-p", "paragpu-worker", "--test", "reconnects", "--"]
    command += ["--nocapture", "--test-threads=1", "cut_at"]
    environment = dict(os.environ, PARAGPU_TEST_CUTS=str(cuts))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600, check=False)
    exact = [int(number) for number in re.findall(r"(\d+) cuts, results bit-exact", done.stdout)]
    samples.add("reconnects", sum(exact))
    if done.returncode:
        samples.failures.append("reconnects: " + (done.stdout + done.stderr)[-2000:])


def results_of(samples, largest, cuts, device, handed):
    """The entries of bench-migrate.json; `handed` MiB were handed over."""
    get = samples.median

    def ratio(name, unit, above, below, goal, note):
        return measure.result(name, unit, get(above), get(below), goal, most=True, note=note)

    each = ", ".join(f"{name} {measure.short(get(f'record_{name}'))}" for name in ("short_lived", "event_record", "launch"))
    recorded = [get(f"record_{name}") for name in ("short_lived", "event_record")]
    return [
        measure.result(
            "record_per_call", "ns", None if None in recorded else max(recorded), MRCUDA["record"] * 1e9, 50, most=True, of="value",
            note=f"ns of each kind of call: {each}; the baseline is mrCUDA's published figure",
        ),
        measure.result(
            "replay_per_object", "ns", get("replay_beside_device"), MRCUDA["replay"] * 1e9, 2000, most=True, of="value",
            note=f"beside the {measure.short(get('replay_device'))} ns that the device itself takes for each; the baseline is mrCUDA's",
        ),
        ratio("regions_1024x64k_vs_1x64m", "ms", "regions_1024_stop_total_ms", "regions_1_stop_total_ms", 1.2,
              "total time, the program stopped first"),
        ratio("dirty1pct_blackout_vs_stop_copy", "ms", f"{largest}_ahead_blackout_ms", f"{largest}_stop_blackout_ms", 0.05,
              "downtime; the largest session measured"),
        ratio("dirty_all_total_vs_stop_copy", "ms", "dirty_100_ahead_total_ms", "dirty_100_stop_total_ms", 1.2,
              "total time of a program that rewrites everything"),
        *handovers_of(samples, device, handed),
        *delays_of(samples),
        measure.result("reconnects_bit_exact", "cuts", get("reconnects"), 3 * cuts, 1, most=False),
        measure.result("migrations_bit_exact", "moves", sum(samples.values.get("migrations", [])) or None,
                       sum(samples.values.get("ordered", [])) or None, 1, most=False),
    ]


def handovers_of(samples, device, handed):
    """The entries of memory that stays on the GPU or is copied from GPU to GPU; `handed` MiB."""
    get = samples.median
    real = device == "cuda"
    return [
        measure.result(
            "handover_blackout", "ms", get("handover_handed_blackout_ms"), DRIVER_CHECKPOINT if real else None, 10, most=True,
            of="value",
            note=f"{handed} MiB handed over between two workers on one GPU, {measure.short(get('handover_handed_total_ms'))} ms in all; "
                 f"1 GiB: {measure.short(get('handover_1g_handed_blackout_ms'))} ms. "
                 "The baseline is what the driver's own checkpoint takes for 32 GiB of an H200",
        ),
        measure.result(
            "gpu_to_gpu_stop_copy", "ms", get("gpus_peer_stop_total_ms"), None, 1000 if real else None, most=True, of="value",
            note=f"{handed} MiB from one GPU of the host to another, the program stopped first",
        ),
        measure.result(
            "gpu_to_gpu_blackout", "ms", get("gpus_peer_blackout_ms"), None, 100 if real else None, most=True, of="value",
            note=f"the same copied ahead, 1 % rewritten; {measure.short(get('gpus_peer_total_ms'))} ms in all",
        ),
    ]


def delays_of(samples):
    """The entries that say what programs felt."""
    get = samples.median
    rows, still = [], get("felt_none")
    baseline, whose = still, "its longest call in a second without a move"
    if get("felt_natively") is not None:
        baseline, whose = get("felt_natively"), f"its longest call in a second natively; over shm without a move {measure.short(still)} ms"
    for name, which in (("felt_first", "first"), ("felt_later", "later")):
        note = (
            f"the longest call of a program with 100 modules and 300 MiB, {which} moves on one GPU; "
            f"{measure.short(get(name + '_reported_ms'))} ms reported, stopped for {measure.short(get(name + '_blackout_ms'))} ms. "
            f"The baseline is {whose}"
        )
        rows.append(measure.result(f"{which}_move_delay", "ms", get(f"{name}_ms"), baseline, 30, most=True, of="value", note=note))
    rows.append(
        measure.result("first_move_total", "ms", get("felt_first_total_ms"), None, 2000, most=True, of="value",
                       note="the whole first move of that program")
    )
    rows.append(
        measure.result("delay_beside_reported", "ms", get("felt_beside_reported_ms"), None, 5, most=True, of="value",
                       note="how much the program's longest call differs from what its move reports")
    )
    return rows


ABOUT = (
    "Medians; the two ways alternate in one session. mrCUDA's line is what its authors published: 1.24 s, and at most 4.8 GB/s "
    "(its memory synchronization, without the helper process's cost of each later call)."
)


def plots(samples, plans):
    """Blackout and total time across size, regions and dirty part."""
    sized, dirty, regions = plans

    def series(shapes_of, across, figure):
        shown = {}
        for way, label in (("stop", "stopped first"), ("ahead", "pre-copied")):
            points = [(across(shape), samples.median(f"{name}_{way}_{figure}")) for name, shape in shapes_of.items()]
            shown[label] = [(x, y / 1e3) for x, y in points if y is not None]
        return shown

    def whole(shape):
        return shape[0] * shape[1] / MIB

    model = [(size, MRCUDA["rest"] + size * MIB / MRCUDA["bandwidth"]) for size in map(whole, sized.values())]
    least = [(shape[0], MRCUDA["rest"] + MRCUDA["replay"] * shape[0] + 64 * MIB / MRCUDA["bandwidth"]) for shape in regions.values()]
    drawn = []
    for figure, word in (("blackout_ms", "Downtime"), ("total_ms", "Total time")):
        upwards = f"{word.lower()}, seconds"
        for title, across, values, published in (
            ("across size, 1 % rewritten", "MiB of device memory", series(sized, whole, figure), {"mrCUDA's model": model}),
            ("across the number of regions, 64 MiB in all", "regions", series(regions, lambda shape: shape[0], figure),
             {"mrCUDA's model, at best": least}),
            ("across the part that is rewritten", "percent rewritten (0.1 stands for none)",
             series(dirty, lambda shape: shape[2] or 0.1, figure), {}),
        ):
            if any(values.values()):
                drawn.append(measure.lines(f"{word} {title}", across, upwards, {**values, **published}))
    return drawn


def main():
    """The benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="moves of each kind (default 9)")
    parser.add_argument("--largest", type=int, help="MiB of the largest session (default 1024 in software, 4096 on a GPU)")
    parser.add_argument("--handover", type=int, help="MiB that are handed over (default 1024 in software, 32768 on a GPU)")
    parser.add_argument("--cuts", type=int, default=1000, help="cuts of each communicator (default 1000)")
    parser.add_argument("--device", choices=("software", "cuda"), help="default: cuda where there is an NVIDIA GPU")
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out/bench-migrate.json"), help="where the JSON goes")
    parser.add_argument("parts", nargs="*", help="only these of: costs moves handover felt gpus reconnects")
    options = parser.parse_args()
    wanted = options.parts or ["costs", "moves", "handover", "felt", "gpus", "reconnects"]
    device = options.device or ("cuda" if os.path.exists("/dev/nvidiactl") else "software")
    most = options.largest or (4096 if device == "cuda" else 1024)
    handed = options.handover or (32768 if device == "cuda" else 1024)
    samples = Samples()
    samples.add("load_before", os.getloadavg()[0])
    if "costs" in wanted:
        costs(samples)
    plans = shapes(most)
    if "moves" in wanted:
        with harness.Daemon(device=device) as one, harness.Daemon(device=device) as two:
            for plan in plans:
                for name, shape in plan.items():
                    attempt((one, two), samples, name, shape, options.rounds, WAYS)
    if "handover" in wanted:
        handed_over(samples, device, handed, options.rounds)
    if "felt" in wanted:
        felt(samples, device, options.rounds)
    if "gpus" in wanted:
        gpu_to_gpu(samples, device, handed, options.rounds)
    if "reconnects" in wanted:
        reconnects(samples, options.cuts)
    about = f"{measure.machine()}, {device} GPU"
    results = results_of(samples, list(plans[0])[-1], options.cuts, device, handed)
    content = measure.of_results(results)
    data = measure.described("Sessions that move", about, "make bench-migrate", ABOUT, **content, plots=plots(samples, plans))
    measure.write(options.output, data, samples)
    status = measure.conclude(results, samples.failures)
    print(f"written to {os.path.relpath(options.output)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
