// userObjects: program data that graphs keep alive.
//
// References of the program and of graphs, moved ones, clones, child graphs,
// captures, executable graphs and their updates. Each destructor must run once,
// after the last reference, and not before launches that use its data are complete.

#include "common/check.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

// Data that counts its destructions. Destructors run on one of CUDA's threads.
struct Data {
    std::mutex mutex;
    std::condition_variable changed;
    int ended = 0;

    static void end(void *data) {
        Data *self = static_cast<Data *>(data);
        std::lock_guard<std::mutex> lock(self->mutex);
        ++self->ended;
        self->changed.notify_all();
    }

    int times() {
        std::lock_guard<std::mutex> lock(mutex);
        return ended;
    }

    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [this] { return ended > 0; });
    }
};

static cudaUserObject_t object_of(Data &data, unsigned references = 1) {
    cudaUserObject_t object = nullptr;
    CUDA_CHECK(cudaUserObjectCreate(&object, &data, Data::end, references, cudaUserObjectNoDestructorSync));
    return object;
}

static void refused(Program &program, cudaError_t status, const char *what) {
    cudaGetLastError();
    program.expect(status == cudaErrorInvalidValue, what);
}

static void run_program(Program &program) {
    Data data;
    cudaUserObject_t object = object_of(data, 2);
    CUDA_CHECK(cudaUserObjectRetain(object, 3));
    CUDA_CHECK(cudaUserObjectRelease(object, 4));
    program.expect(data.times() == 0, "an object with references was destroyed");
    CUDA_CHECK(cudaUserObjectRelease(object, 1));
    data.wait();
    program.expect(data.times() == 1, "a destructor did not run exactly once");

    refused(program, cudaUserObjectCreate(&object, &data, Data::end, 1, 0), "flags of 0 were accepted");
    refused(program, cudaUserObjectCreate(&object, &data, Data::end, 0, cudaUserObjectNoDestructorSync), "a count of 0 references was accepted");
    refused(program, cudaUserObjectCreate(&object, &data, nullptr, 1, cudaUserObjectNoDestructorSync), "a missing destructor was accepted");
}

static void run_graphs(Program &program) {
    Data data;
    cudaUserObject_t object = object_of(data);
    cudaGraph_t graph, clone, parent;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphCreate(&parent, 0));
    refused(program, cudaGraphRetainUserObject(graph, object, 1, 2), "unknown flags were accepted");
    // Releasing a reference that a graph does not have ends the process in NVIDIA's driver 580.
    CUDA_CHECK(cudaGraphRetainUserObject(graph, object, 2, 0));
    CUDA_CHECK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    CUDA_CHECK(cudaGraphReleaseUserObject(graph, object, 2));
    CUDA_CHECK(cudaGraphClone(&clone, graph));
    cudaGraphNode_t node;
    CUDA_CHECK(cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, clone));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaGraphDestroy(clone));
    program.expect(data.times() == 0, "a child graph's object was destroyed");
    CUDA_CHECK(cudaGraphDestroy(parent));
    data.wait();
    program.expect(data.times() == 1, "a destructor did not run exactly once");
}

__global__ void fill(int *place, int value, int count) {
    for (int at = threadIdx.x; at < count; at += blockDim.x) {
        place[at] = value;
    }
}

// A capture passes an object to its graph, as libraries do whose buffers must live as
// long as the graph.
static cudaGraph_t captured(cudaStream_t stream, cudaUserObject_t object, int *place, int value, int count) {
    cudaGraph_t graph;
    cudaStreamCaptureStatus status;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    fill<<<1, 64, 0, stream>>>(place, value, count);
    CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph));
    CUDA_CHECK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

static void run_executable(Program &program, int count) {
    Data first, second;
    cudaStream_t stream;
    int *place;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaMalloc(&place, count * sizeof(int)));
    cudaGraph_t graph = captured(stream, object_of(first), place, 7, count);
    cudaGraph_t other = captured(stream, object_of(second), place, 9, count);
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect(first.times() == 0, "an executable graph's object was destroyed");
    std::vector<int> got(count), want(count, 7);
    CUDA_CHECK(cudaMemcpy(got.data(), place, count * sizeof(int), cudaMemcpyDefault));
    program.expect_equal("what the graph wrote", got.data(), want.data(), count);

    // The new source's objects replace the old one's.
    cudaGraphExecUpdateResultInfo info;
    CUDA_CHECK(cudaGraphExecUpdate(exec, other, &info));
    CUDA_CHECK(cudaGraphDestroy(other));
    first.wait();
    program.expect(second.times() == 0, "an updated graph's object was destroyed");

    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    second.wait();
    CUDA_CHECK(cudaMemcpy(got.data(), place, count * sizeof(int), cudaMemcpyDefault));
    std::fill(want.begin(), want.end(), 9);
    program.expect_equal("what the updated graph wrote", got.data(), want.data(), count);
    program.digest(got.data(), count * sizeof(int));
    program.expect(first.times() == 1 && second.times() == 1, "a destructor did not run exactly once");
    CUDA_CHECK(cudaFree(place));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

// The graph is destroyed while its launch is in flight.
static void run_under_way(Program &program) {
    struct Gate {
        std::mutex mutex;
        std::condition_variable changed;
        bool open = false;
        static void pass(void *data) {
            Gate *self = static_cast<Gate *>(data);
            std::unique_lock<std::mutex> lock(self->mutex);
            self->changed.wait(lock, [self] { return self->open; });
        }
    } gate;
    Data data;
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    cudaGraph_t graph;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    cudaHostNodeParams call = {Gate::pass, &gate};
    cudaGraphNode_t node;
    CUDA_CHECK(cudaGraphAddHostNode(&node, graph, nullptr, 0, &call));
    CUDA_CHECK(cudaGraphRetainUserObject(graph, object_of(data), 1, cudaGraphUserObjectMove));
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    program.expect(data.times() == 0, "an object was destroyed before its launch completed");
    {
        std::lock_guard<std::mutex> lock(gate.mutex);
        gate.open = true;
        gate.changed.notify_all();
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    data.wait();
    CUDA_CHECK(cudaStreamDestroy(stream));
}

int main(int argc, char **argv) {
    Program program("userObjects", "keeps data alive by references of graphs", "ints", 1000, 1, 1L << 20);
    program.parse(argc, argv);
    while (program.next_round()) {
        run_program(program);
        run_graphs(program);
        run_executable(program, static_cast<int>(program.size()));
        run_under_way(program);
    }
    return program.finish();
}
