//! Second addresses of memory: the pages of one mapping, mapped twice.
//!
//! A write through an alias is recorded for the alias's pages. So a reader that asks for
//! the written pages of memory also asks for those of its aliases.

use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering;

use super::{
    MAPPED, MAX_SHARED_MAPPINGS, Memory, MemoryError, NONE, Table, map_anywhere, map_shared,
    pointer, pointer_mut, protect, shared,
};

/// Bytes of a page, the unit in which copies skip zeros.
const PAGE: usize = 4096;
static ZEROS: [u8; PAGE] = [0; PAGE];

/// A second address, until the work that may use it is complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alias {
    size: u64,
    /// First address of the mapping.
    memory: u64,
}

/// A range that has a second address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Twice {
    /// First address in the mapping.
    pub memory: u64,
    /// First address in the alias.
    pub alias: u64,
    /// Bytes.
    pub size: u64,
}

impl Table {
    /// Whether the range overlaps an alias, including ended ones with work in
    /// flight.
    pub(super) fn touches_alias(&self, address: u64, size: u64) -> bool {
        let mut before = self.aliases.range(..address.saturating_add(size));
        let last = before.next_back();
        last.is_some_and(|(start, alias)| start + alias.size > address)
    }
}

impl Memory {
    /// Whether the range has no ended aliases with work in flight.
    #[must_use]
    pub fn is_free_of_aliases(&self, address: u64, size: u64) -> bool {
        !self.table.lock().touches_alias(address, size)
    }

    /// Whether any part of the range is backed, even if it is unmapped.
    #[must_use]
    pub fn is_backed_in(&self, address: u64, size: u64) -> bool {
        let is_backed = |chunk: usize| self.chunks[chunk].load(Ordering::Relaxed) != NONE;
        let mut chunks = self.chunk_range(address, size).into_iter().flatten();
        chunks.any(is_backed)
    }

    /// Whether the mapping that starts at `address` can be mapped a second time
    /// without a change.
    #[must_use]
    pub fn is_shared(&self, address: u64) -> bool {
        let table = self.table.lock();
        table.shared.contains_key(&address) || table.doubled.contains(&address)
    }

    /// Moves the contents of a mapping to memory that can be mapped twice. No work that
    /// writes to it may be running.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`], [`MemoryError::OutOfMemory`].
    pub fn share(&self, address: u64) -> Result<(), MemoryError> {
        let mut table = self.table.lock();
        let size = match table.live.get(&address) {
            Some(&size) if !table.aliases.contains_key(&address) => size,
            _ => return Err(MemoryError::NotMapped(address)),
        };
        let fresh = map_anywhere(size).map_err(|_| MemoryError::OutOfMemory)?;
        for page in (0..size as usize).step_by(PAGE) {
            // SAFETY: both ranges have `size` bytes and are mapped: the mapping is live,
            // and the other was just created. No Rust reference covers either. Zero pages
            // are not written.
            unsafe {
                let from = pointer::<libc::c_void>(address as usize + page);
                if libc::memcmp(from, ZEROS.as_ptr().cast(), PAGE) != 0 {
                    libc::memcpy(pointer_mut(fresh + page), from, PAGE);
                }
            }
        }
        // SAFETY: the new memory replaces the mapping, which this file owns.
        let moved = unsafe { remap(fresh, size as usize, size as usize, address as usize) };
        if !moved {
            // SAFETY: mapped above, and not used.
            unsafe { libc::munmap(pointer_mut(fresh), size as usize) };
            return Err(MemoryError::OutOfMemory);
        }
        table.doubled.insert(address);
        Ok(())
    }

    /// Whether the mapping that starts at `address` can be shared with other
    /// processes.
    #[must_use]
    pub fn is_handed_out(&self, address: u64) -> bool {
        self.table.lock().shared.contains_key(&address)
    }

    /// Moves the contents of a mapping to memory that other processes can map. No work that
    /// uses it may be running.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`], [`MemoryError::Private`] if it has aliases,
    /// [`MemoryError::Descriptor`].
    pub fn hand_out(&self, address: u64) -> Result<(), MemoryError> {
        let mut table = self.table.lock();
        let size = match table.live.get(&address) {
            Some(&size) if !table.aliases.contains_key(&address) => size,
            _ => return Err(MemoryError::NotMapped(address)),
        };
        if table.doubled.contains(&address) || table.shared.len() >= MAX_SHARED_MAPPINGS {
            return Err(MemoryError::Private(address));
        }
        let failed = |error| MemoryError::Descriptor(size, error);
        let memory = shared::make(size).map_err(failed)?;
        for page in (0..size as usize).step_by(PAGE) {
            // SAFETY: the mapping is live and has `size` bytes; no Rust reference covers
            // it. Zero pages stay holes.
            let written = unsafe {
                let from = pointer::<libc::c_void>(address as usize + page);
                match libc::memcmp(from, ZEROS.as_ptr().cast(), PAGE) {
                    0 => PAGE as isize,
                    _ => libc::pwrite(memory.as_raw_fd(), from, PAGE, page as libc::off_t),
                }
            };
            if written != PAGE as isize {
                return Err(failed(std::io::Error::last_os_error()));
            }
        }
        map_shared(address, size, &memory).map_err(failed)?;
        table.shared.insert(address, memory);
        Ok(())
    }

    /// Maps the first `size` bytes of the shared mapping that starts at `memory` also at
    /// `address`, where no memory is backed.
    ///
    /// # Errors
    /// [`MemoryError::Range`], [`MemoryError::NotMapped`], [`MemoryError::OutOfMemory`].
    pub fn alias(&self, address: u64, size: u64, memory: u64) -> Result<(), MemoryError> {
        let mut table = self.table.lock();
        let range = self.check_map(&table, address, size)?;
        let is_backed = |chunk: usize| self.chunks[chunk].load(Ordering::Relaxed) != NONE;
        let is_whole = table.live.get(&memory).is_some_and(|there| size <= *there);
        let is_own = table.shared.contains_key(&memory) || table.doubled.contains(&memory);
        if !is_whole || !is_own {
            return Err(MemoryError::NotMapped(memory));
        }
        if range.clone().any(is_backed) {
            return Err(MemoryError::Range(address, size));
        }
        // SAFETY: the source is a shared mapping of at least `size` bytes, which is not
        // changed. The target is in the arena, where no memory is backed.
        if !unsafe { remap(memory as usize, 0, size as usize, address as usize) } {
            // On failure, the kernel may have unmapped the target's reservation. Restores
            // it.
            let _ = protect(address, size, libc::PROT_NONE, libc::MAP_FIXED);
            return Err(MemoryError::OutOfMemory);
        }
        for chunk in range {
            self.chunks[chunk].store(MAPPED, Ordering::Release);
        }
        table.live.insert(address, size);
        table.aliases.insert(address, Alias { size, memory });
        Ok(())
    }

    /// Removes an alias whose work is complete. Writes recorded for it are recorded for its
    /// memory instead.
    pub(super) fn end_alias(&self, table: &mut Table, address: u64) -> bool {
        let Some(alias) = table.aliases.remove(&address) else {
            return false;
        };
        let offset = address - self.base;
        self.written.each(offset, alias.size, true, |at, length| {
            self.wrote(alias.memory + (at - offset), length);
        });
        true
    }

    /// The parts of a range that have a second address.
    #[must_use]
    pub fn twice(&self, address: u64, size: u64) -> Vec<Twice> {
        let table = self.table.lock();
        let end = address.saturating_add(size);
        let part = |(&at, alias): (&u64, &Alias)| {
            let start = alias.memory.max(address);
            let stop = (alias.memory + alias.size).min(end);
            (start < stop).then(|| Twice {
                memory: start,
                alias: at + (start - alias.memory),
                size: stop - start,
            })
        };
        table.aliases.iter().filter_map(part).collect()
    }
}

/// Moves a mapping or, if `old` is 0, maps its pages a second time. Returns false on
/// failure.
///
/// # Safety
/// As mremap(2): the source is mapped, and shared if `old` is 0. What is mapped at `to` is
/// not used.
unsafe fn remap(from: usize, old: usize, new: usize, to: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let target = pointer_mut::<libc::c_void>(to);
    // SAFETY: the caller upholds this.
    let got = unsafe { libc::mremap(pointer_mut(from), old, new, flags, target) };
    got != libc::MAP_FAILED
}
