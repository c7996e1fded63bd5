"""Guest programs of the end-to-end tests, and the daemons and workers that serve them."""

import ctypes
import glob
import json
import os
import subprocess
import sys
import unittest

import harness
from harness import eventually

HERE = os.path.dirname(os.path.abspath(__file__))
GUEST = os.path.join(HERE, "guest_program.py")


class OneDaemon(unittest.TestCase):
    """A daemon that the tests of a class share, and Python programs that run to their end on it."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(harness.Daemon())

    def output(self, communicator, *command):
        """The output of a program that succeeds."""
        run = self.daemon.run(sys.executable, communicator, command)
        self.assertEqual(run.code, 0, run.output + run.errors)
        return run.output

    def said(self, communicator, program, *words):
        """The JSON that a program of this folder prints."""
        return json.loads(self.output(communicator, os.path.join(HERE, program), *words))


def start(daemon, communicator, *arguments, **environment):
    """Starts the guest program that talks to us line by line."""
    return start_program(GUEST, daemon, communicator, *arguments, **environment)


def start_program(path, daemon, communicator, *arguments, **environment):
    """Starts another one."""
    return subprocess.Popen(
        [sys.executable, path, *arguments],
        env=daemon.guest_environment(communicator) | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_with(test, guest):
    """Ends a guest when a test ends; returns the guest."""
    for end in (guest.stdout.close, guest.stderr.close, guest.stdin.close, guest.wait, guest.kill):
        test.addCleanup(end)
    return guest


def finish(guest, timeout=60):
    """Waits for a guest's end: exit status, output, errors."""
    output, errors = guest.communicate(timeout=timeout)
    return guest.returncode, output, errors


def read_until(guest, wanted):
    """Reads lines until one starts with `wanted`."""
    line = ""
    for line in guest.stdout:
        if line.startswith(wanted):
            return line.strip()
    errors = guest.stderr.read()
    raise AssertionError(f"the guest ended ({guest.wait()}) without saying {wanted!r}, at last {line!r}: {errors}")


def workers(daemon):
    """Process ids of the daemon's workers, warm ones included."""
    return {
        pid: environment
        for pid, environment in processes("paragpu-worker")
        if daemon.folder.name in environment
    }


def processes(name):
    """Process id and environment of each running program of that name."""
    for entry in glob.glob("/proc/[0-9]*"):
        try:
            if os.path.basename(os.readlink(f"{entry}/exe")) == name:
                with open(f"{entry}/environ", "rb") as file:
                    yield int(os.path.basename(entry)), file.read().decode(errors="replace")
        except OSError:
            continue


def ask(daemon, *arguments):
    """Runs paragpu; returns its exit status, output and errors."""
    command = [harness.binary("paragpu"), "--control", daemon.control, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def replace_by_file(folder, kept):
    """Puts an empty file in a folder's place, which is `kept` elsewhere. At once, as who writes into
    the folder creates it if it is not there."""
    with open(kept, "w", encoding="utf-8"):
        pass
    here, exchange = -100, 2
    if ctypes.CDLL(None, use_errno=True).renameat2(here, folder.encode(), here, kept.encode(), exchange):
        raise OSError(ctypes.get_errno(), "renameat2")


def only_session(daemon):
    """Number of the daemon's one session, once others that end are gone."""
    eventually(lambda: len(daemon.sessions()) == 1, "one session is left")
    return str(daemon.sessions()[0]["id"])


def rounds(guest, count):
    """Reads that many rounds; the guest itself compares every result."""
    for _ in range(count):
        read_until(guest, "round")


def answer(guest):
    """Asks a guest whether all is as it must be."""
    guest.stdin.write("check\n")
    guest.stdin.flush()
    return guest.stdout.readline().strip()
