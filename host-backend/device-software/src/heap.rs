//! `malloc` and `free` of kernels.
//!
//! Each module that calls them has its own heap, with the size of the context's limit at
//! load time. All state of a heap is inside it, in device memory, and the heap counts as a
//! variable of its module, so it migrates with the session. A block begins with its size in
//! bytes, including header and padding, and a mark that says whether it is used. A size of
//! 0 marks the start of the part that was never used.

use crate::memory_unsafe::Memory;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;

/// The limit of `cuCtxGetLimit` that is its size.
pub const LIMIT: u32 = 2;

/// Size and alignment of a block's header.
const HEADER: u64 = 16;
/// Marks a used block.
const USED: u64 = 0x7573_6564_626c_6f63;

/// The heap of a module.
#[derive(Debug)]
pub struct Heap {
    start: u64,
    end: u64,
    search: Mutex<Search>,
}

/// How searches for free blocks go. A session that moved begins anew.
#[derive(Debug)]
struct Search {
    /// The block at which they begin.
    cursor: u64,
    /// A block of this size, with its header, was not found since a block was last freed.
    /// The heap may have millions of blocks: to search them all for each thread takes
    /// minutes.
    missing: u64,
}

impl Heap {
    /// Creates a heap in `bytes` bytes at `start`, a multiple of 16.
    #[must_use]
    pub fn new(start: u64, bytes: u64) -> Self {
        Self {
            start,
            end: start.saturating_add(bytes) & !(HEADER - 1),
            search: Mutex::new(Search {
                cursor: start,
                missing: u64::MAX,
            }),
        }
    }

    fn holds(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The size of the block at `at`, merged with following free ones, and whether it is
    /// used. `None` if a kernel has overwritten a header.
    fn block(&self, memory: &Memory, at: u64) -> Option<(u64, bool)> {
        let read = |at: u64| {
            let size = match memory.load(at, 8)? {
                0 => self.end - at,
                size => size,
            };
            let fits = size.is_multiple_of(HEADER) && size >= HEADER && size <= self.end - at;
            fits.then_some((size, memory.load(at + 8, 8)? == USED))
        };
        let (mut size, used) = read(at)?;
        while !used && at + size < self.end {
            match read(at + size)? {
                (more, false) => size += more,
                _ => break,
            }
        }
        Some((size, used))
    }

    /// Allocates `bytes` bytes at a multiple of `alignment`, a power of two, and returns
    /// their address; `None` if no free block is large enough.
    #[must_use]
    pub fn take(&self, memory: &Memory, bytes: u64, alignment: u64) -> Option<u64> {
        let need = bytes
            .max(1)
            .checked_next_multiple_of(HEADER)?
            .checked_add(HEADER)?;
        let mut search = self.search.lock();
        if need >= search.missing {
            return None;
        }
        for (mut at, end) in [(search.cursor, self.end), (self.start, search.cursor)] {
            while at < end {
                let (size, used) = self.block(memory, at)?;
                // What lies before the aligned address stays a free block.
                let address = (at + HEADER).checked_next_multiple_of(alignment.max(HEADER))?;
                let gap = address - HEADER - at;
                if used || size < need.checked_add(gap)? {
                    at += size;
                    continue;
                }
                let (own, next) = (at + gap, at + gap + need);
                // The rest of the block gets its own header first, and the header of the
                // block found changes last, so that the headers are valid at any time.
                let rest = size - gap - need;
                let done = (rest == 0
                    || memory.store(next + 8, 8, 0) && memory.store(next, 8, rest))
                    && memory.store(own, 8, need)
                    && memory.store(own + 8, 8, USED)
                    && (gap == 0 || memory.store(at + 8, 8, 0) && memory.store(at, 8, gap));
                search.cursor = if next < self.end { next } else { self.start };
                return done.then_some(address);
            }
        }
        if alignment <= HEADER {
            search.missing = need;
        }
        None
    }

    /// Frees a block. Returns false if [`Self::take`] did not return `address`.
    fn give_back(&self, memory: &Memory, address: u64) -> bool {
        let mut search = self.search.lock();
        let at = address.wrapping_sub(HEADER);
        let used = address.is_multiple_of(HEADER)
            && self.holds(at)
            && matches!(self.block(memory, at), Some((_, true)));
        if !used || !memory.store(at + 8, 8, 0) {
            return false;
        }
        // The cursor must stay at a block: this one may be merged with later ones.
        search.cursor = at;
        search.missing = u64::MAX;
        true
    }
}

/// The heaps of all modules.
#[derive(Debug, Default)]
pub struct Heaps {
    list: RwLock<Vec<Arc<Heap>>>,
}

impl Heaps {
    /// Adds the heap of a loaded module.
    pub fn add(&self, heap: Arc<Heap>) {
        self.list.write().push(heap);
    }

    /// Removes the heap of an unloaded module.
    pub fn remove(&self, heap: &Arc<Heap>) {
        self.list.write().retain(|other| !Arc::ptr_eq(heap, other));
    }

    /// `free(address)`. Returns false if no heap allocated it.
    #[must_use]
    pub fn give_back(&self, memory: &Memory, address: u64) -> bool {
        let list = self.list.read();
        let heap = list.iter().find(|heap| heap.holds(address));
        heap.is_some_and(|heap| heap.give_back(memory, address))
    }
}
