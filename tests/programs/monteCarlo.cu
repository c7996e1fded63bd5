// monteCarlo: prices a European call from random paths, and counts points in a
// circle.
//
// The random numbers are computed on the device from the path's index alone, so the
// CPU follows the same paths: the points are compared exactly, the price
// to 1e-5 of the sum (logf, cosf and expf differ in their last bits). The price
// must also lie within five standard errors of the closed formula.

#include "common/check.h"

#include <vector>

constexpr int block_size = 128;
constexpr int blocks = 64;

struct Option {
    float stock;
    float strike;
    float drift;      // (riskless - volatility^2 / 2) * years
    float volatility; // volatility * sqrt(years)
    float discount;   // exp(-riskless * years)
};

// Two 32-bit numbers for a path (the finalizer of splitmix64).
__host__ __device__ static uint2 random_pair(uint64_t seed, uint64_t path) {
    uint64_t word = seed + (path + 1) * 0x9e3779b97f4a7c15ull;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
    word ^= word >> 31;
    return make_uint2(static_cast<unsigned>(word), static_cast<unsigned>(word >> 32));
}

__host__ __device__ static float payoff(const Option &option, uint2 pair) {
    // (0, 1] for the logarithm, [0, 1) for the angle.
    float radius_part = static_cast<float>((pair.x >> 8) + 1) * (1.0f / 16777216.0f);
    float angle_part = static_cast<float>(pair.y >> 8) * (1.0f / 16777216.0f);
    float normal = sqrtf(-2.0f * logf(radius_part)) * cosf(6.28318530717958648f * angle_part);
    float end = option.stock * expf(option.drift + option.volatility * normal);
    return fmaxf(end - option.strike, 0.0f);
}

__host__ __device__ static bool in_circle(uint2 pair) {
    uint64_t x = pair.x, y = pair.y;
    return (x * x >> 1) + (y * y >> 1) < 1ull << 63;
}

__global__ void walk(Option option, uint64_t seed, uint64_t paths, double *sums, double *squares,
                     unsigned long long *inside) {
    __shared__ double shared_sum[block_size];
    __shared__ double shared_square[block_size];
    double sum = 0, square = 0;
    unsigned long long hits = 0;
    for (uint64_t path = blockIdx.x * block_size + threadIdx.x; path < paths; path += blocks * block_size) {
        uint2 pair = random_pair(seed, path);
        float value = payoff(option, pair);
        sum += value;
        square += static_cast<double>(value) * value;
        hits += in_circle(pair);
    }
    atomicAdd(inside, hits);
    shared_sum[threadIdx.x] = sum;
    shared_square[threadIdx.x] = square;
    for (int half = block_size / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            shared_sum[threadIdx.x] += shared_sum[threadIdx.x + half];
            shared_square[threadIdx.x] += shared_square[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = shared_sum[0];
        squares[blockIdx.x] = shared_square[0];
    }
}

static double cumulative_normal(double d) { return 0.5 * std::erfc(-d / std::sqrt(2.0)); }

int main(int argc, char **argv) {
    Program program("monteCarlo", "prices an option from random paths", "paths", 100000, 1000, 1L << 40);
    program.parse(argc, argv);
    uint64_t paths = static_cast<uint64_t>(program.size());

    const double stock = 25, strike = 27, years = 1.5, riskless = 0.03, volatility = 0.25;
    const double deviation = volatility * std::sqrt(years);
    const double drift = (riskless - 0.5 * volatility * volatility) * years;
    const double d1 = (std::log(stock / strike) + drift + deviation * deviation) / deviation;
    const double exact =
        stock * cumulative_normal(d1) - strike * std::exp(-riskless * years) * cumulative_normal(d1 - deviation);
    Option option = {float(stock), float(strike), float(drift), float(deviation), float(std::exp(-riskless * years))};

    double want_sum = 0;
    unsigned long long want_inside = 0;
    for (uint64_t path = 0; program.verify() && path < paths; ++path) {
        uint2 pair = random_pair(program.seed(), path);
        want_sum += payoff(option, pair);
        want_inside += in_circle(pair);
    }
    DeviceArray<double> sums(blocks), squares(blocks);
    DeviceArray<unsigned long long> inside(1);
    std::vector<double> got_sums(blocks), got_squares(blocks);

    while (program.next_round()) {
        sums.spoil();
        squares.spoil();
        CUDA_CHECK(cudaMemset(inside.get(), 0, inside.bytes()));
        walk<<<blocks, block_size>>>(option, program.seed(), paths, sums.get(), squares.get(), inside.get());
        LAUNCH_CHECK();
        unsigned long long hits = 0;
        inside.download(&hits);
        sums.download(got_sums.data());
        squares.download(got_squares.data());
        program.digest(&hits, sizeof hits);
        program.digest(got_sums.data(), blocks * sizeof(double));
        program.expect_equal("the points in the circle", hits, want_inside);

        double sum = 0, square = 0;
        for (int block = 0; block < blocks; ++block) {
            sum += got_sums[block];
            square += got_squares[block];
        }
        if (program.verify() && !(std::fabs(sum - want_sum) <= 1e-5 * want_sum)) {
            program.fail("the sum of the payoffs: got %.12g, expected %.12g", sum, want_sum);
        }
        double mean = sum / static_cast<double>(paths);
        double error = std::sqrt((square / static_cast<double>(paths) - mean * mean) / static_cast<double>(paths));
        double price = mean * option.discount;
        if (!(std::fabs(price - exact) <= 5 * error * option.discount)) {
            program.fail("the price: got %.6f, expected %.6f within %.6f", price, exact, 5 * error);
        }
        program.note("price=%.5f pi=%.5f", price, 4.0 * static_cast<double>(hits) / static_cast<double>(paths));
    }
    return program.finish();
}
