//! Copies from the device to the guest, in chunks: the device copies one chunk
//! while the previous one is in transit.

use std::collections::VecDeque;

use paragpu_communicator_ring::guest_memory::List;
use paragpu_device::{CopyEnd, EventId, StreamId};
use paragpu_protocol::frame::{ACKNOWLEDGE_EVERY, MAX_PAYLOAD};
use paragpu_protocol::status::Status;

use super::gpu::Gpu;
use super::host_memory::HostMemory;
use super::link::{At, LENT, Link};
use super::pages::unreached;
use crate::error::{Outcome, fail};
use crate::rect::{piece, shifted};
use crate::staging::{Lent, OUTBOUND, OutSlot, Outbound, SLOT};
use crate::sys::device_bytes::DeviceBytes;

/// Bytes of a data frame to the guest: whole pages after an offset.
const CHUNK: u64 = (MAX_PAYLOAD as u64 - 8) / 4096 * 4096;
const _: () = assert!(CHUNK <= SLOT);
/// The minimum number of slots with which copies never deadlock: those that the guest
/// need not have acknowledged, and those of one copy.
pub(crate) const MIN_SLOTS: u64 = ACKNOWLEDGE_EVERY as u64 / LENT + 1 + DEPTH as u64;
const _: () = assert!(MIN_SLOTS <= OUTBOUND);
/// Maximum number of chunks in flight per copy.
const DEPTH: usize = 4;

/// The source of a copy.
#[derive(Debug)]
pub(crate) enum CopySource {
    /// An address.
    Linear(u64),
    /// Rows and slices.
    Rect(CopyEnd, [u64; 3]),
}

/// The destination of a copy.
#[derive(Debug)]
enum Target {
    /// Frames.
    Frames,
    /// Guest memory that the host can access; released before the reply.
    Pages(List),
    /// None any more.
    Left,
}

/// The copy.
#[derive(Debug)]
pub(crate) struct CopyOut {
    source: CopySource,
    stream: StreamId,
    total: u64,
    /// Bytes requested from the device.
    issued: u64,
    under_way: VecDeque<Chunk>,
    to: Target,
}

#[derive(Debug)]
struct Chunk {
    slot: OutSlot,
    mark: EventId,
    offset: u64,
}

impl CopyOut {
    /// A copy of `total` bytes into frames.
    pub(crate) fn into_frames(source: CopySource, total: u64, stream: StreamId) -> Box<Self> {
        Self::new(source, total, stream, Target::Frames)
    }

    /// A copy into the pages of a list.
    pub(crate) fn into_pages(source: u64, list: List, stream: StreamId) -> Box<Self> {
        let (source, total) = (CopySource::Linear(source), list.length());
        Self::new(source, total, stream, Target::Pages(list))
    }

    fn new(source: CopySource, total: u64, stream: StreamId, to: Target) -> Box<Self> {
        Box::new(Self {
            source,
            stream,
            total,
            issued: 0,
            under_way: VecDeque::new(),
            to,
        })
    }

    /// The stream in whose order it copies.
    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// Bytes submitted to the device.
    pub(crate) fn issued(&self) -> u64 {
        self.issued
    }

    /// Releases the pages.
    pub(crate) fn leave(&mut self) {
        if matches!(self.to, Target::Pages(_)) {
            self.to = Target::Left;
        }
    }

    /// Requests as many chunks from the device as may be in flight. If the next bytes can
    /// be sent directly from device memory, it requests none and returns them.
    pub(crate) fn issue(
        &mut self,
        gpu: &mut Gpu,
        outbound: &mut Outbound,
    ) -> Outcome<Option<DeviceBytes>> {
        if let Some(bytes) = self.in_place(gpu) {
            return Ok(Some(bytes));
        }
        while self.under_way.len() < DEPTH && self.issued < self.total {
            let Some(mut slot) = outbound.take(gpu)? else {
                break;
            };
            let length = self.issue_chunk(gpu, slot.address())?;
            let mark = gpu.mark(self.stream)?;
            slot.holds(length);
            let offset = self.issued;
            self.issued += length;
            self.under_way.push_back(Chunk { slot, mark, offset });
        }
        Ok(None)
    }

    /// The next bytes in device memory, if they can be sent from there.
    fn in_place(&self, gpu: &mut Gpu) -> Option<DeviceBytes> {
        let (CopySource::Linear(base), Target::Frames) = (&self.source, &self.to) else {
            return None;
        };
        let length = CHUNK.min(self.total - self.issued);
        if !self.under_way.is_empty() || length < LENT {
            return None;
        }
        let address = base.checked_add(self.issued)?;
        DeviceBytes::of(gpu.device(), address, length, self.stream)
    }

    /// Submits the copy of the next bytes to `address`. Returns their number.
    fn issue_chunk(&self, gpu: &mut Gpu, address: u64) -> Outcome<u64> {
        match self.source {
            CopySource::Linear(base) => {
                let length = CHUNK.min(self.total - self.issued);
                let Some(source) = base.checked_add(self.issued) else {
                    return fail(Status::INVALID_VALUE, "the source's address overflows");
                };
                gpu.copy(address, source, length, self.stream)?;
                Ok(length)
            }
            CopySource::Rect(end, extent) => {
                let piece = piece(extent, self.issued, CHUNK);
                let [width, height, _] = piece.extent;
                let destination = CopyEnd::Linear {
                    address,
                    pitch: width,
                    rows: height,
                };
                let source = shifted(end, piece.origin)?;
                gpu.copy_rect(destination, source, piece.extent, self.stream)?;
                Ok(piece.bytes())
            }
        }
    }

    /// Sends the chunks that are complete and requests more. Returns true at the
    /// end.
    pub(crate) fn step(
        &mut self,
        at: At,
        gpu: &mut Gpu,
        outbound: &mut Outbound,
        host: &mut HostMemory,
        link: &mut Link,
    ) -> Outcome<bool> {
        loop {
            let in_place = self.issue(gpu, outbound)?;
            // Frames must not accumulate here for a guest that does not acknowledge them.
            if matches!(self.to, Target::Frames) && link.sender().is_behind() {
                return Ok(false);
            }
            if let Some(bytes) = in_place {
                let offset = self.issued;
                self.issued += bytes.as_ref().len() as u64;
                if at.slot != 0 {
                    link.send_data(at, offset, Lent::Place(bytes))?;
                }
                continue;
            }
            let Some(chunk) = self.under_way.front() else {
                let complete = self.issued == self.total;
                if complete {
                    self.leave();
                }
                return Ok(complete);
            };
            if !gpu.event_query(chunk.mark)? {
                return Ok(false);
            }
            let Some(chunk) = self.under_way.pop_front() else {
                return Ok(false);
            };
            gpu.free_mark(chunk.mark);
            match &self.to {
                // The reader is gone.
                Target::Frames if at.slot == 0 => link.read(chunk.slot.as_ref().len()),
                Target::Frames => link.send_data(at, chunk.offset, Lent::Slot(chunk.slot))?,
                Target::Pages(list) => {
                    let bytes = chunk.slot.as_ref();
                    host.pages().write(list, chunk.offset, bytes)?;
                    link.read(bytes.len());
                }
                Target::Left => return unreached(),
            }
        }
    }

    /// Frees what an unfinished copy holds.
    pub(crate) fn abandon(self, gpu: &mut Gpu) {
        for chunk in self.under_way {
            // After an error the device no longer writes to the slot. Otherwise its mark
            // shows whether it does, and a slot in use is not reused.
            if matches!(gpu.event_query(chunk.mark), Ok(false)) {
                std::mem::forget(chunk.slot);
            } else {
                gpu.free_mark(chunk.mark);
            }
        }
    }
}
