// conditionalNodes: graph nodes that run other nodes depending on a value.
//
// Kernels set the values: branches with and without an alternative, a choice of
// many, loops, loops in loops and in branches, bodies that are captured, copies
// and fills in bodies, values that are reset at each launch, and updates.

#include "common/check.h"

#include <algorithm>
#include <vector>

// A handle that is not the first of the parameters, nor the only number.
__global__ void set_to(int salt, cudaGraphConditionalHandle handle, const int *value) {
    if (salt == 7 && threadIdx.x == 0 && blockIdx.x == 0) {
        cudaGraphSetConditional(handle, *value);
    }
}

__global__ void add(int *place, int amount) {
    if (threadIdx.x == 0) {
        *place += amount;
    }
}

// Counts down; the loop ends at zero.
__global__ void count_down(cudaGraphConditionalHandle handle, int *left, int *turns) {
    if (threadIdx.x == 0) {
        *turns += 1;
        *left -= 1;
        cudaGraphSetConditional(handle, *left > 0);
    }
}

__global__ void start(cudaGraphConditionalHandle handle, int *left, int count) {
    if (threadIdx.x == 0) {
        *left = count;
        cudaGraphSetConditional(handle, count > 0);
    }
}

static cudaGraphNodeParams kernel(void *function, void **parameters) {
    cudaGraphNodeParams node = {};
    node.type = cudaGraphNodeTypeKernel;
    node.kernel.func = function;
    node.kernel.gridDim = dim3(1);
    node.kernel.blockDim = dim3(32);
    node.kernel.kernelParams = parameters;
    return node;
}

static cudaGraphNode_t add_kernel(cudaGraph_t graph, const cudaGraphNode_t *after, void *function, void **parameters) {
    cudaGraphNode_t node;
    cudaGraphNodeParams given = kernel(function, parameters);
    CUDA_CHECK(cudaGraphAddNode(&node, graph, after, nullptr, after ? 1 : 0, &given));
    return node;
}

// Adds a conditional node and returns its bodies.
static std::vector<cudaGraph_t> conditional(cudaGraph_t graph, const cudaGraphNode_t *after, cudaGraphConditionalHandle handle,
                                            cudaGraphConditionalNodeType type, unsigned bodies, cudaGraphNode_t *made = nullptr) {
    cudaGraphNode_t node;
    cudaGraphNodeParams given = {};
    given.type = cudaGraphNodeTypeConditional;
    given.conditional.handle = handle;
    given.conditional.type = type;
    given.conditional.size = bodies;
    CUDA_CHECK(cudaGraphAddNode(&node, graph, after, nullptr, after ? 1 : 0, &given));
    if (made) {
        *made = node;
    }
    return std::vector<cudaGraph_t>(given.conditional.phGraph_out, given.conditional.phGraph_out + bodies);
}

static cudaGraphConditionalHandle handle_of(cudaGraph_t graph, unsigned value = 0, unsigned flags = 0) {
    cudaGraphConditionalHandle handle;
    CUDA_CHECK(cudaGraphConditionalHandleCreate(&handle, graph, value, flags));
    return handle;
}

static void refused(Program &program, cudaError_t status, const char *what) {
    cudaGetLastError();
    program.expect(status != cudaSuccess, what);
}

// Words of device memory.
struct Words {
    int *place;
    int count;

    explicit Words(int size) : count(size) { CUDA_CHECK(cudaMalloc(&place, count * sizeof(int))); clear(); }
    ~Words() { CUDA_CHECK(cudaFree(place)); }
    void clear() { CUDA_CHECK(cudaMemset(place, 0, count * sizeof(int))); }
    void put(int at, int value) { CUDA_CHECK(cudaMemcpy(place + at, &value, sizeof value, cudaMemcpyHostToDevice)); }

    void check(Program &program, const char *what, std::vector<int> want) {
        std::vector<int> got(count);
        want.resize(count);
        CUDA_CHECK(cudaMemcpy(got.data(), place, count * sizeof(int), cudaMemcpyDeviceToHost));
        program.expect_equal(what, got.data(), want.data(), count);
        program.digest(got.data(), count * sizeof(int));
    }
};

static void launch(cudaGraphExec_t exec, cudaStream_t stream) {
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
}

// Branches and a switch: word 0 selects, word n counts how often body n ran.
static void run_choices(Program &program, cudaStream_t stream, cudaGraphConditionalNodeType type, unsigned bodies) {
    Words words(8);
    int salt = 7, one = 1;
    cudaGraph_t graph;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle handle = handle_of(graph);
    void *set[] = {&salt, &handle, &words.place};
    cudaGraphNode_t first = add_kernel(graph, nullptr, reinterpret_cast<void *>(set_to), set), choice;
    std::vector<cudaGraph_t> body = conditional(graph, &first, handle, type, bodies, &choice);
    for (unsigned at = 0; at < bodies; ++at) {
        int *place = words.place + 1 + at;
        void *added[] = {&place, &one};
        add_kernel(body[at], nullptr, reinterpret_cast<void *>(add), added);
    }
    // Nodes that depend on the conditional node run after its bodies.
    int *last = words.place + 7;
    CUDA_CHECK(cudaGraphAddMemcpyNode1D(&first, graph, &choice, 1, last, words.place + 1, sizeof(int), cudaMemcpyDeviceToDevice));
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<int> want(8);
    for (int value : {1, 0, 2, 5, 1}) {
        words.put(0, value);
        want[0] = value;
        int chosen = type == cudaGraphCondTypeSwitch ? value : value ? 0 : 1;
        if (chosen < static_cast<int>(bodies)) {
            want[1 + chosen] += 1;
        }
        want[7] = want[1];
        launch(exec, stream);
        words.check(program, "how often each body ran", want);
    }
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    cudaGraphNodeParams again = {};
    again.type = cudaGraphNodeTypeConditional;
    again.conditional.handle = handle;
    again.conditional.type = type;
    again.conditional.size = bodies;
    refused(program, cudaGraphAddNode(&first, graph, nullptr, nullptr, 0, &again), "two nodes follow one value");
    cudaGraph_t clone;
    refused(program, cudaGraphClone(&clone, graph), "a graph with a conditional node was cloned");
    CUDA_CHECK(cudaGraphDestroy(graph));
}

// A loop of `count` turns in a loop of `outer` turns in a branch; bodies are
// captured, filled and copied in.
static void run_loops(Program &program, cudaStream_t stream, int outer, int count) {
    Words words(8); // 0, 1: iterations left; 2, 3: iterations done; 4: copied; 5: filled; 6: the branch
    cudaGraph_t graph;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle branch = handle_of(graph, 1, cudaGraphCondAssignDefault);
    std::vector<cudaGraph_t> top = conditional(graph, nullptr, branch, cudaGraphCondTypeIf, 1);
    cudaGraphConditionalHandle loop = handle_of(top[0]);
    int *left = words.place, *inner_left = words.place + 1, *turns = words.place + 2, *inner_turns = words.place + 3;
    void *started[] = {&loop, &left, &outer};
    cudaGraphNode_t node = add_kernel(top[0], nullptr, reinterpret_cast<void *>(start), started);
    std::vector<cudaGraph_t> body = conditional(top[0], &node, loop, cudaGraphCondTypeWhile, 1);
    cudaGraphConditionalHandle inner = handle_of(body[0]);
    void *inner_started[] = {&inner, &inner_left, &count};
    node = add_kernel(body[0], nullptr, reinterpret_cast<void *>(start), inner_started);
    cudaGraphNode_t inner_node;
    std::vector<cudaGraph_t> inner_body = conditional(body[0], &node, inner, cudaGraphCondTypeWhile, 1, &inner_node);

    cudaStream_t side;
    CUDA_CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamBeginCaptureToGraph(side, inner_body[0], nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal));
    count_down<<<1, 32, 0, side>>>(inner, inner_left, inner_turns);
    // The body graph already belongs to the node.
    CUDA_CHECK(cudaStreamEndCapture(side, nullptr));
    CUDA_CHECK(cudaStreamBeginCaptureToGraph(side, body[0], &inner_node, nullptr, 1, cudaStreamCaptureModeThreadLocal));
    count_down<<<1, 32, 0, side>>>(loop, left, turns);
    CUDA_CHECK(cudaMemcpyAsync(words.place + 4, inner_turns, sizeof(int), cudaMemcpyDeviceToDevice, side));
    CUDA_CHECK(cudaMemsetAsync(words.place + 5, 1, sizeof(int), side));
    CUDA_CHECK(cudaStreamEndCapture(side, &body[0]));
    CUDA_CHECK(cudaStreamDestroy(side));

    cudaGraphExec_t exec;
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int launched = 1; launched <= 3; ++launched) {
        launch(exec, stream);
        int all = launched * outer * count;
        words.check(program, "turns of the loops", {0, 0, launched * outer, all, all, 0x01010101});
    }
    // Update a node of the inner body.
    int *place = words.place + 6;
    void *changed[] = {&inner, &inner_left, &place};
    size_t nodes = 1;
    CUDA_CHECK(cudaGraphGetNodes(inner_body[0], &node, &nodes));
    cudaGraphNodeParams given = kernel(reinterpret_cast<void *>(count_down), changed);
    CUDA_CHECK(cudaGraphExecNodeSetParams(exec, node, &given));
    launch(exec, stream);
    int all = 3 * outer * count;
    words.check(program, "turns after an update", {0, 0, 4 * outer, all, all, 0x01010101, outer * count});
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

static void run_refusals(Program &program) {
    cudaGraph_t graph, other;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphCreate(&other, 0));
    cudaGraphConditionalHandle handle = handle_of(other, 1, cudaGraphCondAssignDefault);
    refused(program, cudaGraphConditionalHandleCreate(&handle, graph, 0, 2), "unknown flags were accepted");
    struct { cudaGraphConditionalNodeType type; unsigned size; } cases[] = {
        {cudaGraphCondTypeIf, 0}, {cudaGraphCondTypeIf, 3}, {cudaGraphCondTypeWhile, 2}, {cudaGraphCondTypeSwitch, 0},
        {static_cast<cudaGraphConditionalNodeType>(9), 1}};
    for (auto &bad : cases) {
        cudaGraphConditionalHandle fresh = handle_of(graph);
        cudaGraphNode_t node;
        cudaGraphNodeParams given = {};
        given.type = cudaGraphNodeTypeConditional;
        given.conditional.handle = fresh;
        given.conditional.type = bad.type;
        given.conditional.size = bad.size;
        refused(program, cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &given), "a wrong number of bodies was accepted");
    }
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaGraphDestroy(other));
}

int main(int argc, char **argv) {
    Program program("conditionalNodes", "runs nodes of graphs as values say", "turns of a loop", 10, 1, 1L << 16);
    program.parse(argc, argv);
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    while (program.next_round()) {
        run_choices(program, stream, cudaGraphCondTypeIf, 1);
        run_choices(program, stream, cudaGraphCondTypeIf, 2);
        run_choices(program, stream, cudaGraphCondTypeSwitch, 4);
        run_loops(program, stream, 3, static_cast<int>(program.size()));
        run_refusals(program);
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
    return program.finish();
}
