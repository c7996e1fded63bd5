// launchAttributes: attributes of one launch and of kernel nodes that steer the GPU
// without changing results.
//
// Launches with a priority, an access policy window, memory synchronization domains, a
// shared memory carveout and a scheduling policy of clusters compute what launches without
// them do; nodes have the attributes of the launches that were captured; nodes give back
// what was set, and copies of their attributes; wrong values are refused.

#include "common/check.h"

#include <vector>

static constexpr int threads = 128;

__global__ void step(unsigned *values, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] = values[at] * 1664525u + 1013904223u;
    }
}

static cudaLaunchAttribute attribute(cudaLaunchAttributeID id) {
    cudaLaunchAttribute made = {};
    made.id = id;
    return made;
}

static cudaAccessPolicyWindow window_of(void *memory, size_t bytes, float share) {
    cudaAccessPolicyWindow window = {};
    window.base_ptr = memory;
    window.num_bytes = bytes;
    window.hitRatio = share;
    window.hitProp = cudaAccessPropertyPersisting;
    window.missProp = cudaAccessPropertyStreaming;
    return window;
}

struct Work {
    unsigned *memory;
    int count, least, greatest;
    size_t window;
    bool domains;

    std::vector<cudaLaunchAttribute> all() const {
        std::vector<cudaLaunchAttribute> list;
        list.push_back(attribute(cudaLaunchAttributePriority));
        list.back().val.priority = greatest;
        list.push_back(attribute(cudaLaunchAttributePreferredSharedMemoryCarveout));
        list.back().val.sharedMemCarveout = 50;
        if (window) {
            list.push_back(attribute(cudaLaunchAttributeAccessPolicyWindow));
            list.back().val.accessPolicyWindow = window_of(memory, window, 0.5f);
        }
        if (domains) {
            list.push_back(attribute(cudaLaunchAttributeMemSyncDomain));
            list.back().val.memSyncDomain = cudaLaunchMemSyncDomainRemote;
            list.push_back(attribute(cudaLaunchAttributeMemSyncDomainMap));
            list.back().val.memSyncDomainMap.default_ = 1;
            list.back().val.memSyncDomainMap.remote = 0;
        }
        return list;
    }

    cudaError_t launch(cudaStream_t stream, std::vector<cudaLaunchAttribute> list) const {
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3((count + threads - 1) / threads);
        config.blockDim = dim3(threads);
        config.stream = stream;
        config.attrs = list.data();
        config.numAttrs = static_cast<unsigned>(list.size());
        return cudaLaunchKernelEx(&config, step, memory, count);
    }
};

static void expect_code(Program &program, const char *what, cudaError_t got, cudaError_t want) {
    program.expect_equal(what, static_cast<int>(got), static_cast<int>(want));
    cudaGetLastError();
}

// The only node of a graph.
static cudaGraphNode_t node_of(cudaGraph_t graph) {
    cudaGraphNode_t node = nullptr;
    size_t one = 1;
    CUDA_CHECK(cudaGraphGetNodes(graph, &node, &one));
    return node;
}

static cudaLaunchAttributeValue read(cudaGraphNode_t node, cudaLaunchAttributeID id) {
    cudaLaunchAttributeValue value = {};
    CUDA_CHECK(cudaGraphKernelNodeGetAttribute(node, id, &value));
    return value;
}

static void expect_window(Program &program, const char *what, cudaGraphNode_t node, const cudaAccessPolicyWindow &want) {
    cudaAccessPolicyWindow got = read(node, cudaLaunchAttributeAccessPolicyWindow).accessPolicyWindow;
    program.expect(got.base_ptr == want.base_ptr && got.num_bytes == want.num_bytes && got.hitRatio == want.hitRatio &&
                       got.hitProp == want.hitProp && got.missProp == want.missProp,
                   what);
}

// What a node has that was captured with attributes, or from a stream with a priority.
static int run_captures(Program &program, const Work &work) {
    cudaStream_t urgent;
    CUDA_CHECK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, work.greatest));
    cudaGraph_t graphs[2];
    for (int with = 0; with < 2; ++with) {
        CUDA_CHECK(cudaStreamBeginCapture(urgent, cudaStreamCaptureModeThreadLocal));
        CUDA_CHECK(work.launch(urgent, with ? work.all() : std::vector<cudaLaunchAttribute>()));
        CUDA_CHECK(cudaStreamEndCapture(urgent, &graphs[with]));
        cudaGraphNode_t node = node_of(graphs[with]);
        program.expect_equal("a captured priority", read(node, cudaLaunchAttributePriority).priority, work.greatest);
    }
    cudaGraphNode_t plain = node_of(graphs[0]), node = node_of(graphs[1]);
    if (work.window) {
        expect_window(program, "a captured window", node, window_of(work.memory, work.window, 0.5f));
    }
    if (work.domains) {
        program.expect_equal("a captured domain", static_cast<int>(read(node, cudaLaunchAttributeMemSyncDomain).memSyncDomain), 1);
        program.expect_equal("a captured map", static_cast<int>(read(node, cudaLaunchAttributeMemSyncDomainMap).memSyncDomainMap.default_), 1);
        program.expect_equal("a domain by default", static_cast<int>(read(plain, cudaLaunchAttributeMemSyncDomain).memSyncDomain), 0);
    }
    // Set, and copied from node to node.
    cudaLaunchAttributeValue value = {};
    value.priority = work.least;
    CUDA_CHECK(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributePriority, &value));
    program.expect_equal("a priority that was set", read(node, cudaLaunchAttributePriority).priority, work.least);
    CUDA_CHECK(cudaGraphKernelNodeCopyAttributes(plain, node));
    program.expect_equal("a copied priority", read(plain, cudaLaunchAttributePriority).priority, work.least);
    if (work.window) {
        expect_window(program, "a copied window", plain, window_of(work.memory, work.window, 0.5f));
        value = {};
        value.accessPolicyWindow = window_of(work.memory, work.window, 1.5f);
        expect_code(program, "a wrong window", cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeAccessPolicyWindow, &value),
                    cudaErrorInvalidValue);
    }
    for (cudaGraph_t graph : graphs) {
        cudaGraphExec_t exec;
        CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
        for (int time = 0; time < 3; ++time) {
            CUDA_CHECK(cudaGraphLaunch(exec, urgent));
        }
        CUDA_CHECK(cudaStreamSynchronize(urgent));
        CUDA_CHECK(cudaGraphExecDestroy(exec));
        CUDA_CHECK(cudaGraphDestroy(graph));
    }
    CUDA_CHECK(cudaStreamDestroy(urgent));
    return 6;
}

static int run_launches(Program &program, const Work &work) {
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    int steps = 0;
    std::vector<cudaLaunchAttribute> list = work.all();
    for (size_t at = 0; at <= list.size(); ++at) {
        CUDA_CHECK(work.launch(stream, {list.begin(), list.begin() + static_cast<long>(at)}));
        CUDA_CHECK(work.launch(stream, {}));
        steps += 2;
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    if (work.window) {
        cudaLaunchAttribute wrong = attribute(cudaLaunchAttributeAccessPolicyWindow);
        wrong.val.accessPolicyWindow = window_of(work.memory, work.window, -0.5f);
        expect_code(program, "a launch with a wrong window", work.launch(stream, {wrong}), cudaErrorInvalidValue);
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
    return steps;
}

int main(int argc, char **argv) {
    Program program("launchAttributes", "launches with attributes that change no results", "words", 100000, 1, 1L << 26);
    program.parse(argc, argv);
    Work work = {};
    work.count = static_cast<int>(program.size());
    size_t bytes = static_cast<size_t>(work.count) * sizeof(unsigned);
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&work.least, &work.greatest));
    int limit = 0, domains = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxAccessPolicyWindowSize, 0));
    CUDA_CHECK(cudaDeviceGetAttribute(&domains, cudaDevAttrMemSyncDomainCount, 0));
    work.window = bytes < static_cast<size_t>(limit) ? bytes : static_cast<size_t>(limit);
    work.domains = domains > 1;
    CUDA_CHECK(cudaMalloc(&work.memory, bytes));
    while (program.next_round()) {
        Random random(program.seed());
        std::vector<unsigned> words(static_cast<size_t>(work.count)), got(words.size());
        for (unsigned &word : words) {
            word = static_cast<unsigned>(random.next());
        }
        CUDA_CHECK(cudaMemcpy(work.memory, words.data(), bytes, cudaMemcpyHostToDevice));
        int steps = run_launches(program, work) + run_captures(program, work);
        CUDA_CHECK(cudaMemcpy(got.data(), work.memory, bytes, cudaMemcpyDeviceToHost));
        for (unsigned &word : words) {
            for (int at = 0; at < steps; ++at) {
                word = word * 1664525u + 1013904223u;
            }
        }
        program.expect_equal("words", got.data(), words.data(), words.size());
        // The number of launches depends on what the GPU has, the last of them does not.
        program.digest(got.data(), bytes);
    }
    CUDA_CHECK(cudaFree(work.memory));
    return program.finish();
}
