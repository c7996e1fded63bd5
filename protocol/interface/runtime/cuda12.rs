//! Functions of `libcudart.so.12` only: those that CUDA 13 removed, and those whose
//! parameters or structures it changed, in the form of CUDA 12.9.

#[only(12)]
#[cuda12(cudaGetDeviceProperties)]
fn cudaGetDeviceProperties_v1(properties: *mut cuda12::cudaDeviceProp, device: c_int);

#[only(12)]
fn cudaGetDeviceProperties_v2(properties: Out<cuda12::cudaDeviceProp>, device: c_int);

#[only(12)]
fn cudaChooseDevice(device: Out<c_int>, wanted: *const cuda12::cudaDeviceProp);

#[only(12)]
fn cudaPointerGetAttributes(
    attributes: Out<cuda12::cudaPointerAttributes>,
    address: *const c_void,
);

#[only(12)]
#[direct(cuMemAdvise(address.addr() as u64, size, advice, number_or_cpu(device)?))]
fn cudaMemAdvise(address: *const c_void, size: usize, advice: c_int, device: c_int);

#[only(12)]
#[per_thread(ptsz)]
#[direct(cuMemPrefetchAsync(address.addr() as u64, size, number_or_cpu(device)?, stream))]
fn cudaMemPrefetchAsync(
    address: *const c_void,
    size: usize,
    device: c_int,
    stream: DefaultStream,
);

#[only(12)]
#[per_thread(ptsz)]
#[direct(cuMemcpyBatchAsync(to.cast(), from.cast(), sizes, count, attributes.cast(), indexes, attribute_count, failed, stream))]
fn cudaMemcpyBatchAsync(
    to: *mut *mut c_void,
    from: *mut *mut c_void,
    sizes: *mut usize,
    count: usize,
    attributes: *mut c_void,
    indexes: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: DefaultStream,
);

#[only(12)]
#[per_thread(ptsz)]
#[direct(cuMemcpy3DBatchAsync(count, operations, failed, flags, stream))]
fn cudaMemcpy3DBatchAsync(
    count: usize,
    operations: *mut CUDA_MEMCPY3D_BATCH_OP,
    failed: *mut usize,
    flags: u64,
    stream: DefaultStream,
);

#[only(12)]
#[direct(cuGraphGetEdges(graph, from, to, count))]
fn cudaGraphGetEdges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: Out<usize>,
);

#[only(12)]
#[direct(cuGraphNodeGetDependencies(node, dependencies, count))]
fn cudaGraphNodeGetDependencies(
    node: CUgraphNode,
    dependencies: *mut CUgraphNode,
    count: Out<usize>,
);

#[only(12)]
#[direct(cuGraphNodeGetDependentNodes(node, dependents, count))]
fn cudaGraphNodeGetDependentNodes(
    node: CUgraphNode,
    dependents: *mut CUgraphNode,
    count: Out<usize>,
);

#[only(12)]
#[through(graph_params::cudaGraphAddNode(node, graph, after, std::ptr::null(), count, parameters))]
fn cudaGraphAddNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *mut cudaGraphNodeParams,
);

#[only(12)]
#[per_thread(ptsz)]
#[direct(cuStreamGetCaptureInfo(stream, status, identifier))]
fn cudaStreamGetCaptureInfo(stream: DefaultStream, status: Out<c_int>, identifier: *mut u64);

#[only(12)]
#[per_thread(ptsz)]
#[direct(cuStreamGetCaptureInfo_v2(stream, status, identifier, graph, dependencies, count))]
fn cudaStreamGetCaptureInfo_v2(
    stream: DefaultStream,
    status: Out<c_int>,
    identifier: *mut u64,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    count: *mut usize,
);

#[only(12)]
fn cudaCreateTextureObject(
    object: Out<CUtexObject>,
    resource: *const cuda12::cudaResourceDesc,
    texture: In<cudaTextureDesc>,
    view: *const cuda12::cudaResourceViewDesc,
);

#[only(12)]
fn cudaGetTextureObjectResourceDesc(
    resource: Out<cuda12::cudaResourceDesc>,
    object: CUtexObject,
);

#[only(12)]
fn cudaGetTextureObjectResourceViewDesc(
    view: Out<cuda12::cudaResourceViewDesc>,
    object: CUtexObject,
);

#[only(12)]
fn cudaCreateSurfaceObject(object: Out<CUsurfObject>, resource: *const cuda12::cudaResourceDesc);

#[only(12)]
fn cudaGetSurfaceObjectResourceDesc(
    resource: Out<cuda12::cudaResourceDesc>,
    object: CUsurfObject,
);

#[only(12)]
#[through(device::cudaDeviceReset())]
fn cudaThreadExit();

/// Converts nothing: every device supports doubles.
#[only(12)]
fn cudaSetDoubleForDevice(number: *mut f64);

/// As `cudaSetDoubleForDevice`.
#[only(12)]
fn cudaSetDoubleForHost(number: *mut f64);

#[only(12)]
#[refused("CUDA 12 declares the source first and documents it last")]
fn cudaGraphKernelNodeCopyAttributes();

#[only(12)]
#[refused("removed from CUDA with multi-device cooperative groups")]
fn cudaLaunchCooperativeKernelMultiDevice();

#[only(12)]
#[per_thread(ptsz)]
#[refused("the form of CUDA 11; that of CUDA 12 is cudaSignalExternalSemaphoresAsync_v2")]
fn cudaSignalExternalSemaphoresAsync();

#[only(12)]
#[per_thread(ptsz)]
#[refused("the form of CUDA 11; that of CUDA 12 is cudaWaitExternalSemaphoresAsync_v2")]
fn cudaWaitExternalSemaphoresAsync();
