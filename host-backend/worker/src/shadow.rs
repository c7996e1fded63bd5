//! Shadows: copies of guest memory outside any window. Device memory of which the
//! guest has a copy is synchronized by the same calls.

use paragpu_communicator::Sender as _;
use paragpu_device::Error;
use paragpu_protocol::codec::Reader;
use paragpu_protocol::frame::Control;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{ShadowDestroy, ShadowPatch, ShadowRead, ShadowWrite};

use crate::error::{Fault, Outcome};
use crate::session::Session;
use crate::session::bypass::Bypass;
use crate::session::completion::{Continuation, Progress};
use crate::session::copy_out::CopySource;
use crate::session::link::At;

/// Calls a function with each run of a patch that begins at `address`: its address, its
/// offset in `runs`, and its bytes.
///
/// # Errors
/// `INVALID_VALUE` for a run that is truncated or whose address overflows; those of the
/// function.
fn each_run(
    address: u64,
    runs: &[u8],
    mut visit: impl FnMut(u64, usize, &[u8]) -> Outcome<()>,
) -> Outcome<()> {
    let cut_short = |_| Error::new(Status::INVALID_VALUE, "a run is truncated");
    let overflow = || Error::new(Status::INVALID_VALUE, "a run's address overflows");
    // Gaps and lengths are untrusted. `visit` checks each run against the memory, and
    // sums that overflow are rejected before.
    let mut reader = Reader::new(runs);
    let mut at = address;
    while reader.remaining() > 0 {
        let gap: u32 = reader.field().map_err(cut_short)?;
        let length: u32 = reader.field().map_err(cut_short)?;
        let offset = runs.len() - reader.remaining();
        let bytes = reader.bytes(length as usize).map_err(cut_short)?;
        at = at.checked_add(gap.into()).ok_or_else(overflow)?;
        visit(at, offset, bytes)?;
        at = at.checked_add(length.into()).ok_or_else(overflow)?;
    }
    Ok(())
}

impl Session {
    pub(crate) fn shadow_write(&mut self, call: &ShadowWrite<'_>) -> Outcome<()> {
        let (address, bytes) = (call.address, call.data.0);
        if self.host.holds(address) {
            return self.host.write_shadow(address, bytes);
        }
        self.write_device(bytes, |copy| copy(address, 0, bytes))
    }

    pub(crate) fn shadow_patch(&mut self, call: &ShadowPatch<'_>) -> Outcome<()> {
        let (address, runs) = (call.address, call.runs.0);
        if self.host.holds(address) {
            return each_run(address, runs, |at, _, run| self.host.write_shadow(at, run));
        }
        self.write_device(runs, |copy| each_run(address, runs, copy))
    }

    /// Writes parts of a payload to device memory, and waits until that is complete.
    /// `parts` calls its argument with each: address, offset in the payload, and bytes.
    /// The device checks the addresses.
    fn write_device(
        &mut self,
        payload: &[u8],
        parts: impl FnOnce(&mut dyn FnMut(u64, usize, &[u8]) -> Outcome<()>) -> Outcome<()>,
    ) -> Outcome<()> {
        let (gpu, bypass) = (&mut self.gpu, &mut self.copies.bypass);
        let aside = bypass.stage(gpu, payload)?;
        let mut written = 0;
        let copied = parts(&mut |address, offset, bytes| {
            let (source, size) = (aside.address + offset as u64, bytes.len() as u64);
            written += size;
            Ok(gpu.copy(address, source, size, aside.stream)?)
        });
        // Also after an error: the device may still read the parts before it.
        let settled = Bypass::settle(gpu, aside);
        self.statistics.bytes_to_device.add(written);
        copied.and(settled)
    }

    pub(crate) fn shadow_destroy(&mut self, call: &ShadowDestroy) -> Outcome<Progress> {
        let address = call.address.0;
        self.host.check_shadow(address)?;
        // Kernels in flight may have the address, so the memory is freed when all earlier
        // work is complete.
        let fence = self.objects.streams.fence(&mut self.gpu)?;
        match self.after(fence, Continuation::ShadowDestroy(address))? {
            Progress::Now => self
                .host
                .drop_shadow(&mut self.gpu, address)
                .map(|()| Progress::Now),
            later => Ok(later),
        }
    }

    pub(crate) fn shadow_read(&mut self, at: At, call: &ShadowRead) -> Result<bool, Fault> {
        if !self.host.holds(call.address) {
            let begun = self.read_device(call.address, call.size);
            return self.progress(at, begun);
        }
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

    /// Begins to send bytes of device memory. The device checks the addresses.
    fn read_device(&mut self, address: u64, size: u64) -> Outcome<Progress> {
        let stream = self.copies.bypass.stream(&mut self.gpu)?;
        let source = CopySource::Linear(address);
        self.copies.copy_out(&mut self.gpu, source, size, stream)
    }
}
