//! Arrays (CUDA Runtime API, chapters "Memory Management" and "Texture Object
//! Management").

use super::boundary::Out;
use super::runtime::{Runtime, context};
use super::{fail, present, zeroed};
use crate::channel;
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{
    CUDA_ARRAY3D_DESCRIPTOR, CUarray, CUmipmappedArray, cudaChannelFormatDesc, cudaExtent,
};
use std::ffi::{c_int, c_uint};

pub(crate) unsafe fn cudaMalloc3DArray(
    array: Out<'_, CUarray>,
    desc: *const cudaChannelFormatDesc,
    extent: cudaExtent,
    flags: c_uint,
) -> Result {
    array.present()?;
    present(desc)?;
    let mut made = std::ptr::null_mut();
    array.put(made)?;
    // SAFETY: `desc` is valid, as the caller promises.
    let wanted = driver_descriptor(unsafe { &*desc }, &extent, flags)?;
    // SAFETY: both are local variables.
    unsafe { context()?.driver.cuArray3DCreate_v2(&mut made, &wanted) }?;
    array.put(made)
}

pub(crate) unsafe fn cudaMallocMipmappedArray(
    array: Out<'_, CUmipmappedArray>,
    desc: *const cudaChannelFormatDesc,
    extent: cudaExtent,
    levels: c_uint,
    flags: c_uint,
) -> Result {
    array.present()?;
    present(desc)?;
    let mut made = std::ptr::null_mut();
    array.put(made)?;
    // SAFETY: `desc` is valid, as the caller promises.
    let wanted = driver_descriptor(unsafe { &*desc }, &extent, flags)?;
    // SAFETY: all are local variables.
    unsafe {
        context()?
            .driver
            .cuMipmappedArrayCreate(&mut made, &wanted, levels)
    }?;
    array.put(made)
}

pub(crate) unsafe fn cudaFreeArray(array: CUarray) -> Result {
    let runtime = context()?;
    if array.is_null() {
        return Ok(());
    }
    // SAFETY: the caller upholds the contract of `cuArrayDestroy`.
    unsafe { runtime.driver.cuArrayDestroy(array) }
}

pub(crate) unsafe fn cudaFreeMipmappedArray(array: CUmipmappedArray) -> Result {
    let runtime = context()?;
    if array.is_null() {
        return Ok(());
    }
    // SAFETY: the caller upholds the contract of `cuMipmappedArrayDestroy`.
    unsafe { runtime.driver.cuMipmappedArrayDestroy(array) }
}

pub(crate) unsafe fn cudaArrayGetInfo(
    desc: Out<'_, cudaChannelFormatDesc>,
    extent: Out<'_, cudaExtent>,
    flags: Out<'_, c_uint>,
    array: CUarray,
) -> Result {
    // SAFETY: the caller upholds the contract of `descriptor`.
    let found = unsafe { descriptor(context()?, array) }?;
    desc.put_if(channel::descriptor(format_of(&found), found.NumChannels));
    extent.put_if(cudaExtent {
        width: found.Width,
        height: found.Height,
        depth: found.Depth,
    });
    flags.put_if(found.Flags);
    Ok(())
}

pub(crate) unsafe fn cudaGetChannelDesc(
    desc: Out<'_, cudaChannelFormatDesc>,
    array: CUarray,
) -> Result {
    desc.present()?;
    // SAFETY: the caller upholds the contract of `descriptor`.
    let found = unsafe { descriptor(context()?, array) }?;
    desc.put(channel::descriptor(format_of(&found), found.NumChannels))
}

/// Returns the descriptor itself and cannot fail.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cudaCreateChannelDesc(
    x: c_int,
    y: c_int,
    z: c_int,
    w: c_int,
    f: c_int,
) -> cudaChannelFormatDesc {
    cudaChannelFormatDesc { x, y, z, w, f }
}

/// The driver's descriptor of a new array. Flags have the same values there.
fn driver_descriptor(
    desc: &cudaChannelFormatDesc,
    extent: &cudaExtent,
    flags: c_uint,
) -> Result<CUDA_ARRAY3D_DESCRIPTOR> {
    if extent.width == 0 {
        return fail(abi::cudaErrorInvalidValue);
    }
    let format = channel::format(desc)?;
    Ok(CUDA_ARRAY3D_DESCRIPTOR {
        Width: extent.width,
        Height: extent.height,
        Depth: extent.depth,
        Format: format.format.unsigned_abs(),
        NumChannels: format.channels,
        Flags: flags,
    })
}

fn format_of(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> c_int {
    c_int::try_from(descriptor.Format).unwrap_or(0)
}

/// The properties of an array.
///
/// # Safety
/// `array` is a live array of the driver's.
pub unsafe fn descriptor(runtime: &Runtime, array: CUarray) -> Result<CUDA_ARRAY3D_DESCRIPTOR> {
    // SAFETY: the record has integers, pointers and optional functions.
    let mut found: CUDA_ARRAY3D_DESCRIPTOR = unsafe { zeroed() };
    // SAFETY: the caller upholds the contract of `cuArray3DGetDescriptor_v2`.
    unsafe { runtime.driver.cuArray3DGetDescriptor_v2(&mut found, array) }?;
    Ok(found)
}

/// Bytes of one element of an array.
///
/// # Safety
/// `array` is a live array of the driver's.
pub unsafe fn element_bytes(runtime: &Runtime, array: CUarray) -> Result<usize> {
    // SAFETY: the caller upholds the contract of `descriptor`.
    let found = unsafe { descriptor(runtime, array) }?;
    match channel::element_size(format_of(&found), found.NumChannels) {
        0 => fail(abi::cudaErrorInvalidChannelDescriptor),
        bytes => Ok(bytes),
    }
}
