//! Accesses of all lanes of a warp to memory, checked together.

use std::ptr::{with_exposed_provenance as pointer, with_exposed_provenance_mut as pointer_mut};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use paragpu_protocol::layout::DEVICE_STRIDE;

use super::{CHUNK_SHIFT, Memory, NONE};

/// The addresses of a warp's lanes in the arena. `size` bytes at each are mapped, and all
/// are multiples of the element's width.
pub struct Lanes<'a> {
    pub(super) memory: &'a Memory,
    pub(super) at: &'a [u64; 32],
    pub(super) size: u64,
    pub(super) pattern: Pattern,
}

/// The pattern of the lanes' addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// All the same.
    Same,
    /// Consecutive elements.
    Row,
    Other,
}

/// Facts about the lanes' addresses. Each is a bitwise OR of words, which compilers
/// vectorize.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// Bits in which any address differs from the first.
    pub differ: u64,
    /// Bits that are set in any address.
    pub any: u64,
    /// Whether all are within the limit.
    pub within: bool,
    pattern: Pattern,
}

/// Computes the facts for addresses of `size` bytes each, relative to `base`. None may
/// extend beyond `end`.
#[inline(always)]
pub fn facts(at: &[u64; 32], base: u64, end: u64, size: u64) -> Facts {
    let (mut differ, mut any, mut over, mut off) = (0, 0, 0, 0);
    let limit = end.wrapping_sub(size);
    let first = at[0];
    for (lane, &address) in at.iter().enumerate() {
        let offset = address.wrapping_sub(base);
        differ |= address ^ first;
        any |= address;
        // A sign bit of either says that the offset is above the limit, which is far
        // smaller.
        over |= offset | limit.wrapping_sub(offset);
        off |= address ^ first.wrapping_add(size.wrapping_mul(lane as u64));
    }
    let pattern = match (differ, off) {
        (0, _) => Pattern::Same,
        (_, 0) => Pattern::Row,
        _ => Pattern::Other,
    };
    Facts {
        differ,
        any,
        within: end >= size && over >> 63 == 0,
        pattern,
    }
}

impl Memory {
    /// Checks the lanes' addresses. Returns `None` if a lane's bytes are not in the arena,
    /// not mapped, or not aligned to `size`, a power of two up to the size of a chunk.
    #[inline(always)]
    pub fn lanes<'a>(&'a self, at: &'a [u64; 32], size: u64) -> Option<Lanes<'a>> {
        let facts = facts(at, self.base, DEVICE_STRIDE, size);
        if !facts.within || facts.any & (size - 1) != 0 {
            return None;
        }
        let mapped = |address: u64| {
            let chunk = (address - self.base) >> CHUNK_SHIFT;
            let state = self.chunks.get(chunk as usize);
            state.is_some_and(|c| c.load(Ordering::Relaxed) != NONE)
        };
        // The arena begins at a chunk boundary, so the upper bits of addresses identify
        // chunks.
        let found = match facts.differ >> CHUNK_SHIFT {
            0 => mapped(at[0]),
            _ => at.iter().all(|&address| mapped(address)),
        };
        found.then_some(Lanes {
            memory: self,
            at,
            size,
            pattern: facts.pattern,
        })
    }
}

macro_rules! elements {
    ($load:ident, $store:ident, $atomic:ty, $element:ty) => {
        /// Loads the element `step` bytes after each lane's address.
        #[inline(always)]
        pub fn $load(&self, step: u64) -> [$element; 32] {
            const WIDTH: u64 = size_of::<$element>() as u64;
            assert!(step + WIDTH <= self.size && step.is_multiple_of(WIDTH));
            let one = |address: u64| {
                // SAFETY: `Memory::lanes` found these bytes mapped and aligned, and the
                // step is a multiple of the width. They are only unmapped while no work
                // uses them. Other threads may write them concurrently, so the access is
                // atomic.
                unsafe { (*pointer::<$atomic>((address + step) as usize)).load(Ordering::Relaxed) }
            };
            if self.pattern == Pattern::Same {
                return [one(self.at[0]); 32];
            }
            let mut out = [0; 32];
            if WIDTH == self.size && self.pattern == Pattern::Row {
                // SAFETY: as above; all bytes between the first and the last lane belong to
                // a lane. It is a copy like any other of this memory.
                unsafe {
                    libc::memcpy(
                        out.as_mut_ptr().cast(),
                        pointer(self.at[0] as usize),
                        32 * size_of::<$element>(),
                    )
                };
                return out;
            }
            for (out, &address) in out.iter_mut().zip(self.at) {
                *out = one(address);
            }
            out
        }

        /// Stores the elements of the lanes of `mask`.
        #[inline(always)]
        pub fn $store(&self, step: u64, values: &[$element; 32], mask: u32) {
            const WIDTH: u64 = size_of::<$element>() as u64;
            assert!(step + WIDTH <= self.size && step.is_multiple_of(WIDTH));
            let one = |address: u64, value: $element| {
                // SAFETY: as for the load.
                unsafe {
                    (*pointer::<$atomic>((address + step) as usize)).store(value, Ordering::Relaxed)
                }
            };
            if mask == u32::MAX && WIDTH == self.size && self.pattern == Pattern::Row {
                // SAFETY: as for the load.
                unsafe {
                    libc::memcpy(
                        pointer_mut(self.at[0] as usize),
                        values.as_ptr().cast(),
                        32 * size_of::<$element>(),
                    )
                };
            } else if mask == u32::MAX {
                for (&address, &value) in self.at.iter().zip(values) {
                    one(address, value);
                }
            } else {
                for (lane, (&address, &value)) in self.at.iter().zip(values).enumerate() {
                    if mask >> lane & 1 != 0 {
                        one(address, value);
                    }
                }
            }
            self.note(step, WIDTH, mask);
        }
    };
}

impl Lanes<'_> {
    elements!(load8, store8, AtomicU8, u8);
    elements!(load16, store16, AtomicU16, u16);
    elements!(load32, store32, AtomicU32, u32);
    elements!(load64, store64, AtomicU64, u64);

    pub(super) fn note(&self, step: u64, width: u64, mask: u32) {
        if !self.memory.written.is_watching() {
            return;
        }
        for (lane, &address) in self.at.iter().enumerate() {
            if mask >> lane & 1 != 0 {
                self.memory.wrote(address + step, width);
            }
        }
    }
}

/// The addresses of a warp's lanes in a block's shared memory, as [`Lanes`].
pub struct SharedLanes<'a> {
    at: &'a [u64; 32],
    /// Length of the shared memory against which they were checked.
    length: usize,
    size: u64,
    pattern: Pattern,
}

impl<'a> SharedLanes<'a> {
    /// Checks the lanes' addresses. Returns `None` if a lane's bytes are not in `shared`,
    /// or not aligned to `size`, a power of two.
    #[inline(always)]
    pub fn new(shared: &[u8], at: &'a [u64; 32], size: u64) -> Option<Self> {
        let facts = facts(at, 0, shared.len() as u64, size);
        let misaligned = (facts.any | shared.as_ptr().addr() as u64 & 7) & (size - 1);
        (facts.within && misaligned == 0).then_some(Self {
            at,
            length: shared.len(),
            size,
            pattern: facts.pattern,
        })
    }
}

macro_rules! shared_elements {
    ($load:ident, $store:ident, $element:ty) => {
        /// Loads the element `step` bytes after each lane's address.
        #[inline(always)]
        pub fn $load(&self, shared: &[u8], step: u64) -> [$element; 32] {
            const WIDTH: u64 = size_of::<$element>() as u64;
            self.check(shared, step, WIDTH);
            let one = |address: u64| {
                let from = shared.as_ptr().wrapping_add((address + step) as usize);
                // SAFETY: `new` found `size` bytes at each lane's address in memory of this
                // length; all are aligned. Volatile, because compilers turn plain loads
                // into a gather, which takes three times as long.
                unsafe { from.cast::<$element>().read_volatile() }
            };
            if self.pattern == Pattern::Same {
                return [one(self.at[0]); 32];
            }
            let mut out = [0; 32];
            for (out, &address) in out.iter_mut().zip(self.at) {
                *out = one(address);
            }
            out
        }

        /// Stores the elements of the lanes of `mask`.
        #[inline(always)]
        pub fn $store(&self, shared: &mut [u8], step: u64, values: &[$element; 32], mask: u32) {
            const WIDTH: u64 = size_of::<$element>() as u64;
            self.check(shared, step, WIDTH);
            let start = shared.as_mut_ptr();
            let one = |address: u64, value: $element| {
                let to = start.wrapping_add((address + step) as usize);
                // SAFETY: as for the load.
                unsafe { to.cast::<$element>().write_volatile(value) }
            };
            if mask == u32::MAX {
                for (&address, &value) in self.at.iter().zip(values) {
                    one(address, value);
                }
                return;
            }
            for (lane, (&address, &value)) in self.at.iter().zip(values).enumerate() {
                if mask >> lane & 1 != 0 {
                    one(address, value);
                }
            }
        }
    };
}

impl SharedLanes<'_> {
    shared_elements!(load8, store8, u8);
    shared_elements!(load16, store16, u16);
    shared_elements!(load32, store32, u32);
    shared_elements!(load64, store64, u64);

    /// Checks that `shared` is at least as long as the memory against which the addresses
    /// were checked, and aligned.
    #[inline(always)]
    fn check(&self, shared: &[u8], step: u64, width: u64) {
        let inside = self.length <= shared.len();
        let aligned = (step | shared.as_ptr().addr() as u64) & (width - 1) == 0;
        assert!(step + width <= self.size && inside && aligned);
    }
}

/// Checks addresses of words in shared memory. Returns their pattern if all are valid.
#[inline(always)]
fn words_of(shared: &[u8], at: &[u32; 32]) -> Option<Pattern> {
    let (mut differ, mut any, mut over, mut off) = (0, 0, 0, 0);
    let limit = u32::try_from(shared.len()).ok()?.checked_sub(4)?;
    let first = at[0];
    for (lane, &address) in at.iter().enumerate() {
        differ |= address ^ first;
        any |= address;
        over |= address | limit.wrapping_sub(address);
        off |= address ^ first.wrapping_add(4 * lane as u32);
    }
    let misaligned = (any | shared.as_ptr().addr() as u32) & 3;
    if misaligned != 0 || over >> 31 != 0 {
        return None;
    }
    Some(match (differ, off) {
        (0, _) => Pattern::Same,
        (_, 0) => Pattern::Row,
        _ => Pattern::Other,
    })
}

/// Loads a word of shared memory for each lane. Returns `None` if one is outside or not
/// aligned.
#[inline(always)]
pub fn load_shared_words(shared: &[u8], at: &[u32; 32]) -> Option<[u32; 32]> {
    let pattern = words_of(shared, at)?;
    let one = |address: u32| {
        let from = shared.as_ptr().wrapping_add(address as usize);
        // SAFETY: `words_of` found every lane's word in this memory, aligned. Volatile as above.
        unsafe { from.cast::<u32>().read_volatile() }
    };
    let mut out = [0; 32];
    match pattern {
        Pattern::Same => out = [one(at[0]); 32],
        Pattern::Row => {
            let row = shared.get(at[0] as usize..)?.first_chunk::<128>()?;
            for (out, word) in out.iter_mut().zip(row.as_chunks::<4>().0) {
                *out = u32::from_le_bytes(*word);
            }
        }
        Pattern::Other => {
            for (out, &address) in out.iter_mut().zip(at) {
                *out = one(address);
            }
        }
    }
    Some(out)
}

/// Stores words of the lanes of `mask`. If one is outside shared memory or not aligned,
/// stores nothing and returns false.
#[inline(always)]
pub fn store_shared_words(
    shared: &mut [u8],
    at: &[u32; 32],
    values: &[u32; 32],
    mask: u32,
) -> bool {
    let Some(pattern) = words_of(shared, at) else {
        return false;
    };
    if mask == u32::MAX && pattern == Pattern::Row {
        let row = shared.get_mut(at[0] as usize..);
        let Some(row) = row.and_then(|row| row.first_chunk_mut::<128>()) else {
            return false;
        };
        for (word, value) in row.as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *word = value.to_le_bytes();
        }
        return true;
    }
    let start = shared.as_mut_ptr();
    for (lane, (&address, &value)) in at.iter().zip(values).enumerate() {
        if mask >> lane & 1 != 0 {
            // SAFETY: as for the load.
            unsafe {
                start
                    .wrapping_add(address as usize)
                    .cast::<u32>()
                    .write_volatile(value)
            }
        }
    }
    true
}
