//! Virtual memory management (CUDA Driver API, Virtual Memory Management).
//!
//! An address names its device here, so a reservation is of the current
//! context's device, or of the first one, and takes memory of that device.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd as _};

use paragpu_abi::{CUdeviceptr, CUmemAllocationProp, cudaMemAccessDesc, cudaMemLocation};
use paragpu_client::Session;
use paragpu_client::shared_memory::{Kind, SharedName};
use paragpu_client::virtual_memory::{GRANULARITY, Properties};
use paragpu_protocol::status::Status;

use super::address::ordinal_of;
use super::boundary::{In, Out};
use super::graph::list;
use super::ipc;
use super::pool::DESCRIPTOR;
use super::{Result, device, get, present, put, unsupported_use};
use crate::current;
use crate::shared_handle::{self, SharedHandles};

/// CU_MEM_LOCATION_TYPE_DEVICE.
const DEVICE: c_int = 1;
/// CU_MEM_LOCATION_TYPE_HOST, _HOST_NUMA and _HOST_NUMA_CURRENT.
const HOST: std::ops::RangeInclusive<c_int> = 2..=4;
/// CU_MEM_ALLOCATION_TYPE_PINNED.
const PINNED: c_int = 1;
/// CUmemAllocationGranularity_flags: minimum and recommended.
const GRANULARITIES: std::ops::RangeInclusive<c_int> = 0..=1;
/// Handles carry the device's ordinal, one more, above this.
const ORDINAL: u32 = 48;

/// A handle as the program has it: the session's number of the allocation, and
/// the session's device.
fn handle(session: &Session, number: u64) -> u64 {
    (u64::from(session.ordinal()) + 1) << ORDINAL | number
}

/// The session and its number of an allocation.
fn allocation(handle: u64) -> Result<(&'static Session, u64)> {
    let ordinal = (handle >> ORDINAL).checked_sub(1);
    let session = ordinal
        .and_then(|ordinal| u32::try_from(ordinal).ok())
        .and_then(device::session_if_open)
        .ok_or(Status::INVALID_VALUE)?;
    Ok((session, handle & ((1 << ORDINAL) - 1)))
}

/// The session whose reservation an address is in.
fn owner(address: u64) -> Result<&'static Session> {
    ordinal_of(address)
        .and_then(device::session_if_open)
        .ok_or(Status::INVALID_VALUE)
}

/// The ordinal of the device that an allocation is for.
fn device_of(properties: &CUmemAllocationProp) -> Result<u32> {
    if properties.r#type != PINNED {
        return Err(Status::INVALID_VALUE);
    }
    match properties.location.r#type {
        DEVICE => device::ordinal(properties.location.id),
        ..DEVICE => Err(Status::INVALID_VALUE),
        _ => Err(unsupported_use!("cuMemCreate in memory of the host")),
    }
}

pub(crate) fn cuMemGetAllocationGranularity(
    granularity: Out<'_, usize>,
    properties: In<'_, CUmemAllocationProp>,
    option: c_int,
) -> Result {
    let properties = properties.get()?;
    // Programs ask for the host's before they find that there is none (NCCL).
    if properties.r#type != PINNED || !HOST.contains(&properties.location.r#type) {
        device_of(properties)?;
    }
    if !GRANULARITIES.contains(&option) {
        return Err(Status::INVALID_VALUE);
    }
    granularity.put(usize::try_from(GRANULARITY).map_err(|_| Status::INVALID_VALUE)?)
}

/// # Safety
/// As CUDA's manual says for cuMemAddressReserve.
pub(crate) unsafe fn cuMemAddressReserve(
    address: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    hint: CUdeviceptr,
    flags: u64,
) -> Result {
    present(address)?;
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let session = match current::current_if_any() {
        Some(current) => current.session,
        None => device::session(device::ordinal(0)?)?,
    };
    let space = session.virtual_memory();
    // SAFETY: `address` is null or writable, as the caller promises.
    unsafe { put(address, space.reserve(size as u64, alignment as u64, hint)?) }
}

pub(crate) fn cuMemAddressFree(address: CUdeviceptr, size: usize) -> Result {
    owner(address)?
        .virtual_memory()
        .unreserve(address, size as u64)
}

/// # Safety
/// As CUDA's manual says for cuMemCreate.
pub(crate) unsafe fn cuMemCreate(
    place: *mut u64,
    size: usize,
    properties: *const CUmemAllocationProp,
    flags: u64,
) -> Result {
    present(place)?;
    // SAFETY: `properties` is null or readable, as the caller promises.
    let asked = unsafe { get(properties) }?;
    let ordinal = device_of(asked)?;
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if asked.requestedHandleTypes & !DESCRIPTOR != 0 {
        return Err(unsupported_use!("cuMemCreate for handles of this type"));
    }
    // Compressible memory may always come without compression.
    let [_, direct, usage @ ..] = asked.allocFlags;
    if direct != 0 {
        return Err(unsupported_use!("cuMemCreate for GPUDirect RDMA"));
    }
    let usage = u16::from_ne_bytes([usage[0], usage[1]]);
    if usage != 0 {
        return Err(unsupported_use!(
            "cuMemCreate for tile pools or decompression"
        ));
    }
    release_closed();
    let session = device::session(ordinal)?;
    let kept = Properties {
        handle_types: asked.requestedHandleTypes,
        usage,
    };
    let number = session.virtual_memory().create(size as u64, kept)?;
    // SAFETY: `place` is null or writable, as the caller promises.
    unsafe { put(place, handle(session, number)) }
}

/// Handles that descriptors stand for, each held once.
static SHARED: SharedHandles<u64> = SharedHandles::none();

/// Gives up what was held for descriptors that nobody has any more.
fn release_closed() {
    for handle in SHARED.take_closed() {
        // A session that is over has nothing to be given back to.
        let _ = cuMemRelease(handle);
    }
}

/// # Safety
/// As CUDA's manual says for cuMemExportToShareableHandle.
pub(crate) unsafe fn cuMemExportToShareableHandle(
    place: *mut c_void,
    handle: u64,
    kind: c_int,
    flags: u64,
) -> Result {
    present(place)?;
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let (session, number) = allocation(handle)?;
    let space = session.virtual_memory();
    if kind != DESCRIPTOR || space.properties(number)?.handle_types & DESCRIPTOR == 0 {
        return Err(Status::INVALID_VALUE);
    }
    release_closed();
    let name = match space.offer(number) {
        // No daemon to tell: good within this process.
        Err(Status::NOT_SUPPORTED) => SharedName::bare(Kind::Allocation, 0),
        offered => offered?,
    };
    space.hold(number)?;
    match SHARED.share(handle, &name.to_bytes()) {
        // SAFETY: `place` is null or writable, as the caller promises.
        Ok(descriptor) => unsafe { put(place.cast::<c_int>(), descriptor.into_raw_fd()) },
        Err(_) => {
            space.release(number)?;
            Err(Status::OPERATING_SYSTEM)
        }
    }
}

pub(crate) fn cuMemImportFromShareableHandle(
    place: Out<'_, u64>,
    given: *mut c_void,
    kind: c_int,
) -> Result {
    // SAFETY: the program's, as long as the call.
    let descriptor = unsafe { ipc::descriptor(given, kind) }?;
    let Some(handle) = SHARED.find(descriptor) else {
        return import(place, descriptor);
    };
    let (session, number) = allocation(handle)?;
    session.virtual_memory().hold(number)?;
    place.put(handle)
}

/// Memory of another process: of the current context's device, or the first.
fn import(place: Out<'_, u64>, descriptor: BorrowedFd<'_>) -> Result {
    let bytes = shared_handle::carried(descriptor).ok_or(Status::INVALID_VALUE)?;
    let name = SharedName::from_bytes(&bytes, Kind::Allocation)?;
    let session = match current::current_if_any() {
        Some(current) => current.session,
        None => device::session(device::ordinal(0)?)?,
    };
    let kept = Properties {
        handle_types: DESCRIPTOR,
        usage: 0,
    };
    let number = session.virtual_memory().import(&name, kept)?;
    place.put(handle(session, number))
}

pub(crate) fn cuMemRelease(handle: u64) -> Result {
    let (session, number) = allocation(handle)?;
    session.virtual_memory().release(number)
}

pub(crate) fn cuMemRetainAllocationHandle(place: Out<'_, u64>, address: *mut c_void) -> Result {
    let address = address.addr() as u64;
    let session = owner(address)?;
    place.put(handle(session, session.virtual_memory().retain(address)?))
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
    place: Out<'_, CUmemAllocationProp>,
    handle: u64,
) -> Result {
    let (session, number) = allocation(handle)?;
    let properties = session.virtual_memory().properties(number)?;
    let usage = properties.usage.to_ne_bytes();
    place.put(CUmemAllocationProp {
        r#type: PINNED,
        requestedHandleTypes: properties.handle_types,
        location: cudaMemLocation {
            r#type: DEVICE,
            id: device::number(session.ordinal()),
        },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: [0, 0, usage[0], usage[1], 0, 0, 0, 0],
    })
}

pub(crate) fn cuMemMap(
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> Result {
    // CUDA has no maps of later parts.
    if offset != 0 || flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let (session, number) = allocation(handle)?;
    if !std::ptr::eq(session, owner(address)?) {
        let what = "cuMemMap of memory where another device's addresses were reserved";
        return Err(unsupported_use!(what));
    }
    session.virtual_memory().map(address, size as u64, number)
}

pub(crate) fn cuMemUnmap(address: CUdeviceptr, size: usize) -> Result {
    owner(address)?.virtual_memory().unmap(address, size as u64)
}

/// Is a location the session's own device? Others have no way to its memory.
fn is_own(session: &Session, location: &cudaMemLocation) -> Result<bool> {
    match location.r#type {
        DEVICE => Ok(device::ordinal(location.id)? == session.ordinal()),
        ..DEVICE => Err(Status::INVALID_VALUE),
        _ => Ok(false),
    }
}

/// # Safety
/// As CUDA's manual says for cuMemSetAccess.
pub(crate) unsafe fn cuMemSetAccess(
    address: CUdeviceptr,
    size: usize,
    access: *const cudaMemAccessDesc,
    count: usize,
) -> Result {
    let session = owner(address)?;
    // SAFETY: `access` holds `count` of them, as the caller promises.
    let access = unsafe { list(access, count) }?;
    if access.is_empty() {
        return Err(Status::INVALID_VALUE);
    }
    for one in access {
        if !is_own(session, &one.location)? {
            let what = "cuMemSetAccess for another device or the host";
            return Err(unsupported_use!(what));
        }
    }
    for one in access {
        let flags = u32::try_from(one.flags).map_err(|_| Status::INVALID_VALUE)?;
        session
            .virtual_memory()
            .set_access(address, size as u64, flags)?;
    }
    Ok(())
}

pub(crate) fn cuMemGetAccess(
    flags: Out<'_, u64>,
    location: In<'_, cudaMemLocation>,
    address: CUdeviceptr,
) -> Result {
    let session = owner(address)?;
    let access = session.virtual_memory().access(address)?;
    let own = is_own(session, location.get()?)?;
    flags.put(if own { u64::from(access) } else { 0 })
}
