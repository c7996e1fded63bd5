// dynamicParallelism: kernels that launch kernels.
//
// A quicksort whose parts are separate grids, launches of many blocks, copies and
// memsets from kernels, order within a block, and tail launches.

#include "common/check.h"

#include <algorithm>
#include <string>
#include <vector>

constexpr int SMALL = 24;
constexpr int DEEPEST = 12;

__device__ void insertion(unsigned *values, int from, int to) {
    for (int at = from + 1; at <= to; ++at) {
        unsigned value = values[at];
        int before = at - 1;
        for (; before >= from && values[before] > value; --before) {
            values[before + 1] = values[before];
        }
        values[before + 1] = value;
    }
}

__global__ void quicksort(unsigned *values, int from, int to, int depth) {
    if (depth >= DEEPEST || to - from < SMALL) {
        insertion(values, from, to);
        return;
    }
    unsigned pivot = values[(from + to) / 2];
    int left = from, right = to;
    while (left <= right) {
        while (values[left] < pivot) {
            ++left;
        }
        while (values[right] > pivot) {
            --right;
        }
        if (left <= right) {
            unsigned value = values[left];
            values[left++] = values[right];
            values[right--] = value;
        }
    }
    cudaStream_t stream;
    if (from < right) {
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        quicksort<<<1, 1, 0, stream>>>(values, from, right, depth + 1);
        cudaStreamDestroy(stream);
    }
    if (left < to) {
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        quicksort<<<1, 1, 0, stream>>>(values, left, to, depth + 1);
        cudaStreamDestroy(stream);
    }
}

__global__ void add(unsigned *counts, int at, unsigned by) {
    atomicAdd(counts + at, by);
}

// Each thread of each block launches its own grids.
__global__ void many(unsigned *counts, int *errors) {
    add<<<2, 8>>>(counts, blockIdx.x, threadIdx.x + 1);
    if (cudaGetLastError() != cudaSuccess) {
        atomicAdd(errors, 1);
    }
}

// As libraries launch, which fill the buffer themselves.
__global__ void through_a_buffer(unsigned *counts, cudaError_t *error) {
    struct Parameters {
        unsigned *counts;
        int at;
        unsigned by;
    };
    void *buffer = cudaGetParameterBuffer(64, sizeof(Parameters));
    if (buffer == nullptr) {
        *error = cudaErrorMemoryAllocation;
        return;
    }
    *static_cast<Parameters *>(buffer) = {counts, 2, 5};
    *error = cudaLaunchDevice(reinterpret_cast<void *>(add), buffer, dim3(2, 3), dim3(7), 0, nullptr);
}

__global__ void times(unsigned *value, unsigned factor, unsigned plus) {
    *value = *value * factor + plus;
}

// In one stream: 1, then 1 * 3 + 2, then 5 * 7 + 4; the tail comes last.
__global__ void in_order(unsigned *values) {
    times<<<1, 1, 0, cudaStreamTailLaunch>>>(values, 2, 1);
    times<<<1, 1>>>(values, 0, 1);
    times<<<1, 1>>>(values, 3, 2);
    times<<<1, 1>>>(values, 7, 4);
}

// The parent's earlier writes are visible, also to copies and memsets.
__global__ void moves(unsigned *values, unsigned *copies, int count) {
    for (int at = 0; at < count; ++at) {
        values[at] = at * 5u;
    }
    cudaMemcpyAsync(copies, values, count * sizeof(unsigned), cudaMemcpyDeviceToDevice, 0);
    // Zero: NVIDIA's device runtime 13.0 writes that whatever the value.
    copies[count] = 1;
    cudaMemsetAsync(copies + count, 0, count * sizeof(unsigned), 0);
    add<<<1, 1>>>(copies, 3, 1000);
}

constexpr int LONGEST = 128;

// The name and description of an error, in kernels.
__global__ void describe(char *words, cudaError_t error) {
    const char *texts[] = {cudaGetErrorName(error), cudaGetErrorString(error)};
    for (int text = 0; text < 2; ++text) {
        for (int at = 0; at < LONGEST - 1 && texts[text][at]; ++at) {
            words[text * LONGEST + at] = texts[text][at];
        }
    }
}

static void run_sort(Program &program, int count, Random &random) {
    std::vector<unsigned> values(count);
    for (unsigned &value : values) {
        value = static_cast<unsigned>(random.below(100000));
    }
    std::vector<unsigned> want = values;
    std::sort(want.begin(), want.end());
    unsigned *device = nullptr;
    size_t bytes = count * sizeof(unsigned);
    CUDA_CHECK(cudaMalloc(&device, bytes));
    CUDA_CHECK(cudaMemcpy(device, values.data(), bytes, cudaMemcpyHostToDevice));
    quicksort<<<1, 1>>>(device, 0, count - 1, 0);
    LAUNCH_CHECK();
    // A copy behind the launch waits for all descendants.
    CUDA_CHECK(cudaMemcpy(values.data(), device, bytes, cudaMemcpyDeviceToHost));
    program.expect_equal("the sorted values", values.data(), want.data(), values.size());
    program.digest(values.data(), bytes);
    CUDA_CHECK(cudaFree(device));
}

static void run_launches(Program &program) {
    constexpr int BLOCKS = 6, THREADS = 40, COUNT = 100;
    unsigned *memory = nullptr;
    CUDA_CHECK(cudaMalloc(&memory, 3 * COUNT * sizeof(unsigned)));
    CUDA_CHECK(cudaMemset(memory, 0, 3 * COUNT * sizeof(unsigned)));
    many<<<BLOCKS, THREADS>>>(memory, reinterpret_cast<int *>(memory + BLOCKS));
    LAUNCH_CHECK();
    unsigned found[3 * COUNT];
    CUDA_CHECK(cudaMemcpy(found, memory, sizeof found, cudaMemcpyDeviceToHost));
    for (int block = 0; block < BLOCKS; ++block) {
        program.expect_equal("a block's launches", found[block], 16u * THREADS * (THREADS + 1) / 2);
    }
    program.expect_equal("failed launches", found[BLOCKS], 0u);

    CUDA_CHECK(cudaMemset(memory, 0, 4 * sizeof(unsigned)));
    through_a_buffer<<<1, 1>>>(memory, reinterpret_cast<cudaError_t *>(memory + 3));
    LAUNCH_CHECK();
    CUDA_CHECK(cudaMemcpy(found, memory, 4 * sizeof(unsigned), cudaMemcpyDeviceToHost));
    program.expect_equal("the error of a launch through a buffer", found[3], 0u);
    program.expect_equal("a launch through a buffer", found[2], 2u * 3 * 7 * 5);

    in_order<<<1, 1>>>(memory);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaMemcpy(found, memory, sizeof(unsigned), cudaMemcpyDeviceToHost));
    program.expect_equal("launches in order", found[0], 2u * (5 * 7 + 4) + 1);

    moves<<<1, 1>>>(memory, memory + COUNT, COUNT);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaMemcpy(found, memory, sizeof found, cudaMemcpyDeviceToHost));
    for (int at = 0; at < COUNT; ++at) {
        unsigned more = at == 3 ? 1000 : 0;
        if (!program.expect_equal("a kernel's copy", found[COUNT + at], at * 5u + more) ||
            !program.expect_equal("a kernel's memset", found[2 * COUNT + at], 0u)) {
            break;
        }
    }
    CUDA_CHECK(cudaFree(memory));

    char *words = nullptr;
    CUDA_CHECK(cudaMalloc(&words, 2 * LONGEST));
    for (cudaError_t error : {cudaSuccess, cudaErrorInvalidValue, cudaErrorIllegalAddress}) {
        CUDA_CHECK(cudaMemset(words, 0, 2 * LONGEST));
        describe<<<1, 1>>>(words, error);
        LAUNCH_CHECK();
        char texts[2 * LONGEST];
        CUDA_CHECK(cudaMemcpy(texts, words, sizeof texts, cudaMemcpyDeviceToHost));
        program.expect(std::string(texts) == cudaGetErrorName(error), "an error has a different name");
        program.expect(std::string(texts + LONGEST) == cudaGetErrorString(error), "an error has a different description");
    }
    CUDA_CHECK(cudaFree(words));
}

int main(int argc, char **argv) {
    Program program("dynamicParallelism", "launches kernels from kernels", "values", 2000, 64, 1L << 20);
    program.parse(argc, argv);
    Random random(program.seed());
    while (program.next_round()) {
        run_sort(program, static_cast<int>(program.size()), random);
        run_launches(program);
    }
    return program.finish();
}
