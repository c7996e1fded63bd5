//! Copies. Data sent with calls is staged in chunks, so that the device copies one chunk
//! while the next one is in transit.

use paragpu_device::{CopyEnd, Memset as DeviceMemset, StreamId, Work};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    Copy, CopyFromDevice, CopyRect, CopyRectFromDevice, CopyRectToDevice, CopyToDevice, Memset,
    WaitToken,
};

use crate::error::{Fault, Outcome, fail};
use crate::rect::{check_pitch, volume};
use crate::session::completion::{Continuation, Goal, Progress};
use crate::session::copies::Copies;
use crate::session::copy_out::{CopyOut, CopySource};
use crate::session::errors::Deferred;
use crate::session::gpu::Gpu;
use crate::session::graph::NodeWork;
use crate::session::host_memory::HostMemory;
use crate::session::link::At;
use crate::session::objects::Objects;
use crate::session::replies::Replies;
use crate::staging::Staged;

impl Copies {
    /// Stages bytes where the device can read them.
    fn stage(&mut self, gpu: &mut Gpu, bytes: &[u8]) -> Outcome<Staged> {
        let staged = self.inbound.stage(gpu, bytes)?;
        staged.ok_or(Fault::Stall)
    }

    /// Begins a copy of `total` bytes to the guest.
    pub(crate) fn copy_out(
        &mut self,
        gpu: &mut Gpu,
        source: CopySource,
        total: u64,
        stream: StreamId,
    ) -> Outcome<Progress> {
        let mut copy = CopyOut::into_frames(source, total, stream);
        match copy.issue(gpu, self.outbound_of(stream)) {
            Ok(_) => Ok(Progress::Later(Goal::CopyOut(copy), Continuation::Reply)),
            Err(fault) => {
                copy.abandon(gpu);
                Err(fault)
            }
        }
    }
}

impl Objects {
    pub(crate) fn copy_work(&self, call: &Copy) -> Outcome<NodeWork<'static>> {
        let work = Work::Copy {
            destination: call.destination,
            source: call.source,
            size: call.size,
        };
        Ok(work.into())
    }

    pub(crate) fn copy_rect_work(&self, call: &CopyRect) -> Outcome<NodeWork<'static>> {
        volume(call.extent)?;
        let work = Work::CopyRect {
            destination: self.textures.copy_end(&call.destination)?,
            source: self.textures.copy_end(&call.source)?,
            extent: call.extent,
        };
        Ok(work.into())
    }

    pub(crate) fn memset(&mut self, gpu: &mut Gpu, call: &Memset) -> Outcome<()> {
        let stream = self.streams.for_work(gpu, call.stream)?;
        let NodeWork { work, .. } = self.memset_work(call)?;
        match &work {
            Work::Memset(set) if set.is_empty() => Ok(()),
            work => Ok(gpu.submit(work, stream)?),
        }
    }

    pub(crate) fn memset_work(&self, call: &Memset) -> Outcome<NodeWork<'static>> {
        check_memset(call)?;
        let work = Work::Memset(DeviceMemset {
            destination: call.destination,
            pitch: call.pitch,
            value: call.value,
            element: call.element,
            width: call.width,
            height: call.height,
        });
        Ok(work.into())
    }
}

impl Copies {
    pub(crate) fn copy_to_device(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        call: &CopyToDevice<'_>,
    ) -> Outcome<()> {
        let bytes = call.data.0;
        let stream = objects.streams.for_work(gpu, call.stream)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let size = bytes.len() as u64;
        if self.inbound.is_in_place(bytes) {
            self.statistics.bytes_to_device.add(size);
            return Ok(());
        }
        let staged = self.stage(gpu, bytes)?;
        gpu.copy(call.destination, staged.address, size, stream)?;
        self.inbound.given(gpu, staged, stream)?;
        self.statistics.bytes_to_device.add(size);
        Ok(())
    }

    pub(crate) fn copy_rect_to_device(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        call: &CopyRectToDevice<'_>,
    ) -> Outcome<()> {
        let bytes = call.data.0;
        let stream = objects.streams.for_work(gpu, call.stream)?;
        let destination = objects.textures.copy_end(&call.destination)?;
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
        let staged = self.stage(gpu, bytes)?;
        let source = CopyEnd::Linear {
            address: staged.address,
            pitch: width,
            rows: height,
        };
        gpu.copy_rect(destination, source, call.extent, stream)?;
        self.inbound.given(gpu, staged, stream)?;
        self.statistics.bytes_to_device.add(size);
        Ok(())
    }

    pub(crate) fn copy(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        host: &mut HostMemory,
        replies: &mut Replies,
        at: At,
        call: &Copy,
    ) -> Result<bool, Fault> {
        let outcome = self.copy_now(gpu, objects, host, at, call);
        self.note_failure(at, call.token, &outcome);
        replies.answer(gpu, at, outcome)
    }

    fn copy_now(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        host: &HostMemory,
        at: At,
        call: &Copy,
    ) -> Outcome<()> {
        self.tokens.check(call.token)?;
        let stream = objects.streams.for_work(gpu, call.stream)?;
        if call.size != 0 {
            let NodeWork { work, .. } = objects.copy_work(call)?;
            gpu.submit(&work, stream)?;
        }
        self.statistics.count_copy(
            host.holds(call.destination),
            host.holds(call.source),
            call.size,
        );
        let (tokens, streams) = (&mut self.tokens, &mut objects.streams);
        tokens.add(streams, call.token, at.call, call.stream)
    }

    pub(crate) fn copy_rect(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        host: &mut HostMemory,
        replies: &mut Replies,
        at: At,
        call: &CopyRect,
    ) -> Result<bool, Fault> {
        let outcome = self.copy_rect_now(gpu, objects, host, at, call);
        self.note_failure(at, call.token, &outcome);
        replies.answer(gpu, at, outcome)
    }

    fn copy_rect_now(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        host: &HostMemory,
        at: At,
        call: &CopyRect,
    ) -> Outcome<()> {
        self.tokens.check(call.token)?;
        let stream = objects.streams.for_work(gpu, call.stream)?;
        let destination = objects.textures.copy_end(&call.destination)?;
        let source = objects.textures.copy_end(&call.source)?;
        let size = volume(call.extent)?;
        if size != 0 {
            gpu.copy_rect(destination, source, call.extent, stream)?;
        }
        let host = |end: &CopyEnd| match end {
            CopyEnd::Linear { address, .. } => host.holds(*address),
            CopyEnd::Array { .. } => false,
        };
        self.statistics
            .count_copy(host(&destination), host(&source), size);
        let (tokens, streams) = (&mut self.tokens, &mut objects.streams);
        tokens.add(streams, call.token, at.call, call.stream)
    }

    /// Tells the guest thread that waits for the token, if any, that its copy failed.
    fn note_failure(&mut self, at: At, token: u32, outcome: &Outcome<()>) {
        if let Err(Fault::Call(error)) = outcome {
            self.tokens.fail(token, Deferred::new(at.call, error));
        }
    }

    pub(crate) fn wait_token(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        at: At,
        call: &WaitToken,
    ) -> Result<bool, Fault> {
        let token = call.token;
        if token == 0 || self.tokens.check(token).is_err() {
            let why = format!("bulk token {token}");
            return replies.answer::<()>(gpu, at, fail(Status::INVALID_VALUE, why));
        }
        if self.tokens.is_in_flight(token) {
            let waits = Progress::Later(Goal::Token(token), Continuation::Reply);
            return replies.progress(gpu, at, Ok(waits));
        }
        if let Some(error) = self.tokens.take_failure(token) {
            replies.fail_transfer(at, &error)?;
            return Ok(true);
        }
        replies.answer(gpu, at, Ok(()))
    }

    pub(crate) fn copy_from_device(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        call: &CopyFromDevice,
    ) -> Outcome<Progress> {
        let stream = objects.streams.for_work(gpu, call.stream)?;
        self.copy_out(gpu, CopySource::Linear(call.source), call.size, stream)
    }

    pub(crate) fn copy_rect_from_device(
        &mut self,
        gpu: &mut Gpu,
        objects: &mut Objects,
        call: &CopyRectFromDevice,
    ) -> Outcome<Progress> {
        let stream = objects.streams.for_work(gpu, call.stream)?;
        let source = objects.textures.copy_end(&call.source)?;
        let total = volume(call.extent)?;
        check_pitch(&source, call.extent)?;
        self.copy_out(gpu, CopySource::Rect(source, call.extent), total, stream)
    }
}

fn check_memset(call: &Memset) -> Outcome<()> {
    if !matches!(call.element, 1 | 2 | 4) {
        let element = call.element;
        return fail(
            Status::INVALID_VALUE,
            format!("elements of {element} bytes"),
        );
    }
    volume([call.width, call.height, u64::from(call.element)]).map(drop)
}
