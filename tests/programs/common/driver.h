// Driver functions in a program that uses the runtime: looked up as libraries do,
// so that the program does not link with libcuda.so.1.

#ifndef PARAGPU_TESTS_DRIVER_H
#define PARAGPU_TESTS_DRIVER_H

#include "check.h"

#include <cuda.h>

inline void *driver_function(const char *name) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, CUDART_VERSION, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || !function) {
        Program::current()->die("the driver has no %s", name);
    }
    return function;
}

// The driver's function of this name, as cuda.h declares it. cuda.h gives some
// the name of their current version by a macro; the lookup uses the name without
// a version.
#define DRIVER(name) DRIVER_NAMED(#name, name)
#define DRIVER_NAMED(text, name)                                                                                       \
    ([]() -> decltype(&name) {                                                                                         \
        static auto function = reinterpret_cast<decltype(&name)>(driver_function(text));                               \
        return function;                                                                                               \
    }())

#define DRIVER_CHECK(name, ...)                                                                                        \
    do {                                                                                                               \
        CUresult result_ = DRIVER_NAMED(#name, name)(__VA_ARGS__);                                                                  \
        if (result_ != CUDA_SUCCESS) {                                                                                 \
            Program::current()->die("%s:%d: %s: error %d", __FILE__, __LINE__, #name, static_cast<int>(result_));      \
        }                                                                                                              \
    } while (0)

// The call must fail with exactly this error.
#define DRIVER_FAILS(expected, name, ...)                                                                              \
    do {                                                                                                               \
        CUresult result_ = DRIVER_NAMED(#name, name)(__VA_ARGS__);                                                                  \
        if (result_ != (expected)) {                                                                                   \
            Program::current()->fail("%s:%d: %s: error %d, not %d", __FILE__, __LINE__, #name,                         \
                                     static_cast<int>(result_), static_cast<int>(expected));                           \
        }                                                                                                              \
    } while (0)

#endif
