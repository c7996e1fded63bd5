// dependentLaunch: kernels that begin before the preceding ones end
// (programmatic dependent launch), outside of graphs.
//
// Each kernel permits the next at once, does independent work, and waits for its
// predecessor only before it reads that one's output. Chains in one stream and in
// two, mixed with launches without the attribute, copies and events, must give the
// results of kernels in full order.

#include "common/check.h"

#include <vector>

constexpr int threads = 128;

// to[i] = from[i] * 3 + salt, where the salt takes a while.
__global__ void link(unsigned *to, const unsigned *from, unsigned seed, int count) {
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
    unsigned salt = seed;
    for (int at = 0; at < 200; ++at) {
        salt = (salt ^ static_cast<unsigned>(at)) * 16777619u;
    }
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) {
        to[index] = from[index] * 3 + salt;
    }
}

static unsigned salted(unsigned seed) {
    unsigned salt = seed;
    for (int at = 0; at < 200; ++at) {
        salt = (salt ^ static_cast<unsigned>(at)) * 16777619u;
    }
    return salt;
}

struct Chain {
    cudaStream_t stream;
    int count;
    unsigned *place[2];
    std::vector<unsigned> want;

    explicit Chain(int size) : count(size), want(size) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (unsigned *&memory : place) {
            CUDA_CHECK(cudaMalloc(&memory, count * sizeof(unsigned)));
        }
    }

    ~Chain() {
        CUDA_CHECK(cudaFree(place[0]));
        CUDA_CHECK(cudaFree(place[1]));
        CUDA_CHECK(cudaStreamDestroy(stream));
    }

    void begin(unsigned first) {
        for (int at = 0; at < count; ++at) {
            want[at] = first + static_cast<unsigned>(at);
        }
        CUDA_CHECK(cudaMemcpyAsync(place[0], want.data(), count * sizeof(unsigned), cudaMemcpyHostToDevice, stream));
    }

    void step(int number, bool early) {
        unsigned seed = 77u + static_cast<unsigned>(number);
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = early;
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3((count + threads - 1) / threads);
        config.blockDim = dim3(threads);
        config.stream = stream;
        config.attrs = &attribute;
        config.numAttrs = 1;
        unsigned *from = place[number % 2], *to = place[(number + 1) % 2];
        CUDA_CHECK(cudaLaunchKernelEx(&config, link, to, static_cast<const unsigned *>(from), seed, count));
        unsigned salt = salted(seed);
        for (unsigned &value : want) {
            value = value * 3 + salt;
        }
    }

    void end(Program &program, const char *what, int steps) {
        std::vector<unsigned> got(count);
        CUDA_CHECK(cudaMemcpyAsync(got.data(), place[steps % 2], count * sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        program.expect_equal(what, got.data(), want.data(), count);
        program.digest(got.data(), count * sizeof(unsigned));
    }
};

int main(int argc, char **argv) {
    Program program("dependentLaunch", "launches kernels that begin early", "launches of a chain", 400, 1, 1L << 20);
    program.parse(argc, argv);
    Random random(program.seed());
    int steps = static_cast<int>(program.size());
    cudaEvent_t event;
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    {
        Chain one(3000), other(700);
        while (program.next_round()) {
            one.begin(static_cast<unsigned>(random.next()));
            for (int at = 0; at < steps; ++at) {
                one.step(at, true);
            }
            one.end(program, "a chain of early kernels", steps);

            // Kernels of two streams; some have the attribute's other value, and some
            // follow a copy to the predecessor's output, or an event of the other
            // stream.
            one.begin(static_cast<unsigned>(random.next()));
            other.begin(static_cast<unsigned>(random.next()));
            for (int at = 0; at < steps; ++at) {
                unsigned kind = random.below(8);
                if (kind == 0) {
                    unsigned *ahead = one.place[(at + 1) % 2];
                    CUDA_CHECK(cudaMemcpyAsync(ahead, one.place[at % 2], one.count * sizeof(unsigned), cudaMemcpyDeviceToDevice, one.stream));
                } else if (kind == 1) {
                    CUDA_CHECK(cudaEventRecord(event, one.stream));
                    CUDA_CHECK(wait_event(other.stream, event));
                }
                one.step(at, kind != 2);
                other.step(at, kind != 3);
            }
            one.end(program, "a chain of all kinds", steps);
            other.end(program, "another beside it", steps);
        }
    }
    CUDA_CHECK(cudaEventDestroy(event));
    return program.finish();
}
