//! Device memory (CUDA Driver API, Memory Management).

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use paragpu_protocol::handle::DeviceAddress;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{MemGetInfo, MemMap};
use paragpu_protocol::types::MemoryInfo;
use parking_lot::{Mutex, RwLock};

use crate::arena::{ALIGNMENT, Allocation, Arena, Block, SMALL};
use crate::connection::Link;
use crate::error::Result;
use crate::freed_blocks::{Block as KeptBlock, BlockRequest};
use crate::objects::graph_memory::Backing;
use crate::objects::stream::Stream;
use crate::objects::words::PeerWords;
use crate::peer::{self, PeerAccess};
use crate::stream::Streams;

/// The device memory of a session.
#[derive(Debug)]
pub struct DeviceMemory {
    link: Arc<Link>,
    streams: Arc<Streams>,
    /// Never held across a round trip: copies and launches look up addresses in it.
    arena: RwLock<Arena>,
    /// Held while the host maps a chunk for small blocks, so that threads
    /// which run out of small blocks at the same time share one new chunk.
    growing: Mutex<()>,
    /// Variables of modules, by first address, with their bytes.
    globals: RwLock<BTreeMap<u64, u64>>,
    /// Memory that the program mapped itself and may use.
    maps: RwLock<Maps>,
    /// Other devices' access to this memory.
    peers: PeerAccess,
    /// Sessions whose memory this device has access to.
    reached: RwLock<Vec<Arc<DeviceMemory>>>,
    /// In this memory, for events of other devices.
    peer_words: Mutex<Option<Arc<PeerWords>>>,
}

/// By first address: the bytes, and a number that no other allocation had.
#[derive(Debug, Default)]
struct Maps {
    ranges: BTreeMap<u64, (u64, u64)>,
    next: u64,
}

impl Maps {
    fn find(&self, address: u64) -> Option<(u64, u64, u64)> {
        let (&start, &(size, id)) = self.ranges.range(..=address).next_back()?;
        (address - start < size).then_some((start, size, id))
    }

    /// Whether a range is inside one map, or adjacent maps.
    fn holds(&self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else {
            return false;
        };
        let mut at = address;
        while let Some((start, length, _)) = self.find(at) {
            at = start + length;
            if end <= at {
                return true;
            }
        }
        false
    }
}

/// Numbers of maps are far from those of blocks.
const FIRST_MAP: u64 = 1 << 40;

/// The effort that an allocation has made to find room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// Blocks in quarantine were not considered.
    None,
    /// Blocks that are known to be unused were released, without a call to the
    /// host.
    Settled,
    /// All work was waited for, and unused memory was freed.
    Waited,
}

impl DeviceMemory {
    /// The memory of the device whose arena begins at `arena` and has these `holes`.
    pub(crate) fn new(
        link: &Arc<Link>,
        streams: &Arc<Streams>,
        arena: u64,
        holes: &[Range<u64>],
    ) -> Self {
        Self {
            streams: Arc::clone(streams),
            arena: RwLock::new(Arena::new(arena, holes)),
            growing: Mutex::new(()),
            globals: RwLock::new(BTreeMap::new()),
            maps: RwLock::default(),
            peers: PeerAccess::new(Arc::clone(link)),
            reached: RwLock::default(),
            peer_words: Mutex::default(),
            link: Arc::clone(link),
        }
    }

    /// Records a variable of a module at `address`.
    pub(crate) fn add_global(&self, address: u64, size: u64) {
        self.globals.write().insert(address, size);
    }

    /// Records that the module of a variable was unloaded.
    pub(crate) fn remove_global(&self, address: u64) {
        self.globals.write().remove(&address);
    }

    /// The allocation or module variable that contains `address`: first address, bytes,
    /// and a number that is unique among allocations (0 for variables).
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(u64, u64, u64)> {
        if let Some(Block {
            address, size, id, ..
        }) = self.arena.read().find(address)
        {
            return Some((address, size, id));
        }
        if let Some(found) = self.maps.read().find(address) {
            return Some(found);
        }
        let globals = self.globals.read();
        let (&start, &size) = globals.range(..=address).next_back()?;
        (address - start < size).then_some((start, size, 0))
    }

    /// First address and bytes of the allocation that contains an address.
    pub(crate) fn block(&self, address: u64) -> Option<(u64, u64)> {
        let block = self.arena.read().find(address)?;
        Some((block.address, block.size))
    }

    /// Refuses a range that is neither allocated nor in a module's variable.
    pub(crate) fn check(&self, address: u64, size: u64) -> Result<()> {
        if self.arena.read().holds(address, size) || self.maps.read().holds(address, size) {
            return Ok(());
        }
        match self.find(address) {
            Some((start, length, _)) if size <= length && address - start <= length - size => {
                Ok(())
            }
            _ => self.check_reached(address, size),
        }
    }

    /// Whether the device can access a whole range of device memory, its own or another
    /// device's.
    #[must_use]
    pub fn holds(&self, address: u64, size: u64) -> bool {
        self.check(address, size).is_ok()
    }

    /// Maps memory of `owner`'s session, `size` bytes at `memory`, at `address` of its arena.
    ///
    /// # Errors
    /// As [`peer::map`].
    pub(crate) fn take(&self, owner: &Link, memory: u64, address: u64, size: u64) -> Result<()> {
        peer::map(owner, &self.link, memory, address, size)?;
        self.add_map(address, size);
        Ok(())
    }

    /// Unmaps such memory.
    pub(crate) fn leave_taken(&self, address: u64) {
        self.remove_map(address);
        peer::unmap(&self.link, address);
    }

    /// Refuses a range that is not allocated on another device that this one has access
    /// to.
    fn check_reached(&self, address: u64, size: u64) -> Result<()> {
        let reached = self.reached.read();
        let holds = |memory: &Arc<Self>| memory.arena.read().holds(address, size);
        match reached.iter().any(holds) {
            true => Ok(()),
            false => Err(Status::INVALID_VALUE),
        }
    }

    /// Whether this device has access to all memory of another session.
    pub(crate) fn reaches(&self, other: &Self) -> bool {
        let reached = self.reached.read();
        reached.iter().any(|memory| std::ptr::eq(&**memory, other))
    }

    /// Its words for events of other devices; `make` allocates them at the first use.
    pub(crate) fn peer_words(
        &self,
        make: impl FnOnce() -> Result<PeerWords>,
    ) -> Result<Arc<PeerWords>> {
        let mut words = self.peer_words.lock();
        if let Some(words) = &*words {
            return Ok(Arc::clone(words));
        }
        Ok(Arc::clone(words.insert(Arc::new(make()?))))
    }

    /// Gives this device, `ordinal`, access to all memory of another session, present and
    /// future.
    ///
    /// # Errors
    /// Errors of the hosts: `PEER_ACCESS_UNSUPPORTED` (217) without peer access.
    pub fn reach(&self, ordinal: u32, other: &Arc<Self>) -> Result<()> {
        other.peers.grant(ordinal, &self.link)?;
        let mut reached = self.reached.write();
        if !reached.iter().any(|memory| Arc::ptr_eq(memory, other)) {
            reached.push(Arc::clone(other));
        }
        Ok(())
    }

    /// Ends this access.
    pub fn leave(&self, ordinal: u32, other: &Self) {
        let mut reached = self.reached.write();
        reached.retain(|memory| !std::ptr::eq(&**memory, other));
        other.peers.revoke(ordinal);
    }

    /// CU_DEVICE_P2P_ATTRIBUTE_*, 1 to 5, of this device's access to another session's.
    pub fn peer_attributes(&self, other: &Self) -> Result<[u64; 5]> {
        peer::attributes(|call| other.link.call(call), |call| self.link.call(call))
    }

    /// Bytes that the program holds.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.arena.read().used()
    }

    /// Whether this is a device address, as far as the guest knows.
    #[must_use]
    pub fn is_device(&self, address: u64) -> bool {
        if self.arena.read().spans(address) {
            return true;
        }
        self.find(address).is_some()
    }

    /// Reserves a range of addresses, at `hint` if that is free.
    pub(crate) fn reserve(&self, size: u64, alignment: u64, hint: u64) -> Result<u64> {
        let mut arena = self.arena.write();
        arena
            .reserve(size, alignment, hint)
            .ok_or(Status::OUT_OF_MEMORY)
    }

    /// Releases a range of addresses.
    pub(crate) fn unreserve(&self, address: u64, size: u64) {
        self.arena.write().not_mapped(address, size);
    }

    /// Records that the program mapped memory at `[address, address + size)`.
    pub(crate) fn add_map(&self, address: u64, size: u64) {
        let mut maps = self.maps.write();
        maps.next += 1;
        let id = FIRST_MAP + maps.next;
        maps.ranges.insert(address, (size, id));
    }

    /// Records that the program unmapped it.
    pub(crate) fn remove_map(&self, address: u64) {
        self.maps.write().ranges.remove(&address);
    }

    /// cuMemAlloc. Blocks up to 1 MiB usually need no round trip.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
    pub fn allocate(&self, size: u64) -> Result<u64> {
        self.allocate_aligned(size, ALIGNMENT)
    }

    /// As [`allocate`](Self::allocate), but the block begins at a multiple of `alignment`, at
    /// most 2 MiB, and no other block begins before the next multiple.
    pub(crate) fn allocate_aligned(&self, size: u64, alignment: u64) -> Result<u64> {
        self.allocate_pieces(size, alignment, u64::MAX)
    }

    /// As [`allocate_aligned`](Self::allocate_aligned), but the host maps a block of more
    /// than 1 MiB in mappings of `piece` bytes, a multiple of 2 MiB.
    pub(crate) fn allocate_pieces(&self, size: u64, alignment: u64, piece: u64) -> Result<u64> {
        if size == 0 {
            return Err(Status::INVALID_VALUE);
        }
        self.link.check()?;
        let complete = self.streams.progress().complete();
        let ready = self.unmap(|arena| {
            let unmap = arena.reclaim(complete);
            let is_small = size <= SMALL;
            Ok((
                unmap,
                is_small
                    .then(|| arena.allocate_ready(size, alignment))
                    .flatten(),
            ))
        })?;
        if let Some(address) = ready {
            return Ok(address);
        }
        let _growing = (size <= SMALL).then(|| self.growing.lock());
        self.map_for(size, alignment, piece)
    }

    /// Whether the memory of a new allocation is still as the host mapped it: zeros.
    pub(crate) fn is_new(&self, address: u64) -> bool {
        self.arena.read().is_new(address)
    }

    /// Finds a block of `size` bytes in memory that the host newly maps.
    fn map_for(&self, size: u64, alignment: u64, piece: u64) -> Result<u64> {
        let mut effort = Effort::None;
        loop {
            let (address, range) = {
                let mut arena = self.arena.write();
                match arena.allocate(size, alignment) {
                    Allocation::Ready(address) => return Ok(address),
                    Allocation::Full => return Err(Status::OUT_OF_MEMORY),
                    Allocation::Map { address, size } => {
                        if effort != Effort::None || !arena.has_quarantine() {
                            (address, size)
                        } else {
                            arena.not_mapped(address, size);
                            drop(arena);
                            effort = Effort::Settled;
                            self.streams.settle();
                            self.reclaim()?;
                            continue;
                        }
                    }
                }
            };
            // The range belongs to this thread: the arena hands it to no other.
            match self.map(address, range, piece) {
                Ok(()) => return Ok(self.arena.write().mapped(address, size, alignment)),
                Err(status) => {
                    self.arena.write().not_mapped(address, range);
                    if status != Status::OUT_OF_MEMORY || effort == Effort::Waited {
                        return Err(status);
                    }
                }
            }
            // Freed memory may suffice once it is unused.
            effort = Effort::Waited;
            self.release_all()?;
            self.streams.synchronize_all()?;
            self.give_back()?;
        }
    }

    /// Maps a range in mappings of `piece` bytes, for this device and those with access.
    fn map(&self, address: u64, size: u64, piece: u64) -> Result<()> {
        let mut at = 0;
        while at < size {
            let length = piece.min(size - at);
            let mapped = self.link.call(&MemMap {
                address: DeviceAddress(address + at),
                size: length,
            });
            let passed = mapped.and_then(|()| self.peers.add(address + at, length));
            if passed.is_err() {
                self.peers.remove(address, at)?;
                return passed;
            }
            at += length;
        }
        Ok(())
    }

    /// Other devices' access to this memory.
    pub(crate) fn peers(&self) -> &PeerAccess {
        &self.peers
    }

    /// The session's link.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// cuMemFree. The memory is reused only when all work posted before is
    /// complete.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no allocation starts at `address`.
    pub fn free(&self, address: u64) -> Result<()> {
        self.link.check()?;
        if self.give_up(address)? {
            self.streams.synchronize_all()?;
            self.reclaim()?;
        }
        Ok(())
    }

    /// Frees an allocation without a wait. Returns whether much memory waits for work to end.
    fn give_up(&self, address: u64) -> Result<bool> {
        let progress = self.streams.progress();
        self.unmap(|arena| {
            let unmap = arena
                .free(address, progress.posted(), progress.complete())
                .ok_or(Status::INVALID_VALUE)?;
            Ok((unmap, arena.quarantine_is_large()))
        })
    }

    /// cuMemAllocAsync from a pool: a block that the pool freed, if stream order permits
    /// it; otherwise as [`allocate`](Self::allocate).
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    pub fn allocate_in(&self, size: u64, owner: usize, stream: &Stream) -> Result<u64> {
        self.link.check()?;
        let taken = Arena::block_size(size).ok_or(Status::OUT_OF_MEMORY)?;
        let mut arena = self.arena.write();
        if !arena.freed.is_empty() {
            self.streams.settle();
        }
        let found = arena.freed.take_for(BlockRequest {
            length: taken,
            owner,
            stream: stream.handle(),
            complete: self.streams.progress().complete(),
        });
        if let Some(address) = found {
            arena.give_out(address, size, taken);
            return Ok(address);
        }
        drop(arena);
        self.allocate(size)
    }

    /// cuMemFreeAsync: the pool keeps the memory. No call is sent.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no allocation starts at `address`.
    pub fn free_in(&self, address: u64, owner: usize, stream: &Stream) -> Result<()> {
        self.link.check()?;
        let mut arena = self.arena.write();
        let length = arena.keep(address).ok_or(Status::INVALID_VALUE)?;
        arena.freed.add(KeptBlock {
            address,
            length,
            owner,
            stream: stream.handle(),
            posted: self.streams.progress().posted(),
        });
        if !arena.freed.is_large() {
            return Ok(());
        }
        let surplus = std::iter::from_fn(|| arena.freed.take_surplus()).collect();
        drop(arena);
        self.release(surplus)
    }

    /// Called after the program waited for work: pools return completed blocks beyond
    /// their release thresholds, `may`.
    pub fn settle_pools(&self, may: impl Fn(usize) -> u64) -> Result<()> {
        let complete = self.streams.progress().complete();
        let over = self.arena.write().freed.take_over(complete, may);
        self.release(over)
    }

    /// Whether any pool keeps memory.
    #[must_use]
    pub fn pools_keep(&self) -> bool {
        !self.arena.read().freed.is_empty()
    }

    /// Frees kept blocks. As cuMemFreeAsync it waits for no work, which may wait for the
    /// program's next call.
    fn release(&self, blocks: Vec<KeptBlock>) -> Result<()> {
        for block in blocks {
            let KeptBlock {
                address, length, ..
            } = block;
            self.arena.write().give_out(address, length, length);
            if self.give_up(address)? {
                self.reclaim()?;
            }
        }
        Ok(())
    }

    /// Frees everything that pools keep.
    fn release_all(&self) -> Result<()> {
        let all = self.arena.write().freed.take_all();
        self.release(all)
    }

    /// Frees all allocations except those at `kept`.
    pub(crate) fn clear(&self, kept: &HashSet<u64>) -> Result<()> {
        *self.peer_words.lock() = None;
        self.release_all()?;
        self.streams.synchronize_all()?;
        self.unmap(|arena| Ok((arena.clear(kept), ())))
    }

    /// Gives memory that neither the program nor unfinished work uses back to the host
    /// (cuMemPoolTrimTo). Waits for no work: it may wait for the program's next call.
    ///
    /// # Errors
    /// The error of failed work.
    pub fn trim(&self) -> Result<()> {
        self.release_all()?;
        self.streams.are_idle()?;
        self.give_back()
    }

    /// Gives memory that is not in use back to the host.
    fn give_back(&self) -> Result<()> {
        self.unmap(|arena| {
            let mut unmap = arena.reclaim(self.streams.progress().complete());
            unmap.extend(arena.trim());
            Ok((unmap, ()))
        })
    }

    /// Releases blocks in quarantine that no work uses any more.
    fn reclaim(&self) -> Result<()> {
        let complete = self.streams.progress().complete();
        self.unmap(|arena| Ok((arena.reclaim(complete), ())))
    }

    /// Changes the arena and posts the resulting unmaps. The arena stays locked until
    /// they are posted, which does not wait: the ranges are already free in the arena,
    /// and another thread's `MemMap` of one of them must come after.
    fn unmap<R>(
        &self,
        change: impl FnOnce(&mut Arena) -> Result<(Vec<(u64, u64)>, R)>,
    ) -> Result<R> {
        let mut arena = self.arena.write();
        let (ranges, result) = change(&mut arena)?;
        for (address, size) in ranges {
            self.peers.remove(address, size)?;
        }
        Ok(result)
    }

    /// cuMemGetInfo.
    pub fn info(&self) -> Result<MemoryInfo> {
        self.link.call(&MemGetInfo {})
    }
}

impl Backing for DeviceMemory {
    fn allocate(&self, size: u64) -> Result<u64> {
        Self::allocate(self, size)
    }

    fn free(&self, address: u64) -> Result<()> {
        Self::free(self, address)
    }
}
