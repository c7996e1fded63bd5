// clusters: blocks that run together and access each other's shared memory.
//
// A ring of neighbours, a histogram whose counters lie in the blocks of a cluster,
// clusters of a size that the kernel sets and of one that the launch sets. Sizes that
// the launch itself refuses.

#include "common/check.h"

#include <cooperative_groups.h>

#include <vector>

namespace cg = cooperative_groups;

constexpr int BINS = 256;

// Each block reads what the next one of its cluster of four wrote.
__global__ void __cluster_dims__(4, 1, 1) neighbours(unsigned *found) {
    __shared__ unsigned own;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) {
        own = blockIdx.x * 10 + 1;
    }
    cluster.sync();
    unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    if (threadIdx.x == 0) {
        found[blockIdx.x] = *cluster.map_shared_rank(&own, next);
    }
    // Shared memory must stay valid until all have read it.
    cluster.sync();
}

// Every block of a cluster counts some of the values, for all blocks.
__global__ void histogram(unsigned *counts, const unsigned *values, size_t number) {
    extern __shared__ unsigned bins[];
    cg::cluster_group cluster = cg::this_cluster();
    unsigned blocks = cluster.num_blocks(), each = BINS / blocks;
    for (unsigned bin = threadIdx.x; bin < each; bin += blockDim.x) {
        bins[bin] = 0;
    }
    cluster.sync();
    size_t first = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (size_t at = first; at < number; at += static_cast<size_t>(gridDim.x) * blockDim.x) {
        unsigned bin = values[at] % BINS;
        atomicAdd(cluster.map_shared_rank(bins, bin / each) + bin % each, 1);
    }
    cluster.sync();
    for (unsigned bin = threadIdx.x; bin < each; bin += blockDim.x) {
        atomicAdd(counts + cluster.block_rank() * each + bin, bins[bin]);
    }
}

static void run_neighbours(Program &program) {
    constexpr unsigned BLOCKS = 16;
    unsigned *found = nullptr;
    CUDA_CHECK(cudaMalloc(&found, BLOCKS * sizeof(unsigned)));
    neighbours<<<BLOCKS, 32>>>(found);
    LAUNCH_CHECK();
    unsigned got[BLOCKS];
    CUDA_CHECK(cudaMemcpy(got, found, sizeof got, cudaMemcpyDeviceToHost));
    for (unsigned block = 0; block < BLOCKS; ++block) {
        program.expect_equal("a neighbour's word", got[block], (block / 4 * 4 + (block % 4 + 1) % 4) * 10 + 1);
    }
    CUDA_CHECK(cudaFree(found));
}

static void run_histogram(Program &program, size_t number, unsigned blocks, Random &random) {
    std::vector<unsigned> values(number), want(BINS), got(BINS);
    for (unsigned &value : values) {
        value = static_cast<unsigned>(random.below(100000));
        ++want[value % BINS];
    }
    unsigned *counts = nullptr, *device = nullptr;
    CUDA_CHECK(cudaMalloc(&counts, BINS * sizeof(unsigned)));
    CUDA_CHECK(cudaMalloc(&device, number * sizeof(unsigned)));
    CUDA_CHECK(cudaMemset(counts, 0, BINS * sizeof(unsigned)));
    CUDA_CHECK(cudaMemcpy(device, values.data(), number * sizeof(unsigned), cudaMemcpyHostToDevice));
    cudaLaunchAttribute size[1];
    size[0].id = cudaLaunchAttributeClusterDimension;
    size[0].val.clusterDim.x = blocks;
    size[0].val.clusterDim.y = size[0].val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = 2 * blocks;
    config.blockDim = 128;
    config.dynamicSmemBytes = BINS / blocks * sizeof(unsigned);
    config.attrs = size;
    config.numAttrs = 1;
    int clusters = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, histogram, &config));
    program.expect(clusters > 0, "no cluster fits");
    CUDA_CHECK(cudaLaunchKernelEx(&config, histogram, counts, static_cast<const unsigned *>(device), number));
    CUDA_CHECK(cudaMemcpy(got.data(), counts, BINS * sizeof(unsigned), cudaMemcpyDeviceToHost));
    program.expect_equal("the histogram", got.data(), want.data(), BINS);
    program.digest(got.data(), BINS * sizeof(unsigned));
    CUDA_CHECK(cudaFree(counts));
    CUDA_CHECK(cudaFree(device));
}

// Never runs with a cluster that does not exist.
__global__ void mark(unsigned *word) { *word = 1; }
__global__ void mark_large(unsigned *word) { *word = 1; }

static cudaError_t launch_clusters(void (*kernel)(unsigned *), unsigned *word, unsigned grid, unsigned blocks) {
    cudaLaunchAttribute size[1];
    size[0].id = cudaLaunchAttributeClusterDimension;
    size[0].val.clusterDim.x = blocks;
    size[0].val.clusterDim.y = size[0].val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = 32;
    config.attrs = size;
    config.numAttrs = 1;
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, word);
    cudaGetLastError();
    return error;
}

static void run_refusals(Program &program) {
    unsigned *words = nullptr;
    CUDA_CHECK(cudaMalloc(&words, 64 * sizeof(unsigned)));
    struct {
        const char *what;
        void (*kernel)(unsigned *);
        unsigned grid, blocks;
        cudaError_t want;
    } launches[] = {
        {"8 blocks", mark, 16, 8, cudaSuccess},
        {"9 blocks", mark, 18, 9, cudaErrorInvalidClusterSize},
        {"a grid of no whole clusters", mark, 8, 3, cudaErrorInvalidClusterSize},
        {"17 blocks", mark_large, 34, 17, cudaErrorInvalidClusterSize},
        {"the required size", neighbours, 8, 4, cudaSuccess},
        {"another than the required size", neighbours, 8, 2, cudaErrorInvalidClusterSize},
    };
    CUDA_CHECK(cudaFuncSetAttribute(mark_large, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    for (const auto &launch : launches) {
        cudaError_t error = launch_clusters(launch.kernel, words, launch.grid, launch.blocks);
        program.expect_equal(launch.what, static_cast<int>(error), static_cast<int>(launch.want));
    }
    neighbours<<<6, 32>>>(words);
    program.expect_equal("a grid of no whole required clusters", static_cast<int>(cudaGetLastError()),
                         static_cast<int>(cudaErrorInvalidClusterSize));
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaFree(words));
}

int main(int argc, char **argv) {
    Program program("clusters", "lets blocks of clusters reach each other's memory", "values", 20000, 64, 1L << 24);
    program.parse(argc, argv);
    int supported = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrClusterLaunch, 0));
    if (!supported) {
        program.die("the device has no clusters");
    }
    Random random(program.seed());
    while (program.next_round()) {
        run_neighbours(program);
        run_refusals(program);
        for (unsigned blocks : {1u, 2u, 8u}) {
            run_histogram(program, static_cast<size_t>(program.size()), blocks, random);
        }
    }
    return program.finish();
}
