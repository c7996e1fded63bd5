//! Which contexts and pools grant another device access to a device's memory, and which
//! devices have managed memory that all others access.
//!
//! All contexts of a device share its session, and the host maps memory for sessions. So
//! a device has access as long as any of these grants it.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;
use std::sync::OnceLock;

use paragpu_client::Session;
use paragpu_client::notice;
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use super::context::Context;
use crate::sys::{Result, device};

/// The number of a device that has access, and of the one that has the memory.
type Devices = (u32, u32);

#[derive(Debug)]
struct Enabled {
    /// By the handles of the context that has access and of its peer.
    contexts: BTreeMap<(u64, u64), Devices>,
    pools: BTreeSet<Devices>,
    /// Devices with managed memory that migrates. All others have access as soon as the
    /// program uses them.
    managed: BTreeSet<u32>,
    /// Managed memory of which each device has a copy: the device that allocated it, by
    /// address.
    copied: BTreeMap<u64, u32>,
}

/// Held during the calls to the hosts, so that no thread closes what another opens.
static ENABLED: Mutex<Enabled> = Mutex::new(Enabled {
    contexts: BTreeMap::new(),
    pools: BTreeSet::new(),
    managed: BTreeSet::new(),
    copied: BTreeMap::new(),
});

/// Gives a session's device access to the memory of another.
fn open(accessing: &Session, owner: &Session) -> Result {
    match has_access(accessing.peer_attributes(owner)) {
        true => accessing.enable_peer(owner),
        false => Err(Status::PEER_ACCESS_UNSUPPORTED),
    }
}

/// CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED of the attributes of a pair.
pub fn has_access(attributes: Result<[u64; 5]>) -> bool {
    matches!(attributes, Ok([_, access, ..]) if access > 0)
}

impl Enabled {
    /// Gives a device copies of the managed memory that others have allocated so.
    fn copy_all(&self, session: &Session) -> Result {
        let own = session.ordinal();
        let mut others = self.copied.iter().filter(|(_, ordinal)| **ordinal != own);
        others.try_for_each(
            |(address, ordinal)| match device::session_if_open(*ordinal) {
                Some(owner) => session.host().share(owner.host(), *address),
                None => Ok(()),
            },
        )
    }

    /// Closes a device's memory to another device once nothing grants access.
    fn close_unused(&self, devices: Devices) {
        let is_used = self.pools.contains(&devices)
            || self.managed.contains(&devices.1)
            || self.contexts.values().any(|of| *of == devices);
        let sessions = device::session_if_open(devices.0).zip(device::session_if_open(devices.1));
        if let Some((accessing, owner)) = sessions.filter(|_| !is_used) {
            accessing.disable_peer(owner);
        }
    }
}

/// Grants a context access to the memory of another.
///
/// # Errors
/// `PEER_ACCESS_ALREADY_ENABLED`, `PEER_ACCESS_UNSUPPORTED`.
pub fn enable(own: &Context, peer: &Context) -> Result {
    let (contexts, devices) = ((own.handle, peer.handle), (own.ordinal, peer.ordinal));
    if own.ordinal == peer.ordinal {
        return Err(Status::PEER_ACCESS_UNSUPPORTED);
    }
    let mut enabled = ENABLED.lock();
    if enabled.contexts.contains_key(&contexts) {
        return Err(Status::PEER_ACCESS_ALREADY_ENABLED);
    }
    open(own.session, peer.session)?;
    enabled.contexts.insert(contexts, devices);
    Ok(())
}

/// Ends the access of a context to the memory of another.
///
/// # Errors
/// `PEER_ACCESS_NOT_ENABLED`.
pub fn disable(own: &Context, peer: &Context) -> Result {
    let mut enabled = ENABLED.lock();
    let contexts = (own.handle, peer.handle);
    let devices = enabled.contexts.remove(&contexts);
    enabled.close_unused(devices.ok_or(Status::PEER_ACCESS_NOT_ENABLED)?);
    Ok(())
}

/// Ends the access of a destroyed context, and the access of others to it.
pub fn end(context: u64) {
    let mut enabled = ENABLED.lock();
    let mut ended = BTreeSet::new();
    enabled.contexts.retain(|(own, peer), devices| {
        let stays = *own != context && *peer != context;
        if !stays {
            ended.insert(*devices);
        }
        stays
    });
    for devices in ended {
        enabled.close_unused(devices);
    }
}

/// Grants a device permanent access to the pools of another: memory of a pool may still
/// be in use when the pool's access ends.
///
/// # Errors
/// `PEER_ACCESS_UNSUPPORTED`.
pub fn enable_pools(accessing: u32, owner: u32) -> Result {
    let (from, to) = (device::session(accessing)?, device::session(owner)?);
    let mut enabled = ENABLED.lock();
    open(from, to)?;
    enabled.pools.insert((accessing, owner));
    Ok(())
}

/// Gives all devices that the program uses, now or later, access to managed memory on a
/// device. Returns false if another device that the program sees cannot access it.
///
/// # Errors
/// Errors of the hosts.
pub fn share_managed(owner: &Session) -> Result<bool> {
    if !is_reached(owner) {
        return Ok(false);
    }
    let ordinal = owner.ordinal();
    let mut enabled = ENABLED.lock();
    if !enabled.managed.contains(&ordinal) {
        device::others_than(owner).try_for_each(|other| open(other, owner))?;
        enabled.managed.insert(ordinal);
    }
    Ok(true)
}

/// Whether all other devices that the program sees can access a device's memory.
fn is_reached(owner: &Session) -> bool {
    static REACHED: [OnceLock<bool>; MAX_DEVICES as usize] =
        [const { OnceLock::new() }; MAX_DEVICES as usize];
    let reached = REACHED.get(owner.ordinal() as usize);
    reached.is_some_and(|known| *known.get_or_init(|| device::others_reach(owner)))
}

/// Moves managed memory that `owner` allocated to the device `ordinal`, if all others can
/// access it there.
///
/// # Errors
/// As [`ManagedMemory::move_to`](paragpu_client::managed_memory::ManagedMemory::move_to).
pub fn move_managed(owner: &'static Session, ordinal: u32, address: u64, size: u64) -> Result {
    if !owner.managed_memory().holds(address) {
        return Ok(());
    }
    let to = device::session(ordinal)?;
    if !is_reached(to) {
        return Ok(());
    }
    // No session begins, and no two threads move memory at the same time.
    let _enabled = ENABLED.lock();
    let others = device::others_than(owner).map(Session::managed_memory);
    let all: Vec<_> = once(owner.managed_memory()).chain(others).collect();
    let memory = owner.managed_memory();
    memory.move_to(to.managed_memory(), &all, address, size)
}

/// Allocates zeroed pinned memory of which each device has a copy.
///
/// # Errors
/// `OUT_OF_MEMORY`; errors of the hosts.
pub fn allocate_copied(owner: &Session, size: u64) -> Result<u64> {
    let mut enabled = ENABLED.lock();
    let address = owner.host().allocate_for_all(size)?;
    let mut others = device::others_than(owner);
    if let Err(status) = others.try_for_each(|other| other.host().share(owner.host(), address)) {
        leave_copies(owner, address);
        // The first error is the one to report.
        let _ = owner.host().free(address);
        return Err(status);
    }
    enabled.copied.insert(address, owner.ordinal());
    Ok(address)
}

/// Ends the copies of other devices before the memory is freed. Returns false if they have
/// none.
pub fn end_copies(owner: &Session, address: u64) -> bool {
    let had = ENABLED.lock().copied.remove(&address).is_some();
    if had {
        leave_copies(owner, address);
    }
    had
}

/// Gives a device its copies again after a reset.
pub fn copy_again(session: &Session) {
    // An error shows where a kernel uses the memory.
    let _ = ENABLED.lock().copy_all(session);
}

fn leave_copies(owner: &Session, address: u64) {
    for other in device::others_than(owner) {
        // Failed work uses nothing any more.
        let _ = other.host().forsake(Some(address));
    }
}

/// Gives a new session's device all managed memory, before `publish` lets the program use
/// it. If that fails, because other sessions moved to another host, the device can be used
/// for other memory.
pub fn join<R>(session: &Session, publish: impl FnOnce() -> R) -> R {
    let enabled = ENABLED.lock();
    let owner = |ordinal: &u32| device::session_if_open(*ordinal);
    let mut owners = enabled.managed.iter().filter_map(owner);
    let reached = owners.try_for_each(|owner| open(session, owner));
    let copied = enabled.copy_all(session);
    if let Err(status) = reached.and(copied) {
        let device = session.ordinal();
        notice(format_args!(
            "device {device} cannot access the program's managed memory: {status}"
        ));
    }
    publish()
}
