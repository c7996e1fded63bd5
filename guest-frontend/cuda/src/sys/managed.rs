//! Managed memory (CUDA Driver API, Memory Management and Unified Addressing).

use std::ffi::{c_int, c_uint, c_void};

use paragpu_abi::{
    CU_DEVICE_CPU as CPU, CU_MEM_ATTACH_GLOBAL as ATTACH_GLOBAL, CU_MEM_ATTACH_HOST as ATTACH_HOST,
    CU_MEM_ATTACH_SINGLE as ATTACH_SINGLE, CU_MEM_LOCATION_TYPE_DEVICE as DEVICE,
    CU_MEM_LOCATION_TYPE_HOST as HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA as HOST_NUMA,
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT as HOST_NUMA_CURRENT,
    CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY as ACCESSED_BY,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION as LAST_PREFETCH_LOCATION,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID as LAST_PREFETCH_LOCATION_ID,
    CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE as LAST_PREFETCH_LOCATION_TYPE,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION as PREFERRED_LOCATION,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID as PREFERRED_LOCATION_ID,
    CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE as PREFERRED_LOCATION_TYPE,
    CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY as READ_MOSTLY, CU_MEMHOSTALLOC_DEVICEMAP,
    CU_MEMHOSTALLOC_PORTABLE, CUdevice, CUdeviceptr, CUstream, cudaMemLocation,
};
use paragpu_client::Session;
use paragpu_protocol::status::Status;

use super::boundary::Out;
use super::graph::list;
use super::{Result, capture, copy, device, memory};
use crate::batch;
use crate::current;
use crate::location::current_node;
use crate::managed::{self, Advice, Location};
use crate::named_stream::{self, Named};
use crate::objects::peers;

const REACHED_BY_ALL: u32 = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;

pub(crate) fn cuMemAllocManaged(
    address: Out<'_, CUdeviceptr>,
    size: usize,
    flags: c_uint,
) -> Result {
    let address = address.present()?;
    if size == 0 || !matches!(flags, ATTACH_GLOBAL | ATTACH_HOST) {
        return Err(Status::INVALID_VALUE);
    }
    capture::permit_unsafe()?;
    let current = current::current()?;
    let found = current.allocate(|| {
        let found = allocate(current.session, size as u64)?;
        managed::insert(found, size as u64);
        Ok(found)
    })?;
    address.put(found)
}

/// Zeroed memory that migrates if possible, otherwise pinned memory.
fn allocate(session: &Session, size: u64) -> Result<u64> {
    if let Some(found) = allocate_for_devices(session, size)? {
        return Ok(found);
    }
    let found = session.host().allocate(size, REACHED_BY_ALL)?;
    let length = usize::try_from(size).unwrap_or(0);
    // SAFETY: the memory was allocated with this size just now; nothing else knows it.
    unsafe { copy::pointer(found).cast::<u8>().write_bytes(0, length) };
    Ok(found)
}

/// Zeroed memory that migrates, or of which each of several devices has a copy. `None` if the
/// program sees one device and the memory does not migrate: the caller allocates pinned memory.
pub(super) fn allocate_for_devices(session: &Session, size: u64) -> Result<Option<u64>> {
    if device::migrates(size)
        && peers::share_managed(session)?
        && let Some(found) = session
            .managed_memory()
            .allocate(size, device::has_several())?
    {
        return Ok(Some(found));
    }
    match device::has_several() {
        true => peers::allocate_copied(session, size).map(Some),
        false => Ok(None),
    }
}

/// The location with a device number; -1 is the host.
fn by_device(number: CUdevice) -> Result<Location> {
    if number == CPU {
        return Ok(Location::host());
    }
    device::ordinal(number)?;
    Ok(Location::device(number))
}

/// Resolves a location from the program: a device, the host or one of its nodes.
fn by_location(location: cudaMemLocation) -> Result<Location> {
    match location.r#type {
        DEVICE => by_device(location.id),
        HOST => Ok(Location::host()),
        HOST_NUMA => Ok(Location::node(location.id)),
        // Attributes report no current node, but the node that it was.
        HOST_NUMA_CURRENT => Ok(Location::node(current_node())),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Sets the preferred location of a range.
fn prefer(address: u64, size: u64, location: Location) -> Result {
    managed::advise(address, size, |entry| entry.preferred = location)?;
    let owner = memory::owner(address)?;
    let memory = owner.managed_memory();
    memory.expect_program(address, size, location.is_host());
    move_to(owner, address, size, location)
}

/// Moves migrating memory to the location, if that is a device.
fn move_to(owner: &'static Session, address: u64, size: u64, location: Location) -> Result {
    match location.is_device() && device::has_several() {
        true => peers::move_managed(owner, device::ordinal(location.id)?, address, size),
        false => Ok(()),
    }
}

fn advise(address: CUdeviceptr, size: usize, advice: c_int, location: Result<Location>) -> Result {
    let size = size as u64;
    match advice {
        1 | 2 => managed::advise(address, size, |entry| entry.read_mostly = advice == 1),
        3 => prefer(address, size, location?),
        4 => prefer(address, size, Location::INVALID),
        5 | 6 => {
            let number = location?.as_device();
            managed::advise(address, size, |entry| {
                entry.accessed_by.retain(|other| *other != number);
                if advice == 5 {
                    entry.accessed_by.push(number);
                    entry.accessed_by.sort_unstable();
                }
            })
        }
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) fn cuMemAdvise(
    address: CUdeviceptr,
    size: usize,
    advice: c_int,
    device: CUdevice,
) -> Result {
    current::current()?;
    advise(address, size, advice, by_device(device))
}

pub(crate) fn cuMemAdvise_v2(
    address: CUdeviceptr,
    size: usize,
    advice: c_int,
    location: cudaMemLocation,
) -> Result {
    current::current()?;
    advise(address, size, advice, by_location(location))
}

fn prefetch(address: CUdeviceptr, size: usize, location: Location, stream: CUstream) -> Result {
    named_stream::named(stream)?;
    prefetch_range(address, size as u64, location)
}

fn prefetch_range(address: u64, size: u64, location: Location) -> Result {
    managed::advise(address, size, |entry| entry.prefetched = location)?;
    let owner = memory::owner(address)?;
    let memory = owner.managed_memory();
    match location.is_device() {
        true => {
            memory.prefetch_to_device(address, size)?;
            move_to(owner, address, size, location)
        }
        false => {
            memory.expect_program(address, size, true);
            Ok(())
        }
    }
}

pub(crate) fn cuMemPrefetchAsync(
    address: CUdeviceptr,
    size: usize,
    device: CUdevice,
    stream: CUstream,
) -> Result {
    prefetch(address, size, by_device(device)?, stream)
}

pub(crate) fn cuMemPrefetchAsync_v2(
    address: CUdeviceptr,
    size: usize,
    location: cudaMemLocation,
    flags: c_uint,
    stream: CUstream,
) -> Result {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    prefetch(address, size, by_location(location)?, stream)
}

/// The ranges of a batch, each inside one allocation.
///
/// # Safety
/// `addresses` and `sizes` are null or point to `count` values.
pub(super) unsafe fn ranges(
    addresses: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    flags: u64,
    stream: CUstream,
) -> Result<Vec<(u64, u64)>> {
    let legacy = matches!(named_stream::named(stream)?, Named::Legacy(_));
    if count == 0 || flags != 0 || legacy {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: `addresses` points to `count` elements, as the caller promises. `sizes`
    // points to `count` elements, as the caller promises.
    let (addresses, sizes) = (unsafe { list(addresses, count) }?, unsafe {
        list(sizes, count)
    }?);
    let pairs = addresses.iter().zip(sizes);
    pairs
        .map(|(address, size)| {
            managed::check(*address, *size as u64)?;
            Ok((*address, *size as u64))
        })
        .collect()
}

/// Prefetches ranges. Each run of ranges, which begins at an index in `firsts`, has a
/// location.
///
/// # Safety
/// `locations` and `firsts` are null or point to `count` records.
pub(super) unsafe fn prefetch_all(
    ranges: &[(u64, u64)],
    locations: *const cudaMemLocation,
    firsts: *const usize,
    count: usize,
) -> Result {
    if count > ranges.len() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: `locations` points to `count` elements, as the caller promises.
    let locations = unsafe { list(locations, count) }?;
    let locations: Vec<Location> = locations
        .iter()
        .map(|location| by_location(*location))
        .collect::<Result<_>>()?;
    // SAFETY: `firsts` points to `count` elements, as the caller promises.
    let places = batch::attributes(ranges.len(), unsafe { list(firsts, count) }?)?;
    for ((address, size), index) in ranges.iter().zip(places) {
        let location = *locations.get(index).ok_or(Status::INVALID_VALUE)?;
        prefetch_range(*address, *size, location)?;
    }
    Ok(())
}

// Discarding has no effect: CUDA leaves the contents of discarded memory undefined, so they
// may stay.

pub(crate) unsafe fn cuMemDiscardBatchAsync(
    addresses: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    flags: u64,
    stream: CUstream,
) -> Result {
    // SAFETY: the caller upholds the contract of `ranges`.
    unsafe { ranges(addresses, sizes, count, flags, stream) }.map(|_| ())
}

/// An attribute that is one integer.
fn number(selector: c_int, address: u64, size: u64) -> Result<c_int> {
    let location = |field: fn(&Advice) -> Location| {
        let found = managed::uniform(address, size, field)?;
        Ok::<_, Status>(found.unwrap_or(Location::INVALID))
    };
    Ok(match selector {
        READ_MOSTLY => {
            let all = managed::uniform(address, size, |entry| entry.read_mostly)?;
            c_int::from(all == Some(true))
        }
        PREFERRED_LOCATION => location(|entry| entry.preferred)?.as_device(),
        PREFERRED_LOCATION_TYPE => location(|entry| entry.preferred)?.kind,
        PREFERRED_LOCATION_ID => location(|entry| entry.preferred)?.id,
        LAST_PREFETCH_LOCATION => location(|entry| entry.prefetched)?.as_device(),
        LAST_PREFETCH_LOCATION_TYPE => location(|entry| entry.prefetched)?.kind,
        LAST_PREFETCH_LOCATION_ID => location(|entry| entry.prefetched)?.id,
        _ => return Err(Status::INVALID_VALUE),
    })
}

/// Writes one attribute of a range.
///
/// # Safety
/// `out` is null, or writable for `room` bytes and aligned for integers.
unsafe fn attribute(
    out: *mut c_void,
    room: usize,
    selector: c_int,
    address: u64,
    size: u64,
) -> Result {
    const WORD: usize = size_of::<c_int>();
    if out.is_null() || room == 0 || !room.is_multiple_of(WORD) {
        return Err(Status::INVALID_VALUE);
    }
    let words = room / WORD;
    let values = if selector == ACCESSED_BY {
        let found = managed::uniform(address, size, |entry| entry.accessed_by.clone())?;
        found.unwrap_or_default()
    } else if words == 1 {
        vec![number(selector, address, size)?]
    } else {
        return Err(Status::INVALID_VALUE);
    };
    // -2 marks unused entries of the buffer.
    let values = values.into_iter().chain(std::iter::repeat(-2));
    for (at, value) in values.take(words).enumerate() {
        // SAFETY: the buffer has `room` bytes, as the caller promises.
        unsafe { out.cast::<c_int>().add(at).write(value) };
    }
    Ok(())
}

pub(crate) unsafe fn cuMemRangeGetAttribute(
    data: *mut c_void,
    data_size: usize,
    selector: c_int,
    address: CUdeviceptr,
    size: usize,
) -> Result {
    current::current()?;
    // SAFETY: the program's buffer, as CUDA's manual requires.
    unsafe { attribute(data, data_size, selector, address, size as u64) }
}

pub(crate) unsafe fn cuMemRangeGetAttributes(
    data: *mut *mut c_void,
    data_sizes: *mut usize,
    attributes: *mut c_int,
    count: usize,
    address: CUdeviceptr,
    size: usize,
) -> Result {
    current::current()?;
    if data.is_null() || data_sizes.is_null() || attributes.is_null() || count == 0 {
        return Err(Status::INVALID_VALUE);
    }
    for at in 0..count {
        // SAFETY: arrays of `count` elements and buffers of the given sizes, as CUDA's
        // manual requires.
        unsafe {
            let (out, room) = (data.add(at).read(), data_sizes.add(at).read());
            attribute(out, room, attributes.add(at).read(), address, size as u64)?;
        }
    }
    Ok(())
}

pub(crate) fn cuStreamAttachMemAsync(
    stream: CUstream,
    address: CUdeviceptr,
    length: usize,
    flags: c_uint,
) -> Result {
    let named = named_stream::named(stream)?;
    let (start, size) = managed::allocation(address).ok_or(Status::INVALID_VALUE)?;
    let whole = address == start && (length == 0 || length as u64 == size);
    let single = flags == ATTACH_SINGLE;
    if !whole || !matches!(flags, ATTACH_GLOBAL | ATTACH_HOST | ATTACH_SINGLE) {
        return Err(Status::INVALID_VALUE);
    }
    if single && (stream.is_null() || named.stream().is_err()) {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}
