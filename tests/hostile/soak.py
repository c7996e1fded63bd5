#!/usr/bin/env python3
"""Hostile tenants for an hour, and the remaining speed of honest ones.

usage: soak.py [--seconds 3600] [--phase 8] [--output FILE]

One daemon with the software GPU serves honest tenants all the time. Beside
them nobody works ("alone"), as many honest tenants as attack later launch
kernels without a pause ("busy"), or attackers do ("hostile"); the three take
turns. Speed is compared between neighbouring phases of one run, since the
machine's load varies. Judged are tenants that ask for less than their share of
the machine: beside attackers they must make 0.9 of the rounds that they make
alone.

One more tenant asks for all it can get, and is not judged. Where the GPU is the
processor, any work of others costs it a share. Without control groups that is a
part for each session: the attackers have 25 and more at a time, busy tenants
one each.

The guests' own programs would run in VMs. Here they have half of the processors,
attackers' with the lowest priority, and the daemon and its workers the others.

Ends with 1 if something was lost, an attack went through, or speed was.
"""

import argparse
import json
import multiprocessing
import os
import queue
import random
import statistics
import struct
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "wire"), os.path.dirname(HERE)]

import doors
import frames
import kernels
import wire
from crowd import ADD
from field import ARENA, CHUNK, ENDLESS, Field, descriptors, expect, resident, until
from tqdm import tqdm

# Honest tenants, and how many rounds a second each asks for: None is all it can get.
HONEST = {"paced": (30, 30, 30), "eager": (None,)}
KEEPS = 0.9
PHASES = ("alone", "busy", "hostile")
FORK = multiprocessing.get_context("fork")
PROCESSORS = sorted(os.sched_getaffinity(0))
# Of the daemon and its workers, and of the guests' programs.
HOSTS, GUESTS = (PROCESSORS[: len(PROCESSORS) // 2] or PROCESSORS), PROCESSORS[len(PROCESSORS) // 2 :]


class Tenant(Field):
    """A VM of the daemon that another process started; guests over TCP are known by their address."""

    def __init__(self, daemon, source, seed):
        self.daemon, self.home, self.context = daemon, source, None
        self.source, self.open = random.Random(seed), []

    def session(self, address=None, **options):
        return super().session(address or self.tcp, **({} if isinstance(address, str) else {"source": self.home}), **options)


def random_frames(tenant):
    """Calls that are none, and calls without sense."""
    return frames.storm(tenant, tenant.tcp, 3, 60) + frames.nonsense(tenant, 3)


def scribbles(tenant):
    """Rings that others write into: of this user, who is a tenant too."""
    return frames.scribbles(tenant, 2)


def hostile_kernels(tenant):
    """Kernels that are damaged, and kernels that never end."""
    session = tenant.session()
    tenant.launch(session, tenant.kernel(session, ENDLESS))
    return kernels.mutants(tenant, 1) + 1


def reconnect_storms(tenant):
    """A session whose connection is lost again and again."""
    doors.resumed(tenant, tenant.session(), 60, tenant.tcp).call("Ping", value=1)
    return 60


def slow_peers(tenant):
    """Connections that say nothing, and a guest that does not read."""
    doors.flood(tenant, 80, tcp_from=tenant.home)
    return 80 + frames.a_guest_that_never_reads(tenant)


def session_storms(tenant):
    """Sessions that end as soon as they begin: the host starts a worker for each."""
    for _ in range(20):
        tenant.session().call("Ping", value=1)
        tenant.hang_up()
    return 20


def shaped_waits(tenant):
    """A guest that sends when the host is likely to have predicted it, and when not, so that the host polls."""
    session = tenant.session()
    session.call("MemMap", address=ARENA, size=CHUNK)
    for number in range(400):
        session.post("Memset", destination=ARENA, pitch=0, value=1, element=1, width=4, height=1, stream=0)
        time.sleep((0.0004, 0.0008, 0.0012, 0.0016)[number % 4])
    return 400


ATTACKERS = (random_frames, scribbles, hostile_kernels, reconnect_storms, slow_peers, session_storms, shaped_waits)


def busy(tenant):
    """What a tenant does that only works: launches, and looks at the result."""
    if not tenant.open:
        session = tenant.session()
        session.call("MemMap", address=ARENA, size=CHUNK)
        tenant.kernel(session, ADD)
    for _ in range(20):
        for _ in range(8):
            tenant.launch(tenant.open[0], 101, struct.pack("<Q", ARENA), block=(256, 1, 1), grid=(16, 1, 1))
        tenant.open[0].call("ContextSynchronize")
    return 160


class Turns:
    """Processes that act while one of their phases is on: `on` says which."""

    def __init__(self):
        self.on, self.idle, self.told = FORK.Value("i", 0), FORK.Value("i", 0), FORK.Queue()
        self.processes = []

    def start(self, tenant, act, phase):
        """Starts one that acts in a phase."""
        self.processes.append(FORK.Process(target=self.run, args=(tenant, act, phase), daemon=True))
        self.processes[-1].start()

    def run(self, tenant, act, phase):
        """Attacks while it may; reports the number of attacks, or why it cannot."""
        os.sched_setaffinity(0, GUESTS)
        os.nice(19)
        with self.idle.get_lock():
            self.idle.value += 1
        resting, done = True, 0
        while self.on.value >= 0:
            if self.on.value != phase:
                if not resting:
                    tenant.hang_up()
                    self.told.put((act.__name__, done, ""))
                    with self.idle.get_lock():
                        self.idle.value += 1
                    resting, done = True, 0
                time.sleep(0.02)
                continue
            if resting:
                with self.idle.get_lock():
                    self.idle.value -= 1
                resting = False
            try:
                done += act(tenant)
            except Exception as error:  # pylint: disable=broad-exception-caught
                # An attacker that is refused, or whose session ended, continues.
                if act is busy or not isinstance(error, (OSError, wire.Failed, wire.WireError)):
                    self.told.put((act.__name__, 0, traceback.format_exc()))
                done += 1
            if act is not busy:
                tenant.hang_up()

    def rest(self):
        """Returns when no attacker is active."""
        self.on.value = 0
        until("at rest", lambda: self.idle.value == len(self.processes), 120)

    def end(self):
        """Ends all."""
        self.on.value = -1
        for process in self.processes:
            process.join(60)


class Honest:
    """A tenant whose results are known; it loses its connection once a phase."""

    def __init__(self, daemon, number, pace):
        self.pace = pace
        self.tenant = Tenant(daemon, f"127.0.5.{number + 1}", number)
        self.rounds, self.over, self.why = FORK.Value("q", 0), FORK.Value("b", 0), FORK.Queue()
        self.back, self.longest = FORK.Value("q", 0), FORK.Value("d", 0.0)
        self.process = FORK.Process(target=self.run, daemon=True)
        self.process.start()

    def run(self):
        """Counts on the GPU, and compares every round."""
        os.sched_setaffinity(0, GUESTS)
        try:
            self.work()
        except Exception:  # pylint: disable=broad-exception-caught
            self.why.put(traceback.format_exc())

    def work(self):
        tenant = self.tenant
        session = tenant.session()
        session.call("MemMap", address=ARENA, size=CHUNK)
        tenant.kernel(session, ADD)
        pattern, count = os.urandom(16 << 10), 0
        session.post("CopyToDevice", destination=ARENA, stream=0, data=bytes(8))
        due = time.monotonic()
        while not self.over.value:
            if self.pace:
                # What it is late by it makes up for, up to a second.
                due = max(due + 1 / self.pace, time.monotonic() - 1)
                time.sleep(max(0, due - time.monotonic()))
            began = time.monotonic()
            session.post("CopyToDevice", destination=ARENA + 4096, stream=0, data=pattern)
            for _ in range(8):
                tenant.launch(session, 101, struct.pack("<Q", ARENA))
            count += 8
            found = session.call("CopyFromDevice", source=ARENA, size=4096 + len(pattern), stream=0)[1]
            expect(struct.unpack_from("<I", found)[0] == count & 0xFFFFFFFF, f"{found[:4]} instead of {count}")
            expect(found[4096:] == pattern, "its memory differs")
            if self.rounds.value % 500 == 499:
                session = doors.resumed(tenant, session, 1, tenant.tcp)
                self.back.value += 1
            self.longest.value = max(self.longest.value, time.monotonic() - began)
            self.rounds.value += 1
        tenant.hang_up()

    def end(self):
        """Why it failed; empty where it did not."""
        self.over.value = 1
        self.process.join(60)
        try:
            return self.why.get(timeout=0.2)
        except queue.Empty:
            return "" if self.process.exitcode == 0 else f"it ended with {self.process.exitcode}"


class Soak:
    """The run: its phases and their results."""

    def __init__(self, field, phase):
        self.field, self.phase = field, phase
        self.rates = {kind: {name: [] for name in PHASES} for kind in HONEST}
        self.turns, self.cases, self.errors = Turns(), {}, []
        for number, act in enumerate(ATTACKERS):
            self.turns.start(Tenant(field.daemon, f"127.0.6.{number + 1}", number), act, 2)
        for number in range(len(ATTACKERS)):
            self.turns.start(Tenant(field.daemon, f"127.0.7.{number + 1}", number), busy, 1)
        paces = [(kind, pace) for kind, paces in HONEST.items() for pace in paces]
        self.kinds = [kind for kind, _ in paces]
        self.honest = [Honest(field.daemon, number, pace) for number, (_, pace) in enumerate(paces)]
        self.first, self.workers = None, {}

    def made(self, kind=None):
        """Rounds of all honest tenants so far, or of a kind."""
        return sum(one.rounds.value for own, one in zip(self.kinds, self.honest, strict=True) if kind in (None, own))

    def pass_phase(self, name):
        """One phase, and the honest tenants' rounds a second in it."""
        self.turns.rest()
        # Waits until the attackers' leftovers are gone, so that they slow no other phase.
        until("alone", lambda: len(self.field.daemon.sessions()) == len(self.honest), 60)
        if self.first is None:
            pid = self.field.daemon.process.pid
            self.first = resident(pid), descriptors(pid)
            self.workers = {one["worker_pid"]: resident(one["worker_pid"]) for one in self.field.daemon.sessions()}
        self.turns.on.value = PHASES.index(name)
        # The first second is not judged: tenants begin their sessions.
        time.sleep(1)
        began, before = time.monotonic(), {kind: self.made(kind) for kind in HONEST}
        time.sleep(self.phase)
        for kind, rounds in before.items():
            self.rates[kind][name].append((self.made(kind) - rounds) / (time.monotonic() - began))

    def hear(self):
        """Receives the attackers' reports."""
        while True:
            try:
                name, cases, why = self.turns.told.get(timeout=0.1)
            except queue.Empty:
                return
            self.cases[name] = self.cases.get(name, 0) + cases
            self.errors += [f"{name}: {why}"] if why else []

    def kept(self, kind, beside):
        """Speed beside attackers over that in the phase before: the median of all turns."""
        pairs = zip(self.rates[kind]["hostile"], self.rates[kind][beside], strict=False)
        return round(statistics.median([hostile / other for hostile, other in pairs if other] or [0]), 3)

    def end(self):
        """Ends everybody; the file's content."""
        self.turns.rest()
        self.hear()
        more = [resident(pid) - first for pid, first in self.workers.items() if os.path.exists(f"/proc/{pid}")]
        lost = [why for why in (one.end() for one in self.honest) if why]
        self.turns.end()
        until("without sessions", lambda: not self.field.daemon.sessions(), 60)
        pid = self.field.daemon.process.pid
        grown = resident(pid) - self.first[0], descriptors(pid) - self.first[1]
        self.field.check()
        checks = {
            "nothing-is-lost": not lost,
            f"honest-tenants-keep-{KEEPS}-of-their-speed": self.kept("paced", "alone") >= KEEPS,
            "the-daemon-grows-by-no-more-than-32-MiB": grown[0] < 32 << 20,
            "the-daemon-keeps-no-descriptors": grown[1] <= 16,
            "honest-workers-stay-and-grow-by-no-more-than-32-MiB": len(more) == len(self.honest) and max(more) < 32 << 20,
            "attackers-attack": not self.errors and all(self.cases.get(act.__name__) for act in ATTACKERS),
        }
        return {
            "results": [{"name": name, "held": held} for name, held in checks.items()],
            "cases": self.cases,
            "honest": {
                "tenants": len(self.honest),
                "rounds": self.made(),
                "reconnected": sum(one.back.value for one in self.honest),
                "longest_round_s": round(max(one.longest.value for one in self.honest), 3),
                "speed": {f"{kind}-over-{beside}": self.kept(kind, beside) for kind in HONEST for beside in ("alone", "busy")},
                "rounds_per_s": {
                    kind: {name: [round(rate, 1) for rate in rates] for name, rates in phases.items()}
                    for kind, phases in self.rates.items()
                },
            },
            "daemon": {"grown_bytes": grown[0], "grown_descriptors": grown[1]},
            "honest_workers": {"grown_bytes": more},
            "why": lost + self.errors[:20],
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--phase", type=float, default=8, help="seconds of one phase that are judged")
    parser.add_argument("--output", help="where the results go, as JSON")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, HOSTS)
    field = Field("--set=limits.reconnect=3000")
    try:
        soak, began = Soak(field, arguments.phase), time.monotonic()
        until("there", lambda: all(one.rounds.value for one in soak.honest), 60)
        with tqdm(total=round(arguments.seconds), unit="s", desc="soak", file=sys.stderr) as bar:
            while (spent := time.monotonic() - began) < arguments.seconds:
                for name in PHASES:
                    bar.set_postfix_str(f"{name}, {soak.made()} honest rounds, {sum(soak.cases.values())} cases")
                    soak.pass_phase(name)
                    soak.hear()
                    bar.update(round(min(time.monotonic() - began, arguments.seconds)) - bar.n)
                    alive = all(one.process.is_alive() for one in soak.honest)
                    if not alive:
                        break
                if not alive:
                    break
        told = {"seconds": round(time.monotonic() - began, 1), **soak.end()}
    except BaseException:
        print(field.last_words(), file=sys.stderr)
        raise
    finally:
        field.close()
    print(json.dumps(told, indent=1))
    if arguments.output:
        os.makedirs(os.path.dirname(os.path.abspath(arguments.output)), exist_ok=True)
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump(told, file, indent=1)
    broken = [result["name"] for result in told["results"] if not result["held"]]
    print("everything held" if not broken else f"did not hold: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
