//! Memsets (CUDA Runtime API, chapter "Memory Management").

use super::fail;
use super::memory::device;
use super::runtime::context;
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{CUdeviceptr, CUstream, cudaExtent, cudaPitchedPtr};
use std::ffi::{c_int, c_void};

/// # Safety
/// As documented by CUDA for `cudaMemset`.
pub(crate) unsafe fn cudaMemset(
    address: *mut c_void,
    value: c_int,
    size: usize,
    stream: CUstream,
) -> Result {
    let runtime = context()?;
    if size == 0 {
        return Ok(());
    }
    // The driver's default stream is the legacy one.
    if stream.is_null() {
        // SAFETY: the caller upholds the contract of `cuMemsetD8_v2`.
        unsafe {
            runtime
                .driver
                .cuMemsetD8_v2(device(address), byte(value), size)
        }
    } else {
        // SAFETY: the caller upholds the contract of `cuMemsetD8Async`.
        unsafe {
            runtime
                .driver
                .cuMemsetD8Async(device(address), byte(value), size, stream)
        }
    }
}

/// # Safety
/// As documented by CUDA for `cudaMemsetAsync`.
pub(crate) unsafe fn cudaMemsetAsync(
    address: *mut c_void,
    value: c_int,
    size: usize,
    stream: CUstream,
) -> Result {
    let runtime = context()?;
    if size == 0 {
        return Ok(());
    }
    // SAFETY: the caller upholds the contract of `cuMemsetD8Async`.
    unsafe {
        runtime
            .driver
            .cuMemsetD8Async(device(address), byte(value), size, stream)
    }
}

/// # Safety
/// As documented by CUDA for `cudaMemset2D`.
pub(crate) unsafe fn cudaMemset2D(
    address: *mut c_void,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result {
    let when = if stream.is_null() {
        Timing::Now
    } else {
        Timing::On(stream)
    };
    // SAFETY: the caller upholds the contract of `rows`.
    unsafe { rows(device(address), pitch, value, width, height, when) }
}

/// # Safety
/// As documented by CUDA for `cudaMemset2DAsync`.
pub(crate) unsafe fn cudaMemset2DAsync(
    address: *mut c_void,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result {
    // SAFETY: the caller upholds the contract of `rows`.
    unsafe {
        rows(
            device(address),
            pitch,
            value,
            width,
            height,
            Timing::On(stream),
        )
    }
}

/// # Safety
/// As documented by CUDA for `cudaMemset3D`.
pub(crate) unsafe fn cudaMemset3D(
    place: cudaPitchedPtr,
    value: c_int,
    extent: cudaExtent,
    stream: CUstream,
) -> Result {
    let when = if stream.is_null() {
        Timing::Now
    } else {
        Timing::On(stream)
    };
    // SAFETY: the caller upholds the contract of `slices`.
    unsafe { slices(&place, value, &extent, when) }
}

/// # Safety
/// As documented by CUDA for `cudaMemset3DAsync`.
pub(crate) unsafe fn cudaMemset3DAsync(
    place: cudaPitchedPtr,
    value: c_int,
    extent: cudaExtent,
    stream: CUstream,
) -> Result {
    // SAFETY: the caller upholds the contract of `slices`.
    unsafe { slices(&place, value, &extent, Timing::On(stream)) }
}

/// When a memset runs: synchronously, or on a stream.
#[derive(Clone, Copy)]
enum Timing {
    Now,
    On(CUstream),
}

/// The low byte, as C's memset uses it.
fn byte(value: c_int) -> u8 {
    value.to_le_bytes()[0]
}

/// Sets rows of bytes.
///
/// # Safety
/// `address` is device memory of `height` rows of `width` bytes, `pitch` apart
/// (cudaMemset2D); the stream of `when` is live.
unsafe fn rows(
    address: CUdeviceptr,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    when: Timing,
) -> Result {
    let driver = context()?.driver;
    if width == 0 || height == 0 {
        return Ok(());
    }
    if height > 1 && width > pitch {
        return fail(abi::cudaErrorInvalidValue);
    }
    let pitch = pitch.max(width);
    match when {
        // SAFETY: the caller upholds the contract of `cuMemsetD2D8_v2`.
        Timing::Now => unsafe {
            driver.cuMemsetD2D8_v2(address, pitch, byte(value), width, height)
        },
        Timing::On(stream) => {
            // SAFETY: the caller upholds the contract of `cuMemsetD2D8Async`.
            unsafe { driver.cuMemsetD2D8Async(address, pitch, byte(value), width, height, stream) }
        }
    }
}

/// Rows of one slice: those of the allocation, if it has a height.
fn height_of(place: &cudaPitchedPtr, extent: &cudaExtent) -> usize {
    if place.ysize == 0 {
        extent.height
    } else {
        place.ysize
    }
}

/// Sets slices. Complete slices are contiguous, so one 2D memset suffices.
///
/// # Safety
/// `place` is device memory of `extent` (cudaMemset3D); the stream of `when` is
/// live.
unsafe fn slices(
    place: &cudaPitchedPtr,
    value: c_int,
    extent: &cudaExtent,
    when: Timing,
) -> Result {
    let invalid = || fail(abi::cudaErrorInvalidValue);
    let slice = height_of(place, extent);
    let start = device(place.ptr);
    if slice == extent.height || extent.depth <= 1 {
        let Some(height) = extent.height.checked_mul(extent.depth) else {
            return invalid();
        };
        // SAFETY: the caller upholds the contract of `rows`.
        return unsafe { rows(start, place.pitch, value, extent.width, height, when) };
    }
    for index in 0..extent.depth {
        let Some(offset) = slice
            .checked_mul(place.pitch)
            .and_then(|bytes| bytes.checked_mul(index))
        else {
            return invalid();
        };
        let address = start.wrapping_add(offset as CUdeviceptr);
        // SAFETY: the caller upholds the contract of `rows`.
        unsafe {
            rows(
                address,
                place.pitch,
                value,
                extent.width,
                extent.height,
                when,
            )
        }?;
    }
    Ok(())
}
