//! Contexts (CUDA Driver API, Primary Context Management, Context Management).
//!
//! All contexts of a device are one session: they share its memory and its
//! default stream. What was made in a context ends with it.

/// The device's primary context, made at the first call.
#[since(7000)]
#[host]
fn cuDevicePrimaryCtxRetain(context: Out<CUcontext>, device: CUdevice);

/// Ends a retain; the last one resets the context.
#[since(7000)]
#[also(cuDevicePrimaryCtxRelease_v2 = 11000)]
#[host]
fn cuDevicePrimaryCtxRelease(device: CUdevice);

/// Ends all that the context holds.
#[since(7000)]
#[also(cuDevicePrimaryCtxReset_v2 = 11000)]
fn cuDevicePrimaryCtxReset(device: CUdevice);

/// Flags of the primary context, which must not be in use.
#[since(7000)]
fn cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: c_uint);

/// Flags of the primary context.
#[since(11000)]
fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint);

/// Flags, and whether somebody retains it.
#[since(7000)]
#[required(flags, active)]
fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: Out<c_uint>, active: Out<c_int>);

/// A context, current at once.
#[since(3020)]
fn cuCtxCreate_v2(context: Out<CUcontext>, flags: c_uint, device: CUdevice);

/// A context, current at once; affinities are not served.
#[since(11040)]
fn cuCtxCreate_v3(
    context: *mut CUcontext,
    parameters: *mut c_void,
    number: c_int,
    flags: c_uint,
    device: CUdevice,
);

/// A context, current at once; affinities and graphics are not served.
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

/// Pushes a context onto the thread's stack.
#[since(2000)]
#[also(cuCtxPushCurrent_v2 = 4000)]
#[required(context)]
fn cuCtxPushCurrent(context: CUcontext);

/// Goes back to the context below.
#[since(2000)]
#[also(cuCtxPopCurrent_v2 = 4000)]
fn cuCtxPopCurrent(context: Out<CUcontext>);

/// Replaces the thread's context; null takes it away.
#[since(4000)]
#[host]
fn cuCtxSetCurrent(context: CUcontext);

/// The thread's context, or null.
#[since(4000)]
fn cuCtxGetCurrent(context: Out<CUcontext>);

/// Its device.
#[since(2000)]
fn cuCtxGetDevice(device: Out<CUdevice>);

/// A context's device.
#[since(13000)]
fn cuCtxGetDevice_v2(device: Out<CUdevice>, context: CUcontext);

/// Its flags.
#[since(7000)]
fn cuCtxGetFlags(flags: Out<c_uint>);

/// Changes its flags.
#[since(12010)]
fn cuCtxSetFlags(flags: c_uint);

/// A unique number of the context.
#[since(12000)]
fn cuCtxGetId(context: CUcontext, id: Out<u64>);

/// The interface's version.
#[since(3020)]
fn cuCtxGetApiVersion(context: CUcontext, version: Out<c_uint>);

/// Waits for all work.
#[since(2000)]
#[runtime(cudaDeviceSynchronize)]
#[host]
#[cuda12(cudaDeviceSynchronize, cudaThreadSynchronize)]
fn cuCtxSynchronize();

/// Waits for all work of a context.
#[since(13000)]
fn cuCtxSynchronize_v2(context: CUcontext);

/// Least and greatest priority of streams.
#[since(5050)]
fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>);

/// A limit.
#[since(3010)]
#[runtime(cudaDeviceGetLimit)]
#[call(0x0803, synchronous, idempotent)]
#[cuda12(cudaDeviceGetLimit, cudaThreadGetLimit)]
fn cuCtxGetLimit(value: Out<usize>, limit: Limit);

/// Changes a limit. The worker records it, so that it survives a move.
#[since(3010)]
#[runtime(cudaDeviceSetLimit)]
#[call(0x0802, synchronous, idempotent, code(guest, worker))]
#[cuda12(cudaDeviceSetLimit, cudaThreadSetLimit)]
fn cuCtxSetLimit(limit: Limit, value: usize);

/// Preferred division of the first cache.
#[since(3020)]
#[runtime(cudaDeviceGetCacheConfig)]
#[cuda12(cudaDeviceGetCacheConfig, cudaThreadGetCacheConfig)]
fn cuCtxGetCacheConfig(config: Out<c_int>);

/// A preference, which devices may ignore; no device of today heeds it.
#[since(3020)]
#[runtime(cudaDeviceSetCacheConfig)]
#[cuda12(cudaDeviceSetCacheConfig, cudaThreadSetCacheConfig)]
fn cuCtxSetCacheConfig(config: c_int);

/// Width of shared memory's banks: four bytes on every device of today.
#[since(4020)]
#[runtime(cudaDeviceGetSharedMemConfig)]
fn cuCtxGetSharedMemConfig(config: Out<c_int>);

/// A preference without effect on devices of today.
#[since(4020)]
#[runtime(cudaDeviceSetSharedMemConfig)]
fn cuCtxSetSharedMemConfig(config: c_int);

/// Makes the lines of the cache that access policies keep normal ones.
#[since(11000)]
#[runtime(cudaCtxResetPersistingL2Cache)]
#[call(0x080a, synchronous, idempotent)]
fn cuCtxResetPersistingL2Cache();

/// A use of the context, the old way.
#[since(2000)]
fn cuCtxAttach(context: Out<CUcontext>, flags: c_uint);

/// Ends a use, the old way.
#[since(2000)]
fn cuCtxDetach(context: CUcontext);

/// Maps all memory of the other device, present and future, for the current one.
#[since(4000)]
fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);

/// Ends the access, unless another context of the device has it.
#[since(4000)]
fn cuCtxDisablePeerAccess(peer: CUcontext);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuCtxCreate(pctx: Out<CUcontext>, flags: c_uint, dev: CUdevice);
