//! Connections that have not sent a hello, and the slots in which they wait.
//!
//! If all slots are taken, a new connection replaces the oldest one of the source that
//! occupies most slots. So silent connections of one source take slots from that source
//! only. Reconnecting guests that present a token, and device processes, have separate
//! slots.
//!
//! TLS handshakes cost processor time. Connections with data queue by source, and sources
//! take turns: a source waits for one handshake of each other source, however many
//! connections that source has.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use crate::handshake::Pending;
use crate::listener::Peer;
use crate::slots::Slots;

/// The source to which a connection is counted. Sources are chosen so that a peer cannot
/// obtain many of them for free.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerIdentity {
    /// A user of this host, with its subordinate users.
    User(u32),
    /// A device process, by [`Peer::Device::process`].
    Process(u64),
    /// A VM by its context identifier.
    Cid(u32),
    /// A VM by its socket.
    Vm(Arc<str>),
    /// A machine: an IPv4 address, or the /64 of an IPv6 address.
    Machine(IpAddr),
}

impl PeerIdentity {
    /// Returns the source of a connection.
    #[must_use]
    pub fn of(peer: &Peer) -> Self {
        match peer {
            Peer::Local { owner, .. } => Self::User(*owner),
            Peer::Device { process, .. } => Self::Process(*process),
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

/// The kind of slot that a connection takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// An unknown peer.
    Stranger,
    /// A guest that presented the token of a session.
    Returning,
    /// A device process.
    Device,
}

/// Queued connections, whose sources take turns.
#[derive(Debug, Default)]
struct Turns {
    /// No entry is empty.
    queues: BTreeMap<PeerIdentity, VecDeque<u64>>,
    /// Each source of `queues` once, the next in front.
    order: VecDeque<PeerIdentity>,
}

impl Turns {
    fn enter(&mut self, source: &PeerIdentity, key: u64) {
        let queue = self.queues.entry(source.clone()).or_default();
        if queue.is_empty() {
            self.order.push_back(source.clone());
        }
        queue.push_back(key);
    }

    fn next(&mut self) -> Option<u64> {
        let source = self.order.pop_front()?;
        let queue = self.queues.get_mut(&source)?;
        let key = queue.pop_front();
        match queue.is_empty() {
            true => drop(self.queues.remove(&source)),
            false => self.order.push_back(source),
        }
        key
    }

    fn leave(&mut self, source: &PeerIdentity, key: u64) {
        let Some(queue) = self.queues.get_mut(source) else {
            return;
        };
        queue.retain(|other| *other != key);
        if queue.is_empty() {
            self.queues.remove(source);
            self.order.retain(|other| other != source);
        }
    }
}

/// The state of a connection that has a slot.
///
/// ```text
///   Listening ── data arrived ────► Queued ── its turn ──► Away
///       ▲                                                   │
///       └────────────────── needs more ─────────────────────┘
/// ```
#[derive(Debug)]
enum SlotState {
    /// The event loop waits for data.
    Listening(Pending),
    /// It has sent data of a TLS handshake, and waits for its turn.
    Queued(Pending),
    /// A thread has it, for one step of its handshake.
    Away,
}

/// A connection that has a slot.
#[derive(Debug)]
struct Entry {
    seat: SlotState,
    source: PeerIdentity,
    class: Class,
    deadline: Instant,
}

/// All connections that have not sent a hello.
#[derive(Debug, Default)]
pub struct Reception {
    waiting: BTreeMap<u64, Entry>,
    strangers: Slots<PeerIdentity>,
    returning: Slots<PeerIdentity>,
    devices: Slots<PeerIdentity>,
    turns: Turns,
}

impl Reception {
    /// Adds a connection. There are `most` slots for unknown peers, and a quarter as many
    /// each for returning guests and for device processes. Closes the connection that
    /// loses its slot.
    pub fn enter(&mut self, key: u64, pending: Pending, most: usize) {
        let source = PeerIdentity::of(&pending.guest.peer);
        let (class, most) = match source {
            PeerIdentity::Process(_) => (Class::Device, most.div_ceil(4)),
            _ => (Class::Stranger, most),
        };
        let entry = Entry {
            deadline: pending.deadline,
            seat: SlotState::Listening(pending),
            source: source.clone(),
            class,
        };
        self.waiting.insert(key, entry);
        if let Some(loser) = self.slots(class).enter(source, key, most) {
            self.displace(loser);
        }
    }

    /// Moves a connection that presented the token of an existing session to the slots of
    /// returning guests. Closes the connection that loses its slot.
    pub fn recognize(&mut self, key: u64, most: usize) {
        let Some(entry) = self.waiting.get_mut(&key) else {
            return;
        };
        if entry.class != Class::Stranger {
            return;
        }
        entry.class = Class::Returning;
        let source = entry.source.clone();
        self.strangers.leave(key);
        if let Some(loser) = self.returning.enter(source, key, most.div_ceil(4)) {
            self.displace(loser);
        }
    }

    fn displace(&mut self, key: u64) {
        if let Some(loser) = self.forget(key) {
            let source = loser.source;
            tracing::debug!(
                ?source,
                "a connection without a hello is closed to make room"
            );
        }
    }

    /// The connection with this key, if it is listening.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut Pending> {
        match &mut self.waiting.get_mut(&key)?.seat {
            SlotState::Listening(pending) => Some(pending),
            _ => None,
        }
    }

    /// Removes a connection and returns it, unless a thread has it.
    pub fn remove(&mut self, key: u64) -> Option<Pending> {
        match self.forget(key)?.seat {
            SlotState::Listening(pending) | SlotState::Queued(pending) => Some(pending),
            SlotState::Away => None,
        }
    }

    /// Handles data from a connection. If it is in its handshake, queues it for a thread.
    /// Returns whether the caller must leave it alone, because it is queued or a thread has
    /// it.
    pub fn queue(&mut self, key: u64) -> bool {
        let Some(entry) = self.waiting.get_mut(&key) else {
            return false;
        };
        entry.seat = match std::mem::replace(&mut entry.seat, SlotState::Away) {
            SlotState::Listening(pending) if pending.guest.is_handshaking() => {
                self.turns.enter(&entry.source, key);
                SlotState::Queued(pending)
            }
            other => other,
        };
        !matches!(entry.seat, SlotState::Listening(_))
    }

    /// Hands out the next connection, for one step of its handshake.
    pub fn next_to_shake(&mut self) -> Option<(u64, Pending)> {
        let key = self.turns.next()?;
        let entry = self.waiting.get_mut(&key)?;
        match std::mem::replace(&mut entry.seat, SlotState::Away) {
            SlotState::Listening(pending) | SlotState::Queued(pending) => Some((key, pending)),
            SlotState::Away => None,
        }
    }

    /// Takes back a connection that needs more data. It is closed if it has lost its slot
    /// meanwhile.
    pub fn take_back(&mut self, key: u64, pending: Pending) {
        if let Some(entry) = self.waiting.get_mut(&key) {
            entry.seat = SlotState::Listening(pending);
        }
    }

    /// Releases the slot of a connection that was handed out. Returns false if it has lost
    /// the slot meanwhile.
    pub fn check_out(&mut self, key: u64) -> bool {
        self.forget(key).is_some()
    }

    fn forget(&mut self, key: u64) -> Option<Entry> {
        let entry = self.waiting.remove(&key)?;
        self.slots(entry.class).leave(key);
        self.turns.leave(&entry.source, key);
        Some(entry)
    }

    fn slots(&mut self, class: Class) -> &mut Slots<PeerIdentity> {
        match class {
            Class::Stranger => &mut self.strangers,
            Class::Returning => &mut self.returning,
            Class::Device => &mut self.devices,
        }
    }

    /// Closes the connections whose deadline has passed, and returns their sources.
    pub fn overdue(&mut self, now: Instant) -> Vec<PeerIdentity> {
        let overdue = self.waiting.iter();
        let overdue = overdue.filter(|(_, entry)| entry.deadline <= now);
        let overdue: Vec<u64> = overdue.map(|(key, _)| *key).collect();
        let forgotten = overdue.into_iter().filter_map(|key| self.forget(key));
        forgotten.map(|entry| entry.source).collect()
    }

    /// The earliest deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.values().map(|entry| entry.deadline).min()
    }

    /// The listening connections.
    pub fn listening(&self) -> impl Iterator<Item = (u64, &Pending)> {
        let seats = self.waiting.iter().map(|(key, entry)| (*key, &entry.seat));
        seats.filter_map(|(key, seat)| match seat {
            SlotState::Listening(pending) => Some((key, pending)),
            _ => None,
        })
    }

    /// Number of connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Closes all connections.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn subordinate_users_are_one_source() {
        let user = |uid, owner| {
            let pid = 1;
            PeerIdentity::of(&Peer::Local { uid, owner, pid })
        };
        assert_eq!(user(100_000, 1000), user(1000, 1000));
        assert_ne!(user(1001, 1001), user(1000, 1000));
    }

    #[test]
    fn device_processes_of_other_namespaces_are_different_sources() {
        let process = |pid, process| {
            PeerIdentity::of(&Peer::Device {
                uid: 0,
                pid,
                process,
            })
        };
        assert_ne!(process(0, 7), process(0, 8));
        assert_eq!(process(0, 7), process(0, 7));
    }

    #[test]
    fn an_ipv6_prefix_is_one_machine() {
        let of = |text: &str| PeerIdentity::of_address(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    /// Arrivals (of a source) and departures (of the connection with this index).
    fn events() -> impl Strategy<Value = Vec<(bool, u32)>> {
        prop::collection::vec((any::<bool>(), 0..6_u32), 0..300)
    }

    proptest! {
        #[test]
        fn a_source_waits_for_one_of_each_other(events in events()) {
            let mut turns = Turns::default();
            let mut model: Vec<(u32, u64)> = Vec::new();
            // The sources that had a turn since this source's last turn, or since it
            // arrived.
            let mut waits: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            for (key, (comes, number)) in (0..).zip(events) {
                if comes {
                    if model.iter().all(|one| one.0 != number) {
                        waits.insert(number, Vec::new());
                    }
                    model.push((number, key));
                    turns.enter(&PeerIdentity::User(number), key);
                } else if number == 0 && !model.is_empty() {
                    let (source, key) = model.remove(model.len() / 2);
                    turns.leave(&PeerIdentity::User(source), key);
                } else {
                    let next = turns.next();
                    prop_assert_eq!(next.is_some(), !model.is_empty());
                    let Some(next) = next else { continue };
                    let at = model.iter().position(|(_, key)| *key == next).unwrap();
                    let (source, _) = model.remove(at);
                    // It is the oldest of its source, and no source had two turns while
                    // another waited.
                    prop_assert!(model[..at].iter().all(|one| one.0 != source));
                    for (other, gone) in &mut waits {
                        if *other != source && model.iter().any(|one| one.0 == *other) {
                            prop_assert!(!gone.contains(&source));
                            gone.push(source);
                        }
                    }
                    waits.insert(source, Vec::new());
                }
                prop_assert_eq!(turns.order.len(), turns.queues.len());
                let left: usize = turns.queues.values().map(VecDeque::len).sum();
                prop_assert_eq!(left, model.len());
            }
        }
    }
}
