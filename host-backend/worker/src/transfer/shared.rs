//! Device memory that is handed over as descriptors, when both workers are on one
//! host. On one GPU the destination maps the source's memory, and nothing is copied.
//! With two GPUs, the destination copies from the source's memory if its GPU can;
//! nothing passes through host memory.
//!
//! On one GPU, both workers then map the same memory. The source continues to use it
//! while its program runs, and if the move fails. The destination neither reads nor
//! writes it before it owns the session, and unmaps it if it never does. Memory that the
//! program maps in the meantime is handed over after the stop. What it frees in the meantime the
//! destination unmaps in the next round, or earlier if a call lacks memory (`source/relief.rs`).
//! A mapping that one end cannot export or the other cannot import is copied like any other;
//! this is known before the switchover.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

use paragpu_communicator_stream::handshake::MAX_FDS;
use paragpu_device::{Export, PeerId};
use paragpu_protocol::codec::{Field, Reader, decode_all};
use paragpu_protocol::handle::ObjectKind;
use paragpu_protocol::table::MemMap;

use super::regions::{Chunk, MemoryKind};
use super::state::{StateError, device};
use crate::session::Session;

paragpu_protocol::record! {
    /// A mapping of device memory. A record contains several. Their descriptors follow in
    /// a frame.
    Mapping {
        /// First address.
        address: u64,
        /// Bytes.
        size: u64,
        /// An [`Offered`].
        offered: u8,
    }
}

/// What a round offers of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offered {
    /// The memory was replaced since it was handed over, and its contents are copied.
    Contents = 0,
    /// A descriptor follows.
    Memory = 1,
    /// The program has unmapped it since the round began.
    Nothing = 2,
}

impl Mapping {
    pub(super) fn offered(&self) -> Result<Offered, StateError> {
        [Offered::Contents, Offered::Memory, Offered::Nothing]
            .into_iter()
            .find(|offered| *offered as u8 == self.offered)
            .ok_or(StateError::Order("an offer of an unknown kind"))
    }
}

/// The mappings in a record, and the number of descriptors that follow.
pub(super) fn mappings(payload: &[u8]) -> Result<(Vec<Mapping>, usize), StateError> {
    let mut reader = Reader::new(payload);
    let mut mappings = Vec::new();
    while reader.remaining() > 0 {
        mappings.push(reader.field::<Mapping>()?);
    }
    let handed = mappings.iter();
    let handed = handed.filter(|mapping| mapping.offered == Offered::Memory as u8);
    let handed = handed.count();
    if mappings.len() > MAX_FDS {
        return Err(StateError::Order("too many mappings at once"));
    }
    Ok((mappings, handed))
}

/// One record of mappings, and their descriptors.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) payload: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
    /// For each mapping of the round, whether the record contains it.
    pub(super) named: Vec<bool>,
}

/// Mappings to export, on any thread. An export may wait for the driver, or for other
/// processes: on H200s, 0.7 ms each if several GPUs map the memory, and up to 0.15 s.
#[derive(Default)]
pub(super) struct Round(Vec<Candidate>);

/// A mapping of a round.
struct Candidate {
    address: u64,
    size: u64,
    /// The destination must be told if it is not exported.
    is_known: bool,
    /// `None` if the program has unmapped it.
    export: Option<Export>,
}

impl Round {
    /// Exports what can be exported.
    pub(super) fn run(self) -> Batch {
        let mut batch = Batch::default();
        for candidate in self.0 {
            let Candidate {
                address,
                size,
                is_known,
                export,
            } = candidate;
            let offered = match export.map(|export| export()) {
                None => Offered::Nothing,
                Some(Ok(descriptor)) => {
                    batch.descriptors.push(descriptor);
                    Offered::Memory
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, address, "a mapping is copied");
                    Offered::Contents
                }
            };
            let is_named = is_known || offered != Offered::Contents;
            batch.named.push(is_named);
            if is_named {
                let mapping = Mapping {
                    address,
                    size,
                    offered: offered as u8,
                };
                let tail = mapping.encode(&mut batch.payload);
                batch.payload.extend_from_slice(tail);
            }
        }
        batch
    }
}

/// How the destination gets a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    /// It has its own memory, and the contents are sent.
    Sent = 0,
    /// It has the same memory.
    Taken = 1,
    /// It has its own memory, and copies from this.
    Fetched = 2,
    /// It has none, because there is no room yet or the program has unmapped it.
    Absent = 3,
}

impl Delivery {
    fn of(answer: u8) -> Result<Self, StateError> {
        [Self::Sent, Self::Taken, Self::Fetched, Self::Absent]
            .into_iter()
            .find(|delivery| *delivery as u8 == answer)
            .ok_or(StateError::Order("an answer of an unknown kind"))
    }
}

/// The number of no mapping.
const NONE: u64 = 0;

#[derive(Debug, Clone, Copy)]
struct Known {
    /// The number of the mapping in the arena; [`NONE`] if the destination has unmapped it. The
    /// arena may have kept it, for a program that maps it again.
    mapping: u64,
    size: u64,
    delivery: Delivery,
}

impl Known {
    /// Whether it is still the mapping at `address`.
    fn stands(&self, session: &Session, address: u64) -> bool {
        session.memory.arena().mapping(address) == Some(self.mapping)
    }
}

/// The session's memory that the destination has mapped as well.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The value by which the destination recognizes the same device.
    domain: Option<[u8; 16]>,
    agreed: bool,
    known: BTreeMap<u64, Known>,
    /// Mappings that were replaced after they were handed over, and must be copied.
    replaced: BTreeSet<u64>,
    queue: VecDeque<(u64, Known)>,
    /// Requests that the destination has not answered.
    requested: Vec<(u64, Known)>,
    /// The destination has not answered whether it has let go of freed memory.
    pub(super) is_letting_go: bool,
}

impl Shared {
    /// Nothing is handed over without a `domain`.
    pub(super) fn new(domain: Option<[u8; 16]>) -> Self {
        Self {
            domain,
            ..Self::default()
        }
    }

    pub(super) fn domain(&self) -> Option<[u8; 16]> {
        self.domain
    }

    /// Records the domain of the destination's device; empty if it accepts no
    /// descriptors.
    pub(super) fn agree(&mut self, theirs: &[u8]) {
        self.agreed = self.domain.is_some() && !theirs.is_empty();
    }

    /// Mappings of the live objects that the destination does not know.
    fn unknown(&self, session: &Session) -> Result<VecDeque<(u64, Known)>, StateError> {
        let mut unknown = VecDeque::new();
        if !self.agreed {
            return Ok(unknown);
        }
        for address in session.objects.live.names(ObjectKind::Memory) {
            let Some(mapping) = session.memory.arena().mapping(address) else {
                continue;
            };
            let known = self.known.get(&address);
            if known.is_none_or(|known| known.mapping != mapping)
                && let Some(call) = session.objects.live.created((ObjectKind::Memory, address))
            {
                let map: MemMap = decode_all(&call.payload)?;
                let found = Known {
                    mapping,
                    size: map.size,
                    delivery: Delivery::Sent,
                };
                unknown.push_back((address, found));
            }
        }
        Ok(unknown)
    }

    /// Whether memory was mapped since the last round.
    pub(super) fn is_behind(&self, session: &Session) -> Result<bool, StateError> {
        Ok(!self.unknown(session)?.is_empty())
    }

    /// Begins a round: the session's objects were sent, so their memory can be
    /// handed over. The destination has no other from now on.
    pub(super) fn begin(&mut self, session: &Session) -> Result<(), StateError> {
        for (address, known) in &mut self.known {
            // Memory of another session may be mapped there now.
            if !known.stands(session, *address) {
                known.mapping = NONE;
            }
        }
        self.queue = self.unknown(session)?;
        Ok(())
    }

    /// The next mappings to hand over; `None` at the end. [`named`](Self::named) follows.
    pub(super) fn next(&mut self, session: &mut Session) -> Option<Round> {
        let mut round = Round::default();
        while self.requested.len() < MAX_FDS
            && let Some((address, found)) = self.queue.pop_front()
        {
            // The program may have unmapped it since the round began. The destination would
            // create memory in its place, for which a full GPU has no room.
            let export = found.stands(session, address).then(|| {
                let export = session.gpu.memory_exporter(address);
                export.unwrap_or_else(|error| Box::new(|| Err(error)))
            });
            round.0.push(Candidate {
                address,
                size: found.size,
                is_known: self.delivery(address) != Delivery::Sent,
                export,
            });
            self.requested.push((address, found));
        }
        (!self.requested.is_empty()).then_some(round)
    }

    /// Records which mappings of the round the destination was offered. The others are
    /// copied. Returns whether an answer follows.
    pub(super) fn named(&mut self, named: &[bool]) -> bool {
        let requested = std::mem::take(&mut self.requested);
        for (one, is_named) in requested.into_iter().zip(named) {
            match is_named {
                true => self.requested.push(one),
                false => drop(self.known.insert(one.0, one.1)),
            }
        }
        !self.requested.is_empty()
    }

    /// Records which of them the destination took. Returns the addresses where it has no memory.
    pub(super) fn answered(&mut self, taken: &[u8]) -> Result<Vec<u64>, StateError> {
        if taken.len() != self.requested.len() {
            return Err(StateError::Order("an answer about other mappings"));
        }
        let mut absent = Vec::new();
        for ((address, found), answer) in std::mem::take(&mut self.requested).into_iter().zip(taken)
        {
            let delivery = Delivery::of(*answer)?;
            if delivery == Delivery::Absent {
                // The next round offers what there is then.
                absent.push(address);
                if self.known.remove(&address).is_some() {
                    self.replaced.insert(address);
                }
                continue;
            }
            if delivery == Delivery::Sent && self.delivery(address) != Delivery::Sent {
                self.replaced.insert(address);
            }
            self.known.insert(address, Known { delivery, ..found });
        }
        Ok(absent)
    }

    /// Whether the destination has memory of the session, or had.
    pub(super) fn is_taken(&self) -> bool {
        let mut all = self.known.values();
        all.any(|known| known.delivery == Delivery::Taken)
    }

    /// The addresses of the memory that the destination has and the program has freed. The
    /// destination unmaps it.
    pub(super) fn let_go(&mut self, session: &Session) -> Vec<u8> {
        let mut freed = Vec::new();
        for (address, known) in &mut self.known {
            if known.delivery == Delivery::Taken
                && known.mapping != NONE
                && !known.stands(session, *address)
            {
                known.mapping = NONE;
                freed.extend(address.to_le_bytes());
            }
        }
        freed
    }

    fn delivery(&self, address: u64) -> Delivery {
        let known = self.known.get(&address);
        known.map_or(Delivery::Sent, |known| known.delivery)
    }

    /// How the destination gets the chunk's contents.
    pub(super) fn delivery_of(&self, chunk: &Chunk) -> Delivery {
        match chunk.kind {
            MemoryKind::Linear => self.delivery(chunk.name),
            _ => Delivery::Sent,
        }
    }

    /// Whether the chunk's memory is still the mapping that was handed over.
    pub(super) fn is_current(&self, session: &Session, chunk: &Chunk) -> bool {
        let known = self.known.get(&chunk.name);
        known.is_some_and(|known| known.stands(session, chunk.name))
    }

    /// Whether all of the chunk must be copied, whatever the destination has there.
    pub(super) fn replaced(&self, chunk: &Chunk) -> bool {
        chunk.kind == MemoryKind::Linear && self.replaced.contains(&chunk.name)
    }

    /// Bytes of the stopped session that are delivered this way.
    pub(super) fn bytes(&self, session: &Session, delivery: Delivery) -> u64 {
        let here = self.known.iter().filter(|(address, known)| {
            known.delivery == delivery && known.stands(session, **address)
        });
        here.map(|(_, known)| known.size).sum()
    }
}

/// Memory of the source's device from which this worker's device copies, by address
/// in the session.
#[derive(Debug, Default)]
pub(super) struct Peers(BTreeMap<u64, PeerId>);

impl Peers {
    /// Opens a mapping, replacing an earlier one at its address. Returns false if the
    /// device cannot copy from it.
    pub(super) fn open(
        &mut self,
        session: &mut Session,
        address: u64,
        size: u64,
        descriptor: Option<OwnedFd>,
    ) -> Result<bool, StateError> {
        let gpu = &mut session.gpu;
        if let Some(peer) = self.0.remove(&address) {
            device(gpu.peer_close(peer))?;
        }
        let Some(descriptor) = descriptor else {
            return Ok(false);
        };
        match gpu.peer_open(size, descriptor) {
            Ok(peer) => {
                self.0.insert(address, peer);
                Ok(true)
            }
            Err(error) => {
                tracing::debug!(%error, address, size, "memory is sent instead of copied");
                Ok(false)
            }
        }
    }

    /// The location of a chunk's contents: a peer, and an offset.
    pub(super) fn of(&self, chunk: &Chunk) -> Result<(PeerId, u64), StateError> {
        match self.0.get(&chunk.name) {
            Some(peer) if chunk.kind == MemoryKind::Linear => Ok((*peer, chunk.offset)),
            _ => Err(StateError::Order("contents that cannot be copied")),
        }
    }

    /// Closes all mappings. No copy may be in flight.
    pub(super) fn close(&mut self, session: &mut Session) {
        while let Some((address, peer)) = self.0.pop_first() {
            if let Err(error) = session.gpu.peer_close(peer) {
                tracing::warn!(%error, address, "the source's memory stays in use");
            }
        }
    }
}
