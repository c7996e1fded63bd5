//! Events.

use paragpu_device::Work;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{EventQuery, EventRecord, EventSynchronize};

use crate::error::Outcome;
use crate::session::completion::{Continuation, Goal, Progress};
use crate::session::gpu::Gpu;
use crate::session::graph::NodeWork;
use crate::session::objects::Objects;
use crate::session::replies::Replies;

impl Objects {
    pub(crate) fn event_record(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        call: &EventRecord,
    ) -> Outcome<()> {
        let stream = self.streams.for_work(gpu, call.stream)?;
        if replies.completion.waits_for(self.events.id(call.event)?) {
            self.events.leave_to_waits(gpu, call.event)?;
        }
        let work = Work::EventRecord(self.events.id(call.event)?);
        gpu.submit(&work, stream)?;
        self.events.recorded(call.event);
        Ok(())
    }

    pub(crate) fn event_record_work(&self, call: &EventRecord) -> Outcome<NodeWork<'static>> {
        Ok(Work::EventRecord(self.events.id_for_graph(call.event)?).into())
    }

    pub(crate) fn event_synchronize(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        call: &EventSynchronize,
    ) -> Outcome<Progress> {
        let event = self.events.id(call.event)?;
        if gpu.event_query(event)? {
            replies.forward_output(gpu)?;
            return Ok(Progress::Now);
        }
        let watch = match self.events.is_slept_for(call.event)? {
            true => replies.completion.watch(gpu, event)?,
            false => None,
        };
        Ok(Progress::Later(
            Goal::Event(event, watch),
            Continuation::Reply,
        ))
    }

    pub(crate) fn event_query(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        call: &EventQuery,
    ) -> Outcome<()> {
        let event = self.events.id(call.event)?;
        if gpu.event_query(event)? {
            replies.forward_output(gpu)?;
            Ok(())
        } else {
            Err(Status::NOT_READY.into())
        }
    }
}
