// greenContexts: two parts of the device's multiprocessors, each with streams, events
// and a context that is made current.
//
// libcuda.so.1 is opened at run time, as in driverApi.

#include "common/check.h"
#include "common/opened.h"

#include <atomic>
#include <sched.h>

// `fill` writes the sum of a number and the thread's index to each word; `where` records
// on which multiprocessor each block runs, after a delay.
static const char ptx[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                          ".visible .entry fill(.param .u64 to, .param .u32 value) {\n"
                          ".reg .b32 %r<6>; .reg .b64 %d<4>;\n"
                          "ld.param.u64 %d1, [to]; ld.param.u32 %r1, [value];\n"
                          "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
                          "mad.lo.s32 %r2, %r2, %r3, %r4; mul.wide.u32 %d2, %r2, 4;\n"
                          "add.s64 %d3, %d1, %d2; add.s32 %r5, %r1, %r2;\n"
                          "st.global.u32 [%d3], %r5; ret;\n}\n"
                          ".visible .entry where(.param .u64 to) {\n"
                          ".reg .b32 %r<6>; .reg .b64 %d<4>; .reg .pred %p<2>;\n"
                          "ld.param.u64 %d1, [to]; mov.u32 %r1, %smid; mul.wide.u32 %d2, %r1, 4;\n"
                          "add.s64 %d3, %d1, %d2; mov.u32 %r2, 0;\n"
                          "again: add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 20000; @%p1 bra again;\n"
                          "atom.global.add.u32 %r3, [%d3], 1; ret;\n}\n";

static const unsigned BLOCKS = 8, THREADS = 64, WIDTH = BLOCKS * THREADS, MAX_WIDTH = 1024;

struct Part {
    CUdevResource resource;
    CUgreenCtx green;
    CUcontext context;
    CUstream stream;
    CUdeviceptr memory;
};

struct Kernels {
    CUfunction fill, where;
};

static unsigned multiprocessors(const CUdevResource &resource) {
    return resource.type == CU_DEV_RESOURCE_TYPE_SM ? resource.sm.smCount : 0;
}

static void launch_fill(const Kernels &kernels, CUstream stream, CUdeviceptr to, unsigned value) {
    void *parameters[] = {&to, &value};
    CU(cuLaunchKernel, kernels.fill, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, parameters, nullptr);
}

static void expect_filled(Program &program, const char *what, CUdeviceptr memory, unsigned value) {
    unsigned got[WIDTH], want[WIDTH];
    for (unsigned at = 0; at < WIDTH; ++at) {
        want[at] = value + at;
    }
    CU(cuMemcpyDtoH, got, memory, sizeof got);
    program.expect_equal(what, got, want, WIDTH);
}

// Splits the device into two equal parts and the remainder; false if it has too few
// multiprocessors.
static bool split(Program &program, CUdevice device, Part *parts, CUdevResource *rest) {
    CUdevResource whole;
    CU(cuDeviceGetDevResource, device, &whole, CU_DEV_RESOURCE_TYPE_SM);
    int count = 0;
    CU(cuDeviceGetAttribute, &count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    program.expect_equal("multiprocessors of the device", multiprocessors(whole), static_cast<unsigned>(count));
    unsigned least = whole.sm.minSmPartitionSize, groups = 0;
    program.expect(least > 0 && whole.sm.smCoscheduledAlignment > 0, "the minimum size of a part is 0");
    if (2 * least > whole.sm.smCount) {
        return false;
    }
    CU(cuDevSmResourceSplitByCount, nullptr, &groups, &whole, nullptr, 0, least);
    program.expect(groups >= 2 && groups * least <= whole.sm.smCount, "the number of groups is not the maximum");

    CUdevResource made[2];
    groups = 2;
    CU(cuDevSmResourceSplitByCount, made, &groups, &whole, rest, 0, least);
    program.expect_equal("groups", groups, 2u);
    for (unsigned at = 0; at < 2; ++at) {
        parts[at].resource = made[at];
        program.expect(multiprocessors(made[at]) >= least, "a group is too small");
    }
    program.expect_equal("multiprocessors of all parts",
                         multiprocessors(made[0]) + multiprocessors(made[1]) + multiprocessors(*rest),
                         whole.sm.smCount);

    // Impossible requests.
    auto splits = DRIVER(cuDevSmResourceSplitByCount);
    CUdevResource none = {};
    CUdevResourceDesc description = nullptr;
    expect_status(program, "a split of nothing", splits(made, &groups, nullptr, nullptr, 0, 1), CUDA_ERROR_INVALID_VALUE);
    expect_status(program, "a split into no number", splits(made, nullptr, &whole, nullptr, 0, 1),
                  CUDA_ERROR_INVALID_VALUE);
    expect_status(program, "a split of no resource", splits(made, &groups, &none, nullptr, 0, 1),
                  CUDA_ERROR_INVALID_RESOURCE_TYPE);
    groups = 1;
    program.expect(splits(&none, &groups, &whole, nullptr, 0, whole.sm.smCount + 1) != CUDA_SUCCESS,
                   "a split into too large groups succeeded");
    program.expect(splits(&none, &groups, &parts[0].resource, nullptr, 0, least) != CUDA_SUCCESS,
                   "a group could be split again");
    auto describes = DRIVER(cuDevResourceGenerateDesc);
    expect_status(program, "a description without a place", describes(nullptr, &whole, 1), CUDA_ERROR_INVALID_VALUE);
    expect_status(program, "a description of no list", describes(&description, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
    expect_status(program, "a resource of no kind", DRIVER(cuDeviceGetDevResource)(device, &none, CU_DEV_RESOURCE_TYPE_INVALID),
                  CUDA_ERROR_INVALID_RESOURCE_TYPE);
    expect_status(program, "a resource of no device", DRIVER(cuDeviceGetDevResource)(4711, &none, CU_DEV_RESOURCE_TYPE_SM),
                  CUDA_ERROR_INVALID_DEVICE);
    return true;
}

static void create(Program &program, CUdevice device, CUcontext primary, Part *part) {
    CUdevResourceDesc description = nullptr;
    CU(cuDevResourceGenerateDesc, &description, &part->resource, 1);
    expect_status(program, "a green context without a default stream",
                  DRIVER(cuGreenCtxCreate)(&part->green, description, device, 0), CUDA_ERROR_INVALID_VALUE);
    CU(cuGreenCtxCreate, &part->green, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
    CU(cuCtxFromGreenCtx, &part->context, part->green);
    program.expect(part->context && part->context != primary, "no context of the part was created");

    CUdevResource got;
    CU(cuGreenCtxGetDevResource, part->green, &got, CU_DEV_RESOURCE_TYPE_SM);
    program.expect_equal("multiprocessors of a green context", multiprocessors(got), multiprocessors(part->resource));
    CU(cuCtxGetDevResource, part->context, &got, CU_DEV_RESOURCE_TYPE_SM);
    program.expect_equal("multiprocessors of its context", multiprocessors(got), multiprocessors(part->resource));

    auto create_stream = DRIVER(cuGreenCtxStreamCreate);
    expect_status(program, "a blocking stream of a green context", create_stream(&part->stream, part->green, 0, 0),
                  CUDA_ERROR_INVALID_VALUE);
    CU(cuGreenCtxStreamCreate, &part->stream, part->green, CU_STREAM_NON_BLOCKING, 0);
    CUgreenCtx green = nullptr;
    CUcontext context = nullptr;
    CU(cuStreamGetGreenCtx, part->stream, &green);
    program.expect(green == part->green, "the stream has a different green context");
    CU(cuStreamGetCtx_v2, part->stream, &context, &green);
    program.expect(green == part->green && context == primary, "the stream's contexts differ");
    CU(cuMemAlloc, &part->memory, MAX_WIDTH * sizeof(unsigned));
}

// A stream that waits until the program releases it.
struct Gate {
    std::atomic<bool> open{false};

    static void wait(void *gate) {
        while (!static_cast<Gate *>(gate)->open.load()) {
            sched_yield();
        }
    }
};

// An event for all work of a green context, and one for all work of the primary context.
static void check_events(Program &program, const Kernels &kernels, CUcontext primary, Part *parts, bool of_context) {
    Gate gate;
    CUevent event = nullptr;
    CUstream later = nullptr;
    CU(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    CU(cuLaunchHostFunc, parts[0].stream, Gate::wait, &gate);
    launch_fill(kernels, parts[0].stream, parts[0].memory, 100);
    if (of_context) {
        CU(cuCtxRecordEvent, primary, event);
        CU(cuCtxWaitEvent, parts[1].context, event);
    } else {
        CU(cuGreenCtxRecordEvent, parts[0].green, event);
        CU(cuGreenCtxWaitEvent, parts[1].green, event);
    }
    launch_fill(kernels, parts[1].stream, parts[0].memory, 200);
    CU(cuGreenCtxStreamCreate, &later, parts[1].green, CU_STREAM_NON_BLOCKING, 0);
    launch_fill(kernels, later, parts[1].memory, 300);
    expect_status(program, "an event behind work", DRIVER(cuEventQuery)(event), CUDA_ERROR_NOT_READY);
    expect_status(program, "a stream of a context that waits", DRIVER(cuStreamQuery)(parts[1].stream),
                  CUDA_ERROR_NOT_READY);
    expect_status(program, "a later one", DRIVER(cuStreamQuery)(later), CUDA_ERROR_NOT_READY);
    gate.open = true;
    CU(cuStreamSynchronize, parts[1].stream);
    CU(cuStreamSynchronize, later);
    CU(cuEventSynchronize, event);
    expect_filled(program, "work behind the event", parts[0].memory, 200);
    expect_filled(program, "work of a later stream", parts[1].memory, 300);
    CU(cuStreamDestroy, later);
    CU(cuEventDestroy, event);
}

// Work in a context with a green context's multiprocessors.
static void check_current(Program &program, const Kernels &kernels, Part &part) {
    CUcontext popped = nullptr;
    CUgreenCtx green = nullptr;
    unsigned long long id = 0, current = 1;
    CUstream stream = nullptr;
    expect_status(program, "the number of no green context", DRIVER(cuGreenCtxGetId)(nullptr, &id),
                  CUDA_ERROR_INVALID_CONTEXT);
    CU(cuCtxPushCurrent, part.context);
    CU(cuGreenCtxGetId, part.green, &id);
    CU(cuGreenCtxGetId, nullptr, &current);
    program.expect(id == current, "the current green context has a different ID");
    CU(cuStreamGetGreenCtx, nullptr, &green);
    program.expect(green == part.green, "the default stream has a different green context");
    expect_status(program, "the thread's default stream", DRIVER(cuStreamQuery)(CU_STREAM_PER_THREAD),
                  CUDA_ERROR_INVALID_HANDLE);
    launch_fill(kernels, nullptr, part.memory, 400);
    CU(cuCtxSynchronize, );
    expect_filled(program, "the default stream's work", part.memory, 400);
    CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CU(cuStreamGetGreenCtx, stream, &green);
    program.expect(green == part.green, "a stream created in the context has a different green context");
    launch_fill(kernels, stream, part.memory, 500);
    CU(cuStreamSynchronize, stream);
    expect_filled(program, "a stream made in the context", part.memory, 500);
    CU(cuStreamDestroy, stream);
    CU(cuCtxPopCurrent, &popped);
    program.expect(popped == part.context, "a different context was current");
    CU(cuStreamGetGreenCtx, nullptr, &green);
    program.expect(!green, "the default stream still has the green context");
}

// The runtime's query of a stream's multiprocessors. CUDA 13.0 does not have it: it was
// added in 13.1, whose cuSOLVER needs it.
static void check_runtime(Program &program, const Part &part, unsigned all) {
    using Get = int(CUstream, CUdevResource *, int);
    void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    auto get = runtime ? reinterpret_cast<Get *>(dlsym(runtime, "cudaStreamGetDevResource")) : nullptr;
    if (!get) {
        return;
    }
    CUdevResource resource = {};
    program.expect_equal("the resource of a stream", get(part.stream, &resource, CU_DEV_RESOURCE_TYPE_SM), 0);
    program.expect_equal("a stream's multiprocessors", multiprocessors(resource), multiprocessors(part.resource));
    program.expect_equal("the resource of the default stream", get(nullptr, &resource, CU_DEV_RESOURCE_TYPE_SM), 0);
    program.expect_equal("the default stream's multiprocessors", multiprocessors(resource), all);
    // cudaDevResourceTypeWorkqueue, cudaErrorInvalidResourceType.
    program.expect_equal("a stream's work queues", get(part.stream, &resource, 10000), 914);
    program.expect_equal("no place for the resource", get(part.stream, nullptr, CU_DEV_RESOURCE_TYPE_SM), 1);
}

// On a GPU that isolates the parts: no block runs outside its part. Kernels of both
// parts run concurrently, each with more blocks than the device can hold.
static void check_places(Program &program, const Kernels &kernels, Part *parts) {
    unsigned seen[2][MAX_WIDTH], used[2] = {0, 0}, both = 0;
    for (int at = 0; at < 2; ++at) {
        CU(cuMemsetD32, parts[at].memory, 0, MAX_WIDTH);
    }
    CU(cuCtxSynchronize, );
    for (int at = 0; at < 2; ++at) {
        void *parameters[] = {&parts[at].memory};
        CU(cuLaunchKernel, kernels.where, 20000, 1, 1, 32, 1, 1, 0, parts[at].stream, parameters, nullptr);
    }
    for (int at = 0; at < 2; ++at) {
        CU(cuStreamSynchronize, parts[at].stream);
        CU(cuMemcpyDtoH, seen[at], parts[at].memory, sizeof seen[at]);
    }
    for (unsigned place = 0; place < MAX_WIDTH; ++place) {
        used[0] += seen[0][place] != 0;
        used[1] += seen[1][place] != 0;
        both += seen[0][place] != 0 && seen[1][place] != 0;
    }
    program.expect_equal("multiprocessors in both parts", both, 0u);
    for (int at = 0; at < 2; ++at) {
        program.expect_equal("multiprocessors in use", used[at], multiprocessors(parts[at].resource));
    }
}

int main(int argc, char **argv) {
    Program program("greenContexts", "runs kernels on parts of the device", "rounds", 1, 1, 1L << 10);
    program.parse(argc, argv);
    open_driver(program);
    CUdevice device = -1;
    CUcontext primary = nullptr;
    CUmodule module = nullptr;
    Kernels kernels = {};
    char name[256] = "";
    CU(cuInit, 0);
    CU(cuDeviceGet, &device, 0);
    CU(cuDeviceGetName, name, sizeof name, device);
    CU(cuDevicePrimaryCtxRetain, &primary, device);
    CU(cuCtxSetCurrent, primary);
    CU(cuModuleLoadData, &module, ptx);
    CU(cuModuleGetFunction, &kernels.fill, module, "fill");
    CU(cuModuleGetFunction, &kernels.where, module, "where");
    CUexecAffinityParam affinity = {};
    int all = 0;
    CU(cuDeviceGetAttribute, &all, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    CU(cuCtxGetExecAffinity, &affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT);
    program.expect_equal("multiprocessors of the primary context", affinity.param.smCount.val, static_cast<unsigned>(all));
    expect_status(program, "an affinity of another kind",
                  DRIVER(cuCtxGetExecAffinity)(&affinity, static_cast<CUexecAffinityType>(5)),
                  CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    while (program.next_round()) {
        Part parts[2] = {};
        CUdevResource rest = {};
        if (!split(program, device, parts, &rest)) {
            continue;
        }
        for (Part &part : parts) {
            create(program, device, primary, &part);
        }
        launch_fill(kernels, parts[0].stream, parts[0].memory, 1);
        launch_fill(kernels, parts[1].stream, parts[1].memory, 2);
        CU(cuStreamSynchronize, parts[0].stream);
        CU(cuStreamSynchronize, parts[1].stream);
        expect_filled(program, "the first part's work", parts[0].memory, 1);
        expect_filled(program, "the second part's work", parts[1].memory, 2);
        check_events(program, kernels, primary, parts, false);
        check_events(program, kernels, primary, parts, true);
        check_current(program, kernels, parts[0]);
        check_runtime(program, parts[0], static_cast<unsigned>(all));
        if (!std::strncmp(name, "NVIDIA", 6)) {
            check_places(program, kernels, parts);
        }
        // Streams end before their green context. Memory is the primary
        // context's and stays.
        for (Part &part : parts) {
            CU(cuStreamDestroy, part.stream);
            CU(cuGreenCtxDestroy, part.green);
        }
        CU(cuMemsetD32, parts[0].memory, 7, 1);
        CU(cuMemFree, parts[0].memory);
        CU(cuMemFree, parts[1].memory);
    }
    CU(cuModuleUnload, module);
    CU(cuDevicePrimaryCtxRelease, device);
    return program.finish();
}
