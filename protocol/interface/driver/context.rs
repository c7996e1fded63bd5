//! Contexts (CUDA Driver API, Primary Context Management, Context Management).
//!
//! All contexts of a device are one session: they share its memory and its
//! default stream. Objects are destroyed with the context in which they were created. Each
//! context has its own variables of a library.

/// Retains the device's primary context; the first call creates it.
#[since(7000)]
#[host]
fn cuDevicePrimaryCtxRetain(context: Out<CUcontext>, device: CUdevice);

/// Releases the device's primary context; the last release resets it.
#[since(7000)]
#[also(cuDevicePrimaryCtxRelease_v2 = 11000)]
#[host]
fn cuDevicePrimaryCtxRelease(device: CUdevice);

/// Destroys all objects of the primary context and frees its memory.
#[since(7000)]
#[also(cuDevicePrimaryCtxReset_v2 = 11000)]
fn cuDevicePrimaryCtxReset(device: CUdevice);

/// Sets the flags of the primary context, which must not be active.
#[since(7000)]
fn cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: c_uint);

/// Sets the flags of the primary context.
#[since(11000)]
fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint);

/// Returns the flags of the primary context, and whether it is retained.
#[since(7000)]
#[required(flags, active)]
fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: Out<c_uint>, active: Out<c_int>);

/// Creates a context and makes it current.
#[since(3020)]
fn cuCtxCreate_v2(context: Out<CUcontext>, flags: c_uint, device: CUdevice);

/// Creates a context and makes it current. Execution affinities are not supported.
#[since(11040)]
fn cuCtxCreate_v3(
    context: *mut CUcontext,
    parameters: *mut c_void,
    number: c_int,
    flags: c_uint,
    device: CUdevice,
);

/// Creates a context and makes it current. Execution affinities and graphics (CIG) are not
/// supported.
#[since(12050)]
fn cuCtxCreate_v4(
    context: Out<CUcontext>,
    parameters: Out<CUctxCreateParams>,
    flags: c_uint,
    device: CUdevice,
);

/// Destroys a context and its objects.
#[since(2000)]
#[also(cuCtxDestroy_v2 = 4000)]
fn cuCtxDestroy(context: CUcontext);

/// Pushes a context onto the calling thread's stack.
#[since(2000)]
#[also(cuCtxPushCurrent_v2 = 4000)]
#[required(context)]
fn cuCtxPushCurrent(context: CUcontext);

/// Pops the current context from the calling thread's stack.
#[since(2000)]
#[also(cuCtxPopCurrent_v2 = 4000)]
fn cuCtxPopCurrent(context: Out<CUcontext>);

/// Replaces the calling thread's current context; null removes it.
#[since(4000)]
#[host]
fn cuCtxSetCurrent(context: CUcontext);

/// Returns the calling thread's current context, or null.
#[since(4000)]
fn cuCtxGetCurrent(context: Out<CUcontext>);

/// Returns the device of the current context.
#[since(2000)]
fn cuCtxGetDevice(device: Out<CUdevice>);

/// Returns the device of a context.
#[since(13000)]
fn cuCtxGetDevice_v2(device: Out<CUdevice>, context: CUcontext);

/// Returns the flags of the current context.
#[since(7000)]
fn cuCtxGetFlags(flags: Out<c_uint>);

/// Sets the flags of the current context.
#[since(12010)]
fn cuCtxSetFlags(flags: c_uint);

/// Returns the unique ID of a context.
#[since(12000)]
fn cuCtxGetId(context: CUcontext, id: Out<u64>);

/// Returns the API version of a context.
#[since(3020)]
fn cuCtxGetApiVersion(context: CUcontext, version: Out<c_uint>);

/// Waits for all work of the current context.
#[since(2000)]
#[runtime(cudaDeviceSynchronize)]
#[host]
#[cuda12(cudaDeviceSynchronize, cudaThreadSynchronize)]
fn cuCtxSynchronize();

/// Waits for all work of a context.
#[since(13000)]
fn cuCtxSynchronize_v2(context: CUcontext);

/// Returns the least and the greatest stream priority.
#[since(5050)]
fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>);

/// Returns a limit of the current context.
#[since(3010)]
#[runtime(cudaDeviceGetLimit)]
#[call(0x0803, synchronous, idempotent, code(guest))]
#[cuda12(cudaDeviceGetLimit, cudaThreadGetLimit)]
fn cuCtxGetLimit(value: Out<usize>, limit: Enumeration);

/// Sets a limit of the current context. The worker records it, so that it survives a move.
#[since(3010)]
#[runtime(cudaDeviceSetLimit)]
#[call(0x0802, synchronous, idempotent, code(guest, worker), part(objects), with(memory))]
#[cuda12(cudaDeviceSetLimit, cudaThreadSetLimit)]
fn cuCtxSetLimit(limit: Enumeration, value: usize);

/// Returns the preferred split between L1 cache and shared memory.
#[since(3020)]
#[runtime(cudaDeviceGetCacheConfig)]
#[cuda12(cudaDeviceGetCacheConfig, cudaThreadGetCacheConfig)]
fn cuCtxGetCacheConfig(config: Out<c_int>);

/// Sets the preferred split between L1 cache and shared memory. The guest only stores it.
#[since(3020)]
#[runtime(cudaDeviceSetCacheConfig)]
#[cuda12(cudaDeviceSetCacheConfig, cudaThreadSetCacheConfig)]
fn cuCtxSetCacheConfig(config: c_int);

/// Returns the width of shared memory banks, which is always four bytes.
#[since(4020)]
#[runtime(cudaDeviceGetSharedMemConfig)]
fn cuCtxGetSharedMemConfig(config: Out<c_int>);

/// Accepts a width of shared memory banks, which current devices ignore.
#[since(4020)]
#[runtime(cudaDeviceSetSharedMemConfig)]
fn cuCtxSetSharedMemConfig(config: c_int);

/// Resets all persisting lines of the L2 cache to normal.
#[since(11000)]
#[runtime(cudaCtxResetPersistingL2Cache)]
#[call(0x080a, synchronous, idempotent)]
fn cuCtxResetPersistingL2Cache();

/// Returns the current context (deprecated: contexts are not counted).
#[since(2000)]
fn cuCtxAttach(context: Out<CUcontext>, flags: c_uint);

/// Checks that the context exists (deprecated: contexts are not counted).
#[since(2000)]
fn cuCtxDetach(context: CUcontext);

/// Maps all memory of the peer context's device, present and future, for the current device.
#[since(4000)]
fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);

/// Disables peer access. The mappings stay if another context of the device still has access.
#[since(4000)]
fn cuCtxDisablePeerAccess(peer: CUcontext);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuCtxCreate(pctx: Out<CUcontext>, flags: c_uint, dev: CUdevice);
