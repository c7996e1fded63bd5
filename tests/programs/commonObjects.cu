// commonObjects: eight threads that use the same memory and kernels at once.
//
// In each round they register the same pages, of which one thread succeeds; ask for the
// function of a kernel that nobody used before, which is one; and change the same attribute of
// a kernel, which then has the value that was set last.

#include "common/check.h"

#include <atomic>
#include <functional>
#include <pthread.h>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>

constexpr int threads = 8;
constexpr size_t page_words = 1024, words = 2 * page_words;

__global__ void count(int *to) {
    extern __shared__ int block[];
    block[threadIdx.x] = 1;
    atomicAdd(to, block[threadIdx.x]);
}

// A kernel that adds 1 to a word.
static const char text[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                           ".visible .entry increment(.param .u64 to) {\n"
                           ".reg .b64 %rd<3>;\n"
                           "ld.param.u64 %rd1, [to]; cvta.to.global.u64 %rd2, %rd1;\n"
                           "red.global.add.u32 [%rd2], 1; ret;\n}\n";

// Runs `action` in all threads at once; returns the status of each.
static std::vector<cudaError_t> at_once(const std::function<cudaError_t(int)> &action) {
    // Its threads sleep: eight that poll take a small machine's processors from the last to come.
    pthread_barrier_t begin;
    pthread_barrier_init(&begin, nullptr, threads);
    std::vector<cudaError_t> statuses(threads);
    std::vector<std::thread> running;
    for (int number = 0; number < threads; ++number) {
        running.emplace_back([&, number] {
            pthread_barrier_wait(&begin);
            statuses[number] = action(number);
        });
    }
    for (std::thread &one : running) {
        one.join();
    }
    pthread_barrier_destroy(&begin);
    return statuses;
}

static void register_pages(Program &program, Random &random, unsigned *pages) {
    std::vector<unsigned> want(words);
    for (size_t at = 0; at < words; ++at) {
        want[at] = pages[at] = static_cast<unsigned>(random.next());
    }
    // The ranges of odd threads begin in the middle of the even ones'.
    auto begin = [pages](int number) { return pages + number % 2 * (page_words / 2); };
    std::atomic<int> holders[2] = {{0}, {0}};
    std::vector<cudaError_t> statuses = at_once([&](int number) {
        cudaError_t status = cudaHostRegister(begin(number), page_words * sizeof(unsigned), cudaHostRegisterDefault);
        cudaGetLastError();
        holders[number % 2] += status == cudaSuccess;
        return status == cudaErrorHostMemoryAlreadyRegistered ? cudaSuccess : status;
    });
    for (cudaError_t status : statuses) {
        CUDA_CHECK(status);
    }
    program.expect(holders[0] + holders[1] == 1, "not exactly one thread registered the memory");
    CUDA_CHECK(cudaHostUnregister(begin(holders[1])));
    program.expect_equal("the memory", pages, want.data(), words);
    CUDA_CHECK(cudaHostRegister(pages, words * sizeof(unsigned), cudaHostRegisterDefault));
    CUDA_CHECK(cudaHostUnregister(pages));
}

// Returns how many launches add 1 to the word.
static int find_function(Program &program, int *word) {
    // The runtime finds functions of symbols only. Driver and runtime share handles.
    cudaDriverEntryPointQueryResult found;
    void *entry;
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuKernelGetFunction", &entry, 12000, cudaEnableDefault, &found));
    auto function_of = reinterpret_cast<int (*)(cudaFunction_t *, cudaKernel_t)>(entry);
    cudaLibrary_t library;
    CUDA_CHECK(cudaLibraryLoadData(&library, text, nullptr, nullptr, 0, nullptr, nullptr, 0));
    std::vector<cudaFunction_t> functions(threads);
    std::vector<cudaError_t> statuses = at_once([&](int number) {
        cudaKernel_t kernel;
        // The driver asks for the thread's context, which this sets.
        cudaError_t status = cudaSetDevice(0);
        if (status == cudaSuccess) {
            status = cudaLibraryGetKernel(&kernel, library, "increment");
        }
        if (status == cudaSuccess) {
            status = static_cast<cudaError_t>(function_of(&functions[number], kernel));
        }
        void *arguments[] = {&word};
        return status != cudaSuccess ? status : cudaLaunchKernel(kernel, dim3(1), dim3(1), arguments, 0, nullptr);
    });
    for (int number = 0; number < threads; ++number) {
        CUDA_CHECK(statuses[number]);
        program.expect(functions[number] == functions[0], "a kernel has two functions");
    }
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaLibraryUnload(library));
    return threads;
}

static void change_attribute(int most) {
    auto change = [most](int number) {
        return cudaFuncSetAttribute(count, cudaFuncAttributeMaxDynamicSharedMemorySize, number % 2 ? 1024 : most);
    };
    for (cudaError_t status : at_once(change)) {
        CUDA_CHECK(status);
    }
    CUDA_CHECK(change(0));
}

int main(int argc, char **argv) {
    Program program("commonObjects", "uses the same memory and kernels in eight threads at once", "attempts per round",
                    100, 1, 1L << 20);
    program.parse(argc, argv);
    Random random(program.seed());
    int *word, most;
    CUDA_CHECK(cudaMalloc(&word, sizeof(int)));
    CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    void *pages = mmap(nullptr, words * sizeof(unsigned), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    program.expect(pages != MAP_FAILED, "no memory");
    while (program.next_round()) {
        int got = 0, want = 0;
        CUDA_CHECK(cudaMemset(word, 0, sizeof(int)));
        CUDA_CHECK(cudaDeviceSynchronize());
        for (long at = 0; at < program.size(); ++at) {
            register_pages(program, random, static_cast<unsigned *>(pages));
            want += find_function(program, word);
            change_attribute(most);
            count<<<1, 32, most>>>(word);
            LAUNCH_CHECK();
            want += 32;
        }
        CUDA_CHECK(cudaMemcpy(&got, word, sizeof(int), cudaMemcpyDeviceToHost));
        program.digest(&got, sizeof got);
        program.expect_equal("the count", got, want);
    }
    CUDA_CHECK(cudaFree(word));
    return program.finish();
}
