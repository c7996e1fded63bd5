// vectorAdd: c = a + b, the smallest complete program.
//
// One IEEE addition per element, so the CPU's result is compared bit for bit.

#include "common/check.h"

#include <vector>

__global__ void add(const float *a, const float *b, float *c, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        c[at] = a[at] + b[at];
    }
}

int main(int argc, char **argv) {
    Program program("vectorAdd", "adds two vectors", "elements", 1000003, 1, 1L << 30);
    program.parse(argc, argv);
    size_t count = static_cast<size_t>(program.size());

    Random random(program.seed());
    std::vector<float> a(count), b(count), c(count), want(count);
    for (size_t at = 0; at < count; ++at) {
        a[at] = random.uniform(-1, 1);
        b[at] = random.uniform(-1000, 1000);
        want[at] = a[at] + b[at];
    }
    DeviceArray<float> device_a(a.data(), count), device_b(b.data(), count), device_c(count);

    while (program.next_round()) {
        device_c.spoil();
        add<<<blocks_for(count, 256), 256>>>(device_a.get(), device_b.get(), device_c.get(), count);
        LAUNCH_CHECK();
        device_c.download(c.data());
        program.digest(c.data(), count * sizeof(float));
        program.expect_equal("c", c.data(), want.data(), count);
    }
    return program.finish();
}
