// imageDenoising: removes noise from a colour image in two ways.
//
// KNN weights each neighbour by distance and similarity, NLM by the similarity
// of the patches around both. Pixels are bytes read through a texture as
// fractions. Tolerance 2e-5 absolute at values from 0 to 1: sums of some 49
// weights that come from expf.

#include "common/check.h"

#include <vector>

constexpr int knn_radius = 3;
constexpr int search_radius = 2;
constexpr int patch_radius = 1;
constexpr float noise = 8.0f;
constexpr float spread = 0.08f;

__host__ __device__ static float alike(float4 a, float4 b) {
    float x = a.x - b.x, y = a.y - b.y, z = a.z - b.z;
    return x * x + y * y + z * z;
}

// The weighted mean of the added values.
struct Mean {
    float x, y, z, weight;

    __host__ __device__ void add(float4 pixel, float w) {
        x += pixel.x * w;
        y += pixel.y * w;
        z += pixel.z * w;
        weight += w;
    }
    __host__ __device__ float4 value() const { return make_float4(x / weight, y / weight, z / weight, weight); }
};

// The pixel at a position, the nearest one beyond the edge: on the device through
// the texture, on the CPU from memory.
struct Read {
    cudaTextureObject_t texture;
    const float4 *pixels;
    int width;
    int height;

    __host__ __device__ float4 operator()(int x, int y) const {
#ifdef __CUDA_ARCH__
        return tex2D<float4>(texture, static_cast<float>(x) + 0.5f, static_cast<float>(y) + 0.5f);
#else
        x = x < 0 ? 0 : x < width ? x : width - 1;
        y = y < 0 ? 0 : y < height ? y : height - 1;
        return pixels[static_cast<size_t>(y) * width + x];
#endif
    }
};

__host__ __device__ static float4 knn(const Read &read, int x, int y) {
    float4 middle = read(x, y);
    Mean mean = {0, 0, 0, 0};
    for (int j = -knn_radius; j <= knn_radius; ++j) {
        for (int i = -knn_radius; i <= knn_radius; ++i) {
            float4 pixel = read(x + i, y + j);
            mean.add(pixel, expf(-(alike(pixel, middle) * noise + static_cast<float>(i * i + j * j) * spread)));
        }
    }
    return mean.value();
}

__host__ __device__ static float4 nlm(const Read &read, int x, int y) {
    Mean mean = {0, 0, 0, 0};
    for (int j = -search_radius; j <= search_radius; ++j) {
        for (int i = -search_radius; i <= search_radius; ++i) {
            float distance = 0;
            for (int m = -patch_radius; m <= patch_radius; ++m) {
                for (int n = -patch_radius; n <= patch_radius; ++n) {
                    distance += alike(read(x + i + n, y + j + m), read(x + n, y + m));
                }
            }
            mean.add(read(x + i, y + j), expf(-(distance * noise + static_cast<float>(i * i + j * j) * spread)));
        }
    }
    return mean.value();
}

__global__ void denoise_knn(cudaTextureObject_t image, float4 *to, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) {
        to[y * width + x] = knn(Read{image, nullptr, width, height}, x, y);
    }
}

__global__ void denoise_nlm(cudaTextureObject_t image, float4 *to, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) {
        to[y * width + x] = nlm(Read{image, nullptr, width, height}, x, y);
    }
}

int main(int argc, char **argv) {
    Program program("imageDenoising", "takes noise out of an image", "width of the image", 60, 1, 16384);
    program.parse(argc, argv);
    int width = static_cast<int>(program.size()), height = width * 2 / 3 + 1;
    size_t pixels = static_cast<size_t>(width) * height;

    // A gradient with squares, and noise over everything.
    Random random(program.seed());
    std::vector<uchar4> image(pixels);
    std::vector<float4> read(pixels), want_knn(pixels), want_nlm(pixels), got(pixels);
    for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
            int shade = (x / 9 + y / 9) % 2 * 60 + x * 90 / width;
            uchar4 pixel = make_uchar4(shade + random.below(60), shade / 2 + random.below(60), 100 + random.below(60), 255);
            size_t at = static_cast<size_t>(y) * width + x;
            image[at] = pixel;
            read[at] = make_float4(pixel.x / 255.0f, pixel.y / 255.0f, pixel.z / 255.0f, 1);
        }
    }
    Read host = {0, read.data(), width, height};
    for (int y = 0; program.verify() && y < height; ++y) {
        for (int x = 0; x < width; ++x) {
            want_knn[static_cast<size_t>(y) * width + x] = knn(host, x, y);
            want_nlm[static_cast<size_t>(y) * width + x] = nlm(host, x, y);
        }
    }

    cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
    cudaArray_t array = nullptr;
    CUDA_CHECK(cudaMallocArray(&array, &format, width, height));
    size_t row = width * sizeof(uchar4);
    CUDA_CHECK(cudaMemcpy2DToArray(array, 0, 0, image.data(), row, row, height, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc description = {};
    description.addressMode[0] = description.addressMode[1] = cudaAddressModeClamp;
    description.filterMode = cudaFilterModePoint;
    description.readMode = cudaReadModeNormalizedFloat;
    cudaTextureObject_t texture = 0;
    CUDA_CHECK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    DeviceArray<float4> result(pixels);

    dim3 block(8, 8), grid(blocks_for(width, 8), blocks_for(height, 8));
    while (program.next_round()) {
        result.spoil();
        denoise_knn<<<grid, block>>>(texture, result.get(), width, height);
        LAUNCH_CHECK();
        result.download(got.data());
        program.digest(got.data(), pixels * sizeof(float4));
        // The sum of the weights, up to 49, is compared too, relative to its size.
        program.expect_near("KNN (4 a pixel)", &got[0].x, &want_knn[0].x, 4 * pixels, 1e-5, 2e-5);

        result.spoil();
        denoise_nlm<<<grid, block>>>(texture, result.get(), width, height);
        LAUNCH_CHECK();
        result.download(got.data());
        program.digest(got.data(), pixels * sizeof(float4));
        program.expect_near("NLM (4 a pixel)", &got[0].x, &want_nlm[0].x, 4 * pixels, 1e-5, 2e-5);
    }
    CUDA_CHECK(cudaDestroyTextureObject(texture));
    CUDA_CHECK(cudaFreeArray(array));
    return program.finish();
}
