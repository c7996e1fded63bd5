//! Memsets (CUDA Driver API, Memory Management). All return before the memory
//! is set, as CUDA's do for device memory.

/// Sets bytes.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[through(set_in_order(to, 0, value.into(), 1, [count, 1], stream))]
fn cuMemsetD8_v2(to: CUdeviceptr, value: c_uchar, count: usize);

/// Sets 16-bit elements.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[through(set_in_order(to, 0, value.into(), 2, [count, 1], stream))]
fn cuMemsetD16_v2(to: CUdeviceptr, value: c_ushort, count: usize);

/// Sets 32-bit elements.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[through(set_in_order(to, 0, value, 4, [count, 1], stream))]
fn cuMemsetD32_v2(to: CUdeviceptr, value: c_uint, count: usize);

/// Sets bytes, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[host]
#[through(set(to, 0, value.into(), 1, [count, 1], stream))]
fn cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, count: usize, stream: DefaultStream);

/// Sets 16-bit elements, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[host]
#[through(set(to, 0, value.into(), 2, [count, 1], stream))]
fn cuMemsetD16Async(to: CUdeviceptr, value: c_ushort, count: usize, stream: DefaultStream);

/// Sets 32-bit elements, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[host]
#[through(set(to, 0, value, 4, [count, 1], stream))]
fn cuMemsetD32Async(to: CUdeviceptr, value: c_uint, count: usize, stream: DefaultStream);

/// Sets a 2D range of bytes.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[through(set_in_order(to, pitch, value.into(), 1, [width, height], stream))]
fn cuMemsetD2D8_v2(to: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize);

/// Sets a 2D range of 16-bit elements.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[through(set_in_order(to, pitch, value.into(), 2, [width, height], stream))]
fn cuMemsetD2D16_v2(to: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize);

/// Sets a 2D range of 32-bit elements.
#[since(3020)]
#[per_thread(ptds)]
#[default_stream]
#[through(set_in_order(to, pitch, value, 4, [width, height], stream))]
fn cuMemsetD2D32_v2(to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize);

/// Sets a 2D range of bytes, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[host]
#[through(set(to, pitch, value.into(), 1, [width, height], stream))]
fn cuMemsetD2D8Async(
    to: CUdeviceptr,
    pitch: usize,
    value: c_uchar,
    width: usize,
    height: usize,
    stream: DefaultStream,
);

/// Sets a 2D range of 16-bit elements, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[host]
#[through(set(to, pitch, value.into(), 2, [width, height], stream))]
fn cuMemsetD2D16Async(
    to: CUdeviceptr,
    pitch: usize,
    value: c_ushort,
    width: usize,
    height: usize,
    stream: DefaultStream,
);

/// Sets a 2D range of 32-bit elements, ordered by a stream.
#[since(3020)]
#[per_thread(ptsz)]
#[host]
#[through(set(to, pitch, value, 4, [width, height], stream))]
fn cuMemsetD2D32Async(
    to: CUdeviceptr,
    pitch: usize,
    value: c_uint,
    width: usize,
    height: usize,
    stream: DefaultStream,
);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemsetD16(dst_device: c_uint, us: u16, n: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemsetD2D16(dst_device: c_uint, dst_pitch: c_uint, us: u16, width: c_uint, height: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemsetD2D32(dst_device: c_uint, dst_pitch: c_uint, ui: c_uint, width: c_uint, height: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemsetD2D8(dst_device: c_uint, dst_pitch: c_uint, uc: u8, width: c_uint, height: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemsetD32(dst_device: c_uint, ui: c_uint, n: c_uint);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuMemsetD8(dst_device: c_uint, uc: u8, n: c_uint);
