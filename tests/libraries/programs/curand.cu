// cuRAND: generators of pseudo-random and quasi-random numbers. Generators with
// a published definition are compared with it; each is judged by its moments,
// and gives the same numbers from the same seed. MT19937 is left out: its
// 8192 initial states take the software GPU a minute, minutes in a debug build.

#include "library.h"

#include <curand.h>

#include <algorithm>

static const size_t count = 1 << 14;

// Mean and variance of `numbers` lie within five standard errors.
static void moments(const char *what, const std::vector<double> &numbers, double mean, double variance) {
    double sum = 0, squares = 0;
    for (double number : numbers) {
        sum += number;
        squares += (number - mean) * (number - mean);
    }
    double size = static_cast<double>(numbers.size());
    double off = std::fabs(sum / size - mean), spread = std::fabs(squares / size / variance - 1);
    if (!(off <= 5 * std::sqrt(variance / size)) || !(spread <= 5 * std::sqrt(3 / size))) {
        Program::current()->fail("%s: mean %g, variance %g; expected %g, %g", what, sum / size, squares / size, mean,
                                 variance);
    }
}

struct Generator {
    curandGenerator_t handle;
    Generator(curandRngType_t kind, uint64_t seed) {
        LIBRARY_CHECK(curandCreateGenerator(&handle, kind));
        LIBRARY_CHECK(curandSetPseudoRandomGeneratorSeed(handle, seed));
    }
    ~Generator() { LIBRARY_CHECK(curandDestroyGenerator(handle)); }
};

static void pseudo(curandRngType_t kind, const char *what, uint64_t seed) {
    DeviceArray<float> numbers(count), again(count);
    numbers.spoil();
    again.spoil();
    {
        Generator generator(kind, seed);
        LIBRARY_CHECK(curandGenerateUniform(generator.handle, numbers.get(), count));
    }
    std::vector<float> uniform = downloaded(numbers);
    moments(what, std::vector<double>(uniform.begin(), uniform.end()), 0.5, 1.0 / 12);
    auto [least, most] = std::minmax_element(uniform.begin(), uniform.end());
    Program::current()->expect(*least > 0 && *most <= 1, "a uniform number lies outside (0, 1]");

    Generator generator(kind, seed);
    LIBRARY_CHECK(curandGenerateUniform(generator.handle, again.get(), count));
    Program::current()->expect_equal(what, downloaded(again).data(), uniform.data(), count);
    LIBRARY_CHECK(curandGenerateNormal(generator.handle, again.get(), count, 2, 3));
    std::vector<float> normal = downloaded(again);
    moments(what, std::vector<double>(normal.begin(), normal.end()), 2, 9);
    Program::current()->digest(uniform.data(), count * sizeof(float));
    Program::current()->digest(normal.data(), count * sizeof(float));
}

// One block of Philox4x32-10 (Salmon et al., 2011): counter and key to four words.
static void philox(uint32_t counter[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
        uint64_t left = 0xD2511F53ull * counter[0], right = 0xCD9E8D57ull * counter[2];
        uint32_t next[4] = {static_cast<uint32_t>(right >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(right),
                            static_cast<uint32_t>(left >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(left)};
        std::copy(next, next + 4, counter);
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
}

// Philox's words are those of the published cipher for its seed, in some order.
static void published(uint64_t seed) {
    const size_t words = 4096;
    DeviceArray<unsigned> numbers(words);
    numbers.spoil();
    Generator generator(CURAND_RNG_PSEUDO_PHILOX4_32_10, seed);
    LIBRARY_CHECK(curandGenerate(generator.handle, numbers.get(), words));
    std::vector<unsigned> got = downloaded(numbers);
    // Each subsequence begins with the block of counter (0, 0, subsequence, 0).
    for (uint32_t subsequence = 0; subsequence < 4; ++subsequence) {
        uint32_t block[4] = {0, 0, subsequence, 0};
        philox(block, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
        bool found = std::find(got.begin(), got.end(), block[0]) != got.end();
        Program::current()->expect(found, "a word of Philox's first blocks is missing");
    }
}

// Sobol' numbers of one dimension: each interval of 1/count holds one of them.
static void quasi() {
    DeviceArray<float> numbers(count);
    numbers.spoil();
    curandGenerator_t generator;
    LIBRARY_CHECK(curandCreateGenerator(&generator, CURAND_RNG_QUASI_SOBOL32));
    LIBRARY_CHECK(curandSetQuasiRandomGeneratorDimensions(generator, 1));
    LIBRARY_CHECK(curandGenerateUniform(generator, numbers.get(), count));
    LIBRARY_CHECK(curandDestroyGenerator(generator));
    std::vector<float> got = downloaded(numbers);
    std::vector<bool> seen(count);
    for (float number : got) {
        size_t place = std::min(count - 1, static_cast<size_t>(number * count));
        Program::current()->expect(!seen[place], "two Sobol' numbers share an interval");
        seen[place] = true;
    }
}

int main(int argc, char **argv) {
    Program program("curand", "random numbers by cuRAND", "unused", 1, 1, 1);
    program.parse(argc, argv);
    while (program.next_round()) {
        pseudo(CURAND_RNG_PSEUDO_PHILOX4_32_10, "Philox", program.seed());
        pseudo(CURAND_RNG_PSEUDO_XORWOW, "XORWOW", program.seed());
        pseudo(CURAND_RNG_PSEUDO_MRG32K3A, "MRG32k3a", program.seed());
        published(program.seed());
        quasi();
    }
    return program.finish();
}
