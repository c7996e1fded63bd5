//! Pinned memory (CUDA Driver API, Memory Management).

use std::collections::HashSet;
use std::ffi::{c_uint, c_void};

use paragpu_abi::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_READ_ONLY,
    CUdeviceptr,
};
use paragpu_client::Session;
use paragpu_client::host::Pinned;
use paragpu_client::stream::Stream;
use paragpu_client::sys::memory::HostSlice;
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;

use super::boundary::Out;
use super::{Result, capture, device, memory, pointer, unsupported_use};
use crate::objects::context::forget_memory;
use crate::objects::{peers, pool};
use crate::{address, current, managed};

/// The session that pinned an address of the program, and the pinned memory.
pub fn pinned(address: u64) -> Option<(&'static Session, Pinned)> {
    // The program's own memory may lie in ranges of devices without a session.
    let named = address::ordinal_of(address);
    let ordinals = match named.filter(|ordinal| device::session_if_open(*ordinal).is_some()) {
        Some(ordinal) => ordinal..ordinal + 1,
        None => 0..MAX_DEVICES,
    };
    ordinals
        .filter_map(device::session_if_open)
        .find_map(|session| Some((session, session.host().find(address)?)))
}

/// Waits for a stream before a copy in it reads memory of the program at `address`, if
/// another device's session pinned that memory. This device does not reach it, so the bytes
/// are read during the call, and work before the copy may write them.
pub(super) fn await_writes(session: &Session, stream: &Stream, address: *const c_void) -> Result {
    if session.device_count() == 1 || stream.is_capturing() {
        return Ok(());
    }
    let address = address.addr() as u64;
    let is_elsewhere = session.host().find(address).is_none() && pinned(address).is_some();
    match is_elsewhere {
        true => session.streams().synchronize(stream),
        false => Ok(()),
    }
}

/// Gives a device access to memory that others' sessions pinned, where a parameter of a
/// kernel is an address in it. Returns whether one is.
pub(super) fn adopt_named(session: &Session, parameters: &[u8]) -> Result<bool> {
    let mut is_named = false;
    if session.device_count() == 1 {
        return Ok(is_named);
    }
    for word in parameters.as_chunks().0 {
        let named = u64::from_le_bytes(*word);
        let elsewhere = address::ordinal_of(named)
            .filter(|ordinal| *ordinal != session.ordinal() && !address::is_in_arena(named));
        let Some(owner) = elsewhere.and_then(device::session_if_open) else {
            continue;
        };
        let Some(found) = owner.host().find_by_device(named) else {
            continue;
        };
        // Memory of pools and managed memory has other lifetimes.
        if managed::contains(found.address) || pool::of(found.address) != 0 {
            continue;
        }
        let size = usize::try_from(found.size).unwrap_or(0);
        let memory = std::ptr::with_exposed_provenance(found.address as usize);
        // SAFETY: it stays until the program frees it, before which `release` ends this.
        let memory = unsafe { HostSlice::new(memory, size) };
        session.host().adopt(memory, found.device)?;
        is_named = true;
    }
    Ok(is_named)
}

/// Ends the access of other devices to memory that a session pinned and is about to unpin.
fn release(session: &Session, found: &Pinned) -> Result {
    let mut outcome = Ok(());
    for other in device::others_than(session) {
        outcome = outcome.and(other.host().forsake(Some(found.device)));
    }
    outcome
}

/// Allocates pinned memory.
pub(super) fn allocate(out: Out<'_, *mut c_void>, size: usize, flags: c_uint) -> Result {
    out.present()?;
    if size == 0 {
        return out.put(std::ptr::null_mut());
    }
    capture::permit_unsafe()?;
    let current = current::current()?;
    let address = current.allocate(|| current.session.host().allocate(size as u64, flags))?;
    out.put(std::ptr::with_exposed_provenance_mut(
        usize::try_from(address).unwrap_or(0),
    ))
}

pub(crate) fn cuMemFreeHost(address: *mut c_void) -> Result {
    current::check_if_any()?;
    if address.is_null() {
        return Ok(());
    }
    let (session, found) = pinned(address as u64).ok_or(Status::INVALID_VALUE)?;
    let is_other = managed::contains(found.address) || pool::of(found.address) != 0;
    if found.address != address as u64 || is_other {
        return Err(Status::INVALID_VALUE);
    }
    capture::permit_unsafe()?;
    pointer::forget(found.address);
    forget_memory(found.address);
    release(session, &found)?;
    session.host().free(address as u64)
}

/// Unpins memory because its context ends.
fn end(session: &Session, found: &Pinned) {
    // The host's results no longer matter.
    let _ = release(session, found);
    let _ = managed::remove(found.address);
    let _ = peers::end_copies(session, found.address);
    let _ = pool::freeing(found.address, || match found.registered {
        true => session.host().unregister(found.address),
        false => session.host().free(found.address),
    });
}

/// Frees all pinned and managed memory of a session (cuDevicePrimaryCtxReset) except that of
/// other contexts, at the addresses `kept`.
pub fn free_all(session: &Session, kept: &HashSet<u64>) {
    let managed = session.managed_memory().all();
    for address in managed.into_iter().filter(|at| !kept.contains(at)) {
        // The host's result no longer matters.
        let _ = memory::release(session, address);
    }
    let _ = session.host().forsake(None);
    let pinned = session.host().all();
    for found in pinned.iter().filter(|one| !kept.contains(&one.address)) {
        end(session, found);
    }
    let _ = session.host().trim_pooled(0);
    peers::copy_again(session);
}

/// Frees or unpins the memory at an address, because its context ends.
pub fn end_memory(session: &Session, address: u64) {
    let pinned = session.host().find(address);
    match pinned.filter(|found| found.address == address && !managed::contains(address)) {
        Some(found) => {
            pointer::forget(address);
            end(session, &found);
        }
        None => {
            // Another thread may have freed it in the meantime.
            let _ = memory::release(session, address);
        }
    }
}

pub(crate) unsafe fn cuMemHostRegister_v2(
    address: *mut c_void,
    size: usize,
    flags: c_uint,
) -> Result {
    super::present(address)?;
    let current = current::current()?;
    let host = current.session.host();
    match pinned(address as u64) {
        Some((_, found)) if !found.registered => return Err(Status::INVALID_VALUE),
        None if !managed::contains(address as u64) => {}
        _ => return Err(Status::HOST_MEMORY_ALREADY_REGISTERED),
    }
    capture::permit_unsafe()?;
    // SAFETY: the caller upholds the contract of `HostSlice::new`.
    let memory = unsafe { HostSlice::new(address, size) };
    let start = memory.address();
    match current.allocate(|| host.register(memory, flags).map(|()| start)) {
        Err(Status::NOT_SUPPORTED) if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 => {
            Err(unsupported_use!(
                "cuMemHostRegister of I/O memory",
                "the host's GPU cannot access devices of the guest"
            ))
        }
        registered => registered.map(|_| ()),
    }
}

pub(crate) fn cuMemHostUnregister(address: *mut c_void) -> Result {
    super::present(address)?;
    current::current()?;
    let (session, found) = pinned(address as u64).ok_or(Status::HOST_MEMORY_NOT_REGISTERED)?;
    if found.address != address as u64 || !found.registered {
        // Inside a registered range, but not at its beginning, or memory of cuMemHostAlloc.
        return Err(Status::INVALID_VALUE);
    }
    capture::permit_unsafe()?;
    pointer::forget(found.address);
    forget_memory(found.address);
    release(session, &found)?;
    session.host().unregister(address as u64)
}

pub(crate) fn cuMemHostGetDevicePointer_v2(
    device: Out<'_, CUdeviceptr>,
    address: *mut c_void,
    flags: c_uint,
) -> Result {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    current::current()?;
    let (session, _) = pinned(address as u64).ok_or(Status::INVALID_VALUE)?;
    device.put(session.host().device_address(address as u64)?)
}

pub(crate) fn cuMemHostGetFlags(flags: Out<'_, c_uint>, address: *mut c_void) -> Result {
    current::current()?;
    let (_, found) = pinned(address as u64).ok_or(Status::INVALID_VALUE)?;
    // Unified addressing maps all pinned memory. That the device only reads it is not told.
    flags.put(found.flags & !CU_MEMHOSTREGISTER_READ_ONLY | CU_MEMHOSTALLOC_DEVICEMAP)
}
