//! Memory pools (CUDA Driver API, Stream Ordered Memory Allocator).
//!
//! All pools of a device are the session's memory. An allocation is there when
//! the call returns, which is before the stream gets to it; memory freed in a
//! stream is used again when all work posted before is over.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use paragpu_abi::{
    CUdevice, CUdeviceptr, CUmemoryPool, CUstream, cudaMemAccessDesc, cudaMemLocation,
    cudaMemPoolProps,
};
use paragpu_client::objects::graph::Work;
use paragpu_client::objects::graph_memory::GraphMemory;
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use super::boundary::{In, Out};
use super::location::{PINNED, device_of, ordinal_of};
use super::{Result, device, get, graph_memory, memory, present, put, unsupported_use};
use crate::current;
use crate::named_stream;
use crate::objects::pool::Pool;
use crate::objects::{self, Object};

/// Attributes whose value is an `int`: reuse policies.
const REUSE: std::ops::RangeInclusive<c_int> = 1..=3;
/// CU_MEMPOOL_ATTR_RELEASE_THRESHOLD.
const RELEASE_THRESHOLD: c_int = 4;
/// CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT.
const RESERVED: c_int = 5;
/// CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH.
const RESERVED_HIGH: c_int = 6;
/// CU_MEMPOOL_ATTR_USED_MEM_CURRENT.
const USED: c_int = 7;
/// CU_MEMPOOL_ATTR_USED_MEM_HIGH.
const USED_HIGH: c_int = 8;
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
pub(super) const DESCRIPTOR: c_int = 1;
/// CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
const READ_WRITE: c_int = 3;

struct Pools {
    /// Made at the first question.
    default: usize,
    current: usize,
}

static POOLS: [Mutex<Pools>; MAX_DEVICES as usize] = [const {
    Mutex::new(Pools {
        default: 0,
        current: 0,
    })
}; MAX_DEVICES as usize];

fn with_pools<R>(device: CUdevice, with: impl FnOnce(&mut Pools) -> R) -> Result<R> {
    let ordinal = device::ordinal(device)?;
    let pools = POOLS.get(ordinal as usize).ok_or(Status::INVALID_DEVICE)?;
    let mut pools = pools.lock();
    if pools.default == 0 {
        pools.default = insert(Pool::new(ordinal, 0)).addr();
        pools.current = pools.default;
    }
    Ok(with(&mut pools))
}

/// [`with_pools`] of functions that call a device that does not exist an invalid
/// value.
fn with_current<R>(device: CUdevice, with: impl FnOnce(&mut Pools) -> R) -> Result<R> {
    let ordinal = device::ordinal(device).map_err(|_| Status::INVALID_VALUE)?;
    with_pools(device::number(ordinal), with)
}

/// Gives a pool a handle.
pub(crate) fn insert(pool: Pool) -> CUmemoryPool {
    let account = Arc::clone(pool.account());
    let handle: CUmemoryPool = objects::insert(Object::Pool(pool));
    account.named(handle.addr());
    handle
}

fn handle(number: usize) -> CUmemoryPool {
    std::ptr::without_provenance_mut(number)
}

pub(crate) fn with_pool<R>(pool: CUmemoryPool, with: impl FnOnce(&Pool) -> Result<R>) -> Result<R> {
    let found = objects::find(pool).ok_or(Status::INVALID_HANDLE)?;
    match &**found {
        Object::Pool(pool) => with(pool),
        _ => Err(Status::INVALID_HANDLE),
    }
}

fn is_default(pool: CUmemoryPool, ordinal: u32) -> bool {
    with_pools(device::number(ordinal), |pools| {
        pools.default == pool.addr()
    })
    .unwrap_or(false)
}

fn allocate(size: usize, stream: CUstream, pool: Option<CUmemoryPool>) -> Result<u64> {
    let named = named_stream::named(stream)?;
    let pool = match pool {
        Some(pool) => pool,
        None => {
            let ordinal = named.session()?.ordinal();
            handle(with_pools(device::number(ordinal), |pools| pools.current)?)
        }
    };
    let (ordinal, account) = with_pool(pool, |pool| {
        if pool.imports().is_some() {
            return Err(Status::INVALID_VALUE);
        }
        Ok((pool.ordinal(), Arc::clone(pool.account())))
    })?;
    let session = device::session(ordinal)?;
    let size = size as u64;
    let stream = named.stream()?;
    if stream.is_capturing() {
        let memory = session.graph_memory(size)?;
        stream.note(Work::MemAlloc(Arc::clone(&memory)))?;
        return Ok(memory.address);
    }
    if !account.take(size) {
        return Err(Status::OUT_OF_MEMORY);
    }
    let address = match session.memory().allocate(size) {
        Ok(address) => address,
        Err(status) => {
            account.give_back(size);
            return Err(status);
        }
    };
    account.placed(address, size);
    if let Ok(current) = current::current()
        && std::ptr::eq(current.session, session)
    {
        current.keep_memory(address);
    }
    Ok(address)
}

/// # Safety
/// As CUDA's manual says for cuMemAllocAsync.
pub(crate) unsafe fn cuMemAllocAsync(
    address: *mut CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> Result {
    present(address)?;
    if size == 0 {
        return named_stream::named(stream).map(|_| ());
    }
    // SAFETY: `address` is null or writable, as the caller promises.
    unsafe { put(address, allocate(size, stream, None)?) }
}

/// # Safety
/// As CUDA's manual says for cuMemAllocFromPoolAsync.
pub(crate) unsafe fn cuMemAllocFromPoolAsync(
    address: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Result {
    present(address)?;
    if size == 0 {
        return named_stream::named(stream).map(|_| ());
    }
    // SAFETY: `address` is null or writable, as the caller promises.
    unsafe { put(address, allocate(size, stream, Some(pool))?) }
}

pub(crate) fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> Result {
    let named = named_stream::named(stream)?;
    if address == 0 {
        return Ok(());
    }
    let stream = named.stream()?;
    if stream.is_capturing() {
        if GraphMemory::find(address).is_none() {
            let what = "cuMemFreeAsync in a capture of memory from outside";
            return Err(unsupported_use!(what));
        }
        return stream.note(graph_memory::release(address)?);
    }
    memory::release(memory::owner(address)?, address)
}

pub(crate) fn cuDeviceGetDefaultMemPool(pool: Out<'_, CUmemoryPool>, device: CUdevice) -> Result {
    pool.put(handle(with_pools(device, |pools| pools.default)?))
}

pub(crate) fn cuDeviceGetMemPool(pool: Out<'_, CUmemoryPool>, device: CUdevice) -> Result {
    pool.put(handle(with_current(device, |pools| pools.current)?))
}

pub(crate) fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> Result {
    let ordinal = device::ordinal(device).map_err(|_| Status::INVALID_VALUE)?;
    if with_pool(pool, |pool| Ok(pool.ordinal()))? != ordinal {
        return Err(Status::INVALID_VALUE);
    }
    with_current(device, |pools| pools.current = pool.addr())
}

/// # Safety
/// As CUDA's manual says for cuMemGetDefaultMemPool.
pub(crate) unsafe fn cuMemGetDefaultMemPool(
    pool: Out<'_, CUmemoryPool>,
    location: *mut cudaMemLocation,
    kind: c_int,
) -> Result {
    let _ = kind;
    // SAFETY: `location` is null or readable, as the caller promises.
    let device = device_of(unsafe { get(location.cast_const()) }?)?;
    pool.put(handle(with_pools(device, |pools| pools.default)?))
}

/// # Safety
/// As CUDA's manual says for cuMemGetMemPool.
pub(crate) unsafe fn cuMemGetMemPool(
    pool: Out<'_, CUmemoryPool>,
    location: *mut cudaMemLocation,
    kind: c_int,
) -> Result {
    let _ = kind;
    // SAFETY: `location` is null or readable, as the caller promises.
    let device = device_of(unsafe { get(location.cast_const()) }?)?;
    pool.put(handle(with_pools(device, |pools| pools.current)?))
}

/// # Safety
/// As CUDA's manual says for cuMemSetMemPool.
pub(crate) unsafe fn cuMemSetMemPool(
    location: *mut cudaMemLocation,
    kind: c_int,
    pool: CUmemoryPool,
) -> Result {
    // SAFETY: `location` is null or readable, as the caller promises.
    let location = unsafe { get(location.cast_const()) }?;
    if pool.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    if kind != PINNED {
        return Err(unsupported_use!("cuMemSetMemPool for memory of this type"));
    }
    cuDeviceSetMemPool(device_of(location)?, pool)
}

pub(crate) fn cuMemPoolCreate(
    pool: Out<'_, CUmemoryPool>,
    properties: In<'_, cudaMemPoolProps>,
) -> Result {
    let properties = properties.get()?;
    let is_shared = properties.handleTypes == DESCRIPTOR;
    if properties.handleTypes != 0 && !is_shared {
        return Err(unsupported_use!("cuMemPoolCreate for handles of this type"));
    }
    let ordinal = ordinal_of(properties)?;
    let most = properties.maxSize as u64;
    pool.put(insert(match is_shared {
        true => Pool::for_others(ordinal, most),
        false => Pool::new(ordinal, most),
    }))
}

pub(crate) fn cuMemPoolDestroy(pool: CUmemoryPool) -> Result {
    let ordinal = with_pool(pool, |pool| Ok(pool.ordinal()))?;
    if is_default(pool, ordinal) {
        return Err(Status::INVALID_VALUE);
    }
    objects::remove(pool, |object| matches!(object, Object::Pool(_)));
    with_pools(device::number(ordinal), |pools| {
        if pools.current == pool.addr() {
            pools.current = pools.default;
        }
    })
}

pub(crate) fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> Result {
    let (ordinal, reserved) = with_pool(pool, |pool| {
        Ok((pool.ordinal(), pool.account().reserved().now))
    })?;
    if keep as u64 >= reserved && reserved > 0 {
        return Ok(());
    }
    device::session(ordinal)?.memory().trim()?;
    with_pool(pool, |pool| {
        pool.account().trim(keep as u64);
        Ok(())
    })
}

/// # Safety
/// As CUDA's manual says for cuMemPoolGetAttribute.
pub(crate) unsafe fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    which: c_int,
    value: *mut c_void,
) -> Result {
    if value.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    with_pool(pool, |pool| {
        if REUSE.contains(&which) {
            let index = usize::try_from(which - 1).unwrap_or(0);
            let policy = pool.state().reuse.get(index).copied().unwrap_or(0);
            // SAFETY: the pointer is writable here, as the caller promises.
            unsafe { value.cast::<c_int>().write(policy) };
            return Ok(());
        }
        let account = pool.account();
        let asked = match which {
            RELEASE_THRESHOLD => account.threshold(),
            RESERVED => account.reserved().now,
            RESERVED_HIGH => account.reserved().most,
            USED => account.used().now,
            USED_HIGH => account.used().most,
            _ => return Err(Status::INVALID_VALUE),
        };
        // SAFETY: `value` is writable here, as the caller promises.
        unsafe { value.cast::<u64>().write(asked) };
        Ok(())
    })
}

/// # Safety
/// As CUDA's manual says for cuMemPoolSetAttribute.
pub(crate) unsafe fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    which: c_int,
    value: *mut c_void,
) -> Result {
    if value.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    with_pool(pool, |pool| {
        if REUSE.contains(&which) {
            let index = usize::try_from(which - 1).unwrap_or(0);
            if let Some(place) = pool.state().reuse.get_mut(index) {
                // SAFETY: `value` is readable here, as the caller promises.
                *place = unsafe { value.cast::<c_int>().read() };
            }
            return Ok(());
        }
        if ![RELEASE_THRESHOLD, RESERVED_HIGH, USED_HIGH].contains(&which) {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: `value` is readable here, as the caller promises.
        let wanted = unsafe { value.cast::<u64>().read() };
        match (which, wanted) {
            (RELEASE_THRESHOLD, bytes) => pool.account().set_threshold(bytes),
            (RESERVED_HIGH, 0) => pool.account().reset_reserved(),
            (USED_HIGH, 0) => pool.account().reset_used(),
            _ => return Err(Status::INVALID_VALUE),
        }
        Ok(())
    })
}

/// # Safety
/// As CUDA's manual says for cuMemPoolSetAccess.
pub(crate) unsafe fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    access: *const cudaMemAccessDesc,
    number: usize,
) -> Result {
    let ordinal = with_pool(pool, |pool| Ok(pool.ordinal()))?;
    for at in 0..number {
        // SAFETY: the pointer is null or readable, as the caller promises.
        let access = unsafe { get(access.wrapping_add(at)) }?;
        if device::ordinal(device_of(&access.location)?)? != ordinal {
            /// CUDA_ERROR_PEER_ACCESS_UNSUPPORTED.
            const PEER_ACCESS_UNSUPPORTED: Status = Status(217);
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        if access.flags != READ_WRITE {
            return Err(Status::INVALID_VALUE);
        }
    }
    Ok(())
}

/// # Safety
/// As CUDA's manual says for cuMemPoolGetAccess.
pub(crate) unsafe fn cuMemPoolGetAccess(
    flags: Out<'_, c_int>,
    pool: CUmemoryPool,
    location: *mut cudaMemLocation,
) -> Result {
    let ordinal = with_pool(pool, |pool| Ok(pool.ordinal()))?;
    // SAFETY: `location` is null or readable, as the caller promises.
    let asked = device::ordinal(device_of(unsafe { get(location.cast_const()) }?)?)?;
    flags.put(if asked == ordinal { READ_WRITE } else { 0 })
}
