// symbolsAndGlobals: device variables, accessed by symbol.
//
// __device__ and __constant__ variables with and without initial values, scalars,
// arrays, structures and pointers; cudaMemcpyToSymbol and FromSymbol (plain,
// asynchronous, with offsets, from device memory), cudaGetSymbolAddress and Size.

#include "common/check.h"

#include <vector>

struct Settings {
    int scale;
    float weight;
    unsigned char mask[8];
};

constexpr int table_size = 100;

__device__ int counter = 7;
__device__ unsigned table[table_size];
__device__ double precise = 2.5;
__device__ int *target;
__device__ Settings device_settings = {3, 0.5f, {1, 2, 4, 8, 16, 32, 64, 128}};
__constant__ Settings settings = {10, 0.25f, {0, 1, 2, 3, 4, 5, 6, 7}};
__constant__ int factors[table_size];
__constant__ char greeting[] = "constant text";
static __device__ short hidden[3] = {-1, -2, -3};

struct Report {
    int count;
    double number;
    Settings from_device;
    Settings from_constant;
    char text[sizeof greeting];
    short small[3];
};

__global__ void report(Report *out) {
    out->count = counter++;
    out->number = precise;
    out->from_device = device_settings;
    out->from_constant = settings;
    for (unsigned at = 0; at < sizeof greeting; ++at) {
        out->text[at] = greeting[at];
    }
    for (int at = 0; at < 3; ++at) {
        out->small[at] = hidden[at];
        hidden[at] -= 10;
    }
}

__global__ void use_tables() {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < table_size) {
        table[at] = table[at] * factors[at] + settings.scale;
        target[at] = static_cast<int>(table[at]) - counter;
    }
}

__global__ void through_pointer(unsigned *values, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] ^= 0xffu;
    }
}

// Initial values are loaded, and a kernel's changes persist.
static void check_report(Program &program, const DeviceArray<Report> &out, int count, const Settings &constant) {
    report<<<1, 1>>>(out.get());
    LAUNCH_CHECK();
    Report got;
    out.download(&got);
    program.expect_equal("counter", got.count, 7 + count);
    program.expect_equal("precise", got.number, 2.5);
    program.expect_equal("scale on the device", got.from_device.scale, 3);
    program.expect_equal("mask[7] on the device", int(got.from_device.mask[7]), 128);
    program.expect_equal("scale in constant memory", got.from_constant.scale, constant.scale);
    program.expect_equal("weight in constant memory", got.from_constant.weight, constant.weight);
    program.expect_equal("mask in constant memory", got.from_constant.mask, constant.mask, 8);
    program.expect(!std::memcmp(got.text, "constant text", sizeof "constant text"), "the constant text is wrong");
    program.expect_equal("hidden[2]", int(got.small[2]), -3 - 10 * count);
}

static void check_sizes(Program &program) {
    size_t bytes = 0;
    void *address = nullptr, *again = nullptr;
    CUDA_CHECK(cudaGetSymbolSize(&bytes, table));
    program.expect_equal("the size of table", bytes, sizeof table);
    CUDA_CHECK(cudaGetSymbolSize(&bytes, settings));
    program.expect_equal("the size of settings", bytes, sizeof(Settings));
    CUDA_CHECK(cudaGetSymbolSize(&bytes, greeting));
    program.expect_equal("the size of greeting", bytes, sizeof "constant text");
    CUDA_CHECK(cudaGetSymbolAddress(&address, factors));
    CUDA_CHECK(cudaGetSymbolAddress(&again, factors));
    program.expect(address && address == again, "the address of factors changed");
    CUDA_CHECK(cudaGetSymbolAddress(&again, counter));
    program.expect(again && address != again, "two symbols have the same address");
}

int main(int argc, char **argv) {
    Program program("symbolsAndGlobals", "reaches device variables by symbol", "elements used of the tables", table_size,
                    8, table_size);
    program.parse(argc, argv);
    int count = static_cast<int>(program.size());
    Random random(program.seed());
    DeviceArray<Report> out(1);
    DeviceArray<int> targets(table_size);
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    Settings constant = {10, 0.25f, {0, 1, 2, 3, 4, 5, 6, 7}};
    int round = 0;

    while (program.next_round()) {
        check_report(program, out, round, constant);
        check_sizes(program);

        // A member alone, by its offset.
        constant.weight = random.sixteenth();
        CUDA_CHECK(cudaMemcpyToSymbol(settings, &constant.weight, sizeof(float), offsetof(Settings, weight)));

        std::vector<unsigned> start(table_size), got(table_size), want(table_size);
        std::vector<int> factor(table_size), want_targets(table_size), got_targets(table_size);
        for (int at = 0; at < table_size; ++at) {
            start[at] = static_cast<unsigned>(random.next());
            factor[at] = at < count ? static_cast<int>(random.below(1000)) : 1;
        }
        CUDA_CHECK(cudaMemcpyToSymbolAsync(table, start.data(), sizeof table, 0, cudaMemcpyHostToDevice, stream));
        // The factors in two parts, the second from device memory.
        DeviceArray<int> device_factor(factor.data(), table_size);
        CUDA_CHECK(cudaMemcpyToSymbol(factors, factor.data(), 5 * sizeof(int)));
        CUDA_CHECK(cudaMemcpyToSymbol(factors, device_factor.get() + 5, (table_size - 5) * sizeof(int),
                                      5 * sizeof(int), cudaMemcpyDeviceToDevice));
        int *pointer = targets.get();
        CUDA_CHECK(cudaMemcpyToSymbol(target, &pointer, sizeof pointer));
        CUDA_CHECK(cudaStreamSynchronize(stream));

        ++round;
        use_tables<<<4, 32, 0, stream>>>();
        LAUNCH_CHECK();
        void *address = nullptr;
        CUDA_CHECK(cudaGetSymbolAddress(&address, table));
        through_pointer<<<1, 128, 0, stream>>>(static_cast<unsigned *>(address), count);
        LAUNCH_CHECK();
        for (int at = 0; at < table_size; ++at) {
            unsigned value = start[at] * factor[at] + constant.scale;
            want_targets[at] = static_cast<int>(value) - (7 + round);
            want[at] = at < count ? value ^ 0xffu : value;
        }
        CUDA_CHECK(cudaMemcpyFromSymbolAsync(got.data(), table, sizeof table, 0, cudaMemcpyDeviceToHost, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        targets.download(got_targets.data());
        program.expect_equal("the table", got.data(), want.data(), table_size);
        program.expect_equal("the values behind the pointer", got_targets.data(), want_targets.data(), table_size);
        program.digest(got.data(), sizeof table);

        unsigned part[3] = {};
        CUDA_CHECK(cudaMemcpyFromSymbol(part, table, sizeof part, 4 * sizeof(unsigned)));
        program.expect_equal("part of the table", part, &want[4], 3);
        CUDA_CHECK(cudaMemcpy(part, static_cast<unsigned *>(address) + 1, sizeof part, cudaMemcpyDeviceToHost));
        program.expect_equal("the table by its address", part, &want[1], 3);
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
    return program.finish();
}
