//! Events.

use super::{EVENT_DISABLE_TIMING, Event, SoftwareDevice, handle, invalid};
use paragpu_device::{Error, EventDevice, EventId, Result};
use paragpu_protocol::status::Status;

impl EventDevice for SoftwareDevice {
    fn event_create(&mut self, flags: u32) -> Result<EventId> {
        self.scheduler.check()?;
        if flags & !7 != 0 {
            return Err(invalid("event flags"));
        }
        let id = self.id();
        self.events.insert(
            id,
            Event {
                timed: flags & EVENT_DISABLE_TIMING == 0,
                record: None,
            },
        );
        Ok(EventId(id))
    }

    fn event_destroy(&mut self, event: EventId) -> Result<()> {
        self.scheduler.check()?;
        handle(self.events.remove(&event.0)).map(|_| ())
    }

    fn event_query(&mut self, event: EventId) -> Result<bool> {
        let event = handle(self.events.get(&event.0))?;
        let reached = event
            .record
            .as_ref()
            .is_none_or(|(ticket, _)| self.scheduler.reached(*ticket));
        self.scheduler.check()?;
        Ok(reached)
    }

    fn event_elapsed(&mut self, start: EventId, end: EventId) -> Result<f32> {
        self.scheduler.check()?;
        let stamp = |id: EventId| {
            let event = handle(self.events.get(&id.0))?;
            match &event.record {
                Some((_, stamp)) if event.timed => Ok(*stamp.lock()),
                _ => Err(Error::from(Status::INVALID_HANDLE)),
            }
        };
        let (Some(start), Some(end)) = (stamp(start)?, stamp(end)?) else {
            return Err(Status::NOT_READY.into());
        };
        let forward = end.saturating_duration_since(start).as_secs_f64();
        let backward = start.saturating_duration_since(end).as_secs_f64();
        Ok(((forward - backward) * 1e3) as f32)
    }
}
