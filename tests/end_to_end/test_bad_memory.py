"""Programs that use memory in ways that no driver serves."""

import json
import os
import re
import subprocess
import sys
import unittest

import harness

from .guests import end_with, eventually, read_until, start_program
from .test_programs import compiled

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM, SHARER = os.path.join(HERE, "bad_memory_program.py"), os.path.join(HERE, "sharing_program.py")
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, INVALID_HANDLE, UNKNOWN = 0, 1, 2, 201, 400, 999

# Reserves until nothing is left, in large and in small pieces, and then works.
RESERVATIONS = """
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <vector>
int main() {
    if (cudaFree(nullptr)) return 1;
    auto get = [](const char *name) { void *found = nullptr; cudaDriverEntryPointQueryResult result; cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result); return found; };
    auto reserve = (CUresult (*)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))get("cuMemAddressReserve");
    auto unreserve = (CUresult (*)(CUdeviceptr, size_t))get("cuMemAddressFree");
    constexpr size_t GRAIN = 2 << 20;
    for (size_t size : {size_t(1) << 36, GRAIN}) {
        std::vector<CUdeviceptr> all;
        CUdeviceptr at = 0;
        CUresult result = CUDA_SUCCESS;
        while (all.size() < 1000000 && (result = reserve(&at, size, 0, 0, 0)) == CUDA_SUCCESS) all.push_back(at);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || all.size() < 8) { std::printf("%d after %zu\\n", int(result), all.size()); return 1; }
        // Allocations have the same addresses.
        void *memory = nullptr;
        if (cudaMalloc(&memory, 4 << 20) != cudaErrorMemoryAllocation) { std::puts("memory without addresses"); return 1; }
        for (CUdeviceptr one : all) if (unreserve(one, size)) { std::puts("a reservation is lost"); return 1; }
        if (cudaMalloc(&memory, 4 << 20) || cudaMemset(memory, 1, 4 << 20) || cudaDeviceSynchronize() || cudaFree(memory)) { std::puts("no memory"); return 1; }
    }
    for (size_t size : {~size_t(0) / GRAIN * GRAIN, size_t(1) << 60}) {
        CUdeviceptr at = 0;
        if (reserve(&at, size, 0, 0, 0) != CUDA_ERROR_OUT_OF_MEMORY) { std::puts("an impossible size"); return 1; }
    }
    std::puts("refused");
}
"""

# A kernel loads through a tensor map whose memory is freed.
FREED = """
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#define CHECK(call) do { cudaError_t e = (call); if (e) { std::printf("%s: %s\\n", #call, cudaGetErrorName(e)); std::exit(1); } } while (0)
__global__ void load(const __grid_constant__ CUtensorMap map, int *out) {
    __shared__ alignas(128) int box[16][16];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned to = __cvta_generic_to_shared(box), at = __cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at));
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" ::"r"(at) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {0, 0}], [%2];" ::"r"(to), "l"(&map), "r"(at) : "memory");
        asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again; }" ::"r"(at) : "memory");
        *out = box[1][2];
    }
}
int main() {
    int *memory = nullptr, *out = nullptr;
    CHECK(cudaMalloc(&memory, 16 << 20));
    CHECK(cudaMalloc(&out, 4));
    CHECK(cudaMemset(memory, 1, 16 << 20));
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result));
    auto encode = (decltype(&cuTensorMapEncodeTiled))found;
    CUtensorMap map;
    cuuint64_t extent[] = {1024, 1024}, stride[] = {4096};
    cuuint32_t box[] = {16, 16}, steps[] = {1, 1};
    if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_INT32, 2, memory, extent, stride, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)) return 1;
    load<<<1, 32>>>(map, out);
    CHECK(cudaDeviceSynchronize());
    int got = 0;
    CHECK(cudaMemcpy(&got, out, 4, cudaMemcpyDefault));
    CHECK(cudaFree(memory));
    load<<<1, 32>>>(map, out);
    std::printf("%x, then %s\\n", got, cudaGetErrorName(cudaDeviceSynchronize()));
}
"""

# Pins memory of which the process may have once as much, but not twice.
PINNED = """
#include <cuda_runtime.h>
#include <cstdio>
#include <sys/resource.h>
int main() {
    if (cudaFree(nullptr)) return 1;
    rlimit before;
    getrlimit(RLIMIT_DATA, &before);
    rlimit limited = before;
    limited.rlim_cur = 800 << 20;
    if (setrlimit(RLIMIT_DATA, &limited)) return 1;
    void *memory = nullptr;
    std::printf("%s, then ", cudaGetErrorName(cudaHostAlloc(&memory, 512 << 20, cudaHostAllocMapped)));
    setrlimit(RLIMIT_DATA, &before);
    std::puts(cudaGetErrorName(cudaHostAlloc(&memory, 512 << 20, cudaHostAllocMapped)));
}
"""


class BadMemory(unittest.TestCase):
    """Each such use fails by itself, and what comes after it works."""

    def test_reservations_without_end(self):
        program = compiled(RESERVATIONS, "-std=c++17")
        with harness.Daemon() as daemon:
            run = daemon.run(program, "shm", timeout=110)
            self.assertEqual(run.output, "refused\n", run.errors)

    def test_more_pinned_memory_than_the_process_may_have(self):
        program = compiled(PINNED, "-std=c++17")
        with harness.Daemon() as daemon:
            run = daemon.run(program, "unix", timeout=60)
            self.assertEqual(run.output, "cudaErrorMemoryAllocation, then cudaSuccess\n", run.errors)

    def test_tensor_maps_over_freed_memory(self):
        # Of so much memory the host keeps nothing that the program freed.
        program = compiled(FREED, "-std=c++17", "-arch=compute_90")
        with harness.Daemon("--set=software.memory=64MiB") as daemon:
            run = daemon.run(program, "shm", timeout=60)
            self.assertEqual(run.output, "1010101, then cudaErrorIllegalAddress\n", run.errors)
            after = daemon.run("vectorAdd", "shm")
            self.assertTrue(after.ok, after.output + after.errors)


class Opener:
    """A process that opens handles of memory."""

    def __init__(self, test, daemon, communicator):
        self.process = end_with(test, start_program(PROGRAM, daemon, communicator, "open"))

    def opens(self, handle):
        """The status."""
        self.process.stdin.write(handle.hex() + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


class OfOthers(unittest.TestCase):
    """Memory and objects that are not the caller's, or not there."""

    def said(self, daemon, communicator, *words):
        """What the program prints."""
        command = [sys.executable, PROGRAM, *words]
        done = subprocess.run(command, env=daemon.guest_environment(communicator), capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + daemon.log())
        return json.loads(done.stdout)

    def test_handles_that_are_forged_or_stale_or_of_another_vm(self):
        with harness.Daemon() as daemon:
            owner = end_with(self, start_program(SHARER, daemon, "unix", "own"))
            handle = bytes.fromhex(read_until(owner, "handle ").split()[1])
            # Over TCP its address is the VM.
            friend, stranger = Opener(self, daemon, "shm"), Opener(self, daemon, "tcp")
            self.assertEqual(friend.opens(handle), SUCCESS)
            self.assertNotEqual(stranger.opens(handle), SUCCESS)
            forged = [bytes(64), b"\xff" * 64, handle[::-1], handle[32:] + handle[:32], *(os.urandom(64) for _ in range(20))]
            # Each byte of its kind, of the secret and of the mapping's size. The rest names a part of the mapping.
            forged += [handle[:at] + bytes([handle[at] ^ 1]) + handle[at + 1 :] for at in range(32)]
            for one in forged:
                self.assertNotEqual(friend.opens(one), SUCCESS, one.hex())
            self.assertEqual(friend.opens(handle), SUCCESS)
            owner.stdin.write("free\n")
            owner.stdin.flush()
            self.assertEqual(owner.stdout.readline(), "freed\n")
            self.assertNotEqual(friend.opens(handle), SUCCESS, "of freed memory")
            again = end_with(self, start_program(SHARER, daemon, "unix", "own"))
            handle = bytes.fromhex(read_until(again, "handle ").split()[1])
            self.assertEqual(friend.opens(handle), SUCCESS)
            again.stdin.close()
            again.wait(60)
            eventually(lambda: len(daemon.sessions()) == 3, "its session ended")
            self.assertNotEqual(friend.opens(handle), SUCCESS, "of a process that ended")

    def test_every_way_to_memory_ends_at_the_limits(self):
        limits = [f"--set=limits.{name}=64MiB" for name in ("memory", "per_vm_memory", "per_vm_host_memory")]
        device = ("cuMemAlloc", "cuMemAllocManaged", "cuMemCreate", "a pool", "graphs", "arrays", "mipmapped arrays")
        # The device has a copy of it, too.
        both = ("cuMemCreate in the host", "cuMemCreate on a node")
        host = ("a pool in the host", "a pool on a node", "cuMemHostAlloc", "cuMemHostRegister")
        with harness.Daemon(*limits, "--set=shm.window=8MiB") as daemon:
            for communicator, ways in (("shm", (*device, *both, *host)), ("unix", (*both, *host))):
                for way in ways:
                    with self.subTest(way, communicator=communicator):
                        eventually(lambda: daemon.sessions() == [], "the memory of the one before is free")
                        found = self.said(daemon, communicator, "take", way, "40")
                        self.assertEqual(found["status"], OUT_OF_MEMORY, found)
                        self.assertTrue(0 < found["blocks"] * 4 <= 64 + 8 * (communicator == "shm"), found)
                        if way not in host:
                            self.assertEqual((found["blocks"], found["cuMemAlloc"]), (16, OUT_OF_MEMORY))

    def test_exports_of_what_is_not_the_process_s_own_memory(self):
        """An H100's answers (driver 580.159)."""
        with harness.Daemon() as daemon:
            for what, status in self.said(daemon, "shm", "exports").items():
                want = UNKNOWN if re.match("(memory|a pool) from", what) else INVALID_CONTEXT if what == "the own handle" else INVALID_VALUE
                self.assertEqual(status, want, what)

    def test_maps_over_each_other(self):
        """An H100 says NOT_SUPPORTED of a map of more than there is."""
        with harness.Daemon() as daemon:
            found = self.said(daemon, "shm", "maps")
            self.assertEqual(found.pop("what was copied"), "0x707070707070707")
            for what in ("a copy of the memory", "an unmap", "a release", "the end of the reservation"):
                self.assertEqual(found.pop(what), SUCCESS, what)
            self.assertGreater(len(found), 15)
            self.assertEqual(set(found.values()), {INVALID_VALUE}, found)

    def test_objects_of_another_context(self):
        """An H100's answers."""
        apart = {"a kernel in an own stream", "an own kernel in its stream", "a kernel in the legacy stream"}
        apart |= {"an event in an own stream", "an own event in its stream"}
        with harness.Daemon() as daemon:
            found = self.said(daemon, "shm", "contexts")
            self.assertEqual(found.pop("what was copied"), 0x01010101)
            self.assertEqual(found, {what: INVALID_HANDLE if what in apart else SUCCESS for what in found})
