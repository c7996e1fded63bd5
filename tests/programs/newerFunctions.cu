// newerFunctions: functions that CUDA 13.1 to 13.5 added to the driver and the runtime.
//
// Copies with attributes, also captured. NVIDIA's libraries of CUDA 13.0 do not have them:
// then an older function does the same.

#include "common/check.h"

#include <dlfcn.h>
#include <vector>

// Whether the runtime is paragpu's, which has all of them.
static bool is_paragpus() {
    return dlsym(RTLD_DEFAULT, "paragpu_runtime_interface") != nullptr;
}

// A function of the runtime, or null.
template <typename Function> static Function *runtime(Program &program, const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    program.expect(found || !is_paragpus(), name);
    return reinterpret_cast<Function *>(found);
}

using Copy = cudaError_t(void *, const void *, size_t, cudaMemcpyAttributes *, cudaStream_t);

// Copies with an order in which the source is read.
struct Copier {
    Copy *copy;

    void operator()(void *to, const void *from, size_t bytes, cudaMemcpySrcAccessOrder order, cudaStream_t stream) const {
        if (copy) {
            cudaMemcpyAttributes attributes = {};
            attributes.srcAccessOrder = order;
            attributes.flags = order == cudaMemcpySrcAccessOrderAny ? cudaMemcpyFlagPreferOverlapWithCompute : cudaMemcpyFlagDefault;
            CUDA_CHECK(copy(to, from, bytes, &attributes, stream));
            return;
        }
        CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
        if (order == cudaMemcpySrcAccessOrderDuringApiCall) {
            CUDA_CHECK(cudaStreamSynchronize(stream));
        }
    }
};

static void run_copies(Program &program, size_t count, Random &random, cudaStream_t stream) {
    Copier copy = {runtime<Copy>(program, "cudaMemcpyWithAttributesAsync")};
    size_t bytes = count * sizeof(int);
    int *pinned, *device, *other;
    CUDA_CHECK(cudaMallocHost(&pinned, bytes));
    CUDA_CHECK(cudaMalloc(&device, bytes));
    CUDA_CHECK(cudaMalloc(&other, bytes));
    std::vector<int> from(count), got(count);
    for (size_t at = 0; at < count; ++at) {
        from[at] = pinned[at] = static_cast<int>(random.next());
    }
    copy(device, pinned, bytes, cudaMemcpySrcAccessOrderDuringApiCall, stream);
    // The source was read during the call.
    std::memset(pinned, 0xff, bytes);
    copy(other, device, bytes, cudaMemcpySrcAccessOrderAny, stream);
    copy(got.data(), other, bytes, cudaMemcpySrcAccessOrderStream, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect_equal("copies with attributes", got.data(), from.data(), count);
    program.digest(got.data(), bytes);

    // Captured copies are nodes, which read their sources at each launch.
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    copy(device, pinned, bytes, cudaMemcpySrcAccessOrderStream, stream);
    copy(other, device, bytes, cudaMemcpySrcAccessOrderAny, stream);
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    for (int launch = 1; launch <= 2; ++launch) {
        for (size_t at = 0; at < count; ++at) {
            pinned[at] = from[at] ^ launch;
        }
        CUDA_CHECK(cudaGraphLaunch(executable, stream));
        CUDA_CHECK(cudaMemcpyAsync(got.data(), other, bytes, cudaMemcpyDeviceToHost, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        program.expect_equal("captured copies", got.data(), pinned, count);
        program.digest(got.data(), bytes);
    }
    if (copy.copy) {
        auto refused = [&](cudaMemcpyAttributes *attributes, const char *what) {
            program.expect(copy.copy(device, pinned, bytes, attributes, stream) == cudaErrorInvalidValue, what);
            cudaGetLastError();
        };
        cudaMemcpyAttributes none = {};
        refused(nullptr, "missing attributes were accepted");
        refused(&none, "a missing access order was accepted");
    }
    CUDA_CHECK(cudaGraphExecDestroy(executable));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaFree(other));
    CUDA_CHECK(cudaFree(device));
    CUDA_CHECK(cudaFreeHost(pinned));
}

// A plane of an array there and back.
static void run_volume(Program &program, Random &random, cudaStream_t stream) {
    using Volume = cudaError_t(cudaMemcpy3DBatchOp *, unsigned long long, cudaStream_t);
    auto *copy = runtime<Volume>(program, "cudaMemcpy3DWithAttributesAsync");
    const size_t width = 24, height = 10;
    std::vector<float> from(width * height), got(width * height);
    for (float &value : from) {
        value = random.sixteenth();
    }
    cudaChannelFormatDesc floats = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    CUDA_CHECK(cudaMallocArray(&array, &floats, width, height));
    size_t row = width * sizeof(float);
    if (copy) {
        cudaMemcpy3DBatchOp operation = {};
        operation.extent = {width, height, 1};
        operation.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
        cudaMemcpy3DOperand memory = {}, inside = {};
        memory.type = cudaMemcpyOperandTypePointer;
        inside.type = cudaMemcpyOperandTypeArray;
        inside.op.array.array = array;
        memory.op.ptr.ptr = from.data();
        operation.src = memory;
        operation.dst = inside;
        CUDA_CHECK(copy(&operation, 0, stream));
        memory.op.ptr.ptr = got.data();
        operation.src = inside;
        operation.dst = memory;
        CUDA_CHECK(copy(&operation, 0, stream));
        program.expect(copy(&operation, 1, stream) == cudaErrorInvalidValue, "unknown flags were accepted");
        cudaGetLastError();
    } else {
        CUDA_CHECK(cudaMemcpy2DToArrayAsync(array, 0, 0, from.data(), row, row, height, cudaMemcpyDefault, stream));
        CUDA_CHECK(cudaMemcpy2DFromArrayAsync(got.data(), row, array, 0, 0, row, height, cudaMemcpyDefault, stream));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect_equal("a volume with attributes", got.data(), from.data(), got.size());
    program.digest(got.data(), got.size() * sizeof(float));
    CUDA_CHECK(cudaFreeArray(array));
}

int main(int argc, char **argv) {
    Program program("newerFunctions", "calls functions of CUDA 13.1 to 13.5", "ints in a copy", 5003, 1, 1L << 20);
    program.parse(argc, argv);
    Random random(program.seed());
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    while (program.next_round()) {
        run_copies(program, static_cast<size_t>(program.size()), random, stream);
        run_volume(program, random, stream);
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
    return program.finish();
}
