"""Programs with objects of every kind move there and back in the midst of their work."""

import concurrent.futures
import os
import subprocess
import unittest

import harness

from .test_moves import migrate

# Conditional, memory, host and edge-data nodes, tensor maps, memory that is mapped, pooled,
# managed and in the host, that threads register, attributes of launches, linked modules,
# libraries, user objects, memory operations of streams, levels of mipmaps, heaps of kernels,
# modules that are on their way, a long queue of calls. Not programs that share memory with
# others (test_shared_moves.py).
NAMES = (
    "batchedCopies", "bicubicTexture", "callbacks", "clusters", "commonObjects", "conditionalNodes", "cooperativeGroups",
    "dependentLaunch", "deviceMalloc", "driverApi", "dynamicParallelism", "graphEdges", "graphMemory", "graphs",
    "greenContexts", "hostBacklog", "hostMemory", "inspection", "launchAttributes", "loadingThreads", "managedMemory",
    "managedVariables", "mappedMemory", "mipmaps", "perThreadStreams", "printf", "streamMemory", "symbolsAndGlobals",
    "tensorMaps", "userObjects",
)  # fmt: skip


class ProgramMoves(unittest.TestCase):
    """Between two daemons, on the software GPU."""

    def moved(self, name, here, there, seconds):
        """How often a program of about so many seconds moved; its results are right."""
        program = subprocess.Popen(
            [os.path.join(harness.PROGRAMS, name), "--seconds", str(seconds)],
            env=here.guest_environment("shm"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        moves = 0
        with program:
            while program.poll() is None:
                session = next((one["id"] for one in here.sessions() if one["guest_pid"] == program.pid), None)
                if session is None:
                    continue
                code, report, errors = migrate(here, str(session), "--to", f"unix://{there.socket}")
                if code:
                    # It may have ended meanwhile, and then no reason else is right.
                    output, _ = program.communicate(timeout=100)
                    self.assertRegex(f"{report} {errors}", r"is ending|ended in the meantime|no session|the program ended", f"{name}: {output}")
                    break
                here, there, moves = there, here, moves + 1
            output = program.stdout.read() if not program.stdout.closed else output
        self.assertEqual(program.returncode, 0, f"{name}: {output}")
        return moves

    def test_programs_of_every_kind(self):
        with harness.Daemon("--warm=4") as here, harness.Daemon("--warm=4") as there, concurrent.futures.ThreadPoolExecutor(4) as pool:

            def run(name):
                # On a busy machine a program may end before its first move.
                return any(self.moved(name, here, there, seconds) for seconds in (1, 4, 16))

            for name, has_moved in zip(NAMES, pool.map(run, NAMES)):
                with self.subTest(name):
                    self.assertTrue(has_moved, "it never moved")
