// manyThreads: eight threads that launch at once, each on a stream of its own.
//
// Every launch changes a word depending on its position in the order. Every few
// launches a thread passes its word to its neighbour by an event: the neighbour's
// stream reads the word of the stream before it. A launch that is lost, doubled or
// out of order, in any thread, changes the result.

#include "common/check.h"

#include <thread>
#include <vector>

constexpr int threads = 8;
constexpr int group = 50;

__global__ void step(unsigned *word, unsigned amount) { *word = *word * 3 + amount; }

__global__ void take(unsigned *word, const unsigned *other) { *word = *word * 5 + *other; }

struct Lane {
    cudaStream_t stream;
    cudaEvent_t event;
    unsigned *word;
    cudaError_t status = cudaSuccess;
};

static void launch(Lane &lane, unsigned first) {
    for (unsigned number = 0; number < group; ++number) {
        step<<<1, 1, 0, lane.stream>>>(lane.word, first + number);
        cudaError_t status = cudaGetLastError();
        lane.status = lane.status == cudaSuccess ? status : lane.status;
    }
    cudaError_t status = cudaEventRecord(lane.event, lane.stream);
    lane.status = lane.status == cudaSuccess ? status : lane.status;
}

static unsigned stepped(unsigned word, unsigned first) {
    for (unsigned number = 0; number < group; ++number) {
        word = word * 3 + first + number;
    }
    return word;
}

int main(int argc, char **argv) {
    Program program("manyThreads", "launches from eight threads at once", "groups of launches", 20, 1, 1L << 16);
    program.parse(argc, argv);
    Random random(program.seed());
    Lane lanes[threads];
    unsigned *words;
    CUDA_CHECK(cudaMalloc(&words, threads * sizeof(unsigned)));
    for (int number = 0; number < threads; ++number) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&lanes[number].stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaEventCreateWithFlags(&lanes[number].event, cudaEventDisableTiming));
        lanes[number].word = words + number;
    }
    int groups = static_cast<int>(program.size());
    while (program.next_round()) {
        std::vector<unsigned> want(threads);
        for (unsigned &word : want) {
            word = static_cast<unsigned>(random.next());
        }
        CUDA_CHECK(cudaMemcpy(words, want.data(), threads * sizeof(unsigned), cudaMemcpyHostToDevice));
        for (int at = 0; at < groups; ++at) {
            std::vector<std::thread> running;
            for (int number = 0; number < threads; ++number) {
                unsigned first = static_cast<unsigned>(random.next());
                running.emplace_back([&lanes, number, first] { launch(lanes[number], first); });
                want[number] = stepped(want[number], first);
            }
            for (std::thread &one : running) {
                one.join();
            }
            // Passes words from left to right; the last waits for all, the first for the last.
            for (int number = 0; number < threads; ++number) {
                Lane &left = lanes[(number + threads - 1) % threads];
                CUDA_CHECK(wait_event(lanes[number].stream, left.event));
                take<<<1, 1, 0, lanes[number].stream>>>(lanes[number].word, left.word);
                LAUNCH_CHECK();
                CUDA_CHECK(cudaEventRecord(lanes[number].event, lanes[number].stream));
                want[number] = want[number] * 5 + want[(number + threads - 1) % threads];
            }
            // A word changes again once the right neighbour has read it.
            for (int number = 0; number + 1 < threads; ++number) {
                CUDA_CHECK(wait_event(lanes[number].stream, lanes[number + 1].event));
            }
        }
        for (Lane &lane : lanes) {
            CUDA_CHECK(cudaStreamSynchronize(lane.stream));
            CUDA_CHECK(lane.status);
        }
        std::vector<unsigned> got(threads);
        CUDA_CHECK(cudaMemcpy(got.data(), words, threads * sizeof(unsigned), cudaMemcpyDeviceToHost));
        program.digest(got.data(), threads * sizeof(unsigned));
        program.expect_equal("the words", got.data(), want.data(), threads);
    }
    for (Lane &lane : lanes) {
        CUDA_CHECK(cudaStreamDestroy(lane.stream));
        CUDA_CHECK(cudaEventDestroy(lane.event));
    }
    CUDA_CHECK(cudaFree(words));
    return program.finish();
}
