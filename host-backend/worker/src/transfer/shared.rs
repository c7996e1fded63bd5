//! Device memory that goes over as descriptors: both workers are on one host
//! and on one GPU, so that the destination maps what the source has mapped, and
//! nothing is copied.
//!
//! Both have the same memory from then on. The source goes on with it, as its
//! program runs or the move fails; the destination reads and writes none of it
//! before the session is its own, and what never becomes its own is unmapped
//! with it. What the program maps anew meanwhile is handed over after the stop.
//! A mapping that one end cannot export or the other not import is copied as
//! everything else is: that is known before the switch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

use paragpu_communicator_stream::handshake::MAX_FDS;
use paragpu_protocol::codec::{Field, Reader};
use paragpu_protocol::handle::ObjectKind;
use paragpu_protocol::table::Call;

use super::regions::{Chunk, Place};
use super::state::StateError;
use crate::session::Session;

paragpu_protocol::record! {
    /// A mapping of device memory; several make a record, and the descriptors
    /// of those that have one follow in a frame.
    Mapping {
        /// First address.
        address: u64,
        /// Bytes.
        size: u64,
        /// 1: a descriptor comes. 0: the memory is another one than was handed
        /// over, and what it holds is copied.
        handed: u8,
    }
}

/// What a record names: mappings and how many descriptors follow.
pub(super) fn mappings(payload: &[u8]) -> Result<(Vec<Mapping>, usize), StateError> {
    let mut reader = Reader::new(payload);
    let mut mappings = Vec::new();
    while reader.remaining() > 0 {
        mappings.push(reader.field::<Mapping>()?);
    }
    let handed = mappings.iter().filter(|mapping| mapping.handed != 0);
    let handed = handed.count();
    if mappings.len() > MAX_FDS {
        return Err(StateError::Order("too many mappings at once"));
    }
    Ok((mappings, handed))
}

/// One record of mappings, and their descriptors.
pub(super) struct Batch {
    pub(super) payload: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    /// Which mapping of the arena it is.
    mapping: u64,
    size: u64,
    /// The destination has it.
    taken: bool,
}

/// What of the session's memory the destination has mapped, too.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// What tells whether the destination is on the same device.
    domain: Option<[u8; 16]>,
    agreed: bool,
    known: BTreeMap<u64, Known>,
    /// Handed over once, and another memory now that is to be copied.
    replaced: BTreeSet<u64>,
    queue: VecDeque<(u64, Known)>,
    /// What the destination has not answered yet.
    asked: Vec<(u64, Known)>,
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

    /// The destination says what its device is.
    pub(super) fn agree(&mut self, theirs: &[u8]) {
        self.agreed = self.domain.is_some_and(|ours| ours == *theirs);
    }

    /// Mappings of the live objects that the destination does not know.
    fn unknown(&self, session: &Session) -> Result<VecDeque<(u64, Known)>, StateError> {
        let mut unknown = VecDeque::new();
        if !self.agreed {
            return Ok(unknown);
        }
        for address in session.live.names(ObjectKind::Memory) {
            let Some(mapping) = session.arena.mapping(address) else {
                continue;
            };
            let known = self.known.get(&address);
            if known.is_none_or(|known| known.mapping != mapping)
                && let Some(call) = session.live.created((ObjectKind::Memory, address))
                && let Call::MemMap(map) = Call::decode(call.number, &call.payload)?
            {
                let found = Known {
                    mapping,
                    size: map.size,
                    taken: false,
                };
                unknown.push_back((address, found));
            }
        }
        Ok(unknown)
    }

    /// Is there memory that was mapped since?
    pub(super) fn is_behind(&self, session: &Session) -> Result<bool, StateError> {
        Ok(!self.unknown(session)?.is_empty())
    }

    /// The session's objects were sent: what is theirs can be handed over.
    pub(super) fn begin(&mut self, session: &Session) -> Result<(), StateError> {
        self.queue = self.unknown(session)?;
        Ok(())
    }

    /// The next mappings to hand over; `None` where that is all.
    pub(super) fn next(&mut self, session: &mut Session) -> Option<Batch> {
        let mut batch = Batch {
            payload: Vec::new(),
            descriptors: Vec::new(),
        };
        while self.asked.len() < MAX_FDS
            && let Some((address, found)) = self.queue.pop_front()
        {
            // The program may have unmapped it meanwhile: the stop shows.
            if session.arena.mapping(address) != Some(found.mapping) {
                continue;
            }
            let descriptor = session.device.memory_export(address);
            if let Err(error) = &descriptor {
                tracing::debug!(%error, address, "a mapping is copied");
                if !self.known.get(&address).is_some_and(|known| known.taken) {
                    self.known.insert(address, found);
                    continue;
                }
            }
            let mapping = Mapping {
                address,
                size: found.size,
                handed: u8::from(descriptor.is_ok()),
            };
            let tail = mapping.encode(&mut batch.payload);
            batch.payload.extend_from_slice(tail);
            batch.descriptors.extend(descriptor);
            self.asked.push((address, found));
        }
        (!self.asked.is_empty()).then_some(batch)
    }

    /// The destination says which of them it has.
    pub(super) fn answered(&mut self, taken: &[u8]) -> Result<(), StateError> {
        if taken.len() != self.asked.len() {
            return Err(StateError::Order("an answer about other mappings"));
        }
        for ((address, found), taken) in self.asked.drain(..).zip(taken) {
            let taken = *taken == 1;
            let before = self.known.insert(address, Known { taken, ..found });
            if !taken && before.is_some_and(|before| before.taken) {
                self.replaced.insert(address);
            }
        }
        Ok(())
    }

    /// Need the chunk not be copied?
    pub(super) fn holds(&self, chunk: &Chunk) -> bool {
        chunk.place == Place::Linear && self.known.get(&chunk.name).is_some_and(|known| known.taken)
    }

    /// Must all of the chunk be copied, whatever the destination had there?
    pub(super) fn replaced(&self, chunk: &Chunk) -> bool {
        chunk.place == Place::Linear && self.replaced.contains(&chunk.name)
    }

    /// Bytes that the stopped session has and need not be copied.
    pub(super) fn bytes(&self, session: &Session) -> u64 {
        let here = self.known.iter().filter(|(address, known)| {
            known.taken && session.arena.mapping(**address) == Some(known.mapping)
        });
        here.map(|(_, known)| known.size).sum()
    }
}
