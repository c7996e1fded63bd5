"""Sessions that share a GPU's time: by weight, up to a cap, by priority."""

import json
import os
import subprocess
import sys
import time
import unittest
import urllib.request

import harness
from hostile.blake3 import blake3
from pool.cluster import eventually
from pool.programs import BATCH, KERNEL, Program, share, turns

USER = f"uid {os.getuid()}"
# A kernel of about a millisecond on the software GPU.
ROUNDS = 20_000
# Where device memory lies, and its least piece.
ARENA, CHUNK = 0x100000000000, 2 << 20
# A kernel that stays until a word is set, and one that sets it.
MEETING = (
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry await(.param .u64 word) {\n"
    ".reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %d<2>; ld.param.u64 %d1, [word];\n"
    "AGAIN: ld.volatile.global.u32 %r1, [%d1]; setp.eq.u32 %p1, %r1, 0; @%p1 bra AGAIN; ret;\n}\n"
    ".visible .entry answer(.param .u64 word) {\n"
    ".reg .b32 %r<2>; .reg .b64 %d<2>; ld.param.u64 %d1, [word];\n"
    "mov.u32 %r1, 1; st.volatile.global.u32 [%d1], %r1; ret;\n}\n"
).encode() + b"\0"


class Shares(unittest.TestCase):
    """Each test has a separate daemon."""

    def daemon(self, *options):
        return self.enterContext(harness.Daemon("--set", "software.memory=64MiB", "--set", "pool.warm=4", *options))

    def programs(self, daemon, *rounds):
        programs = [Program(daemon, one, pid=1 + place) for place, one in enumerate(rounds)]
        for program in programs:
            self.addCleanup(program.stop)
        return programs

    def test_time_follows_weights(self):
        daemon = self.daemon()
        # Kernels of different lengths; the heavier program's are the shorter ones.
        programs = self.programs(daemon, 2 * ROUNDS, ROUNDS)
        for program, weight in zip(programs, (10, 90)):
            self.assertEqual(share(daemon, program.number, "--weight", weight)["weight"], weight)
            program.start()
        used = [0, 0]
        # By the daemon's clock, relative to both sessions' time. Other load may lengthen a turn,
        # for which the other session is compensated.
        for _ in range(100):
            programs[1].reach(programs[1].kernels + 10 * BATCH)
            used = [turns(daemon)[program.number]["seconds"] for program in programs]
            self.assertIsNone(programs[0].failure)
            if sum(used) > 3 and abs(used[0] / sum(used) - 0.1) < 0.05:
                return
        self.fail(f"the sessions with weights of 10 and 90 had {used} seconds")

    def test_a_vms_share_is_that_of_its_sessions(self):
        daemon = self.daemon("--set", f"vm.{USER}.weight=30")
        programs = self.programs(daemon, ROUNDS, ROUNDS)

        def shares():
            found = turns(daemon)
            return [found[program.number]["share"] for program in programs]

        self.assertEqual(shares(), 2 * [{"weight": 30, "cap": 100, "priority": 0}])
        command = [harness.binary("paragpu"), "--control", daemon.control, "share", "--vm", USER, "--cap", "50"]
        subprocess.run(command, check=True, capture_output=True, timeout=20)
        self.assertEqual(shares(), 2 * [{"weight": 30, "cap": 50, "priority": 0}])
        share(daemon, programs[0].number, "--weight", 7)
        self.assertEqual(shares(), [{"weight": 7, "cap": 50, "priority": 0}, {"weight": 30, "cap": 50, "priority": 0}])

    def test_a_cap_holds_on_an_idle_gpu(self):
        daemon = self.daemon()
        (program,) = self.programs(daemon, ROUNDS)
        began = time.monotonic()
        self.assertEqual(share(daemon, program.number, "--cap", 30)["cap"], 30)
        # What a session had is never more than its cap of the time that passed, and a
        # turn's length, which other load may lengthen.
        for _ in range(20):
            program.launch(200)
            used, most = turns(daemon)[program.number]["seconds"], 0.3 * (time.monotonic() - began)
            if used < most + 0.1:
                return
        self.fail(f"the session had {used} s, its cap allows {most}")

    def test_a_higher_priority_goes_first(self):
        daemon = self.daemon()
        programs = self.programs(daemon, ROUNDS, ROUNDS)
        share(daemon, programs[1].number, "--priority", 1)
        programs[0].start()
        programs[0].reach(1)
        programs[1].start()
        programs[1].reach(400)
        used = [turns(daemon)[program.number]["seconds"] for program in programs]
        before = used[1]
        while turns(daemon)[programs[1].number]["seconds"] < before + 1:
            programs[1].reach(programs[1].kernels + 10 * BATCH)
        more = [turns(daemon)[program.number]["seconds"] - then for program, then in zip(programs, used)]
        self.assertGreater(more[1] / sum(more), 0.8)

    def test_kernels_of_a_session_may_wait_for_each_other(self):
        daemon = self.daemon("--set", "software.threads=4")
        program, other = self.programs(daemon, ROUNDS, ROUNDS)
        session, module, word = program.session, 500, ARENA
        digest = blake3(MEETING)
        session.call("ImageWrite", hash=digest, size=len(MEETING), offset=0, data=MEETING)
        session.call("ModuleLoad", module=module, hash=digest, options=b"")
        for place, name in enumerate(("await", "answer"), 1):
            session.call("FunctionGet", function=module + place, module=module, name=name)
        for stream in (1000, 1001):
            session.call("StreamCreate", stream=stream, flags=1, priority=0)
        session.call("MemMap", address=word, size=CHUNK)
        share(daemon, program.number, "--weight", 50)

        def launch(stream, function, parameters):
            shape = dict(grid=(1, 1, 1), block=(1, 1, 1), dynamic_shared=0, cluster=(0, 0, 0))
            session.post(
                "Launch", function=function, stream=stream, flags=0, preferences=b"", parameters=parameters, **shape
            )

        # Alone, and while another session works: then its turn ends before the kernel does.
        for launched in (0, 4):
            if launched:
                other.start()
                other.reach(1)
            fill = dict(destination=word, pitch=0, value=0, element=4, width=1, height=1, stream=1000)
            session.post("Memset", **fill)
            session.call("StreamSynchronize", stream=1000)
            launch(1000, module + 1, word.to_bytes(8, "little"))
            for _ in range(4):
                launch(1001, KERNEL + 1, ROUNDS.to_bytes(4, "little"))
            session.call("StreamSynchronize", stream=1001)
            if launched:
                time.sleep(1.5)
            launch(1001, module + 2, word.to_bytes(8, "little"))
            session.call("ContextSynchronize")
        self.assertIsNone(other.failure)

    def test_top_and_metrics_show_shares_and_what_is_used(self):
        daemon = self.daemon("--set", "metrics.listen=127.0.0.1:0", "--set", "software.threads=1")
        busy, idle = self.programs(daemon, ROUNDS, ROUNDS)
        for program, options in ((busy, ("--weight", 7, "--cap", 60)), (idle, ("--priority", 2))):
            share(daemon, program.number, *options)
        busy.start()

        def told():
            with urllib.request.urlopen(f"http://{daemon.addresses['metrics']}/metrics", timeout=20) as answer:
                lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
            return {name: float(value) for name, value in lines}

        def one(metrics, name, label=""):
            (value,) = (value for of, value in metrics.items() if of.startswith(name + "{") and label in of)
            return value

        told()
        eventually(lambda: one(told(), "DCGM_FI_DEV_GPU_UTIL") > 0, "the busy program's use is told")
        metrics = told()
        self.assertEqual(one(metrics, "paragpu_turn_weight", f'session="{busy.number}"'), 7)
        self.assertEqual(one(metrics, "paragpu_turn_cap_percent", f'session="{busy.number}"'), 60)
        self.assertEqual(one(metrics, "paragpu_turn_weight", f'session="{idle.number}"'), 100)
        self.assertLessEqual(one(metrics, "DCGM_FI_DEV_GPU_UTIL"), 100)
        self.assertEqual(one(metrics, "DCGM_FI_DEV_GPU_UTIL"), min(100, one(metrics, "paragpu_gpu_percent")))
        command = [harness.binary("paragpu"), "--control", daemon.control, "top", "--once", "--interval", "0.3", "-o", "json"]
        view = json.loads(subprocess.check_output(command, timeout=20))
        shares = {session["session"]: session["share"] for session in view["sessions"]}
        self.assertEqual(shares[busy.number], {"weight": 7, "cap": 60, "priority": 0})
        self.assertEqual(shares[idle.number], {"weight": 100, "cap": 100, "priority": 2})

    def test_nvml_in_a_guest_shows_what_its_processes_get(self):
        daemon = self.daemon("--set", "software.threads=1")
        programs = self.programs(daemon, ROUNDS, ROUNDS)
        for program, weight in zip(programs, (10, 90)):
            share(daemon, program.number, "--weight", weight)
            program.start()
        for program in programs:
            program.reach(BATCH)
        reader = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_program.py")
        environment = daemon.guest_environment("unix")
        told = json.loads(subprocess.check_output([sys.executable, reader, "over", "1"], env=environment, timeout=60))
        percent = dict(told["processes"])
        # Relative to each other, so other load does not matter.
        self.assertGreater(percent[2], 2 * percent[1])

    def test_without_shares_nobody_takes_turns(self):
        daemon = self.daemon()
        (program,) = self.programs(daemon, ROUNDS)
        program.launch(4)
        self.assertEqual(turns(daemon), {program.number: None})
        share(daemon, program.number, "--weight", 7)
        program.launch(4)
        told = turns(daemon)[program.number]
        self.assertEqual(told["share"], {"weight": 7, "cap": 100, "priority": 0})
        self.assertGreater(told["seconds"], 0)

    def test_shares_that_cannot_be_are_refused(self):
        daemon = self.daemon()
        (program,) = self.programs(daemon, ROUNDS)
        for number, options in ((program.number, ("--weight", 0)), (program.number, ("--cap", 101)), (99, ("--weight", 1))):
            with self.assertRaises(subprocess.CalledProcessError):
                share(daemon, number, *options)
        self.assertEqual(turns(daemon), {program.number: None})

    def test_a_session_with_a_share_moves(self):
        here, there = self.daemon(), self.daemon()
        (program,) = self.programs(here, ROUNDS)
        share(here, program.number, "--weight", 7)
        program.launch(4)
        here.migrate(program.number, f"unix://{there.socket}")
        program.launch(4)
        self.assertEqual(here.sessions(), [])

    def test_sessions_go_on_without_the_daemon(self):
        daemon = self.daemon()
        programs = self.programs(daemon, ROUNDS, ROUNDS)
        for program in programs:
            share(daemon, program.number, "--weight", 50)
            program.start()
        daemon.process.kill()
        daemon.process.wait(20)
        for program in programs:
            program.reach(program.kernels + 1)
        daemon.start()
