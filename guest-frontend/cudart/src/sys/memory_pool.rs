//! Stream-ordered memory, prefetching and batches (CUDA Runtime API, chapters
//! "Stream Ordered Memory Allocator" and "Memory Management").

use super::boundary::Out;
use super::memory::{device, pointer};
use super::runtime::{context, runtime};
use super::{fail, present, put};
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{CUmemoryPool, CUstream};
use std::ffi::{c_int, c_void};

/// # Safety
/// As CUDA's manual says for cudaMallocAsync.
pub(crate) unsafe fn cudaMallocAsync(
    address: *mut *mut c_void,
    size: usize,
    stream: CUstream,
) -> Result {
    present(address)?;
    let runtime = context()?;
    let mut found = 0;
    if size != 0 {
        // SAFETY: `cuMemAllocAsync` asks for what the caller promises.
        unsafe { runtime.driver.cuMemAllocAsync(&mut found, size, stream) }?;
    }
    // SAFETY: `address` is null or writable, as the caller promises.
    unsafe { put(address, pointer(found)) }
}

/// # Safety
/// As CUDA's manual says for cudaFreeAsync.
pub(crate) unsafe fn cudaFreeAsync(address: *mut c_void, stream: CUstream) -> Result {
    let runtime = context()?;
    if address.is_null() {
        return Ok(());
    }
    // SAFETY: `cuMemFreeAsync` asks for what the caller promises.
    unsafe { runtime.driver.cuMemFreeAsync(device(address), stream) }
}

/// # Safety
/// As CUDA's manual says for cudaMallocFromPoolAsync.
pub(crate) unsafe fn cudaMallocFromPoolAsync(
    address: *mut *mut c_void,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Result {
    present(address)?;
    let runtime = context()?;
    let mut found = 0;
    if size != 0 {
        // SAFETY: `cuMemAllocFromPoolAsync` asks for what the caller promises.
        unsafe {
            runtime
                .driver
                .cuMemAllocFromPoolAsync(&mut found, size, pool, stream)
        }?;
    }
    // SAFETY: `address` is null or writable, as the caller promises.
    unsafe { put(address, pointer(found)) }
}

/// # Safety
/// As CUDA's manual says for cudaMemPoolImportPointer.
pub(crate) unsafe fn cudaMemPoolImportPointer(
    address: Out<'_, *mut c_void>,
    pool: CUmemoryPool,
    data: *mut c_void,
) -> Result {
    address.present()?;
    let runtime = context()?;
    let mut found = u64::MAX;
    // SAFETY: `cuMemPoolImportPointer` asks for what the caller promises.
    let outcome = unsafe {
        runtime
            .driver
            .cuMemPoolImportPointer(&mut found, pool, data)
    };
    // The driver writes null before it looks at the handle.
    if found != u64::MAX {
        address.put_if(pointer(found));
    }
    outcome
}

/// # Safety
/// As CUDA's manual says for cudaDeviceGetDefaultMemPool.
pub(crate) unsafe fn cudaDeviceGetDefaultMemPool(
    pool: *mut CUmemoryPool,
    ordinal: c_int,
) -> Result {
    let runtime = runtime()?;
    let number = runtime.device(ordinal)?.number;
    // SAFETY: `cuDeviceGetDefaultMemPool` asks for what the caller promises.
    unsafe { runtime.driver.cuDeviceGetDefaultMemPool(pool, number) }
}

/// # Safety
/// As CUDA's manual says for cudaDeviceGetMemPool.
pub(crate) unsafe fn cudaDeviceGetMemPool(pool: *mut CUmemoryPool, ordinal: c_int) -> Result {
    let runtime = runtime()?;
    let number = runtime
        .device(ordinal)
        .or(fail(abi::cudaErrorInvalidValue))?
        .number;
    // SAFETY: `cuDeviceGetMemPool` asks for what the caller promises.
    unsafe { runtime.driver.cuDeviceGetMemPool(pool, number) }
}

/// # Safety
/// As CUDA's manual says for cudaDeviceSetMemPool.
pub(crate) unsafe fn cudaDeviceSetMemPool(ordinal: c_int, pool: CUmemoryPool) -> Result {
    let runtime = runtime()?;
    let number = runtime
        .device(ordinal)
        .or(fail(abi::cudaErrorInvalidValue))?
        .number;
    // SAFETY: `cuDeviceSetMemPool` asks for what the caller promises.
    unsafe { runtime.driver.cuDeviceSetMemPool(number, pool) }
}
