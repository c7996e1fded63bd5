"""What the benchmarks share: running measuring programs, results, tables."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# pylint: disable=wrong-import-position
import harness

OVERHEADS = os.environ.get("PARAGPU_TEST_OVERHEADS", os.path.join(harness.ROOT, "out/bench/overheads"))


def say(what):
    """Progress, on standard error."""
    print(f"[{time.strftime('%H:%M:%S')}] {what}", file=sys.stderr, flush=True)


class Failed(Exception):
    """A measuring program did not measure."""


def lines_of(command, environment, timeout=300):
    """Runs a measuring program; returns {name: value}."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{' '.join(command)}: no end within {timeout} s") from late
    if done.returncode:
        text = (done.stderr or done.stdout).strip()
        raise Failed(f"{' '.join(command)}: exit status {done.returncode}: {text}")
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {record["name"]: record["value"] for record in records}


class Samples:
    """Values of several runs by name."""

    def __init__(self):
        self.values, self.failures = {}, []

    def take(self, prefix, command, environment, timeout=300):
        """Runs a measuring program and keeps what it measured; a failure is kept, too."""
        try:
            for name, value in lines_of(command, environment, timeout).items():
                self.values.setdefault(prefix + name, []).append(value)
        except Failed as failure:
            if str(failure) not in self.failures:
                self.failures.append(str(failure))
                say(str(failure))

    def add(self, name, value):
        """One more value."""
        self.values.setdefault(name, []).append(value)

    def median(self, name):
        """The median, or None where nothing was measured."""
        values = self.values.get(name)
        return statistics.median(values) if values else None


def result(name, unit, value, baseline, goal, *, most, of="ratio", note=None):
    """An entry of the result file. `of` says what the goal is about: the ratio
    of value to baseline, or the value; `most` whether it may not be exceeded."""
    ratio = value / baseline if value is not None and baseline else None
    judged = ratio if of == "ratio" else value
    met = None
    if goal is not None:
        met = judged is not None and (judged <= goal if most else judged >= goal)
    entry = {"name": name, "unit": unit, "value": value, "baseline": baseline, "ratio": ratio, "goal": goal, "met": met}
    entry["goal_is"] = f"{of} {'at most' if most else 'at least'}"
    if note:
        entry["note"] = note
    return entry


def machine():
    """The machine in words."""
    model = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}"


def short(number):
    """A number in four digits."""
    if number is None:
        return "-"
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            return f"{number / (1e3 if suffix == 'k' else limit):.4g}{suffix}"
    return f"{number:.4g}"


def table(results):
    """One row a result."""
    rows = [("name", "value", "unit", "baseline", "ratio", "goal", "met")]
    for entry in results:
        goal = "-" if entry["goal"] is None else f"{entry['goal_is']} {short(entry['goal'])}"
        met = {None: "-", True: "yes", False: "NO"}[entry["met"]]
        rows.append(
            (entry["name"], short(entry["value"]), entry["unit"], short(entry["baseline"]), short(entry["ratio"]), goal, met)
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


FIELDS = ("name", "unit", "value", "baseline", "ratio", "goal", "met")


def write(path, about, results, samples):
    """The result file, and beside it every value that was measured and what each goal is about."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    entries = [{field: entry[field] for field in FIELDS} for entry in results]
    remarks = {entry["name"]: {"goal_is": entry["goal_is"], "note": entry.get("note")} for entry in results}
    stem = os.path.splitext(path)[0]
    for name, content in (
        (path, {"version": 1, "machine": about, "results": entries}),
        (stem + "-samples.json", {"samples": samples.values, "remarks": remarks, "not_measured": samples.failures}),
    ):
        with open(name, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")


def conclude(results, failures):
    """Prints the table and what was missed; returns the exit status: 1 where something was not measured."""
    print(table(results))
    for entry in results:
        if entry["met"] is False:
            print(f"missed: {entry['name']}: {entry.get('note') or 'no further measurement says why'}")
    for failure in failures:
        print(f"not measured: {failure}", file=sys.stderr)
    met = sum(1 for entry in results if entry["met"])
    judged = sum(1 for entry in results if entry["met"] is not None)
    print(f"{met} of {judged} goals met")
    return 1 if failures else 0
