//! Which contexts and pools grant another device access to a device's memory, and which
//! devices have managed memory that all others access.
//!
//! All contexts of a device share its session, and the host maps memory for sessions. So
//! a device has access as long as any of these grants it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use paragpu_client::Session;
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use super::context::Context;
use crate::sys::{Result, device};

/// CUDA_ERROR_PEER_ACCESS_UNSUPPORTED.
pub const PEER_ACCESS_UNSUPPORTED: Status = Status(217);
/// CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED.
const PEER_ACCESS_ALREADY_ENABLED: Status = Status(704);
/// CUDA_ERROR_PEER_ACCESS_NOT_ENABLED.
const PEER_ACCESS_NOT_ENABLED: Status = Status(705);

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
}

/// Held during the calls to the hosts, so that no thread closes what another opens.
static ENABLED: Mutex<Enabled> = Mutex::new(Enabled {
    contexts: BTreeMap::new(),
    pools: BTreeSet::new(),
    managed: BTreeSet::new(),
});

/// Gives a session's device access to the memory of another.
fn open(accessing: &Session, owner: &Session) -> Result {
    match has_access(accessing.peer_attributes(owner)) {
        true => accessing.enable_peer(owner),
        false => Err(PEER_ACCESS_UNSUPPORTED),
    }
}

/// CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED of the attributes of a pair.
pub fn has_access(attributes: Result<[u64; 5]>) -> bool {
    matches!(attributes, Ok([_, access, ..]) if access > 0)
}

impl Enabled {
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
        return Err(PEER_ACCESS_UNSUPPORTED);
    }
    let mut enabled = ENABLED.lock();
    if enabled.contexts.contains_key(&contexts) {
        return Err(PEER_ACCESS_ALREADY_ENABLED);
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
    enabled.close_unused(devices.ok_or(PEER_ACCESS_NOT_ENABLED)?);
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
    /// Whether all others can access a device's memory, by the number of that device.
    static REACHED: [OnceLock<bool>; MAX_DEVICES as usize] =
        [const { OnceLock::new() }; MAX_DEVICES as usize];
    let ordinal = owner.ordinal();
    let reached = REACHED.get(ordinal as usize);
    if !reached.is_some_and(|known| *known.get_or_init(|| device::others_reach(owner))) {
        return Ok(false);
    }
    let mut enabled = ENABLED.lock();
    if enabled.managed.contains(&ordinal) {
        return Ok(true);
    }
    let others = (0..MAX_DEVICES).filter(|other| *other != ordinal);
    others
        .filter_map(device::session_if_open)
        .try_for_each(|other| open(other, owner))?;
    enabled.managed.insert(ordinal);
    Ok(true)
}

/// Gives a new session's device access to all managed memory, before `publish` lets the
/// program use it.
///
/// # Errors
/// `PEER_ACCESS_UNSUPPORTED`; errors of the hosts.
pub fn join<R>(session: &Session, publish: impl FnOnce() -> R) -> Result<R> {
    let enabled = ENABLED.lock();
    let owners = enabled.managed.iter().copied();
    owners
        .filter_map(device::session_if_open)
        .try_for_each(|owner| open(session, owner))?;
    Ok(publish())
}
