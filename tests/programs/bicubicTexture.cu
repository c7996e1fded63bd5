// bicubicTexture: reads textures in every way that filters and addresses allow.
//
// Point and linear filters; clamp, border, wrap and mirror; float elements and
// bytes read as fractions; 1D and 2D arrays, pitched and linear memory; and
// bicubic filters built on them, of 16 point reads or of 4 linear ones. All
// coordinates are odd sixteenths of a texel: no read falls on an edge between
// texels, and the hardware's weights (8 fraction bits) are exact. Tolerance: 1e-5
// for float elements, 1/256 for the bicubic filter by linear reads (its
// weights are not sixteenths), 1/512 for filtered bytes.

#include "common/check.h"

#include <algorithm>
#include <vector>

// Powers of two, so that normalized coordinates are exact.
constexpr int width = 128;
constexpr int height = 64;

struct View {
    int columns;
    int rows;
    int start_x; // in sixteenths of a texel, odd
    int start_y;
    int step_x; // even
    int step_y;
};

__global__ void sample(cudaTextureObject_t texture, float *out, View view, float scale_x, float scale_y) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column < view.columns && row < view.rows) {
        float x = static_cast<float>(view.start_x + column * view.step_x) * 0.0625f * scale_x;
        float y = static_cast<float>(view.start_y + row * view.step_y) * 0.0625f * scale_y;
        out[row * view.columns + column] = tex2D<float>(texture, x, y);
    }
}

__global__ void sample_line(cudaTextureObject_t texture, float *out, View view) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column < view.columns) {
        out[column] = tex1D<float>(texture, static_cast<float>(view.start_x + column * view.step_x) * 0.0625f);
    }
}

__global__ void fetch_linear(cudaTextureObject_t texture, float *out, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        out[at] = tex1Dfetch<float>(texture, (at * 37) % count);
    }
}

// The weights of the cubic B-spline at a fraction.
__host__ __device__ static void spline(float f, float *w) {
    float g = 1.0f - f;
    w[0] = g * g * g / 6.0f;
    w[1] = (4.0f + f * f * (3.0f * f - 6.0f)) / 6.0f;
    w[2] = (4.0f + g * g * (3.0f * g - 6.0f)) / 6.0f;
    w[3] = f * f * f / 6.0f;
}

__global__ void bicubic(cudaTextureObject_t points, float *out, View view) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= view.columns || row >= view.rows) {
        return;
    }
    float x = static_cast<float>(view.start_x + column * view.step_x) * 0.0625f - 0.5f;
    float y = static_cast<float>(view.start_y + row * view.step_y) * 0.0625f - 0.5f;
    float left = floorf(x), top = floorf(y), wx[4], wy[4], sum = 0;
    spline(x - left, wx);
    spline(y - top, wy);
    for (int j = 0; j < 4; ++j) {
        float line = 0;
        for (int i = 0; i < 4; ++i) {
            line += wx[i] * tex2D<float>(points, left + static_cast<float>(i) - 0.5f, top + static_cast<float>(j) - 0.5f);
        }
        sum += wy[j] * line;
    }
    out[row * view.columns + column] = sum;
}

// Two neighbouring taps are one linear read between them.
__global__ void bicubic_by_linear(cudaTextureObject_t linear, float *out, View view) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= view.columns || row >= view.rows) {
        return;
    }
    float x = static_cast<float>(view.start_x + column * view.step_x) * 0.0625f - 0.5f;
    float y = static_cast<float>(view.start_y + row * view.step_y) * 0.0625f - 0.5f;
    float left = floorf(x), top = floorf(y), wx[4], wy[4];
    spline(x - left, wx);
    spline(y - top, wy);
    float gx0 = wx[0] + wx[1], gx1 = wx[2] + wx[3], gy0 = wy[0] + wy[1], gy1 = wy[2] + wy[3];
    float x0 = left - 0.5f + wx[1] / gx0, x1 = left + 1.5f + wx[3] / gx1;
    float y0 = top - 0.5f + wy[1] / gy0, y1 = top + 1.5f + wy[3] / gy1;
    out[row * view.columns + column] =
        gy0 * (gx0 * tex2D<float>(linear, x0, y0) + gx1 * tex2D<float>(linear, x1, y0)) +
        gy1 * (gx0 * tex2D<float>(linear, x0, y1) + gx1 * tex2D<float>(linear, x1, y1));
}

// The texel that an index addresses, or -1 for the border.
static int address(int at, int count, cudaTextureAddressMode mode) {
    switch (mode) {
    case cudaAddressModeWrap:
        return (at % count + count) % count;
    case cudaAddressModeMirror:
        at = (at % (2 * count) + 2 * count) % (2 * count);
        return at < count ? at : 2 * count - 1 - at;
    case cudaAddressModeBorder:
        return at >= 0 && at < count ? at : -1;
    default:
        return std::min(std::max(at, 0), count - 1);
    }
}

struct Image {
    std::vector<float> pixels;
    int columns;
    int rows;

    float at(int x, int y, cudaTextureAddressMode mode) const {
        x = address(x, columns, mode);
        y = address(y, rows, mode);
        return x < 0 || y < 0 ? 0 : pixels[static_cast<size_t>(y) * columns + x];
    }

    float filtered(float x, float y, cudaTextureFilterMode filter, cudaTextureAddressMode mode) const {
        if (filter == cudaFilterModePoint) {
            return at(static_cast<int>(std::floor(x)), static_cast<int>(std::floor(y)), mode);
        }
        float left = std::floor(x - 0.5f), top = std::floor(y - 0.5f), fx = x - 0.5f - left, fy = y - 0.5f - top;
        int i = static_cast<int>(left), j = static_cast<int>(top);
        if (rows == 1) {
            return (1 - fx) * at(i, 0, mode) + fx * at(i + 1, 0, mode);
        }
        return (1 - fy) * ((1 - fx) * at(i, j, mode) + fx * at(i + 1, j, mode)) +
               fy * ((1 - fx) * at(i, j + 1, mode) + fx * at(i + 1, j + 1, mode));
    }
};

static cudaTextureObject_t make_texture(const cudaResourceDesc &resource, cudaTextureFilterMode filter,
                                        cudaTextureAddressMode mode, cudaTextureReadMode read) {
    cudaTextureDesc description = {};
    description.addressMode[0] = description.addressMode[1] = mode;
    description.filterMode = filter;
    description.readMode = read;
    description.normalizedCoords = mode == cudaAddressModeWrap || mode == cudaAddressModeMirror;
    cudaTextureObject_t texture = 0;
    CUDA_CHECK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    return texture;
}

static const dim3 block(16, 8);

static dim3 grid_of(const View &view) { return dim3(blocks_for(view.columns, block.x), blocks_for(view.rows, block.y)); }

static void run_modes(Program &program, const char *what, const cudaResourceDesc &resource, const Image &image,
                      const View &view, DeviceArray<float> &out, bool bytes) {
    const cudaTextureAddressMode modes[] = {cudaAddressModeClamp, cudaAddressModeBorder, cudaAddressModeWrap,
                                            cudaAddressModeMirror};
    const char *const names[] = {"clamp", "border", "wrap", "mirror"};
    std::vector<float> got(out.count()), want(out.count());
    for (cudaTextureFilterMode filter : {cudaFilterModePoint, cudaFilterModeLinear}) {
        for (int at = 0; at < 4; ++at) {
            cudaTextureAddressMode mode = modes[at];
            bool normalized = mode == cudaAddressModeWrap || mode == cudaAddressModeMirror;
            cudaTextureObject_t texture =
                make_texture(resource, filter, mode, bytes ? cudaReadModeNormalizedFloat : cudaReadModeElementType);
            out.spoil();
            sample<<<grid_of(view), block>>>(texture, out.get(), view, normalized ? 1.0f / width : 1.0f,
                                             normalized ? 1.0f / height : 1.0f);
            LAUNCH_CHECK();
            out.download(got.data());
            CUDA_CHECK(cudaDestroyTextureObject(texture));
            for (int row = 0; row < view.rows; ++row) {
                for (int column = 0; column < view.columns; ++column) {
                    float x = static_cast<float>(view.start_x + column * view.step_x) * 0.0625f;
                    float y = static_cast<float>(view.start_y + row * view.step_y) * 0.0625f;
                    want[static_cast<size_t>(row) * view.columns + column] = image.filtered(x, y, filter, mode);
                }
            }
            char name[96];
            std::snprintf(name, sizeof name, "%s, %s, %s", what,
                          filter == cudaFilterModePoint ? "point" : "linear", names[at]);
            double off = filter == cudaFilterModePoint ? 1e-7 : bytes ? 1.0 / 512 : 1e-5;
            program.digest(got.data(), got.size() * sizeof(float));
            program.expect_near(name, got.data(), want.data(), got.size(), 0, off);
        }
    }
}

static void run_bicubic(Program &program, const cudaResourceDesc &resource, const Image &image, const View &view,
                        DeviceArray<float> &out) {
    std::vector<float> got(out.count()), want(out.count());
    for (int row = 0; row < view.rows; ++row) {
        for (int column = 0; column < view.columns; ++column) {
            float x = static_cast<float>(view.start_x + column * view.step_x) * 0.0625f - 0.5f;
            float y = static_cast<float>(view.start_y + row * view.step_y) * 0.0625f - 0.5f;
            float left = std::floor(x), top = std::floor(y), wx[4], wy[4], sum = 0;
            spline(x - left, wx);
            spline(y - top, wy);
            for (int j = 0; j < 4; ++j) {
                for (int i = 0; i < 4; ++i) {
                    sum += wy[j] * wx[i] * image.at(static_cast<int>(left) + i - 1, static_cast<int>(top) + j - 1,
                                                    cudaAddressModeClamp);
                }
            }
            want[static_cast<size_t>(row) * view.columns + column] = sum;
        }
    }
    for (bool linear : {false, true}) {
        cudaTextureObject_t texture = make_texture(resource, linear ? cudaFilterModeLinear : cudaFilterModePoint,
                                                   cudaAddressModeClamp, cudaReadModeElementType);
        out.spoil();
        if (linear) {
            bicubic_by_linear<<<grid_of(view), block>>>(texture, out.get(), view);
        } else {
            bicubic<<<grid_of(view), block>>>(texture, out.get(), view);
        }
        LAUNCH_CHECK();
        out.download(got.data());
        CUDA_CHECK(cudaDestroyTextureObject(texture));
        program.digest(got.data(), got.size() * sizeof(float));
        program.expect_near(linear ? "bicubic by linear reads" : "bicubic by point reads", got.data(), want.data(),
                            got.size(), 0, linear ? 1.0 / 256 : 1e-5);
    }
}

// A 1D array and linear memory.
static void run_lines(Program &program, const Image &image, const View &view) {
    Image line = {std::vector<float>(image.pixels.begin(), image.pixels.begin() + 200), 200, 1};
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array = nullptr;
    CUDA_CHECK(cudaMallocArray(&array, &format, 200));
    CUDA_CHECK(cudaMemcpy2DToArray(array, 0, 0, line.pixels.data(), 800, 800, 1, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureObject_t texture =
        make_texture(resource, cudaFilterModeLinear, cudaAddressModeClamp, cudaReadModeElementType);
    DeviceArray<float> out(std::max<size_t>(view.columns, 200));
    std::vector<float> got(out.count()), want(out.count());
    sample_line<<<blocks_for(view.columns, 64), 64>>>(texture, out.get(), view);
    LAUNCH_CHECK();
    out.download(got.data());
    for (int column = 0; column < view.columns; ++column) {
        want[column] = line.filtered(static_cast<float>(view.start_x + column * view.step_x) * 0.0625f, 0,
                                     cudaFilterModeLinear, cudaAddressModeClamp);
    }
    program.expect_near("a 1D array", got.data(), want.data(), view.columns, 0, 1e-5);
    CUDA_CHECK(cudaDestroyTextureObject(texture));
    CUDA_CHECK(cudaFreeArray(array));

    DeviceArray<float> memory(line.pixels.data(), 200);
    resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = memory.get();
    resource.res.linear.desc = format;
    resource.res.linear.sizeInBytes = memory.bytes();
    texture = make_texture(resource, cudaFilterModePoint, cudaAddressModeClamp, cudaReadModeElementType);
    fetch_linear<<<4, 64>>>(texture, out.get(), 200);
    LAUNCH_CHECK();
    out.download(got.data());
    for (int at = 0; at < 200; ++at) {
        want[at] = line.pixels[at * 37 % 200];
    }
    program.expect_equal("linear memory", got.data(), want.data(), 200);
    CUDA_CHECK(cudaDestroyTextureObject(texture));
}

int main(int argc, char **argv) {
    Program program("bicubicTexture", "reads textures by every filter and address mode", "columns of the result", 96, 2,
                    8192);
    program.parse(argc, argv);
    // From a quarter outside the image on one side to a quarter on the other.
    View view = {static_cast<int>(program.size()), 0, 0, 0, 0, 0};
    view.rows = std::max(view.columns / 2, 1);
    view.start_x = -4 * width + 1;
    view.start_y = -4 * height + 3;
    view.step_x = std::max(24 * width / view.columns, 1);
    view.step_y = std::max(24 * height / view.rows, 1);
    view.step_x += view.step_x & 1;
    view.step_y += view.step_y & 1;

    Random random(program.seed());
    Image image = {std::vector<float>(width * height), width, height};
    Image byte_image = image;
    std::vector<unsigned char> bytes(width * height);
    for (size_t at = 0; at < bytes.size(); ++at) {
        image.pixels[at] = random.uniform(0, 1);
        bytes[at] = static_cast<unsigned char>(random.below(256));
        byte_image.pixels[at] = static_cast<float>(bytes[at]) / 255.0f;
    }

    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaChannelFormatDesc byte_format = cudaCreateChannelDesc<unsigned char>();
    cudaArray_t array = nullptr, byte_array = nullptr;
    CUDA_CHECK(cudaMallocArray(&array, &format, width, height));
    CUDA_CHECK(cudaMallocArray(&byte_array, &byte_format, width, height));
    CUDA_CHECK(cudaMemcpy2DToArray(array, 0, 0, image.pixels.data(), width * sizeof(float), width * sizeof(float),
                                   height, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy2DToArray(byte_array, 0, 0, bytes.data(), width, width, height, cudaMemcpyHostToDevice));
    float *pitched = nullptr;
    size_t pitch = 0;
    CUDA_CHECK(cudaMallocPitch(&pitched, &pitch, width * sizeof(float), height));
    CUDA_CHECK(cudaMemcpy2D(pitched, pitch, image.pixels.data(), width * sizeof(float), width * sizeof(float), height,
                            cudaMemcpyHostToDevice));

    cudaResourceDesc in_array = {}, in_byte_array = {}, in_pitched = {};
    in_array.resType = in_byte_array.resType = cudaResourceTypeArray;
    in_array.res.array.array = array;
    in_byte_array.res.array.array = byte_array;
    in_pitched.resType = cudaResourceTypePitch2D;
    in_pitched.res.pitch2D.devPtr = pitched;
    in_pitched.res.pitch2D.desc = format;
    in_pitched.res.pitch2D.width = width;
    in_pitched.res.pitch2D.height = height;
    in_pitched.res.pitch2D.pitchInBytes = pitch;
    DeviceArray<float> out(static_cast<size_t>(view.columns) * view.rows);

    while (program.next_round()) {
        run_modes(program, "float array", in_array, image, view, out, false);
        run_modes(program, "byte array", in_byte_array, byte_image, view, out, true);
        run_modes(program, "pitched memory", in_pitched, image, view, out, false);
        run_bicubic(program, in_array, image, view, out);
        run_lines(program, image, view);
    }
    CUDA_CHECK(cudaFree(pitched));
    CUDA_CHECK(cudaFreeArray(byte_array));
    CUDA_CHECK(cudaFreeArray(array));
    return program.finish();
}
