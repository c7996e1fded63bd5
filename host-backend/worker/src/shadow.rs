//! Shadows: copies of guest memory outside any window.

use paragpu_communicator::Sender as _;
use paragpu_device::Error;
use paragpu_protocol::codec::Reader;
use paragpu_protocol::frame::Control;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{ShadowCreate, ShadowDestroy, ShadowPatch, ShadowRead, ShadowWrite};

use crate::error::{Fault, Outcome};
use crate::session::Session;
use crate::session::completion::{Progress, Then};
use crate::session::link::At;

impl Session {
    pub(crate) fn shadow_create(&mut self, call: &ShadowCreate) -> Outcome<()> {
        self.host
            .create_shadow(&mut self.gpu, call.address.0, call.size)
    }

    pub(crate) fn shadow_destroy(&mut self, call: &ShadowDestroy) -> Outcome<Progress> {
        let address = call.address.0;
        self.host.check_shadow(address)?;
        // Kernels in flight may hold the address: the memory goes when all work that
        // was posted before is over.
        let fence = self.objects.streams.fence(&mut self.gpu)?;
        match self.after(fence, Then::ShadowDestroy(address))? {
            Progress::Now => self
                .host
                .drop_shadow(&mut self.gpu, address)
                .map(|()| Progress::Now),
            later => Ok(later),
        }
    }

    pub(crate) fn shadow_write(&mut self, call: &ShadowWrite<'_>) -> Outcome<()> {
        self.host.write_shadow(call.address, call.data.0)
    }

    pub(crate) fn shadow_patch(&mut self, call: &ShadowPatch<'_>) -> Outcome<()> {
        let cut_short = |_| Error::new(Status::INVALID_VALUE, "a run is cut short");
        let overflow = || Error::new(Status::INVALID_VALUE, "a run's address overflows");
        // Gaps and lengths are the guest's word. `write_shadow` checks each run against
        // the shadow; a sum that overflows never gets there.
        let mut runs = Reader::new(call.runs.0);
        let mut at = call.address;
        while runs.remaining() > 0 {
            let gap: u32 = runs.field().map_err(cut_short)?;
            let length: u32 = runs.field().map_err(cut_short)?;
            let bytes = runs.bytes(length as usize).map_err(cut_short)?;
            at = at.checked_add(gap.into()).ok_or_else(overflow)?;
            self.host.write_shadow(at, bytes)?;
            at = at.checked_add(length.into()).ok_or_else(overflow)?;
        }
        Ok(())
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
