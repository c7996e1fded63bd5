// managedVariables: __managed__ variables, shared by program and kernels.
//
// A counter, an array of odd size, a pointer to managed memory; by name, by
// address and through symbols; in launches of two streams, a graph and copies;
// in slow host functions, while kernels are loaded and launches queue up behind
// them.

#include "common/check.h"

#include <vector>

constexpr size_t VALUES = 70001;

__managed__ int counter = 5;
__managed__ float values[VALUES] = {1.0f, 2.0f};
__device__ __managed__ double *sums;
__device__ int plain = 7;
__managed__ unsigned handed = 3;

__global__ void count(int by) {
    atomicAdd(&counter, by);
    if (threadIdx.x + blockIdx.x == 0) {
        plain += by;
    }
}

__global__ void scale(float *first, size_t number, float factor) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < number) {
        first[at] = first[at] * factor + static_cast<float>(at % 17);
    }
}

__global__ void add_up() {
    double total = 0;
    for (size_t at = threadIdx.x; at < VALUES; at += blockDim.x) {
        total += values[at];
    }
    sums[threadIdx.x] = total;
}

__global__ void hand(unsigned amount) { handed = handed * 5 + amount; }

// First used by run_behind_functions.
__global__ void hand_late(unsigned amount) { handed = handed * 7 + amount; }

static void run_by_name(Program &program) {
    program.expect(counter == 5 && values[0] == 1.0f && values[1] == 2.0f && values[2] == 0.0f, "initial values are wrong");
    count<<<4, 64>>>(1);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect(counter == 5 + 256, "the kernel's count is wrong");
    counter = 1000;
    count<<<1, 32>>>(2);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect(counter == 1064, "a count from the program's value is wrong");
    int found = 0;
    CUDA_CHECK(cudaMemcpyFromSymbol(&found, plain, sizeof found));
    program.expect(found == 7 + 1 + 2, "the adjacent variable is wrong");
}

static void run_by_address(Program &program, Random &random) {
    std::vector<float> want(VALUES);
    for (size_t at = 0; at < VALUES; ++at) {
        values[at] = want[at] = static_cast<float>(random.below(100));
    }
    cudaStream_t streams[2];
    for (cudaStream_t &stream : streams) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    // Each half in a separate stream, with its address as a parameter.
    size_t half = VALUES / 2;
    scale<<<(half + 255) / 256, 256, 0, streams[0]>>>(values, half, 3.0f);
    scale<<<(VALUES - half + 255) / 256, 256, 0, streams[1]>>>(values + half, VALUES - half, 2.0f);
    LAUNCH_CHECK();
    for (size_t at = 0; at < VALUES; ++at) {
        want[at] = at < half ? want[at] * 3.0f + at % 17 : want[at] * 2.0f + (at - half) % 17;
    }
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect_equal("both halves", values, want.data(), VALUES);
    program.digest(values, sizeof values);

    void *address = nullptr;
    size_t size = 0;
    CUDA_CHECK(cudaGetSymbolAddress(&address, values));
    CUDA_CHECK(cudaGetSymbolSize(&size, values));
    cudaPointerAttributes attributes{};
    CUDA_CHECK(cudaPointerGetAttributes(&attributes, address));
    program.expect(address == values && size == sizeof values &&
                                               attributes.type == cudaMemoryTypeManaged &&
                                               attributes.hostPointer == attributes.devicePointer, "one address for both is wrong");

    // Copies include the program's last writes.
    values[3] = want[3] = -4.0f;
    float *device = nullptr;
    CUDA_CHECK(cudaMalloc(&device, sizeof values));
    CUDA_CHECK(cudaMemcpy(device, values, sizeof values, cudaMemcpyDefault));
    std::vector<float> copied(VALUES);
    CUDA_CHECK(cudaMemcpy(copied.data(), device, sizeof values, cudaMemcpyDeviceToHost));
    program.expect_equal("a copy", copied.data(), want.data(), VALUES);
    // A copy of managed memory is complete when the call returns.
    CUDA_CHECK(cudaMemset(values + 10, 0, 40));
    program.expect(values[10] == 0.0f && values[19] == 0.0f && values[20] == want[20], "a memset is wrong");
    int other = 77;
    CUDA_CHECK(cudaMemcpyToSymbol(counter, &other, sizeof other));
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect(counter == 77, "a copy to a symbol is wrong");

    // By a graph, launched twice; the program writes a word in between.
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
    count<<<1, 1, 0, streams[0]>>>(3);
    CUDA_CHECK(cudaStreamEndCapture(streams[0], &graph));
    CUDA_CHECK(cudaGraphInstantiate(&ready, graph, 0));
    for (int turn = 0; turn < 2; ++turn) {
        counter += 10;
        CUDA_CHECK(cudaGraphLaunch(ready, streams[0]));
        CUDA_CHECK(cudaStreamSynchronize(streams[0]));
    }
    program.expect(counter == 77 + 2 * 13, "a graph's count is wrong");
    CUDA_CHECK(cudaGraphExecDestroy(ready));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaFree(device));
    for (cudaStream_t stream : streams) {
        CUDA_CHECK(cudaStreamDestroy(stream));
    }
}

static void run_pointer(Program &program) {
    constexpr int THREADS = 64;
    CUDA_CHECK(cudaMallocManaged(&sums, THREADS * sizeof(double)));
    add_up<<<1, THREADS>>>();
    LAUNCH_CHECK();
    CUDA_CHECK(cudaDeviceSynchronize());
    double total = 0, want = 0;
    for (int thread = 0; thread < THREADS; ++thread) {
        total += sums[thread];
    }
    for (float value : values) {
        want += value;
    }
    program.expect(total == want, "a managed pointer in managed memory is wrong");
    CUDA_CHECK(cudaFree(sums));
}

struct Function {
    unsigned found;
    unsigned left;
    int runs;
};

// A slowly computed value that differs for each argument.
static unsigned changed(unsigned first) {
    unsigned hash = first;
    for (unsigned at = 0; at < 20000000; ++at) {
        hash = (hash ^ at) * 16777619u;
    }
    return hash;
}

// By the time it writes the variable, the work behind it has been queued.
static void change_handed(void *data) {
    Function *self = static_cast<Function *>(data);
    self->found = handed;
    self->left = changed(self->found);
    handed = self->left;
    ++self->runs;
}

// The function sees the writes of the kernel before it, and all work behind it the function's.
static void run_behind_functions(Program &program, int launches) {
    cudaStream_t stream = nullptr;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Function function{};
    unsigned want = handed;

    hand<<<1, 1, 0, stream>>>(1);
    LAUNCH_CHECK();
    want = want * 5 + 1;
    CUDA_CHECK(cudaLaunchHostFunc(stream, change_handed, &function));
    hand_late<<<1, 1, 0, stream>>>(2);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect_equal("a function before a kernel that is loaded", function.runs, 1);
    program.expect_equal("the variable in the function", function.found, want);
    want = function.left * 7 + 2;
    program.expect_equal("the variable after a kernel that was loaded", static_cast<unsigned>(handed), want);

    // More than a driver queues, and a second function behind all of it.
    Function second{};
    CUDA_CHECK(cudaLaunchHostFunc(stream, change_handed, &function));
    for (int number = 0; number < launches; ++number) {
        hand<<<1, 1, 0, stream>>>(static_cast<unsigned>(number));
        LAUNCH_CHECK();
    }
    CUDA_CHECK(cudaLaunchHostFunc(stream, change_handed, &second));
    hand<<<1, 1, 0, stream>>>(9);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect_equal("a function before many launches", function.runs, 2);
    program.expect_equal("the variable in it", function.found, want);
    want = function.left;
    for (int number = 0; number < launches; ++number) {
        want = want * 5 + static_cast<unsigned>(number);
    }
    program.expect_equal("the variable in a function behind them", second.found, want);
    program.expect_equal("the variable at last", static_cast<unsigned>(handed), second.left * 5 + 9);
    CUDA_CHECK(cudaStreamDestroy(stream));
}

__global__ void count() { ++counter; }

// Variables outlive a reset of the device, with their contents.
static void run_reset(Program &program) {
    counter = 40;
    count<<<1, 1>>>();
    LAUNCH_CHECK();
    CUDA_CHECK(cudaDeviceReset());
    program.expect(counter == 41, "a reset changed a variable that a kernel wrote");
    counter = 50;
    count<<<1, 1>>>();
    LAUNCH_CHECK();
    CUDA_CHECK(cudaDeviceSynchronize());
    program.expect(counter == 51, "a variable does not work after a reset");
}

int main(int argc, char **argv) {
    Program program("managedVariables", "shares managed variables between host and kernels", "rounds", 1, 1, 1);
    program.parse(argc, argv);
    int supported = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrManagedMemory, 0));
    if (!supported) {
        program.die("the device has no managed memory");
    }
    Random random(program.seed());
    run_by_name(program);
    while (program.next_round()) {
        run_by_address(program, random);
        run_pointer(program);
        run_behind_functions(program, 3000);
    }
    run_reset(program);
    return program.finish();
}
