//! Access of other devices to a device's memory (CUDA Driver API, Peer Context Memory
//! Access).
//!
//! The host of this session offers each mapping, and the host of the other takes it at the
//! same address. So kernels and copies of both devices name the memory alike, and the program
//! sees one address space. Memory that is allocated later is mapped for the others before
//! the allocation returns.
//!
//! A mapping can be given the memory of another device later ([`PeerAccess::relocate`]). It
//! keeps its address, and all devices access it there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use paragpu_protocol::handle::{AliasAddress, DeviceAddress};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    MemAlias, MemAliasEnd, MemLeave, MemMap, MemOffer, MemTake, MemUnmap, PeerAsk, PeerOffer,
};
use paragpu_protocol::types::{MemoryOffer, PeerAttributes, PeerName};
use parking_lot::Mutex;

use crate::connection::Link;
use crate::error::Result;

/// CU_DEVICE_P2P_ATTRIBUTE_*, 1 to 5, of the access of one device to another: `offer` calls
/// the other's host, and `ask` that of the accessing one.
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
    owner.note_shared_memory();
    accessing.note_shared_memory();
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

/// The memory that a mapping has instead of its own.
#[derive(Debug, Clone)]
pub(crate) struct Away {
    /// The session that allocated it.
    pub(crate) home: Arc<Link>,
    /// Its address there.
    pub(crate) memory: u64,
}

/// A mapping of this session.
#[derive(Debug, Clone)]
struct Mapping {
    size: u64,
    /// Another mapping at the same address, or other memory, has another number.
    id: u64,
    away: Option<Away>,
}

/// The host's call by which a session's device accesses a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    Map,
    Alias,
    Take,
}

impl Mapping {
    fn means(&self, owner: &Arc<Link>, accessing: &Arc<Link>) -> Means {
        let is_owner = Arc::ptr_eq(owner, accessing);
        match &self.away {
            None if is_owner => Means::Map,
            // A session does not take its own memory into its own arena.
            Some(away) if is_owner && Arc::ptr_eq(&away.home, owner) => Means::Alias,
            _ => Means::Take,
        }
    }

    /// Maps it for the device of a session.
    fn begin(&self, owner: &Arc<Link>, accessing: &Arc<Link>, address: u64) -> Result<()> {
        let size = self.size;
        let (home, memory) = match &self.away {
            Some(away) => (&away.home, away.memory),
            None => (owner, address),
        };
        match self.means(owner, accessing) {
            Means::Map => accessing.call(&MemMap {
                address: DeviceAddress(address),
                size,
            }),
            Means::Alias => accessing.call(&MemAlias {
                address: AliasAddress(address),
                size,
                memory: DeviceAddress(memory),
                access: 3,
            }),
            Means::Take => map(home, accessing, memory, address, size),
        }
    }

    /// Ends this.
    fn end(&self, owner: &Arc<Link>, accessing: &Arc<Link>, address: u64) -> Result<()> {
        let posted = match self.means(owner, accessing) {
            Means::Map => accessing.post(&MemUnmap {
                address: DeviceAddress(address),
            }),
            Means::Alias => accessing.post(&MemAliasEnd {
                address: AliasAddress(address),
            }),
            Means::Take => accessing.post(&MemLeave { address }),
        };
        posted.map(drop)
    }
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
    /// Errors of the hosts; then the memory is unmapped.
    pub(crate) fn add(&self, address: u64, size: u64) -> Result<()> {
        let mapping = {
            let mut state = self.state.lock();
            state.next += 1;
            let mapping = Mapping {
                size,
                id: state.next,
                away: None,
            };
            state.mappings.insert(address, mapping.clone());
            if state.peers.is_empty() {
                return Ok(());
            }
            mapping
        };
        let _passing = self.passing.lock();
        let peers: Vec<u32> = self.state.lock().peers.keys().copied().collect();
        let passed = peers
            .into_iter()
            .try_for_each(|peer| self.pass(peer, address, &mapping));
        if passed.is_err() {
            self.remove(address, size)?;
        }
        passed
    }

    /// Has the hosts unmap what is mapped in a range.
    pub(crate) fn remove(&self, address: u64, size: u64) -> Result<()> {
        let mut state = self.state.lock();
        let State {
            mappings, peers, ..
        } = &mut *state;
        let mut removed = Ok(());
        while let Some((&at, _)) = mappings.range(address..address + size).next()
            && let Some(mapping) = mappings.remove(&at)
        {
            removed = removed.and(self.end(peers, at, &mapping));
        }
        removed
    }

    /// Has the hosts unmap a mapping.
    fn end(&self, peers: &mut BTreeMap<u32, Peer>, address: u64, mapping: &Mapping) -> Result<()> {
        for peer in peers.values_mut() {
            if peer.mapped.remove(&address) {
                // A session that is over has nothing mapped any more.
                let _ = mapping.end(&self.link, &peer.link, address);
            }
        }
        mapping.end(&self.link, &self.link, address)
    }

    /// The mappings in a range: address, bytes, and their memory if it is not their own.
    pub(crate) fn mappings(&self, address: u64, size: u64) -> Vec<(u64, u64, Option<Away>)> {
        let state = self.state.lock();
        let inside = state.mappings.range(address..address + size);
        inside
            .map(|(at, mapping)| (*at, mapping.size, mapping.away.clone()))
            .collect()
    }

    /// Gives the mappings at `places` the memory `away`, one each, which already has their
    /// contents. `prepare` keeps all sessions from using them for as long as its result
    /// lives; if it returns `None`, nothing changes and the result is false. It may not
    /// allocate or free memory.
    ///
    /// # Errors
    /// Those of `prepare`. Errors of the hosts; then devices have no access to some of the
    /// memory.
    pub(crate) fn relocate<Guard>(
        &self,
        places: &[(u64, Away)],
        prepare: impl FnOnce() -> Result<Option<Guard>>,
    ) -> Result<bool> {
        // Both are held throughout: a thread that waits for the end of `prepare`'s result may
        // hold them otherwise.
        let _passing = self.passing.lock();
        let mut state = self.state.lock();
        let State {
            mappings,
            peers,
            next,
        } = &mut *state;
        let Some(_alone) = prepare()? else {
            return Ok(false);
        };
        for (address, away) in places {
            let mapping = mappings.get_mut(address).ok_or(Status::INVALID_VALUE)?;
            self.end(peers, *address, mapping)?;
            *next += 1;
            mapping.id = *next;
            mapping.away = Some(away.clone());
        }
        for (address, _) in places {
            let mapping = mappings.get(address).ok_or(Status::INVALID_VALUE)?;
            mapping.begin(&self.link, &self.link, *address)?;
            for peer in peers.values_mut() {
                mapping.begin(&self.link, &peer.link, *address)?;
                peer.mapped.insert(*address);
            }
        }
        Ok(true)
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
            .try_for_each(|(address, mapping)| self.pass(device, address, &mapping));
        if passed.is_err() {
            self.revoke(device);
        }
        passed
    }

    /// Ends the access of another device, once the work posted to it is complete.
    pub(crate) fn revoke(&self, device: u32) {
        let mut state = self.state.lock();
        let State {
            mappings, peers, ..
        } = &mut *state;
        let Some(peer) = peers.remove(&device) else {
            return;
        };
        for address in peer.mapped {
            if let Some(mapping) = mappings.get(&address) {
                // A session that is over has nothing mapped any more.
                let _ = mapping.end(&self.link, &peer.link, address);
            }
        }
    }

    /// Passes a mapping on to a device. Meanwhile it may be unmapped, or the access end.
    fn pass(&self, device: u32, address: u64, mapping: &Mapping) -> Result<()> {
        let link = {
            let state = self.state.lock();
            match state.peers.get(&device) {
                Some(peer) if !peer.mapped.contains(&address) => Arc::clone(&peer.link),
                _ => return Ok(()),
            }
        };
        let mapped = mapping.begin(&self.link, &link, address);
        let mut state = self.state.lock();
        let found = state.mappings.get(&address);
        let is_there = found.is_some_and(|found| found.id == mapping.id);
        let peer = state.peers.get_mut(&device).filter(|_| is_there);
        match (mapped, peer) {
            (Ok(()), Some(peer)) => {
                peer.mapped.insert(address);
                Ok(())
            }
            (Ok(()), None) => mapping.end(&self.link, &link, address),
            (Err(status), Some(_)) => Err(status),
            (Err(_), None) => Ok(()),
        }
    }
}
