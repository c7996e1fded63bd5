//! Copies chunks between the device and this process's memory.
//!
//! A staging slot holds as many chunks as fit, so a thousand small regions cost as much
//! as one large region.

use std::collections::VecDeque;

use paragpu_device::{CopyEnd, EventId, StreamId};
use paragpu_protocol::layout::CHUNK;

use super::regions::{Chunk, MemoryKind};
use super::shared::Peers;
use super::staging_ring::{SLOTS, StagingRing};
use super::state::{StateError, device};
use crate::session::Session;
use crate::sys::mapping::Mapping;

/// Size of a hash.
const HASH: u64 = 32;
/// Chunks in a slot, with their offsets.
#[derive(Debug)]
struct Load {
    slot: u64,
    chunks: Vec<(Chunk, u64)>,
    filled: u64,
}

/// A slot that the device is filling or reading.
#[derive(Debug)]
struct InFlight {
    load: Load,
    mark: EventId,
}

/// A slot of chunks that were read.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    load: Load,
    staging: &'a Mapping,
}

impl Batch<'_> {
    /// Each chunk with its bytes.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&Chunk, &[u8])> {
        let base = self.load.slot * CHUNK;
        self.load.chunks.iter().map(move |(chunk, offset)| {
            let bytes = self.staging.bytes(base + offset, chunk.size as usize);
            (chunk, bytes)
        })
    }
}

/// Copies through staging memory with a separate stream, several slots in flight.
#[derive(Debug)]
pub(crate) struct Mover {
    ring: StagingRing,
    under_way: VecDeque<InFlight>,
    /// The slot that collects writes.
    open: Option<Load>,
    next: u64,
}

impl Mover {
    /// Allocates staging memory and a stream, or takes those that the session kept.
    pub(crate) fn new(session: &mut Session) -> Result<Self, StateError> {
        let ring = match session.transfer.take_ring() {
            Some(kept) => {
                // A failed move may have left copies in flight.
                device(kept.drain(&mut session.gpu))?;
                kept
            }
            None => StagingRing::new(&mut session.gpu)?,
        };
        Ok(Self {
            ring,
            under_way: VecDeque::new(),
            open: None,
            next: 0,
        })
    }

    /// The address of its staging memory.
    pub(crate) fn staging(&self) -> u64 {
        self.ring.memory().address()
    }

    /// Keeps everything for the session's next move. Freeing it would wait for running
    /// work, and a kernel may run forever.
    pub(crate) fn keep(self, session: &mut Session) {
        session.transfer.keep_ring(self.ring);
    }

    /// Frees everything. No work of the program may be running.
    pub(crate) fn release(self, session: &mut Session) {
        self.ring.release(&mut session.gpu);
    }

    /// Whether a slot is free to read into.
    pub(crate) fn has_room(&self) -> bool {
        (self.under_way.len() as u64) < SLOTS
    }

    /// Whether no copy is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.open.is_none()
    }

    fn slot(&mut self) -> Load {
        let slot = self.next % SLOTS;
        self.next += 1;
        Load {
            slot,
            chunks: Vec::new(),
            filled: 0,
        }
    }

    /// Begins to read as many of `chunks` as fit into a free slot. Chunks that cannot be
    /// read are left out if `lost` allows it.
    pub(crate) fn begin_read(
        &mut self,
        session: &mut Session,
        mut next: impl FnMut(&mut Session, u64) -> Result<Option<Chunk>, StateError>,
        mut lost: impl FnMut(StateError) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut load = self.slot();
        while let Some(chunk) = next(session, CHUNK - load.filled)? {
            let offset = load.slot * CHUNK + load.filled;
            match read_chunk(session, &self.ring, &chunk, offset) {
                Ok(()) => {
                    load.chunks.push((chunk, load.filled));
                    load.filled += chunk.size;
                }
                Err(error) => lost(error)?,
            }
        }
        if load.chunks.is_empty() {
            self.next -= 1;
            return Ok(());
        }
        self.mark(session, load)
    }

    /// Marks the end of the device's use of a slot.
    fn mark(&mut self, session: &mut Session, load: Load) -> Result<(), StateError> {
        let Some(mark) = self.ring.mark(load.slot) else {
            return Err(StateError::Order("a missing slot"));
        };
        device(session.gpu.event_record(mark, self.ring.stream()))?;
        self.under_way.push_back(InFlight { load, mark });
        Ok(())
    }

    /// The next chunks that were read, if complete, or after a `wait`.
    pub(crate) fn finish_read(
        &mut self,
        session: &mut Session,
        wait: bool,
    ) -> Result<Option<Batch<'_>>, StateError> {
        let Some(first) = self.under_way.front() else {
            return Ok(None);
        };
        while !device(session.gpu.event_query(first.mark))? {
            if !wait {
                return Ok(None);
            }
            device(self.ring.doze(&mut session.gpu))?;
        }
        let staging = self.ring.memory();
        Ok(self
            .under_way
            .pop_front()
            .map(|InFlight { load, .. }| Batch { load, staging }))
    }

    /// Reads all `chunks` and passes them on, in order.
    pub(crate) fn read_batches(
        &mut self,
        session: &mut Session,
        chunks: &[Chunk],
        mut show: impl FnMut(&Batch<'_>) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut left = chunks.iter().peekable();
        loop {
            while self.has_room() && left.peek().is_some() {
                let fitting =
                    |_: &mut Session, room| Ok(left.next_if(|chunk| chunk.size <= room).copied());
                self.begin_read(session, fitting, Err)?;
            }
            let Some(batch) = self.finish_read(session, true)? else {
                return Ok(());
            };
            show(&batch)?;
        }
    }

    /// [`read_batches`](Self::read_batches), one chunk at a time.
    pub(crate) fn read_all(
        &mut self,
        session: &mut Session,
        chunks: &[Chunk],
        mut show: impl FnMut(&Chunk, &[u8]) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        self.read_batches(session, chunks, |batch| {
            batch
                .each()
                .try_for_each(|(chunk, bytes)| show(chunk, bytes))
        })
    }

    /// The BLAKE3 hash of each of `chunks`. The device computes it if it can and
    /// the chunks have addresses; otherwise the chunks are read.
    pub(crate) fn hash_all(
        &mut self,
        session: &mut Session,
        chunks: &[Chunk],
    ) -> Result<Vec<[u8; 32]>, StateError> {
        let mut hashes = vec![[0; 32]; chunks.len()];
        let mut copied = Vec::new();
        let (there, elsewhere): (Vec<_>, Vec<_>) = chunks
            .iter()
            .enumerate()
            .partition(|(_, chunk)| chunk.address().is_some());
        // A slot has room for this many hashes.
        for some in there.chunks((CHUNK / HASH) as usize) {
            if !self.hash_there(session, some, &mut hashes)? {
                copied.extend(some.iter().copied());
            }
        }
        copied.extend(elsewhere);
        let list: Vec<Chunk> = copied.iter().map(|(_, chunk)| **chunk).collect();
        let mut places = copied.iter().map(|(place, _)| *place);
        self.read_all(session, &list, |_, bytes| {
            if let Some(hash) = places.next().and_then(|place| hashes.get_mut(place)) {
                *hash = *blake3::Hasher::new()
                    .update_rayon(bytes)
                    .finalize()
                    .as_bytes();
            }
            Ok(())
        })?;
        Ok(hashes)
    }

    /// Hashes on the device. Returns false if it cannot.
    fn hash_there(
        &mut self,
        session: &mut Session,
        chunks: &[(usize, &Chunk)],
        hashes: &mut [[u8; 32]],
    ) -> Result<bool, StateError> {
        self.settle(session)?;
        let ranges: Vec<(u64, u64)> = chunks
            .iter()
            .filter_map(|(_, chunk)| Some((chunk.address()?, chunk.size)))
            .collect();
        let out = self.ring.memory().address();
        match session.gpu.hash(&ranges, out, self.ring.stream()) {
            Ok(()) => {}
            Err(error) if error.status == paragpu_protocol::status::Status::NOT_SUPPORTED => {
                return Ok(false);
            }
            Err(error) => return Err(StateError::Impossible(error.to_string())),
        }
        device(self.ring.drain(&mut session.gpu))?;
        for ((place, _), at) in chunks.iter().zip((0..).step_by(HASH as usize)) {
            if let Some(hash) = hashes.get_mut(*place) {
                hash.copy_from_slice(self.ring.memory().bytes(at, HASH as usize));
            }
        }
        Ok(true)
    }

    /// Begins to write a chunk. Waits for a slot.
    pub(crate) fn write(
        &mut self,
        session: &mut Session,
        chunk: Chunk,
        bytes: &[u8],
    ) -> Result<(), StateError> {
        if chunk.size > CHUNK || chunk.size != bytes.len() as u64 {
            return Err(StateError::Order("a chunk too large"));
        }
        if chunk.kind == MemoryKind::Agreed {
            return session.host.set_agreed(chunk.name, chunk.offset, bytes);
        }
        if let Some(load) = self.open.take_if(|load| load.filled + chunk.size > CHUNK) {
            self.mark(session, load)?;
        }
        let mut load = match self.open.take() {
            Some(load) => load,
            None => {
                if !self.has_room() {
                    self.finish_read(session, true)?;
                }
                self.slot()
            }
        };
        let offset = load.slot * CHUNK + load.filled;
        if !self.ring.memory().copy_in(offset, bytes) {
            return Err(StateError::Order("a chunk too large"));
        }
        load.filled += chunk.size;
        // From here on the slot is in flight, even if the device reports an error.
        self.open = Some(load);
        write_chunk(session, &self.ring, &chunk, offset)
    }

    /// Copies chunks from the memory of the source's device.
    pub(super) fn fetch(
        &mut self,
        session: &mut Session,
        chunks: &[Chunk],
        peers: &Peers,
    ) -> Result<(), StateError> {
        for chunk in chunks {
            let (peer, offset) = peers.of(chunk)?;
            let (to, size) = (chunk.name.wrapping_add(chunk.offset), chunk.size);
            device(
                session
                    .gpu
                    .peer_copy(to, peer, offset, size, self.ring.stream()),
            )?;
        }
        device(self.ring.drain(&mut session.gpu))
    }

    /// Waits until all copies are complete.
    pub(crate) fn settle(&mut self, session: &mut Session) -> Result<(), StateError> {
        if let Some(load) = self.open.take() {
            self.mark(session, load)?;
        }
        while self.finish_read(session, true)?.is_some() {}
        Ok(())
    }
}

/// Begins to read a chunk to `offset` of the staging memory.
pub(super) fn read_chunk(
    session: &mut Session,
    ring: &StagingRing,
    chunk: &Chunk,
    offset: u64,
) -> Result<(), StateError> {
    // The device does not copy this.
    if chunk.kind == MemoryKind::Agreed {
        let bytes = session.host.agreed(chunk.name, chunk.offset, chunk.size)?;
        if !ring.memory().copy_in(offset, bytes) {
            return Err(StateError::Order("a chunk too large"));
        }
        return Ok(());
    }
    let (source, extent) = session.end(chunk)?;
    let to = linear(ring.memory().address() + offset, extent);
    copy(session, to, source, extent, ring.stream())
}

/// Begins to write a chunk from `offset` of the staging memory.
pub(super) fn write_chunk(
    session: &mut Session,
    ring: &StagingRing,
    chunk: &Chunk,
    offset: u64,
) -> Result<(), StateError> {
    if chunk.kind == MemoryKind::Agreed {
        let size = usize::try_from(chunk.size).unwrap_or(usize::MAX);
        let bytes = ring.memory().bytes(offset, size);
        return session.host.set_agreed(chunk.name, chunk.offset, bytes);
    }
    let (destination, extent) = session.end(chunk)?;
    let from = linear(ring.memory().address() + offset, extent);
    copy(session, destination, from, extent, ring.stream())
}

fn copy(
    session: &mut Session,
    to: CopyEnd,
    from: CopyEnd,
    extent: [u64; 3],
    stream: StreamId,
) -> Result<(), StateError> {
    if let (CopyEnd::Linear { address: to, .. }, CopyEnd::Linear { address: from, .. }) = (to, from)
    {
        return device(session.gpu.copy(to, from, extent[0], stream));
    }
    device(session.gpu.copy_rect(to, from, extent, stream))
}

fn linear(address: u64, [width, height, _]: [u64; 3]) -> CopyEnd {
    CopyEnd::Linear {
        address,
        pitch: width,
        rows: height,
    }
}
