// manyThreads: eight threads that launch at once, each on a stream of its own.
//
// Every launch changes a word depending on its position in the order. Every few
// launches a thread passes its word to its neighbour by an event: the neighbour's
// stream reads the word of the stream before it. A launch that is lost, doubled or
// out of order, in any thread, changes the result. Afterwards one thread makes and
// destroys streams with work, while others free memory and wait for the device: they
// wait for streams that vanish.

#include "common/check.h"

#include <atomic>
#include <thread>
#include <vector>

#define CUDA_TRY(call)                    \
    do {                                  \
        cudaError_t status_ = (call);     \
        if (status_ != cudaSuccess) {     \
            return status_;               \
        }                                 \
    } while (0)

constexpr int threads = 8;
constexpr int group = 50;

__global__ void step(unsigned *word, unsigned amount) { *word = *word * 3 + amount; }

__global__ void take(unsigned *word, const unsigned *other) { *word = *word * 5 + *other; }

__global__ void add(unsigned *word) { atomicAdd(word, 1u); }

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

// Makes and destroys streams until `over`; adds 1 to the word in each.
static cudaError_t come_and_go(unsigned *word, const std::atomic<bool> &over, unsigned &streams) {
    for (; !over; ++streams) {
        cudaStream_t stream;
        CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        add<<<1, 1, 0, stream>>>(word);
        CUDA_TRY(cudaGetLastError());
        if (streams % 2) {
            CUDA_TRY(cudaStreamSynchronize(stream));
        }
        CUDA_TRY(cudaStreamDestroy(stream));
    }
    return cudaSuccess;
}

static cudaError_t wait_and_free(int times) {
    for (int at = 0; at < times; ++at) {
        void *memory;
        CUDA_TRY(cudaMalloc(&memory, 100));
        CUDA_TRY(cudaFree(memory));
        CUDA_TRY(cudaDeviceSynchronize());
    }
    return cudaSuccess;
}

static void wait_beside_streams_that_end(Program &program, unsigned *word, int times) {
    CUDA_CHECK(cudaMemset(word, 0, sizeof(unsigned)));
    CUDA_CHECK(cudaDeviceSynchronize());
    std::atomic<bool> over{false};
    unsigned streams = 0, got = 0;
    cudaError_t made = cudaSuccess, other = cudaSuccess;
    std::thread maker([&] { made = come_and_go(word, over, streams); });
    std::thread waiter([&] { other = wait_and_free(times); });
    cudaError_t own = wait_and_free(times);
    waiter.join();
    over = true;
    maker.join();
    CUDA_CHECK(made);
    CUDA_CHECK(other);
    CUDA_CHECK(own);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(&got, word, sizeof(unsigned), cudaMemcpyDeviceToHost));
    program.expect(got == streams, "a destroyed stream's work is missing");
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
        wait_beside_streams_that_end(program, words, groups * 200);
    }
    for (Lane &lane : lanes) {
        CUDA_CHECK(cudaStreamDestroy(lane.stream));
        CUDA_CHECK(cudaEventDestroy(lane.event));
    }
    CUDA_CHECK(cudaFree(words));
    return program.finish();
}
