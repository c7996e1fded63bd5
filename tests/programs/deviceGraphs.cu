// deviceGraphs: graphs whose nodes are on two GPUs.
//
// Captures that fork to a stream of another GPU and join it, nodes that are added by hand
// (kernels, copies, memsets, host functions, events, child graphs and memory of either
// GPU), launches one after another without a wait between them and in streams of both
// GPUs, updates, disabled nodes, kernels of two GPUs that wait for each other inside a
// graph, memory that one GPU pinned and both use, and refused calls. Data goes from GPU to GPU and through pinned memory. With
// --apart no GPU reaches the other's memory. With a single GPU everything runs on one.

#include "common/driver.h"

#include <algorithm>
#include <vector>

// Order matters: two such steps do not commute.
__global__ void step(unsigned *values, const unsigned *from, unsigned factor, unsigned count) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] = values[at] * factor + from[at];
    }
}

// Tells the other GPU that this one has come, and waits for it.
__global__ void meet(volatile unsigned *mine, volatile unsigned *other, unsigned *rounds) {
    unsigned round = ++*rounds;
    *mine = round;
    __threadfence_system();
    while (*other < round) {
    }
}

static int devices[2] = {0, 0};
static bool reaches = false;
// Data goes from GPU to GPU, not through pinned memory.
static bool direct = false;
static unsigned count = 0;

static void use(int side) { CUDA_CHECK(cudaSetDevice(devices[side])); }

static void synchronize() {
    for (int side : {1, 0}) {
        use(side);
        CUDA_CHECK(cudaDeviceSynchronize());
    }
}

template <class T> static T *allocate(int side, size_t number) {
    T *memory = nullptr;
    use(side);
    CUDA_CHECK(cudaMalloc(&memory, number * sizeof(T)));
    CUDA_CHECK(cudaMemset(memory, 0, number * sizeof(T)));
    CUDA_CHECK(cudaDeviceSynchronize());
    use(0);
    return memory;
}

// A stream and an event of each GPU, and words of each.
struct Sides {
    cudaStream_t stream[2];
    cudaEvent_t event[2];
    unsigned *values[2], *source[2];
    // What the first side computes while the other does.
    unsigned *beside = nullptr;
    // Pinned memory, for words that pass through the host.
    unsigned *passed = nullptr;

    explicit Sides(Random &random) {
        std::vector<unsigned> words(count);
        for (int side = 0; side < 2; ++side) {
            values[side] = allocate<unsigned>(side, count);
            source[side] = allocate<unsigned>(side, count);
            for (unsigned &word : words) {
                word = static_cast<unsigned>(random.next());
            }
            use(side);
            CUDA_CHECK(cudaMemcpy(source[side], words.data(), count * sizeof(unsigned), cudaMemcpyHostToDevice));
            CUDA_CHECK(cudaStreamCreateWithFlags(&stream[side], cudaStreamNonBlocking));
            CUDA_CHECK(cudaEventCreateWithFlags(&event[side], cudaEventDisableTiming));
        }
        beside = allocate<unsigned>(0, count);
        CUDA_CHECK(cudaMallocHost(&passed, count * sizeof(unsigned)));
        synchronize();
    }

    ~Sides() {
        synchronize();
        for (int side = 0; side < 2; ++side) {
            use(side);
            CUDA_CHECK(cudaFree(values[side]));
            CUDA_CHECK(cudaFree(source[side]));
            CUDA_CHECK(cudaStreamDestroy(stream[side]));
            CUDA_CHECK(cudaEventDestroy(event[side]));
        }
        use(0);
        CUDA_CHECK(cudaFree(beside));
        CUDA_CHECK(cudaFreeHost(passed));
    }

    // The stream of one side waits for what the other's has got to.
    void pass(int to) const {
        use(!to);
        CUDA_CHECK(cudaEventRecord(event[!to], stream[!to]));
        use(to);
        CUDA_CHECK(wait_event(stream[to], event[!to]));
    }

    // The values of one side become those of the other, in the order of both streams.
    void hand_over(int to) const {
        size_t bytes = count * sizeof(unsigned);
        if (direct) {
            pass(to);
            CUDA_CHECK(cudaMemcpyAsync(values[to], values[!to], bytes, cudaMemcpyDefault, stream[to]));
        } else {
            use(!to);
            CUDA_CHECK(cudaMemcpyAsync(passed, values[!to], bytes, cudaMemcpyDeviceToHost, stream[!to]));
            pass(to);
            CUDA_CHECK(cudaMemcpyAsync(values[to], passed, bytes, cudaMemcpyHostToDevice, stream[to]));
        }
    }

    void compute(int side, unsigned *into, const unsigned *from, unsigned factor) const {
        use(side);
        step<<<(count + 255) / 256, 256, 0, stream[side]>>>(into, from, factor, count);
        LAUNCH_CHECK();
    }

    void work(int side, unsigned factor) const { compute(side, values[side], source[side], factor); }

    // Both compute, one on what the other made; it ends in the first stream.
    void round(unsigned factor) const {
        work(0, factor);
        hand_over(1);
        work(1, factor + 2);
        // At the same time.
        compute(0, beside, source[0], 3);
        hand_over(0);
        compute(0, values[0], beside, factor);
    }

    void check(Program &program, const char *what, const std::vector<unsigned> &want) const {
        synchronize();
        std::vector<unsigned> got(count);
        CUDA_CHECK(cudaMemcpy(got.data(), values[0], count * sizeof(unsigned), cudaMemcpyDeviceToHost));
        program.expect_equal(what, got.data(), want.data(), count);
        program.digest(got.data(), count * sizeof(unsigned));
    }

    std::vector<unsigned> result() const {
        synchronize();
        std::vector<unsigned> got(count);
        CUDA_CHECK(cudaMemcpy(got.data(), values[0], count * sizeof(unsigned), cudaMemcpyDeviceToHost));
        return got;
    }

    void clear() const {
        for (int side = 0; side < 2; ++side) {
            use(side);
            CUDA_CHECK(cudaMemset(values[side], 0, count * sizeof(unsigned)));
        }
        use(0);
        CUDA_CHECK(cudaMemset(beside, 0, count * sizeof(unsigned)));
        synchronize();
    }
};

static cudaGraph_t capture(const Sides &sides, unsigned factor) {
    cudaGraph_t graph = nullptr;
    use(0);
    CUDA_CHECK(cudaStreamBeginCapture(sides.stream[0], cudaStreamCaptureModeThreadLocal));
    sides.round(factor);
    use(0);
    CUDA_CHECK(cudaStreamEndCapture(sides.stream[0], &graph));
    return graph;
}

static std::vector<unsigned> by_streams(const Sides &sides, const std::vector<unsigned> &factors) {
    sides.clear();
    for (unsigned factor : factors) {
        sides.round(factor);
    }
    return sides.result();
}

static cudaGraphNode_t add_step(cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after, int side, unsigned *values,
                                unsigned *from, unsigned factor) {
    cudaKernelNodeParams kernel = {};
    void *arguments[] = {&values, &from, &factor, &count};
    kernel.func = reinterpret_cast<void *>(step);
    kernel.gridDim = dim3((count + 255) / 256);
    kernel.blockDim = dim3(256);
    kernel.kernelParams = arguments;
    cudaGraphNode_t node = nullptr;
    use(side);
    CUDA_CHECK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &kernel));
    return node;
}

// Launches of one graph, in streams of both GPUs, with updates between them.
static void run_captures(Program &program, Random &random) {
    Sides sides(random);
    std::vector<unsigned> same(20, 5);
    std::vector<unsigned> want = by_streams(sides, same);
    cudaGraph_t graph = capture(sides, 5);
    size_t nodes = 0;
    CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    program.expect_equal("nodes", nodes, direct ? size_t{6} : size_t{8});
    cudaGraphExec_t exec = nullptr;
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    sides.clear();
    use(0);
    for (size_t turn = 0; turn < same.size(); ++turn) {
        CUDA_CHECK(cudaGraphLaunch(exec, sides.stream[0]));
    }
    sides.check(program, "launches in one stream", want);
    sides.clear();
    for (size_t turn = 0; turn < same.size(); ++turn) {
        int side = turn % 3 == 1;
        use(side);
        CUDA_CHECK(cudaGraphLaunch(exec, turn % 3 == 2 ? nullptr : sides.stream[side]));
    }
    sides.check(program, "launches in streams of both", want);

    cudaGraph_t other = capture(sides, 9);
    cudaGraphExecUpdateResultInfo result = {};
    CUDA_CHECK(cudaGraphExecUpdate(exec, other, &result));
    want = by_streams(sides, {9, 9, 5});
    sides.clear();
    use(0);
    CUDA_CHECK(cudaGraphLaunch(exec, sides.stream[0]));
    CUDA_CHECK(cudaGraphLaunch(exec, sides.stream[0]));
    CUDA_CHECK(cudaGraphExecUpdate(exec, graph, &result));
    CUDA_CHECK(cudaGraphLaunch(exec, sides.stream[0]));
    sides.check(program, "an update", want);

    // A graph in a node of another.
    cudaGraph_t around = nullptr;
    cudaGraphExec_t outer = nullptr;
    cudaGraphNode_t child = nullptr;
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphCreate(&around, 0));
    cudaGraphNode_t before = add_step(around, {}, 0, sides.values[0], sides.source[0], 7);
    CUDA_CHECK(cudaGraphAddChildGraphNode(&child, around, &before, 1, graph));
    add_step(around, {child}, 0, sides.values[0], sides.source[0], 11);
    use(0);
    CUDA_CHECK(cudaGraphInstantiate(&outer, around, 0));
    sides.clear();
    sides.work(0, 7);
    sides.round(5);
    sides.work(0, 11);
    want = sides.result();
    sides.clear();
    use(0);
    CUDA_CHECK(cudaGraphLaunch(outer, sides.stream[0]));
    CUDA_CHECK(cudaGraphExecDestroy(outer));
    sides.check(program, "a graph in a graph", want);
    for (cudaGraph_t one : {graph, other, around}) {
        CUDA_CHECK(cudaGraphDestroy(one));
    }
}

static void CUDART_CB count_call(void *calls) { ++*static_cast<unsigned *>(calls); }

// Nodes of every kind, on both GPUs.
static void run_nodes(Program &program, Random &random) {
    Sides sides(random);
    unsigned calls = 0;
    unsigned **values = sides.values, **source = sides.source;
    cudaGraph_t graph = nullptr, inner = nullptr;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphCreate(&inner, 0));
    cudaGraphNode_t empty = nullptr, filled[2], host = nullptr, child = nullptr, recorded = nullptr, waited = nullptr;
    CUDA_CHECK(cudaGraphAddEmptyNode(&empty, graph, nullptr, 0));
    for (int side = 0; side < 2; ++side) {
        cudaMemsetParams fill = {};
        fill.dst = values[side];
        fill.value = 0x01010101u * (side + 1);
        fill.elementSize = 4;
        fill.width = count;
        fill.height = 1;
        use(side);
        CUDA_CHECK(cudaGraphAddMemsetNode(&filled[side], graph, &empty, 1, &fill));
    }
    // Two branches of the second GPU, one of which nothing of the first one precedes.
    cudaGraphNode_t far = add_step(graph, {filled[1]}, 1, values[1], source[1], 3);
    cudaGraphNode_t near = add_step(graph, {filled[0]}, 0, values[0], source[0], 5);
    cudaHostNodeParams call = {};
    call.fn = count_call;
    call.userData = &calls;
    cudaGraphNode_t both[] = {near, far};
    CUDA_CHECK(cudaGraphAddHostNode(&host, graph, both, 2, &call));
    CUDA_CHECK(cudaGraphAddEventRecordNode(&recorded, graph, &host, 1, sides.event[1]));
    CUDA_CHECK(cudaGraphAddEventWaitNode(&waited, graph, &recorded, 1, sides.event[1]));
    add_step(inner, {}, 1, values[1], source[1], 7);
    CUDA_CHECK(cudaGraphAddChildGraphNode(&child, graph, &waited, 1, inner));
    cudaGraphNode_t last = add_step(graph, {child}, 0, values[0], source[0], 9);
    cudaMemAllocNodeParams memory = {};
    memory.poolProps.allocType = cudaMemAllocationTypePinned;
    memory.poolProps.location.type = cudaMemLocationTypeDevice;
    memory.poolProps.location.id = devices[1];
    memory.bytesize = count * sizeof(unsigned);
    // If it can, the first GPU copies what the second has into memory of the second.
    bool copies = reaches && devices[0] != devices[1];
    cudaMemAccessDesc access = {};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = devices[0];
    access.flags = cudaMemAccessFlagsProtReadWrite;
    memory.accessDescs = copies ? &access : nullptr;
    memory.accessDescCount = copies;
    cudaGraphNode_t made = nullptr, copied = nullptr, freed = nullptr;
    CUDA_CHECK(cudaGraphAddMemAllocNode(&made, graph, &last, 1, &memory));
    use(!copies);
    CUDA_CHECK(cudaGraphAddMemcpyNode1D(&copied, graph, &made, 1, memory.dptr, values[1], memory.bytesize, cudaMemcpyDeviceToDevice));
    cudaGraphNode_t more = add_step(graph, {copied}, 1, values[1], static_cast<unsigned *>(memory.dptr), 2);
    CUDA_CHECK(cudaGraphAddMemFreeNode(&freed, graph, &more, 1, memory.dptr));
    add_step(graph, {freed}, 0, values[0], source[0], 13);

    std::vector<unsigned> words[2], want[2] = {std::vector<unsigned>(count), std::vector<unsigned>(count)};
    for (int side = 0; side < 2; ++side) {
        words[side].resize(count);
        CUDA_CHECK(cudaMemcpy(words[side].data(), source[side], count * sizeof(unsigned), cudaMemcpyDeviceToHost));
    }
    auto expect = [&](unsigned third, bool seventh) {
        for (unsigned at = 0; at < count; ++at) {
            unsigned a = 0x01010101u, b = 0x02020202u;
            b = b * third + words[1][at];
            a = a * 5 + words[0][at];
            b = seventh ? b * 7 + words[1][at] : b;
            a = a * 9 + words[0][at];
            b = b * 2 + b;
            want[0][at] = a * 13 + words[0][at];
            want[1][at] = b;
        }
    };
    auto check = [&](const char *what) {
        synchronize();
        for (int side = 0; side < 2; ++side) {
            std::vector<unsigned> got(count);
            CUDA_CHECK(cudaMemcpy(got.data(), values[side], count * sizeof(unsigned), cudaMemcpyDeviceToHost));
            program.expect_equal(what, got.data(), want[side].data(), count);
            program.digest(got.data(), count * sizeof(unsigned));
        }
    };
    cudaGraphExec_t exec = nullptr;
    use(0);
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    expect(3, true);
    for (int turn = 0; turn < 3; ++turn) {
        CUDA_CHECK(cudaGraphLaunch(exec, sides.stream[0]));
    }
    check("nodes of both");
    program.expect_equal("calls", calls, 3u);
    // It was recorded by the launches.
    CUDA_CHECK(cudaEventQuery(sides.event[1]));

    cudaKernelNodeParams kernel = {};
    unsigned third = 21;
    void *arguments[] = {&values[1], &source[1], &third, &count};
    kernel.func = reinterpret_cast<void *>(step);
    kernel.gridDim = dim3((count + 255) / 256);
    kernel.blockDim = dim3(256);
    kernel.kernelParams = arguments;
    use(1);
    CUDA_CHECK(cudaGraphExecKernelNodeSetParams(exec, far, &kernel));
    expect(21, true);
    CUDA_CHECK(cudaGraphLaunch(exec, sides.stream[1]));
    check("a changed node of the other");
    use(0);
    CUDA_CHECK(cudaGraphNodeSetEnabled(exec, far, 0));
    unsigned enabled = 1;
    CUDA_CHECK(cudaGraphNodeGetEnabled(exec, far, &enabled));
    program.expect_equal("enabled", enabled, 0u);
    CUDA_CHECK(cudaGraphNodeSetEnabled(exec, far, 1));
    CUDA_CHECK(cudaGraphLaunch(exec, sides.stream[0]));
    check("an enabled node of the other");

    // A graph of one GPU in a stream of the other.
    cudaGraphExec_t single = nullptr;
    CUDA_CHECK(cudaGraphInstantiate(&single, inner, 0));
    CUDA_CHECK(cudaGraphLaunch(single, sides.stream[0]));
    CUDA_CHECK(cudaGraphLaunch(single, sides.stream[0]));
    CUDA_CHECK(cudaStreamSynchronize(sides.stream[0]));
    for (unsigned at = 0; at < count; ++at) {
        for (int turn = 0; turn < 2; ++turn) {
            want[1][at] = want[1][at] * 7 + words[1][at];
        }
    }
    check("a graph of the other");
    CUDA_CHECK(cudaGraphExecDestroy(single));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaGraphDestroy(inner));
    use(0);
}

// Kernels of both GPUs that wait for each other, as those of collective operations do.
static void run_meeting(Program &program, Random &random) {
    if (!reaches || devices[0] == devices[1]) {
        return;
    }
    constexpr unsigned launches = 30;
    Sides sides(random);
    unsigned *flags[2] = {allocate<unsigned>(0, 64), allocate<unsigned>(1, 64)};
    use(0);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(sides.stream[0], cudaStreamCaptureModeThreadLocal));
    sides.work(0, 3);
    sides.pass(1);
    for (int side = 0; side < 2; ++side) {
        use(side);
        meet<<<1, 1, 0, sides.stream[side]>>>(flags[side], flags[!side], flags[side] + 32);
        LAUNCH_CHECK();
        sides.work(side, 5);
    }
    sides.pass(0);
    sides.work(0, 7);
    CUDA_CHECK(cudaStreamEndCapture(sides.stream[0], &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (unsigned turn = 0; turn < launches; ++turn) {
        CUDA_CHECK(cudaGraphLaunch(exec, sides.stream[0]));
    }
    CUDA_CHECK(cudaStreamSynchronize(sides.stream[0]));
    for (int side = 0; side < 2; ++side) {
        unsigned met = 0;
        CUDA_CHECK(cudaMemcpy(&met, flags[side], sizeof met, cudaMemcpyDeviceToHost));
        program.expect_equal("meetings", met, launches);
    }
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
    for (unsigned *flag : flags) {
        CUDA_CHECK(cudaFree(flag));
    }
}

// Kernels of both GPUs on memory that was pinned with one of them current, by streams and
// by a graph.
static void run_pinned(Program &program, Random &random) {
    for (int kind = 0; kind < 4; ++kind) {
        Sides sides(random);
        int owner = kind % 2;
        bool registered = kind / 2;
        size_t bytes = count * sizeof(unsigned);
        std::vector<unsigned> own(registered ? count : 0, 1u);
        unsigned *host = own.data(), *device = nullptr;
        use(owner);
        if (registered) {
            CUDA_CHECK(cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
        } else {
            CUDA_CHECK(cudaHostAlloc(&host, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
            std::fill(host, host + count, 1u);
        }
        CUDA_CHECK(cudaHostGetDevicePointer(&device, host, 0));
        auto turns = [&] {
            for (int side : {0, 1, 1, 0}) {
                sides.compute(side, device, sides.source[side], 3);
                sides.pass(!side);
                if (side == 1) {
                    sides.pass(1);
                }
            }
        };
        std::vector<unsigned> words[2], want(count, 1);
        for (int side = 0; side < 2; ++side) {
            words[side].resize(count);
            CUDA_CHECK(cudaMemcpy(words[side].data(), sides.source[side], bytes, cudaMemcpyDeviceToHost));
        }
        auto check = [&](const char *what, int times) {
            CUDA_CHECK(cudaStreamSynchronize(sides.stream[0]));
            for (int turn = 0; turn < times; ++turn) {
                for (int side : {0, 1, 1, 0}) {
                    for (unsigned at = 0; at < count; ++at) {
                        want[at] = want[at] * 3 + words[side][at];
                    }
                }
            }
            program.expect_equal(what, host, want.data(), count);
            program.digest(host, bytes);
        };
        turns();
        sides.pass(0);
        check("pinned memory in streams", 1);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        use(0);
        CUDA_CHECK(cudaStreamBeginCapture(sides.stream[0], cudaStreamCaptureModeThreadLocal));
        turns();
        sides.pass(0);
        use(0);
        CUDA_CHECK(cudaStreamEndCapture(sides.stream[0], &graph));
        CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
        for (int turn = 0; turn < 3; ++turn) {
            CUDA_CHECK(cudaGraphLaunch(exec, sides.stream[0]));
        }
        check("pinned memory in a graph", 3);
        CUDA_CHECK(cudaGraphExecDestroy(exec));
        CUDA_CHECK(cudaGraphDestroy(graph));
        CUDA_CHECK(registered ? cudaHostUnregister(host) : cudaFreeHost(host));
    }
}

static void expect_code(Program &program, const char *what, cudaError_t got, cudaError_t want) {
    program.expect_equal(what, static_cast<int>(got), static_cast<int>(want));
    cudaGetLastError();
}

static void run_refused(Program &program, Random &random) {
    if (devices[0] == devices[1]) {
        return;
    }
    Sides sides(random);
    cudaGraph_t graph = nullptr;
    use(0);
    CUDA_CHECK(cudaStreamBeginCapture(sides.stream[0], cudaStreamCaptureModeThreadLocal));
    sides.pass(1);
    sides.work(1, 3);
    expect_code(program, "not joined", cudaStreamEndCapture(sides.stream[0], &graph), cudaErrorStreamCaptureUnjoined);

    CUDA_CHECK(cudaEventRecord(sides.event[0], sides.stream[0]));
    use(1);
    CUDA_CHECK(cudaStreamBeginCapture(sides.stream[1], cudaStreamCaptureModeThreadLocal));
    expect_code(program, "an event outside", wait_event(sides.stream[1], sides.event[0]),
                cudaErrorStreamCaptureIsolation);
    expect_code(program, "invalidated", cudaStreamEndCapture(sides.stream[1], &graph), cudaErrorStreamCaptureInvalidated);

    // A blocking stream of the other GPU captures, so its legacy stream is closed.
    cudaStream_t blocking;
    CUDA_CHECK(cudaStreamCreate(&blocking));
    use(0);
    CUDA_CHECK(cudaStreamBeginCapture(sides.stream[0], cudaStreamCaptureModeRelaxed));
    CUDA_CHECK(cudaEventRecord(sides.event[0], sides.stream[0]));
    use(1);
    CUDA_CHECK(wait_event(blocking, sides.event[0]));
    expect_code(program, "the legacy stream", cudaMemsetAsync(sides.values[1], 0, 4, nullptr),
                cudaErrorStreamCaptureImplicit);
    use(0);
    expect_code(program, "invalidated", cudaStreamEndCapture(sides.stream[0], &graph), cudaErrorStreamCaptureInvalidated);
    use(1);
    CUDA_CHECK(cudaStreamDestroy(blocking));

    // A graph of both in a capture.
    cudaGraphExec_t both = nullptr;
    direct = false;
    cudaGraph_t captured = capture(sides, 3);
    CUDA_CHECK(cudaGraphInstantiate(&both, captured, 0));
    use(0);
    CUDA_CHECK(cudaStreamBeginCapture(sides.stream[0], cudaStreamCaptureModeThreadLocal));
    expect_code(program, "a graph of both in a capture", cudaGraphLaunch(both, sides.stream[0]),
                cudaErrorStreamCaptureUnsupported);
    expect_code(program, "invalidated", cudaStreamEndCapture(sides.stream[0], &graph), cudaErrorStreamCaptureInvalidated);
    CUDA_CHECK(cudaGraphExecDestroy(both));
    CUDA_CHECK(cudaGraphDestroy(captured));

    // A node that moves to the other GPU.
    cudaGraph_t here = nullptr, there = nullptr;
    CUDA_CHECK(cudaGraphCreate(&here, 0));
    CUDA_CHECK(cudaGraphCreate(&there, 0));
    add_step(here, {}, 0, sides.values[0], sides.source[0], 3);
    add_step(there, {}, 1, sides.values[1], sides.source[1], 3);
    cudaGraphExec_t exec = nullptr;
    CUDA_CHECK(cudaGraphInstantiate(&exec, here, 0));
    cudaGraphExecUpdateResultInfo result = {};
    expect_code(program, "another GPU's node", cudaGraphExecUpdate(exec, there, &result), cudaErrorGraphExecUpdateFailure);
    program.expect_equal("the reason", static_cast<int>(result.result),
                         static_cast<int>(cudaGraphExecUpdateErrorUnsupportedFunctionChange));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(here));
    CUDA_CHECK(cudaGraphDestroy(there));
    use(0);
}

int main(int argc, char **argv) {
    Program program("deviceGraphs", "launches graphs whose nodes are on two GPUs", "thousands of words", 20, 1, 100000);
    bool apart = false;
    program.add_flag("--apart", &apart, "without peer access");
    program.parse(argc, argv);
    int number = 0, forth = 0, back = 0;
    CUDA_CHECK(cudaGetDeviceCount(&number));
    devices[1] = number > 1 ? 1 : 0;
    for (int side : {1, 0}) {
        use(side);
        CUDA_CHECK(cudaFree(nullptr));
    }
    reaches = devices[0] == devices[1];
    if (!reaches && !apart) {
        CUDA_CHECK(cudaDeviceCanAccessPeer(&forth, 0, 1));
        CUDA_CHECK(cudaDeviceCanAccessPeer(&back, 1, 0));
        reaches = forth && back;
        for (int side = 0; side < 2 && reaches; ++side) {
            use(side);
            CUDA_CHECK(cudaDeviceEnablePeerAccess(devices[!side], 0));
        }
    }
    use(0);
    count = static_cast<unsigned>(program.size()) * 1000;
    while (program.next_round()) {
        Random random(program.seed());
        for (bool through : {false, true}) {
            direct = reaches && !through;
            run_captures(program, random);
        }
        run_nodes(program, random);
        run_pinned(program, random);
        run_meeting(program, random);
        run_refused(program, random);
    }
    return program.finish();
}
