"""Programs at the limit of their memory move, there and back at once."""

import os
import subprocess
import unittest
from unittest import mock

import harness

from .guests import end_with, eventually
from .test_moves import migrate
from .test_programs import compiled

# It has at most so many units, and allocates and frees all the time. An allocation succeeds if
# it fits, and fails if it does not.
LIMITED = """
#include <cstdio>
#include <cstdlib>
#include <poll.h>
#include <random>
#include <vector>
constexpr size_t UNIT = 2 << 20, STEP = 1 << 14;
struct Block { unsigned *memory; size_t units; unsigned value; };
__global__ void fill(unsigned *memory, unsigned value) { memory[blockIdx.x * STEP] = value + blockIdx.x; }
__global__ void differs(unsigned *memory, unsigned value, int *found) { if (memory[blockIdx.x * STEP] != value + blockIdx.x) *found = 1; }
int main(int, char **argv) {
    std::mt19937 random(7);
    size_t most = std::atoi(argv[1]), used = 0;
    bool has_told = false;
    int *found;
    if (cudaMallocHost(&found, 4)) return 1;
    std::vector<Block> blocks;
    for (pollfd input = {0, POLLIN, 0}; poll(&input, 1, 0) == 0;) {
        Block block = {nullptr, 1 + random() % 5, (unsigned)random()};
        cudaError_t error = cudaMalloc(&block.memory, block.units * UNIT);
        bool fits = used + block.units <= most;
        if (error != (fits ? cudaSuccess : cudaErrorMemoryAllocation)) {
            std::printf("%zu of %zu units, %zu more: %s\\n", used, most, block.units, cudaGetErrorName(error));
            return 1;
        }
        cudaGetLastError();
        if (fits) {
            used += block.units;
            fill<<<block.units * UNIT / 4 / STEP, 1>>>(block.memory, block.value);
            blocks.push_back(block);
        }
        for (size_t gone = fits ? random() % 2 : 1 + random() % 3; gone && !blocks.empty(); --gone) {
            std::swap(blocks[random() % blocks.size()], blocks.back());
            block = blocks.back();
            blocks.pop_back();
            *found = 0;
            differs<<<block.units * UNIT / 4 / STEP, 1>>>(block.memory, block.value, found);
            if (cudaDeviceSynchronize() || *found || cudaFree(block.memory)) { std::puts("wrong contents"); return 1; }
            used -= block.units;
        }
        if (!has_told) std::fputs("begun\\n", stderr);
        has_told = true;
    }
    std::puts("exact");
}
"""

# It has so many units and sets them to one more, again and again.
HELD = """
#include <cstdio>
#include <cstdlib>
#include <poll.h>
constexpr size_t UNIT = 2 << 20;
__global__ void count(unsigned *memory) { memory[blockIdx.x * (UNIT / 4)] += 1; }
int main(int, char **argv) {
    unsigned units = std::atoi(argv[1]), turns = 0, *memory;
    if (cudaMalloc(&memory, units * UNIT) || cudaMemset(memory, 0, units * UNIT)) return 1;
    for (pollfd input = {0, POLLIN, 0}; poll(&input, 1, 1) == 0; ++turns) {
        count<<<units, 1>>>(memory);
        if (cudaDeviceSynchronize()) return 1;
        if (!turns) std::fputs("begun\\n", stderr);
    }
    for (unsigned unit = 0; unit < units; ++unit) {
        unsigned got;
        if (cudaMemcpy(&got, memory + unit * (UNIT / 4), 4, cudaMemcpyDefault) || got != turns) { std::printf("%u, not %u\\n", got, turns); return 1; }
    }
    std::puts("equal");
}
"""


class LimitMoves(unittest.TestCase):
    """Memory counts once while it moves, and the program notices nothing."""

    def start(self, here, text, units):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [compiled(text), str(units)]
        program = end_with(self, subprocess.Popen(command, env=here.guest_environment("shm"), text=True, **pipes))
        self.assertEqual(program.stderr.readline(), "begun\n")
        return program

    def ends(self, program, last, *daemons):
        program.stdin.close()
        self.assertEqual(program.stdout.read(), last, "\n".join(daemon.log() for daemon in daemons))

    def test_a_program_gets_what_it_has_freed(self):
        for shareable in ("true", "false"):
            with (
                self.subTest(shareable=shareable),
                mock.patch.dict(os.environ, PARAGPU_HOST_SOFTWARE_SHAREABLE=shareable),
                harness.Daemon("--set=limits.per_vm_memory=32MiB") as here,
                harness.Daemon("--set=limits.per_vm_memory=32MiB") as there,
            ):
                program = self.start(here, LIMITED, 16)
                for source, target in [(here, there), (there, here)] * 10:
                    # It has arrived when the program goes on.
                    eventually(source.sessions, "the session")
                    session = str(source.sessions()[0]["id"])
                    code, report, errors = migrate(source, "--session", session, "--to", f"unix://{target.socket}")
                    self.assertEqual(code, 0, f"{report} {errors}\n{source.log()}\n{target.log()}")
                self.ends(program, "exact\n", here, there)

    def test_a_vm_has_no_more_than_its_limit_while_a_session_moves(self):
        with harness.Daemon("--set=software.devices=2", "--set=limits.per_vm_memory=64MiB") as daemon:
            other = self.start(daemon, HELD, 16)
            held = daemon.sessions()[0]["id"]
            program = self.start(daemon, LIMITED, 16)
            for gpu in (1, 0) * 10:
                moving = [str(session["id"]) for session in daemon.sessions() if session["id"] != held]
                if not moving:
                    break  # The program has ended, and says why.
                code, report, errors = migrate(daemon, "--session", *moving, "--to-gpu", str(gpu))
                self.assertEqual(code, 0, f"{report} {errors}\n{daemon.log()}")
            self.ends(program, "exact\n", daemon)
            self.ends(other, "equal\n", daemon)

    def test_a_gpu_has_room_again_when_a_session_has_left_it(self):
        with harness.Daemon("--set=software.devices=2", "--set=software.memory=64MiB") as daemon:
            program = self.start(daemon, HELD, 24)
            for gpu in (1, 0) * 5:
                (session,) = daemon.sessions()
                code, report, errors = migrate(daemon, "--session", str(session["id"]), "--to-gpu", str(gpu))
                self.assertEqual(code, 0, f"{report} {errors}\n{daemon.log()}")
            self.ends(program, "equal\n", daemon)

    def test_a_move_that_does_not_fit_says_so_before_the_stop(self):
        options = ("--set=limits.per_vm_memory=40MiB",)
        with harness.Daemon() as here, harness.Daemon(*options) as there:
            programs = [self.start(here, HELD, 12) for _ in range(2)]
            vm = here.sessions()[0]["vm"]
            code, report, errors = migrate(here, "--vm", vm, "--to", f"unix://{there.socket}")
            self.assertEqual(code, 1, f"{report} {errors}")
            reasons = [session["error"] for session in report]
            limit = f"limited to {40 << 20} bytes of device memory"
            self.assertTrue(any(limit in reason for reason in reasons), reasons)
            self.assertTrue(any("limits.per_vm_memory" in reason for reason in reasons), reasons)
            self.assertEqual([session["blackout_ms"] for session in report], [0, 0])
            for program in programs:
                self.ends(program, "equal\n", here, there)
