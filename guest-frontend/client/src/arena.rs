//! The allocator of a session's device memory arena.
//!
//! Large blocks are whole chunks of 2 MiB, which the host maps and unmaps as units. A
//! freed range is preferred for a block of the same size, because the host keeps it
//! mapped. Small blocks (up to 1 MiB) are carved out of chunks here, so most allocations
//! need no round trip.
//!
//! The host orders [`MemUnmap`] after the work posted before it, but it never learns that
//! a small block was freed. So a freed small block is quarantined until all work posted
//! before its release is known to be complete.
//!
//! [`MemUnmap`]: paragpu_protocol::table::MemUnmap

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;

use paragpu_protocol::layout::{CHUNK, DEVICE_STRIDE};

use crate::freed_blocks::FreedBlocks;
use crate::ranges::Ranges;

/// Every block starts at a multiple of this; CUDA promises 256.
pub const ALIGNMENT: u64 = 512;
/// The part of the region for blocks. Devices that place variables of modules
/// themselves use the rest.
const BLOCKS: u64 = DEVICE_STRIDE / 8 * 7;
/// Largest block carved out of a chunk.
pub const SMALL: u64 = 1 << 20;
/// Maximum number of wholly free chunks of small blocks that stay mapped.
const IDLE_CHUNKS: usize = 2;
/// Freed ranges remembered for blocks of the same size.
const RECENT: usize = 64;
/// Size of the quarantine beyond which the session should wait for the device.
const QUARANTINE_BYTES: u64 = 64 << 20;
/// As [`QUARANTINE_BYTES`], in blocks.
const QUARANTINE_BLOCKS: usize = 16_384;
/// Maximum bytes that pools keep. More may be mapped, but costs a round trip.
const FREED_BYTES: u64 = 2 << 30;
/// Maximum number of blocks that pools keep.
const FREED_BLOCKS: usize = 4096;

/// A block that the program holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// First address.
    pub address: u64,
    /// The requested size in bytes.
    pub size: u64,
    /// Distinguishes blocks that had the same address at different times
    /// (CU_POINTER_ATTRIBUTE_BUFFER_ID).
    pub id: u64,
    /// Bytes taken from the arena.
    taken: u64,
}

/// Result of [`Arena::allocate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// A block is ready at this address.
    Ready(u64),
    /// The host must map `[address, address + size)`; then call [`Arena::mapped`], or
    /// [`Arena::not_mapped`] if it failed.
    Map {
        /// First address, a multiple of 2 MiB.
        address: u64,
        /// Bytes, a multiple of 2 MiB.
        size: u64,
    },
    /// No address range is left.
    Full,
}

/// The allocator of one arena.
#[derive(Debug)]
pub struct Arena {
    base: u64,
    /// Ranges of the program's own memory.
    holes: Vec<Range<u64>>,
    /// Unmapped address space.
    space: Ranges,
    /// Ranges unmapped last, newest at the end.
    recent: Vec<(u64, u64)>,
    /// Free bytes of mapped chunks of small blocks.
    small: Ranges,
    /// Chunks of small blocks, wholly free ones counted apart.
    idle: usize,
    blocks: BTreeMap<u64, Block>,
    quarantine: VecDeque<(u64, u64, u64)>,
    quarantined: u64,
    /// [Kept](Self::keep) memory of pools, for their next allocations.
    pub(crate) freed: FreedBlocks,
    next_id: u64,
    /// The end of all blocks that were freed. Nothing has used the memory of blocks beyond.
    freed_up_to: u64,
}

impl Arena {
    /// An empty arena at `base`. The program has `holes` in it, which begin and end at multiples
    /// of [`CHUNK`] and do not overlap.
    #[must_use]
    pub fn new(base: u64, holes: &[Range<u64>]) -> Self {
        let mut space = Ranges::new(0);
        space.give(base, BLOCKS);
        for hole in holes {
            let end = hole.end.min(base + BLOCKS);
            space.take_at(hole.start, end.saturating_sub(hole.start));
        }
        Self {
            base,
            holes: holes.to_vec(),
            space,
            recent: Vec::new(),
            small: Ranges::new(CHUNK),
            idle: 0,
            blocks: BTreeMap::new(),
            quarantine: VecDeque::new(),
            quarantined: 0,
            freed: FreedBlocks::new(FREED_BYTES, FREED_BLOCKS),
            next_id: 1,
            freed_up_to: base,
        }
    }

    /// Whether `address` lies in this arena, allocated or not, and not in a hole.
    #[must_use]
    pub fn spans(&self, address: u64) -> bool {
        (self.base..self.base + DEVICE_STRIDE).contains(&address)
            && !self.holes.iter().any(|hole| hole.contains(&address))
    }

    /// A block of `size` bytes (1 to [`SMALL`]) in a mapped chunk, if one has room. It
    /// begins at a multiple of `alignment`, and up to the next nothing else begins.
    pub fn allocate_ready(&mut self, size: u64, alignment: u64) -> Option<u64> {
        let taken = size.checked_next_multiple_of(alignment)?;
        let address = self.small.take(taken, alignment)?;
        self.left_idle(address, taken);
        self.enter(address, size, taken);
        Some(address)
    }

    /// Looks for a block of `size` bytes (not 0), aligned as for
    /// [`allocate_ready`](Self::allocate_ready).
    pub fn allocate(&mut self, size: u64, alignment: u64) -> Allocation {
        let Some(taken) = size.checked_next_multiple_of(alignment) else {
            return Allocation::Full;
        };
        if taken <= SMALL {
            return match self.allocate_ready(size, alignment) {
                Some(address) => Allocation::Ready(address),
                None => self.map(CHUNK),
            };
        }
        match size.checked_next_multiple_of(CHUNK) {
            Some(size) => self.map(size),
            None => Allocation::Full,
        }
    }

    /// The host mapped the range of [`allocate`](Self::allocate). Returns the address of
    /// the block of `size` bytes.
    pub fn mapped(&mut self, address: u64, size: u64, alignment: u64) -> u64 {
        let taken = size.next_multiple_of(alignment);
        if taken <= SMALL {
            if taken < CHUNK {
                self.small.give(address + taken, CHUNK - taken);
            }
            self.enter(address, size, taken);
        } else {
            self.enter(address, size, size.next_multiple_of(CHUNK));
        }
        address
    }

    /// Reserves a free range of addresses, at `hint` if that is free. Nothing is
    /// mapped there. [`not_mapped`](Self::not_mapped) returns the range.
    pub fn reserve(&mut self, size: u64, alignment: u64, hint: u64) -> Option<u64> {
        if hint.is_multiple_of(alignment) && self.space.take_at(hint, size) {
            return Some(hint);
        }
        self.space.take(size, alignment)
    }

    /// The host could not map `[address, address + size)`.
    pub fn not_mapped(&mut self, address: u64, size: u64) {
        self.space.give(address, size);
    }

    /// Frees a block. `posted` is the sequence number of the last call posted,
    /// `complete` that of the last call known to be complete. Returns the range
    /// that the host must unmap, if any; `None` if no block starts at `address`.
    pub fn free(&mut self, address: u64, posted: u64, complete: u64) -> Option<Vec<(u64, u64)>> {
        let block = self.blocks.remove(&address)?;
        self.freed_up_to = self.freed_up_to.max(address + block.taken);
        if block.taken > SMALL {
            self.unmapped(address, block.taken);
            return Some(vec![(address, block.taken)]);
        }
        self.quarantine.push_back((posted, address, block.taken));
        self.quarantined += block.taken;
        Some(self.reclaim(complete))
    }

    /// Whether the memory of a block has never belonged to another one, so that it is still
    /// as the host mapped it.
    pub fn is_new(&self, address: u64) -> bool {
        address >= self.freed_up_to
    }

    /// Frees a block without making its bytes available, and returns its size for
    /// [`give_out`](Self::give_out). `None` if no block starts at `address`.
    pub fn keep(&mut self, address: u64) -> Option<u64> {
        self.blocks.remove(&address).map(|block| block.taken)
    }

    /// Turns [kept](Self::keep) bytes into a block of `size` bytes again.
    pub fn give_out(&mut self, address: u64, size: u64, taken: u64) {
        self.enter(address, size, taken);
    }

    /// The number of bytes that a block of `size` occupies.
    #[must_use]
    pub fn block_size(size: u64) -> Option<u64> {
        let taken = size.checked_next_multiple_of(ALIGNMENT)?;
        match taken <= SMALL {
            true => Some(taken),
            false => size.checked_next_multiple_of(CHUNK),
        }
    }

    /// Frees the blocks in quarantine that no work uses any more. Returns the chunks that the
    /// host must unmap.
    pub fn reclaim(&mut self, complete: u64) -> Vec<(u64, u64)> {
        let mut unmap = Vec::new();
        while let Some(&(posted, address, taken)) = self.quarantine.front() {
            if posted > complete {
                break;
            }
            self.quarantine.pop_front();
            self.quarantined -= taken;
            let (start, length) = self.small.give(address, taken);
            if length == CHUNK {
                self.idle += 1;
                if self.idle > IDLE_CHUNKS {
                    self.release_chunk(start, &mut unmap);
                }
            }
        }
        unmap
    }

    /// Removes all wholly free chunks, because memory is short.
    pub fn trim(&mut self) -> Vec<(u64, u64)> {
        let whole: Vec<u64> = self
            .small
            .iter()
            .filter(|&(_, length)| length == CHUNK)
            .map(|(start, _)| start)
            .collect();
        let mut unmap = Vec::new();
        for start in whole {
            self.release_chunk(start, &mut unmap);
        }
        unmap
    }

    /// Whether there are blocks in quarantine.
    #[must_use]
    pub fn has_quarantine(&self) -> bool {
        !self.quarantine.is_empty()
    }

    /// Whether the session should wait for the device, so that freed blocks become
    /// usable.
    #[must_use]
    pub fn quarantine_is_large(&self) -> bool {
        self.quarantined > QUARANTINE_BYTES || self.quarantine.len() > QUARANTINE_BLOCKS
    }

    /// The block that contains `address`.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Block> {
        let (_, block) = self.blocks.range(..=address).next_back()?;
        (address - block.address < block.size).then_some(*block)
    }

    /// Whether `[address, address + size)` lies in one block. As natively, a range that goes on
    /// in the next is refused.
    #[must_use]
    pub fn holds(&self, address: u64, size: u64) -> bool {
        let block = self.find(address);
        block.is_some_and(|block| size <= block.size - (address - block.address))
    }

    /// Frees all blocks except those at `kept`. Returns the ranges that the host
    /// must unmap.
    pub fn clear(&mut self, kept: &HashSet<u64>) -> Vec<(u64, u64)> {
        let blocks = self.blocks.keys().copied();
        let blocks: Vec<u64> = blocks.filter(|block| !kept.contains(block)).collect();
        let mut unmap: Vec<_> = blocks
            .into_iter()
            .filter_map(|address| self.free(address, 0, u64::MAX))
            .flatten()
            .collect();
        unmap.extend(self.reclaim(u64::MAX));
        unmap.extend(self.trim());
        unmap
    }

    /// Bytes that the program holds, by requested sizes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.blocks.values().map(|block| block.size).sum()
    }

    fn map(&mut self, size: u64) -> Allocation {
        if let Some(found) = self.recent.iter().rposition(|&(_, have)| have == size) {
            let (address, _) = self.recent.remove(found);
            if self.space.take_at(address, size) {
                return Allocation::Map { address, size };
            }
        }
        match self.space.take(size, CHUNK) {
            Some(address) => Allocation::Map { address, size },
            None => Allocation::Full,
        }
    }

    fn unmapped(&mut self, address: u64, size: u64) {
        self.space.give(address, size);
        if self.recent.len() == RECENT {
            self.recent.remove(0);
        }
        self.recent.push((address, size));
    }

    fn release_chunk(&mut self, start: u64, unmap: &mut Vec<(u64, u64)>) {
        if self.small.take_at(start, CHUNK) {
            self.idle -= 1;
            self.unmapped(start, CHUNK);
            unmap.push((start, CHUNK));
        }
    }

    /// Updates the count of wholly free chunks after the block at `address` was
    /// taken. If its chunk was wholly free, the block is at the chunk's start and
    /// the rest is one free range.
    fn left_idle(&mut self, address: u64, taken: u64) {
        let rest = address + taken;
        let chunk_end = address - address % CHUNK + CHUNK;
        if address.is_multiple_of(CHUNK)
            && self
                .small
                .first_from(rest)
                .is_some_and(|(start, length)| start == rest && start + length == chunk_end)
        {
            self.idle -= 1;
        }
    }

    fn enter(&mut self, address: u64, size: u64, taken: u64) {
        let id = self.next_id;
        self.next_id += 1;
        let block = Block {
            address,
            size,
            id,
            taken,
        };
        self.blocks.insert(address, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const BASE: u64 = 0x1000_0000_0000;

    /// An arena and the ranges that its host has mapped.
    struct Model {
        arena: Arena,
        mapped: BTreeSet<(u64, u64)>,
    }

    impl Model {
        fn new() -> Self {
            Self {
                arena: Arena::new(BASE, &[]),
                mapped: BTreeSet::new(),
            }
        }

        fn allocate(&mut self, size: u64) -> u64 {
            self.allocate_aligned(size, ALIGNMENT)
        }

        fn allocate_aligned(&mut self, size: u64, alignment: u64) -> u64 {
            match self.arena.allocate(size, alignment) {
                Allocation::Ready(address) => address,
                Allocation::Map {
                    address,
                    size: range,
                } => {
                    assert!(address.is_multiple_of(CHUNK) && range.is_multiple_of(CHUNK));
                    for &(other, length) in &self.mapped {
                        assert!(address + range <= other || other + length <= address);
                    }
                    self.mapped.insert((address, range));
                    self.arena.mapped(address, size, alignment)
                }
                Allocation::Full => panic!("1 TiB is full"),
            }
        }

        fn unmap(&mut self, ranges: Vec<(u64, u64)>) {
            for range in ranges {
                assert!(self.mapped.remove(&range), "{range:x?} was not mapped");
            }
        }
    }

    #[test]
    fn small_blocks_share_a_chunk() {
        let mut model = Model::new();
        for _ in 0..1000 {
            model.allocate(1000);
        }
        assert_eq!(model.mapped.len(), 1);
    }

    #[test]
    fn a_freed_small_block_waits_for_the_work_before_it() {
        let mut model = Model::new();
        let first = model.allocate(4096);
        model.arena.free(first, 10, 9).unwrap();
        assert_ne!(model.allocate(4096), first);
        let unmap = model.arena.reclaim(10);
        model.unmap(unmap);
        assert_eq!(model.allocate(4096), first);
    }

    #[test]
    fn a_large_range_is_used_again_first() {
        let mut model = Model::new();
        let first = model.allocate(CHUNK * 3);
        let second = model.allocate(CHUNK);
        assert!(model.arena.is_new(first) && model.arena.is_new(second));
        let unmap = model.arena.free(first, 0, 0).unwrap();
        model.unmap(unmap);
        let unmap = model.arena.free(second, 0, 0).unwrap();
        model.unmap(unmap);
        assert_eq!(model.allocate(CHUNK * 3), first);
        assert!(!model.arena.is_new(first));
    }

    #[test]
    fn twice_freed_is_noticed() {
        let mut model = Model::new();
        let block = model.allocate(100);
        assert!(model.arena.free(block + 4, 0, 0).is_none());
        assert!(model.arena.free(block, 0, 0).is_some());
        assert!(model.arena.free(block, 0, 0).is_none());
    }

    #[test]
    fn ranges_are_checked_to_the_byte() {
        let mut model = Model::new();
        let block = model.allocate(1000);
        assert!(model.arena.holds(block, 1000));
        assert!(model.arena.holds(block + 999, 1));
        assert!(!model.arena.holds(block, 1001));
        assert!(!model.arena.holds(block.wrapping_sub(1), 2));
        assert!(!model.arena.holds(block, u64::MAX));
        // The next block is not a part of this one.
        let (block, next) = (model.allocate(ALIGNMENT), model.allocate(ALIGNMENT));
        let first = block.min(next);
        assert_eq!(block.max(next), first + ALIGNMENT);
        assert!(model.arena.holds(first, ALIGNMENT) && !model.arena.holds(first, ALIGNMENT + 1));
    }

    #[test]
    fn kept_bytes_are_nobodys_until_they_are_given_out() {
        let mut model = Model::new();
        for size in [4096, 3 * CHUNK - 5] {
            let block = model.allocate(size);
            let taken = Arena::block_size(size).unwrap();
            assert_eq!(model.arena.keep(block), Some(taken));
            assert_eq!(model.arena.keep(block), None);
            assert!(model.arena.find(block).is_none());
            assert!(model.arena.free(block, 0, 0).is_none());
            assert_ne!(model.allocate(size), block);
            model.arena.give_out(block, size - 1, taken);
            assert_eq!(model.arena.find(block).unwrap().size, size - 1);
            let unmap = model.arena.free(block, 0, 0).unwrap();
            model.unmap(unmap);
        }
        assert_eq!(Arena::block_size(u64::MAX), None);
    }

    proptest! {
        /// Blocks never overlap, lie in mapped ranges, and everything is
        /// unmapped in the end.
        #[test]
        fn blocks_are_apart_and_mapped(steps in prop::collection::vec((0u8..4, 1u64..6_000_000, any::<u16>()), 1..120)) {
            let mut model = Model::new();
            let mut held: Vec<(u64, u64)> = Vec::new();
            let mut posted = 0;
            for (what, size, pick) in steps {
                posted += 1;
                match what {
                    0 if !held.is_empty() => {
                        let (address, _) = held.swap_remove(pick as usize % held.len());
                        let complete = posted - u64::from(pick % 7).min(posted);
                        let unmap = model.arena.free(address, posted, complete).unwrap();
                        model.unmap(unmap);
                    }
                    1 => {
                        let unmap = model.arena.reclaim(posted);
                        model.unmap(unmap);
                    }
                    _ => {
                        let size = if what == 2 { size } else { size % 5000 + 1 };
                        let alignment = if pick % 2 == 0 { ALIGNMENT } else { 4096 };
                        let address = model.allocate_aligned(size, alignment);
                        prop_assert_eq!(address % alignment, 0);
                        prop_assert!(model.arena.holds(address, size));
                        let size = size.next_multiple_of(alignment);
                        for &(other, length) in &held {
                            prop_assert!(address + size <= other || other + length <= address);
                        }
                        prop_assert!(model.mapped.iter().any(|&(start, length)| start <= address && address + size <= start + length));
                        held.push((address, size));
                    }
                }
            }
            let unmap = model.arena.clear(&HashSet::new());
            model.unmap(unmap);
            prop_assert!(model.mapped.is_empty(), "{:x?} stays mapped", model.mapped);
        }
    }
}
