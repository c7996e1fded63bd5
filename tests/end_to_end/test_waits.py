"""Work that waits for what the program does next, in another thread or another stream."""

import os
import unittest

import harness

from .test_programs import compiled

USER = f"uid {os.getuid()}"

# What a program needs that holds its streams until it calls open().
HOLDING = """
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <mutex>
#define MUST(CALL) do { if (int error = (CALL)) { std::printf("%s: %d\\n", #CALL, error); std::exit(1); } } while (0)
__global__ void until(volatile unsigned *word) { while (!*word) {} }
static std::mutex mutex;
static std::condition_variable changed;
static bool opened = false;
static void wait(void *) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [] { return opened; });
}
static void open() {
    { std::lock_guard<std::mutex> lock(mutex); opened = true; }
    changed.notify_all();
}
template <typename Function> static void driver(const char *name, Function &function) {
    cudaDriverEntryPointQueryResult found;
    MUST(cudaGetDriverEntryPointByVersion(name, reinterpret_cast<void **>(&function), 12000, 0, &found));
}
"""

# Work holds a stream, with launches behind it, until the program has used another stream and a pool.
WAITS = HOLDING + """
#include <thread>
#include <vector>
__global__ void add(unsigned *word) { atomicAdd(word, 1u); }
static void wait_callback(cudaStream_t, cudaError_t, void *) { wait(nullptr); }
static unsigned *words;
static cudaStream_t held, free_stream;
static void hold(const char *how) {
    if (!std::strcmp(how, "function")) MUST(cudaLaunchHostFunc(held, wait, nullptr));
    if (!std::strcmp(how, "callback")) MUST(cudaStreamAddCallback(held, wait_callback, nullptr, 0));
    if (!std::strcmp(how, "kernel")) until<<<1, 1, 0, held>>>(words + 2);
    if (!std::strcmp(how, "copy")) {
        // Takes all of the window's slots.
        static std::vector<char> bytes(16 << 20);
        void *device;
        MUST(cudaMalloc(&device, bytes.size()));
        MUST(cudaLaunchHostFunc(held, wait, nullptr));
        MUST(cudaMemcpyAsync(device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, held));
    }
    if (!std::strcmp(how, "word")) {
        CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
        driver("cuStreamWaitValue32", wait_value);
        MUST(wait_value(held, reinterpret_cast<CUdeviceptr>(words + 2), 1, CU_STREAM_WAIT_VALUE_GEQ));
    }
    if (!std::strcmp(how, "event")) {
        cudaStream_t other;
        cudaEvent_t event;
        MUST(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        MUST(cudaEventCreate(&event));
        MUST(cudaLaunchHostFunc(other, wait, nullptr));
        MUST(cudaEventRecord(event, other));
        MUST(cudaStreamWaitEvent(held, event, 0));
    }
    if (!std::strcmp(how, "graph")) {
        cudaGraph_t graph;
        cudaGraphExec_t ready;
        cudaGraphNode_t node;
        cudaHostNodeParams function{wait, nullptr};
        MUST(cudaGraphCreate(&graph, 0));
        MUST(cudaGraphAddHostNode(&node, graph, nullptr, 0, &function));
        MUST(cudaGraphInstantiate(&ready, graph, 0));
        MUST(cudaGraphLaunch(ready, held));
    }
}
int main(int, char **arguments) {
    unsigned behind = std::atoi(arguments[2]), beside = std::atoi(arguments[3]), found[3];
    MUST(cudaMalloc(&words, sizeof found));
    MUST(cudaMemset(words, 0, sizeof found));
    for (cudaStream_t *stream : {&held, &free_stream}) MUST(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    // Natively, too, code may be loaded only behind what runs.
    add<<<1, 1>>>(words);
    until<<<1, 1>>>(words);
    MUST(cudaDeviceSynchronize());
    hold(arguments[1]);
    for (unsigned number = 0; number < behind; ++number) add<<<1, 1, 0, held>>>(words);
    MUST(cudaGetLastError());
    // More than pools keep, and than the library lets wait for work.
    std::vector<void *> blocks(6400);
    cudaMemPool_t pool;
    std::thread other([&] {
        for (unsigned number = 0; number < beside; ++number) add<<<1, 1, 0, free_stream>>>(words + 1);
        for (void *&block : blocks) MUST(cudaMallocAsync(&block, 32 << 10, free_stream));
        for (void *block : blocks) MUST(cudaFreeAsync(block, free_stream));
        MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
        MUST(cudaMemPoolTrimTo(pool, 0));
        MUST(cudaMemcpyAsync(found, words + 1, sizeof *words, cudaMemcpyDeviceToHost, free_stream));
        MUST(cudaMemsetAsync(words + 2, 1, sizeof *words, free_stream));
        MUST(cudaStreamSynchronize(free_stream));
        open();
    });
    other.join();
    MUST(cudaStreamSynchronize(held));
    MUST(cudaMemcpy(found, words, sizeof found, cudaMemcpyDeviceToHost));
    std::printf("%u %u\\n", found[0] - 1, found[1]);
}
"""


class Waits(unittest.TestCase):
    """A program continues as natively, whatever waits for its next call."""

    def continues(self, daemon, cases, communicators):
        """Runs the program with work that waits in each of these ways."""
        program = compiled(WAITS, "-cudart", "shared")
        for communicator in communicators:
            for how, behind, beside in cases:
                with self.subTest(how, communicator=communicator, behind=behind, beside=beside):
                    run = daemon.run(program, communicator, [how, str(behind), str(beside)], timeout=60)
                    self.assertEqual((run.code, run.output), (0, f"{behind} {beside}\n"), run.errors)

    def test_work_behind_a_wait_and_beside_it(self):
        kinds = ("function", "callback", "graph", "event", "word", "kernel")
        cases = [(how, *counts) for how in kinds for counts in ((300, 1), (1, 1000))]
        with harness.Daemon() as daemon:
            self.continues(daemon, cases, harness.HOST_COMMUNICATORS)

    def test_small_copies_beside_a_large_one_that_waits(self):
        with harness.Daemon() as daemon:
            self.continues(daemon, [("copy", 1, 1)], ("shm",))

    def test_in_turns_of_a_gpu_with_shares(self):
        cases = [(how, 100, 100) for how in ("function", "callback", "graph", "event", "word")]
        # A kernel may also run for long, so launches behind it are let through one by one.
        cases.append(("kernel", 3, 100))
        with harness.Daemon(f'--set=vm."{USER}".weight=30') as daemon:
            self.continues(daemon, cases, ("shm",))
