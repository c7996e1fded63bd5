//! Memory pools (CUDA Driver API, Stream Ordered Memory Allocator).
//!
//! All pools of a device are the session's memory. An allocation is there when
//! the call returns, which is before the stream gets to it; memory freed in a
//! stream is used again when all work posted before is over.

use std::ffi::{c_int, c_void};

use paragpu_abi::{
    CUdevice, CUdeviceptr, CUmemoryPool, CUstream, cudaMemAccessDesc, cudaMemLocation,
    cudaMemPoolProps,
};
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use super::boundary::{In, Out};
use super::{Result, device, get, memory, present, put, unsupported_use};
use crate::current;
use crate::named_stream;
use crate::objects::pool::Pool;
use crate::objects::{self, Object};

/// CU_MEM_LOCATION_TYPE_DEVICE.
const LOCATION_DEVICE: c_int = 1;
/// Attributes whose value is an `int`: reuse policies.
const REUSE: std::ops::RangeInclusive<c_int> = 1..=3;
/// CU_MEMPOOL_ATTR_RELEASE_THRESHOLD.
const RELEASE_THRESHOLD: c_int = 4;
/// Reserved and used bytes, now and at most.
const USE: std::ops::RangeInclusive<c_int> = 5..=8;
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
        pools.default = objects::insert(Object::Pool(Pool::new(ordinal))).addr();
        pools.current = pools.default;
    }
    Ok(with(&mut pools))
}

fn handle(number: usize) -> CUmemoryPool {
    std::ptr::without_provenance_mut(number)
}

fn with_pool<R>(pool: CUmemoryPool, with: impl FnOnce(&Pool) -> Result<R>) -> Result<R> {
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

fn allocate(size: usize, stream: CUstream, ordinal: Option<u32>) -> Result<u64> {
    let named = named_stream::named(stream)?;
    if named.stream()?.is_capturing() {
        return Err(unsupported_use!("cuMemAllocAsync in a capture"));
    }
    let session = match ordinal {
        Some(ordinal) => device::session(ordinal)?,
        None => named.session()?,
    };
    let address = session.memory().allocate(size as u64)?;
    if let Ok(current) = current::current()
        && std::ptr::eq(current.session, session)
    {
        current.keep_memory(address);
    }
    Ok(address)
}

fn device_of(location: &cudaMemLocation) -> Result<CUdevice> {
    if location.r#type == LOCATION_DEVICE {
        Ok(location.id)
    } else {
        Err(Status::NOT_SUPPORTED)
    }
}

pub(crate) unsafe fn cuMemAllocAsync(
    address: *mut CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> Result {
    present(address)?;
    put(address, allocate(size, stream, None)?)
}

pub(crate) unsafe fn cuMemAllocFromPoolAsync(
    address: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Result {
    present(address)?;
    let ordinal = with_pool(pool, |pool| Ok(pool.ordinal()))?;
    put(address, allocate(size, stream, Some(ordinal))?)
}

pub(crate) fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> Result {
    if named_stream::named(stream)?.stream()?.is_capturing() {
        return Err(unsupported_use!("cuMemFreeAsync in a capture"));
    }
    if address == 0 {
        return Err(Status::INVALID_VALUE);
    }
    memory::owner(address)?.memory().free(address)
}

pub(crate) fn cuDeviceGetDefaultMemPool(pool: Out<'_, CUmemoryPool>, device: CUdevice) -> Result {
    pool.put(handle(with_pools(device, |pools| pools.default)?))
}

pub(crate) fn cuDeviceGetMemPool(pool: Out<'_, CUmemoryPool>, device: CUdevice) -> Result {
    pool.put(handle(with_pools(device, |pools| pools.current)?))
}

pub(crate) fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> Result {
    let ordinal = device::ordinal(device)?;
    if with_pool(pool, |pool| Ok(pool.ordinal()))? != ordinal {
        return Err(Status::INVALID_VALUE);
    }
    with_pools(device, |pools| pools.current = pool.addr())
}

pub(crate) unsafe fn cuMemGetDefaultMemPool(
    pool: Out<'_, CUmemoryPool>,
    location: *mut cudaMemLocation,
    kind: c_int,
) -> Result {
    let _ = kind;
    let device = device_of(get(location.cast_const())?)?;
    pool.put(handle(with_pools(device, |pools| pools.default)?))
}

pub(crate) unsafe fn cuMemGetMemPool(
    pool: Out<'_, CUmemoryPool>,
    location: *mut cudaMemLocation,
    kind: c_int,
) -> Result {
    let _ = kind;
    let device = device_of(get(location.cast_const())?)?;
    pool.put(handle(with_pools(device, |pools| pools.current)?))
}

pub(crate) fn cuMemPoolCreate(
    pool: Out<'_, CUmemoryPool>,
    properties: In<'_, cudaMemPoolProps>,
) -> Result {
    let properties = properties.get()?;
    if properties.handleTypes != 0 {
        return Err(unsupported_use!("cuMemPoolCreate with handle types"));
    }
    let ordinal = device::ordinal(device_of(&properties.location)?)?;
    pool.put(objects::insert(Object::Pool(Pool::new(ordinal))))
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
    let _ = keep;
    let ordinal = with_pool(pool, |pool| Ok(pool.ordinal()))?;
    device::session(ordinal)?.memory().trim()
}

pub(crate) unsafe fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    which: c_int,
    value: *mut c_void,
) -> Result {
    if value.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    with_pool(pool, |pool| {
        let state = pool.state();
        if REUSE.contains(&which) {
            let index = usize::try_from(which - 1).unwrap_or(0);
            value
                .cast::<c_int>()
                .write(state.reuse.get(index).copied().unwrap_or(0));
        } else if which == RELEASE_THRESHOLD {
            value.cast::<u64>().write(state.threshold);
        } else if USE.contains(&which) {
            let used = device::session(pool.ordinal())?.memory().used();
            value.cast::<u64>().write(used);
        } else {
            return Err(Status::INVALID_VALUE);
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    which: c_int,
    value: *mut c_void,
) -> Result {
    if value.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    with_pool(pool, |pool| {
        let mut state = pool.state();
        if REUSE.contains(&which) {
            let index = usize::try_from(which - 1).unwrap_or(0);
            if let Some(place) = state.reuse.get_mut(index) {
                *place = value.cast::<c_int>().read();
            }
        } else if which == RELEASE_THRESHOLD {
            state.threshold = value.cast::<u64>().read();
        } else if !USE.contains(&which) {
            return Err(Status::INVALID_VALUE);
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    access: *const cudaMemAccessDesc,
    number: usize,
) -> Result {
    let ordinal = with_pool(pool, |pool| Ok(pool.ordinal()))?;
    for at in 0..number {
        let access = get(access.wrapping_add(at))?;
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

pub(crate) unsafe fn cuMemPoolGetAccess(
    flags: Out<'_, c_int>,
    pool: CUmemoryPool,
    location: *mut cudaMemLocation,
) -> Result {
    let ordinal = with_pool(pool, |pool| Ok(pool.ordinal()))?;
    let asked = device::ordinal(device_of(get(location.cast_const())?)?)?;
    flags.put(if asked == ordinal { READ_WRITE } else { 0 })
}
