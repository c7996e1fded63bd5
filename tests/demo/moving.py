"""A virtual GPU that comes home: a program in a VM uses the GPU of another host
over TCP, and is moved, while it runs, to the VM's own host and its PCI device.

Both hosts are daemons of this machine. The session travels between them as
between any two, over TLS.
"""

import json
import subprocess
import threading
import time

import harness
from harness import vm

PROGRAM = "nbody"
# Bodies and rounds of the program: some seconds in a VM without KVM, where a
# round takes long enough to be met in its midst, and no longer.
BODIES = 256
ROUNDS = 50
# Calls after which the program is in the midst of its rounds.
UNDER_WAY = 60
# Longest wait for the program to get there, in seconds.
PATIENCE = 60

# The program twice, with the GPU of the other host: the first run stays there.
SCRIPT = """
cat >/etc/paragpu/guest.toml <<END
communicator = "tcp"
{configuration}
END
for moving in no yes; do
    echo "{{\\"moving\\":\\"$moving\\",\\"code\\":null}}"
    timeout {seconds} /opt/paragpu/programs/{program} --size {bodies} --iterations {rounds} --json >/tmp/said 2>/tmp/errors
    code=$?
    said=$(grep '^{{' /tmp/said)
    echo "{{\\"moving\\":\\"$moving\\",\\"code\\":$code,\\"said\\":${{said:-null}}}}"
    [ $code = 0 ] || {{ failed=1; sed "s/^/{program}, moving $moving: /" /tmp/errors; }}
done
"""


class Moving:
    """Moves the running program's session from one daemon to the other."""

    def __init__(self, away, home):
        self.away, self.home = away, home
        self.problems, self.digests, self.moved = [], {}, None
        self.mover = threading.Thread(target=self.move, daemon=True)
        # Whether the program that moves is running.
        self.runs = False

    def script(self):
        """What the VM is to run."""
        return SCRIPT.format(
            configuration=vm.guest_configuration(tcp=self.away.addresses["tcp"]),
            program=PROGRAM,
            bodies=BODIES,
            rounds=ROUNDS,
            seconds=120,
        )

    def take(self, entry):
        """Hears what the script prints."""
        if entry["code"] is None:
            self.runs = entry["moving"] == "yes"
            if self.runs:
                self.mover.start()
            return
        self.runs = False
        said = entry["said"] or {}
        if entry["code"] == 0 and said.get("ok") and said.get("rounds") == ROUNDS:
            self.digests[entry["moving"]] = said["digest"]
        else:
            self.problems.append(f"{PROGRAM}, moving {entry['moving']}, ended with {entry['code']}: {said}")

    def under_way(self):
        """The session to be moved, once the program has begun its rounds."""
        deadline = time.monotonic() + PATIENCE
        while self.runs and time.monotonic() < deadline:
            for session in self.away.sessions():
                if session["calls"] >= UNDER_WAY:
                    return session
            time.sleep(0.02)
        raise RuntimeError(f"{PROGRAM} was never under way at {self.away.addresses['tcp']}")

    def move(self):
        """Moves the session and records the observations."""
        try:
            before = self.under_way()
            known = {session["id"] for session in self.home.sessions()}
            to = f"tcp://{self.home.addresses['migration']}"
            figures = self.away.migrate(before["id"], to, "--communicator", "pci")
            after = [session for session in self.home.sessions() if session["id"] not in known]
            if not self.runs or len(after) != 1:
                raise RuntimeError(f"{PROGRAM} ended while it was moved; there: {after}")
            self.moved = {
                "program": PROGRAM,
                "from": f"tcp://{self.away.addresses['tcp']}",
                "to": to,
                "communicator_before": before["communicator"],
                "communicator_after": after[0]["communicator"],
                **{name: figures[name] for name in ("bytes", "pre_copied_bytes", "blackout_ms", "total_ms")},
            }
        except (RuntimeError, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            self.problems.append(f"migration: {error}")

    def finish(self):
        """After the VM's end: the migrations for demo.json, and what went wrong."""
        if self.mover.ident:
            self.mover.join()
        if not self.moved:
            return [], self.problems or [f"{PROGRAM} was not moved: the VM did not get there"]
        exact = self.digests.get("yes") is not None and self.digests.get("yes") == self.digests.get("no")
        migration = {**self.moved, "bit_exact": exact}
        if not exact:
            self.problems.append(f"{PROGRAM} that moved and one that stayed differ: {self.digests}")
        ways = migration["communicator_before"], migration["communicator_after"]
        if ways != ("tcp", "pci"):
            self.problems.append(f"{PROGRAM} went from {ways[0]} to {ways[1]}, not from tcp to pci")
        return [migration], self.problems


def lines(migrations):
    """The migrations as a person reads them."""
    for one in migrations:
        yield (
            f"{one['program']} moved while it ran, {one['communicator_before']} -> {one['communicator_after']}: "
            f"{one['bytes']} bytes, {one['pre_copied_bytes']} of them pre-copied; downtime "
            f"{one['blackout_ms']:.1f} ms of {one['total_ms']:.0f} ms; "
            f"results {'bit-exact' if one['bit_exact'] else 'DIFFER'}"
        )
