//! Memsets (CUDA Driver API, Memory Management). They return before device memory
//! is set, as CUDA's do; those without a stream wait where the host reads the
//! memory as well ("API synchronization behavior").

use std::ffi::{c_uchar, c_uint, c_ushort};

use paragpu_abi::{CUdeviceptr, CUstream};

use super::{Result, host};
use crate::{managed, named_stream};

fn set(
    destination: u64,
    pitch: usize,
    value: u32,
    element: u8,
    [width, height]: [usize; 2],
    stream: CUstream,
) -> Result {
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    session.copies().memset(
        destination,
        pitch as u64,
        value,
        element,
        width as u64,
        height as u64,
        stream,
    )
}

/// As [`set`], and waits where the host reads the memory.
fn set_in_order(
    destination: u64,
    pitch: usize,
    value: u32,
    element: u8,
    extent: [usize; 2],
    stream: CUstream,
) -> Result {
    set(destination, pitch, value, element, extent, stream)?;
    if host::pinned(destination).is_none() && !managed::contains(destination) {
        return Ok(());
    }
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    match stream.is_capturing() {
        true => Ok(()),
        false => session.streams().synchronize(stream),
    }
}

pub(crate) fn cuMemsetD8_v2(
    to: CUdeviceptr,
    value: c_uchar,
    count: usize,
    stream: CUstream,
) -> Result {
    set_in_order(to, 0, value.into(), 1, [count, 1], stream)
}

pub(crate) fn cuMemsetD16_v2(
    to: CUdeviceptr,
    value: c_ushort,
    count: usize,
    stream: CUstream,
) -> Result {
    set_in_order(to, 0, value.into(), 2, [count, 1], stream)
}

pub(crate) fn cuMemsetD32_v2(
    to: CUdeviceptr,
    value: c_uint,
    count: usize,
    stream: CUstream,
) -> Result {
    set_in_order(to, 0, value, 4, [count, 1], stream)
}

pub(crate) fn cuMemsetD8Async(
    to: CUdeviceptr,
    value: c_uchar,
    count: usize,
    stream: CUstream,
) -> Result {
    set(to, 0, value.into(), 1, [count, 1], stream)
}

pub(crate) fn cuMemsetD16Async(
    to: CUdeviceptr,
    value: c_ushort,
    count: usize,
    stream: CUstream,
) -> Result {
    set(to, 0, value.into(), 2, [count, 1], stream)
}

pub(crate) fn cuMemsetD32Async(
    to: CUdeviceptr,
    value: c_uint,
    count: usize,
    stream: CUstream,
) -> Result {
    set(to, 0, value, 4, [count, 1], stream)
}

pub(crate) fn cuMemsetD2D8_v2(
    to: CUdeviceptr,
    pitch: usize,
    value: c_uchar,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result {
    set_in_order(to, pitch, value.into(), 1, [width, height], stream)
}

pub(crate) fn cuMemsetD2D16_v2(
    to: CUdeviceptr,
    pitch: usize,
    value: c_ushort,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result {
    set_in_order(to, pitch, value.into(), 2, [width, height], stream)
}

pub(crate) fn cuMemsetD2D32_v2(
    to: CUdeviceptr,
    pitch: usize,
    value: c_uint,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result {
    set_in_order(to, pitch, value, 4, [width, height], stream)
}

pub(crate) fn cuMemsetD2D8Async(
    to: CUdeviceptr,
    pitch: usize,
    value: c_uchar,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result {
    set(to, pitch, value.into(), 1, [width, height], stream)
}

pub(crate) fn cuMemsetD2D16Async(
    to: CUdeviceptr,
    pitch: usize,
    value: c_ushort,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result {
    set(to, pitch, value.into(), 2, [width, height], stream)
}

pub(crate) fn cuMemsetD2D32Async(
    to: CUdeviceptr,
    pitch: usize,
    value: c_uint,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result {
    set(to, pitch, value, 4, [width, height], stream)
}
