// cooperativeGroups: groups from four threads to the whole grid.
//
// Steps of a stencil separated by grid.sync(), in a grid as large as the
// occupancy calculator allows (at most 24 blocks); sums, shuffles and votes in
// tiles of 4, 16 and 32; the group of the threads that took a branch; and the
// error for a grid that cannot be resident. Integers, compared exactly.

#include "common/check.h"

#include <algorithm>
#include <cooperative_groups.h>
#include <vector>

namespace cg = cooperative_groups;

constexpr int block_size = 128;
constexpr int steps = 10;

__global__ void stencil(unsigned *one, unsigned *two, unsigned count, unsigned *blocks_seen) {
    cg::grid_group grid = cg::this_grid();
    cg::thread_block block = cg::this_thread_block();
    unsigned *from = one, *to = two;
    for (int step = 0; step < steps; ++step) {
        for (unsigned at = grid.thread_rank(); at < count; at += grid.size()) {
            unsigned left = from[at ? at - 1 : count - 1], right = from[at + 1 < count ? at + 1 : 0];
            to[at] = left + 3 * from[at] + (right ^ static_cast<unsigned>(step));
        }
        grid.sync();
        unsigned *last = from;
        from = to;
        to = last;
    }
    if (block.thread_rank() == 0) {
        atomicAdd(blocks_seen, 1u);
    }
    grid.sync();
    // Every thread sees what every block added before the barrier.
    if (grid.thread_rank() == grid.size() - 1) {
        blocks_seen[1] = blocks_seen[0] * 1000 + gridDim.x;
    }
}

template <unsigned width> __device__ unsigned tile_sum(cg::thread_block_tile<width> tile, unsigned value) {
    for (unsigned offset = width / 2; offset > 0; offset /= 2) {
        value += tile.shfl_down(value, offset);
    }
    return tile.shfl(value, 0);
}

template <unsigned width> __global__ void tiles(const unsigned *input, unsigned *output) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<width> tile = cg::tiled_partition<width>(block);
    unsigned at = blockIdx.x * block_size + block.thread_rank();
    unsigned value = input[at];
    unsigned sum = tile_sum<width>(tile, value);
    unsigned odd = __popc(tile.ballot(value & 1));
    unsigned neighbour = tile.shfl_xor(value, 1);
    unsigned marks = (tile.any(value > 4000000000u) ? 1u : 0u) | (tile.all(value > 100000000u) ? 2u : 0u);
    tile.sync();
    output[at] = sum + 7 * odd + (neighbour ^ marks) + tile.thread_rank() + 1000 * tile.meta_group_rank();
}

// Threads with an odd value are counted with one atomic per group.
__global__ void coalesced(const unsigned *input, unsigned *places, unsigned *total, unsigned count) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count && (input[at] & 1)) {
        cg::coalesced_group active = cg::coalesced_threads();
        unsigned base = 0;
        if (active.thread_rank() == 0) {
            base = atomicAdd(total, active.size());
        }
        places[at] = active.shfl(base, 0) + active.thread_rank();
    }
}

static void run_grid(Program &program, const std::vector<unsigned> &input) {
    unsigned count = static_cast<unsigned>(input.size());
    int cooperative = 0, multiprocessors = 0, per_multiprocessor = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, 0));
    CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, stencil, block_size, 0));
    if (!cooperative || per_multiprocessor < 1 || multiprocessors < 1) {
        program.die("no cooperative launch: %d multiprocessors of %d blocks", multiprocessors, per_multiprocessor);
    }
    unsigned resident = static_cast<unsigned>(multiprocessors) * per_multiprocessor;
    unsigned blocks = std::min(resident, 24u);

    std::vector<unsigned> want = input, next(count), got(count);
    for (int step = 0; step < steps; ++step) {
        for (unsigned at = 0; at < count; ++at) {
            next[at] = want[at ? at - 1 : count - 1] + 3 * want[at] +
                       (want[at + 1 < count ? at + 1 : 0] ^ static_cast<unsigned>(step));
        }
        want.swap(next);
    }
    DeviceArray<unsigned> one(input.data(), count), two(count), seen(2);
    CUDA_CHECK(cudaMemset(seen.get(), 0, seen.bytes()));
    unsigned *one_pointer = one.get(), *two_pointer = two.get(), *seen_pointer = seen.get();
    void *arguments[] = {&one_pointer, &two_pointer, &count, &seen_pointer};
    CUDA_CHECK(cudaLaunchCooperativeKernel(stencil, dim3(blocks), dim3(block_size), arguments, 0, nullptr));
    (steps % 2 ? two : one).download(got.data());
    unsigned counted[2];
    seen.download(counted);
    program.digest(got.data(), count * sizeof(unsigned));
    program.expect_equal("the stencil", got.data(), want.data(), count);
    program.expect_equal("the blocks seen after the barrier", counted[1], blocks * 1000 + blocks);

    cudaError_t status =
        cudaLaunchCooperativeKernel(stencil, dim3(resident + 1), dim3(block_size), arguments, 0, nullptr);
    if (status != cudaErrorCooperativeLaunchTooLarge) {
        program.fail("a cooperative grid that is too large gave %s", cudaGetErrorName(status));
    }
    (void)cudaGetLastError();
}

template <unsigned width>
static void run_tiles(Program &program, const char *what, const std::vector<unsigned> &input) {
    size_t count = input.size() / block_size * block_size;
    std::vector<unsigned> want(count), got(count);
    for (size_t first = 0; first < count; first += width) {
        unsigned sum = 0, odd = 0;
        bool any = false, all = true;
        for (size_t at = first; at < first + width; ++at) {
            sum += input[at];
            odd += input[at] & 1;
            any |= input[at] > 4000000000u;
            all &= input[at] > 100000000u;
        }
        for (unsigned rank = 0; rank < width; ++rank) {
            unsigned neighbour = input[first + (rank ^ 1)], marks = (any ? 1u : 0u) | (all ? 2u : 0u);
            want[first + rank] = sum + 7 * odd + (neighbour ^ marks) + rank +
                                 1000 * static_cast<unsigned>(first % block_size / width);
        }
    }
    DeviceArray<unsigned> from(input.data(), count), to(count);
    to.spoil();
    tiles<width><<<static_cast<unsigned>(count / block_size), block_size>>>(from.get(), to.get());
    LAUNCH_CHECK();
    to.download(got.data());
    program.digest(got.data(), count * sizeof(unsigned));
    program.expect_equal(what, got.data(), want.data(), count);
}

static void run_coalesced(Program &program, const std::vector<unsigned> &input) {
    unsigned count = static_cast<unsigned>(input.size()), odd = 0, total = 0;
    for (unsigned value : input) {
        odd += value & 1;
    }
    DeviceArray<unsigned> from(input.data(), count), places(count), device_total(1);
    places.spoil();
    CUDA_CHECK(cudaMemset(device_total.get(), 0, sizeof total));
    coalesced<<<blocks_for(count, block_size), block_size>>>(from.get(), places.get(), device_total.get(), count);
    LAUNCH_CHECK();
    std::vector<unsigned> got(count), taken;
    places.download(got.data());
    device_total.download(&total);
    program.expect_equal("the odd values", total, odd);
    // The ranks of the groups depend on timing; together they are 0 to odd - 1.
    for (unsigned at = 0; at < count; ++at) {
        if (input[at] & 1) {
            taken.push_back(got[at]);
        } else {
            program.expect(got[at] == 0xa5a5a5a5u, "an even value was stored");
        }
    }
    std::sort(taken.begin(), taken.end());
    for (unsigned at = 0; at < taken.size(); ++at) {
        program.expect(taken[at] == at, "a slot was taken twice or not at all");
    }
}

static void run_occupancy(Program &program) {
    int smallest_grid = 0, best_block = 0;
    CUDA_CHECK(cudaOccupancyMaxPotentialBlockSize(&smallest_grid, &best_block, stencil, 0, 0));
    program.expect(smallest_grid > 0 && best_block >= 32 && best_block <= 1024 && best_block % 32 == 0,
                   "the occupancy calculator suggests an impossible block");
    cudaFuncAttributes attributes;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, stencil));
    program.expect(attributes.maxThreadsPerBlock >= best_block, "the suggested block is larger than the kernel allows");
}

int main(int argc, char **argv) {
    Program program("cooperativeGroups", "synchronizes tiles, blocks and the grid", "elements", 20000, 256, 1L << 28);
    program.parse(argc, argv);
    Random random(program.seed());
    std::vector<unsigned> input(static_cast<size_t>(program.size()));
    for (unsigned &value : input) {
        value = static_cast<unsigned>(random.next());
    }
    while (program.next_round()) {
        run_occupancy(program);
        run_grid(program, input);
        run_tiles<4>(program, "tiles of 4", input);
        run_tiles<16>(program, "tiles of 16", input);
        run_tiles<32>(program, "tiles of 32", input);
        run_coalesced(program, input);
    }
    return program.finish();
}
