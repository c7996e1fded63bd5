//! Memory (CUDA Runtime API, chapters "Memory Management" and "Unified
//! Addressing"; inter-process memory from "Device Management").

use super::runtime::context;
use super::{fail, present, put, zeroed};
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{
    CUcontext, CUdeviceptr, cudaExtent, cudaIpcMemHandle_t, cudaMemLocation, cudaPitchedPtr,
    cudaPointerAttributes,
};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

/// Element size that pitched allocations are made for, in bytes.
const PITCH_ELEMENT: c_uint = 4;

/// A device address as the driver writes it.
pub fn device(pointer: *const c_void) -> CUdeviceptr {
    pointer.addr() as CUdeviceptr
}

/// A device address as the runtime writes it.
pub fn pointer(address: CUdeviceptr) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

api! {
    /// No bytes give a null pointer.
    fn cudaMalloc(address: *mut *mut c_void, size: usize) {
        present(address)?;
        let runtime = context()?;
        let mut found = 0;
        if size != 0 {
            runtime.driver.cuMemAlloc(&mut found, size)?;
        }
        put(address, pointer(found))
    }

    /// Freeing nothing still tells of an error that ended the context.
    fn cudaFree(address: *mut c_void) {
        let runtime = context()?;
        if address.is_null() {
            return runtime.fault();
        }
        runtime.driver.cuMemFree(device(address))
    }

    fn cudaMallocPitch(
        address: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize,
    ) {
        present(address)?;
        present(pitch)?;
        let (found, found_pitch) = pitched(width, height)?;
        put(address, found)?;
        put(pitch, found_pitch)
    }

    fn cudaMalloc3D(place: *mut cudaPitchedPtr, extent: cudaExtent) {
        present(place)?;
        let Some(rows) = extent.height.checked_mul(extent.depth) else {
            return fail(abi::cudaErrorInvalidValue);
        };
        let (found, pitch) = pitched(extent.width, rows)?;
        put(place, cudaPitchedPtr { ptr: found, pitch, xsize: extent.width, ysize: extent.height })
    }

    fn cudaMallocManaged(address: *mut *mut c_void, size: usize, flags: c_uint) {
        present(address)?;
        let runtime = context()?;
        let mut found = 0;
        if size != 0 {
            runtime.driver.cuMemAllocManaged(&mut found, size, flags)?;
        }
        put(address, pointer(found))
    }

    fn cudaMallocHost(address: *mut *mut c_void, size: usize) {
        pinned(address, size, 0)
    }

    fn cudaHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint) {
        pinned(address, size, flags)
    }

    fn cudaFreeHost(address: *mut c_void) {
        let runtime = context()?;
        if address.is_null() {
            return Ok(());
        }
        runtime.driver.cuMemFreeHost(address)
    }

    fn cudaHostRegister(address: *mut c_void, size: usize, flags: c_uint) {
        context()?.driver.cuMemHostRegister(address, size, flags)
    }

    fn cudaHostUnregister(address: *mut c_void) {
        context()?.driver.cuMemHostUnregister(address)
    }

    fn cudaHostGetDevicePointer(
        address: *mut *mut c_void, host: *mut c_void, flags: c_uint,
    ) {
        present(address)?;
        let mut found = 0;
        context()?.driver.cuMemHostGetDevicePointer(&mut found, host, flags)?;
        put(address, pointer(found))
    }

    fn cudaHostGetFlags(flags: *mut c_uint, host: *mut c_void) {
        present(flags)?;
        context()?.driver.cuMemHostGetFlags(flags, host)
    }

    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) {
        present(free)?;
        present(total)?;
        context()?.driver.cuMemGetInfo(free, total)
    }

    fn cudaPointerGetAttributes(attributes: *mut cudaPointerAttributes, address: *const c_void) {
        present(attributes)?;
        put(attributes, attributes_of(address)?)
    }

    fn cudaMemAdvise(
        address: *const c_void, size: usize, advice: c_int, location: cudaMemLocation,
    ) {
        context()?.driver.cuMemAdvise(device(address), size, advice, location)
    }

    fn cudaMemRangeGetAttribute(
        data: *mut c_void, data_size: usize, attribute: c_int, address: *const c_void,
        size: usize,
    ) {
        context()?
            .driver
            .cuMemRangeGetAttribute(data, data_size, attribute, device(address), size)
    }

    fn cudaMemRangeGetAttributes(
        data: *mut *mut c_void, data_sizes: *mut usize, attributes: *mut c_int, count: usize,
        address: *const c_void, size: usize,
    ) {
        context()?.driver.cuMemRangeGetAttributes(
            data, data_sizes, attributes, count, device(address), size,
        )
    }

    fn cudaIpcGetMemHandle(handle: *mut cudaIpcMemHandle_t, address: *mut c_void) {
        present(handle)?;
        context()?.driver.cuIpcGetMemHandle(handle, device(address))
    }

    fn cudaIpcOpenMemHandle(
        address: *mut *mut c_void, handle: cudaIpcMemHandle_t, flags: c_uint,
    ) {
        present(address)?;
        let mut found = 0;
        context()?.driver.cuIpcOpenMemHandle(&mut found, handle, flags)?;
        put(address, pointer(found))
    }

    fn cudaIpcCloseMemHandle(address: *mut c_void) {
        context()?.driver.cuIpcCloseMemHandle(device(address))
    }
}

/// Rows of at least `width` bytes; none of no bytes.
fn pitched(width: usize, rows: usize) -> Result<(*mut c_void, usize)> {
    let runtime = context()?;
    let (mut found, mut pitch) = (0, 0);
    if width != 0 && rows != 0 {
        // SAFETY: it writes an address and a pitch, to places of ours.
        unsafe {
            runtime
                .driver
                .cuMemAllocPitch(&mut found, &mut pitch, width, rows, PITCH_ELEMENT)
        }?;
    }
    Ok((pointer(found), pitch))
}

/// Memory of the host's that devices reach.
///
/// # Safety
/// `address` is null or writable (cudaHostAlloc).
unsafe fn pinned(address: *mut *mut c_void, size: usize, flags: c_uint) -> Result {
    present(address)?;
    let runtime = context()?;
    if size == 0 {
        return put(address, ptr::null_mut());
    }
    runtime.driver.cuMemHostAlloc(address, size, flags)
}

/// What the driver knows of an address; an address that CUDA does not know is
/// a host's, unregistered.
fn attributes_of(address: *const c_void) -> Result<cudaPointerAttributes> {
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
    // SAFETY: as many places as names, each of its attribute's type; of the
    // address the driver reads nothing.
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
