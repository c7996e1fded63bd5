// tensorMaps: copies of boxes of a matrix between global and shared memory, described by
// tensor maps.
//
// Each swizzle, boxes that are partly outside the matrix, values for what is outside,
// sums with what is in global memory.

#include "common/check.h"

#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

constexpr int ROWS = 8;
// Of a box, in words; with a swizzle, a row is as long as it.
constexpr int MAX_COLUMNS = 32;
constexpr int WIDTH = 64, HEIGHT = 40;

static __device__ uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

static __device__ void expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

static __device__ void wait(uint64_t *barrier) {
    asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared.b64 done, [%0], 0; @!done bra again; }" ::"r"(
                     shared_address(barrier))
                 : "memory");
}

static __device__ void initialize(uint64_t *barrier) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(shared_address(barrier))
                 : "memory");
}

// Loads the box at (x, y), copies it to `found`, adds 1 to each word, and stores it at
// (to_x, to_y) of another matrix, or adds it to what is there.
__global__ void move(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to, int x, int y,
                     int to_x, int to_y, int words, bool add, uint32_t *found) {
    __shared__ alignas(1024) uint32_t box[ROWS * MAX_COLUMNS];
    __shared__ alignas(8) uint64_t barrier;
    if (threadIdx.x == 0) {
        initialize(&barrier);
        expect(&barrier, words * 4);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
                     "%3}], [%4];" ::"r"(shared_address(box)),
                     "l"(&from), "r"(x), "r"(y), "r"(shared_address(&barrier))
                     : "memory");
    }
    __syncthreads();
    wait(&barrier);
    for (int at = threadIdx.x; at < words; at += blockDim.x) {
        found[at] = box[at];
        box[at] += 1;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        if (add) {
            asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                             &to),
                         "r"(to_x), "r"(to_y), "r"(shared_address(box))
                         : "memory");
        } else {
            asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&to),
                         "r"(to_x), "r"(to_y), "r"(shared_address(box))
                         : "memory");
        }
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

static CUtensorMap encode(Program &program, void *matrix, cuuint32_t columns, CUtensorMapDataType type,
                          CUtensorMapSwizzle swizzle, CUtensorMapFloatOOBfill fill) {
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
    cuuint64_t size[] = {WIDTH, HEIGHT}, stride[] = {WIDTH * 4};
    cuuint32_t box[] = {columns, ROWS}, step[] = {1, 1};
    CUtensorMap map{};
    CUresult status = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry)(
        &map, type, 2, matrix, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, fill);
    program.expect(status == CUDA_SUCCESS, "cuTensorMapEncodeTiled failed");
    return map;
}

// Where word `at` of a box is: pieces of 16 bytes change places within 8 rows of 128 bytes.
static int swizzled(int at, int swizzle) {
    return swizzle ? at ^ ((at >> 5 & ((1 << swizzle) - 1)) << 2) : at;
}

static bool inside(int x, int y) {
    return x >= 0 && x < WIDTH && y >= 0 && y < HEIGHT;
}

int main(int argc, char **argv) {
    Program program("tensorMaps", "moves boxes of a matrix by tensor maps", "boxes", 6, 1, 1000);
    program.parse(argc, argv);
    int supported = 0;
    // The runtime has no name for it.
    auto attribute = static_cast<cudaDeviceAttr>(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED);
    CUDA_CHECK(cudaDeviceGetAttribute(&supported, attribute, 0));
    if (!supported) {
        program.die("the device has no tensor maps");
    }
    Random random(program.seed());
    DeviceArray<uint32_t> input(WIDTH * HEIGHT), output(WIDTH * HEIGHT), box(ROWS * MAX_COLUMNS);
    std::vector<uint32_t> matrix(WIDTH * HEIGHT), want, got(WIDTH * HEIGHT), found(ROWS * MAX_COLUMNS);
    while (program.next_round()) {
        for (uint32_t &word : matrix) {
            word = static_cast<uint32_t>(random.below(1000000));
        }
        input.upload(matrix.data());
        for (int swizzle = 0; swizzle < 4; ++swizzle) {
            int columns = swizzle ? 4 << swizzle : MAX_COLUMNS;
            auto mode = static_cast<CUtensorMapSwizzle>(swizzle);
            auto map = [&](uint32_t *of) {
                return encode(program, of, columns, CU_TENSOR_MAP_DATA_TYPE_UINT32, mode,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
            };
            CUtensorMap from = map(input.get()), to = map(output.get());
            for (long n = 0; n < program.size(); ++n) {
                bool add = n % 2;
                // A box begins at a multiple of 16 bytes: elsewhere a GPU finds an illegal instruction.
                int x = 4 * static_cast<int>(random.below((WIDTH + columns) / 4)) - columns;
                int y = static_cast<int>(random.below(HEIGHT + ROWS)) - ROWS;
                // A store before the matrix is an illegal instruction, a load is not.
                int to_x = std::max(x, 0), to_y = std::max(y, 0);
                output.upload(matrix.data());
                move<<<1, 64>>>(from, to, x, y, to_x, to_y, ROWS * columns, add, box.get());
                LAUNCH_CHECK();
                output.download(got.data());
                box.download(found.data());
                want = matrix;
                for (int at = 0; at < ROWS * columns; ++at) {
                    int column = x + at % columns, row = y + at / columns;
                    uint32_t value = inside(column, row) ? matrix[row * WIDTH + column] : 0;
                    program.expect_equal("a word of a box", found[swizzled(at, swizzle)], value);
                    column += to_x - x;
                    row += to_y - y;
                    if (inside(column, row)) {
                        want[row * WIDTH + column] = (add ? matrix[row * WIDTH + column] : 0) + value + 1;
                    }
                }
                program.expect_equal("the matrix", got.data(), want.data(), want.size());
                program.digest(got.data(), got.size() * sizeof got[0]);
            }
        }
        CUtensorMap floats = encode(program, input.get(), MAX_COLUMNS, CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                                    CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);
        move<<<1, 64>>>(floats, floats, WIDTH, 0, WIDTH, 0, ROWS * MAX_COLUMNS, false, box.get());
        LAUNCH_CHECK();
        box.download(found.data());
        for (int at = 0; at < ROWS * MAX_COLUMNS; ++at) {
            float value;
            memcpy(&value, &found[at], sizeof value);
            program.expect(std::isnan(value), "an element outside the matrix is a number");
        }
    }
    return program.finish();
}
