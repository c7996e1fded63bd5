//! Copies of linear memory (CUDA Driver API, Memory Management).

/// Copies memory between any two addresses.
#[since(4000)]
#[per_thread(ptds)]
#[default_stream]
#[through(unified(destination, source, size, stream, true))]
fn cuMemcpy(destination: CUdeviceptr, source: CUdeviceptr, size: usize);

/// Copies memory between any two addresses, ordered by a stream.
#[since(4000)]
#[per_thread(ptsz)]
#[host]
#[through(unified(destination, source, size, stream, false))]
fn cuMemcpyAsync(destination: CUdeviceptr, source: CUdeviceptr, size: usize, stream: DefaultStream);

/// Copies host memory to device memory.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[through(to_device(destination, source, size, stream, true))]
fn cuMemcpyHtoD_v2(destination: CUdeviceptr, source: *const c_void, size: usize);

/// Copies host memory to device memory, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[through(to_device(destination, source, size, stream, false))]
fn cuMemcpyHtoDAsync_v2(
    destination: CUdeviceptr,
    source: *const c_void,
    size: usize,
    stream: DefaultStream,
);

/// Copies device memory to host memory.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[through(from_device(destination, source, size, stream, true))]
fn cuMemcpyDtoH_v2(destination: *mut c_void, source: CUdeviceptr, size: usize);

/// Copies device memory to host memory, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[through(from_device(destination, source, size, stream, false))]
fn cuMemcpyDtoHAsync_v2(
    destination: *mut c_void,
    source: CUdeviceptr,
    size: usize,
    stream: DefaultStream,
);

/// Copies device memory to device memory.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[through(on_device(destination, source, size, stream, true))]
fn cuMemcpyDtoD_v2(destination: CUdeviceptr, source: CUdeviceptr, size: usize);

/// Copies device memory to device memory, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[through(on_device(destination, source, size, stream, false))]
fn cuMemcpyDtoDAsync_v2(
    destination: CUdeviceptr,
    source: CUdeviceptr,
    size: usize,
    stream: DefaultStream,
);

/// Copies device memory between two contexts.
#[since(4000)]
#[per_thread(ptds)]
#[default_stream]
#[through(peer(destination, to, source, from, size, stream, true))]
fn cuMemcpyPeer(
    destination: CUdeviceptr,
    to: CUcontext,
    source: CUdeviceptr,
    from: CUcontext,
    size: usize,
);

/// Copies device memory between two contexts, ordered by a stream.
#[since(4000)]
#[per_thread(ptsz)]
#[through(peer(destination, to, source, from, size, stream, false))]
fn cuMemcpyPeerAsync(
    destination: CUdeviceptr,
    to: CUcontext,
    source: CUdeviceptr,
    from: CUcontext,
    size: usize,
    stream: DefaultStream,
);

#[since(12060)]
#[per_thread(ptsz)]
#[refused("a virtual GPU has no decompression engine: MEM_DECOMPRESS_ALGORITHM_MASK is 0")]
fn cuMemBatchDecompressAsync(
    params_array: *mut CUmemDecompressParams,
    count: usize,
    flags: c_uint,
    error_index: *mut usize,
    stream: CUstream,
);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyDtoD(dst_device: c_uint, src_device: c_uint, byte_count: c_uint);

#[since(3000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyDtoDAsync(dst_device: c_uint, src_device: c_uint, byte_count: c_uint, stream: CUstream);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyDtoH(dst_host: *mut c_void, src_device: c_uint, byte_count: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyDtoHAsync(
    dst_host: *mut c_void,
    src_device: c_uint,
    byte_count: c_uint,
    stream: CUstream,
);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyHtoD(dst_device: c_uint, src_host: *const c_void, byte_count: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyHtoDAsync(
    dst_device: c_uint,
    src_host: *const c_void,
    byte_count: c_uint,
    stream: CUstream,
);
