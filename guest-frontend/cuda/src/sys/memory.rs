//! Device memory (CUDA Driver API, Memory Management).

use std::ffi::c_uint;

use paragpu_abi::CUdeviceptr;
use paragpu_client::Session;
use paragpu_client::objects::graph_memory::GraphMemory;
use paragpu_client::shared_memory::Kind;
use paragpu_client::virtual_memory::has_view;
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;

use super::boundary::Out;
use super::{Result, capture, device, host, pointer};
use crate::address::{is_in_arena, ordinal_of};
use crate::objects::context::forget_memory;
use crate::objects::{peers, pool};
use crate::{current, managed};

/// Alignment in bytes of the rows of pitched memory, as natively.
const PITCH: usize = 512;

/// Whether the program itself can access device memory at an address.
pub fn is_programs(address: u64) -> bool {
    // `__managed__` variables are at addresses of the arena.
    managed::contains(address)
        || match is_in_arena(address) {
            true => has_view(address),
            false => host::pinned(address).is_some(),
        }
}

/// The session that has device memory at an address: the one whose arena contains it or,
/// for module variables, that of the current context.
pub fn owner(address: u64) -> Result<&'static Session> {
    let current = current::current()?;
    let named = ordinal_of(address).and_then(device::session_if_open);
    Ok(named.unwrap_or(current.session))
}

/// The session of another device that has a range of device memory which the device of
/// `session` does not reach.
pub fn owner_out_of_reach(session: &Session, address: u64, size: u64) -> Option<&'static Session> {
    let ordinal = ordinal_of(address).filter(|ordinal| *ordinal != session.ordinal())?;
    device::session_if_open(ordinal).filter(|_| !session.memory().holds(address, size))
}

/// As [`owner`], also for a thread without a current context. For module variables it
/// then returns the first open session.
pub fn holder(address: u64) -> Option<&'static Session> {
    let current = || Some(current::current_if_any()?.session);
    let named = ordinal_of(address).and_then(device::session_if_open);
    named
        .or_else(current)
        .or_else(|| (0..MAX_DEVICES).find_map(device::session_if_open))
}

/// Allocates in the current context.
pub fn allocate(size: usize) -> Result<u64> {
    capture::permit_unsafe()?;
    let current = current::current()?;
    current.allocate(|| current.session.memory().allocate(size as u64))
}

pub(crate) fn cuMemAlloc_v2(address: Out<'_, CUdeviceptr>, size: usize) -> Result {
    address.present()?.put(allocate(size)?)
}

pub(crate) fn cuMemAllocPitch_v2(
    address: Out<'_, CUdeviceptr>,
    pitch: Out<'_, usize>,
    width: usize,
    height: usize,
    element: c_uint,
) -> Result {
    let (address, pitch) = (address.present()?, pitch.present()?);
    if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let row = width
        .checked_next_multiple_of(PITCH)
        .ok_or(Status::INVALID_VALUE)?;
    let size = row.checked_mul(height).ok_or(Status::INVALID_VALUE)?;
    address.put(allocate(size)?)?;
    pitch.put(row)
}

pub(crate) fn cuMemFree_v2(address: CUdeviceptr) -> Result {
    current::check_if_any()?;
    capture::permit_unsafe()?;
    if address == 0 {
        return Ok(());
    }
    let session = holder(address).ok_or(Status::INVALID_VALUE)?;
    // Programs may rely on the wait, if they can look at what the work writes.
    if session.host().is_in_use() {
        session.synchronize()?;
    }
    release(session, address)
}

/// Frees device memory, managed memory, or host memory of a pool.
pub fn release(session: &Session, address: u64) -> Result {
    pointer::forget(address);
    forget_memory(address);
    let is_pooled = || !is_in_arena(address) && pool::of(address) != 0;
    if managed::remove(address) || is_pooled() {
        finish_others(session);
        let _ = peers::end_copies(session, address);
        return pool::freeing(address, || {
            match session.managed_memory().free(address)? {
                true => Ok(()),
                false => session.host().free(address),
            }
        });
    }
    if let Some(memory) = GraphMemory::find(address) {
        return memory.free();
    }
    let shared = session.virtual_memory().shared();
    if shared.kind(address) == Some(Kind::OfPool) {
        return shared.close(address);
    }
    pool::freeing(address, || session.memory().free(address))
}

/// Waits for the work of other devices, which may use managed memory of this one.
fn finish_others(session: &Session) {
    for other in device::others_than(session) {
        // Failed work uses nothing any more.
        let _ = other.synchronize();
    }
}

pub(crate) fn cuMemGetInfo_v2(free: Out<'_, usize>, total: Out<'_, usize>) -> Result {
    let info = current::current()?.session.memory().info()?;
    free.put_if(usize::try_from(info.free).unwrap_or(usize::MAX));
    total.put_if(usize::try_from(info.total).unwrap_or(usize::MAX));
    Ok(())
}

pub(crate) fn cuMemGetAddressRange_v2(
    base: Out<'_, CUdeviceptr>,
    size: Out<'_, usize>,
    address: CUdeviceptr,
) -> Result {
    let session = owner(address)?;
    let (start, length) = match session.memory().find(address) {
        Some((start, length, _)) => (start, length),
        None => {
            let pinned = session
                .host()
                .find_by_device(address)
                .ok_or(Status::NOT_FOUND)?;
            (pinned.device, pinned.size)
        }
    };
    base.put_if(start);
    size.put_if(usize::try_from(length).unwrap_or(usize::MAX));
    Ok(())
}
