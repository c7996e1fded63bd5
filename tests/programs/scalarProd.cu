// scalarProd: scalar products of many pairs of vectors, one block per pair.
//
// Each thread sums a strided part, then the block adds up in shared memory. The
// inputs are multiples of 1/16, so every sum is exact and compared bit for bit.

#include "common/check.h"

#include <vector>

constexpr int block_size = 128;
constexpr int elements = 3000;

__global__ void scalar_products(const float *a, const float *b, float *products, int pairs) {
    __shared__ float sums[block_size];
    for (int pair = blockIdx.x; pair < pairs; pair += gridDim.x) {
        const float *first = a + static_cast<size_t>(pair) * elements;
        const float *second = b + static_cast<size_t>(pair) * elements;
        float sum = 0;
        for (int at = threadIdx.x; at < elements; at += block_size) {
            sum += first[at] * second[at];
        }
        sums[threadIdx.x] = sum;
        for (int half = block_size / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half) {
                sums[threadIdx.x] += sums[threadIdx.x + half];
            }
        }
        if (threadIdx.x == 0) {
            products[pair] = sums[0];
        }
        __syncthreads();
    }
}

int main(int argc, char **argv) {
    Program program("scalarProd", "multiplies pairs of vectors", "pairs of 3000 elements", 100, 1, 1000000);
    program.parse(argc, argv);
    size_t pairs = static_cast<size_t>(program.size());

    Random random(program.seed());
    std::vector<float> a(pairs * elements), b(a.size()), products(pairs), want(pairs);
    for (size_t at = 0; at < a.size(); ++at) {
        a[at] = random.sixteenth();
        b[at] = random.sixteenth();
        want[at / elements] += a[at] * b[at];
    }
    DeviceArray<float> device_a(a.data(), a.size()), device_b(b.data(), b.size()), device_products(pairs);

    while (program.next_round()) {
        device_products.spoil();
        scalar_products<<<64, block_size>>>(device_a.get(), device_b.get(), device_products.get(),
                                            static_cast<int>(pairs));
        LAUNCH_CHECK();
        device_products.download(products.data());
        program.digest(products.data(), pairs * sizeof(float));
        program.expect_equal("the products", products.data(), want.data(), pairs);
    }
    return program.finish();
}
