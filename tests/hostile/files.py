"""Files that are none: pipes and links where the daemon reads and writes."""

import os
import subprocess
import tempfile

import harness
from field import PATIENCE, Broken, attack, expect


def paragpu(field, *arguments):
    """Runs a command against the daemon: its exit status, or None where it hangs."""
    command = [harness.binary("paragpu"), "--control", field.daemon.control, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return None


@attack
def states_that_are_no_files(field):
    cases = 0
    for kind in ("pipe", "link", "folder", "device", "link to a pipe"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "session.paragpu")
            if kind == "pipe":
                os.mkfifo(path)
            elif kind == "link":
                os.symlink("/etc/hostname", path)
            elif kind == "folder":
                os.mkdir(path)
            elif kind == "device":
                os.symlink("/dev/zero", path)
            else:
                os.mkfifo(path + ".pipe")
                os.symlink(path + ".pipe", path)
            done = paragpu(field, "restore", folder)
            expect(done is not None, f"restore of a {kind} hangs")
            expect(done.returncode != 0, f"a {kind} is restored")
            expect("session.paragpu" in done.stderr and ("regular file" in done.stderr or "link" in done.stderr), done.stderr)
            field.neighbour().close()
            cases += 1
    return cases


@attack
def a_state_of_another_user(field):
    if os.getuid() != 0:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "session.paragpu")
        with open(path, "wb") as state:
            state.write(b"x" * 100)
        os.chown(path, 1234, 1234)
        done = paragpu(field, "restore", folder)
        expect(done is not None and done.returncode != 0, "another user's state is restored")
        expect("belongs to" in done.stderr, done.stderr)
    return 1


def start_with_state(field, state):
    """A second daemon with this state directory: does it start?"""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            harness.binary("paragpud"), "--device=software", f"--socket={folder}/guests",
            f"--control={folder}/control", "--print-addresses", f"--set=daemon.state={state}",
        ]
        process = subprocess.Popen(harness.owned(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            return bool(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(PATIENCE)
            process.stdout.close()


@attack
def links_in_the_state_directory(field):
    with tempfile.TemporaryDirectory() as folder:
        victim = os.path.join(folder, "victim")
        with open(victim, "w", encoding="ascii") as file:
            file.write("precious")
        state = os.path.join(folder, "state")
        os.mkdir(state)
        os.symlink(victim, os.path.join(state, "lock"))
        started = start_with_state(field, state)
        with open(victim, encoding="ascii") as file:
            expect(file.read() == "precious", "the lock's link empties another file")
        expect(not started, "a lock that is a link is used")
        elsewhere = os.path.join(folder, "elsewhere")
        os.mkdir(elsewhere, mode=0o755)
        linked = os.path.join(folder, "linked")
        os.symlink(elsewhere, linked)
        if start_with_state(field, linked):
            raise Broken("a state directory that is a link is used")
        expect(os.stat(elsewhere).st_mode & 0o777 == 0o755, "the link's directory has another mode")
        os.mkfifo(os.path.join(elsewhere, "lock"))
        if start_with_state(field, elsewhere):
            raise Broken("a lock that is a pipe is used")
    return 3
