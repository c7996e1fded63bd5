//! The device's address space: an arena reserved at a fixed address, and registered host memory.
//!
//! Only here do device addresses become pointers. Every access is first checked against a
//! map with one byte for each 2 MiB chunk, or the list of registered ranges. Kernels race
//! with each other and with copies, as on a GPU: single accesses are relaxed atomics, and
//! bulk copies use the C library on memory to which no Rust reference exists.

mod alias_unsafe;
pub mod lanes_unsafe;
mod peer_unsafe;
mod wide_unsafe;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{with_exposed_provenance as pointer, with_exposed_provenance_mut as pointer_mut};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::shared;
use crate::written::Written;
use alias_unsafe::Alias;
pub use alias_unsafe::Twice;
use paragpu_communicator::copy_past_caches;
use paragpu_protocol::layout::{CHUNK, DEVICE_STRIDE};
use parking_lot::{Mutex, RwLock};

/// Bytes of host memory that go past the caches to the device: parts of a larger copy.
const STREAMED: u64 = 256 << 10;
const CHUNK_SHIFT: u32 = CHUNK.trailing_zeros();
const NONE: u8 = 0;
const MAPPED: u8 = 1;
/// Maximum number of mappings of shared memory. Each keeps a descriptor open.
const MAX_SHARED_MAPPINGS: usize = 256;

/// Why memory could not be mapped, unmapped or shared.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The arena's addresses are in use in this process.
    #[error("address {0:#x} is not free in this process: {1}")]
    Reserved(u64, String),
    /// Not whole chunks of the arena, or overlapping another mapping.
    #[error("range {0:#x}+{1:#x} is not free or not in the arena")]
    Range(u64, u64),
    /// The configured size is used up, or the host is out of memory.
    #[error("out of memory")]
    OutOfMemory,
    /// Not shared memory.
    #[error("the memory at {0:#x} is private to this process")]
    Private(u64),
    /// The descriptor is not memory of another software GPU, or has another size.
    #[error("the descriptor is not {0} bytes of a software GPU's memory: {1}")]
    Descriptor(u64, std::io::Error),
    /// No mapping or registration starts there.
    #[error("nothing is mapped or registered at {0:#x}")]
    NotMapped(u64),
    /// Overlaps a registration.
    #[error("range {0:#x}+{1:#x} is already registered")]
    Registered(u64, u64),
}

#[derive(Debug, Default)]
struct Table {
    /// Size of each live mapping.
    live: BTreeMap<u64, u64>,
    /// The mappings that are shared memory.
    shared: BTreeMap<u64, OwnedFd>,
    /// The mappings that are shared within this process.
    doubled: BTreeSet<u64>,
    /// Second addresses, until the work that may use them is complete.
    aliases: BTreeMap<u64, Alias>,
    /// Live mappings of other devices' memory: size by address.
    peers: BTreeMap<u64, u64>,
    /// Bytes backed by memory, live or dying.
    used: u64,
    /// Unmapped mappings whose work is not complete: size and generation, by address.
    dying: BTreeMap<u64, (u64, u64)>,
    generation: u64,
}

/// The address space.
#[derive(Debug)]
pub struct Memory {
    base: u64,
    total: u64,
    chunks: Box<[AtomicU8]>,
    table: Mutex<Table>,
    /// First address and end of each registration, and of memory of other devices, in ascending
    /// order.
    host: RwLock<Vec<(u64, u64)>>,
    written: Written,
    /// Held during accesses of 16 bytes. `None` if the processor makes them at once.
    wide: Option<Mutex<()>>,
}

fn protect(address: u64, size: u64, access: i32, flags: i32) -> std::io::Result<()> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    map_fixed(address, size, access, flags, -1)
}

/// Maps shared memory over a part of the arena.
fn map_shared(address: u64, size: u64, memory: &OwnedFd) -> std::io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    map_fixed(address, size, access, flags, memory.as_raw_fd())
}

fn map_fixed(address: u64, size: u64, access: i32, flags: i32, fd: i32) -> std::io::Result<()> {
    // SAFETY: the range is either not mapped at all (NOREPLACE) or is in the arena that
    // this file reserved, which contains no Rust objects. Shared memory cannot shrink
    // (`shared`), so all of it stays mapped.
    let got = unsafe {
        libc::mmap(
            pointer_mut(address as usize),
            size as usize,
            access,
            flags,
            fd,
            0,
        )
    };
    if got == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    if got.expose_provenance() as u64 != address {
        // SAFETY: `got` is the fresh mapping of that size (a kernel that ignores the
        // placement flag).
        unsafe { libc::munmap(got, size as usize) };
        return Err(std::io::Error::from_raw_os_error(libc::EEXIST));
    }
    Ok(())
}

/// Maps memory that can be mapped a second time, at an address that the kernel chooses.
fn map_anywhere(size: u64) -> std::io::Result<usize> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping that replaces none.
    let got = unsafe { libc::mmap(std::ptr::null_mut(), size as usize, access, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(got.expose_provenance())
}

impl Memory {
    /// Reserves the arena at `base`, in which `total` bytes may be mapped.
    ///
    /// # Errors
    /// [`MemoryError::Reserved`].
    pub fn new(base: u64, total: u64) -> Result<Self, MemoryError> {
        protect(
            base,
            DEVICE_STRIDE,
            libc::PROT_NONE,
            libc::MAP_FIXED_NOREPLACE,
        )
        .map_err(|e| MemoryError::Reserved(base, e.to_string()))?;
        let chunks = (0..DEVICE_STRIDE >> CHUNK_SHIFT)
            .map(|_| AtomicU8::new(NONE))
            .collect();
        Ok(Self {
            base,
            total,
            chunks,
            table: Mutex::default(),
            host: RwLock::default(),
            written: Written::default(),
            wide: wide_unsafe::lock(),
        })
    }

    /// The record of writes to the arena.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// Records a write. Must be called after it: see [`Written`].
    #[inline]
    pub fn wrote(&self, address: u64, size: u64) {
        self.written.note(address.wrapping_sub(self.base), size);
    }

    /// First address of the arena.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Free and total bytes.
    #[must_use]
    pub fn info(&self) -> (u64, u64) {
        (
            self.total.saturating_sub(self.table.lock().used),
            self.total,
        )
    }

    fn chunk_range(&self, address: u64, size: u64) -> Option<std::ops::Range<usize>> {
        let start = address.checked_sub(self.base)?;
        let end = start.checked_add(size)?;
        let aligned = start % CHUNK == 0 && size.is_multiple_of(CHUNK) && size != 0;
        (aligned && end <= DEVICE_STRIDE)
            .then_some((start >> CHUNK_SHIFT) as usize..(end >> CHUNK_SHIFT) as usize)
    }

    /// Checks a new mapping and returns its chunks. It may cover retired ones.
    fn check_map(
        &self,
        table: &Table,
        address: u64,
        size: u64,
    ) -> Result<std::ops::Range<usize>, MemoryError> {
        let refused = || MemoryError::Range(address, size);
        let range = self.chunk_range(address, size).ok_or_else(refused)?;
        if table.touches_alias(address, size) {
            return Err(refused());
        }
        let before = table.live.range(..address + size).next_back();
        match before {
            Some((start, length)) if start + length > address => Err(refused()),
            _ => Ok(range),
        }
    }

    /// Backs a range of whole chunks with zeroed memory. Chunks of an unmapped mapping of
    /// this session whose work is not complete keep their contents.
    ///
    /// # Errors
    /// [`MemoryError::Range`], [`MemoryError::OutOfMemory`].
    pub fn map(&self, address: u64, size: u64) -> Result<(), MemoryError> {
        let mut table = self.table.lock();
        let range = self.check_map(&table, address, size)?;
        let fresh: Vec<usize> = range
            .filter(|&c| self.chunks[c].load(Ordering::Relaxed) == NONE)
            .collect();
        let bytes = fresh.len() as u64 * CHUNK;
        if table.used + bytes > self.total {
            return Err(MemoryError::OutOfMemory);
        }
        // Adjacent chunks are mapped together.
        let mut at = 0;
        while at < fresh.len() {
            let mut n = 1;
            while at + n < fresh.len() && fresh[at + n] == fresh[at] + n {
                n += 1;
            }
            let start = self.base + ((fresh[at] as u64) << CHUNK_SHIFT);
            let length = n as u64 * CHUNK;
            protect(
                start,
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED,
            )
            .map_err(|_| MemoryError::OutOfMemory)?;
            self.backed_now(&mut table, start, length);
            at += n;
        }
        table.live.insert(address, size);
        Ok(())
    }

    /// As [`Self::map`], with shared memory that [`Self::export`] can hand over, if the
    /// system has some and no part of the range is backed.
    ///
    /// # Errors
    /// As [`Self::map`].
    pub fn map_shareable(&self, address: u64, size: u64) -> Result<(), MemoryError> {
        let few = self.table.lock().shared.len() < MAX_SHARED_MAPPINGS;
        match few.then(|| shared::make(size)) {
            Some(Ok(memory)) => match self.import(address, size, memory) {
                Err(MemoryError::Range(..)) => self.map(address, size),
                mapped => mapped,
            },
            _ => self.map(address, size),
        }
    }

    /// Returns the shared memory of the mapping that starts at `address`.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`], [`MemoryError::Private`], [`MemoryError::Descriptor`].
    pub fn export(&self, address: u64) -> Result<OwnedFd, MemoryError> {
        let table = self.table.lock();
        let Some(&size) = table.live.get(&address) else {
            return Err(MemoryError::NotMapped(address));
        };
        let Some(memory) = table.shared.get(&address) else {
            return Err(MemoryError::Private(address));
        };
        memory
            .try_clone()
            .map_err(|error| MemoryError::Descriptor(size, error))
    }

    /// Backs a range of whole chunks, of which none is backed, with shared memory and its
    /// contents.
    ///
    /// # Errors
    /// [`MemoryError::Range`], [`MemoryError::OutOfMemory`], [`MemoryError::Descriptor`].
    pub fn import(&self, address: u64, size: u64, memory: OwnedFd) -> Result<(), MemoryError> {
        shared::check(&memory, size).map_err(|error| MemoryError::Descriptor(size, error))?;
        let mut table = self.table.lock();
        let mut range = self.check_map(&table, address, size)?;
        if range.any(|c| self.chunks[c].load(Ordering::Relaxed) != NONE) {
            return Err(MemoryError::Range(address, size));
        }
        if table.used + size > self.total {
            return Err(MemoryError::OutOfMemory);
        }
        map_shared(address, size, &memory).map_err(|error| MemoryError::Descriptor(size, error))?;
        self.backed_now(&mut table, address, size);
        table.live.insert(address, size);
        table.shared.insert(address, memory);
        Ok(())
    }

    /// Makes newly mapped chunks accessible.
    fn backed_now(&self, table: &mut Table, start: u64, length: u64) {
        // SAFETY: advice for a new mapping, which does not change contents.
        unsafe {
            libc::madvise(
                pointer_mut(start as usize),
                length as usize,
                libc::MADV_HUGEPAGE,
            )
        };
        for chunk in self.chunk_range(start, length).into_iter().flatten() {
            self.chunks[chunk].store(MAPPED, Ordering::Release);
        }
        // The contents of the range have been replaced.
        self.wrote(start, length);
        table.used += length;
    }

    /// Backs mapped memory by small pages, of which only those that are used take memory.
    pub fn use_small_pages(&self, start: u64, length: u64) {
        // SAFETY: advice, which does not change contents.
        unsafe {
            libc::madvise(
                pointer_mut(start as usize),
                length as usize,
                libc::MADV_NOHUGEPAGE,
            )
        };
    }

    /// Removes the mapping at `address` from the table. The memory stays until
    /// [`Self::release`] is called with the returned generation, once all work that may use
    /// it is complete.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`].
    pub fn retire(&self, address: u64) -> Result<u64, MemoryError> {
        let mut table = self.table.lock();
        let own = table.live.remove(&address);
        let size = own
            .or_else(|| table.peers.remove(&address))
            .ok_or(MemoryError::NotMapped(address))?;
        // The pages stay mapped until the release.
        table.shared.remove(&address);
        table.doubled.remove(&address);
        table.generation += 1;
        let generation = table.generation;
        table.dying.insert(generation, (address, size));
        Ok(generation)
    }

    /// Releases the memory of a retired mapping, except chunks that were mapped again or
    /// retired again later.
    pub fn release(&self, generation: u64) {
        let mut table = self.table.lock();
        let Some((address, size)) = table.dying.remove(&generation) else {
            return;
        };
        let Some(range) = self.chunk_range(address, size) else {
            self.release_peer(address, size);
            return;
        };
        let is_alias = self.end_alias(&mut table, address);
        for chunk in range {
            let start = self.base + ((chunk as u64) << CHUNK_SHIFT);
            let live = table
                .live
                .range(..=start)
                .next_back()
                .is_some_and(|(&a, &s)| a + s > start);
            let later = table
                .dying
                .values()
                .any(|&(a, s)| a <= start && start < a + s);
            if live || later || self.chunks[chunk].load(Ordering::Relaxed) == NONE {
                continue;
            }
            self.chunks[chunk].store(NONE, Ordering::Release);
            if !is_alias {
                table.used -= CHUNK;
            }
            // On failure the memory stays mapped, but no checked access can reach it.
            let _ = protect(start, CHUNK, libc::PROT_NONE, libc::MAP_FIXED);
        }
    }

    /// Registers host memory.
    ///
    /// # Errors
    /// [`MemoryError::Range`] for an empty, unaligned or arena range, [`MemoryError::Registered`].
    pub fn register(&self, address: u64, size: u64) -> Result<(), MemoryError> {
        let bad = || MemoryError::Range(address, size);
        let end = address.checked_add(size).ok_or_else(bad)?;
        let arena = address < self.base + DEVICE_STRIDE && end > self.base;
        if size == 0
            || !address.is_multiple_of(4096)
            || !size.is_multiple_of(4096)
            || arena
            || end >> 47 != 0
            || address == 0
        {
            return Err(bad());
        }
        match self.add_host(address, end) {
            true => Ok(()),
            false => Err(MemoryError::Registered(address, size)),
        }
    }

    /// Adds a range that kernels reach outside the arena. Returns false if it overlaps another.
    fn add_host(&self, address: u64, end: u64) -> bool {
        let mut host = self.host.write();
        let place = host.partition_point(|&(start, _)| start < end);
        let before = host.get(..place).and_then(<[_]>::last);
        let is_free = before.is_none_or(|&(_, stop)| stop <= address);
        if is_free {
            host.insert(place, (address, end));
        }
        is_free
    }

    /// Ends a registration.
    ///
    /// # Errors
    /// [`MemoryError::NotMapped`].
    pub fn unregister(&self, address: u64) -> Result<(), MemoryError> {
        let mut host = self.host.write();
        let place = host
            .binary_search_by_key(&address, |&(start, _)| start)
            .map_err(|_| MemoryError::NotMapped(address))?;
        host.remove(place);
        Ok(())
    }

    /// Whether every byte of the range belongs to live mappings, or to registrations and
    /// memory of other devices. For ranges of host operations.
    #[must_use]
    pub fn reachable(&self, address: u64, size: u64) -> bool {
        self.is_mapped(address, size) || self.host_check(address, size)
    }

    /// Whether every byte of the range belongs to live mappings.
    #[must_use]
    pub fn is_mapped(&self, address: u64, size: u64) -> bool {
        let Some(end) = address
            .checked_add(size)
            .filter(|end| *end <= self.base + DEVICE_STRIDE)
        else {
            return false;
        };
        if address < self.base {
            return false;
        }
        let table = self.table.lock();
        let mut at = address;
        while at < end {
            match table.live.range(..=at).next_back() {
                Some((&a, &s)) if a + s > at => at = a + s,
                _ => return false,
            }
        }
        true
    }

    /// Whether a kernel may access these bytes. Aligned accesses do not cross a chunk
    /// boundary.
    #[inline]
    fn check(&self, address: u64, size: u64) -> bool {
        let offset = address.wrapping_sub(self.base);
        if offset < DEVICE_STRIDE {
            let last = offset + size - 1;
            let mapped = |o: u64| {
                self.chunks
                    .get((o >> CHUNK_SHIFT) as usize)
                    .is_some_and(|c| c.load(Ordering::Relaxed) != NONE)
            };
            return mapped(offset)
                && (offset >> CHUNK_SHIFT == last >> CHUNK_SHIFT || mapped(last));
        }
        self.host_check(address, size)
    }

    #[cold]
    fn host_check(&self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else {
            return false;
        };
        let host = self.host.read();
        let first = host.partition_point(|&(_, stop)| stop <= address);
        let mut at = address;
        for &(start, stop) in host.iter().skip(first) {
            if at < start {
                return false;
            }
            at = stop;
            if end <= at {
                return true;
            }
        }
        false
    }

    /// Loads one aligned element of 1, 2, 4 or 8 bytes. Returns `None` outside mapped
    /// memory.
    #[inline]
    #[must_use]
    pub fn load(&self, address: u64, width: u8) -> Option<u64> {
        if !address.is_multiple_of(u64::from(width)) || !self.check(address, u64::from(width)) {
            return None;
        }
        let at = address as usize;
        // SAFETY: checked above to be aligned and inside mapped memory, which is only
        // unmapped while no work uses it. Other threads may write it concurrently, so it is
        // read as an atomic.
        unsafe {
            Some(match width {
                1 => u64::from((*pointer::<AtomicU8>(at)).load(Ordering::Relaxed)),
                2 => u64::from((*pointer::<AtomicU16>(at)).load(Ordering::Relaxed)),
                4 => u64::from((*pointer::<AtomicU32>(at)).load(Ordering::Relaxed)),
                _ => (*pointer::<AtomicU64>(at)).load(Ordering::Relaxed),
            })
        }
    }

    /// Stores one aligned element. Returns false outside mapped memory.
    #[inline]
    #[must_use]
    pub fn store(&self, address: u64, width: u8, value: u64) -> bool {
        if !address.is_multiple_of(u64::from(width)) || !self.check(address, u64::from(width)) {
            return false;
        }
        let at = address as usize;
        // SAFETY: as for `load`.
        unsafe {
            match width {
                1 => (*pointer::<AtomicU8>(at)).store(value as u8, Ordering::Relaxed),
                2 => (*pointer::<AtomicU16>(at)).store(value as u16, Ordering::Relaxed),
                4 => (*pointer::<AtomicU32>(at)).store(value as u32, Ordering::Relaxed),
                _ => (*pointer::<AtomicU64>(at)).store(value, Ordering::Relaxed),
            }
        }
        self.wrote(address, u64::from(width));
        true
    }

    /// Loads 32 consecutive words. Returns false if they are not all mapped, or not
    /// aligned.
    #[inline]
    #[must_use]
    pub fn load_words(&self, address: u64, out: &mut [u32; 32]) -> bool {
        if !address.is_multiple_of(4) || !self.check(address, 128) {
            return false;
        }
        for (n, word) in out.iter_mut().enumerate() {
            // SAFETY: as for `load`; 128 bytes were checked (at most two chunks, both ends).
            *word = unsafe {
                (*pointer::<AtomicU32>(address as usize + 4 * n)).load(Ordering::Relaxed)
            };
        }
        true
    }

    /// Stores 32 consecutive words. Returns false if they are not all mapped, or not
    /// aligned.
    #[inline]
    #[must_use]
    pub fn store_words(&self, address: u64, words: &[u32; 32]) -> bool {
        if !address.is_multiple_of(4) || !self.check(address, 128) {
            return false;
        }
        for (n, &word) in words.iter().enumerate() {
            // SAFETY: as for `load_words`.
            unsafe {
                (*pointer::<AtomicU32>(address as usize + 4 * n)).store(word, Ordering::Relaxed)
            };
        }
        self.wrote(address, 128);
        true
    }

    /// Atomically replaces an aligned element of 2, 4 or 8 bytes by `f` of it. Returns the
    /// old value.
    #[inline]
    pub fn update(&self, address: u64, width: u8, mut f: impl FnMut(u64) -> u64) -> Option<u64> {
        if !address.is_multiple_of(u64::from(width)) || !self.check(address, u64::from(width)) {
            return None;
        }
        let at = address as usize;
        let (all, some) = (Ordering::SeqCst, Ordering::Relaxed);
        // SAFETY: as for `load`.
        let done = unsafe {
            match width {
                2 => (*pointer::<AtomicU16>(at))
                    .fetch_update(all, some, |v| Some(f(u64::from(v)) as u16))
                    .map(u64::from)
                    .unwrap_or_default(),
                4 => (*pointer::<AtomicU32>(at))
                    .fetch_update(all, some, |v| Some(f(u64::from(v)) as u32))
                    .map(u64::from)
                    .unwrap_or_default(),
                _ => (*pointer::<AtomicU64>(at))
                    .fetch_update(all, some, |v| Some(f(v)))
                    .unwrap_or_default(),
            }
        };
        self.wrote(address, u64::from(width));
        Some(done)
    }

    /// Whether an address is one of device memory.
    fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < DEVICE_STRIDE
    }

    fn backed(&self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else {
            return false;
        };
        if self.holds(address) && end <= self.base + DEVICE_STRIDE {
            let (first, last) = (address - self.base, end - self.base);
            let range = (first >> CHUNK_SHIFT) as usize..(last.div_ceil(CHUNK)) as usize;
            return self.chunks[range]
                .iter()
                .all(|c| c.load(Ordering::Relaxed) != NONE);
        }
        self.host_check(address, size)
    }

    /// Copies bytes; the ranges may overlap. Returns false if they are not completely
    /// mapped.
    #[must_use]
    pub fn copy(&self, destination: u64, source: u64, size: u64) -> bool {
        if size == 0 {
            return true;
        }
        if !self.backed(destination, size) || !self.backed(source, size) {
            return false;
        }
        let (to, from) = (destination as usize, source as usize);
        let comes_in = size >= STREAMED && self.holds(destination) && !self.holds(source);
        // SAFETY: both ranges were checked to be mapped; no Rust reference covers either.
        // Concurrent accesses of kernels are races of the guest on its own data. The arena
        // and host memory do not overlap.
        unsafe {
            match comes_in {
                true => copy_past_caches(pointer(from), pointer_mut(to), size as usize),
                false => _ = libc::memmove(pointer_mut(to), pointer(from), size as usize),
            }
        }
        self.wrote(destination, size);
        true
    }

    /// Copies memory to `out`. Returns false if the range is not completely mapped.
    #[must_use]
    pub fn read(&self, address: u64, out: &mut [u8]) -> bool {
        if out.is_empty() {
            return true;
        }
        if !self.backed(address, out.len() as u64) {
            return false;
        }
        // SAFETY: as for `copy`; `out` is a Rust slice outside the arena.
        unsafe {
            libc::memcpy(
                out.as_mut_ptr().cast(),
                pointer(address as usize),
                out.len(),
            );
        }
        true
    }

    /// Copies `bytes` to memory. Returns false if the range is not completely mapped.
    #[must_use]
    pub fn write(&self, address: u64, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        if !self.backed(address, bytes.len() as u64) {
            return false;
        }
        // SAFETY: as for `read`.
        unsafe {
            libc::memcpy(
                pointer_mut(address as usize),
                bytes.as_ptr().cast(),
                bytes.len(),
            );
        }
        self.wrote(address, bytes.len() as u64);
        true
    }

    /// Fills a range with elements of 1, 2 or 4 bytes. Returns false if it is not
    /// completely mapped, or not aligned.
    #[must_use]
    pub fn fill(&self, address: u64, value: u32, element: u8, count: u64) -> bool {
        let Some(size) = count.checked_mul(u64::from(element)) else {
            return false;
        };
        if size == 0 {
            return true;
        }
        if !address.is_multiple_of(u64::from(element)) || !self.backed(address, size) {
            return false;
        }
        let bytes = value.to_le_bytes();
        let even = bytes[..usize::from(element)].iter().all(|b| *b == bytes[0]);
        if even {
            // SAFETY: as for `copy`.
            unsafe {
                libc::memset(
                    pointer_mut(address as usize),
                    i32::from(bytes[0]),
                    size as usize,
                )
            };
            self.wrote(address, size);
            return true;
        }
        for n in 0..count {
            let at = (address + n * u64::from(element)) as usize;
            // SAFETY: as for `store`; the whole range was checked.
            unsafe {
                match element {
                    2 => (*pointer::<AtomicU16>(at)).store(value as u16, Ordering::Relaxed),
                    _ => (*pointer::<AtomicU32>(at)).store(value, Ordering::Relaxed),
                }
            }
        }
        self.wrote(address, size);
        true
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this object made the reservation, and no reference to it is left through
        // which it could be accessed.
        unsafe { libc::munmap(pointer_mut(self.base as usize), DEVICE_STRIDE as usize) };
    }
}
