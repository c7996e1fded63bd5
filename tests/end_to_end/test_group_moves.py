"""All sessions of a VM move to another host, and some of them cannot or need not."""

import time
from concurrent.futures import ThreadPoolExecutor

from .guests import end_with, eventually, read_until, rounds, start_program
from .test_moves import USER, TwoHosts, far, migrate, move

# A monitor: it queries all the time, and does not use CUDA.
QUERIES = """
import ctypes, time
nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
while True:
    print("answer", nvml.nvmlDeviceGetMemoryInfo(device, (ctypes.c_uint64 * 3)()), flush=True)
    time.sleep(0.2)
"""


class GroupMoves(TwoHosts):
    """Nobody keeps the others."""

    def test_who_only_queries_keeps_no_other_session(self):
        guest = self.guest(self.one, "unix", "steps")
        rounds(guest, 1)
        queries = end_with(self, start_program("-c", self.one, "unix", QUERIES))
        read_until(queries, "answer 0")
        self.assertEqual(len(self.one.sessions()), 2)
        code, moved, errors = migrate(self.one, "--vm", USER, "--to", far(self.two))
        self.assertEqual(code, 0, f"{moved} {errors}")
        self.assertEqual([session["moved"] for session in moved], [True])
        rounds(guest, 2)
        eventually(lambda: [session["guest_pid"] for session in self.one.sessions()] == [0], "it queries again")
        code, _, errors = move(self.one, far(self.two))
        self.assertEqual(code, 1)
        self.one_sentence(errors, "NVML")
        read_until(queries, "answer 0")
        queries.kill()
        queries.wait()

    def test_who_ends_meanwhile_keeps_no_other_session(self):
        guests = [self.guest(self.one, "unix", "steps") for _ in range(2)]
        for guest in guests:
            rounds(guest, 1)
        for pause in (0.1, 0.3):
            brief = self.guest(self.one, "unix", "hold", "4096")
            read_until(brief, "holding")
            with ThreadPoolExecutor() as pool:
                ordered = pool.submit(migrate, self.one, "--vm", USER, "--to", far(self.two))
                time.sleep(pause)
                brief.stdin.close()
                code, moved, errors = ordered.result()
            self.assertEqual(code, 0, f"{moved} {errors}")
            self.assertTrue(all(session["moved"] for session in moved), moved)
            for guest in guests:
                rounds(guest, 2)
            code, moved, errors = migrate(self.two, "--vm", USER, "--to", far(self.one))
            self.assertEqual(code, 0, f"{moved} {errors}")
