//! Linear and two-dimensional copies (CUDA Runtime API, chapter "Memory
//! Management").

use super::fail;
use super::memory::device;
use super::runtime::{Runtime, context};
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{CUDA_MEMCPY2D, CUarray, CUstream};
use std::ffi::{c_int, c_void};
use std::ptr;

/// When a copy runs, and whether the caller waits for it.
#[derive(Clone, Copy)]
pub enum Timing {
    /// Synchronously, by the driver's synchronous function on the legacy default stream.
    Now,
    /// Synchronously, on the thread's own default stream.
    NowOn(CUstream),
    /// Asynchronously, on a stream.
    Later(CUstream),
}

/// The timing of a synchronous function, by its default stream.
pub fn now(stream: CUstream) -> Timing {
    if stream.is_null() {
        Timing::Now
    } else {
        Timing::NowOn(stream)
    }
}

/// Checks a `cudaMemcpyKind`.
///
/// # Errors
/// `cudaErrorInvalidMemcpyDirection` unless it is among `allowed`.
pub fn direction(kind: c_int, allowed: &[c_int]) -> Result {
    if allowed.contains(&kind) {
        Ok(())
    } else {
        fail(abi::cudaErrorInvalidMemcpyDirection)
    }
}

/// Every kind of copy.
pub const ANY: &[c_int] = &[
    abi::cudaMemcpyHostToHost,
    abi::cudaMemcpyHostToDevice,
    abi::cudaMemcpyDeviceToHost,
    abi::cudaMemcpyDeviceToDevice,
    abi::cudaMemcpyDefault,
];
/// Kinds that write to the device.
pub const TO_DEVICE: &[c_int] = &[
    abi::cudaMemcpyHostToDevice,
    abi::cudaMemcpyDeviceToDevice,
    abi::cudaMemcpyDefault,
];
/// Kinds that read from the device.
pub const FROM_DEVICE: &[c_int] = &[
    abi::cudaMemcpyDeviceToHost,
    abi::cudaMemcpyDeviceToDevice,
    abi::cudaMemcpyDefault,
];
/// Kinds that stay on the device.
pub const ON_DEVICE: &[c_int] = &[abi::cudaMemcpyDeviceToDevice, abi::cudaMemcpyDefault];

/// Copies consecutive bytes in the thread's context.
///
/// # Safety
/// As for [`linear`].
pub(super) unsafe fn bytes(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
    when: Timing,
) -> Result {
    // SAFETY: the caller upholds the contract of `linear`.
    unsafe { linear(context()?, to, from, size, kind, when) }
}

/// Copies between the memory of two devices: synchronously, or on a stream.
///
/// # Safety
/// As documented by CUDA for `cudaMemcpyPeer` and `cudaMemcpyPeerAsync`.
pub(super) unsafe fn peer(
    (to, to_device): (*mut c_void, c_int),
    (from, from_device): (*const c_void, c_int),
    size: usize,
    stream: Option<CUstream>,
) -> Result {
    let runtime = context()?;
    let driver = runtime.driver;
    let (to_context, from_context) = (runtime.primary(to_device)?, runtime.primary(from_device)?);
    let (to, from) = (device(to), device(from));
    match stream {
        // SAFETY: the caller upholds the contract of `cuMemcpyPeer`.
        None => unsafe { driver.cuMemcpyPeer(to, to_context, from, from_context, size) },
        // SAFETY: the caller upholds the contract of `cuMemcpyPeerAsync`.
        Some(stream) => unsafe {
            driver.cuMemcpyPeerAsync(to, to_context, from, from_context, size, stream)
        },
    }
}

/// Copies rows of memory, each end with its pitch.
///
/// # Safety
/// As for [`rows`].
pub(super) unsafe fn pitched(
    (to, to_pitch): (*mut c_void, usize),
    (from, from_pitch): (*const c_void, usize),
    extent: [usize; 2],
    kind: c_int,
    when: Timing,
) -> Result {
    let ends = (
        CopyEnd::linear(to, to_pitch),
        CopyEnd::linear(from.cast_mut(), from_pitch),
    );
    // SAFETY: the caller upholds the contract of `rows`.
    unsafe { rows(ends, extent, (kind, ANY), when) }
}

/// Copies rows of memory to an array, from byte `x` of row `y`.
///
/// # Safety
/// As for [`rows`].
pub(super) unsafe fn to_array(
    (to, x, y): (CUarray, usize, usize),
    (from, pitch): (*const c_void, usize),
    extent: [usize; 2],
    kind: c_int,
    when: Timing,
) -> Result {
    let ends = (
        CopyEnd::array(to, x, y),
        CopyEnd::linear(from.cast_mut(), pitch),
    );
    // SAFETY: the caller upholds the contract of `rows`.
    unsafe { rows(ends, extent, (kind, TO_DEVICE), when) }
}

/// Copies rows of an array, from byte `x` of row `y`, to memory.
///
/// # Safety
/// As for [`rows`].
pub(super) unsafe fn from_array(
    (to, pitch): (*mut c_void, usize),
    (from, x, y): (CUarray, usize, usize),
    extent: [usize; 2],
    kind: c_int,
    when: Timing,
) -> Result {
    let ends = (CopyEnd::linear(to, pitch), CopyEnd::array(from, x, y));
    // SAFETY: the caller upholds the contract of `rows`.
    unsafe { rows(ends, extent, (kind, FROM_DEVICE), when) }
}

pub(crate) unsafe fn cudaMemcpy2DArrayToArray(
    to: CUarray,
    to_x: usize,
    to_y: usize,
    from: CUarray,
    from_x: usize,
    from_y: usize,
    width: usize,
    height: usize,
    kind: c_int,
    stream: CUstream,
) -> Result {
    let ends = (
        CopyEnd::array(to, to_x, to_y),
        CopyEnd::array(from, from_x, from_y),
    );
    // SAFETY: the caller upholds the contract of `rows`.
    unsafe { rows(ends, [width, height], (kind, ON_DEVICE), now(stream)) }
}

/// Copies consecutive bytes.
///
/// # Safety
/// `to` and `from` have `size` bytes, on the side that `kind` says, until the
/// copy is complete (cudaMemcpy, cudaMemcpyAsync).
pub unsafe fn linear(
    runtime: &Runtime,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
    when: Timing,
) -> Result {
    if size == 0 {
        return Ok(());
    }
    direction(kind, ANY)?;
    let driver = runtime.driver;
    let stream = match when {
        Timing::Now => {
            return match kind {
                // SAFETY: the caller upholds the contract of `cuMemcpyHtoD_v2`.
                abi::cudaMemcpyHostToDevice => unsafe {
                    driver.cuMemcpyHtoD_v2(device(to), from, size)
                },
                // SAFETY: the caller upholds the contract of `cuMemcpyDtoH_v2`.
                abi::cudaMemcpyDeviceToHost => unsafe {
                    driver.cuMemcpyDtoH_v2(to, device(from), size)
                },
                abi::cudaMemcpyDeviceToDevice => {
                    // SAFETY: the caller upholds the contract of `cuMemcpyDtoD_v2`.
                    unsafe { driver.cuMemcpyDtoD_v2(device(to), device(from), size) }
                }
                // SAFETY: the caller upholds the contract of `cuMemcpy`.
                _ => unsafe { driver.cuMemcpy(device(to), device(from), size) },
            };
        }
        Timing::NowOn(stream) | Timing::Later(stream) => stream,
    };
    match kind {
        // SAFETY: the caller upholds the contract of `cuMemcpyHtoDAsync_v2`.
        abi::cudaMemcpyHostToDevice => unsafe {
            driver.cuMemcpyHtoDAsync_v2(device(to), from, size, stream)
        },
        // SAFETY: the caller upholds the contract of `cuMemcpyDtoHAsync_v2`.
        abi::cudaMemcpyDeviceToHost => unsafe {
            driver.cuMemcpyDtoHAsync_v2(to, device(from), size, stream)
        },
        abi::cudaMemcpyDeviceToDevice => {
            // SAFETY: the caller upholds the contract of `cuMemcpyDtoDAsync_v2`.
            unsafe { driver.cuMemcpyDtoDAsync_v2(device(to), device(from), size, stream) }
        }
        // SAFETY: the caller upholds the contract of `cuMemcpyAsync`.
        _ => unsafe { driver.cuMemcpyAsync(device(to), device(from), size, stream) },
    }?;
    // SAFETY: the caller upholds the contract of `finish`.
    unsafe { finish(runtime, kind, when) }
}

/// Waits for a copy on a stream, if the caller must wait. As CUDA documents, copies
/// within the device are not waited for.
///
/// # Safety
/// The stream of `when` is live.
pub unsafe fn finish(runtime: &Runtime, kind: c_int, when: Timing) -> Result {
    match when {
        Timing::NowOn(stream) if kind != abi::cudaMemcpyDeviceToDevice => {
            // SAFETY: the caller upholds the contract of `cuStreamSynchronize`.
            unsafe { runtime.driver.cuStreamSynchronize(stream) }
        }
        _ => Ok(()),
    }
}

/// One end of a two-dimensional copy.
#[derive(Clone, Copy)]
pub struct CopyEnd {
    /// The array, or null for linear memory.
    pub array: CUarray,
    /// The linear memory, or null for an array.
    pub memory: *mut c_void,
    /// Bytes from one row to the next of linear memory.
    pub pitch: usize,
    /// First byte of a row.
    pub x: usize,
    /// First row.
    pub y: usize,
}

impl CopyEnd {
    /// Linear memory.
    pub fn linear(memory: *mut c_void, pitch: usize) -> Self {
        Self {
            array: ptr::null_mut(),
            memory,
            pitch,
            x: 0,
            y: 0,
        }
    }

    /// An array, from byte `x` of row `y`.
    pub fn array(array: CUarray, x: usize, y: usize) -> Self {
        Self {
            array,
            memory: ptr::null_mut(),
            pitch: 0,
            x,
            y,
        }
    }
}

/// The driver's memory types of the two ends: destination, source.
pub fn memory_types(kind: c_int) -> (c_int, c_int) {
    use paragpu_abi::{CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED};
    match kind {
        abi::cudaMemcpyHostToHost => (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST),
        abi::cudaMemcpyHostToDevice => (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST),
        abi::cudaMemcpyDeviceToHost => (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE),
        abi::cudaMemcpyDeviceToDevice => (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE),
        _ => (CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED),
    }
}

/// Copies a two-dimensional range, `width` bytes wide, if its kind is allowed.
///
/// # Safety
/// Both ends have `height` rows of `width` bytes, on the side that `kind` says,
/// until the copy is complete (cudaMemcpy2D).
pub unsafe fn rows(
    (to, from): (CopyEnd, CopyEnd),
    [width, height]: [usize; 2],
    (kind, allowed): (c_int, &[c_int]),
    when: Timing,
) -> Result {
    let runtime = context()?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    for end in [&to, &from] {
        if height > 1 && !end.memory.is_null() && width > end.pitch {
            return fail(abi::cudaErrorInvalidPitchValue);
        }
    }
    direction(kind, allowed)?;
    let (to_type, from_type) = memory_types(kind);
    let array = abi::CU_MEMORYTYPE_ARRAY;
    let to_type = if to.array.is_null() { to_type } else { array };
    let from_type = if from.array.is_null() {
        from_type
    } else {
        array
    };
    let copy = CUDA_MEMCPY2D {
        srcXInBytes: from.x,
        srcY: from.y,
        srcMemoryType: from_type.unsigned_abs(),
        srcHost: from.memory,
        srcDevice: device(from.memory),
        srcArray: from.array,
        srcPitch: from.pitch,
        dstXInBytes: to.x,
        dstY: to.y,
        dstMemoryType: to_type.unsigned_abs(),
        dstHost: to.memory,
        dstDevice: device(to.memory),
        dstArray: to.array,
        dstPitch: to.pitch,
        WidthInBytes: width,
        Height: height,
    };
    match when {
        // SAFETY: the caller upholds the contract of `cuMemcpy2DUnaligned_v2`.
        Timing::Now => unsafe { runtime.driver.cuMemcpy2DUnaligned_v2(&copy) },
        Timing::NowOn(stream) | Timing::Later(stream) => {
            // SAFETY: the caller upholds the contracts of `cuMemcpy2DAsync_v2` and `finish`.
            unsafe {
                runtime.driver.cuMemcpy2DAsync_v2(&copy, stream)?;
                finish(runtime, kind, when)
            }
        }
    }
}
