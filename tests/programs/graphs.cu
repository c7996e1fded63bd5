// graphs: captured and built graphs, launched repeatedly.
//
// Each round rebuilds its graphs and launches them many times while the CPU
// computes what every launch must have done, and compares: a node that runs early,
// late, twice or never, or with the parameters from before an update, changes
// the values.

#include "common/check.h"

#include <atomic>
#include <cstring>
#include <cuda.h>
#include <string>
#include <thread>
#include <vector>

__global__ void mix(unsigned *values, unsigned factor, unsigned amount, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] = values[at] * factor + amount;
    }
}

__global__ void join(unsigned *into, const unsigned *left, const unsigned *right, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        into[at] = (into[at] ^ left[at]) + right[at] * 7u;
    }
}

// In CUDA 13 these functions have one more argument, for the edge data.
static cudaError_t count_edges(cudaGraph_t graph, size_t *edges) {
#if CUDART_VERSION >= 13000
    return cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, edges);
#else
    return cudaGraphGetEdges(graph, nullptr, nullptr, edges);
#endif
}

static cudaError_t add_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
    return cudaGraphAddDependencies(graph, &from, &to, nullptr, 1);
#else
    return cudaGraphAddDependencies(graph, &from, &to, 1);
#endif
}

constexpr int launches = 20;

struct Tally {
    unsigned calls;
    unsigned *values;
    size_t count;
};

// Must not call CUDA.
static void on_host(void *data) {
    Tally *tally = static_cast<Tally *>(data);
    ++tally->calls;
    for (size_t at = 0; at < tally->count; ++at) {
        tally->values[at] += tally->calls;
    }
}

static Program *program;
static size_t count;
static size_t bytes;
static unsigned grid;

static unsigned *on_device() {
    unsigned *memory = nullptr;
    CUDA_CHECK(cudaMalloc(&memory, bytes));
    CUDA_CHECK(cudaMemset(memory, 0, bytes));
    // Streams that do not wait for the default stream would overtake it.
    CUDA_CHECK(cudaDeviceSynchronize());
    return memory;
}

static std::vector<unsigned> fetched(const unsigned *device) {
    std::vector<unsigned> values(count);
    CUDA_CHECK(cudaMemcpy(values.data(), device, bytes, cudaMemcpyDeviceToHost));
    program->digest(values.data(), bytes);
    return values;
}

// Two streams, forked and joined; copies of pinned memory, a memset and a host
// function. Each launch starts from the values that the previous one left.
static void fork_and_join(Random &random) {
    cudaStream_t first, second;
    cudaEvent_t fork, joined;
    CUDA_CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreate(&second));
    CUDA_CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    unsigned *host;
    CUDA_CHECK(cudaMallocHost(&host, bytes));
    unsigned *left = on_device(), *right = on_device(), *sum = on_device();
    std::vector<unsigned> want_host(count), want_right(count), want_sum(count);
    for (size_t at = 0; at < count; ++at) {
        host[at] = want_host[at] = static_cast<unsigned>(random.next());
    }
    Tally tally = {0, host, count};

    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    CUDA_CHECK(cudaMemcpyAsync(left, host, bytes, cudaMemcpyHostToDevice, first));
    CUDA_CHECK(cudaEventRecord(fork, first));
    CUDA_CHECK(wait_event(second, fork));
    mix<<<grid, 128, 0, first>>>(left, 3, 11, count);
    LAUNCH_CHECK();
    mix<<<grid, 128, 0, second>>>(right, 5, 1, count);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaMemsetAsync(right, 0x21, count / 2 * sizeof(unsigned), second));
    CUDA_CHECK(cudaEventRecord(joined, second));
    CUDA_CHECK(wait_event(first, joined));
    join<<<grid, 128, 0, first>>>(sum, left, right, count);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaMemcpyAsync(host, sum, bytes, cudaMemcpyDeviceToHost, first));
    CUDA_CHECK(cudaLaunchHostFunc(first, on_host, &tally));
    cudaStreamCaptureStatus status;
    CUDA_CHECK(cudaStreamIsCapturing(second, &status));
    program->expect(status == cudaStreamCaptureStatusActive, "the second stream did not join the capture");
    CUDA_CHECK(cudaStreamEndCapture(first, &graph));
    CUDA_CHECK(cudaStreamIsCapturing(second, &status));
    program->expect(status == cudaStreamCaptureStatusNone, "the second stream still captures");
    size_t nodes = 0, edges = 0, roots = 0;
    CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CUDA_CHECK(count_edges(graph, &edges));
    CUDA_CHECK(cudaGraphGetRootNodes(graph, nullptr, &roots));
    program->expect_equal("the captured nodes", static_cast<int>(nodes), 7);
    program->expect_equal("their dependencies", static_cast<int>(edges), 7);
    program->expect_equal("the roots", static_cast<int>(roots), 1);

    cudaGraphExec_t instance;
    CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    program->expect_equal("host functions before a launch", static_cast<int>(tally.calls), 0);
    for (int launch = 0; launch < launches; ++launch) {
        CUDA_CHECK(cudaGraphLaunch(instance, launch % 3 == 2 ? second : first));
        if (launch % 3 == 1) {
            CUDA_CHECK(cudaStreamSynchronize(first));
        } else if (launch % 3 == 2) {
            CUDA_CHECK(cudaStreamSynchronize(second));
        }
        unsigned called = static_cast<unsigned>(launch) + 1;
        for (size_t at = 0; at < count; ++at) {
            want_right[at] = at < count / 2 ? 0x21212121u : want_right[at] * 5 + 1;
            want_sum[at] = (want_sum[at] ^ (want_host[at] * 3 + 11)) + want_right[at] * 7;
            want_host[at] = want_sum[at] + called;
        }
    }
    CUDA_CHECK(cudaStreamSynchronize(first));
    CUDA_CHECK(cudaStreamSynchronize(second));
    CUDA_CHECK(cudaGraphExecDestroy(instance));
    program->expect_equal("the host functions run", static_cast<int>(tally.calls), launches);
    program->expect_equal("the joined values", fetched(sum).data(), want_sum.data(), count);
    program->expect_equal("the values on the host", host, want_host.data(), count);
    for (unsigned *memory : {left, right, sum}) {
        CUDA_CHECK(cudaFree(memory));
    }
    CUDA_CHECK(cudaFreeHost(host));
    CUDA_CHECK(cudaEventDestroy(fork));
    CUDA_CHECK(cudaEventDestroy(joined));
    CUDA_CHECK(cudaStreamDestroy(first));
    CUDA_CHECK(cudaStreamDestroy(second));
}

// Copies of pageable memory: each launch reads its contents at that time.
static void ordinary_memory(Random &random) {
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    unsigned *device = on_device();
    std::vector<unsigned> from(count), to(count), want(count);
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA_CHECK(cudaMemcpyAsync(device, from.data(), bytes, cudaMemcpyHostToDevice, stream));
    mix<<<grid, 128, 0, stream>>>(device, 9, 4, count);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaMemcpyAsync(to.data(), device, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
    for (int launch = 0; launch < 4; ++launch) {
        for (size_t at = 0; at < count; ++at) {
            from[at] = static_cast<unsigned>(random.next());
            want[at] = from[at] * 9 + 4;
        }
        CUDA_CHECK(cudaGraphLaunch(instance, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        program->expect_equal("copies of ordinary memory", to.data(), want.data(), count);
        program->digest(to.data(), bytes);
    }
    CUDA_CHECK(cudaGraphExecDestroy(instance));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaFree(device));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

// Launches in flight keep their host function and pageable memory.
static void replaced_in_flight() {
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    std::atomic<bool> open(false);
    auto until_open = [](void *gate) {
        while (!*static_cast<std::atomic<bool> *>(gate)) {
            std::this_thread::yield();
        }
    };
    unsigned seen[3] = {};
    Tally tallies[3] = {{0, &seen[0], 1}, {0, &seen[1], 1}, {0, &seen[2], 1}};
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    cudaGraphNode_t tell;
    cudaHostNodeParams call = {on_host, &tallies[0]};
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphAddHostNode(&tell, graph, nullptr, 0, &call));
    CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
    CUDA_CHECK(cudaLaunchHostFunc(stream, until_open, &open));
    for (int launch = 0; launch < 3; ++launch) {
        call.userData = &tallies[launch];
        CUDA_CHECK(cudaGraphExecHostNodeSetParams(instance, tell, &call));
        CUDA_CHECK(cudaGraphLaunch(instance, stream));
    }
    open = true;
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program->expect(seen[0] == 1 && seen[1] == 1 && seen[2] == 1, "a launch in flight ran another host function");
    CUDA_CHECK(cudaGraphExecDestroy(instance));
    CUDA_CHECK(cudaGraphDestroy(graph));

    unsigned *device = on_device();
    std::vector<unsigned> from[3], to[3], want(count);
    instance = nullptr;
    for (unsigned launch = 0; launch < 3; ++launch) {
        from[launch].assign(count, launch + 1);
        to[launch].resize(count);
        CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
        CUDA_CHECK(cudaMemcpyAsync(device, from[launch].data(), bytes, cudaMemcpyHostToDevice, stream));
        mix<<<grid, 128, 0, stream>>>(device, 9, 4 + launch, count);
        LAUNCH_CHECK();
        CUDA_CHECK(cudaMemcpyAsync(to[launch].data(), device, bytes, cudaMemcpyDeviceToHost, stream));
        CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
        if (instance) {
            cudaGraphExecUpdateResultInfo result;
            CUDA_CHECK(cudaGraphExecUpdate(instance, graph, &result));
        } else {
            CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
        }
        CUDA_CHECK(cudaGraphLaunch(instance, stream));
        CUDA_CHECK(cudaGraphDestroy(graph));
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    for (unsigned launch = 0; launch < 3; ++launch) {
        want.assign(count, (launch + 1) * 9 + 4 + launch);
        program->expect_equal("copies of replaced memory", to[launch].data(), want.data(), count);
    }
    CUDA_CHECK(cudaGraphExecDestroy(instance));
    CUDA_CHECK(cudaFree(device));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

static cudaGraph_t captured(cudaStream_t stream, unsigned *values, unsigned factor, unsigned amount) {
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (unsigned step = 0; step < 10; ++step) {
        mix<<<grid, 128, 0, stream>>>(values, factor, amount + step, count);
        LAUNCH_CHECK();
    }
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

static void account(std::vector<unsigned> &values, unsigned factor, unsigned amount) {
    for (unsigned &value : values) {
        for (unsigned step = 0; step < 10; ++step) {
            value = value * factor + amount + step;
        }
    }
}

// An executable graph that is updated from other graphs.
static void updates() {
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned *device = on_device();
    std::vector<unsigned> want(count, 0);
    cudaGraph_t graph = captured(stream, device, 3, 1);
    cudaGraphExec_t instance;
    CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(instance, stream));
    account(want, 3, 1);
    for (unsigned turn = 0; turn < 5; ++turn) {
        cudaGraph_t next = captured(stream, device, 5 + 2 * turn, 100 * turn);
        cudaGraphExecUpdateResultInfo result;
        CUDA_CHECK(cudaGraphExecUpdate(instance, next, &result));
        program->expect(result.result == cudaGraphExecUpdateSuccess, "a valid update was refused");
        CUDA_CHECK(cudaGraphDestroy(next));
        CUDA_CHECK(cudaGraphLaunch(instance, stream));
        CUDA_CHECK(cudaGraphLaunch(instance, stream));
        account(want, 5 + 2 * turn, 100 * turn);
        account(want, 5 + 2 * turn, 100 * turn);
    }
    // A graph with another topology is refused.
    cudaGraph_t other;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CUDA_CHECK(cudaMemsetAsync(device, 0, bytes, stream));
    CUDA_CHECK(cudaStreamEndCapture(stream, &other));
    cudaGraphExecUpdateResultInfo result;
    cudaError_t refused = cudaGraphExecUpdate(instance, other, &result);
    program->expect(refused == cudaErrorGraphExecUpdateFailure, "a graph of a different topology was accepted");
    cudaGetLastError();
    CUDA_CHECK(cudaGraphDestroy(other));
    // One kernel with other parameters, one switched off.
    size_t nodes = 10;
    std::vector<cudaGraphNode_t> node(nodes);
    CUDA_CHECK(cudaGraphGetNodes(graph, node.data(), &nodes));
    cudaKernelNodeParams parameters;
    CUDA_CHECK(cudaGraphKernelNodeGetParams(node[4], &parameters));
    program->expect(*static_cast<unsigned *>(parameters.kernelParams[1]) == 3, "a node returned wrong parameters");
    unsigned factor = 77, amount = 5;
    void *changed[] = {&device, &factor, &amount, &count};
    parameters.kernelParams = changed;
    cudaGraph_t again = captured(stream, device, 3, 1);
    CUDA_CHECK(cudaGraphExecUpdate(instance, again, &result));
    CUDA_CHECK(cudaGraphDestroy(again));
    CUDA_CHECK(cudaGraphExecKernelNodeSetParams(instance, node[4], &parameters));
    CUDA_CHECK(cudaGraphNodeSetEnabled(instance, node[7], 0));
    CUDA_CHECK(cudaGraphLaunch(instance, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    for (unsigned &value : want) {
        for (unsigned step = 0; step < 10; ++step) {
            if (step != 7) {
                value = step == 4 ? value * 77 + 5 : value * 3 + 1 + step;
            }
        }
    }
    program->expect_equal("the updated graph's values", fetched(device).data(), want.data(), count);
    CUDA_CHECK(cudaGraphExecDestroy(instance));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaFree(device));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

// A graph built from nodes, with a child graph.
static void built() {
    unsigned *first = on_device(), *second = on_device();
    unsigned *host;
    CUDA_CHECK(cudaMallocHost(&host, bytes));
    for (size_t at = 0; at < count; ++at) {
        host[at] = static_cast<unsigned>(at);
    }
    cudaGraph_t inner, graph;
    CUDA_CHECK(cudaGraphCreate(&inner, 0));
    cudaGraphNode_t step[2];
    unsigned factor[2] = {3, 4}, amount[2] = {10, 20};
    for (int at = 0; at < 2; ++at) {
        void *arguments[] = {&second, &factor[at], &amount[at], &count};
        cudaKernelNodeParams kernel = {};
        kernel.func = reinterpret_cast<void *>(mix);
        kernel.gridDim = dim3(grid);
        kernel.blockDim = dim3(128);
        kernel.kernelParams = arguments;
        CUDA_CHECK(cudaGraphAddKernelNode(&step[at], inner, at ? &step[0] : nullptr, at, &kernel));
    }
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t take, fill, gather, child, bring, tell;
    cudaMemsetParams set = {};
    set.dst = second;
    set.value = 0x01020304;
    set.elementSize = 4;
    set.width = count;
    set.height = 1;
    CUDA_CHECK(cudaGraphAddMemcpyNode1D(&take, graph, nullptr, 0, first, host, bytes, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &set));
    cudaGraphNode_t both[] = {take, fill};
    CUDA_CHECK(cudaGraphAddEmptyNode(&gather, graph, both, 2));
    CUDA_CHECK(cudaGraphAddChildGraphNode(&child, graph, &gather, 1, inner));
    CUDA_CHECK(cudaGraphDestroy(inner));
    CUDA_CHECK(cudaGraphAddMemcpyNode1D(&bring, graph, nullptr, 0, host, second, bytes, cudaMemcpyDeviceToHost));
    CUDA_CHECK(add_edge(graph, child, bring));
    Tally tally = {0, host, count};
    cudaHostNodeParams call = {on_host, &tally};
    CUDA_CHECK(cudaGraphAddHostNode(&tell, graph, &bring, 1, &call));
    cudaGraphNodeType kind;
    CUDA_CHECK(cudaGraphNodeGetType(child, &kind));
    program->expect(kind == cudaGraphNodeTypeGraph, "a child graph node has a different type");

    cudaGraph_t clone;
    cudaGraphNode_t found;
    CUDA_CHECK(cudaGraphClone(&clone, graph));
    CUDA_CHECK(cudaGraphNodeFindInClone(&found, fill, clone));
    set.value = 5;
    CUDA_CHECK(cudaGraphMemsetNodeSetParams(found, &set));
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    std::vector<unsigned> want_first(count), want(count);
    cudaGraph_t graphs[] = {graph, clone};
    unsigned value[] = {0x01020304, 5};
    for (int which = 0; which < 2; ++which) {
        cudaGraphExec_t instance;
        CUDA_CHECK(cudaGraphInstantiate(&instance, graphs[which], 0));
        for (int launch = 0; launch < 3; ++launch) {
            for (size_t at = 0; at < count; ++at) {
                want_first[at] = host[at];
                want[at] = (value[which] * 3 + 10) * 4 + 20;
            }
            CUDA_CHECK(cudaGraphLaunch(instance, stream));
            CUDA_CHECK(cudaStreamSynchronize(stream));
            for (unsigned &wanted : want) {
                wanted += tally.calls;
            }
            program->expect_equal("the built graph's values", host, want.data(), count);
        }
        CUDA_CHECK(cudaGraphExecDestroy(instance));
    }
    program->expect_equal("the built graph's copy", fetched(first).data(), want_first.data(), count);
    program->expect_equal("the built graph's calls", static_cast<int>(tally.calls), 6);
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaGraphDestroy(clone));
    CUDA_CHECK(cudaFree(first));
    CUDA_CHECK(cudaFree(second));
    CUDA_CHECK(cudaFreeHost(host));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

// Events that a graph records, awaited outside of it.
static void events() {
    cudaStream_t stream, other;
    cudaEvent_t reached;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&reached, cudaEventDisableTiming));
    unsigned *device = on_device(), *copy = on_device();
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    mix<<<grid, 128, 0, stream>>>(device, 3, 8, count);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaEventRecordWithFlags(reached, stream, cudaEventRecordExternal));
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
    std::vector<unsigned> want(count, 0);
    for (int launch = 0; launch < 5; ++launch) {
        CUDA_CHECK(cudaGraphLaunch(instance, stream));
        CUDA_CHECK(wait_event(other, reached));
        CUDA_CHECK(cudaMemcpyAsync(copy, device, bytes, cudaMemcpyDeviceToDevice, other));
        CUDA_CHECK(cudaStreamSynchronize(other));
        for (unsigned &value : want) {
            value = value * 3 + 8;
        }
        program->expect_equal("values behind a graph's event", fetched(copy).data(), want.data(), count);
    }
    CUDA_CHECK(cudaEventSynchronize(reached));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaGraphExecDestroy(instance));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaFree(device));
    CUDA_CHECK(cudaFree(copy));
    CUDA_CHECK(cudaEventDestroy(reached));
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaStreamDestroy(other));
}

static void expect_error(const char *what, cudaError_t got, cudaError_t want) {
    cudaGetLastError();
    if (got != want) {
        std::string text = std::string(what) + ": " + cudaGetErrorName(got) + ", not " + cudaGetErrorName(want);
        program->expect(false, text.c_str());
    }
}

// Calls that CUDA refuses during a capture.
static void refusals() {
    cudaStream_t stream, blocking;
    cudaEvent_t event;
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreate(&blocking));
    CUDA_CHECK(cudaEventCreate(&event));
    unsigned *device = on_device();
    expect_error("capturing the legacy stream", cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed),
                 cudaErrorStreamCaptureUnsupported);
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    expect_error("synchronizing a capture", cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    expect_error("work after that", cudaMemsetAsync(device, 0, 4, stream), cudaErrorStreamCaptureInvalidated);
    expect_error("ending it", cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);

    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CUDA_CHECK(cudaEventRecord(event, stream));
    expect_error("querying a captured event", cudaEventQuery(event), cudaErrorCapturedEvent);
    // Whether the query invalidates the capture is not documented.
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) {
        CUDA_CHECK(cudaGraphDestroy(graph));
    }
    cudaGetLastError();

    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CUDA_CHECK(cudaEventRecord(event, stream));
    CUDA_CHECK(wait_event(blocking, event));
    CUDA_CHECK(cudaMemsetAsync(device, 0, 4, blocking));
    expect_error("leaving work unjoined", cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);

    // A query of the legacy stream is refused, and the capture continues.
    CUDA_CHECK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    cudaStreamCaptureStatus asked;
    expect_error("a question about the legacy stream", cudaStreamIsCapturing(nullptr, &asked),
                 cudaErrorStreamCaptureImplicit);
    CUDA_CHECK(cudaStreamEndCapture(blocking, &graph));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaStreamIsCapturing(nullptr, &asked));

    CUDA_CHECK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    expect_error("the legacy stream meanwhile", cudaMemsetAsync(device, 0, 4, nullptr),
                 cudaErrorStreamCaptureImplicit);
    expect_error("ending that", cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);

    CUDA_CHECK(cudaEventRecord(event, blocking));
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    expect_error("waiting for work outside", wait_event(stream, event),
                 cudaErrorStreamCaptureIsolation);
    expect_error("ending it", cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);

    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaFree(device));
    CUDA_CHECK(cudaEventDestroy(event));
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaStreamDestroy(blocking));
}

// A capture that loses its first stream leaves nothing behind; one that loses another
// continues.
static void lost_streams() {
    cudaStream_t first, second;
    cudaEvent_t event;
    cudaGraph_t graph;
    cudaStreamCaptureStatus status;
    void *memory;
    CUDA_CHECK(cudaEventCreate(&event));
    for (bool loses_first : {true, false}) {
        CUDA_CHECK(cudaStreamCreate(&first));
        CUDA_CHECK(cudaStreamCreate(&second));
        unsigned *device = on_device();
        CUDA_CHECK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
        CUDA_CHECK(cudaMemsetAsync(device, 0, 4, first));
        CUDA_CHECK(cudaEventRecord(event, first));
        CUDA_CHECK(wait_event(second, event));
        CUDA_CHECK(cudaMemsetAsync(device, 0, 4, second));
        CUDA_CHECK(cudaStreamDestroy(loses_first ? first : second));
        cudaStream_t left = loses_first ? second : first;
        CUDA_CHECK(cudaStreamIsCapturing(left, &status));
        program->expect_equal("whether the other stream captures", status != cudaStreamCaptureStatusNone, !loses_first);
        expect_error("ending it", cudaStreamEndCapture(left, &graph),
                     loses_first ? cudaErrorIllegalState : cudaErrorStreamCaptureUnjoined);
        CUDA_CHECK(cudaMalloc(&memory, 4096));
        CUDA_CHECK(cudaMemset(memory, 0, 4096));
        CUDA_CHECK(cudaMemsetAsync(device, 0, 4, left));
        CUDA_CHECK(cudaStreamSynchronize(left));
        CUDA_CHECK(cudaDeviceSynchronize());
        CUDA_CHECK(cudaFree(memory));
        CUDA_CHECK(cudaFree(device));
        CUDA_CHECK(cudaStreamDestroy(left));
    }
    CUDA_CHECK(cudaEventDestroy(event));
}

// Adds a kernel node as programs do that were built with CUDA 11, whose record is shorter.
static void add_first_version(cudaGraphNode_t *node, cudaGraph_t graph, cudaGraphNode_t after, void **arguments) {
    using Add = CUresult (*)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS_v1 *);
    using Get = CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v1 *);
    void *add = nullptr, *get = nullptr;
    cudaDriverEntryPointQueryResult found;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuGraphAddKernelNode", &add, 11000, cudaEnableDefault, &found));
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuGraphKernelNodeGetParams", &get, 11000, cudaEnableDefault, &found));
    cudaFunction_t function;
    CUDA_CHECK(cudaGetFuncBySymbol(&function, reinterpret_cast<void *>(mix)));
    CUDA_KERNEL_NODE_PARAMS_v1 kernel = {};
    kernel.func = function;
    kernel.gridDimX = grid;
    kernel.blockDimX = 128;
    kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = arguments;
    CUresult added = reinterpret_cast<Add>(add)(node, graph, &after, 1, &kernel);
    struct {
        CUDA_KERNEL_NODE_PARAMS_v1 record;
        unsigned char guard[16];
    } read;
    std::memset(&read, 0x77, sizeof read);
    CUresult got = reinterpret_cast<Get>(get)(*node, &read.record);
    program->expect(added == CUDA_SUCCESS && got == CUDA_SUCCESS, "a node of the first version failed");
    program->expect(read.record.blockDimX == 128 && read.guard[0] == 0x77 && read.guard[15] == 0x77,
                    "a node of the first version returned wrong parameters");
}

// What a kernel node returns is passed to other nodes.
static void returned_parameters() {
    unsigned *device = on_device();
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    cudaGraphNode_t first, second, third;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    unsigned factor = 3, amount = 5;
    void *arguments[] = {&device, &factor, &amount, &count};
    cudaKernelNodeParams kernel = {};
    kernel.func = reinterpret_cast<void *>(mix);
    kernel.gridDim = dim3(1);
    kernel.blockDim = dim3(128);
    kernel.kernelParams = arguments;
    CUDA_CHECK(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &kernel));
    cudaKernelNodeParams returned;
    CUDA_CHECK(cudaGraphKernelNodeGetParams(first, &returned));
    program->expect(returned.func == kernel.func, "a node returned another kernel");
    returned.gridDim = dim3(grid);
    CUDA_CHECK(cudaGraphKernelNodeSetParams(first, &returned));
    CUDA_CHECK(cudaGraphAddKernelNode(&second, graph, &first, 1, &returned));
    amount = 9;
    add_first_version(&third, graph, second, arguments);
    CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
    CUDA_CHECK(cudaGraphExecKernelNodeSetParams(instance, third, &returned));
    CUDA_CHECK(cudaGraphLaunch(instance, nullptr));
    CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<unsigned> got(count), want(count, (5 * 3 + 5) * 3 + 5);
    CUDA_CHECK(cudaMemcpy(got.data(), device, bytes, cudaMemcpyDeviceToHost));
    program->expect_equal("values of returned parameters", got.data(), want.data(), count);
    CUDA_CHECK(cudaGraphExecDestroy(instance));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaFree(device));
}

// A copy to ordinary memory gets other sizes, and a destination in pinned memory.
static void resized_copies() {
    unsigned *device = on_device(), *pinned;
    std::vector<unsigned> ordinary(count), want(count, 0);
    CUDA_CHECK(cudaMemset(device, 0x01, bytes));
    CUDA_CHECK(cudaMallocHost(&pinned, bytes));
    std::memset(pinned, 0, bytes);
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    cudaGraphNode_t copy;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, ordinary.data(), device, 8, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
    size_t all = bytes;
    for (unsigned *to : {ordinary.data(), pinned}) {
        for (size_t size : {static_cast<size_t>(4), all, static_cast<size_t>(8)}) {
            std::memset(to, 0, bytes);
            std::memset(want.data(), 0, bytes);
            std::memset(want.data(), 0x01, size);
            CUDA_CHECK(
                cudaGraphExecMemcpyNodeSetParams1D(instance, copy, to, device, size, cudaMemcpyDeviceToHost));
            CUDA_CHECK(cudaGraphLaunch(instance, nullptr));
            CUDA_CHECK(cudaDeviceSynchronize());
            program->expect_equal("a copy of another size", to, want.data(), count);
        }
    }
    expect_error("a copy of another direction",
                 cudaGraphExecMemcpyNodeSetParams1D(instance, copy, device, device + 1, 4, cudaMemcpyDeviceToDevice),
                 cudaErrorInvalidValue);
    CUDA_CHECK(cudaGraphExecDestroy(instance));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaFreeHost(pinned));
    CUDA_CHECK(cudaFree(device));
}

int main(int argc, char **argv) {
    Program own("graphs", "captures, builds, updates and launches graphs", "elements", 10000, 2, 1L << 28);
    program = &own;
    own.parse(argc, argv);
    Random random(own.seed());
    count = static_cast<size_t>(own.size());
    bytes = count * sizeof(unsigned);
    grid = blocks_for(count, 128);
    while (own.next_round()) {
        fork_and_join(random);
        ordinary_memory(random);
        replaced_in_flight();
        updates();
        built();
        returned_parameters();
        resized_copies();
        events();
        refusals();
        lost_streams();
    }
    return own.finish();
}
