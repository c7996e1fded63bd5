"""Programs that run while operators act on their sessions, and whether they may end as they do."""

import os
import random
import re
import subprocess
import sys
import threading

import harness

from .guests import GUEST

HERE = os.path.dirname(os.path.abspath(__file__))
# CUDA programs that compare their results with the CPU's, and end by themselves.
CALCULATIONS = ("graphs", "graphMemory", "manyThreads", "managedMemory", "hostMemory", "copies", "virtualMemory")
# The other kinds of programs: those of guest_program.py, and of programs with their own file.
ROUNDS = ("steps", "pair", "churn")
KINDS = (*ROUNDS, "kinds", "sharing", *CALCULATIONS)
# Maximum time of a process from its last word to its exit, in seconds.
PATIENCE = 60
# How a program reports that its session is over.
LOST = re.compile(r"CUDA error|cuda[A-Z]|CUDA_ERROR|the session with the GPU's host")
# How a program is refused if there is no room for its session.
FULL = re.compile(r"its limit: ")


class Over(Exception):
    """A process has ended, or says that its session is over."""


class Program(threading.Thread):
    """A program of one kind, started again and again: on any host, over any communicator.

    Each start begins a life. Whoever ends its session sets `excuse` before, and only then
    may the program report an error, except that there was no room. Its results are never wrong.
    """

    def __init__(self, hosts, kind, seed):
        super().__init__(name=kind)
        self.hosts, self.kind, self.chance = hosts, kind, random.Random(f"{seed} {kind}")
        self.stopping, self.faults, self.lives, self.rounds = threading.Event(), [], 0, 0
        self.host = self.communicator = self.excuse = None
        self.processes, self.said, self.is_killed = [], "", False

    def run(self):
        while not self.stopping.is_set():
            self.processes, self.excuse, self.said, self.is_killed = [], None, "", False
            self.host, self.communicator = self.chance.choice(self.hosts), self.chance.choice(harness.HOST_COMMUNICATORS)
            self.host.up.wait()
            try:
                self.live()
            except Over as over:
                self.judge(*over.args)
            except Exception as error:  # pylint: disable=broad-exception-caught
                self.faults.append(f"{self}: {error!r}")
            for process in self.processes:
                process.kill()
                process.communicate()
            self.lives += 1

    def __str__(self):
        host = self.host.name if self.host else None
        return f"{self.kind} over {self.communicator}, started on {host}, excuse: {self.excuse}"

    def has(self, pids):
        """Whether one of its processes is among these."""
        return any(process.pid in pids for process in self.processes)

    def kill(self):
        """Ends this life from outside."""
        self.is_killed = True
        for process in self.processes:
            process.kill()

    def live(self):
        """One life."""
        if self.kind in CALCULATIONS:
            self.calculate()
        elif self.kind == "sharing":
            self.share()
        elif self.kind == "kinds":
            guest = self.launch("kinds_program.py")
            self.say(guest)
            self.repeat(lambda: self.expect(self.say(guest, "check"), "right"))
        else:
            guest = self.launch(GUEST, self.kind)
            self.repeat(lambda: self.expect(self.say(guest), r"round \d+"))

    def repeat(self, act):
        """Acts for the length of a life."""
        for _ in range(self.chance.randrange(20, 400)):
            if self.stopping.is_set():
                break
            act()

    def calculate(self):
        """A program that ends by itself."""
        seconds = str(self.chance.choice((0.2, 1, 3)))
        guest = self.launch(os.path.join(harness.PROGRAMS, self.kind), "--seconds", seconds)
        if guest.wait():
            raise Over(guest)
        self.rounds += 1

    def share(self):
        """Two processes that add to the same memory."""
        owner = self.launch("sharing_program.py", "own")
        pair = [owner, self.launch("sharing_program.py", "take", self.say(owner).split()[1])]
        total = 0
        self.expect(self.say(pair[1]), "ready")

        def add():
            nonlocal total
            for process in pair:
                self.expect(self.say(process, "busy"), "busy")
            for process in pair:
                said = self.say(process, "stop")
                self.expect(said, r"added \d+")
                total += int(said.split()[1])
            for process in pair:
                self.expect(self.say(process, f"check {total}"), "right")

        self.repeat(add)

    def launch(self, path, *arguments):
        """Starts a process of this life."""
        path = os.path.join(HERE, path)
        command = [sys.executable, path] if path.endswith(".py") else [path]
        guest = subprocess.Popen(
            harness.owned([*command, *arguments]),
            env=self.host.guest_environment(self.communicator),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(guest)
        return guest

    def say(self, guest, line=None):
        """The next line of a process, after it was told one."""
        try:
            if line is not None:
                guest.stdin.write(line + "\n")
                guest.stdin.flush()
        except BrokenPipeError:
            raise Over(guest) from None
        self.said = guest.stdout.readline().strip()
        if not self.said or "CUDA error" in self.said:
            raise Over(guest)
        return self.said

    def expect(self, said, pattern):
        """Counts a round whose results are right."""
        if not re.fullmatch(pattern, said):
            raise AssertionError(said)
        self.rounds += 1

    def judge(self, guest):
        """Records a fault unless the program may end as it did."""
        try:
            output, errors = guest.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.faults.append(f"{self}: it does not exit after {self.said!r}")
            return
        said = f"{self.said} {output} {errors}"
        if not (self.is_killed or FULL.search(said) or self.excuse and LOST.search(said)):
            self.faults.append(f"{self}: status {guest.returncode}: {said}")
