"""Orders to sessions whose processes are stopped."""

import contextlib
import json
import os
import signal
import unittest
from concurrent.futures import ThreadPoolExecutor

from .guests import ask, eventually
from .test_orders import Held


class Stopped(Held):
    """SIGSTOP holds the workers."""

    def stop_worker(self, daemon, number):
        """Stops a session's process with SIGSTOP: returns how to continue it."""
        pid = self.session(daemon, number)["worker_pid"]
        os.kill(pid, signal.SIGSTOP)

        def resume():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        self.addCleanup(resume)
        return resume

    def test_orders_to_stopped_workers_end(self):
        """Nobody waits for them for long; what they were told, they do later."""
        one, two = (self.daemon("--set=software.devices=2") for _ in range(2))
        pairs = [(daemon, *self.waiting(daemon)) for daemon in (one, one, two, two)]
        for _, guest, _ in pairs:
            self.release(guest)
        numbers = [number for _, _, number in pairs]
        continued = [self.stop_worker(daemon, number) for daemon, _, number in pairs[:3]]
        vm = two.sessions()[0]["vm"]
        orders = (
            (one, "checkpoint", numbers[0], self.states),
            (one, "migrate", numbers[1], "--to-gpu", "1"),
            (two, "migrate", "--vm", vm, "--to-gpu", "1", "-o", "json"),
        )
        with ThreadPoolExecutor() as pool:
            checkpoint, move, together = pool.map(lambda order: ask(*order), orders)
        for (code, _, errors), number in ((checkpoint, numbers[0]), (move, numbers[1])):
            self.assertEqual(code, 1)
            self.assertIn(f"the worker of session {number} has not answered for 60 s", errors)
            self.assertEqual(len(errors.splitlines()), 1, errors)
        moved = {str(one["session"]): one for one in json.loads(together[1])}
        self.assertEqual([moved[number]["moved"] for number in numbers[2:]], [False, False])
        self.assertIn("has not answered", moved[numbers[2]]["error"])
        # The orders are not withdrawn.
        for daemon, number in ((one, numbers[0]), (one, numbers[1]), (two, numbers[2])):
            code, _, errors = ask(daemon, "checkpoint", number, os.path.join(self.folder, "another"))
            self.assertEqual(code, 1)
            self.assertIn("is already being moved or checkpointed", errors)
        self.assertFalse(os.path.exists(self.states))
        for resume in continued:
            resume()
        serve = lambda: all(session["activity"] == "serving" for daemon in (one, two) for session in daemon.sessions())
        eventually(serve, "the orders are over")
        self.assertEqual(os.listdir(self.states), ["session.paragpu"])
        for _, guest, _ in pairs:
            self.release(guest, "waiting")
            self.release(guest)


if __name__ == "__main__":
    unittest.main()
