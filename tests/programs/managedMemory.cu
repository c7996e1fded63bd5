// managedMemory: one pointer for program and kernels.
//
// cudaMallocManaged for memory that both sides write in turn, a linked list that a
// kernel follows, copies and memsets of managed memory, attributes of pointers
// and ranges, advice and prefetches. Large memory, which migrates: parts that either side
// writes, copies in streams and graphs, files read into it, threads, host functions.

#include "common/check.h"

#include <cstdio>
#include <cstring>
#include <thread>
#include <unistd.h>
#include <vector>

__global__ void saxpy(float *sums, const float *values, float factor, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        sums[at] = factor * values[at] + sums[at];
    }
}

struct Node {
    Node *next;
    int value;
};

__global__ void follow(const Node *node, int *sum) {
    int total = 0;
    for (; node; node = node->next) {
        total += node->value;
    }
    *sum = total;
}

template <typename T> static T *managed(size_t count, unsigned flags = cudaMemAttachGlobal) {
    T *memory = nullptr;
    CUDA_CHECK(cudaMallocManaged(&memory, count * sizeof(T), flags));
    return memory;
}

static void run_turns(Program &program, size_t count, Random &random) {
    float *sums = managed<float>(count), *values = managed<float>(count);
    std::vector<float> want(count);
    for (size_t at = 0; at < count; ++at) {
        values[at] = static_cast<float>(random.below(1000));
        sums[at] = want[at] = static_cast<float>(random.below(1000));
    }
    // Between launches the host writes the input of the next one.
    for (int turn = 0; turn < 3; ++turn) {
        saxpy<<<(count + 255) / 256, 256>>>(sums, values, 2.0f, count);
        LAUNCH_CHECK();
        for (size_t at = 0; at < count; ++at) {
            want[at] += 2.0f * values[at];
        }
        CUDA_CHECK(cudaDeviceSynchronize());
        program.expect_equal("what a kernel wrote", sums, want.data(), count);
        for (size_t at = turn; at < count; at += 11) {
            values[at] += 1.0f;
        }
    }
    program.digest(sums, count * sizeof(float));
    CUDA_CHECK(cudaFree(sums));
    CUDA_CHECK(cudaFree(values));
}

static void run_list(Program &program) {
    const int length = 1000;
    Node *nodes = managed<Node>(length);
    int *sum = managed<int>(1);
    int want = 0;
    for (int at = 0; at < length; ++at) {
        // Backwards through memory.
        nodes[at] = {at == 0 ? nullptr : &nodes[at - 1], at * 3 + 1};
        want += at * 3 + 1;
    }
    follow<<<1, 1>>>(&nodes[length - 1], sum);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect_equal("the sum over a list", *sum, want);
    program.digest(sum, sizeof *sum);
    CUDA_CHECK(cudaFree(nodes));
    CUDA_CHECK(cudaFree(sum));
}

static void run_copies(Program &program) {
    const size_t count = 5000;
    int *one = managed<int>(count), *other = managed<int>(count);
    int *device = nullptr;
    std::vector<int> want(count), got(count);
    CUDA_CHECK(cudaMalloc(&device, count * sizeof(int)));
    for (size_t at = 0; at < count; ++at) {
        one[at] = want[at] = static_cast<int>(at * at);
    }
    CUDA_CHECK(cudaMemcpy(device, one, count * sizeof(int), cudaMemcpyDefault));
    CUDA_CHECK(cudaMemcpy(other, device, count * sizeof(int), cudaMemcpyDefault));
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect_equal("a copy through device memory", other, want.data(), count);
    CUDA_CHECK(cudaMemset(other, 0x11, 100 * sizeof(int)));
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect(other[99] == 0x11111111 && other[100] == 10000, "a memset of managed memory is wrong");
    CUDA_CHECK(cudaMemcpy(got.data(), other, count * sizeof(int), cudaMemcpyDefault));
    program.digest(got.data(), count * sizeof(int));
    CUDA_CHECK(cudaFree(one));
    CUDA_CHECK(cudaFree(other));
    CUDA_CHECK(cudaFree(device));
}

__global__ void add(unsigned *values, size_t count, unsigned summand) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] += summand;
    }
}

// Large memory, of which the host touches some pages between the kernels.
static void run_large(Program &program, Random &random) {
    const size_t count = (5 << 20) / sizeof(unsigned) + 77;
    const int grid = static_cast<int>((count + 255) / 256);
    unsigned *values = managed<unsigned>(count);
    std::vector<unsigned> want(count);
    // What nobody has written to is zero.
    program.expect(values[0] == 0 && values[count - 1] == 0, "new managed memory is not zero");
    add<<<grid, 256>>>(values, count, 3);
    LAUNCH_CHECK();
    for (unsigned &value : want) {
        value = 3;
    }
    for (unsigned turn = 0; turn < 8; ++turn) {
        CUDA_CHECK(cudaDeviceSynchronize());
        for (int touch = 0; touch < 40; ++touch) {
            size_t at = random.below(static_cast<unsigned>(count));
            if (touch % 3 == 0) {
                program.expect_equal("a page that the host reads", values[at], want[at]);
            } else {
                values[at] = want[at] = random.below(1u << 30);
            }
        }
        if (turn == 3) {
            CUDA_CHECK(cudaMemPrefetchAsync(values, count * sizeof *values, cudaMemLocation{cudaMemLocationTypeDevice, 0}, 0, 0));
        } else if (turn == 4) {
            CUDA_CHECK(cudaMemPrefetchAsync(values, count * sizeof *values, cudaMemLocation{cudaMemLocationTypeHost, 0}, 0, 0));
        }
        add<<<grid, 256>>>(values, count, turn + 1);
        LAUNCH_CHECK();
        for (unsigned &value : want) {
            value += turn + 1;
        }
    }
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect_equal("large managed memory", values, want.data(), count);
    program.digest(values, count * sizeof *values);
    CUDA_CHECK(cudaFree(values));
}

// Copies, memsets, a graph and a host function on large memory.
static void run_large_work(Program &program) {
    const size_t count = (3 << 20) / sizeof(unsigned) + 5, bytes = count * sizeof(unsigned);
    const int grid = static_cast<int>((count + 255) / 256);
    unsigned *one = managed<unsigned>(count), *other = managed<unsigned>(count);
    std::vector<unsigned> want(count), got(count);
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (size_t at = 0; at < count; ++at) {
        one[at] = want[at] = static_cast<unsigned>(at * 7);
    }
    CUDA_CHECK(cudaMemcpyAsync(other + 3, one + 1, bytes - 16, cudaMemcpyDefault, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect(std::memcmp(other + 3, want.data() + 1, bytes - 16) == 0, "a copy of large memory is wrong");
    CUDA_CHECK(cudaMemcpy(got.data(), other + 3, bytes - 16, cudaMemcpyDeviceToHost));
    program.expect(std::memcmp(got.data(), want.data() + 1, bytes - 16) == 0, "a copy to the host is wrong");
    other[7] = 99;
    CUDA_CHECK(cudaMemset(other + 8, 0x22, 1 << 20));
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect(other[7] == 99 && other[8] == 0x22222222 && other[8 + (1 << 18)] == want[6 + (1 << 18)],
                   "a memset of part of large memory is wrong");
    CUDA_CHECK(cudaMemcpy(one, got.data(), bytes, cudaMemcpyHostToDevice));
    program.expect(std::memcmp(one, got.data(), bytes) == 0, "a copy into large memory is wrong");

    // What the host writes before a graph's launch reaches it, and a host function sees
    // what was computed before it.
    struct Seen {
        unsigned *values;
        unsigned found;
    } seen = {one, 0};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    add<<<grid, 256, 0, stream>>>(one, count, 5);
    CUDA_CHECK(cudaLaunchHostFunc(
        stream,
        [](void *argument) {
            Seen *seen = static_cast<Seen *>(argument);
            seen->found = seen->values[1000];
            seen->values[1001] = 4;
        },
        &seen));
    add<<<grid, 256, 0, stream>>>(one, count, 1);
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    one[1000] = 10;
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect_equal("what a host function saw", seen.found, 15u);
    program.expect(one[1000] == 16 && one[1001] == 5, "a graph with a host function is wrong");
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));

    // System calls read and write it as well.
    add<<<grid, 256, 0, stream>>>(one, count, 1);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaStreamSynchronize(stream));
    std::FILE *file = std::tmpfile();
    bool written = file && write(fileno(file), one, bytes) == static_cast<ssize_t>(bytes);
    add<<<grid, 256, 0, stream>>>(one, count, 1);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaStreamSynchronize(stream));
    bool read = written && pread(fileno(file), other, bytes, 0) == static_cast<ssize_t>(bytes);
    program.expect(read && other[1000] == 17 && one[1000] == 18, "a system call does not see managed memory");
    if (file) {
        std::fclose(file);
    }
    CUDA_CHECK(cudaStreamDestroy(stream));

    // Threads that each use a part.
    std::vector<std::thread> threads;
    const size_t part = count / 4;
    for (size_t number = 0; number < 4; ++number) {
        threads.emplace_back([=] {
            for (size_t at = number * part; at < (number + 1) * part; ++at) {
                one[at] = other[at] + static_cast<unsigned>(number);
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    add<<<grid, 256>>>(one, count, 0);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaDeviceSynchronize());
    bool same = true;
    for (size_t at = 0; at < 4 * part; ++at) {
        same = same && one[at] == other[at] + static_cast<unsigned>(at / part);
    }
    program.expect(same, "data written by threads is wrong");
    program.digest(one, 4 * part * sizeof *one);
    CUDA_CHECK(cudaFree(one));
    CUDA_CHECK(cudaFree(other));
}

static void run_attributes(Program &program) {
    const size_t bytes = 1 << 20;
    char *memory = managed<char>(bytes);
    cudaPointerAttributes attributes;
    CUDA_CHECK(cudaPointerGetAttributes(&attributes, memory + 5));
    program.expect(attributes.type == cudaMemoryTypeManaged, "managed memory has a different type");
    program.expect(attributes.hostPointer == memory + 5 && attributes.devicePointer == memory + 5,
                   "managed memory has different addresses on host or device");

    cudaMemLocation host = {};
    host.type = cudaMemLocationTypeHost;
    int value = 0;
    CUDA_CHECK(cudaMemAdvise(memory, bytes / 2, cudaMemAdviseSetReadMostly, host));
    CUDA_CHECK(cudaMemRangeGetAttribute(&value, sizeof value, cudaMemRangeAttributeReadMostly, memory, bytes / 2));
    program.expect(value == 1, "advice was lost");
    CUDA_CHECK(cudaMemRangeGetAttribute(&value, sizeof value, cudaMemRangeAttributeReadMostly, memory, bytes));
    program.expect(value == 0, "advice applies outside its range");
    CUDA_CHECK(cudaMemAdvise(memory, bytes, cudaMemAdviseSetPreferredLocation, host));
    CUDA_CHECK(cudaMemRangeGetAttribute(&value, sizeof value, cudaMemRangeAttributePreferredLocation, memory, bytes));
    program.expect(value == cudaCpuDeviceId, "the preferred location is not the host");
    CUDA_CHECK(cudaMemPrefetchAsync(memory, bytes, host, 0));
    CUDA_CHECK(cudaDeviceSynchronize());

    program.expect(cudaMemAdvise(memory, bytes * 4, cudaMemAdviseSetReadMostly, host) == cudaErrorInvalidValue, "a range beyond its allocation was accepted");
    cudaGetLastError();
    CUDA_CHECK(cudaFree(memory));
    program.expect(cudaMemAdvise(memory, bytes, cudaMemAdviseSetReadMostly, host) == cudaErrorInvalidValue, "advice about freed memory was accepted");
    cudaGetLastError();
    void *nothing = nullptr;
    program.expect(cudaMallocManaged(&nothing, 16, 7u) == cudaErrorInvalidValue, "unknown flags were accepted");
    cudaGetLastError();
}

// Structures and results of calls may be in managed memory that the device has.
static void run_structures(Program &program) {
    struct Recording {
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        int value;
        char rest[4096];
    };
    Recording *recording = managed<Recording>(1);
    CUDA_CHECK(cudaMemset(recording, 0, sizeof *recording));
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CUDA_CHECK(cudaMemsetAsync(&recording->value, 1, sizeof(int), stream));
    CUDA_CHECK(cudaStreamEndCapture(stream, &recording->graph));
    CUDA_CHECK(cudaGraphInstantiate(&recording->executable, recording->graph, 0));
    CUDA_CHECK(cudaGraphLaunch(recording->executable, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    int want = 0x01010101;
    program.expect_equal("what a graph in managed memory wrote", &recording->value, &want, 1);
    CUDA_CHECK(cudaGraphExecDestroy(recording->executable));
    CUDA_CHECK(cudaGraphDestroy(recording->graph));
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaFree(recording));
}

int main(int argc, char **argv) {
    Program program("managedMemory", "shares managed memory between host and kernels", "floats", 100003, 64, 1L << 26);
    program.parse(argc, argv);
    int supported = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrManagedMemory, 0));
    if (!supported) {
        program.die("the device has no managed memory");
    }
    Random random(program.seed());
    while (program.next_round()) {
        run_turns(program, static_cast<size_t>(program.size()), random);
        run_list(program);
        run_copies(program);
        run_large(program, random);
        run_large_work(program);
        run_attributes(program);
        run_structures(program);
    }
    return program.finish();
}
