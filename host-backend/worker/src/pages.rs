//! Copies between the device and memory of the guest that the host reaches: no
//! byte passes through a ring or the window. The guest's kernel names the
//! memory in a page list; [`GuestMemory`] believes it as far as the VM goes.
//!
//! The bytes pass through staging memory, so that no address of the guest's
//! memory is ever known to the device: kernels and calls of the session could
//! name it, and reach what is not theirs.

use std::collections::VecDeque;

use paragpu_communicator_ring::guest_memory::{GuestMemory, List, ListError};
use paragpu_device::{EventId, StreamId};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{CopyPagesFromDevice, CopyPagesToDevice};

use crate::answer::Progress;
use crate::completion::{Goal, Then};
use crate::copy::{CopyOut, Source};
use crate::error::{Fault, Outcome, fail};
use crate::session::Session;
use crate::staging::SLOT;

/// A copy from the guest's memory to the device.
#[derive(Debug)]
pub(crate) struct PagesIn {
    /// Given back before the reply.
    list: Option<List>,
    destination: u64,
    stream: StreamId,
    total: u64,
    /// Bytes that the device was given.
    issued: u64,
    /// Marks the end of the last copy.
    end: Option<EventId>,
}

impl PagesIn {
    /// In whose order it copies.
    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }
}

fn refused(error: ListError) -> Fault {
    let status = match error {
        // The guest goes another way then.
        ListError::NotMapped(_) => Status::NOT_SUPPORTED,
        _ => Status::INVALID_VALUE,
    };
    Fault::Call(paragpu_device::Error::new(status, error.to_string()))
}

impl Session {
    fn take_list(&self, number: u32, size: u64) -> Outcome<List> {
        let Some(memory) = &self.guest_memory else {
            let why = "this worker does not reach the guest's memory";
            return fail(Status::NOT_SUPPORTED, why);
        };
        let list = memory.take(number).map_err(refused)?;
        if size == 0 || size != list.length() {
            let named = list.length();
            return fail(
                Status::INVALID_VALUE,
                format!("{size} bytes of a page list that names {named}"),
            );
        }
        Ok(list)
    }

    pub(crate) fn copy_pages_to_device(&mut self, call: &CopyPagesToDevice) -> Outcome<Progress> {
        let stream = self.work_stream(call.stream)?;
        let list = self.take_list(call.list, call.size)?;
        let copy = Box::new(PagesIn {
            list: Some(list),
            destination: call.destination,
            stream,
            total: call.size,
            issued: 0,
            end: None,
        });
        Ok(Progress::Later(Goal::PagesIn(copy), Then::Reply))
    }

    /// Gives the device as much as there is staging memory for; true at the
    /// end of the whole copy.
    pub(crate) fn pages_in_step(&mut self, copy: &mut PagesIn) -> Outcome<bool> {
        while copy.issued < copy.total {
            let (Some(list), Some(memory)) = (&copy.list, &mut self.guest_memory) else {
                return fail(Status::NOT_SUPPORTED, "the guest's memory is gone");
            };
            let length = SLOT.min(copy.total - copy.issued);
            let Some(destination) = copy.destination.checked_add(copy.issued) else {
                return fail(Status::INVALID_VALUE, "the destination's address overflows");
            };
            let (device, events) = (self.device.as_mut(), &mut self.events);
            let issued = copy.issued;
            let staged = self.inbound.stage_by(device, events, length, |bytes| {
                memory.read(list, issued, bytes).map_err(refused)
            })?;
            let Some(staged) = staged else {
                return Ok(false);
            };
            device.copy(destination, staged.address, length, copy.stream)?;
            self.inbound.given(device, events, staged, copy.stream)?;
            copy.issued += length;
            self.statistics.bytes_to_device.add(length);
        }
        // All its bytes are taken: the guest's kernel may have the pages back.
        copy.list = None;
        let end = match copy.end {
            Some(end) => end,
            None => {
                let end = self.events.mark(self.device.as_mut(), copy.stream)?;
                copy.end = Some(end);
                end
            }
        };
        if !self.device.event_query(end)? {
            return Ok(false);
        }
        copy.end = None;
        self.events.free(end);
        Ok(true)
    }

    /// Gives back what a copy holds that will not be finished.
    pub(crate) fn pages_in_abandon(&mut self, copy: PagesIn) {
        if let Some(end) = copy.end {
            self.events.free(end);
        }
    }

    pub(crate) fn copy_pages_from_device(
        &mut self,
        call: &CopyPagesFromDevice,
    ) -> Outcome<Progress> {
        let stream = self.work_stream(call.stream)?;
        let list = self.take_list(call.list, call.size)?;
        let copy = Box::new(CopyOut {
            source: Source::Linear(call.source),
            stream,
            total: call.size,
            issued: 0,
            under_way: VecDeque::new(),
            pages: Some(list),
        });
        Ok(Progress::Later(Goal::CopyOut(copy), Then::Reply))
    }

    /// Writes bytes that came from the device to the guest's memory.
    pub(crate) fn pages_out(
        memory: Option<&mut GuestMemory>,
        list: &List,
        offset: u64,
        bytes: &[u8],
    ) -> Outcome<()> {
        match memory {
            Some(memory) => memory.write(list, offset, bytes).map_err(refused),
            None => fail(Status::NOT_SUPPORTED, "the guest's memory is gone"),
        }
    }
}
