//! Linear and two-dimensional copies (CUDA Runtime API, chapter "Memory
//! Management").

#[per_thread(ptds)]
#[default_stream]
#[through(bytes(to, from, size, kind, now(stream)))]
fn cudaMemcpy(to: *mut c_void, from: *const c_void, size: usize, kind: c_int);

#[per_thread(ptsz)]
#[through(bytes(to, from, size, kind, Timing::Later(stream)))]
fn cudaMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
    stream: DefaultStream,
);

#[through(peer((to, to_device), (from, from_device), size, None))]
fn cudaMemcpyPeer(
    to: *mut c_void,
    to_device: c_int,
    from: *const c_void,
    from_device: c_int,
    size: usize,
);

#[through(peer((to, to_device), (from, from_device), size, Some(stream)))]
fn cudaMemcpyPeerAsync(
    to: *mut c_void,
    to_device: c_int,
    from: *const c_void,
    from_device: c_int,
    size: usize,
    stream: CUstream,
);

#[per_thread(ptds)]
#[default_stream]
#[through(pitched((to, to_pitch), (from, from_pitch), [width, height], kind, now(stream)))]
fn cudaMemcpy2D(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
);

#[per_thread(ptsz)]
#[through(pitched(
    (to, to_pitch), (from, from_pitch), [width, height], kind, Timing::Later(stream)
))]
fn cudaMemcpy2DAsync(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
    stream: DefaultStream,
);

#[per_thread(ptds)]
#[default_stream]
#[through(to_array((to, x, y), (from, from_pitch), [width, height], kind, now(stream)))]
fn cudaMemcpy2DToArray(
    to: CUarray,
    x: usize,
    y: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
);

#[per_thread(ptsz)]
#[through(to_array((to, x, y), (from, from_pitch), [width, height], kind, Timing::Later(stream)))]
fn cudaMemcpy2DToArrayAsync(
    to: CUarray,
    x: usize,
    y: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
    stream: DefaultStream,
);

#[per_thread(ptds)]
#[default_stream]
#[through(from_array((to, to_pitch), (from, x, y), [width, height], kind, now(stream)))]
fn cudaMemcpy2DFromArray(
    to: *mut c_void,
    to_pitch: usize,
    from: CUarray,
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    kind: c_int,
);

#[per_thread(ptsz)]
#[through(from_array((to, to_pitch), (from, x, y), [width, height], kind, Timing::Later(stream)))]
fn cudaMemcpy2DFromArrayAsync(
    to: *mut c_void,
    to_pitch: usize,
    from: CUarray,
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    kind: c_int,
    stream: DefaultStream,
);

#[per_thread(ptds)]
#[default_stream]
fn cudaMemcpy2DArrayToArray(
    to: CUarray,
    to_x: usize,
    to_y: usize,
    from: CUarray,
    from_x: usize,
    from_y: usize,
    width: usize,
    height: usize,
    kind: c_int,
);
