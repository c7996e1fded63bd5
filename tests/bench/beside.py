#!/usr/bin/env python3
"""The rows of `make bench` for several builds or settings, in turn.

usage: beside.py [--rounds N] [--parts PART,...] [--output FILE] SIDE...

Each SIDE is NAME=FOLDER or NAME=FOLDER,SETTING=VALUE,... FOLDER is a tree with
release binaries (target/release, out/lib) or what `tests/bench/kit.sh` makes (bin,
lib); a SETTING is one of host.toml, such as confine.users=700000-700063:

  beside.py before=../before after=.
  beside.py free=. users=.,confine.users=700000-700063

A round runs bench.py once with each side, in an order that turns. Each later side is
compared with the first: by how much a row is worse, the median of the rounds' ratios and
the interval in which it lies with 95 % confidence. Above --most (1.03) the row is worse
if all of the interval is, and open if a part of it is. Ends with 1 if one is worse or
was not measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from paired import compared

OVERHEADS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "out/bench/overheads")


class Side:
    """A build with settings, and what its rows were: {row: [value of a round]}."""

    def __init__(self, text):
        self.name, _, rest = text.partition("=")
        folder, *settings = rest.split(",")
        folder = os.path.abspath(folder)
        kit = os.path.isdir(os.path.join(folder, "bin"))
        self.environment = {
            "PARAGPU_TEST_OVERHEADS": OVERHEADS,
            **os.environ,
            "PARAGPU_TEST_BINARIES": os.path.join(folder, "bin" if kit else "target/release"),
            "PARAGPU_TEST_LIBRARIES": os.path.join(folder, "lib" if kit else "out/lib"),
        }
        for setting in settings:
            key, _, value = setting.partition("=")
            self.environment[f"PARAGPU_HOST_{key.replace('.', '_').upper()}"] = value
        self.rows, self.costs_more = {}, {}

    def round(self, parts):
        """Measures each row once."""
        with tempfile.TemporaryDirectory(prefix="paragpu-beside-") as folder:
            path = os.path.join(folder, "bench.json")
            command = [sys.executable, os.path.join(HERE, "bench.py"), "--rounds", "1", "--output", path, *parts]
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
            if not os.path.exists(path):
                raise SystemExit(f"{self.name}: {done.stderr}")
            with open(path, encoding="utf-8") as file:
                result = json.load(file)
        for failure in result["not_measured"]:
            print(f"{self.name}: {failure}", file=sys.stderr)
        for row in result["results"]:
            if row["value"]:
                self.rows.setdefault(row["name"], []).append(row["value"])
                self.costs_more[row["name"]] = result["remarks"][row["name"]]["goal_is"].endswith("at most")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--parts", default="calls,copies", help="parts of bench.py (default calls,copies)")
    parser.add_argument("--most", type=float, default=1.03)
    parser.add_argument("--output", help="where the figures go, as JSON")
    parser.add_argument("sides", nargs="+", metavar="SIDE")
    arguments = parser.parse_args()
    sides = [Side(text) for text in arguments.sides]
    for turn in range(arguments.rounds):
        for place in range(len(sides)):
            sides[(turn + place) % len(sides)].round(arguments.parts.split(","))
        print(f"round {turn + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    first, results, bad = sides[0], [], 0
    for side in sides[1:]:
        print(f"{side.name} beside {first.name}, {arguments.rounds} rounds")
        for name, values in first.rows.items():
            if len(values) != arguments.rounds or len(side.rows.get(name, [])) != arguments.rounds:
                print(f"    {name:22} not measured in each round")
                bad += 1
                continue
            worse, better = (side.rows[name], values) if first.costs_more[name] else (values, side.rows[name])
            ratio, (low, high) = compared(worse, better)
            verdict = "worse" if low > arguments.most else "open" if high > arguments.most else "not worse"
            bad += verdict == "worse"
            results.append(
                {"side": side.name, "row": name, "ratio": ratio, "interval": [low, high], "verdict": verdict}
                | {one.name: statistics.median(one.rows[name]) for one in (first, side)}
            )
            print(f"    {name:22} {ratio:.3f} (95 %: {low:.3f} to {high:.3f})  {verdict}")
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump({"rounds": arguments.rounds, "results": results}, file, indent=1)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
