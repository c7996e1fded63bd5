//! Linear and two-dimensional copies (CUDA Runtime API, chapter "Memory
//! Management").

#[per_thread(ptds)]
#[default_stream]
fn cudaMemcpy(to: *mut c_void, from: *const c_void, size: usize, kind: c_int);

#[per_thread(ptsz)]
fn cudaMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
    stream: DefaultStream,
);

fn cudaMemcpyPeer(
    to: *mut c_void,
    to_device: c_int,
    from: *const c_void,
    from_device: c_int,
    size: usize,
);

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
