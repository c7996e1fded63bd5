//! Memsets (CUDA Driver API, Memory Management). All return before the memory
//! is set, as CUDA's do for device memory.

use std::ffi::{c_uchar, c_uint, c_ushort};

use paragpu_abi::{CUdeviceptr, CUstream};

use super::{Result, stream};

fn set(
    destination: u64,
    pitch: usize,
    value: u32,
    element: u8,
    [width, height]: [usize; 2],
    stream: CUstream,
) -> Result {
    let named = stream::named(stream)?;
    let (session, stream) = named.both()?;
    session.memset(
        destination,
        pitch as u64,
        value,
        element,
        width as u64,
        height as u64,
        stream,
    )
}

api! {
    /// Bytes.
    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds(to: CUdeviceptr, value: c_uchar, count: usize) sync stream {
        set(to, 0, value.into(), 1, [count, 1], stream)
    }
    /// 16-bit elements.
    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds(to: CUdeviceptr, value: c_ushort, count: usize) sync stream {
        set(to, 0, value.into(), 2, [count, 1], stream)
    }
    /// 32-bit elements.
    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds(to: CUdeviceptr, value: c_uint, count: usize) sync stream {
        set(to, 0, value, 4, [count, 1], stream)
    }
    /// Bytes, in order.
    fn cuMemsetD8Async | cuMemsetD8Async_ptsz(
        to: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream,
    ) on stream {
        set(to, 0, value.into(), 1, [count, 1], stream)
    }
    /// 16-bit elements, in order.
    fn cuMemsetD16Async | cuMemsetD16Async_ptsz(
        to: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream,
    ) on stream {
        set(to, 0, value.into(), 2, [count, 1], stream)
    }
    /// 32-bit elements, in order.
    fn cuMemsetD32Async | cuMemsetD32Async_ptsz(
        to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream,
    ) on stream {
        set(to, 0, value, 4, [count, 1], stream)
    }
    /// Rows of bytes.
    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(
        to: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize,
    ) sync stream {
        set(to, pitch, value.into(), 1, [width, height], stream)
    }
    /// Rows of 16-bit elements.
    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds(
        to: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize,
    ) sync stream {
        set(to, pitch, value.into(), 2, [width, height], stream)
    }
    /// Rows of 32-bit elements.
    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(
        to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize,
    ) sync stream {
        set(to, pitch, value, 4, [width, height], stream)
    }
    /// Rows of bytes, in order.
    fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz(
        to: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize,
        stream: CUstream,
    ) on stream {
        set(to, pitch, value.into(), 1, [width, height], stream)
    }
    /// Rows of 16-bit elements, in order.
    fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz(
        to: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize,
        stream: CUstream,
    ) on stream {
        set(to, pitch, value.into(), 2, [width, height], stream)
    }
    /// Rows of 32-bit elements, in order.
    fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz(
        to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize,
        stream: CUstream,
    ) on stream {
        set(to, pitch, value, 4, [width, height], stream)
    }
}
