//! Streams.

use paragpu_device::Work;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    StreamCreate, StreamDestroy, StreamQuery, StreamSynchronize, StreamWaitEvent,
};

use crate::error::Outcome;
use crate::session::Session;
use crate::session::completion::{Goal, Progress, Then};
use crate::session::gpu::Fence;
use crate::session::graph::NodeWork;

impl Session {
    pub(crate) fn stream_create(&mut self, call: &StreamCreate) -> Outcome<()> {
        let streams = &mut self.objects.streams;
        streams.create(&mut self.gpu, call.stream, call.flags, call.priority)
    }

    pub(crate) fn stream_destroy(&mut self, call: &StreamDestroy) -> Outcome<()> {
        self.objects.streams.destroy(&mut self.gpu, call.stream)
    }

    pub(crate) fn stream_synchronize(&mut self, call: &StreamSynchronize) -> Outcome<Progress> {
        let streams = &mut self.objects.streams;
        if streams.is_over(&mut self.gpu, call.stream)? {
            self.forward_output()?;
            return Ok(Progress::Now);
        }
        // A mark, because work that others add meanwhile is not waited for.
        let id = streams.id(call.stream)?;
        let mark = self.gpu.mark(id)?;
        Ok(Progress::Later(
            Goal::Fence(Fence::of(mark, id)),
            Then::Reply,
        ))
    }

    pub(crate) fn stream_query(&mut self, call: &StreamQuery) -> Outcome<()> {
        if self.objects.streams.is_over(&mut self.gpu, call.stream)? {
            self.forward_output()?;
            Ok(())
        } else {
            Err(Status::NOT_READY.into())
        }
    }

    pub(crate) fn stream_wait_event(&mut self, call: &StreamWaitEvent) -> Outcome<()> {
        let NodeWork { work, .. } = self.stream_wait_event_work(call)?;
        let stream = self.objects.streams.for_work(&mut self.gpu, call.stream)?;
        Ok(self.gpu.submit(&work, stream)?)
    }

    pub(crate) fn stream_wait_event_work(
        &self,
        call: &StreamWaitEvent,
    ) -> Outcome<NodeWork<'static>> {
        Ok(Work::EventWait(self.objects.events.id(call.event)?).into())
    }
}
