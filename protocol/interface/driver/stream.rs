//! Streams (CUDA Driver API, Stream Management).

/// Creates a stream.
#[since(2000)]
#[runtime(cudaStreamCreateWithFlags)]
fn cuStreamCreate(stream: Out<CUstream>, flags: c_uint);

/// Creates a stream with a priority, clamped to the device's range.
#[since(5050)]
#[runtime(cudaStreamCreateWithPriority)]
#[host]
fn cuStreamCreateWithPriority(stream: Out<CUstream>, flags: c_uint, priority: c_int);

/// Destroys a stream. Its work still runs.
#[since(2000)]
#[also(cuStreamDestroy_v2 = 4000)]
#[call(0x0602, posted, destroys(Stream = stream), code(guest, worker, device), part(objects, streams))]
#[host]
fn cuStreamDestroy(stream: CUstream);

/// Waits until the stream's work is complete.
#[since(2000)]
#[per_thread(ptsz)]
#[runtime(cudaStreamSynchronize)]
#[call(0x0603, synchronous, idempotent, reports, waits, code(guest, worker, device), part(objects), with(replies))]
#[host]
fn cuStreamSynchronize(stream: DefaultStream);

/// Returns whether the stream's work is complete.
#[since(2000)]
#[per_thread(ptsz)]
#[runtime(cudaStreamQuery)]
#[call(0x0604, synchronous, idempotent, reports, code(guest, worker, device), part(objects), with(replies))]
#[host]
fn cuStreamQuery(stream: DefaultStream);

/// Makes a stream wait for an event.
#[since(3020)]
#[per_thread(ptsz)]
#[runtime(cudaStreamWaitEvent)]
#[call(0x0605, posted, node, local(flags), code(guest, worker, device), part(objects))]
#[host]
fn cuStreamWaitEvent(stream: DefaultStream, event: CUevent, flags: c_uint);

/// Returns the flags of a stream.
#[since(5050)]
#[per_thread(ptsz)]
#[runtime(cudaStreamGetFlags)]
fn cuStreamGetFlags(stream: DefaultStream, flags: Out<c_uint>);

/// Returns the priority of a stream.
#[since(5050)]
#[per_thread(ptsz)]
#[runtime(cudaStreamGetPriority)]
fn cuStreamGetPriority(stream: DefaultStream, priority: Out<c_int>);

/// Returns the unique ID of a stream.
#[since(12000)]
#[per_thread(ptsz)]
#[runtime(cudaStreamGetId)]
fn cuStreamGetId(stream: DefaultStream, id: Out<u64>);

/// Returns the device of a stream.
#[since(12080)]
#[per_thread(ptsz)]
fn cuStreamGetDevice(stream: DefaultStream, device: Out<CUdevice>);

/// Returns the context of a stream.
#[since(9020)]
#[in_callbacks]
#[per_thread(ptsz)]
fn cuStreamGetCtx(stream: DefaultStream, context: Out<CUcontext>);

/// Returns the context of a stream, and its green context or null.
#[since(12050)]
#[per_thread(ptsz)]
fn cuStreamGetCtx_v2(stream: DefaultStream, context: Out<CUcontext>, green: Out<CUgreenCtx>);

/// Returns an attribute of a stream, as it was set: priority, synchronization policy, access
/// policy window, or memory synchronization domain or its map.
#[since(11000)]
#[per_thread(ptsz)]
#[runtime(cudaStreamGetAttribute)]
fn cuStreamGetAttribute(
    stream: DefaultStream,
    attribute: c_int,
    value: Out<cudaLaunchAttributeValue>,
);

/// Sets an access policy window or memory synchronization domains, which also apply to the
/// host's stream, or a synchronization policy, which is only stored. A stream's priority cannot
/// be changed.
#[since(11000)]
#[per_thread(ptsz)]
#[host]
fn cuStreamSetAttribute(
    stream: DefaultStream,
    attribute: c_int,
    value: In<cudaLaunchAttributeValue>,
);

/// Copies the attributes of another stream, except its priority.
#[since(11000)]
#[per_thread(ptsz)]
fn cuStreamCopyAttributes(to: CUstream, from: CUstream);

/// Calls a function of the program, ordered by the stream.
#[since(10000)]
#[per_thread(ptsz)]
#[runtime(cudaLaunchHostFunc)]
#[host]
fn cuLaunchHostFunc(stream: DefaultStream, function: CUhostFn, argument: *mut c_void);

/// As cuLaunchHostFunc; the function also receives the stream and its status.
#[since(5000)]
#[per_thread(ptsz)]
fn cuStreamAddCallback(
    stream: DefaultStream,
    function: CUstreamCallback,
    argument: *mut c_void,
    flags: c_uint,
);

/// As cuLaunchHostFunc. How the waiting thread waits has no effect.
#[since(13010)]
#[per_thread(ptsz)]
#[runtime(cudaLaunchHostFunc_v2)]
#[cuda12()]
fn cuLaunchHostFunc_v2(
    stream: DefaultStream,
    function: CUhostFn,
    argument: *mut c_void,
    mode: c_uint,
);
