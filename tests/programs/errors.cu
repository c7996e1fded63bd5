// errors: calls that must fail, and how.
//
// Errors after which a program continues: each must have its documented number,
// appear once in cudaGetLastError and leave the device usable. And, in separate
// processes, sticky errors: the next synchronization reports them, and so does
// every call after it. After cudaDeviceReset the device is unavailable to the process.
//
// For launches of an impossible shape two errors are documented: runtimes before 13
// return cudaErrorInvalidConfiguration, 13.0 cudaErrorInvalidValue (seen on driver
// 580). Likewise for a function that is not a kernel. Either is accepted.

#include "common/check.h"

#include <sys/wait.h>
#include <unistd.h>
#include <vector>

__global__ void fill(int *values, int value, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        values[at] = value;
    }
}

__global__ void with_shared(int *values) {
    extern __shared__ int shared[];
    shared[threadIdx.x] = threadIdx.x;
    __syncthreads();
    values[threadIdx.x] = shared[threadIdx.x];
}

__global__ void __launch_bounds__(128) bounded(int *values) { values[threadIdx.x] = 1; }

// Far outside every allocation.
__global__ void write_outside(int *values) { values[(1ull << 40) + threadIdx.x] = 1; }
__global__ void read_null(const int *volatile *where, int *values) { values[0] = **where; }
__global__ void write_misaligned(char *bytes) { *reinterpret_cast<volatile int *>(bytes + 1) = 1; }
__global__ void trap() { asm volatile("trap;"); }

__device__ int known_symbol[4];
static int no_symbol[4];

static Program *the_program;

static void expect_status(const char *what, cudaError_t got, cudaError_t want) {
    if (got != want) {
        the_program->fail("%s gave %s, expected %s", what, cudaGetErrorName(got), cudaGetErrorName(want));
    }
    the_program->digest(&got, sizeof got);
}

// Checks that a call's error is also the last error, once.
static void expect_last(const char *what, cudaError_t got, cudaError_t want) {
    expect_status(what, got, want);
    expect_status("cudaPeekAtLastError", cudaPeekAtLastError(), want);
    expect_status("cudaGetLastError", cudaGetLastError(), want);
    expect_status("cudaGetLastError again", cudaGetLastError(), cudaSuccess);
}

// Not part of the digest.
static void expect_plain(const char *what, cudaError_t got, cudaError_t want) {
    if (got != want) {
        the_program->fail("%s gave %s, expected %s", what, cudaGetErrorName(got), cudaGetErrorName(want));
    }
    cudaGetLastError();
}

// The same where two errors are accepted; they are not part of the digest.
static void expect_last_either(const char *what, cudaError_t got, cudaError_t one, cudaError_t other) {
    if (got != one && got != other) {
        the_program->fail("%s gave %s, expected %s or %s", what, cudaGetErrorName(got), cudaGetErrorName(one),
                          cudaGetErrorName(other));
    }
    cudaError_t last = cudaGetLastError();
    if (last != got) {
        the_program->fail("%s gave %s, but the last error was %s", what, cudaGetErrorName(got), cudaGetErrorName(last));
    }
    expect_status("cudaGetLastError again", cudaGetLastError(), cudaSuccess);
}

// The error of the preceding launch.
static void expect_bad_shape(const char *what) {
    expect_last_either(what, cudaPeekAtLastError(), cudaErrorInvalidConfiguration,
                       CUDART_VERSION < 13000 ? cudaErrorInvalidConfiguration : cudaErrorInvalidValue);
}

static void check_launches(int *device) {
    fill<<<1, 2048>>>(device, 1, 64);
    expect_bad_shape("a block of 2048 threads");
    fill<<<1, dim3(1, 1, 65)>>>(device, 1, 64);
    expect_bad_shape("a block 65 deep");
    fill<<<0, 32>>>(device, 1, 64);
    expect_bad_shape("a grid of nothing");
    fill<<<dim3(1, 70000), 32>>>(device, 1, 64);
    expect_bad_shape("a grid 70000 high");
    fill<<<1, 0>>>(device, 1, 64);
    expect_bad_shape("a block of nothing");
    bounded<<<1, 256>>>(device);
    expect_last_either("a block over the kernel's launch bounds", cudaPeekAtLastError(),
                       cudaErrorInvalidConfiguration, cudaErrorInvalidValue);
    with_shared<<<1, 32, 1 << 20>>>(device);
    expect_last("1 MiB of shared memory", cudaPeekAtLastError(), cudaErrorInvalidValue);
    void *no_arguments[] = {nullptr};
    expect_last_either(
        "launching a function that is no kernel",
        cudaLaunchKernel(reinterpret_cast<const void *>(check_launches), dim3(1), dim3(1), no_arguments, 0, nullptr),
        cudaErrorInvalidDeviceFunction, cudaErrorInvalidResourceHandle);
    expect_last("launching nothing", cudaLaunchKernel(nullptr, dim3(1), dim3(1), no_arguments, 0, nullptr),
                cudaErrorInvalidDeviceFunction);
    // A successful call does not change the last error.
    fill<<<1, 4096>>>(device, 1, 64);
    CUDA_CHECK(cudaMemset(device, 0, 4));
    expect_bad_shape("the error before a call that succeeds");
}

static void check_memory(int *device) {
    int host[16] = {};
    void *memory = nullptr;
    CUDA_CHECK(cudaMalloc(&memory, 1000));
    CUDA_CHECK(cudaFree(memory));
    expect_last("freeing twice", cudaFree(memory), cudaErrorInvalidValue);
    expect_last("freeing host memory", cudaFree(host), cudaErrorInvalidValue);
    expect_last("freeing inside an allocation", cudaFree(device + 1), cudaErrorInvalidValue);
    expect_status("freeing nothing", cudaFree(nullptr), cudaSuccess);
    expect_last("2^60 bytes", cudaMalloc(&memory, 1ull << 60), cudaErrorMemoryAllocation);
    expect_last("a copy in no direction",
                cudaMemcpy(device, host, sizeof host, static_cast<cudaMemcpyKind>(77)),
                cudaErrorInvalidMemcpyDirection);
    expect_last("a row longer than its pitch",
                cudaMemcpy2D(device, 8, host, 16, 12, 2, cudaMemcpyHostToDevice), cudaErrorInvalidPitchValue);
    expect_last("a copy past the end of an allocation", cudaMemcpy(device, host, 1 << 30, cudaMemcpyHostToDevice),
                cudaErrorInvalidValue);
    expect_last("filling host memory", cudaMemset(host, 0, sizeof host), cudaErrorInvalidValue);
    expect_last("a copy out of what is no device memory",
                cudaMemcpy(host, reinterpret_cast<void *>(0x7ffff00000000000ull), 16, cudaMemcpyDeviceToHost),
                cudaErrorInvalidValue);
    expect_last("a pointer for the result of cudaMalloc", cudaMalloc(static_cast<void **>(nullptr), 16),
                cudaErrorInvalidValue);
    std::vector<int> pageable(4096);
    expect_last("unregistering what is not registered", cudaHostUnregister(pageable.data()),
                cudaErrorHostMemoryNotRegistered);
    CUDA_CHECK(cudaHostRegister(pageable.data(), pageable.size() * sizeof(int), cudaHostRegisterDefault));
    expect_last("registering twice",
                cudaHostRegister(pageable.data(), pageable.size() * sizeof(int), cudaHostRegisterDefault),
                cudaErrorHostMemoryAlreadyRegistered);
    expect_last("unregistering inside a registered range", cudaHostUnregister(pageable.data() + 16),
                cudaErrorInvalidValue);
    CUDA_CHECK(cudaHostUnregister(pageable.data()));
    expect_last("cudaFreeHost of malloc's memory", cudaFreeHost(pageable.data()), cudaErrorInvalidValue);
}

static void check_symbols() {
    int host[8] = {};
    void *address = nullptr;
    size_t bytes = 0;
    expect_last("a copy to a host variable as a symbol", cudaMemcpyToSymbol(no_symbol, host, sizeof no_symbol),
                cudaErrorInvalidSymbol);
    expect_last("the address of a host variable as a symbol", cudaGetSymbolAddress(&address, no_symbol),
                cudaErrorInvalidSymbol);
    expect_last("the size of a host variable as a symbol", cudaGetSymbolSize(&bytes, no_symbol),
                cudaErrorInvalidSymbol);
    expect_last("a copy past the end of a symbol", cudaMemcpyToSymbol(known_symbol, host, 2 * sizeof known_symbol),
                cudaErrorInvalidValue);
}

static void check_devices_and_names() {
    int count = 0;
    CUDA_CHECK(cudaGetDeviceCount(&count));
    expect_last("setting a device that is not there", cudaSetDevice(count), cudaErrorInvalidDevice);
    cudaDeviceProp properties;
    expect_last("the properties of a device that is not there", cudaGetDeviceProperties(&properties, -1),
                cudaErrorInvalidDevice);
    int value = 0;
    expect_last("an attribute that is not there",
                cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(9999), 0), cudaErrorInvalidValue);
    struct {
        cudaError_t status;
        const char *name;
        const char *text;
    } const names[] = {
        {cudaSuccess, "cudaSuccess", "no error"},
        {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
        {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
        {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
        {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
        {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
        {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
        {static_cast<cudaError_t>(123456), "unrecognized error code", "unrecognized error code"},
    };
    for (const auto &entry : names) {
        the_program->expect(!std::strcmp(cudaGetErrorName(entry.status), entry.name), entry.name);
        the_program->expect(!std::strcmp(cudaGetErrorString(entry.status), entry.text), entry.text);
    }
}

// As a driver 580 answers on an H100. They are not part of the digest.
static void check_arguments(int *device) {
    int host[16] = {}, own = 0;
    CUDA_CHECK(cudaGetDevice(&own));
    expect_plain("a single row longer than its pitch",
                 cudaMemcpy2D(device, 4, host, 4, 8, 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    expect_plain("a copy to the device into host memory", cudaMemcpy(host, device, 4, cudaMemcpyHostToDevice),
                 cudaErrorInvalidValue);
    expect_plain("a copy from the device out of host memory", cudaMemcpy(device, host, 4, cudaMemcpyDeviceToHost),
                 cudaErrorInvalidValue);
    cudaMemcpy3DParms box = {};
    box.srcPtr = make_cudaPitchedPtr(device, 64, 64, 4);
    box.dstPtr = make_cudaPitchedPtr(host, 8, 8, 4);
    box.extent = make_cudaExtent(9, 4, 1);
    box.kind = cudaMemcpyDeviceToHost;
    expect_plain("rows of a volume longer than their pitch", cudaMemcpy3D(&box), cudaErrorInvalidPitchValue);
    // Of two allocations at least one ends where another begins.
    int *blocks[2];
    for (int *&block : blocks) {
        CUDA_CHECK(cudaMalloc(&block, 512));
    }
    for (int *block : blocks) {
        expect_plain("a copy into the next allocation",
                     cudaMemcpy(reinterpret_cast<char *>(block) + 508, host, 8, cudaMemcpyHostToDevice),
                     cudaErrorInvalidValue);
        CUDA_CHECK(cudaFree(block));
    }
    void *pinned = nullptr;
    CUDA_CHECK(cudaMallocHost(&pinned, 4096));
    expect_plain("unregistering memory of cudaMallocHost", cudaHostUnregister(pinned), cudaErrorInvalidValue);
    expect_plain("registering memory of cudaMallocHost", cudaHostRegister(pinned, 4096, 0), cudaErrorInvalidValue);
    CUDA_CHECK(cudaFreeHost(pinned));
    std::vector<int> pageable(4096);
    unsigned flags = 0;
    CUDA_CHECK(cudaHostRegister(pageable.data(), 4096, cudaHostRegisterPortable));
    CUDA_CHECK(cudaHostGetFlags(&flags, pageable.data()));
    the_program->expect(flags == (cudaHostAllocPortable | cudaHostAllocMapped), "the flags of registered memory");
    CUDA_CHECK(cudaHostUnregister(pageable.data()));
    expect_plain("access of a device to itself", cudaDeviceEnablePeerAccess(own, 0), cudaErrorPeerAccessUnsupported);
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    cudaLaunchAttributeValue value = {};
    for (int attribute : {0, 2, 99}) {
        expect_plain("an attribute that streams lack",
                     cudaStreamGetAttribute(stream, static_cast<cudaLaunchAttributeID>(attribute), &value),
                     cudaErrorInvalidValue);
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
    cudaLaunchAttribute unknown = {};
    unknown.id = static_cast<cudaLaunchAttributeID>(900);
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = 1;
    config.attrs = &unknown;
    config.numAttrs = 1;
    expect_plain("a launch with an attribute that is not there", cudaLaunchKernelEx(&config, fill, device, 1, 1),
                 cudaErrorInvalidValue);
    cudaArray_t array = nullptr;
    cudaChannelFormatDesc desc = cudaCreateChannelDesc<int>();
    expect_plain("an array with a flag that is not there", cudaMallocArray(&array, &desc, 16, 0, 0x4000),
                 cudaErrorInvalidValue);
    CUDA_CHECK(cudaMallocArray(&array, &desc, 16, 16));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc reading = {};
    reading.filterMode = cudaFilterModeLinear;
    reading.readMode = cudaReadModeElementType;
    cudaTextureObject_t texture = 0;
    expect_plain("a texture that interpolates integers", cudaCreateTextureObject(&texture, &resource, &reading, nullptr),
                 cudaErrorInvalidFilterSetting);
    reading.filterMode = cudaFilterModePoint;
    CUDA_CHECK(cudaCreateTextureObject(&texture, &resource, &reading, nullptr));
    cudaResourceViewDesc view;
    expect_plain("the view of a texture without one", cudaGetTextureObjectResourceViewDesc(&view, texture), cudaSuccess);
    cudaSurfaceObject_t surface = 0;
    expect_plain("a surface of an array without the flag", cudaCreateSurfaceObject(&surface, &resource), cudaSuccess);
    CUDA_CHECK(cudaDestroySurfaceObject(surface));
    CUDA_CHECK(cudaDestroyTextureObject(texture));
    CUDA_CHECK(cudaFreeArray(array));
    cudaLaunchAttribute wrong[2] = {};
    config.attrs = &wrong[0];
    config.numAttrs = 1;
    wrong[0].id = cudaLaunchAttributeSynchronizationPolicy;
    wrong[0].val.syncPolicy = cudaSyncPolicyAuto;
    expect_plain("a launch with an attribute of streams", cudaLaunchKernelEx(&config, fill, device, 1, 1),
                 cudaErrorInvalidValue);
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = 99;
    cudaMemPool_t pool = nullptr;
    expect_plain("a pool of a device that is not there", cudaMemPoolCreate(&pool, &props), cudaErrorInvalidValue);
    CUDA_CHECK(cudaDeviceGetDefaultMemPool(&pool, own));
    cudaMemAccessDesc nothing = {};
    nothing.location.type = cudaMemLocationTypeDevice;
    nothing.location.id = own;
    expect_plain("a pool without access of its own device", cudaMemPoolSetAccess(pool, &nothing, 1),
                 cudaErrorInvalidDevice);
}

// After all these errors the device still works.
static void check_still_works(int *device) {
    int host[64] = {};
    fill<<<1, 64>>>(device, 77, 64);
    CUDA_CHECK(cudaGetLastError());
    CUDA_CHECK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    for (int value : host) {
        the_program->expect_equal("a value after the errors", value, 77);
    }
}

struct Fatal {
    const char *name;
    cudaError_t want;
};

static const Fatal fatals[] = {
    {"write outside", cudaErrorIllegalAddress},
    {"read through null", cudaErrorIllegalAddress},
    {"misaligned write", cudaErrorMisalignedAddress},
    {"trap", cudaErrorLaunchFailure},
};

// errors --fatal NUMBER: the child process.
static int run_fatal(int number) {
    Program program("errors", "one error that ends a context", "", 1, 1, 1);
    the_program = &program;
    const Fatal &fatal = fatals[number];
    int *device = nullptr;
    CUDA_CHECK(cudaMalloc(&device, 4096));
    CUDA_CHECK(cudaMemset(device, 0, 4096));
    CUDA_CHECK(cudaDeviceSynchronize());
    cudaGraph_t graph;
    cudaGraphExec_t instance;
    CUDA_CHECK(cudaGraphCreate(&graph, 0));
    CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
    switch (number) {
    case 0:
        write_outside<<<2, 32>>>(device);
        break;
    case 1:
        read_null<<<1, 1>>>(reinterpret_cast<const int *volatile *>(device), device);
        break;
    case 2:
        write_misaligned<<<1, 1>>>(reinterpret_cast<char *>(device));
        break;
    default:
        trap<<<1, 1>>>();
    }
    CUDA_CHECK(cudaGetLastError());
    expect_status(fatal.name, cudaDeviceSynchronize(), fatal.want);
    void *memory = nullptr;
    expect_status("cudaMalloc after it", cudaMalloc(&memory, 16), fatal.want);
    expect_status("cudaFree after it", cudaFree(device), fatal.want);
    int host = 0;
    expect_status("cudaMemcpy after it", cudaMemcpy(&host, device, 4, cudaMemcpyDeviceToHost), fatal.want);
    fill<<<1, 1>>>(device, 1, 1);
    expect_status("a launch after it", cudaGetLastError(), fatal.want);
    expect_plain("cudaGraphExecDestroy after it", cudaGraphExecDestroy(instance), cudaSuccess);
    expect_plain("cudaFuncSetAttribute after it",
                 cudaFuncSetAttribute(fill, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024), fatal.want);
    expect_status("cudaDeviceSynchronize once more", cudaDeviceSynchronize(), fatal.want);
    cudaFuncAttributes attributes;
    expect_status("cudaFuncGetAttributes after it", cudaFuncGetAttributes(&attributes, fill), fatal.want);
    expect_status("freeing nothing after it", cudaFree(nullptr), fatal.want);
    // The reset succeeds, but this process does not get the device again.
    int found = -1;
    expect_status("cudaDeviceReset after it", cudaDeviceReset(), cudaSuccess);
    expect_status("the last error after the reset", cudaGetLastError(), fatal.want);
    expect_status("cudaGetDevice after the reset", cudaGetDevice(&found), cudaSuccess);
    const cudaError_t gone = cudaErrorDevicesUnavailable;
    expect_last("cudaMalloc after the reset", cudaMalloc(&memory, 16), gone);
    expect_last("cudaFree after the reset", cudaFree(device), gone);
    expect_last("freeing nothing after the reset", cudaFree(nullptr), gone);
    expect_last("cudaMemcpy after the reset", cudaMemcpy(&host, device, 4, cudaMemcpyDeviceToHost), gone);
    expect_last("cudaFuncGetAttributes after the reset", cudaFuncGetAttributes(&attributes, fill), gone);
    expect_last("the attributes of no function after the reset",
                cudaFuncGetAttributes(&attributes, static_cast<const void *>(nullptr)), gone);
    expect_last("cudaSetDevice after the reset", cudaSetDevice(found), gone);
    fill<<<1, 1>>>(device, 1, 1);
    expect_last("a launch after the reset", cudaPeekAtLastError(), gone);
    expect_last("cudaDeviceSynchronize after the reset", cudaDeviceSynchronize(), gone);
    expect_status("a second cudaDeviceReset", cudaDeviceReset(), cudaSuccess);
    return program.failed() ? program.finish() : 0;
}

static pid_t start_fatal(int number) {
    pid_t pid = fork();
    if (pid == 0) {
        char text[16];
        std::snprintf(text, sizeof text, "%d", number);
        execl("/proc/self/exe", "errors", "--fatal", text, static_cast<char *>(nullptr));
        _exit(127);
    }
    return pid;
}

int main(int argc, char **argv) {
    if (argc == 3 && !std::strcmp(argv[1], "--fatal")) {
        return run_fatal(std::atoi(argv[2]));
    }
    Program program("errors", "makes calls that must fail", "unused", 1, 1, 1);
    program.parse(argc, argv);
    the_program = &program;
    while (program.next_round()) {
        // Before this process first calls CUDA, and all concurrently.
        const int count = sizeof fatals / sizeof *fatals;
        pid_t pids[count];
        for (int number = 0; number < count; ++number) {
            pids[number] = start_fatal(number);
        }
        for (int number = 0; number < count; ++number) {
            int status = -1;
            while (pids[number] > 0 && waitpid(pids[number], &status, 0) < 0 && errno == EINTR) {
            }
            if (status != 0) {
                program.fail("the process for '%s' ended with status %#x", fatals[number].name,
                             static_cast<unsigned>(status));
            }
        }
        int *device = nullptr;
        CUDA_CHECK(cudaMalloc(&device, 4096));
        check_launches(device);
        check_memory(device);
        check_symbols();
        check_devices_and_names();
        check_arguments(device);
        check_still_works(device);
        CUDA_CHECK(cudaFree(device));
    }
    return program.finish();
}
