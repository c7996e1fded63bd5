// mappedMemory: kernels that work on the host's memory in place.
//
// Memory from cudaHostAlloc (mapped, portable, write-combined), from
// cudaMallocHost, and the program's own memory after cudaHostRegister. The host sees
// a kernel's writes after synchronization, the next kernel sees the host's writes,
// and no copy is called in between. Both may write adjacent bytes at the same time.

#include "common/check.h"

#include <sys/mman.h>
#include <unistd.h>
#include <vector>

__global__ void combine(const int *a, const int *b, int *sums, size_t count) {
    size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += step) {
        sums[at] = a[at] * 3 + b[at];
    }
}

__global__ void count_up(unsigned *counters, unsigned count) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        atomicAdd(&counters[at % 16], at);
    }
}

// Every second byte.
__global__ void mark(unsigned char *bytes, unsigned char value, unsigned count) {
    if (threadIdx.x < count) {
        bytes[2 * threadIdx.x] = value;
    }
}

template <typename T> static T *device_view(T *host) {
    T *device = nullptr;
    CUDA_CHECK(cudaHostGetDevicePointer(&device, host, 0));
    return device;
}

static void run_combine(Program &program, const char *what, int *a, int *b, int *sums, size_t count, Random &random) {
    std::vector<int> want(count);
    for (size_t at = 0; at < count; ++at) {
        a[at] = static_cast<int>(random.below(1u << 28));
        b[at] = static_cast<int>(random.below(1u << 28));
        sums[at] = -1;
        want[at] = a[at] * 3 + b[at];
    }
    // Twice; the host changes the inputs in between.
    for (int turn = 0; turn < 2; ++turn) {
        combine<<<64, 128>>>(device_view(a), device_view(b), device_view(sums), count);
        LAUNCH_CHECK();
        CUDA_CHECK(cudaDeviceSynchronize());
        program.expect_equal(what, sums, want.data(), count);
        program.digest(sums, count * sizeof(int));
        for (size_t at = 0; turn == 0 && at < count; at += 7) {
            want[at] += 3 * 5;
            a[at] += 5;
        }
    }
}

static void run_flags(Program &program, int *mapped) {
    unsigned flags = 0;
    CUDA_CHECK(cudaHostGetFlags(&flags, mapped));
    program.expect(flags & cudaHostAllocMapped, "cudaHostGetFlags does not report that the memory is mapped");
    cudaPointerAttributes attributes;
    CUDA_CHECK(cudaPointerGetAttributes(&attributes, mapped));
    program.expect(attributes.type == cudaMemoryTypeHost, "mapped memory is not of type host");
    program.expect(attributes.hostPointer == mapped, "the host pointer of mapped memory differs");
    program.expect(attributes.devicePointer == device_view(mapped), "the device pointer of mapped memory differs");
}

// Integer atomics on host memory.
static void run_atomics(Program &program, unsigned *counters) {
    std::memset(counters, 0, 16 * sizeof *counters);
    count_up<<<20, 100>>>(device_view(counters), 1999);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaDeviceSynchronize());
    unsigned want[16] = {};
    for (unsigned at = 0; at < 1999; ++at) {
        want[at % 16] += at;
    }
    program.digest(counters, sizeof want);
    program.expect_equal("the counters in host memory", counters, want, 16);
}

// The program writes the bytes between those of a kernel that it has not waited for.
static void run_neighbours(Program &program, unsigned char *bytes) {
    const unsigned count = 24;
    unsigned char want[2 * count];
    for (unsigned turn = 1; turn <= 10; ++turn) {
        unsigned char value = static_cast<unsigned char>(turn);
        std::memset(bytes, 0, sizeof want);
        std::memset(want, value, sizeof want);
        mark<<<1, 32>>>(device_view(bytes), value, count);
        LAUNCH_CHECK();
        // The kernel may be complete afterwards. The result must not depend on that.
        usleep(1000);
        for (unsigned at = 0; at < count; ++at) {
            bytes[2 * at + 1] = value;
        }
        // Writes nothing itself.
        mark<<<1, 32>>>(device_view(bytes), value, 0);
        LAUNCH_CHECK();
        CUDA_CHECK(cudaDeviceSynchronize());
        program.expect_equal("adjacent bytes of kernel and program", bytes, want, sizeof want);
    }
}

int main(int argc, char **argv) {
    Program program("mappedMemory", "runs kernels on host memory in place", "integers", 200000, 64, 1L << 28);
    program.parse(argc, argv);
    size_t count = static_cast<size_t>(program.size()), bytes = count * sizeof(int);

    int can_map = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&can_map, cudaDevAttrCanMapHostMemory, 0));
    if (!can_map) {
        program.die("the device cannot map host memory");
    }
    int *a = nullptr, *b = nullptr, *sums = nullptr;
    CUDA_CHECK(cudaHostAlloc(&a, bytes, cudaHostAllocMapped));
    CUDA_CHECK(cudaHostAlloc(&b, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    CUDA_CHECK(cudaMallocHost(&sums, bytes));

    // The program's own pages: three arrays in one registered range.
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_t own_bytes = (3 * bytes + page - 1) / page * page;
    void *own = mmap(nullptr, own_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) {
        program.die("mmap: %s", std::strerror(errno));
    }
    CUDA_CHECK(cudaHostRegister(own, own_bytes, cudaHostRegisterMapped));
    int *own_a = static_cast<int *>(own), *own_b = own_a + count, *own_sums = own_b + count;

    run_neighbours(program, reinterpret_cast<unsigned char *>(sums));
    run_neighbours(program, reinterpret_cast<unsigned char *>(own_b));
    Random random(program.seed());
    while (program.next_round()) {
        run_combine(program, "sums in cudaHostAlloc memory", a, b, sums, count, random);
        run_combine(program, "sums in registered memory", own_a, own_b, own_sums, count, random);
        run_combine(program, "sums from registered to allocated memory", own_a, b, sums, count, random);
        run_flags(program, a);
        run_atomics(program, reinterpret_cast<unsigned *>(sums));
    }
    CUDA_CHECK(cudaHostUnregister(own));
    own_sums[0] = 1;
    munmap(own, own_bytes);
    CUDA_CHECK(cudaFreeHost(sums));
    CUDA_CHECK(cudaFreeHost(b));
    CUDA_CHECK(cudaFreeHost(a));
    return program.finish();
}
