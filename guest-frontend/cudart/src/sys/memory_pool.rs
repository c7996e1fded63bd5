//! Stream-ordered memory, prefetching and batches (CUDA Runtime API, chapters
//! "Stream Ordered Memory Allocator" and "Memory Management").

use super::memory::{device, pointer};
use super::runtime::{context, runtime};
use super::{present, put};
use paragpu_abi::{
    CUdeviceptr, CUmemoryPool, CUstream, cudaMemAccessDesc, cudaMemLocation, cudaMemPoolProps,
};
use std::ffi::{c_int, c_uint, c_void};

api! {
    /// No bytes give a null pointer.
    fn cudaMallocAsync | cudaMallocAsync_ptsz(
        address: *mut *mut c_void, size: usize, stream: CUstream,
    ) on stream {
        present(address)?;
        let runtime = context()?;
        let mut found = 0;
        if size != 0 {
            runtime.driver.cuMemAllocAsync(&mut found, size, stream)?;
        }
        put(address, pointer(found))
    }

    fn cudaFreeAsync | cudaFreeAsync_ptsz(address: *mut c_void, stream: CUstream) on stream {
        let runtime = context()?;
        if address.is_null() {
            return Ok(());
        }
        runtime.driver.cuMemFreeAsync(device(address), stream)
    }

    fn cudaMallocFromPoolAsync | cudaMallocFromPoolAsync_ptsz(
        address: *mut *mut c_void, size: usize, pool: CUmemoryPool, stream: CUstream,
    ) on stream {
        present(address)?;
        let runtime = context()?;
        let mut found = 0;
        if size != 0 {
            runtime.driver.cuMemAllocFromPoolAsync(&mut found, size, pool, stream)?;
        }
        put(address, pointer(found))
    }

    fn cudaMemPoolCreate(pool: *mut CUmemoryPool, properties: *const cudaMemPoolProps) {
        present(pool)?;
        context()?.driver.cuMemPoolCreate(pool, properties)
    }

    fn cudaMemPoolDestroy(pool: CUmemoryPool) {
        context()?.driver.cuMemPoolDestroy(pool)
    }

    fn cudaMemPoolTrimTo(pool: CUmemoryPool, keep: usize) {
        context()?.driver.cuMemPoolTrimTo(pool, keep)
    }

    fn cudaMemPoolSetAttribute(pool: CUmemoryPool, attribute: c_int, value: *mut c_void) {
        context()?.driver.cuMemPoolSetAttribute(pool, attribute, value)
    }

    fn cudaMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_int, value: *mut c_void) {
        context()?.driver.cuMemPoolGetAttribute(pool, attribute, value)
    }

    fn cudaMemPoolSetAccess(
        pool: CUmemoryPool, access: *const cudaMemAccessDesc, count: usize,
    ) {
        context()?.driver.cuMemPoolSetAccess(pool, access, count)
    }

    fn cudaMemPoolGetAccess(
        flags: *mut c_int, pool: CUmemoryPool, location: *mut cudaMemLocation,
    ) {
        present(flags)?;
        context()?.driver.cuMemPoolGetAccess(flags, pool, location)
    }

    fn cudaMemPoolExportToShareableHandle(
        handle: *mut c_void, pool: CUmemoryPool, kind: c_int, flags: c_uint,
    ) {
        context()?
            .driver
            .cuMemPoolExportToShareableHandle(handle, pool, kind, u64::from(flags))
    }

    fn cudaMemPoolImportFromShareableHandle(
        pool: *mut CUmemoryPool, handle: *mut c_void, kind: c_int, flags: c_uint,
    ) {
        context()?
            .driver
            .cuMemPoolImportFromShareableHandle(pool, handle, kind, u64::from(flags))
    }

    fn cudaMemPoolExportPointer(data: *mut c_void, address: *mut c_void) {
        context()?.driver.cuMemPoolExportPointer(data, device(address))
    }

    fn cudaMemPoolImportPointer(
        address: *mut *mut c_void, pool: CUmemoryPool, data: *mut c_void,
    ) {
        present(address)?;
        let mut found = 0;
        context()?.driver.cuMemPoolImportPointer(&mut found, pool, data)?;
        put(address, pointer(found))
    }

    fn cudaDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, ordinal: c_int) {
        let runtime = runtime()?;
        let number = runtime.device(ordinal)?.number;
        runtime.driver.cuDeviceGetDefaultMemPool(pool, number)
    }

    fn cudaDeviceGetMemPool(pool: *mut CUmemoryPool, ordinal: c_int) {
        let runtime = runtime()?;
        let number = runtime.device(ordinal)?.number;
        runtime.driver.cuDeviceGetMemPool(pool, number)
    }

    fn cudaDeviceSetMemPool(ordinal: c_int, pool: CUmemoryPool) {
        let runtime = runtime()?;
        let number = runtime.device(ordinal)?.number;
        runtime.driver.cuDeviceSetMemPool(number, pool)
    }

    fn cudaMemGetDefaultMemPool(
        pool: *mut CUmemoryPool, location: *mut cudaMemLocation, kind: c_int,
    ) {
        runtime()?.driver.cuMemGetDefaultMemPool(pool, location, kind)
    }

    fn cudaMemGetMemPool(
        pool: *mut CUmemoryPool, location: *mut cudaMemLocation, kind: c_int,
    ) {
        runtime()?.driver.cuMemGetMemPool(pool, location, kind)
    }

    fn cudaMemSetMemPool(location: *mut cudaMemLocation, kind: c_int, pool: CUmemoryPool) {
        runtime()?.driver.cuMemSetMemPool(location, kind, pool)
    }

    fn cudaMemPrefetchAsync | cudaMemPrefetchAsync_ptsz(
        address: *const c_void, size: usize, location: cudaMemLocation, flags: c_uint,
        stream: CUstream,
    ) on stream {
        context()?.driver.cuMemPrefetchAsync(device(address), size, location, flags, stream)
    }

    // Below, device addresses and pointers have one form in memory.

    fn cudaMemPrefetchBatchAsync | cudaMemPrefetchBatchAsync_ptsz(
        addresses: *mut *mut c_void, sizes: *mut usize, count: usize,
        locations: *mut cudaMemLocation, indexes: *mut usize, location_count: usize, flags: u64,
        stream: CUstream,
    ) on stream {
        context()?.driver.cuMemPrefetchBatchAsync(
            addresses.cast(), sizes, count, locations, indexes, location_count, flags, stream,
        )
    }

    fn cudaMemDiscardBatchAsync | cudaMemDiscardBatchAsync_ptsz(
        addresses: *mut *mut c_void, sizes: *mut usize, count: usize, flags: u64,
        stream: CUstream,
    ) on stream {
        let addresses = addresses.cast::<CUdeviceptr>();
        context()?.driver.cuMemDiscardBatchAsync(addresses, sizes, count, flags, stream)
    }

    fn cudaMemDiscardAndPrefetchBatchAsync | cudaMemDiscardAndPrefetchBatchAsync_ptsz(
        addresses: *mut *mut c_void, sizes: *mut usize, count: usize,
        locations: *mut cudaMemLocation, indexes: *mut usize, location_count: usize, flags: u64,
        stream: CUstream,
    ) on stream {
        context()?.driver.cuMemDiscardAndPrefetchBatchAsync(
            addresses.cast(), sizes, count, locations, indexes, location_count, flags, stream,
        )
    }

    fn cudaMemcpyBatchAsync | cudaMemcpyBatchAsync_ptsz(
        to: *const *mut c_void, from: *const *const c_void, sizes: *const usize, count: usize,
        attributes: *mut c_void, indexes: *mut usize, attribute_count: usize, stream: CUstream,
    ) on stream {
        context()?.driver.cuMemcpyBatchAsync(
            to.cast_mut().cast(),
            from.cast_mut().cast(),
            sizes.cast_mut(),
            count,
            attributes,
            indexes,
            attribute_count,
            stream,
        )
    }

    fn cudaMemcpy3DBatchAsync | cudaMemcpy3DBatchAsync_ptsz(
        count: usize, operations: *mut c_void, flags: u64, stream: CUstream,
    ) on stream {
        context()?.driver.cuMemcpy3DBatchAsync(count, operations, flags, stream)
    }
}
