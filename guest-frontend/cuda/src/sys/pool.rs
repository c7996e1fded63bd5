//! Memory pools (CUDA Driver API, Stream Ordered Memory Allocator).
//!
//! All pools of a device use the session's memory. An allocation exists when the call
//! returns, before the stream reaches it. Memory freed in a stream is reused in that
//! stream, or once all work posted before is complete. Memory that other processes may
//! use is never kept for reuse.
//!
//! Pools in the host use pinned memory of the session whose stream allocates. The program
//! and that device can access it, regardless of the access that is set. Managed pools use
//! managed memory ([`allocate_for_devices`]).

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use paragpu_abi::{
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA,
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
    CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
    CU_MEMPOOL_ATTR_USED_MEM_HIGH, CUdevice, CUdeviceptr, CUmemoryPool, CUstream,
    cudaMemAccessDesc, cudaMemLocation, cudaMemPoolProps,
};
use paragpu_client::Session;
use paragpu_client::objects::graph::Work;
use paragpu_client::objects::graph_memory::GraphMemory;
use paragpu_client::stream::Stream;
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use super::boundary::{In, Out};
use super::managed::allocate_for_devices;
use super::{Result, device, get, graph_memory, host, memory, present, put, unsupported_use};
use crate::address::is_in_arena;
use crate::location::device_of;
use crate::location::{location_of_pool, resolve};
use crate::named_stream::{self, Named};
use crate::objects::context::forget_memory;
use crate::objects::pool::{Pool, PoolLocation};
use crate::objects::{self, Object, peers, pool};
use crate::{current, managed};

/// Attributes whose value is an `int`: reuse policies.
const REUSE: std::ops::RangeInclusive<c_int> = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
    ..=CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;

/// The pools of a location; handles as numbers. Read without a lock: each
/// cuMemAllocAsync asks for the current one.
struct Pools {
    /// Created on first use.
    default: OnceLock<usize>,
    /// 0 for the default pool.
    current: AtomicUsize,
}

impl Pools {
    const fn new() -> Self {
        Self {
            default: OnceLock::new(),
            current: AtomicUsize::new(0),
        }
    }

    fn default(&self, location: PoolLocation) -> usize {
        let make = || insert(Pool::new(location, 0)).addr();
        *self.default.get_or_init(make)
    }

    fn current(&self, location: PoolLocation) -> usize {
        match self.current.load(Ordering::Relaxed) {
            0 => self.default(location),
            current => current,
        }
    }

    fn set_current(&self, pool: usize) {
        self.current.store(pool, Ordering::Relaxed);
    }

    /// The default pool replaces one that the program destroyed.
    fn forget(&self, pool: usize) {
        let _ = self
            .current
            .compare_exchange(pool, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

static POOLS: [Pools; MAX_DEVICES as usize] = [const { Pools::new() }; MAX_DEVICES as usize];
/// The pools of locations other than devices.
static ELSEWHERE: Mutex<BTreeMap<PoolLocation, Pools>> = Mutex::new(BTreeMap::new());

fn with_pools<R>(location: PoolLocation, with: impl FnOnce(&Pools) -> R) -> Result<R> {
    if let PoolLocation::Device(ordinal) = location {
        let pools = POOLS.get(ordinal as usize);
        return pools.map(with).ok_or(Status::INVALID_DEVICE);
    }
    let mut elsewhere = ELSEWHERE.lock();
    Ok(with(elsewhere.entry(location).or_insert_with(Pools::new)))
}

fn default_pool(location: PoolLocation) -> Result<CUmemoryPool> {
    with_pools(location, |pools| {
        std::ptr::without_provenance_mut(pools.default(location))
    })
}

fn current_pool(location: PoolLocation) -> Result<CUmemoryPool> {
    with_pools(location, |pools| {
        std::ptr::without_provenance_mut(pools.current(location))
    })
}

/// The memory of a device, for functions that return INVALID_VALUE for one that does not
/// exist.
fn memory_of(device: CUdevice) -> Result<PoolLocation> {
    let ordinal = device::ordinal(device).map_err(|_| Status::INVALID_VALUE)?;
    Ok(PoolLocation::Device(ordinal))
}

fn set_current(location: PoolLocation, pool: CUmemoryPool) -> Result {
    if with_pool(pool, |pool| Ok(pool.location()))? != location {
        return Err(Status::INVALID_VALUE);
    }
    with_pools(location, |pools| pools.set_current(pool.addr()))
}

/// Gives a pool a handle.
pub(crate) fn insert(pool: Pool) -> CUmemoryPool {
    let account = Arc::clone(pool.account());
    let handle: CUmemoryPool = objects::insert(Object::Pool(pool));
    account.named(handle.addr());
    handle
}

pub(crate) fn with_pool<R>(pool: CUmemoryPool, with: impl FnOnce(&Pool) -> Result<R>) -> Result<R> {
    let found = objects::find(pool).ok_or(Status::INVALID_HANDLE)?;
    match &**found {
        Object::Pool(pool) => with(pool),
        _ => Err(Status::INVALID_HANDLE),
    }
}

fn allocate(size: usize, stream: CUstream, pool: Option<CUmemoryPool>) -> Result<u64> {
    let named = named_stream::named(stream)?;
    let from = |pool| with_pool(pool, |pool| allocate_from(pool, size, &named));
    if let Some(pool) = pool {
        return from(pool);
    }
    let location = PoolLocation::Device(named.session()?.ordinal());
    loop {
        let current = current_pool(location)?;
        match from(current) {
            // Another thread destroyed it.
            Err(Status::INVALID_HANDLE) if current_pool(location)? != current => {}
            allocated => return allocated,
        }
    }
}

fn allocate_from(pool: &Pool, size: usize, named: &Named) -> Result<u64> {
    if pool.imports().is_some() {
        return Err(Status::INVALID_VALUE);
    }
    let (location, account) = (pool.location(), pool.account());
    let session = match location {
        PoolLocation::Device(ordinal) => device::session(ordinal)?,
        PoolLocation::Host(_) | PoolLocation::Managed(_) => named.session()?,
    };
    let size = size as u64;
    let stream = named.stream()?;
    if stream.is_capturing() {
        if location.ordinal().is_none() {
            return Err(unsupported_use!(
                "cuMemAllocFromPoolAsync of memory in the host in a capture",
                "nodes of graphs allocate memory of devices only"
            ));
        }
        let info = stream.capture_info();
        let place = info.as_ref().map(|info| (&*info.graph, &*info.last));
        let memory = session.graph_memory(place, size)?;
        stream.note(Work::MemAlloc(Arc::clone(&memory), size))?;
        return Ok(memory.address);
    }
    if !account.take(size) {
        return Err(Status::OUT_OF_MEMORY);
    }
    let is_own = std::ptr::eq(session, named.session()?);
    let of_device = || match account.owner().filter(|_| is_own) {
        Some(owner) => session.memory().allocate_in(size, owner, stream),
        None => session.memory().allocate(size),
    };
    let allocated = match location {
        PoolLocation::Device(_) => match current::current() {
            Ok(current) if std::ptr::eq(current.session, session) => current.allocate(of_device),
            _ => of_device(),
        },
        PoolLocation::Host(_) => session.host().allocate_pooled(size, stream),
        PoolLocation::Managed(_) => allocate_managed(session, size, stream),
    };
    let address = allocated.inspect_err(|_| account.give_back(size))?;
    account.placed(address, size);
    if let PoolLocation::Managed(preferred) = location {
        managed::insert_preferring(address, size, preferred);
        let memory = session.managed_memory();
        memory.expect_program(address, size, preferred.is_host());
    }
    Ok(address)
}

fn allocate_managed(session: &Session, size: u64, stream: &Stream) -> Result<u64> {
    match allocate_for_devices(session, size)? {
        Some(address) => Ok(address),
        None => session.host().allocate_pooled(size, stream),
    }
}

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

/// Frees host memory of a pool in the order of a stream.
fn free_in_host(address: u64, named: &Named) -> Result {
    let (session, _) = host::pinned(address).ok_or(Status::INVALID_VALUE)?;
    let (own, stream) = named.both()?;
    forget_memory(address);
    let _ = managed::remove(address);
    let is_copied = peers::end_copies(session, address);
    pool::freeing(address, || {
        if std::ptr::eq(session, own) && !is_copied {
            return session.host().free_pooled(address, stream);
        }
        // The session that has the memory cannot order the free after another device's
        // stream.
        own.streams().synchronize(stream)?;
        session.host().free(address)
    })
}

pub(crate) fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> Result {
    let named = named_stream::named(stream)?;
    if address == 0 {
        return Ok(());
    }
    let stream = named.stream()?;
    if stream.is_capturing() {
        if GraphMemory::find(address).is_none() {
            return Err(unsupported_use!(
                "cuMemFreeAsync in a capture of memory from outside",
                "nodes of graphs free what nodes allocated"
            ));
        }
        return stream.note(graph_memory::release(address)?);
    }
    if !is_in_arena(address) && pool::of(address) != 0 {
        return free_in_host(address, &named);
    }
    let session = memory::owner(address)?;
    let own = named.session()?;
    if !std::ptr::eq(session, own) {
        // The session that has the memory cannot order the free after another device's stream.
        own.streams().synchronize(stream)?;
        return memory::release(session, address);
    }
    if session.managed_memory().holds(address) {
        return memory::release(session, address);
    }
    forget_memory(address);
    let free = |owner| session.memory().free_in(address, owner, stream);
    pool::freeing_own(address, free).unwrap_or_else(|| memory::release(session, address))
}

pub(crate) fn cuDeviceGetDefaultMemPool(pool: Out<'_, CUmemoryPool>, device: CUdevice) -> Result {
    pool.put(default_pool(PoolLocation::Device(device::ordinal(
        device,
    )?))?)
}

pub(crate) fn cuDeviceGetMemPool(pool: Out<'_, CUmemoryPool>, device: CUdevice) -> Result {
    pool.put(current_pool(memory_of(device)?)?)
}

pub(crate) fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> Result {
    set_current(memory_of(device)?, pool)
}

pub(crate) unsafe fn cuMemGetDefaultMemPool(
    pool: Out<'_, CUmemoryPool>,
    location: *mut cudaMemLocation,
    kind: c_int,
) -> Result {
    // SAFETY: `location` is null or readable, as the caller promises.
    let resolved = resolve(unsafe { get(location.cast_const()) }?, kind)?;
    pool.put(default_pool(resolved)?)
}

pub(crate) unsafe fn cuMemGetMemPool(
    pool: Out<'_, CUmemoryPool>,
    location: *mut cudaMemLocation,
    kind: c_int,
) -> Result {
    // SAFETY: `location` is null or readable, as the caller promises.
    let resolved = resolve(unsafe { get(location.cast_const()) }?, kind)?;
    pool.put(current_pool(resolved)?)
}

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
    set_current(resolve(location, kind)?, pool)
}

pub(crate) fn cuMemPoolCreate(
    pool: Out<'_, CUmemoryPool>,
    properties: In<'_, cudaMemPoolProps>,
) -> Result {
    let properties = properties.get()?;
    let location = location_of_pool(properties).map_err(|status| match status {
        Status::INVALID_DEVICE => Status::INVALID_VALUE,
        other => other,
    })?;
    let most = properties.maxSize as u64;
    let made = match (location, properties.handleTypes) {
        (_, 0) => Pool::new(location, most),
        (PoolLocation::Device(ordinal), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) => {
            Pool::for_others(ordinal, most)
        }
        (PoolLocation::Device(_), _) => {
            return Err(unsupported_use!(
                "cuMemPoolCreate for handles of this type",
                "the guest passes memory between processes by file descriptors only"
            ));
        }
        (PoolLocation::Host(location), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
            if location.kind == CU_MEM_LOCATION_TYPE_HOST_NUMA =>
        {
            return Err(unsupported_use!(
                "cuMemPoolCreate of memory in the host for other processes",
                "the guest passes memory of devices between processes only"
            ));
        }
        (PoolLocation::Host(_) | PoolLocation::Managed(_), _) => return Err(Status::INVALID_VALUE),
    };
    pool.put(insert(made))
}

pub(crate) fn cuMemPoolDestroy(pool: CUmemoryPool) -> Result {
    let location = with_pool(pool, |pool| Ok(pool.location()))?;
    if default_pool(location) == Ok(pool) {
        return Err(Status::INVALID_VALUE);
    }
    // First: another thread may allocate from the device's current pool.
    with_pools(location, |pools| pools.forget(pool.addr()))?;
    objects::remove(pool, |object| matches!(object, Object::Pool(_)));
    pool::ended(pool.addr());
    match location.ordinal().and_then(device::session_if_open) {
        Some(session) => session.memory().settle_pools(pool::may_keep),
        None => Ok(()),
    }
}

pub(crate) fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> Result {
    let (location, reserved) = with_pool(pool, |pool| {
        Ok((pool.location(), pool.account().reserved().now))
    })?;
    if keep as u64 >= reserved && reserved > 0 {
        return Ok(());
    }
    match location {
        PoolLocation::Device(ordinal) => device::session(ordinal)?.memory().trim()?,
        PoolLocation::Host(_) | PoolLocation::Managed(_) => {
            let sessions = (0..MAX_DEVICES).filter_map(device::session_if_open);
            for session in sessions {
                session.host().trim_pooled(keep as u64)?;
            }
        }
    }
    with_pool(pool, |pool| {
        pool.account().trim(keep as u64);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attribute: c_int,
    value: *mut c_void,
) -> Result {
    if value.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    with_pool(pool, |pool| {
        if REUSE.contains(&attribute) {
            let index = usize::try_from(attribute - 1).unwrap_or(0);
            let policy = pool.state().reuse.get(index).copied().unwrap_or(0);
            // SAFETY: the pointer is writable here, as the caller promises.
            unsafe { value.cast::<c_int>().write(policy) };
            return Ok(());
        }
        let account = pool.account();
        let number = match attribute {
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => account.threshold(),
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => account.reserved().now,
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => account.reserved().most,
            CU_MEMPOOL_ATTR_USED_MEM_CURRENT => account.used().now,
            CU_MEMPOOL_ATTR_USED_MEM_HIGH => account.used().most,
            _ => return Err(Status::INVALID_VALUE),
        };
        // SAFETY: `value` is writable here, as the caller promises.
        unsafe { value.cast::<u64>().write(number) };
        Ok(())
    })
}

pub(crate) unsafe fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: c_int,
    value: *mut c_void,
) -> Result {
    if value.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    with_pool(pool, |pool| {
        if REUSE.contains(&attribute) {
            let index = usize::try_from(attribute - 1).unwrap_or(0);
            if let Some(location) = pool.state().reuse.get_mut(index) {
                // SAFETY: `value` is readable here, as the caller promises.
                *location = unsafe { value.cast::<c_int>().read() };
            }
            return Ok(());
        }
        if ![
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
            CU_MEMPOOL_ATTR_USED_MEM_HIGH,
        ]
        .contains(&attribute)
        {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: `value` is readable here, as the caller promises.
        let wanted = unsafe { value.cast::<u64>().read() };
        match (attribute, wanted) {
            (CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes) => pool.account().set_threshold(bytes),
            (CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0) => pool.account().reset_reserved(),
            (CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0) => pool.account().reset_used(),
            _ => return Err(Status::INVALID_VALUE),
        }
        Ok(())
    })
}

/// The access that a location has to a pool's memory.
fn access_of(pool: &Pool, location: &cudaMemLocation) -> Result<c_int> {
    let has = |has: bool| {
        Ok(if has {
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            0
        })
    };
    match (pool.location(), location.r#type) {
        (PoolLocation::Managed(_), CU_MEM_LOCATION_TYPE_DEVICE) => {
            device::ordinal(location.id).and_then(|_| has(true))
        }
        (PoolLocation::Host(_), CU_MEM_LOCATION_TYPE_DEVICE) => {
            let ordinal = device::ordinal(location.id)?;
            has(pool.state().accessed_by.contains(&ordinal))
        }
        (
            PoolLocation::Host(_) | PoolLocation::Managed(_),
            CU_MEM_LOCATION_TYPE_HOST
            | CU_MEM_LOCATION_TYPE_HOST_NUMA
            | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT,
        ) => has(true),
        (PoolLocation::Device(own), CU_MEM_LOCATION_TYPE_DEVICE) => {
            let ordinal = device::ordinal(location.id)?;
            has(ordinal == own || pool.state().accessed_by.contains(&ordinal))
        }
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Sets the access of a location to a pool's memory.
fn set_access(pool: &Pool, location: &cudaMemLocation, flags: c_int) -> Result {
    let ordinal = match (pool.location(), location.r#type) {
        (PoolLocation::Device(_), _) => Some(device::ordinal(device_of(location)?)?),
        (PoolLocation::Host(_), CU_MEM_LOCATION_TYPE_DEVICE) => Some(device::ordinal(location.id)?),
        _ => access_of(pool, location).map(|_| None)?,
    };
    // The host and the device that has the memory always have access.
    let other = ordinal.filter(|ordinal| pool.location() != PoolLocation::Device(*ordinal));
    match (other, flags) {
        (Some(ordinal), 0) => {
            pool.state().accessed_by.remove(&ordinal);
        }
        (Some(ordinal), CU_MEM_ACCESS_FLAGS_PROT_READWRITE) => {
            if let PoolLocation::Device(own) = pool.location() {
                peers::enable_pools(ordinal, own)?;
            }
            pool.state().accessed_by.insert(ordinal);
        }
        (None, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) => {}
        (None, 0) if pool.location().ordinal().is_some() => return Err(Status::INVALID_DEVICE),
        _ => return Err(Status::INVALID_VALUE),
    }
    Ok(())
}

pub(crate) unsafe fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    access: *const cudaMemAccessDesc,
    number: usize,
) -> Result {
    with_pool(pool, |_| Ok(()))?;
    for at in 0..number {
        // SAFETY: the pointer is null or readable, as the caller promises.
        let access = unsafe { get(access.wrapping_add(at)) }?;
        with_pool(pool, |pool| {
            set_access(pool, &access.location, access.flags)
        })?;
    }
    Ok(())
}

pub(crate) unsafe fn cuMemPoolGetAccess(
    flags: Out<'_, c_int>,
    pool: CUmemoryPool,
    location: *mut cudaMemLocation,
) -> Result {
    with_pool(pool, |_| Ok(()))?;
    // SAFETY: `location` is null or readable, as the caller promises.
    let location = unsafe { get(location.cast_const()) }?;
    flags.put(with_pool(pool, |pool| access_of(pool, location))?)
}
