// streamsAndEvents: what streams and events promise, and nothing more.
//
// Order across streams by events, order with the legacy default stream, work in
// a stream that is destroyed at once, overlap of kernels and of a copy with a
// kernel, timing, queries, priorities and flags. Every step of a chain computes
// x = 5 x + step, so a wrong order gives a wrong number. The overlap kernels wait
// for one another, for at most 20 seconds of the device's clock: if streams do
// not overlap, the test fails instead of hanging.

#include "common/check.h"

#include <vector>

__global__ void advance(unsigned *values, unsigned step, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] = values[at] * 5 + step;
    }
}

static __device__ unsigned long long global_timer() {
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}

__global__ void wait_for(volatile unsigned *flag, unsigned value, unsigned *seen) {
    unsigned long long start = global_timer();
    unsigned there = 0;
    while (global_timer() - start < 20000000000ull) {
        if (*flag == value) {
            there = 1;
            break;
        }
        __nanosleep(1000);
    }
    *seen = there;
}

__global__ void raise(volatile unsigned *flag, unsigned value) {
    *flag = value;
    __threadfence();
}

struct Chain {
    std::vector<unsigned> want;
    DeviceArray<unsigned> values;
    unsigned step = 0;

    Chain(const std::vector<unsigned> &start) : want(start), values(start.data(), start.size()) {}

    void advance_in(cudaStream_t stream) {
        ++step;
        advance<<<blocks_for(want.size(), 256), 256, 0, stream>>>(values.get(), step, want.size());
        LAUNCH_CHECK();
        for (unsigned &value : want) {
            value = value * 5 + step;
        }
    }

    // After a synchronization by the caller.
    void check(Program &program, const char *what) {
        std::vector<unsigned> got(want.size());
        values.download(got.data());
        program.digest(got.data(), got.size() * sizeof(unsigned));
        program.expect_equal(what, got.data(), want.data(), want.size());
    }
};

static void run_event_order(Program &program, Chain &chain) {
    const int streams = 4;
    cudaStream_t stream[streams];
    cudaEvent_t event[streams];
    for (int at = 0; at < streams; ++at) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream[at], cudaStreamNonBlocking));
        CUDA_CHECK(cudaEventCreateWithFlags(&event[at], cudaEventDisableTiming));
    }
    for (int hop = 0; hop < 24; ++hop) {
        int here = hop * 7 % streams, next = (hop + 1) * 7 % streams;
        chain.advance_in(stream[here]);
        CUDA_CHECK(cudaEventRecord(event[here], stream[here]));
        CUDA_CHECK(wait_event(stream[next], event[here]));
        if (hop == 23) {
            CUDA_CHECK(cudaEventSynchronize(event[here]));
        }
    }
    chain.check(program, "the chain through events");
    for (int at = 0; at < streams; ++at) {
        CUDA_CHECK(cudaStreamSynchronize(stream[at]));
        CUDA_CHECK(cudaStreamQuery(stream[at]));
        CUDA_CHECK(cudaEventDestroy(event[at]));
        CUDA_CHECK(cudaStreamDestroy(stream[at]));
    }
}

// The legacy default stream waits for all blocking streams, and they for it.
static void run_default_stream(Program &program, Chain &chain) {
    cudaStream_t one, two;
    CUDA_CHECK(cudaStreamCreate(&one));
    CUDA_CHECK(cudaStreamCreate(&two));
    for (int hop = 0; hop < 6; ++hop) {
        chain.advance_in(one);
        chain.advance_in(hop % 2 ? cudaStreamLegacy : nullptr);
        chain.advance_in(two);
        chain.advance_in(nullptr);
    }
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
    chain.check(program, "the chain through the default stream");
    CUDA_CHECK(cudaStreamDestroy(two));
    CUDA_CHECK(cudaStreamDestroy(one));
}

// A destroyed stream's work still completes, and device synchronization waits for it.
static void run_destroyed_stream(Program &program, Chain &chain) {
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int hop = 0; hop < 8; ++hop) {
        chain.advance_in(stream);
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaDeviceSynchronize());
    chain.check(program, "the chain in a destroyed stream");
}

// Whether a kernel, and a copy, ran concurrently with a kernel of another stream.
static void try_overlap(bool &kernel, bool &copy) {
    cudaStream_t waiting, acting;
    CUDA_CHECK(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&acting, cudaStreamNonBlocking));
    unsigned *pinned = nullptr;
    CUDA_CHECK(cudaMallocHost(&pinned, 3 * sizeof(unsigned)));
    DeviceArray<unsigned> flags(4);
    CUDA_CHECK(cudaMemset(flags.get(), 0, flags.bytes()));
    // It need not be complete, and non-blocking streams do not wait for it.
    CUDA_CHECK(cudaDeviceSynchronize());
    unsigned *flag = flags.get(), *seen = flags.get() + 2;
    // Loading a kernel may wait for the device to be idle, so load both first.
    cudaFuncAttributes attributes;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, wait_for));
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, raise));

    wait_for<<<1, 1, 0, waiting>>>(flag, 11, seen);
    LAUNCH_CHECK();
    raise<<<1, 1, 0, acting>>>(flag, 11);
    LAUNCH_CHECK();
    wait_for<<<1, 1, 0, waiting>>>(flag + 1, 22, seen + 1);
    LAUNCH_CHECK();
    pinned[0] = 22;
    CUDA_CHECK(cudaMemcpyAsync(flag + 1, pinned, sizeof(unsigned), cudaMemcpyHostToDevice, acting));
    CUDA_CHECK(cudaMemcpyAsync(pinned + 1, seen, 2 * sizeof(unsigned), cudaMemcpyDeviceToHost, waiting));
    CUDA_CHECK(cudaStreamSynchronize(waiting));
    kernel |= pinned[1] == 1;
    copy |= pinned[2] == 1;

    CUDA_CHECK(cudaFreeHost(pinned));
    CUDA_CHECK(cudaStreamDestroy(acting));
    CUDA_CHECK(cudaStreamDestroy(waiting));
}

// No particular launches must overlap: if the session moves between the two, the
// device is idle first. But it is a fault if none ever do.
static void run_overlap(Program &program) {
    bool kernel = false, copy = false;
    for (int attempt = 0; attempt < 3 && !(kernel && copy); ++attempt) {
        try_overlap(kernel, copy);
    }
    program.expect(kernel, "a kernel did not overlap with a kernel of another stream");
    program.expect(copy, "a copy did not overlap with a kernel of another stream");
}

static void expect_status(Program &program, const char *what, cudaError_t got, cudaError_t want) {
    if (got != want) {
        program.fail("%s gave %s, expected %s", what, cudaGetErrorName(got), cudaGetErrorName(want));
    }
    (void)cudaGetLastError();
}

static void run_events(Program &program, Chain &chain) {
    cudaStream_t stream;
    cudaEvent_t start, middle, stop, untimed;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaEventCreate(&start));
    CUDA_CHECK(cudaEventCreateWithFlags(&middle, cudaEventBlockingSync));
    CUDA_CHECK(cudaEventCreate(&stop));
    CUDA_CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));

    // An event that was never recorded is complete, nothing waits for it, and it has no time.
    expect_status(program, "cudaEventQuery of a fresh event", cudaEventQuery(start), cudaSuccess);
    expect_status(program, "waiting for a fresh event", wait_event(stream, start), cudaSuccess);
    float milliseconds = 0;
    expect_status(program, "the time of fresh events", elapsed(&milliseconds, start, stop),
                  cudaErrorInvalidResourceHandle);

    CUDA_CHECK(cudaEventRecord(start, stream));
    chain.advance_in(stream);
    CUDA_CHECK(cudaEventRecord(middle, stream));
    chain.advance_in(stream);
    CUDA_CHECK(cudaEventRecord(stop, stream));
    CUDA_CHECK(cudaEventRecord(untimed, stream));
    CUDA_CHECK(cudaEventSynchronize(untimed));
    float first = -1, second = -1, all = -1;
    CUDA_CHECK(elapsed(&first, start, middle));
    CUDA_CHECK(elapsed(&second, middle, stop));
    CUDA_CHECK(elapsed(&all, start, stop));
    // Half a microsecond is the resolution of each of the three.
    program.expect(first >= 0 && second >= 0 && std::fabs(first + second - all) < 0.01f,
                   "the times between three events do not add up");
    expect_status(program, "the time of events without", elapsed(&milliseconds, start, untimed),
                  cudaErrorInvalidResourceHandle);
    chain.check(program, "the timed chain");

    CUDA_CHECK(cudaEventDestroy(untimed));
    CUDA_CHECK(cudaEventDestroy(stop));
    CUDA_CHECK(cudaEventDestroy(middle));
    CUDA_CHECK(cudaEventDestroy(start));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

static void run_attributes(Program &program) {
    int least = 0, greatest = 0, priority = 1;
    unsigned flags = 99;
    cudaStream_t stream;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    program.expect(least >= greatest, "the range of priorities is inverted");
    CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    CUDA_CHECK(cudaStreamGetPriority(stream, &priority));
    CUDA_CHECK(cudaStreamGetFlags(stream, &flags));
    program.expect_equal("the priority", priority, greatest);
    program.expect_equal("the flags", flags, static_cast<unsigned>(cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv) {
    Program program("streamsAndEvents", "orders work across streams by events", "elements", 20000, 1, 1L << 28);
    program.parse(argc, argv);
    Random random(program.seed());
    std::vector<unsigned> start(static_cast<size_t>(program.size()));
    for (unsigned &value : start) {
        value = static_cast<unsigned>(random.next());
    }
    Chain chain(start);
    while (program.next_round()) {
        run_event_order(program, chain);
        run_default_stream(program, chain);
        run_destroyed_stream(program, chain);
        run_overlap(program);
        run_events(program, chain);
        run_attributes(program);
    }
    return program.finish();
}
