//! Virtual memory management (CUDA Driver API, Virtual Memory Management).
//!
//! An address determines its device. So a reservation belongs to the device of the
//! current context, or to the first device, and only memory of that device can be mapped
//! in it.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd as _};

use paragpu_abi::{
    CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_FABRIC,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA,
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, CUdeviceptr, CUmemAllocationProp, cudaMemAccessDesc,
    cudaMemLocation,
};
use paragpu_client::Session;
use paragpu_client::shared_memory::{Kind, SharedName};
use paragpu_client::virtual_memory::{GRANULARITY, MemoryLocation, Properties, Side};
use paragpu_protocol::status::Status;

use super::boundary::{In, Out};
use super::graph::list;
use super::ipc;
use super::{Result, device, get, present, put, unsupported_use};
use crate::address::ordinal_of;
use crate::current;
use crate::location::is_node;
use crate::shared_handle::{self, SharedHandles};

const GRANULARITIES: std::ops::RangeInclusive<c_int> =
    CU_MEM_ALLOC_GRANULARITY_MINIMUM..=CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
/// From this bit on, a handle contains the device's ordinal plus one.
const ORDINAL: u32 = 48;

/// The handle of an allocation for the program: the session's handle, and the device's
/// ordinal.
fn handle(session: &Session, number: u64) -> u64 {
    (u64::from(session.ordinal()) + 1) << ORDINAL | number
}

/// The session of a program's handle, and its handle in that session.
fn allocation(handle: u64) -> Result<(&'static Session, u64)> {
    let ordinal = (handle >> ORDINAL).checked_sub(1);
    let session = ordinal
        .and_then(|ordinal| u32::try_from(ordinal).ok())
        .and_then(device::session_if_open)
        .ok_or(Status::INVALID_VALUE)?;
    Ok((session, handle & ((1 << ORDINAL) - 1)))
}

/// The session whose reservation contains an address.
fn owner(address: u64) -> Result<&'static Session> {
    ordinal_of(address)
        .and_then(device::session_if_open)
        .ok_or(Status::INVALID_VALUE)
}

/// The location that an allocation requests, and its device, if any.
fn location_of(properties: &CUmemAllocationProp) -> Result<(MemoryLocation, Option<u32>)> {
    if properties.r#type != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(Status::INVALID_VALUE);
    }
    let cudaMemLocation { r#type: kind, id } = properties.location;
    match kind {
        CU_MEM_LOCATION_TYPE_DEVICE => Ok((MemoryLocation::Device, Some(device::ordinal(id)?))),
        CU_MEM_LOCATION_TYPE_HOST => Ok((MemoryLocation::Host, None)),
        CU_MEM_LOCATION_TYPE_HOST_NUMA if is_node(id) => Ok((MemoryLocation::HostNode(id), None)),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) fn cuMemGetAllocationGranularity(
    granularity: Out<'_, usize>,
    properties: In<'_, CUmemAllocationProp>,
    option: c_int,
) -> Result {
    let properties = properties.get()?;
    location_of(properties)?;
    if !GRANULARITIES.contains(&option) {
        return Err(Status::INVALID_VALUE);
    }
    granularity.put(usize::try_from(GRANULARITY).map_err(|_| Status::INVALID_VALUE)?)
}

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
    let space = current::any_session()?.virtual_memory();
    // SAFETY: `address` is null or writable, as the caller promises.
    unsafe { put(address, space.reserve(size as u64, alignment as u64, hint)?) }
}

pub(crate) fn cuMemAddressFree(address: CUdeviceptr, size: usize) -> Result {
    owner(address)?
        .virtual_memory()
        .unreserve(address, size as u64)
}

pub(crate) unsafe fn cuMemCreate(
    out: *mut u64,
    size: usize,
    properties: *const CUmemAllocationProp,
    flags: u64,
) -> Result {
    present(out)?;
    // SAFETY: `properties` is null or readable, as the caller promises.
    let requested = unsafe { get(properties) }?;
    let (at, ordinal) = location_of(requested)?;
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if at == MemoryLocation::Host && requested.requestedHandleTypes != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if at != MemoryLocation::Device && requested.requestedHandleTypes != 0 {
        return Err(unsupported_use!(
            "cuMemCreate of memory in the host for other processes",
            "the guest passes memory of devices between processes only"
        ));
    }
    if requested.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC != 0 {
        // As a GPU without a fabric. PyTorch tries these first.
        return Err(Status::NOT_SUPPORTED);
    }
    if requested.requestedHandleTypes & !CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
        return Err(unsupported_use!(
            "cuMemCreate for handles of this type",
            "the guest passes memory between processes by file descriptors only"
        ));
    }
    // Requests for compression are hints, and may be ignored.
    let [_, direct, usage @ ..] = requested.allocFlags;
    if direct != 0 {
        return Err(unsupported_use!(
            "cuMemCreate for GPUDirect RDMA",
            "no device of the guest can access the host's GPU"
        ));
    }
    let usage = u16::from_ne_bytes([usage[0], usage[1]]);
    if usage != 0 {
        return Err(unsupported_use!(
            "cuMemCreate for tile pools or decompression",
            "a virtual GPU has no sparse arrays and no decompression engine"
        ));
    }
    release_closed();
    let session = match ordinal {
        Some(ordinal) => device::session(ordinal)?,
        None => current::any_session()?,
    };
    let kept = Properties {
        location: at,
        handle_types: requested.requestedHandleTypes,
        usage,
    };
    let number = session.virtual_memory().create(size as u64, kept)?;
    // SAFETY: `out` is null or writable, as the caller promises.
    unsafe { put(out, handle(session, number)) }
}

/// Allocations that were exported as descriptors. Each descriptor holds a reference.
static SHARED: SharedHandles<u64> = SharedHandles::none();

/// Releases the references of descriptors that have been closed everywhere.
fn release_closed() {
    for handle in SHARED.take_closed() {
        // Fails if the session has ended, and its memory with it.
        let _ = cuMemRelease(handle);
    }
}

pub(crate) unsafe fn cuMemExportToShareableHandle(
    out: *mut c_void,
    handle: u64,
    kind: c_int,
    flags: u64,
) -> Result {
    present(out)?;
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let (session, number) = allocation(handle)?;
    let space = session.virtual_memory();
    if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        || space.properties(number)?.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR == 0
    {
        return Err(Status::INVALID_VALUE);
    }
    release_closed();
    let name = match space.offer(number) {
        // Without a daemon, the descriptor is valid in this process only.
        Err(Status::NOT_SUPPORTED) => SharedName::bare(Kind::Allocation, 0),
        offered => offered?,
    };
    space.hold(number)?;
    match SHARED.share(handle, &name.to_bytes()) {
        // SAFETY: `out` is null or writable, as the caller promises.
        Ok(descriptor) => unsafe { put(out.cast::<c_int>(), descriptor.into_raw_fd()) },
        Err(_) => {
            space.release(number)?;
            Err(Status::OPERATING_SYSTEM)
        }
    }
}

pub(crate) fn cuMemImportFromShareableHandle(
    out: Out<'_, u64>,
    given: *mut c_void,
    kind: c_int,
) -> Result {
    // SAFETY: the program keeps it open during the call.
    let descriptor = unsafe { ipc::descriptor(given, kind) }?;
    let Some(handle) = SHARED.find(descriptor) else {
        return import(out, descriptor);
    };
    let (session, number) = allocation(handle)?;
    session.virtual_memory().hold(number)?;
    out.put(handle)
}

/// Imports memory of another process, for the device of the current context or the first
/// device.
fn import(out: Out<'_, u64>, descriptor: BorrowedFd<'_>) -> Result {
    let bytes = shared_handle::carried(descriptor).ok_or(Status::UNKNOWN)?;
    let name = SharedName::from_bytes(&bytes, Kind::Allocation)?;
    let session = current::any_session()?;
    let kept = Properties {
        location: MemoryLocation::Device,
        handle_types: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        usage: 0,
    };
    let number = session.virtual_memory().import(&name, kept)?;
    out.put(handle(session, number))
}

pub(crate) fn cuMemRelease(handle: u64) -> Result {
    let (session, number) = allocation(handle)?;
    session.virtual_memory().release(number)
}

pub(crate) fn cuMemRetainAllocationHandle(out: Out<'_, u64>, address: *mut c_void) -> Result {
    let address = address.addr() as u64;
    let session = owner(address)?;
    out.put(handle(session, session.virtual_memory().retain(address)?))
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
    out: Out<'_, CUmemAllocationProp>,
    handle: u64,
) -> Result {
    let (session, number) = allocation(handle)?;
    let properties = session.virtual_memory().properties(number)?;
    let usage = properties.usage.to_ne_bytes();
    let at = |kind, id| cudaMemLocation { r#type: kind, id };
    out.put(CUmemAllocationProp {
        r#type: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: properties.handle_types,
        location: match properties.location {
            MemoryLocation::Device => at(
                CU_MEM_LOCATION_TYPE_DEVICE,
                device::number(session.ordinal()),
            ),
            // As with NVIDIA's driver, memory of the host reports a node.
            MemoryLocation::Host => at(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0),
            MemoryLocation::HostNode(node) => at(CU_MEM_LOCATION_TYPE_HOST_NUMA, node),
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
    // CUDA supports neither flags nor offsets.
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let (session, number) = allocation(handle)?;
    let mapping = owner(address)?;
    if offset != 0 {
        // NVIDIA's driver looks at the other arguments first.
        let space = session.virtual_memory();
        space.check_map(address, size as u64, number)?;
        return Err(Status::NOT_SUPPORTED);
    }
    if !std::ptr::eq(session, mapping) {
        return map_of_peer(mapping, address, size as u64, session, number);
    }
    let space = session.virtual_memory();
    let mapped = space.map(address, size as u64, number);
    if mapped == Err(Status::NOT_SUPPORTED) && space.is_mapped_in_host(number)? {
        return Err(unsupported_use!(
            "cuMemMap of memory in the host at a second address",
            "two views of the memory would not see each other's writes"
        ));
    }
    mapped
}

/// Maps an allocation of another device at addresses of `mapping`, which imports it as
/// another process would. Only the mapping refers to the import.
fn map_of_peer(
    mapping: &Session,
    address: u64,
    size: u64,
    session: &Session,
    number: u64,
) -> Result {
    let properties = session.virtual_memory().properties(number)?;
    if properties.location != MemoryLocation::Device {
        return Err(unsupported_use!(
            "cuMemMap of memory in the host where another device's addresses were reserved",
            "only one worker can have the memory"
        ));
    }
    let name = session.virtual_memory().offer(number)?;
    let imported = mapping.virtual_memory().import(&name, properties)?;
    let mapped = mapping.virtual_memory().map(address, size, imported);
    mapping.virtual_memory().release(imported)?;
    mapped
}

pub(crate) fn cuMemUnmap(address: CUdeviceptr, size: usize) -> Result {
    owner(address)?.virtual_memory().unmap(address, size as u64)
}

/// The side of a session that a location denotes; `None` for another device.
fn side_of(session: &Session, location: &cudaMemLocation) -> Result<Option<Side>> {
    match location.r#type {
        CU_MEM_LOCATION_TYPE_DEVICE => {
            let own = device::ordinal(location.id)? == session.ordinal();
            Ok(own.then_some(Side::Device))
        }
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(Some(Side::Host)),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Refuses an access that memory at `locations` cannot have.
fn check_access(
    locations: &[MemoryLocation],
    location: &cudaMemLocation,
    side: Side,
    flags: u32,
) -> Result {
    if !matches!(flags, 0 | 1 | 3) {
        return Err(Status::INVALID_VALUE);
    }
    for held in locations {
        match (held, side) {
            (MemoryLocation::Device, Side::Device) => {}
            (MemoryLocation::Device, Side::Host) => {
                return Err(unsupported_use!(
                    "cuMemSetAccess for the host to memory of a device",
                    "the program cannot access memory of devices"
                ));
            }
            (MemoryLocation::Host, Side::Host) if location.r#type != CU_MEM_LOCATION_TYPE_HOST => {
                return Err(Status::INVALID_VALUE);
            }
            (MemoryLocation::Host | MemoryLocation::HostNode(_), _) if flags == 1 => {
                return Err(unsupported_use!(
                    "read-only cuMemSetAccess to memory in the host",
                    "the program's pages are writable while the device writes them"
                ));
            }
            (MemoryLocation::Host | MemoryLocation::HostNode(_), _) => {}
        }
    }
    Ok(())
}

/// The access of another device to memory of `owner`.
fn set_peer_access(owner: &Session, peer: c_int, address: u64, size: u64, flags: u32) -> Result {
    let accessing = device::session(device::ordinal(peer)?)?;
    match accessing.access_maps(owner, address, size, flags) {
        Err(Status::NOT_SUPPORTED) => Err(unsupported_use!(
            "cuMemSetAccess for another device, to a map of a part of an allocation",
            "devices share whole allocations"
        )),
        set => set,
    }
}

pub(crate) unsafe fn cuMemSetAccess(
    address: CUdeviceptr,
    size: usize,
    access: *const cudaMemAccessDesc,
    count: usize,
) -> Result {
    let session = owner(address)?;
    // SAFETY: `access` points to `count` elements, as the caller promises.
    let access = unsafe { list(access, count) }?;
    if access.is_empty() {
        return Err(Status::INVALID_VALUE);
    }
    let locations = session.virtual_memory().locations(address, size as u64)?;
    let mut changes = Vec::with_capacity(access.len());
    for one in access {
        // Here a device that does not exist is an invalid value.
        let side = side_of(session, &one.location).or(Err(Status::INVALID_VALUE))?;
        let flags = u32::try_from(one.flags).map_err(|_| Status::INVALID_VALUE)?;
        // Another device has access to the same memory as this one.
        let checked = side.unwrap_or(Side::Device);
        check_access(&locations, &one.location, checked, flags)?;
        if side.is_none()
            && (flags == 1 || locations.iter().any(|at| *at != MemoryLocation::Device))
        {
            return Err(unsupported_use!(
                "cuMemSetAccess for another device, to memory in the host or read-only",
                "devices share memory of devices, for reading and writing"
            ));
        }
        changes.push((side, one.location.id, flags));
    }
    for (side, device, flags) in changes {
        let size = size as u64;
        match side {
            Some(side) => session
                .virtual_memory()
                .set_access(address, size, side, flags)?,
            None => set_peer_access(session, device, address, size, flags)?,
        }
    }
    Ok(())
}

pub(crate) fn cuMemGetAccess(
    flags: Out<'_, u64>,
    location: In<'_, cudaMemLocation>,
    address: CUdeviceptr,
) -> Result {
    let session = owner(address)?;
    let space = session.virtual_memory();
    let access = |side| space.access(address, side);
    let mapped = access(Side::Device)?;
    let location = location.get()?;
    let found = match side_of(session, location)? {
        Some(Side::Device) => mapped,
        // NVIDIA's driver counts the device's access for the host as a whole, and not for
        // its nodes.
        Some(Side::Host) if location.r#type == CU_MEM_LOCATION_TYPE_HOST => {
            access(Side::Host)?.max(mapped)
        }
        Some(Side::Host) => access(Side::Host)?,
        None => space.peer_access(address, device::ordinal(location.id)?)?,
    };
    flags.put(u64::from(found))
}
