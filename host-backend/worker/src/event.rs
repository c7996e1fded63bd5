//! Events.

use paragpu_device::Work;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    EventCreate, EventDestroy, EventElapsedTime, EventQuery, EventRecord, EventSynchronize,
};

use crate::error::Outcome;
use crate::session::Session;
use crate::session::completion::{Goal, Progress, Then};
use crate::session::graph::NodeWork;

impl Session {
    pub(crate) fn event_create(&mut self, call: &EventCreate) -> Outcome<()> {
        let events = &mut self.objects.events;
        events.create(&mut self.gpu, call.event, call.flags)
    }

    pub(crate) fn event_destroy(&mut self, call: &EventDestroy) -> Outcome<()> {
        self.objects.events.destroy(&mut self.gpu, call.event)
    }

    pub(crate) fn event_record(&mut self, call: &EventRecord) -> Outcome<()> {
        let NodeWork { work, .. } = self.event_record_work(call)?;
        let stream = self.objects.streams.for_work(&mut self.gpu, call.stream)?;
        self.gpu.submit_by_lane(&work, stream)?;
        self.objects.events.recorded(call.event);
        Ok(())
    }

    pub(crate) fn event_record_work(&self, call: &EventRecord) -> Outcome<NodeWork<'static>> {
        Ok(Work::EventRecord(self.objects.events.id(call.event)?).into())
    }

    pub(crate) fn event_synchronize(&mut self, call: &EventSynchronize) -> Outcome<Progress> {
        let event = self.objects.events.id(call.event)?;
        if self.gpu.event_query(event)? {
            self.forward_output()?;
            return Ok(Progress::Now);
        }
        Ok(Progress::Later(Goal::Event(event), Then::Reply))
    }

    pub(crate) fn event_query(&mut self, call: &EventQuery) -> Outcome<()> {
        let event = self.objects.events.id(call.event)?;
        if self.gpu.event_query(event)? {
            self.forward_output()?;
            Ok(())
        } else {
            Err(Status::NOT_READY.into())
        }
    }

    pub(crate) fn event_elapsed_time(&mut self, call: &EventElapsedTime) -> Outcome<f32> {
        let events = &self.objects.events;
        events.elapsed(&mut self.gpu, call.start, call.end)
    }
}
