// batchedCopies: many copies in one call.
//
// Linear batches among host and device memory with several attributes, sources
// that end with the call, batches of volumes between arrays and memory, batched
// prefetches and discards of managed memory, and lists that do not fit.

#include "common/check.h"

#include <algorithm>
#include <cstring>
#include <vector>

static cudaMemcpyAttributes order(cudaMemcpySrcAccessOrder order) {
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = order;
    return attributes;
}

// Both directions in one batch, then back, with each piece at another offset between.
static void run_linear(Program &program, size_t count, Random &random, cudaStream_t stream) {
    const size_t pieces = 16;
    size_t bytes = count * sizeof(int);
    std::vector<int> from(count * pieces), got(count * pieces);
    int *pinned, *device, *other;
    CUDA_CHECK(cudaMallocHost(&pinned, bytes * pieces));
    CUDA_CHECK(cudaMalloc(&device, bytes * pieces));
    CUDA_CHECK(cudaMalloc(&other, bytes * pieces));
    for (size_t at = 0; at < from.size(); ++at) {
        from[at] = pinned[at] = static_cast<int>(random.next());
    }
    std::vector<void *> to(pieces);
    std::vector<const void *> sources(pieces);
    std::vector<size_t> sizes(pieces, bytes);
    for (size_t piece = 0; piece < pieces; ++piece) {
        bool ends = piece >= pieces / 2;
        to[piece] = device + piece * count;
        sources[piece] = (ends ? pinned : from.data()) + piece * count;
    }
    cudaMemcpyAttributes attributes[] = {order(cudaMemcpySrcAccessOrderStream), order(cudaMemcpySrcAccessOrderDuringApiCall)};
    size_t firsts[] = {0, pieces / 2};
    CUDA_CHECK(cudaMemcpyBatchAsync(to.data(), sources.data(), sizes.data(), pieces, attributes, firsts, 2, stream));
    // The second half's sources may be overwritten: they were read during the call.
    std::fill(pinned, pinned + count * pieces, -1);
    for (size_t piece = 0; piece < pieces; ++piece) {
        to[piece] = other + (pieces - 1 - piece) * count;
        sources[piece] = device + piece * count;
    }
    cudaMemcpyAttributes any = order(cudaMemcpySrcAccessOrderAny);
    any.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    CUDA_CHECK(cudaMemcpyBatchAsync(to.data(), sources.data(), sizes.data(), pieces, &any, firsts, 1, stream));
    for (size_t piece = 0; piece < pieces; ++piece) {
        to[piece] = got.data() + piece * count;
        sources[piece] = other + (pieces - 1 - piece) * count;
    }
    CUDA_CHECK(cudaMemcpyBatchAsync(to.data(), sources.data(), sizes.data(), pieces, attributes, firsts, 1, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect_equal("a batch there and back", got.data(), from.data(), from.size());
    program.digest(got.data(), got.size() * sizeof(int));

    auto fails = [&](size_t length, cudaMemcpyAttributes *given, size_t *runs, size_t number, cudaStream_t where, const char *what) {
        cudaError_t status = cudaMemcpyBatchAsync(to.data(), sources.data(), sizes.data(), length, given, runs, number, where);
        cudaGetLastError();
        program.expect(status == cudaErrorInvalidValue, what);
    };
    size_t late[] = {1}, twice[] = {0, 0}, past[] = {0, pieces};
    cudaMemcpyAttributes none = {};
    fails(0, attributes, firsts, 1, stream, "an empty batch was accepted");
    fails(pieces, attributes, late, 1, stream, "copies without attributes were accepted");
    fails(pieces, attributes, twice, 2, stream, "two attributes of one run were accepted");
    fails(pieces, attributes, past, 2, stream, "attributes past the batch were accepted");
    fails(pieces, &none, firsts, 1, stream, "a missing access order was accepted");
    fails(pieces, attributes, firsts, 1, cudaStreamLegacy, "the legacy stream was accepted");
    CUDA_CHECK(cudaFreeHost(pinned));
    CUDA_CHECK(cudaFree(device));
    CUDA_CHECK(cudaFree(other));
}

static cudaMemcpy3DOperand memory(void *address, size_t row = 0, size_t rows = 0) {
    cudaMemcpy3DOperand operand = {};
    operand.type = cudaMemcpyOperandTypePointer;
    operand.op.ptr.ptr = address;
    operand.op.ptr.rowLength = row;
    operand.op.ptr.layerHeight = rows;
    return operand;
}

static cudaMemcpy3DOperand inside(cudaArray_t array, size_t x, size_t y, size_t z) {
    cudaMemcpy3DOperand operand = {};
    operand.type = cudaMemcpyOperandTypeArray;
    operand.op.array.array = array;
    operand.op.array.offset = {x, y, z};
    return operand;
}

static cudaMemcpy3DBatchOp copy(cudaMemcpy3DOperand from, cudaMemcpy3DOperand to, cudaExtent extent) {
    cudaMemcpy3DBatchOp operation = {};
    operation.src = from;
    operation.dst = to;
    operation.extent = extent;
    operation.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    return operation;
}

static void run_volumes(Program &program, Random &random, cudaStream_t stream) {
    const size_t width = 12, height = 6, depth = 4, row = 20, rows = 9;
    std::vector<float> from(row * rows * depth), got(width * height * depth, -1.0f), want(got.size());
    for (float &value : from) {
        value = random.sixteenth();
    }
    for (size_t z = 0; z < depth; ++z) {
        for (size_t y = 0; y < height; ++y) {
            for (size_t x = 0; x < width; ++x) {
                want[(z * height + y) * width + x] = from[(z * rows + y) * row + x];
            }
        }
    }
    cudaChannelFormatDesc floats = cudaCreateChannelDesc<float>();
    cudaArray_t array, other;
    CUDA_CHECK(cudaMalloc3DArray(&array, &floats, cudaExtent{32, 16, 8}));
    CUDA_CHECK(cudaMalloc3DArray(&other, &floats, cudaExtent{32, 16, 8}));
    float *device;
    CUDA_CHECK(cudaMalloc(&device, want.size() * sizeof(float)));
    cudaExtent extent = {width, height, depth}, half = {width, height, depth / 2};
    // Into an array by halves, to another array, to the device, to the host. Copies
    // that depend on another are in a later batch.
    cudaMemcpy3DBatchOp halves[] = {
        copy(memory(from.data(), row, rows), inside(array, 3, 2, 1), half),
        copy(memory(from.data() + row * rows * depth / 2, row, rows), inside(array, 3, 2, 1 + depth / 2), half),
    };
    CUDA_CHECK(cudaMemcpy3DBatchAsync(2, halves, 0, stream));
    cudaMemcpy3DBatchOp across = copy(inside(array, 3, 2, 1), inside(other, 5, 1, 3), extent);
    CUDA_CHECK(cudaMemcpy3DBatchAsync(1, &across, 0, stream));
    cudaMemcpy3DBatchOp out = copy(inside(other, 5, 1, 3), memory(device), extent);
    CUDA_CHECK(cudaMemcpy3DBatchAsync(1, &out, 0, stream));
    cudaMemcpy3DBatchOp back = copy(memory(device), memory(got.data()), cudaExtent{width * sizeof(float), height, depth});
    CUDA_CHECK(cudaMemcpy3DBatchAsync(1, &back, 0, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect_equal("volumes through arrays", got.data(), want.data(), want.size());
    program.digest(got.data(), got.size() * sizeof(float));

    auto fails = [&](cudaMemcpy3DBatchOp operation, unsigned long long flags, const char *what) {
        cudaError_t status = cudaMemcpy3DBatchAsync(1, &operation, flags, stream);
        cudaGetLastError();
        program.expect(status == cudaErrorInvalidValue, what);
    };
    fails(back, 1, "unknown flags were accepted");
    fails(copy(memory(device), memory(got.data()), cudaExtent{4, 0, 1}), 0, "an extent of 0 was accepted");
    fails(copy(memory(device, 3), memory(got.data()), cudaExtent{4, 1, 1}), 0, "rows shorter than the copy were accepted");
    back.srcAccessOrder = cudaMemcpySrcAccessOrderInvalid;
    fails(back, 0, "a missing access order was accepted");
    CUDA_CHECK(cudaFreeArray(array));
    CUDA_CHECK(cudaFreeArray(other));
    CUDA_CHECK(cudaFree(device));
}

static void run_managed(Program &program, cudaStream_t stream) {
    int concurrent = 0;
    const size_t bytes = 1 << 16;
    char *one;
    CUDA_CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    CUDA_CHECK(cudaMallocManaged(&one, 2 * bytes));
    std::memset(one, 5, 2 * bytes);
    void *places[] = {one, one + bytes};
    size_t sizes[] = {bytes, bytes}, first[] = {0};
    cudaMemLocation host = {};
    host.type = cudaMemLocationTypeHost;
    cudaError_t status = cudaMemPrefetchBatchAsync(places, sizes, 2, &host, first, 1, 0, stream);
    cudaGetLastError();
    // A device without the attribute may refuse.
    program.expect(status == cudaSuccess || !concurrent, "a batch of prefetches failed");
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect(one[0] == 5 && one[2 * bytes - 1] == 5, "a prefetch changed memory");
    status = cudaMemDiscardBatchAsync(places, sizes, 2, 0, stream);
    cudaGetLastError();
    program.expect(status == cudaSuccess || !concurrent, "a batch of discards failed");
    sizes[1] = 2 * bytes;
    status = cudaMemDiscardBatchAsync(places, sizes, 2, 0, stream);
    cudaGetLastError();
    program.expect(status != cudaSuccess, "a range beyond its allocation was accepted");
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaFree(one));
}

int main(int argc, char **argv) {
    Program program("batchedCopies", "copies many pieces in one call", "ints in a piece", 1009, 1, 1L << 20);
    program.parse(argc, argv);
    Random random(program.seed());
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    while (program.next_round()) {
        run_linear(program, static_cast<size_t>(program.size()), random, stream);
        run_volumes(program, random, stream);
        run_managed(program, stream);
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
    return program.finish();
}
