// virtualMemory: addresses that the program reserves, and memory that it maps there.
//
// A vector that grows in place, piece by piece, as allocators of frameworks do;
// memory at two addresses; memory that outlives its handle or its map, and memory
// that is mapped at another address; attributes; and invalid ranges.

#include "common/driver.h"

#include <algorithm>
#include <unistd.h>
#include <vector>

__global__ void add(unsigned *values, unsigned more, size_t count) {
    size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] += more + static_cast<unsigned>(at);
    }
}

static void launch(CUdeviceptr values, unsigned more, size_t count) {
    add<<<static_cast<unsigned>((count + 255) / 256), 256>>>(reinterpret_cast<unsigned *>(values), more, count);
    LAUNCH_CHECK();
}

static CUmemAllocationProp properties() {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUDA_CHECK(cudaGetDevice(&prop.location.id));
    return prop;
}

static CUmemAccessDesc access(CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    CUmemAccessDesc desc = {};
    desc.location = properties().location;
    desc.flags = flags;
    return desc;
}

static CUmemGenericAllocationHandle create(size_t bytes) {
    CUmemAllocationProp prop = properties();
    CUmemGenericAllocationHandle handle = 0;
    DRIVER_CHECK(cuMemCreate, &handle, bytes, &prop, 0);
    return handle;
}

// What an address says of handles for other processes.
static void expect_handles(Program &program, const char *what, CUdeviceptr address, bool is_legacy, unsigned long long types) {
    bool legacy = !is_legacy;
    unsigned long long allowed = ~0ull;
    DRIVER_CHECK(cuPointerGetAttribute, &legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address);
    DRIVER_CHECK(cuPointerGetAttribute, &allowed, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address);
    program.expect_equal(what, legacy, is_legacy);
    program.expect_equal(what, allowed, types);
}

// Memory that other processes can have, and other memory.
static void run_handles(Program &program, size_t grain) {
    void *plain, *pooled, *managed, *pinned;
    CUDA_CHECK(cudaMalloc(&plain, 4096));
    expect_handles(program, "plain memory", reinterpret_cast<CUdeviceptr>(plain) + 100, true, 0);
    CUDA_CHECK(cudaMallocManaged(&managed, 4096));
    expect_handles(program, "managed memory", reinterpret_cast<CUdeviceptr>(managed), false, 0);
    CUDA_CHECK(cudaMallocHost(&pinned, 4096));
    expect_handles(program, "pinned memory", reinterpret_cast<CUdeviceptr>(pinned), false, 0);
    for (int types : {0, 1}) {
        cudaMemPoolProps props = {};
        props.allocType = cudaMemAllocationTypePinned;
        props.location.type = cudaMemLocationTypeDevice;
        CUDA_CHECK(cudaGetDevice(&props.location.id));
        props.handleTypes = types ? cudaMemHandleTypePosixFileDescriptor : cudaMemHandleTypeNone;
        cudaMemPool_t pool;
        CUDA_CHECK(cudaMemPoolCreate(&pool, &props));
        CUDA_CHECK(cudaMallocFromPoolAsync(&pooled, 4096, pool, nullptr));
        expect_handles(program, "memory of a pool", reinterpret_cast<CUdeviceptr>(pooled), false, types);
        CUDA_CHECK(cudaFreeAsync(pooled, nullptr));
        CUDA_CHECK(cudaDeviceSynchronize());
        CUDA_CHECK(cudaMemPoolDestroy(pool));

        CUmemAllocationProp prop = properties();
        prop.requestedHandleTypes = types ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
        CUmemGenericAllocationHandle handle = 0;
        CUdeviceptr base = 0;
        CUmemAccessDesc desc = {};
        desc.location = prop.location;
        desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        DRIVER_CHECK(cuMemCreate, &handle, grain, &prop, 0);
        DRIVER_CHECK(cuMemAddressReserve, &base, grain, 0, 0, 0);
        DRIVER_CHECK(cuMemMap, base, grain, 0, handle, 0);
        DRIVER_CHECK(cuMemSetAccess, base, grain, &desc, 1);
        expect_handles(program, "mapped memory", base + 100, false, types);
        DRIVER_CHECK(cuMemUnmap, base, grain);
        DRIVER_CHECK(cuMemAddressFree, base, grain);
        DRIVER_CHECK(cuMemRelease, handle);
    }
    CUDA_CHECK(cudaFree(plain));
    CUDA_CHECK(cudaFree(managed));
    CUDA_CHECK(cudaFreeHost(pinned));
}

static CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr address = 0;
    DRIVER_CHECK(cuMemAddressReserve, &address, bytes, 0, 0, 0);
    return address;
}

static void allow(CUdeviceptr address, size_t bytes) {
    CUmemAccessDesc desc = access();
    DRIVER_CHECK(cuMemSetAccess, address, bytes, &desc, 1);
}

static void *pointer(CUdeviceptr address) { return reinterpret_cast<void *>(address); }

// Grows in place: contents persist, and a kernel accesses all pieces.
static void run_growth(Program &program, size_t grain, size_t pieces, Random &random) {
    CUdeviceptr base = reserve(pieces * grain * 2);
    size_t each = grain / sizeof(unsigned);
    std::vector<unsigned> want, got;
    for (size_t piece = 0; piece < pieces; ++piece) {
        CUmemGenericAllocationHandle handle = create(grain);
        DRIVER_CHECK(cuMemMap, base + piece * grain, grain, 0, handle, 0);
        DRIVER_CHECK(cuMemRelease, handle);
        allow(base + piece * grain, grain);
        for (size_t at = 0; at < each; ++at) {
            want.push_back(static_cast<unsigned>(random.next()));
        }
        CUDA_CHECK(cudaMemcpy(pointer(base + piece * grain), &want[piece * each], grain, cudaMemcpyHostToDevice));
        unsigned more = random.below(1000);
        launch(base, more, want.size());
        for (size_t at = 0; at < want.size(); ++at) {
            want[at] += more + static_cast<unsigned>(at);
        }
    }
    got.resize(want.size());
    // Across the pieces, in one copy.
    CUDA_CHECK(cudaMemcpy(got.data(), pointer(base), want.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    program.expect_equal("a vector that grew", got.data(), want.data(), want.size());
    program.digest(got.data(), got.size() * sizeof(unsigned));
    // From the middle of one to the middle of the next.
    if (pieces > 1) {
        CUDA_CHECK(cudaMemset(pointer(base + grain / 2), 0x5a, grain));
        CUDA_CHECK(cudaMemcpy(got.data(), pointer(base), 2 * grain, cudaMemcpyDeviceToHost));
        std::fill(want.begin() + each / 2, want.begin() + each / 2 + each, 0x5a5a5a5au);
        program.expect_equal("a fill across pieces", got.data(), want.data(), 2 * each);
    }
    DRIVER_CHECK(cuMemUnmap, base, pieces * grain);
    DRIVER_CHECK(cuMemAddressFree, base, pieces * grain * 2);
}

// The same memory at two addresses, then at a third, with the handle retrieved from
// an address.
static void run_places(Program &program, size_t grain, Random &random) {
    size_t count = grain / sizeof(unsigned);
    CUdeviceptr base = reserve(4 * grain);
    CUmemGenericAllocationHandle handle = create(grain);
    for (int place = 0; place < 2; ++place) {
        DRIVER_CHECK(cuMemMap, base + 2 * place * grain, grain, 0, handle, 0);
        allow(base + 2 * place * grain, grain);
    }
    std::vector<unsigned> want(count), got(count);
    for (unsigned &value : want) {
        value = static_cast<unsigned>(random.next());
    }
    CUDA_CHECK(cudaMemcpy(pointer(base), want.data(), grain, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaDeviceSynchronize());
    launch(base + 2 * grain, 7, count);
    CUDA_CHECK(cudaDeviceSynchronize());
    for (size_t at = 0; at < count; ++at) {
        want[at] += 7 + static_cast<unsigned>(at);
    }
    CUDA_CHECK(cudaMemcpy(got.data(), pointer(base), grain, cudaMemcpyDeviceToHost));
    program.expect_equal("memory at two addresses", got.data(), want.data(), count);

    CUmemGenericAllocationHandle again = 0;
    DRIVER_CHECK(cuMemRetainAllocationHandle, &again, pointer(base + 100));
    DRIVER_CHECK(cuMemRelease, handle);
    DRIVER_CHECK(cuMemUnmap, base, grain);
    DRIVER_CHECK(cuMemUnmap, base + 2 * grain, grain);
    // Kept alive by the handle alone.
    CUmemAllocationProp prop = {};
    DRIVER_CHECK(cuMemGetAllocationPropertiesFromHandle, &prop, again);
    if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED || prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        prop.location.id != properties().location.id) {
        program.fail("an allocation has other properties than it was made with");
    }
    DRIVER_CHECK(cuMemMap, base + grain, grain, 0, again, 0);
    DRIVER_CHECK(cuMemRelease, again);
    allow(base + grain, grain);
    CUDA_CHECK(cudaMemcpy(got.data(), pointer(base + grain), grain, cudaMemcpyDeviceToHost));
    program.expect_equal("memory that moved", got.data(), want.data(), count);
    program.digest(got.data(), grain);

    // Work in flight continues while other memory is unmapped.
    launch(base + grain, 9, count);
    cudaPointerAttributes attributes = {};
    CUDA_CHECK(cudaPointerGetAttributes(&attributes, pointer(base + grain + 64)));
    if (attributes.type != cudaMemoryTypeDevice || attributes.devicePointer != pointer(base + grain + 64)) {
        program.fail("mapped memory has type %d", static_cast<int>(attributes.type));
    }
    unsigned long long flags = 0;
    CUmemLocation location = properties().location;
    DRIVER_CHECK(cuMemGetAccess, &flags, &location, base + grain);
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        program.fail("mapped memory has access %llu", flags);
    }
    CUDA_CHECK(cudaDeviceSynchronize());
    DRIVER_CHECK(cuMemUnmap, base + grain, grain);
    DRIVER_CHECK(cuMemAddressFree, base, 4 * grain);
}

// A descriptor refers to memory, and keeps it alive.
static void run_shared(Program &program, size_t grain) {
    CUmemAllocationProp prop = properties();
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle = 0, other = 0;
    DRIVER_CHECK(cuMemCreate, &handle, grain, &prop, 0);
    CUdeviceptr base = reserve(2 * grain);
    DRIVER_CHECK(cuMemMap, base, grain, 0, handle, 0);
    allow(base, grain);
    CUDA_CHECK(cudaMemset(pointer(base), 0x3c, grain));
    CUDA_CHECK(cudaDeviceSynchronize());
    int descriptor = -1;
    DRIVER_CHECK(cuMemExportToShareableHandle, &descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    DRIVER_CHECK(cuMemUnmap, base, grain);
    DRIVER_CHECK(cuMemRelease, handle);
    // Now only the descriptor keeps it alive.
    DRIVER_CHECK(cuMemImportFromShareableHandle, &other, reinterpret_cast<void *>(static_cast<intptr_t>(descriptor)),
                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(descriptor);
    DRIVER_CHECK(cuMemMap, base + grain, grain, 0, other, 0);
    DRIVER_CHECK(cuMemRelease, other);
    allow(base + grain, grain);
    std::vector<unsigned char> got(grain), want(grain, 0x3c);
    CUDA_CHECK(cudaMemcpy(got.data(), pointer(base + grain), grain, cudaMemcpyDeviceToHost));
    program.expect_equal("memory that a descriptor kept", got.data(), want.data(), grain);
    DRIVER_CHECK(cuMemUnmap, base + grain, grain);
    DRIVER_CHECK(cuMemAddressFree, base, 2 * grain);
}

static void run_refusals(Program &program, size_t grain) {
    CUmemAllocationProp prop = properties();
    CUmemGenericAllocationHandle handle = create(grain), other = 0;
    CUdeviceptr base = reserve(4 * grain), address = 0;
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &other, grain + 1, &prop, 0);
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuMemCreate, &other, 0, &prop, 0);
    DRIVER_FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate, &other, size_t{1} << 44, &prop, 0);
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve, &address, 0, 0, 0, 0);
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuMemMap, base + 1, grain, 0, handle, 0);
    DRIVER_FAILS(CUDA_ERROR_NOT_SUPPORTED, cuMemMap, base, 2 * grain, 0, handle, 0);
    DRIVER_FAILS(CUDA_ERROR_NOT_SUPPORTED, cuMemMap, base, 100, 0, handle, 0);
    DRIVER_FAILS(CUDA_ERROR_NOT_SUPPORTED, cuMemMap, base, grain, grain, handle, 0);
    DRIVER_CHECK(cuMemMap, base, grain, 0, handle, 0);
    CUmemAccessDesc desc = access();
    // One half of the range is not mapped.
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess, base, 2 * grain, &desc, 1);
    CUmemAccessDesc nobody = desc;
    nobody.location.id = 99;
    DRIVER_FAILS(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess, base, grain, &nobody, 1);
    // Reserved addresses that nothing is mapped to.
    DRIVER_CHECK(cuMemUnmap, base + grain, grain);
    allow(base, grain);
    DRIVER_CHECK(cuMemUnmap, base, grain);
    DRIVER_CHECK(cuMemAddressFree, base, 4 * grain);
    DRIVER_CHECK(cuMemRelease, handle);
}

int main(int argc, char **argv) {
    Program program("virtualMemory", "maps memory where addresses were reserved", "pieces that grow", 4, 1, 1024);
    program.parse(argc, argv);
    CUDA_CHECK(cudaFree(nullptr));
    int device = 0, served = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    DRIVER_CHECK(cuDeviceGetAttribute, &served, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
    if (!served) {
        program.die("the device has no virtual memory management");
    }
    CUmemAllocationProp prop = properties();
    size_t grain = 0;
    DRIVER_CHECK(cuMemGetAllocationGranularity, &grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    while (program.next_round()) {
        Random random(program.seed());
        run_growth(program, grain, static_cast<size_t>(program.size()), random);
        run_places(program, grain, random);
        run_handles(program, grain);
        run_shared(program, grain);
        run_refusals(program, grain);
    }
    return program.finish();
}
