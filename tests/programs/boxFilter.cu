// boxFilter: the mean of a square around each pixel, by sliding windows.
//
// Rows are read through a texture of four bytes a pixel, columns from global
// memory; then the result goes back into the texture's array and is filtered
// again. Sums are integers: compared exactly.

#include "common/check.h"

#include <vector>

constexpr int radius = 6;
constexpr unsigned span = 2 * radius + 1;

__device__ static uint4 wide(uchar4 pixel) { return make_uint4(pixel.x, pixel.y, pixel.z, pixel.w); }

__device__ static void slide(uint4 &sum, uchar4 in, uchar4 out) {
    sum.x += in.x - out.x;
    sum.y += in.y - out.y;
    sum.z += in.z - out.z;
    sum.w += in.w - out.w;
}

__device__ static uchar4 mean(uint4 sum) {
    return make_uchar4((sum.x + span / 2) / span, (sum.y + span / 2) / span, (sum.z + span / 2) / span,
                       (sum.w + span / 2) / span);
}

// One thread a row; beyond the edge the texture repeats the edge.
__global__ void filter_rows(cudaTextureObject_t image, uchar4 *to, int width, int height) {
    int y = blockIdx.x * blockDim.x + threadIdx.x;
    if (y >= height) {
        return;
    }
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (int x = -radius; x <= radius; ++x) {
        uint4 pixel = wide(tex2D<uchar4>(image, x + 0.5f, y + 0.5f));
        sum.x += pixel.x;
        sum.y += pixel.y;
        sum.z += pixel.z;
        sum.w += pixel.w;
    }
    for (int x = 0; x < width; ++x) {
        to[static_cast<size_t>(y) * width + x] = mean(sum);
        slide(sum, tex2D<uchar4>(image, x + radius + 1.5f, y + 0.5f), tex2D<uchar4>(image, x - radius + 0.5f, y + 0.5f));
    }
}

// One thread a column.
__global__ void filter_columns(uchar4 *to, const uchar4 *from, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x >= width) {
        return;
    }
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (int y = -radius; y <= radius; ++y) {
        uint4 pixel = wide(from[static_cast<size_t>(min(max(y, 0), height - 1)) * width + x]);
        sum.x += pixel.x;
        sum.y += pixel.y;
        sum.z += pixel.z;
        sum.w += pixel.w;
    }
    for (int y = 0; y < height; ++y) {
        to[static_cast<size_t>(y) * width + x] = mean(sum);
        slide(sum, from[static_cast<size_t>(min(y + radius + 1, height - 1)) * width + x],
              from[static_cast<size_t>(max(y - radius, 0)) * width + x]);
    }
}

static int clamped(int at, int count) { return at < 0 ? 0 : at < count ? at : count - 1; }

// One pass on the CPU, window by window, along rows or columns.
static void filter_on_cpu(std::vector<unsigned char> &to, const std::vector<unsigned char> &from, int width, int height,
                          bool rows) {
    for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
            unsigned sum[4] = {};
            for (int at = -radius; at <= radius; ++at) {
                int sx = rows ? clamped(x + at, width) : x, sy = rows ? y : clamped(y + at, height);
                const unsigned char *pixel = &from[4 * (static_cast<size_t>(sy) * width + sx)];
                for (int channel = 0; channel < 4; ++channel) {
                    sum[channel] += pixel[channel];
                }
            }
            for (int channel = 0; channel < 4; ++channel) {
                to[4 * (static_cast<size_t>(y) * width + x) + channel] =
                    static_cast<unsigned char>((sum[channel] + span / 2) / span);
            }
        }
    }
}

int main(int argc, char **argv) {
    Program program("boxFilter", "blurs an image by sliding windows", "width of the image", 200, 1, 32768);
    program.parse(argc, argv);
    int width = static_cast<int>(program.size()), height = width / 2 + 17;
    size_t pixels = static_cast<size_t>(width) * height, bytes = 4 * pixels, row_bytes = 4 * size_t(width);

    Random random(program.seed());
    std::vector<unsigned char> image(bytes), half(bytes), want(bytes), got(bytes);
    for (unsigned char &byte : image) {
        byte = static_cast<unsigned char>(random.next());
    }
    want = image;
    for (int pass = 0; program.verify() && pass < 2; ++pass) {
        filter_on_cpu(half, want, width, height, true);
        filter_on_cpu(want, half, width, height, false);
    }

    cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
    cudaArray_t array = nullptr;
    CUDA_CHECK(cudaMallocArray(&array, &format, width, height));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc description = {};
    description.addressMode[0] = description.addressMode[1] = cudaAddressModeClamp;
    description.filterMode = cudaFilterModePoint;
    description.readMode = cudaReadModeElementType;
    cudaTextureObject_t texture = 0;
    CUDA_CHECK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    DeviceArray<uchar4> between(pixels), result(pixels);

    while (program.next_round()) {
        between.spoil();
        result.spoil();
        CUDA_CHECK(
            cudaMemcpy2DToArray(array, 0, 0, image.data(), row_bytes, row_bytes, height, cudaMemcpyHostToDevice));
        for (int pass = 0; pass < 2; ++pass) {
            if (pass == 1) {
                CUDA_CHECK(cudaMemcpy2DToArrayAsync(array, 0, 0, result.get(), row_bytes, row_bytes, height,
                                                    cudaMemcpyDeviceToDevice, nullptr));
            }
            filter_rows<<<blocks_for(height, 64), 64>>>(texture, between.get(), width, height);
            LAUNCH_CHECK();
            filter_columns<<<blocks_for(width, 64), 64>>>(result.get(), between.get(), width, height);
            LAUNCH_CHECK();
        }
        CUDA_CHECK(cudaMemcpy(got.data(), result.get(), bytes, cudaMemcpyDeviceToHost));
        program.digest(got.data(), bytes);
        program.expect_equal("the image", got.data(), want.data(), bytes);
    }
    CUDA_CHECK(cudaDestroyTextureObject(texture));
    CUDA_CHECK(cudaFreeArray(array));
    return program.finish();
}
