//! Copies. Bytes that travel with calls pass through staging memory in
//! chunks, so that the device copies one while the next travels.

use std::collections::VecDeque;

use paragpu_communicator::Sender;
use paragpu_communicator_ring::guest_memory::List;
use paragpu_device::{CopyEnd, EventId, StreamId};
use paragpu_protocol::frame::{ACKNOWLEDGE_EVERY, Control, MAX_PAYLOAD};
use paragpu_protocol::layout::Regions;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    Copy, CopyFromDevice, CopyRect, CopyRectFromDevice, CopyRectToDevice, CopyToDevice, Memset,
    WaitToken,
};
use paragpu_protocol::types::CopyEnd as WireEnd;

use crate::answer::{At, Deferred, Progress};
use crate::completion::{Goal, Then};
use crate::error::{Fault, Outcome, fail};
use crate::rect::{piece, shifted, volume};
use crate::session::Session;
use crate::staging::{Lent, OUTBOUND, OutSlot, SLOT, Staged};
use crate::sys::device_bytes::DeviceBytes;

/// Bytes of a data frame to the guest: whole pages, and an offset before.
const CHUNK: u64 = (MAX_PAYLOAD as u64 - 8) / 4096 * 4096;
const _: () = assert!(CHUNK <= SLOT);
/// Data of this size on stays in its slot until the guest has it. The guest
/// says so every [`ACKNOWLEDGE_EVERY`](paragpu_protocol::frame::ACKNOWLEDGE_EVERY)
/// bytes, so that there are always slots to come back.
const LENT: u64 = 64 * 1024;
const _: () = assert!(ACKNOWLEDGE_EVERY as u64 / LENT + 1 + DEPTH as u64 <= OUTBOUND);
/// Chunks of one copy under way at once.
const DEPTH: usize = 4;

#[derive(Debug)]
pub(crate) enum Source {
    Linear(u64),
    Rect(CopyEnd, [u64; 3]),
}

/// A copy whose bytes go to the guest.
#[derive(Debug)]
pub(crate) struct CopyOut {
    pub(crate) source: Source,
    pub(crate) stream: StreamId,
    pub(crate) total: u64,
    /// Bytes that the device was asked for.
    pub(crate) issued: u64,
    pub(crate) under_way: VecDeque<Chunk>,
    pub(crate) to: Target,
}

/// Where the bytes of a copy to the guest go.
#[derive(Debug)]
pub(crate) enum Target {
    /// Into frames.
    Frames,
    /// Into memory that the host reaches; given back before the reply.
    Pages(List),
    /// Nowhere any more.
    Left,
}

impl Target {
    /// Gives pages back.
    pub(crate) fn leave(&mut self) {
        if matches!(self, Self::Pages(_)) {
            *self = Self::Left;
        }
    }
}

impl CopyOut {
    /// In whose order it copies.
    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }
}

#[derive(Debug)]
pub(crate) struct Chunk {
    slot: OutSlot,
    mark: EventId,
    offset: u64,
}

impl Session {
    /// The device's end of a copy.
    pub(crate) fn copy_end(&self, end: &WireEnd) -> Outcome<CopyEnd> {
        Ok(match end {
            WireEnd::Linear(linear) => CopyEnd::Linear {
                address: linear.address,
                pitch: linear.pitch,
                rows: linear.rows,
            },
            WireEnd::Array(end) => CopyEnd::Array {
                array: self.arrays.get(end.array.0)?.id,
                level: end.level,
                origin: end.origin,
            },
        })
    }

    fn is_host(&self, address: u64) -> bool {
        Regions::holds(self.regions.shadow, address, 0)
            || Regions::holds(self.regions.window, address, 0)
    }

    fn count(&self, to_host: bool, from_host: bool, bytes: u64) {
        match (to_host, from_host) {
            (false, true) => self.statistics.bytes_to_device.add(bytes),
            (true, false) => self.statistics.bytes_from_device.add(bytes),
            _ => {}
        }
    }

    /// Puts bytes where the device can read them until it has.
    fn stage(&mut self, bytes: &[u8]) -> Outcome<Staged> {
        let staged = self
            .inbound
            .stage(self.device.as_mut(), &mut self.events, bytes)?;
        staged.ok_or(Fault::Stall)
    }

    fn staged_copy_given(&mut self, staged: Staged, stream: StreamId) -> Outcome<()> {
        self.inbound
            .given(self.device.as_mut(), &mut self.events, staged, stream)
    }

    pub(crate) fn copy_to_device(&mut self, call: &CopyToDevice<'_>) -> Outcome<()> {
        let bytes = call.data.0;
        let stream = self.work_stream(call.stream)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let size = bytes.len() as u64;
        if self.inbound.is_in_place(bytes) {
            self.statistics.bytes_to_device.add(size);
            return Ok(());
        }
        let staged = self.stage(bytes)?;
        self.device
            .copy(call.destination, staged.address, size, stream)?;
        self.staged_copy_given(staged, stream)?;
        self.statistics.bytes_to_device.add(size);
        Ok(())
    }

    pub(crate) fn copy_rect_to_device(&mut self, call: &CopyRectToDevice<'_>) -> Outcome<()> {
        let bytes = call.data.0;
        let stream = self.work_stream(call.stream)?;
        let destination = self.copy_end(&call.destination)?;
        let [width, height, _] = call.extent;
        let size = volume(call.extent)?;
        if size != bytes.len() as u64 {
            return fail(
                Status::INVALID_VALUE,
                format!("{} bytes for an extent of {size}", bytes.len()),
            );
        }
        if size == 0 {
            return Ok(());
        }
        let staged = self.stage(bytes)?;
        let source = CopyEnd::Linear {
            address: staged.address,
            pitch: width,
            rows: height,
        };
        self.device
            .copy_rect(destination, source, call.extent, stream)?;
        self.staged_copy_given(staged, stream)?;
        self.statistics.bytes_to_device.add(size);
        Ok(())
    }

    pub(crate) fn copy(&mut self, at: At, call: &Copy) -> Outcome<()> {
        self.tokens.check(call.token)?;
        let stream = self.work_stream(call.stream)?;
        if call.size != 0 {
            self.device
                .copy(call.destination, call.source, call.size, stream)?;
        }
        self.count(
            self.is_host(call.destination),
            self.is_host(call.source),
            call.size,
        );
        let (device, events) = (self.device.as_mut(), &mut self.events);
        self.tokens.add(device, events, call.token, at.call, stream)
    }

    pub(crate) fn copy_rect(&mut self, at: At, call: &CopyRect) -> Outcome<()> {
        self.tokens.check(call.token)?;
        let stream = self.work_stream(call.stream)?;
        let destination = self.copy_end(&call.destination)?;
        let source = self.copy_end(&call.source)?;
        let size = volume(call.extent)?;
        if size != 0 {
            self.device
                .copy_rect(destination, source, call.extent, stream)?;
        }
        let host = |end: &CopyEnd| match end {
            CopyEnd::Linear { address, .. } => self.is_host(*address),
            CopyEnd::Array { .. } => false,
        };
        self.count(host(&destination), host(&source), size);
        let (device, events) = (self.device.as_mut(), &mut self.events);
        self.tokens.add(device, events, call.token, at.call, stream)
    }

    /// Answers a copy that may have named a token.
    pub(crate) fn answer_copy(
        &mut self,
        at: At,
        token: u32,
        outcome: Outcome<()>,
    ) -> Result<bool, Fault> {
        if let Err(Fault::Call(error)) = &outcome {
            self.tokens.fail(token, Deferred::new(at.call, error));
        }
        self.answer(at, outcome)
    }

    pub(crate) fn wait_token(&mut self, at: At, call: &WaitToken) -> Result<bool, Fault> {
        let token = call.token;
        if token == 0 || self.tokens.check(token).is_err() {
            let why = format!("bulk token {token}");
            return self.answer::<()>(at, fail(Status::INVALID_VALUE, why));
        }
        if self.tokens.is_under_way(token) {
            let waits = Progress::Later(Goal::Token(token), Then::Reply);
            return self.progress(at, Ok(waits));
        }
        if let Some(error) = self.tokens.take_failure(token) {
            self.answer_token_failure(at, &error)?;
            return Ok(true);
        }
        self.answer(at, Ok(()))
    }

    /// Reports a failed transfer, which is then reported by no other call.
    pub(crate) fn answer_token_failure(
        &mut self,
        at: At,
        error: &Deferred,
    ) -> Result<(), crate::error::End> {
        if self.deferred.as_ref() == Some(error) {
            self.deferred = None;
        }
        self.answer_failure(at, error)
    }

    pub(crate) fn memset(&mut self, call: &Memset) -> Outcome<()> {
        let stream = self.work_stream(call.stream)?;
        if !matches!(call.element, 1 | 2 | 4) {
            let element = call.element;
            return fail(
                Status::INVALID_VALUE,
                format!("elements of {element} bytes"),
            );
        }
        volume([call.width, call.height, u64::from(call.element)])?;
        if call.width == 0 || call.height == 0 {
            return Ok(());
        }
        Ok(self.device.memset(
            call.destination,
            call.pitch,
            call.value,
            call.element,
            call.width,
            call.height,
            stream,
        )?)
    }

    pub(crate) fn copy_from_device(&mut self, call: &CopyFromDevice) -> Outcome<Progress> {
        let stream = self.work_stream(call.stream)?;
        self.copy_out(Source::Linear(call.source), call.size, stream)
    }

    pub(crate) fn copy_rect_from_device(&mut self, call: &CopyRectFromDevice) -> Outcome<Progress> {
        let stream = self.work_stream(call.stream)?;
        let source = self.copy_end(&call.source)?;
        let total = volume(call.extent)?;
        self.copy_out(Source::Rect(source, call.extent), total, stream)
    }

    fn copy_out(&mut self, source: Source, total: u64, stream: StreamId) -> Outcome<Progress> {
        let mut copy = Box::new(CopyOut {
            source,
            stream,
            total,
            issued: 0,
            under_way: VecDeque::new(),
            to: Target::Frames,
        });
        match self.copy_out_issue(&mut copy) {
            Ok(_) => {}
            Err(fault) => {
                self.copy_out_abandon(*copy);
                return Err(fault);
            }
        }
        Ok(Progress::Later(Goal::CopyOut(copy), Then::Reply))
    }

    /// Asks the device for as many chunks as may be under way; for none where
    /// the next bytes, which it returns, can be sent from where they are.
    fn copy_out_issue(&mut self, copy: &mut CopyOut) -> Outcome<Option<DeviceBytes>> {
        if let Some(bytes) = self.copy_out_in_place(copy) {
            return Ok(Some(bytes));
        }
        while copy.under_way.len() < DEPTH && copy.issued < copy.total {
            let Some(mut slot) = self.outbound.take(self.device.as_mut())? else {
                break;
            };
            let (mark, length) = self.copy_out_chunk(copy, slot.address())?;
            slot.holds(length);
            let offset = copy.issued;
            copy.issued += length;
            copy.under_way.push_back(Chunk { slot, mark, offset });
        }
        Ok(None)
    }

    /// The next bytes where the device has them, if they can be sent from
    /// there.
    fn copy_out_in_place(&mut self, copy: &CopyOut) -> Option<DeviceBytes> {
        let (Source::Linear(base), Target::Frames) = (&copy.source, &copy.to) else {
            return None;
        };
        let length = CHUNK.min(copy.total - copy.issued);
        if !copy.under_way.is_empty() || length < LENT {
            return None;
        }
        let address = base.checked_add(copy.issued)?;
        DeviceBytes::of(self.device.as_mut(), address, length, copy.stream)
    }

    fn copy_out_chunk(&mut self, copy: &CopyOut, address: u64) -> Outcome<(EventId, u64)> {
        let length = match copy.source {
            Source::Linear(base) => {
                let length = CHUNK.min(copy.total - copy.issued);
                let Some(source) = base.checked_add(copy.issued) else {
                    return fail(Status::INVALID_VALUE, "the source's address overflows");
                };
                self.device.copy(address, source, length, copy.stream)?;
                length
            }
            Source::Rect(end, extent) => {
                let piece = piece(extent, copy.issued, CHUNK);
                let [width, height, _] = piece.extent;
                let destination = CopyEnd::Linear {
                    address,
                    pitch: width,
                    rows: height,
                };
                let source = shifted(end, piece.origin)?;
                self.device
                    .copy_rect(destination, source, piece.extent, copy.stream)?;
                piece.bytes()
            }
        };
        let mark = self.events.mark(self.device.as_mut(), copy.stream)?;
        Ok((mark, length))
    }

    /// Sends the chunks that have come and asks for more; true at the end.
    pub(crate) fn copy_out_step(&mut self, at: At, copy: &mut CopyOut) -> Outcome<bool> {
        loop {
            let in_place = self.copy_out_issue(copy)?;
            if matches!(copy.to, Target::Frames) && self.sender.is_behind() {
                return Ok(false);
            }
            if let Some(bytes) = in_place {
                let offset = copy.issued.to_le_bytes();
                copy.issued += bytes.as_ref().len() as u64;
                if at.slot != 0 {
                    self.lends_device_memory = true;
                    self.send_data(at, &offset, Lent::Place(bytes))?;
                }
                continue;
            }
            let Some(chunk) = copy.under_way.front() else {
                let complete = copy.issued == copy.total;
                if complete {
                    copy.to.leave();
                }
                return Ok(complete);
            };
            if !self.device.event_query(chunk.mark)? {
                return Ok(false);
            }
            let Some(chunk) = copy.under_way.pop_front() else {
                return Ok(false);
            };
            self.events.free(chunk.mark);
            let length = chunk.slot.as_ref().len() as u64;
            let memory = self.guest_memory.as_mut();
            match &copy.to {
                Target::Pages(list) => {
                    let bytes = chunk.slot.as_ref();
                    Self::pages_out(memory, Some(list), chunk.offset, bytes)?;
                }
                Target::Left => Self::pages_out(None, None, chunk.offset, &[])?,
                Target::Frames if at.slot == 0 => {}
                Target::Frames => {
                    let offset = chunk.offset.to_le_bytes();
                    self.send_data(at, &offset, Lent::Slot(chunk.slot))?;
                    continue;
                }
            }
            self.unflushed = true;
            self.statistics.bytes_from_device.add(length);
        }
    }

    /// Sends bytes that a call asked for; many stay where they are until the
    /// guest has them.
    fn send_data(&mut self, at: At, offset: &[u8; 8], bytes: Lent) -> Outcome<()> {
        let frame = (Control::Data.kind(), at.slot, self.executed());
        let length = bytes.as_ref().len() as u64;
        if length < LENT {
            let (kind, slot, sequence) = frame;
            let payload = [offset.as_slice(), bytes.as_ref()];
            self.sender.send(kind, slot, Some(sequence), &payload)?;
        } else {
            self.sender.send_lent(frame, offset, bytes)?;
        }
        self.unflushed = true;
        self.statistics.bytes_from_device.add(length);
        Ok(())
    }

    /// Gives back what a copy holds that will not be finished.
    pub(crate) fn copy_out_abandon(&mut self, copy: CopyOut) {
        for chunk in copy.under_way {
            // After an error the device writes there no more; else the mark
            // says so, and a slot that is still written is not reused.
            if matches!(self.device.event_query(chunk.mark), Ok(false)) {
                std::mem::forget(chunk.slot);
            } else {
                self.events.free(chunk.mark);
            }
        }
    }
}
