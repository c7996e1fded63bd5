//! Green contexts (CUDA Driver API, Green Contexts; from Context Management the functions
//! for a context's resources and for all of its streams).

/// Returns the primary context restricted to a green context's resources. Its default stream,
/// and streams created while it is current, run there; everything else is shared with the
/// primary context.
#[since(12040)]
fn cuCtxFromGreenCtx(context: Out<CUcontext>, ctx: CUgreenCtx);

/// Returns the multiprocessors of a context.
#[since(12040)]
fn cuCtxGetDevResource(ctx: CUcontext, resource: Out<CUdevResource>, kind: c_int);

/// Returns the number of multiprocessors of a context: all, or those of its green context. An
/// ordinary context with fewer requires NVIDIA's MPS.
#[since(11040)]
fn cuCtxGetExecAffinity(exec_affinity: *mut c_void, kind: c_int);

/// Records an event after the work of all streams of a context.
#[since(12050)]
fn cuCtxRecordEvent(ctx: CUcontext, event: CUevent);

/// Makes all streams of a context wait for an event.
#[since(12050)]
fn cuCtxWaitEvent(ctx: CUcontext, event: CUevent);

/// Creates a descriptor of resources. The host's driver receives it when a green context is
/// created.
#[since(12040)]
#[host]
fn cuDevResourceGenerateDesc(
    desc: Out<CUdevResourceDesc>,
    resources: *mut CUdevResource,
    nb_resources: c_uint,
);

/// Splits multiprocessors into groups, as the host's driver does.
#[since(12040)]
#[host]
fn cuDevSmResourceSplitByCount(
    result: *mut CUdevResource,
    nb_groups: *mut c_uint,
    input: *const CUdevResource,
    remaining: *mut CUdevResource,
    use_flags: c_uint,
    min_count: c_uint,
);

/// Returns all multiprocessors of a device.
#[since(12040)]
#[host]
fn cuDeviceGetDevResource(device: CUdevice, resource: Out<CUdevResource>, kind: c_int);

/// Creates a green context, which retains the primary context.
#[since(12040)]
#[host]
fn cuGreenCtxCreate(ctx: Out<CUgreenCtx>, desc: CUdevResourceDesc, dev: CUdevice, flags: c_uint);

/// Destroys a green context and its streams.
#[since(12040)]
#[host]
fn cuGreenCtxDestroy(ctx: CUgreenCtx);

/// Returns the multiprocessors of a green context.
#[since(12040)]
#[host]
fn cuGreenCtxGetDevResource(ctx: CUgreenCtx, resource: Out<CUdevResource>, kind: c_int);

/// Returns the unique ID of a green context.
#[since(12090)]
fn cuGreenCtxGetId(green_ctx: CUgreenCtx, green_ctx_id: Out<u64>);

/// Records an event after the work of all streams of a green context.
#[since(12040)]
fn cuGreenCtxRecordEvent(ctx: CUgreenCtx, event: CUevent);

/// Creates a stream whose kernels run on a green context's multiprocessors.
#[since(12050)]
#[host]
fn cuGreenCtxStreamCreate(
    stream: Out<CUstream>,
    green_ctx: CUgreenCtx,
    flags: c_uint,
    priority: c_int,
);

/// Makes all streams of a green context wait for an event.
#[since(12040)]
fn cuGreenCtxWaitEvent(ctx: CUgreenCtx, event: CUevent);

/// Returns the green context of a stream, or null.
#[since(12040)]
fn cuStreamGetGreenCtx(stream: CUstream, ctx: Out<CUgreenCtx>);

#[since(13010)]
#[refused("multiprocessors are split by count alone, as NVIDIA's driver of CUDA 13.0 does")]
fn cuDevSmResourceSplit();

/// Returns the multiprocessors that a stream may use. NVIDIA's libraries of CUDA 13.1 and
/// newer call it, in `cusolverDnSetStream` and elsewhere, and fail if it fails.
#[since(13010)]
#[per_thread(ptsz)]
#[runtime(cudaStreamGetDevResource)]
#[cuda12()]
fn cuStreamGetDevResource(stream: DefaultStream, resource: Out<CUdevResource>, kind: c_int);
