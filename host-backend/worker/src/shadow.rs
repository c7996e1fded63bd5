//! Shadows: copies of guest memory outside any window. Device memory of which the
//! guest has a copy is synchronized by the same calls.

use paragpu_communicator::Sender as _;
use paragpu_device::Error;
use paragpu_protocol::codec::Reader;
use paragpu_protocol::frame::Control;
use paragpu_protocol::handle::ObjectKind;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    ShadowAgree, ShadowChanges, ShadowDestroy, ShadowJoin, ShadowPatch, ShadowRead, ShadowWrite,
};
use paragpu_protocol::types::ChangedRuns;

use crate::error::{Fault, Outcome, fail};
use crate::session::bypass::Bypass;
use crate::session::completion::{Continuation, Goal, Progress, Ranges};
use crate::session::copies::Copies;
use crate::session::copy_out::CopySource;
use crate::session::gpu::Gpu;
use crate::session::host_memory::HostMemory;
use crate::session::link::At;
use crate::session::objects::Objects;
use crate::session::replies::Replies;
use crate::session::shadow::PAGE;

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

/// The ranges of a question about changes.
///
/// # Errors
/// `INVALID_VALUE` for too many or too large ones, and for such that are not whole pages.
fn ranges_of(bytes: &[u8]) -> Outcome<Ranges> {
    let bad = |_| Error::new(Status::INVALID_VALUE, "a range is truncated");
    let mut reader = Reader::new(bytes);
    let mut ranges = Ranges::new();
    let mut asked = 0_u64;
    while reader.remaining() > 0 {
        let (address, size): (u64, u64) =
            (reader.field().map_err(bad)?, reader.field().map_err(bad)?);
        if ranges.len() == ShadowChanges::MOST_RANGES || !(address | size).is_multiple_of(PAGE) {
            return fail(Status::INVALID_VALUE, "a shadow is read by pages");
        }
        asked = asked.saturating_add(size);
        if asked > ShadowChanges::MOST_ASKED {
            let most = ShadowChanges::MOST_ASKED;
            return fail(Status::INVALID_VALUE, format!("more than {most} bytes"));
        }
        ranges.push((address, size));
    }
    Ok(ranges)
}

impl Copies {
    /// Writes parts of a payload to device memory, and waits until that is complete.
    /// `parts` calls its argument with each: address, offset in the payload, and bytes.
    /// The device checks the addresses.
    fn write_device(
        &mut self,
        gpu: &mut Gpu,
        payload: &[u8],
        parts: impl FnOnce(&mut dyn FnMut(u64, usize, &[u8]) -> Outcome<()>) -> Outcome<()>,
    ) -> Outcome<()> {
        let aside = self.bypass.stage(gpu, payload)?;
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

    /// Begins to send bytes of device memory. The device checks the addresses.
    fn read_device(&mut self, gpu: &mut Gpu, address: u64, size: u64) -> Outcome<Progress> {
        let stream = self.bypass.stream(gpu)?;
        let source = CopySource::Linear(address);
        self.copy_out(gpu, source, size, stream)
    }
}

impl HostMemory {
    pub(crate) fn shadow_write(
        &mut self,
        gpu: &mut Gpu,
        copies: &mut Copies,
        call: &ShadowWrite<'_>,
    ) -> Outcome<()> {
        let (address, bytes) = (call.address, call.data.0);
        if self.holds(address) {
            return self.write_shadow(address, bytes);
        }
        copies.write_device(gpu, bytes, |copy| copy(address, 0, bytes))
    }

    pub(crate) fn shadow_patch(
        &mut self,
        gpu: &mut Gpu,
        copies: &mut Copies,
        call: &ShadowPatch<'_>,
    ) -> Outcome<()> {
        let (address, runs) = (call.address, call.runs.0);
        if self.holds(address) {
            return each_run(address, runs, |at, _, run| self.write_shadow(at, run));
        }
        copies.write_device(gpu, runs, |copy| each_run(address, runs, copy))
    }

    pub(crate) fn shadow_destroy(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        call: &ShadowDestroy,
    ) -> Outcome<Progress> {
        let address = call.address.0;
        self.check_shadow(address)?;
        // Kernels in flight may have the address, so the memory is freed when all earlier
        // work is complete.
        let fence = objects.streams.fence(gpu)?;
        match Progress::after(gpu, fence, Continuation::ShadowDestroy(address))? {
            Progress::Now => self.drop_shadow(gpu, address).map(|()| Progress::Now),
            later => Ok(later),
        }
    }

    /// Waits for an idle device, because kernels in flight may have the address.
    pub(crate) fn shadow_join(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        call: &ShadowJoin,
    ) -> Outcome<()> {
        if objects.live.names(ObjectKind::GraphExec).next().is_some() {
            return fail(
                Status::NOT_READY,
                "an executable graph may copy from the shadow",
            );
        }
        let idle = objects.host_functions.is_empty() && objects.streams.are_idle(gpu)?;
        self.await_joining(idle)?;
        self.join(gpu, call, true)
    }

    pub(crate) fn shadow_agree(&mut self, _: &mut Gpu, call: &ShadowAgree<'_>) -> Outcome<()> {
        each_run(call.address, call.runs.0, |at, _, run| self.agree(at, run))
    }

    pub(crate) fn shadow_changes(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        at: At,
        call: &ShadowChanges<'_>,
    ) -> Result<bool, Fault> {
        let ranges = match ranges_of(call.ranges.0) {
            Ok(ranges) => ranges,
            Err(fault) => return replies.answer::<ChangedRuns<'_>>(gpu, at, Err(fault)),
        };
        match u16::try_from(call.after) {
            Ok(slot) if slot != 0 && replies.completion.has(slot) => {
                let behind = Progress::Later(Goal::Behind(slot, ranges), Continuation::Reply);
                replies.progress(gpu, at, Ok(behind))
            }
            _ => {
                let mut runs = Vec::new();
                replies.answer(gpu, at, self.changes(&ranges, &mut runs))
            }
        }
    }

    pub(crate) fn shadow_read(
        &mut self,
        gpu: &mut Gpu,
        copies: &mut Copies,
        replies: &mut Replies,
        at: At,
        call: &ShadowRead,
    ) -> Result<bool, Fault> {
        if !self.holds(call.address) {
            let begun = copies.read_device(gpu, call.address, call.size);
            return replies.progress(gpu, at, begun);
        }
        let (sender, executed) = (replies.link.sender(), replies.link.executed());
        let mut sent = 0;
        let read = self.read_shadow(call.address, call.size, |offset, bytes| {
            sent += bytes.len() as u64;
            let (kind, offset) = (Control::Data.kind(), offset.to_le_bytes());
            let payload = [offset.as_slice(), bytes];
            sender
                .send(kind, at.slot, Some(executed), &payload)
                .map(drop)
        });
        copies.statistics.bytes_from_device.add(sent);
        replies.answer(gpu, at, read)
    }
}
