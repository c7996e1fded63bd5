"""Shared by the benchmarks: running measuring programs, results, tables."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# Only optimized programs are measured.
os.environ.setdefault("PARAGPU_TEST_PROFILE", "release")
# pylint: disable=wrong-import-position
import harness
from short import short

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
        said = harness.text(late.stderr).strip()[-500:]
        raise Failed(f"{' '.join(command)}: no end within {timeout} s; it said: {said or 'nothing'}") from late
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
        """Runs a measuring program and stores its result or its failure."""
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


def result(name, unit, value, baseline, goal, *, most, of="ratio", note=None, ratio=None):
    """An entry of the result file. `of` says what the goal is about: the ratio
    of value to baseline, or the value; `most` whether it may not be exceeded.
    A ratio that was measured in pairs is given."""
    if ratio is None:
        ratio = value / baseline if value is not None and baseline else None
    judged = ratio if of == "ratio" else value
    met = None
    # What was not measured was not missed.
    if goal is not None and judged is not None:
        met = judged <= goal if most else judged >= goal
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


def lines(title, across, upwards, series, scale="log"):
    """A plot for the page: {name: [(x, y)]} across logarithmic or linear axes."""
    series = {name: points for name, points in series.items() if points}
    plot = {"kind": "lines", "title": title, "across": across, "upwards": upwards, "series": series}
    return plot if scale == "log" else {**plot, "scale": scale}


def dots(title, unit, groups):
    """A plot for the page: [(label, [(series, value)])]."""
    return {"kind": "dots", "title": title, "unit": unit, "groups": groups}


def described(title, machine_in_words, command, about="", **content):
    """What page.py draws a page from, `content` being results, plots and tables.
    A plot without points is left out."""
    content["plots"] = [plot for plot in content.get("plots", []) if plot.get("series") or plot.get("groups")]
    head = {"version": 1, "title": title, "machine": machine_in_words, "date": time.strftime("%Y-%m-%d"), "command": command}
    return {**head, "about": about, **content}


def of_results(results):
    """Results as a file has them, and beside them what each goal is about."""
    return {
        "results": [{field: entry[field] for field in FIELDS} for entry in results],
        "remarks": {entry["name"]: {"goal_is": entry["goal_is"], "note": entry.get("note")} for entry in results},
    }


def store(path, data):
    """A JSON file; each element of the data's lists is a line, so that changes are read easily."""

    def shown(value):
        if not isinstance(value, list) or not value:
            return json.dumps(value, ensure_ascii=False)
        return "[\n  " + ",\n  ".join(json.dumps(element, ensure_ascii=False) for element in value) + "\n ]"

    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n " + ",\n ".join(f"{json.dumps(key)}: {shown(value)}" for key, value in data.items()) + "\n}\n")


def write(path, data, samples):
    """The result file, and beside it every value that was measured."""
    data = {**data, "not_measured": samples.failures}
    store(path, data)
    store(os.path.splitext(path)[0] + "-samples.json", {"samples": samples.values})


def conclude(results, failures):
    """Prints the table and the missed goals; returns the exit status: 1 if something was not measured."""
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
