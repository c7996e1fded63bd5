//! The addresses that belong to the session: mapped arena memory, registered host
//! memory, module variables. Nothing else becomes a [`Span`].

use std::collections::BTreeMap;

use paragpu_device::Result;
use paragpu_protocol::layout::{
    ARENA_BASE, CHUNK, DEVICE_STRIDE, MAX_DEVICES, Regions, SHADOW_BASE,
};
use paragpu_protocol::status::Status;

use crate::sys::Span;

/// The kind of memory at a range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// Arena memory, with the driver's handle.
    Device { handle: u64 },
    /// A second mapping of another range's memory.
    Alias,
    /// Memory of another device, at its address there.
    Peer { handle: u64 },
    /// Registered host memory.
    Host,
    /// A variable of a module.
    Global,
}

/// The range where other devices' memory is mapped, after the arenas of all ordinals.
const PEER_BASE: u64 = ARENA_BASE + DEVICE_STRIDE * MAX_DEVICES as u64;
/// Size of that range.
const PEER_BYTES: u64 = SHADOW_BASE - PEER_BASE;

/// The session's address ranges.
pub struct Memory {
    regions: Regions,
    /// First address → size and owner; ranges never overlap.
    ranges: BTreeMap<u64, (u64, Owner)>,
    /// Bytes allocated from the peers' range.
    peers: u64,
}

impl Memory {
    pub fn new(regions: Regions) -> Self {
        Self {
            regions,
            ranges: BTreeMap::new(),
            peers: 0,
        }
    }

    /// Allocates an address for a temporary mapping of another device's memory. If the
    /// driver chose it, it could use addresses that later modules' variables need.
    pub fn peer_place(&mut self, size: u64) -> u64 {
        if self.peers.saturating_add(size) > PEER_BYTES {
            self.peers = 0;
        }
        let place = PEER_BASE + self.peers;
        self.peers += size;
        place
    }

    /// Checks that `[address, address + size)` may be mapped. It must consist of chunks of
    /// the arena and be free, except for retired mappings, for which the caller waits.
    pub fn check_map(&self, address: u64, size: u64) -> Result<()> {
        let chunks = address.is_multiple_of(CHUNK) && size.is_multiple_of(CHUNK) && size > 0;
        let inside = Regions::holds(self.regions.arena, address, size);
        if chunks && inside && !self.overlaps(address, size) {
            Ok(())
        } else {
            Err(Status::INVALID_VALUE.into())
        }
    }

    /// Checks that `[address, address + size)` may be mapped as memory of another device: it
    /// must consist of chunks of one other arena, whose start is returned.
    pub fn check_peer(&self, address: u64, size: u64) -> Result<u64> {
        let chunks = (address | size).is_multiple_of(CHUNK) && size > 0;
        Regions::arena_of(address, size)
            .filter(|arena| *arena != self.regions.arena)
            .filter(|_| chunks && !self.overlaps(address, size))
            .ok_or(Status::INVALID_VALUE.into())
    }

    pub fn add_peer(&mut self, address: u64, size: u64, handle: u64) {
        self.ranges.insert(address, (size, Owner::Peer { handle }));
    }

    /// Checks that `[address, address + size)` may be registered.
    pub fn check_register(&self, address: u64, size: u64) -> Result<()> {
        if size == 0
            || !address.is_multiple_of(4096)
            || !size.is_multiple_of(4096)
            || address.checked_add(size).is_none()
        {
            return Err(Status::INVALID_VALUE.into());
        }
        if self.overlaps(address, size) {
            return Err(Status::HOST_MEMORY_ALREADY_REGISTERED.into());
        }
        Ok(())
    }

    pub fn add_device(&mut self, address: u64, size: u64, handle: u64) {
        self.ranges
            .insert(address, (size, Owner::Device { handle }));
    }

    pub fn add_alias(&mut self, address: u64, size: u64) {
        self.ranges.insert(address, (size, Owner::Alias));
    }

    pub fn add_host(&mut self, address: u64, size: u64) {
        self.ranges.insert(address, (size, Owner::Host));
    }

    /// Adds a variable that the driver placed. Idempotent.
    pub fn add_global(&mut self, address: u64, size: u64) {
        if !self.overlaps(address, size) {
            self.ranges.insert(address, (size, Owner::Global));
        }
    }

    /// The handle of the mapping that starts at `address`.
    pub fn device(&self, address: u64) -> Result<u64> {
        match self.ranges.get(&address) {
            Some(&(_, Owner::Device { handle })) => Ok(handle),
            _ => Err(Status::INVALID_VALUE.into()),
        }
    }

    /// The handle of the mapping that starts at `address` and has at least `size` bytes.
    pub fn backing(&self, address: u64, size: u64) -> Result<u64> {
        match self.ranges.get(&address) {
            Some(&(there, Owner::Device { handle })) if size <= there => Ok(handle),
            _ => Err(Status::INVALID_VALUE.into()),
        }
    }

    /// Removes the mapping or alias that starts at `address`, also one of another device's
    /// memory, and returns its size and handle. Aliases have no handle.
    pub fn remove_device(&mut self, address: u64) -> Result<(u64, Option<u64>)> {
        let (size, handle) = match self.ranges.get(&address) {
            Some(&(size, Owner::Device { handle } | Owner::Peer { handle })) => {
                (size, Some(handle))
            }
            Some(&(size, Owner::Alias)) => (size, None),
            _ => return Err(Status::INVALID_VALUE.into()),
        };
        self.ranges.remove(&address);
        Ok((size, handle))
    }

    /// Removes the registration that starts at `address`.
    pub fn remove_host(&mut self, address: u64) -> Result<()> {
        match self.ranges.get(&address) {
            Some((_, Owner::Host)) => {
                self.ranges.remove(&address);
                Ok(())
            }
            _ => Err(Status::HOST_MEMORY_NOT_REGISTERED.into()),
        }
    }

    /// Removes a variable.
    pub fn remove_global(&mut self, address: u64) {
        if let Some((_, Owner::Global)) = self.ranges.get(&address) {
            self.ranges.remove(&address);
        }
    }

    /// The range as a span, if all of it belongs to the session. It may cover adjacent
    /// ranges.
    pub fn span(&self, address: u64, size: u64) -> Result<Span> {
        let invalid = || Status::INVALID_VALUE.into();
        let end = address.checked_add(size).ok_or_else(invalid)?;
        let mut at = address;
        while at < end || size == 0 {
            let (&start, &(length, _)) =
                self.ranges.range(..=at).next_back().ok_or_else(invalid)?;
            let stop = start + length;
            if stop <= at && !(size == 0 && stop == at) {
                return Err(invalid());
            }
            if size == 0 {
                break;
            }
            at = stop;
        }
        Ok(Span::checked(address, size))
    }

    /// Removes and returns all arena mappings and aliases, at the end of the session.
    pub fn drain_device(&mut self) -> Vec<(u64, u64, Option<u64>)> {
        let all = std::mem::take(&mut self.ranges);
        all.into_iter()
            .filter_map(|(address, (size, owner))| match owner {
                Owner::Device { handle } | Owner::Peer { handle } => {
                    Some((address, size, Some(handle)))
                }
                Owner::Alias => Some((address, size, None)),
                Owner::Host | Owner::Global => None,
            })
            .collect()
    }

    fn overlaps(&self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else {
            return true;
        };
        self.ranges
            .range(..end)
            .next_back()
            .is_some_and(|(&start, &(length, _))| start + length > address)
    }
}

/// Number of bytes that a rectangle spans in linear memory.
pub(crate) fn rect_bytes(pitch: u64, rows: u64, [width, height, depth]: [u64; 3]) -> Option<u64> {
    if width == 0 || height == 0 || depth == 0 {
        return Some(0);
    }
    if (height > 1 || depth > 1) && pitch < width || depth > 1 && rows < height {
        return None;
    }
    let slices = (depth - 1).checked_mul(rows)?.checked_mul(pitch)?;
    let lines = (height - 1).checked_mul(pitch)?;
    slices.checked_add(lines)?.checked_add(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> (Memory, u64) {
        let regions = Regions::of(0).unwrap();
        (Memory::new(regions), regions.arena)
    }

    #[test]
    fn only_chunks_of_the_arena_are_mapped() {
        let (mut memory, base) = memory();
        assert!(memory.check_map(base, CHUNK).is_ok());
        assert!(memory.check_map(base + 4096, CHUNK).is_err());
        assert!(memory.check_map(base, 0).is_err());
        assert!(memory.check_map(base - CHUNK, CHUNK).is_err());
        assert!(memory.check_map(u64::MAX - CHUNK + 1, CHUNK).is_err());
        memory.add_device(base, 2 * CHUNK, 1);
        assert!(memory.check_map(base + CHUNK, CHUNK).is_err());
        assert!(memory.check_map(base + 2 * CHUNK, CHUNK).is_ok());
    }

    #[test]
    fn spans_cross_neighbours_and_no_gaps() {
        let (mut memory, base) = memory();
        memory.add_device(base, CHUNK, 1);
        memory.add_device(base + CHUNK, CHUNK, 2);
        memory.add_device(base + 3 * CHUNK, CHUNK, 3);
        assert!(memory.span(base + 5, 2 * CHUNK - 5).is_ok());
        assert!(memory.span(base, 2 * CHUNK + 1).is_err());
        assert!(memory.span(base, 4 * CHUNK).is_err());
        assert!(memory.span(base + 2 * CHUNK, 1).is_err());
        assert!(memory.span(base, 0).is_ok());
        assert!(memory.span(u64::MAX, 2).is_err());
        assert!(memory.span(base - 1, 2).is_err());
    }

    #[test]
    fn memory_of_peers_lies_in_other_arenas() {
        let (mut memory, base) = memory();
        let other = base + DEVICE_STRIDE;
        assert_eq!(memory.check_peer(other, CHUNK).ok(), Some(other));
        assert!(memory.check_peer(base, CHUNK).is_err());
        assert!(memory.check_peer(other + 4096, CHUNK).is_err());
        assert!(memory.check_peer(other - CHUNK, 2 * CHUNK).is_err());
        assert!(memory.check_peer(SHADOW_BASE, CHUNK).is_err());
        assert!(memory.check_peer(u64::MAX - CHUNK + 1, CHUNK).is_err());
        memory.add_peer(other, 2 * CHUNK, 7);
        assert!(memory.check_peer(other + CHUNK, CHUNK).is_err());
        assert!(memory.span(other + 5, CHUNK).is_ok());
        assert!(memory.device(other).is_err() && memory.backing(other, CHUNK).is_err());
        assert_eq!(memory.remove_device(other).ok(), Some((2 * CHUNK, Some(7))));
        assert!(memory.remove_device(other).is_err() && memory.span(other, 1).is_err());
    }

    #[test]
    fn an_alias_backs_nothing() {
        let (mut memory, base) = memory();
        memory.add_device(base, 2 * CHUNK, 7);
        memory.add_alias(base + 4 * CHUNK, CHUNK);
        assert_eq!(memory.backing(base, 2 * CHUNK).unwrap(), 7);
        assert!(memory.backing(base, 3 * CHUNK).is_err());
        assert!(memory.backing(base + 4 * CHUNK, CHUNK).is_err());
        assert!(memory.device(base + 4 * CHUNK).is_err());
        assert!(memory.check_map(base + 4 * CHUNK, CHUNK).is_err());
        assert!(memory.span(base + 4 * CHUNK, CHUNK).is_ok());
        let removed = memory.remove_device(base + 4 * CHUNK).unwrap();
        assert_eq!(removed, (CHUNK, None));
        assert_eq!(memory.remove_device(base).unwrap(), (2 * CHUNK, Some(7)));
    }

    #[test]
    fn a_rectangle_ends_with_its_last_byte() {
        assert_eq!(rect_bytes(100, 0, [10, 3, 1]), Some(210));
        assert_eq!(rect_bytes(100, 5, [10, 3, 2]), Some(710));
        assert_eq!(rect_bytes(0, 0, [10, 1, 1]), Some(10));
        assert_eq!(rect_bytes(5, 0, [10, 2, 1]), None, "rows may not overlap");
        assert_eq!(
            rect_bytes(10, 2, [10, 3, 2]),
            None,
            "slices may not overlap"
        );
        assert_eq!(rect_bytes(u64::MAX, 2, [1, 2, 2]), None);
    }
}
