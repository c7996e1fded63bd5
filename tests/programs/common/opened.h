// The driver API of libcuda.so.1, opened at run time, for programs without the runtime.
#pragma once

#include "check.h"

#include <cuda.h>
#include <dlfcn.h>

static void *library;

static void open_driver(Program &program) {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        program.die("%s", dlerror());
    }
}

static void *function(const char *name) {
    void *address = dlsym(library, name);
    if (!address) {
        Program::current()->die("libcuda.so.1 has no %s", name);
    }
    return address;
}

#define TEXT_OF(name) #name
#define SYMBOL(name) TEXT_OF(name)
// The header renames functions to their newest version (cuMemAlloc is
// cuMemAlloc_v2), and so does the name that is looked up.
#define DRIVER(name) (reinterpret_cast<decltype(&name)>(function(SYMBOL(name))))

static void driver_check(CUresult status, const char *call, int line) {
    if (status != CUDA_SUCCESS) {
        const char *name = nullptr, *text = nullptr;
        DRIVER(cuGetErrorName)(status, &name);
        DRIVER(cuGetErrorString)(status, &text);
        Program::current()->die("%s gave %s (%s) at line %d", call, name ? name : "an unknown error", text ? text : "",
                                line);
    }
}

#define CU(name, ...) driver_check(DRIVER(name)(__VA_ARGS__), #name, __LINE__)

static void expect_status(Program &program, const char *what, CUresult got, CUresult want) {
    if (got != want) {
        program.fail("%s gave error %d, expected %d", what, got, want);
    }
}
