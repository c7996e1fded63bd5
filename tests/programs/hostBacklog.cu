// hostBacklog: a slow host function, and more work behind it than a driver
// queues.
//
// A driver blocks a launch once about a thousand are queued. The host function must
// still be able to finish, whatever the work is and in whichever stream it waits:
// launches, copies, event records, graphs.

#include "common/check.h"

#include <vector>

__global__ void step(unsigned *value, unsigned amount) { *value = *value * 3 + amount; }

struct Slow {
    unsigned *seen;
    unsigned first;
    long steps;
    unsigned found;
    int runs;
};

// Slowly reads the result of the copy before it.
static void slow(void *data) {
    Slow *self = static_cast<Slow *>(data);
    self->found = *self->seen;
    unsigned hash = self->first;
    for (long at = 0; at < self->steps; ++at) {
        hash = (hash ^ static_cast<unsigned>(at)) * 16777619u;
    }
    *self->seen = hash;
    ++self->runs;
}

static unsigned hashed(unsigned first, long steps) {
    unsigned hash = first;
    for (long at = 0; at < steps; ++at) {
        hash = (hash ^ static_cast<unsigned>(at)) * 16777619u;
    }
    return hash;
}

constexpr int streams = 4;

struct Case {
    cudaStream_t stream[streams];
    cudaEvent_t event;
    // A word for each stream; the function reads and changes the first.
    unsigned *device;
    unsigned *host;
    unsigned want[streams];
    Slow slow;
};

static void launch(Case &at, int stream, unsigned amount) {
    step<<<1, 1, 0, at.stream[stream]>>>(at.device + stream, amount);
    LAUNCH_CHECK();
    at.want[stream] = at.want[stream] * 3 + amount;
}

static void begin(Case &at) {
    for (int stream = 0; stream < streams; ++stream) {
        CUDA_CHECK(cudaMemsetAsync(at.device + stream, 0, sizeof(unsigned), at.stream[stream]));
        at.want[stream] = 0;
    }
    at.slow.runs = 0;
}

// The chain around the function: a copy writes what it reads, another reads what it wrote.
static void before(Case &at) {
    launch(at, 0, 7);
    CUDA_CHECK(cudaMemcpyAsync(at.host, at.device, sizeof(unsigned), cudaMemcpyDeviceToHost, at.stream[0]));
}

static void after(Case &at) {
    CUDA_CHECK(cudaMemcpyAsync(at.device, at.host, sizeof(unsigned), cudaMemcpyHostToDevice, at.stream[0]));
    at.want[0] = hashed(at.slow.first, at.slow.steps);
}

static void end(Program &program, Case &at, const char *name) {
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect_equal("the function ran", at.slow.runs, 1);
    program.expect_equal("the function saw", at.slow.found, 7u);
    unsigned got[streams];
    CUDA_CHECK(cudaMemcpy(got, at.device, sizeof got, cudaMemcpyDeviceToHost));
    program.expect_equal(name, got, at.want, streams);
    program.digest(got, sizeof got);
}

static void one_stream(Program &program, Case &at, int count) {
    begin(at);
    before(at);
    CUDA_CHECK(cudaLaunchHostFunc(at.stream[0], slow, &at.slow));
    after(at);
    for (int number = 0; number < count; ++number) {
        launch(at, 0, static_cast<unsigned>(number));
        if (number % 16 == 0) {
            CUDA_CHECK(cudaEventRecord(at.event, at.stream[0]));
        }
    }
    end(program, at, "launches behind a function");
}

static void many_streams(Program &program, Case &at, int count) {
    begin(at);
    before(at);
    CUDA_CHECK(cudaLaunchHostFunc(at.stream[0], slow, &at.slow));
    after(at);
    CUDA_CHECK(cudaEventRecord(at.event, at.stream[0]));
    for (int stream = 1; stream < streams; ++stream) {
        CUDA_CHECK(wait_event(at.stream[stream], at.event));
    }
    for (int number = 0; number < count; ++number) {
        launch(at, number % streams, static_cast<unsigned>(number));
    }
    end(program, at, "launches of streams that wait for it");
}

static void copies(Program &program, Case &at, int count) {
    begin(at);
    before(at);
    CUDA_CHECK(cudaLaunchHostFunc(at.stream[0], slow, &at.slow));
    after(at);
    for (int number = 0; number < count; ++number) {
        CUDA_CHECK(cudaMemcpyAsync(at.device + 1, at.device, sizeof(unsigned), cudaMemcpyDeviceToDevice, at.stream[0]));
        CUDA_CHECK(cudaMemcpyAsync(at.host + 1, at.device + 1, sizeof(unsigned), cudaMemcpyDeviceToHost, at.stream[0]));
        CUDA_CHECK(cudaMemsetAsync(at.device + 2, number & 0xff, sizeof(unsigned), at.stream[0]));
    }
    at.want[1] = at.want[0];
    at.want[2] = static_cast<unsigned>((count - 1) & 0xff) * 0x01010101u;
    end(program, at, "copies behind a function");
    program.expect_equal("the last copy", at.host[1], at.want[0]);
}

// The function is in a graph, followed by launches of kernels and of another graph.
static void graphs(Program &program, Case &at, int count) {
    cudaGraph_t graph[2];
    cudaGraphExec_t ready[2];
    begin(at);
    CUDA_CHECK(cudaStreamSynchronize(at.stream[0]));
    CUDA_CHECK(cudaStreamBeginCapture(at.stream[0], cudaStreamCaptureModeThreadLocal));
    before(at);
    CUDA_CHECK(cudaLaunchHostFunc(at.stream[0], slow, &at.slow));
    after(at);
    CUDA_CHECK(cudaStreamEndCapture(at.stream[0], &graph[0]));
    constexpr int steps = 20;
    CUDA_CHECK(cudaStreamBeginCapture(at.stream[0], cudaStreamCaptureModeThreadLocal));
    for (int number = 0; number < steps; ++number) {
        step<<<1, 1, 0, at.stream[0]>>>(at.device, static_cast<unsigned>(number));
        LAUNCH_CHECK();
    }
    CUDA_CHECK(cudaStreamEndCapture(at.stream[0], &graph[1]));
    for (int number = 0; number < 2; ++number) {
        CUDA_CHECK(cudaGraphInstantiate(&ready[number], graph[number], 0));
    }
    CUDA_CHECK(cudaGraphLaunch(ready[0], at.stream[0]));
    for (int number = 0; number < count; ++number) {
        if (number % 8 != 0) {
            launch(at, 0, static_cast<unsigned>(number));
            continue;
        }
        CUDA_CHECK(cudaGraphLaunch(ready[1], at.stream[0]));
        for (int inner = 0; inner < steps; ++inner) {
            at.want[0] = at.want[0] * 3 + static_cast<unsigned>(inner);
        }
    }
    end(program, at, "work behind a graph with a function");
    for (int number = 0; number < 2; ++number) {
        CUDA_CHECK(cudaGraphExecDestroy(ready[number]));
        CUDA_CHECK(cudaGraphDestroy(graph[number]));
    }
}

int main(int argc, char **argv) {
    Program program("hostBacklog", "queues work behind a slow host function", "launches", 3000, 1, 1L << 20);
    program.parse(argc, argv);
    Random random(program.seed());
    Case at;
    for (cudaStream_t &stream : at.stream) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    CUDA_CHECK(cudaEventCreateWithFlags(&at.event, cudaEventDisableTiming));
    CUDA_CHECK(cudaMalloc(&at.device, streams * sizeof(unsigned)));
    CUDA_CHECK(cudaMallocHost(&at.host, streams * sizeof(unsigned)));
    int count = static_cast<int>(program.size());
    while (program.next_round()) {
        at.slow = {at.host, static_cast<unsigned>(random.next()), 20000000, 0, 0};
        one_stream(program, at, count);
        many_streams(program, at, count);
        copies(program, at, count);
        graphs(program, at, count);
    }
    for (cudaStream_t &stream : at.stream) {
        CUDA_CHECK(cudaStreamDestroy(stream));
    }
    CUDA_CHECK(cudaEventDestroy(at.event));
    CUDA_CHECK(cudaFree(at.device));
    CUDA_CHECK(cudaFreeHost(at.host));
    return program.finish();
}
