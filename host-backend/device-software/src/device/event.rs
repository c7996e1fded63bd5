//! Events.

use super::{EVENT_DISABLE_TIMING, Event, SoftwareDevice, handle};
use crate::error::invalid;
use paragpu_device::{EventDevice, EventId, Result};

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
}
