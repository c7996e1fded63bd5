//! Tensor maps (CUDA Driver API, Tensor Map Object Management). The host's driver packs
//! them, because their layout depends on the GPU.

use std::ffi::{c_int, c_void};

use paragpu_abi::CUtensorMap;
use paragpu_protocol::status::Status;
use paragpu_protocol::types::{Tensor, TensorBox, TensorMap};

use super::boundary::Out;
use super::graph::list;
use super::{Result, present};
use crate::current;

/// Maximum number of dimensions.
const MAX_DIMENSIONS: u32 = 5;
/// Alignment of a tensor map in bytes.
const ALIGNMENT: usize = 64;
/// CU_TENSOR_MAP_ALLOC_CLASS_AUTO, _SMALL and _LARGE.
const AUTOMATIC_CLASS: c_int = 0;
const SMALL_CLASS: c_int = 1;
const LARGE_CLASS: c_int = 2;

/// The bits of each value, padded with zeros.
fn padded<const N: usize, T: Copy>(values: &[T], bits: impl Fn(T) -> u64) -> [u64; N] {
    let mut padded = [0; N];
    for (out, value) in padded.iter_mut().zip(values) {
        *out = bits(*value);
    }
    padded
}

fn signed(value: c_int) -> u64 {
    value.cast_unsigned().into()
}

/// A tensor of `rank` dimensions.
///
/// # Safety
/// The lists are null or as long as CUDA requires for the rank.
unsafe fn tensor(
    data_type: c_int,
    rank: u32,
    address: *mut c_void,
    dimensions: *const u64,
    strides: *const u64,
    steps: *const u32,
) -> Result<Tensor> {
    if rank == 0 || rank > MAX_DIMENSIONS {
        return Err(Status::INVALID_VALUE);
    }
    let count = rank as usize;
    // A tensor of one dimension has no strides.
    Ok(Tensor {
        data_type: data_type.cast_unsigned(),
        rank,
        address: address.addr() as u64,
        // SAFETY: `dimensions` points to `count` elements, as the caller promises.
        dimensions: padded(unsafe { list(dimensions, count) }?, |value| value),
        // SAFETY: the pointer leads to that many elements, as the caller promises.
        strides: padded(unsafe { list(strides, count - 1) }?, |value| value),
        // SAFETY: `steps` points to `count` elements, as the caller promises.
        element_strides: padded(unsafe { list(steps, count) }?, u64::from),
    })
}

/// Has the host encode a tensor map of interleave, swizzle, promotion and fill, and writes
/// it to `out`.
///
/// # Safety
/// `out` is null or, if it is aligned, writable for a tensor map.
unsafe fn encode(
    out: *mut CUtensorMap,
    tensor: Tensor,
    part: TensorBox,
    layout: [c_int; 4],
) -> Result {
    check_pointer(out)?;
    let [interleave, swizzle, promotion, fill] = layout.map(c_int::cast_unsigned);
    let packed = current::any_session()?.textures().tensor_map(TensorMap {
        tensor,
        part,
        interleave,
        swizzle,
        promotion,
        fill,
    })?;
    // SAFETY: `out` is writable here, as the caller promises.
    unsafe { out.cast::<[u8; 128]>().write(packed) };
    Ok(())
}

fn check_pointer(map: *const CUtensorMap) -> Result {
    present(map)?;
    if !map.addr().is_multiple_of(ALIGNMENT) {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}

pub(crate) unsafe fn cuTensorMapEncodeTiled(
    out: *mut CUtensorMap,
    data_type: c_int,
    rank: u32,
    address: *mut c_void,
    dimensions: *const u64,
    strides: *const u64,
    extent: *const u32,
    steps: *const u32,
    interleave: c_int,
    swizzle: c_int,
    promotion: c_int,
    fill: c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `tensor`.
    let tensor = unsafe { tensor(data_type, rank, address, dimensions, strides, steps) }?;
    let part = TensorBox {
        // SAFETY: the pointer leads to that many elements, as the caller promises.
        extent: padded(unsafe { list(extent, rank as usize) }?, u64::from),
        ..TensorBox::EMPTY
    };
    // SAFETY: the caller upholds the contract of `encode`.
    unsafe { encode(out, tensor, part, [interleave, swizzle, promotion, fill]) }
}

pub(crate) unsafe fn cuTensorMapEncodeIm2col(
    out: *mut CUtensorMap,
    data_type: c_int,
    rank: u32,
    address: *mut c_void,
    dimensions: *const u64,
    strides: *const u64,
    lower: *const c_int,
    upper: *const c_int,
    channels: u32,
    pixels: u32,
    steps: *const u32,
    interleave: c_int,
    swizzle: c_int,
    promotion: c_int,
    fill: c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `tensor`.
    let tensor = unsafe { tensor(data_type, rank, address, dimensions, strides, steps) }?;
    // The dimensions without channels and images.
    let space = (rank as usize)
        .checked_sub(2)
        .ok_or(Status::INVALID_VALUE)?;
    let part = TensorBox {
        kind: TensorBox::IM2COL,
        // SAFETY: `lower` points to `space` elements, as the caller promises.
        lower: padded(unsafe { list(lower, space) }?, signed),
        // SAFETY: `upper` points to `space` elements, as the caller promises.
        upper: padded(unsafe { list(upper, space) }?, signed),
        channels,
        pixels,
        ..TensorBox::EMPTY
    };
    // SAFETY: the caller upholds the contract of `encode`.
    unsafe { encode(out, tensor, part, [interleave, swizzle, promotion, fill]) }
}

pub(crate) unsafe fn cuTensorMapEncodeIm2colWide(
    out: *mut CUtensorMap,
    data_type: c_int,
    rank: u32,
    address: *mut c_void,
    dimensions: *const u64,
    strides: *const u64,
    lower: c_int,
    upper: c_int,
    channels: u32,
    pixels: u32,
    steps: *const u32,
    interleave: c_int,
    mode: c_int,
    swizzle: c_int,
    promotion: c_int,
    fill: c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `tensor`.
    let tensor = unsafe { tensor(data_type, rank, address, dimensions, strides, steps) }?;
    let part = TensorBox {
        kind: TensorBox::IM2COL_WIDE,
        lower: [signed(lower), 0, 0],
        upper: [signed(upper), 0, 0],
        channels,
        pixels,
        mode: mode.cast_unsigned(),
        ..TensorBox::EMPTY
    };
    // SAFETY: the caller upholds the contract of `encode`.
    unsafe { encode(out, tensor, part, [interleave, swizzle, promotion, fill]) }
}

pub(crate) unsafe fn cuTensorMapReplaceAddress(
    out: *mut CUtensorMap,
    address: *mut c_void,
) -> Result {
    check_pointer(out)?;
    let out = out.cast::<[u8; 128]>();
    let address = address.addr() as u64;
    let replaced = current::any_session()?
        .textures()
        // SAFETY: the pointer is readable here, as the caller promises.
        .replace_tensor_address(unsafe { out.read() }, address)?;
    // SAFETY: the pointer is writable here, as the caller promises.
    unsafe { out.write(replaced) };
    Ok(())
}

pub(crate) fn cuTensorMapSetAllocationClass(
    map: *mut CUtensorMap,
    class: c_int,
    effective: Out<'_, c_int>,
) -> Result {
    effective.put_if(SMALL_CLASS);
    check_pointer(map)?;
    current::any_session()?;
    match class {
        AUTOMATIC_CLASS..=LARGE_CLASS => Ok(()),
        _ => Err(Status::INVALID_VALUE),
    }
}
