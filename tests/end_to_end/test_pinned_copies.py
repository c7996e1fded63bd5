"""Copies from and to pinned memory: they return at once, and are done in their stream's order."""

import subprocess
import unittest

import harness

from .guests import end_with
from .test_moves import TwoHosts, far, move
from .test_programs import compiled
from .test_waits import HOLDING

COMMON = HOLDING + """
#include <functional>
constexpr size_t count = 3000, pitch = 100, bytes = count * sizeof(unsigned);
__global__ void fill(unsigned *words, unsigned value) { for (size_t at = threadIdx.x; at < count; at += 32) words[at] = value; }
// Closes behind each stream that it held.
static void gate(void *) {
    wait(nullptr);
    std::lock_guard<std::mutex> lock(mutex);
    opened = false;
}
static cudaStream_t stream() {
    cudaStream_t made;
    MUST(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    return made;
}
static unsigned *pinned() {
    void *made;
    MUST(cudaHostAlloc(&made, bytes, 0));
    return static_cast<unsigned *>(made);
}
static unsigned *device() {
    void *made;
    MUST(cudaMalloc(&made, bytes));
    return static_cast<unsigned *>(made);
}
static void set(unsigned *words, unsigned value) { for (size_t at = 0; at < count; ++at) words[at] = value; }
static void copy(unsigned *to, const unsigned *from, cudaStream_t in, bool rows) {
    if (rows) MUST(cudaMemcpy2DAsync(to, pitch, from, pitch, pitch, bytes / pitch, cudaMemcpyDefault, in));
    else MUST(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, in));
}
"""

# Another stream is held until the program has made a copy.
BESIDE = COMMON + """
int main(int, char **arguments) {
    const char *how = arguments[1];
    cudaStream_t held = stream(), own = stream(), releasing = stream();
    unsigned *known = pinned(), *other = pinned(), *memory = device(), *word = device(), one = 1;
    set(known, 0);
    // Kernels know it, and may write there for as long as any runs.
    fill<<<1, 32, 0, own>>>(known, 7);
    MUST(cudaMemset(word, 0, bytes));
    until<<<1, 1>>>(known);
    MUST(cudaDeviceSynchronize());
    if (!std::strcmp(how, "function")) MUST(cudaLaunchHostFunc(held, gate, nullptr));
    if (!std::strcmp(how, "kernel")) until<<<1, 1, 0, held>>>(word);
    if (!std::strcmp(how, "word")) {
        CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
        driver("cuStreamWaitValue32", wait_value);
        MUST(wait_value(held, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
    }
    fill<<<1, 32, 0, held>>>(known, 8);
    fill<<<1, 32, 0, own>>>(other, 9);
    for (bool rows : {false, true}) {
        copy(memory, other, own, rows);
        copy(other, memory, own, rows);
        copy(memory, other, own, rows);
        MUST(cudaStreamSynchronize(own));
        std::printf("%u ", other[count - 1]);
        set(other, 10 + rows);
        // The legacy default stream waits for no stream of this program.
        if (rows) MUST(cudaMemcpy2D(memory, pitch, other, pitch, pitch, bytes / pitch, cudaMemcpyDefault));
        else MUST(cudaMemcpy(memory, other, bytes, cudaMemcpyDefault));
        set(other, 0);
        if (rows) MUST(cudaMemcpy2D(other, pitch, memory, pitch, pitch, bytes / pitch, cudaMemcpyDefault));
        else MUST(cudaMemcpy(other, memory, bytes, cudaMemcpyDefault));
        std::printf("%u ", other[count - 1]);
        copy(memory, known, own, rows);
        std::printf("copied ");
    }
    if (!std::strcmp(how, "function")) open();
    else MUST(cudaMemcpyAsync(word, &one, sizeof one, cudaMemcpyHostToDevice, releasing));
    MUST(cudaDeviceSynchronize());
    std::printf("%u\\n", known[count - 1]);
}
"""

# What writes a copy's source before the copy runs, while the stream is held until all is posted.
ORDER = COMMON + """
static unsigned *source, *middle, *target, *ahead;
static unsigned value = 100;
static void write(void *) { set(source, ++value); }
static cudaEvent_t event;
// Posts work to `first`, and a copy to `second`, and opens the gate. The copy finds `want`.
static void expect(const char *name, cudaStream_t first, cudaStream_t second, bool rows, unsigned want, std::function<void()> work,
                   std::function<void()> last = [] {}) {
    MUST(cudaLaunchHostFunc(first, gate, nullptr));
    work();
    copy(target, source, second, rows);
    last();
    open();
    unsigned found[2] = {};
    MUST(cudaMemcpyAsync(found, target, sizeof *found, cudaMemcpyDeviceToHost, second));
    MUST(cudaMemcpyAsync(found + 1, target + count - 1, sizeof *found, cudaMemcpyDeviceToHost, second));
    MUST(cudaDeviceSynchronize());
    if (found[0] != want || found[1] != want) std::printf("%s %d: %u %u, not %u\\n", name, rows, found[0], found[1], want);
}
int main(int, char **arguments) {
    cudaStream_t own = stream(), other = stream(), blocking, legacy = cudaStreamLegacy, thread = cudaStreamPerThread;
    MUST(cudaStreamCreate(&blocking));
    MUST(cudaEventCreate(&event));
    ahead = device();
    fill<<<1, 32>>>(ahead, 1);
    MUST(cudaDeviceSynchronize());
    for (unsigned round = 0; round < std::strtoul(arguments[1], nullptr, 10); ++round) {
        bool rows = round % 2, begins_known = round % 3 == 0;
        source = pinned(), middle = pinned(), target = device();
        if (begins_known) {
            fill<<<1, 32>>>(source, 5);
            MUST(cudaDeviceSynchronize());
        }
        auto function = [&](cudaStream_t in) { return [in] { MUST(cudaLaunchHostFunc(in, write, nullptr)); }; };
        expect("a function", own, own, rows, value + 1, function(own));
        expect("the legacy stream", blocking, legacy, rows, value + 1, function(blocking));
        expect("a blocking stream", legacy, blocking, rows, value + 1, function(legacy));
        expect("the thread's stream", legacy, thread, rows, value + 1, function(legacy));
        expect("before the legacy stream", thread, legacy, rows, value + 1, function(thread));
        expect("an event", other, own, rows, value + 1, [&] {
            function(other)();
            MUST(cudaEventRecord(event, other));
            MUST(cudaStreamWaitEvent(own, event, 0));
        });
        expect("functions", own, own, rows, value + 3, [&] { for (int at = 0; at < 3; ++at) function(own)(); });
        // The copy runs after the gate, which opens after these writes.
        expect("the program", own, own, rows, 40 + round, [] {}, [&] { set(source, 40 + round); });
        expect("a copy", own, own, rows, 60 + round, [&] {
            fill<<<1, 32, 0, own>>>(ahead, 60 + round);
            copy(source, ahead, own, rows);
        });
        expect("between pinned memory", own, own, rows, value + 1, [&] {
            function(own)();
            MUST(cudaMemcpyAsync(middle, source, bytes, cudaMemcpyDefault, own));
            fill<<<1, 32, 0, own>>>(ahead, 3);
            copy(source, ahead, own, rows);
            MUST(cudaMemcpyAsync(source, middle, bytes, cudaMemcpyDefault, own));
        });
        cudaGraph_t graph;
        cudaGraphExec_t ready;
        cudaGraphNode_t node;
        cudaHostNodeParams parameters{write, nullptr};
        MUST(cudaGraphCreate(&graph, 0));
        MUST(cudaGraphAddHostNode(&node, graph, nullptr, 0, &parameters));
        MUST(cudaGraphInstantiate(&ready, graph, 0));
        expect("a graph", own, own, rows, value + 1, [&] { MUST(cudaGraphLaunch(ready, own)); });
        expect("a kernel", own, own, rows, 80 + round, [&] { fill<<<1, 32, 0, own>>>(source, 80 + round); });
        expect("a kernel and an event", other, own, rows, 90 + round, [&] {
            fill<<<1, 32, 0, other>>>(source, 90 + round);
            MUST(cudaEventRecord(event, other));
            MUST(cudaStreamWaitEvent(own, event, 0));
        });
        // A copy that is waited for writes over what the kernel wrote before.
        fill<<<1, 32>>>(source, 11);
        fill<<<1, 32>>>(ahead, 12);
        if (rows) MUST(cudaMemcpy2D(source, pitch, ahead, pitch, pitch, bytes / pitch, cudaMemcpyDefault));
        else MUST(cudaMemcpy(source, ahead, bytes, cudaMemcpyDefault));
        MUST(cudaDeviceSynchronize());
        if (source[0] != 12 || source[count - 1] != 12) std::printf("over a kernel's %d: %u\\n", rows, source[0]);
        MUST(cudaGraphExecDestroy(ready));
        MUST(cudaGraphDestroy(graph));
        MUST(cudaFreeHost(source));
        MUST(cudaFreeHost(middle));
        MUST(cudaFree(target));
        std::puts("round");
        std::fflush(stdout);
    }
}
"""


class PinnedCopies(unittest.TestCase):
    """A program continues as natively, and finds the same bytes."""

    def test_they_do_not_wait_for_other_streams(self):
        program = compiled(BESIDE, "-std=c++17", "-cudart", "shared")
        with harness.Daemon() as daemon:
            for communicator in harness.HOST_COMMUNICATORS:
                for how in ("function", "kernel", "word"):
                    with self.subTest(how, communicator=communicator):
                        run = daemon.run(program, communicator, [how], timeout=60)
                        self.assertEqual((run.code, run.output), (0, "9 10 copied 10 11 copied 8\n"), run.errors)

    def test_they_find_what_was_written_before_in_their_streams_order(self):
        program = compiled(ORDER, "-std=c++17", "-cudart", "shared")
        with harness.Daemon() as daemon:
            for communicator in harness.HOST_COMMUNICATORS:
                with self.subTest(communicator=communicator):
                    run = daemon.run(program, communicator, ["12"], timeout=120)
                    self.assertEqual((run.code, run.output), (0, "round\n" * 12), run.errors)


class MovedPinnedCopies(TwoHosts):
    """Its session moves meanwhile."""

    def test_they_find_the_same_while_the_session_moves(self):
        program = compiled(ORDER, "-std=c++17", "-cudart", "shared")
        guest = subprocess.Popen(
            [program, "1000000"],
            env=self.one.guest_environment("unix"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        end_with(self, guest)
        here, there = self.one, self.two
        for communicator in ("tcp", "shm", "tcp", "tcp"):
            code, _, errors = move(here, far(there), "--communicator", communicator)
            self.assertEqual(code, 0, errors + here.log() + there.log())
            here, there = there, here
            for _ in range(4):
                self.assertEqual(guest.stdout.readline(), "round\n")
