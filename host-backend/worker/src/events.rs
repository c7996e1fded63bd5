//! Marks in streams, with which the session learns what is over: pooled
//! events, and fences made of them.

use paragpu_device::{Device, EventId, Result, StreamId};

/// CU_EVENT_DISABLE_TIMING: the cheapest event.
const UNTIMED: u32 = 2;

/// Events of the session's own.
#[derive(Debug, Default)]
pub(crate) struct Events {
    free: Vec<EventId>,
}

impl Events {
    /// Marks the work given to `stream` so far.
    pub(crate) fn mark(&mut self, device: &mut dyn Device, stream: StreamId) -> Result<EventId> {
        let event = match self.free.pop() {
            Some(event) => event,
            None => device.event_create(UNTIMED)?,
        };
        match device.event_record(event, stream) {
            Ok(()) => Ok(event),
            Err(error) => {
                self.free.push(event);
                Err(error)
            }
        }
    }

    /// The mark is not needed any more.
    pub(crate) fn free(&mut self, event: EventId) {
        self.free.push(event);
    }
}

/// Passed once everything that was under way when it was made is over.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    marks: Vec<(EventId, StreamId)>,
}

impl Fence {
    /// Behind one mark in a stream.
    pub(crate) fn of(mark: EventId, stream: StreamId) -> Self {
        Self {
            marks: vec![(mark, stream)],
        }
    }

    /// Behind another mark in a stream too.
    pub(crate) fn add(&mut self, mark: EventId, stream: StreamId) {
        self.marks.push((mark, stream));
    }

    /// A stream whose mark is not passed.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.marks.last().map(|(_, stream)| *stream)
    }

    /// Is it passed?
    ///
    /// # Errors
    /// Of work that failed.
    pub(crate) fn passed(&mut self, device: &mut dyn Device, events: &mut Events) -> Result<bool> {
        while let Some(&(event, _)) = self.marks.last() {
            if !device.event_query(event)? {
                return Ok(false);
            }
            events.free(event);
            self.marks.pop();
        }
        Ok(true)
    }

    /// Gives its events back unpassed.
    pub(crate) fn abandon(self, events: &mut Events) {
        for (event, _) in self.marks {
            events.free(event);
        }
    }
}
