//! Three-dimensional copies, and copies of consecutive array elements (CUDA
//! Runtime API, chapter "Memory Management").

#[per_thread(ptds)]
#[default_stream]
#[through(volume(parameters, now(stream)))]
fn cudaMemcpy3D(parameters: In<cudaMemcpy3DParms>);

#[per_thread(ptsz)]
#[through(volume(parameters, Timing::Later(stream)))]
fn cudaMemcpy3DAsync(parameters: In<cudaMemcpy3DParms>, stream: DefaultStream);

#[per_thread(ptds)]
#[default_stream]
#[through(peer(parameters, now(stream)))]
fn cudaMemcpy3DPeer(parameters: In<cudaMemcpy3DPeerParms>);

#[per_thread(ptsz)]
#[through(peer(parameters, Timing::Later(stream)))]
fn cudaMemcpy3DPeerAsync(parameters: In<cudaMemcpy3DPeerParms>, stream: DefaultStream);

#[per_thread(ptds)]
#[default_stream]
#[through(to_array((to, x, y), from, size, kind, now(stream)))]
fn cudaMemcpyToArray(
    to: CUarray,
    x: usize,
    y: usize,
    from: *const c_void,
    size: usize,
    kind: c_int,
);

#[per_thread(ptsz)]
#[through(to_array((to, x, y), from, size, kind, Timing::Later(stream)))]
fn cudaMemcpyToArrayAsync(
    to: CUarray,
    x: usize,
    y: usize,
    from: *const c_void,
    size: usize,
    kind: c_int,
    stream: DefaultStream,
);

#[per_thread(ptds)]
#[default_stream]
#[through(from_array(to, (from, x, y), size, kind, now(stream)))]
fn cudaMemcpyFromArray(
    to: *mut c_void,
    from: CUarray,
    x: usize,
    y: usize,
    size: usize,
    kind: c_int,
);

#[per_thread(ptsz)]
#[through(from_array(to, (from, x, y), size, kind, Timing::Later(stream)))]
fn cudaMemcpyFromArrayAsync(
    to: *mut c_void,
    from: CUarray,
    x: usize,
    y: usize,
    size: usize,
    kind: c_int,
    stream: DefaultStream,
);

#[per_thread(ptds)]
#[default_stream]
fn cudaMemcpyArrayToArray(
    to: CUarray,
    to_x: usize,
    to_y: usize,
    from: CUarray,
    from_x: usize,
    from_y: usize,
    size: usize,
    kind: c_int,
);
