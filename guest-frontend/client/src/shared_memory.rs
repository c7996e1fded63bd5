//! Memory that processes of a VM share (CUDA Driver API, cuIpc*, and shareable handles).
//!
//! The host offers a whole mapping under a random name. A process that has the name maps
//! it into its own addresses. Each pointer into it that the program opened is a separate
//! mapping, as if the memory had been allocated there.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{MemLeave, MemOffer, MemTake};
use paragpu_protocol::types::MemoryOffer;
use parking_lot::Mutex;

use crate::connection::Link;
use crate::error::Result;
use crate::memory::DeviceMemory;
use crate::sys::shared_page::unique;

/// Bytes of a handle, as in CUDA.
pub const HANDLE: usize = 64;
/// The first bytes of a handle.
const MAGIC: [u8; 4] = *b"PGsh";

/// The object of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Memory of cuMemAlloc.
    Memory = 1,
    /// An event.
    Event = 2,
    /// Memory of a pool.
    OfPool = 3,
    /// A pool.
    Pool = 4,
    /// An allocation of cuMemCreate.
    Allocation = 5,
}

/// The contents of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedName {
    /// Its object.
    pub kind: Kind,
    /// Names the mapping.
    token: [u8; 16],
    /// Bytes of the mapping.
    mapping: u64,
    /// Where the memory begins in it.
    offset: u64,
    /// Bytes of the memory.
    pub length: u64,
    /// The process that made the handle.
    process: u64,
    /// Further data of this kind.
    pub note: u64,
}

/// Distinguishes this process from others.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(unique)
}

impl SharedName {
    /// The name of an object that is not memory.
    #[must_use]
    pub fn bare(kind: Kind, note: u64) -> Self {
        Self {
            kind,
            token: [0; 16],
            mapping: 0,
            offset: 0,
            length: 0,
            process: process(),
            note,
        }
    }

    /// The form in which the program holds it.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HANDLE] {
        let mut bytes = [0; HANDLE];
        let numbers = [
            self.mapping,
            self.offset,
            self.length,
            self.process,
            self.note,
        ];
        let parts = MAGIC
            .into_iter()
            .chain([self.kind as u8, 0, 0, 0])
            .chain(self.token)
            .chain(numbers.into_iter().flat_map(u64::to_le_bytes));
        bytes
            .iter_mut()
            .zip(parts)
            .for_each(|(to, part)| *to = part);
        bytes
    }

    /// A handle from the program, with arbitrary contents.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it is not a handle of this kind.
    pub fn from_bytes(bytes: &[u8; HANDLE], kind: Kind) -> Result<Self> {
        let (head, rest) = bytes.split_at(8);
        let (token, numbers) = rest.split_at(16);
        let expected = MAGIC.into_iter().chain([kind as u8, 0, 0, 0]);
        let mut numbers = numbers.as_chunks::<8>().0.iter();
        let mut number = || numbers.next().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let name = Self {
            kind,
            token: token.try_into().map_err(|_| Status::INVALID_VALUE)?,
            mapping: number(),
            offset: number(),
            length: number(),
            process: number(),
            note: number(),
        };
        let end = name.offset.checked_add(name.length);
        let fits = name.mapping.is_multiple_of(CHUNK) && end.is_some_and(|end| end <= name.mapping);
        let is_memory = kind != Kind::Pool;
        let is_sound = fits && (name.length > 0) == is_memory;
        match head.iter().copied().eq(expected) && is_sound {
            true => Ok(name),
            false => Err(Status::INVALID_VALUE),
        }
    }

    /// Whether this process created it.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.process == process()
    }
}

/// A mapping of another process.
#[derive(Debug)]
struct Opened {
    base: u64,
    size: u64,
    /// By address: its kind, and how often the program opened it.
    places: BTreeMap<u64, (Kind, u64)>,
}

/// The memory of other processes that a session has mapped.
#[derive(Debug)]
pub struct SharedMemory {
    link: Arc<Link>,
    memory: Arc<DeviceMemory>,
    /// By token. The lock is held while the host is notified: what one thread closes,
    /// another may open.
    opened: Mutex<HashMap<[u8; 16], Opened>>,
}

impl SharedMemory {
    pub(crate) fn new(link: Arc<Link>, memory: Arc<DeviceMemory>) -> Self {
        Self {
            link,
            memory,
            opened: Mutex::default(),
        }
    }

    /// Offers the allocation around an address to other processes.
    ///
    /// # Errors
    /// `INVALID_VALUE` if there is none, `NOT_SUPPORTED`.
    pub fn offer(&self, address: u64, kind: Kind, note: u64) -> Result<SharedName> {
        let (start, length) = self.memory.block(address).ok_or(Status::INVALID_VALUE)?;
        let offer: MemoryOffer = self.link.call(&MemOffer { address: start })?;
        self.link.note_shared_memory();
        let offset = start
            .checked_sub(offer.base)
            .filter(|offset| length <= offer.size && *offset <= offer.size - length)
            .ok_or(Status::UNKNOWN)?;
        Ok(SharedName {
            kind,
            token: offer.token,
            mapping: offer.size,
            offset,
            length,
            process: process(),
            note,
        })
    }

    /// Opens memory of another process and returns its address.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if it is no longer offered, `OUT_OF_MEMORY`.
    pub fn open(&self, name: &SharedName) -> Result<u64> {
        let mut opened = self.opened.lock();
        let mapping = match opened.get_mut(&name.token) {
            Some(mapping) => mapping,
            None => {
                let mapping = self.take(name)?;
                opened.entry(name.token).or_insert(mapping)
            }
        };
        if mapping.size != name.mapping {
            return Err(Status::INVALID_VALUE);
        }
        let address = mapping.base + name.offset;
        let place = mapping.places.entry(address);
        let (kind, uses) = place.or_insert((name.kind, 0));
        if *kind != name.kind {
            return Err(Status::INVALID_VALUE);
        }
        if *uses == 0 {
            self.memory.add_map(address, name.length);
        }
        *uses += 1;
        Ok(address)
    }

    fn take(&self, name: &SharedName) -> Result<Opened> {
        let (size, token) = (name.mapping, name.token);
        let base = self.memory.reserve(size, CHUNK, 0)?;
        let address = base;
        self.link.note_shared_memory();
        let taken = self.link.call(&MemTake {
            address,
            size,
            token,
        });
        if let Err(status) = taken {
            self.memory.unreserve(base, size);
            return Err(status);
        }
        Ok(Opened {
            base,
            size,
            places: BTreeMap::new(),
        })
    }

    /// The kind of another process's memory that begins at an address.
    #[must_use]
    pub fn kind(&self, address: u64) -> Option<Kind> {
        let opened = self.opened.lock();
        let mut found = opened.values().filter_map(|it| it.places.get(&address));
        found.next().map(|(kind, _)| *kind)
    }

    /// Closes memory as often as it was opened.
    ///
    /// # Errors
    /// `INVALID_VALUE` if nothing was opened there.
    pub fn close(&self, address: u64) -> Result<()> {
        let mut opened = self.opened.lock();
        let found = opened
            .iter_mut()
            .find_map(|(token, it)| it.places.get_mut(&address).map(|(_, uses)| (*token, uses)));
        let (token, uses) = found.ok_or(Status::INVALID_VALUE)?;
        *uses -= 1;
        if *uses > 0 {
            return Ok(());
        }
        self.memory.remove_map(address);
        let Some(mapping) = opened.get_mut(&token) else {
            return Ok(());
        };
        mapping.places.remove(&address);
        if !mapping.places.is_empty() {
            return Ok(());
        }
        let (base, size) = (mapping.base, mapping.size);
        opened.remove(&token);
        self.link.post(&MemLeave { address: base })?;
        self.memory.unreserve(base, size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name() -> SharedName {
        SharedName {
            kind: Kind::Memory,
            token: [7; 16],
            mapping: 2 * CHUNK,
            offset: CHUNK + 512,
            length: 100,
            process: process(),
            note: 5,
        }
    }

    #[test]
    fn a_handle_survives_a_round_trip() {
        let bytes = name().to_bytes();
        assert_eq!(SharedName::from_bytes(&bytes, Kind::Memory), Ok(name()));
        assert!(SharedName::from_bytes(&bytes, Kind::Event).is_err());
        assert!(name().is_own());
        let pool = SharedName::bare(Kind::Pool, 9);
        assert_eq!(
            SharedName::from_bytes(&pool.to_bytes(), Kind::Pool),
            Ok(pool)
        );
    }

    proptest! {
        #[test]
        fn forged_handles_are_refused_or_sound(at in 0_usize..64, to: u8, more: [u8; 32]) {
            let mut bytes = name().to_bytes();
            bytes[at] = to;
            bytes[24..56].copy_from_slice(&more);
            if let Ok(name) = SharedName::from_bytes(&bytes, Kind::Memory) {
                prop_assert!(name.offset.checked_add(name.length).unwrap() <= name.mapping);
            }
        }
    }
}
