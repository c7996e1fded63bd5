// hostMemory: pools of pinned and managed memory, and host memory that the program
// maps itself.
//
// Program and kernels alternate on memory from such pools; memory freed in a stream is
// reused in stream order; statistics, limits, access rights and current pools. Memory
// created on the host keeps its contents across maps and accesses. And refused calls.

#include "common/driver.h"

#include <cstdint>
#include <vector>

__global__ void add(unsigned *values, unsigned more, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] += more + static_cast<unsigned>(at);
    }
}

static void launch(unsigned *values, unsigned more, size_t count, cudaStream_t stream = nullptr) {
    add<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(values, more, count);
    LAUNCH_CHECK();
}

static int attribute(CUdevice_attribute which) {
    int device = 0, value = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    DRIVER_CHECK(cuDeviceGetAttribute, &value, which, device);
    return value;
}

static cudaMemLocation location(cudaMemLocationType type, int id = 0) {
    cudaMemLocation location = {};
    location.type = type;
    location.id = id;
    return location;
}

static cudaMemLocation device() {
    int number = 0;
    CUDA_CHECK(cudaGetDevice(&number));
    return location(cudaMemLocationTypeDevice, number);
}

static cudaMemPoolProps properties(cudaMemAllocationType type, cudaMemLocation where, size_t most = 0) {
    cudaMemPoolProps props = {};
    props.allocType = type;
    props.location = where;
    props.maxSize = most;
    return props;
}

static void allow(cudaMemPool_t pool) {
    cudaMemAccessDesc desc = {};
    desc.location = device();
    desc.flags = cudaMemAccessFlagsProtReadWrite;
    CUDA_CHECK(cudaMemPoolSetAccess(pool, &desc, 1));
}

static uint64_t level(cudaMemPool_t pool, cudaMemPoolAttr which) {
    uint64_t value = 0;
    CUDA_CHECK(cudaMemPoolGetAttribute(pool, which, &value));
    return value;
}

// Program and kernel alternate on the same addresses.
static void take_turns(Program &program, const char *what, unsigned *values, size_t count, cudaStream_t stream,
                       Random &random) {
    std::vector<unsigned> want(count);
    for (int turn = 0; turn < 3; ++turn) {
        for (size_t at = 0; at < count; ++at) {
            want[at] = values[at] = static_cast<unsigned>(random.next());
        }
        unsigned more = random.below(1000);
        launch(values, more, count, stream);
        CUDA_CHECK(cudaStreamSynchronize(stream));
        for (size_t at = 0; at < count; ++at) {
            want[at] += more + static_cast<unsigned>(at);
        }
        program.expect_equal(what, values, want.data(), count);
    }
    // By copies, in both directions.
    std::vector<unsigned> got(count);
    CUDA_CHECK(cudaMemcpyAsync(got.data(), values, count * sizeof(unsigned), cudaMemcpyDefault, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect_equal(what, got.data(), want.data(), count);
    for (unsigned &value : got) {
        value = ~value;
    }
    CUDA_CHECK(cudaMemcpyAsync(values, got.data(), count * sizeof(unsigned), cudaMemcpyDefault, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    program.expect_equal(what, values, got.data(), count);
    program.digest(values, count * sizeof(unsigned));
}

static void run_pool(Program &program, const char *what, const cudaMemPoolProps &props, size_t count, Random &random) {
    size_t bytes = count * sizeof(unsigned);
    bool is_managed = props.allocType == cudaMemAllocationTypeManaged;
    cudaMemPool_t pool = nullptr;
    cudaStream_t stream = nullptr;
    CUDA_CHECK(cudaMemPoolCreate(&pool, &props));
    CUDA_CHECK(cudaStreamCreate(&stream));
    cudaMemLocation where = device();
    cudaMemAccessFlags flags = cudaMemAccessFlagsProtNone;
    if (!is_managed) {
        CUDA_CHECK(cudaMemPoolGetAccess(&flags, pool, &where));
        program.expect_equal("a device's access before it is given", static_cast<int>(flags), 0);
        allow(pool);
        CUDA_CHECK(cudaMemPoolGetAccess(&flags, pool, &where));
        program.expect_equal("a device's access", static_cast<int>(flags), 3);
    }
    unsigned *values = nullptr;
    CUDA_CHECK(cudaMallocFromPoolAsync(reinterpret_cast<void **>(&values), bytes, pool, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    take_turns(program, what, values, count, stream, random);

    cudaPointerAttributes attributes = {};
    CUDA_CHECK(cudaPointerGetAttributes(&attributes, values + 1));
    program.expect_equal("the type of a pool's memory", static_cast<int>(attributes.type),
                         static_cast<int>(is_managed ? cudaMemoryTypeManaged : cudaMemoryTypeHost));
    CUmemoryPool from = nullptr;
    DRIVER_CHECK(cuPointerGetAttribute, &from, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                 reinterpret_cast<CUdeviceptr>(values));
    program.expect(from == reinterpret_cast<CUmemoryPool>(pool), "memory has a different pool");
    program.expect_equal<uint64_t>("bytes in use", level(pool, cudaMemPoolAttrUsedMemCurrent), bytes);

    // Freed and allocated again in a stream, without a wait: each kernel sees what the
    // copy before it wrote, whichever block it got.
    std::vector<unsigned> want(count), got(count);
    CUDA_CHECK(cudaFreeAsync(values, stream));
    for (unsigned turn = 0; turn < 20; ++turn) {
        for (size_t at = 0; at < count; ++at) {
            want[at] = static_cast<unsigned>(random.next());
        }
        CUDA_CHECK(cudaMallocFromPoolAsync(reinterpret_cast<void **>(&values), bytes, pool, stream));
        CUDA_CHECK(cudaMemcpyAsync(values, want.data(), bytes, cudaMemcpyDefault, stream));
        launch(values, turn, count, stream);
        CUDA_CHECK(cudaMemcpyAsync(got.data(), values, bytes, cudaMemcpyDefault, stream));
        CUDA_CHECK(cudaFreeAsync(values, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        for (size_t at = 0; at < count; ++at) {
            want[at] += turn + static_cast<unsigned>(at);
        }
        program.expect_equal("memory that was freed and taken again", got.data(), want.data(), count);
    }
    program.expect_equal<uint64_t>("bytes in use after all were freed", level(pool, cudaMemPoolAttrUsedMemCurrent), 0);
    program.expect_equal<uint64_t>("most bytes in use", level(pool, cudaMemPoolAttrUsedMemHigh), bytes);
    CUDA_CHECK(cudaMemPoolTrimTo(pool, 0));

    // cudaFree works as well; a second free fails.
    CUDA_CHECK(cudaMallocFromPoolAsync(reinterpret_cast<void **>(&values), bytes, pool, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaFree(values));
    program.expect(cudaFree(values) != cudaSuccess, "memory could be freed twice");
    cudaGetLastError();
    CUDA_CHECK(cudaMemPoolDestroy(pool));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

// Pools by location, and the pool that allocations come from.
static void run_places(Program &program, const cudaMemPoolProps &props) {
    cudaMemLocation where = props.location;
    cudaMemPool_t first = nullptr, now = nullptr, own = nullptr;
    CUDA_CHECK(cudaMemGetDefaultMemPool(&first, &where, props.allocType));
    CUDA_CHECK(cudaMemGetMemPool(&now, &where, props.allocType));
    program.expect(first && first == now, "the default pool is not current");
    CUDA_CHECK(cudaMemPoolCreate(&own, &props));
    CUDA_CHECK(cudaMemSetMemPool(&where, props.allocType, own));
    CUDA_CHECK(cudaMemGetMemPool(&now, &where, props.allocType));
    program.expect(now == own, "the pool that was set is not current");
    // A pool of another location.
    int number = 0;
    cudaMemPool_t other = nullptr;
    CUDA_CHECK(cudaGetDevice(&number));
    CUDA_CHECK(cudaDeviceGetDefaultMemPool(&other, number));
    program.expect(cudaMemSetMemPool(&where, props.allocType, other) == cudaErrorInvalidValue,
                   "the host's pool could be set to a device's");
    if (props.location.type != cudaMemLocationTypeDevice) {
        program.expect(cudaDeviceSetMemPool(number, own) == cudaErrorInvalidValue, "a device's pool could be set to the host's");
    }
    CUDA_CHECK(cudaMemPoolDestroy(own));
    // Drivers differ in which pool is current afterwards.
    CUDA_CHECK(cudaMemGetMemPool(&now, &where, props.allocType));
    program.expect(now != own, "a destroyed pool is current");
    CUDA_CHECK(cudaMemSetMemPool(&where, props.allocType, first));
    CUDA_CHECK(cudaMemGetMemPool(&now, &where, props.allocType));
    program.expect(now == first, "the default pool is not current after it was set");
    program.expect(cudaMemPoolDestroy(first) != cudaSuccess, "a default pool could be destroyed");
    cudaGetLastError();
}

// A pool's limit; locations and handles that host pools do not support.
static void run_pool_refusals(Program &program) {
    cudaMemPool_t pool = nullptr;
    void *memory = nullptr, *more = nullptr;
    cudaMemPoolProps props = properties(cudaMemAllocationTypePinned, location(cudaMemLocationTypeHost), 4 << 20);
    CUDA_CHECK(cudaMemPoolCreate(&pool, &props));
    CUDA_CHECK(cudaMallocFromPoolAsync(&memory, 3 << 20, pool, nullptr));
    program.expect(cudaMallocFromPoolAsync(&more, 64 << 20, pool, nullptr) == cudaErrorMemoryAllocation,
                   "a pool exceeded its limit");
    program.expect(cudaFreeHost(memory) != cudaSuccess, "cudaFreeHost freed memory of a pool");
    program.expect(cudaHostUnregister(memory) != cudaSuccess, "cudaHostUnregister accepted memory of a pool");
    CUDA_CHECK(cudaFreeAsync(memory, nullptr));
    program.expect(cudaFreeAsync(memory, nullptr) != cudaSuccess, "memory could be freed twice in a stream");
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemPoolDestroy(pool));
    props.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    program.expect(cudaMemPoolCreate(&pool, &props) == cudaErrorInvalidValue, "a host pool with handles could be created");
    props.handleTypes = cudaMemHandleTypeNone;
    props.location = location(cudaMemLocationTypeHostNumaCurrent);
    program.expect(cudaMemPoolCreate(&pool, &props) == cudaErrorInvalidValue, "a pool of the current NUMA node could be created");
    props.location = location(cudaMemLocationTypeDevice, 99);
    program.expect(cudaMemPoolCreate(&pool, &props) != cudaSuccess, "a pool of a missing device could be created");
    cudaGetLastError();
}

static CUmemAllocationProp created_in(CUmemLocationType type, int id = 0) {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = type;
    prop.location.id = id;
    return prop;
}

static CUresult set_access(CUdeviceptr address, size_t bytes, CUmemLocationType type, CUmemAccess_flags flags) {
    CUmemAccessDesc desc = {};
    desc.location.type = type;
    desc.location.id = type == CU_MEM_LOCATION_TYPE_DEVICE ? device().id : 0;
    desc.flags = flags;
    return DRIVER(cuMemSetAccess)(address, bytes, &desc, 1);
}

// On the host's node 0: if the device has access, CUDA reports so for the whole host, too.
static void check_access(Program &program, CUdeviceptr address, CUmemLocationType type, unsigned long long want) {
    CUmemLocation where = {};
    where.type = type;
    where.id = type == CU_MEM_LOCATION_TYPE_DEVICE ? device().id : 0;
    unsigned long long flags = 99;
    DRIVER_CHECK(cuMemGetAccess, &flags, &where, address);
    program.expect_equal("an access", flags, want);
}

struct Function {
    unsigned *values;
    std::vector<unsigned> found;
};

// Reads all of the memory, and changes its ends.
static void look_and_change(void *data) {
    Function *self = static_cast<Function *>(data);
    self->found.assign(self->values, self->values + self->found.size());
    self->values[0] ^= 0xff;
    self->values[self->found.size() - 1] ^= 0xff00;
}

// A host function between two kernels.
static void run_function(Program &program, unsigned *values, std::vector<unsigned> &want) {
    size_t count = want.size();
    cudaStream_t stream = nullptr;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Function function{values, std::vector<unsigned>(count)};
    launch(values, 11, count, stream);
    CUDA_CHECK(cudaLaunchHostFunc(stream, look_and_change, &function));
    launch(values, 13, count, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    for (size_t at = 0; at < count; ++at) {
        want[at] += 11 + static_cast<unsigned>(at);
    }
    program.expect_equal("memory of the host in a host function", function.found.data(), want.data(), count);
    want[0] ^= 0xff;
    want[count - 1] ^= 0xff00;
    for (size_t at = 0; at < count; ++at) {
        want[at] += 13 + static_cast<unsigned>(at);
    }
    program.expect_equal("memory of the host after a host function", values, want.data(), count);
    CUDA_CHECK(cudaStreamDestroy(stream));
}

// Host memory mapped by the program: contents persist across maps and accesses.
static void run_maps(Program &program, CUmemAllocationProp prop, size_t pieces, Random &random) {
    const CUmemAccess_flags both = CU_MEM_ACCESS_FLAGS_PROT_READWRITE, none = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUmemLocationType host = CU_MEM_LOCATION_TYPE_HOST, gpu = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemLocationType node = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    size_t grain = 0;
    DRIVER_CHECK(cuMemGetAllocationGranularity, &grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    size_t bytes = grain * pieces, count = bytes / sizeof(unsigned);
    CUdeviceptr base = 0;
    CUmemGenericAllocationHandle handle = 0;
    DRIVER_CHECK(cuMemAddressReserve, &base, 2 * bytes, 0, 0, 0);
    DRIVER_CHECK(cuMemCreate, &handle, bytes, &prop, 0);
    CUmemAllocationProp found = {};
    DRIVER_CHECK(cuMemGetAllocationPropertiesFromHandle, &found, handle);
    // Host memory is on node 0.
    program.expect(found.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && found.location.id == 0, "memory has a different location");
    program.expect(found.type == prop.type && !found.requestedHandleTypes, "memory has a different type or handles");
    DRIVER_CHECK(cuMemMap, base, bytes, 0, handle, 0);
    auto *values = reinterpret_cast<unsigned *>(base);
    program.expect_equal("access before it is given", set_access(base, bytes, host, both), CUDA_SUCCESS);
    check_access(program, base, node, 3);
    check_access(program, base, gpu, 0);
    std::vector<unsigned> want(count), got(count);
    for (size_t at = 0; at < count; ++at) {
        want[at] = values[at] = static_cast<unsigned>(random.next());
    }
    program.expect_equal("access of the device", set_access(base, bytes, gpu, both), CUDA_SUCCESS);
    check_access(program, base, gpu, 3);
    cudaPointerAttributes attributes = {};
    CUDA_CHECK(cudaPointerGetAttributes(&attributes, values + 3));
    program.expect_equal("the type of the host's memory", static_cast<int>(attributes.type),
                         static_cast<int>(cudaMemoryTypeHost));
    for (unsigned turn = 0; turn < 3; ++turn) {
        launch(values, turn, count);
        CUDA_CHECK(cudaDeviceSynchronize());
        for (size_t at = 0; at < count; ++at) {
            want[at] += turn + static_cast<unsigned>(at);
        }
        program.expect_equal("memory of the host after a kernel", values, want.data(), count);
        values[count / 2] = want[count / 2] = turn;
    }
    run_function(program, values, want);
    // Access for the device alone, which sees the program's last writes.
    program.expect_equal("the host's access ends", set_access(base, bytes, host, none), CUDA_SUCCESS);
    check_access(program, base, node, 0);
    launch(values, 5, count);
    CUDA_CHECK(cudaMemcpy(got.data(), values, bytes, cudaMemcpyDeviceToHost));
    for (size_t at = 0; at < count; ++at) {
        want[at] += 5 + static_cast<unsigned>(at);
    }
    program.expect_equal("memory of the host for the device alone", got.data(), want.data(), count);
    // At another address, with access for the program again.
    DRIVER_CHECK(cuMemUnmap, base, bytes);
    DRIVER_CHECK(cuMemMap, base + bytes, bytes, 0, handle, 0);
    DRIVER_CHECK(cuMemRelease, handle);
    values = reinterpret_cast<unsigned *>(base + bytes);
    CUmemAccessDesc descs[2] = {};
    descs[0].location.type = host;
    descs[1].location.type = gpu;
    descs[1].location.id = device().id;
    descs[0].flags = descs[1].flags = both;
    DRIVER_CHECK(cuMemSetAccess, base + bytes, bytes, descs, 2);
    program.expect_equal("memory of the host at another address", values, want.data(), count);
    take_turns(program, "memory of the host and copies", values, count, nullptr, random);
    DRIVER_CHECK(cuMemUnmap, base + bytes, bytes);
    DRIVER_CHECK(cuMemAddressFree, base, 2 * bytes);
}

static void run_map_refusals(Program &program) {
    CUmemAllocationProp prop = created_in(CU_MEM_LOCATION_TYPE_HOST);
    size_t grain = 0;
    DRIVER_CHECK(cuMemGetAllocationGranularity, &grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CUmemGenericAllocationHandle handle = 0;
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &handle, 0, &prop, 0);
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &handle, grain + 1, &prop, 0);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &handle, grain, &prop, 0);
    prop = created_in(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &handle, grain, &prop, 0);
    prop = created_in(CU_MEM_LOCATION_TYPE_HOST);
    DRIVER_CHECK(cuMemCreate, &handle, grain, &prop, 0);
    CUdeviceptr base = 0;
    DRIVER_CHECK(cuMemAddressReserve, &base, 2 * grain, 0, 0, 0);
    DRIVER_CHECK(cuMemMap, base, grain, 0, handle, 0);
    // A misaligned map, and access to a half that is not mapped.
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap, base + 1, grain, 0, handle, 0);
    program.expect(set_access(base, 2 * grain, CU_MEM_LOCATION_TYPE_HOST, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) ==
                       CUDA_ERROR_INVALID_VALUE,
                   "access could be set for an unmapped half");
    DRIVER_CHECK(cuMemRelease, handle);
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuMemRelease, handle);
    DRIVER_CHECK(cuMemUnmap, base, grain);
    DRIVER_CHECK(cuMemAddressFree, base, 2 * grain);
}

int main(int argc, char **argv) {
    Program program("hostMemory", "takes memory in the host from pools and maps it", "thousands of words", 8, 1, 256);
    program.parse(argc, argv);
    CUDA_CHECK(cudaFree(nullptr));
    size_t count = static_cast<size_t>(program.size()) * 1024 + 7;
    bool has_pools = attribute(CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED);
    bool has_node_pools = attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED);
    bool has_maps = attribute(CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    while (program.next_round()) {
        Random random(program.seed());
        if (has_pools) {
            cudaMemPoolProps props = properties(cudaMemAllocationTypePinned, location(cudaMemLocationTypeHost));
            run_pool(program, "pinned memory of a pool", props, count, random);
            run_places(program, props);
            run_pool_refusals(program);
        }
        if (has_node_pools) {
            cudaMemPoolProps props = properties(cudaMemAllocationTypePinned, location(cudaMemLocationTypeHostNuma));
            run_pool(program, "pinned memory of a node's pool", props, count, random);
        }
        for (cudaMemLocation where : {location(cudaMemLocationTypeNone), device()}) {
            cudaMemPoolProps props = properties(cudaMemAllocationTypeManaged, where);
            run_pool(program, "managed memory of a pool", props, count, random);
            run_places(program, props);
        }
        if (has_maps) {
            run_maps(program, created_in(CU_MEM_LOCATION_TYPE_HOST), 1, random);
            run_maps(program, created_in(CU_MEM_LOCATION_TYPE_HOST_NUMA), 2, random);
            run_map_refusals(program);
        }
    }
    return program.finish();
}
