// driverTools: the driver API around kernels: linking at run time, launches
// prepared in steps, the error log, attributes of core dumps.
//
// libcuda.so.1 is opened at run time, as in driverApi.

#include "common/check.h"
#include "common/opened.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static const char ptx[] =
#include "driverApi_kernels.inc"
    ;

// Two sources are linked into one image: a kernel, and the function and variable that
// it imports.
static const char caller[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                             ".extern .func (.param .b32 result) twice(.param .b32 value);\n"
                             ".extern .global .align 4 .u32 base;\n"
                             ".visible .entry run(.param .u64 to) {\n"
                             ".reg .b64 %rd<3>; .reg .b32 %r<4>;\n"
                             "ld.param.u64 %rd1, [to]; cvta.to.global.u64 %rd2, %rd1;\n"
                             "ld.global.u32 %r1, [base];\n"
                             "{ .param .b32 value; .param .b32 result;\n"
                             "st.param.b32 [value], %r1;\n"
                             "call.uni (result), twice, (value);\n"
                             "ld.param.b32 %r2, [result]; }\n"
                             "st.global.u32 [%rd2], %r2; ret;\n}\n";
static const char called[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
                             ".visible .global .align 4 .u32 base = 21;\n"
                             ".visible .func (.param .b32 result) twice(.param .b32 value) {\n"
                             ".reg .b32 %r<3>;\n"
                             "ld.param.b32 %r1, [value]; add.u32 %r2, %r1, %r1;\n"
                             "st.param.b32 [result], %r2; ret;\n}\n";

static CUresult add_text(CUlinkState link, const char *text, size_t size, const char *name) {
    return DRIVER(cuLinkAddData)(link, CU_JIT_INPUT_PTX, const_cast<char *>(text), size, name, 0, nullptr, nullptr);
}

static void check_link(Program &program) {
    char log[2048] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, reinterpret_cast<void *>(sizeof log)};
    CUlinkState link = nullptr;
    CU(cuLinkCreate, 2, options, values, &link);
    CU(cuLinkAddData, link, CU_JIT_INPUT_PTX, const_cast<char *>(caller), sizeof caller, "caller", 0, nullptr, nullptr);
    CU(cuLinkAddData, link, CU_JIT_INPUT_PTX, const_cast<char *>(called), sizeof called, "called", 0, nullptr, nullptr);
    void *image = nullptr;
    size_t size = 0;
    CU(cuLinkComplete, link, &image, &size);
    program.expect(image && size > 0, "the linked image is empty");
    CUmodule module;
    CUfunction kernel;
    CUdeviceptr to = 0;
    unsigned got = 0;
    CU(cuModuleLoadData, &module, image);
    CU(cuLinkDestroy, link);
    CU(cuModuleGetFunction, &kernel, module, "run");
    CU(cuMemAlloc, &to, sizeof got);
    void *parameters[] = {&to};
    CU(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
    CU(cuMemcpyDtoH, &got, to, sizeof got);
    program.expect_equal("a kernel of two texts", got, 42u);
    CU(cuModuleUnload, module);
    CU(cuMemFree, to);

    // Missing or invalid input is refused when it is added or at the end, and the log
    // gives the reason. The log's size is set to the bytes that were used.
    values[1] = reinterpret_cast<void *>(sizeof log);
    CU(cuLinkCreate, 2, options, values, &link);
    CUresult status = add_text(link, caller, sizeof caller, "caller");
    if (status == CUDA_SUCCESS) {
        status = DRIVER(cuLinkComplete)(link, &image, &size);
    }
    program.expect(status != CUDA_SUCCESS, "an image with an unresolved function was linked");
    program.expect(std::strstr(log, "twice"), "the log does not name the missing function");
    CU(cuLinkDestroy, link);
    CU(cuLinkCreate, 0, nullptr, nullptr, &link);
    const char broken[] = ".version 7.0\n.target sm_75\n.address_size 64\n.entry {";
    status = add_text(link, broken, sizeof broken, "broken");
    if (status == CUDA_SUCCESS) {
        status = DRIVER(cuLinkComplete)(link, &image, &size);
    }
    expect_status(program, "linking broken PTX", status, CUDA_ERROR_INVALID_PTX);
    CU(cuLinkDestroy, link);
}

// Launches by the functions that preceded cuLaunchKernel.
static void check_prepared_launch(Program &program, CUmodule module) {
    CUfunction kernel;
    CUdeviceptr from = 0, to = 0;
    float values[8] = {0, 1, 2, 3, 4, 5, 6, 7}, got[8], want[8];
    CUdeviceptr offset = 0, factor = 0;
    int minus_three = -3;
    float half = 0.5f;
    CU(cuModuleGetGlobal, &offset, nullptr, module, "offset");
    CU(cuModuleGetGlobal, &factor, nullptr, module, "factor");
    CU(cuMemcpyHtoD, offset, &minus_three, sizeof minus_three);
    CU(cuMemcpyHtoD, factor, &half, sizeof half);
    CU(cuModuleGetFunction, &kernel, module, "scale_and_add");
    CU(cuMemAlloc, &from, sizeof values);
    CU(cuMemAlloc, &to, sizeof values);
    CU(cuMemcpyHtoD, from, values, sizeof values);
    size_t offsets[4], sizes[4];
    for (int at = 0; at < 4; ++at) {
        CU(cuFuncGetParamInfo, kernel, at, &offsets[at], &sizes[at]);
        want[at] = values[at] * 2.0f * 0.5f - 3.0f;
        want[at + 4] = values[at + 4] * 2.0f * 0.5f - 3.0f;
    }
    CU(cuFuncSetBlockShape, kernel, 4, 1, 1);
    CU(cuFuncSetSharedSize, kernel, 0);
    CU(cuParamSetv, kernel, static_cast<int>(offsets[0]), &to, sizeof to);
    CU(cuParamSetv, kernel, static_cast<int>(offsets[1]), &from, sizeof from);
    CU(cuParamSetf, kernel, static_cast<int>(offsets[2]), 2.0f);
    CU(cuParamSeti, kernel, static_cast<int>(offsets[3]), 8u);
    CU(cuParamSetSize, kernel, static_cast<unsigned>(offsets[3] + sizes[3]));
    CU(cuMemsetD8, to, 0, sizeof values);
    CU(cuLaunchGrid, kernel, 2, 1);
    CU(cuMemcpyDtoH, got, to, sizeof got);
    program.expect_equal("a prepared launch", got, want, 8);
    CU(cuMemsetD8, to, 0, sizeof values);
    CU(cuLaunch, kernel);
    CU(cuMemcpyDtoH, got, to, sizeof got);
    std::memset(want + 4, 0, 4 * sizeof(float));
    program.expect_equal("a prepared launch of one block", got, want, 8);
    expect_status(program, "a block without threads", DRIVER(cuFuncSetBlockShape)(kernel, 0, 1, 1),
                  CUDA_ERROR_INVALID_VALUE);
    CU(cuMemFree, from);
    CU(cuMemFree, to);
}

struct Heard {
    int times;
    char last[256];
};

static void record_log(void *data, CUlogLevel level, char *message, size_t length) {
    Heard *heard = static_cast<Heard *>(data);
    ++heard->times;
    snprintf(heard->last, sizeof heard->last, "%.*s", static_cast<int>(length), message);
}

// The log can be read; its text depends on the driver.
static void check_log(Program &program) {
    Heard heard = {};
    CUlogsCallbackHandle handle = nullptr;
    CUlogIterator place = 0;
    CU(cuLogsRegisterCallback, record_log, &heard, &handle);
    CU(cuLogsCurrent, &place, 0);
    char text[4096] = "none";
    size_t size = sizeof text;
    CU(cuLogsDumpToMemory, &place, text, &size, 0);
    program.expect(size == 0, "the log has messages before any error");
    expect_status(program, "cuMemFree of what was never allocated", DRIVER(cuMemFree)(0x7fffdead0000ull),
                  CUDA_ERROR_INVALID_VALUE);
    CUlogIterator after = place;
    size = sizeof text;
    CU(cuLogsDumpToMemory, &after, text, &size, 0);
    program.expect(std::strlen(text) == size, "the log's length is wrong");
    program.expect((heard.times > 0) == (size > 0), "the callback was not called for the log's messages");
    program.expect(size == 0 || std::strstr(text, heard.last), "the callback received a message that the log lacks");
    CU(cuLogsUnregisterCallback, handle);
    int times = heard.times;
    (void)DRIVER(cuMemFree)(0x7fffdead0000ull);
    program.expect(heard.times == times, "an unregistered callback was called");
    size = 0;
    expect_status(program, "a log into no bytes", DRIVER(cuLogsDumpToMemory)(&place, text, &size, 0),
                  CUDA_ERROR_INVALID_VALUE);
    expect_status(program, "a log with flags", DRIVER(cuLogsCurrent)(&place, 1), CUDA_SUCCESS);
}

static void check_coredump(Program &program) {
    char path[1024] = "";
    size_t size = sizeof path;
    CU(cuCoredumpGetAttribute, CU_COREDUMP_FILE, path, &size);
    bool dumps = true;
    size = sizeof dumps;
    CU(cuCoredumpGetAttribute, CU_COREDUMP_ENABLE_ON_EXCEPTION, &dumps, &size);
    program.expect(!dumps, "core dumps are enabled by default");
    char place[] = "elsewhere";
    size = sizeof place;
    CU(cuCoredumpSetAttribute, CU_COREDUMP_FILE, place, &size);
    size = sizeof path;
    CU(cuCoredumpGetAttribute, CU_COREDUMP_FILE, path, &size);
    program.expect(!std::strcmp(path, place), "the path of core dumps was lost");
    expect_status(program, "an attribute that is none", DRIVER(cuCoredumpGetAttribute)(CU_COREDUMP_MAX, path, &size),
                  CUDA_ERROR_INVALID_VALUE);
}

int main(int argc, char **argv) {
    Program program("driverTools", "links, logs and launches by the driver API", "rounds", 1, 1, 1L << 10);
    program.parse(argc, argv);
    open_driver(program);
    CUdevice device = -1;
    CUcontext context = nullptr;
    CU(cuInit, 0);
    CU(cuDeviceGet, &device, 0);
    CU(cuDevicePrimaryCtxRetain, &context, device);
    CU(cuCtxSetCurrent, context);
    while (program.next_round()) {
        CUmodule module = nullptr;
        CU(cuModuleLoadData, &module, ptx);
        check_link(program);
        check_prepared_launch(program, module);
        check_log(program);
        check_coredump(program);
        CU(cuModuleUnload, module);
    }
    CU(cuDevicePrimaryCtxRelease, device);
    return program.finish();
}
