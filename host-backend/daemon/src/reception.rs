//! Connections that have not said hello, and the places where they wait.
//!
//! A place is lost to a newcomer when all are taken: the oldest connection of
//! the source that has most of them loses it. So silent connections of one
//! source cost that source its places and nobody else theirs. Who shows that
//! there is a session to go on with waits in places of its own, and so do
//! device processes.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use crate::handshake::Pending;
use crate::listener::Peer;

/// Who is counted as one: what a peer has only one of, or gets many of at no
/// price.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerIdentity {
    /// A user of this host.
    User(u32),
    /// A device process.
    Process(i32),
    /// A VM by its context identifier.
    Cid(u32),
    /// A VM by its socket.
    Vm(Arc<str>),
    /// A machine: an IPv4 address, or the /64 of an IPv6 address.
    Machine(IpAddr),
}

impl PeerIdentity {
    /// The source of a connection.
    #[must_use]
    pub fn of(peer: &Peer) -> Self {
        match peer {
            Peer::Local { uid, .. } => Self::User(*uid),
            Peer::Device { pid, .. } => Self::Process(*pid),
            Peer::Remote(from) | Peer::Host { from, .. } => Self::of_address(from.ip()),
            Peer::Certified(guest) => Self::of_address(guest.from.ip()),
            Peer::Cid(cid) => Self::Cid(*cid),
            Peer::Vm(name) => Self::Vm(Arc::clone(name)),
        }
    }

    fn of_address(address: IpAddr) -> Self {
        Self::Machine(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let prefix = u128::from(address) & !u128::from(u64::MAX);
                Ipv6Addr::from(prefix).into()
            }
        })
    }
}

/// A number of places, and who has them.
#[derive(Debug, Default)]
struct Places {
    /// Keys by source, the oldest first. No entry is empty.
    taken: BTreeMap<PeerIdentity, VecDeque<u64>>,
    count: usize,
}

impl Places {
    /// Gives `key` a place. Where that is more than `most`, returns the key
    /// that loses its own: with n sources, one of a source that has more than
    /// `most / n`.
    fn enter(&mut self, source: PeerIdentity, key: u64, most: usize) -> Option<u64> {
        self.taken.entry(source).or_default().push_back(key);
        self.count += 1;
        if self.count <= most {
            return None;
        }
        let largest = self.taken.iter().max_by_key(|(_, keys)| {
            let oldest = keys.front().copied().unwrap_or(u64::MAX);
            (keys.len(), std::cmp::Reverse(oldest))
        });
        let (source, oldest) = largest.map(|(source, keys)| (source.clone(), keys.front()))?;
        let oldest = oldest.copied()?;
        self.leave(&source, oldest);
        Some(oldest)
    }

    fn leave(&mut self, source: &PeerIdentity, key: u64) {
        let Some(keys) = self.taken.get_mut(source) else {
            return;
        };
        let before = keys.len();
        keys.retain(|other| *other != key);
        self.count -= before - keys.len();
        if keys.is_empty() {
            self.taken.remove(source);
        }
    }
}

/// Which places a connection may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Of which nothing is known.
    Stranger,
    /// It named the token of a session.
    Returning,
    /// A device process.
    Device,
}

/// All connections that have not said hello.
#[derive(Debug, Default)]
pub struct Reception {
    waiting: BTreeMap<u64, (Pending, PeerIdentity, Class)>,
    strangers: Places,
    returning: Places,
    devices: Places,
}

impl Reception {
    /// Takes in a connection. `most` is how many strangers have places; those
    /// who return have a quarter as many more, and so have device processes.
    /// Gives back the connection that
    /// loses its place.
    pub fn enter(&mut self, key: u64, pending: Pending, most: usize) -> Option<Pending> {
        let source = PeerIdentity::of(&pending.guest.peer);
        let (class, most) = match source {
            PeerIdentity::Process(_) => (Class::Device, most.div_ceil(4)),
            _ => (Class::Stranger, most),
        };
        self.waiting.insert(key, (pending, source.clone(), class));
        let loser = self.places(class).enter(source, key, most)?;
        self.remove(loser)
    }

    /// A connection named a session that there is. As [`enter`](Self::enter).
    pub fn recognize(&mut self, key: u64, most: usize) -> Option<Pending> {
        let (_, source, class) = self.waiting.get_mut(&key)?;
        if *class != Class::Stranger {
            return None;
        }
        *class = Class::Returning;
        let source = source.clone();
        self.strangers.leave(&source, key);
        let loser = self.returning.enter(source, key, most.div_ceil(4))?;
        self.remove(loser)
    }

    /// The connection with this key.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut Pending> {
        self.waiting.get_mut(&key).map(|(pending, ..)| pending)
    }

    /// Lets a connection go.
    pub fn remove(&mut self, key: u64) -> Option<Pending> {
        let (pending, source, class) = self.waiting.remove(&key)?;
        self.places(class).leave(&source, key);
        Some(pending)
    }

    fn places(&mut self, class: Class) -> &mut Places {
        match class {
            Class::Stranger => &mut self.strangers,
            Class::Returning => &mut self.returning,
            Class::Device => &mut self.devices,
        }
    }

    /// Takes out the connections whose patience is over.
    pub fn overdue(&mut self, now: Instant) -> Vec<Pending> {
        let overdue = self
            .iter()
            .filter(|(_, pending)| pending.deadline <= now)
            .map(|(key, _)| key)
            .collect::<Vec<_>>();
        let removed = overdue.into_iter().filter_map(|key| self.remove(key));
        removed.collect()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Pending)> {
        self.waiting
            .iter()
            .map(|(key, (pending, ..))| (*key, pending))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Closes all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_ipv6_prefix_is_one_machine() {
        let of = |text: &str| PeerIdentity::of_address(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    /// Connections that come (of a source) and go (the how-manieth).
    fn events() -> impl Strategy<Value = Vec<(bool, u32)>> {
        prop::collection::vec((any::<bool>(), 0..6_u32), 0..300)
    }

    proptest! {
        #[test]
        fn a_fair_share_is_never_lost(most in 1..20_usize, events in events()) {
            let mut places = Places::default();
            let mut model: Vec<(u32, u64)> = Vec::new();
            for (key, (comes, number)) in (0..).zip(events) {
                if comes {
                    model.push((number, key));
                    let full = model.len() > most;
                    let lost = places.enter(PeerIdentity::User(number), key, most);
                    prop_assert_eq!(lost.is_some(), full);
                    let Some(lost) = lost else { continue };
                    let at = model.iter().position(|(_, key)| *key == lost).unwrap();
                    let loser = model[at].0;
                    let has = |source: u32| model.iter().filter(|one| one.0 == source).count();
                    let mut sources: Vec<u32> = model.iter().map(|one| one.0).collect();
                    sources.sort_unstable();
                    sources.dedup();
                    // More than its share, no fewer than anybody, and its oldest.
                    prop_assert!(has(loser) * sources.len() > most);
                    prop_assert!(sources.iter().all(|other| has(*other) <= has(loser)));
                    prop_assert!(model[..at].iter().all(|one| one.0 != loser));
                    model.remove(at);
                } else if !model.is_empty() {
                    let (source, key) = model.remove(number as usize % model.len());
                    places.leave(&PeerIdentity::User(source), key);
                }
                prop_assert_eq!(places.count, model.len());
                prop_assert!(places.taken.values().all(|keys| !keys.is_empty()));
            }
        }
    }
}
