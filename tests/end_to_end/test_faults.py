"""Containment of faults."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import unittest

import harness

from .guests import GUEST, OneDaemon, end_with, eventually, finish, read_until, start, workers

# What every build of NVIDIA's runtime imports and contains.
UNKNOWN_RUNTIME = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/sysinfo.h>
const char *const texts[] = {"/cudart.shm.%x.%x.%llx", "cudaErrorCudartUnloading"};
void *use(void) { return get_nprocs() > 0 ? dlsym(RTLD_DEFAULT, texts[1]) : (void *)texts; }
"""


class Faults(OneDaemon):
    """One daemon for all; each test leaves it without sessions."""

    def tearDown(self):
        eventually(lambda: self.daemon.sessions() == [], "no session is left")

    def guest(self, communicator, *arguments):
        return end_with(self, start(self.daemon, communicator, *arguments))

    def test_no_backend_says_where_it_looked(self):
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                environment = self.daemon.guest_environment(communicator)
                environment["PARAGPU_SHM_SOCKET"] = environment["PARAGPU_UNIX_SOCKET"] = "/nonexistent/paragpud.sock"
                environment["PARAGPU_TCP_ADDRESS"] = "127.0.0.1:9"
                done = subprocess.run(
                    [sys.executable, GUEST, "device"], env=environment, capture_output=True, text=True, timeout=60
                )
                self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
                self.assertIn("paragpud", done.stderr)
                self.assertIn("127.0.0.1:9" if communicator == "tcp" else "/nonexistent", done.stderr)

    def test_unknown_configuration_key_names_the_nearest(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write('comunicator = "tcp"\n')
            file.flush()
            environment = dict(self.daemon.guest_environment("shm"), PARAGPU_CONFIG=file.name)
            done = subprocess.run(
                [sys.executable, GUEST, "device"], env=environment, capture_output=True, text=True, timeout=60
            )
            self.assertEqual(done.returncode, 3)
            self.assertIn(f"{file.name}:1", done.stderr)
            self.assertIn("communicator", done.stderr)

    def test_a_pipe_that_nobody_reads_gets_no_statistics(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            environment = self.daemon.guest_environment("shm", stats=pipe)
            command = [os.path.join(harness.PROGRAMS, "vectorAdd")]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"cannot write the statistics to {pipe}", done.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "root mounts a small /dev/shm")
    def test_shared_events_without_room_for_them(self):
        script = "mount -t tmpfs -o size=4k tmpfs /dev/shm && echo x >/dev/shm/full && exec " + os.path.join(
            harness.PROGRAMS, "interprocess"
        )
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script],
            env=self.daemon.guest_environment("shm"),
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("needs a page of /dev/shm: No space left on device", done.stderr)

    def test_a_killed_worker_is_an_error(self):
        for communicator in harness.HOST_COMMUNICATORS:
            with self.subTest(communicator):
                bystander = self.guest(communicator, "steps")
                read_until(bystander, "round 2")
                victim = self.guest(communicator, "spin")
                read_until(victim, "spinning")
                session = next(s for s in self.daemon.sessions() if s["guest_pid"] == victim.pid)
                os.kill(session["worker_pid"], signal.SIGKILL)
                # The kernel never ends, so only word of the worker's end ends the wait.
                code, output, errors = finish(victim)
                self.assertEqual(code, 3, output + errors)
                self.assertRegex(output, r"CUDA error \d+ in cuCtxSynchronize")
                self.assertIn("the session with the GPU's host is over", errors)
                read_until(bystander, "round")
                read_until(bystander, "round")
                bystander.kill()

    def test_endless_kernel_can_be_ended_and_the_rest_goes_on(self):
        bystander = self.guest("shm", "steps")
        read_until(bystander, "round 1")
        endless = self.guest("unix", "spin")
        read_until(endless, "spinning")
        session = next(s for s in self.daemon.sessions() if s["guest_pid"] == endless.pid)
        command = [harness.binary("paragpu"), "end", str(session["id"]), "--control", self.daemon.control]
        subprocess.run(command, check=True, capture_output=True, timeout=harness.PATIENCE)
        code, output, _ = finish(endless)
        self.assertEqual(code, 3, output)
        read_until(bystander, "round")
        read_until(bystander, "round")
        bystander.kill()

    def test_guest_killed_in_an_endless_kernel_leaves_no_worker(self):
        guest = self.guest("shm", "spin")
        read_until(guest, "spinning")
        session = next(s for s in self.daemon.sessions() if s["guest_pid"] == guest.pid)
        guest.kill()
        eventually(lambda: not os.path.exists(f"/proc/{session['worker_pid']}"), "the worker ends with its guest")

    def test_corrupt_images_are_refused_by_name(self):
        with open(os.path.join(harness.PROGRAMS, "ptx", "vectorAdd.ptx"), "rb") as file:
            ptx = file.read()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "image")
            images = {
                "right": (ptx, {0}),
                "cut in the middle": (ptx[: len(ptx) // 2], {218}),
                "not PTX": (b"hello, world", {200, 218}),
                "a container of nothing": (bytes.fromhex("50ed55ba01001000") + bytes(8), {200, 209}),
                "a container that lies about its size": (
                    bytes.fromhex("50ed55ba01001000") + (64).to_bytes(8, "little") + os.urandom(64),
                    {200, 209},
                ),
            }
            for what, (image, codes) in images.items():
                with self.subTest(what):
                    with open(path, "wb") as file:
                        file.write(image)
                    code, output, errors = finish(self.guest("unix", "load", path))
                    self.assertEqual(code, 0, output + errors)
                    self.assertIn(int(output), codes)

    def test_machine_code_alone_has_no_binary_for_this_device(self):
        nvcc = os.path.join(harness.ROOT, ".cache", "cuda-13.0", "bin", "nvcc")
        source = os.path.join(harness.ROOT, "tests", "programs", "vectorAdd.cu")
        include = os.path.join(harness.ROOT, "tests", "programs")
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("cubin", "fatbin"):
                with self.subTest(kind):
                    image = os.path.join(folder, f"image.{kind}")
                    flags = ["-cubin", "-arch=sm_90"] if kind == "cubin" else ["-fatbin", "-gencode", "arch=compute_90,code=sm_90"]
                    subprocess.run([nvcc, *flags, f"-I{include}", "-o", image, source], check=True, capture_output=True)
                    code, output, errors = finish(self.guest("unix", "load", image))
                    self.assertEqual((code, output.strip()), (0, "209"), errors)

    def test_static_runtime_that_is_not_redirected_gets_the_sentence(self):
        path = os.path.join(harness.PROGRAMS, "vectorAdd-static")
        environment = dict(self.daemon.guest_environment("unix"), PARAGPU_REDIRECT="0")
        run = subprocess.run([path], env=environment, capture_output=True, text=True, timeout=60)
        self.assertNotEqual(run.returncode, 0)
        self.assertEqual(run.stderr.count("paragpu run"), 1, run.stderr)
        # The command needs neither environment nor configuration for it.
        del environment["LD_PRELOAD"], environment["LD_LIBRARY_PATH"]
        command = [harness.binary("paragpu"), "run", "--libraries", harness.LIBRARIES, path]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual((run.returncode, run.stderr), (0, ""), run.stdout)

    def test_the_redirector_alone_finds_the_libraries(self):
        path = os.path.join(harness.PROGRAMS, "vectorAdd-static")
        environment = self.daemon.guest_environment("unix")
        del environment["LD_LIBRARY_PATH"]
        run = subprocess.run([path], env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual((run.returncode, run.stderr), (0, ""), run.stdout)

    def test_doctor_tells_what_a_program_carries(self):
        def doctor(*paths):
            command = [harness.binary("paragpu"), "doctor", "-o", "json", *paths]
            run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
            return run.returncode, json.loads(run.stdout)["runtimes"]

        environment = self.daemon.guest_environment("unix")
        code, runtimes = doctor(os.path.join(harness.PROGRAMS, "vectorAdd-static"))
        self.assertEqual((code, len(runtimes)), (0, 1))
        self.assertIn("13.0.88", runtimes[0]["releases"])
        self.assertEqual(runtimes[0]["served_by"], "libcudart.so.13")
        code, runtimes = doctor(os.path.join(harness.ROOT, ".cache", "cuda-13.0", "lib"))
        self.assertEqual((code, [found["kind"] for found in runtimes]), (0, ["shared"]))
        self.assertEqual(doctor("/bin/sh"), (0, []))
        # A runtime of a release without a fingerprint is recognized by its texts.
        with tempfile.TemporaryDirectory() as folder:
            source, unknown = os.path.join(folder, "unknown.c"), os.path.join(folder, "libunknown.so")
            with open(source, "w") as file:
                file.write(UNKNOWN_RUNTIME)
            subprocess.run(["cc", "-shared", "-fPIC", "-o", unknown, source], check=True)
            code, runtimes = doctor(unknown)
            self.assertEqual((code, [found["served_by"] for found in runtimes]), (1, [None]))
            self.assertIn("an unknown build", runtimes[0]["detail"])
        # A disabled communicator is not served.
        environment["PARAGPU_REDIRECT"] = "0"
        self.assertEqual(doctor(os.path.join(harness.PROGRAMS, "vectorAdd-static"))[0], 1)
        self.assertEqual(doctor("/bin/sh"), (0, []))

    def test_daemon_killed_and_restarted(self):
        with harness.Daemon() as daemon:
            guest = start(daemon, "shm", "steps")
            try:
                read_until(guest, "round 3")
                daemon.process.kill()
                daemon.process.wait()
                read_until(guest, "round")
                read_until(guest, "round")
                daemon.start()
                newcomer = start(daemon, "unix", "rounds", "3")
                code, output, errors = finish(newcomer)
                self.assertEqual(code, 0, output + errors)
                read_until(guest, "round")
            finally:
                guest.kill()
                finish(guest)
            eventually(lambda: all(not self.orphan(daemon, pid) for pid in workers(daemon)), "no orphan is left")

    def test_a_daemon_that_does_not_answer_is_said(self):
        with harness.Daemon() as daemon:
            daemon.process.send_signal(signal.SIGSTOP)
            try:
                for order in (("list",), ("doctor", "--side", "host")):
                    with self.subTest(order):
                        command = [harness.binary("paragpu"), "--control", daemon.control, *order]
                        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
                        self.assertEqual(done.returncode, 1, done.stdout)
                        self.assertIn(f"paragpud ({daemon.control}) does not answer", done.stdout + done.stderr)
            finally:
                daemon.process.send_signal(signal.SIGCONT)

    def orphan(self, daemon, pid):
        """A worker whose daemon is not the present one."""
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
        return parent != daemon.process.pid

    def test_two_hundred_guests_killed_at_random_leave_nothing(self):
        random_source = random.Random(20261121)
        with harness.Daemon() as daemon:
            # A tenant's images stay: one is this user, the other the address.
            for communicator in ("unix", "tcp"):
                first = start(daemon, communicator, "rounds", "1")
                self.assertEqual(finish(first)[0], 0)
            eventually(lambda: daemon.sessions() == [], "the first sessions ended")
            before = self.settled(daemon)
            running = []
            for number in range(200):
                communicator = random_source.choice(harness.HOST_COMMUNICATORS)
                running.append(start(daemon, communicator, "steps"))
                while len(running) >= 6 or (number == 199 and running):
                    victim = running.pop(random_source.randrange(len(running)))
                    # Some are killed before they connect, some in the middle of a round.
                    if random_source.random() < 0.7:
                        victim.stdout.readline()
                    victim.kill()
                    finish(victim)
            eventually(lambda: daemon.sessions() == [], "every session ended")
            eventually(lambda: self.holdings(daemon) == before, f"as before: {before}, now {self.holdings(daemon)}")
            last = start(daemon, "shm", "rounds", "2")
            code, output, errors = finish(last)
            self.assertEqual(code, 0, output + errors)

    def settled(self, daemon):
        """Its idle resources, with all warm workers: unchanged for as long as an ended connection
        may take to be noticed."""

        def is_warm():
            (gpu,) = daemon.status()["devices"]
            return gpu["idle"] and not gpu["starting"]

        eventually(is_warm, "the next worker is warm")
        seen = [self.holdings(daemon)]

        def at_rest():
            seen.append(self.holdings(daemon))
            return len(seen) > 25 and all(held == seen[-1] for held in seen[-25:])

        eventually(at_rest, "the daemon is at rest")
        return seen[-1]

    @staticmethod
    def holdings(daemon):
        """The resources of a daemon: workers, descriptors, files."""
        files = sum(len(names) for _, _, names in os.walk(daemon.folder.name))
        descriptors = len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
        return {"workers": len(workers(daemon)), "descriptors": descriptors, "files": files}
