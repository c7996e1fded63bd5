// loadingThreads: threads that load modules at once, pairs of them the same one.
//
// Each text is new, and long enough to reach a remote host in several parts. Each thread loads
// its kernel, launches it and unloads it; those of every second pair link it first.

#include "common/check.h"
#include "common/opened.h"

#include <string>
#include <thread>
#include <vector>

constexpr int threads = 8;
constexpr size_t length = 600000;

// A kernel that adds `amount` to a word.
static std::string text(unsigned amount, Random &random) {
    std::string text = ".version 7.0\n.target sm_75\n.address_size 64\n"
                       ".visible .entry add(.param .u64 to) {\n"
                       ".reg .b64 %rd<3>; .reg .b32 %r<2>;\n"
                       "ld.param.u64 %rd1, [to]; cvta.to.global.u64 %rd2, %rd1;\n"
                       "mov.u32 %r1, " +
                       std::to_string(amount) +
                       ";\n"
                       "red.global.add.u32 [%rd2], %r1; ret;\n}\n";
    while (text.size() < length) {
        text += "// " + std::to_string(random.next()) + std::string(100, '.') + "\n";
    }
    return text;
}

#define TRY(name, ...)                                                                                                 \
    do {                                                                                                               \
        CUresult status_ = DRIVER(name)(__VA_ARGS__);                                                                  \
        if (status_ != CUDA_SUCCESS) {                                                                                 \
            return status_;                                                                                            \
        }                                                                                                              \
    } while (0)

static CUresult load_and_add(CUcontext context, const std::string &text, bool linked, CUdeviceptr to) {
    TRY(cuCtxSetCurrent, context);
    CUmodule module;
    if (linked) {
        CUlinkState link;
        void *image;
        TRY(cuLinkCreate, 0, nullptr, nullptr, &link);
        TRY(cuLinkAddData, link, CU_JIT_INPUT_PTX, const_cast<char *>(text.c_str()), text.size() + 1, "add", 0, nullptr,
            nullptr);
        TRY(cuLinkComplete, link, &image, nullptr);
        TRY(cuModuleLoadData, &module, image);
        TRY(cuLinkDestroy, link);
    } else {
        TRY(cuModuleLoadData, &module, text.c_str());
    }
    CUfunction kernel;
    TRY(cuModuleGetFunction, &kernel, module, "add");
    void *parameters[] = {&to};
    TRY(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
    TRY(cuModuleUnload, module);
    return CUDA_SUCCESS;
}

int main(int argc, char **argv) {
    Program program("loadingThreads", "loads modules in eight threads at once", "modules per thread", 4, 1, 1L << 10);
    program.parse(argc, argv);
    open_driver(program);
    CUdevice device = -1;
    CUcontext context = nullptr;
    CUdeviceptr word = 0;
    CU(cuInit, 0);
    CU(cuDeviceGet, &device, 0);
    CU(cuDevicePrimaryCtxRetain, &context, device);
    CU(cuCtxSetCurrent, context);
    CU(cuMemAlloc, &word, sizeof(unsigned));
    Random random(program.seed());
    while (program.next_round()) {
        unsigned got = 0, want = 0;
        CU(cuMemsetD32, word, 0, 1);
        driver_check(DRIVER(cuCtxSynchronize)(), "cuCtxSynchronize", __LINE__);
        for (long at = 0; at < program.size(); ++at) {
            std::vector<std::string> texts;
            std::vector<CUresult> statuses(threads);
            std::vector<std::thread> running;
            for (int pair = 0; pair < threads / 2; ++pair) {
                unsigned amount = static_cast<unsigned>(random.next()) % 1000000;
                texts.push_back(text(amount, random));
                want += 2 * amount;
            }
            for (int number = 0; number < threads; ++number) {
                running.emplace_back([&, number] {
                    statuses[number] = load_and_add(context, texts[number / 2], number / 2 % 2, word);
                });
            }
            for (std::thread &one : running) {
                one.join();
            }
            for (CUresult status : statuses) {
                expect_status(program, "a thread that loads a module", status, CUDA_SUCCESS);
            }
        }
        CU(cuMemcpyDtoH, &got, word, sizeof got);
        program.digest(&got, sizeof got);
        program.expect_equal("the sum of all modules", got, want);
    }
    CU(cuMemFree, word);
    CU(cuDevicePrimaryCtxRelease, device);
    return program.finish();
}
