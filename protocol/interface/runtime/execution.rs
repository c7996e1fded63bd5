//! Execution contexts: a device, or a part of its multiprocessors (CUDA Runtime API, chapter
//! "Execution Context Management"). Such a context is a context of the driver.

#[only(13)]
#[direct(cuDevResourceGenerateDesc(description, resources, count))]
fn cudaDevResourceGenerateDesc(
    description: Out<CUdevResourceDesc>,
    resources: *mut CUdevResource,
    count: c_uint,
);

#[only(13)]
#[refused("multiprocessors are split by count alone, as NVIDIA's driver of CUDA 13.0 does")]
fn cudaDevSmResourceSplit();

#[only(13)]
#[direct(cuDevSmResourceSplitByCount(result, groups, input, remaining, flags, least))]
fn cudaDevSmResourceSplitByCount(
    result: *mut CUdevResource,
    groups: *mut c_uint,
    input: *const CUdevResource,
    remaining: *mut CUdevResource,
    flags: c_uint,
    least: c_uint,
);

#[only(13)]
#[direct(cuDeviceGetDevResource(device, resource, kind))]
fn cudaDeviceGetDevResource(device: c_int, resource: Out<CUdevResource>, kind: c_int);

#[only(13)]
fn cudaDeviceGetExecutionCtx(context: Out<CUcontext>, device: c_int);

#[only(13)]
#[needs(cuGreenCtxDestroy)]
fn cudaExecutionCtxDestroy(context: CUcontext);

#[only(13)]
#[direct(cuCtxGetDevResource(context, resource, kind))]
fn cudaExecutionCtxGetDevResource(context: CUcontext, resource: Out<CUdevResource>, kind: c_int);

#[only(13)]
#[direct(cuCtxGetDevice_v2(device, context))]
fn cudaExecutionCtxGetDevice(device: Out<c_int>, context: CUcontext);

#[only(13)]
#[direct(cuCtxGetId(context, id))]
fn cudaExecutionCtxGetId(context: CUcontext, id: Out<u64>);

#[only(13)]
#[direct(cuCtxRecordEvent(context, event))]
fn cudaExecutionCtxRecordEvent(context: CUcontext, event: CUevent);

#[only(13)]
#[needs(cuStreamCreateWithPriority)]
fn cudaExecutionCtxStreamCreate(
    stream: Out<CUstream>,
    context: CUcontext,
    flags: c_uint,
    priority: c_int,
);

#[only(13)]
#[direct(cuCtxSynchronize_v2(context))]
fn cudaExecutionCtxSynchronize(context: CUcontext);

#[only(13)]
#[direct(cuCtxWaitEvent(context, event))]
fn cudaExecutionCtxWaitEvent(context: CUcontext, event: CUevent);

#[only(13)]
#[needs(cuGreenCtxCreate)]
fn cudaGreenCtxCreate(
    context: Out<CUcontext>,
    description: CUdevResourceDesc,
    device: c_int,
    flags: c_uint,
);
