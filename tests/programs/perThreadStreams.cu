// perThreadStreams: two threads, each with its own default stream.
//
// Compiled with --default-stream per-thread: <<<>>> without a stream and copies
// without one go to the calling thread's stream. The first thread's kernel waits
// (at most 20 seconds of the device's clock) for what the second thread's kernel
// writes, so the two streams must be different and must overlap; then both run a
// chain of copies and kernels whose order matters.

#include "common/check.h"

#include <thread>
#include <vector>

static __device__ unsigned long long global_timer() {
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}

__global__ void wait_for(volatile unsigned *flag, unsigned value, unsigned *seen) {
    unsigned long long start = global_timer();
    unsigned there = 0;
    while (global_timer() - start < 20000000000ull) {
        if (*flag == value) {
            there = 1;
            break;
        }
        __nanosleep(1000);
    }
    *seen = there;
}

__global__ void raise(volatile unsigned *flag, unsigned value) { *flag = value; }

__global__ void advance(unsigned *values, unsigned step, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] = values[at] * 5 + step;
    }
}

// One thread's part; CUDA's per-thread state (device, last error) is separate.
struct Worker {
    unsigned number;
    size_t count;
    uint64_t seed;
    unsigned *flag;
    unsigned *seen;
    std::vector<unsigned> got;
    std::vector<unsigned> want;
    cudaError_t status = cudaSuccess;
    const char *failed_call = "";

    bool ok(cudaError_t result, const char *call) {
        if (result != cudaSuccess && status == cudaSuccess) {
            status = result;
            failed_call = call;
        }
        return result == cudaSuccess;
    }

    void run() {
        if (number == 0) {
            wait_for<<<1, 1>>>(flag, 77, seen);
        } else {
            raise<<<1, 1>>>(flag, 77);
        }
        if (!ok(cudaGetLastError(), "the first launch")) {
            return;
        }
        Random random(seed + number);
        want.resize(count);
        got.resize(count);
        for (unsigned &value : want) {
            value = static_cast<unsigned>(random.next());
        }
        unsigned *values = nullptr;
        size_t bytes = count * sizeof(unsigned);
        if (!ok(cudaMalloc(&values, bytes), "cudaMalloc") ||
            !ok(cudaMemcpyAsync(values, want.data(), bytes, cudaMemcpyHostToDevice, 0), "cudaMemcpyAsync")) {
            return;
        }
        ok(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
        for (unsigned step = 1; step <= 20; ++step) {
            advance<<<blocks_for(count, 256), 256>>>(values, step * (number + 1), count);
            ok(cudaGetLastError(), "a launch");
            for (unsigned &value : want) {
                value = value * 5 + step * (number + 1);
            }
        }
        ok(cudaMemcpyAsync(got.data(), values, bytes, cudaMemcpyDeviceToHost, cudaStreamPerThread), "the copy back");
        ok(cudaStreamSynchronize(0), "cudaStreamSynchronize");
        ok(cudaFree(values), "cudaFree");
        // An error of this thread must not appear in the other.
        if (number == 1) {
            if (cudaSetDevice(4711) != cudaErrorInvalidDevice || cudaPeekAtLastError() != cudaErrorInvalidDevice) {
                ok(cudaErrorUnknown, "cudaSetDevice of no device");
            }
        } else {
            ok(cudaPeekAtLastError(), "cudaPeekAtLastError");
        }
    }
};

int main(int argc, char **argv) {
    Program program("perThreadStreams", "gives two threads default streams of their own", "elements", 50000, 1,
                    1L << 28);
    program.parse(argc, argv);
    DeviceArray<unsigned> flags(2);
    // Loading a kernel may wait for the device to be idle, so load all first.
    cudaFuncAttributes attributes;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, wait_for));
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, raise));
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, advance));

    while (program.next_round()) {
        CUDA_CHECK(cudaMemset(flags.get(), 0, flags.bytes()));
        CUDA_CHECK(cudaDeviceSynchronize());
        Worker workers[2];
        for (unsigned number = 0; number < 2; ++number) {
            workers[number].number = number;
            workers[number].count = static_cast<size_t>(program.size());
            workers[number].seed = program.seed();
            workers[number].flag = flags.get();
            workers[number].seen = flags.get() + 1;
        }
        std::thread first([&] { workers[0].run(); });
        std::thread second([&] { workers[1].run(); });
        first.join();
        second.join();
        for (Worker &worker : workers) {
            if (worker.status != cudaSuccess) {
                program.fail("thread %u: %s gave %s", worker.number, worker.failed_call,
                             cudaGetErrorName(worker.status));
            } else {
                program.digest(worker.got.data(), worker.count * sizeof(unsigned));
                program.expect_equal("a thread's values", worker.got.data(), worker.want.data(), worker.count);
            }
        }
        unsigned state[2];
        flags.download(state);
        program.expect(state[1] == 1, "the kernels of two threads did not overlap");
        program.expect(cudaPeekAtLastError() == cudaSuccess, "the last error crossed threads");
    }
    return program.finish();
}
