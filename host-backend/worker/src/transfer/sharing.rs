//! Memory that sessions of a VM share, when they move together.
//!
//! The session that allocated the memory recreates it at the destination, with its
//! contents, and offers it there under the same token. The others take it from there
//! before they recreate objects that need it. All of this happens before the commit, so
//! the sessions stay if one of them cannot move. The source sends contents when all
//! sessions are stopped.
//!
//! While the programs run, they allocate and free, so the rounds of two sessions need not
//! match. A destination that finds no offer, or no room, reports that, and the source sends
//! another round. After the stop all of them describe the same moment.
//!
//! A round first unmaps the memory of others that it does not name: it would be in the way of
//! the session's own at its addresses. Likewise it withdraws offers that it does not name. They
//! are of memory that the program has freed, and may have replaced at the same addresses.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paragpu_control::exchange::{Ask, Offer, Token};
use paragpu_protocol::codec::{Field, Reader};
use paragpu_protocol::table::MemLeave;

use super::lack::Lack;
use super::replay::refused;
use super::state::{StateError, device};
use crate::session::gpu::Gpu;
use crate::session::link::Link;
use crate::session::memory::DeviceMemory;
use crate::session::objects::Objects;
use crate::session::replies::Replies;
use crate::session::sharing::{ImportedMapping, NOT_ACCEPTED, Sharing};

/// How long the other sessions may take to offer their memory after all have stopped: less
/// than the source waits for an answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// The same while the programs run. What a session takes may be freed by then, or is in no
/// round of its owner's move yet.
const BRIEF: Duration = Duration::from_millis(20);
/// How long a destination waits for room once all have stopped. The others release what their
/// programs have freed when they begin with the last round.
const ROOM: Duration = Duration::from_secs(3);
/// Time between two queries for either.
pub(super) const AGAIN: Duration = Duration::from_millis(2);

paragpu_protocol::record! {
    /// A mapping that is shared.
    Part {
        /// First address.
        address: u64,
        /// Bytes.
        size: u64,
        /// 1: another session's. 0: the session's own.
        taken: u8,
        /// Its token.
        token: [u8; 16],
    }
}

impl Part {
    /// Names the memory that cannot be shared.
    fn failed(&self, verb: &str, error: &StateError) -> StateError {
        let Self { address, size, .. } = self;
        StateError::Impossible(format!(
            "this GPU cannot {verb} the {size} bytes at {address:#x} that the session shares: {error}"
        ))
    }
}

/// The memory that a session shares.
#[derive(Debug)]
pub(super) struct Parts {
    /// All sessions that move together have stopped.
    stopped: bool,
    parts: Vec<Part>,
}

impl Parts {
    /// From a record: whether the sessions have stopped, then the parts.
    pub(super) fn decode(payload: &[u8]) -> Result<Self, StateError> {
        let mut reader = Reader::new(payload);
        let stopped = reader.field::<u8>()? != 0;
        let mut parts = Vec::new();
        while reader.remaining() > 0 {
            parts.push(reader.field()?);
        }
        Ok(Self { stopped, parts })
    }

    /// How long to [wait for room](Self::await_room).
    pub(super) fn room_deadline(&self) -> Instant {
        Instant::now() + if self.stopped { ROOM } else { BRIEF }
    }

    /// Waits until other sessions leave room for `size` more bytes.
    ///
    /// # Errors
    /// Once all have stopped: there will be none.
    pub(super) fn await_room(
        &self,
        memory: &DeviceMemory,
        size: u64,
        deadline: Instant,
    ) -> Result<Option<Lack>, StateError> {
        match Lack::of_room(memory, size, deadline) {
            Some(lack) if self.stopped => Err(lack.into_error()),
            lack => Ok(lack),
        }
    }

    /// The memory that is `taken` from others, or the session's own, by address.
    fn by_address(&self, taken: bool) -> BTreeMap<u64, &Part> {
        let parts = self.parts.iter();
        let parts = parts.filter(|part| (part.taken != 0) == taken);
        parts.map(|part| (part.address, part)).collect()
    }
}

impl Sharing {
    /// The memory that the session shares, as the parts of a record.
    pub(super) fn parts(&self, memory: &DeviceMemory) -> Vec<u8> {
        let own = self.offered().filter_map(|(address, token)| {
            let (_, size) = memory.arena().around(address)?;
            Some((address, size, 0, token))
        });
        let others = self.taken();
        let others =
            others.map(|(address, ImportedMapping { size, token })| (address, size, 1, token));
        let mut payload = Vec::new();
        for (address, size, taken, token) in own.chain(others) {
            let part = Part {
                address,
                size,
                taken,
                token,
            };
            let tail = part.encode(&mut payload);
            payload.extend_from_slice(tail);
        }
        payload
    }

    /// Unmaps the memory of other sessions but this: the session's own may be mapped there now.
    pub(super) fn leave_others(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        objects: &mut Objects,
        replies: &mut Replies,
        parts: &Parts,
    ) -> Result<(), StateError> {
        let wanted = parts.by_address(true);
        let others: Vec<(u64, ImportedMapping)> = self.taken().collect();
        for (address, ImportedMapping { size, token }) in others {
            let part = wanted.get(&address);
            if part.is_some_and(|part| (part.size, part.token) == (size, token)) {
                continue;
            }
            refused(self.mem_leave(gpu, memory, objects, replies, &MemLeave { address }))?;
        }
        Ok(())
    }

    /// Shares this memory, and no other, after [`leave_others`](Self::leave_others). False if
    /// others do not offer all of it yet.
    pub(super) fn share(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        link: &mut Link,
        parts: &Parts,
    ) -> Result<bool, StateError> {
        let (own, taken) = (parts.by_address(false), parts.by_address(true));
        let offered: Vec<(u64, Token)> = self.offered().collect();
        for (address, token) in offered {
            // Otherwise the program has freed it, and may have mapped other memory there.
            if own.get(&address).is_none_or(|part| part.token != token) {
                self.withdraw(address);
            }
        }
        // First what others wait for.
        for part in own.into_values() {
            if self.token(part.address).is_none() {
                self.offer_again(gpu, memory, part)
                    .map_err(|error| part.failed("offer", &error))?;
            }
        }
        let deadline = Instant::now() + if parts.stopped { PATIENCE } else { BRIEF };
        for part in taken.into_values() {
            let is_there = self.is_taken(part.address)
                || self
                    .take_again(gpu, memory, link, part, deadline)
                    .map_err(|error| part.failed("map", &error))?;
            if is_there {
                continue;
            }
            if !parts.stopped {
                return Ok(false);
            }
            return Err(StateError::Impossible(format!(
                "no session that moves with it offers the {} bytes that it shares within {} s: \
                 move all sessions of the VM together",
                part.size,
                PATIENCE.as_secs()
            )));
        }
        Ok(true)
    }

    fn offer_again(
        &mut self,
        gpu: &mut Gpu,
        memory: &DeviceMemory,
        part: &Part,
    ) -> Result<(), StateError> {
        if memory.arena().around(part.address) != Some((part.address, part.size)) {
            return Err(StateError::Order(
                "shared memory that the session does not have",
            ));
        }
        let shared = device(gpu.memory_share(part.address))?;
        let offer = Offer {
            token: part.token,
            size: part.size,
            domain: gpu.domain(),
        };
        if self.propose(Ask::Again(offer), &shared).is_none() {
            return Err(StateError::Impossible(NOT_ACCEPTED.into()));
        }
        self.offer(part.address, part.token);
        Ok(())
    }

    /// False if nobody offers it until the deadline.
    fn take_again(
        &mut self,
        gpu: &mut Gpu,
        memory: &mut DeviceMemory,
        link: &mut Link,
        part: &Part,
        deadline: Instant,
    ) -> Result<bool, StateError> {
        loop {
            let place = [part.address, part.size];
            if let Some((offer, offered)) = self.find_for(gpu, place, part.token) {
                let taken = self.take_offered(gpu, memory, link, place, &offer, offered);
                return refused(taken).map(|()| true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(AGAIN);
        }
    }
}
