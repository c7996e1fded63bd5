"""What the driver promises is served, and what it refuses is not promised."""

import os
import re

import harness

from .guests import OneDaemon

PROGRAM = "honest_program.py"
SUCCESS, INVALID_VALUE, UNSUPPORTED_LIMIT, NOT_PERMITTED = 0, 1, 215, 800
SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT = 1, 2


def refused():
    """The driver's functions that are refused, from the page that is derived from the interface."""
    with open(os.path.join(harness.ROOT, "docs/coverage.md"), encoding="utf-8") as file:
        driver = file.read().split("\n## ")[1]
    return re.findall(r"\bcu[A-Z]\w+", driver.split("| refused because |")[1])


class Honest(OneDaemon):
    """On the software GPU. tests/parity compares with NVIDIA's driver."""

    def test_attributes_promise_what_is_served(self):
        said = self.said("shm", PROGRAM, "attributes")
        behind = {number: status == SUCCESS for number, status in said["behind"].items()}
        promised = {number: said["attributes"][number] > 0 for number in behind}
        self.assertEqual(behind, promised, said)
        self.assertTrue(set(behind.values()) == {True, False}, "some are promised, some are not")

    def test_refused_functions_are_not_found(self):
        said = self.said("shm", PROGRAM, "names", *refused(), "cuMemAlloc")
        self.assertEqual(said.pop("cuMemAlloc"), [SUCCESS, True, 0])
        self.assertGreater(len(said), 50)
        for name, (code, there, symbol) in said.items():
            self.assertEqual((code, there), (SUCCESS, False), name)
            self.assertIn(symbol, (SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT), name)

    def test_each_context_has_its_limits(self):
        for number, (before, new, was_set, changed, after) in self.said("shm", PROGRAM, "limits").items():
            with self.subTest(limit=number):
                self.assertEqual((new, after), (before, before), "another context's limit")
                status, value = before
                if was_set == SUCCESS:
                    self.assertEqual(changed, [SUCCESS, 2 * value])
                elif number in ("7", "8"):
                    # Shared memory of a block, and graphics in contexts: both are only reported.
                    self.assertEqual((status, was_set), (SUCCESS, NOT_PERMITTED))
                else:
                    # Those of launches by kernels are CUDA's, but no device's of CUDA 12 and later.
                    code = INVALID_VALUE if number == "255" else UNSUPPORTED_LIMIT
                    self.assertEqual((status, was_set), (code, code))
