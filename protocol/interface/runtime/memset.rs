//! Memsets (CUDA Runtime API, chapter "Memory Management").

#[per_thread(ptds)]
#[default_stream]
#[through(bytes(address, value, size, now(stream)))]
fn cudaMemset(address: *mut c_void, value: c_int, size: usize);

#[per_thread(ptsz)]
#[through(bytes(address, value, size, Timing::Later(stream)))]
fn cudaMemsetAsync(address: *mut c_void, value: c_int, size: usize, stream: DefaultStream);

#[per_thread(ptds)]
#[default_stream]
#[through(rows(address.addr() as u64, pitch, value, width, height, now(stream)))]
fn cudaMemset2D(address: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize);

#[per_thread(ptsz)]
#[through(rows(address.addr() as u64, pitch, value, width, height, Timing::Later(stream)))]
fn cudaMemset2DAsync(
    address: *mut c_void,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    stream: DefaultStream,
);

#[per_thread(ptds)]
#[default_stream]
#[through(slices(&place, value, &extent, now(stream)))]
fn cudaMemset3D(place: cudaPitchedPtr, value: c_int, extent: cudaExtent);

#[per_thread(ptsz)]
#[through(slices(&place, value, &extent, Timing::Later(stream)))]
fn cudaMemset3DAsync(
    place: cudaPitchedPtr,
    value: c_int,
    extent: cudaExtent,
    stream: DefaultStream,
);
