// deviceMalloc: kernels that allocate with malloc and new, and free.
//
// One kernel builds a list for each thread, node by node, from the device's heap;
// a second walks and sums the lists; a third frees them. Then the heap must have
// the same capacity as before: a thread fills it, counts, and frees all. A request
// larger than the heap returns null.

#include "common/check.h"

#include <vector>

struct Node {
    unsigned value;
    Node *next;
};

__device__ unsigned mixed(unsigned thread, unsigned n) { return (thread * 2654435761u) ^ (n * 40503u); }

__global__ void build(Node **heads, unsigned count, unsigned length) {
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= count) {
        return;
    }
    Node *head = nullptr;
    for (unsigned n = 0; n < thread % length + 1; ++n) {
        Node *node = n % 2 ? new Node : static_cast<Node *>(malloc(sizeof(Node)));
        if (node == nullptr) {
            break;
        }
        node->value = mixed(thread, n);
        node->next = head;
        head = node;
    }
    heads[thread] = head;
}

__global__ void sum(Node *const *heads, unsigned *sums, unsigned count) {
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= count) {
        return;
    }
    unsigned total = 0;
    for (const Node *node = heads[thread]; node != nullptr; node = node->next) {
        total += node->value;
    }
    sums[thread] = total;
}

__global__ void release(Node **heads, unsigned count) {
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= count) {
        return;
    }
    for (Node *node = heads[thread]; node != nullptr;) {
        Node *next = node->next;
        free(node);
        node = next;
    }
}

// The number of 4 KiB blocks that the heap holds, and whether it returns null when full.
__global__ void capacity(unsigned *blocks, unsigned long long heap) {
    void **last = nullptr;
    unsigned count = 0;
    while (void **block = static_cast<void **>(malloc(4096))) {
        *block = last;
        last = block;
        ++count;
    }
    while (last != nullptr) {
        void **before = static_cast<void **>(*last);
        free(last);
        last = before;
    }
    void *all = malloc(heap + 1);
    free(nullptr);
    blocks[0] = count;
    blocks[1] = all == nullptr;
    free(all);
}

int main(int argc, char **argv) {
    Program program("deviceMalloc", "builds lists from the device's heap", "lists", 1000, 1, 20000);
    program.parse(argc, argv);
    constexpr unsigned length = 7, block_size = 64;
    unsigned count = static_cast<unsigned>(program.size()), grid = (count + block_size - 1) / block_size;

    CUDA_CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 20));
    size_t heap = 0;
    CUDA_CHECK(cudaDeviceGetLimit(&heap, cudaLimitMallocHeapSize));
    program.expect(heap >= 16 << 20, "the heap is smaller than was set");

    std::vector<unsigned> sums(count), want(count);
    for (unsigned thread = 0; thread < count; ++thread) {
        for (unsigned n = 0; n < thread % length + 1; ++n) {
            want[thread] += (thread * 2654435761u) ^ (n * 40503u);
        }
    }
    DeviceArray<Node *> heads(count);
    DeviceArray<unsigned> device_sums(count), device_blocks(2);

    while (program.next_round()) {
        unsigned before[2] = {}, after[2] = {};
        capacity<<<1, 1>>>(device_blocks.get(), heap);
        LAUNCH_CHECK();
        device_blocks.download(before);
        device_sums.spoil();
        build<<<grid, block_size>>>(heads.get(), count, length);
        LAUNCH_CHECK();
        sum<<<grid, block_size>>>(heads.get(), device_sums.get(), count);
        LAUNCH_CHECK();
        release<<<grid, block_size>>>(heads.get(), count);
        LAUNCH_CHECK();
        device_sums.download(sums.data());
        capacity<<<1, 1>>>(device_blocks.get(), heap);
        LAUNCH_CHECK();
        device_blocks.download(after);
        program.digest(sums.data(), count * sizeof(unsigned));
        program.expect_equal("the sums", sums.data(), want.data(), count);
        program.expect(before[0] > 1000 && before[1] == 1, "a full heap did not return null");
        // The remainder is at the heap's end, and perhaps where the search began.
        program.expect(after[0] + 1 >= before[0], "memory that kernels freed cannot be allocated again");
    }
    return program.finish();
}
