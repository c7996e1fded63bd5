// transpose: transposes a matrix by element, by tile, and along diagonals.
//
// Rows are pitched (cudaMallocPitch) and copied by cudaMemcpy2D; the shape is not
// square and no multiple of the tile. Results are compared bit for bit.

#include "common/check.h"

#include <vector>

constexpr int tile = 32;
constexpr int block_rows = 8;

// A matrix in device memory whose rows start `pitch` bytes apart.
struct Matrix {
    int *data;
    size_t pitch;
    int width;
    int height;

    __host__ __device__ int *row(int y) const {
        return reinterpret_cast<int *>(reinterpret_cast<char *>(data) + y * pitch);
    }
};

__global__ void naive(Matrix to, Matrix from) {
    int x = blockIdx.x * tile + threadIdx.x;
    for (int y = blockIdx.y * tile + threadIdx.y; y < min(from.height, (blockIdx.y + 1) * tile); y += block_rows) {
        if (x < from.width) {
            to.row(x)[y] = from.row(y)[x];
        }
    }
}

__device__ void by_tile(const Matrix &to, const Matrix &from, int block_x, int block_y) {
    __shared__ int buffer[tile][tile + 1];
    int x = block_x * tile + threadIdx.x;
    for (int line = threadIdx.y; line < tile; line += block_rows) {
        int y = block_y * tile + line;
        if (x < from.width && y < from.height) {
            buffer[line][threadIdx.x] = from.row(y)[x];
        }
    }
    __syncthreads();
    x = block_y * tile + threadIdx.x;
    for (int line = threadIdx.y; line < tile; line += block_rows) {
        int y = block_x * tile + line;
        if (x < to.width && y < to.height) {
            to.row(y)[x] = buffer[threadIdx.x][line];
        }
    }
}

__global__ void tiled(Matrix to, Matrix from) { by_tile(to, from, blockIdx.x, blockIdx.y); }

// Blocks in the order of diagonals, so that neighbours touch different columns.
__global__ void diagonal(Matrix to, Matrix from) {
    unsigned block = blockIdx.x + gridDim.x * blockIdx.y;
    unsigned block_y = block % gridDim.y;
    unsigned block_x = (block / gridDim.y + block_y) % gridDim.x;
    by_tile(to, from, block_x, block_y);
}

static Matrix pitched(int width, int height) {
    Matrix matrix = {nullptr, 0, width, height};
    CUDA_CHECK(cudaMallocPitch(&matrix.data, &matrix.pitch, width * sizeof(int), height));
    return matrix;
}

int main(int argc, char **argv) {
    Program program("transpose", "turns a matrix in three ways", "columns", 421, 1, 40000);
    program.parse(argc, argv);
    int width = static_cast<int>(program.size()), height = width / 2 + 13;
    size_t count = static_cast<size_t>(width) * height;

    Random random(program.seed());
    std::vector<int> input(count), want(count), got(count);
    for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
            int value = static_cast<int>(random.next());
            input[static_cast<size_t>(y) * width + x] = value;
            want[static_cast<size_t>(x) * height + y] = value;
        }
    }
    Matrix from = pitched(width, height), to = pitched(height, width);
    program.expect(from.pitch >= width * sizeof(int) && from.pitch % 16 == 0, "the pitch does not hold a row");
    CUDA_CHECK(cudaMemcpy2D(from.data, from.pitch, input.data(), width * sizeof(int), width * sizeof(int), height,
                            cudaMemcpyHostToDevice));

    dim3 block(tile, block_rows), grid(blocks_for(width, tile), blocks_for(height, tile));
    struct Way {
        const char *name;
        void (*kernel)(Matrix, Matrix);
    };
    const Way ways[] = {{"naive", naive}, {"tiled", tiled}, {"diagonal", diagonal}};
    while (program.next_round()) {
        for (const Way &way : ways) {
            CUDA_CHECK(cudaMemset2D(to.data, to.pitch, 0xa5, height * sizeof(int), width));
            way.kernel<<<grid, block>>>(to, from);
            LAUNCH_CHECK();
            CUDA_CHECK(cudaMemcpy2D(got.data(), height * sizeof(int), to.data, to.pitch, height * sizeof(int), width,
                                    cudaMemcpyDeviceToHost));
            program.digest(got.data(), count * sizeof(int));
            program.expect_equal(way.name, got.data(), want.data(), count);
        }
    }
    CUDA_CHECK(cudaFree(to.data));
    CUDA_CHECK(cudaFree(from.data));
    return program.finish();
}
