// driverApi: the driver API alone, with the PTX of its kernels inside.
//
// libcuda.so.1 is opened at run time, so neither it nor the runtime is needed to
// build or start this program. Functions are looked up by dlsym, and again by
// cuGetProcAddress, and must behave the same.

#include "common/check.h"
#include "common/opened.h"

#include <vector>

static const char ptx[] =
#include "driverApi_kernels.inc"
    ;

static void check_devices(Program &program, CUdevice device) {
    int version = 0, count = 0, warp = 0, threads = 0, major = 0;
    char name[128] = "";
    size_t bytes = 0;
    CUuuid uuid = {};
    CU(cuDriverGetVersion, &version);
    program.expect(version >= 13000, "the driver is older than CUDA 13.0");
    CU(cuDeviceGetCount, &count);
    program.expect(count >= 1, "no device");
    CU(cuDeviceGetName, name, sizeof name, device);
    program.expect(*name, "the device has no name");
    CU(cuDeviceTotalMem, &bytes, device);
    program.expect(bytes > 64u << 20, "the device has hardly any memory");
    CU(cuDeviceGetUuid, &uuid, device);
    CU(cuDeviceGetAttribute, &warp, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
    program.expect_equal("the warp size", warp, 32);
    CU(cuDeviceGetAttribute, &threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
    program.expect_equal("the largest block", threads, 1024);
    CU(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    program.expect(major >= 7, "the compute capability is below 7.5");
    program.note("device=%s", name);
    CUdevice none;
    expect_status(program, "cuDeviceGet of device 4711", DRIVER(cuDeviceGet)(&none, 4711), CUDA_ERROR_INVALID_DEVICE);
}

static void check_contexts(Program &program, CUcontext context, CUdevice device) {
    CUcontext now = nullptr, popped = nullptr;
    CUdevice of_context = -1;
    CU(cuCtxGetCurrent, &now);
    program.expect(now == context, "the current context is not the one that was set");
    CU(cuCtxPushCurrent, context);
    CU(cuCtxPopCurrent, &popped);
    program.expect(popped == context, "the context stack returned a different context");
    CU(cuCtxGetDevice, &of_context);
    program.expect_equal("the context's device", of_context, device);
    unsigned flags = 99;
    int active = 0;
    CU(cuDevicePrimaryCtxGetState, device, &flags, &active);
    program.expect_equal("the state of the primary context", active, 1);
}

static void check_limits(Program &program) {
    size_t graphics = 99, shared = 0;
    CU(cuCtxGetLimit, &graphics, CU_LIMIT_CIG_ENABLED);
    program.expect_equal("whether the context is one of graphics", graphics, size_t{0});
    CU(cuCtxGetLimit, &shared, CU_LIMIT_SHMEM_SIZE);
    program.expect(shared >= 48 << 10, "a block may use less shared memory than every GPU has");
    expect_status(program, "cuCtxSetLimit of shared memory", DRIVER(cuCtxSetLimit)(CU_LIMIT_SHMEM_SIZE, shared),
                  CUDA_ERROR_NOT_PERMITTED);
    expect_status(program, "cuCtxGetLimit of no limit", DRIVER(cuCtxGetLimit)(&shared, static_cast<CUlimit>(77)),
                  CUDA_ERROR_INVALID_VALUE);
}

static void check_globals(Program &program, CUmodule module) {
    CUdeviceptr address = 0;
    size_t bytes = 0;
    int value = 0;
    CU(cuModuleGetGlobal, &address, &bytes, module, "offset");
    program.expect_equal("the size of offset", bytes, sizeof(int));
    CU(cuMemcpyDtoH, &value, address, sizeof value);
    program.expect_equal("the initial value of offset", value, 5);
    value = -3;
    CU(cuMemcpyHtoD, address, &value, sizeof value);
    CU(cuModuleGetGlobal, &address, &bytes, module, "factor");
    float factor = 0.5f;
    CU(cuMemcpyHtoD, address, &factor, sizeof factor);
    expect_status(program, "cuModuleGetGlobal of a name that is not there",
                  DRIVER(cuModuleGetGlobal)(&address, &bytes, module, "nothing"), CUDA_ERROR_NOT_FOUND);
}

// A module's functions, and those of a library with the same image, which are
// listed in no promised order.
static void check_enumeration(Program &program, CUmodule module) {
    const char *names[] = {"gather_parameters", "scale_and_add", "where_am_i"};
    unsigned count = 0;
    CU(cuModuleGetFunctionCount, &count, module);
    program.expect_equal("the number of a module's functions", count, 3u);
    CUfunction functions[4] = {}, same = nullptr;
    CU(cuModuleEnumerateFunctions, functions, 3, module);
    program.expect(!functions[3], "more functions were returned than requested");
    unsigned seen = 0;
    for (unsigned at = 0; at < 3; ++at) {
        const char *name = nullptr;
        CUmodule of = nullptr;
        CU(cuFuncGetName, &name, functions[at]);
        CU(cuFuncGetModule, &of, functions[at]);
        program.expect(of == module, "a function has a different module");
        for (unsigned known = 0; known < 3; ++known) {
            seen |= !std::strcmp(name, names[known]) << known;
        }
        CU(cuModuleGetFunction, &same, module, name);
        program.expect(same == functions[at], "a function has two handles");
    }
    program.expect_equal("the functions seen", seen, 7u);
    CU(cuModuleEnumerateFunctions, functions, 1, module);
    expect_status(program, "cuModuleEnumerateFunctions of no module",
                  DRIVER(cuModuleEnumerateFunctions)(nullptr, 1, module), CUDA_ERROR_INVALID_VALUE);

    CUlibrary library_of_kernels;
    CUkernel kernels[4] = {};
    CU(cuLibraryLoadData, &library_of_kernels, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0);
    CU(cuLibraryGetKernelCount, &count, library_of_kernels);
    program.expect_equal("the number of a library's kernels", count, 3u);
    CU(cuLibraryEnumerateKernels, kernels, 3, library_of_kernels);
    program.expect(!kernels[3], "more kernels were returned than requested");
    seen = 0;
    for (unsigned at = 0; at < 3; ++at) {
        const char *name = nullptr;
        CUlibrary of = nullptr;
        CUkernel again = nullptr;
        CU(cuKernelGetName, &name, kernels[at]);
        CU(cuKernelGetLibrary, &of, kernels[at]);
        program.expect(of == library_of_kernels, "a kernel has a different library");
        CU(cuLibraryGetKernel, &again, library_of_kernels, name);
        program.expect(again == kernels[at], "a kernel has two handles");
        for (unsigned known = 0; known < 3; ++known) {
            seen |= !std::strcmp(name, names[known]) << known;
        }
    }
    program.expect_equal("the kernels seen", seen, 7u);
    CU(cuLibraryUnload, library_of_kernels);
}

static void run_scale(Program &program, CUmodule module, CUstream stream) {
    int count = static_cast<int>(program.size());
    size_t bytes = count * sizeof(float);
    Random random(program.seed());
    std::vector<float> input(count), want(count), got(count);
    float scale = 4.0f;
    for (int at = 0; at < count; ++at) {
        input[at] = random.sixteenth();
        want[at] = input[at] * scale * 0.5f - 3.0f;
    }
    CUfunction kernel;
    CUdeviceptr from = 0, to = 0;
    CU(cuModuleGetFunction, &kernel, module, "scale_and_add");
    CU(cuMemAlloc, &from, bytes);
    CU(cuMemAlloc, &to, bytes);
    CU(cuMemsetD32Async, to, 0x7fc00000u, count, stream);
    CU(cuMemcpyHtoDAsync, from, input.data(), bytes, stream);
    void *parameters[] = {&to, &from, &scale, &count};
    CUevent start, stop;
    CU(cuEventCreate, &start, CU_EVENT_DEFAULT);
    CU(cuEventCreate, &stop, CU_EVENT_DEFAULT);
    CU(cuEventRecord, start, stream);
    CU(cuLaunchKernel, kernel, (count + 255) / 256, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
    CU(cuEventRecord, stop, stream);
    CU(cuMemcpyDtoHAsync, got.data(), to, bytes, stream);
    CU(cuStreamSynchronize, stream);
    float milliseconds = -1;
    CU(cuEventElapsedTime, &milliseconds, start, stop);
    program.expect(milliseconds >= 0, "the kernel's time is negative");
    program.digest(got.data(), bytes);
    program.expect_equal("scale_and_add", got.data(), want.data(), count);
    CU(cuEventDestroy, stop);
    CU(cuEventDestroy, start);

    // The same bytes by a copy through the device, and by fills.
    CU(cuMemcpyDtoD, from, to, bytes);
    CU(cuMemsetD8, from, 0x11, 3);
    CU(cuMemsetD16, from + 4, 0x2233, count > 3 ? 2 : 0);
    CU(cuMemcpyDtoH, got.data(), from, bytes);
    std::memset(want.data(), 0x11, 3);
    uint16_t pattern[2] = {0x2233, 0x2233};
    if (count > 3) {
        std::memcpy(&want[1], pattern, sizeof pattern);
    }
    program.expect_equal("the patterns", got.data(), want.data(), count);
    CU(cuMemFree, to);
    CU(cuMemFree, from);
}

static void run_parameters(Program &program, CUmodule module) {
    struct Pair {
        int first;
        float second;
    };
    CUfunction kernel;
    CUdeviceptr to = 0;
    long long got[7], want[7] = {-9, 20, -12345, 1 << 20, -6, -5000000000LL, 200};
    CU(cuModuleGetFunction, &kernel, module, "gather_parameters");
    CU(cuMemAlloc, &to, sizeof got);

    char c = -9;
    double d = 2.5;
    short s = -12345;
    Pair pair = {1 << 20, -0.75f};
    long long l = -5000000000LL;
    unsigned char u = 200;
    void *parameters[] = {&to, &c, &d, &s, &pair, &l, &u};
    CU(cuMemsetD8, to, 0xa5, sizeof got);
    CU(cuLaunchKernel, kernel, 2, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
    CU(cuMemcpyDtoH, got, to, sizeof got);
    program.expect_equal("parameters by pointers", got, want, 7);

    // The same in one buffer with the layout of the kernel's parameters.
    unsigned char buffer[64];
    size_t offsets[7], sizes[7], end = 0;
    for (int at = 0; at < 7; ++at) {
        CU(cuFuncGetParamInfo, kernel, at, &offsets[at], &sizes[at]);
        std::memcpy(buffer + offsets[at], parameters[at], sizes[at]);
        end = offsets[at] + sizes[at];
    }
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &end, CU_LAUNCH_PARAM_END};
    CU(cuMemsetD8, to, 0xa5, sizeof got);
    CU(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra);
    CU(cuMemcpyDtoH, got, to, sizeof got);
    program.digest(got, sizeof got);
    program.expect_equal("parameters in a buffer", got, want, 7);
    size_t offset, size;
    expect_status(program, "cuFuncGetParamInfo past the last", DRIVER(cuFuncGetParamInfo)(kernel, 7, &offset, &size),
                  CUDA_ERROR_INVALID_VALUE);
    CU(cuMemFree, to);
}

static void run_shape(Program &program, CUmodule module, CUstream stream) {
    const unsigned grid[3] = {3, 2, 2}, block[3] = {8, 4, 3}, threads = 8 * 4 * 3, blocks = 12;
    CUfunction kernel;
    CUdeviceptr to = 0, history = 0;
    size_t bytes = 0;
    std::vector<unsigned> got(threads * blocks), want(got.size());
    CU(cuModuleGetFunction, &kernel, module, "where_am_i");
    CU(cuMemAlloc, &to, got.size() * sizeof(unsigned));
    CU(cuModuleGetGlobal, &history, &bytes, module, "history");
    CU(cuMemsetD32Async, history, 0, bytes / 4, stream);
    void *parameters[] = {&to};
    CU(cuLaunchKernel, kernel, grid[0], grid[1], grid[2], block[0], block[1], block[2], threads * sizeof(unsigned),
       stream, parameters, nullptr);
    CU(cuStreamSynchronize, stream);
    CU(cuMemcpyDtoH, got.data(), to, got.size() * sizeof(unsigned));
    for (unsigned at = 0; at < want.size(); ++at) {
        want[at] = at / threads * threads + (threads - 1 - at % threads);
    }
    program.digest(got.data(), got.size() * sizeof(unsigned));
    program.expect_equal("where_am_i", got.data(), want.data(), want.size());
    unsigned counts[16], want_counts[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    CU(cuMemcpyDtoH, counts, history, sizeof counts);
    program.expect_equal("the history", counts, want_counts, 16);
    CU(cuMemFree, to);

    int most = 0, blocks_resident = 0;
    CU(cuFuncGetAttribute, &most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel);
    program.expect(most >= 32 && most <= 1024, "the kernel's largest block is impossible");
    CU(cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks_resident, kernel, threads, threads * sizeof(unsigned));
    program.expect(blocks_resident >= 1, "no block of the kernel fits");
}

static void check_refusals(Program &program, CUmodule module) {
    CUmodule none;
    CUfunction kernel;
    CUdeviceptr address = 0;
    expect_status(program, "cuModuleGetFunction of a name that is not there",
                  DRIVER(cuModuleGetFunction)(&kernel, module, "nothing"), CUDA_ERROR_NOT_FOUND);
    char log[2048] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, reinterpret_cast<void *>(sizeof log)};
    expect_status(
        program, "cuModuleLoadDataEx of broken PTX",
        DRIVER(cuModuleLoadDataEx)(&none, ".version 9.0\n.target sm_75\n.address_size 64\n.entry {", 2, options, values),
        CUDA_ERROR_INVALID_PTX);
    program.expect(*log, "broken PTX leaves the error log empty");
    CU(cuModuleGetFunction, &kernel, module, "where_am_i");
    void *parameters[] = {&address};
    expect_status(program, "a block of 2048 threads",
                  DRIVER(cuLaunchKernel)(kernel, 1, 1, 1, 2048, 1, 1, 0, nullptr, parameters, nullptr),
                  CUDA_ERROR_INVALID_VALUE);
    expect_status(program, "cuMemFree of what was never allocated", DRIVER(cuMemFree)(0x7fffdead0000ull),
                  CUDA_ERROR_INVALID_VALUE);
    expect_status(program, "cuMemAlloc of nothing", DRIVER(cuMemAlloc)(&address, 0), CUDA_ERROR_INVALID_VALUE);
    const char *name = nullptr;
    CU(cuGetErrorName, CUDA_ERROR_NOT_FOUND, &name);
    program.expect(name && !std::strcmp(name, "CUDA_ERROR_NOT_FOUND"), "an error has a different name");
    expect_status(program, "cuGetErrorName of a number without one", DRIVER(cuGetErrorName)(CUresult(98765), &name),
                  CUDA_ERROR_INVALID_VALUE);
}

// Functions of cuGetProcAddress must behave like the symbols.
static void check_proc_address(Program &program) {
    void *address = nullptr;
    CUdriverProcAddressQueryResult found;
    CU(cuGetProcAddress, "cuMemAlloc", &address, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    program.expect(address && found == CU_GET_PROC_ADDRESS_SUCCESS, "cuGetProcAddress did not find cuMemAlloc");
    CUdeviceptr memory = 0, base = 0;
    size_t bytes = 0;
    driver_check(reinterpret_cast<decltype(&cuMemAlloc)>(address)(&memory, 1000), "cuMemAlloc by address", __LINE__);
    CU(cuMemGetAddressRange, &base, &bytes, memory + 10);
    program.expect(base == memory && bytes == 1000, "an allocation has a different range");
    unsigned type = 0;
    CU(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory);
    program.expect_equal("the type of the memory", type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
    CU(cuMemFree, memory);
    // The function itself returns SUCCESS or NOT_FOUND, depending on its version; only
    // the query result is checked.
    (void)DRIVER(cuGetProcAddress)("cuNoSuchFunction", &address, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found);
    program.expect(found == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "cuGetProcAddress found a missing function");
}

// A memset of memory with this attribute is complete when it returns, and so is all
// earlier work of its stream.
static void check_synchronous_memory(Program &program) {
    const size_t bytes = 8 << 20;
    CUdeviceptr first = 0, second = 0;
    CUevent event = nullptr;
    unsigned set = 1;
    CU(cuMemAlloc, &first, bytes);
    CU(cuMemAlloc, &second, bytes);
    CU(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    CU(cuPointerGetAttribute, &set, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, first);
    program.expect_equal("whether new memory is synchronous", set, 0u);
    for (unsigned want : {1u, 0u, 1u}) {
        CU(cuPointerSetAttribute, &want, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, first + bytes / 2);
        CU(cuPointerGetAttribute, &set, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, first);
        program.expect_equal("whether memory is synchronous", set, want);
    }
    CU(cuPointerGetAttribute, &set, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, second);
    program.expect_equal("whether other memory is synchronous", set, 0u);
    for (int way = 0; way < 3; ++way) {
        for (int at = 0; at < 16; ++at) {
            CU(cuMemsetD8Async, second, static_cast<unsigned char>(at), bytes, nullptr);
        }
        CU(cuEventRecord, event, nullptr);
        switch (way) {
        case 0: CU(cuMemsetD32, first, 7, 16); break;
        case 1: CU(cuMemcpyDtoD, first, second, 16); break;
        default: CU(cuMemcpyHtoD, first, &set, sizeof set);
        }
        expect_status(program, "an event before a synchronous operation", DRIVER(cuEventQuery)(event), CUDA_SUCCESS);
    }
    CU(cuMemFree, first);
    set = 1;
    expect_status(program, "an attribute of freed memory",
                  DRIVER(cuPointerSetAttribute)(&set, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, first), CUDA_ERROR_INVALID_VALUE);
    // The address is reused by other memory.
    CU(cuMemAlloc, &first, bytes);
    CU(cuPointerGetAttribute, &set, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, first);
    program.expect_equal("whether memory in the same place is synchronous", set, 0u);
    CU(cuEventDestroy, event);
    CU(cuMemFree, second);
    CU(cuMemFree, first);
}

// A thread without a current context frees memory, queries an address and uses
// streams.
static void check_without_context(Program &program, CUcontext context) {
    CUdeviceptr memory = 0, kept = 0;
    void *pinned = nullptr;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUcontext popped = nullptr, owner = nullptr;
    unsigned type = 0;
    CU(cuMemAlloc, &memory, 4096);
    CU(cuMemAlloc, &kept, 4096);
    CU(cuMemHostAlloc, &pinned, 4096, 0);
    CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CU(cuEventCreate, &event, 0);
    CU(cuCtxPopCurrent, &popped);
    program.expect(popped == context, "a different context was current");
    CU(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory);
    program.expect_equal("the type of memory without a context", type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
    CU(cuPointerGetAttribute, &owner, CU_POINTER_ATTRIBUTE_CONTEXT, memory);
    program.expect(owner == context, "the memory has a different context");
    CU(cuMemFree, memory);
    expect_status(program, "cuMemFree again, without a context", DRIVER(cuMemFree)(memory), CUDA_ERROR_INVALID_VALUE);
    expect_status(program, "cuMemAlloc without a context", DRIVER(cuMemAlloc)(&memory, 64), CUDA_ERROR_INVALID_CONTEXT);
    CU(cuEventRecord, event, stream);
    CU(cuStreamSynchronize, stream);
    CU(cuEventDestroy, event);
    CU(cuStreamDestroy, stream);
    CU(cuMemFree, kept);
    CU(cuMemFreeHost, pinned);
}

// A reset destroys the primary context, also for those who retained it.
static void check_reset(Program &program, CUdevice device) {
    CUcontext context = nullptr;
    CUdeviceptr memory = 0;
    CU(cuDevicePrimaryCtxRetain, &context, device);
    CU(cuCtxSetCurrent, context);
    CU(cuMemAlloc, &memory, 64);
    CU(cuDevicePrimaryCtxReset, device);
    unsigned flags = 0;
    int is_active = -1;
    CU(cuDevicePrimaryCtxGetState, device, &flags, &is_active);
    program.expect_equal("a primary context is active after its reset", is_active, 0);
    expect_status(program, "cuMemAlloc after the reset", DRIVER(cuMemAlloc)(&memory, 64), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    expect_status(program, "cuMemFree after the reset", DRIVER(cuMemFree)(0), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    unsigned version = 0;
    expect_status(program, "cuCtxGetApiVersion after the reset", DRIVER(cuCtxGetApiVersion)(context, &version),
                  CUDA_ERROR_INVALID_CONTEXT);
    CU(cuDevicePrimaryCtxRetain, &context, device);
    CU(cuCtxSetCurrent, context);
    CU(cuMemAlloc, &memory, 64);
    CU(cuMemFree, memory);
    CU(cuDevicePrimaryCtxRelease, device);
}

int main(int argc, char **argv) {
    Program program("driverApi", "uses the driver API alone", "elements", 50000, 4, 1L << 28);
    program.parse(argc, argv);
    open_driver(program);
    CUdevice device = -1;
    CUcontext context = nullptr;
    expect_status(program, "cuMemFree before cuInit", DRIVER(cuMemFree)(1), CUDA_ERROR_NOT_INITIALIZED);
    CU(cuInit, 0);
    // Freeing needs no context.
    expect_status(program, "cuMemFree of no memory", DRIVER(cuMemFree)(1), CUDA_ERROR_INVALID_VALUE);
    expect_status(program, "cuMemFree of nothing", DRIVER(cuMemFree)(0), CUDA_SUCCESS);
    CU(cuDeviceGet, &device, 0);
    check_devices(program, device);
    CU(cuDevicePrimaryCtxRetain, &context, device);
    CU(cuCtxSetCurrent, context);
    check_contexts(program, context, device);
    check_limits(program);

    while (program.next_round()) {
        CUmodule module = nullptr;
        CUstream stream = nullptr;
        CU(cuModuleLoadData, &module, ptx);
        CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
        check_globals(program, module);
        check_enumeration(program, module);
        run_scale(program, module, stream);
        run_parameters(program, module);
        run_shape(program, module, stream);
        check_refusals(program, module);
        check_proc_address(program);
        check_synchronous_memory(program);
        CU(cuStreamDestroy, stream);
        CU(cuCtxSynchronize);
        CU(cuModuleUnload, module);
    }
    check_without_context(program, context);
    CU(cuDevicePrimaryCtxRelease, device);
    check_reset(program, device);
    return program.finish();
}
