//! Memory pools (CUDA Driver API, Stream Ordered Memory Allocator).
//!
//! All pools of a device are the session's memory. An allocation is there when
//! the call returns, which is before the stream gets to it; memory freed in a
//! stream is used again when all work posted before is over. Pools of the host have
//! pinned memory, and managed pools managed memory, of the stream's session.

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

/// Frees when the work posted so far is over.
#[since(11020)]
#[per_thread(ptsz)]
fn cuMemFreeAsync(address: CUdeviceptr, stream: DefaultStream);

/// The device's first pool.
#[since(11020)]
fn cuDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, device: CUdevice);

/// The pool that allocations come from.
#[since(11020)]
fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, device: CUdevice);

/// Changes it.
#[since(11020)]
#[required(pool)]
fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool);

/// The first pool of a device, the host or a node of it, or of managed memory.
#[since(13000)]
#[required(pool, location)]
fn cuMemGetDefaultMemPool(pool: Out<CUmemoryPool>, location: Out<cudaMemLocation>, kind: c_int);

/// The current pool of a location.
#[since(13000)]
#[required(pool, location)]
fn cuMemGetMemPool(pool: Out<CUmemoryPool>, location: Out<cudaMemLocation>, kind: c_int);

/// A pool of a device's memory, of pinned memory or of managed memory.
#[since(11020)]
#[runtime(cudaMemPoolCreate)]
fn cuMemPoolCreate(pool: Out<CUmemoryPool>, properties: In<cudaMemPoolProps>);

/// Ends a pool; memory from it stays until it is freed.
#[since(11020)]
#[runtime(cudaMemPoolDestroy)]
#[required(pool)]
fn cuMemPoolDestroy(pool: CUmemoryPool);

/// Waits for work, so that what was freed goes back to the host.
#[since(11020)]
#[runtime(cudaMemPoolTrimTo)]
#[required(pool)]
fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);

/// An attribute.
#[since(11020)]
#[runtime(cudaMemPoolGetAttribute)]
#[required(pool)]
fn cuMemPoolGetAttribute(pool: CUmemoryPool, which: c_int, value: *mut c_void);

/// Policies are kept; they change no result. High-water marks follow use.
#[since(11020)]
#[runtime(cudaMemPoolSetAttribute)]
#[required(pool)]
fn cuMemPoolSetAttribute(pool: CUmemoryPool, which: c_int, value: *mut c_void);

/// Memory of a device is reached by that device alone.
#[since(11020)]
#[runtime(cudaMemPoolSetAccess)]
#[required(pool)]
fn cuMemPoolSetAccess(pool: CUmemoryPool, access: *const cudaMemAccessDesc, number: usize);

/// Who reaches a pool's memory.
#[since(11020)]
#[required(pool)]
fn cuMemPoolGetAccess(flags: Out<c_int>, pool: CUmemoryPool, location: Out<cudaMemLocation>);

/// Changes it.
#[since(13000)]
fn cuMemSetMemPool(location: Out<cudaMemLocation>, kind: c_int, pool: CUmemoryPool);
