//! Copies the contents of a session's memory to and from a file, as fast as the slowest of
//! file, processors and GPU.
//!
//! This thread alone uses the device: it submits copies between slots of staging memory and
//! the session's memory. Other threads transfer the slots' bytes from or to the file. A GPU
//! hashes its own memory meanwhile, if it can; otherwise those threads hash.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_abi::{CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING};
use paragpu_device::{EventId, StreamId};

use super::blocks::{BlockFile, Filled, PIECE, Part, SLOT, padded};
use super::threads::{self, Threads};
use crate::session::Session;
use crate::session::gpu::Gpu;
use crate::sys::mapping::Mapping;
use crate::transfer::mover::{Mover, read_chunk, write_chunk};
use crate::transfer::regions::Chunk;
use crate::transfer::staging_ring::{StagingRing, drain};
use crate::transfer::state::{StateError, device};

/// Size of a hash in bytes.
const HASH: u64 = 32;
/// Bytes that the device hashes at once, while the next ones arrive: a few milliseconds' work.
const HASHED_AT_ONCE: u64 = 1 << 30;
/// Streams that hash. Ranges that are not contiguous are hashed one after another, each by a
/// small part of a GPU.
const STREAMS: usize = 4;
/// Interval at which copies in flight are polled while threads are awaited.
const POLL: Duration = Duration::from_micros(50);
/// A wait that copies in flight do not limit.
const LONG: Duration = Duration::from_secs(1);

/// A chunk and the BLAKE3 of its bytes.
pub(super) type Sealed = (Chunk, [u8; 32]);

/// What was written.
#[derive(Debug)]
pub(super) struct Written {
    /// The chunks, in the order of their contents.
    pub(super) chunks: Vec<Sealed>,
    /// The end of the contents.
    pub(super) end: u64,
}

/// Number of slots for that many bytes, and of threads.
fn slots(bytes: u64) -> (u64, usize) {
    let threads = threads::count();
    let slots = bytes.div_ceil(SLOT).clamp(1, 2 * threads as u64);
    (slots, threads.min(slots as usize))
}

/// Touches staging memory with several threads: registering it would do so with one.
fn touch(memory: &Mapping) {
    let count = threads::count() as u64;
    let each = memory.len().div_ceil(count).max(SLOT);
    std::thread::scope(|scope| {
        for from in (0..memory.len()).step_by(each as usize) {
            let length = each.min(memory.len() - from) as usize;
            scope.spawn(move || memory.fill(from, length, |bytes| bytes.fill(0)));
        }
    });
}

/// Who hashes device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hasher {
    /// The device, while other memory is copied.
    Device,
    /// The threads that read and write.
    Threads,
}

impl Hasher {
    /// The faster one. `scratch` is registered memory.
    pub(super) fn best(gpu: &mut Gpu, scratch: u64) -> Self {
        let can = gpu.hash(&[], scratch, StreamId::LEGACY);
        match can.is_ok() && !gpu.computes_on_host() {
            true => Self::Device,
            false => Self::Threads,
        }
    }

    fn hashes_on_device(self, chunk: &Chunk) -> bool {
        self == Self::Device && chunk.address().is_some()
    }
}

/// Slots in use by the device.
#[derive(Debug)]
struct Copies {
    ring: StagingRing,
    free: Vec<u64>,
    in_flight: VecDeque<(EventId, Filled)>,
}

impl Copies {
    fn new(gpu: &mut Gpu, slots: u64, tail: u64) -> Result<Self, StateError> {
        let bytes = slots * SLOT + padded(tail);
        Ok(Self {
            ring: StagingRing::with(gpu, slots, bytes, touch)?,
            free: (0..slots).rev().collect(),
            in_flight: VecDeque::new(),
        })
    }

    /// Submits the copies of a slot's chunks.
    fn submit(
        &mut self,
        session: &mut Session,
        block: Filled,
        copy: fn(&mut Session, &StagingRing, &Chunk, u64) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        for (at, run) in block.runs() {
            copy(session, &self.ring, &run, at)?;
        }
        let Some(mark) = self.ring.mark(block.slot) else {
            return Err(StateError::Order("a missing slot"));
        };
        device(session.gpu.event_record(mark, self.ring.stream()))?;
        self.in_flight.push_back((mark, block));
        Ok(())
    }

    /// The oldest slot whose copies are complete.
    fn complete(&mut self, gpu: &mut Gpu) -> Result<Option<Filled>, StateError> {
        match self.in_flight.front() {
            Some((mark, _)) if device(gpu.event_query(*mark))? => {
                Ok(self.in_flight.pop_front().map(|(_, block)| block))
            }
            _ => Ok(None),
        }
    }

    /// How long to wait for threads.
    fn patience(&self) -> Duration {
        match self.in_flight.is_empty() {
            true => LONG,
            false => POLL,
        }
    }
}

/// Hashes of memory that the device computes behind the copies.
#[derive(Debug)]
struct DeviceHashes {
    streams: Vec<StreamId>,
    copied: EventId,
    /// Offset of the first hash in the staging memory.
    first: u64,
    /// Of the ranges that were submitted.
    expected: Vec<[u8; 32]>,
    /// Ranges that were not: address, size and expected hash.
    waiting: Vec<(u64, u64, [u8; 32])>,
    bytes: u64,
}

impl DeviceHashes {
    fn new(gpu: &mut Gpu, first: u64) -> Result<Self, StateError> {
        let streams = (0..STREAMS).map(|_| gpu.stream_create(CU_STREAM_NON_BLOCKING, 0));
        Ok(Self {
            streams: device(streams.collect())?,
            copied: device(gpu.event_create(CU_EVENT_DISABLE_TIMING))?,
            first,
            expected: Vec::new(),
            waiting: Vec::new(),
            bytes: 0,
        })
    }

    /// Hashes a chunk whose copy was submitted.
    fn add(&mut self, gpu: &mut Gpu, ring: &StagingRing, part: &Part) -> Result<(), StateError> {
        let (Some(address), Some(hash)) = (part.chunk.address(), part.hash) else {
            return Err(StateError::Order("a chunk without an address"));
        };
        self.waiting.push((address, part.chunk.size(), hash));
        self.bytes += part.chunk.size();
        match self.bytes >= HASHED_AT_ONCE {
            true => self.submit(gpu, ring),
            false => Ok(()),
        }
    }

    fn submit(&mut self, gpu: &mut Gpu, ring: &StagingRing) -> Result<(), StateError> {
        self.streams.rotate_left(1);
        let Some(&stream) = self.streams.first() else {
            return Err(StateError::Order("a missing stream"));
        };
        device(gpu.event_record(self.copied, ring.stream()))?;
        device(gpu.stream_wait_event(stream, self.copied))?;
        let out = ring.memory().address() + self.first + self.expected.len() as u64 * HASH;
        // Threads read them out of order. One launch hashes a whole run.
        self.waiting.sort_unstable();
        let ranges = self
            .waiting
            .iter()
            .map(|&(address, size, _)| (address, size));
        device(gpu.hash(&ranges.collect::<Vec<_>>(), out, stream))?;
        let hashes = self.waiting.drain(..).map(|(_, _, hash)| hash);
        self.expected.extend(hashes);
        self.bytes = 0;
        Ok(())
    }

    /// Waits for all hashes and compares them.
    fn check(&mut self, gpu: &mut Gpu, ring: &StagingRing) -> Result<(), StateError> {
        if !self.waiting.is_empty() {
            self.submit(gpu, ring)?;
        }
        for stream in &self.streams {
            device(drain(gpu, *stream))?;
        }
        let places = (self.first..).step_by(HASH as usize);
        let mut all = self.expected.iter().zip(places);
        match all.all(|(hash, at)| ring.memory().bytes(at, HASH as usize) == hash) {
            true => Ok(()),
            false => Err(StateError::Contents),
        }
    }

    /// Frees everything, as far as the device allows.
    fn release(self, gpu: &mut Gpu) {
        for stream in self.streams {
            if drain(gpu, stream).is_ok() {
                let _ = gpu.stream_destroy(stream);
            }
        }
        let _ = gpu.event_destroy(self.copied);
    }
}

/// The chunks that fit into the next slot.
fn next_block(parts: &mut std::iter::Peekable<impl Iterator<Item = Part>>) -> Vec<Part> {
    let (mut block, mut bytes) = (Vec::new(), 0);
    while let Some(part) = parts.next_if(|part| bytes + padded(part.chunk.size()) <= SLOT) {
        bytes += padded(part.chunk.size());
        block.push(part);
    }
    block
}

/// Checks that contents occupy exactly `[from, to)`, and that no byte of memory is in them
/// twice: the order of copies is not defined.
fn check(chunks: &[Sealed], from: u64, to: u64) -> Result<(), StateError> {
    if chunks.iter().any(|(chunk, _)| chunk.size() == 0) {
        return Err(StateError::Order("a chunk of no size"));
    }
    let sizes = chunks.iter().map(|(chunk, _)| padded(chunk.size()));
    if sizes.fold(from, u64::saturating_add) != to {
        return Err(StateError::Order("its contents have another size"));
    }
    match Chunk::overlap(chunks.iter().map(|(chunk, _)| *chunk)) {
        true => Err(StateError::Order("its contents overlap")),
        false => Ok(()),
    }
}

type Reader = Threads<(Filled, u64), Result<Filled, StateError>>;
type Writer = Threads<Filled, (u64, Result<Vec<(u64, Part)>, StateError>)>;

impl Session {
    /// Writes the contents of all memory to a file from offset `from` on, a multiple of
    /// [`BLOCK`].
    pub(super) fn write_contents(
        &mut self,
        file: &File,
        from: u64,
        hasher: Option<Hasher>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Written, StateError> {
        let began = Instant::now();
        let parts = self.parts_to_write(hasher)?;
        let prepared = began.elapsed();
        let all: u64 = parts.iter().map(|part| part.chunk.size()).sum();
        let (slots, count) = slots(all);
        let mut copies = Copies::new(&mut self.gpu, slots, 0)?;
        let to = BlockFile::new(file, from, copies.ring.shared_memory()).map(Arc::new);
        let result = to.and_then(|to| {
            to.set_direct(true);
            let file = Arc::clone(&to);
            let write = move |block: Filled| (block.slot, file.write(&block));
            let mut written = Vec::new();
            let result =
                Threads::new(count, write)
                    .map_err(StateError::Io)
                    .and_then(|mut threads| {
                        let mut done = 0;
                        self.write_blocks(parts, &mut copies, &mut threads, |block| {
                            let sizes = block.iter().map(|(_, part)| part.chunk.size());
                            done += sizes.sum::<u64>();
                            progress(done, all);
                            written.extend(block);
                        })
                    });
            to.set_direct(false);
            result?;
            let (wrote, hashed) = to.times.get();
            tracing::debug!(
                bytes = all, threads = count, ?prepared, ?wrote, ?hashed, total = ?began.elapsed(),
                "the contents of memory are written"
            );
            written.sort_unstable_by_key(|(offset, _)| *offset);
            let chunks = written.into_iter();
            Ok(Written {
                chunks: chunks
                    .filter_map(|(_, part)| Some((part.chunk, part.hash?)))
                    .collect(),
                end: to.end(),
            })
        });
        copies.ring.release(&mut self.gpu);
        result
    }

    /// All chunks, without those that the device finds to be zero.
    fn parts_to_write(&mut self, hasher: Option<Hasher>) -> Result<Vec<Part>, StateError> {
        let chunks = self.chunks()?;
        let chunks: Vec<Chunk> = chunks.iter().flat_map(|chunk| chunk.cut(PIECE)).collect();
        let mut mover = Mover::new(self)?;
        let hasher = hasher.unwrap_or_else(|| Hasher::best(&mut self.gpu, mover.staging()));
        let there = chunks.iter().filter(|chunk| hasher.hashes_on_device(chunk));
        let there: Vec<Chunk> = there.copied().collect();
        let hashes = mover.hash_all(self, &there);
        mover.release(self);
        let mut hashes = hashes?.into_iter();
        let mut zeros: BTreeMap<u64, [u8; 32]> = BTreeMap::new();
        let mut parts = Vec::new();
        for chunk in chunks {
            let on_device = hasher.hashes_on_device(&chunk);
            let hash = if on_device { hashes.next() } else { None };
            if let Some(hash) = hash
                && !chunk.is_variable()
            {
                let zero = zeros.entry(chunk.size()).or_insert_with(|| {
                    let zero = vec![0; usize::try_from(chunk.size()).unwrap_or(0)];
                    *blake3::hash(&zero).as_bytes()
                });
                if hash == *zero {
                    continue;
                }
            }
            parts.push(Part {
                chunk,
                hash,
                on_device,
            });
        }
        Ok(parts)
    }

    fn write_blocks(
        &mut self,
        parts: Vec<Part>,
        copies: &mut Copies,
        threads: &mut Writer,
        mut show: impl FnMut(Vec<(u64, Part)>),
    ) -> Result<(), StateError> {
        let mut parts = parts.into_iter().peekable();
        loop {
            while parts.peek().is_some()
                && let Some(slot) = copies.free.pop()
            {
                let parts = next_block(&mut parts);
                copies.submit(self, Filled { slot, parts }, read_chunk)?;
            }
            while let Some(block) = copies.complete(&mut self.gpu)? {
                threads.give(block.slot, block)?;
            }
            if threads.is_idle() {
                if copies.in_flight.is_empty() {
                    return Ok(());
                }
                device(copies.ring.doze(&mut self.gpu))?;
            } else if let Some((slot, written)) = threads.take(copies.patience())? {
                copies.free.push(slot);
                show(written?);
            }
        }
    }

    /// Reads the contents of memory from `[from, to)` of a file, and checks them.
    pub(super) fn read_contents(
        &mut self,
        file: &File,
        chunks: &[Sealed],
        (from, to): (u64, u64),
        hasher: Option<Hasher>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<(), StateError> {
        check(chunks, from, to)?;
        let began = Instant::now();
        let all: u64 = chunks.iter().map(|(chunk, _)| chunk.size()).sum();
        let (slots, count) = slots(all);
        let mut copies = Copies::new(&mut self.gpu, slots, HASH * chunks.len() as u64)?;
        let arena = began.elapsed();
        let out = copies.ring.memory().address() + slots * SLOT;
        let hasher = hasher.unwrap_or_else(|| Hasher::best(&mut self.gpu, out));
        let source = BlockFile::new(file, from, copies.ring.shared_memory()).map(Arc::new);
        let hashes = DeviceHashes::new(&mut self.gpu, slots * SLOT);
        let result = source.and_then(|source| {
            let mut hashes = hashes?;
            source.set_direct(source.is_cold(from, to));
            let read = Arc::clone(&source);
            let read = move |(block, offset)| read.read(block, offset);
            let result =
                Threads::new(count, read)
                    .map_err(StateError::Io)
                    .and_then(|mut threads| {
                        let mut done = 0;
                        let parts = chunks.iter().map(|&(chunk, hash)| Part {
                            chunk,
                            hash: Some(hash),
                            on_device: hasher.hashes_on_device(&chunk),
                        });
                        let ends = (parts, from);
                        self.read_blocks(ends, &mut copies, &mut threads, &mut hashes, |bytes| {
                            done += bytes;
                            progress(done, all);
                        })
                    });
            let copied = began.elapsed();
            let result = result.and_then(|()| hashes.check(&mut self.gpu, &copies.ring));
            hashes.release(&mut self.gpu);
            source.set_direct(false);
            let (read, hashed) = source.times.get();
            tracing::debug!(
                bytes = all, threads = count, ?hasher, ?arena, ?copied, ?read, ?hashed,
                total = ?began.elapsed(), "the contents of memory are read"
            );
            result
        });
        copies.ring.release(&mut self.gpu);
        result
    }

    fn read_blocks(
        &mut self,
        (parts, mut offset): (impl Iterator<Item = Part>, u64),
        copies: &mut Copies,
        threads: &mut Reader,
        hashes: &mut DeviceHashes,
        mut show: impl FnMut(u64),
    ) -> Result<(), StateError> {
        let mut parts = parts.peekable();
        loop {
            while parts.peek().is_some()
                && let Some(slot) = copies.free.pop()
            {
                let parts = next_block(&mut parts);
                let block = Filled { slot, parts };
                let length = block.length();
                threads.give(slot, (block, offset))?;
                offset += length;
            }
            while let Some(block) = copies.complete(&mut self.gpu)? {
                copies.free.push(block.slot);
                show(block.parts.iter().map(|part| part.chunk.size()).sum());
            }
            if threads.is_idle() && !copies.in_flight.is_empty() {
                device(copies.ring.doze(&mut self.gpu))?;
            } else if threads.is_idle() {
                // Their slots may just have become free for what is left.
                if parts.peek().is_none() {
                    return Ok(());
                }
            } else if let Some(block) = threads.take(copies.patience())? {
                let block = block?;
                let on_device = block.parts.iter().filter(|part| part.on_device);
                let on_device: Vec<Part> = on_device.copied().collect();
                copies.submit(self, block, write_chunk)?;
                for part in &on_device {
                    hashes.add(&mut self.gpu, &copies.ring, part)?;
                }
            }
        }
    }
}
