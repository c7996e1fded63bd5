//! Events.

use super::{CudaDevice, EVENT_FLAGS, find};
use crate::watchers::WATCHERS;
use paragpu_device::{Error, EventDevice, EventId, Result};
use paragpu_protocol::status::Status;

impl EventDevice for CudaDevice {
    fn event_create(&mut self, flags: u32) -> Result<EventId> {
        if flags & !EVENT_FLAGS != 0 {
            return Err(Error::new(
                Status::NOT_SUPPORTED,
                "events shared between processes are not supported",
            ));
        }
        Ok(EventId(
            self.events.insert(self.context.event_create(flags)?)?,
        ))
    }

    fn event_destroy(&mut self, event: EventId) -> Result<()> {
        self.names.gone += 1;
        let event = self.events.remove(event.0).ok_or(Status::INVALID_HANDLE)?;
        self.context.event_destroy(event)
    }

    fn event_query(&mut self, event: EventId) -> Result<bool> {
        self.context.event_query(find(&self.events, event.0)?)
    }

    fn event_watch(&mut self, event: EventId, reached: Box<dyn FnOnce() + Send>) -> Result<bool> {
        let wait = self.context.event_wait(find(&self.events, event.0)?);
        Ok(WATCHERS.run(Box::new(move || {
            wait.wait();
            reached();
        })))
    }
}
