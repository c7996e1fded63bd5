// reduction: sums an array in several ways, each a refinement of the one before.
//
// Interleaved and sequential shared memory, two elements per load, warp shuffles
// down and as a butterfly, atomics, and counting by votes; in int, float and
// double. All sums are exact (small integers and multiples of 1/16), so every
// way must give the CPU's result bit for bit.

#include "common/check.h"

#include <vector>

constexpr int block_size = 256;
constexpr unsigned everyone = 0xffffffffu;

template <typename T> __global__ void interleaved(const T *input, T *sums, unsigned count) {
    __shared__ T shared[block_size];
    unsigned at = blockIdx.x * block_size + threadIdx.x;
    shared[threadIdx.x] = at < count ? input[at] : T(0);
    for (unsigned stride = 1; stride < block_size; stride *= 2) {
        __syncthreads();
        if (threadIdx.x % (2 * stride) == 0) {
            shared[threadIdx.x] += shared[threadIdx.x + stride];
        }
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = shared[0];
    }
}

template <typename T> __global__ void sequential(const T *input, T *sums, unsigned count) {
    extern __shared__ __align__(16) unsigned char memory[];
    T *shared = reinterpret_cast<T *>(memory);
    unsigned at = blockIdx.x * (2 * block_size) + threadIdx.x;
    T sum = at < count ? input[at] : T(0);
    if (at + block_size < count) {
        sum += input[at + block_size];
    }
    shared[threadIdx.x] = sum;
    for (unsigned half = block_size / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            shared[threadIdx.x] += shared[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = shared[0];
    }
}

template <typename T> __device__ T warp_sum_down(T value) {
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_down_sync(everyone, value, offset);
    }
    return value;
}

template <typename T> __device__ T warp_sum_butterfly(T value) {
    for (int mask = 16; mask > 0; mask /= 2) {
        value += __shfl_xor_sync(everyone, value, mask);
    }
    return value;
}

// A grid-stride loop, then shuffles within the warps and across them.
template <typename T, bool butterfly> __global__ void shuffled(const T *input, T *sums, unsigned count) {
    __shared__ T of_warp[block_size / 32];
    T sum = 0;
    for (unsigned at = blockIdx.x * block_size + threadIdx.x; at < count; at += gridDim.x * block_size) {
        sum += input[at];
    }
    sum = butterfly ? warp_sum_butterfly(sum) : warp_sum_down(sum);
    if (threadIdx.x % 32 == 0) {
        of_warp[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < block_size / 32 ? of_warp[threadIdx.x] : T(0);
        sum = butterfly ? warp_sum_butterfly(sum) : warp_sum_down(sum);
        if (threadIdx.x == 0) {
            sums[blockIdx.x] = sum;
        }
    }
}

template <typename T> __global__ void atomic(const T *input, T *sums, unsigned count) {
    T sum = 0;
    for (unsigned at = blockIdx.x * block_size + threadIdx.x; at < count; at += gridDim.x * block_size) {
        sum += input[at];
    }
    sum = warp_sum_down(sum);
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&sums[0], sum);
    }
}

struct Votes {
    unsigned positive;
    unsigned warps_all;
    unsigned warps_any;
    int least;
    int greatest;
    unsigned bits_or;
    unsigned bits_xor;
};

// Counts by votes, and applies the other atomics to the same numbers.
__global__ void vote(const int *input, Votes *votes, unsigned count) {
    for (unsigned start = blockIdx.x * block_size; start < count; start += gridDim.x * block_size) {
        unsigned at = start + threadIdx.x;
        int value = at < count ? input[at] : 0;
        unsigned ballot = __ballot_sync(everyone, value > 0);
        int all = __all_sync(everyone, value > -90), any = __any_sync(everyone, value > 95);
        if (threadIdx.x % 32 == 0) {
            atomicAdd(&votes->positive, static_cast<unsigned>(__popc(ballot)));
            atomicAdd(&votes->warps_all, all ? 1u : 0u);
            atomicAdd(&votes->warps_any, any ? 1u : 0u);
        }
        if (at < count) {
            atomicMin(&votes->least, value);
            atomicMax(&votes->greatest, value);
            atomicOr(&votes->bits_or, static_cast<unsigned>(value));
            atomicXor(&votes->bits_xor, static_cast<unsigned>(value) * 2654435761u);
        }
    }
}

template <typename T>
static void check_sum(Program &program, const char *way, const DeviceArray<T> &sums, size_t used, T want) {
    std::vector<T> got(sums.count());
    sums.download(got.data());
    T sum = 0;
    for (size_t at = 0; at < used; ++at) {
        sum += got[at];
    }
    program.digest(&sum, sizeof sum);
    program.expect_equal(way, sum, want);
}

template <typename T> static void sum_all_ways(Program &program, const char *type, const std::vector<T> &input) {
    unsigned count = static_cast<unsigned>(input.size());
    T want = 0;
    for (T value : input) {
        want += value;
    }
    unsigned blocks = blocks_for(count, block_size);
    DeviceArray<T> device(input.data(), count), sums(blocks);
    char way[64];
    auto named = [&](const char *what) {
        std::snprintf(way, sizeof way, "the %s sum of %s", what, type);
        return way;
    };

    sums.spoil();
    interleaved<<<blocks, block_size>>>(device.get(), sums.get(), count);
    LAUNCH_CHECK();
    check_sum(program, named("interleaved"), sums, blocks, want);

    unsigned fewer = blocks_for(count, 2 * block_size);
    sums.spoil();
    sequential<<<fewer, block_size, block_size * sizeof(T)>>>(device.get(), sums.get(), count);
    LAUNCH_CHECK();
    check_sum(program, named("sequential"), sums, fewer, want);

    unsigned few = blocks < 16 ? blocks : 16;
    sums.spoil();
    shuffled<T, false><<<few, block_size>>>(device.get(), sums.get(), count);
    LAUNCH_CHECK();
    check_sum(program, named("shuffled"), sums, few, want);

    sums.spoil();
    shuffled<T, true><<<few, block_size>>>(device.get(), sums.get(), count);
    LAUNCH_CHECK();
    check_sum(program, named("butterfly"), sums, few, want);

    CUDA_CHECK(cudaMemset(sums.get(), 0, sizeof(T)));
    atomic<<<few, block_size>>>(device.get(), sums.get(), count);
    LAUNCH_CHECK();
    check_sum(program, named("atomic"), sums, 1, want);
}

static void count_votes(Program &program, const std::vector<int> &input) {
    Votes start = {0, 0, 0, INT32_MAX, INT32_MIN, 0, 0}, want = start, got;
    for (size_t first = 0; first < input.size(); first += 32) {
        bool all = true, any = false;
        for (size_t at = first; at < first + 32; ++at) {
            int value = at < input.size() ? input[at] : 0;
            want.positive += value > 0;
            all &= value > -90;
            any |= value > 95;
            if (at < input.size()) {
                want.least = value < want.least ? value : want.least;
                want.greatest = value > want.greatest ? value : want.greatest;
                want.bits_or |= static_cast<unsigned>(value);
                want.bits_xor ^= static_cast<unsigned>(value) * 2654435761u;
            }
        }
        want.warps_all += all;
        want.warps_any += any;
    }
    // In the last block, whole warps without elements vote.
    size_t padded = (input.size() + 31) / 32 * 32, covered = blocks_for(input.size(), block_size) * size_t{block_size};
    want.warps_all += static_cast<unsigned>((covered - padded) / 32);

    DeviceArray<int> device(input.data(), input.size());
    DeviceArray<Votes> votes(&start, 1);
    vote<<<8, block_size>>>(device.get(), votes.get(), static_cast<unsigned>(input.size()));
    LAUNCH_CHECK();
    votes.download(&got);
    program.digest(&got, sizeof got);
    program.expect_equal("the positive numbers", got.positive, want.positive);
    program.expect_equal("the warps with all over -90", got.warps_all, want.warps_all);
    program.expect_equal("the warps with any over 95", got.warps_any, want.warps_any);
    program.expect_equal("the least", got.least, want.least);
    program.expect_equal("the greatest", got.greatest, want.greatest);
    program.expect_equal("the bits set", got.bits_or, want.bits_or);
    program.expect_equal("the exclusive or", got.bits_xor, want.bits_xor);
}

int main(int argc, char **argv) {
    Program program("reduction", "sums an array in several ways", "elements", 40007, 1, 1L << 28);
    program.parse(argc, argv);
    size_t count = static_cast<size_t>(program.size());

    Random random(program.seed());
    std::vector<int> integers(count);
    std::vector<float> floats(count);
    std::vector<double> doubles(count);
    for (size_t at = 0; at < count; ++at) {
        integers[at] = static_cast<int>(random.below(200)) - 100;
        floats[at] = random.sixteenth();
        doubles[at] = random.sixteenth() * 1e-3f;
        doubles[at] = std::floor(doubles[at] * 1048576.0) / 1048576.0;
    }
    while (program.next_round()) {
        sum_all_ways(program, "int", integers);
        sum_all_ways(program, "float", floats);
        sum_all_ways(program, "double", doubles);
        count_votes(program, integers);
    }
    return program.finish();
}
