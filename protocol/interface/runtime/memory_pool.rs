//! Stream-ordered memory, prefetching and batches (CUDA Runtime API, chapters
//! "Stream Ordered Memory Allocator" and "Memory Management").

/// Returns a null pointer for a size of 0.
#[per_thread(ptsz)]
#[clears(address)]
fn cudaMallocAsync(address: Out<*mut c_void>, size: usize, stream: DefaultStream);

#[per_thread(ptsz)]
fn cudaFreeAsync(address: *mut c_void, stream: DefaultStream);

#[per_thread(ptsz)]
#[clears(address)]
fn cudaMallocFromPoolAsync(
    address: Out<*mut c_void>,
    size: usize,
    pool: CUmemoryPool,
    stream: DefaultStream,
);

#[direct(cuMemPoolGetAccess(flags, pool, location))]
fn cudaMemPoolGetAccess(flags: Out<c_int>, pool: CUmemoryPool, location: *mut cudaMemLocation);

#[direct(cuMemPoolExportToShareableHandle(handle, pool, kind, u64::from(flags)))]
fn cudaMemPoolExportToShareableHandle(
    handle: *mut c_void,
    pool: CUmemoryPool,
    kind: c_int,
    flags: c_uint,
);

#[direct(cuMemPoolImportFromShareableHandle(pool, handle, kind, u64::from(flags)))]
fn cudaMemPoolImportFromShareableHandle(
    pool: Out<CUmemoryPool>,
    handle: *mut c_void,
    kind: c_int,
    flags: c_uint,
);

#[direct(cuMemPoolExportPointer(data, address.addr() as u64))]
fn cudaMemPoolExportPointer(data: *mut c_void, address: *mut c_void);

#[needs(cuMemPoolImportPointer)]
fn cudaMemPoolImportPointer(address: Out<*mut c_void>, pool: CUmemoryPool, data: *mut c_void);

#[direct_without_context(cuDeviceGetDefaultMemPool(pool, number(ordinal)?))]
fn cudaDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, ordinal: c_int);

#[direct_without_context(cuDeviceGetMemPool(pool, pool_device(ordinal)?))]
fn cudaDeviceGetMemPool(pool: Out<CUmemoryPool>, ordinal: c_int);

#[direct_without_context(cuDeviceSetMemPool(pool_device(ordinal)?, pool))]
fn cudaDeviceSetMemPool(ordinal: c_int, pool: CUmemoryPool);

#[direct_without_context(cuMemGetDefaultMemPool(pool, location, kind))]
#[only(13)]
fn cudaMemGetDefaultMemPool(pool: *mut CUmemoryPool, location: *mut cudaMemLocation, kind: c_int);

#[direct_without_context(cuMemGetMemPool(pool, location, kind))]
#[only(13)]
fn cudaMemGetMemPool(pool: *mut CUmemoryPool, location: *mut cudaMemLocation, kind: c_int);

#[direct_without_context(cuMemSetMemPool(location, kind, pool))]
#[only(13)]
fn cudaMemSetMemPool(location: *mut cudaMemLocation, kind: c_int, pool: CUmemoryPool);

#[per_thread(ptsz)]
#[direct(cuMemPrefetchAsync_v2(address.addr() as u64, size, location, flags, stream))]
#[cuda12(cudaMemPrefetchAsync_v2)]
fn cudaMemPrefetchAsync(
    address: *const c_void,
    size: usize,
    location: cudaMemLocation,
    flags: c_uint,
    stream: DefaultStream,
);

#[per_thread(ptsz)]
#[direct(cuMemPrefetchBatchAsync(addresses.cast(), sizes, count, locations, indexes, location_count, flags, stream))]
#[only(13)]
fn cudaMemPrefetchBatchAsync(
    addresses: *mut *mut c_void,
    sizes: *mut usize,
    count: usize,
    locations: *mut cudaMemLocation,
    indexes: *mut usize,
    location_count: usize,
    flags: u64,
    stream: DefaultStream,
);

#[per_thread(ptsz)]
#[direct(cuMemDiscardBatchAsync(addresses.cast(), sizes, count, flags, stream))]
#[only(13)]
fn cudaMemDiscardBatchAsync(
    addresses: *mut *mut c_void,
    sizes: *mut usize,
    count: usize,
    flags: u64,
    stream: DefaultStream,
);

#[per_thread(ptsz)]
#[direct(cuMemDiscardAndPrefetchBatchAsync(addresses.cast(), sizes, count, locations, indexes, location_count, flags, stream))]
#[only(13)]
fn cudaMemDiscardAndPrefetchBatchAsync(
    addresses: *mut *mut c_void,
    sizes: *mut usize,
    count: usize,
    locations: *mut cudaMemLocation,
    indexes: *mut usize,
    location_count: usize,
    flags: u64,
    stream: DefaultStream,
);

#[per_thread(ptsz)]
#[direct(cuMemcpyBatchAsync_v2(to.cast_mut().cast(), from.cast_mut().cast(), sizes.cast_mut(), count, attributes.cast(), indexes, attribute_count, stream))]
#[only(13)]
fn cudaMemcpyBatchAsync(
    to: *const *mut c_void,
    from: *const *const c_void,
    sizes: *const usize,
    count: usize,
    attributes: *mut c_void,
    indexes: *mut usize,
    attribute_count: usize,
    stream: DefaultStream,
);

#[per_thread(ptsz)]
#[direct(cuMemcpy3DBatchAsync_v2(count, operations, flags, stream))]
#[only(13)]
fn cudaMemcpy3DBatchAsync(
    count: usize,
    operations: *mut CUDA_MEMCPY3D_BATCH_OP,
    flags: u64,
    stream: DefaultStream,
);

#[per_thread(ptsz)]
#[direct(cuMemcpyWithAttributesAsync(to as CUdeviceptr, from as CUdeviceptr, size, attributes, stream))]
#[only(13)]
fn cudaMemcpyWithAttributesAsync(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    attributes: *const CUmemcpyAttributes,
    stream: DefaultStream,
);
