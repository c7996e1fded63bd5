// newerFunctions: functions that CUDA 13.1 to 13.5 added to the driver and the runtime.
//
// Copies with attributes, also captured; host functions with a mode of waiting; numbers
// of parameters; names and parameters of graphs' nodes; execution contexts. NVIDIA's
// libraries of CUDA 13.0 do not have them: then an older function does the same, or the
// check is left out.

#include "common/check.h"

#include <cuda.h>
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

// A function of the driver, or null.
template <typename Function> static Function *driver(Program &program, const char *name) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult status;
    cudaError_t asked = cudaGetDriverEntryPointByVersion(name, &found, 13050, cudaEnableDefault, &status);
    if (asked == cudaErrorInvalidValue && !is_paragpus()) {
        // NVIDIA's runtime does not look for functions of versions after its own.
        cudaGetLastError();
        return nullptr;
    }
    CUDA_CHECK(asked);
    program.expect(found || !is_paragpus(), name);
    return reinterpret_cast<Function *>(found);
}

__global__ void scale(const int *from, int *to, int by) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    to[at] = from[at] * by;
}

static const unsigned THREADS = 64;

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

static void CUDART_CB count_call(void *calls) {
    ++*static_cast<int *>(calls);
}

static void run_host_functions(Program &program, cudaStream_t stream) {
    using Launch = cudaError_t(cudaStream_t, cudaHostFn_t, void *, unsigned);
    auto *launch = runtime<Launch>(program, "cudaLaunchHostFunc_v2");
    if (!launch) {
        return;
    }
    int calls = 0;
    CUDA_CHECK(launch(stream, count_call, &calls, 0));
    CUDA_CHECK(launch(stream, count_call, &calls, 1));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect_equal("calls of a host function", calls, 2);
    program.expect(launch(stream, count_call, &calls, 2) == cudaErrorInvalidValue, "an unknown mode was accepted");
    cudaGetLastError();
}

// A graph whose nodes tell their names and parameters.
static void run_graph(Program &program, cudaStream_t stream) {
    auto *graph_id = runtime<cudaError_t(cudaGraph_t, unsigned *)>(program, "cudaGraphGetId");
    auto *exec_id = runtime<cudaError_t(cudaGraphExec_t, unsigned *)>(program, "cudaGraphExecGetId");
    auto *container = runtime<cudaError_t(cudaGraphNode_t, cudaGraph_t *)>(program, "cudaGraphNodeGetContainingGraph");
    auto *local_id = runtime<cudaError_t(cudaGraphNode_t, unsigned *)>(program, "cudaGraphNodeGetLocalId");
    auto *tools_id = runtime<cudaError_t(cudaGraphNode_t, unsigned long long *)>(program, "cudaGraphNodeGetToolsId");
    auto *parameters = runtime<cudaError_t(cudaGraphNode_t, cudaGraphNodeParams *)>(program, "cudaGraphNodeGetParams");
    auto *driver_parameters = driver<CUresult(CUgraphNode, CUgraphNodeParams *)>(program, "cuGraphNodeGetParams");
    if (!graph_id || !exec_id || !container || !local_id || !tools_id || !parameters || !driver_parameters) {
        return;
    }
    int *memory;
    CUDA_CHECK(cudaMalloc(&memory, 4 * THREADS * sizeof(int)));
    int *to = memory + 2 * THREADS, by = 3;
    cudaGraph_t graph, second;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphCreate(&second, 0));
    cudaGraphNode_t nodes[4];
    cudaMemsetParams filling = {};
    filling.dst = memory;
    filling.value = 7;
    filling.elementSize = 4;
    filling.width = 2 * THREADS;
    filling.height = 1;
    CUDA_CHECK(cudaGraphAddMemsetNode(&nodes[0], graph, nullptr, 0, &filling));
    void *arguments[] = {&memory, &to, &by};
    cudaKernelNodeParams kernel = {};
    kernel.func = reinterpret_cast<void *>(scale);
    kernel.gridDim = dim3(2);
    kernel.blockDim = dim3(THREADS);
    kernel.kernelParams = arguments;
    CUDA_CHECK(cudaGraphAddKernelNode(&nodes[1], graph, &nodes[0], 1, &kernel));
    std::vector<int> got(2 * THREADS), want(2 * THREADS, 21);
    CUDA_CHECK(cudaGraphAddMemcpyNode1D(&nodes[2], graph, &nodes[1], 1, got.data(), to, got.size() * sizeof(int), cudaMemcpyDeviceToHost));
    int calls = 0;
    cudaHostNodeParams host = {count_call, &calls};
    CUDA_CHECK(cudaGraphAddHostNode(&nodes[3], graph, &nodes[2], 1, &host));
    cudaGraphExec_t executable;
    CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(executable, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect_equal("the graph's result", got.data(), want.data(), want.size());
    program.expect_equal("the graph's host function", calls, 1);

    unsigned first = 0, other = 0, third = 0;
    CUDA_CHECK(graph_id(graph, &first));
    CUDA_CHECK(graph_id(second, &other));
    CUDA_CHECK(exec_id(executable, &third));
    program.expect(first != other, "two graphs have one ID");
    program.expect(exec_id(nullptr, &third) == cudaErrorInvalidValue, "no executable graph has an ID");
    cudaGetLastError();
    unsigned local[4];
    unsigned long long tools[4];
    for (int at = 0; at < 4; ++at) {
        cudaGraph_t inside = nullptr;
        CUDA_CHECK(container(nodes[at], &inside));
        program.expect(inside == graph, "a node lies in a different graph");
        CUDA_CHECK(local_id(nodes[at], &local[at]));
        CUDA_CHECK(tools_id(nodes[at], &tools[at]));
        for (int before = 0; before < at; ++before) {
            program.expect(local[before] != local[at] && tools[before] != tools[at], "two nodes have one ID");
        }
    }

    cudaGraphNodeParams found = {};
    CUDA_CHECK(parameters(nodes[0], &found));
    program.expect(found.type == cudaGraphNodeTypeMemset && found.memset.dst == memory && found.memset.value == 7 &&
                       found.memset.elementSize == 4 && found.memset.width == 2 * THREADS && found.memset.height == 1,
                   "a memset node has other parameters");
    CUDA_CHECK(parameters(nodes[1], &found));
    program.expect(found.type == cudaGraphNodeTypeKernel && found.kernel.func, "a kernel node has no kernel");
    program.expect_equal("a kernel node's grid", found.kernel.gridDim.x, 2u);
    program.expect_equal("a kernel node's block", found.kernel.blockDim.x, THREADS);
    program.expect_equal("a kernel node's argument", *static_cast<int *>(found.kernel.kernelParams[2]), by);
    CUDA_CHECK(parameters(nodes[2], &found));
    program.expect(found.type == cudaGraphNodeTypeMemcpy && found.memcpy.copyParams.dstPtr.ptr == got.data() &&
                       found.memcpy.copyParams.extent.width == got.size() * sizeof(int),
                   "a copy node has other parameters");
    CUDA_CHECK(parameters(nodes[3], &found));
    program.expect(found.type == cudaGraphNodeTypeHost && found.host.fn == count_call && found.host.userData == &calls,
                   "a host node has other parameters");
    CUgraphNodeParams drivers = {};
    program.expect_equal("the driver's parameters", driver_parameters(nodes[2], &drivers), CUDA_SUCCESS);
    program.expect(drivers.type == CU_GRAPH_NODE_TYPE_MEMCPY && drivers.memcpy.copyParams.WidthInBytes == got.size() * sizeof(int),
                   "a copy node has other parameters in the driver");
    CUDA_CHECK(cudaGraphExecDestroy(executable));
    CUDA_CHECK(cudaGraphDestroy(second));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaFree(memory));
}

static void run_parameters(Program &program) {
    auto *of_runtime = runtime<cudaError_t(const void *, size_t *)>(program, "cudaFuncGetParamCount");
    auto *of_driver = driver<CUresult(CUfunction, size_t *)>(program, "cuFuncGetParamCount");
    auto *of_kernel = driver<CUresult(CUkernel, size_t *)>(program, "cuKernelGetParamCount");
    size_t count = 0;
    if (of_runtime) {
        CUDA_CHECK(of_runtime(reinterpret_cast<const void *>(scale), &count));
        program.expect_equal("parameters of a kernel", count, size_t{3});
    }
    if (of_driver && of_kernel) {
        cudaFunction_t function;
        cudaKernel_t kernel;
        CUDA_CHECK(cudaGetFuncBySymbol(&function, reinterpret_cast<const void *>(scale)));
        CUDA_CHECK(cudaGetKernel(&kernel, reinterpret_cast<const void *>(scale)));
        program.expect_equal("the driver's count", of_driver(function, &count), CUDA_SUCCESS);
        program.expect_equal("parameters of a function", count, size_t{3});
        program.expect_equal("the driver's count", of_kernel(reinterpret_cast<CUkernel>(kernel), &count), CUDA_SUCCESS);
        program.expect_equal("parameters of a kernel's handle", count, size_t{3});
    }
}

// A part of the multiprocessors with a stream of its own.
static void run_contexts(Program &program) {
    using Context = void *;
    auto *resource_of = runtime<cudaError_t(int, CUdevResource *, int)>(program, "cudaDeviceGetDevResource");
    auto *split = runtime<cudaError_t(CUdevResource *, unsigned *, const CUdevResource *, CUdevResource *, unsigned, unsigned)>(
        program, "cudaDevSmResourceSplitByCount");
    auto *describe = runtime<cudaError_t(CUdevResourceDesc *, CUdevResource *, unsigned)>(program, "cudaDevResourceGenerateDesc");
    auto *create = runtime<cudaError_t(Context *, CUdevResourceDesc, int, unsigned)>(program, "cudaGreenCtxCreate");
    auto *destroy = runtime<cudaError_t(Context)>(program, "cudaExecutionCtxDestroy");
    auto *create_stream = runtime<cudaError_t(cudaStream_t *, Context, unsigned, int)>(program, "cudaExecutionCtxStreamCreate");
    auto *inside = runtime<cudaError_t(Context, CUdevResource *, int)>(program, "cudaExecutionCtxGetDevResource");
    auto *device_of = runtime<cudaError_t(int *, Context)>(program, "cudaExecutionCtxGetDevice");
    auto *id_of = runtime<cudaError_t(Context, unsigned long long *)>(program, "cudaExecutionCtxGetId");
    auto *record = runtime<cudaError_t(Context, cudaEvent_t)>(program, "cudaExecutionCtxRecordEvent");
    auto *wait = runtime<cudaError_t(Context, cudaEvent_t)>(program, "cudaExecutionCtxWaitEvent");
    auto *synchronize = runtime<cudaError_t(Context)>(program, "cudaExecutionCtxSynchronize");
    auto *of_device = runtime<cudaError_t(Context *, int)>(program, "cudaDeviceGetExecutionCtx");
    if (!resource_of || !split || !describe || !create || !destroy || !create_stream || !inside || !device_of || !id_of || !record ||
        !wait || !synchronize || !of_device) {
        return;
    }
    CUdevResource all = {}, part = {}, rest = {}, found = {};
    unsigned groups = 1;
    CUDA_CHECK(resource_of(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    // A device of few multiprocessors is one part.
    unsigned least = all.sm.minSmPartitionSize;
    if (2 * least <= all.sm.smCount) {
        CUDA_CHECK(split(&part, &groups, &all, &rest, 0, least));
        program.expect_equal("groups of a split", groups, 1u);
    } else {
        part = all;
    }
    CUdevResourceDesc description;
    CUDA_CHECK(describe(&description, &part, 1));
    Context context, whole;
    CUDA_CHECK(create(&context, description, 0, 0));
    CUDA_CHECK(of_device(&whole, 0));
    CUDA_CHECK(inside(context, &found, CU_DEV_RESOURCE_TYPE_SM));
    program.expect_equal("multiprocessors of a part", found.sm.smCount, part.sm.smCount);
    CUDA_CHECK(inside(whole, &found, CU_DEV_RESOURCE_TYPE_SM));
    program.expect_equal("multiprocessors of a device", found.sm.smCount, all.sm.smCount);
    int device = -1;
    unsigned long long id = 0, id_of_whole = 0;
    CUDA_CHECK(device_of(&device, context));
    CUDA_CHECK(id_of(context, &id));
    CUDA_CHECK(id_of(whole, &id_of_whole));
    program.expect_equal("the device of a part", device, 0);
    program.expect(id != id_of_whole, "two contexts have one ID");

    cudaStream_t stream;
    cudaEvent_t event;
    int *memory;
    CUDA_CHECK(create_stream(&stream, context, cudaStreamNonBlocking, 0));
    CUDA_CHECK(cudaEventCreate(&event));
    CUDA_CHECK(cudaMalloc(&memory, THREADS * sizeof(int)));
    CUDA_CHECK(cudaMemsetAsync(memory, 1, THREADS * sizeof(int), stream));
    scale<<<1, THREADS, 0, stream>>>(memory, memory, 2);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(record(context, event));
    CUDA_CHECK(wait(whole, event));
    CUDA_CHECK(synchronize(context));
    CUDA_CHECK(cudaEventQuery(event));
    std::vector<int> got(THREADS), want(THREADS, 0x02020202);
    CUDA_CHECK(cudaMemcpy(got.data(), memory, THREADS * sizeof(int), cudaMemcpyDeviceToHost));
    program.expect_equal("a kernel in a part", got.data(), want.data(), want.size());
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaEventDestroy(event));
    CUDA_CHECK(destroy(context));
    program.expect(destroy(whole) != cudaSuccess, "a device's context was destroyed");
    cudaGetLastError();
    CUDA_CHECK(cudaFree(memory));
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
        run_host_functions(program, stream);
        run_graph(program, stream);
        run_parameters(program);
        run_contexts(program);
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
    return program.finish();
}
