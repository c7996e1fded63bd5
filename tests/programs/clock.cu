// clock: each block times itself with clock64 while it looks for a minimum.
//
// The minima are compared with the CPU. Of the times only invariants are checked:
// every block stopped after it started, and globaltimer advanced.

#include "common/check.h"

#include <algorithm>
#include <cfloat>
#include <vector>

constexpr int block_size = 256;

static __device__ unsigned long long global_timer() {
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}

__global__ void timed_minimum(const float *input, float *minima, long long *cycles, unsigned long long *nanoseconds) {
    extern __shared__ float shared[];
    if (threadIdx.x == 0) {
        cycles[2 * blockIdx.x] = clock64();
        nanoseconds[2 * blockIdx.x] = global_timer();
    }
    const float *mine = input + static_cast<size_t>(blockIdx.x) * 2 * block_size;
    shared[threadIdx.x] = mine[threadIdx.x];
    shared[threadIdx.x + block_size] = mine[threadIdx.x + block_size];
    for (int half = block_size; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            shared[threadIdx.x] = fminf(shared[threadIdx.x], shared[threadIdx.x + half]);
        }
    }
    if (threadIdx.x == 0) {
        minima[blockIdx.x] = shared[0];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        cycles[2 * blockIdx.x + 1] = clock64();
        nanoseconds[2 * blockIdx.x + 1] = global_timer();
    }
}

int main(int argc, char **argv) {
    Program program("clock", "times blocks with clock64", "blocks", 64, 1, 1000000);
    program.parse(argc, argv);
    size_t blocks = static_cast<size_t>(program.size());

    Random random(program.seed());
    std::vector<float> input(blocks * 2 * block_size), minima(blocks), want(blocks, FLT_MAX);
    for (size_t at = 0; at < input.size(); ++at) {
        input[at] = random.uniform(-1e6f, 1e6f);
        float &least = want[at / (2 * block_size)];
        least = std::min(least, input[at]);
    }
    std::vector<long long> cycles(2 * blocks);
    std::vector<unsigned long long> nanoseconds(2 * blocks);
    DeviceArray<float> device_input(input.data(), input.size()), device_minima(blocks);
    DeviceArray<long long> device_cycles(2 * blocks);
    DeviceArray<unsigned long long> device_nanoseconds(2 * blocks);

    while (program.next_round()) {
        device_minima.spoil();
        timed_minimum<<<static_cast<unsigned>(blocks), block_size, 2 * block_size * sizeof(float)>>>(
            device_input.get(), device_minima.get(), device_cycles.get(), device_nanoseconds.get());
        LAUNCH_CHECK();
        device_minima.download(minima.data());
        device_cycles.download(cycles.data());
        device_nanoseconds.download(nanoseconds.data());
        program.digest(minima.data(), blocks * sizeof(float));
        program.expect_equal("the minima", minima.data(), want.data(), blocks);
        double sum = 0;
        for (size_t block = 0; block < blocks; ++block) {
            long long passed = cycles[2 * block + 1] - cycles[2 * block];
            program.expect(passed > 0, "a block's clock64 did not advance");
            program.expect(nanoseconds[2 * block + 1] >= nanoseconds[2 * block], "globaltimer went backward");
            sum += static_cast<double>(passed);
        }
        program.note("cycles_per_block=%.0f", sum / static_cast<double>(blocks));
    }
    return program.finish();
}
