// Prints what the runtime answers in corners that CUDA's manual leaves open.
//
// Run on a machine with a GPU once over NVIDIA's libcudart.so.13 and once over
// ours: compare-with-nvidia.sh does, and fails unless the outputs are equal.
// Compiled by nvcc with -cudart shared and -lcuda.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#define SHOW(call)                                                              \
    do {                                                                        \
        cudaError_t status_ = (call);                                           \
        cudaError_t last_ = cudaGetLastError();                                 \
        std::printf("%-60.60s %s, last %s\n", #call, cudaGetErrorName(status_), \
                    cudaGetErrorName(last_));                                   \
    } while (0)
#define VALUE(...) (std::printf("    "), std::printf(__VA_ARGS__), std::puts(""))

// Their header comes with the profiler's package, not with the runtime's.
extern "C" cudaError_t cudaProfilerStart(void);
extern "C" cudaError_t cudaProfilerStop(void);

__device__ int variable[4] = {1, 2, 3, 4};
__constant__ float constant_one = 1.5f;
__managed__ int managed = 42;

__global__ void scale(int *data, int factor, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        data[i] *= factor;
}
__global__ void __launch_bounds__(128) bounded(int *data) { data[threadIdx.x] = 1; }
__global__ void add_managed(int n) { managed += n + variable[1] + (int)constant_one; }
__global__ void read_texture(cudaTextureObject_t t, float *out) {
    out[threadIdx.x] = tex2D<float>(t, threadIdx.x + 0.5f, 0.5f);
}
__global__ void store(int *p) { p[0] = 1; }
__global__ void fails() { asm volatile("trap;"); }
__global__ void empty() {}

static void pointers() {
    void *device = nullptr, *pinned = nullptr, *other = (void *)8, *mapped = nullptr;
    SHOW(cudaMalloc(&device, 1 << 20));
    SHOW(cudaMalloc(&other, 0));
    VALUE("no bytes: %p", other);
    SHOW(cudaMallocHost(&pinned, 4096));
    std::vector<char> pageable(1 << 16);
    void *aligned = (void *)(((uintptr_t)pageable.data() + 4095) & ~4095ull);
    SHOW(cudaHostRegister(aligned, 8192, 0));
    SHOW(cudaHostRegister(aligned, 8192, 0));
    struct {
        const char *name;
        void *p;
    } all[] = {{"device", device},      {"inside", (char *)device + 100}, {"pinned", pinned},
               {"registered", aligned}, {"stack", &pinned},               {"null", nullptr}};
    cudaPointerAttributes at;
    for (auto &a : all) {
        std::memset(&at, 0x55, sizeof at);
        SHOW(cudaPointerGetAttributes(&at, a.p));
        VALUE("%s: type %d device %d dev %s host %s", a.name, at.type, at.device,
              !at.devicePointer ? "null" : at.devicePointer == a.p ? "same" : "other",
              !at.hostPointer ? "null" : at.hostPointer == a.p ? "same" : "other");
    }
    unsigned flags = 77;
    SHOW(cudaHostGetFlags(&flags, pinned));
    VALUE("flags %u", flags);
    SHOW(cudaHostGetFlags(&flags, aligned));
    VALUE("flags %u", flags);
    for (unsigned f : {0u, 1u, 2u, 4u, 7u, 8u, 64u}) {
        void *p = nullptr;
        SHOW(cudaHostAlloc(&p, 4096, f));
        if (p) {
            SHOW(cudaHostGetFlags(&flags, p));
            VALUE("asked %u flags %u", f, flags);
            SHOW(cudaFreeHost(p));
        }
    }
    SHOW(cudaHostGetDevicePointer(&mapped, pinned, 0));
    VALUE("same %d", mapped == pinned);
    SHOW(cudaHostGetDevicePointer(&mapped, &mapped, 0));
    SHOW(cudaHostUnregister(aligned));
    SHOW(cudaHostUnregister(aligned));
    SHOW(cudaHostAlloc(&other, 0, 0));
    VALUE("no bytes: %p", other);
    SHOW(cudaFreeHost(nullptr));
    SHOW(cudaFreeHost(&other));
    SHOW(cudaFree((char *)device + 4));
    SHOW(cudaFree(&other));
    SHOW(cudaFree(device));
    SHOW(cudaFree(device));
    SHOW(cudaFreeHost(pinned));
    SHOW(cudaMalloc(&other, (size_t)1 << 60));
    SHOW(cudaMalloc((void **)nullptr, 16));
    SHOW(cudaMallocManaged(&other, 0));
    size_t pitch = 9;
    for (auto wh : {std::pair<size_t, size_t>{0, 4}, {4, 0}, {1, 1}, {100, 3}, {513, 2}, {100000, 2}}) {
        SHOW(cudaMallocPitch(&other, &pitch, wh.first, wh.second));
        VALUE("pitch %zu null %d", pitch, other == nullptr);
        cudaFree(other);
    }
    cudaPitchedPtr pp;
    SHOW(cudaMalloc3D(&pp, make_cudaExtent(70, 3, 5)));
    VALUE("pitch %zu xsize %zu ysize %zu", pp.pitch, pp.xsize, pp.ysize);
    SHOW(cudaMemset3D(pp, 3, make_cudaExtent(70, 2, 5)));
    SHOW(cudaMemset3D(pp, 4, make_cudaExtent(70, 3, 5)));
    SHOW(cudaMemset3D(pp, 4, make_cudaExtent(0, 3, 5)));
    SHOW(cudaFree(pp.ptr));
    SHOW(cudaMallocAsync(&other, 1000, 0));
    SHOW(cudaPointerGetAttributes(&at, other));
    VALUE("type %d device %d", at.type, at.device);
    SHOW(cudaFreeAsync(other, 0));
    SHOW(cudaFreeAsync(nullptr, 0));
    SHOW(cudaMallocAsync(&other, 0, 0));
    VALUE("null %d", other == nullptr);
    SHOW(cudaDeviceSynchronize());
}

static void copies() {
    int host[64] = {}, more[64], *a, *b;
    cudaMalloc(&a, sizeof host);
    cudaMalloc(&b, sizeof host);
    for (int n = -1; n <= 5; ++n) {
        cudaMemcpyKind kind = (cudaMemcpyKind)n;
        VALUE("kind %d", n);
        SHOW(cudaMemcpy(b, a, sizeof host, kind));
        SHOW(cudaMemcpyAsync(b, a, sizeof host, kind));
        SHOW(cudaMemcpyFromSymbol(b, variable, 16, 0, kind));
        SHOW(cudaMemcpyToSymbol(variable, a, 16, 0, kind));
        SHOW(cudaMemcpy2D(b, 16, a, 16, 16, 2, kind));
        SHOW(cudaMemcpy(a, host, 0, kind));
    }
    SHOW(cudaMemcpy(a, host, sizeof host, cudaMemcpyDefault));
    SHOW(cudaMemcpy(host, a, sizeof host, cudaMemcpyDefault));
    SHOW(cudaMemcpy(more, host, sizeof host, cudaMemcpyHostToHost));
    SHOW(cudaMemcpy(more, host, sizeof host, cudaMemcpyDefault));
    SHOW(cudaMemcpyAsync(more, host, sizeof host, cudaMemcpyHostToHost));
    SHOW(cudaMemcpy(a, host, sizeof host, cudaMemcpyDeviceToHost));
    SHOW(cudaMemcpy(host, a, sizeof host, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToDevice));
    SHOW(cudaMemcpy(nullptr, host, 4, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpy(a, host, (size_t)1 << 50, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpy2D(a, 8, host, 16, 12, 2, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpy2D(a, 8, host, 16, 12, 1, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpy2D(a, 8, host, 16, 12, 0, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpy2D(a, 8, host, 16, 0, 3, cudaMemcpyHostToDevice));
    SHOW(cudaMemset(a, 1, 0));
    SHOW(cudaMemset(nullptr, 1, 0));
    SHOW(cudaMemset(nullptr, 1, 4));
    SHOW(cudaMemset(host, 1, 4));
    SHOW(cudaMemset2D(a, 8, 1, 12, 2));
    SHOW(cudaMemset2D(a, 8, 1, 12, 1));
    SHOW(cudaMemset2D(a, 8, 1, 0, 2));
    SHOW(cudaMemcpyToSymbol(variable, host, 17));
    SHOW(cudaMemcpyToSymbol(variable, host, 4, 13));
    SHOW(cudaMemcpyToSymbol(host, host, 4));
    void *p;
    size_t size = 0;
    SHOW(cudaGetSymbolSize(&size, variable));
    VALUE("size %zu", size);
    SHOW(cudaGetSymbolAddress(&p, constant_one));
    SHOW(cudaGetSymbolAddress(&p, managed));
    VALUE("managed same %d", p == (void *)&managed);
    SHOW(cudaGetSymbolAddress(&p, (const void *)scale));
    SHOW(cudaMemcpyPeer(b, 0, a, 0, 16));
    SHOW(cudaMemcpyPeer(b, 9, a, 0, 16));
    cudaMemcpy3DParms p3 = {};
    SHOW(cudaMemcpy3D(&p3));
    p3.srcPtr = make_cudaPitchedPtr(host, 16, 16, 2);
    p3.dstPtr = make_cudaPitchedPtr(a, 16, 16, 2);
    p3.extent = make_cudaExtent(8, 2, 2);
    p3.kind = cudaMemcpyHostToDevice;
    SHOW(cudaMemcpy3D(&p3));
    p3.extent.depth = 0;
    SHOW(cudaMemcpy3D(&p3));
    p3.extent.depth = 1, p3.kind = (cudaMemcpyKind)9;
    SHOW(cudaMemcpy3D(&p3));
    cudaFree(a);
    cudaFree(b);
}

static void arrays() {
    cudaArray_t array = nullptr, cube = nullptr, refused;
    cudaChannelFormatDesc desc = cudaCreateChannelDesc<float>(), got;
    SHOW(cudaMallocArray(&array, &desc, 8, 4));
    cudaExtent extent;
    unsigned flags;
    SHOW(cudaArrayGetInfo(&got, &extent, &flags, array));
    VALUE("%d %d %d %d %d, %zu %zu %zu, %u", got.x, got.y, got.z, got.w, got.f, extent.width, extent.height,
          extent.depth, flags);
    float in[64], out[64];
    for (int i = 0; i < 64; ++i)
        in[i] = i, out[i] = -1;
    SHOW(cudaMemcpy2DToArray(array, 0, 0, in, 32, 32, 4, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpy2DToArray(array, 0, 0, in, 32, 32, 4, cudaMemcpyDeviceToHost));
    SHOW(cudaMemcpy2DToArray(array, 0, 0, in, 16, 32, 4, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpy2DToArray(array, 0, 0, in, 32, 64, 4, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpyToArray(array, 8, 1, in, 48, cudaMemcpyHostToDevice));
    SHOW(cudaMemcpyFromArray(out, array, 4, 0, 100, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 26; ++i)
        std::printf(" %g", out[i]);
    std::puts("");
    SHOW(cudaMemcpy2DFromArray(out, 32, array, 0, 0, 32, 4, cudaMemcpyDefault));
    SHOW(cudaMalloc3DArray(&cube, &desc, make_cudaExtent(4, 2, 2)));
    cudaMemcpy3DParms p = {}, q = {};
    p.srcPtr = make_cudaPitchedPtr(in, 16, 4, 2);
    p.dstArray = cube;
    p.extent = make_cudaExtent(4, 2, 2);
    p.kind = cudaMemcpyHostToDevice;
    SHOW(cudaMemcpy3D(&p));
    q.srcArray = cube;
    q.srcPos = make_cudaPos(1, 1, 0);
    q.dstPtr = make_cudaPitchedPtr(out, 16, 4, 2);
    q.extent = make_cudaExtent(3, 1, 2);
    q.kind = cudaMemcpyDeviceToHost;
    SHOW(cudaMemcpy3D(&q));
    VALUE("%g %g %g %g", out[0], out[2], out[8], out[10]);
    q.kind = cudaMemcpyHostToDevice;
    SHOW(cudaMemcpy3D(&q));
    cudaChannelFormatDesc odd = {8, 16, 0, 0, cudaChannelFormatKindSigned};
    SHOW(cudaMallocArray(&refused, &odd, 8, 4));
    SHOW(cudaMallocArray(&refused, &desc, 0, 4));
    SHOW(cudaMallocArray(&refused, &desc, 1 << 30, 4));
    cudaResourceDesc r = {}, resource;
    r.resType = cudaResourceTypeArray;
    r.res.array.array = array;
    cudaTextureDesc t = {}, back = {};
    t.addressMode[0] = cudaAddressModeClamp;
    t.filterMode = cudaFilterModeLinear;
    cudaTextureObject_t object = 0;
    SHOW(cudaCreateTextureObject(&object, &r, &t, nullptr));
    SHOW(cudaGetTextureObjectTextureDesc(&back, object));
    VALUE("%d %d %d filter %d read %d srgb %d norm %d aniso %u", back.addressMode[0], back.addressMode[1],
          back.addressMode[2], back.filterMode, back.readMode, back.sRGB, back.normalizedCoords, back.maxAnisotropy);
    SHOW(cudaGetTextureObjectResourceDesc(&resource, object));
    VALUE("type %d same %d", resource.resType, resource.res.array.array == array);
    float *device;
    cudaMalloc(&device, 32);
    read_texture<<<1, 8>>>(object, device);
    SHOW(cudaMemcpy(out, device, 32, cudaMemcpyDeviceToHost));
    VALUE("%g %g %g", out[0], out[3], out[7]);
    SHOW(cudaDestroyTextureObject(object));
    SHOW(cudaDestroyTextureObject(0));
    r.resType = cudaResourceTypeLinear;
    r.res.linear.devPtr = device;
    r.res.linear.desc = desc;
    r.res.linear.sizeInBytes = 32;
    SHOW(cudaCreateTextureObject(&object, &r, &t, nullptr));
    t.filterMode = cudaFilterModePoint;
    SHOW(cudaCreateTextureObject(&object, &r, &t, nullptr));
    SHOW(cudaGetTextureObjectResourceDesc(&resource, object));
    VALUE("type %d bytes %zu x %d f %d", resource.resType, resource.res.linear.sizeInBytes,
          resource.res.linear.desc.x, resource.res.linear.desc.f);
    cudaSurfaceObject_t surface;
    SHOW(cudaCreateSurfaceObject(&surface, &r));
    r.resType = (cudaResourceType)9;
    SHOW(cudaCreateTextureObject(&object, &r, &t, nullptr));
    SHOW(cudaFreeArray(array));
    SHOW(cudaFreeArray(cube));
    SHOW(cudaFreeArray(nullptr));
    cudaFree(device);
}

static void streams() {
    cudaStream_t s;
    cudaEvent_t e, f, quick;
    unsigned flags;
    int priority, least, greatest, device = -1, called = 0;
    float ms;
    SHOW(cudaStreamCreate(nullptr));
    SHOW(cudaStreamCreateWithFlags(&s, 77));
    SHOW(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    SHOW(cudaStreamGetFlags(s, &flags));
    SHOW(cudaStreamGetPriority(s, &priority));
    VALUE("flags %u priority %d", flags, priority);
    SHOW(cudaStreamGetFlags(0, &flags));
    SHOW(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    VALUE("%d %d", least, greatest);
    SHOW(cudaStreamCreateWithPriority(&s, 0, -100));
    SHOW(cudaStreamGetPriority(s, &priority));
    VALUE("priority %d", priority);
    SHOW(cudaStreamQuery(s));
    SHOW(cudaStreamQuery(0));
    SHOW(cudaStreamDestroy(0));
    SHOW(cudaStreamDestroy(cudaStreamPerThread));
    SHOW(cudaEventCreate(&e));
    SHOW(cudaEventCreate(&f));
    SHOW(cudaEventCreateWithFlags(&quick, cudaEventDisableTiming));
    SHOW(cudaEventCreateWithFlags(&f, 0x100));
    SHOW(cudaEventQuery(e));
    SHOW(cudaEventSynchronize(e));
    SHOW(cudaEventElapsedTime(&ms, e, f));
    SHOW(cudaEventRecord(e, s));
    SHOW(cudaEventElapsedTime(&ms, e, f));
    SHOW(cudaEventRecord(quick, s));
    SHOW(cudaEventSynchronize(quick));
    SHOW(cudaEventElapsedTime(&ms, e, quick));
    SHOW(cudaEventRecord(nullptr, s));
    SHOW(cudaEventDestroy(nullptr));
    SHOW(cudaStreamWaitEvent(s, e, 0));
    SHOW(cudaStreamWaitEvent(s, nullptr, 0));
    unsigned long long id = 0;
    SHOW(cudaStreamGetId(s, &id));
    SHOW(cudaStreamGetDevice(s, &device));
    VALUE("device %d", device);
    cudaStreamCaptureStatus capturing;
    SHOW(cudaStreamIsCapturing(s, &capturing));
    VALUE("capturing %d", capturing);
    SHOW(cudaLaunchHostFunc(s, [](void *p) { *(int *)p += 1; }, &called));
    SHOW(cudaStreamAddCallback(
        s, [](cudaStream_t, cudaError_t status, void *p) { *(int *)p += 10 + status; }, &called, 0));
    SHOW(cudaStreamSynchronize(s));
    VALUE("called %d", called);
    cudaLaunchAttributeValue v = {};
    SHOW(cudaStreamGetAttribute(s, cudaLaunchAttributeSynchronizationPolicy, &v));
    VALUE("policy %d", v.syncPolicy);
    SHOW(cudaStreamDestroy(s));
    SHOW(cudaEventDestroy(e));
}

static void launches() {
    int *data, host[256];
    cudaMalloc(&data, sizeof host);
    for (int &h : host)
        h = 3;
    SHOW(cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice));
    scale<<<1, 1025>>>(data, 2, 256);
    SHOW(cudaPeekAtLastError());
    scale<<<0, 1>>>(data, 2, 256);
    SHOW(cudaPeekAtLastError());
    scale<<<1, 1, 300000>>>(data, 2, 256);
    SHOW(cudaPeekAtLastError());
    scale<<<1, 1, 60000>>>(data, 2, 256);
    SHOW(cudaPeekAtLastError());
    bounded<<<1, 256>>>(data);
    SHOW(cudaPeekAtLastError());
    scale<<<1, 256>>>(data, 2, 256);
    SHOW(cudaPeekAtLastError());
    int factor = 5, count = 256;
    void *args[] = {&data, &factor, &count};
    SHOW(cudaLaunchKernel((const void *)scale, dim3(1), dim3(256), args, 0, 0));
    SHOW(cudaLaunchKernel((const void *)scale, dim3(1), dim3(1025), args, 0, 0));
    SHOW(cudaLaunchKernel((const void *)scale, dim3(0), dim3(1), args, 0, 0));
    SHOW(cudaLaunchKernel((const void *)streams, dim3(1), dim3(256), args, 0, 0));
    SHOW(cudaLaunchKernel((const void *)nullptr, dim3(1), dim3(256), args, 0, 0));
    cudaKernel_t kernel;
    cudaFunction_t function;
    SHOW(cudaGetKernel(&kernel, (const void *)scale));
    SHOW(cudaGetFuncBySymbol(&function, (const void *)scale));
    SHOW(cudaLaunchKernel((const void *)kernel, dim3(1), dim3(256), args, 0, 0));
    SHOW(cudaLaunchCooperativeKernel((const void *)scale, dim3(1), dim3(256), args, 0, 0));
    SHOW(cudaLaunchCooperativeKernel((const void *)scale, dim3(100000), dim3(1024), args, 0, 0));
    cudaLaunchConfig_t config = {};
    config.gridDim = 1;
    config.blockDim = 256;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    SHOW(cudaLaunchKernelExC(&config, (const void *)scale, args));
    config.blockDim = 2000;
    SHOW(cudaLaunchKernelExC(&config, (const void *)scale, args));
    SHOW(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost));
    VALUE("%d", host[7]);
    cudaFuncAttributes fa;
    SHOW(cudaFuncGetAttributes(&fa, (const void *)bounded));
    VALUE("shared %zu const %zu local %zu threads %d regs %d ptx %d bin %d cache %d dyn %d carve %d",
          fa.sharedSizeBytes, fa.constSizeBytes, fa.localSizeBytes, fa.maxThreadsPerBlock, fa.numRegs, fa.ptxVersion,
          fa.binaryVersion, fa.cacheModeCA, fa.maxDynamicSharedSizeBytes, fa.preferredShmemCarveout);
    VALUE("cluster %d %d %d %d %d %d", fa.clusterDimMustBeSet, fa.requiredClusterWidth, fa.requiredClusterHeight,
          fa.requiredClusterDepth, fa.clusterSchedulingPolicyPreference, fa.nonPortableClusterSizeAllowed);
    SHOW(cudaFuncGetAttributes(&fa, (const void *)launches));
    SHOW(cudaFuncGetAttributes(&fa, (const void *)nullptr));
    SHOW(cudaFuncSetAttribute((const void *)scale, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
    SHOW(cudaFuncSetAttribute((const void *)scale, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20));
    SHOW(cudaFuncSetAttribute((const void *)scale, (cudaFuncAttribute)3, 1));
    SHOW(cudaFuncSetAttribute((const void *)scale, cudaFuncAttributePreferredSharedMemoryCarveout, 200));
    scale<<<1, 1, 60000>>>(data, 2, 256);
    SHOW(cudaPeekAtLastError());
    SHOW(cudaFuncSetCacheConfig((const void *)scale, cudaFuncCachePreferL1));
    const char *name = nullptr;
    SHOW(cudaFuncGetName(&name, (const void *)scale));
    VALUE("%s", name);
    size_t offset = 9, size = 9;
    for (size_t i = 0; i < 4; ++i) {
        SHOW(cudaFuncGetParamInfo((const void *)scale, i, &offset, &size));
        VALUE("%zu %zu", offset, size);
    }
    int blocks = -1, grid = 0, block = 0;
    SHOW(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 128, 0));
    VALUE("%d", blocks);
    SHOW(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 4096, 0));
    VALUE("%d", blocks);
    SHOW(cudaOccupancyMaxPotentialBlockSize(&grid, &block, scale));
    VALUE("%d %d", grid, block);
    SHOW(cudaOccupancyAvailableDynamicSMemPerBlock(&size, scale, 2, 128));
    VALUE("%zu", size);
    add_managed<<<1, 1>>>(5);
    SHOW(cudaDeviceSynchronize());
    VALUE("managed %d", managed);
    SHOW(cudaFree(data));
}

static void devices() {
    int count, device, value;
    SHOW(cudaGetDeviceCount(&count));
    SHOW(cudaGetDevice(&device));
    VALUE("%d of %d", device, count);
    SHOW(cudaSetDevice(-1));
    SHOW(cudaSetDevice(count));
    SHOW(cudaGetDeviceCount(nullptr));
    cudaDeviceProp prop;
    std::memset(&prop, 0x33, sizeof prop);
    SHOW(cudaGetDeviceProperties(&prop, device));
    const unsigned char *bytes = (const unsigned char *)&prop;
    for (size_t i = 0; i < sizeof prop; i += 16) {
        std::printf("    %04zx", i);
        for (size_t j = i; j < i + 16 && j < sizeof prop; ++j)
            std::printf(" %02x", bytes[j]);
        std::puts("");
    }
    for (int a = 0; a < 160; ++a) {
        value = -77;
        cudaError_t status = cudaDeviceGetAttribute(&value, (cudaDeviceAttr)a, 0);
        cudaError_t last = cudaGetLastError();
        VALUE("attribute %d: %d %d %d", a, status, last, value);
    }
    unsigned flags = 77;
    SHOW(cudaGetDeviceFlags(&flags));
    VALUE("flags %u", flags);
    SHOW(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    SHOW(cudaGetDeviceFlags(&flags));
    VALUE("flags %u", flags);
    SHOW(cudaSetDeviceFlags(3));
    SHOW(cudaSetDeviceFlags(0x1000));
    SHOW(cudaSetDeviceFlags(0));
    SHOW(cudaInitDevice(0, 0, 0));
    SHOW(cudaInitDevice(0, 0, 2));
    SHOW(cudaInitDevice(0, 4, cudaInitDeviceFlagsAreValid));
    SHOW(cudaInitDevice(0, 0, cudaInitDeviceFlagsAreValid));
    size_t limit = 7;
    for (int l = 0; l < 9; ++l) {
        SHOW(cudaDeviceGetLimit(&limit, (cudaLimit)l));
        VALUE("limit %d %zu", l, limit);
    }
    SHOW(cudaDeviceSetLimit(cudaLimitStackSize, 2048));
    SHOW(cudaDeviceGetLimit(&limit, cudaLimitStackSize));
    VALUE("%zu", limit);
    SHOW(cudaDeviceSetLimit((cudaLimit)99, 1));
    cudaFuncCache cache;
    cudaSharedMemConfig banks;
    SHOW(cudaDeviceGetCacheConfig(&cache));
    SHOW(cudaDeviceGetSharedMemConfig(&banks));
    VALUE("%d %d", cache, banks);
    char bus[32] = "";
    SHOW(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
    SHOW(cudaDeviceGetByPCIBusId(&device, bus));
    SHOW(cudaDeviceGetPCIBusId(bus, 3, 0));
    SHOW(cudaDeviceGetByPCIBusId(&device, "99:99.0"));
    SHOW(cudaDeviceCanAccessPeer(&value, 0, 0));
    VALUE("%d", value);
    SHOW(cudaDeviceCanAccessPeer(&value, 0, 9));
    SHOW(cudaDeviceEnablePeerAccess(0, 0));
    SHOW(cudaDeviceDisablePeerAccess(0));
    SHOW(cudaChooseDevice(&device, &prop));
    VALUE("%d", device);
    void *entry;
    cudaDriverEntryPointQueryResult found = (cudaDriverEntryPointQueryResult)77;
    SHOW(cudaGetDriverEntryPointByVersion("cuMemAlloc", &entry, 13000, cudaEnableDefault, &found));
    VALUE("found %d null %d", found, !entry);
    SHOW(cudaGetDriverEntryPointByVersion("cuNothing", &entry, 13000, cudaEnableDefault, &found));
    VALUE("found %d null %d", found, !entry);
    SHOW(cudaGetDriverEntryPointByVersion("cuNothing", &entry, 13000, cudaEnableDefault, nullptr));
    SHOW(cudaGetDriverEntryPointByVersion("cuGraphCreate", &entry, 8000, cudaEnableDefault, &found));
    VALUE("found %d null %d", found, !entry);
    SHOW(cudaProfilerStart());
    SHOW(cudaProfilerStop());
    int runtime, driver;
    SHOW(cudaRuntimeGetVersion(&runtime));
    SHOW(cudaDriverGetVersion(&driver));
    VALUE("%d %d", runtime, driver >= runtime);
    CUcontext context = nullptr;
    cuCtxGetCurrent(&context);
    VALUE("context current %d", context != nullptr);
    std::thread([&] {
        int d = 7;
        SHOW(cudaGetDevice(&d));
        CUcontext other = nullptr;
        cuCtxGetCurrent(&other);
        VALUE("device %d, context current %d", d, other != nullptr);
        SHOW(cudaSetDevice(0));
        cuCtxGetCurrent(&other);
        VALUE("context same %d", other == context);
    }).join();
}

static void graphs() {
    int *data, host[32], factor = 2, count = 32;
    cudaMalloc(&data, sizeof host);
    for (int &h : host)
        h = 1;
    cudaStream_t s;
    cudaStreamCreate(&s);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    SHOW(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    SHOW(cudaMemcpyAsync(data, host, sizeof host, cudaMemcpyHostToDevice, s));
    scale<<<1, 32, 0, s>>>(data, 3, 32);
    SHOW(cudaMemcpyAsync(host, data, sizeof host, cudaMemcpyDeviceToHost, s));
    SHOW(cudaStreamEndCapture(s, &graph));
    size_t nodes = 0;
    SHOW(cudaGraphGetNodes(graph, nullptr, &nodes));
    VALUE("nodes %zu", nodes);
    std::vector<cudaGraphNode_t> list(nodes);
    SHOW(cudaGraphGetNodes(graph, list.data(), &nodes));
    for (cudaGraphNode_t n : list) {
        cudaGraphNodeType type;
        SHOW(cudaGraphNodeGetType(n, &type));
        VALUE("type %d", type);
    }
    SHOW(cudaGraphInstantiate(&exec, graph, 0));
    SHOW(cudaGraphLaunch(exec, s));
    SHOW(cudaStreamSynchronize(s));
    VALUE("%d", host[5]);
    SHOW(cudaGraphExecDestroy(exec));
    SHOW(cudaGraphDestroy(graph));
    SHOW(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t copy, kernel, back, set;
    SHOW(cudaGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, data, host, sizeof host, cudaMemcpyHostToDevice));
    void *args[] = {&data, &factor, &count};
    cudaKernelNodeParams kp = {};
    kp.func = (void *)scale;
    kp.gridDim = 1;
    kp.blockDim = 32;
    kp.kernelParams = args;
    SHOW(cudaGraphAddKernelNode(&kernel, graph, &copy, 1, &kp));
    cudaMemsetParams mp = {data, 0, 9, 1, 4, 1};
    SHOW(cudaGraphAddMemsetNode(&set, graph, &kernel, 1, &mp));
    SHOW(cudaGraphAddMemcpyNode1D(&back, graph, &set, 1, host, data, sizeof host, cudaMemcpyDeviceToHost));
    cudaKernelNodeParams params = {};
    SHOW(cudaGraphKernelNodeGetParams(kernel, &params));
    VALUE("block %u same %d", params.blockDim.x, params.func == kp.func);
    SHOW(cudaGraphKernelNodeSetParams(kernel, &params));
    cudaMemcpy3DParms read = {};
    SHOW(cudaGraphMemcpyNodeGetParams(copy, &read));
    VALUE("kind %d width %zu same %d %d", read.kind, read.extent.width, read.srcPtr.ptr == host,
          read.dstPtr.ptr == data);
    cudaGraphNodeParams general = {};
    general.type = cudaGraphNodeTypeKernel;
    general.kernel.func = (void *)scale;
    general.kernel.gridDim = 1;
    general.kernel.blockDim = 32;
    general.kernel.kernelParams = args;
    cudaGraphNode_t more;
    SHOW(cudaGraphAddNode(&more, graph, &kernel, nullptr, 1, &general));
    general.kernel.blockDim = 16;
    SHOW(cudaGraphNodeSetParams(more, &general));
    SHOW(cudaGraphAddDependencies(graph, &more, &set, nullptr, 1));
    SHOW(cudaGraphInstantiate(&exec, graph, 0));
    SHOW(cudaGraphLaunch(exec, s));
    SHOW(cudaStreamSynchronize(s));
    VALUE("%x %d %d", host[0], host[1], host[20]);
    factor = 7;
    SHOW(cudaGraphExecKernelNodeSetParams(exec, kernel, &kp));
    SHOW(cudaGraphLaunch(exec, s));
    SHOW(cudaStreamSynchronize(s));
    VALUE("%x %d", host[0], host[1]);
    SHOW(cudaGraphExecDestroy(exec));
    SHOW(cudaGraphDestroy(graph));
    SHOW(cudaStreamDestroy(s));
    cudaFree(data);
}

static void reset() {
    int *data, host[4] = {5, 5, 5, 5}, got[4] = {};
    SHOW(cudaMemcpyToSymbol(variable, host, sizeof host));
    SHOW(cudaDeviceReset());
    SHOW(cudaMalloc(&data, 64));
    SHOW(cudaMemset(data, 0, 64));
    scale<<<1, 4>>>(data, 2, 4);
    SHOW(cudaDeviceSynchronize());
    SHOW(cudaMemcpyFromSymbol(got, variable, sizeof got));
    VALUE("%d %d", got[0], got[3]);
    SHOW(cudaFree(data));
}

static void forks() {
    int n;
    SHOW(cudaFree(nullptr));
    std::fflush(stdout);
    pid_t child = fork();
    if (!child) {
        void *p;
        SHOW(cudaMalloc(&p, 16));
        SHOW(cudaGetDeviceCount(&n));
        SHOW(cudaGetDevice(&n));
        std::fflush(stdout);
        _exit(0);
    }
    waitpid(child, nullptr, 0);
    SHOW(cudaDeviceSynchronize());
}

// After an error that ends the context.
static void sticky(bool address) {
    void *p;
    int d;
    cudaMalloc(&p, 16);
    if (address)
        store<<<1, 1>>>((int *)64);
    else
        fails<<<1, 1>>>();
    SHOW(cudaDeviceSynchronize());
    SHOW(cudaGetLastError());
    SHOW(cudaPeekAtLastError());
    SHOW(cudaMalloc(&p, 16));
    SHOW(cudaGetDevice(&d));
    SHOW(cudaGetDeviceCount(&d));
    SHOW(cudaFree(nullptr));
    SHOW(cudaSetDevice(0));
    empty<<<1, 1>>>();
    SHOW(cudaPeekAtLastError());
    SHOW(cudaDeviceReset());
    SHOW(cudaGetLastError());
    SHOW(cudaMalloc(&p, 16));
    empty<<<1, 1>>>();
    SHOW(cudaDeviceSynchronize());
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "";
    struct {
        const char *name;
        void (*run)();
    } parts[] = {{"devices", devices},
                 {"pointers", pointers},
                 {"copies", copies},
                 {"arrays", arrays},
                 {"streams", streams},
                 {"launches", launches},
                 {"graphs", graphs},
                 {"fork", forks},
                 {"reset", reset},
                 {"trap", [] { sticky(false); }},
                 {"address", [] { sticky(true); }}};
    for (auto &p : parts)
        if (!std::strcmp(part, p.name)) {
            p.run();
            return 0;
        }
    std::fprintf(stderr, "usage: semantics PART\n");
    return 2;
}
