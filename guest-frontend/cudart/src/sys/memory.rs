//! Memory (CUDA Runtime API, chapters "Memory Management" and "Unified
//! Addressing"; inter-process memory from "Device Management").

use super::boundary::Out;
use super::runtime::context;
use super::{fail, present, zeroed};
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{
    CUcontext, CUdeviceptr, cudaExtent, cudaIpcMemHandle_t, cudaPitchedPtr, cudaPointerAttributes,
};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

/// Element size for pitched allocations, in bytes.
const PITCH_ELEMENT: c_uint = 4;

/// A device address in the driver's type.
pub fn device(pointer: *const c_void) -> CUdeviceptr {
    pointer.addr() as CUdeviceptr
}

/// A device address in the runtime's type.
pub fn pointer(address: CUdeviceptr) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

pub(crate) fn cudaMalloc(address: Out<'_, *mut c_void>, size: usize) -> Result {
    address.present()?;
    let runtime = context()?;
    let mut found = 0;
    if size != 0 {
        // SAFETY: it writes an address, to a local variable.
        unsafe { runtime.driver.cuMemAlloc_v2(&mut found, size) }?;
    }
    address.put(pointer(found))
}

pub(crate) fn cudaMallocPitch(
    address: Out<'_, *mut c_void>,
    pitch: Out<'_, usize>,
    width: usize,
    height: usize,
) -> Result {
    pitch.present()?;
    address.put(ptr::null_mut())?;
    let (found, found_pitch) = pitched(width, height)?;
    address.put(found)?;
    pitch.put(found_pitch)
}

pub(crate) fn cudaMalloc3D(place: Out<'_, cudaPitchedPtr>, extent: cudaExtent) -> Result {
    place.present()?;
    let Some(rows) = extent.height.checked_mul(extent.depth) else {
        return fail(abi::cudaErrorInvalidValue);
    };
    let (found, pitch) = pitched(extent.width, rows)?;
    place.put(cudaPitchedPtr {
        ptr: found,
        pitch,
        xsize: extent.width,
        ysize: extent.height,
    })
}

pub(crate) fn cudaMallocManaged(
    address: Out<'_, *mut c_void>,
    size: usize,
    flags: c_uint,
) -> Result {
    address.present()?;
    let runtime = context()?;
    let mut found = 0;
    if size != 0 {
        // SAFETY: it writes an address, to a local variable.
        unsafe { runtime.driver.cuMemAllocManaged(&mut found, size, flags) }?;
    }
    address.put(pointer(found))
}

pub(crate) unsafe fn cudaFreeHost(address: *mut c_void) -> Result {
    let runtime = context()?;
    if address.is_null() {
        return Ok(());
    }
    // SAFETY: the caller upholds the contract of `cuMemFreeHost`.
    unsafe { runtime.driver.cuMemFreeHost(address) }
}

pub(crate) unsafe fn cudaHostGetDevicePointer(
    address: Out<'_, *mut c_void>,
    host: *mut c_void,
    flags: c_uint,
) -> Result {
    present(host)?;
    address.put(ptr::null_mut())?;
    let mut found = 0;
    // SAFETY: the caller upholds the contract of `cuMemHostGetDevicePointer_v2`.
    unsafe {
        context()?
            .driver
            .cuMemHostGetDevicePointer_v2(&mut found, host, flags)
    }?;
    address.put(pointer(found))
}

#[cfg(not(cuda12))]
pub(crate) fn cudaPointerGetAttributes(
    attributes: Out<'_, cudaPointerAttributes>,
    address: *const c_void,
) -> Result {
    attributes.present()?;
    attributes.put(attributes_of(address)?)
}

pub(crate) unsafe fn cudaIpcOpenMemHandle(
    address: Out<'_, *mut c_void>,
    handle: cudaIpcMemHandle_t,
    flags: c_uint,
) -> Result {
    address.present()?;
    let mut found = 0;
    // SAFETY: the caller upholds the contract of `cuIpcOpenMemHandle_v2`.
    unsafe {
        context()?
            .driver
            .cuIpcOpenMemHandle_v2(&mut found, handle, flags)
    }?;
    address.put(pointer(found))
}

/// Allocates rows of at least `width` bytes; nothing for zero bytes.
fn pitched(width: usize, rows: usize) -> Result<(*mut c_void, usize)> {
    let runtime = context()?;
    let (mut found, mut pitch) = (0, 0);
    if width != 0 && rows != 0 {
        // SAFETY: it writes an address and a pitch, to local variables.
        unsafe {
            runtime
                .driver
                .cuMemAllocPitch_v2(&mut found, &mut pitch, width, rows, PITCH_ELEMENT)
        }?;
    }
    Ok((pointer(found), pitch))
}

/// Allocates pinned host memory.
pub(super) fn pinned(address: Out<'_, *mut c_void>, size: usize, flags: c_uint) -> Result {
    address.present()?;
    let runtime = context()?;
    let mut found = ptr::null_mut();
    if size != 0 {
        // SAFETY: it writes an address, to a local variable.
        unsafe { runtime.driver.cuMemHostAlloc(&mut found, size, flags) }?;
    }
    address.put(found)
}

/// The driver's attributes of an address. An unknown address is unregistered host
/// memory.
pub(super) fn attributes_of(address: *const c_void) -> Result<cudaPointerAttributes> {
    let runtime = context()?;
    let mut owner: CUcontext = ptr::null_mut();
    let mut kind: c_uint = 0;
    let mut on_device: CUdeviceptr = 0;
    let mut on_host: *mut c_void = ptr::null_mut();
    let mut managed: c_uint = 0;
    let mut number: c_int = abi::cudaInvalidDeviceId;
    let mut names = [
        abi::CU_POINTER_ATTRIBUTE_CONTEXT,
        abi::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        abi::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        abi::CU_POINTER_ATTRIBUTE_HOST_POINTER,
        abi::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        abi::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    ];
    let mut places: [*mut c_void; 6] = [
        (&raw mut owner).cast(),
        (&raw mut kind).cast(),
        (&raw mut on_device).cast(),
        (&raw mut on_host).cast(),
        (&raw mut managed).cast(),
        (&raw mut number).cast(),
    ];
    // SAFETY: there are as many results as names, each of its attribute's type; the
    // driver does not access the address.
    unsafe {
        runtime.driver.cuPointerGetAttributes(
            names.len() as c_uint,
            names.as_mut_ptr(),
            places.as_mut_ptr(),
            device(address),
        )
    }?;
    // SAFETY: a record of integers and pointers.
    let none: cudaPointerAttributes = unsafe { zeroed() };
    let kind = match c_int::try_from(kind).unwrap_or(0) {
        0 => {
            return Ok(cudaPointerAttributes {
                r#type: abi::cudaMemoryTypeUnregistered,
                device: abi::cudaInvalidDeviceId,
                hostPointer: address.cast_mut(),
                ..none
            });
        }
        _ if managed != 0 => abi::cudaMemoryTypeManaged,
        abi::CU_MEMORYTYPE_HOST => abi::cudaMemoryTypeHost,
        _ => abi::cudaMemoryTypeDevice,
    };
    Ok(cudaPointerAttributes {
        r#type: kind,
        device: runtime.ordinal(number),
        devicePointer: pointer(on_device),
        hostPointer: on_host,
        ..none
    })
}
