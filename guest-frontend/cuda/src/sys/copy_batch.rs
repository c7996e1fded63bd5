//! Batches of copies (CUDA Driver API, Memory Management). The copies run in
//! the order of the list, which CUDA leaves open.

use std::ffi::c_uint;

use paragpu_abi::{
    CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE as PREFER_OVERLAP,
    CU_MEMCPY_OPERAND_TYPE_ARRAY as ARRAY, CU_MEMCPY_OPERAND_TYPE_POINTER as POINTER,
    CU_MEMCPY_SRC_ACCESS_ORDER_ANY as ANY,
    CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL as DURING_API_CALL,
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM as STREAM, CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_UNIFIED,
    CUDA_MEMCPY3D, CUDA_MEMCPY3D_BATCH_OP, CUarray, CUdeviceptr, CUmemcpy3DOperand,
    CUmemcpyAttributes, CUstream,
};
use paragpu_protocol::status::Status;

use super::boundary::{In, Out};
use super::graph::list;
use super::{Result, array, copy, copy_rect, host, present};
use crate::batch;
use crate::named_stream::{self, Named};

/// The failure is not of a particular copy.
const NO_COPY: usize = usize::MAX;

/// A failure, and the copy that failed.
type Failed = (usize, Status);

fn whole(status: Status) -> Failed {
    (NO_COPY, status)
}

/// The stream of a batch, which must not be the legacy default stream.
fn batch_stream(stream: CUstream) -> Result<Named> {
    match named_stream::named(stream)? {
        Named::Legacy(_) | Named::Green(_) => Err(Status::INVALID_VALUE),
        named => Ok(named),
    }
}

fn check_attributes(order: i32, flags: c_uint) -> Result {
    if !matches!(order, STREAM | DURING_API_CALL | ANY) || flags & !PREFER_OVERLAP != 0 {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}

/// Whether the source is read after the call returns, so that the call must wait.
/// Pageable memory is read by the call itself.
fn is_read_later(order: i32, source: u64) -> Result<bool> {
    Ok(order == DURING_API_CALL && !(copy::is_host(source)? && host::pinned(source).is_none()))
}

/// After copies, where a source may end with the call.
fn finish(stream: CUstream, wait: bool) -> Result {
    if !wait {
        return Ok(());
    }
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    session.streams().synchronize(stream)
}

/// Copies of linear memory.
///
/// # Safety
/// The lists are as CUDA documents for `cuMemcpyBatchAsync`.
unsafe fn linear(
    destinations: *const CUdeviceptr,
    sources: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    attributes: *const CUmemcpyAttributes,
    firsts: *const usize,
    attribute_count: usize,
    stream: CUstream,
) -> Result<(), Failed> {
    if count == 0 || attribute_count > count {
        return Err(whole(Status::INVALID_VALUE));
    }
    batch_stream(stream).map_err(whole)?;
    // SAFETY: `destinations` points to `count` elements, as the caller promises.
    let destinations = unsafe { list(destinations, count) }.map_err(whole)?;
    // SAFETY: `sources` points to `count` elements, as the caller promises.
    let sources = unsafe { list(sources, count) }.map_err(whole)?;
    // SAFETY: `sizes` points to `count` elements, as the caller promises.
    let sizes = unsafe { list(sizes, count) }.map_err(whole)?;
    // SAFETY: `attributes` holds `attribute_count` of them, as the caller promises.
    let attributes = unsafe { list(attributes, attribute_count) }.map_err(whole)?;
    // SAFETY: `firsts` holds `attribute_count` of them, as the caller promises.
    let firsts = unsafe { list(firsts, attribute_count) }.map_err(whole)?;
    for given in attributes {
        check_attributes(given.srcAccessOrder, given.flags).map_err(whole)?;
    }
    let places = batch::attributes(count, firsts).map_err(whole)?;
    if let Some(empty) = sizes.iter().position(|size| *size == 0) {
        return Err((empty, Status::INVALID_VALUE));
    }
    let copies = destinations.iter().zip(sources).zip(sizes).zip(places);
    let mut wait = false;
    for (at, (((to, from), size), place)) in copies.enumerate() {
        let order = attributes.get(place).map_or(STREAM, |a| a.srcAccessOrder);
        // SAFETY: the caller upholds the contract of `unified`.
        let copied = unsafe { copy::unified(*to, *from, *size, stream, false) };
        copied.map_err(|status| (at, status))?;
        wait |= *size > 0 && is_read_later(order, *from).map_err(|status| (at, status))?;
    }
    finish(stream, wait).map_err(whole)
}

/// One side of a copy with extent in elements.
struct Side {
    kind: u32,
    address: CUdeviceptr,
    array: CUarray,
    /// Bytes of an element, if the side determines them.
    element: Option<u64>,
    /// Origin in an array, in elements.
    origin: [u64; 3],
    /// Elements in a row and rows in a layer of memory, 0 for no gaps.
    row: u64,
    rows: u64,
}

fn side(operand: &CUmemcpy3DOperand, width: u64, height: u64) -> Result<Side> {
    let [first, second, third, fourth] = operand.op;
    match operand.r#type {
        POINTER => {
            if first == 0 || (second != 0 && second < width) || (third != 0 && third < height) {
                return Err(Status::INVALID_VALUE);
            }
            Ok(Side {
                kind: CU_MEMORYTYPE_UNIFIED.cast_unsigned(),
                address: first,
                array: std::ptr::null_mut(),
                element: None,
                origin: [0; 3],
                row: if second == 0 { width } else { second },
                rows: third,
            })
        }
        ARRAY => {
            let handle = usize::try_from(first).map_err(|_| Status::INVALID_VALUE)?;
            let handle = std::ptr::without_provenance_mut(handle);
            let found = array::find(handle).map_err(|_| Status::INVALID_VALUE)?;
            Ok(Side {
                kind: CU_MEMORYTYPE_ARRAY.cast_unsigned(),
                address: 0,
                array: handle,
                element: Some(array::inner(&found)?.object.array.element().into()),
                origin: [second, third, fourth],
                row: 0,
                rows: 0,
            })
        }
        _ => Err(Status::INVALID_VALUE),
    }
}

/// The copy that an operation describes, in bytes.
fn described(operation: &CUDA_MEMCPY3D_BATCH_OP) -> Result<CUDA_MEMCPY3D> {
    check_attributes(operation.srcAccessOrder, operation.flags)?;
    let [width, height, depth] = operation.extent.map(|n| n as u64);
    if width == 0 || height == 0 || depth == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let to = side(&operation.dst, width, height)?;
    let from = side(&operation.src, width, height)?;
    let element = match (to.element, from.element) {
        (Some(one), Some(other)) if one != other => return Err(Status::INVALID_VALUE),
        (one, other) => one.or(other).unwrap_or(1),
    };
    let size = |n: u64| usize::try_from(n).map_err(|_| Status::INVALID_VALUE);
    let bytes = |n: u64| size(n.checked_mul(element).ok_or(Status::INVALID_VALUE)?);
    let ([to_x, to_y, to_z], [from_x, from_y, from_z]) = (to.origin, from.origin);
    Ok(CUDA_MEMCPY3D {
        srcXInBytes: bytes(from_x)?,
        srcY: size(from_y)?,
        srcZ: size(from_z)?,
        srcLOD: 0,
        srcMemoryType: from.kind,
        srcHost: std::ptr::null(),
        srcDevice: from.address,
        srcArray: from.array,
        reserved0: std::ptr::null_mut(),
        srcPitch: bytes(from.row)?,
        srcHeight: size(from.rows)?,
        dstXInBytes: bytes(to_x)?,
        dstY: size(to_y)?,
        dstZ: size(to_z)?,
        dstLOD: 0,
        dstMemoryType: to.kind,
        dstHost: std::ptr::null_mut(),
        dstDevice: to.address,
        dstArray: to.array,
        reserved1: std::ptr::null_mut(),
        dstPitch: bytes(to.row)?,
        dstHeight: size(to.rows)?,
        WidthInBytes: bytes(width)?,
        Height: size(height)?,
        Depth: size(depth)?,
    })
}

/// Copies with extents.
///
/// # Safety
/// `operations` is null or points to `count` records, as CUDA documents for
/// cuMemcpy3DBatchAsync.
unsafe fn volumes(
    count: usize,
    operations: *const CUDA_MEMCPY3D_BATCH_OP,
    flags: u64,
    stream: CUstream,
) -> Result<(), Failed> {
    if count == 0 || flags != 0 {
        return Err(whole(Status::INVALID_VALUE));
    }
    batch_stream(stream).map_err(whole)?;
    // SAFETY: `operations` points to `count` elements, as the caller promises.
    let operations = unsafe { list(operations, count) }.map_err(whole)?;
    // If one copy is invalid, none is made.
    let copies: Vec<CUDA_MEMCPY3D> = operations
        .iter()
        .enumerate()
        .map(|(at, operation)| described(operation).map_err(|status| (at, status)))
        .collect::<Result<_, Failed>>()?;
    for (at, one) in copies.iter().enumerate() {
        // SAFETY: the caller upholds the contract of `volume`.
        unsafe { copy_rect::volume(one, stream, false) }.map_err(|status| (at, status))?;
    }
    let ends = |operation: &CUDA_MEMCPY3D_BATCH_OP| operation.srcAccessOrder == DURING_API_CALL;
    finish(stream, operations.iter().any(ends)).map_err(whole)
}

/// Reports which copy failed.
fn tell(done: Result<(), Failed>, failed: Out<'_, usize>) -> Result {
    done.map_err(|(at, status)| {
        failed.put_if(at);
        status
    })
}

pub(crate) unsafe fn cuMemcpyBatchAsync(
    destinations: *mut CUdeviceptr,
    sources: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CUmemcpyAttributes,
    firsts: *mut usize,
    attribute_count: usize,
    failed: Out<'_, usize>,
    stream: CUstream,
) -> Result {
    present(stream)?;
    // SAFETY: the caller upholds the contract of `linear`.
    let done = unsafe {
        linear(
            destinations,
            sources,
            sizes,
            count,
            attributes,
            firsts,
            attribute_count,
            stream,
        )
    };
    tell(done, failed)
}

pub(crate) unsafe fn cuMemcpyBatchAsync_v2(
    destinations: *mut CUdeviceptr,
    sources: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CUmemcpyAttributes,
    firsts: *mut usize,
    attribute_count: usize,
    stream: CUstream,
) -> Result {
    // SAFETY: the caller upholds the contract of `linear`.
    unsafe {
        linear(
            destinations,
            sources,
            sizes,
            count,
            attributes,
            firsts,
            attribute_count,
            stream,
        )
    }
    .map_err(|(_, status)| status)
}

pub(crate) unsafe fn cuMemcpy3DBatchAsync(
    count: usize,
    operations: *mut CUDA_MEMCPY3D_BATCH_OP,
    failed: Out<'_, usize>,
    flags: u64,
    stream: CUstream,
) -> Result {
    present(stream)?;
    // SAFETY: the caller upholds the contract of `volumes`.
    tell(unsafe { volumes(count, operations, flags, stream) }, failed)
}

pub(crate) unsafe fn cuMemcpy3DBatchAsync_v2(
    count: usize,
    operations: *mut CUDA_MEMCPY3D_BATCH_OP,
    flags: u64,
    stream: CUstream,
) -> Result {
    // SAFETY: the caller upholds the contract of `volumes`.
    unsafe { volumes(count, operations, flags, stream) }.map_err(|(_, status)| status)
}

pub(crate) unsafe fn cuMemcpyWithAttributesAsync(
    to: CUdeviceptr,
    from: CUdeviceptr,
    size: usize,
    attributes: In<'_, CUmemcpyAttributes>,
    stream: CUstream,
) -> Result {
    let given = attributes.get()?;
    check_attributes(given.srcAccessOrder, given.flags)?;
    // SAFETY: the caller upholds the contract of `unified`.
    unsafe { copy::unified(to, from, size, stream, false) }?;
    finish(
        stream,
        size > 0 && is_read_later(given.srcAccessOrder, from)?,
    )
}

pub(crate) unsafe fn cuMemcpy3DWithAttributesAsync(
    operation: In<'_, CUDA_MEMCPY3D_BATCH_OP>,
    flags: u64,
    stream: CUstream,
) -> Result {
    let operation = operation.get()?;
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the caller upholds the contract of `volume`.
    unsafe { copy_rect::volume(&described(operation)?, stream, false) }?;
    finish(stream, operation.srcAccessOrder == DURING_API_CALL)
}
