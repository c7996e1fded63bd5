// asyncAPI: the CPU continues while copies and a kernel run in a stream.
//
// Pinned memory, asynchronous copies in both directions, and an event that the CPU
// polls. The number of polls is printed but not checked.

#include "common/check.h"

#include <vector>

__global__ void add_in_place(int *values, int amount, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] += amount;
    }
}

int main(int argc, char **argv) {
    Program program("asyncAPI", "overlaps the CPU with copies and a kernel", "integers", 1 << 20, 1, 1L << 30);
    program.parse(argc, argv);
    size_t count = static_cast<size_t>(program.size()), bytes = count * sizeof(int);
    const int amount = 26;

    int *pinned = nullptr;
    CUDA_CHECK(cudaMallocHost(&pinned, bytes));
    DeviceArray<int> device(count);
    cudaStream_t stream;
    cudaEvent_t start, stop;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaEventCreate(&start));
    CUDA_CHECK(cudaEventCreate(&stop));
    Random random(program.seed());
    std::vector<int> want(count);
    for (int &value : want) {
        value = static_cast<int>(random.below(1u << 30));
    }

    while (program.next_round()) {
        std::memcpy(pinned, want.data(), bytes);
        for (int &value : want) {
            value += amount;
        }
        CUDA_CHECK(cudaEventRecord(start, stream));
        CUDA_CHECK(cudaMemcpyAsync(device.get(), pinned, bytes, cudaMemcpyHostToDevice, stream));
        add_in_place<<<blocks_for(count, 512), 512, 0, stream>>>(device.get(), amount, count);
        LAUNCH_CHECK();
        CUDA_CHECK(cudaMemcpyAsync(pinned, device.get(), bytes, cudaMemcpyDeviceToHost, stream));
        CUDA_CHECK(cudaEventRecord(stop, stream));

        unsigned long asked = 0;
        cudaError_t status;
        while ((status = cudaEventQuery(stop)) == cudaErrorNotReady) {
            ++asked;
        }
        CUDA_CHECK(status);
        // cudaErrorNotReady is a result, not an error.
        program.expect_equal("the last error", static_cast<int>(cudaPeekAtLastError()), static_cast<int>(cudaSuccess));
        float milliseconds = -1;
        CUDA_CHECK(elapsed(&milliseconds, start, stop));
        program.expect(milliseconds >= 0, "the stop event precedes the start event");
        program.note("gpu_ms=%.3f asked=%lu", milliseconds, asked);
        program.digest(pinned, bytes);
        program.expect_equal("the values", pinned, want.data(), count);
        for (int &value : want) {
            value &= (1 << 30) - 1;
        }
    }
    CUDA_CHECK(cudaEventDestroy(stop));
    CUDA_CHECK(cudaEventDestroy(start));
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaFreeHost(pinned));
    return program.finish();
}
