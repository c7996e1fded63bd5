//! Copies of linear memory (CUDA Driver API, Memory Management).

use std::ffi::c_void;

use paragpu_abi::{CUcontext, CUstream};
use paragpu_client::Session;
use paragpu_client::copy::RectEnd;
use paragpu_client::stream::Stream;
use paragpu_client::sys::memory::{HostRows, HostSlice};
use paragpu_client::virtual_memory::has_view;
use paragpu_protocol::status::Status;

use super::{Result, device, host, memory, pointer as attributes};
use crate::address::is_device_only;
use crate::{current, named_stream, staging};

/// The kind of memory at an address, for unified addressing (cuMemcpy).
enum Kind {
    /// Memory of a device.
    Device,
    /// The program's memory, pinned or not.
    Host,
}

fn kind(address: u64) -> Result<Kind> {
    if host::pinned(address).is_some() || has_view(address) {
        return Ok(Kind::Host);
    }
    let session = memory::owner(address)?;
    Ok(
        if session.memory().is_device(address) || session.host().find_by_device(address).is_some() {
            Kind::Device
        } else {
            Kind::Host
        },
    )
}

/// Whether this is an address of the program, pinned or not.
pub fn is_host(address: u64) -> Result<bool> {
    kind(address).map(|kind| matches!(kind, Kind::Host))
}

/// Refuses pageable memory of the program where a copy names the device's.
fn refuse_pageable(address: u64) -> Result {
    let is_pageable = is_host(address)? && host::pinned(address).is_none() && !has_view(address);
    match is_pageable {
        true => Err(Status::INVALID_VALUE),
        false => Ok(()),
    }
}

/// An address of the program as a pointer.
pub fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// From memory of the program; a device address works too, as natively.
///
/// # Safety
/// `source` is readable for `size` bytes: until the call ends, or, if pinned
/// and not `wait`, until the copy does (cuMemcpyHtoD, cuMemcpyHtoDAsync).
pub(super) unsafe fn to_device(
    destination: u64,
    source: *const c_void,
    size: usize,
    stream: CUstream,
    wait: bool,
) -> Result {
    if size > 0 && (destination == 0 || source.is_null()) {
        return Err(Status::INVALID_VALUE);
    }
    if is_device_only(source.addr() as u64) {
        refuse_pageable(destination)?;
        // SAFETY: the caller upholds the contract of `unified`.
        return unsafe { unified(destination, source.addr() as u64, size, stream, wait) };
    }
    let named = named_stream::named(stream)?;
    let (session, found) = named.both()?;
    if !wait {
        host::await_writes(session, found, source)?;
    }
    // SAFETY: the caller upholds the contract of `HostSlice::new`.
    let source = unsafe { HostSlice::new(source, size) };
    if let Some(owner) = memory::owner_out_of_reach(session, destination, size as u64) {
        // Nothing orders the copies of another device behind this stream.
        session.streams().synchronize(found)?;
        let copies = owner.copies();
        copies.to_device(destination, source, owner.legacy(), true)?;
        return match memory::is_programs(destination) {
            true => owner.streams().synchronize(owner.legacy()),
            false => Ok(()),
        };
    }
    session
        .copies()
        .to_device(destination, source, found, wait)?;
    match wait {
        // The program may look at once.
        true if memory::is_programs(destination) && !found.is_capturing() => {
            session.streams().synchronize(found)
        }
        true => attributes::finish(&[destination], stream),
        false => Ok(()),
    }
}

/// To memory of the program; a device address works too, as natively.
///
/// # Safety
/// `destination` is writable for `size` bytes: until the call ends, or, if
/// pinned and not `wait`, until the copy does (cuMemcpyDtoH,
/// cuMemcpyDtoHAsync).
pub(super) unsafe fn from_device(
    destination: *mut c_void,
    source: u64,
    size: usize,
    stream: CUstream,
    wait: bool,
) -> Result {
    if size > 0 && (source == 0 || destination.is_null()) {
        return Err(Status::INVALID_VALUE);
    }
    if is_device_only(destination.addr() as u64) {
        refuse_pageable(source)?;
        // SAFETY: the caller upholds the contract of `unified`.
        return unsafe { unified(destination.addr() as u64, source, size, stream, wait) };
    }
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    // SAFETY: the caller upholds the contract of `HostRows::new`.
    let destination = unsafe { HostRows::new(destination, size) };
    if let Some(owner) = memory::owner_out_of_reach(session, source, size as u64) {
        session.streams().synchronize(stream)?;
        let copies = owner.copies();
        return copies.from_device(destination, source, owner.legacy(), true);
    }
    let copies = session.copies();
    copies.from_device(destination, source, stream, wait)
}

/// Between two devices of which neither reaches the other's memory.
fn between(
    destination: u64,
    to: &'static Session,
    source: u64,
    from: &'static Session,
    size: usize,
    stream: &Named,
) -> Result {
    stream.session()?.streams().synchronize(stream.stream()?)?;
    staging::copy(
        [size, 1, 1],
        from,
        to,
        |part| {
            let [at, ..] = part.at;
            // SAFETY: the part fits the buffer, and the copy is waited for.
            let into = unsafe { HostRows::new(part.buffer, part.extent[0]) };
            from.copies()
                .from_device(into, source + at as u64, from.legacy(), true)
        },
        |part| {
            let [at, ..] = part.at;
            // SAFETY: the part fits the buffer, and the copy is waited for.
            let out = unsafe { HostSlice::new(part.buffer, part.extent[0]) };
            to.copies()
                .to_device(destination + at as u64, out, to.legacy(), true)
        },
    )
}

type Named = named_stream::Named;

/// cuMemcpy, cuMemcpyAsync: the direction follows from the addresses.
///
/// # Safety
/// If the addresses are the program's, `size` bytes are there as for
/// [`to_device`] and [`from_device`].
pub unsafe fn unified(
    destination: u64,
    source: u64,
    size: usize,
    stream: CUstream,
    wait: bool,
) -> Result {
    if size == 0 {
        return current::current()?.session.check();
    }
    if destination == 0 || source == 0 {
        return Err(Status::INVALID_VALUE);
    }
    match (kind(destination)?, kind(source)?) {
        (Kind::Device, Kind::Host) => {
            // SAFETY: the caller upholds the contract of `to_device`.
            unsafe { to_device(destination, pointer(source), size, stream, wait) }
        }
        (Kind::Host, Kind::Device) => {
            // SAFETY: the caller upholds the contract of `from_device`.
            unsafe { from_device(pointer(destination), source, size, stream, wait) }
        }
        (Kind::Device, Kind::Device) => on_device(destination, source, size, stream, wait),
        // SAFETY: the caller upholds the contract of `host_to_host`.
        (Kind::Host, Kind::Host) => unsafe {
            host_to_host(destination, source, size, stream, wait)
        },
    }
}

/// A copy by the program's processor, in stream order.
///
/// # Safety
/// `size` bytes are readable at `source` and writable at `destination`, until
/// the copy is complete if it is not done at once.
unsafe fn host_to_host(
    destination: u64,
    source: u64,
    size: usize,
    stream: CUstream,
    wait: bool,
) -> Result {
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    let pinned = host::pinned(destination).is_some() && host::pinned(source).is_some();
    if stream.is_capturing() && !wait {
        let end = |address| RectEnd::Host {
            address: pointer(address),
            pitch: size as u64,
            rows: 1,
        };
        let extent = [size as u64, 1, 1];
        // SAFETY: the caller upholds the contract of `Copies>::rect`.
        return unsafe {
            session
                .copies()
                .rect(end(destination), end(source), extent, stream, false)
        };
    }
    if pinned && !wait {
        return session
            .copies()
            .on_device(destination, source, size as u64, stream);
    }
    session.streams().synchronize(stream)?;
    // SAFETY: both ranges hold `size` bytes, as the caller promises; they may overlap
    unsafe {
        std::ptr::copy(
            pointer(source).cast::<u8>(),
            pointer(destination).cast::<u8>(),
            size,
        )
    };
    Ok(())
}

/// Without `wait` in the stream's order; with it the copy may still run when the call
/// returns, as the API says, unless its memory has SYNC_MEMOPS.
pub(super) fn on_device(
    destination: u64,
    source: u64,
    size: usize,
    stream: CUstream,
    wait: bool,
) -> Result {
    if size > 0 && (destination == 0 || source == 0) {
        return Err(Status::INVALID_VALUE);
    }
    let named = named_stream::named(stream)?;
    let (to, from) = (memory::owner(destination)?, memory::owner(source)?);
    if !std::ptr::eq(to, from) {
        return across([destination, source], [to, from], size, &named, wait);
    }
    to.copies()
        .on_device(destination, source, size as u64, default_of(to, &named)?)?;
    match wait {
        true => attributes::finish(&[destination, source], stream),
        false => Ok(()),
    }
}

/// Between the devices of two contexts.
pub(super) fn peer(
    destination: u64,
    to: CUcontext,
    source: u64,
    from: CUcontext,
    size: usize,
    stream: CUstream,
    wait: bool,
) -> Result {
    let to = device::session(current::find_or_current(to)?.ordinal)?;
    let from = device::session(current::find_or_current(from)?.ordinal)?;
    let named = named_stream::named(stream)?;
    if std::ptr::eq(to, from) {
        return to
            .copies()
            .on_device(destination, source, size as u64, default_of(to, &named)?);
    }
    across([destination, source], [to, from], size, &named, wait)
}

/// Between two devices. With `wait` after all their work, and complete when the call returns.
fn across(
    [destination, source]: [u64; 2],
    [to, from]: [&'static Session; 2],
    size: usize,
    named: &Named,
    wait: bool,
) -> Result {
    let Some(session) = reaching_both(named, destination, source, size as u64)? else {
        return between(destination, to, source, from, size, named);
    };
    if wait {
        to.synchronize()?;
        from.synchronize()?;
    }
    session
        .copies()
        .on_device(destination, source, size as u64, named.stream()?)?;
    match wait {
        true => session.streams().synchronize(named.stream()?),
        false => Ok(()),
    }
}

/// The session of a stream, if its device reaches both ranges.
fn reaching_both(
    named: &Named,
    destination: u64,
    source: u64,
    size: u64,
) -> Result<Option<&'static Session>> {
    let session = named.session()?;
    let memory = session.memory();
    let reaches = memory.holds(destination, size) && memory.holds(source, size);
    Ok(reaches.then_some(session))
}

/// The named stream, or the legacy one of `session` if it belongs to another
/// session.
fn default_of<'a>(session: &'static Session, named: &'a Named) -> Result<&'a Stream> {
    Ok(if std::ptr::eq(named.session()?, session) {
        named.stream()?
    } else {
        session.legacy()
    })
}
