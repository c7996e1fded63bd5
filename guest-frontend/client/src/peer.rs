//! Access of other devices to a device's memory (CUDA Driver API, Peer Context Memory
//! Access).
//!
//! The host of this session offers each mapping, and the host of the other takes it at the
//! same address. So kernels and copies of both devices name the memory alike, and the program
//! sees one address space. Memory that is allocated later is mapped for the others before
//! the allocation returns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use paragpu_protocol::status::Status;
use paragpu_protocol::table::{MemLeave, MemOffer, MemTake, PeerAsk, PeerOffer};
use paragpu_protocol::types::{MemoryOffer, PeerAttributes, PeerName};
use parking_lot::Mutex;

use crate::connection::Link;
use crate::error::Result;

/// CU_DEVICE_P2P_ATTRIBUTE_*, 1 to 5, of the access of one device to another: `offer` calls
/// the other's host, and `ask` that of the accessing one.
///
/// # Errors
/// As [`Link::check`].
pub(crate) fn attributes(
    offer: impl Fn(&PeerOffer) -> Result<PeerName>,
    ask: impl Fn(&PeerAsk) -> Result<PeerAttributes>,
) -> Result<[u64; 5]> {
    /// A name that was offered before a move is unknown at the destination.
    const ATTEMPTS: usize = 3;
    let mut values = [0; 5];
    for _ in 0..ATTEMPTS {
        let PeerName { token } = offer(&PeerOffer {})?;
        PeerAttributes { values } = ask(&PeerAsk { token })?;
        // CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED.
        let [_, access, ..] = values;
        if access != 0 {
            break;
        }
    }
    Ok(values)
}

/// Maps memory of `owner`'s session, a whole mapping of `size` bytes at `memory`, at
/// `address` for the device of another session.
///
/// # Errors
/// `NOT_SUPPORTED` for a part of a mapping; errors of the hosts.
pub(crate) fn map(
    owner: &Link,
    accessing: &Link,
    memory: u64,
    address: u64,
    size: u64,
) -> Result<()> {
    let offer: MemoryOffer = owner.call(&MemOffer { address: memory })?;
    if (offer.base, offer.size) != (memory, size) {
        return Err(Status::NOT_SUPPORTED);
    }
    let token = offer.token;
    accessing.call(&MemTake {
        address,
        size,
        token,
    })
}

/// Ends this.
pub(crate) fn unmap(accessing: &Link, address: u64) {
    // A session that is over has nothing mapped any more.
    let _ = accessing.post(&MemLeave { address });
}

/// A device that has access.
#[derive(Debug)]
struct Peer {
    link: Arc<Link>,
    /// Where its host has mapped the memory.
    mapped: BTreeSet<u64>,
}

/// A mapping of this session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mapping {
    size: u64,
    /// Another mapping at the same address has another number.
    id: u64,
}

#[derive(Debug, Default)]
struct State {
    mappings: BTreeMap<u64, Mapping>,
    next: u64,
    /// By the number of the device.
    peers: BTreeMap<u32, Peer>,
}

/// The mappings of a session, and the other devices that have access to all of them.
#[derive(Debug)]
pub(crate) struct PeerAccess {
    link: Arc<Link>,
    /// Held while a mapping is passed on, so that two threads do not pass on the same.
    passing: Mutex<()>,
    /// Never held across a round trip: memory is freed under it.
    state: Mutex<State>,
}

impl PeerAccess {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            passing: Mutex::new(()),
            state: Mutex::default(),
        }
    }

    /// Notes memory that the host mapped, and passes it on to the devices with access.
    ///
    /// # Errors
    /// Errors of the hosts; then no device has access to it.
    pub(crate) fn add(&self, address: u64, size: u64) -> Result<()> {
        let mapping = {
            let mut state = self.state.lock();
            state.next += 1;
            let id = state.next;
            state.mappings.insert(address, Mapping { size, id });
            if state.peers.is_empty() {
                return Ok(());
            }
            Mapping { size, id }
        };
        let _passing = self.passing.lock();
        let peers: Vec<u32> = self.state.lock().peers.keys().copied().collect();
        let passed = peers
            .into_iter()
            .try_for_each(|peer| self.pass(peer, address, mapping));
        if passed.is_err() {
            self.remove(address);
        }
        passed
    }

    /// Forgets memory that the host is about to unmap.
    pub(crate) fn remove(&self, address: u64) {
        let mut state = self.state.lock();
        state.mappings.remove(&address);
        for peer in state.peers.values_mut() {
            if peer.mapped.remove(&address) {
                unmap(&peer.link, address);
            }
        }
    }

    /// Gives another device access to all memory. Nothing happens if it has access.
    ///
    /// # Errors
    /// Errors of the hosts; then the device has no access.
    pub(crate) fn grant(&self, device: u32, link: &Arc<Link>) -> Result<()> {
        let _passing = self.passing.lock();
        let mappings = {
            let mut state = self.state.lock();
            if state.peers.contains_key(&device) {
                return Ok(());
            }
            let peer = Peer {
                link: Arc::clone(link),
                mapped: BTreeSet::new(),
            };
            state.peers.insert(device, peer);
            state.mappings.clone()
        };
        let passed = mappings
            .into_iter()
            .try_for_each(|(address, mapping)| self.pass(device, address, mapping));
        if passed.is_err() {
            self.revoke(device);
        }
        passed
    }

    /// Ends the access of another device, once the work posted to it is complete.
    pub(crate) fn revoke(&self, device: u32) {
        let Some(peer) = self.state.lock().peers.remove(&device) else {
            return;
        };
        for address in peer.mapped {
            unmap(&peer.link, address);
        }
    }

    /// Passes a mapping on to a device. Meanwhile it may be unmapped, or the access end.
    fn pass(&self, device: u32, address: u64, mapping: Mapping) -> Result<()> {
        let link = {
            let state = self.state.lock();
            match state.peers.get(&device) {
                Some(peer) if !peer.mapped.contains(&address) => Arc::clone(&peer.link),
                _ => return Ok(()),
            }
        };
        let mapped = map(&self.link, &link, address, address, mapping.size);
        let mut state = self.state.lock();
        let is_there = state.mappings.get(&address) == Some(&mapping);
        let peer = state.peers.get_mut(&device).filter(|_| is_there);
        match (mapped, peer) {
            (Ok(()), Some(peer)) => {
                peer.mapped.insert(address);
                Ok(())
            }
            (Ok(()), None) => {
                unmap(&link, address);
                Ok(())
            }
            (Err(status), Some(_)) => Err(status),
            (Err(_), None) => Ok(()),
        }
    }
}
