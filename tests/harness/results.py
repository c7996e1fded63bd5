"""Results of a heavier test: each has a name, a value, a goal, and whether the goal was met."""

import json
import os


class Results:
    """The results."""

    def __init__(self):
        self.entries = []

    def add(self, name, value, goal, met, note):
        """Adds a result and prints it."""
        self.entries.append({"name": name, "value": value, "goal": goal, "met": bool(met), "note": note})
        mark = "met   " if met else "MISSED"
        print(f"{mark} {name:32} {value!s:>10}   goal {goal!s:<8} {note}", flush=True)

    def most(self, name, value, goal, note):
        """A value that may not exceed its goal."""
        self.add(name, round(value, 3), goal, value <= goal, note)

    def exactly(self, name, value, goal, note):
        """A value that must equal its goal."""
        self.add(name, value, goal, value == goal, note)

    def write(self, path, **more):
        """Writes them; are all met?"""
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"version": 1, "results": self.entries, **more}, file, indent=1)
        return all(entry["met"] for entry in self.entries)
