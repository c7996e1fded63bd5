"""Rows of bench-frameworks beside the cases' own.

Each is a function that takes the ways (an environment each, and the daemon that serves
it) and the options, and returns entries of the result file.
"""

import os
import subprocess
import tempfile
import time

import llama
from measure import harness, result, say
from harness.link import Link  # pylint: disable=wrong-import-order
from relay import Relay
from turns import PACKAGED, PATIENCE, QUIET, Player, a_round, command_of, native, results_of, row_of

# The session whose host memory is measured, its steps, and by how much it may exceed native, in bytes.
MEASURED_MEMORY = ("torch", ["--steps=40", "gpt_training_step"], 300e6)
# The case that serves one model in concurrent processes, their number, and the throughput goal.
TOGETHER = ("torch", ["--steps=100", "eager_decode"], 8, 1.0)
# Cases of PyTorch whose calls that wait for a reply are counted, most of them a step, and
# the steps before and while they are.
CROSSINGS = {"gpt_training_step": 4, "resnet50_training_step": 4, "eager_decode_item": 1}
UNCOUNTED, COUNTED = 5, 40
# What trains over TCP: at most so much of native's time on loopback; on a link with so
# many seconds there and back, native's time and so many of these.
OVER_LINKS = "gpt_training_step"
LOOPBACK, ROUND_TRIP, ROUND_TRIPS = 1.05, 0.03, 1.1
# Batches, of two steps each, whose round trips are counted.
BATCHES = 10


def resident(processes):
    """Bytes of memory that processes and their descendants use, shared pages by part."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                parents.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(pid))
        except OSError:
            continue
    total, left = 0, list(processes)
    while left:
        pid = left.pop()
        left += parents.get(pid, [])
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024
        except (OSError, StopIteration):
            continue
    return total


def memory(ways, _):
    """The most host memory of a session: its program and the daemon with its worker, beside native."""
    file, arguments, allowed = MEASURED_MEMORY
    most = {}
    for way, (environment, daemon) in ways.items():
        idle = resident([daemon.process.pid]) if daemon else 0
        with subprocess.Popen(command_of(file, arguments), env={**environment, **QUIET}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
            most[way] = 0
            while program.poll() is None:
                running = [program.pid, *([daemon.process.pid] if daemon else [])]
                most[way] = max(most[way], resident(running) - idle)
                time.sleep(0.1)
    return [result("torch/gpt_host_memory", "B", most["remote"], most["native"], most["native"] + allowed, most=True, of="value")]


def together(ways, _):
    """Steps per second of concurrent processes, from the median of each process's steps."""
    file, arguments, count, goal = TOGETHER
    rate = {}
    for way, (environment, _) in ways.items():
        programs = [
            subprocess.Popen(command_of(file, arguments), env={**environment, **QUIET}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for _ in range(count)
        ]
        outputs = [program.communicate(timeout=PATIENCE)[0] for program in programs]
        steps = [line["us"] for output in outputs for line in results_of(output).values() if "us" in line]
        if len(steps) < count:
            say(f"{way}: {len(steps)} of {count} processes gave results")
        rate[way] = sum(1e6 / us for us in steps)
    return [result("torch/eight_decoders", "1/s", rate["remote"], rate["native"], goal, most=False)]


def crossings(ways, _):
    """Calls of a step that wait for a reply, when nothing waits for the step."""
    environment, daemon = ways["remote"]
    rows = []
    for name, most in CROSSINGS.items():
        with Player(environment, command_of("torch", ["--turns", name])) as player:
            count = []
            if "digest" in player.line("case"):
                for steps in (UNCOUNTED, COUNTED):
                    player.steps(steps)
                    count.append(sum(session["synchronous"] for session in daemon.sessions()))
        value = (count[1] - count[0]) / COUNTED if len(count) == 2 else None
        rows.append(result(f"torch/{name}_crossings", "", value, None, most, most=True, of="value", note=f"{COUNTED} steps"))
    return rows


def trips(daemon):
    """Round trips of a step that is waited for, read from the frames."""
    with Link(daemon.addresses["tcp"]) as link:
        environment = {**daemon.guest_environment("tcp"), **PACKAGED, "PARAGPU_TCP_ADDRESS": link.address}
        with Player(environment, command_of("torch", ["--turns", "--each", OVER_LINKS])) as player:
            if "digest" not in player.line("case"):
                return None
            processor = min(os.sched_getaffinity(0))
            player.batch(processor)
            before = link.trips
            for _ in range(BATCHES):
                player.batch(processor)
            return (link.trips - before) / (2 * BATCHES)


def links(ways, options):
    """Training over TCP, natively too each step waited for."""
    _, daemon = ways["remote"]
    counted = result(f"torch/{OVER_LINKS}_trips", "", trips(daemon), None, 1, most=True, of="value", note=f"{2 * BATCHES} steps over `tcp`")
    with Relay(daemon.addresses["tcp"], ROUND_TRIP / 2) as relay:
        environment = {**daemon.guest_environment("tcp"), **PACKAGED}
        players = {
            "native": (native(), None),
            "tcp": (environment, daemon),
            "link": ({**environment, "PARAGPU_TCP_ADDRESS": relay.address}, daemon),
        }
        samples, starts = {}, {}
        a_round(players, "torch", [OVER_LINKS], 0, options, samples, starts, ["--each"])
    pairs = samples.get(f"torch/{OVER_LINKS}", [])
    if not pairs:
        return [counted]
    say(f"over links, from import to first results: {starts} ms")
    tcp, link = ([{"native": pair["native"], "remote": pair[way]} for pair in pairs] for way in ("tcp", "link"))
    near, far = row_of(f"torch/{OVER_LINKS}_tcp", "us", tcp, LOOPBACK), row_of(f"torch/{OVER_LINKS}_link", "us", link, None)
    goal = far["baseline"] + ROUND_TRIPS * ROUND_TRIP * 1e6
    note = f"{far['note']}; {ROUND_TRIP * 1e3:.0f} ms there and back"
    return [counted, near, result(far["name"], "us", far["value"], far["baseline"], goal, most=True, of="value", note=note)]


def llama_rates(ways, options):
    """llama.cpp's prompts and generation, if it is built."""
    if not llama.built():
        say("llama.cpp is not here: `make llama` builds it")
        return []
    with tempfile.TemporaryDirectory(prefix="paragpu-llama-") as folder:
        model = llama.model("cuda", folder)
        return llama.rows(model, {way: llama.with_libraries(environment) for way, (environment, _) in ways.items()}, options.rounds)


FURTHER = {"memory": memory, "together": together, "crossings": crossings, "links": links, "llama": llama_rates}
