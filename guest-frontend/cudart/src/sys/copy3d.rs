//! Three-dimensional copies, and copies of consecutive array elements (CUDA
//! Runtime API, chapter "Memory Management").

use super::array::{descriptor, element_bytes};
use super::copy::{
    ANY, CopyEnd, FROM_DEVICE, ON_DEVICE, TO_DEVICE, Timing, direction, finish, memory_types, now,
    rows,
};
use super::memory::device;
use super::runtime::{Runtime, context};
use super::{fail, present, zeroed};
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{
    CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUarray, CUstream, cudaExtent, cudaMemcpy3DParms,
    cudaMemcpy3DPeerParms, cudaPitchedPtr,
};
use std::ffi::{c_int, c_void};

/// Copies consecutive elements to an array, from byte `x` of row `y`.
///
/// # Safety
/// As for [`run`].
pub(super) unsafe fn to_array(
    (to, x, y): (CUarray, usize, usize),
    from: *const c_void,
    size: usize,
    kind: c_int,
    when: Timing,
) -> Result {
    let (to, from) = (
        LinearEnd::Array(to, x, y),
        LinearEnd::Memory(from.cast_mut()),
    );
    // SAFETY: the caller upholds the contract of `run`.
    unsafe { run(to, from, size, (kind, TO_DEVICE), when) }
}

/// Copies consecutive elements of an array, from byte `x` of row `y`.
///
/// # Safety
/// As for [`run`].
pub(super) unsafe fn from_array(
    to: *mut c_void,
    (from, x, y): (CUarray, usize, usize),
    size: usize,
    kind: c_int,
    when: Timing,
) -> Result {
    let (to, from) = (LinearEnd::Memory(to), LinearEnd::Array(from, x, y));
    // SAFETY: the caller upholds the contract of `run`.
    unsafe { run(to, from, size, (kind, FROM_DEVICE), when) }
}

pub(crate) unsafe fn cudaMemcpyArrayToArray(
    to: CUarray,
    to_x: usize,
    to_y: usize,
    from: CUarray,
    from_x: usize,
    from_y: usize,
    size: usize,
    kind: c_int,
    stream: CUstream,
) -> Result {
    let (to, from) = (
        LinearEnd::Array(to, to_x, to_y),
        LinearEnd::Array(from, from_x, from_y),
    );
    // SAFETY: the caller upholds the contract of `run`.
    unsafe { run(to, from, size, (kind, ON_DEVICE), now(stream)) }
}

/// Whether there is nothing to copy.
fn is_empty(extent: &cudaExtent) -> bool {
    extent.width == 0 || extent.height == 0 || extent.depth == 0
}

/// Copies a three-dimensional range.
///
/// # Safety
/// `parameters` is null or readable; its arrays and memory are there until the copy is
/// complete (cudaMemcpy3D); the stream of `when` is live.
pub(super) unsafe fn volume(parameters: *const cudaMemcpy3DParms, when: Timing) -> Result {
    present(parameters)?;
    let runtime = context()?;
    // SAFETY: `parameters` is valid, as the caller promises.
    let parameters = unsafe { &*parameters };
    if is_empty(&parameters.extent) {
        return Ok(());
    }
    // SAFETY: the caller upholds the contract of `driver_copy`.
    let copy = unsafe { driver_copy(runtime, parameters) }?;
    match when {
        // SAFETY: the caller upholds the contract of `cuMemcpy3D_v2`.
        Timing::Now => unsafe { runtime.driver.cuMemcpy3D_v2(&copy) },
        Timing::NowOn(stream) | Timing::Later(stream) => {
            // SAFETY: the caller upholds the contracts of `cuMemcpy3DAsync_v2` and `finish`.
            unsafe {
                runtime.driver.cuMemcpy3DAsync_v2(&copy, stream)?;
                finish(runtime, parameters.kind, when)
            }
        }
    }
}

/// Copies a three-dimensional range between two devices.
///
/// # Safety
/// As for [`volume`] (cudaMemcpy3DPeer).
pub(super) unsafe fn peer(parameters: *const cudaMemcpy3DPeerParms, when: Timing) -> Result {
    present(parameters)?;
    let runtime = context()?;
    // SAFETY: `parameters` is valid, as the caller promises.
    let parameters = unsafe { &*parameters };
    if is_empty(&parameters.extent) {
        return Ok(());
    }
    // SAFETY: the caller upholds the contract of `peer_copy`.
    let copy = unsafe { peer_copy(runtime, parameters) }?;
    match when {
        // SAFETY: the caller upholds the contract of `cuMemcpy3DPeer`.
        Timing::Now => unsafe { runtime.driver.cuMemcpy3DPeer(&copy) },
        // SAFETY: `cuMemcpy3DPeerAsync` and `cuStreamSynchronize` ask for what the caller promises.
        Timing::NowOn(stream) => unsafe {
            runtime.driver.cuMemcpy3DPeerAsync(&copy, stream)?;
            runtime.driver.cuStreamSynchronize(stream)
        },
        // SAFETY: the caller upholds the contract of `cuMemcpy3DPeerAsync`.
        Timing::Later(stream) => unsafe { runtime.driver.cuMemcpy3DPeerAsync(&copy, stream) },
    }
}

/// Bytes of an element of the copy's extent and positions: an array's, else 1. If one end
/// is an array, its elements count positions in the other's memory, too, as natively (CUDA's
/// manual has bytes there). Either end is an array or memory, not both.
///
/// # Safety
/// The arrays are null or live.
unsafe fn unit(
    runtime: &Runtime,
    from: (CUarray, &cudaPitchedPtr),
    to: (CUarray, &cudaPitchedPtr),
) -> Result<usize> {
    let mut unit = None;
    for (array, memory) in [from, to] {
        if array.is_null() == memory.ptr.is_null() {
            return fail(abi::cudaErrorInvalidValue);
        }
        if !array.is_null() {
            // SAFETY: the caller upholds the contract of `element_bytes`.
            let bytes = unsafe { element_bytes(runtime, array) }?;
            if unit.is_some_and(|other| other != bytes) {
                return fail(abi::cudaErrorInvalidValue);
            }
            unit = Some(bytes);
        }
    }
    Ok(unit.unwrap_or(1))
}

/// The driver's form of a runtime 3D copy.
///
/// # Safety
/// The arrays of `p` are null or live.
pub unsafe fn driver_copy(runtime: &Runtime, p: &cudaMemcpy3DParms) -> Result<CUDA_MEMCPY3D> {
    direction(p.kind, ANY)?;
    // SAFETY: the caller upholds the contract of `unit`.
    let unit = unsafe { unit(runtime, (p.srcArray, &p.srcPtr), (p.dstArray, &p.dstPtr)) }?;
    // An array is on the device.
    if !p.dstArray.is_null() && !TO_DEVICE.contains(&p.kind)
        || !p.srcArray.is_null() && !FROM_DEVICE.contains(&p.kind)
    {
        return fail(abi::cudaErrorInvalidValue);
    }
    let width = p.extent.width.saturating_mul(unit);
    for memory in [&p.srcPtr, &p.dstPtr] {
        let has_rows = p.extent.height > 1 || p.extent.depth > 1;
        if has_rows && !memory.ptr.is_null() && memory.pitch != 0 && memory.pitch < width {
            return fail(abi::cudaErrorInvalidPitchValue);
        }
    }
    let (to_type, from_type) = memory_types(p.kind);
    let kind = |array: CUarray, memory: c_int| {
        if array.is_null() {
            memory.unsigned_abs()
        } else {
            abi::CU_MEMORYTYPE_ARRAY.unsigned_abs()
        }
    };
    Ok(CUDA_MEMCPY3D {
        srcXInBytes: p.srcPos.x.saturating_mul(unit),
        srcY: p.srcPos.y,
        srcZ: p.srcPos.z,
        srcMemoryType: kind(p.srcArray, from_type),
        srcHost: p.srcPtr.ptr,
        srcDevice: device(p.srcPtr.ptr),
        srcArray: p.srcArray,
        srcPitch: p.srcPtr.pitch,
        srcHeight: p.srcPtr.ysize,
        dstXInBytes: p.dstPos.x.saturating_mul(unit),
        dstY: p.dstPos.y,
        dstZ: p.dstPos.z,
        dstMemoryType: kind(p.dstArray, to_type),
        dstHost: p.dstPtr.ptr,
        dstDevice: device(p.dstPtr.ptr),
        dstArray: p.dstArray,
        dstPitch: p.dstPtr.pitch,
        dstHeight: p.dstPtr.ysize,
        WidthInBytes: p.extent.width.saturating_mul(unit),
        Height: p.extent.height,
        Depth: p.extent.depth,
        // SAFETY: the record has integers, pointers and optional functions.
        ..unsafe { zeroed() }
    })
}

/// The driver's form of a 3D copy between devices.
///
/// # Safety
/// The arrays of `p` are null or live.
unsafe fn peer_copy(runtime: &Runtime, p: &cudaMemcpy3DPeerParms) -> Result<CUDA_MEMCPY3D_PEER> {
    // SAFETY: the caller upholds the contract of `unit`.
    let unit = unsafe { unit(runtime, (p.srcArray, &p.srcPtr), (p.dstArray, &p.dstPtr)) }?;
    let kind = |array: CUarray| {
        if array.is_null() {
            abi::CU_MEMORYTYPE_UNIFIED.unsigned_abs()
        } else {
            abi::CU_MEMORYTYPE_ARRAY.unsigned_abs()
        }
    };
    Ok(CUDA_MEMCPY3D_PEER {
        srcXInBytes: p.srcPos.x.saturating_mul(unit),
        srcY: p.srcPos.y,
        srcZ: p.srcPos.z,
        srcMemoryType: kind(p.srcArray),
        srcDevice: device(p.srcPtr.ptr),
        srcArray: p.srcArray,
        srcContext: runtime.primary(p.srcDevice)?,
        srcPitch: p.srcPtr.pitch,
        srcHeight: p.srcPtr.ysize,
        dstXInBytes: p.dstPos.x.saturating_mul(unit),
        dstY: p.dstPos.y,
        dstZ: p.dstPos.z,
        dstMemoryType: kind(p.dstArray),
        dstDevice: device(p.dstPtr.ptr),
        dstArray: p.dstArray,
        dstContext: runtime.primary(p.dstDevice)?,
        dstPitch: p.dstPtr.pitch,
        dstHeight: p.dstPtr.ysize,
        WidthInBytes: p.extent.width.saturating_mul(unit),
        Height: p.extent.height,
        Depth: p.extent.depth,
        // SAFETY: the record has integers, pointers and optional functions.
        ..unsafe { zeroed() }
    })
}

/// One end of a copy of consecutive elements: memory, or an array from a byte
/// of a row, continuing with the next row.
#[derive(Clone, Copy)]
enum LinearEnd {
    Memory(*mut c_void),
    Array(CUarray, usize, usize),
}

/// A position in one end of a copy.
struct Walk {
    place: LinearEnd,
    /// Bytes of a row; memory has one endless row.
    width: usize,
    done: usize,
}

impl Walk {
    /// Starts at the beginning of an end.
    ///
    /// # Safety
    /// An array of `place` is live.
    unsafe fn new(runtime: &Runtime, place: LinearEnd) -> Result<Self> {
        let width = match place {
            LinearEnd::Memory(_) => usize::MAX,
            LinearEnd::Array(array, x, _) => {
                // SAFETY: the caller upholds the contract of `descriptor`.
                let descriptor = unsafe { descriptor(runtime, array) }?;
                let width = descriptor
                    .Width
                    // SAFETY: the caller upholds the contract of `element_bytes`.
                    .saturating_mul(unsafe { element_bytes(runtime, array) }?);
                if x >= width {
                    return fail(abi::cudaErrorInvalidValue);
                }
                width
            }
        };
        Ok(Self {
            place,
            width,
            done: 0,
        })
    }

    /// The position of the next byte, and the number of bytes left in its row.
    fn next(&self) -> (CopyEnd, usize) {
        match self.place {
            LinearEnd::Memory(memory) => (
                CopyEnd::linear(memory.wrapping_byte_add(self.done), usize::MAX),
                usize::MAX,
            ),
            LinearEnd::Array(array, x, y) => {
                let position = x.saturating_add(self.done);
                let (row, column) = (
                    position.checked_div(self.width).unwrap_or(0),
                    position.checked_rem(self.width).unwrap_or(0),
                );
                (
                    CopyEnd::array(array, column, y.saturating_add(row)),
                    self.width - column,
                )
            }
        }
    }
}

/// Copies `size` consecutive bytes, row by row.
///
/// # Safety
/// Both places have `size` bytes, on the side that `kind` says, until the copy
/// is over; the stream of `when` is live.
unsafe fn run(
    to: LinearEnd,
    from: LinearEnd,
    size: usize,
    kind: (c_int, &[c_int]),
    when: Timing,
) -> Result {
    if size == 0 {
        return Ok(());
    }
    direction(kind.0, kind.1)?;
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `Walk::new`.
    let mut to = unsafe { Walk::new(runtime, to) }?;
    // SAFETY: the caller upholds the contract of `Walk::new`.
    let mut from = unsafe { Walk::new(runtime, from) }?;
    while to.done < size {
        let ((to_end, to_room), (from_end, from_room)) = (to.next(), from.next());
        let bytes = (size - to.done).min(to_room).min(from_room);
        let tight = |end: CopyEnd| {
            if end.array.is_null() {
                CopyEnd {
                    pitch: bytes,
                    ..end
                }
            } else {
                end
            }
        };
        let ends = (tight(to_end), tight(from_end));
        // SAFETY: the caller upholds the contract of `rows`.
        unsafe { rows(ends, [bytes, 1], kind, when) }?;
        to.done += bytes;
        from.done += bytes;
    }
    Ok(())
}
