//! Memsets (CUDA Runtime API, chapter "Memory Management").

use super::fail;
use super::memory::device;
use super::runtime::context;
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{CUdeviceptr, CUstream, cudaExtent, cudaPitchedPtr};
use std::ffi::{c_int, c_void};

/// # Safety
/// As CUDA's manual says for cudaMemset.
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
        // SAFETY: `cuMemsetD8_v2` asks for what the caller promises.
        unsafe {
            runtime
                .driver
                .cuMemsetD8_v2(device(address), byte(value), size)
        }
    } else {
        // SAFETY: `cuMemsetD8Async` asks for what the caller promises.
        unsafe {
            runtime
                .driver
                .cuMemsetD8Async(device(address), byte(value), size, stream)
        }
    }
}

/// # Safety
/// As CUDA's manual says for cudaMemsetAsync.
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
    // SAFETY: `cuMemsetD8Async` asks for what the caller promises.
    unsafe {
        runtime
            .driver
            .cuMemsetD8Async(device(address), byte(value), size, stream)
    }
}

/// # Safety
/// As CUDA's manual says for cudaMemset2D.
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
    // SAFETY: the caller promises what `rows` asks for.
    unsafe { rows(device(address), pitch, value, width, height, when) }
}

/// # Safety
/// As CUDA's manual says for cudaMemset2DAsync.
pub(crate) unsafe fn cudaMemset2DAsync(
    address: *mut c_void,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Result {
    // SAFETY: the caller promises what `rows` asks for.
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
/// As CUDA's manual says for cudaMemset3D.
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
    // SAFETY: the caller promises what `slices` asks for.
    unsafe { slices(&place, value, &extent, when) }
}

/// # Safety
/// As CUDA's manual says for cudaMemset3DAsync.
pub(crate) unsafe fn cudaMemset3DAsync(
    place: cudaPitchedPtr,
    value: c_int,
    extent: cudaExtent,
    stream: CUstream,
) -> Result {
    // SAFETY: the caller promises what `slices` asks for.
    unsafe { slices(&place, value, &extent, Timing::On(stream)) }
}

/// By the driver's synchronous function, or on a stream.
#[derive(Clone, Copy)]
enum Timing {
    Now,
    On(CUstream),
}

/// C's memset takes the low byte.
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
        // SAFETY: `cuMemsetD2D8_v2` asks for what the caller promises.
        Timing::Now => unsafe {
            driver.cuMemsetD2D8_v2(address, pitch, byte(value), width, height)
        },
        Timing::On(stream) => {
            // SAFETY: `cuMemsetD2D8Async` asks for what the caller promises.
            unsafe { driver.cuMemsetD2D8Async(address, pitch, byte(value), width, height, stream) }
        }
    }
}

/// Rows of one slice: those the allocation has, if it says.
fn height_of(place: &cudaPitchedPtr, extent: &cudaExtent) -> usize {
    if place.ysize == 0 {
        extent.height
    } else {
        place.ysize
    }
}

/// Full slices lie one after the other, so that one 2D memset does them.
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
        // SAFETY: the caller promises what `rows` asks for.
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
        // SAFETY: the caller promises what `rows` asks for.
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
