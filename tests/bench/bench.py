"""The speed that SPECIFICATION.md promises, as ratios to what the machine does
without paragpu, measured alternately in one run on the software GPU. Prints a
table; writes out/bench.json and, beside it, every single value.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
import measure
from measure import OVERHEADS, Samples, harness, say

COUNT = 10000
# The processors of programs, of daemons with their workers, and of baselines that are both.
PROCESSORS = {side: os.sched_getaffinity(0) for side in ("guest", "host", "both")}
GUEST = os.path.join(harness.ROOT, "tests/end_to_end/guest_program.py")


@contextlib.contextmanager
def side(name):
    """What is started meanwhile runs on a side's processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, PROCESSORS[name])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def daemon_of(*arguments):
    """A daemon on the host's processors."""
    with side("host"):
        return harness.Daemon(*arguments)


def measured(daemon, samples, communicator, *names, options=()):
    """Measures operations of a CUDA program over a communicator."""
    environment = daemon.guest_environment(communicator)
    samples.take(f"{communicator}_", [OVERHEADS, *options, *names], environment)


def raw(samples, *names):
    """Measures what the machine does by itself."""
    with side("both"):
        samples.take("", [harness.binary("paragpu-bench"), "raw", *names], dict(os.environ))


def calls(daemon, samples, rounds):
    """Round trips and posted launches."""
    bench = harness.binary("paragpu-bench")
    for communicator in harness.HOST_COMMUNICATORS:
        say(f"round trips over {communicator}")
        for _ in range(rounds):
            samples.take(f"{communicator}_", [bench, "calls"], daemon.guest_environment(communicator))
    say("posted launches over shm")
    for _ in range(rounds):
        raw(samples, "enqueue")
        samples.take("shm_", [bench, "launches"], daemon.guest_environment("shm"))
        measured(daemon, samples, "shm", "launch_issue")


def copies(daemon, samples, rounds):
    """Bulk copies."""
    names = ("pageable_h2d", "pageable_d2h", "pinned_h2d", "pinned_d2h", "pageable_h2d_ratio", "pageable_d2h_ratio")
    for at in range(rounds):
        say(f"copies of 64 MiB, {at + 1} of {rounds}")
        raw(samples, "memcpy")
        measured(daemon, samples, "shm", *names)
        raw(samples, "copy-unix")
        measured(daemon, samples, "unix", *names[:2])
        raw(samples, "copy-tcp")
        measured(daemon, samples, "tcp", *names[:2])


def secured(plain, samples, rounds):
    """Bulk copies and launches over TCP under TLS, and launches over a daemon without."""
    with tempfile.TemporaryDirectory(prefix="paragpu-tls-") as folder:
        for arguments in (["127.0.0.1"], ["--vm", "bench"]):
            subprocess.run([harness.binary("paragpu"), "certificate", folder, *arguments], check=True, capture_output=True)

        def files(name):
            return (("ca", "ca.pem"), ("certificate", f"{name}.pem"), ("key", f"{name}.key"))

        with daemon_of(*(f"--set=tcp.{key}={folder}/{file}" for key, file in files("127.0.0.1"))) as daemon:
            environment = daemon.guest_environment("tcp")
            environment.update({f"PARAGPU_TCP_{key.upper()}": f"{folder}/{file}" for key, file in files("bench")})
            for at in range(rounds):
                say(f"copies of 64 MiB and launches under TLS, {at + 1} of {rounds}")
                raw(samples, "copy-tls")
                measured(plain, samples, "tcp", "launch_throughput")
                samples.take("tls_", [OVERHEADS, "pageable_h2d", "pageable_d2h", "launch_throughput"], environment)


def crossings(daemon, samples):
    """Waits of a loop: those of a program with it, less those of the same program
    without; less those of one turn for the queries, whose answers are fetched once. The
    fewest of some runs, since the same program may have a wait more or less."""
    for loop, fewest in (("posted_10k", 0), ("queries_10k", 1), ("pooled_10k", 1)):
        say(f"crossings of {loop}")
        waits = []
        for count in (COUNT, fewest):
            runs = [daemon.run(OVERHEADS, "shm", ("--count", str(count), loop)) for _ in range(5)]
            failed = next((run for run in runs if run.code != 0), None)
            if failed:
                samples.failures.append(f"{loop}: {failed.output}{failed.errors}".strip())
                return
            waits.append(min(run.counters["synchronous"] for run in runs))
        samples.add(f"crossings_{loop}", waits[0] - waits[1])


def software(samples, rounds):
    """The software GPU, with one thread and with two."""
    with daemon_of("--set", "software.threads=1") as one, daemon_of("--set", "software.threads=2") as two:
        for at in range(rounds):
            say(f"arithmetic, {at + 1} of {rounds}")
            raw(samples, "arithmetic")
            for name, daemon in (("one_thread_", one), ("two_threads_", two)):
                samples.take(name, [OVERHEADS, "arithmetic_rate"], daemon.guest_environment("shm"))


def endings(daemon, samples, rounds):
    """From a worker's death until its program, which waits for a kernel, has the error."""
    for communicator in harness.HOST_COMMUNICATORS:
        say(f"killed workers over {communicator}")
        for _ in range(rounds):
            guest = subprocess.Popen(
                [sys.executable, GUEST, "spin"], env=daemon.guest_environment(communicator), stdout=subprocess.PIPE, text=True
            )
            with guest.stdout:
                if guest.stdout.readline() != "spinning\n":
                    samples.failures.append(f"killed_worker over {communicator}: the program did not begin")
                    return
                (worker,) = [one["worker_pid"] for one in daemon.sessions() if one["guest_pid"] == guest.pid]
                os.kill(worker, signal.SIGKILL)
                begin = time.monotonic()
                said = guest.stdout.readline()
                took = time.monotonic() - begin
            guest.wait(60)
            if not said.startswith("CUDA error"):
                samples.failures.append(f"killed_worker over {communicator}: the program said {said!r}")
                return
            samples.add("killed_worker", took)


def results_of(samples):
    """The entries of bench.json."""
    get = samples.median

    def scaled(name, factor):
        value = get(name)
        return None if value is None else value * factor

    def note(text, **values):
        if any(value is None for value in values.values()):
            return None
        return text.format(**{name: measure.short(value) for name, value in values.items()})

    results = [
        measure.result(
            "posted_launch_shm", "ns", scaled("shm_client_launch", 1000), scaled("raw_enqueue", 1000), 300, most=True, of="value",
            note="checked, encoded and put into the ring; the baseline is handing the bare bytes to another thread",
        ),
        measure.result(
            "runtime_launch_shm", "ns", scaled("shm_launch_issue", 1000), scaled("shm_client_launch", 1000), None, most=True,
            note="the same from <<<>>> on, through the CUDA runtime and the driver's interface",
        ),
    ]
    results.append(measure.result("sync_call_shm", "us", get("shm_call"), get("shm_raw_pingpong"), 3, most=True, ratio=get("shm_call_ratio"),
                                  note=note("the bare round trip, two threads polling alike, takes {bare} us", bare=get("shm_raw_pingpong"))))
    for name in ("unix", "tcp"):
        # The better of the two ways to wait, so that polling is not counted as our merit.
        ways = {way: get(f"{name}_raw_pingpong{way}") for way in ("", "_polled")}
        best = min((value for value in ways.values() if value is not None), default=None)
        text = "a bare round trip takes {blocked} us where both ends sleep, {polled} us where both poll (the baseline is the shorter)"
        results.append(
            measure.result(
                f"sync_call_{name}", "us", get(f"{name}_call"), best, 1.3, most=True, ratio=get(f"{name}_call_ratio"),
                note=note(text, blocked=ways[""], polled=ways["_polled"]),
            )
        )
    for way in ("h2d", "d2h"):
        results.append(
            measure.result(
                f"bulk_{way}_shm", "B/s", get(f"shm_pageable_{way}"), get("raw_memcpy"), 0.8, most=False, ratio=get(f"shm_pageable_{way}_ratio"),
                note=note("pageable; pinned memory, which is not staged, does {pinned} B/s", pinned=get(f"shm_pinned_{way}")),
            )
        )
        results.append(
            measure.result(
                f"bulk_{way}_unix", "B/s", get(f"unix_pageable_{way}"), get("raw_copy_unix"), 0.8, most=False,
                note=note(
                    "the bytes are copied once more than in the bare copy, into the device's memory: memcpy by one thread does {memcpy} B/s",
                    memcpy=get("raw_memcpy"),
                ),
            )
        )
        results.append(
            measure.result(
                f"bulk_{way}_tls", "B/s", get(f"tls_pageable_{way}"), get("raw_copy_tls"), 0.8, most=False,
                note=note("over TCP; the baseline is rustls's own stream between two threads; without TLS a bare copy does {tcp} B/s",
                          tcp=get("raw_copy_tcp")),
            )
        )
    results.append(
        measure.result("launches_tls", "1/s", get("tls_launch_throughput"), get("tcp_launch_throughput"), 0.97, most=False,
                       note="empty kernels on the software GPU; the baseline is the same over TCP without TLS")
    )
    operations = {"posted": 2 * COUNT, "queries": 5 * COUNT, "pooled": 6 * COUNT}
    for name, goal in (("posted", 10), ("queries", 0), ("pooled", 10)):
        value = get(f"crossings_{name}_10k")
        results.append(
            measure.result(f"crossings_10k_{name}", "crossings", value, operations[name], goal, most=True, of="value")
        )
    one, two = get("one_thread_arithmetic_rate"), get("two_threads_arithmetic_rate")
    results.append(
        measure.result("software_gpu_rate", "1/s", one, get("raw_arithmetic"), 1e9, most=False, of="value",
                       note="thread-instructions of one core; the baseline is the same arithmetic compiled for the CPU")
    )
    results.append(measure.result("software_gpu_scaling", "1/s", two, one, 1.7, most=False))
    slowest = max(samples.values.get("killed_worker", []), default=None)
    results.append(measure.result("killed_worker", "s", slowest, None, 1, most=True, of="value", note="the slowest of all"))
    return results


def precede():
    """Runs this process, and whatever it starts, before other programs of the machine, if that
    is permitted: a measurement then stands still for no one."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as refused:
        say(f"no real-time priority ({refused.strerror}): other programs will be measured, too")


def main():
    """The benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="alternations of measurement and baseline (default 5)")
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out/bench.json"), help="where the JSON goes")
    parser.add_argument("--apart", action="store_true", help="half of the processors for programs, half for the host, as on two machines")
    parser.add_argument("parts", nargs="*", help="only these of: calls copies tls crossings software endings")
    options = parser.parse_args()
    if options.apart:
        own = sorted(PROCESSORS["both"])
        PROCESSORS["guest"], PROCESSORS["host"] = set(own[: len(own) // 2]), set(own[len(own) // 2 :])
        os.sched_setaffinity(0, PROCESSORS["guest"])
    wanted = options.parts or ["calls", "copies", "tls", "crossings", "software", "endings"]
    samples = Samples()
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"other programs use this machine (load {load:.1f})")
    precede()
    samples.add("load_before", load)
    with daemon_of() as daemon:
        if "calls" in wanted:
            calls(daemon, samples, options.rounds)
        if "copies" in wanted:
            copies(daemon, samples, options.rounds)
        if "tls" in wanted:
            secured(daemon, samples, options.rounds)
        if "crossings" in wanted:
            crossings(daemon, samples)
        if "endings" in wanted:
            endings(daemon, samples, options.rounds)
    if "software" in wanted:
        software(samples, options.rounds)
    results = results_of(samples)
    content = measure.of_results(results)
    measure.write(options.output, measure.described("Promises", measure.machine(), "make bench", **content), samples)
    status = measure.conclude(results, samples.failures)
    print(f"written to {os.path.relpath(options.output)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
