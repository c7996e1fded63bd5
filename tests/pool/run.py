#!/usr/bin/env python3
"""Shows what a pool of three GPU hosts under Slurm does, into out/pool.json.

usage: run.py [--output FILE]

Software GPUs, and a cluster of its own in network namespaces: needs root,
slurmctld, slurmd, munge and iproute2, and ends what it started. Each result has
a name, a value, a goal and whether it is met. Times are those of this machine,
whose cores all machines of the cluster share.
"""

import argparse
import json
import os
import signal
import ssl
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
# pylint: disable=wrong-import-position
import harness
from pool.cluster import GPUS, SHARDS, Cluster, eventually

GIB = 1 << 30
# Sizes of leases in GiB, odd ones: 60 that together are 780 of 846 GiB.
SIZES = [1 + (7 * at) % 25 for at in range(60)]


class Results:
    """What was found."""

    def __init__(self):
        self.entries = []

    def add(self, name, value, goal, met, note):
        """One more; printed at once."""
        self.entries.append({"name": name, "value": value, "goal": goal, "met": bool(met), "note": note})
        mark = "met   " if met else "MISSED"
        print(f"{mark} {name:32} {value!s:>10}   goal {goal!s:<8} {note}", flush=True)

    def most(self, name, value, goal, note):
        """A value that may not exceed its goal."""
        self.add(name, round(value, 3), goal, value <= goal, note)

    def exactly(self, name, value, goal, note):
        """A value that must equal its goal."""
        self.add(name, value, goal, value == goal, note)


def seconds_until(true, what, patience):
    """How long until `true()`; the patience where it was in vain."""
    began = time.monotonic()
    try:
        eventually(true, what, patience)
    except AssertionError:
        return float(patience)
    return time.monotonic() - began


def works(*programs, more=3, patience=30):
    """Do these programs do more rounds?"""
    before = [program.rounds() for program in programs]
    try:
        eventually(
            lambda: all(one.rounds() >= then + more for one, then in zip(programs, before)), "programs go on", patience
        )
        return True
    except AssertionError:
        return False


def jobs(cluster, *options):
    """Running jobs: number, node."""
    return [line.split() for line in cluster.slurm("squeue", "-h", "-t", "R", "-o", "%i %N", *options).splitlines()]


def end(cluster, *programs):
    """Ends programs, and waits for their jobs' ends."""
    for program in programs:
        if program.ended() is None:
            program.process.send_signal(signal.SIGTERM)
    for program in programs:
        program.end()
    eventually(lambda: not cluster.slurm("squeue", "-h").strip(), "the jobs are over", 30)


def placement(cluster, results):
    """Many leases of odd sizes."""
    held, slowest = [], 0.0
    for at, size in enumerate(SIZES):
        began = time.monotonic()
        program, directory = cluster.held(cluster.clients[at % 2], f"{size}GiB", f"held{at}")
        waited = seconds_until(lambda path=directory: os.path.exists(f"{path}/guest.toml"), "a lease", 20)
        slowest = max(slowest, waited if waited >= 20 else time.monotonic() - began)
        held.append(program)
    try:
        eventually(lambda: all(program.said(" as lease-") for program in held), "all say so", 10)
    except AssertionError:
        pass
    placed = sum(program.said(" as lease-") is not None for program in held)
    results.exactly("leases_placed", placed, len(SIZES), f"leases of {min(SIZES)} to {max(SIZES)} GiB, {sum(SIZES)} in all")
    results.most("slowest_placement_s", slowest, 1.5, "from the command to its files, one after the other")
    given = {}
    for program in (one for one in held if one.said(" as lease-")):
        # "25GiB of GPU 0 of gpu1 as lease-0-17"
        words = next(line for _, line in program.errors if " as lease-" in line).split()
        gpu = (words[6], words[4])
        given[gpu] = given.get(gpu, 0) + int(words[1].removesuffix("GiB"))
    over = sum(size > SHARDS // GPUS for size in given.values())
    results.exactly("gpus_over_their_memory", over, 0, f"the fullest GPU gave {max(given.values())} of {SHARDS // GPUS} GiB")
    end(cluster, *held)


def limits(cluster, results):
    """A program that asks for more than it leased, and one that does not."""
    programs = [cluster.lease("node1", "1GiB", "take", str(size)) for size in (GIB // 2, GIB + GIB // 2)]
    for program in programs:
        eventually(lambda one=program: one.ended() is not None, "the program ends", 30)
    said = [program.lines[-1][1] if program.lines else program.text() for program in programs]
    results.exactly("half_of_a_lease", said[0], "took", "512 MiB of 1 GiB")
    results.exactly("more_than_a_lease", said[1], "refused", "1.5 GiB of 1 GiB: CUDA's out of memory")
    big = cluster.lease("node1", f"{SHARDS + 1}GiB", "run")
    took = seconds_until(lambda: big.ended() is not None, "more shards than any host has", 20)
    results.add("more_than_any_host", big.ended(), "not 0", big.ended() not in (None, 0) and took < 20, "the command fails at once")
    big.end()


def attempt(cluster, directory):
    """What a guest hears that shows the certificates of a directory."""
    paragpu = [harness.binary("paragpu"), "run", "--libraries", harness.LIBRARIES, sys.executable, f"{HERE}/guest.py", "take", "4096"]
    environment = {**cluster.environment, "PARAGPU_CONFIG": f"{directory}/guest.toml", "PARAGPU_LOG_LEVEL": "error"}
    done = subprocess.run(cluster.inside("node1", *paragpu), env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def strangers(cluster, results):
    """Certificates that open nothing."""
    first, directory = cluster.held("node1", "1GiB", "replayed")
    eventually(lambda: os.path.exists(f"{directory}/guest.toml"), "a lease", 20)
    good = attempt(cluster, directory)
    results.exactly("own_certificate", good.strip(), "took", "before all that is refused")
    end(cluster, first)
    replayed = attempt(cluster, directory)
    refused = "took" not in replayed and "lease" in replayed and "over" in replayed
    results.exactly("replayed_lease", "refused" if refused else replayed[-200:], "refused", "a certificate after its lease's end")
    second, directory = cluster.held("node1", "1GiB", "forged")
    eventually(lambda: os.path.exists(f"{directory}/guest.toml"), "a lease", 20)
    vm = ssl._ssl._test_decode_cert(f"{directory}/lease.pem")  # pylint: disable=protected-access
    uri = next(name for kind, name in vm["subjectAltName"] if kind == "URI")
    name = uri.split("vm/")[1].split("?")[0]
    authority = f"{cluster.folder}/strange"
    command = [harness.binary("paragpu"), "certificate", authority, "--vm", name]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    for ours, theirs in (("lease.pem", f"{name}.pem"), ("lease.key", f"{name}.key")):
        os.replace(f"{authority}/{theirs}", f"{directory}/{ours}")
    forged = attempt(cluster, directory)
    refused = "took" not in forged
    results.exactly("forged_certificate", "refused" if refused else forged[-200:], "refused", "of another authority, with the lease's name")
    end(cluster, second)
    # Another user's process on the GPU host claims root's job.
    third, directory = cluster.held("node1", "1GiB", "other")
    eventually(lambda: os.path.exists(f"{directory}/guest.toml"), "a lease", 20)
    job, host = jobs(cluster)[0]
    claim = json.dumps({"command": "claim", "job": int(job), "key": ""})
    script = (
        "import socket,sys\n"
        f"s=socket.socket(socket.AF_UNIX);s.connect('{cluster.folder}/{host}/lease.sock')\n"
        f"s.sendall({claim!r}.encode()+b'\\n')\nprint(s.makefile().readline())"
    )
    command = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-c", script]
    said = subprocess.run(cluster.inside(host, *command), env=cluster.environment, capture_output=True, text=True, timeout=60, check=False)
    refused = "another user" in said.stdout
    results.exactly("job_of_another_user", "refused" if refused else said.stdout[-200:] + said.stderr[-200:], "refused", "at the lease socket")
    end(cluster, third)


def ends(cluster, results):
    """scancel, and a user that disappears."""
    program = cluster.lease("node1", "1GiB", "run")
    eventually(lambda: program.rounds() > 2, "rounds", 30)
    (job, _) = jobs(cluster)[0]
    began = time.monotonic()
    cluster.slurm("scancel", job)
    took = seconds_until(lambda: any("CUDA error" in line for _, line in program.lines), "a CUDA error", 20)
    results.most("scancel_to_cuda_error_s", time.monotonic() - began if took < 20 else 20, 1.0, "the program hears that its lease is over")
    end(cluster, program)
    held, directory = cluster.held("node1", "1GiB", "gone")
    eventually(lambda: os.path.exists(f"{directory}/guest.toml"), "a lease", 20)
    cluster.kill("node1")
    took = seconds_until(lambda: not cluster.slurm("squeue", "-h", "-t", "R").strip(), "the lease of nobody ends", 60)
    results.most("lease_of_nobody_s", took, 60, "from its user's death by SIGKILL to the end of the job")
    held.end()
    end(cluster)


def drain(cluster, results):
    """Leases of a host that drains."""
    cluster.slurm("scontrol", "update", f"nodename={','.join(cluster.hosts[1:])}", "state=drain", "reason=test")
    programs = [cluster.lease(cluster.clients[at % 2], "3GiB", "run") for at in range(4)]
    eventually(lambda: all(program.rounds() > 2 for program in programs), "rounds", 60)
    cluster.slurm("scontrol", "update", f"nodename={','.join(cluster.hosts[1:])}", "state=resume")
    host = cluster.hosts[0]
    cluster.slurm("scontrol", "update", f"nodename={host}", "state=drain", "reason=test")
    took = seconds_until(lambda: not jobs(cluster, "-w", host) and not cluster.sessions(host), "the host is empty", 40)
    results.most("drain_s", took, 10, f"until no lease and no session is left of {len(programs)}, each with a program at work")
    works(*programs, more=10)
    failed = sum(program.ended() is not None for program in programs)
    results.exactly("failed_by_a_drain", failed, 0, "each program compares every result with the right one")
    pauses = [line for program in programs for _, line in program.errors if "delayed for" in line]
    longest = max((float(line.split("delayed for ")[1].split()[0]) for line in pauses), default=0.0)
    results.exactly("moved_by_a_drain", len(pauses), len(programs), f"leases; the longest delay of a call was {longest} ms")
    cluster.slurm("scontrol", "update", f"nodename={host}", "state=resume")
    return programs


def rebalance(cluster, results, programs):
    """Leases on two hosts spread over three."""
    done = cluster.slurm(harness.binary("paragpu"), "pool", "rebalance", "--most", "1")
    moved = seconds_until(lambda: jobs(cluster, "-w", cluster.hosts[0]), "a lease moves to the empty host", 20)
    results.add("rebalanced", done.strip(), "one lease", moved < 20 and done.count("leave") == 1 and works(*programs), "programs go on")


def controller(cluster, results, programs):
    """The controller dies and comes back."""
    pid = int(open(f"{cluster.folder}/slurmctld.pid", encoding="ascii").read())
    os.kill(pid, signal.SIGKILL)
    cluster.processes["ctl"].wait()
    without = works(*programs, more=20)
    # Not -c: it takes up its state.
    cluster.processes["ctl"] = cluster.start("ctl", "slurmctld", "-D")
    back = seconds_until(lambda: subprocess.run(cluster.inside("ctl", "squeue"), env=cluster.environment, capture_output=True, check=False).returncode == 0, "the controller answers", 40)
    lost = len(programs) - len(jobs(cluster))
    results.exactly("lost_with_the_controller", lost if without else "programs stopped", 0, f"leases; killed, and back after {back:.1f} s")
    works(*programs)
    failed = sum(program.ended() is not None for program in programs)
    results.exactly("failed_with_the_controller", failed, 0, "programs")


def cut(cluster, results, programs):
    """A client without its network for a while."""
    cluster.cut("node1", "down")
    time.sleep(20)
    cluster.cut("node1", "up")
    went_on = works(*programs, patience=30)
    failed = sum(program.ended() is not None for program in programs)
    results.exactly("failed_by_a_cut_of_20_s", failed if went_on else "stopped", 0, "programs; half of them on the node that was cut off")


def lost_host(cluster, results):
    """A host dies with leases that are written, and one that is not."""
    options = ("--checkpoint", "1s")
    idle = cluster.lease("node1", "2GiB", "step", options=options)
    idle.step()
    eventually(lambda: idle.rounds() == 1, "a round", 30)
    (job, host) = jobs(cluster)[0]
    written = f"{cluster.folder}/states"
    eventually(lambda: any(name == "state" or name.endswith(".state") or files for _, _, files in os.walk(written) for name in files), "a state", 30)
    time.sleep(3)
    busy = cluster.lease("node2", "2GiB", "run", options=("--engine-option", f"--nodelist={host}"))
    eventually(lambda: busy.rounds() > 2, "rounds", 30)
    cluster.kill(host)
    took = seconds_until(lambda: idle.said(" as lease-") and sum(" as lease-" in line for _, line in idle.errors) == 2, "the lease is elsewhere", 45)
    idle.step()
    goes_on = seconds_until(lambda: idle.rounds() == 2, "a round after it", 30)
    note = f"a program that was idle since the last state; the lease was elsewhere after {took:.1f} s"
    results.add("killed_host_runs_on", "goes on" if goes_on < 30 else idle.text()[-300:], "goes on", goes_on < 30 and idle.ended() is None, note)
    ended = seconds_until(lambda: busy.ended() is not None, "the other ends", 60)
    results.add("killed_host_unwritten", busy.ended(), 3, busy.ended() == 3, f"a lease without states: CUDA error after {ended:.1f} s")
    return job


def main():
    """Runs all, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=os.path.join(harness.ROOT, "out", "pool.json"))
    output = parser.parse_args().output
    if os.geteuid() != 0:
        raise SystemExit("this makes network namespaces: run it as root")
    # A terminated run ends its cluster, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began, results = time.monotonic(), Results()
    with Cluster() as cluster:
        placement(cluster, results)
        limits(cluster, results)
        strangers(cluster, results)
        ends(cluster, results)
        programs = drain(cluster, results)
        rebalance(cluster, results, programs)
        controller(cluster, results, programs)
        cut(cluster, results, programs)
        end(cluster, *programs)
        lost_host(cluster, results)
    results.most("all_s", time.monotonic() - began, 360, "the whole run")
    os.makedirs(os.path.dirname(output), exist_ok=True)
    with open(output, "w", encoding="utf-8") as file:
        json.dump({"version": 1, "results": results.entries}, file, indent=1)
    sys.exit(not all(entry["met"] for entry in results.entries))


if __name__ == "__main__":
    main()
