//! Memsets (CUDA Runtime API, chapter "Memory Management"). No memset on a stream is waited for.

use super::copy::Timing;
use super::fail;
use super::memory::device;
use super::runtime::context;
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{CUdeviceptr, cudaExtent, cudaPitchedPtr};
use std::ffi::{c_int, c_void};

/// The low byte, as C's memset uses it.
fn byte(value: c_int) -> u8 {
    value.to_le_bytes()[0]
}

/// Sets consecutive bytes.
///
/// # Safety
/// `address` is device memory of `size` bytes (cudaMemset); the stream of `when` is live.
pub(super) unsafe fn bytes(
    address: *mut c_void,
    value: c_int,
    size: usize,
    when: Timing,
) -> Result {
    let driver = context()?.driver;
    if size == 0 {
        return Ok(());
    }
    let (address, value) = (device(address), byte(value));
    match when {
        // SAFETY: the caller upholds the contract of `cuMemsetD8_v2`.
        Timing::Now => unsafe { driver.cuMemsetD8_v2(address, value, size) },
        // SAFETY: the caller upholds the contract of `cuMemsetD8Async`.
        Timing::NowOn(stream) | Timing::Later(stream) => unsafe {
            driver.cuMemsetD8Async(address, value, size, stream)
        },
    }
}

/// Sets rows of bytes.
///
/// # Safety
/// `address` is device memory of `height` rows of `width` bytes, `pitch` apart
/// (cudaMemset2D); the stream of `when` is live.
pub(super) unsafe fn rows(
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
        Timing::NowOn(stream) | Timing::Later(stream) => {
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
pub(super) unsafe fn slices(
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
