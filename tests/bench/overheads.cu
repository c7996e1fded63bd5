// What single operations cost a program: the same binary against any CUDA
// runtime, so that a remote GPU and a native one are measured alike.
//
//   overheads [--bulk BYTES] [--managed BYTES] [--count N] [--schedule FLAG] [--together] [NAME]...
//
// All measurements, or those named.
//
// One JSON line each: {"name":…,"unit":…,"value":…}, the value being the median
// of several rounds. Those named _10k measure nothing themselves: they do N (10000)
// operations, and the library's counters tell what crossed. launches
// times N of them, fixed_work N rounds of copies and a kernel. With --together,
// shared_work, fixed_work and waiting say "ready" and begin when their standard input
// tells them to, so that several processes measure the same seconds; waiting also ends
// only then. --schedule is cudaDeviceSchedule*: how threads wait.

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <sys/resource.h>

namespace {

using Clock = std::chrono::steady_clock;

// Bytes of the bulk copies.
size_t bulk = 64u << 20;
// Bytes of managed memory.
size_t managed = 256u << 20;
// Operations of the loops whose crossings are counted.
long count_of_loop = 10000;
// How threads wait.
unsigned schedule = cudaDeviceScheduleAuto;
// Is shared_work to begin with others?
bool together = false;

void check(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        std::fprintf(stderr, "overheads: %s: %s\n", what, cudaGetErrorString(error));
        std::exit(1);
    }
}
#define CHECK(call) check((call), #call)

__global__ void nothing() {}

__global__ void arithmetic(float *out, int rounds) {
    float a = threadIdx.x * 1e-3f, b = 1.0001f, c = blockIdx.x * 1e-5f;
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int step = 0; step < 32; ++step) {
            a = a * b + c;
        }
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a;
}

// out = a + b, which may be the same memory.
__global__ void sum(float *out, const float *a, const float *b, size_t count) {
    for (size_t at = blockIdx.x * size_t{blockDim.x} + threadIdx.x; at < count; at += size_t{gridDim.x} * blockDim.x) {
        out[at] = a[at] + b[at];
    }
}

double seconds_of(const std::function<void()> &work) {
    auto start = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// Median over rounds of the seconds that one of `count` operations takes.
double each(int rounds, int count, const std::function<void()> &before, const std::function<void()> &operation,
            const std::function<void()> &after) {
    std::vector<double> values;
    for (int round = 0; round < rounds; ++round) {
        before();
        values.push_back(seconds_of([&] {
                             for (int at = 0; at < count; ++at) {
                                 operation();
                             }
                         }) /
                         count);
        after();
    }
    return median(values);
}

void settle() { CHECK(cudaDeviceSynchronize()); }

void launch() {
    nothing<<<1, 32>>>();
    CHECK(cudaGetLastError());
}

// Cost of a launch to the thread that makes it, while the GPU keeps up.
double launch_issue() {
    return each(201, 200, settle, launch, settle) * 1e6;
}

// Launches a second, over a run long enough to fill every queue.
double launch_throughput() {
    std::vector<double> rates;
    for (int round = 0; round < 5; ++round) {
        settle();
        const int count = 50000;
        rates.push_back(count / seconds_of([&] {
                            for (int at = 0; at < count; ++at) {
                                launch();
                            }
                            settle();
                        }));
    }
    return median(rates);
}

// Waits by asking again and again, as the worker of a remote program does,
// which has others to hear meanwhile.
void ask_until_over(cudaStream_t stream) {
    cudaError_t error;
    while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady) {
    }
    CHECK(error);
}

void wait(cudaStream_t stream) { CHECK(cudaStreamSynchronize(stream)); }

double launch_sync(void (*until_over)(cudaStream_t)) {
    auto work = [&] {
        launch();
        until_over(nullptr);
    };
    return each(21, 500, settle, work, settle) * 1e6;
}

// Runs for so long by the GPU's own clock.
__global__ void busy(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}

// A launch and the wait for a kernel that takes some milliseconds.
double wait_for(unsigned milliseconds) {
    auto work = [&] {
        busy<<<1, 1>>>(milliseconds * 1000000ull);
        CHECK(cudaGetLastError());
        wait(nullptr);
    };
    return each(5, 100 / milliseconds + 4, settle, work, settle) * 1e6;
}

double stream_sync_idle() {
    return each(21, 1000, settle, [] { CHECK(cudaStreamSynchronize(nullptr)); }, settle) * 1e6;
}

double event_record() {
    cudaEvent_t event;
    CHECK(cudaEventCreate(&event));
    double value = each(101, 200, settle, [&] { CHECK(cudaEventRecord(event)); }, settle) * 1e6;
    CHECK(cudaEventDestroy(event));
    return value;
}

double event_create_destroy() {
    auto work = [] {
        cudaEvent_t event;
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        CHECK(cudaEventDestroy(event));
    };
    return each(21, 500, settle, work, settle) * 1e6;
}

double stream_create_destroy() {
    auto work = [] {
        cudaStream_t stream;
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK(cudaStreamDestroy(stream));
    };
    return each(11, 100, settle, work, settle) * 1e6;
}

double memset_4k() {
    void *memory;
    CHECK(cudaMalloc(&memory, 4096));
    double value = each(101, 200, settle, [&] { CHECK(cudaMemsetAsync(memory, 0, 4096)); }, settle) * 1e6;
    CHECK(cudaFree(memory));
    return value;
}

// A synchronous copy of pageable memory.
double copy(size_t bytes, cudaMemcpyKind kind) {
    std::vector<char> host(bytes);
    void *memory;
    CHECK(cudaMalloc(&memory, bytes));
    CHECK(cudaMemset(memory, 1, bytes));
    auto work = [&] {
        if (kind == cudaMemcpyHostToDevice) {
            CHECK(cudaMemcpy(memory, host.data(), bytes, kind));
        } else {
            CHECK(cudaMemcpy(host.data(), memory, bytes, kind));
        }
    };
    double value = each(21, 500, settle, work, settle) * 1e6;
    CHECK(cudaFree(memory));
    return value;
}

// Memory of the stream's pool, taken and given back without a wait.
double malloc_async(size_t bytes) {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    auto work = [&] {
        void *memory;
        CHECK(cudaMallocAsync(&memory, bytes, stream));
        CHECK(cudaFreeAsync(memory, stream));
    };
    // The pool keeps what it has over the waits between rounds.
    int device = 0;
    cudaMemPool_t pool;
    unsigned long long most = ~0ull, none = 0;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetDefaultMemPool(&pool, device));
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most));
    double value = each(21, 500, settle, work, settle) * 1e6;
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &none));
    CHECK(cudaStreamDestroy(stream));
    return value;
}

// The driver's functions for memory that a program maps itself.
struct Mapping {
    static constexpr size_t bytes = 2u << 20;
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemCreate) create;
    decltype(&cuMemMap) map;
    decltype(&cuMemSetAccess) allow;
    decltype(&cuMemUnmap) unmap;
    decltype(&cuMemRelease) release;
    decltype(&cuMemAddressFree) free;
    CUdeviceptr address = 0;
    CUmemAllocationProp properties = {};
    CUmemAccessDesc access = {};

    Mapping() {
        find("cuMemAddressReserve", reserve);
        find("cuMemCreate", create);
        find("cuMemMap", map);
        find("cuMemSetAccess", allow);
        find("cuMemUnmap", unmap);
        find("cuMemRelease", release);
        find("cuMemAddressFree", free);
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        CHECK(cudaGetDevice(&properties.location.id));
        access.location = properties.location;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        driver(reserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
    }

    ~Mapping() { driver(free(address, bytes), "cuMemAddressFree"); }

    // From nothing to memory in use, and back.
    void cycle() {
        CUmemGenericAllocationHandle handle;
        driver(create(&handle, bytes, &properties, 0), "cuMemCreate");
        driver(map(address, bytes, 0, handle, 0), "cuMemMap");
        driver(allow(address, bytes, &access, 1), "cuMemSetAccess");
        driver(unmap(address, bytes), "cuMemUnmap");
        driver(release(handle), "cuMemRelease");
    }

    template <typename F> static void find(const char *name, F &function) {
        void *found = nullptr;
        cudaDriverEntryPointQueryResult result;
        CHECK(cudaGetDriverEntryPointByVersion(name, &found, CUDART_VERSION, cudaEnableDefault, &result));
        if (result != cudaDriverEntryPointSuccess) {
            driver(CUDA_ERROR_NOT_FOUND, name);
        }
        function = reinterpret_cast<F>(found);
    }

    static void driver(CUresult result, const char *what) {
        if (result != CUDA_SUCCESS) {
            std::fprintf(stderr, "overheads: %s: error %d\n", what, static_cast<int>(result));
            std::exit(1);
        }
    }
};

double map_2m() {
    Mapping mapping;
    auto work = [&] { mapping.cycle(); };
    for (int warm = 0; warm < 10; ++warm) {
        work();
    }
    return each(21, 20, settle, work, settle) * 1e6;
}

__global__ void sum(const unsigned *values, size_t count, unsigned *total) {
    unsigned own = 0;
    for (size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < count;
         at += static_cast<size_t>(gridDim.x) * blockDim.x) {
        own += values[at];
    }
    atomicAdd(total, own);
}

// A sum over managed memory that the program has just written, with the result read
// by the program: the time from the launch to the result. `written` says whether the
// program writes before each sum.
double managed_sum(bool written) {
    unsigned *values, *total;
    size_t count = managed / sizeof *values;
    CHECK(cudaMallocManaged(&values, managed));
    CHECK(cudaMallocManaged(&total, sizeof *total));
    std::fill(values, values + count, 1u);
    std::vector<double> rounds;
    for (int round = 0; round < 6; ++round) {
        if (written) {
            std::fill(values, values + count, round + 1u);
        }
        unsigned want = static_cast<unsigned>(written ? count * (round + 1u) : count);
        rounds.push_back(seconds_of([&] {
            *total = 0;
            sum<<<1024, 256>>>(values, count, total);
            CHECK(cudaGetLastError());
            CHECK(cudaDeviceSynchronize());
            if (*total != want) {
                std::fprintf(stderr, "overheads: the sum is %u, not %u\n", *total, want);
                std::exit(1);
            }
        }));
    }
    CHECK(cudaFree(values));
    CHECK(cudaFree(total));
    // The first round loads the kernel.
    rounds.erase(rounds.begin());
    return median(rounds) * 1e6;
}

// A kernel on managed memory that the other of two GPUs has, or, with `prefetched`, had.
double managed_pair(bool prefetched) {
    unsigned *values, *total;
    size_t count = managed / sizeof *values;
    CHECK(cudaMallocManaged(&values, managed));
    CHECK(cudaMemset(values, 1, managed));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaSetDevice(1));
    CHECK(cudaMalloc(&total, sizeof *total));
    auto launch = [&] {
        sum<<<1024, 256>>>(values, count, total);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
    };
    double moved = 0;
    if (prefetched) {
        moved = seconds_of([&] {
            CHECK(cudaMemPrefetchAsync(values, managed, cudaMemLocation{cudaMemLocationTypeDevice, 1}, 0));
            CHECK(cudaDeviceSynchronize());
        });
        std::fprintf(stderr, "overheads: the prefetch took %.2f ms\n", moved * 1e3);
    }
    std::vector<double> rounds;
    for (int round = 0; round < 6; ++round) {
        CHECK(cudaMemset(total, 0, sizeof *total));
        CHECK(cudaDeviceSynchronize());
        rounds.push_back(seconds_of(launch));
        unsigned got = 0;
        CHECK(cudaMemcpy(&got, total, sizeof got, cudaMemcpyDefault));
        if (got != static_cast<unsigned>(count * 0x01010101u)) {
            std::fprintf(stderr, "overheads: the sum is %u\n", got);
            std::exit(1);
        }
    }
    CHECK(cudaFree(total));
    CHECK(cudaFree(values));
    CHECK(cudaSetDevice(0));
    // The first round loads the kernel.
    rounds.erase(rounds.begin());
    return median(rounds) * 1e6;
}

double malloc_free_2m() {
    auto work = [] {
        void *memory;
        CHECK(cudaMalloc(&memory, 2u << 20));
        CHECK(cudaFree(memory));
    };
    for (int warm = 0; warm < 10; ++warm) {
        work();
    }
    return each(21, 50, settle, work, settle) * 1e6;
}

// Memory of the program for bulk copies.
struct Bulk {
    void *memory;
    char *host;
    bool pinned;

    explicit Bulk(bool pinned) : pinned(pinned) {
        CHECK(cudaMalloc(&memory, bulk));
        if (pinned) {
            CHECK(cudaMallocHost(reinterpret_cast<void **>(&host), bulk));
        } else {
            host = static_cast<char *>(std::malloc(bulk));
        }
        // Not zeros, and every page present.
        unsigned state = 1;
        for (size_t at = 0; at + 4 <= bulk; at += 4) {
            state = state * 1664525u + 1013904223u;
            std::memcpy(host + at, &state, 4);
        }
        CHECK(cudaMemcpy(memory, host, bulk, cudaMemcpyHostToDevice));
    }

    ~Bulk() {
        if (pinned) {
            CHECK(cudaFreeHost(host));
        } else {
            std::free(host);
        }
        CHECK(cudaFree(memory));
    }

    double seconds(cudaMemcpyKind kind) {
        settle();
        return seconds_of([&] {
            if (kind == cudaMemcpyHostToDevice) {
                CHECK(cudaMemcpy(memory, host, bulk, kind));
            } else {
                CHECK(cudaMemcpy(host, memory, bulk, kind));
            }
            settle();
        });
    }
};

// Bulk copies, in bytes a second.
double copy_bulk(cudaMemcpyKind kind, bool pinned) {
    Bulk all(pinned);
    std::vector<double> rates;
    for (int round = 0; round < 9; ++round) {
        rates.push_back(bulk / all.seconds(kind));
    }
    return median(rates);
}

// The rate of pageable copies as a multiple of memcpy's by this thread, in turns.
double copy_beside_memcpy(cudaMemcpyKind kind) {
    Bulk all(false);
    std::vector<char> other(bulk, 1);
    std::vector<double> ratios;
    for (int round = 0; round < 21; ++round) {
        double copied = all.seconds(kind);
        ratios.push_back(seconds_of([&] { std::memcpy(other.data(), all.host, bulk); }) / copied);
    }
    return median(ratios);
}

// Copies inside the GPU, in bytes a second that are read and written.
double copy_inside() {
    char *from, *to;
    CHECK(cudaMalloc(reinterpret_cast<void **>(&from), bulk));
    CHECK(cudaMalloc(reinterpret_cast<void **>(&to), bulk));
    CHECK(cudaMemset(from, 1, bulk));
    // Enough of them that what begins and ends the row does not count.
    constexpr int count = 20;
    auto copies = [&] {
        for (int at = 0; at < count; ++at) {
            CHECK(cudaMemcpyAsync(to, from, bulk, cudaMemcpyDeviceToDevice, 0));
        }
        settle();
    };
    double value = 2.0 * bulk * count / each(9, 1, settle, copies, settle);
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
    return value;
}

// Memory of the program that is registered as long as this lives.
class Registered {
public:
    explicit Registered(size_t bytes) {
        CHECK(posix_memalign(&host_, 4096, bytes) ? cudaErrorMemoryAllocation : cudaSuccess);
        std::memset(host_, 1, bytes);
        CHECK(cudaHostRegister(host_, bytes, cudaHostRegisterMapped));
    }
    Registered(const Registered &) = delete;
    Registered &operator=(const Registered &) = delete;
    ~Registered() {
        CHECK(cudaHostUnregister(host_));
        std::free(host_);
    }
    float *host() const { return static_cast<float *>(host_); }
    float *device() const {
        void *address;
        CHECK(cudaHostGetDevicePointer(&address, host_, 0));
        return static_cast<float *>(address);
    }

private:
    void *host_;
};

constexpr size_t registered_bytes = 64 << 20;

// A copy of 64 MiB from or to registered memory, with the wait for it: bytes a second.
double registered_copy(cudaMemcpyKind kind) {
    Registered memory(registered_bytes);
    void *device;
    CHECK(cudaMalloc(&device, registered_bytes));
    CHECK(cudaMemset(device, 1, registered_bytes));
    bool is_to_device = kind == cudaMemcpyHostToDevice;
    auto copy = [&] {
        CHECK(cudaMemcpyAsync(is_to_device ? device : memory.host(), is_to_device ? memory.host() : device, registered_bytes, kind, 0));
        settle();
    };
    copy();
    double value = registered_bytes / each(9, 4, settle, copy, settle);
    CHECK(cudaFree(device));
    return value;
}

// Four streams, each of which computes a quarter of 64 MiB and copies it to registered memory.
double registered_streams() {
    constexpr int count = 4;
    constexpr size_t part = registered_bytes / count, floats = part / sizeof(float);
    Registered memory(registered_bytes);
    float *device;
    cudaStream_t streams[count];
    CHECK(cudaMalloc(reinterpret_cast<void **>(&device), registered_bytes));
    for (cudaStream_t &stream : streams) {
        CHECK(cudaStreamCreate(&stream));
    }
    auto work = [&] {
        for (int at = 0; at < count; ++at) {
            sum<<<256, 256, 0, streams[at]>>>(device + at * floats, device + at * floats, device + at * floats, floats);
            CHECK(cudaMemcpyAsync(memory.host() + at * floats, device + at * floats, part, cudaMemcpyDeviceToHost, streams[at]));
        }
        settle();
    };
    work();
    double value = each(9, 4, settle, work, settle) * 1e6;
    for (cudaStream_t stream : streams) {
        CHECK(cudaStreamDestroy(stream));
    }
    CHECK(cudaFree(device));
    return value;
}

// A kernel that adds two arrays of 16 MiB into a third, all in registered memory.
double registered_mapped() {
    constexpr size_t bytes = 16 << 20, floats = bytes / sizeof(float);
    Registered a(bytes), b(bytes), c(bytes);
    float *from = a.device(), *and_from = b.device(), *to = c.device();
    auto work = [&] {
        sum<<<256, 256>>>(to, from, and_from, floats);
        settle();
    };
    work();
    return each(9, 4, settle, work, settle) * 1e6;
}

// A hundred kernels, captured once, from launch to end.
double graph100(void (*until_over)(cudaStream_t)) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int at = 0; at < 100; ++at) {
        nothing<<<1, 32, 0, stream>>>();
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&instance, graph, 0));
    auto work = [&] {
        CHECK(cudaGraphLaunch(instance, stream));
        until_over(stream);
    };
    double value = each(21, 100, settle, work, settle) * 1e6;
    CHECK(cudaGraphExecDestroy(instance));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return value;
}

// Thread-instructions a second: 32 multiply-adds a round and thread, counting
// those alone.
double arithmetic_rate() {
    const int blocks = 64, threads = 256, rounds = 400;
    float *out;
    CHECK(cudaMalloc(reinterpret_cast<void **>(&out), blocks * threads * sizeof(float)));
    auto work = [&] {
        arithmetic<<<blocks, threads>>>(out, rounds);
        CHECK(cudaDeviceSynchronize());
    };
    work();
    double seconds = each(7, 1, settle, work, settle);
    CHECK(cudaFree(out));
    return 32.0 * rounds * blocks * threads / seconds;
}

// Launches and copies with one wait at their end; and queries in a loop. The
// library's own counters tell what crossed.
double posted_10k() {
    char *host;
    void *memory;
    CHECK(cudaMallocHost(reinterpret_cast<void **>(&host), 4096));
    CHECK(cudaMalloc(&memory, 4096));
    settle();
    for (long at = 0; at < count_of_loop; ++at) {
        launch();
        CHECK(cudaMemcpyAsync(memory, host, 4096, cudaMemcpyHostToDevice));
    }
    settle();
    CHECK(cudaFree(memory));
    CHECK(cudaFreeHost(host));
    return static_cast<double>(count_of_loop);
}

// Memory of the stream's pool, small and large, that work uses and that is freed behind it.
double pooled_10k() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (long at = 0; at < count_of_loop; ++at) {
        void *small, *large;
        CHECK(cudaMallocAsync(&small, 4096, stream));
        CHECK(cudaMallocAsync(&large, 4u << 20, stream));
        CHECK(cudaMemsetAsync(small, 1, 4096, stream));
        CHECK(cudaMemsetAsync(large, 1, 4096, stream));
        CHECK(cudaFreeAsync(small, stream));
        CHECK(cudaFreeAsync(large, stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaStreamDestroy(stream));
    return static_cast<double>(count_of_loop);
}

// Memory that the program maps itself.
double maps_10k() {
    Mapping mapping;
    for (long at = 0; at < count_of_loop; ++at) {
        mapping.cycle();
    }
    return static_cast<double>(count_of_loop);
}

// Turns of program and kernel on managed memory, with a wait each.
double managed_10k() {
    unsigned *values;
    CHECK(cudaMallocManaged(&values, 65536));
    for (long at = 0; at < count_of_loop; ++at) {
        values[at % 16384] = 1;
        sum<<<1, 32>>>(values, 32, values + 16383);
        CHECK(cudaDeviceSynchronize());
    }
    CHECK(cudaFree(values));
    return static_cast<double>(count_of_loop);
}

double queries_10k() {
    for (long at = 0; at < count_of_loop; ++at) {
        int device, value, blocks;
        cudaDeviceProp properties;
        CHECK(cudaGetDevice(&device));
        CHECK(cudaGetLastError());
        CHECK(cudaGetDeviceProperties(&properties, device));
        CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device));
        CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nothing, 128, 0));
    }
    return static_cast<double>(count_of_loop);
}

// When the first kernel's result is there, on the clock that all processes of
// the machine share; the parent process knows when that was.
__global__ void answer(int *out) { *out = 42; }

double first_result() {
    int *memory, host = 0;
    CHECK(cudaMalloc(reinterpret_cast<void **>(&memory), sizeof host));
    answer<<<1, 1>>>(memory);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(&host, memory, sizeof host, cudaMemcpyDeviceToHost));
    double now = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    if (host != 42) {
        std::fprintf(stderr, "overheads: the first kernel computed %d, not 42\n", host);
        std::exit(1);
    }
    CHECK(cudaFree(memory));
    return now;
}

// The same for a product of matrices by cuBLAS: its library is loaded, and two images of many
// are used.
double first_product() {
    void *library = dlopen("libcublas.so.13", RTLD_NOW);
    if (!library) {
        std::fprintf(stderr, "overheads: %s\n", dlerror());
        std::exit(1);
    }
    using Handle = void *;
    auto create = reinterpret_cast<int (*)(Handle *)>(dlsym(library, "cublasCreate_v2"));
    auto multiply = reinterpret_cast<int (*)(Handle, int, int, int, int, int, const float *, const float *, int, const float *, int,
                                             const float *, float *, int)>(dlsym(library, "cublasSgemm_v2"));
    constexpr int size = 512;
    std::vector<float> left(size * size), right(size * size), product(size * size);
    for (int at = 0; at < size * size; ++at) {
        left[at] = at % 7;
        right[at] = at % 5;
    }
    float *matrices, one = 1, zero = 0;
    size_t bytes = left.size() * sizeof(float);
    CHECK(cudaMalloc(reinterpret_cast<void **>(&matrices), 3 * bytes));
    CHECK(cudaMemcpy(matrices, left.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(matrices + left.size(), right.data(), bytes, cudaMemcpyHostToDevice));
    Handle handle;
    int status = create(&handle);
    if (!status) {
        status = multiply(handle, 0, 0, size, size, size, &one, matrices, size, matrices + left.size(), size, &zero,
                          matrices + 2 * left.size(), size);
    }
    CHECK(cudaMemcpy(product.data(), matrices + 2 * left.size(), bytes, cudaMemcpyDeviceToHost));
    double now = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    float expected = 0;
    for (int at = 0; at < size; ++at) {
        expected += left[at * size + 3] * right[2 * size + at];
    }
    if (status || product[2 * size + 3] != expected) {
        std::fprintf(stderr, "overheads: cuBLAS: status %d, %f instead of %f\n", status, product[2 * size + 3], expected);
        std::exit(1);
    }
    return now;
}

// With --together, waits for the word to begin.
void begin_together() {
    if (together) {
        std::printf("ready\n");
        std::fflush(stdout);
        std::getchar();
    }
}

double processor_seconds() {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    auto seconds = [](const timeval &time) { return time.tv_sec + time.tv_usec * 1e-6; };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Three seconds of waits for kernels of 5 ms: processor seconds of this process a second.
double waiting() {
    begin_together();
    double used = processor_seconds();
    double seconds = 0;
    auto start = Clock::now();
    while (seconds < 3) {
        busy<<<1, 1>>>(5000000ull);
        CHECK(cudaGetLastError());
        settle();
        seconds = std::chrono::duration<double>(Clock::now() - start).count();
    }
    return (processor_seconds() - used) / seconds;
}

// What a program that shares the GPU does: kernels of some 100 us, each with a
// small copy either way. `measured` is given a function that does so many of them.
double beside_others(const std::function<double(const std::function<void(long)> &)> &measured) {
    const int blocks = 128, threads = 256;
    float *out, *host;
    CHECK(cudaMalloc(reinterpret_cast<void **>(&out), blocks * threads * sizeof(float)));
    CHECK(cudaMallocHost(reinterpret_cast<void **>(&host), blocks * threads * sizeof(float)));
    std::memset(host, 0, blocks * threads * sizeof(float));
    size_t bytes = blocks * threads * sizeof(float);
    arithmetic<<<blocks, threads>>>(out, 1);
    settle();
    begin_together();
    double value = measured([&](long rounds) {
        for (long at = 0; at < rounds; ++at) {
            CHECK(cudaMemcpyAsync(out, host, bytes, cudaMemcpyHostToDevice));
            arithmetic<<<blocks, threads>>>(out, 1000);
            CHECK(cudaMemcpyAsync(host, out, bytes, cudaMemcpyDeviceToHost));
        }
        settle();
    });
    CHECK(cudaFreeHost(host));
    CHECK(cudaFree(out));
    return value;
}

// Two seconds of that: kernels a second.
double shared_work() {
    return beside_others([](const std::function<void(long)> &rounds) {
        long kernels = 0;
        auto start = Clock::now();
        double seconds = 0;
        while (seconds < 2) {
            rounds(10);
            kernels += 10;
            seconds = std::chrono::duration<double>(Clock::now() - start).count();
        }
        return kernels / seconds;
    });
}

// --count rounds of that: seconds.
double fixed_work() {
    return beside_others([](const std::function<void(long)> &rounds) {
        return seconds_of([&] {
            for (long done = 0; done < count_of_loop; done += 10) {
                rounds(std::min(10l, count_of_loop - done));
            }
        });
    });
}

// Seconds of --count launches and one wait for all of them.
double launches() {
    return each(11, 1, settle, [] {
        for (long at = 0; at < count_of_loop; ++at) {
            launch();
        }
        settle();
    }, settle);
}

// Threads that launch, each on a stream of its own, all at once.
struct Crew {
    static constexpr int threads = 8, count = 20000;
    // Launches a second of all together.
    double rate;
    // Microseconds of a launch, of all threads, in order.
    std::vector<double> each;

    // The q-quantile of a launch's time.
    double quantile(double q) const { return each[static_cast<size_t>(q * (each.size() - 1))]; }

    // With `beside` another thread does that until all have launched.
    explicit Crew(const std::function<void()> &beside = nullptr) {
        std::vector<std::vector<double>> times(threads);
        std::atomic<int> ready{0};
        std::atomic<bool> over{false};
        auto work = [&](int number) {
            cudaStream_t stream;
            CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            nothing<<<1, 32, 0, stream>>>();
            CHECK(cudaStreamSynchronize(stream));
            times[number].reserve(count);
            for (++ready; ready < threads;) {
            }
            for (int at = 0; at < count; ++at) {
                times[number].push_back(seconds_of([&] { nothing<<<1, 32, 0, stream>>>(); }) * 1e6);
            }
            CHECK(cudaStreamSynchronize(stream));
            CHECK(cudaStreamDestroy(stream));
        };
        std::vector<std::thread> crew;
        for (int at = 0; at < threads; ++at) {
            crew.emplace_back(work, at);
        }
        std::thread other([&] {
            while (beside && !over) {
                beside();
            }
        });
        while (ready < threads) {
        }
        double seconds = seconds_of([&] {
            for (std::thread &thread : crew) {
                thread.join();
            }
        });
        over = true;
        other.join();
        rate = threads * count / seconds;
        for (const std::vector<double> &one : times) {
            each.insert(each.end(), one.begin(), one.end());
        }
        std::sort(each.begin(), each.end());
    }
};

// The median of `figure` over several crews.
double of_crews(double (*figure)(const Crew &), const std::function<void()> &beside = nullptr) {
    std::vector<double> values;
    for (int round = 0; round < 5; ++round) {
        values.push_back(figure(Crew(beside)));
    }
    return median(values);
}

double threads_rate(const Crew &crew) { return crew.rate; }

// How much longer than the median the slowest launch of a thousand takes.
double threads_tail(const Crew &crew) { return crew.quantile(0.999) / crew.quantile(0.5); }

double threads_slow(const Crew &crew) { return crew.quantile(0.999); }

void allocate_and_free() {
    void *memory;
    CHECK(cudaMalloc(&memory, 2 << 20));
    CHECK(cudaFree(memory));
}

struct Measurement {
    const char *name, *unit;
    std::function<double()> run;
    // GPUs that it needs.
    int gpus = 1;
};

const Measurement measurements[] = {
    {"launch_issue", "us", launch_issue},
    {"launch_throughput", "1/s", launch_throughput},
    {"launch_sync", "us", [] { return launch_sync(wait); }},
    {"launch_sync_asked", "us", [] { return launch_sync(ask_until_over); }},
    {"stream_sync_idle", "us", stream_sync_idle},
    {"event_record", "us", event_record},
    {"event_create_destroy", "us", event_create_destroy},
    {"stream_create_destroy", "us", stream_create_destroy},
    {"memset_4k", "us", memset_4k},
    {"copy64_h2d", "us", [] { return copy(64, cudaMemcpyHostToDevice); }},
    {"copy64_d2h", "us", [] { return copy(64, cudaMemcpyDeviceToHost); }},
    {"copy16k_h2d", "us", [] { return copy(16 << 10, cudaMemcpyHostToDevice); }},
    {"copy16k_d2h", "us", [] { return copy(16 << 10, cudaMemcpyDeviceToHost); }},
    {"copy256k_h2d", "us", [] { return copy(256 << 10, cudaMemcpyHostToDevice); }},
    {"copy256k_d2h", "us", [] { return copy(256 << 10, cudaMemcpyDeviceToHost); }},
    {"wait_1ms", "us", [] { return wait_for(1); }},
    {"wait_10ms", "us", [] { return wait_for(10); }},
    {"wait_100ms", "us", [] { return wait_for(100); }},
    {"malloc_free_2m", "us", malloc_free_2m},
    {"malloc_async_4k", "us", [] { return malloc_async(4096); }},
    {"malloc_async_2m", "us", [] { return malloc_async(2u << 20); }},
    {"map_2m", "us", map_2m},
    {"managed_sum", "us", [] { return managed_sum(true); }},
    {"managed_sum_again", "us", [] { return managed_sum(false); }},
    {"managed_far", "us", [] { return managed_pair(false); }, 2},
    {"managed_moved", "us", [] { return managed_pair(true); }, 2},
    {"pageable_h2d", "B/s", [] { return copy_bulk(cudaMemcpyHostToDevice, false); }},
    {"pageable_d2h", "B/s", [] { return copy_bulk(cudaMemcpyDeviceToHost, false); }},
    {"pageable_h2d_ratio", "", [] { return copy_beside_memcpy(cudaMemcpyHostToDevice); }},
    {"pageable_d2h_ratio", "", [] { return copy_beside_memcpy(cudaMemcpyDeviceToHost); }},
    {"pinned_h2d", "B/s", [] { return copy_bulk(cudaMemcpyHostToDevice, true); }},
    {"pinned_d2h", "B/s", [] { return copy_bulk(cudaMemcpyDeviceToHost, true); }},
    {"copy_inside", "B/s", copy_inside},
    {"registered_h2d", "B/s", [] { return registered_copy(cudaMemcpyHostToDevice); }},
    {"registered_d2h", "B/s", [] { return registered_copy(cudaMemcpyDeviceToHost); }},
    {"registered_streams", "us", registered_streams},
    {"registered_mapped", "us", registered_mapped},
    {"arithmetic_rate", "1/s", arithmetic_rate},
    {"posted_10k", "operations", posted_10k},
    {"queries_10k", "operations", queries_10k},
    {"pooled_10k", "operations", pooled_10k},
    {"maps_10k", "operations", maps_10k},
    {"managed_10k", "operations", managed_10k},
    {"graph100", "us", [] { return graph100(wait); }},
    {"graph100_asked", "us", [] { return graph100(ask_until_over); }},
    {"shared_work", "1/s", shared_work},
    {"fixed_work", "s", fixed_work},
    {"waiting", "s/s", waiting},
    {"launches", "s", launches},
    {"threads8_rate", "1/s", [] { return of_crews(threads_rate); }},
    {"threads8_tail", "", [] { return of_crews(threads_tail); }},
    {"threads8_slow", "us", [] { return of_crews(threads_slow); }},
    {"threads8_slow_beside_malloc", "us", [] { return of_crews(threads_slow, allocate_and_free); }},
};

}  // namespace

int main(int argc, char **argv) {
    std::vector<std::string> wanted;
    for (int at = 1; at < argc; ++at) {
        if (!std::strcmp(argv[at], "--bulk") && at + 1 < argc) {
            bulk = std::strtoull(argv[++at], nullptr, 0);
        } else if (!std::strcmp(argv[at], "--managed") && at + 1 < argc) {
            managed = std::strtoull(argv[++at], nullptr, 0);
        } else if (!std::strcmp(argv[at], "--count") && at + 1 < argc) {
            count_of_loop = std::strtol(argv[++at], nullptr, 0);
        } else if (!std::strcmp(argv[at], "--schedule") && at + 1 < argc) {
            schedule = std::strtoul(argv[++at], nullptr, 0);
        } else if (!std::strcmp(argv[at], "--together")) {
            together = true;
        } else if (argv[at][0] == '-') {
            std::fprintf(stderr, "usage: overheads [--bulk BYTES] [--managed BYTES] [--count N] [--schedule FLAG] [--together] [NAME]...\nnames:");
            for (const Measurement &measurement : measurements) {
                std::fprintf(stderr, " %s", measurement.name);
            }
            std::fprintf(stderr, " first_result first_product (alone)\n");
            return 2;
        } else {
            wanted.push_back(argv[at]);
        }
    }
    CHECK(cudaSetDeviceFlags(schedule));
    CHECK(cudaSetDevice(0));
    for (auto [name, first] : {std::pair{"first_result", first_result}, {"first_product", first_product}}) {
        if (wanted == std::vector<std::string>{name}) {
            std::printf("{\"name\":\"%s\",\"unit\":\"s\",\"value\":%.9f}\n", name, first());
            return 0;
        }
    }
    launch();
    settle();
    int gpus = 0;
    CHECK(cudaGetDeviceCount(&gpus));
    for (const Measurement &measurement : measurements) {
        if ((wanted.empty() && measurement.gpus <= gpus) || std::find(wanted.begin(), wanted.end(), measurement.name) != wanted.end()) {
            double value = measurement.run();
            std::printf("{\"name\":\"%s\",\"unit\":\"%s\",\"value\":%.9g}\n", measurement.name, measurement.unit, value);
            std::fflush(stdout);
        }
    }
    if (together && wanted == std::vector<std::string>{"waiting"}) {
        // Whoever measures the host's side does so now.
        std::getchar();
    }
    CHECK(cudaDeviceReset());
    return 0;
}
