//! Events.

use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    EventCreate, EventDestroy, EventElapsed, EventQuery, EventRecord, EventSynchronize,
};

use crate::answer::Progress;
use crate::completion::{Goal, Then};
use crate::error::Outcome;
use crate::session::Session;

impl Session {
    pub(crate) fn event_create(&mut self, call: &EventCreate) -> Outcome<()> {
        self.guest_events.check_free(call.event.0)?;
        let event = self.device.event_create(call.flags)?;
        self.guest_events.insert(call.event.0, event);
        Ok(())
    }

    pub(crate) fn event_destroy(&mut self, call: &EventDestroy) -> Outcome<()> {
        let event = self.guest_events.remove(call.event.0)?;
        self.times.forget(call.event.0);
        Ok(self.device.event_destroy(event)?)
    }

    pub(crate) fn event_record(&mut self, call: &EventRecord) -> Outcome<()> {
        let event = *self.guest_events.get(call.event.0)?;
        let stream = self.work_stream(call.stream)?;
        self.device.event_record(event, stream)?;
        self.times.forget(call.event.0);
        Ok(())
    }

    pub(crate) fn event_synchronize(&mut self, call: &EventSynchronize) -> Outcome<Progress> {
        let event = *self.guest_events.get(call.event.0)?;
        if self.device.event_query(event)? {
            self.forward_output()?;
            return Ok(Progress::Now);
        }
        Ok(Progress::Later(Goal::Event(event), Then::Reply))
    }

    pub(crate) fn event_query(&mut self, call: &EventQuery) -> Outcome<()> {
        let event = *self.guest_events.get(call.event.0)?;
        if self.device.event_query(event)? {
            self.forward_output()?;
            Ok(())
        } else {
            Err(Status::NOT_READY.into())
        }
    }

    pub(crate) fn event_elapsed(&mut self, call: &EventElapsed) -> Outcome<f32> {
        if !self.times.is_empty() {
            return self.elapsed_across(call.start, call.end);
        }
        let start = *self.guest_events.get(call.start.0)?;
        let end = *self.guest_events.get(call.end.0)?;
        Ok(self.device.event_elapsed(start, end)?)
    }
}
