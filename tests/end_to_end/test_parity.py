"""Every served function with good and bad arguments on the software GPU, compared with an H100's recorded answers."""

import os
import subprocess
import sys
import tempfile
import unittest

import harness

PARITY = os.path.join(harness.ROOT, "tests", "parity")
PROTOTYPES = os.path.join(harness.ROOT, "target", "debug", "examples", "prototypes")


class Parity(unittest.TestCase):
    """One comparison of all functions (tests/parity)."""

    def test_answers_are_native_ones_or_listed(self):
        with tempfile.NamedTemporaryFile(suffix=".json") as prototypes:
            subprocess.run([PROTOTYPES, prototypes.name], check=True)
            command = [sys.executable, os.path.join(PARITY, "test_parity.py"), "--device", "software"]
            command += ["--prototypes", prototypes.name, "--recorded", os.path.join(PARITY, "native-h100.json")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        # Told where it fails: each row, and the sum.
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-8000:])


if __name__ == "__main__":
    unittest.main()
