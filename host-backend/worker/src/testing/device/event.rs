//! Events.

use paragpu_device::{EventDevice, EventId, Result, StreamId};
use paragpu_protocol::status::Status;

use super::{Task, TestDevice};

impl TestDevice {
    pub(super) fn waits(&mut self, stream: StreamId, event: EventId) -> Result<()> {
        let mut state = self.enter("stream_wait_event")?;
        let Some((recorded, _)) = state.events.get(&event).copied() else {
            return Err(Status::INVALID_HANDLE.into());
        };
        state.give(stream, Task::Wait(event, recorded))
    }

    pub(super) fn records(&mut self, event: EventId, stream: StreamId) -> Result<()> {
        let mut state = self.enter("event_record")?;
        let Some((recorded, _)) = state.events.get_mut(&event) else {
            return Err(Status::INVALID_HANDLE.into());
        };
        *recorded += 1;
        let time = *recorded;
        state.give(stream, Task::Record(event, time))
    }
}

impl EventDevice for TestDevice {
    fn event_create(&mut self, _: u32) -> Result<EventId> {
        let mut state = self.enter("event_create")?;
        let id = EventId(state.id());
        state.events.insert(id, (0, 0));
        Ok(id)
    }

    fn event_destroy(&mut self, event: EventId) -> Result<()> {
        let gone = self.enter("event_destroy")?.events.remove(&event);
        gone.map(drop).ok_or(Status::INVALID_HANDLE.into())
    }

    fn event_query(&mut self, event: EventId) -> Result<bool> {
        let mut state = self.enter("event_query")?;
        state.advance()?;
        let at = state.events.get(&event);
        at.map(|(recorded, reached)| recorded == reached)
            .ok_or(Status::INVALID_HANDLE.into())
    }

    fn event_watch(&mut self, _: EventId, reached: Box<dyn FnOnce() + Send>) -> Result<bool> {
        self.enter("event_watch")?.watches.push(reached);
        Ok(true)
    }
}
