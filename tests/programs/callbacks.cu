// callbacks: host functions in order between kernels and copies.
//
// The host function of each link reads the result of the copy before it and
// changes the source of the copy after it: a function that runs early, late,
// twice or never changes the result. Both cudaLaunchHostFunc and
// cudaStreamAddCallback, in two streams at once. Calls of CUDA by such functions, by
// those of graphs and by destructors of user objects fail at once.

#include "common/check.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <thread>
#include <vector>

__global__ void triple(unsigned *values, unsigned amount, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] = values[at] * 3 + amount;
    }
}

constexpr int links = 12;

struct Lane;

struct Link {
    Lane *lane;
    int number;
};

struct Lane {
    cudaStream_t stream;
    unsigned *host;
    unsigned *device;
    size_t count;
    std::vector<unsigned> want;
    Link link[links];
    std::vector<int> order;
    std::atomic<int> wrong_status{0};
};

// Must not call CUDA.
static void on_host(Lane *lane, int number) {
    lane->order.push_back(number);
    for (size_t at = 0; at < lane->count; ++at) {
        lane->host[at] ^= static_cast<unsigned>(number) * 0x01010101u;
    }
}

static void host_function(void *data) {
    Link *link = static_cast<Link *>(data);
    on_host(link->lane, link->number);
}

static void stream_callback(cudaStream_t stream, cudaError_t status, void *data) {
    Link *link = static_cast<Link *>(data);
    if (status != cudaSuccess || stream != link->lane->stream) {
        ++link->lane->wrong_status;
    }
    on_host(link->lane, link->number);
}

static void enqueue(Lane &lane, int number) {
    size_t bytes = lane.count * sizeof(unsigned);
    CUDA_CHECK(cudaMemcpyAsync(lane.device, lane.host, bytes, cudaMemcpyHostToDevice, lane.stream));
    triple<<<blocks_for(lane.count, 128), 128, 0, lane.stream>>>(lane.device, number, lane.count);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaMemcpyAsync(lane.host, lane.device, bytes, cudaMemcpyDeviceToHost, lane.stream));
    lane.link[number] = {&lane, number};
    if (number % 3 == 2) {
        CUDA_CHECK(cudaStreamAddCallback(lane.stream, stream_callback, &lane.link[number], 0));
    } else {
        CUDA_CHECK(cudaLaunchHostFunc(lane.stream, host_function, &lane.link[number]));
    }
    for (unsigned &value : lane.want) {
        value = (value * 3 + number) ^ (static_cast<unsigned>(number) * 0x01010101u);
    }
}

// What calls of CUDA return in a host function.
struct Calls {
    cudaStream_t stream;
    cudaEvent_t event;
    void *pinned, *device;
    cudaError_t refused[8], allowed[3];
    std::atomic<bool> made{false};
};

static void call_cuda(void *data) {
    Calls *calls = static_cast<Calls *>(data);
    void *memory = nullptr;
    unsigned word = 0;
    cudaEvent_t event = nullptr;
    cudaError_t refused[] = {
        cudaMalloc(&memory, 64 << 20),
        cudaFree(calls->device),
        cudaFreeHost(calls->pinned),
        cudaMemcpy(&word, calls->device, sizeof word, cudaMemcpyDeviceToHost),
        cudaStreamSynchronize(calls->stream),
        cudaStreamQuery(calls->stream),
        cudaDeviceSynchronize(),
        cudaEventCreate(&event),
    };
    int version = 0;
    cudaError_t allowed[] = {cudaEventQuery(calls->event), cudaEventSynchronize(calls->event), cudaDriverGetVersion(&version)};
    std::copy(std::begin(refused), std::end(refused), calls->refused);
    std::copy(std::begin(allowed), std::end(allowed), calls->allowed);
    cudaGetLastError();
    calls->made = true;
}

static void call_cuda_back(cudaStream_t, cudaError_t, void *data) { call_cuda(data); }

static void check_calls(Program &program, const char *where, Calls &calls) {
    while (!calls.made) {
        std::this_thread::yield();
    }
    calls.made = false;
    for (cudaError_t error : calls.refused) {
        program.expect_equal(where, static_cast<int>(error), static_cast<int>(cudaErrorNotPermitted));
    }
    for (cudaError_t error : calls.allowed) {
        program.expect_equal(where, static_cast<int>(error), static_cast<int>(cudaSuccess));
    }
}

static void run_calls(Program &program) {
    Calls calls;
    CUDA_CHECK(cudaStreamCreate(&calls.stream));
    CUDA_CHECK(cudaEventCreate(&calls.event));
    CUDA_CHECK(cudaMallocHost(&calls.pinned, 4096));
    CUDA_CHECK(cudaMalloc(&calls.device, 4096));
    CUDA_CHECK(cudaEventRecord(calls.event, calls.stream));
    CUDA_CHECK(cudaStreamSynchronize(calls.stream));

    CUDA_CHECK(cudaLaunchHostFunc(calls.stream, call_cuda, &calls));
    check_calls(program, "a call of a host function", calls);
    CUDA_CHECK(cudaStreamAddCallback(calls.stream, call_cuda_back, &calls, 0));
    check_calls(program, "a call of a callback", calls);

    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamBeginCapture(calls.stream, cudaStreamCaptureModeThreadLocal));
    CUDA_CHECK(cudaLaunchHostFunc(calls.stream, call_cuda, &calls));
    CUDA_CHECK(cudaStreamEndCapture(calls.stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(exec, calls.stream));
    check_calls(program, "a call of a graph's host function", calls);
    CUDA_CHECK(cudaStreamSynchronize(calls.stream));
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));

    cudaUserObject_t object;
    CUDA_CHECK(cudaUserObjectCreate(&object, &calls, call_cuda, 1, cudaUserObjectNoDestructorSync));
    CUDA_CHECK(cudaUserObjectRelease(object));
    check_calls(program, "a call of a destructor", calls);

    CUDA_CHECK(cudaFree(calls.device));
    CUDA_CHECK(cudaFreeHost(calls.pinned));
    CUDA_CHECK(cudaEventDestroy(calls.event));
    CUDA_CHECK(cudaStreamDestroy(calls.stream));
}

int main(int argc, char **argv) {
    Program program("callbacks", "runs host functions between kernels and copies", "elements", 10000, 1, 1L << 28);
    program.parse(argc, argv);
    Random random(program.seed());
    Lane lanes[2];
    for (Lane &lane : lanes) {
        lane.count = static_cast<size_t>(program.size());
        CUDA_CHECK(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaMallocHost(&lane.host, lane.count * sizeof(unsigned)));
        CUDA_CHECK(cudaMalloc(&lane.device, lane.count * sizeof(unsigned)));
        lane.want.resize(lane.count);
        for (size_t at = 0; at < lane.count; ++at) {
            lane.host[at] = lane.want[at] = static_cast<unsigned>(random.next());
        }
    }
    while (program.next_round()) {
        for (Lane &lane : lanes) {
            lane.order.clear();
        }
        for (int number = 0; number < links; ++number) {
            enqueue(lanes[0], number);
            enqueue(lanes[1], number);
        }
        for (Lane &lane : lanes) {
            // A host function is part of its stream: synchronizing waits for it.
            CUDA_CHECK(cudaStreamSynchronize(lane.stream));
            program.expect_equal("the host functions run", static_cast<int>(lane.order.size()), links);
            for (size_t at = 0; at < lane.order.size(); ++at) {
                program.expect(lane.order[at] == static_cast<int>(at), "the host functions ran out of order");
            }
            program.expect(lane.wrong_status == 0, "a callback received a wrong status or stream");
            program.digest(lane.host, lane.count * sizeof(unsigned));
            program.expect_equal("the values", lane.host, lane.want.data(), lane.count);
        }
        run_calls(program);
    }
    for (Lane &lane : lanes) {
        CUDA_CHECK(cudaFree(lane.device));
        CUDA_CHECK(cudaFreeHost(lane.host));
        CUDA_CHECK(cudaStreamDestroy(lane.stream));
    }
    return program.finish();
}
