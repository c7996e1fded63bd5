// Times the runtime's cheap calls: nanoseconds per call, one line each.
// Run over either libcudart.so.13 (compare-with-nvidia.sh does).

#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>

__global__ void empty() {}
__global__ void three(int *, int, int) {}

template <typename Call> static void time(const char *name, int count, Call call) {
    for (int i = 0; i < 100; ++i)
        call();
    cudaDeviceSynchronize();
    double best = 1e30;
    for (int round = 0; round < 5; ++round) {
        auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < count; ++i)
            call();
        std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
        cudaDeviceSynchronize();
        if (taken.count() / count < best)
            best = taken.count() / count;
    }
    std::printf("%-28s %9.1f ns\n", name, best);
}

int main() {
    int device;
    cudaStream_t stream;
    cudaEvent_t event;
    cudaDeviceProp prop;
    cudaFree(nullptr);
    cudaStreamCreate(&stream);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    time("cudaGetDevice", 1000000, [&] { cudaGetDevice(&device); });
    time("cudaSetDevice", 1000000, [&] { cudaSetDevice(0); });
    time("cudaGetLastError", 1000000, [&] { cudaGetLastError(); });
    time("cudaGetDeviceProperties", 10000, [&] { cudaGetDeviceProperties(&prop, 0); });
    time("cudaDeviceGetAttribute", 100000, [&] { cudaDeviceGetAttribute(&device, cudaDevAttrWarpSize, 0); });
    time("cudaEventRecord", 10000, [&] { cudaEventRecord(event, stream); });
    time("cudaStreamQuery", 10000, [&] { cudaStreamQuery(stream); });
    time("launch, no argument", 900, [&] { empty<<<1, 1, 0, stream>>>(); });
    time("launch, three arguments", 900, [&] { three<<<1, 1, 0, stream>>>(nullptr, 1, 2); });
    return 0;
}
