// managedMemory: one pointer for program and kernels.
//
// cudaMallocManaged for memory that both sides write in turn, a linked list that a
// kernel follows, copies and memsets of managed memory, attributes of pointers
// and ranges, advice and prefetches.

#include "common/check.h"

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

static void run_attributes(Program &program) {
    const size_t bytes = 1 << 20;
    char *memory = managed<char>(bytes);
    cudaPointerAttributes attributes;
    CUDA_CHECK(cudaPointerGetAttributes(&attributes, memory + 5));
    program.expect(attributes.type == cudaMemoryTypeManaged, "managed memory is of another type");
    program.expect(attributes.hostPointer == memory + 5 && attributes.devicePointer == memory + 5,
                   "managed memory has other addresses on host or device");

    cudaMemLocation host = {};
    host.type = cudaMemLocationTypeHost;
    int value = 0;
    CUDA_CHECK(cudaMemAdvise(memory, bytes / 2, cudaMemAdviseSetReadMostly, host));
    CUDA_CHECK(cudaMemRangeGetAttribute(&value, sizeof value, cudaMemRangeAttributeReadMostly, memory, bytes / 2));
    program.expect(value == 1, "advice is forgotten");
    CUDA_CHECK(cudaMemRangeGetAttribute(&value, sizeof value, cudaMemRangeAttributeReadMostly, memory, bytes));
    program.expect(value == 0, "advice holds for more than its range");
    CUDA_CHECK(cudaMemAdvise(memory, bytes, cudaMemAdviseSetPreferredLocation, host));
    CUDA_CHECK(cudaMemRangeGetAttribute(&value, sizeof value, cudaMemRangeAttributePreferredLocation, memory, bytes));
    program.expect(value == cudaCpuDeviceId, "the preferred location is not the host");
    CUDA_CHECK(cudaMemPrefetchAsync(memory, bytes, host, 0));
    CUDA_CHECK(cudaDeviceSynchronize());

    program.expect(cudaMemAdvise(memory, bytes * 4, cudaMemAdviseSetReadMostly, host) == cudaErrorInvalidValue, "a range past its allocation is no error");
    cudaGetLastError();
    CUDA_CHECK(cudaFree(memory));
    program.expect(cudaMemAdvise(memory, bytes, cudaMemAdviseSetReadMostly, host) == cudaErrorInvalidValue, "advice about freed memory is no error");
    cudaGetLastError();
    void *nothing = nullptr;
    program.expect(cudaMallocManaged(&nothing, 16, 7u) == cudaErrorInvalidValue, "unknown flags is no error");
    cudaGetLastError();
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
        run_attributes(program);
    }
    return program.finish();
}
