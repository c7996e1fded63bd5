#!/usr/bin/env python3
"""Tests a pool of three GPU hosts under Slurm, into out/pool.json.

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
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
# pylint: disable=wrong-import-position
import harness
from harness.results import Results
from pool.cluster import GPUS, SHARDS, Cluster, eventually, with_children
from wire import wire

GIB = 1 << 30
# The bound on pauses that rebalancing is given: this machine's cores may be busy.
LONGEST_PAUSE_S = 5
# Sizes of leases in GiB, odd ones: 60 that together are 780 of 846 GiB.
SIZES = [1 + (7 * at) % 25 for at in range(60)]


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


def draining(cluster):
    """Which hosts Slurm drains, and why, for a note."""
    states = cluster.slurm("sinfo", "-h", "-N", "-o", "%N %T %E").splitlines()
    return "".join(f"; {state}" for state in states if "drain" in state)


def placement(cluster, results):
    """Many leases of odd sizes."""
    held, took = [], []
    for at, size in enumerate(SIZES):
        began = time.monotonic()
        program, directory = cluster.held(cluster.clients[at % 2], f"{size}GiB", f"held{at}")
        waited = seconds_until(lambda path=directory: os.path.exists(f"{path}/guest.toml"), "a lease", 20)
        took.append(waited if waited >= 20 else time.monotonic() - began)
        held.append(program)
    try:
        eventually(lambda: all(program.said(" as lease-") for program in held), "all say so", 10)
    except AssertionError:
        pass
    placed = sum(program.said(" as lease-") is not None for program in held)
    results.exactly("leases_placed", placed, len(SIZES), f"leases of {min(SIZES)} to {max(SIZES)} GiB, {sum(SIZES)} in all{draining(cluster)}")
    results.most("slowest_placement_s", max(took), 1.5, "from the command to its files, one after the other")
    given = {}
    for program in (one for one in held if one.said(" as lease-")):
        # "25GiB of GPU 0 of gpu1 as lease-0-17"
        words = next(line for _, line in program.errors if " as lease-" in line).split()
        gpu = (words[6], words[4])
        given[gpu] = given.get(gpu, 0) + int(words[1].removesuffix("GiB"))
    over = sum(size > SHARDS // GPUS for size in given.values())
    results.exactly("gpus_over_their_memory", over, 0, f"the fullest GPU gave {max(given.values())} of {SHARDS // GPUS} GiB")
    end(cluster, *held)
    return took


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
    said = "not available" in big.text() and "no lease" in big.text()
    results.add("more_than_any_host", big.ended(), "not 0", big.ended() not in (None, 0) and took < 20 and said, "the command fails at once, and Slurm's sentence says why")
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
    refused = "took" not in replayed and "the lease of its certificate has ended" in replayed
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


def inside_a_job(cluster, results):
    """`srun --gres=shard:1 paragpu run …`: the program runs on the GPU host, in the job."""
    paragpu = [harness.binary("paragpu"), "run", "--libraries", harness.LIBRARIES, sys.executable, f"{HERE}/guest.py"]
    job = ["srun", "--quiet", "--gres=shard:1", "--mem=10", *paragpu]
    said = []
    for size in (GIB // 2, GIB + GIB // 2):
        done = subprocess.run(cluster.inside("node1", *job, "take", str(size)), env=cluster.environment, capture_output=True, text=True, timeout=60, check=False)
        said.append(done.stdout.strip() or done.stderr[-300:])
    results.exactly("job_with_shards", ", ".join(said), "took, refused", "srun --gres=shard:1 paragpu run, without more words: 512 MiB, and 1.5 GiB")


def accounted(cluster, job, state):
    """What `sacct` says of a lease, once it has this state; Slurm tells its database within
    seconds."""

    def shown():
        fields = "JobName,User,NodeList,State,AllocTRES"
        line = cluster.slurm("sacct", "--noheader", "--parsable2", "--allocations", "--format", fields, "--jobs", job).strip()
        return line if state in line else None

    try:
        return eventually(shown, f"sacct shows the lease as {state}", 30)
    except AssertionError as error:
        return str(error)


def ends(cluster, results):
    """scancel, and a user that disappears."""
    program = cluster.lease("node1", "1GiB", "run")
    eventually(lambda: program.rounds() > 2, "rounds", 30)
    (job, host) = jobs(cluster)[0]
    cluster.paragpu(host, "share", "--vm", f"lease-0-{job}", "--weight", "30", "--cap", "50")
    (session,) = json.loads(cluster.paragpu(host, "list", "-o", "json").stdout)
    share = {"weight": 30, "cap": 50, "priority": 0}
    results.exactly("share_of_a_lease", (session["turns"] or {}).get("share"), share, "of its session, set by the lease's name")
    held = accounted(cluster, job, "RUNNING") if cluster.accounting else None
    began = time.monotonic()
    cluster.slurm("scancel", job)
    took = seconds_until(lambda: any("CUDA error" in line for _, line in program.lines), "a CUDA error", 20)
    results.most("scancel_to_cuda_error_s", time.monotonic() - began if took < 20 else 20, 1.0, "the program hears that its lease is over")
    end(cluster, program)
    if held:
        over = accounted(cluster, job, "CANCELLED")
        fine = all(f"paragpu|root|{host}|{state}" in line and "gres/shard=1" in line for line, state in ((held, "RUNNING"), (over, "CANCELLED")))
        results.add("sacct_shows_the_lease", over, "name, user, host, shards", fine, f"before it was cancelled: {held}")
    else:
        print("skipped: sacct: slurmdbd and MariaDB are not installed", flush=True)
    held, directory = cluster.held("node1", "1GiB", "gone")
    eventually(lambda: os.path.exists(f"{directory}/guest.toml"), "a lease", 20)
    cluster.kill("node1")
    took = seconds_until(lambda: not cluster.slurm("squeue", "-h", "-t", "R").strip(), "the lease of nobody ends", 60)
    results.most("lease_of_nobody_s", took, 60, "from its user's death by SIGKILL to the end of the job")
    held.end()
    end(cluster)


def crash(cluster, results):
    """A daemon crashes, and guests come before their lease's agent."""
    held, directory = cluster.held("node1", "1GiB", "crashed")
    eventually(lambda: os.path.exists(f"{directory}/guest.toml"), "a lease", 20)
    (_, host) = jobs(cluster)[0]
    program = cluster.guest("node1", directory, "step")
    program.step()
    eventually(lambda: program.rounds() == 1, "a round", 30)
    (agent,) = cluster.agents(host)
    os.kill(agent, signal.SIGSTOP)
    process = cluster.processes[host + "d"]
    process.kill()
    process.wait()

    def ready():
        # As systemd does: what the daemon that crashed leaves may keep its state for a moment.
        if cluster.processes[host + "d"].poll() is not None:
            cluster.start_daemon(host)
        return cluster.ready(host)

    eventually(ready, "the next daemon gives GPUs")
    early = cluster.guest("node1", directory, "take", "4096")
    came = seconds_until(lambda: cluster.logged(host, "waits for its lease's agent"), "a guest comes first", 20)
    waited = early.ended() is None
    os.kill(agent, signal.SIGCONT)
    seconds_until(lambda: early.ended() is not None, "it has its session", 30)
    said = early.lines[-1][1] if early.lines else early.text()[-300:]
    results.exactly("guest_before_its_agent", said if came < 20 and waited else "came later", "took", "a program that starts when paragpud was killed and its lease is not claimed again yet")
    program.step()
    seconds_until(lambda: program.rounds() == 2, "a round", 30)
    program.step("break")
    program.step()
    seconds_until(lambda: program.rounds() == 3, "a round over another connection", 30)
    said = f"{program.rounds()} rounds"
    results.exactly("broken_after_a_crash", said, "3 rounds", "a session of the killed paragpud goes on under the next one, also when its connection breaks")
    end(cluster, held)


def proxy(cluster, results):
    """A VM whose only way to its lease is its vsock, here a unix socket: a program in a
    network namespace of its own, without a key."""
    path = f"{cluster.folder}/vm.vsock_7014"
    held, directory = cluster.held("node1", "1GiB", "proxy", "--vsock-socket", path)
    eventually(lambda: os.path.exists(f"{directory}/guest.toml"), "a lease", 20)
    eventually(lambda: held.said(" as lease-"), "it says so", 20)
    (_, host) = jobs(cluster)[0]
    os.makedirs(f"{cluster.folder}/vm")
    cluster.write("vm/guest.toml", f'communicator = "unix"\n[unix]\nsocket = "{path}"\n[vsock]\nrelayed = true\n')
    program = cluster.guest(None, f"{cluster.folder}/vm", "run")
    begun = seconds_until(lambda: program.rounds() > 2, "rounds", 30)
    results.exactly("vm_through_its_proxy", "runs" if begun < 30 else program.text()[-300:], "runs", "a program with neither network nor key")
    cluster.slurm("scontrol", "update", f"nodename={host}", "state=drain", "reason=test")
    moved = seconds_until(lambda: not jobs(cluster, "-w", host) and not cluster.sessions(host), "the host is empty", 40)
    said = "moved" if moved < 40 and works(program) else held.text()[-300:] + program.text()[-300:]
    results.exactly("vm_of_a_drained_host", said, "moved", "its lease, while the program runs")
    cluster.slurm("scontrol", "update", f"nodename={host}", "state=resume")
    end(cluster, held)
    ended = seconds_until(lambda: program.ended() is not None, "the program hears of it", 60)
    results.add("vm_without_its_lease", program.ended(), 3, program.ended() == 3, f"a CUDA error {ended:.1f} s after the lease's end")
    results.exactly("proxy_is_gone", os.path.exists(path), False, "its socket")


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
    order = [harness.binary("paragpu"), "rebalance", "--most", "1", "--most-pause"]
    cluster.slurm(*order, "1ms")
    heard = lambda: next((line for program in programs for _, line in list(program.errors) if "longer than 1 ms" in line and "stays" in line), "")
    seconds_until(heard, "a sentence says why it stays", 30)
    # It was claimed there, and that job ends.
    left = seconds_until(lambda: not jobs(cluster, "-w", cluster.hosts[0]), "the host is empty", 30)
    results.add("rebalanced_within_1_ms", heard() or "silent", "stays", heard() and left < 30 and works(*programs), "no move is that short: the lease stays, and its program goes on")
    done = cluster.slurm(*order, f"{LONGEST_PAUSE_S}s")
    moved = seconds_until(lambda: jobs(cluster, "-w", cluster.hosts[0]), "a lease moves to the empty host", 20)
    results.add("rebalanced", done.strip(), "one lease", moved < 20 and done.count("leave") == 1 and works(*programs), "programs go on")
    # Those of the drain came before it.
    _, pause = max((at, line) for program in programs for at, line in list(program.errors) if "delayed for" in line)
    felt = float(pause.split("delayed for ")[1].split()[0])
    results.most("rebalancing_delays_ms", felt, LONGEST_PAUSE_S * 1000, "the longest delay of a call, and the bound that the command was given")
    # A lease that moves has two jobs, and obeys no further order.
    settled = lambda: len(jobs(cluster)) == len(programs)
    eventually(settled, "the first move is over", 30)
    # By hand, away from where Slurm would pack it.
    to = done.split()[-1]
    others = [host for host in cluster.hosts[1:] if jobs(cluster, "-w", host)]
    job = jobs(cluster, "-w", others[0])[0][0]
    cluster.slurm("scontrol", "update", f"JobId={job}", f"AdminComment=paragpu-to:{to}")
    cluster.slurm("scancel", "-s", "USR1", job)
    there = seconds_until(lambda: len(jobs(cluster, "-w", to)) == 2 and settled(), "it goes where it is sent", 20)
    results.exactly("goes_where_it_is_sent", to if there < 20 else "elsewhere", to, "a lease, to the least loaded host")
    job = jobs(cluster, "-w", to)[0][0]
    cluster.slurm("scontrol", "update", f"JobId={job}", "AdminComment=paragpu-to:nowhere")
    cluster.slurm("scancel", "-s", "USR1", job)

    went = lambda: settled() and job not in [number for number, _ in jobs(cluster)]
    elsewhere = seconds_until(went, "it goes elsewhere", 40)
    note = "a lease that is sent to a host that is not there goes where Slurm places it"
    results.exactly("destination_that_is_none", "elsewhere" if elsewhere < 40 and works(*programs) else "stays", "elsewhere", note)
    hosts = lambda: len({node for _, node in jobs(cluster)})
    before = hosts()
    cluster.slurm(harness.binary("paragpu"), "pool", "rebalance", "--pack", "--most-pause", f"{LONGEST_PAUSE_S}s")
    seconds_until(lambda: hosts() == 1 and settled(), "the leases are on one host", 40)
    packed = hosts()
    results.add("hosts_after_packing", packed, 1, before > 1 == packed and works(*programs), f"with leases; {before} before it")


def write_jobs(cluster):
    """Has the controller write its jobs. Slurm writes what changed within five seconds;
    a controller that is killed has lost jobs that are younger, and ends their steps when
    it is back."""
    changed = time.time()
    cluster.slurm("scontrol", "update", f"JobId={jobs(cluster)[0][0]}", "Comment=written")
    eventually(lambda: os.stat(f"{cluster.folder}/state/job_state").st_mtime > changed, "the controller writes its jobs", 30)


def controller(cluster, results, programs):
    """The controller dies and comes back."""
    write_jobs(cluster)
    pid = int(open(f"{cluster.folder}/slurmctld.pid", encoding="ascii").read())
    os.kill(pid, signal.SIGKILL)
    cluster.processes["ctl"].wait()
    began = time.monotonic()
    asks = cluster.lease("node2", "1GiB", "run")
    without = works(*programs, more=20)
    took = seconds_until(lambda: asks.ended() is not None, "a request without a controller fails", 40)
    status, said = asks.ended(), sentence(asks)
    note = f"it failed after {time.monotonic() - began:.1f} s: {said}"
    results.add("request_without_a_controller", status, "not 0", status not in (None, 0) and took < 40 and said, note)
    asks.end()
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


def await_states(cluster):
    """Waits until a lease's state has what its program has done."""

    def newest():
        folders = (folder for folder, _, files in os.walk(f"{cluster.folder}/states") if "session.paragpu" in files)
        return max((os.stat(f"{folder}/session.paragpu").st_mtime_ns for folder in folders), default=0)

    # The next one may have begun before.
    for _ in range(2):
        eventually(lambda before=newest(): newest() > before, "another state", 30)


def lost_host(cluster, results):
    """A host dies with leases that are written, and one that is not."""
    options = ("--checkpoint", "1s")
    idle = cluster.lease("node1", "2GiB", "step", options=options)
    idle.step()
    eventually(lambda: idle.rounds() == 1, "a round", 30)
    (_, host) = jobs(cluster)[0]
    await_states(cluster)
    busy = cluster.lease("node2", "2GiB", "run", options=("--engine-option", f"--nodelist={host}"))
    eventually(lambda: busy.rounds() > 2, "rounds", 30)
    killed = time.monotonic()
    cluster.kill(host)
    took = seconds_until(lambda: idle.said(" as lease-") and sum(" as lease-" in line for _, line in idle.errors) == 2, "the lease is elsewhere", 45)
    idle.step()
    goes_on = seconds_until(lambda: idle.rounds() == 2, "a round after it", 30)
    note = f"a program that was idle since the last state; the lease was elsewhere after {took:.1f} s"
    results.add("killed_host_runs_on", "goes on" if goes_on < 30 else idle.text()[-300:], "goes on", goes_on < 30 and idle.ended() is None, note)
    seconds_until(lambda: busy.ended() is not None, "the other ends", 60)
    results.add("killed_host_unwritten", busy.ended(), 3, busy.ended() == 3, "a lease without states ends with a CUDA error")
    heard = [at - killed for at, line in busy.lines if "CUDA error" in line]
    results.most("killed_host_cuda_error_s", min(heard, default=60), 10, "from the host's death to that error")
    return host


def lost_behind_a_door(cluster, results, dead):
    """A host dies with the written lease of a VM, whose only way is its vsock, while it
    drains and no other host takes the lease."""
    path = f"{cluster.folder}/lost.vsock_7014"
    held, directory = cluster.held("node2", "1GiB", "lost", "--vsock-socket", path, "--checkpoint", "1s")
    eventually(lambda: os.path.exists(f"{directory}/guest.toml"), "a lease", 20)
    (_, host) = jobs(cluster)[0]
    os.makedirs(f"{cluster.folder}/lostvm")
    cluster.write("lostvm/guest.toml", f'communicator = "unix"\n[unix]\nsocket = "{path}"\n[vsock]\nrelayed = true\n')
    program = cluster.guest(None, f"{cluster.folder}/lostvm", "step")
    program.step()
    eventually(lambda: program.rounds() == 1, "a round", 30)
    await_states(cluster)
    alive = ",".join(one for one in cluster.hosts if one != dead)
    cluster.slurm("scontrol", "update", f"nodename={alive}", "state=drain", "reason=test")
    seconds_until(lambda: held.said("it drains"), "the lease is to leave its host", 30)
    cluster.kill(host)
    seconds_until(lambda: held.said(f"{host} is lost"), "the host is lost", 45)
    cluster.slurm("scontrol", "update", f"nodename={','.join(one for one in cluster.hosts if one not in (dead, host))}", "state=resume")
    seconds_until(lambda: sum(" as lease-" in line for _, line in held.errors) == 2, "the lease is elsewhere", 45)
    program.step()
    goes_on = seconds_until(lambda: program.rounds() == 2 or program.ended() is not None, "a round after it", 40)
    said = "goes on" if program.rounds() == 2 else held.text()[-300:] + program.text()[-300:]
    results.exactly("vm_of_a_killed_host", said, "goes on", f"an idle program, whose next round came after {goes_on:.1f} s")
    # Slurm waits for the job on the killed host until it calls that node down.
    held.end()


def clocks(cluster, results):
    """Clients whose clocks are an hour off: certificates have times."""
    for seconds, name in ((3600, "ahead"), (-3600, "behind")):
        program = cluster.lease("node1", "1GiB", "take", "4096", clock=seconds)
        seconds_until(lambda one=program: one.ended() is not None, "the program ends", 30)
        said = program.lines[-1][1] if program.lines else program.text()[-200:]
        results.exactly(f"clock_an_hour_{name}", said, f"took, {seconds // 3600:+d} h", "the client's")
    end(cluster)
    host, *others = cluster.hosts
    for seconds, name in ((3600, "ahead"), (-3600, "behind")):
        restart(cluster, host, clock=seconds)
        cluster.slurm("scontrol", "update", f"nodename={','.join(others)}", "state=drain", "reason=test")
        program = cluster.lease("node1", "1GiB", "run")
        begun = seconds_until(lambda one=program: one.rounds() > 2, "rounds", 30)
        cluster.slurm("scontrol", "update", f"nodename={','.join(others)}", "state=resume")
        cluster.slurm("scontrol", "update", f"nodename={host}", "state=drain", "reason=test")
        moved = seconds_until(lambda: not jobs(cluster, "-w", host), "the lease moves", 30)
        said = "moves" if begun < 30 and moved < 30 and works(program) else program.text()[-300:]
        results.exactly(f"host_an_hour_{name}", said, "moves", "paragpud's clock on the lease's first host; the lease moves to one whose clock is right")
        end(cluster, program)
        cluster.slurm("scontrol", "update", f"nodename={host}", "state=resume")
    restart(cluster, host)


def restart(cluster, host, clock=None):
    """Ends a host's daemon and starts it again."""
    daemon = cluster.processes[host + "d"]
    daemon.terminate()
    daemon.wait(30)
    cluster.start_daemon(host, clock=clock)
    eventually(lambda: cluster.ready(host), f"{host} gives GPUs again")


def addresses(cluster, results):
    """A host's name with several addresses, of which the first leads nowhere."""
    held, directory = cluster.held("node1", "1GiB", "named")
    eventually(lambda: os.path.exists(f"{directory}/guest.toml"), "a lease", 20)
    (_, host) = jobs(cluster)[0]
    with open("/etc/hosts", encoding="utf-8") as hosts:
        known = hosts.read()
    cluster.write("node1/etc/hosts", f"{known}\n10.77.0.250 many.pool\n{cluster.addresses[host]} many.pool\n")
    with open(f"{directory}/guest.toml", encoding="utf-8") as file:
        text = file.read()
    named = text.replace(f'"{cluster.addresses[host]}:7474"', '"many.pool:7474"') + f'name = "{host}"\n'
    cluster.write("named/guest.toml", named)
    said = attempt(cluster, directory)
    results.exactly("name_of_two_addresses", said.strip() if named != text else "no address", "took", "nobody answers at the first")
    os.remove(f"{cluster.folder}/node1/etc/hosts")
    end(cluster, held)


def sentence(program):
    """The engine's messages to a program's user."""
    return next((line for _, line in program.errors if "error:" in line), "")


def nowhere(cluster, results):
    """No host takes leases; and one whose address leads nowhere."""
    hosts = ",".join(cluster.hosts)
    cluster.slurm("scontrol", "update", f"nodename={hosts}", "state=drain", "reason=test")
    at_once = cluster.lease("node1", "1GiB", "take", "4096", options=("--engine-option", "--immediate=2"))
    waits = cluster.lease("node2", "1GiB", "take", "4096")
    took = seconds_until(lambda: at_once.ended() is not None, "the request fails", 20)
    status = at_once.ended()
    results.add("no_host_at_once", status, "not 0", status not in (None, 0) and took < 20, f"asked for at once while all hosts drain: {sentence(at_once)}")
    told = seconds_until(lambda: waits.said("waiting for a lease"), "the other says that it waits", 20)
    cluster.slurm("scontrol", "update", f"nodename={hosts}", "state=resume")
    seconds_until(lambda: waits.ended() is not None, "it has its lease", 30)
    said = waits.lines[-1][1] if waits.lines else waits.text()[-200:]
    results.exactly("no_host_for_a_while", said if told < 20 else "silent", "took", "it says that it waits, and runs when a host is back")
    held, directory = cluster.held("node1", "1GiB", "nowhere")
    eventually(lambda: os.path.exists(f"{directory}/guest.toml"), "a lease", 20)
    with open(f"{directory}/guest.toml", encoding="utf-8") as file:
        text = file.read()
    (_, host) = jobs(cluster)[0]
    cluster.write("nowhere/guest.toml", text.replace(cluster.addresses[host], "10.77.0.250"))
    began = time.monotonic()
    said = attempt(cluster, directory)
    took = time.monotonic() - began
    fine = "took" not in said and "10.77.0.250" in said
    results.add("no_host_reachable", "refused" if fine else said[-200:], "refused", fine and took < 30, f"nobody answers at the lease's address: a CUDA error and a sentence after {took:.1f} s")
    end(cluster, held)


def full_disk(cluster, results):
    """A directory of states without room."""
    states = f"{cluster.folder}/states"
    with open(f"{states}/filler", "wb") as filler:
        try:
            while filler.write(bytes(1 << 20)):
                filler.flush()
        except OSError:
            pass
    program = cluster.lease("node1", "1GiB", "run", options=("--checkpoint", "1s"))
    eventually(lambda: program.rounds() > 2, "rounds", 30)
    (_, host) = jobs(cluster)[0]

    told = seconds_until(lambda: cluster.logged(host, "No space left"), "the log says that the disk is full", 20)
    goes_on = works(program, more=20)
    results.exactly("full_disk", "goes on" if goes_on and told < 20 else "stopped" if told < 20 else "silent", "goes on", "the program; the host's log says why it is not written")
    os.remove(f"{states}/filler")
    written = lambda: any("session.paragpu" in files for _, _, files in os.walk(states))
    took = seconds_until(written, "a state", 30)
    results.exactly("disk_with_room_again", "written" if took < 30 and works(program) else "not written", "written", "the lease's next state")
    end(cluster, program)


def other_version(cluster, results):
    """A daemon of an earlier version of the wire beside those of this one: a fake that
    writes the bytes of tests/wire (tests/pool/older.py)."""
    old, new, other = cluster.hosts
    address = cluster.addresses[old]
    ask = (
        "import socket\n"
        f"s=socket.socket(socket.AF_UNIX);s.connect('{cluster.folder}/{old}/control.sock')\n"
        "s.sendall(b'{\"command\":\"stats\"}\\n')\nprint(s.makefile().readline())"
    )
    stats = subprocess.run(cluster.inside(old, sys.executable, "-c", ask), env=cluster.environment, capture_output=True, text=True, timeout=60, check=True)
    daemon = cluster.processes[old + "d"]
    daemon.terminate()
    daemon.wait(30)
    older = cluster.start(old, sys.executable, f"{HERE}/older.py", f"{cluster.folder}/{old}", old, address, stats.stdout.strip())
    cluster.processes[old + "d"] = older
    cluster.slurm("scontrol", "update", f"nodename={old},{other}", "state=drain", "reason=test")
    program = cluster.lease("node1", "1GiB", "run")
    begun = seconds_until(lambda: program.rounds() > 2, "rounds", 30)
    cluster.slurm("scontrol", "update", f"nodename={old}", "state=resume")
    cluster.slurm("scontrol", "update", f"nodename={new}", "state=drain", "reason=test")
    heard = lambda: next((line for _, line in list(program.errors) if "stays where it is" in line and "version" in line), "")
    told = seconds_until(heard, "a sentence says why it stays", 40)
    sentence, theirs = heard(), ".".join(map(str, (wire.VERSION[0], wire.VERSION[1] - 1, 0)))
    fine = begun < 30 and told < 40 and theirs in sentence and ".".join(map(str, wire.VERSION)) in sentence and works(program)
    results.add("to_a_daemon_of_another_version", sentence or program.text()[-300:], "stays, and both versions are named", fine, "a lease whose host drains; its program runs on")
    older.terminate()
    older.wait(30)
    cluster.start_daemon(old)
    eventually(lambda: cluster.ready(old), f"{old} gives GPUs again")
    moved = seconds_until(lambda: jobs(cluster, "-w", old) and not jobs(cluster, "-w", new), "the lease moves", 60)
    said = "moves" if moved < 60 and works(program) else program.text()[-300:]
    results.exactly("after_its_upgrade", said, "moves", "the same lease, when that host has this version")
    cluster.slurm("scontrol", "update", f"nodename={new},{other}", "state=resume")
    end(cluster, program)


def without_daemon(cluster, results):
    """A host whose paragpud is down: Slurm's prolog keeps leases away."""
    host = cluster.hosts[-1]
    state = lambda: cluster.slurm("sinfo", "-h", "-n", host, "-o", "%T %E").strip()

    def stop():
        daemon = cluster.processes[host + "d"]
        daemon.terminate()
        daemon.wait(30)

    def asked():
        return cluster.lease("node1", "1GiB", "take", "4096", options=("--engine-option", f"--nodelist={host}"))

    stop()
    there = asked()
    seconds_until(lambda: there.ended() is not None, "the request ends", 60)
    drained = state()
    kept = there.ended() not in (None, 0) and drained.startswith("drained paragpud:")
    results.add("host_without_daemon", drained, "drained", kept, "by the prolog, and the request for this very host fails")
    there.end()
    elsewhere = cluster.lease("node1", "1GiB", "take", "4096")
    seconds_until(lambda: elsewhere.ended() is not None, "the program ends", 30)
    said = elsewhere.lines[-1][1] if elsewhere.lines else elsewhere.text()[-200:]
    results.exactly("lease_of_the_others", said, "took", "a request that may go anywhere")
    cluster.start_daemon(host)
    resumed = seconds_until(lambda: state() == "idle none", "the node is resumed", 30)
    results.exactly("host_with_its_daemon_again", state(), "idle none", f"resumed by the health check after {resumed:.1f} s")
    stop()
    waits = asked()
    seconds_until(lambda: jobs(cluster, "-w", host), "the prolog waits", 30)
    cluster.start_daemon(host)
    seconds_until(lambda: waits.ended() is not None, "the program ends", 30)
    said = waits.lines[-1][1] if waits.lines else waits.text()[-200:]
    now = "drained" if "drain" in state() else "not drained"
    results.exactly("host_whose_daemon_restarts", f"{said}, {now}", "took, not drained", "a lease that is placed there meanwhile")
    eventually(lambda: cluster.ready(host), f"{host} gives GPUs")
    end(cluster, elsewhere, waits)


def upgrade(cluster, results):
    """A daemon of another build beside those of this one."""
    older = os.environ.get("PARAGPU_TEST_OLDER")
    if not older:
        print("skipped: a daemon of another build: PARAGPU_TEST_OLDER names no folder with one", flush=True)
        return
    old, *rest = cluster.hosts
    cluster.processes[old + "d"].terminate()
    for process in with_children({cluster.processes[old + "d"].pid}):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    cluster.processes[old + "d"].wait()
    cluster.start_daemon(old, older)
    eventually(lambda: cluster.ready(old), "the older daemon gives GPUs")
    cluster.slurm("scontrol", "update", f"nodename={','.join(rest)}", "state=drain", "reason=test")
    program = cluster.lease("node1", "1GiB", "run")
    begun = seconds_until(lambda: program.rounds() > 2, "rounds", 30)
    results.exactly("lease_of_an_older_daemon", "runs" if begun < 30 else program.text()[-200:], "runs", "requested by this release")
    for goal, gone, name in ((rest, [old], "newer"), ([old], rest, "older")):
        cluster.slurm("scontrol", "update", f"nodename={','.join(goal)}", "state=resume")
        cluster.slurm("scontrol", "update", f"nodename={','.join(gone)}", "state=drain", "reason=test")
        moved = seconds_until(lambda goal=goal: any(node in goal for _, node in jobs(cluster)) and len(jobs(cluster)) == 1, "it moves", 30)
        refused = [line for _, line in program.errors if "stays where it is" in line]
        fine = works(program)
        said = "moves" if moved < 30 else f"refused: {refused[-1]}" if refused else "stays, and nobody says why"
        results.add(f"to_the_{name}_daemon", said, "moves or a sentence", fine and not said.startswith("stays"), "a lease; its program runs on")
    cluster.slurm("scontrol", "update", f"nodename={','.join(rest)}", "state=resume")
    end(cluster, program)


def examined(cluster, results):
    """`paragpu doctor --pool`: all in order, and faults of a first set-up."""
    host = cluster.hosts[0]

    def found(name, **settings):
        command = ["env", *(f"{key}={value}" for key, value in settings.items()), harness.binary("paragpu"), "doctor", "--pool", "-o", "json"]
        done = subprocess.run(cluster.inside(name, *command), env=cluster.environment, capture_output=True, text=True, timeout=60, check=False)
        return sorted({one["what"] for one in json.loads(done.stdout)["findings"] if one["state"] == "bad"})

    for name in (host, "node1"):
        results.exactly(f"doctor_of_{name}", str(found(name)), "[]", "what it finds bad")
    results.exactly("doctor_of_another_name", str(found(host, PARAGPU_HOST_LEASE_NODE="elsewhere")), "['lease.node']", "a host that Slurm knows by another name")
    key = f"{cluster.folder}/tls/ca.key"
    os.chmod(key, 0o644)
    results.exactly("doctor_of_an_open_key", str(found(host)), "['authority']", "everybody can read the authority's key")
    os.chmod(key, 0o600)
    prolog = f"{cluster.folder}/prolog.sh"
    os.chmod(prolog, 0o644)
    results.exactly("doctor_of_a_prolog", str(found(host)), "['Prolog']", "one that cannot be executed")
    os.chmod(prolog, 0o755)


def seen(cluster, results, programs):
    """`paragpu top --pool`."""
    view = json.loads(cluster.slurm(harness.binary("paragpu"), "top", "--pool", "--once", "-o", "json"))
    leased = sum(host["used"] for host in view["hosts"])
    found = (len(view["hosts"]), len(view["leases"]), leased)
    results.exactly("top_shows", str(found), str((len(cluster.hosts), len(programs), 3 * len(programs))), "hosts, leases, GiB leased")


def recorded(cluster):
    """How long a controller's answers take, for tests/pool/simulate.py: seconds a
    command alone, and answers a second while eight ask."""
    ask = f"scontrol -o show node {cluster.hosts[0]} > /dev/null"

    # `time` says it on standard error.
    one = f"exec 2>&1; TIMEFORMAT=%R; time for i in $(seq 20); do {ask}; done"
    many = f"exec 2>&1; TIMEFORMAT=%R; time {{ for n in $(seq 8); do (for i in $(seq 10); do {ask}; done) & done; wait; }}"
    alone, together = (float(cluster.slurm("bash", "-c", script).split()[-1]) for script in (one, many))
    return {"answer_s": alone / 20, "answers_per_s": 80 / together}


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
    latencies = None
    try:
        with Cluster(accounting=True) as cluster:
            placements = placement(cluster, results)
            limits(cluster, results)
            inside_a_job(cluster, results)
            strangers(cluster, results)
            ends(cluster, results)
            crash(cluster, results)
            proxy(cluster, results)
            clocks(cluster, results)
            addresses(cluster, results)
            nowhere(cluster, results)
            full_disk(cluster, results)
            examined(cluster, results)
            without_daemon(cluster, results)
            latencies = {**recorded(cluster), "placements_s": placements}
            programs = drain(cluster, results)
            seen(cluster, results, programs)
            rebalance(cluster, results, programs)
            controller(cluster, results, programs)
            cut(cluster, results, programs)
            end(cluster, *programs)
            other_version(cluster, results)
            upgrade(cluster, results)
            dead = lost_host(cluster, results)
            lost_behind_a_door(cluster, results, dead)
    except AssertionError as error:
        # What was found until then counts.
        results.exactly("came_to_its_end", str(error), "yes", "the steps after this one did not run")
    results.most("all_s", time.monotonic() - began, 360, "the whole run")
    sys.exit(not results.write(output, recorded=latencies))


if __name__ == "__main__":
    main()
