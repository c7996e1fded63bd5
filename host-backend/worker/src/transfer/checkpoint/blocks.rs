//! The contents of memory in a file, as blocks that threads read and write.
//!
//! A block is a run of chunks that lie one after another in the file and in one slot of
//! staging memory. Each begins at a multiple of [`BLOCK`].

use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paragpu_protocol::layout::CHUNK;
use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, pwrite};

use crate::sys::mapping::Mapping;
use crate::transfer::regions::Chunk;
use crate::transfer::state::{BLOCK, StateError};

/// Maximum size of a block in bytes: the size of a slot. A GPU pauses for some 3 us between two
/// copies, a seventh of the time that 1 MiB takes. All slots still fit into the caches of a
/// processor with many cores, so that the GPU's copy reads them from there.
pub(super) const SLOT: u64 = 2 * CHUNK;
/// Bytes that have a hash of their own.
pub(super) const PIECE: u64 = 1 << 20;
/// Places of a file that are probed for whether it is cached.
const PROBES: u64 = 16;

/// Bytes that a chunk occupies in a file.
pub(super) fn padded(size: u64) -> u64 {
    size.next_multiple_of(BLOCK)
}

/// A chunk of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) chunk: Chunk,
    /// The BLAKE3 of its bytes, if it is known.
    pub(super) hash: Option<[u8; 32]>,
    /// The device hashes it, so that threads need not.
    pub(super) on_device: bool,
}

/// A slot of staging memory with the chunks in it.
#[derive(Debug)]
pub(super) struct Filled {
    /// Number of the slot.
    pub(super) slot: u64,
    /// Its chunks, one after another, each [`padded`].
    pub(super) parts: Vec<Part>,
}

impl Filled {
    /// The chunks with their offsets in the staging memory.
    pub(super) fn each(&self) -> impl Iterator<Item = (u64, &Part)> {
        let first = self.slot * SLOT;
        self.parts.iter().scan(first, |next, part| {
            let at = *next;
            *next += padded(part.chunk.size());
            Some((at, part))
        })
    }

    /// The runs of chunks that are neighbours in an object, too, as one chunk each, with their
    /// offsets in the staging memory.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u64, Chunk)> {
        let mut chunks = self.each().peekable();
        std::iter::from_fn(move || {
            let (first, part) = chunks.next()?;
            let mut run = part.chunk;
            while let Some((at, next)) = chunks.peek()
                && first + run.size() == *at
                && let Some(longer) = run.joined(&next.chunk)
            {
                run = longer;
                chunks.next();
            }
            Some((first, run))
        })
    }

    /// Bytes of the chunks in a file.
    pub(super) fn length(&self) -> u64 {
        self.parts
            .iter()
            .map(|part| padded(part.chunk.size()))
            .sum()
    }
}

/// Where time went, added over all threads.
#[derive(Debug, Default)]
pub(super) struct Times {
    file: AtomicU64,
    hash: AtomicU64,
}

impl Times {
    fn add(to: &AtomicU64, began: Instant) {
        let nanoseconds = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        to.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Time in reads or writes, and in hashing.
    pub(super) fn get(&self) -> (Duration, Duration) {
        let of = |time: &AtomicU64| Duration::from_nanos(time.load(Ordering::Relaxed));
        (of(&self.file), of(&self.hash))
    }
}

/// The file, as its threads use it.
#[derive(Debug)]
pub(super) struct BlockFile {
    file: File,
    /// Transfers bypass the page cache.
    direct: AtomicBool,
    staging: Arc<Mapping>,
    /// Held while a block is written to the page cache, for which a file has a lock.
    writes: Mutex<()>,
    /// The offset of the next block to write.
    end: AtomicU64,
    pub(super) times: Times,
}

impl BlockFile {
    /// For blocks from offset `from` on, a multiple of [`BLOCK`].
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn new(file: &File, from: u64, staging: Arc<Mapping>) -> Result<Self, StateError> {
        Ok(Self {
            file: file.try_clone()?,
            direct: AtomicBool::new(false),
            staging,
            writes: Mutex::new(()),
            end: AtomicU64::new(from),
            times: Times::default(),
        })
    }

    /// Bypasses the page cache if the file system can, or no longer. Not for files in memory.
    pub(super) fn set_direct(&self, on: bool) {
        let changed = fcntl_getfl(&self.file).and_then(|flags| {
            let mut flags = flags;
            flags.set(OFlags::DIRECT, on);
            fcntl_setfl(&self.file, flags)
        });
        self.direct.store(on && changed.is_ok(), Ordering::Relaxed);
    }

    /// Whether most of `[from, to)` would be read from the disk.
    pub(super) fn is_cold(&self, from: u64, to: u64) -> bool {
        let mut page = [0; 1];
        let step = (to.saturating_sub(from) / PROBES).max(1);
        let cold = (0..PROBES).filter(|probe| {
            let at = from + probe * step;
            let bytes = &mut [std::io::IoSliceMut::new(&mut page)];
            let read = preadv2(self.file.as_fd(), bytes, at, ReadWriteFlags::NOWAIT);
            read == Err(Errno::AGAIN)
        });
        cold.count() as u64 > PROBES / 8
    }

    /// Where the next block is written.
    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }

    /// Reads a block at `offset` into its slot. Checks the hashes that are known, and that
    /// the bytes between chunks are zero.
    pub(super) fn read(&self, block: Filled, offset: u64) -> Result<Filled, StateError> {
        let began = Instant::now();
        let length = block.length();
        let mut read = Err(StateError::Order("a block too large"));
        let fits = length <= SLOT
            && self
                .staging
                .fill(block.slot * SLOT, length as usize, |bytes| {
                    read = self.read_exact(bytes, offset);
                });
        read?;
        if !fits {
            return Err(StateError::Order("a block too large"));
        }
        Times::add(&self.times.file, began);
        let began = Instant::now();
        for (at, part) in block.each() {
            let size = part.chunk.size();
            let padding = (padded(size) - size) as usize;
            if !is_zero(self.staging.bytes(at + size, padding)) {
                return Err(StateError::Contents);
            }
            if !part.on_device
                && let Some(hash) = part.hash
                && hash != *blake3::hash(self.staging.bytes(at, size as usize)).as_bytes()
            {
                return Err(StateError::Contents);
            }
        }
        Times::add(&self.times.hash, began);
        Ok(block)
    }

    fn read_exact(&self, mut bytes: &mut [u8], mut offset: u64) -> Result<(), StateError> {
        while !bytes.is_empty() {
            match pread(&self.file, &mut *bytes, offset) {
                Ok(0) => return Err(StateError::Incomplete),
                Ok(count) => {
                    bytes = bytes.split_at_mut(count).1;
                    offset += count as u64;
                }
                Err(errno) => self.try_again(errno)?,
            }
        }
        Ok(())
    }

    /// Writes the chunks of a slot, except those of zeros that need not be written, and
    /// returns them with their hashes and offsets.
    pub(super) fn write(&self, block: &Filled) -> Result<Vec<(u64, Part)>, StateError> {
        let began = Instant::now();
        let mut kept = Vec::new();
        for (at, part) in block.each() {
            let size = part.chunk.size();
            let bytes = self.staging.bytes(at, size as usize);
            let hash = match part.hash {
                Some(hash) => hash,
                None if !part.chunk.is_variable() && is_zero(bytes) => continue,
                None => *blake3::hash(bytes).as_bytes(),
            };
            // The slot may hold an earlier chunk's bytes.
            let padding = (padded(size) - size) as usize;
            let _ = self.staging.fill(at + size, padding, |bytes| bytes.fill(0));
            let hash = Some(hash);
            kept.push((at, Part { hash, ..*part }));
        }
        Times::add(&self.times.hash, began);
        let direct = self.direct.load(Ordering::Relaxed);
        let _alone = (!direct).then(|| self.writes.lock());
        let began = Instant::now();
        let length = kept.iter().map(|(_, part)| padded(part.chunk.size())).sum();
        let mut offset = self.end.fetch_add(length, Ordering::Relaxed);
        let mut written = Vec::new();
        // Neighbours in the slot are written together.
        for run in kept.chunk_by(|(at, part), (next, _)| at + padded(part.chunk.size()) == *next) {
            let (Some((first, _)), Some((last, part))) = (run.first(), run.last()) else {
                continue;
            };
            let length = last + padded(part.chunk.size()) - first;
            self.write_all(self.staging.bytes(*first, length as usize), offset)?;
            for (_, part) in run {
                written.push((offset, *part));
                offset += padded(part.chunk.size());
            }
        }
        Times::add(&self.times.file, began);
        Ok(written)
    }

    fn write_all(&self, mut bytes: &[u8], mut offset: u64) -> Result<(), StateError> {
        while !bytes.is_empty() {
            match pwrite(&self.file, bytes, offset) {
                Ok(count) => {
                    bytes = bytes.split_at(count).1;
                    offset += count as u64;
                }
                Err(errno) => self.try_again(errno)?,
            }
        }
        Ok(())
    }

    /// After a failed transfer: some file systems accept direct I/O only when a transfer is
    /// attempted.
    fn try_again(&self, errno: Errno) -> Result<(), StateError> {
        match errno {
            Errno::INTR => Ok(()),
            Errno::INVAL if self.direct.load(Ordering::Relaxed) => {
                self.set_direct(false);
                Ok(())
            }
            _ => Err(StateError::Io(errno.into())),
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
