//! Stream-ordered memory, prefetching and batches (CUDA Runtime API, chapters
//! "Stream Ordered Memory Allocator" and "Memory Management").

use super::boundary::Out;
use super::fail;
use super::memory::{device, pointer};
use super::runtime::{context, runtime};
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{CUdevice, CUmemoryPool, CUstream};
use std::ffi::{c_int, c_void};

pub(crate) unsafe fn cudaMallocAsync(
    address: Out<'_, *mut c_void>,
    size: usize,
    stream: CUstream,
) -> Result {
    address.present()?;
    let runtime = context()?;
    let mut found = 0;
    if size != 0 {
        // SAFETY: the caller upholds the contract of `cuMemAllocAsync`.
        unsafe { runtime.driver.cuMemAllocAsync(&mut found, size, stream) }?;
    }
    address.put(pointer(found))
}

pub(crate) unsafe fn cudaFreeAsync(address: *mut c_void, stream: CUstream) -> Result {
    let runtime = context()?;
    if address.is_null() {
        return Ok(());
    }
    // SAFETY: the caller upholds the contract of `cuMemFreeAsync`.
    unsafe { runtime.driver.cuMemFreeAsync(device(address), stream) }
}

pub(crate) unsafe fn cudaMallocFromPoolAsync(
    address: Out<'_, *mut c_void>,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Result {
    address.present()?;
    let runtime = context()?;
    let mut found = 0;
    if size != 0 {
        // SAFETY: the caller upholds the contract of `cuMemAllocFromPoolAsync`.
        unsafe {
            runtime
                .driver
                .cuMemAllocFromPoolAsync(&mut found, size, pool, stream)
        }?;
    }
    address.put(pointer(found))
}

pub(crate) unsafe fn cudaMemPoolImportPointer(
    address: Out<'_, *mut c_void>,
    pool: CUmemoryPool,
    data: *mut c_void,
) -> Result {
    address.present()?;
    let runtime = context()?;
    let mut found = u64::MAX;
    // SAFETY: the caller upholds the contract of `cuMemPoolImportPointer`.
    let outcome = unsafe {
        runtime
            .driver
            .cuMemPoolImportPointer(&mut found, pool, data)
    };
    // The driver writes null before it checks the handle.
    if found != u64::MAX {
        address.put_if(pointer(found));
    }
    outcome
}

/// The driver's number of a device whose current pool is asked for or set.
pub(super) fn pool_device(ordinal: c_int) -> Result<CUdevice> {
    let device = runtime()?.device(ordinal);
    Ok(device.or(fail(abi::cudaErrorInvalidValue))?.number)
}
