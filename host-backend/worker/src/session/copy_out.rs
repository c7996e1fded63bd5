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

/// Bytes of a data frame to the guest: whole pages, and an offset before.
const CHUNK: u64 = (MAX_PAYLOAD as u64 - 8) / 4096 * 4096;
const _: () = assert!(CHUNK <= SLOT);
const _: () = assert!(ACKNOWLEDGE_EVERY as u64 / LENT + 1 + DEPTH as u64 <= OUTBOUND);
/// Chunks of one copy under way at once.
const DEPTH: usize = 4;

/// Where a copy's bytes come from.
#[derive(Debug)]
pub(crate) enum CopySource {
    /// An address.
    Linear(u64),
    /// Rows and slices.
    Rect(CopyEnd, [u64; 3]),
}

/// Where they go.
#[derive(Debug)]
enum Target {
    /// Into frames.
    Frames,
    /// Into memory that the host reaches; given back before the reply.
    Pages(List),
    /// Nowhere any more.
    Left,
}

/// The copy.
#[derive(Debug)]
pub(crate) struct CopyOut {
    source: CopySource,
    stream: StreamId,
    total: u64,
    /// Bytes that the device was asked for.
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

    /// A copy of as many bytes as a page list names, into those pages.
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

    /// In whose order it copies.
    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// Gives pages back.
    pub(crate) fn leave(&mut self) {
        if matches!(self.to, Target::Pages(_)) {
            self.to = Target::Left;
        }
    }

    /// Asks the device for as many chunks as may be under way; for none where
    /// the next bytes, which it returns, can be sent from where they are.
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

    /// The next bytes where the device has them, if they can be sent from
    /// there.
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

    /// Gives the device the next bytes to copy to `address`: how many.
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

    /// Sends the chunks that have come and asks for more; true at the end.
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
            // A guest that does not say what it received must not make frames
            // pile up here.
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
                // Nobody waits for them.
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

    /// Gives back what a copy holds that will not be finished.
    pub(crate) fn abandon(self, gpu: &mut Gpu) {
        for chunk in self.under_way {
            // After an error the device writes there no more; else the mark
            // says so, and a slot that is still written is not reused.
            if matches!(gpu.event_query(chunk.mark), Ok(false)) {
                std::mem::forget(chunk.slot);
            } else {
                gpu.free_mark(chunk.mark);
            }
        }
    }
}
