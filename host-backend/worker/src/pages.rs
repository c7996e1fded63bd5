//! Copies between the device and memory of the guest that the host reaches: no
//! byte passes through a ring or the window. The guest's kernel names the
//! memory in a page list; [`GuestMemory`] believes it as far as the VM goes.
//!
//! The bytes pass through staging memory, so that no address of the guest's
//! memory is ever known to the device: kernels and calls of the session could
//! name it, and reach what is not theirs.

use std::collections::VecDeque;

use paragpu_communicator_ring::guest_memory::{CHECKED, GuestMemory, List, ListError};
use paragpu_device::{EventId, StreamId};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{CheckPages, CopyPagesFromDevice, CopyPagesToDevice};

use crate::answer::Progress;
use crate::completion::{Goal, Then};
use crate::copy::{CopyOut, Source, Target};
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

/// With this the guest lets the bytes go another way. No other call ends so,
/// which could be reported in place of a copy's own end.
const UNREACHED: Status = Status::MAP_FAILED;

fn refused(error: ListError) -> Fault {
    let status = match error {
        ListError::NotMapped(_) | ListError::NotShared(_) => UNREACHED,
        _ => Status::INVALID_VALUE,
    };
    Fault::Call(paragpu_device::Error::new(status, error.to_string()))
}

fn unreached<T>() -> Outcome<T> {
    fail(UNREACHED, "this worker does not reach the guest's memory")
}

impl Session {
    fn take_list(&self, number: u32, size: u64) -> Outcome<List> {
        let Some(memory) = &self.guest_memory else {
            return unreached();
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

    pub(crate) fn check_pages(&mut self, call: &CheckPages) -> Outcome<()> {
        let list = self.take_list(call.list, CHECKED)?;
        let Some(memory) = &mut self.guest_memory else {
            return unreached();
        };
        memory.check(&list, call.value).map_err(|error| {
            if matches!(error, ListError::NotShared(_)) {
                tracing::warn!(
                    vm = self.identity.vm,
                    "the hypervisor maps the VM's memory for itself alone, so that all bytes \
                     cross through the window: QEMU's memory-backend-memfd wants share=on"
                );
            }
            refused(error)
        })
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
                return unreached();
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
            to: Target::Pages(list),
        });
        Ok(Progress::Later(Goal::CopyOut(copy), Then::Reply))
    }

    /// Writes bytes that came from the device to the guest's memory.
    pub(crate) fn pages_out(
        memory: Option<&mut GuestMemory>,
        list: Option<&List>,
        offset: u64,
        bytes: &[u8],
    ) -> Outcome<()> {
        match (memory, list) {
            (Some(memory), Some(list)) => memory.write(list, offset, bytes).map_err(refused),
            _ => unreached(),
        }
    }

    /// The channel whose page lists these are may soon be another process's:
    /// copies that are under way end here, and later ones are refused.
    pub(crate) fn leave_guest_memory(&mut self) {
        self.guest_memory = None;
        for pending in &mut self.pending {
            match &mut pending.goal {
                Goal::PagesIn(copy) => copy.list = None,
                Goal::CopyOut(copy) => copy.to.leave(),
                _ => {}
            }
        }
    }
}
