// peerAccess: kernels and copies of one GPU on the memory of another.
//
// Memory allocated before and after access was enabled, large and small, freed and
// allocated again; memory that the program maps; memory of a pool; kernels of both
// GPUs that add to the same words; copies in one GPU's stream; streams of both GPUs that
// wait for each other's events, also of streams that are destroyed meanwhile; textures of both;
// and refused calls.
// With a single GPU, or two without peer access, everything runs on one.

#include "common/driver.h"

#include <atomic>
#include <thread>
#include <vector>

__global__ void add(unsigned *values, const unsigned *more, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] += more[at] + 1;
    }
}

__global__ void count_up(unsigned *counters, unsigned times) {
    for (unsigned time = 0; time < times; ++time) {
        atomicAdd_system(counters + (threadIdx.x + time) % 64, 1u);
    }
}

// Writes after a while.
__global__ void write_late(unsigned *values, size_t count, unsigned value, unsigned rounds) {
    unsigned noise = 1;
    for (unsigned round = 0; round < rounds; ++round) {
        noise = noise * 1664525u + round;
    }
    for (size_t at = 0; at < count; ++at) {
        values[at] = noise == 0 ? noise : value;
    }
}

// The GPU that computes, and the one that owns the memory.
static int computes = 0, owns = 0;

static void launch_add(unsigned *values, const unsigned *more, size_t count, cudaStream_t stream = nullptr) {
    add<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(values, more, count);
    LAUNCH_CHECK();
}

template <class T> static T *allocate(int device, size_t count) {
    T *memory = nullptr;
    CUDA_CHECK(cudaSetDevice(device));
    CUDA_CHECK(cudaMalloc(&memory, count * sizeof(T)));
    CUDA_CHECK(cudaSetDevice(computes));
    return memory;
}

static void synchronize_both() {
    for (int device : {owns, computes}) {
        CUDA_CHECK(cudaSetDevice(device));
        CUDA_CHECK(cudaDeviceSynchronize());
    }
}

static std::vector<unsigned> random_words(Random &random, size_t count) {
    std::vector<unsigned> words(count);
    for (unsigned &word : words) {
        word = static_cast<unsigned>(random.next());
    }
    return words;
}

// One GPU adds its values to words of the other, which then adds its own to both.
static void check_memory(Program &program, unsigned *theirs, size_t count, Random &random) {
    std::vector<unsigned> first = random_words(random, count), second = random_words(random, count), got(count);
    size_t bytes = count * sizeof(unsigned);
    unsigned *mine = allocate<unsigned>(computes, count);
    CUDA_CHECK(cudaMemcpy(theirs, first.data(), bytes, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(mine, second.data(), bytes, cudaMemcpyHostToDevice));
    launch_add(theirs, mine, count);
    synchronize_both();
    CUDA_CHECK(cudaSetDevice(owns));
    launch_add(theirs, theirs, count);
    synchronize_both();
    // It reads the other's writes.
    launch_add(mine, theirs, count);
    CUDA_CHECK(cudaMemcpy(got.data(), mine, bytes, cudaMemcpyDeviceToHost));
    for (size_t at = 0; at < count; ++at) {
        first[at] = 2 * (first[at] + second[at] + 1) + 1;
        second[at] += first[at] + 1;
    }
    program.expect_equal("what one GPU read of the other", got.data(), second.data(), count);
    CUDA_CHECK(cudaMemcpy(got.data(), theirs, bytes, cudaMemcpyDeviceToHost));
    program.expect_equal("what both wrote", got.data(), first.data(), count);
    program.digest(got.data(), bytes);
    CUDA_CHECK(cudaFree(mine));
}

static void run_allocations(Program &program, size_t count, Random &random) {
    unsigned *small[3] = {};
    for (unsigned *&memory : small) {
        memory = allocate<unsigned>(owns, 1000);
        check_memory(program, memory, 1000, random);
    }
    // Freed addresses are reused by other memory.
    for (int turn = 0; turn < 3; ++turn) {
        unsigned *large = allocate<unsigned>(owns, count);
        check_memory(program, large, count, random);
        CUDA_CHECK(cudaFree(large));
    }
    for (unsigned *memory : small) {
        CUDA_CHECK(cudaFree(memory));
    }
}

// Both add concurrently. Links without atomics would lose some additions; then only one adds.
static void run_atomics(Program &program) {
    int atomics = 1;
    if (owns != computes) {
        CUDA_CHECK(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, computes, owns));
    }
    unsigned *counters = allocate<unsigned>(owns, 64);
    CUDA_CHECK(cudaMemset(counters, 0, 64 * sizeof(unsigned)));
    synchronize_both();
    for (int device : {owns, computes}) {
        CUDA_CHECK(cudaSetDevice(atomics ? device : owns));
        count_up<<<4, 64>>>(counters, 100);
        LAUNCH_CHECK();
    }
    synchronize_both();
    std::vector<unsigned> got(64), want(64, 2 * 4 * 100);
    CUDA_CHECK(cudaMemcpy(got.data(), counters, 64 * sizeof(unsigned), cudaMemcpyDeviceToHost));
    program.expect_equal("counters", got.data(), want.data(), 64);
    CUDA_CHECK(cudaFree(counters));
}

// Copies in both directions in a stream of one GPU, between its kernels.
static void run_copies(Program &program, size_t count, Random &random) {
    size_t bytes = count * sizeof(unsigned);
    std::vector<unsigned> words = random_words(random, count), got(count);
    unsigned *theirs = allocate<unsigned>(owns, count), *back = allocate<unsigned>(owns, count);
    unsigned *mine = allocate<unsigned>(computes, count);
    CUDA_CHECK(cudaMemcpy(theirs, words.data(), bytes, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemset(mine, 0, bytes));
    synchronize_both();
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaMemcpyPeerAsync(mine, computes, theirs, owns, bytes, stream));
    launch_add(mine, mine, count, stream);
    CUDA_CHECK(cudaMemcpyAsync(back, mine, bytes, cudaMemcpyDeviceToDevice, stream));
    launch_add(back, mine, count, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaMemcpy(got.data(), back, bytes, cudaMemcpyDeviceToHost));
    for (unsigned &word : words) {
        word = 2 * (2 * word + 1) + 1;
    }
    program.expect_equal("copies", got.data(), words.data(), count);
    CUDA_CHECK(cudaMemcpy(theirs, mine, bytes, cudaMemcpyDefault));
    CUDA_CHECK(cudaMemcpyPeer(mine, computes, back, owns, bytes));
    CUDA_CHECK(cudaMemcpy(got.data(), mine, bytes, cudaMemcpyDeviceToHost));
    program.expect_equal("a copy that waits", got.data(), words.data(), count);
    program.digest(got.data(), bytes);
    CUDA_CHECK(cudaStreamDestroy(stream));
    for (unsigned *memory : {theirs, back, mine}) {
        CUDA_CHECK(cudaFree(memory));
    }
}

// Copies without a stream between the GPUs follow the work of both; what was copied to one is
// there for the next kernel of the other, once the copy is complete.
static void run_waits(Program &program, Random &random) {
    const size_t few = 64, many = 4 << 20;
    unsigned *theirs = allocate<unsigned>(owns, many), *mine = allocate<unsigned>(computes, few);
    std::vector<unsigned> got(few), want(few, 7);
    for (int way = 0; way < 2; ++way) {
        CUDA_CHECK(cudaMemset(mine, 0, few * sizeof(unsigned)));
        CUDA_CHECK(cudaSetDevice(owns));
        CUDA_CHECK(cudaMemset(theirs, 0, few * sizeof(unsigned)));
        synchronize_both();
        CUDA_CHECK(cudaSetDevice(owns));
        write_late<<<1, 1>>>(theirs, few, 7, 2000000);
        LAUNCH_CHECK();
        CUDA_CHECK(cudaSetDevice(computes));
        if (way == 0) {
            CUDA_CHECK(cudaMemcpyPeer(mine, computes, theirs, owns, few * sizeof(unsigned)));
        } else {
            cudaMemcpy3DPeerParms copy = {};
            copy.srcDevice = owns;
            copy.srcPtr = make_cudaPitchedPtr(theirs, few * sizeof(unsigned), few, 1);
            copy.dstDevice = computes;
            copy.dstPtr = make_cudaPitchedPtr(mine, few * sizeof(unsigned), few, 1);
            copy.extent = make_cudaExtent(few * sizeof(unsigned), 1, 1);
            CUDA_CHECK(cudaMemcpy3DPeer(&copy));
        }
        CUDA_CHECK(cudaMemcpy(got.data(), mine, few * sizeof(unsigned), cudaMemcpyDeviceToHost));
        program.expect_equal(way ? "a range of the other GPU's work" : "the other GPU's work", got.data(), want.data(), few);
    }
    std::vector<unsigned> words(many);
    for (int round = 0; round < 4; ++round) {
        for (unsigned &word : words) {
            word = static_cast<unsigned>(random.next());
        }
        CUDA_CHECK(cudaMemset(mine, 0, sizeof(unsigned)));
        CUDA_CHECK(cudaSetDevice(owns));
        CUDA_CHECK(cudaMemcpy(theirs, words.data(), many * sizeof(unsigned), cudaMemcpyHostToDevice));
        // A copy of pageable memory may return before its last bytes are on the device.
        CUDA_CHECK(cudaDeviceSynchronize());
        CUDA_CHECK(cudaSetDevice(computes));
        launch_add(mine, theirs + many - 1, 1);
        CUDA_CHECK(cudaMemcpy(got.data(), mine, sizeof(unsigned), cudaMemcpyDeviceToHost));
        program.expect_equal("the end of a copy to the other GPU", got[0], words.back() + 1);
    }
    CUDA_CHECK(cudaFree(theirs));
    CUDA_CHECK(cudaFree(mine));
}

static void CUDART_CB hold(void *issued) {
    while (!static_cast<std::atomic<bool> *>(issued)->load()) {
        std::this_thread::yield();
    }
}

// Streams of both GPUs in turn, each waiting for the other's last event. Nothing runs until
// everything is issued, so no call may wait for a GPU.
static void run_events(Program &program, size_t count, Random &random) {
    constexpr int turns = 100;
    size_t bytes = count * sizeof(unsigned);
    std::vector<unsigned> words = random_words(random, count), want(count, 0), got(count);
    unsigned *mine = allocate<unsigned>(computes, count), *shared = allocate<unsigned>(owns, count);
    CUDA_CHECK(cudaMemcpy(mine, words.data(), bytes, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemset(shared, 0, bytes));
    synchronize_both();
    int devices[2] = {computes, owns};
    cudaStream_t streams[2];
    cudaEvent_t events[2];
    for (int side = 0; side < 2; ++side) {
        CUDA_CHECK(cudaSetDevice(devices[side]));
        CUDA_CHECK(cudaStreamCreateWithFlags(&streams[side], cudaStreamNonBlocking));
        CUDA_CHECK(cudaEventCreateWithFlags(&events[side], cudaEventDisableTiming));
    }
    std::atomic<bool> issued{false};
    CUDA_CHECK(cudaSetDevice(computes));
    CUDA_CHECK(cudaLaunchHostFunc(streams[0], hold, &issued));
    for (int turn = 0; turn < 2 * turns; ++turn) {
        int side = turn % 2;
        CUDA_CHECK(cudaSetDevice(devices[side]));
        if (turn > 0) {
            CUDA_CHECK(wait_event(streams[side], events[!side]));
        }
        launch_add(shared, side ? shared : mine, count, streams[side]);
        CUDA_CHECK(cudaEventRecord(events[side], streams[side]));
    }
    issued = true;
    synchronize_both();
    for (size_t at = 0; at < count; ++at) {
        for (int turn = 0; turn < turns; ++turn) {
            want[at] = 2 * (want[at] + words[at] + 1) + 1;
        }
    }
    CUDA_CHECK(cudaMemcpy(got.data(), shared, bytes, cudaMemcpyDeviceToHost));
    program.expect_equal("turns", got.data(), want.data(), count);
    program.digest(got.data(), bytes);
    for (int side = 0; side < 2; ++side) {
        CUDA_CHECK(cudaSetDevice(devices[side]));
        CUDA_CHECK(cudaEventDestroy(events[side]));
        CUDA_CHECK(cudaStreamDestroy(streams[side]));
    }
    CUDA_CHECK(cudaFree(shared));
    CUDA_CHECK(cudaSetDevice(computes));
    CUDA_CHECK(cudaFree(mine));
}

// A thread of one GPU destroys streams while threads of the other wait for their events, which
// live on.
static void run_ending_streams(Program &program) {
    constexpr unsigned rounds = 500, waiters = 3;
    unsigned *values = allocate<unsigned>(owns, rounds), *copies = allocate<unsigned>(computes, waiters * rounds);
    std::vector<cudaEvent_t> events(rounds);
    std::atomic<unsigned> recorded{0};
    std::vector<std::thread> threads;
    for (unsigned waiter = 0; waiter < waiters; ++waiter) {
        threads.emplace_back([&, waiter] {
            CUDA_CHECK(cudaSetDevice(computes));
            cudaStream_t stream = nullptr;
            CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            for (unsigned round = 0; round < rounds; ++round) {
                while (recorded <= round) {
                    std::this_thread::yield();
                }
                unsigned *copy = copies + waiter * rounds + round;
                CUDA_CHECK(cudaStreamWaitEvent(stream, events[round], 0));
                CUDA_CHECK(cudaMemcpyPeerAsync(copy, computes, values + round, owns, sizeof(unsigned), stream));
            }
            CUDA_CHECK(cudaStreamDestroy(stream));
        });
    }
    CUDA_CHECK(cudaSetDevice(owns));
    for (unsigned round = 0; round < rounds; ++round) {
        cudaStream_t stream = nullptr;
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaEventCreateWithFlags(&events[round], cudaEventDisableTiming));
        write_late<<<1, 1, 0, stream>>>(values + round, 1, round + 1, 2000);
        LAUNCH_CHECK();
        CUDA_CHECK(cudaEventRecord(events[round], stream));
        recorded = round + 1;
        // At each point of the others' waits.
        for (volatile unsigned pause = round % 100 * 50; pause > 0; pause = pause - 1) {
        }
        CUDA_CHECK(cudaStreamDestroy(stream));
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    synchronize_both();
    std::vector<unsigned> got(waiters * rounds), want(waiters * rounds);
    for (unsigned at = 0; at < waiters * rounds; ++at) {
        want[at] = at % rounds + 1;
    }
    CUDA_CHECK(cudaMemcpy(got.data(), copies, got.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    program.expect_equal("what destroyed streams wrote", got.data(), want.data(), got.size());
    for (cudaEvent_t event : events) {
        CUDA_CHECK(cudaEventDestroy(event));
    }
    CUDA_CHECK(cudaFree(values));
    CUDA_CHECK(cudaFree(copies));
}

// A volume of words of 40 x 12 x 5, in pitched memory or an array of a GPU.
struct Volume {
    static constexpr size_t width = 40, height = 12, depth = 5, words = width * height * depth;
    int device;
    cudaPitchedPtr memory = {};
    cudaArray_t array = nullptr;

    Volume(int where, bool in_array) : device(where) {
        CUDA_CHECK(cudaSetDevice(device));
        if (in_array) {
            cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned>();
            CUDA_CHECK(cudaMalloc3DArray(&array, &format, make_cudaExtent(width, height, depth)));
        } else {
            CUDA_CHECK(cudaMalloc3D(&memory, make_cudaExtent(width * sizeof(unsigned), height, depth)));
        }
        CUDA_CHECK(cudaSetDevice(computes));
    }

    ~Volume() {
        CUDA_CHECK(array ? cudaFreeArray(array) : cudaFree(memory.ptr));
    }

    // A copy from or to packed words of the program, while another GPU is current.
    void exchange(unsigned *host, bool to_device) const {
        cudaMemcpy3DParms copy = {};
        cudaPitchedPtr packed = make_cudaPitchedPtr(host, width * sizeof(unsigned), width, height);
        (to_device ? copy.srcPtr : copy.dstPtr) = packed;
        (to_device ? copy.dstPtr : copy.srcPtr) = memory;
        (to_device ? copy.dstArray : copy.srcArray) = array;
        copy.extent = make_cudaExtent(array ? width : width * sizeof(unsigned), height, depth);
        copy.kind = to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
        CUDA_CHECK(cudaMemcpy3D(&copy));
    }
};

// Part of a volume from GPU to GPU, in both directions, among pitched memory and arrays.
static void run_volumes(Program &program, Random &random) {
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    for (int kinds = 0; kinds < 8; ++kinds) {
        bool there = kinds & 1;
        Volume from(there ? owns : computes, kinds & 2), to(there ? computes : owns, kinds & 4);
        std::vector<unsigned> source = random_words(random, Volume::words), want(Volume::words, 7), got(Volume::words);
        from.exchange(source.data(), true);
        to.exchange(want.data(), true);
        size_t width = 1 + random.below(30), height = 1 + random.below(8), depth = 1 + random.below(3);
        size_t x = random.below(10), y = random.below(4), z = random.below(2);
        cudaMemcpy3DPeerParms copy = {};
        copy.srcDevice = from.device;
        copy.dstDevice = to.device;
        copy.srcPtr = from.memory;
        copy.dstPtr = to.memory;
        copy.srcArray = from.array;
        copy.dstArray = to.array;
        // Positions and extent count elements if an array takes part, else bytes.
        size_t unit = from.array || to.array ? 1 : sizeof(unsigned);
        copy.srcPos = make_cudaPos(x * unit, y, z);
        copy.dstPos = make_cudaPos(2 * unit, 1, 1);
        copy.extent = make_cudaExtent(width * unit, height, depth);
        if (random.below(2)) {
            CUDA_CHECK(cudaMemcpy3DPeer(&copy));
        } else {
            CUDA_CHECK(cudaMemcpy3DPeerAsync(&copy, stream));
            CUDA_CHECK(cudaStreamSynchronize(stream));
        }
        for (size_t slice = 0; slice < depth; ++slice) {
            for (size_t row = 0; row < height; ++row) {
                for (size_t column = 0; column < width; ++column) {
                    want[((slice + 1) * Volume::height + row + 1) * Volume::width + column + 2] =
                        source[((slice + z) * Volume::height + row + y) * Volume::width + column + x];
                }
            }
        }
        synchronize_both();
        CUDA_CHECK(cudaSetDevice(computes));
        to.exchange(got.data(), false);
        program.expect_equal("a volume", got.data(), want.data(), Volume::words);
        program.digest(got.data(), Volume::words * sizeof(unsigned));
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
}

// Copies between the host and memory that the current GPU may not reach, then from GPU to
// GPU in part, of rows of which at most 4 MiB are copied at once, so in three parts.
static void run_long_rows(Program &program, Random &random) {
    constexpr size_t words = (9 << 18) + 7, skipped = 3, rows = 2, count = rows * words;
    constexpr size_t row_bytes = words * sizeof(unsigned), bytes = count * sizeof(unsigned);
    std::vector<unsigned> source = random_words(random, count), want(count, 0), got(count);
    unsigned *theirs = allocate<unsigned>(owns, count), *mine = allocate<unsigned>(computes, count);
    CUDA_CHECK(cudaMemcpy(theirs, source.data(), bytes, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaMemcpy(got.data(), theirs, bytes, cudaMemcpyDeviceToHost));
    program.expect_equal("memory of a GPU that is not current", got.data(), source.data(), count);
    CUDA_CHECK(cudaMemset(mine, 0, bytes));
    synchronize_both();
    cudaMemcpy3DPeerParms copy = {};
    copy.srcDevice = owns;
    copy.dstDevice = computes;
    copy.srcPtr = make_cudaPitchedPtr(theirs, row_bytes, row_bytes, rows);
    copy.dstPtr = make_cudaPitchedPtr(mine, row_bytes, row_bytes, rows);
    copy.srcPos = make_cudaPos(skipped * sizeof(unsigned), 0, 0);
    copy.extent = make_cudaExtent(row_bytes - skipped * sizeof(unsigned), rows, 1);
    CUDA_CHECK(cudaMemcpy3DPeer(&copy));
    for (size_t row = 0; row < rows; ++row) {
        for (size_t column = skipped; column < words; ++column) {
            want[row * words + column - skipped] = source[row * words + column];
        }
    }
    synchronize_both();
    CUDA_CHECK(cudaMemcpy(got.data(), mine, bytes, cudaMemcpyDeviceToHost));
    program.expect_equal("long rows", got.data(), want.data(), count);
    CUDA_CHECK(cudaFree(theirs));
    CUDA_CHECK(cudaFree(mine));
}

// Memory that the program maps, with access for both.
static void run_mapped(Program &program, Random &random) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = owns;
    size_t grain = 0;
    DRIVER_CHECK(cuMemGetAllocationGranularity, &grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CUDA_CHECK(cudaSetDevice(owns));
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    DRIVER_CHECK(cuMemCreate, &handle, grain, &prop, 0);
    DRIVER_CHECK(cuMemAddressReserve, &base, grain, 0, 0, 0);
    DRIVER_CHECK(cuMemMap, base, grain, 0, handle, 0);
    CUmemAccessDesc access[2] = {};
    for (int side = 0; side < 2; ++side) {
        access[side].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access[side].location.id = side ? computes : owns;
        access[side].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    DRIVER_CHECK(cuMemSetAccess, base, grain, access, 2);
    for (CUmemAccessDesc &desc : access) {
        unsigned long long flags = 0;
        DRIVER_CHECK(cuMemGetAccess, &flags, &desc.location, base);
        program.expect_equal("access", flags, 3ull);
    }
    CUDA_CHECK(cudaSetDevice(computes));
    check_memory(program, reinterpret_cast<unsigned *>(base), 2000, random);
    // The same memory at addresses that the other GPU reserves, for itself alone.
    CUdeviceptr other = 0;
    DRIVER_CHECK(cuMemAddressReserve, &other, grain, 0, 0, 0);
    DRIVER_CHECK(cuMemMap, other, grain, 0, handle, 0);
    DRIVER_CHECK(cuMemSetAccess, other, grain, access + 1, 1);
    std::vector<unsigned> words = random_words(random, 2000), got(2000);
    CUDA_CHECK(cudaMemcpy(reinterpret_cast<void *>(base), words.data(), words.size() * sizeof(unsigned), cudaMemcpyHostToDevice));
    synchronize_both();
    launch_add(reinterpret_cast<unsigned *>(other), reinterpret_cast<unsigned *>(other), words.size());
    synchronize_both();
    CUDA_CHECK(cudaMemcpy(got.data(), reinterpret_cast<void *>(base), got.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    for (unsigned &word : words) {
        word = 2 * word + 1;
    }
    program.expect_equal("memory at two addresses", got.data(), words.data(), got.size());
    DRIVER_CHECK(cuMemUnmap, other, grain);
    DRIVER_CHECK(cuMemAddressFree, other, grain);
    DRIVER_CHECK(cuMemUnmap, base, grain);
    DRIVER_CHECK(cuMemAddressFree, base, grain);
    DRIVER_CHECK(cuMemRelease, handle);
}

// The stream in which memory of a pool is freed writes to it before. Memory allocated in
// the meantime keeps its contents.
static void free_behind_work(Program &program) {
    constexpr size_t COUNT = 1000;
    cudaStream_t freeing, allocating;
    unsigned *memory = nullptr, *others[16] = {}, got = 0;
    CUDA_CHECK(cudaSetDevice(owns));
    CUDA_CHECK(cudaStreamCreateWithFlags(&allocating, cudaStreamNonBlocking));
    CUDA_CHECK(cudaMallocAsync(&memory, COUNT * sizeof(unsigned), allocating));
    CUDA_CHECK(cudaStreamSynchronize(allocating));
    CUDA_CHECK(cudaSetDevice(computes));
    CUDA_CHECK(cudaStreamCreateWithFlags(&freeing, cudaStreamNonBlocking));
    write_late<<<1, 1, 0, freeing>>>(memory, COUNT, 9, 3000000);
    LAUNCH_CHECK();
    CUDA_CHECK(cudaFreeAsync(memory, freeing));
    CUDA_CHECK(cudaSetDevice(owns));
    for (unsigned *&other : others) {
        CUDA_CHECK(cudaMallocAsync(&other, COUNT * sizeof(unsigned), allocating));
        CUDA_CHECK(cudaMemsetAsync(other, 0, COUNT * sizeof(unsigned), allocating));
    }
    CUDA_CHECK(cudaStreamSynchronize(allocating));
    CUDA_CHECK(cudaStreamSynchronize(freeing));
    for (unsigned *other : others) {
        CUDA_CHECK(cudaMemcpy(&got, other, sizeof got, cudaMemcpyDeviceToHost));
        program.expect_equal("memory allocated behind a free of another stream", got, 0u);
        CUDA_CHECK(cudaFreeAsync(other, allocating));
    }
    CUDA_CHECK(cudaStreamSynchronize(allocating));
    CUDA_CHECK(cudaStreamDestroy(allocating));
    CUDA_CHECK(cudaStreamDestroy(freeing));
}

// Textures of both GPUs, which may have equal values.
static void run_textures(Program &program) {
    cudaTextureObject_t textures[2];
    float *memory[2];
    for (int side = 0; side < 2; ++side) {
        memory[side] = allocate<float>(side ? computes : owns, 1024);
        CUDA_CHECK(cudaSetDevice(side ? computes : owns));
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeLinear;
        resource.res.linear.devPtr = memory[side];
        resource.res.linear.desc = cudaCreateChannelDesc<float>();
        resource.res.linear.sizeInBytes = 1024 * sizeof(float);
        cudaTextureDesc sampling = {};
        sampling.readMode = cudaReadModeElementType;
        CUDA_CHECK(cudaCreateTextureObject(&textures[side], &resource, &sampling, nullptr));
    }
    for (int side = 0; side < 2; ++side) {
        CUDA_CHECK(cudaSetDevice(side ? computes : owns));
        cudaResourceDesc resource = {};
        CUDA_CHECK(cudaGetTextureObjectResourceDesc(&resource, textures[side]));
        program.expect(resource.res.linear.devPtr == memory[side], "a texture has the memory of another");
    }
    for (int side = 0; side < 2; ++side) {
        CUDA_CHECK(cudaSetDevice(side ? computes : owns));
        CUDA_CHECK(cudaDestroyTextureObject(textures[side]));
        // A second time it does nothing.
        CUDA_CHECK(cudaDestroyTextureObject(textures[side]));
        CUDA_CHECK(cudaFree(memory[side]));
    }
    CUDA_CHECK(cudaSetDevice(computes));
}

static void run_pool(Program &program, Random &random) {
    cudaMemPool_t pool = nullptr;
    CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool, owns));
    cudaMemAccessDesc access = {};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = computes;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    if (owns != computes) {
        cudaMemAccessFlags flags = cudaMemAccessFlagsProtReadWrite;
        CUDA_CHECK(cudaMemPoolGetAccess(&flags, pool, &access.location));
        program.expect_equal("a pool's access before", static_cast<int>(flags), 0);
        CUDA_CHECK(cudaMemPoolSetAccess(pool, &access, 1));
        CUDA_CHECK(cudaMemPoolGetAccess(&flags, pool, &access.location));
        program.expect_equal("a pool's access", static_cast<int>(flags), 3);
    }
    CUDA_CHECK(cudaSetDevice(owns));
    unsigned *memory = nullptr;
    CUDA_CHECK(cudaMallocAsync(&memory, 5000 * sizeof(unsigned), nullptr));
    synchronize_both();
    check_memory(program, memory, 5000, random);
    synchronize_both();
    CUDA_CHECK(cudaSetDevice(owns));
    CUDA_CHECK(cudaFreeAsync(memory, nullptr));
    CUDA_CHECK(cudaDeviceSynchronize());
    free_behind_work(program);
    if (owns != computes) {
        access.flags = cudaMemAccessFlagsProtNone;
        CUDA_CHECK(cudaMemPoolSetAccess(pool, &access, 1));
    }
    CUDA_CHECK(cudaSetDevice(computes));
}

static void expect_code(Program &program, const char *what, cudaError_t got, cudaError_t want) {
    program.expect_equal(what, static_cast<int>(got), static_cast<int>(want));
    cudaGetLastError();
}

int main(int argc, char **argv) {
    Program program("peerAccess", "computes in the memory of another GPU", "thousands of words", 1000, 1, 1000000);
    program.parse(argc, argv);
    int devices = 0, self = 1, reaches = 0;
    CUDA_CHECK(cudaGetDeviceCount(&devices));
    CUDA_CHECK(cudaDeviceCanAccessPeer(&self, 0, 0));
    program.expect_equal("a GPU is no peer of its own", self, 0);
    if (devices > 1) {
        CUDA_CHECK(cudaDeviceCanAccessPeer(&reaches, 0, 1));
        owns = reaches ? 1 : 0;
    }
    CUDA_CHECK(cudaSetDevice(owns));
    CUDA_CHECK(cudaFree(nullptr));
    CUDA_CHECK(cudaSetDevice(computes));
    CUDA_CHECK(cudaFree(nullptr));
    while (program.next_round()) {
        Random random(program.seed());
        size_t count = static_cast<size_t>(program.size()) * 1000;
        // `before` is allocated before peer access is enabled, the others after.
        unsigned *before = allocate<unsigned>(owns, count);
        run_volumes(program, random);
        run_long_rows(program, random);
        if (reaches) {
            expect_code(program, "not enabled", cudaDeviceDisablePeerAccess(owns), cudaErrorPeerAccessNotEnabled);
            CUDA_CHECK(cudaDeviceEnablePeerAccess(owns, 0));
            expect_code(program, "enabled", cudaDeviceEnablePeerAccess(owns, 0), cudaErrorPeerAccessAlreadyEnabled);
        }
        run_volumes(program, random);
        check_memory(program, before, count, random);
        run_allocations(program, count, random);
        run_atomics(program);
        run_copies(program, count, random);
        run_waits(program, random);
        run_events(program, 1000, random);
        run_ending_streams(program);
        run_mapped(program, random);
        if (reaches) {
            synchronize_both();
            CUDA_CHECK(cudaDeviceDisablePeerAccess(owns));
        }
        run_pool(program, random);
        run_textures(program);
        CUDA_CHECK(cudaFree(before));
    }
    return program.finish();
}
