// convolutionSeparable: a 17 x 17 filter as a pass over rows and one over columns.
//
// The filter lies in constant memory, the pixels with their halo in shared
// memory. Pixels and filter are multiples of 1/16, so every sum is exact (20
// bits) and the result is compared bit for bit.

#include "common/check.h"

#include <vector>

constexpr int radius = 8;
constexpr int taps = 2 * radius + 1;
constexpr int across = 32;
constexpr int down = 8;

__constant__ float row_filter[taps];
__constant__ float column_filter[taps];

__global__ void convolve_rows(float *to, const float *from, int width, int height) {
    __shared__ float line[down][across + 2 * radius];
    int x0 = blockIdx.x * across - radius;
    int y = blockIdx.y * down + threadIdx.y;
    for (int at = threadIdx.x; at < across + 2 * radius; at += across) {
        int x = x0 + at;
        line[threadIdx.y][at] = x >= 0 && x < width && y < height ? from[static_cast<size_t>(y) * width + x] : 0;
    }
    __syncthreads();
    int x = blockIdx.x * across + threadIdx.x;
    if (x < width && y < height) {
        float sum = 0;
#pragma unroll
        for (int tap = 0; tap < taps; ++tap) {
            sum += row_filter[tap] * line[threadIdx.y][threadIdx.x + tap];
        }
        to[static_cast<size_t>(y) * width + x] = sum;
    }
}

__global__ void convolve_columns(float *to, const float *from, int width, int height) {
    __shared__ float column[down + 2 * radius][across];
    int x = blockIdx.x * across + threadIdx.x;
    int y0 = blockIdx.y * down - radius;
    for (int at = threadIdx.y; at < down + 2 * radius; at += down) {
        int y = y0 + at;
        column[at][threadIdx.x] = x < width && y >= 0 && y < height ? from[static_cast<size_t>(y) * width + x] : 0;
    }
    __syncthreads();
    int y = blockIdx.y * down + threadIdx.y;
    if (x < width && y < height) {
        float sum = 0;
        for (int tap = 0; tap < taps; ++tap) {
            sum += column_filter[tap] * column[threadIdx.y + tap][threadIdx.x];
        }
        to[static_cast<size_t>(y) * width + x] = sum;
    }
}

// The same on the CPU, along an axis with the given stride.
static void convolve_on_cpu(std::vector<float> &to, const std::vector<float> &from, const float *filter, int width,
                            int height, bool rows) {
    for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
            float sum = 0;
            for (int tap = 0; tap < taps; ++tap) {
                int sx = rows ? x + tap - radius : x, sy = rows ? y : y + tap - radius;
                if (sx >= 0 && sx < width && sy >= 0 && sy < height) {
                    sum += filter[tap] * from[static_cast<size_t>(sy) * width + sx];
                }
            }
            to[static_cast<size_t>(y) * width + x] = sum;
        }
    }
}

int main(int argc, char **argv) {
    Program program("convolutionSeparable", "filters an image by rows and columns", "width of the image", 300, 1,
                    32768);
    program.parse(argc, argv);
    int width = static_cast<int>(program.size()), height = (width * 3 + 3) / 4;
    size_t pixels = static_cast<size_t>(width) * height;

    Random random(program.seed());
    float rows[taps], columns[taps];
    for (int tap = 0; tap < taps; ++tap) {
        rows[tap] = random.sixteenth();
        columns[tap] = random.sixteenth();
    }
    std::vector<float> image(pixels), got(pixels), half(pixels), want(pixels);
    for (float &pixel : image) {
        pixel = random.sixteenth();
    }
    if (program.verify()) {
        convolve_on_cpu(half, image, rows, width, height, true);
        convolve_on_cpu(want, half, columns, width, height, false);
    }
    CUDA_CHECK(cudaMemcpyToSymbol(row_filter, rows, sizeof rows));
    CUDA_CHECK(cudaMemcpyToSymbol(column_filter, columns, sizeof columns));
    DeviceArray<float> device_image(image.data(), pixels), between(pixels), result(pixels);

    dim3 block(across, down), grid(blocks_for(width, across), blocks_for(height, down));
    while (program.next_round()) {
        between.spoil();
        result.spoil();
        convolve_rows<<<grid, block>>>(between.get(), device_image.get(), width, height);
        LAUNCH_CHECK();
        convolve_columns<<<grid, block>>>(result.get(), between.get(), width, height);
        LAUNCH_CHECK();
        result.download(got.data());
        program.digest(got.data(), pixels * sizeof(float));
        program.expect_equal("the image", got.data(), want.data(), pixels);
    }
    return program.finish();
}
