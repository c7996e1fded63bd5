#!/usr/bin/env python3
"""Attacks a daemon and its workers; reports which attacks it withstood.

usage: run.py [--output FILE] [ATTACK...]

Each attack has a daemon of its own with the software GPU, and ends with the
question whether that daemon serves others. Ends with 1 if one went through. An
attack that needs what this machine lacks, such as root, is skipped.
"""

import argparse
import json
import os
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "wire"), os.path.dirname(HERE)]

import containers
import crowd
import doors
import files
import frames
import fuse
import graphs
import groups
import hosts
import kernels
import leases
import limits
import memory
import objects
import secure
import setuid
import shapes
import sharing
import strange
import users
import worker
from field import ATTACKS, Field, Skipped

MODULES = (
    containers, crowd, doors, files, frames, fuse, graphs, groups, hosts, kernels, leases, limits, memory, objects, secure,
    setuid, shapes, sharing, strange, users, worker,
)


def run(name):
    """Runs one attack: its entry among the results or the skipped ones of hostile.json."""
    field, cases, why = Field(), 0, ""
    began = time.monotonic()
    try:
        cases = ATTACKS[name](field)
        field.hang_up()
        field.check()
    except Skipped as reason:
        print(f"{'skipped':7} {name:50} {reason}", flush=True)
        return {"name": name, "why": str(reason)}
    # Any exception means that the attack succeeded; the next one follows.
    except Exception as broken:  # pylint: disable=broad-exception-caught
        why = f"{type(broken).__name__}: {broken}"
        traceback.print_exc()
        print(field.last_words(), file=sys.stderr)
    finally:
        field.close()
    held = not why
    print(f"{'held' if held else 'BROKEN':7} {name:50} {cases:8} cases {time.monotonic() - began:6.1f} s {why}", flush=True)
    return {"name": name, "cases": cases, "held": held, **({"why": why} if why else {})}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", help="where the results go, as JSON")
    parser.add_argument("attacks", nargs="*", choices=[*sorted(ATTACKS), []], metavar="ATTACK")
    arguments = parser.parse_args()
    tried = [run(name) for name in arguments.attacks or ATTACKS]
    results = [entry for entry in tried if "held" in entry]
    skipped = [entry for entry in tried if "held" not in entry]
    if arguments.output:
        os.makedirs(os.path.dirname(os.path.abspath(arguments.output)), exist_ok=True)
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump({"results": results, "skipped": skipped}, file, indent=1)
    broken = [f"{result['name']} ({result['why']})" for result in results if not result["held"]]
    print(f"{len(results) - len(broken)} of {len(results)} attacks held, {len(skipped)} skipped" + (f"; went through: {', '.join(broken)}" if broken else ""))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
