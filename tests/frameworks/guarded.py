"""Runs cases of several files at once, and ends those that take too long.

usage: guarded.py [--jobs N] [--patience S] [--seconds S] FILE:CASE...

Each file has a process of its own, which goes through its cases one after the
other. A case that does not end within its patience ends that process; another one
continues behind it. Prints a line of JSON for each import and for each case, with the
seconds since the line before it, as soon as it is known: the line of the case, an
`error`, or how it was `stopped`. Needs nothing but Python, so that it also runs in a VM.
"""

import argparse
import concurrent.futures
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Beside a file's cases: the import of its framework, and an exit that is not right.
IMPORT, EXIT = "import", "exit"
# Seconds in which a process may end by itself.
TEARDOWN = 30
PRINTING = threading.Lock()


def report(file, name, since, **line):
    """Prints a line."""
    line = {"file": file, **line, "case": name, "seconds": round(time.monotonic() - since, 2)}
    with PRINTING:
        print(json.dumps(line), flush=True)


class Process:
    """A process of one file's cases. Its lines come through a queue, None at the end."""

    def __init__(self, file, names):
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # pylint: disable=consider-using-with
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [sys.executable, "-W", "ignore", os.path.join(HERE, f"{file}_cases.py"), *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.lines = queue.SimpleQueue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        """Hands on the lines of JSON."""
        for line in self.process.stdout:
            try:
                self.lines.put(json.loads(line) if line.startswith("{") else {})
            except ValueError:
                pass
        self.lines.put(None)

    def line(self, key, until):
        """The next line that has a key; None at the process's end. Raises queue.Empty
        where neither comes."""
        while True:
            line = self.lines.get(timeout=max(0, until - time.monotonic()))
            if line is None or key in line:
                return line

    def end(self, patience):
        """Ends it with its children, if it does not end by itself; how it ended if not well."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            code = "none"
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        with self.errors:
            self.errors.seek(0)
            said = self.errors.read().strip().splitlines()
        return f"exit status {code}: {' | '.join(said[-4:])[-600:]}" if code else ""


def followed(process, file, names, patience, end):
    """Reports what a process does; returns the cases that are left for another one."""
    for done, name in enumerate((IMPORT, *names)):
        since, line = time.monotonic(), None
        until = min(end, since + patience)
        try:
            line = process.line("ready_ms" if name == IMPORT else "case", until)
            why = {} if line else {"error": process.end(TEARDOWN) or "it ended too early"}
        except queue.Empty:
            process.end(0)
            why = {"stopped": f"no end within {until - since:.0f} s"}
        report(file, name, since, **(line or why))
        if not line and name == IMPORT:
            for each in names:
                report(file, each, since, stopped="the import did not end well")
            return []
        if not line:
            return names[done:]
    since = time.monotonic()
    if why := process.end(TEARDOWN):
        report(file, EXIT, since, error=why)
    return []


def run_file(file, names, options, end):
    """All cases of a file, by as many processes as that takes."""
    while names and time.monotonic() < end:
        names = followed(Process(file, names), file, names, options.patience, end)
    for name in names:
        report(file, name, time.monotonic(), stopped="not begun")


def main():
    """Runs the named cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="files that run at once")
    parser.add_argument("--patience", type=float, default=120, help="seconds that an import or a case may take")
    parser.add_argument("--seconds", type=float, default=600, help="seconds that all of it may take")
    parser.add_argument("cases", nargs="+", metavar="FILE:CASE")
    options = parser.parse_args()
    end, files = time.monotonic() + options.seconds, {}
    for wanted in options.cases:
        file, _, name = wanted.partition(":")
        files.setdefault(file, []).append(name)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as several:
        for done in [several.submit(run_file, file, names, options, end) for file, names in files.items()]:
            done.result()


if __name__ == "__main__":
    main()
