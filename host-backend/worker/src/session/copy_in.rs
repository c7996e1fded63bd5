//! Direct copies to the device from guest memory that the host can access, without the
//! ring or the window.
//!
//! The data is staged, so the device never gets the address of guest memory.
//! Otherwise the session's kernels and calls could use that address to reach memory
//! that is not theirs.

use paragpu_communicator_ring::guest_memory::List;
use paragpu_device::{EventId, StreamId};
use paragpu_protocol::status::Status;

use super::gpu::Gpu;
use super::pages::{GuestPages, unreached};
use crate::error::{Outcome, fail};
use crate::staging::{Inbound, SLOT};
use crate::statistics::Statistics;

/// The copy.
#[derive(Debug)]
pub(crate) struct CopyIn {
    /// Released before the reply.
    list: Option<List>,
    destination: u64,
    stream: StreamId,
    total: u64,
    /// Bytes submitted to the device.
    issued: u64,
    /// Marks the end of the last copy.
    end: Option<EventId>,
}

impl CopyIn {
    /// A copy of all bytes in the list.
    pub(crate) fn new(list: List, destination: u64, stream: StreamId) -> Box<Self> {
        Box::new(Self {
            total: list.length(),
            list: Some(list),
            destination,
            stream,
            issued: 0,
            end: None,
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
        self.list = None;
    }

    /// Submits as much as staging memory allows. Returns true when the whole copy
    /// is complete.
    pub(crate) fn step(
        &mut self,
        gpu: &mut Gpu,
        inbound: &mut Inbound,
        pages: &mut GuestPages,
        statistics: &Statistics,
    ) -> Outcome<bool> {
        while self.issued < self.total {
            let Some(list) = &self.list else {
                return unreached();
            };
            let length = SLOT.min(self.total - self.issued);
            let Some(destination) = self.destination.checked_add(self.issued) else {
                return fail(Status::INVALID_VALUE, "the destination's address overflows");
            };
            let issued = self.issued;
            let staged = inbound.stage_by(gpu, length, |bytes| pages.read(list, issued, bytes))?;
            let Some(staged) = staged else {
                return Ok(false);
            };
            gpu.copy(destination, staged.address, length, self.stream)?;
            inbound.given(gpu, staged, self.stream)?;
            self.issued += length;
            statistics.bytes_to_device.add(length);
        }
        // All bytes are staged, so the guest's kernel can release its pages.
        self.list = None;
        let end = match self.end {
            Some(end) => end,
            None => {
                let end = gpu.mark(self.stream)?;
                self.end = Some(end);
                end
            }
        };
        if !gpu.event_query(end)? {
            return Ok(false);
        }
        self.end = None;
        gpu.free_mark(end);
        Ok(true)
    }

    /// Frees what an unfinished copy holds.
    pub(crate) fn abandon(self, gpu: &mut Gpu) {
        if let Some(end) = self.end {
            gpu.free_mark(end);
        }
    }
}
