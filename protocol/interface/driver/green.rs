//! Green contexts (CUDA Driver API, Green Contexts; of Context Management what
//! concerns a context's resources and all of its streams).

/// The primary context with a green context's resources: its default stream and
/// streams that are made while it is current run there. The rest is the
/// primary context's.
#[since(12040)]
fn cuCtxFromGreenCtx(context: Out<CUcontext>, ctx: CUgreenCtx);

/// A context's multiprocessors.
#[since(12040)]
fn cuCtxGetDevResource(ctx: CUcontext, resource: Out<CUdevResource>, kind: c_int);

/// How many multiprocessors a context has: all, or those of its green context. Fewer
/// of an ordinary one need NVIDIA's MPS.
#[since(11040)]
fn cuCtxGetExecAffinity(exec_affinity: *mut c_void, kind: c_int);

/// Records an event after the work of all streams of a context.
#[since(12050)]
fn cuCtxRecordEvent(ctx: CUcontext, event: CUevent);

/// Makes all streams of a context wait for an event.
#[since(12050)]
fn cuCtxWaitEvent(ctx: CUcontext, event: CUevent);

/// What a green context is made of. The host's driver is told when the green
/// context is made.
#[since(12040)]
#[host]
fn cuDevResourceGenerateDesc(
    desc: Out<CUdevResourceDesc>,
    resources: *mut CUdevResource,
    nb_resources: c_uint,
);

/// Splits multiprocessors into groups as the host's driver does.
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

/// All multiprocessors of a device.
#[since(12040)]
#[host]
fn cuDeviceGetDevResource(device: CUdevice, resource: Out<CUdevResource>, kind: c_int);

/// A green context. It retains the primary context.
#[since(12040)]
#[host]
fn cuGreenCtxCreate(ctx: Out<CUgreenCtx>, desc: CUdevResourceDesc, dev: CUdevice, flags: c_uint);

/// Ends a green context and its streams.
#[since(12040)]
#[host]
fn cuGreenCtxDestroy(ctx: CUgreenCtx);

/// A green context's multiprocessors.
#[since(12040)]
#[host]
fn cuGreenCtxGetDevResource(ctx: CUgreenCtx, resource: Out<CUdevResource>, kind: c_int);

/// A unique number of the context.
#[since(12090)]
fn cuGreenCtxGetId(green_ctx: CUgreenCtx, green_ctx_id: Out<u64>);

/// Records an event after the work of all streams of a green context.
#[since(12040)]
fn cuGreenCtxRecordEvent(ctx: CUgreenCtx, event: CUevent);

/// A stream whose kernels run on a green context's multiprocessors.
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

/// A stream's green context, or null.
#[since(12040)]
fn cuStreamGetGreenCtx(stream: CUstream, ctx: Out<CUgreenCtx>);
