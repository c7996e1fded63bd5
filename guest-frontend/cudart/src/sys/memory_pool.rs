//! Stream-ordered memory, prefetching and batches (CUDA Runtime API, chapters
//! "Stream Ordered Memory Allocator" and "Memory Management").

use super::boundary::Out;
use super::memory::{device, pointer};
use super::runtime::{context, runtime};
use super::{present, put};
use crate::error::Result;
use paragpu_abi::{CUdeviceptr, CUmemoryPool, CUstream, cudaMemLocation};
use std::ffi::{c_int, c_uint, c_void};

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

pub(crate) unsafe fn cudaFreeAsync(address: *mut c_void, stream: CUstream) -> Result {
    let runtime = context()?;
    if address.is_null() {
        return Ok(());
    }
    // SAFETY: `cuMemFreeAsync` asks for what the caller promises.
    unsafe { runtime.driver.cuMemFreeAsync(device(address), stream) }
}

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

pub(crate) unsafe fn cudaMemPoolExportToShareableHandle(
    handle: *mut c_void,
    pool: CUmemoryPool,
    kind: c_int,
    flags: c_uint,
) -> Result {
    // SAFETY: `cuMemPoolExportToShareableHandle` asks for what the caller promises.
    unsafe {
        context()?
            .driver
            .cuMemPoolExportToShareableHandle(handle, pool, kind, u64::from(flags))
    }
}

pub(crate) unsafe fn cudaMemPoolImportFromShareableHandle(
    pool: *mut CUmemoryPool,
    handle: *mut c_void,
    kind: c_int,
    flags: c_uint,
) -> Result {
    // SAFETY: `cuMemPoolImportFromShareableHandle` asks for what the caller promises.
    unsafe {
        context()?
            .driver
            .cuMemPoolImportFromShareableHandle(pool, handle, kind, u64::from(flags))
    }
}

pub(crate) unsafe fn cudaMemPoolExportPointer(data: *mut c_void, address: *mut c_void) -> Result {
    // SAFETY: `cuMemPoolExportPointer` asks for what the caller promises.
    unsafe {
        context()?
            .driver
            .cuMemPoolExportPointer(data, device(address))
    }
}

pub(crate) unsafe fn cudaMemPoolImportPointer(
    address: Out<'_, *mut c_void>,
    pool: CUmemoryPool,
    data: *mut c_void,
) -> Result {
    address.present()?;
    let mut found = 0;
    // SAFETY: `cuMemPoolImportPointer` asks for what the caller promises.
    unsafe {
        context()?
            .driver
            .cuMemPoolImportPointer(&mut found, pool, data)
    }?;
    address.put(pointer(found))
}

pub(crate) unsafe fn cudaDeviceGetDefaultMemPool(
    pool: *mut CUmemoryPool,
    ordinal: c_int,
) -> Result {
    let runtime = runtime()?;
    let number = runtime.device(ordinal)?.number;
    // SAFETY: `cuDeviceGetDefaultMemPool` asks for what the caller promises.
    unsafe { runtime.driver.cuDeviceGetDefaultMemPool(pool, number) }
}

pub(crate) unsafe fn cudaDeviceGetMemPool(pool: *mut CUmemoryPool, ordinal: c_int) -> Result {
    let runtime = runtime()?;
    let number = runtime.device(ordinal)?.number;
    // SAFETY: `cuDeviceGetMemPool` asks for what the caller promises.
    unsafe { runtime.driver.cuDeviceGetMemPool(pool, number) }
}

pub(crate) unsafe fn cudaDeviceSetMemPool(ordinal: c_int, pool: CUmemoryPool) -> Result {
    let runtime = runtime()?;
    let number = runtime.device(ordinal)?.number;
    // SAFETY: `cuDeviceSetMemPool` asks for what the caller promises.
    unsafe { runtime.driver.cuDeviceSetMemPool(number, pool) }
}

pub(crate) unsafe fn cudaMemPrefetchAsync(
    address: *const c_void,
    size: usize,
    location: cudaMemLocation,
    flags: c_uint,
    stream: CUstream,
) -> Result {
    // SAFETY: `cuMemPrefetchAsync_v2` asks for what the caller promises.
    unsafe {
        context()?
            .driver
            .cuMemPrefetchAsync_v2(device(address), size, location, flags, stream)
    }
}

// Below, device addresses and pointers have one form in memory.
pub(crate) unsafe fn cudaMemPrefetchBatchAsync(
    addresses: *mut *mut c_void,
    sizes: *mut usize,
    count: usize,
    locations: *mut cudaMemLocation,
    indexes: *mut usize,
    location_count: usize,
    flags: u64,
    stream: CUstream,
) -> Result {
    // SAFETY: `cuMemPrefetchBatchAsync` asks for what the caller promises.
    unsafe {
        context()?.driver.cuMemPrefetchBatchAsync(
            addresses.cast(),
            sizes,
            count,
            locations,
            indexes,
            location_count,
            flags,
            stream,
        )
    }
}

pub(crate) unsafe fn cudaMemDiscardBatchAsync(
    addresses: *mut *mut c_void,
    sizes: *mut usize,
    count: usize,
    flags: u64,
    stream: CUstream,
) -> Result {
    let addresses = addresses.cast::<CUdeviceptr>();
    // SAFETY: `cuMemDiscardBatchAsync` asks for what the caller promises.
    unsafe {
        context()?
            .driver
            .cuMemDiscardBatchAsync(addresses, sizes, count, flags, stream)
    }
}

pub(crate) unsafe fn cudaMemDiscardAndPrefetchBatchAsync(
    addresses: *mut *mut c_void,
    sizes: *mut usize,
    count: usize,
    locations: *mut cudaMemLocation,
    indexes: *mut usize,
    location_count: usize,
    flags: u64,
    stream: CUstream,
) -> Result {
    // SAFETY: `cuMemDiscardAndPrefetchBatchAsync` asks for what the caller promises.
    unsafe {
        context()?.driver.cuMemDiscardAndPrefetchBatchAsync(
            addresses.cast(),
            sizes,
            count,
            locations,
            indexes,
            location_count,
            flags,
            stream,
        )
    }
}

pub(crate) unsafe fn cudaMemcpyBatchAsync(
    to: *const *mut c_void,
    from: *const *const c_void,
    sizes: *const usize,
    count: usize,
    attributes: *mut c_void,
    indexes: *mut usize,
    attribute_count: usize,
    stream: CUstream,
) -> Result {
    // SAFETY: `cuMemcpyBatchAsync_v2` asks for what the caller promises.
    unsafe {
        context()?.driver.cuMemcpyBatchAsync_v2(
            to.cast_mut().cast(),
            from.cast_mut().cast(),
            sizes.cast_mut(),
            count,
            attributes.cast(),
            indexes,
            attribute_count,
            stream,
        )
    }
}
