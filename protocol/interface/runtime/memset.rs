//! Memsets (CUDA Runtime API, chapter "Memory Management").

#[per_thread(ptds)]
#[default_stream]
fn cudaMemset(address: *mut c_void, value: c_int, size: usize);

#[per_thread(ptsz)]
fn cudaMemsetAsync(address: *mut c_void, value: c_int, size: usize, stream: DefaultStream);

#[per_thread(ptds)]
#[default_stream]
fn cudaMemset2D(address: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize);

#[per_thread(ptsz)]
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
fn cudaMemset3D(place: cudaPitchedPtr, value: c_int, extent: cudaExtent);

#[per_thread(ptsz)]
fn cudaMemset3DAsync(
    place: cudaPitchedPtr,
    value: c_int,
    extent: cudaExtent,
    stream: DefaultStream,
);
