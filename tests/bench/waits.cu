// What seeing the end of a stream's work takes natively, by several ways:
//
//   waits
//
// One line for each: microseconds, medians, for one launch and for a graph of a
// hundred, until the end is seen by cudaStreamSynchronize, by asking for an
// event or for the stream over and over, and by a word of host memory that the
// stream writes behind the work.

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

void check(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        std::fprintf(stderr, "waits: %s: %s\n", what, cudaGetErrorString(error));
        std::exit(1);
    }
}
#define CHECK(call) check(call, #call)

__global__ void nothing() {}

double median_us(const std::function<void()> &work) {
    std::vector<double> times;
    for (int round = 0; round < 400; ++round) {
        CHECK(cudaDeviceSynchronize());
        auto began = Clock::now();
        work();
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

template <typename F> F entry(const char *name) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
    return reinterpret_cast<F>(found);
}

volatile unsigned *word;

}  // namespace

int main() {
    CHECK(cudaFree(nullptr));
    auto write = entry<CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned)>("cuStreamWriteValue32");
    auto batch = entry<CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned)>("cuStreamBatchMemOp");
    void *memory = std::aligned_alloc(4096, 4096);
    CHECK(cudaHostRegister(memory, 4096, cudaHostRegisterDefault));
    word = static_cast<volatile unsigned *>(memory);
    auto address = reinterpret_cast<CUdeviceptr>(memory);
    cudaStream_t own;
    cudaEvent_t event;
    CHECK(cudaStreamCreate(&own));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CHECK(cudaStreamBeginCapture(own, cudaStreamCaptureModeGlobal));
    for (int at = 0; at < 100; ++at) {
        nothing<<<1, 32, 0, own>>>();
    }
    CHECK(cudaStreamEndCapture(own, &graph));
    CHECK(cudaGraphInstantiate(&instance, graph, 0));

    auto written = [&](cudaStream_t stream) {
        *word = 1;
        if (write(stream, address, 0, 0)) {
            std::exit(1);
        }
        while (*word) {
        }
    };
    struct Way {
        const char *name;
        std::function<void(cudaStream_t)> wait;
    } ways[] = {
        {"synchronize", [](cudaStream_t stream) { CHECK(cudaStreamSynchronize(stream)); }},
        {"stream asked", [](cudaStream_t stream) { while (cudaStreamQuery(stream) == cudaErrorNotReady); }},
        {"event asked",
         [&](cudaStream_t stream) {
             CHECK(cudaEventRecord(event, stream));
             while (cudaEventQuery(event) == cudaErrorNotReady);
         }},
        {"word", [&](cudaStream_t stream) { written(stream); }},
        {"word of a batch",
         [&](cudaStream_t stream) {
             CUstreamBatchMemOpParams one = {};
             one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
             one.writeValue.address = address;
             *word = 1;
             if (batch(stream, 1, &one, 0)) {
                 std::exit(1);
             }
             while (*word) {
             }
         }},
    };
    for (int times = 0; times < 5; ++times) {
        for (const Way &way : ways) {
            double legacy = median_us([&] {
                nothing<<<1, 32>>>();
                way.wait(nullptr);
            });
            double stream = median_us([&] {
                nothing<<<1, 32, 0, own>>>();
                way.wait(own);
            });
            double graphs = median_us([&] {
                CHECK(cudaGraphLaunch(instance, own));
                way.wait(own);
            });
            std::printf("%-22s launch in the legacy stream %6.2f, in a stream %6.2f, graph %6.2f\n", way.name, legacy, stream, graphs);
        }
        CHECK(cudaDeviceSynchronize());
    }
    for (auto [name, call] : std::vector<std::pair<const char *, std::function<void()>>>{
             {"cudaStreamQuery", [&] { cudaStreamQuery(own); }},
             {"cudaEventRecord", [&] { cudaEventRecord(event, own); }},
             {"cuStreamWriteValue32", [&] { write(own, address, 0, 0); }},
         }) {
        std::printf("%-22s %6.2f\n", name, median_us(call));
    }
    return 0;
}
