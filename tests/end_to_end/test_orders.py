"""Orders of several operators at once, each of which meets one that is not complete."""

import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import unittest

import harness

from .guests import ask, end_with, eventually, read_until, start
from .test_moves import Proxy

# A worker that starts once a file is gone.
GATED = """#!/bin/sh
while [ -e {folder}/gate ]; do sleep 0.02; done
exec {folder}/paragpu-worker "$@"
"""


class Held(unittest.TestCase):
    """Programs that hold orders back, by a kernel that waits."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="paragpu-orders-")
        self.addCleanup(folder.cleanup)
        self.folder, self.states = folder.name, os.path.join(folder.name, "states")

    def daemon(self, *arguments):
        daemon = harness.Daemon(*arguments)
        self.addCleanup(daemon.stop)
        return daemon

    def waiting(self, daemon, **environment):
        """A program whose kernel waits for it: its session's number, too."""
        before = {session["id"] for session in daemon.sessions()}
        guest = end_with(self, start(daemon, "unix", "await", **environment))
        read_until(guest, "waiting")
        (number,) = {session["id"] for session in daemon.sessions()} - before
        return guest, str(number)

    def release(self, guest, word="answered"):
        """Lets a program go on."""
        guest.stdin.write("\n")
        guest.stdin.flush()
        read_until(guest, word)

    def write(self, daemon, number, *options):
        """Orders a checkpoint, which waits for the session's kernel: the thread, and its result."""
        results = []
        order = lambda: results.append(ask(daemon, "checkpoint", number, self.states, *options))
        thread = threading.Thread(target=order)
        thread.start()
        eventually(lambda: self.session(daemon, number)["activity"] == "writing", "the checkpoint begins")
        return thread, results

    def session(self, daemon, number):
        """What `paragpu list` says of a session."""
        (found,) = [session for session in daemon.sessions() if str(session["id"]) == number]
        return found


class Orders(Held):
    """Each test holds an order back, by a kernel that waits or a worker that does not start."""

    def test_a_schedule_that_is_ended_while_its_first_checkpoint_is_written_does_not_begin(self):
        daemon = self.daemon()
        guest, number = self.waiting(daemon)
        thread, results = self.write(daemon, number, "--every", "1h")
        self.assertEqual(ask(daemon, "checkpoint", number, self.states, "--every", "off")[0], 0)
        self.release(guest)
        thread.join()
        self.assertEqual(results[0][0], 0, results)
        self.assertEqual(os.listdir(self.states), ["session.paragpu"])
        self.assertIsNone(self.session(daemon, number)["checkpoint"])

    def test_a_schedule_that_is_ended_while_a_checkpoint_is_written_stays_ended(self):
        daemon = self.daemon()
        guest, number = self.waiting(daemon)
        self.release(guest)
        self.assertEqual(ask(daemon, "checkpoint", number, self.states, "--every", "1s")[0], 0)
        self.release(guest, "waiting")
        eventually(lambda: self.session(daemon, number)["activity"] == "writing", "the next one is due")
        self.assertEqual(ask(daemon, "checkpoint", number, self.states, "--every", "off")[0], 0)
        self.release(guest)
        eventually(lambda: self.session(daemon, number)["activity"] == "serving", "it is written")
        self.assertIsNone(self.session(daemon, number)["checkpoint"])

    def test_a_directory_belongs_to_the_session_that_is_being_written_there(self):
        daemon = self.daemon()
        for options in (("--every", "1h"), ()):
            with self.subTest(options):
                (guest, number), (_, other) = self.waiting(daemon), self.waiting(daemon)
                thread, results = self.write(daemon, number, *options)
                for more in (("--every", "1h"), ("--end",), ()):
                    code, _, errors = ask(daemon, "checkpoint", other, self.states, *more)
                    self.assertEqual(code, 1)
                    self.assertIn(f"session {number} is being checkpointed into {self.states}", errors)
                self.release(guest)
                thread.join()
                self.assertEqual(results[0][0], 0, results)
                self.assertIsNone(self.session(daemon, other)["checkpoint"])
                for session in (number, other):
                    self.assertEqual(ask(daemon, "end", session)[0], 0)
                eventually(lambda: daemon.sessions() == [], "the schedule is over with its session")

    def test_a_checkpoint_ends_if_its_session_loses_the_connection(self):
        """The session waits for its kernel then, and its program connects again."""
        daemon = self.daemon()
        proxy = Proxy(daemon.socket, socket.AF_UNIX)
        self.addCleanup(proxy.close)
        for options in ((), ("--end",)):
            with self.subTest(options):
                guest, number = self.waiting(daemon, PARAGPU_UNIX_SOCKET=proxy.address)
                thread, results = self.write(daemon, number, *options)
                # The program may be back before the session takes the order.
                while thread.is_alive():
                    proxy.cut()
                    thread.join(1)
                code, _, errors = results[0]
                self.assertEqual(code, 1)
                # A busy machine may let the program be away for so long that the order is refused.
                lost = "lost its connection while the session was being checkpointed"
                self.assertRegex(errors, f"{lost}|it is disconnected, so try again when it is connected")
                self.assertEqual(os.listdir(self.folder), [])
                self.release(guest)
                written = lambda: ask(daemon, "checkpoint", number, self.states, *options)[0] == 0
                eventually(written, "it is written")
                shutil.rmtree(self.states)

    def test_orders_to_a_session_without_its_program_are_refused(self):
        """Long before the session would end without it."""
        daemon = self.daemon("--set=limits.reconnect=3600000", "--set=software.devices=2")
        proxy = Proxy(daemon.socket, socket.AF_UNIX)
        self.addCleanup(proxy.close)
        guest, number = self.waiting(daemon, PARAGPU_UNIX_SOCKET=proxy.address)
        self.release(guest)
        guest.send_signal(signal.SIGSTOP)
        proxy.cut()
        move = ("migrate", number)
        for order in (("checkpoint", number, self.states), (*move, "--to-gpu", "1"), (*move, "--communicator", "shm")):
            with self.subTest(order):
                code, _, errors = ask(daemon, *order)
                self.assertEqual(code, 1)
                self.assertRegex(errors, "it(s program)? is disconnected, so try again when it is connected")
        self.assertFalse(os.path.exists(self.states))
        guest.send_signal(signal.SIGCONT)
        written = lambda: ask(daemon, "checkpoint", number, self.states)[0] == 0
        eventually(written, "the session takes orders once its program is back")

    def test_a_move_ends_if_its_program_is_disconnected(self):
        """Before the session is stopped, for a destination that does not answer, and meanwhile."""
        daemon = self.daemon("--set=limits.reconnect=3600000", "--set=software.devices=2")
        proxy = Proxy(daemon.socket, socket.AF_UNIX)
        self.addCleanup(proxy.close)
        silent = socket.socket(socket.AF_UNIX)
        self.addCleanup(silent.close)
        silent.bind(os.path.join(self.folder, "silent"))
        silent.listen()
        for place in (("--to", f"unix://{silent.getsockname()}"), ("--to-gpu", "1")):
            with self.subTest(place):
                guest, number = self.waiting(daemon, PARAGPU_UNIX_SOCKET=proxy.address)
                results = []
                move = lambda: results.append(ask(daemon, "migrate", number, *place))
                thread = threading.Thread(target=move)
                thread.start()
                eventually(lambda: self.session(daemon, number)["activity"] == "moving", "the move begins")
                guest.send_signal(signal.SIGSTOP)
                proxy.cut()
                thread.join()
                code, _, errors = results[0]
                self.assertEqual(code, 1)
                stopped = "the program lost its connection while the session was being stopped: try again"
                waits = "its program is disconnected, so try again when it is connected"
                self.assertRegex(errors, waits if "--to" in place else f"{waits}|{stopped}")
                self.assertEqual(self.session(daemon, number)["device"], "software:0")
                guest.send_signal(signal.SIGCONT)
                self.release(guest)
                moves = lambda: ask(daemon, "migrate", number, "--to-gpu", "1")[0] == 0
                eventually(moves, "it moves once its program is back")

    def test_the_end_of_an_earlier_daemons_order_is_not_that_of_a_new_one(self):
        """Nor does it end the session: the next daemon could not bring its program back."""
        daemon = self.daemon()
        guest, number = self.waiting(daemon)
        thread, results = self.write(daemon, number, "--end")
        daemon.process.kill()
        daemon.process.wait(harness.PATIENCE)
        thread.join()
        self.assertNotEqual(results[0][0], 0)
        daemon.start()
        another = os.path.join(self.folder, "another")
        code, _, errors = ask(daemon, "checkpoint", number, another, "--end")
        self.assertEqual(code, 1)
        self.assertIn("an order of an earlier daemon to the session is not complete", errors)
        self.release(guest)
        eventually(lambda: os.path.exists(self.states), "the earlier order is carried out")
        written = lambda: ask(daemon, "checkpoint", number, another, "--end")[0] == 0
        eventually(written, "the session takes another order")
        self.assertEqual(os.listdir(another), ["session.paragpu"])

    def gated(self):
        """A daemon that has a checkpoint, and no worker to restore it until the gate is gone."""
        program, self.gate = os.path.join(self.folder, "worker"), os.path.join(self.folder, "gate")
        # paragpud starts programs of the worker's directory only.
        shutil.copy(harness.binary("paragpu-worker"), self.folder)
        with open(program, "w", encoding="utf-8") as file:
            file.write(GATED.format(folder=self.folder))
        os.chmod(program, 0o755)
        daemon = self.daemon("--set=pool.warm=0", f"--set=daemon.worker={program}")
        guest = end_with(self, start(daemon, "unix", "steps"))
        read_until(guest, "round")
        (session,) = daemon.sessions()
        code, _, errors = ask(daemon, "checkpoint", str(session["id"]), self.states)
        self.assertEqual(code, 0, errors)
        guest.kill()
        eventually(lambda: daemon.sessions() == [], "the session is over")
        with open(self.gate, "w", encoding="utf-8"):
            return daemon

    def send(self, daemon, *requests):
        """A connection of the control socket with these requests."""
        connection = socket.socket(socket.AF_UNIX)
        self.addCleanup(connection.close)
        connection.settimeout(60)
        connection.connect(daemon.control)
        connection.sendall(b"".join(json.dumps(request).encode() + b"\n" for request in requests))
        # A daemon that has just started shows no GPU yet.
        starting = lambda: all(gpu["starting"] == 1 for gpu in daemon.status()["devices"])
        eventually(starting, "a worker is wanted")
        return connection

    def test_a_restore_that_fails_late_does_not_hold_up_the_next_request(self):
        daemon = self.gated()
        requests = ({"command": "restore", "directory": self.states}, {"command": "version"})
        connection = self.send(daemon, *requests)
        os.unlink(os.path.join(self.states, "session.paragpu"))
        os.unlink(self.gate)
        with connection.makefile() as answers:
            self.assertIn("cannot be read", json.loads(answers.readline())["error"])
            self.assertEqual(json.loads(answers.readline())["answer"], "version")

    def test_a_restore_waits_for_the_gpus_of_a_daemon_that_has_just_started(self):
        daemon = self.gated()
        daemon.process.kill()
        daemon.process.wait(harness.PATIENCE)
        daemon.start()
        code, _, errors = ask(daemon, "migrate", "--gpu", "0", "--to", "unix:///nowhere")
        self.assertEqual(code, 1)
        self.assertIn("this host's GPUs are still being opened: try again", errors)
        connection = self.send(daemon, {"command": "restore", "directory": self.states})
        os.unlink(self.gate)
        with connection.makefile() as lines:
            answers = (json.loads(line)["answer"] for line in lines)
            self.assertEqual(next(answer for answer in answers if answer != "progress"), "done")

    def test_a_restore_continues_without_its_operator(self):
        daemon = self.gated()
        self.send(daemon, {"command": "restore", "directory": self.states, "copies": 2}).close()
        # Its end is seen before the worker starts.
        self.assertEqual(daemon.sessions(), [])
        os.unlink(self.gate)
        eventually(lambda: len(daemon.sessions()) == 2, "both copies are restored")


if __name__ == "__main__":
    unittest.main()
