// graphEdges: edges of graphs with ports and types.
//
// Edges that permit a kernel to begin early are built, listed and removed, result
// from captured launches with attributes, and must preserve dependencies.

#include "common/check.h"

#include <algorithm>
#include <utility>
#include <vector>

// The next kernel reads what this one writes, once it has waited for it.
__global__ void produce(int *place, int value, int count) {
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
    for (int at = threadIdx.x; at < count; at += blockDim.x) {
        place[at] = value + at;
    }
}

__global__ void consume(int *to, const int *from, int count) {
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
    for (int at = threadIdx.x; at < count; at += blockDim.x) {
        to[at] = 3 * from[at];
    }
}

static const cudaGraphEdgeData programmatic = {cudaGraphKernelNodePortProgrammatic, 0, cudaGraphDependencyTypeProgrammatic, {}};
static const cudaGraphEdgeData begun = {cudaGraphKernelNodePortLaunchCompletion, 0, cudaGraphDependencyTypeProgrammatic, {}};
static const cudaGraphEdgeData full = {};

static bool same(const cudaGraphEdgeData &one, const cudaGraphEdgeData &other) {
    return !std::memcmp(&one, &other, sizeof one);
}

static void refused(Program &program, cudaError_t status, cudaError_t want, const char *what) {
    cudaGetLastError();
    if (status != want) {
        std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorName(status));
    }
    program.expect(status == want, what);
}

struct Buffers {
    int count;
    int *from, *to;

    explicit Buffers(int size) : count(size) {
        CUDA_CHECK(cudaMalloc(&from, count * sizeof(int)));
        CUDA_CHECK(cudaMalloc(&to, count * sizeof(int)));
        clear();
    }

    ~Buffers() {
        CUDA_CHECK(cudaFree(from));
        CUDA_CHECK(cudaFree(to));
    }

    void clear() {
        CUDA_CHECK(cudaMemset(from, 0, count * sizeof(int)));
        CUDA_CHECK(cudaMemset(to, 0, count * sizeof(int)));
    }

    void check(Program &program, int value) {
        std::vector<int> got(count), want(count);
        for (int at = 0; at < count; ++at) {
            want[at] = 3 * (value + at);
        }
        CUDA_CHECK(cudaMemcpy(got.data(), to, count * sizeof(int), cudaMemcpyDeviceToHost));
        program.expect_equal("what the later kernel wrote", got.data(), want.data(), count);
        program.digest(got.data(), count * sizeof(int));
        clear();
    }
};

static void launch(Program &program, cudaGraph_t graph, Buffers &buffers, int value) {
    cudaStream_t stream;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaStreamDestroy(stream));
    buffers.check(program, value);
}

static cudaGraphNodeParams kernel(void *function, void **parameters) {
    cudaGraphNodeParams node = {};
    node.type = cudaGraphNodeTypeKernel;
    node.kernel.func = function;
    node.kernel.gridDim = dim3(1);
    node.kernel.blockDim = dim3(64);
    node.kernel.kernelParams = parameters;
    return node;
}

static void run_built(Program &program, Buffers &buffers) {
    cudaGraph_t graph;
    cudaGraphNode_t nodes[3];
    int value = 11;
    void *produced[] = {&buffers.from, &value, &buffers.count};
    void *consumed[] = {&buffers.to, &buffers.from, &buffers.count};
    cudaGraphNodeParams first = kernel(reinterpret_cast<void *>(produce), produced);
    cudaGraphNodeParams second = kernel(reinterpret_cast<void *>(consume), consumed);
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphAddNode(&nodes[0], graph, nullptr, nullptr, 0, &first));
    CUDA_CHECK(cudaGraphAddNode(&nodes[1], graph, &nodes[0], &programmatic, 1, &second));

    cudaGraphNode_t from[2], to[2];
    cudaGraphEdgeData edges[2];
    size_t count = 0;
    CUDA_CHECK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
    program.expect(count == 1, "the graph does not have exactly one edge");
    refused(program, cudaGraphGetEdges(graph, from, to, nullptr, &count), cudaErrorLossyQuery, "a lossy query was accepted");
    count = 2;
    CUDA_CHECK(cudaGraphGetEdges(graph, from, to, edges, &count));
    program.expect(count == 1 && from[0] == nodes[0] && to[0] == nodes[1] && same(edges[0], programmatic), "the listed edge differs");
    count = 1;
    CUDA_CHECK(cudaGraphNodeGetDependencies(nodes[1], from, edges, &count));
    program.expect(count == 1 && from[0] == nodes[0] && same(edges[0], programmatic), "the listed dependency differs");
    refused(program, cudaGraphNodeGetDependencies(nodes[1], from, nullptr, &count), cudaErrorLossyQuery, "a lossy query of dependencies was accepted");
    CUDA_CHECK(cudaGraphNodeGetDependentNodes(nodes[0], to, edges, &count));
    program.expect(count == 1 && to[0] == nodes[1] && same(edges[0], programmatic), "the listed dependent differs");

    cudaGraph_t clone;
    CUDA_CHECK(cudaGraphClone(&clone, graph));
    CUDA_CHECK(cudaGraphGetEdges(clone, from, to, edges, &count));
    program.expect(count == 1 && same(edges[0], programmatic), "the clone's edge differs");
    launch(program, clone, buffers, value);
    CUDA_CHECK(cudaGraphDestroy(clone));

    // Two nodes have one edge; queries without edge data return it.
    refused(program, cudaGraphAddDependencies(graph, &nodes[0], &nodes[1], &begun, 1), cudaErrorInvalidValue, "two nodes have a second edge");
    CUDA_CHECK(cudaGraphRemoveDependencies(graph, &nodes[0], &nodes[1], nullptr, 1));
    refused(program, cudaGraphRemoveDependencies(graph, &nodes[0], &nodes[1], &programmatic, 1), cudaErrorInvalidValue, "an edge was removed twice");
    CUDA_CHECK(cudaGraphAddDependencies(graph, &nodes[0], &nodes[1], &begun, 1));
    launch(program, graph, buffers, value);

    // Nodes other than kernels have full edges only.
    CUDA_CHECK(cudaGraphAddEmptyNode(&nodes[2], graph, nullptr, 0));
    refused(program, cudaGraphAddDependencies(graph, &nodes[1], &nodes[2], &programmatic, 1), cudaErrorInvalidValue, "an empty node waits for a kernel by itself");
    refused(program, cudaGraphAddDependencies(graph, &nodes[2], &nodes[1], &programmatic, 1), cudaErrorInvalidValue, "an empty node lets a kernel begin early");
    cudaGraphEdgeData bad = programmatic;
    bad.reserved[4] = 1;
    refused(program, cudaGraphAddDependencies(graph, &nodes[1], &nodes[2], &bad, 1), cudaErrorInvalidValue, "reserved bytes were accepted");
    CUDA_CHECK(cudaGraphAddDependencies(graph, &nodes[1], &nodes[2], &full, 1));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

// The edges of a stream's next node.
static std::vector<cudaGraphEdgeData> next_edges(cudaStream_t stream) {
    cudaStreamCaptureStatus status;
    cudaGraph_t graph;
    const cudaGraphNode_t *nodes;
    const cudaGraphEdgeData *edges;
    size_t count;
    CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &nodes, &edges, &count));
    return std::vector<cudaGraphEdgeData>(edges, edges + count);
}

static void launch_with(cudaStream_t stream, const Buffers &buffers, cudaLaunchAttribute attribute, bool later, int value) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(64);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (later) {
        CUDA_CHECK(cudaLaunchKernelEx(&config, consume, buffers.to, static_cast<const int *>(buffers.from), buffers.count));
    } else {
        CUDA_CHECK(cudaLaunchKernelEx(&config, produce, buffers.from, value, buffers.count));
    }
}

// A launch that may begin early in the stream, and one behind an event of the
// launch in another.
static void run_captured(Program &program, Buffers &buffers) {
    cudaStream_t stream, other;
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    cudaLaunchAttribute serialization = {};
    serialization.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    serialization.val.programmaticStreamSerializationAllowed = 1;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    produce<<<1, 64, 0, stream>>>(buffers.from, 23, buffers.count);
    launch_with(stream, buffers, serialization, true, 0);
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    cudaGraphNode_t from[2], to[2];
    cudaGraphEdgeData edges[2];
    size_t count = 2;
    CUDA_CHECK(cudaGraphGetEdges(graph, from, to, edges, &count));
    program.expect(count == 1 && same(edges[0], programmatic), "a captured launch's edge differs");
    launch(program, graph, buffers, 23);
    CUDA_CHECK(cudaGraphDestroy(graph));

    cudaEvent_t event, joined;
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    for (int at_start = 0; at_start < 2; ++at_start) {
        cudaLaunchAttribute trigger = {};
        trigger.id = cudaLaunchAttributeProgrammaticEvent;
        trigger.val.programmaticEvent.event = event;
        trigger.val.programmaticEvent.triggerAtBlockStart = at_start;
        CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        launch_with(stream, buffers, trigger, false, 31 + at_start);
        program.expect(next_edges(stream).size() == 1 && same(next_edges(stream)[0], full), "the stream does not wait for the whole node");
        CUDA_CHECK(wait_event(other, event));
        std::vector<cudaGraphEdgeData> next = next_edges(other);
        program.expect(next.size() == 1 && same(next[0], at_start ? begun : programmatic), "the event's edge differs");
        cudaStreamCaptureStatus status;
        const cudaGraphNode_t *nodes;
        refused(program, cudaStreamGetCaptureInfo(other, &status, nullptr, nullptr, &nodes, nullptr, &count), cudaErrorLossyQuery, "a lossy query of a capture was accepted");
        launch_with(other, buffers, serialization, true, 0);
        CUDA_CHECK(cudaEventRecord(joined, other));
        CUDA_CHECK(wait_event(stream, joined));
        CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
        launch(program, graph, buffers, 31 + at_start);
        CUDA_CHECK(cudaGraphDestroy(graph));
    }

    // A capture into a graph begins with an edge; it is replaced by a full one.
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t node;
    int value = 47;
    void *produced[] = {&buffers.from, &value, &buffers.count};
    cudaGraphNodeParams first = kernel(reinterpret_cast<void *>(produce), produced);
    CUDA_CHECK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &first));
    CUDA_CHECK(cudaStreamBeginCaptureToGraph(stream, graph, &node, &programmatic, 1, cudaStreamCaptureModeThreadLocal));
    program.expect(next_edges(stream).size() == 1 && same(next_edges(stream)[0], programmatic), "the capture's first edge differs");
    CUDA_CHECK(cudaStreamUpdateCaptureDependencies(stream, &node, &full, 1, cudaStreamSetCaptureDependencies));
    program.expect(next_edges(stream).size() == 1 && same(next_edges(stream)[0], full), "the edge was not replaced");
    consume<<<1, 64, 0, stream>>>(buffers.to, buffers.from, buffers.count);
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    launch(program, graph, buffers, value);
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaEventDestroy(event));
    CUDA_CHECK(cudaEventDestroy(joined));
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaStreamDestroy(other));
}

int main(int argc, char **argv) {
    Program program("graphEdges", "orders kernels by edges with ports and types", "ints", 1000, 1, 1L << 20);
    program.parse(argc, argv);
    Buffers buffers(static_cast<int>(program.size()));
    while (program.next_round()) {
        run_built(program, buffers);
        run_captured(program, buffers);
    }
    return program.finish();
}
