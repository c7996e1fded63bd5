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

/// One thing that a fence waits for.
#[derive(Debug, Clone, Copy)]
enum Mark {
    /// An event recorded behind the work.
    Event(EventId, StreamId),
    /// The stream's having nothing left to do. That costs the device nothing,
    /// and is the same as long as nothing is given to any stream: whoever is
    /// about to do so has the fence [hold](Fence::hold) first.
    Idle(StreamId),
}

/// Passed once everything that was under way when it was made is over.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    marks: Vec<Mark>,
}

impl Fence {
    /// Behind all that a stream has to do.
    pub(crate) fn of(stream: StreamId) -> Self {
        Self {
            marks: vec![Mark::Idle(stream)],
        }
    }

    /// Behind all that another stream has to do, too.
    pub(crate) fn add(&mut self, stream: StreamId) {
        self.marks.push(Mark::Idle(stream));
    }

    /// Makes it independent of what the streams are given from now on, and of
    /// their lives.
    pub(crate) fn hold(&mut self, device: &mut dyn Device, events: &mut Events) -> Result<()> {
        for mark in &mut self.marks {
            if let Mark::Idle(stream) = *mark {
                *mark = Mark::Event(events.mark(device, stream)?, stream);
            }
        }
        Ok(())
    }

    /// A stream that is waited for.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.marks.last().map(|mark| match *mark {
            Mark::Event(_, stream) | Mark::Idle(stream) => stream,
        })
    }

    /// Is it passed?
    ///
    /// # Errors
    /// Of work that failed.
    pub(crate) fn passed(&mut self, device: &mut dyn Device, events: &mut Events) -> Result<bool> {
        while let Some(&mark) = self.marks.last() {
            let is_over = match mark {
                Mark::Event(event, _) => device.event_query(event)?,
                Mark::Idle(stream) => device.stream_query(stream)?,
            };
            if !is_over {
                return Ok(false);
            }
            if let Mark::Event(event, _) = mark {
                events.free(event);
            }
            self.marks.pop();
        }
        Ok(true)
    }

    /// Gives its events back unpassed.
    pub(crate) fn abandon(self, events: &mut Events) {
        for mark in self.marks {
            if let Mark::Event(event, _) = mark {
                events.free(event);
            }
        }
    }
}
