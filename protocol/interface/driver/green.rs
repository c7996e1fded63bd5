//! Green.

#[since(12040)]
#[refused("not built yet")]
fn cuCtxFromGreenCtx(context: Out<CUcontext>, ctx: CUgreenCtx);

#[since(12040)]
#[refused("not built yet")]
fn cuCtxGetDevResource(ctx: CUcontext, resource: Out<CUdevResource>, kind: CUdevResourceType);

#[since(11040)]
#[refused("not built yet")]
fn cuCtxGetExecAffinity(exec_affinity: Out<CUexecAffinityParam>, kind: c_int);

#[since(12050)]
#[refused("not built yet")]
fn cuCtxRecordEvent(ctx: CUcontext, event: CUevent);

#[since(12050)]
#[refused("not built yet")]
fn cuCtxWaitEvent(ctx: CUcontext, event: CUevent);

#[since(12040)]
#[refused("not built yet")]
fn cuDevResourceGenerateDesc(
    desc: Out<CUdevResourceDesc>,
    resources: Out<CUdevResource>,
    nb_resources: c_uint,
);

#[since(12040)]
#[refused("not built yet")]
fn cuDevSmResourceSplitByCount(
    result: *mut CUdevResource,
    nb_groups: *mut c_uint,
    input: *const CUdevResource,
    remaining: *mut CUdevResource,
    use_flags: c_uint,
    min_count: c_uint,
);

#[since(12040)]
#[refused("not built yet")]
fn cuDeviceGetDevResource(device: CUdevice, resource: Out<CUdevResource>, kind: CUdevResourceType);

#[since(12040)]
#[refused("not built yet")]
fn cuGreenCtxCreate(ctx: Out<CUgreenCtx>, desc: CUdevResourceDesc, dev: CUdevice, flags: c_uint);

#[since(12040)]
#[refused("not built yet")]
fn cuGreenCtxDestroy(ctx: CUgreenCtx);

#[since(12040)]
#[refused("not built yet")]
fn cuGreenCtxGetDevResource(ctx: CUgreenCtx, resource: Out<CUdevResource>, kind: CUdevResourceType);

#[since(12090)]
#[refused("not built yet")]
fn cuGreenCtxGetId(green_ctx: CUgreenCtx, green_ctx_id: Out<u64>);

#[since(12040)]
#[refused("not built yet")]
fn cuGreenCtxRecordEvent(ctx: CUgreenCtx, event: CUevent);

#[since(12050)]
#[refused("not built yet")]
fn cuGreenCtxStreamCreate(
    stream: Out<CUstream>,
    green_ctx: CUgreenCtx,
    flags: c_uint,
    priority: c_int,
);

#[since(12040)]
#[refused("not built yet")]
fn cuGreenCtxWaitEvent(ctx: CUgreenCtx, event: CUevent);

#[since(12040)]
#[refused("not built yet")]
fn cuStreamGetGreenCtx(stream: CUstream, ctx: Out<CUgreenCtx>);
