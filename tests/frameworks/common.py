"""Shared by the cases of all frameworks: registry, digests and clocks.

A file of cases registers functions that prepare something and return a step. A
step returns what it computed, as an array that numpy understands. The file then
calls `main`, which prints one line of JSON for each case: its name, a digest of
the first steps' results, the milliseconds to them and those since the process began
to import its framework. With --steps=N each case
takes N steps, all of which are judged and clocked, and says when it began. With --turns
each case then takes turns with another process: for each number on standard input its
main thread runs a batch of steps on the processor of that number and prints a step's
microseconds; an empty line ends the case. "steps N" runs N steps that nobody waits for.
With --each a batch is one step.
"""

import argparse
import hashlib
import json
import os
import sys
import time
import traceback

CASES = {}
# Results that are compared repeat themselves. Clocks run as users run their frameworks.
REPEATED = "--turns" not in sys.argv
# Steps whose results are judged.
JUDGED = 5
# Seconds that a batch takes about, and most steps of one.
SECONDS, MOST = 0.1, 5000


def case(function):
    """Registers a case."""
    CASES[function.__name__] = function
    return function


def repeat_products():
    """Makes cuBLAS repeat its results. Before the import of PyTorch, which then parses the
    variable with a regular expression at each product: as long as several small ones take."""
    if REPEATED:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def trained(optimizer, loss_of):
    """A step of PyTorch that trains and returns the loss."""

    def step():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def digest(results):
    """A digest of arrays, and of the arrays in tuples."""
    total = hashlib.blake2b(digest_size=12)

    def take(result):
        if isinstance(result, (tuple, list)):
            for part in result:
                take(part)
        else:
            total.update(repr(getattr(result, "dtype", "")).encode())
            total.update(bytes_of(result))

    take(results)
    return total.hexdigest()


def bytes_of(result):
    """The bytes of an array of any framework."""
    if hasattr(result, "detach"):
        import torch  # pylint: disable=import-outside-toplevel

        result = torch.view_as_real(result) if result.is_complex() else result
        return result.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if hasattr(result, "get"):
        result = result.get()
    import numpy  # pylint: disable=import-outside-toplevel

    return numpy.asarray(result).tobytes()


def take_turns(step, wait, count):
    """Runs a batch whenever it is this process's turn, of `count` steps or, if it is 0, of
    as many as fill its time."""
    everywhere = os.sched_getaffinity(0)
    step()
    wait()
    for line in sys.stdin:
        if not line.strip():
            return
        if line.startswith("steps"):
            for _ in range(int(line.split()[1])):
                step()
            print(json.dumps({"done": line.strip()}), flush=True)
            continue
        # The main thread's; others stay where they are.
        os.sched_setaffinity(0, {int(line)})
        # The other process had the GPU and this processor.
        start = time.perf_counter()
        step()
        wait()
        now = time.perf_counter()
        count = count or max(1, min(MOST, int(SECONDS / max(now - start, 1e-6))))
        start = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        took = time.perf_counter() - start
        os.sched_setaffinity(0, everywhere)
        print(json.dumps({"us": took / count * 1e6}), flush=True)


def stepped(step, wait, count, name):
    """Takes `count` steps, each waited for; their results, and microseconds of each."""
    results, clock = [step()], []
    wait()
    print(json.dumps({"begun": name}), flush=True)
    for _ in range(count):
        start = time.perf_counter()
        results.append(step())
        wait()
        clock.append((time.perf_counter() - start) * 1e6)
    return results, clock


def judged(line, step, wait, options):
    """Runs a case and adds its result to its line."""
    start = time.perf_counter()
    if options.steps:
        results, clock = stepped(step, wait, options.steps, line["case"])
        line["us"], line["slowest_us"] = sorted(clock)[len(clock) // 2], max(clock)
    else:
        results = [step() for _ in range(JUDGED)]
    line["digest"] = digest(results)
    now = time.perf_counter()
    line["first_ms"], line["since_import_ms"] = round((now - start) * 1e3, 1), round((now - options.began) * 1e3, 1)


def place_of(error):
    """Where an error without a text was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}: {frame.line}"


def main(wait, began):
    """Runs the named cases, or all; `wait` waits for the GPU, `began` is when the process did."""
    parser = argparse.ArgumentParser(description="Cases of one framework, one line of JSON each.")
    parser.add_argument("--turns", action="store_true", help="time batches of steps in turns with another process")
    parser.add_argument("--each", action="store_true", help="wait for each step of a batch")
    parser.add_argument("--steps", type=int, default=0, help="steps of each case that are judged")
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    options = parser.parse_args(namespace=argparse.Namespace(began=began))
    print(json.dumps({"ready_ms": round((time.perf_counter() - began) * 1e3, 1)}), flush=True)
    for name in options.cases or CASES:
        line, step = {"case": name}, None
        try:
            step = CASES[name]()
            judged(line, step, wait, options)
        except Exception as error:  # pylint: disable=broad-except
            text = (str(error).strip() or place_of(error)).splitlines()[0]
            line["error"] = f"{type(error).__name__}: {text[:300]}"
        print(json.dumps(line), flush=True)
        if options.turns and "error" not in line:
            take_turns(step, wait, int(options.each))
