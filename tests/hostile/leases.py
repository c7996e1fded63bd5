"""Leases: jobs that claim more than Slurm gave them, leases without their jobs, and what sessions leave on the disk."""

import contextlib
import os
import socket
import ssl
import subprocess
import tempfile

from field import ARENA, CHUNK, PATIENCE, attack, expect, until
from secure import Agent, enters, secured

NODE = "gpu1"
# Slurm's commands. The job has shards of this node; whether it still runs, `squeue` alone says.
JOB = ("JobId=42 JobName={name} UserId=user({uid}) GroupId=user({uid}) JobState=RUNNING NodeList=gpu1 JOB_GRES={all}   "
       "Nodes={node} CPU_IDs=0 Mem=10 GRES={gres} MinCPUsNode=1 Command=sleep WorkDir=/tmp")


def key_in(place):
    """The paths of a new key, and its public part."""
    path = os.path.join(place, "lease.key")
    make = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path]
    subprocess.run(make, check=True, capture_output=True, timeout=PATIENCE)
    public = subprocess.run(["openssl", "pkey", "-in", path, "-pubout"], check=True, capture_output=True, text=True, timeout=PATIENCE)
    return path, public.stdout


def guest_of(place, lease, key):
    """What a guest of a lease shows, and whom it believes."""
    for name in ("certificate", "authority"):
        with open(os.path.join(place, f"{name}.pem"), "w", encoding="ascii") as file:
            file.write(lease[name])
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(os.path.join(place, "authority.pem"))
    made.load_cert_chain(os.path.join(place, "certificate.pem"), key)
    return made


def command(place, name, prints):
    """Replaces one of Slurm's commands."""
    with open(os.path.join(place, "new"), "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\n")
    os.chmod(file.name, 0o755)
    os.rename(file.name, os.path.join(place, name))


@contextlib.contextmanager
def leasing(field, *arguments, path=None):
    """A daemon that grants leases, and its lease socket."""
    with tempfile.TemporaryDirectory() as sockets, secured(field) as folder:
        address, before = os.path.join(sockets, "lease.sock"), os.environ["PATH"]
        files = [one for one in field.arguments if one.startswith("--set=tcp.")]
        guest = field.context
        os.environ["PATH"] = f"{path}:{before}" if path else before
        try:
            field.again(*files, f"--set=lease.authority={folder}", f"--set=lease.socket={address}", *arguments)
        finally:
            os.environ["PATH"] = before
        field.context = guest
        yield address


@attack
def jobs_that_claim_more_than_slurm_gave_them(field):
    """A job's name imitates Slurm's fields; a claim has no serial number, or a period beyond all clocks."""
    with tempfile.TemporaryDirectory() as place:
        uid = os.geteuid()
        (key, public), cases = key_in(place), 0
        command(place, "squeue", "42")
        command(place, "scontrol", "State=IDLE")
        with leasing(field, "--set=lease.engine=slurm", f"--set=lease.node={NODE}", path=place) as address:

            def claim(line, **fields):
                nonlocal cases
                cases += 1
                command(place, "scontrol", line)
                agent = Agent(address)
                return agent, agent.ask(command="claim", job=42, key=public, **fields)

            own = {"uid": uid, "all": "shard:1", "node": NODE, "gres": "shard:1(IDX:0)"}
            none = {**own, "all": "(null)", "node": "cpu7", "gres": ""}
            parts = f"Nodes={NODE} GRES=shard:999(IDX:0)"
            for forged in (f"UserId=user({uid}) JobState=RUNNING {parts}", f"JOB_GRES=x {parts} MinCPUsNode=1", parts):
                agent, answer = claim(JOB.format(name=f"x {forged}", **none))
                expect(answer["answer"] == "error", f"a job without shards has a lease by its name: {answer}")
                agent.close()
            fine = JOB.format(name="x", **own)
            vm = f"lease-{uid}-other"
            for fields in ({"again": {"vm": vm, "serial": 0}}, {"checkpoint": 2**64 - 1}, {"checkpoint": 30 * 86400 + 1}):
                agent, answer = claim(fine, **fields)
                expect(answer["answer"] == "error", f"{fields}: {answer}")
                agent.close()
            # Whoever holds the connection, the lease ends with the job: once it is missing in two answers.
            command(place, "squeue", "7")
            agent, answer = claim(fine, again={"vm": vm, "serial": 5})
            expect("certificate" in answer, f"an honest claim is refused: {answer}")
            guest = guest_of(place, answer, key)
            expect(enters(field, guest), "a lease's guest does not enter")
            until("over", lambda: not agent.is_open(), 3 * PATIENCE)
            expect(not enters(field, guest), "a guest enters although the lease's job is over")
            agent.close()
    return cases


@attack
def checkpoints_of_sessions_that_are_over(field):
    """Sessions of a lease, one after the other, leave nothing on the disk that all leases share."""
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as states:
        key, public = key_in(place)
        with leasing(field, f"--set=lease.checkpoints={states}", f"--set=lease.node={NODE}") as address:
            agent = Agent(address)
            lease = agent.ask(command="claim", memory=64 << 20, gpu=0, key=public, checkpoint=1)
            expect("certificate" in lease, f"a claim is refused: {lease}")
            guest = guest_of(place, lease, key)
            name = lease["name"]
            own = os.path.join(states, f"{name['vm']}-{name['serial']:016x}", NODE)

            def written():
                return [one for _, _, files in os.walk(own) for one in files]

            for _ in range(3):
                session = field.session(field.tcp, context=guest)
                session.call("MemMap", address=ARENA, size=CHUNK)
                until("written", written)
                session.close()
                until("removed", lambda: not os.listdir(own))
            agent.close()
    return 3
