// histogram: counts bytes in 64 and in 256 bins.
//
// 256 bins: one histogram per warp in shared memory, counted with shared atomics
// and added up per block. 64 bins (the upper six bits): one per block in dynamic
// shared memory, added to the result with global atomics. Counts are integers
// and compared exactly.

#include "common/check.h"

#include <vector>

constexpr int block_size = 192;
constexpr int warps = block_size / 32;
constexpr int partial_blocks = 48;

__global__ void count_256(const unsigned char *data, size_t bytes, unsigned *partial) {
    __shared__ unsigned counts[warps][256];
    for (int at = threadIdx.x; at < warps * 256; at += block_size) {
        counts[at / 256][at % 256] = 0;
    }
    __syncthreads();
    unsigned *mine = counts[threadIdx.x / 32];
    const unsigned *words = reinterpret_cast<const unsigned *>(data);
    size_t step = static_cast<size_t>(gridDim.x) * block_size;
    size_t first = static_cast<size_t>(blockIdx.x) * block_size + threadIdx.x;
    for (size_t at = first; at < bytes / 4; at += step) {
        unsigned word = words[at];
        atomicAdd(&mine[word & 255], 1u);
        atomicAdd(&mine[word >> 8 & 255], 1u);
        atomicAdd(&mine[word >> 16 & 255], 1u);
        atomicAdd(&mine[word >> 24], 1u);
    }
    size_t rest = bytes / 4 * 4 + first;
    if (rest < bytes) {
        atomicAdd(&mine[data[rest]], 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < 256; bin += block_size) {
        unsigned sum = 0;
        for (int warp = 0; warp < warps; ++warp) {
            sum += counts[warp][bin];
        }
        partial[blockIdx.x * 256 + bin] = sum;
    }
}

// One block per bin.
__global__ void merge_256(const unsigned *partial, unsigned *histogram, int blocks) {
    __shared__ unsigned sums[64];
    unsigned sum = 0;
    for (int block = threadIdx.x; block < blocks; block += 64) {
        sum += partial[block * 256 + blockIdx.x];
    }
    sums[threadIdx.x] = sum;
    for (int half = 32; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        histogram[blockIdx.x] = sums[0];
    }
}

__global__ void count_64(const unsigned char *data, size_t bytes, unsigned *histogram) {
    extern __shared__ unsigned bins[];
    if (threadIdx.x < 64) {
        bins[threadIdx.x] = 0;
    }
    __syncthreads();
    size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < bytes; at += step) {
        atomicAdd(&bins[data[at] >> 2], 1u);
    }
    __syncthreads();
    if (threadIdx.x < 64) {
        atomicAdd(&histogram[threadIdx.x], bins[threadIdx.x]);
    }
}

int main(int argc, char **argv) {
    Program program("histogram", "counts bytes in 64 and 256 bins", "bytes", 700001, 1, 1L << 31);
    program.parse(argc, argv);
    size_t bytes = static_cast<size_t>(program.size());

    Random random(program.seed());
    std::vector<unsigned char> data(bytes);
    std::vector<unsigned> got(256), want_256(256), want_64(64);
    for (unsigned char &byte : data) {
        // The sum of two dice: bins of very different counts.
        uint64_t word = random.next();
        byte = static_cast<unsigned char>((word & 127) + (word >> 20 & 127));
        ++want_256[byte];
        ++want_64[byte >> 2];
    }
    DeviceArray<unsigned char> device_data(data.data(), bytes);
    DeviceArray<unsigned> partial(partial_blocks * 256), histogram(256);

    while (program.next_round()) {
        histogram.spoil();
        count_256<<<partial_blocks, block_size>>>(device_data.get(), bytes, partial.get());
        LAUNCH_CHECK();
        merge_256<<<256, 64>>>(partial.get(), histogram.get(), partial_blocks);
        LAUNCH_CHECK();
        histogram.download(got.data());
        program.digest(got.data(), 256 * sizeof(unsigned));
        program.expect_equal("the 256 bins", got.data(), want_256.data(), 256);

        CUDA_CHECK(cudaMemset(histogram.get(), 0, 64 * sizeof(unsigned)));
        count_64<<<32, 256, 64 * sizeof(unsigned)>>>(device_data.get(), bytes, histogram.get());
        LAUNCH_CHECK();
        histogram.download(got.data());
        program.digest(got.data(), 64 * sizeof(unsigned));
        program.expect_equal("the 64 bins", got.data(), want_64.data(), 64);
    }
    return program.finish();
}
