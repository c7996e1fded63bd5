// mipmaps: builds image pyramids on the device, each level from the one before.
//
// Each level of a mipmapped array is read through a texture of that level alone, and
// the next is written through a surface of that level; then every level is read once
// more through one texture of all of them, and copied back. Layers are read and written
// through surfaces; their means of sixteenths are exact.

#include "common/check.h"

#include <vector>

constexpr int tile = 8;
constexpr int layers = 3;

__global__ void shrink(cudaTextureObject_t above, cudaSurfaceObject_t below, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) {
        return;
    }
    unsigned sum[4] = {2, 2, 2, 2};
    for (int corner = 0; corner < 4; ++corner) {
        float column = static_cast<float>(2 * x + (corner & 1)) + 0.5f;
        float row = static_cast<float>(2 * y + (corner >> 1)) + 0.5f;
        uchar4 pixel = tex2D<uchar4>(above, column, row);
        sum[0] += pixel.x;
        sum[1] += pixel.y;
        sum[2] += pixel.z;
        sum[3] += pixel.w;
    }
    uchar4 mean = make_uchar4(sum[0] / 4, sum[1] / 4, sum[2] / 4, sum[3] / 4);
    surf2Dwrite(mean, below, x * static_cast<int>(sizeof mean), y);
}

// By surfaces alone: through a texture of one level, GPUs access only the first of
// its layers.
__global__ void shrink_layers(cudaSurfaceObject_t above, cudaSurfaceObject_t below, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, layer = blockIdx.z;
    if (x >= width || y >= height) {
        return;
    }
    constexpr int bytes = sizeof(float);
    float sum = 0;
    for (int corner = 0; corner < 4; ++corner) {
        int column = 2 * x + (corner & 1), row = 2 * y + (corner >> 1);
        sum += surf2DLayeredread<float>(above, column * bytes, row, layer);
    }
    surf2DLayeredwrite(0.25f * sum, below, x * bytes, y, layer);
}

__global__ void read_level(cudaTextureObject_t all, uchar4 *out, int width, int height, int level) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) {
        float column = (static_cast<float>(x) + 0.5f) / static_cast<float>(width);
        float row = (static_cast<float>(y) + 0.5f) / static_cast<float>(height);
        out[y * width + x] = tex2DLod<uchar4>(all, column, row, static_cast<float>(level));
    }
}

static dim3 blocks(int width, int height, int depth = 1) {
    return dim3((width + tile - 1) / tile, (height + tile - 1) / tile, depth);
}

// A mipmapped array, and a texture and a surface of each of its levels.
struct Pyramid {
    cudaMipmappedArray_t array = nullptr;
    std::vector<cudaArray_t> levels;
    std::vector<cudaTextureObject_t> textures;
    std::vector<cudaSurfaceObject_t> surfaces;

    Pyramid(cudaChannelFormatDesc format, cudaExtent extent, int count, unsigned flags)
        : levels(count), textures(count), surfaces(count) {
        CUDA_CHECK(cudaMallocMipmappedArray(&array, &format, extent, count, flags | cudaArraySurfaceLoadStore));
        for (int level = 0; level < count; ++level) {
            CUDA_CHECK(cudaGetMipmappedArrayLevel(&levels[level], array, level));
            cudaResourceDesc resource = {};
            resource.resType = cudaResourceTypeArray;
            resource.res.array.array = levels[level];
            cudaTextureDesc how = {};
            how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
            CUDA_CHECK(cudaCreateTextureObject(&textures[level], &resource, &how, nullptr));
            CUDA_CHECK(cudaCreateSurfaceObject(&surfaces[level], &resource));
        }
    }

    ~Pyramid() {
        for (size_t level = 0; level < levels.size(); ++level) {
            CUDA_CHECK(cudaDestroySurfaceObject(surfaces[level]));
            CUDA_CHECK(cudaDestroyTextureObject(textures[level]));
        }
        CUDA_CHECK(cudaFreeMipmappedArray(array));
    }
};

static void image(Program &program, int size, int count) {
    Pyramid pyramid(cudaCreateChannelDesc<uchar4>(), make_cudaExtent(size, size, 0), count, 0);
    Random random(program.seed());
    std::vector<uchar4> want(static_cast<size_t>(size) * size);
    for (uchar4 &pixel : want) {
        uint64_t word = random.next();
        pixel = make_uchar4(word & 255, word >> 8 & 255, word >> 16 & 255, word >> 24 & 255);
    }
    CUDA_CHECK(cudaMemcpy2DToArray(pyramid.levels[0], 0, 0, want.data(), size * sizeof(uchar4), size * sizeof(uchar4),
                                   size, cudaMemcpyHostToDevice));
    for (int level = 1; level < count; ++level) {
        int width = size >> level;
        shrink<<<blocks(width, width), dim3(tile, tile)>>>(pyramid.textures[level - 1], pyramid.surfaces[level], width,
                                                           width);
        LAUNCH_CHECK();
    }

    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeMipmappedArray;
    resource.res.mipmap.mipmap = pyramid.array;
    cudaTextureDesc how = {};
    how.normalizedCoords = 1;
    how.maxMipmapLevelClamp = static_cast<float>(count - 1);
    cudaTextureObject_t all = 0;
    CUDA_CHECK(cudaCreateTextureObject(&all, &resource, &how, nullptr));
    DeviceArray<uchar4> out(want.size());
    for (int level = 0, width = size; level < count; ++level, width /= 2) {
        if (level > 0) {
            std::vector<uchar4> above = want;
            want.resize(static_cast<size_t>(width) * width);
            for (int y = 0; y < width; ++y) {
                for (int x = 0; x < width; ++x) {
                    unsigned sum[4] = {2, 2, 2, 2};
                    for (int corner = 0; corner < 4; ++corner) {
                        uchar4 pixel = above[(2 * y + (corner >> 1)) * (2 * width) + 2 * x + (corner & 1)];
                        sum[0] += pixel.x;
                        sum[1] += pixel.y;
                        sum[2] += pixel.z;
                        sum[3] += pixel.w;
                    }
                    want[y * width + x] = make_uchar4(sum[0] / 4, sum[1] / 4, sum[2] / 4, sum[3] / 4);
                }
            }
        }
        out.spoil();
        read_level<<<blocks(width, width), dim3(tile, tile)>>>(all, out.get(), width, width, level);
        LAUNCH_CHECK();
        std::vector<uchar4> got(want.size());
        CUDA_CHECK(cudaMemcpy(got.data(), out.get(), got.size() * sizeof(uchar4), cudaMemcpyDeviceToHost));
        program.digest(got.data(), got.size() * sizeof(uchar4));
        program.expect_equal("a level read through the whole", got.data(), want.data(), want.size());
        CUDA_CHECK(cudaMemcpy2DFromArray(got.data(), width * sizeof(uchar4), pyramid.levels[level], 0, 0,
                                         width * sizeof(uchar4), width, cudaMemcpyDeviceToHost));
        program.expect_equal("a level copied back", got.data(), want.data(), want.size());
    }
    CUDA_CHECK(cudaDestroyTextureObject(all));
}

static void layered(Program &program, int size, int count) {
    Pyramid pyramid(cudaCreateChannelDesc<float>(), make_cudaExtent(size, size, layers), count, cudaArrayLayered);
    Random random(program.seed() + 1);
    std::vector<float> want(static_cast<size_t>(size) * size * layers);
    for (float &value : want) {
        value = random.sixteenth();
    }
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(want.data(), size * sizeof(float), size, size);
    copy.dstArray = pyramid.levels[0];
    copy.extent = make_cudaExtent(size, size, layers);
    copy.kind = cudaMemcpyHostToDevice;
    CUDA_CHECK(cudaMemcpy3D(&copy));
    for (int level = 1, width = size / 2; level < count; ++level, width /= 2) {
        shrink_layers<<<blocks(width, width, layers), dim3(tile, tile)>>>(pyramid.surfaces[level - 1],
                                                                          pyramid.surfaces[level], width, width);
        LAUNCH_CHECK();
        std::vector<float> above = want, got;
        want.resize(static_cast<size_t>(width) * width * layers);
        got.resize(want.size());
        for (int at = 0; at < width * width * layers; ++at) {
            int x = at % width, row = at / width; // Rows of all layers.
            const float *first = &above[static_cast<size_t>(2 * row) * (2 * width) + 2 * x];
            want[at] = 0.25f * (first[0] + first[1] + first[2 * width] + first[2 * width + 1]);
        }
        copy = {};
        copy.srcArray = pyramid.levels[level];
        copy.dstPtr = make_cudaPitchedPtr(got.data(), width * sizeof(float), width, width);
        copy.extent = make_cudaExtent(width, width, layers);
        copy.kind = cudaMemcpyDeviceToHost;
        CUDA_CHECK(cudaMemcpy3D(&copy));
        program.digest(got.data(), got.size() * sizeof(float));
        program.expect_equal("a level of the layers", got.data(), want.data(), want.size());
    }
}

int main(int argc, char **argv) {
    Program program("mipmaps", "builds pyramids of images, level from level", "levels", 6, 1, 10);
    program.parse(argc, argv);
    int count = static_cast<int>(program.size()), size = 1 << (count - 1);
    while (program.next_round()) {
        image(program, size, count);
        layered(program, size, count);
    }
    return program.finish();
}
