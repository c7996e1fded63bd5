//! Shadows: copies of guest memory outside any window.

use paragpu_communicator::Sender as _;
use paragpu_device::Error;
use paragpu_protocol::codec::Reader;
use paragpu_protocol::frame::Control;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{ShadowDestroy, ShadowPatch, ShadowRead, ShadowWrite};

use crate::error::{Fault, Outcome};
use crate::session::Session;
use crate::session::completion::{Progress, Then};
use crate::session::gpu::Gpu;
use crate::session::host_memory::HostMemory;
use crate::session::link::At;

impl HostMemory {
    pub(crate) fn shadow_write(&mut self, _: &mut Gpu, call: &ShadowWrite<'_>) -> Outcome<()> {
        self.write_shadow(call.address, call.data.0)
    }

    pub(crate) fn shadow_patch(&mut self, _: &mut Gpu, call: &ShadowPatch<'_>) -> Outcome<()> {
        let cut_short = |_| Error::new(Status::INVALID_VALUE, "a run is cut short");
        let overflow = || Error::new(Status::INVALID_VALUE, "a run's address overflows");
        // Gaps and lengths are untrusted. `write_shadow` checks each run against
        // the shadow, and sums that overflow are rejected before.
        let mut runs = Reader::new(call.runs.0);
        let mut at = call.address;
        while runs.remaining() > 0 {
            let gap: u32 = runs.field().map_err(cut_short)?;
            let length: u32 = runs.field().map_err(cut_short)?;
            let bytes = runs.bytes(length as usize).map_err(cut_short)?;
            at = at.checked_add(gap.into()).ok_or_else(overflow)?;
            self.write_shadow(at, bytes)?;
            at = at.checked_add(length.into()).ok_or_else(overflow)?;
        }
        Ok(())
    }
}

impl Session {
    pub(crate) fn shadow_destroy(&mut self, call: &ShadowDestroy) -> Outcome<Progress> {
        let address = call.address.0;
        self.host.check_shadow(address)?;
        // Kernels in flight may have the address, so the memory is freed when all
        // earlier work is complete.
        let fence = self.objects.streams.fence(&mut self.gpu)?;
        match self.after(fence, Then::ShadowDestroy(address))? {
            Progress::Now => self
                .host
                .drop_shadow(&mut self.gpu, address)
                .map(|()| Progress::Now),
            later => Ok(later),
        }
    }

    pub(crate) fn shadow_read(&mut self, at: At, call: &ShadowRead) -> Result<bool, Fault> {
        let (sender, executed) = (self.link.sender(), self.link.executed());
        let mut sent = 0;
        let read = self
            .host
            .read_shadow(call.address, call.size, |offset, bytes| {
                sent += bytes.len() as u64;
                let (kind, offset) = (Control::Data.kind(), offset.to_le_bytes());
                let payload = [offset.as_slice(), bytes];
                sender
                    .send(kind, at.slot, Some(executed), &payload)
                    .map(drop)
            });
        self.statistics.bytes_from_device.add(sent);
        self.answer(at, read)
    }
}
