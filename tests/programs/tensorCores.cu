// tensorCores: matrix products by warps (wmma) in half, bfloat16, tf32 and int8.
//
// Each block of one warp computes a 16x16 tile of D = A * B + C. The factors are
// small multiples of 1/16 (integers for int8), so every product and sum is exact
// in any order, and the CPU's result must come back bit for bit. The factors pass
// through shared memory, filled by asynchronous copies.

#include "common/check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>

#include <vector>

using namespace nvcuda;

// The element type on the host, and for wmma.
template <typename T> struct Element {
    using Fragment = T;
    using Sum = float;
    static constexpr int depth = 16;
};
template <> struct Element<float> {
    using Fragment = wmma::precision::tf32;
    using Sum = float;
    static constexpr int depth = 8;
};
template <> struct Element<signed char> {
    using Fragment = signed char;
    using Sum = int;
    static constexpr int depth = 16;
};

// A is row-major, B column-major.
template <typename T, typename Sum>
__global__ void multiply(const T *a, const T *b, const Sum *c, Sum *d, int size) {
    constexpr int depth = Element<T>::depth;
    constexpr int packet = 16 / sizeof(T);
    __shared__ __align__(32) T tile_a[16 * depth];
    __shared__ __align__(32) T tile_b[16 * depth];
    wmma::fragment<wmma::matrix_a, 16, 16, depth, typename Element<T>::Fragment, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, depth, typename Element<T>::Fragment, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, depth, Sum> sum;
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    wmma::load_matrix_sync(sum, c + row * size + column, size, wmma::mem_row_major);
    for (int k = 0; k < size; k += depth) {
        for (int at = threadIdx.x * packet; at < 16 * depth; at += 32 * packet) {
            int line = at / depth, part = at % depth;
            __pipeline_memcpy_async(&tile_a[at], a + (row + line) * size + k + part, 16);
            __pipeline_memcpy_async(&tile_b[at], b + (column + line) * size + k + part, 16);
        }
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncwarp();
        wmma::load_matrix_sync(left, tile_a, depth);
        wmma::load_matrix_sync(right, tile_b, depth);
        if constexpr (sizeof(T) == 4) {
            for (int n = 0; n < left.num_elements; ++n) {
                left.x[n] = wmma::__float_to_tf32(left.x[n]);
            }
            for (int n = 0; n < right.num_elements; ++n) {
                right.x[n] = wmma::__float_to_tf32(right.x[n]);
            }
        }
        wmma::mma_sync(sum, left, right, sum);
        __syncwarp();
    }
    wmma::store_matrix_sync(d + row * size + column, sum, size, wmma::mem_row_major);
}

template <typename T> void run(Program &program, const char *name, float scale) {
    using Sum = typename Element<T>::Sum;
    size_t size = static_cast<size_t>(program.size()) * 16;
    size_t count = size * size;
    Random random(program.seed());
    std::vector<T> a(count), b(count);
    std::vector<Sum> c(count), d(count), want(count);
    // From -15 to 15 times the scale.
    auto small = [&] { return (static_cast<float>(random.below(31)) - 15.0f) * scale; };
    for (size_t at = 0; at < count; ++at) {
        a[at] = static_cast<T>(small());
        b[at] = static_cast<T>(small());
        c[at] = static_cast<Sum>(small());
    }
    if (program.verify()) {
        for (size_t row = 0; row < size; ++row) {
            for (size_t column = 0; column < size; ++column) {
                Sum sum = c[row * size + column];
                for (size_t k = 0; k < size; ++k) {
                    sum += static_cast<Sum>(static_cast<float>(a[row * size + k])) *
                           static_cast<Sum>(static_cast<float>(b[column * size + k]));
                }
                want[row * size + column] = sum;
            }
        }
    }
    DeviceArray<T> device_a(a.data(), count), device_b(b.data(), count);
    DeviceArray<Sum> device_c(c.data(), count), device_d(count);
    device_d.spoil();
    dim3 grid(static_cast<unsigned>(program.size()), static_cast<unsigned>(program.size()));
    multiply<T, Sum><<<grid, 32>>>(device_a.get(), device_b.get(), device_c.get(), device_d.get(),
                                   static_cast<int>(size));
    LAUNCH_CHECK();
    device_d.download(d.data());
    program.digest(d.data(), count * sizeof(Sum));
    program.expect_equal(name, d.data(), want.data(), count);
}

int main(int argc, char **argv) {
    Program program("tensorCores", "multiplies matrices by warps", "tiles of 16 in each dimension", 4, 1, 64);
    program.parse(argc, argv);
    while (program.next_round()) {
        run<__half>(program, "half", 0.0625f);
        run<__nv_bfloat16>(program, "bfloat16", 0.0625f);
        run<float>(program, "tf32", 0.0625f);
        run<signed char>(program, "int8", 1.0f);
    }
    return program.finish();
}
