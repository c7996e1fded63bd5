//! Two- and three-dimensional copies, and copies of arrays (CUDA Driver API,
//! Memory Management).

/// Copies a 2D range.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[through(flat(copy, stream, true))]
fn cuMemcpy2D_v2(copy: In<CUDA_MEMCPY2D>);

/// Copies a 2D range with any pitch.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[through(flat(copy, stream, true))]
fn cuMemcpy2DUnaligned_v2(copy: In<CUDA_MEMCPY2D>);

/// Copies a 2D range, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[through(flat(copy, stream, false))]
fn cuMemcpy2DAsync_v2(copy: In<CUDA_MEMCPY2D>, stream: DefaultStream);

/// Copies a 3D range.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[through(volume(copy, stream, true))]
fn cuMemcpy3D_v2(copy: In<CUDA_MEMCPY3D>);

/// Copies a 3D range, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[host]
#[through(volume(copy, stream, false))]
fn cuMemcpy3DAsync_v2(copy: In<CUDA_MEMCPY3D>, stream: DefaultStream);

/// Copies a 3D range between two contexts.
#[since(4000)]
#[per_thread(ptds)]
#[default_stream]
#[through(peer(copy, stream, true))]
fn cuMemcpy3DPeer(copy: In<CUDA_MEMCPY3D_PEER>);

/// Copies a 3D range between two contexts, ordered by a stream.
#[since(4000)]
#[per_thread(ptsz)]
#[through(peer(copy, stream, false))]
fn cuMemcpy3DPeerAsync(copy: In<CUDA_MEMCPY3D_PEER>, stream: DefaultStream);

/// Copies host memory to the first row of an array.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[required(array)]
#[through(row(RowEnd::Array(array, offset), RowEnd::Host(source.cast_mut()), size, stream, true))]
fn cuMemcpyHtoA_v2(array: CUarray, offset: usize, source: *const c_void, size: usize);

/// Copies host memory to the first row of an array, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[required(array)]
#[through(row(RowEnd::Array(array, offset), RowEnd::Host(source.cast_mut()), size, stream, false))]
fn cuMemcpyHtoAAsync_v2(
    array: CUarray,
    offset: usize,
    source: *const c_void,
    size: usize,
    stream: DefaultStream,
);

/// Copies the first row of an array to host memory.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[required(array)]
#[through(row(RowEnd::Host(destination), RowEnd::Array(array, offset), size, stream, true))]
fn cuMemcpyAtoH_v2(destination: *mut c_void, array: CUarray, offset: usize, size: usize);

/// Copies the first row of an array to host memory, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[required(array)]
#[through(row(RowEnd::Host(destination), RowEnd::Array(array, offset), size, stream, false))]
fn cuMemcpyAtoHAsync_v2(
    destination: *mut c_void,
    array: CUarray,
    offset: usize,
    size: usize,
    stream: DefaultStream,
);

/// Copies device memory to the first row of an array.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[required(array)]
#[through(row(RowEnd::Array(array, offset), RowEnd::Device(source), size, stream, true))]
fn cuMemcpyDtoA_v2(array: CUarray, offset: usize, source: CUdeviceptr, size: usize);

/// Copies the first row of an array to device memory.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[required(array)]
#[through(row(RowEnd::Device(destination), RowEnd::Array(array, offset), size, stream, true))]
fn cuMemcpyAtoD_v2(destination: CUdeviceptr, array: CUarray, offset: usize, size: usize);

/// Copies between the first rows of two arrays.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[required(to, from)]
#[through(row(RowEnd::Array(to, to_offset), RowEnd::Array(from, from_offset), size, stream, true))]
fn cuMemcpyAtoA_v2(to: CUarray, to_offset: usize, from: CUarray, from_offset: usize, size: usize);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpy2D(copy: In<CUDA_MEMCPY2D_v1>);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpy2DAsync(copy: In<CUDA_MEMCPY2D_v1>, stream: CUstream);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpy2DUnaligned(copy: In<CUDA_MEMCPY2D_v1>);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpy3D(copy: In<CUDA_MEMCPY3D_v1>);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpy3DAsync(copy: In<CUDA_MEMCPY3D_v1>, stream: CUstream);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyAtoA(
    dst_array: CUarray,
    dst_offset: c_uint,
    src_array: CUarray,
    src_offset: c_uint,
    byte_count: c_uint,
);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyAtoD(dst_device: c_uint, src_array: CUarray, src_offset: c_uint, byte_count: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyAtoH(dst_host: *mut c_void, src_array: CUarray, src_offset: c_uint, byte_count: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyAtoHAsync(
    dst_host: *mut c_void,
    src_array: CUarray,
    src_offset: c_uint,
    byte_count: c_uint,
    stream: CUstream,
);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyDtoA(dst_array: CUarray, dst_offset: c_uint, src_device: c_uint, byte_count: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyHtoA(
    dst_array: CUarray,
    dst_offset: c_uint,
    src_host: *const c_void,
    byte_count: c_uint,
);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemcpyHtoAAsync(
    dst_array: CUarray,
    dst_offset: c_uint,
    src_host: *const c_void,
    byte_count: c_uint,
    stream: CUstream,
);
