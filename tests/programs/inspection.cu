// inspection: queries that need no work of the device.
//
// Graphs as DOT files with and without details, atomic operations across links,
// flushes of remote writes, arrays that are neither planar nor sparse nor mapped
// later, attributes of streams.

#include "common/check.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <unistd.h>

__global__ void store(int *place, int value) { *place = value; }

static std::string printed(Program &program, cudaGraph_t graph, unsigned flags) {
    char path[] = "/tmp/paragpu-dot-XXXXXX";
    int file = mkstemp(path);
    program.expect(file >= 0, "no temporary file");
    CUDA_CHECK(cudaGraphDebugDotPrint(graph, path, flags));
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    close(file);
    unlink(path);
    return text.str();
}

static void run_dot(Program &program) {
    cudaStream_t stream;
    int *place;
    cudaGraph_t graph;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaMalloc(&place, sizeof(int)));
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CUDA_CHECK(cudaMemsetAsync(place, 0, sizeof(int), stream));
    store<<<1, 1, 0, stream>>>(place, 7);
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    std::string plain = printed(program, graph, 0), verbose = printed(program, graph, cudaGraphDebugDotFlagsVerbose);
    program.expect(plain.find("digraph") != std::string::npos, "no DOT graph");
    program.expect(plain.find("->") != std::string::npos, "no edge");
    program.expect(plain.find("store") != std::string::npos, "no name of a kernel");
    program.expect(verbose.size() > plain.size(), "verbose output is not longer");
    program.expect(cudaGraphDebugDotPrint(graph, "/nowhere/at/all", 0) != cudaSuccess, "an unwritable file was accepted");
    cudaGetLastError();
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaFree(place));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

static void run_links(Program &program) {
    cudaAtomicOperation operations[] = {cudaAtomicOperationIntegerAdd, cudaAtomicOperationCAS};
    unsigned capabilities[] = {77, 77};
    CUDA_CHECK(cudaDeviceGetHostAtomicCapabilities(capabilities, operations, 2, 0));
    program.expect(capabilities[0] != 77 && capabilities[1] != 77, "the atomic capabilities were not written");
    cudaError_t status = cudaDeviceGetHostAtomicCapabilities(capabilities, operations, 0, 0);
    program.expect(status == cudaErrorInvalidValue, "an empty list of operations was accepted");
    status = cudaDeviceGetP2PAtomicCapabilities(capabilities, operations, 2, 0, 0);
    program.expect(status == cudaErrorInvalidDevice, "a link of a device to itself was accepted");
    status = cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice, static_cast<cudaFlushGPUDirectRDMAWritesScope>(150));
    program.expect(status == cudaErrorInvalidValue, "an unknown scope was accepted");
    cudaGetLastError();
}

static void run_arrays(Program &program) {
    cudaChannelFormatDesc floats = cudaCreateChannelDesc<float>();
    cudaArray_t array, plane;
    CUDA_CHECK(cudaMallocArray(&array, &floats, 32, 32));
    cudaArraySparseProperties sparse;
    cudaArrayMemoryRequirements requirements;
    program.expect(cudaArrayGetPlane(&plane, array, 0) == cudaErrorInvalidValue, "an array of one plane returned a plane");
    program.expect(cudaArrayGetSparseProperties(&sparse, array) == cudaErrorInvalidValue, "an array has sparse properties");
    program.expect(cudaArrayGetMemoryRequirements(&requirements, array, 0) == cudaErrorInvalidValue, "an array has memory requirements");
    cudaGetLastError();
    CUDA_CHECK(cudaFreeArray(array));
}

static void run_streams(Program &program) {
    cudaStream_t one, other;
    CUDA_CHECK(cudaStreamCreate(&one));
    CUDA_CHECK(cudaStreamCreate(&other));
    cudaLaunchAttributeValue value = {}, got = {};
    value.syncPolicy = cudaSyncPolicyYield;
    CUDA_CHECK(cudaStreamSetAttribute(one, cudaLaunchAttributeSynchronizationPolicy, &value));
    CUDA_CHECK(cudaStreamCopyAttributes(other, one));
    CUDA_CHECK(cudaStreamGetAttribute(other, cudaLaunchAttributeSynchronizationPolicy, &got));
    program.expect(got.syncPolicy == cudaSyncPolicyYield, "a copied attribute differs");
    int most = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxAccessPolicyWindowSize, 0));
    void *memory;
    CUDA_CHECK(cudaMalloc(&memory, 4096));
    value = {};
    value.accessPolicyWindow.base_ptr = memory;
    value.accessPolicyWindow.num_bytes = most < 4096 ? most : 4096;
    value.accessPolicyWindow.hitRatio = 0.5f;
    value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    CUDA_CHECK(cudaStreamSetAttribute(one, cudaLaunchAttributeAccessPolicyWindow, &value));
    CUDA_CHECK(cudaStreamGetAttribute(one, cudaLaunchAttributeAccessPolicyWindow, &got));
    program.expect(got.accessPolicyWindow.base_ptr == memory && got.accessPolicyWindow.hitRatio == 0.5f &&
                       got.accessPolicyWindow.hitProp == cudaAccessPropertyPersisting,
                   "an access policy window was lost");
    value.accessPolicyWindow.hitRatio = 2.0f;
    cudaError_t status = cudaStreamSetAttribute(one, cudaLaunchAttributeAccessPolicyWindow, &value);
    program.expect(status == cudaErrorInvalidValue, "a hit ratio above 1 was accepted");
    cudaGetLastError();
    CUDA_CHECK(cudaFree(memory));
    CUDA_CHECK(cudaStreamDestroy(one));
    CUDA_CHECK(cudaStreamDestroy(other));
}

// The runtime returns the driver's export tables. NVIDIA's libraries use this one to
// get the current context.
static void run_export_table(Program &program) {
    cudaUUID_t id = {{0x42, '\xd8', 0x5a, '\x81', 0x23, '\xf6', '\xcb', 0x47, '\x82', '\x98', '\xf6', '\xe7', '\x8a', 0x3a, '\xec', '\xdc'}};
    const void *table = nullptr;
    CUDA_CHECK(cudaGetExportTable(&table, &id));
    auto current = reinterpret_cast<int (*const *)(void **)>(table)[2];
    void *context = nullptr;
    program.expect_equal("the status of the table's function", current(&context), 0);
    program.expect(context, "the table knows no current context");
}

int main(int argc, char **argv) {
    Program program("inspection", "asks about graphs, links, arrays and streams", "questions", 1, 1, 1);
    program.parse(argc, argv);
    while (program.next_round()) {
        run_dot(program);
        run_links(program);
        run_arrays(program);
        run_streams(program);
        run_export_table(program);
    }
    return program.finish();
}
