// fastWalshTransform: the Walsh-Hadamard transform, and back.
//
// Large strides take two stages per kernel in global memory, the rest in shared
// memory. The inputs are integers so small that every sum is exact: the
// transform is compared bit for bit with the CPU, and twice the transform over
// its length must give the input again.

#include "common/check.h"

#include <vector>

constexpr int shared_log2 = 11;

// Two stages: strides 2 * quarter and quarter, four elements a thread.
__global__ void radix_4(float *data, unsigned quarter, unsigned count) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count / 4) {
        return;
    }
    unsigned low = at & (quarter - 1);
    float *first = data + ((at - low) * 4 + low);
    float a = first[0], b = first[quarter], c = first[2 * quarter], d = first[3 * quarter];
    float ac = a + c, bd = b + d, a_c = a - c, b_d = b - d;
    first[0] = ac + bd;
    first[quarter] = ac - bd;
    first[2 * quarter] = a_c + b_d;
    first[3 * quarter] = a_c - b_d;
}

// One stage with the given stride, two elements a thread.
__global__ void radix_2(float *data, unsigned stride, unsigned count) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count / 2) {
        return;
    }
    unsigned low = at & (stride - 1);
    float *first = data + ((at - low) * 2 + low);
    float a = first[0], b = first[stride];
    first[0] = a + b;
    first[stride] = a - b;
}

// All stages inside one stretch of 2^log2 elements, one block each.
__global__ void in_shared(float *data, int log2) {
    extern __shared__ float stretch[];
    unsigned count = 1u << log2;
    float *mine = data + (static_cast<size_t>(blockIdx.x) << log2);
    for (unsigned at = threadIdx.x; at < count; at += blockDim.x) {
        stretch[at] = mine[at];
    }
    for (unsigned stride = count / 2; stride > 0; stride /= 2) {
        __syncthreads();
        for (unsigned at = threadIdx.x; at < count / 2; at += blockDim.x) {
            unsigned low = at & (stride - 1), first = (at - low) * 2 + low;
            float a = stretch[first], b = stretch[first + stride];
            stretch[first] = a + b;
            stretch[first + stride] = a - b;
        }
    }
    __syncthreads();
    for (unsigned at = threadIdx.x; at < count; at += blockDim.x) {
        mine[at] = stretch[at];
    }
}

__global__ void scale(float *data, float factor, unsigned count) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        data[at] *= factor;
    }
}

static void transform(float *data, int log2) {
    unsigned count = 1u << log2;
    int left = log2;
    for (; left > shared_log2 + 1; left -= 2) {
        radix_4<<<blocks_for(count / 4, 256), 256>>>(data, 1u << (left - 2), count);
        LAUNCH_CHECK();
    }
    if (left > shared_log2) {
        radix_2<<<blocks_for(count / 2, 256), 256>>>(data, 1u << (left - 1), count);
        LAUNCH_CHECK();
        --left;
    }
    in_shared<<<count >> left, 256, sizeof(float) << left>>>(data, left);
    LAUNCH_CHECK();
}

static void transform_on_cpu(std::vector<float> &data) {
    for (size_t stride = data.size() / 2; stride > 0; stride /= 2) {
        for (size_t start = 0; start < data.size(); start += 2 * stride) {
            for (size_t at = start; at < start + stride; ++at) {
                float a = data[at], b = data[at + stride];
                data[at] = a + b;
                data[at + stride] = a - b;
            }
        }
    }
}

int main(int argc, char **argv) {
    Program program("fastWalshTransform", "transforms and transforms back", "log2 of the elements", 16, 2, 20);
    program.parse(argc, argv);
    int log2 = static_cast<int>(program.size());
    unsigned count = 1u << log2;

    Random random(program.seed());
    std::vector<float> input(count), got(count);
    for (float &value : input) {
        value = static_cast<float>(random.below(15)) - 7.0f;
    }
    std::vector<float> want = input;
    if (program.verify()) {
        transform_on_cpu(want);
    }
    DeviceArray<float> data(count);

    while (program.next_round()) {
        data.upload(input.data());
        transform(data.get(), log2);
        data.download(got.data());
        program.digest(got.data(), count * sizeof(float));
        program.expect_equal("the transform", got.data(), want.data(), count);
        transform(data.get(), log2);
        scale<<<blocks_for(count, 256), 256>>>(data.get(), 1.0f / static_cast<float>(count), count);
        LAUNCH_CHECK();
        data.download(got.data());
        program.expect_equal("the transform of the transform", got.data(), input.data(), count);
    }
    return program.finish();
}
