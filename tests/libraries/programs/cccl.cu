// CUB: scans and sums of runs in a single pass. Their blocks pass partial results to
// later blocks, as messages of 8 or 16 bytes that hold a status and a value.

#include "library.h"

#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>

// Calls an algorithm with the memory that it asks for.
template <typename Algorithm> static void run(Algorithm algorithm) {
    size_t bytes = 0;
    CUDA_CHECK(algorithm(nullptr, bytes));
    DeviceArray<char> room(bytes);
    CUDA_CHECK(algorithm(room.get(), bytes));
}

template <typename T> static void scan(Program &program, const char *what, size_t count) {
    Random random(program.seed());
    std::vector<T> numbers(count), want(count);
    T sum = 0;
    for (size_t at = 0; at < count; ++at) {
        numbers[at] = static_cast<T>(random.below(1000));
        want[at] = sum += numbers[at];
    }
    DeviceArray<T> in(count), out(count);
    in.upload(numbers.data());
    for (int round = 0; round < 8; ++round) {
        out.spoil();
        run([&](void *room, size_t &bytes) {
            return cub::DeviceScan::InclusiveSum(room, bytes, in.get(), out.get(), static_cast<int>(count));
        });
        program.expect_equal(what, downloaded(out).data(), want.data(), count);
    }
    program.digest(want.data(), count * sizeof(T));
}

// Lengths of runs of equal keys.
static void runs(Program &program, size_t count) {
    Random random(program.seed());
    std::vector<uint32_t> keys(count), starts, sizes;
    for (size_t at = 0; at < count; ++at) {
        keys[at] = at && random.below(5) ? keys[at - 1] : static_cast<uint32_t>(at);
        if (!at || keys[at] != keys[at - 1]) {
            starts.push_back(keys[at]);
            sizes.push_back(0);
        }
        ++sizes.back();
    }
    std::vector<uint32_t> ones(count, 1);
    DeviceArray<uint32_t> in(count), values(count), first(count), sums(count), number(1);
    in.upload(keys.data());
    values.upload(ones.data());
    for (int round = 0; round < 8; ++round) {
        first.spoil();
        sums.spoil();
        run([&](void *room, size_t &bytes) {
            return cub::DeviceReduce::ReduceByKey(room, bytes, in.get(), first.get(), values.get(), sums.get(),
                                                  number.get(), cuda::std::plus<>{}, static_cast<int>(count));
        });
        program.expect_equal("the number of runs", downloaded(number)[0], static_cast<uint32_t>(starts.size()));
        program.expect_equal("first keys", downloaded(first).data(), starts.data(), starts.size());
        program.expect_equal("sums of runs", downloaded(sums).data(), sizes.data(), sizes.size());
    }
    program.digest(sizes.data(), sizes.size() * sizeof(uint32_t));
}

int main(int argc, char **argv) {
    Program program("cccl", "scans and sums of runs by CUB", "elements", 1 << 17, 1, 1 << 24);
    program.parse(argc, argv);
    while (program.next_round()) {
        size_t count = static_cast<size_t>(program.size());
        scan<int>(program, "a scan of int", count);
        scan<double>(program, "a scan of double", count);
        scan<long long>(program, "a scan of long long", count);
        runs(program, count);
    }
    return program.finish();
}
