// graphMemory: memory that graphs allocate and free, and statistics of pools.
//
// Allocations captured in a stream and added as nodes, used by kernels in between
// and launched repeatedly; one that the program frees after the graph; the bytes
// that pools report as in use, and a pool with a limit. Allocations one after another
// share memory, those of two branches do not.

#include "common/check.h"

#include <vector>

__global__ void fill(unsigned *values, unsigned first, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] = first + static_cast<unsigned>(at);
    }
}

__global__ void add(unsigned *sums, const unsigned *values, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        sums[at] += values[at];
    }
}

static unsigned blocks(size_t count) { return static_cast<unsigned>((count + 255) / 256); }

static void run_capture(Program &program, size_t count, cudaStream_t stream) {
    unsigned *sums, *between = nullptr;
    CUDA_CHECK(cudaMalloc(&sums, count * sizeof(unsigned)));
    CUDA_CHECK(cudaMemset(sums, 0, count * sizeof(unsigned)));
    CUDA_CHECK(cudaDeviceSynchronize());
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CUDA_CHECK(cudaMallocAsync(&between, count * sizeof(unsigned), stream));
    fill<<<blocks(count), 256, 0, stream>>>(between, 3, count);
    LAUNCH_CHECK();
    add<<<blocks(count), 256, 0, stream>>>(sums, between, count);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaFreeAsync(between, stream));
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    program.expect(nodes == 4, "a capture with memory has a different number of nodes");
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int launch = 0; launch < 4; ++launch) {
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    std::vector<unsigned> got(count), want(count);
    for (size_t at = 0; at < count; ++at) {
        want[at] = 4 * (3 + static_cast<unsigned>(at));
    }
    CUDA_CHECK(cudaMemcpy(got.data(), sums, count * sizeof(unsigned), cudaMemcpyDeviceToHost));
    program.expect_equal("sums through memory of a graph", got.data(), want.data(), count);
    program.digest(got.data(), count * sizeof(unsigned));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaFree(sums));
}

static unsigned long long of_graphs(int device, cudaGraphMemAttributeType which) {
    unsigned long long bytes = 0;
    CUDA_CHECK(cudaDeviceGetGraphMemAttribute(device, which, &bytes));
    return bytes;
}

// The device reserves at least as many bytes for graphs as one has allocated, rounded
// up to whole pages.
static void check_usage(Program &program, int device, size_t bytes) {
    program.expect(of_graphs(device, cudaGraphMemAttrUsedMemCurrent) >= bytes, "graphs use less than they allocated");
    program.expect(of_graphs(device, cudaGraphMemAttrReservedMemCurrent) >= bytes, "graphs reserve less than they allocated");
    program.expect(of_graphs(device, cudaGraphMemAttrUsedMemHigh) >= of_graphs(device, cudaGraphMemAttrUsedMemCurrent),
                   "the high-water mark of use is below current use");
    program.expect(of_graphs(device, cudaGraphMemAttrReservedMemHigh) >= bytes, "the high-water mark of reserved memory is too low");
}

static void check_trim(Program &program, int device, size_t bytes) {
    CUDA_CHECK(cudaDeviceGraphMemTrim(device));
    program.expect(of_graphs(device, cudaGraphMemAttrUsedMemHigh) >= bytes, "a trim reset the high-water mark of use");
    unsigned long long zero = 0, one = 1;
    CUDA_CHECK(cudaDeviceSetGraphMemAttribute(device, cudaGraphMemAttrUsedMemHigh, &zero));
    CUDA_CHECK(cudaDeviceSetGraphMemAttribute(device, cudaGraphMemAttrReservedMemHigh, &zero));
    program.expect(cudaDeviceSetGraphMemAttribute(device, cudaGraphMemAttrUsedMemHigh, &one) == cudaErrorInvalidValue,
                   "a high-water mark could be set to a value other than 0");
    program.expect(cudaDeviceSetGraphMemAttribute(device, cudaGraphMemAttrUsedMemCurrent, &zero) ==
                       cudaErrorInvalidValue,
                   "current use could be set");
    (void)cudaGetLastError();
}

// What CUDA forbids of a graph that allocates memory and has an executable graph.
static void check_refusals(Program &program, cudaGraph_t graph, cudaGraphNode_t kernel, void *memory) {
    cudaGraphExec_t another;
    program.expect(cudaGraphInstantiate(&another, graph, 0) == cudaErrorNotSupported, "a graph with memory has two instances");
    cudaGraph_t other;
    program.expect(cudaGraphClone(&other, graph) == cudaErrorNotSupported, "a graph with memory was cloned");
    program.expect(cudaGraphDestroyNode(kernel) == cudaErrorNotSupported, "a node of a graph with memory was destroyed");
    CUDA_CHECK(cudaGraphCreate(&other, 0));
    cudaGraphNode_t node;
    program.expect(cudaGraphAddChildGraphNode(&node, other, nullptr, 0, graph) == cudaErrorNotSupported,
                   "a graph with memory became a child");
    CUDA_CHECK(cudaGraphDestroy(other));
    program.expect(cudaGraphAddMemFreeNode(&node, graph, &kernel, 1, memory) == cudaErrorInvalidValue,
                   "memory of an instantiated graph got a node that frees it");
    (void)cudaGetLastError();
}

// A graph frees its memory once. After an instantiation, it can free only what it allocates later.
static void check_frees(Program &program, cudaMemAllocNodeParams params) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t allocation, node;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &params));
    CUDA_CHECK(cudaGraphAddMemFreeNode(&node, graph, &allocation, 1, params.dptr));
    program.expect(cudaGraphAddMemFreeNode(&node, graph, &allocation, 1, params.dptr) == cudaErrorInvalidValue,
                   "memory is freed twice in a graph");
    (void)cudaGetLastError();
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &params));
    CUDA_CHECK(cudaGraphAddMemFreeNode(&node, graph, &allocation, 1, params.dptr));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

// The graph allocates; the program reads and frees.
static void run_nodes(Program &program, size_t count, cudaStream_t stream) {
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    cudaMemAllocNodeParams params = {};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location.type = cudaMemLocationTypeDevice;
    params.poolProps.location.id = device;
    params.bytesize = count * sizeof(unsigned);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t allocation, kernel;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &params));
    program.expect(params.dptr != nullptr, "an allocation node has no address");
    unsigned *values = static_cast<unsigned *>(params.dptr), first = 11;
    void *arguments[] = {&values, &first, &count};
    cudaKernelNodeParams launch = {};
    launch.func = reinterpret_cast<void *>(fill);
    launch.gridDim = dim3(blocks(count));
    launch.blockDim = dim3(256);
    launch.kernelParams = arguments;
    CUDA_CHECK(cudaGraphAddKernelNode(&kernel, graph, &allocation, 1, &launch));
    cudaMemAllocNodeParams had = {};
    CUDA_CHECK(cudaGraphMemAllocNodeGetParams(allocation, &had));
    program.expect(had.dptr == params.dptr && had.bytesize == params.bytesize, "an allocation node has different parameters");
    cudaGraphNodeType type;
    CUDA_CHECK(cudaGraphNodeGetType(allocation, &type));
    program.expect(type == cudaGraphNodeTypeMemAlloc, "an allocation node has a different type");
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    check_refusals(program, graph, kernel, params.dptr);
    check_frees(program, params);
    for (int round = 0; round < 2; ++round) {
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        std::vector<unsigned> got(count), want(count);
        for (size_t at = 0; at < count; ++at) {
            want[at] = 11 + static_cast<unsigned>(at);
        }
        CUDA_CHECK(cudaMemcpy(got.data(), values, count * sizeof(unsigned), cudaMemcpyDeviceToHost));
        program.expect_equal("memory that a graph left", got.data(), want.data(), count);
        check_usage(program, device, params.bytesize);
        // Fails: it is already allocated.
        program.expect(cudaGraphLaunch(exec, stream) == cudaErrorInvalidValue, "memory was allocated twice");
        (void)cudaGetLastError();
        CUDA_CHECK(cudaFreeAsync(values, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        // The graph owns it again.
        check_usage(program, device, params.bytesize);
        check_trim(program, device, params.bytesize);
    }
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

// Allocations one after another, and two in branches.
static void run_in_turn(Program &program, size_t count, cudaStream_t stream, cudaStream_t other) {
    constexpr int TURNS = 6;
    const size_t bytes = count * sizeof(unsigned);
    unsigned *sums, *turn = nullptr, *first = nullptr, *left, *right;
    CUDA_CHECK(cudaMalloc(&sums, bytes));
    CUDA_CHECK(cudaMemset(sums, 0, bytes));
    CUDA_CHECK(cudaDeviceSynchronize());
    cudaEvent_t event;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaEventCreate(&event));
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int at = 0; at < TURNS; ++at) {
        CUDA_CHECK(cudaMallocAsync(&turn, bytes, stream));
        fill<<<blocks(count), 256, 0, stream>>>(turn, static_cast<unsigned>(at), count);
        LAUNCH_CHECK();
        add<<<blocks(count), 256, 0, stream>>>(sums, turn, count);
        LAUNCH_CHECK();
        CUDA_CHECK(cudaFreeAsync(turn, stream));
        program.expect(at == 0 || turn == first, "an allocation has memory of its own");
        first = turn;
    }
    CUDA_CHECK(cudaEventRecord(event, stream));
    CUDA_CHECK(cudaStreamWaitEvent(other, event, 0));
    CUDA_CHECK(cudaMallocAsync(&left, bytes, stream));
    CUDA_CHECK(cudaMallocAsync(&right, bytes, other));
    program.expect(left + count <= right || right + count <= left, "two branches share memory");
    CUDA_CHECK(cudaFreeAsync(right, other));
    CUDA_CHECK(cudaEventRecord(event, other));
    CUDA_CHECK(cudaStreamWaitEvent(stream, event, 0));
    CUDA_CHECK(cudaFreeAsync(left, stream));
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int launch = 0; launch < 2; ++launch) {
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    std::vector<unsigned> got(count), want(count);
    for (size_t at = 0; at < count; ++at) {
        want[at] = 2 * (TURNS * (TURNS - 1) / 2 + TURNS * static_cast<unsigned>(at));
    }
    CUDA_CHECK(cudaMemcpy(got.data(), sums, bytes, cudaMemcpyDeviceToHost));
    program.expect_equal("sums of allocations in turn", got.data(), want.data(), count);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaEventDestroy(event));
    CUDA_CHECK(cudaFree(sums));
    CUDA_CHECK(cudaDeviceGraphMemTrim(0));
}

static unsigned long long used(cudaMemPool_t pool, cudaMemPoolAttr which) {
    unsigned long long value = 0;
    CUDA_CHECK(cudaMemPoolGetAttribute(pool, which, &value));
    return value;
}

static void run_pools(Program &program, cudaStream_t stream) {
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = device;
    cudaMemPool_t pool, before;
    CUDA_CHECK(cudaMemPoolCreate(&pool, &props));
    CUDA_CHECK(cudaDeviceGetMemPool(&before, device));
    const size_t each = 4 << 20;
    void *first, *second, *other;
    CUDA_CHECK(cudaMallocFromPoolAsync(&first, each, pool, stream));
    CUDA_CHECK(cudaMallocAsync(&other, each, stream));
    program.expect(used(pool, cudaMemPoolAttrUsedMemCurrent) == each, "a pool counts memory of another pool");
    cudaMemLocation location = props.location;
    CUDA_CHECK(cudaMemSetMemPool(&location, cudaMemAllocationTypePinned, pool));
    CUDA_CHECK(cudaMallocAsync(&second, each, stream));
    program.expect(used(pool, cudaMemPoolAttrUsedMemCurrent) == 2 * each, "the wrong pool is current");
    CUDA_CHECK(cudaDeviceSetMemPool(device, before));
    CUDA_CHECK(cudaFreeAsync(first, stream));
    CUDA_CHECK(cudaFreeAsync(second, stream));
    CUDA_CHECK(cudaFreeAsync(other, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect(used(pool, cudaMemPoolAttrUsedMemCurrent) == 0, "a pool counts freed memory");
    program.expect(used(pool, cudaMemPoolAttrUsedMemHigh) == 2 * each, "a pool lost its high-water mark");
    unsigned long long zero = 0;
    CUDA_CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
    program.expect(used(pool, cudaMemPoolAttrUsedMemHigh) == 0, "a high-water mark was not reset");

    // A synchronization releases free memory, unless a threshold keeps it.
    program.expect(used(pool, cudaMemPoolAttrReservedMemCurrent) == 0, "a pool keeps memory after a synchronization");
    program.expect(used(pool, cudaMemPoolAttrReservedMemHigh) >= 2 * each, "the high-water mark of reserved memory is too low");
    unsigned long long all = ~0ULL;
    CUDA_CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    program.expect(used(pool, cudaMemPoolAttrReleaseThreshold) == all, "the release threshold was lost");
    CUDA_CHECK(cudaMallocFromPoolAsync(&first, 100, pool, stream));
    const unsigned long long reserved = used(pool, cudaMemPoolAttrReservedMemCurrent);
    program.expect(reserved >= 4096, "a pool reserves less than a page");
    CUDA_CHECK(cudaMallocFromPoolAsync(&second, 100, pool, stream));
    CUDA_CHECK(cudaFreeAsync(first, stream));
    CUDA_CHECK(cudaFreeAsync(second, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect(used(pool, cudaMemPoolAttrReservedMemCurrent) == reserved, "a pool released memory below its threshold");
    CUDA_CHECK(cudaMemPoolTrimTo(pool, 0));
    program.expect(used(pool, cudaMemPoolAttrReservedMemCurrent) == 0, "a pool was not trimmed");
    CUDA_CHECK(cudaMemPoolDestroy(pool));
}

int main(int argc, char **argv) {
    Program program("graphMemory", "lets graphs allocate memory", "ints of an allocation", 100003, 1, 1L << 26);
    program.parse(argc, argv);
    cudaStream_t stream, other;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    size_t count = static_cast<size_t>(program.size());
    while (program.next_round()) {
        run_capture(program, count, stream);
        run_nodes(program, count, stream);
        run_in_turn(program, count, stream, other);
        run_pools(program, stream);
    }
    return program.finish();
}
