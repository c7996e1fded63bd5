"""Moves a program's NCCL reductions while they run, and reports the step of a move that takes long.

usage: test_gpu_nccl_moves.py [--case NAME] [--late SECONDS] [--seconds SECONDS] [--communicator NAME]
       test_gpu_nccl_moves.py --device software

A case of pairs_cases.py runs until it is told to stop, and all of its sessions move
together to another daemon. If that is not over after --late seconds (default 10), this
prints what every session and worker is doing: the daemons' lists of sessions and the last
progress of each, the threads of each worker with the CPU time that they used within a
second and where they wait in the kernel, and the log lines of the move. It does so again
as often as there is time: the whole run takes at most --seconds (default 60). Ends with
0 if the sessions moved in time and a reduction's results stayed the same, and where there
are no two GPUs. --device software checks this script: it moves peerAccess between
software GPUs.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time

BEGAN = time.monotonic()
# Cases whose steps all have the same results.
REPEATS = {"all_reduce_256m", "one_process", "between_gpus"}
# The part of the run's time that is reserved for its end, in seconds.
RESERVE = 8
# Log lines of each daemon that are shown.
LINES = 80


def loop(name):
    """Runs steps of a case until standard input requests or ends; reports the first step and the total."""
    # pylint: disable=import-outside-toplevel
    import pairs_cases
    import torch
    from common import CASES, digest

    assert pairs_cases
    step, told, steps = CASES[name](), threading.Event(), 0
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    results = set()
    while not told.is_set():
        results.add(digest(step()))
        for gpu in range(2):
            torch.cuda.synchronize(gpu)
        steps += 1
        if steps == 1:
            print("begun", flush=True)
    same = len(results) == 1 or name not in REPEATS
    print(json.dumps({"steps": steps, "same": same}), flush=True)


def left(options):
    """Seconds that are left for the run, less those kept for its end."""
    return options.seconds - RESERVE - (time.monotonic() - BEGAN)


class Move:
    """A move of all sessions of a VM, by the control socket."""

    def __init__(self, at, virtual_machine, to):
        self.progress, self.answer, self.began = {}, None, time.monotonic()
        self.over = threading.Event()
        order = {"command": "migrate", "vm": virtual_machine, "to": f"unix://{to.socket}"}
        threading.Thread(target=self.listen, args=(at.control, order), daemon=True).start()

    def listen(self, control, order):
        """Reads answers until the last one."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(control)
            connection.sendall(json.dumps(order).encode() + b"\n")
            for line in connection.makefile(encoding="utf-8"):
                answer = json.loads(line)
                if answer["answer"] != "progress":
                    self.answer = answer
                    break
                self.progress[answer["session"]] = (round(time.monotonic() - self.began, 2), answer)
        self.over.set()

    @property
    def moved(self):
        """Whether every session moved."""
        sessions = (self.answer or {}).get("sessions")
        return bool(sessions) and all(session["moved"] for session in sessions)


def read(*parts):
    """A file of /proc, or why it cannot be read."""
    try:
        with open(os.path.join("/proc", *map(str, parts)), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError as error:
        return error.strerror


def threads(pid):
    """Each thread of a process: its name and state, ticks of CPU time, and where it waits."""
    found = {}
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        stat = read(pid, "task", task, "stat")
        fields = stat.rpartition(")")[2].split()
        if len(fields) > 12:
            name = stat.partition("(")[2].rpartition(")")[0]
            place = " ".join(read(pid, "task", task, what).split("\n")[0] for what in ("wchan", "syscall"))
            found[task] = (name, fields[0], int(fields[11]) + int(fields[12]), place)
    return found


def workers(daemons):
    """The worker processes of daemons: theirs and their children's children."""
    parents, names = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        stat = read(pid, "stat")
        fields = stat.rpartition(")")[2].split()
        if len(fields) > 1:
            parents.setdefault(int(fields[1]), []).append(int(pid))
            names[int(pid)] = stat.partition("(")[2].rpartition(")")[0]
    found, queue = [], [daemon.process.pid for daemon in daemons]
    while queue:
        children = parents.get(queue.pop(), [])
        queue += children
        found += [pid for pid in children if names[pid].startswith("paragpu-worker")]
    return sorted(found)


def plain(log):
    """The lines of a log, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", log).splitlines()


def log_of_move(daemon, before):
    """The last lines about the move since it began."""
    tells = re.compile(r"transfer|migrat|module|held|ERROR|WARN")
    return [line for line in plain(daemon.log())[before:] if tells.search(line)][-LINES:]


def report(move, daemons, before):
    """Prints what everybody is doing."""
    print(f"== the move takes {time.monotonic() - move.began:.1f} s", flush=True)
    for session, (when, progress) in sorted(move.progress.items()):
        print(f"session {session}: last progress after {when} s: {progress}")
    serving = set()
    for name, daemon in daemons.items():
        try:
            for session in daemon.sessions():
                serving.add(session["worker_pid"])
                shown = ("id", "worker_pid", "device", "activity", "counted", "calls", "launches", "device_memory", "host_memory")
                print(f"{name}: " + ", ".join(f"{key} {session.get(key)}" for key in shown))
        except (subprocess.SubprocessError, OSError) as error:
            print(f"{name}: its sessions are not told: {error}")
    first = {pid: threads(pid) for pid in workers(daemons.values())}
    time.sleep(1)  # what CPU time is measured over
    for pid, earlier in first.items():
        now = threads(pid)
        used = {task: ticks - earlier.get(task, (None, None, ticks))[2] for task, (_, _, ticks, _) in now.items()}
        # Others wait for their first session.
        if pid not in serving and not any(used.values()):
            continue
        print(f"worker {pid}: {read(pid, 'cmdline').replace(chr(0), ' ')[:160]}")
        for task, (thread, state, ticks, place) in now.items():
            percent = 100 * used[task] // os.sysconf("SC_CLK_TCK")
            print(f"  {task:>8} {thread:16} {state} {percent:>3}% of a CPU, {ticks} ticks in all, {place}")
    for name, daemon in daemons.items():
        print(f"-- {name} logged:", *log_of_move(daemon, before[name]), sep="\n   ")
    sys.stdout.flush()


def program_of(options, daemon, environment):
    """Starts the program that moves."""
    if options.device == "software":
        command = [os.path.join(harness.PROGRAMS, "peerAccess"), "--size", "20", "--seconds", "4"]
    else:
        command = [sys.executable, os.path.abspath(__file__), "--loop", options.case]
    environment = {**daemon.guest_environment(options.communicator), **environment}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, errors="replace", **pipes)


def begun(options, daemon, program):
    """Waits for the first step."""
    if options.device != "software":
        return any("begun" in line for line in iter(program.stdout.readline, ""))
    while program.poll() is None and len(daemon.sessions()) < 2 and left(options) > 0:
        time.sleep(0.05)  # polls: the state has no notification
    return program.poll() is None


def follow(move, options, daemons, before):
    """Waits for the end of a move, with reports if it is late."""
    due = options.late
    while not move.over.wait(max(0, min(due - (time.monotonic() - move.began), left(options)))):
        report(move, daemons, before)
        if left(options) <= 0:
            return
        due = time.monotonic() - move.began + 5


def run(options, environment):
    """Runs, moves and judges; whether all is well."""
    arguments = ("--warm=2", "--set=log.level=debug", *(["--set=software.devices=2"] if options.device == "software" else []))
    with harness.Daemon(*arguments, device=options.device) as here, harness.Daemon(*arguments, device=options.device) as there:
        daemons = {"source": here, "destination": there}
        with program_of(options, here, environment) as program:
            said = []
            listener = threading.Thread(target=lambda: said.extend(program.stderr), daemon=True)
            listener.start()
            # The run ends in time in any case.
            watchdog = threading.Timer(max(1, options.seconds - 3 - (time.monotonic() - BEGAN)), program.kill)
            watchdog.daemon = True
            watchdog.start()
            if not begun(options, here, program):
                program.kill()
                listener.join(2)
                print(f"the program took no step: {''.join(said)[-2000:]}\n{here.log()[-3000:]}")
                return False
            print(f"the program runs after {time.monotonic() - BEGAN:.1f} s", flush=True)
            before = {name: len(plain(daemon.log())) for name, daemon in daemons.items()}
            move = Move(here, here.sessions()[0]["vm"], there)
            follow(move, options, daemons, before)
            took = time.monotonic() - move.began
            print(f"{'moved' if move.moved else 'NOT MOVED'} after {took:.2f} s: {json.dumps(move.answer)}", flush=True)
            if options.verbose:
                for name, daemon in daemons.items():
                    print(f"-- {name} logged:", *log_of_move(daemon, before[name]), sep="\n   ")
            try:
                output, _ = program.communicate("stop\n", timeout=max(1, left(options) + RESERVE / 2))
            except subprocess.TimeoutExpired:
                program.kill()
                output, _ = program.communicate()
            watchdog.cancel()
            listener.join(2)
            ended = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
            print(f"the program: status {program.returncode}, {ended or output} {''.join(said)[-1000:]}")
            same = all(line.get("same", True) for line in ended)
            return move.moved and took <= options.late and program.returncode == 0 and same


def main():
    """Reads the arguments; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="all_reduce_256m", help="of pairs_cases.py (default all_reduce_256m; also training_ranks)")
    parser.add_argument("--late", type=float, default=10, help="seconds after which a move is late (default 10)")
    parser.add_argument("--seconds", type=float, default=60, help="longest time of the whole run (default 60)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "software"), help="what runs (default cuda)")
    parser.add_argument("--communicator", default="shm", choices=harness.HOST_COMMUNICATORS)
    parser.add_argument("--verbose", action="store_true", help="also show the log of a move that is in time")
    options = parser.parse_args()
    if options.device == "cuda":
        try:
            count = gpu.probe()["count"]
        except gpu.NoGpu as why:
            print(f"skipped: {why}")
            return 0
        if count < 2:
            print("skipped: there is one GPU")
            return 0
    return 0 if run(options, {**turns.QUIET, **turns.PACKAGED}) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--loop"]:
        loop(sys.argv[2])
    else:
        import turns
        import gpu
        from measure import harness

        sys.exit(main())
