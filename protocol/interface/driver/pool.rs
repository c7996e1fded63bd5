//! Memory pools (CUDA Driver API, Stream Ordered Memory Allocator).
//!
//! All pools of a device are part of the session's memory. Memory is mapped when the
//! call returns, before the stream reaches the allocation. A block freed in a stream is
//! reused in that stream at once, and elsewhere when the work posted before the free is
//! complete. Host pools consist of pinned memory and managed pools of managed memory, of
//! the stream's session.

/// Allocates from the current pool of the stream's device.
#[since(11020)]
#[per_thread(ptsz)]
#[clears(address)]
fn cuMemAllocAsync(address: *mut CUdeviceptr, size: usize, stream: DefaultStream);

/// Allocates from a pool.
#[since(11020)]
#[per_thread(ptsz)]
#[clears(address)]
#[required(pool)]
fn cuMemAllocFromPoolAsync(
    address: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: DefaultStream,
);

/// Frees memory when the stream's earlier work is complete.
#[since(11020)]
#[per_thread(ptsz)]
fn cuMemFreeAsync(address: CUdeviceptr, stream: DefaultStream);

/// Returns the default pool of a device.
#[since(11020)]
fn cuDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, device: CUdevice);

/// Returns the current pool of a device.
#[since(11020)]
fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, device: CUdevice);

/// Sets the current pool of a device.
#[since(11020)]
#[required(pool)]
fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool);

/// Returns the default pool of a device, the host, a NUMA node of it, or managed memory.
#[since(13000)]
#[required(pool, location)]
fn cuMemGetDefaultMemPool(pool: Out<CUmemoryPool>, location: Out<cudaMemLocation>, kind: c_int);

/// Returns the current pool of a location.
#[since(13000)]
#[required(pool, location)]
fn cuMemGetMemPool(pool: Out<CUmemoryPool>, location: Out<cudaMemLocation>, kind: c_int);

/// Creates a pool of device memory, pinned memory or managed memory.
#[since(11020)]
#[runtime(cudaMemPoolCreate)]
fn cuMemPoolCreate(pool: Out<CUmemoryPool>, properties: In<cudaMemPoolProps>);

/// Destroys a pool; its memory stays allocated until it is freed.
#[since(11020)]
#[runtime(cudaMemPoolDestroy)]
#[required(pool)]
fn cuMemPoolDestroy(pool: CUmemoryPool);

/// Releases free memory of a pool, after waiting for the work that used it.
#[since(11020)]
#[runtime(cudaMemPoolTrimTo)]
#[required(pool)]
fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);

/// Returns an attribute of a pool.
#[since(11020)]
#[runtime(cudaMemPoolGetAttribute)]
#[required(pool)]
fn cuMemPoolGetAttribute(pool: CUmemoryPool, which: c_int, value: *mut c_void);

/// Sets a reuse policy or the release threshold of a pool, or resets a high-water mark. Reuse
/// policies are stored without effect.
#[since(11020)]
#[runtime(cudaMemPoolSetAttribute)]
#[required(pool)]
fn cuMemPoolSetAttribute(pool: CUmemoryPool, which: c_int, value: *mut c_void);

/// Sets the access of devices to a pool's memory. The device that holds it, and the host to its
/// own pools, always have access.
#[since(11020)]
#[runtime(cudaMemPoolSetAccess)]
#[required(pool)]
fn cuMemPoolSetAccess(pool: CUmemoryPool, access: *const cudaMemAccessDesc, number: usize);

/// Returns the access of a location to a pool's memory.
#[since(11020)]
#[required(pool)]
fn cuMemPoolGetAccess(flags: Out<c_int>, pool: CUmemoryPool, location: Out<cudaMemLocation>);

/// Sets the current pool of a location.
#[since(13000)]
fn cuMemSetMemPool(location: Out<cudaMemLocation>, kind: c_int, pool: CUmemoryPool);
