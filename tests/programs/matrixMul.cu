// matrixMul: C = A B by square tiles in shared memory.
//
// A is size x (size + 16), B is (size + 16) x (size + 32); no side need be a
// multiple of the tile. The inputs are multiples of 1/16, so every sum is exact
// and the result is compared bit for bit.

#include "common/check.h"

#include <vector>

constexpr int tile = 16;

__global__ void multiply(const float *a, const float *b, float *c, int rows, int inner, int columns) {
    __shared__ float tile_a[tile][tile];
    __shared__ float tile_b[tile][tile];
    int row = blockIdx.y * tile + threadIdx.y;
    int column = blockIdx.x * tile + threadIdx.x;
    float sum = 0;
    for (int start = 0; start < inner; start += tile) {
        int a_column = start + threadIdx.x;
        int b_row = start + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] =
            row < rows && a_column < inner ? a[static_cast<size_t>(row) * inner + a_column] : 0;
        tile_b[threadIdx.y][threadIdx.x] =
            b_row < inner && column < columns ? b[static_cast<size_t>(b_row) * columns + column] : 0;
        __syncthreads();
        for (int k = 0; k < tile; ++k) {
            sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
        }
        __syncthreads();
    }
    if (row < rows && column < columns) {
        c[static_cast<size_t>(row) * columns + column] = sum;
    }
}

static std::vector<float> random_matrix(Random &random, size_t count) {
    std::vector<float> matrix(count);
    for (float &element : matrix) {
        element = random.sixteenth();
    }
    return matrix;
}

int main(int argc, char **argv) {
    Program program("matrixMul", "multiplies two matrices by tiles", "rows of the result", 140, 1, 32768);
    program.parse(argc, argv);
    int rows = static_cast<int>(program.size()), inner = rows + 16, columns = rows + 32;

    Random random(program.seed());
    std::vector<float> a = random_matrix(random, static_cast<size_t>(rows) * inner);
    std::vector<float> b = random_matrix(random, static_cast<size_t>(inner) * columns);
    std::vector<float> c(static_cast<size_t>(rows) * columns), want(c.size());
    for (int row = 0; program.verify() && row < rows; ++row) {
        float *sums = &want[static_cast<size_t>(row) * columns];
        for (int k = 0; k < inner; ++k) {
            float factor = a[static_cast<size_t>(row) * inner + k];
            const float *line = &b[static_cast<size_t>(k) * columns];
            for (int column = 0; column < columns; ++column) {
                sums[column] += factor * line[column];
            }
        }
    }
    DeviceArray<float> device_a(a.data(), a.size()), device_b(b.data(), b.size()), device_c(c.size());

    dim3 block(tile, tile), grid(blocks_for(columns, tile), blocks_for(rows, tile));
    while (program.next_round()) {
        device_c.spoil();
        multiply<<<grid, block>>>(device_a.get(), device_b.get(), device_c.get(), rows, inner, columns);
        LAUNCH_CHECK();
        device_c.download(c.data());
        program.digest(c.data(), c.size() * sizeof(float));
        program.expect_equal("C", c.data(), want.data(), c.size());
    }
    return program.finish();
}
