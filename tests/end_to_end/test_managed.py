"""Managed memory that migrates between program and GPU."""

import itertools
import os
import subprocess
import unittest

import harness

from .guests import end_with, eventually
from .test_migration import moved
from .test_moves import migrate
from .test_programs import compiled

# Accesses by the program and kernels of all GPUs in random order until the end of input,
# compared with a copy that the program keeps.
RANDOM = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <random>
#include <vector>
#define CHECK(call) do { cudaError_t e = (call); if (e) { std::printf("%s: %s\\n", #call, cudaGetErrorName(e)); std::exit(1); } } while (0)
__global__ void add(unsigned *values, size_t count, unsigned summand) {
    size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (at < count) values[at] += summand;
}
struct Range {
    unsigned *values;
    std::vector<unsigned> want;
    // Launches a kernel that adds to some values.
    void add_to(size_t from, size_t length, unsigned summand, cudaStream_t stream) {
        if (length == 0) return;
        add<<<unsigned((length + 127) / 128), 128, 0, stream>>>(values + from, length, summand);
        CHECK(cudaGetLastError());
        for (size_t at = from; at < from + length; ++at) want[at] += summand;
    }
};
// Whether the program's input is over.
static bool is_over() {
    pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, 0) != 0;
}
int main(int argc, char **argv) {
    std::mt19937 random(std::atoi(argv[1]));
    auto below = [&](size_t limit) { return size_t(random() % limit); };
    std::vector<Range> ranges;
    std::vector<unsigned> buffer;
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices));
    devices = argc > 2 ? std::atoi(argv[2]) : devices;
    bool has_told = false;
    // A GPU is first used in the midst of all this.
    std::vector<std::vector<cudaStream_t>> all(devices);
    auto streams_of = [&](int device) -> std::vector<cudaStream_t> & {
        CHECK(cudaSetDevice(device));
        std::vector<cudaStream_t> &streams = all[device];
        if (streams.empty()) {
            streams.resize(3);
            for (int at = 1; at < 3; ++at) CHECK(cudaStreamCreateWithFlags(&streams[at], at == 1 ? cudaStreamNonBlocking : 0));
        }
        return streams;
    };
    for (int step = 0; step < 400 || !is_over(); ++step) {
        int device = step < 20 ? 0 : int(below(devices)), other = step < 20 ? 0 : int(below(devices));
        cudaStream_t others = streams_of(other)[below(3)];
        std::vector<cudaStream_t> &streams = streams_of(device);
        if (ranges.size() < 4) {
            // From a few pages to some MiB.
            size_t count = below(4) ? 16385 + below(size_t(20000) << below(7)) : 1 + below(200);
            Range range = {nullptr, std::vector<unsigned>(count)};
            CHECK(cudaMallocManaged(&range.values, count * 4));
            ranges.push_back(range);
        }
        size_t which = below(ranges.size());
        Range &range = ranges[which];
        size_t count = range.want.size(), from = below(count), length = 1 + below(count - from);
        cudaStream_t stream = streams[below(3)];
        switch (below(11)) {
        case 0: case 1:
            range.add_to(from, length, random(), stream);
            break;
        case 9: {
            // In the order of an event.
            cudaEvent_t event;
            CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
            range.add_to(from, length, random(), stream);
            CHECK(cudaEventRecord(event, stream));
            CHECK(cudaSetDevice(other));
            CHECK(cudaStreamWaitEvent(others, event, 0));
            range.add_to(from / 2, length, random(), others);
            CHECK(cudaStreamSynchronize(others));
            CHECK(cudaEventDestroy(event));
            CHECK(cudaSetDevice(device));
            break;
        }
        case 10:
            // At the same time, but not the same values.
            range.add_to(0, from, random(), stream);
            CHECK(cudaSetDevice(other));
            range.add_to(from, length, random(), others);
            CHECK(cudaStreamSynchronize(others));
            CHECK(cudaSetDevice(device));
            break;
        case 2:
            for (size_t touch = 0; touch < 50; ++touch) {
                size_t at = below(count);
                range.values[at] = range.want[at] = random();
            }
            continue;
        case 3:
            if (std::memcmp(range.values + from, range.want.data() + from, length * 4)) { std::printf("differs in step %d\\n", step); return 1; }
            continue;
        case 4:
            // In the stream that is waited for: it returns before the memory is set.
            CHECK(cudaMemsetAsync(range.values + from, 0x5a, length * 4, stream));
            std::memset(range.want.data() + from, 0x5a, length * 4);
            break;
        case 5:
            CHECK(cudaMemcpyAsync(range.values + from, buffer.data(), std::min(length, buffer.size()) * 4, cudaMemcpyDefault, stream));
            std::memcpy(range.want.data() + from, buffer.data(), std::min(length, buffer.size()) * 4);
            break;
        case 6:
            buffer.resize(length);
            CHECK(cudaMemcpyAsync(buffer.data(), range.values + from, length * 4, cudaMemcpyDefault, stream));
            CHECK(cudaStreamSynchronize(stream));
            if (std::memcmp(buffer.data(), range.want.data() + from, length * 4)) { std::printf("a copy differs in step %d\\n", step); return 1; }
            break;
        case 7:
            CHECK(cudaMemPrefetchAsync(range.values + from, length * 4, cudaMemLocation{below(2) ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost, other}, 0, stream));
            break;
        case 8:
            if (below(4) == 0) {
                CHECK(cudaFree(range.values));
                ranges.erase(ranges.begin() + which);
            }
            break;
        }
        CHECK(below(2) ? cudaDeviceSynchronize() : cudaStreamSynchronize(stream));
        bool has_used_all = true;
        for (auto &used : all) has_used_all = has_used_all && !used.empty();
        if (has_used_all && !has_told) std::fputs("uses all\\n", stderr);
        has_told = has_told || has_used_all;
    }
    for (Range &range : ranges)
        if (std::memcmp(range.values, range.want.data(), range.want.size() * 4)) { std::puts("differs in the end"); return 1; }
    std::puts("equal");
}
"""

# Kernels of two GPUs and the program use the same variables by name.
VARIABLES = """
#include <cstdio>
#include <cstdlib>
#include <vector>
#define CHECK(call) do { cudaError_t e = (call); if (e) { std::printf("%s: %s\\n", #call, cudaGetErrorName(e)); std::exit(1); } } while (0)
constexpr int VALUES = 70001;
__managed__ int counter = 5;
__managed__ float values[VALUES] = {1, 2};
__managed__ int *shared;
__global__ void work(int by, int from, int to) {
    int at = from + blockIdx.x * blockDim.x + threadIdx.x;
    if (at < to) values[at] += by;
    if (at == from) { counter += by; shared[by] += counter; }
}
__global__ void set(float *at) { *at = 9; }
static float want[VALUES] = {1, 2};
static int count = 5, seen[10];
static void launch(int device, int by, int from, int to, cudaStream_t stream) {
    CHECK(cudaSetDevice(device));
    work<<<(to - from + 255) / 256, 256, 0, stream>>>(by, from, to);
    CHECK(cudaGetLastError());
    for (int at = from; at < to; ++at) want[at] += by;
    count += by;
    seen[by] += count;
}
static void check(const char *what) {
    for (int at = 0; at < VALUES; ++at) if (values[at] != want[at]) { std::printf("%s: value %d is %f\\n", what, at, values[at]); std::exit(1); }
    for (int at = 0; at < 10; ++at) if (shared[at] != seen[at]) { std::printf("%s: shared %d is %d\\n", what, at, shared[at]); std::exit(1); }
    if (counter != count) { std::printf("%s: the counter is %d, not %d\\n", what, counter, count); std::exit(1); }
}
int main() {
    CHECK(cudaMallocManaged(&shared, 40));
    cudaStream_t streams[2];
    cudaEvent_t events[2];
    for (int device = 0; device < 2; ++device) {
        CHECK(cudaSetDevice(device));
        CHECK(cudaStreamCreate(&streams[device]));
        CHECK(cudaEventCreateWithFlags(&events[device], cudaEventDisableTiming));
    }
    for (int turn = 0; turn < 6; ++turn) {
        int device = turn % 2;
        launch(device, turn + 1, turn, VALUES - turn, streams[device]);
        CHECK(cudaStreamSynchronize(streams[device]));
        check("after a wait");
        values[turn * 100] = want[turn * 100] = 0.5f;
        counter = count = turn;
    }
    // In the order of events.
    for (int turn = 0; turn < 6; ++turn) {
        int device = turn % 2;
        launch(device, 7, 0, VALUES, streams[device]);
        CHECK(cudaEventRecord(events[device], streams[device]));
        CHECK(cudaSetDevice(!device));
        CHECK(cudaStreamWaitEvent(streams[!device], events[device], 0));
    }
    CHECK(cudaStreamSynchronize(streams[0]));
    check("after events");
    // Each GPU may have the variable at another address.
    CHECK(cudaSetDevice(1));
    set<<<1, 1>>>(&values[3]);
    if (cudaError_t status = cudaGetLastError(); status != cudaErrorNotSupported) {
        CHECK(status);
        CHECK(cudaDeviceSynchronize());
        want[3] = 9;
        check("after an address that is the same");
        values[3] = 1;
    }
    CHECK(cudaSetDevice(0));
    set<<<1, 1>>>(&values[3]);
    CHECK(cudaDeviceSynchronize());
    want[3] = 9;
    check("after an address");
    // Symbols of either GPU.
    for (int device = 0; device < 2; ++device) {
        int got = 0, put = 30 + device;
        void *address = nullptr;
        CHECK(cudaSetDevice(device));
        CHECK(cudaGetSymbolAddress(&address, values));
        CHECK(cudaMemcpyFromSymbol(&got, counter, sizeof got));
        if (got != count || address != values) { std::printf("the symbol of GPU %d is %d at %p\\n", device, got, address); return 1; }
        CHECK(cudaMemcpyToSymbol(counter, &put, sizeof put));
        CHECK(cudaDeviceSynchronize());
        count = put;
        check("after a copy");
        launch(!device, 2, 5, 6, streams[!device]);
        CHECK(cudaDeviceSynchronize());
        check("on the other GPU");
    }
    std::puts("equal");
}
"""

# A kernel and the program answer each other through memory of several pages.
TALK = """
#include <cstdio>
#include <ctime>
#include <sched.h>
__global__ void talk(volatile unsigned *words, size_t flag, size_t answer) {
    for (unsigned turn = 1; turn <= 5; ++turn) {
        while (words[flag] != turn) { }
        words[answer] = turn * 3;
        __threadfence_system();
    }
}
int main() {
    volatile unsigned *words;
    if (cudaMallocManaged((void **)&words, 4 << 20)) return 1;
    for (size_t answer : {size_t(6), size_t(700000)}) {
        words[5] = words[answer] = 0;
        talk<<<1, 1>>>(words, 5, answer);
        time_t begin = time(nullptr);
        for (unsigned turn = 1; turn <= 5; ++turn) {
            words[5] = turn;
            while (words[answer] != turn * 3) {
                if (time(nullptr) > begin + 60) { std::printf("no answer to %u\\n", turn); return 1; }
                sched_yield();
            }
        }
        if (cudaDeviceSynchronize()) return 1;
    }
    std::puts("answered");
}
"""

# A forked child, and memory that was freed: neither may see old contents.
GONE = """
#include <csignal>
#include <cstdio>
#include <sys/wait.h>
#include <unistd.h>
static int ends(volatile unsigned *word) {
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*word == 7);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}
int main() {
    unsigned *words;
    if (cudaMallocManaged(&words, 1 << 20)) return 1;
    words[0] = 7;
    std::printf("child %d, ", ends(words));
    std::printf("parent %u, ", words[0]);
    cudaFree(words);
    std::printf("freed %d\\n", ends(words));
}
"""

LIMIT = """
#include <cstdio>
int main() {
    char *first = nullptr, *second = nullptr;
    cudaError_t one = cudaMallocManaged(&first, 40 << 20), other = cudaMallocManaged(&second, 40 << 20);
    first[1 << 20] = 1;
    std::printf("%s %s\\n", cudaGetErrorName(one), cudaGetErrorName(other));
    cudaFree(first);
    std::puts(cudaGetErrorName(cudaMallocManaged(&second, 40 << 20)));
}
"""

# Prefetches and the preferred location decide which GPU has the memory.
PLACES = """
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <sched.h>
#define CHECK(call) do { cudaError_t e = (call); if (e) { std::printf("%s: %s\\n", #call, cudaGetErrorName(e)); std::exit(1); } } while (0)
constexpr size_t MIB = 1 << 20, BYTES = 64 * MIB, WORDS = BYTES / 4, HALF = BYTES / 2;
__global__ void add(unsigned *values, size_t count, unsigned summand) {
    for (size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x; at < count; at += size_t(gridDim.x) * blockDim.x) values[at] += summand + unsigned(at);
}
static int gpus, origin;
static size_t before[8];
static unsigned *values, added;
static size_t free_on(int gpu) {
    size_t free = 0, total = 0;
    CHECK(cudaSetDevice(gpu));
    CHECK(cudaMemGetInfo(&free, &total));
    return free;
}
// Checks how many MiB each GPU has more than before, and all values after a kernel of each GPU.
static void expect(const char *what, size_t first, size_t second) {
    const size_t want[] = {first, second};
    for (int gpu = 0; gpu < 2; ++gpu) {
        size_t has = (before[gpu] - free_on(gpu)) / MIB;
        if (has != want[gpu]) { std::printf("%s: GPU %d has %zu MiB, not %zu\\n", what, gpu, has, want[gpu]); std::exit(1); }
    }
    for (int gpu = 0; gpu < gpus; ++gpu) {
        CHECK(cudaSetDevice(gpu));
        add<<<64, 128>>>(values, WORDS, gpu + 1);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        added += 1;
        static unsigned all = 0;
        all += gpu + 1;
        for (size_t at = 0; at < WORDS; at += 4099) {
            unsigned want = 7 + all + added * unsigned(at);
            if (values[at] != want) { std::printf("%s: value %zu is %u, not %u\\n", what, at, values[at], want); std::exit(1); }
        }
    }
    // The program writes, and the GPUs get that.
    for (size_t at = 0; at < WORDS; at += WORDS / 8) values[at] = values[at];
}
static void prefetch(size_t from, size_t bytes, int gpu) {
    CHECK(cudaMemPrefetchAsync(values + from / 4, bytes, cudaMemLocation{cudaMemLocationTypeDevice, gpu}, 0));
    CHECK(cudaDeviceSynchronize());
}
int main() {
    CHECK(cudaGetDeviceCount(&gpus));
    // Modules, streams and what else a GPU has from its first use on.
    for (int gpu = 0; gpu < gpus; ++gpu) {
        CHECK(cudaSetDevice(gpu));
        unsigned *word = nullptr;
        CHECK(cudaMallocManaged(&word, 4 * MIB));
        add<<<1, 1>>>(word, 1, 1);
        CHECK(cudaDeviceSynchronize());
        for (int other = 0; other < gpus; ++other) {
            CHECK(cudaMemPrefetchAsync(word, 4 * MIB, cudaMemLocation{cudaMemLocationTypeDevice, other}, 0));
        }
        CHECK(cudaFree(word));
    }
    for (int gpu = 0; gpu < 2; ++gpu) before[gpu] = free_on(gpu);
    CHECK(cudaSetDevice(0));
    CHECK(cudaMallocManaged(&values, BYTES));
    for (size_t at = 0; at < WORDS; ++at) values[at] = 7;
    // What is away counts on the GPU that allocated it, too.
    expect("allocated", 64, 0);
    prefetch(0, BYTES, 1);
    expect("all on the second", 64, 64);
    prefetch(0, HALF, 0);
    expect("half on the first", 64, 32);
    prefetch(0, BYTES, 1);
    prefetch(HALF, HALF, 0);
    expect("the other half", 64, 32);
    // Less than half of each piece stays where it is.
    prefetch(0, MIB, 0);
    expect("a little", 64, 32);
    CHECK(cudaMemAdvise(values, BYTES, cudaMemAdviseSetPreferredLocation, cudaMemLocation{cudaMemLocationTypeDevice, 1}));
    expect("preferred", 64, 64);
    // Work in flight that waits for the program: the call returns, and the memory stays.
    static std::atomic<bool> go{false};
    CHECK(cudaSetDevice(1));
    CHECK(cudaLaunchHostFunc(0, [](void *) { while (!go) sched_yield(); }, nullptr));
    CHECK(cudaMemPrefetchAsync(values, BYTES, cudaMemLocation{cudaMemLocationTypeDevice, 0}, 0));
    go = true;
    CHECK(cudaDeviceSynchronize());
    expect("behind a function", 64, 64);
    if (gpus > 2) {
        prefetch(HALF / 2, HALF, 2);
        expect("on the third", 64, 32);
    }
    // A reset takes only what belongs to its GPU.
    CHECK(cudaSetDevice(1));
    CHECK(cudaDeviceReset());
    CHECK(cudaSetDevice(0));
    add<<<64, 128>>>(values, WORDS, 0);
    CHECK(cudaDeviceSynchronize());
    unsigned was = values[5];
    add<<<64, 128>>>(values, WORDS, 1);
    CHECK(cudaDeviceSynchronize());
    if (values[5] != was + 6) { std::puts("lost by a reset"); return 1; }
    CHECK(cudaFree(values));
    for (int gpu = 0; gpu < 2; ++gpu) {
        size_t now = free_on(gpu);
        if (before[gpu] > now) { std::printf("GPU %d keeps %zu bytes\\n", gpu, before[gpu] - now); return 1; }
    }
    std::puts("in place");
}
"""

# Prefetches of one thread while others launch kernels and copy, each on its own part.
CROWD = """
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#define CHECK(call) do { cudaError_t e = (call); if (e) { std::printf("%s: %s\\n", #call, cudaGetErrorName(e)); std::exit(1); } } while (0)
__global__ void add(unsigned *values, size_t count) {
    size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (at < count) values[at] += 1;
}
int main() {
    constexpr size_t WORDS = 8 << 20, THREADS = 3, EACH = 5000, TURNS = 60;
    unsigned *values = nullptr;
    CHECK(cudaMallocManaged(&values, WORDS * 4));
    std::atomic<bool> is_over{false};
    std::vector<std::thread> threads;
    for (size_t one = 0; one < THREADS; ++one) threads.emplace_back([=] {
        unsigned *own = values + one * (WORDS / THREADS);
        CHECK(cudaSetDevice(one % 2));
        cudaStream_t stream;
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        std::vector<unsigned> got(EACH);
        for (unsigned turn = 1; turn <= TURNS; ++turn) {
            add<<<(EACH + 127) / 128, 128, 0, stream>>>(own, EACH);
            CHECK(cudaGetLastError());
            if (turn % 3 == 0) CHECK(cudaStreamSynchronize(stream));
            CHECK(cudaMemcpyAsync(got.data(), own, EACH * 4, cudaMemcpyDefault, stream));
            CHECK(cudaStreamSynchronize(stream));
            for (unsigned value : got) if (value != turn) { std::printf("thread %zu: %u in turn %u\\n", one, value, turn); std::exit(1); }
        }
    });
    std::thread mover([&] {
        for (int turn = 0; !is_over; ++turn) {
            CHECK(cudaSetDevice(turn % 2));
            CHECK(cudaMemPrefetchAsync(values, WORDS * 4, cudaMemLocation{cudaMemLocationTypeDevice, (turn / 2 + 1) % 2}, 0));
        }
    });
    for (std::thread &thread : threads) thread.join();
    is_over = true;
    mover.join();
    for (size_t one = 0; one < THREADS; ++one)
        if (values[one * (WORDS / THREADS) + 17] != TURNS) { std::puts("the program sees another value"); return 1; }
    std::puts("equal");
}
"""

# The program locks a part of managed memory, all of it, or all memory from now on.
LOCKED = """
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>
constexpr size_t WORDS = 1 << 20, BYTES = WORDS * sizeof(int);
__global__ void add(int *values) { values[blockIdx.x * blockDim.x + threadIdx.x] += 1; }
int main(int, char **argv) {
    if (cudaFree(nullptr)) { std::puts("no device"); return 1; }
    size_t length = std::strtoul(argv[1], nullptr, 10);
    void *own = std::malloc(BYTES);
    // Others than root may lock little, and the driver could not map memory then.
    bool may_lock = length ? !mlock(own, BYTES) && !munlock(own, BYTES) : geteuid() == 0 && !mlockall(MCL_FUTURE);
    if (!may_lock) { std::puts("not permitted"); return 0; }
    int *values = nullptr;
    cudaError_t error = cudaMallocManaged(&values, BYTES);
    if (length && mlock(values + 2048, length)) { std::puts("not locked"); return 1; }
    for (int turn = 1; turn < 4 && !error; ++turn) {
        for (size_t at = 0; at < WORDS; ++at) values[at] += turn;
        add<<<WORDS / 256, 256>>>(values);
        error = cudaDeviceSynchronize();
        for (size_t at = 0; at < WORDS; ++at)
            if (values[at] != turn * (turn + 3) / 2) { std::printf("value %zu is %d in turn %d\\n", at, values[at], turn); return 1; }
    }
    std::puts(cudaGetErrorName(error));
}
"""

# Memory is allocated, used by both GPUs and freed without a pause, at the same addresses again
# and again: on "one" GPU, on "each", or on each and then it "moves" between them.
REPLACED = """
#include <cstdio>
#include <cstdlib>
#include <poll.h>
#include <random>
#define CHECK(call) do { cudaError_t e = (call); if (e) { std::printf("%s: %s\\n", #call, cudaGetErrorName(e)); std::exit(1); } } while (0)
constexpr size_t PIECE = 1 << 19, USED = 64;
__global__ void add(unsigned *values, unsigned summand) { values[blockIdx.x * PIECE + threadIdx.x] += summand; }
int main(int, char **argv) {
    std::mt19937 random(std::atoi(argv[1]));
    bool is_on_one = *argv[2] == 'o', moves = *argv[2] == 'm', has_told = false;
    for (pollfd input = {0, POLLIN, 0}; poll(&input, 1, 0) == 0;) {
        // A few words of each piece that can move.
        size_t pieces = 1 + random() % 3;
        unsigned *values, want = 0;
        int home = is_on_one ? 0 : random() % 2;
        CHECK(cudaSetDevice(home));
        CHECK(cudaMallocManaged(&values, pieces * PIECE * 4));
        for (int turn = 0; turn < 3; ++turn) {
            int device = (home + turn + 1) % 2;
            CHECK(cudaSetDevice(device));
            if (moves && random() % 2) CHECK(cudaMemPrefetchAsync(values, pieces * PIECE * 4, cudaMemLocation{cudaMemLocationTypeDevice, device}, 0, 0));
            unsigned by = random();
            add<<<pieces, USED>>>(values, by);
            CHECK(cudaGetLastError());
            CHECK(cudaDeviceSynchronize());
            want += by;
            for (size_t piece = 0; piece < pieces; ++piece) {
                unsigned got = values[piece * PIECE + turn];
                if (got != want) { std::printf("GPU %d, memory of GPU %d: piece %zu of %zu is %u, not %u\\n", device, home, piece, pieces, got, want); return 1; }
            }
        }
        CHECK(cudaFree(values));
        if (!has_told) std::fputs("uses all\\n", stderr);
        has_told = true;
    }
    std::puts("equal");
}
"""

GPUS = "--set=software.devices=2"


def can_migrate():
    """Whether this process may handle faults of system calls."""
    check = "import ctypes, os; exit(ctypes.CDLL(None).syscall(323, 0) < 0 and not os.access('/dev/userfaultfd', os.R_OK | os.W_OK))"
    return subprocess.run(["python3", "-c", check], check=False).returncode == 0


class Managed(unittest.TestCase):
    """Program and kernels see each other's writes, wherever the memory is."""

    def run_in(self, daemon, command, communicator="shm", **settings):
        environment = daemon.guest_environment(communicator) | settings
        return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)

    def test_results_are_those_of_pinned_memory(self):
        program = os.path.join(harness.PROGRAMS, "managedMemory")
        with harness.Daemon() as daemon:
            pinned = self.run_in(daemon, [program], PARAGPU_MANAGED_MIGRATE="false")
            self.assertEqual(pinned.returncode, 0, pinned.stdout + pinned.stderr)
            small = self.run_in(daemon, [program], PARAGPU_MANAGED_PINNED="0")
            self.assertEqual(small.returncode, 0, small.stdout + small.stderr)
            self.assertEqual(small.stdout.split()[4], pinned.stdout.split()[4])

    def test_memory_that_the_program_locks(self):
        program = compiled(LOCKED)
        with harness.Daemon() as daemon:
            for locked in ("4096", str((4 << 20) - 8192), "future"):
                with self.subTest(locked):
                    run = self.run_in(daemon, [program, locked])
                    if run.stdout == "not permitted\n":
                        self.skipTest("memory cannot be locked here")
                    self.assertEqual((run.returncode, run.stdout), (0, "cudaSuccess\n"), run.stderr)

    def test_random_work(self):
        program = compiled(RANDOM, "-std=c++17")
        with harness.Daemon() as daemon:
            for seed in range(6):
                with self.subTest(seed=seed):
                    communicator = ("shm", "unix", "tcp")[seed % 3]
                    run = self.run_in(daemon, [program, str(seed)], communicator)
                    self.assertEqual(run.stdout, "equal\n", run.stderr)

    def test_random_work_of_several_gpus(self):
        program = compiled(RANDOM, "-std=c++17")
        with harness.Daemon("--set=software.devices=3") as daemon:
            for seed in range(9):
                # In turn on one GPU that the others access, and with a copy on each.
                migrates = ("true", "false")[seed % 2]
                with self.subTest(seed=seed):
                    communicator = ("shm", "unix", "tcp")[seed % 3]
                    run = self.run_in(daemon, [program, str(seed)], communicator, PARAGPU_MANAGED_MIGRATE=migrates)
                    self.assertEqual(run.stdout, "equal\n", run.stderr)

    def start(self, command, here, communicator="shm", **settings):
        """A program that works until its input is closed. It tells when it has used all GPUs."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = here.guest_environment(communicator) | settings
        return end_with(self, subprocess.Popen(command, env=environment, text=True, **pipes))

    def move_together(self, here, there, moves):
        """Moves the sessions of both GPUs there and back, an even number of times."""
        for source, target in [(here, there), (there, here)] * (moves // 2):
            eventually(lambda at=source: len(at.sessions()) == 2, "it uses both GPUs")
            vm = source.sessions()[0]["vm"]
            code, report, errors = migrate(source, "--vm", vm, "--to", f"unix://{target.socket}")
            self.assertEqual(code, 0, f"{report} {errors}\n{source.log()}\n{target.log()}")

    def test_random_work_while_the_session_moves(self):
        program = compiled(RANDOM, "-std=c++17")
        with harness.Daemon() as here, harness.Daemon() as there:
            guest = self.start([program, "7"], here)
            eventually(here.sessions, "the program has a session")
            for source, target in [(here, there), (there, here)] * 3:
                moved(self, source, target)
            guest.stdin.close()
            self.assertEqual(guest.stdout.read(), "equal\n", here.log() + there.log())

    def test_a_process_that_uses_one_of_several_gpus_moves_alone(self):
        program = compiled(RANDOM, "-std=c++17")
        with harness.Daemon(GPUS) as here, harness.Daemon(GPUS) as there:
            guest = self.start([program, "7", "1"], here)
            self.assertEqual(guest.stderr.readline(), "uses all\n")
            eventually(lambda: len(here.sessions()) == 1, "only the session is left")
            moved(self, here, there)
            guest.stdin.close()
            self.assertEqual(guest.stdout.read(), "equal\n", here.log() + there.log())

    def test_random_work_of_several_gpus_while_they_move(self):
        program = compiled(RANDOM, "-std=c++17")
        with harness.Daemon(GPUS) as here, harness.Daemon(GPUS) as there:
            for communicator, migrates in itertools.product(harness.HOST_COMMUNICATORS, ("true", "false")):
                with self.subTest(communicator, migrates=migrates):
                    guest = self.start([program, "7"], here, communicator, PARAGPU_MANAGED_MIGRATE=migrates)
                    self.assertEqual(guest.stderr.readline(), "uses all\n")
                    self.move_together(here, there, 4)
                    guest.stdin.close()
                    self.assertEqual(guest.stdout.read(), "equal\n", here.log() + there.log())

    def test_memory_that_is_replaced_while_the_sessions_move(self):
        program = compiled(REPLACED, "-std=c++17")
        for hand_over, where in itertools.product(("true", "false"), ("one", "each", "moves")):
            # One allocation has room, but none beside what was freed.
            arguments = (GPUS, f"--set=software.shareable={hand_over}", "--set=limits.per_vm_memory=8MiB")
            with self.subTest(hand_over, where=where), harness.Daemon(*arguments) as here, harness.Daemon(*arguments) as there:
                guest = self.start([program, "7", where], here, "unix")
                self.assertEqual(guest.stderr.readline(), "uses all\n")
                self.move_together(here, there, 8)
                guest.stdin.close()
                self.assertEqual(guest.stdout.read(), "equal\n", here.log() + there.log())

    def test_kernel_and_program_answer_each_other(self):
        program = compiled(TALK)
        with harness.Daemon() as daemon:
            for migrate in ("true", "false"):
                # Copies on each of several GPUs would not be synchronized while the kernel runs.
                run = self.run_in(daemon, [program], PARAGPU_MANAGED_MIGRATE=migrate, CUDA_VISIBLE_DEVICES="0")
                self.assertEqual(run.stdout, "answered\n", run.stderr)

    @unittest.skipUnless(can_migrate(), "this process may not use userfaultfd(2)")
    def test_memory_that_is_gone(self):
        program = compiled(GONE)
        with harness.Daemon() as daemon:
            run = self.run_in(daemon, [program])
            self.assertEqual(run.stdout, "child 1, parent 7, freed 1\n", run.stderr)

    @unittest.skipUnless(can_migrate(), "this process may not use userfaultfd(2)")
    def test_it_counts_against_the_limit(self):
        program = compiled(LIMIT)
        with harness.Daemon("--set=limits.memory=64MiB") as daemon:
            run = self.run_in(daemon, [program])
            self.assertEqual(run.stdout, "cudaSuccess cudaErrorMemoryAllocation\ncudaSuccess\n", run.stderr)

    def test_variables_have_one_value_on_several_gpus(self):
        program = compiled(VARIABLES, "-std=c++17")
        with harness.Daemon(GPUS) as daemon:
            for communicator, migrates in itertools.product(harness.HOST_COMMUNICATORS, ("true", "false")):
                with self.subTest(communicator, migrates=migrates):
                    run = self.run_in(daemon, [program], communicator, PARAGPU_MANAGED_MIGRATE=migrates)
                    self.assertEqual(run.stdout, "equal\n", run.stderr)

    @unittest.skipUnless(can_migrate(), "this process may not use userfaultfd(2)")
    def test_prefetches_and_preferred_locations_move_it_between_gpus(self):
        program = compiled(PLACES)
        for gpus, communicator in ((2, "shm"), (3, "unix"), (2, "tcp")):
            # With a limit, free memory does not depend on other processes of the GPU.
            arguments = (f"--set=software.devices={gpus}", "--set=limits.memory=1GiB")
            with self.subTest(gpus=gpus, communicator=communicator), harness.Daemon(*arguments) as daemon:
                run = self.run_in(daemon, [program], communicator)
                self.assertEqual(run.stdout, "in place\n", run.stderr + daemon.log())

    def test_prefetches_beside_other_threads(self):
        program = compiled(CROWD, "-std=c++17")
        with harness.Daemon(GPUS) as daemon:
            for communicator in harness.HOST_COMMUNICATORS:
                with self.subTest(communicator):
                    run = self.run_in(daemon, [program], communicator)
                    self.assertEqual(run.stdout, "equal\n", run.stderr + daemon.log())

    def test_results_with_several_gpus_are_the_same(self):
        with harness.Daemon(GPUS) as daemon:
            run = daemon.run("managedMemory", "shm")
            self.assertEqual(run.code, 0, run.output + run.errors)

    def test_without_the_privilege_it_stays_pinned(self):
        program = os.path.join(harness.PROGRAMS, "managedMemory")
        unprivileged = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", program]
        with harness.Daemon() as daemon:
            run = self.run_in(daemon, unprivileged if os.geteuid() == 0 else [program])
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
